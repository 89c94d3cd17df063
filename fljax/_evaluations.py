"""How many gradients and proximal steps a traced function evaluates: marks at both, counted in its
program.

Marks are names on values, which cost nothing and do nothing.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core
from jaxtyping import Array

__all__ = ["Evaluations", "evaluated", "evaluations", "is_count", "minimized"]

_MARKS = ("fljax gradient of samples: ", "fljax proximal steps of clients: ")


class Evaluations(NamedTuple):
    """Numbers of evaluations; NaN where they are not fixed."""

    gradients: float  # of the loss of a sample
    proximal: float  # exact minimizations of a client's objective and a square


def evaluated(gradient: Array, samples: int) -> Array:
    """Mark gradients, ``[..., dim]``, each of a loss of so many samples."""
    return checkpoint_name(gradient, f"{_MARKS[0]}{samples}")


def minimized(models: Array) -> Array:
    """Mark the results of proximal steps, ``[..., dim]``."""
    return checkpoint_name(models, f"{_MARKS[1]}1")


def is_count(name: str) -> bool:
    """Whether a value's name is such a mark."""
    return name.startswith(_MARKS)


def evaluations(function: Callable[..., Any], *given: Any) -> Evaluations:
    """The number of sample gradients and proximal steps that a function evaluates."""
    program = jax.make_jaxpr(function)(*given).jaxpr
    return Evaluations(*(_count(program, mark) for mark in _MARKS))


def _count(program: Any, mark: str) -> float:
    return math.fsum(_of_equation(equation, mark) for equation in program.eqns)


def _of_equation(equation: Any, mark: str) -> float:
    kind, params = equation.primitive.name, equation.params
    if kind == "name":
        if not params["name"].startswith(mark):
            return 0.0
        each = int(params["name"].removeprefix(mark))
        return each * math.prod(equation.outvars[0].aval.shape[:-1])
    parts = jax.tree.leaves(list(params.values()), is_leaf=_is_program)  # branches are a tuple
    inner = [_count(getattr(part, "jaxpr", part), mark) for part in parts if _is_program(part)]
    if kind == "while":
        return math.nan if any(inner) else 0.0
    if kind == "cond":
        return inner[0] if len(set(inner)) == 1 else math.nan
    return params.get("length", 1) * math.fsum(inner) if kind == "scan" else math.fsum(inner)


def _is_program(part: Any) -> bool:
    return isinstance(part, core.ClosedJaxpr | core.Jaxpr)
