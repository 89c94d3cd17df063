"""The largest per-sample gradient of a run: that of a pass each round, by few passes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.devices import traced_for
from fljax.problems import Huber, LeastSquares, Logistic, Problem, Softmax, gradient_norms
from fljax.simulation import scan

ROUNDS = 30
LOSSES = {
    "squares": (LeastSquares(), lambda z: z),
    "huber": (Huber(0.7), lambda z: z),
    "logistic": (Logistic(), lambda z: np.where(z > 0, 1.0, -1.0)),
    "softmax": (Softmax(3), lambda z: (z > 0).astype(float) + (z > 1)),
}


@fl.module
class Mine(LeastSquares):
    """A loss whose curvature is its word alone."""


def problem(loss="squares", samples=12, scale=1.0, **settings):
    dtype = np.float64 if jax.config.read("jax_enable_x64") else np.float32
    loss_function, targets = LOSSES[loss]
    rng = np.random.default_rng(3)
    features = (scale * rng.normal(size=(4, samples, 3))).astype(dtype)
    weights = np.ones((4, samples))
    weights[1, samples // 2 :] = 0
    y = targets(rng.normal(size=(4, samples))).astype(dtype)
    weights = (weights / weights.sum(1, keepdims=True)).astype(dtype)
    return Problem(features, y, loss_function, weights=weights, **settings).prepare()


def followed(problem_, models):
    """What is met along some models, and at which of them there was a pass."""
    tracker = gradient_norms.initial_bound(problem_)
    largest = jnp.zeros((), problem_.dtype)
    passes = []
    move = jax.jit(lambda state, w, largest: state.moved(problem_, w, largest))
    for w in models:
        before = tracker
        tracker = move(tracker, w, largest)
        passes.append(not np.array_equal(before.norms, tracker.norms, equal_nan=True))
        largest = jnp.maximum(largest, jnp.max(tracker.norms))
    return float(largest), passes


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("walk", ["ending", "growing", "steady"])
@pytest.mark.parametrize("settings", [{}, {"clip": 0.5}])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.thin(12, every=5)
def test_the_largest_is_that_of_all_passes(loss, settings, walk, scale, double):
    with jax.enable_x64(double):
        problem_ = problem(loss, scale=scale, **settings)
        assert problem_.dtype == (np.float64 if double else np.float32)
        rng = np.random.default_rng(7)
        steps = np.arange(1, ROUNDS + 1)[:, None, None]
        size = {"ending": 1 / steps**2, "growing": steps / ROUNDS, "steady": np.ones_like(steps)}[
            walk
        ]
        step = size * rng.normal(size=(ROUNDS, 4, problem_.dim)) / scale
        models = np.cumsum(step, axis=0).astype(problem_.dtype)
        expected = max(float(jnp.max(problem_.sample_gradient_norm(w))) for w in models)
        largest, passes = followed(problem_, models)
        assert largest == pytest.approx(expected, rel=1e-13 if double else 1e-6)
        assert passes[0]


def test_few_passes_suffice_where_models_settle():
    problem_ = problem()
    rng = np.random.default_rng(0)
    models = 1 + rng.normal(size=(ROUNDS, 4, 3)) * 0.5 ** np.arange(ROUNDS)[:, None, None]
    models[0] = 9
    largest, passes = followed(problem_, models)
    assert largest == pytest.approx(float(jnp.max(problem_.sample_gradient_norm(models[0]))))
    assert 1 <= sum(passes) <= 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_nonfinite_norms_are_reported(bad):
    problem_ = problem()
    models = [np.ones((4, 3)), np.full((4, 3), bad), np.ones((4, 3))]
    expected = jnp.max(jnp.stack([problem_.sample_gradient_norm(w).max() for w in models]))
    np.testing.assert_equal(followed(problem_, models)[0], float(expected))


def test_growth_is_a_tight_bound():
    problem_ = problem()
    growth = np.asarray(problem_.gradient_growth())
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 4, 3))
    more = np.abs(problem_.sample_gradient_norm(a) - problem_.sample_gradient_norm(b))
    assert np.all(more <= growth * np.linalg.norm(a - b, axis=1) * (1 + 1e-12))
    longest = [x[w > 0][np.argmax(np.linalg.norm(x[w > 0], axis=1))] for x, w in _rows(problem_)]
    far = 1e6 * np.stack(longest)
    more = (problem_.sample_gradient_norm(far) - problem_.sample_gradient_norm(0 * far)) / growth
    np.testing.assert_allclose(more, np.linalg.norm(far, axis=1), rtol=1e-5)


def _rows(problem_):
    return zip(np.asarray(problem_.features), np.asarray(problem_.weights), strict=True)


def test_every_round_has_a_pass_without_a_bound():
    problem_ = problem()
    assert gradient_norms.initial_bound(problem_) is not None
    assert gradient_norms.initial_bound(problem(samples=gradient_norms.MIN_SAMPLES - 1)) is None
    assert Problem(problem_.features, problem_.targets, Mine()).prepare().gradient_growth() is None
    rough = Problem(problem_.features, problem_.targets, fl.problems.LeastAbsoluteDeviation())
    assert gradient_norms.initial_bound(rough.prepare()) is None
    network = fl.problems.Model.from_clients(
        fl.models.mlp(1, [4]), jax.random.key(0), [(np.ones((9, 3)), np.ones(9))], LeastSquares()
    )
    assert gradient_norms.initial_bound(network) is None


def test_an_accelerator_has_a_pass_each_round():
    problem_ = problem()
    models = [np.full((4, 3), 9.0), np.ones((4, 3)), np.zeros((4, 3))]
    expected = max(float(jnp.max(problem_.sample_gradient_norm(w))) for w in models)
    assert followed(problem_, models)[1] == [True, True, False]
    with traced_for("cuda"):
        largest, passes = followed(problem_, models)
    assert passes == [True, True, True]
    assert largest == pytest.approx(expected)


def test_a_pass_is_not_computed_before_the_loop():
    """XLA hoists loop-invariant values, although the loop may have no iteration."""
    problem_ = problem(samples=40)
    tracker = gradient_norms.initial_bound(problem_)
    w = jnp.ones((5, 4, 3))
    moved = jax.jit(lambda p, x, w: jax.vmap(lambda x, w: tracker.moved(p, w, x))(x, w))
    text = moved.lower(problem_, jnp.ones(5), w).compile().as_text()
    loops = [line for line in text.splitlines() if " while(" in line]
    assert len(loops) == 1
    carried = [sorted(map(int, dims.split(","))) for dims in re.findall(r"\[([\d,]+)\]", loops[0])]
    assert [3, 4, 40] in carried


def scenario(algorithm, budget):
    def build(key):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=6, samples=20, dim=3),
            network=fl.graphs.ring(6),
            algorithm=algorithm,
            privacy=budget,
            metrics=["normalized_error"],
        )

    return build


@pytest.mark.parametrize(
    "algorithm",
    [
        fl.algorithms.ZCDPNFL(1.0, 0.5),
        fl.algorithms.ZCDPGradNFL(step_size=0.05),
        fl.algorithms.PADMM(1.0),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
@pytest.mark.filterwarnings("ignore:the privacy figures")
def test_studies_report_the_norm_of_a_pass_each_round(algorithm, monkeypatch):
    build = scenario(algorithm, fl.privacy.ZCDP(5.0, 0.97, 1.0))
    few = fl.sweep(build, seeds=5, rounds=40, progress=False)
    monkeypatch.setattr(scan, "initial_bound", lambda problem: None)
    every = fl.sweep(scenario(algorithm, fl.privacy.ZCDP(5.0, 0.97, 1.0)), seeds=5, rounds=40)
    np.testing.assert_allclose(few.gradient_norm, every.gradient_norm, rtol=1e-12)
    np.testing.assert_allclose(few.normalized_error, every.normalized_error, rtol=1e-9)
    assert np.all(few.gradient_norm > 0)
