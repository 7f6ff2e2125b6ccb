import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from vagentrl.cli.check_env import installed_environments
from vagentrl.cli.main import main
from vagentrl.cli.plugins import find_plugins
from vagentrl.environment import Environment

GAME = """
from abc import abstractmethod

from vagentrl_envs.bandit import Bandit, BanditRev


class Game(Bandit):
    pass


class Unfinished(Bandit):
    @abstractmethod
    def rules(self): ...


class Choosy(Bandit):
    def __init__(self, colour):
        super().__init__()


Alias = Game
"""


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Plug-ins of which one is sound, one is broken and one is gone."""
    (tmp_path / "sound_game.py").write_text(GAME)
    (tmp_path / "broken_game.py").write_text("raise RuntimeError('no such display')")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint(path, path, "vagentrl.plugins")
        for path in ("sound_game", "broken_game", "moved_game", "vagentrl_envs.bandit")
    ]
    monkeypatch.setattr("vagentrl.cli.plugins.entry_points", lambda group: points)
    yield
    sys.modules.pop("sound_game", None)


def test_a_plugin_has_the_concrete_classes_of_its_own():
    classes = {plugin.name: list(plugin.classes(Environment)) for plugin in find_plugins()}
    named = {name: [kind.__name__ for kind in kinds] for name, kinds in classes.items()}
    assert named == {
        "broken_game": [],
        "moved_game": [],
        "sound_game": ["Game", "Choosy"],
        "vagentrl_envs.bandit": ["Bandit", "BanditRev"],
    }
    assert [name for name, _ in installed_environments()] == [
        "sound_game.Game",
        "vagentrl_envs.bandit.Bandit",
        "vagentrl_envs.bandit.BanditRev",
    ]


def test_a_broken_plugin_does_not_stop_a_command(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", "bandit", "--print_config"])
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert "vagentrl_envs.bandit.Bandit" in printed.out
    complaints = [line for line in printed.err.splitlines() if "plug-in" in line]
    assert len(complaints) == 2
    assert "broken_game cannot be imported (RuntimeError: no such display)" in complaints[0]
    assert "moved_game cannot be imported (ModuleNotFoundError" in complaints[1]
    assert all("install the package that brings it again" in line for line in complaints)
