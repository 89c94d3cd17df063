"""Count sketches: linear maps of vectors to short tables, which estimate the largest entries."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import module, static
from fljax.link.compression import WORD, Compressor, Messages


class HashFunctions(NamedTuple):
    """The hash functions of a count sketch, which all who add or read its tables share."""

    cells: Array  # [rows, D]  the column to which each entry is added, in each row
    signs: Array  # [rows, D]  the sign with which it is added, +1 or -1


@module
class CountSketch(Compressor):
    r"""A table of ``rows`` x ``columns`` sums of entries with random signs.

    Row :math:`j` adds entry :math:`i` with the sign :math:`s_j(i)` to the column :math:`h_j(i)`,
    both drawn independently and uniformly, and every row has an estimate of every entry,

    .. math::

        S(v)_{jc}=\sum_{i:h_j(i)=c}s_j(i)v_i,\qquad
        \hat v_i=\mathrm{median}_j\;s_j(i)\,S(v)_{j\,h_j(i)}

    The table is linear in the vector, so that the sum of clients' tables is the table of their sum,
    if all have the same hash functions (:meth:`draw`): :class:`~fljax.algorithms.FetchSGD` keeps
    momentum and errors in such tables. Entries that are large in comparison with the norm of the
    others are estimated well, small ones are not.

    As a compressor, with hash functions that both ends draw for each message from a common seed, it
    is unbiased, as an estimate's error has a symmetric distribution, and
    :math:`\omega=(D-1)/\mathrm{columns}`: the mean squared error of a single row is
    :math:`\omega\|v\|^2` for every :math:`v`, and that of the median is no larger.

    Args:
      rows: of the table, each with hash functions of its own.
      columns: of the table.

    Raises:
      ValueError: no row, or no column.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> sketch = fl.link.CountSketch(rows=5, columns=20)
      >>> hashes = sketch.draw(jax.random.key(0), 1000)
      >>> clients = jnp.zeros((2, 1000)).at[0, 7].set(3.0).at[1, 7].set(1.0)
      >>> tables = sketch.sketch(hashes, clients)
      >>> estimate = sketch.estimate(hashes, jnp.sum(tables, axis=0, keepdims=True))
      >>> tables.shape, float(estimate[0, 7])
      ((2, 100), 4.0)

    Reference:
      Charikar, Chen & Farach-Colton 2002.
    """

    rows: int = static()
    columns: int = static()

    def validate(self) -> None:
        checks.count("rows", self.rows)
        checks.count("columns", self.columns)

    @property
    def size(self) -> int:
        """How many numbers a table has."""
        return self.rows * self.columns

    def draw(self, key: Array, dim: int) -> HashFunctions:
        """Return hash functions of ``dim`` entries."""
        drawn = jax.random.randint(key, (self.rows, dim), 0, 2 * self.columns, jnp.int32)
        return HashFunctions(drawn // 2, 1 - 2 * (drawn % 2))

    def sketch(
        self, hashes: HashFunctions, vectors: Float[Array, "vectors dim"]
    ) -> Float[Array, "vectors size"]:
        """Return the table of each vector, its rows one after the other."""

        def row(cells: Int[Array, " dim"], signs: Int[Array, " dim"]) -> Array:
            signed = vectors * signs.astype(vectors.dtype)[None]
            return jax.ops.segment_sum(signed.T, cells, self.columns)

        tables = jax.vmap(row)(hashes.cells, hashes.signs)  # [rows, columns, vectors]
        return tables.reshape(self.size, len(vectors)).T

    def estimate(
        self, hashes: HashFunctions, tables: Float[Array, "vectors size"]
    ) -> Float[Array, "vectors dim"]:
        """Return the estimate of all entries of the vector of each table."""
        by_row = tables.reshape(len(tables), self.rows, self.columns)
        sums = jnp.take_along_axis(by_row, hashes.cells[None], axis=2)
        return jnp.median(sums * hashes.signs.astype(tables.dtype)[None], axis=1)

    def bits(self, dim: int) -> int:
        return WORD * self.size

    def compress(self, keys: Array, message: Messages) -> Messages:
        def reconstructed(key: Array, vector: Array) -> Array:
            hashes = self.draw(key, len(vector))
            return self.estimate(hashes, self.sketch(hashes, vector[None]))[0]

        return jax.vmap(reconstructed)(keys, message)

    def variance(self, dim: int) -> float:
        return (dim - 1) / self.columns
