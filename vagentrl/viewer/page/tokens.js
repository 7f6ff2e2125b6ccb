// The tokens of a turn, coloured by a quantity.

const FIRST_TOKENS = 3000; // tokens that are shown at first
const difference = (a, b) => (scores) =>
  scores[a] && scores[b] ? scores[a].map((value, place) => minus(value, scores[b][place])) : null;
const minus = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : null);
const plainScore = (name) => (scores) => scores[name];
const QUANTITIES = [
  // name, label, values of a turn, colours: "signed" around 0, "low" for far below 0, "high" for far above
  ["mask", "action mask", () => null, "mask"],
  ["advantage", "advantage", plainScore("advantage"), "signed"],
  ["logprob", "log-prob when sampled", plainScore("logprob"), "low"],
  ["actor", "log-prob under the actor", plainScore("actor"), "low"],
  ["reference", "log-prob under the reference", plainScore("reference"), "low"],
  ["kl", "KL: actor − reference", difference("actor", "reference"), "signed"],
  ["gap", "engine gap: actor − sampled", difference("actor", "logprob"), "signed"],
  ["entropy", "entropy (nats)", plainScore("entropy"), "high"],
  ["value", "value", plainScore("value"), "signed"],
];
const LOW = [230, 95, 20], HIGH = [20, 140, 110], HIGH_ONLY = [125, 85, 220], MASK = [50, 110, 230];

/** The quantities that are known for some turn of a trajectory. */
function knownQuantities(trajectory) {
  return QUANTITIES.filter(
    ([name, , values]) =>
      name === "mask" || trajectory.turns.some((turn) => values(turn.scores)?.some((v) => v !== null)),
  );
}

/** The largest absolute value of a quantity in a trajectory: all turns share one scale. */
function extent(trajectory, values) {
  let most = 0;
  for (const turn of trajectory.turns) {
    for (const value of values(turn.scores) ?? []) {
      if (typeof value === "number") most = Math.max(most, Math.abs(value));
    }
  }
  return most;
}

function colour(value, most, kind) {
  if (typeof value !== "number" || most === 0) return "";
  const share = Math.min(1, Math.abs(value) / most);
  const signedColour = value < 0 ? LOW : HIGH;
  const rgb = kind === "signed" ? signedColour : kind === "low" ? LOW : HIGH_ONLY;
  return `rgb(${rgb.join(" ")} / ${(0.75 * share).toFixed(3)})`;
}

/** The bytes that byte-level tokenizers write as these characters. */
const BYTES = (() => {
  const bytes = new Map();
  let next = 256;
  for (let byte = 0; byte < 256; byte += 1) {
    const own = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    bytes.set(String.fromCodePoint(own ? byte : next), byte);
    if (!own) next += 1;
  }
  return bytes;
})();

/** What a token stands for, as far as its spelling tells. */
function tokenText(spelling) {
  const bytes = [...spelling].map((character) => BYTES.get(character));
  if (bytes.includes(undefined)) return spelling.replaceAll("▁", " ");
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes));
  } catch {
    return spelling; // a part of a character
  }
}

/** The tokens with the controls that colour them. */
function tokenCard(trajectory, place) {
  const turn = trajectory.turns[place];
  if (!turn.tokens.length) return make("div", "card", make("h3", "", "reply"), textBlock(turn.reply));
  const known = knownQuantities(trajectory);
  const found = known.find(([name]) => name === state.quantity) ?? known[1] ?? known[0];
  const [name, , values, kind] = found;
  const most = extent(trajectory, values);
  const pick = choice(known.map(([each, label]) => [label, each]));
  pick.value = name;
  pick.addEventListener("input", () => setQuantity(pick.value));
  const prompts = make("button", "", `${state.prompt ? "hide" : "show"} ${turn.prompt.length} prompt tokens`);
  prompts.addEventListener("click", togglePrompt);
  const tools = make("div", "tools", make("label", "", "colour by ", pick), prompts);
  if (kind !== "mask") tools.append(legend(most, kind));
  const block = make("pre", "text tokens");
  if (state.prompt) writePrompt(block, trajectory, turn, kind);
  writeReply(block, trajectory, turn, { name, values: values(turn.scores), most, kind });
  return make("div", "card", make("h3", "", `reply, ${turn.tokens.length} tokens`), tools, block);
}

function legend(most, kind) {
  const canvas = document.createElement("canvas");
  canvas.width = 90;
  canvas.height = 11;
  const [low, high] = kind === "signed" ? [-most, most] : kind === "low" ? [-most, 0] : [0, most];
  const context = canvas.getContext("2d");
  for (let x = 0; x < 90; x += 1) {
    context.fillStyle = colour(low + ((high - low) * x) / 89, most, kind) || "transparent";
    context.fillRect(x, 0, 1, 11);
  }
  return make("span", "legend", number(low, 3), canvas, number(high, 3));
}

/** Prompt tokens, which were not sampled; a run of equal ones is written once. */
function writePrompt(block, trajectory, turn, kind) {
  for (let start = 0; start < turn.prompt.length; ) {
    let end = start;
    while (turn.prompt[end] === turn.prompt[start]) end += 1;
    const [id, spelling] = trajectory.vocabulary[turn.prompt[start]];
    const token = tokenElement(tokenText(spelling) + (end - start > 2 ? `×${end - start}` : ""), "prompt");
    if (end - start === 2) write(token, tokenText(spelling));
    hoverable(token, () => [["token", spelling], ["id", id], ["action mask", "0: not sampled"]]);
    block.append(token);
    start = end;
  }
}

function writeReply(block, trajectory, turn, { name, values, most, kind }, from = 0) {
  const until = Math.min(turn.tokens.length, from + FIRST_TOKENS);
  for (let place = from; place < until; place += 1) {
    const [id, spelling] = trajectory.vocabulary[turn.tokens[place]];
    const token = tokenElement(tokenText(spelling), "");
    const background =
      kind === "mask" ? colour(1, 2, "high") : values ? colour(values[place], most, kind) : "";
    if (background) token.style.backgroundColor = background;
    hoverable(token, () => tokenFacts(trajectory, turn, place, id, spelling, name));
    block.append(token);
  }
  if (until === turn.tokens.length) return;
  const more = make("button", "", `show more of ${turn.tokens.length.toLocaleString("en")} tokens`);
  more.addEventListener("click", () => {
    more.remove();
    writeReply(block, trajectory, turn, { name, values, most, kind }, until);
  });
  block.append(more);
}

function tokenElement(text, kind) {
  return make("span", `token ${kind}`, text.replaceAll("\n", "⏎\n"));
}

function tokenFacts(trajectory, turn, place, id, spelling, chosen) {
  const facts = [["token", spelling], ["id", id], ["place", place]];
  for (const [name, label, values] of knownQuantities(trajectory)) {
    const value = name === "mask" ? 1 : values(turn.scores)?.[place];
    facts.push([label, number(value), name === chosen ? "now" : ""]);
  }
  return facts;
}

/** Show a table beside the pointer while it is over an element. */
function hoverable(element, facts) {
  const tip = document.getElementById("tip");
  element.addEventListener("mouseenter", () => {
    tip.replaceChildren(pairs(facts()));
    tip.hidden = false;
    const box = element.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const below = box.bottom + 6 + size.height < innerHeight;
    tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - size.width - 8))}px`;
    tip.style.top = `${below ? box.bottom + 6 : Math.max(4, box.top - size.height - 6)}px`;
  });
  element.addEventListener("mouseleave", () => (tip.hidden = true));
}
