"""Measures whether training many small models in one call is faster, beyond linear layers.

The job is one training step of each of S clients, which have their own weights and mini-batches, on
one thread:

- `one by one`: torch, client after client, as the inline executor and each worker process do
- `vmap`: torch.func, the gradient of one model vectorised over the stack
- `grouped`: the stack as one network with grouped convolutions and batched matrix products
- `closed form`: NumPy, as the batched executor does (networks of linear layers and embeddings)

Times are for a step of one client, as medians over rounds in which all variants alternate. A pool
of processes on c cores speeds up `one by one` by c, so a stack is worthwhile on c cores only if it
is more than c times faster.

    python -m benchmarks.stacked_models
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from benchmarks.machine import headline
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from fedraw.learning.batched import DenseStack, dense_layers
from fedraw.learning.models import build
from fedraw.learning.vectors import layout_of, to_vector

STACKS = (8, 32, 64)
ROUNDS = 7
BATCH, CLASSES, LR = 32, 10, 0.1
CASES = {
    "cnn-small, 8x8": ("cnn-small", (1, 8, 8)),
    "cnn-small, 28x28": ("cnn-small", (1, 28, 28)),
    "text, 14 characters": ("text", (14,)),
}
Step = Callable[[], object]


def module_of(name: str, shape: tuple[int, ...]) -> nn.Module:
    """Build a network, always with the same weights."""
    return build(name, shape, CLASSES, np.random.default_rng(0), whole_numbers=name == "text")


def batches(name: str, shape: tuple[int, ...], stack: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a random mini-batch for each client of the stack."""
    rng = np.random.default_rng(1)
    size = (stack, BATCH, *shape)
    x = rng.integers(97, 123, size) if name == "text" else rng.random(size, np.float32)
    return torch.from_numpy(x), torch.from_numpy(rng.integers(CLASSES, size=(stack, BATCH)))


def one_by_one(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    """Return a step that trains one client after the other."""

    def step() -> None:
        for inputs, labels in zip(x, y, strict=True):
            loss = functional.cross_entropy(module(inputs), labels)
            grads = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(module.parameters(), grads, strict=True):
                    parameter.sub_(gradient, alpha=LR)

    return step


def vectorised(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    """Return a step that vectorises one model over the stack."""
    state, _ = stack_module_state([module] * len(x))
    values = {name: tensor.detach().clone() for name, tensor in state.items()}

    def loss(own: dict[str, torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor) -> object:
        return functional.cross_entropy(functional_call(module, own, (inputs,)), labels)

    gradients = vmap(grad(loss), randomness="error")

    def step() -> None:
        for name, gradient in gradients(values, x, y).items():
            values[name].sub_(gradient, alpha=LR)

    return step


def grouped(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    """Make the feature maps of all clients the channels of one image."""
    stack = len(x)
    leaves = [layer for layer in module.children() if not isinstance(layer, nn.Flatten)]
    weights: list[torch.Tensor] = []
    for layer in leaves:
        for own in layer.parameters():
            repeated = own.detach().repeat(stack, *[1] * (own.dim() - 1))
            if isinstance(layer, nn.Linear):
                repeated = repeated.view(stack, *own.shape)
            weights.append(repeated.requires_grad_())
    pixels = x.transpose(0, 1).flatten(1, 2).contiguous()  # (batch, stack * channels, …)

    def step() -> None:
        flow, place = pixels, 0
        for layer in leaves:
            if isinstance(layer, nn.Conv2d):
                w, b = weights[place : place + 2]
                flow, place = functional.conv2d(flow, w, b, padding=1, groups=stack), place + 2
            elif isinstance(layer, nn.Linear):
                w, b = weights[place : place + 2]
                if flow.dim() == 4:
                    flow = flow.view(BATCH, stack, -1).transpose(0, 1)
                flow, place = torch.baddbmm(b[:, None], flow, w.transpose(1, 2)), place + 2
            else:
                flow = layer(flow)
        loss = functional.cross_entropy(flow.flatten(0, 1), y.flatten(), reduction="sum") / BATCH
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, grads, strict=True):
                weight.sub_(gradient, alpha=LR)

    return step


def closed_form(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    """Return a step with gradients in closed form."""
    layers = dense_layers(module, layout_of(module), tuple(x.shape[2:]))
    values = np.stack([to_vector(module)] * len(x))
    stack = DenseStack(layers, values, np.zeros_like(values))
    inputs, labels = x.numpy().reshape(len(x), BATCH, -1), y.numpy()
    shares = np.full((len(x), BATCH), 1 / BATCH, np.float32)

    def step() -> None:
        stack.differentiate(inputs, labels, shares)
        values[:] -= LR * stack.gradient

    return step


def steps(name: str, shape: tuple[int, ...], stack: int) -> dict[str, Step]:
    """Return the steps that can train this network."""
    x, y = batches(name, shape, stack)
    variants: dict[str, Step] = {
        "one by one": one_by_one(module_of(name, shape), x, y),
        "vmap": vectorised(module_of(name, shape), x, y),
    }
    if name == "text":
        variants["closed form"] = closed_form(module_of(name, shape), x, y)
    else:
        variants["grouped"] = grouped(module_of(name, shape), x, y)
    return variants


def measured(variants: dict[str, Step], stack: int) -> dict[str, float]:
    """Return the milliseconds of a step of one client, for each variant."""
    milliseconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for round_number in range(ROUNDS + 1):  # the first one warms up
        for variant, step in variants.items():
            start = time.process_time()
            step()
            if round_number:
                milliseconds[variant].append(1e3 * (time.process_time() - start) / stack)
    return {variant: median(values) for variant, values in milliseconds.items()}


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(headline())
    print(f"CPU time of one step of one client, batch {BATCH}; relative to one by one in brackets")
    for case, (name, shape) in CASES.items():
        for stack in STACKS:
            found = measured(steps(name, shape, stack), stack)
            first = found["one by one"]
            cells = [f"{variant} {ms:.3f} ms (x {ms / first:.2f})" for variant, ms in found.items()]
            print(f"{case:22} stack {stack:3}: {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
