"""Draws houses by MiniWorld (OpenGL) instead of the project's raycaster.

OpenGL keeps its state per process and draws in one thread, so all renderers of a process share what
is here, and a second thread is refused.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vagentrl.errors import ConfigError, EnvError
from vagentrl_envs.navigation.house import EYE_HEIGHT, WALL_HEIGHT, House, Thing
from vagentrl_envs.navigation.kinds import DOORWAY
from vagentrl_envs.navigation.textures import sprite_atlas

if TYPE_CHECKING:
    from types import ModuleType

_PAPERS = ("drywall", "brick_wall", "wood", "cinder_blocks", "stucco", "rock")
_FLOORS = ("wood_planks", "floor_tiles_bw", "concrete_tiles")


class MiniWorldRenderer:
    """Draws houses as an agent sees them, with MiniWorld's textures.

    Args:
        width: Columns of the picture.
        height: Rows of the picture.
        fov: Degrees from the left to the right edge.

    Raises:
        ConfigError: When MiniWorld is not installed.
    """

    def __init__(self, width: int, height: int, fov: float) -> None:
        self._library = _library()
        self._size = (width, height)
        slope = math.tan(math.radians(fov / 2)) * height / width
        self._fov_y = 2 * math.degrees(math.atan(slope))
        self._stage: Any = None

    def picture(self, house: House, x: float, y: float, angle: float) -> Image.Image:
        """The picture at a place, looking `angle` degrees clockwise from the north.

        Raises:
            EnvError: When another thread of the process has drawn before.
        """
        _claim_thread()
        if self._stage is None:
            self._stage = _stage_class()(*self._size, self._fov_y)
        if _shown != [self._stage, house]:
            self._stage.show(house)
            _shown[:] = [self._stage, house]
        return Image.fromarray(self._stage.look(x, y, angle))

    def __deepcopy__(self, memo: dict[int, Any]) -> MiniWorldRenderer:
        """Itself: windows cannot be copied, and a picture depends on nothing drawn before."""
        return self


_shown: list[Any] = [None, None]
"""The stage that was drawn on last, and its house: OpenGL has one list of static parts."""
_thread: list[int] = []
_sprites: dict[str, Any] = {}


def _library() -> ModuleType:
    # triton crashes the process if Mesa's software OpenGL has loaded another LLVM before it, and
    # torch loads triton when it first needs it.
    with contextlib.suppress(ImportError):
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports, reportUnusedImport]
    try:
        import pyglet  # pyright: ignore[reportMissingImports]

        pyglet.options["headless"] = True  # before anything that opens a window is imported
        import miniworld.miniworld  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"renderer miniworld needs MiniWorld ({error}); pip install 'vagentrl[miniworld]', and "
            "an EGL library such as Debian's libegl1"
        ) from error
    return miniworld.miniworld


def _claim_thread() -> None:
    here = threading.get_ident()
    if not _thread:
        _thread.append(here)
    if _thread != [here]:
        raise EnvError(
            "MiniWorld draws in one thread of a process, and another one has drawn before; set "
            "data.workers to process"
        )


def _stage_class() -> type[Any]:
    """The class of stages, which exists once the library is imported."""
    library: Any = _library()

    class Stage(library.MiniWorldEnv):
        """A world without a game: it shows a house from any place.

        Args:
            width: Columns of the picture.
            height: Rows of the picture.
            fov_y: Degrees from the lower to the upper edge.
        """

        def __init__(self, width: int, height: int, fov_y: float) -> None:
            self._house: House | None = None
            self._fov_y = fov_y
            super().__init__(obs_width=width, obs_height=height, window_width=16, window_height=16)

        def show(self, house: House) -> None:
            """Build a house."""
            self._house = house
            self.reset()

        def look(self, x: float, y: float, angle: float) -> np.ndarray:
            """`(height, width, 3)` bytes: what is seen from a place."""
            _aim(self.agent, x, y, angle, self._fov_y)
            return np.ascontiguousarray(self.render_obs())

        def _gen_world(self) -> None:
            _aim(self.agent, 0.0, 0.0, 0.0, self._fov_y)
            if self._house is None:
                self.add_rect_room(0, 1, -1, 0)
                return
            _build_rooms(self, self._house)
            for thing in self._house.things:
                if thing.kind is not DOORWAY:
                    self.entities.append(_billboard(thing, self.agent))

    return Stage


def _aim(agent: Any, x: float, y: float, angle: float, fov_y: float) -> None:
    """Put the camera at a place; MiniWorld's z grows to the south and its angles from the east."""
    agent.pos = np.array([x, 0.0, -y])
    agent.dir = math.radians(90 - angle)
    agent.cam_height, agent.cam_fwd_disp, agent.cam_pitch = EYE_HEIGHT, 0.0, 0.0
    agent.cam_fov_y = fov_y


def _build_rooms(stage: Any, house: House) -> None:
    size, rooms = house.room_size, {}
    for number, (row, column) in enumerate(house.rooms):
        rooms[row, column] = stage.add_rect_room(
            min_x=column * size,
            max_x=(column + 1) * size,
            min_z=-(row + 1) * size,
            max_z=-row * size,
            wall_height=WALL_HEIGHT,
            wall_tex=_PAPERS[house.papers[number]],
            floor_tex=_FLOORS[house.floor],
        )
    for one, other, gap in house.gaps:
        low, high = gap * house.step, (gap + house.gap_points) * house.step
        if other[0] > one[0]:
            start = one[1] * size
            stage.connect_rooms(rooms[one], rooms[other], min_x=start + low, max_x=start + high)
        else:
            start = one[0] * size
            limits = {"min_z": -(start + high), "max_z": -(start + low)}
            stage.connect_rooms(rooms[one], rooms[other], **limits)


def _billboard(thing: Thing, viewer: Any) -> Any:
    """A picture of a thing that always faces the viewer."""
    from miniworld.entity import Entity  # pyright: ignore[reportMissingImports]
    from pyglet import gl  # pyright: ignore[reportMissingImports]

    class Billboard(Entity):
        def render(self) -> None:
            forward = np.array([math.cos(viewer.dir), -math.sin(viewer.dir)])
            right = np.array([-forward[1], forward[0]]) * thing.kind.width / 2
            texture = _sprite(thing.kind.name)
            gl.glDisable(gl.GL_LIGHTING)
            gl.glDisable(gl.GL_CULL_FACE)
            gl.glEnable(gl.GL_TEXTURE_2D)
            gl.glEnable(gl.GL_ALPHA_TEST)
            gl.glAlphaFunc(gl.GL_GREATER, 0.5)
            gl.glBindTexture(texture.target, texture.id)
            gl.glColor4f(1, 1, 1, 1)
            gl.glBegin(gl.GL_QUADS)
            for across, up in ((0, 0), (1, 0), (1, 1), (0, 1)):
                east, south = np.array([thing.x, -thing.y]) + right * (2 * across - 1)
                gl.glTexCoord2f(across, up)
                gl.glVertex3f(east, up * thing.kind.height, south)
            gl.glEnd()
            gl.glDisable(gl.GL_ALPHA_TEST)
            gl.glEnable(gl.GL_CULL_FACE)
            gl.glEnable(gl.GL_LIGHTING)

    return Billboard()


def _sprite(name: str) -> Any:
    """The texture of a kind of thing; made once in a process."""
    if name not in _sprites:
        import pyglet  # pyright: ignore[reportMissingImports]

        pixels = np.ascontiguousarray(sprite_atlas()[name][0][0].T[::-1])  # from the bottom up
        side = len(pixels)
        image = pyglet.image.ImageData(side, side, "RGBA", pixels.tobytes())
        _sprites[name] = image.get_texture()
    return _sprites[name]
