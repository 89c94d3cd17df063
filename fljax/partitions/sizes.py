"""Partitions that look at no labels: equal parts, and clients of very different sizes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import float_dtype, module
from fljax.partitions.partitioner import Partitioner, Pool, positions_in_blocks, ranks_within


def equal_parts(
    positions: Int[Array, " rows"], count: Array | int, parts: int
) -> Int[Array, " rows"]:
    """The part that each position from 0 to ``count - 1`` lies in, of parts whose sizes differ by
    one at most, the larger ones first; ``parts`` beyond.
    """
    size = count // parts
    larger = count % parts
    end = larger * (size + 1)
    part = jnp.where(
        positions < end,
        positions // (size + 1),
        larger + (positions - end) // jnp.maximum(size, 1),
    )
    return jnp.where(positions < count, part, parts)


def cut_by_shares(
    shares: Float[Array, "*classes clients"], counts: Int[Array, "*classes"]
) -> Int[Array, "*classes clients"]:
    """Whole numbers with these sums in proportion to shares that sum to one: the ends of the
    shares on a line, rounded down, and their differences.
    """
    counts = jnp.asarray(counts, jnp.int32)[..., None]
    ends = jnp.floor(jnp.cumsum(shares, axis=-1) * counts.astype(shares.dtype)).astype(jnp.int32)
    # Sums that XLA adds up in pairs need not increase by rounding, nor end at one.
    ends = jax.lax.cummax(jnp.minimum(ends, counts), axis=ends.ndim - 1)
    ends = ends.at[..., -1].set(counts[..., 0])
    return jnp.diff(ends, axis=-1, prepend=0)


def random_ranks(key: Array, pool: Pool) -> Int[Array, " rows"]:
    """Each active row's position in a random order; the other rows come after them."""
    inactive = (~pool.active).astype(jnp.int32)
    return ranks_within(key, inactive, 2) + jnp.where(pool.active, 0, pool.active_count)


@module
class IID(Partitioner):
    """Rows in random order, in parts whose sizes differ by one at most.

    Example:
      >>> import fljax as fl
      >>> fl.partitions.IID().draw(0, 11, clients=4).sizes.tolist()
      [3, 3, 3, 2]
    """

    def bounds(self, rows: int, clients: int) -> tuple[int, int]:
        return rows // clients, -(-rows // clients)

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        return equal_parts(random_ranks(key, pool), pool.active_count, clients)


class _Unequal(Partitioner):
    """Rows in random order, cut in proportion to shares."""

    def owners(self, key: Array, pool: Pool, clients: int) -> Int[Array, " rows"]:
        share_key, order_key = jax.random.split(key)
        sizes = cut_by_shares(self.shares(share_key, clients), pool.active_count)
        return positions_in_blocks(jnp.cumsum(sizes, dtype=jnp.int32), pool.size)[
            random_ranks(order_key, pool)
        ]

    @checks.required
    def shares(self, key: Array, clients: int) -> Float[Array, " clients"]:
        """Return the share of each client; the sum is one."""
        raise NotImplementedError


@module
class DirichletSizes(_Unequal):
    r"""Sizes in proportions drawn from :math:`\mathrm{Dir}(\beta\mathbf1_K)`; labels are IID.

    A client may have no rows; see :class:`AtLeast`.

    Args:
      concentration: :math:`\beta>0`; larger values give more equal sizes.

    Raises:
      ValueError: a concentration that is not positive.

    Reference:
      Li et al. 2022, "quantity skew".

    Example:
      >>> import fljax as fl
      >>> sizes = fl.partitions.DirichletSizes(0.5).draw(0, 1000, clients=5).sizes
      >>> int(sizes.sum()), bool(sizes.max() > 2 * sizes.min())
      (1000, True)
    """

    concentration: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("concentration", self.concentration)

    def shares(self, key: Array, clients: int) -> Float[Array, " clients"]:
        concentration = jnp.asarray(self.concentration, float_dtype())
        return jax.random.dirichlet(key, jnp.full(clients, concentration))


@module
class LogNormalSizes(_Unequal):
    r"""Sizes in proportion to :math:`e^{\sigma z_k}` with normal :math:`z_k`; labels are IID.

    Args:
      sigma: :math:`\sigma\ge0`; zero gives equal sizes.

    Raises:
      ValueError: a negative deviation.

    Example:
      >>> import fljax as fl
      >>> fl.partitions.LogNormalSizes(0.0).draw(0, 100, clients=4).sizes.tolist()
      [25, 25, 25, 25]
    """

    sigma: Float[Array, ""] | float

    def validate(self) -> None:
        checks.nonnegative("sigma", self.sigma)

    def shares(self, key: Array, clients: int) -> Float[Array, " clients"]:
        normal = jax.random.normal(key, (clients,), float_dtype())
        return jax.nn.softmax(jnp.asarray(self.sigma, normal.dtype) * normal)


@module
class PowerLawSizes(_Unequal):
    r"""Sizes in proportion to :math:`k^{-\gamma}`: the first client has the most; labels are IID.

    Args:
      exponent: :math:`\gamma\ge0`; zero gives equal sizes.

    Raises:
      ValueError: a negative exponent.

    Example:
      >>> import fljax as fl
      >>> fl.partitions.PowerLawSizes(1.0).draw(0, 250, clients=4).sizes.tolist()
      [120, 60, 40, 30]
    """

    exponent: Float[Array, ""] | float

    def validate(self) -> None:
        checks.nonnegative("exponent", self.exponent)

    def shares(self, key: Array, clients: int) -> Float[Array, " clients"]:
        numbers = jnp.arange(1, clients + 1, dtype=float_dtype())
        return jax.nn.softmax(-jnp.asarray(self.exponent, numbers.dtype) * jnp.log(numbers))
