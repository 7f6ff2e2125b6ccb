"""The root module: actor, critic and reference, and one step of learning."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NoReturn, cast

import torch
from lightning import LightningModule
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
from torch import Tensor
from transformers import PreTrainedModel

from vagentrl import ranks
from vagentrl.advantages import AdvantageEstimator
from vagentrl.callbacks.base import AgentCallback
from vagentrl.callbacks.critic_warmup import Warmup
from vagentrl.errors import ConfigError, VagentError
from vagentrl.losses import Aggregation, PolicyLoss, PPOClip, masked_mean, value_loss
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA
from vagentrl.modules import deepspeed
from vagentrl.modules.actor import ActorModule
from vagentrl.modules.checks import (
    check_at_least_0,
    check_choice,
    check_finite,
    check_fits,
    check_kind,
    check_resumable,
    half_precision,
)
from vagentrl.modules.critic import CriticModule
from vagentrl.modules.optimizer import AdamW
from vagentrl.modules.reference import ActorWithoutAdapter, ReferenceModule
from vagentrl.modules.trainer_checks import check_data, check_trainer
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch

log = logging.getLogger(__name__)

SKIPPED_AT_MOST = 8
"""Steps in a row; a loss scale for float16 may take some to settle."""


class AgentModule(LightningModule):
    """Trains a policy to act over turns.

    Args:
        policy: Checkpoint to start from: a folder, a hub name, or one that ships with vagentrl.
        advantage: Estimates advantages; decides whether there is a critic.
        policy_loss: The loss of each sampled token.
        critic: ``own`` gives the critic a backbone of its own, which starts as the policy's;
            ``shared`` is a value head on the actor's.
        aggregation: How the losses of tokens become one.
        value_coef: Weight of the value loss.
        value_clip: Distance that a value may move from the old one in the loss; None: any.
        entropy_coef: Weight of the entropy bonus.
        optimizer: Learning rates and the like.
        dtype: Type of the weights.
        gradient_checkpointing: Trade compute for memory.
        freeze_vision: Do not train the vision towers of actor and critic.
        lora: Train adapters of actor and critic in place of their weights. The reference is then
            the actor without its adapter, and a checkpoint holds no frozen weights.
        score_batch_size: Rows in one forward pass without gradient.
    """

    actor: ActorModule
    critic: CriticModule | None
    reference: ReferenceModule | ActorWithoutAdapter | None

    def __init__(
        self,
        policy: str,
        advantage: AdvantageEstimator,
        policy_loss: PolicyLoss = PPOClip(),  # noqa: B008 (frozen)
        critic: Literal["own", "shared"] = "own",
        aggregation: Aggregation = Aggregation(),  # noqa: B008 (frozen)
        value_coef: float = 1.0,
        value_clip: float | None = 0.5,
        entropy_coef: float = 0.001,
        optimizer: AdamW = AdamW(),  # noqa: B008 (frozen)
        dtype: Literal["float32", "bfloat16"] = "float32",
        gradient_checkpointing: bool = False,
        freeze_vision: bool = False,
        lora: LoRA | None = None,
        score_batch_size: int = 32,
    ) -> None:
        super().__init__()
        self.policy_name = policy
        self.advantage = advantage
        self.policy_loss = policy_loss
        self.critic_kind = critic
        self.aggregation = aggregation
        self.value_coef = value_coef
        self.value_clip = value_clip
        self.entropy_coef = entropy_coef
        self.optimizer_settings = optimizer
        self.dtype_name = dtype
        self.gradient_checkpointing = gradient_checkpointing
        self.freeze_vision = freeze_vision
        self.lora = lora
        self.score_batch_size = score_batch_size
        self.iteration = 0  # completed iterations
        self.first_iteration = 0  # the first of this trainer: another may have trained before
        self.warmup = Warmup()
        self.needs_reference = False
        self._skipped = 0  # steps in a row
        self._check_settings()

    def _check_settings(self) -> None:
        """Raise on settings that cannot work."""
        for name, part, kind in (
            ("policy", self.policy_name, str),
            ("advantage", self.advantage, AdvantageEstimator),
            ("policy_loss", self.policy_loss, PolicyLoss),
            ("aggregation", self.aggregation, Aggregation),
            ("optimizer", self.optimizer_settings, AdamW),
            ("lora", self.lora or LoRA(), LoRA),
        ):
            check_kind(f"model.{name}", part, kind)
        check_choice("model.critic", self.critic_kind, ("own", "shared"))
        check_choice("model.dtype", self.dtype_name, ("float32", "bfloat16"))
        check_at_least_0("value_coef", self.value_coef)
        check_at_least_0("entropy_coef", self.entropy_coef)
        if self.value_clip is not None and not self.value_clip > 0:
            raise ConfigError(
                f"model.value_clip is {self.value_clip}; give a distance above 0, or null to clip "
                "nothing"
            )
        if self.score_batch_size < 1:
            raise ConfigError(
                f"model.score_batch_size is {self.score_batch_size}; it must be at least 1"
            )

    def setup(self, stage: str) -> None:
        check_data(self.trainer)
        check_trainer(self.trainer, stage)
        self.first_iteration = self.iteration - self.trainer.current_epoch
        if isinstance(self.trainer.strategy, DeepSpeedStrategy):
            deepspeed.prepare(self.trainer, self.trainer.strategy)

    # ------------------------------------------------------------------------------- the models

    def configure_model(self) -> None:
        banned_ids: frozenset[int] = self.trainer.datamodule.renderer.banned_ids  # pyright: ignore
        if not hasattr(self, "actor"):
            self.build(banned_ids)
        elif self.needs_reference and self.reference is None:  # none was needed before
            self.reference = self._build_reference(banned_ids)

    def build(self, banned_ids: frozenset[int], *, meta: bool = False) -> None:
        """Make the models.

        Args:
            banned_ids: Tokens that the engine never samples.
            meta: Build them on the meta device, without weights.
        """
        policy = self._load(meta=meta)
        self.actor = ActorModule(policy, banned_ids)
        self.critic = None
        if self.advantage.needs_critic:
            backbone = (
                cast(PreTrainedModel, self._load(meta=meta).base_model)
                if self.critic_kind == "own"
                else None
            )
            self.critic = CriticModule(policy, backbone)
        self.reference = None
        if self.needs_reference:
            self.reference = self._build_reference(banned_ids, meta=meta)

    def _build_reference(
        self, banned_ids: frozenset[int], *, meta: bool = False
    ) -> ReferenceModule | ActorWithoutAdapter:
        if self.lora is not None:
            return ActorWithoutAdapter(self.actor)
        return ReferenceModule(self._load(meta=meta), banned_ids)

    def _load(self, *, meta: bool) -> PreTrainedModel:
        """The model to start from."""
        return load_model(
            self.policy_name,
            dtype=getattr(torch, self.dtype_name),
            gradient_checkpointing=self.gradient_checkpointing,
            freeze_vision=self.freeze_vision,
            lora=self.lora,
            meta=meta,
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        half = half_precision(self)
        if half and not isinstance(self.trainer.strategy, DeepSpeedStrategy):
            log.warning(
                "what learns is %s, and trainer.strategy keeps no float32 copy: small steps are "
                "rounded away. Set model.dtype to float32 (and trainer.precision to bf16-mixed), "
                "or take a DeepSpeed strategy",
                " and ".join(half),
            )
        critic = {} if self.critic is None else {"critic": self.critic}
        return self.optimizer_settings.build({"actor": self.actor, **critic})

    @property
    def actor_is_training(self) -> bool:
        """Whether this iteration changes the actor; CriticWarmup holds it off."""
        return self.iteration >= self.warmup.rounds

    @property
    def total_iterations(self) -> int:
        """Iterations that will be completed when the trainer's ``max_epochs`` are over."""
        return self.first_iteration + (self.trainer.max_epochs or 0)

    def agent_callbacks(self) -> Iterator[AgentCallback]:
        """The trainer's callbacks that take part in an iteration."""
        return (c for c in self.trainer.callbacks if isinstance(c, AgentCallback))  # pyright: ignore

    def record(self, name: str, value: float) -> None:
        """Add a number to what is logged about this iteration's collection."""
        self.trainer.datamodule.report[name] = value  # pyright: ignore

    # --------------------------------------------------------------------------------- scoring

    @torch.no_grad()
    def assess(
        self, rollout: RolloutBatch, earlier: Scores | None = None
    ) -> tuple[RolloutBatch, Scores, Credit]:
        """Score a collected batch, let callbacks adjust its rewards, and assign credit.

        Args:
            rollout: The batch, its rewards as the environment gave them.
            earlier: Its scores before the critic changed; the actor has not.
        """
        with self.trainer.precision_plugin.forward_context():  # the first ratio is then exactly 1
            if earlier is None:
                scores = self.score(rollout)
            else:
                scores = replace(earlier, values=self.score_values(rollout))
        for callback in self.agent_callbacks():
            rollout = callback.on_scores(self, rollout, scores)
        credit = self.advantage(rollout, scores)
        if self.policy_loss.importance is not None:
            for name, value in self.policy_loss.importance.metrics(rollout, scores).items():
                self.record(f"train/{name}", float(value))
        if scores.values is not None and credit.returns is not None:
            seen = rollout.action_mask
            error = (credit.returns - scores.values)[seen].var()
            self.record("rollout/explained_variance", float(1 - error / credit.returns[seen].var()))
        return rollout, scores, credit

    def score(self, rollout: RolloutBatch) -> Scores:
        """Log-probs, reference log-probs and values of all rows, without gradient."""
        old = torch.zeros_like(rollout.rewards)
        ref = torch.zeros_like(old) if self.reference is not None else None
        values = torch.zeros_like(old) if self.critic is not None else None
        for place, part in self._parts(rollout):
            states = self.actor.states(part)
            old[place] = self.actor.logprobs(states, part)[0]
            if self.reference is not None and ref is not None:
                ref[place] = self.reference(part)
            if self.critic is not None and values is not None:
                values[place] = self.critic(part, states)
        for scored in (old, ref, values):
            if scored is not None:
                ranks.sum_over_ranks(scored)
        return Scores(old, ref, values)

    def score_values(self, rollout: RolloutBatch) -> Tensor:
        """Values of all rows ``(B, T)``, without gradient."""
        assert self.critic is not None
        values = torch.zeros_like(rollout.rewards)
        for place, part in self._parts(rollout):
            shared = self.critic.backbone is None
            values[place] = self.critic(part, self.actor.states(part) if shared else None)
        ranks.sum_over_ranks(values)
        return values

    def _parts(self, rollout: RolloutBatch) -> Iterator[tuple[tuple[Tensor, slice], RolloutBatch]]:
        """This rank's share of the rows, of about one length and as many as a forward pass takes,
        and where they belong."""
        by_length = rollout.attention_mask.sum(-1).argsort(stable=True)  # little padding
        for rows in ranks.shard(by_length.split(self.score_batch_size)):
            part = rollout.select(rows)
            yield (rows, slice(0, part.input_ids.shape[1])), part

    # -------------------------------------------------------------------------------- learning

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        return batch  # batches are made where the models are

    @property
    def _deepspeed(self) -> Any | None:
        """DeepSpeed's engine, where it takes the steps."""
        return deepspeed.engine_of(self.trainer)

    def on_train_batch_start(self, batch: TrainBatch, batch_idx: int) -> None:
        if self._deepspeed is not None:  # it was set up before the number of passes was known
            last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
            self._deepspeed.set_gradient_accumulation_boundary(last)

    def training_step(self, batch: TrainBatch, batch_idx: int) -> Tensor:
        """Loss of a micro-batch; summed over the micro-batches, those of all ranks, it is the
        minibatch's."""
        loss = batch.weights.new_zeros(())
        states = None
        if self.actor_is_training:
            states = self.actor.states(batch.rollout)
            loss = loss + self._policy_loss(states, batch)
        if self.critic is not None:
            loss = loss + self.value_coef * self._value_loss(states, batch)
        if isinstance(self.trainer.strategy, DDPStrategy):
            loss = loss + self._nothing()
        # Lightning takes the mean over accumulated micro-batches, DDP over ranks; the weights want
        # their sum.
        return loss * self.trainer.accumulate_grad_batches * ranks.world_size()

    def _nothing(self) -> Tensor:
        """0, of every weight that learns: DDP waits for a gradient of each, also where a loss is
        left out or no row shows an image.

        DeepSpeed wants the same ones on every rank, and steps wherever there is one.
        """
        resting = self.actor.parameters() if self._deepspeed and not self.actor_is_training else ()
        left_out = set(map(id, resting))
        learning = (p for p in self.parameters() if p.requires_grad and id(p) not in left_out)
        return torch.stack([p.flatten()[:0].sum().float() for p in learning]).sum()

    def _policy_loss(self, states: Tensor, batch: TrainBatch) -> Tensor:
        logprobs, entropy = self.actor.logprobs(states, batch.rollout, with_entropy=True)
        assert entropy is not None
        mask = batch.rollout.action_mask
        per_token = self.policy_loss(logprobs, batch)
        with torch.no_grad():
            metrics = self.policy_loss.metrics(logprobs, batch)
            metrics["policy_loss"] = masked_mean(per_token, mask)
            metrics["entropy"] = masked_mean(entropy, mask)
        self._report(batch, metrics)
        per_token = per_token - self.entropy_coef * entropy
        for callback in self.agent_callbacks():
            term = callback.policy_loss_term(self, batch, logprobs)
            if term is not None:
                per_token = per_token + term
        return (batch.weights * per_token).sum()

    def _value_loss(self, states: Tensor | None, batch: TrainBatch) -> Tensor:
        assert self.critic is not None
        if self.critic.backbone is None and states is None:  # warm-up of a shared critic
            with torch.no_grad():
                states = self.actor.states(batch.rollout)
        values = self.critic(batch.rollout, states)
        old, returns = batch.scores.values, batch.credit.returns
        assert old is not None and returns is not None
        per_token = value_loss(values, old, returns, clip=self.value_clip)
        self._report(batch, {"value_loss": masked_mean(per_token, batch.rollout.action_mask)})
        return (batch.weights * per_token).sum()

    def _report(self, batch: TrainBatch, means: dict[str, Tensor]) -> None:
        tokens = int((batch.weights > 0).sum())  # none of a row that only fills in
        self.log_dict(
            {f"train/{name}": mean.detach() for name, mean in means.items()},
            on_step=False,
            on_epoch=True,
            batch_size=tokens,
            sync_dist=True,
        )

    def on_train_epoch_start(self) -> None:
        self._set_learning_rates()
        self.log_dict(self.trainer.datamodule.report, on_epoch=True, batch_size=1)  # pyright: ignore
        self._update_started = time.perf_counter()

    def _set_learning_rates(self) -> None:
        rates = self.optimizer_settings.rates(
            self.iteration, self.warmup.rounds, self.total_iterations
        )
        optimizer = self.optimizers()
        for group in optimizer.param_groups:  # pyright: ignore
            group["lr"] = rates[group["name"]]
            self.log(f"optim/{group['name']}_lr", group["lr"], on_epoch=True, batch_size=1)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip actor and critic apart: a large error of the critic must not silence the actor.

        A gradient that is not finite moves nothing.
        """
        if self._deepspeed is not None:  # it does both by itself, with one norm
            return
        limit = gradient_clip_val or float("inf")
        if not self.actor_is_training:  # not the 0 that DDP wants: AdamW's moments would move
            for weight in self.actor.parameters():
                weight.grad = None
        norms = {
            f"{group['name']}_grad_norm": torch.nn.utils.clip_grad_norm_(group["params"], limit)
            for group in optimizer.param_groups
        }
        if not self._are_finite(norms):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def _are_finite(self, norms: dict[str, Any]) -> bool:
        """Whether a step can be taken; logs it.

        Raises:
            VagentError: When too many in a row could not.
        """
        finite = all(math.isfinite(norm) for norm in norms.values())
        note = partial(self.log, on_step=False, on_epoch=True, batch_size=1)
        note("optim/skipped_steps", float(not finite), reduce_fx="sum")
        if finite:
            self._skipped = 0
            for name, norm in norms.items():
                note(f"optim/{name}", norm)
            return True
        self._skipped += 1
        seen = ", ".join(f"{name} {float(norm)}" for name, norm in norms.items())
        log.warning("iteration %d: a step is skipped (%s)", self.iteration, seen)
        if self._skipped == SKIPPED_AT_MOST:
            raise VagentError(
                f"{self._skipped} steps in a row had a gradient that is not finite ({seen}), so "
                "nothing is learned; look for what else is not finite among the logged train/ and "
                "rollout/ scalars, then resume from the last checkpoint with lower rates"
            )
        return False

    def on_train_batch_end(self, outputs: Any, batch: TrainBatch | None, batch_idx: int) -> None:
        engine = self._deepspeed
        if engine is not None and batch is not None and engine.is_gradient_accumulation_boundary():
            self._are_finite({"grad_norm": engine.get_global_grad_norm()})  # it has skipped by then
            if not self.actor_is_training:
                deepspeed.rewind(self.optimizers(), "actor")
        if self.trainer.is_last_batch:  # an evaluation may follow before the epoch ends
            seconds = time.perf_counter() - self._update_started
            self.log("time/update", seconds, on_step=False, on_epoch=True, batch_size=1)
            self.iteration += 1

    def on_train_epoch_end(self) -> None:
        self.log("step", float(self.iteration))  # the x axis of every logged scalar

    # ------------------------------------------------------------------------------ evaluation

    def validation_step(self, batch: tuple[str, tuple[int, ...]], batch_idx: int) -> None:
        environment, seeds = batch
        started = time.perf_counter()
        self.log_dict(
            self.trainer.datamodule.evaluate(environment, seeds, self),  # pyright: ignore
            batch_size=1,
        )
        seconds = time.perf_counter() - started
        self.log("time/evaluate", seconds, reduce_fx="sum", batch_size=1)

    def test_step(self, batch: tuple[str, tuple[int, ...]], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.log("step", float(self.iteration))

    def on_test_epoch_end(self) -> None:
        self.on_validation_epoch_end()

    # ------------------------------------------------------------------------------ checkpoints

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: `vagentrl.load_policy` makes a policy of a checkpoint."""
        raise VagentError(
            "AgentModule.load_from_checkpoint has no datamodule to build the module with; "
            "vagentrl.load_policy(checkpoint) gives the policy, and trainer.fit(agent, data, "
            "ckpt_path=checkpoint) goes on with the run"
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_finite(self)
        checkpoint["iteration"] = self.iteration
        checkpoint["first_iteration"] = self.first_iteration
        checkpoint["policy"] = self.trainer.datamodule.policy_record().as_plain()  # pyright: ignore
        for name in self._as_loaded():
            del checkpoint["state_dict"][name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.trainer.state.fn == "fit":
            check_resumable(checkpoint)
        self.iteration = checkpoint["iteration"]
        self.first_iteration = checkpoint.get("first_iteration", 0)
        if "state_dict" in checkpoint:  # DeepSpeed keeps the weights to itself
            checkpoint["state_dict"] |= self._as_loaded()
            check_fits(checkpoint["state_dict"], self.state_dict())

    def _as_loaded(self) -> dict[str, Tensor]:
        """Weights that are for ever as their model's own checkpoint has them: none is saved."""
        frozen = {
            n for n, p in self.named_parameters(remove_duplicate=False) if not p.requires_grad
        }
        return {
            name: weight
            for name, weight in self.state_dict().items()
            if name.startswith("reference.") or (self.lora is not None and name in frozen)
        }
