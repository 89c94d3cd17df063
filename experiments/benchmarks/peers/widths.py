"""HeteroFL and FjORD by Flower's baselines and by fljax: the servers' models after some rounds.

Both sides start from the same model and train the same networks of several widths on the same
samples; the widths that FjORD draws are given to both. Flower's programs are read from a copy of
its repository, ``git clone --depth 1`` of adap/flower, by a Python that has torch as well:

    python -m experiments.benchmarks.peers.widths flower/baselines
"""
# pyright: reportMissingImports=false

import argparse
import contextlib
import io
import itertools
import sys
import types
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import fljax as fl
from fljax.algorithms.server.fjord import drawn_widths

ROUNDS = 5
STEPS = 4
STEP_SIZE = 0.1
CLASSES = 4
SAMPLES = 12
NETWORKS = [0, 0, 1, 1, 2]  # of each client
WIDTHS = (1.0, 0.5, 0.25)
CHANNELS = (16, 32)  # of HeteroFL's convolutions
HIDDEN = (16, 8)  # of FjORD's dense layers
INPUTS = 6


class Convolutions(nn.Module):
    """Flower's ``Conv``: convolutions, each scaled, normalized, rectified and pooled."""

    width: float

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        for i, channels in enumerate(CHANNELS):
            x = nn.Conv(int(np.ceil(self.width * channels)), (3, 3), padding=1)(x)
            x = x / self.width if train else x
            x = nn.relu(nn.GroupNorm(4, epsilon=1e-5, use_fast_variance=False)(x))
            if i < len(CHANNELS) - 1:
                x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(CLASSES)(x.mean((1, 2)))


def samples_of(shape: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's samples."""
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(SAMPLES, *shape)), rng.integers(0, CLASSES, SAMPLES)) for _ in NETWORKS
    ]


def by_fljax(networks: list[Any], clients: list[Any], algorithm: Any) -> tuple[Any, Any, Any]:
    """The parameters before and after the rounds, and the widths of steps that FjORD drew."""
    problem = fl.problems.Model.from_clients(
        fl.models.nested(networks), jax.random.key(0), clients, fl.problems.Softmax(CLASSES)
    )
    simulation = fl.Simulation(problem.assigning(NETWORKS), algorithm)
    run = fl.run(simulation, ROUNDS, key=fl.random_key(0))
    before, after = (
        jax.tree.map(np.asarray, problem.layout.parameters(jnp.asarray(row)))
        for row in (problem.initial, run.model.values[0])
    )
    clients_numbers = jnp.arange(len(NETWORKS), dtype=jnp.int32)
    widths = []
    for number in range(1, ROUNDS + 1):
        now = fl.view(simulation, fl.random_key(0), number)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(now.key("algorithm"), clients_numbers)
        widths.append(drawn_widths(keys, jnp.asarray(NETWORKS), len(WIDTHS), STEPS).tolist())
    return before, after, widths


def silent() -> Any:
    return contextlib.redirect_stdout(io.StringIO())


def heterofl(baselines: Path) -> tuple[float, float]:
    """By HeteroFL: the largest difference of the servers' parameters, and how far they moved."""
    import torch

    sys.path.insert(0, str(baselines / "heterofl"))
    from heterofl import models
    from heterofl.strategy import HeteroFL

    clients = samples_of((8, 8, 1))
    networks = [fl.models.linen(Convolutions(width)) for width in WIDTHS]
    algorithm = fl.algorithms.HeteroFL(STEP_SIZE, local_steps=STEPS)
    start, end, _ = by_fljax(networks, clients, algorithm)

    def rows(parameters: Any) -> list[np.ndarray]:
        """In PyTorch's order and axes."""
        found = []
        for i in range(len(CHANNELS)):
            kernel, bias = (parameters[f"Conv_{i}"][name] for name in ("kernel", "bias"))
            norm = parameters[f"GroupNorm_{i}"]
            found += [kernel.transpose(3, 2, 0, 1), bias, norm["scale"], norm["bias"]]
        return [*found, parameters["Dense_0"]["kernel"].T, parameters["Dense_0"]["bias"]]

    settings = {
        "optimizer": "SGD",
        "lr": STEP_SIZE,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "epochs": STEPS,
        "clip": False,
        "device": "cpu",
    }
    schedule = {"scheduler": "MultiStepLR", "milestones": [1000]}
    config = {
        "model": "conv",
        "data_shape": [1, 8, 8],
        "hidden_layers": list(CHANNELS),
        "classes_size": CLASSES,
        "norm": "gn",
        "scale": 1,
        "mask": 0,
        "global_model_rate": 1.0,
    }
    network = models.create_model(config, model_rate=1.0)
    models.set_parameters(network, rows(start))
    strategy = HeteroFL("conv", network, settings | schedule)
    rates = [WIDTHS[number] for number in NETWORKS]
    with silent():
        parts = models.param_model_rate_mapping("conv", network.state_dict(), rates)
    strategy.local_param_model_rate = parts
    strategy.active_cl_labels = [torch.arange(CLASSES) for _ in NETWORKS]
    strategy.active_cl_mr = {str(client): rate for client, rate in enumerate(rates)}
    for _ in range(ROUNDS):
        results = []
        for client, (features, labels) in enumerate(clients):
            received = models.param_idx_to_local_params(network.state_dict(), parts[rates[client]])
            trained = models.create_model(config, model_rate=rates[client])
            trained.load_state_dict(received)
            images = torch.tensor(features.transpose(0, 3, 1, 2), dtype=torch.float32)
            batches = [(images, torch.tensor(labels))]
            models.train(trained, batches, torch.arange(CLASSES), settings)
            message = types.SimpleNamespace(parameters=_parameters(trained, models))
            results.append((types.SimpleNamespace(cid=str(client)), message))
        with silent():
            strategy.aggregate_fit(1, results, [])
    end = rows(end)
    return _largest(end, models.get_parameters(network)), _largest(end, rows(start))


def _parameters(network: Any, models: Any) -> Any:
    from flwr.common import ndarrays_to_parameters

    return ndarrays_to_parameters(models.get_parameters(network))


def fjord(baselines: Path) -> tuple[float, float]:
    """By FjORD: the largest difference of the servers' parameters, and how far they moved."""
    import torch

    sys.path.insert(0, str(baselines / "fjord"))
    # Its logger and its loader of CIFAR10 import further libraries, which nothing here uses.
    for name in ("coloredlogs", "fjord.client"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["fjord.client"].__dict__["FJORD_CONFIG_TYPE"] = dict
    from fjord.od.layers import ODLinear
    from fjord.strategy import aggregate

    clients = samples_of((INPUTS,))
    networks = [fl.models.mlp(CLASSES, hidden=hidden_of(width)) for width in WIDTHS]
    algorithm = fl.algorithms.FjORD(STEP_SIZE, local_steps=STEPS)
    start, end, widths = by_fljax(networks, clients, algorithm)

    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [INPUTS, *HIDDEN, CLASSES]
            self.layers = torch.nn.ModuleList(
                ODLinear(*pair, is_od=pair[1] != CLASSES) for pair in itertools.pairwise(sizes)
            )

        def forward(self, x: Any, width: float) -> Any:
            for layer in self.layers[:-1]:
                x = torch.relu(layer(x, p=width))
            return self.layers[-1](x)

    def rows(parameters: Any) -> list[np.ndarray]:
        """In PyTorch's order and axes."""
        layers = [parameters[f"layer_{i}"] for i in range(len(HIDDEN) + 1)]
        return [row for layer in layers for row in (layer["kernel"].T, layer["bias"])]

    sizes_in = {width: [INPUTS, *hidden_of(width)] for width in WIDTHS}
    sizes_out = {width: [*hidden_of(width), CLASSES] for width in WIDTHS}
    config: dict[Any, Any] = {
        width: [
            {"in_dim": size_in, "out_dim": size_out}
            for size_in, size_out in zip(sizes_in[width], sizes_out[width], strict=True)
            for _ in ("weight", "bias")
        ]
        for width in WIDTHS
    }
    config["layer"] = ["ODLinear"] * len(config[1.0])
    config["layer_p"] = [None] * len(config[1.0])
    server = rows(start)
    for round_widths in widths:
        results = []
        for client, (features, labels) in enumerate(clients):
            network = Dense().double()
            state = zip(network.state_dict(), map(torch.tensor, server), strict=True)
            network.load_state_dict(dict(state))
            optimizer = torch.optim.SGD(network.parameters(), lr=STEP_SIZE)
            for drawn in round_widths[client]:
                optimizer.zero_grad()
                logits = network(torch.tensor(features), WIDTHS[drawn])
                torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
                optimizer.step()
            message = [value.numpy() for value in network.state_dict().values()]
            widest = WIDTHS[NETWORKS[client]]
            results.append((message, SAMPLES, widest, sorted(WIDTHS), config))
        server = aggregate(results, server)
    end = rows(end)
    return _largest(end, server), _largest(end, rows(start))


def hidden_of(width: float) -> list[int]:
    return [int(np.ceil(width * size)) for size in HIDDEN]


def _largest(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("baselines", type=Path, help="the folder of Flower's repository")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for side in (heterofl, fjord):
        difference, moved = side(options.baselines)
        print(f"{side.__name__}: the models differ by {difference:.1e} and moved by {moved:.2f}")


if __name__ == "__main__":
    main()
