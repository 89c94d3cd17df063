r"""PGFL with unknown clusters, which are estimated (Gauthier 2024, chapter 7)."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.linalg import symmetric_eigen
from fljax._core.module import field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.graph.pgfl import NEEDS, PGFL, cluster_start
from fljax.algorithms.round import Round
from fljax.graphs.federation import Federation
from fljax.problems import Problem
from fljax.problems.clustering import kmeans
from fljax.problems.solvers import ProxFactor


class PGFLDiscoveryState(NamedTuple):
    """State of PGFL between rounds, and the estimated cluster of each client."""

    model: Array  # [K, D]  w_k, never sent as it is
    dual: Array  # [K, D]  varphi_k
    server: Array  # [S, Q, D]  w_{s,(q)}
    factor: ProxFactor  # of the primal systems, constant
    cluster: Array  # [K]  q_k


@module
class Discovering(PGFL):
    r""":class:`PGFL` with estimated clusters: first one model for all clients, then ``Q`` models.

    In the first ``warmup`` rounds all clients form one cluster, as in :class:`GFL`. A client's dual
    :math:`\varphi_k` is then the gradient :math:`f_k'` at the common model, and servers know it.
    Before the next round they cluster the clients by these gradients
    (:func:`cluster_by_directions`); from then on each participant is reassigned in every round to
    the cluster with the smallest misfit, :math:`\arg\min_qm_{kq}`, and to the first of them in case
    of ties, as between the models of clusters that have had no participants yet. Each subclass
    defines the misfit :math:`m_{kq}`.

    Args:
      clusters: ``Q``, the number of clusters, <= clients.
      warmup: rounds with one model for all, >= 1; enough for it to converge, since before that the
        gradients also depend on the transient.
    """

    clusters: int = static(kw_only=True)
    warmup: int = static(default=30, kw_only=True)

    #: How many of its server's models a client receives per round; all of them if ``None``.
    received: ClassVar[int | None] = 1

    def validate(self) -> None:
        super().validate()
        checks.count("clusters", self.clusters)
        checks.count("warmup", self.warmup)

    def check(self, problem: Problem, network: Federation) -> None:
        checks.count("clusters", self.clusters, at_most=problem.clients)

    def init(self, problem: Problem, network: Federation) -> Any:
        start = super().init(problem, network)
        cluster = jnp.zeros(problem.clients, jnp.int32)
        server = cluster_start(problem, network, cluster, self.clusters)
        return PGFLDiscoveryState(*start._replace(server=server), cluster)

    @checks.required
    def misfit(self, state: PGFLDiscoveryState, now: Round) -> Float[Array, "clients clusters"]:
        """Return the misfit of each client to each cluster's model at its server."""
        raise NotImplementedError

    def step(self, state: PyTree, now: Round) -> Any:
        warming_up = now.number <= self.warmup
        cluster = jax.lax.cond(
            now.number == self.warmup + 1,
            lambda: cluster_by_directions(now.key("algorithm"), state.dual, self.clusters),
            lambda: jnp.where(warming_up, state.cluster, self._best_clusters(state, now)),
        )
        share = jnp.where(warming_up, 0, self.inter_cluster(now.number))
        received = self.received or self.clusters
        after = self._round(state, now, cluster, self.clusters, share, received)
        server = jnp.where(warming_up, after.server[:, :1], after.server)
        return PGFLDiscoveryState(*after._replace(server=server), cluster)

    def _best_clusters(self, state: PGFLDiscoveryState, now: Round) -> Int[Array, " clients"]:
        """Return the clusters of best fit; clients that do not participate keep theirs."""
        participants = now.choose(self.selection)
        best = jnp.argmin(self.misfit(state, now), axis=1).astype(jnp.int32)
        return participants.put(state.cluster, participants.take(best))

    def released(self, state: PyTree, problem: Problem, network: Federation) -> Array:
        """Return the model of each client's estimated cluster at its server."""
        return state.server[jnp.asarray(network.server, jnp.int32), state.cluster]


@algorithm(
    "PGFL, by loss",
    ("ghosh2020", "gauthier2024"),
    Needs(Federation, absent=True, averages=True, minimizer=True),
)
@module
class PGFLByLoss(Discovering):
    r"""PGFL in which each client selects the cluster whose model has the smallest loss on its data.

    :class:`Discovering` with :math:`m_{kq}=f_k(w_{s,(q)}^{(n-1)})`, the choice of :class:`IFCA`.
    Each participant receives all ``Q`` models of its server, :math:`QD` numbers on the downlink and
    ``D`` on the uplink; the cluster index sent with the model, :math:`\log_2Q` bits, is not
    counted. The index depends on the data and is not perturbed, so no private form exists;
    :class:`PGFLByGradient` has one. The model of a client's current cluster was trained on that
    client's data too, which biases the selection toward the current cluster.

    Args:
      clusters: ``Q``, <= clients.
      warmup: rounds with one model for all, >= 1.
      penalty: this and the other arguments as in :class:`PGFL`.

    Raises:
      ValueError: more clusters than clients; as for :class:`PGFL`.

    Example:
      >>> import jax, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> cluster = fl.problems.random_clusters(keys[0], 12, 2)
      >>> problem = fl.problems.clustered_ridge(keys[1], cluster, 2, (9, 9), 3, 5.0, 0.01)
      >>> servers = fl.federation.balanced(4, fl.graphs.path(3))
      >>> algorithm = fl.algorithms.PGFLByLoss(3.0, clusters=2)
      >>> def agreement(now):
      ...     return fl.clustering.adjusted_rand(now.state.cluster, cluster)
      >>> rand = fl.metrics.Metric("rand", agreement, "adjusted Rand index")
      >>> simulation = fl.Simulation(problem, algorithm, servers, metrics=rand)
      >>> round(float(fl.run(simulation, rounds=50).rand[-1]), 6)
      1.0

    Reference:
      Ghosh et al. 2020, Algorithm 1, for the choice; Gauthier 2024, chapter 7.
    """

    received: ClassVar[int | None] = None

    def misfit(self, state: PGFLDiscoveryState, now: Round) -> Float[Array, "clients clusters"]:
        models = state.server[jnp.asarray(now.network.server, jnp.int32)]
        return jax.vmap(now.problem.objective, in_axes=1, out_axes=1)(models)


@algorithm("PGFL, by gradient", "gauthier2024", NEEDS)
@module
class PGFLByGradient(Discovering):
    r"""PGFL whose servers assign clients to clusters by the gradients inferred from their messages.

    :class:`Discovering` with the squared distance between each cluster's model and a gradient step
    from the client's own cluster's model,

    .. math::

        m_{kr}=\big\|w_{s,(r)}^{(n-1)}
            -\big(w_{s,(q_k)}^{(n-1)}-\eta\varphi_k^{(n-1)}\big)\big\|^2,

    since :math:`\varphi_k` converges to the gradient of :math:`f_k` at its cluster's model. It is
    computed from perturbed messages, so it adds no privacy loss, and there are ``D`` numbers on the
    uplink and ``D`` on the downlink as in :class:`PGFL`.

    Args:
      step_size: :math:`\eta>0`; with the inverse of the curvature of :math:`f_k`, averaged over
        directions, the step leads, on average over the distribution of the samples, to the model
        that generated the data.
      clusters: ``Q``, <= clients.
      warmup: rounds with one model for all, >= 1.
      penalty: this and the other arguments as in :class:`PGFL`.

    Guarantees:
      As for :class:`PGFL`.

    Raises:
      ValueError: a step size that is not positive; as for :class:`PGFLByLoss`.

    Example:
      >>> import jax, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> cluster = fl.problems.random_clusters(keys[0], 12, 2)
      >>> problem = fl.problems.clustered_ridge(keys[1], cluster, 2, (9, 9), 3, 5.0, 0.01)
      >>> servers = fl.federation.balanced(4, fl.graphs.path(3))
      >>> algorithm = fl.algorithms.PGFLByGradient(3.0, clusters=2, step_size=0.5)
      >>> def agreement(now):
      ...     return fl.clustering.adjusted_rand(now.state.cluster, cluster)
      >>> rand = fl.metrics.Metric("rand", agreement, "adjusted Rand index")
      >>> simulation = fl.Simulation(problem, algorithm, servers, metrics=rand)
      >>> round(float(fl.run(simulation, rounds=50).rand[-1]), 6)
      1.0

    Reference:
      Gauthier 2024, chapter 7, with the dual of (5.5).
    """

    step_size: Float[Array, ""] | float = field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("step_size", self.step_size)

    def misfit(self, state: PGFLDiscoveryState, now: Round) -> Float[Array, "clients clusters"]:
        home = jnp.asarray(now.network.server, jnp.int32)
        moved = state.server[home, state.cluster] - self.step_size * state.dual
        return jnp.sum((state.server[home] - moved[:, None]) ** 2, axis=2)


def cluster_by_directions(
    key: Array, gradients: Float[Array, "clients dim"], clusters: int
) -> Int[Array, " clients"]:
    r"""Cluster clients, ``[K]``, by k-means in the :math:`Q-1` directions of largest gradient
    variance.

    At a common model the differences of the mean gradients of ``Q`` clusters span no more
    directions; the others contain only the error of finite samples. Clusters are numbered in the
    order of their first clients, so that ties between two models do not depend on the random draws
    of k-means.
    """
    if clusters == 1:
        return jnp.zeros(len(gradients), jnp.int32)
    centered = gradients - jnp.mean(gradients, axis=0, keepdims=True)
    scatter = jnp.matmul(centered.T, centered, precision=HIGHEST)
    size, directions = symmetric_eigen(scatter[None])
    _, widest = jax.lax.top_k(size[0], min(clusters - 1, size.shape[1]))
    coordinates = jnp.matmul(centered, directions[0][:, widest], precision=HIGHEST)
    cluster = kmeans(key, coordinates, clusters).cluster
    first = jnp.argmax(cluster[None] == jnp.arange(clusters, dtype=jnp.int32)[:, None], axis=1)
    return jnp.argsort(jnp.argsort(first)).astype(jnp.int32)[cluster]
