"""Partitions made of others: parts by different rules, and a least number of rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fljax._core import checks
from fljax._core.module import float_array, float_dtype, module, static
from fljax.partitions.labels import SortedByLabel
from fljax.partitions.partitioner import Partitioner, Pool, positions_in_blocks, ranks_within
from fljax.partitions.sizes import IID, cut_by_shares, random_ranks


@module
class Mixed(Partitioner):
    """Random shares of the rows, each distributed by a rule of its own.

    Args:
      shares: ``[R]``, non-negative, with sum one.
      rules: as many rules.

    Raises:
      TypeError: something else than rules.
      ValueError: shares that do not sum to one, or are not as many as rules.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.repeat(jnp.arange(10), 60)
      >>> rules = (fl.partitions.IID(), fl.partitions.Dirichlet(0.1))
      >>> partition = fl.partitions.Mixed((0.2, 0.8), rules).draw(0, labels, clients=5)
      >>> bool(partition.sizes.min() >= 24)  # a fifth of 120
      True
    """

    shares: Any  # [R] once constructed
    rules: tuple[Partitioner, ...]

    def validate(self) -> None:
        for rule in self.rules:
            checks.kind("rules", rule, Partitioner)
        shares = float_array("shares", self.shares)
        checks.nonnegative("shares", shares)
        if np.shape(shares) != (len(self.rules),):
            raise ValueError(
                f"shares must be one number for each of the {len(self.rules)} rules, got shape "
                f"{np.shape(shares)}."
            )
        checks.check_when_concrete(_check_sum, jnp.sum(shares))
        object.__setattr__(self, "shares", shares)

    @property
    def needs_labels(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(rule.needs_labels for rule in self.rules)

    def check(self, pool: Pool, clients: int) -> None:
        for rule in self.rules:
            rule.check(pool, clients)

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        equal = IID().bounds(rows, clients)
        if any(rule.bounds(rows, clients) != equal for rule in self.rules):
            return 0, rows
        # Each rule's parts are equal but for one row.
        margin = len(self.rules) * (clients - 1)
        return max(0, -(-(rows - margin) // clients)), min(rows, (rows + margin) // clients)

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        part_key, *keys = jax.random.split(key, len(self.rules) + 1)
        sizes = cut_by_shares(jnp.asarray(self.shares), pool.active_count)
        part = positions_in_blocks(jnp.cumsum(sizes, dtype=jnp.int32), pool.size)[
            random_ranks(part_key, pool)
        ]
        owners = jnp.full(pool.size, clients, jnp.int32)
        for number, (rule_key, rule) in enumerate(zip(keys, self.rules, strict=True)):
            active = pool.active & (part == number)
            owners_in_part = rule.owners(rule_key, pool._replace(active=active), clients)
            owners = jnp.where(active, owners_in_part, owners)
        return owners


def _check_sum(total: object) -> None:
    if not np.isclose(np.asarray(total), 1, atol=1e-5):
        raise ValueError(f"shares must have the sum one, got {np.asarray(total):g}.")


def similar(similarity: Any) -> Mixed:
    r"""A share of the rows distributed IID, the others sorted by label.

    Args:
      similarity: the share, from 0 (clients with different labels) to 1 (equal ones).

    Raises:
      ValueError: a share outside of 0 to 1.

    Reference:
      Karimireddy et al. 2020, section 7, where it is given in percent; Hsu et al. 2019.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.repeat(jnp.arange(10), 60)
      >>> partition = fl.partitions.similar(0.0).draw(0, labels, clients=10)
      >>> (partition.counts(labels, 10) > 0).sum(axis=1).tolist()
      [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    checks.interval("similarity", similarity, at_least=0, at_most=1)
    similarity = jnp.asarray(checks.array("similarity", similarity, axes=0), float_dtype())
    return Mixed(jnp.stack([similarity, 1 - similarity]), (IID(), SortedByLabel()))


Sizes = Int[Array, " clients"]


@module
class _WithMoves(Partitioner):
    """The partition of another rule, after clients have given random rows of theirs to others."""

    rule: Partitioner
    rows: int = static()

    def validate(self) -> None:
        checks.kind("rule", self.rule, Partitioner)
        checks.count("rows", self.rows)

    @property
    def needs_labels(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.needs_labels

    @checks.required
    def moves(self, sizes: Sizes) -> tuple[Sizes, Sizes]:
        """How many rows each client gives, and how many each receives; the sums are equal."""
        raise NotImplementedError

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        rule_key, order_key = jax.random.split(key)
        owners = self.rule.owners(rule_key, pool, clients)
        sizes = jnp.zeros(clients + 1, jnp.int32).at[owners].add(1)
        surplus, received = self.moves(sizes[:-1])
        surplus = jnp.append(surplus, jnp.int32(0))  # rows without a client stay
        # The last rows of a random order of each client's rows are given away.
        rank = ranks_within(order_key, owners, clients + 1)
        over = rank - (sizes - surplus)[owners]
        number = (jnp.cumsum(surplus, dtype=jnp.int32) - surplus)[owners] + over
        receiver = positions_in_blocks(jnp.cumsum(received, dtype=jnp.int32), pool.size)
        return jnp.where(over >= 0, receiver[jnp.maximum(number, 0)], owners)


@module
class AtLeast(_WithMoves):
    """The partition of another rule, in which every client has a number of rows at least.

    What a client lacks is taken at random from the clients with the most rows, the largest first,
    so that no more rows move than are missing, and none where all clients have enough. (Drawing
    again until all have, as others do, may take forever.)

    Args:
      rule: the other rule.
      rows: the least number of rows of a client, >= 1.

    Raises:
      TypeError: something else than a rule.
      ValueError: less than one row, fewer rows than all clients need.

    Example:
      >>> import fljax as fl
      >>> rule = fl.partitions.AtLeast(fl.partitions.DirichletSizes(0.1), rows=5)
      >>> int(rule.draw(0, 100, clients=10).sizes.min())
      5
    """

    def check(self, pool: Pool, clients: int) -> None:
        if pool.size < clients * self.rows:
            raise ValueError(
                f"{clients} clients of {self.rows} rows or more need {clients * self.rows} rows, "
                f"got {pool.size}."
            )
        self.rule.check(pool, clients)

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        least, largest = self.rule.bounds(rows, clients)
        least = max(least, self.rows)
        return least, max(min(largest, rows - least * (clients - 1)), self.rows)

    def moves(self, sizes: Sizes) -> tuple[Sizes, Sizes]:
        surplus = jnp.maximum(sizes - self.rows, 0)
        lacking = jnp.maximum(self.rows - sizes, 0)
        by_size = jnp.argsort(-surplus)
        before = jnp.cumsum(surplus[by_size], dtype=jnp.int32) - surplus[by_size]
        missing = jnp.sum(lacking, dtype=jnp.int32)
        passed_on = jnp.clip(missing - before, 0, surplus[by_size])
        return jnp.zeros_like(passed_on).at[by_size].set(passed_on), lacking


@module
class AtMost(_WithMoves):
    """The partition of another rule, in which no client has more than a number of rows.

    A client's rows beyond this number go, at random, to the clients with fewer, in proportion to
    the rows that each lacks. Arrays of a problem on a pool have room for this number, and
    batches are drawn within it: where a rule such as :class:`Dirichlet` could give one client
    nearly everything, a bound that is rarely met saves memory and time.

    Args:
      rule: the other rule.
      rows: the largest number of rows of a client, >= 1.

    Raises:
      TypeError: something else than a rule.
      ValueError: less than one row, more rows than all clients may have.

    Example:
      >>> import fljax as fl
      >>> rule = fl.partitions.AtMost(fl.partitions.DirichletSizes(0.1), rows=30)
      >>> int(rule.draw(0, 100, clients=10).sizes.max())
      30
    """

    def check(self, pool: Pool, clients: int) -> None:
        if pool.size > clients * self.rows:
            raise ValueError(
                f"{clients} clients of {self.rows} rows or fewer have {clients * self.rows} rows "
                f"at most, got {pool.size}."
            )
        self.rule.check(pool, clients)

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        least, largest = self.rule.bounds(rows, clients)
        return min(least, self.rows), min(largest, self.rows)

    def moves(self, sizes: Sizes) -> tuple[Sizes, Sizes]:
        excess = jnp.maximum(sizes - self.rows, 0)
        free = jnp.maximum(self.rows - sizes, 0)
        shares = free.astype(float_dtype()) / jnp.maximum(jnp.sum(free), 1).astype(float_dtype())
        return excess, jnp.minimum(cut_by_shares(shares, jnp.sum(excess, dtype=jnp.int32)), free)
