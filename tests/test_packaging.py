"""What is built is what people get: the wheel, made from the sdist, away from the checkout."""

import json
import os
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
PACKAGES = [ROOT / "vagentrl", ROOT / "envs/vagentrl_envs", ROOT / "judges/vagentrl_judges"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # without --wheel the wheel is built from the sdist, so both are tried
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which nothing but the wheel is installed."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", target, wheel], check=True)
    return target


@pytest.fixture(scope="module")
def distribution(site: Path) -> Distribution:
    return next(d for d in distributions(path=[str(site)]) if d.name == "vagentrl")


def python(site: Path, cwd: Path, *arguments: str) -> str:
    """What Python prints when only the installed wheel can be found, from an empty folder."""
    env = os.environ | {"PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(program: str, site: Path, cwd: Path) -> str:
    return python(site, cwd, "-c", program)


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path):
    shipped = set(ZipFile(wheel).namelist())
    for package in PACKAGES:
        files = (f for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
        wanted = {file.relative_to(package.parent).as_posix() for file in files}
        assert f"{package.name}/py.typed" in wanted
        assert wanted <= shipped


def test_the_wheel_claims_no_other_name_in_site_packages(site: Path):
    importable = {path.name for path in site.iterdir() if path.suffix != ".dist-info"}
    assert importable - {"bin"} == {package.name for package in PACKAGES}


def test_the_packages_import_from_an_empty_folder(site: Path, tmp_path: Path):
    program = (
        "import vagentrl, vagentrl_envs, vagentrl_judges\n"
        "print(vagentrl.__file__, vagentrl_envs.__file__, vagentrl_judges.__file__, sep='\\n')"
    )
    for path in run_python(program, site, tmp_path).split():
        assert Path(path).is_relative_to(site)


def test_every_public_name_is_there(site: Path, tmp_path: Path):
    run_python(
        "import vagentrl\nfor name in vagentrl.__all__: getattr(vagentrl, name)", site, tmp_path
    )


@pytest.mark.parametrize("module", ["vagentrl", "vagentrl.cli", "vagentrl.environment"])
def test_importing_does_not_wait_for_torch(module: str, site: Path, tmp_path: Path):
    program = f"import sys, {module}; print(*sys.modules)"
    loaded = set(run_python(program, site, tmp_path).split())
    assert module in loaded
    assert not loaded & {"torch", "transformers", "lightning"}


def test_every_entry_point_leads_somewhere(distribution: Distribution, site: Path, tmp_path: Path):
    points = distribution.entry_points
    assert {point.group for point in points} == {"console_scripts", "vagentrl.plugins"}
    loads = [f"EntryPoint({p.name!r}, {p.value!r}, {p.group!r}).load()" for p in points]
    program = "\n".join(["from importlib.metadata import EntryPoint", *loads])
    run_python(program, site, tmp_path)


def test_the_installed_version_is_the_one_that_the_package_tells(
    distribution: Distribution, site: Path, tmp_path: Path
):
    told = run_python("import vagentrl; print(vagentrl.__version__)", site, tmp_path)
    assert distribution.version == told.strip()


def test_the_recipes_are_listed_and_copied_without_a_checkout(site: Path, tmp_path: Path):
    listed = python(site, tmp_path, "-m", "vagentrl", "recipes").splitlines()
    names = {path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.rglob("*.yaml")}
    assert {Path(line.split()[0]) for line in listed} == names
    printed = python(site, tmp_path, "-m", "vagentrl", "recipes", "gigpo")
    assert printed == (CONFIGS / "recipes/gigpo.yaml").read_text()


def test_a_recipe_runs_without_a_checkout(site: Path, tmp_path: Path):
    small = ("--trainer.max_epochs=2", "--data.groups=2", "--data.group_size=2")
    evaluated = ("--data.val_episodes=2", "--trainer.check_val_every_n_epoch=2")
    python(site, tmp_path, "-m", "vagentrl", "fit", "--config", "bandit", *small, *evaluated)
    summary = json.loads((tmp_path / "runs/bandit/version_0/summary.json").read_text())
    assert (summary["iterations"], summary["episodes"]) == (2, 8)


def test_an_editable_install_reads_the_checkout(tmp_path: Path):
    build = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, tmp_path], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (built,) = tmp_path.glob("*.whl")
    with ZipFile(built) as wheel:
        (pth,) = (name for name in wheel.namelist() if ".dist-info/" not in name)
        folders = [Path(line) for line in wheel.read(pth).decode().splitlines()]
    assert folders == [ROOT, ROOT / "envs", ROOT / "judges"]
