import math

import pytest

from vagentrl.errors import ConfigError
from vagentrl.schedules import Schedule


def test_linear_goes_in_equal_steps_and_then_stays():
    schedule = Schedule(0.9, 0.1, iterations=4)
    shares = [schedule.at(iteration) for iteration in (0, 1, 2, 3, 4, 400)]
    assert shares == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1, 0.1])


def test_cosine_is_slow_at_both_ends():
    schedule = Schedule(1.0, 0.0, iterations=4, shape="cosine")
    # (1 + cos(pi t / 4)) / 2
    quarter = (1 + math.sqrt(0.5)) / 2
    shares = [schedule.at(iteration) for iteration in range(6)]
    assert shares == pytest.approx([1.0, quarter, 0.5, 1 - quarter, 0.0, 0.0])


def test_exponential_divides_by_the_same_factor():
    schedule = Schedule(0.8, 0.1, iterations=3, shape="exponential")
    shares = [schedule.at(iteration) for iteration in range(5)]
    assert shares == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((1.5, 0.0, 10), "start is 1.5; give a number from 0 to 1"),
        ((0.5, -0.1, 10), "end is -0.1"),
        ((0.5, 0.1, 0), "give 1 or more"),
        ((0.5, 0.0, 10, "exponential"), "factor leads to or from 0"),
    ],
)
def test_schedules_that_cannot_work_are_refused(settings: tuple, message: str):
    with pytest.raises(ConfigError, match=message):
        Schedule(*settings)
