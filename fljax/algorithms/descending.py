"""Gradient steps on a client's own samples, and methods that skip most communication rounds."""

from typing import Any, cast

import jax
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Algorithm
from fljax.algorithms.local_steps import check_full, gradient_in_training, sampled_problem
from fljax.algorithms.round import Round
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem
from fljax.problems.batches import Batches
from fljax.problems.streams import Stream


@module
class Descending(Algorithm):
    """Base class of peers that take gradient steps on their own samples.

    Parameters of subclasses are keyword arguments (``fljax.field(kw_only=True)``).

    Args:
      step_size: a number or a schedule of the round, > 0.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.
    """

    step_size: Schedule = field(converter=as_schedule)
    batches: Batches | None = field(default=None, kw_only=True)

    def check(self, problem: Problem | Stream, network: Any) -> None:
        if self.batches is not None:
            self.batches.check(problem)
        if problem.mixes_samples:
            check_full(self.batches, cast(Problem, problem))

    def _step_problem(self, now: Round) -> Problem:
        """Return the problem of this round's step."""
        return sampled_problem(self.batches, now)

    def _step_gradient(self, now: Round, model: Array) -> Float[Array, "clients dim"]:
        """Return the gradients of this round's step, of networks in training."""
        return gradient_in_training(now, self._step_problem(now), model)


@module
class Skipping(Descending):
    """Base class of gradient steps with a control variate that is updated at each communication."""

    probability: Float[Array, ""] | float

    def validate(self) -> None:
        hint = "At 0 nobody would ever say anything."
        checks.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def _communicates(self, now: Round) -> Array:
        """Whether there is communication in this round: one random draw for all clients."""
        dtype = now.problem.dtype
        return jax.random.uniform(now.key("algorithm"), (), dtype) < self.probability

    def _corrected_step(
        self, model: Array, control: Array, now: Round
    ) -> Float[Array, "clients dim"]:
        return model - self.step_size(now.number) * (self._step_gradient(now, model) - control)

    def _updated_control(
        self, control: Array, change: Array, now: Round
    ) -> Float[Array, "clients dim"]:
        return control + self.probability / self.step_size(now.number) * change
