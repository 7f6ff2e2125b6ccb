"""The loss that `AgentModule` minimises, worked by hand, and the terms of it that are logged."""

from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from tests import runs, toy
from tests.modules.agents import BenchAgent
from vagentrl.advantages import GroupRelative
from vagentrl.callbacks import AgentCallback, KLControl
from vagentrl.losses import Aggregation
from vagentrl.modules.agent import AgentModule
from vagentrl.rollout.collate import collate
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.types import Credit, Scores, TrainBatch, Trajectory

OPEN_TOKENS = len(toy.tokenizer()) - len(toy.renderer().banned_ids)
UNIFORM = -log(OPEN_TOKENS)  # log-prob of every token under a policy whose weights are 0
VALUE = 0.8  # of every state under a critic whose head has nothing but a bias
WITHOUT_CRITIC: dict[str, Any] = {"advantage": GroupRelative()}


def uniform_agent(**settings: Any) -> BenchAgent:
    agent = BenchAgent(**settings)
    with torch.no_grad():
        for weight in agent.actor.parameters():
            weight.zero_()
        if agent.critic is not None:
            agent.critic.value_head.weight.zero_()
            agent.critic.value_head.bias.fill_(VALUE)
    return agent


def minibatch(
    advantages: tuple[float, float],
    mode: Any = "token_mean",
    *,
    old: float = UNIFORM,
    ref: float = UNIFORM,
    returns: float = 1.0,
    micro_batch_size: int = 2,
) -> list[TrainBatch]:
    """A short and a long episode, each of one row, and what was known of their tokens."""
    played = [toy.play([toy.GO], seed=0), toy.play([toy.WAIT, toy.GO, toy.GO], seed=1)]
    rollout = collate(played, toy.renderer(), temperature=1.0)
    ones = rollout.action_mask.double()
    of_row = torch.tensor(advantages, dtype=torch.float64)[:, None]
    scores = Scores(old * ones, ref * ones, 0 * ones)
    credit = Credit(of_row * ones, returns * ones)
    loader = MinibatchLoader(
        rollout, scores, credit, Aggregation(mode), minibatch_size=2,
        micro_batch_size=micro_batch_size, passes=1, seed=0,
    )  # fmt: skip
    return list(loader)


# ------------------------------------------------------------------------------------- by hand


def test_every_term_by_hand():
    agent = uniform_agent(
        callbacks=[KLControl(0.3, "loss", "k3")],
        entropy_coef=0.1,
        value_coef=0.7,
        value_clip=0.5,
    )
    [part] = minibatch((2.0, 2.0), old=UNIFORM - log(1.1), ref=UNIFORM + 0.5)
    terms = {
        "policy_loss": -2.0 * 1.1,  # the ratio is 1.1, within the clip
        "entropy_bonus": -0.1 * log(OPEN_TOKENS),
        "kl_loss": 0.3 * (exp(0.5) - 1 - 0.5),
        # 0.8 is clipped to 0.5 from 0: the worse of the errors 0.2 and 0.5
        "value_loss": 0.7 * 0.5 * 0.5**2,
    }
    loss = agent.loss(part)
    found = {name: float(term.detach()) for name, term in agent.loss_terms(part).items()}
    assert found == pytest.approx(terms, rel=1e-6)
    assert float(loss) == pytest.approx(sum(terms.values()), rel=1e-6)


def test_terms_are_weighed_as_the_loss_is():
    agent = uniform_agent(entropy_coef=0.0, **WITHOUT_CRITIC)
    [by_token] = minibatch((1.0, 4.0), "token_mean")
    [by_trajectory] = minibatch((1.0, 4.0), "trajectory_mean")
    short, long = sorted(by_token.rollout.action_mask.sum(1).tolist())
    token_mean = -(1.0 * short + 4.0 * long) / (short + long)
    assert float(agent.loss_terms(by_token)["policy_loss"]) == pytest.approx(token_mean)
    assert float(agent.loss_terms(by_trajectory)["policy_loss"]) == pytest.approx(-2.5)


def test_without_a_value_clip_a_value_is_charged_for_its_own_error():
    [part] = minibatch((0.0, 0.0))
    losses = {
        clip: float(uniform_agent(value_clip=clip).loss_terms(part)["value_loss"])
        for clip in (None, 0.5, 1.0)
    }
    # the error is 0.2; clipped to 0.5 it is 0.5
    assert losses == pytest.approx({None: 0.02, 0.5: 0.125, 1.0: 0.02})


@pytest.mark.parametrize("coef", [0.0, 0.5, 2.0])
def test_the_critics_gradient_scales_with_its_coefficient(coef: float):
    [part] = minibatch((0.0, 0.0))
    agent = uniform_agent(value_coef=coef, value_clip=None)
    # the derivative of (v - 1)^2 / 2 at v = 0.8
    gradient = agent.gradients([part])["critic.value_head.bias"]
    assert float(gradient) == pytest.approx(-0.2 * coef)


# ------------------------------------------------------------------------------------- descent


def agent_and_batch(**settings: Any) -> tuple[BenchAgent, TrainBatch]:
    """A policy with distributions that are far from uniform, and its own log-probs."""
    agent = BenchAgent(**settings, **WITHOUT_CRITIC)
    [part] = minibatch((0.0, 0.0))
    with torch.no_grad():
        logprobs = agent.actor(part.rollout)
    noise = 0.5 * torch.randn(logprobs.shape, dtype=torch.float64) * part.rollout.action_mask
    return agent, replace(part, scores=Scores(logprobs, logprobs + noise))


def after_a_step(agent: BenchAgent, part: TrainBatch) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies once the loss was descended a little."""
    gradients = agent.gradients([part])
    with torch.no_grad():
        for name, weight in agent.named_parameters():
            if name in gradients:
                weight -= 1e-4 * gradients[name]
        states = agent.actor.states(part.rollout)
        logprobs, entropy = agent.actor.logprobs(states, part.rollout, with_entropy=True)
    assert entropy is not None
    return logprobs, entropy


def test_descending_the_loss_raises_the_entropy():
    agent, part = agent_and_batch(entropy_coef=1.0)
    with torch.no_grad():
        before = agent.actor.logprobs(
            agent.actor.states(part.rollout), part.rollout, with_entropy=True
        )[1]
    assert before is not None
    assert float(after_a_step(agent, part)[1].sum()) > float(before.sum())


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3+"])
def test_descending_the_loss_moves_towards_the_reference(estimator: Any):
    control = KLControl(1.0, "loss", estimator)
    agent, part = agent_and_batch(callbacks=[control], entropy_coef=0.0)
    assert part.scores.ref_logprobs is not None
    before = (part.scores.old_logprobs - part.scores.ref_logprobs).square().sum()
    logprobs, _ = after_a_step(agent, part)
    assert float((logprobs - part.scores.ref_logprobs).square().sum()) < float(before)


def test_descending_the_loss_raises_what_was_good():
    agent, part = agent_and_batch(entropy_coef=0.0)
    part = replace(part, credit=Credit(part.rollout.action_mask.double()))
    assert float(after_a_step(agent, part)[0].sum()) > float(part.scores.old_logprobs.sum())


# -------------------------------------------------------------------------------------- logging


def test_what_is_logged_adds_up_to_the_loss_of_the_minibatch():
    settings: dict[str, Any] = {"entropy_coef": 0.1, "value_coef": 0.7}
    control = KLControl(0.3, "loss", "k3+")

    def seen(micro_batch_size: int) -> tuple[list[float], list[dict[str, float]]]:
        agent = uniform_agent(callbacks=[control], accumulate=2 // micro_batch_size, **settings)
        parts = minibatch((1.0, 4.0), ref=UNIFORM + 0.5, micro_batch_size=micro_batch_size)
        losses = [float(agent.loss(part)) for part in parts]
        logged = [scalars for scalars, weight in agent.logged if "train/loss" in scalars]
        assert all(weight == 1 for scalars, weight in agent.logged if "train/loss" in scalars)
        return losses, logged

    [whole], [together] = seen(2)
    halves, apart = seen(1)
    for loss, terms in zip([whole, *halves], [together, *apart], strict=True):
        assert terms["train/loss"] == pytest.approx(loss)
        assert sum(terms.values()) == pytest.approx(2 * loss)  # the terms, and their sum
        names = {"policy_loss", "entropy_bonus", "kl_loss", "value_loss", "loss"}
        assert terms.keys() == {f"train/{name}" for name in names}
    # the mean over micro-batches, which is what Lightning logs, is the minibatch's
    for name, value in together.items():
        assert sum(terms[name] for terms in apart) / 2 == pytest.approx(value)


def test_a_run_logs_terms_that_add_up(run_dir: Path):
    run = runs.fit(
        "--trainer.limit_val_batches=0",
        "--trainer.max_epochs=1",
        "--trainer.callbacks=vagentrl.callbacks.KLControl",
        "--trainer.callbacks.place=loss",
        "--trainer.callbacks.estimator=k3+",
        "--model.entropy_coef=0.1",
        "--model.value_coef=0.5",
        "--data.passes=2",
    )
    logged = {name: float(value) for name, value in run.trainer.callback_metrics.items()}
    terms = ["policy_loss", "entropy_bonus", "kl_loss", "value_loss"]
    assert all(logged[f"train/{name}"] for name in terms)
    total = sum(logged[f"train/{name}"] for name in terms)
    assert logged["train/loss"] == pytest.approx(total, rel=1e-5)


# --------------------------------------------------------------------------------------- filter


class UnlikeRewards(AgentCallback):
    """Gives members of the first group unlike rewards, and those of the second equal ones."""

    def on_trajectories(
        self, agent: AgentModule, trajectories: list[Trajectory]
    ) -> list[Trajectory]:
        return [
            replace(
                trajectory,
                turns=tuple(
                    replace(turn, reward=float(number * (trajectory.group_id == 0)))
                    for turn in trajectory.turns
                ),
            )
            for number, trajectory in enumerate(trajectories)
        ]


class FirstLoss(Callback):
    """Keeps the first micro-batch, and its loss."""

    batch: TrainBatch | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.batch is None:
            self.batch, self.loss = batch, float(outputs["loss"])


def first_loss(rescale: bool) -> FirstLoss:
    run = runs.prepare(
        "--trainer.limit_val_batches=0",
        "--trainer.max_epochs=1",
        "--trainer.callbacks=[]",
        "--model.advantage=vagentrl.advantages.GroupRelative",
        "--model.entropy_coef=0",
        "--data.filter=vagentrl.filters.TopFraction",
        "--data.filter.fraction=0.5",
        f"--data.filter.rescale={str(rescale).lower()}",
    )
    first = FirstLoss()
    runs.callbacks(run).extend([UnlikeRewards(), first])
    run.trainer.fit(run.model, run.datamodule)
    return first


def test_a_filter_rescales_the_loss_by_the_share_of_groups_it_kept(run_dir: Path):
    whole, scaled = first_loss(rescale=False), first_loss(rescale=True)
    assert whole.batch is not None and scaled.batch is not None
    assert whole.loss != 0
    assert scaled.loss == pytest.approx(whole.loss / 2)  # one of two groups
    advantages = whole.batch.credit.advantages
    torch.testing.assert_close(scaled.batch.credit.advantages, advantages / 2)
