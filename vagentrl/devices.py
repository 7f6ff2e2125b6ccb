"""The CUDA device of threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch


def same_device() -> Callable[[], None]:
    """Return a function that selects the CUDA device of the calling thread in another thread.

    The current device belongs to a thread, and in a new thread it is device 0. Kernels that do not
    look at where their tensors are (Triton's, vLLM's) would then run on the wrong GPU. Without
    CUDA, or if this process has not used CUDA yet, the function does nothing.
    """
    if not torch.cuda.is_initialized():
        return _nothing
    return partial(torch.cuda.set_device, torch.cuda.current_device())


def _nothing() -> None:
    pass
