r"""Schedules of sparse graphs after which all nodes have the exact mean of their values.

A round of gossip on one sparse graph only reduces disagreement. Some schedules of sparse graphs
reach the mean itself after a fixed number of rounds: the product of their mixing matrices is
:math:`11^\top/K`. On a power of two of nodes one peer a round suffices
(:func:`one_peer_exponential`); :func:`base_graphs` do so for every number of nodes, with as many
peers a round as is asked for.
"""

import functools
import itertools
from typing import TYPE_CHECKING

import numpy as np
import scipy

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.graphs import neighbor_tables
from fljax.graphs.varying import MixingSchedule

if TYPE_CHECKING:
    import scipy.sparse

#: Weights of the edges of one round, of pairs of nodes, each once.
Pairs = dict[tuple[int, int], float]


@checked
def one_peer_exponential(nodes: int) -> MixingSchedule:
    r"""One-peer exponential graphs: in round :math:`t` node :math:`k` receives from :math:`k+2^t`.

    .. math:: w_{kk}^{(t)}=w_{k,(k+2^t)\bmod K}^{(t)}=\tfrac12,
        \qquad t=0,\dots,\lceil\log_2K\rceil-1,

    and so on cyclically. Each node sends one message and receives one. If :math:`K` is a power of
    two, :math:`\log_2K` rounds give all nodes the mean, from whichever round of the cycle; for
    other :math:`K` they do not, but the mixing is as fast as over the exponential graph, in which
    all of these edges are present at the same time.

    Links are directed (except that over half of the nodes), so that algorithms run on it that
    support directed and changing networks. Give them ``mixing=Mixing("laplacian", step=1.0)``,
    which takes the weights as they are.

    Args:
        nodes: number of nodes ``K >= 2``.

    Example:
        >>> import fljax as fl
        >>> network = fl.graphs.one_peer_exponential(8)
        >>> network.rounds, network.directed
        (3, True)

    Reference: Ying, Yuan, Chen, Hu, Pan and Yin, Exponential graph is provably efficient for
    decentralized deep training (2021), Lemma 1.
    """
    neighbor_tables.check_nodes(nodes)
    everyone = np.arange(nodes)
    matrices = []
    for exponent in range(_exponent(nodes)):
        senders = (everyone + 2**exponent) % nodes
        entries = (np.full(nodes, 0.5), (everyone, senders))
        matrix = scipy.sparse.coo_array(entries, (nodes, nodes))
        matrices.append(matrix + 0.5 * scipy.sparse.eye_array(nodes))
    return MixingSchedule(matrices, directed=True)


def _exponent(nodes: int) -> int:
    """The smallest integer not below the binary logarithm."""
    return (nodes - 1).bit_length()


@checked
def base_graphs(nodes: int, degree: int = 1, *, simple: bool = False) -> MixingSchedule:
    r"""Base-:math:`(d+1)` graphs: exact means of any number of nodes, ``degree`` peers at most.

    After its :math:`m\le2\log_{d+1}K+2` rounds all nodes have the mean of their values. The nodes
    are divided by the digits of :math:`K` in base :math:`d+1`, largest part first; each part
    averages its values, each in turn exchanges once with all later parts so that the mean of each
    part is the mean of all, and parts average once more. If :math:`K=pq` with a largest factor
    :math:`p` of primes up to :math:`d+1`, it is shorter to do this among :math:`q` nodes, in
    :math:`p` copies, and to combine these by :math:`p` nodes' averages in steps of groups of up to
    :math:`d+1` nodes (hyper-hypercubes).

    Give algorithms ``mixing=Mixing("laplacian", step=1.0)``, which takes the weights as they are.

    Args:
        nodes: number of nodes ``K >= 2``.
        degree: :math:`d`, from 1 to ``K - 1``: most peers of a node in a round.
        simple: the *simple* Base-:math:`(d+1)` graph, without the second construction.

    Raises:
        ValueError: a degree below one or above ``K - 1``.

    Example:
        All five nodes have the mean of their values after five rounds of one peer each:

        >>> import jax, jax.numpy as jnp, fljax as fl
        >>> network = fl.graphs.base_graphs(5)
        >>> values = jnp.arange(5.0)
        >>> for number in range(1, network.rounds + 1):
        ...     graph = network.at(jax.random.key(number), jnp.asarray(number))
        ...     values = graph.mixing("laplacian", step=1.0)(values)
        >>> network.rounds, [round(float(value), 6) for value in values]
        (5, [2.0, 2.0, 2.0, 2.0, 2.0])

    Reference: Takezawa, Sato, Bao, Niwa and Yamada, Beyond exponential graph: communication-
    efficient topologies for decentralized learning via finite-time convergence (2023), Algorithms
    1 to 3, Theorem 1.
    """
    neighbor_tables.check_nodes(nodes)
    checks.count("degree", degree)
    if degree > nodes - 1:
        raise ValueError(f"degree must be at most the {nodes - 1} other nodes, got {degree}.")
    checks.switch("simple", simple)
    everyone = list(range(nodes))
    rounds = _simple_base(everyone, degree) if simple else _base(everyone, degree)
    return MixingSchedule([_matrix(pairs, nodes) for pairs in rounds])


def _base(nodes: list[int], degree: int) -> list[Pairs]:
    """Algorithm 3: the shorter one of the simple graph and of copies that are combined."""
    alone = _simple_base(nodes, degree)
    rest = len(nodes)
    for prime in range(2, degree + 2):  # composite divisors are used up by their primes
        while rest % prime == 0:
            rest //= prime
    copies = [nodes[start : start + rest] for start in range(0, len(nodes), rest)]
    across = [list(group) for group in zip(*copies, strict=True)]
    combined = _side_by_side([_simple_base(copy, degree) for copy in copies])
    combined += _side_by_side([_hyper_hypercube(group, degree) for group in across])
    return alone if len(alone) < len(combined) else combined


def _simple_base(nodes: list[int], degree: int) -> list[Pairs]:
    """Algorithm 2."""
    if _shortest_product(len(nodes), degree + 1) is not None:
        return _hyper_hypercube(nodes, degree)
    pieces = _pieces(nodes, degree + 1)
    parts = [[node for piece in equal for node in piece] for equal in pieces]
    first_means = [_hyper_hypercube(part, degree) for part in parts]
    last_means = [
        _side_by_side([_hyper_hypercube(piece, degree) for piece in equal]) for equal in pieces
    ]
    sizes = [len(part) for part in parts]
    last = len(parts) - 1
    rounds = [
        functools.reduce(Pairs.__or__, (_cyclic(means, number) for means in first_means))
        for number in range(len(first_means[0]))
    ]
    completed = [0] * len(parts)  # rounds of each part's second mean so far
    exchange = 0  # the part that exchanges with all later ones
    while completed[0] < len(last_means[0]):
        pairs: Pairs = {}
        idle: list[int] = []
        if exchange < last:
            remaining = [list(piece) for piece in pieces[exchange]]
            weight = sizes[exchange] / (len(remaining) * sum(sizes[exchange:]))
            for node in itertools.chain(*parts[exchange + 1 :]):
                pairs |= {(piece.pop(), node): weight for piece in remaining}
            idle = [node for piece in remaining for node in piece]
        # Nodes without a partner have equal values: averages among them change nothing in exact
        # gossip, but reduce disagreement between gradient steps.
        while len(idle) > 1:
            pairs |= _averages(idle[: degree + 1])
            del idle[: degree + 1]
        for part in range(len(parts)):
            if part < exchange or exchange >= last:
                pairs |= _cyclic(last_means[part], completed[part])
                completed[part] += 1
        rounds.append(pairs)
        exchange += 1
    return rounds


def _pieces(nodes: list[int], base: int) -> list[list[list[int]]]:
    """The nodes by the digits of their number: a digit ``a`` at place ``p`` is ``a`` pieces of
    ``base**p`` nodes; the largest pieces first.
    """
    digits = []
    rest = len(nodes)
    while rest:
        rest, digit = divmod(rest, base)
        digits.append(digit)
    pieces = []
    start = 0
    for place in reversed(range(len(digits))):
        size = base**place
        stop = start + digits[place] * size
        if digits[place]:
            pieces.append([nodes[at : at + size] for at in range(start, stop, size)])
        start = stop
    return pieces


def _hyper_hypercube(nodes: list[int], degree: int) -> list[Pairs]:
    """Algorithm 1: nodes that differ in one digit of a mixed base average, digit by digit."""
    factors = _shortest_product(len(nodes), degree + 1)
    assert factors is not None  # callers divide the nodes such that it exists
    rounds = []
    stride = 1
    for factor in factors:
        groups = np.asarray(nodes).reshape(-1, factor, stride).swapaxes(1, 2).reshape(-1, factor)
        rounds.append(functools.reduce(Pairs.__or__, (_averages(row) for row in groups.tolist())))
        stride *= factor
    return rounds


@functools.cache
def _shortest_product(number: int, most: int) -> tuple[int, ...] | None:
    """The fewest integers from 2 to ``most`` whose product is the number, or ``None``."""
    if number == 1:
        return ()
    shortest = None
    for factor in range(min(number, most), 1, -1):
        rest = _shortest_product(number // factor, most) if number % factor == 0 else None
        if rest is not None and (shortest is None or len(rest) + 1 < len(shortest)):
            shortest = (factor, *rest)
    return shortest


def _averages(nodes: list[int]) -> Pairs:
    """A group of nodes, all of which take the mean of the group."""
    return dict.fromkeys(itertools.combinations(nodes, 2), 1 / len(nodes))


def _cyclic(rounds: list[Pairs], number: int) -> Pairs:
    """The round of a repeated schedule; a part of one node has no rounds."""
    return rounds[number % len(rounds)] if rounds else {}


def _side_by_side(schedules: list[list[Pairs]]) -> list[Pairs]:
    """Schedules of the same length on different nodes, at the same time."""
    return [functools.reduce(Pairs.__or__, rounds) for rounds in zip(*schedules, strict=True)]


def _matrix(pairs: Pairs, nodes: int) -> "scipy.sparse.csr_array":
    """The symmetric matrix of a round, whose diagonal is the rest to one."""
    near, far = np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T
    weights = np.array(list(pairs.values()))
    upper = scipy.sparse.coo_array((weights, (near, far)), (nodes, nodes))
    arcs = scipy.sparse.csr_array(upper + upper.T)
    return scipy.sparse.csr_array(arcs + scipy.sparse.diags_array(1 - arcs.sum(axis=1)))
