"""Output noise, (181): release trained models with noise calibrated to their sensitivity (182).

One release is accounted once; each further release of the same data adds its own cost
(:mod:`fljax.privacy.accounting`). The guarantees are those of exact arithmetic: the noise has as
many random bits as floats need, but its sum with the models is rounded. The closest mechanisms with
guarantees proven for floats are the budgets of a simulation that round messages to a grid
(:class:`fljax.privacy.DiscreteZCDP`).
"""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._arguments import checked
from fljax._generator import as_key, private_laplace, private_normal
from fljax._module import float_dtype
from fljax.privacy import accounting

__all__ = ["gaussian_release", "laplace_release"]


@checked
def gaussian_release(
    key: Array | int,
    models: Float[Array, "*rows dim"],
    sensitivity: Float[Array, ""] | float,
    epsilon: float,
    delta: float,
    scale: Literal["analytic", "classical"] = "analytic",
) -> Float[Array, "*rows dim"]:
    r"""Return models with Gaussian noise, (181).

    Args:
      key: random key; a number is its seed.
      models: of all clients, or anything else that was computed from the data: its dependence on
        the data must be covered by the sensitivity.
      sensitivity: l2, :math:`\Delta_2=\max\|\mathcal A(\mathcal D)-\mathcal A(\mathcal D')\|` (182)
        over *all* neighboring data sets and of all models jointly;
        :func:`fljax.theory.network_privacy.label_sensitivity` returns it for GTVMin. A maximum over
        a few data sets that were tried is not sufficient.
      epsilon: > 0.
      delta: in (0, 1).
      scale: ``"analytic"``, exactly the least noise, or ``"classical"``,
        :math:`\sqrt{2\ln(1.25/\delta)}\Delta_2/\epsilon` as printed, which is proven for
        :math:`\epsilon<1` only, and refused otherwise (ERR-25).

    Returns:
      The noisy models, of the same shape.

    Raises:
      ValueError: a negative sensitivity, a budget that is not positive, the classical scale outside
        the range of its theorem.
      TypeError: a traced budget.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP, for the relation of neighbors of the sensitivity.

    Example:
      >>> import jax.numpy as jnp
      >>> released = gaussian_release(0, jnp.zeros((4, 1000)), 1.0, epsilon=1.0, delta=1e-5)
      >>> bool(abs(jnp.std(released) - 3.73) < 0.2)
      True

    Reference:
      Jung 2025, (181); Balle & Wang 2018, theorem 8; Dwork & Roth 2014, theorem 3.22.
    """
    _check.choice("scale", scale, ("analytic", "classical"))
    _check.nonnegative("sensitivity", sensitivity)
    sigma = (
        accounting.analytic_gaussian_sigma
        if scale == "analytic"
        else accounting.classical_gaussian_sigma
    )
    return _noisy(key, models, private_normal, float(sigma(1.0, epsilon, delta)) * sensitivity)


@checked
def laplace_release(
    key: Array | int,
    models: Float[Array, "*rows dim"],
    sensitivity: Float[Array, ""] | float,
    epsilon: float,
) -> Float[Array, "*rows dim"]:
    r"""Return models with Laplace noise of scale :math:`\Delta_1/\epsilon`, (181).

    Args:
      key: random key; a number is its seed.
      models: as in :func:`gaussian_release`.
      sensitivity: l1, :math:`\Delta_1`, over all neighboring data sets and of all models jointly;
        for D numbers it is at most :math:`\sqrt D` times the l2 sensitivity.
      epsilon: > 0.

    Returns:
      The noisy models, of the same shape.

    Guarantees:
      :math:`\epsilon`-DP, for the relation of neighbors of the sensitivity.

    Example:
      >>> import jax.numpy as jnp
      >>> released = laplace_release(0, jnp.zeros((4, 1000)), 1.0, epsilon=0.5)
      >>> bool(abs(jnp.mean(abs(released)) - 2.0) < 0.2)
      True

    Reference:
      Jung 2025, (181); Dwork & Roth 2014, theorem 3.6.
    """
    _check.nonnegative("sensitivity", sensitivity)
    scale = float(accounting.laplace_scale(1.0, epsilon)) * sensitivity
    return _noisy(key, models, private_laplace, scale)


def _noisy(key: Array | int, models: Array, draw, scale: Array | float) -> Array:
    models = jnp.asarray(models, float_dtype())
    noise = draw(as_key(key), models.shape, models.dtype)
    return models + jnp.asarray(scale, models.dtype) * noise
