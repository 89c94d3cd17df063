"""Samples that are stored once, as a pool, of which every client has some rows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import float_dtype
from fljax._core.prng import as_key
from fljax.partitions.partitioner import Partition, Partitioner, positions_in_blocks
from fljax.partitions.shifts import OwnedSamples, Shift
from fljax.problems.objectives import Softmax

#: Samples that are read from a pool at a time: more of them are copied in one piece, fewer fit a
#: CPU's cache.
GROUP_BYTES = 2**21

#: Clients of a pool count as equally large while padding them adds at most this share of samples.
EVEN = 1.1

#: Sizes of a tile: a tile of a client's last samples is partly empty, so that ``K`` tiles add up
#: to half of their size each; a very small one is computed slowly.
SMALLEST_TILE = 8
LARGEST_TILE = 512


@jax.tree_util.register_pytree_node_class
class PooledRows:
    """An array ``[K, N, ...]`` whose entries are rows of a pool ``[R, ...]``.

    Clients, seeds and points of a grid share the pool; each has indices of its own, a few bytes a
    sample. Indexing by clients and samples reads the pool; any other use makes the whole array,
    padding included.

    Args:
      pool: ``[R, ...]``.
      rows: ``[K, N]``, indices; padding has the index of any row.
      tile: number of samples of a tile (:func:`tiles_of`), the same for all clients and for some of
        them, since roundings depend on it.
      disjoint: whether no row is at two clients, which bounds the number of tiles by the pool.
    """

    def __init__(self, pool: Any, rows: Any, tile: int, disjoint: bool = True) -> None:
        self.pool = pool
        self.rows = rows
        self.tile = tile
        self.disjoint = disjoint

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[int, bool]]:
        return (self.pool, self.rows), (self.tile, self.disjoint)

    @classmethod
    def tree_unflatten(cls, static: tuple[int, bool], leaves: tuple[Any, Any]) -> "PooledRows":
        return cls(*leaves, *static)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.rows.shape, *self.pool.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def dtype(self) -> Any:
        return self.pool.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: Any) -> Array:
        axes = at if isinstance(at, tuple) else (at,)
        if len(axes) > 2 or any(axis is Ellipsis or axis is None for axis in axes):
            return self.dense()[at]
        return jnp.asarray(self.pool)[jnp.asarray(self.rows)[at]]

    def dense(self) -> Array:
        """The whole array."""
        return jnp.asarray(self.pool)[self.rows]

    def changed(self, function: Callable[[Array], Array]) -> "PooledRows":
        """The same rows of the pool after a function of it."""
        return PooledRows(function(self.pool), self.rows, self.tile, self.disjoint)

    def of_clients(self, clients: Int[Array, " chosen"]) -> "PooledRows":
        """The rows of some of the clients; the same client may occur several times."""
        return PooledRows(self.pool, jnp.asarray(self.rows)[clients], self.tile, disjoint=False)

    def astype(self, dtype: Any) -> "PooledRows":
        return self.changed(lambda pool: pool.astype(dtype))

    def __jax_array__(self) -> Array:
        return self.dense()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.dense(), dtype)

    def __repr__(self) -> str:
        return f"PooledRows(pool={self.pool.dtype}{list(self.pool.shape)}, shape={self.shape})"


def dense(features: Any) -> Any:
    """Features as an array."""
    return features.dense() if isinstance(features, PooledRows) else features


class _Tiles(NamedTuple):
    """The samples of clients, cut into pieces of a static size, all clients one after the other.

    Clients of very different sizes have as many tiles as they need: together hardly more samples
    than there are, where padding each to the largest multiplies them.
    """

    client: Int[Array, " tiles"]  # K: none
    first: Int[Array, " tiles"]  # number of the client's sample that the tile begins with
    filled: Int[Array, ""]  # number of tiles that have samples
    size: int


def tile_size(clients: int, samples: int, total: int) -> int:
    """Samples of a tile: all of a client where clients are equally large, else an eighth of the
    samples of a mean one, and a power of two.

    Args:
      clients: their number.
      samples: of the largest client.
      total: of all clients.
    """
    if clients * samples <= EVEN * total:
        return samples
    size = 2 ** max((total // (8 * clients)).bit_length() - 1, 0)
    return min(samples, max(SMALLEST_TILE, min(LARGEST_TILE, size)))


def tiles_of(features: PooledRows, weights: Float[Array, "clients samples"]) -> _Tiles:
    """Cut the samples of clients into tiles.

    Args:
      features: of the clients.
      weights: of the samples. Zeros after the last positive weight are padding; zeros before it
        are samples left out, as by a batch that is drawn as a mask.
    """
    clients, samples = features.rows.shape
    size = features.tile
    most = clients * -(-samples // size)
    if features.disjoint:
        most = min(most, features.pool.shape[0] // size + clients)
    number = jnp.arange(1, samples + 1, dtype=jnp.int32)
    extent = jnp.max(jnp.where(jnp.asarray(weights) > 0, number[None], 0), axis=1)
    needed = -(-extent // size)
    ends = jnp.cumsum(needed, dtype=jnp.int32)
    client = positions_in_blocks(ends, most)
    before = jnp.append(ends - needed, 0)[client]
    first = (jnp.arange(most, dtype=jnp.int32) - before) * size
    return _Tiles(client, first, ends[-1], size)


def over_tiles(
    problem: Any,
    function: Callable[..., Any],
    *rows: Any,
    largest: bool = False,
) -> Any:
    """For each client the sum, or the largest, over its tiles of ``function(part, *rows)``.

    Args:
      problem: on a pool.
      function: ``part`` is the problem of some tiles, each as if it were a client with the samples'
        weights of its client; returns arrays with a row for each.
      rows: arrays ``[K, ...]``; ``function`` gets their rows of the tiles' clients.
      largest: take the largest value instead of the sum; values are not negative.
    """
    features = problem.features
    tiles = tiles_of(features, problem.weights)
    count = len(tiles.client)
    sample_bytes = int(np.prod(features.shape[2:])) * features.dtype.itemsize
    group = min(count, max(1, GROUP_BYTES // (tiles.size * sample_bytes)))
    position = jnp.arange(tiles.size, dtype=jnp.int32)
    number = jnp.arange(group, dtype=jnp.int32)

    def values_of(index: Array) -> tuple[Array, Any]:
        at = index * group + number
        client = tiles.client.at[at].get(mode="fill", fill_value=problem.clients)
        first = tiles.first.at[at].get(mode="clip")
        part = problem.entries(client, first[:, None] + position[None])
        client_rows = jax.tree.map(lambda array: array.at[client].get(mode="clip"), rows)
        return client, function(part, *client_rows)

    def add(index: Array, totals: Any) -> Any:
        client, values = values_of(index)

        def put(total: Array, value: Array) -> Array:
            at = total.at[client]
            return at.max(value, mode="drop") if largest else at.add(value, mode="drop")

        return jax.tree.map(put, totals, values)

    shapes = jax.eval_shape(values_of, jnp.int32(0))[1]
    nothing = jax.tree.map(
        lambda value: jnp.zeros((problem.clients, *value.shape[1:]), value.dtype), shapes
    )
    groups = -(-count // group)
    # The number of tiles of chosen clients of very different sizes is only known at run time.
    is_known = features.disjoint or features.tile == problem.samples
    needed = groups if is_known else -(-tiles.filled // group)
    return jax.lax.fori_loop(0, needed, add, nothing)


def pool_of_clients(features: Array, tile: int) -> PooledRows:
    """The samples of clients with padding, ``[K, N, ...]``, as a pool, so that computations leave
    most of the padding out: the number of tiles follows from the samples' weights.
    """
    clients, samples = features.shape[:2]
    rows = jnp.arange(clients * samples, dtype=jnp.int32).reshape(clients, samples)
    pool = features.reshape(clients * samples, *features.shape[2:])
    return PooledRows(pool, rows, tile, disjoint=False)


class PoolData(NamedTuple):
    """The data of the clients of a pool, as arguments of a problem."""

    features: PooledRows
    targets: Array
    weights: Array
    importance: Array | None


def data_of_pool(
    features: Any, targets: Any, partition: Partition, bounds: tuple[int, int], share: float = 1.0
) -> PoolData:
    """Clients that have the rows of a pool by a partition.

    Args:
      features: ``[R, ...]``.
      targets: ``[R, ...]``.
      partition: of the ``R`` rows.
      bounds: the least and the largest number of rows of a client.
      share: of the rows of the pool that the partition is of.
    """
    least, largest = bounds
    offsets = jnp.asarray(partition.offsets, jnp.int32)
    sizes = jnp.diff(offsets)
    position = jnp.arange(largest, dtype=jnp.int32)
    real = position[None] < sizes[:, None]
    at = jnp.minimum(offsets[:-1, None] + position[None], len(partition.order) - 1)
    rows = jnp.asarray(partition.order, jnp.int32)[at]
    weight = 1 / jnp.maximum(sizes, 1).astype(float_dtype())
    tile = tile_size(len(sizes), largest, int(share * len(partition.order)))
    return PoolData(
        PooledRows(features, rows, tile, disjoint=not overlaps(partition, len(features))),
        jnp.asarray(targets)[rows],
        jnp.where(real, weight[:, None], 0),
        None if least else (sizes > 0).astype(float_dtype()),
    )


def clients_of_pool(
    features: Any,
    targets: Any,
    partition: Partition,
    bounds: tuple[int, int],
    held_out: float = 0.0,
) -> tuple[PoolData, PoolData | None]:
    """The clients' data, and their held-out data if a share of each client's samples is asked for.

    A client's test set is rounded down, so that it keeps a sample to learn from.
    """
    checks.interval("held_out", held_out, at_least=0, below=1)
    least, largest = bounds
    if not held_out:
        return data_of_pool(features, targets, partition, bounds), None
    if overlaps(partition, len(features)):
        raise ValueError(
            "held_out= of clients that share rows would test a client on rows that others learn "
            "from; keep test data out of the pool, problem.with_test(features, targets)."
        )
    test, train = partition.split((held_out, 1 - held_out))
    fewest = int(held_out * least)
    most = int(held_out * largest) + 1
    return (
        data_of_pool(features, targets, train, (min(least, 1), largest - most + 2), 1 - held_out),
        data_of_pool(features, targets, test, (fewest, most), held_out),
    )


def partition_of_pool(
    partition: Any, key: Any, labels: Any, clients: int | None, classes: int | None
) -> tuple[Partition, tuple[int, int]]:
    """The partition of a pool, and the bounds of its clients' sizes.

    Args:
      partition: a rule, a partition, or a function from a key to one.
      key: of the rule or function.
      labels: ``[R]``, for rules that look at them.
      clients: their number, for a rule.
      classes: number of classes, for traced labels.
    """
    rows = len(labels)
    if classes is not None:
        checks.count("classes", classes)
    if isinstance(partition, Partitioner):
        if clients is None:
            raise ValueError("clients must be their number, which the rule does not know; give it.")
        labels_or_rows = labels if partition.needs_labels else rows
        drawn = partition.draw(key, labels_or_rows, clients, classes=classes)
        return drawn, partition.bounds(rows, clients)
    if callable(partition) and not isinstance(partition, type):
        partition = partition(key)
    checks.kind("partition", partition, Partition)
    partition = cast(Partition, partition)
    if clients not in (None, partition.clients):
        raise ValueError(
            f"clients= says {clients}, and the partition is of {partition.clients}; leave it out."
        )
    entries = len(partition.order)
    if entries < rows or np.ndim(partition.order) != 1:
        raise ValueError(
            f"the partition must be of the pool's {rows} rows, got an order of shape "
            f"{np.shape(partition.order)}."
        )
    if not (checks.is_concrete(partition.offsets) and checks.is_concrete(partition.order)):
        return partition, (0, entries)
    order = np.asarray(partition.order)
    if order.min() < 0 or order.max() >= rows:
        raise ValueError(
            f"the order of a partition must have rows from 0 to {rows - 1}, got "
            f"{checks.shown(order)}."
        )
    sizes = np.diff(np.asarray(partition.offsets))
    if min(sizes) < 0 or sum(sizes) > entries or partition.offsets[0] != 0:
        raise ValueError(
            f"offsets of a partition must rise from 0 to at most the {entries} entries of its "
            f"order, got {checks.shown(partition.offsets)}."
        )
    if entries == rows and np.bincount(order[: sum(sizes)]).max(initial=0) > 1:
        raise ValueError(
            "a row of the partition is at several clients; an order that is longer than the "
            "pool says that rows may be (fljax.partitions.Shared)."
        )
    return partition, (int(min(sizes)), max(1, int(max(sizes))))


def shifted(
    shifts: Any,
    key: Any,
    features: Any,
    targets: Any,
    partition: Partition,
    classes: int | None,
    loss: object,
) -> tuple[Any, Any]:
    """The pool as its clients see it.

    Args:
      shifts: one or several.
      key: of the partition; theirs is another one.
      features: ``[R, ...]``.
      targets: ``[R, ...]``.
      partition: of the rows.
      classes: number of labels, where targets are labels; that of the loss by default.
      loss: of the problem.
    """
    shifts = (shifts,) if isinstance(shifts, Shift) else shifts
    checks.kind("shifts", shifts, Sequence)
    if not shifts:
        return features, targets
    for shift in shifts:
        checks.kind("shifts", shift, Shift)
    if overlaps(partition, len(features)):
        raise ValueError(
            "shifts= changes a row as its client sees it, and here a row may be at several clients;"
            " take a partition without overlap."
        )
    if classes is None and isinstance(loss, Softmax):
        classes = loss.classes
    samples = OwnedSamples(features, targets, partition.owners(), partition.clients, classes)
    for number, shift in enumerate(shifts):
        shift.check(samples)
        samples = shift.apply(jax.random.fold_in(as_key(key), number + 1), samples)
    return samples.features, samples.targets


def overlaps(partition: Partition, rows: int) -> bool:
    """Whether rows of a pool may be at several clients: the order then is longer than the pool."""
    return partition.order.shape[0] > rows


def most_holders(problem: Any) -> Int[Array, ""]:
    """The largest number of clients that have one row of a pool."""
    features = problem.pooled_features
    if features.disjoint:
        return jnp.ones((), jnp.int32)
    is_real = (jnp.asarray(problem.weights) > 0).astype(jnp.int32)
    counts = jnp.zeros(features.pool.shape[0], jnp.int32)
    return jnp.max(counts.at[jnp.asarray(features.rows)].add(is_real))


def checked_pool(features: Any, targets: Any) -> tuple[Any, Any]:
    """The data of a pool as arrays; raises an error unless each row is a sample."""
    features = checks.filled("features", features)
    targets = checks.filled("targets", targets)
    if np.ndim(features) < 1 or np.shape(features)[:1] != np.shape(targets)[:1]:
        raise ValueError(
            "features and targets of a pool must have an entry for each sample, [R, ...], got "
            f"shapes {np.shape(features)} and {np.shape(targets)}."
        )
    checks.finite("features", features)
    checks.finite("targets", targets)
    return features, targets
