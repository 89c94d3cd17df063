"""Label skew on MNIST and ijcnn1, with softmax regression and with a network of two layers."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.atlas.scenario import LOCAL_STEPS, Scenario
from fljax._core.module import float_dtype

CLIENTS = 20
SAMPLES = 40
BATCH = 10
ROUNDS = 60
#: Images and rows that clients draw from, held-out ones, and ones that are held out in tuning.
POOL = 6000
TESTS = 1000
VALIDATING = 1000
#: Factor of the squared norm of a linear model.
STRENGTH = 1e-3
HIDDEN = 32
CONCENTRATIONS = (0.1, 1.0, 100.0)


class Pool(NamedTuple):
    """Samples in the order of their labels; features have a mean square of one."""

    features: np.ndarray  # [n, P]
    start: np.ndarray  # [classes]  the first of each label
    size: np.ndarray  # [classes]  how many of each label
    test_features: np.ndarray  # [m, P]
    test_labels: np.ndarray  # [m]
    validation_features: np.ndarray  # [v, P]  neither clients' samples nor of the test set
    validation_labels: np.ndarray  # [v]


def pool(
    features: Any, labels: Any, test_features: Any, test_labels: Any, size: int = POOL
) -> Pool:
    """The first samples as a pool, and those after them as a validation set."""
    count = np.bincount(labels[:size])
    scale = np.sqrt(np.mean(features[:size] ** 2))
    order = np.argsort(labels[:size], kind="stable")
    scaled = (features / scale).astype(float_dtype())
    return Pool(
        scaled[order],
        (np.cumsum(count) - count).astype(np.int32),
        count.astype(float_dtype()),
        (test_features / scale).astype(float_dtype()),
        test_labels.astype(float_dtype()),
        scaled[size:],
        labels[size:].astype(float_dtype()),
    )


@cache
def digits() -> Pool:
    """MNIST, every image averaged over 2 x 2 pixels, which spares three quarters of the time."""

    def small(images: np.ndarray) -> np.ndarray:
        blocks = images.reshape(-1, 14, 2, 14, 2).mean((2, 4))
        return blocks.reshape(-1, 196) / 255

    data = fl.data.mnist()
    return pool(
        small(data.train_images[: POOL + VALIDATING]),
        data.train_labels[: POOL + VALIDATING].astype(int),
        small(data.test_images[:TESTS]),
        data.test_labels[:TESTS],
    )


@cache
def ignitions() -> Pool:
    """ijcnn1: one sample in ten is of the second class."""
    data = fl.data.ijcnn1(POOL + VALIDATING)
    return pool(
        data.features,
        (data.labels > 0).astype(int),
        data.test_features[:TESTS],
        (data.test_labels > 0).astype(int)[:TESTS],
    )


DATA = {"mnist": digits, "ijcnn1": ignitions}


@jax.jit
def drawn(
    key: jax.Array, features: Any, start: Any, count: Any, concentration: float
) -> tuple[jax.Array, jax.Array]:
    """Samples of clients whose label shares are drawn around the shares of the pool."""
    k_share, k_label, k_row = jax.random.split(key, 3)
    prior = count / jnp.mean(count) * concentration
    shares = jax.random.dirichlet(k_share, prior, (CLIENTS,))
    label = jax.random.categorical(k_label, jnp.log(shares)[:, None], shape=(CLIENTS, SAMPLES))
    offset = jax.random.uniform(k_row, label.shape) * count[label]
    return features[start[label] + offset.astype(jnp.int32)], label.astype(features.dtype)


def skewed(
    key: jax.Array,
    data: str,
    network: bool,
    concentration: float,
    validated: bool = False,
    hidden: int = HIDDEN,
) -> dict[str, Any]:
    """Clients of skewed labels, and a test set that they have in common, or a validation set."""
    k_data, k_start = jax.random.split(key)
    of = DATA[data]()
    classes = len(of.size)
    features, labels = drawn(k_data, of.features, of.start, of.size, concentration)
    loss = fl.problems.Softmax(classes)
    problem = fl.problems.Problem(features, labels, loss, fl.problems.SquaredL2(), STRENGTH)
    if validated:
        problem = problem.with_test(of.validation_features, of.validation_labels)
    else:
        problem = problem.with_test(of.test_features, of.test_labels)
    if network:
        network_model = fl.models.mlp(classes, hidden=[hidden])
        problem = fl.problems.Model.of(problem, network_model, k_start)
    return {"problem": problem}


REASON = (
    "Shares of labels from a Dirichlet distribution are the usual label skew (Hsu et al. 2019): "
    "0.1 leaves a client one or two labels, 100 alike ones. Each client draws its own samples."
)
MODELS = {"softmax": "softmax regression", "network": "a network of two layers"}

for _data, _title, _metric, _target in (
    ("mnist", "MNIST", "error_rate", 0.2),
    ("ijcnn1", "ijcnn1", "test_error", 0.22),
):
    for _model, _words in MODELS.items():
        for _concentration in CONCENTRATIONS:
            _parts = partial(
                skewed, data=_data, network=_model == "network", concentration=_concentration
            )
            Scenario(
                f"{_data}-{_model}-{_concentration:g}",
                f"{_title}, {_words}, Dirichlet {_concentration:g}",
                REASON,
                f"{_title} with {_words}; clients of one server, labels skewed by Dirichlet "
                f"{_concentration:g}, batches of {BATCH}",
                _parts,
                _metric,
                target=_target,
                rounds=ROUNDS,
                axes={"data": _title, "model": _words, "concentration": _concentration},
                given={"local_steps": LOCAL_STEPS, "batches": fl.batches.Uniform(BATCH)},
                tuning_parts=partial(_parts, validated=True),
            )
