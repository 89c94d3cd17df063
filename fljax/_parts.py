"""Rows of numbers in the parts that they are joined of, such as the layers of a network: the steps
of a loop as if they were written for each part.

A model is a row ``[D]`` everywhere, and a network's gradient cuts it into layers and joins those of
the gradient. XLA does not take a cut through the operations on whole rows that stand between the
two: it copies all of a model at each, or asks of every number which layer it belongs to, which took
as long as the rest of a step. So the program of a step is evaluated here with rows in parts.
Operations on each number are done part by part, cuts and joints between the parts are nothing, and
what needs a whole row gets it joined. Numbers are the same, whatever the step does.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jaxtyping import Array

from fljax._evaluations import is_count

__all__ = ["cut", "in_parts", "joined"]

#: Operations on each number by itself, in JAX's names.
_EACH = frozenset(
    """
    abs add add_any and cbrt ceil clamp convert_element_type copy div eq erf exp exp2 expm1 floor ge
    gt integer_pow is_finite le log log1p logistic lt max min mul ne neg nextafter not or pow rem
    round rsqrt select_n sign sin sqrt square stop_gradient sub tanh xor
    """.split()
)


class Parts(NamedTuple):
    """Rows ``[..., D]``, cut along their last axis."""

    parts: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        return *first[:-1], sum(part.shape[-1] for part in self.parts)


def cut(tree: Any, sizes: Sequence[int]) -> Any:
    """Return the tree with its rows ``[..., D]`` in parts of these sizes."""
    whole = sum(sizes)
    if len(sizes) == 1:
        return tree
    return jax.tree.map(
        lambda a: _cut(a, sizes) if a.ndim > 1 and a.shape[-1] == whole else a, tree
    )


def joined(tree: Any) -> Any:
    """Return the tree with whole rows, the inverse of :func:`cut`."""
    return jax.tree.map(_whole, tree, is_leaf=_in_parts)


def in_parts(function: Callable[..., Any], sizes: Sequence[int]) -> Callable[..., Any]:
    """Return the function ``(carry, *given) -> carry`` with the rows of the carry in parts."""
    sizes = tuple(sizes)
    if len(sizes) == 1:
        return function

    def one(carry: Any, *given: Any) -> Any:
        like = jax.eval_shape(joined, carry)
        closed, shape = jax.make_jaxpr(function, return_shape=True)(like, *given)
        known = [*jax.tree.leaves(carry, is_leaf=_in_parts), *jax.tree.leaves(given)]
        out = jax.tree.unflatten(jax.tree.structure(shape), _evaluated(closed, known, sizes))

        def as_before(old: Any, new: Any) -> Any:
            return _cut(new, sizes) if _in_parts(old) else _whole(new)

        return jax.tree.map(as_before, carry, out, is_leaf=_in_parts)

    return one


def _in_parts(value: Any) -> bool:
    return isinstance(value, Parts)


def _cut(value: Any, sizes: Sequence[int]) -> Parts:
    if _in_parts(value):
        return value
    ends = np.cumsum(sizes).tolist()
    starts = [0, *ends[:-1]]
    cuts = zip(starts, ends, strict=True)
    return Parts(tuple(lax.slice_in_dim(value, *ends, axis=-1) for ends in cuts))


def _whole(value: Any) -> Array:
    return jnp.concatenate(value.parts, axis=-1) if _in_parts(value) else value


def _evaluated(closed: core.ClosedJaxpr, given: Sequence[Any], sizes: tuple[int, ...]) -> list[Any]:
    """What a program returns, each value an array or in parts."""
    program = closed.jaxpr
    known = dict(zip(program.constvars, closed.consts, strict=True))
    known |= dict(zip(program.invars, given, strict=True))

    def of(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in program.eqns:
        values = [of(atom) for atom in equation.invars]
        name = equation.primitive.name
        rule = _each if name in _EACH else _RULES.get(name)
        out = None
        if rule is _joint or (rule and any(map(_in_parts, values))):
            out = rule(equation, values, sizes)
        if out is None:
            known |= _whole_rows(equation, known)
        else:
            known |= dict(zip(equation.outvars, out, strict=True))
    return [of(atom) for atom in program.outvars]


def _whole_rows(equation: Any, known: dict[Any, Any]) -> dict[Any, Any]:
    """What an operation makes of arrays as they are."""
    read = list(dict.fromkeys(a for a in equation.invars if not isinstance(a, core.Literal)))
    alone = core.Jaxpr((), read, equation.outvars, [equation], equation.effects)
    values = core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*(_whole(known[a]) for a in read))
    return dict(zip(equation.outvars, values, strict=True))


# By operation, what it makes of values of which some are in parts; None where rows must be whole


def _each(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    """Of other operands rows are cut, and what is the same for all numbers of a row is not."""
    whole = (sum(sizes),)
    cuts = [
        _cut(value, sizes).parts if np.shape(value)[-1:] == whole else (value,) * len(sizes)
        for value in values
    ]
    made = (equation.primitive.bind(*some, **equation.params) for some in zip(*cuts, strict=True))
    return [Parts(tuple(made))]


def _broadcast(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    *outer, last = shape = equation.params["shape"]
    axes = equation.params["broadcast_dimensions"]
    if axes[-1] != len(shape) - 1 or last != sum(sizes):
        return None
    return [
        Parts(tuple(lax.broadcast_in_dim(p, (*outer, p.shape[-1]), axes) for p in values[0].parts))
    ]


def _squeeze(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    axes = equation.params["dimensions"]
    if len(values[0].shape) - 1 in axes:
        return None
    return [Parts(tuple(lax.squeeze(part, axes) for part in values[0].parts))]


def _split(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    last = equation.params["axis"] == len(values[0].shape) - 1
    return list(values[0].parts) if last and tuple(equation.params["sizes"]) == sizes else None


def _joint(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    last = equation.params["dimension"] == len(np.shape(values[0])) - 1
    fits = last and tuple(np.shape(value)[-1] for value in values) == sizes
    return [Parts(tuple(map(_whole, values)))] if fits else None


def _name(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    """A mark that is counted is set once."""
    first, *others = values[0].parts
    if not is_count(equation.params["name"]):
        return None
    return [Parts((equation.primitive.bind(first, **equation.params), *others))]


def _call(equation: Any, values: list[Any], sizes: tuple[int, ...]) -> list[Any] | None:
    return _evaluated(equation.params["jaxpr"], values, sizes)


_RULES: dict[str, Callable[..., list[Any] | None]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _joint,
    "jit": _call,
    "name": _name,
    "pjit": _call,
    "split": _split,
    "squeeze": _squeeze,
}
