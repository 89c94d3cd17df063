"""Evaluate a step with models split into pieces, such as the parameters of a network.

A model is a row ``[D]`` everywhere. A network's gradient splits it into the network's parameters,
and concatenates their gradients to a row. XLA does not move the splits through the elementwise
operations between the two: it copies the model for each, or computes for every number which piece
it belongs to, which took half of a step's time on a CPU. So this module interprets the jaxpr of a
step with rows in pieces: elementwise operations run piece by piece, splits and concatenations at
the boundaries cost nothing, and other operations get the joined row. The results are the same.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.extend.core import JaxprEqn
from jaxtyping import Array, ArrayLike, PyTree

from fljax._core.gradient_counts import Atom, is_count

#: Elementwise primitives, by their names in JAX.
_ELEMENTWISE = frozenset(
    {"abs", "add", "add_any", "copy", "div", "max", "min", "mul", "neg", "rem", "sign", "sub"}
    | {"cbrt", "exp", "exp2", "expm1", "integer_pow", "log", "log1p", "pow", "rsqrt", "sqrt"}
    | {"and", "eq", "ge", "gt", "is_finite", "le", "lt", "ne", "not", "or", "select_n", "xor"}
    | {"clamp", "convert_element_type", "erf", "logistic", "round", "square", "tanh"}
)


class Pieces(NamedTuple):
    """Rows ``[..., D]``, split along their last axis."""

    pieces: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.pieces[0].shape
        return *first[:-1], sum(piece.shape[-1] for piece in self.pieces)


#: A value in the evaluation of a program.
Value: TypeAlias = ArrayLike | Pieces


def cut(tree: PyTree, sizes: Sequence[int]) -> Any:
    """Split each array ``[..., D]`` of a tree into pieces of these sizes; the rest is unchanged."""
    row_size = sum(sizes)
    if len(sizes) == 1:
        return tree
    return jax.tree.map(
        lambda a: _split_rows(a, sizes) if a.ndim > 1 and a.shape[-1] == row_size else a, tree
    )


def joined(tree: PyTree) -> Any:
    """Join the pieces of all rows of a tree: the inverse of :func:`cut`."""
    return jax.tree.map(_joined_rows, tree, is_leaf=_is_split)


def in_pieces(function: Callable[..., Any], sizes: Sequence[int]) -> Callable[..., Any]:
    """The function ``(carry, *arguments) -> carry``, for a carry whose rows are in pieces."""
    sizes = tuple(sizes)
    if len(sizes) == 1:
        return function

    def in_split_rows(carry: PyTree, *arguments: object) -> Any:
        joined_shapes = jax.eval_shape(joined, carry)
        closed_jaxpr, shape = jax.make_jaxpr(function, return_shape=True)(joined_shapes, *arguments)
        inputs = [*jax.tree.leaves(carry, is_leaf=_is_split), *jax.tree.leaves(arguments)]
        out = jax.tree.unflatten(jax.tree.structure(shape), _evaluate(closed_jaxpr, inputs, sizes))

        def match_layout(old: Value, new: Array | Pieces) -> Value:
            return _split_rows(new, sizes) if _is_split(old) else _joined_rows(new)

        return jax.tree.map(match_layout, carry, out, is_leaf=_is_split)

    return in_split_rows


def _is_split(value: object) -> bool:
    return isinstance(value, Pieces)


def _split_rows(value: Array | Pieces, sizes: Sequence[int]) -> Pieces:
    if isinstance(value, Pieces):
        return value
    ends = np.cumsum(sizes).tolist()
    intervals = zip([0, *ends], ends, strict=False)
    return Pieces(tuple(lax.slice_in_dim(value, *bounds, axis=-1) for bounds in intervals))


def _joined_rows(value: Value) -> Any:
    return jnp.concatenate(value.pieces, axis=-1) if isinstance(value, Pieces) else value


def _evaluate(
    closed_jaxpr: core.ClosedJaxpr, inputs: Sequence[Any], sizes: tuple[int, ...]
) -> list[Any]:
    """Run a jaxpr whose values are arrays or :class:`Pieces`, and return its outputs."""
    jaxpr = closed_jaxpr.jaxpr
    values = dict(zip(jaxpr.constvars, closed_jaxpr.consts, strict=True))
    values |= dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Atom) -> Value:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        out = None
        if name == "concatenate" or any(map(_is_split, operands)):
            rule = _elementwise if name in _ELEMENTWISE else _RULES.get(name, _with_joined_rows)
            out = rule(equation, operands, sizes)
        if out is None:
            out = _with_joined_rows(equation, operands, sizes)
        values |= dict(zip(equation.outvars, out, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def bind_equation(equation: JaxprEqn, values: Iterable[Any]) -> list[Any]:
    """The outputs of one equation of a jaxpr.

    ``get_bind_params`` is JAX's own way to evaluate an equation (``jax.core.eval_jaxpr``).
    """
    primitive = equation.primitive
    out = primitive.bind(*values, **primitive.get_bind_params(equation.params))
    return out if primitive.multiple_results else [out]


def _with_joined_rows(equation: JaxprEqn, values: list[Any], sizes: tuple[int, ...]) -> list[Any]:
    return bind_equation(equation, map(_joined_rows, values))


# Rules for operands where some are in pieces; they return None if the rows must be joined first.


def _elementwise(equation: JaxprEqn, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    """Split operands with a full last axis; broadcast the others."""
    full_axis = (sum(sizes),)
    operand_pieces = [
        _split_rows(value, sizes).pieces
        if np.shape(value)[-1:] == full_axis
        else (value,) * len(sizes)
        for value in values
    ]
    results = (
        equation.primitive.bind(*operands, **equation.params)
        for operands in zip(*operand_pieces, strict=True)
    )
    return [Pieces(tuple(results))]


def _broadcast(equation: JaxprEqn, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    *outer, last = shape = equation.params["shape"]
    axes = equation.params["broadcast_dimensions"]
    if axes[-1] != len(shape) - 1 or last != sum(sizes):
        return None
    return [
        Pieces(
            tuple(lax.broadcast_in_dim(p, (*outer, p.shape[-1]), axes) for p in values[0].pieces)
        )
    ]


def _squeeze(equation: JaxprEqn, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    dimensions = equation.params["dimensions"]
    if len(values[0].shape) - 1 in dimensions:
        return None
    return [Pieces(tuple(lax.squeeze(piece, dimensions) for piece in values[0].pieces))]


def _split(equation: JaxprEqn, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    on_last_axis = equation.params["axis"] == len(values[0].shape) - 1
    fits = on_last_axis and tuple(equation.params["sizes"]) == sizes
    return list(values[0].pieces) if fits else None


def _concatenate(equation: JaxprEqn, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    on_last_axis = equation.params["dimension"] == len(np.shape(values[0])) - 1
    fits = on_last_axis and tuple(np.shape(value)[-1] for value in values) == sizes
    return [Pieces(tuple(map(_joined_rows, values)))] if fits else None


def _name(equation: JaxprEqn, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    """A mark of :mod:`~fljax._core.gradient_counts` must be counted once: keep it on one piece."""
    first, *rest = values[0].pieces
    if not is_count(equation.params["name"]):
        return None
    return [Pieces((equation.primitive.bind(first, **equation.params), *rest))]


def _call(equation: JaxprEqn, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    return _evaluate(equation.params["jaxpr"], values, sizes)


_RULES: dict[str, Callable[..., list[Any] | None]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "jit": _call,
    "name": _name,
    "split": _split,
    "squeeze": _squeeze,
}
