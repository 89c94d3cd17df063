"""Fingerprints of the Python functions that a compiled program of a study calls on the host.

A store identifies a study by the StableHLO text of its programs. The text contains all numbers, but
of a host callback only its existence. So the called function is part of the identity, too: its
bytecode, constants and defaults, closure and globals, recursively; arrays by their bits; objects by
their class and pickled state (an estimator's parameters, a dataclass's fields). Installed code, as
opposed to code written for the study, is identified by its module, name and version. Whether code
is installed follows from its path, since module names are not unique. Objects without such a state
(an open file, a lock, a generator) cannot be identified, which is reported.

Counters, addresses and caches are excluded: equal values made in other processes have the same
fingerprint.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.extend import core
from jax.tree_util import PyTreeDef
from jaxtyping import PyTree

from fljax._core.module import UncomparedPayload
from fljax._core.version import PACKAGE, __version__

#: Class attributes that do not affect behavior, or change when objects are used.
_IGNORED_CLASS_ATTRIBUTES = {
    "__abstractmethods__",
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__callable_proto_members_only__",
    "__dataclass_fields__",  # digested separately
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
    "__slotnames__",  # a cache of `copyreg`
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
    "_hashable_values_",  # caches of enumerations
    "_unhashable_values_",
    "_unhashable_values_map_",
    "_value2member_map_",
}

#: Function attributes that `functools.wraps` copies, or that are digested separately.
_IGNORED_FUNCTION_ATTRIBUTES = {
    "__wrapped__",
    "__module__",
    "__name__",
    "__qualname__",
    "__doc__",
    "__annotations__",
}

#: Functions that evaluate text: code that calls them may read any global.
_READS_ANYTHING = {"eval", "exec", "globals"}

#: Functions and attributes that read a module's attributes by names computed at run time.
_READS_ANY_ATTRIBUTE = {"attrgetter", "getattr", "methodcaller", "vars", "__dict__"}

#: Functions that import modules by names computed at run time.
_IMPORTS_ANYTHING = {"__import__", "import_module"}

#: Variables that a notebook adds to the user's: its inputs, outputs and commands.
_NOTEBOOK_VARIABLES = re.compile(r"_+|_i+\d*|_\d+|In|Out|_[ido]h|exit|quit|get_ipython|open")

#: Options of `jax.jit` that change the computation.
_JIT_OPTIONS = (
    "static_argnums",
    "static_argnames",
    "donate_argnums",
    "donate_argnames",
    "backend",
    "inline",
    "compiler_options_kvs",
)

#: Primitives that call Python, for a result or a side effect.
_CALLBACK_PRIMITIVES = ("pure_callback", "io_callback", "debug_callback", "debug_print")

#: The same in StableHLO.
_CALLBACK_IN_TEXT = re.compile(r"custom_call @xla\w*python\w*callback")

#: Libraries whose decorators check types: they have caches, and do not change numbers.
_TYPE_CHECKERS = ("beartype", "jaxtyping", "typeguard")

#: Descriptors implemented in C, identified by class and name.
_C_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)

#: Wrappers implemented in C that have their function as `__wrapped__`.
_C_WRAPPERS = ("PjitFunction", "_lru_cache_wrapper", "_ArrayFunctionDispatcher")

#: Types whose values consist of nothing but the parts in `_decompositions`.
_FULLY_DECOMPOSED = {
    np.ndarray,
    types.CodeType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CellType,
    types.MappingProxyType,
    *_C_DESCRIPTORS,
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

#: Attributes of a dataclass's field that affect its objects.
_FIELD_ATTRIBUTES = (
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
    """Fingerprints of the Python functions that a program calls.

    Args:
      traced: the traced program.
      text: its StableHLO.

    Returns:
      A digest of every call whose result the program uses, in order; and the first function that
      cannot be identified, with the reason, or an empty text.
    """
    digests = []
    reason = ""
    has_callback = False
    for equation in _equations(traced.jaxpr):
        name = equation.primitive.name
        if name == "ffi_call":
            target = equation.params.get("target_name")
            reason = reason or f"{target!r} of jax.ffi (compiled code has no text to compare)"
        has_callback |= name in _CALLBACK_PRIMITIVES
        if name in ("pure_callback", "io_callback"):
            function = equation.params["callback"]
            options = {n: equation.params.get(n) for n in ("vmap_method", "ordered")}
        elif name == "custom_vmap_call":
            # The text is that of a single run; batches of runs are computed by the rule.
            function = getattr(equation.params["rule"], "rule", equation.params["rule"])
            options = {}
        else:
            continue
        try:
            digests.append(fingerprint((function, options)))
        except UnknownError as error:
            reason = reason or f"{_name_of(function)} ({error})"
    if not has_callback and _CALLBACK_IN_TEXT.search(text):
        reason = reason or "a function (in a way that this version of JAX does not tell)"
    return digests, reason


def fingerprint(value: object) -> str:
    """A digest of a value and everything that it depends on, the same in every process.

    Raises:
      UnknownError: a part of it cannot be compared; the message names it.

    Example:
      >>> def scaled(by):
      ...     return lambda x: by * x
      >>> fingerprint(scaled(2.0)) == fingerprint(scaled(2.0))
      True
      >>> fingerprint(scaled(2.0)) == fingerprint(scaled(3.0))
      False
    """
    try:
        return _Traversal().digest(value).hex()
    except RecursionError:
        raise UnknownError("it is nested too deeply") from None


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """All equations of a program, depth first, also within loops, branches and calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _name_of(function: object) -> str:
    """The name of the user's function within JAX's wrappers."""
    function = getattr(function, "callback_func", function)
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or '?'}.{name}"


class _Traversal:
    """One depth-first traversal of a value, with cycles.

    A reference to an enclosing object is digested as its distance on the stack. So the digest of
    an object with such a reference depends on where it was reached. When it is reached again, it
    is therefore identified by its number in the order of traversal, too.

    Attributes:
      digests: digests of all traversed objects, by ``id``.
      stack: ``id`` of the enclosing objects.
      module_stack: ``id`` of the enclosing modules that are digested as a whole.
      alive: all traversed objects, kept alive so that ``id`` stays unique.
      cyclic: objects with references to enclosing ones: their number, and the ``id`` of the
        outermost object that they refer to.
      lowest_reference: the lowest position on the stack that the current object refers to.
    """

    def __init__(self) -> None:
        self.digests: dict[int, bytes] = {}
        self.stack: list[int] = []
        self.module_stack: list[int] = []
        self.alive: list[object] = []
        self.cyclic: dict[int, tuple[int, int]] = {}
        self.lowest_reference = sys.maxsize

    def digest(self, value: object) -> bytes:
        """The digest of any value."""
        if type(value) in (int, bool, str, bytes, float, complex, type(None), type(Ellipsis)):
            return _hash(type(value).__name__, _bits(value))
        if id(value) in self.stack:  # a function that calls itself
            position = self.stack.index(id(value))
            self.lowest_reference = min(self.lowest_reference, position)
            return _hash("within", str(len(self.stack) - position))
        if id(value) in self.cyclic:
            number = self.cyclic[id(value)][0]
            self.lowest_reference = min(self.lowest_reference, self._position_of_reference(value))
            return _hash("again", str(number), self.digests[id(value)])
        if id(value) in self.digests:
            return self.digests[id(value)]
        enclosing_reference = self.lowest_reference
        self.lowest_reference = sys.maxsize
        depth = len(self.stack)
        self.stack.append(id(value))
        self.alive.append(value)
        try:
            digest = _hash(type(value).__qualname__, *self._parts(value))
        finally:
            self.stack.pop()
            reference = self.lowest_reference
            self.lowest_reference = enclosing_reference
        if reference < depth:
            self.cyclic[id(value)] = len(self.cyclic), self.stack[reference]
            self.lowest_reference = min(enclosing_reference, reference)
        self.digests[id(value)] = digest
        return digest

    def _position_of_reference(self, value: object) -> int:
        """The position on the stack of the object that a cyclic one refers to, if it is there."""
        outer = self.cyclic[id(value)][1]
        return self.stack.index(outer) if outer in self.stack else sys.maxsize

    def _digests(self, values: Iterable[object]) -> list[bytes]:
        return [self.digest(value) for value in values]

    def _parts(self, value: Any) -> list[Any]:
        """The texts and bytes that distinguish a value from others of its type."""
        kind = type(value)
        for kinds, parts in self._decompositions().items():
            if isinstance(value, kinds):
                more = self._subclass_parts(value) if kind not in _FULLY_DECOMPOSED else []
                return [*parts(value), *more]
        if isinstance(value, type):
            return self._class_parts(value)
        if (version := _installed(kind.__module__)) and kind.__qualname__ in _C_WRAPPERS:
            owner = _installed(value.__module__)
            if owner and _is_importable(value):
                return [owner, value.__module__, value.__qualname__]
            return [version, *self._wrapper_parts(value)]
        return self._object_parts(value)

    def _decompositions(self) -> Mapping[Any, Any]:
        """How values of some types are decomposed; others are objects with a state."""
        return {
            # The host never sees the values of tracers that a function closes over.
            Tracer: lambda v: [str(v.aval)],
            jax.Array: lambda v: [str(v.aval), *self._array_parts(v)],
            np.ndarray | np.generic: self._array_parts,
            types.CodeType: self._code_parts,
            types.FunctionType: self._function_parts,
            types.MethodType: lambda v: self._digests([v.__func__, v.__self__]),
            types.BuiltinFunctionType: self._builtin_parts,
            types.ModuleType: lambda v: self._module_parts(v, ()),
            types.CellType: lambda v: self._digests([v.cell_contents] if _is_filled(v) else []),
            types.MappingProxyType: lambda v: [self.digest(dict(v))],
            _C_DESCRIPTORS: lambda v: [self.digest(v.__objclass__), v.__name__],
            property: lambda v: self._digests([v.fget, v.fset, v.fdel]),
            staticmethod | classmethod: lambda v: self._digests([v.__func__, _own_attributes(v)]),
            functools.cached_property: lambda v: self._digests([v.func, v.attrname]),
            weakref.ReferenceType: lambda v: self._digests([v(), v.__callback__]),
            types.UnionType: lambda v: self._digests(v.__args__),
            typing.TypeVar: lambda v: self._digests(
                [v.__name__, v.__bound__, v.__constraints__, v.__covariant__, v.__contravariant__]
            ),
            np.ufunc: self._ufunc_parts,
            jax.tree_util.PyTreeDef: self._treedef_parts,
            dataclasses.Field: lambda v: self._digests(
                [getattr(v, name) for name in _FIELD_ATTRIBUTES if hasattr(v, name)]
            ),
        }

    def _subclass_parts(self, value: object) -> list[Any]:
        """The parts that a value of a subclass adds: its class and attributes."""
        if isinstance(value, Tracer | jax.Array | np.generic | np.memmap):
            return []
        return self._digests([type(value), getattr(value, "__dict__", None), _slots(value)])

    def _array_parts(self, array: Any) -> list[Any]:
        name = str(array.dtype)
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        try:
            array = np.asarray(array)
        except RuntimeError as error:  # it was donated, or is on other machines
            raise UnknownError(f"it rests on an array that cannot be read: {error}") from None
        return [name, str(array.shape), *self._array_bytes(array)]

    def _array_bytes(self, array: np.ndarray) -> list[Any]:
        """The bits of an array's numbers, without padding."""
        if array.dtype.names:
            return [part for n in array.dtype.names for part in [n, *self._array_bytes(array[n])]]
        if array.dtype.hasobject:
            return self._digests(array.ravel().tolist())
        if array.dtype.char in "gG" and array.dtype.itemsize > np.dtype("c16").itemsize // 2:
            return [repr(number) for number in array.ravel()]
        return [np.ascontiguousarray(array).tobytes()]

    def _treedef_parts(self, structure: PyTreeDef) -> list[Any]:
        data = structure.node_data()
        if data is not None and type(data[1]) is tuple and len(data[1]) == 2:
            # Auxiliary data of modules: digest the static values, not the key, which has addresses.
            kind, (_, aside) = data
            data = (kind, aside.value) if isinstance(aside, UncomparedPayload) else data
        return [str(structure.num_leaves), *self._digests([data, structure.children()])]

    def _code_parts(self, code: types.CodeType) -> list[Any]:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
        handlers = getattr(code, "co_exceptiontable", b"")
        return [
            code.co_code,
            handlers,
            code.co_name,
            *self._digests([counts, names, code.co_consts]),
        ]

    def _function_parts(self, function: types.FunctionType) -> list[Any]:
        """A function by its bytecode, defaults, closure and the globals that it reads.

        An installed function is identified by its version, module and name instead of its globals.
        """
        if (unchecked := _without_type_checker(function)) is not function:
            return [self.digest(unchecked)]
        if function.__code__ is _SINGLEDISPATCH:  # its closure has a cache of calls
            return [self.digest(dict(function.registry))]  # pyright: ignore
        module = str(function.__globals__.get("__name__"))
        name = function.__qualname__
        parts = self._digests([function.__code__, function.__defaults__, function.__kwdefaults__])
        version = _version_of(function)
        if version and _is_importable(function):
            return [version, module, name, *parts]
        cells = function.__closure__ or ()
        names_used = _names_used(function.__code__)
        for variable, cell in zip(function.__code__.co_freevars, cells, strict=True):
            captured = cell.cell_contents if _is_filled(cell) else cell
            if isinstance(captured, types.ModuleType):
                parts += self._parts_used(captured, names_used.chains(variable))
            else:
                parts.append(self.digest(captured))
        parts.append(self.digest(_own_attributes(function)))
        if version:
            return [version, module, name, *parts]
        parts.append(self.digest(getattr(function, "__wrapped__", None)))
        names = [function.__name__, name]
        return [
            *names,
            *parts,
            *self._annotations(function),
            *self._globals_read(function, names_used),
        ]

    def _annotations(self, value: object) -> list[bytes]:
        """The digest of annotations, if they have one: code may read them, but seldom does."""
        try:
            return [self.digest(dict(value.__annotations__))]
        except Exception:  # lazy annotations are evaluated here, and may raise anything
            return []

    def _globals_read(self, function: types.FunctionType, names_used: "_NamesUsed") -> list[Any]:
        """The globals and imports that a function and its inner functions read."""
        module_variables = function.__globals__
        built_in = function.__builtins__
        parts = []
        if names_used.names() & _READS_ANYTHING - module_variables.keys():
            parts += self._all_variables(module_variables)
        for name in sorted(names_used.names()):
            if name in module_variables:
                parts += [name, *self._parts_used(module_variables[name], names_used.chains(name))]
            elif name in built_in:
                parts += [name, self.digest(built_in[name])]
            else:
                parts += [name]
        package = module_variables.get("__package__") or ""
        for statement in sorted(names_used.imports):
            parts += self._import_parts(statement, package, names_used)
        if names_used.imports_anything():
            parts += [part for name in sorted(names_used.texts) for part in self._user_module(name)]
        return parts

    def _parts_used(self, value: object, chains: set[tuple[str, ...]]) -> list[Any]:
        """A value; of a module only the attributes that are used, given as chains of names."""
        if not isinstance(value, types.ModuleType):
            return [self.digest(value)]
        return [part for chain in sorted(chains) for part in self._module_parts(value, chain)]

    def _module_parts(self, module: types.ModuleType, chain: tuple[str, ...]) -> list[Any]:
        """An attribute of a module, or all of it if the chain is empty.

        Installed modules are identified by their version.
        """
        if version := _version_of_module(module):
            attribute = vars(module).get(chain[0]) if chain else None
            if isinstance(attribute, types.ModuleType):
                return [version, module.__name__, *self._module_parts(attribute, chain[1:])]
            is_user_function = isinstance(attribute, types.FunctionType) and not _version_of(
                _without_type_checker(attribute)
            )
            return [
                version,
                module.__name__,
                *chain[:1],
                *self._digests([attribute] if is_user_function else []),
            ]
        if not chain:
            if id(module) in self.module_stack:
                return [module.__name__]
            self.module_stack.append(id(module))
            try:
                return [module.__name__, *self._all_variables(vars(module))]
            finally:
                self.module_stack.pop()
        name, *rest = chain
        if name not in vars(module):
            if callable(getattr_hook := vars(module).get("__getattr__")):
                return [module.__name__, name, self.digest(getattr_hook)]
            return [module.__name__, name]
        value = vars(module)[name]
        if isinstance(value, types.ModuleType):
            return [module.__name__, name, *self._module_parts(value, tuple(rest))]
        return [module.__name__, name, self.digest(value)]

    def _all_variables(self, names: Mapping[str, Any]) -> list[Any]:
        """All variables of a module."""
        notebook = "get_ipython" in names
        parts = []
        for name, value in sorted(names.items()):
            if name.startswith("__") and name.endswith("__"):
                continue
            if not (notebook and _NOTEBOOK_VARIABLES.fullmatch(name)):
                parts += [name, *self._parts_used(value, {()})]
        return parts

    def _import_parts(
        self, statement: "_Import", package: str, names_used: "_NamesUsed"
    ) -> list[Any]:
        """The parts of a module that an import statement in a function makes available."""
        name = statement.name
        if statement.level:
            try:
                name = importlib.util.resolve_name("." * statement.level + name, package)
            except ImportError:
                return [name]
        if version := _installed(name):
            return [version, name]
        module = _import(name)
        if module is None:
            return [name]  # it does not exist
        parts: list[Any] = [name]
        for imported_name in statement.taken:
            if imported_name in vars(module):
                parts += self._module_parts(module, (imported_name,))
            else:
                parts += self._user_module(f"{name}.{imported_name}")
        if not statement.taken:
            if not statement.renamed:
                module = sys.modules[name.partition(".")[0]]
            parts += self._parts_used(module, names_used.chains(statement.variable))
        return parts

    def _user_module(self, name: str) -> list[Any]:
        """The user's module of this name, if it exists."""
        if not all(part.isidentifier() for part in name.split(".")):
            return []
        if version := _installed(name):
            return [version, name]
        module = _import(name)
        return [] if module is None else [name, *self._module_parts(module, ())]

    def _builtin_parts(self, function: types.BuiltinFunctionType) -> list[Any]:
        owner = function.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            return [function.__name__, self.digest(owner)]
        module = function.__module__ or getattr(owner, "__name__", "")
        return [_installed(module) or _compiled_bytes(module), module, function.__qualname__]

    def _ufunc_parts(self, function: np.ufunc) -> list[Any]:
        """A ufunc of NumPy or another installed library, by its name there."""
        name = function.__name__
        for module in sorted(sys.modules, key=lambda n: (not n.startswith("numpy"), n)):
            variables = getattr(sys.modules[module], "__dict__", {})
            if variables.get(name) is function and (version := _installed(module)):
                return [version, name]
        raise UnknownError(f"it rests on the ufunc {name!r}, which is in no library")

    def _class_parts(self, cls: type) -> list[Any]:
        """A class by bases, attributes and dataclass fields; an installed one by its version."""
        version = _installed(cls.__module__)
        if version and _is_importable(cls):
            functions = {n: v for n, v in vars(cls).items() if isinstance(v, types.FunctionType)}
            attributes = {
                n: v for n, v in functions.items() if not _version_of(_without_type_checker(v))
            }
            return [
                version,
                cls.__module__,
                cls.__qualname__,
                *self._digests([attributes] if attributes else []),
            ]
        attributes = {
            k: v for k, v in sorted(vars(cls).items()) if k not in _IGNORED_CLASS_ATTRIBUTES
        }
        fields = vars(cls).get("__dataclass_fields__")
        parts = self._digests([cls.__bases__, attributes, fields])
        if type(cls) is not type:
            parts.append(self.digest(type(cls)))
        return [version, cls.__qualname__, *parts, *self._annotations(cls)]

    def _wrapper_parts(self, value: Any) -> list[Any]:
        """A wrapper implemented in C: `jax.jit`, `functools.lru_cache`, NumPy's dispatchers."""
        options: object = {}
        if (jit_info := getattr(value, "_jit_info", None)) is not None:
            options = {name: getattr(jit_info, name, None) for name in _JIT_OPTIONS}
        elif callable(jit_info := getattr(value, "cache_parameters", None)):
            options = jit_info()
        standard_attributes = {"_fun", "_jit_info", "cache_parameters"}
        added = {n: v for n, v in _own_attributes(value).items() if n not in standard_attributes}
        return self._digests([value.__wrapped__, options, added])

    def _object_parts(self, value: Any) -> list[Any]:
        """Any other object by its class, an estimator's parameters and its pickled state."""
        if type(value) is dict:
            return self._digests(part for item in value.items() for part in item)
        if type(value) in (tuple, list):
            return self._digests(value)
        if type(value) in (set, frozenset):  # their order differs between processes
            return sorted(self._digests(value))
        parts = [self.digest(type(value))]
        if value is random._inst or value is np.random.mtrand._rand:  # pyright: ignore
            return [*parts, "the generator of the process"]  # its seed is random
        if _is_linen(type(value)):
            return [*parts, self.digest(_linen_attributes(value))]
        params = None
        with contextlib.suppress(Exception):  # a method of this name with another meaning
            params = value.get_params(deep=False)  # an estimator
        if params is not None:
            parts.append(self.digest(params))
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = reduce(value) if reduce else value.__reduce_ex__(2)
        except Exception as error:  # the object's own code may raise anything
            raise UnknownError(f"it rests on a {type(value).__qualname__}: {error}") from None
        if _pickles_itself(type(value)):
            parts += self._unpickled_parts(value)
        if isinstance(reduced, str):  # a global
            module = getattr(value, "__module__", None) or type(value).__module__
            return [*parts, _installed(module) or _compiled_bytes(module), module, reduced]
        constructor, params, state, *item_iterators = [*reduced, *[None] * (6 - len(reduced))]
        state = self._without_cached(value, state)
        item_iterators = [
            None if r is None else list(r) for r in item_iterators[:2]
        ] + item_iterators[2:]
        return [*parts, *self._digests([constructor, params, state, *item_iterators])]

    def _unpickled_parts(self, value: object) -> list[Any]:
        """Attributes that an object's own pickling may omit, if they have a digest."""
        parts = []
        attributes = {**_slots(value), **getattr(value, "__dict__", {})}
        for name, attribute in self._without_cached(value, attributes).items():
            with contextlib.suppress(UnknownError):  # probably why it is not pickled
                parts += [name, self.digest(attribute)]
        return parts

    def _without_cached(self, value: object, state: PyTree) -> Any:
        """An object's state without cached properties, which are computed from the rest."""
        if not isinstance(state, dict):
            return state
        remaining = dict(state)
        for cls in type(value).__mro__:
            for name, member in vars(cls).items():
                if name not in remaining or not isinstance(member, functools.cached_property):
                    continue
                with contextlib.suppress(Exception):  # the property's code may raise anything
                    is_recomputable = _installed(cls.__module__) or (
                        self.digest(member.func(value)) == self.digest(remaining[name])
                    )
                    if is_recomputable:
                        del remaining[name]
        return remaining


def _hash(*parts: str | bytes) -> bytes:
    """The hash of texts and bytes, each with its length, so that boundaries matter."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(struct.pack("<q", len(content)) + content)
    return digest.digest()


def _bits(value: object) -> bytes:
    """The bits of a number or a text: 0.0 is not -0.0."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    if type(value) is int:  # of any length
        return b"%x" % value
    return value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _slots(value: object) -> dict[str, Any]:
    """The attributes of an object that are not in its ``__dict__``."""
    names = {
        name: member
        for cls in type(value).__mro__
        for name, member in vars(cls).items()
        if isinstance(member, types.MemberDescriptorType) and "__slots__" in vars(cls)
    }
    return {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}


def _own_attributes(value: object) -> dict[str, Any]:
    """The attributes that were added to a function."""
    return {
        name: attribute
        for name, attribute in vars(value).items()
        if name not in _IGNORED_FUNCTION_ATTRIBUTES
    }


def _pickles_itself(cls: type) -> bool:
    """Whether a user's class defines how its objects are pickled."""
    return not _installed(cls.__module__) and any(
        getattr(cls, name, None) is not getattr(object, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


def _is_linen(cls: type) -> bool:
    return any(
        base.__module__ == "flax.linen.module" and base.__qualname__ == "Module"
        for base in cls.__mro__
    )


def _linen_attributes(module: object) -> dict[str, Any]:
    """The attributes of a flax.linen module, without its number in the process and call state."""
    return {n: v for n, v in vars(module).items() if n not in ("_id", "_state", "_parent_ref")}


class _Import(NamedTuple):
    """An import statement in a function."""

    name: str
    level: int  # the number of dots of a relative import
    taken: tuple[str, ...]  # after `from`
    renamed: bool  # by `import a.b as c`
    variable: str


class _NamesUsed:
    """The names that the bytecode of a function and its inner functions loads.

    Attributes:
      loads: names of variables of any kind, and the chains of attributes read from each.
      reads: names of global variables.
      imports: import statements.
      texts: constants that are texts.
    """

    def __init__(self, code: types.CodeType) -> None:
        self.loads: dict[str, set[tuple[str, ...]]] = {}
        self.reads: set[str] = set()
        self.imports: set[_Import] = set()
        self.texts: set[str] = set()
        self._add(code)

    def _add(self, code: types.CodeType) -> None:
        """Add the names that bytecode loads, and those of functions that it defines."""
        instructions = list(dis.get_instructions(code))
        for index, instruction in enumerate(instructions):
            if instruction.opname == "IMPORT_NAME":
                self._add_import(instructions, index)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST"):
                pass
            elif instruction.opname.startswith("LOAD_") and instruction.argval is not None:
                # Python 3.13 has instructions that load two variables, without their attributes.
                is_single = isinstance(instruction.argval, str)
                attributes = []
                for following in instructions[index + 1 :] if is_single else ():
                    if following.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                        break
                    attributes.append(following.argval)
                for name in (
                    [instruction.argval]
                    if is_single
                    else instruction.argval
                    if _is_pair(instruction)
                    else ()
                ):
                    self.loads.setdefault(name, set()).add(tuple(attributes))
                if is_single and any(kind in instruction.opname for kind in ("GLOBAL", "NAME")):
                    self.reads.add(instruction.argval)
        self.reads |= {i.argval for i in instructions if i.opname in _ATTRIBUTES} & {"__dict__"}
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add(constant)
            elif isinstance(constant, str):
                self.texts.add(constant)

    def _add_import(self, instructions: Sequence[dis.Instruction], index: int) -> None:
        level, from_list = (step.argval for step in instructions[index - 2 : index])
        following = instructions[index + 1 :]
        renamed = not from_list and following[0].opname == "IMPORT_FROM"
        variable = next((i.argval for i in following if i.opname.startswith("STORE_")), "")
        variable = variable if isinstance(variable, str) else variable[0]
        statement = _Import(
            instructions[index].argval, level or 0, tuple(from_list or ()), renamed, variable
        )
        self.imports.add(statement)

    def names(self) -> set[str]:
        """Names of global variables."""
        return self.reads - {"__dict__"}

    def imports_anything(self) -> bool:
        """Whether the code imports modules by names computed at run time."""
        attributes = {name for chains in self.loads.values() for c in chains for name in c}
        return bool((self.reads | attributes) & _IMPORTS_ANYTHING)

    def chains(self, name: str) -> set[tuple[str, ...]]:
        """The chains of attributes read from a variable; ``()`` stands for all of it."""
        attributes = {name for chains in self.loads.values() for c in chains for name in c}
        if (self.reads | attributes) & _READS_ANY_ATTRIBUTE:
            return {()}
        return self.loads.get(name, {()})


#: Instructions that read an attribute.
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def _is_pair(step: dis.Instruction) -> bool:
    return isinstance(step.argval, tuple) and all(isinstance(name, str) for name in step.argval)


@functools.lru_cache(maxsize=4096)
def _names_used(code: types.CodeType) -> _NamesUsed:
    return _NamesUsed(code)


def _without_type_checker(function: types.FunctionType) -> types.FunctionType:
    """The function that a decorator which checks types has wrapped; else the function."""
    maker = str(function.__globals__.get("__name__"))
    checks = maker.partition(".")[0] in _TYPE_CHECKERS and hasattr(function, "__wrapped__")
    if checks and _installed(maker):
        return function.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _is_importable(value: Any) -> bool:
    """Whether a value's module and name lead to it: decorators copy both from another function."""
    target: object = sys.modules.get(value.__module__)
    with contextlib.suppress(Exception):
        for name in value.__qualname__.split("."):
            target = getattr(target, name, None)
        return target is value
    return False


def _import(name: str) -> types.ModuleType | None:
    """A module, as a function that runs would find it; ``None`` if it would not."""
    try:
        return importlib.import_module(name)
    except Exception:  # the module's code may raise anything
        return None


def _compiled_bytes(module: str | None) -> bytes | str:
    """The bytes of a user's module that was compiled from another language."""
    path = getattr(sys.modules.get(module or ""), "__file__", None)
    try:
        return Path(path).read_bytes() if path else ""
    except OSError:
        raise UnknownError(f"the module {module} that it uses has no file") from None


def _version_of(function: types.FunctionType) -> str:
    """The version of an installed function's library; empty if written for the study."""
    file = function.__code__.co_filename
    module_variables = function.__globals__
    if not file.startswith("<"):
        return _version_at(file)
    # Compiled from generated text, such as the methods of a dataclass, for a module.
    module = sys.modules.get(str(module_variables.get("__name__")))
    return _version_of_module(module) if module and vars(module) is module_variables else ""


def _version_of_module(module: types.ModuleType) -> str:
    if sys.modules.get(module.__name__) is module:
        return _installed(module.__name__)
    file = getattr(module, "__file__", None)
    return _version_at(file) if isinstance(file, str) else ""


def _installed(name: Any) -> str:
    """The version of an installed module; empty if it was written for the study."""
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
    """The version of the library that a file belongs to, by its path; empty for a user's file."""
    for path in (Path(file), Path(file).resolve()):
        if PACKAGE in path.parents:
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

#: Folders of installed libraries, and of the standard library.
_SITES = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
_STANDARD = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")}

#: The code of every function that `functools.singledispatch` returns.
_SINGLEDISPATCH = vars(functools)["singledispatch"](lambda x: x).__code__
