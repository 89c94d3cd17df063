"""Host functions that a study calls are part of its identity."""

import builtins
import collections
import dataclasses
import enum
import functools
import importlib
import operator
import os
import re
import subprocess
import sys
import threading
import types
import typing
import weakref
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import equinox
import haiku
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import fljax as fl
from fljax._core.fingerprint import UnknownError, _version_at, fingerprint
from fljax.results.dataset import code_version

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.core


def study(function, store=None, *, seeds=1, independent=False):
    """A study whose one metric is computed by a function on the host."""

    def measured(now):
        shape = jax.ShapeDtypeStruct((), now.model.dtype)
        total = jnp.sum(now.model)
        return jax.pure_callback(function, shape, total, vmap_method="sequential")

    def scenario(key):
        return fl.Simulation(
            problem=fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2),
            network=fl.graphs.ring(3),
            algorithm=fl.algorithms.ConventionalFL(0.1),
            metrics=[fl.metrics.Metric("measured", measured, "a number", decibel=False)],
        )

    return fl.sweep(
        scenario, rounds=2, seeds=seeds, store=store, independent_noise=independent, progress=False
    )


def scaled(by):
    return lambda x: np.asarray(by * x)


def powered(by):
    return lambda x: np.asarray(x**by)


def by_default(by):
    def function(x, by=by):
        return np.asarray(by * x)

    return function


def by_keyword(by):
    def function(x, *, by=by):
        return np.asarray(by * x)

    return function


def by_attribute(by):
    def function(x):
        return np.asarray(vars(function)["by"] * x)

    vars(function)["by"] = by
    return function


def nested(by):
    inner = scaled(by)
    return lambda x: inner(x) + 0 * x


def by_code(by):
    return (lambda x: np.asarray(3 * x)) if by == 1 else (lambda x: np.asarray(x - 3))


def by_global(by):
    names: dict[str, Any] = {"np": np}
    exec(f"SCALE = {by}\ndef helper(x): return SCALE * x", names)
    exec("def function(x): return np.asarray(helper(x))", names)
    return names["function"]


@dataclasses.dataclass(frozen=True)
class Scaled:
    by: Any
    more: Any = dataclasses.field(default=1, compare=False)

    def __call__(self, x):
        return np.asarray(np.sum(self.by) * self.more * x)

    def method(self, x):
        return self(x)


class Estimator:
    """An estimator with parameters and fitted attributes."""

    def __init__(self, by):
        self.by = by

    def get_params(self, deep=True):
        return {"by": self.by}

    def predict(self, x):
        return np.asarray(self.by * x)


class Pair(NamedTuple):
    by: Any
    other: int = 0

    def __call__(self, x):
        return np.asarray(self.by * x)


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return np.asarray(self.by * x)


def by_base(by):
    base: Any = type("Base", (), {"by": by})

    class Child(base):
        def __call__(self, x):
            return np.asarray(self.by * x)

    return Child()


def by_module(by):
    module: Any = types.ModuleType("mine")
    module.by, module.lock = by, threading.Lock()
    names: dict[str, Any] = {"np": np, "mine": module}
    exec("def function(x): return np.asarray(mine.by * x)", names)
    return names["function"]


HOLDERS = {
    "closure": scaled,
    "code": by_code,
    "constant": powered,
    "default": by_default,
    "keyword default": by_keyword,
    "attribute": by_attribute,
    "nested closure": nested,
    "global of a helper": by_global,
    "partial": lambda by: functools.partial(operator.mul, by),
    "object": Scaled,
    "field that is not compared": lambda by: Scaled(1, by),
    "method": lambda by: Scaled(by).method,
    "array": lambda by: Scaled(np.asarray([0.0, by])),
    "JAX array": lambda by: Scaled(jnp.asarray([0.0, by])),
    "list in a dict": lambda by: Scaled(1, {"a": [by]}["a"][0]),
    "estimator": lambda by: Estimator(by).predict,
    "named tuple": Pair,
    "slots": Slotted,
    "base class": by_base,
    "module": by_module,
    "jit": lambda by: jax.jit(scaled(by)),
    "cache": lambda by: functools.lru_cache(scaled(by)),
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_dependencies_of_a_function_are_part_of_its_fingerprint(make):
    assert fingerprint(make(1)) == fingerprint(make(1))
    assert fingerprint(make(1)) != fingerprint(make(2))


def read_by(code, name="mine", **names):
    """A function from its source text, in a new module."""
    module: Any = types.ModuleType(name)
    vars(module).update(names, np=np)
    exec(code, vars(module))
    return module.function


def with_rule(factor):
    """An estimator that passes gradients straight through."""

    @jax.custom_jvp
    def rounded(x):
        return jnp.round(x)

    rounded.defjvp(lambda primals, tangents: (jnp.round(*primals), factor * tangents[0]))
    return rounded


def with_backward_rule(factor):
    @jax.custom_vjp
    def rounded(x):
        return jnp.round(x)

    rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, cotangent: (factor * cotangent,))
    return rounded


def with_batching_rule(by):
    @jax.custom_batching.custom_vmap
    def once(x):
        return x

    once.def_vmap(lambda size, batched, x: (by * x, batched[0]))
    return once


class Named:
    """An object that looks like the function it wraps."""

    def __init__(self, by):
        functools.update_wrapper(self, np.sum)
        self.by = by

    def __call__(self, x):
        return self.by * x


def wrapped_as_another(by):
    @functools.wraps(np.sum)
    def function(x):
        return by * x

    return function


def other_code_wrapped_as_another(by):
    def plus_one(x):
        return x + 1

    def times_three(x):
        return x * 3

    return functools.update_wrapper(plus_one if by == 1 else times_three, np.sum)


def class_of_anothers_name(by):
    return type("ndarray", (), {"__module__": "numpy", "by": by})


def class_with_metaclass(by):
    meta = type("Meta", (type,), {"__call__": (lambda cls: by)})
    return meta("Made", (), {})


class LeavesOut:
    """What it computes with is not pickled."""

    def __init__(self, by):
        self.by, self.lock = by, threading.Lock()

    def __getstate__(self):
        return {}


class Global:
    def __init__(self, by):
        self.by = by

    def __reduce__(self):
        return "GLOBAL"


class SetsState:
    def __init__(self, by):
        self.by = by

    def __reduce__(self):
        return type(self), (0,), None, None, None, functools.partial(setattr, self.by)


class OwnArray(np.ndarray):
    by: Any


def array_with_attribute(by):
    array = np.zeros(2).view(OwnArray)
    array.by = by
    return array


class OwnProperty(property):
    def __init__(self, by):
        super().__init__(len)
        self.by = by


class OwnReference(weakref.ref):
    by: Any


def reference_with_attribute(by):
    reference = OwnReference(Slotted)
    reference.by = by
    return reference


def field_with_metadata(by):
    return dataclasses.make_dataclass(
        "Made", [("x", int, dataclasses.field(default=0, metadata={"by": by}))]
    )


def dispatched(by):
    @functools.singledispatch
    def function(x):
        return x

    function.register(int, lambda x: by * x)
    return function


def calling_each_other(by):
    """Functions in two cycles are fingerprinted in the cycle that reaches them first."""

    def caller(x):
        return x

    cycle: list[Any] = [caller]
    cycle.append([cycle])
    again: list[Any] = [caller]
    again.append(cycle[1] if by == 1 else [again])
    return [cycle, again]


def annotated(by):
    def function(x):
        return x

    function.__annotations__ = {"x": by}
    return function


def filled_cell(first, second):
    """A function with a variable that is not set yet."""

    def make():
        if first:
            a = 1
        if second:
            b = 1
        return lambda: (a, b)  # pyright: ignore[reportPossiblyUnbound]

    return make()


def in_builtins(by):
    def function(x):
        return scale(x)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    names = {**vars(builtins), "scale": lambda x: by * x}
    return types.FunctionType(function.__code__, {"__builtins__": names})


def module_of(by, name="mine"):
    module: Any = types.ModuleType(name)
    module.by = by
    return module


def nested_modules(by):
    """Two functions use different parts of one module."""
    module: Any = types.ModuleType("outer")
    module.__dict__.update(mine=module, by=by)
    exec("def inner(x): return mine.by * x", vars(module))
    exec("def function(x): return mine.inner(x)", vars(module))
    return module.function


def closed_over_module(by):
    module = module_of(by)
    return lambda x: module.by * x


def passed_module(by):
    return read_by(
        "def helper(m, x): return m.by * x\ndef function(x): return helper(mine, x) + x.sum()",
        mine=module_of(by),
    )


def treedef_of_structure(by):
    @fl.module
    class Holder:
        function: Any = fl.static(default=None)

    return jax.tree.structure(Holder(Scaled(by)))


class Flags(enum.Flag):
    A = 1
    B = 2


class OwnLinen(linen.Module):
    width: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.width)(x)


KEPT_FUNCTIONS = [scaled(by) for by in range(3)]


#: Values that differ in one part alone; ``make(1)`` and ``make(2)``.
PAIRS = {
    "bool and int": lambda by: True if by == 1 else 1,
    "long integer": lambda by: 10**5000 + by,
    "complex": lambda by: complex(0.0, by),
    "negative zero": lambda by: 0.0 if by == 1 else -0.0,
    "text and bytes": lambda by: "a" if by == 1 else b"a",
    "dict": lambda by: {"a": by},
    "order of a dict": lambda by: {1: 0, 2: 0} if by == 1 else {2: 0, 1: 0},
    "set": lambda by: {by, 3},
    "frozenset in a tuple": lambda by: (frozenset([by]),),
    "range": lambda by: range(0, 10, by),
    "slice": lambda by: slice(None, by),
    "pattern": lambda by: re.compile("a" * by),
    "flags of a pattern": lambda by: re.compile("a", re.I if by == 1 else 0),
    "deque": lambda by: collections.deque([1], maxlen=by),
    "defaultdict": lambda by: collections.defaultdict(int if by == 1 else list),
    "type of an array": lambda by: np.zeros(2, f"f{4 * by}"),
    "shape of an array": lambda by: np.zeros((by, 2 // by)),
    "array of objects": lambda by: np.array([{"a": by}], object),
    "structured array": lambda by: np.array([(1, by)], np.dtype("i1,f8", align=True)),
    "names of a structured array": lambda by: np.zeros(1, [(f"a{by}", "f8")]),
    "extended precision": lambda by: np.longdouble(by) + np.finfo(np.longdouble).eps,
    "unit of a time": lambda by: np.array([1], f"M8[{'sm'[by - 1]}]"),
    "masked array": lambda by: np.ma.masked_array([1, 2], [by == 1, False]),
    "array with an attribute": array_with_attribute,
    "weak type": lambda by: jnp.asarray(2.0) if by == 1 else jnp.float32(2.0),
    "key": jax.random.key,
    "generator of a key": lambda by: jax.random.key(0, impl=("threefry2x32", "rbg")[by - 1]),
    "shape": lambda by: jax.ShapeDtypeStruct((by,), "float32"),
    "jvp rule": with_rule,
    "vjp rule": with_backward_rule,
    "batching rule": with_batching_rule,
    "object that wraps": Named,
    "function that wraps": wrapped_as_another,
    "code that wraps": other_code_wrapped_as_another,
    "wrapped": lambda by: functools.update_wrapper(by_attribute(1), scaled(by)),
    "name": lambda by: types.FunctionType(scaled.__code__, {}, f"f{by}"),
    "annotation": annotated,
    "empty cell": lambda by: filled_cell(by == 1, by == 2),
    "builtins": in_builtins,
    "bound builtin": lambda by: [by].append,
    "method of a wrapper": lambda by: by.__add__,
    "ufunc": lambda by: np.sin if by == 1 else np.cos,
    "options of jit": lambda by: jax.jit(KEPT_FUNCTIONS[0], static_argnums=range(by - 1)),
    "typed cache": lambda by: functools.lru_cache(typed=by == 1)(len),
    "attribute of a cache": lambda by: functools.update_wrapper(
        functools.lru_cache(len), by_attribute(by)
    ),
    "dispatch": dispatched,
    "class of another's name": class_of_anothers_name,
    "metaclass": class_with_metaclass,
    "metadata of a field": field_with_metadata,
    "mapping proxy": lambda by: types.MappingProxyType({"a": by}),
    "property": lambda by: property(scaled(by)),
    "subclass of property": OwnProperty,
    "static method": lambda by: staticmethod(scaled(by)),
    "attribute of a static method": lambda by: staticmethod(by_attribute(by)),
    "cached property": lambda by: functools.cached_property(scaled(by)),
    "weak reference": lambda by: weakref.ref(KEPT_FUNCTIONS[by]),
    "callback of a weak reference": lambda by: weakref.ref(KEPT_FUNCTIONS[0], KEPT_FUNCTIONS[by]),
    "weak reference with an attribute": reference_with_attribute,
    "cell": types.CellType,
    "cell without content": lambda by: types.CellType() if by == 1 else types.CellType(None),
    "union": lambda by: int | (str if by == 1 else bytes),
    "bound of a type variable": lambda by: TypeVar("T", bound=int if by == 1 else str),
    "state that is not pickled": LeavesOut,
    "global by its own word": Global,
    "setter of a state": SetsState,
    "module": module_of,
    "name of a module": lambda by: module_of(0, f"mine{by}"),
    "module named like one of Python's": lambda by: module_of(by, "statistics"),
    "module named like a library": lambda by: module_of(by, "numpy"),
    "module in a closure": closed_over_module,
    "module that is passed on": passed_module,
    "module in two hands": nested_modules,
    "function of a module named like Python's": lambda by: read_by(
        f"def function(x): return {by} * x", "statistics"
    ),
    "function by getattr": lambda by: read_by(
        "def function(x): return getattr(mine, 'b' + 'y') * x", mine=module_of(by)
    ),
    "global by globals()": lambda by: read_by("def function(x): return globals()['by']", by=by),
    "global by eval": lambda by: read_by("def function(x): return eval('b' + 'y')", by=by),
    "cycles": calling_each_other,
    "structure": treedef_of_structure,
    "linen": linen.Dense,
    "linen, nested": lambda by: linen.Sequential([linen.Dense(3), linen.Dense(by)]),
    "linen, the user's": OwnLinen,
    "nnx": lambda by: nnx.Linear(2, 2, rngs=nnx.Rngs(by)),
    "equinox": lambda by: equinox.nn.Linear(2, 2, key=jax.random.key(by)),
    "haiku": lambda by: haiku.transform(lambda x: haiku.Linear(by)(x) + 0.0),
    "optax": optax.adam,
    "enumeration": Flags,
}


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_values_that_differ_in_one_part_differ(make):
    assert fingerprint(make(1)) == fingerprint(make(1))
    assert fingerprint(make(1)) != fingerprint(make(2))


def test_equal_values_of_different_types_have_different_keys():
    values = [
        2,
        2.0,
        True + 1.0 + 0j,
        np.float32(2),
        np.float64(2),
        "2",
        (2,),
        [2],
        {2},
        0.0,
        -0.0,
        0,
        False,
    ]
    assert len({fingerprint(scaled(value)) for value in values}) == len(values)
    assert fingerprint(scaled(float("nan"))) == fingerprint(scaled(float("nan")))


def test_fingerprints_of_recursive_functions_terminate():
    def first(x):
        return x if x < 1 else second(x - 1)

    def second(x):
        return first(x)

    assert fingerprint(first) == fingerprint(first)


@pytest.mark.parametrize(
    "captured",
    [threading.Lock(), (i for i in range(3)), sys.stdout],
    ids=["lock", "generator", "file"],  # the same in every worker of the tests
)
def test_objects_without_comparable_state_are_refused(captured):
    with pytest.raises(UnknownError, match="rests on a"):
        fingerprint(scaled(captured))


class WithCache:
    def __init__(self, by):
        self.by = by

    @functools.cached_property
    def twice(self):
        return 2 * self.by


@typing.runtime_checkable
class Sized(typing.Protocol):
    def size(self): ...


def used():
    """Objects that record their use, after they were used."""
    layout = fl.models.layout_of(fl.models.mlp(2), (4,), "float32")
    yield layout, lambda: layout.sizes
    cached = WithCache(1)
    yield cached, lambda: cached.twice
    dispatch = dispatched(2)
    yield dispatch, lambda: (dispatch(1), dispatch(1.0), dispatch("a"))
    yield Flags, lambda: Flags.A | Flags.B
    yield Sized, lambda: isinstance(3, Sized)
    remembering = functools.lru_cache(scaled(2))
    yield remembering, lambda: remembering(3)
    jitted = jax.jit(lambda x: 2 * x)
    yield jitted, lambda: jitted(3.0)
    pattern = re.compile("a")
    yield pattern, lambda: pattern.match("a")
    network = linen.Dense(2)
    yield network, lambda: network.init(jax.random.key(0), jnp.ones((1, 3), "float32"))


@pytest.mark.parametrize("number", range(9))
def test_used_objects_keep_their_fingerprint(number):
    value, use = list(used())[number]
    before = fingerprint(value)
    use()
    assert fingerprint(value) == before


def test_a_cached_property_that_was_set_by_hand_is_part_of_its_object():
    first = WithCache(1)
    second = WithCache(1)
    vars(first)["twice"] = 2
    vars(second)["twice"] = 3
    assert fingerprint(WithCache(1)) == fingerprint(first) != fingerprint(second)


UNRELATED = """
for _ in range(3): t.linen.Dense(2)
t.linen.Dense(2).init(t.jax.random.key(0), t.jnp.ones((1, 3)))
t.nnx.Linear(2, 2, rngs=t.nnx.Rngs(3))
t.np.random.seed(3)
t.jax.jit(lambda x: x + 1)(2.0)
t.fl.Simulation(
    t.fl.problems.ridge(t.jax.random.key(0), 3, 4, 2), t.fl.algorithms.FedAvg(0.1)
)
for _, use in t.used(): use()
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_every_process():
    code = (
        "import sys; sys.path.insert(0, 'tests/_core'); import test_fingerprint as t\n%s\n"
        "makers = {**t.HOLDERS, **t.PAIRS}\n"
        "print({name: t.fingerprint(make(1)) for name, make in makers.items()},"
        "t.fingerprint(lambda x: x in {'a', 'b', 'c'}), t.fingerprint(t.np.random.normal))"
    )
    results = [
        subprocess.run(
            [sys.executable, "-c", code % before],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        for seed, before in (("1", ""), ("2", UNRELATED))
    ]
    assert results[0] == results[1]


MODULES = {
    "studied/__init__.py": "",
    "studied/inner.py": "from studied.deeper import SCALE\ndef scale(x): return SCALE * x\n",
    "studied/deeper.py": "SCALE = {by}\n",
    "studied/lazy.py": "import threading\nLOCK = threading.Lock()\nBY = {by}\n",
    "studied/functions.py": """
import studied.deeper
def absolute(x):
    from studied.inner import scale
    return scale(x)
def relative(x):
    from .deeper import SCALE
    return SCALE * x
def submodule(x):
    from . import deeper
    return deeper.SCALE * x
def dotted(x):
    import studied.lazy
    return studied.lazy.BY * x
def renamed(x):
    import studied.lazy as lazy
    return lazy.BY * x
def by_name(x):
    import importlib
    return importlib.import_module("studied.deeper").SCALE * x
def attribute(x):
    return studied.deeper.SCALE * x
""",
}


@pytest.mark.parametrize(
    "name", ["absolute", "relative", "submodule", "dotted", "renamed", "by_name", "attribute"]
)
def test_imports_of_a_function_are_part_of_its_fingerprint(name, tmp_path, monkeypatch):
    fingerprints = []
    for by in (1, 1, 2):
        folder = tmp_path / f"{len(fingerprints)}"
        for file, text in MODULES.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text.format(by=by))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            for module in [name for name in sys.modules if name.startswith("studied")]:
                patch.delitem(sys.modules, module)
            functions = importlib.import_module("studied.functions")
            fingerprints.append(fingerprint(getattr(functions, name)))
            for module in [name for name in sys.modules if name.startswith("studied")]:
                del sys.modules[module]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_a_replaced_library_function_is_reported(monkeypatch):
    def read(x):
        return np.linalg.norm(x)

    before = fingerprint(read), fingerprint(fl.problems.LeastSquares)
    monkeypatch.setattr(np.linalg, "norm", scaled(2))
    monkeypatch.setattr(fl.problems.LeastSquares, "value", scaled(2))
    after = fingerprint(read), fingerprint(fl.problems.LeastSquares)
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vmap_method", "rule"])
def test_a_study_is_identified_by_its_batched_program(name, tmp_path):
    """A single run computes the same."""

    def measured(by):
        if name == "rule":
            return lambda now: with_batching_rule(by)(jnp.sum(now.model))
        method = ("sequential", "expand_dims")[by - 1]
        shape = jax.ShapeDtypeStruct((), jnp.zeros(0).dtype)
        return lambda now: jax.pure_callback(
            lambda x: np.asarray(x, shape.dtype), shape, jnp.sum(now.model), vmap_method=method
        )

    def swept(by):
        def scenario(key):
            return fl.Simulation(
                fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2),
                fl.algorithms.ConventionalFL(0.1),
                network=fl.graphs.ring(3),
                metrics=[fl.metrics.Metric("measured", measured(by), "a number", decibel=False)],
            )

        return fl.sweep(scenario, rounds=1, seeds=2, store=tmp_path, progress=False)

    swept(1)
    with pytest.raises(ValueError, match="another study"):
        swept(2)


@pytest.mark.slow
def test_a_store_identifies_a_study_by_its_host_functions(tmp_path):
    first = study(scaled(1.0), tmp_path).measured
    more = study(scaled(1.0), tmp_path, seeds=2).measured
    np.testing.assert_array_equal(first.values[0], more.values[0])
    with pytest.raises(ValueError, match="another study"):
        study(scaled(2.0), tmp_path, seeds=3)


@pytest.mark.slow
def test_a_study_with_unidentifiable_host_code_gets_no_store(tmp_path):
    lock = threading.Lock()

    def guarded(x):
        with lock:
            return np.asarray(x)

    assert study(guarded).measured.size
    assert study(guarded, independent=True).measured.size
    with pytest.raises(ValueError, match=r"guarded.*lock"):
        study(guarded, tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_a_learner_is_known_by_its_parameters(tmp_path):
    linear = pytest.importorskip("sklearn.linear_model")

    def learned(alpha, seeds):
        def scenario(key):
            loss = fl.problems.LeastSquares()
            problem = fl.problems.linear(jax.random.key(0), 3, 6, 2, loss=loss)
            return fl.Simulation(
                problem=problem.split(jax.random.key(1), 0.5),
                network=fl.graphs.ring(3),
                algorithm=fl.algorithms.ModelAgnosticFedRelax(
                    0.5, test_set=np.ones((2, 2)), learners=linear.Ridge(alpha=alpha)
                ),
                metrics=["validation_error"],
            )

        return fl.sweep(scenario, rounds=1, seeds=seeds, store=tmp_path, progress=False)

    learned(0.001, 1)
    learned(0.001, 2)
    with pytest.raises(ValueError, match="another study"):
        learned(1000.0, 3)


def test_the_version_of_the_code_covers_every_file_of_the_package():
    files = set(Path(fl.__file__).parent.rglob("*.py"))
    assert {_version_at(str(file)) for file in files} == {f"fljax {fl.__version__}"}
    with mock.patch.object(Path, "read_bytes", autospec=True, return_value=b"") as read:
        code_version.__wrapped__()
    assert {call.args[0] for call in read.call_args_list} == files
