"""Local gradient steps of clients on their own data, and the sensitivity of their result."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core.cohort_rows import rows_of
from fljax._core.devices import on_cpu, sharded_over_clients, shares
from fljax._core.gradient_counts import iteration
from fljax._core.linalg import rounding_distance
from fljax._core.module import replace
from fljax._core.split_rows import cut, in_pieces, joined
from fljax.algorithms.network_states import Training
from fljax.algorithms.round import Round
from fljax.models import Layout
from fljax.optimization.optimizers import Optimizer
from fljax.participation.selectors import Participants
from fljax.privacy import Gap
from fljax.problems import Model, Problem, Reading
from fljax.problems.batches import Batch, Batches, Counts, known_counts, taken


def check_full(scheme: Batches | None, problem: Problem) -> None:
    """Raise ``ValueError`` if a network would be normalized by batches that are not full."""
    if scheme is None:
        counts = known_counts(problem)
        full = counts is not None and bool(np.all(counts == problem.samples))
    else:
        full = scheme.is_full(problem)
    if not full:
        raise ValueError(
            "a network that is normalized by the samples of a batch needs batches of one size, and "
            "smaller ones may occur here, which would be filled up with padding; give drop_last="
            "True with batch=, another law, such as batches=fljax.batches.Uniform(size), or "
            "normalize by groups or layers."
        )
    if scheme is not None and int(np.max(getattr(scheme, "size", 2))) == 1:
        raise ValueError(
            "a network that is normalized by the samples of a batch learns nothing from one sample;"
            " take larger batches."
        )


def counts_of(steps: Array | Counts, participants: Participants) -> Int[Array, " chosen"]:
    """Return the participants' numbers of steps, from one number or one per client."""
    counts = jnp.asarray(steps, jnp.int32)
    if counts.ndim:
        return counts[participants.numbers]
    return jnp.full(participants.here.shape, counts)


def draw_batches(
    scheme: Batches | None,
    now: Round,
    participants: Participants,
    steps: int,
    draws: int | None = None,
) -> Batch | None:
    """Draw the participants' batches; without a scheme ``None``, which means all samples.

    Several ``draws`` are the first axis of the result. Each is drawn as if in a round of its own,
    so that schemes that depend on the round, such as passes in order, continue over them.
    """
    if scheme is None:
        return None
    real = participants.take(now.problem.weights) > 0
    key = now.key("batches")
    if draws is None:
        return scheme.at(now.number, steps).draw(key, real, participants.numbers, steps)

    def draw_one(draw: Array) -> Batch:
        in_round = scheme.at(draws * (now.number - 1) + draw + 1, steps)
        draw_key = jax.random.fold_in(key, draw)
        return in_round.draw(draw_key, real, participants.numbers, steps)

    return jax.lax.map(draw_one, jnp.arange(draws, dtype=jnp.int32))


def whole_model(variables: Float[Array, "chosen numbers"], context: PyTree) -> Array:
    """The model, where clients train the model itself."""
    return variables


class Learned(NamedTuple):
    """Models and statistics of participants after their local steps."""

    model: Array  # [M, D]
    memory: PyTree  # [M, ...] each: of the optimizer
    steps: Array  # [M]  that each took; a step on an empty batch is not taken
    state: PyTree = ()  # [M, ...] each: of networks, such as running means


#: The direction of a step: ``(part, model, context) -> [M, D]``, where ``part`` is the problem that
#: these clients minimize in it, or a tuple of one problem for each of several batches.
Direction = Callable[[Any, Array, PyTree], Array]


def along_gradient(part: Problem, model: Array, context: PyTree) -> Array:
    """Return the gradient of the clients' own objectives."""
    return part.gradient(model)


def attracted_to(
    start: Float[Array, " dim"] | Float[Array, "chosen dim"], strength: Array | float
) -> tuple[Direction, PyTree]:
    """Return the gradient of the clients' objectives with a proximal term to a common model or to
    one each, and the context that it takes.
    """
    is_common = start.ndim == 1

    def direction(part: Problem, model: Array, context: PyTree) -> Array:
        return part.gradient(model) + strength * (model - (start[None] if is_common else context))

    return direction, () if is_common else start


def along_losses(losses: Callable[[Reading, Array, PyTree], Array], models: int = 1) -> Direction:
    """Return the gradient of the clients' own objectives with another loss of their samples, as
    :meth:`~fljax.problems.Problem.gradient_of` has it, in rows of this number of models.
    """

    def direction(part: Problem, model: Array, context: PyTree) -> Array:
        return part.gradient_of(losses, model, context, models)

    return direction


class _StepRule(NamedTuple):
    """How a step is taken, the same for all participants."""

    direction: Direction
    optimizer: Optimizer | None  # None: steps of a size
    layouts: Sequence[Layout]
    pieces: Sequence[int]  # lengths of the parameter arrays that a model's row is split into
    longest: int  # number of steps of the client that takes the most
    equal: bool  # whether every client is known to have samples for all of these steps
    whole: Callable[[Array, PyTree], Array]  # the model of the variables and the context


class _Rows(NamedTuple):
    """What participants bring to their local steps, a row for each."""

    clients: Array | None  # [M]  their numbers; None if a step uses all samples
    batch: PyTree  # [M, steps, ...]  a Batch, a tuple of several, or None
    start: Learned
    step_sizes: PyTree  # [M]; () with an optimizer
    counts: Array  # [M]  their numbers of steps
    context: tuple[PyTree, PyTree]  # [M, ...] for all steps, and [M, steps, ...] or None
    keys: PyTree = ()  # [M]  of the round, where training is not the same as evaluation


def learn(
    problem: Problem,
    participants: Participants,
    start: Float[Array, "chosen numbers"],
    step: Array | Optimizer,
    steps: int,
    batch: Batch | tuple[Batch, ...] | None = None,
    counts: Int[Array, " chosen"] | None = None,
    *,
    direction: Direction = along_gradient,
    context: PyTree = (),
    per_step: PyTree = None,
    memory: PyTree = None,
    layouts: Sequence[Layout] | None = None,
    training: Training | None = None,
    whole: Callable[[Array, PyTree], Array] = whole_model,
) -> Learned:
    """Return the participants' models after their local steps.

    The loops are nested in this order: over the devices, over groups of clients that fit into a
    CPU's cache together, over the steps. The clients of a group are one axis of every array.

    Args:
      problem: the problem of all clients.
      participants: the clients that train.
      start: the initial models ``[M, D]``, or other variables that ``direction`` updates: fewer or
        more numbers than a model has.
      step: a step size, one number or ``[M]``, or an optimizer.
      steps: the number of steps of the client that takes the most.
      batch: the batch of each step, or a tuple of several batches of each step; all samples by
        default.
      counts: ``[M]``, each participant's number of steps; ``steps`` for all by default.
      direction: the vector whose negative is the direction of a step, the gradient by default.
      context: arrays ``[M, ...]`` of each participant that ``direction`` takes.
      per_step: arrays ``[M, steps, ...]`` that ``direction`` takes in addition, one slice per step;
        it then receives the pair of both.
      memory: arrays ``[M, ...]``, the optimizer's state; by default a newly initialized one.
      layouts: of the parameters in the variables, for an optimizer that goes by them, one for each
        of the models that the variables are joined of; by default the problem's, or, if the
        variables are not as many as a model has, that of a row.
      training: states and random keys, for a network whose training and evaluation differ.
      whole: returns the model ``[M, D]`` of the variables and the context, from which a network's
        state is updated; the variables by default.

    Raises:
      ValueError: variables that are not one model, of a network that is normalized by batches.
    """
    if layouts is None:
        dim = start.shape[-1]
        layouts = (problem.layout if dim == problem.dim else Layout.of_row(dim),)
    is_limited = counts is not None
    counts = jnp.full(len(start), steps, jnp.int32) if counts is None else counts
    optimizer = step if isinstance(step, Optimizer) else None
    if optimizer is None:
        sizes = jnp.broadcast_to(jnp.asarray(step, start.dtype), (len(start),))
        memory = ()
    else:
        sizes = ()
        memory = optimizer.init(start, layouts) if memory is None else memory
    equal = not is_limited and isinstance(problem, Model) and problem.full
    rule = _StepRule(direction, optimizer, layouts, problem.pieces, steps, equal, whole)
    before = Learned(start, memory, jnp.zeros(len(start), jnp.int32))
    rows = _Rows(None, batch, before, sizes, counts, (context, per_step))
    if training is not None:
        is_one_model = whole is not whole_model or start.shape[-1] == problem.dim
        if problem.mixes_samples and not is_one_model:
            raise ValueError(
                f"each client trains {start.shape[-1]} numbers that are not one model of "
                f"{problem.dim}, and the statistics of batch normalization are of one; normalize "
                "by groups or layers, or freeze them, state='frozen'."
            )
        rows = rows._replace(start=before._replace(state=training.state), keys=training.keys)
    if batch is None:
        all_samples = participants.of(problem)
        return _over_steps(rule, rows, lambda _: all_samples)
    rows = rows._replace(clients=participants.numbers)
    if shares(len(start)) == 1 or _group_size(problem, batch, len(start)) == len(start):
        return _over_groups(rule, problem, rows)
    return _over_devices(rule, problem, participants, rows)


def _over_devices(
    rule: _StepRule, problem: Problem, participants: Participants, rows: _Rows
) -> Learned:
    """Train on every device the participants that it holds."""
    chosen = len(participants.here)
    devices = shares(chosen)
    taken_clients = participants.clients
    part = problem.apart() if taken_clients is None else problem.take(taken_clients)
    if jnp.ndim(part.strength) == 0:  # of all participants together
        part = replace(part, strength=part.strength / devices)
    # A leaf has a row for each client if its shape depends on how many clients are taken.
    one_more = jnp.zeros(chosen + 1, jnp.int32)
    longer = jax.tree.leaves(jax.eval_shape(lambda: problem.take(one_more)))
    by_client = [np.shape(a) != b.shape for a, b in zip(jax.tree.leaves(part), longer, strict=True)]
    local = jnp.arange(chosen, dtype=jnp.int32) % (chosen // devices)
    leaves, tree = jax.tree.flatten((part, rows._replace(clients=local)))

    def on_device(*leaves: Array) -> Learned:
        return _over_groups(rule, *jax.tree.unflatten(tree, leaves))

    return sharded_over_clients(
        on_device, leaves, by_client + [True] * (len(leaves) - len(by_client))
    )


def _over_groups(rule: _StepRule, problem: Problem, rows: _Rows) -> Learned:
    """Train groups of as many clients each, one group after the other."""
    assert rows.clients is not None
    size = _group_size(problem, rows.batch, len(rows.clients))
    train = functools.partial(_on_batches, rule, problem)
    order = None
    if problem.is_uneven and on_cpu():
        # A group takes as many steps as its client with the most. Clients of very different sizes
        # are therefore sorted, the largest first, and a group becomes smaller on its way.
        order = jnp.argsort(-_extents(_takes_step(rule, problem, rows)))
        rows = jax.tree.map(lambda a: a[order], rows)
        train = functools.partial(_while_they_last, rule, problem)
    groups = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), rows)
    learned = jax.lax.map(train, groups)
    learned = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), learned)
    return learned if order is None else jax.tree.map(lambda a: a[jnp.argsort(order)], learned)


def _takes_step(rule: _StepRule, problem: Problem, rows: _Rows) -> Bool[Array, "chosen steps"]:
    """Whether a client takes a step: it does not where its batch is empty."""
    clients = rows.clients
    assert clients is not None
    takes = _has_samples(problem, rows)
    if problem.importance is not None:  # clients without samples follow their regularizer
        takes |= rows_of(problem.importance, clients)[:, None] == 0
    return takes & (jnp.arange(rule.longest, dtype=jnp.int32)[None] < rows.counts[:, None])


def _extents(takes: Bool[Array, "chosen steps"]) -> Int[Array, " chosen"]:
    """After how many steps a client has taken its last."""
    number = jnp.arange(1, takes.shape[1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(takes, number[None], 0), axis=1)


def _has_samples(problem: Problem, rows: _Rows) -> Bool[Array, "chosen steps"]:
    """Whether a client has samples in a step."""
    clients = rows.clients
    assert clients is not None
    first = rows.batch if isinstance(rows.batch, Batch) else rows.batch[0]
    weights = first.weights
    if weights is None:
        at = jnp.arange(len(clients), dtype=jnp.int32)[:, None, None], first.rows
        weights = rows_of(problem.weights, clients)
        weights = weights.at[at].get(mode="fill", fill_value=0)
    return jnp.any(weights > 0, axis=2)


def _on_batches(rule: _StepRule, problem: Problem, rows: _Rows) -> Learned:
    """Train one group, whose steps read their batches from the problem of all clients."""
    visited = None
    # A step on empty batches costs as much as any other, so that networks leave such steps out.
    # Looking for them takes four hundredths of the time of a linear prediction. Where there are
    # none, a loop of a known length spares an accelerator's host from waiting for every condition.
    if not problem.linear and (on_cpu() or not rule.equal):
        visited = jnp.any(_takes_step(rule, problem, rows), axis=0)
    return _over_steps(rule, rows, _batches_of(problem, rows), visited)


def _batches_of(problem: Problem, rows: _Rows) -> Callable[[Array], Any]:
    """The problem on the clients' batches of a step."""
    clients = rows.clients
    batch = rows.batch
    assert clients is not None

    def part_at(step: Array) -> Any:
        if isinstance(batch, Batch):
            return taken(problem, clients, batch, step)
        return tuple(taken(problem, clients, entry, step) for entry in batch)

    return part_at


def _over_steps(
    rule: _StepRule, rows: _Rows, part_at: Callable[[Array], Any], visited: Array | None = None
) -> Learned:
    """Train one group: all steps in order, or those alone that are ``visited``, ``[steps]``."""
    # A group of one client visits only steps that the client takes: there is nothing to mask.
    masked = visited is None or len(rows.start.model) > 1
    step_of_group = functools.partial(_step, rule, rows, part_at, masked)
    # Within the loop a network's model is split into its parameter arrays, not one long row.
    in_parameters = in_pieces(step_of_group, rule.pieces)
    state = cut(rows.start, rule.pieces)
    if visited is None:
        order = jnp.arange(rule.longest, dtype=jnp.int32)
        state, _ = jax.lax.scan(lambda *carry: (in_parameters(*carry), None), state, order)
    else:
        order = jnp.argsort(~visited, stable=True).astype(jnp.int32)
        many = jnp.sum(visited, dtype=jnp.int32)

        def visit(index: Array, state: Learned) -> Learned:
            return in_parameters(state, order[iteration(index, rule.longest)])

        state = jax.lax.fori_loop(0, many, visit, state)
    return joined(state)


def _while_they_last(rule: _StepRule, problem: Problem, rows: _Rows) -> Learned:
    """Train one group of clients, the one with the most steps first, each as long as it has steps.

    All are computed side by side until half of them are through, then the others until half of
    them are, and so on: at most twice as many steps as are taken.
    """
    extents = _extents(_takes_step(rule, problem, rows))
    trained = rows.start
    through = []
    before = jnp.int32(0)
    width = len(extents)
    while width:
        half = width // 2
        part = jax.tree.map(operator.itemgetter(slice(width)), rows._replace(start=trained))
        step_of_part = functools.partial(_step, rule, part, _batches_of(problem, part), True)
        in_parameters = in_pieces(step_of_part, rule.pieces)
        # Gradients are counted as of clients that all take all steps: in the first loop all of
        # them, and none in the later ones, which continue it with fewer clients.
        most = rule.longest if width == len(extents) else 0

        def take(step: Array, state: Learned, advance=in_parameters, most: int = most) -> Learned:
            return advance(state, iteration(step, most))

        trained = joined(jax.lax.fori_loop(before, extents[half], take, cut(trained, rule.pieces)))
        through.append(jax.tree.map(operator.itemgetter(slice(half, None)), trained))
        trained = jax.tree.map(operator.itemgetter(slice(half)), trained)
        before = extents[half]
        width = half
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *reversed(through))


def _step(
    rule: _StepRule,
    rows: _Rows,
    part_at: Callable[[Array], Any],
    masked: bool,
    state: Learned,
    step: Array,
) -> Learned:
    """Take one step of a group; if ``masked``, only of its clients that have samples in it."""
    context, per_step = rows.context
    if per_step is not None:
        context = context, jax.tree.map(lambda a: jnp.take(a, step, axis=1), per_step)
    part = part_at(step)
    if not isinstance(rows.keys, tuple):
        part = _in_training(part, state.state, rows.keys, step)
    first = part[0] if isinstance(part, tuple) else part
    active = jnp.any(first.weights > 0, axis=1)
    if first.importance is not None:
        # Clients of importance zero have no samples, but their share of the regularizer.
        active |= first.importance == 0
    active &= step < rows.counts
    gradient = rule.direction(part, state.model, context)
    if rule.optimizer is None:
        model = state.model - rows.step_sizes[:, None] * gradient
        memory = ()
    else:
        model, memory = rule.optimizer.move(state.model, gradient, state.memory, rule.layouts)
    network_state = state.state
    if first.mixes_samples:
        network_state = first.next_state(rule.whole(state.model, context))
    new = Learned(model, memory, state.steps + 1, network_state)
    return select_rows(active, new, state) if masked else new


def _in_training(part: Any, state: PyTree, keys: Array, step: Array) -> Any:
    """The problem on the batches of a step, or several, in training."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
    if not isinstance(part, tuple):
        return part.in_training(state, keys)
    of_batches = jax.vmap(jax.random.split, (0, None), 1)(keys, len(part))
    return tuple(batch.in_training(state, of_batches[number]) for number, batch in enumerate(part))


def select_rows(active: Bool[Array, "*rows"], new: object, old: object) -> Any:
    """Return the new rows where ``active`` is true, else the old ones; a scalar selects all."""

    def select(new: Array, old: Array) -> Array:
        return jnp.where(active.reshape(active.shape + (1,) * (new.ndim - active.ndim)), new, old)

    return jax.tree.map(select, new, old)


def _group_size(
    problem: Problem, batch: Batch | tuple[Batch, ...] | None, participants: int
) -> int:
    """Return how many participants are computed in parallel, in groups of equal size."""
    several = (batch,) if isinstance(batch, Batch) else batch or ()
    fitting = problem.together(sum(entry.rows.shape[2] for entry in several))
    return max(d for d in range(1, participants + 1) if participants % d == 0 and d <= fitting)


def descend(
    gradient: Callable[[Array], Array],
    start: Float[Array, "clients dim"],
    step_size: Array,
    steps: int,
) -> Float[Array, "clients dim"]:
    """Take ``steps`` steps of gradient descent at every client."""

    def step(_: Array, model: Array) -> Array:
        return model - step_size * gradient(model)

    return jax.lax.fori_loop(0, steps, step, start)


class LocalDescent(NamedTuple):
    """Models after several steps on all samples, and the numbers that a privacy guarantee needs."""

    model: Array  # [K, D]
    norm: Array  # [K]  largest per-sample gradients on the way
    rounding: Array  # [K]  how far apart rounding may move the models of two data sets


def descend_from(
    problem: Problem,
    start: Float[Array, "clients dim"],
    step_size: Array,
    steps: int,
    counts: Int[Array, " clients"] | None = None,
) -> LocalDescent:
    r"""Take gradient steps from a public start, as :math:`w_e=w_0-\sum_{i<e}\mu f'(w_i)`.

    Only the sum depends on private data, and it is added up separately from the start, so that its
    roundings are in proportion to the distance from the start. Added to the model one by one, a
    thousand steps of half of its last digit each would be a thousand times too long or too short,
    and two neighbors' models much farther apart than :func:`descent_gap` says. The roundings that
    remain are counted: in each step the product and the sum of its two gradients (three with the
    product in the regularizer's), and the addition to the sum. The models between steps are
    rounded, too, but this does not matter: after the first step the two trajectories may have any
    gradients.

    Args:
      problem: of the clients.
      start: ``[K, D]``, the same for neighboring data sets.
      step_size: one number, or ``[K]``.
      steps: of the client that takes the most.
      counts: ``[K]``, each client's number of steps; ``steps`` for all by default.
    """
    sizes = jnp.broadcast_to(jnp.asarray(step_size, start.dtype), (len(start),))
    counts = jnp.full(len(start), steps, jnp.int32) if counts is None else counts

    def descend_once(step: Array, before: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        moved, norm, rounding = before
        model = start - moved
        change = sizes[:, None] * problem.gradient(model)
        after = moved + change
        norm = jnp.maximum(norm, problem.sample_gradient_norm(model))
        rounding = rounding + 3 * rounding_distance(change) + rounding_distance(after)
        return select_rows(step < counts, (after, norm, rounding), before)

    zero = jnp.zeros(len(start), start.dtype)
    start_of_sum = (jnp.zeros_like(start), zero, zero)
    moved, norm, rounding = jax.lax.fori_loop(0, steps, descend_once, start_of_sum)
    model = start - moved
    return LocalDescent(model, norm, rounding)


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
    curvature, jump = problem.regularizer.growth(problem.dim)
    share = step_size * problem.share
    distance = step_size * gap.gradient
    counts = np.broadcast_to(steps, gap.gradient.shape)
    for step in range(1, counts.max()):
        further = (
            jnp.abs(1 - share * curvature) * distance + step_size * gap.anywhere + share * jump
        )
        distance = jnp.where(step < counts, further, distance)
    return distance


def sampled_problem(
    scheme: Batches | None, now: Round, participants: Participants | None = None
) -> Problem:
    """Return the problem of the participants' one step of a round: on a batch, or on all samples.

    Args:
      scheme: the distribution of the batch; all samples by default.
      now: the round.
      participants: the clients that take the step, all by default.
    """
    chosen = Participants(None, now.available) if participants is None else participants
    batch = draw_batches(scheme, now, chosen, 1)
    return chosen.of(now.problem) if batch is None else taken(now.problem, chosen.numbers, batch, 0)


def gradient_in_training(
    now: Round,
    part: Problem,
    model: Float[Array, "chosen dim"],
    of: Callable[[Problem, Array], Array] = Problem.gradient,
    participants: Participants | None = None,
) -> Float[Array, "chosen dim"]:
    """Return the participants' gradients for their one step of a round, and record the networks'
    states.

    Args:
      now: the round.
      part: the problem of the step, see :func:`sampled_problem`.
      model: where the gradients are computed.
      of: which gradient, the objective's by default.
      participants: the clients that take the step, all by default.
    """
    chosen = Participants(None, now.available) if participants is None else participants
    training = now.networks.of(chosen)
    if training is None:
        return of(part, model)
    trained: Any = _in_training(part, training.state, training.keys, jnp.int32(0))
    gradient = of(trained, model)
    state = trained.next_state(model) if part.mixes_samples else ()
    now.networks.trained(chosen, None, state)
    return gradient
