r"""Privacy accounting: what a sequence of noisy releases has cost, and what a budget allows.

Two datasets are neighbours when they have the same size and differ in *one sample, replaced*
(Gauthier 2024, chapter 2); a sensitivity handed to these functions is taken over such pairs, and
is up to twice the one over pairs in which a sample is added or removed. Everything else here
(composition, conversion) holds whatever the relation, as long as it is one and the same.
Post-processing is free: what a server or a neighbour computes from a release costs nothing more.

Closed forms take Python numbers, NumPy arrays (both: float64 results) and JAX arrays, traced or
not (the dtype of the JAX arguments), so that a budget can be swept inside a compiled simulation.
Root finding (the conversions other than ``"proposition"``, the analytic Gaussian mechanism) runs
on the host in float64 and refuses traced values. All functions are elementwise; "per round" means
a trailing axis. A traced value cannot be checked.

References, by the names used below:

* *Bun & Steinke 2016*: Concentrated differential privacy: simplifications, extensions, and lower
  bounds, TCC.
* *Canonne, Kamath & Steinke 2020*: The discrete Gaussian for differential privacy, NeurIPS
  (numbering of arXiv:2004.00010v4).
* *Balle & Wang 2018*: Improving the Gaussian mechanism for differential privacy, ICML.
* *Dong, Roth & Su 2022*: Gaussian differential privacy, JRSS B (numbering of arXiv:1905.02383).
* *Dwork & Roth 2014*: The algorithmic foundations of differential privacy.
* *Kairouz, Oh & Viswanath 2015*: The composition theorem for differential privacy, ICML.
* *Mironov 2017*: Rényi differential privacy, CSF.
* *Gauthier 2024*: PhD thesis, NTNU, chapter 3.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import optimize, special

from fljax import _check
from fljax._module import float_dtype

Conversion: TypeAlias = Literal["proposition", "canonne-kamath-steinke", "gaussian"]
RenyiConversion: TypeAlias = Literal["mironov", "canonne-kamath-steinke"]
Rule: TypeAlias = Literal["uniform", "geometric", "advanced"]
Result: TypeAlias = Any  # jax.Array if any argument is one, else np.ndarray or np.float64

CONVERSIONS = ("proposition", "canonne-kamath-steinke", "gaussian")
RENYI_CONVERSIONS = ("mironov", "canonne-kamath-steinke")
RULES = ("uniform", "geometric", "advanced")

#: Halvings after which an interval is below float64 rounding.
_BISECTIONS = 60

#: Orders fine enough for most uses of `renyi_epsilon`: dense near 1, where weak guarantees have
#: their optimum, then geometric up to 1024, where strong ones have it.
RENYI_ORDERS = np.concatenate([np.arange(1.02, 2, 0.02), np.geomspace(2, 1024, 200)])


# --------------------------------------------------------------------------- plumbing


def _arrays(*values: ArrayLike) -> tuple[Any, ...]:
    """``numpy`` or ``jax.numpy``, then the values as its arrays, all of one float dtype."""
    jax_values = [v for v in values if isinstance(v, jax.Array)]
    if not jax_values:
        return np, *(np.asarray(v, np.float64) for v in values)
    floats = [v.dtype for v in jax_values if jnp.issubdtype(v.dtype, jnp.floating)]
    dtype = jnp.result_type(*floats) if floats else float_dtype()
    return jnp, *(jnp.asarray(v, dtype) for v in values)


def _host(function: str, instead: str, **values: ArrayLike) -> list[np.ndarray]:
    """The values as float64 NumPy arrays; ``TypeError`` if one is traced."""
    for name, value in values.items():
        if not _check.is_concrete(value):
            raise TypeError(
                f"{function} finds a root on the host and cannot take the traced value {name}; "
                f"compute it outside jax.jit and jax.vmap and pass the result in{instead}."
            )
    return [np.asarray(value, np.float64) for value in values.values()]


def _probability(name: str, value: ArrayLike) -> None:
    _check.interval(
        name, value, above=0, below=1, hint="It is a probability; usual values are below 1/samples."
    )


def _budget(name: str, value: ArrayLike) -> None:
    _check.positive(name, value, "No finite noise attains a zero budget; leave the release out.")


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    # Relative accuracy only: roots may be as small as 1e-20.
    brentq: Callable[..., Any] = optimize.brentq
    return float(brentq(f, low, high, xtol=1e-300, rtol=1e-14, maxiter=1000))


# --------------------------------------------------------------------------- mechanisms


def gaussian_zcdp(sensitivity: ArrayLike, sigma: ArrayLike) -> Result:
    r"""ZCDP cost of one Gaussian release, :math:`\rho = \Delta^2 / (2 \sigma^2)`.

    Args:
        sensitivity: l2 sensitivity :math:`\Delta` of the released vector.
        sigma: Standard deviation of the noise on each of its coordinates.

    Guarantees:
        Adding :math:`\mathcal{N}(0, \sigma^2 I)` is :math:`\rho`-zCDP; with equality of the Rényi
        divergences where the sensitivity is attained.

    References:
        Bun & Steinke 2016, Proposition 1.6; Gauthier 2024, Theorem I, (3.13).

    Example:
        >>> float(gaussian_zcdp(sensitivity=2.0, sigma=4.0))
        0.125
    """
    _check.nonnegative("sensitivity", sensitivity)
    _check.positive("sigma", sigma, "A release without noise has no finite privacy cost.")
    _, sensitivity, sigma = _arrays(sensitivity, sigma)
    return (sensitivity / sigma) ** 2 / 2


def gaussian_sigma(sensitivity: ArrayLike, rho: ArrayLike) -> Result:
    r"""Noise of a Gaussian release that spends rho, :math:`\sigma = \Delta / \sqrt{2 \rho}`.

    The inverse of `gaussian_zcdp`; ``rho`` is :math:`\varphi_k^{(n)}` in Gauthier 2024, (3.13).
    """
    _check.nonnegative("sensitivity", sensitivity)
    _budget("rho", rho)
    xp, sensitivity, rho = _arrays(sensitivity, rho)
    return sensitivity / xp.sqrt(2 * rho)


def laplace_epsilon(sensitivity: ArrayLike, scale: ArrayLike) -> Result:
    r"""Pure-DP cost of one Laplace release, :math:`\epsilon = \Delta_1 / b`.

    Args:
        sensitivity: l1 sensitivity :math:`\Delta_1`.
        scale: Scale :math:`b` of the noise (standard deviation :math:`\sqrt{2} b`).

    References:
        Dwork & Roth 2014, Theorem 3.6.
    """
    _check.nonnegative("sensitivity", sensitivity)
    _check.positive("scale", scale, "A release without noise has no finite privacy cost.")
    _, sensitivity, scale = _arrays(sensitivity, scale)
    return sensitivity / scale


def laplace_scale(sensitivity: ArrayLike, epsilon: ArrayLike) -> Result:
    r"""Scale of the Laplace noise that spends epsilon: the inverse of `laplace_epsilon`."""
    _check.nonnegative("sensitivity", sensitivity)
    _budget("epsilon", epsilon)
    _, sensitivity, epsilon = _arrays(sensitivity, epsilon)
    return sensitivity / epsilon


def pure_to_zcdp(epsilon: ArrayLike) -> Result:
    r"""ZCDP implied by :math:`\epsilon`-DP, :math:`\rho = \epsilon^2 / 2`.

    References:
        Bun & Steinke 2016, Proposition 1.4.
    """
    _check.nonnegative("epsilon", epsilon)
    _, epsilon = _arrays(epsilon)
    return epsilon**2 / 2


def classical_gaussian_sigma(
    sensitivity: ArrayLike, epsilon: ArrayLike, delta: ArrayLike
) -> Result:
    r"""Textbook noise of one (epsilon, delta) Gaussian release.

    .. math:: \sigma = \sqrt{2 \ln(1.25 / \delta)} \, \Delta / \epsilon

    Raises:
        ValueError: If a concrete ``epsilon`` is not below 1, where the theorem is not proven (and
            for large epsilon false).

    References:
        Dwork & Roth 2014, Theorem 3.22 (proof in appendix A).
    """
    _check.nonnegative("sensitivity", sensitivity)
    _check.interval(
        "epsilon",
        epsilon,
        above=0,
        below=1,
        hint="The classical Gaussian mechanism is proven only there; "
        "use analytic_gaussian_sigma, which is exact for every epsilon.",
    )
    _probability("delta", delta)
    xp, sensitivity, epsilon, delta = _arrays(sensitivity, epsilon, delta)
    return xp.sqrt(2 * xp.log(1.25 / delta)) * sensitivity / epsilon


def analytic_gaussian_sigma(sensitivity: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Result:
    r"""Least noise with which one Gaussian release is (epsilon, delta)-DP (on the host).

    The root in :math:`\sigma` of

    .. math::
        \Phi(\tfrac{\Delta}{2\sigma} - \tfrac{\epsilon\sigma}{\Delta})
        - e^\epsilon \Phi(-\tfrac{\Delta}{2\sigma} - \tfrac{\epsilon\sigma}{\Delta}) = \delta .

    Guarantees:
        Necessary and sufficient: any smaller noise violates (epsilon, delta)-DP.

    References:
        Balle & Wang 2018, Theorem 8.

    Example:
        >>> round(float(analytic_gaussian_sigma(1.0, epsilon=1.0, delta=1e-5)), 4)
        3.7306
    """
    _check.nonnegative("sensitivity", sensitivity)
    (sensitivity,) = _host("analytic_gaussian_sigma", "", sensitivity=sensitivity)
    return sensitivity / np.sqrt(2 * zcdp_rho(epsilon, delta, "gaussian"))


# --------------------------------------------------------------------------- zCDP


def _log_delta_gaussian(rho: float, epsilon: float) -> float:
    """Log delta of a Gaussian mechanism (Balle & Wang 2018, Theorem 8; mu = sensitivity/sigma)."""
    mu = np.sqrt(2 * rho)
    first = special.log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    # In logarithms, so that deltas below the smallest float still steer the root finder.
    with np.errstate(divide="ignore"):
        return first + np.log(-np.expm1(min(second - first, 0.0)))


def _log_delta_cks(rho: float, epsilon: float) -> float:
    """Least log delta over the orders (Canonne, Kamath & Steinke 2020, Corollary 13).

    With t = order - 1, log delta is t ((t + 1) rho - epsilon) + t log t - (t + 1) log(t + 1),
    convex in t; its derivative is written in u = log t, where the root is never near a boundary.
    """

    def slope(u: float) -> float:
        return (2 * np.exp(u) + 1) * rho - epsilon - np.logaddexp(0, -u)

    u = _root(slope, min(0.0, epsilon - 3 * rho - 1), np.log((epsilon + 1) / (2 * rho) + 1))
    t = np.exp(u)
    return t * ((t + 1) * rho - epsilon) - t * np.logaddexp(0, -u) - np.log1p(t)


_LOG_DELTA = {"canonne-kamath-steinke": _log_delta_cks, "gaussian": _log_delta_gaussian}


def _tight_epsilon(log_delta: Callable, rho: float, delta: float) -> float:
    if rho == 0 or log_delta(rho, 0.0) <= np.log(delta):
        return 0.0
    looser = rho + 2 * np.sqrt(-rho * np.log(delta))
    return _root(lambda epsilon: log_delta(rho, epsilon) - np.log(delta), 0.0, looser)


def _tight_delta(log_delta: Callable, rho: float, epsilon: float) -> float:
    return 0.0 if rho == 0 else float(np.exp(min(0.0, log_delta(rho, epsilon))))


def _tight_rho(log_delta: Callable, epsilon: float, delta: float) -> float:
    low = np.log(_proposition_rho(np, epsilon, delta))
    high = low + 1
    while log_delta(np.exp(high), epsilon) < np.log(delta):
        high += 1
    return np.exp(_root(lambda r: log_delta(np.exp(r), epsilon) - np.log(delta), low, high))


def _proposition_rho(xp: Any, epsilon: Any, delta: Any) -> Any:
    # (sqrt(L + epsilon) - sqrt(L))^2 without its cancellation for small epsilon.
    log = -xp.log(delta)
    return (epsilon / (xp.sqrt(log + epsilon) + xp.sqrt(log))) ** 2


def _tight(function: str, solve: Callable, conversion: str, **values: ArrayLike) -> Result:
    arrays = _host(
        f"{function}(conversion={conversion!r})", ", or use conversion='proposition'", **values
    )
    solve_all = np.vectorize(lambda *a: solve(_LOG_DELTA[conversion], *a), otypes=[float])
    return solve_all(*arrays)[()]


def zcdp_epsilon(
    rho: ArrayLike, delta: ArrayLike, conversion: Conversion = "proposition"
) -> Result:
    r"""Epsilon at ``delta`` of a mechanism that is :math:`\rho`-zCDP.

    Args:
        rho: Total zCDP cost, the sum over releases.
        delta: In (0, 1).
        conversion: How.

            * ``"proposition"``: :math:`\rho + 2 \sqrt{\rho \ln(1/\delta)}`, as in the thesis.
            * ``"canonne-kamath-steinke"``: the best over all orders, tighter, as general (host).
            * ``"gaussian"``: exact, but only if *every* release is Gaussian noise on a vector of
              bounded l2 sensitivity: such releases, adaptive or not, are together
              :math:`\mu`-GDP with :math:`\mu = \sqrt{2 \rho}` (host).

    Returns:
        Epsilon, >= 0; ordered gaussian <= canonne-kamath-steinke <= proposition.

    Guarantees:
        The mechanism is (epsilon, delta)-DP, for each delta of (0, 1) at once.

    References:
        Bun & Steinke 2016, Proposition 1.3; Gauthier 2024, Corollary (L610). Canonne, Kamath &
        Steinke 2020, Corollary 13. Balle & Wang 2018, Theorem 8, with Dong, Roth & Su 2022,
        Theorem 2.7 and Corollary 3.3 (Gaussian mechanism, composition).

    Example:
        >>> [round(float(zcdp_epsilon(0.1, 1e-5, c)), 3) for c in CONVERSIONS]
        [2.246, 1.914, 1.76]
    """
    _check.choice("conversion", conversion, CONVERSIONS)
    _check.nonnegative("rho", rho)
    _probability("delta", delta)
    if conversion == "proposition":
        xp, rho, delta = _arrays(rho, delta)
        return rho + 2 * xp.sqrt(rho * -xp.log(delta))
    return _tight("zcdp_epsilon", _tight_epsilon, conversion, rho=rho, delta=delta)


def zcdp_delta(
    rho: ArrayLike, epsilon: ArrayLike, conversion: Conversion = "proposition"
) -> Result:
    r"""Delta at ``epsilon`` of a mechanism that is :math:`\rho`-zCDP; see `zcdp_epsilon`.

    ``"proposition"`` gives :math:`\exp(-(\epsilon - \rho)^2 / (4 \rho))`, and 1 where
    :math:`\epsilon \le \rho`.
    """
    _check.choice("conversion", conversion, CONVERSIONS)
    _check.nonnegative("rho", rho)
    _check.nonnegative("epsilon", epsilon)
    if conversion == "proposition":
        xp, spent, allowed = _arrays(rho, epsilon)
        excess = xp.maximum(allowed - spent, 0)
        safe = xp.where(spent > 0, spent, 1)  # nothing spent: delta 0, without dividing by 0
        return xp.where(spent > 0, xp.exp(-(excess**2) / (4 * safe)), 0.0)[()]
    return _tight("zcdp_delta", _tight_delta, conversion, rho=rho, epsilon=epsilon)


def zcdp_rho(
    epsilon: ArrayLike, delta: ArrayLike, conversion: Conversion = "proposition"
) -> Result:
    r"""Largest zCDP cost whose `zcdp_epsilon` at ``delta`` is at most ``epsilon``.

    ``"proposition"`` gives :math:`(\sqrt{L + \epsilon} - \sqrt{L})^2` with
    :math:`L = \ln(1/\delta)`, computed without cancellation.

    Example:
        >>> round(float(zcdp_rho(epsilon=1.0, delta=1e-3)), 5)
        0.03379
    """
    _check.choice("conversion", conversion, CONVERSIONS)
    _budget("epsilon", epsilon)
    _probability("delta", delta)
    if conversion == "proposition":
        return _proposition_rho(*_arrays(epsilon, delta))
    return _tight("zcdp_rho", _tight_rho, conversion, epsilon=epsilon, delta=delta)


# --------------------------------------------------------------------------- dynamic zCDP


def _decay(decay: ArrayLike, rounds: int) -> None:
    _check.count("rounds", rounds)
    _check.interval(
        "decay", decay, above=0, at_most=1, hint="1 spends the same budget in every round."
    )


def _growth(xp: Any, decay: Any, rounds: int) -> Any:
    """``decay ** -(n - 1)`` for rounds n = 1 .. rounds, [..., rounds]."""
    _check.interval(
        "decay",
        decay,
        at_least=float(np.exp(-0.98 * np.log(float(jnp.finfo(decay.dtype).max)) / rounds)),
        hint=f"Its power -{rounds} overflows {decay.dtype}; bring decay nearer to 1.",
    )
    return xp.exp(xp.multiply.outer(-xp.log(decay), xp.arange(rounds, dtype=decay.dtype)))


def dynamic_zcdp_curve(initial: ArrayLike, decay: ArrayLike, rounds: int) -> Result:
    r"""ZCDP cost accumulated after each round when the budget grows by ``1 / decay``.

    .. math:: \Phi(n) = \sum_{m=1}^{n} \varphi^{(1)} \zeta^{-(m-1)}

    Args:
        initial: Budget :math:`\varphi^{(1)}` of the first release.
        decay: :math:`\zeta` in (0, 1]: the variance falls by it while the sensitivity stays.
        rounds: Number of releases T, static.

    Returns:
        ``[..., rounds]``, the last being `dynamic_zcdp_total`.

    Guarantees:
        Adaptive composition: round n may use all earlier releases, but the budgets themselves may
        not depend on the data. Each client accounts for its own data; totals do not add over
        clients, and the network's guarantee is its worst client's.

    References:
        Bun & Steinke 2016, Lemmas 1.7 and 2.3; Gauthier 2024, Corollary (L610).

    Example:
        >>> dynamic_zcdp_curve(1.0, 0.5, 4).round(9).tolist()
        [1.0, 3.0, 7.0, 15.0]
    """
    _budget("initial", initial)
    _decay(decay, rounds)
    xp, *arrays = _arrays(initial, decay)
    first, zeta = xp.broadcast_arrays(*arrays)
    return first[..., None] * xp.cumsum(_growth(xp, zeta, rounds), axis=-1)


def dynamic_zcdp_total(initial: ArrayLike, decay: ArrayLike, rounds: int) -> Result:
    r"""ZCDP cost of all the rounds of `dynamic_zcdp_curve`.

    Equal to :math:`\varphi^{(1)} (1 - \zeta^T) / (\zeta^{T-1} - \zeta^T)`, but summed, so that
    :math:`\zeta = 1` (total :math:`T \varphi^{(1)}`), its neighbourhood and gradients are exact.

    References:
        Gauthier 2024, Corollary (L610). The value of 0.095 that chapter 5 of the thesis states for
        (0.001, 0.99, 300) is the sum of budgets *falling* by 0.99.

    Example:
        >>> round(float(dynamic_zcdp_total(1e-3, 0.99, 300)), 4)
        1.9197
    """
    _budget("initial", initial)
    _decay(decay, rounds)
    xp, initial, decay = _arrays(initial, decay)
    return initial * xp.sum(_growth(xp, decay, rounds), axis=-1)


def dynamic_zcdp_initial(total: ArrayLike, decay: ArrayLike, rounds: int) -> Result:
    """First round's budget with which all ``rounds`` spend ``total``: `dynamic_zcdp_total` undone.

    Example:
        The noise of the first of 200 equal rounds that are together (1, 1e-3)-DP:

        >>> initial = dynamic_zcdp_initial(zcdp_rho(1.0, 1e-3), decay=1.0, rounds=200)
        >>> round(float(gaussian_sigma(1.0, initial)), 1)
        54.4
    """
    _budget("total", total)
    _decay(decay, rounds)
    xp, total, decay = _arrays(total, decay)
    return total / xp.sum(_growth(xp, decay, rounds), axis=-1)


# --------------------------------------------------------------------------- composition


def pure_composition(epsilon: ArrayLike) -> Result:
    """Total of pure-DP releases ``[..., rounds]``: their sum.

    References:
        Dwork & Roth 2014, Theorem 3.14 and Corollary 3.15; Gauthier 2024, Theorem 2.1.
    """
    _check.nonnegative("epsilon", epsilon)
    xp, epsilon = _arrays(epsilon)
    return xp.sum(epsilon, axis=-1)


def basic_composition(epsilon: ArrayLike, delta: ArrayLike) -> tuple[Result, Result]:
    """Total of (epsilon, delta) releases ``[..., rounds]``: both sums.

    References:
        Dwork & Roth 2014, Theorem 3.16; Gauthier 2024, Theorem 2.2.
    """
    _check.nonnegative("epsilon", epsilon)
    _check.interval("delta", delta, at_least=0, below=1)
    xp, epsilon, delta = _arrays(epsilon, delta)
    return xp.sum(epsilon, axis=-1), xp.sum(delta, axis=-1)


def advanced_composition(
    epsilon: ArrayLike, delta: ArrayLike, rounds: int, slack: ArrayLike
) -> tuple[Result, Result]:
    r"""Total of ``rounds`` equal (epsilon, delta) releases by advanced composition.

    .. math::
        \epsilon \sqrt{2 T \ln(1/\delta')} + T \epsilon (e^\epsilon - 1), \qquad T \delta + \delta'

    Args:
        epsilon: Of one release.
        delta: Of one release, in [0, 1).
        rounds: T, static.
        slack: :math:`\delta'` in (0, 1), paid once.

    References:
        Dwork & Roth 2014, Theorem 3.20.
    """
    _check.nonnegative("epsilon", epsilon)
    _check.interval("delta", delta, at_least=0, below=1)
    _check.count("rounds", rounds)
    _probability("slack", slack)
    xp, *arrays = _arrays(epsilon, delta, slack)
    each, each_delta, slack = xp.broadcast_arrays(*arrays)
    total = each * (xp.sqrt(-2 * rounds * xp.log(slack)) + rounds * xp.expm1(each))
    return total, rounds * each_delta + slack


def advanced_epsilon(total: ArrayLike, rounds: int, slack: ArrayLike) -> Result:
    """Per-release epsilon whose `advanced_composition` is ``total``, never more."""
    _budget("total", total)
    _check.count("rounds", rounds)
    _probability("slack", slack)
    xp, *arrays = _arrays(total, slack)
    total, slack = xp.broadcast_arrays(*arrays)
    linear = xp.sqrt(-2 * rounds * xp.log(slack))
    low = xp.zeros_like(total)
    # Each term alone bounds the root; the second keeps exp from overflowing.
    high = xp.minimum(total / linear, xp.maximum(1, xp.log1p(total / rounds)))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        over = middle * (linear + rounds * xp.expm1(middle)) > total
        low, high = xp.where(over, low, middle), xp.where(over, middle, high)
    return low[()]


def kairouz_composition(
    epsilon: ArrayLike, delta: ArrayLike, slack: ArrayLike
) -> tuple[Result, Result]:
    r"""Total of unequal (epsilon, delta) releases: never worse than the basic one in epsilon.

    With :math:`m = \sum_n \epsilon_n \tanh(\epsilon_n / 2)` and :math:`s = \sum_n \epsilon_n^2`,
    the least of :math:`\sum_n \epsilon_n`, :math:`m + \sqrt{2 s \ln(1/\delta')}` and
    :math:`m + \sqrt{2 s \ln(e + \sqrt{s} / \delta')}`, at
    :math:`1 - (1 - \delta') \prod_n (1 - \delta_n)`.

    Args:
        epsilon: ``[..., rounds]``.
        delta: ``[..., rounds]``, in [0, 1).
        slack: :math:`\delta'` in (0, 1), ``[...]``.

    References:
        Kairouz, Oh & Viswanath 2015, Theorem 3.5.
    """
    _check.nonnegative("epsilon", epsilon)
    _check.interval("delta", delta, at_least=0, below=1)
    _probability("slack", slack)
    xp, each, each_delta, paid = _arrays(epsilon, delta, slack)
    basic = xp.sum(each, axis=-1)
    mean = xp.sum(each * xp.tanh(each / 2), axis=-1)
    squares = xp.sum(each**2, axis=-1)
    log = xp.minimum(-xp.log(paid), xp.log(np.e + xp.sqrt(squares) / paid))
    total_delta = -xp.expm1(xp.log1p(-paid) + xp.sum(xp.log1p(-each_delta), axis=-1))
    return xp.minimum(basic, mean + xp.sqrt(2 * squares * log)), total_delta


def allocate(
    epsilon: ArrayLike,
    delta: ArrayLike,
    rounds: int,
    rule: Rule = "uniform",
    decay: ArrayLike | None = None,
) -> tuple[Result, Result]:
    r"""Split a total (epsilon, delta) over rounds: the comparator of the thesis.

    Args:
        epsilon: Total.
        delta: Total, in (0, 1).
        rounds: T, static.
        rule: How.

            * ``"uniform"``: :math:`\epsilon / T` and :math:`\delta / T` each.
            * ``"geometric"``: :math:`\epsilon_n \propto \zeta^{-(n-1)/2}` and :math:`\delta / T`,
              so that the variance falls by :math:`\zeta` a round, as under dynamic zCDP.
            * ``"advanced"``: equal, by advanced composition, with half of delta as its slack and
              :math:`\delta / (2 T)` each.
        decay: :math:`\zeta` in (0, 1]; only ``"geometric"`` needs and reads it.

    Returns:
        Epsilon and delta of each round, both ``[..., rounds]``.

    Guarantees:
        The rounds compose to at most (epsilon, delta): by `basic_composition` for the first two
        rules, by `advanced_composition` for the third.

    References:
        Gauthier 2024 (L744) names the comparator without stating its rule; Dwork & Roth
        2014, Theorems 3.16 and 3.20.

    Example:
        >>> epsilons, deltas = allocate(1.4, 1e-3, 3, "geometric", decay=0.25)
        >>> epsilons.round(9).tolist()
        [0.2, 0.4, 0.8]
    """
    _check.choice("rule", rule, RULES)
    _budget("epsilon", epsilon)
    _probability("delta", delta)
    _check.count("rounds", rounds)
    if rule == "advanced":
        xp, *arrays = _arrays(epsilon, delta)
        total, total_delta = xp.broadcast_arrays(*arrays)
        first = advanced_epsilon(total, rounds, total_delta / 2)[..., None]
        weights = xp.ones(rounds, total.dtype).reshape((1,) * total.ndim + (rounds,))
        return first * weights, total_delta[..., None] / (2 * rounds) * weights
    if rule == "geometric" and decay is None:
        raise ValueError(
            "rule 'geometric' needs decay, got None; "
            "pass a number in (0, 1], by which the variance falls every round."
        )
    decay = 1.0 if rule == "uniform" or decay is None else decay
    _check.interval("decay", decay, above=0, at_most=1, hint="1 is the uniform rule.")
    xp, *arrays = _arrays(epsilon, delta, decay)
    total, total_delta, zeta = xp.broadcast_arrays(*arrays)
    # Counted from the last round: the weights may underflow, never overflow.
    ahead = xp.arange(rounds - 1, -1, -1, dtype=zeta.dtype)
    weights = xp.exp(xp.multiply.outer(xp.log(zeta) / 2, ahead))
    first = total[..., None] / xp.sum(weights, axis=-1, keepdims=True)
    return first * weights, total_delta[..., None] / rounds * xp.ones_like(weights)


# --------------------------------------------------------------------------- Rényi DP


def _orders(orders: ArrayLike) -> None:
    _check.interval("orders", orders, above=1, hint="RENYI_ORDERS is a good default.")


def renyi_gaussian(orders: ArrayLike, sensitivity: ArrayLike, sigma: ArrayLike) -> Result:
    r"""Rényi-DP curve of one Gaussian release, :math:`\alpha \Delta^2 / (2 \sigma^2)`.

    Curves of several releases, adaptive or not, add up (Mironov 2017, Proposition 1).

    References:
        Mironov 2017, Corollary 3.
    """
    _orders(orders)
    _check.nonnegative("sensitivity", sensitivity)
    _check.positive("sigma", sigma, "A release without noise has no finite privacy cost.")
    _, orders, sensitivity, sigma = _arrays(orders, sensitivity, sigma)
    return orders * ((sensitivity / sigma) ** 2 / 2)


def renyi_laplace(orders: ArrayLike, sensitivity: ArrayLike, scale: ArrayLike) -> Result:
    r"""Rényi-DP curve of one scalar Laplace release; with :math:`r = \Delta_1 / b`,

    .. math::
        \frac{1}{\alpha - 1} \ln \Big( \frac{\alpha}{2\alpha - 1} e^{(\alpha - 1) r}
        + \frac{\alpha - 1}{2\alpha - 1} e^{-\alpha r} \Big) .

    References:
        Mironov 2017, Proposition 6.
    """
    _orders(orders)
    _check.nonnegative("sensitivity", sensitivity)
    _check.positive("scale", scale, "A release without noise has no finite privacy cost.")
    xp, orders, sensitivity, scale = _arrays(orders, sensitivity, scale)
    ratio, both = sensitivity / scale, 2 * orders - 1
    # The larger exponential is taken out, so that large orders cannot overflow.
    return ratio + xp.log1p((orders - 1) / both * xp.expm1(-both * ratio)) / (orders - 1)


def renyi_pure(orders: ArrayLike, epsilon: ArrayLike) -> Result:
    r"""Rényi-DP curve of an :math:`\epsilon`-DP release: that of randomised response.

    .. math::
        \frac{1}{\alpha - 1} \ln \frac{e^{\alpha \epsilon} + e^{(1 - \alpha) \epsilon}}
        {1 + e^{\epsilon}} \le \min(\epsilon, \alpha \epsilon^2 / 2)

    References:
        Bun & Steinke 2016, Proposition 3.3 and its proof; attained, hence tight.
    """
    _orders(orders)
    _check.nonnegative("epsilon", epsilon)
    xp, alpha, pure = _arrays(orders, epsilon)
    small = xp.log1p(xp.exp(-(2 * alpha - 1) * pure)) - xp.log1p(xp.exp(-pure))
    return pure + small / (alpha - 1)


def _along_orders(xp: Any, orders: Any, rdp: Any, value: Any) -> tuple[Any, Any]:
    """Orders ``[A]`` and a value ``[...]`` in the shape of the curves ``[..., A]``."""
    return xp.broadcast_to(orders, rdp.shape), xp.broadcast_to(value[..., None], rdp.shape)


def renyi_epsilon(
    orders: ArrayLike,
    rdp: ArrayLike,
    delta: ArrayLike,
    conversion: RenyiConversion = "canonne-kamath-steinke",
) -> Result:
    r"""Epsilon at ``delta`` of a mechanism with a given Rényi-DP curve.

    The least over the given orders of :math:`\mathrm{rdp} + \ln(1/\delta) / (\alpha - 1)`
    (``"mironov"``), or of
    :math:`\mathrm{rdp} + \ln(1/(\alpha\delta)) / (\alpha - 1) + \ln(1 - 1/\alpha)`.

    Args:
        orders: :math:`\alpha` > 1, ``[A]``.
        rdp: Total curve, ``[..., A]``.
        delta: In (0, 1), a number or ``[...]``.
        conversion: The second is never larger.

    Guarantees:
        (epsilon, delta)-DP whatever the orders; with more of them epsilon can only fall.

    References:
        Mironov 2017, Proposition 3; Canonne, Kamath & Steinke 2020, Proposition 12.

    Example:
        >>> curve = 100 * renyi_gaussian(RENYI_ORDERS, sensitivity=1.0, sigma=50.0)
        >>> round(float(renyi_epsilon(RENYI_ORDERS, curve, delta=1e-5)), 3)
        0.794
    """
    _check.choice("conversion", conversion, RENYI_CONVERSIONS)
    _orders(orders)
    _check.nonnegative("rdp", rdp)
    _probability("delta", delta)
    xp, orders, rdp, delta = _arrays(orders, rdp, delta)
    orders, log = _along_orders(xp, orders, rdp, -xp.log(delta))
    if conversion == "mironov":
        return xp.min(rdp + log / (orders - 1), axis=-1)
    epsilon = rdp + (log - xp.log(orders)) / (orders - 1) + xp.log1p(-1 / orders)
    return xp.maximum(xp.min(epsilon, axis=-1), 0)


def renyi_delta(
    orders: ArrayLike,
    rdp: ArrayLike,
    epsilon: ArrayLike,
    conversion: RenyiConversion = "canonne-kamath-steinke",
) -> Result:
    """Delta at ``epsilon`` of a mechanism with a given Rényi-DP curve; see `renyi_epsilon`."""
    _check.choice("conversion", conversion, RENYI_CONVERSIONS)
    _orders(orders)
    _check.nonnegative("rdp", rdp)
    _check.nonnegative("epsilon", epsilon)
    xp, orders, curve, epsilon = _arrays(orders, rdp, epsilon)
    alpha, allowed = _along_orders(xp, orders, curve, epsilon)
    log_delta = (alpha - 1) * (curve - allowed)
    if conversion == "canonne-kamath-steinke":
        log_delta = log_delta + (alpha - 1) * xp.log1p(-1 / alpha) - xp.log(alpha)
    return xp.exp(xp.minimum(xp.min(log_delta, axis=-1), 0))
