r"""CFL: clusters of clients that are halved where their updates disagree (Sattler et al. 2020)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.module import module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem

#: Clusters of so many clients are not halved, as in the authors' code.
SMALLEST = 2


class CFLState(NamedTuple):
    """State of the clusters between rounds."""

    model: Array  # [K, D]  of each client's cluster
    models: Array  # [Q, D]  theta_c of the clusters, and room for those to come
    cluster: Array  # [K]  of each client
    formed: Array  # []  how many clusters there are


@algorithm(
    "CFL",
    "sattler2021",
    Needs(None, absent=True, trains=True),
    {"Clustered federated learning": ""},
)
@module
class CFL(Averaging):
    r"""Federated averaging in clusters, each of which is halved when it has come to a standstill.

    All clients form one cluster at first. In each round a participant trains the model of its
    cluster :math:`c` and sends the update :math:`\Delta_k=w_k-\theta_c`. A cluster with

    .. math::

        \Big\|\sum_{k\in c}\frac{q_k}{\sum_{l\in c}q_l}\Delta_k\Big\|<\varepsilon_1
        \qquad\text{and}\qquad\max_{k\in c}\|\Delta_k\|>\varepsilon_2

    is at a stationary point of its members' mean objective that is none of their own. It is
    halved by the cosine similarities of their updates:

    .. math::

        c_1,c_2=\arg\min_{c_1\cup c_2=c}\ \max_{k\in c_1,l\in c_2}s_{k,l},\qquad
        s_{k,l}=\frac{\langle\Delta_k,\Delta_l\rangle}{\|\Delta_k\|\|\Delta_l\|}

    Both halves begin at :math:`\theta_c`. Then each cluster moves by the weighted mean of its
    members' updates, :math:`\theta_c\leftarrow\theta_c+\sum_{k\in c}q_k\Delta_k/\sum_{k\in c}q_k`.
    If clients of one group have equal distributions and those of two groups do not, exact updates
    at a stationary point of both groups' mean have similarity one within a group, and for two
    groups minus one across: they are separated.

    The bipartition is the exact minimizer: a maximum spanning tree of the similarities is grown
    from a member, and cut at its weakest edge. The authors' code and FL-bench's halve by complete
    linkage instead, which keeps similarities within the halves large. As in their code only
    clusters of more than two clients are halved, after ``warmup`` rounds. Where not all members of
    a cluster have been received in a round it is not halved in it, since the similarities of the
    others are not known; FL-bench's takes these as zero. Once there are ``clusters`` of them none
    is halved any more. The thresholds are of updates, which grow with step sizes and local steps;
    in the authors' code they are 0.4 and 1.6.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.
      clusters: the largest number of clusters, >= 1.
      mean_threshold: :math:`\varepsilon_1>0`.
      client_threshold: :math:`\varepsilon_2\ge0`.
      warmup: rounds in which no cluster is halved, >= 0.

    Raises:
      ValueError: no cluster, a threshold that is not positive; as for FedAvg.

    Example:
      >>> import jax, numpy as np, fljax as fl
      >>> X = np.random.default_rng(0).normal(size=(6, 20, 2))
      >>> signs = np.array([1, 1, 1, -1, -1, -1])
      >>> data = list(zip(X, X.sum(axis=2) * signs[:, None]))
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.from_clients(data, fl.problems.LeastSquares()),
      ...     algorithm=fl.algorithms.CFL(
      ...         0.1, clusters=2, mean_threshold=0.05, client_threshold=0.2
      ...     ),
      ...     metrics=["train_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=100).train_error.max("client")[-1] < 1e-6)
      True

    Reference:
      Sattler, Müller and Samek 2021, its clustering by exact bipartition.
    """

    clusters: int = static(kw_only=True)
    mean_threshold: Float[Array, ""] | float = dataclasses.field(kw_only=True)
    client_threshold: Float[Array, ""] | float = dataclasses.field(kw_only=True)
    warmup: int = static(default=0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("clusters", self.clusters)
        checks.positive("mean_threshold", self.mean_threshold)
        checks.nonnegative("client_threshold", self.client_threshold)
        checks.count("warmup", self.warmup, at_least=0)

    def init(self, problem: Problem, network: Network) -> CFLState:
        start = server_start(problem)
        return CFLState(
            jnp.tile(start, (problem.clients, 1)),
            jnp.tile(start, (self.clusters, 1)),
            jnp.zeros(problem.clients, jnp.int32),
            jnp.ones((), jnp.int32),
        )

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return problem.dim, problem.dim

    def step(self, state: CFLState, now: Round) -> CFLState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        start = now.link.publish(participants.take(state.model), cohort.active)
        learned = self.learn(now, cohort, start)
        sent = now.link.send(learned.model, clients=participants.numbers, sending=cohort.active)

        arrived = self.messages_arrived(now, cohort)
        received = participants.put(jnp.zeros(now.problem.clients, bool), arrived)
        change = jnp.where(arrived[:, None], sent - participants.take(state.model), 0)
        change = participants.put(jnp.zeros_like(state.model), change)
        weights = cohort.weights
        weights = (
            arrived.astype(change.dtype)
            if weights is None
            else weights * arrived.astype(change.dtype)
        )
        weights = participants.put(jnp.zeros_like(change[:, 0]), weights)

        state = self._halved(state, now, change, weights, received)
        means, present = _cluster_means(state.cluster, change, weights, self.clusters)
        models = jnp.where(present[:, None], state.models + means, state.models)
        return state._replace(model=models[state.cluster], models=models)

    def _halved(
        self,
        state: CFLState,
        now: Round,
        change: Float[Array, "clients dim"],
        weights: Float[Array, " clients"],
        received: Bool[Array, " clients"],
    ) -> CFLState:
        """Return the state with the clusters of this round halved that should be."""
        norms = jnp.sqrt(jnp.sum(change**2, axis=1))
        unit = change / jnp.where(norms > 0, norms, 1)[:, None]
        similarity = jnp.matmul(unit, unit.T, precision=HIGHEST)
        means, _ = _cluster_means(state.cluster, change, weights, self.clusters)
        is_settled = jnp.sum(means**2, axis=1) < jnp.asarray(self.mean_threshold) ** 2
        before = state.cluster
        existing = state.formed
        # Clients without samples have no updates that could be compared, and stay where they are.
        has_samples = jnp.any(now.problem.weights > 0, axis=1)

        def halve(state: CFLState, q: Array) -> tuple[CFLState, None]:
            members = (before == q) & has_samples
            should = is_settled[q] & (jnp.max(jnp.where(members, norms, 0)) > self.client_threshold)
            should &= (q < existing) & (state.formed < self.clusters)
            should &= jnp.all(received | ~members) & (jnp.sum(members, dtype=jnp.int32) > SMALLEST)
            should &= now.number > self.warmup
            second = jax.lax.cond(
                should, lambda: bipartition(similarity, members), lambda: jnp.zeros_like(members)
            )
            created = jnp.where(should, state.formed, self.clusters)
            halved = state._replace(
                models=state.models.at[created].set(state.models[q], mode="drop"),
                cluster=jnp.where(second, state.formed, state.cluster),
                formed=state.formed + should.astype(jnp.int32),
            )
            return halved, None

        return jax.lax.scan(halve, state, jnp.arange(self.clusters, dtype=jnp.int32))[0]


def _cluster_means(
    cluster: Int[Array, " clients"],
    change: Float[Array, "clients dim"],
    weights: Float[Array, " clients"],
    clusters: int,
) -> tuple[Float[Array, "clusters dim"], Bool[Array, " clusters"]]:
    """Return the weighted mean of the members' updates, and which clusters have any."""
    numbers = jnp.arange(clusters, dtype=cluster.dtype)
    shares = jnp.where(cluster[None] == numbers[:, None], weights[None], 0)
    total = jnp.sum(shares, axis=1)
    shares /= jnp.where(total > 0, total, 1)[:, None]
    return jnp.matmul(shares, change, precision=HIGHEST), total > 0


def bipartition(
    similarity: Float[Array, "clients clients"], members: Bool[Array, " clients"]
) -> Bool[Array, " clients"]:
    """Return one of two parts of the members between which the largest similarity is least.

    Prim's algorithm: from one member on, the most similar to those inside joins next. When the
    one joins whose similarity is the least of all, none of the others outside is more similar to
    anyone inside; they join later by larger similarities, and so to each other.
    """
    everyone = len(members)
    first = jnp.argmax(members).astype(jnp.int32)
    numbers = jnp.arange(everyone, dtype=jnp.int32)

    def join(carry: tuple[Array, ...], position: Array) -> tuple[tuple[Array, ...], None]:
        order, nearest, values = carry
        outside = members & (order < 0)
        candidates = jnp.where(outside, nearest, -jnp.inf)
        chosen = jnp.argmax(candidates).astype(jnp.int32)
        is_one = jnp.any(outside)
        order = jnp.where((numbers == chosen) & is_one, position, order)
        values = values.at[position].set(jnp.where(is_one, candidates[chosen], jnp.inf))
        nearest = jnp.where(is_one, jnp.maximum(nearest, similarity[chosen]), nearest)
        return (order, nearest, values), None

    carry = (
        jnp.where(numbers == first, 0, -1).astype(jnp.int32),
        similarity[first],
        jnp.full(everyone, jnp.inf, similarity.dtype),
    )
    (order, _, values), _ = jax.lax.scan(join, carry, numbers[1:])
    return members & (order >= jnp.argmin(values).astype(jnp.int32))
