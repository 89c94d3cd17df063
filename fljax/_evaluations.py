"""How many gradients a traced function evaluates: marks at gradients, counted in its program.

Marks are names on values, which cost nothing and do nothing.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core
from jaxtyping import Array

__all__ = ["evaluated", "evaluations"]

_MARK = "fljax gradient of samples: "


def evaluated(gradient: Array, samples: int) -> Array:
    """Mark gradients, ``[..., dim]``, each of a loss of so many samples."""
    return checkpoint_name(gradient, f"{_MARK}{samples}")


def evaluations(function: Callable[..., Any], *given: Any) -> float:
    """The number of sample gradients that a function evaluates; NaN where that is not fixed."""
    return _count(jax.make_jaxpr(function)(*given).jaxpr)


def _count(program: Any) -> float:
    return math.fsum(map(_of_equation, program.eqns))


def _of_equation(equation: Any) -> float:
    kind, params = equation.primitive.name, equation.params
    if kind == "name":
        if not params["name"].startswith(_MARK):
            return 0.0
        samples = int(params["name"].removeprefix(_MARK))
        return samples * math.prod(equation.outvars[0].aval.shape[:-1])
    parts = jax.tree.leaves(list(params.values()), is_leaf=_is_program)  # branches are a tuple
    inner = [_count(getattr(part, "jaxpr", part)) for part in parts if _is_program(part)]
    if kind == "while":
        return math.nan if any(inner) else 0.0
    if kind == "cond":
        return inner[0] if len(set(inner)) == 1 else math.nan
    return params.get("length", 1) * math.fsum(inner) if kind == "scan" else math.fsum(inner)


def _is_program(part: Any) -> bool:
    return isinstance(part, core.ClosedJaxpr | core.Jaxpr)
