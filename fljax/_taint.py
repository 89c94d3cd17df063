"""What a traced function's values depend on: marks at its inputs, followed through its program.

A value that is computed from a marked one is tainted, also where it only decides what is computed
(a branch, how often a loop turns). Marks are names on values, which cost nothing and do nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core
from jaxtyping import Array

__all__ = ["exits", "open_to_all", "private", "released"]

_PRIVATE, _RELEASED, _EXIT = "fljax private", "fljax released", "fljax exit: "


def private(tree: Any) -> Any:
    """Values on which nothing that leaves may depend."""
    return jax.tree.map(lambda leaf: checkpoint_name(jnp.asarray(leaf), _PRIVATE), tree)


def released(value: Array) -> Array:
    """What leaves perturbed: private no more."""
    return checkpoint_name(value, _RELEASED)


def open_to_all(value: Any, what: str) -> Any:
    """What leaves as it is; ``what`` it is called where it must not."""
    return jax.tree.map(lambda leaf: checkpoint_name(jnp.asarray(leaf), _EXIT + what), value)


def exits(function: Callable[..., Any], *given: Any) -> list[str]:
    """What of a function's open values depends on private ones, each once, in their order."""
    closed = jax.make_jaxpr(function)(*given)
    names: dict[str, None] = {}
    _walk(closed.jaxpr, [False] * len(closed.jaxpr.invars), names)
    return list(names)


def _walk(jaxpr: Any, tainted: Sequence[bool], names: dict[str, None]) -> list[bool]:
    """Which outputs are tainted, given which inputs are; open values that are go to ``found``."""
    known = dict(zip(jaxpr.invars, tainted, strict=True))

    def of(atom: Any) -> bool:
        return False if isinstance(atom, core.Literal) else known.get(atom, False)

    for equation in jaxpr.eqns:
        given = [of(atom) for atom in equation.invars]
        rule = _RULES.get(equation.primitive.name, _plain)
        known |= dict(zip(equation.outvars, rule(equation, given, names), strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _plain(equation: Any, given: list[bool], names: dict[str, None]) -> list[bool]:
    """Of calls what is within, of all else every output of any tainted input."""
    inner = [_open(part) for part in equation.params.values() if _is_program(part)]
    for part in inner:
        if len(part.invars) == len(given) and len(part.outvars) == len(equation.outvars):
            return _walk(part, given, names)
    for part in inner:  # whatever goes where
        _walk(part, [any(given)] * len(part.invars), names)
    return [any(given)] * len(equation.outvars)


def _named(equation: Any, given: list[bool], names: dict[str, None]) -> list[bool]:
    name = equation.params["name"]
    if name.startswith(_EXIT) and given[0]:
        names[name.removeprefix(_EXIT)] = None
    return [name != _RELEASED and (given[0] or name == _PRIVATE)]


def _scan(equation: Any, given: list[bool], names: dict[str, None]) -> list[bool]:
    body = _open(equation.params["jaxpr"])
    # How many are carried is told by the shapes, which every version of JAX has: what is taken or
    # given turn by turn has an axis more outside of the body than in it.
    fixed = sum(map(_as_within, equation.invars, body.invars))
    carried = sum(map(_as_within, equation.outvars, body.outvars))
    consts = fixed - carried
    carry = given[consts:fixed]
    return _settled(
        lambda carry: _walk(body, given[:consts] + carry + given[consts + carried :], names), carry
    )


def _as_within(outside: Any, inside: Any) -> bool:
    return len(outside.aval.shape) == len(inside.aval.shape)


def _while(equation: Any, given: list[bool], names: dict[str, None]) -> list[bool]:
    tests, bodies = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    test, body = _open(equation.params["cond_jaxpr"]), _open(equation.params["body_jaxpr"])
    of_test, of_body = given[:tests], given[tests : tests + bodies]

    def turn(carry: list[bool]) -> list[bool]:
        (goes_on,) = _walk(test, of_test + carry, names)
        return [out or goes_on for out in _walk(body, of_body + carry, names)]

    return _settled(turn, given[tests + bodies :])


def _settled(turn: Callable[[list[bool]], list[bool]], carry: list[bool]) -> list[bool]:
    """What comes out of a loop once another turn taints nothing more."""
    while True:
        out = turn(carry)
        after = [a or b for a, b in zip(carry, out, strict=False)]
        if after == carry:
            return carry + out[len(carry) :]
        carry = after


def _cond(equation: Any, given: list[bool], names: dict[str, None]) -> list[bool]:
    index, *operands = given
    outs = [_walk(_open(branch), operands, names) for branch in equation.params["branches"]]
    return [index or bool(np.any(out)) for out in zip(*outs, strict=True)]


def _is_program(part: Any) -> bool:
    return isinstance(part, core.ClosedJaxpr | core.Jaxpr)


def _open(part: Any) -> Any:
    return part.jaxpr if isinstance(part, core.ClosedJaxpr) else part


_RULES: dict[str, Callable[..., list[bool]]] = {
    "name": _named,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
