"""What the root module does between and around its losses, called step by step on a bench."""

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from tests.modules.agents import (
    BenchAgent,
    LoggingAgent,
    Report,
    freeze_one,
    small_batch,
    small_minibatch,
)
from vagentrl.advantages import GroupRelative, MaskedGAE
from vagentrl.errors import VagentError
from vagentrl.losses import PPOClip, TruncatedImportance
from vagentrl.modules import deepspeed
from vagentrl.modules.optimizer import AdamW
from vagentrl.modules.scoring import score, score_values
from vagentrl.rollout.iteration import Warmup
from vagentrl.types import RolloutBatch

# ------------------------------------------------------------------------------------ scoring


@pytest.mark.parametrize("advantage", [MaskedGAE(), GroupRelative()], ids=["critic", "none"])
def test_scores_are_the_models_own_however_many_rows_are_scored_at_once(advantage: Any):
    torch.manual_seed(0)
    agent = BenchAgent(advantage=advantage)
    rollout = small_batch()
    rollout = replace(rollout, rewards=rollout.rewards.double())
    with torch.no_grad():
        logprobs = agent.actor(rollout)
        values = None if agent.critic is None else agent.critic(rollout)
        for rows in (1, 2, 32):
            agent.score_batch_size = rows
            scores = score(agent, rollout)
            torch.testing.assert_close(scores.old_logprobs, logprobs)
            assert scores.ref_logprobs is None
            if values is None:
                assert scores.values is None
                continue
            mask = rollout.attention_mask  # shorter rows are not padded to the whole width
            assert scores.values is not None
            torch.testing.assert_close(scores.values[mask], values[mask])
            torch.testing.assert_close(score_values(agent, rollout)[mask], values[mask])


def assessing() -> tuple[BenchAgent, RolloutBatch, dict[str, float]]:
    """An agent whose critic finds all states worth 2, a batch, and what is recorded about it."""
    agent, data = BenchAgent(), Report()
    assert agent.critic is not None
    nn.init.zeros_(agent.critic.value_head.weight)
    nn.init.constant_(agent.critic.value_head.bias, 2.0)
    agent.trainer.precision_plugin = SimpleNamespace(forward_context=nullcontext)
    agent.trainer.datamodule = data
    rollout = small_batch()
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
    alone = score(agent, rollout)
    # as if another rank had scored rows of the same log-probs and values, instead of zeros
    monkeypatch.setattr("vagentrl.ranks.sum_over_ranks", lambda scored: scored.mul_(2))
    together = score(agent, rollout)
    assert alone.values is not None and together.values is not None
    torch.testing.assert_close(together.old_logprobs, 2 * alone.old_logprobs)
    torch.testing.assert_close(together.values, 2 * alone.values)
    torch.testing.assert_close(score_values(agent, rollout), 2 * alone.values)


# ------------------------------------------------------------------------------------- a loss


def test_metrics_count_by_the_tokens_that_are_learned_from():
    agent = BenchAgent()
    minibatch = small_minibatch()
    agent.loss(minibatch)
    [weight] = [weight for scalars, weight in agent.logged if "train/entropy" in scalars]
    assert weight == minibatch.rollout.action_mask[:2].sum()  # not of the row that fills up


def test_losses_are_averaged_over_ranks_and_over_an_iteration():
    agent = LoggingAgent()
    agent.loss(small_minibatch())
    names = ("policy_loss", "entropy_bonus", "value_loss", "loss", "entropy", "approximate_kl")
    for name in names:
        how = agent.how[f"train/{name}"]
        assert how.pop("batch_size") >= 1
        assert how == {"on_step": False, "on_epoch": True, "sync_dist": True}


def test_every_weight_that_learns_needs_a_gradient_of_a_micro_batch():
    agent = BenchAgent()
    still = freeze_one(agent.actor)
    learning = [p for p in agent.parameters() if p.requires_grad]
    assert len(learning) > 1 and all(p is not still for p in learning)
    assert list(map(id, agent._stepped())) == list(map(id, learning))


def test_under_ddp_a_loss_gives_every_weight_a_gradient_and_the_actor_rests(
    monkeypatch: pytest.MonkeyPatch,
):
    agent = BenchAgent()
    agent.warmup = Warmup(1)
    agent.loss(small_minibatch()).backward()
    assert all(p.grad is None for p in agent.actor.parameters())
    monkeypatch.setattr(agent.trainer, "strategy", DDPStrategy())
    agent.loss(small_minibatch()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in agent.actor.parameters())


def test_under_deepspeed_a_resting_actor_gets_no_gradient_at_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deepspeed, "engine_of", lambda trainer: object())
    agent = BenchAgent()
    assert agent.critic is not None
    agent.warmup = Warmup(1)
    assert set(map(id, agent._stepped())) == set(map(id, agent.critic.parameters()))
    agent.warmup = Warmup(0)
    assert set(map(id, agent._stepped())) == set(map(id, agent.parameters()))


def test_a_shared_critic_that_warms_up_alone_moves_no_weight_of_the_actor():
    agent = BenchAgent()
    assert agent.critic is not None
    agent.critic.backbone, agent.warmup = None, Warmup(1)
    gradients = agent.gradients([small_minibatch()])
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
    wanted = r"^8 steps in a row had a gradient that is not finite \(actor_grad_norm nan, critic"
    with pytest.raises(VagentError, match=wanted):
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
    agent.on_train_batch_start(small_minibatch(), batch_idx)
    assert said == [last]


@pytest.mark.parametrize("boundary", [True, False])
@pytest.mark.parametrize("rounds", [0, 1])
def test_the_norm_that_deepspeed_found_is_logged_once_a_step_and_a_resting_actor_set_back(
    boundary: bool, rounds: int, monkeypatch: pytest.MonkeyPatch
):
    engine = SimpleNamespace(
        is_gradient_accumulation_boundary=lambda: boundary, get_global_grad_norm=lambda: 2.5
    )
    rewound: list[Any] = []
    monkeypatch.setattr(deepspeed, "engine_of", lambda trainer: engine)
    monkeypatch.setattr(deepspeed, "rewind", lambda *of: rewound.append(of))
    agent = LoggingAgent()
    agent.warmup, agent.trainer.is_last_batch = Warmup(rounds), False
    agent.optimizers = lambda: "the optimizer"  # pyright: ignore
    agent.on_train_batch_end(None, None, 0)  # a batch without groups to learn from
    assert not agent.seen and not rewound
    agent.on_train_batch_end(None, small_minibatch(), 0)
    assert agent.seen == ({"optim/skipped_steps": 0, "optim/grad_norm": 2.5} if boundary else {})
    assert rewound == ([("the optimizer", "actor")] if boundary and rounds else [])


# --------------------------------------------------------------------------------- iterations


def test_an_iteration_is_over_after_its_last_batch():
    agent = LoggingAgent()
    agent._update_started = time.perf_counter() - 60
    agent.trainer.is_last_batch = False
    agent.on_train_batch_end(None, small_minibatch(), 0)
    assert (agent.iteration, agent.seen) == (0, {})
    agent.trainer.is_last_batch = True
    agent.on_train_batch_end(None, small_minibatch(), 1)
    assert agent.iteration == 1
    assert agent.seen.keys() == {"time/update"} and 60 < agent.seen["time/update"] < 90
    assert agent.how["time/update"] == {"on_step": False, "on_epoch": True, "batch_size": 1}
    agent.on_train_batch_end(None, small_minibatch(), 0)
    assert agent.iteration == 2


def test_every_scalar_has_the_number_of_completed_iterations_for_its_x_axis():
    agent = LoggingAgent()
    agent.trainer.datamodule = Report()
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
