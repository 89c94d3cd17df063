"""Augmentation: random changes of images in training, ``Model(augment=...)``.

An augmentation is a function of a key and one sample, ``(key, sample) -> sample``, with results of
the same shape; write your own, or use one of any library. The classes here change images
``[H, W, C]`` or ``[H, W]``. Standardize data before the study: that change is not random.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax._core import checks
from fljax._core.module import module, static

__all__ = ["Crop", "Cutout", "Flip", "InOrder"]


def _check_image(sample: Array) -> None:
    if sample.ndim not in (2, 3):
        raise ValueError(
            f"samples must be images, [H, W] or [H, W, C], got shape {sample.shape}; take another "
            "augmentation."
        )


@module
class Crop:
    """A random part, of the image's own size, of the image with an edge of zeros (He et al. 2016).

    Args:
      padding: width of the edge, >= 1.

    Raises:
      ValueError: another width; samples that are not images.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> image = jnp.ones((6, 6))
      >>> cropped = fl.augmentations.Crop(2)(jax.random.key(1), image)
      >>> cropped.shape, bool(16 <= cropped.sum() <= 36)
      ((6, 6), True)
    """

    padding: int = static()

    def validate(self) -> None:
        checks.count("padding", self.padding)

    def __call__(self, key: Array, sample: Array) -> Array:
        """Return the sample after the change."""
        _check_image(sample)
        edges = [(self.padding, self.padding)] * 2 + [(0, 0)] * (sample.ndim - 2)
        corner = jax.random.randint(key, (2,), 0, 2 * self.padding + 1, jnp.int32)
        first = [corner[0], corner[1], *[jnp.int32(0)] * (sample.ndim - 2)]
        return jax.lax.dynamic_slice(jnp.pad(sample, edges), first, sample.shape)


@module
class Flip:
    """The image or its mirror image, left and right, with equal probabilities.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> image = jnp.arange(3.0)[None]
      >>> keys = jax.random.split(jax.random.key(0), 50)
      >>> flipped = jax.vmap(fl.augmentations.Flip(), (0, None))(keys, image)
      >>> jnp.unique(flipped, axis=0).tolist()
      [[[0.0, 1.0, 2.0]], [[2.0, 1.0, 0.0]]]
    """

    def __call__(self, key: Array, sample: Array) -> Array:
        """Return the sample after the change."""
        _check_image(sample)
        return jnp.where(jax.random.bernoulli(key), sample[:, ::-1], sample)


@module
class Cutout:
    """The image without a square: zeros around a random pixel, as far as the image reaches.

    Args:
      size: width of the square, >= 1.

    Raises:
      ValueError: another width; samples that are not images.

    Reference:
      DeVries and Taylor 2017, section 3.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> image = fl.augmentations.Cutout(3)(jax.random.key(0), jnp.ones((8, 8)))
      >>> int(64 - image.sum()) in (4, 6, 9)
      True
    """

    size: int = static()

    def validate(self) -> None:
        checks.count("size", self.size)

    def __call__(self, key: Array, sample: Array) -> Array:
        """Return the sample after the change."""
        _check_image(sample)
        is_inside = jnp.ones((), bool)
        for axis, axis_key in enumerate(jax.random.split(key)):
            pixel = jnp.arange(sample.shape[axis], dtype=jnp.int32)
            center = jax.random.randint(axis_key, (), 0, sample.shape[axis], jnp.int32)
            offset = pixel - (center - self.size // 2)
            is_near = (offset >= 0) & (offset < self.size)
            shape = [1] * sample.ndim
            shape[axis] = sample.shape[axis]
            is_inside = is_inside & is_near.reshape(shape)
        return jnp.where(is_inside, jnp.zeros((), sample.dtype), sample)


@module
class InOrder:
    """Several augmentations, one after the other, each with a key of its own.

    Args:
      steps: functions ``(key, sample) -> sample``.

    Raises:
      TypeError: other values than functions.
      ValueError: an empty sequence.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> change = fl.augmentations.InOrder((fl.augmentations.Crop(4), fl.augmentations.Flip()))
      >>> change(jax.random.key(0), jnp.ones((32, 32, 3))).shape
      (32, 32, 3)
    """

    steps: tuple[Callable[..., Array], ...] = static()

    def validate(self) -> None:
        checks.kind("steps", self.steps, Sequence)
        if not self.steps:
            raise ValueError("steps has no function; give one or more, or leave augment= out.")
        object.__setattr__(self, "steps", tuple(self.steps))
        for step in self.steps:
            if not callable(step):
                raise TypeError(
                    f"steps must be functions (key, sample) -> sample, got {checks.shown(step)}."
                )

    def __call__(self, key: Array, sample: Array) -> Array:
        """Return the sample after all changes."""
        for number, step in enumerate(self.steps):
            sample = step(jax.random.fold_in(key, np.uint32(number)), sample)
        return sample
