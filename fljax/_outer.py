"""Sums of clipped gradients of samples, of which no gradient is formed that need not be.

A sample's gradient in the weights of a layer that multiplies is an outer product of what the layer
was given and of the slope of what it returned. Its norm is the product of theirs, and a weighted
sum over samples is one product of matrices. Which pieces of a gradient are outer products is read
off its program: they are what a product over an axis of one ends in. (Known as ghost clipping,
where it is derived layer by layer.)
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jaxtyping import Array, Float

from fljax._linalg import norm, scaled_down
from fljax._numerics import HIGHEST
from fljax._pieces import bound

__all__ = [
    "Piece",
    "clipped_sum",
    "finite",
    "inner",
    "norm_of",
    "numbers_of",
    "parted",
    "pieces_of",
]

#: One row, a piece of a gradient; or two, of which it is the outer product, row after row.
Piece = tuple[Array, ...]

#: What does not change the numbers of a piece, or no more than their type.
_KEPT = ("convert_element_type", "copy", "reshape")


def pieces_of(slope: Callable[..., Float[Array, " dim"]]) -> Callable[..., list[Piece]]:
    """The same gradient in pieces, one after the other, outer products as their two rows."""

    def pieces(*given: Any) -> list[Piece]:
        closed = jax.make_jaxpr(slope)(*given)
        program = closed.jaxpr
        known = dict(zip(program.constvars, closed.consts, strict=True))
        known |= dict(zip(program.invars, jax.tree.leaves(given), strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for equation in program.eqns:
            values = map(value, equation.invars)
            known |= dict(zip(equation.outvars, bound(equation, values), strict=True))
        [whole] = program.outvars
        made = {variable: one for one in program.eqns for variable in one.outvars}
        return [
            tuple(jnp.ravel(value(atom)).astype(whole.aval.dtype) for atom in atoms)
            for atoms in _pieces(whole, made)
        ]

    return pieces


def numbers_of(slope: Callable[..., Float[Array, " dim"]], *like: Any) -> int:
    """How many numbers the pieces of a gradient have, of arguments like these."""
    return sum(row.size for row in jax.tree.leaves(jax.eval_shape(pieces_of(slope), *like)))


def _pieces(whole: Any, made: dict[Any, Any]) -> list[tuple[Any, ...]]:
    """The variables of which a row is made."""
    last = made.get(_source(whole, made))
    joined = last is not None and last.primitive.name == "concatenate"
    return [_factors(one, made) or (one,) for one in (last.invars if joined else [whole])]


def _source(variable: Any, made: dict[Any, Any], through: Sequence[str] = _KEPT) -> Any:
    """The variable that has the same numbers in the same order, before they were shaped."""
    while not isinstance(variable, core.Literal) and variable in made:
        equation = made[variable]
        if equation.primitive.name not in through:
            break
        variable = equation.invars[0]
    return variable


def _factors(variable: Any, made: dict[Any, Any]) -> tuple[Any, Any] | None:
    """The two variables whose outer product a piece is."""
    source = _source(variable, made)
    turned = made.get(source)
    if turned is not None and turned.primitive.name == "transpose":
        source = _source(turned.invars[0], made, ("convert_element_type", "copy"))
    else:
        turned = None
    product = made.get(source)
    if product is None or product.primitive.name != "dot_general":
        return None
    (summed, _), (batched, _) = product.params["dimension_numbers"]
    left, right = product.invars
    if batched or math.prod(left.aval.shape[axis] for axis in summed) != 1:
        return None
    if turned is None:
        return left, right
    own = len(left.aval.shape) - len(summed)
    order = tuple(turned.params["permutation"])
    swapped = (*range(own, len(order)), *range(own))
    return (right, left) if order == swapped else None


def finite(pieces: Sequence[Piece]) -> list[Piece]:
    """Zero where a number is NaN, the largest where it is infinite."""

    def one(row: Array) -> Array:
        huge = jnp.finfo(row.dtype).max
        return jnp.clip(jnp.where(jnp.isnan(row), 0, row), -huge, huge)

    return jax.tree.map(one, [*pieces])


def norm_of(pieces: Sequence[Piece]) -> Float[Array, "*batch"]:
    """The norm of a gradient in pieces."""

    def size(row: Array) -> Array:
        return jnp.minimum(norm(row), jnp.finfo(row.dtype).max)  # infinite times zero is NaN

    return norm(jnp.stack([math.prod(map(size, piece)) for piece in pieces], axis=-1))


def parted(pieces: Sequence[Piece], sizes: Sequence[int]) -> list[list[Piece]]:
    """The pieces of each part of a gradient, of so many numbers one after the other."""
    parts, left = [], [*pieces]
    for size in sizes:
        own: list[Piece] = []
        while size > 0:
            piece, *left = left
            width = math.prod(row.shape[-1] for row in piece)
            if width > size:
                piece, rest = _cut(piece, size)
                left, width = [rest, *left], size
            own.append(piece)
            size -= width
        parts.append(own)
    return parts


def _cut(piece: Piece, at: int) -> tuple[Piece, Piece]:
    """A piece in two, of which the first has so many numbers; an outer product that is not cut
    between its rows is formed.
    """
    first, *others = piece
    if others and at % others[0].shape[-1]:
        whole = first[..., :, None] * others[0][..., None, :]
        first, others = whole.reshape(*first.shape[:-1], -1), []
    elif others:
        at //= others[0].shape[-1]
    return (first[..., :at], *others), (first[..., at:], *others)


def inner(pieces: Sequence[Piece], row: Float[Array, " dim"]) -> Float[Array, ""]:
    """The inner product of a gradient in pieces with a row."""
    total, start = jnp.zeros((), row.dtype), 0
    for piece in pieces:
        shape = [len(one) for one in piece]
        own = row[start : start + math.prod(shape)].reshape(shape)
        for one in piece:
            own = jnp.tensordot(one, own, axes=1, precision=HIGHEST)
        total, start = total + own, start + math.prod(shape)
    return total


def clipped_sum(
    pieces: Sequence[Piece], clip: Float[Array, ""], weights: Float[Array, " samples"]
) -> Float[Array, " dim"]:
    """The weighted sum of gradients, in pieces ``[N, ...]``, each scaled down to norm ``clip`` at
    most.

    This holds for any data: what is NaN is replaced by zero, and what has overflowed is clipped as
    well.
    """
    huge = jnp.finfo(weights.dtype).max
    # A product of norms may overflow where none of the numbers does: rows are taken at norm one.
    rows, inverses, sizes = zip(*map(_directions, finite(pieces)), strict=True)
    each = jnp.stack([jnp.minimum(math.prod(own), huge) for own in sizes], axis=1)
    [shares], [one], [size] = _directions([each])
    shares = shares * one[:, None]
    kept = weights[:, None] * jnp.where((size > clip)[:, None], clip * shares, each)
    return jnp.concatenate(
        [
            _summed(own, scale * math.prod(inverse))
            for own, inverse, scale in zip(rows, inverses, kept.T, strict=True)
        ]
    )


def _directions(rows: Sequence[Array]) -> tuple[list[Array], list[Array], list[Array]]:
    """Rows over about their largest number, what then makes their norms one, and what these were,
    at most the largest number.
    """
    scales, scaled = zip(*map(scaled_down, rows), strict=True)
    lengths = [jnp.sqrt(jnp.sum(row**2, axis=-1)) for row in scaled]
    sizes = [
        jnp.minimum(scale * length, jnp.finfo(length.dtype).max)
        for scale, length in zip(scales, lengths, strict=True)
    ]
    return [*scaled], [1 / jnp.where(n > 0, n, 1) for n in lengths], sizes


def _summed(rows: Sequence[Array], scale: Float[Array, " samples"]) -> Array:
    """Scaled rows, or outer products of two, summed over samples."""
    first, *others = rows
    if not others:
        return jnp.einsum("n,na->a", scale, first, precision=HIGHEST)
    return jnp.einsum("na,nb->ab", scale[:, None] * first, *others, precision=HIGHEST).ravel()
