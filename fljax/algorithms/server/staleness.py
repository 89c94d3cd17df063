"""Weights of stale messages."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static

#: What staleness may be counted in on a clock.
UNITS = ("versions", "seconds")


class Staleness:
    """Base class of weights of stale messages; subclass it for one of your own.

    Attributes:
      of: what is counted on a clock of single arrivals (:class:`fljax.clock.Asynchronous`): the
        ``"versions"`` of the server's model since it was sent to the client, or the ``"seconds"``.
        With ``delays=`` it is rounds.

    Example:
      Messages older than two rounds have no weight:

      >>> import jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Recent(fl.algorithms.Staleness):
      ...     def __call__(self, late):
      ...         return jnp.where(late <= 2, 1.0, 0.0)
      >>> Recent()(jnp.arange(5.0)).tolist()
      [1.0, 1.0, 1.0, 0.0, 0.0]
    """

    of: str = "versions"

    @checks.required
    def __call__(self, late: Float[Array, " lags"]) -> Float[Array, " lags"]:
        """Return the factors of messages that are ``late`` versions, seconds or rounds old."""
        raise NotImplementedError


@module
class PolynomialStaleness(Staleness):
    r""":math:`s(\tau)=(1+\tau)^{-a}`.

    Args:
      power: :math:`a\ge0`; 0 is the constant :math:`s=1`.
      of: ``"versions"`` or ``"seconds"``, as in :class:`Staleness`.

    Raises:
      ValueError: a negative power.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> fl.algorithms.PolynomialStaleness(0.5)(jnp.array([0.0, 3.0, 15.0])).tolist()
      [1.0, 0.5, 0.25]

    Reference:
      Xie et al. 2019; Nguyen et al. 2022, whose :math:`a` is 1/2.
    """

    power: Float[Array, ""] | float = 0.5
    of: str = static(default="versions", kw_only=True)

    def validate(self) -> None:
        checks.nonnegative("power", self.power)
        checks.choice("of", self.of, UNITS)

    def __call__(self, late: Float[Array, " lags"]) -> Float[Array, " lags"]:
        return (1 + late) ** -jnp.asarray(self.power, late.dtype)


@module
class HingeStaleness(Staleness):
    r""":math:`s(\tau)=1` up to :math:`\tau=b`, and :math:`1/(a(\tau-b)+1)` beyond.

    Args:
      slope: :math:`a\ge0`.
      patience: :math:`b\ge0`, in the unit of staleness.
      of: ``"versions"`` or ``"seconds"``, as in :class:`Staleness`.

    Raises:
      ValueError: a negative slope or patience.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> staleness = fl.algorithms.HingeStaleness(slope=1.0, patience=2.0)
      >>> staleness(jnp.array([0.0, 2.0, 3.0, 5.0])).tolist()
      [1.0, 1.0, 0.5, 0.25]

    Reference:
      Xie et al. 2019.
    """

    slope: Float[Array, ""] | float
    patience: Float[Array, ""] | float
    of: str = static(default="versions", kw_only=True)

    def validate(self) -> None:
        checks.choice("of", self.of, UNITS)
        checks.nonnegative("slope", self.slope)
        checks.nonnegative("patience", self.patience)

    def __call__(self, late: Float[Array, " lags"]) -> Float[Array, " lags"]:
        excess = jnp.maximum(late - jnp.asarray(self.patience, late.dtype), 0)
        return 1 / (jnp.asarray(self.slope, late.dtype) * excess + 1)
