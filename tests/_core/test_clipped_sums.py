"""Clipped gradients of samples: the same sums as of whole gradients, and bounded for any data."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.clipped_sums import clipped_sum, numbers_of, pieces_of
from fljax._core.module import replace

CLIP = 0.7


class Attention(nn.Module):
    """Layers that multiply along positions: their gradients are not outer products."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x.reshape(x.shape[0], -1, 6))
        x = nn.LayerNorm()(nn.MultiHeadDotProductAttention(2)(x, x))
        return nn.Dense(3)(x.mean(1))


NETWORKS = {
    "mlp": fl.models.mlp(3, hidden=[5]),
    "cnn": fl.models.cnn(3, (2, 3), (5,)),
    "linen": fl.models.linen(Attention()),
}


def problem_of(name, clients=1, samples=7, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(clients, samples, 6, 6, 1))
    targets = rng.integers(0, 3, (clients, samples)).astype(float)
    problem = fl.problems.Model(
        features, targets, fl.problems.Softmax(3), architecture=NETWORKS[name]
    )
    return problem.initialized(fl.random_key(1))


def models_of(problem, seed=1):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(problem.clients, problem.dim)))


@jax.jit
def gradient(problem, w):
    return problem.loss_gradient(w)


def slopes(problem, w):
    """Gradients of single samples, ``[K, N, D]``, from gradients of problems that have no other."""
    rows = []
    for i in range(problem.samples):
        weights = np.zeros((problem.clients, problem.samples))
        weights[:, i] = 1
        rows.append(gradient(replace(problem, weights=weights), w))
    return np.stack(rows, 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_sum_is_that_of_clipped_whole_gradients(name):
    problem = problem_of(name, clients=2)
    w = models_of(problem)
    gradients = slopes(problem, w)
    sizes = np.linalg.norm(gradients, axis=2)
    clip = float(np.median(sizes))  # half of them are clipped, half are not
    scale = np.minimum(1, clip / sizes) * np.asarray(problem.weights)
    expected = np.einsum("kn,knd->kd", scale, gradients)
    ours = gradient(problem.clipped(clip), w)
    np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(problem.sample_gradient_norm(w), sizes.max(1), rtol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_norms_are_of_gradients_with_the_regularizer_s_pull(name):
    problem = replace(problem_of(name, clients=2), regularizer=fl.problems.SquaredL2())
    problem = replace(problem, strength=np.array([0.4, 0.1]))
    w = models_of(problem)
    gradients = slopes(problem, w)
    regularizer_gradient = np.array([[0.4], [0.1]]) * 2 * w
    sizes = np.linalg.norm(gradients, axis=2, keepdims=True)
    clip = float(np.median(sizes))
    norms = jax.jit(lambda problem, w: problem.sample_objective_norms(w))
    for case, scale in ((problem, 1), (problem.clipped(clip), np.minimum(1, clip / sizes))):
        expected = np.linalg.norm(scale * gradients + regularizer_gradient[:, None], axis=2)
        np.testing.assert_allclose(norms(case, w), expected, rtol=1e-10)


def test_a_norm_whose_square_overflows_is_found():
    problem = problem_of("mlp")
    features = 1e100 * np.asarray(problem.features)
    problem = replace(problem, features=features, regularizer=fl.problems.SquaredL2())
    w = 1e60 * models_of(problem)
    norms = jax.jit(lambda problem, w: problem.sample_objective_norms(w))(problem, w)
    expected = np.linalg.norm(slopes(problem, w)[0] / 1e160, axis=1)
    assert np.median(expected) > 1
    np.testing.assert_allclose(norms[0] / 1e160, expected, rtol=1e-10, atol=1e-90)


@pytest.mark.parametrize(
    ("name", "outer"), [("mlp", {(36, 5), (5, 3)}), ("cnn", {(3, 5), (5, 3)}), ("linen", {(4, 3)})]
)
def test_the_layers_that_multiply_one_row_are_outer_products(name, outer):
    """However its gradient's program turns them."""
    problem = problem_of(name)
    row = models_of(problem)[0]
    x = problem.features[0, 0]
    y = problem.targets[0, 0]
    sample_gradient = problem._sample_gradient(problem._losses)
    pieces_and_gradient = jax.jit(
        lambda *arguments: (pieces_of(sample_gradient)(*arguments), sample_gradient(*arguments))
    )
    pieces, single = pieces_and_gradient((row, ((), None)), x, y)
    outer_sizes = {tuple(sorted(map(len, piece))) for piece in pieces if len(piece) == 2}
    assert outer_sizes == {tuple(sorted(sizes)) for sizes in outer}
    assert numbers_of(sample_gradient, (row, ((), None)), x, y) < problem.dim
    products = [np.outer(*piece).ravel() if len(piece) == 2 else piece[0] for piece in pieces]
    np.testing.assert_allclose(np.concatenate(products), single, rtol=1e-12, atol=0)


def test_a_product_over_several_rows_is_not_an_outer_product():
    """Its gradient is a sum of outer products; a single one would be another direction."""
    problem = problem_of("mlp")
    row = models_of(problem)[0]
    x = problem.features[0, 0]
    y = problem.targets[0, 0]

    def twice(model, x, y):
        other = jnp.stack([x, -2 * x])
        return jax.grad(lambda row: jnp.sum(problem._losses(row, ((), None), other, y[None])))(
            model[0]
        )

    assert all(len(piece) == 1 for piece in pieces_of(twice)((row, ()), x, y))


def test_a_gradient_without_layers_stays_whole():
    row = jnp.arange(1.0, 4.0)
    [piece] = pieces_of(jax.grad(lambda row: jnp.sum(row**3)))(row)
    np.testing.assert_allclose(piece[0], 3 * row**2)


HOSTILE = {
    "large": 1e200,
    "overflowing": 1e308,
    "infinite": np.inf,
    "none": np.nan,
    "tiny": 1e-310,
}


@pytest.mark.thin(5, every=1)
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_sample_counts_for_more_than_the_clip(name, value):
    """Whatever is in it: in one number, in all of them, and in a model as well."""
    problem = problem_of(name)
    w = models_of(problem)
    for where in (np.s_[0, 2, 0, 0], np.s_[0, 2]):
        features = np.array(problem.features)
        features[where] = value
        other = replace(problem, features=features).clipped(CLIP)
        weights = np.array(other.weights)
        weights[0, 2] = 0
        without = replace(other, weights=weights)
        for model in (w, 1e150 * w):
            moved = gradient(other, model) - gradient(without, model)
            assert np.all(np.isfinite(moved))
            assert np.linalg.norm(moved) <= CLIP / problem.samples * (1 + 1e-9)
            assert other.sample_gradient_norm(model)[0] <= CLIP * (1 + 1e-9)


def test_factors_with_overflowing_products_are_clipped():
    left = jnp.full((1, 2), 1e200)
    right = jnp.full((1, 3), -1e200)
    small = jnp.full((1, 4), 1e-3)
    total = clipped_sum([(left, right), (small,)], jnp.asarray(2.0), jnp.ones(1))
    assert np.linalg.norm(total) == pytest.approx(2)
    np.testing.assert_allclose(total[:6], -2 / 6**0.5, rtol=1e-12)
    np.testing.assert_allclose(total[6:], 0, atol=1e-100)


def test_pieces_that_overflow_share_the_clip():
    pieces = [(jnp.full((1, 2), np.inf),), (jnp.full((1, 2), -np.inf),), (jnp.ones((1, 1)),)]
    total = clipped_sum(pieces, jnp.asarray(3.0), jnp.ones(1))
    np.testing.assert_allclose(total, [1.5, 1.5, -1.5, -1.5, 0], atol=1e-12)


def test_clipping_keeps_zero():
    total = clipped_sum([(jnp.zeros((2, 2)), jnp.ones((2, 3)))], jnp.asarray(1.0), jnp.ones(2))
    np.testing.assert_array_equal(total, np.zeros(6))
