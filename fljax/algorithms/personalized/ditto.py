r"""Ditto: personal models kept near a global one (Li, Hu, Beirami and Smith 2021)."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module, static
from fljax.algorithms.base import Algorithm, algorithm, start_models
from fljax.algorithms.local_steps import descend
from fljax.algorithms.server import fedavg
from fljax.algorithms.server.base import AVERAGED
from fljax.algorithms.server.fedavg import FedAvg
from fljax.participation import Selector
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule

__all__ = ["Ditto", "State"]


class State(NamedTuple):
    """State of Ditto between rounds."""

    model: Array  # [K, D]  the personal v_k
    shared: fedavg.State  # of the solver, whose model is the global w


@algorithm(
    "Ditto",
    "li2021",
    AVERAGED,
)
@module
class Ditto(Algorithm):
    r"""Federated averaging plus personal models that are regularized toward the global model.

    A participant of round :math:`n` receives :math:`w^{(n-1)}`, trains it by the global solver and
    sends the result; and it repeats ``personal_steps`` times, from its own last model,

    .. math::

        v_k \leftarrow v_k-\eta\big(f_k'(v_k)+\lambda(v_k-w^{(n-1)})\big)

    The personal models never leave the clients, so the communication is that of the solver. Clients
    that do not participate keep :math:`v_k`. Personal steps are on all of a client's samples; the
    solver's may be on batches. The personal steps are stable for :math:`\eta(L+\lambda)<2`, with
    :math:`L` the largest curvature of :math:`f_k`.

    Args:
      solver: the solver of the global model, a :class:`~fljax.algorithms.FedAvg`, which also draws
        the participants; the paper leaves the local solver and the aggregation open.
      step_size: :math:`\eta` of the personal models, a schedule of the round or a number, > 0.
      attraction: :math:`\lambda\ge0`; zero is local training only, infinity the global model.
      personal_steps: :math:`s\ge1`.

    Raises:
      TypeError: a solver of another type.

    Reference:
      Li et al. 2021, Algorithm 1.
    """

    solver: FedAvg
    step_size: Schedule = field(converter=as_schedule)
    attraction: Float[Array, ""] | float
    personal_steps: int = static(default=1)

    def validate(self) -> None:
        _check.nonnegative("attraction", self.attraction)
        _check.count("personal_steps", self.personal_steps)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.solver.selection

    def check(self, problem: Problem, network: Any) -> None:
        self.solver.check(problem, network)

    def init(self, problem: Problem, network: Any) -> State:
        return State(start_models(problem), self.solver.init(problem, network))

    def step(self, state: State, now: Round) -> State:
        server, shared = state.shared.model, self.solver.step(state.shared, now)

        who = now.choose(self.selection, state.model)
        part = who.of(self.solver.own(now.problem))

        def gradient(model: Array) -> Array:
            return part.gradient(model) + self.attraction * (model - server[None])

        old, step_size = who.take(state.model), self.step_size(now.number)
        new = descend(gradient, old, step_size, self.personal_steps)
        return State(who.put(state.model, new), shared)
