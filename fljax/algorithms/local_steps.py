"""Gradient steps of a client on its own data, and how far neighbouring data can move them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax.batches import Batch, Batches, taken
from fljax.participation import Participants
from fljax.privacy import Gap
from fljax.problems import Problem
from fljax.rounds import Round

__all__ = ["counts_of", "descend", "descent_gap", "drawn", "learn", "sampled"]

#: Working set of the participants that descend side by side on a CPU: beyond it, one group after
#: the other was a seventh faster.
CACHE_BYTES = 2**19


def counts_of(steps: Any, who: Participants) -> Int[Array, " chosen"]:
    """The participants' numbers of steps, of one number or one of each client."""
    counts = jnp.asarray(steps, jnp.int32)
    return counts[who.numbers] if counts.ndim else jnp.full(who.here.shape, counts)


def drawn(law: Batches | None, now: Round, who: Participants, steps: int) -> Batch | None:
    """The participants' batches; ``None``: all samples, as without a law."""
    if law is None:
        return None
    real = who.take(jnp.asarray(now.problem.weights)) > 0
    return law.at(now.number, steps).draw(now.key("batches"), real, who.numbers, steps)


def learn(
    problem: Problem,
    who: Participants,
    start: Float[Array, "chosen dim"],
    step_size: Array,
    steps: int,
    batch: Batch | None = None,
    counts: Int[Array, " chosen"] | None = None,
) -> tuple[Float[Array, "chosen dim"], Float[Array, " chosen"]]:
    """The participants' models after their local steps, and the largest gradients that they met.

    Args:
      problem: of all clients.
      who: takes part.
      start: ``[M, D]``.
      step_size: one number, or ``[M]``.
      steps: of the client that takes most.
      batch: what each step is on; all samples by default.
      counts: ``[M]``, steps of each; by default all take all.
    """
    counts = jnp.full(len(start), steps, jnp.int32) if counts is None else counts

    def train(
        start: Array, size: Array, counts: Array, parts: Callable[[Any], Problem]
    ) -> tuple[Array, Array]:
        def one(carry: tuple[Array, Array], step: Array) -> tuple[Any, None]:
            (model, norm), part = carry, parts(step)
            busy = (step < counts) & jnp.any(part.weights > 0, axis=1)
            new = model - size[:, None] * part.gradient(model)
            norm = jnp.where(busy, jnp.maximum(norm, part.sample_gradient_norm(model)), norm)
            return (jnp.where(busy[:, None], new, model), norm), None

        carry = (start, jnp.zeros(len(start), start.dtype))
        return jax.lax.scan(one, carry, jnp.arange(steps, dtype=jnp.int32))[0]

    sizes = jnp.broadcast_to(step_size, (len(start),))
    if batch is None:
        whole = who.of(problem)
        return train(start, sizes, counts, lambda _: whole)

    def group(given: Any) -> tuple[Array, Array]:
        clients, start, size, counts, batch = given
        return train(start, size, counts, lambda step: taken(problem, clients, batch, step))

    together = _together(problem, batch.rows.shape[2], len(start))
    everyone = (who.numbers, start, sizes, counts, batch)
    groups = jax.tree.map(lambda a: a.reshape(-1, together, *a.shape[1:]), everyone)
    model, norm = jax.lax.map(group, groups)
    return model.reshape(start.shape), norm.reshape(-1)


def _together(problem: Problem, batch: int, participants: int) -> int:
    """How many participants go side by side: on a CPU as many as stay in the cache, else all."""
    if jax.default_backend() != "cpu":
        return participants
    numbers = batch * problem.features.shape[2] + 3 * problem.dim  # samples, model and gradient
    fitting = CACHE_BYTES // (numbers * problem.dtype.itemsize)
    return max(
        d for d in range(1, participants + 1) if participants % d == 0 and d <= max(1, fitting)
    )


def descend(
    gradient: Callable[[Array], Array],
    start: Float[Array, "clients dim"],
    step_size: Array,
    steps: int,
) -> Float[Array, "clients dim"]:
    """So many steps of gradient descent at every client."""

    def one(_: Array, model: Array) -> Array:
        return model - step_size * gradient(model)

    return jax.lax.fori_loop(0, steps, one, start)


def descent_gap(
    problem: Problem, step_size: Array, steps: int | tuple[int, ...], gap: Gap
) -> Float[Array, " clients"]:
    r"""How far apart neighbouring data take a client's model in some gradient steps.

    :math:`\Delta_1=\mu g` for one step, with :math:`g` the gap of gradients at one model;
    :math:`\Delta_E` below for :math:`E` of them. Only the first step starts from a public point.
    After it two trajectories may meet any gradients, :math:`G` apart at most, and the regulariser
    acts on models that already differ: with :math:`R'(w)=aw+s(w)`, the values of :math:`s` at most
    :math:`b` apart,
    :math:`\Delta_{e+1}=|1-\mu\tfrac\lambda Ka|\Delta_e+\mu G+\mu\tfrac\lambda Kb`. Step size
    and number of steps may be of each client.
    """
    slope, jump = problem.regulariser.growth(problem.dim)
    share = step_size * problem.share
    apart, counts = step_size * gap.gradient, np.broadcast_to(steps, gap.gradient.shape)
    for step in range(1, counts.max()):
        further = jnp.abs(1 - share * slope) * apart + step_size * gap.anywhere + share * jump
        apart = jnp.where(step < counts, further, apart)
    return apart


def sampled(law: Batches | None, now: Round) -> Problem:
    """What clients take their one step of a round on: batches, or all of their samples."""
    everyone = Participants(None, now.available)
    batch = drawn(law, now, everyone, 1)
    return now.problem if batch is None else taken(now.problem, everyone.numbers, batch, 0)
