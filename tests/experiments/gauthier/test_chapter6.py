"""Chapter 6's figures: the setting as drawn, and measures that notice broken data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import fljax as fl
from experiments import measures
from experiments.figure import INFINITE, Effort
from experiments.gauthier import chapter6 as ch6
from experiments.gauthier import figure_6_1 as fixed
from experiments.gauthier import figure_6_2 as learned
from experiments.gauthier import figure_6_3 as evolution
from fljax import statistics
from fljax.algorithms import NetworkedADMM
from fljax.metrics.definitions import Snapshot

SEEDS = 6
ROUNDS = np.arange(3, 301, 3)


def study_of_curves(metric=ch6.NMSD, **curves):
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
    build = jax.jit(ch6.scenario)
    _, algorithm = ch6.fixed(0.1)
    world = ch6.WORLDS[ch6.DRAWN]
    draws = [build(jax.random.key(seed), algorithm, world) for seed in range(30)]
    sizes = []
    variances = []
    ratios = []
    for simulation in draws:
        problem = simulation.problem
        tasks = simulation.problem.tasks
        validation = tasks.validation
        assert problem.features.shape == (30, 35, 60)
        assert int(simulation.network.edge_count()) == 90
        assert np.bincount(tasks.cluster).tolist() == [10, 10, 10]
        size = np.sum(np.asarray(problem.weights) > 0, axis=1)
        np.testing.assert_allclose(problem.weights.sum(1), 1)
        np.testing.assert_allclose(problem.share, 0.001)
        np.testing.assert_array_equal(problem.weights, validation.weights)
        assert float(jnp.abs(problem.features - validation.features).max()) > 1
        true_models = np.asarray(tasks.truth)[np.asarray(tasks.cluster)]
        residual = problem.targets - problem.predictions(jnp.asarray(true_models))
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
def test_the_variant_has_shorter_models_the_same_noise_and_no_singletons():
    build = jax.jit(ch6.scenario)
    _, algorithm = ch6.fixed(0.1)
    noises = []
    for seed in range(10):
        drawn, longer, variant = (
            build(jax.random.key(seed), algorithm, world)
            for world in (ch6.World(False), ch6.World(False, 240.0, 0.1), ch6.WORLDS[ch6.JOINED])
        )
        truth = np.asarray(drawn.problem.tasks.truth)
        np.testing.assert_allclose(longer.problem.tasks.truth, 2 * truth)
        np.testing.assert_allclose(longer.problem.share, 0.01)
        np.testing.assert_array_equal(drawn.network.dense(), longer.network.dense())
        np.testing.assert_array_equal(drawn.network.dense(), variant.network.dense())
        np.testing.assert_allclose(variant.problem.tasks.truth, truth / 3**0.5)
        assert not ch6.alone(variant.network, variant.problem.tasks.cluster).any()
        for simulation in (drawn, longer, variant):
            problem = simulation.problem
            tasks = simulation.problem.tasks
            true_models = jnp.asarray(tasks.truth)[tasks.cluster]
            for data in (problem, tasks.validation):
                noises.append(np.asarray(data.targets - data.predictions(true_models)))
    by_world = np.reshape(noises, (10, 3, 2, 30, 35))
    np.testing.assert_allclose(by_world[:, 0], by_world[:, 1], atol=1e-9)
    np.testing.assert_allclose(by_world[:, 0], by_world[:, 2], atol=1e-9)


@pytest.mark.slow
def test_clusters_are_redrawn_until_no_client_is_alone():
    @jax.jit
    @jax.vmap
    def lonely(key):
        k_graph, k_cluster = jax.random.split(key)
        network = fl.graphs.random_connected(k_graph, 30, 6)
        result = [ch6.clusters(k_cluster, network, joined) for joined in (False, True)]
        counts = [jnp.bincount(cluster, length=3) for cluster in result]
        return [ch6.alone(network, cluster).mean() for cluster in result], counts

    (drawn, joined), counts = lonely(jax.random.split(jax.random.key(0), 50))
    assert 0.08 < drawn.mean() < 0.16
    assert joined.max() == 0
    assert all((count == 10).all() for count in counts)


@pytest.mark.long
@pytest.mark.slow
def test_metrics_look_at_the_clients_they_name():
    world = ch6.WORLDS[ch6.DRAWN]
    simulation = ch6.scenario(jax.random.key(3), ch6.probe(), world)
    problem = simulation.problem
    network = simulation.network
    cluster = np.asarray(problem.tasks.cluster)
    sample_counts = np.sum(np.asarray(problem.weights) > 0, axis=1)
    state = simulation.algorithm.init(problem, network)
    state = state._replace(inter_cluster=jnp.asarray(sample_counts, float))
    model = jnp.asarray(np.random.default_rng(0).normal(size=(30, 60)))
    now = Snapshot(problem, network, model, None, None, state)
    result = [float(metric.measure(now)) for metric in ch6.PARAMETERS]
    assert result == [sample_counts.max(), np.sort(sample_counts)[15], sample_counts.min()]

    size = np.sum(np.asarray(problem.tasks.truth) ** 2, 1)
    middle = cluster == np.argsort(size)[1]
    places = [float(metric.measure(now)) for metric in ch6.PLACES]
    np.testing.assert_allclose(
        places, [sample_counts[middle].mean(), sample_counts[~middle].mean()]
    )

    same_cluster = np.asarray(network.dense()) * (cluster[:, None] == cluster)
    joined = same_cluster.sum(1) > 0
    assert 0 < joined.sum() < 30
    truth = np.asarray(problem.tasks.truth)[cluster]
    deviation = np.sum((np.asarray(model) - truth) ** 2, 1) / np.sum(truth**2, 1)
    assert float(ch6.AMONG_JOINED.measure(now)) == pytest.approx(deviation[joined].mean())
    assert float(ch6.ALONE.measure(now)) == pytest.approx(1 - joined.mean())
    parts = deviation[~joined].sum() / 30, sample_counts[~joined].sum() / 30
    assert float(ch6.ALONE_DEVIATION.measure(now)) == pytest.approx(parts[0])
    assert float(ch6.ALONE_PARAMETER.measure(now)) == pytest.approx(parts[1])

    scores = np.random.default_rng(1).integers(0, 9, size=30)  # with ties, as the samples have
    for values in (scores, sample_counts, -sample_counts):
        state = state._replace(inter_cluster=jnp.asarray(values, float))
        rank = float(ch6.BY_DATA.measure(now._replace(state=state)))
        assert rank == pytest.approx(stats.spearmanr(sample_counts, values).statistic)
    state = state._replace(inter_cluster=jnp.zeros(30))
    assert float(ch6.BY_DATA.measure(now._replace(state=state))) == 0
    fixed_state = ch6.fixed(0.1)[1].init(problem, network)
    assert np.isnan(ch6.ALONE_PARAMETER.measure(now._replace(state=fixed_state)))


def test_gaps_are_those_of_the_last_iterations():
    data = study_of_curves(a=0.1, b=0.01)
    result = ch6.gap(data, "a", "b")
    assert abs(result.value - 10) < 1e-9  # paired: the common noise cancels
    assert result.low <= result.value <= result.high
    changed = data.copy(deep=True)
    changed[ch6.NMSD].loc[{"algorithm": "a", "round": slice(None, 270)}] *= 100
    assert abs(ch6.gap(changed, "a", "b").value - 10) < 1e-9
    changed[ch6.NMSD].loc[{"algorithm": "a", "round": 273}] *= 100
    assert ch6.gap(changed, "a", "b").value > 11
    cases = ch6.gaps("x", ("a", "b"), metrics=[ch6.NMSD])({"x": data})
    assert list(cases) == ["a above b, NMSD"]


def test_early_measures_are_those_of_the_first_iterations():
    data = study_of_curves(a=0.1, b=0.01)
    changed = data.copy(deep=True)
    changed[ch6.NMSD].loc[{"algorithm": "a", "round": slice(31, None)}] = 7.0
    for measure in (ch6.early_gap, ch6.early_distance):
        assert abs(measure(changed, "a", "b").value - 10) < 1e-9
    assert abs(ch6.early_gap(data, "b", "a").value + 10) < 1e-9
    assert abs(ch6.early_distance(data, "b", "a").value - 10) < 1e-9


def test_roughness_measures_bends_not_trends():
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
    data = study_of_curves(**{ch6.SAC: 1.0, ch6.DPG: 1.0})
    values = data[ch6.NMSD].transpose("algorithm", "seed", "round")
    values[0] = np.exp(0.1 * rng.normal(size=values[0].shape))
    values[1] = 100 * values[0] ** 0.1
    values[1, :, :50] = rng.uniform(1, 100, size=(SEEDS, 50))
    result = learned.randomness("a", (ch6.SAC, ch6.DPG))({"a": data})
    assert abs(result[f"{ch6.SAC} over {ch6.DPG}"].value - 20) < 1e-9


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


def test_trajectories_of_clients_are_compared_separately():
    data = study_of_curves(**{ch6.SAC: 1.0, ch6.DPG: 1.0})
    for metric, name in ((ch6.LITTLE, "rise"), (ch6.MODERATE, "bump"), (ch6.MUCH, "fall")):
        data[metric] = study_of_curves(metric, **{ch6.SAC: TAU[name], ch6.DPG: 0.05})[metric]
    result = evolution.differences(evolution.BY_NEED, ch6.SAC)({"a": data})
    first, second = (estimate.value for estimate in result.values())
    assert first > 0.15
    assert 0 < second < 0.02
    quicker = evolution.quicker(ch6.SAC, ch6.DPG)({"a": data})
    assert [e.value > 0.02 for e in quicker.values()] == [True] * 3
    backwards = evolution.quicker(ch6.DPG, ch6.SAC)({"a": data})
    assert [e.value < -0.02 for e in backwards.values()] == [True] * 3
    for faster, slower, share in ((ch6.SAC, ch6.DPG, 100), (ch6.DPG, ch6.SAC, 0)):
        mostly = evolution.mostly_quicker(faster, slower)({"a": data})
        assert [e.value for e in mostly.values()] == [share] * 3


def test_most_runs_is_a_share_of_runs():
    """Of six runs two rise and stay, three fall after a bump, and one falls immediately."""
    data = study_of_curves(ch6.LITTLE, **{ch6.SAC: 1.0})
    kinds = ("rise", "rise", "bump", "bump", "bump", "fall")
    data[ch6.LITTLE].values[0] = np.stack([TAU[kind] for kind in kinds])
    for what, share in (
        (evolution.falls, 400 / 6),
        (evolution.ends_at_zero, 400 / 6),
    ):
        result = evolution.most(ch6.LITTLE, what, ch6.SAC)({"a": data})[ch6.SAC]
        assert result.value == pytest.approx(share)
        assert result.unit == "%"
        assert result.low < share < result.high


def test_rougher_runs_are_counted():
    rng = np.random.default_rng(3)
    data = study_of_curves(**{ch6.SAC: 1.0, ch6.DPG: 1.0})
    for metric in evolution.NAMES:
        data[metric] = data[ch6.NMSD].copy(data=rng.normal(size=data[ch6.NMSD].shape))
        data[metric][0, :4] *= 100  # SAC's first four runs
        data[metric][0, 4:] /= 100
    result = evolution.mostly_rougher(ch6.SAC, ch6.DPG)({"a": data})
    assert [round(e.value, 6) for e in result.values()] == [round(400 / 6, 6)] * 3
    in_decibels = evolution.rougher(ch6.SAC, ch6.DPG)({"a": data})
    assert all(30 < e.value < 45 for e in in_decibels.values())


def test_products_are_counted_as_often_as_a_loop_runs():
    def program(x, times):
        y = x @ jnp.ones((4, 5))  # 3 by 4 by 5
        return jax.lax.fori_loop(0, times, lambda _, z: z @ jnp.ones((5, 5)), y)

    for times in (1, 6):
        traced = jax.make_jaxpr(lambda x, times=times: program(x, times))(jnp.ones((3, 4)))
        assert learned._in_products(traced.jaxpr) == 60 + 75 * times


def test_the_cost_of_epochs_is_compared_with_the_rest():
    def judged(*counts):
        cost = xr.Dataset(
            {"multiplications": (("policy", "epochs"), np.array([counts]))},
            coords={"policy": ["SAC"], "epochs": list(learned.EPOCHS.value)},
        )
        return [e.value for e in learned.cost_of_epochs({"cost": cost}).values()]

    assert judged(110, 120, 130, 140) == [1, 1, 1, 1]
    assert judged(110, 120, 140, 150) == [1, 1, 4 / 3, 5 / 4]


def test_the_map_is_of_gains_over_the_fixed_parameter():
    """SAC gains 10 dB, but 3 in the cell (0.1, 20); DPG loses where not all are joined."""
    axes = {"joined": [0, 1], "strength": [0.01, 0.1], "size": [6.0, 20.0, 60.0]}
    names = [learned.FIXED, ch6.SAC, ch6.DPG]
    sizes = (len(names), *map(len, axes.values()), SEEDS)
    values = np.exp(0.1 * np.random.default_rng(0).normal(size=(1, *sizes[1:]))) * np.ones(sizes)
    values[1] /= 10
    values[1, 1, 1, 1] *= 10**0.7
    values[2, 0] *= 10**0.5
    dims = ("algorithm", *axes, "seed")
    data = xr.Dataset(
        {ch6.NMSD: (dims, values), "diverged": (dims, np.zeros(sizes, int))},
        coords=axes | {"algorithm": names},
    )
    result = learned.gain_map({"map": data}, ch6.SAC, 1)
    np.testing.assert_allclose(result, [[10, 10, 10], [10, 3, 10]])
    np.testing.assert_allclose(learned.gain_map({"map": data}, ch6.DPG, 0), -5)
    (least,) = learned.least_gain(ch6.SAC)({"map": data}).values()
    np.testing.assert_allclose([least.value, least.low, least.high], 3)
    (above,) = learned.least_gain(ch6.DPG, 0, 0.1)({"map": data}).values()
    np.testing.assert_allclose([above.value, above.low, above.high], -5)
    (none,) = learned.least_gain(ch6.SAC, 1, 0.05)({"map": data.sel(size=[6.0, 60.0])}).values()
    np.testing.assert_allclose(none.value, 10)
    assert "3.00 dB, at λ = 0.1 and |w_0|² = 20" in learned.worst_cell({"map": data}, ch6.SAC)

    flat = data.stack(world=list(axes)).drop_vars(["world", *axes])
    flat = flat.assign_coords(world=[f"{i}" for i in range(flat.sizes["world"])])
    again = learned._unfolded(flat, "world", axes)
    xr.testing.assert_allclose(again.transpose(*data.dims), data)


def test_the_sawtooth_is_between_even_and_odd_iterations():
    data = study_of_curves(flat=0.1, saw=0.1 * 10 ** (0.05 * (-1.0) ** np.arange(len(ROUNDS))))
    assert learned.sawtooth(data, "flat", ch6.NMSD) < 0.1
    assert abs(learned.sawtooth(data, "saw", ch6.NMSD) - 1) < 0.1


def test_notes_are_of_the_clients_alone_in_their_cluster():
    names = [learned.FIXED, *learned.LEARNED]
    data, capped = (
        study_of_curves(**dict.fromkeys(names, 0.1)).assign(
            {m: study_of_curves(m, **dict.fromkeys(names, v))[m]}
        )
        for m, v in ((ch6.ALONE.name, 0.25), (ch6.ALONE.name, 0.25))
    )
    for metric, value in (
        (ch6.ALONE_DEVIATION.name, 0.05),
        (ch6.ALONE_PARAMETER.name, 0.1),
        (ch6.AMONG_JOINED.name, 0.1),
    ):
        data[metric] = study_of_curves(metric, **dict.fromkeys(names, value))[metric]
    capped = data.isel(algorithm=[0, 1]).assign_coords(algorithm=learned.CAPPED)
    text = learned.lonely({"a": data, "c": capped})
    assert text.startswith("The 25 % of clients")
    assert "0.200 at τ = 0.05" in text
    assert "0.40 under SAC" in text


def test_the_median_run_is_not_moved_by_a_few():
    data = np.full((9, 100), 0.1)
    data[:4] = 50.0
    result = measures.of_median(lambda curves: curves[:, -1], data, unit="")
    assert result.value == 0.1
    assert result.low == 0.1
    data[:, -1] = np.arange(9)
    wide = measures.of_median(lambda curves: curves[:, -1], data, unit="")
    assert wide.low < wide.value == 4 < wide.high
    data[8] = np.nan  # diverged: the median of the others
    assert measures.of_median(lambda curves: curves[:, -1], data).value == 3.5
    assert np.isnan(measures.of_median(lambda curves: curves[:, -1], data[:1]).low)


def test_the_band_of_a_gap_is_that_of_the_comparison_of_one_round():
    rng = np.random.default_rng(0)
    over, under = rng.gamma(4, size=(2, 12, 5)) * np.array([10, 1])[:, None, None]
    middle, low, high = measures.gap_band(over, under)
    data = xr.Dataset(
        {"error": (("algorithm", "seed"), np.stack([over, under])[:, :, 2], {"decibel": 1})},
        coords={"algorithm": ["over", "under"]},
    )
    result = statistics.paired_differences(data, "error", baseline="under").sel(algorithm="over")
    expected = [float(result[name]) for name in ("difference", "low", "high")]
    np.testing.assert_allclose([middle[2], low[2], high[2]], expected)


def test_claims_of_single_clients_are_separate_for_policies_and_worlds():
    drawn = study_of_curves(**{ch6.SAC: 1.0, ch6.DPG: 1.0})
    variant = drawn.copy()
    for data, kinds in ((drawn, ("bump", "rise")), (variant, ("fall", "bump"))):
        curves = {name: TAU[kind] for name, kind in zip((ch6.SAC, ch6.DPG), kinds, strict=True)}
        data[ch6.LITTLE] = study_of_curves(ch6.LITTLE, **curves)[ch6.LITTLE]
    claims = evolution.of_each(
        *("falls", "it falls", ch6.LITTLE, evolution.decline, (0.25, INFINITE), ""),
        single=evolution.falls,
    )
    verdicts = {c.name: c.judge({"a": drawn, "joined": variant}) for c in claims}
    assert {name: verdict.holds for name, verdict in verdicts.items()} == {
        "falls-in-the-median-sac": True,
        "falls-in-the-median-sac-if-joined": True,
        "falls-in-most-runs-sac-if-joined": True,
        "falls-in-the-median-dpg": False,
        "falls-in-the-median-dpg-if-joined": True,
        "falls-in-most-runs-dpg-if-joined": True,
    }
    assert "0.199, 0.199, 0.199 at the end" in verdicts["falls-in-the-median-dpg"].note
    assert all(claim.condition for claim in claims)


def test_ranks_and_jumps_are_of_the_runs():
    data = study_of_curves(**{ch6.SAC: 1.0, ch6.DPG: 1.0})
    data[ch6.BY_DATA.name] = study_of_curves(**{ch6.SAC: -0.2, ch6.DPG: 0.1})[ch6.NMSD]
    ranks = evolution.by_rank("a")({"a": data})
    assert ranks[ch6.SAC].high < 0 < ranks[ch6.DPG].low
    for metric in evolution.NAMES:
        data[metric] = data[ch6.NMSD].copy(data=np.full(data[ch6.NMSD].shape, 0.04))
    assert evolution.jumps({"a": data}).startswith("No run")
    data[ch6.LITTLE][1, :2, 50:] = 0.9
    assert "In 0 to 2 of the 6 runs" in evolution.jumps({"a": data})
    assert "median of 0.040" in evolution.jumps({"a": data})


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("module", [fixed, learned, evolution])
def test_every_claim_can_be_judged_on_the_stored_results(module, stored):
    """Claims about an order are reversed when all curves are turned upside down."""
    figure = module.FIGURE
    studies = stored(figure)
    metrics = (ch6.NMSD, ch6.PRINTED, ch6.AMONG_JOINED.name)
    mirrored = {
        key: study.assign({m: 1 / study[m] for m in metrics if m in study})
        for key, study in studies.items()
    }
    order = {"probe-is-random", "batch-calms-probe"}
    order |= {f"{name}-if-joined" for name in order}
    for claim in figure.claims:
        verdict = claim.judge(studies)
        assert verdict.cases
        if module is not evolution and verdict.holds and claim.accept == (0, INFINITE):
            assert claim.name in order or not claim.judge(mirrored).holds


@pytest.mark.slow
def test_admm_ends_at_the_predicted_minimizers():
    methods = {fixed.NFL: NetworkedADMM(ch6.PENALTY.value)} | dict([ch6.fixed(0.0)])
    worlds = {ch6.JOINED: ch6.WORLDS[ch6.JOINED]}
    data = ch6.study("levels", methods, Effort(progress=False), worlds, 2)
    ends = data[ch6.NMSD].isel(round=-1).squeeze("world").transpose("seed", "algorithm").values
    levels = [fixed.at_rest(seed, worlds[ch6.JOINED]) for seed in range(2)]
    everybody, parts = np.transpose(levels)
    np.testing.assert_allclose(everybody, ends[:, 0], rtol=2e-3)
    np.testing.assert_allclose(parts, ends[:, 1], rtol=0.1)  # which few samples still approach


def test_the_median_run_is_reported_next_to_the_mean():
    claims = {claim.name: claim for claim in fixed.FIGURE.claims}
    name = "inter-cluster-learning-helps"
    studies = {"a": study_of_curves(**{fixed.ALONE: 0.1, fixed.LEAST: 0.05})}
    studies["a"][ch6.PRINTED] = studies["a"][ch6.NMSD]
    for metric in (ch6.NMSD, ch6.PRINTED):  # one run carries the mean
        studies["a"][metric].loc[{"algorithm": fixed.ALONE}] = 0.01
        studies["a"][metric][0, 0] = 1e3
    assert not claims[f"{name}-in-the-median"].judge(studies).holds
    (case, *_) = claims[name].judge(studies).cases.values()
    assert case.value > 0
    assert claims[f"{name}-in-the-median"].kind == "conditional"


def test_quantiles_of_the_ends_are_in_decibels():
    data = study_of_curves(**{fixed.ALONE: 0.1})
    (row,) = ch6.quantiles({"a": data})
    assert row["median, dB"] == pytest.approx(-10, abs=0.2)
    assert row["lower quartile, dB"] <= row["median, dB"] <= row["upper quartile, dB"]
