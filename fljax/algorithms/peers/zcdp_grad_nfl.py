r"""Private networked subgradient descent, the comparator zCDP-grad-NFL (Gauthier 2024, 3.4)."""

from functools import partial
from typing import NamedTuple

from jaxtyping import Array, Float

from fljax._core.module import field, module
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.peers.peer_algorithm import Weights, as_weights, check_weights, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.privacy import Gap
from fljax.problems import Problem
from fljax.problems.streams import Stream


class ZCDPGradNFLState(NamedTuple):
    """State of zCDP-grad-NFL between rounds."""

    model: Array  # [K, D]  w_k, never sent
    sent: Array  # [K, D]  the last message of client k, perturbed
    mixed: Array  # [K, D]  the combination of the messages that client k received
    mixing: Combination  # the doubly stochastic weights of the first graph


@algorithm(
    "zCDP-grad-NFL",
    ("nedic2009", "gauthier2024"),
    Needs(
        data="any",
        privacy=("message",),
        absent=True,
        late=True,
        averages=True,
        changing=True,
        directed=True,
    ),
)
@module
class ZCDPGradNFL(Algorithm):
    r"""Distributed subgradient method with perturbed messages (zCDP-grad-NFL).

    .. math::

        w_k^{(n)} = \sum_{l\in\mathcal N_k\cup\{k\}} a_{kl}\tilde w_l^{(n-1)}
            -\alpha^{(n)} f_k'(\tilde w_k^{(n-1)}),\qquad
        \tilde w_k^{(n)} = w_k^{(n)}+\xi_k^{(n)}

    The source cites Nedic and Ozdaglar, "modified to use zCDP" (section 3.4), without the formula.
    The subgradient is evaluated at the client's own *perturbed* model: with the exact one,
    information on the data would persist from round to round inside the client and
    :meth:`sensitivity` would not bound the message.

    Args:
      step_size: :math:`\alpha^{(n)}`, a schedule or a number, > 0.
      mixing: the weights :math:`a_{kl}`, as in :class:`Consensus`; Metropolis by default (not given
        in the source).

    Raises:
      TypeError: weights of another type.
      ValueError: an unknown rule; weights or parameters of a rule that do not fit the graph.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> simulation = fl.Simulation(
      ...     problem=problem.clipped(1.0),
      ...     algorithm=fl.algorithms.ZCDPGradNFL(step_size=0.1),
      ...     network=fl.graphs.ring(6),
      ...     privacy=fl.privacy.ZCDP(total_rho=1.0, gradient_bound=1.0),
      ... )
      >>> run = fl.run(simulation, rounds=10)
      >>> round(float(run.release_rho), 3)  # of each of ten messages
      0.1

    Reference:
      Nedić & Ozdaglar 2009, (3), without privacy; Gauthier 2024, section 3.4.
    """

    step_size: Schedule = field(converter=as_schedule)
    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return (self.mixing,)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        check_weights(self.mixing, network)

    def init(self, problem: Problem | Stream, network: Graph) -> ZCDPGradNFLState:
        start = start_models(problem)
        mixing = weights_on(self.mixing, network)
        return ZCDPGradNFLState(start, start, mixing(start), mixing)

    def step(self, state: ZCDPGradNFLState, now: Round) -> ZCDPGradNFLState:
        model = state.mixed - self.step_size(now.number) * now.problem.gradient(state.sent)
        now.witness_at(state.sent)
        sent, inbox = now.link.exchange(model)
        mixing = weights_on(self.mixing, now.network) if now.changing else state.mixing
        return ZCDPGradNFLState(model, sent, inbox.mean(mixing), state.mixing)

    def released(self, state: ZCDPGradNFLState, problem: Problem | Stream, network: Graph) -> Array:
        """Return the clients' last messages."""
        return state.sent

    def sensitivity(
        self, problem: Problem, network: Graph, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        r"""Return the gradient's sensitivity times :math:`\alpha^{(n)}`."""
        return gap.gradient * self.step_size(round)
