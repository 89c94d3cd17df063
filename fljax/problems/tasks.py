r"""Which clients share a task, and the data on which each task is evaluated.

A *cluster* is a set of clients that learn the same model; the clusters' models are similar, which
personalized algorithms use (Gauthier 2024, section 5.1). Membership is a property of the data, so
it is part of the :class:`~fljax.problems.Problem`; whether an algorithm uses it depends on the
algorithm.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import as_given, field, float_array, float_dtype, module, replace, static


@module
class Tasks:
    r"""The clusters of the clients, with any knowledge of each cluster's solution.

    Args:
      cluster: ``[K]`` integers in ``0..Q-1``, :math:`q_k`.
      clusters: ``Q``. A cluster without clients is allowed where membership is drawn.
      truth: ``[Q, D]`` models that generated the data, or ``None``.
      test: held-out data, a problem whose "client" ``q`` holds the data of cluster ``q``.
      validation: held-out data of the clients, a problem of ``K`` clients.

    Raises:
      ValueError: membership out of range or not integers, a known cluster without clients, models
        or held-out data with another number of clusters or clients.

    Example:
      >>> import fljax as fl
      >>> tasks = fl.problems.Tasks([0, 1, 0], clusters=2, truth=[[1.0], [-1.0]])
      >>> tasks.truth[tasks.cluster].tolist()
      [[1.0], [-1.0], [1.0]]
    """

    cluster: Annotated[Array, " clients"] = field(converter=as_given)
    clusters: int = static()
    truth: Annotated[Array, "clusters dim"] | None = field(converter=as_given, default=None)
    test: Any = None  # Problem of Q rows
    validation: Any = None  # Problem of K rows

    def validate(self) -> None:
        checks.count("clusters", self.clusters)
        object.__setattr__(
            self,
            "cluster",
            checks.group_numbers("cluster", self.cluster, self.clusters, every=True),
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
                raise TypeError(f"{name} data must be a Problem, got {checks.shown(part)}.")
            if part is not None and part.clients != rows:
                raise ValueError(
                    f"{name} data must have one row for each of the {rows} "
                    f"{'clusters' if name == 'test' else 'clients'}, got {part.clients}."
                )

    def of_clients(self, clients: Int[Array, " some"]) -> "Tasks":
        """Return the tasks of some clients, numbered as before, without their held-out data."""
        cluster = jnp.asarray(self.cluster, jnp.int32)[clients]
        return replace(self, cluster=cluster, validation=None)


@checked
def random_clusters(key: Key[Array, ""], clients: int, clusters: int) -> Int[Array, " clients"]:
    """``[K]``, a random split of the clients into clusters whose sizes differ by at most one.

    Raises:
      ValueError: more clusters than clients.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> cluster = fl.problems.random_clusters(jax.random.key(0), clients=8, clusters=3)
      >>> sorted(jnp.bincount(cluster).tolist())
      [2, 3, 3]
    """
    checks.count("clients", clients)
    checks.count("clusters", clusters)
    if clusters > clients:
        raise ValueError(f"{clients} clients cannot fill {clusters} clusters.")
    even = jnp.arange(clients, dtype=jnp.int32) % clusters
    return jax.random.permutation(key, even)


@checked
def group_share(
    strength: Float[Array, "*groups"] | float, index: object, groups: int
) -> Float[Array, " clients"]:
    r""":math:`\lambda/|\mathcal C_g|` for each client of group :math:`g`: a regularizer's share.

    The PGFL update divides by the clients of the server (Gauthier 2024, (5.4)), NPFL by the clients
    of the cluster (6.5); :class:`~fljax.problems.Problem` takes the result as ``strength``.

    Example:
      >>> import fljax as fl
      >>> fl.problems.group_share(1.5, [0, 0, 0, 1, 1], groups=2).tolist()
      [0.5, 0.5, 0.5, 0.75, 0.75]
    """
    index = jnp.asarray(checks.group_numbers("group", index, groups))
    checks.strength(strength, len(index))
    units = jnp.ones(index.shape, float_dtype())
    return strength / jax.ops.segment_sum(units, index, groups)[index]
