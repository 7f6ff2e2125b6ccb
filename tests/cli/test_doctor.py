from pathlib import Path

import pytest
import torch

from vagentrl.cli import doctor
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
    findings = [str(finding) for finding in doctor.examine("tiny-sokoban-vlm")]
    assert all(line.strip().startswith("ok") for line in findings), findings
    assert "another first image moves log-probs" in findings[2]


def test_a_model_that_does_not_see_its_images_is_found(monkeypatch: pytest.MonkeyPatch):
    def blind(*arguments: object, **settings: object) -> object:
        policy = load_model("tiny-sokoban-vlm", dtype=torch.float32)
        for parameter in policy.base_model.get_submodule("visual.merger").parameters():
            parameter.data.zero_()
        return policy

    monkeypatch.setattr(doctor, "load_model", blind)
    images = next(f for f in doctor.examine("tiny-sokoban-vlm") if f.name == "images")
    assert images.good is False
    assert "the model does not see it" in images.detail


def test_a_missing_model_ends_the_doctor_with_an_error(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        main(["doctor", "--model", "./nowhere"])
    assert "there is no model folder" in capsys.readouterr().out


def test_a_library_that_hangs_when_it_is_imported_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "IMPORT_S", 0.001)
    finding = doctor._optional("transformers", ("transformers",), "never mind")
    assert finding.good is False
    assert "is still being imported after 0 s" in finding.detail
