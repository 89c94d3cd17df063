r"""Batches: the samples that a client uses in a step, all of them or a random batch.

A batch law draws the batches of all steps of a round together; algorithms with local steps take it
as an argument (``batches=``). The mean over a batch is an unbiased estimate of the mean over all
samples under every law: samples drawn with unequal probabilities are weighted by the inverse.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.module import as_given, field, module, replace, static
from fljax._core.random_subsets import distinct, on_line, shuffled, shuffled_by_count
from fljax.problems import Problem
from fljax.problems.streams import Stream

__all__ = [
    "Batch",
    "Batches",
    "CyclicBatches",
    "Shuffled",
    "Uniform",
    "Weighted",
    "per_client",
    "taken",
]


#: Batches whose squared size exceeds this many times the number of samples are drawn by sorting
#: random numbers: on a CPU drawing one after the other is faster for up to 30 to 40 of a hundred.
SORTED_BEYOND = 8

#: Which rows of the clients' data are samples; the clients that draw, by their numbers.
SampleMask = Bool[Array, "chosen samples"]
Chosen = Int[Array, " chosen"]


class Batch(NamedTuple):
    """Samples of some clients for each step; an index past the last sample stands for no sample."""

    rows: Int[Array, "chosen steps batch"]
    #: weights of the samples' gradients in their sum; None: their mean
    weights: Float[Array, "chosen steps batch"] | None = None


class Batches:
    """The law by which batches are drawn; subclass it to define your own.

    Example:
      The first ``size`` samples of each client in every step:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class First(fl.batches.Batches):
      ...     size: int = fl.static()
      ...     def draw(self, key, real, clients, steps):
      ...         shape = (len(clients), steps, self.size)
      ...         return fl.batches.Batch(jnp.broadcast_to(jnp.arange(self.size), shape))
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=9, dim=2)
      >>> algorithm = fl.algorithms.FedAvg(0.1, local_steps=2, batches=First(4))
      >>> run = fl.run(fl.Simulation(problem, algorithm, metrics=["objective"]), rounds=20)
      >>> bool(run.objective[-1] < run.objective[0])
      True
    """

    def check(self, problem: Problem | Stream) -> None:
        """Raise ``ValueError`` where a batch cannot be drawn of these clients' samples."""

    def is_full(self, problem: Problem) -> bool:
        """Return whether all batches, but for empty ones, are known to have the same size, as a
        network needs that is normalized by the samples of a batch.
        """
        return False

    def at(self, round: Array | int, steps: int) -> "Batches":
        """Return the law of this round of ``steps`` steps: itself, where rounds do not differ."""
        return self

    @checks.required
    def draw(self, key: Array, real: SampleMask, clients: Chosen, steps: int) -> Batch:
        """Return the batches of some clients for ``steps`` steps.

        Args:
          key: consumed.
          real: ``[M, N]``, which samples exist; they come before padding.
          clients: ``[M]``, the client of each row.
          steps: number of steps of a client.
        """
        raise NotImplementedError


#: Batch sizes, which are static: one number, or one per client.
Counts = int | tuple[int, ...]


def per_client(name: str, argument: object) -> Counts:
    """Return a count, or a tuple of one per client: sizes are static.

    Raises:
      ValueError: numbers that are not counts.

    Example:
      >>> import fljax as fl
      >>> fl.batches.per_client("size", 4), fl.batches.per_client("size", [4, 8])
      (4, (4, 8))
    """
    value = checks.plain(argument)
    array = isinstance(value, np.ndarray | jax.Array) and value.ndim and checks.is_concrete(value)
    if isinstance(value, str) or not (array or isinstance(value, Sequence)):
        checks.count(name, value)
        return int(value)
    counts = np.asarray(checks.filled(name, checks.as_integers(value), axes=1))
    if not np.issubdtype(counts.dtype, np.integer) or np.any(counts < 1):
        raise ValueError(f"{name} must be whole numbers >= 1, got {checks.shown(value)}.")
    return tuple(counts.tolist())


def check_per_client(name: str, value: object, clients: int) -> None:
    """Raise ``ValueError`` unless it is one number or one per client."""
    if isinstance(value, tuple) and len(value) != clients:
        raise ValueError(
            f"{name} must be one number or one for each of the {clients} clients, got {len(value)}."
        )


def known_counts(problem: Problem) -> np.ndarray | None:
    """Return each client's number of samples, of those that have some; ``None`` where it is not
    known before the run.
    """
    if problem.on_disk:
        counts = np.asarray(problem.population.sizes)  # pyright: ignore[reportAttributeAccessIssue]
    elif checks.is_concrete(problem.weights):
        counts = np.sum(np.asarray(problem.weights) > 0, axis=1)
    else:
        return None
    return counts[counts > 0]


def taken(problem: Problem, clients: Array, batch: Batch, step: object) -> Problem:
    """Return the problem on the batches of one step of these clients.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=9, dim=2)
      >>> clients, real = jnp.arange(2), problem.weights[:2] > 0
      >>> batch = fl.batches.Uniform(4).draw(jax.random.key(1), real, clients, steps=5)
      >>> fl.batches.taken(problem, clients, batch, 0).features.shape  # of the first step
      (2, 4, 2)
    """
    part = problem.take(clients, batch.rows[:, step])
    if batch.weights is None:
        return part
    weights = batch.weights[:, step]
    if part.importance is not None:  # a batch's weights are of a client's mean
        weights = weights * part.importance[:, None]
    return replace(part, weights=weights)


@module
class Shuffled(Batches):
    """Epochs: in each, all samples in a new random order are split into batches.

    A client's last batch of an epoch is smaller where ``size`` does not divide its number of
    samples. Its epochs follow one another without a pause: a client with fewer samples than another
    has empty batches in its last steps.

    Args:
      size: samples in a batch, >= 1.
      drop_last: whether the smaller last batch of an epoch is left out; a client with fewer samples
        than a batch then takes no step.

    Raises:
      ValueError: a batch larger than every client.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> real = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)  # five samples, and three
      >>> law = fl.batches.Shuffled(2)
      >>> rows = law.draw(jax.random.key(0), real, jnp.arange(2), steps=3).rows
      >>> (rows < jnp.array([[[5]], [[3]]], rows.dtype)).sum(axis=-1).tolist()  # sizes of batches
      [[2, 2, 1], [2, 1, 0]]
    """

    size: int = static()
    drop_last: bool = static(default=False)

    def validate(self) -> None:
        checks.count("size", self.size)

    def check(self, problem: Problem | Stream) -> None:
        check_size(self.size, problem)

    def steps(self, samples: int) -> int:
        """Return the number of steps of an epoch over a number of samples."""
        return max(samples // self.size, 1) if self.drop_last else -(-samples // self.size)

    def is_full(self, problem: Problem) -> bool:
        counts = known_counts(problem)
        return self.drop_last or (counts is not None and not np.any(counts % self.size))

    def draw(self, key: Array, real: SampleMask, clients: Chosen, steps: int) -> Batch:
        chosen, samples = real.shape
        epochs = -(-steps // self.steps(samples))
        of_epochs = jnp.broadcast_to(real[:, None], (chosen, epochs, samples))
        order = shuffled_by_count(key, of_epochs)
        missing = -samples % self.size
        order = jnp.pad(order, ((0, 0), (0, 0), (0, missing)), constant_values=samples)
        batches = order.reshape(chosen, epochs, -1, self.size)
        counts = jnp.sum(real, axis=1, dtype=jnp.int32)
        if self.drop_last:
            number = jnp.arange(batches.shape[2], dtype=jnp.int32)[None]
            is_whole = number < (counts // self.size)[:, None]
            batches = jnp.where(is_whole[:, None, :, None], batches, samples)
        if epochs == 1:
            return Batch(batches[:, 0, :steps])
        counts = counts // self.size * self.size if self.drop_last else counts
        in_epoch = jnp.maximum(-(-counts // self.size), 1)[:, None]
        client = jnp.arange(chosen, dtype=jnp.int32)[:, None]
        step = jnp.arange(steps, dtype=jnp.int32)[None]
        at = client, step // in_epoch, step % in_epoch
        return Batch(batches.at[at].get(mode="fill", fill_value=samples))


@module
class CyclicBatches(Batches):
    """Consecutive batches in the order of the samples, cyclically.

    Every client's position advances by the steps of a round, whether the client takes part or not.

    Args:
      size: samples in a batch, >= 1; a client with fewer samples uses all of them.
      whole: where ``size`` does not divide a client's number of samples, whether its last batch
        continues with the first samples, so that all batches have the same size; otherwise it is
        smaller, and every pass begins with the first sample.

    Raises:
      ValueError: a batch larger than every client.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> real = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)  # five, and three
      >>> law = CyclicBatches(2).at(2, steps=2)  # in round 2, after the two steps of round 1
      >>> law.draw(jax.random.key(0), real, jnp.arange(2), steps=2).rows.tolist()
      [[[4, 0], [1, 2]], [[1, 2], [0, 1]]]
      >>> law = CyclicBatches(2, whole=False).at(2, steps=2)  # past the last sample, 5 is none
      >>> law.draw(jax.random.key(0), real, jnp.arange(2), steps=2).rows.tolist()
      [[[4, 5], [0, 1]], [[0, 1], [2, 5]]]
    """

    size: int = static()
    whole: bool = static(default=True)

    def validate(self) -> None:
        checks.count("size", self.size)

    def check(self, problem: Problem | Stream) -> None:
        check_size(self.size, problem)

    def at(self, round: Array | int, steps: int) -> "Batches":
        return _Cycle(self.size, self.whole, (jnp.asarray(round, jnp.int32) - 1) * steps)

    def is_full(self, problem: Problem) -> bool:
        counts = known_counts(problem)
        if counts is None:
            return False
        return bool(np.all(counts >= self.size if self.whole else counts % self.size == 0))

    def draw(self, key: Array, real: SampleMask, clients: Chosen, steps: int) -> Batch:
        return self.at(1, steps).draw(key, real, clients, steps)


class _Cycle(Batches):
    """Cyclic batches after a given number of steps; made and used within a round.

    With ``wraps`` every batch is full: it continues with the first sample after the last one.
    """

    def __init__(self, size: int, wraps: bool, before: Int[Array, ""]) -> None:
        self.size = size
        self.wraps = wraps
        self.before = before

    def draw(self, key: Array, real: SampleMask, clients: Chosen, steps: int) -> Batch:
        counts = jnp.sum(real, axis=1, dtype=jnp.int32)[:, None, None]
        step = self.before + jnp.arange(steps, dtype=jnp.int32)
        position = jnp.arange(self.size, dtype=jnp.int32)[None, None]
        if self.wraps:
            rows = (step[None, :, None] * self.size + position) % jnp.maximum(counts, 1)
            return Batch(jnp.where(position < counts, rows, real.shape[1]))
        passes = jnp.maximum(-(-counts // self.size), 1)
        rows = step[None, :, None] % passes * self.size + position
        return Batch(jnp.where(rows < counts, rows, real.shape[1]))


@module
class Uniform(Batches):
    r"""A new batch of :math:`B_k` samples of each client in every step, with equal probabilities.

    Args:
      size: :math:`B_k`, one number or one per client. Without replacement a client with fewer
        samples takes all of them.
      replacement: whether a sample may be drawn twice.

    Raises:
      ValueError: a batch larger than every client, where no sample is drawn twice.

    Reference:
      Rizk 2023, (1.12)-(1.13).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> real = jnp.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], bool)  # six, and three
      >>> law = Uniform((2, 1))
      >>> batch = law.draw(jax.random.key(0), real, jnp.arange(2), steps=4)
      >>> (batch.rows < 6).sum(-1).tolist()
      [[2, 2, 2, 2], [1, 1, 1, 1]]
    """

    size: Annotated[Counts, "converted by validate"] = field(converter=as_given, static=True)
    replacement: bool = static(default=False)

    def validate(self) -> None:
        object.__setattr__(self, "size", per_client("size", self.size))

    def check(self, problem: Problem | Stream) -> None:
        check_per_client("size", self.size, problem.clients)
        if not self.replacement:
            check_size(int(np.min(self.size)), problem)

    def is_full(self, problem: Problem) -> bool:
        if isinstance(self.size, tuple) and len(set(self.size)) > 1:
            return False
        counts = known_counts(problem)
        return self.replacement or (counts is not None and bool(np.all(counts >= self.size)))

    def draw(self, key: Array, real: SampleMask, clients: Chosen, steps: int) -> Batch:
        chosen, samples = real.shape
        most = int(np.max(self.size))
        counts = jnp.sum(real, axis=1, dtype=jnp.int32)
        if self.replacement:
            shape = chosen, steps, most
            rows = jax.random.randint(key, shape, 0, counts[:, None, None], jnp.int32)
        elif most**2 <= SORTED_BEYOND * samples:
            sizes = jnp.minimum(sizes_of(self.size, clients), counts)
            return Batch(distinct(key, counts, sizes, (chosen, steps, most), samples))
        else:
            most = min(most, samples)
            everyone = jnp.broadcast_to(real[:, None], (chosen, steps, samples))
            rows = shuffled(key, everyone, most)
        return Batch(_first_drawn(rows, self.size, clients, samples))


@module
class Weighted(Batches):
    r"""A new batch of :math:`B_k` samples of each client in every step, drawn without replacement
    with the inclusion probability :math:`B_kp_n^{(k)}` of sample ``n`` (Hartley and Rao 1962).

    Its gradient is weighted by :math:`1/(B_kN_kp_n^{(k)})`, so that the sum is an unbiased estimate
    of the mean over all samples. Where :math:`B_kp_n^{(k)}>1` a sample may be drawn several times,
    and is counted each time.

    Args:
      size: :math:`B_k`, one number or one per client.
      probability: :math:`p_n^{(k)}`, ``[K, N]``, positive on samples, with sum one for each client
        that has samples.

    Raises:
      ValueError: probabilities of another shape, that do not sum to one, or are not positive where
        there is a sample.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> real = jnp.ones((1, 4), bool)
      >>> law = fl.batches.Weighted(2, [[0.5, 0.25, 0.125, 0.125]])
      >>> batch = law.draw(jax.random.key(0), real, jnp.arange(1), steps=3)
      >>> (batch.rows == 0).any(axis=-1).tolist()  # 2 * 0.5 = 1: in every batch
      [[True, True, True]]

    Reference:
      Rizk 2023, (1.15) and (2.55).
    """

    size: Annotated[Counts, "converted by validate"] = field(converter=as_given, static=True)
    probability: Annotated[Array, "clients samples"] = field(converter=as_given)

    def validate(self) -> None:
        object.__setattr__(self, "size", per_client("size", self.size))
        value = checks.filled("probability", self.probability, axes=2)
        object.__setattr__(self, "probability", jnp.asarray(value))
        checks.interval("probability", self.probability, at_least=0, at_most=1 + 1e-6)
        checks.check_when_concrete(self._check_sums, self.probability)

    @staticmethod
    def _check_sums(probability: object) -> None:
        totals = np.sum(np.asarray(probability), axis=1)
        away = np.where(totals == 0, 0, np.abs(totals - 1))  # zero: a client without samples
        if np.any(away > 1e-4):
            worst = int(np.argmax(away))
            raise ValueError(
                f"probability must sum to one over each client's samples, got {totals[worst]:g} of "
                f"client {worst}; divide each row by its sum."
            )

    def check(self, problem: Problem | Stream) -> None:
        check_per_client("size", self.size, problem.clients)
        shape = (problem.clients, problem.samples)
        if np.shape(self.probability) != shape:
            raise ValueError(
                f"probability must have one number for each sample, shape {shape}, got shape "
                f"{np.shape(self.probability)}."
            )
        if not isinstance(problem, Problem):
            return

        def check_weights(probability: object, weights: object) -> None:
            if np.any((np.asarray(weights) > 0) != (np.asarray(probability) > 0)):
                raise ValueError(
                    "probability must be positive where there is a sample, and zero on padding: a "
                    "sample that is never drawn leaves the mean biased."
                )

        checks.check_when_concrete(check_weights, self.probability, problem.weights)

    def is_full(self, problem: Problem) -> bool:
        return not isinstance(self.size, tuple) or len(set(self.size)) == 1

    def draw(self, key: Array, real: SampleMask, clients: Chosen, steps: int) -> Batch:
        return weighted(key, self.probability[clients], self.size, clients, real, steps)


def weighted(
    key: Array,
    probability: Float[Array, "chosen samples"],
    size: Counts,
    clients: Int[Array, " chosen"],
    real: Bool[Array, "chosen samples"],
    steps: int,
) -> Batch:
    """Draw batches with these probabilities, and weights that make their sums unbiased.

    A client's samples are put in random order once for all steps, and each step has a starting
    point of its own: its mean is unbiased for every order, so the means of two steps are
    uncorrelated.
    """
    return ordered(in_order(key, real, steps, probability.dtype), probability, size, clients, real)


class Order(NamedTuple):
    """The random numbers that batches are drawn from, for any probabilities."""

    samples: Int[Array, "chosen samples"]  # of each client in line
    starts: Float[Array, "chosen steps"]


def in_order(
    key: Array, real: Bool[Array, "chosen samples"], steps: int, dtype: DTypeLike
) -> Order:
    """Return the random numbers that some clients' batches are drawn from."""
    order, start = jax.random.split(key)
    starts = jax.random.uniform(start, (len(real), steps), dtype)
    return Order(shuffled(order, jnp.ones_like(real)), starts)


def ordered(
    order: Order,
    probability: Float[Array, "chosen samples"],
    size: Counts,
    clients: Int[Array, " chosen"],
    real: Bool[Array, "chosen samples"],
) -> Batch:
    """Return the batches of :func:`weighted`, given its random numbers."""
    samples = probability.shape[1]
    most = int(np.max(size))
    sizes = sizes_of(size, clients)
    on_lines = jax.vmap(partial(on_line, most=most))
    rows = on_lines(*order, probability, sizes)
    chance = jnp.take_along_axis(probability[:, None], rows, axis=2)
    counts = jnp.maximum(jnp.sum(real, axis=1, dtype=probability.dtype), 1)
    drawn = jnp.arange(most, dtype=jnp.int32)[None, None] < sizes[:, None, None]
    drawn &= chance > 0  # of a client without samples there is nothing to draw
    share = 1 / (sizes.astype(probability.dtype) * counts)[:, None, None]
    weights = jnp.where(drawn, share / jnp.where(drawn, chance, 1), 0)
    return Batch(jnp.where(drawn, rows, samples), weights)


def check_size(size: int, problem: Problem | Stream) -> None:
    """Raise ``ValueError`` for a batch that no client could fill."""
    if size > problem.samples:
        raise ValueError(
            f"batch must be at most the {problem.samples} samples of the largest client, got "
            f"{size}; leave it out for full batches."
        )


def _first_drawn(rows: Array, size: Counts, clients: Array, samples: int) -> Array:
    """Each client's first ``size`` drawn samples; the rest are padding."""
    if np.ndim(size) == 0:
        return rows
    rank = jnp.arange(rows.shape[2], dtype=jnp.int32)[None, None]
    return jnp.where(rank < sizes_of(size, clients)[:, None, None], rows, samples)


def sizes_of(size: Counts, clients: Int[Array, " chosen"]) -> Int[Array, " chosen"]:
    """Return the batch sizes of some clients, from one number or one per client."""
    sizes = jnp.asarray(size, jnp.int32)
    return sizes[clients] if sizes.ndim else jnp.full(len(clients), sizes)
