"""Dependencies point one way, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedraw

SOURCE = Path(fedraw.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# A layer imports itself and what stands here.
MAY_IMPORT = {
    "core": {"errors"},
    "storage": {"errors", "core"},
    "eventlog": {"errors", "core", "storage"},
    "auditing": {"errors", "core", "storage", "eventlog", "strategies", "pages"},
    "pages": {"errors", "storage"},
    "dashboard": {"errors", "core", "eventlog", "pages"},
    "export": {"errors", "core", "storage", "eventlog"},
    "privacy": {"errors", "core", "storage"},
    "strategies": {"errors", "core"},
    "simulation": {"errors", "core", "storage", "eventlog", "strategies"},
    "learning": {"errors", "core", "storage"},
    "data": {"errors", "core", "storage"},
    "server": {"errors", "core", "storage", "eventlog", "strategies", "privacy"},
    # A site that sends sums computes features; a server reads only the digest of their map.
    "flower": {"errors", "core", "learning", "strategies", "server", "privacy"},
    "flare": {"errors", "core", "strategies", "server"},
    "experiment": {
        "errors",
        "core",
        "storage",
        "eventlog",
        "strategies",
        "simulation",
        "learning",
        "data",
        "privacy",
    },
    "report": {"errors", "core", "eventlog", "strategies", "experiment", "pages"},
    "cli": {
        "errors",
        "core",
        "strategies",
        "auditing",
        "dashboard",
        "eventlog",
        "data",
        "experiment",
        "export",
        "report",
        "pages",
        "server",
    },
}
ONLY_IN = {
    "torch": {"learning"},
    "sklearn": {"data"},
    "matplotlib": {"experiment", "report"},  # a result draws its curves
    "cloudpickle": {"experiment", "simulation"},
    "pandas": {"core"},
    "PIL": {"data"},
    "pooch": {"data"},
    "requests": {"data"},
    "pyarrow": {"export", "storage"},
    "tensorboard": {"export"},
    "mlflow": {"export"},
    "wandb": {"export"},
    "ray": {"simulation"},
    "flwr": {"flower"},
    "nvflare": {"flare"},
    "opendp": {"privacy"},
    "starlette": {"dashboard"},
    "uvicorn": {"dashboard"},
    "prometheus_client": {"dashboard"},
    "typer": {"cli"},
    "rich": {"cli", "report", "auditing"},
}


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            yield node.module or ""


def layer(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_one_way(file: Path) -> None:
    own = layer(file)
    for module in imports(file):
        top, *rest = module.split(".")
        assert own in ONLY_IN.get(top, {own}), f"{own} imports {module}"
        assert top != "fedraw_studies", "the library does not know the studies"
        if top == "fedraw" and rest and own in MAY_IMPORT:
            assert rest[0] in MAY_IMPORT[own] | {own}, f"{own} imports {module}"


def test_every_layer_is_listed() -> None:
    folders = {p.name for p in SOURCE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert folders == set(MAY_IMPORT)


WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {
            "torch", "sklearn", "matplotlib", "PIL", "pooch", "ray", "pyarrow", "flwr"
        }:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def in_a_bare_install(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_server_needs_neither_torch_nor_scikit_learn() -> None:
    code = "import numpy as np, fedraw; table = fedraw.LabelTable.from_counts({'a': {1: 2}})\n"
    code += (
        "print(fedraw.FedRAW(buffer=1).start(fedraw.Setup(np.zeros(3, 'f4'), table))[0].version)"
    )
    done = in_a_bare_install(code)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_missing_extra_is_named_with_its_remedy(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text("")
    command = ["fedraw", "run", str(spec), "--seeds", "1"]  # one seed runs in this process
    code = f"sys.argv = {command!r}; import fedraw.cli.main as m; m.main()"
    done = in_a_bare_install(code)
    assert done.returncode == 2
    assert "this needs scikit-learn: pip install 'fedraw[sim]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_audit_needs_no_extra_at_all(tmp_path: Path) -> None:
    labels, page = tmp_path / "labels.csv", tmp_path / "page.html"
    labels.write_text("client,label,count\na,x,3\nb,x,2\nb,y,1\nc,x,4\n")
    command = ["fedraw", "audit", str(labels), "--out", str(page)]
    done = in_a_bare_install(f"sys.argv = {command!r}; import fedraw.cli.main as m; m.main()")
    assert done.returncode == 0, done.stderr
    assert "Recommendation" in done.stdout
    assert page.exists()


def test_an_audit_imports_no_heavy_package(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("client,label,count\na,x,3\nb,x,2\nb,y,1\nc,x,4\n")
    heavy = {"torch", "ray", "flwr", "matplotlib", "sklearn", "scipy", "pandas", "pyarrow"}
    code = f"""
import contextlib, io, sys
import fedraw.cli.main as m
sys.argv = ["fedraw", "audit", {str(labels)!r}]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    m.main()
print(sorted({heavy!r} & set(sys.modules)))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_module_collected_for_its_docstrings_is_not_imported_twice() -> None:
    """Else a class that a test imports is not the class in the catalogue."""
    root = SOURCE.parents[1]
    files = [str(SOURCE / "strategies/fedraw.py"), str(root / "tests/strategies/test_contract.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-k", "method_of_the_catalog", *files]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
