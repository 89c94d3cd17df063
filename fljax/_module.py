"""The one base of every configuration object: a frozen dataclass that is also a pytree.

Numbers are leaves, so they can be swept, batched and differentiated without a new compilation;
structure (sizes, switches, callables) is static and compared by type and value: 2 is not 2.0.
"""

import dataclasses
import functools
import inspect
import numbers
import struct
import textwrap
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, dataclass_transform, overload

import jax
import numpy as np

from fljax import _arguments, _check, _renamed

__all__ = [
    "Alike",
    "Itself",
    "Static",
    "as_leaf",
    "field",
    "float_dtype",
    "module",
    "replace",
    "static",
]

T = TypeVar("T")

#: Of a sequence so many items are shown.
SHOWN = 8


class Alike:
    """A value that equals another of the same type and bits, and no other.

    Programs are remembered by what is structure in them, and equal is not alike: ``2 == 2.0``, of
    which 7 // 2 and 7 / 2.0 differ, ``1 == True``, ``0.0 == -0.0``. NaN is like itself, so that it
    is not traced anew each time.
    """

    __slots__ = ("form", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.form: Any = None  # made when it is first compared

    def __hash__(self) -> int:
        return hash(self._formed())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Alike):
            return NotImplemented
        return self.value is other.value or self._formed() == other._formed()

    def __repr__(self) -> str:
        return repr(self.value)

    def _formed(self) -> Any:
        if self.form is None:
            self.form = _form(self.value)
        return self.form


class Aside(str):
    """What goes along with structure and is not compared: each is equal to every other."""

    value: Any

    def __new__(cls, value: Any) -> "Aside":
        new = super().__new__(cls)
        new.value = value
        return new

    def __repr__(self) -> str:
        return repr(self.value)


def _structure(value: Any) -> tuple[Any, Aside]:
    """What JAX compares of structure, and the structure.

    JAX looks programs up in tables that another thread may change while code of Python's runs, as a
    method ``__eq__`` of ours would be (jaxlib 0.10.2 then reads what is gone). So what it compares
    is made of tuples, numbers and texts alone.
    """
    return _NONE if type(value) is tuple and not value else (_form(value), Aside(value))


#: Of a part without any.
_NONE = (tuple, ()), Aside(())

#: Kinds whose values are alike where they are equal: most of what is structure.
_PLAIN = frozenset({int, bool, str, type(None)})

#: Values that only their own method compares, each by the first that was equal to it.
_FIRST: dict[Any, Any] = {}

#: Objects that are like themselves alone, kept so that their addresses are no other's.
_KEPT: dict[int, Any] = {}


def _form(value: Any, within: bool = False) -> Any:
    """What two values have in common if they are alike, and only then: of types whose comparison
    runs no Python.

    ``within`` a field that its dataclass leaves out of comparisons, lists, dicts and arrays have
    one as well; elsewhere they are no structure, as they cannot be hashed.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return float, struct.pack("<d", value)
    if kind is complex:
        return complex, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, tuple):
        return kind, tuple(_form(item, within) for item in value)
    if isinstance(value, frozenset):
        return kind, frozenset(_form(item, within) for item in value)
    if isinstance(value, numbers.Number):  # whose text has every digit
        return kind, value, repr(value)
    if within and kind is list:
        return kind, tuple(_form(item, within) for item in value)
    if within and kind is dict:
        return kind, tuple((_form(k, within), _form(v, within)) for k, v in value.items())
    if within and kind is np.ndarray and not value.dtype.hasobject:
        return kind, value.dtype.str, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _by_value(kind):
        if not within:
            hash(value)  # raises if a field of it is no structure
        return kind, tuple(
            _form(getattr(value, field.name), within or field.hash is False or not field.compare)
            for field in dataclasses.fields(value)
        )
    if within and kind.__hash__ is None:
        return kind, id(_KEPT.setdefault(id(value), value))
    if isinstance(kind.__eq__, types.FunctionType):
        return kind, id(_FIRST.setdefault((kind, value), value))
    return kind, value


def _by_value(cls: type) -> bool:
    """Whether a dataclass is compared field by field, and not as its author says."""
    own = vars(cls)
    compare = getattr(own.get("__eq__"), "__code__", None)
    # What the decorator writes comes from no file.
    return "__dataclass_fields__" in own and getattr(compare, "co_filename", "") == "<string>"


class Itself:
    """What is like itself alone; holding it keeps its address from being another's."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.value is other.value


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class Static:
    """A value that is structure: compiled in, one program for each."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and Alike(self.value) == Alike(other.value)

    def __hash__(self) -> int:
        return hash(Alike(self.value))

    def tree_flatten(self):
        return (), _structure(self.value)

    @classmethod
    def tree_unflatten(cls, structure, _):
        return cls(structure[1].value)


@overload
def static(values: Iterable[Any]) -> list[Static]: ...
@overload
def static(*, default: Any = ..., default_factory: Any = ..., **field: Any) -> Any: ...
def static(values: Any = dataclasses.MISSING, **field: Any) -> Any:
    """What is structure: the values of a grid's axis, or a field of a :func:`module`.

    Structure is hashable and part of the compiled program: each value of it has a program of its
    own, where numbers share one. Sizes, switches and callables are structure. Values of another
    type are another structure, equal or not: 2 is not 2.0, and 1 is not True.

    Args:
      values: of an axis of the grid, ``{"clients": fl.static([10, 100])}``.
      field: without values, what :func:`dataclasses.field` takes, such as ``default``.

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
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(
                f"static takes the list of an axis's values, got {_check.shown(values)}; for one "
                "value write static([value])."
            )
        values = [int(value) if _check.is_whole(value) else value for value in values]
        for value in values:
            _check.comparable("a value of static", value)
        return [Static(value) for value in values]
    return dataclasses.field(metadata={"static": True}, **field)


@_arguments.checked
def field(
    *, converter: Callable[[Any], Any] | type | None = None, static: bool = False, **settings: Any
) -> Any:
    """A field of a :func:`module` whose values are made into what the others rely on.

    Args:
      converter: of what is given at construction, before anything is checked; what it makes is what
        the annotation asks for. A default of ``None`` stays as it is.
      static: whether it is structure, see :func:`static`.
      settings: what :func:`dataclasses.field` takes, such as ``default``.

    Example:
      >>> import fljax as fl
      >>> @fl.module
      ... class Descent:
      ...     step_size: fl.schedules.Schedule = fl.field(converter=fl.schedules.as_schedule)
      >>> Descent(0.1)  # a number, or a schedule
      Descent(step_size=Constant(value=0.1))
    """
    return dataclasses.field(metadata={"static": static, "converter": converter}, **settings)


def float_dtype() -> np.dtype:
    """The default float type now in force (float32, or float64 under ``jax_enable_x64``)."""
    return jax.dtypes.canonicalize_dtype(np.float64)


def float_array(name: str, given: Any) -> Any:
    """An array of real numbers in the precision in use, or as it is if it is JAX's; raise if it is
    not one.
    """
    value = _check.array(name, given)
    return value if value is given and isinstance(value, jax.Array) else value.astype(float_dtype())


def as_leaf(value: Any) -> Any:
    """Python and NumPy numbers as strongly typed 0-d arrays, anything else unchanged.

    A weakly typed scalar and an array of the same shape trace twice. NumPy and not JAX arrays,
    because a NumPy value stays concrete, and hence can be checked, inside a trace.
    """
    if isinstance(value, bool | np.bool_):
        return np.asarray(value)
    if isinstance(value, numbers.Real):
        return np.asarray(value, float_dtype())
    if isinstance(value, jax.Array) and value.ndim == 0:
        whole = jax.numpy.issubdtype(value.dtype, np.integer)
        if whole or value.weak_type:
            return jax.lax.convert_element_type(value, float_dtype() if whole else value.dtype)
    return value


@dataclass_transform(frozen_default=True, field_specifiers=(static, field, dataclasses.field))
def module(cls: type[T]) -> type[T]:
    """Make a class a part of simulations: a frozen dataclass, and a pytree of its numbers.

    Its fields are numbers, arrays or modules, but for those marked :func:`static`. It is the
    decorator of losses, algorithms, stages and all other parts, a user's own as well. What a field
    is given is checked against its annotation: ``float`` is one number, and no array.

    It is shown as it was called, arrays by their types and shapes, without fields that have their
    defaults: ``FedDPSGD(step_size=Constant(value=0.1), batch=5)``.

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
        raise TypeError(f"fl.module decorates a class, got {_check.shown(cls)}.")
    validate = getattr(cls, "validate", None)

    def post_init(self) -> None:
        if lacking := _check.missing(type(self)):
            raise TypeError(lacking)
        _convert(self)
        _arguments.check_fields(self)
        if validate is not None:
            self.validate()
        for field in dataclasses.fields(self):
            if field.metadata.get("static"):
                _check.comparable(field.name, getattr(self, field.name))
            else:
                given = getattr(self, field.name)
                value = as_leaf(_check.plain(given))
                if isinstance(given, numbers.Real) and not isinstance(given, bool | np.bool_):
                    _check.representable(field.name, given, value)
                if type(value) in (list, tuple) and value and _check.is_real(value):
                    value = np.asarray(value, float_dtype())
                _check.no_nan(field.name, value)
                _check.registered(field.name, value)
                object.__setattr__(self, field.name, value)

    # An attribute of a base that is no field is no default of one.
    for name, hint in vars(cls).get("__annotations__", {}).items():
        known = {*vars(cls), *getattr(cls, "__dataclass_fields__", {})}
        if name not in known and hasattr(cls, name) and "ClassVar" not in str(hint):
            setattr(cls, name, dataclasses.field())
    cls.__post_init__ = post_init  # pyright: ignore[reportAttributeAccessIssue]
    if "__repr__" not in vars(cls):
        cls.__repr__ = _called  # pyright: ignore[reportAttributeAccessIssue]
    own = vars(cls).keys() & {"__setattr__", "__delattr__"}
    frozen = _is_frozen_by_python(cls) or bool(own)  # it raises where they are the class's own
    init = vars(cls).get("__init__")
    new = dataclasses.dataclass(frozen=frozen, init=False, eq=False, repr=False)(cls)
    if not frozen:
        new.__setattr__, new.__delattr__ = _assign, _delete  # pyright: ignore[reportAttributeAccessIssue]
    new.__init__ = _constructor(new) if init is None else _name_renamed(init, new)  # pyright: ignore[reportAttributeAccessIssue]
    names = [f.name for f in dataclasses.fields(new)]  # pyright: ignore[reportArgumentType]
    is_static = {f.name: bool(f.metadata.get("static")) for f in dataclasses.fields(new)}  # pyright: ignore[reportArgumentType]
    leaves = tuple(name for name in names if not is_static[name])
    structure = tuple(name for name in names if is_static[name])

    def flatten(obj):
        children = [(jax.tree_util.GetAttrKey(name), getattr(obj, name)) for name in leaves]
        return children, _structure(tuple(getattr(obj, name) for name in structure))

    def flatten_fast(obj):
        values = _structure(tuple(getattr(obj, name) for name in structure))
        return [getattr(obj, name) for name in leaves], values

    def unflatten(values, children):
        obj = object.__new__(new)
        for name, value in zip(structure, values[1].value, strict=True):
            object.__setattr__(obj, name, value)
        for name, value in zip(leaves, children, strict=True):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(new, flatten, unflatten, flatten_fast)
    return new


# Python writes a constructor and the methods that freeze a dataclass, and compiles them, anew for
# each class: a third of the time that importing the library takes. Those of parts are functions.


def _is_frozen_by_python(cls: type) -> bool:
    """Whether a base is a dataclass that Python has frozen, beside which it freezes this one."""
    bases = [vars(base).get("__dataclass_params__") for base in cls.__mro__[1:]]
    return any(base is not None and base.frozen for base in bases)


def _assign(part: Any, name: str, value: Any) -> None:
    _check_free(part, name, "assign to")
    object.__setattr__(part, name, value)


def _delete(part: Any, name: str) -> None:
    _check_free(part, name, "delete")
    object.__delattr__(part, name)


def _check_free(part: Any, name: str, what: str) -> None:
    """Raise but for further attributes of a subclass that is no part itself."""
    cls = type(part)
    if "__dataclass_fields__" in vars(cls) or name in cls.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")


class _Factory:
    """Stands in a signature for what a default factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _constructor(cls: type) -> Callable[..., None]:
    """What takes the fields as arguments; it says what an argument is called now."""
    fields = [f for f in dataclasses.fields(cls) if f.init]  # pyright: ignore[reportArgumentType]
    fields.sort(key=lambda field: field.kw_only is True)
    made = {
        f.name: f.default_factory
        for f in dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        if f.default_factory is not dataclasses.MISSING
    }
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    optional = False
    for field in fields:
        default = _FACTORY if field.name in made else field.default
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

    def construct(*args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            text = _renamed.argument(kwargs, signature.parameters) or str(error)
            raise TypeError(f"{cls.__name__}() {text}") from None
        bound.apply_defaults()
        part = bound.arguments.pop("self")
        given = {name: bound.arguments.get(name, _FACTORY) for name in made} | bound.arguments
        for name, value in given.items():
            object.__setattr__(part, name, made[name]() if value is _FACTORY else value)
        part.__post_init__()

    construct.__name__, construct.__qualname__ = "__init__", f"{cls.__qualname__}.__init__"
    construct.__module__ = cls.__module__
    construct.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    construct.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return construct


def _name_renamed(init: Callable[..., None], cls: type) -> Callable[..., None]:
    """A constructor of its class's own, which says what an argument is called now."""

    @functools.wraps(init)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            known = inspect.signature(init).parameters
            if text := _renamed.argument(kwargs, known):
                raise TypeError(f"{cls.__name__}() {text}") from None
            raise

    return construct


def _convert(part: Any) -> None:
    """Its fields by their converters."""
    for field in dataclasses.fields(part):
        if (converter := field.metadata.get("converter")) is not None:
            given = getattr(part, field.name)
            if given is not None or field.default is not None:
                object.__setattr__(part, field.name, converter(given))


def _called(part: Any, room: int = 88) -> str:
    """A part as it was called: in one line, or one a field where there is no room for that."""
    if isinstance(part, tuple):  # named
        given = dict(zip(part._fields, part, strict=True))  # pyright: ignore[reportAttributeAccessIssue]
    else:
        fields = [field for field in dataclasses.fields(part) if field.repr]
        given = {f.name: getattr(part, f.name) for f in fields if not _is_default(part, f)}
    given = {name: value for name, value in given.items() if value is not None}
    texts = [f"{name}={_shown(value, room - 4)}" for name, value in given.items()]
    return _enclosed(f"{type(part).__name__}(", texts, ")", room)


def _shown(value: Any, room: int) -> str:
    """A field: numbers and text as they are, arrays by their types and shapes."""
    if isinstance(value, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct):
        if _check.is_concrete(value) and _check.is_real(value) and not value.shape:
            return str(value)
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if type(value) in (list, tuple):
        start, end = "[]" if isinstance(value, list) else "()"
        texts = [_shown(item, room - 4) for item in value[:SHOWN]]
        texts += [f"... {len(value)} in all"] if len(value) > SHOWN else []
        return _enclosed(start, texts, end, room)
    own = type(value).__repr__
    plain = dataclasses.is_dataclass(value) and hasattr(own, "__wrapped__")  # as Python makes it
    if own is _called or hasattr(value, "_fields") or plain:
        return _called(value, room)
    return getattr(value, "__qualname__", None) or repr(value)


def _enclosed(start: str, texts: list[str], end: str, room: int) -> str:
    line = f"{start}{', '.join(texts)}{end}"
    if len(line) <= room and "\n" not in line:
        return line
    return "\n".join([start, *(textwrap.indent(f"{text},", "    ") for text in texts), end])


def _is_default(part: Any, field: dataclasses.Field) -> bool:
    value, default = getattr(part, field.name), field.default
    if value is default or (isinstance(value, str | tuple) and value == default):
        return True
    one = _check.is_concrete(value) and _check.is_real(value) and not np.ndim(value)
    # In a trace what a concrete array of JAX is compared with becomes traced; NumPy compares now.
    return one and _check.is_real(default) and bool(np.asarray(value) == default)


def replace(obj: T, **changes: Any) -> T:
    """A copy with fields exchanged and *not* checked again (the values were checked once)."""
    copy = object.__new__(type(obj))
    for field in dataclasses.fields(obj):  # pyright: ignore[reportArgumentType]
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(obj, field.name)))
    return copy
