"""What the tensors and episodes that parts return must be like.

Each error names the class and the method that returned something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

import torch
from torch import Tensor

from vagentrl.errors import PartError, seen
from vagentrl.types import RolloutBatch, Trajectory


def check_tensor(
    part: object, method: str, value: object, axes: str, shape: torch.Size, device: torch.device
) -> Tensor:
    """Floats of the given shape on the given device.

    Args:
        part: Whose method returned the value.
        method: Name of the method.
        value: What it returned.
        axes: The shape in letters, such as ``(B, T)``.
        shape: The shape in numbers.
        device: Where the other tensors of the batch are.
    """
    if (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.shape == shape
        and value.device == device
    ):
        return value
    wanted = f"return a float tensor of shape {axes}, here {tuple(shape)}, on {device}"
    raise PartError.returned(part, method, value, wanted)


def check_finite(name: str, value: Tensor, advice: str) -> None:
    """No infinity and no NaN in what `name` returned; on a GPU this waits for the device."""
    finite = value.isfinite()
    if not finite.all():
        example = float(value[~finite][0])
        raise PartError(
            f"{name} returned {example} in {int((~finite).sum())} of {value.numel()} places; "
            f"{advice}"
        )


def check_trajectories(callback: object, method: str, value: object) -> list[Trajectory]:
    """The episodes that a callback's hook returned."""
    if isinstance(value, list) and all(isinstance(item, Trajectory) for item in value):
        return value
    raise PartError.returned(
        callback, method, value, "return the list of trajectories, changed or as it was given"
    )


def check_rollout(callback: object, value: object, given: RolloutBatch) -> RolloutBatch:
    """The batch that a callback's `on_scores` returned, in place of the given one."""
    method = "on_scores"
    if not isinstance(value, RolloutBatch):
        wanted = "return the rollout, changed by dataclasses.replace or as it was given"
        raise PartError.returned(callback, method, value, wanted)
    if value is not given:
        rewards = given.rewards
        check_tensor(callback, method, value.rewards, "(B, T)", rewards.shape, rewards.device)
        check_finite(f"{type(callback).__name__}.{method}", value.rewards, "rewards are finite")
    return value


def check_term(callback: object, value: object, like: Tensor) -> Tensor:
    """The loss per token that a callback's `policy_loss_term` returned."""
    method = "policy_loss_term"
    return check_tensor(callback, method, value, "(B, T)", like.shape, like.device)


def check_report(callback: object, method: str, report: Mapping[str, object]) -> None:
    """Numbers by name, to which a callback's hook may have added."""
    for name, value in report.items():
        if not isinstance(name, str) or not isinstance(value, Real):
            raise PartError(
                f"{type(callback).__name__}.{method} left {seen(value)} in the report under "
                f"{name!r}; give a float under a string"
            )
