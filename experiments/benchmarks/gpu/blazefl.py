"""CIFAR10 as in BlazeFL's comparison with Flower: 100 clients, all in each round, 5 epochs."""

import functools

import fljax as fl
from experiments.benchmarks.gpu.rows import Published, Row, training_row
from experiments.benchmarks.gpu.training import Training
from fljax.models import Architecture

SOURCE = "Azuma and Nishio 2026, arXiv:2604.03606"


def work(
    network: Architecture, small: Architecture, precision: str, state: str | None, rehearse: bool
) -> Training:
    result = Training(
        network=small if rehearse else network,
        sample=(32, 32, 3),
        outputs=10,
        clients=100,
        per_round=100,
        samples=500,
        batch=50,
        step_size=0.1,
        rounds=100,
        record_every=1,
        epochs=5,
        state=state,
        precision=precision,
    )
    return result.small(clients=3, record_every=1, epochs=2) if rehearse else result


def row(
    title: str,
    seconds: float,
    networks: tuple[Architecture, Architecture],
    rates: tuple[float, float],
    precision: str = "float32",
    state: str | None = None,
) -> Row:
    others = tuple(
        Published(who, f"{rate} rounds a minute, at best", "one GPU, see there", SOURCE)
        for who, rate in zip(("BlazeFL", "Flower"), rates, strict=True)
    )
    scenario = functools.partial(work, *networks, precision, state)
    return training_row(f"BlazeFL's CIFAR10, {title}", seconds, scenario, others)


LENET = fl.models.lenet(10)
RESNET = fl.models.resnet(10, "batch")
SMALL = fl.models.resnet(10, "batch", blocks=(1, 1), width=8)

ROWS = {
    "blazefl-lenet": row("LeNet", 30, (LENET, LENET), (3.70, 2.73)),
    # PyTorch's convolutions are in TF32 by default.
    "blazefl-resnet18": row(
        "ResNet-18 with batch norm, TF32",
        60,
        (RESNET, SMALL),
        (1.63, 0.61),
        "tf32",
        "averaged",
    ),
}
