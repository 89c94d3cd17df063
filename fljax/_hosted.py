"""Identification of the Python functions that a compiled program of a study calls on the host.

The text of a program contains all of its numbers, but of a host call only its existence. The called
function is therefore part of the study's identity: its bytecode, constants and defaults, closure
and globals, recursively, arrays bit by bit, objects by their class and state (an estimator's
parameters, a dataclass's fields) as pickled. Installed code, as opposed to code written for the
study, is identified by its module, name and version; what is installed is said by where the code
lies, since a name may be anybody's. Objects without such a state (an open file, a lock, a
generator) cannot be identified, which is reported.

Counters, addresses and caches are left out: the same value, made again, has the same identity.

``jax.debug`` is ignored: it returns nothing, so no number depends on it.
"""

import contextlib
import copyreg
import dataclasses
import dis
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import platform
import random
import re
import struct
import sys
import sysconfig
import types
import typing
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.extend import core

from fljax._module import Aside
from fljax._version import __version__

__all__ = ["UnknownError", "called", "fingerprint"]

#: Of a class, what says nothing of what its objects do, or changes when they are used.
_BY_THE_WAY = {
    "__abstractmethods__",
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__callable_proto_members_only__",
    "__dataclass_fields__",  # these are taken by their parts
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__match_args__",
    "__module__",
    "__non_callable_proto_members__",
    "__orig_bases__",
    "__parameters__",
    "__protocol_attrs__",
    "__slotnames__",  # `copyreg` comes and leaves it
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
    "_hashable_values_",  # what an enumeration remembers of its members
    "_unhashable_values_",
    "_unhashable_values_map_",
    "_value2member_map_",
}

#: Of a function, what its decorator copied from the one that it wraps, and what is taken by itself.
_COPIED = {"__wrapped__", "__module__", "__name__", "__qualname__", "__doc__", "__annotations__"}

#: Functions that read what is named when they run, so that code which calls them may read anything.
_READS_ANYTHING = {"eval", "exec", "globals"}

#: Functions and attributes by which a module is read under a name that is made when they run.
_READS_ANY_ATTRIBUTE = {"attrgetter", "getattr", "methodcaller", "vars", "__dict__"}

#: Functions that import a module under a name that is made when they run.
_IMPORTS_ANYTHING = {"__import__", "import_module"}

#: What a notebook keeps of its cells, and puts beside the user's variables.
_OF_A_NOTEBOOK = re.compile(r"_+|_i+\d*|_\d+|In|Out|_[ido]h|exit|quit|get_ipython|open")

#: Options of `jax.jit` that change what is computed, or whether.
_OF_JIT = (
    "static_argnums",
    "static_argnames",
    "donate_argnums",
    "donate_argnames",
    "backend",
    "inline",
    "compiler_options_kvs",
)

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

#: What C makes of a function, which says which.
_WRAPPERS = ("PjitFunction", "_lru_cache_wrapper", "_ArrayFunctionDispatcher")

#: Types that a value of is nothing more than its parts.
_EXACT = {
    np.ndarray,
    types.CodeType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CellType,
    types.MappingProxyType,
    *_NAMED,
    property,
    staticmethod,
    classmethod,
    functools.cached_property,
    weakref.ReferenceType,
    types.UnionType,
    typing.TypeVar,
    np.ufunc,
    jax.tree_util.PyTreeDef,
    dataclasses.Field,
}

#: Of a dataclass's field, what its objects depend on.
_OF_A_FIELD = (
    "name",
    "default",
    "default_factory",
    "init",
    "repr",
    "hash",
    "compare",
    "metadata",
    "kw_only",
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
        if name in ("pure_callback", "io_callback"):
            function = equation.params["callback"]
            options = {n: equation.params.get(n) for n in ("vmap_method", "ordered")}
        elif name == "custom_vmap_call":
            # The text is of one run, and several runs are computed by the rule.
            function = getattr(equation.params["rule"], "rule", equation.params["rule"])
            options = {}
        else:
            continue
        try:
            parts.append(fingerprint((function, options)))
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
        self.modules: list[int] = []  # whole modules that it is inside of
        self.kept: list[Any] = []  # so that no two of them have one address
        #: Objects whose digest refers to what they were met in, numbered, and the outermost of it:
        #: met elsewhere, they are told from others that refer to what these are met in.
        self.open: dict[int, tuple[int, int]] = {}
        self.outermost = sys.maxsize

    def digest(self, value: Any) -> bytes:
        """Of any value."""
        if type(value) in (int, bool, str, bytes, float, complex, type(None), type(Ellipsis)):
            return _hashed(type(value).__name__, _bits(value))
        if id(value) in self.within:  # a function that calls itself
            place = self.within.index(id(value))
            self.outermost = min(self.outermost, place)
            return _hashed("within", str(len(self.within) - place))
        if id(value) in self.open:
            number, self.outermost = (
                self.open[id(value)][0],
                min(self.outermost, self._still(value)),
            )
            return _hashed("again", str(number), self.known[id(value)])
        if id(value) in self.known:
            return self.known[id(value)]
        before, self.outermost, here = self.outermost, sys.maxsize, len(self.within)
        self.within.append(id(value))
        self.kept.append(value)
        try:
            digest = _hashed(type(value).__qualname__, *self._parts(value))
        finally:
            self.within.pop()
            outermost, self.outermost = self.outermost, before
        if outermost < here:
            self.open[id(value)] = len(self.open), self.within[outermost]
            self.outermost = min(before, outermost)
        self.known[id(value)] = digest
        return digest

    def _still(self, value: Any) -> int:
        """Where the walk is inside of what an open object refers to, if it still is."""
        outer = self.open[id(value)][1]
        return self.within.index(outer) if outer in self.within else sys.maxsize

    def _all(self, values: Any) -> list[bytes]:
        return [self.digest(value) for value in values]

    def _parts(self, value: Any) -> list[Any]:
        """Everything that distinguishes the value from others of its type."""
        kind = type(value)
        for kinds, parts in self._table().items():
            if isinstance(value, kinds):
                more = self._of_subclass(value) if kind not in _EXACT else []
                return [*parts(value), *more]
        if isinstance(value, type):
            return self._class(value)
        if (version := _installed(kind.__module__)) and kind.__qualname__ in _WRAPPERS:
            owner = _installed(value.__module__)
            if owner and _is_found(value):
                return [owner, value.__module__, value.__qualname__]
            return [version, *self._wrapper(value)]
        return self._object(value)

    def _table(self) -> Mapping[Any, Any]:
        """How values of some types are decomposed; the others are objects with a state."""
        return {
            # The host never sees its value: only what is passed as an argument gets there.
            Tracer: lambda v: [str(v.aval)],
            jax.Array: lambda v: [str(v.aval), *self._array(v)],
            np.ndarray | np.generic: self._array,
            types.CodeType: self._code,
            types.FunctionType: self._function,
            types.MethodType: lambda v: self._all([v.__func__, v.__self__]),
            types.BuiltinFunctionType: self._builtin,
            types.ModuleType: lambda v: self._module(v, ()),
            types.CellType: lambda v: self._all([v.cell_contents] if _filled(v) else []),
            types.MappingProxyType: lambda v: [self.digest(dict(v))],
            _NAMED: lambda v: [self.digest(v.__objclass__), v.__name__],
            property: lambda v: self._all([v.fget, v.fset, v.fdel]),
            staticmethod | classmethod: lambda v: self._all([v.__func__, _added(v)]),
            functools.cached_property: lambda v: self._all([v.func, v.attrname]),
            weakref.ReferenceType: lambda v: self._all([v(), v.__callback__]),
            types.UnionType: lambda v: self._all(v.__args__),
            typing.TypeVar: lambda v: self._all(
                [v.__name__, v.__bound__, v.__constraints__, v.__covariant__, v.__contravariant__]
            ),
            np.ufunc: self._ufunc,
            jax.tree_util.PyTreeDef: self._structure,
            dataclasses.Field: lambda v: self._all(
                [getattr(v, name) for name in _OF_A_FIELD if hasattr(v, name)]
            ),
        }

    def _of_subclass(self, value: Any) -> list[Any]:
        """Of a value of a subclass what its base does not have."""
        if isinstance(value, Tracer | jax.Array | np.generic | np.memmap):
            return []
        return self._all([type(value), getattr(value, "__dict__", None), _slots(value)])

    def _array(self, array: Any) -> list[Any]:
        name = str(array.dtype)
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        try:
            array = np.asarray(array)
        except RuntimeError as error:  # it was donated, or lies on other machines
            raise UnknownError(f"it rests on an array that cannot be read: {error}") from None
        return [name, str(array.shape), *self._bytes(array)]

    def _bytes(self, array: np.ndarray) -> list[Any]:
        """Every bit of an array that is part of a number, and none between them."""
        if array.dtype.names:
            return [part for n in array.dtype.names for part in [n, *self._bytes(array[n])]]
        if array.dtype.hasobject:
            return self._all(array.ravel().tolist())
        if array.dtype.char in "gG" and array.dtype.itemsize > np.dtype("c16").itemsize // 2:
            return [repr(number) for number in array.ravel()]
        return [np.ascontiguousarray(array).tobytes()]

    def _structure(self, structure: Any) -> list[Any]:
        data = structure.node_data()
        if data is not None and type(data[1]) is tuple and len(data[1]) == 2:
            # Beside what JAX compares, in which there may be addresses, stands what it is made of.
            kind, (_, aside) = data
            data = (kind, aside.value) if isinstance(aside, Aside) else data
        return [str(structure.num_leaves), *self._all([data, structure.children()])]

    def _code(self, code: types.CodeType) -> list[Any]:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
        handlers = getattr(code, "co_exceptiontable", b"")
        return [
            code.co_code,
            handlers,
            code.co_name,
            *self._all([counts, names, code.co_consts]),
        ]

    def _function(self, function: types.FunctionType) -> list[Any]:
        if (bare := _unchecked(function)) is not function:
            return [self.digest(bare)]
        if function.__code__ is _SINGLEDISPATCH:  # which remembers for what it was called
            return [self.digest(dict(function.registry))]  # pyright: ignore
        module, name = str(function.__globals__.get("__name__")), function.__qualname__
        parts = self._all([function.__code__, function.__defaults__, function.__kwdefaults__])
        version = _version_of(function)
        if version and _is_found(function):
            return [version, module, name, *parts]
        cells = function.__closure__ or ()
        used = _used(function.__code__)
        for variable, cell in zip(function.__code__.co_freevars, cells, strict=True):
            held = cell.cell_contents if _filled(cell) else cell
            if isinstance(held, types.ModuleType):
                parts += self._taken(held, used.chains(variable))
            else:
                parts.append(self.digest(held))
        parts.append(self.digest(_added(function)))
        if version:
            return [version, module, name, *parts]
        parts.append(self.digest(getattr(function, "__wrapped__", None)))
        names = [function.__name__, name]
        return [*names, *parts, *self._annotations(function), *self._read(function, used)]

    def _annotations(self, value: Any) -> list[bytes]:
        """Those that can be told apart: they say rather than do, but may be read."""
        try:
            return [self.digest(dict(value.__annotations__))]
        except Exception:  # of whatever kind: they are evaluated when they are asked for
            return []

    def _read(self, function: types.FunctionType, used: "_Used") -> list[Any]:
        """The globals that a function reads, those of functions within it, too."""
        known, built_in = function.__globals__, function.__builtins__
        parts = []
        if used.names() & _READS_ANYTHING - known.keys():
            parts += self._everything(known)
        for name in sorted(used.names()):
            if name in known:
                parts += [name, *self._taken(known[name], used.chains(name))]
            elif name in built_in:
                parts += [name, self.digest(built_in[name])]
            else:
                parts += [name]
        package = known.get("__package__") or ""
        for place in sorted(used.imports):
            parts += self._imported(place, package, used)
        if used.imports_anything():
            parts += [part for name in sorted(used.texts) for part in self._by_name(name)]
        return parts

    def _taken(self, value: Any, chains: set[tuple[str, ...]]) -> list[Any]:
        """A value; of a module what is taken from it, in so many chains of attributes."""
        if not isinstance(value, types.ModuleType):
            return [self.digest(value)]
        return [part for chain in sorted(chains) for part in self._module(value, chain)]

    def _module(self, module: types.ModuleType, chain: tuple[str, ...]) -> list[Any]:
        """A module by what is taken from it, the whole of it if nothing is named; an installed one
        by its version.
        """
        if version := _version_of_module(module):
            taken = vars(module).get(chain[0]) if chain else None
            if isinstance(taken, types.ModuleType):
                return [version, module.__name__, *self._module(taken, chain[1:])]
            own = isinstance(taken, types.FunctionType) and not _version_of(_unchecked(taken))
            return [version, module.__name__, *chain[:1], *self._all([taken] if own else [])]
        if not chain:
            if id(module) in self.modules:
                return [module.__name__]
            self.modules.append(id(module))
            try:
                return [module.__name__, *self._everything(vars(module))]
            finally:
                self.modules.pop()
        name, *rest = chain
        if name not in vars(module):
            if callable(made := vars(module).get("__getattr__")):
                return [module.__name__, name, self.digest(made)]
            return [module.__name__, name]
        value = vars(module)[name]
        if isinstance(value, types.ModuleType):
            return [module.__name__, name, *self._module(value, tuple(rest))]
        return [module.__name__, name, self.digest(value)]

    def _everything(self, names: Mapping[str, Any]) -> list[Any]:
        """All variables of a module."""
        notebook = "get_ipython" in names
        parts = []
        for name, value in sorted(names.items()):
            if name.startswith("__") and name.endswith("__"):
                continue
            if not (notebook and _OF_A_NOTEBOOK.fullmatch(name)):
                parts += [name, *self._taken(value, {()})]
        return parts

    def _imported(self, place: "_Import", package: str, used: "_Used") -> list[Any]:
        """What a function imports when it runs, as it takes it from there."""
        name = place.name
        if place.level:
            try:
                name = importlib.util.resolve_name("." * place.level + name, package)
            except ImportError:
                return [name]
        if version := _installed(name):
            return [version, name]
        module = _import(name)
        if module is None:
            return [name]  # which is not there
        parts: list[Any] = [name]
        for taken in place.taken:
            if taken in vars(module):
                parts += self._module(module, (taken,))
            else:
                parts += self._by_name(f"{name}.{taken}")
        if not place.taken:
            if not place.renamed:
                module = sys.modules[name.partition(".")[0]]
            parts += self._taken(module, used.chains(place.variable))
        return parts

    def _by_name(self, name: str) -> list[Any]:
        """A module of the user's, if there is one of this name."""
        if not all(part.isidentifier() for part in name.split(".")):
            return []
        if version := _installed(name):
            return [version, name]
        module = _import(name)
        return [] if module is None else [name, *self._module(module, ())]

    def _builtin(self, function: Any) -> list[Any]:
        owner = function.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            return [function.__name__, self.digest(owner)]
        module = function.__module__ or getattr(owner, "__name__", "")
        return [_installed(module) or _compiled(module), module, function.__qualname__]

    def _ufunc(self, function: np.ufunc) -> list[Any]:
        """One of NumPy's, or of another installed library's, by its name there."""
        name = function.__name__
        for module in sorted(sys.modules, key=lambda n: (not n.startswith("numpy"), n)):
            held = getattr(sys.modules[module], "__dict__", {})
            if held.get(name) is function and (version := _installed(module)):
                return [version, name]
        raise UnknownError(f"it rests on the ufunc {name!r}, which is in no library")

    def _class(self, cls: type) -> list[Any]:
        version = _installed(cls.__module__)
        if version and _is_found(cls):
            functions = {n: v for n, v in vars(cls).items() if isinstance(v, types.FunctionType)}
            own = {n: v for n, v in functions.items() if not _version_of(_unchecked(v))}
            return [version, cls.__module__, cls.__qualname__, *self._all([own] if own else [])]
        own = {k: v for k, v in sorted(vars(cls).items()) if k not in _BY_THE_WAY}
        fields = vars(cls).get("__dataclass_fields__")
        parts = self._all([cls.__bases__, own, fields])
        if type(cls) is not type:
            parts.append(self.digest(type(cls)))
        return [version, cls.__qualname__, *parts, *self._annotations(cls)]

    def _wrapper(self, value: Any) -> list[Any]:
        """What C makes of a function: `jax.jit`, `functools.lru_cache`, and NumPy's own."""
        options: Any = {}
        if (made := getattr(value, "_jit_info", None)) is not None:
            options = {name: getattr(made, name, None) for name in _OF_JIT}
        elif callable(made := getattr(value, "cache_parameters", None)):
            options = made()
        own = {"_fun", "_jit_info", "cache_parameters"}
        added = {n: v for n, v in _added(value).items() if n not in own}
        return self._all([value.__wrapped__, options, added])

    def _object(self, value: Any) -> list[Any]:
        if type(value) is dict:
            return self._all(part for item in value.items() for part in item)
        if type(value) in (tuple, list):
            return self._all(value)
        if type(value) in (set, frozenset):  # their order is the process's
            return sorted(self._all(value))
        parts = [self.digest(type(value))]
        if value is random._inst or value is np.random.mtrand._rand:  # pyright: ignore
            return [*parts, "the generator of the process"]  # seeded by the moment
        if _is_linen(type(value)):
            return [*parts, self.digest(_of_linen(value))]
        given = None
        with contextlib.suppress(Exception):  # of another meaning
            given = value.get_params(deep=False)  # an estimator
        if given is not None:
            parts.append(self.digest(given))
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = reduce(value) if reduce else value.__reduce_ex__(2)
        except Exception as error:  # of whatever kind: the object's own code says it
            raise UnknownError(f"it rests on a {type(value).__qualname__}: {error}") from None
        if _pickles_itself(type(value)):
            parts += self._left_out(value)
        if isinstance(reduced, str):  # a global
            module = getattr(value, "__module__", None) or type(value).__module__
            return [*parts, _installed(module) or _compiled(module), module, reduced]
        made, given, state, *rest = [*reduced, *[None] * (6 - len(reduced))]
        state = self._without_cached(value, state)
        rest = [None if r is None else list(r) for r in rest[:2]] + rest[2:]
        return [*parts, *self._all([made, given, state, *rest])]

    def _left_out(self, value: Any) -> list[Any]:
        """What an object's own method of pickling may leave out, as far as it can be told."""
        parts = []
        held = {**_slots(value), **getattr(value, "__dict__", {})}
        for name, each in self._without_cached(value, held).items():
            with contextlib.suppress(UnknownError):  # it is left out since it cannot be
                parts += [name, self.digest(each)]
        return parts

    def _without_cached(self, value: Any, state: Any) -> Any:
        """An object's state without the properties that were computed from the rest of it."""
        if not isinstance(state, dict):
            return state
        kept = dict(state)
        for cls in type(value).__mro__:
            for name, cached in vars(cls).items():
                if name not in kept or not isinstance(cached, functools.cached_property):
                    continue
                with contextlib.suppress(Exception):  # the property's own code says it
                    again = _installed(cls.__module__) or (
                        self.digest(cached.func(value)) == self.digest(kept[name])
                    )
                    if again:
                        del kept[name]
        return kept


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
    if type(value) is int:  # of any length
        return b"%x" % value
    return value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _slots(value: Any) -> dict[str, Any]:
    """The attributes of an object that are not in its ``__dict__``."""
    names = {
        name: member
        for cls in type(value).__mro__
        for name, member in vars(cls).items()
        if isinstance(member, types.MemberDescriptorType) and "__slots__" in vars(cls)
    }
    return {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}


def _added(value: Any) -> dict[str, Any]:
    """The attributes that somebody put onto a function."""
    return {name: each for name, each in vars(value).items() if name not in _COPIED}


def _pickles_itself(cls: type) -> bool:
    """Whether objects say themselves, in code of the user's, what of them is pickled."""
    return not _installed(cls.__module__) and any(
        getattr(cls, name, None) is not getattr(object, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


def _is_linen(cls: type) -> bool:
    return any(
        base.__module__ == "flax.linen.module" and base.__qualname__ == "Module"
        for base in cls.__mro__
    )


def _of_linen(module: Any) -> dict[str, Any]:
    """What a module of flax's linen is made of, without its number in the process and what it
    remembers while it is called.
    """
    return {n: v for n, v in vars(module).items() if n not in ("_id", "_state", "_parent_ref")}


class _Import(NamedTuple):
    """One statement in a function that imports."""

    name: str
    level: int  # of a relative one
    taken: tuple[str, ...]  # after `from`
    renamed: bool  # by `import a.b as c`
    variable: str


class _Used:
    """What a function's code, and that of functions within it, loads by name.

    Attributes:
      loads: names, of variables of any kind, and the chains of attributes that are taken of each.
      reads: those of them that are global.
      imports: what is imported.
      texts: the texts in it.
    """

    def __init__(self, code: types.CodeType) -> None:
        self.loads: dict[str, set[tuple[str, ...]]] = {}
        self.reads: set[str] = set()
        self.imports: set[_Import] = set()
        self.texts: set[str] = set()
        self._add(code)

    def _add(self, code: types.CodeType) -> None:
        steps = list(dis.get_instructions(code))
        for place, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                self._add_import(steps, place)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST"):
                pass
            elif step.opname.startswith("LOAD_") and step.argval is not None:
                # Some instructions load two variables, whose attributes are taken by others.
                alone = isinstance(step.argval, str)
                chain = []
                for after in steps[place + 1 :] if alone else ():
                    if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                        break
                    chain.append(after.argval)
                for name in [step.argval] if alone else step.argval if _is_pair(step) else ():
                    self.loads.setdefault(name, set()).add(tuple(chain))
                if alone and any(kind in step.opname for kind in ("GLOBAL", "NAME")):
                    self.reads.add(step.argval)
        self.reads |= {i.argval for i in steps if i.opname in _ATTRIBUTES} & {"__dict__"}
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add(constant)
            elif isinstance(constant, str):
                self.texts.add(constant)

    def _add_import(self, steps: Sequence[dis.Instruction], place: int) -> None:
        level, taken = (step.argval for step in steps[place - 2 : place])
        after = steps[place + 1 :]
        renamed = not taken and after[0].opname == "IMPORT_FROM"
        variable = next((i.argval for i in after if i.opname.startswith("STORE_")), "")
        variable = variable if isinstance(variable, str) else variable[0]
        about = _Import(steps[place].argval, level or 0, tuple(taken or ()), renamed, variable)
        self.imports.add(about)

    def names(self) -> set[str]:
        """Of globals."""
        return self.reads - {"__dict__"}

    def imports_anything(self) -> bool:
        """Whether the code imports a module by a name that it makes."""
        attributes = {name for chains in self.loads.values() for c in chains for name in c}
        return bool((self.reads | attributes) & _IMPORTS_ANYTHING)

    def chains(self, name: str) -> set[tuple[str, ...]]:
        """The attributes that are taken of a variable; ``()`` stands for the whole of it."""
        attributes = {name for chains in self.loads.values() for c in chains for name in c}
        if (self.reads | attributes) & _READS_ANY_ATTRIBUTE:
            return {()}
        return self.loads.get(name, {()})


#: Instructions that take an attribute.
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def _is_pair(step: dis.Instruction) -> bool:
    return isinstance(step.argval, tuple) and all(isinstance(name, str) for name in step.argval)


@functools.lru_cache(maxsize=4096)
def _used(code: types.CodeType) -> _Used:
    return _Used(code)


def _unchecked(function: types.FunctionType) -> types.FunctionType:
    """The function within one that checks its types; else itself."""
    maker = str(function.__globals__.get("__name__"))
    checks = maker.partition(".")[0] in _CHECKERS and hasattr(function, "__wrapped__")
    if checks and _installed(maker):
        return function.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _is_found(value: Any) -> bool:
    """Whether the module and name that a value states lead to it: decorators copy both."""
    found: Any = sys.modules.get(value.__module__)
    with contextlib.suppress(Exception):
        for name in value.__qualname__.split("."):
            found = getattr(found, name, None)
        return found is value
    return False


def _import(name: str) -> types.ModuleType | None:
    """A module, as a function that runs would find it; ``None`` if it would not."""
    try:
        return importlib.import_module(name)
    except Exception:  # of whatever kind: the module's own code says it
        return None


def _compiled(module: str | None) -> bytes | str:
    """The bytes of a module of the user's that was compiled from another language."""
    path = getattr(sys.modules.get(module or ""), "__file__", None)
    try:
        return Path(path).read_bytes() if path else ""
    except OSError:
        raise UnknownError(f"the module {module} that it uses has no file") from None


def _version_of(function: types.FunctionType) -> str:
    """The version of what an installed function belongs to; empty for one written for the study."""
    file, known = function.__code__.co_filename, function.__globals__
    if not file.startswith("<"):
        return _version_at(file)
    # Made as text, such as the methods of a dataclass, for a module.
    module = sys.modules.get(str(known.get("__name__")))
    return _version_of_module(module) if module and vars(module) is known else ""


def _version_of_module(module: types.ModuleType) -> str:
    if sys.modules.get(module.__name__) is module:
        return _installed(module.__name__)
    file = getattr(module, "__file__", None)
    return _version_at(file) if isinstance(file, str) else ""


def _installed(name: Any) -> str:
    """The version of an installed module that was not written for the study; empty otherwise."""
    top = name.partition(".")[0] if isinstance(name, str) else ""
    if top in ("", "__main__", "__mp_main__"):
        return ""
    module = sys.modules.get(name) or sys.modules.get(top)
    spec = getattr(module, "__spec__", None)
    if module is None:
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(top)
    origin = getattr(module, "__file__", None) or getattr(spec, "origin", None)
    if origin in ("built-in", "frozen"):
        return _PYTHON
    if origin:
        return _version_at(origin)
    folders = getattr(spec, "submodule_search_locations", None) or ()
    versions = (_version_at(str(Path(folder) / "__init__.py")) for folder in folders)
    return next(filter(None, versions), "")


@functools.cache
def _version_at(file: str) -> str:
    """The version of what is installed in a file, said by where it lies; empty for a user's."""
    for path in (Path(file), Path(file).resolve()):
        if Path(__file__).parent in path.parents:
            return f"fljax {__version__}"
        for root in path.parents:
            if root in _SITES or root.name in ("site-packages", "dist-packages"):
                return _distribution(path.relative_to(root).parts[0].partition(".")[0])
        if any(root in path.parents for root in _STANDARD):
            return _PYTHON
    return ""


@functools.cache
def _distribution(top: str) -> str:
    for name in (top, *importlib.metadata.packages_distributions().get(top, ())):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{top} {getattr(sys.modules.get(top), '__version__', '')}"


#: The version of the standard library.
_PYTHON = f"Python {platform.python_version()}"

#: Where libraries are installed, and where Python's own lies.
_SITES = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
_STANDARD = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")}

#: What `functools.singledispatch` makes of a function.
_SINGLEDISPATCH = vars(functools)["singledispatch"](lambda x: x).__code__
