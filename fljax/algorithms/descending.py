"""Gradient steps on a client's own samples, and methods that skip most communication rounds."""

from typing import Any

import jax
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module
from fljax.algorithms.base import Algorithm
from fljax.algorithms.local_steps import sampled
from fljax.batches import Batches
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule
from fljax.streams import Stream

__all__ = ["Descending", "Skipping"]


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

    def _part(self, now: Round) -> Problem:
        """Return the problem of this round's step."""
        return sampled(self.batches, now)


@module
class Skipping(Descending):
    """Base class of gradient steps with a control variate that is updated at each communication."""

    probability: Float[Array, ""] | float

    def validate(self) -> None:
        hint = "At 0 nobody would ever say anything."
        _check.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def _speaks(self, now: Round) -> Array:
        """Whether there is communication in this round: one random draw for all clients."""
        dtype = now.problem.dtype
        return jax.random.uniform(now.key("algorithm"), (), dtype) < self.probability

    def _moved(self, model: Array, control: Array, now: Round) -> Float[Array, "clients dim"]:
        part = self._part(now)
        return model - self.step_size(now.number) * (part.gradient(model) - control)

    def _corrected(self, control: Array, change: Array, now: Round) -> Float[Array, "clients dim"]:
        return control + self.probability / self.step_size(now.number) * change
