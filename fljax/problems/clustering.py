r"""Clustered federated learning: finding clients with similar data, and one model per group.

There are two approaches (Jung 2025, section 6.2). *Cluster, then pool*: represent every data set by
a vector (:func:`fljax.problems.train`, :func:`~fljax.problems.local_gradients`,
:func:`~fljax.problems.mean_codes`), cluster the vectors (:func:`kmeans`, or
:func:`gaussian_mixture` for clusters that are not balls), and train one model per cluster
(:func:`pooled_models`). Or use *generalized total variation*: models coupled along a graph that is
dense within clusters and sparse between them agree within clusters (:class:`fljax.problems.GTVMin`,
:class:`fljax.algorithms.FedRelax`), and :func:`detect` extracts the clusters from the models.
:func:`quality` measures how well a graph separates a cluster, :func:`adjusted_rand` and
:func:`misassigned` the accuracy of estimated clusters.

Shapes: ``K`` clients, ``Q`` clusters, ``m`` numbers of a representation, ``D`` parameters.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Bool, Float, Int, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.linalg import symmetric_eigen
from fljax._core.module import float_dtype, replace
from fljax._core.numerics import HIGHEST
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.problems.solvers import factorize, prox, refuse_clipping

__all__ = [
    "Clusters",
    "GaussianMixture",
    "Quality",
    "adjusted_rand",
    "detect",
    "gaussian_mixture",
    "kmeans",
    "misassigned",
    "pooled_models",
    "quality",
]


class Clusters(NamedTuple):
    """Result of :func:`kmeans`."""

    cluster: Array  # [K]     of each point, 0..Q-1
    centers: Array  # [Q, m]
    inertia: Array  # []      the sum of squared distances from the centers


class GaussianMixture(NamedTuple):
    """Result of :func:`gaussian_mixture`, which extends :class:`Clusters`."""

    cluster: Array  # [K]        the likeliest of each point, 0..Q-1
    centers: Array  # [Q, m]     the means
    covariances: Array  # [Q, m, m]
    shares: Array  # [Q]         how frequent each is
    membership: Array  # [K, Q]  the probability of each point to be of each
    log_likelihood: Array  # []  of all points


class Quality(NamedTuple):
    """How well a graph separates a cluster."""

    connectivity: Array  # []  lambda_2 of the subgraph within
    boundary: Array  # []  the weights of the edges that leave it, summed


@checked
def kmeans(
    key: Key[Array, ""],
    points: Float[Array, "clients size"],
    clusters: int,
    *,
    restarts: int = 10,
    iterations: int = 100,
) -> Clusters:
    r"""k-means: clusters that minimize :math:`\sum_i\lVert z^{(i)}-c_{q(i)}\rVert^2`, the best of
    several starts.

    Lloyd's iterations from k-means++ starts, until no point changes its cluster. An empty cluster
    takes the point that is furthest from its center. Traceable, so that every seed of a study has
    its own clusters.

    Args:
      key: consumed.
      points: ``[K, m]``.
      clusters: ``Q``, at most ``K``.
      restarts: number of starts; the best result is returned.
      iterations: maximum number of iterations of each start.

    Raises:
      ValueError: more clusters than points, NaN.

    Reference:
      Lloyd, Least squares quantization in PCM (1982); Arthur and Vassilvitskii, k-means++ (2007).

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> points = jnp.array([[0.0], [0.1], [5.0], [5.2]])
      >>> clusters = fl.clustering.kmeans(jax.random.key(0), points, 2)
      >>> bool(clusters.cluster[0] == clusters.cluster[1]), round(float(clusters.inertia), 3)
      (True, 0.025)
    """
    checks.count("clusters", clusters)
    checks.count("restarts", restarts)
    checks.count("iterations", iterations)
    checks.finite("points", points)
    if clusters > len(points):
        raise ValueError(f"{len(points)} points cannot fill {clusters} clusters.")
    points = jnp.asarray(points)
    fit_once = jax.vmap(lambda k: _lloyd(points, _plus_plus(k, points, clusters), iterations))
    several = fit_once(jax.random.split(key, restarts))
    best = jnp.argmin(several.inertia)
    return jax.tree.map(lambda a: a[best], several)


def _squares(points: Array, center: Array) -> Float[Array, " clients"]:
    return jnp.sum((points - center[None, :]) ** 2, axis=1)


def _plus_plus(key: Array, points: Array, clusters: int) -> Float[Array, "clusters size"]:
    """A point at random, then each with probability as its squared distance from the nearest."""
    first, *remaining = jax.random.split(key, clusters)
    center = points[jax.random.randint(first, (), 0, len(points))]
    centers = [center]
    nearest = _squares(points, center)
    for draw in remaining:
        # Where all distances are zero any point will do: all logarithms are then equal.
        log = jnp.log(jnp.where(jnp.max(nearest) > 0, nearest, 1))
        center = points[jax.random.categorical(draw, log)]
        centers.append(center)
        nearest = jnp.minimum(nearest, _squares(points, center))
    return jnp.stack(centers)


def _lloyd(points: Array, centers: Array, iterations: int) -> Clusters:
    """Lloyd's iterations from given centers until no point changes its cluster."""
    clusters = len(centers)

    def assign(centers: Array) -> tuple[Array, Array]:
        squares = jax.lax.map(lambda center: _squares(points, center), centers)
        return jnp.argmin(squares, axis=0).astype(jnp.int32), jnp.min(squares, axis=0)

    def move(state: tuple) -> tuple:
        cluster, far, _, _, iteration = state
        size = jax.ops.segment_sum(jnp.ones_like(far), cluster, clusters)
        # The empty ones take the furthest points, one each.
        empty = size == 0
        _, furthest = jax.lax.top_k(far, clusters)
        taken = jnp.cumsum(empty) - 1
        total = jax.ops.segment_sum(points, cluster, clusters)
        mean = total / jnp.where(empty, 1, size)[:, None]
        centers = jnp.where(empty[:, None], points[furthest[taken]], mean)
        again, far = assign(centers)
        return again, far, centers, jnp.any(again != cluster), iteration + 1

    cluster, far = assign(centers)
    start = (cluster, far, centers, jnp.asarray(True), jnp.asarray(0))
    final = jax.lax.while_loop(lambda s: s[3] & (s[4] < iterations), move, start)
    cluster, far, centers, *_ = final
    return Clusters(cluster, centers, jnp.sum(far))


@checked
def gaussian_mixture(
    key: Key[Array, ""],
    points: Float[Array, "clients size"],
    clusters: int,
    *,
    restarts: int = 10,
    iterations: int = 100,
    floor: Float[Array, ""] | float = 1e-3,
) -> GaussianMixture:
    r"""A mixture of Gaussians, each with its own covariance: clusters of any extent and shape.

    Expectation-maximization from the clusters of k-means, until the likelihood no longer increases;
    the most likely result of several starts. Traceable, so that every seed of a study has its own
    clusters.

    Args:
      key: consumed.
      points: ``[K, m]``.
      clusters: ``Q``, at most ``K``.
      restarts: number of starts.
      iterations: maximum number of iterations of each start.
      floor: lower bound on each covariance in every direction, as a multiple of the points' mean
        variance, > 0; without it a Gaussian could shrink onto a single point.

    Raises:
      ValueError: more clusters than points, NaN, a floor that is not positive.

    Reference:
      Jung 2025, section 6.2; Dempster, Laird and Rubin 1977.

    Example:
      A narrow cluster within a wide one, which centers cannot separate:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> wide, narrow = jax.random.normal(jax.random.key(0), (2, 40, 2))
      >>> points = jnp.concatenate([10 * wide, 0.1 * narrow])
      >>> found = fl.clustering.gaussian_mixture(jax.random.key(1), points, 2)
      >>> truth = jnp.repeat(jnp.arange(2), 40)
      >>> bool(fl.clustering.adjusted_rand(found.cluster, truth) > 0.9)
      True
    """
    checks.positive("floor", floor)
    checks.count("restarts", restarts)
    checks.finite("points", points)
    points = jnp.asarray(checks.filled("points", points, axes=2), float_dtype())
    starts = jax.vmap(
        lambda k: kmeans(k, points, clusters, restarts=1, iterations=iterations).cluster
    )(jax.random.split(key, restarts))
    least = floor * jnp.mean(jnp.var(points, axis=0))
    least = jnp.maximum(least, jnp.finfo(points.dtype).tiny)
    fits = jax.vmap(lambda start: _expected(points, start, clusters, least, iterations))(starts)
    best = jnp.argmax(fits.log_likelihood)
    return jax.tree.map(lambda a: a[best], fits)


def _expected(
    points: Array, start: Array, clusters: int, least: Array, iterations: int
) -> GaussianMixture:
    """Expectation-maximization from hard clusters."""

    def maximize(membership: Array) -> tuple[Array, Array, Array]:
        size = jnp.sum(membership, axis=0)
        safe = jnp.where(size > 0, size, 1)
        mean = jnp.matmul(membership.T, points, precision=HIGHEST) / safe[:, None]
        differences = points[None] - mean[:, None]
        spread = jnp.einsum(
            "kq,qkp,qkr->qpr", membership, differences, differences, precision=HIGHEST
        )
        floor = least * jnp.eye(points.shape[1], dtype=points.dtype)
        return mean, spread / safe[:, None, None] + floor[None], size / len(points)

    def expect(mean: Array, covariance: Array, shares: Array) -> tuple[Array, Array]:
        """The points' memberships, and their log-likelihood."""
        values, vectors = symmetric_eigen(covariance)
        values = jnp.maximum(values, least)
        differences = points[None] - mean[:, None]
        projected = jnp.einsum("qkp,qpi->qki", differences, vectors, precision=HIGHEST)
        distance = jnp.sum(projected**2 / values[:, None], axis=2)  # of Mahalanobis, squared
        constant = jnp.sum(jnp.log(2 * np.pi * values), axis=1)
        tiny = jnp.finfo(points.dtype).tiny
        log = jnp.log(jnp.maximum(shares, tiny))[:, None] - (distance + constant[:, None]) / 2
        total = jax.nn.logsumexp(log, axis=0)
        return jnp.exp(log - total[None]).T, jnp.sum(total)

    def iteration(state: tuple) -> tuple:
        membership, _, last, count = state
        membership, likelihood = expect(*maximize(membership))
        return membership, last, likelihood, count + 1

    def unfinished(state: tuple) -> Array:
        _, before, last, count = state
        return (count < iterations) & ((count < 2) | (last - before > 1e-10 * jnp.abs(last)))

    infinite = jnp.asarray(-jnp.inf, points.dtype)
    hard = jax.nn.one_hot(start, clusters, dtype=points.dtype)
    membership, *_ = jax.lax.while_loop(unfinished, iteration, (hard, infinite, infinite, 0))
    mean, covariance, shares = maximize(membership)
    membership, likelihood = expect(mean, covariance, shares)
    cluster = jnp.argmax(membership, axis=1).astype(jnp.int32)
    return GaussianMixture(cluster, mean, covariance, shares, membership, likelihood)


@checked
def pooled_models(
    problem: Problem,
    cluster: object,
    clusters: int,
    *,
    ridge: Float[Array, ""] | float = 1e-4,
    iterations: int = 1000,
) -> Float[Array, "clients dim"]:
    r"""Each client's model, trained on the pooled data of its cluster.

    .. math:: w_k=\arg\min_w\sum_{i\in\mathcal C(k)}\big(f_i(w)+\epsilon\lVert w\rVert^2\big)

    All clients' *mean* losses have equal weight, independent of their sizes (``problem.weighing``
    changes that).

    Args:
      problem: the clients'.
      cluster: ``[K]``, the cluster of each client, in ``0..Q-1``; may be traced, and clusters may
        be empty.
      clusters: ``Q``.
      ridge: :math:`\epsilon>0`.
      iterations: number of iterations of the solver where no closed form exists.

    Raises:
      ValueError: membership for another number of clients or out of range, a ridge that is not
        positive, a problem that clips gradients.

    Example:
      >>> import numpy as np, fljax as fl
      >>> data = [(np.ones((2, 1)), np.full(2, target)) for target in (1.0, 3.0, 8.0)]
      >>> problem = fl.problems.from_clients(data, fl.problems.LeastSquares())
      >>> fl.clustering.pooled_models(problem, [0, 0, 1], clusters=2).round(2).tolist()
      [[2.0], [2.0], [8.0]]

    Reference:
      Jung 2025, (72).
    """
    checks.count("clusters", clusters)
    checks.positive("ridge", ridge)
    checks.count("iterations", iterations)
    cluster = jnp.asarray(checks.group_numbers("cluster", cluster, clusters))
    if len(cluster) != problem.clients:
        raise ValueError(
            f"cluster is for {len(cluster)} clients, but the problem has {problem.clients}."
        )
    refuse_clipping(problem)
    weights = jnp.asarray(problem.weights)
    share = jnp.broadcast_to(problem.share, cluster.shape)
    pooled = problem.pooled()
    zero = jnp.zeros((1, problem.dim), problem.dtype)

    def model(number: Array) -> Array:
        inside = (cluster == number).astype(weights.dtype)
        members = jnp.maximum(jnp.sum(inside), 1)
        member = replace(
            pooled,
            weights=(weights * inside[:, None]).reshape(1, -1) / members,
            strength=jnp.sum(share * inside) / members,
            importance=None,
        )
        weight = jnp.full(1, 2 * ridge, problem.dtype)
        return prox(member, factorize(member, weight), zero, zero, iterations)[0]

    return jax.lax.map(model, jnp.arange(clusters, dtype=np.int32))[cluster]


@checked
def detect(
    network: Graph,
    models: Float[Array, "clients dim"],
    tolerance: Float[Array, ""] | float,
) -> Int[Array, " clients"]:
    r"""Clusters of nodes whose models agree: the components of the graph of edges with small
    differences.

    Args:
      network: the graph along which the models were coupled.
      models: ``[K, D]``, such as a solution of :class:`fljax.problems.GTVMin`.
      tolerance: an edge connects if :math:`\lVert w_k-w_l\rVert` is at most this.

    Returns:
      ``[K]``, for every node the smallest number in its cluster; may be traced.
      ``np.unique(..., return_inverse=True)`` numbers the clusters.

    Raises:
      ValueError: models for another number of nodes, NaN, a negative tolerance.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> models = jnp.array([[0.0], [0.1], [3.0], [3.1]])
      >>> fl.clustering.detect(fl.graphs.path(4), models, tolerance=0.5).tolist()
      [0, 0, 2, 2]
    """
    checks.nonnegative("tolerance", tolerance)
    checks.finite("models", models)
    if len(models) != network.nodes:
        raise ValueError(
            f"models must be of the {network.nodes} nodes of the network, got {len(models)}."
        )
    return network.agreeing(models, tolerance).components()


@checked
def quality(network: Graph, members: Bool[Array, " clients"]) -> Quality:
    r"""How well a graph separates a cluster: its internal connectivity, and the weight of its
    boundary.

    A solution of GTVMin is nearly constant on a cluster :math:`\mathcal C` where
    :math:`\lambda_2(L^{(\mathcal C)})` is large and
    :math:`\partial\mathcal C=\sum_{i\in\mathcal C,i'\notin\mathcal C}A_{ii'}` small.

    Args:
      network: the similarity graph; see ``Graph.algebraic_connectivity`` for the cost.
      members: ``[K]``, the mask of the cluster's nodes, at least two.

    Returns:
      The second smallest eigenvalue of the Laplacian of the subgraph, and the boundary.

    Raises:
      ValueError: members for another number of nodes, fewer than two.

    Reference:
      Jung 2025, section 6.2, and Proposition 6.1.

    Example:
      >>> import numpy as np, fljax as fl
      >>> fl.clustering.quality(fl.graphs.path(4), np.array([True, True, False, False]))
      Quality(connectivity=Array(2., dtype=...), boundary=Array(1., dtype=...))
    """
    if np.shape(members) != (network.nodes,):
        raise ValueError(
            f"members must be one truth value for each of the {network.nodes} nodes, got shape "
            f"{np.shape(members)}."
        )

    def enough(members: Array) -> None:
        if np.sum(members) < 2:
            raise ValueError(
                f"a cluster must have at least two members, got {int(np.sum(members))}."
            )

    checks.check_when_concrete(enough, members)
    inside = jnp.asarray(members)
    within = network.reweighted(lambda k, m: inside[k] & inside[m])
    boundary = jnp.sum(jnp.where(inside, network.degree - within.degree, 0))
    return Quality(within.algebraic_connectivity(inside), boundary)


@checked
def adjusted_rand(estimate: object, truth: object) -> Float[Array, ""]:
    """Agreement of two partitions of the same clients: 1 if they are equal, 0 in expectation for
    random ones.

    Args:
      estimate: ``[K]`` integers, any cluster numbers below ``K``; may be traced.
      truth: ``[K]``, as ``estimate``.

    Raises:
      ValueError: partitions of different clients, names out of range.

    Reference:
      Hubert and Arabie, Comparing partitions (1985).

    Example:
      >>> import fljax as fl
      >>> float(fl.clustering.adjusted_rand([0, 0, 1, 1], [1, 1, 0, 0]))
      1.0
    """
    estimate, truth = (jnp.asarray(names) for names in _partitions(estimate, truth))

    def pairs(*names: Array) -> Array:
        """Number of pairs of clients that agree in all of these labels."""
        ordered = jnp.stack(jax.lax.sort(names, num_keys=len(names)))
        same = jnp.all(ordered[:, 1:] == ordered[:, :-1], axis=0)
        index = jnp.arange(1, len(estimate))
        first = jax.lax.cummax(jnp.where(same, 0, index))
        return jnp.sum((index - first).astype(float_dtype()))

    together = pairs(estimate, truth)
    rows = pairs(estimate)
    columns = pairs(truth)
    total = float(len(estimate))
    probability = rows * columns / (total * (total - 1) / 2)
    most = (rows + columns) / 2
    # Both all in one cluster, or both all alone: equal, and no chance to be otherwise.
    above = jnp.where(most == probability, 1, most - probability)
    return jnp.where(most == probability, 1, (together - probability) / above)


@checked
def misassigned(estimate: object, truth: object) -> float:
    """The share of clients in a wrong cluster, under the best matching of cluster numbers.

    Args:
      estimate: ``[K]`` integers, any cluster numbers below ``K``.
      truth: ``[K]``, as ``estimate``.

    Raises:
      TypeError: traced partitions, which the host cannot match.
      ValueError: partitions of different clients, names out of range.

    Example:
      >>> import fljax as fl
      >>> fl.clustering.misassigned([0, 0, 0, 1], [1, 1, 0, 0])
      0.25
    """
    estimate = checks.plain(estimate)
    truth = checks.plain(truth)
    if not (checks.is_concrete(estimate) and checks.is_concrete(truth)):
        raise TypeError(
            "misassigned cannot be traced, since it matches clusters on the host; take "
            "adjusted_rand."
        )
    estimate, truth = (np.unique(n, return_inverse=True)[1] for n in _partitions(estimate, truth))
    table = np.zeros((estimate.max() + 1, truth.max() + 1))
    np.add.at(table, (estimate, truth), 1)
    rows, columns = scipy.optimize.linear_sum_assignment(table, maximize=True)
    return float(1 - table[rows, columns].sum() / table.sum())


def _partitions(estimate: object, truth: object) -> tuple[Array, Array]:
    pair = checks.array("estimate", estimate), checks.array("truth", truth)
    sizes = [np.shape(value) for value in pair]
    if sizes[0] != sizes[1] or len(sizes[0]) != 1 or sizes[0][0] < 2:
        raise ValueError(
            "estimate and truth must be partitions of the same two clients or more, got shapes "
            f"{sizes[0]} and {sizes[1]}."
        )
    nodes = sizes[0][0]
    return checks.group_numbers("estimate", pair[0], nodes), checks.group_numbers(
        "truth", pair[1], nodes
    )
