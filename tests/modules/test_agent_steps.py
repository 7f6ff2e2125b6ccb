"""What the root module does between and around its losses, called step by step on a bench."""

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor, nn

from tests import toy
from tests.loop_free import NoRollouts
from tests.modules.agents import BenchAgent
from vagentrl.advantages import GroupRelative, MaskedGAE
from vagentrl.errors import ConfigError, VagentError
from vagentrl.losses import Aggregation, PPOClip, TruncatedImportance
from vagentrl.models.lora import LoRA
from vagentrl.modules import deepspeed
from vagentrl.modules.agent import AgentModule, agent_of
from vagentrl.modules.optimizer import AdamW
from vagentrl.modules.reference import ActorWithoutAdapter, ReferenceModule
from vagentrl.rollout.collate import collate
from vagentrl.rollout.iteration import Warmup
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch


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


def batch() -> RolloutBatch:
    played = [toy.play([toy.GO], seed=0), toy.play([toy.WAIT, toy.GO, toy.GO], seed=1)]
    return collate(played, toy.renderer(), temperature=1.0)


def part() -> TrainBatch:
    """Rows of two episodes, and one that only fills up the minibatch."""
    rollout = batch().select(torch.tensor([0, 1, 1]))
    mask = rollout.action_mask.double()
    weights = Aggregation()(rollout.action_mask, rollout.turn_ids, rollout.trajectory_ids)
    weights = weights * torch.tensor([[1.0], [1.0], [0.0]])
    return TrainBatch(rollout, Scores(-mask, None, 0 * mask), Credit(mask, mask), weights)


def frozen(module: nn.Module) -> nn.Parameter:
    """A parameter of the module that no longer learns."""
    parameter = next(module.parameters())
    parameter.requires_grad = False
    return parameter


# ----------------------------------------------------------------------------------- settings


def test_the_defaults_are_the_documented_ones():
    agent = AgentModule("no model is built", MaskedGAE())
    assert isinstance(agent.policy_loss, PPOClip)
    assert agent.aggregation.mode == "token_mean"
    assert (agent.value_coef, agent.value_clip, agent.entropy_coef) == (1.0, 0.5, 0.001)
    assert (agent.critic_kind, agent.dtype_name, agent.head_dtype) == ("own", "float32", None)
    assert agent.gradient_checkpointing is False and agent.freeze_vision is False
    assert agent.lora is None and agent.score_batch_size == 32
    assert (agent.iteration, agent.first_iteration, agent.warmup) == (0, 0, Warmup())
    assert agent.needs_reference is False


def test_the_smallest_settings_that_work_are_taken():
    agent = AgentModule(
        "no model is built",
        MaskedGAE(),
        value_coef=0.0,
        value_clip=0.01,
        entropy_coef=0.0,
        score_batch_size=1,
    )
    assert (agent.value_clip, agent.score_batch_size) == (0.01, 1)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("advantage", MaskedGAE),
        ("policy_loss", PPOClip),
        ("aggregation", Aggregation),
        ("optimizer", AdamW),
        ("lora", LoRA),
    ],
)
def test_a_class_in_place_of_an_instance_is_refused_by_the_name_of_the_setting(
    part: str, kind: type
):
    given: dict[str, Any] = {"policy": "no model is built", "advantage": MaskedGAE(), part: kind}
    with pytest.raises(ConfigError, match=rf"^model\.{part} is the class {kind.__name__}; give"):
        AgentModule(**given)


def test_the_last_iteration_is_counted_from_where_the_trainer_started():
    agent = BenchAgent()
    agent.first_iteration, agent.trainer.max_epochs = 3, 4
    assert agent.total_iterations == 7


def test_steps_in_half_precision_are_warned_of_where_nothing_keeps_full_weights(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    agent = BenchAgent()
    half: list[str] = []
    monkeypatch.setattr("vagentrl.modules.agent.half_precision", lambda module: half)
    groups: Any = agent.configure_optimizers().param_groups  # pyright: ignore
    assert [group["name"] for group in groups] == ["actor", "critic"]
    assert not caplog.text
    half += ["bfloat16", "float16"]
    agent.trainer.strategy = DeepSpeedStrategy.__new__(DeepSpeedStrategy)
    agent.configure_optimizers()
    assert not caplog.text
    agent.trainer.strategy = None
    agent.configure_optimizers()
    assert "the trained weights are bfloat16 and float16" in caplog.text


def test_a_trainer_starts_after_the_iterations_of_earlier_trainers(
    monkeypatch: pytest.MonkeyPatch,
):
    checked: list[Any] = []
    prepared: list[Any] = []
    monkeypatch.setattr("vagentrl.modules.agent.check_data", checked.append)
    monkeypatch.setattr("vagentrl.modules.agent.check_trainer", lambda *of: checked.append(of))
    monkeypatch.setattr(deepspeed, "prepare", lambda *of: prepared.append(of))
    agent = BenchAgent()
    trainer = agent.trainer
    trainer.fit_loop = SimpleNamespace(
        epoch_progress=SimpleNamespace(current=SimpleNamespace(processed=2))
    )
    agent.iteration = 5
    agent.setup("fit")
    assert agent.first_iteration == 3  # this trainer has made 2 of the 5
    assert checked == [trainer, (trainer, "fit")] and not prepared
    trainer.strategy = DeepSpeedStrategy.__new__(DeepSpeedStrategy)
    agent.setup("fit")
    assert prepared == [(trainer, trainer.strategy)]


# ------------------------------------------------------------------------------------- models


def build(monkeypatch: pytest.MonkeyPatch, advantage: Any, **settings: Any) -> tuple[Any, Any]:
    """An agent with a reference that was built without weights, and what it loaded."""
    loaded: list[Any] = []

    def load(policy: str, **how: Any) -> Any:
        loaded.append((policy, how))
        return toy.model()

    monkeypatch.setattr("vagentrl.modules.agent.load_model", load)
    agent = AgentModule("toy", advantage, **settings)
    agent.needs_reference = True
    agent.build(frozenset({7, 5}), meta=True)
    assert agent.actor.banned_ids.tolist() == [5, 7]
    return agent, loaded


def test_actor_critic_and_reference_are_loaded_as_configured(monkeypatch: pytest.MonkeyPatch):
    settings: dict[str, Any] = {
        "head_dtype": "float32", "gradient_checkpointing": True, "freeze_vision": True,
    }  # fmt: skip
    agent, loaded = build(monkeypatch, MaskedGAE(), dtype="bfloat16", **settings)
    how = settings | {"dtype": torch.bfloat16, "lora": None, "meta": True}
    assert loaded == [("toy", how)] * 3
    assert agent.critic.backbone is not None
    assert agent.reference.banned_ids.tolist() == [5, 7]


def test_a_shared_critic_and_an_adapters_reference_load_nothing(monkeypatch: pytest.MonkeyPatch):
    lora = LoRA(rank=2)
    agent, loaded = build(monkeypatch, MaskedGAE(), critic="shared", lora=lora)
    assert [how["lora"] for _, how in loaded] == [lora]
    assert agent.critic.backbone is None
    assert isinstance(agent.reference, ActorWithoutAdapter)
    assert agent.reference._actor == (agent.actor,)


def test_models_are_built_once_and_a_reference_when_it_is_first_needed(
    monkeypatch: pytest.MonkeyPatch,
):
    agent, loaded = build(monkeypatch, GroupRelative())
    agent.reference, agent.needs_reference = None, False
    data = Report()
    data.renderer = toy.renderer()
    agent.trainer = SimpleNamespace(datamodule=data)
    actor = agent.actor
    agent.configure_model()
    assert agent.actor is actor and agent.reference is None and len(loaded) == 2
    agent.needs_reference = True
    agent.configure_model()
    reference = agent.reference
    assert reference is not None
    assert set(reference.banned_ids.tolist()) == toy.renderer().banned_ids
    agent.configure_model()
    assert agent.actor is actor and agent.reference is reference and len(loaded) == 3


def test_an_estimator_without_critic_has_none(monkeypatch: pytest.MonkeyPatch):
    agent, loaded = build(monkeypatch, GroupRelative())
    assert agent.critic is None and len(loaded) == 2
    [group] = agent.optimizer_settings.build({"actor": agent.actor}).param_groups
    assert group["name"] == "actor"


# ------------------------------------------------------------------------------------ scoring


@pytest.mark.parametrize("advantage", [MaskedGAE(), GroupRelative()], ids=["critic", "none"])
def test_scores_are_the_models_own_however_many_rows_are_scored_at_once(advantage: Any):
    torch.manual_seed(0)
    agent = BenchAgent(advantage=advantage)
    rollout = batch()
    rollout = replace(rollout, rewards=rollout.rewards.double())
    with torch.no_grad():
        logprobs = agent.actor(rollout)
        values = None if agent.critic is None else agent.critic(rollout)
        for rows in (1, 2, 32):
            agent.score_batch_size = rows
            scores = agent.score(rollout)
            torch.testing.assert_close(scores.old_logprobs, logprobs)
            assert scores.ref_logprobs is None
            if values is None:
                assert scores.values is None
                continue
            mask = rollout.attention_mask  # shorter rows are not padded to the whole width
            assert scores.values is not None
            torch.testing.assert_close(scores.values[mask], values[mask])
            torch.testing.assert_close(agent.score_values(rollout)[mask], values[mask])


def assessing() -> tuple[BenchAgent, RolloutBatch, dict[str, float]]:
    """An agent whose critic finds all states worth 2, a batch, and what is recorded about it."""
    agent, data = BenchAgent(), Report()
    assert agent.critic is not None
    nn.init.zeros_(agent.critic.value_head.weight)
    nn.init.constant_(agent.critic.value_head.bias, 2.0)
    agent.trainer.precision_plugin = SimpleNamespace(forward_context=nullcontext)
    agent.trainer.datamodule = data
    rollout = batch()
    rollout = replace(rollout, rewards=rollout.rewards.double())
    data.report.clear()
    return agent, rollout, data.report


def test_a_batch_is_scored_and_the_critic_rated():
    agent, rollout, report = assessing()
    same, scores, credit = agent.assess(rollout)
    assert same is rollout
    with torch.no_grad():
        torch.testing.assert_close(scores.old_logprobs, agent.actor(rollout))
    assert scores.values is not None and credit.returns is not None
    assert (scores.values[rollout.attention_mask] == 2).all()
    assert scores.importance is None
    # values that are all the same explain nothing of the variance of the returns
    assert report == {"rollout/explained_variance": pytest.approx(0, abs=1e-9)}


def test_a_round_of_a_warmup_computes_the_values_alone_again():
    agent, rollout, _ = assessing()
    earlier = agent.assess(rollout)[1]
    assert agent.critic is not None
    nn.init.constant_(agent.critic.value_head.bias, 3.0)
    scores = agent.assess(rollout, earlier)[1]
    assert scores.old_logprobs is earlier.old_logprobs
    assert scores.values is not None
    assert (scores.values[rollout.attention_mask] == 3).all()


def test_importance_weights_and_their_metrics_are_those_of_the_whole_batch():
    agent, rollout, report = assessing()
    # every token was sampled with half the probability that the actor gives it
    with torch.no_grad():
        sampled_with = agent.actor(rollout) - math.log(2)
    rollout = replace(rollout, rollout_logprobs=sampled_with)
    agent.policy_loss = PPOClip(importance=TruncatedImportance(cap=1.5))
    scores = agent.assess(rollout)[1]
    assert scores.importance is not None
    weights = scores.importance[rollout.action_mask]
    torch.testing.assert_close(weights, torch.full_like(weights, 1.5))
    assert report["train/importance_weight"] == pytest.approx(1.5)
    assert report["train/importance_capped"] == 1


def test_each_rank_scores_its_share_and_all_are_added_up(monkeypatch: pytest.MonkeyPatch):
    agent, rollout, _ = assessing()
    alone = agent.score(rollout)
    # as if another rank had scored rows of the same log-probs and values, instead of zeros
    monkeypatch.setattr("vagentrl.ranks.sum_over_ranks", lambda scored: scored.mul_(2))
    together = agent.score(rollout)
    assert alone.values is not None and together.values is not None
    torch.testing.assert_close(together.old_logprobs, 2 * alone.old_logprobs)
    torch.testing.assert_close(together.values, 2 * alone.values)
    torch.testing.assert_close(agent.score_values(rollout), 2 * alone.values)


# ------------------------------------------------------------------------------------- a loss


def test_metrics_count_by_the_tokens_that_are_learned_from():
    agent = BenchAgent()
    minibatch = part()
    agent.loss(minibatch)
    [weight] = [weight for scalars, weight in agent.logged if "train/entropy" in scalars]
    assert weight == minibatch.rollout.action_mask[:2].sum()  # not of the row that fills up


def test_losses_are_averaged_over_ranks_and_over_an_iteration():
    agent = LoggingAgent()
    agent.loss(part())
    names = ("policy_loss", "entropy_bonus", "value_loss", "loss", "entropy", "approximate_kl")
    for name in names:
        how = agent.how[f"train/{name}"]
        assert how.pop("batch_size") >= 1
        assert how == {"on_step": False, "on_epoch": True, "sync_dist": True}


def test_a_loss_of_nothing_is_0_and_gives_every_weight_that_learns_a_gradient_of_0():
    agent = BenchAgent()
    still = frozen(agent.actor)
    loss = agent._nothing()
    assert float(loss.detach()) == 0
    loss.backward()
    assert still.grad is None
    learning = [p for p in agent.parameters() if p.requires_grad]
    assert len(learning) > 1
    assert all(p.grad is not None and not p.grad.any() for p in learning)


def test_under_deepspeed_a_resting_actor_gets_no_gradient_at_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deepspeed, "engine_of", lambda trainer: object())
    agent = BenchAgent()
    assert agent.critic is not None
    agent.warmup = Warmup(1)
    agent._nothing().backward()
    assert all(p.grad is None for p in agent.actor.parameters())
    assert all(p.grad is not None for p in agent.critic.parameters())
    agent.warmup = Warmup(0)
    agent._nothing().backward()
    assert all(p.grad is not None for p in agent.actor.parameters())


def test_a_shared_critic_that_warms_up_alone_moves_no_weight_of_the_actor():
    agent = BenchAgent()
    assert agent.critic is not None
    agent.critic.backbone, agent.warmup = None, Warmup(1)
    gradients = agent.gradients([part()])
    assert gradients.keys() == {"critic.value_head.weight", "critic.value_head.bias"}
    assert {name for scalars, _ in agent.logged for name in scalars} == {
        "train/value_loss",
        "train/loss",
    }


# --------------------------------------------------------------------------------- gradients


def optimizer_with_gradients(actor: list[float], critic: list[float]) -> Any:
    groups = []
    for name, gradient in (("actor", actor), ("critic", critic)):
        weight = nn.Parameter(torch.zeros(2))
        weight.grad = torch.tensor(gradient)
        groups.append({"name": name, "params": [weight], "lr": 0.0})
    return torch.optim.SGD(groups)


def gradients_of(optimizer: Any) -> list[Tensor | None]:
    return [group["params"][0].grad for group in optimizer.param_groups]


def test_actor_and_critic_are_clipped_to_the_limit_each_by_its_own_norm():
    agent = LoggingAgent()
    optimizer = optimizer_with_gradients([3.0, 4.0], [0.3, 0.4])  # norms 5 and 0.5
    agent.configure_gradient_clipping(optimizer, 1.0)
    actor, critic = gradients_of(optimizer)
    torch.testing.assert_close(actor, torch.tensor([0.6, 0.8]), rtol=1e-5, atol=0)
    torch.testing.assert_close(critic, torch.tensor([0.3, 0.4]))
    assert agent.seen == pytest.approx(
        {"optim/actor_grad_norm": 5, "optim/critic_grad_norm": 0.5, "optim/skipped_steps": 0}
    )
    assert agent.how["optim/skipped_steps"]["reduce_fx"] == "sum"
    for how in agent.how.values():
        how.pop("reduce_fx", None)
        assert how == {"on_step": False, "on_epoch": True, "batch_size": 1}


@pytest.mark.parametrize("limit", [None, 0.0])
def test_without_a_limit_nothing_is_clipped(limit: float | None):
    optimizer = optimizer_with_gradients([3e6, 4e6], [0.3, 0.4])
    LoggingAgent().configure_gradient_clipping(optimizer, limit)
    torch.testing.assert_close(gradients_of(optimizer)[0], torch.tensor([3e6, 4e6]))


def test_where_one_gradient_is_not_finite_no_weight_moves():
    agent = LoggingAgent()
    optimizer = optimizer_with_gradients([3.0, 4.0], [math.inf, 0.0])
    agent.configure_gradient_clipping(optimizer, 1.0)
    assert gradients_of(optimizer) == [None, None]
    assert agent.seen == {"optim/skipped_steps": 1}


def test_eight_skipped_steps_in_a_row_end_the_run_and_a_step_in_between_begins_the_count_again():
    agent = LoggingAgent()

    def step(gradient: float, times: int = 1) -> None:
        for _ in range(times):
            agent.configure_gradient_clipping(optimizer_with_gradients([gradient] * 2, [0.0] * 2))

    step(math.nan, times=7)
    step(1.0)
    step(math.nan, times=7)
    with pytest.raises(VagentError, match=r"^8 steps in a row had a gradient that is not finite"):
        step(math.nan)


def test_an_actor_that_rests_gets_no_step_of_the_optimizer():
    agent = LoggingAgent()
    agent.warmup = Warmup(1)
    assert agent.critic is not None
    for weight in agent.parameters():
        weight.grad = torch.zeros_like(weight)
    agent.configure_gradient_clipping(AdamW().build({"actor": agent.actor, "critic": agent.critic}))
    assert all(weight.grad is None for weight in agent.actor.parameters())
    assert all(weight.grad is not None for weight in agent.critic.value_head.parameters())


def test_deepspeed_clips_by_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deepspeed, "engine_of", lambda trainer: object())
    agent = LoggingAgent()
    optimizer = optimizer_with_gradients([3.0, 4.0], [0.3, 0.4])
    agent.configure_gradient_clipping(optimizer, 1.0)
    torch.testing.assert_close(gradients_of(optimizer)[0], torch.tensor([3.0, 4.0]))
    assert not agent.seen


@pytest.mark.parametrize(("batch_idx", "last"), [(0, False), (1, False), (2, True), (5, True)])
def test_deepspeed_steps_after_the_last_micro_batch_of_a_minibatch(
    batch_idx: int, last: bool, monkeypatch: pytest.MonkeyPatch
):
    said: list[bool] = []
    engine = SimpleNamespace(set_gradient_accumulation_boundary=said.append)
    monkeypatch.setattr(deepspeed, "engine_of", lambda trainer: engine)
    agent = BenchAgent(accumulate=3)
    agent.on_train_batch_start(part(), batch_idx)
    assert said == [last]


# --------------------------------------------------------------------------------- iterations


def test_an_iteration_is_over_after_its_last_batch():
    agent = LoggingAgent()
    agent._update_started = 0.0
    agent.trainer.is_last_batch = False
    agent.on_train_batch_end(None, part(), 0)
    assert (agent.iteration, agent.seen) == (0, {})
    agent.trainer.is_last_batch = True
    agent.on_train_batch_end(None, part(), 1)
    assert agent.iteration == 1
    assert agent.seen.keys() == {"time/update"} and agent.seen["time/update"] > 0
    assert agent.how["time/update"] == {"on_step": False, "on_epoch": True, "batch_size": 1}
    agent.on_train_batch_end(None, part(), 0)
    assert agent.iteration == 2


def test_every_scalar_has_the_number_of_completed_iterations_for_its_x_axis():
    agent = LoggingAgent()
    agent.iteration = 3
    for hook in (
        agent.on_train_epoch_end,
        agent.on_validation_epoch_end,
        agent.on_test_epoch_end,
    ):
        agent.seen.clear()
        hook()
        assert agent.seen == {"step": 3}


def test_an_update_begins_with_its_learning_rates_and_what_was_collected():
    agent = LoggingAgent(optimizer=AdamW(actor_lr=1.0, critic_lr=2.0, final_lr_scale=0.5))
    assert agent.critic is not None
    optimizer = agent.optimizer_settings.build({"actor": agent.actor, "critic": agent.critic})
    agent.optimizers = lambda: optimizer  # pyright: ignore
    agent.trainer.datamodule, agent.trainer.max_epochs = Report(), 3
    agent.iteration = 2  # the last of 3
    agent.on_train_epoch_start()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1.0]
    assert agent.seen == {"optim/actor_lr": 0.5, "optim/critic_lr": 1.0, "rollout/return": 0.5}
    assert all(how == {"on_epoch": True, "batch_size": 1} for how in agent.how.values())
    agent.record("rollout/kl", 0.25)
    assert agent.trainer.datamodule.report == {"rollout/return": 0.5, "rollout/kl": 0.25}


def test_evaluations_are_told_apart_and_timed():
    agent = LoggingAgent()
    agent.trainer.datamodule = Report()
    agent.validation_step(("boxes", (7, 8)), 0)
    agent.test_step(("boxes", (7, 8, 9)), 0)
    assert agent.trainer.datamodule.asked == [
        ("boxes", (7, 8), agent, "val"),
        ("boxes", (7, 8, 9), agent, "test"),
    ]
    assert 0 < agent.seen.pop("time/evaluate") < 10
    assert agent.seen == {"val/episodes": 2, "test/episodes": 3}
    assert agent.how["time/evaluate"] == {"reduce_fx": "sum", "batch_size": 1}
    assert agent.how["val/episodes"] == {"batch_size": 1}


# --------------------------------------------------------------------------------- checkpoints


def with_reference() -> BenchAgent:
    agent = BenchAgent()
    agent.reference = ReferenceModule(toy.model(dtype=torch.float64), toy.renderer().banned_ids)
    agent.trainer.state = SimpleNamespace(fn="validate")
    record = SimpleNamespace(as_plain=lambda: {"name": "toy"})
    agent.trainer.datamodule = SimpleNamespace(policy_record=lambda: record)
    return agent


def saved(agent: BenchAgent) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {"state_dict": dict(agent.state_dict())}
    agent.on_save_checkpoint(checkpoint)
    return checkpoint


def test_a_checkpoint_says_where_the_run_was_and_holds_no_reference():
    agent = with_reference()
    agent.iteration, agent.first_iteration = 3, 1
    checkpoint = saved(agent)
    of = {name.split(".")[0] for name in checkpoint["state_dict"]}
    assert of == {"actor", "critic"}
    assert {name: checkpoint[name] for name in ("iteration", "first_iteration", "policy")} == {
        "iteration": 3, "first_iteration": 1, "policy": {"name": "toy"},
    }  # fmt: skip
    other = with_reference()
    other.on_load_checkpoint(checkpoint)
    assert (other.iteration, other.first_iteration) == (3, 1)
    # the reference that it lacks is the module's own
    assert checkpoint["state_dict"].keys() == other.state_dict().keys()


def test_a_checkpoint_of_deepspeed_holds_no_weights_and_an_old_one_began_at_0():
    agent = with_reference()
    agent.first_iteration = 5
    agent.on_load_checkpoint({"iteration": 2})
    assert (agent.iteration, agent.first_iteration) == (2, 0)


def test_frozen_weights_are_left_out_only_where_the_base_checkpoint_restores_them():
    agent = with_reference()
    name = next(n for n, _ in agent.named_parameters() if n.startswith("actor."))
    frozen(agent.actor)
    assert name in saved(agent)["state_dict"]
    agent.lora = LoRA(rank=2)
    assert name not in saved(agent)["state_dict"]


def test_an_agent_is_told_from_other_modules():
    agent = BenchAgent()
    assert agent_of(agent) is agent
    with pytest.raises(ConfigError, match="the trainer was given a NoneType"):
        agent_of(None)
    with pytest.raises(VagentError, match="load_policy"):
        AgentModule.load_from_checkpoint("last.ckpt")
