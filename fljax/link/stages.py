"""The stages that messages pass, and the state of a link between rounds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from fljax._core.prng import key_of
from fljax.graphs import Graph, Relearned
from fljax.graphs.federation import Federation, Network
from fljax.link.aggregation import Aggregator
from fljax.link.attacks import Attack
from fljax.link.compression import Compressor
from fljax.link.delays import DelayLaw, Line, empty_line
from fljax.link.losses import Losses, of_edges
from fljax.link.noise import Noise
from fljax.link.uploads import SecureAggregation, UploadNoise
from fljax.privacy.mechanism import Scope


class Stages(NamedTuple):
    """The stages that messages pass, in this order; they are parts of a simulation."""

    privacy: Any = None  # a mechanism, of the kind that its scope says
    upload_noise: UploadNoise | None = None  # noise of clients on messages to servers
    masks: SecureAggregation | None = None  # pairwise masks of clients
    compression: Compressor | None = None
    attack: Attack | None = None
    noise: Noise | None = None  # between peers, or between servers
    losses: Losses | None = None
    delays: DelayLaw | None = None
    learned: Relearned | None = None  # which neighbors peers listen to
    aggregation: Aggregator | None = None

    @property
    def scope(self) -> Scope | None:
        """The place where a budget's noise is added (messages, the server, or gradients)."""
        return None if self.privacy is None else self.privacy.scope


class Memory(NamedTuple):
    """The state of a link between rounds; ``None`` where it is not needed."""

    line: Line | None = None  # sums of messages in transit to a server
    past: Array | None = None  # [B, K, D]  peers' messages of the last B rounds, a ring buffer
    losses: PyTree = None  # states of the loss process, for each table of edges
    mechanism: PyTree = (
        None  # state of a trusted server's mechanism, or of clients' coding, [K, ...]
    )
    steps: Array | None = None  # [K]  of each client so far, where their number matters


def begin(
    stages: Stages,
    network: Network,
    key: Array,
    messages: Float[Array, "clients dim"],
    asleep: bool,
    counted: int | None = None,
) -> Memory:
    """Return the state before the first round.

    Args:
      stages: of the simulation.
      network: a graph for peers; anything else for clients of servers.
      key: of round 0.
      messages: the vectors that all clients know of all others at the start: the initial models.
      asleep: whether peers may be absent.
      counted: parameters of the models whose local steps are counted; ``None`` if none are.
    """
    peers = isinstance(network, Graph)
    line = None
    past = None
    losses = None
    (clients, dim), dtype, delays = messages.shape, messages.dtype, stages.delays
    if delays is not None and not peers:
        accumulators = network.servers if isinstance(network, Federation) else 1
        line = empty_line(
            delays, dim, dtype, accumulators if stages.aggregation is None else clients
        )
    if peers and (delays is not None or asleep):
        bound = 1 if delays is None else delays.lags[-1] + 1
        past = jnp.broadcast_to(messages, (bound, clients, dim))
    if stages.losses is not None:
        key = key_of(key, "losses")
        losses = [
            stages.losses.begin(uniform)
            for uniform in drawn_of_edges(stages.losses, key, network, clients, dtype)
        ]
    mechanism = None
    steps = None
    scope = stages.scope
    if scope == "server":
        mechanism = stages.privacy.begin(dim, dtype, clients)
        if isinstance(network, Federation):  # one for each server
            mechanism = jax.tree.map(
                lambda a: jnp.broadcast_to(a, (network.servers, *jnp.shape(a))), mechanism
            )
    if counted is not None:
        steps = jnp.zeros(clients, jnp.int32)
        if scope == "gradient":
            mechanism = stages.privacy.begin(counted, dtype, clients)
    return Memory(line, past, losses, mechanism, steps)


def drawn_of_edges(
    losses: Losses,
    key: Array,
    network: Network,
    clients: int,
    dtype: DTypeLike,
) -> list[Array]:
    """One uniform number per edge: of each table of a graph, or of each client's link up."""
    if not isinstance(network, Graph):
        return [jax.random.uniform(key, (clients,), dtype)]
    everyone = jnp.arange(clients, dtype=jnp.int32)
    return [
        of_edges(key, part.nodes[:, None], part.of_neighbors(everyone), losses.symmetric, dtype)
        for part in network.entries.parts
    ]


def receivers_of(network: Graph | Federation | None, clients: int) -> Int[Array, " clients"]:
    """The number of receivers of each client's message: its neighbors, or its server.

    Example:
      >>> import fljax as fl
      >>> fl.link.receivers_of(fl.graphs.star(4), 4).tolist()
      [3, 1, 1, 1]
      >>> fl.link.receivers_of(None, 3).tolist()  # one server of all clients
      [1, 1, 1]
    """
    return jnp.ones(clients, jnp.int32) if network is None else network.neighbor_counts()
