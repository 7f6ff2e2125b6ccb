"""What must not change the module's loss and gradient: micro-batches, padding, observed tokens.

The log-probs of sampling and of training must agree.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests import toy
from tests.modules.agents import BenchAgent, Gradients
from vagentrl.callbacks import KLControl
from vagentrl.engines import TransformersEngine
from vagentrl.engines.base import Sampling
from vagentrl.losses import Aggregation
from vagentrl.modules.actor import ActorModule
from vagentrl.rollout.collate import collate
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.episodes import Episode
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch

text_and_images = pytest.mark.parametrize("images", [False, True], ids=["text", "images"])


def batch(images: bool) -> RolloutBatch:
    """Seven rows of unlike lengths, one without images; two of them are one trajectory."""
    played = [
        toy.play([toy.GO, toy.WAIT, toy.GO], seed=1, images=images),
        toy.play([toy.WAIT] * 2, seed=2, images=images, turn_limit=2),
        toy.play([toy.GO], seed=0),
        toy.play([toy.GO] * 4, seed=3, images=images),
        toy.play([toy.GO] * 2, seed=1, images=images),
        toy.play([toy.WAIT, toy.GO], seed=0, images=images),
        toy.play([toy.GO] * 3, seed=2, images=images),
    ]
    rollout = collate(played, toy.renderer(images), temperature=0.9, at_limit="bootstrap")
    return replace(rollout, trajectory_ids=torch.tensor([0, 1, 2, 3, 3, 4, 5]))


def agent_of(images: bool, accumulate: int = 1) -> BenchAgent:
    """With every term that a loss may have, each large enough to be seen."""
    control = KLControl(0.3, "loss", "k3+")
    return BenchAgent(
        images, callbacks=[control], accumulate=accumulate, entropy_coef=0.1, value_coef=0.7
    )


def learned_from(agent: BenchAgent, rollout: RolloutBatch) -> tuple[Scores, Credit]:
    """Scores near the agent's own: some ratios and values are clipped and others not."""
    assert agent.critic is not None
    with torch.no_grad():
        read = rollout.to("cpu")
        logprobs, values = agent.actor(read), agent.critic(read)
    noise = torch.randn(4, *logprobs.shape, dtype=torch.float64)
    old, ref = ((logprobs + 0.2 * each) * rollout.action_mask for each in (noise[0], noise[3]))
    return Scores(old, ref, values + noise[1]), Credit(noise[2], values + noise[0])


def serve(
    agent: BenchAgent,
    images: bool,
    mode: str,
    *,
    minibatch_size: int,
    micro_batch_size: int | None = None,
    micro_batch_tokens: int | None = None,
) -> list[list[TrainBatch]]:
    """Minibatches as micro-batches; the same rows whatever the micro-batch size."""
    torch.manual_seed(0)
    rollout = batch(images)
    loader = MinibatchLoader(
        rollout,
        *learned_from(agent, rollout),
        Aggregation(mode),  # pyright: ignore
        minibatch_size=minibatch_size,
        micro_batch_size=micro_batch_size,
        micro_batch_tokens=micro_batch_tokens,
        passes=1,
        seed=3,
    )
    parts, step = list(loader), loader.accumulate
    return [parts[start : start + step] for start in range(0, len(parts), step)]


def whole(images: bool, mode: str) -> tuple[BenchAgent, TrainBatch]:
    agent = agent_of(images)
    [[part]] = serve(agent, images, mode, minibatch_size=7, micro_batch_size=7)
    return agent, part


@text_and_images
@pytest.mark.parametrize("mode", ["token_mean", "turn_mean", "trajectory_mean"])
def test_micro_batches_add_up_to_the_minibatch(images: bool, mode: str):
    agent = agent_of(images)

    def gradients(**limits: int) -> list[Gradients]:
        # 7 rows make minibatches of 4 and 3: one by one, the second is filled up
        served = serve(agent, images, mode, minibatch_size=4, **limits)
        agent.trainer.accumulate_grad_batches = len(served[0])
        return [agent.gradients(parts) for parts in served]

    wanted = gradients(micro_batch_size=4)
    assert len(wanted) == 2
    assert all(gradient.any() for gradient in wanted[0].values())
    for micro_batch_size in (1, 3):
        torch.testing.assert_close(gradients(micro_batch_size=micro_batch_size), wanted)
    for micro_batch_tokens in (1, 150):
        torch.testing.assert_close(gradients(micro_batch_tokens=micro_batch_tokens), wanted)


@text_and_images
def test_more_padding_changes_neither_loss_nor_gradient(images: bool):
    agent, part = whole(images, "token_mean")

    def pad(tensor: Tensor) -> Tensor:
        return nn.functional.pad(tensor, (0, 5))

    scores, credit = part.scores, part.credit
    assert scores.ref_logprobs is not None
    assert scores.values is not None and credit.returns is not None
    per_token = ("input_ids", "attention_mask", "action_mask", "turn_ids", "state_ids", "rewards")
    per_token += ("rollout_logprobs", "policy_version")
    wider = TrainBatch(
        replace(
            part.rollout,
            **{name: pad(getattr(part.rollout, name)) for name in per_token},
        ),
        Scores(pad(scores.old_logprobs), pad(scores.ref_logprobs), pad(scores.values)),
        Credit(pad(credit.advantages), pad(credit.returns)),
        pad(part.weights),
    )
    torch.testing.assert_close(agent.loss(wider), agent.loss(part))
    torch.testing.assert_close(agent.gradients([wider]), agent.gradients([part]))


@text_and_images
def test_scores_and_credit_of_observed_tokens_change_neither_loss_nor_gradient(images: bool):
    agent, part = whole(images, "trajectory_mean")
    mask = part.rollout.action_mask

    def disturb(tensor: Tensor) -> Tensor:
        return tensor.where(mask, 100 * torch.randn(tensor.shape, dtype=tensor.dtype))

    scores, credit = part.scores, part.credit
    assert scores.ref_logprobs is not None
    assert scores.values is not None and credit.returns is not None
    other = replace(
        part,
        scores=Scores(
            disturb(scores.old_logprobs), disturb(scores.ref_logprobs), disturb(scores.values)
        ),
        credit=Credit(disturb(credit.advantages), disturb(credit.returns)),
    )
    torch.testing.assert_close(agent.loss(other), agent.loss(part))
    torch.testing.assert_close(agent.gradients([other]), agent.gradients([part]))


def test_what_is_observed_last_changes_neither_loss_nor_gradient():
    """It is there for the value that a truncated episode is bootstrapped from, not to learn."""
    agent, part = whole(images=False, mode="token_mean")
    after = part.rollout.action_mask.long().flip(-1).cummax(-1).values.flip(-1) == 0
    ids = part.rollout.input_ids
    assert (after & part.rollout.attention_mask).any()
    other = replace(part, rollout=replace(part.rollout, input_ids=ids.where(~after, 42)))
    torch.testing.assert_close(agent.loss(other), agent.loss(part))
    torch.testing.assert_close(agent.gradients([other]), agent.gradients([part]))


def test_a_banned_token_has_no_part_in_the_gradient_of_the_head():
    agent = agent_of(images=False)
    policy = agent.actor.policy
    policy.lm_head.weight = nn.Parameter(policy.lm_head.weight.detach().clone())  # untied
    [[part]] = serve(agent, False, "token_mean", minibatch_size=7, micro_batch_size=7)
    gradient = agent.gradients([part])["actor.policy.lm_head.weight"]
    banned = sorted(toy.renderer().banned_ids)
    assert not gradient[banned].any()
    assert gradient.any()


@text_and_images
def test_training_scores_what_was_sampled_as_it_was_sampled(images: bool):
    renderer, policy = toy.renderer(images), toy.model(images)
    engine = TransformersEngine()
    engine.prepare(renderer.vocabulary(512))
    engine.update_weights(policy, version=0)
    pools = {"toy": WorkerPool(partial(toy.Countdown, images), "toy")}
    played = Collector(engine, renderer, pools, 512).collect(
        [Episode("toy", number, number, number) for number in range(4)],
        Sampling(temperature=0.8, max_tokens=12),
    )
    rollout = collate(played, renderer, temperature=0.8).to("cpu")
    sampled = [id for turn in played[0].turns for id in turn.reply_ids]
    assert rollout.input_ids[0, rollout.action_mask[0]].tolist() == sampled
    with torch.no_grad():
        logprobs = ActorModule(policy, renderer.banned_ids)(rollout)
    torch.testing.assert_close(logprobs, rollout.rollout_logprobs, atol=2e-5, rtol=0)
