import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import runs, toy
from tests.claims_toy import (
    HONEST,
    ClaimsCountdown,
    ExactJudge,
    Script,
    by_turn,
    claim_reply,
    fit,
    prepare,
)
from vagentrl.callbacks import WorldModelReward
from vagentrl.callbacks.trajectory_pictures import caption
from vagentrl.claims import Audit, JudgementLog, Length, TemplatePenalty
from vagentrl.claims.judge import Claim, Verdict
from vagentrl.claims.judging import Judging
from vagentrl.cli.trainer import VagentCLI
from vagentrl.engines.scripted import ScriptedEngine
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.modules.agent import AgentModule
from vagentrl.types import Reply, RolloutBatch, StepResult, Trajectory

WRONG = claim_reply(9, 8, "wait")


def scalars(run: VagentCLI, name: str) -> list[float]:
    return [event.value for event in runs.events(run).Scalars(name)]


def reward(judge: Any = None, **settings: Any) -> WorldModelReward:
    return WorldModelReward(judge or ExactJudge(), **{"journal": None, "skill": False, **settings})


def test_claims_are_judged_against_the_state_before_and_after(run_dir: Path):
    judge = ExactJudge()
    fit([claim_reply(3, 2), WRONG], reward(judge), "--data.groups=1", "--data.group_size=1")
    assert [(claim.kind, claim.text, claim.truth, claim.rubric) for claim in judge.asked] == [
        ("observation", "3 are left", "3 are left", "the number counts"),
        ("prediction", "2 are left", "2 are left", "the number counts"),
        ("observation", "9 are left", "2 are left", "the number counts"),
        ("prediction", "8 are left", "2 are left", "the number counts"),  # it waited
        ("observation", "3 are left", "2 are left", "the number counts"),
        ("prediction", "2 are left", "1 are left", "the number counts"),
    ]


def test_what_claims_earn_is_learned_from_and_the_return_stays_the_tasks(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    batches: list[RolloutBatch] = []
    script = [claim_reply(3, 2), claim_reply(2, 8), claim_reply(9, 0)]
    run = prepare(script, reward(observation_coefficient=0.5, prediction_coefficient=0.25))
    assess = run.model.assess
    monkeypatch.setattr(
        run.model, "assess", lambda batch, *rest: batches.append(batch) or assess(batch, *rest)
    )
    run.trainer.fit(run.model, run.datamodule)
    trajectory = run.datamodule.trajectories[0]
    assert [turn.scores for turn in trajectory.turns] == [
        {"observation": 1.0, "prediction": 1.0},
        {"observation": 1.0, "prediction": 0.0},
        {"observation": 0.0, "prediction": 1.0},
    ]
    assert [[*turn.reasons] for turn in trajectory.turns] == [["observation", "prediction"]] * 3
    assert [turn.bonus for turn in trajectory.turns] == [0.75, 0.5, 0.25]
    assert [turn.reward for turn in trajectory.turns] == [-0.25, -0.25, 1.0]
    assert (trajectory.total_reward, trajectory.learned_reward) == (0.5, 2.0)
    seen = batches[0].rewards[0]
    assert seen[seen != 0].tolist() == [0.5, 0.25, 1.25]
    assert scalars(run, "rollout/return") == [0.5]
    assert scalars(run, "rollout/observation_score") == [pytest.approx(2 / 3)]
    assert scalars(run, "rollout/prediction_right") == [pytest.approx(2 / 3)]
    assert scalars(run, "judge/claims") == [4 * 6]
    assert scalars(run, "judge/failures") == [0]


def test_what_claims_earn_can_be_relative_to_the_batch(run_dir: Path):
    # observations 1 and 1 of 2, predictions 1 and 0; the third reply is malformed
    script = [claim_reply(3, 2), claim_reply(2, 8), "what?"]
    run = fit(script, reward(prediction_coefficient=1.0, relative=True))
    turns = run.datamodule.trajectories[0].turns
    # 0.5 × (1 - 1) + 1 × (1 - 0.5), then with a prediction of 0, then -0.5 × 1 - 1 × 0.5
    assert [turn.bonus for turn in turns] == [0.5, -0.5, -1.0]


def test_a_malformed_reply_claims_nothing(run_dir: Path):
    judge = ExactJudge()
    cut = claim_reply(3, 2).removesuffix("</answer>")
    run = fit([cut, HONEST[0], HONEST[1]], reward(judge))
    turns = run.datamodule.trajectories[0].turns
    assert [turn.bonus for turn in turns] == [0.0, 1.0, 1.0]
    assert (turns[0].claims, turns[0].scores) == ((), {})
    assert len(judge.asked) == 4 * 4


def test_judging_begins_while_others_are_still_asked(run_dir: Path):
    judged, waited = threading.Event(), []

    class Signals(ExactJudge):
        async def judge(self, claim: Claim) -> Verdict:
            judged.set()
            return await super().judge(claim)

    def line(session: int, turn: int) -> str:
        # the last episode's second reply is held back until a claim of some first turn is judged
        if (session, turn) == (3, 1):
            waited.append(judged.wait(10))
        return HONEST[0]

    fit(by_turn(line), reward(Signals()))
    assert waited == [True]


def test_a_claim_without_a_verdict_earns_the_mean_of_its_kind(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    # right, wrong, and one that nobody can judge: (1 + 0) / 2
    script = [claim_reply(3, 2), claim_reply(9, 1), claim_reply("?", 0)]
    run = fit(script, reward(ExactJudge("?"), prediction_coefficient=0.0))
    turns = run.datamodule.trajectories[0].turns
    assert [turn.bonus for turn in turns] == [0.5, 0.0, 0.25]
    assert turns[2].scores == {"prediction": 1.0}
    assert scalars(run, "judge/failures") == [4]
    assert scalars(run, "rollout/observation_score") == [0.5]
    assert "4 of 24 claims could not be judged; the first: JudgeError: no verdict" in caplog.text


def failing_once() -> Script:
    """One observation, in the first turn of the second episode, cannot be judged."""

    def line(session: int, turn: int) -> str:
        return claim_reply("?", 2) if (session, turn) == (1, 0) else HONEST[turn]

    return by_turn(line)


def test_an_episode_without_a_verdict_can_be_left_out(run_dir: Path):
    run = fit(failing_once(), reward(ExactJudge("?"), on_failure="drop_trajectory"))
    failed = [trajectory for trajectory in run.datamodule.trajectories if trajectory.error]
    assert [t.error for t in failed] == ["JudgeError: no verdict on '? are left'"]
    assert scalars(run, "rollout/failed") == [0.25]
    assert scalars(run, "rollout/episodes") == [4]


def test_a_claim_without_a_verdict_can_stop_the_run(run_dir: Path):
    with pytest.raises(JudgeError, match=r"1 of 24 claims could not be judged; the first: Judge"):
        fit(failing_once(), reward(ExactJudge("?"), on_failure="stop"))
    assert not [thread for thread in threading.enumerate() if thread.name == "judge"]


def test_a_mistake_in_the_judge_is_a_failure_that_is_named(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    class Broken(ExactJudge):
        async def judge(self, claim: Claim) -> Verdict:
            if claim.kind == "prediction":
                raise ZeroDivisionError("a mistake in the judge")
            return await super().judge(claim)

    run = fit(HONEST, reward(Broken()))
    assert scalars(run, "judge/failures") == [12]
    assert "the first: ZeroDivisionError: a mistake in the judge" in caplog.text
    reasons = run.datamodule.trajectories[0].turns[0].reasons
    assert reasons["prediction"] == "ZeroDivisionError: a mistake in the judge"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("format=none", "replies in NoThink make no claims about the state"),
        ("hides_state=true", r"state\(\) is None, so there is no truth"),
    ],
)
def test_an_environment_that_cannot_be_judged_is_refused_at_once(
    setting: str, message: str, run_dir: Path
):
    with pytest.raises(ConfigError, match=message):
        fit(HONEST, reward(), f"--data.env.init_args.{setting}")


def test_one_kind_of_claim_is_enough(run_dir: Path):
    script = ["<think><observation>3 are left</observation></think><answer>go</answer>"]
    run = fit(script, reward(), "--data.env.init_args.format=observation")
    turns = run.datamodule.trajectories[0].turns
    assert [turn.scores for turn in turns] == [{"observation": n} for n in (1, 0, 0)]


def test_evaluations_show_the_scores_and_earn_nothing(run_dir: Path):
    judge = ExactJudge()
    run = fit(HONEST, reward(judge), "--trainer.limit_val_batches=1.0")
    assert scalars(run, "val/observation_score") == [1.0, 1.0]
    assert scalars(run, "val/prediction_right") == [1.0, 1.0]
    assert all(turn.bonus == 0 for turn in run.datamodule.evaluated["train"][0].turns)
    judge = ExactJudge()
    run = fit(HONEST, reward(judge, evaluations=False), "--trainer.limit_val_batches=1.0")
    assert "val/observation_score" not in run.trainer.callback_metrics
    assert len(judge.asked) == 4 * 6  # those of training


def test_what_a_judge_counts_is_logged_by_iteration(run_dir: Path):
    run = fit(HONEST, reward(), "--trainer.max_epochs=3")
    assert scalars(run, "judge/asked") == [24, 24, 24]


def test_evaluations_have_counts_of_their_own(run_dir: Path):
    validated = ("--trainer.limit_val_batches=1.0", "--data.val_episodes=2")
    run = fit(failing_once(), reward(ExactJudge("?")), *validated)
    # two evaluations of two episodes; the sessions of an evaluation count on from those before
    assert scalars(run, "val/judge/claims") == [12, 12]
    assert scalars(run, "val/judge/asked") == [12, 12]
    assert scalars(run, "judge/asked") == [24]
    assert sum(scalars(run, "val/judge/failures")) + sum(scalars(run, "judge/failures")) == 1


@pytest.mark.parametrize(
    "settings",
    [
        ("--data.lockstep=true",),
        ("--data.turns=2", "--data.context=Window", "--data.context.turns=1"),
        runs.AHEAD,
    ],
    ids=["lockstep", "turns", "staleness"],
)  # fmt: skip
def test_every_way_of_playing_is_judged(settings: tuple[str, ...], run_dir: Path):
    run = fit(HONEST, reward(), "--trainer.max_epochs=2", *settings)
    turns = [turn for t in run.datamodule.trajectories for turn in t.turns]
    assert turns and all(turn.scores.keys() == {"observation", "prediction"} for turn in turns)
    assert all(turn.bonus == sum(turn.scores.values()) / 2 for turn in turns)
    assert scalars(run, "judge/claims") == [2 * len(turns)] * 2
    if "--data.turns=2" not in settings:  # there the script starts again where an episode goes on
        assert scalars(run, "rollout/observation_right") == [1, 1]


class Breaking(ClaimsCountdown):
    """Fails in the second turn of some episodes."""

    def step(self, reply: Reply) -> StepResult:
        if self.turns == 1 and self.luck % 3 == 0:
            raise RuntimeError("the pipe burst")
        return super().step(reply)


def test_claims_of_several_batches_in_play_are_judged_each_with_its_own(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    callback = reward()
    opened: list[Judging] = []
    played: list[list[Trajectory]] = []
    make, breaking = callback._open, "--data.env=tests.callbacks.test_world_model_reward.Breaking"
    monkeypatch.setattr(callback, "_open", lambda prompt: opened.append(make(prompt)) or opened[-1])
    ahead = (*runs.AHEAD, "--data.staleness=2", "--trainer.max_epochs=4", "--data.groups=8")
    run = prepare(HONEST, callback, *ahead, breaking)
    uneven = lambda request: 0.02 * (request.session % 5)  # noqa: E731
    run.datamodule.engine = ScriptedEngine(HONEST, toy.encode_reply, delay_s=uneven)
    collect = run.datamodule._collect

    def watched(agent: AgentModule) -> list[Trajectory]:
        kept = collect(agent)
        played.append(run.datamodule.trajectories)
        return kept

    monkeypatch.setattr(run.datamodule, "_collect", watched)
    run.trainer.fit(run.model, run.datamodule)
    judged = []
    for trajectories in played:
        assert any(trajectory.error is not None for trajectory in trajectories)
        turns = [turn for t in trajectories if t.error is None for turn in t.turns]
        assert all(list(turn.scores.values()) == [1.0, 1.0] for turn in turns)
        judged.append(2 * len(turns))
    assert scalars(run, "judge/claims") == judged
    assert not opened[-1]._submitted  # those of failed episodes are forgotten


def test_groups_are_chosen_by_what_is_learned_from(run_dir: Path):
    # every episode fares alike, but in the second group one member sees wrongly
    right = claim_reply(3, 3, "wait")
    script = lambda request: WRONG if request.session % 4 == 3 else right  # noqa: E731
    dynamic = ("--data.filter=DynamicSampling", "--data.filter.rounds=2")
    run = fit(script, reward(), *dynamic)
    assert scalars(run, "judge/claims") == [2 * 24]  # both rounds were judged
    assert scalars(run, "rollout/kept_groups") == [0.5]


def test_a_warm_up_judges_its_episodes_once(run_dir: Path):
    judge = ExactJudge()
    warm = ("--trainer.callbacks=vagentrl.callbacks.CriticWarmup", "--trainer.callbacks.rounds=2")
    fit(HONEST, reward(judge), *warm, "--trainer.max_epochs=3")
    assert len(judge.asked) == 2 * 24  # for two rounds together, and for the third iteration


def test_nothing_is_left_behind(run_dir: Path):
    callback = reward()
    run = fit(HONEST, callback)
    assert not [thread for thread in threading.enumerate() if thread.name == "judge"]
    run.trainer.validate(run.model, run.datamodule)  # the callback can be set up again
    assert not [thread for thread in threading.enumerate() if thread.name == "judge"]


def test_filters_penalties_and_audits_are_counted_and_written(run_dir: Path):
    class Lenient(ExactJudge):
        async def judge(self, claim: Claim) -> Verdict:
            return Verdict(1.0, "well put")

    callback = WorldModelReward(
        Lenient(),
        skill=False,
        filters=[Length(longest=2.0)],
        templates=TemplatePenalty(penalty=0.75),
        audit=Audit(ExactJudge(), share=1.0),
        journal=JudgementLog(share=0.0),
    )
    run = fit([claim_reply(9, f"{'so ' * 20}9")], callback)
    # Half of the claims, the predictions, are too long. All are the same, but there are only three
    # states, so scores decide: the first judge's for observations, as no audit is in the past.
    assert scalars(run, "judge/filtered") == [0.5]
    assert scalars(run, "judge/penalised") == [0.5]
    assert scalars(run, "judge/audited") == [12]
    assert scalars(run, "judge/audit_disagreement") == [1.0]
    assert scalars(run, "judge/audit_asked") == [12]
    # observations are paid by the second judge: 1 + (0 - 1) / 1
    assert [turn.bonus for turn in run.datamodule.trajectories[0].turns] == [0.0] * 3
    lines = (runs.folder(run) / "judgements.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines[:2])
    assert first["claim"] == "9 are left" and first["truth"] == "3 are left"
    assert (first["score"], first["second_score"], first["differ"]) == (1.0, 0.0, True)
    assert (first["turn"], first["kind"]) == (0, "observation") and "penalty" not in first
    assert (second["filtered"], second["score"], second["penalty"]) == (True, 0.0, 0.75)
    assert second["reason"].startswith("Length: ")
    assert len(lines) == 24


def test_a_resumed_run_remembers_the_templates(run_dir: Path):
    settings = ("--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=1")
    script = [claim_reply(9, 8), claim_reply(2, 1), WRONG]
    make = lambda: reward(templates=TemplatePenalty(window=30, top=1))  # noqa: E731
    whole = fit(script, make(), *settings)
    half = fit(script, make(), "--trainer.max_epochs=1", *settings[1:])
    resumed = prepare(script, make(), *settings)
    path = runs.folder(half) / "checkpoints" / "last.ckpt"
    resumed.trainer.fit(resumed.model, resumed.datamodule, ckpt_path=str(path))
    assert runs.fingerprint(resumed.model) == runs.fingerprint(whole.model)
    bonuses = [
        [turn.bonus for t in run.datamodule.trajectories for turn in t.turns]
        for run in (whole, resumed)
    ]
    assert bonuses[0] == bonuses[1]


def test_pictures_show_scores_and_what_they_earned(run_dir: Path):
    run = fit(HONEST, reward())
    first = run.datamodule.trajectories[0].turns[0]
    assert caption(first).splitlines()[-3:] == [
        "reward -0.25, bonus +1.00", "observation 1.00", "prediction 1.00"
    ]  # fmt: skip


def test_all_of_it_is_named_in_yaml(run_dir: Path):
    document = (Path(__file__).parents[2] / "docs/world_model_reward.md").read_text()
    examples = [block.split("```")[0] for block in document.split("```yaml")[1:]]
    callback = yaml.safe_load(examples[0])["trainer"]["callbacks"][0]
    callback["init_args"] |= yaml.safe_load(examples[1])
    run = runs.prepare(f"--trainer.callbacks=[{json.dumps(callback)}]")
    [built] = [c for c in runs.callbacks(run) if isinstance(c, WorldModelReward)]
    assert [type(rule).__name__ for rule in built.filters] == [
        "Length", "Repetition", "CopiedPrompt", "Contradiction"
    ]  # fmt: skip
    assert isinstance(built.templates, TemplatePenalty) and isinstance(built.audit, Audit)
    assert built.coefficients == {"observation": 0.1, "prediction": 0.1}


def test_predictions_are_paid_for_their_skill(run_dir: Path):
    # a right step, the same claim again without a step, and "nothing changes" before a step
    script = [claim_reply(3, 2), claim_reply(2, 2, "wait"), claim_reply(2, 2)]
    judge = ExactJudge()
    run = fit(script, reward(judge, skill=True, prediction_coefficient=1.0))
    turns = run.datamodule.trajectories[0].turns
    assert [turn.bonus for turn in turns] == [1.5, 0.5, 0.5]  # observations are all right
    assert [turn.scores["prediction"] for turn in turns] == [1.0, 1.0, 0.0]
    # "nothing changes" is judged where something changed, in words and as JSON
    assert len(judge.asked) == 4 * (6 + 2 * 2)


def test_a_claim_that_the_judge_refuses_to_read_is_wrong_and_not_a_failure(run_dir: Path):
    class Refusing(ExactJudge):
        async def judge(self, claim: Claim) -> Verdict:
            if "?" in claim.text:
                raise JudgeError("the provider refuses", caused_by_claim=True)
            return await super().judge(claim)

    script = [claim_reply(3, 2), claim_reply("?", 1), HONEST[2]]
    for on_failure in ("drop_trajectory", "stop"):
        run = fit(script, reward(Refusing(), on_failure=on_failure))
        turns = run.datamodule.trajectories[0].turns
        assert [turn.bonus for turn in turns] == [1.0, 0.5, 1.0]
        assert scalars(run, "judge/unreadable_claims") == [4]
        assert scalars(run, "judge/failures") == scalars(run, "rollout/failed") == [0]


def test_a_judge_that_never_answers_costs_its_time_limit_and_ends_the_run(run_dir: Path):
    class Silent(ExactJudge):
        async def judge(self, claim: Claim) -> Verdict:
            await asyncio.sleep(3600)
            raise AssertionError

    with pytest.raises(JudgeError, match=r"24 of 24 claims .* no verdict within 0\.2 s.* max_fail"):
        fit(HONEST, reward(Silent(), timeout_s=0.2))
    assert not [thread for thread in threading.enumerate() if thread.name == "judge"]


def test_a_judge_without_an_endpoint_stops_the_run_before_the_first_episode(run_dir: Path):
    class Dead(ExactJudge):
        async def probe(self) -> None:
            raise JudgeError("the connection failed")

    judge = Dead()
    with pytest.raises(JudgeError, match="the connection failed"):
        fit(HONEST, reward(judge))
    assert not judge.asked


def test_a_filter_that_raises_costs_its_claim_and_not_the_run(run_dir: Path):
    class Broken(Length):
        def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
            if claim.text.startswith("2"):
                raise ValueError("a mistake in the filter")
            return None

    run = fit(HONEST, reward(filters=[Broken()]))
    turns = run.datamodule.trajectories[0].turns
    # "2 are left" is the first prediction and the second observation
    assert [turn.bonus for turn in turns] == [0.5, 0.5, 1.0]
    assert scalars(run, "judge/failures") == [8]
    reason = turns[0].reasons["prediction"]
    assert reason == "Broken failed: ValueError: a mistake in the filter"


def test_judges_are_closed_with_the_run(run_dir: Path):
    closed: list[str] = []

    class Closing(ExactJudge):
        async def close(self) -> None:
            closed.append("closed")

    fit(HONEST, reward(Closing(), audit=Audit(Closing())))
    assert closed == ["closed", "closed"]


def test_right_claims_may_not_cost():
    with pytest.raises(ConfigError, match="prediction_coefficient is -1"):
        WorldModelReward(ExactJudge(), prediction_coefficient=-1)
