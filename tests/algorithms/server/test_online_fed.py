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
from fljax.participation.selectors import Subset
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
        close(results.step_bound, 0.5, rtol=1e-6)
        close(results.first_step, step)
        messages = [str(w.message) for w in caught if w.category is fl.AssumptionWarning]
        assert len(messages) == warns
        if warns:
            assert re.search(
                r"a step size up to 0.55, above the bound 0.5, .*\(4.31\)", messages[0]
            )


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
