import sys

import pytest
import torch

from tests.toy import model as toy_model
from vagentrl.errors import ConfigError
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA, add_adapter, has_adapter, without_adapter

MODELS = pytest.mark.parametrize("name", ["tiny-sokoban-text", "tiny-sokoban-vlm"])
IDS = torch.tensor([[5, 6, 7, 8, 9]])


@MODELS
def test_an_adapter_starts_as_no_change_and_can_be_taken_off_again(name: str):
    plain, adapted = load_model(name), load_model(name, lora=LoRA(rank=2, alpha=4))
    assert not has_adapter(plain)
    assert has_adapter(adapted)
    before = plain(input_ids=IDS).logits
    torch.testing.assert_close(adapted(input_ids=IDS).logits, before, rtol=0, atol=0)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    changed = adapted(input_ids=IDS).logits
    assert (changed - before).abs().max() > 0.1
    with without_adapter(adapted):
        torch.testing.assert_close(adapted(input_ids=IDS).logits, before, rtol=0, atol=0)
    torch.testing.assert_close(adapted(input_ids=IDS).logits, changed, rtol=0, atol=0)


@MODELS
def test_only_the_adapters_of_the_language_model_learn(name: str):
    policy = load_model(name, lora=LoRA(rank=2))
    learning = [n for n, p in policy.named_parameters() if p.requires_grad]
    layers = policy.config.get_text_config().num_hidden_layers
    assert len(learning) == layers * 7 * 2  # q, k, v, o, gate, up, down; A and B of each
    assert all("lora_" in name and "visual" not in name for name in learning)
    with without_adapter(policy):
        pass
    assert [n for n, p in policy.named_parameters() if p.requires_grad] == learning


def test_a_dry_run_builds_adapters_without_weights():
    policy = load_model("tiny-sokoban-text", lora=LoRA(rank=2), meta=True)
    assert {parameter.device.type for parameter in policy.parameters()} == {"meta"}


def test_targets_that_match_nothing_are_refused_with_names_that_would_match():
    with pytest.raises(ConfigError, match=r"`targets` is 'w_pack' and must match.*q_proj"):
        add_adapter(toy_model(False), LoRA(targets="w_pack"))


def test_without_peft_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install 'vagentrl\[lora\]'"):
        load_model("tiny-sokoban-text", lora=LoRA())


def test_an_adapter_without_width_is_refused():
    with pytest.raises(ConfigError, match="rank is 0; give at least 1"):
        LoRA(rank=0)
