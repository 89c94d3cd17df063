"""Whether an advertisement is clicked: the classification of Rizk 2023, chapters 3 and 4.

The source uses Avazu's log, which may not be redistributed. The substitute is synthetic with the
same form: one category a field, few of them frequent (:func:`fljax.data.click_log`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import fljax as fl
from experiments.figure import Estimate, Measure, Setting, Studies
from experiments.measures import estimate, two
from experiments.rizk import data, network
from fljax.metrics import Metric, Snapshot, held_out
from fljax.problems import Logistic, Problem, SquaredL2

ROWS = Setting("rows", 5101, "section 3.5.2 on figure 3.5", given=True)
TEST = Setting(
    "test rows", 256, "clean, section 3.5.2 on figure 3.5; in chapter 4 not given", given=True
)
LOG = Setting(
    "data",
    "a synthetic log, 15 fields of 16 categories",
    "a surrogate: Avazu's log may not be passed on, and has a million features",
)
FIELDS = 15
CATEGORIES = 16
SIZES = Setting(
    "rows of an agent", "Dirichlet(4) shares", "“unequally”, section 3.5.2 on figure 3.5"
)
FEATURE_NOISE = Setting(
    "deviation of the noise on an agent's features",
    (0.0, 0.1),
    "uniform, each agent's own; not given. A feature that is there is 0.26",
)
ROUNDS = Setting("iterations", 300, "not given; the error without noise is flat in the last half")
EVERY = 5
SEEDS = Setting("seeds", 8, "at most: each is a mean over 150 iterations")

COMMON = (
    *(ROWS, TEST, LOG, SIZES, FEATURE_NOISE, ROUNDS, SEEDS),
    *(network.MIXING, network.DRAWN_ONCE, network.OWN_PART, network.PER_COORDINATE),
    network.STEADY,
)


def rows(agents: int) -> np.ndarray:
    """``[agents]``: rows of each, unequal and none without."""
    draws = np.random.default_rng(0)
    shares = draws.dirichlet(np.full(agents, 4.0))
    return 1 + draws.multinomial(ROWS.value - agents, shares)


def problem(agents: int, rho: float) -> Problem:
    """The regularized logistic risk of all agents; held-out rows are clean."""
    k_log, k_noise, k_deviation = jax.random.split(fl.random_key(0), 3)
    log = fl.data.click_log(k_log, ROWS.value + TEST.value, FIELDS, CATEGORIES)
    features = np.asarray(log.features)
    labels = np.asarray(log.labels)
    ends = np.cumsum(rows(agents))
    parts = [*zip(np.split(features, ends), np.split(labels, ends), strict=True)]
    least, most = FEATURE_NOISE.value
    deviation = jax.random.uniform(k_deviation, (agents,), features.dtype, least, most)
    result = fl.problems.from_clients(
        parts[:-1], Logistic(), SquaredL2(), rho * agents, test=parts[-1:]
    )
    return data.with_feature_noise(k_noise, result, deviation)


def _centroid_error(now: Snapshot) -> Array:
    test = held_out(now.problem)
    centroid = jnp.mean(network.nodes(now), axis=0)
    right = test.loss.correct(test.predictions(centroid[None]), test.targets)
    return 100 * (1 - jnp.mean(right.astype(now.model.dtype)))


ERROR = Metric(
    "centroid_error",
    _centroid_error,
    "testing error of the centroid, %",
    decibel=False,
    needs={"test", "labels"},
)


def world(agents: int, rho: float) -> Callable[[], Problem]:
    """The data and the network that all runs have in common."""
    return network.drawn_once(lambda: problem(agents, rho))


# --------------------------------------------------------------------------- claims

SURROGATE = "the data are a synthetic surrogate"


def differences(cases: Mapping[str, tuple[Any, Any]]) -> Measure:
    """For every case, by how much the first's error rate is higher in the steady state."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = network.late(studies["a"])
        return {
            name: estimate(lambda a, b: a - b, *two(result, *pair, ERROR.name), unit="points")
            for name, pair in cases.items()
        }

    return measure


def share_of_the_rarer(result: Problem) -> float:
    """How often the better constant answer errs on the held-out rows, per cent."""
    assert result.test is not None
    clicked = 100 * float(np.mean(np.asarray(result.test.targets) > 0))
    return min(clicked, 100 - clicked)
