"""Partitions of the rows of a data set, and the rules that draw them from a random key.

A rule assigns an owner to every row (:meth:`Partitioner.owners`); the rows are then sorted by owner
and, within an owner, in random order (:func:`of_owners`). Both are pure functions of the key with
static shapes, so that they run inside a scenario: every seed has its own partition, and numbers
such as a concentration are axes of a grid.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype, module
from fljax._core.prng import as_key


class Partition(NamedTuple):
    """The rows of every client: ``order[offsets[k] : offsets[k + 1]]`` for client ``k``.

    Sizes depend on the key, shapes do not. Rows without a client are last in the order, beyond the
    last offset. No row is at two clients, unless the order is longer than the pool of rows
    (:class:`Shared`).

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> order, offsets = jnp.array([3, 0, 2, 1], jnp.int32), jnp.array([0, 1, 4], jnp.int32)
      >>> partition = fl.partitions.Partition(order, offsets)
      >>> [rows.tolist() for rows in partition.rows()], partition.owners().tolist()
      ([[3], [0, 2, 1]], [1, 1, 1, 0])
    """

    order: Int[Array, " rows"]
    offsets: Int[Array, " clients_and_one"]

    @property
    def clients(self) -> int:
        """``K``."""
        return self.offsets.shape[-1] - 1

    @property
    def sizes(self) -> Int[Array, " clients"]:
        """Number of rows of each client, ``[K]``."""
        return jnp.diff(self.offsets)

    def owners(self) -> Int[Array, " rows"]:
        """The client of each row, ``[N]``; ``K`` for rows without one.

        Not of a partition whose clients share rows.
        """
        return jnp.zeros_like(self.order).at[self.order].set(self._clients_in_order())

    def counts(self, labels: Int[Array, " rows"], classes: int) -> Int[Array, "clients classes"]:
        """Number of rows of each class at each client, ``[K, C]``.

        Args:
          labels: ``[N]``, from 0 to ``classes - 1``.
          classes: ``C``.
        """
        table = jnp.zeros((self.clients + 1, classes), jnp.int32)
        ordered = jnp.asarray(labels, jnp.int32)[self.order]
        return table.at[self._clients_in_order(), ordered].add(1)[:-1]

    def rows(self) -> list[np.ndarray]:
        """The rows of each client as NumPy arrays, for a partition that was drawn outside of
        compiled code; ``[(x[rows], y[rows]) for rows in partition.rows()]`` are clients for
        :func:`fljax.problems.from_clients`.
        """
        if not checks.is_concrete(self.offsets):
            raise TypeError(
                "the rows of clients have sizes that depend on the key, so they are known outside "
                "of compiled code only; draw the partition there, or use its order and offsets."
            )
        order = np.asarray(self.order)
        ends = np.asarray(self.offsets)
        return [order[start:end] for start, end in itertools.pairwise(ends)]

    def split(self, shares: Any) -> "tuple[Partition, ...]":
        """Parts of every client's rows, such as training, validation and test.

        A client's rows are in random order, so that each part is a random one. Sizes are rounded
        down but for the last part's, which is the rest.

        Args:
          shares: positive numbers with sum one.

        Raises:
          ValueError: other shares.

        Example:
          >>> import fljax as fl
          >>> train, test = fl.partitions.IID().draw(0, 100, clients=4).split((0.8, 0.2))
          >>> train.sizes.tolist(), test.sizes.tolist()
          ([20, 20, 20, 20], [5, 5, 5, 5])
        """
        shares = np.asarray(checks.filled("shares", shares, axes=1), np.float64)
        checks.positive("shares", shares)
        if not np.isclose(shares.sum(), 1):
            raise ValueError(f"shares must have the sum one, got {shares.tolist()}.")
        # Rounding of the sums of shares must not take a whole row away: .7 + .1 is below .8.
        ends = jnp.asarray(np.cumsum(shares)[:-1] + 1e-9, float_dtype())
        sizes = self.sizes.astype(ends.dtype)
        cuts = jnp.floor(ends[:, None] * sizes[None] + 1e-4).astype(jnp.int32)
        cuts = jnp.concatenate([jnp.zeros_like(cuts[:1]), cuts, self.sizes[None]])
        client = self._clients_in_order()
        rows = self.order.shape[-1]
        rank = jnp.arange(rows, dtype=jnp.int32) - jnp.append(self.offsets[:-1], rows)[client]
        limits = jnp.concatenate([cuts, jnp.zeros_like(cuts[:, :1])], axis=1)
        parts = []
        for start, end in itertools.pairwise(limits):
            belongs = (rank >= start[client]) & (rank < end[client])
            # A stable sort keeps the random order.
            sorted_by = jnp.where(belongs, client, self.clients)
            positions = jnp.arange(rows, dtype=jnp.int32)
            order = self.order[jax.lax.sort((sorted_by, positions), num_keys=1)[1]]
            sizes_of_part = (end - start)[:-1]
            ends_of_part = jnp.cumsum(sizes_of_part, dtype=jnp.int32)
            parts.append(Partition(order, jnp.append(jnp.int32(0), ends_of_part)))
        return tuple(parts)

    def _clients_in_order(self) -> Int[Array, " rows"]:
        """The client of each entry of the order, ``K`` beyond the last offset."""
        return positions_in_blocks(self.offsets[1:], self.order.shape[-1])


class Pool(NamedTuple):
    """The rows that a rule distributes.

    Attributes:
      labels: ``[N]``, from 0 to ``classes - 1``; ``None`` where no rule asks for them.
      classes: ``C``, static.
      active: ``[N]``, the rows to be distributed.
    """

    labels: Int[Array, " rows"] | None
    classes: int
    active: Bool[Array, " rows"]

    @property
    def size(self) -> int:
        """``N``."""
        return self.active.shape[0]

    @property
    def active_count(self) -> Int[Array, ""]:
        """Number of rows to be distributed."""
        return jnp.sum(self.active, dtype=jnp.int32)


@module
class Partitioner:
    """A rule by which rows are distributed over clients; subclass it to define your own.

    A subclass has a method :meth:`owners`, and :meth:`check` where it can refuse a pool.

    Example:
      Rows are given to clients in turn:

      >>> import jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class InTurn(fl.partitions.Partitioner):
      ...     def owners(self, key, pool, clients):
      ...         return jnp.arange(len(pool.active)) % clients
      >>> [sorted(rows.tolist()) for rows in InTurn().draw(0, 5, clients=2).rows()]
      [[0, 2, 4], [1, 3]]
    """

    #: Whether the rule looks at labels.
    needs_labels = False

    @checked
    def draw(
        self, key: Key[Array, ""] | int, labels: Any, clients: int, *, classes: int | None = None
    ) -> Partition:
        """Draw a partition; jit- and vmap-able.

        Args:
          key: consumed.
          labels: ``[N]``, the class of each row, from 0 on, or the number of rows ``N`` for rules
            that do not look at labels.
          clients: ``K``.
          classes: ``C``; by default the largest label and one, of labels that are known.

        Raises:
          TypeError: no labels, for a rule that needs them; traced labels without ``classes``.
          ValueError: labels other than whole numbers in range, more clients than rows,
            a pool that the rule cannot distribute.

        Example:
          >>> import jax, jax.numpy as jnp, fljax as fl
          >>> labels = jnp.repeat(jnp.arange(10), 60)
          >>> partition = fl.partitions.Dirichlet(0.5).draw(0, labels, clients=5)
          >>> int(partition.sizes.sum()), partition.counts(labels, 10).shape
          (600, (5, 10))
        """
        checks.count("clients", clients)
        pool = self._pool(labels, classes)
        if pool.size < clients:
            raise ValueError(
                f"a partition needs a row for each client, got {pool.size} rows for {clients} "
                "clients; take fewer clients."
            )
        self.check(pool, clients)
        return self._drawn(as_key(key), pool, clients)

    def _drawn(self, key: Array, pool: Pool, clients: int) -> Partition:
        """A partition of a pool that is checked."""
        rule_key, order_key = jax.random.split(key)
        return of_owners(order_key, self.owners(rule_key, pool, clients), clients)

    def check(self, pool: Pool, clients: int) -> None:
        """Raise ``ValueError`` where the rule cannot distribute this pool."""

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        """The least and the largest number of rows that a client can get with any key.

        Arrays have room for the largest. A rule that can give one client all rows is better used
        within :class:`AtMost`.

        Args:
          rows: ``N``.
          clients: ``K``.
        """
        return 0, rows

    @checks.required
    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        """Return the client of each row, ``[N]``; ``clients`` for rows without one.

        Args:
          key: consumed.
          pool: the rows; inactive ones have no client.
          clients: ``K``.
        """
        raise NotImplementedError

    def _pool(self, labels: Any, classes: int | None) -> Pool:
        if checks.is_whole(labels):
            if self.needs_labels:
                raise TypeError(
                    f"{type(self).__name__} distributes rows by their labels, got a number of rows;"
                    " pass the labels [N]."
                )
            checks.count("the number of rows", labels)
            return Pool(None, 1, jnp.ones(int(labels), bool))
        labels = checks.filled("labels", checks.as_integers(labels), axes=1)
        if not jnp.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"labels must be whole numbers from 0 on, got {checks.shown(labels)}; number "
                "classes of other kinds by numpy.unique(labels, return_inverse=True)[1]."
            )
        if classes is None:
            if not checks.is_concrete(labels):
                raise TypeError(
                    "labels that are traced have no known number of classes; pass classes=."
                )
            classes = int(np.max(labels)) + 1
        checks.count("classes", classes)
        checks.interval("labels", labels, at_least=0, at_most=classes - 1)
        return Pool(jnp.asarray(labels, jnp.int32), classes, jnp.ones(len(labels), bool))


def of_owners(key: Array, owners: Int[Array, " rows"], clients: int) -> Partition:
    """The partition with these owners, the rows of each in random order.

    Args:
      key: consumed.
      owners: ``[N]``, from 0 to ``clients``, which stands for none.
      clients: ``K``.
    """
    sizes = jnp.zeros(clients + 1, jnp.int32).at[owners].add(1)[:-1]
    offsets = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(sizes, dtype=jnp.int32)])
    return Partition(random_order_within(key, owners, clients + 1), offsets)


def random_order_within(key: Array, groups: Int[Array, " rows"], count: int) -> Array:
    """The rows sorted by group, in random order within a group, ``[N]``.

    Rows are sorted by 64 bits: the group's number, then random bits. Two sorted words take three
    quarters of the time of three. All orders of a group are equally likely but for ties, whose
    probability is the square of the number of rows divided by two to the number of random bits.

    Args:
      key: consumed.
      groups: ``[N]``, from 0 to ``count - 1``.
      count: number of groups.
    """
    high, low = jax.random.bits(key, (2, *groups.shape), jnp.uint32)
    width = max(count - 1, 1).bit_length()
    high = (groups.astype(jnp.uint32) << (32 - width)) | (high >> width)
    rows = jnp.arange(groups.shape[0], dtype=jnp.int32)
    return jax.lax.sort((high, low, rows), num_keys=2)[2]


def ranks_within(key: Array, groups: Int[Array, " rows"], count: int) -> Int[Array, " rows"]:
    """Each row's position, from 0 on, in a random order of its group.

    Args:
      key: consumed.
      groups: ``[N]``, from 0 to ``count - 1``.
      count: number of groups.
    """
    order = random_order_within(key, groups, count)
    sizes = jnp.zeros(count, jnp.int32).at[groups].add(1)
    starts = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    positions = jnp.arange(groups.shape[0], dtype=jnp.int32) - starts[groups[order]]
    return jnp.zeros_like(order).at[order].set(positions)


def positions_in_blocks(ends: Int[Array, " blocks"], count: int) -> Int[Array, " count"]:
    """For each position from 0 to ``count - 1`` the block that it lies in, of blocks one after the
    other that end (exclusively) at these non-decreasing positions; beyond the last end, the number
    of blocks.

    The positions at which a block ends are marked and the marks summed: one pass, where a binary
    search takes one for each doubling of the number of blocks.
    """
    marks = jnp.zeros(count + 1, jnp.int32).at[jnp.minimum(ends, count)].add(1)
    return jnp.cumsum(marks[:count], dtype=jnp.int32)
