"""Many conversations at once, with failures, delays and cancellations in each method."""

from collections import Counter

from scripts.benchmark_interactions import FATES, storm
from tests.interactions.tables import eventually
from vagentrl.interactions import session

EPISODES = 600


def test_a_storm_loses_nothing_and_gives_what_a_sequential_run_gives():
    before = set(session._open)
    interaction, results = storm(EPISODES, at_once=64, delay_s=0.002, patience_s=3.0)
    alone, wanted = storm(EPISODES, at_once=1, delay_s=0.0, patience_s=0.5)
    assert sorted(number for number, _ in results) == list(range(EPISODES))
    assert dict(results) == dict(wanted)
    for one in (interaction, alone):
        assert eventually(lambda one=one: not one.table)
        # each of them once, also those that failed, hung, were cancelled or abandoned
        assert one.started == one.finalized == Counter(range(EPISODES))
    assert eventually(lambda: session._open <= before)


def test_the_storm_has_all_fates():
    _, results = storm(EPISODES, at_once=64, delay_s=0.0, patience_s=0.5)
    ends = " ".join(end for _, (_, end) in results)
    found = ("failed: ValueError", "cancelled itself", "took more", *FATES[3:], "terminated")
    assert all(end in ends for end in found)
    for method in ("start_interaction", "generate_response", "calculate_score"):
        assert f"Storm.{method} failed" in ends and f"Storm.{method} cancelled itself" in ends
