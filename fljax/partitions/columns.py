"""Partitions by a column of the data: a natural owner of each row, or a number."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import float_dtype, module, static
from fljax.partitions.partitioner import Partitioner, Pool
from fljax.partitions.sizes import equal_parts


class _OfColumn(Partitioner):
    """A rule that has a value for each row."""

    values: Any

    def check(self, pool: Pool, clients: int) -> None:
        if len(self.values) != pool.size:
            raise ValueError(
                f"{type(self).__name__} has a value for each of {len(self.values)} rows, got a "
                f"pool of {pool.size}."
            )


@module
class ById(_OfColumn):
    """The natural partition: rows of one owner are at one client.

    With as many clients as owners each is a client, in the sorted order of their names; with fewer,
    owners are dealt to the clients at random, equally many to each but for one.

    Args:
      values: ``[N]``, the owner of each row: names or numbers.

    Raises:
      ValueError: missing values, more clients than owners.

    Example:
      >>> import fljax as fl
      >>> rule = fl.partitions.ById(["b", "a", "b", "c", "a", "b"])
      >>> [rows.tolist() for rows in rule.draw(0, 6, clients=3).rows()][1:]
      [[2, 0, 5], [3]]
    """

    values: Any  # [N], numbers of owners once constructed
    owners_count: int = static(init=False, default=0)

    def validate(self) -> None:
        names, numbers = np.unique(checks.names("values", self.values), return_inverse=True)
        if not len(names):
            raise ValueError("values is empty; give the owner of each row.")
        object.__setattr__(self, "values", numbers.astype(np.int32))
        object.__setattr__(self, "owners_count", len(names))

    def check(self, pool: Pool, clients: int) -> None:
        super().check(pool, clients)
        if clients > self.owners_count:
            raise ValueError(
                f"rows of {self.owners_count} owners cannot be those of {clients} clients; take as "
                "many or fewer."
            )

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        if not checks.is_concrete(self.values):
            return int(rows == len(self.values)), rows
        sizes = np.sort(np.bincount(np.asarray(self.values), minlength=self.owners_count))
        several = -(-self.owners_count // clients)
        missing = len(self.values) - rows  # a part of the rows is distributed
        least = int(sizes[: self.owners_count // clients].sum()) - missing
        return max(least, 0), int(sizes[-several:].sum())

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        client = jnp.arange(self.owners_count, dtype=jnp.int32)
        if clients < self.owners_count:
            client = jax.random.permutation(key, client) % clients
        return jnp.where(pool.active, client[jnp.asarray(self.values)], clients)


@module
class ByColumn(_OfColumn):
    r"""Rows sorted by a number and cut into equal parts, one for each client in this order.

    Args:
      values: ``[N]``, such as a feature or a target.
      strictness: :math:`\sigma` from 0 to 1: rows are sorted by :math:`\sigma z+(1-\sigma)\epsilon`
        with the standardized value :math:`z` and a standard normal number; 0 gives IID clients.

    Raises:
      ValueError: values that are not finite, a strictness outside of 0 to 1.

    Example:
      >>> import numpy as np, fljax as fl
      >>> age = np.array([40.0, 20.0, 60.0, 30.0])
      >>> [sorted(rows.tolist()) for rows in fl.partitions.ByColumn(age).draw(0, 4, 2).rows()]
      [[1, 3], [0, 2]]
    """

    values: Any  # [N]
    strictness: Float[Array, ""] | float = 1.0

    def validate(self) -> None:
        values = checks.filled("values", self.values, axes=1)
        checks.finite("values", values)
        object.__setattr__(self, "values", jnp.asarray(values, float_dtype()))
        checks.interval("strictness", self.strictness, at_least=0, at_most=1)

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        return rows // clients, -(-rows // clients)

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        tie_key, noise_key = jax.random.split(key)
        deviation = jnp.std(self.values)
        standard = (self.values - jnp.mean(self.values)) / jnp.where(deviation > 0, deviation, 1)
        noise = jax.random.normal(noise_key, standard.shape, standard.dtype)
        strictness = jnp.asarray(self.strictness, standard.dtype)
        score = strictness * standard + (1 - strictness) * noise
        rows = jnp.arange(pool.size, dtype=jnp.int32)
        ties = jax.random.bits(tie_key, score.shape, jnp.uint32)
        order = jax.lax.sort((~pool.active, score, ties, rows), num_keys=3)[3]
        return jnp.zeros_like(rows).at[order].set(equal_parts(rows, pool.active_count, clients))
