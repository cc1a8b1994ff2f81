"""The build steps of the images, in an empty folder: a server's environment, without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What the Dockerfile copies.
COPIED = ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "src", "deploy/install.sh")


@pytest.mark.slow
def test_the_steps_of_the_image_work_in_a_clean_root(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "opt"
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    for name in COPIED:
        assert name in dockerfile
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    # Nothing of this environment but the package index that pip is set to.
    environment = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    own = Path.home() / ".config" / "pip" / "pip.conf"
    if own.exists():
        environment.setdefault("PIP_CONFIG_FILE", str(own))
    environment |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment["PYTHON"] = os.path.realpath("/proc/self/exe")
    script = source / "deploy" / "install.sh"
    done = subprocess.run(
        ["sh", str(script), str(target), "flower,dashboard"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    commands = "fedraw server", "flower-superlink", "flower-supernode", "flower-superexec"
    for words in (*commands, "python -m fedraw.flower.supervise"):
        program, *more = words.split()
        command = [str(target / "bin" / program), *more, "--help"]
        helped = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert helped.returncode == 0, words
    listed = subprocess.run(
        [str(target / "bin" / "pip"), "list"], capture_output=True, text=True, check=True
    ).stdout.lower()
    assert "flwr" in listed and "torch" not in listed and "scikit" not in listed
