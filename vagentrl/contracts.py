"""What the tensors that parts return must be like; errors name the class and the method."""

from __future__ import annotations

import torch
from torch import Tensor

from vagentrl.errors import PartError


def check_tensor(
    part: object, method: str, value: object, axes: str, shape: torch.Size, device: torch.device
) -> Tensor:
    """The value, if it is a tensor of floats of the given shape on the given device.

    Args:
        part: Whose method returned the value.
        method: Name of the method.
        value: What it returned.
        axes: The shape in letters, such as ``(B, T)``.
        shape: The shape in numbers.
        device: Where the other tensors of the batch are.

    Raises:
        PartError: When it is anything else.
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
    """Refuse infinity and NaN in what `name` returned. On a GPU this waits for the device."""
    finite = value.isfinite()
    if not finite.all():
        example = float(value[~finite][0])
        raise PartError(
            f"{name} returned {example} in {int((~finite).sum())} of {value.numel()} places; "
            f"{advice}"
        )
