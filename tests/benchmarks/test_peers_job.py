"""The jobs of benchmarks/peers in the memory format channels last; no test needs a peer."""

import copy

import pytest
import torch
from benchmarks.peers import job as jobs
from benchmarks.peers.__main__ import NAMES, runs
from torch import nn


def first_convolution(network: nn.Module) -> nn.Conv2d:
    return next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))


def strides_of_inputs(network: nn.Module, images: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the images that the first convolution receives."""
    seen: list[tuple[int, ...]] = []
    handle = first_convolution(network).register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].stride())
    )
    network(images)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_images_of_any_format_are_channels_last_in_the_network(form: torch.memory_format) -> None:
    """Images with one channel have both formats by `is_contiguous`; their strides differ."""
    images = torch.rand(3, *jobs.SHAPES["cnn"]).to(memory_format=form)
    network = jobs.network("cnn", channels_last=True)
    assert strides_of_inputs(network, images) == (28 * 28, 1, 28, 1)
    assert first_convolution(network).weight.stride() == (9, 1, 3, 1)


def test_both_formats_give_the_same_scores_and_gradients() -> None:
    images = torch.rand(3, *jobs.SHAPES["cnn"])
    default, channels_last = jobs.network("cnn"), jobs.network("cnn", channels_last=True)
    channels_last.load_state_dict(default.state_dict())
    scores = default(images), channels_last(images)
    torch.testing.assert_close(*scores)
    for network, its_scores in zip((default, channels_last), scores, strict=True):
        torch.autograd.backward(its_scores.square().sum(), inputs=list(network.parameters()))
    torch.testing.assert_close(
        [p.grad for p in default.parameters()], [p.grad for p in channels_last.parameters()]
    )


def test_a_copy_keeps_the_format_and_a_changed_format_is_an_error() -> None:
    images = torch.rand(3, *jobs.SHAPES["cnn"])
    network = copy.deepcopy(jobs.network("cnn", channels_last=True))
    network(images)
    layer = first_convolution(network)
    layer.weight = nn.Parameter(layer.weight.detach().clone(memory_format=torch.contiguous_format))
    with pytest.raises(RuntimeError, match="memory format of the weights"):
        network(images)


@pytest.mark.parametrize("cores", [1, 2])
def test_every_peer_has_a_run_with_channels_last(cores: int) -> None:
    found = {r.peer for r in runs() if r.variant == "channels-last" and r.cores == cores}
    assert found == {"bare", *NAMES}
