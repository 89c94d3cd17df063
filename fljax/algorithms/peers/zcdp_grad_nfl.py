r"""Private networked subgradient descent, the comparator zCDP-grad-NFL (Gauthier 2024, 3.4)."""

from functools import partial
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from fljax._module import field, module
from fljax.algorithms.base import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.peers.base import Weights, as_weights, check_weights, weights_on
from fljax.graphs import Combination, Graph
from fljax.privacy import ZCDP, ApproximateDP, Gap, PureDP
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule
from fljax.streams import Stream

__all__ = ["State", "ZCDPGradNFL"]


class State(NamedTuple):
    """State of zCDP-grad-NFL between rounds."""

    model: Array  # [K, D]  w_k, never sent
    heard: Array  # [K, D]  what client k last said, perturbed
    mixed: Array  # [K, D]  the combination of what client k heard
    mixing: Combination  # the doubly stochastic weights of the first graph


@algorithm(
    "zCDP-grad-NFL",
    "nedic2009",
    Needs(
        data="any",
        privacy=(ZCDP, ApproximateDP, PureDP),
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

    Reference:
      Nedic and Ozdaglar 2009, (3); Gauthier 2024, section 3.4.
    """

    step_size: Schedule = field(converter=as_schedule)
    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return (self.mixing,)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        check_weights(self.mixing, network)

    def init(self, problem: Problem | Stream, network: Graph) -> State:
        start = start_models(problem)
        mixing = weights_on(self.mixing, network)
        return State(start, start, mixing(start), mixing)

    def step(self, state: State, now: Round) -> State:
        model = state.mixed - self.step_size(now.number) * now.problem.gradient(state.heard)
        now.witness_at(state.heard)
        heard, inbox = now.link.exchange(model)
        over = weights_on(self.mixing, now.network) if now.changing else state.mixing
        return State(model, heard, inbox.mean(over), state.mixing)

    def released(self, state: State, problem: Problem | Stream, network: Any) -> Array:
        """Return the clients' last messages."""
        return state.heard

    def sensitivity(
        self, problem: Problem, network: Graph, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        r"""Return the gradient's sensitivity times :math:`\alpha^{(n)}`."""
        return gap.gradient * self.step_size(round)
