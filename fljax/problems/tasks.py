r"""Which clients share a task, and the data on which each task is evaluated.

A *cluster* is a set of clients that learn the same model; the clusters' models are alike, which
personalized algorithms use (Gauthier 2024, section 5.1). Membership is a property of the data, so
it is part of the :class:`~fljax.problems.Problem`; whether an algorithm uses it depends on the
algorithm.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fljax import _check
from fljax._arguments import checked
from fljax._module import float_array, float_dtype, module, static

__all__ = ["Tasks", "group_share", "membership", "random_clusters"]


@module
class Tasks:
    r"""The clusters of the clients, with what is known about each cluster's solution.

    Args:
      cluster: ``[K]`` integers in ``0..Q-1``, :math:`q_k`.
      clusters: ``Q``. A cluster without clients is allowed where membership is drawn.
      truth: ``[Q, D]`` models that generated the data, or ``None``.
      test: held-out data, a problem whose "client" ``q`` holds those of cluster ``q``.
      validation: held-out data of the clients, a problem of ``K`` clients.

    Raises:
      ValueError: membership out of range or not integers, a known cluster without clients, models
        or held-out data with another number of clusters or clients.
    """

    cluster: Any  # Int[Array, "clients"]
    clusters: int = static()
    truth: Any = None  # Float[Array, "clusters dim"]
    test: Any = None  # Problem of Q rows
    validation: Any = None  # Problem of K rows

    def validate(self) -> None:
        _check.count("clusters", self.clusters)
        object.__setattr__(
            self, "cluster", membership("cluster", self.cluster, self.clusters, every=True)
        )
        if self.truth is not None:
            truth = float_array("truth", self.truth)
            if truth.ndim != 2 or truth.shape[0] != self.clusters:
                raise ValueError(
                    f"truth must be [clusters, dim] with {self.clusters} clusters, got shape "
                    f"{truth.shape}."
                )
            object.__setattr__(self, "truth", truth)
        for name, rows in (("test", self.clusters), ("validation", len(self.cluster))):
            part = getattr(self, name)
            if part is not None and not hasattr(part, "clients"):
                raise TypeError(f"{name} data must be a Problem, got {_check.shown(part)}.")
            if part is not None and part.clients != rows:
                raise ValueError(
                    f"{name} data must have one row for each of the {rows} "
                    f"{'clusters' if name == 'test' else 'clients'}, got {part.clients}."
                )


def membership(name: str, index: Any, groups: int, every: bool = False) -> Any:
    """Return ``[K]`` group numbers, checked where they are concrete.

    Args:
      name: name of the groups, for errors.
      index: ``[K]`` integers.
      groups: number of groups.
      every: whether each group must have a member.

    Raises:
      ValueError: not a vector of integers, a number out of range, an empty group.
    """
    index = _check.array(name, index)
    if index.ndim != 1 or not len(index) or not jnp.issubdtype(index.dtype, np.integer):
        raise ValueError(
            f"{name} must be one whole number for each client, got shape {index.shape} of "
            f"{index.dtype}."
        )

    def check(index: Any) -> None:
        values = np.asarray(index)
        wrong = (values < 0) | (values >= groups)
        if wrong.any():
            k = int(np.argmax(wrong))
            raise ValueError(
                f"{name} numbers must be in 0..{groups - 1}, got {values[k]} for client {k}."
            )
        missing = np.setdiff1d(np.arange(groups), values)
        if every and len(missing):
            raise ValueError(
                f"{name} {missing[0]} has no clients; give it one or number the {name}s "
                f"0..{groups - len(missing) - 1}."
            )

    _check.known(check, index)
    return index.astype(np.int32)


@checked
def random_clusters(key: Key[Array, ""], clients: int, clusters: int) -> Int[Array, " clients"]:
    """``[K]``, a random split of the clients into clusters whose sizes differ by at most one.

    Raises:
      ValueError: more clusters than clients.
    """
    _check.count("clients", clients)
    _check.count("clusters", clusters)
    if clusters > clients:
        raise ValueError(f"{clients} clients cannot fill {clusters} clusters.")
    even = jnp.arange(clients, dtype=jnp.int32) % clusters
    return jax.random.permutation(key, even)


@checked
def group_share(strength: Any, index: Any, groups: int) -> Float[Array, " clients"]:
    r""":math:`\lambda/|\mathcal C_g|` for each client of group :math:`g`: a regularizer's share.

    The PGFL update divides by the clients of the server (Gauthier 2024, (5.4)), NPFL by those of
    the cluster (6.5); :class:`~fljax.problems.Problem` takes the result as ``strength``.
    """
    index = jnp.asarray(membership("group", index, groups))
    _check.strength(strength, len(index))
    ones = jnp.ones(index.shape, float_dtype())
    return strength / jax.ops.segment_sum(ones, index, groups)[index]
