"""Measures PrimitiveSkill: milliseconds of one core for a skill and for a picture.

    OMP_NUM_THREADS=1 python scripts/benchmark_primitive_skill.py

Prints the rows of the table in docs/environments/primitive_skill.md. Process time is counted, so
that other programs on the machine disturb it little.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import mean

from vagentrl_envs.primitive_skill import PrimitiveSkill
from vagentrl_envs.primitive_skill.scene import Scene
from vagentrl_envs.primitive_skill.skills import Skill, read_skill

SCENES = 30
SIZES = (112, 224)


def main() -> None:
    env = PrimitiveSkill("place", 3, observation="text")
    spent: dict[str, list[float]] = defaultdict(list)
    for scene, skill in _work(env):
        spent[skill.verb].append(_milliseconds(env.backend.perform, scene, skill, False))
    for verb, times in spent.items():
        print(f"| {verb} | {mean(times):.1f} | the same |")
    cells = []
    for size in SIZES:
        env.backend.picture(env.scene, size)  # takes the picture of the arm, once in a process
        times = [_milliseconds(env.backend.picture, env.scene, size) for _ in range(SCENES)]
        cells.append(f"{mean(times):.1f}")
    print(f"| picture | {' | '.join(cells)} |")


def _work(env: PrimitiveSkill) -> Iterator[tuple[Scene, Skill]]:
    """Scenes with a skill to play in each: of some episodes a pick, its place, and a push."""
    for seed in range(SCENES):
        env.reset(seed)
        scene = env.scene
        for text in (*(env.oracle() or ())[:2], env.action_names[-1]):
            skill = read_skill(text)
            if skill is not None:
                yield scene, skill
                scene = env.backend.perform(scene, skill, False)


def _milliseconds(work: Callable[..., object], *arguments: object) -> float:
    started = time.process_time()
    work(*arguments)
    return 1000 * (time.process_time() - started)


if __name__ == "__main__":
    main()
