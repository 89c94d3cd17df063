"""Forms of convolutions of several clients, whose images and kernels are all different.

``grouped`` is what ``vmap`` makes of a convolution: one with a group for each client. ``products``
is a batched matrix product of the shifted images. ``one by one`` is a loop over the clients, with
plain convolutions. Which is fastest depends on the card, the network and the batch: the first row
of a run measures it, and the rows after it use the form that was fastest for their network.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from fljax.problems import Model

#: XLA's own, which the form of products falls back on.
BY_XLA = jax.lax.conv_general_dilated

FORMS = ("grouped", "products", "one by one")

#: The form in which clients are computed at present.
_FORM: ContextVar[str] = ContextVar("_FORM", default="grouped")


def by_products(
    images: Any,
    kernel: Any,
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    **more: Any,
) -> Any:
    """A convolution of images ``[N, H, W, C]`` as one product of shifted copies."""
    settings = {
        "lhs_dilation": lhs_dilation,
        "rhs_dilation": rhs_dilation,
        "dimension_numbers": dimension_numbers,
        "feature_group_count": feature_group_count,
        "batch_group_count": batch_group_count,
        "precision": precision,
        "preferred_element_type": preferred_element_type,
    }
    numbers = jax.lax.conv_dimension_numbers(images.shape, kernel.shape, dimension_numbers)
    channels_last = (
        jax.lax.conv_dimension_numbers(images.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
        if images.ndim == 4
        else None
    )
    dilated = any(d != 1 for d in (*(lhs_dilation or ()), *(rhs_dilation or ())))
    plain = feature_group_count == batch_group_count == 1 and not dilated
    if not plain or numbers != channels_last:
        return BY_XLA(images, kernel, window_strides, padding, **settings, **more)
    size = kernel.shape[:2]
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(images.shape[1:3], size, window_strides, padding)
    padded = jnp.pad(images, ((0, 0), *map(tuple, padding), (0, 0)))
    counts = [
        (length - width) // stride + 1
        for length, width, stride in zip(padded.shape[1:3], size, window_strides, strict=True)
    ]
    shifted = [
        jax.lax.slice(
            padded,
            (0, *first, 0),
            (
                len(padded),
                *(
                    start + (count - 1) * stride + 1
                    for start, count, stride in zip(first, counts, window_strides, strict=True)
                ),
                padded.shape[3],
            ),
            (1, *window_strides, 1),
        )
        for first in itertools.product(*map(range, size))
    ]
    rows = jnp.concatenate(shifted, axis=-1)
    return jax.lax.dot_general(
        rows,
        kernel.reshape(-1, kernel.shape[3]),
        (((3,), (0,)), ((), ())),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


@contextlib.contextmanager
def in_form(form: str) -> Iterator[None]:
    """Within, local steps of flax's networks are traced in this form."""
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}.")
    token = _FORM.set(form)
    with contextlib.ExitStack() as patches:
        if form == "products":
            patches.enter_context(mock.patch.object(jax.lax, "conv_general_dilated", by_products))
        if form == "one by one":
            patches.enter_context(mock.patch.object(Model, "together", return_value=1))
        try:
            yield
        finally:
            _FORM.reset(token)


def over_clients(function: Callable[..., Any], model: Any, arrays: Any) -> Any:
    """``function(model, *arrays)`` of all clients, side by side or one by one."""
    if _FORM.get() == "one by one":
        return jax.lax.map(lambda client: function(model, *client), arrays)
    return jax.vmap(lambda *client: function(model, *client))(*arrays)
