"""Keep the policy near the one it started from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from lightning import LightningModule, Trainer
from torch import Tensor

from vagentrl.callbacks.base import AgentCallback
from vagentrl.errors import ConfigError
from vagentrl.losses import kl_estimate

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule
    from vagentrl.types import RolloutBatch, Scores, TrainBatch


class KLControl(AgentCallback):
    """A penalty on the divergence from the reference, on sampled tokens only.

    With this callback the trainer holds a reference; without it there is none.

    Args:
        coefficient: Weight of the penalty; where an adaptive one starts.
        place: Subtract it from each token's reward, or add it to each token's loss.
        estimator: Schulman's k1, k2 or k3 ("Approximating KL divergence", 2020). In the loss, k1
            has no gradient in expectation: k2 or k3 belong there.
        target: KL per token to steer towards (Ziegler et al. 2019, "Fine-tuning language models
            from human preferences", section 2.2); None keeps the coefficient.
        horizon: Episodes over which an adaptive coefficient may change by its own size.
    """

    def __init__(
        self,
        coefficient: float = 0.001,
        place: Literal["reward", "loss"] = "reward",
        estimator: Literal["k1", "k2", "k3"] = "k1",
        target: float | None = None,
        horizon: int = 10_000,
    ) -> None:
        if coefficient < 0:
            raise ConfigError(f"KLControl.coefficient is {coefficient}; a penalty is not negative")
        if place == "loss" and estimator == "k1":
            raise ConfigError(
                "KLControl.place is 'loss' and KLControl.estimator is 'k1': the gradient of k1 is "
                "zero in expectation, so it would not hold the policy; choose k2 or k3"
            )
        if target is not None and target <= 0:
            raise ConfigError(f"KLControl.target is {target}; give a KL per token above 0, or null")
        self.coefficient = coefficient
        self.place = place
        self.estimator: Literal["k1", "k2", "k3"] = estimator
        self.target = target
        self.horizon = horizon

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            pl_module.needs_reference = True  # pyright: ignore

    def on_scores(self, agent: AgentModule, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        assert scores.ref_logprobs is not None
        mask = rollout.action_mask
        penalty = kl_estimate(scores.old_logprobs, scores.ref_logprobs, self.estimator) * mask
        kl = float(penalty.sum() / mask.sum())
        agent.record("rollout/kl", kl)
        agent.record("rollout/kl_coefficient", self.coefficient)
        coefficient = self.coefficient
        if self.target is not None:
            error = min(max(kl / self.target - 1, -0.2), 0.2)
            episodes = int(rollout.trajectory_ids.max()) + 1
            self.coefficient *= 1 + error * episodes / self.horizon
        if self.place == "loss":
            return rollout
        return replace(rollout, rewards=rollout.rewards - coefficient * penalty)

    def policy_loss_term(
        self, agent: AgentModule, batch: TrainBatch, logprobs: Tensor
    ) -> Tensor | None:
        if self.place == "reward":
            return None
        assert batch.scores.ref_logprobs is not None
        return self.coefficient * kl_estimate(logprobs, batch.scores.ref_logprobs, self.estimator)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.coefficient = state_dict["coefficient"]
