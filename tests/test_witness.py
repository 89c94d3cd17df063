"""The largest per-sample gradient of a run: that of a pass each round, by few passes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import engine, witness
from fljax._memory import traced_for
from fljax.problems import Huber, LeastSquares, Logistic, Problem, Softmax

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
    known, targets = LOSSES[loss]
    rng = np.random.default_rng(3)
    features = (scale * rng.normal(size=(4, samples, 3))).astype(dtype)
    weights = np.ones((4, samples))
    weights[1, samples // 2 :] = 0
    y = targets(rng.normal(size=(4, samples))).astype(dtype)
    weights = (weights / weights.sum(1, keepdims=True)).astype(dtype)
    return Problem(features, y, known, weights=weights, **settings).prepare()


def followed(given, models):
    """What is met along some models, and at which of them there was a pass."""
    seen, met, passes = witness.unseen(given), jnp.zeros((), given.dtype), []
    move = jax.jit(lambda seen, w, met: seen.moved(given, w, met))
    for w in models:
        before, seen = seen, move(seen, w, met)
        passes.append(not np.array_equal(before.norms, seen.norms, equal_nan=True))
        met = jnp.maximum(met, jnp.max(seen.norms))
    return float(met), passes


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("walk", ["ending", "growing", "steady"])
@pytest.mark.parametrize("settings", [{}, {"clip": 0.5}])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.thin(12, every=5)
def test_the_largest_is_that_of_all_passes(loss, settings, walk, scale, double):
    with jax.enable_x64(double):
        given = problem(loss, scale=scale, **settings)
        assert given.dtype == (np.float64 if double else np.float32)
        rng = np.random.default_rng(7)
        steps = np.arange(1, ROUNDS + 1)[:, None, None]
        size = {"ending": 1 / steps**2, "growing": steps / ROUNDS, "steady": np.ones_like(steps)}[
            walk
        ]
        step = size * rng.normal(size=(ROUNDS, 4, given.dim)) / scale
        models = np.cumsum(step, axis=0).astype(given.dtype)
        expected = max(float(jnp.max(given.sample_gradient_norm(w))) for w in models)
        met, passes = followed(given, models)
        assert met == pytest.approx(expected, rel=1e-13 if double else 1e-6)
        assert passes[0]


def test_few_passes_suffice_where_models_settle():
    given, rng = problem(), np.random.default_rng(0)
    models = 1 + rng.normal(size=(ROUNDS, 4, 3)) * 0.5 ** np.arange(ROUNDS)[:, None, None]
    models[0] = 9
    met, passes = followed(given, models)
    assert met == pytest.approx(float(jnp.max(given.sample_gradient_norm(models[0]))))
    assert 1 <= sum(passes) <= 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_what_is_not_finite_is_met(bad):
    given = problem()
    models = [np.ones((4, 3)), np.full((4, 3), bad), np.ones((4, 3))]
    expected = jnp.max(jnp.stack([given.sample_gradient_norm(w).max() for w in models]))
    np.testing.assert_equal(followed(given, models)[0], float(expected))


def test_growth_is_a_bound_that_is_met():
    given = problem()
    growth = np.asarray(given.gradient_growth())
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 4, 3))
    more = np.abs(given.sample_gradient_norm(a) - given.sample_gradient_norm(b))
    assert np.all(more <= growth * np.linalg.norm(a - b, axis=1) * (1 + 1e-12))
    longest = [x[w > 0][np.argmax(np.linalg.norm(x[w > 0], axis=1))] for x, w in _rows(given)]
    far = 1e6 * np.stack(longest)
    more = (given.sample_gradient_norm(far) - given.sample_gradient_norm(0 * far)) / growth
    np.testing.assert_allclose(more, np.linalg.norm(far, axis=1), rtol=1e-5)


def _rows(given):
    return zip(np.asarray(given.features), np.asarray(given.weights), strict=True)


def test_every_round_has_a_pass_where_nothing_is_known():
    given = problem()
    assert witness.unseen(given) is not None
    assert witness.unseen(problem(samples=witness.WORTH - 1)) is None
    assert Problem(given.features, given.targets, Mine()).prepare().gradient_growth() is None
    rough = Problem(given.features, given.targets, fl.problems.LeastAbsoluteDeviation())
    assert witness.unseen(rough.prepare()) is None
    network = fl.problems.Model.from_clients(
        fl.models.mlp(1, [4]), jax.random.key(0), [(np.ones((9, 3)), np.ones(9))], LeastSquares()
    )
    assert witness.unseen(network) is None


def test_an_accelerator_has_a_pass_each_round():
    given, models = problem(), [np.full((4, 3), 9.0), np.ones((4, 3)), np.zeros((4, 3))]
    expected = max(float(jnp.max(given.sample_gradient_norm(w))) for w in models)
    assert followed(given, models)[1] == [True, True, False]
    with traced_for("cuda"):
        met, passes = followed(given, models)
    assert passes == [True, True, True]
    assert met == pytest.approx(expected)


def test_a_pass_is_not_computed_before_the_loop():
    """XLA moves what a loop does not change before it, whether the loop has a turn or not."""
    given = problem(samples=40)
    seen = witness.unseen(given)
    w = jnp.ones((5, 4, 3))
    moved = jax.jit(lambda p, x, w: jax.vmap(lambda x, w: seen.moved(p, w, x))(x, w))
    text = moved.lower(given, jnp.ones(5), w).compile().as_text()
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
    ids=lambda one: type(one).__name__,
)
@pytest.mark.filterwarnings("ignore:the privacy figures")
def test_studies_report_what_a_pass_each_round_would(algorithm, monkeypatch):
    build = scenario(algorithm, fl.privacy.ZCDP(5.0, 0.97, 1.0))
    few = fl.sweep(build, seeds=5, rounds=40, progress=False)
    monkeypatch.setattr(engine, "unseen", lambda problem: None)
    every = fl.sweep(scenario(algorithm, fl.privacy.ZCDP(5.0, 0.97, 1.0)), seeds=5, rounds=40)
    np.testing.assert_allclose(few.gradient_norm, every.gradient_norm, rtol=1e-12)
    np.testing.assert_allclose(few.normalized_error, every.normalized_error, rtol=1e-9)
    assert np.all(few.gradient_norm > 0)
