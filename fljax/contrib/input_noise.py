r"""Input noise: data that are randomized before training (Jung 2025, section 9.2).

A guarantee for the data extends to every model that is trained on them (post-processing,
proposition 9.1). Not every kind of input noise is differentially private: each function states its
guarantee, or that it has none. The functions take one data set and are traceable; use ``vmap`` for
several clients.

Shapes: ``N`` samples, ``D`` features.
"""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax._core.numerics import HIGHEST
from fljax._core.prng import as_key, private_normal, words
from fljax.privacy.discrete import perturbed

#: The smallest probability that 64 random bits can draw.
LEAST_PROBABILITY = 2.0**-64


@checked
def randomized_labels(
    key: Array | int, labels: Array, classes: Array, probability: Float[Array, ""] | float
) -> Array:
    r"""Replace each label, with some probability, by a uniform draw among all classes.

    Whether a label is replaced, and by which class, is decided by 64 random bits each, in integer
    arithmetic: a uniform floating-point number has 23 bits, and a probability near one or zero
    would be another one.

    Args:
      key: random key; a number is its seed.
      labels: of any shape, each one of ``classes``.
      classes: ``[K]``, all values that a label may have, different from each other: public, and not
        determined from the data.
      probability: probability of a draw, zero or in :math:`[2^{-64},1]`; the draw may equal the
        label. :func:`fljax.privacy.accounting.randomized_response_probability` gives the
        probability for a budget. A number of Python or NumPy keeps its double precision.

    Raises:
      ValueError: a label outside the classes, fewer than two classes, equal classes, classes that
        labels of this type cannot hold, a probability outside [0, 1] or too small to be drawn.

    Guarantees:
      Local DP of each label with the epsilon of
      :func:`~fljax.privacy.accounting.randomized_response_epsilon`, infinite at probability zero.
      The probability is rounded up to a multiple of :math:`2^{-64}`, and the classes are equally
      likely up to :math:`2^{-64}`, which adds at most :math:`2^{-63}K` to epsilon. Labels are drawn
      once: a second draw of the same labels incurs the same privacy loss again. Features are not
      protected.

    Example:
      >>> import numpy as np
      >>> labels = np.repeat([-1, 1], 5000)
      >>> drawn = randomized_labels(0, labels, np.array([-1, 1]), probability=0.5)
      >>> bool(abs(np.mean(drawn == labels) - 0.75) < 0.02)
      True

    Reference:
      Jung 2025, section 9.2.
    """
    checks.interval("probability", probability, at_least=0, at_most=1)
    checks.check_when_concrete(_check_drawable, probability)
    classes = checks.array("classes", classes)
    if np.ndim(classes) != 1 or np.size(classes) < 2:
        raise ValueError(
            f"classes must be the two or more values of a label, got {checks.shown(classes)}."
        )
    checks.finite("classes", classes)
    labels = checks.filled("labels", labels)
    kind = jax.dtypes.canonicalize_dtype(checks.dtype_of(labels))  # of the result
    if checks.is_concrete(classes):
        _check_classes(classes, kind)
    values = jnp.asarray(classes, kind)

    def check_labels(labels: np.ndarray, classes: Array) -> None:
        wrong = np.setdiff1d(labels, np.asarray(classes).astype(np.asarray(labels).dtype))
        if wrong.size:
            raise ValueError(
                f"labels must be of the classes {np.asarray(classes).tolist()}, got {wrong[0]}."
            )

    checks.check_when_concrete(check_labels, labels, classes)
    coin, below, high, low = words(as_key(key), np.shape(labels), 4)
    drawn = values[_uniform_index(high, low, len(values)).astype(jnp.int32)]
    return jnp.where(_bits_below(coin, below, probability), drawn, jnp.asarray(labels))


def _check_drawable(probability: Array | float) -> None:
    if 0 < float(probability) < LEAST_PROBABILITY:
        raise ValueError(
            f"probability must be zero or at least 2**-64 = {LEAST_PROBABILITY:.3g}, got "
            f"{float(probability):.3g}: 64 random bits cannot draw a smaller one. Take a larger "
            "one, which is more private, or zero."
        )


def _check_classes(classes: Array, kind: np.dtype) -> None:
    """Raise unless the classes are different from each other as labels of this type."""
    labels = np.asarray(classes)
    values = labels.astype(kind)
    # Floating-point labels are rounded as the classes are; integer ones cannot hold fractions.
    if not jnp.issubdtype(kind, np.floating) and np.any(values != labels):
        wrong = labels[values != labels][0]
        raise ValueError(
            f"labels of {kind} cannot hold the class {wrong}; give labels and classes of one type."
        )
    different, counts = np.unique(values, return_counts=True)
    if len(different) < len(values):
        raise ValueError(
            f"classes must be different from each other, got {different[counts > 1][0]} "
            f"{counts.max()} times as {kind}: a repeated class would be drawn more often than the "
            "others."
        )


def _bits_below(high: Array, low: Array, probability: Array | float) -> Array:
    """Whether 64 random bits are below a probability, which is rounded up to as many bits."""
    if checks.is_concrete(probability):
        numerator = math.ceil(fractions.Fraction(float(probability)) * 2**64)
        if numerator >= 2**64:
            return jnp.ones(high.shape, bool)
        above, rest = (np.uint32(part) for part in divmod(numerator, 2**32))
        certain = False
    else:
        # Every step is exact: scaling by powers of two, and taking integer parts away.
        scaled = jnp.asarray(probability, float_dtype()) * 2.0**32
        integer = jnp.floor(scaled)
        fraction = jnp.ceil((scaled - integer) * 2.0**32)
        carry = fraction >= 2.0**32
        integer = jnp.where(carry, integer + 1, integer)
        certain = integer >= 2.0**32
        above = jnp.where(certain, 0, integer).astype(np.uint32)
        rest = jnp.where(carry, 0, fraction).astype(np.uint32)
    return (high < above) | ((high == above) & (low < rest)) | certain


def _uniform_index(high: Array, low: Array, count: int) -> Array:
    """The integer part of ``count`` times a fraction of 64 random bits, below ``count``."""
    top, middle = _product(high, count)
    carry = _product(low, count)[0]
    total = middle + carry
    return top + (total < carry).astype(np.uint32)  # a sum that wraps is below its terms


def _product(word: Array, count: int) -> tuple[Array, Array]:
    """The upper and lower 32 bits of a product of two numbers of 32 bits."""
    mask = np.uint32(0xFFFF)
    half = np.uint32(16)
    upper_word = word >> half
    other = word & mask
    upper = np.uint32(count >> 16)
    lower = np.uint32(count & 0xFFFF)
    middle = upper_word * lower + (other * lower >> half)  # below 2**32
    last = (middle & mask) + other * upper
    return upper_word * upper + (middle >> half) + (last >> half), word * np.uint32(count)


@checked
def noisy_inputs(
    key: Array | int,
    features: Float[Array, "samples ..."],
    targets: Float[Array, " samples"],
    feature_deviation: Float[Array, ""] | float,
    target_deviation: Float[Array, ""] | float,
) -> tuple[Float[Array, "samples ..."], Float[Array, " samples"]]:
    r"""Add normal noise to features and targets.

    Args:
      key: random key; a number is its seed.
      features: ``[N, ...]``.
      targets: ``[N]``.
      feature_deviation: :math:`\sigma_x\ge0`, in the features' unit.
      target_deviation: :math:`\sigma_y\ge0`, in the targets' unit.

    Guarantees:
      None, unless two samples' features differ by at most :math:`\Delta_x` and their targets by
      :math:`\Delta_y` with certainty, as after clipping. Then local :math:`\rho`-zCDP of each
      sample with :math:`\rho=\Delta_x^2/(2\sigma_x^2)+\Delta_y^2/(2\sigma_y^2)`
      (:func:`fljax.privacy.accounting.gaussian_zcdp` of each), where rounding to a grid adds
      :math:`\sigma\sqrt D2^{-17}` to either distance of :math:`D` numbers
      (:func:`fljax.privacy.discrete.perturbed`).

    Example:
      >>> import numpy as np
      >>> x, y = noisy_inputs(0, np.zeros((5000, 2)), np.zeros(5000), 1.0, 0.0)
      >>> bool(abs(np.std(x) - 1) < 0.05), float(np.std(y))
      (True, 0.0)

    Reference:
      Jung 2025, section 9.2.
    """
    checks.finite("features", features)
    checks.finite("targets", targets)
    if len(features) != len(targets):
        raise ValueError(f"targets must be of the {len(features)} samples, got {len(targets)}.")
    deviations = {"feature_deviation": feature_deviation, "target_deviation": target_deviation}
    noisy = []
    pairs = zip(jax.random.split(as_key(key)), (features, targets), deviations.items(), strict=True)
    for draw, values, (name, deviation) in pairs:
        checks.nonnegative(name, deviation)
        values = jnp.asarray(values, float_dtype())
        noise = private_normal(draw, values.shape, values.dtype)
        noisy.append(perturbed(values, noise, jnp.asarray(deviation, values.dtype)))
    return noisy[0], noisy[1]


@checked
def replaced_features(
    key: Array | int, features: Float[Array, "samples dim"]
) -> Float[Array, "samples dim"]:
    """Replace the features by normal draws with the same mean and covariance.

    Args:
      key: random key; a number is its seed.
      features: ``[N, D]``: all of them, or the columns to be replaced. Their dependence on targets
        and other columns is lost.

    Guarantees:
      No differential privacy: mean and covariance are computed from the data, without noise, and
      one sample can change them without bound. Membership in the data can be inferred from many
      draws.

    Example:
      >>> import numpy as np
      >>> features = np.random.default_rng(0).normal(size=(5000, 2)) @ np.array([[2.0, 1], [0, 1]])
      >>> drawn = replaced_features(0, features)
      >>> bool(np.abs(np.cov(drawn.T) - np.cov(features.T)).max() < 0.3)
      True

    Reference:
      Jung 2025, section 9.2.
    """
    checks.finite("features", features)
    features = jnp.asarray(features, float_dtype())
    mean = jnp.mean(features, axis=0, keepdims=True)
    rest = features - mean
    covariance = jnp.matmul(rest.T, rest, precision=HIGHEST) / len(features)
    values, vectors = jnp.linalg.eigh(covariance)
    root = jnp.sqrt(jnp.maximum(values, 0))[:, None] * vectors.T
    drawn = jax.random.normal(as_key(key), features.shape, features.dtype)
    return mean + jnp.matmul(drawn, root, precision=HIGHEST)


@checked
def subsample(
    key: Array | int, features: Shaped[Array, "samples ..."], targets: Array, count: int
) -> tuple[Shaped[Array, "count ..."], Array]:
    """A random subset of the samples, drawn without replacement.

    Args:
      key: random key; a number is its seed.
      features: ``[N, ...]``.
      targets: ``[N, ...]``.
      count: number of samples to draw, at most ``N``.

    Guarantees:
      None: the drawn samples are revealed. If an (epsilon, delta)-DP mechanism is applied
      to the subset, and the draw stays secret, the guarantee of the whole is given
      by :func:`fljax.privacy.accounting.subsampled` with the fraction ``count / N``, for data sets
      that differ by replacing a sample.

    Example:
      >>> import numpy as np
      >>> x, y = subsample(0, np.arange(10.0)[:, None], np.arange(10.0), count=3)
      >>> x.shape, bool(np.all(x[:, 0] == y)), len(set(y.tolist()))
      ((3, 1), True, 3)

    Reference:
      Jung 2025, section 9.2.
    """
    features = checks.filled("features", features)
    checks.finite("features", features)
    targets = checks.filled("targets", targets)
    checks.finite("targets", targets)
    if np.shape(targets)[:1] != np.shape(features)[:1]:
        raise ValueError(
            f"targets must be of the {len(features)} samples, got {checks.shown(targets)}."
        )
    checks.count("count", count, at_most=len(features))
    rows = jax.random.permutation(as_key(key), len(features))[:count]
    return jnp.asarray(features)[rows], jnp.asarray(targets)[rows]
