"""Games that are played in the viewer's page: new ones, and branches of stored episodes."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from vagentrl.environment import Split, seed_of, split_of
from vagentrl.errors import ConfigError, RolloutError
from vagentrl.play.game import Factory, Game, GameStart, WorkerKind
from vagentrl.play.replay import Disagreement, replay, start_of
from vagentrl.play.store import PERSON, GameStore, name_by_number
from vagentrl.rollout.seeds import mix
from vagentrl.types import Observation, Trajectory, Turn
from vagentrl.viewer.records import SPLITS, Provenance, image_name, png
from vagentrl.viewer.site import Site

if TYPE_CHECKING:
    from vagentrl.policy import Policy

T = TypeVar("T")

MOST_GAMES = 8
"""Games that are open at the same time; a further one closes the oldest."""
MOST_SAMPLES = 16
"""Episodes that a checkpoint is asked for at once."""
MOST_SEED = 2**62


@dataclass
class _Seat:
    """A game that a person plays in the page.

    Attributes:
        game: The game.
        origin: The stored episode that it branches off from; None for a new game.
        row: That episode as it is stored.
        shared: Number of turns that are those of the origin.
        disagreement: Where the replay of those turns differs from what is stored.
        asked: Number of samples that checkpoints were asked for.
        sent: Names of the images that the page has.
        busy: Held while a request plays.
    """

    game: Game
    origin: str | None
    row: Mapping[str, Any]
    shared: int
    disagreement: Disagreement | None
    asked: int
    sent: set[str]
    busy: threading.Lock


class LiveGames:
    """Answers what the page asks.

    Args:
        store: Where games and branches are kept.
        environments: Makes the environments by name; called when the first game begins.
        policies: Load the checkpoints that may be asked, by name.
        workers: Run each environment in a thread, or in a process, which can be killed if it hangs.
        timeout_s: Seconds that an environment may take for an answer.
    """

    def __init__(
        self,
        store: GameStore,
        environments: Callable[[], Mapping[str, Factory]],
        policies: Mapping[str, Callable[[], Policy]],
        *,
        workers: WorkerKind = "process",
        timeout_s: float = 60.0,
    ) -> None:
        self.policies = dict(policies)
        self._store = store
        self._make_environments = environments
        self._workers: WorkerKind = workers
        self._timeout_s = timeout_s
        self._seats: dict[str, _Seat] = {}  # the oldest first
        self._changing = threading.Lock()
        self._asking = threading.Lock()
        self._policy: tuple[str, Policy] | None = None

    def __call__(self, site: Site, action: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request of the page.

        Args:
            site: What is stored.
            action: What to do.
            asked: The request's fields.

        Raises:
            ConfigError: When the request makes no sense.
            RolloutError: When the environment or the checkpoint fails.
        """
        match action:
            case "environments":
                return {"environments": list(self._environments), "splits": list(SPLITS)}
            case "start":
                return self._start(asked)
            case "branch":
                return self._branch(site, asked)
            case "reply":
                return self._reply(asked)
            case "advice":
                with self._seat(asked) as seat:
                    advised = seat.game.advice()
                return {"actions": advised.actions, "reply": advised.reply, "steps": advised.steps}
            case "sample":
                return self._sample(asked)
        raise ConfigError(f"the page asks for {action!r}, which is unknown; load it again")

    def close(self) -> None:
        """Close all games."""
        with self._changing:
            for seat in self._seats.values():
                seat.game.close()
            self._seats = {}
        self._store.close()

    # --------------------------------------------------------------------------------- the games

    @cached_property
    def _environments(self) -> Mapping[str, Factory]:
        return self._make_environments()

    def _game(self, start: GameStart) -> Game:
        factory = self._environments.get(start.environment)
        if factory is None:
            raise ConfigError(
                f"the configuration has no environment {start.environment!r}, only "
                f"{', '.join(self._environments) or 'none'}; name the recipe with --recipe"
            )
        return Game(factory, start, workers=self._workers, timeout_s=self._timeout_s)

    def _start(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        split: Split = _field(asked, "split", str)  # pyright: ignore
        if split not in SPLITS:
            raise ConfigError(f"split is {split!r}; give one of {', '.join(SPLITS)}")
        text = _field(asked, "seed", str).strip()
        seed = seed_of(split, 0) if not text else _seed(text)
        start = GameStart.new(_field(asked, "environment", str), seed)
        return self._sit(_Seat(self._game(start), None, {}, 0, None, 0, set(), threading.Lock()))

    def _branch(self, site: Site, asked: Mapping[str, Any]) -> dict[str, Any]:
        episode, turn = _field(asked, "episode", str), _field(asked, "turn", int)
        row = site.row(episode)
        game = self._game(start_of(row))
        try:
            disagreement = replay(game, row, turn)
        except BaseException:
            game.close()
            raise
        return self._sit(_Seat(game, episode, row, turn, disagreement, 0, set(), threading.Lock()))

    def _sit(self, seat: _Seat) -> dict[str, Any]:
        """Open a game to the page."""
        with self._changing:
            self._seats[seat.game.episode] = seat
            if len(self._seats) > MOST_GAMES:
                self._seats.pop(next(iter(self._seats))).game.close()
        return _told(seat)

    @contextmanager
    def _seat(self, asked: Mapping[str, Any]) -> Iterator[_Seat]:
        """A game, for one request at a time."""
        name = _field(asked, "game", str)
        with self._changing:
            seat = self._seats.get(name)
        if seat is None:
            raise ConfigError("this game is closed; begin it again")
        if not seat.busy.acquire(blocking=False):
            raise ConfigError("this game still waits for an answer")
        try:
            yield seat
        finally:
            seat.busy.release()

    def _reply(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        text = _field(asked, "text", str)
        with self._seat(asked) as seat:
            try:
                seat.game.reply(text, exactly=_field(asked, "exactly", bool))
            except RolloutError:
                if seat.game.error is None or not seat.game.turns:
                    raise
            if seat.game.turns:
                self._keep(seat, seat.game.trajectory(), PERSON, seat.game.episode)
            return _told(seat)

    def _keep(
        self,
        seat: _Seat,
        played: Trajectory,
        by: str,
        episode: str,
        token_names: Callable[[list[int]], list[str]] = name_by_number,
    ) -> None:
        shared = None if seat.origin is None else seat.shared
        try:
            self._store.add(
                played,
                Provenance(by, episode, seat.origin, shared),
                iteration=seat.game.start.iteration,
                group=seat.row.get("group", 0),
                member=seat.row.get("member", 0),
                split=seat.row.get("split"),
                token_names=token_names,
            )
        except OSError as error:
            raise ConfigError(f"the game goes on, but cannot be stored: {error}") from error

    # ----------------------------------------------------------------------------- a checkpoint

    def _sample(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Let a checkpoint play on, for one turn or to the end, several times."""
        name, samples = _field(asked, "policy", str), _field(asked, "samples", int)
        turns = None if _field(asked, "whole", bool) else 1
        if name not in self.policies:
            raise ConfigError(f"there is no policy {name!r}; start the viewer with --policy")
        if not 1 <= samples <= MOST_SAMPLES:
            raise ConfigError(f"samples is {samples}; give 1 to {MOST_SAMPLES}")
        with self._seat(asked) as seat, _alone(self._asking):
            if seat.game.stop is not None:
                raise ConfigError(f"the episode is over ({seat.game.stop}); take an earlier turn")
            earlier = seat.game.turns
            played = self._play_on(name, seat, earlier, samples, turns)
            names = self._loaded(name).renderer.token_names
            branches = [f"{seat.game.episode}-{seat.asked + n}" for n in range(samples)]
            seat.asked += samples
            for episode, each in zip(branches, played, strict=True):
                whole = replace(each, turns=(*earlier, *each.turns), earlier_turns=0)
                whole = replace(whole, earlier_reward=0.0)
                self._keep(seat, whole, name, episode, names)
        return {"branches": branches, "errors": [each.error for each in played if each.error]}

    def _play_on(
        self, name: str, seat: _Seat, earlier: Sequence[Turn], samples: int, turns: int | None
    ) -> list[Trajectory]:
        from vagentrl.rollout.episodes import Episode

        start = seat.game.start
        episode = Episode(
            start.environment,
            start.seed,
            0,
            mix(start.seed, 8, len(earlier), seat.asked),
            start.iteration,
            start.transition_seed,
            turns=turns,
        )
        return self._loaded(name).play_on(
            self._environments[start.environment],
            episode,
            earlier,
            samples,
            workers=self._workers,
            timeout_s=self._timeout_s,
        )

    def _loaded(self, name: str) -> Policy:
        if self._policy is None or self._policy[0] != name:
            self._policy = None
            self._policy = (name, self.policies[name]())
        return self._policy[1]


@contextmanager
def _alone(lock: threading.Lock) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise ConfigError("a checkpoint is being asked already; wait for it")
    try:
        yield
    finally:
        lock.release()


def _field(asked: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = asked.get(name)
    if type(value) is not kind:
        raise ConfigError(f"the page sent no {name} ({kind.__name__}); load it again")
    return value


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < MOST_SEED):
        raise ConfigError(f"seed is {text[:40]!r}; give a whole number below 2^62, or none")
    return int(text)


# ------------------------------------------------------------------------------ what is sent


def _told(seat: _Seat) -> dict[str, Any]:
    """All that the page shows of a game."""
    game = seat.game
    played = game.trajectory()
    pictures: dict[str, str] = {}
    return {
        "game": game.episode,
        "origin": seat.origin,
        "shared": seat.shared,
        "disagreement": None if seat.disagreement is None else seat.disagreement.as_plain(),
        "replays": game.replays,
        "environment": game.start.environment,
        "seed": str(game.start.seed),  # JavaScript would round it
        "split": split_of(game.start.seed),
        "prompt": game.system_prompt,
        "actions": game.action_names,
        "turns": [_turn(turn, seat.sent, pictures) for turn in game.turns],
        "now": _seen(game.observation, seat.sent, pictures),
        "stop": game.stop,
        "error": game.error,
        "success": played.success,
        "return": played.total_reward,
        "pictures": pictures,
    }


def _turn(turn: Turn, sent: set[str], pictures: dict[str, str]) -> dict[str, Any]:
    return {
        **_seen(turn.observation, sent, pictures),
        "reply": turn.reply.text,
        "actions": turn.reply.actions,
        "problem": turn.reply.problem,
        "reward": turn.reward,
        "metrics": [(name, float(value)) for name, value in turn.metrics.items()],
    }


def _seen(observation: Observation, sent: set[str], pictures: dict[str, str]) -> dict[str, Any]:
    """An observation; images that the page does not have yet are added to the pictures."""
    names = [image_name(image) for image in observation.images]
    for name, image in zip(names, observation.images, strict=True):
        if name not in sent:
            pictures[name] = f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"
            sent.add(name)
    return {"observation": observation.text, "images": names, "hint": observation.hint}
