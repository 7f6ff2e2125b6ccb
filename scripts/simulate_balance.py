"""Simulates how evenly a step's rows keep the ranks busy, divided by rows and by tokens.

    python scripts/simulate_balance.py
    python scripts/simulate_balance.py --ranks 8 --minibatch_size 128

Episodes have 1 to `--turns` turns, all lengths equally likely, and are a row each. The ideal time
of an optimizer step is the tokens of its rows divided among the ranks. The table has the time that
a step takes as a multiple of it, if a pass takes as long as its tokens, padding included: *a step*
if ranks wait for each other once a step (DDP, ZeRO-1), *a pass* if they wait after every pass
(ZeRO-2, sharded weights). Passes by tokens may have as many tokens as `--micro_batch_size` rows of
the longest episode. Fillers are passes on a row of weight 0.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence

from vagentrl.rollout.micro_batches import (
    Part,
    by_rows,
    by_tokens,
    empty_share,
    padded,
    passes_for,
)

STEPS = 50
"""Simulated optimizer steps of each line."""


def ratios(lengths: Sequence[int], shares: list[list[Part]]) -> tuple[float, float, float]:
    """Both times as multiples of the ideal one, and the share of fillers."""
    passes = [[padded(part, lengths) for part in share] for share in shares]
    ideal = sum(lengths) / len(shares)
    step, each = max(map(sum, passes)), sum(map(max, zip(*passes, strict=True)))
    return step / ideal, each / ideal, empty_share([shares])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=50, help="of the longest episodes")
    parser.add_argument("--prompt", type=int, default=200, help="tokens before the first turn")
    parser.add_argument("--turn_tokens", type=int, default=150)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rows_a_rank", type=int, default=16, help="rows of a step, for each rank")
    parser.add_argument("--minibatch_size", type=int, help="rows of a step, over all ranks")
    parser.add_argument("--micro_batch_size", type=int, nargs="+", default=[1, 4])
    settings = parser.parse_args()
    draw = random.Random(0)
    longest = settings.prompt + settings.turns * settings.turn_tokens
    print(f"{'':>16}{'by rows':^27}{'by tokens':^27}")
    print(f"{'ranks':>6}{'in a pass':>10}" + f"{'a step':>9}{'a pass':>9}{'fillers':>9}" * 2)
    for ranks in settings.ranks:
        for rows in settings.micro_batch_size:
            count = settings.minibatch_size or settings.rows_a_rank * ranks
            found = []
            for _ in range(STEPS):
                turns = (draw.randint(1, settings.turns) for _ in range(count))
                lengths = sorted(settings.prompt + settings.turn_tokens * turn for turn in turns)
                passes = -(-count // (rows * ranks))
                budget = rows * longest
                wanted = passes_for(lengths, budget, ranks)
                by_row = by_rows(count, passes, ranks)
                by_token = by_tokens(lengths, budget, wanted, ranks)
                found.append((*ratios(lengths, by_row), *ratios(lengths, by_token)))
            means = [statistics.mean(column) for column in zip(*found, strict=True)]
            line = "".join(
                f"{mean:>9.0%}" if column % 3 == 2 else f"{mean:>9.2f}"
                for column, mean in enumerate(means)
            )
            print(f"{ranks:>6}{rows:>10}{line}")


if __name__ == "__main__":
    main()
