"""A person plays in the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from vagentrl.environment import index_of, seed_of, split_of
from vagentrl.errors import RolloutError
from vagentrl.play.game import Game
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Turn

HELP = """\
Type the actions, or a whole reply with its tags; a backslash at the end of a line goes on in the
next one. Commands:
  ?            what the oracle advises
  /help        these commands
  /prompt      the task, as the agent is told
  /actions     the names of the actions
  /say TEXT    send TEXT exactly as it stands, however wrong it is
  /again       this episode from its start
  /next        the next episode (also an empty line, when one is over)
  /seed N      the episode of seed N
  /split NAME  the first episode of train, validation or test
  /quit        leave (also Ctrl-D and Ctrl-C)"""


class Chosen(NamedTuple):
    """What to play next; None for nothing."""

    seed: int | None


class Terminal:
    """Plays one episode after the other with a person.

    Args:
        begin: Begins the episode of a seed.
        keep: Called with each game that has turns, after every turn.
        ask: Shows a prompt and returns the line that is typed; raises EOFError at the end.
        tell: Shows a text.
    """

    def __init__(
        self,
        begin: Callable[[int], Game],
        keep: Callable[[Game], None],
        ask: Callable[[str], str],
        tell: Callable[[str], None],
    ) -> None:
        self._begin = begin
        self._keep = keep
        self._ask = ask
        self._tell = tell
        self._told = ""

    def play(self, seed: int) -> None:
        """Play until the person leaves.

        Raises:
            RolloutError: When the first episode cannot begin.
        """
        chosen, game = Chosen(seed), None
        try:
            while (seed_now := chosen.seed) is not None:
                try:
                    with closing(self._begin(seed_now)) as game:
                        chosen = self._episode(game)
                except RolloutError as error:  # an episode that cannot begin
                    if game is None:
                        raise
                    self._tell(visible(str(error)))
                    chosen = self._choose(seed_now)
        except (EOFError, KeyboardInterrupt):
            self._tell("")

    def _episode(self, game: Game) -> Chosen:
        seed = game.start.seed
        self._tell(f"--- seed {seed} ({split_of(seed)}); ? advises, /help lists the commands")
        if game.system_prompt != self._told:
            self._tell(visible(game.system_prompt))
            self._told = game.system_prompt
        self._show(game.observation)
        while game.stop is None:
            line = self._line(f"turn {len(game.turns) + 1}> ")
            if line.startswith(("/", "?")) and not line.startswith("/say "):
                chosen = self._command(line, seed, game)
                if chosen is not None:
                    return chosen
            elif line:
                self._reply(game, line)
        return self._choose(seed, game)

    def _choose(self, seed: int, game: Game | None = None) -> Chosen:
        while True:
            line = self._line("over; Enter plays the next one, /again this one, /quit leaves> ")
            chosen = self._command(line or "/next", seed, game)
            if chosen is not None:
                return chosen

    def _line(self, prompt: str) -> str:
        """What is typed, with the lines that a backslash joins."""
        line = self._ask(prompt).strip()
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{self._ask('      > ').rstrip()}"
        return line

    def _reply(self, game: Game, line: str) -> None:
        exactly = line.startswith("/say ")
        try:
            turn = game.reply(line.removeprefix("/say ") if exactly else line, exactly=exactly)
        except RolloutError as error:
            self._tell(f"The episode failed: {visible(str(error))}")
        else:
            self._tell(_outcome(turn))
            self._show(game.observation)
        if game.turns:
            self._keep(game)
        if game.stop is not None:
            self._tell(_ending(game))

    def _command(self, line: str, seed: int, game: Game | None) -> Chosen | None:
        """Do what is asked; what to play next, or None to go on."""
        command, _, what = line.partition(" ")
        match command, what.strip():
            case "/quit" | "/exit", _:
                return Chosen(None)
            case "/next", _:
                return Chosen(next_seed(seed))
            case "/again", _:
                return Chosen(seed)
            case "/seed", number if number.isdecimal() and int(number) < 2**62:
                return Chosen(int(number))
            case "/split", ("train" | "validation" | "test") as split:
                return Chosen(seed_of(split, 0))
            case "/help", _:
                self._tell(HELP)
            case "/prompt", _:
                self._tell(visible(self._told) or "(the agent is told nothing)")
            case "/actions", _ if game is not None:
                names = ", ".join(game.action_names)
                self._tell(visible(names) or "replies are free text; see /prompt")
            case command, _ if command.startswith("?") and game is not None:
                self._tell(_advice(game))
            case _:
                self._tell(f"There is no command {visible(line)!r} here; /help lists them.")
        return None

    def _show(self, observation: Observation) -> None:
        text = observation.text
        for number, image in enumerate(observation.images, 1):
            picture = f"[picture {number}: {image.width} x {image.height} pixels; see --page]"
            text = text.replace(IMAGE_PLACEHOLDER, picture, 1)
        self._tell(visible(text))
        if observation.hint:
            self._tell(f"hint: {visible(observation.hint)}")


def next_seed(seed: int) -> int:
    """The next seed of the same split."""
    return seed_of(split_of(seed), index_of(seed) + 1)


def visible(text: str) -> str:
    """A text that a terminal shows as it is: control characters are written by name.

    Otherwise an environment could move the cursor, or reorder what is read.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
        return character
    return f"<U+{ord(character):04X}>"


def _outcome(turn: Turn) -> str:
    said = visible(turn.reply.text)
    problem = turn.reply.problem
    wrong = "" if problem is None else f" [malformed: {visible(problem)}]"
    metrics = ", ".join(f"{visible(name)} {float(v):g}" for name, v in turn.metrics.items())
    return f"sent {said}{wrong}\nreward {turn.reward:+g}{f' ({metrics})' if metrics else ''}"


def _ending(game: Game) -> str:
    played = game.trajectory()
    won = "success" if played.success else "no success"
    return f"{played.stop}: {won}, return {played.total_reward:+g} after {len(played.turns)} turns"


def _advice(game: Game) -> str:
    try:
        advised = game.advice()
    except RolloutError as error:
        return f"The oracle failed: {visible(str(error))}"
    if not advised.actions:
        return "The oracle knows no way from here."
    return f"advice: {visible(advised.reply)}   ({advised.steps} actions to the end)"
