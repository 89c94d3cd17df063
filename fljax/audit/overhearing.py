r"""Exact protection of one node from others by noise added by a rule (:mod:`fljax.link.noise`).

The attackers' observations are linear in all messages :math:`x` and in those draws :math:`z` that
the attackers did not make themselves,

.. math:: y = s\,x_v + S x_{\text{others}} + N z,

with one row for every message on every edge that they hear, in every round that they listen. Two
values of the victim's message that differ by :math:`\Delta` then give two distributions that differ
by a shift, and a shift of :math:`y` by :math:`s\Delta` is a shift of the draws by any
:math:`u` with :math:`Nu=s\Delta`. The shortest of these determines the privacy loss exactly:

* Gaussian draws of standard deviation :math:`\sigma`: the worlds are :math:`\mu`-GDP apart,
  :math:`\mu=\min\|u\|_2/\sigma`, so :math:`\mu^2=\Delta^\top s^\top C^+s\Delta` with
  :math:`C=\sigma^2NN^\top` the covariance of the observations;
* Laplace draws of scale :math:`b`: the least pure :math:`\epsilon` is :math:`\min\|u\|_1/b`, a
  linear program. (No larger: a shift of the draws is post-processed. No smaller: the density of
  :math:`Nz` falls along :math:`s\Delta` like :math:`e^{-\min\|u\|_1/b}`.)

Where no such :math:`u` exists, some combination of the observations contains :math:`x_v` and no
noise at all: no epsilon is finite.

Differential privacy considers attackers who know everything but the victim's message. Masks that
cancel in a sum do not protect from them: whoever knows the other summands subtracts them. The
second question is that of secure aggregation: what do attackers learn if they know nothing about
all other messages? There the others' messages hide the victim's, and the shortest shift is over
these too: :math:`Nu=s\Delta+Sw` for any :math:`w`.

Under :class:`~fljax.link.SecureAggregation` the messages that a server receives are uniform given
their sum, so its observation is that sum, and no more. Clients that collude with the server know
their own messages and masks; of the others they learn the others' sum (Bonawitz et al. 2017,
Theorem 6.5), unless they are enough clients to recover everybody's masks.

In the rounds after the first, nodes combine the messages they received and send the result, with
new noise and without new data: a gradient step would add new data, and is a separate
release. This suffices to show whether listening for more rounds helps.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.graphs import Combination
from fljax.link import (
    GraphHomomorphic,
    LocalGraphHomomorphic,
    Noise,
    PerEdge,
    PerMessage,
    SecureAggregation,
    UploadNoise,
)
from fljax.link.noise import Perturbation, sides
from fljax.privacy import accounting

#: Parts of a signal below this share of it are rounding errors.
ROUNDING_SHARE = 1e-9

#: Largest number of coalitions of attackers of a kind that are tried.
MAX_COALITIONS = 5000


@dataclasses.dataclass(frozen=True)
class Overheard:
    r"""What attackers can infer about one node's message.

    Attributes:
      scheme: the noise.
      victim: the node whose message it is.
      attackers: the nodes that listen.
      rounds: number of rounds that they listen.
      epsilon: the smallest epsilon that holds against attackers who know all but the victim's
        message; infinite where they can compute it.
      uninformed: the same against attackers who know no message but their own.
      mu: the change of the message in standard deviations of the best linear estimate of attackers
        who know the rest: Gaussian noise is :math:`\mu`-GDP.
      mu_uninformed: the same for attackers who know no message but their own.
      delta: at which epsilon holds; zero for Laplace noise.
    """

    scheme: str
    victim: int
    attackers: str
    rounds: int
    epsilon: float
    uninformed: float
    mu: float
    mu_uninformed: float
    delta: float

    @property
    def verdict(self) -> str:
        """``"hears nothing"``, ``"protected"``, ``"exposed to who knows the rest"`` or
        ``"exposed"``.
        """
        if self.epsilon == 0:
            return "hears nothing"
        if math.isfinite(self.epsilon):
            return "protected"
        return "exposed to who knows the rest" if math.isfinite(self.uninformed) else "exposed"


@dataclasses.dataclass(frozen=True)
class Protection:
    """The result of :func:`protection`: ``rows`` of :class:`Overheard`, by kind of attackers.

    Attributes:
      rows: ``(kind, Overheard)``, the worst case of each kind.
    """

    rows: tuple[tuple[str, Overheard], ...]

    def markdown(self) -> str:
        """Return a table in GitHub's Markdown, with columns for each number of rounds."""
        kinds: dict[tuple[str, str], list[Overheard]] = {}
        for kind, row in self.rows:
            kinds.setdefault((row.scheme, kind), []).append(row)
        lengths = [row.rounds for row in next(iter(kinds.values()), ())]
        numbers = [
            f"ε, {rest}, {length} round{'s' * (length > 1)}"
            for rest in ("rest known", "rest unknown")
            for length in lengths
        ]
        lines = [
            f"| noise | attackers | {' | '.join(numbers)} | |",
            f"|---|---|{'---:|' * len(numbers)}---|",
        ]
        for (scheme, kind), rows in kinds.items():
            epsilons = [row.epsilon for row in rows], [row.uninformed for row in rows]
            cells = [f"{e:.3g}" if math.isfinite(e) else "∞" for e in (*epsilons[0], *epsilons[1])]
            lines.append(f"| {scheme} | {kind} | {' | '.join(cells)} | {rows[-1].verdict} |")
        return "\n".join([*lines, ""])

    _repr_markdown_ = markdown  # in a notebook

    def __str__(self) -> str:
        return self.markdown()


# Observations -----------------------------------------------------------------------------------


class _Round(NamedTuple):
    """The draws of one round, each of unit variance, and the messages that they perturb."""

    on_edge: np.ndarray  # [K, K, d]  added to the message to a receiver (first) from a sender
    own: np.ndarray  # [K, d]  subtracted from a node's own model, times the others' weights
    makers: np.ndarray  # [d, K]  whether a node knows a draw


def _draws(noise: Noise | None, weights: np.ndarray) -> _Round:
    """The draws of one round; ``weights``, ``[K, K]``, are each receiver's for its senders."""
    nodes = len(weights)
    everyone = range(nodes)
    kind = type(noise)
    if noise is None:
        return _Round(np.zeros((nodes, nodes, 0)), np.zeros((nodes, 0)), np.zeros((0, nodes), bool))
    if kind in (PerMessage, GraphHomomorphic):
        single = np.eye(nodes)
        local_part = single if kind is GraphHomomorphic else 0 * single
        to_others = (1 - single)[..., None] * single
        return _Round(to_others, local_part, single > 0)
    places: list[tuple[int, int, float]]
    draws: list[list[tuple[int, int, float]]] = []
    if kind is PerEdge:
        assert isinstance(noise, PerEdge)
        draws = [[(k, l, 1.0)] for k in everyone for l in everyone if weights[k, l] > 0]  # noqa: E741
        draws += [[(k, k, 1.0)] for k in everyone if noise.own]
    elif kind is LocalGraphHomomorphic:
        for k in everyone:
            side = np.asarray(sides(weights[k]))
            for plus, minus in itertools.product(*(np.flatnonzero(side == s) for s in (1, -1))):
                pair = ((plus, 1.0), (minus, -1.0))
                draws.append([(k, int(l), sign / weights[k, l]) for l, sign in pair])  # noqa: E741
    else:
        raise TypeError(
            f"noise of class {kind.__name__} cannot be analyzed; known are PerMessage, PerEdge, "
            "GraphHomomorphic and LocalGraphHomomorphic of fljax.link."
        )
    on_edge = np.zeros((nodes, nodes, len(draws)))
    makers = np.zeros((len(draws), nodes), bool)
    for number, places in enumerate(draws):
        for receiver, sender, scale in places:
            on_edge[receiver, sender, number] = scale
            makers[number, sender] = True
    return _Round(on_edge, np.zeros((nodes, len(draws))), makers)


def _signals(
    noise: Noise | None, matrix: np.ndarray, hearers: Sequence[int], rounds: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The observations of some nodes as linear functions: coefficients of all messages,
    ``[signals, K]``, and of all draws, ``[signals, draws]``; and the makers of draws,
    ``[draws, K]``.
    """
    nodes = len(matrix)
    self_weights = np.diag(matrix)
    weights = matrix * ~np.eye(nodes, dtype=bool)
    round_draws = _draws(noise, weights)
    draws_per_round = round_draws.makers.shape[0]
    coefficients = np.eye(nodes, nodes + rounds * draws_per_round)
    observed = []
    for number in range(rounds):
        new_draws = slice(nodes + number * draws_per_round, nodes + (number + 1) * draws_per_round)
        on_edge = np.broadcast_to(coefficients, (nodes, *coefficients.shape)).copy()
        on_edge[..., new_draws] += round_draws.on_edge
        observed += [on_edge[k, weights[k] > 0] for k in hearers]
        combined = weights @ coefficients + self_weights[:, None] * coefficients
        combined[:, new_draws] += np.einsum("kl,kld->kd", matrix, round_draws.on_edge)
        combined[:, new_draws] -= (1 - self_weights)[:, None] * round_draws.own
        coefficients = combined
    rows = np.concatenate(observed) if observed else np.zeros((0, coefficients.shape[1]))
    return rows[:, :nodes], rows[:, nodes:], np.tile(round_draws.makers, (rounds, 1))


def _shortest(
    signal: np.ndarray, noise: np.ndarray, laplace: bool, free: np.ndarray | None = None
) -> tuple[float, float]:
    r"""The least :math:`\|u\|_2` with :math:`Nu=s+Fw` for some :math:`w`, infinite where none
    exists; and for Laplace noise the least :math:`\|u\|_1`.

    Singular vectors of :math:`F` are projected out first, which removes :math:`w`.
    """
    if free is not None and free.size:
        left, sizes, _ = np.linalg.svd(free)
        rank = int(np.sum(sizes > ROUNDING_SHARE * max(1.0, sizes[0])))
        signal = left[:, rank:].T @ signal
        noise = left[:, rank:].T @ noise
    size = float(np.linalg.norm(signal))
    if size <= ROUNDING_SHARE:
        return 0.0, 0.0
    if not noise.size:
        return math.inf, math.inf
    left, sizes, right = np.linalg.svd(noise, full_matrices=False)
    rank = int(np.sum(sizes > ROUNDING_SHARE * sizes[0]))
    inside = left[:, :rank].T @ signal
    if np.linalg.norm(signal - left[:, :rank] @ inside) > math.sqrt(ROUNDING_SHARE) * size:
        return math.inf, math.inf
    euclidean = float(np.linalg.norm(inside / sizes[:rank]))
    if not laplace:
        return euclidean, math.nan
    rows = right[:rank]
    goal = inside / sizes[:rank]
    if rank == rows.shape[1]:  # the shift is unique
        return euclidean, float(np.abs(rows.T @ goal).sum())
    program = scipy.optimize.linprog(
        np.ones(2 * rows.shape[1]), A_eq=np.hstack([rows, -rows]), b_eq=goal, method="highs"
    )
    if program.fun is None:
        raise RuntimeError(f"the linear program of the Laplace law failed: {program.message}")
    return euclidean, float(program.fun)


# Protection --------------------------------------------------------------------------------------


@checked
def overheard(
    noise: Noise | None,
    over: Combination,
    victim: int,
    attackers: int | Sequence[int] = (),
    *,
    eavesdropper: bool = False,
    rounds: int = 1,
    change: float = 1.0,
    delta: float = 1e-5,
    dim: int = 1,
) -> Overheard:
    r"""Return what attackers can infer about a node's message from all they hear and draw.

    Args:
      noise: between peers or servers; ``None`` for none.
      over: the weights with which nodes combine the messages they receive.
      victim: the node whose first message is to be hidden.
      attackers: nodes that combine all messages they hear, their own messages and their own draws.
      eavesdropper: whether they also hear every edge; an eavesdropper alone, with no attackers,
        draws nothing.
      rounds: number of rounds that they listen, >= 1; see :mod:`fljax.audit.overhearing` on the
        rounds after the first.
      change: the change of the victim's message between the two worlds, > 0: its l2 norm for
        Gaussian noise and its l1 norm for Laplace noise.
      delta: of epsilon for Gaussian noise, in (0, 1). For Laplace noise epsilon is pure.
      dim: numbers in a message, which share the variance where it is ``per="vector"``.

    Raises:
      TypeError: a noise of a kind that :mod:`fljax.link.noise` does not have.
      ValueError: a node that does not exist or is given twice, the victim among the attackers, no
        attacker.

    Guarantees:
      For Gaussian and for Laplace noise the epsilons are exact: no smaller one holds.

    Example:
      Homomorphic noise protects in one round, and every further round is a new observation of the
      same message; local noise leaves the sum in the clear.

      >>> import fljax as fl
      >>> over = fl.graphs.ring(6).mixing()
      >>> def epsilon(noise, rounds=1):
      ...     return overheard(noise, over, 0, eavesdropper=True, rounds=rounds).epsilon
      >>> homomorphic = fl.link.GraphHomomorphic(2.0)
      >>> [round(epsilon(homomorphic, rounds), 2) for rounds in (1, 2, 10)]
      [1.0, 2.0, 10.0]
      >>> epsilon(fl.link.LocalGraphHomomorphic(2.0))
      inf
    """
    matrix = _matrix(over)
    nodes = len(matrix)
    coalition = _attackers(victim, attackers, nodes, "nodes")
    if not coalition and not eavesdropper:
        raise ValueError("there must be a listener: give attackers, or eavesdropper=True.")
    checks.count("rounds", rounds)
    checks.count("dim", dim)
    messages, draws, makers = _signals(
        noise, matrix, range(nodes) if eavesdropper else coalition, rounds
    )
    return _assessed(
        (
            "none" if noise is None else type(noise).__name__,
            " and all edges" * bool(eavesdropper),
            rounds,
        ),
        (victim, coalition, "node"),
        messages,
        draws * (0.0 if noise is None else _deviation(noise, dim)),
        makers,
        noise is not None and noise.law == "laplace",
        (change, delta),
    )


def _matrix(over: Combination) -> np.ndarray:
    """``[K, K]``, the weight of each sender (second) at each receiver."""
    if not checks.is_concrete(over.self_weight):
        raise TypeError("over must hold known weights, and these are traced; call it outside jit.")
    return np.asarray(over.matrix(), np.float64)


def _deviation(noise: Perturbation, dim: int) -> float:
    """Standard deviation of each drawn number."""
    return math.sqrt(float(noise.variance) / (dim if noise.per == "vector" else 1))


def _attackers(
    victim: int, attackers: int | Sequence[int], nodes: int, what: str
) -> tuple[int, ...]:
    """Validate the attackers and return them as a tuple."""
    nodes_given = [int(attackers)] if checks.is_whole(attackers) else attackers
    coalition = tuple(nodes_given)  # pyright: ignore[reportArgumentType]
    for name, node in (("victim", victim), *(("attackers", node) for node in coalition)):
        if not 0 <= node < nodes:
            raise ValueError(f"{name} must be in 0..{nodes - 1}, got {node}.")
    if victim in coalition or len(set(coalition)) < len(coalition):
        raise ValueError(
            f"attackers must be other {what} than the victim {victim}, each once, got "
            f"{list(coalition)}."
        )
    return coalition


def _assessed(
    about: tuple[str, str, int],
    parties: tuple[int, tuple[int, ...], str],
    messages: np.ndarray,
    draws: np.ndarray,
    makers: np.ndarray,
    laplace: bool,
    levels: tuple[float, float],
) -> Overheard:
    """Compute the protection from linear observations.

    Args:
      about: name of the scheme, further listeners, number of rounds.
      parties: the victim, the attackers, the noun for them.
      messages: ``[signals, K]``, coefficients of messages.
      draws: ``[signals, draws]``, coefficients of draws.
      makers: ``[draws, K]``, whether a node knows a draw.
      laplace: whether draws are of a Laplace distribution.
      levels: the change of the message, and delta.
    """
    (scheme, more, rounds), (victim, coalition, what), (change, delta) = about, parties, levels
    checks.positive("change", change)
    checks.interval("delta", delta, above=0, below=1, hint="It is of Gaussian noise's epsilon.")
    hidden = draws[:, ~makers[:, list(coalition)].any(axis=1)]
    bystanders = [
        node for node in range(messages.shape[1]) if node != victim and node not in coalition
    ]
    signal = messages[:, victim]
    lengths = [_shortest(signal, hidden, laplace, free) for free in (None, messages[:, bystanders])]
    mus = [change * euclidean for euclidean, _ in lengths]
    if laplace:  # a draw of unit variance has the scale 1/sqrt 2
        epsilons = [change * math.sqrt(2) * absolute for _, absolute in lengths]
    else:
        epsilons = [
            float(accounting.zcdp_epsilon(mu**2 / 2, delta, "gaussian")) if mu < 1e6 else math.inf
            for mu in mus
        ]
    names = (
        f"{what}{'s' * (len(coalition) > 1)} {', '.join(map(str, coalition))}" if coalition else ""
    )
    names = f"{names}{more}" if names else more.removeprefix(" and ")
    return Overheard(
        scheme, victim, names, rounds, *epsilons, *mus, delta=0.0 if laplace else delta
    )


@checked
def overheard_upload(
    clients: int,
    victim: int,
    attackers: int | Sequence[int] = (),
    *,
    server: bool = True,
    upload_noise: UploadNoise | None = None,
    masks: SecureAggregation | None = None,
    change: float = 1.0,
    delta: float = 1e-5,
    dim: int = 1,
) -> Overheard:
    r"""Return what attackers can infer about a client's message to its server in one round.

    The server receives every message, and publishes their mean, which clients receive. If the
    server keeps nothing else, and clients restart from the published mean, no more is learned of
    this message in later rounds.

    Args:
      clients: number of clients that send in the round, with equal weights, >= 2; all messages
        arrive.
      victim: the client whose message is to be hidden.
      attackers: clients that combine all that they receive, send and draw.
      server: whether the server is among the attackers, which is equivalent to listening on all
        links to it.
      upload_noise: noise of clients on their messages.
      masks: that clients share. A server and more of its clients than ``masks.threshold`` recover
        all of them.
      change: the change of the model or update that noise is ``on``; of the model without noise.
      delta: as in :func:`overheard`.
      dim: as in :func:`overheard`.

    Raises:
      ValueError: as :func:`overheard`.

    Guarantees:
      The same as :func:`overheard`. Under masks each message, with its noise, is rounded to the
      grid before it is added to the others, and epsilons of the sum are of real numbers: the
      epsilon of several clients' noise holds if the grid is fine in comparison with the noise, and
      the epsilon of one client's noise always.

    Example:
      Masks hide a message from a server that does not know the others. Additional noise hides it
      from one that does, which observes the noise of the whole sum: many draws instead of one,
      which reveals less (``mu``), though the pure epsilon of Laplace noise is still that of one.

      >>> import fljax as fl
      >>> masks = fl.link.SecureAggregation(range=10.0)
      >>> noise = fl.link.UploadNoise(2.0)
      >>> overheard = [
      ...     overheard_upload(8, 0, upload_noise=noise),
      ...     overheard_upload(8, 0, masks=masks),
      ...     overheard_upload(8, 0, upload_noise=noise, masks=masks),
      ... ]
      >>> [(round(it.epsilon, 2), round(it.mu, 2), round(it.uninformed, 2)) for it in overheard]
      [(1.0, 0.71, 1.0), (inf, inf, 0.0), (1.0, 0.25, 0.0)]
    """
    checks.count("clients", clients, at_least=2, hint="Among fewer nobody is hidden.")
    coalition = _attackers(victim, attackers, clients, "clients")
    if not coalition and not server:
        raise ValueError("there must be a listener: give attackers, or server=True.")
    checks.count("dim", dim)
    everyone = np.eye(clients)
    draws = everyone * (0.0 if upload_noise is None else _deviation(upload_noise, dim))
    messages = everyone
    recovered = masks is None or len(coalition) >= int(masks.survivors(clients)[clients])
    if not (server and recovered):  # the sum is all that is left to observe
        draws = draws.sum(axis=0, keepdims=True)
        messages = np.ones((1, clients))
    parts = [part for part in (upload_noise, masks) if part is not None]
    scheme = " and ".join(type(part).__name__ for part in parts) or "none"
    return _assessed(
        (scheme, " and the server" * bool(server), 1),
        (victim, coalition, "client"),
        messages,
        draws,
        everyone > 0,
        upload_noise is not None and upload_noise.law == "laplace",
        (change, delta),
    )


@checked
def protection(
    over: Combination,
    victim: int,
    *,
    variance: float = 1.0,
    law: str = "laplace",
    rounds: int | Sequence[int] = (1, 10),
    change: float = 1.0,
    delta: float = 1e-5,
) -> Protection:
    """Return a table of the protection by every noise scheme against every kind of attackers.

    For each kind the worst attackers are shown: those with the largest epsilon if the rest is
    known, and among these with the largest epsilon if it is not.

    Args:
      over: the weights of the network.
      victim: the node whose message is to be hidden.
      variance: of every draw, > 0.
      law: of the draws, as in :class:`~fljax.link.Noise`.
      rounds: number of rounds that attackers listen, one number or several.
      change: as in :func:`overheard`.
      delta: as in :func:`overheard`.

    Returns:
      Rows, and ``.markdown()``.

    Raises:
      ValueError: as :func:`overheard`; a network so large that not all coalitions can be tried.

    Example:
      >>> import fljax as fl
      >>> overheard = protection(fl.graphs.ring(6).mixing(), 0, rounds=1)
      >>> [row.verdict for kind, row in overheard.rows if kind == "one neighbor"][1:3]
      ['protected', 'protected']
    """
    checks.positive("variance", variance, "Noise of no variance hides nothing.")
    lengths_given = [int(rounds)] if checks.is_whole(rounds) else rounds
    lengths = tuple(lengths_given)  # pyright: ignore[reportArgumentType]
    if not lengths:
        raise ValueError("rounds is empty; give one number of rounds or several.")
    schemes = (PerMessage, PerEdge, GraphHomomorphic, LocalGraphHomomorphic)
    noises = (None, *(scheme(variance, law) for scheme in schemes))
    matrix = _matrix(over)
    nodes = len(matrix)
    if not 0 <= victim < nodes:
        raise ValueError(f"victim must be in 0..{nodes - 1}, got {victim}.")
    observers = [node for node in range(nodes) if node != victim]
    hear = [node for node in observers if matrix[node, victim] > 0]
    if not hear:
        raise ValueError(f"node {victim} has no receivers; take another victim.")
    pairs = list(itertools.combinations(observers, 2))
    if len(pairs) > MAX_COALITIONS:
        raise ValueError(
            f"{nodes} nodes have {len(pairs)} pairs, and {MAX_COALITIONS} are tried at most; "
            "give fljax.audit.overheard the attackers."
        )
    kinds = {
        "one neighbor": [(node,) for node in hear],
        "two nodes": [pair for pair in pairs if set(pair) & set(hear)],
        "all other nodes": [tuple(observers)],
        "eavesdropper": [()],
    }

    def worst(noise: Noise | None, coalitions: Iterable[tuple[int, ...]], length: int) -> Overheard:
        results = (
            overheard(
                noise,
                over,
                victim,
                coalition,
                eavesdropper=not coalition,
                rounds=length,
                change=change,
                delta=delta,
            )
            for coalition in coalitions
        )
        return max(results, key=lambda it: (round(it.epsilon, 9), it.uninformed))

    rows = [
        (kind, worst(noise, coalitions, length))
        for noise in noises
        for kind, coalitions in kinds.items()
        if coalitions
        for length in lengths
    ]
    return Protection(tuple(rows))


@checked
def upload_protection(
    clients: int,
    *,
    variance: float = 1.0,
    law: str = "laplace",
    change: float = 1.0,
    delta: float = 1e-5,
) -> Protection:
    """Return a table, as :func:`protection`, for clients' noise and masks against a server.

    The attackers are the server, clients, or both.

    All clients are equivalent, so the victim is the first.

    Args:
      clients: number of clients that send in the round, >= 3.
      variance: of the noise, > 0.
      law: of the noise.
      change: as in :func:`overheard`.
      delta: as in :func:`overheard`.

    Returns:
      Rows, and ``.markdown()``.

    Raises:
      ValueError: as :func:`overheard_upload`.

    Example:
      >>> overheard = upload_protection(5)
      >>> [row.verdict for kind, row in overheard.rows if row.scheme == "SecureAggregation"]
      ... # doctest: +NORMALIZE_WHITESPACE
      ['exposed to who knows the rest', 'exposed to who knows the rest',
       'exposed to who knows the rest', 'exposed to who knows the rest', 'exposed']
    """
    checks.count("clients", clients, at_least=3, hint="The kinds of attackers differ then.")
    checks.positive("variance", variance, "Noise of no variance hides nothing.")
    noise = UploadNoise(variance, law)
    masks = SecureAggregation(range=1.0)  # the range makes no difference here
    kinds: dict[str, tuple[tuple[int, ...], bool]] = {
        "another client": ((1,), False),
        "the server": ((), True),
        "the server, one client": ((1,), True),
        "the server, all clients but one": (tuple(range(2, clients)), True),
        "the server, all other clients": (tuple(range(1, clients)), True),
    }
    rows = [
        (
            kind,
            overheard_upload(
                clients,
                0,
                coalition,
                server=server,
                upload_noise=added,
                masks=shared,
                change=change,
                delta=delta,
            ),
        )
        for added, shared in ((None, None), (noise, None), (None, masks), (noise, masks))
        for kind, (coalition, server) in kinds.items()
    ]
    return Protection(tuple(rows))
