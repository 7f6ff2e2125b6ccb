"""The settings, models and checkpoints of the root module."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy

from tests import toy
from tests.modules.agents import BenchAgent, Report, freeze_one
from vagentrl.advantages import GroupRelative, MaskedGAE
from vagentrl.errors import ConfigError, VagentError
from vagentrl.losses import Aggregation, PPOClip
from vagentrl.models.lora import LoRA
from vagentrl.modules import deepspeed
from vagentrl.modules.agent import AgentModule, agent_of
from vagentrl.modules.optimizer import AdamW
from vagentrl.modules.reference import ActorWithoutAdapter, ReferenceModule
from vagentrl.rollout.iteration import Warmup

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
    plain, cpu = agent.trainer.strategy, torch.device("cpu")
    agent.trainer.strategy = DeepSpeedStrategy(parallel_devices=[cpu])
    agent.configure_optimizers()
    assert not caplog.text
    agent.trainer.strategy = plain
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
        "head_dtype": "float32", "gradient_checkpointing": True, "packing": True,
        "freeze_vision": True, "attn_implementation": "eager",
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
    agent.trainer = SimpleNamespace(datamodule=data, strategy=None, is_global_zero=True)
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
    freeze_one(agent.actor)
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
