from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from tests import toy
from vagentrl.errors import ConfigError
from vagentrl.models.forward import states_before, token_logprobs
from vagentrl.models.load import (
    SHIPPED,
    checkpoint_path,
    context_length,
    load_config,
    load_model,
    reads_images,
)
from vagentrl.rollout.collate import collate

text_and_images = pytest.mark.parametrize("images", [False, True], ids=["text", "images"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Checkpoints of a model that reads text, and of one that reads images too."""
    saved = {}
    for images in (False, True):
        saved[images] = str(tmp_path_factory.mktemp("model"))
        toy.model(images).save_pretrained(saved[images])
    return saved


def test_the_name_of_a_shipped_model_is_its_folder():
    for name in SHIPPED:
        assert Path(checkpoint_path(name)).parent.name == "tiny"


def test_a_folder_and_a_hub_name_stay_as_they_are(folders: dict[bool, str]):
    assert checkpoint_path(folders[False]) == folders[False]
    assert checkpoint_path("Qwen/Qwen2.5-VL-3B-Instruct") == "Qwen/Qwen2.5-VL-3B-Instruct"


@pytest.mark.parametrize("model", ["./nowhere", "/no/where", "~/nowhere", "a/b/c", "tiny-chess"])
def test_a_folder_that_is_not_there_is_an_error_that_lists_what_is(model: str):
    with pytest.raises(ConfigError, match="no model folder") as raised:
        checkpoint_path(model)
    for name in SHIPPED:
        assert name in str(raised.value)


def test_a_folder_without_a_configuration_is_named_with_its_contents(tmp_path: Path):
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ConfigError, match=r"without config.json.* \['weights.bin'\]"):
        checkpoint_path(str(tmp_path))


def test_a_hub_name_that_cannot_be_reached_is_a_config_error():
    with pytest.raises(ConfigError, match="'nobody/nothing' cannot be read"):
        load_config("nobody/nothing")


def test_a_folder_without_weights_is_a_config_error(folders: dict[bool, str], tmp_path: Path):
    config = Path(folders[False]) / "config.json"
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    with pytest.raises(ConfigError, match=r"the weights of .* cannot be loaded"):
        load_model(str(tmp_path))


@text_and_images
def test_a_checkpoint_is_loaded_as_what_it_is(images: bool, folders: dict[bool, str]):
    config = load_config(folders[images])
    assert reads_images(config) == images
    assert context_length(config) == 512
    policy = load_model(folders[images])
    saved = toy.model(images)
    assert type(policy) is type(saved)
    assert not any(module.training for module in policy.modules())
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert [p.shape for p in policy.parameters()] == [p.shape for p in saved.parameters()]


def test_the_type_of_the_weights_can_be_chosen(folders: dict[bool, str]):
    policy = load_model(folders[False], dtype=torch.bfloat16)
    assert {p.dtype for p in policy.parameters()} == {torch.bfloat16}


@text_and_images
def test_whoever_gets_the_model_next_may_generate_with_a_cache(
    images: bool, folders: dict[bool, str]
):
    policy = load_model(folders[images], gradient_checkpointing=True)
    assert policy.config.get_text_config().use_cache


@text_and_images
def test_a_dry_run_builds_the_model_without_weights(images: bool, folders: dict[bool, str]):
    (Path(folders[images]) / "model.safetensors").rename(Path(folders[images]) / "away")
    try:
        policy = load_model(folders[images], dtype=torch.bfloat16, meta=True)
    finally:
        (Path(folders[images]) / "away").rename(Path(folders[images]) / "model.safetensors")
    assert {(p.device.type, p.dtype) for p in policy.parameters()} == {("meta", torch.bfloat16)}
    count = sum(p.numel() for p in toy.model(images).parameters())
    assert sum(p.numel() for p in policy.parameters()) == count


def first_layer(policy: PreTrainedModel) -> nn.Module:
    return policy.get_decoder().get_submodule("layers.0")


def learn(policy: PreTrainedModel, images: bool) -> dict[str, Tensor]:
    """Gradients of the log-probs of an episode."""
    played = toy.play([toy.GO, toy.WAIT, toy.GO], seed=1, images=images)
    rollout = collate([played], toy.renderer(images), temperature=1.0).to("cpu")
    states = states_before(policy.base_model, rollout)
    token_logprobs(policy, states, rollout, torch.tensor([]).long())[0].sum().backward()
    return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


@text_and_images
def test_gradient_checkpointing_gives_the_same_gradients(images: bool, folders: dict[bool, str]):
    plain = load_model(folders[images])
    checkpointed = load_model(folders[images], gradient_checkpointing=True)
    calls: list[nn.Module] = []
    layers = [first_layer(policy) for policy in (checkpointed, plain)]
    for layer in layers:
        layer.register_forward_pre_hook(lambda module, inputs: calls.append(module))
    torch.testing.assert_close(learn(checkpointed, images), learn(plain, images))
    assert [calls.count(layer) for layer in layers] == [2, 1]  # it does recompute


def test_gradient_checkpointing_leaves_dropout_off(folders: dict[bool, str]):
    policy = load_model(folders[False], gradient_checkpointing=True)
    assert not any(module.training for module in policy.modules() if not list(module.children()))
    assert not first_layer(policy).get_submodule("self_attn").training


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_a_frozen_vision_tower_does_not_learn_and_the_rest_does(
    gradient_checkpointing: bool, folders: dict[bool, str]
):
    free = learn(load_model(folders[True]), images=True)
    frozen = learn(
        load_model(
            folders[True], freeze_vision=True, gradient_checkpointing=gradient_checkpointing
        ),
        images=True,
    )
    tower = {name for name in free if ".visual." in name}
    assert tower
    assert frozen.keys() == free.keys() - tower
    torch.testing.assert_close(frozen, {name: free[name] for name in frozen})


def test_a_model_that_reads_text_has_no_vision_to_freeze(folders: dict[bool, str]):
    with pytest.raises(ConfigError, match="reads text only"):
        load_model(folders[False], freeze_vision=True)


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        (Gemma2Config(), "final_logit_softcapping is 30.0"),
        (CohereConfig(), "logit_scale is 0.0625"),
        (GraniteConfig(logits_scaling=8.0), "logits_scaling is 8.0"),
    ],
)
def test_a_model_that_changes_its_logits_after_the_head_is_refused(
    config: PreTrainedConfig, setting: str, tmp_path: Path
):
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"changes its logits after the head \\({setting}"):
        load_model(str(tmp_path), meta=True)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_attention_is_computed_as_asked_in_both_towers(how: str, folders: dict[bool, str]):
    policy = load_model(folders[True], attn_implementation=how)
    towers = [policy.get_submodule("model.visual"), policy.get_submodule("model.language_model")]
    assert [tower.config._attn_implementation for tower in towers] == [how, how]  # pyright: ignore


@pytest.mark.parametrize("how", ["flash_attention_2", "nonsense"])
def test_attention_that_is_not_there_is_refused_by_its_name(how: str, folders: dict[bool, str]):
    if how == "flash_attention_2" and find_spec("flash_attn"):
        pytest.skip("flash-attn is installed")
    with pytest.raises(ConfigError, match=how):
        load_model(folders[False], attn_implementation=how)


def test_a_dry_run_needs_no_kernels(folders: dict[bool, str]):
    policy = load_model(folders[False], attn_implementation="flash_attention_2", meta=True)
    assert policy.device.type == "meta"
