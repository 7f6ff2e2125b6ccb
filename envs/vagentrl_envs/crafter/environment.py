"""Crafter: survive in an open world, and unlock 22 achievements."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image as Images

from vagentrl.environment import ActionEnvironment, Outcome
from vagentrl.errors import ConfigError, EnvError
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Reply, State, StepResult
from vagentrl_envs.crafter.expert import next_action
from vagentrl_envs.crafter.words import (
    VITALS,
    belongings,
    facing,
    grid,
    legend,
    nearest,
    told,
    way,
)
from vagentrl_envs.crafter.world import World

if TYPE_CHECKING:
    from PIL.Image import Image

LIBRARY_LIMIT = 10_000
"""Steps after which the published game ends."""

ACTIONS = {
    "noop": "noop",
    "move west": "move_left",
    "move east": "move_right",
    "move north": "move_up",
    "move south": "move_down",
    "do": "do",
    "sleep": "sleep",
    "place stone": "place_stone",
    "place table": "place_table",
    "place furnace": "place_furnace",
    "place plant": "place_plant",
    "make wood pickaxe": "make_wood_pickaxe",
    "make stone pickaxe": "make_stone_pickaxe",
    "make iron pickaxe": "make_iron_pickaxe",
    "make wood sword": "make_wood_sword",
    "make stone sword": "make_stone_sword",
    "make iron sword": "make_iron_sword",
}
"""The library's name of each action, in the library's order."""

_WAYS = {"west": "left", "east": "right", "north": "up", "south": "down"}
ALIASES = {
    **{library: name for name, library in ACTIONS.items() if library != name},
    **{way: f"move {way}" for way in _WAYS},
    **{side: f"move {way}" for way, side in _WAYS.items()},
    **{f"go {way}": f"move {way}" for way in _WAYS},
    **{f"walk {way}": f"move {way}" for way in _WAYS},
    **dict.fromkeys(
        ("interact", "collect", "attack", "hit", "drink", "eat", "mine", "use", "chop"), "do"
    ),
    **dict.fromkeys(("wait", "idle", "none", "do nothing"), "noop"),
    **{f"craft {name[5:]}": name for name in ACTIONS if name.startswith("make ")},
    **{f"build {name[6:]}": name for name in ACTIONS if name.startswith("place ")},
}

ACHIEVEMENTS = (
    "collect_coal", "collect_diamond", "collect_drink", "collect_iron", "collect_sapling",
    "collect_stone", "collect_wood", "defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant",
    "make_iron_pickaxe", "make_iron_sword", "make_stone_pickaxe", "make_stone_sword",
    "make_wood_pickaxe", "make_wood_sword", "place_furnace", "place_plant", "place_stone",
    "place_table", "wake_up",
)  # fmt: skip

FRAME_CELL = 48


class Crafter(ActionEnvironment):
    """Crafter (Hafner 2022): collect, build, eat, drink, sleep, fight, and stay alive.

    The seed decides the world and the transition seed what happens in it; the library's own game
    differs between processes. Unlocking achievements earns 1, and losing or regaining health a
    tenth of each point, as published. The episode terminates at death; the library's limit of
    steps truncates it. Every seed has a world of its own, so the splits share none.

    Each step's metric ``achievements`` is the number that are unlocked so far. The last step of an
    episode also has ``unlocked_NAME`` for each of the 22, so that its mean is the success rate of
    that achievement, ``score``, the share of the 22, and ``survived``. An episode is a success if
    all 22 are unlocked.

    Args:
        observation: What the agent sees: ``text`` names the nearest of each thing in view, as in
            BALROG; ``grid`` has a symbol for each cell in view; ``image`` is the library's picture.
        cell: Pixels per cell of the image, which is 9 cells wide and high.
        length: Steps after which the library's game ends.
        turn_limit: Turns after which an episode is truncated.
        repair: Whether other spellings of an action, such as ``move_left``, are accepted; the
            metric ``repaired_actions`` is their share.
        scripted_oracle: Whether `oracle` gives the next action of a scripted player, so that
            ``vagentrl warmstart`` can clone it.
        **settings: The other settings of ``ActionEnvironment``.
    """

    def __init__(
        self,
        observation: Literal["text", "grid", "image"] = "text",
        cell: int = 14,
        length: int = LIBRARY_LIMIT,
        turn_limit: int = LIBRARY_LIMIT,
        repair: bool = True,
        scripted_oracle: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(
            action_names=tuple(ACTIONS),
            turn_limit=turn_limit,
            aliases=ALIASES if repair else None,
            **settings,
        )
        self.observation = observation
        self.cell = cell
        self.length = length
        self.scripted_oracle = scripted_oracle
        if find_spec("crafter") is None:
            raise ConfigError("Crafter needs the library crafter: pip install 'vagentrl[crafter]'")
        if observation not in ("text", "grid", "image"):
            raise ConfigError(f"observation is {observation!r}; give text, grid or image")
        if cell < 7:
            raise ConfigError(f"cell is {cell}; give at least 7 pixels")
        if length < 1:
            raise ConfigError(f"length is {length}; give at least 1 step")
        self._made: World | None = None  # the library's textures are read once

    # -------------------------------------------------------------------------------- the episode

    @property
    def world(self) -> World:
        """The game of this episode."""
        return self._world

    @property
    def _world(self) -> World:
        if self._made is None:
            raise EnvError("no game of Crafter has started; call reset")
        return self._made

    def initial_state(self, seed: int) -> Hashable:
        return seed  # every seed has a world of its own

    def oracle(self) -> tuple[str, ...] | None:
        """Return the scripted player's next action if `scripted_oracle` is set; else None.

        No solution is known: what is left after that action would have to be asked again.
        """
        return self.scripted() if self.scripted_oracle else None

    def scripted(self) -> tuple[str, ...] | None:
        """Return the next action of a scripted player, which is good but not optimal.

        None once the player is dead.
        """
        action = next_action(self._world)
        return None if action is None else (action,)

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        unlocked = self._world.unlocked
        metrics = {**result.metrics, "achievements": float(len(unlocked))}
        if result.terminated or result.truncated:
            metrics |= {f"unlocked_{name}": float(name in unlocked) for name in ACHIEVEMENTS}
            metrics["score"] = len(unlocked) / len(ACHIEVEMENTS)
            metrics["survived"] = float(not result.terminated)
            metrics["success"] = float(len(unlocked) == len(ACHIEVEMENTS))
        return replace(result, metrics=metrics)

    def _start(self, seed: int, transition_seed: int) -> None:
        if self._made is None:
            self._made = World(self.length)
        self._made.start(seed, transition_seed)

    def _act(self, action: str) -> Outcome:
        world = self._world
        before = _changing(world)
        passed = world.step(self.action_names.index(action))
        return Outcome(
            passed.reward,
            done=passed.dead,
            changed=_changing(world) != before,
            truncated=passed.out_of_time,
        )

    # ------------------------------------------------------------------------------ what is shown

    def state(self) -> State:
        world = self._world
        direction, ahead = facing(world)
        vitals = {name: world.inventory[name] for name in VITALS}
        have = belongings(world.inventory)
        return State(
            natural=told(world),
            structured=json.dumps(
                {
                    "nearest": {name: [right, down] for name, right, down in nearest(world)},
                    "facing": [direction, ahead],
                    "vitals": vitals,
                    "inventory": have,
                    "asleep": bool(world.player.sleeping),
                },
                separators=(",", ":"),
            ),
            symbolic="\n".join(
                [
                    grid(world),
                    f"facing {direction}",
                    " ".join(f"{name} {n}" for name, n in (vitals | have).items()),
                    *["asleep"] * bool(world.player.sleeping),
                ]
            ),
        )

    def rubric(self) -> str:
        return (
            "It says which of water, stone, tree, lava, coal, iron, diamond, table, furnace, cow, "
            "zombie, skeleton, arrow and plant are in view, and where the nearest of each is, "
            "exactly: how many cells to the east or west and how many to the north or south of the "
            "player. Where several of a kind are equally near, any of them will do. It says which "
            "way the player faces, the four numbers for health, food, drink and energy, and what "
            "the player has, with numbers. Neither the order nor the wording matters, and grass, "
            "sand and path need not be told. It is wrong if one of these is missing, wrong or "
            "vague, or if it names something that is not there."
        )

    def frame(self) -> Image:
        return Images.fromarray(self._world.picture(FRAME_CELL))

    def _observe(self) -> Observation:
        if self.observation == "text":
            return Observation(told(self._world))
        if self.observation == "grid":
            lines = told(self._world, sights=()).split("\n")[1:]
            return Observation("\n".join([grid(self._world), *lines]))
        return Observation(IMAGE_PLACEHOLDER, (Images.fromarray(self._world.picture(self.cell)),))

    def system_prompt(self) -> str:
        shown = {
            "text": "You are told the nearest of each kind of thing in the 9 columns and 7 rows "
            "around you, in steps east or west and north or south.",
            "grid": f"You see 9 columns and 7 rows, yourself in the middle. Symbols: {legend()}.",
            "image": "The picture shows the 9 columns and 7 rows around you, and below them "
            "health, food, drink, energy and what you carry.",
        }
        return "\n".join(
            [
                "You live in a world of grassland, lakes, forests, mountains and caves. Stay alive "
                "and unlock as many of these achievements as you can: "
                f"{', '.join(name.replace('_', ' ') for name in ACHIEVEMENTS)}.",
                f"Actions: {', '.join(self.action_names)}. Moving turns you, and takes you a step "
                "if nothing is in the way. To do works on what you face: it collects, drinks, eats "
                "and fights.",
                _recipes(),
                shown[self.observation],
                self.format.instructions(self.actions_per_turn, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        """Describe how to write a state in the reply format's representation."""
        match self.format.state:
            case "natural":
                return (
                    "what you see, face, are and have, for example: You see: tree "
                    f"{way(1, 0)}, water {way(-2, 3)}. You face east: tree. You are at health 9, "
                    "food 8, drink 8, energy 9, of 9 each. You have: 2 wood."
                )
            case "structured":
                return (
                    '{"nearest":{"thing":[steps east,steps south]},"facing":["direction","thing"],'
                    '"vitals":{"health":n,"food":n,"drink":n,"energy":n},"inventory":{"thing":n},'
                    '"asleep":false}'
                )
            case "symbolic":
                return (
                    f"7 lines of 9 symbols ({legend()}), then a line such as: facing north, and a "
                    "line such as: health 9 food 9 drink 9 energy 9 wood 1"
                )
            case None:
                return None


def _changing(world: World) -> tuple[Any, ...]:
    """Return what an action may change at once: place, direction, belongings, sleep."""
    player = world.player
    return (
        tuple(int(x) for x in player.pos),
        tuple(player.facing),
        tuple(player.inventory.items()),
        player.sleeping,
    )


def _recipes() -> str:
    """Say what things cost, from the library's own table."""
    from crafter import constants as library  # pyright: ignore[reportMissingImports]

    constants: Any = library  # it has its tables from a file, which no checker reads
    parts = []
    for verb, table in (("place", constants.place), ("make", constants.make)):
        for name, how in table.items():
            uses = " and ".join(f"{n} {item}" for item, n in how["uses"].items())
            near = " and ".join(how.get("nearby", ()))
            parts.append(
                f"{verb} {name.replace('_', ' ')}: {uses}{f' near {near}' if near else ''}"
            )
    needs = [
        f"{material} needs the {tool.replace('_', ' ')}"
        for material, how in constants.collect.items()
        for tool in how["require"]
    ]
    return f"Costs: {'; '.join(parts)}. To collect, {', '.join(needs)}."
