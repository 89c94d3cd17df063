"""Dynamic zCDP: budgets that grow from round to round as the noise shrinks."""

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from fljax._core import checks
from fljax.privacy.accounting import inputs
from fljax.privacy.accounting.inputs import Result, checked


def _decay(decay: ArrayLike, rounds: int) -> None:
    checks.count("rounds", rounds)
    checks.interval(
        "decay", decay, above=0, at_most=1, hint="1 spends the same budget in every round."
    )


def _growth(xp: ModuleType, decay: Any, rounds: int) -> Result:
    """``decay ** -(n - 1)`` for rounds n = 1 .. rounds, [..., rounds]."""
    checks.interval(
        "decay",
        decay,
        at_least=float(np.exp(-0.98 * np.log(float(jnp.finfo(decay.dtype).max)) / rounds)),
        hint=f"Its power -{rounds} overflows {decay.dtype}; bring decay nearer to 1.",
    )
    return xp.exp(xp.multiply.outer(-xp.log(decay), xp.arange(rounds, dtype=decay.dtype)))


@checked
def dynamic_zcdp_curve(initial: ArrayLike, decay: ArrayLike, rounds: int) -> Result:
    r"""ZCDP cost accumulated after each round when the budget grows by ``1 / decay``.

    .. math:: \Phi(n) = \sum_{m=1}^{n} \varphi^{(1)} \zeta^{-(m-1)}

    Args:
        initial: Budget :math:`\varphi^{(1)}` of the first release.
        decay: :math:`\zeta` in (0, 1], the factor by which the variance falls every round while
            the sensitivity is constant.
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
    inputs.budget("initial", initial)
    _decay(decay, rounds)
    xp, *arrays = inputs.arrays(initial, decay)
    first, zeta = xp.broadcast_arrays(*arrays)
    return first[..., None] * xp.cumsum(_growth(xp, zeta, rounds), axis=-1)


@checked
def dynamic_zcdp_total(initial: ArrayLike, decay: ArrayLike, rounds: int) -> Result:
    r"""ZCDP cost of all rounds of `dynamic_zcdp_curve` together.

    Equal to :math:`\varphi^{(1)} (1 - \zeta^T) / (\zeta^{T-1} - \zeta^T)`, but computed as a sum,
    so that :math:`\zeta = 1` (total :math:`T \varphi^{(1)}`), its neighborhood and gradients are
    exact.

    References:
        Gauthier 2024, Corollary (L610). The value of 0.095 that chapter 5 of the thesis states for
        (0.001, 0.99, 300) is the sum of budgets *falling* by 0.99.

    Example:
        >>> round(float(dynamic_zcdp_total(1e-3, 0.99, 300)), 4)
        1.9197
    """
    inputs.budget("initial", initial)
    _decay(decay, rounds)
    xp, initial, decay = inputs.arrays(initial, decay)
    return initial * xp.sum(_growth(xp, decay, rounds), axis=-1)


@checked
def dynamic_zcdp_initial(total: ArrayLike, decay: ArrayLike, rounds: int) -> Result:
    """Budget of the first round for a given total, the inverse of `dynamic_zcdp_total`.

    Example:
        The noise of the first of 200 equal rounds that are together (1, 1e-3)-DP:

        >>> from fljax.privacy.accounting import gaussian_sigma, zcdp_rho
        >>> initial = dynamic_zcdp_initial(zcdp_rho(1.0, 1e-3), decay=1.0, rounds=200)
        >>> round(float(gaussian_sigma(1.0, initial)), 1)
        54.4
    """
    inputs.budget("total", total)
    _decay(decay, rounds)
    xp, total, decay = inputs.arrays(total, decay)
    return total / xp.sum(_growth(xp, decay, rounds), axis=-1)
