"""An `AgentModule` on a bench: its own loss, without a trainer that runs it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests import toy
from tests.loop_free import NoRollouts
from vagentrl.advantages import AdvantageEstimator, MaskedGAE
from vagentrl.callbacks import AgentCallback
from vagentrl.losses import Aggregation
from vagentrl.modules.actor import ActorModule
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.critic import CriticModule
from vagentrl.rollout.collate import collate
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch

Gradients = dict[str, Tensor]


class Bench:
    """Stands for the trainer, as far as the loss looks at it."""

    strategy: Any = SimpleNamespace(root_device=torch.device("cpu"), broadcast=lambda each: each)
    precision = "32-true"
    loggers: Sequence[Any] = ()
    log_dir = "unused"

    def __init__(self, callbacks: Sequence[AgentCallback], accumulate: int) -> None:
        self.callbacks = callbacks
        self.accumulate_grad_batches = accumulate


class BenchAgent(AgentModule):
    """Tiny models in float64: what differs then, differs for a reason.

    Args:
        images: Whether the models see.
        callbacks: The trainer's callbacks.
        accumulate: Micro-batches of a minibatch, as the trainer has it.
        settings: Of the module.

    Attributes:
        logged: Every scalar that the loss logged, in order, with its weight.
    """

    def __init__(
        self,
        images: bool = False,
        *,
        callbacks: Sequence[AgentCallback] = (),
        accumulate: int = 1,
        advantage: AdvantageEstimator = MaskedGAE(),  # noqa: B008 (it has no state)
        **settings: Any,
    ) -> None:
        super().__init__("toy", advantage, **settings)
        policy = toy.model(images, torch.float64)
        backbone = toy.model(images, torch.float64).base_model
        self.actor = ActorModule(policy, toy.renderer().banned_ids)
        self.critic, self.reference = None, None
        if advantage.needs_critic:
            self.critic = CriticModule(policy, backbone)  # pyright: ignore
            nn.init.normal_(self.critic.value_head.weight)
        self.trainer: Any = Bench(callbacks, accumulate)
        self.logged: list[tuple[dict[str, float], float]] = []

    def log_dict(self, dictionary: Any, *args: Any, batch_size: float = 1, **kwargs: Any) -> None:
        named = {name: float(value) for name, value in dictionary.items()}
        self.logged.append((named, batch_size))

    def loss(self, part: TrainBatch) -> Tensor:
        return self.training_step(part.to("cpu"), 0)  # as Lightning moves it to the device

    def gradients(self, parts: Sequence[TrainBatch]) -> Gradients:
        """Of the mean over the micro-batches, as Lightning takes it; parameters by name."""
        self.zero_grad()
        for part in parts:
            (self.loss(part) / self.trainer.accumulate_grad_batches).backward()
        return {name: p.grad.clone() for name, p in self.named_parameters() if p.grad is not None}


class LoggingAgent(BenchAgent):
    """Keeps what `log` is given, and how `log_dict` is told to average."""

    def log(self, name: str, value: Any, *args: Any, **how: Any) -> None:
        self.seen[name] = float(value)
        self.how[name] = how

    def log_dict(self, dictionary: Any, *args: Any, **how: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, **how)

    @property
    def seen(self) -> dict[str, float]:
        return self.__dict__.setdefault("_seen", {})

    @property
    def how(self) -> dict[str, dict[str, Any]]:
        return self.__dict__.setdefault("_how", {})


class Report(NoRollouts):
    """Collected something, and evaluates to the number of seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.report = {"rollout/return": 0.5}
        self.asked: list[tuple[Any, ...]] = []

    def evaluate(self, environment: str, seeds: Any, agent: Any, prefix: str = "val") -> Any:
        self.asked.append((environment, seeds, agent, prefix))
        return {f"{prefix}/episodes": float(len(seeds))}


def small_batch() -> RolloutBatch:
    played = [toy.play([toy.GO], seed=0), toy.play([toy.WAIT, toy.GO, toy.GO], seed=1)]
    return collate(played, toy.renderer(), temperature=1.0)


def small_minibatch() -> TrainBatch:
    """Rows of two episodes, and one that only fills up the minibatch."""
    rollout = small_batch().select(torch.tensor([0, 1, 1]))
    mask = rollout.action_mask.double()
    weights = Aggregation()(rollout.action_mask, rollout.turn_ids, rollout.trajectory_ids)
    weights = weights * torch.tensor([[1.0], [1.0], [0.0]])
    return TrainBatch(rollout, Scores(-mask, None, 0 * mask), Credit(mask, mask), weights)


def freeze_one(module: nn.Module) -> nn.Parameter:
    """Make a parameter of the module one that does not learn."""
    parameter = next(module.parameters())
    parameter.requires_grad = False
    return parameter
