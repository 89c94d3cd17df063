"""Clustered federated learning: measures that see broken data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments import picture
from experiments.figure import Effort
from experiments.jung import figure_clusters as figure
from experiments.jung import solutions
from experiments.jung.figure_clusters import (
    ALONE,
    GIVEN,
    GRADIENTS,
    KNOWN,
    LEARNED,
    PARAMETERS,
)
from fljax._core.devices import configured

SEEDS = 5
AT = np.array([0.1, 1.0, 10.0, 100.0, 1000.0])
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def of_axis(name, values, off, bound):
    shape = (SEEDS, len(values), len(AT))
    axes = ("seed", name, "coupling")
    return xr.Dataset(
        {
            "off": (axes, np.broadcast_to(off, shape)),
            "bound": (axes, np.broadcast_to(bound, shape)),
        },
        {"seed": range(SEEDS), name: list(values), "coupling": AT},
    )


@pytest.fixture(scope="module")
def expected():
    """What the claims say, but that models become one on a connected network."""
    alone = 0.1 / AT**2
    weights = figure.WEIGHTS.value
    probabilities = figure.WITHIN.value
    off = np.stack([alone, *[0.2 * w / (1 + 1 / AT) + 0.5 for w in weights[1:]]])
    bound = np.stack([1 / AT, *[5 * w + 5 + 0 * AT for w in weights[1:]]])
    within = np.stack([(0.3 - 0.2 * probability) / (10 * AT) for probability in probabilities])
    counts = list(figure.FEW.value)
    error = {
        PARAMETERS: [9, 5, 1, 0.3, 0.1, 0.01],
        GRADIENTS: [9, 6, 2, 0.4, 0.2, 0.01],
        LEARNED: [0.2, 0.15, 0.1, 0.08, 0.06, 0.04],
        GIVEN: [0.18, 0.14, 0.1, 0.08, 0.06, 0.04],
        ALONE: [20, 6, 2, 0.8, 0.4, 0.2],
        KNOWN: [0.1, 0.08, 0.06, 0.04, 0.02, 0.01],
    }
    rand = [[0.2, 0.3, 0.6, 0.9, 1, 1], [0.1, 0.2, 0.3, 0.7, 0.9, 1]]
    routes = xr.Dataset(
        {
            "error": (("seed", "route", "samples"), [[*map(list, error.values())]] * SEEDS),
            "rand": (("seed", "by", "samples"), [rand] * SEEDS),
        },
        {
            "seed": range(SEEDS),
            "route": [*error],
            "by": [PARAMETERS, GRADIENTS],
            "samples": counts,
        },
    )
    return {
        "weight": of_axis("weight", weights, off, bound),
        "within": of_axis("within", probabilities, within, 1.0 + 0 * within),
        "routes": routes,
    }


def test_claims_hold_on_the_expected_data(expected):
    assert [name for name, claim in CLAIMS.items() if not claim.judge(expected).holds] == []


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("bound", "within", "off", 1.1, {"seed": 1, "within": 0.75, "coupling": 0.1}),
        ("vanishes-without-boundary", "weight", "off", 1.0, {"weight": 0.0}),
        ("bound-stays", "weight", "bound", 0.1, {"weight": 0.1, "coupling": AT[-1]}),
        ("deviation-stays", "weight", "off", 0.1, {"weight": 0.1, "coupling": AT[-1]}),
        ("boundary-hurts", "weight", "off", 1e-9, {"weight": 1.0}),
        ("connectivity-helps", "within", "off", 1e-9, {"within": 0.5}),
        ("pooling-helps", "routes", "error", 0.01, {"route": ALONE, "samples": 3}),
        ("gtv-with-few", "routes", "error", 0.01, {"route": PARAMETERS, "samples": 3}),
        ("pool-with-many", "routes", "error", 0.5, {"route": PARAMETERS, "samples": 20}),
        ("gradients-mislead", "routes", "rand", 0.95, {"by": GRADIENTS, "samples": 4}),
    ],
)
def test_claims_detect_wrong_data(expected, claim, study, name, value, where):
    data = expected[study].copy(deep=True)
    data[name] = data[name].copy(data=np.array(data[name].values))
    data[name].loc[where] = value
    assert not CLAIMS[claim].judge(expected | {study: data}).holds


@pytest.mark.slow
def test_first_samples_have_positive_weight():
    problem, graph = figure.network(jax.random.key(0), 0.75, 0.1)
    part = figure.first_of(problem, 3)
    models = solutions.pooled(part, jnp.arange(graph.nodes))
    x, y = (np.asarray(a[5, :3], float) for a in (problem.features, problem.targets))
    np.testing.assert_allclose(models[5], np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-3)
    weights = -np.asarray(graph.laplacian_matrix())
    assert set(np.unique(weights[:8, 8:]).round(6)) <= {0.0, 0.1}
    assert set(weights[:8, :8][~np.eye(8, dtype=bool)].round(6)) == {0.0, 1.0}


@pytest.mark.slow
def test_a_quick_run_can_be_drawn():
    allow = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with configured("jax_enable_x64", True), allow[0], allow[1]:
        studies = figure.study(Effort(seeds=3, tuning_seeds=1, quick=True, progress=False))
    with picture.print_style():
        assert picture.faults(figure.plot(studies)) == []
    assert CLAIMS["bound"].judge(studies).holds
