"""Convolutions and pooling whose gradients are fast within loops on a CPU.

XLA's CPU compiler computes the gradient of a convolution within a loop by a generic program, which
is 10 to 80 times slower than the convolution itself (measured with JAX 0.10), and all steps of
training are within loops; and it computes convolutions of different images with different kernels,
as of several clients, as one with groups, five times slower than one by one. So the convolutions of
a network are replaced by a primitive of the same values whose gradient by images is a convolution
like the first, and whose gradient by kernels is a sum of matrix products. The gradient of a maximum
over windows that do not overlap, seven times slower in XLA's form, is that of a selection.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from fljax._core.split_rows import bind_equation

#: The names in programs of functions whose activations are computed again for the gradient.
REMATERIALIZED = ("checkpoint", "remat", "remat2")


class Window(NamedTuple):
    """How the kernel of a convolution moves over an image, along each of its spatial axes."""

    image: tuple[int, ...]  # pixels of the image
    kernel: tuple[int, ...]  # pixels of the kernel
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after the image
    precision: Any


def with_fast_gradients(function: Callable[..., Any], *arguments: object) -> Any:
    """Return ``function(*arguments)``, with its convolutions and pooling replaced."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    results = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def contains_replaced(jaxpr: Any) -> bool:
    """Whether a program has operations that :func:`with_fast_gradients` replaces."""
    return any(
        _replacement(equation) is not None
        if (inner := _inner_program(equation)) is None
        else contains_replaced(inner)
        for equation in jaxpr.eqns
    )


def _replacement(equation: Any) -> Callable[..., Array] | None:
    """The function of an equation's operands that replaces it, if there is one."""
    if _is_plain_convolution(equation):
        return functools.partial(_convolved, equation.params)
    if _is_plain_pooling(equation):
        return functools.partial(_pooled, tuple(equation.params["window_dimensions"]))
    return None


def _is_plain_pooling(equation: Any) -> bool:
    """Whether an equation is a maximum over windows that do not overlap, without edges."""
    if equation.primitive.name != "reduce_window_max":
        return False
    parameters = equation.params
    dilations = (*parameters["base_dilation"], *parameters["window_dilation"])
    return (
        tuple(parameters["window_dimensions"]) == tuple(parameters["window_strides"])
        and all(tuple(edges) == (0, 0) for edges in parameters["padding"])
        and all(dilation == 1 for dilation in dilations)
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _pooled(window: tuple[int, ...], images: Array) -> Array:
    """The largest number of each window."""
    return lax.reduce_window(images, -jnp.inf, lax.max, window, window, "VALID")


@_pooled.defjvp
def _pooled_jvp(
    window: tuple[int, ...], primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    """The change of the first of a window's largest numbers, to which XLA's gradient goes, too."""
    counts = [size // length for size, length in zip(primals[0].shape, window, strict=True)]
    split = [part for pair in zip(counts, window, strict=True) for part in pair]
    within = tuple(range(1, len(split), 2))
    covered = [count * length for count, length in zip(counts, window, strict=True)]
    images, changes = (
        lax.slice(a, (0,) * a.ndim, covered).reshape(split) for a in (*primals, *tangents)
    )
    largest = _pooled(window, primals[0])
    # The position of each number in its window.
    lengths = [length if axis in within else 1 for axis, length in enumerate(split)]
    position = np.arange(np.prod(window), dtype=np.int32).reshape(lengths)
    is_largest = (images == jnp.expand_dims(largest, within)) | jnp.isnan(images)
    first = jnp.where(is_largest, position, position.size)
    first = jnp.min(first, axis=within, keepdims=True)
    return largest, jnp.sum(jnp.where(position == first, changes, 0), axis=within)


def _inner_program(equation: Any) -> Any:
    """The program of an equation that compiles or rematerializes a function, else ``None``."""
    if equation.primitive.name == "jit":
        return equation.params["jaxpr"].jaxpr
    return equation.params["jaxpr"] if equation.primitive.name in REMATERIALIZED else None


def _is_plain_convolution(equation: Any) -> bool:
    """Whether an equation is a plain convolution: of all channels, without dilation."""
    if equation.primitive.name != "conv_general_dilated":
        return False
    parameters = equation.params
    dilations = (*parameters["lhs_dilation"], *parameters["rhs_dilation"])
    return (
        parameters["feature_group_count"] == 1
        and parameters["batch_group_count"] == 1
        and all(dilation == 1 for dilation in dilations)
        and parameters["preferred_element_type"] in (None, equation.invars[0].aval.dtype)
    )


def _evaluate(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The results of a program with its convolutions replaced."""
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        inner = _inner_program(equation)
        if inner is not None and contains_replaced(inner):
            consts = equation.params["jaxpr"].consts if equation.primitive.name == "jit" else ()

            def compute(*operands: Any, inner: Any = inner, consts: Any = consts) -> list[Any]:
                return _evaluate(inner, consts, operands)

            if equation.primitive.name in REMATERIALIZED:
                settings = {name: equation.params[name] for name in ("policy", "prevent_cse")}
                compute = jax.checkpoint(compute, **settings)
            results = compute(*operands)
        elif (replaced := _replacement(equation)) is not None:
            results = [replaced(*operands)]
        else:
            results = bind_equation(equation, operands)
        values |= dict(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _convolved(parameters: dict[str, Any], images: Array, kernel: Array) -> Array:
    """The same convolution by :data:`convolution_p`, with channels last."""
    axes = parameters["dimension_numbers"]
    spatial = axes.lhs_spec[2:]
    images = images.transpose(axes.lhs_spec[0], *spatial, axes.lhs_spec[1])
    kernel = kernel.transpose(*axes.rhs_spec[2:], axes.rhs_spec[1], axes.rhs_spec[0])
    window = Window(
        images.shape[1:-1],
        kernel.shape[:-2],
        tuple(parameters["window_strides"]),
        tuple(map(tuple, parameters["padding"])),
        parameters["precision"],
    )
    result = convolution_p.bind(images, kernel, window=window)
    order = [0] * result.ndim
    for axis, position in enumerate((axes.out_spec[0], *axes.out_spec[2:], axes.out_spec[1])):
        order[position] = axis
    return result.transpose(order)


# The primitive: images [N, ..., I] and a kernel [..., I, O] become images [N, ..., O]. ------------


def _by_xla(images: Array, kernel: Array, *, window: Window) -> Array:
    letters = "HWD"[: images.ndim - 2]
    specification = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    return lax.conv_general_dilated(
        images,
        kernel,
        window.strides,
        window.padding,
        dimension_numbers=specification,
        precision=window.precision,
    )


def _abstract(images: Any, kernel: Any, *, window: Window) -> Any:
    """The shape and type of the result, from those of the arguments."""
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (images, kernel)]
    return images.update(
        shape=jax.eval_shape(functools.partial(_by_xla, window=window), *shapes).shape
    )


def _image_gradient(cotangent: Any, images: Any, kernel: Array, *, window: Window) -> Array:
    """Another convolution, of the cotangent with zeros between its pixels and the kernel turned."""
    spread = [(0, 0, 0), *((0, 0, stride - 1) for stride in window.strides), (0, 0, 0)]
    cotangent = lax.pad(cotangent, jnp.zeros((), cotangent.dtype), spread)
    pixels = cotangent.shape[1:-1]
    padding = []
    for size, length, count, (before, _) in zip(
        window.image, window.kernel, pixels, window.padding, strict=True
    ):
        first = length - 1 - before
        padding.append((first, size - count - first + length - 1))
    axes = tuple(range(len(pixels)))
    turned = jnp.flip(kernel, axes).swapaxes(-1, -2)
    plain = Window(pixels, window.kernel, (1,) * len(pixels), tuple(padding), window.precision)
    return convolution_p.bind(cotangent, turned, window=plain)


def _kernel_gradient(cotangent: Any, images: Array, kernel: Any, *, window: Window) -> Array:
    """For each pixel of the kernel a product of the images, shifted, and the cotangent."""
    edges = [(0, 0, 0), *((before, after, 0) for before, after in window.padding), (0, 0, 0)]
    padded = lax.pad(images, jnp.zeros((), images.dtype), edges)
    counts = cotangent.shape[1:-1]
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    products = []
    for pixel in itertools.product(*map(range, window.kernel)):
        ends = [
            first + (count - 1) * stride + 1
            for first, count, stride in zip(pixel, counts, window.strides, strict=True)
        ]
        shifted = lax.slice(
            padded,
            (0, *pixel, 0),
            (len(padded), *ends, padded.shape[-1]),
            (1, *window.strides, 1),
        )
        shifted = shifted.reshape(-1, shifted.shape[-1])
        products.append(lax.dot(shifted.T, rows, precision=window.precision))
    return jnp.stack(products).reshape(*window.kernel, *products[0].shape)


def _batch(arguments: Sequence[Array], axes: Sequence[int | None], *, window: Window) -> Any:
    """Images alone are more images; different kernels have their images one after the other."""
    images, kernel = arguments
    images_axis, kernel_axis = axes
    if kernel_axis is None:
        assert images_axis is not None
        images = jnp.moveaxis(images, images_axis, 0)
        joined = images.reshape(-1, *images.shape[2:])
        result = convolution_p.bind(joined, kernel, window=window)
        return result.reshape(*images.shape[:2], *result.shape[1:]), 0
    kernel = jnp.moveaxis(kernel, kernel_axis, 0)
    if images_axis is None:
        return lax.map(lambda one: convolution_p.bind(images, one, window=window), kernel), 0
    pairs = jnp.moveaxis(images, images_axis, 0), kernel
    return lax.map(lambda pair: convolution_p.bind(*pair, window=window), pairs), 0


#: The primitive.
convolution_p = core.Primitive("convolution")
convolution_p.def_impl(jax.jit(_by_xla, static_argnames="window"))
convolution_p.def_abstract_eval(_abstract)
ad.defbilinear(convolution_p, _image_gradient, _kernel_gradient)
batching.primitive_batchers[convolution_p] = _batch
mlir.register_lowering(convolution_p, mlir.lower_fun(_by_xla, multiple_results=False))
