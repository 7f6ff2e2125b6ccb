"""Plays continuations of episodes, to estimate the value of the states in them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vagentrl import ranks
from vagentrl.errors import EnvError
from vagentrl.rollout.episodes import Episode
from vagentrl.rollout.seeds import mix

if TYPE_CHECKING:
    from vagentrl.advantages import Continuations
    from vagentrl.types import Trajectory, Turn

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Start:
    """Where a continuation starts.

    Attributes:
        number: Index of the episode.
        turn: The first turn of the continuation.
        copy: Number of the continuation among those from the same turn.
    """

    number: int
    turn: int
    copy: int


@dataclass(frozen=True)
class _Outcome:
    """What came of a continuation.

    Attributes:
        start: Where it started.
        value: Its discounted return; None if it failed.
        strayed: Whether it failed because its first observation is not that of its episode.
        tokens: Number of tokens that it sampled.
    """

    start: _Start
    value: float | None
    strayed: bool
    tokens: int


def continue_episodes(
    trajectories: Sequence[Trajectory],
    wanted: Continuations,
    play: Callable[[Sequence[Episode]], list[Trajectory]],
    iteration: int,
) -> tuple[list[Trajectory], dict[str, float]]:
    """Play continuations from turns of whole episodes. The ranks share them.

    A continuation has the seeds of its episode, so that the transitions up to its start are the
    same, but samples its own replies. One that fails, or that does not start from the state that
    the episode had there, is left out of the mean.

    Args:
        trajectories: The episodes, the same on every rank.
        wanted: From which turns to continue, how often, and how far.
        play: Plays episodes; returns their trajectories in the same order.
        iteration: The training iteration that the episodes were played for.

    Returns:
        The trajectories with the `continued_value` of the turns that were continued, and metrics.

    Raises:
        RolloutError: When every continuation failed.
        EnvError: When none started from its episode's state: the environment does not replay.
    """
    starts = [
        _Start(number, turn, copy)
        for number, trajectory in enumerate(trajectories)
        for turn in chosen_turns(trajectory, wanted.every)
        for copy in range(wanted.count)
    ]
    if not starts:
        return list(trajectories), _report([])
    mine = ranks.shard(starts)
    episodes = [_episode(trajectories, start, wanted.horizon, iteration) for start in mine]
    outcomes = ranks.gather(
        [
            _outcome(start, trajectories[start.number].turns[start.turn], one, wanted.turn_gamma)
            for start, one in zip(mine, play(episodes), strict=True)
        ]
    )
    if all(outcome.strayed for outcome in outcomes):
        raise EnvError(
            f"environment {trajectories[0].environment!r} shows something else when an episode is "
            "replayed, so no turn can be continued from; everything it shows must follow from its "
            "seeds and the replies, or choose an estimator that plays no continuations"
        )
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.value is not None:
            found[outcome.start.number, outcome.start.turn].append(outcome.value)
    means = {start: sum(values) / len(values) for start, values in found.items()}
    report = _report(outcomes)
    if failed := report["rollout/continuations_failed"]:
        log.warning("%d of %d continuations failed and were left out", failed, len(outcomes))
    return [_with_values(t, number, means) for number, t in enumerate(trajectories)], report


def chosen_turns(trajectory: Trajectory, every: int) -> range:
    """The turns of an episode to continue from; see `Continuations.every`."""
    first = 1 + mix(trajectory.transition_seed, 7) % every
    return range(first, len(trajectory.turns), every)


def _episode(
    trajectories: Sequence[Trajectory], start: _Start, horizon: int | None, iteration: int
) -> Episode:
    trajectory = trajectories[start.number]
    return Episode(
        trajectory.environment,
        trajectory.seed,
        trajectory.group_id,
        private_seed=mix(trajectory.transition_seed, 8, start.turn, start.copy),
        iteration=iteration,
        transition_seed=trajectory.transition_seed,
        replies=tuple((turn.reply_ids, turn.finish) for turn in trajectory.turns[: start.turn]),
        turns=horizon,
    )


def _outcome(start: _Start, turn: Turn, continuation: Trajectory, turn_gamma: float) -> _Outcome:
    """What came of a continuation that should have started like this turn."""
    tokens = sum(len(one.reply_ids) for one in continuation.turns)
    if continuation.error is not None:
        return _Outcome(start, None, False, tokens)
    if continuation.turns[0].observation != turn.observation:
        return _Outcome(start, None, True, tokens)
    rewards = (one.reward for one in continuation.turns)
    value = sum(turn_gamma**number * reward for number, reward in enumerate(rewards))
    return _Outcome(start, value, False, tokens)


def _report(outcomes: Sequence[_Outcome]) -> dict[str, float]:
    return {
        "rollout/continuations": float(len(outcomes)),
        "rollout/continuations_failed": float(sum(one.value is None for one in outcomes)),
        "rollout/continuation_tokens": float(sum(one.tokens for one in outcomes)),
    }


def _with_values(
    trajectory: Trajectory, number: int, means: dict[tuple[int, int], float]
) -> Trajectory:
    turns = (
        replace(turn, continued_value=means.get((number, index)))
        for index, turn in enumerate(trajectory.turns)
    )
    return replace(trajectory, turns=tuple(turns))
