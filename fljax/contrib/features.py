r"""Features from which an attribute cannot be predicted linearly (Jung 2025, section 9.3).

Nothing here is differential privacy, and no function here has an :math:`\epsilon`: a map that
removes an attribute's *covariance* with the features hides it from linear predictions on the
distribution (or the very sample) of this covariance. Only where features and attribute are jointly
Gaussian is there no other dependence, and the mapped features are independent of the attribute.

Both functions compute on the host in double precision. No tolerance decides in favor of privacy: a
direction of the features is released only if rounding cannot bring the attribute back into it, and
an attacker may use every direction that the floating-point numbers of the features have.

Shapes: ``N`` samples, ``D`` features, ``A`` sensitive attributes, ``M = D - A``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.certified_bounds import on_host, rounded_down
from fljax._core.module import float_dtype
from fljax.privacy.column_span import span

#: A mean counts as zero where it is below this fraction of the root mean square.
CENTERED = 1e-3

#: A mapped feature must vary by more than this number of times the effect of rounding on the
#: features.
GRAIN = 1000


@checked
def private_map(
    features: Float[Array, "samples dim"],
    attributes: Float[Array, "samples ..."],
    center: bool = False,
) -> Float[Array, "dim mapped"]:
    r"""The linear map that leaves no covariance with sensitive attributes, (184).

    The source has the projection

    .. math:: F=I-\frac{cc^\top}{\|c\|^2},\qquad c=\mathrm E\{xs\},

    and for several attributes that on the orthogonal complement of the columns of
    :math:`\mathrm E\{xs^\top\}`. As a matrix of floating-point numbers this :math:`F` is
    invertible, since rounding leaves a little of :math:`c` in it, and a linear prediction from
    :math:`Fx` can scale that up. Returned are the :math:`D-A` *coordinates* of the projection, in
    an orthonormal basis :math:`B` of the complement, :math:`F=BB^\top`: a map that loses :math:`A`
    dimensions by construction. The mapped features are ``features @ B``; the basis is that of their
    principal axes, so that they are uncorrelated, the one with the largest variance first.

    Among all maps that leave no covariance it keeps the most dimensions. It depends on the units of
    the features: scale features first.

    Args:
      features: ``[N, D]``, of mean zero.
      attributes: ``[N]`` or ``[N, A]``, of mean zero, fewer than features. For a category, the
        indicators of all its values but one: each attribute costs a dimension.
      center: whether features and attributes may have other means, which are subtracted to compute
        this map; otherwise such data are refused, since :math:`\mathrm E\{xs\}` is then no
        covariance.

    Returns:
      ``[D, D - A]``. A column is zero, and its mapped feature constant, where features vary less
      than a thousand times what rounding can make of them, as where some features determine
      another one.

    Raises:
      ValueError: data that are not centered, different numbers of samples, as many attributes as
        features.

    Guarantees:
      On these samples the best affine prediction of each attribute from the mapped features is its
      mean; from the mapped features as computed in floating point, of either precision, its
      :math:`R^2` is below :math:`10^{-6}D`. On other samples of the same distribution a correlation
      of the order of :math:`\sqrt{D/N}` remains; nonlinear dependence is not protected, and no
      :math:`(\epsilon,\delta)` follows. The map itself reveals the direction :math:`c`.

    Example:
      >>> import numpy as np
      >>> x = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
      >>> basis = private_map(x, x @ np.array([1.0, 1.0]))
      >>> basis.shape, (basis @ basis.T).round(6).tolist()
      ((2, 1), [[0.5, -0.5], [-0.5, 0.5]])

    Reference:
      Jung 2025, (184).
    """
    x, s = _pair(features, attributes, center)
    dim = x.shape[1]
    hidden = s.shape[1]
    if hidden >= dim:
        raise ValueError(
            f"attributes must be fewer than the {dim} features, got {hidden}: each one that is "
            "hidden costs a dimension. Hide fewer, leave out attributes that others determine, or "
            "add features."
        )
    dtype = float_dtype()
    shape = jax.ShapeDtypeStruct((dim, dim - hidden), dtype)
    return on_host(functools.partial(_complement, dtype=dtype), shape, x, s)


def _complement(features: np.ndarray, attributes: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """``[D, D - A]``, an orthonormal basis in which what rounding can reveal is zero."""
    x = _centered(features)
    s = _centered(attributes)
    covariance = x.T @ s
    norms = np.linalg.norm(covariance, axis=0, keepdims=True)
    # Each attribute in its own unit, so that the directions of all are lost and not the largest.
    covariance = covariance / np.where(norms > 0, norms, 1)
    hidden = attributes.shape[1]
    complement = np.linalg.svd(covariance)[0][:, hidden:]
    triangle = np.linalg.qr(x @ complement, mode="r")
    basis = complement @ np.linalg.svd(triangle)[2].T
    largest = basis[np.argmax(np.abs(basis), axis=0), np.arange(basis.shape[1])]
    basis = basis * np.where(largest < 0, -1.0, 1.0)[None]
    # The attribute comes back by the rounding of the map, of the features, and of this
    # computation. It cannot where the mapped feature varies by much more than all of these.
    varies = np.sqrt(np.mean((x @ basis) ** 2, axis=0))
    sizes = np.sqrt(np.mean(_scaled(features) ** 2, axis=0))
    spreads = np.sqrt(np.mean(x**2, axis=0))
    rounding = float(jnp.finfo(dtype).eps) * (sizes @ np.abs(basis))
    double = np.finfo(np.float64).eps * 8 * np.sqrt(max(x.shape)) * np.sum(spreads)
    return np.where((varies > GRAIN * (rounding + double))[None], basis, 0.0).astype(dtype)


@checked
def reconstruction_error(
    features: Float[Array, "samples dim"],
    attributes: Float[Array, "samples ..."],
    center: bool = False,
) -> Float[Array, "..."]:
    r"""Return the error of the best linear prediction of attributes; larger is more private.

    .. math:: \min_{r,b}\frac1N\sum_n\big(s_n-b-r^\top x_n\big)^2

    It equals the attribute's variance where features have no covariance with it. It does not bound
    the error of nonlinear predictions.

    The coefficients :math:`r` may be of any size: everything that the features determine as
    floating-point numbers is taken into account, however small the differences that it is in.
    Features that differ from a combination of others by rounding alone therefore count as further
    ones and explain each about :math:`1/N` of any attribute; exact combinations do not.

    Args:
      features: ``[N, D]``, of mean zero; linearly dependent features are allowed.
      attributes: ``[N]`` or ``[N, A]``, of mean zero.
      center: whether features and attributes may have other means; otherwise such data are refused.

    Returns:
      The mean squared error, ``[]`` or ``[A]``, in the attribute's unit squared, rounded down.
      :math:`R^2` is one minus its ratio to the attribute's variance.

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
    dtype = float_dtype()
    shape = jax.ShapeDtypeStruct(s.shape[1:], dtype)
    error = on_host(functools.partial(_unexplained, dtype=dtype), shape, x, s)
    return error.reshape(np.shape(attributes)[1:])


def _unexplained(features: np.ndarray, attributes: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """``[A]``, the mean squares of the attributes' unexplained parts."""
    features = np.asarray(features, np.float64)
    # A column of ones: subtracting means would round, and the roundings would be a new feature.
    basis = span(np.hstack([np.ones((len(features), 1)), features]))
    remainder = _centered(attributes, scale=False)
    for _ in range(2):  # the second time removes the first one's rounding errors
        remainder = remainder - basis @ (basis.T @ remainder)
    return rounded_down(np.mean(remainder**2, axis=0), dtype)


def _centered(values: np.ndarray, scale: bool = True) -> np.ndarray:
    values = _scaled(values) if scale else np.asarray(values, np.float64)
    return values - np.mean(values, axis=0, keepdims=True)


def _scaled(values: np.ndarray) -> np.ndarray:
    """The values divided by a power of two near the largest, so that no square overflows."""
    values = np.asarray(values, np.float64)
    return np.ldexp(values, -np.frexp(np.max(np.abs(values)))[1])


def _pair(features: Array, attributes: Array, center: bool) -> tuple[Array, Array]:
    """``[N, D]`` and ``[N, A]``, as they are given, of mean zero unless they may have another."""
    arrays = {"features": features, "attributes": attributes}
    if len(features) != len(attributes) or np.ndim(attributes) > 2:
        raise ValueError(
            f"attributes must be [samples] or [samples, attributes] of the {len(features)} samples "
            f"of features, got shape {np.shape(attributes)}."
        )
    pair = []
    for name, values in arrays.items():
        checks.finite(name, values)
        # Concrete values keep their own precision.
        array = np if checks.is_concrete(values) else jnp
        columns = array.asarray(values).reshape(len(features), -1)
        if not center:
            numbers = columns.astype(np.float64 if array is np else float_dtype())
            mean = array.mean(numbers, axis=0, keepdims=True)
            size = array.sqrt(array.mean(numbers**2, axis=0, keepdims=True))
            checks.check_when_concrete(_check_centered, name, mean, size)
        pair.append(columns)
    return pair[0], pair[1]


def _check_centered(name: str, mean: Array | np.ndarray, size: Array | np.ndarray) -> None:
    mean = np.asarray(mean)[0]
    size = np.asarray(size)[0]
    uncentered = np.abs(mean) > CENTERED * size
    if np.any(uncentered):
        column = int(np.argmax(uncentered))
        raise ValueError(
            f"{name} must be centered, got a mean of {float(mean[column]):.3g} in column {column} "
            f"of root mean square {float(size[column]):.3g}: subtract the means first, or set "
            "center=True."
        )
