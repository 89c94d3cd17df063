"""Chapter 6's figures: the setting as drawn, and measures that notice broken data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments.figure import INFINITE
from experiments.gauthier import chapter6 as ch6
from experiments.gauthier import figure_6_1 as fixed
from experiments.gauthier import figure_6_2 as learned
from experiments.gauthier import figure_6_3 as evolution
from fljax.metrics import Snapshot

SEEDS, ROUNDS = 6, np.arange(3, 301, 3)


def made(metric=ch6.NMSD, **curves):
    """A study of these curves, with noise in common."""
    rng = np.random.default_rng(0)
    noise = np.exp(0.02 * rng.normal(size=(SEEDS, len(ROUNDS))))
    data = np.stack([np.broadcast_to(c, len(ROUNDS)) for c in curves.values()])[:, None] * noise
    return xr.Dataset(
        {
            metric: (("algorithm", "seed", "round"), data),
            "diverged": (("algorithm", "seed"), np.zeros((len(curves), SEEDS), int)),
        },
        coords={"algorithm": list(curves), "round": ROUNDS},
    )


@pytest.mark.slow
def test_the_scenario_is_the_setting():
    build = jax.jit(ch6.scenario((ch6.NMSD,)))
    _, algorithm = ch6.fixed(0.1)
    draws = [build(jax.random.key(seed), algorithm) for seed in range(30)]
    sizes, variances, ratios = [], [], []
    for simulation in draws:
        problem, tasks = simulation.problem, simulation.problem.tasks
        validation = tasks.validation
        assert problem.features.shape == (30, 35, 60)
        assert int(simulation.network.edge_count()) == 90
        assert np.bincount(tasks.cluster).tolist() == [10, 10, 10]
        size = np.sum(np.asarray(problem.weights) > 0, axis=1)
        np.testing.assert_allclose(problem.weights.sum(1), 1)
        np.testing.assert_allclose(problem.share, 0.001)
        np.testing.assert_array_equal(problem.weights, validation.weights)
        assert float(jnp.abs(problem.features - validation.features).max()) > 1
        own = np.asarray(tasks.truth)[np.asarray(tasks.cluster)]
        residual = problem.targets - problem.predictions(jnp.asarray(own))
        variances.append(np.sum(np.asarray(residual) ** 2, axis=1) / size)
        truth = np.asarray(tasks.truth)
        ratios.append(truth[:, 0] / truth[0, 0])
        np.testing.assert_allclose(truth / truth[0], ratios[-1][:, None] * np.ones(60))
        sizes.append(size)
    sizes = np.concatenate(sizes)
    assert (sizes.min(), sizes.max()) == (5, 35)
    assert abs(sizes.mean() - 20) < 1
    assert abs(np.mean(variances) - 0.275) < 0.02
    assert 0.5 / 1.5 < np.min(ratios) < 0.5
    assert 2 < np.max(ratios) < 1.5 / 0.5


@pytest.mark.slow
def test_metrics_look_at_the_clients_they_name():
    simulation = ch6.scenario((ch6.NMSD,))(jax.random.key(3), ch6.probe())
    problem, network = simulation.problem, simulation.network
    cluster = np.asarray(problem.tasks.cluster)
    held = np.sum(np.asarray(problem.weights) > 0, axis=1)
    state = simulation.algorithm.init(problem, network)
    state = state._replace(inter_cluster=jnp.asarray(held, float))
    model = jnp.asarray(np.random.default_rng(0).normal(size=(30, 60)))
    now = Snapshot(problem, network, model, None, None, state)
    found = [float(metric.measure(now)) for metric in ch6.PARAMETERS]
    assert found == [held.max(), np.sort(held)[15], held.min()]

    size = np.sum(np.asarray(problem.tasks.truth) ** 2, 1)
    middle = cluster == np.argsort(size)[1]
    places = [float(metric.measure(now)) for metric in ch6.PLACES]
    np.testing.assert_allclose(places, [held[middle].mean(), held[~middle].mean()])

    alike = np.asarray(network.dense()) * (cluster[:, None] == cluster)
    joined = alike.sum(1) > 0
    assert 0 < joined.sum() < 30
    truth = np.asarray(problem.tasks.truth)[cluster]
    deviation = np.sum((np.asarray(model) - truth) ** 2, 1) / np.sum(truth**2, 1)
    assert float(ch6.JOINED.measure(now)) == pytest.approx(deviation[joined].mean())


def test_gaps_are_those_of_the_last_iterations():
    data = made(a=0.1, b=0.01)
    found = ch6.gap(data, "a", "b")
    assert abs(found.value - 10) < 1e-9  # paired: the common noise cancels
    assert found.low <= found.value <= found.high
    changed = data.copy(deep=True)
    changed[ch6.NMSD].loc[{"algorithm": "a", "round": slice(None, 270)}] *= 100
    assert abs(ch6.gap(changed, "a", "b").value - 10) < 1e-9
    changed[ch6.NMSD].loc[{"algorithm": "a", "round": 273}] *= 100
    assert ch6.gap(changed, "a", "b").value > 11
    cases = ch6.gaps("x", ("a", "b"), metrics=[ch6.NMSD])({"x": data})
    assert list(cases) == ["a above b, NMSD"]


def test_early_measures_are_those_of_the_first_iterations():
    data = made(a=0.1, b=0.01)
    changed = data.copy(deep=True)
    changed[ch6.NMSD].loc[{"algorithm": "a", "round": slice(31, None)}] = 7.0
    for measure in (ch6.early_gap, ch6.early_distance):
        assert abs(measure(changed, "a", "b").value - 10) < 1e-9
    assert abs(ch6.early_gap(data, "b", "a").value + 10) < 1e-9
    assert abs(ch6.early_distance(data, "b", "a").value - 10) < 1e-9


def test_roughness_is_of_bends_not_of_slopes():
    time = np.arange(50.0)[None]
    assert ch6.roughness(3 * time + 1)[0] < 1e-20
    np.testing.assert_allclose(ch6.roughness(time**2), 4)
    wild = np.random.default_rng(1).normal(size=(4, 50))
    np.testing.assert_allclose(ch6.roughness(10 * wild), 100 * ch6.roughness(wild))
    curves = {"one": 10 * wild, "other": wild}
    assert abs(ch6.rougher(curves["one"], curves["other"]).value - 20) < 1e-9


def test_randomness_is_of_curves_in_decibels():
    """A common factor, a level, is none; the first half of the run does not count."""
    rng = np.random.default_rng(2)
    data = made(**{ch6.SAC: 1.0, ch6.DPG: 1.0})
    values = data[ch6.NMSD].transpose("algorithm", "seed", "round")
    values[0] = np.exp(0.1 * rng.normal(size=values[0].shape))
    values[1] = 100 * values[0] ** 0.1
    values[1, :, :50] = rng.uniform(1, 100, size=(SEEDS, 50))
    found = learned.randomness((ch6.SAC, ch6.DPG))({"a": data})
    assert abs(found[f"{ch6.SAC} over {ch6.DPG}"].value - 20) < 1e-9


TAU = {
    "rise": np.minimum(0.05 + 0.002 * ROUNDS, 0.2),
    "bump": np.interp(ROUNDS, [0, 30, 300], [0.05, 0.2, 0.0]),
    "fall": np.maximum(0.05 - 0.005 * ROUNDS, 0.0),
    "bend": 0.05 + 0.1 * (ROUNDS > 24),
}


def number(statistic, name):
    return float(statistic(TAU[name][None])[0])


def test_trajectories_are_read_where_they_should_be():
    assert number(evolution.early_change, "rise") == pytest.approx(0.06)
    assert number(evolution.early_change, "fall") == pytest.approx(-0.05)
    assert number(evolution.late_level, "rise") == pytest.approx(0.2)
    assert number(evolution.late_level, "bump") == pytest.approx(TAU["bump"][-10:].mean())
    assert number(evolution.decline, "rise") == pytest.approx(0)
    assert number(evolution.decline, "bump") > 0.9
    assert number(evolution.straightness, "rise") == pytest.approx(1)
    assert number(evolution.straightness, "bump") == pytest.approx(1)
    assert number(evolution.straightness, "bend") < 0.7


def test_trajectories_of_clients_are_told_apart():
    data = made(**{ch6.SAC: 1.0, ch6.DPG: 1.0})
    for metric, name in ((ch6.LITTLE, "rise"), (ch6.MODERATE, "bump"), (ch6.MUCH, "fall")):
        data[metric] = made(metric, **{ch6.SAC: TAU[name], ch6.DPG: 0.05})[metric]
    found = evolution.differences(evolution.BY_NEED, ch6.SAC)({"a": data})
    first, second = (estimate.value for estimate in found.values())
    assert first > 0.15
    assert 0 < second < 0.02
    quicker = evolution.quicker(ch6.SAC, ch6.DPG)({"a": data})
    assert [e.value > 0.02 for e in quicker.values()] == [True] * 3
    backwards = evolution.quicker(ch6.DPG, ch6.SAC)({"a": data})
    assert [e.value < -0.02 for e in backwards.values()] == [True] * 3
    for one, other, share in ((ch6.SAC, ch6.DPG, 100), (ch6.DPG, ch6.SAC, 0)):
        mostly = evolution.mostly_quicker(one, other)({"a": data})
        assert [e.value for e in mostly.values()] == [share] * 3
    drawn = evolution.by_client(data, ch6.SAC, ch6.DPG)
    assert drawn["client"].values.tolist()[:4] == [
        *("fewest samples, SAC", "median, SAC", "most samples, SAC", "fewest samples, DPG")
    ]
    np.testing.assert_allclose(drawn["tau"][0].mean("seed"), TAU["rise"], rtol=0.1)
    np.testing.assert_allclose(drawn["tau"][3].mean("seed"), 0.05, rtol=0.1)
    below = evolution.by_client(data, ch6.SAC, below=0.025)["share"]
    assert below[:, :, -1].values.tolist() == [[0] * SEEDS, [100] * SEEDS, [100] * SEEDS]


def test_most_runs_is_a_share_of_runs():
    """Of six, two rise and stay, three fall after a bump, one falls at once."""
    data = made(ch6.LITTLE, **{ch6.SAC: 1.0})
    kinds = ("rise", "rise", "bump", "bump", "bump", "fall")
    data[ch6.LITTLE].values[0] = np.stack([TAU[kind] for kind in kinds])
    for what, share in (
        (evolution.falls, 400 / 6),
        (evolution.ends_at_zero, 400 / 6),
    ):
        found = evolution.most(ch6.LITTLE, what, ch6.SAC)({"a": data})[ch6.SAC]
        assert found.value == pytest.approx(share)
        assert found.unit == "%"
        assert found.low < share < found.high


def test_rougher_runs_are_counted():
    rng = np.random.default_rng(3)
    data = made(**{ch6.SAC: 1.0, ch6.DPG: 1.0})
    for metric in evolution.NAMES:
        data[metric] = data[ch6.NMSD].copy(data=rng.normal(size=data[ch6.NMSD].shape))
        data[metric][0, :4] *= 100  # SAC's first four runs
        data[metric][0, 4:] /= 100
    found = evolution.mostly_rougher(ch6.SAC, ch6.DPG)({"a": data})
    assert [round(e.value, 6) for e in found.values()] == [round(400 / 6, 6)] * 3
    in_decibels = evolution.rougher(ch6.SAC, ch6.DPG)({"a": data})
    assert all(30 < e.value < 45 for e in in_decibels.values())


@pytest.mark.thin(1)
@pytest.mark.parametrize("module", [fixed, learned, evolution])
def test_every_claim_can_be_judged_on_the_stored_results(module, stored):
    """And those of order turn round when all curves are turned upside down."""
    figure = module.FIGURE
    studies = stored(figure)
    metrics = (ch6.NMSD, ch6.PRINTED, ch6.JOINED.name)
    mirrored = {
        key: study.assign({m: 1 / study[m] for m in metrics if m in study})
        for key, study in studies.items()
    }
    order = {"probe-is-random", "batch-calms-probe"}
    for claim in figure.claims:
        verdict = claim.judge(studies)
        assert verdict.cases
        if module is not evolution and verdict.holds and claim.accept == (0, INFINITE):
            assert claim.name in order or not claim.judge(mirrored).holds
