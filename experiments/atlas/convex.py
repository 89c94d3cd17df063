"""Least squares and logistic regression with one server: conditioning and dissimilarity."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import fljax as fl
from experiments.atlas.scenario import Scenario

CLIENTS = 50
SAMPLES = 20
DIM = 10
ROUNDS = 200

#: Normalized errors are sums over clients: this is a relative error of each of -30 dB.
TARGET = CLIENTS * 1e-3

#: Deviation of clients' true models from the common one, in units of its own deviation.
DISSIMILARITY = {"alike": 0.0, "mildly unlike": 0.3, "strongly unlike": 3.0}
#: Ratio of the largest to the least variance of a feature.
CONDITION = {"well": 4.0, "badly": 400.0}
#: Least squares: variance of the noise.
NOISE = 0.1
#: Logistic regression: the factor of the squared norm.
STRENGTH = 0.1

UNLIKE = (
    "Clients whose optima differ are what tells federated from centralized learning: local steps "
    "drift apart. A true model of each client at a set distance from the common one is the model "
    "of Li et al. 2020 (FedProx) and of most analyses since."
)
CONDITIONED = {
    "well": "A small condition number: what remains is the price of communication.",
    "badly": "Rates of first-order methods depend on the condition number; 400 is a hard case.",
}


def features_of(key: jax.Array, condition: float, clients: int, dim: int) -> jax.Array:
    """Normal features whose variances go from one down to one over the condition number."""
    scale = jnp.geomspace(1.0, condition**-0.5, dim)
    normal = jax.random.normal(key, (clients, SAMPLES, dim), scale.dtype)
    return normal * scale[None, None]


def models_of(key: jax.Array, dissimilarity: float, clients: int, dim: int) -> jax.Array:
    """A true model of each client around a common one."""
    k_common, k_own = jax.random.split(key)
    common = jax.random.normal(k_common, (1, dim))
    return common + dissimilarity * jax.random.normal(k_own, (clients, dim))


# A sweep draws the data once for each of its points, to check them: compiled, that takes no time.
@partial(jax.jit, static_argnames=("clients", "dim"))
def squares_data(
    key: jax.Array, condition: float, dissimilarity: float, clients: int, dim: int
) -> tuple[jax.Array, jax.Array]:
    """Features and targets of all clients."""
    k_features, k_models, k_noise = jax.random.split(key, 3)
    features = features_of(k_features, condition, clients, dim)
    models = models_of(k_models, dissimilarity, clients, dim)
    clean = jnp.einsum("knd,kd->kn", features, models)
    return features, clean + NOISE**0.5 * jax.random.normal(k_noise, clean.shape)


@partial(jax.jit, static_argnames=("clients", "dim"))
def logistic_data(
    key: jax.Array, condition: float, dissimilarity: float, clients: int, dim: int
) -> tuple[jax.Array, jax.Array]:
    """Features and labels of all clients."""
    k_features, k_models, k_labels = jax.random.split(key, 3)
    features = features_of(k_features, condition, clients, dim)
    models = models_of(k_models, dissimilarity, clients, dim)
    logits = jnp.einsum("knd,kd->kn", features, models)
    up = jax.random.uniform(k_labels, logits.shape) < jax.nn.sigmoid(logits)
    return features, jnp.where(up, 1.0, -1.0)


def squares(
    key: jax.Array,
    likeness: str = "mildly unlike",
    how: str = "well",
    clients: int = CLIENTS,
    dim: int = DIM,
) -> fl.problems.Problem:
    """Least squares."""
    settings = CONDITION[how], DISSIMILARITY[likeness], clients, dim
    features, targets = squares_data(key, *settings)
    return fl.problems.Problem(features, targets, fl.problems.LeastSquares())


def logistic(
    key: jax.Array,
    likeness: str = "mildly unlike",
    how: str = "well",
    clients: int = CLIENTS,
    dim: int = DIM,
) -> fl.problems.Problem:
    """Regularized logistic regression."""
    settings = CONDITION[how], DISSIMILARITY[likeness], clients, dim
    features, labels = logistic_data(key, *settings)
    return fl.problems.Problem(
        features, labels, fl.problems.Logistic(), fl.problems.SquaredL2(), STRENGTH
    )


def parts(make: Callable[..., Any], key: jax.Array, **given: Any) -> dict[str, Any]:
    """A simulation's problem alone."""
    return {"problem": make(key, **given)}


for _name, _make, _words in (
    ("squares", squares, "Least squares"),
    ("logistic", logistic, "Logistic regression"),
):
    for _how in CONDITION:
        for _likeness in DISSIMILARITY:
            Scenario(
                f"{_name}-{_how}-{_likeness.split()[0]}",
                f"{_words}, {_how} conditioned, {_likeness} clients",
                f"{CONDITIONED[_how]} {UNLIKE}",
                f"{_words}, {_how} conditioned; {_likeness} clients of one server, all take part",
                partial(parts, _make, likeness=_likeness, how=_how),
                "normalized_error",
                target=TARGET,
                rounds=ROUNDS,
                axes={
                    "problem": _words.lower(),
                    "condition": CONDITION[_how],
                    "dissimilarity": DISSIMILARITY[_likeness],
                },
            )
