r"""Bounds on the effect of coupling models over a graph (Jung 2025).

Clients jointly minimize :math:`\sum_kL_k(w_k)+\alpha\sum_{\{k,l\}}a_{kl}\|w_k-w_l\|^2` over the
undirected edges of a graph: GTVMin with a squared penalty, (49). The bounds concern the differences
between its solutions, their errors, and the relation of a graph's spectrum to its degrees. Each
holds for every instance; rates of convergence to the solutions are in
:mod:`fljax.theory.network_rates`.

Where the source uses the noise of labels, :math:`\frac1{m_k}\|\varepsilon^{(k)}\|^2`, functions
take the parameters that generate the labels before noise, the ``truth``: the noise term is the
client's loss at them. A vacuous bound (a disconnected graph, no coupling) is infinite. ``ERR``
numbers and repairs refer to formulas that are false as printed. Lines refer to the book's text.

Shapes: ``K`` clients (nodes), ``D`` parameters. All functions are traceable.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.memory import check_fits
from fljax._core.module import float_dtype
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.theory.multiagent import affine_gradient

__all__ = [
    "ConnectivityBound",
    "Curvature",
    "ErdosRenyi",
    "cluster_deviation_bound",
    "common_error_bound",
    "connectivity_bound",
    "curvature",
    "deviation_bound",
    "erdos_renyi_estimates",
    "laplacian_bound",
    "local_error_bound",
]


# --------------------------------------------------------------------------- the losses


class Curvature(NamedTuple):
    r"""Eigenvalues of the local matrices :math:`Q^{(k)}`, half of the Hessians: (105)."""

    least: Array  # [K]  lambda_1(Q^(k)), zero where it is of the size of rounding
    most: Array  # [K]  lambda_d(Q^(k))
    pooled: Array  # []  lambda_1 of their mean, \bar\lambda_min; zero in the same case

    @property
    def largest(self) -> Float[Array, ""]:
        r""":math:`\lambda_{\max}=\max_k\lambda_d(Q^{(k)})`."""
        return jnp.max(self.most)


@checked
def curvature(problem: Problem) -> Curvature:
    r"""Eigenvalues of clients' :math:`Q^{(k)}=\frac1{m_k}X^{(k)\top}X^{(k)}`, (105).

    A squared regularizer, if any, is included; a client's loss is strongly convex with
    :math:`\sigma_k=2\lambda_1(Q^{(k)})`.

    Args:
      problem: a problem with a squared loss, and a squared regularizer or none.

    Raises:
      ValueError: an unsupported problem.

    Example:
      >>> import numpy as np, fljax as fl
      >>> data = np.array([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [1.0, 0.0]]])
      >>> problem = fl.problems.Problem(data, np.ones((2, 2)), fl.problems.LeastSquares())
      >>> bounds = curvature(problem)
      >>> bounds.least.tolist(), bounds.most.tolist(), float(bounds.pooled)
      ([0.5, 0.0], [2.0, 1.0], 0.75)
    """
    return _curvature(problem)


@jax.jit
def _curvature(problem: Problem) -> Curvature:
    halves = affine_gradient(problem)[0] / 2
    values = jnp.linalg.eigvalsh(halves)
    pooled = jnp.linalg.eigvalsh(jnp.mean(halves, axis=0))
    return Curvature(
        _without_rounding(values[:, 0], values[:, -1]),
        values[:, -1],
        _without_rounding(pooled[0], pooled[-1]),
    )


def _without_rounding(smallest: Array, largest: Array) -> Array:
    """An eigenvalue of a positive semidefinite matrix, set to zero if it is zero up to rounding."""
    return jnp.where(smallest > 100 * jnp.finfo(largest.dtype).eps * largest, smallest, 0)


@checked
def local_error_bound(
    problem: Problem, truth: Float[Array, "*clients dim"]
) -> Float[Array, " clients"]:
    r"""Bound on the error of each client's own solution, Proposition 2.1, (16).

    .. math:: \|\hat w_k-\bar w\|^2\le\frac{\|\nabla L_k(\bar w)\|^2}{\lambda_1(Q^{(k)})^2}
        =\frac4{m_k^2}\frac{\|X^{(k)\top}\varepsilon^{(k)}\|^2}{\lambda_1(Q^{(k)})^2}

    A quarter of it is a bound as well, and is attained: :math:`\hat w_k-\bar w` is
    :math:`-\frac12(Q^{(k)})^{-1}\nabla L_k(\bar w)`. Infinite if :math:`Q^{(k)}` is singular.

    For the mean of numbers it is :math:`\frac4{m^2}(\sum_r\varepsilon_r)^2`, and not
    :math:`\frac4{m^2}\|\varepsilon\|^2` as section 2.3 has it.

    Args:
      problem: as for :func:`curvature`.
      truth: :math:`\bar w`, ``[D]``, or one per client, ``[K, D]``.

    Raises:
      ValueError: an unsupported problem, parameters of the wrong shape.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> targets = jnp.array([[1.0], [3.0]])  # solutions 1 and 3, for the truth 2
      >>> problem = fl.problems.Problem(jnp.ones((2, 1, 1)), targets, fl.problems.LeastSquares())
      >>> fl.theory.networks.local_error_bound(problem, jnp.array([2.0])).tolist()  # 4 times 1
      [4.0, 4.0]
    """
    return _local_error(problem, checked_truth(problem, truth))


@jax.jit
def _local_error(problem: Problem, truth: Array) -> Array:
    least = _curvature(problem).least
    square = jnp.sum(problem.gradient(truth) ** 2, axis=1)
    return divided(square, least**2)


# --------------------------------------------------------------------------- the solutions


@checked
def deviation_bound(
    problem: Problem,
    network: Graph,
    coupling: Float[Array, "*dim"] | float,
    truth: Float[Array, " dim"],
) -> Float[Array, ""]:
    r"""Bound on the distances of the solutions from the clients' mean model, Proposition 3.1, (63).

    .. math:: \sum_k\|\hat w_k-\tfrac1K\textstyle\sum_l\hat w_l\|^2\le\frac1{\lambda_2\alpha}
        \sum_kL_k(\bar w)

    with :math:`\lambda_2` of the graph's Laplacian, if labels are noisy values of one model
    :math:`\bar w`. Nothing is assumed about the noise, and about the losses only that they are
    non-negative (the proof, section 3.7.1, uses no more): it holds for any such losses, including
    regularizers. Infinite if the graph is disconnected, or some parameter is not coupled.

    Args:
      problem: a problem with non-negative losses.
      network: the graph of its clients.
      coupling: :math:`\alpha\ge0`, one number or one per parameter, ``[D]``, whose smallest
        is used.
      truth: :math:`\bar w`, ``[D]``.

    Raises:
      ValueError: a network that does not match the clients, a negative coupling, parameters of the
        wrong shape.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> bound = deviation_bound(problem, fl.graphs.ring(6), 1.0, truth=jnp.ones(2))
      >>> half = deviation_bound(problem, fl.graphs.ring(6), 2.0, truth=jnp.ones(2))
      >>> round(float(bound / half), 6)
      2.0
    """
    check_network(problem, network)
    return _deviation(
        problem, network, coupling_of(problem, coupling), checked_truth(problem, truth, shared=True)
    )


@jax.jit
def _deviation(problem: Problem, network: Graph, coupling: Array, truth: Array) -> Array:
    noise = jnp.sum(problem.objective(truth))
    return divided(noise, jnp.min(coupling) * connectivity(network))


@checked
def cluster_deviation_bound(
    problem: Problem,
    network: Graph,
    coupling: Float[Array, "*dim"] | float,
    members: Bool[Array, " clients"],
    truth: Float[Array, " dim"],
    solution: Float[Array, "clients dim"],
) -> Float[Array, ""]:
    r"""Bound on deviations within a cluster of clients, Proposition 6.1, (148).

    .. math:: \sum_{k\in C}\|\hat w_k-\tfrac1{|C|}\textstyle\sum_{l\in C}\hat w_l\|^2\le
        \frac1{\alpha\lambda_2(L^{(C)})}\Big[\sum_{k\in C}L_k(\bar w)
        +2\alpha|\partial C|\big(\|\bar w\|^2+R^2\big)\Big]

    with the Laplacian of the subgraph of its members, the total weight :math:`|\partial C|` of the
    edges that leave it, and the largest norm :math:`R` of a solution outside. It does not vanish
    with growing :math:`\alpha` unless no edge leaves the cluster, and it requires the solution
    outside the cluster; for all clients it is Proposition 3.1. Infinite if the cluster is
    disconnected.

    Args:
      problem: a problem with non-negative losses.
      network: the graph of its clients.
      coupling: :math:`\alpha\ge0`, one number or one per parameter, ``[D]``: the smallest is used
        within the cluster, the largest across its boundary.
      members: members of the cluster, ``[K]``, at least two.
      truth: :math:`\bar w` of the cluster, ``[D]``.
      solution: :math:`\hat w`, ``[K, D]``; only the rows outside the cluster are used.

    Raises:
      ValueError: as for :func:`deviation_bound`; fewer than two members, shapes that do not match.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> graph, truth = fl.graphs.ring(6), fl.problems.optimum(problem)
      >>> members = jnp.array([True, True, True, False, False, False])
      >>> models = fl.problems.GTVMin(problem, graph, coupling=1.0).solve()
      >>> inside = models[:3] - models[:3].mean(axis=0, keepdims=True)
      >>> bound = fl.theory.networks.cluster_deviation_bound(
      ...     problem, graph, 1.0, members, truth, models
      ... )
      >>> bool((inside**2).sum() <= bound)
      True
    """
    checks.finite("solution", solution)
    check_network(problem, network)
    if np.shape(members) != (problem.clients,):
        raise ValueError(
            f"members must have one truth value for each of the {problem.clients} clients, got "
            f"shape {np.shape(members)}."
        )
    checks.check_when_concrete(_check_two_members, jnp.sum(jnp.asarray(members)))
    if np.shape(solution) != (problem.clients, problem.dim):
        raise ValueError(
            f"solution must be models of shape {(problem.clients, problem.dim)}, got shape "
            f"{np.shape(solution)}."
        )
    return _cluster_deviation(
        problem,
        network,
        coupling_of(problem, coupling),
        jnp.asarray(members),
        checked_truth(problem, truth, shared=True),
        jnp.asarray(solution, problem.dtype),
    )


def _check_two_members(members: Array) -> None:
    if int(members) < 2:
        raise ValueError(f"a cluster must have at least two members, got {members}.")


@jax.jit
def _cluster_deviation(
    problem: Problem, network: Graph, coupling: Array, members: Array, truth: Array, solution: Array
) -> Array:
    inside = network.reweighted(
        lambda near, far: (members[near] & members[far]).astype(problem.dtype)
    )
    within = jnp.sum(jnp.where(members, inside.degree, 0))
    boundary = jnp.sum(jnp.where(members, network.degree, 0)) - within
    boundary = jnp.maximum(boundary, 0)
    # Clients outside the cluster are moved to the end of the spectrum.
    shift = jnp.where(members, 0, 1 + 2 * jnp.max(network.degree))
    values = jnp.linalg.eigvalsh(inside.laplacian_matrix() + jnp.diag(shift))
    labels = inside.components()
    connected = jnp.all(jnp.where(members, labels == labels[jnp.argmax(members)], True))
    inner_connectivity = jnp.where(connected, values[1], 0)
    noise = jnp.sum(jnp.where(members, problem.objective(truth), 0))
    outside = jnp.max(jnp.where(members, 0, jnp.sum(solution**2, axis=1)))
    boundary_term = 2 * jnp.max(coupling) * boundary * (jnp.sum(truth[0] ** 2) + outside)
    return divided(noise + boundary_term, jnp.min(coupling) * inner_connectivity)


@checked
def common_error_bound(
    problem: Problem,
    network: Graph,
    coupling: Float[Array, "*dim"] | float,
    truth: Float[Array, " dim"],
) -> Float[Array, ""]:
    r"""Bound on the error of the clients' mean model, (169).

    .. math:: \|\tfrac1K\textstyle\sum_k\hat w_k-\bar w\|^2\le2\Big(\lambda_{\max}
        +\frac{\lambda_{\max}^2}{\lambda_2\alpha}\Big)\sum_kL_k(\bar w)/(K\bar\lambda_{\min}^2)

    (its derivation has the sign of :math:`\tilde w` wrong in (166)-(168), which does not affect
    (169)). Together with :func:`deviation_bound` it bounds every client's error. Infinite if that
    bound is, or if the clients' data together do not determine a model.

    Args: as for :func:`deviation_bound`.
      problem: a problem with a squared loss and no regularizer.

    Raises:
      ValueError: as for that function; an unsupported problem.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> graph, truth = fl.graphs.ring(6), fl.problems.optimum(problem)
      >>> models = fl.problems.GTVMin(problem, graph, coupling=1.0).solve()
      >>> error = ((models.mean(axis=0) - truth) ** 2).sum()
      >>> bool(error <= fl.theory.networks.common_error_bound(problem, graph, 1.0, truth))
      True
    """
    check_network(problem, network)
    strength = coupling_of(problem, coupling)
    return _common_error(problem, network, strength, checked_truth(problem, truth, shared=True))


@jax.jit
def _common_error(problem: Problem, network: Graph, coupling: Array, truth: Array) -> Array:
    curvatures = _curvature(problem)
    noise = jnp.sum(problem.objective(truth))
    spread = divided(curvatures.largest**2, jnp.min(coupling) * connectivity(network))
    scale = problem.clients * curvatures.pooled**2
    bound = 2 * (curvatures.largest + spread) * divided(noise, scale)
    return jnp.where(noise > 0, bound, jnp.where((scale > 0) & jnp.isfinite(spread), 0, jnp.inf))


# --------------------------------------------------------------------------- the graph


@checked
def laplacian_bound(network: Graph) -> Float[Array, ""]:
    r"""Bound on the largest eigenvalue of the Laplacian, :math:`\lambda_n(L)\le2\max_kd_k`, (136).

    Attained by regular bipartite graphs, such as a single edge or an even cycle; nearly attained by
    long paths.

    Args:
      network: the graph whose degrees are used.

    Example:
      >>> import fljax as fl
      >>> float(laplacian_bound(fl.graphs.ring(6)))
      4.0
    """
    return 2 * jnp.max(jnp.asarray(network.degree))


class ConnectivityBound(NamedTuple):
    """Bounds of :func:`connectivity_bound`."""

    nodes: Array  # [K]  of each node's degree
    least: Array  # []  the best of them


@checked
def connectivity_bound(network: Graph) -> ConnectivityBound:
    r"""Bound on connectivity, :math:`\lambda_2(L)\le\frac n{n-1}d_k` for all k, Proposition 7.1,
    (156).

    Attained by complete graphs. If the connectivity of a network is near the smallest of these
    bounds, rearranging its edges cannot increase it much.

    Args:
      network: a graph of two nodes or more.

    Raises:
      ValueError: a network of one node.

    Example:
      >>> import fljax as fl
      >>> graph = fl.graphs.complete(5)
      >>> float(connectivity_bound(graph).least), round(float(graph.algebraic_connectivity()), 4)
      (5.0, 5.0)
    """
    if network.nodes < 2:
        raise ValueError("the connectivity of a network needs at least two nodes, got one.")
    bounds = network.nodes / (network.nodes - 1) * jnp.asarray(network.degree)
    return ConnectivityBound(bounds, jnp.min(bounds))


class ErdosRenyi(NamedTuple):
    """Estimates for the Laplacian of a random graph."""

    degree: Array  # []  a node's expected one, p (n - 1): (154) takes it for the largest, too
    largest_degree: Array  # []  the largest, to the next order
    laplacian: Array  # [K, K]  the expected one, n p I - p 1 1'
    connectivity: Array  # []  n p, which (155) takes for lambda_2
    least_connectivity: Array  # []  lambda_2, to the next order


@checked
def erdos_renyi_estimates(nodes: int, edge_probability: Float[Array, ""] | float) -> ErdosRenyi:
    r"""Estimates for Erdos-Renyi graphs, whose pairs are joined independently, (153)-(155).

    :math:`\lambda_2\approx np` and :math:`d_{\max}\approx p(n-1)` are the orders for large
    networks: for 50 nodes with :math:`p=0.2` the mean of :math:`\lambda_2` is 3.2 and not 10, and
    that of :math:`d_{\max}` is 16.6 and not 9.8. These orders neglect that the extreme values
    follow the extreme degrees, which are about as in :math:`n` independent degrees: lower and
    higher by :math:`\sqrt{2np(1-p)\log n}` (2.1 and 17.7 in this case; for 200 nodes with
    :math:`p=\frac12` 77 and 122.5, compared with observed values of 77.9 and 118.7).

    Args:
      nodes: :math:`n`.
      edge_probability: :math:`p`, in [0, 1].

    Raises:
      ValueError: a number of nodes that is not positive, or a value that is not a probability.
      MemoryError: a matrix of so many nodes does not fit.

    Example:
      >>> bounds = erdos_renyi_estimates(200, 0.5)
      >>> [round(float(x), 1) for x in (bounds.connectivity, bounds.least_connectivity)]
      [100.0, 77.0]
    """
    checks.count("nodes", nodes)
    checks.interval("edge_probability", edge_probability, at_least=0, at_most=1)
    check_fits(
        f"a matrix of {nodes} nodes",
        nodes,
        nodes,
        entry_bytes=float_dtype().itemsize,
        mend="take fewer nodes",
    )
    probability = jnp.asarray(edge_probability, float_dtype())
    spread = jnp.sqrt(2 * nodes * probability * (1 - probability) * np.log(nodes))
    degree = probability * (nodes - 1)
    eye = jnp.eye(nodes, dtype=probability.dtype)
    return ErdosRenyi(
        degree,
        jnp.minimum(degree + spread, nodes - 1),
        nodes * probability * eye - probability * jnp.ones_like(eye),
        nodes * probability,
        jnp.maximum(nodes * probability - spread, 0),
    )


# --------------------------------------------------------------------------- of arguments


def check_network(problem: Problem, network: Graph) -> None:
    """Raise ``ValueError`` unless the network matches the problem's clients, two or more."""
    if network.nodes != problem.clients:
        raise ValueError(f"the network has {network.nodes} nodes, the problem {problem.clients}.")
    if network.nodes < 2:
        raise ValueError("coupling needs at least two clients, got one.")


def coupling_of(problem: Problem, coupling: Array | float) -> Array:
    """The coupling, ``[D]``; raises ``ValueError`` unless scalar or one per parameter, >= 0."""
    if np.shape(coupling) not in ((), (problem.dim,)):
        raise ValueError(
            f"coupling must be one number or one for each of the {problem.dim} parameters, got "
            f"shape {np.shape(coupling)}."
        )
    checks.nonnegative("coupling", coupling)
    return jnp.broadcast_to(jnp.asarray(coupling, problem.dtype), problem.dim)


def checked_truth(problem: Problem, truth: Array, shared: bool = False) -> Array:
    """``[K, D]``."""
    shape = (problem.clients, problem.dim)
    if np.shape(truth) != (problem.dim,) and (shared or np.shape(truth) != shape):
        raise ValueError(
            f"truth must be parameters of shape {(problem.dim,)}"
            f"{'' if shared else f', or of each client, {shape}'}, got shape {np.shape(truth)}."
        )
    checks.finite("truth", truth)
    return jnp.broadcast_to(jnp.asarray(truth, problem.dtype), shape)


def connectivity(network: Graph) -> Array:
    """The second eigenvalue of the Laplacian; exactly zero if the graph is disconnected."""
    return jnp.where(network.connected(), network.algebraic_connectivity(), 0)


def divided(above: Array, below: Array) -> Array:
    """The quotient, infinite for division by zero."""
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), jnp.inf)
