"""Watches a run for the echo trap, and warns or acts before it collapses."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy

from vagentrl import ranks
from vagentrl.callbacks.echo_trap.detector import Detector, Trouble
from vagentrl.callbacks.echo_trap.groups import group_report, mean_by_groups
from vagentrl.callbacks.echo_trap.information import cross_score, first_turns, mutual_information
from vagentrl.callbacks.echo_trap.replies import reply_report, sample_replies, thought_report
from vagentrl.callbacks.echo_trap.signs import KINDS
from vagentrl.callbacks.echo_trap.snapshot import Snapshot
from vagentrl.callbacks.echo_trap.vitals import UNKNOWN, Estimate, Vitals
from vagentrl.errors import ConfigError
from vagentrl.modules.agent import AgentModule, agent_of
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.checks import check_choice, check_least
from vagentrl.modules.fsdp2 import FSDP2
from vagentrl.modules.rollouts import Rollouts, rollouts_of
from vagentrl.rollout.report import Z_95

if TYPE_CHECKING:
    from vagentrl.types import TrainBatch, Trajectory

log = logging.getLogger(__name__)

_LOGGED_ELSEWHERE = {
    "group_std": "rollout/group_std",
    "malformed_replies": "rollout/malformed_replies",
    "entropy": "train/entropy",
    "approximate_kl": "train/approximate_kl",
}
"""Numbers that every run logs and the detector reads, by the detector's name."""
_LOWERING = ("lower_lr", "roll_back")
_NORMS = ("optim/actor_grad_norm", "optim/grad_norm")
"""Where the gradient norm is logged; with DeepSpeed it is that of actor and critic together."""


class EchoTrapMonitor(AgentCallback):
    """Warns of the echo trap: multi-turn RL that collapses into repeated replies.

    RAGEN (arXiv 2504.20073) saw it in the spread of returns within groups, in the entropy and in
    the gradient norm before the reward fell. This callback follows these and the variety of
    replies, compares them with the run's own numbers from when its success last rose, and warns in
    words as soon as several kinds of trouble show together. Its metrics are logged under
    ``echo_trap/``.

    Args:
        action: What to do about an alarm besides warning: nothing more (``warn``), ``stop`` the
            run, ``lower_lr`` of the actor for the rest of the run, or ``roll_back`` to the weights
            of the last iteration without any sign of trouble and lower the rate. Rolling back
            keeps a copy of the trained weights and of the optimizer's state in main memory.
        lr_factor: What each alarm multiplies the actor's learning rate by, with ``lower_lr`` and
            ``roll_back``.
        patience: Iterations in a row in which the troubles must show before there is an alarm.
        evidence: How much evidence makes an alarm. Weak signs count 1 and strong ones 2; there must
            always be signs of two kinds of trouble. 2 warns earlier and more often in vain.
        replies: Replies of an iteration whose variety is measured at most.
        pairs: Pairs of them that are compared.
        cross_score_every: Every so many iterations, score replies under other prompts to estimate
            the mutual information of prompts and replies (RAGEN-2); 0 never does.
        cross_score_prompts: Prompts, and replies, in such an estimate: this number squared is the
            number of rows that the actor scores.
    """

    def __init__(
        self,
        action: Literal["warn", "stop", "lower_lr", "roll_back"] = "warn",
        lr_factor: float = 0.3,
        patience: int = 2,
        evidence: int = 3,
        replies: int = 256,
        pairs: int = 512,
        cross_score_every: int = 0,
        cross_score_prompts: int = 8,
    ) -> None:
        check_choice("EchoTrapMonitor.action", action, ("warn", "stop", "lower_lr", "roll_back"))
        if not 0 < lr_factor < 1:
            raise ConfigError(
                f"EchoTrapMonitor.lr_factor is {lr_factor}; give a share above 0 and below 1"
            )
        owner = "EchoTrapMonitor"
        check_least(owner, 0, cross_score_every=cross_score_every)
        check_least(owner, 1, patience=patience, pairs=pairs)
        prompts = cross_score_prompts
        check_least(owner, 2, evidence=evidence, replies=replies, cross_score_prompts=prompts)
        self.action = action
        self.lr_factor = lr_factor
        self.replies = replies
        self.pairs = pairs
        self.cross_score_every = cross_score_every
        self.cross_score_prompts = cross_score_prompts
        self.patience = patience
        self.evidence = evidence
        self._forget()
        self._measured: dict[str, float] | None = None  # of this iteration; None: do not judge it
        self._held_out = UNKNOWN  # since the last judgement
        self._healthy: Snapshot | None = None
        self._updated = False  # whether the actor took a step in this iteration

    def _forget(self) -> None:
        self.detector = Detector(self.patience, self.evidence)
        self._lr_scale = 1.0
        self._seen = 0  # the last iteration that was judged

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent = agent_of(pl_module)
        if agent.iteration < self._seen:  # another run, with the callback of an earlier one
            self._forget()
        agent.actor_lr_scale = self._lr_scale  # a resumed run's may be lower
        if self.action == "roll_back":
            if isinstance(trainer.strategy, DeepSpeedStrategy | FSDP2):
                raise ConfigError(
                    "EchoTrapMonitor.action is roll_back, which cannot put back what "
                    f"{type(trainer.strategy).__name__} divides among processes; "
                    "choose lower_lr or stop, or another strategy"
                )
            self._healthy = Snapshot(agent)

    # -------------------------------------------------------------------------------- measuring

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._held_out = _success({k: float(v) for k, v in trainer.callback_metrics.items()}, "val")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent, data = agent_of(pl_module), rollouts_of(trainer)
        self._measured, self._updated = None, False
        played = self._played(trainer)
        if not agent.current.actor_learns or not played:
            return  # in a critic warm-up the same episodes serve several iterations
        self._measured = self._measure(agent, data, played)
        for name, value in self._measured.items():
            agent.record(f"echo_trap/{name}", value)

    @staticmethod
    def _played(trainer: Trainer) -> list[Trajectory]:
        """The iteration's episodes of all ranks that did not fail."""
        return [each for each in rollouts_of(trainer).trajectories if each.error is None]

    def _measure(
        self, agent: AgentModule, data: Rollouts, played: Sequence[Trajectory]
    ) -> dict[str, float]:
        seed = agent.iteration
        said = sample_replies(played, self.replies, seed)
        report = reply_report(said, self.pairs, seed)
        report |= thought_report(turn.reply for each in played for turn in each.turns)
        if data.turns is None:  # persistent environments have no groups from one state
            report |= group_report(played)
        report["learned_return"] = sum(each.learned_reward for each in played) / len(played)
        if self.cross_score_every and agent.iteration % self.cross_score_every == 0:
            started = time.perf_counter()
            context = data.collector.context_length
            turns = first_turns(played, self.cross_score_prompts, context, seed)
            if len(turns) > 1:
                report["mutual_information"] = mutual_information(cross_score(agent, turns, data))
            agent.record("time/cross_score", time.perf_counter() - started)
        return report

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: TrainBatch | None,
        batch_idx: int,
    ) -> None:
        self._updated = self._updated or batch is not None

    # --------------------------------------------------------------------------------- judging

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent = agent_of(pl_module)
        if self._measured is None or agent.iteration <= self._seen:
            return
        self._seen = agent.iteration
        # The ranks agree on nearly all numbers, but they must agree on what follows from them.
        vitals = ranks.gather([self._vitals(trainer, agent, self._measured)])[0]
        verdict = self.detector.observe(vitals)
        showing = {trouble.kind for trouble in verdict.troubles}
        logged = {kind: float(kind in showing) for kind in KINDS} | {"alarm": float(verdict.alarm)}
        if not math.isnan(spike := self.detector.spike()):
            logged["gradient_spike"] = spike
        pl_module.log_dict({f"echo_trap/{k}": v for k, v in logged.items()}, batch_size=1)
        if verdict.news:
            self._warn(agent.iteration, verdict.news)
        if verdict.begins:
            self._act(trainer, agent)
        elif self.action == "roll_back" and not verdict.troubles:
            self._healthy = Snapshot(agent)

    def _warn(self, iteration: int, news: Sequence[Trouble]) -> None:
        found = "; ".join(
            f"{KINDS[each.kind]} ({', '.join(each.reasons)}; since iteration {each.since})"
            for each in news
        )
        log.warning(
            "iteration %d: the run may be collapsing into the echo trap: %s. The numbers are "
            "compared with those of iteration %d, since when the success has not risen. A lower "
            "learning rate, a larger KL penalty or a group filter may help; go on from a "
            "checkpoint of about that iteration",
            iteration,
            found,
            self.detector.base_iteration,
        )

    def _act(self, trainer: Trainer, agent: AgentModule) -> None:
        if self.action == "stop":
            log.warning("EchoTrapMonitor stops the run after iteration %d", agent.iteration)
            trainer.should_stop = True
        if self.action == "roll_back":
            assert self._healthy is not None
            self._healthy.restore(agent)
            self.detector.forget_recent()
            log.warning(
                "EchoTrapMonitor goes back to the weights after iteration %d",
                self._healthy.iteration,
            )
        if self.action in _LOWERING:
            self._lr_scale *= self.lr_factor
            agent.actor_lr_scale = self._lr_scale
            log.warning(
                "EchoTrapMonitor lowers the actor's learning rate, from the next iteration on to "
                "%.3g of what the schedule says",
                self._lr_scale,
            )

    def _vitals(self, trainer: Trainer, agent: AgentModule, measured: dict[str, float]) -> Vitals:
        report, played = rollouts_of(trainer).report, self._played(trainer)
        metrics: dict[str, float] = {name: float(v) for name, v in report.items()}
        if self._updated:  # else these are still an earlier iteration's
            metrics |= {name: float(value) for name, value in trainer.callback_metrics.items()}
        numbers = dict(measured)
        for name, logged in _LOGGED_ELSEWHERE.items():
            numbers[name] = metrics.get(logged, math.nan)
        numbers["gradient_norm"] = next((metrics[n] for n in _NORMS if n in metrics), math.nan)
        held_out, self._held_out = self._held_out, UNKNOWN
        reward, error = mean_by_groups(played, lambda t: t.earlier_reward + t.total_reward)
        return Vitals(
            agent.iteration,
            success=_success(metrics, "rollout"),
            reward=Estimate(metrics.get("rollout/return", reward), error),
            groups=len({each.group_id for each in played}),
            numbers=numbers,
            held_out=held_out,
            bonus=mean_by_groups(played, lambda t: t.learned_reward - t.total_reward),
        )

    # ----------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        return {
            "seen": self._seen,
            "lr_scale": self._lr_scale,
            "detector": self.detector.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seen = state_dict["seen"]
        if self.action in _LOWERING:  # with other actions the configuration sets the rate
            self._lr_scale = state_dict["lr_scale"]
        self.detector.load_state_dict(state_dict["detector"])


def _success(metrics: Mapping[str, float], stage: str) -> Estimate:
    """The success rate of a stage, and its standard error by the confidence interval."""
    rate, low, high = (
        metrics.get(f"{stage}/success_rate{end}", math.nan) for end in ("", "_low", "_high")
    )
    return Estimate(rate, (high - low) / (2 * Z_95))
