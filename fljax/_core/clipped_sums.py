"""Ghost clipping: clipped per-sample gradient sums without forming the gradients.

The gradient of one sample with respect to the weights of a dense layer is the outer product of the
layer's input and the gradient at its output. So its norm is the product of their norms, and a
weighted sum over samples is one matrix product. Instead of deriving this layer by layer, the
functions here find the outer products in the traced program of any gradient: they are the results
of ``dot_general`` over an axis of size one.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core
from jaxtyping import Array, ArrayLike, Float

from fljax._core.gradient_counts import Atom, shape_of
from fljax._core.linalg import norm, scaled_down
from fljax._core.numerics import HIGHEST
from fljax._core.split_rows import bind_equation

#: A piece of a gradient, as one row; or two rows whose outer product, raveled, is the piece.
Piece = tuple[Array, ...]

#: The equation that computes each variable of a program.
Producers: TypeAlias = dict[Atom, core.JaxprEqn]

#: Primitives that change at most the shape and type of an array, not the order of its numbers.
_SHAPE_ONLY = ("convert_element_type", "copy", "reshape")


def pieces_of(gradient: Callable[..., Float[Array, " dim"]]) -> Callable[..., list[Piece]]:
    """The gradient function, returning consecutive pieces; outer products as their two factors.

    The program of the gradient is traced, and run with the factors as its results. XLA then removes
    the computation of the outer products, which nothing uses.
    """

    def pieces(*arguments: object) -> list[Piece]:
        closed_jaxpr = jax.make_jaxpr(gradient)(*arguments)
        jaxpr = closed_jaxpr.jaxpr
        values = dict(zip(jaxpr.constvars, closed_jaxpr.consts, strict=True))
        values |= dict(zip(jaxpr.invars, jax.tree.leaves(arguments), strict=True))

        def read(atom: Atom) -> ArrayLike:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for equation in jaxpr.eqns:
            operands = map(read, equation.invars)
            values |= dict(zip(equation.outvars, bind_equation(equation, operands), strict=True))
        [row] = jaxpr.outvars
        producers: Producers = {variable: eqn for eqn in jaxpr.eqns for variable in eqn.outvars}
        return [
            tuple(jnp.ravel(read(atom)).astype(row.aval.dtype) for atom in atoms)
            for atoms in _piece_variables(row, producers)
        ]

    return pieces


def numbers_of(gradient: Callable[..., Float[Array, " dim"]], *arguments: object) -> int:
    """The total size of the pieces of a gradient for arguments of these shapes."""
    return sum(row.size for row in jax.tree.leaves(jax.eval_shape(pieces_of(gradient), *arguments)))


def _piece_variables(row: Atom, producers: Producers) -> list[tuple[Atom, ...]]:
    """For each piece of a row, the one or two variables that it is made of."""
    producer = producers.get(_source_variable(row, producers))
    is_concatenation = producer is not None and producer.primitive.name == "concatenate"
    return [
        _outer_product_factors(variable, producers) or (variable,)
        for variable in (producer.invars if is_concatenation else [row])
    ]


def _source_variable(
    variable: Atom, producers: Producers, transparent: Sequence[str] = _SHAPE_ONLY
) -> Atom:
    """The earliest variable with the same numbers in the same order, before reshapes and casts."""
    while not isinstance(variable, core.Literal) and variable in producers:
        equation = producers[variable]
        if equation.primitive.name not in transparent:
            break
        variable = equation.invars[0]
    return variable


def _outer_product_factors(variable: Atom, producers: Producers) -> tuple[Atom, Atom] | None:
    """The two variables whose outer product a piece is; ``None`` if it is none.

    JAX writes the gradient of a dense layer as a ``dot_general``, possibly transposed. If the
    contracted axes have size one without batch axes, it is an outer product.
    """
    source = _source_variable(variable, producers)
    transpose = producers.get(source)
    if transpose is not None and transpose.primitive.name == "transpose":
        source = _source_variable(transpose.invars[0], producers, ("convert_element_type", "copy"))
    else:
        transpose = None
    product = producers.get(source)
    if product is None or product.primitive.name != "dot_general":
        return None
    (contracted, _), (batch_axes, _) = product.params["dimension_numbers"]
    left, right = product.invars
    if batch_axes or math.prod(shape_of(left)[axis] for axis in contracted) != 1:
        return None
    if transpose is None:
        return left, right
    left_axes = len(shape_of(left)) - len(contracted)
    order = tuple(transpose.params["permutation"])
    swapped = (*range(left_axes, len(order)), *range(left_axes))
    return (right, left) if order == swapped else None


def finite(pieces: Sequence[Piece]) -> list[Piece]:
    """Replace NaN by zero and infinite numbers by the largest finite ones."""

    def replace(row: Array) -> Array:
        huge = jnp.finfo(row.dtype).max
        return jnp.clip(jnp.where(jnp.isnan(row), 0, row), -huge, huge)

    return jax.tree.map(replace, [*pieces])


def norm_of(pieces: Sequence[Piece]) -> Float[Array, "*batch"]:
    """The norm of a gradient in pieces."""

    def bounded_norm(row: Array) -> Array:
        return jnp.minimum(norm(row), jnp.finfo(row.dtype).max)  # inf * 0 would be NaN

    return norm(jnp.stack([math.prod(map(bounded_norm, piece)) for piece in pieces], axis=-1))


def split_by_sizes(pieces: Sequence[Piece], sizes: Sequence[int]) -> list[list[Piece]]:
    """Group the pieces of a gradient by its consecutive parts of these sizes."""
    parts = []
    remaining = [*pieces]
    for size in sizes:
        part: list[Piece] = []
        while size > 0:
            piece, *remaining = remaining
            width = math.prod(row.shape[-1] for row in piece)
            if width > size:
                piece, rest = _split_piece(piece, size)
                remaining = [rest, *remaining]
                width = size
            part.append(piece)
            size -= width
        parts.append(part)
    return parts


def _split_piece(piece: Piece, position: int) -> tuple[Piece, Piece]:
    """Split a piece after ``position`` numbers.

    An outer product is formed if the position is not a boundary between its rows.
    """
    first, *second = piece
    if second and position % second[0].shape[-1]:
        outer_product = first[..., :, None] * second[0][..., None, :]
        first = outer_product.reshape(*first.shape[:-1], -1)
        second = []
    elif second:
        position //= second[0].shape[-1]
    return (first[..., :position], *second), (first[..., position:], *second)


def inner(pieces: Sequence[Piece], row: Float[Array, " dim"]) -> Float[Array, ""]:
    """The inner product of a gradient in pieces with a row."""
    total = jnp.zeros((), row.dtype)
    start = 0
    for piece in pieces:
        shape = [len(factor) for factor in piece]
        block = row[start : start + math.prod(shape)].reshape(shape)
        for factor in piece:
            block = jnp.tensordot(factor, block, axes=1, precision=HIGHEST)
        total = total + block
        start = start + math.prod(shape)
    return total


def clipped_sum(
    pieces: Sequence[Piece], clip: Float[Array, ""], weights: Float[Array, " samples"]
) -> Float[Array, " dim"]:
    """The weighted sum of gradients in pieces ``[N, ...]``, each clipped to norm ``clip``.

    The bound holds for any data: NaN is replaced by zero, and overflowed numbers are clipped, too.
    """
    huge = jnp.finfo(weights.dtype).max
    # Scale factors to norm one first: the product of two norms may overflow where no entry does.
    rows, inverses, sizes = zip(*map(_normalized, finite(pieces)), strict=True)
    norms = jnp.stack(
        [jnp.minimum(math.prod(factor_norms), huge) for factor_norms in sizes], axis=1
    )
    [shares], [norm_inverse], [size] = _normalized([norms])
    shares = shares * norm_inverse[:, None]
    scales = weights[:, None] * jnp.where((size > clip)[:, None], clip * shares, norms)
    return jnp.concatenate(
        [
            _weighted_sum(factors, scale * math.prod(inverse))
            for factors, inverse, scale in zip(rows, inverses, scales.T, strict=True)
        ]
    )


def _normalized(rows: Sequence[Array]) -> tuple[list[Array], list[Array], list[Array]]:
    """Scale rows without overflow.

    Returns the rows divided by about their largest entries, the inverse norms of these, and the
    norms of the original rows, capped at the largest float.
    """
    scales, scaled = zip(*map(scaled_down, rows), strict=True)
    lengths = [jnp.sqrt(jnp.sum(row**2, axis=-1)) for row in scaled]
    sizes = [
        jnp.minimum(scale * length, jnp.finfo(length.dtype).max)
        for scale, length in zip(scales, lengths, strict=True)
    ]
    return [*scaled], [1 / jnp.where(n > 0, n, 1) for n in lengths], sizes


def _weighted_sum(factors: Sequence[Array], scale: Float[Array, " samples"]) -> Array:
    """The sum over samples of scaled rows, or of scaled outer products of two rows."""
    first, *second = factors
    if not second:
        return jnp.einsum("n,na->a", scale, first, precision=HIGHEST)
    return jnp.einsum("na,nb->ab", scale[:, None] * first, *second, precision=HIGHEST).ravel()
