"""Where the agent walks: the small interface of simulators, and the project's own simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw

from vagentrl.environment import split_of, split_of_state
from vagentrl.errors import EnvError
from vagentrl_envs.navigation.house import House, Plan, Thing
from vagentrl_envs.navigation.kinds import DOORWAY
from vagentrl_envs.navigation.poses import FAR, Pose, Ways
from vagentrl_envs.navigation.sight import Camera, Sight
from vagentrl_envs.navigation.view import Sighting, View

DRAWS = 300
"""Houses that are drawn for a seed until one is right."""
_STARTS = 8
"""Starts that are drawn in a house until one belongs to the seed's split."""
MAP_METRE = 24
"""Pixels of a metre on maps for people."""


class World(ABC):
    """An agent in a place, and what it can do and see there."""

    @abstractmethod
    def start(self, seed: int) -> None:
        """Set up the place of a seed, with the agent at its start."""

    @abstractmethod
    def act(self, action: str) -> bool:
        """Play one action.

        Args:
            action: One of `ACTIONS`.

        Returns:
            Whether it could be played; False if the way is blocked.
        """

    @property
    @abstractmethod
    def target(self) -> str:
        """Name of what is looked for."""

    @abstractmethod
    def view(self) -> View:
        """What the agent sees, and where the target is even if it is out of sight."""

    @abstractmethod
    def picture(self) -> Image.Image:
        """What the agent sees, as an RGB image."""

    @abstractmethod
    def arrived(self) -> bool:
        """Whether the agent has found the target."""

    @abstractmethod
    def fingerprint(self) -> Hashable:
        """The place, the target and the agent's pose; equal for equal ones."""

    def plan(self) -> tuple[str, ...] | None:
        """A shortest way to the target; None if unknown."""
        return None

    def clear_steps(self) -> dict[str, int] | None:
        """How often each move could be repeated from here; None if unknown."""
        return None

    def distance(self) -> float:
        """How far the target is: actions of a shortest plan, or metres if no plan is known."""
        plan = self.plan()
        return self.view().target.distance if plan is None else float(len(plan))

    def map(self) -> Image.Image | None:
        """The place from above, for people; None if there is no map."""
        return None

    def close(self) -> None:  # noqa: B027 (most worlds hold nothing)
        """Release what the world holds."""


class HouseRenderer(Protocol):
    """Draws what an agent sees in a house."""

    def picture(self, house: House, x: float, y: float, angle: float) -> Image.Image: ...


@dataclass(frozen=True)
class Task:
    """What counts as found, and how far away an episode begins.

    Attributes:
        success_distance: Metres from which the target counts as reached.
        must_see: Whether it must be in sight too.
        min_solution: Fewest actions of a shortest way.
        max_solution: Most actions of a shortest way.
    """

    success_distance: float
    must_see: bool
    min_solution: int
    max_solution: int


class HouseWorld(World):
    """A house drawn from the seed.

    Args:
        plan: How houses are drawn.
        task: What counts as found.
        turn_angle: Degrees of a turn, 45 or 90.
        actions: The actions that the agent has.
        camera: The agent's field of view.
        renderer: Draws the pictures.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        turn_angle: int,
        actions: Sequence[str],
        camera: Camera,
        renderer: HouseRenderer,
    ) -> None:
        self._plan, self.task, self._turn_angle = plan, task, turn_angle
        self._actions = tuple(actions)
        self._camera, self._renderer = camera, renderer
        self._house: House
        self._pose: Pose

    @property
    def house(self) -> House:
        """The house of this episode."""
        return self._house

    @property
    def pose(self) -> Pose:
        """Where the agent stands and looks."""
        return self._pose

    def start(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(DRAWS):
            house = self._plan.draw(rng)
            if house is None:
                continue
            self._enter(house)
            starts = np.argwhere(
                (self._far >= self.task.min_solution) & (self._far <= self.task.max_solution)
            )
            for choice in rng.integers(len(starts), size=_STARTS) if len(starts) else ():
                heading, row, column = map(int, starts[choice])
                self._pose = Pose((row, column), heading)
                if split_of_state(self.fingerprint()) == split_of(seed):
                    return
        raise EnvError(
            f"{DRAWS} houses had no start {self.task.min_solution} to {self.task.max_solution} "
            f"actions from the target (seed {seed}, for {split_of(seed)}); widen min_solution and "
            "max_solution, or give fewer things"
        )

    def start_in(self, house: House, pose: Pose) -> None:
        """Start in a given house."""
        self._enter(house)
        self._pose = pose

    def _enter(self, house: House) -> None:
        self._house = house
        self._ways = Ways(house, self._turn_angle, self._actions)
        self._sight = Sight(house, self._camera)
        self._angles = np.arange(self._ways.headings) * float(self._turn_angle)
        self._goals = self._find_goals()
        self._far = self._ways.distances(self._goals)
        self._far[:, ~house.free] = FAR

    def _find_goals(self) -> np.ndarray:
        """`(headings, rows, columns)`: the poses in which the target counts as found."""
        house, target = self._house, self._house.sought
        rows, columns = np.indices(house.shape)
        x, y = (columns + 0.5) * house.step, (rows + 0.5) * house.step
        reach = self.task.success_distance + 1e-6
        near = (np.hypot(x - target.x, y - target.y) <= reach) & house.free
        goals = np.zeros((self._ways.headings, *house.shape), bool)
        goals[:, near] = True
        if self.task.must_see:
            eyes = np.stack([x[near], y[near]], -1)
            goals[:, near] = self._sight.seen(eyes, self._angles, np.array([0]))[..., 0].T
        return goals

    @property
    def target(self) -> str:
        return self._house.sought.kind.name

    def act(self, action: str) -> bool:
        after = self._ways.act(self._pose, action)
        moved = after != self._pose
        self._pose = after
        return moved

    def arrived(self) -> bool:
        return bool(self._goals[self._pose.heading, *self._pose.point])

    def plan(self) -> tuple[str, ...] | None:
        return self._ways.plan(self._pose, self._far)

    def distance(self) -> float:
        return float(self._far[self._pose.heading, *self._pose.point])

    def clear_steps(self) -> dict[str, int]:
        moves = [action for action in self._actions if action.startswith("move")]
        return {move: self._ways.clear_steps(self._pose, move) for move in moves}

    def view(self) -> View:
        things = self._house.things
        x, y = self._house.place(self._pose.point)
        angle = self._angles[self._pose.heading]
        seen = self._sight.seen(
            np.array([(x, y)]), np.array([angle]), np.arange(len(things))
        )[0, 0]  # fmt: skip
        sightings = [
            Sighting.of(thing.kind.name, thing.x - x, thing.y - y, angle) for thing in things
        ]
        others = [sightings[n] for n in range(1, len(things)) if seen[n]]
        others.sort(key=lambda thing: (thing.distance, thing.name, thing.ahead))
        return View(sightings[0], bool(seen[0]), tuple(others))

    def picture(self) -> Image.Image:
        x, y = self._house.place(self._pose.point)
        return self._renderer.picture(self._house, x, y, self._angles[self._pose.heading])

    def fingerprint(self) -> str:
        return f"{self._house.fingerprint()} {tuple(self._pose.point)} {self._pose.heading}"

    def map(self) -> Image.Image:
        return house_map(self._house, self._pose, float(self._angles[self._pose.heading]))


def house_map(house: House, pose: Pose, angle: float) -> Image.Image:
    """A house from above, the north at the top: the target is red, the agent a blue triangle."""
    height, width = (round(n * house.step * MAP_METRE) + 9 for n in house.shape)
    image = Image.new("RGB", (width, height), (250, 248, 242))
    draw = ImageDraw.Draw(image)

    def at(x: float, y: float) -> tuple[float, float]:
        return 4 + x * MAP_METRE, height - 5 - y * MAP_METRE

    for wall in house.walls:
        draw.line([at(wall.x0, wall.y0), at(wall.x1, wall.y1)], fill=(60, 60, 60), width=2)
    for thing in house.things:
        if thing.kind is not DOORWAY:
            _draw_thing(draw, at(thing.x, thing.y), thing, sought=thing is house.sought)
    x, y = house.place(pose.point)
    corners = [(0.0, 0.34), (140.0, 0.28), (220.0, 0.28)]
    turned = [(np.radians(angle + by), far) for by, far in corners]
    draw.polygon([at(x + far * np.sin(a), y + far * np.cos(a)) for a, far in turned], (40, 90, 220))
    return image


def _draw_thing(
    draw: ImageDraw.ImageDraw, centre: tuple[float, float], thing: Thing, sought: bool
) -> None:
    x, y = centre
    half = MAP_METRE * 0.3
    fill, ink = ((220, 60, 50), (255, 255, 255)) if sought else ((190, 160, 120), (40, 30, 20))
    draw.rectangle((x - half, y - half, x + half, y + half), fill)
    draw.text((x, y), thing.kind.symbol, fill=ink, anchor="mm")
