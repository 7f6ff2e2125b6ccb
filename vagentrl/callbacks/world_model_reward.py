"""World-model rewards: a bonus for correct claims about the current and the next state."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning import LightningModule, Trainer

from vagentrl import ranks
from vagentrl.chat.endpoint import check_positive
from vagentrl.claims import Audit, ClaimFilter, JudgementLog, TemplatePenalty
from vagentrl.claims.judge import Judge
from vagentrl.claims.judgement import Judgement
from vagentrl.claims.judging import Judging, Tally, counters
from vagentrl.claims.payment import first_value, mean_values, turn_bonus
from vagentrl.errors import ConfigError, JudgeError, PartError
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.modules.run_folders import run_folder
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.workers import opening
from vagentrl.signatures import check_signatures
from vagentrl.types import Trajectory, Turn

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule

log = logging.getLogger(__name__)


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


class WorldModelReward(AgentCallback):
    """Rewards each claim about the state with ``coefficient × score`` (VAGEN).

    An observation claim is judged against the state before the reply, a prediction claim against
    the state after all actions of the reply. Only well-formed replies make claims. Judging begins
    when a turn ends, in a background thread, while other episodes continue. The reward of a claim
    is added to the turn's `bonus`; the turn's `reward` remains the environment's. The policy learns
    from both.

    What a claim earns, and why, is written down in `vagentrl.claims.payment`.

    Args:
        judge: Scores the claims. ``vagentrl_judges.exact_state.ExactState`` needs no model.
        observation_coefficient: Reward of an observation claim with a score of 1; with 0 the scores
            are only reported.
        prediction_coefficient: Reward of a prediction claim with a score of 1. Unless claims are
            rewarded `relative` to the batch, both coefficients together over the turns of an
            episode should be less than the reward for solving the task. Otherwise the agent earns
            more by not finishing the task.
        relative: Subtract the mean reward of the batch's claims from every turn. A longer episode
            then earns no more by being longer.
        skill: Pay a prediction for what it knows beyond the forecast that nothing changes, which
            the judge scores too. Where nothing changed, no prediction earns anything.
        on_failure: What happens when the judge does not answer. ``drop_score``: the claim gets no
            score, and earns the mean reward of claims of its kind in the batch.
            ``drop_trajectory``: its episode is not learned from. ``stop``: the run stops, on all
            ranks. A claim that the judge cannot read always counts as wrong instead.
        timeout_s: Seconds that a judge may take for a claim, its own queue included.
        max_failures: Share of a batch's claims that may fail before the run ends, on all ranks.
        evaluations: Judge evaluations too, to report scores under ``val/``.
        filters: Rules that a claim must pass before the judge sees it; otherwise it scores 0.
        templates: Penalises descriptions that are frequent regardless of the state; None switches
            this off.
        audit: Lets a second judge score a sample of the claims, which are then paid by it; None
            switches this off.
        journal: Writes the judgements of rank 0's episodes to ``judgements.jsonl`` in the run's
            folder; None switches this off.
    """

    def __init__(
        self,
        judge: Judge,
        observation_coefficient: float = 0.5,
        prediction_coefficient: float = 0.5,
        relative: bool = False,
        skill: bool = True,
        on_failure: Literal["drop_score", "drop_trajectory", "stop"] = "drop_score",
        timeout_s: float = 300.0,
        max_failures: float = 0.5,
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
        if not 0 <= max_failures <= 1:
            raise ConfigError(
                f"WorldModelReward.max_failures is {max_failures}; it is a share of the claims: "
                "give a number from 0 to 1"
            )
        check_positive(timeout_s=timeout_s)
        check_signatures(judge)
        self.judge = judge
        self.relative = relative
        self.skill = skill
        self.on_failure = on_failure
        self.timeout_s = timeout_s
        self.max_failures = max_failures
        self.evaluations = evaluations
        self.filters = tuple(filters)
        self.templates = templates
        self.audit = audit
        self.journal = journal
        self._judging: Judging | None = None
        self._tally = Tally()
        self._counted: dict[str, float] = {}
        self._folder: Path | None = None  # for the journal, which rank 0 writes

    # --------------------------------------------------------------------------- start and end

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.state.fn is None:  # a dry run plays no episodes
            return
        rollouts = rollouts_of(trainer)
        prompt = _check_worlds(rollouts.collector, rollouts.worlds)
        self._judging = self._open(prompt)
        self._judging.probe()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = run_folder(trainer)  # all ranks ask, in the main thread
        self._folder = folder if trainer.is_global_zero else None

    def probe(self) -> None:
        judging = self._open("")
        try:
            judging.probe()
        finally:
            judging.close()

    def _open(self, system_prompt: str) -> Judging:
        return Judging(
            self.judge, self.filters, self.audit, self.skill, self.timeout_s, system_prompt
        )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._judging is not None:
            self._judging.close()
        self._judging = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "")

    # ------------------------------------------------------------------------------- hook by hook

    def on_turn_end(self, agent: AgentModule, turn: Turn, *, training: bool) -> None:
        if training or self.evaluations:
            assert self._judging is not None
            for claim in turn.claims:
                self._judging.submit(claim, turn.claims, training=training)

    def on_episode_end(self, agent: AgentModule, trajectory: Trajectory) -> None:
        assert self._judging is not None
        if trajectory.error is None:
            self._draw_audits(trajectory)
        else:  # nothing will be learned from it
            self._judging.drop([claim for turn in trajectory.turns for claim in turn.claims])

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
        if self.journal is not None and self._folder is not None:
            for trajectory in trajectories:
                self._write(self.journal, self._folder, trajectory, batch)
        means = mean_values(judgements, self._audited_share)
        return [self._rewarded(trajectory, batch, means) for trajectory in trajectories]

    def on_report(self, agent: AgentModule, report: dict[str, float]) -> None:
        tally, self._tally = self._tally, Tally()
        report["time/judge"] = tally.waited_s
        report["time/environment"] -= tally.waited_s
        report |= self._counts(tally)

    def _counts(self, mine: Tally) -> dict[str, float]:
        """Metrics of the claims of all ranks, and of the judges' own counters since last time."""
        tally = Tally(**ranks.sum_counts(vars(mine)))
        claims = tally.judged + tally.failures + tally.unreadable + tally.filtered
        report = {
            "judge/claims": float(claims),
            "judge/failures": float(tally.failures),
            "judge/unreadable_claims": float(tally.unreadable),
        }
        if self.filters:
            report["judge/filtered"] = tally.filtered / max(claims, 1)
        if self.templates is not None:
            report["judge/penalised"] = tally.penalised / max(claims, 1)
        if self.audit is not None:
            report["judge/audited"] = float(tally.audited)
            report["judge/audit_disagreement"] = tally.disagreements / max(tally.audited, 1)
            report["judge/audit_failures"] = float(tally.audit_failures)
        counted = {f"judge/{name}": value for name, value in counters(self.judge).items()}
        if self.audit is not None:
            second = counters(self.audit.judge)
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
        tally = Tally()
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

    @property
    def _audited_share(self) -> float:
        return 1.0 if self.audit is None else self.audit.share

    def _draw_audits(self, trajectory: Trajectory) -> None:
        """Let the second judge start on the drawn claims of an episode, if it has not yet."""
        assert self._judging is not None
        episode = (trajectory.environment, trajectory.seed, trajectory.transition_seed)
        for number, turn in enumerate(trajectory.turns, trajectory.earlier_turns):
            for claim in turn.claims:
                self._judging.submit_audit(claim, turn.policy_version, *episode, number)

    def _settle(self, trajectories: Sequence[Trajectory], tally: Tally) -> _Batch:
        """Wait for the verdicts on these trajectories, and end the run if too many are missing.

        All ranks must call this together, so that a failure on one of them ends them all.
        """
        assert self._judging is not None
        for trajectory in trajectories:
            self._draw_audits(trajectory)
        claims = [claim for t in trajectories for turn in t.turns for claim in turn.claims]
        judgements, mistake = [], None
        try:
            judgements = self._judging.settle(claims, tally)
        except PartError as error:
            mistake = str(error)
        failures = [j.failure or "" for j in judgements if j.fault in ("judge", "transport")]
        self._end_if_failed(len(claims), failures, mistake)
        return _Batch.of_all(judgements)

    def _end_if_failed(self, claims: int, failures: list[str], mistake: str | None) -> None:
        """Raise on all ranks if too many claims of all ranks could not be judged."""
        everyones = ranks.gather([(claims, len(failures), (failures or [""])[0], mistake)])
        total = sum(count for count, *_ in everyones)
        failed = sum(count for _, count, *_ in everyones)
        if wrong := [each for *_, each in everyones if each is not None]:
            raise PartError(wrong[0])
        if not failed:
            return
        first = next(text for _, count, text, _ in everyones if count)
        text = f"{failed} of {total} claims could not be judged; the first: {first}"
        if self.on_failure == "stop":
            raise JudgeError(text)
        if failed > self.max_failures * total:
            raise JudgeError(
                f"{text}. That is more than max_failures ({self.max_failures:g}), so the run ends "
                "before it learns from such rewards; mend the judge, or raise max_failures"
            )
        log.warning("%s", text)

    # ------------------------------------------------------------------------------------- rewards

    def _rewarded(
        self, trajectory: Trajectory, batch: _Batch, means: dict[str, float]
    ) -> Trajectory:
        """The trajectory with the scores of its claims, and with their rewards in `bonus`."""
        turns, unknown = [], None
        for turn in trajectory.turns:
            judgements = batch.of(turn)
            unknown = unknown or next(
                (j.failure for j in judgements if first_value(j) is None), None
            )
            earned = turn_bonus(
                judgements,
                self.coefficients,
                means,
                audited_share=self._audited_share,
                relative=self.relative,
            )
            scores = {**turn.scores, **batch.scores(turn)}
            reasons = {**turn.reasons, **batch.reasons(turn)}
            bonus = turn.bonus + earned
            turns.append(replace(turn, scores=scores, reasons=reasons, bonus=bonus))
        trajectory = replace(trajectory, turns=tuple(turns))
        if unknown is not None and self.on_failure == "drop_trajectory":
            return replace(trajectory, stop="failed", error=unknown)
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
