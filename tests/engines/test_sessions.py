from PIL import Image

from vagentrl.engines.base import GenerationRequest, Sampling
from vagentrl.engines.sessions import Session, Sessions

RED, BLUE, GREEN = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "green"))
GRID = (1, 1, 2)


def request(ids: tuple[int, ...], *images: Image.Image) -> GenerationRequest:
    return GenerationRequest(0, ids, images, Sampling(), 0)


def two_images() -> Session:
    """Tokens 2-3 show red and 5-6 blue."""
    ids = [10, 11, 9, 9, 12, 9, 9, 13]
    return Session(0, ids, [RED, BLUE], [GRID, GRID], [(2, 4), (5, 7)])


def test_a_longer_context_shares_everything():
    longer = (10, 11, 9, 9, 12, 9, 9, 13, 14, 15)
    assert two_images().shared_with(request(longer, RED, BLUE)) == (8, 2)


def test_the_last_token_is_always_read_again():
    same = (10, 11, 9, 9, 12, 9, 9, 13)
    assert two_images().shared_with(request(same, RED, BLUE)) == (7, 2)


def test_an_image_is_shared_whole_or_not_at_all():
    ends_in_an_image = (10, 11, 9, 9, 12, 9, 9)
    assert two_images().shared_with(request(ends_in_an_image, RED, BLUE)) == (5, 1)


def test_another_image_behind_the_same_tokens_is_noticed():
    same = (10, 11, 9, 9, 12, 9, 9, 13, 14)
    assert two_images().shared_with(request(same, RED, GREEN)) == (5, 1)
    assert two_images().shared_with(request(same, BLUE, RED)) == (2, 0)


def test_truncate_drops_both_tokens_and_images():
    session = two_images()
    session.truncate(5, 1)
    assert session.ids == [10, 11, 9, 9, 12]
    assert session.images == [RED]
    assert session.spans == [(2, 4)]


def test_placing_a_session_swaps_it_with_the_slots_owner():
    sessions = Sessions(limit=8)
    first, second = sessions.place(100, 0), sessions.place(101, 1)
    assert sessions.first(2) == [first, second]
    assert sessions.place(101, 0) is second
    assert sessions.first(2) == [second, first]
    assert (second.slot, first.slot) == (0, 1)


def test_the_least_recently_used_session_is_evicted():
    sessions = Sessions(limit=2)
    sessions.place(100, 0)
    sessions.place(101, 1)
    sessions.place(100, 0)  # used again, so 101 is the oldest
    sessions.place(102, 1)
    assert sessions.find(101) is None
    assert sessions.find(100) and sessions.find(102)


def test_a_cache_for_one_session_serves_sessions_one_after_the_other():
    sessions = Sessions(limit=1)
    for name in (100, 101):
        assert sessions.place(name, 0).slot == 0
    assert sessions.find(100) is None


def test_a_session_in_a_slot_below_the_new_one_is_not_evicted():
    sessions = Sessions(limit=2)
    sessions.place(100, 0)
    sessions.place(101, 1)
    sessions.place(102, 1)  # 100 is older, but slot 0 belongs to the current batch
    assert sessions.find(100)
    assert sessions.find(101) is None


def test_releasing_the_last_session_frees_the_cache():
    sessions = Sessions(limit=4)
    cache = sessions.cache
    sessions.place(100, 0)
    sessions.place(101, 1)
    sessions.release(100)
    assert sessions.cache is cache
    sessions.release(101)
    assert sessions.cache is not cache
