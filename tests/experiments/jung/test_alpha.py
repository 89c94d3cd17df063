"""The coupling of GTVMin: measures that see broken data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments.jung import figure_alpha as figure
from experiments.jung import solutions
from experiments.jung.figure_alpha import NORM, SQUARED
from fljax._core.devices import configured
from fljax.problems import GTVMin, Norm, Problem

SEEDS = 6
AT = [1e-4, 1e-2, 1.0, 100.0, 1000.0]
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies():
    """What the claims expect."""
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((SEEDS, 1, 1))
    error = np.array([[1.0, 0.6, 0.1, 1.9, 2.0]] * 2)
    inside = np.array([[1.0, 1e-1, 1e-3, 1e-6, 1e-8], [1, 1e-1, 1e-3, 0, 0]])
    models = np.array([[18.0] * 5, [18, 16, 4, 1, 1]])
    near = np.array([[18.0, 16, 9, 1, 1], [18, 16, 4, 1, 1]])
    full = ("seed", "penalty", "coupling")
    parts = {"error": error, "inside": inside, "between": error, "models": models, "near": near}
    data = xr.Dataset(
        {
            name: (full, part * (noise if name in ("error", "inside") else noise**0))
            for name, part in parts.items()
        },
        {"penalty": [SQUARED, NORM], "coupling": AT, "seed": range(SEEDS)},
    )
    flat = noise[:, 0, 0]
    for name, level in (
        ("local", 1.0),
        ("single", 2.0),
        ("oracle", 0.05),
        ("component_error", 2.0),
    ):
        data[name] = ("seed", level * flat)
    data["components"] = ("seed", np.ones(SEEDS))
    data["critical"] = ("seed", np.full(SEEDS, 50.0))
    data["beside"] = (("seed", "side"), np.tile([2.0, 1.0], (SEEDS, 1)))
    data = data.assign_coords(side=["below", "above"])
    off = ("seed", "coupling")
    average = xr.Dataset(
        {
            "off": (off, np.tile([1.0, 0.9, 0.2, 1e-4, 1e-6], (SEEDS, 1))),
            "off_bound": (off, np.tile([1.0, 0.9, 0.3, 1e-3, 1e-5], (SEEDS, 1))),
        },
        {"coupling": AT},
    )
    return {"all": data, "tuned": data, "average": average}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


def with_(study, name, values, **where):
    """The studies with other values."""
    studies = expected_studies()
    data = studies[study].copy(deep=True)
    data[name].loc[where] = values
    return studies | {study: data} | ({"tuned": data} if study == "all" else {})


@pytest.mark.parametrize(
    ("claim", "broken"),
    [
        ("alone-without-coupling", ("all", "error", 1.1, {"coupling": AT[0]})),
        ("one-model-beyond", ("all", "error", 1.7, {"coupling": AT[-1], "penalty": NORM})),
        ("best-between", ("all", "error", 2.5, {"coupling": AT[1:-1], "penalty": SQUARED})),
        (
            "constant-on-larger-sets",
            (
                "all",
                "models",
                3.0,
                {"coupling": 100.0, "penalty": NORM, "seed": [0, 1, 2, 3, 4, 5]},
            ),
        ),
        ("nearly-constant-on-larger-sets", ("all", "near", 17.0, {"coupling": 1.0})),
        ("sets-grow", ("all", "near", 12.0, {"penalty": SQUARED})),
        ("critical-as-computed", ("all", "beside", 1.0, {"seed": 0, "side": "below"})),
        ("critical-as-computed", ("all", "beside", 2.0, {"seed": 0, "side": "above"})),
        ("squared-never-equal", ("all", "models", 17.0, {"penalty": SQUARED, "coupling": AT[-1]})),
        ("squared-decay", ("all", "inside", 1e-7, {"penalty": SQUARED, "coupling": AT[-1]})),
        ("average", ("average", "off", 1e-3, {"coupling": AT[-1]})),
        ("average-bound", ("average", "off", 0.4, {"coupling": 1.0, "seed": 0})),
    ],
)
def test_claims_detect_wrong_data(claim, broken):
    study, name, values, where = broken
    studies = with_(study, name, values, **where)
    if claim == "constant-on-larger-sets":  # it falls before it rises
        studies["all"]["models"].loc[{"penalty": NORM, "coupling": 1.0}] = 2.0
    assert not CLAIMS[claim].judge(studies).holds


def test_groups_are_joined_by_chains():
    models = jnp.asarray([[0.0, 0], [0.09, 0], [0.18, 0], [1, 1], [1, 1.05], [5, 5]])
    assert float(figure.groups(models, 0.1)) == pytest.approx(3)
    assert float(figure.groups(models, 1e-6)) == pytest.approx(6)


def test_spreads_add_up_to_that_of_all():
    cluster = jnp.repeat(jnp.arange(3), 6)
    models = jax.random.normal(jax.random.key(0), (18, 2))
    inside, between = figure.spreads(models, cluster)
    total = jnp.mean(jnp.sum((models - models.mean(0, keepdims=True)) ** 2, axis=1))
    assert float(inside + between) == pytest.approx(float(total), rel=1e-5)
    same = figure.spreads(jnp.repeat(models[:3], 6, axis=0), cluster)
    assert float(same[0]) == pytest.approx(0, abs=1e-10)


@pytest.mark.slow
def test_a_variation_bounds_the_critical_coupling():
    """Two nodes: it is what pulls them apart, |2 (y_1 - mean)|."""
    problem = Problem(jnp.ones((2, 1, 1)), jnp.asarray([[0.0], [6.0]]), fl.problems.LeastSquares())
    coupled = GTVMin(problem, fl.graphs.path(2), 1.0, Norm())
    constant = solutions.pooled(problem, jnp.zeros(2, int))
    np.testing.assert_allclose(constant, 3.0, rtol=1e-6)
    bound = figure.critical_bound(coupled, constant, jnp.asarray([[1.0], [5.0]]))
    assert float(bound) == pytest.approx(6.0, rel=1e-5)
    assert float(figure.critical_bound(coupled, constant, jnp.asarray([[5.0], [1.0]]))) < 0
    assert float(figure.critical_bound(coupled, constant, constant)) == 0


@pytest.mark.long
@pytest.mark.slow
def test_models_are_equal_beyond_the_critical_coupling_alone():
    allow = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with configured("jax_enable_x64", True), allow[0], allow[1]:
        problem, graph = jax.jit(figure.network)(jax.random.key(0))
        models, limit, sides = jax.jit(figure.lasso)(problem, graph, jnp.asarray([1e-4, 0.3]))
        components = len(np.unique(graph.components()))
        count = [float(figure.groups(side, figure.EQUAL.value)) for side in (*models, *sides)]
    assert float(limit) > 0.3
    assert count[0] == pytest.approx(18)
    assert components < min(count[1], count[2])
    assert count[3] == pytest.approx(components)
