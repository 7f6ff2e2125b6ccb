"""What is built is what people get: the wheel, made from the sdist, away from the checkout."""

import os
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
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


def run_python(program: str, site: Path, cwd: Path) -> str:
    """What a program prints when only the installed wheel can be found, from an empty folder."""
    env = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
