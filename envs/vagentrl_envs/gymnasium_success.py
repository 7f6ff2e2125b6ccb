"""Whether an episode of a Gymnasium environment is a success; the library itself rarely says it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium

log = logging.getLogger(__name__)


def reaches(total: float, wanted: float, ended: bool) -> bool:
    """Whether the sum of the rewards is a success.

    A sum of 0 or less is there before the first action, and stays there if every reply is
    malformed. So it counts only if the library ended the episode.

    Args:
        total: The sum of the library's rewards so far.
        wanted: The sum from which the episode is a success.
        ended: Whether the library terminated or truncated the episode.
    """
    return total >= wanted and (ended or wanted > 0)


def told_by(rewards: Sequence[float], terminated: bool) -> bool | None:
    """Whether the rewards of an episode tell a success; None if they do not tell.

    A terminated episode is a success if its last reward is positive. The last reward tells nothing
    where every step is paid, such as for a pole that stays up, and where the last step costs as
    much as an earlier one, such as for a way that should be short.
    """
    *earlier, last = rewards or [0.0]
    if earlier and min(rewards) > 0:
        return None
    if terminated and last < 0 and last in earlier:
        return None
    return terminated and last > 0


def registered_threshold(game: gymnasium.Env[Any, Any], longest_episode: int) -> float | None:
    """The sum of rewards with which Gymnasium calls the task solved: the id's `reward_threshold`.

    It is meant for episodes of the registered length. It is None if the id has none, if the
    library's time limit is set below that length, and if it is positive and `longest_episode`
    actions are fewer, since it may then be out of reach.
    """
    import gymnasium

    spec = game.spec
    if spec is None or spec.reward_threshold is None:
        return None
    threshold = float(spec.reward_threshold)
    steps = spec.max_episode_steps or math.inf
    if threshold > 0:
        steps = min(steps, longest_episode)
    registered = gymnasium.spec(spec.id).max_episode_steps
    return threshold if registered is None or steps >= registered else None


@cache
def warn_untold(id: str) -> None:
    """Warn, once for each id, that an episode ended and nothing tells if it was a success."""
    log.warning(
        "%s: an episode ended and its rewards do not tell a success, so the metric `success` is "
        "left out and the episode counts as none; set success_return, or if the id has a "
        "reward_threshold, give turn_limit and max_episode_steps their registered length",
        id,
    )
