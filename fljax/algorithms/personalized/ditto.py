r"""Ditto: personal models kept near a global one (Li, Hu, Beirami and Smith 2021)."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, algorithm, start_models
from fljax.algorithms.local_steps import check_full, learn
from fljax.algorithms.round import Round
from fljax.algorithms.server import fedavg
from fljax.algorithms.server.fedavg import FedAvg
from fljax.algorithms.server.server_algorithm import AVERAGED
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Selector
from fljax.problems import Problem


class DittoState(NamedTuple):
    """State of Ditto between rounds."""

    model: Array  # [K, D]  the personal v_k
    shared: fedavg.FedAvgState  # of the solver, whose model is the global w


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

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> solver = fl.algorithms.FedAvg(0.1, clients_per_round=3)
      >>> algorithm = fl.algorithms.Ditto(solver, 0.1, attraction=0.5)
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=10)
      >>> run["model"].shape, int(run.bits_up[-1])  # personal models; 30 messages
      ((6, 2), 1920)

    Reference:
      Li et al. 2021, Algorithm 1.
    """

    solver: FedAvg
    step_size: Schedule = field(converter=as_schedule)
    attraction: Float[Array, ""] | float
    personal_steps: int = static(default=1)

    def validate(self) -> None:
        checks.nonnegative("attraction", self.attraction)
        checks.count("personal_steps", self.personal_steps)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.solver.selection

    @property
    def has_personal_networks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Yes."""
        return True

    def check(self, problem: Problem, network: Network) -> None:
        self.solver.check(problem, network)
        if problem.mixes_samples:  # a personal step is on all samples
            check_full(None, problem)

    def work(self, problem: Any) -> tuple[Array, Array]:
        return self.solver.work(problem)

    def gradients_per_step(self, problem: Any) -> Array:
        shared = self.solver.gradients_per_step(problem)
        return self.solver.gradients_with(self.personal_steps, problem, shared)

    def init(self, problem: Problem, network: Network) -> DittoState:
        return DittoState(start_models(problem), self.solver.init(problem, network))

    def step(self, state: DittoState, now: Round) -> DittoState:
        server = state.shared.model
        shared = self.solver.step(state.shared, now)

        participants = now.choose(self.selection, state.model)

        def attracted(part: Problem, model: Array, context: PyTree) -> Array:
            return part.gradient(model) + self.attraction * (model - server[None])

        networks = now.personal_networks
        learned = learn(
            self.solver.local_problem(now.problem),
            participants,
            participants.take(state.model),
            self.step_size(now.number),
            self.personal_steps,
            direction=attracted,
            training=networks.of(participants),
        )
        networks.trained(participants, None, learned.state)
        return DittoState(participants.put(state.model, learned.model), shared)
