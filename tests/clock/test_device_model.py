"""Devices: distributions, intervals, formats of other libraries, counted operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax.clock import (
    DAY,
    PROFILES,
    Between,
    Devices,
    Exponential,
    HalfNormal,
    Intervals,
    LogNormal,
    Pareto,
    seconds_per_sample,
)


@pytest.mark.parametrize(
    ("distribution", "reference"),
    [
        (Between(1.0, 3.0), stats.uniform(1, 2)),
        (Exponential(2.0), stats.expon(scale=2)),
        (LogNormal(2.0, spread=0.7), stats.lognorm(0.7, scale=2)),
        (HalfNormal(1.5), stats.halfnorm(scale=1.5)),
        (Pareto(0.5, power=1.2), stats.pareto(1.2, scale=0.5)),
    ],
)
def test_distributions_are_those_of_scipy(distribution, reference):
    shares = np.array([1e-6, 0.1, 0.5, 0.9, 1 - 1e-6])
    np.testing.assert_allclose(distribution.quantile(jnp.array(shares)), reference.ppf(shares))
    drawn = Devices(seconds_per_step=distribution).draw(jax.random.key(1), 2000).seconds_per_step
    assert stats.kstest(drawn, reference.cdf).pvalue > 0.01


def test_a_client_draws_the_same_whoever_else_does():
    devices = Devices(
        seconds_per_step=1.0, variation=LogNormal(1.0, 1.0), failure=0.5, latency_seconds=0.1
    )
    rates = devices.draw(jax.random.key(0), 10)
    work = fl.clock.Work(jnp.ones(10, jnp.int32), jnp.ones(10, jnp.int32), 0.0, 0.0)
    key = jax.random.key(7)
    everyone = devices.times(key, jnp.int32(1), rates, work, jnp.arange(10, dtype=jnp.int32))
    some = devices.times(key, jnp.int32(1), rates, work, jnp.array([7, 2], jnp.int32))
    for all_of, two in zip(everyone, some, strict=True):
        np.testing.assert_array_equal(all_of[jnp.array([7, 2])], two)
    assert 0 < np.isfinite(everyone.fails_at).sum() < 10
    assert (everyone.fails_at[np.isfinite(everyone.fails_at)] < everyone.planned.max()).all()


def test_intervals_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    ends = np.sort(rng.uniform(0, 100, (6, 3, 2)).reshape(6, 6)).reshape(6, 3, 2)
    ends[0, 0, 0], ends[0, 2, 1] = 0.0, 100.0  # over the end of the period
    ends[1, 2] = np.nan
    intervals = Intervals(ends[..., 0], ends[..., 1], period=100.0)
    clients = jnp.arange(6, dtype=jnp.int32)
    for time in rng.uniform(0, 300, 60):
        now = intervals.at(jnp.array(time), clients)
        for client in range(6):
            pairs = [(s + n * 100, e + n * 100) for n in range(5) for s, e in ends[client]]
            joined = []
            for start, end in sorted(pair for pair in pairs if not np.isnan(pair[0])):
                if joined and start == joined[-1][1]:
                    joined[-1][1] = end
                else:
                    joined.append([start, end])
            inside = [pair for pair in joined if pair[0] <= time < pair[1]]
            assert bool(now.on[client]) == bool(inside)
            coming = inside or [pair for pair in joined if pair[0] > time]
            wait = 0 if inside else coming[0][0] - time
            np.testing.assert_allclose(now.wait[client], wait, atol=1e-9)
            left = coming[0][1] - (time if inside else coming[0][0])
            np.testing.assert_allclose(now.left[client], left, atol=1e-9)


def test_capacities_in_the_format_of_fedscale():
    """Three times the inference of each sample in each step, and all bits at one bandwidth."""
    devices = Devices.from_fedscale(
        [
            {"computation": 20.0, "communication": 5000.0},
            {"computation": 50.0, "communication": 1000.0},
        ]
    )
    rates = devices.draw(jax.random.key(0), 2)
    samples = jnp.array([320, 320], jnp.int32)
    work = fl.clock.Work(jnp.array([10, 10], jnp.int32), samples, 8e6, 8e6)
    times = devices.times(
        jax.random.key(0), jnp.int32(1), rates, work, jnp.arange(2, dtype=jnp.int32)
    )
    np.testing.assert_allclose(times.compute, [3 * 320 * 0.02, 3 * 320 * 0.05])
    np.testing.assert_allclose(times.download + times.upload, [16e6 / 5e6, 16e6 / 1e6])
    with pytest.raises(ValueError, match="client 1 has no 'communication'"):
        Devices.from_fedscale([{"computation": 1, "communication": 1}, {"computation": 1}])


def test_availability_in_the_format_of_fedscale():
    trace = {"active": [10, 50], "inactive": [20, 90], "finish_time": 100, "duration": 50}
    intervals = Intervals.from_fedscale([trace, trace | {"active": [0], "inactive": [5]}])
    now = intervals.at(jnp.array(160.0), jnp.arange(2, dtype=jnp.int32))
    assert now.on.tolist() == [True, False]
    assert now.wait.tolist() == [0, 40]
    with pytest.raises(ValueError, match="client 0 has no 'inactive'"):
        Intervals.from_fedscale([{"active": [1], "finish_time": 2}])
    with pytest.raises(ValueError, match="traces must have one length"):
        Intervals.from_fedscale([trace, trace | {"finish_time": 200}])


def test_operations_of_a_gradient_are_counted():
    problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=40, dim=50)
    counted = seconds_per_sample(problem, 1.0)
    assert 4 * 50 * 0.9 < counted < 4 * 50 * 1.5
    slow = seconds_per_sample(problem, "raspberry-pi-4", utilization=0.5)
    np.testing.assert_allclose(slow, counted / PROFILES["raspberry-pi-4"].flops_per_second / 0.5)
    with pytest.raises(ValueError, match="unknown device"):
        seconds_per_sample(problem, "raspberry")


def test_phones_take_what_was_measured():
    """The operations of the network layer by layer, and the seconds of FLASH."""
    forward = 2 * (
        28 * 28 * 25 * 32 + 14 * 14 * 25 * 32 * 64 + 7 * 7 * 64 * 2048 + 2048 * 62
    )  # additions and multiplications
    for name, seconds in {"slow": 1.642, "medium": 0.588, "fast": 0.179}.items():
        profile = PROFILES[f"phone-{name}"]
        np.testing.assert_allclose(10 * 3 * forward / profile.flops_per_second, seconds)
        assert f"{seconds:g} s" in profile.source
    assert all(profile.source and profile.flops_per_second > 0 for profile in PROFILES.values())


def test_a_day_has_its_seconds():
    assert DAY == 24 * 60 * 60


@pytest.mark.parametrize("name", ["seconds_per_step", "latency_seconds", "watts"])
def test_only_a_bandwidth_may_be_unlimited(name):
    with pytest.raises(TypeError, match=f"{name} must be"):
        Devices(**{"seconds_per_sample": 1.0, name: None})
    assert Devices(seconds_per_step=1.0, upload_bits_per_second=None) is not None
