"""The tables of docs/algorithms.md are what scripts/prove_gradients.py computes."""

from scripts import prove_gradients
from tests.exact.cases import ESTIMATORS, LOSSES


def test_the_documented_table_has_every_estimator_and_the_computed_numbers():
    """Every sixth row is computed again, with one loss."""
    page = prove_gradients.PAGE.read_text()
    everything = prove_gradients.experiments()
    assert {name for name, _ in everything} == set(ESTIMATORS)
    for name in ESTIMATORS:
        assert f"| `{name}` |" in page
    for loss in LOSSES:
        assert page.count(f"| `{loss}` |") == len(prove_gradients.LATER_STEP)
    rows = prove_gradients.first_step(["PPOClip"], everything[::6])
    for row in rows:
        assert f"| {' | '.join(row)} |\n" in page
