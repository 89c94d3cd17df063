"""Taint analysis of traced functions: which exits depend on values that were marked as private.

A value that is computed from a marked one is tainted, also if it only determines control flow (a
branch, the number of a loop's iterations). Marks are names on values (``checkpoint_name``), which
cost nothing in the compiled program. Callbacks to the host are exits, too, even if they return
nothing: a host function may store or send its arguments. So is a mutable array that outlives the
program.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core
from jax.extend.core import JaxprEqn
from jaxtyping import Array, PyTree

from fljax._core.gradient_counts import Atom, Program, shape_of

_PRIVATE = "fljax private"
_RELEASED = "fljax released"
_EXIT = "fljax exit: "

#: Which values are tainted, in the order of an equation's or a program's variables.
Taints = list[bool]

#: Names of tainted exits, in the order of their discovery: a dict serves as an ordered set.
Leaks = dict[str, None]


def private(tree: PyTree) -> Any:
    """Mark values as private: no exit may depend on them."""
    return jax.tree.map(lambda leaf: checkpoint_name(jnp.asarray(leaf), _PRIVATE), tree)


def released(value: Array) -> Array:
    """Mark a value as released: it was perturbed and is private no more."""
    return checkpoint_name(value, _RELEASED)


def open_to_all(value: object, what: str) -> Any:
    """Mark values as an exit: they leave unperturbed. ``what`` names them in a report."""
    return jax.tree.map(lambda leaf: checkpoint_name(jnp.asarray(leaf), _EXIT + what), value)


def exits(function: Callable[..., Any], *arguments: object) -> list[str]:
    """The names of a function's exits that depend on private values, without repetition."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    leaks: Leaks = {}
    _propagate(jaxpr, [False] * len(jaxpr.invars), leaks)
    return list(leaks)


def _propagate(
    jaxpr: core.Jaxpr, tainted: Sequence[bool], leaks: Leaks, control: bool = False
) -> Taints:
    """Which outputs of a program are tainted; names of tainted exits are added to ``leaks``.

    Args:
      jaxpr: the program.
      tainted: which of its inputs are tainted.
      leaks: changed.
      control: whether private values decide that the program runs. Then every exit within it is
        tainted, since its mere execution reveals something about them.
    """
    is_tainted: dict[Atom, bool] = dict(zip(jaxpr.invars, tainted, strict=True))

    def read(atom: Atom) -> bool:
        return False if isinstance(atom, core.Literal) else is_tainted.get(atom, False)

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        rule = _RULES.get(equation.primitive.name, _default_rule)
        is_tainted |= dict(
            zip(equation.outvars, rule(equation, inputs, leaks, control), strict=True)
        )
        if equation.primitive.name in _ARRAY_WRITES and (any(inputs[1:]) or control):
            # Every later read of the mutable array is tainted. One that was not created in this
            # program may be read after it has ended, so writing to it is an exit.
            array = equation.invars[0]
            if array not in is_tainted or array in (*jaxpr.invars, *jaxpr.constvars):
                leaks["values written to a mutable array"] = None
            is_tainted[array] = True
    return [read(atom) for atom in jaxpr.outvars]


def _default_rule(equation: JaxprEqn, inputs: Taints, leaks: Leaks, control: bool) -> Taints:
    """Follow the programs that an equation calls; else a tainted input taints every output."""
    inner_jaxprs = [_jaxpr_of(inner) for inner in _inner_jaxprs(equation)]
    if not inner_jaxprs and (any(inputs) or control) and _has_external_effect(equation):
        name = equation.primitive.name
        leaks[_CALLBACK_EXITS.get(name, f"values passed to {name}")] = None
    for inner in inner_jaxprs:
        if len(inner.invars) == len(inputs) and len(inner.outvars) == len(equation.outvars):
            return _propagate(inner, inputs, leaks, control)
    for inner in inner_jaxprs:  # an unknown mapping of inputs: any may be the tainted one
        _propagate(inner, [any(inputs)] * len(inner.invars), leaks, control)
    return [any(inputs)] * len(equation.outvars)


def _has_external_effect(equation: JaxprEqn) -> bool:
    """Whether values leave the program other than by its outputs, such as by a callback."""
    effects = {type(effect).__name__ for effect in getattr(equation, "effects", ())}
    return equation.primitive.name == "pure_callback" or bool(effects - _MUTABLE_ARRAY_EFFECTS)


def _name_rule(equation: JaxprEqn, inputs: Taints, leaks: Leaks, control: bool) -> Taints:
    name = equation.params["name"]
    if name.startswith(_EXIT) and (inputs[0] or control):
        leaks[name.removeprefix(_EXIT)] = None
    return [name != _RELEASED and (inputs[0] or name == _PRIVATE)]


def _scan_rule(equation: JaxprEqn, inputs: Taints, leaks: Leaks, control: bool) -> Taints:
    """Iterate the body of a scan until the taints of its carry are stable."""
    body = _jaxpr_of(equation.params["jaxpr"])
    # The numbers of constants and carried values follow from ranks, which are the same in every
    # version of JAX: scanned inputs and outputs have one axis more outside of the body than inside.
    const_and_carry_count = sum(map(_has_same_rank, equation.invars, body.invars))
    carry_count = sum(map(_has_same_rank, equation.outvars, body.outvars))
    const_count = const_and_carry_count - carry_count
    carry = inputs[const_count:const_and_carry_count]
    others = inputs[:const_count], inputs[const_count + carry_count :]
    return _fixpoint(
        lambda carry: _propagate(body, others[0] + carry + others[1], leaks, control), carry
    )


def _has_same_rank(outer: Atom, inner: Atom) -> bool:
    return len(shape_of(outer)) == len(shape_of(inner))


def _while_rule(equation: JaxprEqn, inputs: Taints, leaks: Leaks, control: bool) -> Taints:
    """Iterate the body of a while loop; a tainted condition taints its control and outputs."""
    cond_const_count = equation.params["cond_nconsts"]
    body_const_count = equation.params["body_nconsts"]
    cond = _jaxpr_of(equation.params["cond_jaxpr"])
    body = _jaxpr_of(equation.params["body_jaxpr"])
    cond_consts = inputs[:cond_const_count]
    body_consts = inputs[cond_const_count : cond_const_count + body_const_count]

    def iteration(carry: Taints) -> Taints:
        (condition,) = _propagate(cond, cond_consts + carry, leaks, control)
        # With a tainted condition both the condition and the body run under tainted control.
        _propagate(cond, cond_consts + carry, leaks, control or condition)
        outputs = _propagate(body, body_consts + carry, leaks, control or condition)
        return [out or condition for out in outputs]

    return _fixpoint(iteration, inputs[cond_const_count + body_const_count :])


def _fixpoint(iteration: Callable[[Taints], Taints], carry: Taints) -> Taints:
    """The taints of a loop's outputs, iterated until the carry stays the same."""
    while True:
        out = iteration(carry)
        joined = [a or b for a, b in zip(carry, out, strict=False)]
        if joined == carry:
            return carry + out[len(carry) :]
        carry = joined


def _cond_rule(equation: JaxprEqn, inputs: Taints, leaks: Leaks, control: bool) -> Taints:
    index, *operands = inputs
    branches = map(_jaxpr_of, equation.params["branches"])
    outs = [_propagate(branch, operands, leaks, control or index) for branch in branches]
    return [index or bool(np.any(out)) for out in zip(*outs, strict=True)]


def _inner_jaxprs(equation: JaxprEqn) -> list[Program]:
    """The jaxprs among an equation's parameters, also within tuples (branches)."""
    return [
        part
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
        if _is_jaxpr(part)
    ]


def _is_jaxpr(part: object) -> bool:
    return isinstance(part, Program)


def _jaxpr_of(part: Program) -> core.Jaxpr:
    return part.jaxpr if isinstance(part, core.ClosedJaxpr) else part


#: Names of callbacks to the host in reports of leaks.
_CALLBACK_EXITS = {
    "debug_callback": "values passed to jax.debug.callback",
    "debug_print": "values passed to jax.debug.print",
    "io_callback": "values passed to io_callback",
    "pure_callback": "values passed to jax.pure_callback",
}

#: Effects of mutable arrays, which :func:`_propagate` follows.
_MUTABLE_ARRAY_EFFECTS = frozenset(
    {"ReadEffect", "WriteEffect", "AccumEffect", "InternalMutableArrayEffect"}
)

#: Primitives that write to their first operand, a mutable array.
_ARRAY_WRITES = frozenset({"swap", "addupdate"})

_RULES: dict[str, Callable[..., Taints]] = {
    "name": _name_rule,
    "scan": _scan_rule,
    "while": _while_rule,
    "cond": _cond_rule,
}
