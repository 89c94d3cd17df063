"""Rows of numbers in the pieces that they are joined of, such as a network's parameters: the steps
of a loop as if they were written for each piece.

A model is a row ``[D]`` everywhere; a network's gradient cuts it into the network's parameters, and
joins theirs to a row. XLA takes no cut through the operations on whole rows that stand between the
two: it copies a model for each, or asks of every number which piece it belongs to, which took half
of a step's time on a CPU. So the program of a step is evaluated here with rows in pieces:
operations on each number are done piece by piece, cuts and joints between pieces are nothing, and
what needs a whole row gets it joined. Whatever the step does, it computes the same numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jaxtyping import Array

from fljax._evaluations import is_count

__all__ = ["bound", "cut", "in_pieces", "joined"]

#: Operations on each number by itself, in JAX's names.
_EACH = frozenset(
    {"abs", "add", "add_any", "copy", "div", "max", "min", "mul", "neg", "rem", "sign", "sub"}
    | {"cbrt", "exp", "exp2", "expm1", "integer_pow", "log", "log1p", "pow", "rsqrt", "sqrt"}
    | {"and", "eq", "ge", "gt", "is_finite", "le", "lt", "ne", "not", "or", "select_n", "xor"}
    | {"clamp", "convert_element_type", "erf", "logistic", "round", "square", "tanh"}
)


class Pieces(NamedTuple):
    """Rows ``[..., D]``, cut along their last axis."""

    pieces: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.pieces[0].shape
        return *first[:-1], sum(piece.shape[-1] for piece in self.pieces)


def cut(tree: Any, sizes: Sequence[int]) -> Any:
    """Return the tree with its rows ``[..., D]`` in pieces of these sizes."""
    whole = sum(sizes)
    if len(sizes) == 1:
        return tree
    return jax.tree.map(
        lambda a: _cut(a, sizes) if a.ndim > 1 and a.shape[-1] == whole else a, tree
    )


def joined(tree: Any) -> Any:
    """Return the tree with whole rows, the inverse of :func:`cut`."""
    return jax.tree.map(_whole, tree, is_leaf=_is_cut)


def in_pieces(function: Callable[..., Any], sizes: Sequence[int]) -> Callable[..., Any]:
    """Return the function ``(carry, *given) -> carry`` with the rows of the carry in pieces."""
    sizes = tuple(sizes)
    if len(sizes) == 1:
        return function

    def one(carry: Any, *given: Any) -> Any:
        like = jax.eval_shape(joined, carry)
        closed, shape = jax.make_jaxpr(function, return_shape=True)(like, *given)
        known = [*jax.tree.leaves(carry, is_leaf=_is_cut), *jax.tree.leaves(given)]
        out = jax.tree.unflatten(jax.tree.structure(shape), _evaluated(closed, known, sizes))

        def as_before(old: Any, new: Any) -> Any:
            return _cut(new, sizes) if _is_cut(old) else _whole(new)

        return jax.tree.map(as_before, carry, out, is_leaf=_is_cut)

    return one


def _is_cut(value: Any) -> bool:
    return isinstance(value, Pieces)


def _cut(value: Any, sizes: Sequence[int]) -> Pieces:
    if _is_cut(value):
        return value
    ends = np.cumsum(sizes).tolist()
    cuts = zip([0, *ends], ends, strict=False)
    return Pieces(tuple(lax.slice_in_dim(value, *both, axis=-1) for both in cuts))


def _whole(value: Any) -> Any:
    return jnp.concatenate(value.pieces, axis=-1) if _is_cut(value) else value


def _evaluated(closed: core.ClosedJaxpr, given: Sequence[Any], sizes: tuple[int, ...]) -> list[Any]:
    """What a program returns, each value an array or in pieces."""
    program = closed.jaxpr
    known = dict(zip(program.constvars, closed.consts, strict=True))
    known |= dict(zip(program.invars, given, strict=True))

    def of(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in program.eqns:
        values, name = [of(atom) for atom in equation.invars], equation.primitive.name
        out = None
        if name == "concatenate" or any(map(_is_cut, values)):
            rule = _each if name in _EACH else _RULES.get(name, _by_whole_rows)
            out = rule(equation, values, sizes)
        if out is None:
            out = _by_whole_rows(equation, values, sizes)
        known |= dict(zip(equation.outvars, out, strict=True))
    return [of(atom) for atom in program.outvars]


def bound(equation: Any, values: Iterable[Any]) -> list[Any]:
    """What an equation of a program returns."""
    primitive = equation.primitive
    out = primitive.bind(*values, **primitive.get_bind_params(equation.params))
    return out if primitive.multiple_results else [out]


def _by_whole_rows(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any]:
    return bound(equation, map(_whole, values))


# By operation, what it makes of values of which some are in pieces; None where rows must be whole


def _each(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    """Of other operands rows are cut, and what is the same for all numbers of a row is not."""
    whole = (sum(sizes),)
    cuts = [
        _cut(value, sizes).pieces if np.shape(value)[-1:] == whole else (value,) * len(sizes)
        for value in values
    ]
    made = (equation.primitive.bind(*some, **equation.params) for some in zip(*cuts, strict=True))
    return [Pieces(tuple(made))]


def _broadcast(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    *outer, last = shape = equation.params["shape"]
    axes = equation.params["broadcast_dimensions"]
    if axes[-1] != len(shape) - 1 or last != sum(sizes):
        return None
    return [
        Pieces(
            tuple(lax.broadcast_in_dim(p, (*outer, p.shape[-1]), axes) for p in values[0].pieces)
        )
    ]


def _squeeze(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    axes = equation.params["dimensions"]
    if len(values[0].shape) - 1 in axes:
        return None
    return [Pieces(tuple(lax.squeeze(piece, axes) for piece in values[0].pieces))]


def _split(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    last = equation.params["axis"] == len(values[0].shape) - 1
    return list(values[0].pieces) if last and tuple(equation.params["sizes"]) == sizes else None


def _joined(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    last = equation.params["dimension"] == len(np.shape(values[0])) - 1
    fits = last and tuple(np.shape(value)[-1] for value in values) == sizes
    return [Pieces(tuple(map(_whole, values)))] if fits else None


def _name(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    """A mark that is counted is set once."""
    first, *others = values[0].pieces
    if not is_count(equation.params["name"]):
        return None
    return [Pieces((equation.primitive.bind(first, **equation.params), *others))]


def _call(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    return _evaluated(equation.params["jaxpr"], values, sizes)


_RULES: dict[str, Callable[..., list[Any] | None]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _joined,
    "jit": _call,
    "name": _name,
    "split": _split,
    "squeeze": _squeeze,
}
