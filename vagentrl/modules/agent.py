"""The root module: actor, critic and reference, and one step of learning."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NoReturn, cast

import torch
from lightning import LightningModule
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
from torch import Tensor, nn
from transformers import PreTrainedModel

from vagentrl import ranks
from vagentrl.advantages import AdvantageEstimator
from vagentrl.errors import ConfigError, VagentError
from vagentrl.losses import (
    Aggregation,
    PolicyLoss,
    PPOClip,
    explained_variance,
    masked_mean,
    value_loss,
)
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA
from vagentrl.modules import deepspeed, fsdp2
from vagentrl.modules.actor import ActorModule
from vagentrl.modules.callback import CallbackHooks
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
from vagentrl.modules.fsdp2 import FSDP2
from vagentrl.modules.gradients import FiniteSteps, clip_gradients, drop_gradients
from vagentrl.modules.optimizer import AdamW
from vagentrl.modules.reference import ActorWithoutAdapter, ReferenceModule
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.modules.run_folders import run_folder
from vagentrl.modules.scoring import score, score_values
from vagentrl.modules.trainer_checks import check_data, check_trainer
from vagentrl.modules.unused_weights import touch, vision_in_every_pass
from vagentrl.rollout.iteration import Iteration, Warmup
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch

log = logging.getLogger(__name__)


class AgentModule(LightningModule):
    """Trains a policy to act over turns.

    Args:
        policy: Checkpoint to start from: a folder, a hub name, or one that ships with vagentrl.
        advantage: Estimates advantages; decides whether there is a critic.
        policy_loss: The loss of each sampled token.
        critic: ``own`` gives the critic a backbone of its own, initialised from the policy's
            checkpoint; ``shared`` puts a value head on the actor's backbone.
        aggregation: How the token losses are combined into one loss.
        value_coef: Weight of the value loss.
        value_clip: How far the value loss lets a value move from the old one; None clips nothing.
        entropy_coef: Weight of the entropy bonus.
        optimizer: Learning rates and the other settings of AdamW.
        dtype: Type of the weights.
        head_dtype: Type in which the policy's language-model head computes, both in the trainer
            and in the sampler; None uses the model's type.
        gradient_checkpointing: Recompute activations in the backward pass to save memory.
        packing: Lay the rows of a pass end to end without padding, and read a prefix that several
            of them share once, in every pass in which that saves a fifth of the tokens.
        freeze_vision: Do not train the vision towers of actor and critic.
        lora: Train LoRA adapters of actor and critic instead of their full weights. The reference
            is then the actor without its adapter, and a checkpoint holds no frozen weights.
        score_batch_size: Rows in one forward pass without gradients.
        attn_implementation: How the language models and vision towers of actor, critic and
            reference compute attention, as transformers names it (``sdpa``,
            ``flash_attention_2``, …). None: as transformers chooses.
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
        head_dtype: Literal["float32", "bfloat16"] | None = None,
        gradient_checkpointing: bool = False,
        packing: bool = False,
        freeze_vision: bool = False,
        lora: LoRA | None = None,
        score_batch_size: int = 32,
        attn_implementation: str | None = None,
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
        self.head_dtype: Literal["float32", "bfloat16"] | None = head_dtype
        self.gradient_checkpointing = gradient_checkpointing
        self.packing = packing
        self.freeze_vision = freeze_vision
        self.lora = lora
        self.score_batch_size = score_batch_size
        self.attn_implementation = attn_implementation
        self.iteration = 0  # completed iterations
        self.first_iteration = 0  # where this trainer started; an earlier one may have trained it
        self.warmup = Warmup()
        self.hooks = CallbackHooks(self)
        self.needs_reference = False
        self.actor_lr_scale = 1.0  # callbacks may lower it; the schedule's rate is multiplied by it
        self._finite_steps = FiniteSteps()
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
        progress: Any = self.trainer.fit_loop.epoch_progress
        self.first_iteration = self.iteration - progress.current.processed
        if isinstance(self.trainer.strategy, DeepSpeedStrategy):
            deepspeed.prepare(self.trainer, self.trainer.strategy)

    # ------------------------------------------------------------------------------- the models

    def configure_model(self) -> None:
        banned_ids = rollouts_of(self.trainer).renderer.banned_ids
        strategy = self.trainer.strategy
        # FSDP2 sends rank 0's weights to the ranks that share them.
        meta = isinstance(strategy, FSDP2) and not self.trainer.is_global_zero
        if not hasattr(self, "actor"):
            self.build(banned_ids, meta=meta)
        elif self.needs_reference and self.reference is None:  # an earlier trainer needed none
            self.reference = self._build_reference(banned_ids, meta=meta)
        if isinstance(strategy, FSDP2):
            for module in (self.actor, self.critic, self.reference):
                if isinstance(module, ActorModule | CriticModule):
                    fsdp2.shard(module, strategy.mesh)

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
        """Load the policy's initial checkpoint."""
        return load_model(
            self.policy_name,
            dtype=getattr(torch, self.dtype_name),
            head_dtype=self.head_dtype,
            gradient_checkpointing=self.gradient_checkpointing,
            packing=self.packing,
            freeze_vision=self.freeze_vision,
            lora=self.lora,
            meta=meta,
            attn_implementation=self.attn_implementation,
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        half = half_precision(self)
        if half and not isinstance(self.trainer.strategy, DeepSpeedStrategy):
            log.warning(
                "the trained weights are %s, and trainer.strategy keeps no float32 copy of them: "
                "small steps are rounded away. Set model.dtype to float32 (and trainer.precision "
                "to bf16-mixed), or choose a DeepSpeed strategy",
                " and ".join(half),
            )
        critic = {} if self.critic is None else {"critic": self.critic}
        modules, strategy = {"actor": self.actor, **critic}, self.trainer.strategy
        if deepspeed.offloads(strategy):
            return self.optimizer_settings.build(modules, kind=deepspeed.cpu_adam)
        fused = self.optimizer_settings.is_fused(strategy.root_device, self.trainer.precision)
        return self.optimizer_settings.build(modules, fused=fused)

    @property
    def current(self) -> Iteration:
        """The current iteration: whether the actor learns in it, and from which episodes."""
        return self.warmup.iteration(self.iteration)

    @property
    def total_iterations(self) -> int:
        """The number of completed iterations once the trainer has run its ``max_epochs``."""
        return self.first_iteration + (self.trainer.max_epochs or 0)

    def record(self, name: str, value: float) -> None:
        """Add a number to what is logged about this iteration's collection."""
        rollouts_of(self.trainer).report[name] = value

    # --------------------------------------------------------------------------------- scoring

    @torch.no_grad()
    def assess(
        self, rollout: RolloutBatch, earlier: Scores | None = None
    ) -> tuple[RolloutBatch, Scores, Credit]:
        """Score a collected batch, let callbacks adjust its rewards, and assign credit.

        Args:
            rollout: The batch, with the environment's rewards.
            earlier: Scores of the same batch from an earlier round of a critic warm-up. The actor
                has not changed since, so only the values are computed again.
        """
        # Scoring in the precision of training makes the first probability ratio exactly 1.
        with self.trainer.precision_plugin.forward_context():
            if earlier is None:
                scores = score(self, rollout)
            else:
                scores = replace(earlier, values=score_values(self, rollout))
        rollout = self.hooks.on_scores(rollout, scores)
        credit = self.advantage(rollout, scores)
        if (importance := self.policy_loss.importance) is not None:
            counts = self.aggregation(rollout.action_mask, rollout.turn_ids, rollout.trajectory_ids)
            scores = replace(scores, importance=importance.weights(rollout, scores, counts))
            for name, value in importance.metrics(rollout, scores).items():
                self.record(f"train/{name}", float(value))
        if scores.values is not None and credit.returns is not None:
            explained = explained_variance(scores.values, credit.returns, rollout.action_mask)
            self.record("rollout/explained_variance", explained)
        return rollout, scores, credit

    # -------------------------------------------------------------------------------- learning

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        return batch.to(device) if isinstance(batch, TrainBatch) else batch

    @property
    def _deepspeed(self) -> Any | None:
        """DeepSpeed's engine if the strategy is DeepSpeed, else None."""
        return deepspeed.engine_of(self.trainer)

    def on_train_batch_start(self, batch: TrainBatch, batch_idx: int) -> None:
        if self._deepspeed is not None:  # its setup precedes the number of accumulated batches
            last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
            self._deepspeed.set_gradient_accumulation_boundary(last)

    def training_step(self, batch: TrainBatch, batch_idx: int) -> Tensor:
        """Loss of a micro-batch, the sum of its logged terms."""
        # Lightning averages over accumulated micro-batches and DDP over ranks, but the weights are
        # made for sums. The mean of what is logged is then the mean loss of a minibatch.
        scale = self.trainer.accumulate_grad_batches * ranks.world_size()
        with vision_in_every_pass(self._backbones() if self._deepspeed else ()):
            terms = {name: term * scale for name, term in self.loss_terms(batch).items()}
        loss = torch.stack([*terms.values()]).sum()
        self._report({**terms, "loss": loss}, weight=1)
        if isinstance(self.trainer.strategy, DDPStrategy):
            loss = touch(loss, self._stepped())
        return loss

    def loss_terms(self, batch: TrainBatch) -> dict[str, Tensor]:
        """The terms of a micro-batch's loss, by the names under which they are logged.

        Summed over the micro-batches of all ranks, each is the minibatch's. The coefficients are
        in them, and so the entropy bonus is negative.
        """
        terms: dict[str, Tensor] = {}
        states = None
        if self.current.actor_learns:
            states = self.actor.states(batch.rollout)
            terms |= self._policy_terms(states, batch)
        if self.critic is not None:
            terms["value_loss"] = self.value_coef * self._value_loss(states, batch)
        return terms

    def _backbones(self) -> Iterator[nn.Module]:
        yield self.actor.policy.base_model
        if self.critic is not None and self.critic.backbone is not None:
            yield self.critic.backbone

    def _stepped(self) -> Iterator[Tensor]:
        """The weights that need a gradient of every micro-batch, if only 0.

        DDP needs one for each weight, even where a loss is skipped or no row shows an image.
        DeepSpeed needs gradients for the same weights on every rank, and steps all that have one.
        """
        resting = (
            self.actor.parameters() if self._deepspeed and not self.current.actor_learns else ()
        )
        left_out = set(map(id, resting))
        return (p for p in self.parameters() if p.requires_grad and id(p) not in left_out)

    def _policy_terms(self, states: Tensor, batch: TrainBatch) -> dict[str, Tensor]:
        logprobs, entropy = self.actor.logprobs(states, batch.rollout, with_entropy=True)
        assert entropy is not None
        with torch.no_grad():
            metrics = self.policy_loss.metrics(logprobs, batch)
            metrics["entropy"] = masked_mean(entropy, batch.rollout.action_mask)
        tokens = int((batch.weights > 0).sum())  # 0 in a row that only fills up a minibatch
        self._report(metrics, weight=tokens)
        per_token = {
            "policy_loss": self.policy_loss(logprobs, batch),
            "entropy_bonus": -self.entropy_coef * entropy,
        } | self.hooks.policy_loss_terms(batch, logprobs)
        return {name: (batch.weights * term).sum() for name, term in per_token.items()}

    def _value_loss(self, states: Tensor | None, batch: TrainBatch) -> Tensor:
        assert self.critic is not None
        if self.critic.backbone is None and states is None:  # warm-up of a shared critic
            with torch.no_grad():
                states = self.actor.states(batch.rollout)
        values = self.critic(batch.rollout, states)
        old, returns = batch.scores.values, batch.credit.returns
        assert old is not None and returns is not None
        return (batch.weights * value_loss(values, old, returns, clip=self.value_clip)).sum()

    def _report(self, scalars: dict[str, Tensor], weight: int) -> None:
        """Log the mean of scalars over the micro-batches of an iteration, each with a weight."""
        self.log_dict(
            {f"train/{name}": scalar.detach() for name, scalar in scalars.items()},
            on_step=False,
            on_epoch=True,
            batch_size=weight,
            sync_dist=True,
        )

    def on_train_epoch_start(self) -> None:
        self._set_learning_rates()
        self.log_dict(rollouts_of(self.trainer).report, on_epoch=True, batch_size=1)
        self._update_started = time.perf_counter()

    def _set_learning_rates(self) -> None:
        rates = self.optimizer_settings.rates(
            self.iteration, self.warmup.rounds, self.total_iterations
        )
        rates["actor"] *= self.actor_lr_scale
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
        """Clip the gradients of actor and critic separately.

        With one common norm, a large error of the critic would shrink the actor's step. A step
        whose gradient is not finite is skipped.
        """
        if self._deepspeed is not None:  # it clips, with one norm, and skips steps by itself
            return
        limit = gradient_clip_val or float("inf")
        if not self.current.actor_learns:
            # With the zero gradients that DDP needs, AdamW would still step: its step count and
            # its moments would change.
            for weight in self.actor.parameters():
                weight.grad = None
        if not self._are_finite(clip_gradients(optimizer, limit)):
            drop_gradients(optimizer)

    def _are_finite(self, norms: dict[str, float]) -> bool:
        """Whether all gradient norms are finite, so that the step can be taken; logs them."""
        finite = self._finite_steps.check(norms, self.iteration)
        note = partial(self.log, on_step=False, on_epoch=True, batch_size=1)
        note("optim/skipped_steps", float(not finite), reduce_fx="sum")
        if finite:
            for name, norm in norms.items():
                note(f"optim/{name}", norm)
        return finite

    def on_train_batch_end(self, outputs: Any, batch: TrainBatch | None, batch_idx: int) -> None:
        engine = self._deepspeed
        if engine is not None and batch is not None and engine.is_gradient_accumulation_boundary():
            # DeepSpeed has already skipped the step if the norm is not finite; this logs it.
            self._are_finite({"grad_norm": float(engine.get_global_grad_norm())})
            if not self.current.actor_learns:
                deepspeed.rewind(self.optimizers(), "actor")
        if self.trainer.is_last_batch:  # an evaluation may follow before the epoch ends
            seconds = time.perf_counter() - self._update_started
            self.log("time/update", seconds, on_step=False, on_epoch=True, batch_size=1)
            self.iteration += 1

    def on_train_epoch_end(self) -> None:
        self.log("step", float(self.iteration))  # the x axis of every logged scalar

    # ------------------------------------------------------------------------------ evaluation

    def validation_step(self, batch: tuple[str, tuple[int, ...]], batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: tuple[str, tuple[int, ...]], batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def _evaluate(self, batch: tuple[str, tuple[int, ...]], prefix: str) -> None:
        environment, seeds = batch
        started = time.perf_counter()
        report = rollouts_of(self.trainer).evaluate(environment, seeds, self, prefix)
        self.log_dict(report, batch_size=1)
        seconds = time.perf_counter() - started
        self.log("time/evaluate", seconds, reduce_fx="sum", batch_size=1)

    def on_validation_epoch_end(self) -> None:
        rollouts_of(self.trainer).source.end_evaluation()
        self.log("step", float(self.iteration))

    def on_test_epoch_end(self) -> None:
        self.on_validation_epoch_end()

    # ------------------------------------------------------------------------------ checkpoints

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Always raises: use `vagentrl.load_policy` to get the policy from a checkpoint."""
        raise VagentError(
            "AgentModule.load_from_checkpoint has no datamodule to build the module with; "
            "vagentrl.load_policy(checkpoint) returns the policy, and trainer.fit(agent, data, "
            "ckpt_path=checkpoint) resumes the run"
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_finite(self)
        checkpoint["iteration"] = self.iteration
        checkpoint["first_iteration"] = self.first_iteration
        checkpoint["run_folder"] = str(run_folder(self.trainer))
        checkpoint["policy"] = self.trainer.datamodule.policy_record().as_plain()  # pyright: ignore
        for name in self.frozen_names():
            del checkpoint["state_dict"][name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.trainer.state.fn == "fit":
            check_resumable(checkpoint)
        self.iteration = checkpoint["iteration"]
        self.first_iteration = checkpoint.get("first_iteration", 0)
        if "state_dict" in checkpoint:  # DeepSpeed and FSDP2 store the weights in other files
            own = self.state_dict()
            checkpoint["state_dict"] |= {name: own[name] for name in self.frozen_names()}
            check_fits(checkpoint["state_dict"], own)

    def frozen_names(self) -> set[str]:
        """Names of frozen weights: reloaded from the base checkpoint, so left out of ours.

        These are the reference, and with LoRA the weights below the adapters.
        """
        frozen = {
            n for n, p in self.named_parameters(remove_duplicate=False) if not p.requires_grad
        }
        return {
            name
            for name in self.state_dict()
            if name.startswith("reference.") or (self.lora is not None and name in frozen)
        }


def agent_of(module: LightningModule | None) -> AgentModule:
    """The agent that a trainer trains or evaluates.

    Args:
        module: The trainer's LightningModule.

    Raises:
        ConfigError: When the module is no `AgentModule`.
    """
    if not isinstance(module, AgentModule):
        raise ConfigError(
            f"the trainer was given a {type(module).__name__}, but a RolloutDataModule plays the "
            "episodes of an agent; call trainer.fit(AgentModule(...), datamodule=data)"
        )
    return module
