"""CIFAR10 as in pfl-research's benchmark: 1,000 users of 50 images, 50 a round, 1,500 rounds."""

import functools

import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.benchmarks.gpu import training
from experiments.benchmarks.gpu.rows import Published, Row, training_row
from experiments.benchmarks.gpu.training import Samples, Training

#: Epsilon 2 and delta 1e-6 of 1,500 rounds with 1,000 of a million users each; the noise of such a
#: cohort is added to the mean of fifty.
EPSILON = 2.0
DELTA = 1e-6
CLIP = 0.4
POPULATION = 1_000_000
NOISE_COHORT = 1_000

PUBLISHED = (
    Published(
        "pfl-research",
        "7 to 72 times as fast as the other simulators that it was compared with",
        "GPUs, see there",
        "Granqvist et al. 2024, arXiv:2404.06430, abstract",
    ),
)


def samples(concentration: float | None, work: Training) -> Samples:
    """CIFAR-10 from ``FLJAX_DATA``, or numbers of its shape; labels by a Dirichlet law."""
    try:
        images = fl.data.cifar10()
    except FileNotFoundError:
        pool = training.drawn(work)
        features = pool.features.reshape(-1, *work.sample)
        targets = pool.targets.reshape(-1)
        test = pool.test_features, pool.test_targets
        source = pool.source
    else:
        features, test_features = (
            jnp.asarray(pixels, jnp.float32) / 127.5 - 1
            for pixels in (images.train_images, images.test_images)
        )
        targets, test_targets = (
            jnp.asarray(labels, jnp.int32) for labels in (images.train_labels, images.test_labels)
        )
        test = test_features[: work.test], test_targets[: work.test]
        source = "CIFAR-10"
    rule = (
        fl.partitions.IID()
        if concentration is None
        # Our parameter is the sum over the ten classes.
        else fl.partitions.EqualDirichlet(concentration * work.outputs)
    )
    rows = work.clients * work.samples
    order = rule.draw(0, targets[:rows], work.clients, classes=work.outputs).order
    at = order.reshape(work.clients, work.samples)
    return Samples(features[at], targets[at], np.full(work.clients, work.samples), *test, source)


@functools.cache
def noise() -> fl.privacy.CentralGaussian:
    """The mechanism: noise as small, relative to the mean, as with the larger cohort."""
    selector = fl.participation.Fraction(NOISE_COHORT / POPULATION)
    of_cohort = fl.privacy.CentralGaussian.for_budget(
        EPSILON, DELTA, rounds=1_500, selector=selector, clients=POPULATION
    )
    return fl.privacy.CentralGaussian(of_cohort.noise_multiplier * 50 / NOISE_COHORT, clip=CLIP)


def work(
    rehearse: bool, concentration: float | None = None, precision: str = "float32", dp: bool = False
) -> Training:
    result = Training(
        network=fl.models.dropout_cnn(10),
        sample=(32, 32, 3),
        outputs=10,
        clients=1_000,
        per_round=50,
        samples=50,
        batch=10,
        step_size=0.1,
        rounds=1_500,
        precision=precision,
        privacy=noise() if dp else None,
        draw=functools.partial(samples, concentration),
    )
    return result.small() if rehearse else result


def row(title: str, seconds: float, **kind: object) -> Row:
    return training_row(
        f"pfl-research's CIFAR10, {title}",
        seconds,
        functools.partial(work, **kind),  # pyright: ignore[reportArgumentType]
        PUBLISHED,
    )


ROWS = {
    "pfl-cifar10": row("IID", 60),
    "pfl-cifar10-dp": row("IID, central DP", 60, dp=True),
    "pfl-cifar10-dirichlet": row("Dirichlet 0.1", 50, concentration=0.1),
    "pfl-cifar10-tf32": row("IID, TF32", 40, precision="tf32"),
    "pfl-cifar10-bfloat16": row("IID, bfloat16", 40, precision="bfloat16"),
}
