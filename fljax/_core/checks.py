"""Checks of arguments. Each error states the expectation, the argument and the remedy.

The entries of traced values cannot be read. While a sweep traces its grid points, checks of them
are collected and run once the values are computed (:func:`collecting`); elsewhere they pass.
"""

import contextlib
import contextvars
import functools
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state
from jaxtyping import Array, ArrayLike, PyTree

from fljax._core.cohort_rows import Rows
from fljax._core.nearest_names import nearest, question

F = TypeVar("F", bound=Callable)

#: A message lists more choices than these only if none of them is like the argument.
MAX_LISTED_CHOICES = 30


class Frame(Protocol):
    """A data frame or series of pandas, or of a library with the same methods."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def to_numpy(self) -> np.ndarray: ...
    def __getitem__(self, name: str) -> Any: ...


class DeferredCheck(NamedTuple):
    """A check of values that are traced now and will be computed later."""

    check: Callable[..., None]
    values: tuple[Any, ...]
    elementwise: bool  # whether stacked values can be checked in one call


#: The deferred checks of :func:`collecting`, and the traces whose values they may hold.
_COLLECTION: contextvars.ContextVar[tuple[list[DeferredCheck], list[Any]] | None] = (
    contextvars.ContextVar("collected", default=None)
)


@contextlib.contextmanager
def collecting(*inputs: PyTree) -> Iterator[list[DeferredCheck]]:
    """Within, append checks of values that are computed from these tracers to the list.

    A tracer does not tell publicly to which trace it belongs; ``_trace`` does.
    """
    checks: list[DeferredCheck] = []
    traces = [leaf._trace for leaf in jax.tree.leaves(inputs) if isinstance(leaf, jax.core.Tracer)]
    token = _COLLECTION.set((checks, traces))
    try:
        yield checks
    finally:
        _COLLECTION.reset(token)


@contextlib.contextmanager
def trusted() -> Iterator[None]:
    """Within, traced values pass unchecked: the library drew them, from checked numbers."""
    token = _COLLECTION.set(None)
    try:
        yield
    finally:
        _COLLECTION.reset(token)


def check_when_concrete(
    check: Callable[..., None], *values: object, elementwise: bool = False
) -> None:
    """Call ``check(*values)`` now if they are concrete, else once they are computed.

    Traced values pass where no checks are collected (:func:`collecting`).
    """
    tracers = [value for value in values if isinstance(value, jax.core.Tracer)]
    if not tracers:
        check(*values)
    elif collected := _COLLECTION.get():
        checks, traces = collected
        # Values of an inner trace, such as of a jitted function, must not leave it.
        if all(any(value._trace is trace for trace in traces) for value in tracers):
            checks.append(DeferredCheck(check, values, elementwise))


def is_concrete(value: object) -> bool:
    """Whether ``value`` is a number, an array or a nested list whose entries can be read now."""
    if isinstance(value, list | tuple):
        try:
            leaves = jax.tree.leaves(value)
        except (RecursionError, SystemError):  # a list that holds itself, or thousands of levels
            return True
        return not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    if isinstance(value, jax.Array):  # the entries of a random key are not numbers
        readable = not isinstance(value, jax.core.Tracer) and not is_deleted(value)
        return readable and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return isinstance(value, numbers.Number | np.ndarray | np.generic)


def is_deleted(value: object) -> bool:
    """Whether it is an array whose memory was given back, as a donated argument's is."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return False
    return value.is_deleted()


def trace_state() -> object:
    """An object that is equal for the same stack of JAX transformations, and only then."""
    return get_opaque_trace_state()


def outside(name: str) -> None:
    """Raise ``TypeError`` within a trace: a function that compiles programs cannot be traced."""
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise TypeError(
            f"{name} compiles programs of its own and cannot be called within jax.jit or the like; "
            "call it outside, and sweep numbers by its grid."
        )


def plain(value: Any) -> Any:
    """Convert frames, series and sparse matrices to NumPy arrays, lists of tracers to one tracer.

    Numbers of kinds that JAX does not have, long doubles and those in another byte order, become
    the nearest kind that it has. Anything else is returned unchanged.
    """
    value = _of_known_kind(value)
    if type(value) in (list, tuple) and not is_concrete(value):
        return _stacked_lists(value)
    if isinstance(value, jax.Array | np.ndarray | numbers.Number | list | tuple | str | type):
        return value
    # Importing SciPy takes a quarter of the time of JAX; unless imported it made no matrix.
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(value):
        return value.toarray()
    if not is_frame(value):
        return value
    array = np.asarray(value.to_numpy())
    if array.dtype == object:  # from pandas' nullable types
        missing = np.asarray(getattr(value, "isna", lambda: False)())
        array = np.asarray(np.where(missing, np.nan, array).tolist())
        return array if array.dtype.kind in "biuf" else value
    return array


def _of_known_kind(value: Any) -> Any:
    """NumPy's numbers in the nearest kind that JAX has."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype == np.longdouble:
            return value.astype(np.float64)
        if not value.dtype.isnative:
            return value.astype(value.dtype.newbyteorder("="))
    return value


def _stacked_lists(value: list | tuple) -> Array | list | tuple:
    """Stack nested lists with traced entries to one array; ragged ones are returned unchanged."""
    with contextlib.suppress(ValueError, TypeError):
        parts = [_stacked_lists(part) if isinstance(part, list | tuple) else part for part in value]
        kind = jnp.result_type(*parts)
        return jnp.stack([jnp.asarray(part, kind) for part in parts])
    return value


def is_frame(value: object) -> TypeGuard[Frame]:
    """Whether it is a frame."""
    return callable(getattr(value, "to_numpy", None)) and hasattr(value, "shape")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a single concrete integer of Python, NumPy or JAX."""
    if isinstance(value, numbers.Integral):
        return not isinstance(value, bool | np.timedelta64)  # which NumPy counts among integers
    if not isinstance(value, np.ndarray | jax.Array) or isinstance(value, jax.core.Tracer):
        return False
    return not value.ndim and jnp.issubdtype(value.dtype, np.integer)


def dtype_of(value: object) -> np.dtype:
    """The dtype of a number, an array or nested lists; ``object`` for anything else.

    Durations and dates are no numbers, though NumPy counts durations among the integers.
    """
    dtype = _stored_dtype(value)
    is_time = isinstance(dtype, np.dtype) and dtype.kind in "mM"  # dtypes of keys have no kind
    return np.dtype(object) if is_time else dtype


def _stored_dtype(value: object) -> np.dtype:
    if isinstance(value, np.ma.MaskedArray):  # np.asarray would drop the mask
        return np.dtype(object)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return value.dtype
    if isinstance(value, numbers.Number | list | tuple | range):
        # Ragged lists, tracers, random keys, a range that does not fit into memory.
        with contextlib.suppress(ValueError, TypeError, MemoryError, RecursionError):
            return np.asarray(value).dtype
    return np.dtype(object)


def is_real(value: object) -> bool:
    """Whether it is a number, an array or nested lists of real numbers."""
    dtype = dtype_of(value)
    return any(jnp.issubdtype(dtype, kind) for kind in (np.floating, np.integer, np.bool_))


def is_truth(value: object) -> bool:
    """Whether it is a single boolean of Python, NumPy or JAX, which NumPy would treat as 0 or 1."""
    return isinstance(value, bool) or (
        isinstance(value, jax.Array | np.ndarray | np.generic)
        and value.dtype == np.bool_
        and not value.ndim
    )


def array(name: str, value: object, axes: int | None = None) -> Any:
    """The value as an array of real numbers, lists as NumPy arrays; raise if it is not one."""
    table = plain(value)
    if not is_real(table) or is_truth(table) or is_deleted(value):
        raise TypeError(f"{name} must be an array of real numbers, got {shown(table)}.")
    if axes is not None and np.ndim(table) != axes:
        raise ValueError(f"{name} must be an array of {axes} axes, got {shown(table)}.")
    return table if isinstance(table, jax.Array) else np.asarray(table)


def comparable(name: str, value: object) -> None:
    """Raise ``TypeError`` for an array in a static field: programs are distinguished by these."""
    if isinstance(value, jax.Array | np.ndarray):
        raise TypeError(
            f"{name} is a static field, which is compiled into the program, and cannot be "
            f"{shown(value)}; give a tuple of numbers, or declare the field without fljax.static."
        )


def filled(name: str, value: object, axes: int | None = None) -> Any:
    """As :func:`array`, and raise if it is empty."""
    table = array(name, value, axes)
    if not np.size(table):
        raise ValueError(f"{name} is empty, {shown(table)}; leave it out or give its entries.")
    return table


def representable(name: str, value: object, stored: Array | np.ndarray) -> None:
    """Raise ``ValueError`` for numbers that under- or overflow in the type they are stored in."""
    if not (is_concrete(value) and is_concrete(stored)):
        return
    value = np.asarray(value, np.float64)
    tiny = jnp.finfo(stored.dtype).tiny
    size = np.abs(np.asarray(stored))
    lost = (value != 0) & ((size < tiny) | (~np.isfinite(size) & np.isfinite(value)))
    if np.any(lost):
        raise ValueError(
            f"{name} must be a number that {stored.dtype} can hold, from {tiny:.3g} to "
            f"{jnp.finfo(stored.dtype).max:.3g} in size, got {value[lost][0]:.3g}."
        )


def as_booleans(value: object) -> Any:
    """Concrete zeros and ones as NumPy booleans; anything else is returned unchanged."""
    value = plain(value)
    if not (is_concrete(value) and is_real(value)):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or not array.ndim or not np.isin(array, (0, 1)).all():
        return value
    return array.astype(bool)


def no_nan(name: str, value: object) -> None:
    """Raise ``ValueError`` for the number NaN."""
    if isinstance(value, np.ndarray) and not value.ndim and is_real(value) and np.isnan(value):
        raise ValueError(f"{name} must be a number, got nan.")


def shown(value: object) -> str:
    """A value in one short line, for error messages."""
    if isinstance(value, type):
        return f"the class {value.__name__}; call it with its numbers"
    if isinstance(value, np.ma.MaskedArray):
        return f"a masked array of shape {value.shape}; fill or leave out what is masked"
    if isinstance(value, jax.Array | np.ndarray):
        state = " that was deleted" if is_deleted(value) else ""
        return f"an array of shape {value.shape} of {value.dtype}{state}"
    if value is None:
        return "None"
    if is_frame(value):
        bad = ", of whose entries some are missing or no numbers" if plain(value) is value else ""
        return f"a {type(value).__name__} of shape {value.shape}{bad}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a user's class, or too many levels
        return f"an object of type {type(value).__name__}"
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def interval(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    hint: str = "",
) -> None:
    """Raise ``ValueError`` unless every entry of ``value`` is finite and inside the interval."""
    if isinstance(value, jax.core.Tracer):
        if _COLLECTION.get() and is_real(value) and value.size:
            recheck = functools.partial(
                interval, name, above=above, at_least=at_least, below=below, at_most=at_most
            )
            extremes = jnp.stack([jnp.min(value), jnp.max(value)]) if value.ndim else value
            check_when_concrete(functools.partial(recheck, hint=hint), extremes, elementwise=True)
        return
    if not is_real(value) or is_truth(value) or is_deleted(value):
        raise TypeError(f"{name} must be a number, got {shown(value)}.")
    array = np.asarray(value, np.float64)
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
        offending = array if array.ndim == 0 else array[~ok].flat[0]
        expected = " and ".join(["finite", *wanted])
        raise ValueError(
            f"{name} must be {expected}, got {offending:g}.{' ' + hint if hint else ''}"
        )


def positive(name: str, value: object, hint: str = "") -> None:
    """Raise ``ValueError`` unless every entry of ``value`` is finite and > 0."""
    interval(name, value, above=0.0, hint=hint)


def nonnegative(name: str, value: object, hint: str = "") -> None:
    """Raise ``ValueError`` unless every entry of ``value`` is finite and >= 0."""
    interval(name, value, at_least=0.0, hint=hint)


def count(
    name: str, value: object, *, at_least: int = 1, at_most: int = 2**31 - 1, hint: str = ""
) -> None:
    """Raise unless ``value`` is an integer (a size, never traced) in range."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{name} is structure and cannot be traced; if it comes from a sweep's grid, wrap the "
            "axis in fljax.static([...])."
        )
    if not is_whole(value):
        raise TypeError(
            f"{name} must be an integer, got {shown(value)}.{' ' + hint if hint else ''}"
        )
    if value < at_least:
        raise ValueError(f"{name} must be >= {at_least}, got {value}.{' ' + hint if hint else ''}")
    if int(value) > at_most:
        raise ValueError(f"{name} must be <= {at_most}, got {value}.")


def seed(name: str, value: object) -> None:
    """Raise unless ``value`` is an integer of 32 bits, signed or not: generators use no more."""
    if not is_whole(value):
        raise TypeError(f"{name} must be an integer, got {shown(value)}.")
    if not -(2**31) <= int(value) < 2**32:
        raise ValueError(f"{name} must be an integer of 32 bits, got {value}.")


def is_key(value: object) -> bool:
    """Whether it is a single random key, typed or made by ``jax.random.PRNGKey``."""
    if not isinstance(value, jax.Array | np.ndarray):
        return False
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value.ndim == 0
    # Raw keys are recognized by the shape that the default generator gives them.
    return value.dtype == np.uint32 and value.shape == jax.eval_shape(jax.random.PRNGKey, 0).shape


def key(name: str, value: object, more: str = "") -> None:
    """Raise ``TypeError`` unless it is a single random key."""
    if not is_key(value):
        raise TypeError(
            f"{name} must be a random key, such as jax.random.key(0){more}, got {shown(value)}."
        )


def switch(name: str, value: object) -> None:
    """Raise ``TypeError`` unless it is ``True`` or ``False``: any nonempty string would be true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {shown(value)}.")


def kind(name: str, value: object, base: type) -> None:
    """Raise ``TypeError`` unless ``value`` is an instance of ``base``."""
    if not isinstance(value, base):
        raise TypeError(
            f"{name} must be an instance of {base.__module__}.{base.__name__}, got {shown(value)}."
        )


def required(method: F) -> F:
    """Mark a method that every subclass must override."""
    method.__required__ = True  # pyright: ignore[reportFunctionMemberAccess]
    return method


@functools.cache
def missing_method(cls: type) -> str:
    """The error text for the first required method that a class lacks; empty if it has all."""
    for name in dir(cls):
        method = getattr(cls, name)
        method = getattr(method, "fget", method)  # of a property
        if getattr(method, "__required__", False):
            return missing_method_message(cls, name, (method.__doc__ or "").partition("\n")[0])
    return ""


def missing_method_message(cls: type, name: str, what: str) -> str:
    """The error text for a class without a required method."""
    return f"{cls.__name__} has no method {name!r}: {what.rstrip('.')}. Give its class one."


def registered(name: str, value: object) -> None:
    """Raise ``TypeError`` for an object of a class that is not registered with JAX as a pytree."""
    array = isinstance(value, jax.Array | np.ndarray | numbers.Number | jax.ShapeDtypeStruct)
    array |= isinstance(value, Rows)
    if not array and jax.tree_util.all_leaves((value,)):
        raise TypeError(
            f"{name} is of class {type(value).__name__}, which is no pytree: JAX cannot see the "
            "numbers in it. Decorate the class with fl.module."
        )


def finite(name: str, value: object, hint: str = "") -> None:
    """Raise ``ValueError`` if a concrete array holds NaN or infinity."""

    def check(invalid_count: Array | int, location: str = "") -> None:
        if invalid_count:
            raise ValueError(
                f"{name} holds {int(invalid_count)} NaN or infinite entries{location}; remove or "
                f"impute them first.{' ' + hint if hint else ''}"
            )

    if is_concrete(value):
        if not is_real(value):
            raise TypeError(f"{name} must be an array of real numbers, got {shown(value)}.")
        good = np.isfinite(np.asarray(value))
        if not good.all():
            position = np.argwhere(~good)[0].tolist()
            first = f", the first at {position}" if position else ""
            check(np.size(good) - good.sum(), first)
    elif _COLLECTION.get() and isinstance(value, jax.core.Tracer):
        check_when_concrete(check, jnp.sum(~jnp.isfinite(value), dtype=np.int32))


def squares(name: str, value: object, terms: int) -> None:
    """Raise ``ValueError`` if the sum of ``terms`` squared entries can overflow."""
    value = np.asarray(value)  # within a trace jnp would trace even concrete arrays
    extremes = np.asarray([np.min(value), np.max(value)])
    largest = float(np.max(np.abs(extremes)))
    largest_float = float(jnp.finfo(extremes.dtype).max)
    if largest > (largest_float / terms) ** 0.5:
        raise ValueError(
            f"{name} holds entries up to {largest:.3g}, whose squares overflow {extremes.dtype}; "
            "scale them to about one, for instance by their standard deviation."
        )


def feature_map(value: object) -> None:
    """Raise ``TypeError`` unless it is ``None`` or a function with its output size as ``dim``."""
    is_map = callable(value) and hasattr(value, "dim") and not isinstance(value, type)
    if value is not None and not is_map:
        raise TypeError(
            "feature_map must be a function with an attribute dim, its number of features, such "
            f"as fljax.data.RandomFourier, got {shown(value)}."
        )


def returned(name: str, value: object, *shapes: tuple[int, ...]) -> Any:
    """The result of a user's function; ``ValueError`` unless it has one of these shapes.

    Arrays of other shapes would be broadcast silently or fail elsewhere.
    """
    shape = getattr(value, "shape", None)
    if shape not in shapes:
        got = shown(value) if shape is None else f"shape {shape}"
        wanted = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} must return an array of shape {wanted}, got {got}.")
    return value


def column_names(table: object) -> list[Any] | None:
    """The column names of a structured array, mapping, data set or frame; else ``None``."""
    names = getattr(getattr(table, "dtype", None), "names", None)
    if names is None:
        names = getattr(table, "column_names", None)
    if names is None and isinstance(table, Mapping):
        names = table.keys()
    if names is None:
        names = getattr(table, "columns", None)
    return None if names is None else list(names)


def common_length(columns: Mapping[str, Any]) -> int:
    """The number of rows of all columns; ``ValueError`` if they differ or have none."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or not min(lengths.values()):
        raise ValueError(f"columns must have one length, of one row or more, got {lengths}.")
    return next(iter(lengths.values()))


def is_missing(entry: object) -> bool:
    """Whether it is ``None``, or NaN, NaT or pandas' ``NA``, which do not equal themselves."""
    if entry is None:
        return True
    same = entry == entry  # a comparison with NA gives NA, which has no truth value
    return not same if isinstance(same, bool | np.bool_) else np.ndim(same) == 0


def column(name: str, values: object) -> np.ndarray:
    """A column's entries as an array, in order of position; the index of a frame is ignored.

    ``ValueError`` for NaN that NumPy has converted to text: it turns ``["a", nan]`` into
    ``["a", "nan"]``, a name like any other.
    """
    entries = values if isinstance(values, list | tuple) else (values,)
    if any(isinstance(entry, jax.Array) and not is_concrete(entry) for entry in entries):
        raise TypeError(f"{name} must be text or known numbers, got {shown(values)}.")
    if isinstance(values, list | tuple) and len({isinstance(v, str) for v in values}) > 1:
        mixed = np.empty(len(values), object)
        mixed[:] = values
        return mixed
    try:
        array = np.asarray(values)
    except TypeError:
        raise TypeError(f"{name} must be text or numbers, got {shown(values)}.") from None
    if array.dtype.kind == "U" and np.any(array == "nan"):
        position = np.argwhere(array == "nan")[0].tolist()
        raise ValueError(
            f"{name} holds the text 'nan' at {', '.join(map(str, position))}, which is what NumPy "
            "makes of a missing value among text; leave such rows out, or give it a name."
        )
    return array


def names(name: str, values: object, what: str = "name or number") -> np.ndarray:
    """``[n]``, the class, client or node that each row belongs to, as text or numbers.

    The rows of a frame are used in order of position; its index is ignored.

    Raises:
      ValueError: not one entry for each row; a missing entry (the message gives the row); text
        mixed with numbers, where ``"1"`` and ``1`` could be the same name or not.
      TypeError: entries that are neither.
    """
    if isinstance(values, str | np.ma.MaskedArray):
        raise ValueError(f"{name} must be a {what} of each row, got {shown(values)}.")
    array = column(name, values)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be a {what} of each row, [n], got shape {array.shape}; of one-hot rows "
            f"take {name}.argmax(axis=1)."
        )
    if array.dtype.kind in "USbiu":
        return array
    if array.dtype.kind == "c":
        raise TypeError(f"{name} must be text or numbers, got {shown(array)}.")
    entries = array.tolist()
    missing = (
        [is_missing(entry) for entry in entries] if array.dtype.kind == "O" else array != array
    )
    if array.dtype.kind == "f":
        missing = ~np.isfinite(array)
    if np.any(missing):
        row = int(np.argmax(missing))
        raise ValueError(
            f"{name} must be a {what} of each row, got {entries[row]} in row {row}; leave out rows "
            "without one, or fill it in."
        )
    if array.dtype.kind != "O":
        return array
    is_text = [isinstance(entry, str) for entry in entries]
    if all(is_text):
        return array.astype(str)
    if any(is_text):
        text_row = is_text.index(True)
        other_row = is_text.index(False)
        raise ValueError(
            f"{name} holds text, {entries[text_row]!r} in row {text_row}, and "
            f"{entries[other_row]!r} of type {type(entries[other_row]).__name__} in row "
            f"{other_row}; make all of them one kind, such as [str(entry) for entry in ...]."
        )
    converted = np.asarray(entries)
    if converted.ndim != 1 or converted.dtype.kind not in "biufMm":
        raise TypeError(f"{name} must be text or numbers, got {shown(entries[0])} in row 0.")
    return converted


def group_numbers(name: str, index: object, groups: int, every: bool = False) -> Any:
    """Return ``[K]`` group numbers, checked where they are concrete.

    Args:
      name: name of the groups, for errors.
      index: ``[K]`` integers.
      groups: number of groups.
      every: whether each group must have a member.

    Raises:
      ValueError: not a vector of integers, a number out of range, an empty group.
    """
    group = array(name, index)
    if group.ndim != 1 or not len(group) or not jnp.issubdtype(group.dtype, np.integer):
        raise ValueError(
            f"{name} must be one whole number for each client, got shape {group.shape} of "
            f"{group.dtype}."
        )

    def check(group: Array) -> None:
        values = np.asarray(group)
        wrong = (values < 0) | (values >= groups)
        if wrong.any():
            k = int(np.argmax(wrong))
            raise ValueError(
                f"{name} numbers must be in 0..{groups - 1}, got {values[k]} for client {k}."
            )
        missing = np.setdiff1d(np.arange(groups), values)
        if every and len(missing):
            raise ValueError(
                f"{name} {missing[0]} has no clients; give it one or number the {name}s "
                f"0..{groups - len(missing) - 1}."
            )

    check_when_concrete(check, group)
    return group.astype(np.int32)


def choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``; suggest the nearest."""
    choices = list(choices)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}.")
    if value not in choices:
        suggestion = question(nearest(value, choices))
        known = f"; known: {', '.join(choices) or 'none'}"
        if suggestion and len(choices) > MAX_LISTED_CHOICES:
            known = ""
        raise ValueError(f"unknown {name} {value!r}{known}. {suggestion}".rstrip())


def indices(name: str, value: ArrayLike | Sequence[int], count: int) -> None:
    """Raise ``ValueError`` unless concrete indices are below ``count``: JAX would clamp them."""
    if is_concrete(value) and np.size(value):
        positions = np.asarray(value)  # within a trace jnp would trace even concrete arrays
        least = int(positions.min())
        most = int(positions.max())
        if least < 0 or most >= count:
            raise ValueError(
                f"{name} must be from 0 to {count - 1}, got {least if least < 0 else most}."
            )


def per_client(name: str, value: Any, clients: int) -> None:
    """Raise ``ValueError`` unless ``value`` is one number or ``[clients]``."""
    if np.ndim(value) > 1 or (np.ndim(value) == 1 and np.shape(value) != (clients,)):
        raise ValueError(
            f"{name} must be one number or one for each of the {clients} clients, got shape "
            f"{np.shape(value)}; fljax.participation.groups spreads a few values over all clients."
        )


def start(value: ArrayLike | None, clients: int, dim: int) -> None:
    """Raise unless initial models, if given, are one for all clients or one for each."""
    if value is None:
        return
    if np.shape(value) not in ((dim,), (clients, dim)):
        raise ValueError(
            f"a start must be a model of shape {(dim,)}, or one for each client, {(clients, dim)}, "
            f"got shape {np.shape(value)}."
        )
    finite("a start", value)


def strength(value: object, clients: int) -> None:
    """Raise unless a regularizer's strength is >= 0, one for all clients or one for each."""
    nonnegative("strength", value)
    per_client("strength", value, clients)


def as_integers(value: object) -> Any:
    """Concrete floats without a fraction as NumPy integers; anything else is returned unchanged."""
    value = plain(value)
    if not (is_concrete(value) and is_real(value)):
        return value
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return value
    with np.errstate(invalid="ignore"):
        integers = array.astype(np.int64)
    return integers if np.array_equal(array, integers) else value


def trace(
    name: str, table: Any, kind: str, shape: tuple[str, ...] = ("rounds", "clients"), hint: str = ""
) -> Any:
    """A recorded table as an array; ``ValueError`` unless it has this kind and these axes.

    Args:
      name: of the table, for errors.
      table: booleans or 0 and 1 (``kind="booleans"``), or whole numbers (``"integers"``).
      kind: as above.
      shape: names of its axes.
      hint: appended to the error.
    """
    table = filled(name, {"booleans": as_booleans, "integers": as_integers}[kind](table))
    dtype = {"booleans": np.bool_, "integers": np.integer}[kind]
    if np.ndim(table) != len(shape) or not np.issubdtype(table.dtype, dtype):
        raise ValueError(
            f"{name} must be {kind} of shape [{', '.join(shape)}], got shape {np.shape(table)} of "
            f"{table.dtype}.{' ' + hint if hint else ''}"
        )
    return table


def trace_fits(what: str, table: Array, clients: int, rounds: int) -> None:
    """Raise ``ValueError`` unless the table has enough rounds, of this many clients."""
    if table.shape[0] < rounds or table.shape[1] != clients:
        raise ValueError(
            f"{what} has {table.shape[0]} rounds of {table.shape[1]} clients; the run has {rounds} "
            f"rounds of {clients}."
        )
