"""Delay distributions by chi-square and by hand, queues of the right length, refused arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fljax as fl
from fljax._core.prng import as_key
from fljax.link import DelayTrace, EdgeDelays, Fixed, Geometric, empty_line
from fljax.link.inbox import UNROLLED
from tests.support.online_world import short_run

close = np.testing.assert_allclose


LEVEL = 1e-4
ROUND = jnp.int32(1)


def draws(delays, count, seed=0):
    """The index of each message's lag; ``len(law.lags)`` for the lost."""
    return np.asarray(delays.draw(jax.random.key(seed), ROUND, count))


def test_fixed_takes_its_lag_always():
    assert Fixed().lags == (0,)
    assert Fixed(3).lags == (3,)
    assert draws(Fixed(3), 4).tolist() == [0] * 4


@pytest.mark.parametrize("form", [tuple, list, np.array, jnp.array, pd.Series])
def test_a_client_s_lag_is_found_among_equally_spaced_ones(form):
    delays = Fixed(form([6, 2, 2, 10]))
    assert delays.lag == (6, 2, 2, 10)
    assert delays.lags == (2, 6, 10)
    assert draws(delays, 4).tolist() == [1, 0, 0, 2]
    edges = jnp.array([[0, 1], [2, 3]]), jnp.array([[3, 0], [1, 2]])
    assert delays.over(jax.random.key(0), ROUND, *edges).tolist() == [[2, 1], [0, 0]]
    assert Fixed(form([3, 3])).lags == (3,)
    assert Fixed(form([0, 2, 5])).lags == (0, 1, 2, 3, 4, 5)
    assert Fixed(form([0.0, 2.0])).lag == (0, 2)
    structures = [jax.tree.structure(Fixed(lags)) for lags in (form([0, 2]), (0, 2), (2, 0))]
    assert structures[0] == structures[1] != structures[2]  # which programs are looked up by


@pytest.mark.parametrize("step", [1, 10])
@pytest.mark.parametrize("delta", [0.2, 0.8])
@pytest.mark.parametrize("beyond", ["discard", "clip"])
def test_delays_of_i_steps_or_more_have_probability_delta_to_the_i(delta, step, beyond):
    delays = Geometric(delta, 3 * step, step, beyond)
    assert tuple(delays.lags) == (0, step, 2 * step, 3 * step)
    at_least = delta ** np.arange(5.0)
    expected = at_least[:-1] - at_least[1:]  # exactly i steps
    rest = at_least[-1]
    if beyond == "clip":
        expected[-1] += rest
    else:
        expected = np.append(expected, rest)
    count = 200_000
    result = np.bincount(draws(delays, count, step), minlength=len(expected))
    assert len(result) == len(expected)
    assert stats.chisquare(result, count * expected).pvalue > LEVEL


def test_messages_are_delayed_independently():
    index = draws(Geometric(0.5, 1), 40_000).reshape(-1, 2)
    counts = np.histogram2d(*index.T, bins=3)[0]
    assert stats.chi2_contingency(counts).pvalue > LEVEL


def test_without_delay_messages_arrive_in_their_round():
    for delays in (Geometric(0.0, 5), Geometric(0.0, 0), Geometric(0.0, 0, beyond="clip")):
        assert (draws(delays, 10_000) == 0).all()


def test_with_a_longest_lag_of_zero_late_messages_are_lost_or_on_time():
    result = draws(Geometric(0.3, 0), 20_000)
    assert set(result) == {0, 1}
    assert stats.binomtest(int((result == 1).sum()), 20_000, 0.3).pvalue > LEVEL
    assert (draws(Geometric(0.3, 0, beyond="clip"), 20_000) == 0).all()


def test_delta_may_be_traced():
    keys = jax.random.key(2)
    delays = jax.jit(lambda delta: Geometric(delta, 4).draw(keys, ROUND, 1000))
    for delta in (0.0, 0.4):
        np.testing.assert_array_equal(delays(delta), Geometric(delta, 4).draw(keys, ROUND, 1000))


def test_a_trace_is_replayed_and_drops_negative_and_late_messages():
    delays = DelayTrace(np.array([[0, 2, -1], [3, 4, 1]]), 3)
    assert tuple(delays.lags) == (0, 1, 2, 3)
    assert delays.draw(jax.random.key(0), jnp.int32(1), 3).tolist() == [0, 2, 4]
    assert delays.draw(jax.random.key(0), jnp.int32(2), 3).tolist() == [3, 4, 1]
    delays.check(3, 2)
    for clients, rounds in ((3, 3), (2, 2)):
        with pytest.raises(ValueError, match="the trace of delays has 2 rounds of 3 clients"):
            delays.check(clients, rounds)


@pytest.mark.parametrize(
    ("delays", "slots"),
    [(Fixed(0), 1), (Fixed(4), 5), (Geometric(0.2, 10), 11), (Geometric(0.2, 20, 10), 21)],
)
def test_a_line_has_a_slot_for_every_round_until_the_longest_lag(delays, slots):
    line = empty_line(delays, 7, jnp.float32)
    assert [entry.shape for entry in line] == [(slots, 7), (slots, 7), (slots, 1)]
    assert all(entry.dtype == jnp.float32 and not entry.any() for entry in line)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.link.UniformDelay(-1), "longest must be >= 0, got -1"),
        (lambda: Fixed(-1), "lag must be >= 0, got -1. A message cannot arrive before"),
        (lambda: Fixed([0, -2]), "lag must be finite and >= 0, got -2. A message cannot"),
        (lambda: Fixed([0, 1.5]), r"lag must be integers of shape \[clients\], .* of float64"),
        (lambda: Fixed([[0, 1]]), r"lag must be integers .* got shape \(1, 2\)"),
        (lambda: Fixed([]), "lag is empty"),
        (lambda: Fixed([True, False]), "lag must be integers .* of bool"),
        (lambda: Fixed([0, 1]).check(3, 9), "one for each of the 3 clients, got shape"),
        (lambda: short_run(delays=Fixed([0, 1])), "one for each of the 5 clients, got shape"),
        (lambda: short_run(delays=Fixed([9] * 5)), "take at least 9 rounds and the run has 4"),
        (lambda: Geometric(1.0, 5), "delta must be finite and >= 0 and < 1, got 1"),
        (lambda: Geometric(-0.1, 5), "delta must be .* got -0.1"),
        (lambda: Geometric(0.2, -1), "longest must be >= 0, got -1"),
        (lambda: Geometric(0.2, 5, 0), "step must be >= 1, got 0"),
        (lambda: Geometric(0.2, 15, 10), "longest must be a multiple of step=10, got 15"),
        (lambda: Geometric(0.2, 5, beyond="drop"), "unknown beyond 'drop'; known: discard, clip"),
        (lambda: DelayTrace(np.full((2, 2), 0.5), 3), "table must be integers .* of float64"),
        (lambda: DelayTrace([[1, np.nan]], 3), "Write -1 for a message that is lost"),
        (lambda: DelayTrace(np.ones(2, int), 3), r"table must be integers .* shape \(2,\)"),
        (lambda: DelayTrace(np.ones((2, 2), int), -1), "longest must be >= 0"),
        (lambda: EdgeDelays(np.ones(2, int)), r"table must be integers of shape \[receivers"),
        (lambda: EdgeDelays(np.full((2, 2, 2), 0.5)), r"of shape \[rounds, receivers, senders\]"),
        (lambda: EdgeDelays(np.ones((2, 2), int), -1), "longest must be >= 0"),
        (lambda: EdgeDelays(np.ones((2, 2), int)).check(3, 1), r"the run needs \[3, 3\], or"),
        (lambda: EdgeDelays(np.ones((2, 3, 3), int)).check(3, 4), r"\[4, 3, 3\] of its rounds"),
        (
            lambda: EdgeDelays(4 - 4 * np.eye(3, dtype=int)).check(3, 4),
            "no message of the 4 rounds",
        ),
        (lambda: EdgeDelays.from_edges(3, {(0, 3): 1}), r"clients 0 to 2, .* got \(0, 3\)"),
        (lambda: EdgeDelays.from_edges(3, {(1, 1): 1}), r"clients 0 to 2, .* got \(1, 1\)"),
        (lambda: EdgeDelays.from_edges(3, {"01": 1}), "pairs of two of the clients .* got '01'"),
        (lambda: EdgeDelays.from_edges(3, {(0, 1): 0.5}), "delays must be integers"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("delays", [DelayTrace, EdgeDelays])
def test_tables_may_be_frames(delays):
    table = pd.DataFrame([[0, 2], [1, -1]])
    for form in (table, table.astype(float), table.convert_dtypes(), table.values.tolist()):
        result = delays(form)
        np.testing.assert_array_equal(result.table, table)
        assert result.lags == range(3)


def test_the_longest_lag_of_a_traced_table_must_be_given():
    def lags(table, longest):
        return jnp.asarray(DelayTrace(table, longest).lags)

    assert jax.jit(lags, static_argnums=1)(np.ones((2, 2), int), 3).tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="longest must be given for a traced table"):
        jax.jit(lags, static_argnums=1)(np.ones((2, 2), int), None)


def test_a_lag_is_a_whole_number():
    with pytest.raises(TypeError, match=r"lag must be an integer, got 1\.5"):
        Fixed(1.5)
    with pytest.raises(TypeError, match="lag is structure and cannot be traced"):
        jax.jit(lambda lag: jnp.zeros(Fixed(lag).lags))(np.arange(3))


def test_sums_over_many_ages_are_those_over_few():
    """A loop over the ages of copies has the same sums as its unrolled form."""
    table = np.random.default_rng(0).integers(0, 4, size=(9, 5, 5))
    models = [
        fl.run(
            fl.Simulation(
                fl.problems.ridge(jax.random.key(0), clients=5, samples=6, dim=2),
                fl.algorithms.DGD(0.1),
                fl.graphs.ring(5, form="dense"),
                delays=EdgeDelays(table, longest=longest),
            ),
            rounds=9,
        ).model.values
        for longest in (3, UNROLLED + 4)
    ]
    np.testing.assert_allclose(models[1], models[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (
            ValueError,
            lambda: short_run(delays=DelayTrace(np.ones((4, 4), int), 3)),
            "trace of delays has 4 rounds of 4 clients; the run has 4 rounds of 5",
        ),
        (TypeError, lambda: short_run(delays=3), "delays must be .*DelayLaw, got 3"),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


def test_delays_known_by_their_bound_are_uniform():
    drawn = fl.link.UniformDelay(3).draw(as_key(0), jnp.int32(1), 8000)
    assert tuple(fl.link.UniformDelay(3).lags) == (0, 1, 2, 3)
    close(np.bincount(drawn, minlength=4) / 8000, 0.25, atol=0.02)
