"""The expected gradient with a filter of groups, through the datamodule that applies it."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import stdev
from typing import Any

import pytest
import torch

from tests.exact import objectives
from tests.exact.cases import AGGREGATIONS, ESTIMATORS
from tests.exact.datamodule import EnumeratedData
from tests.exact.models import LoopFreeTableAgent, make_agent
from tests.exact.trainer_path import Gradients, gradients
from tests.exact.world import (
    LONG,
    SHORT,
    Batch,
    Episodes,
    all_batches,
    probabilities,
    to_path,
    to_paths,
)
from vagentrl import filters
from vagentrl.filters import DynamicSampling, GroupFilter, KeepAll, Nucleus, TopFraction

close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)
Spreads = Sequence[float]


def widest(spreads: Spreads) -> list[int]:
    """The group with the largest spread, the first of several; none if no group has any."""
    best = max(range(len(spreads)), key=lambda group: spreads[group])
    return [best] if spreads[best] > 0 else []


def most_of_the_spread(spreads: Spreads) -> list[int]:
    """The widest of two groups if it has 7 tenths of their spread, otherwise both."""
    return widest(spreads) if max(spreads) >= 0.7 * sum(spreads) else [0, 1]


FILTERS: dict[str, tuple[GroupFilter, Callable[[Spreads], list[int]]]] = {
    "KeepAll": (KeepAll(), lambda spreads: [0, 1]),
    "TopFraction": (TopFraction(0.5), widest),
    "TopFraction, rescale": (TopFraction(0.5, rescale=True), widest),
    "Nucleus": (Nucleus(0.7), most_of_the_spread),
    "Nucleus, rescale": (Nucleus(0.7, rescale=True), most_of_the_spread),
    "DynamicSampling": (
        DynamicSampling(rounds=1),
        lambda spreads: [group for group, spread in enumerate(spreads) if spread > 0],
    ),
}


def agent(name: str) -> LoopFreeTableAgent:
    return make_agent(
        ESTIMATORS[name].estimator,
        aggregation=AGGREGATIONS["constant_length"],
        entropy_coef=0.0,
        value_coef=0.5,
    )


def pairs(of: LoopFreeTableAgent, *worlds: Episodes) -> list[Batch]:
    """Every batch with a group of two from each initial state."""
    table = of.logprob_table()
    return all_batches([probabilities(to_paths(w), table).tolist() for w in worlds], members=2)


def spreads(batch: Batch, *worlds: Episodes) -> list[float]:
    """The standard deviation of each group's returns."""
    return [
        stdev(sum(to_path(world[index]).rewards) for index in group)
        for world, group in zip(worlds, batch.groups, strict=True)
    ]


def sum_of_gradients(of: LoopFreeTableAgent, data: EnumeratedData) -> Gradients:
    """The gradients of one step per iteration, times the probabilities of the batches."""
    trainer: Any = of.trainer
    trainer.datamodule, data.trainer = data, trainer
    of.zero_grad()
    for of.iteration, batch in enumerate(data.batches):
        loader = data.train_dataloader()
        for number, part in enumerate(loader):
            if part is not None:
                loss = of.training_step(part, number) / loader.accumulate
                (batch.probability * loss).backward()
    return gradients(of)


def test_every_filter_has_a_case():
    concrete = {
        filter
        for filter in vars(filters).values()
        if isinstance(filter, type)
        and issubclass(filter, GroupFilter)
        and not filter.__abstractmethods__
    }
    assert concrete == {type(filter) for filter, _ in FILTERS.values()}


@pytest.mark.parametrize("name", FILTERS)
def test_only_the_kept_groups_contribute(name: str):
    """`rescale` shrinks the policy loss, not the value loss, by the share of kept groups."""
    filter, keep = FILTERS[name]
    of, case, worlds = agent("MaskedGAE"), ESTIMATORS["MaskedGAE"], (LONG, SHORT)
    table, values = of.logprob_table(), of.value_table()
    loss, batches = torch.zeros(()), pairs(of, *worlds)
    for batch in batches:
        kept = keep(spreads(batch, *worlds))
        if not kept:
            continue
        rest = Batch(batch.probability, tuple(batch.groups[group] for group in kept))
        paths = [to_paths(worlds[group]) for group in kept]
        tokens = objectives.lay_out(paths, [rest], case.formula, values.tolist(), "constant_length")
        share = len(kept) / 2 if filter.rescale else 1.0
        error = (values[tokens.states] - tokens.returns) ** 2 / 2
        per_token = 0.5 * error - share * tokens.advantages * tokens.of(table)
        loss = loss + (tokens.weights * per_token).sum()
    data = EnumeratedData(
        worlds, batches, groups=2, filter=filter, minibatch_size=4, micro_batch_size=3
    )
    close(sum_of_gradients(of, data), objectives.gradients(loss, of))


def test_a_second_round_learns_from_groups_that_differ_as_often_as_the_first_had_none():
    of, case = agent("GroupRelative (GRPO)"), ESTIMATORS["GroupRelative (GRPO)"]
    batches = pairs(of, LONG)
    differ = [batch for batch in batches if spreads(batch, LONG)[0] > 0]
    alike = [batch for batch in batches if spreads(batch, LONG)[0] == 0]
    assert (len(differ), len(alike)) == (10, 5)
    two_rounds = [
        Batch(first.probability * second.probability, (*first.groups, *second.groups))
        for first in alike
        for second in batches
    ]
    data = EnumeratedData(
        (LONG, LONG),
        differ + two_rounds,
        groups=1,
        filter=DynamicSampling(rounds=2),
        minibatch_size=2,
        micro_batch_size=2,
    )
    tokens = objectives.lay_out([to_paths(LONG)], differ, case.formula, [], "constant_length")
    loss = -(tokens.weights * tokens.advantages * tokens.of(of.logprob_table())).sum()
    again = sum(batch.probability for batch in alike)
    close(sum_of_gradients(of, data), objectives.gradients((1 + again) * loss, of))
