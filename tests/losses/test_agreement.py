import math

import pytest
import torch

from vagentrl.losses import agreement


def test_against_numbers_worked_by_hand():
    # probabilities 0.5 scored against 0.25 sampled, and 0.2 against 0.2: w = 2 and 1
    found = agreement(torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.2]).log(), beyond=0.5)
    assert found == pytest.approx(
        {
            "gap": math.log(2) / 2,
            "gap_max": math.log(2),
            "kl": (2 - 1 - math.log(2)) / 2,
            "beyond": 0.5,
            "sample_size": (2 + 1) ** 2 / (2 * (4 + 1)),
        },
        abs=1e-6,
    )


def test_equal_log_probs_agree_in_everything():
    logprobs = -torch.rand(50)
    assert agreement(logprobs, logprobs, beyond=0.1) == {
        "gap": 0, "gap_max": 0, "kl": 0, "beyond": 0, "sample_size": 1,
    }  # fmt: skip


def test_the_divergence_is_the_one_between_the_distributions():
    torch.manual_seed(0)
    trainer, engine = torch.randn(2, 20).log_softmax(-1)
    tokens = torch.multinomial(engine.exp(), 200_000, replacement=True)
    found = agreement(trainer[tokens], engine[tokens], beyond=1.0)
    wanted = float((engine.exp() * (engine - trainer)).sum())
    assert found["kl"] == pytest.approx(wanted, rel=0.05)


def test_tokens_that_the_trainer_finds_impossible_are_seen():
    found = agreement(torch.tensor([-1.0, -60.0]), torch.tensor([-1.0, -0.1]), beyond=0.5)
    assert found["gap_max"] == pytest.approx(59.9)
    assert found["sample_size"] == pytest.approx(0.5)


def test_a_gap_of_exactly_the_limit_is_not_beyond_it():
    found = agreement(torch.tensor([-0.5, -1.0]), torch.tensor([-1.0, -1.0]), beyond=0.5)
    assert found["beyond"] == 0


def test_a_token_that_the_engine_found_impossible_weighs_no_more_than_e_to_the_20():
    found = agreement(torch.tensor([-1.0]), torch.tensor([-61.0]), beyond=0.5)
    assert found["kl"] == pytest.approx(math.exp(20) - 1 - 60)
