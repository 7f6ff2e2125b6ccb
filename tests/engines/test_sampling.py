import math

import pytest
import torch

from vagentrl.engines.base import Sampling
from vagentrl.engines.sampling import sample, uniforms

PROBS = torch.tensor([0.4, 0.05, 0.3, 0.2, 0.05])


def draw(logits: torch.Tensor, draws: int = 4000, **settings) -> torch.Tensor:
    """Sample many tokens and count how often each was drawn."""
    rows = logits.expand(draws, -1)
    randomness = torch.tensor(uniforms(0, draws), dtype=torch.float64)
    ids, _ = sample(rows, [Sampling(**settings)] * draws, randomness)
    return ids.bincount(minlength=logits.shape[-1])


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_tokens_are_drawn_with_their_softmax_probabilities():
    # 4 degrees of freedom: chi-square exceeds 18.5 in 1 of 1,000 fair samples
    assert chi_square(draw(PROBS.log()), PROBS) < 18.5


def test_temperature_flattens_or_sharpens():
    sharp = PROBS**2 / (PROBS**2).sum()
    assert chi_square(draw(PROBS.log(), temperature=0.5), sharp) < 18.5


def test_top_k_keeps_the_most_likely_in_proportion():
    counts = draw(PROBS.log(), top_k=2)
    assert counts[[1, 3, 4]].sum() == 0
    assert chi_square(counts[[0, 2]], PROBS[[0, 2]] / 0.7) < 10.8  # 1 degree of freedom


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    # 0.4 + 0.3 < 0.75 <= 0.4 + 0.3 + 0.2
    counts = draw(PROBS.log(), top_p=0.75)
    assert counts[[1, 4]].sum() == 0
    assert chi_square(counts[[0, 2, 3]], PROBS[[0, 2, 3]] / 0.9) < 13.8


def test_top_p_applies_after_top_k():
    # of the first two, 0.4 is 4/7 = 0.571
    assert draw(PROBS.log(), top_k=2, top_p=0.57)[0] == 4000
    assert draw(PROBS.log(), top_k=2, top_p=0.58)[2] > 0


def test_top_p_looks_beyond_the_short_list_when_the_distribution_is_flat():
    logits = torch.zeros(5000)
    logits[4000:] = -5.0  # 1,000 tokens share under 0.2 % of the mass
    counts = draw(logits, draws=500, top_p=0.99)
    assert counts[4000:].sum() == 0
    assert (counts[:4000] > 0).sum() > 400


def test_greedy_takes_the_likeliest_and_reports_temperature_one():
    ids, logprobs = sample(PROBS.log()[None], [Sampling(temperature=0.0)], torch.tensor([0.99]))
    assert ids.tolist() == [0]
    assert logprobs.item() == pytest.approx(math.log(0.4))


def test_log_probs_are_tempered_but_not_truncated():
    logits, draws = PROBS.log()[None], torch.tensor([0.0])
    settings = Sampling(temperature=0.5, top_k=1, top_p=0.5)
    ids, logprobs = sample(logits, [settings], draws)
    # 0.16 / (0.16 + 0.0025 + 0.09 + 0.04 + 0.0025)
    assert ids.tolist() == [0]
    assert logprobs.item() == pytest.approx(math.log(0.16 / 0.295))


def test_rows_with_settings_of_their_own_are_sampled_as_if_alone():
    logits = torch.randn(6, 50)
    settings = [
        Sampling(),
        Sampling(temperature=0.0),
        Sampling(temperature=0.7, top_k=5),
        Sampling(),
        Sampling(top_p=0.6),
        Sampling(temperature=0.7, top_k=5, top_p=0.9),
    ]
    draws = torch.rand(6, dtype=torch.float64)
    together = sample(logits, settings, draws)
    for row in range(6):
        alone = sample(logits[row : row + 1], settings[row : row + 1], draws[row : row + 1])
        assert together[0][row] == alone[0][0]
        torch.testing.assert_close(together[1][row], alone[1][0])


def test_extreme_random_numbers_never_draw_a_banned_token():
    logits = torch.randn(150_000)
    logits[0] = logits[-1] = logits[7::3] = -torch.inf
    extremes = torch.tensor([0.0, 1 - 2**-53, *uniforms(3, 62)], dtype=torch.float64)
    ids, logprobs = sample(logits.expand(64, -1), [Sampling()] * 64, extremes)
    assert logits[ids].isfinite().all()
    assert logprobs.isfinite().all()


def test_the_random_numbers_of_a_reply_do_not_depend_on_its_token_limit():
    assert uniforms(5, 3) == uniforms(5, 10)[:3]
    assert uniforms(5, 3) != uniforms(6, 3)
