"""Graphs that are learned: exact answers, and measures that see broken data."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import picture
from experiments.figure import REGISTRY, Effort
from experiments.jung import figure_graph_learning as module
from experiments.jung.figure_graph_learning import (
    ALL,
    ALONE,
    ENTRIES,
    ERROR,
    FIXED,
    GRADIENTS,
    KNOWN,
    LEARNED,
    PARAMETERS,
    PROBABILITY,
    RELEARNED,
    RULES,
    TRAINED,
    TRUE,
    WITHIN,
)

FIGURE = REGISTRY["jung-graph-learning"]
SEEDS = 6
COUNTS = [2, 40]
ROUNDS = 5


def test_the_exact_probability_is_that_of_a_simulation():
    """Simulated for one node at a time, with NumPy alone."""
    rng = np.random.default_rng(0)
    entries = 2
    repeats = 20_000
    kind = np.concatenate([np.ones((repeats, 49)), -np.ones((repeats, 50))], axis=1)
    drawn = rng.permuted(kind, axis=1)[:, :10]  # the other nodes of one with c = 1
    mean = drawn + rng.normal(size=drawn.shape) / np.sqrt(entries)
    mean_of_first = 1 + rng.normal(size=(repeats, 1)) / np.sqrt(entries)
    near = np.argsort(np.abs(mean - mean_of_first), axis=1)[:, :3]
    wrong = np.any(np.take_along_axis(drawn, near, axis=1) < 0, axis=1)
    assert module.predicted_wrong(entries) == pytest.approx(wrong.mean(), abs=0.015)
    floor = np.mean((drawn > 0).sum(axis=1) < 3)
    assert module.floor_wrong() == pytest.approx(floor, abs=0.006)
    assert module.predicted_wrong(200) == pytest.approx(module.floor_wrong(), abs=1e-6)


def test_edges_within_clusters_are_weighed():
    matrix = np.zeros((module.CLIENTS, module.CLIENTS))
    matrix[0, 1] = 3.0
    matrix[0, 8] = 1.0
    assert float(module.inside(jnp.asarray(matrix + matrix.T))) == pytest.approx(0.75)
    assert float(module.inside(jnp.zeros_like(matrix))) == 0
    everybody = jnp.asarray(1 - np.eye(module.CLIENTS))
    assert float(module.inside(everybody)) == pytest.approx(PROBABILITY)


def expected_studies():
    """Studies in which all claims hold."""
    rng = np.random.default_rng(0)

    def noisy(level, *shape):
        return level * np.exp(0.01 * rng.normal(size=(SEEDS, *shape)))

    exact = np.array([module.predicted_wrong(m) for m in ENTRIES.value])
    wrong = exact + 1e-3 * rng.normal(size=(SEEDS, len(exact)))
    inside = noisy(1.0, 2, 2, 3) * np.array([0.5, 0.98])[:, None, None]
    errors = {LEARNED: 0.1, TRUE: 0.05, ALL: 2.0, ALONE: 1.0}
    error = noisy(1.0, 2, 4) * np.array([errors[name] for name in KNOWN])
    final = {RELEARNED: 0.1, TRUE: 0.05, FIXED: 1.0, ALONE: 1.0}
    curve = noisy(1.0, ROUNDS, 4) * np.array([final[name] for name in TRAINED])
    share = 0.5 + 0.05 * np.arange(ROUNDS)[:, None] + 0.01 * noisy(1.0, ROUNDS, 4)
    kinds = {"graph": list(TRAINED)}
    share_of = {"decibel": 0}
    dims = ("seed", "round", "graph")
    return {
        "ranking": xr.Dataset(
            {"wrong": (("seed", "entries"), wrong, share_of)}, {"entries": list(ENTRIES.value)}
        ),
        "learned": xr.Dataset(
            {
                "inside": (("seed", "count", "points", "rule"), np.minimum(inside, 1), share_of),
                "error": (("seed", "count", "graph"), error, {"decibel": 1}),
            },
            {
                "count": COUNTS,
                "points": [PARAMETERS, GRADIENTS],
                "rule": list(RULES),
                "graph": list(KNOWN),
            },
        ),
        "exact": xr.Dataset(
            {"excess": (("seed", "count", "points"), noisy(0.005, 2, 2))},
            {"count": COUNTS, "points": [PARAMETERS, GRADIENTS]},
        ),
        "training": xr.Dataset(
            {ERROR: (dims, curve, {"decibel": 1}), WITHIN: (dims, share, share_of)},
            {**kinds, "round": np.arange(1, ROUNDS + 1)},
        ),
    }


@pytest.fixture(scope="module")
def sound():
    return expected_studies()


def test_all_claims_hold_where_they_should(sound):
    assert not [claim.name for claim in FIGURE.claims if not claim.judge(sound).holds]


@pytest.mark.long
@pytest.mark.slow
def test_the_picture_can_be_read(sound):
    with picture.print_style():
        drawing = FIGURE.plot(sound)
    assert picture.faults(drawing) == []
    plt.close(drawing)


def changed(studies, study, name, change, **where):
    result = studies[study].copy(deep=True)
    index = {axis: result.get_index(axis).get_loc(label) for axis, label in where.items()}
    result[name][index] = change(result[name][index])
    return {**studies, study: result}


@pytest.mark.parametrize(
    ("claim", "study", "name", "change", "where"),
    [
        ("ranking-as-analyzed", "ranking", "wrong", lambda a: a + 0.05, {"entries": 5}),
        ("ranking-floor", "ranking", "wrong", lambda a: a + 0.02, {"entries": 20}),
        (
            *("alike-by-models", "learned", "inside", lambda a: 0.9 * a),
            {"count": 40, "points": PARAMETERS, "rule": RULES[1]},
        ),
        (
            *("alike-by-gradients", "learned", "inside", lambda a: 0.9 * a),
            {"count": 40, "points": GRADIENTS, "rule": RULES[2]},
        ),
        (
            *("few-samples-tell", "learned", "inside", lambda a: 0.5 * a),
            {"count": 2, "points": GRADIENTS, "rule": RULES[0]},
        ),
        (
            *("projected-descent", "exact", "excess", lambda a: a + 0.03),
            {"count": 40, "points": GRADIENTS},
        ),
        ("edges-among-alike-help", "learned", "error", lambda a: 30 * a, {"graph": TRUE}),
        ("edges-among-others-do-not-help", "learned", "error", lambda a: a / 4, {"graph": ALL}),
        ("learned-graph-helps", "learned", "error", lambda a: 15 * a, {"graph": LEARNED}),
        ("learned-in-training", "training", ERROR, lambda a: 20 * a, {"graph": RELEARNED}),
        (
            *("rewired-in-training", "training", WITHIN),
            *(lambda a: a.isel(round=slice(None, None, -1)).values, {"graph": RELEARNED}),
        ),
    ],
)
def test_claims_detect_broken_data(sound, claim, study, name, change, where):
    by_name = {c.name: c for c in FIGURE.claims}
    broken = changed(sound, study, name, change, **where)
    verdict = by_name[claim].judge(broken)
    assert verdict.decided
    assert not verdict.holds


def test_the_note_states_from_how_many_samples_edges_to_everybody_hurt(sound):
    few = changed(sound, "learned", "error", lambda a: a / 4, count=2, graph=ALL)
    assert "worse than none from 40 samples" in module.crossing(few)


@pytest.mark.slow
def test_networks_have_as_many_samples_as_asked_for():
    problem = module.network(fl.random_key(0), 5)
    assert np.unique(np.asarray(problem.weights).sum(axis=1).round(6)).tolist() == [1.0]
    assert (np.asarray(problem.sample_counts()) == 5).all()
    result = module.measured(fl.random_key(0), 40)
    assert (np.asarray(result["inside"]) > 0.9).all()
    errors = dict(zip(KNOWN, np.asarray(result["error"]), strict=True))
    assert errors[TRUE] < errors[ALONE] < errors[ALL]
    costs = module.least_costs(np.asarray(result["points"]))
    assert (costs <= np.asarray(result["cost"]) * (1 + 1e-5)).all()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_learns_its_graph_rewires():
    data = module.training(Effort(seeds=3, progress=False))
    final = data[ERROR].mean("seed").isel(round=-1)
    assert float(final.sel(graph=TRUE)) < float(final.sel(graph=RELEARNED))
    assert float(final.sel(graph=RELEARNED)) < float(final.sel(graph=FIXED))
    share = data[WITHIN].mean("seed").isel(round=-1)
    assert share.sel(graph=[TRUE, ALONE]).values.tolist() == [1, 0]
    assert float(share.sel(graph=RELEARNED)) > float(share.sel(graph=FIXED)) + 0.1
    rate = jax.jit(module.wrong_neighbors)(fl.random_key(1))
    exact = [module.predicted_wrong(m) for m in ENTRIES.value]
    np.testing.assert_allclose(rate, exact, atol=0.15)
