"""What a study calls on the host is part of what it is."""

import dataclasses
import functools
import operator
import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._hosted import UnknownError, fingerprint

ROOT = Path(__file__).parents[1]

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
    """With parameters, and what was fitted."""

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
def test_what_a_function_rests_on_is_part_of_it(make):
    assert fingerprint(make(1)) == fingerprint(make(1))
    assert fingerprint(make(1)) != fingerprint(make(2))


def test_equal_is_not_alike():
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


def test_what_calls_itself_ends():
    def one(x):
        return x if x < 1 else other(x - 1)

    def other(x):
        return one(x)

    assert fingerprint(one) == fingerprint(one)


@pytest.mark.parametrize(
    "held",
    [threading.Lock(), (i for i in range(3)), sys.stdout],
    ids=["lock", "generator", "file"],  # the same in every worker of the tests
)
def test_what_has_no_state_to_compare_says_so(held):
    with pytest.raises(UnknownError, match="rests on a"):
        fingerprint(scaled(held))


@pytest.mark.slow
def test_it_is_the_same_in_every_process():
    code = (
        "import sys; sys.path.insert(0, 'tests'); import test_hosted as t; "
        "print([t.fingerprint(make(1)) for make in t.HOLDERS.values()],"
        "t.fingerprint(lambda x: x in {'a', 'b', 'c'}))"
    )
    results = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert results[0] == results[1]


@pytest.mark.slow
def test_a_store_knows_a_study_by_what_it_calls_on_the_host(tmp_path):
    first = study(scaled(1.0), tmp_path).measured
    more = study(scaled(1.0), tmp_path, seeds=2).measured
    np.testing.assert_array_equal(first.values[0], more.values[0])
    with pytest.raises(ValueError, match="another study"):
        study(scaled(2.0), tmp_path, seeds=3)


@pytest.mark.slow
def test_a_study_whose_host_code_cannot_be_known_gets_no_store(tmp_path):
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
