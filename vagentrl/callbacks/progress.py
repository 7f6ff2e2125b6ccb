"""Progress of a run in one line."""

from __future__ import annotations

import math
import sys
import time
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

_SHOWN = {
    "held-out": "val/success_rate",
    "success": "rollout/success_rate",
    "return": "rollout/return",
    "tokens/s": "rollout/tokens_per_s",
}


class IterationProgress(ProgressBar, AgentCallback):
    """Shows the iteration, its stage and the most important metrics.

    On a terminal this is a single line that is redrawn. In a log it is a new line after each
    evaluation, and after an iteration if enough time has passed since the last line.

    Args:
        seconds_between_lines: Minimum number of seconds between two lines for iterations in a log.
    """

    def __init__(self, seconds_between_lines: float = 10.0) -> None:
        super().__init__()
        self.seconds_between_lines = seconds_between_lines
        self._bar = tqdm(disable=True)
        self._enabled = True
        self._ended = self._continued = 0
        self._evaluated = False
        self._written = -math.inf

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        tqdm.write(" ".join(str(arg) for arg in args))

    # ------------------------------------------------------------------------------- the line

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._enabled = self._enabled and trainer.is_global_zero
        counts = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}]" if stage == "fit" else "[{elapsed}]"
        self._bar = tqdm(
            total=trainer.max_epochs if stage == "fit" else None,
            desc="loading",
            file=sys.stderr,
            dynamic_ncols=True,
            bar_format="{desc:<18} " + counts + "{postfix}",
            disable=not self._enabled or not sys.stderr.isatty(),
        )

    def _stage(self, text: str) -> None:
        self._bar.set_description_str(text, refresh=False)
        self._bar.update(0)  # redraws, but no more often than tqdm's minimum interval

    def _numbers(self, trainer: Trainer) -> None:
        metrics = trainer.callback_metrics
        shown = {k: f"{float(metrics[n]):.3g}" for k, n in _SHOWN.items() if n in metrics}
        self._bar.set_postfix(shown)
        now = time.monotonic()
        due = self._evaluated or now - self._written >= self.seconds_between_lines
        if self._bar.disable and self._enabled and due:
            self._evaluated, self._written = False, now
            agent = agent_of(trainer.lightning_module)
            numbers = (f"{name} {value}" for name, value in shown.items())
            line = "  ".join([f"iteration {agent.iteration}/{agent.total_iterations}", *numbers])
            tqdm.write(line, file=sys.stderr)

    # ---------------------------------------------------------------------- what moves the line

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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent = agent_of(pl_module)
        self._bar.n = self._bar.initial = agent.iteration
        self._bar.total = agent.total_iterations

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = self._continued = 0
        if self._evaluated:  # the evaluation before the first iteration
            self._numbers(trainer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._stage(f"update {batch_idx + 1}/{trainer.num_training_batches}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._bar.n = agent_of(pl_module).iteration
        self._numbers(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = 0
        self._evaluated = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._evaluated:  # the evaluation after the last iteration
            self._numbers(trainer)
        self._bar.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._bar.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._bar.close()
