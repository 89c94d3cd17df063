"""Identification of the Python functions that a compiled program of a study calls on the host.

The text of a program contains all of its numbers, but of a host call only its existence. The called
function is therefore part of the study's identity: its bytecode, constants and defaults, closure
and globals, recursively, arrays bit by bit, objects by their class and state (an estimator's
parameters, a dataclass's fields) as pickled. Installed code, as opposed to code written for the
study, is identified by its name and version. Objects without such a state (an open file, a lock, a
generator) cannot be identified, which is reported.

``jax.debug`` is ignored: it returns nothing, so no number depends on it.
"""

import builtins
import contextlib
import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import struct
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend import core

from fljax._version import __version__

__all__ = ["UnknownError", "called", "fingerprint"]

#: Of a class, what says nothing of what its objects do.
_BY_THE_WAY = {
    "__abstractmethods__",
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__match_args__",
    "__module__",
    "__orig_bases__",
    "__parameters__",
    "__slotnames__",  # `copyreg` comes and leaves it
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}

#: What calls Python, for its result or to show something.
_CALLS = ("pure_callback", "io_callback", "debug_callback", "debug_print")

#: The same in a program's text.
_CALL = re.compile(r"custom_call @xla\w*python\w*callback")

#: What checks types around a function remembers what it checked, and changes no number.
_CHECKERS = ("beartype", "jaxtyping", "typeguard")

#: Descriptors of C: they are what their name says.
_NAMED = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


class UnknownError(Exception):
    """An object that cannot be distinguished from another of its kind."""


def called(traced: core.ClosedJaxpr, text: str) -> tuple[list[str], str]:
    """The Python functions that a program calls: a digest of each call, in order, and why one has
    none.

    Args:
      traced: the traced program.
      text: its StableHLO.

    Returns:
      A digest of every call whose result the program uses; and which function cannot be identified
      and for what reason, empty if all can.
    """
    parts, reason, seen = [], "", False
    for equation in _equations(traced.jaxpr):
        name = equation.primitive.name
        if name == "ffi_call":
            target = equation.params.get("target_name")
            reason = reason or f"{target!r} of jax.ffi (compiled code has no text to compare)"
        seen |= name in _CALLS
        if name not in ("pure_callback", "io_callback"):
            continue
        function = equation.params["callback"]
        try:
            parts.append(fingerprint(function))
        except UnknownError as error:
            reason = reason or f"{_name_of(function)} ({error})"
    if not seen and _CALL.search(text):
        reason = reason or "a function (in a way that this version of JAX does not tell)"
    return parts, reason


def fingerprint(value: Any) -> str:
    """A digest of a value and everything it depends on, the same in every process.

    Raises:
      UnknownError: part of it has no state that could be compared; the message names it.

    Example:
      >>> def scaled(by):
      ...     return lambda x: by * x
      >>> fingerprint(scaled(2.0)) == fingerprint(scaled(2.0))
      True
      >>> fingerprint(scaled(2.0)) == fingerprint(scaled(3.0))
      False
    """
    try:
        return _Walk().digest(value).hex()
    except RecursionError:
        raise UnknownError("it is nested too deeply") from None


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """All of them, in order, those of loops, branches and calls where these stand."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _name_of(function: Any) -> str:
    """Of the user's function in JAX's wrapper."""
    function = getattr(function, "callback_func", function)
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or '?'}.{name}"


class _Walk:
    """One traversal of a value: objects that were seen keep their digest."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self.within: list[int] = []  # what the walk is inside of
        self.kept: list[Any] = []  # so that no two of them have one address

    def digest(self, value: Any) -> bytes:
        """Of any value."""
        if type(value) in (int, bool, str, bytes, float, complex, type(None), type(Ellipsis)):
            return _hashed(type(value).__name__, _bits(value))
        if id(value) in self.known:
            return self.known[id(value)]
        if id(value) in self.within:  # a function that calls itself
            return _hashed("within", str(len(self.within) - self.within.index(id(value))))
        self.within.append(id(value))
        self.kept.append(value)
        try:
            digest = _hashed(type(value).__qualname__, *self._parts(value))
        finally:
            self.within.pop()
        self.known[id(value)] = digest
        return digest

    def _all(self, values: Any) -> list[bytes]:
        return [self.digest(value) for value in values]

    def _parts(self, value: Any) -> list[Any]:
        """Everything that distinguishes the value from others of its type."""
        for kinds, parts in self._table().items():
            if isinstance(value, kinds):
                return parts(value)
        if isinstance(value, type):
            return self._class(value)
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:
            return [self.digest(wrapped)]  # jax.jit and functools.lru_cache
        return self._object(value)

    def _table(self) -> Mapping[Any, Any]:
        """How values of some types are decomposed; the others are objects with a state."""
        return {
            # The host never sees its value: only what is passed as an argument gets there.
            Tracer: lambda v: [str(v.aval)],
            jax.Array: self._array,
            np.ndarray | np.generic: self._array,
            types.CodeType: self._code,
            types.FunctionType: self._function,
            types.MethodType: lambda v: self._all([v.__func__, v.__self__]),
            types.BuiltinFunctionType: self._builtin,
            types.ModuleType: lambda v: self._module(v, ()),
            types.CellType: lambda v: self._all([v.cell_contents] if _filled(v) else []),
            types.MappingProxyType: lambda v: self._all(dict(v)),
            _NAMED: lambda v: [self.digest(v.__objclass__), v.__name__],
            property: lambda v: self._all([v.fget, v.fset, v.fdel]),
            staticmethod | classmethod: lambda v: [self.digest(v.__func__)],
            functools.cached_property: lambda v: [self.digest(v.func)],
            weakref.ReferenceType: lambda v: [self.digest(v())],
            types.UnionType: lambda v: self._all(v.__args__),
            np.ufunc: lambda v: [v.__name__],
            jax.tree_util.PyTreeDef: self._structure,
        }

    def _array(self, array: Any) -> list[Any]:
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
            name, array = str(array.dtype), jax.random.key_data(array)
        else:
            name = str(array.dtype)
        array = np.asarray(array)
        if array.dtype.hasobject:
            return [name, str(array.shape), *self._all(array.ravel().tolist())]
        return [name, str(array.shape), np.ascontiguousarray(array).tobytes()]

    def _structure(self, structure: Any) -> list[Any]:
        data = structure.node_data()
        return [str(structure.num_leaves), *self._all([data, structure.children()])]

    def _code(self, code: types.CodeType) -> list[Any]:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
        handlers = getattr(code, "co_exceptiontable", b"")
        return [code.co_code, handlers, *self._all([counts, names, code.co_consts])]

    def _function(self, function: types.FunctionType) -> list[Any]:
        maker = str(function.__globals__.get("__name__")).partition(".")[0]
        if maker in _CHECKERS and hasattr(function, "__wrapped__"):
            return [self.digest(function.__wrapped__)]  # pyright: ignore
        parts = [self.digest(function.__defaults__), self.digest(function.__kwdefaults__)]
        cells = function.__closure__ or ()
        parts += self._all(cell.cell_contents for cell in cells if _filled(cell))
        parts += self._all([{k: v for k, v in vars(function).items() if k != "__wrapped__"}])
        if version := _installed(function.__module__):
            return [version, function.__qualname__, *parts]
        return [self.digest(function.__code__), *parts, *self._read(function)]

    def _read(self, function: types.FunctionType) -> list[Any]:
        """The globals that a function reads, those of functions within it, too."""
        given, attributes = _names(function.__code__)
        parts = []
        for name in sorted(given):
            if name in function.__globals__:
                value = function.__globals__[name]
                if isinstance(value, types.ModuleType):
                    parts += [name, *self._module(value, attributes)]
                else:
                    parts += [name, self.digest(value)]
            elif not hasattr(builtins, name):
                parts += [name]
        for name in sorted(_imported(function.__code__)):
            parts += [name, *self._file(name)]
        return parts

    def _module(self, module: types.ModuleType, attributes: Sequence[str] | set[str]) -> list[Any]:
        """A module of the user's by what is taken from it, else by its version."""
        if version := _installed(module.__name__):
            return [version, module.__name__]
        if not attributes:
            return self._file(module.__name__)
        if id(module) in self.within:
            return [module.__name__]
        self.within.append(id(module))
        try:
            taken = [
                (name, self._module(value, attributes))
                if isinstance(value := vars(module)[name], types.ModuleType)
                else (name, self.digest(value))
                for name in sorted(set(attributes) & set(vars(module)))
            ]
        finally:
            self.within.pop()
        return [module.__name__, *(part for name, each in taken for part in (name, *_listed(each)))]

    def _file(self, name: str) -> list[Any]:
        """A module of the user's by its whole text, as where it is imported on the host."""
        if version := _installed(name):
            return [version, name]
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, AttributeError, ValueError):
            spec = None
        if spec is None or spec.origin is None:
            return [name]  # which has no code, or is not there at all
        try:
            return [name, Path(spec.origin).read_bytes()]
        except OSError:
            raise UnknownError(f"the module {name} that it uses has no file") from None

    def _builtin(self, function: Any) -> list[Any]:
        owner = function.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return [function.__module__ or "", function.__qualname__]
        return [function.__name__, self.digest(owner)]

    def _class(self, cls: type) -> list[Any]:
        if version := _installed(cls.__module__):
            return [version, cls.__qualname__]
        own = {k: v for k, v in sorted(vars(cls).items()) if k not in _BY_THE_WAY}
        return [cls.__qualname__, *self._all([cls.__bases__, own])]

    def _object(self, value: Any) -> list[Any]:
        if type(value) is dict:
            return self._all(part for item in value.items() for part in item)
        if type(value) in (tuple, list):
            return self._all(value)
        if type(value) in (set, frozenset):  # their order is the process's
            return sorted(self._all(value))
        parts = [self.digest(type(value))]
        with contextlib.suppress(TypeError):  # of another meaning
            if callable(given := getattr(value, "get_params", None)):  # an estimator
                parts += self._all([given(deep=False)])
        try:
            reduced = value.__reduce_ex__(2)
        except Exception as error:  # of whatever kind: the object's own code says it
            raise UnknownError(f"it rests on a {type(value).__qualname__}: {error}") from None
        if isinstance(reduced, str):  # a global
            return [*parts, reduced]
        made, given, *rest = reduced
        state = [*(rest[:1] or [None]), *(None if r is None else list(r) for r in rest[1:3])]
        return [*parts, *self._all([made, given, *state])]


def _hashed(*parts: Any) -> bytes:
    """Of texts and bytes, each apart from its neighbors."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(struct.pack("<q", len(content)) + content)
    return digest.digest()


def _bits(value: Any) -> bytes:
    """Of a number or a text: 0.0 is not -0.0."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    return value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Those of functions within it, too."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Globals that are read, and attributes of anything."""
    given, attributes = set(), set()
    for instruction in _instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            given.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(instruction.argval)
    return given, attributes


def _imported(code: types.CodeType) -> set[str]:
    return {i.argval for i in _instructions(code) if i.opname == "IMPORT_NAME" and i.argval}


def _installed(module: str | None) -> str:
    """The version of installed code that was not written for the study; empty otherwise."""
    top = (module or "").partition(".")[0]
    return _version(top) if top not in ("", "__main__", "__mp_main__") else ""


@functools.cache
def _version(top: str) -> str:
    if top == "fljax":
        return f"fljax {__version__}"
    if top == "builtins" or top in sys.stdlib_module_names:
        return f"Python {platform.python_version()}"
    try:
        module = sys.modules.get(top) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ""
    spec = getattr(module, "__spec__", module)
    folders = getattr(spec, "submodule_search_locations", None) or ()
    places = [getattr(spec, "origin", None), *folders]
    roots = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")]
    inside = [Path(p).resolve() for p in places if p and p not in ("built-in", "frozen")]
    installed = any(root in path.parents for root in roots for path in inside) or any(
        part in ("site-packages", "dist-packages") for path in inside for part in path.parts
    )
    if not installed:
        return ""
    for name in (top, *importlib.metadata.packages_distributions().get(top, ())):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{top} {getattr(module, '__version__', '')}"
