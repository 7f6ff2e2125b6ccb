"""The description of a policy in its checkpoint, for use without the run's configuration.

It is stored as plain values: a checkpoint has to load with ``weights_only=True``, and an exported
folder holds the description as JSON.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from vagentrl.engines.base import Sampling
from vagentrl.models.lora import LoRA

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A class and the arguments to construct an object of it.

    Attributes:
        class_path: Import path of the class.
        init_args: Its arguments; None if the object does not reveal them.
    """

    class_path: str
    init_args: Mapping[str, Any] | None

    @classmethod
    def of(cls, thing: object) -> Part:
        """Describe an object that keeps its arguments as attributes of the same names."""
        kind = type(thing)
        names = inspect.signature(kind).parameters
        kept = {name: value for name, value in vars(thing).items() if name in names}
        plain = all(isinstance(v, str | int | float | bool | None) for v in kept.values())
        complete = plain and kept.keys() == names.keys()
        return cls(f"{kind.__module__}.{kind.__qualname__}", kept if complete else None)

    def build(self, base: type[T]) -> T | None:
        """Construct the object; None if its arguments are unknown or its class is not imported.

        Args:
            base: The base class that its class must derive from.
        """
        module, _, name = self.class_path.rpartition(".")
        # A checkpoint may come from an untrusted source, so a module it names is not imported.
        kind = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if self.init_args is None or not (isinstance(kind, type) and issubclass(kind, base)):
            return None
        return kind(**self.init_args)


@dataclass(frozen=True)
class PolicyRecord:
    """How a policy is built, prompted and sampled from.

    Attributes:
        policy: The checkpoint that training started from, as given to `AgentModule`.
        dtype: Type of the weights.
        lora: Settings of the LoRA adapter, or None.
        iteration: Number of training iterations.
        context: Which earlier turns the policy sees.
        context_length: Length of the context in tokens.
        sampling: How replies were sampled in evaluations.
        system_prompt: The system prompt of the training environment.
        reply_format: The reply format of the training environment.
    """

    policy: str
    dtype: str
    lora: LoRA | None
    iteration: int
    context: Part
    context_length: int
    sampling: Sampling
    system_prompt: str | None
    reply_format: Part | None

    def as_plain(self) -> dict[str, Any]:
        """The record as nested dictionaries of plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> PolicyRecord:
        """The record that `as_plain` wrote."""
        lora, reply_format = plain["lora"], plain["reply_format"]
        return cls(
            **{
                **plain,
                "lora": None if lora is None else LoRA(**lora),
                "context": Part(**plain["context"]),
                "sampling": Sampling(**plain["sampling"]),
                "reply_format": None if reply_format is None else Part(**reply_format),
            }
        )
