"""Progress of a run: a line for every iteration."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from vagentrl import ranks
from vagentrl.modules.agent import AgentModule, agent_of
from vagentrl.modules.callback import AgentCallback
from vagentrl.modules.rollouts import rollouts_of

if TYPE_CHECKING:
    from vagentrl.types import Trajectory

SHOWN: dict[str, tuple[str, ...]] = {
    "held-out": ("val/success_rate",),
    "success": ("rollout/success_rate",),
    "return": ("rollout/return",),
    "entropy": ("train/entropy",),
    "KL": ("rollout/kl",),
    "grad": ("optim/actor_grad_norm", "optim/grad_norm"),
    "episodes": ("rollout/episodes",),
    "tokens": ("rollout/sampled_tokens",),
}
"""What a line shows, and the metrics that may hold it; the first that is logged counts."""
REDRAWN_AFTER_S = 0.1
"""Minimum number of seconds between two drawings of the bar."""
STAGES_FROM = 0.05
"""Share of an iteration's seconds from which a stage is named."""


class IterationProgress(ProgressBar, AgentCallback):
    """Writes a line for every iteration, and shows the current stage on a terminal.

    A line has the success and the return of the iteration's episodes, held-out success if there was
    an evaluation, entropy, KL to the reference, the norm of the actor's gradient, the numbers of
    episodes and of sampled tokens, and the seconds with the stages that took most of them. On a
    terminal a bar below the lines shows the stage. Only rank 0 writes, to stderr.

    Args:
        seconds_between_lines: Minimum number of seconds between two lines, for iterations that are
            short. An iteration with an evaluation always has a line.
    """

    def __init__(self, seconds_between_lines: float = 0.0) -> None:
        super().__init__()
        self.seconds_between_lines = seconds_between_lines
        self._bar = tqdm(disable=True)
        self._enabled = True
        self._ended = self._continued = 0
        self._evaluated = self._learned = False
        self._written = self._drawn = -math.inf
        self._since = 0.0  # when the current iteration began

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        tqdm.write(" ".join(str(arg) for arg in args))

    # ------------------------------------------------------------------------------- the lines

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._enabled = self._enabled and trainer.is_global_zero
        counts = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}]" if stage == "fit" else "[{elapsed}]"
        self._bar = tqdm(
            total=trainer.max_epochs if stage == "fit" else None,
            desc="loading",
            file=sys.stderr,
            dynamic_ncols=True,
            bar_format="{desc:<18} " + counts,
            disable=not self._enabled or not sys.stderr.isatty(),
            leave=False,
        )

    def _stage(self, text: str) -> None:
        self._bar.set_description_str(text, refresh=False)
        now = time.monotonic()
        if now - self._drawn >= REDRAWN_AFTER_S:
            self._drawn = now
            self._bar.refresh()

    def _line(self, trainer: Trainer, *, collected: bool = True) -> None:
        """Write a line if it is due, and begin to count the next iteration's seconds.

        Args:
            trainer: The trainer.
            collected: Whether the line is of an iteration; otherwise only of an evaluation.
        """
        metrics = self._new_metrics(trainer, collected=collected)
        now = time.monotonic()
        # The evaluation before the first iteration follows the collection of its episodes.
        seconds = now - self._since if collected else metrics.get("time/evaluate", 0.0)
        self._since = now if collected else self._since + seconds
        due = self._evaluated or now - self._written >= self.seconds_between_lines
        self._evaluated = self._learned = False
        if not (self._enabled and due):
            return
        self._written = now
        agent = agent_of(trainer.lightning_module)
        line = progress_line(agent.iteration, agent.total_iterations, metrics, seconds)
        tqdm.write(line, file=sys.stderr)

    def _new_metrics(self, trainer: Trainer, *, collected: bool) -> dict[str, float]:
        """The metrics of this iteration: Lightning's also hold those of earlier ones."""
        new = {
            "val/": self._evaluated,
            "time/evaluate": self._evaluated,
            "train/": self._learned,
            "optim/": self._learned,
            "time/update": self._learned,
        }
        metrics = dict(rollouts_of(trainer).report) if collected else {}
        for name, value in trainer.callback_metrics.items():
            if any(name.startswith(start) for start, is_new in new.items() if is_new):
                metrics[name] = float(value)
        return metrics

    # ---------------------------------------------------------------------- what moves the bar

    def on_episode_end(self, agent: AgentModule, trajectory: Trajectory) -> None:
        self._ended += 1
        data = rollouts_of(agent.trainer)
        if agent.trainer.training:
            wanted = data.groups * data.group_size // ranks.world_size()
            of = f"/{wanted}" if self._ended <= wanted else ""  # a filter may play more rounds
            self._stage(f"collect {self._ended}{of}")
        else:
            wanted = len(ranks.shard(range(data.val_episodes))) * len(data.environments)
            self._stage(f"evaluate {self._ended}/{wanted}")

    def on_continuation_end(self, agent: AgentModule, trajectory: Trajectory) -> None:
        self._continued += 1
        self._stage(f"continue {self._continued}")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent = agent_of(pl_module)
        self._bar.n = self._bar.initial = agent.iteration
        self._bar.total = agent.total_iterations

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = self._continued = 0
        if self._evaluated:  # the evaluation before the first iteration
            self._line(trainer, collected=False)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._learned = self._learned or batch is not None
        self._stage(f"update {batch_idx + 1}/{trainer.num_training_batches}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._bar.n = agent_of(pl_module).iteration
        self._line(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = 0
        self._evaluated = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._evaluated:  # the evaluation after the last iteration
            self._line(trainer, collected=False)
        self._bar.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._bar.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._bar.close()


def progress_line(
    iteration: int, iterations: int, metrics: Mapping[str, float], seconds: float
) -> str:
    """What an iteration's metrics say, in a line.

    Args:
        iteration: Number of completed iterations.
        iterations: Number of iterations of the whole run.
        metrics: The metrics that were logged for this iteration.
        seconds: Seconds that the iteration took.
    """
    width = len(str(iterations))
    parts = [f"iteration {iteration:>{width}}/{iterations}"]
    for label, names in SHOWN.items():
        found = [metrics[name] for name in names if name in metrics]
        if found:
            parts.append(f"{label} {_short(found[0])}")
    return "  ".join([*parts, f"{_short(seconds)} s{_stages(metrics, seconds)}"])


def _stages(metrics: Mapping[str, float], seconds: float) -> str:
    """The stages that took longest, with their shares of the seconds.

    What no stage accounts for is ``other``: checkpoints, logging and callbacks.
    """
    stages = {
        name.removeprefix("time/"): value
        for name, value in metrics.items()
        if name.startswith("time/")
    }
    stages["other"] = seconds - sum(stages.values())
    longest = sorted(stages.items(), key=lambda stage: -stage[1])
    named = [(name, value / seconds) for name, value in longest if value > STAGES_FROM * seconds]
    told = ", ".join(f"{name} {share:.0%}" for name, share in named)
    return f" ({told})" if told else ""


def _short(value: float) -> str:
    """A number with three digits, and with its thousands or millions as k or M."""
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if math.isfinite(value) and abs(value) >= size:
            scaled = value / (1e3 if letter == "k" else 1e6)
            return f"{scaled:.0f}{letter}" if abs(scaled) >= 100 else f"{scaled:.3g}{letter}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
