"""CUDA devices: which one a thread uses, and how attention is computed there."""

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


def avoid_cudnn_attention() -> None:
    """Leave cuDNN's attention out of torch's choice; its other kernels take any length of rows.

    cuDNN makes a plan for every shape that it meets. The keys grow with every sampled token, and
    each batch has rows of other lengths: in half precision on an H100, most of the time of sampling
    went into plans.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def _nothing() -> None:
    pass
