// Playing: a new game, or another way on from a turn of a stored episode ("what if"). The server
// plays; the page asks it and shows what it tells.

const games = new Map(); // games by the episode that they branch off from, "" for a new one
const MOST_BUTTONS = 24;
let environments;

/** Whether something can be played here: null, or why not. */
function whyNotPlay() {
  const { live } = state.index;
  if (live === null) {
    return "This page was opened from a disk, where nothing can be played. Serve it with: vagentrl view FOLDER";
  }
  return live.problem;
}

async function ask(action, fields) {
  let response, told;
  try {
    response = await fetch(`play/${action}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(fields),
    });
    told = await response.json();
  } catch {
    throw new Error("The server does not answer. Is vagentrl still running?");
  }
  if (!response.ok) throw new Error(told.error);
  return told;
}

/** Ask for a game, show that it is waiting, and show what comes of it. */
async function play(key, action, fields, receive) {
  const game = games.get(key) ?? { told: null, message: "", typed: "" };
  games.set(key, game);
  if (game.waiting) return;
  Object.assign(game, { waiting: true, message: "" });
  draw();
  try {
    await receive(await ask(action, fields), game);
  } catch (error) {
    game.message = error.message;
  }
  game.waiting = false;
  await draw();
  document.querySelector("#reply:enabled")?.focus();
}

function receiveGame(told, game) {
  keepPictures(told.pictures);
  game.told = told;
  game.typed = "";
}

const branchFrom = (turn) => {
  const episode = state.index.columns.episode[state.row];
  return play(episode, "branch", { episode, turn }, receiveGame);
};

const reply = (key, game, exactly) =>
  play(key, "reply", { game: game.told.game, text: game.typed, exactly }, async (told) => {
    receiveGame(told, game);
    await readAgain();
  });

const advise = (key, game) =>
  play(key, "advice", { game: game.told.game }, (told) => {
    const known = told.actions.length > 0;
    game.message = known ? `The oracle advises ${told.reply} (${told.steps} actions to the end).` : "The oracle knows no way from here.";
    if (known) game.typed = told.reply;
  });

const sample = (key, game, policy, samples, whole) =>
  play(key, "sample", { game: game.told.game, policy, samples, whole }, async (told) => {
    game.message = [`${policy} played ${told.branches.length} times.`, ...told.errors].join(" ");
    await readAgain();
  });

/** What is stored of a family of branches: the original first. */
function family(row) {
  const { origin, episode } = state.index.columns;
  const root = (each) => {
    while (origin[each] !== null && origin[each] >= 0) each = origin[each];
    return each;
  };
  const mine = root(row);
  const rows = episode.map((_, place) => place).filter((place) => root(place) === mine);
  return rows.sort((a, b) => (a === mine ? -1 : b === mine ? 1 : a - b));
}

async function drawWhatIf(view) {
  const { columns } = state.index, row = state.row;
  const panel = make("div", "card game"), key = columns.episode[row], game = games.get(key);
  const why = whyNotPlay();
  if (why !== null) panel.append(make("p", "", why));
  else if (game?.told) panel.append(...gameParts(key, game));
  else {
    const trajectory = await trajectoryOf(row);
    if (trajectory.problem) return view(make("div", "error", trajectory.problem));
    panel.append(...beginParts(trajectory, game));
  }
  const heading = (each) => {
    if (columns.originTurn[each] === null) return "original";
    return `${cell("policy", each)}, from turn ${columns.originTurn[each] + 1}`;
  };
  await drawSide(view, family(row), heading, panel);
}

/** The choice of the turn from which to play on. */
function beginParts(trajectory, game) {
  const turns = trajectory.turns.map((_, place) => [`turn ${place + 1}`, String(place)]);
  if (cell("stop", state.row) === "cut") turns.push(["after the last turn", String(turns.length)]);
  const pick = choice(turns);
  pick.value = String(Math.min(state.turn, turns.length - 1));
  const begin = make("button", "main", "play from here");
  begin.id = "branch";
  begin.disabled = Boolean(game?.waiting) || !turns.length;
  begin.addEventListener("click", () => branchFrom(Number(pick.value)));
  const about = make("p", "faint", "The environment is built again and the replies before this turn are played again; then you reply, or a checkpoint does. The episode itself stays as it is.");
  const line = make("div", "tools", make("label", "", "another reply in ", pick), begin);
  return [make("h3", "", "what if"), about, line, notice(game)].filter(Boolean);
}

function notice(game) {
  if (game?.waiting) return make("p", "faint", "waiting …");
  return game?.message ? make("p", "message", game.message) : null;
}

/** A game: what was played, what is seen now, and the controls. */
function gameParts(key, game) {
  const { told } = game, since = told.turns.slice(told.shared);
  const parts = [make("h3", "", `${plain(told.environment)}, seed ${told.seed}, ${told.split}`)];
  parts.push(agreement(told));
  const past = make("div", "strip");
  since.forEach((turn, place) => past.append(pastTurn(turn, told.shared + place)));
  if (since.length) parts.push(past);
  const seen = make("div", "seen");
  told.now.images.forEach((name) => seen.append(picture(name)));
  seen.append(textBlock(told.now.observation));
  if (told.now.hint) seen.append(textBlock(told.now.hint, "hint"));
  const acts = make("div", "acts");
  if (told.stop === null) acts.append(...replyControls(key, game));
  else acts.append(ending(told), notice(game) ?? "");
  const leave = make("button", "", key ? "leave this branch" : "leave this game");
  leave.addEventListener("click", () => {
    games.delete(key);
    draw();
  });
  acts.append(make("div", "tools", leave));
  parts.push(make("div", "turn", seen, acts));
  return parts;
}

function agreement(told) {
  if (told.origin === null) {
    const task = make("details", "", make("summary", "faint", "the task, as the agent is told"), textBlock(told.prompt));
    return task;
  }
  if (told.disagreement === null) {
    const note = `Turn ${told.shared + 1}. The replay agrees with what is stored.`;
    return make("p", told.replays ? "good" : "", told.replays ? note : `${note} Yet the environment says that its episodes cannot be replayed.`);
  }
  const { turn, what, stored, found } = told.disagreement;
  const box = make("div", "error disagrees", `The replay does NOT agree with what is stored, from turn ${turn} on: the ${what} is another. What follows is not what would have happened.`);
  box.append(pairs([["stored", textBlock(stored, "", 400)], ["now", textBlock(found, "", 400)]]));
  return box;
}

function pastTurn(turn, place) {
  const card = make("div", "card past", make("div", "under", make("span", "", `turn ${place + 1}`), make("span", "faint", signed(turn.reward))));
  card.append(textBlock(turn.reply, turn.problem === null ? "" : "bad", 200));
  if (turn.problem !== null) card.append(make("span", "bad", turn.problem));
  return card;
}

function ending(told) {
  if (told.error) return make("div", "error", told.error);
  const won = told.success ? "success" : "no success";
  return make("p", told.success ? "good" : "bad", `${told.stop}: ${won}, return ${signed(told.return)} after ${told.turns.length} turns`);
}

/** The reply, the advice, and the checkpoints that may be asked. */
function replyControls(key, game) {
  const { told } = game, box = document.createElement("textarea");
  Object.assign(box, { id: "reply", rows: 3, value: game.typed, disabled: Boolean(game.waiting) });
  box.placeholder = "actions, or a whole reply (Enter sends, Shift+Enter begins a line)";
  box.addEventListener("input", () => (game.typed = box.value));
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    if (game.typed.trim()) reply(key, game, false);
  });
  const button = (label, act, id = "") => {
    const made = make("button", "", label);
    Object.assign(made, { id, disabled: Boolean(game.waiting) });
    made.addEventListener("click", act);
    return made;
  };
  const names = make("div", "tools");
  for (const name of told.actions.slice(0, MOST_BUTTONS)) {
    names.append(button(name, () => {
      game.typed = name;
      reply(key, game, false);
    }));
  }
  const tools = make("div", "tools", button("send", () => reply(key, game, false), "send"));
  const exact = button("send exactly", () => reply(key, game, true));
  exact.title = "as it stands, however wrong it is; otherwise bare actions are written as the format wants them";
  tools.append(exact, button("advice", () => advise(key, game), "advice"));
  return [names, box, tools, ...(key ? [samplers(key, game, button)] : []), notice(game)].filter(Boolean);
}

function samplers(key, game, button) {
  const { policies } = state.index.live;
  if (!policies.length) return make("p", "faint", "No checkpoint can be asked; name one with --policy.");
  const pick = choice(policies.map((name) => [plain(name), name]));
  const count = field("number", "");
  Object.assign(count, { value: "4", min: 1, max: 16, step: 1 });
  const whole = field("checkbox", "");
  whole.checked = true;
  const go = button("ask it", () => sample(key, game, pick.value, Math.round(Number(count.value)), whole.checked), "sample");
  return make("div", "tools", make("label", "", "or let ", pick), make("label", "", "play ", count, " times"), make("label", "", whole, " to the end"), go);
}

// ------------------------------------------------------------------------------ a new game

async function drawPlay(view) {
  const why = whyNotPlay();
  if (why !== null) return view(make("div", "empty", why));
  environments ??= ask("environments", {});
  let known;
  try {
    known = await environments;
  } catch (error) {
    environments = undefined;
    return view(make("div", "error", error.message));
  }
  const game = games.get(""), panel = make("div", "card game");
  const form = newGame(known, game);
  if (game?.told) panel.append(...gameParts("", game));
  view(form, game?.told ? panel : notice(game) ?? "");
}

function newGame(known, game) {
  const name = choice(known.environments.map((each) => [plain(each), each]));
  const split = choice(known.splits.map((each) => [each, each]));
  const seed = field("text", "the first");
  const told = game?.told;
  if (told) {
    [name.value, split.value] = [told.environment, told.split];
    seed.value = String(BigInt(told.seed) + (told.split === "train" ? 2n : 4n)); // the next of its split
  }
  split.addEventListener("input", () => (seed.value = ""));
  const begin = make("button", "main", told ? "next game" : "begin");
  begin.id = "begin";
  begin.disabled = Boolean(game?.waiting);
  begin.addEventListener("click", () =>
    play("", "start", { environment: name.value, split: split.value, seed: seed.value }, receiveGame),
  );
  return make("div", "tools", make("label", "", "play ", name), make("label", "", "seeds of ", split), make("label", "", "seed ", seed), begin);
}
