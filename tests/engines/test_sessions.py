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


def test_cut_forgets_tokens_and_images_alike():
    session = two_images()
    session.cut(5, 1)
    assert session.ids == [10, 11, 9, 9, 12]
    assert session.images == [RED]
    assert session.spans == [(2, 4)]


def test_sessions_change_places_to_sit_together():
    sessions = Sessions(limit=8)
    first, second = sessions.seat(100, 0), sessions.seat(101, 1)
    assert sessions.first(2) == [first, second]
    assert sessions.seat(101, 0) is second
    assert sessions.first(2) == [second, first]
    assert (second.slot, first.slot) == (0, 1)


def test_the_session_unused_for_longest_gives_way():
    sessions = Sessions(limit=2)
    sessions.seat(100, 0)
    sessions.seat(101, 1)
    sessions.seat(100, 0)  # used again, so 101 is the oldest
    sessions.seat(102, 1)
    assert sessions.find(101) is None
    assert sessions.find(100) and sessions.find(102)


def test_one_session_after_the_other_may_be_all_there_is_room_for():
    sessions = Sessions(limit=1)
    for name in (100, 101):
        assert sessions.seat(name, 0).slot == 0
    assert sessions.find(100) is None


def test_a_session_below_the_seat_is_in_use_and_stays():
    sessions = Sessions(limit=2)
    sessions.seat(100, 0)
    sessions.seat(101, 1)
    sessions.seat(102, 1)  # 100 is older, but sits in a slot that is being read
    assert sessions.find(100)
    assert sessions.find(101) is None


def test_the_cache_is_given_back_with_the_last_session():
    sessions = Sessions(limit=4)
    cache = sessions.cache
    sessions.seat(100, 0)
    sessions.seat(101, 1)
    sessions.release(100)
    assert sessions.cache is cache
    sessions.release(101)
    assert sessions.cache is not cache
