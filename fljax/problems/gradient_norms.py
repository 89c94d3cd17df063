"""The largest per-sample gradient norm of a run, without a pass over all samples each round."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core.devices import on_cpu
from fljax._core.linalg import sum_of_squares
from fljax.problems import Problem

#: With fewer samples at each client, a pass costs about as much as the bound that may avoid it.
MIN_SAMPLES = 8

#: Allowance for rounding errors of gradients, in units in the last place.
ROUNDINGS = 256


class GradientNormBound(NamedTuple):
    r"""The largest gradients of clients' samples at the models of the last pass over them.

    The norm of a gradient of a smooth loss grows by no more than :math:`G_k\|w_k-w_k'\|`, and only
    the largest norm of a run is needed. So a round whose gradients cannot be larger than the
    largest one so far needs no pass, and the result is the same.
    """

    model: Float[Array, "clients dim"]
    norms: Float[Array, " clients"]
    growth: Float[Array, " clients"]  # G_k

    def moved(
        self, problem: Problem, model: Float[Array, "clients dim"], largest: Float[Array, ""]
    ) -> "GradientNormBound":
        """The bound after a pass at other models, if one of their gradients may be larger than the
        largest so far; on an accelerator, where a loop waits for the host, after a pass in any
        case.
        """
        if not on_cpu():
            return self._replace(model=model, norms=problem.sample_gradient_norm(model))
        numbers = jnp.finfo(largest.dtype)
        lost = model.shape[1] * float(numbers.tiny)  # squares that vanish; one may be infinite
        distance = jnp.sqrt(sum_of_squares(model - self.model) + lost)
        bound = (1 + ROUNDINGS * float(numbers.eps)) * (self.norms + self.growth * distance)

        def pass_over_samples(
            carry: tuple[Array, GradientNormBound],
        ) -> tuple[Array, GradientNormBound]:
            # Models come from the carry, so that XLA cannot hoist the pass out of the loop.
            due, norms = carry
            at_model = jnp.where(due, model, norms.model)
            return jnp.asarray(False), norms._replace(
                model=at_model, norms=problem.sample_gradient_norm(at_model)
            )

        # A loop of zero or one iteration instead of a condition, which under `vmap` over seeds
        # would compute both branches.
        due = ~(jnp.max(bound) <= largest)  # where it is NaN, too
        _, final = jax.lax.while_loop(lambda carry: carry[0], pass_over_samples, (due, self))
        return final


def initial_bound(problem: Problem) -> GradientNormBound | None:
    """The bound before the first pass; ``None`` where every round needs a pass: if the data change
    between rounds, or nothing bounds the growth of their gradients.
    """
    if type(problem) is not Problem or problem.samples < MIN_SAMPLES:
        return None
    growth = problem.gradient_growth()
    if growth is None:
        return None
    unbounded = jnp.full(problem.clients, jnp.inf, problem.dtype)
    return GradientNormBound(
        jnp.zeros((problem.clients, problem.dim), problem.dtype), unbounded, growth
    )
