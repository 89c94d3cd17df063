"""Drifting data against their formula; the Page-Hinkley test against a loop; its detections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax import monitoring
from fljax.algorithms import OnlineFed, ZCDPGradNFL
from fljax.participation.patterns import Bernoulli
from fljax.problems import Logistic, from_clients
from fljax.problems.streams import Autoregressive, Drifting, Linear, Replay

close = np.testing.assert_allclose

CLIENTS = 4
DIM = 3
ROUNDS = 60
TRUTH = np.array([1.0, -2.0, 0.5])


def linear(noise=0.1, **settings):
    return Linear(np.stack([np.eye(DIM)] * CLIENTS), TRUTH, np.full(CLIENTS, noise), **settings)


def held_out(seed=0, clients=CLIENTS, samples=50, noise=0.1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients, samples, DIM))
    y = x @ TRUTH + np.sqrt(noise) * rng.normal(size=(clients, samples))
    return fl.problems.Problem(x, y, fl.problems.LeastSquares())


def played(stream, rounds=ROUNDS, seed=0):
    """What clients meet: features ``[T, K, P]``, targets ``[T, K]``."""
    key = jax.random.key(seed)

    def move(state, n):
        state, problem = stream.observe(state, jax.random.fold_in(key, n), n)
        return state, (problem.features[:, 0], problem.targets[:, 0])

    state = stream.begin(jax.random.fold_in(key, 0))
    scan = jax.jit(lambda s: jax.lax.scan(move, s, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1])
    return [np.asarray(part) for part in scan(state)]


# Data that drift ---------------------------------------------------------------------------------

ONSET = np.array([0, 11, 1, 60])
SHIFT = np.arange(12.0).reshape(CLIENTS, DIM) / 10
CHANGE = np.array([3.0, 0.0, -1.0])


@pytest.mark.parametrize("duration", [1, 7, 200])
@pytest.mark.parametrize("which", ["features", "labels", "both"])
def test_observed_data_drift_by_the_formula(duration, which):
    features = SHIFT if which != "labels" else None
    labels = CHANGE if which != "features" else None
    stream = Drifting(linear(), ONSET, features, labels, duration)
    x, y = played(linear())
    result = played(stream)
    for n in range(1, ROUNDS + 1):
        for k, onset in enumerate(ONSET):
            share = min((n - onset + 1) / duration, 1) if 0 < onset <= n else 0.0
            moved = x[n - 1, k] + share * (SHIFT[k] if features is not None else 0)
            labels_drifted = y[n - 1, k] + share * (moved @ CHANGE if labels is not None else 0)
            close(result[0][n - 1, k], moved, atol=1e-12)
            close(result[1][n - 1, k], labels_drifted, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, CLIENTS])
@pytest.mark.parametrize("every", [1, 5])
def test_held_out_data_drift_along(clients, every):
    """What models are judged by in a round is of that round, of each client or of all."""
    test = held_out(clients=clients)
    stream = Drifting(linear(test=test), [0, 11, 31, 31], SHIFT, CHANGE, duration=10)
    simulation = fl.Simulation(
        stream, OnlineFed(0.05), metrics=["validation_error", fl.metrics.trajectory(), "test_error"]
    )
    results = fl.run(simulation, rounds=ROUNDS, record_every=every)
    for row, n in enumerate(results["round"].values):
        models = results.model_trajectory.values[row]
        expected = []
        for k, onset in enumerate([0, 11, 31, 31]):
            share = min((n - onset + 1) / 10, 1) if 0 < onset <= n else 0.0
            x = np.asarray(test.features)[k % clients] + share * SHIFT[k]
            y = np.asarray(test.targets)[k % clients] + share * x @ CHANGE
            expected.append(np.mean((x @ models[k] - y) ** 2))
        close(results.validation_error[row], expected, rtol=1e-9)
        close(results.test_error[row], np.mean(expected), rtol=1e-9)


@pytest.mark.slow
def test_a_feature_map_is_applied_to_drifted_data():
    feature_map = fl.data.random_fourier(fl.random_key(0), 4, 6)
    weights = np.ones(CLIENTS)
    test = fl.problems.Problem(
        np.ones((1, 3, 4)), np.zeros((1, 3)), fl.problems.LeastSquares(), feature_map=feature_map
    )
    base = Autoregressive(
        0.5 * weights, 0 * weights, weights, 0.1 * weights, feature_map, test=test
    )
    stream = Drifting(base, 5, np.full(4, 2.0))
    metrics = ["validation_error", fl.metrics.trajectory()]
    results = fl.run(fl.Simulation(stream, OnlineFed(0.5), metrics=metrics), rounds=8)
    for n in (4, 5):
        values = np.asarray(feature_map(np.full((3, 4), 1.0 if n < 5 else 3.0)))
        models = results.model_trajectory.values[n - 1]
        close(results.validation_error[n - 1], ((values @ models.T) ** 2).mean(axis=0), rtol=1e-9)


@pytest.mark.slow
def test_arrivals_and_starts_come_from_the_stream():
    base = linear(arrivals=Bernoulli(0.3)).starting_at(TRUTH)
    stream = Drifting(base, 0, SHIFT)
    assert stream.initial is base.initial
    algorithm = ZCDPGradNFL(0.1)
    plain, drifting = (
        fl.run(fl.Simulation(s, algorithm, fl.graphs.ring(CLIENTS)), rounds=20)
        for s in (base, stream)
    )
    close(plain.model, drifting.model, atol=1e-12)  # nothing drifts
    assert (plain.messages == drifting.messages).all()
    again = Drifting(linear(), 3, SHIFT).starting_at(TRUTH)
    close(again.initial, TRUTH)


def test_replayed_data_drift_by_the_round_and_not_by_the_sample():
    data = held_out(samples=20)
    rows = np.where(np.arange(40) % 2 == 0, np.arange(40) // 2, -1) * np.ones((CLIENTS, 1), int)
    x, y = played(Drifting(Replay(data, rows=rows), 21, labels=CHANGE), 40)
    real = np.asarray(data.targets)
    close(y[10], real[:, 5], atol=1e-12)
    close(y[20], real[:, 10] + x[20] @ CHANGE, atol=1e-12)


@pytest.mark.slow
def test_onsets_and_durations_are_swept_as_numbers():
    def scenario(key, onset, duration):
        stream = Drifting(linear(test=held_out()), onset, labels=CHANGE, duration=duration)
        return fl.Simulation(stream, OnlineFed(0.05), metrics=["test_error"])

    grid = {"onset": [0, 20, 40], "duration": [1.0, 15.0]}
    results = fl.sweep(scenario, grid=grid, seeds=2, rounds=50)
    assert results.attrs["compilations"] == 1
    error = results.test_error.mean("seed").sel(duration=1.0)
    jump = error.sel(round=40) / error.sel(round=39)
    assert jump.sel(onset=40) > 5
    assert (jump.sel(onset=[0, 20]) < 1.1).all()
    slow = results.test_error.mean("seed").sel(duration=15.0, onset=20)
    assert slow.sel(round=20) < 0.3 * results.test_error.mean("seed").sel(
        duration=1.0, onset=20, round=20
    )


LABELED = from_clients([(np.ones((5, 2)), np.ones(5))] * 2, Logistic())
REFUSED = {
    "nothing drifts": (lambda: Drifting(linear(), 5), "nothing drifts; give features="),
    "part of a round": (
        lambda: Drifting(linear(), 1.5, SHIFT),
        "onset must be whole rounds, got 1.5",
    ),
    "before the first": (
        lambda: Drifting(linear(), [-1, 0, 0, 0], SHIFT),
        "onset must be finite and >= 0, got -1",
    ),
    "of other clients": (lambda: Drifting(linear(), [1, 2], SHIFT), "onset must be one number or"),
    "of other inputs": (
        lambda: Drifting(linear(), 1, np.ones(2)),
        r"features must be a change of the \(3,\) inputs, or of each of the 4",
    ),
    "of no number": (lambda: Drifting(linear(), 1, [np.nan, 0, 0]), "features holds 1 NaN"),
    "in no time": (
        lambda: Drifting(linear(), 1, SHIFT, duration=0.5),
        "duration must be finite and >= 1",
    ),
    "of classes": (
        lambda: Drifting(Replay(LABELED), 1, labels=np.ones(2)),
        "labels drift by real amounts, but the labels of Logistic are classes",
    ),
    "after the last round": (
        lambda: fl.run(
            fl.Simulation(Drifting(linear(), [0, 0, 11, 0], SHIFT), OnlineFed(0.1)), rounds=10
        ),
        "client 2 drifts from round 11 on, but the run has only 10",
    ),
    "after the last round of a study": (
        lambda: fl.sweep(
            lambda key, onset: fl.Simulation(Drifting(linear(), onset, SHIFT), OnlineFed(0.1)),
            grid={"onset": [5, 12]},
            seeds=1,
            rounds=10,
        ),
        "drifts from round 12 on, but the run has only 10",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_drifts_that_do_not_fit_are_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make()


# The detector ------------------------------------------------------------------------------------


def loop(errors, tolerance, threshold, burn_in):
    """The test of one series, from its formula: all sums from the last alarm on, each time."""
    statistic = []
    alarms = []
    observed = []
    for t, error in enumerate(errors):
        if np.isnan(error):
            statistic.append(statistic[-1] if observed else 0.0)
            continue
        observed.append(error)
        terms = [observed[i] - np.mean(observed[: i + 1]) - tolerance for i in range(len(observed))]
        sums = np.cumsum([0.0, *terms])
        statistic.append(sums[-1] - sums.min())
        if statistic[-1] > threshold and len(observed) > burn_in:
            alarms.append(t)
            observed = []
    return statistic, alarms


@pytest.mark.parametrize("burn_in", [0, 5])
def test_the_test_is_its_loop(burn_in):
    rng = np.random.default_rng(0)
    errors = rng.gamma(2.0, size=(120, 3)) * np.where(np.arange(120) < 60, 1, 3)[:, None]
    errors[:, 2] = rng.gamma(2.0, size=120)
    errors[rng.uniform(size=errors.shape) < 0.1] = np.nan
    errors[0, 0] = np.nan
    result = monitoring.page_hinkley(errors, 0.2, 6.0, burn_in=burn_in)
    several = 0
    for k in range(3):
        statistic, alarms = loop(errors[:, k], 0.2, 6.0, burn_in)
        observed = ~np.isnan(errors[:, k])
        close(np.asarray(result.statistic)[observed, k], np.array(statistic)[observed], atol=1e-10)
        assert np.flatnonzero(result.raised[:, k]).tolist() == alarms
        several += len(alarms)
    assert several > 3


@pytest.mark.slow
def test_thresholds_and_runs_are_watched_together():
    errors = jax.random.normal(fl.random_key(0), (5, 40, 3)) ** 2
    thresholds = jnp.array([1.0, 2.0, 4.0])
    statistics = jax.vmap(
        jax.vmap(lambda e, c: monitoring.page_hinkley(e, 0.1, c, burn_in=3).raised, (0, None)),
        (None, 0),
    )
    result = jax.jit(statistics)(errors, thresholds)
    for i, threshold in enumerate(thresholds):
        for run in range(5):
            alone = monitoring.page_hinkley(errors[run], 0.1, threshold, burn_in=3).raised
            assert (result[i, run] == alone).all()


def test_falling_errors_raise_no_alarm():
    errors = np.geomspace(10, 0.1, 200)
    assert not monitoring.page_hinkley(errors, 0.0, 1e-9).raised.any()


@pytest.mark.slow
def test_delays_and_false_alarms_are_counted_from_the_onset():
    raised = np.zeros((6, 5), bool)
    raised[1, 0] = raised[4, 0] = True  # a false alarm, then the drift
    raised[2, 1] = True  # detected immediately
    raised[5, 2] = True  # where nothing drifts
    onset = np.array([30, 30, 0, 20, 10])
    rounds = [10, 20, 30, 40, 50, 60]
    delay = np.asarray(monitoring.detection_delay(raised, onset, rounds))
    close(delay, [20, 0, np.nan, np.inf, np.inf])
    rate = np.asarray(monitoring.false_alarm_rate(raised, onset, rounds))
    close(rate, [0.5, 0, 1 / 6, 0, np.nan])
    assert float(monitoring.detection_delay(raised[:, 0], 2)) == 0
    delays = jax.vmap(monitoring.detection_delay, (0, None))(jnp.stack([raised, ~raised]), onset)
    assert delays.shape == (2, 5)


@pytest.mark.slow
def test_a_threshold_is_exceeded_as_often_as_asked():
    errors = jax.random.gamma(fl.random_key(1), 2.0, (150, 4000))
    threshold = monitoring.calibrated_threshold(errors[:, :2000], 0.1, 0.1)
    raised = monitoring.page_hinkley(errors[:, 2000:], 0.1, threshold).raised
    share = float(raised.any(axis=0).mean())
    assert abs(share - 0.1) < 4 * np.sqrt(0.09 * 2 / 2000)
    same = monitoring.page_hinkley(errors[:, :2000], 0.1, threshold).raised
    close(same.any(axis=0).mean(), 0.1, atol=1e-3)


@pytest.mark.slow
def test_a_report_names_node_and_round():
    """Node 2 drifts in round 80 and, by 100, node 0, far beyond the noise."""
    onset = [100, 0, 80, 0]
    base = linear(test=held_out()).starting_at(TRUTH)
    stream = Drifting(base, onset, labels=CHANGE)
    simulation = fl.Simulation(stream, OnlineFed(1e-4), metrics=["validation_error"])
    results = fl.run(simulation, rounds=140)
    report = monitoring.report(results.validation_error, tolerance=0.1, threshold=5.0)
    assert [(alarm.node, alarm.round) for alarm in report.alarms][:2] == [(2, 80), (0, 100)]
    assert {alarm.node for alarm in report.alarms} == {0, 2}
    first = report.alarms[0]
    error = results.validation_error.values[:, 2]
    close((first.before, first.after), (error[:79].mean(), error[79]), rtol=1e-12)
    assert str(report).startswith("round 80: node 2, whose error is ")
    assert str(monitoring.AlarmReport(())) == "no alarm"


def test_a_report_has_the_rounds_that_were_recorded():
    errors = xr.DataArray(
        np.where(np.arange(50) < 40, 1.0, 9.0)[:, None],
        dims=("round", "client"),
        coords={"round": np.arange(10, 510, 10)},
    )
    result = monitoring.report(errors, 0.1, 5.0)
    assert [(alarm.node, alarm.round) for alarm in result.alarms] == [(0, 410)]
    with pytest.raises(ValueError, match=r"of one run, \[rounds, nodes\].*choose a seed"):
        monitoring.report(errors.expand_dims(seed=2), 0.1, 5.0)
    with pytest.raises(ValueError, match="rounds must be those of the 50 records, got 3"):
        monitoring.report(errors.values, 0.1, 5.0, rounds=[1, 2, 3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: monitoring.page_hinkley(np.ones(9), -0.1, 1.0), "tolerance must be finite and >="),
        (lambda: monitoring.page_hinkley(np.ones(9), 0.1, 0.0), "threshold must be finite and > 0"),
        (lambda: monitoring.page_hinkley(3.0, 0.1, 1.0), "errors must be a series"),
        (
            lambda: monitoring.calibrated_threshold(np.ones((30, 2)), 0.1, 0.1),
            "errors must have more rounds than the burn-in, 30, got 30",
        ),
        (
            lambda: monitoring.calibrated_threshold(np.ones((40, 2)), 0.1, 1.0),
            "false_alarms must be finite and > 0 and < 1",
        ),
        (
            lambda: monitoring.detection_delay(np.full((3, 2), 2.0), 1),
            "raised must be truth values",
        ),
        (
            lambda: monitoring.false_alarm_rate(np.ones((3, 2), bool), -1),
            "onset must be finite and >= 0",
        ),
        (
            lambda: monitoring.detection_delay(np.ones((3, 2), bool), [1, 2, 3]),
            "onset must be one for each series",
        ),
    ],
)
def test_unwatchable_algorithms_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class TestAnswersThatAreNoAnswer:
    def errors(self, rounds=60, nodes=3):
        return np.ones((rounds, nodes))

    def test_a_diverged_model_raises_an_alarm_and_later_drifts_do_too(self):
        errors = self.errors(120)
        errors[5:8, 0] = np.inf  # within the burn-in
        errors[100:, 0] = 4.0
        report = fl.monitoring.report(errors, tolerance=0.1, threshold=5.0)
        assert [(a.node, a.round) for a in report.alarms] == [(0, 6), (0, 102)]
        assert report.alarms[0].before == 1
        assert report.alarms[0].after == np.inf

    def test_a_node_that_stops_reporting_is_named(self):
        errors = self.errors()
        errors[40:, 1] = np.nan
        errors[:, 2] = np.nan
        report = fl.monitoring.report(errors, tolerance=0.1, threshold=5.0)
        assert str(report) == (
            "no alarm\nround 41: node 1 has no error from then on\n"
            "round 1: node 2 has no error from then on"
        )
        errors[59] = 1.0  # data arrive again
        assert not fl.monitoring.report(errors, tolerance=0.1, threshold=5.0).silent

    def test_axes_are_recognized_by_name(self):
        errors = self.errors(100)
        errors[70:, 1] = 4.0
        named = xr.DataArray(errors.T, dims=("node", "round"), coords={"round": np.arange(1, 101)})
        report = fl.monitoring.report(named, tolerance=0.1, threshold=5.0)
        assert [(a.node, a.round) for a in report.alarms] == [(1, 72)]

    @pytest.mark.parametrize(
        ("errors", "message"),
        [
            (np.ones((30, 3)), "more rounds than the burn-in, 30, got 30"),
            (np.ones((3, 60)), "Rounds are the first axis"),
            (np.full((60, 3), -np.inf), "minus infinity"),
        ],
    )
    def test_thresholds_that_cannot_alarm_are_not_called_quiet(self, errors, message):
        with pytest.raises(ValueError, match=message):
            fl.monitoring.report(errors, tolerance=0.1, threshold=5.0)

    @pytest.mark.parametrize("number", [np.inf, np.nan])
    def test_a_threshold_needs_errors_without_drift(self, number):
        with pytest.raises(ValueError, match="must be finite, some of them at least"):
            fl.monitoring.calibrated_threshold(np.full((60, 3), number), 0.1, 0.05)
