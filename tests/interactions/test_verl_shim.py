"""Code that imports verl's interactions, where verl is missing, old or new."""

import subprocess
import sys
from pathlib import Path

from tests.interactions.user_code import CODE

FIRST = "from vagentrl.interactions import install_verl_shim; install_verl_shim()\n"


def run(code: str, folder: Path) -> list[str]:
    """The lines that a program in a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n" + code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
        path.write_text(text)
    return folder


def test_without_verl_its_interactions_are_ours(tmp_path: Path):
    code = (
        "from verl.interactions.base import BaseInteraction\n"
        "import verl.interactions.base as module\n"
        "from verl.interactions.utils.interaction_registry import (\n"
        "    get_interaction_class, initialize_interactions_from_config)\n"
        "import vagentrl.interactions.base as ours\n"
        "print(BaseInteraction.__module__, module is ours, ours.__spec__.name)\n"
        "found = get_interaction_class('verl.interactions.base.BaseInteraction')\n"
        "print(found is BaseInteraction)\n"
    )
    assert run(FIRST + code, tmp_path) == [
        "vagentrl.interactions.base True vagentrl.interactions.base",
        "True",
    ]


def test_a_users_module_is_imported_unchanged(tmp_path: Path):
    (tmp_path / "user.py").write_text(CODE)
    code = (
        "from vagentrl.interactions.registry import get_interaction_class\n"
        "kind = get_interaction_class('user.SolverInteraction')\n"
        "print(kind.__mro__[2].__module__)\n"
    )
    assert run(code, tmp_path) == ["vagentrl.interactions.base"]


def test_gsm8k_is_looked_up_when_it_is_imported(tmp_path: Path):
    # a module in the place of vagentrl.interactions.gsm8k shows that both names lead to it, so that
    # a test which replaces verl's compute_score replaces the one that is used
    code = (
        "import types\n"
        "fake = types.ModuleType('vagentrl.interactions.gsm8k')\n"
        "fake.compute_score = lambda answer, truth, **settings: float(answer == truth)\n"
        "fake.Gsm8kInteraction = type('Gsm8kInteraction', (), {})\n"
        "sys.modules['vagentrl.interactions.gsm8k'] = fake\n"
        "from unittest.mock import patch\n"
        "from verl.utils.reward_score import gsm8k\n"
        "from verl.interactions.gsm8k_interaction import Gsm8kInteraction\n"
        "print(gsm8k.compute_score('4', '4', method='strict'), gsm8k is fake)\n"
        "with patch('verl.utils.reward_score.gsm8k.compute_score', return_value=0.5):\n"
        "    print(fake.compute_score('4', '4'))\n"
    )
    assert run(FIRST + code, tmp_path) == ["1.0 True", "0.5"]


def test_other_modules_of_verl_stay_missing(tmp_path: Path):
    code = (
        "for name in ('verl.trainer', 'verl.interactions.weather_interaction', 'verlx'):\n"
        "    try:\n"
        "        __import__(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error.name)\n"
    )
    assert run(FIRST + code, tmp_path) == [
        "verl.trainer",
        "verl.interactions.weather_interaction",
        "verlx",
    ]


def test_it_steps_aside_for_an_installed_verl_with_interactions(tmp_path: Path):
    package(
        tmp_path,
        {
            "verl/interactions/base.py": "class BaseInteraction:\n    its_own = True\n",
            "verl/utils/reward_score/gsm8k.py": "its_own = True\n",
        },
    )
    code = (
        "from verl.interactions.base import BaseInteraction\n"
        "from verl.utils.reward_score import gsm8k\n"
        "print(BaseInteraction.its_own, gsm8k.its_own)\n"
    )
    assert run(FIRST + code, tmp_path) == ["True True"]


def test_a_later_verl_gets_only_what_it_lacks(tmp_path: Path):
    package(
        tmp_path,
        {"verl/utils/reward_score/gsm8k.py": "its_own = True\n", "verl/trainer/ppo.py": ""},
    )
    code = (
        "import verl, verl.trainer.ppo\n"
        "from verl.interactions.base import BaseInteraction\n"
        "from verl.utils.reward_score import gsm8k\n"
        "print(verl.__file__.startswith(sys.path[0]), BaseInteraction.__module__, gsm8k.its_own)\n"
    )
    assert run(FIRST + code, tmp_path) == ["True vagentrl.interactions.base True"]


def test_a_folder_called_verl_is_no_obstacle(tmp_path: Path):
    (tmp_path / "verl" / "examples").mkdir(parents=True)  # such as a clone's data
    code = "from verl.interactions.base import BaseInteraction as B\nprint(B.__module__)\n"
    assert run(FIRST + code, tmp_path) == ["vagentrl.interactions.base"]


def test_installing_it_again_changes_nothing(tmp_path: Path):
    code = (
        "import verl\nbefore, module = list(sys.meta_path), verl\n"
        "install_verl_shim(); install_verl_shim()\n"
        "import verl\nprint(sys.meta_path == before, verl is module)\n"
    )
    assert run(FIRST + code, tmp_path) == ["True True"]


def test_an_installed_verl_that_is_imported_first_is_kept(tmp_path: Path):
    package(tmp_path, {"verl/version.py": "version = '0.9.1'\n"})
    code = (
        "import verl.version\n"
        + FIRST
        + "import verl.interactions.base\nprint(verl.version.version)\n"
    )
    assert run(code, tmp_path) == ["0.9.1"]
