"""Annotations as checks at the boundary: of the fields of a module, of a function's arguments.

An annotation says what kind of thing is expected, how many axes it has and whether it is one
number; ranges are said by :mod:`fljax._check`. Of a value that is being traced its shape and type
are known, and are checked as well.
"""

import collections.abc
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

from fljax import _check, _renamed

__all__ = ["check", "check_fields", "checked", "rule"]

F = TypeVar("F", bound=Callable)


class Rule(NamedTuple):
    """What an annotation asks for."""

    words: str
    fits: Callable[[Any], bool]
    is_array: bool = False  # of one axis or more, so that a list of numbers is to become one


def rule(hint: Any) -> Rule | None:
    """Of an annotation; ``None`` where it says nothing."""
    if hint is None or hint is type(None):
        return Rule("None", lambda value: value is None)
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _any_of(inside)
    if origin is typing.Literal:
        return Rule("a string", lambda value: isinstance(value, str))
    if collections.abc.Callable in (origin, hint):
        return Rule("a function", lambda value: callable(value) and not isinstance(value, type))
    if origin in (tuple, list, collections.abc.Sequence):
        return _sequence(origin, inside)
    kind = origin or hint
    if kind in (Any, object) or not isinstance(kind, type):
        return None
    if issubclass(kind, jaxtyping.AbstractArray):
        return _array(kind)
    if kind in _KINDS:
        return _KINDS[kind]
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return None
    place = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return Rule(f"an instance of {place}{kind.__name__}", lambda value: isinstance(value, kind))


def _any_of(hints: Iterable[Any]) -> Rule | None:
    if complex in hints:  # JAX's ArrayLike
        return _NUMBERS
    rules = [rule(hint) for hint in hints]
    known = [one for one in rules if one is not None]
    if len(known) < len(rules):
        return None
    words = " or ".join(dict.fromkeys(one.words for one in known if one.words != "None"))
    array = any(one.is_array for one in known) and "a sequence" not in words
    return Rule(words, lambda value: any(one.fits(value) for one in known), array)


def _sequence(origin: Any, inside: tuple[Any, ...]) -> Rule:
    size = len(inside) if origin is tuple and ... not in inside else None
    each = [rule(hint) for hint in inside if hint is not ...]
    words = "a sequence" if size is None else f"a sequence of {size}"
    named = dict.fromkeys(one.words for one in each if one is not None)
    words += f", each {' or '.join(named)}" if named else ""

    def fits(value: Any) -> bool:
        listed = isinstance(value, list | tuple | range)
        if not (listed or (hasattr(value, "dtype") and np.ndim(value) == 1)):
            return False
        rules = each * len(value) if size is None else each
        return len(rules) == len(value) and all(
            one is None or one.fits(item) for one, item in zip(rules, value, strict=True)
        )

    return Rule(words, lambda value: not isinstance(value, str) and _tried(fits, value))


def _tried(fits: Callable[[Any], bool], value: Any) -> bool:
    try:
        return bool(fits(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _is_number(value: Any) -> bool:
    if isinstance(value, list | tuple | bool | np.bool_):  # True is no number, though Python's 1
        return False
    return _check.is_real(value) and np.ndim(value) == 0


def _array(hint: Any) -> Rule:
    if hint.dtype is jaxtyping.Key:
        return Rule("a random key, such as jax.random.key(0)", _check.is_key)
    kinds = (np.floating, np.integer, np.bool_)
    named = "an array"
    if hint.dtype is jaxtyping.Bool:
        kinds, named = (np.bool_,), "a boolean array"
    elif hint.dtype is jaxtyping.Int:
        kinds, named = (np.integer,), "an integer array"
    if hint.dim_str.strip() == "":
        return {np.bool_: _KINDS[bool], np.integer: _KINDS[int]}.get(kinds[0], _KINDS[float])
    axes = hint.dim_str.split()
    least = most = sum(not axis.startswith(("*", "...")) for axis in axes)
    if least < len(axes):
        most = 1 if len(axes) == 1 else np.inf  # alone: one number, or one for each

    def fits(value: Any) -> bool:
        if isinstance(value, bool | np.bool_) and kinds[0] is not np.bool_:
            return False
        right = any(jnp.issubdtype(_check.dtype_of(value), kind) for kind in kinds)
        return right and least <= np.ndim(value) <= most and np.size(value) > 0

    shape = ", ".join(axis.lstrip("#*") for axis in axes)
    return Rule(f"{named} of shape [{shape}]", lambda value: _tried(fits, value), True)


_NUMBERS = Rule(
    "a number or an array of numbers",
    lambda value: (
        _check.is_real(value) and np.size(value) > 0 and not isinstance(value, bool | np.bool_)
    ),
    True,
)

#: Kinds of which more than an instance will do, or less.
_KINDS: dict[type, Rule] = {
    float: Rule("a number", lambda value: _tried(_is_number, value)),
    int: Rule("an integer", lambda value: _tried(_check.is_whole, value)),
    bool: Rule(
        "True or False", lambda value: _check.dtype_of(value) == np.bool_ and np.ndim(value) == 0
    ),
    str: Rule("a string", lambda value: isinstance(value, str)),
    collections.abc.Mapping: Rule(
        "a dict", lambda value: isinstance(value, collections.abc.Mapping)
    ),
    jax.Array: Rule(
        "an array", lambda value: isinstance(value, jax.Array | np.ndarray | np.generic), True
    ),
    np.ndarray: Rule(
        "an array",
        lambda value: _check.dtype_of(value) != np.dtype(object) and np.ndim(value) > 0,
        True,
    ),
}


#: What asks for one integer.
_WHOLE = (_KINDS[int].words,)


def _named(name: str) -> Rule:
    module, _, kind = name.rpartition(".")

    def fits(value: Any) -> bool:  # a module that is not loaded has no instances
        return module in sys.modules and isinstance(value, getattr(sys.modules[module], kind))

    return Rule(f"an instance of {name}", fits)


def check(name: str, value: Any, wanted: Rule | None) -> None:
    """Raise unless the value is what the annotation asks for.

    Raises:
      TypeError: a thing of another kind.
      ValueError: an array, but not of the right number of axes.
    """
    if wanted is None or wanted.fits(value):
        return
    if isinstance(value, jax.core.Tracer) and wanted.words == _KINDS[int].words:
        _check.count(name, value)
    error = ValueError if _check.is_real(value) and np.ndim(value) else TypeError
    raise error(f"{name} must be {wanted.words}, got {_check.shown(value)}.")


def taken(value: Any, wanted: Rule | None) -> Any:
    """The value in the form in which what asks for it takes it, if it has one.

    Integers of NumPy and JAX become Python's, which can be hashed and do not overflow; frames and
    sparse matrices arrays, whose entries are found by position and not by an index, or lists where
    a sequence is asked for; zeros and ones booleans where only those will do.
    """
    if wanted is None:
        return value
    if not isinstance(value, int) and wanted.words in _WHOLE and _check.is_whole(value):
        return int(value)
    indexed = _check.is_frame(value)
    if wanted.fits(value) and not indexed:
        return value
    if indexed and np.ndim(value) == 1 and wanted.words.startswith("a sequence"):
        array = np.asarray(value.to_numpy()).tolist()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        array = _check.plain(value)
    if wanted.words.startswith("a boolean array"):
        array = _check.flags(array)
    return array if array is not value and wanted.fits(array) else value


def _listed(value: Any, wanted: Rule | None) -> Any:
    """Lists of numbers as an array where a function asks for one."""
    if not isinstance(value, list | tuple) or wanted is None or not wanted.is_array:
        return value
    return np.asarray(value) if _check.is_real(value) else value


def check_fields(owner: Any) -> None:
    """Raise unless the fields of a dataclass are what their annotations ask for."""
    for name, wanted in rules_of(type(owner)):
        given = getattr(owner, name)
        value = taken(given, wanted)
        check(name, value, wanted)
        if value is not given:
            object.__setattr__(owner, name, value)


@functools.cache
def rules_of(cls: type) -> tuple[tuple[str, Rule | None], ...]:
    """Of the fields of a dataclass."""
    return tuple((field.name, rule(_hint(cls, field))) for field in dataclasses.fields(cls))


def _hint(cls: type, field: dataclasses.Field) -> Any:
    """The annotation, also where ``from __future__ import annotations`` made it a string."""
    if not isinstance(field.type, str):
        return field.type
    try:
        return typing.get_type_hints(cls).get(field.name, Any)
    except (NameError, SyntaxError):
        return Any


def checked(function: F) -> F:
    """``function``, whose arguments are checked against its annotations whenever it is called.

    The name of a class, ``"module.Class"``, stands for it and does not load its module.
    """

    @functools.cache  # read at the first call: most functions are never called
    def read() -> tuple[inspect.Signature, dict[str, Rule | None]]:
        hints = function.__annotations__.items()
        rules = {
            name: _named(hint) if isinstance(hint, str) else rule(hint)
            for name, hint in hints
            if name != "return"
        }
        return inspect.signature(function), rules

    @functools.wraps(function)
    def call(*args, **kwargs):
        signature, rules = read()
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # too many or too few: Python's own words
            if text := _renamed.argument(kwargs, signature.parameters):
                raise TypeError(f"{function.__qualname__}() {text}") from None
            return function(*args, **kwargs)
        for name, value in bound.arguments.items():
            wanted = rules.get(name)
            bound.arguments[name] = value = _listed(taken(value, wanted), wanted)
            check(name, value, wanted)
        return function(*bound.args, **bound.kwargs)

    return typing.cast(F, call)
