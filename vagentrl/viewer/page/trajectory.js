// One trajectory: its facts, a strip of frames, and one turn at a time.

function drawFacts() {
  const row = state.row, columns = state.index.columns;
  const badge = (text, className = "") => make("span", `badge ${className}`, text);
  const won = columns.success[row];
  const parts = [
    make("strong", "", cell("environment", row)),
    badge(won ? "success" : "no success", won ? "good" : "bad"),
    badge(`return ${signed(columns.return[row])}`),
    badge(cell("stop", row)),
    badge(`${cell("split", row)}, iteration ${columns.iteration[row]}`),
    badge(`group ${columns.group[row]}, member ${columns.member[row]}`),
    badge(`seed ${columns.seed[row]}`),
  ];
  if (cell("policy", row)) parts.splice(1, 0, badge(`by ${cell("policy", row)}`));
  if (columns.earlier[row]) parts.push(badge(`after ${columns.earlier[row]} earlier turns`));
  if (cell("split", row) === "train" && !columns.learned[row] && !cell("policy", row)) parts.push(badge("not learned from"));
  if (columns.error[row]) parts.push(make("div", "error", columns.error[row]));
  document.getElementById("facts").replaceChildren(...parts);
}

async function drawTurns(view) {
  const trajectory = await trajectoryOf(state.row);
  if (trajectory.problem) return view(make("div", "error", trajectory.problem));
  const last = trajectory.turns.length - (trajectory.final === null ? 1 : 0);
  state.turn = Math.max(0, Math.min(state.turn, last));
  const strip = make("div", "strip");
  trajectory.turns.forEach((turn, place) => strip.append(frame(turn, place)));
  if (trajectory.final !== null) {
    const end = { observation: trajectory.final, images: trajectory.finalImages };
    strip.append(frame(end, trajectory.turns.length, "end"));
  }
  const shown = trajectory.turns[state.turn];
  view(strip, shown ? turnCards(trajectory, state.turn) : endCard(trajectory));
  const current = strip.querySelector("[aria-current=true]");
  if (current) strip.scrollLeft = current.offsetLeft - strip.offsetLeft - strip.clientWidth / 2 + 46;
}

function frame(turn, place, label) {
  const earlier = state.index.columns.earlier[state.row];
  const look = turn.images.length ? picture(turn.images[0]) : make("div", "sketch", turn.observation.slice(0, 400));
  const reward = label ? "" : signed(turn.reward);
  const under = make("span", "under", make("span", "", label ?? `turn ${earlier + place + 1}`), make("span", "faint", reward));
  const button = make("button", "frame", look, under);
  button.setAttribute("aria-current", String(place === state.turn));
  button.addEventListener("click", () => showTurn(place));
  return button;
}

function turnCards(trajectory, place) {
  const turn = trajectory.turns[place];
  const seen = make("div", "card seen", make("h3", "", "observation"));
  turn.images.forEach((name) => seen.append(picture(name)));
  seen.append(textBlock(turn.observation));
  const left = make("div", "", seen);
  if (turn.hint) left.append(make("div", "card hint", make("h3", "", "hint"), textBlock(turn.hint)));
  const what = make("button", "", "what if the reply were another?");
  what.addEventListener("click", () => setView("whatif"));
  const right = make("div", "", tokenCard(trajectory, place), parsedCard(turn), make("div", "tools", what));
  if (turn.claims.length) right.append(claimsCard(turn));
  left.append(rewardCard(turn));
  return make("div", "turn", left, right);
}

function endCard(trajectory) {
  const seen = make("div", "card seen", make("h3", "", "what the agent saw after the last turn"));
  trajectory.finalImages.forEach((name) => seen.append(picture(name)));
  seen.append(textBlock(trajectory.final ?? ""));
  return make("div", "turn", make("div", "", seen));
}

function parsedCard(turn) {
  const entries = [];
  if (turn.problem !== null) entries.push(["malformed", make("span", "bad", turn.problem)]);
  if (turn.thought !== null) entries.push(["thought", textBlock(turn.thought, "", 4000)]);
  entries.push(["actions", turn.actions.length ? turn.actions.join("  ·  ") : "none"]);
  if (turn.finish === "length") entries.push(["finish", "cut off at the token limit"]);
  const text = make("details", "", make("summary", "faint", `text, ${turn.reply.length.toLocaleString("en")} characters`));
  text.addEventListener("toggle", () => {
    if (text.open && text.childElementCount === 1) text.append(textBlock(turn.reply));
  });
  return make("div", "card", make("h3", "", "as parsed"), pairs(entries), text);
}

function rewardCard(turn) {
  const entries = [["reward", signed(turn.reward)]];
  if (turn.bonus) entries.push(["bonus", signed(turn.bonus)]);
  if (turn.continued_value !== null) entries.push(["mean return of continuations", number(turn.continued_value)]);
  for (const [name, value] of turn.metrics) entries.push([name, number(value)]);
  entries.push(["weights", turn.policy_version < 0 ? "not sampled" : `version ${turn.policy_version}`]);
  return make("div", "card", make("h3", "", "reward and metrics"), pairs(entries));
}

function claimsCard(turn) {
  const card = make("div", "card", make("h3", "", "claims"));
  for (const claim of turn.claims) {
    const score = claim.score === null ? "no verdict" : `score ${number(claim.score)}`;
    const mood = claim.score === null ? "" : claim.score > 0.5 ? "good" : "bad";
    const entries = [
      [claim.kind, textBlock(claim.text, "", 4000)],
      ["truth", textBlock(claim.truth, "", 4000)],
      ["verdict", make("span", mood, score)],
    ];
    if (claim.reason) entries.push(["reason", textBlock(claim.reason, "", 4000)]);
    card.append(make("div", "claim", pairs(entries)));
  }
  if (turn.bonus) card.append(make("p", "faint", `bonus of the turn: ${signed(turn.bonus)}`));
  return card;
}
