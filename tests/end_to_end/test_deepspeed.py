"""DeepSpeed gives the same results as plain DDP."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.strategies import DeepSpeedStrategy

from tests import runs
from vagentrl.errors import ConfigError
from vagentrl.modules import deepspeed

pytest.importorskip("deepspeed")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cpu_deepspeed"],
        cwd=tmp_path_factory.mktemp("zero"),
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_zero_2_steps_once_a_minibatch_and_gives_the_same_weights(seen: dict[str, Any]):
    # 2 iterations of 2 minibatches of 2 rows, one row in a pass
    assert seen["accumulate"] == 2
    assert seen["steps"] == [4, 4] and seen["deepspeed_steps"] == 4
    assert seen["difference"] < 1e-6 < 1e-3 < seen["moved"]


def test_a_run_under_zero_2_goes_on_where_it_was(seen: dict[str, Any]):
    assert seen["difference_resumed"] == 0


def test_a_checkpoint_of_zero_2_is_a_policy(seen: dict[str, Any]):
    assert seen["difference_loaded"] == 0


def test_a_checkpoint_of_zero_2_without_its_end_mark_is_refused(seen: dict[str, Any]):
    training, playing = seen["refused"]
    for said in (training, playing):
        assert "last.ckpt is no whole checkpoint: the folder has no complete.json" in said


def test_zero_2_reports_one_norm_for_actor_and_critic(seen: dict[str, Any]):
    # the mean over steps of the common norm, which is at least the mean norm of each model
    for zero, apart in zip(seen["zero_norms"], zip(*seen["norms"], strict=True), strict=True):
        assert max(apart) <= zero <= sum(apart)


def test_zero_2_skips_a_gradient_that_is_not_finite(seen: dict[str, Any]):
    assert seen["skipped"] == [1, 0]
    assert seen["finite"]


def test_zero_3_is_refused():
    run = runs.prepare()
    with pytest.raises(ConfigError, match="set it to fsdp2, which shards"):
        deepspeed.prepare(run.trainer, DeepSpeedStrategy(stage=3))
