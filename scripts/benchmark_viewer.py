"""Stores and exports synthetic trajectories, and measures the page in a headless Chromium.

    python -m scripts.benchmark_viewer --trajectories 5000 --folder /tmp/viewer

It prints the seconds of storing and exporting, unless the folder holds the page already, the time
from opening the page on the disk until the list is shown, and the times of filters and of sorting
until the next frame is drawn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from PIL import Image

from scripts.headless_chromium import Browser, chromium
from vagentrl.types import Claim, Observation, Prompt, Reply, State, Stop, Trajectory, Turn
from vagentrl.viewer.export import export
from vagentrl.viewer.folder import TrajectoryFolder
from vagentrl.viewer.reading import FOLDER, read_run
from vagentrl.viewer.records import RowWriter, TokenScores
from vagentrl.viewer.site import PAGE, Site

GROUPS, MEMBERS = 8, 8
WORDS = ["<answer>", "Up", "Down", "Left", "Right", "</answer>", "Ġthe", "Ġbox", "Ġis", "Ġat", "Ċ"]
SETTLED = """
new Promise(done => { const begun = performance.now(); {action};
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun))); })
"""
SET = (
    "controls.{control}.value = {value}; "
    "document.getElementById('filters').dispatchEvent(new Event('input'))"
)
CASES = {
    "filter by success": SET.format(control="success", value="'true'"),
    "filter by return": SET.format(control="return[0]", value="0.5"),
    "filter by seed": SET.format(control="seed", value="'1006'"),
    "reset": "document.getElementById('filters').reset()",
    "sort by return": "document.querySelectorAll('#columns button')[6].click()",
    "next trajectory": "moveInList(1)",
}


def room(generator: np.random.Generator, step: int) -> Image.Image:
    """A picture of a room with a player and a box."""
    pixels = np.full((6, 6, 3), 235, np.uint8)
    pixels[[0, -1]] = pixels[:, [0, -1]] = (90, 90, 100)
    for colour in ((60, 110, 220), (200, 140, 60), (70, 170, 90)):
        pixels[tuple(generator.integers(1, 5, 2))] = colour
    pixels[1, 1 + step % 4] = (60, 110, 220)
    return Image.fromarray(pixels.repeat(14, 0).repeat(14, 1))


def synthetic(
    seed: int, group: int, skill: float, generator: np.random.Generator, *, images: bool
) -> tuple[Trajectory, list[TokenScores]]:
    """A trajectory of three to six turns, and scores of its tokens."""
    turns, scores = [], []
    length, won = int(generator.integers(3, 7)), bool(generator.random() < skill)
    for number in range(length):
        ids = generator.integers(0, len(WORDS), 24)
        logprobs = -generator.exponential(0.7, len(ids))
        text = "".join(WORDS[i] for i in ids).replace("Ġ", " ").replace("Ċ", "\n")
        last = number == length - 1
        shown = (
            f"<image>Turn {number}: push the box." if images else f"Turn {number}:\n#####\n#P_B#"
        )
        claim = Claim("observation", "the box is below me", "natural", State("true", "{}", "#"))
        turns.append(
            Turn(
                Observation(shown, (room(generator, number),) if images else ()),
                Prompt(tuple(generator.integers(0, len(WORDS), 40).tolist())),
                tuple(ids.tolist()),
                tuple(logprobs.tolist()),
                Reply(text, actions=("Up",), thought="the box is below me"),
                reward=1.0 if won and last else -0.1,
                finish="stop",
                metrics={"success": float(won and last), "valid": 1.0},
                claims=(claim,),
                scores={"observation": float(generator.random())},
                reasons={"observation": "2 of 3 coordinates are right"},
                bonus=0.1,
                policy_version=group,
            )
        )
        actor = logprobs + generator.normal(0, 0.01, len(ids))
        scores.append(
            TokenScores(
                actor.tolist(),
                (actor - generator.normal(0, 0.2, len(ids))).tolist(),
                generator.exponential(0.5, len(ids)).tolist(),
                generator.normal(0.3, 0.1, len(ids)).tolist(),
                [1.0 if won else -0.4] * len(ids),
            )
        )
    end: Stop = "terminated" if won else "truncated"
    return Trajectory("train", seed, group, tuple(turns), end, Observation("over")), scores


def store(folder: Path, count: int, *, images: bool = True) -> None:
    """Store trajectories of many iterations, and an evaluation of the same seeds at every fifth."""
    written, generator = TrajectoryFolder(folder, 1e12), np.random.default_rng(0)
    iterations = -(-count // (GROUPS * MEMBERS))
    for iteration in range(iterations):
        split, skill = "val" if iteration % 5 == 0 else "train", 0.2 + 0.7 * iteration / iterations
        rows = RowWriter(lambda ids: [WORDS[i] for i in ids])
        left = min(GROUPS * MEMBERS, count - iteration * GROUPS * MEMBERS)
        for number in range(left):
            group, member = divmod(number, MEMBERS)
            seed = 1000 + group if split == "val" else 2 * (iteration * GROUPS + group)
            played, scores = synthetic(seed, group, skill, generator, images=images)
            known = scores if split == "train" else None
            rows.add(played, split=split, iteration=iteration, member=member, scores=known)
        written.write(split, iteration, rows.rows, rows.images)


def measure(browser: Browser, url: str, repeats: int) -> None:
    """Print the times of opening the page and of `CASES`.

    On a busy machine the shortest time by the clock and the processor time of the page's thread
    tell more than the median.
    """
    browser.call("Performance.enable", timeDomain="threadTicks")
    print(f"{'ms':<18} {'median':>8} {'shortest':>9} {'processor':>10}")
    opened: list[float] = []
    for _ in range(repeats):
        browser.open(url)
        opened.append(float(browser.run("document.documentElement.dataset.ready")))
    show("open", opened, busy(browser))  # the page is new, and so is its count
    for name, action in CASES.items():
        before = busy(browser)
        took = [browser.run(SETTLED.replace("{action}", action)) for _ in range(repeats)]
        show(name, took, (busy(browser) - before) / repeats)


def show(name: str, times: list[float], processor: float) -> None:
    print(f"{name:<18} {statistics.median(times):>8.0f} {min(times):>9.0f} {processor:>10.0f}")


def busy(browser: Browser) -> float:
    """Milliseconds of processor time that the page's main thread has used."""
    metrics = browser.call("Performance.getMetrics")["metrics"]
    (seconds,) = [metric["value"] for metric in metrics if metric["name"] == "TaskDuration"]
    return 1000 * seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=5000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    page = arguments.folder / "page" / PAGE
    if not page.exists():
        started = time.process_time()
        store(arguments.folder / FOLDER, arguments.trajectories)
        print(f"stored in {time.process_time() - started:.1f} s of processor time")
        started = time.process_time()
        export(Site(read_run(arguments.folder)), page.parent)
        print(f"exported in {time.process_time() - started:.1f} s of processor time")
    size = sum(file.stat().st_size for file in page.parent.rglob("*") if file.is_file())
    print(f"{arguments.trajectories} trajectories, {size / 1e6:.1f} MB")
    with chromium() as browser:
        measure(browser, page.resolve().as_uri(), arguments.repeats)
        print("complaints:", browser.complaints() or "none")


if __name__ == "__main__":
    main()
