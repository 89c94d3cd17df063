"""Equal structures of different types, and changed options, compile separate programs."""

import dataclasses
import decimal
import subprocess
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.devices import configured
from fljax._core.module import Static, TypedKey
from fljax.study import batched_program

pytestmark = pytest.mark.core


def build(measure):
    return fl.Simulation(
        problem=fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2),
        network=fl.graphs.ring(3),
        algorithm=fl.algorithms.ConventionalFL(0.1),
        metrics=[
            fl.metrics.Metric(
                "told", lambda now: measure() + 0.0 * jnp.sum(now.model), "told", decibel=False
            )
        ],
    )


def sweep(scenario, **more):
    study = fl.sweep(scenario, rounds=1, seeds=1, progress=False, **more)
    return study.told.values.ravel().tolist()


@dataclasses.dataclass(frozen=True)
class Holder:
    value: Any
    more: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class Unlike:
    """Compared as its author says."""

    value: int

    def __eq__(self, second):
        return isinstance(second, Unlike)

    def __hash__(self):
        return 0


@fl.module
class Part:
    number: float = 0.0
    shape: Any = fl.static(default=2)


UNLIKE = [
    (2, 2.0),
    (1, True),
    (0.0, -0.0),
    (2, np.int32(2)),
    (np.float32(2), np.float64(2)),
    (0j, complex(0.0, -0.0)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
]


@pytest.mark.parametrize("pair", UNLIKE, ids=str)
@pytest.mark.parametrize(
    "within",
    [
        lambda v: v,
        lambda v: (1, v),
        lambda v: frozenset([v]),
        lambda v: ("a", (v,)),
        Holder,
        lambda v: Holder((Holder(v),)),
        lambda v: Holder(0, v),
        lambda v: Holder(0, {"a": [v]}),
        lambda v: Holder(
            0, np.asarray([v], dtype=object if isinstance(v, decimal.Decimal) else None)
        ),
    ],
)
def test_equal_values_of_different_types_have_different_keys(pair, within):
    first, second = map(within, pair)
    assert TypedKey(first) != TypedKey(second)
    assert Static(first) != Static(second)
    assert jax.tree.structure(Static(first)) != jax.tree.structure(Static(second))
    assert jax.tree.structure(Part(0.0, first)) != jax.tree.structure(Part(0.0, second))


@pytest.mark.parametrize(
    "make",
    [
        lambda: 2.5,
        lambda: float("nan"),
        lambda: (1, float("nan")),
        lambda: Holder(float("nan")),
        lambda: Holder(1, np.arange(3)),
        lambda: Unlike(3),
        lambda: "text",
        lambda: frozenset([1.5, "a"]),
        lambda: TypedKey.__hash__,
    ],
)
def test_rebuilt_values_have_equal_keys(make):
    assert TypedKey(make()) == TypedKey(make())
    assert hash(TypedKey(make())) == hash(TypedKey(make()))
    assert jax.tree.structure(Part(0.0, make())) == jax.tree.structure(Part(1.0, make()))


def test_equality_of_the_authors_own_counts():
    assert TypedKey(Unlike(1)) == TypedKey(Unlike(2))
    assert TypedKey(Unlike(1)) != 1


@pytest.mark.parametrize("value", [[1], {"a": 1}, np.zeros(2), Holder([1])], ids=str)
def test_unhashable_values_are_refused_as_structure(value):
    with pytest.raises(TypeError, match="unhashable"):
        hash(TypedKey(value))


def kind(key, n):
    """Whole or true division."""
    del key
    n = n.value if isinstance(n, Holder) else n[0] if isinstance(n, tuple) else n
    value = float(7 // n) if isinstance(n, int) else 7 / n
    return build(lambda: jnp.asarray(value))


@pytest.mark.slow
@pytest.mark.parametrize("within", [lambda v: v, lambda v: (v, 1), Holder])
def test_equal_values_of_a_grid_compile_separately(within):
    first, second = (fl.static([within(v)])[0] for v in (2, 2.0))
    assert sweep(kind, grid={"n": {"a": first, "b": second}}) == [3, 3.5]
    assert sweep(kind, grid={"n": {"a": first}}) == [3]
    assert sweep(kind, grid={"n": {"a": second}}) == [3.5]


def test_equal_fields_of_a_module_compile_separately():
    def scenario(key, part):
        del key
        return build(lambda: jnp.asarray(7.0 if isinstance(part.shape, int) else 8.0))

    grid = {"part": {"a": Part(0.0, 2), "b": Part(0.0, 2.0)}}
    assert sweep(scenario, grid=grid) == [7, 8]


@dataclasses.dataclass(frozen=True)
class Scenario:
    value: float
    table: Any = dataclasses.field(default=None, compare=False)

    def __call__(self, key):
        del key
        return build(lambda: jnp.sum(self.table))


class Study:
    def __init__(self, value):
        self.value = value
        self.built = 0

    def __eq__(self, second):
        return True

    def __hash__(self):
        return 0

    def scenario(self, key):
        del key
        self.built += 1
        return build(lambda: jnp.asarray(self.value))


@pytest.mark.slow
def test_equal_scenarios_are_separate_programs():
    assert sweep(Scenario(0.1, np.ones(3))) == [3]
    assert sweep(Scenario(0.1, np.zeros(3))) == [0]
    first = Study(1.0)
    second = Study(2.0)
    assert sweep(first.scenario) == [1]
    assert sweep(second.scenario) == [2]
    built = first.built
    assert sweep(first.scenario) == [1]  # a method looked up again is the same
    assert first.built == built
    assert batched_program.ScenarioKey(first.scenario) != batched_program.ScenarioKey(kind)


def test_a_nan_constant_does_not_retrace():
    built = []

    def scenario(key, n):
        del key
        built.append(n)
        return build(lambda: jnp.asarray(1.0))

    for _ in range(2):
        sweep(scenario, grid={"n": {"a": fl.static([float("nan")])[0]}})
        count = len(built)
    sweep(scenario, grid={"n": {"a": fl.static([float("nan")])[0]}})
    assert len(built) == count


OPTIONS = {
    "jax_threefry_partitionable": (jax.threefry_partitionable, [True, False]),
    "jax_default_prng_impl": (jax.default_prng_impl, ["threefry2x32", "rbg"]),
    "jax_enable_x64": (jax.enable_x64, [False, True]),
}


@pytest.mark.thin(0, every=1)
@pytest.mark.parametrize("thread_local", [False, True], ids=["global", "of a thread"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_changed_are_another_program(option, thread_local):
    context, values = OPTIONS[option]

    def draws():
        def drawn(key):
            del key
            return build(lambda: jnp.mean(jax.random.uniform(jax.random.key(3), (3,))))

        return drawn

    def swept(value, scenario):
        with context(value) if thread_local else configured(option, value):
            return sweep(scenario)

    alone = [swept(value, draws()) for value in values]
    assert alone[0] != alone[1]
    same = draws()
    assert [swept(value, same) for value in values] == alone


def test_strict_promotion_works_after_a_study_without_it():
    def mixed(key):
        del key
        return build(lambda: jnp.int32(3) * jnp.float16(1))

    with jax.numpy_dtype_promotion("standard"):
        sweep(mixed)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="promotion"):
        sweep(mixed)


def python_runs(form):
    """Whether comparing the parts of a form calls a Python method."""
    if isinstance(form, tuple | frozenset):
        return any(python_runs(item) for item in form)
    return isinstance(type(form).__eq__, types.FunctionType)


@pytest.mark.parametrize(
    "value",
    [
        *(
            2,
            2.0,
            -0.0,
            "text",
            None,
            True,
            1j,
            np.float32(2),
            (1, (2.0, "a")),
            frozenset([1, 2.0]),
        ),
        *(Holder(1), Holder(0, [1, {"a": 2}]), Holder(0, np.arange(3)), Unlike(3), jnp.sum, Part),
        *(np.dtype("float32"), fl.privacy.ZCDP(1.0), decimal.Decimal("1.0")),
    ],
)
def test_comparing_structure_runs_no_python(value):
    """JAX compares it while it looks a program up, in a table that another thread may change as
    soon as code of Python's runs.
    """
    for part in (Part(0.0, value), Static(value)):
        _, (form, aside) = jax.tree_util.tree_structure(part).node_data()
        assert not python_runs(form), form
        assert not python_runs(aside)


def test_values_with_a_custom_comparison_share_a_structure_if_equal():
    first, second = (jax.tree.structure(Part(0.0, Unlike(n))) for n in (1, 2))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.slow
def test_concurrent_lookups_of_programs_are_safe():
    """A lookup concurrent with an insertion once read freed memory and crashed the process."""
    program = """
import sys, threading
import jax, numpy as np, fljax as fl
sys.setswitchinterval(1e-6)

def study(n):
    problem = fl.problems.ridge(jax.random.key(n), clients=4, samples=5, dim=2)
    def scenario(key, size):
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.1, local_steps=size))
    return fl.sweep(scenario, grid={"size": fl.static([1, 2, 3])}, rounds=2, seeds=1)

threads = [threading.Thread(target=study, args=(n,)) for n in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""
    results = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (results.returncode, results.stdout) == (0, "done\n"), results.stderr[-2000:]
