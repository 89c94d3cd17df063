r"""Random Fourier features: a shared random map under which a linear model is a kernel machine.

One map, drawn before training and shared by the server and all clients, gives models of a fixed
length that can be averaged, with no dictionary to exchange (Gauthier 2024, section 4.2.1). The
source names "the cosine feature function" from 4 inputs to 200 features (section 4.4.1) and
specifies neither kernel nor bandwidth nor scale; here the kernel is Gaussian and both numbers are
free.

References:
  A. Rahimi and B. Recht, "Random features for large-scale kernel machines", NeurIPS 2007.
  D. J. Sutherland and J. Schneider, "On the error of random Fourier features", UAI 2015: variances.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.memory import check_fits
from fljax._core.module import float_array, float_dtype, module, static
from fljax._core.numerics import HIGHEST
from fljax.problems.problem import FEW_FEATURES

KINDS = ("cosine", "pair")

# sin(2 pi s) = s P(s^2) for |s| <= 1/4: coefficients of P from the constant on, minimax in the
# absolute error (Remez exchange, 60 digits), which is 3.3e-9 for five and 9e-17 for eight of them.
SINE_SINGLE = (
    6.2831851600897226565,
    -41.341655031479418784,
    81.601004077356553391,
    -76.549782387613466232,
    39.536706762014835694,
)
SINE_DOUBLE = (
    6.2831853071795803916,
    -41.341702240395082638,
    81.605249275026291884,
    -76.705859647469673123,
    42.058688305395575059,
    -15.094471616749452933,
    3.8169974295671560615,
    -0.69093588762802366194,
)


def cos_turns(turns: Array) -> Array:
    r""":math:`\cos(2\pi u)`, elementwise: the angle in turns.

    The fraction of a turn, :math:`r=u-\mathrm{round}(u)`, is exact, and
    :math:`\cos2\pi r=\sin2\pi(\tfrac14-|r|)` is a short odd polynomial. The error is at most 2.1e-7
    in float32 and 4e-16 in float64, for any number of turns.

    It replaces ``jnp.cos``, which XLA neither vectorizes on CPU nor keeps for a second consumer.
    Measured with and without it, 8 seeds x 256 clients x 200 features of 4 inputs on CPU, ns a
    feature: 1.0 and 4.1 in float32 (2.1 and 7.7 in float64) for a prediction, 0.7 and 7.8 (1.4 and
    14.4) for a least-mean-squares step, 1.4 and 8.4 (2.4 and 15.4) for one with partial sharing.
    """
    coefficients = SINE_DOUBLE if turns.dtype == jnp.float64 else SINE_SINGLE
    s = 0.25 - jnp.abs(turns - jnp.round(turns))
    square = s * s
    value = jnp.full_like(s, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * square + coefficient
    return value * s


@module
class RandomFourier:
    r"""A map from ``L`` inputs to ``D`` random Fourier features, shared by all clients.

    .. math::
        z(x)=s\sqrt{2/D}\,\cos(\Omega x+b)\quad\text{or}\quad
        z(x)=s\sqrt{2/D}\,[\cos(\Omega x),\ \sin(\Omega x)]

    ``F`` frequencies make ``D = F`` features of kind ``"cosine"``, ``D = 2F`` of kind ``"pair"``.
    :func:`random_fourier` draws one for the Gaussian kernel.

    Args:
      frequencies: ``[F, L]``, :math:`\Omega`, radians per unit of input.
      phases: ``[F]``, :math:`b` in radians; None for pairs.
      scale: :math:`s>0`; at 1, :math:`\mathbb E\|z\|^2=1`.
      kind: ``"cosine"`` or ``"pair"``.

    Raises:
      ValueError: an unknown kind, frequencies that are not a matrix, phases that do not fit the
        kind, a scale that is not positive.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> features = fl.data.RandomFourier(jnp.array([[1.0], [2.0]]), phases=None, kind="pair")
      >>> (features(jnp.array([0.0])) ** 2).round(3).tolist()  # cosines, then sines
      [0.5, 0.5, 0.0, 0.0]
    """

    frequencies: Float[Array, "frequencies inputs"]
    phases: Float[Array, " frequencies"] | None
    scale: Float[Array, ""] | float = 1.0
    kind: str = static(default="cosine")

    def validate(self) -> None:
        checks.choice("kind", self.kind, KINDS)
        for name in ("frequencies", "phases"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, float_array(name, value))
        shape = jnp.shape(self.frequencies)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"frequencies must be [features, inputs] with no empty axis, got shape {shape}."
            )
        if self.kind == "cosine" and (self.phases is None or jnp.shape(self.phases) != shape[:1]):
            raise ValueError(
                f"cosine features need one phase a frequency, shape {shape[:1]}, got "
                f"{None if self.phases is None else jnp.shape(self.phases)}."
            )
        checks.finite("phases", self.phases)
        if self.kind == "pair" and self.phases is not None:
            raise ValueError("pairs of cosine and sine have no phases; give phases=None.")
        checks.finite("frequencies", self.frequencies)
        checks.positive("scale", self.scale)

    @property
    def inputs(self) -> int:
        """The number of inputs ``L``."""
        return self.frequencies.shape[1]

    @property
    def dim(self) -> int:
        """The number of features ``D``."""
        return self.frequencies.shape[0] * (2 if self.kind == "pair" else 1)

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch dim"]:
        """The features of one input or of any stack of them.

        Raises:
          ValueError: another number of inputs than the map has.
        """
        x = jnp.asarray(x)
        if x.shape[-1:] != (self.inputs,):
            raise ValueError(
                f"the map takes inputs of shape [..., {self.inputs}], got shape {x.shape}."
            )
        frequencies = jnp.asarray(self.frequencies) / (2 * np.pi)
        if self.inputs <= FEW_FEATURES:  # written out, XLA fuses the product with the cosine
            rows = (x[..., i, None] * self._along(frequencies[:, i], x) for i in range(self.inputs))
            phase: Any = sum(rows)
        else:
            phase = jnp.einsum("...l,fl->...f", x, frequencies, precision=HIGHEST)
        if self.kind == "pair":  # the sine is the cosine a quarter of a turn earlier
            features = jnp.concatenate([cos_turns(phase), cos_turns(phase - 0.25)], axis=-1)
        else:
            features = cos_turns(phase + self._along(jnp.asarray(self.phases) / (2 * np.pi), x))
        return np.sqrt(2 / self.dim).astype(features.dtype) * self.scale * features

    @staticmethod
    def _along(row: Array, x: Array) -> Array:
        """One number a frequency, as a row of the batch of ``x``."""
        return row.reshape((1,) * (x.ndim - 1) + row.shape)


@checked
def random_fourier(
    key: Key[Array, ""],
    inputs: int,
    features: int,
    bandwidth: Float[Array, ""] | float = 1.0,
    kind: str = "cosine",
    scale: Float[Array, ""] | float = 1.0,
) -> RandomFourier:
    r"""Draw a map for the Gaussian kernel :math:`\exp(-\|x-x'\|^2/(2\sigma^2))`.

    :math:`\Omega_{ij}\sim\mathcal N(0,1/\sigma^2)` and :math:`b_i\sim\mathcal U[0,2\pi)`: then
    :math:`\mathbb E\,z(x)^\top z(x')=s^2\kappa(x,x')`, with variance :math:`s^4/D` times
    :math:`\tfrac12+\tfrac12(1-\kappa^2)^2` for cosines and :math:`(1-\kappa^2)^2` for pairs. Pairs
    are exact at :math:`x=x'` and have smaller variance everywhere; for distant points the two kinds
    become equal.

    Args:
      key: consumed; may be traced.
      inputs: ``L``.
      features: ``D``; even for pairs.
      bandwidth: :math:`\sigma>0`, in units of the inputs; may be traced.
      kind: ``"cosine"`` (with random phases) or ``"pair"`` (cosine and sine).
      scale: :math:`s>0`; may be traced.

    Raises:
      ValueError: sizes below one, an odd number of features for pairs, an unknown kind, a
        bandwidth or scale that is not positive.

    Example:
      >>> import jax
      >>> random_fourier(jax.random.key(0), inputs=4, features=200)(jax.numpy.ones((8, 4))).shape
      (8, 200)
    """
    checks.count("inputs", inputs)
    checks.count("features", features)
    checks.choice("kind", kind, KINDS)
    checks.positive("bandwidth", bandwidth)
    if kind == "pair" and features % 2:
        raise ValueError(
            f"features must be even for pairs of cosine and sine, got {features}; take "
            f'{features + 1}, or kind="cosine".'
        )
    dtype = float_dtype()
    what = f"a map of {inputs} inputs to {features} features"
    check_fits(what, inputs, features, entry_bytes=dtype.itemsize, mend="take fewer features")
    k_frequencies, k_phases = jax.random.split(key)
    count = features // 2 if kind == "pair" else features
    frequencies = jax.random.normal(k_frequencies, (count, inputs), dtype)
    frequencies = frequencies / jnp.asarray(bandwidth, dtype)
    phases = None
    if kind == "cosine":
        phases = jax.random.uniform(k_phases, (count,), dtype, maxval=2 * np.pi)
    checks.positive("scale", scale)
    with checks.trusted():
        return RandomFourier(frequencies, phases, scale, kind)
