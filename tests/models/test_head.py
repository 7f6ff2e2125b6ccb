"""The language-model head in a type of its own, in the trainer and in the sampler."""

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests import toy
from tests.engines.shipped import TEXT, ask, changed, reference_engine, request_of
from vagentrl.advantages import GroupRelative
from vagentrl.engines import ReplicatedEngine
from vagentrl.models.forward import states_before, token_logprobs
from vagentrl.models.head import set_head_dtype
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA
from vagentrl.modules.agent import AgentModule
from vagentrl.rollout.collate import collate
from vagentrl.types import RolloutBatch

BANNED = torch.tensor(sorted(toy.renderer().banned_ids))


def batch() -> RolloutBatch:
    played = [toy.play([toy.GO, toy.WAIT, toy.GO], seed=1), toy.play([toy.GO], seed=0)]
    return collate(played, toy.renderer(), temperature=1.0)


def exact_logprobs(policy: PreTrainedModel, states: Tensor, rollout: RolloutBatch) -> Tensor:
    """Log-probs with the head in float64, from the same states."""
    head = copy.deepcopy(policy).double()
    head.get_output_embeddings().__dict__.pop("forward", None)
    return token_logprobs(head, states.double(), rollout, BANNED)[0]


def gap(logprobs: Tensor, exact: Tensor) -> float:
    return float((logprobs - exact).detach().abs().max())


@pytest.mark.parametrize("weights", ["bfloat16", "float32 under bf16-mixed"])
@pytest.mark.parametrize("adapted", [False, True], ids=["plain", "lora"])
def test_a_float32_head_scores_bfloat16_states_to_float32(weights: str, adapted: bool):
    mixed = weights != "bfloat16"
    dtype = torch.float32 if mixed else torch.bfloat16
    policy = load_model(TEXT, dtype=dtype, lora=LoRA(rank=2) if adapted else None)
    rollout = batch()
    with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
        states = states_before(policy.base_model, rollout)
        rounded, _ = token_logprobs(policy, states, rollout, BANNED)
        set_head_dtype(policy, "float32")
        logprobs, _ = token_logprobs(policy, states, rollout, BANNED)
    exact = exact_logprobs(policy, states, rollout)
    assert states.dtype == torch.bfloat16 or mixed
    assert gap(logprobs, exact) < 1e-4
    assert gap(rounded, exact) > 1e-3


def test_a_bfloat16_head_can_be_had_for_float32_weights():
    policy, rollout = toy.model(), batch()
    states = states_before(policy.base_model, rollout)
    exact = exact_logprobs(policy, states, rollout)
    set_head_dtype(policy, "bfloat16")
    logprobs, _ = token_logprobs(policy, states, rollout, BANNED)
    assert policy.lm_head(states).dtype == torch.bfloat16
    assert 1e-4 < gap(logprobs, exact) < 0.5


def test_the_head_learns_in_its_own_type():
    policy, rollout = toy.model(dtype=torch.bfloat16), batch()
    set_head_dtype(policy, "float32")
    states = states_before(policy.base_model, rollout).detach()
    token_logprobs(policy, states, rollout, BANNED)[0].sum().backward()
    gradient = policy.lm_head.weight.grad
    assert gradient.dtype == torch.bfloat16 and gradient.any()  # the weights stay as they are


def test_whoever_samples_from_the_policy_has_the_same_head():
    policy = load_model(TEXT, dtype=torch.bfloat16, head_dtype="float32")
    ids = torch.tensor([[5, 6, 7]])
    twin = changed(copy.deepcopy(policy))
    assert policy(input_ids=ids).logits.dtype == torch.float32
    # a copy computes with weights of its own
    assert not torch.equal(policy(input_ids=ids).logits, twin(input_ids=ids).logits)
    request = request_of(TEXT, 0, max_tokens=8)
    [wanted] = ask(reference_engine(TEXT, policy), request)
    engine = ReplicatedEngine(processes=1)
    engine.prepare(reference_engine(TEXT, policy)._vocabulary)
    engine.update_weights(policy, 0)
    [reply] = ask(engine, request)
    engine.close()
    assert reply.reply_ids == wanted.reply_ids
    assert reply.logprobs == pytest.approx(wanted.logprobs, abs=1e-6)
    assert not is_bfloat16(reply.logprobs[0])


def test_a_checkpoint_says_how_its_head_computes(tmp_path: Path):
    load_model(TEXT, dtype=torch.bfloat16, head_dtype="float32").save_pretrained(tmp_path)
    policy = load_model(str(tmp_path))
    assert policy.dtype == torch.bfloat16
    assert policy(input_ids=torch.tensor([[5]])).logits.dtype == torch.float32


def test_the_setting_reaches_actor_and_reference():
    agent = AgentModule(TEXT, GroupRelative(), dtype="bfloat16", head_dtype="float32")
    agent.needs_reference = True
    agent.build(toy.renderer().banned_ids)
    assert agent.reference is not None
    ids = torch.tensor([[5]])
    policies: list[Any] = [agent.actor.policy, agent.reference.policy]
    assert all(policy(input_ids=ids).logits.dtype == torch.float32 for policy in policies)


def is_bfloat16(value: float) -> bool:
    return float(torch.tensor(value).bfloat16()) == pytest.approx(value, abs=1e-7)
