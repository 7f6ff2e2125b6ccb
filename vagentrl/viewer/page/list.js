// The list of trajectories: filters, sorting, and only the visible rows as elements.

const ROW_HEIGHT = 28;
const COLUMNS = [
  ["iteration", "iter", "number"],
  ["split", "split", ""],
  ["environment", "environment", ""],
  ["group", "group", "number"],
  ["member", "#", "number"],
  ["seed", "seed", "number"],
  ["return", "return", "number"],
  ["success", "✓", ""],
  ["length", "turns", "number"],
  ["stop", "stop", ""],
  ["policy", "policy", ""],
];
const NAMED = ["environment", "split", "stop", "policy"];
const RANGES = [["return", "return"], ["iteration", "iteration"]];
const order = { rows: [], place: new Map(), by: "", falling: false };
let controls = {};

/** What a column holds for a row, as the list shows it. */
function cell(name, row) {
  const value = state.index.columns[name][row];
  if (NAMED.includes(name)) return plain(state.index.names[name][value] ?? "");
  if (name === "success") return value ? "✓" : "✗";
  if (name === "return") return number(value);
  return String(value);
}

/** Whether it is known who played; episodes of training runs do not name it. */
const knowsPolicies = () => state.index.names.policy.some((name) => name !== null);
const shownColumns = () => COLUMNS.filter(([name]) => name !== "policy" || knowsPolicies());

function buildFilters() {
  const form = document.getElementById("filters");
  form.replaceChildren();
  document.getElementById("browse").toggleAttribute("data-policies", knowsPolicies());
  const add = (label, ...inputs) => {
    const group = inputs.length > 1 ? make("span", "range", ...inputs) : inputs[0];
    inputs.forEach((input, place) => (input.dataset.name = `${label} ${place}`));
    form.append(make("label", "", label, group));
  };
  controls = {};
  for (const name of NAMED) {
    if (name === "policy" && !knowsPolicies()) continue;
    const options = state.index.names[name].map((value, place) => [plain(value ?? "the run's"), String(place)]);
    add(name, (controls[name] = choice([["any", ""], ...options])));
  }
  controls.success = choice([["any", ""], ["yes", "true"], ["no", "false"]]);
  add("success", controls.success);
  for (const [name, label] of RANGES) {
    const low = field("number", "from"), high = field("number", "to");
    controls[name] = [low, high];
    add(label, low, high);
  }
  add("group", (controls.group = field("number", "")));
  add("seed", (controls.seed = field("text", "")));
  const reset = make("button", "", "reset");
  reset.type = "reset";
  form.append(reset);
}

function listenToFilters() {
  const form = document.getElementById("filters");
  form.addEventListener("input", applyFilters);
  form.addEventListener("reset", () => setTimeout(applyFilters));
  form.addEventListener("submit", (event) => event.preventDefault());
}

function choice(options) {
  const select = make("select");
  for (const [label, value] of options) {
    const option = document.createElement("option");
    option.textContent = label;
    option.value = value;
    select.append(option);
  }
  return select;
}

function field(type, placeholder) {
  const input = document.createElement("input");
  Object.assign(input, { type, placeholder, step: "any" });
  return input;
}

/** The conditions that the filters set: functions of a row. */
function conditions() {
  const columns = state.index.columns, wanted = [];
  const same = (name, value) => wanted.push((row) => columns[name][row] === value);
  for (const name of NAMED) if (controls[name]?.value) same(name, Number(controls[name].value));
  if (controls.success.value) same("success", controls.success.value === "true");
  if (controls.group.value) same("group", Number(controls.group.value));
  if (controls.seed.value.trim()) same("seed", controls.seed.value.trim());
  for (const [name] of RANGES) {
    const [low, high] = controls[name].map((input) => input.value);
    if (low) wanted.push((row) => columns[name][row] >= Number(low));
    if (high) wanted.push((row) => columns[name][row] <= Number(high));
  }
  return wanted;
}

function applyFilters() {
  document.getElementById("list").scrollTop = 0;
  filterRows();
  if (!order.place.has(state.row) && order.rows.length) select(order.rows[0]);
}

/** The filters anew, for another index, as they were set. */
function rebuildFilters() {
  const inputs = () => [...document.querySelectorAll("#filters :is(select, input)")];
  const labels = (input) => input.selectedOptions?.[0]?.textContent ?? input.value;
  const before = new Map(inputs().map((input) => [input.dataset.name, labels(input)]));
  buildFilters();
  for (const input of inputs()) {
    const label = before.get(input.dataset.name) ?? "";
    const options = [...(input.options ?? [])];
    if (!options.length) input.value = label;
    else input.value = options.find((option) => option.textContent === label)?.value ?? "";
  }
  drawColumns();
  filterRows();
}

function filterRows() {
  const wanted = conditions(), rows = [];
  for (let row = 0; row < state.index.columns.iteration.length; row += 1) {
    if (wanted.every((holds) => holds(row))) rows.push(row);
  }
  order.rows = rows;
  sortRows();
  drawRows();
  const all = state.index.columns.iteration.length.toLocaleString("en");
  document.getElementById("count").textContent =
    `${rows.length.toLocaleString("en")} of ${all} trajectories`;
}

function sortRows() {
  if (order.by) {
    const values = state.index.columns[order.by], names = state.index.names[order.by];
    const sign = order.falling ? -1 : 1;
    let compare = (a, b) => values[a] - values[b];
    const name = (row) => names[values[row]] ?? "";
    if (names) compare = (a, b) => name(a).localeCompare(name(b));
    if (order.by === "seed") compare = (a, b) => compareDigits(values[a], values[b]);
    order.rows.sort((a, b) => sign * compare(a, b) || a - b);
  }
  order.place = new Map(order.rows.map((row, place) => [row, place]));
}

function compareDigits(a, b) {
  const difference = BigInt(a) - BigInt(b);
  return difference < 0n ? -1 : difference > 0n ? 1 : 0;
}

function drawColumns() {
  const heads = shownColumns().map(([name, label, kind]) => {
    const arrow = order.by !== name ? "" : order.falling ? " ↓" : " ↑";
    const head = make("button", kind, label + arrow);
    head.title = `sort by ${name}`;
    if (arrow) head.dataset.sorted = "";
    head.addEventListener("click", () => {
      order.falling = order.by === name && !order.falling;
      order.by = name;
      sortRows();
      drawColumns();
      drawRows();
    });
    return head;
  });
  document.getElementById("columns").replaceChildren(...heads);
}

/** Make elements for the rows in sight. */
function drawRows() {
  const list = document.getElementById("list"), rows = document.getElementById("rows");
  rows.style.height = `${order.rows.length * ROW_HEIGHT}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 8);
  const last = Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + 8;
  const seen = order.rows.slice(first, last).map((row, place) => {
    const cells = shownColumns().map(([name, , kind]) => {
      const text = document.createElement("span");
      text.className = name === "success" ? (state.index.columns.success[row] ? "good" : "bad") : kind;
      text.textContent = cell(name, row);
      if (["environment", "seed", "policy"].includes(name)) text.title = text.textContent;
      return text;
    });
    const line = make("div", "row", ...cells);
    line.style.top = `${(first + place) * ROW_HEIGHT}px`;
    line.setAttribute("role", "option");
    line.setAttribute("aria-selected", String(row === state.row));
    line.addEventListener("click", () => select(row));
    return line;
  });
  if (!seen.length) seen.push(make("div", "empty", "no trajectory fits these filters"));
  rows.replaceChildren(...seen);
}

/** Select the trajectory that is `steps` further down the list. */
function moveInList(steps) {
  if (!order.rows.length) return;
  const place = order.place.has(state.row) ? order.place.get(state.row) + steps : 0;
  select(order.rows[Math.min(Math.max(place, 0), order.rows.length - 1)]);
}

/** Scroll as little as possible for the selected row to be in sight. */
function showSelectedRow() {
  const list = document.getElementById("list"), place = order.place.get(state.row);
  if (place === undefined) return;
  const top = place * ROW_HEIGHT, bottom = top + ROW_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
}
