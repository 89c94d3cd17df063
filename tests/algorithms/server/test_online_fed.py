"""Online-Fed: its step against federated learning's, fixed delays, the bound of its step."""

import dataclasses
import re
import warnings

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ConventionalFL, OnlineFed, PAOFed
from fljax.link import Circular, DelayTrace, Fixed
from fljax.optimization.schedules import PowerDecay
from fljax.participation.patterns import Always
from fljax.participation.selectors import Drawn, Everyone, Subset
from fljax.problems import LeastSquares
from fljax.problems.streams import Replay
from tests.support.online_world import EVERY, FIXED, MU, agree, models, short_run, some_data, world

close = np.testing.assert_allclose


@pytest.mark.slow
def test_undelayed_full_models_of_all_are_online_fedsgd():
    """Without delays and absences: one sequence of means, under a decreasing step."""
    stream = world().stream
    step = PowerDecay(0.9, 0.3)
    data = some_data()
    stream = dataclasses.replace(stream, arrivals=Always())
    expected = [np.zeros(9)]
    for n in range(1, 49):
        samples = [(x[n - 1], y[n - 1]) for x, y in data if len(y) >= n]
        w = expected[-1]
        mu = 0.9 * n**-0.3
        expected.append(np.mean([w + mu * (y - w @ z) * z for z, y in samples], axis=0))
    for algorithm in (OnlineFed(step), PAOFed(step, Circular(9)), ConventionalFL(halved(step))):
        agree(models(fl.Simulation(stream, algorithm)), expected[1:])


def halved(step):
    return dataclasses.replace(step, initial=float(step.initial) / 2)


@pytest.mark.slow
def test_half_the_step_of_federated_learning_is_that_of_online_fed():
    """The gradient of the squared error is twice the direction of least mean squares."""
    agree(models(world().simulate(ConventionalFL(MU / 2))), models(world().simulate(OnlineFed(MU))))


@pytest.mark.slow
def test_a_fixed_delay_shifts():
    """Until the first messages arrive everyone starts from zero."""
    case = world()
    algorithm = EVERY["Online-Fed"]
    late = models(case.simulate(algorithm, delays=Fixed(3)))
    assert not late[:3].any()
    agree(late[3], models(case.simulate(algorithm, delays=None))[0])
    agree(
        late,
        models(case.simulate(algorithm, delays=DelayTrace(np.full((48, 40), 3), case.longest))),
    )
    weighed = PAOFed(MU, discount=0.5)  # 1/8 of each deviation
    weights = np.full(11, 0.125)
    agree(
        models(case.simulate(weighed, delays=Fixed(3))),
        models(
            case.simulate(PAOFed(MU, discount=weights), delays=DelayTrace(np.full((48, 40), 3), 10))
        ),
    )


@pytest.mark.slow
def test_a_step_above_the_bound_of_the_theory_is_named():
    """A step below the bound is not: the bound is 1 / 2 on features of second moment 2 I."""
    rng = np.random.default_rng(0)
    axes = np.tile(np.sqrt(2 * 4) * np.eye(4), (5, 10, 1))
    data = fl.problems.Problem(axes, rng.normal(size=axes.shape[:2]), LeastSquares(), strength=0.0)
    stream = Replay(data, test=data.pooled())
    for step, warns in ((0.55, True), (0.45, False)):
        simulation = fl.Simulation(stream, OnlineFed(step), metrics=["test_error"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = fl.run(simulation, 2)
        close(results.step_bound, 0.5, rtol=6e-3)
        close(results.first_step, step)
        messages = [str(w.message) for w in caught if w.category is fl.AssumptionWarning]
        assert len(messages) == warns
        if warns:
            assert re.search(
                r"a step size up to 0.55, above the bound 0.497 of .*\(4.31\)", messages[0]
            )


def runs_and_warns(stream, algorithm, **parts):
    """The last error of a run over all samples, and whether it warned of the step."""
    simulation = fl.Simulation(stream, algorithm, metrics=["test_error"], **parts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = fl.run(simulation, stream.data.samples).test_error.values[-1]
    return error, any("above the bound" in str(w.message) for w in caught)


@pytest.mark.parametrize(
    ("clients", "changes", "selector", "steps"),
    [
        (1, {}, Everyone(), (0.14, 0.2)),  # 1 / 6 for Gaussian features, 1 / max eigenvalue is 1
        (12, {}, Drawn(4), (0.4, 0.7)),
        (12, {}, Everyone(), (0.85, 1.5)),  # many are averaged: the eigenvalue decides
        (1, {"intercept": True}, Everyone(), (0.07, 0.16)),  # the mean feature leaves out the worst
    ],
    ids=["one", "some", "all", "standardized"],
)
def test_steps_are_warned_of_where_the_mean_square_grows(clients, changes, selector, steps):
    rng = np.random.default_rng(1)
    features = rng.normal(size=(clients, 2000, 10))
    if changes:  # standardized, and correlated: the mean is the intercept
        features = features + 3 * rng.normal(size=(clients, 2000, 1))
        features /= features.std(1, keepdims=True)
        features -= features.mean(1, keepdims=True)
        features[..., -1] = 1
    targets = rng.normal(size=features.shape[:2])
    data = fl.problems.Problem(features, targets, LeastSquares(), strength=0.0)
    stream = Replay(data, test=data.pooled())
    small, large = (runs_and_warns(stream, OnlineFed(step, selector)) for step in steps)
    assert small[0] < 10
    assert not small[1]
    assert not large[0] < 1e6
    assert large[1]


def test_a_round_that_may_average_fewer_has_a_smaller_bound():
    rng = np.random.default_rng(1)
    data = fl.problems.Problem(
        rng.normal(size=(12, 40, 10)), rng.normal(size=(12, 40)), LeastSquares(), strength=0.0
    )
    stream = Replay(data, test=data.pooled())
    assert not runs_and_warns(stream, OnlineFed(0.5))[1]
    absent = fl.participation.Bernoulli(0.1)
    assert runs_and_warns(stream, OnlineFed(0.5), participation=absent)[1]
    assert runs_and_warns(dataclasses.replace(stream, arrivals=absent), OnlineFed(0.5))[1]
    assert runs_and_warns(stream, PAOFed(0.5))[1]


def test_shares_of_a_grid_average_nothing_for_certain():
    rng = np.random.default_rng(1)
    data = fl.problems.Problem(
        rng.normal(size=(12, 9, 10)), rng.normal(size=(12, 9)), LeastSquares(), strength=0.0
    )
    stream = Replay(data, test=data.pooled())

    def scenario(key, share):
        selector = fl.participation.Fraction(share)
        return fl.Simulation(stream, OnlineFed(0.01, selector), metrics=["test_error"])

    results = fl.sweep(scenario, grid={"share": [0.5, 1.0]}, seeds=1, rounds=3, progress=False)
    close(results.step_bound, float(stream.moments().step_bound()), rtol=1e-9)


@pytest.mark.parametrize("features", [np.zeros((1, 9, 3)), np.full((1, 9, 3), 1e-30)])
def test_features_of_zero_limit_no_step(features):
    data = fl.problems.Problem(features, np.ones((1, 9)), LeastSquares(), strength=0.0)
    assert not runs_and_warns(Replay(data, test=data.pooled()), OnlineFed(1.0))[1]


def test_another_loss_has_no_bound_of_least_mean_squares():
    features = np.random.default_rng(0).normal(size=(1, 9, 3))
    data = fl.problems.Problem(features, np.ones((1, 9)), fl.problems.Logistic(), strength=0.0)
    stream = Replay(data, test=data.pooled())
    assert stream.moments() is None
    assert not runs_and_warns(stream, OnlineFed(5.0))[1]


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: OnlineFed(-MU), "step size must be finite and > 0, got -0.5"),
        (ValueError, lambda: OnlineFed(MU, aggregation="mean"), "unknown aggregation 'mean'"),
        (
            ValueError,
            lambda: short_run(OnlineFed(MU, Subset(6))),
            "count must be at most the 5 clients.*got 6",
        ),
        (ValueError, lambda: short_run(OnlineFed(MU), FIXED), "Online-Fed learns from a stream"),
        (TypeError, lambda: OnlineFed(MU, 0.5), "selector must be .*Selector, got 0.5"),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
