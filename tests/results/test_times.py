"""Results at times, against loops over the records of each run, and refusals."""

import jax
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax import statistics
from fljax.clock import Devices, LogNormal, Synchronous

SEEDS = 5
ROUNDS = 8


def last_value(values, seconds, time):
    """The value of the last record of one run at or before a time."""
    value = np.nan
    for at, recorded in zip(seconds, values, strict=True):
        if at <= time:
            value = recorded
    return value


@pytest.fixture
def results():
    """[method, seed, round]: two records at the same time, and a run that diverged at first."""
    rng = np.random.default_rng(1)
    seconds = 0.5 + rng.uniform(size=(2, SEEDS, ROUNDS)).cumsum(-1)
    seconds[0, 1, 4] = seconds[0, 1, 3]
    seconds[1, 2] = 1e6 * (1 + np.arange(ROUNDS))
    lost = np.zeros((2, SEEDS), int)
    lost[1, 2] = 1
    axes = ("algorithm", "seed", "round")
    return xr.Dataset(
        {
            "error": (axes, rng.gamma(2.0, size=seconds.shape), {"decibel": 1}),
            "seconds": (axes, seconds, {"long_name": "time", "units": "s"}),
            "gradients": (("algorithm", "round"), np.tile(np.arange(ROUNDS) + 1, (2, 1))),
            "diverged": (axes[:2], lost),
        },
        {"algorithm": ["one", "two"], "seed": range(SEEDS), "round": range(1, ROUNDS + 1)},
    )


def test_results_at_a_time_are_those_of_the_last_records(results):
    ends = results.seconds.isel(round=-1).where(results.diverged == 0)
    time = float(ends.min())  # a record of one run is exactly then
    read = statistics.at_seconds(results, time)
    for method, seed in np.ndindex(2, SEEDS):
        if not results.diverged[method, seed]:
            run = results.isel(algorithm=method, seed=seed)
            value = last_value(run.error.values, run.seconds.values, time)
            assert read.error[method, seed] == value
            count = last_value(run.gradients.values, run.seconds.values, time)
            assert read.gradients[method, seed] == count
    assert read.seconds == time
    assert read.seconds.attrs == results.seconds.attrs
    assert not {"round"} & {*read.dims, *read.coords}
    same_time = results.isel(algorithm=0, seed=1)
    read = statistics.at_seconds(same_time, float(same_time.seconds[3]))
    assert read.error == same_time.error[4]


def test_tables_and_intervals_are_at_a_time(results):
    read = statistics.at_seconds(results, 2.0)
    assert "seconds 2" in fl.table(read, "error").note
    values = read.error.sel(algorithm="one").values
    np.testing.assert_allclose(
        statistics.summary(read, "error")["mean"].sel(algorithm="one"), values.mean()
    )
    assert statistics.paired_differences(read, "error", baseline="one").sizes == {"algorithm": 1}


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (0.1, r"algorithm=\w+, seed=\d has no record yet, its first is at .* later time"),
        (1e3, r"algorithm=\w+, seed=\d is over, it ends at .* more rounds"),
        (-1.0, "seconds must be finite and >= 0"),
    ],
)
def test_times_without_a_value_are_refused(results, seconds, message):
    with pytest.raises(ValueError, match=message):
        statistics.at_seconds(results, seconds)
    one = results.isel(algorithm=0, seed=0)
    with pytest.raises(ValueError, match="at 1000 s the run is over"):
        statistics.at_seconds(one.drop_vars(("algorithm", "seed")), 1e3)


def test_the_run_that_ends_first_is_named(results):
    last = results.seconds.isel(round=-1).where(results.diverged == 0)
    method, seed = np.unravel_index(np.nanargmin(last), last.shape)
    name = f"algorithm={results.algorithm.values[method]}, seed={seed} is over"
    with pytest.raises(ValueError, match=name):
        statistics.at_seconds(results, float(last.min()) + 1e-6)


def test_a_cost_in_seconds_is_the_time_of_the_first_record_at_the_target(results):
    cost = statistics.until(results, "error", 0.6, "seconds")
    reached = 0
    for method, seed in np.ndindex(2, SEEDS):
        run = results.isel(algorithm=method, seed=seed)
        expected = np.inf
        for value, at in zip(run.error.values, run.seconds.values, strict=True):
            if value <= 0.6 and not run.diverged:
                expected = at
                break
        assert cost[method, seed] == expected
        reached += np.isfinite(expected)
    assert 0 < reached < 2 * SEEDS  # some are censored
    assert cost.attrs["long_name"] == "seconds until error is 0.6"
    priced = statistics.until(results, "error", 0.6, {"seconds": 2.0, "gradients": 0.0})
    np.testing.assert_array_equal(priced, 2 * cost)


@pytest.mark.parametrize("of", ["seconds", {"seconds": 1.0, "round": 2.0}])
def test_seconds_of_runs_without_a_clock_are_refused(results, of):
    unclocked = results.drop_vars("seconds")
    for call in (
        lambda: statistics.until(unclocked, "error", 0.5, of),
        lambda: statistics.at_seconds(unclocked, 1.0),
    ):
        with pytest.raises(ValueError, match=r"no clock; give one, Simulation\(clock="):
            call()
    each = results.assign(seconds=results.seconds.diff("round").reindex(round=results["round"]))
    with pytest.raises(ValueError, match="seconds must not decrease"):
        statistics.until(each, "error", 0.5, of)


def test_results_of_a_clock_are_read_at_a_time(key):
    devices = Devices(
        seconds_per_step=LogNormal(0.1, spread=1.0), variation=LogNormal(1.0, spread=0.5)
    )
    simulation = fl.Simulation(
        problem=fl.problems.ridge(key, clients=3, samples=10, dim=2),
        algorithm=fl.algorithms.FedAvg(0.1, local_steps=2),
        clock=Synchronous(devices),
        metrics=["normalized_error"],
    )
    run = fl.run(simulation, rounds=6)
    time = float(run.seconds[:4].mean())
    read = statistics.at_seconds(run, time)
    value = last_value(run.normalized_error.values, run.seconds.values, time)
    assert read.normalized_error == value
    assert jax.numpy.ndim(read.normalized_error) == 0
