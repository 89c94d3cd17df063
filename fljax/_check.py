"""Checks at the boundary: what was given, what is expected, how to mend it.

Values that are being traced cannot be looked at. Where a sweep looks at its grid points their
checks are collected, and made once the values are computed (:func:`collecting`); else they pass.
"""

import contextlib
import contextvars
import difflib
import functools
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state

from fljax._rows import Rows

F = TypeVar("F", bound=Callable)


class Later(NamedTuple):
    """A check of values that are not known yet."""

    check: Callable[..., None]
    values: tuple[Any, ...]
    elementwise: bool  # whether many values can be checked at once, stacked


#: What :func:`collecting` collects, and of which traces.
_COLLECTED: contextvars.ContextVar[tuple[list[Later], list[Any]] | None] = contextvars.ContextVar(
    "collected", default=None
)


@contextlib.contextmanager
def collecting(*inputs: Any) -> Iterator[list[Later]]:
    """Within, checks of what is computed from these tracers are put into the list."""
    checks: list[Later] = []
    traces = [leaf._trace for leaf in jax.tree.leaves(inputs) if isinstance(leaf, jax.core.Tracer)]
    token = _COLLECTED.set((checks, traces))
    try:
        yield checks
    finally:
        _COLLECTED.reset(token)


@contextlib.contextmanager
def trusted() -> Iterator[None]:
    """Within, values that are being traced pass: the library drew them, from checked numbers."""
    token = _COLLECTED.set(None)
    try:
        yield
    finally:
        _COLLECTED.reset(token)


def known(check: Callable[..., None], *values: Any, elementwise: bool = False) -> None:
    """Call ``check(*values)``, now or once they are computed."""
    tracers = [value for value in values if isinstance(value, jax.core.Tracer)]
    if not tracers:
        check(*values)
    elif collected := _COLLECTED.get():
        checks, traces = collected
        # Values of an inner trace, such as of a jitted function, do not leave it.
        if all(any(value._trace is trace for trace in traces) for value in tracers):
            checks.append(Later(check, values, elementwise))


def is_concrete(value: Any) -> bool:
    """Whether ``value`` is a number, an array or a nested list whose entries can be read now."""
    if isinstance(value, list | tuple):
        return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))
    return isinstance(value, numbers.Number | np.ndarray | np.generic) or (
        isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    )


def transformed() -> Any:
    """By which of JAX's transformations code is being traced now: equal exactly for equal ones."""
    return get_opaque_trace_state()


def outside(name: str) -> None:
    """Raise ``TypeError`` where code is being traced: what compiles programs cannot be a part."""
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise TypeError(
            f"{name} compiles programs of its own and cannot be called within jax.jit or the like; "
            "call it outside, and sweep numbers by its grid."
        )


def plain(value: Any) -> Any:
    """What other libraries hold numbers in as an array of NumPy: frames, series, sparse matrices;
    a list of traced numbers or arrays as one traced array.

    Anything else as it is.
    """
    if type(value) in (list, tuple) and not is_concrete(value):
        return _stacked(value)
    if isinstance(value, jax.Array | np.ndarray | numbers.Number | list | tuple | str | type):
        return value
    # What is not loaded has made no matrix; it takes a quarter as long to load as JAX.
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(value):
        return value.toarray()
    if not is_frame(value):
        return value
    array = np.asarray(value.to_numpy())
    if array.dtype == object:  # of pandas' types that know of missing values
        missing = np.asarray(value.isna()) if hasattr(value, "isna") else False
        array = np.asarray(np.where(missing, np.nan, array).tolist())
        return array if array.dtype.kind in "biuf" else value
    return array


def _stacked(value: Any) -> Any:
    """Nested lists, of which parts are traced, as one array; as they are if they are ragged."""
    with contextlib.suppress(ValueError, TypeError):
        parts = [_stacked(part) if isinstance(part, list | tuple) else part for part in value]
        kind = jnp.result_type(*parts)
        return jnp.stack([jnp.asarray(part, kind) for part in parts])
    return value


def is_frame(value: Any) -> bool:
    """Whether it is a table or a column of pandas, or of what is like it."""
    return callable(getattr(value, "to_numpy", None)) and hasattr(value, "shape")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is one integer that is known: Python's, NumPy's or JAX's."""
    if isinstance(value, numbers.Integral):
        return not isinstance(value, bool)
    known = isinstance(value, np.ndarray) or (
        isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    )
    return known and not value.ndim and jnp.issubdtype(value.dtype, np.integer)


def dtype_of(value: Any) -> np.dtype:
    """Of a number, an array or nested lists; of anything else that of objects."""
    if isinstance(value, np.ma.MaskedArray):  # whose mask NumPy would drop
        return np.dtype(object)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return value.dtype
    if isinstance(value, numbers.Number | list | tuple | range):
        with contextlib.suppress(ValueError, jax.errors.TracerArrayConversionError):  # ragged lists
            return np.asarray(value).dtype
    return np.dtype(object)


def is_real(value: Any) -> bool:
    """Whether it is made of real numbers: a number, an array or nested lists."""
    dtype = dtype_of(value)
    return any(jnp.issubdtype(dtype, kind) for kind in (np.floating, np.integer, np.bool_))


def array(name: str, value: Any, axes: int | None = None) -> Any:
    """An array of real numbers, a NumPy one of lists; raise if that is not what it is."""
    value = plain(value)
    if not is_real(value) or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an array of real numbers, got {shown(value)}.")
    if axes is not None and np.ndim(value) != axes:
        raise ValueError(f"{name} must be an array of {axes} axes, got {shown(value)}.")
    return value if isinstance(value, jax.Array) else np.asarray(value)


def comparable(name: str, value: Any) -> None:
    """Raise ``TypeError`` for an array as structure, by which programs are told apart."""
    if isinstance(value, jax.Array | np.ndarray):
        raise TypeError(
            f"{name} is a static field, which is compiled into the program, and cannot be "
            f"{shown(value)}; give a tuple of numbers, or declare the field without fljax.static."
        )


def filled(name: str, value: Any, axes: int | None = None) -> Any:
    """:func:`array`, of one entry or more."""
    value = array(name, value, axes)
    if not np.size(value):
        raise ValueError(f"{name} is empty, {shown(value)}; leave it out or give its entries.")
    return value


def representable(name: str, value: Any, kept: Any) -> None:
    """Raise ``ValueError`` for numbers that are lost as they are kept, by underflow or overflow."""
    if not (is_concrete(value) and is_concrete(kept)):
        return
    value, tiny = np.asarray(value, np.float64), jnp.finfo(kept.dtype).tiny
    size = np.abs(np.asarray(kept))
    lost = (value != 0) & ((size < tiny) | (~np.isfinite(size) & np.isfinite(value)))
    if np.any(lost):
        raise ValueError(
            f"{name} must be a number that {kept.dtype} can hold, from {tiny:.3g} to "
            f"{jnp.finfo(kept.dtype).max:.3g} in size, got {value[lost][0]:.3g}."
        )


def flags(value: Any) -> Any:
    """Zeros and ones, concrete, as booleans of NumPy; anything else as it is."""
    value = plain(value)
    if not (is_concrete(value) and is_real(value)):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or not array.ndim or not np.isin(array, (0, 1)).all():
        return value
    return array.astype(bool)


def no_nan(name: str, value: Any) -> None:
    """Raise ``ValueError`` for the number NaN."""
    if isinstance(value, np.ndarray) and not value.ndim and is_real(value) and np.isnan(value):
        raise ValueError(f"{name} must be a number, got nan.")


def shown(value: Any) -> str:
    """What was given, in one short line."""
    if isinstance(value, type):
        return f"the class {value.__name__}; call it with its numbers"
    if isinstance(value, np.ma.MaskedArray):
        return f"a masked array of shape {value.shape}; fill or leave out what is masked"
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {value.shape} of {value.dtype}"
    if value is None:
        return "None"
    if is_frame(value):
        bad = ", of whose entries some are missing or no numbers" if plain(value) is value else ""
        return f"a {type(value).__name__} of shape {value.shape}{bad}"
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


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
        if _COLLECTED.get() and is_real(value) and value.size:
            again = functools.partial(
                interval, name, above=above, at_least=at_least, below=below, at_most=at_most
            )
            ends = jnp.stack([jnp.min(value), jnp.max(value)]) if value.ndim else value
            known(functools.partial(again, hint=hint), ends, elementwise=True)
        return
    if not is_real(value) or isinstance(value, bool | np.bool_):
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
        bad = array if array.ndim == 0 else array[~ok].flat[0]
        expected = " and ".join(["finite", *wanted])
        raise ValueError(f"{name} must be {expected}, got {bad:g}.{' ' + hint if hint else ''}")


def positive(name: str, value: Any, hint: str = "") -> None:
    interval(name, value, above=0.0, hint=hint)


def nonnegative(name: str, value: Any, hint: str = "") -> None:
    interval(name, value, at_least=0.0, hint=hint)


def count(
    name: str, value: Any, *, at_least: int = 1, at_most: int = 2**31 - 1, hint: str = ""
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


def seed(name: str, value: Any) -> None:
    """Raise unless ``value`` is an integer that a generator takes in whole."""
    if not is_whole(value):
        raise TypeError(f"{name} must be an integer, got {shown(value)}.")
    if not -(2**31) <= int(value) < 2**32:
        raise ValueError(f"{name} must be an integer of 32 bits, got {value}.")


def is_key(value: Any) -> bool:
    """Whether it is one random key, typed or of ``jax.random.PRNGKey``."""
    if not isinstance(value, jax.Array | np.ndarray):
        return False
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value.ndim == 0
    # Of jax.random.PRNGKey, for the generator that is the default.
    return value.dtype == np.uint32 and value.shape == jax.eval_shape(jax.random.PRNGKey, 0).shape


def key(name: str, value: Any, more: str = "") -> None:
    """Raise ``TypeError`` unless it is one random key."""
    if not is_key(value):
        raise TypeError(
            f"{name} must be a random key, such as jax.random.key(0){more}, got {shown(value)}."
        )


def switch(name: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` is ``True`` or ``False``: any text would be true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {shown(value)}.")


def kind(name: str, value: Any, base: type) -> None:
    """Raise ``TypeError`` unless ``value`` is an instance of ``base``."""
    if not isinstance(value, base):
        raise TypeError(
            f"{name} must be an instance of {base.__module__}.{base.__name__}, got {shown(value)}."
        )


def required(method: F) -> F:
    """A method that every class of one's own must give."""
    method.__required__ = True  # pyright: ignore[reportFunctionMemberAccess]
    return method


@functools.cache
def missing(cls: type) -> str:
    """The first method that a class lacks, in a sentence; empty if it has all."""
    for name in dir(cls):
        method = getattr(cls, name)
        method = getattr(method, "fget", method)  # of a property
        if getattr(method, "__required__", False):
            return lacks(cls, name, (method.__doc__ or "").partition("\n")[0])
    return ""


def lacks(cls: type, name: str, what: str) -> str:
    """The sentence."""
    return f"{cls.__name__} has no method {name!r}: {what.rstrip('.')}. Give its class one."


def registered(name: str, value: Any) -> None:
    """Raise ``TypeError`` if JAX would take an object of a user's own class for a single number."""
    array = isinstance(value, jax.Array | np.ndarray | numbers.Number | jax.ShapeDtypeStruct)
    array |= isinstance(value, Rows)
    if not array and jax.tree_util.all_leaves((value,)):
        raise TypeError(
            f"{name} is of class {type(value).__name__}, which is no pytree: JAX cannot see the "
            "numbers in it. Decorate the class with fl.module."
        )


def finite(name: str, value: Any, hint: str = "") -> None:
    """Raise ``ValueError`` if a concrete array holds NaN or infinity."""

    def check(bad: Any, first: str = "") -> None:
        if bad:
            raise ValueError(
                f"{name} holds {int(bad)} NaN or infinite entries{first}; remove or impute them "
                f"first.{' ' + hint if hint else ''}"
            )

    if is_concrete(value):
        good = np.isfinite(np.asarray(value))
        if not good.all():
            place = np.argwhere(~good)[0].tolist()
            first = f", the first at {place}" if place else ""
            check(np.size(good) - good.sum(), first)
    elif _COLLECTED.get() and isinstance(value, jax.core.Tracer):
        known(check, jnp.sum(~jnp.isfinite(value), dtype=np.int32))


def squares(name: str, value: Any, terms: int) -> None:
    """Raise ``ValueError`` if so many squares of the array's entries overflow when summed."""
    value = np.asarray(value)  # where a scenario closes over it, NumPy's own would be traced
    ends = np.asarray([np.min(value), np.max(value)])
    largest, most = float(np.max(np.abs(ends))), float(jnp.finfo(ends.dtype).max)
    if largest > (most / terms) ** 0.5:
        raise ValueError(
            f"{name} holds entries up to {largest:.3g}, whose squares overflow {ends.dtype}; "
            "scale them to about one, for instance by their standard deviation."
        )


def feature_map(value: Any) -> None:
    """Raise ``TypeError`` unless it is ``None`` or a function that says how many it returns."""
    if value is not None and not (callable(value) and hasattr(value, "dim")):
        raise TypeError(
            "feature_map must be a function with an attribute dim, its number of features, such "
            f"as fljax.data.RandomFourier, got {shown(value)}."
        )


def returned(name: str, value: Any, *shapes: tuple[int, ...]) -> Any:
    """What a user's function returned; ``ValueError`` unless it has one of these shapes, since
    arrays of other shapes would be broadcast or fail elsewhere.
    """
    if not hasattr(value, "shape") or value.shape not in shapes:
        found = f"shape {value.shape}" if hasattr(value, "shape") else shown(value)
        wanted = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} must return an array of shape {wanted}, got {found}.")
    return value


def column_names(table: Any) -> list[Any] | None:
    """Of a structured array, a mapping, a data set or a frame; ``None`` of anything else."""
    known = getattr(getattr(table, "dtype", None), "names", None)
    if known is None:
        known = getattr(table, "column_names", None)
    if known is None and isinstance(table, Mapping):
        known = table.keys()
    if known is None:
        known = getattr(table, "columns", None)
    return None if known is None else list(known)


def one_length(columns: Mapping[str, Any]) -> int:
    """That of all columns; ``ValueError`` if they differ or have no rows."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or not min(lengths.values()):
        raise ValueError(f"columns must have one length, of one row or more, got {lengths}.")
    return next(iter(lengths.values()))


def is_missing(entry: Any) -> bool:
    """Whether it is ``None``, NaN, NaT or pandas' ``NA``: what does not equal itself."""
    if entry is None:
        return True
    same = entry == entry  # NA compared to anything is NA, which is neither true nor false
    return not same if isinstance(same, bool | np.bool_) else np.ndim(same) == 0


def column(name: str, values: Any) -> np.ndarray:
    """A column's entries as an array, by position and whatever the index of a frame.

    ``ValueError`` for NaN that NumPy made text of: of ``["a", nan]`` it would make
    ``["a", "nan"]``, a name like any other.
    """
    if isinstance(values, list | tuple) and len({isinstance(v, str) for v in values}) > 1:
        entries = np.empty(len(values), object)
        entries[:] = values
        return entries
    array = np.asarray(values)
    if array.dtype.kind == "U" and np.any(array == "nan"):
        place = np.argwhere(array == "nan")[0].tolist()
        raise ValueError(
            f"{name} holds the text 'nan' at {', '.join(map(str, place))}, which is what NumPy "
            "makes of a missing value among text; leave such rows out, or give it a name."
        )
    return array


def names(name: str, values: Any, what: str = "name or number") -> np.ndarray:
    """``[n]``, what each row belongs to: a class, a client, a node, as text or numbers.

    The rows of a frame are taken by position, whatever its index.

    Raises:
      ValueError: not one entry of each row; a missing one, with its row; text beside numbers, of
        which ``"1"`` and ``1`` would be one name or two.
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
    text = [isinstance(entry, str) for entry in entries]
    if all(text):
        return array.astype(str)
    if any(text):
        one, other = text.index(True), text.index(False)
        raise ValueError(
            f"{name} holds text, {entries[one]!r} in row {one}, and {entries[other]!r} of type "
            f"{type(entries[other]).__name__} in row {other}; make all of them one kind, such as "
            "[str(entry) for entry in ...]."
        )
    made = np.asarray(entries)
    if made.ndim != 1 or made.dtype.kind not in "biufMm":
        raise TypeError(f"{name} must be text or numbers, got {shown(entries[0])} in row 0.")
    return made


def choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``known``, suggesting the nearest."""
    known = list(known)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {', '.join(known)}, got {shown(value)}.")
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        raise ValueError(
            f"unknown {name} {value!r}; known: {', '.join(known)}."
            f"{f' Did you mean {near[0]!r}?' if near else ''}"
        )


def indices(name: str, value: Any, count: int) -> None:
    """Raise ``ValueError`` unless known numbers are places among so many: JAX would clamp them."""
    if is_concrete(value) and np.size(value):
        places = np.asarray(value)  # within a trace jnp.min of known numbers would be traced
        least, most = int(places.min()), int(places.max())
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


def start(value: Any, clients: int, dim: int) -> None:
    """Raise unless models to start from, if any, are one for all or one for each client."""
    if value is None:
        return
    if np.shape(value) not in ((dim,), (clients, dim)):
        raise ValueError(
            f"a start must be a model of shape {(dim,)}, or one for each client, {(clients, dim)}, "
            f"got shape {np.shape(value)}."
        )
    finite("a start", value)


def strength(value: Any, clients: int) -> None:
    """Raise unless it is a regularizer's: >= 0, for all clients or of each."""
    nonnegative("strength", value)
    per_client("strength", value, clients)


def wholes(value: Any) -> Any:
    """Floats without a fraction, concrete, as integers of NumPy; anything else as it is."""
    value = plain(value)
    if not (is_concrete(value) and is_real(value)):
        return value
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return value
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    return whole if np.array_equal(array, whole) else value


def trace(
    name: str, table: Any, kind: str, shape: tuple[str, ...] = ("rounds", "clients"), hint: str = ""
) -> Any:
    """The table as an array; ``ValueError`` unless it is of this kind, has these axes and entries.

    Args:
      name: of it.
      table: booleans or 0 and 1 (``kind="booleans"``), or whole numbers (``"integers"``).
      kind: as above.
      shape: its axes.
      hint: what to do otherwise.
    """
    table = filled(name, {"booleans": flags, "integers": wholes}[kind](table))
    dtype = {"booleans": np.bool_, "integers": np.integer}[kind]
    if np.ndim(table) != len(shape) or not np.issubdtype(table.dtype, dtype):
        raise ValueError(
            f"{name} must be {kind} of shape [{', '.join(shape)}], got shape {np.shape(table)} of "
            f"{table.dtype}.{' ' + hint if hint else ''}"
        )
    return table


def trace_fits(what: str, table: Any, clients: int, rounds: int) -> None:
    """Raise ``ValueError`` unless the table has enough rounds, of this many clients."""
    if table.shape[0] < rounds or table.shape[1] != clients:
        raise ValueError(
            f"{what} has {table.shape[0]} rounds of {table.shape[1]} clients; the run has {rounds} "
            f"rounds of {clients}."
        )
