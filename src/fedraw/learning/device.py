"""The torch device that the user chooses, and repeatable computation on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedraw.errors import BadInput


def device_of(name: str) -> torch.device:
    """Return the device with this name: "cpu", "cuda" (the first one), "cuda:N" or "mps".

    >>> device_of("cpu")
    device(type='cpu')
    """
    exact = "cuda:0" if name == "cuda" else name
    if not re.fullmatch(r"cpu|cuda:\d+|mps", exact):
        raise BadInput(
            f"device = {name!r} is not one of cpu, cuda, cuda:N and mps; {_available_text()}"
        )
    if exact not in available():
        raise BadInput(
            f"device = {name!r} is not available to this torch build; {_available_text()}"
        )
    return torch.device(exact)


def available() -> list[str]:
    """Return the names of the devices that torch offers on this machine."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ["cpu", *(f"cuda:{number}" for number in cuda), *mps]


def make_repeatable(device: torch.device) -> None:
    """Set torch and NumPy to one thread, because more change the bits, and fix cuDNN's choices."""
    torch.set_num_threads(1)
    threadpool_limits(1, "blas")
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's generators of host and device within a block, and restore them afterwards."""
    host, before = torch.default_generator, torch.default_generator.get_state()
    host.manual_seed(seed)
    try:
        with nullcontext() if device.type == "cpu" else _seeded_device(device, seed):
            yield
    finally:
        host.set_state(before)


@contextmanager
def _seeded_device(device: torch.device, seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        else:
            torch.mps.manual_seed(seed)
        yield


def _available_text() -> str:
    return f"available here: {', '.join(available())}"
