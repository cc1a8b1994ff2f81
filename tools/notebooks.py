"""Executes the notebooks of the tutorials and stores their outputs.

    python tools/notebooks.py [NAME ...]    all of docs/tutorials, or those whose names contain NAME

Each notebook runs in a new kernel and a temporary folder. Progress lines and metadata are removed,
so that a diff shows only what a reader would see.
"""

from __future__ import annotations

import base64
import io
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
LONGEST_CELL = 1800  # seconds; a busy machine is slow
MARK = "FEDRAW_NOTEBOOK"  # in the environment of everything that a notebook starts


def execute(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder; an error in a cell is an exception."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    token = os.environ[MARK] = secrets.token_hex(8)
    where = {"metadata": {"path": str(folder)}}
    try:
        NotebookClient(notebook, timeout=LONGEST_CELL, resources=where).execute()
    finally:
        end_processes(token)
    return notebook


def end_processes(token: str) -> None:
    """End what a notebook that failed has left running, such as a server."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={token}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it is gone, or another user's
            continue
        if marked and int(process.name) != os.getpid():
            os.kill(int(process.name), signal.SIGKILL)


def tidy(notebook: Any) -> None:
    """Drop progress lines and metadata, and store figures with few colours."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = few_colours(output.data["image/png"])


def few_colours(png: str) -> str:
    """The same picture with a palette of 64 colours, a third of the size."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(64)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def main() -> None:
    """Execute the chosen notebooks in place."""
    import nbformat

    for path in sorted(TUTORIALS.glob("*.ipynb")):
        if sys.argv[1:] and not any(name in path.name for name in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        tidy(notebook)
        nbformat.write(notebook, path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
