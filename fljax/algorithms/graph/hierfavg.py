r"""Hierarchical federated averaging: clients, edges, a cloud, or more levels (Liu et al. 2020)."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.module import field, module
from fljax._core.prng import bernoulli
from fljax.algorithms.algorithm import Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import descend_from, descent_gap
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Averaging, Cohort
from fljax.graphs.federation import Federation, Network
from fljax.link import Compressor, UploadNoise
from fljax.link.traffic import wide_difference, wide_sum
from fljax.optimization.optimizers import Optimizer
from fljax.privacy import Gap
from fljax.problems import Problem
from fljax.problems.batches import Counts, per_client
from fljax.problems.streams import Stream

HIERARCHICAL = Needs(
    Federation,
    privacy=("message", "server"),
    absent=True,
    late=True,
    averages=True,
    uploads=("models", "updates"),
    masked=True,
    trains=True,
    hierarchical=True,
)


class HierFAVGState(NamedTuple):
    """State of HierFAVG between rounds."""

    model: Array  # [K, D]  the model of each client's edge
    server: Array  # [P, D]  of the edges
    above: tuple[Array, ...]  # [P', D] each, of the levels above them, the root's last
    #: [P, D] each, of the levels below the root: the last model of each server from above, where
    #: differences from it are compressed; else empty
    received: tuple[Array, ...]
    #: [2, L, 3]  bits so far as halves (:func:`fljax.link.wide`): between level l and l + 1, with
    #: the clients as level 0, up and down, and among the servers of level l + 1
    bits: Array


@algorithm(
    "HierFAVG",
    "liu2020",
    HIERARCHICAL,
    {
        "Hierarchical federated averaging": "",
        "Hierarchical local SGD": "with local_steps= and batch=",
    },
)
@module
class HierFAVG(ReleasesModel, Averaging):
    r"""Hierarchical federated averaging on a tree of servers.

    A round is :math:`\kappa_1` local steps of every participant, from the model of its edge, and an
    average at every edge. After every :math:`\kappa_2` rounds the servers of level 2 average the
    models of their edges, after every :math:`\kappa_2\kappa_3` rounds the servers of level 3, and
    so on up to the cloud. With :math:`n` the round, :math:`l` a server, :math:`\mathcal C_l` its
    clients or the servers below it, and :math:`q_l=\sum_{k\in\mathcal C_l}q_k`:

    .. math::

        w_k &= w_l^{(n-1)},\quad \kappa_1\text{ times: } w_k\leftarrow w_k-\mu f_k'(w_k)
            && k\in\mathcal C_l \\
        w_l^{(n)} &= \sum_{k\in\mathcal C_l}\frac{q_k}{q_l}w_k && l\text{ an edge} \\
        w_m^{(n)} &= \sum_{l\in\mathcal C_m}\frac{q_l}{q_m}w_l^{(n)},\quad
            w_l^{(n)}\leftarrow w_m^{(n)} && \kappa_2\mid n

    and the last line for the levels above. Local steps and batches are as in
    :class:`FedAvg`, which this is on a tree of one server (:math:`q_k` as there: equal weights, or
    :math:`D_k` as in the paper after ``problem.weighing("samples")``). Participants of a round are
    chosen by ``selector``, for instance :class:`~fljax.participation.PerServer`; an edge averages
    theirs alone, but counts above with the weight of all of its clients, as in the authors' program
    (github.com/LuminLiu/HierFL). An edge without participants keeps its model. The model that
    metrics see is that of each client's edge.

    If the edges have a graph, they combine their averages with their neighbors' by Metropolis
    weights in every round, before they are sent up. Without servers above them
    (:class:`~fljax.federation.Federation`) the method is then :class:`GraphFedAvg`, whose step
    size is :math:`\mu\kappa_1`.

    Losses, delays, attacks and aggregators of a simulation are of the messages of clients to their
    edges; servers' messages all arrive in the same round. They are counted with what servers send
    (``bits_down``); the metric ``level_bits`` has the bits of each level.

    Args:
      step_size: this and the arguments up to ``local_steps``, which is :math:`\kappa_1`, as in
        :class:`FedAvg`.
      intervals: :math:`\kappa_2,\kappa_3,\dots`, one number for each level above the edges, or one
        for all; 1 by default.
      fractions: probability with which a server takes part in an average above it, independently;
        one number, or one for each level above the edges; by default all do. One that does not
        keeps its own model.
      server_noises: noise of servers on their messages to the servers above
        (:class:`fljax.link.UploadNoise`), one, or one for each level above the edges (``None``:
        no noise there); none by default.

    Guarantees:
      *Noise of clients* (:class:`~fljax.privacy.ZCDP` and others on messages): the ledger's loss
      of a sample protects it against its edge, the servers above, other clients and everyone else,
      all of them honest but curious; what servers compute and tell each other is a function of
      perturbed messages. *Noise of the edges* (:class:`~fljax.privacy.CentralGaussian`): each edge
      clips its clients' updates and perturbs their sum in every round, so that the ledger's loss
      of a client protects it against the cloud, the other servers, and all clients, even of
      its own edge, but not against its edge, which sees its message. A client's data enter the
      releases of its own edge alone, so it pays for these only, however many edges there are.
      *Masks* hide single messages from the edge, which sees their sum; they grant no budget.
      *Noise above the edges* (``server_noises``) is a variance without a ledger, and so nominal: in
      the rounds between two averages an edge gives its exact average back to its clients, and
      their next updates depend on all of each other's data, so that no theorem bounds the change
      that one of them makes in the edge's next message. No budget can be put there.

    Raises:
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.LocalLearning`; another
        number of intervals, fractions or noises than there are levels above the edges; several
        servers with neither a server above nor a graph; a selector of unequal probabilities; under
        a budget on messages batches, an optimizer or weights.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=12, samples=20, dim=3),
      ...     algorithm=fl.algorithms.HierFAVG(0.05, local_steps=5, intervals=4),
      ...     network=fl.graphs.tree([3, 4]),
      ...     metrics=["normalized_error", "level_bits"],
      ... )
      >>> results = fl.run(simulation, rounds=40)
      >>> bool(results.normalized_error[-1] < 0.1)
      True
      >>> results.level_bits[-1].values.tolist()  # 12 clients in 40 rounds, 3 edges in 10
      [[46080.0, 46080.0, 0.0], [2880.0, 2880.0, 0.0]]

    Reference:
      Liu et al. 2020, Algorithm 1 (HierFAVG).
    """

    intervals: Counts = field(
        converter=partial(per_client, "intervals"), static=True, default=1, kw_only=True
    )
    fractions: Float[Array, "*levels"] | float | None = field(default=None, kw_only=True)
    server_noises: Any = field(default=None, kw_only=True)  # UploadNoise, or a tuple of them

    def validate(self) -> None:
        super().validate()
        if self.fractions is not None:
            checks.interval("fractions", self.fractions, above=0, at_most=1)
        noises = self.server_noises
        for noise in noises if isinstance(noises, tuple) else (noises,):
            if noise is None:
                continue
            checks.kind("server_noises", noise, UploadNoise)
            if noise.on != "models":
                raise ValueError(
                    "servers send models, and server_noises has noise on updates; leave out on=."
                )

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        assert isinstance(network, Federation)
        parents = parents_of(network)
        if network.servers > 1 and not parents and network.graph is None:
            raise ValueError(
                f"the {network.servers} servers have neither a server above them nor a graph along "
                "which they communicate; pass network=fljax.graphs.tree(...), or a federation "
                "with a graph."
            )
        if not parents and self.intervals != 1:
            raise ValueError(
                f"intervals={self.intervals} is for servers above the edges, and the network has "
                "none; leave it out, or add a level (fljax.graphs.tree)."
            )
        for name in ("intervals", "fractions", "server_noises"):
            per_level(name, getattr(self, name), len(parents))
        for compressor in self.compressors(1 + len(parents)):
            if compressor is not None:
                compressor.check(problem.dim)

    def compressors(self, levels: int) -> Sequence[Compressor | None]:
        """Return how messages to the servers of each level are compressed, from clients up."""
        return (None,) * levels

    def init(self, problem: Problem, network: Federation) -> HierFAVGState:
        start = server_start(problem)
        counts = [network.servers, *(max(above) + 1 for above in parents_of(network))]
        server, *above = (jnp.tile(start, (count, 1)) for count in counts)
        compressed = any(compressor is not None for compressor in self.compressors(len(counts)))
        received = (server, *above)[:-1] if compressed else ()
        bits = jnp.zeros((2, len(counts), 3), jnp.uint32)
        model = network.of_clients(server)
        return HierFAVGState(model, server, tuple(above), received, bits)

    def step(self, state: HierFAVGState, now: Round) -> HierFAVGState:
        link = now.link
        network = now.network
        home = jnp.asarray(network.server, jnp.int32)

        # Local steps from the edges' models, and an average at every edge.
        cohort = self.invite(now, state.model)
        edges = link.publish(state.server, cohort.active)
        edges = self._averages_of_clients(now, cohort, edges, edges[cohort.participants.take(home)])
        up, down = link.traffic.bits_up, link.traffic.bits_down
        before = link.traffic.bits
        if network.graph is not None:
            edges = link.combine(edges, network.graph.mixing("metropolis"))
        bits = [[up, down, wide_difference(link.traffic.bits, before)]]

        # Up the tree, as far as an average is due in this round.
        models = [edges, *state.above]
        senders = []
        for level, sending in enumerate(self._senders(now), 1):
            before = link.traffic.bits
            models[level] = self._climb(state, now, models, level, sending)
            senders.append(sending)
            bits.append([wide_difference(link.traffic.bits, before)])

        # And down again, the new models of the highest level first.
        received = list(state.received)
        for level in range(len(senders), 0, -1):
            before = link.traffic.bits
            sending = senders[level - 1]
            above = link.publish(models[level], sending)[self._parents(now, level)]
            models[level - 1] = jnp.where(sending[:, None], above, models[level - 1])
            if received:
                received[level - 1] = jnp.where(sending[:, None], above, received[level - 1])
            none = jnp.zeros(2, jnp.uint32)
            bits[level] += [wide_difference(link.traffic.bits, before), none]
        counted = jnp.moveaxis(jnp.stack([jnp.stack(row) for row in bits]), -1, 0)
        server, *above = models
        model = network.of_clients(server)
        return HierFAVGState(
            model, server, tuple(above), tuple(received), wide_sum(state.bits, counted)
        )

    def _averages_of_clients(
        self,
        now: Round,
        cohort: Cohort,
        edges: Float[Array, "servers dim"],
        start: Float[Array, "chosen dim"],
    ) -> Float[Array, "servers dim"]:
        """Train the participants and average their models at their edges."""
        link = now.link
        participants = cohort.participants
        if participants.weights is not None:
            raise ValueError(
                "a selector of unequal probabilities gives participants shares of all clients, and "
                "an edge has only its own; take fljax.participation.PerServer, Drawn or Fraction."
            )
        step_size = None if self._optimizes else self.size(now.number)
        if not link.private:
            learned = self.learn(now, cohort, start)
            arrived = link.collect(
                learned.model,
                cohort.active,
                edges,
                weights=cohort.weights,
                compression=self.compressors(1)[0],
                clients=participants.numbers,
                step_size=step_size,
            )
            return arrived.move(edges)
        assert step_size is not None  # sensitivity() refuses optimizers
        part = participants.of(self.local_problem(now.problem))
        learned = descend_from(part, start, step_size, cohort.longest, cohort.counts)
        now.witness(jnp.where(cohort.active, learned.norm, 0))
        messages = link.send(
            learned.model,
            clients=participants.clients,
            sending=cohort.active,
            step_size=step_size,
            rounding=learned.rounding,
        )
        cell = jnp.zeros(len(cohort.active), jnp.int32)
        mean, present = link.cell_means(messages, cell, 1, participants, edges[:, None])
        return jnp.where(present[:, 0] > 0, mean[:, 0], edges)

    def _senders(self, now: Round) -> list[Bool[Array, " servers"]]:
        """Which servers of each level below the root send to the one above in this round."""
        parents = parents_of(now.network)
        intervals = per_level("intervals", self.intervals, len(parents))
        fractions = per_level("fractions", self.fractions, len(parents))
        senders = []
        period = 1
        levels = zip(parents, intervals, fractions, strict=True)
        for level, (above, interval, fraction) in enumerate(levels, 1):
            period = period * interval
            sending = jnp.full(len(above), now.number % period == 0)
            if fraction is not None:
                key = jax.random.fold_in(now.key("algorithm"), level)
                sending = sending & bernoulli(key, sending.shape, fraction)
            senders.append(sending)
        return senders

    def _climb(
        self,
        state: HierFAVGState,
        now: Round,
        models: Sequence[Array],
        level: int,
        sending: Bool[Array, " servers"],
    ) -> Float[Array, "parents dim"]:
        """Average the models of a level at the servers above it."""
        depth = len(parents_of(now.network))
        parents = self._parents(now, level)
        below = self._weights_below(now, level)
        above = models[level]
        return now.link.climb(
            models[level - 1],
            above,
            parents,
            level=level,
            sending=sending,
            weights=below,
            reference=state.received[level - 1] if state.received else above[parents],
            compression=self.compressors(1 + depth)[level],
            noise=per_level("server_noises", self.server_noises, depth)[level - 1],
        )

    def _weights_below(self, now: Round, level: int) -> Float[Array, " servers"]:
        """The sum of the weights of all clients below each server of a level."""
        weights = self.server_weights(now.problem)
        weights = jnp.ones(now.problem.clients, now.problem.dtype) if weights is None else weights
        home = jnp.asarray(now.network.server, jnp.int32)
        below = jax.ops.segment_sum(weights, home, now.network.servers)
        for lower in range(1, level):
            count = max(parents_of(now.network)[lower - 1]) + 1
            below = jax.ops.segment_sum(below, self._parents(now, lower), count)
        return below

    def _parents(self, now: Round, level: int) -> Int[Array, " servers"]:
        return jnp.asarray(parents_of(now.network)[level - 1], jnp.int32)

    def sensitivity(
        self, problem: Problem, network: Network, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        """See :func:`~fljax.algorithms.local_steps.descent_gap`."""
        if self.batches is not None or self.batch is not None or self.weighting == "samples":
            raise ValueError(
                "the privacy loss of messages is accounted for only if steps use all samples and "
                "clients count alike; leave out batches=, batch= and weighting=, or privacy=."
            )
        if isinstance(self.step_size, Optimizer):
            raise ValueError(
                "the privacy loss of messages is accounted for only with steps of a known size, "
                "which an optimizer does not have; give step_size a number or a schedule."
            )
        steps = self.epochs if self.local_steps is None else self.local_steps
        return descent_gap(problem, self.size(round), steps, gap)


def parents_of(network: Federation) -> tuple[tuple[int, ...], ...]:
    """Return the servers above each level's; none for a federation that has no levels."""
    return getattr(network, "parents", ())


def per_level(name: str, value: Any, levels: int) -> tuple[Any, ...]:
    """Return one value for each level above the edges, the same for all if one is given.

    Raises:
      ValueError: another number of values.
    """
    if not isinstance(value, tuple) and np.ndim(value) == 0:
        return (value,) * levels
    if len(value) != levels:
        raise ValueError(
            f"{name} must be one value or one for each of the {levels} levels above the edges, got "
            f"{len(value)}."
        )
    return tuple(value)
