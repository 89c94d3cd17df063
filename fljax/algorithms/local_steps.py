"""Local gradient steps of clients on their own data, and the sensitivity of their result."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax._devices import at_home, shares
from fljax._linalg import rounded_off
from fljax._module import replace
from fljax._pieces import cut, in_pieces, joined
from fljax._rows import rows_of
from fljax.batches import Batch, Batches, taken
from fljax.models import Layout
from fljax.optimizers import Optimizer
from fljax.participation import Participants
from fljax.privacy import Gap
from fljax.problems import Problem, Reading
from fljax.rounds import Round

__all__ = [
    "Descent",
    "Direction",
    "Learned",
    "along_gradient",
    "along_losses",
    "counts_of",
    "descend",
    "descend_from",
    "descent_gap",
    "drawn",
    "kept",
    "learn",
    "sampled",
]


def counts_of(steps: Any, who: Participants) -> Int[Array, " chosen"]:
    """Return the participants' numbers of steps, given one number or one per client."""
    counts = jnp.asarray(steps, jnp.int32)
    return counts[who.numbers] if counts.ndim else jnp.full(who.here.shape, counts)


def drawn(
    law: Batches | None, now: Round, who: Participants, steps: int, draws: int | None = None
) -> Batch | None:
    """Draw the participants' batches; ``None`` means all samples, as without a law. With several
    ``draws``, each is drawn as for a round of its own, and the draws are the first axis.
    """
    if law is None:
        return None
    real, key = who.take(now.problem.weights) > 0, now.key("batches")
    if draws is None:
        return law.at(now.number, steps).draw(key, real, who.numbers, steps)

    def one(draw: Array) -> Batch:
        own = law.at(draws * (now.number - 1) + draw + 1, steps)
        return own.draw(jax.random.fold_in(key, draw), real, who.numbers, steps)

    return jax.lax.map(one, jnp.arange(draws, dtype=jnp.int32))


class Learned(NamedTuple):
    """Models and statistics of participants after their local steps."""

    model: Array  # [M, D]
    memory: Any  # [M, ...] each: of the optimizer
    steps: Array  # [M]  taken by each: those on batches of nothing are none


#: The direction of a step: ``(part, model, given) -> [M, D]``, where ``part`` is the problem that
#: these clients minimize in it, a tuple of them for several batches.
Direction = Callable[[Any, Array, Any], Array]


def along_gradient(part: Problem, model: Array, given: Any) -> Array:
    """Return the gradient of the clients' own objectives."""
    return part.gradient(model)


def along_losses(losses: Callable[[Reading, Array, Any], Array]) -> Direction:
    """Return the gradient of the clients' own objectives with another loss of their samples, as
    :meth:`~fljax.problems.Problem.gradient_of` has it.
    """

    def direction(part: Problem, model: Array, given: Any) -> Array:
        return part.gradient_of(losses, model, given)

    return direction


def learn(
    problem: Problem,
    who: Participants,
    start: Float[Array, "chosen numbers"],
    step: Array | Optimizer,
    steps: int,
    batch: Batch | tuple[Batch, ...] | None = None,
    counts: Int[Array, " chosen"] | None = None,
    *,
    direction: Direction = along_gradient,
    given: Any = (),
    each: Any = None,
    memory: Any = None,
    layouts: Sequence[Layout] | None = None,
) -> Learned:
    """Return the participants' models after their local steps.

    Args:
      problem: the problem of all clients.
      who: the participants.
      start: the initial models ``[M, D]``, or other variables that ``direction`` updates: fewer or
        more numbers than a model has.
      step: a step size, one number or ``[M]``, or an optimizer.
      steps: the number of steps of the client that takes the most.
      batch: the batch of each step, or a tuple of several batches of each step; all samples by
        default.
      counts: ``[M]``, each participant's number of steps; ``steps`` for all by default.
      direction: the vector whose negative is the direction of a step, the gradient by default.
      given: arrays ``[M, ...]`` of each participant that ``direction`` takes.
      each: arrays ``[M, steps, ...]`` that ``direction`` takes in addition, one slice per step; it
        then receives the pair of both.
      memory: arrays ``[M, ...]``, the optimizer's state; by default a newly initialized one.
      layouts: of the parameters in the variables, for an optimizer that goes by them, one for each
        of the models that the variables are joined of; by default the problem's, or, if the
        variables are not as many as a model has, that of a row.
    """
    if layouts is None:
        dim = start.shape[-1]
        layouts = (problem.layout if dim == problem.dim else Layout.of_row(dim),)
    counts = jnp.full(len(start), steps, jnp.int32) if counts is None else counts
    rule = step if isinstance(step, Optimizer) else None
    if rule is None:
        sizes, memory = jnp.broadcast_to(jnp.asarray(step, start.dtype), (len(start),)), ()
    else:
        sizes, memory = (), rule.init(start, layouts) if memory is None else memory
    own = Learned(start, memory, jnp.zeros(len(start), jnp.int32))

    def train(
        own: Learned,
        sizes: Any,
        counts: Array,
        given: Any,
        parts: Callable,
        some: Array | None = None,
    ) -> Learned:
        given, each = given

        def one(own: Learned, step: Array) -> Learned:
            known = given
            if each is not None:
                known = given, jax.tree.map(lambda a: jnp.take(a, step, axis=1), each)
            part = parts(step)
            first = part[0] if isinstance(part, tuple) else part
            busy = jnp.any(first.weights > 0, axis=1)
            if first.importance is not None:  # who counts for nothing has its regularizer's share
                busy |= first.importance == 0
            busy &= step < counts
            slope = direction(part, own.model, known)
            if rule is None:
                model, memory = own.model - sizes[:, None] * slope, ()
            else:
                model, memory = rule.move(own.model, slope, own.memory, layouts)
            new = Learned(model, memory, own.steps + 1)
            # Of one client only the steps that it takes are visited.
            return new if some is not None and len(own.model) == 1 else kept(busy, new, own)

        # Only at the ends of a round is a network's model one row.
        moved, own = in_pieces(one, problem.pieces), cut(own, problem.pieces)
        if some is None:
            turns = jnp.arange(steps, dtype=jnp.int32)
            own = jax.lax.scan(lambda own, turn: (moved(own, turn), None), own, turns)[0]
        else:
            order = jnp.argsort(~some, stable=True).astype(jnp.int32)
            many = jnp.sum(some, dtype=jnp.int32)
            own = jax.lax.fori_loop(0, many, lambda turn, own: moved(own, order[turn]), own)
        return joined(own)

    if batch is None:
        whole = who.of(problem)
        return train(own, sizes, counts, (given, each), lambda _: whole)

    def group(problem: Problem, known: Any) -> Learned:
        clients, batch, own, sizes, counts, given = known
        some = None
        if not problem.linear:  # a step of nothing costs a network as much as any other
            first = batch if isinstance(batch, Batch) else batch[0]
            weights = first.weights
            if weights is None:
                at = jnp.arange(len(clients), dtype=jnp.int32)[:, None, None], first.rows
                weights = rows_of(problem.weights, clients)
                weights = weights.at[at].get(mode="fill", fill_value=0)
            some = jnp.any(weights > 0, axis=(0, 2))
            some &= jnp.arange(steps, dtype=jnp.int32) < jnp.max(counts)

        def parts(step: Array) -> Any:
            if isinstance(batch, Batch):
                return taken(problem, clients, batch, step)
            return tuple(taken(problem, clients, one, step) for one in batch)

        return train(own, sizes, counts, given, parts, some)

    several = (batch,) if isinstance(batch, Batch) else batch
    size = sum(one.rows.shape[2] for one in several)

    def in_groups(problem: Problem, everyone: Any) -> Learned:
        together = _together(problem, size, len(everyone[0]))
        groups = jax.tree.map(lambda a: a.reshape(-1, together, *a.shape[1:]), everyone)
        learned = jax.lax.map(functools.partial(group, problem), groups)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), learned)

    everyone = (who.numbers, batch, own, sizes, counts, (given, each))
    if shares(len(start)) == 1 or _together(problem, size, len(start)) == len(start):
        return in_groups(problem, everyone)
    return _at_home(in_groups, problem, who, everyone[1:])


def _at_home(
    learned: Callable[[Problem, Any], Learned], problem: Problem, who: Participants, others: Any
) -> Learned:
    """``learned(problem, (numbers, *others))``, by each device of its own participants."""
    chosen = len(who.here)
    devices = shares(chosen)
    part = problem.apart() if who.clients is None else problem.take(who.clients)
    if jnp.ndim(part.strength) == 0:  # of all participants together
        part = replace(part, strength=part.strength / devices)
    one_more = jnp.zeros(chosen + 1, jnp.int32)
    longer = jax.tree.leaves(jax.eval_shape(lambda: problem.take(one_more)))
    own = [np.shape(a) != b.shape for a, b in zip(jax.tree.leaves(part), longer, strict=True)]
    local = jnp.arange(chosen, dtype=jnp.int32) % (chosen // devices)
    leaves, tree = jax.tree.flatten((part, (local, *others)))

    def one(*leaves: Array) -> Learned:
        return learned(*jax.tree.unflatten(tree, leaves))

    return at_home(one, leaves, own + [True] * (len(leaves) - len(own)))


def kept(those: Bool[Array, "*some"], new: Any, old: Any) -> Any:
    """Return the new rows where ``those`` is true, else the old ones; a scalar selects all."""

    def one(new: Array, old: Array) -> Array:
        return jnp.where(those.reshape(those.shape + (1,) * (new.ndim - those.ndim)), new, old)

    return jax.tree.map(one, new, old)


def _together(problem: Problem, batch: int, participants: int) -> int:
    """Return how many participants are computed in parallel, in groups of equal size."""
    fitting = problem.together(batch)
    return max(d for d in range(1, participants + 1) if participants % d == 0 and d <= fitting)


def descend(
    gradient: Callable[[Array], Array],
    start: Float[Array, "clients dim"],
    step_size: Array,
    steps: int,
) -> Float[Array, "clients dim"]:
    """Take ``steps`` steps of gradient descent at every client."""

    def one(_: Array, model: Array) -> Array:
        return model - step_size * gradient(model)

    return jax.lax.fori_loop(0, steps, one, start)


class Descent(NamedTuple):
    """Models after several steps on all samples, and what a privacy guarantee asks of them."""

    model: Array  # [K, D]
    norm: Array  # [K]  largest per-sample gradients on the way
    rounding: Array  # [K]  how far apart rounding may move the models of two data sets


def descend_from(
    problem: Problem,
    start: Float[Array, "clients dim"],
    step_size: Array,
    steps: int,
    counts: Int[Array, " clients"] | None = None,
) -> Descent:
    r"""Take gradient steps from a public start, as :math:`w_e=w_0-\sum_{i<e}\mu f'(w_i)`.

    The sum is what depends on private data, and it is added up by itself: its roundings are in
    proportion to the distance from the start. Added to the model one by one, a thousand steps of
    half of its last digit each would be a thousand times too long or too short, and two neighbors'
    models much farther apart than :func:`descent_gap` says. The roundings that remain are counted:
    of each step its product and the sum of its two gradients (three with that of the product in
    the regularizer's), and that of the sum. That models on the way are rounded, too, does not
    matter: after the first step the two trajectories may have any gradients.

    Args:
      problem: of the clients.
      start: ``[K, D]``, the same for neighboring data sets.
      step_size: one number, or ``[K]``.
      steps: of the client that takes the most.
      counts: ``[K]``, each client's number of steps; ``steps`` for all by default.
    """
    sizes = jnp.broadcast_to(jnp.asarray(step_size, start.dtype), (len(start),))
    counts = jnp.full(len(start), steps, jnp.int32) if counts is None else counts

    def one(step: Array, before: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        moved, norm, rounding = before
        model = start - moved
        change = sizes[:, None] * problem.gradient(model)
        after = moved + change
        norm = jnp.maximum(norm, problem.sample_gradient_norm(model))
        rounding = rounding + 3 * rounded_off(change) + rounded_off(after)
        return kept(step < counts, (after, norm, rounding), before)

    none = jnp.zeros(len(start), start.dtype)
    moved, norm, rounding = jax.lax.fori_loop(0, steps, one, (jnp.zeros_like(start), none, none))
    model = start - moved
    return Descent(model, norm, rounding)


def descent_gap(
    problem: Problem, step_size: Array, steps: int | tuple[int, ...], gap: Gap
) -> Float[Array, " clients"]:
    r"""Return the sensitivity of a client's model after several gradient steps.

    It is :math:`\Delta_1=\mu g` for one step, with :math:`g` the sensitivity of the gradient at a
    given model, and :math:`\Delta_E` below for :math:`E` steps. Only the first step starts from a
    public point. After it the two trajectories may have any gradients, which differ by at most
    :math:`G`, and the regularizer acts on models that already differ: with :math:`R'(w)=aw+s(w)`,
    the values of :math:`s` differing by at most :math:`b`,
    :math:`\Delta_{e+1}=|1-\mu\tfrac\lambda Ka|\Delta_e+\mu G+\mu\tfrac\lambda Kb`. The step size
    and the number of steps may be different for each client.
    """
    slope, jump = problem.regularizer.growth(problem.dim)
    share = step_size * problem.share
    distance, counts = step_size * gap.gradient, np.broadcast_to(steps, gap.gradient.shape)
    for step in range(1, counts.max()):
        further = jnp.abs(1 - share * slope) * distance + step_size * gap.anywhere + share * jump
        distance = jnp.where(step < counts, further, distance)
    return distance


def sampled(law: Batches | None, now: Round) -> Problem:
    """Return the problem of the clients' one step of a round: on a batch, or on all samples."""
    everyone = Participants(None, now.available)
    batch = drawn(law, now, everyone, 1)
    return now.problem if batch is None else taken(now.problem, everyone.numbers, batch, 0)
