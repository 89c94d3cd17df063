"""Draw the problem of a scenario in one program, shared by the programs of several methods.

A study of forty methods on the same problem would draw that problem in forty programs, and XLA
would compile it forty times. So values that depend on a run's key and not on numbers of the grid
(data, a network, the optimum) are computed by a separate program and passed to the others.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import partial_eval
from jaxtyping import Array, PyTree


class Drawing(NamedTuple):
    """The part of a function of a key and a grid point that depends only on the key."""

    program: core.ClosedJaxpr  # key -> values
    leaf_values: tuple[tuple[int, int], ...]  # (index of a leaf of the output, index of its value)

    def draw(self, key: Array) -> list[Array]:
        """The values for a key."""
        return core.jaxpr_as_fun(self.program)(key)

    def put(self, tree: PyTree, values: Sequence[Array]) -> Any:
        """The function's output with its leaves replaced by drawn values."""
        leaves, structure = jax.tree.flatten(tree)
        for leaf, number in self.leaf_values:
            leaves[leaf] = values[number]
        return structure.unflatten(leaves)


def drawing_of(function: Callable[[Array, Any], Any], key: Array, point: PyTree) -> Drawing | None:
    """Extract the computation of outputs that depend only on the key; ``None`` if there is none.

    Only traced leaves count: concrete ones are constants, and programs may be specialized to them.
    """
    traced: list[int] = []

    def drawn_leaves(key: Array, point: PyTree) -> list[Any]:
        leaves = jax.tree.leaves(function(key, point))
        traced[:] = [i for i, leaf in enumerate(leaves) if is_drawn(leaf)]
        return [leaves[i] for i in traced]

    closed_jaxpr = jax.make_jaxpr(drawn_leaves)(key, point)
    jaxpr = closed_jaxpr.jaxpr
    by_key = set(jaxpr.invars[:1])
    by_point = set(jaxpr.invars[1:])
    for equation in jaxpr.eqns:
        variables = {atom for atom in equation.invars if isinstance(atom, core.Var)}
        for tainted in (by_key, by_point):
            if variables & tainted:
                tainted.update(equation.outvars)
    numbers: dict[Any, int] = {}
    leaf_values = []
    is_output = []
    for leaf_index, atom in zip(traced, jaxpr.outvars, strict=True):
        depends_on_key_only = isinstance(atom, core.Var) and atom in by_key and atom not in by_point
        is_output.append(depends_on_key_only and atom not in numbers)
        if depends_on_key_only:
            leaf_values.append((leaf_index, numbers.setdefault(atom, len(numbers))))
    if not leaf_values:
        return None
    drawing_jaxpr = needed(closed_jaxpr, is_output, [True] + [False] * (len(jaxpr.invars) - 1))
    has_only_key = len(drawing_jaxpr.jaxpr.invars) == 1
    return Drawing(drawing_jaxpr, tuple(leaf_values)) if has_only_key else None


def needed(
    closed_jaxpr: core.ClosedJaxpr, outputs: Sequence[bool], inputs: bool | Sequence[bool] = True
) -> core.ClosedJaxpr:
    """A program without computations that these outputs do not need.

    ``inputs`` are retained even if they are unused. It uses JAX's dead-code elimination, which is
    not public.
    """
    jaxpr, _ = partial_eval.dce_jaxpr(closed_jaxpr.jaxpr, list(outputs), inputs)
    used = {id(atom) for equation in jaxpr.eqns for atom in equation.invars}
    used |= {id(atom) for atom in jaxpr.outvars}
    pairs = zip(jaxpr.constvars, closed_jaxpr.consts, strict=True)
    constants = [(variable, value) for variable, value in pairs if id(variable) in used]
    jaxpr = jaxpr.replace(constvars=[variable for variable, _ in constants])
    return core.ClosedJaxpr(jaxpr, [value for _, value in constants])


def is_drawn(leaf: object) -> bool:
    """Whether a leaf is traced, except random keys, whose type cannot be passed to a program."""
    if not isinstance(leaf, jax.core.Tracer):
        return False
    return not jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.extended)
