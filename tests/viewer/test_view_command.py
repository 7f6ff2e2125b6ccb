from pathlib import Path

import pytest

from tests import toy
from tests.viewer.stored import store
from vagentrl.cli.main import main
from vagentrl.viewer import server
from vagentrl.viewer.reading import FOLDER


def test_a_run_is_exported_and_the_page_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = store(tmp_path / "toy" / "version_0", [toy.play([toy.GO], seed=4)])
    (run / FOLDER / "train-000001.parquet").write_bytes(b"half a file")
    main(["view", str(run), "--export", str(tmp_path / "page")])
    printed = capsys.readouterr()
    page = tmp_path / "page" / "index.html"
    assert printed.out == f"1 trajectories of toy/version_0; open {page.as_uri()}\n"
    assert page.is_file()
    assert "vagentrl: train-000001.parquet is left out: torn" in printed.err


def test_a_run_is_served_and_the_address_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    run = store(tmp_path / "toy" / "version_0", [toy.play([toy.GO], seed=4)])
    monkeypatch.setattr(server.ViewerServer, "serve_forever", lambda self: None)
    main(["view", str(run), "--port", "0"])
    printed = capsys.readouterr()
    assert "1 trajectories of toy/version_0 at http://127.0.0.1:" in printed.out
    assert "what if: " in printed.err and "name the recipe with --recipe" in printed.err


def test_a_run_without_trajectories_ends_with_a_sentence(tmp_path: Path):
    with pytest.raises(SystemExit, match=r"ConfigError: .*TrajectoryStore"):
        main(["view", str(tmp_path)])
