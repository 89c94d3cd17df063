r"""FedDyn: federated learning with dynamic regularization (Acar et al. 2021)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Corrected
from fljax.graphs.federation import Network
from fljax.problems import Problem


class FedDynState(NamedTuple):
    """State of FedDyn between rounds."""

    model: Array  # [D]  the server's theta
    correction: Array  # [D]  the server's h, the mean of all clients' g_k
    gradients: Array  # [K, D]  the clients' g_k, which come to f_k'(theta)


@algorithm("FedDyn", "acar2021", SUMMED)
@module
class FedDyn(ReleasesModel, Corrected):
    r"""Dynamic regularization: all clients' regularized objectives share a stationary point.

    A participant of the round solves approximately, by local steps from the server's
    :math:`\theta`,

    .. math::

        \theta_k=\arg\min_v f_k(v)-g_k^\top v+\frac\alpha2\|v-\theta\|^2

    and sets :math:`g_k\leftarrow g_k-\alpha(\theta_k-\theta)`, which is :math:`f_k'(\theta_k)` if
    the minimization is exact. The server receives :math:`\theta_k-\theta` and sets

    .. math::

        h\leftarrow h-\frac\alpha K\sum_{k\in S}(\theta_k-\theta),\qquad
        \theta\leftarrow\frac1{|S|}\sum_{k\in S}\theta_k-\frac1\alpha h

    All :math:`g_k` and :math:`h` are initially zero. A fixed point is a stationary point of
    :math:`\sum_kf_k`, for any number of local steps with full batches. Clients that do not
    participate keep :math:`g_k`; if nothing arrives, the server's state is unchanged; a lost
    message leaves a permanent error between :math:`h` and the clients' mean.

    Args:
      step_size: of the local steps, a schedule of the round or a number, > 0, or an optimizer.
      attraction: :math:`\alpha>0`.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Raises:
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedDyn(0.05, attraction=1.0, local_steps=10),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 1e-6)
      True

    Reference:
      Acar et al. 2021, Algorithm 1.
    """

    attraction: Float[Array, ""] | float = dataclasses.field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("attraction", self.attraction)

    def init(self, problem: Problem, network: Network) -> FedDynState:
        start = server_start(problem)
        gradients = jnp.zeros((problem.clients, problem.dim), problem.dtype)
        return FedDynState(start, jnp.zeros_like(start), gradients)

    def step(self, state: FedDynState, now: Round) -> FedDynState:
        cohort = self.invite(now, state.model)
        attraction = self.attraction
        server = now.link.publish(state.model, cohort.active)
        old = cohort.participants.take(state.gradients)

        def regularized(part: Problem, model: Array, correction: Array) -> Array:
            return part.gradient(model) - correction + attraction * (model - server[None])

        change = (
            self.learn(now, cohort, server, direction=regularized, context=old).model - server[None]
        )
        gradients = cohort.participants.put(state.gradients, old - attraction * change)

        arrived = self.collect(now, cohort, change, jnp.zeros_like(server))
        mean = arrived.weight / now.problem.clients * arrived.total
        correction = state.correction - attraction * mean
        model = server + arrived.total - correction / attraction
        return FedDynState(jnp.where(arrived.any, model, server), correction, gradients)
