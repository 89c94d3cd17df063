"""The tasks of FLUTE's comparison with FedML and Flower: sizes and settings as in its table.

Sizes of clients are not in that table: FEMNIST's and MNIST's mean numbers of samples a client, with
a spread, and 100 and 22 samples for fed-CIFAR100 and Shakespeare.
"""

import functools

import fljax as fl
from experiments.benchmarks.gpu.rows import Published, Row, training_row
from experiments.benchmarks.gpu.training import Training

SOURCE = "README of microsoft/msrflute, which does not name the GPUs of its first table"


def published(fedml: str, flute: str) -> tuple[Published, ...]:
    """Times of the whole run."""
    return (
        Published("FedML 0.7.303 (MPI), fastest", fedml, "GPUs", SOURCE),
        Published("FLUTE (NCCL), fastest", flute, "GPUs", SOURCE),
    )


def femnist(rehearse: bool) -> Training:
    work = Training(
        network=fl.models.dropout_cnn(62),
        sample=(28, 28, 1),
        outputs=62,
        clients=3_400,
        per_round=10,
        samples=198,
        batch=20,
        step_size=0.1,
        rounds=1_500,
        record_every=50,
        spread=0.38,
    )
    return work.small(samples=5) if rehearse else work


def cifar100(rehearse: bool) -> Training:
    network = fl.models.resnet(100)
    if rehearse:
        network = fl.models.resnet(100, blocks=(1, 1), width=8, groups=4)
    work = Training(
        network=network,
        sample=(32, 32, 3),
        outputs=100,
        clients=500,
        per_round=10,
        samples=100,
        batch=20,
        step_size=0.1,
        rounds=4_000,
        record_every=10,
    )
    return work.small() if rehearse else work


def shakespeare(rehearse: bool) -> Training:
    work = Training(
        network=fl.models.lstm(90, hidden=(16, 16)) if rehearse else fl.models.lstm(90),
        sample=(12,) if rehearse else (80,),
        outputs=90,
        clients=715,
        per_round=10,
        samples=22,
        batch=4,
        step_size=0.8,
        rounds=1_200,
        record_every=50,
        test=2_000,
        tokens=True,
    )
    return work.small() if rehearse else work


def mnist(rehearse: bool) -> Training:
    work = Training(
        network=fl.models.mlp(10, hidden=()),
        sample=(784,),
        outputs=10,
        clients=1_000,
        per_round=10,
        samples=69,
        batch=10,
        step_size=0.03,
        rounds=100,
        record_every=20,
        spread=0.8,
    )
    return work.small(samples=5) if rehearse else work


def row(
    title: str, seconds: float, work: object, others: tuple[Published, ...], **kind: int
) -> Row:
    return training_row(f"FLUTE's {title}", seconds, functools.partial(work), others, **kind)  # pyright: ignore[reportArgumentType, reportCallIssue]


ROWS = {
    "flute-femnist": row("CNN_FEMNIST", 60, femnist, published("5:49:52", "0:08:22")),
    "flute-mnist": row(
        "LR_MNIST",
        15,
        mnist,
        (
            *published("0:03:09", "0:01:35"),
            Published("Flower 1.0.0 (Ray)", "1:21:44", "2 GPUs", SOURCE),
            Published("FLUTE (NCCL)", "0:01:31", "2 GPUs", SOURCE),
        ),
    ),
    "flute-cifar100": row(
        "RESNET_FEDCIFAR100", 45, cifar100, published("15:55:36", "1:42:01"), most_rounds=100
    ),
    "flute-shakespeare": row(
        "RNN_FEDSHAKESPEARE", 40, shakespeare, published("6:46:21", "0:21:50")
    ),
}
