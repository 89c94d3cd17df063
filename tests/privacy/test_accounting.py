"""The accountant against integrals, enumerations, Google's dp-accounting and the thesis."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fljax.privacy import accounting as acc

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

rhos = st.floats(1e-6, 1e3)
epsilons = st.floats(1e-3, 50.0)
deltas = st.floats(1e-12, 0.3)
few = settings(max_examples=40, deadline=None)
close = np.testing.assert_allclose


# --------------------------------------------------------------------------- written independently


def hockey_stick(p, q, epsilon, low, high, points=()):
    """Integral of the positive part of p - e^epsilon q: the delta of the pair."""
    positive = lambda x: max(p(x) - math.exp(epsilon) * q(x), 0.0)  # noqa: E731
    return integrate.quad(positive, low, high, points=points, epsabs=1e-14, limit=500)[0]


def renyi_divergence(order, p_log, q_log, low, high, points):
    density = lambda x: math.exp(order * p_log(x) + (1 - order) * q_log(x))  # noqa: E731
    integral = integrate.quad(density, low, high, points=points, epsabs=0, limit=500)[0]
    return math.log(integral) / (order - 1)


def randomized_responses_delta(response_epsilons, epsilon):
    """Exact delta of several randomized responses, by enumeration of their outputs."""
    total = 0.0
    for outcome in itertools.product((1, -1), repeat=len(response_epsilons)):
        p = math.prod(
            1 / (1 + math.exp(-s * e)) for s, e in zip(outcome, response_epsilons, strict=True)
        )
        loss = sum(s * e for s, e in zip(outcome, response_epsilons, strict=True))
        total += max(0.0, p * -math.expm1(epsilon - loss))
    return total


def best_over_orders(rho, delta):
    """Canonne, Kamath & Steinke's epsilon, over a dense grid of orders."""
    t = np.geomspace(1e-4, 1e6, 400_001)
    order = 1 + t
    log_terms = np.log(1 / delta) - np.log(order)
    return max(0.0, np.min(rho * order + log_terms / t + np.log(t / order)))


# --------------------------------------------------------------------------- mechanisms


@pytest.mark.parametrize(("sensitivity", "sigma"), [(1.0, 0.7), (2.0, 3.0), (0.1, 5.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_gaussian_delta_is_the_hockey_stick_divergence(sensitivity, sigma, epsilon):
    p = stats.norm(sensitivity, sigma).pdf
    q = stats.norm(0, sigma).pdf
    crossing = sensitivity / 2 + epsilon * sigma**2 / sensitivity
    expected = hockey_stick(p, q, epsilon, crossing, max(crossing, sensitivity) + 15 * sigma)
    rho = acc.gaussian_zcdp(sensitivity, sigma)
    close(acc.zcdp_delta(rho, epsilon, "gaussian"), expected, rtol=1e-6, atol=1e-13)


def test_gaussian_delta_keeps_its_digits_in_the_far_tail():
    leading = lambda mu, eps: (  # noqa: E731  leading asymptotic term, relative error 1/x^2
        math.exp(-((eps / mu - mu / 2) ** 2) / 2)
        / math.sqrt(2 * math.pi)
        * (1 / (eps / mu - mu / 2) - 1 / (eps / mu + mu / 2))
    )
    close(acc.zcdp_delta(0.5, 36.0, "gaussian"), leading(1.0, 36.0), rtol=3e-3)
    assert 0 < acc.zcdp_delta(0.5, 36.0, "gaussian") < 1e-270


def test_zcdp_of_the_gaussian_is_its_renyi_divergence():
    sensitivity = 1.3
    sigma = 0.9
    p = stats.norm(sensitivity, sigma).logpdf
    q = stats.norm(0, sigma).logpdf
    for order in (1.5, 3.0, 8.0):
        peak = order * sensitivity
        numeric = renyi_divergence(order, p, q, peak - 12 * sigma, peak + 12 * sigma, [peak])
        close(order * acc.gaussian_zcdp(sensitivity, sigma), numeric, rtol=1e-8)
        close(acc.renyi_gaussian(order, sensitivity, sigma), numeric, rtol=1e-8)


@pytest.mark.parametrize(("sensitivity", "scale"), [(1.0, 2.0), (3.0, 1.5)])
def test_laplace_epsilon_is_the_least_that_needs_no_delta(sensitivity, scale):
    p = stats.laplace(sensitivity, scale).pdf
    q = stats.laplace(0, scale).pdf
    epsilon = float(acc.laplace_epsilon(sensitivity, scale))
    at = lambda e: hockey_stick(p, q, e, -40 * scale, 40 * scale, [0, sensitivity])  # noqa: E731
    assert at(epsilon * (1 + 1e-9)) < 1e-12
    assert at(0.95 * epsilon) > 1e-3
    close(acc.laplace_scale(sensitivity, epsilon), scale)


@pytest.mark.parametrize("ratio", [0.01, 0.4, 3.0])
def test_laplace_curve_is_its_renyi_divergence(ratio):
    p = stats.laplace(ratio).logpdf
    q = stats.laplace(0).logpdf
    for order in (1.1, 2.0, 16.0):
        numeric = renyi_divergence(order, p, q, -30, 30 + ratio, [0, ratio])
        close(acc.renyi_laplace(order, ratio, 1.0), numeric, rtol=1e-6, atol=1e-9)


def test_pure_curve_is_that_of_randomized_response_and_below_both_known_bounds():
    for epsilon, order in itertools.product((1e-3, 0.5, 4.0), (1.2, 2.0, 30.0)):
        p = 1 / (1 + math.exp(-epsilon))
        moment = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
        curve = acc.renyi_pure(order, epsilon)
        close(curve, math.log(moment) / (order - 1), rtol=1e-9, atol=1e-12)
        assert curve <= min(epsilon, order * acc.pure_to_zcdp(epsilon))


def test_curves_do_not_overflow_at_large_orders():
    close(acc.renyi_laplace(1e6, 1.0, 0.01), 100.0, rtol=1e-5)
    close(acc.renyi_pure(1e6, 100.0), 100.0, rtol=1e-5)


def test_classical_sigma_is_sufficient_and_the_analytic_one_exact():
    epsilon, delta = np.meshgrid([0.01, 0.3, 0.99], [1e-8, 1e-3, 0.5])
    classical = acc.classical_gaussian_sigma(2.0, epsilon, delta)
    analytic = acc.analytic_gaussian_sigma(2.0, epsilon, delta)
    close(classical, np.sqrt(2 * np.log(1.25 / delta)) * 2.0 / epsilon)
    assert np.all(analytic < classical)
    spent = acc.zcdp_delta(acc.gaussian_zcdp(2.0, analytic), epsilon, "gaussian")
    close(spent, delta, rtol=1e-8)


# --------------------------------------------------------------------------- zCDP conversions


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
@pytest.mark.parametrize("rho", [1e-4, 0.03, 1.0, 50.0])
def test_general_conversion_is_the_best_over_all_orders(rho, delta):
    epsilon = acc.zcdp_epsilon(rho, delta, "canonne-kamath-steinke")
    expected = best_over_orders(rho, delta)
    close(epsilon, expected, rtol=1e-6, atol=1e-9)
    assert epsilon <= expected + 1e-9


@few
@given(rhos, deltas)
@pytest.mark.slow
def test_conversions_are_ordered(rho, delta):
    proposition, general, gaussian = (acc.zcdp_epsilon(rho, delta, c) for c in acc.CONVERSIONS)
    assert 0 <= gaussian <= general < proposition


@few
@given(epsilons, deltas, st.sampled_from(acc.CONVERSIONS))
def test_rho_and_epsilon_undo_each_other(epsilon, delta, conversion):
    rho = acc.zcdp_rho(epsilon, delta, conversion)
    close(acc.zcdp_epsilon(rho, delta, conversion), epsilon, rtol=1e-6)


@few
@given(st.floats(0.1, 30.0), deltas, st.sampled_from(acc.CONVERSIONS))
def test_delta_and_epsilon_undo_each_other(rho, delta, conversion):
    epsilon = acc.zcdp_epsilon(rho, delta, conversion)
    if epsilon > 0:
        close(acc.zcdp_delta(rho, epsilon, conversion), delta, rtol=1e-6)
    else:
        assert acc.zcdp_delta(rho, 0.0, conversion) <= delta


@pytest.mark.parametrize("conversion", acc.CONVERSIONS)
def test_conversions_are_monotone(conversion):
    rho = np.geomspace(1e-3, 30, 12)
    assert np.all(np.diff(acc.zcdp_epsilon(rho, 1e-5, conversion)) > 0)
    assert np.all(np.diff(acc.zcdp_epsilon(0.5, np.geomspace(1e-9, 0.05, 12), conversion)) < 0)
    assert np.all(np.diff(acc.zcdp_delta(rho, 2.0, conversion)) >= 0)
    assert np.all(np.diff(acc.zcdp_rho(np.geomspace(1e-3, 30, 12), 1e-5, conversion)) > 0)


@pytest.mark.parametrize("conversion", acc.CONVERSIONS)
def test_zero_budgets_cost_nothing(conversion):
    assert acc.zcdp_epsilon(0.0, 1e-5, conversion) == 0
    assert acc.zcdp_delta(0.0, 0.0, conversion) == 0


def test_proposition_inverse_does_not_cancel():
    epsilon = 1e-9
    log = -math.log(1e-5)
    close(acc.zcdp_rho(epsilon, 1e-5), epsilon**2 / (4 * log), rtol=1e-9)


# --------------------------------------------------------------------------- dp-accounting


def test_gaussian_conversion_agrees_with_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    for sigma, delta in [(0.8, 1e-6), (3.0, 1e-3), (20.0, 1e-5)]:
        rho = acc.gaussian_zcdp(1.0, sigma)
        close(
            acc.zcdp_epsilon(rho, delta, "gaussian"),
            dp.get_epsilon_gaussian(sigma, delta),
            rtol=1e-5,
            atol=1e-9,
        )
    for epsilon, delta in [(0.2, 1e-6), (1.0, 1e-3), (8.0, 1e-5)]:
        close(
            acc.analytic_gaussian_sigma(1.0, epsilon, delta),
            dp.get_sigma_gaussian(epsilon, delta),
            rtol=1e-5,
        )


def test_composed_gaussians_agree_with_the_privacy_loss_distribution():
    dp = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    accountant = pld.PLDAccountant()
    sigmas = [5.0, 8.0, 10.0]
    for sigma in sigmas:
        accountant.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(sigma), 4))
    rho = 4 * np.sum(acc.gaussian_zcdp(1.0, np.array(sigmas)))
    close(acc.zcdp_epsilon(rho, 1e-5, "gaussian"), accountant.get_epsilon(1e-5), rtol=2e-3)
    close(acc.zcdp_delta(rho, 1.0, "gaussian"), accountant.get_delta(1.0), rtol=2e-2)


def test_renyi_accounting_agrees_with_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    orders = acc.RENYI_ORDERS
    accountant = rdp.RdpAccountant(list(orders))
    accountant.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 30))
    accountant.compose(dp.LaplaceDpEvent(5.0), 10)
    curve = 30 * acc.renyi_gaussian(orders, 1.0, 4.0) + 10 * acc.renyi_laplace(orders, 1.0, 5.0)
    close(acc.renyi_epsilon(orders, curve, 1e-5), accountant.get_epsilon(1e-5), rtol=1e-9)
    close(acc.renyi_delta(orders, curve, 4.0), accountant.get_delta(4.0), rtol=1e-9)


# --------------------------------------------------------------------------- Rényi conversions


def test_general_conversion_is_renyi_accounting_over_a_fine_grid():
    orders = 1 + np.geomspace(1e-2, 1e3, 20_001)
    curve = acc.renyi_gaussian(orders, 1.0, 3.0)
    rho = acc.gaussian_zcdp(1.0, 3.0)
    by_zcdp = acc.zcdp_epsilon(rho, 1e-6, "canonne-kamath-steinke")
    close(acc.renyi_epsilon(orders, curve, 1e-6), by_zcdp, rtol=1e-6)
    close(acc.renyi_epsilon(orders, curve, 1e-6, "mironov"), acc.zcdp_epsilon(rho, 1e-6), rtol=1e-6)
    close(acc.renyi_delta(orders, curve, 2.0, "mironov"), acc.zcdp_delta(rho, 2.0), rtol=1e-6)


def test_renyi_conversions_batch_over_leading_axes():
    orders = acc.RENYI_ORDERS
    sigmas = np.array([2.0, 4.0])
    curves = np.stack([acc.renyi_gaussian(orders, 1.0, s) for s in sigmas])
    delta = np.array([1e-5, 1e-3])
    one_by_one = [
        acc.renyi_epsilon(orders, c, d, "mironov") for c, d in zip(curves, delta, strict=True)
    ]
    for convert in (np.asarray, jnp.asarray):
        batch = acc.renyi_epsilon(orders, convert(curves), convert(delta), "mironov")
        close(batch, one_by_one, rtol=1e-12)


# --------------------------------------------------------------------------- dynamic zCDP


@few
@given(st.floats(1e-6, 10.0), st.floats(0.5, 0.9999), st.integers(1, 300))
def test_dynamic_total_is_the_corollary(initial, decay, rounds):
    total = acc.dynamic_zcdp_total(initial, decay, rounds)
    brute = math.fsum(initial / decay**n for n in range(rounds))
    closed = initial * (1 - decay**rounds) / (decay ** (rounds - 1) - decay**rounds)
    close(total, brute, rtol=1e-11)
    close(total, closed, rtol=1e-8)
    close(acc.dynamic_zcdp_curve(initial, decay, rounds)[-1], brute, rtol=1e-11)
    close(acc.dynamic_zcdp_initial(total, decay, rounds), initial, rtol=1e-11)


def test_dynamic_curve_is_the_total_of_each_prefix():
    curve = acc.dynamic_zcdp_curve(0.2, 0.9, 6)
    close(curve, [acc.dynamic_zcdp_total(0.2, 0.9, n) for n in range(1, 7)])


def test_equal_budgets_add_up_and_the_derivative_there_is_right():
    close(acc.dynamic_zcdp_total(0.3, 1.0, 50), 15.0, rtol=1e-14)
    derivative = jax.grad(lambda decay: acc.dynamic_zcdp_total(0.3, decay, 50))(jnp.array(1.0))
    close(derivative, -0.3 * 50 * 49 / 2, rtol=1e-12)


def test_values_stated_with_the_thesis():
    assert round(float(acc.dynamic_zcdp_total(1e-3, 0.99, 300)), 4) == 1.9197
    stated = [(1.0, 1e-3, 54.4, 997), (10.0, 1e-3, 6.74, 99.7), (1.0, 1e-5, 69.3, 1167)]
    for epsilon, delta, concentrated, conventional in stated:
        initial = acc.dynamic_zcdp_initial(acc.zcdp_rho(epsilon, delta), 1.0, 200)
        close(acc.gaussian_sigma(1.0, initial), concentrated, rtol=1e-3)
        per_round = acc.allocate(epsilon, delta, 200)
        close(acc.classical_gaussian_sigma(1.0, *per_round), np.full(200, conventional), rtol=1e-3)


# --------------------------------------------------------------------------- composition


def test_basic_composition_is_attained_by_randomized_response():
    epsilons = np.array([0.2, 0.5, 1.0])
    total = acc.pure_composition(epsilons)
    assert randomized_responses_delta(epsilons, float(total) * (1 + 1e-12)) < 1e-12
    assert randomized_responses_delta(epsilons, 0.99 * float(total)) > 1e-3
    close(acc.basic_composition(epsilons, [1e-3, 2e-3, 0.0]), (1.7, 3e-3))


@pytest.mark.parametrize("slack", [1e-4, 1e-2, 0.2])
@pytest.mark.parametrize("epsilons", [(0.1,) * 12, (0.05, 0.1, 0.15, 0.2, 0.3, 0.6), (1.5,) * 8])
def test_composition_bounds_hold_for_randomized_response(epsilons, slack):
    total, delta = acc.kairouz_composition(epsilons, np.zeros(len(epsilons)), slack)
    close(delta, slack, rtol=1e-12)
    assert randomized_responses_delta(epsilons, float(total)) <= slack
    assert total <= acc.pure_composition(epsilons)
    if len(set(epsilons)) == 1:
        advanced, delta = acc.advanced_composition(epsilons[0], 0.0, len(epsilons), slack)
        assert randomized_responses_delta(epsilons, float(advanced)) <= slack == delta
        assert total <= advanced


def test_composition_formulas():
    epsilon = 0.1
    delta = 1e-6
    slack = 1e-4
    rounds = 500
    total, total_delta = acc.advanced_composition(epsilon, delta, rounds, slack)
    expected = math.sqrt(2 * rounds * math.log(1 / slack)) * epsilon
    close(total, expected + rounds * epsilon * (math.exp(epsilon) - 1), rtol=1e-13)
    close(total_delta, rounds * delta + slack, rtol=1e-13)

    mean = rounds * (math.exp(epsilon) - 1) * epsilon / (math.exp(epsilon) + 1)
    squares = rounds * epsilon**2
    first = mean + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / slack))
    second = mean + math.sqrt(2 * squares * math.log(1 / slack))
    epsilons_and_deltas = np.full(rounds, epsilon), np.full(rounds, delta)
    total, total_delta = acc.kairouz_composition(*epsilons_and_deltas, slack)
    close(total, min(first, second), rtol=1e-12)
    close(total_delta, 1 - (1 - slack) * (1 - delta) ** rounds, rtol=1e-9)
    few_total, _ = acc.kairouz_composition(
        epsilons_and_deltas[0][:20], epsilons_and_deltas[1][:20], 0.01
    )
    log = math.log(math.e + math.sqrt(0.2) / 0.01)  # here the first is the smaller
    close(few_total, mean / 25 + math.sqrt(0.4 * log), rtol=1e-12)


@few
@given(st.floats(1e-9, 1e6), st.integers(1, 10_000), st.floats(1e-12, 0.9))
def test_advanced_epsilon_undoes_advanced_composition(total, rounds, slack):
    per_round = acc.advanced_epsilon(total, rounds, slack)
    close(acc.advanced_composition(per_round, 0.0, rounds, slack)[0], total, rtol=1e-10)


@few
@given(epsilons, deltas, st.integers(1, 400), st.floats(0.8, 1.0))
def test_allocations_compose_to_the_total(epsilon, delta, rounds, decay):
    for rule in ("uniform", "geometric"):
        per_round = acc.allocate(epsilon, delta, rounds, rule, decay)
        assert per_round[0].shape == per_round[1].shape == (rounds,)
        close(acc.basic_composition(*per_round), (epsilon, delta), rtol=1e-10)
    per_round = acc.allocate(epsilon, delta, rounds, "advanced")
    assert per_round[0].shape == per_round[1].shape == (rounds,)
    assert np.ptp(per_round[0]) == np.ptp(per_round[1]) == 0
    total = acc.advanced_composition(per_round[0][0], per_round[1][0], rounds, delta / 2)
    close(total, (epsilon, delta), rtol=1e-9)


def test_geometric_allocation_lets_the_variance_fall_by_the_decay():
    epsilon, delta = acc.allocate(0.5, 1e-4, 30, "geometric", 0.9)
    variance = acc.classical_gaussian_sigma(1.0, epsilon, delta) ** 2
    close(variance[1:] / variance[:-1], np.full(29, 0.9), rtol=1e-12)
    close(*acc.allocate(0.5, 1e-4, 5, "geometric", 1.0)[:1], np.full(5, 0.1))
    assert np.isfinite(acc.allocate(1.0, 1e-4, 9000, "geometric", 0.5)[0]).all()


# --------------------------------------------------------------------------- inside a program

GRID = np.array([0.11, 0.4, 0.9])
CLOSED_FORMS = {
    "gaussian_zcdp": (lambda x: acc.gaussian_zcdp(2.0, x)),
    "gaussian_sigma": (lambda x: acc.gaussian_sigma(2.0, x)),
    "laplace_epsilon": (lambda x: acc.laplace_epsilon(x, 2)),
    "laplace_scale": (lambda x: acc.laplace_scale(np.float32(2), x)),
    "pure_to_zcdp": acc.pure_to_zcdp,
    "classical_gaussian_sigma": (lambda x: acc.classical_gaussian_sigma(1, x, 1e-5)),
    "zcdp_epsilon": (lambda x: acc.zcdp_epsilon(x, 1e-5)),
    "zcdp_delta": (lambda x: acc.zcdp_delta(x, np.float64(1.0))),
    "zcdp_rho": (lambda x: acc.zcdp_rho(x, 1e-5)),
    "dynamic_zcdp_total": (lambda x: acc.dynamic_zcdp_total(1e-3, x, 20)),
    "dynamic_zcdp_initial": (lambda x: acc.dynamic_zcdp_initial(x, 0.99, 20)),
    "dynamic_zcdp_curve": (lambda x: acc.dynamic_zcdp_curve(x, 0.99, 20)),
    "pure_composition": (lambda x: acc.pure_composition(x[..., None])),
    "basic_composition": (lambda x: acc.basic_composition(x[..., None], x[..., None])),
    "advanced_composition": (lambda x: acc.advanced_composition(x, 1e-6, 7, 1e-5)),
    "kairouz_composition": (lambda x: acc.kairouz_composition(x[..., None], x[..., None], 1e-5)),
    "allocate uniform": (lambda x: acc.allocate(x, 1e-5, 7)),
    "advanced_epsilon": (lambda x: acc.advanced_epsilon(x, 10, 1e-5)),
    "allocate advanced": (lambda x: acc.allocate(x, 1e-5, 10, "advanced")),
    "allocate geometric": (lambda x: acc.allocate(1.0, 1e-5, 7, "geometric", x)),
    "renyi_gaussian": (lambda x: acc.renyi_gaussian(2.0, x, 1.0)),
    "renyi_laplace": (lambda x: acc.renyi_laplace(2.0, x, 1.0)),
    "renyi_pure": (lambda x: acc.renyi_pure(2.0, x)),
    "renyi_epsilon": (lambda x: acc.renyi_epsilon([2.0], x[..., None], 1e-5)),
    "renyi_delta": (lambda x: acc.renyi_delta([2.0], x[..., None], 1.0)),
}


@pytest.mark.slow
@pytest.mark.thin(6)
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_traced_equals_concrete(name):
    function = CLOSED_FORMS[name]
    expected = jax.tree.leaves(function(GRID))
    assert all(isinstance(e, np.ndarray) and e.dtype == np.float64 for e in expected)
    for transform in (lambda f: f, lambda f: jax.jit(jax.vmap(f))):
        for dtype, rtol in ((jnp.float64, 1e-12), (jnp.float32, 2e-5)):
            got = jax.tree.leaves(transform(function)(jnp.asarray(GRID, dtype)))
            for e, g in zip(expected, got, strict=True):
                assert g.dtype == dtype
                assert g.shape == e.shape
                close(g, e, rtol=rtol)


def test_integer_budgets_are_taken_as_floats():
    assert acc.zcdp_rho(jnp.array(1), 1e-5).dtype == jnp.float64
    close(acc.zcdp_rho(jnp.array(1), 1e-5), acc.zcdp_rho(1.0, 1e-5))


HOST = {
    "zcdp_epsilon": lambda x: acc.zcdp_epsilon(x, 1e-5, "gaussian"),
    "zcdp_delta": lambda x: acc.zcdp_delta(0.1, x, "canonne-kamath-steinke"),
    "zcdp_rho": lambda x: acc.zcdp_rho(x, 1e-5, "gaussian"),
    "analytic_gaussian_sigma": lambda x: acc.analytic_gaussian_sigma(x, 1.0, 1e-5),
}


@pytest.mark.parametrize("name", HOST)
def test_root_finding_refuses_traced_values_and_takes_arrays(name):
    with pytest.raises(TypeError, match=rf"{name}.* cannot take the traced value .* outside"):
        jax.jit(HOST[name])(1.0)
    one_by_one = [jax.tree.leaves(HOST[name](float(x))) for x in GRID]
    for convert in (np.asarray, jnp.asarray):
        for i, leaf in enumerate(jax.tree.leaves(HOST[name](convert(GRID)))):
            close(leaf, [row[i] for row in one_by_one], rtol=1e-9)


# --------------------------------------------------------------------------- bad input

BAD = [
    (lambda: acc.gaussian_zcdp(1.0, 0.0), r"sigma must be finite and > 0, got 0\. .*without noise"),
    (lambda: acc.gaussian_zcdp(-1.0, 1.0), r"sensitivity must be .*>= 0, got -1"),
    (lambda: acc.gaussian_sigma(1.0, 0.0), r"rho must be .*> 0, got 0\. .*leave the release out"),
    (lambda: acc.laplace_epsilon(1.0, -2.0), r"scale must be .*> 0, got -2"),
    (lambda: acc.laplace_scale(1.0, 0.0), r"epsilon must be .*> 0, got 0"),
    (lambda: acc.pure_to_zcdp(-0.1), r"epsilon must be .*>= 0, got -0\.1"),
    (
        lambda: acc.classical_gaussian_sigma(1.0, np.array([0.5, 1.0]), 1e-5),
        r"epsilon must be .*> 0 and < 1, got 1\. .*use analytic_gaussian_sigma",
    ),
    (lambda: acc.analytic_gaussian_sigma(1.0, -1.0, 1e-5), r"epsilon must be .*> 0, got -1"),
    (lambda: acc.zcdp_epsilon(-1.0, 1e-5), r"rho must be .*>= 0, got -1"),
    (lambda: acc.zcdp_epsilon(np.nan, 1e-5), r"rho must be finite.*got nan"),
    (lambda: acc.zcdp_epsilon(1.0, 1.0), r"delta must be .*> 0 and < 1, got 1\. .*probability"),
    (lambda: acc.zcdp_epsilon(1.0, 1e-5, "gausian"), r"Did you mean 'gaussian'\?"),
    (lambda: acc.zcdp_delta(1.0, -1.0), r"epsilon must be .*>= 0, got -1"),
    (lambda: acc.zcdp_rho(0.0, 1e-5, "gaussian"), r"epsilon must be .*> 0, got 0"),
    (lambda: acc.dynamic_zcdp_total(0.0, 0.9, 5), r"initial must be .*> 0, got 0"),
    (lambda: acc.dynamic_zcdp_total(1.0, 1.1, 5), r"decay must be .*> 0 and <= 1, got 1\.1"),
    (lambda: acc.dynamic_zcdp_curve(1.0, 0.9, 0), r"rounds must be >= 1, got 0"),
    (lambda: acc.dynamic_zcdp_curve(1.0, 0.5, 2000), r"decay must be .*>= 0\.7.*nearer to 1"),
    (
        lambda: acc.dynamic_zcdp_curve(1.0, jnp.array(0.5, jnp.float32), 200),
        r"overflows float32; bring decay nearer to 1",
    ),
    (lambda: acc.dynamic_zcdp_initial(-1.0, 0.9, 5), r"total must be .*> 0, got -1"),
    (lambda: acc.pure_composition([0.1, -1.0]), r"epsilon must be .*got -1"),
    (lambda: acc.basic_composition([0.1], [1.0]), r"delta must be .*>= 0 and < 1, got 1"),
    (lambda: acc.advanced_composition(0.1, 0.0, 5, 0.0), r"slack must be .*> 0 and < 1, got 0"),
    (lambda: acc.advanced_epsilon(0.0, 5, 0.1), r"total must be .*> 0, got 0"),
    (lambda: acc.kairouz_composition([0.1], [0.0], 2.0), r"slack must be .*< 1, got 2"),
    (lambda: acc.allocate(0.0, 1e-5, 5), r"epsilon must be .*> 0, got 0"),
    (lambda: acc.allocate(1.0, 1e-5, 5, "basic"), r"unknown rule 'basic'; known: uniform"),
    (lambda: acc.allocate(1.0, 1e-5, 5, "geometric"), r"needs decay, got None; pass a number in"),
    (lambda: acc.allocate(1.0, 1e-5, 5, "geometric", 0.0), r"decay must be .*> 0 and <= 1, got 0"),
    (
        lambda: acc.renyi_gaussian([1.0, 2.0], 1.0, 1.0),
        r"orders must be .*> 1, got 1.*RENYI_ORDERS",
    ),
    (lambda: acc.renyi_epsilon([2.0], [-1.0], 1e-5), r"rdp must be .*>= 0, got -1"),
    (lambda: acc.renyi_epsilon([2.0], [1.0], 1e-5, "miranov"), r"Did you mean 'mironov'\?"),
    (lambda: acc.renyi_delta([2.0], [1.0], -1.0), r"epsilon must be .*>= 0, got -1"),
    (
        lambda: acc.basic_composition([0.1, 0.1], [1e-6]),
        r"epsilon and delta must be equally long, got lengths 2 and 1; give each release its own",
    ),
    (lambda: acc.kairouz_composition([0.1], [0.0] * 3, 1e-5), r"got lengths 1 and 3"),
    (lambda: acc.renyi_epsilon([2.0], [1.0, 2.0], 1e-5), r"orders and rdp must be equally long"),
    (lambda: acc.renyi_delta([2.0, 3.0], jnp.ones(4), 1.0), r"got lengths 2 and 4"),
]


def test_one_number_applies_to_every_release():
    epsilons = [0.1, 0.2, 0.3]
    close(acc.basic_composition(epsilons, 1e-6), acc.basic_composition(epsilons, [1e-6] * 3))
    close(acc.basic_composition(0.1, jnp.full(3, 1e-6)), (0.3, 3e-6))
    close(acc.basic_composition(0.1, 1e-6), (0.1, 1e-6))
    with_number, many = (acc.kairouz_composition(epsilons, d, 1e-5) for d in (1e-6, [1e-6] * 3))
    close(with_number, many)


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rounds_must_be_an_integer():
    with pytest.raises(TypeError, match=r"rounds must be an integer, got 5\.0 of type float"):
        acc.allocate(1.0, 1e-5, 5.0)
