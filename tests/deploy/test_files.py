"""The files of `deploy/` are what Docker Compose, systemd and nginx accept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedraw.flower.tensors import record_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"


def test_the_compose_file_fits_the_schema_of_the_compose_specification() -> None:
    program = shutil.which("check-jsonschema") or pytest.skip("check-jsonschema is not installed")
    command = [program, "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_compose_file_names_exists() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^\s+target: (\S+)", text, re.MULTILINE))
    assert targets == {"server", "site", "proxy"}
    assert targets <= set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    for path in re.findall(r"^\s+- (\.\S*):/", text, re.MULTILINE):
        assert (DEPLOY / path).exists(), path
    for path in re.findall(r"/deploy/(\S+\.sh)", text):
        assert (DEPLOY / path.rstrip(",")).exists(), path


def test_others_reach_the_proxy_only_and_no_site_reaches_the_control_network() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    of_services = text[text.index("services:") :]
    services = dict(re.findall(r"^  (\w+):\n((?:^    .*\n|^\n)*)", of_services, re.MULTILINE))
    ports = {name: re.findall(r"ports: (.*)", own) for name, own in services.items()}
    assert {name: own for name, own in ports.items() if own} == {
        "proxy": ['["8443:8443"]'],
        "dashboard": ['["127.0.0.1:8080:8080"]'],  # this machine only
    }
    assert "networks: [page]" in services["dashboard"]
    assert re.findall(r"- (\S+:/\S+)", services["dashboard"]) == ["server:/var/lib/fedraw:ro"]
    assert "control: { internal: true }" in text
    for site in ("north", "south", "east"):
        assert "*site" in services[site] and "networks:" not in services[site]


def test_every_image_runs_as_a_user_that_is_not_root() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    stages = re.split(r"^FROM \S+ AS ", dockerfile, flags=re.MULTILINE)[1:]
    users = {stage.split()[0]: re.findall(r"^USER (\S+)", stage, re.MULTILINE) for stage in stages}
    assert users["base"] == ["10001:10001"] and users["proxy"] == ["www-data:www-data"]
    assert re.findall(r"^FROM base AS (\w+)", dockerfile, re.MULTILINE) == ["server", "site"]


def test_the_proxy_limits_requests_and_lets_models_of_any_size_pass() -> None:
    """Flower sends a model in requests of at most 5 MiB of numbers, here 24 MiB in five of them."""
    conf = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    (megabytes,) = re.findall(r"^\s*client_max_body_size (\d+)m;", conf, re.MULTILINE)
    numbers = np.random.default_rng(0).random((6, 1 << 20), np.float32)
    content = RecordDict({"arrays": record_of({"w": numbers})})
    requests = [len(part.deflate()) for part in get_all_nested_objects(content).values()]
    assert sum(requests) > numbers.nbytes > int(megabytes) << 20
    assert sum(size > 1 << 20 for size in requests) == 5
    assert 2 * max(requests) < int(megabytes) << 20


@pytest.mark.parametrize("unit", sorted(path.name for path in DEPLOY.glob("systemd/*.service")))
def test_systemd_accepts_the_units(tmp_path: Path, unit: str) -> None:
    program = shutil.which("systemd-analyze") or pytest.skip("systemd is not installed")
    text = (DEPLOY / "systemd" / unit).read_text(encoding="utf-8")
    # The programs need not be installed where the tests run.
    text, programs = re.subn(r"ExecStart=\S+", "ExecStart=/bin/true", text)
    assert programs == 1
    (tmp_path / unit).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [program, "verify", "--man=no", str(tmp_path / unit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if unit in line]
    assert (done.returncode, said) == (0, [])


def test_each_machine_gets_the_keys_that_it_may_have_and_no_others(tmp_path: Path) -> None:
    script, app = DEPLOY / "make_keys.sh", ROOT / "examples" / "flower-app"
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for sites in (["north", "south"], ["north", "south", "east"]):  # the second run adds a site
        words = ["sh", str(script), str(tmp_path), str(app), *sites]
        subprocess.run(words, check=True, env=environment, capture_output=True)
    found = {
        folder.name: sorted(path.name for path in folder.iterdir()) for folder in tmp_path.iterdir()
    }
    assert found.pop("authority")[:2] == ["ca.key", "ca.pem"]
    assert found == {
        "server": ["ca.pem", "superexec.secret", "superlink.key", "superlink.pem"],
        "proxy": ["ca.pem", "superlink.key", "superlink.pem"],
        "operator": ["ca.pem", "east.pub", "north.pub", "south.pub"],
        **{site: ["ca.pem", "site.key"] for site in ("north", "south", "east")},
    }
    authority = (tmp_path / "server" / "ca.pem").read_bytes()
    for name in ("superlink.pem", "superlink.key"):  # a new certificate, from the same authority
        (tmp_path / "authority" / name).unlink()
    before = (tmp_path / "server" / "superlink.pem").read_bytes()
    subprocess.run(words, check=True, env=environment, capture_output=True)
    assert (tmp_path / "server" / "ca.pem").read_bytes() == authority
    assert (tmp_path / "server" / "superlink.pem").read_bytes() != before
    chain = ["openssl", "verify", "-CAfile", "ca.pem", "superlink.pem"]
    done = subprocess.run(chain, cwd=tmp_path / "server", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    keys = {(tmp_path / site / "site.key").read_bytes() for site in ("north", "south", "east")}
    assert len(keys) == 3
    assert all(path.stat().st_mode & 0o77 == 0 for path in tmp_path.rglob("*.key"))


@pytest.mark.parametrize(
    "name", ["authority", "server", "proxy", "operator", "ca", "superlink", "site"]
)
def test_a_site_with_the_name_of_another_folder_or_key_is_refused(
    tmp_path: Path, name: str
) -> None:
    script, app = DEPLOY / "make_keys.sh", ROOT / "examples" / "flower-app"
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["sh", str(script), str(tmp_path / "keys"), str(app), "north", name]
    done = subprocess.run(words, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"make_keys.sh: a site cannot be called '{name}', because the script uses this name for "
        "its own files; choose another name\n"
    )
    assert not (tmp_path / "keys").exists()
