"""`VLLMEngine` with the real vLLM on the CPU and the tiny models that ship with the project."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.engines.shipped import (
    CONTEXT,
    IMAGES,
    SETTINGS,
    TEXT,
    ask,
    changed,
    engine_of,
    needs_vllm,
    observation,
    picture,
    reference_engine,
    renderer,
    request_of,
)
from vagentrl.cli.trainer import VagentCLI
from vagentrl.contexts import FullHistory
from vagentrl.engines import VLLMEngine
from vagentrl.engines.base import Engine, Generation, GenerationRequest, Sampling
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm import engine as vllm
from vagentrl.engines.vllm import settings
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA
from vagentrl.rollout.conversation import Conversation

CONFIGS = Path(__file__).parents[2] / "configs"

if find_spec("llvmlite"):
    import_module(
        "llvmlite.binding"
    )  # numba's: environments load it, and vLLM must start beside it


# --------------------------------------------------------------------------------- the numbers


@needs_vllm
@pytest.mark.parametrize("model", [TEXT, IMAGES])
def test_greedy_replies_of_five_turns_equal_those_of_transformers(model: str):
    policy = load_model(model)
    engine, other = engine_of(model, policy), reference_engine(model, policy)
    before = engine.reused_tokens, engine.prefilled_tokens

    async def play(engine: Engine, session: int) -> list[Generation]:
        conversation = Conversation(renderer(model), FullHistory(), "Push the box.")
        replies = []
        for turn in range(5):
            conversation.ask(observation(model, 10 * session + turn))
            request = GenerationRequest(
                session,
                tuple(conversation.ids),
                tuple(conversation.images),
                Sampling(temperature=0, max_tokens=16),
                seed=0,
            )
            replies.append(await engine.generate(request))
            conversation.reply(replies[-1].reply_ids)
        engine.release(session)
        return replies

    async def episodes(engine: Engine) -> list[list[Generation]]:
        return await asyncio.gather(*(play(engine, session) for session in range(4)))

    for ours, theirs in zip(
        asyncio.run(episodes(engine)), asyncio.run(episodes(other)), strict=True
    ):
        for one, two in zip(ours, theirs, strict=True):
            assert one.reply_ids == two.reply_ids
            assert one.finish == two.finish
            assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)
    reused = engine.reused_tokens - before[0]
    assert reused / (reused + engine.prefilled_tokens - before[1]) > 0.5


@needs_vllm
@pytest.mark.parametrize("model", [TEXT, IMAGES])
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 5},
        {"temperature": 0},
    ],
)
def test_log_probs_are_those_that_the_trainer_computes(model: str, sampling: dict[str, float]):
    policy = load_model(model)
    requests = [request_of(model, session, **sampling) for session in range(4)]
    vocabulary = renderer(model).vocabulary(CONTEXT)
    temperature = sampling["temperature"] or 1.0
    for request, reply in zip(requests, ask(engine_of(model, policy), *requests), strict=True):
        ids = torch.tensor([request.prompt_ids + reply.reply_ids])
        vision = vocabulary.encode_images(request.images).model_inputs() if request.images else {}
        if vision:
            vision["mm_token_type_ids"] = (ids == policy.config.image_token_id).int()
        with torch.inference_mode():
            logits = policy(input_ids=ids, attention_mask=torch.ones_like(ids), **vision).logits
        logits = logits[0, len(request.prompt_ids) - 1 : -1] / temperature
        logits[:, list(vocabulary.banned_ids)] = -torch.inf
        wanted = logits.log_softmax(-1).gather(-1, torch.tensor(reply.reply_ids)[:, None])[:, 0]
        assert reply.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)


@needs_vllm
def test_the_same_seed_gives_the_same_reply_alone_and_in_a_batch():
    engine = engine_of(IMAGES, load_model(IMAGES))
    requests = [request_of(IMAGES, session) for session in range(12)]
    together = ask(engine, *requests)
    assert len({reply.reply_ids for reply in together}) > 6
    for request, reply in zip(requests, together, strict=True):
        [alone] = ask(engine, request)
        assert alone.reply_ids == reply.reply_ids


@needs_vllm
def test_banned_tokens_are_never_sampled():
    policy = load_model(TEXT)
    policy.get_parameter("model.norm.weight").data.zero_()  # makes all tokens equally likely
    banned = renderer(TEXT).banned_ids
    assert banned
    requests = [request_of(TEXT, n, max_tokens=200) for n in range(20)]
    sampled = {id for reply in ask(engine_of(TEXT, policy), *requests) for id in reply.reply_ids}
    assert len(sampled) > 400
    assert not sampled & banned


# ---------------------------------------------------------------------------------- the weights


@needs_vllm
@pytest.mark.parametrize("model", [TEXT, IMAGES])
def test_after_an_update_replies_come_from_the_new_weights(model: str):
    policy = load_model(model)
    requests = [request_of(model, session, temperature=0) for session in range(6)]
    old = ask(engine_of(model, policy), *requests)
    engine = engine_of(model, changed(policy), version=7)
    new = ask(engine, *requests)
    assert {reply.policy_version for reply in new} == {engine.policy_version} == {7}
    assert [reply.reply_ids for reply in new] != [reply.reply_ids for reply in old]
    wanted = ask(reference_engine(model, policy), *requests)
    assert [reply.reply_ids for reply in new] == [reply.reply_ids for reply in wanted]


@needs_vllm
@pytest.mark.parametrize("part", ["q_proj.weight", "layers.2.mlp.up_proj.weight", "merger.mlp.0"])
def test_an_update_that_arrives_changed_stops_the_run_and_names_the_tensor(
    part: str, monkeypatch: pytest.MonkeyPatch
):
    policy = changed(load_model(IMAGES))
    culprit = next(name for name, _ in vllm.weights_of(policy) if part in name)
    sound = vllm.weights_of
    sent: list[str] = []

    def corrupted(model: PreTrainedModel, only: Any = None) -> Iterator[tuple[str, torch.Tensor]]:
        first = not sent  # only the update is corrupted, not the comparison after it
        sent.append("")
        for name, weight in sound(model, only):
            yield name, weight.flip(0) if first and name == culprit else weight

    monkeypatch.setattr(vllm, "weights_of", corrupted)
    with pytest.raises(EngineError, match=f"first tensor that differs is {culprit}"):
        engine_of(IMAGES, policy)


@needs_vllm
def test_an_update_that_leaves_a_tensor_out_is_caught(monkeypatch: pytest.MonkeyPatch):
    engine_of(TEXT, load_model(TEXT))
    policy = changed(load_model(TEXT))
    sound = vllm.weights_of
    monkeypatch.setattr(
        vllm,
        "weights_of",
        lambda model, only=None: (
            (n, w) for n, w in sound(model, only) if "layers.1.mlp.down_proj" not in n
        ),
    )
    with pytest.raises(EngineError, match="does not have the actor's weights"):
        engine_of(TEXT, policy)


@needs_vllm
def test_an_update_that_is_lost_is_caught_however_small_it_is(monkeypatch: pytest.MonkeyPatch):
    policy = load_model(TEXT)
    engine = engine_of(TEXT, policy)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(1e-6)  # like an Adam step with this learning rate
    monkeypatch.setattr(vllm, "load_weights", lambda worker, weights: None)
    with pytest.raises(EngineError, match=r"weights: .* differs; its update was lost"):
        engine.update_weights(policy, 1)
    assert engine.canary_gap < 1e-3  # the log-probs alone would pass


@needs_vllm
def test_a_tensor_that_is_not_updated_is_caught_when_its_block_is_compared(
    monkeypatch: pytest.MonkeyPatch,
):
    policy = load_model(TEXT)
    engine = engine_of(TEXT, policy)
    culprit = "model.layers.1.self_attn.k_proj.weight"
    stale = policy.get_parameter(culprit).clone()
    policy.get_parameter(culprit).data.add_(1e-6)
    sound = vllm.load_weights

    def load(worker: Any, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        sound(worker, ((name, stale if name == culprit else w) for name, w in weights))

    monkeypatch.setattr(vllm, "load_weights", load)
    with pytest.raises(EngineError, match=f"weights: {culprit} differs"):
        for version in range(len(engine._blocks)):
            engine.update_weights(policy, version)


@needs_vllm
def test_only_trainable_weights_are_compared():
    policy = load_model(IMAGES, freeze_vision=True)
    engine = VLLMEngine(**SETTINGS)
    engine.prepare(renderer(IMAGES).vocabulary(CONTEXT))
    engine.update_weights(policy, 0)
    assert engine._readable == {name for name, _ in vllm.weights_of(policy)}
    compared = {name for block in engine._blocks for name in block}
    trainable = {name for name, weight in policy.named_parameters() if weight.requires_grad}
    assert compared == trainable


@needs_vllm
def test_starting_vllm_preserves_random_state_and_thread_settings():
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    engine = VLLMEngine(**SETTINGS)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.update_weights(load_model(TEXT), 0)
    assert torch.equal(torch.rand(3), wanted)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


@needs_vllm
def test_vllm_runs_on_the_device_of_its_trainer_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCAL_RANK", "1")  # without GPUs, vLLM takes the device index from it
    engine = VLLMEngine(**SETTINGS)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.update_weights(load_model(TEXT), 0)
    assert engine._llm.collective_rpc(lambda worker: worker.local_rank) == [1]


@needs_vllm
def test_a_run_learns_from_replies_of_vllm(run_dir):
    run = VagentCLI(
        [
            f"--config={CONFIGS / 'sokoban_vlm.yaml'}",
            "--data.engine=VLLMEngine",
            "--data.engine.enforce_eager=true",
            "--data.engine.kv_cache_gb=0.125",
            "--data.groups=2",
            "--data.val_episodes=2",
            "--trainer.max_epochs=1",
        ],
        run=False,
    )
    run.trainer.fit(run.model, run.datamodule)
    metrics = run.trainer.callback_metrics
    assert metrics["rollout/logprob_gap"] < 1e-4
    assert metrics["rollout/failed"] == 0
    assert metrics["time/sync"] > 0


# ------------------------------------------------------------------------------------ bad input


def ask_both(engine: Engine, *requests: GenerationRequest) -> list[Any]:
    """Return the reply or the error of each request."""

    async def both() -> list[Any]:
        return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)

    return asyncio.run(both())


@needs_vllm
def test_a_prompt_without_room_for_a_reply_fails_alone():
    engine = engine_of(TEXT, load_model(TEXT))
    long = replace(request_of(TEXT, 0), prompt_ids=(5,) * CONTEXT)

    failed, reply = ask_both(engine, long, request_of(TEXT, 1))
    assert isinstance(failed, EngineError)
    assert "leaves no room to reply" in str(failed)
    assert reply.reply_ids


@needs_vllm
def test_images_that_do_not_fit_their_tokens_fail_alone():
    engine = engine_of(IMAGES, load_model(IMAGES))
    good, bad = request_of(IMAGES, 0), request_of(IMAGES, 1)
    bad = replace(bad, images=(picture(0).resize((168, 168)),))

    failed, reply = ask_both(engine, bad, good)
    assert isinstance(failed, EngineError)
    assert "could not read the prompt" in str(failed)
    assert reply.reply_ids


@needs_vllm
def test_images_for_a_text_policy_are_refused():
    engine = engine_of(TEXT, load_model(TEXT))
    with pytest.raises(EngineError, match="reads only text"):
        ask(engine, replace(request_of(TEXT, 0), images=(picture(0),)))


@needs_vllm
def test_cancelling_a_request_does_not_affect_the_others():
    engine = engine_of(TEXT, load_model(TEXT))
    wanted = ask(engine, request_of(TEXT, 1))

    async def drop_one() -> Generation:
        dropped = asyncio.create_task(engine.generate(request_of(TEXT, 0, max_tokens=200)))
        kept = asyncio.create_task(engine.generate(request_of(TEXT, 1)))
        await asyncio.sleep(0.01)
        dropped.cancel()
        return await kept

    assert asyncio.run(drop_one()) == wanted[0]
    engine.update_weights(load_model(TEXT), 1)  # would raise if a request were left


def own_engine() -> VLLMEngine:
    """Return an engine that a test may break; the other tests share one."""
    engine = VLLMEngine(**SETTINGS)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.update_weights(load_model(TEXT), 0)
    return engine


def dies(*arguments: Any, **settings: Any) -> None:
    raise RuntimeError("device-side assert")


@needs_vllm
def test_when_vllm_dies_in_mid_reply_all_requests_fail_and_so_do_later_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    engine = own_engine()
    monkeypatch.setattr(engine._llm, "step", dies)
    failed = ask_both(engine, *(request_of(TEXT, session) for session in range(3)))
    assert [type(error) for error in failed] == [EngineDead] * 3
    assert "vLLM died in mid-reply" in str(failed[0])
    assert "device-side assert" in str(failed[0])
    assert "--ckpt_path" in str(failed[0])
    monkeypatch.undo()
    with pytest.raises(EngineDead, match="died in mid-reply"):
        ask(engine, request_of(TEXT, 0))
    with pytest.raises(EngineDead, match="died in mid-reply"):
        engine.update_weights(load_model(TEXT), 1)
    gc.collect()  # makes asyncio log exceptions that were never retrieved
    assert "never retrieved" not in caplog.text


@needs_vllm
def test_when_vllm_dies_of_new_weights_the_error_says_so(monkeypatch: pytest.MonkeyPatch):
    engine = own_engine()
    monkeypatch.setattr(engine._llm, "collective_rpc", dies)
    with pytest.raises(EngineDead, match=r"died while it took new weights.*device-side assert"):
        engine.update_weights(load_model(TEXT), 1)


@needs_vllm
def test_an_interrupted_loop_leaves_vllm_usable():
    engine = own_engine()
    wanted = ask(engine, request_of(TEXT, 0))

    async def interrupted() -> None:
        asyncio.get_running_loop().create_task(engine.generate(request_of(TEXT, 0, max_tokens=200)))
        await asyncio.sleep(0.05)

    asyncio.run(interrupted())
    engine.update_weights(load_model(TEXT), 1)
    again = ask(engine, request_of(TEXT, 0))
    assert again == [replace(generation, policy_version=1) for generation in wanted]


ON_ONE_THREAD_OF_MANY = """
import torch
from tests.engines.shipped import TEXT, ask, engine_of, request_of
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA

torch.set_num_threads(1)
engine = engine_of(TEXT, load_model(TEXT))
print(len(ask(engine, request_of(TEXT, 0))[0].reply_ids))
"""


@needs_vllm
def test_a_trainer_may_use_fewer_threads_than_there_are_cores():
    # OMP_NUM_THREADS would set the thread count of every thread; users do not usually set it.
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", ON_ONE_THREAD_OF_MANY]
    done = subprocess.run(
        command, env=environment, cwd=CONFIGS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > 0


def test_without_vllm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise settings.PackageNotFoundError(name)

    monkeypatch.setattr(settings, "version", missing)
    with pytest.raises(ConfigError, match=r"needs vLLM 0\.32 and found none: pip install"):
        VLLMEngine().prepare(renderer(TEXT).vocabulary(CONTEXT))


def test_another_series_of_vllm_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "version", lambda name: "0.31.2")
    with pytest.raises(ConfigError, match=r"needs vLLM 0\.32 and found 0\.31\.2"):
        VLLMEngine().prepare(renderer(TEXT).vocabulary(CONTEXT))


@needs_vllm
def test_two_processes_may_share_the_model():
    policy = load_model(IMAGES)
    engine = VLLMEngine(**SETTINGS, tensor_parallel_size=2)
    engine.prepare(renderer(IMAGES).vocabulary(CONTEXT))
    requests = [request_of(IMAGES, session, temperature=0) for session in range(3)]
    for version in range(2):
        engine.update_weights(policy, version)
        other = reference_engine(IMAGES, policy)
        assert [reply.reply_ids for reply in ask(engine, *requests)] == [
            reply.reply_ids for reply in ask(other, *requests)
        ]
        changed(policy)
    engine._save_weights = lambda policy: str(engine._weights)  # saves nothing: the update is lost
    with pytest.raises(EngineError, match="does not have the actor's weights"):
        engine.update_weights(policy, 2)
    engine._llm.engine_core.shutdown()


# ---------------------------------------------------------------------------------- adapters


@needs_vllm
@pytest.mark.parametrize("model", [TEXT, IMAGES])
def test_an_adapter_is_sent_as_an_adapter_and_replies_come_from_it(model: str):
    policy = load_model(model, lora=LoRA(rank=4))
    engine, other = VLLMEngine(**SETTINGS), reference_engine(model, policy)
    engine.prepare(renderer(model).vocabulary(CONTEXT))
    requests = [request_of(model, session, temperature=0) for session in range(4)]
    replies = []
    for version in range(3):
        for name, weight in policy.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(weight, std=0.05 * version)  # version 0 changes nothing
        engine.update_weights(policy, version)
        other.update_weights(policy, version)
        replies.append(ask(engine, *requests))
        for ours, theirs in zip(replies[-1], ask(other, *requests), strict=True):
            assert ours.reply_ids == theirs.reply_ids
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-3)
        assert engine._llm.list_loras() == {version + 1}
    logprobs = [[reply.logprobs for reply in version] for version in replies]
    assert logprobs[0] != logprobs[1] != logprobs[2]
    folder = Path(engine._transfer_path(".", 0))
    assert [path.name for path in folder.iterdir()] == [engine._adapter.name]  # pyright: ignore


@needs_vllm
def test_an_adapter_that_does_not_arrive_is_caught(monkeypatch: pytest.MonkeyPatch):
    policy = load_model(TEXT, lora=LoRA(rank=4))
    engine = VLLMEngine(**SETTINGS)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.update_weights(policy, 0)
    for name, weight in policy.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.05)
    monkeypatch.setattr(engine, "_change_adapter", lambda policy: None)
    with pytest.raises(
        EngineError, match=r"does not have the actor's weights.*No tensor that coul"
    ):
        engine.update_weights(policy, 1)


def test_an_adapter_wider_than_vllm_has_room_for_is_refused():
    policy = load_model(TEXT, lora=LoRA(rank=600))
    vocabulary = renderer(TEXT).vocabulary(CONTEXT)
    with pytest.raises(ConfigError, match="rank is 600, and vLLM supports 512 at most"):
        settings.engine_settings(policy, vocabulary, {}, None)


def test_vllm_computes_the_head_as_the_policy_does():
    vocabulary = renderer(TEXT).vocabulary(CONTEXT)
    policy = load_model(TEXT)
    assert "hf_overrides" not in settings.engine_settings(policy, vocabulary, {}, None)
    policy = load_model(TEXT, head_dtype="float32")
    wanted = {"head_dtype": "float32"}
    assert settings.engine_settings(policy, vocabulary, {}, None)["hf_overrides"] == wanted


# ----------------------------------------------------------------------------------- the dtype


@needs_vllm
def test_vllm_computes_in_the_type_of_mixed_precision_and_its_canary_allows_for_that():
    policy = load_model(TEXT)
    engine = VLLMEngine(**SETTINGS)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.dtype = torch.bfloat16
    for version in range(2):
        engine.update_weights(changed(policy), version)
    [dtype] = engine._llm.collective_rpc(lambda worker: worker.get_model().lm_head.weight.dtype)
    assert dtype == torch.bfloat16
    assert policy.dtype == torch.float32
    assert 1e-3 < engine.canary_gap < 0.05  # float32's tolerance would stop the run


@pytest.mark.parametrize(
    ("options", "wanted", "dtype", "tolerance"),
    [
        ({}, None, torch.float32, 1e-3),  # the weights' own
        ({}, torch.bfloat16, torch.bfloat16, 0.05),
        ({"dtype": "auto"}, torch.float16, torch.float16, 0.02),
        ({"dtype": "bfloat16"}, None, torch.bfloat16, 0.05),
        ({"dtype": "float"}, torch.bfloat16, torch.float32, 1e-3),  # the user's comes first
    ],
)
def test_the_canarys_tolerance_follows_the_engines_type(
    options: dict[str, Any], wanted: torch.dtype | None, dtype: torch.dtype, tolerance: float
):
    policy, vocabulary = load_model(TEXT), renderer(TEXT).vocabulary(CONTEXT)
    found = settings.engine_dtype(policy, options, wanted)
    assert found == dtype
    assert settings.tolerance_for(found, None) == tolerance
    assert settings.tolerance_for(found, 0.3) == 0.3
    if "dtype" not in options:
        passed = settings.engine_settings(policy, vocabulary, options, None, wanted)["dtype"]
        assert f"torch.{passed}" == str(dtype)


# ----------------------------------------------------------------------------------- the cache


def test_every_rank_has_a_cache_of_compiled_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    assert settings.cache_of_rank() == {}
    monkeypatch.setattr(settings.ranks, "world_size", lambda: 2)
    folders = []
    for rank in range(2):
        monkeypatch.setattr(settings.ranks, "rank", lambda rank=rank: rank)
        folders.append(settings.cache_of_rank()["VLLM_CACHE_ROOT"])
    assert folders == [f"{tmp_path}/vllm/trainer-rank-{rank}" for rank in range(2)]
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/my/own")
    assert settings.cache_of_rank() == {}


# ----------------------------------------------------------------------------------- the canary


@pytest.mark.parametrize("model", [TEXT, IMAGES])
def test_the_canary_accepts_the_policy_itself_and_no_other(model: str):
    policy = load_model(model)
    vocabulary = renderer(model).vocabulary(CONTEXT)
    canary = Canary(policy, vocabulary, tolerance=1e-4)
    assert bool(canary.request.images) == (model == IMAGES)
    [reply] = ask(reference_engine(model, policy), canary.request)
    assert canary.check(policy, reply, lambda: None) < 1e-5
    with pytest.raises(EngineError, match="first tensor that differs is the_head"):
        canary.check(changed(load_model(model)), reply, lambda: "the_head")
    nothing = replace(reply, logprobs=(float("nan"),) * len(reply.logprobs))
    with pytest.raises(EngineError, match="No tensor that could be read"):
        canary.check(policy, nothing, lambda: None)
