"""What an iteration is to play, and what was played."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from vagentrl.engines.base import Engine, Sampling
from vagentrl.rollout.episodes import Episode
from vagentrl.types import Trajectory, Turn

if TYPE_CHECKING:
    from vagentrl.advantages import Continuations
    from vagentrl.filters import GroupFilter
    from vagentrl.rollout.iteration import Iteration


@dataclass(frozen=True)
class CollectionPlan:
    """Which episodes are played for each iteration.

    Attributes:
        groups: Initial states (P), over all ranks.
        group_size: Episodes from each initial state (N).
        turns: Turns to play in each of ``groups * group_size`` persistent environments; None plays
            whole episodes.
        filter: Chooses the groups to learn from.
        sampling: How replies are sampled.
        staleness: Number of iterations whose episodes are played while the actor learns.
        continuations: Continuations to play of the episodes that are kept; None plays none.
        seed: Determines all episodes, together with the iteration.
    """

    groups: int
    group_size: int
    turns: int | None
    filter: GroupFilter
    sampling: Sampling
    staleness: int
    seed: int
    continuations: Continuations | None = None


@dataclass(frozen=True)
class Drawn:
    """What an iteration plays.

    Attributes:
        iteration: The iteration that learns from it.
        weights: Each world's share of the groups.
        episodes: This rank's episodes of the first round; none where slots are played.
        since: The engine's totals when it was drawn.
    """

    iteration: Iteration
    weights: Mapping[str, float]
    episodes: list[Episode]
    since: Totals


class Totals(NamedTuple):
    """What an engine has sampled and computed by a moment.

    Attributes:
        at_s: The moment, from `time.perf_counter`.
        tokens: Tokens that it has sampled.
        busy_s: Seconds that it has computed.
    """

    at_s: float
    tokens: int
    busy_s: float

    @classmethod
    def of(cls, engine: Engine) -> Totals:
        return cls(time.perf_counter(), engine.sampled_tokens, engine.busy_s)


@dataclass
class Collection:
    """The episodes of an iteration.

    Attributes:
        trajectories: All episodes that were played, failed ones included.
        kept: The episodes that the filter chose to learn from.
        report: Metrics of the collection, to be logged.
    """

    trajectories: list[Trajectory]
    kept: list[Trajectory]
    report: dict[str, float]


class RolloutHooks(Protocol):
    """Callbacks that see the episodes while they are played, and may change them afterwards.

    `vagentrl.modules.callback.AgentCallback` documents each hook.
    """

    def on_turn_end(self, turn: Turn, *, training: bool) -> None: ...

    def on_episode_end(self, trajectory: Trajectory) -> None: ...

    def on_continuation_end(self, trajectory: Trajectory) -> None: ...

    def on_trajectories(self, trajectories: list[Trajectory]) -> list[Trajectory]: ...

    def on_report(self, report: dict[str, float]) -> None: ...

    def on_evaluation(
        self, trajectories: list[Trajectory], report: dict[str, float]
    ) -> list[Trajectory]: ...
