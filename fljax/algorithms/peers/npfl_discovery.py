r"""NPFL with unknown clusters, estimated by the clients (Gauthier 2024, chapter 7).

Neighbors that both assign each other to the same cluster learn as members of one cluster in
:class:`NPFL`, with a dual variable :math:`\gamma_{kl}` per link, which restarts at zero whenever
such a pair forms.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.peers.npfl_rl import Policy
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.problems.solvers import Spectrum, decompose, solve_shifted, strong_convexity
from fljax.problems.streams import Stream

#: The clusters and parameters in messages are not models, which a compressor may round.
NEEDS = Needs(quadratic=True, validation=True, compressed=False)

# By the model that suits -------------------------------------------------------------------------


class NPFLDiscoveryState(NamedTuple):
    """State of NPFL between rounds if each client chooses its cluster."""

    model: Array  # [K, D]  w_k
    sent: Array  # [K, D + 1]  the last message of client k: its model and the number of its cluster
    received: Array  # [K, S, D + 1]  its neighbors' messages, slot by slot
    known: Array  # [K, Q, D]  the neighbors' mean model of each cluster, at its last messages
    dual: Array  # [K, S, D]  gamma_kl, zero where l is of another cluster
    spectrum: Spectrum  # of the primal systems, constant


@module
class Choosing(Algorithm):
    r""":class:`~fljax.algorithms.NPFL` whose clients choose their cluster and send its number with
    their model.

    Clients start in the clusters :math:`k\bmod Q`. After ``warmup`` rounds each client, after its
    primal step, chooses the cluster :math:`\arg\min_rm_{kr}` whose mean model
    :math:`\hat w_{k,(r)}` among its neighbors, without its own, has the smallest misfit on its
    validation data (on the training data the model of its current cluster would always fit best);
    for a cluster without neighbors it uses the last mean model. Each subclass defines the misfit
    :math:`m_{kr}`. Cluster numbers are consistent among neighbors, but may denote different
    clusters in distant parts of the network.

    Args:
      penalty: :math:`\rho>0`.
      inter_cluster: :math:`\tau_k\in[0,1]`, one number or ``[K]``.
      clusters: ``Q``, the number of clusters, <= clients.
      warmup: rounds before the first choice, >= 1.
    """

    penalty: Float[Array, ""] | float
    inter_cluster: Float[Array, "*clients"] | float = 0.0
    clusters: int = static(kw_only=True)
    warmup: int = static(default=10, kw_only=True)

    one_by_one = True

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.interval("inter_cluster", self.inter_cluster, at_least=0, at_most=1)
        checks.count("clusters", self.clusters)
        checks.count("warmup", self.warmup)

    def check(self, problem: Problem, network: Graph) -> None:
        checks.count("clusters", self.clusters, at_most=problem.clients)

    def message_size(self, dim: int) -> int:
        """Return the size of a model and the number of a cluster."""
        return dim + 1

    def init(self, problem: Problem, network: Graph) -> NPFLDiscoveryState:
        checks.per_client("inter_cluster", self.inter_cluster, problem.clients)
        start = start_models(problem)
        cluster = jnp.arange(problem.clients, dtype=jnp.int32) % self.clusters
        message = jnp.concatenate([start, cluster[:, None].astype(start.dtype)], axis=1)
        received = message[network.neighbor_table()[0]]
        means = jnp.broadcast_to(start[:, None], (problem.clients, self.clusters, problem.dim))
        dual = jnp.zeros_like(received[..., 1:])
        return NPFLDiscoveryState(start, message, received, means, dual, decompose(problem))

    @checks.required
    def misfit(
        self,
        problem: Problem,
        model: Float[Array, "clients dim"],
        means: Float[Array, "clients clusters dim"],
    ) -> Float[Array, "clients clusters"]:
        """Return each client's misfit to its mean model of each cluster, given its own model."""
        raise NotImplementedError

    def step(self, state: NPFLDiscoveryState, now: Round) -> NPFLDiscoveryState:
        problem = now.problem
        network = now.network
        edge = network.neighbor_table()[1] > 0
        model_sent, cluster = self.parts(state.sent)
        models_received, clusters = self.parts(state.received)

        # The primal step: consensus within the estimated cluster, attraction to the others' means.
        same = edge & (clusters == cluster[:, None])
        consensus = self.penalty * (model_sent[:, None] + models_received) - state.dual
        consensus = jnp.sum(jnp.where(same[..., None], consensus, 0), axis=1)
        mean, present = self._means(models_received, clusters, edge)
        present = present & (jnp.arange(self.clusters, dtype=jnp.int32)[None] != cluster[:, None])
        several = jnp.sum(present, axis=1, dtype=model_sent.dtype)
        tau = jnp.where(several > 0, self.inter_cluster, 0)[:, None]
        other_clusters = jnp.sum(jnp.where(present[..., None], mean, 0), axis=1)
        other_clusters = other_clusters / jnp.maximum(several, 1)[:, None]
        right = state.spectrum.moment + consensus + 2 * tau * other_clusters
        curvature = 2 * (tau[:, 0] + self.penalty * jnp.sum(same, axis=1, dtype=model_sent.dtype))
        model = solve_shifted(problem, state.spectrum, curvature + strong_convexity(problem), right)

        # The message has the cluster of least misfit, by the neighbors' earlier messages.
        chosen = jnp.argmin(self.misfit(problem, model, state.known), axis=1).astype(jnp.int32)
        chosen = jnp.where(now.number > self.warmup, chosen, cluster)
        message = jnp.concatenate([model, chosen[:, None].astype(model.dtype)], axis=1)
        sent, inbox = now.link.exchange(message)
        received = inbox.messages(network)

        # Duals exist on edges within a cluster only, and restart at zero when clusters change.
        model_sent, cluster = self.parts(sent)
        models_received, clusters = self.parts(received)
        mean, present = self._means(models_received, clusters, edge)
        means = jnp.where(present[..., None], mean, state.known)
        same = edge & (clusters == cluster[:, None])
        dual = state.dual + self.penalty * (model_sent[:, None] - models_received)
        return NPFLDiscoveryState(
            model, sent, received, means, jnp.where(same[..., None], dual, 0), state.spectrum
        )

    def parts(
        self, message: Float[Array, "*rows numbers"]
    ) -> tuple[Float[Array, "*rows dim"], Int[Array, "*rows"]]:
        """Return the model and the cluster in a message, rounding the noise on its number."""
        number = jnp.clip(jnp.rint(message[..., -1]), 0, self.clusters - 1)
        return message[..., :-1], number.astype(jnp.int32)

    def _means(
        self,
        models: Float[Array, "clients slots dim"],
        cluster: Int[Array, "clients slots"],
        edge: Bool[Array, "clients slots"],
    ) -> tuple[Float[Array, "clients clusters dim"], Bool[Array, "clients clusters"]]:
        """Return the mean model of the neighbors in each cluster, and whether there are any."""
        member = jax.nn.one_hot(cluster, self.clusters, dtype=models.dtype)
        member = jnp.where(edge[..., None], member, 0)
        count = jnp.sum(member, axis=1)
        total = jnp.einsum("ksq,ksd->kqd", member, models, precision=HIGHEST)
        return total / jnp.maximum(count, 1)[..., None], count > 0


@algorithm("NPFL, by loss", ("ghosh2020", "gauthier2024"), NEEDS)
@module
class NPFLByLoss(Choosing):
    r"""NPFL in which each client chooses the cluster whose model has the smallest loss on its data.

    :class:`Choosing` with :math:`m_{kr}=\frac1{D_k}\sum_j\ell(x_{k,j},y_{k,j};\hat w_{k,(r)})` over
    its validation data: the rule of :class:`IFCA`, among neighbors.

    Args:
      penalty: :math:`\rho>0`.
      inter_cluster: :math:`\tau_k\in[0,1]`, one number or ``[K]``.
      clusters: ``Q``, <= clients.
      warmup: rounds before the first choice, >= 1.

    Raises:
      ValueError: more clusters than clients; a problem without validation data, one that is not
        quadratic or that clips gradients.

    Example:
      >>> import jax, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> cluster = fl.problems.random_clusters(keys[0], 12, 2)
      >>> problem = fl.problems.clustered_ridge(
      ...     keys[1], cluster, 2, (9, 9), 3, 5.0, 0.01, validated=True
      ... )
      >>> algorithm = fl.algorithms.NPFLByLoss(1.0, clusters=2)
      >>> def agreement(now):
      ...     chosen = now.state.sent[:, -1].astype(int)
      ...     return fl.clustering.adjusted_rand(chosen, cluster)
      >>> rand = fl.metrics.Metric("rand", agreement, "adjusted Rand index")
      >>> network = fl.graphs.complete(12)
      >>> simulation = fl.Simulation(problem, algorithm, network, metrics=rand)
      >>> round(float(fl.run(simulation, rounds=50).rand[-1]), 6)
      1.0

    Reference:
      Ghosh et al. 2020, Algorithm 1, for the choice; Gauthier 2024, chapter 7, on (6.2)-(6.6).
    """

    def misfit(self, problem: Problem, model: Array, means: Array) -> Array:
        validation = problem.tasks.validation  # pyright: ignore[reportOptionalMemberAccess]
        return jax.vmap(validation.mean_loss, in_axes=1, out_axes=1)(means)


@algorithm("NPFL, by gradient", "gauthier2024", NEEDS)
@module
class NPFLByGradient(Choosing):
    r"""NPFL in which each client chooses the cluster whose model is nearest to its gradient step.

    :class:`Choosing` with :math:`m_{kr}=\|\hat w_{k,(r)}-(w_k-\eta V_k'(w_k))\|^2`, :math:`V_k`
    being the mean loss on its validation data. If its own model and its cluster's models have the
    same error, the gradient indicates its direction; losses only show that all are large.

    Args:
      step_size: :math:`\eta>0`; with the inverse of the curvature of :math:`V_k`, averaged over
        directions, the step leads, on average over the distribution of the samples, to the model
        that generated the data.
      penalty: :math:`\rho>0`; this and the other arguments as in :class:`NPFLByLoss`.

    Raises:
      ValueError: a step size that is not positive; as for :class:`NPFLByLoss`.

    Example:
      >>> import jax, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> cluster = fl.problems.random_clusters(keys[0], 12, 2)
      >>> problem = fl.problems.clustered_ridge(
      ...     keys[1], cluster, 2, (9, 9), 3, 5.0, 0.01, validated=True
      ... )
      >>> algorithm = fl.algorithms.NPFLByGradient(1.0, clusters=2, step_size=0.5)
      >>> def agreement(now):
      ...     chosen = now.state.sent[:, -1].astype(int)
      ...     return fl.clustering.adjusted_rand(chosen, cluster)
      >>> rand = fl.metrics.Metric("rand", agreement, "adjusted Rand index")
      >>> network = fl.graphs.complete(12)
      >>> simulation = fl.Simulation(problem, algorithm, network, metrics=rand)
      >>> round(float(fl.run(simulation, rounds=50).rand[-1]), 6)
      1.0

    Reference:
      Gauthier 2024, chapter 7, on (6.2)-(6.6).
    """

    step_size: Float[Array, ""] | float = field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("step_size", self.step_size)

    def misfit(self, problem: Problem, model: Array, means: Array) -> Array:
        validation = problem.tasks.validation  # pyright: ignore[reportOptionalMemberAccess]
        moved = model - self.step_size * validation.loss_gradient(model)
        return jnp.sum((means - moved[:, None]) ** 2, axis=2)


# By learned parameters ---------------------------------------------------------------------------


class NeighborContext(NamedTuple):
    """Quantities other than the parameters on which a primal step depends."""

    pull: Array  # [K, D]  of its like: sum_l rho (w_k + w_l) - gamma_kl
    like: Array  # [K, S]  which neighbors take client k for their like, and it them
    models: Array  # [K, S, D]  w_l


class NPFLByParametersState(NamedTuple):
    """State of NPFL between rounds if each client learns a parameter for each neighbor."""

    model: Array  # [K, D]  w_k
    sent: Array  # [K, D + K]  the last message of client k: its model and its parameters, by client
    received: Array  # [K, S, D + K]  its neighbors' messages, slot by slot
    dual: Array  # [K, S, D]  gamma_kl, zero where l is not its like
    inter_cluster: Array  # [K, S]  tau_kl
    context: NeighborContext  # of the last primal step
    spectrum: Spectrum  # of the primal systems, constant


@algorithm("NPFL, by parameters", "gauthier2024", NEEDS)
@module
class NPFLByParameters(Algorithm):
    r"""NPFL-RL without clusters: a parameter for each neighbor, whose value classifies it.

    "The proposed reinforcement learning mechanism ... could be adapted to behave without a priori
    cluster information on the neighbors and classify those according to the value of the
    inter-cluster learning parameter" (chapter 7). Each neighbor is a cluster of its own in (6.5),

    .. math::

        w_k^{(n)}=\arg\min_wf_k(w)+\sum_{l\in\mathcal N_k}\frac{\tau_{kl}}{|\mathcal N_k|}
            \|w_l-w\|^2+\sum_{l\in\mathcal A_k}\Big(w^\top\gamma_{kl}
            +\rho\Big\|w-\frac{w_k+w_l}2\Big\|^2\Big),

    and from the second round on a client updates its :math:`\tau_{kl}` by the ``policy``, as in
    :class:`NPFLRL`. It sends them with its model: neighbors in :math:`\mathcal A_k`, for which
    :math:`\min(\tau_{kl},\tau_{lk})\ge\theta`, are treated like members of its cluster in
    :class:`NPFL`. Their parameters continue to be learned.

    Args:
      penalty: :math:`\rho>0`.
      policy: a :class:`Policy`.
      initial: :math:`\tau_{kl}^{(0)}\in[0,1]`.
      threshold: :math:`\theta>0`; above one no neighbors are ever classified as similar, and the
        terms with :math:`\tau_{kl}` are the only coupling of clients.
      policy_steps: policy steps per round, >= 1.

    Raises:
      ValueError: a problem without validation data, one that is not quadratic or that clips
        gradients.

    Example:
      >>> import jax, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> cluster = fl.problems.random_clusters(keys[0], 12, 2)
      >>> problem = fl.problems.clustered_ridge(
      ...     keys[1], cluster, 2, (9, 9), 3, 5.0, 0.01, validated=True
      ... )
      >>> policy = fl.algorithms.RandomProbe(1.0, 0.2)
      >>> algorithm = fl.algorithms.NPFLByParameters(1.0, policy, 0.1, threshold=0.3)
      >>> def apart(now):  # how much larger the parameters of neighbors of the same cluster are
      ...     same = cluster[now.network.neighbor_table()[0]] == cluster[:, None]
      ...     learned = now.state.inter_cluster
      ...     return learned.mean(where=same) - learned.mean(where=~same)
      >>> simulation = fl.Simulation(
      ...     problem,
      ...     algorithm,
      ...     fl.graphs.complete(12),
      ...     metrics=fl.metrics.Metric("apart", apart, "difference of parameters"),
      ... )
      >>> bool(fl.run(simulation, rounds=60).apart[-1] > 0.1)
      True

    Reference:
      Gauthier 2024, chapter 7, on (6.5) and (6.12)-(6.14).
    """

    penalty: Float[Array, ""] | float
    policy: Policy
    initial: Float[Array, ""] | float = 0.05
    threshold: Float[Array, ""] | float = field(kw_only=True)
    policy_steps: int = static(default=1)

    one_by_one = True

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.interval("initial", self.initial, at_least=0, at_most=1)
        checks.positive("threshold", self.threshold)
        checks.count("policy_steps", self.policy_steps)

    def message_size_of(self, problem: Problem | Stream) -> int:
        """Return the size of a model and a parameter for each client, zero for clients that are not
        neighbors.
        """
        return problem.dim + problem.clients

    def init(self, problem: Problem, network: Graph) -> NPFLByParametersState:
        start = start_models(problem)
        neighbors, weights = network.neighbor_table()
        tau = jnp.where(weights > 0, jnp.asarray(self.initial, problem.dtype), 0)
        message = jnp.concatenate([start, by_client(tau, network)], axis=1)
        received = message[neighbors]
        models = received[..., : problem.dim]
        context = NeighborContext(
            jnp.zeros_like(start), self._similar(message, received, network), models
        )
        dual = jnp.zeros_like(models)
        spectrum = decompose(problem)
        return NPFLByParametersState(start, message, received, dual, tau, context, spectrum)

    def step(self, state: NPFLByParametersState, now: Round) -> NPFLByParametersState:
        problem = now.problem
        network = now.network
        dim = now.problem.dim
        validation = problem.tasks.validation
        edge = network.neighbor_table()[1] > 0
        neighbors = jnp.maximum(jnp.sum(edge, axis=1, keepdims=True, dtype=problem.dtype), 1)

        def shares(tau: Array) -> Array:
            return jnp.where(edge, tau, 0) / neighbors  # policies may set other entries

        # A primal step solves (H + c(tau)) w = r(tau): system returns c, and primal the model. The
        # policy moves tau by the validation loss of the last round's step, of the same context.
        def system(tau: Array, context: NeighborContext) -> Array:
            penalties = self.penalty * jnp.sum(context.like, axis=1, dtype=tau.dtype)
            return 2 * (jnp.sum(shares(tau), axis=1) + penalties) + strong_convexity(problem)

        def primal(tau: Array, context: NeighborContext) -> Array:
            mixture = jnp.einsum("ks,ksd->kd", shares(tau), context.models, precision=HIGHEST)
            right = state.spectrum.moment + context.pull + 2 * mixture
            return solve_shifted(problem, state.spectrum, system(tau, context), right)

        def cost(tau: Array) -> Array:
            model = primal(tau, state.context)
            total = validation.mean_loss(model) + problem.share * problem.regularizer.value(model)
            return total[:, None]

        def derivative(tau: Array) -> Array:
            # (H + c(tau)) w = r(tau), so dw / dtau_l = (H + c)^-1 2 (w_l - w) / |N_k|.
            model = primal(tau, state.context)
            gradient = validation.loss_gradient(model)
            gradient = gradient + problem.share[:, None] * problem.regularizer.gradient(model)
            adjoint = solve_shifted(problem, state.spectrum, system(tau, state.context), gradient)
            differences = 2 * (state.context.models - model[:, None])
            return jnp.einsum("kd,ksd->ks", adjoint, differences, precision=HIGHEST) / neighbors

        def epoch(e: Array, tau: Array) -> Array:
            key = jax.random.fold_in(now.key("policy"), e)
            moved = jnp.clip(self.policy.step(key, tau, cost, derivative), 0, 1)
            return jnp.where(edge, moved, 0)

        moved = jax.lax.fori_loop(0, self.policy_steps, epoch, state.inter_cluster)
        tau = jnp.where(now.number > 1, moved, state.inter_cluster)

        similar = self._similar(state.sent, state.received, network)
        models = state.received[..., :dim]
        consensus = self.penalty * (state.sent[:, None, :dim] + models) - state.dual
        consensus = jnp.sum(jnp.where(similar[..., None], consensus, 0), axis=1)
        context = NeighborContext(consensus, similar, models)
        model = primal(tau, context)
        sent, inbox = now.link.exchange(jnp.concatenate([model, by_client(tau, network)], axis=1))
        received = inbox.messages(network)
        similar = self._similar(sent, received, network)
        dual = state.dual + self.penalty * (sent[:, None, :dim] - received[..., :dim])
        dual = jnp.where(similar[..., None], dual, 0)
        return NPFLByParametersState(model, sent, received, dual, tau, context, state.spectrum)

    def _similar(
        self,
        sent: Float[Array, "clients numbers"],
        received: Float[Array, "clients slots numbers"],
        network: Graph,
    ) -> Bool[Array, "clients slots"]:
        """Return which neighbors are similar by the parameters sent by both, the same at both ends
        of a link.
        """
        (neighbors, weights), clients = network.neighbor_table(), network.nodes
        numbers = jnp.arange(clients, dtype=jnp.int32)[:, None, None]
        parameters_sent = jnp.take_along_axis(sent[:, -clients:], neighbors, axis=1)
        parameters_received = jnp.take_along_axis(received[..., -clients:], numbers, axis=2)[..., 0]
        return (weights > 0) & (jnp.minimum(parameters_sent, parameters_received) >= self.threshold)


def by_client(
    tau: Float[Array, "clients slots"], network: Graph
) -> Float[Array, "clients clients"]:
    """Return each client's parameters, indexed by the number of the client that they refer to."""
    neighbors, _ = network.neighbor_table()
    rows = jnp.arange(network.nodes, dtype=jnp.int32)[:, None]
    return jnp.zeros((network.nodes, network.nodes), tau.dtype).at[rows, neighbors].add(tau)
