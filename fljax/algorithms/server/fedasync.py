"""FedAsync: the server mixes each model that arrives into its own (Xie, Koyejo and Gupta 2019)."""

import dataclasses
from typing import NamedTuple

from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import attracted_to
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED_AT_ARRIVAL, LocalLearning
from fljax.algorithms.server.staleness import PolynomialStaleness, Staleness
from fljax.graphs.federation import Network
from fljax.problems import Problem


class FedAsyncState(NamedTuple):
    """State of FedAsync between rounds."""

    model: Array  # [D]  the server's x


@algorithm("FedAsync", "xie2019", AVERAGED_AT_ARRIVAL, {"Asynchronous federated optimization": ""})
@module
class FedAsync(ReleasesModel, LocalLearning):
    r"""Asynchronous averaging: the server mixes each arriving model into its own, stale ones less.

    An invited client takes its local steps from :math:`x` on :math:`f_k(w)+\tfrac\rho2\|w-x\|^2`;
    when the result arrives, with a staleness of :math:`\tau_k` rounds, the server sets

    .. math:: x \leftarrow (1-\alpha_k)x+\alpha_kx_k,\qquad \alpha_k=\alpha s(\tau_k)

    On a clock (``Simulation(clock=fljax.clock.Asynchronous(...))``) a round is one arrival, and
    :math:`\tau_k` the number of models that the server has had since it sent :math:`k` the one
    that :math:`x_k` is based on, or, with a staleness ``of="seconds"``, how long that is ago: the
    paper's algorithm.

    Otherwise time is counted in rounds. Several models that arrive in the same round have no order:
    the server takes the mean of the models that each of them alone would give. So a round moves the
    model as far as one arrival in the paper, and with one arrival per round it is the paper's
    algorithm, with staleness in rounds.

    Args:
      step_size: of the local steps, as in :class:`~fljax.algorithms.FedAvg`, which also has the
        other arguments; ``clients_per_round`` clients start in every round, with equal weights.
      server_step_size: :math:`\alpha\in(0,1]`.
      attraction: :math:`\rho\ge0`.
      staleness: :math:`s`: :class:`PolynomialStaleness`, :class:`HingeStaleness`, or a subclass of
        your own; by default the first, with the power 1/2.

    Raises:
      ValueError: a server step size outside (0, 1], a negative attraction; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=9, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedAsync(
      ...         0.1,
      ...         clients_per_round=1,
      ...         server_step_size=0.6,
      ...         staleness=fl.algorithms.HingeStaleness(10.0, patience=4.0),
      ...     ),
      ...     delays=fl.link.UniformDelay(6),
      ...     metrics=["normalized_error"],
      ... )
      >>> run = fl.run(simulation, rounds=200)
      >>> bool(run.normalized_error[-1] < 0.1)
      True

    Reference:
      Xie et al. 2019, Algorithm 1.
    """

    server_step_size: Float[Array, ""] | float = dataclasses.field(default=0.9, kw_only=True)
    attraction: Float[Array, ""] | float = dataclasses.field(default=0.0, kw_only=True)
    staleness: Staleness = dataclasses.field(default=PolynomialStaleness(), kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("server_step_size", self.server_step_size, above=0, at_most=1)
        checks.nonnegative("attraction", self.attraction)

    def init(self, problem: Problem, network: Network) -> FedAsyncState:
        return FedAsyncState(server_start(problem))

    def step(self, state: FedAsyncState, now: Round) -> FedAsyncState:
        cohort = self.invite(now, state.model)
        server = now.link.publish(state.model, cohort.active)

        start = self.starts(now, server)
        direction, context = attracted_to(start, self.attraction)
        learned = self.learn(now, cohort, start, direction=direction, context=context)
        arrived = self.collect(now, cohort, learned.model, server, discount=self.staleness)
        return FedAsyncState(server + self.server_step_size * (arrived.move(server) - server))
