r"""FedSAM: sharpness-aware local steps (Qu et al. 2022, Caldarola et al. 2022)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED_PRIVATELY, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem
from fljax.problems.streams import Stream


class FedSAMState(NamedTuple):
    """State of FedSAM between rounds."""

    model: Array  # [D]  the server's w


@algorithm(
    "FedSAM",
    ("qu2022", "caldarola2022"),
    AVERAGED_PRIVATELY,
)
@module
class FedSAM(ReleasesModel, Averaging):
    r"""Federated averaging with sharpness-aware local steps, which prefer flat minima.

    A participant's step uses the gradient, on the same batch, at the point within :math:`\rho` of
    its model where its loss is largest to first order:

    .. math::

        \tilde w_k=w_k+\rho\frac{f_k'(w_k)}{\|f_k'(w_k)\|},\qquad
        w_k\leftarrow w_k-\mu f_k'(\tilde w_k)

    and the server averages, with a server step size of one. :math:`\rho=0` is federated averaging.
    A step costs two gradients. Steps do not vanish at a minimum: with constant :math:`\mu` and
    :math:`\rho` models oscillate about it, at a distance of :math:`\mu a\rho/(2-\mu a)` if clients
    are identical and all curvatures are :math:`a`. A zero gradient gives no step.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`.
      radius: :math:`\rho\ge0`.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: a negative radius; as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedSAM(0.1, radius=0.05),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 0.01)
      True

    Reference:
      Qu et al. 2022, Algorithm 1; Caldarola et al. 2022.
    """

    radius: Float[Array, ""] | float = dataclasses.field(default=0.05, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.nonnegative("radius", self.radius)

    def gradients_per_step(self, problem: object) -> float:
        return 2.0

    def init(self, problem: Problem | Stream, network: Network) -> FedSAMState:
        return FedSAMState(server_start(problem))

    def step(self, state: FedSAMState, now: Round) -> FedSAMState:
        cohort = self.invite(now, state.model)
        server = now.link.publish(state.model, cohort.active)

        def sharpest(part: Problem, model: Array, context: PyTree) -> Array:
            gradient = part.gradient(model)
            length = jnp.linalg.norm(gradient, axis=1, keepdims=True)
            return part.gradient(model + self.radius * gradient / jnp.where(length > 0, length, 1))

        learned = self.learn(now, cohort, server, direction=sharpest)
        return FedSAMState(self.collect(now, cohort, learned.model, server).move(server))
