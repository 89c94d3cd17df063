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
from experiments.rizk import clicks, figure_3_3, figure_3_4, figure_3_5, figure_4_4, figure_4_theory
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, LOCAL, NONE, OWN, RANDOM
from fljax._core.module import replace
from fljax.algorithms import ATC
from fljax.metrics.definitions import Snapshot
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
    difference = late.sel(scheme=RANDOM) - late.sel(scheme=NONE)
    centroid = (difference.mean("node") ** 2).sum("parameter").mean("round")
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


def flat_study(values, metric=net.CENTROID, rounds=4, **axes):
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


def test_gaps_slopes_and_increases():
    steps = [0.1, 0.2, 0.4]
    data = flat_study([[3.0, 6.0, 12.0], [4.0, 1.0, 0.25]], scheme=["up", "down"], step_size=steps)
    late = net.late(data)
    assert net.power_of(late, net.CENTROID, "step_size", scheme="up").value == pytest.approx(1)
    assert net.power_of(late, net.CENTROID, "step_size", scheme="down").value == pytest.approx(-2)
    cases = net.rising("step_size", steps, scheme="up")
    result = net.gaps("a", net.CENTROID, cases)({"a": data})
    assert [e.value for e in result.values()] == pytest.approx([10 * np.log10(2)] * 2)
    assert list(result) == ["up, 0.2 above 0.1", "up, 0.4 above 0.2"]
    pair = net.gaps("a", net.CENTROID, net.pairs(("up", "down"), step_size=0.4))({"a": data})
    assert pair["up above down"].value == pytest.approx(10 * np.log10(48))


def test_the_steady_state_is_the_last_half():
    data = flat_study([1.0], scheme=["x"])
    data[net.CENTROID].loc[{"round": slice(1, 2)}] = 100.0
    assert (net.late(data)[net.CENTROID] < 2).all()


def test_agreement_with_theory_detects_deviations():
    data = flat_study([1.0, 2.0], scheme=[NONE, RANDOM])
    claim = net.agreement("a", {"c": net.CENTROID}, {s: {"scheme": s} for s in (NONE, RANDOM)})
    for level, holds in ((2.0, True), (3.0, False)):
        theory = xr.Dataset({net.CENTROID: ("scheme", [1.0, level])}, {"scheme": [NONE, RANDOM]})
        assert claim.judge({"a": data, "theory": theory}).holds is holds


def test_the_ends_are_compared_with_the_best_of_the_steps_between():
    steps = list(figure_3_4.STEPS.value)
    for values, signs in (([9, 2, 1, 3], [1, 1]), ([9, 2, 1, 0.5], [1, -1])):
        data = flat_study([values], scheme=[RANDOM], step_size=steps)
        result = figure_3_4.extremes({"a": data})
        assert list(result) == ["step 0.1 above 1", "step 5 above 1"]
        assert [np.sign(e.value) for e in result.values()] == signs


def test_both_ends_are_judged_by_the_worse_one():
    names = ["λ 0.01 to 0.08, noise 0.1", "λ 0.01 to 0.08, noise 5"]
    level = xr.Dataset(
        {net.CENTROID: (("scheme", "step_size", "data"), [[[9, 9], [2, 2], [1, 1], [0.5, 3]]])},
        {"scheme": [RANDOM], "step_size": list(figure_3_4.STEPS.value), "data": names},
    )
    result = figure_3_4.all_extremes({"open": level})
    assert list(result) == [f"{name}: step 5" for name in names]
    assert [e.value for e in result.values()] == pytest.approx([-3.01, 4.77], abs=0.01)
    assert list(figure_3_4.loud({"open": level})) == [f"{names[1]}: step 5"]
    note = net.parts_that_hold(figure_3_4.all_extremes, (0, np.inf), "So it is.")({"open": level})
    assert note == f"It holds in 1 of 2 settings ({names[1]}: step 5). So it is."


def test_a_rate_is_the_time_in_which_a_distance_halves():
    distance = 0.5 ** (np.arange(9) / np.array([2, 4])[:, None])  # halved after 2 and 4 rounds
    distances = np.stack([distance, distance], axis=-1)
    assert figure_3_4.arrived(distances).tolist() == [3, 5]
    assert figure_3_4.arrived(distances[::-1]).tolist() == [5, 3]


def test_breakdowns_end_above_their_start():
    data = flat_study([[0.1, 2.0], [0.1, 0.5]], scheme=[RANDOM, HOMOMORPHIC], variance=[0.1, 10.0])
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


def test_claims_report_the_slack_of_the_tighter_sentence():
    for none, random, homomorphic in ((1, 10, 1), (1, 4, 1), (1, 10, 2)):
        significant = 10 * np.log10(random / homomorphic) - 3
        close = 1 - 10 * np.log10(homomorphic / none)
        names = ["λ 0.1 to 0.5, noise 0.01", "λ 0.1 to 0.5, noise 0.1"]
        levels = [[[level, level]] for level in (none, random, homomorphic)]
        axes = {"scheme": [NONE, RANDOM, HOMOMORPHIC], "batch": ["10"], "data": names}
        studies = {"open": xr.Dataset({net.CENTROID: ([*axes], np.array(levels, float))}, axes)}
        for case, result in figure_4_4.both(studies).items():
            assert result.value == pytest.approx(min(significant, close)), case
        (over,) = {e.value for e in figure_4_4.random_above(studies).values()}
        assert over == pytest.approx(significant + 3)
        assert list(figure_4_4.both_of_batches(studies)) == [f"B = 10, {names[0]}"]


def test_single_models_are_compared_for_any_draws_and_storage():
    levels = xr.Dataset(
        {net.INDIVIDUAL: (("scheme", "edge"), [[1.0, 1.0], [4.0, 4.0], [2.0, 2.0]])},
        {"scheme": [RANDOM, OWN, HOMOMORPHIC], "edge": [1.0, 0.1]},
    )
    result = net.open_parts("parts", "edge", {"little": 1.0, "much": 0.1})({"parts": levels})
    assert [round(e.value, 1) for e in result.values()] == [-3.0, 3.0, -3.0, 3.0]
    assert list(result) == [
        f"{share}, {source}"
        for share in ("little", "much")
        for source in ("messages alone", "own part too")
    ]


def test_converged_curves_have_learned_and_stand_still():
    error = np.full((2, 60), 30.0) + np.arange(2)[:, None]
    rounds = np.arange(5, 301, 5)
    study = xr.Dataset(
        {clicks.ERROR.name: (("scheme", "seed", "round"), error[None])},
        {"scheme": [RANDOM], "round": rounds},
    ).assign(diverged=("seed", [0, 0]))
    (still,) = figure_3_5.settled({"a": study}).values()
    assert (still.low, still.high) == (0, 0)
    falling = study.copy(deep=True)
    falling[clicks.ERROR.name][..., -15:] -= 4.0
    (moving,) = figure_3_5.settled({"a": falling}).values()
    assert moving.value == pytest.approx(-4)
    levels = study.isel(round=-1, drop=True).expand_dims(variance=[0.6]).assign_attrs(constant=45.0)
    assert figure_3_5.learned({"levels": levels})["variance 0.6"].value == pytest.approx(14.5)


# Settings that the source leaves open, by loops -------------------------------------------------


def loop_of_peers(problem, weights, variance, scheme, batch, rounds, runs=12):
    """ATC in NumPy: the centroid's and the models' deviations under four schemes of noise."""
    rng = np.random.default_rng(0)
    x = np.asarray(problem.features)
    y = np.asarray(problem.targets)
    clients, count, dim = x.shape
    far = weights * ~np.eye(clients, dtype=bool)
    rho = ch4.RHO.value
    optimum = np.linalg.solve(
        np.einsum("knd,kne->de", x, x) / (clients * count) + rho * np.eye(dim),
        np.einsum("knd,kn->d", x, y) / (clients * count),
    )
    w = np.zeros((runs, clients, dim))
    everyone = np.arange(clients)[:, None]
    total = []
    for n in range(rounds):
        rows = rng.integers(count, size=(runs, clients, batch))
        u = x[everyone, rows]
        d = y[everyone, rows]
        off = np.einsum("rkbd,rkd->rkb", u, w) - d
        psi = w - ch4.STEP.value * (2 * np.einsum("rkb,rkbd->rkd", off, u) / batch + 2 * rho * w)
        drawn = rng.laplace(scale=(variance / 2) ** 0.5, size=(runs, clients, clients, dim))
        w = np.einsum("kl,rld->rkd", weights, psi)
        if scheme == HOMOMORPHIC:
            shared_noise = drawn[:, 0]
            w += np.einsum("kl,rld->rkd", weights, shared_noise) - shared_noise
        else:
            w += np.einsum("kl,rkld->rkd", weights if scheme == OWN else far, drawn)
        if n >= rounds // 2:
            centroid = ((w.mean(axis=1) - optimum) ** 2).sum(axis=-1).mean()
            total.append([centroid, ((w - optimum) ** 2).sum(axis=-1).mean()])
    return np.mean(total, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "edge"), [(RANDOM, 1.0), (OWN, 0.1), (HOMOMORPHIC, 0.1)])
def test_open_settings_of_chapter_4_equal_a_loop(scheme, edge):
    """Ten samples a step, louder responses, lighter edges, draws for the own part."""
    data = ch4.problem((0.1, 0.5), 0.01)
    (_, graph) = ch4.world()
    graph = net.weighted(graph, edge)
    degree = np.asarray(graph.degree)
    joined = np.asarray(graph.dense())
    weights = joined / (1 + np.maximum(degree[:, None], degree[None]))
    weights += np.diag(1 - weights.sum(axis=1))
    np.testing.assert_allclose(weights, graph.mixing("metropolis").matrix(), atol=1e-6)
    assert (np.diag(weights) > 0.5).all() or edge == 1
    simulation = fl.Simulation(
        data,
        ch4.strategy("ATC", batch=10),
        graph,
        noise=replace(net.SCHEMES[scheme], variance=0.01),
    )
    state = multiagent.steady_state(simulation)
    loop = loop_of_peers(data, weights, 0.01, scheme, 10, 600)
    expected = np.asarray([state.centroid, state.individual])
    assert abs(10 * np.log10(loop / expected)).max() < 0.6


def loop_of_servers(problem, servers, step, variance, rounds, runs=6):
    """Graph federated averaging in NumPy, with a draw on every edge: the centroid's deviation."""
    rng = np.random.default_rng(0)
    x = np.asarray(problem.features)
    y = np.asarray(problem.targets)
    x, y = (a.reshape(ch3.SERVERS.value, ch3.CLIENTS.value, *a.shape[1:]) for a in (x, y))
    rho = ch3.RHO.value
    dim = x.shape[-1]
    count = x[..., 0].size
    optimum = np.linalg.solve(
        np.einsum("pknd,pkne->de", x, x) / count + rho * np.eye(dim),
        np.einsum("pknd,pkn->d", x, y) / count,
    )
    many, sizes = (np.reshape(a, x.shape[:2]) for a in (ch3.STEPS_OF, ch3.BATCHES_OF))
    weights = np.asarray(servers.graph.mixing("metropolis").matrix())
    far = weights * ~np.eye(len(weights), dtype=bool)
    servers_axis = np.arange(len(weights))[:, None]
    w = np.zeros((runs, len(weights), dim))
    total = []
    for n in range(rounds):
        chosen = rng.permuted(np.tile(np.arange(x.shape[1]), (runs, len(weights), 1)), axis=-1)
        chosen = chosen[..., : ch3.CHOSEN.value]
        steps = many[servers_axis, chosen]
        batch = sizes[servers_axis, chosen]
        models = np.repeat(w[:, :, None], chosen.shape[-1], axis=2)
        for e in range(max(ch3.EPOCHS.value)):
            rows = rng.integers(x.shape[2], size=(*chosen.shape, max(ch3.BATCHES.value)))
            real = np.arange(rows.shape[-1]) < batch[..., None]
            u = x[servers_axis[..., None], chosen[..., None], rows]
            d = y[servers_axis[..., None], chosen[..., None], rows]
            off = real * (np.einsum("rplbd,rpld->rplb", u, models) - d)
            gradient = (
                2 * np.einsum("rplb,rplbd->rpld", off, u) / batch[..., None] + 2 * rho * models
            )
            models -= (step / steps * (e < steps))[..., None] * gradient
        drawn = rng.laplace(scale=(variance / 2) ** 0.5, size=(runs, *weights.shape, dim))
        w = np.einsum("kl,rld->rkd", weights, models.mean(axis=2))
        w += np.einsum("kl,rkld->rkd", far, drawn)
        if n >= rounds // 2:
            total.append(((w.mean(axis=1) - optimum) ** 2).sum(axis=-1).mean())
    return np.mean(total)


@pytest.mark.slow
def test_open_settings_of_chapter_3_equal_a_loop():
    """Loud responses and larger features at the largest step: beyond the best one."""
    data = ch3.problem((0.05, 0.12), 5.0)
    (_, servers) = ch3.world()
    noise = replace(net.SCHEMES[RANDOM], variance=0.1)
    simulation = fl.Simulation(data, ch3.algorithm(5.0), servers, noise=noise)
    expected = float(multiagent.steady_state(simulation).centroid)
    loop = loop_of_servers(data, servers, 5.0, 0.1, 80)
    assert abs(10 * np.log10(loop / expected)) < 0.8


@pytest.mark.slow
def test_hidden_local_noise_is_detected():
    studies = {"law": figure_4_theory.number_distribution(4), "agreed": figure_4_theory.agreed()}
    wrong, right = studies["law"]["variance"].mean("seed").values
    assert wrong == pytest.approx(4 / 0.01**2, rel=0.1)
    assert right == pytest.approx(1, rel=0.1)
    assert all(e.value <= 1 for e in figure_4_theory.cost(studies).values())
    assert studies["agreed"]["most"].sel(network="ring").values.tolist() == [6.0] * 30
    errors = np.full((3, 2, 2, 2), 0.5)
    errors[2, 1] = np.inf
    axes = ("scheme", "peer", "attacker", "knows")
    names = {"scheme": [RANDOM, HOMOMORPHIC, LOCAL], "attacker": ["eavesdropper", "one neighbor"]}
    share = xr.Dataset({"share": (axes, errors)}, {**names, "knows": ["the rest", "itself alone"]})
    for scheme, per_cent in ((RANDOM, 100), (LOCAL, 50)):
        result = figure_4_theory.finite(scheme)({"told": share})
        assert [e.value for e in result.values()] == [per_cent] * 2


@pytest.mark.slow
def test_local_noise_is_measured_against_the_noiseless_run(tiny):
    silent = tiny.sel(scheme=[NONE])
    data = measures.joined(silent, silent.assign_coords(scheme=[LOCAL]), axis="scheme")
    assert float(figure_4_4._mask_error(data)[figure_4_4.APART].max()) == 0
    moved = data.copy(deep=True)
    moved[net.MODELS].loc[{"scheme": LOCAL, "round": 7}] += 0.1
    assert float(figure_4_4._mask_error(moved)[figure_4_4.APART].max()) > 0.01


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
    problem = fl.problems.Problem(
        np.ones((2, 3, 1)), np.ones((2, 3)), fl.problems.Logistic(), test=test
    )
    for models, error in (([[3.0], [-1.0]], 25.0), ([[1.0], [-3.0]], 75.0)):
        now = Snapshot(problem, None, jnp.array(models), None)
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
