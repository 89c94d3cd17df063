r"""FedSAM: sharpness-aware local steps (Qu et al. 2022, Caldarola et al. 2022)."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module
from fljax.algorithms.base import ReleasesModel, algorithm, server_start
from fljax.algorithms.server.base import AVERAGED_PRIVATELY, Averaging
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.streams import Stream

__all__ = ["FedSAM", "State"]


class State(NamedTuple):
    """What FedSAM keeps from round to round."""

    model: Array  # [D]  the server's w


@algorithm(
    "FedSAM",
    "qu2022",
    AVERAGED_PRIVATELY,
)
@module
class FedSAM(ReleasesModel, Averaging):
    r"""Federated averaging towards models around which all are good, not only themselves.

    A participant's steps go along the gradient where its loss is, to first order, the largest
    within :math:`\rho` of its model, of the same batch:

    .. math::

        \tilde w_k=w_k+\rho\frac{f_k'(w_k)}{\|f_k'(w_k)\|},\qquad
        w_k\leftarrow w_k-\mu f_k'(\tilde w_k)

    and the server averages; its own step is one. :math:`\rho=0` is federated averaging. A step is
    two gradients. Steps do not vanish at a minimum: at constant :math:`\mu` and :math:`\rho` models
    go to and fro about it, at a distance of :math:`\mu a\rho/(2-\mu a)` where clients agree and all
    curvatures are :math:`a`. Where a gradient is zero there is no step.

    Args:
      step_size: :math:`\mu`, as of :class:`~fljax.algorithms.FedAvg`.
      radius: :math:`\rho\ge0`.

    Other arguments are those of :class:`~fljax.algorithms.server.base.Averaging`.

    Raises:
      ValueError: a negative radius; as of
        :class:`~fljax.algorithms.server.base.Averaging`.

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
        _check.nonnegative("radius", self.radius)

    def init(self, problem: Problem | Stream, network: Any) -> State:
        return State(server_start(problem))

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.here)

        def sharpest(part: Problem, model: Array, given: Any) -> Array:
            slope = part.gradient(model)
            length = jnp.linalg.norm(slope, axis=1, keepdims=True)
            return part.gradient(model + self.radius * slope / jnp.where(length > 0, length, 1))

        learned = self.learn(now, cohort, server, direction=sharpest)
        return State(self.collect(now, cohort, learned.model, server).move(server))
