"""Navigation as an environment: find a named object, seen in first person."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal

from PIL import Image

from vagentrl.environment import ActionEnvironment, Outcome
from vagentrl.errors import ConfigError
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Reply, State, StepResult
from vagentrl_envs.navigation.house import Plan
from vagentrl_envs.navigation.kinds import OBJECTS
from vagentrl_envs.navigation.poses import ACTIONS
from vagentrl_envs.navigation.raycaster import Raycaster
from vagentrl_envs.navigation.sight import Camera
from vagentrl_envs.navigation.view import DIRECTIONS, EXAMPLE, View, legend
from vagentrl_envs.navigation.world import HouseRenderer, HouseWorld, Task, World

ALIASES = {
    "move ahead": "moveahead",
    "move forward": "moveahead",
    "forward": "moveahead",
    "move back": "moveback",
    "move backward": "moveback",
    "backward": "moveback",
    "move left": "moveleft",
    "move right": "moveright",
    "rotate left": "rotateleft",
    "turn left": "rotateleft",
    "rotate right": "rotateright",
    "turn right": "rotateright",
}
"""Other names that agents give to the actions."""

FRAME = 256
"""Pixels on a side of pictures for people."""


class FirstPerson(ActionEnvironment):
    """Find the named object in a world that is seen in first person.

    Args:
        world: The world.
        actions: The actions that the agent has, `moveahead` and others of `ACTIONS`.
        observation: What the agent sees: an ``image``, the same in words as ``text``, or ``both``.
        step: Metres of a move, for the prompt.
        turn_angle: Degrees of a turn, for the prompt.
        success_distance: Metres from which the object counts as reached, for the prompt.
        must_see: Whether it must be in sight too, for the prompt.
        tell_hidden: Whether the state tells where the object is while it is out of sight.
        most_things: Other things in sight that the state tells, the nearest first.
        step_cost: Subtracted for each action.
        collision_cost: Subtracted for each move that is blocked.
        success_reward: Earned when the object is found.
        potential_shaping: Coefficient of potential-based shaping by the distance to the object.
        shaping_gamma: Discount of the shaping.
        aliases: Names of actions beside `ALIASES` that are repaired.
        **settings: The settings of ``ActionEnvironment``.
    """

    def __init__(
        self,
        world: World,
        actions: Sequence[str],
        observation: Literal["image", "text", "both"],
        step: float,
        turn_angle: float,
        success_distance: float,
        must_see: bool,
        tell_hidden: bool = True,
        most_things: int = 5,
        step_cost: float = 0.1,
        collision_cost: float = 0.0,
        success_reward: float = 10.0,
        potential_shaping: float = 0.0,
        shaping_gamma: float = 1.0,
        aliases: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        if "moveahead" not in actions or not set(actions) <= set(ACTIONS):
            raise ConfigError(
                f"actions is {list(actions)}; give moveahead and others of {', '.join(ACTIONS)}"
            )
        known = {name: action for name, action in ALIASES.items() if action in actions}
        super().__init__(actions, aliases=known | (aliases or {}), **settings)
        if observation not in ("image", "text", "both"):
            raise ConfigError(f"observation is {observation!r}; give image, text or both")
        if most_things < 0:
            raise ConfigError(f"most_things is {most_things}; give 0 or more")
        for name, cost in (("step_cost", step_cost), ("collision_cost", collision_cost)):
            if cost < 0:
                raise ConfigError(f"{name} is {cost}; it is subtracted, so give 0 or more")
        self.world = world
        self.observation = observation
        self.tell_hidden = tell_hidden
        self.most_things = most_things
        self.step_cost, self.collision_cost = step_cost, collision_cost
        self.success_reward = success_reward
        self.potential_shaping, self.shaping_gamma = potential_shaping, shaping_gamma
        self._measures = (step, turn_angle, success_distance, must_see)
        self._blocked = False

    # -------------------------------------------------------------------------------- the episode

    def _start(self, seed: int, transition_seed: int) -> None:
        self.world.start(seed)
        self._blocked = False

    def initial_state(self, seed: int) -> Hashable:
        self.world.start(seed)
        self._over = True  # the episode that was running has lost its world
        return self.world.fingerprint()

    def step(self, reply: Reply) -> StepResult:
        self._blocked = False
        if not self.potential_shaping or self._over:
            return super().step(reply)
        before = self.world.distance()
        result = super().step(reply)
        gained = before - self.shaping_gamma * self.world.distance()
        shaping = self.reward_scale * self.potential_shaping * gained
        return replace(result, reward=result.reward + shaping)

    def _act(self, action: str) -> Outcome:
        moved = self.world.act(action)
        self._blocked = self._blocked or not moved
        arrived = self.world.arrived()
        reward = -self.step_cost - self.collision_cost * (not moved)
        return Outcome(
            reward + self.success_reward * arrived, done=arrived, success=arrived, changed=moved
        )

    def oracle(self) -> tuple[str, ...] | None:
        return () if self._over else self.world.plan()

    def close(self) -> None:
        self.world.close()

    # ------------------------------------------------------------------------------ what is shown

    def view(self) -> View:
        """What the agent sees now, with as many things as the state tells."""
        view = self.world.view()
        return replace(view, things=view.things[: self.most_things], blocked=self._blocked)

    def state(self) -> State:
        return self.view().state(self.tell_hidden)

    def _observe(self) -> Observation:
        parts = [f"Find the {self.world.target}."]
        if self._blocked:
            parts.append("Something was in the way.")
        if self.observation != "image":
            parts += [self.view().sentences(), *self._clear_steps()]
        text = "\n".join(parts)
        if self.observation == "text":
            return Observation(text)
        return Observation(f"{IMAGE_PLACEHOLDER}\n{text}", (self.world.picture(),))

    def _clear_steps(self) -> list[str]:
        steps = self.world.clear_steps()
        if steps is None:
            return []
        ways = (f"{count} {name.removeprefix('move')}" for name, count in steps.items())
        return [f"Free steps: {', '.join(ways)}."]

    def frame(self) -> Image.Image:
        picture = self.world.picture()
        high = FRAME * picture.height // picture.width
        picture = picture.resize((FRAME, high), Image.Resampling.NEAREST)
        plan = self.world.map()
        if plan is None:
            return picture
        both = Image.new("RGB", (FRAME + plan.width, max(high, plan.height)), (255, 255, 255))
        both.paste(picture, (0, 0))
        both.paste(plan, (FRAME, 0))
        return both

    def rubric(self) -> str:
        hidden = (
            "also while it is out of sight"
            if self.tell_hidden
            else "or that it is out of sight, if it is"
        )
        others = (
            f" It names the other things in sight, up to {self.most_things} of the nearest, each "
            "with its direction and distance in the same way."
            if self.most_things
            else ""
        )
        return (
            f"It says where the object that is looked for is, seen from the agent, {hidden}: its "
            f"direction ({', '.join(DIRECTIONS)}) and its distance, or how many metres ahead and "
            f"to the right.{others} A direction may be off by a third of the way to the next, a "
            "distance by a quarter of a metre or 15 %. Neither order nor wording matters, and "
            "whether the way was blocked need not be told. It is wrong if something is missing or "
            "misplaced, or if it names a thing that is not in sight."
        )

    def system_prompt(self) -> str:
        step, turn, near, must_see = self._measures
        seen = " and see it" if must_see else ""
        shown = {
            "image": "The image shows what you see.",
            "text": "You are told what you see: distances in metres, and directions from where "
            "you look.",
            "both": "The image shows what you see; the text tells it, with distances in metres.",
        }[self.observation]
        return "\n".join(
            [
                "You walk through furnished rooms. Find the object that you are told, in as few "
                f"actions as you can: you have found it when you are within {near:g} m{seen}.",
                f"Actions: {', '.join(self.action_names)}. A move goes {step:g} m without turning, "
                f"if nothing is in the way; a rotation turns you by {turn:g} degrees.",
                shown,
                self.format.instructions(self.actions_per_turn, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        """Describe how to write a state in the reply format's representation."""
        view = replace(EXAMPLE, things=EXAMPLE.things[: self.most_things])
        example = view.state(self.tell_hidden)
        others = ", and of the other things in sight" if self.most_things else ""
        hidden = "" if self.tell_hidden else ", or that it is out of sight"
        match self.format.state:
            case "natural":
                return (
                    f"distance and direction ({', '.join(DIRECTIONS)}) of what you look "
                    f"for{hidden}{others}, for example: {example.natural}"
                )
            case "structured":
                null = "" if self.tell_hidden else ", null if it is out of sight"
                more = "; lists of them for the other things in sight" if self.most_things else ""
                return (
                    f"metres ahead of you and to your right (negative: behind, to the left) of "
                    f"what you look for{null}{more}, for example: {example.structured}"
                )
            case "symbolic":
                return (
                    "a map of 11 rows and columns of a metre each, you in the middle, what is "
                    f"ahead of you at the top; {legend()}, for example:\n{example.symbolic}"
                )
            case None:
                return None


class Navigation(FirstPerson):
    """Find the named object in a furnished house that is drawn from the seed.

    The agent walks on a lattice and turns by fixed angles. The object is found when the agent is
    within `success_distance` and sees it, which earns 10; an action costs 0.1. Training, validation
    and test share no house with the same start.

    Args:
        rooms: Number of rooms, connected by doorways.
        room_size: Metres from wall to opposite wall of a room, a multiple of `step`.
        step: Metres of a move.
        turn_angle: Degrees of a turn, 45 or 90.
        furniture: Pieces of furniture in the house.
        objects: Objects in the house; the agent looks for one of them.
        targets: Names of objects that may be looked for; None for all.
        success_distance: Metres from which the object counts as reached (1.5 in VAGEN).
        must_see: Whether it must be in sight too; VAGEN does not ask for it.
        min_solution: Fewest actions of a shortest way.
        max_solution: Most actions of a shortest way; None for as many as the limits allow.
        observation: What the agent sees: an ``image``, the same in words as ``text``, or ``both``.
        size: Pixels on a side of the image, or its width and height.
        fov: Degrees from the left to the right edge of the image.
        actions: The actions that the agent has; None for all six.
        renderer: What draws the image: the project's own ``raycaster``, or ``miniworld`` (OpenGL;
            use it with ``data.workers: process``).
        **settings: The settings of `FirstPerson` and ``ActionEnvironment``: `tell_hidden`,
            `most_things`, `step_cost`, `collision_cost`, `success_reward`, `potential_shaping`,
            `shaping_gamma` and those of the limits.
    """

    def __init__(
        self,
        rooms: int = 1,
        room_size: float = 5.0,
        step: float = 0.5,
        turn_angle: Literal[45, 90] = 90,
        furniture: int = 3,
        objects: int = 3,
        targets: Sequence[str] | None = None,
        success_distance: float = 1.5,
        must_see: bool = True,
        min_solution: int = 4,
        max_solution: int | None = None,
        observation: Literal["image", "text", "both"] = "image",
        size: int | tuple[int, int] = 224,
        fov: float = 90.0,
        actions: Sequence[str] | None = None,
        renderer: Literal["raycaster", "miniworld"] = "raycaster",
        turn_limit: int = 20,
        **settings: Any,
    ) -> None:
        width, height = (size, size) if isinstance(size, int) else (size[0], size[1])
        if not (16 <= width <= 1024 and 16 <= height <= 1024):
            raise ConfigError(f"size is {size}; give 16 to 1024 pixels")
        if not 30 <= fov <= 120:
            raise ConfigError(f"fov is {fov}; give 30 to 120 degrees")
        if turn_angle not in (45, 90):
            raise ConfigError(f"turn_angle is {turn_angle}; give 45 or 90 degrees")
        if not 1.0 <= success_distance <= 3.0:
            raise ConfigError(f"success_distance is {success_distance}; give 1 to 3 metres")
        names = tuple(kind.name for kind in OBJECTS) if targets is None else tuple(targets)
        plan = Plan(rooms, room_size, step, furniture, objects, names)
        longest = 10_000 if max_solution is None else max_solution
        task = Task(success_distance, must_see, min_solution, longest)
        camera = Camera(fov, width / height)
        drawn_by = _renderer(renderer, width, height, fov)
        actions = ACTIONS if actions is None else actions
        world = HouseWorld(plan, task, turn_angle, actions, camera, drawn_by)
        super().__init__(
            world,
            actions,
            observation,
            step,
            turn_angle,
            success_distance,
            must_see,
            turn_limit=turn_limit,
            **settings,
        )
        longest = min(longest, self.longest_episode)
        if not 1 <= min_solution <= longest:
            raise ConfigError(
                f"min_solution is {min_solution} and max_solution {max_solution}; give 1 or more, "
                f"in order, and no more than the {self.longest_episode} actions that turn_limit, "
                "actions_per_turn and actions_per_episode allow"
            )
        world.task = replace(task, max_solution=longest)


def _renderer(name: str, width: int, height: int, fov: float) -> HouseRenderer:
    match name:
        case "raycaster":
            return Raycaster(width, height, fov)
        case "miniworld":
            from vagentrl_envs.navigation.miniworld_renderer import MiniWorldRenderer

            return MiniWorldRenderer(width, height, fov)
    raise ConfigError(f"renderer is {name!r}; give raycaster or miniworld")
