"""A policy comes back from what a run leaves behind, and plays as it was trained to."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import vagentrl
from tests import runs, toy
from tests.policy.trained import KINDS, Trained, start, trained
from vagentrl.contexts import FullHistory, Window
from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError, VagentError
from vagentrl.formats import Grounding, NoThink, ReplyFormat
from vagentrl.rollout.policy_record import Part, PolicyRecord
from vagentrl.types import Trajectory
from vagentrl_envs.bandit import Bandit

SEEDS = [seed_of("validation", index) for index in range(4)]


def replies(trajectories: list[Trajectory]) -> list[tuple[int, ...]]:
    """Every token of every reply."""
    return [turn.reply_ids for trajectory in trajectories for turn in trajectory.turns]


@pytest.mark.parametrize("kind", KINDS)
def test_it_plays_the_very_episodes_that_its_run_was_evaluated_on(kind: str):
    run = trained(kind)
    policy = vagentrl.load_policy(run.checkpoint)
    toy_task = partial(toy.Countdown, kind == "images", 2)
    assert replies(policy.evaluate(toy_task, SEEDS)) == replies(run.data.evaluated["train"])
    for name, weight in run.agent.actor.policy.state_dict().items():
        torch.testing.assert_close(policy.model.state_dict()[name], weight, rtol=0, atol=0)


def test_a_checkpoint_says_how_its_policy_is_asked_for_replies():
    policy = vagentrl.load_policy(trained("window").checkpoint)
    assert isinstance(policy.context, Window) and policy.context.memory == 1
    assert (policy.sampling.temperature, policy.sampling.max_tokens) == (0.5, 4)
    assert policy.system_prompt == toy.TASK and isinstance(policy.reply_format, NoThink)
    assert (policy.context_length, policy.iteration) == (512, 1)


def test_what_is_asked_for_overrules_what_the_checkpoint_says():
    policy = vagentrl.load_policy(
        trained("window").checkpoint, context=FullHistory(), dtype="bfloat16"
    )
    assert isinstance(policy.context, FullHistory)
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.bfloat16}


def test_a_runs_folder_stands_for_its_last_checkpoint(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    saved = torch.load(trained("text").checkpoint, weights_only=True)
    for number, name in enumerate(("epoch=1.ckpt", "last.ckpt", "epoch=2.ckpt")):
        saved["policy"]["iteration"] = number
        torch.save(saved, tmp_path / "checkpoints" / name)
    assert vagentrl.load_policy(tmp_path).iteration == 1  # last.ckpt, though it is not the newest
    (tmp_path / "checkpoints/last.ckpt").unlink()
    assert vagentrl.load_policy(tmp_path).iteration == 2  # the newest


@pytest.mark.parametrize("place", ["shipped", "folder"])
def test_a_model_that_was_not_trained_here_plays_too(place: str):
    policy = vagentrl.load_policy("tiny-bandit-text" if place == "shipped" else start(images=False))
    environment = Bandit(pairing="mixed", format=NoThink())
    assert policy.play(environment, seed=1).stop == "terminated"
    with pytest.raises(ConfigError, match=r"give the environment's system_prompt\(\) and its form"):
        policy.converse()


def changed(run: Trained, path: Path, **changes: Any) -> Path:
    """The run's checkpoint with another record; None takes the record away."""
    saved = torch.load(run.checkpoint, weights_only=True)
    saved["policy"] |= changes
    if None in changes.values():
        del saved["policy"]
    torch.save(saved, path)
    return path


def test_a_checkpoint_without_a_record_needs_to_be_told_its_model(tmp_path: Path):
    path = changed(trained("text"), tmp_path / "old.ckpt", policy=None)
    with pytest.raises(ConfigError, match=r"does not say which model it is of; .* as policy="):
        vagentrl.load_policy(path)
    policy = vagentrl.load_policy(path, policy=start(images=False))
    assert policy.record is None and policy.iteration == 0
    assert runs.fingerprint(policy.model) == runs.fingerprint(trained("text").agent.actor.policy)


def test_a_model_that_has_moved_is_named_anew(tmp_path: Path):
    path = changed(trained("text"), tmp_path / "moved.ckpt", policy="./gone")
    with pytest.raises(ConfigError, match=r"there is no model folder '\./gone'"):
        vagentrl.load_policy(path)
    assert vagentrl.load_policy(path, policy=start(images=False)).name == start(images=False)


def test_a_context_that_is_not_known_has_to_be_given(tmp_path: Path):
    context = {"class_path": "my_package.Mine", "init_args": {}}
    path = changed(trained("text"), tmp_path / "mine.ckpt", context=context)
    with pytest.raises(ConfigError, match=r"class my_package\.Mine, .* give one as context="):
        vagentrl.load_policy(path)
    assert vagentrl.load_policy(path, context=Window()).context.memory == 2


@pytest.mark.parametrize(
    ("checkpoint", "settings", "message"),
    [
        ("gone/last.ckpt", {}, "there is no checkpoint gone/last.ckpt; gone holds none"),
        ("empty", {}, r"empty holds neither a model \(config\.json\) nor checkpoints"),
        ("no.ckpt", {}, r"no\.ckpt cannot be read as a checkpoint"),
        ("other.ckpt", {}, r"other\.ckpt holds no weights of a policy"),
        ("tiny-bandit-text", {"policy": "x"}, "tiny-bandit-text is a model already"),
        ("tiny-bandit-text", {"dtype": "bf16"}, "dtype is 'bf16'; give one of float32, bfloat16"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(
    checkpoint: str, settings: dict[str, Any], message: str, run_dir: Path
):
    Path("empty").mkdir()
    Path("no.ckpt").write_text("not one")
    torch.save({"state_dict": {"layer.weight": torch.zeros(1)}}, "other.ckpt")
    with pytest.raises(VagentError, match=message):
        vagentrl.load_policy(checkpoint, **settings)


def test_a_checkpoint_of_another_model_is_refused():
    with pytest.raises(ConfigError, match=r"not of the model 'tiny-bandit-text': it lacks"):
        vagentrl.load_policy(trained("text").checkpoint, policy="tiny-bandit-text")


# ------------------------------------------------------------------------------------- records


class Loud(ReplyFormat):
    """A format that does not keep its argument."""

    def __init__(self, volume: int = 3) -> None:
        super().__init__()


@pytest.mark.parametrize("context", [FullHistory(thoughts="strip"), Window(3, clear_every=5)])
def test_a_context_is_made_again_from_what_is_said_of_it(context: FullHistory | Window):
    plain = json.loads(json.dumps(vars(Part.of(context))))
    again = Part(**plain).build(type(context))
    assert again is not None and vars(again) == vars(context)


def test_a_format_is_made_again_from_what_is_said_of_it():
    again = Part.of(Grounding("symbolic", "|")).build(ReplyFormat)
    assert isinstance(again, Grounding) and (again.state, again.action_separator) == (
        "symbolic",
        "|",
    )


def test_what_is_not_known_is_not_made_up():
    assert Part.of(Loud()).build(ReplyFormat) is None  # with which volume?
    assert Part("os.path.join", {}).build(ReplyFormat) is None  # no such class
    assert Part("this_was_never_imported.Format", {}).build(ReplyFormat) is None


def test_a_record_is_what_was_recorded():
    policy = vagentrl.load_policy(trained("lora").checkpoint)
    assert policy.record is not None
    plain = json.loads(json.dumps(policy.record.as_plain()))
    assert PolicyRecord.from_plain(plain) == policy.record
