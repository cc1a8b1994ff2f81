"""nginx in front of a real SuperLink: the fleet path is open, all other paths are closed."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from tests.flower.deployment import CERTIFICATES, Deployment, DeploymentError, free_port
from tests.flower.test_faults import Federation

CONF = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (apt install nginx-light)"),
]


class BehindProxy(Deployment):
    """A deployment whose sites know the proxy's port only."""

    proxy = 0

    def _start_site(self, name: str) -> None:
        own, self.port = self.port, self.proxy
        try:
            super()._start_site(name)
        finally:
            self.port = own

    def _register_sites(self) -> None:
        super()._register_sites()
        self._nginx = nginx(self.folder, self.port, self.proxy)
        self._nginx.__enter__()

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "_nginx"):
            self._nginx.__exit__(None, None, None)
            del self._nginx


@contextmanager
def nginx(folder: Path, superlink: int, port: int) -> Iterator[None]:
    """The proxy of `deploy/`, with only the addresses and paths that its comment names changed."""
    text = CONF.read_text(encoding="utf-8")
    for before, after in (
        ("server superlink:8000", f"server 127.0.0.1:{superlink}"),
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("/keys/", f"{folder}/keys/"),
        ("/tmp/fedraw-proxy", f"{folder}/fedraw-proxy"),
        ("/dev/stdout", f"{folder}/logs/proxy.log"),
        ("/dev/stderr", f"{folder}/logs/proxy-errors.log"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    conf = folder / "nginx.conf"
    conf.write_text(f"daemon off;\n{text}", encoding="utf-8")
    process = subprocess.Popen([str(NGINX), "-c", str(conf), "-p", str(folder)])
    try:
        for _ in range(100):
            if status(folder, port, "/health") is not None:
                break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def status(folder: Path, port: int, path: str, method: str = "POST") -> int | None:
    """The status of a request; None if nobody listens."""
    context = ssl.create_default_context(cafile=str(folder / "keys" / "ca.pem"))
    request = urllib.request.Request(f"https://localhost:{port}{path}", b"", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return None


def answer_to_size(folder: Path, port: int, size: int) -> int:
    """The status of a request that announces a body of this size, and does not send it."""
    context = ssl.create_default_context(cafile=str(folder / "keys" / "ca.pem"))
    connection = HTTPSConnection("localhost", port, timeout=10, context=context)
    with closing(connection):
        connection.putrequest("POST", "/v1/fleet/push-object")
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        return connection.getresponse().status


def test_a_request_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Nothing listens behind the proxy, so a request that it lets through gets a 502."""
    make = [sys.executable, str(CERTIFICATES), str(tmp_path / "keys")]
    subprocess.run(make, check=True, capture_output=True)
    (tmp_path / "logs").mkdir()
    port = free_port()
    with nginx(tmp_path, free_port(), port):
        assert answer_to_size(tmp_path, port, 16 << 20) == 502
        assert answer_to_size(tmp_path, port, (16 << 20) + 1) == 413


CLOSED = (
    "/v1/control/list-runs",
    "/v1/control/start-run",
    "/v1/runtime/pull-task",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1//fleet/../control/start-run",
    "//v1/control/start-run",
    "/V1/control/start-run",
    "/health",
    "/",
    "/docs",
)


def test_sites_train_through_the_proxy_and_nobody_controls_through_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = BehindProxy(tmp_path, {"north": {}, "south": {}, "east": {}})
    deployment.proxy = free_port()
    with deployment:
        through = {path: status(tmp_path, deployment.proxy, path) for path in CLOSED}
        assert set(through.values()) <= {400, 403, 404}, through
        assert through["/v1/control/start-run"] == 403
        # Straight to the SuperLink the control path is there, which is why it listens on loopback.
        assert status(tmp_path, deployment.port, "/v1/control/list-runs") not in (403, 404, None)
        assert status(tmp_path, deployment.proxy, "/v1/fleet/pull-messages") not in (403, 404, None)
        config = deployment.folder / "flower" / "config.toml"
        before = config.read_text()
        config.write_text(before.replace(str(deployment.port), str(deployment.proxy)))
        with pytest.raises(DeploymentError) as refusal:
            deployment.flwr_json("ls", "deployment", "--format", "json")
        config.write_text(before)
        federation = Federation(deployment, arrivals=12)
        run = federation.start()
        assert run.wait(600) == "finished:completed"
        federation.check(12)
    log = (tmp_path / "logs" / "proxy.log").read_text()
    paths = set(re.findall(r'"\w+ (/v1/\S+) HTTP', log))
    with capsys.disabled():
        fleet = sorted(path for path in paths if path.startswith("/v1/fleet/") and ".." not in path)
        print(f"\nthrough the proxy: 12 of 12 updates accepted; {len(fleet)} fleet paths open")
        print(f"flwr ls through the proxy: {str(refusal.value)[:120]}")
        print("closed: " + ", ".join(f"{path} {code}" for path, code in through.items()))
