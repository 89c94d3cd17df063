"""Distributions over clients or rounds: speeds, bandwidths, variations.

A distribution is defined by its quantiles, so that each client's number needs one uniform number,
which depends on the client and not on who else draws: an event draws for one client at the cost of
one.
"""

import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module


class Distribution:
    """A distribution of positive numbers; subclass it to define another.

    Example:
      Seconds whose logarithm is uniform between those of 1 and 100:

      >>> import jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class LogUniform(fl.clock.Distribution):
      ...     def quantile(self, share):
      ...         return 100.0**share
      >>> [round(number, 2) for number in LogUniform().quantile(jnp.array([0.5, 0.75])).tolist()]
      [10.0, 31.62]
      >>> devices = fl.clock.Devices(seconds_per_step=LogUniform())
    """

    @checks.required
    def quantile(self, share: Float[Array, "*numbers"]) -> Float[Array, "*numbers"]:
        """Return the numbers that these shares of the distribution are below.

        Args:
          share: in (0, 1).
        """
        raise NotImplementedError


@module
class Between(Distribution):
    """Uniform between two numbers.

    Args:
      low: > 0, the least number.
      high: the greatest, above ``low``.

    Raises:
      ValueError: numbers that are not positive, or not in this order.

    Example:
      >>> import jax.numpy as jnp
      >>> Between(1.0, 3.0).quantile(jnp.array([0.25, 0.5])).tolist()
      [1.5, 2.0]
    """

    low: Float[Array, ""] | float
    high: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("low", self.low)
        checks.positive("high", self.high)
        if all(map(checks.is_concrete, (self.low, self.high))) and self.high <= self.low:
            raise ValueError(
                f"high must be above low={float(self.low):g}, got {float(self.high):g}."
            )

    def quantile(self, share: Float[Array, "*numbers"]) -> Float[Array, "*numbers"]:
        low = jnp.asarray(self.low, share.dtype)
        return low + share * (jnp.asarray(self.high, share.dtype) - low)


@module
class Exponential(Distribution):
    """Exponential, the times between events that have no memory.

    Args:
      mean: > 0.

    Raises:
      ValueError: a mean that is not positive.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(Exponential(2.0).quantile(jnp.array(0.5))), 4)  # 2 ln 2
      1.3863
    """

    mean: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("mean", self.mean)

    def quantile(self, share: Float[Array, "*numbers"]) -> Float[Array, "*numbers"]:
        return -jnp.asarray(self.mean, share.dtype) * jnp.log1p(-share)


@module
class LogNormal(Distribution):
    r"""The exponential of a normal number: :math:`me^{\sigma z}`.

    Args:
      median: :math:`m>0`.
      spread: :math:`\sigma\ge0`, the standard deviation of the logarithm. At 1 the slowest of a
        hundred clients is about twelve times slower than the median one.

    Raises:
      ValueError: a median that is not positive, a negative spread.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(LogNormal(1.0, spread=1.0).quantile(jnp.array(0.99))), 2)
      10.24
    """

    median: Float[Array, ""] | float
    spread: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("median", self.median)
        checks.nonnegative("spread", self.spread)

    def quantile(self, share: Float[Array, "*numbers"]) -> Float[Array, "*numbers"]:
        spread = jnp.asarray(self.spread, share.dtype)
        return jnp.asarray(self.median, share.dtype) * jnp.exp(spread * ndtri(share))


@module
class HalfNormal(Distribution):
    r"""The absolute value of a normal number with mean zero: :math:`s|z|`.

    Nguyen et al. 2022 found it to fit the training times of a large number of phones.

    Args:
      scale: :math:`s>0`; the mean is :math:`s\sqrt{2/\pi}`.

    Raises:
      ValueError: a scale that is not positive.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(HalfNormal(1.0).quantile(jnp.array(0.5))), 4)
      0.6745
    """

    scale: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("scale", self.scale)

    def quantile(self, share: Float[Array, "*numbers"]) -> Float[Array, "*numbers"]:
        return jnp.asarray(self.scale, share.dtype) * ndtri((1 + share) / 2)


@module
class Pareto(Distribution):
    r"""Power law with a heavy tail: a number is above :math:`x` with probability :math:`(m/x)^a`.

    Args:
      least: :math:`m>0`.
      power: :math:`a>0`; up to 1 the mean is infinite.

    Raises:
      ValueError: numbers that are not positive.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(Pareto(1.0, power=2.0).quantile(jnp.array(0.75))), 4)
      2.0
    """

    least: Float[Array, ""] | float
    power: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("least", self.least)
        checks.positive("power", self.power)

    def quantile(self, share: Float[Array, "*numbers"]) -> Float[Array, "*numbers"]:
        power = jnp.asarray(self.power, share.dtype)
        return jnp.asarray(self.least, share.dtype) * (1 - share) ** (-1 / power)
