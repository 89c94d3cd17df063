"""Chapter 5's regression figures: a quick run, and claims that notice broken data."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import picture, records
from experiments.__main__ import main
from experiments.figure import REGISTRY, Effort
from experiments.gauthier import chapter5 as ch5
from experiments.gauthier import figure_5_1, figure_5_2, figure_5_3
from experiments.gauthier import figure_5_theory as figure_theory
from experiments.measures import first_rounds, last
from fljax.algorithms import PGFL, GraphFedAvg
from fljax.theory import pgfl as theory

SEEDS = 5
ROUNDS = np.arange(2, 301, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
def test_a_figure_end_to_end(tmp_path, capsys):
    assert main(["run", "gauthier-5.3", "--quick", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert "privacy" in capsys.readouterr().out
    assert main(["check", "gauthier-5.3", "--out", str(tmp_path)]) == 0
    figure = REGISTRY["gauthier-5.3"]
    study = records.read_studies(figure, tmp_path)["a"]
    final = study[ch5.METRIC].isel(round=-1)
    assert (final < 0.3).all()
    assert (study["gradient_norm"] > ch5.BOUND.value).all()
    spent = study["privacy_rho"].isel(round=-1).values
    assert ((spent > 0.3) & (spent < 1.0)).all()  # 1.92 if a client were drawn in every round
    assert (study["connected"]).all()


def study_falling_to(**levels):
    """A study in which each method's NMSD falls from 1 to its level within 100 rounds."""
    fall = np.minimum(ROUNDS / 100, 1)
    noise = np.exp(0.02 * np.random.default_rng(0).normal(size=(SEEDS, len(ROUNDS))))
    data = np.stack([1 + (level - 1) * fall for level in levels.values()])[:, None] * noise
    bits = np.multiply.outer(np.arange(1.0, 1 + len(levels)), np.tile(ROUNDS, (SEEDS, 1)))
    return xr.Dataset(
        {
            ch5.METRIC: (("algorithm", "seed", "round"), data, {"decibel": 1}),
            "bits_up": (("algorithm", "seed", "round"), bits),
            "privacy_rho": (("algorithm", "seed", "round"), bits),
            "diverged": (("algorithm", "seed"), np.zeros((len(levels), SEEDS), int)),
        },
        coords={"algorithm": list(levels), "round": ROUNDS},
    )


def test_gaps_are_paired_and_of_the_last_iteration():
    studies = {"a": study_falling_to(x=0.1, y=0.01), "b": study_falling_to(x=0.2, y=0.01)}
    result = ch5.gaps((("a", "x"), ("a", "y")), (("b", "x"), ("a", "x")))(studies)
    assert list(result) == ["x (a) above y (a)", "x (b) above x (a)"]
    assert [round(e.value, 6) for e in result.values()] == [10, round(10 * np.log10(2), 6)]
    assert all(abs(e.high - e.low) < 1e-9 for e in result.values())  # the common noise cancels
    earlier = {"a": studies["a"].copy(deep=True)}
    earlier["a"][ch5.METRIC].loc[{"algorithm": "x", "round": slice(None, 298)}] *= 100
    assert abs(ch5.gaps((("a", "x"), ("a", "y")))(earlier)["x (a) above y (a)"].value - 10) < 1e-9


@pytest.mark.parametrize(
    ("when", "last"),
    [(ch5.early, 30), (figure_5_1.third, 100), (first_rounds(figure_5_3.FIRST.value), 10)],
)
def test_early_gaps_look_at_the_early_iterations_only(when, last):
    pair = (("a", "x"), ("a", "y"))
    data = study_falling_to(x=0.1, y=0.01)
    later = data.copy(deep=True)
    inside = data.copy(deep=True)
    later[ch5.METRIC].loc[{"round": slice(last + 1, None)}] = 7.0
    inside[ch5.METRIC].loc[{"algorithm": "x", "round": last}] *= 2
    first, second, third = (
        next(iter(ch5.gaps(pair, when=when)({"a": d}).values())).value
        for d in (data, later, inside)
    )
    assert first == second > 0
    assert third > first


def test_neighbors_go_along_the_grid():
    values = xr.Dataset(
        {ch5.METRIC: (("tau", "seed"), np.array([[1.0] * 3, [2.0] * 3, [8.0] * 3]))},
        coords={"tau": [0.0, 0.5, 1.0]},
    )
    rising = ch5.neighbors("p", "tau", rising=True)({"p": values})
    falling = ch5.neighbors("p", "tau", rising=False)({"p": values})
    assert [round(e.value, 2) for e in rising.values()] == [3.01, 6.02]
    assert [round(e.value, 2) for e in falling.values()] == [-3.01, -6.02]


def test_load_and_budget_are_measured():
    names = list(figure_5_1.ALL)
    studies = {
        "a": study_falling_to(
            other=1.0, **dict.fromkeys(names, 1.0)
        ),  # which has sent before all others
        "b": study_falling_to(**dict.fromkeys(names, 1.0)),
        "c": study_falling_to(**dict.fromkeys(names, 1.0)),
    }
    saved = [estimate.value for estimate in figure_5_1.load(studies).values()]
    np.testing.assert_allclose(saved, [50, 100 / 3, 25, 20, 100 / 6])
    spent = list(figure_5_1.spent(studies).values())
    assert spent[0].value == pytest.approx(1.9197, abs=1e-4)
    assert spent[1].value == 300
    decaying = figure_5_1.spent_if_budget_decays(studies)
    assert next(iter(decaying.values())).value == pytest.approx(0.0951, abs=1e-4)


def test_tuning_matches_the_early_curve():
    target = 0.99**ROUNDS
    near = target * 1.1
    far = np.where(ROUNDS > 40, target, 5.0)
    tuning = xr.Dataset(
        {"target": ("round", target), "curve": (("candidate", "round"), [far, near])},
        coords={"round": ROUNDS, "value": ("candidate", [1.0, 2.0])},
    )
    assert ch5.chosen(tuning) == 2.0
    rows = ch5.tuning_table({"tuning-b": tuning, "a": tuning})
    assert [row["chosen"] for row in rows] == [False, True]
    assert rows[1]["score"] == pytest.approx(10 * np.log10(1.1))


def snapshot(server):
    """Four clients of two servers and two clusters, of whom two took part."""
    truth = np.array([[1.0, 0.0], [0.0, 2.0]])
    return SimpleNamespace(
        state=ch5.WithParticipants(
            jnp.zeros((4, 2)), SimpleNamespace(server=server), jnp.arange(4) % 3 == 0
        ),
        network=SimpleNamespace(server=(0, 0, 1, 1)),
        problem=SimpleNamespace(
            tasks=SimpleNamespace(cluster=jnp.array([0, 1, 0, 1]), truth=truth)
        ),
        model=jnp.array([[1.0, 1.0], [0.0, 0.0], [9.0, 9.0], [0.0, 4.0]]),
    )


def test_server_metrics_judge_their_own_models():
    server = jnp.arange(8.0).reshape(2, 2, 2)  # [servers, clusters, parameters]
    now = snapshot(server)
    # Clients 0 and 3 took part: |(1, 1) - (1, 0)|^2 / 1 and |(0, 4) - (0, 2)|^2 / 4.
    assert ch5.PARTICIPANTS.measure(now) == 1
    # Their servers hold (0, 1) and (6, 7) for their clusters; the other entries are (2, 3), (4, 5).
    ratios = [1 + 1, (4 + 1) / 4, 9 + 25, (36 + 25) / 4]
    assert ch5.OF_SERVERS.measure(now) == pytest.approx(np.mean(ratios))
    assert ch5.THEIR_SERVERS.measure(now) == pytest.approx((ratios[0] + ratios[3]) / 2)
    for universal in (server[:, :1], server[:, 0]):  # GFL by ADMM, and by gradient steps
        error = ch5.THEIR_SERVERS.measure(snapshot(universal))
        assert error == pytest.approx(((1 + 1) + (16 + 9) / 4) / 2)


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("kind", [PGFL(1.0, 0.4, 2), GraphFedAvg(0.1, 1, 2)])
def test_a_watched_algorithm_is_unchanged_and_records_participants(kind):
    network = fl.federation.balanced(4, fl.graphs.path(2))
    cluster = np.arange(8) % 2
    key = jax.random.key(0)
    problem = fl.problems.clustered_ridge(key, cluster, 2, (3, 3), 2, 0.15, 0.01)

    def after_a_round(watched):
        simulation = fl.Simulation(problem=problem, network=network, algorithm=watched)
        now = fl.view(simulation)
        watched_state = watched.step(watched.init(problem, network), now)
        plain = watched.inner.step(watched.inner.init(problem, network), now)
        return watched_state, plain, watched.released(watched_state, problem, network)

    watched_state, plain, released = after_a_round(ch5.RecordingParticipants(kind))
    np.testing.assert_array_equal(watched_state.model, plain.model)
    np.testing.assert_array_equal(released, kind.released(plain, problem, network))
    assert np.reshape(watched_state.here, (2, 4)).sum(axis=1).tolist() == [2, 2]
    if isinstance(kind, PGFL):  # whose clients have models of their own, from a start at zero
        np.testing.assert_array_equal(np.asarray(plain.model != 0).any(axis=1), watched_state.here)


def noise_sweep(*levels):
    """Two methods along two noise variances, of the given levels."""
    cut = np.reshape(levels, (2, 2))
    data = np.einsum("an,s->ans", cut, np.ones(3))[..., None] * np.ones(len(ROUNDS))
    return xr.Dataset(
        {ch5.METRIC: (("algorithm", "noise", "seed", "round"), data)},
        coords={"algorithm": ["x", "y"], "noise": [0.1, 3.0], "round": ROUNDS},
    )


def test_least_is_where_a_claim_is_worst_off():
    pair = ({"algorithm": "x"}, {"algorithm": "y"})
    result = ch5.least("n", pair)({"n": noise_sweep(2.0, 1.0, 1.0, 4.0)})
    assert list(result) == ["x, noise = 3 (n) above y, noise = 3 (n)"]
    assert next(iter(result.values())).value == pytest.approx(-10 * np.log10(4))
    other = ch5.least("n", pair)({"n": noise_sweep(1.0, 8.0, 4.0, 2.0)})
    assert list(other) == ["x, noise = 0.1 (n) above y, noise = 0.1 (n)"]


def test_the_extent_covers_both_ends():
    result = ch5.gaps((("a", "x"), ("a", "y")), (("a", "y"), ("a", "x")))
    assert ch5.extent(result({"a": study_falling_to(x=0.1, y=0.01)})) == "-10.00 to 10.00 dB"
    assert (
        ch5.extent(ch5.gaps((("a", "x"), ("a", "y")))({"a": study_falling_to(x=0.1, y=0.01)}))
        == "10.00 dB"
    )


def test_stored_variables_of_a_study():
    data = study_falling_to(x=0.1)
    data = data.assign(dict.fromkeys(list(ch5.MODELS)[1:], 2 * data[ch5.METRIC]))
    ends = figure_5_1.ends(data)
    assert ends["round"].values.tolist() == [*range(2, 31, 2), 300]
    assert set(ends.data_vars) == {*ch5.LIKE, "diverged"}
    thin = figure_5_1.thin(data)
    assert "round" in thin[ch5.METRIC].dims
    for metric in ch5.METRICS[1:]:
        assert thin[metric.name].dims == ("algorithm", "seed")
        np.testing.assert_array_equal(thin[metric.name], last(data)[metric.name])


def test_gains_of_mixing_are_reported_one_by_one():
    values = [0.0, *figure_5_2.WITHIN]
    levels = np.multiply.outer([8.0, 4.0, 2.0, 1.0], np.ones(3))
    studies = {"a": xr.Dataset({ch5.METRIC: (("tau", "seed"), levels)}, {"tau": values})}
    assert figure_5_2.gains(studies) == "3.01 dB at τ = 0.2, 6.02 dB at τ = 0.3, 9.03 dB at τ = 0.4"


def test_the_picture_of_a_difference():
    rng = np.random.default_rng(0)
    common = rng.uniform(1, 2, size=(20, 1))
    over = common * [[2.0, 4.0]]
    under = common * [[1.0, 1.0]]
    _, ax = plt.subplots()
    picture.difference(ax, np.arange(2), over, under)
    picture.difference(ax, np.arange(2), rng.uniform(1, 2, size=(20, 2)), under)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10 * np.log10([2, 4]))
    heights = [band.get_paths()[0].get_extents().height for band in ax.collections]
    assert heights[0] == pytest.approx(10 * np.log10(2))  # paired: the band is as thin as the line
    assert heights[1] > 0.5
    plt.close()


# Theory against runs ------------------------------------------------------------------------------


def test_distances_are_relative_and_means_over_cells():
    models = np.array([[[3.0, 0.0]], [[0.0, 1.0]]])  # two servers, one cluster
    target = figure_theory.over_cells(np.array([[1.0, 0.0]]))[:2]
    assert figure_theory.distance(models, target) == (4 + 2) / 2
    data = xr.DataArray(models[None], dims=("seed", "server", "cluster", "parameter"))
    np.testing.assert_allclose(figure_theory.relative(data, target[None]), [(4 + 2) / 2])


def decaying(factor, late=1.0):
    """A distance² that falls by a factor² a round, in the last third faster."""
    rounds = np.arange(2, figure_theory.RATED.value + 1, 2)
    third = 2 * figure_theory.RATED.value // 3
    fall = factor ** (2.0 * rounds) * late ** (2.0 * np.maximum(rounds - third, 0))
    curve = np.broadcast_to(fall, (2, SEEDS, len(rounds)))
    names = ("algorithm", "seed", "round")
    return xr.Dataset(
        {"distance": (names, curve), "rate": (names[:2], np.full((2, SEEDS), factor))},
        coords={"algorithm": list(figure_theory.MIXING), "round": rounds},
    )


def test_the_rate_is_read_off_the_distance():
    data = decaying(0.95)
    np.testing.assert_allclose(figure_theory.decay(data, ch5.PGFL_0, 2), 0.95)
    rates = figure_theory.rate_met({"curves": data})
    np.testing.assert_allclose([e.value for e in rates.values()], 1)
    assert figure_theory.straight({"curves": data})[ch5.PGFL_0].value == pytest.approx(1)
    bent = {"curves": decaying(0.95, late=0.95)}
    assert figure_theory.straight(bent)[ch5.PGFL_0].value == pytest.approx(2)
    assert figure_theory.rate_met(bent)[ch5.PGFL_0].value == pytest.approx(2)


def test_both_sides_of_theorem_two_are_those_of_the_theory():
    rng = np.random.default_rng(0)
    left = rng.uniform(size=(4, 3, 2, 2))  # draws, rounds, servers, clusters
    names = ("spread", "penalty", "seed", "round", "server", "cluster")
    studies = {
        "bounds": xr.Dataset(
            {"left": (names, left[None, None]), "eta": (("spread", "seed"), [[1.0, 2, 3, 4]])},
            coords={"spread": [0.5], "penalty": [3.0], "round": [1, 2, 3]},
        )
    }
    factor = theory.inter_cluster_bound(ch5.MIXED.value, 3, 2.5)
    ratios = left.mean(0).max(axis=(1, 2)) / factor
    assert figure_theory.ever(studies)["gamma on ±0.5, rho = 3"].value == pytest.approx(
        ratios.max()
    )
    assert figure_theory.at_last(studies)["gamma on ±0.5, rho = 3"].value == pytest.approx(
        ratios[-1]
    )


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "name",
    ["gauthier-5.1", "gauthier-5.2", "gauthier-5.3", "gauthier-5.4", "gauthier-5.theory"],
)
@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(name, stored):
    """Claims about an order are reversed when errors are turned upside down."""
    figure = REGISTRY[name]
    studies = stored(figure)
    mirrored = {
        key: study.assign({ch5.METRIC: 1 / study[ch5.METRIC]}) if ch5.METRIC in study else study
        for key, study in studies.items()
    }
    for claim in figure.claims:
        verdict = claim.judge(studies)
        assert all(np.isfinite(e.value) for e in verdict.cases.values())
        of_order = np.inf in claim.accept and 0 in claim.accept
        if of_order and verdict.holds:
            assert not claim.judge(mirrored).holds


@pytest.mark.slow
def test_the_predicted_level_is_where_runs_end():
    method = {ch5.PGFL_0: ch5.pgfl(0.0, scheduled=False)}
    runs = ch5.study("levels", method, Effort(progress=False), range(1, 2), private=False)
    end = float(last(runs)[ch5.METRIC].squeeze())
    assert figure_5_1.at_rest(1, 0.0) == pytest.approx(end, rel=1e-6)
