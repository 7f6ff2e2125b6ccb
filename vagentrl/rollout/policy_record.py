"""What a checkpoint says of its policy, so that it can be used without its run's configuration.

A record is stored as plain values: a checkpoint has to load with ``weights_only=True``, and an
exported folder holds the record as JSON.
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
    """A class and the arguments that make one of it.

    Attributes:
        class_path: Import path of the class.
        init_args: Its arguments; None where they cannot be told from the object.
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
        """The object again; None where its arguments are not known, or its class not imported.

        Args:
            base: What its class derives from.
        """
        module, _, name = self.class_path.rpartition(".")
        # A checkpoint may come from anywhere, so nothing is imported on its word.
        kind = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if self.init_args is None or not (isinstance(kind, type) and issubclass(kind, base)):
            return None
        return kind(**self.init_args)


@dataclass(frozen=True)
class PolicyRecord:
    """How a policy is built, and how it is asked for replies.

    Attributes:
        policy: What it started from, as `AgentModule` was given it.
        dtype: Type of its weights.
        lora: Its adapter, or None.
        iteration: Iterations that it has learned for.
        context: What it sees of the past.
        context_length: Tokens that it may read.
        sampling: How its replies were sampled in evaluations.
        system_prompt: That of the environment that it was trained on.
        reply_format: That of the same environment.
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
        """The record as dictionaries of numbers and texts."""
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
