"""Privacy notions and the link: spent budgets, the noise they buy, and ledgers."""

import dataclasses
import math
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fljax as fl
from fljax.algorithms import EpsilonDeltaNFL
from fljax.link import Link, Stages
from fljax.privacy import ZCDP, ApproximateDP, PureDP, accounting
from fljax.simulation.scan import check_length
from tests.reference import nfl

close = np.testing.assert_allclose
ROUNDS = 9
CLIENTS = 3
DIM = 4
SCALES = np.array([1.0, 0.2, 3.0])  # of the clients' sensitivities


def falling(round):
    """A sensitivity ``[K]`` that changes from round to round, not monotonically."""
    n = round.astype(float)
    return jnp.asarray(SCALES) * (1 + 0.5 * jnp.cos(n)) / jnp.sqrt(n)


def constant(round):
    return jnp.asarray(SCALES) + 0 * round.astype(float)


def table(sensitivity, rounds=ROUNDS):
    return np.array([sensitivity(jnp.asarray(n)) for n in range(1, rounds + 1)])


@jax.jit
def _release(notion, sensitivities, round, rows):
    rounds = len(rows)
    plan = notion.plan(lambda n: sensitivities[n - 1], rounds)
    return notion.release(plan, sensitivities[round - 1], round, rounds, DIM)


def releases(notion, sensitivity=falling, rounds=ROUNDS):
    """``scale [T, K]`` and the ledger's entries ``[T, K]``, compiled as in a run."""
    rows = jnp.asarray(table(sensitivity, rounds))
    result = [_release(notion, rows, jnp.asarray(n), rows) for n in range(1, rounds + 1)]
    spent = {name: np.array([r.spent[name] for r in result]) for name in notion.ledger}
    return np.array([r.scale for r in result]), spent


def link(notion, sensitivity=falling, round=1, rounds=ROUNDS, seed=0, receivers=(2, 1, 5)):
    return Link(
        jax.random.key(seed),
        round,
        rounds,
        CLIENTS,
        stages=Stages(privacy=notion),
        plan=None if notion is None else notion.plan(sensitivity, rounds),
        sensitivity=lambda: sensitivity(jnp.asarray(round)),
        receivers=jnp.asarray(receivers, np.int32),
    )


def totals(link):
    return tuple((int(high) << 31) + int(low) for high, low in link.traffic)


# zCDP ------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    total=st.floats(1e-4, 1e3),
    decay=st.floats(0.3, 1.0),
    schedule=st.sampled_from(["privacy", "variance"]),
)
def test_zcdp_spends_its_total_exactly(total, decay, schedule):
    """By its ledger, and by the privacy of its noise (Theorem I)."""
    scale, spent = releases(ZCDP(total, decay, schedule=schedule))
    close(spent["rho"].sum(0), total, rtol=1e-12)
    close((table(falling) ** 2 / (2 * scale**2)).sum(0), total, rtol=1e-12)
    close(table(falling) ** 2 / (2 * scale**2), spent["rho"], rtol=1e-12)


@pytest.mark.parametrize("decay", [0.5, 0.9, 1.0])
def test_zcdp_noise_is_that_of_the_formulas(decay):
    scale, spent = releases(ZCDP(2.0, decay))
    close(scale, nfl.privacy_schedule(table(falling), 2.0, decay), rtol=1e-12)
    phi = nfl.zcdp_parameters(2.0, decay, ROUNDS)
    close(spent["rho"], np.tile(phi[:, None], CLIENTS), rtol=1e-12)
    close(spent["rho"][1:] / spent["rho"][:-1], 1 / decay, rtol=1e-12)  # the proof of the corollary
    scale, spent = releases(ZCDP(2.0, decay, schedule="variance"))
    close(scale, nfl.variance_schedule(table(falling), 2.0, decay), rtol=1e-12)
    close(scale[1:] ** 2 / scale[:-1] ** 2, decay, rtol=1e-12)  # section 3.3.1


def test_the_two_readings_agree_only_for_a_constant_sensitivity():
    notions = [ZCDP(2.0, 0.8), ZCDP(2.0, 0.8, schedule="variance")]
    same, other = ([releases(n, s)[0] for n in notions] for s in (constant, falling))
    close(same[0], same[1], rtol=1e-12)
    assert np.abs(other[0] / other[1] - 1).max() > 0.1


@pytest.mark.parametrize("schedule", ["privacy", "variance"])
def test_zcdp_survives_long_runs_in_float32(schedule):
    """The first parameter, ``decay ** 2000`` of the last, does not underflow to infinite noise."""
    with jax.enable_x64(False):
        notion = ZCDP(1.0, 0.96, schedule=schedule)
        rounds = 2000
        row = jnp.ones(1, np.float32)
        plan = notion.plan(lambda n: row, rounds)
        result = [notion.release(plan, row, jnp.asarray(n), rounds, 2) for n in (1, 1000, 2000)]
        scales = np.array([r.scale[0] for r in result])
    assert scales.dtype == np.float32
    assert np.all(np.isfinite(scales))
    close(scales[2], math.sqrt(1 / (2 * 0.04)), rtol=1e-3)  # phi(T) = total (1 - decay)


def test_zcdp_from_epsilon_is_the_corollary_inverted():
    notion = ZCDP.from_epsilon(3.0, 1e-3, "proposition", decay=0.7, gradient_bound=2.0)
    rho = float(notion.total_rho)
    close(rho + 2 * math.sqrt(rho * math.log(1e3)), 3.0, rtol=1e-12)
    assert float(notion.decay) == 0.7
    assert float(notion.gradient_bound) == 2.0
    sharp = accounting.zcdp_epsilon(releases(notion)[1]["rho"].sum(0).max(), 1e-3)
    close(sharp, 3.0, rtol=1e-12)


def test_zcdp_from_epsilon_spends_all_that_gaussian_noise_allows():
    for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-6), (8.0, 1e-3)):
        rho = float(ZCDP.from_epsilon(epsilon, delta).total_rho)
        mu = math.sqrt(2 * rho)  # Balle & Wang 2018, Theorem 8
        result = stats.norm.cdf(mu / 2 - epsilon / mu)
        result -= math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        close(result, delta, rtol=1e-6)
        assert rho > float(ZCDP.from_epsilon(epsilon, delta, "proposition").total_rho)
    with pytest.raises(TypeError, match=r"finds a root on the host.*proposition"):
        jax.jit(lambda e: ZCDP.from_epsilon(e, 1e-5).total_rho)(1.0)


def test_zcdp_from_initial_starts_there():
    notion = ZCDP.from_initial(1e-3, 0.9, ROUNDS, schedule="privacy")
    close(releases(notion)[1]["rho"][0], 1e-3, rtol=1e-12)
    close(notion.total_rho, sum(1e-3 * 0.9**-n for n in range(ROUNDS)), rtol=1e-12)


# Approximate and pure DP -----------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["uniform", "geometric", "advanced"])
@pytest.mark.parametrize("calibration", ["classical", "zcdp"])
def test_approximate_dp_noise_is_that_of_the_formulas(rule, calibration):
    notion = ApproximateDP(2.0, 1e-3, 0.7, rule=rule, calibration=calibration)
    expected = nfl.approximate_schedule(table(falling), 2.0, 1e-3, rule, calibration, 0.7)
    plan = notion.plan(falling, ROUNDS)  # rule "advanced" solves an equation on the host
    result = [notion.release(plan, falling(n), n, ROUNDS, DIM) for n in jnp.arange(1, ROUNDS + 1)]
    scale = np.array([r.scale for r in result])
    close(scale, expected, rtol=1e-9)
    epsilons, deltas = nfl.approximate_budgets(2.0, 1e-3, ROUNDS, rule, 0.7)
    close(np.array([r.spent["epsilon"] for r in result])[:, 0], epsilons, rtol=1e-9)
    close(np.array([r.spent["delta"] for r in result])[:, 0], deltas, rtol=1e-9)
    rho = np.array([r.spent["rho"] for r in result])
    close(rho, table(falling) ** 2 / (2 * scale**2), rtol=1e-12)
    if rule != "advanced":
        close(epsilons.sum(), 2.0)
        close(deltas.sum(), 1e-3)
        compiled, _ = releases(notion)
        close(compiled, scale, rtol=1e-12)


@pytest.mark.parametrize("rule", ["uniform", "geometric", "advanced"])
def test_approximate_dp_rounds_compose_to_at_most_the_total(rule):
    """The rule's own composition theorem, evaluated by the accountant."""
    notion = ApproximateDP(2.0, 1e-3, 0.7, rule=rule)
    epsilons, deltas = (np.asarray(part) for part in notion.plan(falling, ROUNDS))
    if rule == "advanced":
        total = accounting.advanced_composition(epsilons[0], deltas[0], ROUNDS, 5e-4)
    else:
        total = accounting.basic_composition(epsilons, deltas)
    close(total, (2.0, 1e-3), rtol=1e-8)


def test_geometric_noise_falls_like_zcdp_s():
    scale, _ = releases(ApproximateDP(2.0, 1e-3, 0.7, rule="geometric"), constant)
    close(scale[1:] ** 2 / scale[:-1] ** 2, 0.7, rtol=1e-12)
    scale, _ = releases(PureDP(2.0, 0.7), constant)
    close(scale[1:] ** 2 / scale[:-1] ** 2, 0.7, rtol=1e-5)  # but for what rounding adds


@pytest.mark.parametrize("decay", [0.6, 1.0])
def test_pure_dp_noise_is_that_of_the_formulas(decay):
    for budget in (PureDP(2.0, decay), PureDP(2.0, decay, steps=500)):
        scale, spent = releases(budget)
        rounding = DIM / (budget.steps * spent["epsilon"])
        real = nfl.laplace_schedule(table(falling), 2.0, decay, DIM)
        close(scale, real / (1 - rounding), rtol=1e-9)
        close(spent["epsilon"].sum(0), 2.0, rtol=1e-12)
        # every coordinate costs |difference| / scale, |.|_1 <= sqrt(D) |.|_2, and one step more
        moved = math.sqrt(DIM) * table(falling) + DIM * scale / budget.steps
        close(moved / scale, spent["epsilon"], rtol=1e-9)


def simulation(privacy):
    return fl.Simulation(
        problem=fl.problems.ridge(jax.random.key(0), 5, 6, 2).clipped(1.0),
        algorithm=fl.algorithms.EpsilonDeltaNFL(1.0, 0.5),
        network=fl.graphs.ring(5),
        privacy=privacy,
    )


def test_the_classical_noise_is_refused_where_it_is_not_proven():
    message = r"epsilon must be finite and > 0 and < 1, got 1\.2"
    with pytest.raises(ValueError, match=message):
        ApproximateDP(12.0, 1e-3).plan(constant, 10)
    ApproximateDP(9.0, 1e-3).plan(constant, 10)
    ApproximateDP(12.0, 1e-3, calibration="zcdp").plan(constant, 10)
    with pytest.raises(ValueError, match="epsilon must be"):  # the last round alone
        ApproximateDP(4.0, 1e-3, 0.5, rule="geometric").plan(constant, 10)


@pytest.mark.slow
def test_a_run_refuses_unproven_noise():
    fl.run(simulation(ApproximateDP(9.0, 1e-3)), 10)
    with pytest.raises(ValueError, match="epsilon must be"):
        fl.run(simulation(ApproximateDP(12.0, 1e-3)), 10)


@pytest.mark.slow
def test_a_run_takes_advanced_composition():
    results = fl.run(simulation(ApproximateDP(2.0, 1e-3, rule="advanced")), 10)
    close(results.privacy_delta[-1], 5e-4, rtol=1e-6)  # the other half is composition's own
    assert float(results.privacy_epsilon[-1]) > 0


# Noise over the rounds -------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 20, 2000])
def test_the_default_noise_of_zcdp_is_the_same_in_every_round_of_any_run(rounds):
    scale, spent = releases(ZCDP(0.3), constant, rounds)
    close(scale, np.tile(SCALES * math.sqrt(rounds / (2 * 0.3)), (rounds, 1)), rtol=1e-12)
    close([math.fsum(column) for column in spent["rho"].T], 0.3, rtol=1e-12)


def private_network(privacy, algorithm=None):
    settings = {"algorithm": algorithm or fl.algorithms.ATC(0.1), "privacy": privacy}
    return dataclasses.replace(simulation(ApproximateDP(0.5, 1e-3)), **settings)


def warnings_of(privacy, rounds, *algorithm):
    """The texts of a check before a run, which compiles nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_length(private_network(privacy, *algorithm), rounds)
    assert all(issubclass(warning.category, fl.AssumptionWarning) for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("rounds", [101, 5001])
def test_noise_that_falls_by_more_than_three_decades_is_named_with_its_remedy(rounds):
    three_decades = 10 ** (-6 / (rounds - 1))  # of the variance, whose root falls by 1000
    assert not warnings_of(ZCDP(1.0, three_decades * 1.0001), rounds)
    assert not warnings_of(ZCDP(1.0), rounds)
    for schedule in ("privacy", "variance"):
        falls = ZCDP(1.0, three_decades * 0.9999, schedule=schedule)
        (text,) = warnings_of(falls, rounds)
        assert f"first of {rounds} rounds" in text
        assert "Leave decay out" in text
        remedy = float(re.search(r"take decay=([\d.]+)", text)[1])
        scale, spent = releases(ZCDP(1.0, remedy), constant, rounds)
        close(scale[0] / scale[-1], 10, rtol=0.01)
        close(spent["rho"].sum(0), 1.0, rtol=1e-9)
        assert not warnings_of(ZCDP(1.0, remedy), rounds)


def test_the_ratio_of_the_noise_is_stated_where_it_would_overflow():
    (text,) = warnings_of(ZCDP(1.0, 0.5), 10_001)
    assert f"10^{5000 * math.log10(2):.3g} times" in text


def test_each_budget_warns_of_its_own_decay():
    assert warnings_of(PureDP(1e4, 0.5), 30)
    assert not warnings_of(PureDP(1e4, 0.9), 30)
    small = {"epsilon": 0.5, "delta": 1e-3, "decay": 0.5}
    expected = {"uniform": False, "geometric": True}
    for rule, warns in expected.items():  # only the geometric rule reads the decay
        texts = warnings_of(ApproximateDP(**small, rule=rule), 30, EpsilonDeltaNFL(1.0, 0.5))
        assert bool(texts) == warns


def test_runs_and_sweeps_warn_of_the_spread_before_they_compile(monkeypatch):
    def scenario(key, decay):
        return private_network(ZCDP(1.0, decay))

    def compile_nothing(*args, **options):
        raise AssertionError("compiled")

    monkeypatch.setattr("fljax.simulation.running._run", compile_nothing)
    monkeypatch.setattr("jax.stages.Lowered.compile", compile_nothing)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fl.AssumptionWarning)
        with pytest.raises(fl.AssumptionWarning, match="first of 100 rounds"):
            fl.run(scenario(None, 0.5), 100)
        with pytest.raises(fl.AssumptionWarning, match=r"decay=0\.5 .*first of 100 rounds"):
            fl.sweep(scenario, grid={"decay": [1.0, 0.5]}, rounds=100, seeds=2)


# The link --------------------------------------------------------------------------------------

NOTIONS = {
    "zcdp": (ZCDP(0.7, 0.8), stats.norm),
    "variance": (ZCDP(0.7, 0.8, schedule="variance"), stats.norm),
    "approximate": (ApproximateDP(2.0, 1e-3), stats.norm),
    "pure": (PureDP(2.0, 0.8), stats.laplace),
}


@pytest.mark.parametrize("name", NOTIONS)
def test_noise_has_the_stated_distribution(name):
    """Kolmogorov-Smirnov at level 1e-4 per client, with the stated scale; clients independent."""
    notion, distribution = NOTIONS[name]
    scale = {
        "zcdp": nfl.privacy_schedule(table(falling), 0.7, 0.8),
        "variance": nfl.variance_schedule(table(falling), 0.7, 0.8),
        "approximate": nfl.approximate_schedule(
            table(falling), 2.0, 1e-3, "uniform", "classical", 1
        ),
        "pure": nfl.laplace_schedule(table(falling), 2.0, 0.8, 20_000),
    }[name][3]
    message = jnp.ones((CLIENTS, 20_000)) * jnp.arange(3.0)[:, None]
    received = link(notion, round=4).send(message)
    noise = np.asarray(received - message) / scale[:, None]
    for row in noise:
        assert stats.kstest(row, distribution.cdf).pvalue > 1e-4
    bound = stats.norm.isf(1e-5) / math.sqrt(20_000)  # of a correlation of independent rows
    assert np.abs(np.corrcoef(noise)[np.triu_indices(3, 1)]).max() < bound


def test_rounds_and_keys_give_different_noise():
    notion = ZCDP(1.0)
    message = jnp.zeros((CLIENTS, DIM))
    received = [link(notion, seed=seed).send(message) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(received[0], received[1])
    assert float(jnp.abs(received[0] - received[2]).min()) > 0


def test_without_a_notion_messages_arrive_unchanged():
    message = jnp.arange(12.0).reshape(CLIENTS, DIM)
    open_link = link(None)
    np.testing.assert_array_equal(open_link.send(message), message)
    assert open_link.spent == {}
    open_link.send(message)  # as often as one likes


@pytest.mark.slow
def test_noise_grows_with_the_bound_of_gradients():
    """A run's sensitivity is the algorithm's at the notion's gradient bound."""
    received = []
    for bound in (1.0, 2.5):
        now = fl.view(simulation(ApproximateDP(2.0, 1e-3, gradient_bound=bound)), rounds=10)
        received.append(now.link.send(jnp.zeros((5, 2))))
    close(received[1], 2.5 * received[0], rtol=1e-12)


@pytest.mark.parametrize("name", NOTIONS)
def test_a_second_private_message_is_refused(name):
    notion = NOTIONS[name][0]
    private = link(notion)
    message = jnp.zeros((CLIENTS, DIM))
    private.send(message)
    assert set(private.spent) == set(notion.ledger)
    assert all(value.shape == (CLIENTS,) for value in private.spent.values())
    with pytest.raises(ValueError, match="second private message in one round"):
        private.send(message)


def test_every_message_is_counted_once_a_receiver():
    counted = link(None)
    counted.send(jnp.zeros((CLIENTS, DIM)))
    assert totals(counted) == (8, 8 * DIM, 32 * 8 * DIM, 0)
    counted.publish(jnp.zeros(7))  # to every client
    assert totals(counted) == (8 + 3, 8 * DIM + 3 * 7, 32 * 8 * DIM, 32 * 3 * 7)


def test_clients_without_receivers_send_nothing_but_still_pay():
    private = link(ZCDP(1.0, 0.9), receivers=(0, 0, 0))
    private.send(jnp.zeros((CLIENTS, DIM)))
    assert totals(private) == (0, 0, 0, 0)
    assert float(private.spent["rho"].min()) > 0


def test_budgets_may_be_swept_without_compiling_again():
    """Numbers are leaves; the schedule's name is structure."""
    _release.clear_cache()
    for total in (1.0, 2.0, 5.0):
        releases(ZCDP(total, 0.9))
    assert _release._cache_size() == 1
    releases(ZCDP(1.0, 0.9, schedule="variance"))
    assert _release._cache_size() == 2


# What is refused -------------------------------------------------------------------------------

KINDS = {
    ZCDP: {"total_rho": 1.0},
    ApproximateDP: {"epsilon": 1.0, "delta": 1e-3},
    PureDP: {"epsilon": 1.0},
}
POSITIVE = "must be finite and > 0"
BOTH = (ApproximateDP, PureDP)
BAD = [
    *((ZCDP, "total_rho", value, POSITIVE) for value in (0.0, -1.0, math.inf)),
    *((kind, "epsilon", value, POSITIVE) for kind in BOTH for value in (0.0, -2.0, math.nan)),
    *((ApproximateDP, "delta", value, f"{POSITIVE} and < 1") for value in (0.0, 1.0, -0.1)),
    *((kind, "decay", value, f"{POSITIVE} and <= 1") for kind in KINDS for value in (0.0, 1.1)),
    *((kind, "gradient_bound", v, f"{POSITIVE}.*clipped") for kind in KINDS for v in (0, math.inf)),
    *((kind, "neighbors", "remove", "'remove'; known: replace, add-or-remove") for kind in KINDS),
    (ZCDP, "schedule", "variances", "'variances'.*Did you mean 'variance'"),
    (ApproximateDP, "rule", "geometrical", "'geometrical'.*Did you mean 'geometric'"),
    (ApproximateDP, "calibration", "exact", "'exact'; known: classical, zcdp"),
]


@pytest.mark.parametrize(("kind", "name", "value", "message"), BAD)
def test_bad_budgets_are_refused(kind, name, value, message):
    good = kind(**KINDS[kind])
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        kind(**KINDS[kind] | {name: value})
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        dataclasses.replace(good, **{name: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ZCDP.from_epsilon(0.0, 1e-3), "epsilon must be"),
        (lambda: ZCDP.from_epsilon(1.0, 1.0), "delta must be"),
        (lambda: ZCDP.from_epsilon(1.0, 1e-3, decay=2.0), "decay must be"),
        (lambda: ZCDP.from_initial(-1.0, 0.9, 10), "initial must be"),
        (lambda: ZCDP.from_initial(1.0, 0.0, 10), "decay must be"),
        (lambda: ZCDP.from_initial(1.0, 0.9, 0), "rounds must be >= 1"),
    ],
)
def test_bad_conversions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
