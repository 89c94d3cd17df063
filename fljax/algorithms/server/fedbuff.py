r"""FedBuff: buffered asynchronous aggregation at a server (Nguyen et al. 2022).

On a clock (:class:`fljax.clock.Asynchronous`) a round is the arrival of one update. Otherwise time
is counted in rounds: a client that is invited in round :math:`n` starts from the model of that
round, and its update arrives after its delay (``Simulation(delays=...)``: computation and
communication together): its *staleness* is the number of rounds that this took. Updates in transit
are stored as sums, one for each round of arrival, and not per client; a client that is still
computing may be invited again.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED_AT_ARRIVAL, LocalLearning
from fljax.algorithms.server.staleness import PolynomialStaleness, Staleness
from fljax.graphs.federation import Network
from fljax.problems import Problem


class FedBuffState(NamedTuple):
    """State of FedBuff between rounds."""

    model: Array  # [D]  the server's w
    buffer: Array  # [D]  the sum of the updates since it moved last
    buffered: Array  # []  how many these are


@algorithm("FedBuff", "nguyen2022", AVERAGED_AT_ARRIVAL, {"Buffered asynchronous aggregation": ""})
@module
class FedBuff(ReleasesModel, LocalLearning):
    r"""Buffered asynchronous averaging: the server steps after a number of updates, however stale.

    An invited client takes its local steps from :math:`w` to :math:`w_k` and sends the update
    :math:`\Delta_k=w_k-w`, relative to the model that it started from. Each arriving update is
    added to a buffer, weighted by its staleness :math:`\tau_k`; if the buffer holds :math:`Z`
    updates or more at the end of a round,

    .. math:: w \leftarrow w+\frac{\eta}{|B|}\sum_{k\in B}s(\tau_k)\Delta_k

    and the buffer :math:`B` is emptied. The paper counts staleness in steps of the server, and
    releases its buffer at exactly :math:`Z` updates, as on a clock
    (``Simulation(clock=fljax.clock.Asynchronous(...))``); without one staleness is counted in
    rounds, and updates of the same round have no order, so that all of them are included.
    Without delays, with :math:`Z` participants per round and :math:`\eta=1`, it is federated
    averaging.

    Args:
      step_size: of the local steps, as in :class:`~fljax.algorithms.FedAvg`, which also has the
        other arguments; ``clients_per_round`` clients start in every round. The buffer counts
        updates (for clients drawn with unequal probabilities :math:`p_k`, weighted by
        :math:`1/(Kp_k)`).
      buffer_size: :math:`Z\ge1`; 10 in the paper. It can be swept.
      server_step_size: :math:`\eta>0`.
      staleness: :math:`s`; by default the inverse square root of the paper.

    Raises:
      ValueError: a buffer size below one; as for FedAvg.

    Example:
      Updates that take up to three rounds:

      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=9, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedBuff(0.1, clients_per_round=3, buffer_size=4),
      ...     delays=fl.link.UniformDelay(3),
      ...     metrics=["normalized_error"],
      ... )
      >>> run = fl.run(simulation, rounds=100)
      >>> bool(run.normalized_error[-1] < 0.05)
      True

    Reference:
      Nguyen et al. 2022, Algorithms 1 and 2.
    """

    buffer_size: Float[Array, ""] | float = dataclasses.field(default=10.0, kw_only=True)
    server_step_size: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)
    staleness: Staleness = dataclasses.field(default=PolynomialStaleness(), kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("buffer_size", self.buffer_size, at_least=1)
        checks.positive("server_step_size", self.server_step_size)

    def init(self, problem: Problem, network: Network) -> FedBuffState:
        start = server_start(problem)
        return FedBuffState(start, jnp.zeros_like(start), jnp.zeros((), problem.dtype))

    def step(self, state: FedBuffState, now: Round) -> FedBuffState:
        cohort = self.invite(now, state.model)
        server = now.link.publish(state.model, cohort.active)
        start = self.starts(now, server)
        update = self.learn(now, cohort, start).model - jnp.atleast_2d(start)
        if cohort.participants.weights is not None:
            # One of the buffer all the same: who was drawn does not change how many it holds.
            update = cohort.participants.weights.astype(update.dtype)[:, None] * update
            cohort = cohort._replace(weights=None)
        arrived = self.collect(now, cohort, update, jnp.zeros_like(server), discount=self.staleness)
        assert arrived.weight is not None  # no trusted server
        buffer = state.buffer + arrived.weight * arrived.total
        count = state.buffered + arrived.weight
        full = count >= self.buffer_size
        moved = server + self.server_step_size / jnp.where(full, count, 1) * buffer
        return FedBuffState(
            jnp.where(full, moved, server), jnp.where(full, 0, buffer), jnp.where(full, 0, count)
        )
