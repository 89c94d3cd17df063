"""Shared by the peers that train PyTorch modules: the model, the loss and the clients' tensors.

Import it before a package that imports torchvision. The torchvision of the Python Package Index is
built for CUDA and cannot be imported with a PyTorch for CPU, because it declares operators that
cannot be loaded. No side uses them, so the missing two are declared here.
"""
# pyright: reportMissingImports=false

import sys
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from experiments.benchmarks.peers.workloads import (
    Layers,
    Network,
    Regression,
    Workload,
)

# Except for convolutions, a second thread gains nothing on products this small, and on a busy
# machine the threads' synchronization makes them more than ten times slower.
if "cnn" not in sys.argv:
    torch.set_num_threads(1)

if find_spec("torchvision") and torch.version.cuda is None:
    VISION = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        VISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def model(workload: Workload, seed: int) -> torch.nn.Module:
    """The workload's model at its start: a layer without bias at zero, or a network."""
    if isinstance(workload, Network):
        return network(workload, workload.start(seed))
    if isinstance(workload, Regression):
        linear = torch.nn.Linear(workload.dim, 1, bias=False)
    else:
        linear = torch.nn.Linear(workload.features, workload.classes, bias=False)
    torch.nn.init.zeros_(linear.weight)
    return linear


def network(workload: Network, arrays: Layers) -> torch.nn.Module:
    """The network with these numbers, as PyTorch has it."""
    layers = []
    before = 1
    pixels = workload.features
    if workload.channels:
        layers.append(torch.nn.Unflatten(1, (1, 28, 28)))
    for channels in workload.channels:
        layers += [
            torch.nn.Conv2d(before, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
        ]
        before = channels
        pixels = pixels // 4
    layers += [
        torch.nn.Flatten(),
        torch.nn.Linear(before * pixels, workload.hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(workload.hidden, workload.classes),
    ]
    module = torch.nn.Sequential(*layers)
    with torch.no_grad():
        triples = zip(arrays, module.parameters(), orders(workload), strict=True)
        for array, parameter, (shape, order) in triples:
            parameter.copy_(
                torch.from_numpy(array).reshape(shape).permute(order).reshape(parameter.shape)
            )
    return module


def orders(workload: Network) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each parameter, its shape in the workload, and the permutation to PyTorch's axes."""
    result = []
    channels = (1, *workload.channels)
    for before, after in pairwise(channels):
        result += [((3, 3, before, after), (3, 2, 0, 1)), ((after,), (0,))]
    side = 28 // 2 ** len(workload.channels)
    result += [
        ((side, side, channels[-1], workload.hidden), (3, 2, 0, 1)),
        ((workload.hidden,), (0,)),
    ]
    return [*result, ((workload.hidden, workload.classes), (1, 0)), ((workload.classes,), (0,))]


def loss(workload: Workload) -> torch.nn.Module:
    """Mean squared residual, or mean cross-entropy."""
    return torch.nn.MSELoss() if isinstance(workload, Regression) else torch.nn.CrossEntropyLoss()


def client_tensors(workload: Workload, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each client's features and targets, as the loss wants them."""
    if isinstance(workload, Network):
        clients: Any = workload.data()
    elif isinstance(workload, Regression):
        features, targets = workload.data(seed)
        clients = zip(features, targets[..., None], strict=True)
    else:
        clients = zip(*workload.data(), strict=True)
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in clients]


def weights(workload: Workload, model: torch.nn.Module) -> np.ndarray | Layers:
    """The model's numbers: ``[D]``, ``[features, classes]``, or a network's layers."""
    if isinstance(workload, Network):
        return layers(workload, model)
    (weight,) = model.parameters()
    return weight.detach().cpu().numpy().T.squeeze()


def layers(workload: Network, model: torch.nn.Module) -> Layers:
    """The numbers of a :func:`network`, as the workload has them."""
    result = []
    for parameter, start, (shape, order) in zip(
        model.parameters(), workload.start(0), orders(workload), strict=True
    ):
        moved = parameter.detach().cpu().reshape([shape[axis] for axis in order])
        result.append(moved.permute(np.argsort(order).tolist()).reshape(start.shape).numpy())
    return result
