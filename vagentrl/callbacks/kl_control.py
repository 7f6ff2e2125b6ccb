"""Keeps the policy near the reference with a KL penalty."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from lightning import LightningModule, Trainer
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses import KLKind, kl_estimate
from vagentrl.modules.agent import AgentModule, agent_of
from vagentrl.modules.callback import AgentCallback

if TYPE_CHECKING:
    from vagentrl.types import RolloutBatch, Scores, TrainBatch


class KLControl(AgentCallback):
    """Penalises the KL divergence of the policy from the reference, on sampled tokens.

    Only with this callback does the module load a reference.

    Args:
        coefficient: Weight of the penalty; with a `target` its initial value.
        place: ``reward`` subtracts the penalty from each token's reward, ``loss`` adds it to each
            token's loss.
        estimator: Schulman's k1, k2 or k3 ("Approximating KL divergence", 2020), or k3+. The
            gradient of KL(policy || reference) is that of k1 in the reward, and of k2 or k3+ in the
            loss. k3 in the loss (as GRPO is published) has the gradient of KL(reference || policy)
            instead; k1 in the loss has none in expectation and is refused. k2 and k3+ in the loss
            differ in the value that is reported: k3+ has k3's, which is unbiased.
        target: KL per token to steer towards (Ziegler et al. 2019, "Fine-tuning language models
            from human preferences", section 2.2); None keeps the coefficient.
        horizon: Number of episodes over which the adaptive coefficient changes by at most a fifth.
            An iteration with more episodes changes it by at most a fifth, too.
    """

    loss_name = "kl_loss"

    def __init__(
        self,
        coefficient: float = 0.001,
        place: Literal["reward", "loss"] = "reward",
        estimator: KLKind = "k1",
        target: float | None = None,
        horizon: int = 10_000,
    ) -> None:
        if coefficient < 0:
            raise ConfigError(f"KLControl.coefficient is {coefficient}; a penalty is not negative")
        if place == "loss" and estimator == "k1":
            raise ConfigError(
                "KLControl.place is 'loss' and KLControl.estimator is 'k1': the gradient of k1 is "
                "zero in expectation, so it would not restrain the policy; choose k2 or k3+ (k3 "
                "has the gradient of KL(reference || policy) instead)"
            )
        if target is not None and target <= 0:
            raise ConfigError(f"KLControl.target is {target}; give a KL per token above 0, or null")
        if horizon < 1:
            raise ConfigError(f"KLControl.horizon is {horizon}; give a number of episodes")
        self.coefficient = coefficient
        self._next_coefficient = coefficient
        self.place = place
        self.estimator: KLKind = estimator
        self.target = target
        self.horizon = horizon

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            agent_of(pl_module).needs_reference = True

    def on_scores(self, agent: AgentModule, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        assert scores.ref_logprobs is not None
        mask = rollout.action_mask
        penalty = kl_estimate(scores.old_logprobs, scores.ref_logprobs, self.estimator) * mask
        kl = float(penalty.sum() / mask.sum())
        agent.record("rollout/kl", kl)
        agent.record("rollout/kl_coefficient", self.coefficient)
        if agent.current.actor_learns:  # in a critic warm-up the KL does not depend on it
            self._next_coefficient = self._steer(kl, episodes=len(rollout.group_ids))
        if self.place == "loss":
            return rollout
        return replace(rollout, rewards=rollout.rewards - self.coefficient * penalty)

    def _steer(self, kl: float, episodes: int) -> float:
        if self.target is None:
            return self.coefficient
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return self.coefficient * (1 + error * min(episodes / self.horizon, 1))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: TrainBatch,
        batch_idx: int,
    ) -> None:
        if trainer.is_last_batch:  # a whole update uses the same coefficient
            self.coefficient = self._next_coefficient

    def policy_loss_term(
        self, agent: AgentModule, batch: TrainBatch, logprobs: Tensor
    ) -> Tensor | None:
        if self.place == "reward":
            return None
        assert batch.scores.ref_logprobs is not None
        return self.coefficient * kl_estimate(logprobs, batch.scores.ref_logprobs, self.estimator)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient, "next_coefficient": self._next_coefficient}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.target is not None:  # without a target the configuration sets the coefficient
            self.coefficient = state_dict["coefficient"]
            self._next_coefficient = state_dict["next_coefficient"]
