"""Lightning's own loop; tests/end_to_end/test_ranks.py runs the same on two ranks."""

import torch

from tests.exact import fit


def test_a_run_takes_the_documented_gradient():
    torch.testing.assert_close(fit.run(), fit.documented(), rtol=1e-9, atol=1e-11)
