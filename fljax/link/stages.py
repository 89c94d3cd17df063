"""The stages that messages pass, and the state of a link between rounds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._numerics import key_of
from fljax.aggregation import Aggregator
from fljax.attacks import Attack
from fljax.federation import Federation
from fljax.graphs import Graph, Relearned
from fljax.link.compression import Compressor
from fljax.link.delays import DelayLaw, Line, empty_line
from fljax.link.losses import Losses, of_edges
from fljax.link.noise import Noise
from fljax.link.uploads import SecureAggregation, UploadNoise
from fljax.privacy import CentralGaussian, NoisyGradients

__all__ = ["Memory", "Stages", "begin", "drawn_of_edges", "receivers_of"]


class Stages(NamedTuple):
    """The stages that messages pass, in this order; they are parts of a simulation."""

    privacy: Any = None  # a notion, or a mechanism at the server or on gradients
    upload_noise: UploadNoise | None = None  # of clients towards servers
    masks: SecureAggregation | None = None  # that they share
    compression: Compressor | None = None
    attack: Attack | None = None
    noise: Noise | None = None  # between peers, or between servers
    losses: Losses | None = None
    delays: DelayLaw | None = None
    learned: Relearned | None = None  # to whom peers listen
    aggregation: Aggregator | None = None


class Memory(NamedTuple):
    """The state of a link between rounds; ``None`` where it is not needed."""

    line: Line | None = None  # what is on its way to a server
    past: Array | None = None  # [B, K, D]  what peers said in the last rounds, a ring
    losses: Any = None  # of the law of losses, for each table of edges
    mechanism: Any = None  # of a trusted server; or of a strategy at clients, [K, ...]
    steps: Array | None = None  # [K]  of each client so far, where their number matters


def begin(
    stages: Stages,
    network: Any,
    key: Array,
    said: Float[Array, "clients dim"],
    asleep: bool,
    counted: int | None = None,
) -> Memory:
    """Return the state before the first round.

    Args:
      stages: of the simulation.
      network: a graph for peers; anything else for clients of servers.
      key: of round 0.
      said: the vectors that all clients know of all others at the start: the initial models.
      asleep: whether peers may be absent.
      counted: parameters of the models whose local steps are counted; ``None`` if none are.
    """
    peers, line, past, losses = isinstance(network, Graph), None, None, None
    (clients, dim), dtype, law = said.shape, said.dtype, stages.delays
    if law is not None and not peers:
        boxes = network.servers if isinstance(network, Federation) else 1
        line = empty_line(law, dim, dtype, boxes if stages.aggregation is None else clients)
    if peers and (law is not None or asleep):
        bound = 1 if law is None else law.lags[-1] + 1
        past = jnp.broadcast_to(said, (bound, clients, dim))
    if stages.losses is not None:
        key = key_of(key, "losses")
        losses = [
            stages.losses.begin(uniform)
            for uniform in drawn_of_edges(stages.losses, key, network, clients, dtype)
        ]
    mechanism, steps = None, None
    if isinstance(stages.privacy, CentralGaussian):
        mechanism = stages.privacy.begin(dim, dtype, clients)
    if counted is not None:
        steps = jnp.zeros(clients, jnp.int32)
        if isinstance(stages.privacy, NoisyGradients):
            mechanism = stages.privacy.begin(counted, dtype, clients)
    return Memory(line, past, losses, mechanism, steps)


def drawn_of_edges(
    losses: Losses, key: Array, network: Any, clients: int, dtype: Any
) -> list[Array]:
    """One uniform number per edge: of each table of a graph, or of each client's link up."""
    if not isinstance(network, Graph):
        return [jax.random.uniform(key, (clients,), dtype)]
    everyone = jnp.arange(clients, dtype=jnp.int32)
    return [
        of_edges(key, part.nodes[:, None], part.of_neighbors(everyone), losses.symmetric, dtype)
        for part in network.entries.parts
    ]


def receivers_of(network: Any, clients: int) -> Int[Array, " clients"]:
    """The number of receivers of each client's message: its neighbors, or its server."""
    return jnp.ones(clients, jnp.int32) if network is None else network.neighbor_counts()
