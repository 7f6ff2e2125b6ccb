from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from jsonargparse import ArgumentParser

from vagentrl.environment import Environment, seed_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import NoThink
from vagentrl.types import Reply, StepResult
from vagentrl_envs import gymnasium_captions as captions
from vagentrl_envs.gymnasium_environment import GymnasiumEnvironment

LAKE = ("left", "down", "right", "up")
TAXI = ("south", "north", "east", "west", "pick up", "drop off")


def lake(**settings: Any) -> GymnasiumEnvironment:
    given: dict[str, Any] = {
        "actions": list(LAKE),
        "task": "Cross the lake.",
        "captioner": captions.frozen_lake,
        "share_starts": True,
        "format": NoThink(),
    }
    return GymnasiumEnvironment("FrozenLake-v1", **given | settings)


def taxi(**settings: Any) -> GymnasiumEnvironment:
    given: dict[str, Any] = {
        "actions": list(TAXI),
        "task": "Drive.",
        "captioner": captions.taxi,
        "format": NoThink(),
    }
    return GymnasiumEnvironment("Taxi-v4", **given | settings)


def cart_pole(**settings: Any) -> GymnasiumEnvironment:
    given: dict[str, Any] = {
        "actions": ["left", "right"],
        "task": "Balance.",
        "captioner": captions.cart_pole,
    }
    return GymnasiumEnvironment("CartPole-v1", **given | settings)


def grid(**settings: Any) -> GymnasiumEnvironment:
    given: dict[str, Any] = {"task": "Look.", "images": True}
    return GymnasiumEnvironment(f"{__name__}:Grid-v0", **given | settings)


def painted(**settings: Any) -> GymnasiumEnvironment:
    given: dict[str, Any] = {"actions": ["stay"], "task": "Look.", "images": True}
    return GymnasiumEnvironment(f"{__name__}:Painted-v0", **given | settings)


def play(env: Environment, *actions: str) -> StepResult:
    return env.step(Reply("", actions=actions))


# ------------------------------------------------------------------------------ what ends and pays


def test_the_goal_of_the_lake_is_a_success():
    env = lake(kwargs={"is_slippery": False})
    assert env.reset(0).text == "You are on cell 0."
    for action in ("down", "down", "right", "down", "right"):
        assert not play(env, action).terminated
    last = play(env, "right")  # from cell 14 to the goal, cell 15
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    assert (last.observation.text, last.metrics["success"]) == ("You are on cell 15.", 1.0)


def test_a_hole_terminates_without_success():
    env = lake(kwargs={"is_slippery": False})
    env.reset(0)
    play(env, "right")
    last = play(env, "down")  # cell 5 is a hole
    assert (last.reward, last.terminated, last.metrics["success"]) == (0.0, True, 0.0)


def test_the_librarys_time_limit_truncates_and_does_not_terminate():
    env = lake(kwargs={"is_slippery": False, "max_episode_steps": 2})
    env.reset(0)
    assert not play(env, "left").truncated
    last = play(env, "left")
    assert (last.terminated, last.truncated) == (False, True)
    with pytest.raises(EnvError, match="call reset"):
        play(env, "left")


def test_a_limit_that_is_met_in_the_last_step_of_the_task_terminates():
    env = lake(kwargs={"is_slippery": False, "max_episode_steps": 2})
    env.reset(0)
    play(env, "right")
    last = play(env, "down")  # the hole, in the step of the limit: Gymnasium reports both
    assert (last.terminated, last.truncated) == (True, False)


# ------------------------------------------------------------------------------------------- seeds


def test_the_transition_seed_decides_the_slips_and_not_the_start():
    def way(transition_seed: int) -> list[str]:
        env = lake(kwargs={"is_slippery": True})
        return [
            env.reset(0, transition_seed).text,
            *(play(env, "up").observation.text for _ in range(8)),  # the edge: nobody falls
        ]

    ways = [way(transition_seed) for transition_seed in range(6)]
    assert {told[0] for told in ways} == {"You are on cell 0."}
    assert len({tuple(told) for told in ways}) > 1
    assert way(3) == ways[3]


def test_training_and_evaluation_share_no_start():
    env = taxi()
    starts = {
        split: {env.initial_state(seed_of(split, index)) for index in range(60)}
        for split in ("train", "validation", "test")
    }
    assert not starts["train"] & (starts["validation"] | starts["test"])
    assert not starts["validation"] & starts["test"]
    assert min(map(len, starts.values())) > 10


def test_starts_that_read_alike_belong_to_one_split():
    # Each start has four numbers of its own, but only thousandths of the first are told: -50 to 50.
    env = cart_pole(captioner=lambda observation, info: f"at {round(1000 * float(observation[0]))}")
    told = {
        split: {env.reset(seed_of(split, index)).text for index in range(60)}
        for split in ("train", "validation", "test")
    }
    assert not told["train"] & (told["validation"] | told["test"])
    assert not told["validation"] & told["test"]


def test_starts_that_look_alike_belong_to_one_split():
    env = painted()  # the numbers differ from start to start, the picture never does
    with pytest.raises(EnvError, match="shown too few different starts"):
        for split in ("train", "validation"):
            env.reset(seed_of(split, 0))


def test_one_start_cannot_be_dealt_to_the_splits():
    env = lake(share_starts=False)
    with pytest.raises(EnvError, match=r"no start of the .* split .*share_starts: true"):
        for split in ("train", "validation"):  # the only start belongs to one of them
            env.reset(seed_of(split, 0))


# ------------------------------------------------------------------------------ what the agent sees


def test_the_taxis_caption_tells_its_state():
    # Gymnasium's encoding: ((row * 5 + column) * 5 + passenger) * 4 + destination
    state = ((3 * 5 + 1) * 5 + 2) * 4 + 0
    assert captions.taxi(state, {}) == (
        "The taxi is at row 3, column 1. The passenger is at the yellow stop and wants to go to "
        "the red stop."
    )


def test_the_picture_is_renders_in_the_size_that_is_asked_for():
    env = painted(image_size=(16, 12), share_starts=True)
    first = env.reset(0)
    assert first.text == "<image>"
    assert [(image.size, image.mode) for image in first.images] == [((16, 12), "RGB")]
    assert first.images[0].getpixel((0, 0)) == (200, 0, 0)
    assert env.frame() == first.images[0]


def test_an_observation_that_holds_nothing_is_played():
    env = GymnasiumEnvironment(
        f"{__name__}:Sparse-v0", ["stay"], "Look.", captioner=lambda graph, info: str(graph.nodes)
    )
    env.reset(0)
    first, second = play(env, "stay"), play(env, "stay")
    assert (first.observation.text, second.observation.text) == ("[1]", "[1]")
    # The nodes change from those of the start to [1], and then stay.
    assert [step.metrics["effective_actions"] for step in (first, second)] == [1.0, 0.0]


def test_a_caption_places_no_image():
    env = GymnasiumEnvironment(
        f"{__name__}:Talking-v0", actions=["stay"], task="Listen.", share_starts=True
    )
    assert env.reset(0).text == "a (image) b"  # the observation is "a <image> b"


def test_a_caption_is_cleaned_of_what_no_tokenizer_encodes():
    env = cart_pole(captioner=lambda observation, info: "half \ud83d\x00\x1b[0m\n\tof é")
    # The half becomes "?", NUL and escape a space each; newline, tab and é stay.
    assert env.reset(0).text == "half ?  [0m\n\tof é"


def test_aliases_are_repaired_and_counted():
    env = taxi(aliases={"go south": "south"}, actions_per_turn=4)
    env.reset(0)
    result = play(env, "Go_South.", "south", "pick-up", "fly")
    assert result.metrics["valid_actions"] == 0.75
    assert result.metrics["repaired_actions"] == 0.5  # "Go_South." and "pick-up" of four


class Painted(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's way)
    action_space = gymnasium.spaces.Discrete(1)
    observation_space = gymnasium.spaces.Discrete(10**6)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return int(self.np_random.integers(10**6)), {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, False, {}

    def render(self) -> Any:
        return np.full((24, 32, 3), (200, 0, 0), dtype=np.uint8)


class Talking(Painted):
    observation_space = gymnasium.spaces.Text(20)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return "a <image> b", {}


class Sparse(Painted):
    observation_space = gymnasium.spaces.Graph(gymnasium.spaces.Discrete(9), None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return GraphInstance(self.np_random.integers(2, 10**6, 1), None, None), {}

    def step(self, action: Any) -> Any:
        return GraphInstance(np.array([1]), None, None), 0.0, False, False, {}


class Grid(Painted):
    action_space = gymnasium.spaces.MultiDiscrete([3, 3])


class Steered(Painted):
    action_space = gymnasium.spaces.Box(-1, 1, (2,))


class Asked(Painted):
    action_space = gymnasium.spaces.Text(5)


for kind in ("Painted", "Talking", "Sparse", "Grid", "Steered", "Asked"):
    gymnasium.register(f"{kind}-v0", f"{__name__}:{kind}")


# --------------------------------------------------------------------------------- wrong settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lake(actions=["left", "right"]), r"names 2 actions .* Discrete\(4\); name all 4"),
        (lambda: lake(actions={"left": 7}), r"'left' is 7, which is not in Discrete\(4\)"),
        (lambda: lake(captioner=None), "nothing tells in words; give a captioner"),
        (lambda: lake(kwargs={"colour": "red"}), "gymnasium.make.* fails: "),
        (
            lambda: lake(kwargs={"map_name": "6x6"}),
            r"FrozenLake-v1.*'6x6'.* fails: KeyError: '6x6'",
        ),
        (lambda: lake(task=" "), "task is empty"),
        (lambda: lake(actions={}), r"actions is \{\}; name at least one"),
        (lambda: lake(actions=[]), r"actions is \[\]; name at least one"),
        (lambda: lake(actions=[True, False]), r"name True \(bool\).* quote them"),
        (lambda: lake(actions={False: 0}), r"name False \(bool\).* quote them"),
        (lambda: lake(actions={"left": 0.5}), r"'left' is 0.5, but Discrete\(4\) holds whole"),
        (lambda: grid(actions={"a": [0.9, 1.7]}), r"'a' is \[0.9, 1.7\], but .* holds whole"),
        (lambda: grid(actions={"a": [0, 2**65]}), r"'a' is .*, but should be Multi"),
        (lambda: painted(image_size=(0, 10)), r"image_size is \[0, 10\]; .* at least 1 pixel"),
        (
            lambda: GymnasiumEnvironment("FrozenLak-v1", list(LAKE), "Cross."),
            "gymnasium.make.*FrozenLak",
        ),
        (
            lambda: GymnasiumEnvironment(f"{__name__}:Steered-v0", ["left"], "Steer."),
            "has no order for a list of names",
        ),
        (
            lambda: GymnasiumEnvironment(f"{__name__}:Steered-v0", {"left": [1]}, "Steer."),
            r"'left' is \[1\], but should be Box",
        ),
        (
            lambda: GymnasiumEnvironment(f"{__name__}:Asked-v0", {"ask": "x"}, "Ask."),
            "only Discrete, Box, MultiBinary and MultiDiscrete spaces are supported",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], Environment], message: str):
    with pytest.raises(ConfigError, match=message):
        make()


def test_whole_numbers_may_be_written_with_a_point():
    assert grid(actions={"a": [1.0, 2.0]})._values["a"].tolist() == [1, 2]
    assert repr(lake(actions={"down": 1.0})._values) == "{'down': 1}"


def test_a_name_may_stand_for_an_action_of_a_continuous_space():
    env = GymnasiumEnvironment(
        f"{__name__}:Steered-v0", {"left": [-1, 0]}, "Steer.", images=True, share_starts=True
    )
    env.reset(0)
    assert play(env, "left").metrics["valid_actions"] == 1.0


def test_a_configuration_names_the_captioner_by_its_dotted_path():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--env", type=Callable[[], Environment])
    arguments = ["--env", "vagentrl_envs.gymnasium_environment.GymnasiumEnvironment"]
    arguments += ["--env.id", "Taxi-v4", "--env.task", "Drive.", "--env.actions", str(list(TAXI))]
    arguments += ["--env.captioner", "vagentrl_envs.gymnasium_captions.taxi"]
    env = parser.instantiate(parser.parse_args(arguments)).env()
    assert env.reset(0).text.startswith("The taxi is at row ")


def test_a_configuration_is_told_to_quote_on_and_off():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--env", type=Callable[[], Environment])
    arguments = ["--env", "vagentrl_envs.gymnasium_environment.GymnasiumEnvironment"]
    arguments += ["--env.id", "CartPole-v1", "--env.task", "Balance.", "--env.actions"]
    captioner = ["--env.captioner", "vagentrl_envs.gymnasium_captions.cart_pole"]
    bare = parser.parse_args([*arguments, "[on, off]", *captioner])
    with pytest.raises(ConfigError, match="quote them"):
        parser.instantiate(bare).env()
    quoted = parser.parse_args([*arguments, "['on', 'off']", *captioner])
    assert parser.instantiate(quoted).env().action_names == ("on", "off")
