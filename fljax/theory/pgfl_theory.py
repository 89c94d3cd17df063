r"""Theory of PGFL (Gauthier 2024, section 5.3; Gauthier et al. 2023 (PGFL)), for small cases.

Numbers (5.x) are the thesis's, plain numbers those of the paper's preprint, arXiv 2306.06399. The
theorems state that without inter-cluster learning the models converge linearly to the optimum of
each cluster (Theorem I), that with it they stay within a distance :math:`\eta` of those without
(Theorem II), and give the privacy loss of a run (Theorems III and IV). The first two do not hold as
stated; the functions here compute the behavior of the algorithm, and each states its repairs.

For ridge problems, full participation and a constant :math:`\tau`, a round of PGFL is an affine map
of the servers' models and the clients' dual variables. With :math:`M` for the combined effect of
(5.9) and (5.10) on the aggregates, and :math:`\bar g_{s,(q)}(w)=\frac1{|\mathcal
C_{s,(q)}|}\sum_{k\in\mathcal C_{s,(q)}}\nabla f_k(w)`, zero for a cell without clients, its fixed
point is

.. math:: w=M\big(w-\tfrac1\rho\bar g(w)\big)

because the dual variables are stationary only if :math:`w_k=w_{s,(q)}`, and then
:math:`\varphi_k=\nabla f_k(w_{s,(q)})`. PGFL is a diffusion with step size :math:`1/\rho` and
implicit gradients. Zero-mean noise does not change this: the map and the fixed point are then those
of the mean.

Everything is NumPy in float64, outside compiled runs. Shapes: ``S`` servers, ``Q`` clusters, ``K``
clients, ``D`` parameters, ``T`` rounds.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse.linalg as spla
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.algorithms.graph.pgfl import PGFL, as_inter_cluster, clusters_of
from fljax.graphs.federation import Federation
from fljax.optimization.schedules import GeometricDecay
from fljax.privacy import accounting
from fljax.problems import Problem, optimum
from fljax.problems.solvers import is_quadratic, strong_convexity
from fljax.simulation.scan import advance, begin, prepare
from fljax.simulation.scenario import Simulation
from fljax.theory.unique_solutions import solved_or_refused

__all__ = [
    "Bias",
    "RidgeRound",
    "affine_round",
    "bias",
    "cluster_distance",
    "cluster_optima",
    "fixed_point",
    "inter_cluster_bound",
    "large_penalty_limit",
    "rate",
    "sensitivity",
    "server_models",
    "zcdp_total",
]

#: Up to this size of a round's state, all eigenvalues of its map are computed.
FEW_NUMBERS = 600

#: What to do about a fixed point or an optimum that is not unique.
UNDETERMINED = (
    "the data leave directions open, or some server has no clients. Give the problem a squared "
    "regularizer, leave out features that are zero or determined by others, or change the servers."
)

#: Which of the two decays by a factor per round, see :func:`zcdp_total`.
Decaying = Literal["variance", "budget"]


# --------------------------------------------------------------------------- optima and runs


@checked
def cluster_optima(problem: Problem) -> Float[np.ndarray, "clusters dim"]:
    r"""The optima :math:`W_q=\arg\min_w\sum_{k\in\mathcal C_{(q)}}f_k(w)`, (15); section 5.3.1.

    The limit that Theorem I claims, and the :math:`w^*_{(q)}` of (5.28). For any loss; clipping is
    ignored.

    Raises:
      numpy.linalg.LinAlgError: a squared loss with data that do not determine the optimum.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=3)
      >>> cluster_optima(problem).shape  # no tasks: one cluster
      (1, 3)
    """
    cluster, clusters = clusters_of(problem)
    members = [np.flatnonzero(np.asarray(cluster) == q) for q in range(clusters)]
    if not is_quadratic(problem):
        return np.stack([np.asarray(optimum(problem.take(jnp.asarray(k)))) for k in members])
    hessian, moment = _quadratic(problem)
    return np.stack(
        [solved_or_refused(hessian[k].sum(0), moment[k].sum(0), UNDETERMINED) for k in members]
    )


def _quadratic(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    r"""``[K, D, D]`` and ``[K, D]``: :math:`\nabla f_k(w)=H_kw-b_k`."""
    convexity = np.broadcast_to(np.asarray(strong_convexity(problem)), problem.clients)
    # In double precision: in single precision a singular matrix becomes an invertible one.
    design, weights, targets = (
        np.asarray(a, np.float64) for a in (problem.design, problem.weights, problem.targets)
    )
    hessian = 2 * np.einsum("kn,knp,knq->kpq", weights, design, design, optimize=True)
    hessian = hessian + convexity[:, None, None] * np.eye(problem.dim)
    return hessian, 2 * np.einsum("kn,knp,kn->kp", weights, design, targets, optimize=True)


@checked
def server_models(
    simulation: Simulation, key: Array, rounds: int
) -> Float[Array, "rounds servers clusters dim"]:
    """Each server's model of each cluster after each round; traceable.

    The values are as in :func:`fljax.run`. Runs with the same key have the same noise and draws,
    for any inter-cluster parameter.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=5, dim=3),
      ...     network=fl.federation.balanced(2, fl.graphs.path(3)),
      ...     algorithm=fl.algorithms.PGFL(penalty=100.0),
      ... )
      >>> models = fl.theory.pgfl.server_models(simulation, jax.random.key(1), rounds=10)
      >>> models.shape  # rounds, servers, clusters, parameters
      (10, 3, 1, 3)
    """
    checks.count("rounds", rounds)
    prepared = prepare(simulation, rounds)

    def one_round(carry, done):
        carry, _ = advance(simulation, prepared, key, carry, done, 1, 1, rounds)
        return carry, carry.state.server

    start = begin(simulation, prepared, key)
    return jax.lax.scan(one_round, start, jnp.arange(rounds, dtype=jnp.int32))[1]


# --------------------------------------------------------------------------- Theorem I


class RidgeRound(NamedTuple):
    """A round of PGFL on ridge problems, as matrices; cell ``s Q + q`` is cluster q at server s."""

    cell: np.ndarray  # [K]  of each client
    hessian: np.ndarray  # [K, D, D]  of f_k
    moment: np.ndarray  # [K, D]  minus its gradient at zero
    solve: np.ndarray  # [K, D, D]  (hessian + penalty I)^-1
    mean: np.ndarray  # [SQ, K]  over the clients of a cell, (5.8); a zero row where it has none
    combine: np.ndarray  # [SQ, SQ]  M, (5.9) and (5.10)
    shape: tuple[int, int, int]  # S, Q, D
    penalty: float
    received: bool  # whether the duals refer to the model received, or to the aggregate

    def __call__(
        self, server: np.ndarray, dual: np.ndarray, affine: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Models ``[SQ, D]`` and dual variables ``[K, D]`` after a round; ``affine=False`` omits
        the data's moments, which leaves the linear part.
        """
        right = affine * self.moment + dual + self.penalty * server[self.cell]
        model = np.einsum("kij,kj->ki", self.solve, right)
        empty = ~self.mean.any(axis=1, keepdims=True)
        aggregate = self.mean @ (model - dual / self.penalty) + empty * server
        after = self.combine @ aggregate
        reference = after if self.received else aggregate
        return after, dual + self.penalty * (reference[self.cell] - model)

    def slope(self) -> tuple[np.ndarray, np.ndarray]:
        r"""``[SQ, D, D]`` and ``[SQ, D]``: :math:`\bar g(w)=Hw-b`."""
        return np.einsum("ck,kij->cij", self.mean, self.hessian), self.mean @ self.moment


@checked
def affine_round(simulation: Simulation) -> RidgeRound:
    r"""The affine map of a round, (5.4)-(5.10), for ridge problems and full participation.

    Args:
      simulation: a simulation of :class:`~fljax.algorithms.PGFL` or one of its special cases, with
        a constant inter-cluster parameter. Both rules for empty cells and both references of the
        dual variables are supported.

    Raises:
      TypeError: an unsupported algorithm.
      ValueError: an unsupported loss, clipping, partial participation, a time-varying :math:`\tau`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=5, dim=3),
      ...     network=fl.federation.balanced(2, fl.graphs.path(3)),
      ...     algorithm=fl.algorithms.PGFL(penalty=100.0),
      ... )
      >>> fl.theory.pgfl.affine_round(simulation).shape  # servers, clusters, parameters
      (3, 1, 3)
    """
    problem = simulation.fixed_problem
    network = simulation.network
    algorithm = simulation.algorithm
    if not isinstance(algorithm, PGFL) or not isinstance(network, Federation):
        raise TypeError(f"the affine map is that of PGFL, got {type(algorithm).label}.")
    if not is_quadratic(problem) or problem.clip is not None:
        raise ValueError("a round is affine for a squared loss with a squared regularizer only.")
    if algorithm.clients_per_server is not None or simulation.participation is not None:
        raise ValueError(
            "a round is one map if every client takes part; leave out clients_per_server and "
            "participation."
        )
    if simulation.compression is not None:
        raise ValueError("a round with compressed messages is no affine map.")
    schedule = algorithm.inter_cluster
    if not isinstance(schedule, GeometricDecay) or float(schedule.factor) != 1:
        raise ValueError("a round is always the same map if inter_cluster is a number only.")

    cluster, clusters = clusters_of(problem, algorithm.personalized)
    cell = np.asarray(network.server) * clusters + np.asarray(cluster)
    count = np.bincount(cell, minlength=network.servers * clusters)
    member = (cell == np.arange(len(count))[:, None]).astype(float)
    hessian, moment = _quadratic(problem)
    penalty = float(algorithm.penalty)
    return RidgeRound(
        cell,
        hessian,
        moment,
        np.linalg.inv(hessian + penalty * np.eye(problem.dim)),
        member / np.maximum(count, 1)[:, None],
        _combination(algorithm, network, count.reshape(-1, clusters) > 0, float(schedule.initial)),
        (network.servers, clusters, problem.dim),
        penalty,
        algorithm.dual_reference == "received",
    )


def _combination(
    algorithm: PGFL, network: Federation, present: np.ndarray, share: float
) -> np.ndarray:
    """``M``, ``[SQ, SQ]``: the inter-cluster mean (5.10) of the means over neighbors (5.9)."""
    servers, clusters = present.shape
    neighborhood = np.eye(servers)
    if algorithm.cooperative and network.graph is not None:
        low, high = network.graph.edges.T
        neighborhood[low, high] = neighborhood[high, low] = network.graph.edge_weights()
    mixing = np.eye(clusters)
    if clusters > 1:
        mixing = np.full((clusters, clusters), share / (clusters - 1))
        np.fill_diagonal(mixing, 1 - share)
    counted = np.ones_like(present) if algorithm.empty_cell == "keep" else present
    combine = np.zeros((servers, clusters, servers, clusters))
    for r in range(clusters):
        average = neighborhood * counted[:, r]
        isolated = ~average.any(axis=1)  # no neighbor has a client of r: the server keeps its model
        average[isolated, isolated] = 1
        average /= average.sum(axis=1, keepdims=True)
        combine[:, :, :, r] = average[:, None, :] * mixing[None, :, r, None]
    return combine.reshape(2 * (servers * clusters,))


@checked
def fixed_point(simulation: Simulation) -> Float[np.ndarray, "servers clusters dim"]:
    r"""Limit of the servers' models, if they converge (:func:`rate`).

    The solution of :math:`w=M(w-\bar g(w)/\rho)`. It is *not* the optimum that Theorem I
    claims: the proof cites a result on exact consensus, but servers that alternate averaging and
    gradient steps never agree while their gradients differ. It is at a distance :math:`O(1/\rho)`
    from :func:`large_penalty_limit`, which is yet another point. Only a single server (for each
    cluster separately) reaches the optimum exactly, for any :math:`\rho`, if its :math:`\tau=0`.

    With ``dual_reference="aggregate"`` the dual variables are stationary at :math:`w_k=\tilde
    w_{s,(q)}` instead of :math:`w_{s,(q)}`, and :math:`\tilde w=M\tilde w-\bar g(\tilde w)/\rho`,
    :math:`w=M\tilde w`.

    Args:
      simulation: as for :func:`affine_round`.

    Raises:
      numpy.linalg.LinAlgError: more than one fixed point, since some cell's model depends on no
        data or the data do not determine it.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=5, dim=3),
      ...     network=fl.federation.balanced(2, fl.graphs.path(3)),
      ...     algorithm=fl.algorithms.PGFL(penalty=100.0),
      ... )
      >>> fixed_point(simulation).shape, rate(simulation) < 1
      ((3, 1, 3), True)
      >>> bool(bias(simulation).limit.max() < bias(simulation).optimum.min())
      True
    """
    round_map = affine_round(simulation)
    cells = round_map.mean.shape[0]
    dim = round_map.shape[-1]
    hessian, offset = round_map.slope()
    contraction = np.zeros((cells, dim, cells, dim))  # H / rho, block diagonal
    contraction[np.arange(cells), :, np.arange(cells)] = hessian / round_map.penalty
    contraction = contraction.reshape(cells * dim, cells * dim)
    spread = np.kron(round_map.combine, np.eye(dim))
    identity = np.eye(cells * dim)
    offset = offset.ravel() / round_map.penalty
    if round_map.received:
        system = identity - spread @ (identity - contraction)
        models = solved_or_refused(system, spread @ offset, UNDETERMINED)
    else:
        system = identity - spread + contraction
        models = spread @ solved_or_refused(system, offset, UNDETERMINED)
    return models.reshape(round_map.shape)


@checked
def large_penalty_limit(simulation: Simulation) -> Float[np.ndarray, "servers clusters dim"]:
    r"""Limit of :func:`fixed_point` as :math:`\rho\to\infty`.

    In this limit :math:`w=Mw`, so models agree along the graph, and :math:`\pi^\top\bar g(w)=0` for
    every :math:`\pi^\top=\pi^\top M`. The means over neighborhoods have
    :math:`\pi_s\propto|\mathcal N_s|`, so with :math:`\tau=0` all servers end at

    .. math:: \arg\min_w\sum_s|\mathcal N_s|\,\frac1{|\mathcal C_{s,(q)}|}
              \sum_{k\in\mathcal C_{s,(q)}}f_k(w),

    the sum over non-empty cells; with the rule ``"skip"`` only non-empty cells count in
    :math:`|\mathcal N_s|`. It is the optimum of the cluster, (15), only if all servers have equally
    many neighbors *and* equally many clients of it: on a complete graph with unequal cells the
    clients of small cells have larger weights. With a constant :math:`\tau>0` the clusters agree as
    well: all end at the optimum of the sum over :math:`q`, without personalization. Without a
    server graph and :math:`\tau=0` every cell stays at its own optimum.

    Args:
      simulation: as for :func:`affine_round`; its penalty does not matter.

    Raises:
      numpy.linalg.LinAlgError: as for :func:`fixed_point`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=5, dim=3),
      ...     network=fl.federation.balanced(2, fl.graphs.path(3)),
      ...     algorithm=fl.algorithms.PGFL(penalty=100.0),
      ... )
      >>> limit = fl.theory.pgfl.large_penalty_limit(simulation)
      >>> limit.shape, bool(abs(limit - limit[0]).max() < 1e-5)  # all servers agree
      ((3, 1, 3), True)
    """
    round_map = affine_round(simulation)
    cells = round_map.mean.shape[0]
    dim = round_map.shape[-1]
    disagreement = np.eye(cells) - round_map.combine
    agreed = scipy.linalg.null_space(disagreement)
    weighed = scipy.linalg.null_space(disagreement.T)
    hessian, offset = round_map.slope()
    system = np.einsum("ca,cij,cb->aibj", weighed, hessian, agreed)
    size = agreed.shape[1] * dim
    right = (weighed.T @ offset).ravel()
    coefficients = solved_or_refused(system.reshape(size, size), right, UNDETERMINED)
    return (agreed @ coefficients.reshape(-1, dim)).reshape(round_map.shape)


class Bias(NamedTuple):
    """Squared distances of the fixed point from two models, relative to their squared norms."""

    optimum: np.ndarray  # [S, Q]  from the cluster's optimum, which Theorem I claims
    limit: np.ndarray  # [S, Q]  from `large_penalty_limit`; O(1/rho^2)


@checked
def bias(simulation: Simulation) -> Bias:
    r"""Distances of :func:`fixed_point` from :func:`cluster_optima` and
    :func:`large_penalty_limit`.

    The latter vanishes as :math:`1/\rho^2` (squared), the former does not in general.

    Example:
      >>> import jax, fljax as fl
      >>> def limit(penalty):
      ...     simulation = fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=5, dim=3),
      ...         network=fl.federation.balanced(2, fl.graphs.path(3)),
      ...         algorithm=fl.algorithms.PGFL(penalty),
      ...     )
      ...     return fl.theory.pgfl.bias(simulation).limit.max()
      >>> bool(limit(200.0) < limit(100.0) / 3)  # about a quarter
      True
    """
    models = fixed_point(simulation)
    limit = large_penalty_limit(simulation)
    cluster, _ = clusters_of(simulation.fixed_problem)
    if models.shape[1] != int(np.max(cluster)) + 1:
        raise ValueError("the algorithm has one model for all clusters, so no cluster's optimum.")
    best = np.broadcast_to(cluster_optima(simulation.fixed_problem), models.shape)
    return Bias(
        *(np.sum((models - point) ** 2, -1) / np.sum(point**2, -1) for point in (best, limit))
    )


@checked
def rate(simulation: Simulation) -> float:
    r"""Asymptotic factor per round of the distance to :func:`fixed_point`.

    The spectral radius of the linear part of :func:`affine_round` on the servers' models and the
    dual variables: below one exactly if the algorithm converges from every start. This is the
    "linear time" of Theorem I, which gives no constant and no condition on :math:`\rho`. A single
    server with :math:`\tau=0` converges for every :math:`\rho` (it is ADMM); on a graph the
    algorithm diverges if :math:`\rho` is too small.

    Args:
      simulation: as for :func:`affine_round`.

    Example:
      >>> import jax, fljax as fl
      >>> def rate(penalty):
      ...     simulation = fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=5, dim=3),
      ...         network=fl.federation.balanced(2, fl.graphs.path(3)),
      ...         algorithm=fl.algorithms.PGFL(penalty),
      ...     )
      ...     return fl.theory.pgfl.rate(simulation)
      >>> rate(0.1) > 1, rate(100.0) < 1
      (True, True)
    """
    round_map = affine_round(simulation)
    servers, clusters, dim = round_map.shape
    cells = servers * clusters
    clients = len(round_map.cell)
    size = (cells + clients) * dim

    def linear(state: np.ndarray) -> np.ndarray:
        rows = state.reshape(-1, dim)
        return np.concatenate(round_map(rows[:cells], rows[cells:], affine=False)).ravel()

    if size <= FEW_NUMBERS:  # too small for Krylov spaces to be smaller
        return float(np.abs(np.linalg.eigvals(np.stack([*map(linear, np.eye(size))], 1))).max())
    # A start of its own would make the result differ from call to call.
    start = np.random.default_rng(0).standard_normal(size)
    operator = spla.LinearOperator((size, size), matvec=linear, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    values = spla.eigs(operator, k=1, ncv=60, v0=start, return_eigenvectors=False)
    return float(np.abs(values).max())


# --------------------------------------------------------------------------- Theorem II


@checked
def cluster_distance(optima: Float[np.ndarray, "clusters dim"]) -> float:
    r"""The largest squared distance of :func:`cluster_optima`,
    :math:`\eta=\max_{q,r}\|w^*_{(q)}-w^*_{(r)}\|^2`, (5.28).

    Example:
      >>> import numpy as np, fljax as fl
      >>> float(fl.theory.pgfl.cluster_distance(np.array([[0.0, 0.0], [3.0, 4.0]])))
      25.0
    """
    checks.finite("optima", optima)
    optima = np.asarray(optima)
    return float(np.sum((optima[:, None] - optima[None]) ** 2, axis=-1).max())


@checked
def inter_cluster_bound(
    inter_cluster: object, rounds: int, distance: float
) -> Float[np.ndarray, " rounds"]:
    r"""The right-hand side of Theorem II (5.27), for :math:`n=1,\dots,T`.

    .. math:: B_n=\sum_{i=1}^n\Big(\prod_{j=i+1}^n(1-\tau^{(j)})\Big)\tau^{(i)}\eta
              =\eta\Big(1-\prod_{i=1}^n(1-\tau^{(i)})\Big)

    It depends on the sum of the schedule rather than on its final values: for
    :math:`0.4\cdot0.98^n` it is nearly :math:`\eta`, although the models have the same limit as
    those without mixing. The corollary (5.29), (40), is the case of a :math:`\tau` that is zero
    except in round :math:`n`: :math:`B_n=\tau^{(n)}\eta`.

    Args:
      inter_cluster: :math:`\tau^{(n)}`, a number or a schedule.
      rounds: ``T``.
      distance: :math:`\eta`.

    Example:
      >>> inter_cluster_bound(0.5, rounds=3, distance=8.0).tolist()
      [4.0, 6.0, 7.0]
    """
    checks.count("rounds", rounds)
    checks.nonnegative("distance", distance)
    schedule = as_inter_cluster(inter_cluster)
    shares = [float(schedule(jnp.asarray(n, jnp.int32))) for n in range(1, rounds + 1)]
    return distance * (1 - np.cumprod(1 - np.asarray(shares)))


# --------------------------------------------------------------------------- Theorems III and IV


@checked
def sensitivity(gradient_bound: ArrayLike, penalty: ArrayLike, samples: ArrayLike) -> Any:
    r"""Sensitivity :math:`\Delta_{k,2}=2C_k/(\rho D_k)` to one replaced sample, Lemma 5.1 (5.31),
    (42).

    It is an upper bound: the proof subtracts two instances of (5.25) as if their gradients were
    evaluated at the same model, and states equality; the minimizer of a :math:`\rho`-strongly
    convex function moves by at most :math:`1/\rho` times the change of its gradient.
    :meth:`PGFL.sensitivity <fljax.algorithms.PGFL.sensitivity>`, which runs use, also accounts for
    the convexity of the regularizer and is smaller. Assumption 3, a bounded :math:`C_k`, does not
    hold for the squared loss.

    Args:
      gradient_bound: :math:`C_k` of every per-sample gradient.
      penalty: :math:`\rho`.
      samples: :math:`D_k`.

    Example:
      >>> import fljax as fl
      >>> fl.theory.pgfl.sensitivity(1.0, penalty=2.0, samples=50)
      0.02
    """
    checks.nonnegative("gradient_bound", gradient_bound)
    checks.positive("penalty", penalty)
    checks.positive("samples", samples)
    return 2 * gradient_bound / (penalty * samples)


@checked
def zcdp_total(
    initial: float,
    decay: float,
    rounds: int,
    decaying: Decaying = "variance",
    first: int = 0,
    participation: float = 1.0,
) -> float:
    r"""Total privacy loss of one client, Theorem IV (5.33): :math:`\sum_n\phi_k^{(n)}`.

    The algorithm's noise variances decrease, :math:`\delta_k^{2(n)}=\zeta\delta_k^{2(n-1)}`
    (section 5.2, with (5.11)), so by Theorem III, :math:`\phi=\Delta^2/(2\delta^2)` (5.32), the
    budgets per round increase, :math:`\phi_k^{(n)}=\phi_k^{(0)}\zeta^{-n}`, as in (51). The
    published total of 0.095 for :math:`\phi^{(0)}=0.001`, :math:`\zeta=0.99` and 300 rounds
    (section 5.4.1) is the sum of budgets that *decrease* by :math:`\zeta`, with noise that would
    increase. The noise as specified costs 1.92, or 1.94 if round 1 already has :math:`\phi^{(1)}`.

    Convert with :func:`fljax.privacy.accounting.zcdp_epsilon`, whose ``"proposition"`` is (51) with
    the worst client's total.

    Args:
      initial: :math:`\phi_k^{(0)}`.
      decay: :math:`\zeta\in(0,1]`.
      rounds: ``T``.
      decaying: the quantity that decreases by :math:`\zeta`: the ``"variance"``, as specified, or
        the ``"budget"``, which is the published number.
      first: :math:`n` of the first release, 0 or 1; the sources leave it open.
      participation: the probability that a client participates in a round, for instance 3/15. The
        result is then the *expected* total, since a client spends budget only in the rounds in
        which it sends; what can be guaranteed before the draws is the whole sum. No amplification
        by subsampling is claimed. Epsilon is concave in the total, so its expectation is at most
        that of the expected total.

    Example:
      >>> round(zcdp_total(0.001, 0.99, 300), 2), round(zcdp_total(0.001, 0.99, 300, "budget"), 4)
      (1.92, 0.0951)
    """
    checks.choice("decaying", decaying, ("variance", "budget"))
    checks.interval("first", first, at_least=0, at_most=1)
    checks.interval("participation", participation, above=0, at_most=1)
    # Falling budgets are growing ones, read backwards.
    smallest = initial * decay ** (-first if decaying == "variance" else first + rounds - 1)
    return participation * float(accounting.dynamic_zcdp_total(smallest, decay, rounds))
