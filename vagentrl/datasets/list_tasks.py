"""`ListTasks`: tasks that are rows in memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vagentrl.datasets.row import Fields, Row, read_row
from vagentrl.datasets.row_images import RowImages
from vagentrl.environment import Split, split_of_state
from vagentrl.errors import ConfigError, RowError
from vagentrl.interactions.tasks import Task, Tasks

log = logging.getLogger(__name__)


class ListTasks(Tasks):
    """Tasks from rows in memory, of the same forms as those of `TaskFiles`.

    What a row asks decides its split: a tenth of the questions each is for validation and test.
    Rows that cannot be used are left out, with a warning that has their numbers.

    Args:
        rows: The rows; images may also be PIL images.
        fields: Names of the fields of a row.
        interaction: Name of the interaction of rows that name none.

    Raises:
        ConfigError: When no row can be used.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        fields: Fields = Fields(),  # noqa: B008 (frozen)
        interaction: str | None = None,
    ) -> None:
        self._rows: dict[Split, list[tuple[int, Row]]] = {"train": [], "validation": [], "test": []}
        self._images = RowImages()
        broken: list[str] = []
        for number, row in enumerate(rows):
            try:
                read = read_row(row, fields, interaction=interaction)
            except RowError as error:
                broken.append(f"row {number}: {error}")
                continue
            split = read.split or split_of_state(read.question())
            self._rows[split].append((number, read))
        shown = "; ".join(broken[:3])
        if not any(self._rows.values()):
            raise ConfigError(f"none of {len(rows)} rows can be used{shown and ': '}{shown}")
        if broken:
            log.warning("%d of %d rows are broken and not used: %s", len(broken), len(rows), shown)

    def count(self, split: Split) -> int:
        return len(self._rows[split])

    def task(self, split: Split, index: int) -> Task:
        number, row = self._rows[split][index]
        try:
            images = tuple(self._images.open(image, Path()) for image in row.images)
        except RowError as error:
            raise RowError(f"row {number}: {error}") from error
        return Task(row.messages, images, row.interaction, number)
