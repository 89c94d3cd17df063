"""What the peers that train PyTorch modules share: the model, the loss and the clients' tensors.

Import it before a package that imports torchvision. The torchvision of the Python Package Index is
built for CUDA and does not import beside a PyTorch for CPU, because its operators cannot be loaded
but are described all the same. No side uses them, so the missing two are declared here.
"""
# pyright: reportMissingImports=false

from importlib.util import find_spec

import numpy as np
import torch

from experiments.benchmarks.peers.workloads import Classification, Regression

# A second thread gains nothing on products this small, and on a busy machine the threads' waiting
# for each other costs more than tenfold.
torch.set_num_threads(1)

if find_spec("torchvision") and torch.version.cuda is None:
    VISION = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        VISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def linear_model(workload: Regression | Classification) -> torch.nn.Linear:
    """The workload's linear model, without bias, at zero."""
    if isinstance(workload, Regression):
        model = torch.nn.Linear(workload.dim, 1, bias=False)
    else:
        model = torch.nn.Linear(workload.features, workload.classes, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def loss(workload: Regression | Classification) -> torch.nn.Module:
    """Mean squared residual, or mean cross-entropy."""
    return torch.nn.MSELoss() if isinstance(workload, Regression) else torch.nn.CrossEntropyLoss()


def client_tensors(
    workload: Regression | Classification, seed: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each client's features and targets, as the loss wants them."""
    if isinstance(workload, Regression):
        features, targets = workload.data(seed)
        targets = targets[..., None]
    else:
        features, targets = workload.data()
    return list(zip(torch.from_numpy(features), torch.from_numpy(targets), strict=True))


def weights(model: torch.nn.Module) -> np.ndarray:
    """The one weight matrix of the model: ``[D]``, or ``[features, classes]``."""
    (weight,) = model.parameters()
    return weight.detach().numpy().T.squeeze()
