r"""Noise that a strategy correlates: what participations cost, and the encoding of releases.

A mechanism whose rows :math:`x`, in deviations of their noise, are encoded by a strategy :math:`C`
perturbs :math:`\theta=Cx` by independent noise and publishes what is decoded from it
(:mod:`fljax.privacy.matrices`). The rows are the sums of a trusted server
(:class:`~fljax.privacy.CentralGaussian`), of whose rounds clients take part in some, or those of a
client's local steps (:class:`~fljax.privacy.NoisyGradients`), of which samples take part in some.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._linalg import norm, rounded_off
from fljax._module import float_dtype
from fljax.participation import Law
from fljax.privacy.accounting.sampling import amplifies
from fljax.privacy.matrices import Strategy

__all__ = [
    "Coding",
    "Turns",
    "amplified",
    "begin",
    "decoded",
    "encoded",
    "overlaps",
    "participation_costs",
    "sampled",
    "turns",
]


class Turns(NamedTuple):
    """What participations cost in a whole run, and how far its rows reach."""

    costs: Array  # [participations]  squared sensitivity that each one adds, in sensitivities
    largest: Array  # []  of a single row at most, whose participations may be several
    affected: Array | int  # number of rows that one participation may move
    roundings: Array | int  # of a term of an encoded row
    separation: Array | int  # least number of rows between two participations


class Coding(NamedTuple):
    """State of a strategy between rows; these are in deviations of their noise."""

    encoder: Any  # of what is released
    decoder: Any  # of perturbed numbers
    lengths: Any  # of the norms of rows, of which nothing cancels


def turns(strategy: Strategy | None, law: Law, rows: int) -> Turns:
    """Return what participations cost in so many rows.

    Args:
      strategy: independent noise if ``None``.
      law: of the participations.
      rows: of the whole run.

    Raises:
      ValueError: more rows than the strategy is made for.
    """
    costs = jnp.asarray(participation_costs(strategy, law, rows))
    if strategy is None:
        return Turns(costs, costs[0], 1, 0, law.separation)
    affected, largest = min(strategy.bands or rows, rows), costs[0]
    if overlaps(strategy, law):
        affected, largest = rows, jnp.sum(costs)
    return Turns(costs, largest, affected, strategy.roundings(rows), law.separation)


def participation_costs(strategy: Strategy | None, law: Law, rows: int) -> Array | np.ndarray:
    """Return what each participation adds to the squared sensitivity, rounded up; of traced
    strategies once their numbers are known.

    Args:
      strategy: as in :func:`turns`, like the other arguments.
      law: of the participations.
      rows: of the whole run.
    """
    count = -(-rows // law.separation)
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

    def costs(*numbers: Any) -> np.ndarray:
        arrays = [np.asarray(each) for each in numbers]
        given = tuple((each.dtype.str, each.shape, each.tobytes()) for each in arrays)
        exact = _participation_costs(structure, given, rows, law.separation)
        return np.nextafter(exact.astype(dtype), dtype.type(np.inf))

    if all(_check.is_concrete(leaf) for leaf in leaves):
        return costs(*leaves)
    shape = jax.ShapeDtypeStruct((count,), dtype)
    return jax.pure_callback(costs, shape, *leaves, vmap_method="sequential")


@functools.lru_cache(maxsize=256)  # all seeds of a study ask alike
def _participation_costs(
    structure: Any, numbers: tuple[tuple[str, tuple[int, ...], bytes], ...], rows: int, gap: int
) -> np.ndarray:
    leaves = [np.frombuffer(data, dtype).reshape(shape) for dtype, shape, data in numbers]
    return jax.tree.unflatten(structure, leaves).participation_costs(rows, gap)


def overlaps(strategy: Strategy | None, law: Law) -> bool:
    """Whether one row may hold two participations."""
    if strategy is None:
        return False
    return strategy.bands is None or strategy.bands > law.separation


def amplified(strategy: Strategy | None, law: Law, neighbors: str) -> bool:
    """Whether secret sampling by this law amplifies the guarantee: its theorem is known for these
    neighbors, and no row holds two participations.
    """
    return not overlaps(strategy, law) and amplifies(law.sampling, neighbors)


def sampled(
    strategy: Strategy | None,
    noise_multiplier: Any,
    costs: Array,
    law: Law,
    neighbors: str,
    drawn_from: Any,
) -> dict[str, Array]:
    """Return what :func:`fljax.privacy.spent` needs for amplification by sampling: the multiplier
    of a release, the rate and the number of units that are drawn from.

    Args:
      strategy: as in :func:`turns`.
      noise_multiplier: of one row.
      costs: of participations.
      law: of the participations.
      neighbors: the relation of neighbors.
      drawn_from: the number of units.
    """
    secret = amplified(strategy, law, neighbors)
    drawn = secret and law.sampling == "drawn"
    return {
        "noise_multiplier": jnp.asarray(noise_multiplier) / jnp.sqrt(costs[0]),
        "sampling_rate": jnp.asarray(law.rate_of_turn if secret else 1.0),
        "drawn_from": jnp.asarray(drawn_from if drawn else 0),
    }


def begin(strategy: Strategy, numbers: int, dtype: Any) -> Coding:
    """Return the state before the first row of so many numbers."""
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
    # What several releases move together is as long as their number's square root.
    each = planned.roundings * rounded_off(length[None, None])[0]
    rounding = each * jnp.sqrt(jnp.asarray(planned.affected, row.dtype))
    return coding._replace(encoder=encoder, lengths=lengths), result, rounding


def decoded(
    strategy: Strategy, coding: Coding, row: Float[Array, " numbers"]
) -> tuple[Coding, Float[Array, " numbers"]]:
    """Return the next state, and the decoded row, from a perturbed one."""
    decoder, result = strategy.decode(coding.decoder, row)
    return coding._replace(decoder=decoder), result
