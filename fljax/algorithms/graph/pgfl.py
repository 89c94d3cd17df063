r"""Personalized graph federated learning (Gauthier 2024, Algorithms 4 and 5), GFL, ClusterFL."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.graphs.federation import Federation
from fljax.optimization.schedules import GeometricDecay
from fljax.participation.selectors import PerServer, Selector, everyone_or
from fljax.privacy import Gap
from fljax.problems import Problem, factorize, prox
from fljax.problems.solvers import ProxFactor, prox_rounding, strong_convexity

#: The aggregate of a cluster at a server without participants of that cluster.
EMPTY_CELLS = ("keep", "skip")

#: The model with which a client's dual is updated.
DUAL_REFERENCES = ("received", "aggregate")

#: Budgets that cover the messages, see :meth:`PGFL.sensitivity`.

NEEDS = Needs(Federation, privacy=("message",), absent=True, averages=True, minimizer=True)


class PGFLState(NamedTuple):
    """State of PGFL between rounds."""

    model: Array  # [K, D]  w_k, never sent as it is
    dual: Array  # [K, D]  varphi_k
    server: Array  # [S, Q, D]  w_{s,(q)}
    factor: ProxFactor  # of the primal systems, constant


def as_inter_cluster(value: Any) -> Callable[..., Any]:
    """Return a number in [0, 1] as a constant schedule; a schedule, in [0, 1] in round 1, as is."""
    if not callable(value):
        checks.interval("inter_cluster", value, at_least=0, at_most=1)
        value = GeometricDecay(value)
    checks.interval("inter_cluster", value(jnp.ones((), jnp.int32)), at_least=0, at_most=1)  # pyright: ignore[reportCallIssue]
    return value


@algorithm("PGFL", ("gauthier2023", "gauthier2024"), NEEDS)
@module
class PGFL(Algorithm):
    r"""Personalized graph federated learning, with or without privacy.

    Servers hold a model for every cluster. In a round every participant :math:`k`, of server
    :math:`s` and cluster :math:`q`, and then every server compute

    .. math::

        w_k^{(n)} &= \arg\min_w f_k(w)-\langle\varphi_k^{(n-1)},w-w_{s,(q)}^{(n-1)}\rangle
            +\frac\rho2\|w-w_{s,(q)}^{(n-1)}\|^2 \\
        \tilde w_k^{(n)} &= w_k^{(n)}+\xi_k^{(n)} \qquad\text{sent to the server} \\
        \tilde w_{s,(q)}^{(n)} &= \frac1{|\mathcal C_{s,(q)}|}\sum_{k\in\mathcal C_{s,(q)}}
            \big(\tilde w_k^{(n)}-\varphi_k^{(n-1)}/\rho\big) \\
        \hat w_{s,(q)}^{(n)} &= \frac1{|\mathcal N_s|}\sum_{p\in\mathcal N_s}
            \tilde w_{p,(q)}^{(n)} \\
        w_{s,(q)}^{(n)} &= (1-\tau^{(n)})\hat w_{s,(q)}^{(n)}
            +\frac{\tau^{(n)}}{Q-1}\sum_{r\ne q}\hat w_{s,(r)}^{(n)} \\
        \varphi_k^{(n)} &= \varphi_k^{(n-1)}+\rho\big(w_{s,(q)}^{(n)}-\tilde w_k^{(n)}\big)

    (5.4), (5.11), (5.12), (5.9), (5.10) and (5.5), starting from zero; :math:`f_k` is the problem's
    objective, whose ``strength`` gives each client its :math:`\lambda/|\mathcal C_s|`
    (:func:`fljax.problems.group_share`). The dual uses the *perturbed* model, so it reveals no more
    than the messages. Clusters are the problem's ``tasks``; with a single task or without tasks,
    the fifth line is omitted.

    Clients that are not drawn or not available keep their state; sums run over the participants.
    The source has no rule for a cell (a cluster at a server) without participants, for which (5.8)
    is undefined: ``empty_cell="keep"`` uses :math:`w_{s,(q)}^{(n-1)}` as its aggregate; ``"skip"``
    omits the cell from the neighborhood's mean, and keeps :math:`w_{s,(q)}^{(n-1)}` only if no
    neighbor has an aggregate.

    A server can compute its clients' duals from the messages received, so they are not sent: for
    each participant there are ``D`` numbers on the uplink and ``D`` on the downlink (in the printed
    algorithms :math:`\varphi_k` is sent too). All ``Q`` aggregates go to each neighboring server,
    unperturbed.

    Args:
      penalty: :math:`\rho>0`.
      inter_cluster: :math:`\tau^{(n)}\in[0,1]`, a number or a schedule such as
        :class:`~fljax.schedules.GeometricDecay`.
      clients_per_server: number of available clients that each server draws per round, uniformly
        without replacement; all by default.
      empty_cell: as above.
      dual_reference: ``"received"`` as above; ``"aggregate"`` takes the text below (5.12) literally
        and uses :math:`\tilde w_{s,(q)}^{(n)}` instead of :math:`w_{s,(q)}^{(n)}` in the dual.
      inner_iterations: iterations of the primal solver if no closed form exists.

    Guarantees:
      The data enter a message only through the minimizer of a :math:`\rho`-strongly convex
      objective, so :meth:`sensitivity` bounds it *if* per-sample gradients are bounded, which
      is not so for least squares. If the minimizer is computed by iterations, their step size
      must be public, ``Problem(feature_bound=)``; the same bound then holds for any number of
      iterations.

    Raises:
      ValueError: an inter-cluster parameter outside [0, 1] in the first round; more clients per
        round than a server has.

    Example:
      Three servers learn a model for each of two clusters:

      >>> import jax, fljax as fl
      >>> k_cluster, k_data = jax.random.split(jax.random.key(0))
      >>> cluster = fl.problems.random_clusters(k_cluster, 12, 2)
      >>> problem = fl.problems.clustered_ridge(k_data, cluster, 2, (9, 9), 3, 5.0, 0.01)
      >>> servers = fl.federation.balanced(4, fl.graphs.path(3))
      >>> algorithm = fl.algorithms.PGFL(3.0, inter_cluster=0.1)
      >>> run = fl.run(fl.Simulation(problem, algorithm, servers), rounds=200)
      >>> model = run["model"].values
      >>> first = model[cluster == 0]  # of clients of all servers
      >>> bool(abs(first - first[0]).max() < 0.1 * abs(model - first[0]).max())
      True

    Reference:
      Gauthier et al. 2023 (PGFL), (4)-(12); Gauthier 2024, Algorithms 4 and 5, (5.4)-(5.12).
    """

    penalty: Float[Array, ""] | float
    inter_cluster: Callable[[Array], Array] = field(converter=as_inter_cluster, default=0.0)
    clients_per_server: int | None = static(default=None)
    empty_cell: str = static(default="keep")
    dual_reference: str = static(default="received")
    inner_iterations: int = static(default=20)

    #: Whether clusters have models of their own, and whether servers talk to each other.
    personalized: ClassVar[bool] = True
    cooperative: ClassVar[bool] = True

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        if self.clients_per_server is not None:
            checks.count("clients_per_server", self.clients_per_server)
        checks.choice("empty_cell", self.empty_cell, EMPTY_CELLS)
        checks.choice("dual_reference", self.dual_reference, DUAL_REFERENCES)
        checks.count("inner_iterations", self.inner_iterations)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return everyone_or(PerServer, self.clients_per_server)

    def init(self, problem: Problem, network: Federation) -> PGFLState:
        self.selection.check(problem.clients, network)
        start = start_models(problem)
        server = cluster_start(problem, network, *clusters_of(problem, self.personalized))
        weight = jnp.full(problem.clients, self.penalty, problem.dtype)
        return PGFLState(start, jnp.zeros_like(start), server, factorize(problem, weight))

    def step(self, state: PGFLState, now: Round) -> PGFLState:
        return self._round(
            state,
            now,
            *clusters_of(now.problem, self.personalized),
            self.inter_cluster(now.number),
        )

    def _round(
        self,
        state: PyTree,
        now: Round,
        cluster: Int[Array, " clients"],
        clusters: int,
        share: Array,
        received: int = 1,
    ) -> PGFLState:
        """Compute a round for clients of these clusters, which receive this number of models."""
        network = now.network
        link = now.link
        participants = now.choose(self.selection)
        server, cluster = participants.take((jnp.asarray(network.server, jnp.int32), cluster))
        data = participants.of(now.problem)
        dual = participants.take(state.dual)

        # Each participant minimizes around its cluster's model at its server, and uploads.
        start = link.publish(state.server, participants.here, received * now.problem.dim)
        center = start[server, cluster] + dual / self.penalty
        before = participants.take(state.model)
        iterations = self.inner_iterations
        model = prox(data, participants.take(state.factor), center, before, iterations)
        now.witness(jnp.where(participants.here, data.sample_gradient_norm(model), 0))
        rounding = prox_rounding(data, center, before, model, iterations)
        messages = link.send(
            model, clients=participants.clients, sending=participants.here, rounding=rounding
        )

        # A cell is a cluster at a server; servers average their cells, then those of neighbors.
        adjusted = messages - dual / self.penalty
        mean, present = link.cell_means(adjusted, cluster, clusters, participants, start)
        aggregate = jnp.where(present > 0, mean, start)
        neighborhood = aggregate
        if self.cooperative:
            link.relay(clusters * now.problem.dim)
            if self.empty_cell == "keep":
                neighborhood = network.neighborhood_mean(aggregate)
            else:
                somewhere = network.neighborhood_mean(present) > 0
                neighborhood = jnp.where(somewhere, network.neighborhood_mean(mean, present), start)
        after = mixed(neighborhood, share)

        reference = after if self.dual_reference == "received" else aggregate
        dual = dual + self.penalty * (reference[server, cluster] - messages)
        return PGFLState(
            participants.put(state.model, model),
            participants.put(state.dual, dual),
            after,
            state.factor,
        )

    def released(self, state: PGFLState, problem: Problem, network: Federation) -> Array:
        """Return the model of each client's cluster at its server."""
        cluster, _ = clusters_of(problem, self.personalized)
        return state.server[jnp.asarray(network.server, jnp.int32), cluster]

    def sensitivity(
        self, problem: Problem, network: Federation, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        r"""Return the gradient's sensitivity over :math:`\rho+\mu_k`, with
        :math:`\mu_k=2\lambda/|\mathcal C_s|` for a squared regularizer; (5.31), with the gradient's
        sensitivity :math:`2C_k/D_k`, has no :math:`\mu_k`.

        The minimizers of two :math:`m`-strongly convex functions whose gradients differ by at most
        :math:`g` are at most :math:`g/m` apart (the proof of (5.31) evaluates both gradients at
        one model and states equality; the inequality holds).
        """
        return gap.gradient / (self.penalty + strong_convexity(problem))


@algorithm("GFL", ("rizk2021", "gauthier2023", "gauthier2024"), NEEDS)
@module
class GFL(PGFL):
    r"""Graph federated learning of one common model: :class:`PGFL` with :math:`Q=1`.

    The single-task comparator of figure 5.1, "modified to ensure privacy in the same manner as
    PGFL" (section 5.4.1; the journal's captions call the curve FedAvg). :class:`GraphFedAvg` solves
    the same task by gradient steps.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=12, samples=20, dim=2)
      >>> servers = fl.federation.balanced(4, fl.graphs.path(3))
      >>> algorithm = fl.algorithms.GFL(1.0)
      >>> simulation = fl.Simulation(problem, algorithm, servers, metrics=["normalized_error"])
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 1e-2)
      True

    Reference:
      Rizk & Sayed 2021, by gradient steps; Gauthier et al. 2023 (PGFL); Gauthier 2024, section 5.4.
    """

    personalized: ClassVar[bool] = False

    def validate(self) -> None:
        super().validate()
        mixing = self.inter_cluster
        if not isinstance(mixing, GeometricDecay) or np.any(
            checks.is_concrete(mixing.initial) and np.asarray(mixing.initial) != 0
        ):
            raise ValueError(
                "inter_cluster must be left out: one model for all clients has no other to mix "
                "with. PGFL has a model for each cluster."
            )


@algorithm("ClusterFL", ("ouyang2021", "gauthier2023", "gauthier2024"), NEEDS)
@module
class ClusterFL(PGFL):
    r"""Clustered federated learning at each server separately: :class:`PGFL` without edges.

    The comparator of figure 5.1 that learns personalized models with inter-cluster learning but has
    no server graph (section 5.4; the curve :math:`\mathcal E=\emptyset` of the paper's preprint).

    Example:
      Without messages between servers, clients of different servers have different models:

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=12, samples=20, dim=2)
      >>> servers = fl.federation.balanced(4, fl.graphs.path(3))
      >>> run = fl.run(fl.Simulation(problem, fl.algorithms.ClusterFL(1.0), servers), rounds=50)
      >>> model = run["model"]
      >>> bool(abs(model[0] - model[4]).max() > 0.01)
      True

    Reference:
      Ouyang et al. 2021, who learn the clusters as well; Gauthier et al. 2023 (PGFL); Gauthier
      2024, section 5.4.
    """

    cooperative: ClassVar[bool] = False


def clusters_of(problem: Problem, personalized: bool = True) -> tuple[Int[Array, " clients"], int]:
    """Return the cluster of each client and the number of clusters: one without personalization."""
    if not personalized or problem.tasks is None:
        return jnp.zeros(problem.clients, jnp.int32), 1
    return jnp.asarray(problem.tasks.cluster), problem.tasks.clusters


def cluster_start(
    problem: Problem, network: Federation, cluster: Int[Array, " clients"], clusters: int
) -> Float[Array, "servers clusters dim"]:
    """Return every server's initial model of each cluster: the mean of the initial models of the
    cluster's clients, at any server; of all clients for a cluster without clients.
    """
    if problem.initial is None or problem.initial.ndim == 1:  # one model of all clients
        return jnp.broadcast_to(server_start(problem), (network.servers, clusters, problem.dim))
    start = start_models(problem)
    member = (cluster[None] == jnp.arange(clusters, dtype=jnp.int32)[:, None]).astype(start.dtype)
    member = jnp.where(jnp.any(member > 0, axis=1, keepdims=True), member, 1)
    shares = member / jnp.sum(member, axis=1, keepdims=True)
    # The first client's plus the mean difference from it: exact if all start at the same model.
    mean = start[:1] + jnp.matmul(shares, start - start[:1], precision=HIGHEST)
    return jnp.broadcast_to(mean, (network.servers, clusters, problem.dim))


def mixed(
    models: Float[Array, "servers clusters dim"], share: Array
) -> Float[Array, "servers clusters dim"]:
    r"""Return :math:`(1-\tau)\hat w_q+\frac\tau{Q-1}\sum_{r\ne q}\hat w_r` (5.10)."""
    clusters = models.shape[1]
    if clusters == 1:
        return models
    other_clusters = jnp.sum(models, axis=1, keepdims=True) - models
    return (1 - share) * models + share / (clusters - 1) * other_clusters
