"""What each algorithm promises: a claim for every one, and how a promise is read from curves."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import commands, report
from experiments.figure import REGISTRY, Effort
from experiments.headlines import (
    figure_communication,
    figure_convex,
    figure_dissimilarity,
    figure_exact,
    figure_gossip,
    figure_hierarchy,
    figure_late,
    figure_mixtures,
    figure_networks,
    figure_newer,
    figure_peers,
    figure_personal,
    figure_private,
    figure_skew,
    figure_walks,
)
from experiments.headlines.common import (
    METRIC,
    chosen,
    fewer_errors,
    final,
    first_below,
    ranked,
    straightness,
    unlike,
)
from experiments.promises import BY_OTHERS, HEADLINES
from fljax._core.devices import configured
from fljax.algorithms import REGISTRY as ALGORITHMS
from fljax.privacy import accounting


def test_every_headline_is_of_an_algorithm_and_a_claim():
    assert HEADLINES.keys() <= ALGORITHMS.keys()
    assert len(commands.in_order()) == len(REGISTRY)  # all are declared
    for figure, claim in HEADLINES.values():
        assert claim in {c.name for c in REGISTRY[figure].claims}


def curves(decibels):
    """A study of one method whose seeds have this curve, dB, a round apart."""
    rounds = np.arange(1, len(decibels) + 1)
    values = np.tile(10 ** (np.asarray(decibels) / 10), (1, 5, 1))
    return xr.Dataset(
        {METRIC: (("algorithm", "seed", "round"), values), "diverged": 0},
        {"algorithm": ["method"], "round": rounds},
    ).assign(diverged=(("algorithm", "seed"), np.zeros((1, 5), int)))


def test_a_line_is_straight_and_a_slower_rate_is_not():
    rounds = np.arange(1, 4001)
    line = {"part": curves(40 - rounds / 10)}
    assert straightness("part", "method")(line)["method"].value == pytest.approx(1, abs=0.01)
    power = {"part": curves(-40 * np.log10(rounds))}  # of the rounds
    assert not straightness("part", "method")(power)["method"].high <= 1.5
    assert final("part", "method")(power)["method"].value == pytest.approx(-40 * np.log10(4000))


def minimizers(problem):
    rows = zip(problem.features, problem.targets, strict=True)
    return np.stack([np.linalg.lstsq(x, y)[0] for x, y in rows])


@pytest.mark.slow
def test_clients_differ_by_the_given_spread():
    with configured("jax_enable_x64", True):
        far = unlike(jax.random.key(0), 200, 30, 3, spread=2.0)
        solutions = np.stack(
            [np.linalg.lstsq(x, y)[0] for x, y in zip(far.features, far.targets, strict=True)]
        )
        assert solutions.std(axis=0) == pytest.approx(2.0, rel=0.2)
        same = unlike(jax.random.key(0), 200, 30, 3, spread=0.0, scales=jnp.array([1, 2, 4.0]))
        solutions = np.stack(
            [np.linalg.lstsq(x, y)[0] for x, y in zip(same.features, same.targets, strict=True)]
        )
        assert (solutions.std(axis=0) < 0.05).all()
        assert np.std(same.features, axis=(0, 1)) == pytest.approx([1, 2, 4], rel=0.05)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        *(figure_communication, figure_convex, figure_dissimilarity, figure_exact),
        figure_gossip,
        *(figure_hierarchy, figure_late, figure_mixtures, figure_networks, figure_newer),
        *(figure_peers, figure_personal, figure_walks),
        *(figure_private, figure_skew),
    ],
)
def test_quick_studies_are_drawn_and_judged(module):
    figure = module.FIGURE
    with configured("jax_enable_x64", figure.double):
        studies = figure.study(Effort(3, 2, quick=True))
        figure.plot(studies)
        verdicts = {claim.name: claim.judge(studies) for claim in figure.claims}
    assert verdicts.keys() == {claim.name for claim in figure.claims}


def test_the_page_of_promises_matches_the_results():
    figure, claim = HEADLINES["EXTRA"]
    declared = {c.name: c for c in REGISTRY[figure].claims}[claim]
    case = {"value": -290.0, "low": -291.0, "high": -289.0, "unit": "dB", "holds": True}
    record = dataclasses.asdict(declared) | {
        "cases": {"EXTRA": case},
        "holds": True,
        "decided": True,
    }
    page = report.headlines([{"name": figure, "claims": [record]}])
    assert "| EXTRA | EXTRA reaches the exact minimizer" in page
    assert "-290.00 dB [-291.00, -289.00]" in page
    assert "holds" in page


def test_the_page_of_promises_names_algorithms_without_a_headline(monkeypatch):
    monkeypatch.delitem(HEADLINES, "EXTRA")
    (line,) = [line for line in report.headlines([]).splitlines() if "Not judged yet" in line]
    names = line.removeprefix("Not judged yet: ").removesuffix(".").split(", ")
    assert names == sorted(ALGORITHMS.keys() - HEADLINES.keys(), key=str.lower)
    assert "EXTRA" in names


def test_a_level_is_interpolated_between_records():
    three = np.array([[0.0, -10, -20], [0, -1, -2], [-9, -10, -11]])
    result = first_below(three, -5, np.array([10, 20, 30]))
    np.testing.assert_allclose(result, [15, np.nan, 10])


# Tuned methods, servers that do not wait, peers --------------------------------------------------


def of_methods(metric, values, dims=("algorithm", "seed", "round"), **coords):
    """A study of these values without diverged runs."""
    shape = np.shape(values)
    names = [d for d in dims if d != "round"]
    fine = np.zeros(shape[: len(names)], int)
    return xr.Dataset({metric: (dims, values), "diverged": (names, fine)}, coords)


def test_errors_are_compared_in_points_at_the_end():
    rate = np.ones((2, 4, 10)) * np.array([0.3, 0.2])[:, None, None]
    rate[:, :, :5] = 0.9  # not read
    data = of_methods("error_rate", rate, algorithm=["one", "other"], round=np.arange(1, 11))
    result = fewer_errors("study", "one", "other", metric="error_rate", rounds=5)({"study": data})
    assert result["one above other"].value == pytest.approx(10)
    _, ax = plt.subplots()
    ranked(ax, data, "error_rate", 5)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["other", "one"]
    plt.close(ax.figure)


def test_chosen_numbers_are_in_the_tuning_of_a_figure():
    data = xr.Dataset(coords={"algorithm": ["a", "b"], "chosen": ("algorithm", ["step = 1", "x"])})
    rows = chosen("study")({"study": data})
    assert report.tuning_lines({"tuning": rows}) == ["a: step = 1", "b: x"]


def delayed(buffered, averaged):
    """A study where FedBuff reaches the target after ``buffered`` time units and FedAvg after
    ``averaged`` rounds.
    """
    low, high = 10 ** (figure_late.TARGET.value / 10) * np.array([0.5, 2])
    units = np.arange(1, 501)
    rounds = np.arange(1, 51)

    def part(name, numbers, at):
        curve = np.where(numbers >= at, low, high)
        return of_methods(METRIC, np.tile(curve, (1, 6, 1)), algorithm=[name], round=numbers)

    waits = part("FedAvg", rounds, averaged)
    times = ("seed", "round"), np.tile(20.0 * rounds, (6, 1))
    return {"late": part("FedBuff", units, buffered), "waits": waits.assign(time=times)}


@pytest.mark.parametrize(
    ("buffered", "averaged", "low", "high"),
    [(100, 15, 2.9, 3.1), (100, 999, 1e6, np.inf), (999, 15, 0, 1e-5)],
)
def test_time_is_until_the_target_and_a_round_lasts_as_its_slowest(buffered, averaged, low, high):
    (result,) = figure_late.sooner("FedAvg", "FedBuff")(delayed(buffered, averaged)).values()
    assert low < result.value < high


def test_a_touch_of_the_target_is_no_arrival():
    studies = delayed(100, 15)
    late = studies["late"][METRIC]
    touching = late.where(late["round"] != 20, late.min())
    studies["late"] = studies["late"].assign({METRIC: touching})
    (result,) = figure_late.sooner("FedAvg", "FedBuff")(studies).values()
    assert 2.9 < result.value < 3.1


def test_methods_that_never_arrive_are_not_compared():
    (result,) = figure_late.sooner("FedAvg", "FedBuff")(delayed(999, 999)).values()
    assert np.isnan(result.value)
    ends = figure_late.lasting(3, 400)
    assert (np.diff(ends) >= 1).all()
    assert np.diff(ends).mean() == pytest.approx(1 + 27.2, rel=0.1)  # of ten geometric numbers


def accelerated(faster):
    """A study where DIANA ends at -20 dB after 100 rounds, where CANITA is after ``faster``."""
    rounds = np.arange(1, 101)
    curves = 10 ** (-2 * np.array([rounds / 100, rounds / faster]))
    sent = np.tile(rounds, (2, 6, 1)) * np.array([1, 2])[:, None, None]
    values = np.tile(curves[:, None], (1, 6, 1))
    names = ["DIANA", "CANITA"]
    data = of_methods(figure_convex.EXCESS.name, values, algorithm=names, round=rounds)
    return {"convex": data.assign(bits_up=(("algorithm", "seed", "round"), sent))}


@pytest.mark.parametrize(("faster", "times"), [(25, 4), (200, 1)])
def test_rounds_are_compared_where_the_slower_method_ends(faster, times):
    """A method that is never there counts with its end."""
    for count, of in (("round", times), ("bits_up", times / 2)):
        (result,) = figure_convex.spent(count)(accelerated(faster)).values()
        assert result.value == pytest.approx(of, rel=0.01)


def test_an_excess_is_that_of_the_objective():
    with configured("jax_enable_x64", True):
        simulation = figure_convex.convex(jax.random.key(0), "CANITA")
        simulation = dataclasses.replace(
            simulation, metrics=[figure_convex.EXCESS, "suboptimality", "objective"]
        )
        run = fl.run(simulation, rounds=20)
        problem = simulation.problem
        at_zero = jnp.sum(problem.objective(jnp.zeros((problem.clients, problem.dim))))
    least = run.objective.values[-1] - run.suboptimality.values[-1]
    expected = run.suboptimality.values / (float(at_zero) - least)
    np.testing.assert_allclose(run.relative_excess.values, expected, rtol=1e-6)


def test_the_order_of_the_step_is_the_exponent():
    steps = np.asarray(figure_peers.STEPS.value)
    for power in (1, 2):
        errors = np.broadcast_to((steps**power)[None, :, None], (5, len(steps), 20))
        coords = {"step": steps, "round": np.arange(1, 21)}
        data = of_methods(METRIC, errors, ("seed", "step", "round"), **coords)
        assert figure_peers.order("part")({"part": data})["exponent"].value == pytest.approx(power)


def test_errors_fall_by_so_much_in_the_last_decade():
    rounds = np.arange(10, 2001, 10)
    data = of_methods(METRIC, np.tile(rounds**-2.0, (1, 5, 1)), algorithm=["method"], round=rounds)
    result = figure_peers.decades("part", "method")({"part": data})["method"]
    assert result.value == pytest.approx(20)


def test_weights_are_column_stochastic_and_not_row_stochastic():
    sent = figure_peers.shares()
    np.testing.assert_allclose(sent.sum(axis=0), 1)
    assert np.ptp(sent.sum(axis=1)) > 0.5
    received = sent / sent.sum(axis=1, keepdims=True)
    weights = np.linalg.matrix_power(received, 2000)[0]
    assert (len(sent) * weights).std() == pytest.approx(0.5, abs=0.1)


def test_clients_of_a_cluster_have_its_model():
    with configured("jax_enable_x64", True):
        problem = figure_personal.clustered(jax.random.key(1), start=0).problem
    models = minimizers(problem)
    clusters = [models[first::3] for first in range(3)]
    assert max(np.ptp(members, axis=0).max() for members in clusters) < 0.5
    assert min(np.linalg.norm(a.mean(0) - b.mean(0)) for a, b in (clusters[:2], clusters[1:])) > 1


# Privacy of steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_strong_composition_is_its_formula(rate):
    steps = 100
    delta = 1e-5
    least = math.inf
    for share in np.linspace(0.05, 0.95, 19):
        slack = share * delta
        step_delta = (delta - slack) / steps / rate
        full_epsilon = math.sqrt(2 * math.log(1.25 / step_delta)) / 4
        step_epsilon = math.log(1 + rate * (math.exp(full_epsilon) - 1))
        total = step_epsilon * math.sqrt(2 * steps * math.log(1 / slack)) + steps * step_epsilon * (
            math.exp(step_epsilon) - 1
        )
        least = min(least, total)
    assert figure_private.strong_composition(4.0, rate, steps, delta) == pytest.approx(least)


@pytest.mark.slow
def test_a_budget_is_what_the_runs_spend():
    pytest.importorskip("dp_accounting")
    algorithm = figure_private.Budgeted(0.5, sampling_rate=0.01, multiplier=1.3, private=True)
    with configured("jax_enable_x64", False):
        simulation = figure_private.trained(jax.random.key(0), algorithm, quick=True)
        results = fl.run(simulation, rounds=20, record_every=20)
    spent = float(fl.privacy.spent(results, delta=1e-5).epsilon.values[-1])
    assert spent == pytest.approx(accounting.sampled_gaussian_epsilon(1.3, 1e-5, 20, 0.01))
    plain = dataclasses.replace(algorithm, private=False)
    assert figure_private.trained(jax.random.key(0), plain, quick=True).privacy is None


def test_low_frequencies_have_most_of_an_image():
    pixels = fl.data.mnist_sample().train_images[:20] / 255
    features = figure_private.images(True).features[0, :20]
    assert (features**2).sum() > 0.75 * (pixels**2).sum()
    np.testing.assert_allclose(features[:, 0], pixels.sum((1, 2)) / 28, rtol=1e-5)


def test_every_exact_method_has_one_panel():
    """A method that no family names would be missing in the picture."""
    drawn = [name for family in figure_exact.FAMILIES.values() for name in family]
    assert sorted(drawn) == sorted(["CTA", "ATC", "Consensus", *figure_exact.PROMISED])
    drawn = [name for family in figure_exact.STOCHASTIC.values() for name in family]
    assert sorted(drawn) == sorted([figure_exact.TRACKING, *figure_exact.REDUCED])


def test_claims_of_others_have_a_table_of_their_own():
    assert HEADLINES.keys() > BY_OTHERS
    case = {"value": 2.0, "low": 1.0, "high": 3.0, "unit": "dB", "holds": True}
    records = []
    for name in ("EXTRA", "P-ADMM"):
        figure, claim = HEADLINES[name]
        declared = {c.name: c for c in REGISTRY[figure].claims}[claim]
        record = dataclasses.asdict(declared) | {"cases": {"x": case}, "holds": True}
        records.append({"name": figure, "claims": [record | {"decided": True}]})
    promised, others = report.headlines(records).split("## What others say of them")
    assert "| EXTRA |" in promised
    assert "| P-ADMM |" not in promised
    assert "| P-ADMM |" in others
