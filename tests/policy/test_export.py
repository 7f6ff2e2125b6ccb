"""An exported policy says in other programs what it says here."""

import json
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
)

import vagentrl
from tests import toy
from tests.engines.shipped import TEXT, changed, needs_vllm
from tests.policy.trained import start, trained
from vagentrl import Policy, Sampling
from vagentrl.engines.vllm import weights
from vagentrl.engines.vllm.engine import shield_llvmlite
from vagentrl.engines.vllm.settings import ENVIRONMENT
from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError
from vagentrl.models.load import load_model
from vagentrl.policy import export, load
from vagentrl.policy.stored_weights import StoredWeights, open_checkpoint
from vagentrl.types import Observation

GREEDY = Sampling(temperature=0, max_tokens=12)
MESSAGES = [
    {"role": "system", "content": toy.TASK},
    {"role": "user", "content": "3 left, luck 2"},
]


def first_reply(policy: Policy, observation: Observation) -> list[int]:
    """Tokens of the greedy reply to an observation, as an episode has them."""

    class Shown(toy.Countdown):
        def observe(self) -> Observation:
            return observation

    trajectory = policy.play(Shown(turn_limit=1), 3, sampling=GREEDY)
    return list(trajectory.turns[0].reply_ids)


def generate(model: Any, **inputs: Any) -> list[int]:
    """Greedy reply of plain transformers, with the folder's own generation config."""
    output = model.generate(**inputs, do_sample=False, temperature=None, max_new_tokens=12)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("kind", ["text", "lora"])
def test_plain_transformers_says_the_same(kind: str, tmp_path: Path):
    folder = vagentrl.export_policy(trained(kind).checkpoint, tmp_path / "mine")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    policy = vagentrl.load_policy(trained(kind).checkpoint)
    said = first_reply(policy, Observation("3 left, luck 2"))
    assert generate(model, **inputs) == said
    assert said != generate(AutoModelForCausalLM.from_pretrained(start(False)), **inputs)


def test_plain_transformers_sees_the_same(tmp_path: Path):
    run = trained("images")
    folder = vagentrl.export_policy(run.checkpoint, tmp_path / "mine")
    model = AutoModelForImageTextToText.from_pretrained(folder)
    processor = AutoImageProcessor.from_pretrained(folder)
    policy = vagentrl.load_policy(run.checkpoint)
    picture = toy.picture(2)
    observation = Observation("<image>2 left", (picture,))
    ids = torch.tensor([policy.renderer.first(toy.TASK, observation)])
    seen = processor(images=[picture], return_tensors="pt")
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen}
    inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    assert generate(model, **inputs) == first_reply(policy, observation)


@pytest.mark.parametrize("kind", ["text", "images", "lora"])
@pytest.mark.parametrize("merge", [True, False], ids=["merged", "apart"])
def test_an_exported_folder_is_a_policy_again(kind: str, merge: bool, tmp_path: Path):
    path = trained(kind).checkpoint
    folder = vagentrl.export_policy(path, tmp_path / "mine", merge_adapter=merge)
    before, after = vagentrl.load_policy(path), vagentrl.load_policy(folder)
    assert after.sampling == before.sampling and after.system_prompt == before.system_prompt
    task, seeds = (
        partial(toy.Countdown, kind == "images", 2),
        [seed_of("validation", i) for i in range(4)],
    )
    assert [turn.reply_ids for t in after.evaluate(task, seeds) for turn in t.turns] == [
        turn.reply_ids for t in before.evaluate(task, seeds) for turn in t.turns
    ]


def test_an_adapter_alone_is_one_of_pefts(tmp_path: Path):
    from peft import PeftModel

    run = trained("lora")
    folder = vagentrl.export_policy(run.checkpoint, tmp_path / "mine", merge_adapter=False)
    assert not (folder / "config.json").exists()
    assert "an adapter alone" in (folder / "README.md").read_text()
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == start(images=False)
    base = AutoModelForCausalLM.from_pretrained(start(images=False))
    adapted = PeftModel.from_pretrained(base, folder)
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(
        adapted(input_ids=ids).logits, run.agent.actor.policy(input_ids=ids).logits
    )


def test_the_folder_says_where_it_comes_from_and_how_it_samples(tmp_path: Path):
    folder = vagentrl.export_policy(trained("text").checkpoint, tmp_path / "mine")
    card = (folder / "README.md").read_text()
    assert "text.ckpt` after 1 iterations" in card and toy.TASK in card
    config = GenerationConfig.from_pretrained(folder)
    assert (config.do_sample, config.temperature, config.max_new_tokens) == (True, 0.5, 4)
    assert config.eos_token_id == sorted(toy.renderer().stop_ids)
    assert set(toy.renderer().banned_ids) <= set(config.suppress_tokens)


def test_the_type_of_the_weights_may_be_another(tmp_path: Path):
    path = trained("lora").checkpoint
    folder = vagentrl.export_policy(path, tmp_path / "half", dtype="bfloat16")
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype == torch.bfloat16


def test_weights_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def watched(path: Path) -> Any:
        stored, record = open_checkpoint(path)

        def read(name: str) -> torch.Tensor:
            nonlocal most
            most = max(most, sum(weight() is not None for weight in alive))
            weight = stored.read(name).clone()
            alive.append(weakref.ref(weight))
            return weight

        return StoredWeights(stored.shapes, read), record

    monkeypatch.setattr(load, "open_checkpoint", watched)
    monkeypatch.setattr(weights, "SHARD_BYTES", 1)
    vagentrl.export_policy(trained("text").checkpoint, tmp_path / "mine")
    assert len(alive) > 10 and most == 1  # the one before, while the next is read


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_nothing_is_overwritten_unasked_and_nothing_but_a_model(tmp_path: Path):
    path, mine, other = trained("text").checkpoint, tmp_path / "mine", tmp_path / "thesis"
    vagentrl.export_policy(path, mine)
    with pytest.raises(ConfigError, match=r"mine exists; give another folder, or overwrite=True"):
        vagentrl.export_policy(path, mine)
    vagentrl.export_policy(trained("lora").checkpoint, mine, merge_adapter=False, overwrite=True)
    assert not (mine / "model.safetensors").exists()  # nothing of the old one is left
    other.mkdir()
    (other / "chapter1.tex").write_text("It was a dark and stormy night.")
    with pytest.raises(ConfigError, match="holds no model that could be overwritten"):
        vagentrl.export_policy(path, other, overwrite=True)
    assert list(other.iterdir()) == [other / "chapter1.tex"]


def test_an_export_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = vagentrl.export_policy(trained("text").checkpoint, tmp_path / "mine")
    before = contents(folder)

    def full(*_: Any) -> str:
        raise OSError("No space left on device")

    monkeypatch.setattr(export, "_card", full)
    for name, overwrite in (("mine", True), ("new", False)):
        with pytest.raises(OSError, match="No space left"):
            vagentrl.export_policy(trained("lora").checkpoint, tmp_path / name, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert contents(folder) == before


@needs_vllm
def test_vllm_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    from vllm import LLM, SamplingParams  # pyright: ignore

    shield_llvmlite()  # other tests of this process may have loaded it
    path = tmp_path / "changed.ckpt"  # vLLM has no kernel for the toy models' narrow heads
    weights = changed(load_model(TEXT)).state_dict()
    torch.save({"state_dict": {f"actor.policy.{n}": w for n, w in weights.items()}}, path)
    folder = vagentrl.export_policy(path, tmp_path / "mine", policy=TEXT)
    llm = LLM(str(folder), enforce_eager=True, max_num_seqs=2, kv_cache_memory_bytes=2**24)
    [output] = llm.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)  # pyright: ignore
    policy = vagentrl.load_policy(path, policy=TEXT)
    said = list(output.outputs[0].token_ids)
    assert said == first_reply(policy, Observation("3 left, luck 2"))
