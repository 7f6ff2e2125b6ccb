from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from vagentrl.errors import ConfigError
from vagentrl.interactions.settings import read_settings


@dataclass(frozen=True)
class Settings:
    size: int = 1
    share: float = 0.5
    on: bool = False
    text: str | None = None
    way: Literal["up", "down"] = "up"
    names: list[str] = field(default_factory=list)
    ways: list[Literal["up", "down"]] = field(default_factory=list)
    table: dict[str, str] = field(default_factory=dict)
    any: Any = None


def test_values_are_taken_as_they_are():
    config = {
        "name": "of the interaction",
        "share": 1,
        "text": "true",
        "names": ["1", "null"],
        "ways": ["down"],
        "table": {"DEBUG": "1"},
        "any": print,
    }
    settings = read_settings(config, Settings, "Test")
    assert settings == Settings(
        1, 1, False, "true", "up", ["1", "null"], ["down"], {"DEBUG": "1"}, print
    )


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"size": 1.5}, "size of Test is 1.5 (float); give int"),
        ({"size": True}, "give int"),
        ({"share": "0.5"}, "give float"),
        ({"share": True}, "give float"),
        ({"on": 1}, "give bool"),
        ({"text": 1}, "give str or null"),
        ({"way": "left"}, "give 'up' or 'down'"),
        ({"names": "one"}, "give list[str]"),
        ({"names": [1]}, "give list[str]"),
        ({"ways": ["left"]}, "give list[Literal['up', 'down']]"),
        ({"table": {"DEBUG": 1}}, "give dict[str, str]"),
        ({"table": []}, "give dict[str, str]"),
        ({"sizes": 1}, "no setting sizes; its settings are size, share"),
        ([], "give a mapping"),
    ],
)
def test_what_does_not_fit_is_named(config: Any, told: str):
    with pytest.raises(ConfigError) as caught:
        read_settings(config, Settings, "Test")
    assert told in str(caught.value)
