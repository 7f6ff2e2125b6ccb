"""Observations with several pictures of different sizes, from the environment to the update."""

from pathlib import Path

import pytest
import torch

from tests import runs, toy
from vagentrl.models.load import load_model
from vagentrl.types import Observation

SQUARE = 28
"""Pixels on a side of the square that the tiny model sees as one token."""


class TwoPictures(toy.Countdown):
    """Shows a wide picture of what is left between words, and a tall one of the turn's number."""

    def observe(self) -> Observation:
        wide = toy.picture(self.left)
        tall = toy.picture(self.turns + 1).rotate(90, expand=True)
        return Observation(f"now <image> and <image> {self.left} left", (wide, tall))


@pytest.mark.parametrize(
    "settings",
    [
        ("--model.packing=true",),
        ("--data.workers=process", "--data.context=Window", "--data.context.turns=2"),
    ],
    ids=["packed", "processes_window"],
)
def test_several_pictures_of_an_observation_are_sampled_and_learned_alike(
    settings: tuple[str, ...], run_dir: Path
):
    run = runs.fit(
        f"--data.env.class_path={__name__}.TwoPictures",
        "--trainer.max_epochs=2",
        "--trainer.limit_val_batches=0",
        "--data.engine=TransformersEngine",
        *settings,
        images=True,
    )
    gaps = [event.value for event in runs.events(run).Scalars("rollout/logprob_gap")]
    assert len(gaps) == 2 and max(gaps) < 1e-5
    pad = run.datamodule.renderer.image_token_id
    turns = [turn for played in run.datamodule.trajectories for turn in played.turns]
    for turn in turns:
        wide, tall = turn.observation.images
        assert wide.height == tall.width == SQUARE
        assert turn.prompt.images[-2:] == (wide, tall)
        assert turn.prompt.ids.count(pad) == sum(
            image.width * image.height // SQUARE**2 for image in turn.prompt.images
        )
    assert len({image.size for turn in turns for image in turn.observation.images}) > 3
    start = load_model(runs.checkpoint(images=True)).get_submodule("model.visual")
    end = run.model.actor.policy.get_submodule("model.visual")
    assert any(
        not torch.equal(a, b) for a, b in zip(start.parameters(), end.parameters(), strict=True)
    )
