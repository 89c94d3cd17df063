"""Local training without any communication, the baseline of collaborative methods."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax import _check
from fljax._module import field, module, static
from fljax.algorithms.base import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.local_steps import descend
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule

__all__ = ["LocalOnly", "State"]


class State(NamedTuple):
    """State of local training between rounds."""

    model: Array  # [K, D]  w_k


@algorithm("Local only", "li2021", Needs(None, absent=True, late=True, averages=True, uploads=()))
@module
class LocalOnly(Algorithm):
    r"""Gradient descent of each client on its own data; nothing is ever sent.

    .. math:: w_k \leftarrow w_k-\mu f_k'(w_k)

    It takes steps instead of computing the exact minimizer at once: a round then costs as much as a
    participant's computation in the other methods, the steps converge to the minimizer, and with
    fewer samples than parameters, where it is not unique, to the one nearest to zero. Unavailable
    clients keep their models.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      local_steps: gradient steps per round, on all of a client's samples, >= 1.

    Reference:
      Li et al. 2021; the personal models of Ditto at :math:`\lambda=0`.
    """

    step_size: Schedule = field(converter=as_schedule)
    local_steps: int = static(default=1)

    def validate(self) -> None:
        _check.count("local_steps", self.local_steps)

    def message_size(self, dim: int) -> int:
        return 0

    def init(self, problem: Problem, network: Any) -> State:
        return State(start_models(problem))

    def step(self, state: State, now: Round) -> State:
        step_size = self.step_size(now.number)
        model = descend(now.problem.gradient, state.model, step_size, self.local_steps)
        return State(jnp.where(now.available[:, None], model, state.model))
