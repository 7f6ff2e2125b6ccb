"use strict";
// Everything that an agent, an environment or a judge wrote reaches the page as text nodes only.

const TOO_LONG = 20000; // characters of a text that are shown at first
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;
const CONTROL_NAMES = { 0: "NUL", 7: "BEL", 8: "BS", 13: "CR", 27: "ESC", 127: "DEL" };

/** The name under which a character is shown that would be invisible or reorder the text. */
function markName(character) {
  const code = character.codePointAt(0);
  return CONTROL_NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The text in one string, for places without elements such as options of a list. */
function plain(text) {
  return String(text).replace(HIDDEN, (character) => `⟨${markName(character)}⟩`);
}

/** Append a text to an element; hidden characters become small boxes with their names. */
function write(element, text) {
  let after = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > after) element.append(text.slice(after, match.index));
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.textContent = markName(match[0]);
    element.append(mark);
    after = match.index + match[0].length;
  }
  if (after < text.length) element.append(text.slice(after));
  return element;
}

/** An element with children; a string among them is written by `write`. */
function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const child of children) {
    if (child === null || child === undefined) continue;
    if (child instanceof Node) element.append(child);
    else write(element, String(child));
  }
  return element;
}

/** A block of text. A long one is cut, with a button that shows the rest. */
function textBlock(text, className = "", most = TOO_LONG) {
  const block = make("pre", `text ${className}`);
  if (text.length <= most) return write(block, text);
  write(block, text.slice(0, most));
  const rest = make("button", "", `show all ${text.length.toLocaleString("en")} characters`);
  rest.addEventListener("click", () => {
    block.replaceChildren();
    write(block, text);
  });
  block.append("… ", rest);
  return block;
}

/** A number in few digits; what is not finite comes as its name. */
function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

/** A number with its sign. */
function signed(value) {
  return typeof value === "number" && value > 0 ? `+${number(value)}` : number(value);
}

/** A table of names and values. */
function pairs(entries) {
  const table = make("table");
  for (const [name, value, className] of entries) {
    const row = make("tr", className ?? "", make("th", "", name));
    row.append(value instanceof Node ? make("td", "", value) : make("td", "", value));
    table.append(row);
  }
  return table;
}
