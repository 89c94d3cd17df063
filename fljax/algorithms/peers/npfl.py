r"""Networked personalized federated learning (Gauthier 2024, section 6.1)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.graph.pgfl import clusters_of
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.problems import Problem, factorize, prox
from fljax.problems.solvers import ProxFactor


class Relations(NamedTuple):
    """Cluster relations between each client and its neighbors, constant over a run."""

    same: Graph  # edges within clusters; its degree is |N_k and C_(q)|
    others: Graph  # row k averages the clusters other than k's among its neighbors


class NPFLState(NamedTuple):
    """State of NPFL between rounds."""

    model: Array  # [K, D]  w_k
    sent: Array  # [K, D]  the last message of client k
    received: Array  # [K, D]  the sum of the messages of its cluster's neighbors
    others: Array  # [K, D]  the mean over the other clusters of their messages
    dual: Array  # [K, D]  gamma_k
    relations: Relations
    factor: ProxFactor  # of the primal systems, constant


@algorithm("NPFL", ("gauthier2023rl", "gauthier2024"), Needs(minimizer=True))
@module
class NPFL(Algorithm):
    r"""ADMM among neighbors of the same cluster, with inter-cluster learning from the others.

    Client :math:`k` of cluster :math:`q`, with
    :math:`\hat w_{k,(r)}` the mean of its neighbors' models in cluster :math:`r`, computes

    .. math::

        w_k^{(n)} &= \arg\min_w f_k(w)+\frac{\tau_k}{Q-1}\sum_{r\ne q}\|\hat w_{k,(r)}-w\|^2
            +w^\top\gamma_k+\rho\sum_{l\in\mathcal N_k\cap\mathcal C_{(q)}}
            \Big\|w-\frac{w_k+w_l}2\Big\|^2 \\
        \gamma_k^{(n)} &= \gamma_k+\rho\sum_{l\in\mathcal N_k\cap\mathcal C_{(q)}}
            (w_k^{(n)}-w_l^{(n)})

    with all right-hand sides of the first line from round :math:`n-1`, starting from zero;
    :math:`f_k` is the problem's objective, whose ``strength`` gives each client its
    :math:`\lambda/|\mathcal C_{(q)}|`. Three misprints are corrected: the dual (6.6) has the
    opposite difference and diverges, the inter-cluster term of (6.5) has the sum and :math:`\tau`
    inside the square, unlike (6.2) from which (6.11) follows, and (6.11) counts all neighbors
    instead of only the cluster's. The source has no rule for a cluster without a neighbor: it is
    omitted, and the mean is over the other clusters; if all are without neighbors, :math:`\tau_k`
    has no effect.

    Clusters are the problem's ``tasks``; without tasks, all clients form one cluster and this is
    :class:`NetworkedADMM`, the NFL of figure 6.1.

    Args:
      penalty: :math:`\rho>0`.
      inter_cluster: :math:`\tau_k\in[0,1]`, one number or ``[K]``.
      inner_iterations: iterations of the primal solver if no closed form exists.

    Raises:
      ValueError: an inter-cluster parameter outside [0, 1].

    Example:
      Neighbors of the same cluster agree:

      >>> import jax, fljax as fl
      >>> k_cluster, k_data = jax.random.split(jax.random.key(0))
      >>> cluster = fl.problems.random_clusters(k_cluster, 12, 2)
      >>> problem = fl.problems.clustered_ridge(k_data, cluster, 2, (9, 9), 3, 5.0, 0.01)
      >>> algorithm = fl.algorithms.NPFL(1.0, inter_cluster=0.1)
      >>> run = fl.run(fl.Simulation(problem, algorithm, fl.graphs.complete(12)), rounds=200)
      >>> model = run["model"].values
      >>> first = model[cluster == 0]
      >>> bool(abs(first - first[0]).max() < 1e-3), bool(abs(model - model[0]).max() < 1e-3)
      (True, False)

    Reference:
      Gauthier et al. 2023 (NPFed-RL); Gauthier 2024, (6.2)-(6.6) and (6.11).
    """

    penalty: Float[Array, ""] | float
    inter_cluster: Float[Array, "*clients"] | float = 0.0
    inner_iterations: int = static(default=100)

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.interval("inter_cluster", self.inter_cluster, at_least=0, at_most=1)
        checks.count("inner_iterations", self.inner_iterations)

    def init(self, problem: Problem, network: Graph) -> NPFLState:
        checks.per_client("inter_cluster", self.inter_cluster, problem.clients)
        start = start_models(problem)
        relations = cluster_relations(problem, network)
        factor = factorize(problem, curvature(relations, self.penalty, self.inter_cluster))
        same, other_clusters = (part.neighbor_sum(start) for part in relations)
        return NPFLState(
            start, start, same, other_clusters, jnp.zeros_like(start), relations, factor
        )

    def step(self, state: NPFLState, now: Round) -> NPFLState:
        problem = now.problem
        (same, other_clusters) = state.relations
        degree = same.degree[:, None]
        right = self.penalty * (degree * state.sent + state.received) - state.dual
        tau = jnp.broadcast_to(self.inter_cluster, (problem.clients,))[:, None]
        right = right + 2 * tau * state.others
        weight = state.factor.weight[:, None]
        center = jnp.where(weight > 0, right / jnp.where(weight > 0, weight, 1), 0)
        model = prox(problem, state.factor, center, state.model, self.inner_iterations)

        sent, inbox = now.link.exchange(model)
        received = inbox.sum(over=same)
        dual = state.dual + self.penalty * (degree * sent - received)
        averages = inbox.sum(over=other_clusters)
        return NPFLState(model, sent, received, averages, dual, state.relations, state.factor)


def cluster_relations(problem: Problem, network: Graph) -> Relations:
    """Sort each client's neighbors by cluster."""
    cluster, clusters = clusters_of(problem)
    is_in = (cluster[:, None] == jnp.arange(clusters, dtype=jnp.int32)[None]).astype(problem.dtype)
    count = network.neighbor_sum(is_in)  # [K, Q]
    present = jnp.sum((count > 0) & (is_in == 0), axis=1, dtype=problem.dtype)

    def in_mean(node: Array, neighbor: Array) -> Array:
        members = count[node, cluster[neighbor]] * present[node]
        return jnp.where(cluster[node] == cluster[neighbor], 0, 1 / jnp.maximum(members, 1))

    return Relations(
        network.reweighted(lambda node, neighbor: cluster[node] == cluster[neighbor]),
        network.reweighted(in_mean),
    )


def curvature(
    relations: Relations, penalty: Array | float, inter_cluster: Array | float
) -> Float[Array, " clients"]:
    r"""Return :math:`2\tau_k+2\rho|\mathcal N_k\cap\mathcal C_{(q)}|`, the curvature that a primal
    step adds to that of f_k.
    """
    return 2 * (inter_cluster * relations.others.degree + penalty * relations.same.degree)
