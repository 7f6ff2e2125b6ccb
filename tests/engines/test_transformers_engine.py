import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from tests.engines.policies import (
    BANNED,
    CONTEXT,
    STOP,
    TEXT,
    TEXT_POLICIES,
    VISION_POLICIES,
    VOCABULARY,
    Conversation,
    patches,
    qwen2,
    qwen2_5_vl,
    slow_greedy,
    whole_forward,
)
from vagentrl.engines import TransformersEngine
from vagentrl.engines.base import Generation, GenerationRequest, Sampling, Vocabulary
from vagentrl.engines.transformers import TICKS_BETWEEN_STEPS
from vagentrl.errors import ConfigError, EngineDead, EngineError


def engine_of(
    policy: PreTrainedModel, vocabulary: Vocabulary = VOCABULARY, **arguments: Any
) -> TransformersEngine:
    engine = TransformersEngine(**arguments)
    engine.prepare(vocabulary)
    engine.update_weights(policy, 0)
    return engine


def ask(engine: TransformersEngine, *requests: GenerationRequest) -> list[Generation]:
    async def together() -> list[Generation]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(together())


async def steps(count: int) -> None:
    """Give the engine time to sample about `count` tokens."""
    for _ in range(count * TICKS_BETWEEN_STEPS):
        await asyncio.sleep(0)


def agrees(policy: PreTrainedModel, request: GenerationRequest, reply: Generation) -> None:
    ids, logprobs = slow_greedy(policy, request)
    assert list(reply.reply_ids) == ids
    assert reply.logprobs == pytest.approx(logprobs, abs=1e-4)


# ------------------------------------------------------------------------------ what is sampled


@pytest.mark.parametrize("build", TEXT_POLICIES + VISION_POLICIES)
def test_ragged_episodes_of_three_turns_equal_generation_without_a_cache(build):
    policy = build()
    engine = engine_of(policy, prefill_tokens=64)
    shows_images = build in VISION_POLICIES

    async def episode(seed: int) -> list[tuple[GenerationRequest, Generation]]:
        played, rng = [], random.Random(seed)
        talk = Conversation(policy, seed)
        for _ in range(3):
            talk.say(rng.randrange(1, 20))
            for _ in range(rng.randrange(3) if shows_images else 0):
                talk.show().say(rng.randrange(1, 4))
            request = talk.request(max_tokens=rng.randrange(1, 9))
            played.append((request, await engine.generate(request)))
            talk.ids += played[-1][1].reply_ids
            await asyncio.sleep(0.001 * rng.random())
        engine.release(seed)
        return played

    async def episodes() -> list:
        return await asyncio.gather(*map(episode, range(9)))

    for played in asyncio.run(episodes()):
        for request, reply in played:
            agrees(policy, request, reply)


@pytest.mark.parametrize("build", [qwen2, qwen2_5_vl])
def test_log_probs_equal_a_teacher_forced_pass(build):
    policy = build()
    talk = Conversation(policy, 3).say(20)
    if build is qwen2_5_vl:
        talk.show().say(4).show().say(2)
    request = talk.request(temperature=0.7, top_p=0.9, top_k=40, max_tokens=30)
    [reply] = ask(engine_of(policy), request)
    logits = whole_forward(policy, request.prompt_ids + reply.reply_ids, request.images)
    logits = logits[len(request.prompt_ids) - 1 : -1] / 0.7
    logits[:, list(VOCABULARY.banned_ids)] = -torch.inf
    wanted = logits.log_softmax(-1).gather(-1, torch.tensor(reply.reply_ids)[:, None])[:, 0]
    assert reply.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)


@pytest.mark.parametrize("build", [qwen2, qwen2_5_vl])
def test_the_same_seed_gives_the_same_reply_alone_and_in_a_batch(build):
    policy = build()
    requests = []
    for seed in range(17):
        talk = Conversation(policy, seed).say(1 + 3 * seed)
        if build is qwen2_5_vl and seed % 3:
            talk.show().say(2)
        requests.append(talk.request(temperature=1.0, max_tokens=5 + seed))
    together = ask(engine_of(policy), *requests)
    for request, reply in zip(requests, together, strict=True):
        [alone] = ask(engine_of(policy), request)
        assert alone.reply_ids == reply.reply_ids


def test_different_seeds_give_different_replies():
    policy = qwen2()
    talk = Conversation(policy, 0).say(10)
    request = talk.request(temperature=1.0, max_tokens=20)
    one, other = ask(engine_of(policy), request, replace(request, session=1, seed=1))
    assert one.reply_ids != other.reply_ids


def test_banned_tokens_are_never_sampled():
    policy = qwen2()
    requests = [
        Conversation(policy, seed).say(5).request(temperature=50.0, max_tokens=60)
        for seed in range(30)
    ]
    sampled = {token for reply in ask(engine_of(policy), *requests) for token in reply.reply_ids}
    assert len(sampled) == TEXT["vocab_size"] - len(VOCABULARY.banned_ids)
    assert BANNED not in sampled


def test_a_reply_ends_with_a_stop_token_or_at_its_limit():
    policy = qwen2()
    requests = [
        Conversation(policy, seed).say(5).request(temperature=50.0, max_tokens=60)
        for seed in range(30)
    ]
    finishes = set()
    for reply in ask(engine_of(policy), *requests):
        finishes.add(reply.finish)
        assert STOP not in reply.reply_ids[:-1]
        assert len(reply.logprobs) == len(reply.reply_ids)
        if reply.finish == "stop":
            assert reply.reply_ids[-1] == STOP
        else:
            assert len(reply.reply_ids) == 60
    assert finishes == {"stop", "length"}


def test_the_end_of_the_context_cuts_a_reply_and_a_full_one_is_an_error():
    policy = qwen2()
    engine = engine_of(policy, replace(VOCABULARY, stop_ids=frozenset()))
    talk = Conversation(policy, 0).say(CONTEXT - 3)
    [reply] = ask(engine, talk.request(max_tokens=50))
    assert (len(reply.reply_ids), reply.finish) == (3, "length")
    with pytest.raises(EngineError, match="a prompt of 400 tokens leaves no room"):
        ask(engine, talk.say(3).request())


def test_bfloat16_samples_too():
    policy = qwen2_5_vl().bfloat16()
    [reply] = ask(engine_of(policy), Conversation(policy, 0).say(9).show().say(3).request())
    assert len(reply.reply_ids) > 0
    assert all(logprob < 0 for logprob in reply.logprobs)


@pytest.mark.gpu
@pytest.mark.parametrize("build", TEXT_POLICIES + VISION_POLICIES)
def test_a_gpu_samples_what_a_cpu_does(build):
    policy = build()
    requests = [Conversation(policy, seed).say(1 + 3 * seed).request() for seed in range(9)]
    wanted = ask(engine_of(policy), *requests)
    for there, here in zip(ask(engine_of(policy.cuda()), *requests), wanted, strict=True):
        assert there.reply_ids == here.reply_ids
        assert there.logprobs == pytest.approx(here.logprobs, abs=1e-3)


# -------------------------------------------------------------------------------- what is cached


class RecordingEncoder:
    """Encodes images and records them."""

    def __init__(self) -> None:
        self.encoded: list = []

    def __call__(self, images):
        self.encoded += images
        return patches(images)


def test_every_token_is_read_once_and_every_image_encoded_once():
    policy, encoder = qwen2_5_vl(), RecordingEncoder()
    engine = engine_of(policy, replace(VOCABULARY, encode_images=encoder))
    talk = Conversation(policy, 0)
    lengths, replies = [], []
    for _ in range(3):
        talk.say(5).show().say(3)
        lengths.append(len(talk.ids))
        [reply] = ask(engine, talk.request())
        talk.ids += reply.reply_ids
        replies.append(len(reply.reply_ids))
    assert encoder.encoded == list(talk.images)
    assert engine.sampled_tokens == sum(replies)
    # The last token of each reply was sampled, but only the next turn reads it.
    assert engine.reused_tokens == lengths[0] + lengths[1] + sum(replies[:2]) - 2
    assert engine.prefilled_tokens + engine.reused_tokens == sum(lengths)


def test_a_context_that_drops_old_turns_is_read_from_where_it_differs():
    policy, encoder = qwen2_5_vl(), RecordingEncoder()
    engine = engine_of(policy, replace(VOCABULARY, encode_images=encoder))
    talk = Conversation(policy, 0).say(6).show().say(4).show().say(5)
    ask(engine, talk.request())
    # The window moves: the first image is dropped, so the second takes its position.
    system, image = talk.ids[:6], talk.images[1]
    moved = Conversation(policy, 0, ids=system).show(image).say(4)
    request = moved.request()
    [reply] = ask(engine, request)
    agrees(policy, request, reply)
    assert encoder.encoded == [*talk.images, image]


def test_another_image_behind_the_same_tokens_is_read():
    policy = qwen2_5_vl()
    engine = engine_of(policy)
    talk = Conversation(policy, 0).say(3).show().say(2)
    ask(engine, talk.request())
    turned = talk.images[0].rotate(180)
    request = replace(talk.request(), images=(turned,))
    [reply] = ask(engine, request)
    agrees(policy, request, reply)


def test_evicted_sessions_are_read_again():
    policy = qwen2()
    engine = engine_of(policy, max_batch=2, max_sessions=2)
    talks = [Conversation(policy, seed).say(10 + seed) for seed in range(5)]
    for _ in range(2):
        requests = [talk.say(3).request() for talk in talks]
        for talk, request, reply in zip(talks, requests, ask(engine, *requests), strict=True):
            agrees(policy, request, reply)
            talk.ids += reply.reply_ids


def test_new_weights_invalidate_the_cache():
    policy = qwen2()
    engine = engine_of(policy)
    talk = Conversation(policy, 0).say(12)
    [reply] = ask(engine, talk.request())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    engine.update_weights(policy, 7)
    talk.ids += reply.reply_ids
    request = talk.say(4).request()
    [reply] = ask(engine, request)
    agrees(policy, request, reply)
    assert engine.policy_version == reply.policy_version == 7


# ------------------------------------------------------------------------------ what is promised


def test_a_short_reply_does_not_wait_for_a_long_one_and_a_late_request_joins():
    policy = qwen2()
    engine = engine_of(policy, replace(VOCABULARY, stop_ids=frozenset()))
    order = []

    async def reply(name: str, session: int, tokens: int) -> None:
        talk = Conversation(policy, session).say(5)
        await engine.generate(talk.request(max_tokens=tokens))
        order.append(name)

    async def play() -> None:
        long = asyncio.create_task(reply("long", 0, 300))
        await reply("short", 1, 3)
        await reply("late", 2, 3)
        await long

    asyncio.run(play())
    assert order == ["short", "late", "long"]


def test_the_policy_is_left_as_it_was_found():
    policy = qwen2_5_vl().train()
    policy.model.visual.eval()
    modes = [module.training for module in policy.modules()]
    [_] = ask(engine_of(policy), Conversation(policy, 0).say(4).show().say(2).request())
    assert [module.training for module in policy.modules()] == modes
    assert policy.config.get_text_config()._attn_implementation == "sdpa"
    policy(input_ids=torch.tensor([[5, 6, 7]])).logits.sum().backward()  # gradients still work


def test_a_failing_forward_pass_raises_engine_dead_and_leaves_the_engine_usable(monkeypatch):
    policy = qwen2()
    engine = engine_of(policy)
    requests = [Conversation(policy, seed).say(5).request(max_tokens=9) for seed in range(3)]
    forward, passes = policy.forward, 0

    def breaks_at_the_third(*args, **kwargs):
        nonlocal passes
        passes += 1
        if passes == 3:
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(policy, "forward", breaks_at_the_third)

    async def both() -> None:
        failed = await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)
        for error in failed:
            assert isinstance(error, EngineDead)
            assert "failed while 3 replies were in progress: RuntimeError('out of memory')" in str(
                error
            )
        again = await asyncio.gather(*map(engine.generate, requests))
        for request, reply in zip(requests, again, strict=True):
            agrees(policy, request, reply)

    asyncio.run(both())


def test_a_bad_prompt_does_not_fail_its_neighbours():
    policy = qwen2_5_vl()
    good = [Conversation(policy, seed).say(5).show().say(2).request() for seed in range(3)]
    bad = replace(good[0], session=9, images=())

    async def play() -> list:
        engine = engine_of(policy)
        return await asyncio.gather(*map(engine.generate, [*good, bad]), return_exceptions=True)

    *replies, error = asyncio.run(play())
    for request, reply in zip(good, replies, strict=True):
        agrees(policy, request, reply)
    assert isinstance(error, EngineError)
    assert "0 images need 0 image tokens" in str(error)


def test_images_for_a_text_policy_are_an_error():
    policy = qwen2()
    request = replace(Conversation(policy, 0).say(4).request(), images=(object(),))
    with pytest.raises(EngineError, match="reads only text"):
        ask(engine_of(policy), request)


def test_cancelled_requests_leave_the_batch_and_their_sessions_may_ask_again():
    policy = qwen2()
    engine = engine_of(policy, replace(VOCABULARY, stop_ids=frozenset()))
    requests = [
        Conversation(policy, seed).say(5).request(max_tokens=300, temperature=1.0)
        for seed in range(4)
    ]

    async def play() -> list[Generation]:
        kept = asyncio.create_task(engine.generate(requests[3]))
        abandoned = [asyncio.create_task(engine.generate(request)) for request in requests[:3]]
        await steps(20)
        for task in abandoned:
            task.cancel()
        short = [replace(request, sampling=Sampling(max_tokens=4)) for request in requests[:3]]
        return await asyncio.gather(*map(engine.generate, short), kept)

    replies = asyncio.run(play())
    assert [len(reply.reply_ids) for reply in replies] == [4, 4, 4, 300]
    assert engine.sampled_tokens < 1200
    [undisturbed] = ask(engine, requests[3])
    assert replies[3].reply_ids == undisturbed.reply_ids


def test_a_session_that_is_released_while_it_waits_is_removed_from_the_cache():
    policy = qwen2()
    engine = engine_of(policy)
    talk = Conversation(policy, 0).say(9)
    [reply] = ask(engine, talk.request())
    talk.ids += reply.reply_ids

    async def play() -> None:
        task = asyncio.create_task(engine.generate(talk.say(2).request()))
        await asyncio.sleep(0)
        task.cancel()
        engine.release(0)
        await asyncio.gather(task, return_exceptions=True)
        await steps(3)

    asyncio.run(play())
    before = engine.reused_tokens
    ask(engine, talk.request())
    assert engine.reused_tokens == before


def test_releasing_a_session_in_mid_reply_ends_the_reply():
    policy = qwen2()
    engine = engine_of(policy, replace(VOCABULARY, stop_ids=frozenset()))

    async def play() -> None:
        task = asyncio.create_task(
            engine.generate(Conversation(policy, 4).say(5).request(max_tokens=300))
        )
        await steps(20)
        engine.release(4)
        with pytest.raises(EngineError, match="released in mid-reply"):
            await task

    asyncio.run(play())


def test_a_session_asks_for_one_reply_at_a_time():
    policy = qwen2()
    request = Conversation(policy, 0).say(4).request()
    with pytest.raises(EngineError, match="session 0 already awaits a reply"):
        ask(engine_of(policy), request, request)


def test_the_decoding_task_ends_when_there_are_no_requests():
    policy = qwen2()
    engine = engine_of(policy)

    async def play() -> int:
        await engine.generate(Conversation(policy, 0).say(4).request())
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(play()) == 1


def test_an_interrupted_loop_leaves_the_engine_usable():
    policy = qwen2()
    engine = engine_of(policy, replace(VOCABULARY, stop_ids=frozenset()))
    talk = Conversation(policy, 0).say(5)

    async def interrupted() -> None:
        asyncio.get_running_loop().create_task(engine.generate(talk.request(max_tokens=300)))
        await steps(20)

    asyncio.run(interrupted())
    [reply] = ask(engine, talk.request(max_tokens=4))
    assert len(reply.reply_ids) == 4


def test_a_device_failure_during_prefill_is_not_blamed_on_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
):
    policy = qwen2()
    engine = engine_of(policy)

    def prefill(requests: Any, first: int) -> None:
        raise torch.AcceleratorError("device-side assert")

    monkeypatch.setattr(engine._policy, "prefill", prefill)
    with pytest.raises(EngineDead, match="device-side assert"):
        ask(engine, Conversation(policy, 0).say(5).request())


def test_weights_cannot_change_in_mid_reply():
    policy = qwen2()
    engine = engine_of(policy, replace(VOCABULARY, stop_ids=frozenset()))

    async def play() -> None:
        task = asyncio.create_task(
            engine.generate(Conversation(policy, 0).say(5).request(max_tokens=300))
        )
        await steps(20)
        with pytest.raises(EngineError, match="1 replies are being sampled"):
            engine.update_weights(policy, 1)
        engine.release(0)
        with pytest.raises(EngineError):
            await task

    asyncio.run(play())


def test_a_sliding_window_shorter_than_the_context_is_refused():
    policy = MistralForCausalLM(MistralConfig(**TEXT, sliding_window=CONTEXT - 1))
    with pytest.raises(ConfigError, match="window of 399 tokens"):
        engine_of(policy)
    assert engine_of(MistralForCausalLM(MistralConfig(**TEXT, sliding_window=CONTEXT)))


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="max_batch is 8 and max_sessions is 4"):
        TransformersEngine(max_batch=8, max_sessions=4)
