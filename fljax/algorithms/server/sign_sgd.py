r"""Descent along the signs of gradients, one bit per parameter on the uplink (Jin et al. 2020)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.link import Compressor, Sign
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Everyone, Selector
from fljax.problems import Problem
from fljax.problems.streams import Stream


class SignSGDState(NamedTuple):
    """State of SignSGD between rounds."""

    model: Array  # [D]  the server's w


@algorithm(
    "SignSGD",
    ("bernstein2018", "jin2020"),
    Needs(
        None,
        data="any",
        absent=True,
        late=True,
        averages=True,
        compressed=False,
        uploads=("updates",),
    ),
    {"SignSGD with majority vote": ""},
)
@module
class SignSGD(Algorithm):
    r"""Descent along the majority vote, or the mean, of the signs of clients' descent directions.

    .. math::

        w^{(n+1)}=w^{(n)}+\mu\,\mathrm{sign}\Big(\sum_{k}\mathrm{sign}(g_k)\Big),\qquad
        g_k=-\tfrac12f_k'(w^{(n)})\ (=z_ke_k\text{ for one sample})

    The sum is over the messages that arrive in the round, for any delay; a tied vote leaves
    its parameter unchanged. The source names the method (section 4.4.5) without a rule: the
    majority vote is that of its reference, and ``vote=False`` is the mean of the signs. The server
    sends full models.

    Args:
      step_size: :math:`\mu`, a schedule or a number, > 0.
      vote: whether the server takes the majority vote, or the mean.
      signs: the sign compression of the messages, deterministic by default; that of the reference
        is :class:`~fljax.link.StochasticSign`.
      selector: the server's choice among available clients; all of them by default.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=4)
      >>> run = fl.run(fl.Simulation(problem, fl.algorithms.SignSGD(0.05)), rounds=10)
      >>> int(run.bits_up[-1])  # 10 rounds, 6 clients, 4 signs of 1 bit
      240

    Reference:
      Bernstein et al. 2018, Algorithm 3, the majority vote; Jin et al. 2020, the stochastic signs.
    """

    step_size: Schedule = field(converter=as_schedule)
    vote: bool = static(default=True)
    signs: Compressor = Sign(scaled=False)
    selector: Selector = Everyone()

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.selector

    def init(self, problem: Problem | Stream, network: Network) -> SignSGDState:
        self.selector.check(problem.clients)
        return SignSGDState(server_start(problem))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: SignSGDState, now: Round) -> SignSGDState:
        participants = now.choose(self.selector, state.model)
        server = now.link.publish(state.model, participants.here)
        clients = participants.numbers

        def messages(rows: Array) -> Float[Array, "group dim"]:
            part = now.problem.take(clients[rows]).mapped()
            shared = jnp.broadcast_to(server, (len(rows), part.dim))
            return -part.gradient(shared) / 2

        zero = jnp.zeros_like(server)
        direction = now.link.collect(
            messages,
            participants.here,
            zero,
            weights=participants.unbiased(
                now.available, jnp.ones(now.problem.clients, server.dtype)
            ),
            normalized=participants.weights is None,
            compression=self.signs,
            clients=participants.clients,
            step_size=1,
        ).total
        if self.vote:
            direction = jnp.sign(direction)
        return SignSGDState(server + self.step_size(now.number) * direction)
