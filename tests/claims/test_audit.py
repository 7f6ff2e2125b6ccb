import pytest

from tests.claims.claims import claim, judgement
from tests.claims_toy import ExactJudge
from vagentrl.claims import Audit
from vagentrl.errors import ConfigError


def test_every_occurrence_of_a_text_is_drawn_on_its_own_with_the_given_probability():
    audit, again = (Audit(ExactJudge(), share=0.1) for _ in range(2))
    said = claim("all is well")
    chosen = [audit.samples(said, 3, "lake", episode, 0) for episode in range(2000)]
    assert sum(chosen) / 2000 == pytest.approx(0.1, abs=0.027)  # four standard deviations
    assert chosen == [again.samples(said, 3, "lake", episode, 0) for episode in range(2000)]
    other = Audit(ExactJudge(), share=0.1, seed=1)
    assert chosen != [other.samples(said, 3, "lake", episode, 0) for episode in range(2000)]
    assert all(Audit(ExactJudge(), share=1.0).samples(said, n) for n in range(100))


def test_judges_disagree_when_their_scores_differ_by_more_than_the_tolerance():
    audit = Audit(ExactJudge(), tolerance=0.25)
    assert not audit.disagrees(judgement("a", 0.5, second=0.75))
    assert audit.disagrees(judgement("a", 0.25, second=0.75))
    assert not audit.disagrees(judgement("a", 0.0))
    assert not audit.disagrees(judgement("a", None, second=1.0))


def test_a_share_of_zero_and_a_tolerance_of_one_are_refused():
    with pytest.raises(ConfigError, match="share is 0"):
        Audit(ExactJudge(), share=0)
    with pytest.raises(ConfigError, match="tolerance is 1"):
        Audit(ExactJudge(), tolerance=1)
