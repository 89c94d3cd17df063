"""The decorator of every configuration object: a frozen dataclass that is also a pytree.

Numbers are leaves, so they can be swept, batched and differentiated without a new compilation;
structure (sizes, switches, callables) is static and compared by type and value: 2 is not 2.0.
"""

import dataclasses
import inspect
import numbers
import struct
import textwrap
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar, dataclass_transform, overload

import jax
import numpy as np

from fljax._core import annotations, checks
from fljax._core.call_errors import remedy

T = TypeVar("T")

#: A sequence is displayed with at most this many items.
MAX_SHOWN_ITEMS = 8

#: Characters of an argument's text in the call that an error suggests.
MAX_ARGUMENT_TEXT = 40


class TypedKey:
    """A value that equals another only if both have the same type and bits.

    Compiled programs are cached by their static values, where Python's equality is too coarse:
    ``2 == 2.0`` (but ``7 // 2`` is not ``7 // 2.0``), ``1 == True``, ``0.0 == -0.0``. NaN equals
    NaN here, so that it does not trigger a new trace each time.
    """

    __slots__ = ("key", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        self.key: Hashable = None  # computed at the first comparison

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TypedKey):
            return NotImplemented
        return self.value is other.value or self._key() == other._key()

    def __repr__(self) -> str:
        return repr(self.value)

    def _key(self) -> Hashable:
        if self.key is None:
            self.key = _comparison_key(self.value)
        return self.key


class UncomparedPayload(str):
    """A payload that travels with a key without being compared: all instances are equal.

    It is an empty string, whose ``__eq__`` and ``__hash__`` run in C.
    """

    value: object

    def __new__(cls, value: object) -> "UncomparedPayload":
        new = super().__new__(cls)
        new.value = value
        return new

    def __repr__(self) -> str:
        return repr(self.value)


def _keyed_structure(value: object) -> tuple[Hashable, UncomparedPayload]:
    """Pytree auxiliary data: a key that JAX compares, and the static value as uncompared payload.

    JAX looks programs up in hash tables. If comparing two entries runs Python code, such as an
    ``__eq__`` of ours, another thread may change the table meanwhile, and jaxlib 0.10.2 reads freed
    memory. So the key consists of tuples, numbers and strings alone, which are compared in C.
    """
    return (
        _EMPTY_STRUCTURE
        if type(value) is tuple and not value
        else (_comparison_key(value), UncomparedPayload(value))
    )


#: The auxiliary data of a module without static fields.
_EMPTY_STRUCTURE = (tuple, ()), UncomparedPayload(())

#: Types whose equal values have equal bits: most static values are of these.
_EXACT_EQUALITY = frozenset({int, bool, str, type(None)})

#: Values with an ``__eq__`` in Python: of each set of equal values, the first one seen.
_EQUAL_REPRESENTATIVES: dict[Hashable, object] = {}

#: Identity-compared objects, kept alive so that ``id`` stays unique.
_KEPT_ALIVE: dict[int, object] = {}


def _comparison_key(value: Any, in_uncompared_field: bool = False) -> Hashable:
    """A key equal exactly for values of equal type and bits; compared without running Python code.

    Lists, dicts and arrays are unhashable and hence raise, except ``in_uncompared_field``: within
    a field that its dataclass excludes from comparison, they get a key as well.
    """
    cls = type(value)
    if cls in _EXACT_EQUALITY:
        return cls, value
    if cls is float:
        return float, struct.pack("<d", value)
    if cls is complex:
        return complex, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, np.generic):
        return cls, value.dtype.str, value.tobytes()
    if isinstance(value, tuple):
        return cls, tuple(_comparison_key(item, in_uncompared_field) for item in value)
    if isinstance(value, frozenset):
        return cls, frozenset(_comparison_key(item, in_uncompared_field) for item in value)
    if isinstance(value, numbers.Number):  # Fraction, Decimal: their repr has every digit
        return cls, value, repr(value)
    if in_uncompared_field and cls is list:
        return cls, tuple(_comparison_key(item, in_uncompared_field) for item in value)
    if in_uncompared_field and cls is dict:
        return cls, tuple(
            (_comparison_key(k, in_uncompared_field), _comparison_key(v, in_uncompared_field))
            for k, v in value.items()
        )
    if in_uncompared_field and cls is np.ndarray and not value.dtype.hasobject:
        return cls, value.dtype.str, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _has_generated_eq(cls):
        if not in_uncompared_field:
            hash(value)  # raises if a compared field is unhashable
        return cls, tuple(
            _comparison_key(
                getattr(value, field.name),
                in_uncompared_field or field.hash is False or not field.compare,
            )
            for field in dataclasses.fields(value)
        )
    if in_uncompared_field and cls.__hash__ is None:
        return cls, id(_KEPT_ALIVE.setdefault(id(value), value))
    if isinstance(cls.__eq__, types.FunctionType):
        return cls, id(_EQUAL_REPRESENTATIVES.setdefault((cls, value), value))
    return cls, value


def _has_generated_eq(cls: type) -> bool:
    """Whether a dataclass has the ``__eq__`` that the decorator generates, field by field."""
    attributes = vars(cls)
    eq_code = getattr(attributes.get("__eq__"), "__code__", None)
    # Generated methods have no source file.
    return (
        "__dataclass_fields__" in attributes and getattr(eq_code, "co_filename", "") == "<string>"
    )


class IdentityKey:
    """A key equal only for the identical object, which it keeps alive so that ``id`` is unique."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class Static:
    """A static value: compiled in, one program for each."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and TypedKey(self.value) == TypedKey(other.value)

    def __hash__(self) -> int:
        return hash(TypedKey(self.value))

    def tree_flatten(self):
        return (), _keyed_structure(self.value)

    @classmethod
    def tree_unflatten(cls, structure, _):
        return cls(structure[1].value)


@overload
def static(values: Iterable[Any]) -> list[Static]: ...
@overload
def static(
    *, default: object = ..., default_factory: Callable[[], object] = ..., **field: Any
) -> Any: ...
def static(values: object = dataclasses.MISSING, **field: Any) -> Any:
    """Mark static values: the values of a grid's axis, or a field of a :func:`module`.

    Static values are hashable and part of the compiled program: each of them compiles a program,
    whereas numbers share one. Sizes, switches and callables are static. Values of different types
    are different, even if they are equal: 2 is not 2.0, and 1 is not True.

    Args:
      values: of an axis of the grid, ``{"clients": fl.static([10, 100])}``.
      field: without values, arguments of :func:`dataclasses.field`, such as ``default``.

    Returns:
      The marked values; or the field.

    Example:
      >>> import jax, fljax as fl
      >>> [clients.value for clients in fl.static([10, 100])]
      [10, 100]
      >>> @fl.module
      ... class Window:
      ...     width: float = 1.0
      ...     size: int = fl.static(default=5)
      >>> len(jax.tree.leaves(Window(2.0)))  # the size is none of its numbers
      1
    """
    if values is not dataclasses.MISSING:
        is_one = isinstance(values, str) or (hasattr(values, "dtype") and not np.ndim(values))  # pyright: ignore[reportArgumentType]
        if is_one or not isinstance(values, Iterable):
            raise TypeError(
                f"static takes the list of an axis's values, got {checks.shown(values)}; for one "
                "value write static([value])."
            )
        values = [int(value) if checks.is_whole(value) else value for value in values]
        for value in values:
            checks.comparable("a value of static", value)
        return [Static(value) for value in values]
    return dataclasses.field(metadata={"static": True}, **field)


@annotations.checked
def field(
    *, converter: Callable[[Any], Any] | type | None = None, static: bool = False, **settings: Any
) -> Any:
    """A field of a :func:`module` whose values are converted at construction.

    Args:
      converter: applied to the argument before any check; its result must match the annotation. A
        default of ``None`` is not converted.
      static: whether it is part of the compiled program, see :func:`static`.
      settings: arguments of :func:`dataclasses.field`, such as ``default``.

    Example:
      >>> import fljax as fl
      >>> @fl.module
      ... class Descent:
      ...     step_size: fl.schedules.Schedule = fl.field(converter=fl.schedules.as_schedule)
      >>> Descent(0.1)  # a number, or a schedule
      Descent(step_size=Constant(value=0.1))
    """
    return dataclasses.field(metadata={"static": static, "converter": converter}, **settings)


def as_given(value: object) -> Any:
    """Return the value: the converter of a field that ``validate`` converts to its annotation."""
    return value


def float_dtype() -> np.dtype:
    """The default float type: float32, or float64 under ``jax_enable_x64``."""
    return jax.dtypes.canonicalize_dtype(np.float64)


def float_array(name: str, argument: object) -> Any:
    """The argument as an array of real numbers in the default precision; JAX arrays are unchanged.

    Raises if it is not an array of real numbers.
    """
    value = checks.array(name, argument)
    return (
        value if value is argument and isinstance(value, jax.Array) else value.astype(float_dtype())
    )


def as_leaf(value: object) -> Any:
    """Python and NumPy numbers as strongly typed 0-d arrays, anything else unchanged.

    A weakly typed scalar and an array of the same shape trace twice. NumPy and not JAX arrays,
    because a NumPy value stays concrete, and hence can be checked, inside a trace.
    """
    if isinstance(value, bool | np.bool_):
        return np.asarray(value)
    if isinstance(value, numbers.Real):
        return np.asarray(value, float_dtype())
    if isinstance(value, jax.Array) and value.ndim == 0:
        is_integer = jax.numpy.issubdtype(value.dtype, np.integer)
        if is_integer or value.weak_type:
            return jax.lax.convert_element_type(value, float_dtype() if is_integer else value.dtype)
    return value


@dataclass_transform(frozen_default=True, field_specifiers=(static, field, dataclasses.field))
def module(cls: type[T]) -> type[T]:
    """Make a class a part of simulations: a frozen dataclass, and a pytree of its numbers.

    Its fields are numbers, arrays or modules, except for those marked :func:`static`. It decorates
    losses, algorithms, stages and all other parts, also ones that users define. Arguments are
    checked against the annotations: ``float`` is a single number, not an array.

    Its ``repr`` is the call that makes it, with arrays by type and shape, and without fields that
    have their defaults: ``FedDPSGD(step_size=Constant(value=0.1), batch=5)``.

    A method ``validate(self)`` is called at construction with the values as the user gave them,
    before numbers become arrays; rebuilding by JAX skips it, since leaves may then be anything.

    Args:
      cls: with annotated fields, as for :func:`dataclasses.dataclass`.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Quantile(fl.problems.Loss):
      ...     level: float = 0.5  # a number: a grid of levels shares one program
      ...
      ...     def value(self, prediction, target):
      ...         error = target - prediction
      ...         return jnp.maximum(self.level * error, (self.level - 1) * error)
      ...
      ...     def derivative(self, prediction, target):
      ...         return jnp.where(target > prediction, -self.level, 1 - self.level)
      >>> def scenario(key, level):
      ...     return fl.Simulation(
      ...         problem=fl.problems.linear(
      ...             key, clients=4, samples=9, dim=2, loss=Quantile(level)
      ...         ),
      ...         network=fl.graphs.ring(4),
      ...         algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...         metrics=["consensus_error"],
      ...     )
      >>> study = fl.sweep(scenario, rounds=5, seeds=2, grid={"level": [0.1, 0.5, 0.9]})
      >>> study.attrs["compilations"]
      1
    """
    if not isinstance(cls, type):
        raise TypeError(f"fl.module decorates a class, got {checks.shown(cls)}.")
    validate = getattr(cls, "validate", None)

    def post_init(self) -> None:
        if message := checks.missing_method(type(self)):
            raise TypeError(message)
        _apply_converters(self)
        annotations.check_fields(self)
        if validate is not None:
            self.validate()
        for field in dataclasses.fields(self):
            argument = getattr(self, field.name)
            if field.metadata.get("static"):
                checks.comparable(field.name, argument)
            else:
                object.__setattr__(self, field.name, _checked_leaf(field.name, argument))

    # A class attribute of a base that is not a field must not become the default of a field.
    for name, hint in vars(cls).get("__annotations__", {}).items():
        declared = {*vars(cls), *getattr(cls, "__dataclass_fields__", {})}
        if name not in declared and hasattr(cls, name) and "ClassVar" not in str(hint):
            setattr(cls, name, dataclasses.field())
    cls.__post_init__ = post_init  # pyright: ignore[reportAttributeAccessIssue]
    if "__repr__" not in vars(cls):
        cls.__repr__ = _constructor_repr  # pyright: ignore[reportAttributeAccessIssue]
    own_guards = vars(cls).keys() & {"__setattr__", "__delattr__"}
    # With `frozen=True` dataclasses raises if the class defines one of these methods, as it should.
    frozen = _is_frozen_by_python(cls) or bool(own_guards)
    init = vars(cls).get("__init__")
    new = dataclasses.dataclass(frozen=frozen, init=False, eq=False, repr=False)(cls)
    if not frozen:
        new.__setattr__ = _frozen_setattr
        new.__delattr__ = _frozen_delattr  # pyright: ignore[reportAttributeAccessIssue]
    if init is None:
        new.__init__ = _constructor(new)  # pyright: ignore[reportAttributeAccessIssue]
    _register_pytree(new)
    return new


def _checked_leaf(name: str, argument: object) -> Any:
    """The argument of a field that is not static, as an array if it is made of numbers."""
    value = as_leaf(checks.plain(argument))
    if isinstance(argument, numbers.Real) and not isinstance(argument, bool | np.bool_):
        checks.representable(name, argument, value)
    if type(value) in (list, tuple) and value and checks.is_real(value):
        value = np.asarray(value, float_dtype())
    checks.no_nan(name, value)
    checks.registered(name, value)
    return value


def _register_pytree(cls: type) -> None:
    """Register a module: static fields are its auxiliary data, the others its children.

    Unflattening bypasses the constructor, since JAX rebuilds modules with leaves of any kind.
    """
    names: dict[bool, list[str]] = {False: [], True: []}
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        names[bool(field.metadata.get("static"))].append(field.name)
    leaves = tuple(names[False])
    structure = tuple(names[True])

    def flatten(obj):
        children = [(jax.tree_util.GetAttrKey(name), getattr(obj, name)) for name in leaves]
        return children, _keyed_structure(tuple(getattr(obj, name) for name in structure))

    def flatten_fast(obj):
        values = _keyed_structure(tuple(getattr(obj, name) for name in structure))
        return [getattr(obj, name) for name in leaves], values

    def unflatten(values, children):
        obj = object.__new__(cls)
        for name, value in zip(structure, values[1].value, strict=True):
            object.__setattr__(obj, name, value)
        for name, value in zip(leaves, children, strict=True):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten, flatten_fast)


# For each class `dataclasses` generates the source of a constructor and of the freezing methods and
# compiles it, which took a third of the library's import time. So modules share these functions.


def _is_frozen_by_python(cls: type) -> bool:
    """Whether a base is frozen by :mod:`dataclasses`, which then requires the same of this one."""
    bases = [vars(base).get("__dataclass_params__") for base in cls.__mro__[1:]]
    return any(base is not None and base.frozen for base in bases)


def _frozen_setattr(part: object, name: str, value: object) -> None:
    _check_unfrozen(part, name, "assign to")
    object.__setattr__(part, name, value)


def _frozen_delattr(part: object, name: str) -> None:
    _check_unfrozen(part, name, "delete")
    object.__delattr__(part, name)


def _check_unfrozen(part: Any, name: str, what: str) -> None:
    """Raise, except for attributes that an undecorated subclass adds."""
    cls = type(part)
    if "__dataclass_fields__" in vars(cls) or name in cls.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")


class _Factory:
    """Placeholder in a signature for the result of a default factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _constructor(cls: type) -> Callable[..., None]:
    """The ``__init__`` of a module: its signature has the fields, in the order of a dataclass."""
    fields = [f for f in dataclasses.fields(cls) if f.init]  # pyright: ignore[reportArgumentType]
    fields.sort(key=lambda field: field.kw_only is True)
    factories = {
        f.name: f.default_factory
        for f in dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        if f.default_factory is not dataclasses.MISSING
    }
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    optional = False
    for field in fields:
        default = _FACTORY if field.name in factories else field.default
        default = inspect.Parameter.empty if default is dataclasses.MISSING else default
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if field.kw_only:
            kind = inspect.Parameter.KEYWORD_ONLY
        elif default is inspect.Parameter.empty and optional:
            raise TypeError(f"non-default argument {field.name!r} follows default argument")
        optional = default is not inspect.Parameter.empty
        parameters.append(
            inspect.Parameter(field.name, kind, default=default, annotation=field.type)
        )
    signature = inspect.Signature(parameters, return_annotation=None)
    of_callers = inspect.Signature(parameters[1:])  # without self

    def construct(*args: object, **kwargs: object) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            mend = remedy(cls.__name__, of_callers, args[1:], kwargs, _argument_text)
            raise TypeError(f"{cls.__name__}() {error}; {mend}.") from None
        bound.apply_defaults()
        part = bound.arguments.pop("self")
        arguments = {
            name: bound.arguments.get(name, _FACTORY) for name in factories
        } | bound.arguments
        for name, value in arguments.items():
            object.__setattr__(part, name, factories[name]() if value is _FACTORY else value)
        part.__post_init__()

    construct.__name__ = "__init__"
    construct.__qualname__ = f"{cls.__qualname__}.__init__"
    construct.__module__ = cls.__module__
    construct.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    construct.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return construct


def _apply_converters(part: Any) -> None:
    """Replace fields by the results of their converters."""
    for field in dataclasses.fields(part):
        if (converter := field.metadata.get("converter")) is not None:
            argument = getattr(part, field.name)
            if argument is not None or field.default is not None:
                object.__setattr__(part, field.name, converter(argument))


def _constructor_repr(part: Any, width: int = 88) -> str:
    """The call that constructs a part, in one line if it fits, else with one line per field."""
    if isinstance(part, tuple):  # named
        arguments = dict(zip(part._fields, part, strict=True))  # pyright: ignore[reportAttributeAccessIssue]
    else:
        fields = [field for field in dataclasses.fields(part) if field.repr]
        arguments = {f.name: getattr(part, f.name) for f in fields if not _is_default(part, f)}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    texts = [f"{name}={_field_repr(value, width - 4)}" for name, value in arguments.items()]
    return _joined_repr(f"{type(part).__name__}(", texts, ")", width)


def _field_repr(value: Any, width: int) -> str:
    """The ``repr`` of a field's value; arrays by type and shape."""
    if isinstance(value, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct):
        if checks.is_concrete(value) and checks.is_real(value) and not value.shape:
            return str(value)
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if type(value) in (list, tuple):
        start, end = "[]" if isinstance(value, list) else "()"
        texts = [_field_repr(item, width - 4) for item in value[:MAX_SHOWN_ITEMS]]
        texts += [f"... {len(value)} in all"] if len(value) > MAX_SHOWN_ITEMS else []
        return _joined_repr(start, texts, end, width)
    repr_method = type(value).__repr__
    # The `__repr__` that `dataclasses` generates is wrapped against recursion.
    has_generated_repr = dataclasses.is_dataclass(value) and hasattr(repr_method, "__wrapped__")
    if repr_method is _constructor_repr or hasattr(value, "_fields") or has_generated_repr:
        return _constructor_repr(value, width)
    return getattr(value, "__qualname__", None) or repr(value)


def _argument_text(value: object) -> str:
    """The ``repr`` of an argument in one short line; ``...`` if it is longer."""
    text = _field_repr(value, MAX_ARGUMENT_TEXT)
    return text if len(text) <= MAX_ARGUMENT_TEXT and "\n" not in text else "..."


def _joined_repr(start: str, texts: list[str], end: str, width: int) -> str:
    line = f"{start}{', '.join(texts)}{end}"
    if len(line) <= width and "\n" not in line:
        return line
    return "\n".join([start, *(textwrap.indent(f"{text},", "    ") for text in texts), end])


def _is_default(part: object, field: dataclasses.Field) -> bool:
    value = getattr(part, field.name)
    default = field.default
    if value is default or (isinstance(value, str | tuple) and value == default):
        return True
    is_concrete_scalar = checks.is_concrete(value) and checks.is_real(value) and not np.ndim(value)
    # Comparing JAX arrays within a trace gives a tracer, even if they are concrete; NumPy does not.
    return is_concrete_scalar and checks.is_real(default) and bool(np.asarray(value) == default)


def replace(obj: T, **changes: object) -> T:
    """A copy with some fields replaced, *without* checks: its values were checked before."""
    copy = object.__new__(type(obj))
    for field in dataclasses.fields(obj):  # pyright: ignore[reportArgumentType]
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(obj, field.name)))
    return copy
