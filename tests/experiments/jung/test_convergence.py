"""How fast coupled models converge: measures that see broken data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import picture
from experiments.jung import figure_convergence as figure
from experiments.jung import solutions
from experiments.jung.figure_convergence import BEST, ERROR, FIRST, SAFE, SECOND
from fljax.theory import network_rates

SEEDS = 5
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}
FACTORS = {0.01: 0.99, 0.1: 0.97, 1.0: 0.98, 10.0: 0.995}


def runs(every, rounds):
    at = np.arange(every, rounds + 1, every)
    factor = np.broadcast_to([*FACTORS.values()], (SEEDS, len(FACTORS)))
    scale = 1 + np.arange(SEEDS)[:, None, None]
    errors = scale * factor[..., None] ** (2.0 * at)
    return xr.Dataset(
        {ERROR: (("seed", "coupling", "round"), errors), "factor": (("seed", "coupling"), factor)},
        {"seed": range(SEEDS), "coupling": [*FACTORS], "round": at},
    )


def expected_studies():
    """What the claims expect, but for the bound that is too loose."""
    parts = list(figure.PARTS.value)
    unit = np.ones((SEEDS, len(parts)))
    bounds = xr.Dataset(
        {
            name: (("seed", "coupling"), level * unit)
            for name, level in (("spectral", 0.9), ("degree", 0.8), ("smallest", 0.6))
        },
        {"seed": range(SEEDS), "coupling": parts},
    )
    factor = np.stack([figure.two_nodes(i, np.asarray(figure.TWO.value)) for i in range(2)])
    first = xr.Dataset(
        {"factor": (("seed", "collection", "coupling"), np.repeat(factor[None], SEEDS, 0))},
        {"collection": [FIRST, SECOND], "coupling": list(figure.TWO.value)},
    )
    rounds = np.array([[6.0, 16, 44, 51, 57], [5, 13, 99, 917, 8809]])
    second = xr.Dataset(
        {"rounds": (("seed", "step", "coupling"), np.repeat(rounds[None], SEEDS, 0))},
        {"seed": range(SEEDS), "step": [SAFE, BEST], "coupling": list(figure.CHOSEN.value)},
    )
    studies = {"descent": runs(10, 1000), "relaxation": runs(1, 200), "bounds": bounds}
    return studies | {"one": first, "two": second}


@pytest.fixture(scope="module")
def expected():
    return expected_studies()


def test_claims_hold_on_the_expected_data(expected):
    assert [name for name, claim in CLAIMS.items() if not claim.judge(expected).holds] == []


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("rate-of-the-spectrum", "relaxation", "factor", 0.9, {"coupling": 1.0}),
        ("contraction", "descent", "factor", 0.96, {"coupling": 0.1}),
        ("largest-eigenvalue", "bounds", "spectral", 1.01, {"seed": 1}),
        ("largest-eigenvalue", "bounds", "degree", 1.01, {"seed": 1}),
        ("largest-guides", "bounds", "degree", 0.4, {}),
        ("smallest-eigenvalue", "bounds", "smallest", 1.01, {"seed": 1}),
        ("smallest-guides", "bounds", "smallest", 0.01, {}),
        ("more-coupling-speeds-up", "one", "factor", 0.999, {"coupling": 400.0}),
        ("more-coupling-slows-down", "one", "factor", 0.0, {"coupling": 400.0}),
        ("turn", "one", "factor", 0.5, {"coupling": 550.0}),
        ("divergence", "one", "factor", 0.99, {"coupling": 700.0, "collection": FIRST}),
        ("factors-as-spectrum", "one", "factor", 0.3, {"coupling": 0.0}),
        ("best-step-slower", "two", "rounds", 40.0, {"step": BEST}),
        ("saturation", "two", "rounds", 570.0, {"step": SAFE, "coupling": 100.0}),
    ],
)
def test_claims_detect_wrong_data(expected, claim, study, name, value, where):
    data = expected[study].assign_coords(seed=range(SEEDS)).copy(deep=True)
    data[name].loc[where] = value
    assert not CLAIMS[claim].judge(expected | {study: data}).holds


def test_the_note_states_how_loose_the_bound_is(expected):
    data = expected["bounds"].copy(deep=True)
    data["smallest"].loc[{"seed": 1}] = 0.01
    assert "0.01 to 0.6 of the eigenvalue" in figure.loose(expected | {"bounds": data})


def test_ratios_ignore_rounding_errors():
    at = np.arange(100.0)
    errors = np.stack([0.5 ** (2 * at) + 1e-29, 0.9 ** (2 * at), 1.1 ** (2 * at), 0 * at])
    np.testing.assert_allclose(figure.ratios(errors), [0.5, 0.9, 1.1, 0], rtol=1e-6)


@pytest.mark.slow
def test_the_dense_matrix_is_that_of_the_theory():
    problem, graph = figure.INSTANCE(jax.random.key(0))
    values = np.linalg.eigvalsh(np.asarray(figure.halves(problem, graph, jnp.asarray(0.5)), float))
    ends = network_rates.extremes(problem, graph, 0.5)
    np.testing.assert_allclose([values[0], values[-1]], [ends.smallest, ends.largest], rtol=1e-4)


@pytest.mark.slow
def test_keys_equal_those_of_a_sweep():
    def scenario(key):
        problem = fl.problems.ridge(key, clients=3, samples=4, dim=2)
        metric = fl.metrics.Metric("first", lambda now: now.problem.features[0, 0, 0], "first")
        algorithm = fl.algorithms.ConventionalFL(0.1)
        return fl.Simulation(problem, algorithm, metrics=[metric])

    results = fl.sweep(scenario, rounds=1, seeds=3, progress=False)["first"].values[:, 0]
    keys = solutions.scenario_keys(3)
    wanted = [fl.problems.ridge(k, clients=3, samples=4, dim=2).features[0, 0, 0] for k in keys]
    np.testing.assert_allclose(results, wanted)


@pytest.mark.long
@pytest.mark.slow
def test_curves_are_not_covered(expected):
    studies = {n: d.assign_coords(seed=range(SEEDS)) for n, d in expected.items()}
    with picture.print_style():
        assert picture.faults(figure.plot(studies)) == []
