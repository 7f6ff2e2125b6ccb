"""Tasks that are rows of files: JSON Lines, Parquet, and folders of Hugging Face's `datasets`."""

from vagentrl.datasets.row import Fields
from vagentrl.datasets.row_images import RowImages
from vagentrl.datasets.task_files import TaskFiles

__all__ = ["Fields", "RowImages", "TaskFiles"]
