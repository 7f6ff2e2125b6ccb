import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests import toy
from tests.viewer.stored import (
    HOSTILE,
    full_scores,
    full_trajectory,
    hostile_trajectory,
    name_tokens,
    store,
)
from vagentrl.errors import ConfigError
from vagentrl.viewer.export import export
from vagentrl.viewer.folder import TrajectoryFolder
from vagentrl.viewer.reading import FOLDER, read_run
from vagentrl.viewer.records import RowWriter, image_name
from vagentrl.viewer.site import Site, resources


def site_of(run: Path) -> Site:
    return Site(read_run(run))


def parsed(script: bytes) -> object:
    """The value that a data script hands over."""
    called = re.fullmatch(r'receiveData\("[\w-]+", (.*)\);\n', script.decode("ascii"))
    assert called is not None
    return json.loads(called[1])


def test_the_index_has_a_line_for_each_trajectory(tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4, group_id=n) for n in range(9)], iteration=2)
    store(tmp_path, [toy.play([toy.WAIT] * 5, seed=2**62 + 1)], split="val", iteration=1)
    index = json.loads(site_of(tmp_path).data("index"))
    columns = index["columns"]
    assert index["chunks"] == ["train-000002-0", "train-000002-1", "val-000001-0"]
    assert columns["chunk"] == [0] * 8 + [1, 2]
    assert columns["place"] == [*range(8), 0, 0]
    assert columns["iteration"] == [2] * 9 + [1]
    assert columns["length"] == [1] * 9 + [5]
    assert columns["seed"] == ["4"] * 9 + [str(2**62 + 1)]  # JavaScript would round a number
    assert index["names"]["split"] == ["train", "val"]
    assert columns["split"] == [0] * 9 + [1]
    assert columns["return"] == [1.0] * 9 + [-1.25]
    assert columns["success"] == [True] * 9 + [False]


def test_the_data_of_a_trajectory_hold_every_token_with_its_scores(tmp_path: Path):
    trajectory, writer = full_trajectory(), RowWriter(name_tokens)
    [turn] = trajectory.turns
    scores = full_scores(len(turn.reply_ids))
    writer.add(trajectory, split="train", iteration=0, member=0, scores=scores)
    TrajectoryFolder(tmp_path / FOLDER, 1e9).write("train", 0, writer.rows, writer.images)
    chunk = json.loads(site_of(tmp_path).data("train-000000-0"))
    [[shown]] = [each["turns"] for each in chunk["trajectories"]]
    tokens = [chunk["vocabulary"][number] for number in shown["tokens"]]
    assert tokens == [[id, f"<{id}>"] for id in turn.reply_ids]
    assert len(shown["prompt"]) == len(turn.prompt.ids)
    assert shown["scores"]["actor"][:2] == [-1.0, -1.25]
    assert shown["scores"]["reference"][:2] == [-2.0, -2.25]
    assert shown["scores"]["entropy"][:2] == [0.0, 0.25]
    assert shown["scores"]["advantage"][:2] == [-1.0, -0.75]
    assert shown["scores"]["value"][:2] == ["NaN", 0.25]  # JSON has no NaN
    assert shown["scores"]["logprob"][:2] == [-0.5, -0.51]
    assert shown["images"] == [image_name(toy.picture(1))]
    assert shown["claims"][0]["reason"] == "half right"


def test_hostile_texts_stay_data(tmp_path: Path):
    store(tmp_path, [hostile_trajectory()])
    site = site_of(tmp_path)
    for name in site.names:
        script = site.script(name)
        assert b"<" not in script  # no tag can begin, inside a page or out of it
        script.decode("ascii")  # nor is there a character that ends a line of JavaScript
        parsed(script)
    [[turn]] = [each["turns"] for each in json.loads(site.data("train-000000-0"))["trajectories"]]
    assert turn["reply"] == turn["hint"] == turn["claims"][0]["reason"] == HOSTILE
    assert ["__proto__", 2.0] in turn["metrics"]  # pairs: as a key it would change the object


def test_the_pages_policy_allows_its_own_script_and_nothing_else(tmp_path: Path):
    run = store(tmp_path / "@SCRIPT@<script>&'\"" / "x", [hostile_trajectory()])
    page = site_of(run).page({"index": site_of(run).data("index")}).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "unsafe" not in policy[1] and "http" not in policy[1]
    scripts = re.findall(r"<script([^>]*)>", page)
    assert [bool("application/json" in attributes) for attributes in scripts] == [True, False]
    assert "<script>&" not in page and page.count("</script>") == 2
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_an_export_holds_the_page_its_data_and_its_images(tmp_path: Path):
    store(tmp_path / "run", [toy.play([toy.GO], seed=4, images=True)])
    page = export(site_of(tmp_path / "run"), tmp_path / "out")
    files = {str(f.relative_to(tmp_path / "out")) for f in (tmp_path / "out").rglob("*.*")}
    images = {f"images/{image_name(toy.picture(left))}" for left in (0, 1)}
    assert files == {"index.html", "data/index.js", "data/train-000000-0.js", *images}
    assert page == tmp_path / "out" / "index.html"
    export(site_of(tmp_path / "run"), tmp_path / "out")  # an earlier export may be replaced


def test_an_export_to_a_file_holds_everything_in_it(tmp_path: Path):
    store(tmp_path / "run", [toy.play([toy.GO], seed=4, images=True), hostile_trajectory()])
    page = export(site_of(tmp_path / "run"), tmp_path / "new" / "one.html").read_text()
    assert [*(tmp_path / "new").iterdir()] == [tmp_path / "new" / "one.html"]
    blocks = dict(re.findall(r'data-name="([\w-]+)">(.*?)</script>', page, re.DOTALL))
    assert set(blocks) == {"index", "train-000000-0", "images"}
    assert json.loads(blocks["index"])["columns"]["length"] == [1, 1]
    images = json.loads(blocks["images"])
    assert images[image_name(toy.picture(1))].startswith("data:image/png;base64,iVBOR")


def test_an_empty_run_is_exported_with_what_is_wrong(tmp_path: Path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "train-000000.parquet").write_bytes(b"")
    export(site_of(tmp_path), tmp_path / "out")
    index = parsed((tmp_path / "out/data/index.js").read_bytes())
    assert isinstance(index, dict)
    assert index["columns"]["iteration"] == []
    assert index["problems"][0].startswith("train-000000.parquet is left out: torn")


def test_an_export_never_writes_among_other_files(tmp_path: Path):
    store(tmp_path / "run", [toy.play([toy.GO], seed=4)])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("…")
    with pytest.raises(ConfigError, match="exists and is no earlier export"):
        export(site_of(tmp_path / "run"), tmp_path / "mine")
    with pytest.raises(ConfigError, match="exists and is no earlier export"):
        export(site_of(tmp_path / "run"), tmp_path / "mine" / "thesis.tex")


def test_a_reply_of_a_megabyte_is_exported_whole(tmp_path: Path):
    text = "é<" * 500_000
    played = toy.play([toy.GO], seed=4)
    [turn] = played.turns
    long = replace(turn, reply=replace(turn.reply, text=text))
    store(tmp_path, [replace(played, turns=(long,))])
    [chunk] = [json.loads(site_of(tmp_path).data("train-000000-0"))]
    assert chunk["trajectories"][0]["turns"][0]["reply"] == text


def test_a_site_has_no_other_paths_than_its_own(tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4, images=True)])
    images = {f"images/{image_name(toy.picture(left))}" for left in (0, 1)}
    assert set(resources(site_of(tmp_path))) == {
        "index.html", "data/index.js", "data/train-000000-0.js", *images
    }  # fmt: skip
