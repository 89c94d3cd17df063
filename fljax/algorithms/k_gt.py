r"""Local steps with gradient tracking of their sums (K-GT)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module, static
from fljax.algorithms.base import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.local_steps import drawn
from fljax.batches import Batches, taken
from fljax.graphs import Combination, Graph, Mixing
from fljax.participation import Participants
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import StepSize, as_schedule

__all__ = ["KGT", "State"]


class State(NamedTuple):
    """What K-GT keeps from round to round."""

    model: Array  # [K, D]  w_k
    correction: Array  # [K, D]  c_k
    mixing: Combination  # the symmetric weights


@algorithm("K-GT", "liu2024", Needs())
@module
class KGT(Algorithm):
    r"""Several corrected local steps a round, and gradient tracking of their sum (K-GT).

    .. math::

        \phi^{t+1}&=\phi^t-\mu\big(f_k'(\phi^t)+c_k\big),\qquad\phi^0=w_k^{(n-1)} \\
        z_k&=\frac{w_k^{(n-1)}-\phi^\tau}{\tau\mu},\qquad
        c_k\leftarrow c_k-z_k+\sum_la_{kl}z_l,\qquad
        w_k^{(n)}=\sum_la_{kl}\big(w_l^{(n-1)}-\eta\tau\mu z_l\big)

    The paper starts :math:`c_k` at what the gradient of all is off its own, which peers do not
    know; here it starts at zero, of the same sum. With whole gradients it comes to the optimum
    linearly. A message is a model and :math:`z_k`, :math:`2D` numbers.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      local_steps: :math:`\tau`, >= 1.
      outer_step: :math:`\eta>0`.
      mixing: the weights :math:`a_{kl}`, by name or as a :class:`~fljax.graphs.Mixing`; they must
        be symmetric.
      batches: what a local step is on (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: numbers that are not positive, an unknown rule, batches that cannot be drawn.

    Reference:
      Liu et al. 2024, Algorithm 1.
    """

    step_size: StepSize
    local_steps: int = static(default=5)
    outer_step: Float[Array, ""] | float = 1.0
    mixing: str | Mixing = "metropolis"
    batches: Batches | None = None

    def validate(self) -> None:
        if isinstance(self.mixing, str):
            object.__setattr__(self, "mixing", Mixing(self.mixing))
        object.__setattr__(self, "step_size", as_schedule(self.step_size))
        _check.count("local_steps", self.local_steps)
        _check.positive("outer_step", self.outer_step)

    def check(self, problem: Problem, network: Graph) -> None:
        network.check_mixing(self.mixing)  # pyright: ignore[reportArgumentType] (once constructed)
        if self.batches is not None:
            self.batches.check(problem)

    def message_size(self, dim: int) -> int:
        """A model and the sum of a round's gradients."""
        return 2 * dim

    def init(self, problem: Problem, network: Graph) -> State:
        start = start_models(problem)
        return State(start, jnp.zeros_like(start), network.mixing(self.mixing))

    def step(self, state: State, now: Round) -> State:
        step_size, everyone = self.step_size(now.number), Participants(None, now.available)
        batch = drawn(self.batches, now, everyone, self.local_steps)

        def one(model: Array, step: Array) -> tuple[Array, None]:
            part = now.problem
            if batch is not None:
                part = taken(part, everyone.numbers, batch, step)
            return model - step_size * (part.gradient(model) + state.correction), None

        steps = jnp.arange(self.local_steps, dtype=jnp.int32)
        local, _ = jax.lax.scan(one, state.model, steps)
        total = (state.model - local) / (self.local_steps * step_size)
        model = state.model - self.outer_step * (state.model - local)
        own = jnp.concatenate([model, total], axis=1)
        said, inbox = now.link.exchange(own)
        # Corrections sum to zero whatever became of the message.
        model, mixed = jnp.split(own + inbox.mean(state.mixing) - said, 2, axis=1)
        return State(model, state.correction + mixed - total, state.mixing)
