"""A model on disk, as a safetensors file with named tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.storage.files import PRIVATE_FILE, atomic_file
from fedraw.storage.snapshot import write_tensors


def write_model(model: Vector, layout: Layout, path: Path, *, private: bool = False) -> None:
    """Write the model as a safetensors file, completely or not at all.

    Args:
        model: The flat vector of all parameters and statistics.
        layout: The names, shapes and positions of its tensors.
        path: The file to create or replace.
        private: Whether only the owner may read the file.

    """
    segments = layout.segments
    tensors = {s.name: np.ascontiguousarray(model[s.slice].reshape(s.shape)) for s in segments}
    with atomic_file(path) as draft:
        write_tensors(tensors, draft)
        if private:
            draft.chmod(PRIVATE_FILE)
