from pathlib import Path

import pytest
import torch

from vagentrl.cli import doctor
from vagentrl.cli.examine import examine
from vagentrl.cli.main import main
from vagentrl.models.load import load_model


def test_the_doctor_says_what_this_machine_can_run(capsys: pytest.CaptureFixture[str]):
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    named = {line.split()[1]: line.split()[0] for line in lines}
    assert named.keys() >= {"python", "torch", "transformers", "lightning", "vllm", "deepspeed"}
    assert named["torch"] == "ok"
    assert any("vagentrl_envs.sokoban" in line and "Sokoban" in line for line in lines)
    assert any("vagentrl_judges.yes_no" in line and "YesNo" in line for line in lines)


def test_a_sound_model_passes_every_look():
    findings = [str(finding) for finding in examine("tiny-sokoban-vlm")]
    assert all(line.strip().startswith("ok") for line in findings), findings
    assert "another first image moves log-probs" in findings[2]


def test_a_model_that_does_not_see_its_images_is_found(monkeypatch: pytest.MonkeyPatch):
    def blind(*arguments: object, **settings: object) -> object:
        policy = load_model("tiny-sokoban-vlm", dtype=torch.float32)
        for parameter in policy.base_model.get_submodule("visual.merger").parameters():
            parameter.data.zero_()
        return policy

    monkeypatch.setattr("vagentrl.cli.examine.load_model", blind)
    images = next(f for f in examine("tiny-sokoban-vlm") if f.name == "images")
    assert images.good is False
    assert "the model does not see it" in images.detail


def test_a_missing_model_ends_the_doctor_with_an_error(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        main(["doctor", "--model", "./nowhere"])
    assert "there is no model folder" in capsys.readouterr().out


def test_a_library_that_breaks_or_ends_its_process_is_named_and_the_others_are_tried(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    Path("broken.py").write_text("import no_such_library")
    Path("fatal.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(run_dir))
    assert dict(doctor.try_imports(["json", "broken", "fatal", "zlib"])) == {
        "json": None,
        "broken": "ModuleNotFoundError: No module named 'no_such_library'",
        "fatal": "exit code 7",
        "zlib": None,
    }


def test_a_library_that_hangs_when_it_is_imported_is_named(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    Path("endless.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(run_dir))
    monkeypatch.setattr(doctor, "IMPORT_S", 0.1)
    assert list(doctor.try_imports(["endless"])) == [
        ("endless", "it is still being imported after 0 s")
    ]
