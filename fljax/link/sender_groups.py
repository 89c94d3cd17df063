"""Sums over the messages of many senders, computed group by group, and their rounding error.

On a CPU the messages of :data:`GROUP` senders are computed at a time, so that memory never
holds all of them. Only rows that send are computed, which matters where few of many clients do. An
accelerator computes all rows together.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core.devices import on_cpu
from fljax._core.linalg import CLIP_ROUNDINGS, accumulated
from fljax._core.numerics import HIGHEST

#: Number of senders whose messages a CPU computes together. It bounds the rounding error of a sum
#: under privacy, too (:func:`sum_rounding`), so it is a constant and not a size of the machine.
GROUP = 32

#: Functions from row numbers to their messages, and to the parameter of each number in these.
MessageFunction = Callable[[Int[Array, " group"]], Float[Array, "group numbers"]]
IndexFunction = Callable[[Int[Array, " group"]], Int[Array, "group numbers"]]


class Accumulators(NamedTuple):
    """Where messages are added up: one sum for each server, or one for each client.

    The sums are flattened into one vector, ``number`` times ``dim`` parameters.
    """

    number: int
    of_row: Array  # [M]  the accumulator of each message
    dim: int
    parameters: Callable[[Array], Array | None]  # of the messages of some rows; None: all

    def indices(self, rows: Int[Array, " group"]) -> Int[Array, "group numbers"] | None:
        """Where each number of these messages is added; ``None`` for whole ones into one sum."""
        parameters = self.parameters(rows)
        if self.number == 1:
            return parameters
        if parameters is None:
            parameters = jnp.arange(self.dim, dtype=jnp.int32)[None]
        return parameters + self.dim * self.of_row[rows][:, None]

    def added_to(
        self,
        sums: Float[Array, "lags size"],
        lags: Int[Array, " group"],
        rows: Int[Array, " group"],
        messages: Float[Array, "group dim"],
    ) -> Float[Array, "lags size"]:
        """The sums with whole messages added to those of their lags and accumulators; messages of
        no lag are lost.
        """
        tables = sums.reshape(len(sums), self.number, self.dim)
        tables = tables.at[lags, self.of_row[rows]].add(messages, mode="drop")
        return tables.reshape(sums.shape)

    def weight_sums(
        self, weights: Float[Array, "lags messages"]
    ) -> Float[Array, "lags accumulators"]:
        """The sums of the messages' weights, by lag and accumulator."""
        if self.number == 1:
            return jnp.sum(weights, axis=1, keepdims=True)
        zero = jnp.zeros((len(weights), self.number), weights.dtype)
        return zero.at[:, self.of_row].add(weights)


def sum_over_senders(
    add: Callable[[Array, Array, Any], Any], senders: Bool[Array, " senders"], sums: PyTree
) -> Any:
    """Add the messages of all senders to ``sums``, on a CPU group by group.

    Args:
      add: from row numbers, a mask of the rows that send, and sums, to the next sums.
      senders: ``[M]``, which rows send.
      sums: to begin with.
    """
    rows = jnp.arange(senders.shape[0], dtype=jnp.int32)
    if senders.shape[0] <= GROUP or not on_cpu():
        return add(rows, senders, sums)
    rank = jnp.cumsum(senders, dtype=jnp.int32)
    capacity = -(-senders.shape[0] // GROUP) * GROUP
    # The senders' rows first, so that groups without senders at the end are skipped.
    order = jnp.zeros(capacity, jnp.int32)
    order = order.at[jnp.where(senders, rank - 1, capacity)].set(rows, mode="drop")

    def add_group(group: Array, sums: PyTree) -> Any:
        first = GROUP * group
        chosen = jax.lax.dynamic_slice(order, (first,), (GROUP,))
        return add(chosen, first + jnp.arange(GROUP, dtype=jnp.int32) < rank[-1], sums)

    return jax.lax.fori_loop(0, (rank[-1] + GROUP - 1) // GROUP, add_group, sums)


def add_in_groups(
    total: Float[Array, " dim"],
    rest: Float[Array, " dim"],
    weights: Float[Array, " rows"],
    rows: Float[Array, "rows dim"],
) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
    """Weighted rows added to a compensated sum (``total + rest``), :data:`GROUP` rows at a time.

    The rows of a group are added in plain arithmetic, and the groups in twice the digits: this is
    the order of additions that :func:`sum_rounding` bounds.
    """
    groups = -(-len(weights) // GROUP)
    if groups <= 1:
        return accumulated(total, rest, jnp.matmul(weights, rows, precision=HIGHEST))
    padding = groups * GROUP - len(weights)
    weights = jnp.pad(weights, (0, padding)).reshape(groups, GROUP)
    rows = jnp.pad(rows, ((0, padding), (0, 0))).reshape(groups, GROUP, rows.shape[1])
    parts = jnp.einsum("gr,grd->gd", weights, rows, precision=HIGHEST)

    def add_part(sums: tuple[Array, Array], part: Array) -> tuple[tuple[Array, Array], None]:
        return accumulated(*sums, part), None

    return jax.lax.scan(add_part, (total, rest), parts)[0]


def sum_rounding(senders: int, dtype: DTypeLike) -> float:
    r"""How far apart rounding may move the sums of clipped updates of two neighbors, in clips,
    besides their exact distance.

    With :math:`u` the unit roundoff: the norm of a clipped row exceeds the clip by at most
    ``CLIP_ROUNDINGS`` times :math:`u`. A row is part of one sum of at most :math:`G=32` rows, whose
    partial sums, of at most :math:`G` clips, are rounded in either world in at most :math:`G`
    additions, :math:`2G^2u`. Sums of groups without that row are the same to the last bit. They
    are added up with twice the digits: a partial sum of :math:`jG` clips is rounded by at most
    :math:`2u^2jG` in either world, so :math:`2u^2K^2/G` in all for :math:`K` senders. The rounding
    of the final sum, which is as long as the data make it, is measured.

    Args:
      senders: :math:`K`.
      dtype: of the updates.
    """
    unit = float(jnp.finfo(dtype).eps) / 2
    once = CLIP_ROUNDINGS + 2 * GROUP**2
    return once * unit + 2 * unit**2 * senders**2 / GROUP
