"""Partitions by label: clients whose distributions of classes differ."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import float_dtype, module, static
from fljax.partitions.partitioner import (
    Partitioner,
    Pool,
    positions_in_blocks,
    random_order_within,
)
from fljax.partitions.sizes import cut_by_shares, equal_parts


class _ByClass(NamedTuple):
    """The rows of a pool by class, in random order within a class, inactive rows last."""

    order: Int[Array, " rows"]
    sizes: Int[Array, " classes"]

    def owned(self, owners: Int[Array, " rows"]) -> Int[Array, " rows"]:
        """The owners of rows in their own order, from owners in the order of classes."""
        return jnp.zeros_like(owners).at[self.order].set(owners)


def by_class(key: Array, pool: Pool) -> _ByClass:
    """Sort the active rows by class."""
    assert pool.labels is not None  # asked for by `needs_labels`
    groups = jnp.where(pool.active, pool.labels, pool.classes)
    sizes = jnp.zeros(pool.classes + 1, jnp.int32).at[groups].add(1)[:-1]
    return _ByClass(random_order_within(key, groups, pool.classes + 1), sizes)


def owners_of_table(ordered: _ByClass, table: Int[Array, "classes clients"]) -> Int[Array, " rows"]:
    """The owner of each row if clients get these numbers of rows of each class, ``[N]``.

    Args:
      ordered: the rows.
      table: ``[C, K]``; the sum over the clients is at most the class's number of rows.
    """
    classes, clients = table.shape
    left_out = (ordered.sizes - jnp.sum(table, axis=1, dtype=jnp.int32))[:, None]
    ends = jnp.cumsum(jnp.concatenate([table, left_out], axis=1), dtype=jnp.int32)
    block = positions_in_blocks(ends, ordered.order.shape[0])
    beyond = block >= classes * (clients + 1)
    return ordered.owned(jnp.where(beyond, clients, block % (clients + 1)))


class _ByLabel(Partitioner):
    """A rule that looks at labels."""

    needs_labels = True


@module
class Dirichlet(_ByLabel):
    r"""The rows of each class in proportions over the clients drawn from
    :math:`\mathrm{Dir}(\alpha\mathbf1_K)`.

    Small concentrations give clients few classes and very different sizes, large ones nearly equal
    shares of all classes. Ends of shares are rounded to whole rows. The source draws again until
    every client has ten rows, which is another distribution where that is rare: here a client may
    have none, and :class:`AtLeast` moves as few rows as are needed.

    Args:
      concentration: :math:`\alpha>0`.

    Raises:
      ValueError: a concentration that is not positive.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.repeat(jnp.arange(10), 60)
      >>> def classes_per_client(concentration):
      ...     partition = fl.partitions.Dirichlet(concentration).draw(0, labels, clients=20)
      ...     return float((partition.counts(labels, 10) > 0).sum(axis=1).mean())
      >>> classes_per_client(0.1) < classes_per_client(1.0) < classes_per_client(100.0)
      True

    Reference:
      Yurochkin et al. 2019, section 5.
    """

    concentration: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("concentration", self.concentration)

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        order_key, share_key = jax.random.split(key)
        ordered = by_class(order_key, pool)
        concentration = jnp.full(clients, jnp.asarray(self.concentration, float_dtype()))
        shares = jax.random.dirichlet(share_key, concentration, (pool.classes,))
        return owners_of_table(ordered, cut_by_shares(shares, ordered.sizes))


@module
class EqualDirichlet(_ByLabel):
    r"""Clients of equal sizes, each with a distribution of classes drawn from
    :math:`\mathrm{Dir}(\alpha\mathbf p)`, with :math:`\mathbf p` the shares of the classes.

    One client after the other draws the class of each of its rows from its own distribution; a
    class that has no rows left is drawn no more, and the others in proportion. (Where a client's
    distribution has rounded to zero for all classes that are left, it takes them in proportion to
    their numbers of rows.) Sizes differ by one at most.

    Args:
      concentration: :math:`\alpha>0`. In the notation of others,
        :math:`\mathrm{Dir}(\beta\mathbf 1_C)`, it is :math:`\beta C` for classes of equal sizes.

    Raises:
      ValueError: a concentration that is not positive.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.repeat(jnp.arange(10), 60)
      >>> partition = fl.partitions.EqualDirichlet(1.0).draw(0, labels, clients=20)
      >>> set(partition.sizes.tolist())
      {30}

    Reference:
      Hsu et al. 2019, section 3.
    """

    concentration: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("concentration", self.concentration)

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        return rows // clients, -(-rows // clients)

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        order_key, share_key, draw_key = jax.random.split(key, 3)
        ordered = by_class(order_key, pool)
        dtype = float_dtype()
        prior = ordered.sizes.astype(dtype) / jnp.maximum(pool.active_count, 1).astype(dtype)
        # A class without rows has no share, and the distribution needs positive parameters.
        concentration = jnp.asarray(self.concentration, dtype)
        parameters = jnp.maximum(concentration * prior, jnp.finfo(dtype).tiny)
        shares = jax.random.dirichlet(share_key, parameters, (clients,))
        number = jnp.arange(clients, dtype=jnp.int32)
        sizes = pool.active_count // clients + (number < pool.active_count % clients).astype(
            jnp.int32
        )
        most = -(-pool.size // clients)
        keys = jax.random.split(draw_key, clients)

        def take(left: Array, client: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            taken = _drawn_from_classes(*client, left, most)
            return left - taken, taken

        _, table = jax.lax.scan(take, ordered.sizes, (keys, shares, sizes))
        return owners_of_table(ordered, table.T)


def _drawn_from_classes(
    key: Array,
    share: Float[Array, " classes"],
    size: Int[Array, ""],
    left: Int[Array, " classes"],
    most: int,
) -> Int[Array, " classes"]:
    """How many rows of each class a client draws, one by one from its distribution.

    All draws are made together; a class that is drawn more often than it has rows left accepts as
    many, and the excess is drawn again from the other classes. Which of its draws it accepts does
    not matter, so the numbers have the same distribution as if rows were drawn one by one.

    Args:
      key: consumed.
      share: ``[C]``, the client's distribution.
      size: number of rows that the client takes.
      left: ``[C]``, rows that are left; their sum is at least ``size``.
      most: the largest size, static.
    """

    def missing(state: tuple[Array, Array]) -> Array:
        return jnp.sum(state[1], dtype=jnp.int32) < size

    def draw(state: tuple[Array, Array]) -> tuple[Array, Array]:
        attempt, taken = state
        available = left - taken
        weights = jnp.where(available > 0, share, 0)
        weights = jnp.where(jnp.sum(weights) > 0, weights, available.astype(share.dtype))
        ends = jnp.cumsum(weights)
        points = jax.random.uniform(jax.random.fold_in(key, attempt), (most,), share.dtype)
        drawn = jnp.sum(points[:, None] * ends[-1] >= ends[None], axis=1, dtype=jnp.int32)
        # In spite of rounding a class without weight is never drawn.
        number = jnp.arange(len(share), dtype=jnp.int32)
        drawn = jnp.minimum(drawn, jnp.max(jnp.where(weights > 0, number, 0)))
        wanted = jnp.arange(most, dtype=jnp.int32) < size - jnp.sum(taken, dtype=jnp.int32)
        counts = jnp.zeros_like(left).at[drawn].add(wanted.astype(left.dtype))
        return attempt + 1, taken + jnp.minimum(counts, available)

    return jax.lax.while_loop(missing, draw, (jnp.int32(0), jnp.zeros_like(left)))[1]


@module
class LabelsPerClient(_ByLabel):
    """Each client has rows of exactly ``labels`` classes.

    Client ``k`` has class ``k`` modulo the number of classes, so that with as many clients as
    classes every class is somewhere, and further classes at random. The rows of a class are shared
    equally by the clients that have it; a class that no client has is left out.

    Args:
      labels: number of classes of a client, >= 1.

    Raises:
      ValueError: less than one class, or more than there are.

    Reference:
      Li et al. 2022, "quantity-based label imbalance".

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.repeat(jnp.arange(10), 60)
      >>> counts = fl.partitions.LabelsPerClient(3).draw(0, labels, clients=20).counts(labels, 10)
      >>> set((counts > 0).sum(axis=1).tolist())
      {3}
    """

    labels: int = static()

    def validate(self) -> None:
        checks.count("labels", self.labels)

    def check(self, pool: Pool, clients: int) -> None:
        if self.labels > pool.classes:
            raise ValueError(
                f"labels must be at most the {pool.classes} classes that there are, got "
                f"{self.labels}."
            )

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        order_key, class_key = jax.random.split(key)
        ordered = by_class(order_key, pool)
        priority = jax.random.uniform(class_key, (clients, pool.classes))
        number = jnp.arange(clients, dtype=jnp.int32)
        priority = priority.at[number, number % pool.classes].set(-1.0)
        has = jnp.argsort(jnp.argsort(priority, axis=1), axis=1) < self.labels
        return owners_of_table(ordered, _shared_equally(ordered.sizes, has.T))


def _shared_equally(sizes: Int[Array, " classes"], has: Array) -> Int[Array, "classes clients"]:
    """Each class's rows in equal parts for the clients that have it; the first have one more."""
    owners = jnp.sum(has, axis=1, dtype=jnp.int32)
    part = sizes // jnp.maximum(owners, 1)
    larger = sizes - part * owners
    rank = jnp.cumsum(has, axis=1, dtype=jnp.int32) - 1
    return jnp.where(has, part[:, None] + (rank < larger[:, None]).astype(jnp.int32), 0)


@module
class Shards(_ByLabel):
    """Rows sorted by label and cut into shards; each client gets some shards at random.

    Rows of one label are in random order; the sizes of shards differ by one at most.

    Args:
      per_client: shards of a client, >= 1.

    Raises:
      ValueError: less than one shard, or more shards than rows.

    Reference:
      McMahan et al. 2017, section 3: 2 shards of 300 images each.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.repeat(jnp.arange(10), 60)
      >>> partition = fl.partitions.Shards(2).draw(0, labels, clients=10)
      >>> set(partition.sizes.tolist()), int((partition.counts(labels, 10) > 0).sum(1).max())
      ({60}, 2)
    """

    per_client: int = static(default=2)

    def validate(self) -> None:
        checks.count("per_client", self.per_client)

    def check(self, pool: Pool, clients: int) -> None:
        if clients * self.per_client > pool.size:
            raise ValueError(
                f"{pool.size} rows cannot be cut into {clients * self.per_client} shards, "
                f"{self.per_client} for each of {clients} clients; take fewer."
            )

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        shards = clients * self.per_client
        return self.per_client * (rows // shards), self.per_client * -(-rows // shards)

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        order_key, shard_key = jax.random.split(key)
        ordered = by_class(order_key, pool)
        shards = clients * self.per_client
        positions = jnp.arange(pool.size, dtype=jnp.int32)
        shard = equal_parts(positions, pool.active_count, shards)
        client = jax.random.permutation(shard_key, shards).astype(jnp.int32) // self.per_client
        return ordered.owned(jnp.append(client, jnp.int32(clients))[shard])


@module
class SortedByLabel(_ByLabel):
    """Rows sorted by label and cut into equal parts, one for each client in this order: the least
    similar clients.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.array([1, 0, 1, 0, 2, 2])
      >>> fl.partitions.SortedByLabel().draw(0, labels, clients=3).counts(labels, 3).tolist()
      [[2, 0, 0], [0, 2, 0], [0, 0, 2]]
    """

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        return rows // clients, -(-rows // clients)

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        positions = jnp.arange(pool.size, dtype=jnp.int32)
        return by_class(key, pool).owned(equal_parts(positions, pool.active_count, clients))
