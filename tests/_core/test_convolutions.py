"""Convolutions by the library's primitive: values and all derivatives are those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fljax as fl
from fljax._core.convolutions import contains_replaced, convolution_p, with_fast_gradients
from fljax._core.devices import on_cpu

close = np.testing.assert_allclose
LAST = ("NHWC", "HWIO", "NHWC")

#: Shapes of images and of kernels, and how these move.
FORMS = {
    "same": ((3, 6, 7, 2), (3, 3, 2, 4), {"padding": "SAME"}),
    "strided": ((3, 8, 9, 2), (3, 2, 2, 4), {"window_strides": (2, 2), "padding": "SAME"}),
    "rows left out": ((2, 8, 9, 2), (1, 1, 2, 4), {"window_strides": (3, 2), "padding": "VALID"}),
    "uneven edges": (
        (2, 9, 8, 2),
        (3, 3, 2, 4),
        {"window_strides": (3, 2), "padding": ((2, 0), (3, 4))},
    ),
    "cropped": ((2, 9, 8, 2), (3, 3, 2, 4), {"padding": ((-1, 0), (3, -2))}),
    "channels first": ((3, 2, 9, 8), (4, 2, 3, 3), {"dimension_numbers": None, "padding": "SAME"}),
    "sequences": (
        (3, 9, 2),
        (4, 2, 5),
        {
            "window_strides": (2,),
            "padding": "SAME",
            "dimension_numbers": ("NWC", "WIO", "NWC"),
        },
    ),
    "volumes": (
        (2, 5, 6, 4, 2),
        (2, 3, 2, 2, 3),
        {
            "window_strides": (2, 1, 1),
            "padding": "SAME",
            "dimension_numbers": ("NHWDC", "HWDIO", "NHWDC"),
        },
    ),
}


def has_convolutions(function, *arguments):
    return contains_replaced(jax.make_jaxpr(function)(*arguments).jaxpr)


def sides(form):
    """The convolution by XLA and by the primitive, with an image and a kernel."""
    images, kernel, settings = FORMS[form]
    settings = {"window_strides": (1,) * (len(images) - 2), "dimension_numbers": LAST} | settings
    rng = np.random.default_rng(0)

    def by_xla(x, k):
        return lax.conv_general_dilated(x, k, **settings)

    def ours(x, k):
        return with_fast_gradients(by_xla, x, k)

    return by_xla, ours, (jnp.asarray(rng.normal(size=s)) for s in (images, kernel))


def compare(one, other, *arguments):
    for a, b in zip(
        jax.tree.leaves(one(*arguments)), jax.tree.leaves(other(*arguments)), strict=True
    ):
        close(a, b, rtol=1e-11, atol=1e-11)
        assert np.abs(a).max() > 0


@pytest.mark.parametrize("form", FORMS)
def test_values_and_derivatives_are_those_of_jax(form):
    by_xla, ours, (x, k) = sides(form)
    assert has_convolutions(by_xla, x, k)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=by_xla(x, k).shape))

    def gradient(convolve):
        return jax.grad(lambda x, k: jnp.sum(jnp.tanh(convolve(x, k)) * weights), (0, 1))

    def of_gradient(convolve):
        def size(x, k):
            return sum(jnp.sum(part**2) for part in gradient(convolve)(x, k))

        return jax.grad(size, (0, 1))

    def product_with_hessian(convolve):
        return lambda x, k: jax.jvp(gradient(convolve), (x, k), (x, k))[1]

    compare(by_xla, ours, x, k)
    for transform in (gradient, of_gradient, product_with_hessian):
        compare(transform(by_xla), transform(ours), x, k)
    several = jnp.stack([x, 2 * x, x + 1]), jnp.stack([k, 2 * k, k - 1])
    for axes in ((0, 0), (0, None), (None, 0)):
        chosen = [
            many if axis == 0 else one
            for axis, many, one in zip(axes, several, (x, k), strict=True)
        ]
        compare(
            *(jax.jit(jax.vmap(gradient(convolve), axes)) for convolve in (by_xla, ours)), *chosen
        )


def test_the_gradients_of_different_networks_are_computed_together_or_one_by_one():
    """Also an axis of seeds around one of clients."""
    by_xla, ours, (x, k) = sides("strided")
    x = jnp.stack([jnp.stack([x, x + 1]), jnp.stack([2 * x, x - 1])])
    k = jnp.stack([k, -k])

    def gradient(convolve):
        one = jax.grad(lambda x, k: jnp.sum(convolve(x, k) ** 2), (0, 1))
        return jax.vmap(jax.vmap(one, (0, None)))

    compare(gradient(by_xla), gradient(ours), x, k)


@pytest.mark.parametrize(
    "settings",
    [
        {"rhs_dilation": (2, 2)},
        {"lhs_dilation": (2, 2)},
        {"feature_group_count": 2},
    ],
    ids=["dilated kernel", "dilated image", "groups"],
)
def test_other_convolutions_are_left_to_xla(settings):
    x = jnp.ones((2, 6, 6, 2))
    k = jnp.ones((3, 3, 2 // settings.get("feature_group_count", 1), 2))

    def convolve(x, k):
        return lax.conv_general_dilated(
            x, k, (1, 1), ((1, 1), (1, 1)), dimension_numbers=LAST, **settings
        )

    assert not has_convolutions(convolve, x, k)
    compare(convolve, lambda x, k: with_fast_gradients(convolve, x, k), x, k)


@pytest.mark.parametrize("shape", [(2, 6, 6, 3), (2, 7, 5, 3)], ids=["even", "edges left out"])
def test_pooling_is_that_of_jax(shape):
    """Also where several numbers of a window are the largest: the first gets the gradient."""

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def ours(x):
        return with_fast_gradients(pool, x)

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 3, shape).astype(float))  # many are equal
    assert has_convolutions(pool, x)
    gradient = jax.make_jaxpr(jax.grad(lambda x: jnp.sum(ours(x) ** 2)))(x)
    assert "select_and_scatter" not in str(gradient)
    weights = jnp.asarray(rng.normal(size=pool(x).shape))
    compare(pool, ours, x)
    compare(
        *(jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x)) * weights)) for f in (pool, ours)), x + 0.1
    )
    infinite = x.at[0, :2, :2].set(-jnp.inf)
    np.testing.assert_array_equal(pool(infinite), ours(infinite))


def test_overlapping_pooling_is_left_to_xla():
    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 6, 3)))
    assert not has_convolutions(pool, x)


def test_convolutions_within_compiled_functions_are_replaced():
    kernel = jnp.ones((3, 3, 2, 2))

    @jax.jit
    def layer(x):
        return jax.nn.relu(
            lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=LAST)
        )

    def network(x):
        return jnp.sum(layer(layer(x)), axis=(1, 2))

    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 5, 2)))
    program = str(jax.make_jaxpr(lambda x: with_fast_gradients(network, x))(x))
    assert program.count(f" {convolution_p.name}[") == 2
    assert "conv_general_dilated" not in program
    compare(network, lambda x: with_fast_gradients(network, x), x)


def test_convolutions_whose_activations_are_computed_again_are_replaced():
    """The gradient computes them once more, and is the same."""
    by_xla, _, (x, k) = sides("strided")

    def size(x, k):
        return jnp.sum(jax.checkpoint(lambda x, k: jnp.tanh(by_xla(x, k)))(x, k) ** 2)

    def replaced(x, k):
        return with_fast_gradients(size, x, k)

    program = str(jax.make_jaxpr(jax.grad(replaced, (0, 1)))(x, k))
    assert "conv_general_dilated" not in program
    assert program.count(f" {convolution_p.name}[") == 3  # forward, again, and by images
    compare(jax.grad(size, (0, 1)), jax.grad(replaced, (0, 1)), x, k)


@pytest.mark.skipif(not on_cpu(), reason="other devices have XLA's own")
def test_a_networks_steps_have_no_gradient_of_xlas_convolution():
    pytest.importorskip("flax")
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(6, 12, 12, 3)), rng.integers(0, 3, 6)) for _ in range(2)]
    network = fl.models.resnet(3, blocks=(1,), width=4, groups=2)
    problem = fl.problems.Model.from_clients(
        network, jax.random.key(0), data, fl.problems.Softmax(3)
    )
    models = jnp.broadcast_to(problem.initial, (2, problem.dim))
    program = str(jax.make_jaxpr(problem.loss_gradient)(models))
    assert convolution_p.name in program
    assert "conv_general_dilated" not in program
