"""Gradient steps on samples of one's own, and those that skip most of their communication."""

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
    """Peers that take gradient steps on their own samples.

    Their own numbers are keyword arguments (``fljax.field(kw_only=True)``).

    Args:
      step_size: a number or a schedule of the round, > 0.
      batches: what a step is on (:mod:`fljax.batches`); all of a client's samples by default.
    """

    step_size: Schedule = field(converter=as_schedule)
    batches: Batches | None = field(default=None, kw_only=True)

    def check(self, problem: Problem | Stream, network: Any) -> None:
        if self.batches is not None:
            self.batches.check(problem)

    def _part(self, now: Round) -> Problem:
        """What this round's step is on."""
        return sampled(self.batches, now)


@module
class Skipping(Descending):
    """A gradient step, corrected by what the last averages changed."""

    probability: Float[Array, ""] | float

    def validate(self) -> None:
        hint = "At 0 nobody would ever say anything."
        _check.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def _speaks(self, now: Round) -> Array:
        """Whether there is communication in this round: one draw for all."""
        dtype = now.problem.dtype
        return jax.random.uniform(now.key("algorithm"), (), dtype) < self.probability

    def _moved(self, model: Array, control: Array, now: Round) -> Float[Array, "clients dim"]:
        part = self._part(now)
        return model - self.step_size(now.number) * (part.gradient(model) - control)

    def _corrected(self, control: Array, change: Array, now: Round) -> Float[Array, "clients dim"]:
        return control + self.probability / self.step_size(now.number) * change
