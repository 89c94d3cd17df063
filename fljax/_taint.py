"""What a traced function's values depend on: marks at its inputs, followed through its program.

A value that is computed from a marked one is tainted, also where it only decides what is computed
(a branch, how often a loop turns). Marks are names on values, which cost nothing and do nothing.
Callbacks to the host are exits too, whatever they return: a host function may keep or send what it
is given. So is a mutable array that outlives the program.
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


def _walk(
    jaxpr: Any, tainted: Sequence[bool], names: dict[str, None], decided: bool = False
) -> list[bool]:
    """Which outputs are tainted, given which inputs are; tainted exits are added to ``names``.

    ``decided`` tells whether private values decide that the program runs: then everything that
    leaves it tells something of them.
    """
    known = dict(zip(jaxpr.invars, tainted, strict=True))

    def of(atom: Any) -> bool:
        return False if isinstance(atom, core.Literal) else known.get(atom, False)

    for equation in jaxpr.eqns:
        given = [of(atom) for atom in equation.invars]
        rule = _RULES.get(equation.primitive.name, _plain)
        known |= dict(zip(equation.outvars, rule(equation, given, names, decided), strict=True))
        if equation.primitive.name in _WRITES and (any(given[1:]) or decided):
            # Whoever holds the mutable array reads what was written. One that was made elsewhere
            # may be read after the program ended.
            array = equation.invars[0]
            if array not in known or array in (*jaxpr.invars, *jaxpr.constvars):
                names["values written to a mutable array"] = None
            known[array] = True
    return [of(atom) for atom in jaxpr.outvars]


def _plain(equation: Any, given: list[bool], names: dict[str, None], decided: bool) -> list[bool]:
    """Of calls what is within, of all else every output of any tainted input."""
    inner = [_open(part) for part in _programs_of(equation)]
    if not inner and (any(given) or decided) and _leaves(equation):
        name = equation.primitive.name
        names[_CALLBACKS.get(name, f"values passed to {name}")] = None
    for part in inner:
        if len(part.invars) == len(given) and len(part.outvars) == len(equation.outvars):
            return _walk(part, given, names, decided)
    for part in inner:  # whatever goes where
        _walk(part, [any(given)] * len(part.invars), names, decided)
    return [any(given)] * len(equation.outvars)


def _leaves(equation: Any) -> bool:
    """Whether values leave the program by another way than its outputs."""
    effects = {type(effect).__name__ for effect in getattr(equation, "effects", ())}
    return equation.primitive.name == "pure_callback" or bool(effects - _OF_ARRAYS)


def _named(equation: Any, given: list[bool], names: dict[str, None], decided: bool) -> list[bool]:
    name = equation.params["name"]
    if name.startswith(_EXIT) and (given[0] or decided):
        names[name.removeprefix(_EXIT)] = None
    return [name != _RELEASED and (given[0] or name == _PRIVATE)]


def _scan(equation: Any, given: list[bool], names: dict[str, None], decided: bool) -> list[bool]:
    body = _open(equation.params["jaxpr"])
    # How many are carried is told by the shapes, which every version of JAX has: what is taken or
    # given turn by turn has an axis more outside of the body than in it.
    fixed = sum(map(_as_within, equation.invars, body.invars))
    carried = sum(map(_as_within, equation.outvars, body.outvars))
    consts = fixed - carried
    carry = given[consts:fixed]
    outside = given[:consts], given[consts + carried :]
    return _settled(
        lambda carry: _walk(body, outside[0] + carry + outside[1], names, decided), carry
    )


def _as_within(outside: Any, inside: Any) -> bool:
    return len(outside.aval.shape) == len(inside.aval.shape)


def _while(equation: Any, given: list[bool], names: dict[str, None], decided: bool) -> list[bool]:
    tests, bodies = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    test, body = _open(equation.params["cond_jaxpr"]), _open(equation.params["body_jaxpr"])
    of_test, of_body = given[:tests], given[tests : tests + bodies]

    def turn(carry: list[bool]) -> list[bool]:
        (goes_on,) = _walk(test, of_test + carry, names, decided)
        # Whether there is another iteration, a tainted condition tells to test and body alike.
        _walk(test, of_test + carry, names, decided or goes_on)
        after = _walk(body, of_body + carry, names, decided or goes_on)
        return [out or goes_on for out in after]

    return _settled(turn, given[tests + bodies :])


def _settled(turn: Callable[[list[bool]], list[bool]], carry: list[bool]) -> list[bool]:
    """What comes out of a loop once another turn taints nothing more."""
    while True:
        out = turn(carry)
        after = [a or b for a, b in zip(carry, out, strict=False)]
        if after == carry:
            return carry + out[len(carry) :]
        carry = after


def _cond(equation: Any, given: list[bool], names: dict[str, None], decided: bool) -> list[bool]:
    index, *operands = given
    branches = map(_open, equation.params["branches"])
    outs = [_walk(branch, operands, names, decided or index) for branch in branches]
    return [index or bool(np.any(out)) for out in zip(*outs, strict=True)]


def _programs_of(equation: Any) -> list[Any]:
    """The programs among an equation's parameters, also within tuples of them."""
    return [
        part
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
        if _is_program(part)
    ]


def _is_program(part: Any) -> bool:
    return isinstance(part, core.ClosedJaxpr | core.Jaxpr)


def _open(part: Any) -> Any:
    return part.jaxpr if isinstance(part, core.ClosedJaxpr) else part


#: What callbacks to the host are called where they are given private values.
_CALLBACKS = {
    "debug_callback": "values passed to jax.debug.callback",
    "debug_print": "values passed to jax.debug.print",
    "io_callback": "values passed to io_callback",
    "pure_callback": "values passed to jax.pure_callback",
}

#: Effects of mutable arrays, which :func:`_walk` follows.
_OF_ARRAYS = frozenset({"ReadEffect", "WriteEffect", "AccumEffect", "InternalMutableArrayEffect"})

#: Primitives that write to a mutable array, their first operand.
_WRITES = frozenset({"swap", "addupdate"})

_RULES: dict[str, Callable[..., list[bool]]] = {
    "name": _named,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
