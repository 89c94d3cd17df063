r"""Federated averaging followed by fine-tuning at each client (Collins et al. 2022)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, algorithm, start_models
from fljax.algorithms.local_steps import descend
from fljax.algorithms.round import Round
from fljax.algorithms.server import fedavg
from fljax.algorithms.server.fedavg import FedAvg
from fljax.algorithms.server.server_algorithm import AVERAGED
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Selector
from fljax.problems import Problem


class FineTunedFedAvgState(NamedTuple):
    """State of FedAvg-FT between rounds."""

    model: Array  # [K, D]  the tuned v_k
    shared: fedavg.FedAvgState  # of the solver, whose model is the server's w


@algorithm(
    "FedAvg-FT",
    ("wang2019", "collins2022", "mcmahan2017"),
    AVERAGED,
    {"Finetune": "", "FT-FedAvg": ""},
)
@module
class FineTunedFedAvg(Algorithm):
    r"""Federated averaging whose model is fine-tuned at each client for evaluation.

    .. math::

        v_k^{(n)}=w^{(n)},\qquad\text{then } \tau\text{ times}\quad
        v_k^{(n)} \leftarrow v_k^{(n)}-\eta f_k'(v_k^{(n)})

    Fine-tuning restarts from the server's model of each round, does not affect its training and
    needs no communication: it gives the model that every client, participating or not, would deploy
    if training stopped here. It is computed in every round, although only recorded rounds use it:
    :math:`\tau` passes over all clients' data.

    Args:
      solver: the solver of the server's model, a :class:`~fljax.algorithms.FedAvg`.
      step_size: :math:`\eta` of the fine-tuning, a schedule of the round or a number, > 0.
      tuning_steps: :math:`\tau\ge1`, on all of a client's samples.

    Raises:
      TypeError: a solver of another type.
      ValueError: no fine-tuning steps, which would be the solver itself.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> solver = fl.algorithms.FedAvg(0.1)
      >>> def train_error(algorithm):
      ...     run = fl.run(fl.Simulation(problem, algorithm, metrics=["train_error"]), rounds=20)
      ...     return run.train_error.mean("client")[-1]
      >>> tuned = fl.algorithms.FineTunedFedAvg(solver, 0.1, tuning_steps=5)
      >>> bool(train_error(tuned) < train_error(solver))
      True

    Reference:
      Wang et al. 2019; Collins et al. 2022, for its analysis; McMahan et al. 2017, Algorithm 1, for
      the rounds.
    """

    solver: FedAvg
    step_size: Schedule = field(converter=as_schedule)
    tuning_steps: int = static(default=1)

    def validate(self) -> None:
        checks.count("tuning_steps", self.tuning_steps, hint="Without tuning, run the solver.")

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.solver.selection

    def check(self, problem: Problem, network: Network) -> None:
        self.solver.check(problem, network)

    def work(self, problem: Any) -> tuple[Array, Array]:
        return self.solver.work(problem)

    def init(self, problem: Problem, network: Network) -> FineTunedFedAvgState:
        return FineTunedFedAvgState(start_models(problem), self.solver.init(problem, network))

    def step(self, state: FineTunedFedAvgState, now: Round) -> FineTunedFedAvgState:
        shared = self.solver.step(state.shared, now)
        start = jnp.broadcast_to(shared.model, state.model.shape)
        step_size = self.step_size(now.number)
        model = descend(
            self.solver.local_problem(now.problem).gradient, start, step_size, self.tuning_steps
        )
        return FineTunedFedAvgState(model, shared)
