"""Output noise, (181): release trained models with noise calibrated to their sensitivity (182).

One release is accounted once; each further release of the same data adds its own cost
(:mod:`fljax.privacy.accounting`). Models are rounded to a grid and perturbed on it, so that the
last bits of the released numbers reveal nothing (:mod:`fljax.privacy.discrete`); the noise covers
the sensitivity that rounding adds.
"""

from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_array, float_dtype
from fljax._core.numerics import representable_sensitivity
from fljax._core.prng import as_key, private_normal
from fljax.privacy import accounting
from fljax.privacy.discrete import discrete_laplace, least_delta, on_grid, perturbed, widened

#: Grid steps per scale of Laplace noise.
STEPS = 2**22


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
        :func:`fljax.contrib.label_sensitivity` returns it for GTVMin. A maximum over
        a few data sets that were tried is not sufficient.
      epsilon: > 0.
      delta: in (0, 1).
      scale: ``"analytic"``, exactly the least noise, or ``"classical"``,
        :math:`\sqrt{2\ln(1.25/\delta)}\Delta_2/\epsilon` as printed, which is proven for
        :math:`\epsilon<1` only, and refused otherwise.

    Returns:
      The noisy models, of the same shape.

    Raises:
      ValueError: a sensitivity or budget that is not positive, models that are not finite, the
        classical scale outside the range of its theorem; a delta below which no epsilon holds,
        since the numbers that are drawn end (:func:`fljax.privacy.discrete.least_delta`).
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
    checks.finite("models", models)
    checks.choice("scale", scale, ("analytic", "classical"))
    checks.positive("sensitivity", sensitivity, "Of zero the models would be released as they are.")
    sigma = (
        accounting.analytic_gaussian_sigma
        if scale == "analytic"
        else accounting.classical_gaussian_sigma
    )
    checks.positive("epsilon", epsilon)
    checks.interval("delta", delta, above=0, below=1)
    epsilon = float(epsilon)
    delta = float(delta)
    models = jnp.asarray(models, float_dtype())
    ratio = float(sigma(1.0, epsilon, delta))
    rho = 1 / (2 * ratio**2)
    least = least_delta(rho, rho, models.dtype)
    if delta < least:
        raise ValueError(
            f"delta={delta:g} is below {least:.2g}, where the random numbers of {models.dtype} end "
            "and no epsilon holds; take a larger delta, a smaller epsilon or double precision "
            "(`jax_enable_x64`)."
        )
    moved = _representable(sensitivity)
    rows = models.shape[-1] if models.ndim else 1
    # All models together are one release.
    models_together = models.size // max(rows, 1)
    deviation, unhidden = widened(ratio * moved, moved, rows, models.dtype, models_together)
    checks.check_when_concrete(_refuse_unhidden, unhidden)
    return perturbed(models, private_normal(as_key(key), models.shape, models.dtype), deviation)


def _representable(sensitivity: Any) -> Array:
    sensitivity = jnp.asarray(float_array("sensitivity", sensitivity), float_dtype())
    return representable_sensitivity(sensitivity, sensitivity > 0)


def _refuse_unhidden(share: Array) -> None:
    if np.any(np.asarray(share) > 0):
        raise ValueError(
            "rounding so many models to a grid would add more to their sensitivity than noise "
            "hides; release fewer of them at a time, or in double precision (`jax_enable_x64`)."
        )


@checked
def laplace_release(
    key: Array | int,
    models: Float[Array, "*rows dim"],
    sensitivity: Float[Array, ""] | float,
    epsilon: float,
) -> Float[Array, "*rows dim"]:
    r"""Return models with Laplace noise of scale :math:`\Delta_1/\epsilon`, (181).

    The noise is discrete: with integers :math:`x` of probability
    :math:`\propto e^{-|x|/s}`, :math:`s=2^{22}`, a number :math:`m` becomes
    :math:`g\,(\lfloor m/g\rceil+x)`. Rounding adds :math:`g` a number to the sensitivity, and
    :math:`g=\Delta_1/(s\epsilon-D)` for :math:`D` numbers in all spends :math:`\epsilon`.

    Args:
      key: random key; a number is its seed.
      models: as in :func:`gaussian_release`.
      sensitivity: l1, :math:`\Delta_1`, over all neighboring data sets and of all models jointly;
        for D numbers it is at most :math:`\sqrt D` times the l2 sensitivity.
      epsilon: > 0.

    Returns:
      The noisy models, of the same shape.

    Raises:
      ValueError: a sensitivity or budget that is not positive, models that are not finite, a budget
        so small that rounding would spend it.

    Guarantees:
      :math:`\epsilon`-DP, for the relation of neighbors of the sensitivity; up to a total
      variation of :math:`2^{-78}` for every number
      (:func:`~fljax.privacy.discrete.discrete_laplace`).

    Example:
      >>> import jax.numpy as jnp
      >>> released = laplace_release(0, jnp.zeros((4, 1000)), 1.0, epsilon=0.5)
      >>> bool(abs(jnp.mean(abs(released)) - 2.0) < 0.2)
      True

    Reference:
      Jung 2025, (181); Dwork & Roth 2014, theorem 3.6.
    """
    checks.finite("models", models)
    checks.positive("sensitivity", sensitivity, "Of zero the models would be released as they are.")
    checks.positive("epsilon", epsilon)
    epsilon = float(epsilon)
    models = jnp.asarray(models, float_dtype())
    spare = STEPS / float(accounting.laplace_scale(1.0, epsilon)) - models.size
    if spare <= 0:
        raise ValueError(
            f"epsilon={epsilon:g} is too small for {models.size} numbers: rounding them to a grid "
            f"would spend it alone. Take more than {models.size / STEPS:.2g}, or release fewer."
        )
    moved = _representable(sensitivity)
    rows = models.reshape(1, -1)
    drawn = discrete_laplace(as_key(key), rows.shape, STEPS)
    return on_grid(rows, drawn, jnp.reshape(moved / spare, (1, 1))).reshape(models.shape)
