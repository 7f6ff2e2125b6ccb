import pytest

from vagentrl.contexts import FullHistory, Window
from vagentrl.errors import ConfigError


def test_a_full_history_starts_at_the_first_turn():
    assert [FullHistory().start(turn) for turn in range(4)] == [0, 0, 0, 0]


def test_a_window_starts_so_many_turns_back():
    assert [Window(2).start(turn) for turn in range(5)] == [0, 0, 0, 1, 2]
    assert [Window(0).start(turn) for turn in range(3)] == [0, 1, 2]


def test_a_window_that_is_cleared_forgets_all_that_was_before():
    # cleared at turns 3 and 6; in between it grows to 4 turns at most, here to 2
    window = Window(4, clear_every=3)
    assert [window.start(turn) for turn in range(8)] == [0, 0, 0, 3, 3, 3, 6, 6]


def test_windows_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match=r"Window\.turns is -1"):
        Window(-1)
    with pytest.raises(ConfigError, match=r"Window\.clear_every is 0"):
        Window(2, clear_every=0)
    with pytest.raises(ConfigError, match="thoughts is 'drop'"):
        FullHistory(thoughts="drop")  # pyright: ignore
