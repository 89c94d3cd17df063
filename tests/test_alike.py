"""Structure that is equal and not alike, and options that changed, have programs of their own."""

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
from fljax._devices import configured
from fljax._module import Alike, Static
from fljax.study import engine

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

    def __eq__(self, other):
        return isinstance(other, Unlike)

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
def test_equal_is_not_alike(pair, within):
    one, other = map(within, pair)
    assert Alike(one) != Alike(other)
    assert Static(one) != Static(other)
    assert jax.tree.structure(Static(one)) != jax.tree.structure(Static(other))
    assert jax.tree.structure(Part(0.0, one)) != jax.tree.structure(Part(0.0, other))


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
        lambda: Alike.__hash__,
    ],
)
def test_what_is_made_again_is_alike(make):
    assert Alike(make()) == Alike(make())
    assert hash(Alike(make())) == hash(Alike(make()))
    assert jax.tree.structure(Part(0.0, make())) == jax.tree.structure(Part(1.0, make()))


def test_equality_of_the_authors_own_counts():
    assert Alike(Unlike(1)) == Alike(Unlike(2))
    assert Alike(Unlike(1)) != 1


@pytest.mark.parametrize("value", [[1], {"a": 1}, np.zeros(2), Holder([1])], ids=str)
def test_what_cannot_be_hashed_is_no_structure(value):
    with pytest.raises(TypeError, match="unhashable"):
        hash(Alike(value))


def kind(key, n):
    """Whole or true division."""
    del key
    n = n.value if isinstance(n, Holder) else n[0] if isinstance(n, tuple) else n
    value = float(7 // n) if isinstance(n, int) else 7 / n
    return build(lambda: jnp.asarray(value))


@pytest.mark.slow
@pytest.mark.parametrize("within", [lambda v: v, lambda v: (v, 1), Holder])
def test_equal_values_of_a_grid_are_programs_of_their_own(within):
    one, other = (fl.static([within(v)])[0] for v in (2, 2.0))
    assert sweep(kind, grid={"n": {"a": one, "b": other}}) == [3, 3.5]
    assert sweep(kind, grid={"n": {"a": one}}) == [3]
    assert sweep(kind, grid={"n": {"a": other}}) == [3.5]


def test_equal_fields_of_a_module_are_programs_of_their_own():
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
        self.value, self.built = value, 0

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def scenario(self, key):
        del key
        self.built += 1
        return build(lambda: jnp.asarray(self.value))


@pytest.mark.slow
def test_equal_scenarios_are_not_one():
    assert sweep(Scenario(0.1, np.ones(3))) == [3]
    assert sweep(Scenario(0.1, np.zeros(3))) == [0]
    one, other = Study(1.0), Study(2.0)
    assert sweep(one.scenario) == [1]
    assert sweep(other.scenario) == [2]
    built = one.built
    assert sweep(one.scenario) == [1]  # a method looked up again is the same
    assert one.built == built
    assert engine.Same(one.scenario) != engine.Same(kind)


def test_a_nan_is_not_traced_anew():
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
@pytest.mark.parametrize("own", [False, True], ids=["global", "of a thread"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_changed_are_another_program(option, own):
    context, values = OPTIONS[option]

    def draws():
        def drawn(key):
            del key
            return build(lambda: jnp.mean(jax.random.uniform(jax.random.key(3), (3,))))

        return drawn

    def told(value, scenario):
        with context(value) if own else configured(option, value):
            return sweep(scenario)

    alone = [told(value, draws()) for value in values]
    assert alone[0] != alone[1]
    same = draws()
    assert [told(value, same) for value in values] == alone


def test_strict_promotion_is_met_after_a_study_without_it():
    def mixed(key):
        del key
        return build(lambda: jnp.int32(3) * jnp.float16(1))

    with jax.numpy_dtype_promotion("standard"):
        sweep(mixed)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="promotion"):
        sweep(mixed)


def python_runs(form):
    """Whether comparing what a form is made of runs a method of Python's."""
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


def test_what_its_author_compares_is_one_structure_where_it_is_equal():
    one, other = (jax.tree.structure(Part(0.0, Unlike(n))) for n in (1, 2))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.slow
def test_programs_are_looked_up_by_threads_at_once():
    """Before, a lookup beside an insertion read what was gone, and the process ended."""
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
