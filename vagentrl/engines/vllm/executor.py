"""A vLLM executor for the trainer's process. vLLM imports it by its name in the settings."""

from __future__ import annotations

import os

import torch
from vllm.v1.executor.uniproc_executor import UniProcExecutor  # pyright: ignore


class LocalDeviceExecutor(UniProcExecutor):
    """Runs the model on this process's device; vLLM's own would use the machine's first one."""

    def _distributed_args(self) -> tuple[str, int, int]:
        method, rank, _ = super()._distributed_args()
        if torch.cuda.is_available():
            return method, rank, torch.cuda.current_device()
        return method, rank, int(os.environ.get("LOCAL_RANK", "0"))
