"""Interactions from YAML, in both forms that verl documents."""

from pathlib import Path

import pytest

from tests.interactions.user_code import user_module
from vagentrl.errors import ConfigError
from vagentrl.interactions import BaseInteraction, initialize_interactions_from_config
from vagentrl.interactions.registry import Interactions, get_interaction_class

__all__ = ["user_module"]


@pytest.fixture
def written(tmp_path: Path):
    """Write a YAML file; ``MODULE`` stands for the user's module."""

    def write(text: str, module: str = "") -> str:
        path = tmp_path / "interactions.yaml"
        path.write_text(text.replace("MODULE", module))
        return str(path)

    return write


ONE = """
interaction:
  - name: "gsm8k"
    class_name: "MODULE.SolverInteraction"
    config: {}
"""
SEVERAL = """
interaction:
  - name: "solver"
    class_name: "MODULE.SolverInteraction"
    config:
      solver_type: "advanced"
      timeout: 30
  - class_name: "MODULE.SolverInteraction"
    config: {}
    name: null
  - class_name: "MODULE.Ducks"
  - name: code_verifier
    class_name: "verl.interactions.base.BaseInteraction"
    config:
      verification_mode: "strict"
"""


def test_a_single_interaction_is_made_with_its_name_in_the_config(written, user_module: str):
    made = initialize_interactions_from_config(written(ONE, user_module))
    assert list(made) == ["gsm8k"]
    assert type(made["gsm8k"]).__name__ == "SolverInteraction"
    assert made["gsm8k"].config == {"name": "gsm8k"}
    assert made["gsm8k"].name == "gsm8k"


def test_several_are_made_and_the_same_name_is_refused(written, user_module: str):
    text = SEVERAL.replace("name: null", "")  # its name is made from the class: solver, again
    path = written(text, user_module)
    with pytest.raises(ValueError, match="Duplicate interaction name 'solver' found in"):
        initialize_interactions_from_config(path)


def test_a_name_is_made_from_the_class_where_there_is_none(written, user_module: str):
    text = SEVERAL.replace('name: "solver"', 'name: "first"')
    made = initialize_interactions_from_config(written(text, user_module))
    # SolverInteraction without its ending, Ducks as it is; both in lower case
    assert list(made) == ["first", "solver", "ducks", "code_verifier"]
    assert made["first"].config == {"solver_type": "advanced", "timeout": 30, "name": "first"}
    assert made["ducks"].config == {"name": "ducks"}  # verl raises without `config`
    assert type(made["code_verifier"]) is BaseInteraction


def test_variables_in_the_file_are_resolved(
    written, user_module: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SOLVER", "deep")
    text = ONE.replace("config: {}", "config: {solver: '${oc.env:SOLVER}'}")
    made = initialize_interactions_from_config(written(text, user_module))
    assert made["gsm8k"].config["solver"] == "deep"


def test_an_empty_list_makes_none(written):
    assert initialize_interactions_from_config(written("interaction: []")) == {}


def test_verls_dotted_path_leads_to_our_base_class():
    assert get_interaction_class("verl.interactions.base.BaseInteraction") is BaseInteraction


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "cannot be read"),
        ("- 1", r"holds \[1\]"),
        ("interactions: []", "`interaction` of .* is None"),
        ("interaction: {name: x}", r"`interaction` of .* is \{'name': 'x'\}"),
        ("interaction: [{name: x}]", "class_name: package.module.Class"),
        ("interaction: [{class_name: MODULE.Ducks, config: 3}]", "`config` of .* is 3"),
        ("interaction: [{class_name: Ducks}]", "give a dotted path"),
        ("interaction: [{class_name: MODULE.Geese}]", "has no 'Geese'"),
        ("interaction: [{class_name: MODULE.Lame}]", "lacks start_interaction, calculate_score"),
        (
            "interaction: [{class_name: MODULE.Greedy}]",
            r"Greedy.finalize_interaction takes \(instance_id, reason\), but is called with the",
        ),
        (
            "interaction: [{class_name: collections.Counter}]",
            "Counter.* is no interaction",
        ),
        ("interaction: [{class_name: MODULE.uuid4}]", "failed: TypeError"),
    ],
)
def test_a_mistake_is_named(written, user_module: str, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        initialize_interactions_from_config(written(text, user_module))


def test_a_missing_file_or_module_is_named(written):
    with pytest.raises(ConfigError, match=r"'nowhere\.yaml' cannot be read"):
        initialize_interactions_from_config("nowhere.yaml")
    path = written("interaction: [{name: x, class_name: invalid.module.Class, config: {}}]")
    with pytest.raises(ModuleNotFoundError, match="no module 'invalid'"):  # as in verl
        initialize_interactions_from_config(path)
    with pytest.raises(ConfigError):
        initialize_interactions_from_config(path)


def test_all_environments_of_a_process_share_the_objects_of_an_entry(written, user_module: str):
    path = written(ONE, user_module)
    one, other = Interactions(path), Interactions(path)
    assert one.of_row({"name": "gsm8k"}, 0) is other.of_row({"name": "gsm8k"}, 1)
    changed = Interactions(written(ONE.replace("{}", "{size: 3}"), user_module))
    assert changed.of_row({"name": "gsm8k"}, 0) is not one.of_row({"name": "gsm8k"}, 0)


def test_each_trajectory_may_have_an_object_of_its_own(written, user_module: str):
    own = Interactions(written(ONE, user_module), shared=False)
    assert own.of_row({"name": "gsm8k"}, 0) is not own.of_row({"name": "gsm8k"}, 0)


def test_one_interaction_may_be_given_by_its_class_its_entry_or_itself(user_module: str):
    assert Interactions(f"{user_module}.SolverInteraction").names == ("solver",)
    entry = {"class_name": f"{user_module}.SolverInteraction", "config": {"a": 1}}
    assert Interactions(entry).of_row({}, 0).config == {"a": 1, "name": "solver"}
    assert Interactions({"interaction": [entry]}).names == ("solver",)
    given = BaseInteraction({"name": "mine"})
    assert Interactions(given).of_row({"name": "mine"}, 0) is given
    with pytest.raises(ConfigError, match="instances: shared"):
        Interactions(given, shared=False)
    with pytest.raises(ConfigError, match="is no interaction"):
        Interactions(BaseInteraction)  # pyright: ignore
    with pytest.raises(ConfigError, match="holds none"):
        Interactions({"interaction": []})
