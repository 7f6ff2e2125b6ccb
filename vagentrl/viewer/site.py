"""The viewer's page and its data, by the path under which a browser asks for them.

A server serves these paths, and an export writes them as files. Data are scripts that call one
function with one JSON value: a page opened from a disk may load scripts, but may not fetch.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from html import escape
from importlib.resources import files
from typing import Any

from vagentrl.errors import ConfigError
from vagentrl.viewer.reading import IMAGES, StoredRun, TrajectoryFile, UnreadableFile

PAGE = "index.html"
INDEX = "index"
"""Name of the data that the page loads first: the facts of all trajectories, without turns."""
SCRIPTS = (
    "text.js",
    "data.js",
    "list.js",
    "tokens.js",
    "trajectory.js",
    "compare.js",
    "game.js",
    "main.js",
)
DIGITS = 5
"""Significant digits of the numbers of single tokens."""

_FACTS = ("iteration", "group", "member", "return", "success", "learned", "error", "length")
_NAMED = ("environment", "split", "stop", "policy")
_PER_TOKEN = {
    "logprobs": "logprob",
    "actor_logprobs": "actor",
    "reference_logprobs": "reference",
    "entropies": "entropy",
    "values": "value",
    "advantages": "advantage",
}


@dataclass(frozen=True)
class Live:
    """What a served page can play.

    Attributes:
        problem: Why nothing can be played; None if it can.
        policies: Names of the checkpoints that may be asked.
    """

    problem: str | None = None
    policies: tuple[str, ...] = ()


class Site:
    """All that the page shows of a run.

    Args:
        run: What the run's folder holds.
        live: What the page can play, where it is served; None for a page that is opened from a
            disk.

    Attributes:
        problems: A sentence about each file that is not shown, or not completely.
        trajectories: The number of trajectories.
    """

    def __init__(self, run: StoredRun, live: Live | None = None) -> None:
        self.run = run
        self.live = live
        self.problems = list(run.problems)
        self._parts: dict[str, tuple[TrajectoryFile, int]] = {}
        facts: list[dict[str, Any]] = []
        for file in run.files:
            try:
                rows = file.facts()
            except UnreadableFile as error:
                self.problems.append(f"{file.path.name} is left out: it {error}")
                continue
            names = [f"{file.path.stem}-{part}" for part in range(file.groups)]
            self._parts |= {name: (file, part) for part, name in enumerate(names)}
            for number, row in enumerate(rows):
                known_as = row["episode"] or f"{file.path.stem}/{number}"
                facts.append(row | {"chunk": names[row["part"]], "episode": known_as})
        facts = _latest(facts)
        self.trajectories = len(facts)
        self._where = {fact["episode"]: (fact["chunk"], fact["place"]) for fact in facts}
        self._index = _columns(facts, list(self._parts))

    @property
    def names(self) -> list[str]:
        """Names of all data: the index and the parts of the files."""
        return [INDEX, *self._parts]

    def images(self) -> Iterable[str]:
        """Names of all images that the trajectories show and that are there."""
        folders = self.run.image_folders
        return sorted({path.name for folder in folders for path in folder.glob("*.png")})

    def image(self, name: str) -> bytes:
        """A PNG file; `name` is one of `images`."""
        first, *others = self.run.image_folders
        found = next((f for f in others if not (first / name).exists()), first)
        return (found / name).read_bytes()

    def row(self, episode: str) -> dict[str, Any]:
        """A whole stored trajectory.

        Args:
            episode: What the index calls it.

        Raises:
            ConfigError: When it is not there, or its file is damaged.
        """
        if episode not in self._where:
            raise ConfigError(f"there is no trajectory {episode!r}; open the page again")
        chunk, place = self._where[episode]
        file, part = self._parts[chunk]
        try:
            return file.rows(part)[place]
        except (UnreadableFile, IndexError) as error:
            raise ConfigError(f"{file.path.name} cannot be read: {error}") from error

    def data(self, name: str) -> str:
        """One of `names` as JSON in ASCII, without any ``<``.

        Where a file turns out to be damaged, the JSON has the key ``problem`` alone.
        """
        if name == INDEX:
            live = None if self.live is None else asdict(self.live)
            index = {"run": self.run.name, "problems": self.problems, "live": live, **self._index}
            return to_json(index)
        file, part = self._parts[name]
        try:
            return to_json(_chunk(file.rows(part)))
        except UnreadableFile as error:
            return to_json({"problem": f"{file.path.name} {error}"})

    def script(self, name: str) -> bytes:
        """One of `names` as a script for the page."""
        return f"receiveData({to_json(name)}, {self.data(name)});\n".encode("ascii")

    def page(self, inline: Mapping[str, str] | None = None) -> bytes:
        """The page.

        Args:
            inline: Data to put into the page itself, as JSON without any ``<``, by name; what is
                not there is loaded from ``data/NAME.js`` when it is needed.
        """
        style, script = _asset("viewer.css"), "\n".join(map(_asset, SCRIPTS))
        blocks = "".join(
            f'<script type="application/json" data-name="{escape(name)}">{value}</script>\n'
            for name, value in (inline or {}).items()
        )
        parts = {
            "POLICY": escape(content_policy(style, script, served=self.live is not None)),
            "TITLE": escape(f"{self.run.name} · trajectories"),
            "STYLE": style,
            "DATA": blocks,
            "SCRIPT": script,
        }
        mark = re.compile(f"@({'|'.join(parts)})@")  # in one pass: nothing in a part is a mark
        page = mark.sub(lambda match: parts[match[1]], _asset("page.html"))
        return page.encode()


def content_policy(style: str, script: str, *, served: bool) -> str:
    """A Content-Security-Policy that allows this style, this script, data files and images.

    A page that is served may also ask its own server.
    """
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' file: '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "img-src 'self' file: data:",
            *(["connect-src 'self'"] if served else []),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _asset(name: str) -> str:
    return (files("vagentrl.viewer") / "page" / name).read_text(encoding="utf-8")


def to_json(value: Any) -> str:
    """JSON that is safe in a script and in a page: ASCII, and no tag can begin in it."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # looking at each number first would take longer than writing them
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; the page gets their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _columns(facts: list[dict[str, Any]], chunks: list[str]) -> dict[str, Any]:
    """The facts by column; names that repeat are numbered."""
    numbers = {name: number for number, name in enumerate(chunks)}
    columns: dict[str, Any] = {name: [fact[name] for fact in facts] for name in _FACTS}
    columns["seed"] = [str(fact["seed"]) for fact in facts]  # JavaScript would round it
    columns["chunk"] = [numbers[fact["chunk"]] for fact in facts]
    columns["earlier"] = [fact["earlier_turns"] for fact in facts]
    columns |= {name: [fact[name] for fact in facts] for name in ("place", "episode")}
    rows = {fact["episode"]: number for number, fact in enumerate(facts)}
    # a branch names its origin by its row: -1 where that is gone, null where there is none
    columns["origin"] = [fact["origin"] and rows.get(fact["origin"], -1) for fact in facts]
    columns["originTurn"] = [fact["origin_turn"] for fact in facts]
    named = {}
    for name in _NAMED:
        named[name] = list(dict.fromkeys(fact[name] for fact in facts))
        number = {value: place for place, value in enumerate(named[name])}
        columns[name] = [number[fact[name]] for fact in facts]
    return {"chunks": chunks, "names": named, "columns": columns}


def _latest(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts without those of episodes that were added again later."""
    last = {fact["episode"]: number for number, fact in enumerate(facts)}
    return [fact for number, fact in enumerate(facts) if last[fact["episode"]] == number]


def _chunk(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The turns of some trajectories; each distinct token is written once."""
    vocabulary: dict[tuple[int, str], int] = {}
    trajectories = [
        {
            "turns": [_turn(turn, vocabulary) for turn in row["turns"]],
            "final": row["final_observation"],
            "finalImages": row["final_images"],
            "earlierReturn": row["earlier_return"],
        }
        for row in rows
    ]
    return {"vocabulary": [list(token) for token in vocabulary], "trajectories": trajectories}


def _turn(turn: dict[str, Any], vocabulary: dict[tuple[int, str], int]) -> dict[str, Any]:
    plain = {name: value for name, value in turn.items() if name not in _REWRITTEN}

    def numbered(kind: str) -> list[int]:
        tokens = zip(turn[f"{kind}_ids"], turn[f"{kind}_tokens"], strict=True)
        return [vocabulary.setdefault(token, len(vocabulary)) for token in tokens]

    scores = {
        short: None if turn[name] is None else list(map(_rounded, turn[name]))
        for name, short in _PER_TOKEN.items()
    }
    return {
        **plain,
        # Pairs: an object's key that an environment chose could be __proto__.
        "metrics": [list(pair) for pair in turn["metrics"]],
        "prompt": numbered("prompt"),
        "tokens": numbered("reply"),
        "scores": scores,
    }


_REWRITTEN = {
    *_PER_TOKEN,
    "metrics",
    *(f"{kind}_{what}" for kind in ("prompt", "reply") for what in ("ids", "tokens")),
}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def resources(site: Site) -> dict[str, Any]:
    """A function that returns the bytes, for each path of the site."""
    return {
        PAGE: site.page,
        **{f"data/{name}.js": partial(site.script, name) for name in site.names},
        **{f"{IMAGES}/{name}": partial(site.image, name) for name in site.images()},
    }
