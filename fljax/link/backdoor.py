"""Backdoors: a trigger in the features that makes a model predict an attacker's class.

A backdoored model is as accurate as any other on samples without the trigger, so its error does not
reveal the attack. The trigger may be a property that samples have naturally (one hour of the day),
or a pattern that is stamped on them (the corner of an image).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from fljax._core import checks
from fljax._core.annotations import check_fields


@dataclass(frozen=True)
class Trigger:
    """A trigger: some features, and the values they take.

    Args:
      features: indices of the features, in a flattened sample.
      values: one per feature, or one for all.

    Raises:
      TypeError: indices of features that are not integers; values that are not numbers.
      ValueError: no features, negative ones or one twice; another number of values.

    Example:
      >>> trigger = Trigger([0, 2], [1.0, 9.0])
      >>> trigger.stamp(jnp.zeros((1, 2, 3)))[0].tolist()
      [[1.0, 0.0, 9.0], [1.0, 0.0, 9.0]]
      >>> trigger.worn(jnp.array([[[1.0, 5.0, 9.0], [1.0, 5.0, 8.0]]])).tolist()
      [[True, False]]

    Reference:
      Bagdasaryan et al. 2020; Jung 2025, section 10.2.
    """

    features: Annotated[Sequence[int], "a tuple once constructed"]
    values: Annotated[Sequence[float] | float, "a tuple once constructed, as long"]

    def __post_init__(self) -> None:
        check_fields(self)
        features = np.atleast_1d(np.asarray(checks.array("features", self.features)))
        if features.ndim != 1 or not np.issubdtype(features.dtype, np.integer):
            raise TypeError(
                f"features must be numbers of features, got {checks.shown(self.features)}."
            )
        values = np.asarray(checks.filled("values", self.values), np.float64)
        checks.interval("values", values)
        if values.shape not in ((), features.shape):
            raise ValueError(
                f"values must be one number, or one for each of the {features.size} features, got "
                f"shape {values.shape}."
            )
        if not features.size or features.min() < 0 or len(set(features.tolist())) < features.size:
            raise ValueError(
                f"features must be distinct indices >= 0, at least one, got {features.tolist()}."
            )
        values = np.broadcast_to(values, features.shape)
        object.__setattr__(self, "features", tuple(features.tolist()))
        object.__setattr__(self, "values", tuple(values.tolist()))

    def check(self, sample: tuple[int, ...]) -> None:
        """Raise ``ValueError`` for a feature that samples of this shape do not have."""
        size = int(np.prod(sample))
        if max(self.features) >= size:
            raise ValueError(
                f"the trigger has feature {max(self.features)}, and samples have {size}, numbered "
                f"from 0 to {size - 1}."
            )

    def stamp(
        self, features: Shaped[Array, "clients samples *sample"] | np.ndarray
    ) -> Shaped[Array, "clients samples *sample"]:
        """Return all samples with the trigger set."""
        flat = self._flattened(features)
        values = jnp.asarray(self.values, flat.dtype)
        return flat.at[..., np.array(self.features)].set(values).reshape(features.shape)

    def worn(
        self, features: Shaped[Array, "clients samples *sample"] | np.ndarray
    ) -> Bool[Array, "clients samples"]:
        """Return which samples have the trigger."""
        flat = self._flattened(features)
        values = jnp.asarray(self.values, flat.dtype)
        return jnp.all(flat[..., np.array(self.features)] == values[None, None], axis=-1)

    def _flattened(self, features: Array | np.ndarray) -> Float[Array, "clients samples features"]:
        self.check(features.shape[2:])
        return jnp.asarray(features).reshape(*features.shape[:2], -1)
