"""PGFL by decentralized ADMM of the servers, in a single step (Gauthier 2024, (5.6)-(5.7))."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.graph.pgfl import as_inter_cluster, cluster_start, clusters_of
from fljax.algorithms.round import Round
from fljax.graphs.federation import Federation
from fljax.participation.selectors import Everyone
from fljax.problems import Problem, factorize, prox
from fljax.problems.solvers import ProxFactor

#: The signs of the servers' dual: those of ADMM, or those printed in (5.6)-(5.7).
SIGNS = ("corrected", "printed")


class PGFLSingleStepState(NamedTuple):
    """State of single-step PGFL between rounds."""

    model: Array  # [K, D]  w_k
    dual: Array  # [K, D]  varphi_k
    server: Array  # [S, Q, D]  w_{s,(q)}
    received: Array  # [S, Q, D]  the sum of the neighbors' w_{p,(q)}
    server_dual: Array  # [S, Q, D]  psi_{s,(q)}
    factor: ProxFactor  # of the primal systems, constant


@algorithm(
    "PGFL, single step",
    ("gauthier2023", "gauthier2024"),
    Needs(Federation, absent=True, averages=True, minimizer=True),
)
@module
class PGFLSingleStep(Algorithm):
    r"""PGFL with single-step ADMM at the servers, which :class:`PGFL` in the source replaces.

    Clients compute (5.4) and (5.5) as in :class:`PGFL`; with
    :math:`c_s=1+\tau^{(n)}+\rho|\mathcal N_s^-|` a server computes

    .. math::

        c_sw_{s,(q)}^{(n)} &= \frac1{|\mathcal C_{s,(q)}|}\sum_{k\in\mathcal C_{s,(q)}}
            \big(w_k^{(n)}-\varphi_k^{(n-1)}/\rho\big)-\tfrac12\psi_{s,(q)}^{(n-1)}
            +\tfrac\rho2\sum_{p\in\mathcal N_s^-}\big(w_{s,(q)}^{(n-1)}+w_{p,(q)}^{(n-1)}\big)
            +\frac{\tau^{(n)}}{(Q-1)|\mathcal N_s|}\sum_{r\ne q}\sum_{p\in\mathcal N_s}
                w_{p,(r)}^{(n-1)} \\
        \psi_{s,(q)}^{(n)} &= \psi_{s,(q)}^{(n-1)}
            +\rho\sum_{p\in\mathcal N_s^-}\big(w_{s,(q)}^{(n)}-w_{p,(q)}^{(n)}\big)

    The source prints a minus between the two models and the opposite difference in the dual, with
    which the method diverges (``signs="printed"``); (3.4) of the same thesis has the signs above.
    Without inter-cluster learning it converges to the minimizer of
    :math:`\sum_s\frac1{|\mathcal C_{s,(q)}|}\sum_{k\in\mathcal C_{s,(q)}}f_k` for every cluster:
    each cell has the same weight, regardless of its size. It has neither a private form nor a
    schedule of clients.

    Args:
      penalty: :math:`\rho>0`.
      inter_cluster: :math:`\tau^{(n)}`, as in :class:`PGFL`; without effect for a single cluster.
      signs: as above.
      inner_iterations: iterations of the primal solver if no closed form exists.

    Raises:
      ValueError: an inter-cluster parameter outside [0, 1].

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=12, samples=20, dim=2)
      >>> servers = fl.federation.balanced(4, fl.graphs.path(3))
      >>> algorithm = fl.algorithms.PGFLSingleStep(1.0)
      >>> simulation = fl.Simulation(problem, algorithm, servers, metrics=["normalized_error"])
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-3)
      True

    Reference:
      Gauthier et al. 2023 (PGFL), (6)-(7); Gauthier 2024, (5.6)-(5.7).
    """

    penalty: Float[Array, ""] | float
    inter_cluster: Callable[[Array], Array] = field(converter=as_inter_cluster, default=0.0)
    signs: str = static(default="corrected")
    inner_iterations: int = static(default=20)

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.choice("signs", self.signs, SIGNS)
        checks.count("inner_iterations", self.inner_iterations)

    def init(self, problem: Problem, network: Federation) -> PGFLSingleStepState:
        start = start_models(problem)
        server = cluster_start(problem, network, *clusters_of(problem))
        weight = jnp.full(problem.clients, self.penalty, problem.dtype)
        received = network.neighbor_sum(server)
        factor = factorize(problem, weight)
        zero = jnp.zeros_like(start), jnp.zeros_like(server)
        return PGFLSingleStepState(start, zero[0], server, received, zero[1], factor)

    def step(self, state: PGFLSingleStepState, now: Round) -> PGFLSingleStepState:
        sign = 1 if self.signs == "corrected" else -1
        problem = now.problem
        network = now.network
        link = now.link
        participants = now.choose(Everyone())
        cluster, clusters = clusters_of(problem)
        home = jnp.asarray(network.server, jnp.int32)
        tau = self.inter_cluster(now.number) if clusters > 1 else jnp.zeros((), problem.dtype)
        neighbors = network.degree[:, None, None]

        start = link.publish(state.server, participants.here)
        center = start[home, cluster] + state.dual / self.penalty
        model = prox(problem, state.factor, center, state.model, self.inner_iterations)
        messages = link.send(model, sending=participants.here)
        adjusted = messages - state.dual / self.penalty
        mean, present = link.cell_means(adjusted, cluster, clusters, participants, start)

        aggregate = jnp.where(present > 0, mean, start)
        neighborhood_mean = (start + state.received) / (1 + neighbors)
        other_clusters = (
            jnp.sum(neighborhood_mean, axis=1, keepdims=True) - neighborhood_mean
        ) / max(clusters - 1, 1)
        consensus = self.penalty / 2 * (neighbors * start + sign * state.received)
        total = aggregate - state.server_dual / 2 + consensus + tau * other_clusters
        server = total / (1 + tau + self.penalty * neighbors)

        link.relay(clusters * problem.dim)
        received = network.neighbor_sum(server)
        server_dual = state.server_dual + sign * self.penalty * (neighbors * server - received)
        dual = state.dual + self.penalty * (server[home, cluster] - messages)
        return PGFLSingleStepState(
            participants.put(state.model, model),
            participants.put(state.dual, dual),
            server,
            received,
            server_dual,
            state.factor,
        )
