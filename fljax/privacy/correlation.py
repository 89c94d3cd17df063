r"""Noise that a strategy correlates: the costs of participations, and the encoding of releases.

A mechanism whose rows :math:`x`, in deviations of their noise, are encoded by a strategy :math:`C`
perturbs :math:`\theta=Cx` by independent noise and publishes the decoded result
(:mod:`fljax.privacy.matrices`). The rows are the sums of a trusted server
(:class:`~fljax.privacy.CentralGaussian`), whose clients take part in some rounds, or the gradients
of a client's local steps (:class:`~fljax.privacy.NoisyGradients`), whose samples take part in some
steps.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.linalg import norm, rounding_distance
from fljax._core.module import float_dtype
from fljax.participation.selectors import Law
from fljax.privacy.accounting.sampling import amplifies
from fljax.privacy.matrices import Strategy


class Turns(NamedTuple):
    """Costs of participations in a whole run, and the reach of its rows."""

    costs: Array  # [participations]  squared sensitivity that each one adds, in sensitivities
    largest: Array  # []  of a single row at most, whose participations may be several
    affected: Array | int  # number of rows that one participation may move
    roundings: Array | int  # of a term of an encoded row
    separation: Array | int  # least number of rows between two participations


class Coding(NamedTuple):
    """State of a strategy between rows; these are in deviations of their noise."""

    encoder: PyTree  # of the released rows
    decoder: PyTree  # of perturbed numbers
    lengths: PyTree  # of the norms of rows, which do not cancel


def turns(strategy: Strategy | None, scheme: Law, rows: int) -> Turns:
    """Return the costs of participations in this number of rows.

    Args:
      strategy: independent noise if ``None``.
      scheme: of the participations.
      rows: of the whole run.

    Raises:
      ValueError: more rows than the strategy is made for.
    """
    costs = jnp.asarray(participation_costs(strategy, scheme, rows))
    if strategy is None:
        return Turns(costs, costs[0], 1, 0, scheme.separation)
    affected = min(strategy.bands or rows, rows)
    largest = costs[0]
    if overlaps(strategy, scheme):
        affected = rows
        largest = jnp.sum(costs)
    return Turns(costs, largest, affected, strategy.roundings(rows), scheme.separation)


def participation_costs(strategy: Strategy | None, scheme: Law, rows: int) -> Array | np.ndarray:
    """Return each participation's addition to the squared sensitivity, rounded up; for traced
    strategies by a callback, when their numbers are known.

    Args:
      strategy: as in :func:`turns`, like the other arguments.
      scheme: of the participations.
      rows: of the whole run.
    """
    count = -(-rows // scheme.separation)
    if strategy is None:
        return np.ones(count)
    horizon = strategy.horizon
    if horizon is not None and rows > horizon:
        raise ValueError(
            f"the strategy is made for {horizon} rounds, and the run has {rows}; make one for as "
            "many rounds."
        )
    leaves, structure = jax.tree.flatten(strategy)
    dtype = np.dtype(float_dtype())

    def costs(*numbers: object) -> np.ndarray:
        arrays = [np.asarray(array) for array in numbers]
        key = tuple((array.dtype.str, array.shape, array.tobytes()) for array in arrays)
        exact = _participation_costs(structure, key, rows, scheme.separation)
        return np.nextafter(exact.astype(dtype), dtype.type(np.inf))

    if all(checks.is_concrete(leaf) for leaf in leaves):
        return costs(*leaves)
    shape = jax.ShapeDtypeStruct((count,), dtype)
    return jax.pure_callback(costs, shape, *leaves, vmap_method="sequential")


@functools.lru_cache(maxsize=256)  # all seeds of a study have the same arguments
def _participation_costs(
    structure: PyTreeDef,
    numbers: tuple[tuple[str, tuple[int, ...], bytes], ...],
    rows: int,
    gap: int,
) -> np.ndarray:
    leaves = [np.frombuffer(data, dtype).reshape(shape) for dtype, shape, data in numbers]
    return jax.tree.unflatten(structure, leaves).participation_costs(rows, gap)


def overlaps(strategy: Strategy | None, scheme: Law) -> bool:
    """Whether one row may hold two participations."""
    if strategy is None:
        return False
    return strategy.bands is None or strategy.bands > scheme.separation


def amplified(strategy: Strategy | None, scheme: Law, neighbors: str) -> bool:
    """Whether secret sampling by this law amplifies the guarantee: its theorem is known for these
    neighbors, and no row holds two participations.
    """
    return not overlaps(strategy, scheme) and amplifies(scheme.sampling, neighbors)


def sampled(
    strategy: Strategy | None,
    noise_multiplier: Array | float,
    costs: Array,
    scheme: Law,
    neighbors: str,
    drawn_from: Array | int,
) -> dict[str, Array]:
    """Return what :func:`fljax.privacy.spent` needs for amplification by sampling: the multiplier
    of a release, the rate and the number of units that are drawn from.

    Args:
      strategy: as in :func:`turns`.
      noise_multiplier: of one row.
      costs: of participations.
      scheme: of the participations.
      neighbors: the relation of neighbors.
      drawn_from: the number of units.
    """
    secret = amplified(strategy, scheme, neighbors)
    drawn = secret and scheme.sampling == "drawn"
    return {
        "noise_multiplier": jnp.asarray(noise_multiplier) / jnp.sqrt(costs[0]),
        "sampling_rate": jnp.asarray(scheme.rate_of_turn if secret else 1.0),
        "drawn_from": jnp.asarray(drawn_from if drawn else 0),
    }


def begin(strategy: Strategy, numbers: int, dtype: DTypeLike) -> Coding:
    """Return the state before the first row of this length."""
    return Coding(
        strategy.begin(numbers, dtype),
        strategy.begin(numbers, dtype),
        strategy.absolute().begin((), dtype),
    )


def encoded(
    strategy: Strategy, planned: Turns, coding: Coding, row: Float[Array, " numbers"]
) -> tuple[Coding, Float[Array, " numbers"], Float[Array, ""]]:
    """Return the next state, the encoded row, and how far roundings of encoding may move it.

    Args:
      strategy: of the mechanism.
      planned: for the whole run.
      coding: from the previous row.
      row: in deviations of its noise.
    """
    encoder, result = strategy.encode(coding.encoder, row)
    lengths, length = strategy.absolute().encode(coding.lengths, norm(row))
    # The joint norm over several releases grows as the square root of their number.
    per_release = planned.roundings * rounding_distance(length[None, None])[0]
    rounding = per_release * jnp.sqrt(jnp.asarray(planned.affected, row.dtype))
    return coding._replace(encoder=encoder, lengths=lengths), result, rounding


def decoded(
    strategy: Strategy, coding: Coding, row: Float[Array, " numbers"]
) -> tuple[Coding, Float[Array, " numbers"]]:
    """Return the next state, and the decoded row, from a perturbed one."""
    decoder, result = strategy.decode(coding.decoder, row)
    return coding._replace(decoder=decoder), result
