"""The scripts that launch runs elsewhere, with stand-ins for what only is there."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.end_to_end.nodes import ROOT, environment

SBATCH = str(ROOT / "scripts" / "slurm.sbatch")
STAND_INS = {
    # Runs what follows its options on both nodes.
    "srun": 'while [[ $1 == --* ]]; do shift; done\n'
    'SLURM_NODEID=0 "$@"\nSLURM_NODEID=1 "$@"\n',
    "torchrun": 'printf "<%s> " "$@"; echo; [[ -z ${HANG:-} ]] || { touch up; sleep "$HANG"; }\n'
    'exit "${CODE:-0}"\n',
    "scontrol": 'if [[ $1 == show ]]; then printf "a7\\na8\\n"; else echo "scontrol $*"; fi\n',
}  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on two nodes with four GPUs each."""
    for name, lines in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{lines}")
        (tmp_path / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "1234567",
        "SLURM_JOB_NODELIST": "a[7-8]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
    }


def submit(job: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", SBATCH, *arguments], env=job, capture_output=True, text=True)


def test_every_node_starts_a_process_for_each_gpu(job: dict[str, str]):
    done = submit(job, "--config", "with space.yaml")
    assert done.returncode == 0, done.stderr
    # the port is 15000 and the last four digits of the job's number
    wanted = [
        f"<--nnodes> <2> <--node_rank> <{node}> <--nproc_per_node> <4> <--master_addr> <a7> "
        "<--master_port> <19567> <-m> <vagentrl> <fit> <--config> <with space.yaml> "
        "<--trainer.num_nodes> <2> <--trainer.devices> <4> <--resume>"
        for node in (0, 1)
    ]
    assert [line.strip() for line in done.stdout.splitlines()] == wanted


def test_an_error_is_the_jobs_error(job: dict[str, str]):
    assert submit(job | {"CODE": "3"}, "--config", "run.yaml").returncode == 3


def test_a_job_near_its_time_limit_queues_itself_again(job: dict[str, str], run_dir: Path):
    with subprocess.Popen(
        ["bash", SBATCH, "--config", "run.yaml"],
        env=job | {"HANG": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        while not (run_dir / "up").exists():
            time.sleep(0.05)
        running.send_signal(signal.SIGUSR1)
        said, _ = running.communicate(timeout=60)
    assert "scontrol requeue 1234567" in said
    assert said.count("<fit>") == 2  # the nodes went on until SLURM would have ended them
    assert running.returncode == 0


def test_what_is_not_a_job_is_refused(job: dict[str, str]):
    no_job = {name: value for name, value in job.items() if name != "SLURM_JOB_ID"}
    assert "this is no SLURM job" in submit(no_job, "--config", "run.yaml").stderr
    assert "give the arguments" in submit(job).stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
def test_a_machine_without_gpus_is_refused():
    script = ["bash", str(ROOT / "scripts" / "gpu_smoke.sh")]
    done = subprocess.run(script, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "torch sees no GPU" in done.stderr
