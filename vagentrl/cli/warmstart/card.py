"""The model card of a cloned model."""

from __future__ import annotations

from typing import Any


def model_card(
    name: str,
    parameters: int,
    settings: dict[str, Any],
    scores: dict[str, float],
    start: str | None = None,
) -> str:
    """A model card in Markdown, of a model that went on from another one or from nothing."""
    origin = "random weights and no outside data" if start is None else f"`{start}`"
    made = "\n".join(f"| {key} | `{value}` |" for key, value in settings.items())
    scored = "\n".join(f"| {key} | {value:.3f} |" for key, value in scores.items())
    return f"""---
license: apache-2.0
library_name: transformers
---
# {name}

A model of {parameters:,} parameters with the architecture of a large one, made by `vagentrl
warmstart` from {origin}: it clones a demonstrator that describes the true
state of the environment in every turn, and acts by the environment's oracle except for a share of
its turns (`noise`), in which it acts at random; a share of what it says (`claim_noise`) is wrong by
one random action, and where there is a hint, it does what that says in a share of them (`obeys`).
So it perceives and speaks well and plans badly. It is a starting point for reinforcement learning
on this one environment and good for nothing else.

## How it was made

| setting | value |
|---|---|
{made}

## What it scores

On held-out seeds, which show what no training seed does; temperature 0.5. `perception`, where
states are described, is the share of turns in which the whole of it was described truly.

| metric | value |
|---|---|
{scored}
"""
