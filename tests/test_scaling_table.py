"""The table of docs/scaling.md is what its script prints; its formulas are those of the page."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import scaling_table
from scripts.scaling_table import FULL, HALF, Speeds, Work
from vagentrl.cli.memory import Shards

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"


def test_the_page_has_the_table_of_the_script():
    shown = PAGE.read_text().splitlines()
    for row in scaling_table.rows(Work(), Speeds()):
        assert row in shown


def test_a_forward_pass_counts_weights_and_half_a_row_of_attention():
    config = SimpleNamespace(hidden_size=3, num_hidden_layers=2)
    # 10 tokens: 2 × 100 for the weights, and 4 × 3 × (8 / 2) × 2 = 96 for attention
    assert scaling_table.forward_flops(100, config, tokens=10, length=8) == 10 * (200 + 96)


@pytest.mark.parametrize(
    ("shards", "numbers"),
    [
        (Shards(4, 0), 2 * HALF),
        (Shards(4, 2), 4 * HALF),  # 12 episodes on 4 GPUs are 3 passes, and the weights once
        (Shards(4, 3, fsdp=True), 3 * 4 * FULL),
    ],
)
def test_gpus_exchange_what_their_strategy_divides(shards: Shards, numbers: int):
    spent = scaling_table._exchange(  # pyright: ignore[reportPrivateUsage]
        10**9, shards, Work(episodes=12), Speeds(link_gb_s=2)
    )
    assert spent == pytest.approx(numbers * 3 / 4 / 2)  # each has a quarter itself
