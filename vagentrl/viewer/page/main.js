// What is selected, the keys, and the start.

const state = { index: null, row: -1, turn: 0, view: "turns", quantity: "advantage", prompt: false };
const KEYS = [
  ["← →  or  h l", "previous or next turn"],
  ["Home End", "first turn, end"],
  ["↑ ↓  or  k j", "previous or next trajectory"],
  ["1 2 3 4 5", "turns, group, seed over iterations, what if, new game"],
  ["q Q", "next or previous quantity of the tokens"],
  ["p", "show or hide prompt tokens"],
  ["/", "go to the filters; Esc leaves them"],
  ["t", "light or dark"],
  ["?", "these keys"],
];
let drawing = 0;

/** Show a trajectory; its first turn unless another is given. */
function select(row, turn = 0) {
  state.row = row;
  state.turn = turn;
  showSelectedRow();
  drawRows();
  draw();
}

function showTurn(turn) {
  state.turn = turn;
  draw();
}

function setQuantity(name) {
  state.quantity = name;
  draw();
}

function togglePrompt() {
  state.prompt = !state.prompt;
  draw();
}

function setView(view) {
  state.view = view;
  draw();
}

/** Draw what is selected. Data may come late: only the latest drawing reaches the page. */
async function draw() {
  if (state.row < 0 && state.view !== "play") return;
  const mine = (drawing += 1);
  const area = document.getElementById("view");
  const view = (...children) => {
    if (mine !== drawing) return;
    document.getElementById("tip").hidden = true;
    area.replaceChildren(...children);
    area.dataset.shown = `${state.row}/${state.turn}/${state.view}`;
  };
  if (state.row >= 0 && state.view !== "play") drawFacts();
  else document.getElementById("facts").replaceChildren();
  drawTabs();
  history.replaceState(null, "", `#${state.row}/${state.turn}/${state.view}`);
  await VIEWS[state.view](view);
}

const VIEWS = {
  turns: drawTurns,
  group: drawGroup,
  seed: drawSeed,
  whatif: drawWhatIf,
  play: drawPlay,
};

/** Show what was stored meanwhile; the same trajectory stays selected. */
async function readAgain() {
  const index = await loadIndexAgain();
  if (index.problem) return showProblems([index.problem]);
  const episode = state.index.columns.episode[state.row];
  state.index = index;
  state.row = index.columns.episode.indexOf(episode);
  showProblems(index.problems);
  members.forget();
  sameSeed.forget();
  rebuildFilters();
}

function drawTabs() {
  const some = state.row >= 0;
  const branches = some ? family(state.row).length - 1 : 0;
  const tabs = [
    ["turns", "Turns", some],
    ["group", `Group (${members().length})`, members().length > 1],
    ["seed", `This seed (${sameSeed().length})`, sameSeed().length > 1],
    ["whatif", branches ? `What if (${branches})` : "What if", some],
    ["play", "New game", whyNotPlay() === null],
  ].map(([name, label, useful]) => {
    const tab = make("button", "", label);
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-selected", String(state.view === name));
    tab.disabled = !useful && state.view !== name;
    tab.addEventListener("click", () => setView(name));
    return tab;
  });
  document.getElementById("tabs").replaceChildren(...tabs);
}

function nextQuantity(steps) {
  const names = [...document.querySelectorAll(".tools option")].map((option) => option.value);
  const pick = document.querySelector(".tools select");
  if (!pick) return;
  setQuantity(names[(names.indexOf(pick.value) + steps + names.length) % names.length]);
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

const ACTIONS = {
  ArrowLeft: () => showTurn(state.turn - 1),
  h: () => showTurn(state.turn - 1),
  ArrowRight: () => showTurn(state.turn + 1),
  l: () => showTurn(state.turn + 1),
  Home: () => showTurn(0),
  End: () => showTurn(Infinity),
  ArrowUp: () => moveInList(-1),
  k: () => moveInList(-1),
  ArrowDown: () => moveInList(1),
  j: () => moveInList(1),
  1: () => setView("turns"),
  2: () => setView("group"),
  3: () => setView("seed"),
  4: () => setView("whatif"),
  5: () => setView("play"),
  q: () => nextQuantity(1),
  Q: () => nextQuantity(-1),
  p: togglePrompt,
  "/": () => document.querySelector("#filters select").focus(),
  t: switchTheme,
  "?": () => document.getElementById("help").showModal(),
};

function onKey(event) {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (event.key === "Escape" && typing) return event.target.blur?.();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const action = Object.hasOwn(ACTIONS, event.key) ? ACTIONS[event.key] : null;
  if (!action || state.index === null) return;
  event.preventDefault();
  action();
}

/** What the address asks for: #row/turn/view. */
function wanted() {
  const [row, turn, view] = location.hash.slice(1).split("/");
  const rows = state.index.columns.iteration.length;
  if (!/^\d+$/.test(row) || Number(row) >= rows) return;
  state.row = Number(row);
  state.turn = Number(turn) || 0;
  if (Object.hasOwn(VIEWS, view)) state.view = view;
}

function showProblems(problems) {
  const box = document.getElementById("problems");
  box.hidden = !problems.length;
  box.replaceChildren(...problems.map((problem) => make("div", "", problem)));
}

async function start() {
  const index = await load("index");
  if (index.problem) return showProblems([index.problem]);
  state.index = index;
  document.getElementById("run").textContent = plain(index.run);
  showProblems(index.problems);
  document.getElementById("theme").addEventListener("click", switchTheme);
  const help = document.getElementById("help");
  const close = make("button", "", "close");
  close.addEventListener("click", () => help.close());
  help.append(make("h3", "", "keys"), pairs(KEYS.map(([k, what]) => [k, what])), close);
  document.getElementById("help-button").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", onKey);
  document.getElementById("list").addEventListener("scroll", drawRows);
  addEventListener("resize", drawRows);
  buildFilters();
  listenToFilters();
  drawColumns();
  wanted();
  const row = state.row, turn = state.turn;
  applyFilters();
  if (row >= 0) select(row, turn);
  if (!index.columns.iteration.length && whyNotPlay() === null) setView("play");
  else if (!index.columns.iteration.length) {
    document.getElementById("view").replaceChildren(make("div", "empty", "There are no trajectories."));
  }
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
