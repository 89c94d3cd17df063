"""What a scenario draws, apart from the methods that run on it.

A study of forty methods on the same problem would draw that problem in forty programs, and XLA
would compile it forty times. What depends on a run's key and on no number of the grid (data, a
network, the optimum) is therefore one program, and its values are inputs of the methods' own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import partial_eval
from jaxtyping import Array

__all__ = ["Drawing", "drawing_of", "is_drawn", "needed"]


class Drawing(NamedTuple):
    """The part of a function of a key and a point that depends on the key alone."""

    program: core.ClosedJaxpr  # key -> its values
    places: tuple[tuple[int, int], ...]  # a leaf of the function's output, and its value's number

    def draw(self, key: Array) -> list[Array]:
        """The values for a key."""
        return core.jaxpr_as_fun(self.program)(key)

    def put(self, tree: Any, values: Sequence[Array]) -> Any:
        """The function's output with these values where they belong."""
        leaves, structure = jax.tree.flatten(tree)
        for place, number in self.places:
            leaves[place] = values[number]
        return structure.unflatten(leaves)


def drawing_of(function: Callable[[Array, Any], Any], key: Array, point: Any) -> Drawing | None:
    """What a function computes from its key, whatever the point; ``None`` if that is nothing.

    A value counts if it is computed while the function is traced: others are known, and programs
    may be specialized to them.
    """
    traced: list[int] = []

    def computed(key: Array, point: Any) -> list[Any]:
        leaves = jax.tree.leaves(function(key, point))
        traced[:] = [i for i, leaf in enumerate(leaves) if is_drawn(leaf)]
        return [leaves[i] for i in traced]

    closed = jax.make_jaxpr(computed)(key, point)
    jaxpr = closed.jaxpr
    by_key, by_point = set(jaxpr.invars[:1]), set(jaxpr.invars[1:])
    for equation in jaxpr.eqns:
        given = {atom for atom in equation.invars if isinstance(atom, core.Var)}
        for tainted in (by_key, by_point):
            if given & tainted:
                tainted.update(equation.outvars)
    numbers: dict[Any, int] = {}
    places, kept = [], []
    for place, atom in zip(traced, jaxpr.outvars, strict=True):
        own = isinstance(atom, core.Var) and atom in by_key and atom not in by_point
        kept.append(own and atom not in numbers)
        if own:
            places.append((place, numbers.setdefault(atom, len(numbers))))
    if not places:
        return None
    alone = needed(closed, kept, [True] + [False] * (len(jaxpr.invars) - 1))
    return Drawing(alone, tuple(places)) if len(alone.jaxpr.invars) == 1 else None


def needed(
    closed: core.ClosedJaxpr, outputs: Sequence[bool], inputs: bool | Sequence[bool] = True
) -> core.ClosedJaxpr:
    """A program without what these outputs do not need; ``inputs`` that are kept at any rate."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, list(outputs), inputs)
    used = {id(atom) for equation in jaxpr.eqns for atom in equation.invars}
    used |= {id(atom) for atom in jaxpr.outvars}
    pairs = zip(jaxpr.constvars, closed.consts, strict=True)
    constants = [(variable, value) for variable, value in pairs if id(variable) in used]
    jaxpr = jaxpr.replace(constvars=[variable for variable, _ in constants])
    return core.ClosedJaxpr(jaxpr, [value for _, value in constants])


def is_drawn(leaf: Any) -> bool:
    """Whether a value is computed; keys, which have a type of their own, stay in each program."""
    if not isinstance(leaf, jax.core.Tracer):
        return False
    return not jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.extended)
