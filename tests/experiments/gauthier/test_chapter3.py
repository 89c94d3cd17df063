"""Chapter 3's figures: tuning, bounds that hold, and measures that notice broken data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments.figure import INFINITE, Claim, Effort
from experiments.gauthier import chapter3 as ch3
from experiments.gauthier import figure_3_theory as rates
from fljax.theory import zcdp_nfl as theory

SEEDS = 6
ROUNDS = np.arange(1, 1001)


def test_tuning_chooses_by_its_rule():
    rounds = np.arange(1, 41)
    target = 50 * 0.8**rounds
    near = target * 1.1
    low = np.where(rounds > 20, 1e-6, 50.0)
    tuning = xr.Dataset(
        {"target": ("round", target), "curve": (("candidate", "round"), [near, low, near, low])},
        coords={
            "round": rounds,
            "tuned": ("candidate", ["x", "x", "y", "y"]),
            "rule": ("candidate", ["early", "early", "final", "final"]),
            "value": ("candidate", [1.0, 2.0, 3.0, 4.0]),
        },
    )
    assert ch3.chosen(tuning, "x") == 1.0
    assert ch3.chosen(tuning, "y") == 4.0


@pytest.mark.parametrize(("count", "share"), [(20, 10), (4, 2), (1, 1)])
def test_tuning_takes_its_share_of_seeds(count, share):
    assert ch3.tuning_seeds(Effort(tuning_seeds=count)) == share


# --------------------------------------------------------------------------- bounds that hold


def built(objective, bound):
    return ch3.scenario(objective, bound)(jax.random.key(0), 30.0, ch3.Method(ch3.proposed()))


def test_an_enforced_bound_clips_and_is_that_of_the_sensitivity():
    enforced = built("ridge", 7.0)
    nominal = built("ridge", None)
    assert float(enforced.problem.promised_bound()) == 7.0
    assert float(enforced.privacy.gradient_bound) == 7.0
    assert np.isinf(nominal.problem.promised_bound())
    assert float(nominal.privacy.gradient_bound) == ch3.BOUND.value


def test_the_huber_loss_keeps_to_its_bound_without_clipping():
    bound = ch3.CLIP_HUBER.value
    problem = built(ch3.HUBER, bound).problem
    assert problem.clip is None
    assert float(problem.promised_bound()) == bound
    length = np.linalg.norm(problem.features, axis=-1)
    assert 0.005 < np.mean(length > bound * (1 - 1e-6)) < 0.1
    far = jnp.full((problem.clients, problem.dim), 1e3)
    assert float(problem.sample_gradient_norm(far).max()) <= bound * (1 + 1e-6)
    # A sample is scaled as a whole: its target follows its features.
    plain = fl.problems.huber(
        jax.random.split(jax.random.key(0))[1],
        clients=50,
        samples=50,
        dim=8,
        noise_variance=ch3.NOISE.value,
    )
    shrink = length / np.linalg.norm(plain.features, axis=-1)
    np.testing.assert_allclose(problem.targets, plain.targets * shrink, rtol=1e-5, atol=1e-6)


def contest(**levels):
    """A study of one budget, in which a method is at a level and its noise has a zCDP worth."""
    noise = np.exp(0.01 * np.random.default_rng(0).normal(size=(SEEDS, 1)))
    error = np.array([level for level, _ in levels.values()])[:, None, None] * noise
    size = (len(levels), 1, SEEDS)
    worth = np.broadcast_to(np.array([rho for _, rho in levels.values()])[:, None, None], size)
    return xr.Dataset(
        {
            ch3.METRIC: (("algorithm", "budget", "seed", "round"), error[:, None]),
            "privacy_rho": (("algorithm", "budget", "seed"), worth),
            "gradient_bound": (("algorithm", "budget", "seed"), np.full(size, 10.0)),
            "diverged": (("algorithm", "budget", "seed"), np.zeros(size, int)),
        },
        {"algorithm": list(levels), "budget": [ch3.CURVE_BUDGET.value], "round": [200]},
    )


def test_an_enforced_claim_is_judged_where_the_bound_holds():
    claim = Claim("c", "t", "l", ch3.beats("a", ch3.GRADIENT), (5, INFINITE))
    better = contest(**{ch3.OURS: (1.0, 1.0), ch3.GRADIENT: (100.0, 1.0)})
    behind = contest(**{ch3.OURS: (4.0, 1.0), ch3.GRADIENT: (1.0, 1.0)})
    studies = {"a": better, "enforced-a": behind}
    assert claim.judge(studies).holds
    enforced = ch3.enforced(claim)
    assert (enforced.name, enforced.kind) == ("enforced-c", "conditional")
    verdict = enforced.judge(studies)
    assert not verdict.holds
    assert "zCDP-NFL 6.0 dB (0.0 dB nominal)" in verdict.note
    assert "20 dB more noise" in verdict.note
    assert enforced.judge({"a": behind, "enforced-a": better}).holds


def test_protection_equals_the_privacy_of_the_noise():
    same = contest(**{ch3.OURS: (1.0, 2.0), ch3.UNIFORM: (9.0, 2.0), ch3.DYNAMIC: (9.0, 0.02)})
    result = ch3.protection(ch3.UNIFORM, ch3.DYNAMIC)({"a": same})
    equal, less = result.values()
    assert equal.value == pytest.approx(1)
    assert less.value > 5
    assert "zCDP-NFL 7.5" in ch3.protection_claim().judge({"a": same}).note


# --------------------------------------------------------------------------- rates and bounds


def rate(**curves):
    """Every schedule with these curves."""
    noise = np.exp(0.01 * np.random.default_rng(0).normal(size=(SEEDS, 1, 1)))
    return xr.Dataset(
        {
            name: (
                ("seed", "noise", "round"),
                np.broadcast_to(curve, (SEEDS, len(rates.SCHEDULES), len(ROUNDS))) * noise,
            )
            for name, curve in curves.items()
        },
        {"noise": [*rates.SCHEDULES], "round": ROUNDS},
    )


def every(**curves):
    return {rates.stored("rate", objective): rate(**curves) for objective in rates.STEPS}


def claims():
    return {claim.name: claim for claim in rates.FIGURE.claims}


@pytest.mark.parametrize("power", [-2.0, -0.5])
def test_exponents_are_those_of_the_late_mean_curve(power):
    studies = every(gap=np.where(ROUNDS < 400, 7.0, ROUNDS**power), bound=1.0 / ROUNDS)
    for result in rates.exponents("gap", rates.FALLING)(studies).values():
        assert result.value == pytest.approx(power)
    assert claims()["converges-in-one-over-n"].judge(studies).holds == (power < -1)
    assert claims()["bound-falls-as-one-over-n"].judge(studies).holds


def test_a_decade_gains_what_it_gains():
    studies = every(error=50.0 / ROUNDS**2)
    for result in rates.decade_gain(rates.FALLING)(studies).values():
        assert result.value == pytest.approx(20)
    assert claims()["falling-noise-converges"].judge(studies).holds
    assert not claims()["constant-noise-does-not"].judge(studies).holds
    assert claims()["constant-noise-does-not"].judge(every(error=1.0 + 1 / ROUNDS)).holds


def test_bounds_are_compared_at_the_last_round():
    studies = every(gap=1.0 / ROUNDS**2, bound=np.where(ROUNDS < 1000, 0.0, 1e-4))
    assert claims()["theorem-two-holds"].judge(studies).holds
    verdict = claims()["theorem-two-is-tight"].judge(studies)
    assert next(iter(verdict.cases.values())).value == pytest.approx(20)
    assert "n^-2.00" in verdict.note
    assert not claims()["theorem-two-holds"].judge(every(gap=1.0, bound=0.5)).holds


def test_the_price_of_privacy_is_read_at_the_ends():
    numbers = {"gap": [4.0, 2.0, 1.0], "bound": [8.0, 4.0, 2.0], "traded": [40.0, 20.0, 10.0]}
    rows = {n: (("seed", "budget"), np.tile(v, (SEEDS, 1))) for n, v in numbers.items()}
    studies = {"bound": xr.Dataset(rows, {"budget": [10.0, 30.0, 100.0]})}
    (price,) = rates.price_of_privacy(studies).values()
    assert price.value == pytest.approx(10 * np.log10(4))
    assert [e.value for e in rates.traded_above("gap")(studies).values()] == pytest.approx([10] * 3)


def test_schedules_have_the_variance_they_name():
    rounds = 400
    for name, at, variance in (
        (rates.FALLING, 50, rates.VARIANCE.value * ch3.DECAY.value**49),
        (rates.SLOWLY, 50, rates.VARIANCE.value / 50),
        (rates.CONSTANT, 400, rates.VARIANCE.value),
        (rates.NONE, 1, 0.0),
    ):
        schedule = jnp.asarray(rates.SCHEDULES[name])
        result = rates.noise(jax.random.key(1), schedule, rounds)
        assert result.shape == (rounds, ch3.CLIENTS.value, ch3.DIM.value)
        assert float(jnp.var(result[at - 1])) == pytest.approx(variance, rel=0.3)


@pytest.mark.thin(0, every=3)
@pytest.mark.parametrize("objective", rates.STEPS)
def test_the_bound_of_a_run_is_that_of_theorem_two(objective):
    k_scenario, k_noise = jax.random.split(jax.random.key(4))
    simulation = rates.without_budget(objective, k_scenario)
    schedule = rates.SCHEDULES
    step_sizes = jnp.asarray(schedule[rates.CONSTANT])
    result = rates.convergence(simulation, step_sizes, k_noise, 30)
    record = theory.transcript(simulation, k_noise, 31, rates.noise(k_noise, step_sizes, 31))
    theorem = theory.theorem_two_bound(simulation, record, fl.problems.optimum(simulation.problem))
    assert all(numbers.shape == (30,) for numbers in result.values())
    assert result["bound"][-1] == pytest.approx(float(theorem.bound), rel=1e-6)
    assert result["gap"][-1] == pytest.approx(float(theorem.gap), rel=1e-6)
    assert np.all(result["gap"] <= result["bound"])


def test_a_title_promises_no_epsilon_that_is_nominal():
    data = xr.Dataset(
        {
            "gradient_norm": (("algorithm", "seed"), [[0.5, 0.9], [0.4, 0.8]]),
            "gradient_bound": ((), 1.0),
            "nominal": (("algorithm", "seed"), [[False, False], [False, False]]),
        },
        {"algorithm": ["zCDP-NFL", "P-ADMM"], "seed": [0, 1]},
    )
    assert ch3.honest_title(data) == "c₁ = 1 enforced: ε is a guarantee"
    nominal = data.copy(deep=True)
    nominal["nominal"][1, 0] = True
    title = ch3.honest_title(data, nominal)
    assert title == "c₁ = 1 enforced; ε is nominal for P-ADMM"
    broken = data.assign(gradient_norm=2 * data["gradient_norm"])
    assert ch3.honest_title(broken) == "c₁ = 1 nominal: gradients reach 2"
