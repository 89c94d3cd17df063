r"""Servers on a graph, each with its own clients: the graph federated architecture.

Every client belongs to one server :math:`s\in\mathcal S`; servers communicate with their neighbors
:math:`\mathcal N_s`, which here include :math:`s` itself (Gauthier 2024, section 5.2; Rizk 2023,
chapter 3). A *cell* is the set :math:`\mathcal C_{s,(q)}` of a server's clients of one cluster; it
may be empty. Shapes: ``K`` clients, ``S`` servers, ``M`` participating clients.
"""

from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.cohort_rows import ServerRows
from fljax._core.module import module, replace, static
from fljax.graphs.undirected import Graph
from fljax.graphs.varying import Varying

__all__ = ["Federation", "balanced"]


@module
class Federation:
    """The server of each client, and the graph along which servers communicate.

    Args:
      server: ``[K]``, the server of each client, numbers ``0..S-1``; structure, never traced.
      graph: graph of the ``S`` servers; ``None`` if they do not communicate, or if there is only
        one.

    Raises:
      ValueError: server numbers out of range or without clients, a graph of another size.

    Example:
      >>> import fljax as fl
      >>> servers = fl.federation.Federation([0, 0, 1], fl.graphs.path(2))
      >>> servers.server, servers.graph.nodes
      ((0, 0, 1), 2)
    """

    server: Any = static()
    graph: Graph | None = None

    def validate(self) -> None:
        servers = np.asarray(checks.array("server", self.server))
        count = numbered(servers) if self.graph is None else self.graph.nodes
        servers = checks.group_numbers("server", servers, count, every=True)
        object.__setattr__(self, "server", tuple(servers.tolist()))

    @property
    def nodes(self) -> int:
        """The number of clients ``K``."""
        return len(self.server)

    @property
    def servers(self) -> int:
        """The number of servers ``S``."""
        return max(self.server) + 1

    @property
    def sizes(self) -> Int[np.ndarray, " servers"]:
        """Number of clients of each server."""
        return np.bincount(self.server)

    def of_clients(self, x: Float[Array, "servers ..."]) -> Float[Array, "nodes ..."]:
        """Return the row of each client's server, ``[K, ...]``.

        A step uses it for the models that clients have of their servers, so that over a population
        it makes no array of all clients.
        """
        return x[jnp.asarray(self.server, jnp.int32)]

    def neighbor_counts(self) -> Int[Array, " nodes"]:
        """Number of receivers of a client's message: one, its server."""
        return jnp.ones(self.nodes, jnp.int32)

    def connected(self) -> Bool[Array, ""]:
        """Whether the graph of the servers is connected."""
        return jnp.asarray(self.servers == 1) if self.graph is None else self.graph.connected()

    def require_connected(self) -> "Federation":
        """The federation; raise ``ValueError`` if its graph, where there is one, is
        disconnected.
        """
        if self.graph is not None:
            self.graph.require_connected()
        return self

    @property
    def degree(self) -> Float[Array, " servers"]:
        """Number of other servers with which each server communicates."""
        return jnp.zeros(self.servers) if self.graph is None else self.graph.degree

    def neighbor_sum(self, x: Float[Array, "servers ..."]) -> Float[Array, "servers ..."]:
        r""":math:`\sum_{p\in\mathcal N_s^-}x_p`, without the server itself."""
        return jnp.zeros_like(x) if self.graph is None else self.graph.neighbor_sum(x)

    def neighborhood_mean(
        self, x: Float[Array, "servers ..."], present: Float[Array, "servers ..."] | None = None
    ) -> Float[Array, "servers ..."]:
        r""":math:`\frac1{|\mathcal N_s|}\sum_{p\in\mathcal N_s}x_p`, the server itself among them.

        Args:
          x: ``[S, ...]``.
          present: 1 or 0, with the same number of axes: which entries are present. The mean is over
            those, and zero if a neighborhood has none.
        """
        if present is None:
            present = jnp.ones((self.servers,) + (1,) * (x.ndim - 1), x.dtype)
        total, count = (a + self.neighbor_sum(a) for a in (present * x, present))
        return total / jnp.maximum(count, 1)

    @property
    def members(self) -> tuple[Int[np.ndarray, "servers most"], Bool[np.ndarray, "servers most"]]:
        """Each server's clients, padded with client 0, and which of them are real."""
        members = np.zeros((self.servers, self.sizes.max()), np.int32)
        real = np.arange(members.shape[1]) < self.sizes[:, None]
        members[real] = np.argsort(np.asarray(self.server), kind="stable")
        return members, real


@module
class CohortFederation(Federation):
    """The servers of a population's clients, or of some of them, within a compiled program.

    Clients' servers are an argument of the program and no part of it, and clients' copies of their
    servers' models do not become an array of all clients.

    Args:
      server: ``[K]``, the server of each client.
      graph: as in :class:`Federation`.
      counts: number of clients of each server, in the whole population.
      parents: as in :class:`~fljax.graphs.Tree`.
      whole: whether the clients are the whole population.
    """

    server: Int[Array, " nodes"]
    graph: Graph | None = None
    counts: tuple[int, ...] = static(default=())
    parents: tuple[tuple[int, ...], ...] = static(default=())
    whole: bool = static(default=True)

    def validate(self) -> None:
        """Nothing: its federation was checked."""

    @classmethod
    def of(cls, network: Federation) -> "CohortFederation":
        """Return the federation of a population as its programs take it."""
        server = jnp.asarray(network.server, jnp.int32)
        sizes = tuple(network.sizes.tolist())
        return cls(server, network.graph, sizes, getattr(network, "parents", ()))

    def take(self, clients: Int[Array, " some"]) -> "CohortFederation":
        """Return the federation of some of the clients."""
        return replace(self, server=self.server[clients], whole=False)

    @property
    def servers(self) -> int:
        return len(self.counts)

    @property
    def sizes(self) -> Int[np.ndarray, " servers"]:
        return np.asarray(self.counts)

    def of_clients(self, x: Float[Array, "servers ..."]) -> Any:
        return ServerRows(x, self.server) if self.whole else super().of_clients(x)

    def connected(self) -> Bool[Array, ""]:
        return jnp.asarray(True) if self.parents else super().connected()

    @property
    def members(self) -> Any:
        raise TypeError(
            "a step over a population has no list of all clients of a server; take the "
            "participants that now.choose returns."
        )


def numbered(groups: np.ndarray) -> int:
    """How many groups have numbers up to the largest; one for what are no whole numbers, which are
    refused afterwards.
    """
    return int(groups.max(initial=0)) + 1 if np.issubdtype(groups.dtype, np.integer) else 1


@checked
def balanced(clients_per_server: int, graph: Graph | None = None) -> Federation:
    """Servers with equal numbers of clients: client ``k`` belongs to server ``k // size``.

    Args:
      clients_per_server: >= 1.
      graph: graph of the servers; ``None`` for a single server.

    Example:
      >>> import fljax as fl
      >>> fl.federation.balanced(2, fl.graphs.ring(3)).server
      (0, 0, 1, 1, 2, 2)
    """
    checks.count("clients_per_server", clients_per_server)
    servers = 1 if graph is None else graph.nodes
    return Federation(np.repeat(np.arange(servers, dtype=np.int32), clients_per_server), graph)


#: The network of a simulation; ``None`` where clients send to one server.
Network: TypeAlias = Graph | Varying | Federation | None
