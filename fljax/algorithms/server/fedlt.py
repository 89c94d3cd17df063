r"""Fed-LT: splitting with local training (Bastianello, Liu and Johansson 2024)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Corrected
from fljax.graphs.federation import Network
from fljax.problems import Problem


class FedLTState(NamedTuple):
    """State of Fed-LT between rounds."""

    model: Array  # [D]  the server's y, the mean of all z_k
    local: Array  # [K, D]  the clients' x_k
    auxiliary: Array  # [K, D]  the clients' z_k


@algorithm("Fed-LT", "bastianello2024", SUMMED)
@module
class FedLT(ReleasesModel, Corrected):
    r"""Peaceman-Rachford splitting whose proximal steps are approximated by local training.

    The server's :math:`y` is the mean of all :math:`z_k`. A participant of the round continues from
    its own last model by local steps on

    .. math::

        x_k\approx\arg\min_v f_k(v)+\frac1{2\rho}\|v-(2y-z_k)\|^2,\qquad
        z_k\leftarrow z_k+2(x_k-y)

    and the server receives :math:`2(x_k-y)`. Clients that do not participate keep :math:`x_k` and
    :math:`z_k`. A fixed point is a stationary point of :math:`\sum_kf_k`, for any number of local
    steps with full batches. A lost message leaves a permanent error between :math:`y` and the mean.
    The paper's Fed-PLT has in addition noise in its local steps, and a regularizer at the server,
    which here is in :math:`f_k`.

    Args:
      step_size: of the local steps, a schedule of the round or a number, > 0, or an optimizer,
        which is reinitialized in every round.
      penalty: :math:`\rho>0`.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Raises:
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedLT(0.05, penalty=0.5, local_steps=10),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 1e-6)
      True

    Reference:
      Bastianello, Liu and Johansson 2024, Algorithm 1.
    """

    penalty: Float[Array, ""] | float = dataclasses.field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("penalty", self.penalty)

    def init(self, problem: Problem, network: Network) -> FedLTState:
        start = start_models(problem)
        return FedLTState(server_start(problem), start, start)

    def step(self, state: FedLTState, now: Round) -> FedLTState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        server = now.link.publish(state.model, cohort.active)
        old = participants.take(state.auxiliary)

        def proximal(part: Problem, model: Array, center: Array) -> Array:
            return part.gradient(model) + (model - center) / self.penalty

        start = participants.take(state.local)
        center = 2 * server[None] - old
        local = self.learn(now, cohort, start, direction=proximal, context=center).model
        change = 2 * (local - server[None])

        arrived = self.collect(now, cohort, change, jnp.zeros_like(server))
        return FedLTState(
            server + arrived.weight / now.problem.clients * arrived.total,
            participants.put(state.local, local),
            participants.put(state.auxiliary, old + change),
        )
