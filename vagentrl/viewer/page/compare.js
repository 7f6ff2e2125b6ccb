// Several trajectories side by side: the members of a group, or one seed across iterations.

const MOST_COLUMNS = 24;
const MOST_TURNS = 40;

/** Rows that share these columns with the selected one, in the order of the list's data. */
function alike(...names) {
  const columns = state.index.columns, rows = [];
  for (let row = 0; row < columns.iteration.length; row += 1) {
    const apart = columns.origin[row] !== null && row !== state.row; // branches have a view of their own
    if (!apart && names.every((name) => columns[name][row] === columns[name][state.row])) rows.push(row);
  }
  return rows;
}

const members = once(() => alike("iteration", "split", "environment", "group", "policy"));
const sameSeed = once(() => {
  const { iteration } = state.index.columns;
  return alike("environment", "seed").sort((a, b) => iteration[a] - iteration[b] || a - b);
});

/** A function that computes once for each selected row. */
function once(compute) {
  let row = null, value;
  const known = () => {
    if (row !== state.row) value = compute();
    row = state.row;
    return value;
  };
  known.forget = () => (row = null); // the rows may mean others now
  return known;
}

/** Draw rows as columns, turn beside turn. */
async function drawSide(view, rows, heading, ...above) {
  const shown = around(rows, rows.indexOf(state.row), MOST_COLUMNS);
  const trajectories = await Promise.all(shown.map(trajectoryOf));
  const turns = Math.max(...trajectories.map((each) => each.turns?.length ?? 0));
  const side = make("div", "side");
  side.style.gridTemplateColumns = `repeat(${shown.length}, minmax(170px, 260px))`;
  side.append(...shown.map((row) => head(row, heading(row))));
  for (let turn = 0; turn < Math.min(turns, MOST_TURNS); turn += 1) {
    trajectories.forEach((each, column) => side.append(sideTurn(each, turn, shown[column])));
  }
  const notes = [];
  if (shown.length < rows.length) notes.push(`${shown.length} of ${rows.length} are shown.`);
  if (turns > MOST_TURNS) notes.push(`The first ${MOST_TURNS} of ${turns} turns are shown.`);
  view(...above, make("p", "faint", notes.join(" ")), side);
}

/** `most` of the items, with the one at `place` among them. */
function around(items, place, most) {
  const start = Math.max(0, Math.min(place - Math.floor(most / 2), items.length - most));
  return items.slice(start, start + most);
}

function head(row, label) {
  const { columns } = state.index, won = columns.success[row];
  const outcome = make("span", won ? "good" : "bad", `${won ? "✓" : "✗"} ${signed(columns.return[row])}`);
  const button = make("button", "head", make("div", "", label), outcome, ` ${cell("stop", row)}`);
  button.setAttribute("aria-current", String(row === state.row));
  button.addEventListener("click", () => select(row));
  return button;
}

function sideTurn(trajectory, place, row) {
  if (trajectory.problem) return make("div", "card", place ? "" : trajectory.problem);
  const turn = trajectory.turns[place];
  if (!turn) return make("div", "none");
  const open = make("button", "", `turn ${state.index.columns.earlier[row] + place + 1}`);
  open.addEventListener("click", () => {
    state.turn = place;
    state.view = "turns";
    select(row, place);
  });
  const top = make("div", "under", open, " ", make("span", "faint", signed(turn.reward)));
  const shared = place < (state.index.columns.originTurn[row] ?? 0);
  const card = make("div", shared ? "card shared" : "card", top);
  if (turn.images.length) card.append(picture(turn.images[0]));
  else card.append(textBlock(turn.observation, "faint", 400));
  if (turn.hint) card.append(textBlock(turn.hint, "hint", 400));
  card.append(textBlock(turn.reply, turn.problem === null ? "" : "bad", 1500));
  return card;
}

const drawGroup = (view) =>
  drawSide(view, members(), (row) => `member ${state.index.columns.member[row]}`);

const drawSeed = (view) => {
  const rows = sameSeed(), { columns } = state.index;
  const repeated = new Set(rows.map((row) => columns.iteration[row])).size < rows.length;
  const member = (row) => (repeated ? `, member ${columns.member[row]}` : "");
  const player = (row) => (cell("policy", row) ? `${cell("policy", row)}, ` : "");
  const heading = (row) =>
    `${player(row)}iteration ${columns.iteration[row]}, ${cell("split", row)}${member(row)}`;
  return drawSide(view, rows, heading, curve(rows));
};

/** The return of these trajectories over the iterations, and its mean. */
function curve(rows) {
  const { iteration, return: returns, success } = state.index.columns;
  const known = rows.filter((row) => typeof returns[row] === "number");
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const drawing = svg("svg", { viewBox: "0 0 560 110", class: "curve" });
  const bounds = (values) => [Math.min(...values), Math.max(...values)];
  const [first, last] = bounds(known.map((row) => iteration[row]));
  const [low, high] = bounds(known.map((row) => returns[row]));
  if (!(last > first)) drawing.setAttribute("hidden", "");
  const x = (row) => 60 + (480 * (iteration[row] - first)) / (last - first || 1);
  const y = (row) => 85 - (70 * (returns[row] - low)) / (high - low || 1);
  const at = Map.groupBy(known, x); // the line is the mean of each iteration
  const mean = (rows) => rows.reduce((sum, row) => sum + y(row), 0) / rows.length;
  const points = [...at].map(([place, rows]) => `${place},${mean(rows)}`).join(" ");
  drawing.append(svg("polyline", { points }));
  const label = (px, py, anchor, text) => {
    const element = svg("text", { x: px, y: py, "text-anchor": anchor });
    element.textContent = text;
    drawing.append(element);
  };
  label(52, 19, "end", number(high, 3));
  if (high > low) label(52, 89, "end", number(low, 3));
  label(60, 106, "start", `iteration ${first}`);
  label(540, 106, "end", `${last}`);
  for (const row of known) {
    const dot = svg("circle", { cx: x(row), cy: y(row), r: row === state.row ? 6 : 4 });
    if (success[row]) dot.setAttribute("class", "won");
    dot.addEventListener("click", () => select(row));
    drawing.append(dot);
  }
  return drawing;
}
