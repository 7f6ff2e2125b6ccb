"""Where vLLM runs in the trainer's process: named in vLLM's settings, and imported by vLLM."""

from __future__ import annotations

import os

import torch
from vllm.v1.executor.uniproc_executor import UniProcExecutor  # pyright: ignore


class OnOurDevice(UniProcExecutor):
    """Runs the model on the device of this process, where vLLM would take the machine's first."""

    def _distributed_args(self) -> tuple[str, int, int]:
        method, rank, _ = super()._distributed_args()
        if torch.cuda.is_available():
            return method, rank, torch.cuda.current_device()
        return method, rank, int(os.environ.get("LOCAL_RANK", "0"))
