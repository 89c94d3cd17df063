"""Chapters 3 and 4 of Rizk 2023: studies of schemes of noise, measures that see broken data."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import measures
from experiments.figure import Effort
from experiments.rizk import chapter3 as ch3
from experiments.rizk import chapter4 as ch4
from experiments.rizk import clicks, figure_3_3, figure_3_4, figure_4_4
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, LOCAL, NONE, RANDOM
from fljax._module import replace
from fljax.algorithms import ATC
from fljax.metrics import Snapshot
from fljax.theory import multiagent

SEEDS = 5
RING = fl.graphs.ring(4)


@net.drawn_once
def problem():
    return fl.problems.ridge(fl.random_key(0), clients=4, samples=5, dim=2)


def scenario(key, scheme, variance, step_size):
    return fl.Simulation(
        problem(),
        ATC(step_size),
        RING,
        noise=replace(scheme, variance=variance),
        metrics=net.METRICS,
    )


@pytest.fixture(scope="module")
def tiny():
    steps = {"step_size": [0.02, 0.1]}
    ask = Effort(seeds=SEEDS, progress=False)
    return net.study("x", ask, scenario, [0.1], grid=steps, rounds=40)


@pytest.mark.long
@pytest.mark.slow
def test_a_study_has_no_noise_as_a_scheme(tiny):
    assert list(tiny["scheme"].values) == [NONE, RANDOM, HOMOMORPHIC]
    silent = tiny[net.INDIVIDUAL].sel(scheme=NONE, drop=True)
    assert float(silent.std("seed").max()) < 1e-9  # gradients are full
    for scheme in (RANDOM, HOMOMORPHIC):
        loud = tiny[net.INDIVIDUAL].sel(scheme=scheme).mean("seed")
        assert (loud.isel(round=-1) > 1.2 * silent.mean("seed").isel(round=-1)).all()


@pytest.mark.slow
def test_the_noise_alone_is_the_distance_from_the_run_without(tiny):
    parts = net.noise_parts(tiny)
    late = tiny[net.MODELS].isel(round=slice(20, None))
    apart = late.sel(scheme=RANDOM) - late.sel(scheme=NONE)
    centroid = (apart.mean("node") ** 2).sum("parameter").mean("round")
    np.testing.assert_allclose(parts[net.CENTROID_NOISE].sel(scheme=RANDOM), centroid)
    quiet = parts[net.CENTROID_NOISE].sel(scheme=HOMOMORPHIC)
    # It cancels there, but for the gradients' answer; that of five seeds together.
    assert (quiet.mean("seed") < 0.1 * centroid.mean("seed")).all()
    assert (parts[net.INDIVIDUAL_NOISE].sel(scheme=HOMOMORPHIC) > 10 * quiet).all()


@pytest.mark.slow
def test_consensus_at_the_end_recovers_the_centroid(tiny):
    over = np.asarray(RING.mixing("metropolis").matrix())
    optimum = np.asarray(fl.problems.optimum(problem()))
    result = net.recovered(tiny, over, optimum)[net.RECOVERED].squeeze("variance")
    np.testing.assert_allclose(
        result.isel(stage=0), net.late(tiny)[net.INDIVIDUAL].squeeze("variance"), rtol=1e-4
    )
    centroid = net.late(tiny)[net.CENTROID].squeeze("variance")
    np.testing.assert_allclose(result.isel(stage=-1), centroid, rtol=1e-3, atol=1e-8)


@pytest.mark.slow
def test_theory_is_that_of_each_scheme_and_number():
    axes = {"variance": [0.1, 0.2], "step_size": [0.02, 0.1]}
    result = net.predicted(scenario, (NONE, RANDOM), **axes)
    noise = net.SCHEMES[RANDOM]
    alone = multiagent.steady_state(scenario(fl.random_key(0), noise, 0.2, 0.02))
    assert float(result[net.CENTROID].sel(scheme=RANDOM, variance=0.2, step_size=0.02)) == (
        pytest.approx(float(alone.centroid), rel=1e-4)
    )
    silent = result[net.INDIVIDUAL].sel(scheme=NONE)
    np.testing.assert_allclose(silent.sel(variance=0.1), silent.sel(variance=0.2))
    assert (result[net.INDIVIDUAL].sel(scheme=RANDOM) > silent).all()


def made(values, metric=net.CENTROID, rounds=4, **axes):
    """A study whose curves are flat, with noise that all have in common."""
    noise = np.exp(0.02 * np.random.default_rng(0).normal(size=(SEEDS, rounds)))
    data = np.asarray(values, float)[..., None, None] * noise
    dims = [*axes, "seed", "round"]
    return xr.Dataset(
        {
            metric: (dims, data),
            "diverged": (dims[:-1], np.zeros(data.shape[:-1], int)),
        },
        coords={**axes, "round": np.arange(1, rounds + 1)},
    )


def test_gaps_slopes_and_what_rises():
    steps = [0.1, 0.2, 0.4]
    data = made([[3.0, 6.0, 12.0], [4.0, 1.0, 0.25]], scheme=["up", "down"], step_size=steps)
    late = net.late(data)
    assert net.slope(late, net.CENTROID, "step_size", scheme="up").value == pytest.approx(1)
    assert net.slope(late, net.CENTROID, "step_size", scheme="down").value == pytest.approx(-2)
    cases = net.rising("step_size", steps, scheme="up")
    result = net.gaps("a", net.CENTROID, cases)({"a": data})
    assert [e.value for e in result.values()] == pytest.approx([10 * np.log10(2)] * 2)
    assert list(result) == ["up, 0.2 above 0.1", "up, 0.4 above 0.2"]
    pair = net.gaps("a", net.CENTROID, net.pairs(("up", "down"), step_size=0.4))({"a": data})
    assert pair["up above down"].value == pytest.approx(10 * np.log10(48))


def test_the_steady_state_is_the_last_half():
    data = made([1.0], scheme=["x"])
    data[net.CENTROID].loc[{"round": slice(1, 2)}] = 100.0
    assert (net.late(data)[net.CENTROID] < 2).all()


def test_agreement_notices_what_is_not_as_predicted():
    data = made([1.0, 2.0], scheme=[NONE, RANDOM])
    claim = net.agreement("a", {"c": net.CENTROID}, {s: {"scheme": s} for s in (NONE, RANDOM)})
    for level, holds in ((2.0, True), (3.0, False)):
        theory = xr.Dataset({net.CENTROID: ("scheme", [1.0, level])}, {"scheme": [NONE, RANDOM]})
        assert claim.judge({"a": data, "theory": theory}).holds is holds


def test_the_ends_are_compared_with_the_best_of_the_steps_between():
    steps = list(figure_3_4.STEPS.value)
    for values, signs in (([9, 2, 1, 3], [1, 1]), ([9, 2, 1, 0.5], [1, -1])):
        data = made([values], scheme=[RANDOM], step_size=steps)
        result = figure_3_4.extremes({"a": data})
        assert list(result) == ["step 0.1 above 1", "step 5 above 1"]
        assert [np.sign(e.value) for e in result.values()] == signs


def test_a_rate_is_when_the_mean_error_is_half_as_long():
    errors = 0.5 ** (np.arange(9) / np.array([2, 4])[:, None])  # halved after 2 and 4 rounds
    both = np.stack([errors, 0 * errors], axis=-1)
    assert figure_3_4.arrived(both).tolist() == [3, 5]
    mean = np.stack([both[0], both[1]])
    assert figure_3_4.arrived(mean[::-1]).tolist() == [5, 3]


def test_what_breaks_down_ends_above_its_start():
    data = made([[0.1, 2.0], [0.1, 0.5]], scheme=[RANDOM, HOMOMORPHIC], variance=[0.1, 10.0])
    studies = {"a": data.assign_attrs(start=1.0)}
    (random,), (quiet,) = (
        figure_3_3.from_start(scheme)(studies).values() for scheme in (RANDOM, HOMOMORPHIC)
    )
    assert random.low > 0 > quiet.high


def test_the_crossover_is_where_the_noise_alone_is_as_large():
    steps = [0.01, 0.1]
    levels = [[1.0, 1.0], [3.0, 2.0], [2.0, 3.0]]  # random: 2, 1; homomorphic: 1, 2
    orders = xr.Dataset(
        {net.INDIVIDUAL: (("graph", "scheme", "step_size"), [levels])},
        {"graph": ["ring"], "scheme": [NONE, RANDOM, HOMOMORPHIC], "step_size": steps},
        {"curvature": 0.3},
    )
    assert "ring 0.032" in figure_4_4.crossover({"orders": orders})


@pytest.mark.slow
def test_local_noise_off_its_silent_run_is_seen(tiny):
    silent = tiny.sel(scheme=[NONE])
    data = measures.joined(silent, silent.assign_coords(scheme=[LOCAL]), axis="scheme")
    assert float(figure_4_4._apart(data)[figure_4_4.APART].max()) == 0
    moved = data.copy(deep=True)
    moved[net.MODELS].loc[{"scheme": LOCAL, "round": 7}] += 0.1
    assert float(figure_4_4._apart(moved)[figure_4_4.APART].max()) > 0.01


@pytest.mark.slow
def test_masks_are_drawn_and_cancel():
    noise = net.Masks(1.0)
    assert not noise.cancels
    weights = jnp.array([0.2, 0.3, 0.1, 0.0])
    drawn = noise.over_edges(fl.random_key(0), jnp.int32(0), jnp.arange(4), weights, 2)
    assert (jnp.abs(drawn[:3]) > 1e-3).all()
    np.testing.assert_allclose(weights @ drawn, 0, atol=1e-6)


def test_agents_rows_are_unequal_and_all_there():
    sizes = clicks.rows(50)
    assert sum(sizes) == clicks.ROWS.value
    assert min(sizes) > 0
    assert max(sizes) > 2 * min(sizes)


def test_the_centroid_is_judged_on_held_out_rows():
    test = fl.problems.Problem(
        np.array([[[1.0], [1.0], [-1.0], [2.0]]]), np.array([[1.0, -1.0, -1.0, 1.0]]),
        fl.problems.Logistic(),
    )  # fmt: skip
    own = fl.problems.Problem(
        np.ones((2, 3, 1)), np.ones((2, 3)), fl.problems.Logistic(), test=test
    )
    for models, error in (([[3.0], [-1.0]], 25.0), ([[1.0], [-3.0]], 75.0)):
        now = Snapshot(own, None, jnp.array(models), None)
        assert float(clicks.ERROR.measure(now)) == error


@pytest.mark.slow
def test_feature_noise_leaves_the_test_rows_clean():
    result = clicks.problem(20, 0.1)
    assert result.test.samples == clicks.TEST.value
    filled = np.asarray(result.weights) > 0
    assert filled.sum() == clicks.ROWS.value
    entries = np.unique(np.round(np.asarray(result.test.features), 4))
    assert len(entries) == 2  # zero, and one over the root of the fields
    lengths = [np.asarray(result.features)[k][filled[k]] for k in range(20)]
    spread = [np.std(x[x < 0.15]) for x in lengths]
    assert max(spread) > 4 * min(spread)
    np.testing.assert_allclose(result.share, 0.1, rtol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_the_worlds_are_stable_at_the_steps_of_their_figures():
    problem, servers = ch3.world()
    assert problem.clients == ch3.SERVERS.value * ch3.CLIENTS.value == servers.nodes
    curvature = np.linalg.eigvalsh(np.asarray(multiagent.hessian(problem)))
    assert max(figure_3_4.STEPS.value) * curvature.max() < 2
    problem, graph = ch4.world()
    assert int(graph.neighbor_counts().min()) > 1
    build = functools.partial(
        ch4.scenario, scheme=net.SCHEMES[RANDOM], variance=jnp.float32(0.01), graph=graph
    )
    step = jnp.asarray(ch4.STEP.value)
    simulation = build(fl.random_key(0), strategy=ch4.strategy("ATC"), step_size=step)
    assert multiagent.stable_step(simulation, "mean square", digits=1) > ch4.STEP.value
