"""Step sizes by round: formulas, schedules of optax, plain functions, refused arguments."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.optimization.schedules import (
    Constant,
    GeometricDecay,
    PowerDecay,
    as_schedule,
    from_optax,
)
from tests.cases import make_problem

ROUNDS = np.arange(1, 31, dtype=np.int32)


def values(schedule):
    return np.asarray(jax.vmap(schedule)(ROUNDS))


def test_the_formulas_of_the_literature():
    np.testing.assert_allclose([Constant(0.3)(n) for n in ROUNDS], 0.3)
    np.testing.assert_allclose(values(PowerDecay(0.5)), 0.5 / np.sqrt(ROUNDS), rtol=1e-14)
    np.testing.assert_allclose(values(PowerDecay(0.5, 1.0)), 0.5 / ROUNDS, rtol=1e-14)
    np.testing.assert_allclose(values(GeometricDecay(0.4, 0.98)), 0.4 * 0.98**ROUNDS, rtol=1e-14)


@pytest.mark.parametrize(
    "schedule",
    [
        fl.schedules.Constant(0.5),
        fl.schedules.PowerDecay(0.5),
        fl.schedules.GeometricDecay(0.5, 0.9),
        fl.schedules.Warmup(0.1, 0.5, rounds=6.0),
        fl.schedules.from_optax(
            optax.exponential_decay, init_value=0.5, transition_steps=10, decay_rate=0.9
        ),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_a_round_may_be_a_number_of_python_or_numpy(schedule):
    expected = float(schedule(jnp.asarray(4)))
    assert float(schedule(4)) == float(schedule(np.int64(4))) == expected


def test_a_warmup_is_a_line_and_then_constant():
    rising = values(fl.schedules.Warmup(0.1, 0.6, 12.5))
    np.testing.assert_allclose(rising[:13], 0.1 + 0.04 * np.arange(13), rtol=1e-14)
    np.testing.assert_allclose(rising[13:], 0.6, rtol=1e-14)
    np.testing.assert_allclose(values(fl.schedules.Warmup(0.6, 0.1, 1.0))[1:], 0.1, rtol=1e-14)
    with pytest.raises(ValueError, match="rounds must be finite and > 0, got 0"):
        fl.schedules.Warmup(0.1, 0.2, 0.0)
    with pytest.raises(ValueError, match="initial step size must be finite and > 0, got 0"):
        fl.schedules.Warmup(0.0, 0.2, 3.0)


@pytest.mark.core
@pytest.mark.parametrize(
    ("make", "numbers", "swept"),
    [
        (optax.constant_schedule, {"value": 0.3}, 1),
        (optax.cosine_decay_schedule, {"init_value": 0.3, "decay_steps": 20, "alpha": 0.1}, 2),
        # What optax looks at while it builds the schedule is structure: here the rate, the peak.
        (
            optax.exponential_decay,
            {"init_value": 0.3, "transition_steps": 7, "decay_rate": 0.5, "staircase": True},
            1,
        ),
        (
            optax.warmup_cosine_decay_schedule,
            {"init_value": 0.0, "peak_value": 0.3, "warmup_steps": 5, "decay_steps": 25},
            1,
        ),
    ],
)
def test_a_schedule_of_optax_starts_in_round_one_and_keeps_its_numbers_free(make, numbers, swept):
    ours = from_optax(make, **numbers)
    np.testing.assert_allclose(values(ours), [make(**numbers)(n - 1.0) for n in ROUNDS], rtol=1e-6)
    assert len(jax.tree.leaves(ours)) == swept
    assert as_schedule(ours) is ours


@pytest.mark.slow
def test_numbers_of_optax_are_swept_in_one_program():
    @chex.assert_max_traces(n=1)
    def first(schedule, number):
        return schedule(number)

    run = jax.jit(first)
    make = functools.partial(from_optax, optax.polynomial_schedule, power=1, transition_steps=10)
    for start in (0.1, 0.2):
        results = run(make(init_value=start, end_value=0.0), jnp.int32(6))
        np.testing.assert_allclose(results, start / 2, rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda value: lambda n: value,
        lambda value: lambda n: value * n.astype(float),
        optax.constant_schedule,
        lambda value: from_optax(optax.constant_schedule, value=value),
        lambda value: fl.optimizers.from_optax(optax.sgd, learning_rate=lambda n: value),
    ],
)
@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf])
def test_a_run_may_not_begin_with_an_uphill_step(make, value):
    with pytest.raises(ValueError, match=r"finite and >= 0, got|uphill|goes up|finite numbers"):
        fl.algorithms.FedAvg(make(value))


@pytest.mark.slow
def test_no_step_of_a_run_is_one_uphill():
    """Neither is one with a swept number."""

    def scenario(key, start=0.1, length=20):
        return fl.Simulation(
            make_problem(),
            fl.algorithms.FedAvg(
                from_optax(
                    optax.linear_schedule,
                    init_value=start,
                    end_value=start - 0.2,
                    transition_steps=length,
                )
            ),
        )

    fl.run(scenario(None), 10)
    with pytest.raises(ValueError, match=r"step_size in all of 12 rounds must be .* got -0.01"):
        fl.run(scenario(None), 12)
    with pytest.raises(ValueError, match=r"step_size in all of 12 rounds must be"):
        fl.sweep(scenario, grid={"start": [0.3, 0.1]}, rounds=12)
    falling = fl.algorithms.FedAvg(lambda n: 0.1 - 0.03 * n.astype(float))
    with pytest.raises(ValueError, match=r"step_size in all of 4 rounds must be .* got -0.02"):
        fl.run(fl.Simulation(make_problem(), falling), 4)


@pytest.mark.slow
def test_a_warm_up_may_begin_at_zero():
    rising = from_optax(optax.linear_schedule, init_value=0.0, end_value=0.1, transition_steps=5)
    fl.run(fl.Simulation(make_problem(), fl.algorithms.FedAvg(rising)), 3)


@pytest.mark.slow
def test_values_read_by_optax_are_swept_as_structure():
    def scenario(key, rate):
        schedule = from_optax(
            optax.exponential_decay, init_value=0.1, transition_steps=5, decay_rate=rate
        )
        return fl.Simulation(make_problem(), fl.algorithms.FedAvg(schedule))

    with pytest.raises(ValueError, match=r"optax reads decay_rate.*fl.static"):
        fl.sweep(scenario, rounds=2, seeds=1, grid={"rate": [0.5, 0.9]})
    study = fl.sweep(scenario, rounds=2, seeds=1, grid={"rate": fl.static([0.5, 0.9])})
    assert study.attrs["compilations"] == 2


@pytest.mark.slow
def test_a_plain_function_of_the_round_is_a_schedule():
    def models(step):
        run = fl.run(
            fl.Simulation(make_problem(), fl.algorithms.FedAvg(step), metrics=["objective"]), 9
        )
        return run.objective.values

    np.testing.assert_allclose(
        models(lambda n: 0.1 / jnp.sqrt(n.astype(float))), models(PowerDecay(0.1)), rtol=1e-12
    )
    joined = optax.join_schedules([lambda _: 0.1, lambda _: 0.05], [4])
    assert np.isfinite(models(joined)).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: from_optax(optax.cosine_decay_schedule, start=0.1), TypeError, "start"),
        (
            lambda: from_optax(optax.cosine_decay_schedule(0.1, 9)),
            TypeError,
            "takes the function that makes a schedule",
        ),
        (
            lambda: from_optax(optax.cosine_decay_schedule, init_value=0.1, decay_steps=0),
            ValueError,
            "positive decay_steps",
        ),
        (
            lambda: from_optax(
                optax.piecewise_constant_schedule,
                init_value=0.1,
                boundaries_and_scales={3: 0.5},
            ),
            TypeError,
            "arguments of piecewise_constant_schedule must be numbers",
        ),
        (lambda: PowerDecay(0.1, 1.5), ValueError, "power"),
        (lambda: Constant(0.0), ValueError, "step size"),
    ],
)
def test_schedules_that_cannot_be_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "schedule",
    [
        optax.linear_schedule(0.4, 0.0, 4),
        optax.cosine_decay_schedule(0.4, 4),
        optax.join_schedules([optax.constant_schedule(0.4), optax.constant_schedule(0.1)], [2]),
    ],
    ids=["linear", "cosine", "joined"],
)
def test_a_built_schedule_of_optax_starts_in_round_one_too(schedule):
    wrapped = as_schedule(schedule)
    values = [float(wrapped(jnp.asarray(n, jnp.int32))) for n in (1, 2, 3)]
    np.testing.assert_allclose(values, [float(schedule(n)) for n in (0, 1, 2)], rtol=1e-6)
    custom = as_schedule(lambda n: 0.1 * n.astype(float))
    np.testing.assert_allclose(custom(jnp.asarray(3, jnp.int32)), 0.3)
