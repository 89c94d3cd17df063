r"""MATCHA: matchings of a graph that are active at random, most often the critical ones.

The edges of a graph are decomposed into matchings. A matching costs one unit of time, as all of its
pairs communicate in parallel. In each round the matchings are active independently, with
probabilities that make the expected graph as connected as a budget of expected matchings allows.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import as_given, field, float_array, float_dtype, module
from fljax.graphs import neighbor_tables
from fljax.graphs.undirected import Graph
from fljax.graphs.varying import Varying

#: Relative distance from the largest connectivity at which its search ends.
GAP = 1e-8

#: The factor by which the barriers are weakened each time, the most Newton steps until the next
#: time, and the predicted increase and the share of a step below which there is nothing to gain.
WEAKENING = 5.0
NEWTON_STEPS = 50
CENTERED = 1e-6
SHORTEST = 1e-10


class ActivationProbabilities(NamedTuple):
    """How often each matching is active, and how connected the expected graph then is.

    Attributes:
      probabilities: ``[M]``, of the matchings.
      connectivity: the second smallest eigenvalue of the expected Laplacian.
      bound: an upper bound of it, for any probabilities within the budget.
    """

    probabilities: Float[np.ndarray, " matchings"]
    connectivity: float
    bound: float


@checked
def edge_coloring(graph: Graph) -> Int[np.ndarray, "nodes nodes"]:
    """The number of the matching of each edge, ``[K, K]``; -1 without an edge.

    Edges of one number have no node in common. There are at most one more numbers than the most
    neighbors of a node, which is the least possible number or one more; in a bipartite graph it is
    the least one. Concrete graphs only.

    Args:
        graph: an undirected graph.

    Example:
        >>> import fljax as fl
        >>> fl.graphs.edge_coloring(fl.graphs.path(3)).tolist()
        [[-1, 0, -1], [0, -1, 1], [-1, 1, -1]]

    Reference: Misra and Gries, A constructive proof of Vizing's theorem (1992).
    """
    edges = graph.edge_list()
    counts = np.bincount(np.ravel(edges).astype(np.int64), minlength=graph.nodes)
    palette = range(int(counts.max(initial=0)) + 1)
    #: for each node, the neighbor over the edge of each color
    partner: list[dict[int, int]] = [{} for _ in range(graph.nodes)]
    color: dict[frozenset[int], int] = {}

    def is_free(node: int, number: int) -> bool:
        return number not in partner[node]

    def free(node: int) -> int:
        return next(number for number in palette if is_free(node, number))

    def paint(node: int, other: int, number: int) -> None:
        color[frozenset((node, other))] = number
        partner[node][number] = other
        partner[other][number] = node

    def clear(node: int, other: int) -> int:
        number = color.pop(frozenset((node, other)))
        del partner[node][number], partner[other][number]
        return number

    def fan_of(node: int, first: int) -> list[int]:
        """Neighbors, each of whose edges has a color that is free at the one before it."""
        fan = [first]
        remaining = set(partner[node].values())
        while True:
            extending = (
                n for n in sorted(remaining) if is_free(fan[-1], color[frozenset((node, n))])
            )
            following = next(extending, None)
            if following is None:
                return fan
            fan.append(following)
            remaining.discard(following)

    def alternating_path(node: int, first: int, second: int) -> list[tuple[int, int, int]]:
        """The path of these two colors from a node where ``first`` is free: its edges, with the
        colors that they get if the two are exchanged.
        """
        path = []
        number = second
        other = first
        while number in partner[node]:
            path.append((node, partner[node][number], other))
            node = partner[node][number]
            number, other = other, number
        return path

    def exchange_colors(path: list[tuple[int, int, int]]) -> None:
        for near, far, _ in path:
            clear(near, far)
        for near, far, number in path:
            paint(near, far, number)

    for node, neighbor in edges:
        free_at_node = free(node)
        path = alternating_path(neighbor, free(neighbor), free_at_node)
        if not path or path[-1][1] != node:  # always, in a bipartite graph: no color is added
            exchange_colors(path)
            paint(node, neighbor, free_at_node)
            continue
        fan = fan_of(node, neighbor)
        free_at_last = free(fan[-1])
        exchange_colors(alternating_path(node, free_at_node, free_at_last))
        # The path may have changed colors in the fan: take the part that still is one and ends at a
        # neighbor where the color is free.
        end = 0
        while not is_free(fan[end], free_at_last):
            end += 1
        for before, after in itertools.pairwise(fan[: end + 1]):
            paint(node, before, clear(node, after))
        paint(node, fan[end], free_at_last)
    matching = np.full((graph.nodes, graph.nodes), -1, np.int32)
    for node, neighbor in edges:
        matching[node, neighbor] = matching[neighbor, node] = color[frozenset((node, neighbor))]
    return matching


def activation_probabilities(
    laplacians: Float[np.ndarray, "matchings nodes nodes"], budget: float
) -> ActivationProbabilities:
    r"""The probabilities :math:`p` of matchings whose expected graph is the most connected.

    .. math:: \max_{p,t}\ t\quad\text{where}\quad
        \sum_jp_jL_j\succeq t\,(I-\tfrac1K11^\top),\quad\sum_jp_j\le bM,\quad0\le p_j\le1,

    a semidefinite program with few variables, solved by Newton's method on logarithmic barriers
    that become weaker and weaker.

    Args:
        laplacians: ``[M, K, K]``, of the matchings, float64.
        budget: :math:`b\in(0,1]`, the share of the matchings that may be active on average.
    """
    matchings, nodes, _ = laplacians.shape
    basis = _vectors_of_sum_zero(nodes)
    inside = basis.T @ laplacians @ basis
    total = budget * matchings

    def connectivity(probabilities: np.ndarray) -> float:
        return float(np.linalg.eigvalsh(np.tensordot(probabilities, inside, 1))[0])

    everything = np.ones(matchings)
    if budget == 1:  # the connectivity grows with every probability
        return ActivationProbabilities(everything, *[connectivity(everything)] * 2)

    def barriers(point: np.ndarray) -> float:
        """The sum of the logarithms of all slacks; minus infinity outside."""
        *_, t = point
        p = point[:-1]
        least = np.linalg.eigvalsh(np.tensordot(p, inside, 1) - t * np.eye(nodes - 1))
        slack = np.concatenate([least, p, 1 - p, [total - p.sum()]])
        return float(np.log(slack).sum()) if np.all(slack > 0) else -np.inf

    def newton_step(point: np.ndarray, weight: float) -> tuple[np.ndarray, float]:
        """The step for the objective ``t / weight + barriers``, and its predicted increase."""
        *_, t = point
        p = point[:-1]
        inverse = np.linalg.inv(np.tensordot(p, inside, 1) - t * np.eye(nodes - 1))
        directions = np.concatenate([inside, -np.eye(nodes - 1)[None]])
        scaled = inverse @ directions
        slack = total - p.sum()
        gradient = np.trace(scaled, axis1=1, axis2=2)
        gradient[:-1] += 1 / p - 1 / (1 - p) - 1 / slack
        gradient[-1] += 1 / weight
        flat = scaled.reshape(len(scaled), -1)
        curvature = flat @ scaled.swapaxes(1, 2).reshape(len(scaled), -1).T
        curvature[:-1, :-1] += np.diag(1 / p**2 + 1 / (1 - p) ** 2) + 1 / slack**2
        step = np.linalg.solve(curvature, gradient)
        return step, float(gradient @ step)

    start = np.full(matchings, budget / 2)
    point = np.append(start, connectivity(start) / 2)
    count = nodes - 1 + 2 * matchings + 1  # of logarithms: the gap is this times the weight
    weight = point[-1]
    while count * weight > GAP * point[-1]:
        weight /= WEAKENING
        for _ in range(NEWTON_STEPS):
            step, increase = newton_step(point, weight)
            if increase < CENTERED:
                break
            before = point[-1] / weight + barriers(point)
            length = 1.0
            while True:
                moved = point + length * step
                if moved[-1] / weight + barriers(moved) >= before + length * increase / 4:
                    break
                length /= 2
                if length < SHORTEST:  # the rest is rounding
                    moved = point
                    break
            if moved is point:
                break
            point = moved
    probabilities = point[:-1]
    return ActivationProbabilities(
        probabilities, connectivity(probabilities), float(point[-1] + count * weight)
    )


def _vectors_of_sum_zero(nodes: int) -> Float[np.ndarray, "nodes rest"]:
    """An orthonormal basis of them, within which a connected Laplacian has no eigenvalue zero."""
    return scipy.linalg.null_space(np.ones((1, nodes)))


def _expected_squares(
    laplacians: Float[np.ndarray, "matchings nodes nodes"],
    probabilities: Float[np.ndarray, " matchings"],
) -> Callable[[float], float]:
    r"""The largest eigenvalue of :math:`E[W^2]-11^\top/K` as a function of the step.

    .. math:: E[W^2]=I-2\alpha\bar L+\alpha^2(\bar L^2+2\tilde L),\quad
        \bar L=\sum_jp_jL_j,\ \tilde L=\sum_jp_j(1-p_j)L_j,

    since :math:`L_j^2=2L_j` for a matching. It is convex in the step.
    """
    nodes = laplacians.shape[1]
    basis = _vectors_of_sum_zero(nodes)
    mean, spread = (
        basis.T @ np.tensordot(weights, laplacians, 1) @ basis
        for weights in (probabilities, probabilities * (1 - probabilities))
    )
    quadratic = mean @ mean + 2 * spread

    def largest(step: float) -> float:
        squares = np.eye(nodes - 1) - 2 * step * mean + step**2 * quadratic
        return float(np.linalg.eigvalsh(squares)[-1])

    return largest


@module
class RandomMatchings(Varying):
    r"""Matchings of a graph, each active in a round with its probability.

    The mixing matrix of a round is :math:`W=I-\alpha\sum_jB_jL_j` with independent
    :math:`B_j\in\{0,1\}`, :math:`P(B_j=1)=p_j`, and the Laplacian :math:`L_j` of matching
    :math:`j`. The weights of a round's edges are :math:`\alpha`, so that the rule
    ``Mixing("laplacian", step=1.0)`` gives :math:`W`. :func:`matcha` chooses the probabilities and
    the step.

    Args:
      graph: the graph of all edges, unweighted.
      matching: ``[K, K]``, the number of each edge's matching, as by :func:`edge_coloring`.
      probabilities: ``[M]``, in [0, 1].
      step: :math:`\alpha`, in (0, 1).

    Raises:
      ValueError: a graph with weights other than one; matchings of another shape, in which an edge
        has no number or a node has two edges of one number; probabilities or a step outside of
        their intervals.

    Example:
      A ring whose two matchings are active half of the time:

      >>> import fljax as fl
      >>> ring = fl.graphs.ring(4)
      >>> network = fl.graphs.RandomMatchings(
      ...     ring, fl.graphs.edge_coloring(ring), probabilities=[0.5, 0.5], step=0.4
      ... )
      >>> round(float(network.rate()), 3)
      0.52
    """

    graph: Graph
    matching: Int[Array, "nodes nodes"] = field(converter=as_given)
    probabilities: Float[Array, " matchings"] = field(
        converter=partial(float_array, "probabilities")
    )
    step: Float[Array, ""] | float

    def validate(self) -> None:
        checks.kind("graph", self.graph, Graph)
        checks.interval("step", self.step, above=0, below=1)
        probabilities = checks.filled("probabilities", self.probabilities, axes=1)
        checks.interval("probabilities", probabilities, at_least=0, at_most=1)
        matching = checks.as_integers(self.matching)
        checks.check_when_concrete(
            partial(_check_matchings, self.graph.nodes, len(probabilities)),
            self.graph.dense(),
            matching,
        )
        object.__setattr__(self, "matching", jnp.asarray(matching, np.int32))

    @property
    def first(self) -> Graph:  # pyright: ignore[reportIncompatibleVariableOverride]
        probabilities = jnp.asarray(self.probabilities)
        return self._with(jnp.arange(len(probabilities)) == jnp.argmax(probabilities))

    def at(self, key: Array, round: Array) -> Graph:
        return self._with(jax.random.bernoulli(key, jnp.asarray(self.probabilities)))

    def _with(self, active: Bool[Array, " matchings"]) -> Graph:
        """The graph with the edges of the active matchings."""
        weights = jnp.where(active, self.step, 0).astype(self.graph.degree.dtype)
        matching = jnp.asarray(self.matching)
        return self.graph.reweighted(lambda k, m: weights[matching[k, m]])

    def rate(self) -> Float[Array, ""]:
        r"""The factor by which a round decreases the expected squared disagreement,
        :math:`\|E[W^2]-11^\top/K\|`.
        """
        probabilities = np.asarray(self.probabilities, np.float64)
        squares = _expected_squares(_laplacians(self.matching, len(probabilities)), probabilities)
        return neighbor_tables.constant(squares(float(self.step)), float_dtype())


def _check_matchings(nodes: int, count: int, graph: object, numbering: object) -> None:
    adjacency = np.asarray(graph)
    matching = np.asarray(numbering)
    _check_unweighted(adjacency)
    if matching.shape != (nodes, nodes):
        raise ValueError(
            f"matching must have shape {(nodes, nodes)}, a number for every edge of the graph, got "
            f"shape {matching.shape}; fljax.graphs.edge_coloring(graph) makes one."
        )
    numbers = matching[adjacency > 0]
    outside = numbers[(numbers < 0) | (numbers >= count)]
    if len(outside):
        raise ValueError(
            f"matching must number the edges from 0 to {count - 1}, as there are {count} "
            f"probabilities, got {outside[0]}."
        )
    for number in range(count):
        edges = (adjacency > 0) & (matching == number)
        if np.any(edges.sum(axis=1) > 1) or np.any(edges != edges.T):
            raise ValueError(
                f"the edges of number {number} are no matching: some node has two of them, or an "
                "edge has another number in the reverse direction."
            )


def _check_unweighted(adjacency: np.ndarray) -> None:
    weights = adjacency[adjacency > 0]
    if np.any(weights != 1):
        raise ValueError(
            f"the graph must be unweighted, got an edge of weight {weights[weights != 1][0]:g}; "
            "the weights of the edges that are active follow from the step."
        )


def _laplacians(matching: object, count: int) -> Float[np.ndarray, "matchings nodes nodes"]:
    """The Laplacians of the matchings."""
    adjacency = np.asarray(matching)[None] == np.arange(count)[:, None, None]
    return adjacency.sum(axis=2)[:, :, None] * np.eye(adjacency.shape[1]) - adjacency


@checked
def matcha(graph: Graph, budget: float) -> RandomMatchings:
    r"""Matchings that are active at random under a budget of communication (MATCHA).

    The edges are decomposed into :math:`M` matchings (:func:`edge_coloring`). Their probabilities
    maximize the second smallest eigenvalue of the expected Laplacian where
    :math:`\sum_jp_j\le bM`, and the step minimizes :math:`\|E[W^2]-11^\top/K\|`
    (:meth:`RandomMatchings.rate`). Edges that connect parts of the graph are active more often than
    edges within dense parts. Computed on the host, ``O(M K^3)``.

    Args:
        graph: the graph of all edges, connected and unweighted.
        budget: :math:`b\in(0,1]`, the share of the matchings that are active on average; at 1 all
            of them are active in all rounds.

    Raises:
        ValueError: a budget outside (0, 1]; a graph with weights other than one, or in several
            parts, which no budget connects.

    Example:
        >>> import jax, fljax as fl
        >>> network = fl.graphs.matcha(fl.graphs.star(5), budget=0.5)
        >>> [round(float(p), 3) for p in network.probabilities]  # each edge is a matching
        [0.5, 0.5, 0.5, 0.5]
        >>> simulation = fl.Simulation(
        ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=20, dim=2),
        ...     network=network,
        ...     algorithm=fl.algorithms.ATC(0.05, mixing=fl.graphs.Mixing("laplacian", step=1.0)),
        ... )
        >>> share = fl.run(simulation, rounds=1000).messages[-1] / 8000  # of all in all rounds
        >>> bool(0.45 < share < 0.55)
        True

    Reference: Wang, Sahu, Yang, Joshi and Kar, MATCHA: Speeding up decentralized SGD via matching
    decomposition sampling (2019), section 3.
    """
    checks.kind("graph", graph, Graph)
    checks.interval("budget", budget, above=0, at_most=1)
    _check_unweighted(np.asarray(graph.dense()))
    graph.require_connected()
    matching = edge_coloring(graph)
    laplacians = _laplacians(matching, int(matching.max()) + 1)
    probabilities = activation_probabilities(laplacians, float(budget)).probabilities
    squares = _expected_squares(laplacians, probabilities)
    # With any step beyond 1 a single active matching expands the differences of its pairs.
    options = {"xatol": 1e-10}
    step = scipy.optimize.minimize_scalar(squares, bounds=(0, 1), method="bounded", options=options)
    return RandomMatchings(graph, matching, probabilities, float(step.x))
