"""Every test runs on one thread, from fixed seeds, and without a network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported, so it comes first
os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the processes that tests start

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow tests last, and those that need a GPU only where there is one."""
    items.sort(key=lambda item: "slow" in item.keywords)
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the working directory: what a run writes stays in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
