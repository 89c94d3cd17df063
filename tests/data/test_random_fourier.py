import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.data import RandomFourier, random_fourier
from fljax.data.random_fourier import cos_turns

KINDS = ("cosine", "pair")


def oracle(feature_map, x):
    """The definition in NumPy, with the library's own cosine and sine."""
    angles = x @ np.asarray(feature_map.frequencies).T
    if feature_map.kind == "pair":
        waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    else:
        waves = np.cos(angles + np.asarray(feature_map.phases))
    return float(feature_map.scale) * np.sqrt(2 / waves.shape[-1]) * waves


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3,), (7, 3), (2, 7, 3)])
def test_a_feature_map_equals_its_definition(key, kind, shape):
    feature_map = random_fourier(key, 3, 20, bandwidth=0.7, kind=kind, scale=1.5)
    x = np.random.default_rng(0).normal(size=shape)
    z = feature_map(jnp.asarray(x))
    assert z.shape == (*shape[:-1], feature_map.dim) == (*shape[:-1], 20)
    assert feature_map.inputs == 3
    np.testing.assert_allclose(z, oracle(feature_map, x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_many_inputs_take_the_matrix_product(key, kind):
    feature_map = random_fourier(key, 50, 8, bandwidth=3.0, kind=kind)
    x = np.random.default_rng(0).normal(size=(4, 5, 50))
    np.testing.assert_allclose(
        feature_map(jnp.asarray(x)), oracle(feature_map, x), rtol=0, atol=1e-13
    )


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distance", [0.0, 0.3, 1.0, 4.0])
def test_estimates_the_gaussian_kernel_with_its_variance(key, kind, distance):
    """Both moments over 8,000 maps of 50 features, each within five standard errors.

    Variances of Sutherland and Schneider (2015), with k(2 delta) = k^4 for the Gaussian kernel.
    """
    draws = 8000
    features = 50
    bandwidth = 1.7
    x = jnp.asarray([0.4, -0.2, 1.1])
    direction = jnp.asarray([1.0, -2.0, 2.0]) / 3
    y = x + distance * bandwidth * direction
    kernel = np.exp(-(distance**2) / 2)
    base = (1 - kernel**2) ** 2
    variance = (base if kind == "pair" else (1 + base) / 2) / features

    def estimate(k):
        feature_map = random_fourier(k, 3, features, bandwidth, kind)
        return feature_map(x) @ feature_map(y)

    estimates = np.asarray(jax.vmap(estimate)(jax.random.split(key, draws)))
    floor = 1e-14  # pairs are exact at distance 0
    assert abs(estimates.mean() - kernel) < 5 * np.sqrt(variance / draws) + floor
    fourth = np.mean((estimates - estimates.mean()) ** 4)
    spread = np.sqrt(max(fourth - variance**2, 0) / draws)
    assert abs(estimates.var() - variance) < 5 * spread + floor


@pytest.mark.slow
def test_pairs_are_better_for_close_points(key):
    x = jnp.asarray([0.5, 0.5])
    y = jnp.asarray([0.7, 0.4])
    kernel = np.exp(-0.05 / 2)
    errors = {}
    for kind in KINDS:

        def error(k, kind=kind):
            feature_map = random_fourier(k, 2, 40, kind=kind)
            return (feature_map(x) @ feature_map(y) - kernel) ** 2

        errors[kind] = jax.vmap(error)(jax.random.split(key, 500)).mean()
    # (1 - k^2)^2 against (1 + (1 - k^2)^2) / 2 at k^2 = 0.95: a factor of 200.
    assert errors["pair"] < errors["cosine"] / 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_features_have_unit_energy_times_their_scale(key, kind):
    x = jax.random.normal(jax.random.fold_in(key, 1), (3,))
    energy = jax.vmap(lambda k: jnp.sum(random_fourier(k, 3, 50, kind=kind, scale=2.0)(x) ** 2))(
        jax.random.split(key, 4000)
    )
    # Var |z|^2 = s^4 / (2D) for cosines, 0 for pairs.
    assert abs(energy.mean() - 4) < 5 * np.sqrt(16 / 100 / 4000)
    if kind == "pair":
        np.testing.assert_allclose(energy, 4, rtol=1e-13)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2.1e-7), (np.float64, 5e-16)])
def test_the_cosine_is_accurate_over_a_thousand_turns(dtype, tolerance):
    random = np.random.default_rng(0).uniform(-1000, 1000, 200_000)
    special = np.arange(-16, 17) / 8
    cycles = np.concatenate([random, np.linspace(-1, 1, 100_001), special, special + 999]).astype(
        dtype
    )
    exact = cycles.astype(np.float64) - np.round(cycles.astype(np.float64))  # no rounding happens
    got = jax.jit(cos_turns)(jnp.asarray(cycles))
    assert got.dtype == dtype
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.cos(2 * np.pi * exact), rtol=0, atol=tolerance
    )
    derivative = jax.jit(jax.vmap(jax.grad(cos_turns)))(jnp.asarray(cycles))
    np.testing.assert_allclose(
        np.asarray(derivative, np.float64),
        -2 * np.pi * np.sin(2 * np.pi * exact),
        rtol=0,
        atol=20 * tolerance if dtype == np.float32 else 2e-13,
    )


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("kind", KINDS)
def test_jit_vmap_and_gradients_of_traced_numbers(key, kind):
    """Key, bandwidth and scale may be traced; the gradient is the finite difference."""
    x = jax.random.normal(jax.random.fold_in(key, 1), (5, 3))

    def total(bandwidth, scale, k=key):
        return jnp.sum(random_fourier(k, 3, 8, bandwidth, kind, scale)(x) ** 3)

    grad = jax.jit(jax.grad(total, argnums=(0, 1)))(1.3, 0.9)
    step = 1e-6
    for i, bump in enumerate([(step, 0), (0, step)]):
        up = total(1.3 + bump[0], 0.9 + bump[1])
        down = total(1.3 - bump[0], 0.9 - bump[1])
        np.testing.assert_allclose(grad[i], (up - down) / (2 * step), rtol=1e-6)
    keys = jax.random.split(key, 3)
    batched = jax.jit(jax.vmap(lambda k, b: total(b, 1.0, k)))(keys, jnp.asarray([0.5, 1, 2]))
    for got, k, b in zip(batched, keys, [0.5, 1, 2], strict=True):
        np.testing.assert_allclose(got, total(b, 1.0, k), rtol=1e-12)


def test_a_new_scale_does_not_compile_again(key):
    feature_map = random_fourier(key, 2, 4)
    traces = []
    apply = jax.jit(lambda m, x: traces.append(1) or m(x))
    apply(feature_map, jnp.ones((3, 2)))
    apply(dataclasses.replace(feature_map, scale=3.0), jnp.ones((3, 2)))
    assert len(traces) == 1


def test_the_draw_is_a_function_of_the_key(key):
    a = random_fourier(key, 2, 6)
    b = random_fourier(key, 2, 6)
    jax.tree.map(np.testing.assert_array_equal, a, b)
    c = random_fourier(jax.random.fold_in(key, 1), 2, 6)
    assert not np.any(np.asarray(a.frequencies) == np.asarray(c.frequencies))
    phases = np.asarray(random_fourier(key, 1, 5000).phases)
    assert phases.min() >= 0
    assert phases.max() < 2 * np.pi
    assert abs(phases.mean() - np.pi) < 5 * 2 * np.pi / np.sqrt(12 * 5000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": 7, "kind": "pair"}, "even"),
        ({"features": 0}, "features must be >= 1"),
        ({"inputs": 0}, "inputs must be >= 1"),
        ({"bandwidth": 0.0}, "bandwidth must be finite and > 0"),
        ({"scale": -1.0}, "scale must be finite and > 0"),
        ({"kind": "pairs"}, "Did you mean 'pair'"),
    ],
)
def test_bad_arguments_are_refused(key, change, message):
    with pytest.raises(ValueError, match=message):
        random_fourier(key, **({"inputs": 2, "features": 6} | change))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones(3), np.ones(3)), "frequencies must be"),
        ((np.ones((3, 2)), None), "one phase a frequency"),
        ((np.ones((3, 2)), np.ones(2)), "one phase a frequency"),
        ((np.ones((3, 2)), np.ones(3), 1.0, "pair"), "phases=None"),
        ((np.full((3, 2), np.nan), np.ones(3)), "frequencies holds 6 NaN"),
    ],
)
def test_bad_maps_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RandomFourier(*arguments)


def test_inputs_of_another_length_are_refused(key):
    with pytest.raises(ValueError, match=r"inputs of shape \[\.\.\., 4\], got shape \(3, 5\)"):
        random_fourier(key, 4, 6)(jnp.ones((3, 5)))
