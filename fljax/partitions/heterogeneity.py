"""How different the clients of a partition are, in numbers."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype


class Heterogeneity(NamedTuple):
    """Differences between clients' labels and sizes, as means over clients weighted by size."""

    #: Half the sum of absolute differences of a client's shares of classes from those of all rows,
    #: from 0 (equal) to nearly 1: the earth mover's distance where all classes are equally far.
    label_distance: Float[Array, ""]
    #: Exponential of the entropy of a client's labels: as many equally frequent classes.
    effective_classes: Float[Array, ""]
    #: Standard deviation of the sizes divided by their mean.
    size_variation: Float[Array, ""]
    #: Share of all rows that the largest client has.
    largest_share: Float[Array, ""]


@checked
def heterogeneity(counts: Int[Array, "clients classes"]) -> Heterogeneity:
    """Measure a partition by its numbers of rows of each class at each client.

    Args:
      counts: ``[K, C]``, of :meth:`Partition.counts`.

    Raises:
      ValueError: negative counts, or none at all.

    Reference:
      Zhao et al. 2018, section 3, whose distance is the sum and not half of it.

    Example:
      >>> import numpy as np, fljax as fl
      >>> one_class_each = fl.partitions.heterogeneity(np.diag([5, 5]))
      >>> [round(float(number), 3) for number in one_class_each]
      [0.5, 1.0, 0.0, 0.5]
    """
    checks.nonnegative("counts", counts)
    numbers = jnp.asarray(counts, float_dtype())
    sizes = jnp.sum(numbers, axis=1)
    total = jnp.sum(sizes)
    checks.check_when_concrete(_check_any, total)
    shares = numbers / jnp.maximum(sizes, 1)[:, None]
    weights = sizes / total
    overall = jnp.sum(numbers, axis=0) / total
    distance = 0.5 * jnp.sum(jnp.abs(shares - overall[None]), axis=1)
    classes = jnp.exp(-jnp.sum(xlogy(shares, shares), axis=1))
    return Heterogeneity(
        jnp.sum(weights * distance),
        jnp.sum(weights * classes),
        jnp.std(sizes) / jnp.mean(sizes),
        jnp.max(weights),
    )


def _check_any(total: Array) -> None:
    if not total:
        raise ValueError("counts are all zero: the partition has no rows.")
