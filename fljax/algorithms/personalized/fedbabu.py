"""FedBABU: a common body trained with a fixed initial head (Oh et al. 2022)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import algorithm
from fljax.algorithms.local_steps import descend
from fljax.algorithms.personalized.fedper import FedPer, FedPerState
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Cohort
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem


class FedBABUState(NamedTuple):
    """State of FedBABU between rounds."""

    model: Array  # [K, D]  after tuning
    frozen: Array  # [K, D]  before: the server's parameters, and the heads as they began
    server: Array  # [shared]


@algorithm("FedBABU", "oh2022", AVERAGED)
@module
class FedBABU(FedPer):
    r"""A common body, trained with a fixed initial head; then each client fine-tunes both.

    A participant of round :math:`n` takes gradient steps on its body only,

    .. math::

        \varphi_k\leftarrow\varphi_k-\mu\,\partial_\varphi f_k(\varphi_k,h^0),\qquad
        \varphi^{(n)}=\sum_{k\in S}\frac{q_k}{\sum_{l\in S}q_l}\varphi_k

    Metrics evaluate each client's model after :math:`\tau` steps from
    :math:`v_k=(\varphi^{(n)},h^0)` on all of its parameters, the paper's personalization:

    .. math:: v_k\leftarrow v_k-\eta f_k'(v_k)

    Fine-tuning restarts in every round and needs no communication, as in
    :class:`~fljax.algorithms.FineTunedFedAvg`, to which this is equal if the head is empty. The
    head is the same for all clients, as in the paper, unless the problem has different initial
    models (:meth:`~fljax.problems.Problem.starting_at`); if the initial model is zero the head is
    zero, and the gradient with respect to the body vanishes.

    Args:
      step_size: :math:`\mu`, as in :class:`FedPer`, whose other arguments and messages it has.
      personal: the parameters of the head.
      tuning_step_size: :math:`\eta`, a schedule of the round or a number, > 0.
      tuning_steps: :math:`\tau\ge1`, on all of a client's samples.

    Raises:
      ValueError: no fine-tuning steps; as for :class:`FedPer`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=4)
      >>> algorithm = fl.algorithms.FedBABU(0.1, personal=[0], tuning_step_size=0.1, tuning_steps=3)
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=10)
      >>> int(run.bits_up[-1])  # 10 rounds, 6 clients, 3 of 4 parameters of 32 bits
      5760

    Reference:
      Oh et al. 2022, Algorithm 1, and its personalization.
    """

    tuning_step_size: Schedule = field(converter=as_schedule, kw_only=True)
    tuning_steps: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("tuning_steps", self.tuning_steps)

    def init(self, problem: Problem, network: Network) -> FedBABUState:
        start = super().init(problem, network)
        return FedBABUState(start.model, *start)

    def step(self, state: FedBABUState, now: Round) -> FedBABUState:
        frozen = super().step(FedPerState(state.frozen, state.server), now)
        step_size = self.tuning_step_size(now.number)
        tuned = descend(
            self.local_problem(now.problem).gradient, frozen.model, step_size, self.tuning_steps
        )
        return FedBABUState(tuned, *frozen)

    def _train_participants(
        self, now: Round, cohort: Cohort, start: Float[Array, "chosen dim"], personal: np.ndarray
    ) -> Float[Array, "chosen dim"]:
        return self._train_part(now, cohort, start, self._split(now.problem)[0])
