"""All tests of this folder compute in float64."""

from collections.abc import Iterator

import pytest

from tests.exact.models import in_float64


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with in_float64():
        yield
