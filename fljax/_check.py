"""Checks at the boundary: what was given, what is expected, how to mend it.

Values that are being traced cannot be looked at and pass unseen; the sweep builds every grid
point once with its concrete values, so that a bad one still meets these checks.
"""

import difflib
import numbers
from collections.abc import Iterable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np


def is_concrete(value: Any) -> bool:
    """Whether ``value`` is a number or array whose entries can be read now."""
    return isinstance(value, numbers.Number | np.ndarray | np.generic | list | tuple) or (
        isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    )


def interval(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    hint: str = "",
) -> None:
    """Raise ``ValueError`` unless every entry of ``value`` is finite and inside the interval."""
    if isinstance(value, jax.core.Tracer):
        return
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a number, got {value!r} of type {type(value).__name__}."
        ) from None
    wanted = []
    ok = np.isfinite(array)
    for bound, text, test in (
        (above, "> ", np.greater),
        (at_least, ">= ", np.greater_equal),
        (below, "< ", np.less),
        (at_most, "<= ", np.less_equal),
    ):
        if bound is not None:
            wanted.append(f"{text}{bound:g}")
            ok &= test(array, bound)
    if not np.all(ok):
        bad = array if array.ndim == 0 else array[~ok].flat[0]
        expected = " and ".join(["finite", *wanted])
        raise ValueError(f"{name} must be {expected}, got {bad:g}.{' ' + hint if hint else ''}")


def positive(name: str, value: Any, hint: str = "") -> None:
    interval(name, value, above=0.0, hint=hint)


def nonnegative(name: str, value: Any, hint: str = "") -> None:
    interval(name, value, at_least=0.0, hint=hint)


def count(name: str, value: Any, *, at_least: int = 1, hint: str = "") -> None:
    """Raise unless ``value`` is a Python or NumPy integer (a size, never traced) in range."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{name} is structure and cannot be traced; if it comes from a sweep's grid, wrap the "
            "axis in fljax.static([...])."
        )
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name} must be an integer, got {value!r} of type {type(value).__name__}."
            f"{' ' + hint if hint else ''}"
        )
    if value < at_least:
        raise ValueError(f"{name} must be >= {at_least}, got {value}.{' ' + hint if hint else ''}")


def switch(name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` is ``True`` or ``False``: any text would be true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{name} must be True or False, got {value!r} of type {type(value).__name__}."
        )


def kind(name: str, value: Any, base: type) -> None:
    """Raise ``TypeError`` unless ``value`` is an instance of ``base``."""
    if not isinstance(value, base):
        raise TypeError(
            f"{name} must be an instance of {base.__module__}.{base.__name__}, got {value!r}."
        )


def registered(name: str, value: Any) -> None:
    """Raise ``TypeError`` if JAX would take an object of a user's own class for a single number."""
    if jax.tree_util.all_leaves((value,)):
        raise TypeError(
            f"{name} is of class {type(value).__name__}, which is no pytree: JAX cannot see the "
            "numbers in it. Decorate the class with fl.module."
        )


def finite(name: str, value: Any, hint: str = "") -> None:
    """Raise ``ValueError`` if a concrete array holds NaN or infinity."""
    if is_concrete(value):
        bad = int(np.size(value) - np.isfinite(np.asarray(value)).sum())
        if bad:
            raise ValueError(
                f"{name} holds {bad} NaN or infinite entries; remove or impute them first."
                f"{' ' + hint if hint else ''}"
            )


def choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``known``, suggesting the nearest."""
    known = list(known)
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        raise ValueError(
            f"unknown {name} {value!r}; known: {', '.join(known)}."
            f"{f' Did you mean {near[0]!r}?' if near else ''}"
        )


def per_client(name: str, value: Any, clients: int) -> None:
    """Raise ``ValueError`` unless ``value`` is one number or ``[clients]``."""
    if np.ndim(value) > 1 or (np.ndim(value) == 1 and np.shape(value) != (clients,)):
        raise ValueError(
            f"{name} must be one number or one of each of the {clients} clients, got shape "
            f"{np.shape(value)}; fljax.participation.groups spreads a few values over all clients."
        )


def trace(name: str, table: Any, kind: str, dtype: Any) -> Any:
    """The table as an array; ``ValueError`` unless it is ``[rounds, clients]`` of this kind."""
    table = np.asarray(table) if isinstance(table, list | tuple) else table
    if np.ndim(table) != 2 or not np.issubdtype(jnp.result_type(table), dtype):
        raise ValueError(
            f"{name} must be {kind} of shape [rounds, clients], got shape {np.shape(table)} of "
            f"{jnp.result_type(table)}."
        )
    return table


def trace_fits(what: str, table: Any, clients: int, rounds: int) -> None:
    """Raise ``ValueError`` unless the table has enough rounds, of this many clients."""
    if table.shape[0] < rounds or table.shape[1] != clients:
        raise ValueError(
            f"{what} has {table.shape[0]} rounds of {table.shape[1]} clients; the run has {rounds} "
            f"rounds of {clients}."
        )
