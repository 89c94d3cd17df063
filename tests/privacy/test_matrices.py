"""Strategies of the matrix mechanism, against dense matrices, all patterns and jax_privacy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax.privacy import matrices
from fljax.privacy.matrices import optimize as optimizers
from fljax.privacy.matrices import toeplitz

close = np.testing.assert_allclose
N = 12
few = settings(max_examples=60, deadline=None)

#: One strategy of each kind, and some at their limits.
STRATEGIES = {
    "identity": matrices.identity(),
    "banded": matrices.Toeplitz([2.0, 1.0, 0.7, 0.1]),
    "increasing": matrices.Toeplitz([1.0, 0.2, 0.9]),
    "signed": matrices.Toeplitz([1.0, -0.5, 0.25, -0.7]),
    "longer than the run": matrices.square_root(2 * N),
    "inverse": matrices.inverse_square_root(5),
    "inverse that oscillates": matrices.InverseToeplitz([2.0, 0.8, -0.3]),
    "buffers": matrices.BufferedToeplitz(scale=[0.3, 0.15, 0.05], decay=[0.4, 0.9, 0.99]),
    "buffers that jump": matrices.BufferedToeplitz(scale=[1.0, 0.9], decay=[0.0, 0.9]),
    "no decay": matrices.BufferedToeplitz(scale=[0.2], decay=[1.0]),
    "normalized": matrices.column_normalized(matrices.Toeplitz([1.0, 0.6, 0.5]), N),
    "general": matrices.Banded(1 + np.random.default_rng(0).uniform(-0.9, 0.5, (N, 4))),
}
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def matrix_by_definition(strategy, n):
    """C entry by entry, from the defining formulas."""
    result = np.zeros((n, n))
    for row, column in itertools.product(range(n), repeat=2):
        lag = row - column
        if lag < 0:
            continue
        if isinstance(strategy, matrices.Toeplitz | matrices.InverseToeplitz):
            if lag < len(strategy.coefficients):
                result[row, column] = strategy.coefficients[lag]
        elif isinstance(strategy, matrices.BufferedToeplitz):
            powers = np.asarray(strategy.decay) ** (lag - 1) if lag else np.zeros(1)
            result[row, column] = 1.0 if lag == 0 else float(powers @ np.asarray(strategy.scale))
        elif lag < strategy.columns.shape[1]:
            result[row, column] = strategy.columns[column, lag]
    inverse = isinstance(strategy, matrices.InverseToeplitz)
    return np.linalg.inv(result) if inverse else result


def patterns(n, separation, participations):
    """All sets of rounds in which a client may take part."""
    for count in range(1, n + 1):
        if participations is not None and count > participations:
            return
        for rounds in itertools.combinations(range(n), count):
            if all(b - a >= separation for a, b in itertools.pairwise(rounds)):
                yield list(rounds)


def attained(matrix, separation, participations):
    """Largest change by contributions of norm 1: of one direction, and of any signs."""
    largest = 0.0
    for rounds in patterns(len(matrix), separation, participations):
        gram = matrix[:, rounds].T @ matrix[:, rounds]
        signs = itertools.product((1.0, -1.0), repeat=min(len(rounds) - 1, 6))
        for rest in signs:
            u = np.ones(len(rounds))
            u[1 : 1 + len(rest)] = rest
            largest = max(largest, u @ gram @ u)
    return np.sqrt(largest)


# --------------------------------------------------------------------------- matrices


@every_strategy
def test_matrices_equal_the_definition(name):
    strategy = STRATEGIES[name]
    expected = matrix_by_definition(strategy, N)
    close(strategy.matrix(N), expected, atol=1e-12)
    close(strategy.inverse(N), np.linalg.inv(expected), atol=1e-10)
    if isinstance(strategy, matrices.ToeplitzStrategy):
        close(strategy.column(N), expected[:, 0], atol=1e-12)
        close(strategy.inverse_column(N), np.linalg.inv(expected)[:, 0], atol=1e-10)
    close(strategy.matrix(5), expected[:5, :5], atol=1e-12)


@every_strategy
@pytest.mark.parametrize("workload", [None, 0.9 ** np.arange(N)])
def test_errors_are_those_of_the_dense_factorization(name, workload):
    strategy = STRATEGIES[name]
    target = scipy.linalg.toeplitz(np.ones(N) if workload is None else workload, np.zeros(N))
    decoder = target @ np.linalg.inv(matrix_by_definition(strategy, N))
    expected = np.sum(decoder**2, axis=1)
    close(strategy.errors(N, workload), expected, rtol=1e-10)
    close(strategy.error(N, "mean", workload), expected.mean(), rtol=1e-10)
    close(strategy.error(N, "max", workload), expected.max(), rtol=1e-10)


@every_strategy
@pytest.mark.parametrize("shape", [3, (2, 3)])
def test_streams_multiply_by_the_matrix_and_its_inverse(name, shape):
    strategy = STRATEGIES[name]
    shape = (shape,) if isinstance(shape, int) else shape
    x = np.random.default_rng(1).normal(size=(N, *shape))
    matrix = matrix_by_definition(strategy, N)

    @jax.jit
    def streamed(strategy, rows):
        state = strategy.begin(shape, rows.dtype)
        _, encoded = jax.lax.scan(strategy.encode, state, rows)
        _, decoded = jax.lax.scan(strategy.decode, state, rows)
        _, back = jax.lax.scan(strategy.decode, state, encoded)
        return encoded, decoded, back

    encoded, decoded, back = streamed(strategy, jnp.asarray(x))
    close(encoded, np.tensordot(matrix, x, 1), rtol=1e-10, atol=1e-10)
    close(decoded, np.tensordot(np.linalg.inv(matrix), x, 1), rtol=1e-10, atol=1e-10)
    close(back, x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_streams_keep_the_dtype_of_their_rows(dtype):
    for strategy in STRATEGIES.values():
        state = strategy.begin(2, dtype)
        for step in (strategy.encode, strategy.decode):
            after, row = jax.eval_shape(step, state, jnp.ones(2, dtype))
            assert row.dtype == dtype
            assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
            assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)


def test_long_runs_stream_encoded_rows():
    x = jnp.asarray(np.random.default_rng(2).normal(size=(3000, 2)))
    strategies = (
        matrices.optimize_banded_toeplitz(3000, 30, participations=1),
        matrices.optimize_buffered_toeplitz(3000, 5, separation=100),
        matrices.optimize_inverse_toeplitz(3000, 30, separation=100),
    )
    for strategy in strategies:
        state = strategy.begin(2, x.dtype)
        encoded = jax.lax.scan(strategy.encode, state, x)[1]
        close(jax.lax.scan(strategy.decode, state, encoded)[1], x, atol=1e-9)
        column = strategy.column(3000)
        close(encoded, scipy.signal.lfilter(column, [1.0], x, axis=0), rtol=1e-8, atol=1e-8)


def test_new_numbers_of_the_same_size_compile_nothing():
    traces = []

    @jax.jit
    def encoded(strategy, row):
        traces.append(1)
        return strategy.encode(strategy.begin(2), row)[1]

    for scale in (0.1, 0.2, 0.3):
        encoded(matrices.BufferedToeplitz([scale], [0.5]), jnp.ones(2))
    assert len(traces) == 1


def test_the_state_of_buffers_does_not_grow_with_the_run():
    strategy = matrices.optimize_buffered_toeplitz(5000, buffers=3, participations=1)
    assert strategy.begin(7).buffers.shape == (3, 7)


# --------------------------------------------------------------------------- sensitivity


@every_strategy
@pytest.mark.parametrize("separation", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("participations", [1, 2, None])
def test_no_pattern_moves_more_than_the_sensitivity(name, separation, participations):
    strategy = STRATEGIES[name]
    n = 9
    worst = attained(matrix_by_definition(strategy, n), separation, participations)
    bound = strategy.sensitivity(n, separation, participations)
    assert worst <= bound
    if strategy.has_exact_sensitivity(n, separation, participations):
        close(bound, worst, rtol=1e-11)


@few
@given(
    st.lists(st.floats(-1, 1), min_size=0, max_size=6),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2, 3]),
)
def test_bounds_hold_for_any_coefficients(rest, separation, participations):
    strategy = matrices.Toeplitz([1.0, *rest])
    worst = attained(matrix_by_definition(strategy, 8), separation, participations)
    assert worst <= strategy.sensitivity(8, separation, participations)


@few
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 4))
def test_nonincreasing_columns_attain_the_sensitivity(steps, separation):
    column = 0.1 + np.cumsum(steps)[::-1]
    strategy = matrices.Toeplitz(column)
    assert strategy.has_exact_sensitivity(8, separation)
    matrix = matrix_by_definition(strategy, 8)
    regular = np.linalg.norm(matrix[:, ::separation].sum(axis=1))
    close(strategy.sensitivity(8, separation), regular, rtol=1e-12)
    close(attained(matrix, separation, None), regular, rtol=1e-12)


def test_exactness_is_claimed_only_where_it_holds():
    exact = {n: s.has_exact_sensitivity(N, 2) for n, s in STRATEGIES.items()}
    assert not any(exact[n] for n in ("increasing", "signed", "buffers that jump", "general"))
    assert all(exact[n] for n in ("identity", "banded", "buffers", "no decay", "inverse"))
    assert STRATEGIES["signed"].has_exact_sensitivity(N, 4)
    assert STRATEGIES["general"].has_exact_sensitivity(N, 1, 1)


def test_sensitivities_of_long_runs_are_rounded_up():
    for strategy in (matrices.square_root(4000), matrices.inverse_square_root(50)):
        column = [np.longdouble(c) for c in strategy.column(4000)]
        summed = np.zeros(4000, np.longdouble)
        for start in range(0, 4000, 100):
            summed[start:] += column[: 4000 - start]
        exact = np.sqrt(np.sum(summed**2))
        bound = strategy.sensitivity(4000, 100)
        assert exact <= bound < exact * (1 + 1e-9)


@pytest.mark.parametrize(("coefficients", "rounds"), [([1.0, -3.0, 2.5], 5000), ([1, -1.05], 1000)])
def test_a_recursion_that_explodes_is_refused(coefficients, rounds):
    strategy = matrices.InverseToeplitz(coefficients)
    with pytest.raises(ValueError, match="cannot be computed in double precision"):
        strategy.sensitivity(rounds)


@every_strategy
def test_costs_of_participations_add_up_to_the_sensitivity(name):
    strategy = STRATEGIES[name]
    costs = strategy.participation_costs(N, 3)
    assert len(costs) == 4
    assert np.all(costs >= 0)
    for count in range(1, 5):
        squared = strategy.sensitivity(N, 3, count) ** 2
        assert costs[:count].sum() >= squared * (1 - 1e-12)


@every_strategy
def test_responses_are_sums_of_columns(name):
    strategy = STRATEGIES[name]
    matrix = matrix_by_definition(strategy, N)
    expected = np.stack([matrix[:, start::5].sum(axis=1) for start in range(5)])
    close(strategy.responses(N, 5), expected, atol=1e-12)


# --------------------------------------------------------------------------- optimizers


def numerical(function, point, step=1e-6):
    result = np.empty(len(point))
    for i in range(len(point)):
        change = np.zeros(len(point))
        change[i] = step
        result[i] = (function(point + change) - function(point - change)) / (2 * step)
    return result


@pytest.mark.parametrize("reduction", ["mean", "max"])
@pytest.mark.parametrize("pattern", [(1, 1), (3, None), (1, 4), (20, None)])
def test_gradients_are_those_of_the_losses(reduction, pattern):
    loss = optimizers._Loss(20, *pattern, reduction, None)
    column = toeplitz.square_root_column(20) + 0.01 * np.random.default_rng(3).normal(size=20)

    def of_column(c):
        return loss.of_column(c, toeplitz.inverted(c, 20))

    def of_inverse(c, penalty=None):
        return loss.of_inverse(toeplitz.inverted(c, 20), c, penalty)

    gradient = of_column(column)[1]
    close(gradient, numerical(lambda c: of_column(c)[0], column), rtol=1e-4, atol=1e-5)
    inverse = toeplitz.inverted(column, 20)
    gradient = of_inverse(inverse)[1]
    close(gradient, numerical(lambda c: of_inverse(c)[0], inverse), rtol=1e-4, atol=1e-5)
    gradient = of_inverse(inverse, 10.0)[1]
    close(gradient, numerical(lambda c: of_inverse(c, 10.0)[0], inverse), rtol=1e-4, atol=1e-5)
    column = toeplitz.majorant(column)
    strategy = matrices.Toeplitz(column)
    close(of_column(column)[0], strategy.loss(20, *pattern, reduction), rtol=1e-9)


@pytest.mark.parametrize("reduction", ["mean", "max"])
@pytest.mark.parametrize(("separation", "participations"), [(1, 1), (8, None), (3, 4)])
def test_no_small_change_improves_an_optimum(reduction, separation, participations):
    n = 40
    pattern = (separation, participations)
    loss = lambda s: s.loss(n, *pattern, reduction)  # noqa: E731
    banded = matrices.optimize_banded_toeplitz(n, 6, *pattern, reduction)
    inverse = matrices.optimize_inverse_toeplitz(n, 4, *pattern, reduction)
    buffered = matrices.optimize_buffered_toeplitz(n, 2, *pattern, reduction)
    rng = np.random.default_rng(4)
    for _ in range(40):
        size = 10 ** rng.uniform(-4, -1)
        change = lambda v: np.asarray(v) * np.exp(size * rng.normal(size=len(v)))  # noqa: E731, B023
        assert loss(banded) <= loss(matrices.Toeplitz(change(banded.coefficients))) * 1.0001
        other = matrices.InverseToeplitz(change(inverse.coefficients))
        assert loss(inverse) <= loss(other) * 1.002
        decay = 1 - np.minimum(change(1 - buffered.decay), 1.0)
        other = matrices.BufferedToeplitz(change(buffered.scale), decay)
        assert loss(buffered) <= loss(other) * 1.0001


def test_the_square_root_has_the_least_largest_error():
    """Dvijotham et al. 2024, Theorem 1: of all Toeplitz strategies, for one participation."""
    for n in (10, 100):
        best = matrices.square_root(n).loss(n, participations=1, reduction="max")
        for strategy in (
            matrices.optimize_banded_toeplitz(n, n, 1, 1, "max"),
            matrices.optimize_buffered_toeplitz(n, 4, 1, 1, "max"),
            matrices.optimize_inverse_toeplitz(n, n, 1, 1, "max"),
        ):
            loss = strategy.loss(n, participations=1, reduction="max")
            assert best * (1 - 1e-9) <= loss <= best * 1.001


def test_more_parameters_are_never_worse():
    n = 64
    losses = [matrices.optimize_buffered_toeplitz(n, k, 8).loss(n, 8) for k in (1, 2, 3, 4)]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(losses))
    toeplitz = matrices.optimize_banded_toeplitz(n, 8, participations=1)
    normalized = matrices.column_normalized(toeplitz, n)
    general = matrices.optimize_banded(n, 8)
    close(general.sensitivity(n, 8, 1), 1.0, rtol=1e-9)
    close(general.sensitivity(n, 8), np.sqrt(8), rtol=1e-9)
    assert general.error(n) <= normalized.error(n) <= toeplitz.error(n)
    largest = matrices.optimize_banded(n, 8, reduction="max").error(n, "max")
    assert largest <= normalized.error(n, "max") * (1 + 1e-9)


def test_a_workload_is_the_optimized_problem():
    momentum = np.cumsum(0.9 ** np.arange(50))
    plain = matrices.optimize_banded_toeplitz(50, 10, 10)
    fitted = matrices.optimize_banded_toeplitz(50, 10, 10, workload=momentum)
    assert fitted.loss(50, 10, workload=momentum) < plain.loss(50, 10, workload=momentum) * 0.999
    assert plain.loss(50, 10) < fitted.loss(50, 10) * 0.999


# --------------------------------------------------------------------------- jax_privacy


@pytest.fixture
def jax_privacy():
    """The library, which relies on promotion."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield pytest.importorskip("jax_privacy")


def test_against_the_toeplitz_matrices_of_jax_privacy(jax_privacy):
    from jax_privacy.matrix_factorization import toeplitz

    n = 60
    for name in ("identity", "banded", "longer than the run"):
        strategy = STRATEGIES[name]
        column = jnp.asarray(strategy.column(n))
        close(toeplitz.inverse_coef(column), strategy.inverse_column(n), rtol=1e-6, atol=1e-9)
        close(toeplitz.per_query_error(strategy_coef=column), strategy.errors(n), rtol=1e-6)
        for separation, participations in ((1, 1), (1, None), (7, None), (7, 3), (13, 2)):
            theirs = toeplitz.minsep_sensitivity_squared(column, separation, participations)
            ours = strategy.sensitivity(n, separation, participations) ** 2
            close(ours, theirs, rtol=1e-6)
    for reduction, function in (("mean", jnp.mean), ("max", jnp.max)):
        theirs = toeplitz.optimize_banded_toeplitz(n, 9, reduction_fn=function)
        theirs = matrices.Toeplitz(np.asarray(theirs))
        ours = matrices.optimize_banded_toeplitz(n, 9, 1, 1, reduction)
        best, other = (s.loss(n, participations=1, reduction=reduction) for s in (ours, theirs))
        close(other, toeplitz.loss(jnp.asarray(theirs.coefficients), n, function), rtol=1e-6)
        close(best, other, rtol=1e-6)


@pytest.mark.slow  # its optimizer takes a minute
def test_against_the_buffers_of_jax_privacy(jax_privacy):
    from jax_privacy.matrix_factorization import buffered_toeplitz

    n = 100
    for separation, participations in ((1, 1), (10, None)):
        theirs = buffered_toeplitz.optimize(
            n=n, min_sep=separation, max_participations=participations, error="mean", max_buffers=3
        )
        strategy = matrices.BufferedToeplitz(theirs.output_scale, theirs.buf_decay)
        close(strategy.column(n), theirs.toeplitz_coefs(n), rtol=1e-6)
        close(strategy.inverse_column(n), theirs.inverse().toeplitz_coefs(n), rtol=1e-6, atol=1e-8)
        ours = separation, participations
        loss = buffered_toeplitz.LossFn.build_min_sep(n, "mean", *ours)
        close(strategy.loss(n, *ours), loss.loss(theirs), rtol=1e-6)
        best = matrices.optimize_buffered_toeplitz(n, len(theirs.buf_decay), *ours)
        assert best.loss(n, *ours) <= strategy.loss(n, *ours) * (1 + 1e-6)
        x = jnp.asarray(np.random.default_rng(5).normal(size=(n, 2)))
        state = strategy.begin(2, x.dtype)
        encoded = jax.lax.scan(strategy.encode, state, x)[1]
        close(theirs.as_streaming_matrix() @ x, encoded, rtol=1e-6, atol=1e-8)
        decoded = jax.lax.scan(strategy.decode, state, x)[1]
        close(theirs.inverse_as_streaming_matrix() @ x, decoded, rtol=1e-6, atol=1e-8)


def test_against_the_banded_matrices_of_jax_privacy(jax_privacy):
    from jax_privacy.matrix_factorization import banded, sensitivity

    n = 24
    bands = 5
    start = matrices.optimize_banded_toeplitz(n, bands, participations=1)
    theirs = banded.ColumnNormalizedBanded.from_banded_toeplitz(n, jnp.asarray(start.coefficients))
    ours = matrices.column_normalized(start, n)
    close(ours.matrix(n), theirs.materialize(), rtol=1e-6, atol=1e-9)
    close(ours.errors(n), banded.per_query_error(theirs), rtol=1e-6)
    x = jnp.asarray(np.random.default_rng(6).normal(size=(n, 2)))
    decoded = jax.lax.scan(ours.decode, ours.begin(2, x.dtype), x)[1]
    close(theirs.inverse_as_streaming_matrix() @ x, decoded, rtol=1e-6, atol=1e-8)
    general = STRATEGIES["general"]
    matrix = jnp.asarray(general.matrix(N))
    for separation, participations in ((1, None), (2, 3), (3, None)):
        bound = sensitivity.get_min_sep_sensitivity_upper_bound(matrix, separation, participations)
        close(general.sensitivity(N, separation, participations), bound, rtol=1e-6)
    exact = sensitivity.get_sensitivity_banded(matrix, 4, 2)
    close(general.sensitivity(N, 4, 2), exact, rtol=1e-6)


# --------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: matrices.Toeplitz([0.0, 1.0]), "the first of coefficients must be .*> 0"),
        (lambda: matrices.Toeplitz([1.0, np.nan]), "1 NaN or infinite"),
        (lambda: matrices.InverseToeplitz([-1.0]), "the first of coefficients"),
        (lambda: matrices.BufferedToeplitz([0.1], [1.5]), "decay must be .*<= 1"),
        (lambda: matrices.BufferedToeplitz([-0.1], [0.5]), "scale must be .*>= 0"),
        (lambda: matrices.BufferedToeplitz([0.1], [0.5, 0.6]), "one number for each buffer"),
        (lambda: matrices.Banded([[1.0, 0.5], [0.0, 0.5]]), "the first entry of each column"),
        (lambda: STRATEGIES["general"].sensitivity(N + 1), "rounds must be <= 12"),
        (lambda: STRATEGIES["general"].errors(N + 1), "rounds must be <= 12"),
        (lambda: matrices.identity().sensitivity(0), "rounds must be >= 1"),
        (lambda: matrices.identity().sensitivity(5, 0), "separation must be >= 1"),
        (lambda: matrices.identity().sensitivity(5, 1, 0), "participations must be >= 1"),
        (lambda: matrices.identity().error(5, "median"), "unknown reduction"),
        (lambda: matrices.identity().errors(5, [1.0]), "matrix of 5 rounds, got 1"),
        (lambda: matrices.optimize_banded_toeplitz(5, 6), "bands must be <= 5"),
        (lambda: matrices.optimize_buffered_toeplitz(5, 0), "buffers must be >= 1"),
        (lambda: matrices.column_normalized(matrices.square_root(9), 5), "fewer bands"),
    ],
)
def test_bad_input_is_refused_in_words(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_traced_numbers_are_refused_as_sensitivities():
    with pytest.raises(TypeError, match="computed on the host"):
        jax.jit(lambda c: matrices.Toeplitz(c).sensitivity(5))(jnp.ones(2))
