"""Checks and conversions of arguments by annotation: of the fields of a module, of functions.

An annotation states the kind of a value and its number of axes; :mod:`fljax._core.checks` has the
ranges. Traced values have a shape and a type, too, so they are checked by the same rules.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import jaxtyping
import numpy as np

from fljax._core import checks

F = TypeVar("F", bound=Callable)


class Rule(NamedTuple):
    """The requirement that an annotation states."""

    description: str
    fits: Callable[[object], bool]
    is_array: bool = False  # accepts arrays with axes: lists of numbers are converted to one
    is_floating: bool = False  # an array of floating-point numbers: others are converted


def rule_of(hint: object) -> Rule | None:
    """The rule of an annotation; ``None`` if every value satisfies it or it cannot be checked."""
    if hint is None or hint is type(None):
        return Rule("None", lambda value: value is None)
    origin = typing.get_origin(hint)
    parameters = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union_rule(parameters)
    if origin is typing.Literal:
        return Rule("a string", lambda value: isinstance(value, str))
    if collections.abc.Callable in (origin, hint):
        return Rule("a function", lambda value: callable(value) and not isinstance(value, type))
    if origin in (tuple, list, collections.abc.Sequence):
        return _sequence_rule(origin, parameters)
    kind = origin or hint
    if kind is typing.Annotated:  # a class that converts the value itself, with its own errors
        return None
    if kind in (Any, object) or not isinstance(kind, type):
        return None
    if issubclass(kind, jaxtyping.AbstractArray):
        return _array_rule(kind)
    if kind in _RULE_OF_TYPE:
        return _RULE_OF_TYPE[kind]
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return None
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return Rule(f"an instance of {prefix}{kind.__name__}", lambda value: isinstance(value, kind))


def _union_rule(hints: Iterable[Any]) -> Rule | None:
    """The rule of a union: that of any alternative; ``None`` if one cannot be checked."""
    if complex in hints:  # JAX's ArrayLike
        hints = (_NUMBERS, *(hint for hint in hints if hint is type(None)))
    rules = [hint if isinstance(hint, Rule) else rule_of(hint) for hint in hints]
    stated = [rule for rule in rules if rule is not None]
    if len(stated) < len(rules):
        return None
    description = " or ".join(
        dict.fromkeys(rule.description for rule in stated if rule.description != "None")
    )
    is_array = any(rule.is_array for rule in stated) and "a sequence" not in description
    is_floating = is_array and all(rule.is_floating for rule in stated if rule.is_array)
    is_floating &= not any(rule.description in _INTEGER_DESCRIPTIONS for rule in stated)
    return Rule(
        description, lambda value: any(rule.fits(value) for rule in stated), is_array, is_floating
    )


def _sequence_rule(origin: type, parameters: tuple[object, ...]) -> Rule:
    """The rule of a tuple, list or sequence, checked item by item."""
    size = len(parameters) if origin is tuple and ... not in parameters else None
    item_rules = [rule_of(hint) for hint in parameters if hint is not ...]
    description = "a sequence" if size is None else f"a sequence of {size}"
    named = dict.fromkeys(rule.description for rule in item_rules if rule is not None)
    description += f", each {' or '.join(named)}" if named else ""

    def fits(value: Any) -> bool:
        is_list = isinstance(value, list | tuple | range)
        is_vector = hasattr(value, "dtype") and np.ndim(value) == 1
        is_vector &= not jnp.issubdtype(checks.dtype_of(value), jax.dtypes.prng_key)
        if not (is_list or is_vector):
            return False
        rules = item_rules * len(value) if size is None else item_rules
        return len(rules) == len(value) and all(
            rule is None or rule.fits(item) for rule, item in zip(rules, value, strict=True)
        )

    return Rule(description, lambda value: not isinstance(value, str) and _fits_safely(fits, value))


def _fits_safely(fits: Callable[[object], bool], value: object) -> bool:
    try:
        return bool(fits(value))
    except (TypeError, ValueError, OverflowError, MemoryError, RuntimeError):
        return False  # no number, a range beyond memory, an array that was deleted


def _is_number(value: Any) -> bool:
    if isinstance(value, list | tuple) or checks.is_truth(value):
        return False
    return checks.is_real(value) and np.ndim(value) == 0


def _array_rule(hint: type[jaxtyping.AbstractArray]) -> Rule:
    """The rule of a jaxtyping annotation: kind of numbers and number of axes."""
    if hint.dtype is jaxtyping.Key:
        return Rule("a random key, such as jax.random.key(0)", checks.is_key)
    kinds = (np.floating, np.integer, np.bool_)
    noun = "an array"
    if hint.dtype is jaxtyping.Bool:
        kinds = (np.bool_,)
        noun = "a boolean array"
    elif hint.dtype is jaxtyping.Int:
        kinds = (np.integer,)
        noun = "an integer array"
    if hint.dim_str.strip() == "":
        return {np.bool_: _RULE_OF_TYPE[bool], np.integer: _RULE_OF_TYPE[int]}.get(
            kinds[0], _RULE_OF_TYPE[float]
        )
    axes = hint.dim_str.split()
    min_axes = max_axes = sum(not axis.startswith(("*", "...")) for axis in axes)
    if min_axes < len(axes):
        max_axes = 1 if len(axes) == 1 else np.inf  # "*clients" alone: one number, or one for each

    def fits(value: Any) -> bool:
        if checks.is_truth(value) and kinds[0] is not np.bool_:
            return False
        has_kind = any(jnp.issubdtype(checks.dtype_of(value), kind) for kind in kinds)
        return has_kind and min_axes <= np.ndim(value) <= max_axes and np.size(value) > 0

    shape = ", ".join(axis.lstrip("#*") for axis in axes)
    description = f"{noun} of shape [{shape}]"
    is_floating = hint.dtype is jaxtyping.Float
    return Rule(description, lambda value: _fits_safely(fits, value), True, is_floating)


_NUMBERS = Rule(
    "a number or an array of numbers",
    lambda value: checks.is_real(value) and np.size(value) > 0 and not checks.is_truth(value),
    True,
)

#: Types whose annotation accepts more or less than their instances.
_RULE_OF_TYPE: dict[type, Rule] = {
    float: Rule("a number", lambda value: _fits_safely(_is_number, value)),
    int: Rule("an integer", lambda value: _fits_safely(checks.is_whole, value)),
    bool: Rule(
        "True or False", lambda value: checks.dtype_of(value) == np.bool_ and np.ndim(value) == 0
    ),
    str: Rule("a string", lambda value: isinstance(value, str)),
    collections.abc.Mapping: Rule(
        "a dict", lambda value: isinstance(value, collections.abc.Mapping)
    ),
    jax.Array: Rule(
        "an array",
        lambda value: (
            isinstance(value, jax.Array | np.ndarray | np.generic)
            and not isinstance(value, np.ma.MaskedArray)
        ),
        True,
    ),
    np.ndarray: Rule(
        "an array",
        lambda value: (
            isinstance(dtype := checks.dtype_of(value), np.dtype)  # random keys have another type
            and dtype != np.dtype(object)
            and np.ndim(value) > 0
        ),
        True,
    ),
}


#: Larger Python ints cannot become arrays; where any number fits, they become floats.
LARGEST_INTEGER = 2**31 - 1

#: Beginnings of the rules whose values become Python ints.
_INTEGER_DESCRIPTIONS = (_RULE_OF_TYPE[int].description,)


def _rule_of_class_name(name: str) -> Rule:
    """The rule of a class given as ``"module.Class"``, which does not import the module."""
    module, _, kind = name.rpartition(".")

    def fits(value: object) -> bool:  # unless its module is loaded, a class has no instances
        return module in sys.modules and isinstance(value, getattr(sys.modules[module], kind))

    return Rule(f"an instance of {name}", fits)


def check(name: str, value: Any, expected: Rule | None) -> None:
    """Raise unless the value satisfies the rule of its annotation.

    Raises:
      TypeError: a value of another kind.
      ValueError: an array with the wrong number of axes.
    """
    if expected is None or expected.fits(value):
        return
    if (
        isinstance(value, jax.core.Tracer)
        and expected.description == _RULE_OF_TYPE[int].description
    ):
        checks.count(name, value)
    error = ValueError if checks.is_real(value) and np.ndim(value) else TypeError
    raise error(f"{name} must be {expected.description}, got {checks.shown(value)}.")


def coerce(value: Any, expected: Rule | None) -> Any:
    """Convert to the annotated kind where that is lossless; else return the value unchanged.

    Integers of NumPy and JAX become Python ints, which are hashable and do not overflow. Frames and
    sparse matrices become arrays, which are indexed by position, or lists where a sequence is
    expected. Zeros and ones become booleans where only those are accepted.
    """
    if expected is None:
        return value
    if isinstance(value, np.ndarray | np.generic):
        value = checks.plain(value)
    if (
        not isinstance(value, int)
        and expected.description.startswith(_INTEGER_DESCRIPTIONS)
        and checks.is_whole(value)
    ):
        return int(value)
    if (
        type(value) is int
        and abs(value) > LARGEST_INTEGER
        and "integer" not in expected.description
        and expected.fits(value)
    ):
        with contextlib.suppress(OverflowError):
            return float(value)
    if expected.fits(value) and not checks.is_frame(value):
        return value
    is_sequence = expected.description.startswith("a sequence")
    if is_sequence and checks.is_frame(value) and len(value.shape) == 1:
        array = np.asarray(value.to_numpy()).tolist()
    else:
        array = checks.plain(value)
    if expected.description.startswith("a boolean array"):
        array = checks.as_booleans(array)
    return array if array is not value and expected.fits(array) else value


def _coerce_array(value: object, expected: Rule | None) -> Any:
    """Convert lists of numbers to arrays, and integer arrays to floats, where those are annotated.

    Functions rely on floats: booleans cannot be subtracted, and the carry of a loop must not change
    its type from an integer to a mean.
    """
    if expected is None or not expected.is_array:
        return value
    if isinstance(value, list | tuple) and checks.is_real(value):
        value = np.asarray(value)
    if not expected.is_floating or not isinstance(value, np.ndarray | jax.Array) or not value.ndim:
        return value
    is_integer = isinstance(value.dtype, np.dtype) and value.dtype.kind in "biu"  # keys have none
    return value.astype(jnp.result_type(float)) if is_integer else value


def check_fields(owner: object) -> None:
    """Coerce the fields of a dataclass; raise unless they satisfy their annotations."""
    for name, expected in rules_of(type(owner)):
        argument = getattr(owner, name)
        value = coerce(argument, expected)
        check(name, value, expected)
        if value is not argument:
            object.__setattr__(owner, name, value)


@functools.cache
def rules_of(cls: type) -> tuple[tuple[str, Rule | None], ...]:
    """The rule of each field of a dataclass."""
    return tuple(
        (field.name, rule_of(_resolved_hint(cls, field))) for field in dataclasses.fields(cls)
    )


def _resolved_hint(cls: type, field: dataclasses.Field) -> Any:
    """A field's annotation, evaluated if ``from __future__ import annotations`` left a string."""
    if not isinstance(field.type, str):
        return field.type
    try:
        return typing.get_type_hints(cls).get(field.name, Any)
    except (NameError, SyntaxError):
        return Any


def checked(function: F) -> F:
    """Decorate a function: each call coerces its arguments and checks them by their annotations.

    The annotation ``"module.Class"``, a string, stands for a class without importing its module.
    """

    @functools.cache  # computed at the first call: most functions are never called
    def signature_and_rules() -> tuple[inspect.Signature, dict[str, Rule | None]]:
        hints = function.__annotations__.items()
        rules = {
            name: _rule_of_class_name(hint) if isinstance(hint, str) else rule_of(hint)
            for name, hint in hints
            if name != "return"
        }
        return inspect.signature(function), rules

    @functools.wraps(function)
    def call(*args, **kwargs):
        signature, rules = signature_and_rules()
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # too many arguments or too few: Python raises its own error
            return function(*args, **kwargs)
        for name, value in bound.arguments.items():
            expected = rules.get(name)
            bound.arguments[name] = value = _coerce_array(coerce(value, expected), expected)
            check(name, value, expected)
        return function(*bound.args, **bound.kwargs)

    return typing.cast(F, call)
