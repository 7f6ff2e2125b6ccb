"""Derives seeds from seeds."""

from typing import Any

import numpy as np


def mix(*numbers: int) -> int:
    """Derive a 62-bit seed from several numbers; every process derives the same."""
    words: Any = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return int(words[0] >> 2)
