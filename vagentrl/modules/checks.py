"""Checks of the module's settings, and of checkpoints that it loads and saves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from vagentrl.errors import ConfigError, VagentError
from vagentrl.models.sharded import full
from vagentrl.signatures import check_signatures


def check_at_least_0(name: str, value: float) -> None:
    """Refuse a setting of the module that is negative, infinite or NaN."""
    if not 0 <= value < math.inf:
        raise ConfigError(f"model.{name} is {value}; it must be a number of at least 0")


def check_least(owner: str, least: int, **numbers: float) -> None:
    """Refuse numbers of a class's settings that are too small.

    Args:
        owner: The class.
        least: What each must be at least.
        **numbers: The settings by name.
    """
    for name, number in numbers.items():
        if not number >= least:
            raise ConfigError(f"{owner}.{name} is {number}; give {least} or more")


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse a setting of the wrong type; only the command line has checked it before."""
    if isinstance(value, kind):
        check_signatures(value)
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise ConfigError(
            f"{name} is the class {value.__name__}; give an instance, such as {value.__name__}()"
        )
    raise ConfigError(f"{name} is {_short(value)}; it must be of type {kind.__name__}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        raise ConfigError(
            f"{name} is {_short(value)}; choose one of {', '.join(map(repr, choices))}"
        )


def _short(value: object) -> str:
    """The value's repr, or only its type if the repr is long."""
    written = repr(value)
    return written if len(written) < 60 else f"of type {type(value).__name__}"


def check_finite(module: nn.Module) -> None:
    """Refuse to save trainable weights that are infinite or NaN.

    If the module is sharded, all ranks must call this together.
    """
    learning = (item for item in module.named_parameters() if item[1].requires_grad)
    bad = [name for name, weight in learning if not full(weight.isfinite().all())]
    if bad:
        raise VagentError(
            f"{len(bad)} of the trained tensors are no longer finite ({bad[0]}, …), so they are "
            "not saved; resume from the last checkpoint, with lower learning rates"
        )


def check_resumable(checkpoint: Mapping[str, Any]) -> None:
    """Refuse to resume from a checkpoint that was not saved at the end of an iteration."""
    if "state_dict" in checkpoint and "optimizer_states" not in checkpoint:
        raise VagentError(
            "the checkpoint holds weights alone (ModelCheckpoint.save_weights_only), from which a "
            "run cannot be resumed; evaluate it with `vagentrl validate`"
        )
    if not checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"]:
        raise VagentError(
            f"the checkpoint was saved within iteration {checkpoint['iteration']}, and the rest of "
            "its minibatches is lost; resume from one that was saved at an iteration's end "
            "(ModelCheckpoint.every_n_epochs)"
        )


def check_fits(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuse saved weights whose names or shapes differ from the module's own."""
    if said := differences(saved, own):
        raise VagentError(
            f"the checkpoint is of other models than the configuration: {said}. Set model.policy, "
            "critic and lora as in the run that saved it; model.advantage must need a critic if "
            "that run's did"
        )


def differences(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """How the names and shapes of saved weights differ from a model's; empty if they agree."""
    both = own.keys() & saved.keys()
    found = {
        "lacks": own.keys() - saved.keys(),
        "also holds": saved.keys() - own.keys(),
        "has another shape of": {name for name in both if own[name].shape != saved[name].shape},
    }
    return "; ".join(
        f"it {what} {min(names)}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
        for what, names in found.items()
        if names
    )


def half_precision(module: nn.Module) -> list[str]:
    """Names of the trainable weights' types that are narrower than float32."""
    types = {p.dtype for p in module.parameters() if p.requires_grad and p.dtype.itemsize < 4}
    return sorted(str(dtype).removeprefix("torch.") for dtype in types)
