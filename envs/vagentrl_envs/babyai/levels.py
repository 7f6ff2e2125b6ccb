"""Levels of BabyAI with a single kind of mission, which `minigrid` does not have.

This module imports `minigrid`; only `BabyAI.__init__` imports it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from minigrid.core.roomgrid import RoomGrid  # pyright: ignore[reportMissingImports]
from minigrid.envs.babyai.core.levelgen import (  # pyright: ignore[reportMissingImports]
    LevelGen,
)
from minigrid.envs.babyai.core.roomgrid_level import (  # pyright: ignore[reportMissingImports]
    RejectSampling,
)
from minigrid.envs.babyai.core.verifier import (  # pyright: ignore[reportMissingImports]
    OBJ_TYPES_NOT_DOOR,
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

from vagentrl.errors import EnvError

Kind = Literal["goto", "pickup", "pick_up_seq_go_to", "putnext", "open"]

ATTEMPTS = 500
"""Rooms that are drawn for a seed until its mission can be carried out."""


class Level(LevelGen):
    """One room with things in it, or for ``open`` two rooms with a door between them.

    Args:
        kind: The kind of mission.
        room_size: Rows and columns of a room, its walls included.
        distractors: Number of things in all rooms, the mission's included.
        max_steps: Steps after which the library truncates; None for its own rule, the number of
            cells of the rooms for each place that the mission leads to.
    """

    def __init__(self, kind: Kind, room_size: int, distractors: int, max_steps: int | None) -> None:
        self.kind = kind
        super().__init__(
            room_size=room_size,
            num_rows=1,
            num_cols=2 if kind == "open" else 1,
            num_dists=distractors,
            locked_room_prob=0.0,
            locations=False,
            unblocking=False,
            implicit_unlock=False,
            max_steps=max_steps,
        )

    def _gen_grid(self, width: int, height: int) -> None:
        """Draw rooms and a mission until they fit; the library's own prints each failure."""
        for _ in range(ATTEMPTS):
            try:
                RoomGrid._gen_grid(self, width, height)
                self.gen_mission()
                self.validate_instrs(self.instrs)
            except (RecursionError, RejectSampling):  # how the library says that it does not fit
                continue
            self.surface = self.mission = self.instrs.surface(self)
            return
        raise EnvError(
            f"{ATTEMPTS} draws gave no room for {self.num_dists} things and a {self.kind} mission; "
            "give a larger room_size or fewer distractors"
        )

    def gen_obs(self) -> dict[str, Any]:
        """Nothing: `View` asks for what is in sight when it is shown, not in every step."""
        return {}

    def rand_instr(self, *args: Any, **kwargs: Any) -> Any:
        """Draw the mission."""
        match self.kind:
            case "goto":
                return GoToInstr(self._thing())
            case "pickup":
                return PickupInstr(self._thing())
            case "putnext":
                return PutNextInstr(self._thing(), self._thing())
            case "open":
                return OpenInstr(self.rand_obj(types=["door"]))
            case "pick_up_seq_go_to":
                pick_up, go_to = PickupInstr(self._thing()), GoToInstr(self._thing())
                if self._rand_bool():
                    return BeforeInstr(pick_up, go_to)  # "…, then …"
                return AfterInstr(go_to, pick_up)  # "… after you …"

    def _thing(self) -> Any:
        return self.rand_obj(types=OBJ_TYPES_NOT_DOOR)


def fingerprint(level: Level) -> str:
    """The whole state of a level as text: the mission, every cell, and the agent."""
    grid = np.asarray(level.grid.encode()).tobytes().hex()
    x, y = level.agent_pos
    return f"{level.kind} {level.mission} {int(x)} {int(y)} {int(level.agent_dir)} {grid}"
