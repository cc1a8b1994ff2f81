"""What some packages need before they can be imported here; their code stays as it is."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from functools import partial
from typing import Any

import torch
from torch import library


def allow_dataclass_defaults() -> None:
    """FLSim 0.1.0: defaults that are dataclasses, which Python refuses from 3.11 on.

    Each such default becomes a factory of copies of it.
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
    """torchvision built for CUDA beside torch built for the CPU: its operators did not load.

    Importing it fails for want of the declarations of two that nothing here calls.
    """
    declared: Any = library.Library
    fragment = declared("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            fragment.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(fragment)


def allow_plain_subsets() -> None:
    """FLGo 0.4.4: subclasses of Subset that torch 2.13 refuses to construct.

    They override how one sample is read and not how several are, which comes to the same for them.
    """
    subset: Any = torch.utils.data.Subset

    def construct(self: Any, dataset: Any, indices: Any) -> None:
        self.dataset, self.indices = dataset, indices

    subset.__init__ = construct


_KEPT: list[Any] = []  # a library takes its declarations with it when it goes
