"""Import finished runs of earlier versions of `fedraw reproduce`, which kept one file for each run.

`python tools/import_cells.py CELLS OUT [--scale SCALE]` appends the runs of the folder CELLS, such
as `studies/results/cpu/cells`, to the files OUT/<study>.jsonl, such as `studies/results/cpu`. Runs
that OUT has already are left out, so that the command can be repeated. CELLS stays as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedraw.errors import BadInput, FedrawError
from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import ARENA, EVERY, LATE, ONE_PASS, Scale, study_of
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.execute import Workspace
from fedraw_studies.plan import key_of, load_artefacts, make_plan, settings_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", type=Path, help="folder with a JSON file for each run")
    parser.add_argument("out", type=Path, help="folder of results that receives the runs")
    parser.add_argument("--scale", help="scale of the runs; default: the name of OUT")
    given = parser.parse_args()
    try:
        import_cells(given.cells, given.out, given.scale or given.out.resolve().name)
    except FedrawError as problem:
        sys.exit(f"import_cells: {problem}")


def import_cells(folder: Path, out: Path, scale: str) -> None:
    """Append the runs of a folder to the files of finished runs of OUT."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise BadInput(f"{folder} has no JSON files")
    artefacts = load_artefacts((*EVERY, *ARENA, *LATE, *ONE_PASS), Scale.named(scale))
    studies = {planned.name: study_of(planned.artefact) for planned in make_plan(artefacts)}
    records = [_record(path) for path in paths]
    cells = CellFiles(out)
    imported = 0
    with Workspace(cells, out / "runs").locked():
        for record in records:
            known = cells.read(record.name)
            if record.name not in studies:
                print(f"{record.name} is of no study of scale {scale}, and is left out")
            elif known is None:
                cells.write(record, studies[record.name])
                imported += 1
            elif known.metrics != record.metrics:
                print(f"{record.name}: {out} has other metrics, which stay")
    print(f"{imported} of {len(records)} runs imported, the others are in {out} already")


def _record(path: Path) -> CellRecord:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        spec = Spec.from_dict(content["spec"])
        kept = {own.name: content[own.name] for own in fields(CellRecord) if own.name in content}
        record = CellRecord(**{**kept, "spec": settings_of(spec)})
    except (ValueError, KeyError, TypeError) as problem:
        raise BadInput(f"{path} cannot be used: {problem!r}") from None
    if key_of(spec) != record.key or record.name != path.stem:
        raise BadInput(f"{path}: its spec and seed are not those of its name")
    return record


if __name__ == "__main__":
    main()
