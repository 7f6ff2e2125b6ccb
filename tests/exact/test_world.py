"""The enumeration is complete, and the tables hold what the models compute."""

from typing import Any

import pytest
import torch

from tests.exact.cases import ESTIMATORS, MEMBERS
from tests.exact.models import TEMPERATURE, make_agent
from tests.exact.world import EVEN, LONG, SHORT, Episodes, all_batches, probabilities, to_paths
from vagentrl.rollout.collate import collate

MASKED_GAE = ESTIMATORS["MaskedGAE"].estimator
worlds = pytest.mark.parametrize("world", [LONG, SHORT, EVEN], ids=["long", "short", "even"])


@worlds
def test_the_probabilities_of_all_episodes_and_of_all_batches_sum_to_1(world: Episodes):
    chances = probabilities(to_paths(world), make_agent(MASKED_GAE).logprob_table())
    torch.testing.assert_close(chances.sum(), torch.tensor(1.0))
    batches = all_batches([chances.tolist()], MEMBERS)
    assert sum(batch.probability for batch in batches) == pytest.approx(1)


def test_no_token_is_nearly_certain():
    assert (make_agent(MASKED_GAE).logprob_table().exp() > 0.05).all()


def test_the_probabilities_of_batches_by_hand():
    # two episodes of probability 0.25 and 0.75; one of each comes in two orders: 2 * 0.25 * 0.75
    found = [(batch.groups, batch.probability) for batch in all_batches([[0.25, 0.75]], 2)]
    assert found == [(((0, 0),), 0.0625), (((0, 1),), 0.375), (((1, 1),), 0.5625)]


def test_episodes_differ_in_all_that_an_estimator_may_depend_on():
    assert {episode.stop for episode in LONG} == {"terminated", "truncated", "cut"}
    assert sorted(len(path) for path in to_paths(LONG)) == [1, 2, 3, 4, 4]
    assert sorted(len(episode.turns) for episode in LONG) == [1, 2, 2, 3, 3]
    assert {len(turn.reply_ids) for episode in LONG for turn in episode.turns} == {1, 2}


@worlds
@pytest.mark.parametrize("critic", ["own", "shared"])
def test_the_tables_hold_what_the_models_compute(world: Episodes, critic: str):
    agent = make_agent(MASKED_GAE, critic=critic)
    assert agent.critic is not None
    no_images: Any = None
    rollout = collate(world, no_images, temperature=TEMPERATURE, at_limit="bootstrap")
    hidden = agent.actor.states(rollout)
    logprobs, entropies = agent.actor.logprobs(hidden, rollout, with_entropy=True)
    values = agent.critic(rollout, hidden)
    assert entropies is not None
    table, value_table = agent.logprob_table(), agent.value_table()
    entropy_table = -(table.exp() * table).sum(-1)
    for row, path in enumerate(to_paths(world)):
        sampled, states = rollout.action_mask[row], list(path.states)
        torch.testing.assert_close(logprobs[row, sampled], table[states, list(path.actions)])
        torch.testing.assert_close(entropies[row, sampled], entropy_table[states])
        torch.testing.assert_close(values[row, sampled], value_table[states])
        if path.after is not None:
            after = values.flatten()[rollout.bootstrap_index[row]]
            torch.testing.assert_close(after, value_table[path.after])


@pytest.mark.parametrize("critic", ["own", "shared"])
def test_setting_values_changes_no_probability(critic: str):
    agent = make_agent(MASKED_GAE, critic=critic)
    before = agent.logprob_table().detach()
    agent.set_values({2: 7.0, 5: -3.0})
    torch.testing.assert_close(agent.value_table()[[2, 5]], torch.tensor([7.0, -3.0]))
    torch.testing.assert_close(agent.logprob_table(), before)
