"""The wheel is complete: installed into an empty environment, without a clone, the demo runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import fedraw

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What an extra makes importable.
IMPORTS = {
    "sim": "fedraw.experiment.simulate",
    "report": "fedraw.report",
    "data": "fedraw.data.fetch",
    "audit": "pyarrow",
    "flower": "fedraw.flower",
    "privacy": "fedraw.privacy.summaries",
    "dashboard": "fedraw.dashboard.app",
    "export": "tensorboard",
    "ray": "ray, fedraw.simulation.executors.ray_cluster",
    "flare": "fedraw.flare.recipe, fedraw.flare.supervise",
}

pytestmark = pytest.mark.slow


def run(*words: str | Path, cwd: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--quiet", "--outdir", out, ROOT, cwd=out)
    return out


def newest_python(version: str) -> str | None:
    """An interpreter of this version: on the path, or among those of pyenv."""
    installed = Path.home() / ".pyenv" / "versions"
    for found in [shutil.which(f"python{version}"), *installed.glob(f"{version}.*/bin/python")]:
        words = [str(found), "-c", "import ensurepip"]
        if found and subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return str(found)
    return None


def environment(folder: Path, wheel: Path, extras: str = "", python: str = sys.executable) -> Path:
    """A new environment with the wheel; pip takes the versions of constraints.txt."""
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    pip = folder / "venv" / "bin" / "pip"
    pins = ROOT / "constraints.txt"
    run(pip, "install", "--quiet", "--constraint", pins, f"{wheel}{extras}", cwd=folder)
    return folder / "venv" / "bin"


def test_the_distributions_have_everything_and_nothing_else(dist: Path) -> None:
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(
            archive.read(f"fedraw-{fedraw.__version__}.dist-info/METADATA").decode()
        )
    assert {name.split("/")[0] for name in names} == {
        "fedraw",
        f"fedraw-{fedraw.__version__}.dist-info",
    }
    sources = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "fedraw").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("fedraw/")} == sources
    assert "fedraw/py.typed" in names
    assert metadata["Version"] == fedraw.__version__
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    with tarfile.open(source) as archive_:
        inside = {name.split("/", 1)[1] for name in archive_.getnames() if "/" in name}
    assert {"README.md", "LICENSE", "constraints.txt", "docs/index.md", "CITATION.cff"} <= inside
    assert not [name for name in inside if name.startswith(("studies/", "docs/_build/", ".venv"))]


def test_the_demo_runs_from_a_wheel_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    bin_ = environment(tmp_path, wheel, "[sim,report]")
    where = run(bin_ / "python", "-c", "import fedraw; print(fedraw.__file__)", cwd=tmp_path)
    assert str(tmp_path) in where
    assert run(bin_ / "fedraw", "--version", cwd=tmp_path) == f"{fedraw.__version__}\n"
    shown = run(bin_ / "fedraw", "demo", "--out", "demo", cwd=tmp_path)
    assert "fedraw-replay" in shown
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000


@pytest.mark.parametrize("extra", IMPORTS)
def test_an_extra_installs_alone(extra: str, dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    bin_ = environment(tmp_path, wheel, f"[{extra}]")
    run(bin_ / "python", "-c", f"import {IMPORTS[extra]}", cwd=tmp_path)
    run(bin_ / "fedraw", "--help", cwd=tmp_path)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_a_newer_python_runs_a_simulation(version: str, dist: Path, tmp_path: Path) -> None:
    python = newest_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    (wheel,) = dist.glob("*.whl")
    bin_ = environment(tmp_path, wheel, "[sim]", python)
    code = "import fedraw; print(fedraw.simulate(strategy='fedfa', events=60, seeds=[1]).name)"
    assert run(bin_ / "python", "-c", code, cwd=tmp_path) == "fedfa\n"


def test_a_server_installs_neither_torch_nor_scikit_learn(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    bin_ = environment(tmp_path, wheel)
    installed = run(bin_ / "pip", "list", "--format", "freeze", cwd=tmp_path).lower()
    assert "torch" not in installed
    assert "scikit-learn" not in installed
    run(bin_ / "python", "-c", "import fedraw; fedraw.FedRAW(); fedraw.audit", cwd=tmp_path)
