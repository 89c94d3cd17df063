"""The largest per-sample gradient that a run has met, found without a pass over all samples each
round.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._linalg import sum_of_squares
from fljax._memory import on_cpu
from fljax.problems import Problem

__all__ = ["Seen", "unseen"]

#: Of fewer samples at each client, a pass costs little more than what it may save.
WORTH = 8

#: By how many units in the last place gradients are taken to be larger, since they are rounded.
ROUNDINGS = 256


class Seen(NamedTuple):
    r"""The largest gradients of clients' samples at the models of the last pass over them.

    The norm of a gradient of a smooth loss grows by no more than :math:`G_k\|w_k-w_k'\|`, and the
    largest norm of a run is what is asked for. So a round whose gradients cannot be larger than
    one that was met before needs no pass, and the result is the same.
    """

    model: Float[Array, "clients dim"]
    norms: Float[Array, " clients"]
    growth: Float[Array, " clients"]  # G_k

    def moved(
        self, problem: Problem, model: Float[Array, "clients dim"], met: Float[Array, ""]
    ) -> "Seen":
        """After a pass at other models, if one of their gradients may be larger than any met; on an
        accelerator, where a loop waits for the host, after a pass in any case.
        """
        if not on_cpu():
            return self._replace(model=model, norms=problem.sample_gradient_norm(model))
        numbers = jnp.finfo(met.dtype)
        lost = model.shape[1] * float(numbers.tiny)  # squares that vanish; one may be infinite
        far = jnp.sqrt(sum_of_squares(model - self.model) + lost)
        most = (1 + ROUNDINGS * float(numbers.eps)) * (self.norms + self.growth * far)

        def look(carry: tuple[Array, Seen]) -> tuple[Array, Seen]:
            due, seen = carry  # read here, so that XLA does not compute the pass before the loop
            at = jnp.where(due, model, seen.model)
            return jnp.asarray(False), seen._replace(
                model=at, norms=problem.sample_gradient_norm(at)
            )

        # A loop of no or one turn, not a condition: mapped over seeds, that would compute both.
        due = ~(jnp.max(most) <= met)  # where it is NaN, too
        _, seen = jax.lax.while_loop(lambda carry: carry[0], look, (due, self))
        return seen


def unseen(problem: Problem) -> Seen | None:
    """Before the first pass; ``None`` where every round has one: if the data are not the same in
    all rounds, or nothing bounds the growth of their gradients.
    """
    if type(problem) is not Problem or problem.samples < WORTH:
        return None
    growth = problem.gradient_growth()
    if growth is None:
        return None
    never = jnp.full(problem.clients, jnp.inf, problem.dtype)
    return Seen(jnp.zeros((problem.clients, problem.dim), problem.dtype), never, growth)
