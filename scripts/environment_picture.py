"""Draws an episode of an environment for its page in the documentation.

    python scripts/environment_picture.py vagentrl_envs.sokoban.Sokoban \
        --settings '{"size": 6, "observation": "text"}' --figure docs/figures/env_sokoban.png

The oracle plays where there is one, and random actions otherwise.
"""

from __future__ import annotations

import argparse
import json
from pydoc import locate
from random import Random
from typing import Any

from vagentrl.environment import Environment, seed_of
from vagentrl.types import Observation, Reply
from vagentrl.viewer.pictures import Panel, episode_picture, text_frame

WIDTH = (200, 330)
"""Least and most pixels of a panel's width, where text is drawn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", help="dotted path of the class")
    parser.add_argument("--settings", type=json.loads, default={}, help="its settings, as JSON")
    parser.add_argument("--figure", required=True, help="file to write")
    parser.add_argument("--seed", type=int, default=seed_of("validation", 0))
    parser.add_argument("--panels", type=int, default=4)
    given = parser.parse_args()
    kind: Any = locate(given.environment)
    environment: Environment = kind(**given.settings)
    panels = episode(environment, given.seed, given.panels)
    title = environment.system_prompt().partition("Reply in exactly this form")[0]
    episode_picture(title.strip()[:400], panels, per_row=given.panels).save(
        given.figure, optimize=True
    )


def episode(environment: Environment, seed: int, most: int) -> list[Panel]:
    """The first turns of an episode, a panel each."""
    observation, panels, rng = environment.reset(seed), [], Random(seed)
    while len(panels) < most:
        plan = environment.oracle()
        actions = plan[:1] if plan else environment.random_actions(rng) or ()
        panels.append(_panel(environment, observation, f"turn {len(panels)}", actions))
        result = environment.step(Reply("", actions=actions))
        observation = result.observation
        if result.terminated or result.truncated:
            if len(panels) < most:
                panels.append(_panel(environment, observation, f"reward {result.reward:g}", ()))
            break
    return panels


def _panel(
    environment: Environment, observation: Observation, heading: str, actions: tuple[str, ...]
) -> Panel:
    """A frame over the text that the agent sees and its actions; the text alone without a frame."""
    said = f"> {', '.join(actions)}" if actions else ""
    frame = environment.frame()
    text = observation.text.replace("<image>", "").strip()
    if frame is None:
        return Panel(text_frame(text, *WIDTH), heading, said)
    return Panel(frame, heading, "\n".join(filter(None, [text, said])))


if __name__ == "__main__":
    main()
