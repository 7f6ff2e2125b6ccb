"""Tasks that are rows: of files (JSON Lines, Parquet, Hugging Face's `datasets`) or in memory."""

from vagentrl.datasets.list_tasks import ListTasks
from vagentrl.datasets.row import Fields
from vagentrl.datasets.row_images import RowImages
from vagentrl.datasets.task_files import TaskFiles

__all__ = ["Fields", "ListTasks", "RowImages", "TaskFiles"]
