"""Partitions whose clients have some rows in common."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fljax._core import checks
from fljax._core.module import module, static
from fljax.partitions.partitioner import Partition, Partitioner, Pool, of_owners
from fljax.partitions.sizes import random_ranks


@module
class Shared(Partitioner):
    """Clients that have rows in common, besides rows of their own by another rule.

    ``rows`` rows are set apart at random, and every client gets all of them, or ``each`` of them,
    drawn for each client. Its rows are in random order, own and common ones mixed.

    A row that several clients have is protected by a budget of a sample's privacy at each of them,
    and not against all of them together; results name this limit.

    Args:
      rule: of the other rows; it cannot itself be of shared rows.
      rows: number of rows that are set apart, >= 1.
      each: how many of them a client gets; all by default.

    Raises:
      TypeError: something else than a rule.
      ValueError: more rows for each client than are set apart, or so few other rows that a client
        would get none of them.

    Reference:
      Zhao et al. 2018, section 4: the ratio ``rows / (N - rows)`` is their beta, ``each / rows``
      their alpha.

    Example:
      >>> import fljax as fl
      >>> partition = fl.partitions.Shared(fl.partitions.IID(), rows=20).draw(0, 100, clients=4)
      >>> partition.sizes.tolist()
      [40, 40, 40, 40]
    """

    rule: Partitioner
    rows: int = static()
    each: int | None = static(default=None)

    def validate(self) -> None:
        checks.kind("rule", self.rule, Partitioner)
        if isinstance(self.rule, Shared):
            raise ValueError("rule must not itself be of shared rows; add up the rows of one.")
        checks.count("rows", self.rows)
        if self.each is not None:
            checks.count("each", self.each, at_most=self.rows)

    @property
    def needs_labels(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.needs_labels

    @property
    def _each(self) -> int:
        return self.rows if self.each is None else self.each

    def check(self, pool: Pool, clients: int) -> None:
        if pool.size - self.rows < clients:
            raise ValueError(
                f"rows must leave a row for each of {clients} clients, got {self.rows} of "
                f"{pool.size}."
            )
        self.rule.check(pool, clients)
        unshared = pool.size - self.rows
        least, largest = self.rule.bounds(unshared, clients)
        if least * clients > unshared or largest * clients < unshared:
            raise ValueError(
                f"the rule cannot distribute the {unshared} rows that are not shared to {clients} "
                f"clients with from {least} to {largest} rows each; take other numbers."
            )

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        least, largest = self.rule.bounds(rows - self.rows, clients)
        return least + self._each, largest + self._each

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        raise TypeError(
            "Shared gives rows to several clients and cannot be within another rule; put it around "
            "the others, Shared(AtLeast(rule, 10), rows=100)."
        )

    def _drawn(self, key: Array, pool: Pool, clients: int) -> Partition:
        rank_key, rule_key, choice_key, order_key = jax.random.split(key, 4)
        rank = random_ranks(rank_key, pool)
        common = (
            jnp.zeros(self.rows, jnp.int32)
            .at[rank]
            .set(jnp.arange(pool.size, dtype=jnp.int32), mode="drop")
        )
        unshared = pool._replace(active=rank >= self.rows)
        owners = self.rule.owners(rule_key, unshared, clients)
        keys = jax.random.split(choice_key, clients)
        chosen = jax.vmap(lambda key: jax.random.permutation(key, common)[: self._each])(keys)
        number = jnp.arange(clients, dtype=jnp.int32)
        entries = jnp.concatenate([jnp.arange(pool.size, dtype=jnp.int32), chosen.ravel()])
        owners = jnp.concatenate([owners, jnp.repeat(number, self._each)])
        partition = of_owners(order_key, owners, clients)
        return partition._replace(order=entries[partition.order])
