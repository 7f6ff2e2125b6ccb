"""World-model rewards: a bonus for correct claims about the current and the next state."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning import LightningModule, Trainer

from vagentrl import ranks
from vagentrl.claims import Audit, ClaimFilter, JudgementLog, TemplatePenalty
from vagentrl.claims.background import BackgroundLoop
from vagentrl.claims.judge import Judge, Verdict
from vagentrl.claims.judgement import Judgement
from vagentrl.errors import ConfigError, JudgeError, PartError
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.ranks import run_folder
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.workers import opening
from vagentrl.signatures import check_signatures
from vagentrl.types import Claim, Trajectory, Turn

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule

log = logging.getLogger(__name__)


@dataclass
class _Tally:
    """Counts of claims since the last report, and the seconds spent waiting for judges."""

    judged: int = 0
    failures: int = 0
    filtered: int = 0
    penalised: int = 0
    audited: int = 0
    disagreements: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True)
class _Submitted:
    """A claim with its pending verdicts, or with the verdict of a filter.

    Attributes:
        claim: The claim.
        verdict: The judge's pending verdict, or the verdict of the filter that rejected the claim.
        second: The pending verdict of the audit's judge, if the claim was sampled for the audit.
    """

    claim: Claim
    verdict: Future[Verdict] | Verdict
    second: Future[Verdict] | None = None


@dataclass
class _Batch:
    """The judgements of some trajectories, by the `id` of their claims."""

    by_claim: dict[int, Judgement] = field(default_factory=dict)

    @classmethod
    def of_all(cls, judgements: Iterable[Judgement]) -> _Batch:
        return cls({id(judgement.claim): judgement for judgement in judgements})

    def of(self, turn: Turn) -> list[Judgement]:
        return [self.by_claim[id(claim)] for claim in turn.claims]

    def scores(self, turn: Turn) -> dict[str, float]:
        given = ((j.claim.kind, j.verdict) for j in self.of(turn))
        return {kind: verdict.score for kind, verdict in given if verdict is not None}

    def reasons(self, turn: Turn) -> dict[str, str]:
        """The reason of each verdict, or why there is none."""
        return {
            j.claim.kind: (j.failure or "") if j.verdict is None else j.verdict.reason
            for j in self.of(turn)
        }

    def means(self) -> dict[str, float]:
        """The mean score of each kind of claim, less penalties."""
        earned: dict[str, list[float]] = {}
        for judgement in self.by_claim.values():
            if judgement.verdict is not None:
                score = judgement.verdict.score - judgement.penalty
                earned.setdefault(judgement.claim.kind, []).append(score)
        return {kind: sum(scores) / len(scores) for kind, scores in earned.items()}


class WorldModelReward(AgentCallback):
    """Rewards each claim about the state with ``coefficient × score`` (VAGEN).

    An observation claim is judged against the state before the reply, a prediction claim against
    the state after all actions of the reply. Only well-formed replies make claims. Judging begins
    when a turn ends, in a background thread, while other episodes continue. The reward of a claim
    is added to the turn's `bonus`; the turn's `reward` remains the environment's. The policy learns
    from both.

    Args:
        judge: Scores the claims. ``vagentrl_judges.exact_state.ExactState`` needs no model.
        observation_coefficient: Reward of an observation claim with a score of 1; with 0 the scores
            are only reported.
        prediction_coefficient: Reward of a prediction claim with a score of 1. Unless claims are
            rewarded `relative` to the batch, both coefficients together over the turns of an
            episode should be less than the reward for solving the task. Otherwise the agent earns
            more by not finishing the task.
        relative: Reward a claim with ``coefficient × (score - mean score of the batch)``, where the
            claims of a malformed reply score 0. A longer episode then earns no more by being
            longer.
        on_failure: What happens when the judge fails on a claim. ``drop_score``: the claim gets no
            score, and earns the mean reward of claims of its kind in the batch.
            ``drop_trajectory``: its episode is not learned from. ``stop``: the run stops.
        evaluations: Judge evaluations too, to report scores under ``val/``.
        filters: Rules that a claim must pass before the judge sees it; otherwise it scores 0.
        templates: Penalises descriptions that are frequent and score low; None switches this off.
        audit: Lets a second judge score a sample of the claims; None switches this off.
        journal: Writes the judgements of rank 0's episodes to ``judgements.jsonl`` in the run's
            folder; None switches this off.
    """

    def __init__(
        self,
        judge: Judge,
        observation_coefficient: float = 0.5,
        prediction_coefficient: float = 0.5,
        relative: bool = False,
        on_failure: Literal["drop_score", "drop_trajectory", "stop"] = "drop_score",
        evaluations: bool = True,
        filters: Sequence[ClaimFilter] = (),
        templates: TemplatePenalty | None = None,
        audit: Audit | None = None,
        journal: JudgementLog | None = JudgementLog(),  # noqa: B008 (holds only settings)
    ) -> None:
        self.coefficients = {
            "observation": observation_coefficient,
            "prediction": prediction_coefficient,
        }
        for kind, coefficient in self.coefficients.items():
            if coefficient < 0:
                raise ConfigError(
                    f"WorldModelReward.{kind}_coefficient is {coefficient}, which would punish "
                    "correct claims; give 0 or more"
                )
        check_signatures(judge)
        self.judge = judge
        self.relative = relative
        self.on_failure = on_failure
        self.evaluations = evaluations
        self.filters = tuple(filters)
        self.templates = templates
        self.audit = audit
        self.journal = journal
        self._loop: BackgroundLoop | None = None
        self._submitted: dict[int, _Submitted] = {}
        self._tally = _Tally()
        self._counted: dict[str, float] = {}

    # --------------------------------------------------------------------------- start and end

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.state.fn is None:  # a dry run plays no episodes
            return
        rollouts = rollouts_of(trainer)
        self._system_prompt = _check_worlds(rollouts.collector, rollouts.worlds)
        self._loop = BackgroundLoop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._loop is not None:
            self._loop.close()
        self._loop = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "")

    # ------------------------------------------------------------------------------- hook by hook

    def on_turn_end(self, agent: AgentModule, turn: Turn, *, training: bool) -> None:
        if training or self.evaluations:
            for claim in turn.claims:
                self._submitted[id(claim)] = self._submit(claim, turn.claims, training)

    def on_trajectories(
        self, agent: AgentModule, trajectories: list[Trajectory]
    ) -> list[Trajectory]:
        settled = self._settle(trajectories, self._tally)
        mine = [
            (t.group_id, [j for turn in t.turns for j in settled.of(turn)]) for t in trajectories
        ]
        everyones = sorted(ranks.gather(mine), key=lambda judged: judged[0])
        judgements = [judgement for _, of_trajectory in everyones for judgement in of_trajectory]
        if self.templates is not None:
            judgements = self.templates.penalise(judgements, remember=agent.current.actor_learns)
        batch = _Batch.of_all(judgements)
        penalties = [j.penalty for t in trajectories for turn in t.turns for j in batch.of(turn)]
        self._tally.penalised += sum(penalty > 0 for penalty in penalties)
        folder = run_folder(agent.trainer)
        if self.journal is not None and agent.trainer.is_global_zero:
            for trajectory in trajectories:
                self._write(self.journal, folder, trajectory, batch)
        means = batch.means()
        return [self._rewarded(trajectory, batch, means) for trajectory in trajectories]

    def on_report(self, agent: AgentModule, report: dict[str, float]) -> None:
        tally, self._tally = self._tally, _Tally()
        report["time/judge"] = tally.waited_s
        report["time/environment"] -= tally.waited_s
        report |= self._counts(tally)

    def _counts(self, mine: _Tally) -> dict[str, float]:
        """Metrics of the claims of all ranks, and of the judges' own counters since last time."""
        tally = _Tally(**ranks.sum_counts(vars(mine)))
        claims = tally.judged + tally.failures + tally.filtered
        report = {"judge/claims": float(claims), "judge/failures": float(tally.failures)}
        if self.filters:
            report["judge/filtered"] = tally.filtered / max(claims, 1)
        if self.templates is not None:
            report["judge/penalised"] = tally.penalised / max(claims, 1)
        if self.audit is not None:
            report["judge/audited"] = float(tally.audited)
            report["judge/audit_disagreement"] = tally.disagreements / max(tally.audited, 1)
        counted = {f"judge/{name}": value for name, value in self.judge.metrics().items()}
        if self.audit is not None:
            second = self.audit.judge.metrics()
            counted |= {f"judge/audit_{name}": value for name, value in second.items()}
        counted = ranks.sum_counts(counted)
        report |= {name: value - self._counted.get(name, 0.0) for name, value in counted.items()}
        self._counted = counted
        return report

    def on_evaluation(
        self, agent: AgentModule, trajectories: list[Trajectory], report: dict[str, float]
    ) -> list[Trajectory]:
        if not self.evaluations:
            return trajectories
        tally = _Tally()
        batch = self._settle(trajectories, tally)
        report |= self._counts(tally)
        return [
            replace(
                trajectory,
                turns=tuple(
                    replace(turn, scores=batch.scores(turn), reasons=batch.reasons(turn))
                    for turn in trajectory.turns
                ),
            )
            for trajectory in trajectories
        ]

    # ------------------------------------------------------------------------------------ verdicts

    def _submit(self, claim: Claim, claims: Sequence[Claim], training: bool) -> _Submitted:
        """Filter a claim, and submit it to the judge and perhaps to the audit."""
        for rule in self.filters:
            if problem := rule.problem(claim, claims, self._system_prompt):
                return _Submitted(claim, Verdict(0.0, f"{type(rule).__name__}: {problem}"))
        assert self._loop is not None
        verdict = self._loop.submit(self.judge(claim))
        if training and self.audit is not None and self.audit.samples(claim):
            return _Submitted(claim, verdict, self._loop.submit(self.audit.judge(claim)))
        return _Submitted(claim, verdict)

    def _settle(self, trajectories: Sequence[Trajectory], tally: _Tally) -> _Batch:
        """Wait for the verdicts on these trajectories; cancel those on failed episodes."""
        started = time.perf_counter()
        submitted, self._submitted = self._submitted, {}
        wanted = [id(claim) for t in trajectories for turn in t.turns for claim in turn.claims]
        batch = _Batch({key: self._judgement(submitted.pop(key), tally) for key in wanted})
        for unused in submitted.values():
            for future in (unused.verdict, unused.second):
                if isinstance(future, Future):
                    future.cancel()
        tally.waited_s += time.perf_counter() - started
        failures = [j.failure for j in batch.by_claim.values() if j.failure is not None]
        if failures:
            text = f"{len(failures)} of {len(wanted)} claims could not be judged; the first: "
            if self.on_failure == "stop":
                raise JudgeError(text + failures[0])
            log.warning("%s%s", text, failures[0])
        return batch

    def _judgement(self, submitted: _Submitted, tally: _Tally) -> Judgement:
        """Wait for the verdicts on a claim, and count what came of them."""
        claim = submitted.claim
        if isinstance(submitted.verdict, Verdict):
            tally.filtered += 1
            return Judgement(claim, submitted.verdict, filtered=True)
        second = None
        if submitted.second is not None:
            second, problem = _outcome(submitted.second)
            if problem is not None:
                log.warning("the audit failed on a claim: %s", problem)
        verdict, failure = _outcome(submitted.verdict)
        tally.judged += verdict is not None
        tally.failures += verdict is None
        judgement = Judgement(claim, verdict, failure=failure, second=second)
        if self.audit is not None and verdict is not None and second is not None:
            tally.audited += 1
            tally.disagreements += self.audit.disagrees(judgement)
        return judgement

    # ------------------------------------------------------------------------------------- rewards

    def _rewarded(
        self, trajectory: Trajectory, batch: _Batch, means: Mapping[str, float]
    ) -> Trajectory:
        """The trajectory with the scores of its claims, and with their rewards in `bonus`."""
        turns = []
        failure = None
        for turn in trajectory.turns:
            bonus = turn.bonus
            for judgement in batch.of(turn):
                kind, verdict = judgement.claim.kind, judgement.verdict
                if verdict is None:
                    failure = failure or judgement.failure
                    earned = means.get(kind, 0.0)
                else:
                    earned = verdict.score - judgement.penalty
                bonus += self.coefficients[kind] * earned
            if self.relative:
                bonus -= sum(self.coefficients[kind] * mean for kind, mean in means.items())
            scores = {**turn.scores, **batch.scores(turn)}
            reasons = {**turn.reasons, **batch.reasons(turn)}
            turns.append(replace(turn, scores=scores, reasons=reasons, bonus=bonus))
        trajectory = replace(trajectory, turns=tuple(turns))
        if failure is not None and self.on_failure == "drop_trajectory":
            return replace(trajectory, stop="failed", error=failure)
        return trajectory

    def _write(
        self, journal: JudgementLog, folder: Path, trajectory: Trajectory, batch: _Batch
    ) -> None:
        for number, turn in enumerate(trajectory.turns):
            judgements = batch.of(turn)
            audit = self.audit
            origin = {
                "policy_version": turn.policy_version,
                "environment": trajectory.environment,
                "seed": trajectory.seed,
                "group": trajectory.group_id,
                "turn": trajectory.earlier_turns + number,
            }
            differs = [audit is not None and audit.disagrees(j) for j in judgements]
            journal.write(folder, origin, zip(judgements, differs, strict=True))

    # -------------------------------------------------------------------------------------- resume

    def state_dict(self) -> dict[str, Any]:
        return {} if self.templates is None else {"templates": self.templates.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.templates is not None and "templates" in state_dict:
            self.templates.load_state_dict(state_dict["templates"])


def _outcome(future: Future[Verdict]) -> tuple[Verdict | None, str | None]:
    """The verdict and None, or None and the judge's error."""
    try:
        return future.result(), None
    except PartError:  # it would fail on every claim
        raise
    except Exception as error:  # the boundary: a judge that fails is counted, not fatal
        return None, f"{type(error).__name__}: {error}"


def _check_worlds(collector: Collector, worlds: Sequence[str]) -> str:
    """The system prompts of the environments to train on in which claims are made.

    Raises:
        ConfigError: When no replies make claims, or there is no state to judge them against.
    """
    opened = {world: collector.pools[world].ask(opening) for world in worlds}
    claiming = {world: each for world, each in opened.items() if each[1].claims}
    if not claiming:
        formats = ", ".join(type(format).__name__ for _, format, _ in opened.values())
        raise ConfigError(
            f"WorldModelReward is set, but replies in {formats} make no claims about the state; "
            "set data.env's format to Grounding, TransitionModeling or WorldModeling, or leave the "
            "callback out"
        )
    for world, (_, _, state) in claiming.items():
        if state is None:
            raise ConfigError(
                f"WorldModelReward is set, but in environment {world!r} state() is None, so there "
                "is no truth to judge claims against; implement it, or leave the callback out"
            )
    return "\n".join(prompt for prompt, _, _ in claiming.values())
