r"""PAO-Fed with several servers, the future work of Gauthier et al. 2023 (PAO-Fed)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.online_fed import lms
from fljax.graphs.federation import Federation
from fljax.link import Circular, Sharing
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem
from fljax.problems.streams import Stream


class PAOFedGraphState(NamedTuple):
    """State of PAO-Fed on a graph between rounds."""

    model: Array  # [K, D]  the model of each client's server
    local: Array  # [K, D]  w_k
    server: Array  # [P, D]  w_p


@algorithm(
    "PAO-Fed, graph",
    ("gauthier2023pao", "gauthier2024"),
    Needs(Federation, data="stream", absent=True, late=True, averages=True),
)
@module
class PAOFedGraph(Algorithm):
    r"""Partial sharing between clients and their servers, and between neighboring servers.

    The source names a "multi-server or networked architecture" as future work (section VI) and
    gives no equations. Here every server :math:`p` with its clients :math:`\mathcal K_p` does a
    round of :class:`PAOFed`, and then servers send their neighbors a portion :math:`N^{(n)}` of
    their models, the same for all servers, and mix it:

    .. math::

        v_k &= M_k^{(n)}w_p^{(n)}+(I-M_k^{(n)})w_k^{(n)}\ \text{or}\ w_k^{(n)},\qquad
        w_k^{(n+1)}=v_k+\mu z_k^{(n)}(y_k^{(n)}-v_k^\top z_k^{(n)}) \\
        \psi_p^{(n)} &= w_p^{(n)}+\sum_l\frac{\alpha_l}{|\mathcal C_{p,l}^{(n)}|}
            \sum_{k\in\mathcal C_{p,l}^{(n)}}S_k^{(n-l)}\big(w_k^{(n+1-l)}-w_p^{(n)}\big) \\
        w_p^{(n+1)} &= (I-N^{(n)})\psi_p^{(n)}
            +N^{(n)}\sum_{m\in\mathcal N_p}a_{pm}\psi_m^{(n)}

    with Metropolis weights :math:`a`, which preserve the mean of the servers' models for
    any portion. This requires the same portion at all servers, which is possible because servers
    are always available and messages between them are never delayed. It is the portion that
    coordinated clients with portions of the same size have just refined, and receive next:
    :math:`N^{(n)}=S^{(n)}`. For one server, or servers without links, :math:`w_p=\psi_p`.

    Args:
      step_size: :math:`\mu`, a schedule or a number, > 0.
      sharing: the portions :math:`M_k` and :math:`S_k` of clients, as in :class:`PAOFed`.
      between: the portion :math:`N` of servers: the one that client 0 would have.
      send_next: as in :class:`PAOFed`; also for servers.
      discount: :math:`\alpha_l`, as in :class:`PAOFed`.

    Raises:
      ValueError: a portion that does not fit the model, a discount outside [0, 1].

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.least_squares(jax.random.key(0), clients=6, samples=5, dim=4)
      >>> simulation = fl.Simulation(
      ...     problem=fl.streams.Replay(data),
      ...     network=fl.federation.balanced(2, fl.graphs.ring(3)),
      ...     algorithm=fl.algorithms.PAOFedGraph(0.1, fl.link.Circular(2), fl.link.Circular(1)),
      ...     delays=fl.link.Geometric(0.2, longest=3),
      ... )
      >>> fl.run(simulation, rounds=5)["model"].shape
      (6, 4)

    Reference:
      Gauthier et al. 2023 (PAO-Fed), section VI (future work); Gauthier 2024, (4.5)-(4.14).
    """

    step_size: Schedule = field(converter=as_schedule)
    sharing: Sharing = Circular(4)
    between: Sharing = Circular(4)
    send_next: Bool[Array, ""] | bool = True
    discount: Float[Array, " *lags"] | float = 1.0

    def validate(self) -> None:
        if isinstance(self.discount, list | tuple):
            object.__setattr__(self, "discount", np.asarray(self.discount))
        checks.interval("discount", self.discount, at_least=0, at_most=1)

    def init(self, problem: Problem | Stream, network: Federation) -> PAOFedGraphState:
        self.sharing.check(problem.dim)
        self.between.check(problem.dim)
        server = jnp.tile(server_start(problem), (network.servers, 1))
        return PAOFedGraphState(network.of_clients(server), start_models(problem), server)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.sharing.size, self.sharing.size

    def step(self, state: PAOFedGraphState, now: Round) -> PAOFedGraphState:
        problem = now.problem
        network = now.network
        link = now.link
        active = now.available
        home = jnp.asarray(network.server, jnp.int32)
        everyone = jnp.arange(problem.clients, dtype=jnp.int32)
        portions = link.common_key("sharing")
        dim = problem.dim
        next_round = now.number + jnp.asarray(self.send_next, jnp.int32)

        def sent(rows: Array) -> Array:
            return self.sharing.indices(portions, next_round, rows, dim)

        server = link.publish(state.server, active, self.sharing.size)
        received = active[:, None] & self.sharing.mask(portions, now.number, everyone, dim)
        merged = jnp.where(received, server[home], state.local)
        local = lms(problem.mapped(), merged, self.step_size(now.number))
        arrived = link.collect(
            lambda rows: local[rows[:, None], sent(rows)],
            active,
            server,
            at=sent,
            discount=self.discount,
            per_delay=True,
        )
        server = arrived.move(server)
        if network.graph is not None:
            portion = self.between.indices(portions, next_round, everyone[:1], dim)[0]
            mixed = link.combine(server[:, portion], network.graph.mixing("metropolis"))
            server = server.at[:, portion].set(mixed)
        return PAOFedGraphState(network.of_clients(server), local, server)
