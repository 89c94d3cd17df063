"""Count the gradients and proximal steps that a traced function evaluates.

Both are marked where they are computed, and the marks are counted in the jaxpr. Marks are names on
values (``checkpoint_name``), which cost nothing in the compiled program.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core
from jaxtyping import Array

#: A traced program, with the values of its constants or without.
Program: TypeAlias = core.ClosedJaxpr | core.Jaxpr

#: What an equation of a program reads.
Atom: TypeAlias = core.Var | core.Literal

_MARKS = ("fljax gradient of samples: ", "fljax proximal steps of clients: ")

#: The mark of a loop that ends when its clients are through, before the number of iterations.
_LONGEST = "fljax iterations at most: "


class Evaluations(NamedTuple):
    """Numbers of evaluations; NaN if they depend on data, as in a while loop."""

    gradients: float  # gradients of the loss of one sample
    proximal: float  # exact minimizations of a client's objective plus a quadratic


def evaluated(gradient: Array, samples: int) -> Array:
    """Mark gradients, ``[..., dim]``, each of a loss over this number of samples."""
    return checkpoint_name(gradient, f"{_MARKS[0]}{samples}")


def minimized(models: Array) -> Array:
    """Mark the results of proximal steps, ``[..., dim]``."""
    return checkpoint_name(models, f"{_MARKS[1]}1")


def iteration(index: Array, most: int) -> Array:
    """Mark the index of an iteration in the body of a loop that takes at most so many.

    Evaluations in such a loop are counted as if it took all of them, and else not at all.
    """
    return checkpoint_name(index, f"{_LONGEST}{most}")


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of what an equation reads or computes; its abstract value is of a class without."""
    return atom.aval.shape


def is_count(name: str) -> bool:
    """Whether a value's name is such a mark."""
    return name.startswith(_MARKS)


def evaluations(function: Callable[..., Any], *arguments: object) -> Evaluations:
    """The number of sample gradients and proximal steps that a function evaluates."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    return Evaluations(*(_count(program, mark) for mark in _MARKS))


def _count(jaxpr: core.Jaxpr, mark: str) -> float:
    return math.fsum(_count_equation(equation, mark) for equation in jaxpr.eqns)


def _count_equation(equation: core.JaxprEqn, mark: str) -> float:
    """The evaluations of one equation, NaN for loops and branches without a known number."""
    primitive = equation.primitive.name
    params = equation.params
    if primitive == "name":
        if not params["name"].startswith(mark):
            return 0.0
        evaluations_per_row = int(params["name"].removeprefix(mark))
        return evaluations_per_row * math.prod(shape_of(equation.outvars[0])[:-1])
    parts = jax.tree.leaves(list(params.values()), is_leaf=_is_jaxpr)  # branches are a tuple
    inner_counts = [_count(getattr(part, "jaxpr", part), mark) for part in parts if _is_jaxpr(part)]
    if primitive == "while" and any(inner_counts):
        return _most_iterations(params["body_jaxpr"].jaxpr) * math.fsum(inner_counts)
    if primitive == "cond":
        return inner_counts[0] if len(set(inner_counts)) == 1 else math.nan
    return (
        params.get("length", 1) * math.fsum(inner_counts)
        if primitive == "scan"
        else math.fsum(inner_counts)
    )


def _most_iterations(body: core.Jaxpr) -> float:
    """The declared length of a loop, NaN if none is."""
    names = [equation.params["name"] for equation in body.eqns if equation.primitive.name == "name"]
    lengths = [int(name.removeprefix(_LONGEST)) for name in names if name.startswith(_LONGEST)]
    return lengths[0] if lengths else math.nan


def _is_jaxpr(part: object) -> bool:
    return isinstance(part, Program)
