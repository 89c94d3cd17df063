r"""Features from which an attribute cannot be predicted linearly (Jung 2025, section 9.3).

Nothing here is differential privacy, and no function here has an :math:`\epsilon`: a map that
removes an attribute's *covariance* with the features hides it from linear predictions on the
distribution (or the very sample) of this covariance. Only where features and attribute are jointly
Gaussian is there no other dependence, and the mapped features are independent of the attribute.

Shapes: ``N`` samples, ``D`` features, ``A`` sensitive attributes.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._arguments import checked
from fljax._module import float_dtype
from fljax._numerics import HIGHEST

__all__ = ["private_map", "reconstruction_error"]

#: A mean counts as zero where it is below this fraction of the root mean square.
CENTERED = 1e-3

#: Values smaller than so many rounding units, relative to their largest possible size, are zero.
ROUNDINGS = 100


@checked
def private_map(
    features: Float[Array, "samples dim"],
    attributes: Float[Array, "samples ..."],
    center: bool = False,
) -> Float[Array, "dim dim"]:
    r"""The projection that leaves no covariance with sensitive attributes, (184).

    .. math:: F=I-\frac{cc^\top}{\|c\|^2},\qquad c=\mathrm E\{xs\},

    and for several attributes the projection on the orthogonal complement of the columns of
    :math:`\mathrm E\{xs^\top\}`. Of all maps that leave no covariance it is the orthogonal
    projection of the highest rank. It depends on the units of the features: scale features first.
    The mapped features are ``features @ F``, since :math:`F` is symmetric.

    Args:
      features: ``[N, D]``, of mean zero.
      attributes: ``[N]`` or ``[N, A]``, of mean zero; for a category, its indicators.
      center: whether means are subtracted first, to compute this map; otherwise data with a nonzero
        mean are refused, since :math:`\mathrm E\{xs\}` is then no covariance.

    Returns:
      ``[D, D]``, of rank ``D`` minus that of the covariance with the attributes.

    Raises:
      ValueError: data that are not centered, different numbers of samples.

    Guarantees:
      On these samples the best affine prediction of each attribute from the mapped features is its
      mean. On other samples of the same distribution a correlation of the order of
      :math:`\sqrt{D/N}` remains; nonlinear dependence is not protected, and no
      :math:`(\epsilon,\delta)` follows. The map itself reveals the direction :math:`c`.

    Example:
      >>> import numpy as np
      >>> x = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
      >>> private_map(x, x @ np.array([1.0, 1.0])).round(6).tolist()
      [[0.5, -0.5], [-0.5, 0.5]]

    Reference:
      Jung 2025, (184).
    """
    x, s = _pair(features, attributes, center)
    scale = jnp.sqrt(jnp.mean(x**2))
    covariance = jnp.matmul(x.T, s, precision=HIGHEST) / len(x)
    size = jnp.linalg.norm(covariance, axis=0, keepdims=True)
    possible = scale * np.sqrt(x.shape[1]) * jnp.sqrt(jnp.mean(s**2, axis=0, keepdims=True))
    covaries = size > _least(x) * possible
    columns = jnp.where(covaries, covariance / jnp.where(covaries, size, 1), 0)
    basis = _basis(columns)
    return jnp.eye(x.shape[1], dtype=x.dtype) - jnp.matmul(basis, basis.T, precision=HIGHEST)


@checked
def reconstruction_error(
    features: Float[Array, "samples dim"],
    attributes: Float[Array, "samples ..."],
    center: bool = False,
) -> Float[Array, "..."]:
    r"""Return the error of the best linear prediction of attributes; larger is more private.

    .. math:: \min_r\frac1N\sum_n\big(s_n-r^\top x_n\big)^2

    It equals the attribute's variance where features have no covariance with it. It is no bound on
    the error of nonlinear predictions.

    Args:
      features: ``[N, D]``, of mean zero; linearly dependent features are allowed.
      attributes: ``[N]`` or ``[N, A]``, of mean zero.
      center: whether means are subtracted first, which amounts to a prediction with an intercept.

    Returns:
      The mean squared error, ``[]`` or ``[A]``, in the attribute's unit squared. :math:`R^2` is one
      minus its ratio to the attribute's variance.

    Raises:
      ValueError: data that are not centered, different numbers of samples.

    Example:
      >>> import numpy as np
      >>> x = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
      >>> s = x @ np.array([1.0, 1.0])
      >>> round(float(reconstruction_error(x[:, :1], s)), 6)
      1.0
      >>> round(float(reconstruction_error(x @ private_map(x, s), s)), 6)
      2.0

    Reference:
      Jung 2025, section 9.3.
    """
    x, s = _pair(features, attributes, center)
    size = jnp.sqrt(jnp.mean(x**2, axis=0, keepdims=True))
    # Each feature by its own size: else one in a large unit hides others as its rounding.
    basis = _basis(x / jnp.where(size > 0, size, 1))
    along = jnp.matmul(basis.T, s, precision=HIGHEST)
    rest = s - jnp.matmul(basis, along, precision=HIGHEST)
    return jnp.mean(rest**2, axis=0).reshape(np.shape(attributes)[1:])


def _least(x: Array) -> float:
    return ROUNDINGS * float(jnp.finfo(x.dtype).eps)


def _basis(columns: Array) -> Array:
    """Orthonormal basis of the space of columns of about unit norm, filled up with zeros."""
    basis, sizes, _ = jnp.linalg.svd(columns, full_matrices=False)
    return jnp.where((sizes > _least(columns) * jnp.maximum(sizes[0], 1))[None], basis, 0)


def _pair(features: Any, attributes: Any, center: bool) -> tuple[Array, Array]:
    """``[N, D]`` and ``[N, A]``, of mean zero."""
    arrays = {"features": features, "attributes": attributes}
    if len(features) != len(attributes) or np.ndim(attributes) > 2:
        raise ValueError(
            f"attributes must be [samples] or [samples, attributes] of the {len(features)} samples "
            f"of features, got shape {np.shape(attributes)}."
        )
    pair = []
    for name, values in arrays.items():
        _check.finite(name, values)
        values = jnp.asarray(values, float_dtype()).reshape(len(features), -1)
        mean = jnp.mean(values, axis=0, keepdims=True)
        if center:
            values = values - mean
        else:
            _check.known(
                _check_centered, name, mean, jnp.sqrt(jnp.mean(values**2, axis=0, keepdims=True))
            )
        pair.append(values)
    return pair[0], pair[1]


def _check_centered(name: str, mean: Any, size: Any) -> None:
    mean, size = np.asarray(mean)[0], np.asarray(size)[0]
    off = np.abs(mean) > CENTERED * size
    if np.any(off):
        column = int(np.argmax(off))
        raise ValueError(
            f"{name} must be centered, got a mean of {float(mean[column]):.3g} in column {column} "
            f"of root mean square {float(size[column]):.3g}: subtract the means first, or set "
            "center=True."
        )
