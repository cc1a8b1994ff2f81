"""Flower's own protection against an unsigned app."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.flower.deployment import BIN, Deployment

APP = Path(__file__).parent / "private_app"

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_node_with_trusted_entities_refuses_an_app_from_a_folder(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    openssh = key.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()
    trusted = tmp_path / "trusted.yaml"
    name = "fpk_00000000-0000-4000-8000-000000000000"
    trusted.write_text(f'{name}: "{openssh}"\n')
    options = ["--trusted-entities", str(trusted)]
    with Deployment(tmp_path, {"north": {}}, node_options=options) as deployment:
        run = deployment.run_app(APP, {"fedraw.folder": str(tmp_path / "federation")})
        deadline = time.monotonic() + 300
        while "its app bundle is invalid" not in (log := run.log()):
            assert time.monotonic() < deadline, log
            time.sleep(2)
        run.stop()
    assert not list((tmp_path / "federation").rglob("*.safetensors"))


def test_account_login_is_not_in_the_open_distribution(tmp_path: Path) -> None:
    done = subprocess.run(
        [BIN / "flower-superlink", "--insecure"],
        env={**os.environ, "FLWR_OIDC_ENABLED": "1", "FLWR_TELEMETRY_ENABLED": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "OIDC account authentication is unavailable" in done.stdout + done.stderr
