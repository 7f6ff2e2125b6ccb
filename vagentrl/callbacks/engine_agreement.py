"""Checks that the engine samples from the same policy as the trainer scores."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vagentrl.errors import ConfigError, EngineError
from vagentrl.losses import agreement
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.modules.run_folders import run_folder

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule
    from vagentrl.types import RolloutBatch, Scores

log = logging.getLogger(__name__)


class EngineAgreement(AgentCallback):
    """Compares the engine's log-prob of every sampled token with the trainer's.

    Logs ``rollout/logprob_gap`` and the other metrics of `vagentrl.losses.agreement`. If only some
    rows show images, the metrics are also logged separately for rows with and without images. If
    the mean difference is above `alarm`, the reply with the largest difference is written token by
    token to ``agreement/iteration_N.txt`` in the run's folder. Every run has this callback, with
    the defaults below.

    Args:
        alarm: Mean difference of log-probs above which to warn. In float32 the difference is below
            1e-4; half precision, top-p kernels and stale weights make it larger.
        beyond: Tokens that differ by at least this much are counted in ``rollout/logprob_beyond``.
        stop: Stop the run instead of only warning.
    """

    def __init__(self, alarm: float = 0.1, beyond: float = 0.5, stop: bool = False) -> None:
        if alarm <= 0 or beyond <= 0:
            raise ConfigError(
                f"EngineAgreement.alarm is {alarm} and beyond {beyond}; both are differences of "
                "log-probs: give numbers above 0"
            )
        self.alarm = alarm
        self.beyond = beyond
        self.stop = stop

    def on_scores(self, agent: AgentModule, rollout: RolloutBatch, scores: Scores) -> RolloutBatch:
        whole = self._record(agent, rollout, scores, rollout.action_mask, "")
        sees = _shows_images(rollout)
        if 0 < int(sees.sum()) < len(sees):
            for name, rows in (("_images", sees), ("_text", ~sees)):
                self._record(agent, rollout, scores, rollout.action_mask & rows[:, None], name)
        folder = run_folder(agent.trainer) / "agreement"
        if not whole <= self.alarm:  # also true for NaN
            self._raise_alarm(agent, rollout, scores, whole, folder)
        return rollout

    def _record(
        self, agent: AgentModule, rollout: RolloutBatch, scores: Scores, where: Tensor, name: str
    ) -> float:
        if not where.any():
            return 0.0
        found = agreement(scores.old_logprobs[where], rollout.rollout_logprobs[where], self.beyond)
        for kind, value in found.items():
            agent.record(f"rollout/logprob_{kind}{name}", value)
        return found["gap"]

    def _raise_alarm(
        self, agent: AgentModule, rollout: RolloutBatch, scores: Scores, gap: float, folder: Path
    ) -> None:
        path = folder / f"iteration_{agent.iteration}.txt"
        if agent.trainer.is_global_zero:  # every rank has all rows, so one writes
            folder.mkdir(parents=True, exist_ok=True)
            names_of = rollouts_of(agent.trainer).renderer.token_names
            path.write_text(worst_reply(rollout, scores, names_of))
        text = (
            f"iteration {agent.iteration}: the log-probs of engine and trainer differ by {gap:.3g} "
            f"on average, and {self.alarm} is allowed: the engine uses other weights, other inputs "
            f"or another precision than the trainer. The worst reply is in {path}"
        )
        if self.stop:
            raise EngineError(text)
        log.warning(text)


def worst_reply(
    rollout: RolloutBatch, scores: Scores, names_of: Callable[[list[int]], list[str]]
) -> str:
    """A table of the tokens of the reply whose log-probs differ most on average.

    Args:
        rollout: The rows.
        scores: The trainer's scores of the rows.
        names_of: Returns the readable names of token ids.
    """
    gaps = (scores.old_logprobs - rollout.rollout_logprobs).abs()
    worst, place = -1.0, (0, 0)
    for row in range(len(rollout)):
        for turn in rollout.turn_ids[row][rollout.action_mask[row]].unique().tolist():
            gap = float(gaps[row][rollout.turn_ids[row] == turn].mean())
            if not gap <= worst:
                worst, place = gap, (row, turn)
    row, turn = place
    where = (rollout.turn_ids[row] == turn).nonzero()[:, 0]
    ids = rollout.input_ids[row, where].tolist()
    lines = [
        f"trajectory {int(rollout.trajectory_ids[row])}, turn {turn}: "
        f"{len(ids)} tokens, mean difference {worst:.4f}",
        f"{'token':>24} {'id':>8} {'engine':>10} {'trainer':>10} {'difference':>11}",
    ]
    for column, id, name in zip(where.tolist(), ids, names_of(ids), strict=True):
        sampled = float(rollout.rollout_logprobs[row, column])
        scored = float(scores.old_logprobs[row, column])
        lines.append(
            f"{name!r:>24} {id:>8} {sampled:>10.4f} {scored:>10.4f} {scored - sampled:>11.4f}"
        )
    return "\n".join(lines) + "\n"


def _shows_images(rollout: RolloutBatch) -> Tensor:
    rows = rollout.vision.rows if rollout.vision is not None else ((),) * len(rollout)
    return torch.tensor([bool(row) for row in rows], device=rollout.action_mask.device)
