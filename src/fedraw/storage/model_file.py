"""A model on disk, as tensors with names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.storage.snapshot import write_tensors


def write_model(model: Vector, layout: Layout, path: Path) -> None:
    """Write a safetensors file, whole or not at all."""
    segments = layout.segments
    tensors = {s.name: np.ascontiguousarray(model[s.slice].reshape(s.shape)) for s in segments}
    draft = path.with_name(f"{path.name}.part")
    write_tensors(tensors, draft)
    draft.replace(path)
