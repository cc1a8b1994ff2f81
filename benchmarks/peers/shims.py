"""Workarounds that let some packages run here without changes to their code."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from functools import partial
from typing import Any

import torch
from torch import library


def allow_dataclass_defaults() -> None:
    """FLSim 0.1.0: allow defaults that are dataclasses, which Python 3.11 and later refuse.

    Each such default becomes a factory that copies it.
    """
    original: Any = dataclasses.dataclass

    def tolerant(cls: Any = None, /, **options: Any) -> Any:
        if cls is None:
            return partial(tolerant, **options)
        for name in inspect.get_annotations(cls):
            default = cls.__dict__.get(name)
            if dataclasses.is_dataclass(default) and type(default).__hash__ is None:
                copies = partial(copy.deepcopy, default)
                setattr(cls, name, dataclasses.field(default_factory=copies))
        return original(cls, **options)

    dataclasses.dataclass = tolerant


def declare_nms() -> None:
    """torchvision for CUDA beside torch for the CPU: declare operators that do not load.

    Importing torchvision fails without the declarations of two operators, which are not used here.
    """
    declared: Any = library.Library
    fragment = declared("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            fragment.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(fragment)


def allow_plain_subsets() -> None:
    """FLGo 0.4.4: allow subclasses of Subset that torch 2.13 refuses to construct.

    They override the method that reads one sample and not the one that reads several, which gives
    the same result for them.
    """
    subset: Any = torch.utils.data.Subset

    def construct(self: Any, dataset: Any, indices: Any) -> None:
        self.dataset, self.indices = dataset, indices

    subset.__init__ = construct


_LIBRARIES: list[Any] = []  # declarations disappear when their library is deleted
