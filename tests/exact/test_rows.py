"""How an episode is laid out in rows, and where the value after its end is read."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from tests.exact.cases import AGGREGATIONS, ESTIMATORS
from tests.exact.experiment import Experiment
from tests.exact.formulas import Mode
from tests.exact.world import LONG, Prefix, to_path
from vagentrl.types import Prompt, Trajectory

SETTINGS: dict[str, Any] = {"entropy_coef": 0.02, "value_coef": 0.5}
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)


def one_row_per_turn(trajectory: Trajectory) -> Trajectory:
    """The same tokens before each reply, but all of them in its prompt."""
    read: Prefix = ()
    turns = []
    for turn in trajectory.turns:
        read += turn.prompt.ids
        turns.append(replace(turn, prompt=Prompt(read, whole=True)))
        read += turn.reply_ids
    end = trajectory.end and Prompt(read + trajectory.end.ids, whole=True)
    return replace(trajectory, turns=tuple(turns), end=end)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", ["BiLevelGAE, default", "GiGPO"])
def test_the_gradient_is_the_same_with_one_row_per_turn(name: str, mode: Mode):
    together = Experiment(ESTIMATORS[name], **SETTINGS)
    apart = Experiment(ESTIMATORS[name], **SETTINGS)
    apart.play([one_row_per_turn(episode) for episode in LONG])
    assert len(apart.assessed[-1].rollout) > len(together.assessed[-1].rollout)
    close(apart.gradients("PPOClip", mode), together.gradients("PPOClip", mode))


def test_an_end_without_room_in_the_context_takes_the_value_before_the_last_token():
    experiment = Experiment(ESTIMATORS["MaskedGAE, lam 0.6"], **SETTINGS)
    experiment.play([replace(episode, end=None) for episode in LONG])
    experiment.paths = [
        path if path.after is None else replace(path, after=path.states[-1])
        for path in map(to_path, LONG)
    ]
    close(
        experiment.gradients("PPOClip", "token_mean"),
        experiment.documented("PPOClip", "token_mean"),
    )


def test_only_a_cut_episode_is_bootstrapped_where_a_limit_is_the_end():
    one = Experiment(ESTIMATORS["MaskedGAE, lam 0.6"], **SETTINGS)
    one.play(LONG, at_limit="end")
    one.paths = [
        path if episode.stop == "cut" else replace(path, after=None)
        for path, episode in zip(one.paths, LONG, strict=True)
    ]
    close(one.gradients("PPOClip", "token_mean"), one.documented("PPOClip", "token_mean"))
