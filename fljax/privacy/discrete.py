r"""The discrete Gaussian: whole numbers with :math:`\Pr[x]\propto e^{-x^2/2s^2}`, from a table.

Noise that is drawn as a real number in floating point leaves traces of what it was added to in the
last bits of the sum. Whole numbers leave none: a message is rounded to a grid, and noise on that
grid is added in exact integer arithmetic.
"""

import decimal
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax import _check
from fljax._module import module, static
from fljax.privacy.notions import ZCDP, Release

__all__ = ["DiscreteZCDP", "discrete_gaussian", "on_grid"]

#: Uniform bits of a draw, and digits to which its table is computed: further down than any run's
#: number of draws can reach.
BITS = 96
DIGITS = 45

#: A message this many steps of its grid from zero is taken for that: whole numbers stay exact.
FARTHEST = 2**30


@functools.cache
def _table(steps: int) -> np.ndarray:
    """``[3, M]``: the distribution function at ``-(M - 1) / 2, ...`` in units of ``2^-96``, its
    high, middle and low 32 bits.
    """
    with decimal.localcontext(prec=DIGITS):
        square, weights, x = 2 * decimal.Decimal(steps) ** 2, [decimal.Decimal(1)], 0
        while weights[-1] > decimal.Decimal(2) ** -(BITS + 8):
            x += 1
            weights.append((-decimal.Decimal(x * x) / square).exp())
        both = [*reversed(weights[1:]), *weights]
        below, found = decimal.Decimal(0), []
        unit = decimal.Decimal(2**BITS) / sum(both, below)
        for weight in both:
            below += weight * unit
            found.append(min(int(below), 2**BITS - 1))
    parts = [[value >> shift & 0xFFFFFFFF for value in found] for shift in (64, 32, 0)]
    return np.array(parts, np.uint32)


def discrete_gaussian(key: Array, shape: tuple[int, ...], steps: int) -> Int[Array, "..."]:
    r"""Whole numbers of the discrete Gaussian distribution of parameter ``steps``.

    By inversion of 96 uniform bits in a table of the distribution function, so that all
    probabilities are right to :math:`2^{-95}`.

    Args:
      key: consumed.
      shape: of what is drawn.
      steps: :math:`s\ge1`, the standard deviation but for :math:`e^{-2\pi^2s^2}`.

    Example:
      >>> import jax
      >>> x = discrete_gaussian(jax.random.key(0), (100_000,), steps=5)
      >>> str(x.dtype), round(float(x.std()), 1)
      ('int32', 5.0)

    References:
      Canonne, Kamath & Steinke 2020, Definition 1.
    """
    table = jnp.asarray(_table(steps))
    size = table.shape[1]
    bits = jax.random.bits(key, (3, *shape), jnp.uint32)

    def passed(entry: Array) -> Array:
        """Whether the bits are at or above the table's entry."""
        high, middle, low = (table[i][entry] for i in range(3))
        last = (bits[1] > middle) | ((bits[1] == middle) & (bits[2] >= low))
        return (bits[0] > high) | ((bits[0] == high) & last)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        first, last = ends
        middle = (first + last) // 2
        above = passed(middle) & (first < last)
        return jnp.where(above, middle + 1, first), jnp.where(above, last, middle)

    ends = jnp.zeros(shape, jnp.int32), jnp.full(shape, size - 1, jnp.int32)
    place, _ = jax.lax.fori_loop(0, size.bit_length(), halve, ends)
    return place - size // 2


def on_grid(
    message: Float[Array, "senders dim"],
    steps: Int[Array, "senders dim"],
    grid: Float[Array, "senders 1"],
) -> Float[Array, "senders dim"]:
    """The message rounded to a grid and moved by whole steps, in integers until the end."""
    whole = jnp.clip(jnp.round(message / grid), -FARTHEST, FARTHEST).astype(jnp.int32)
    return grid * (whole + steps).astype(message.dtype)


@module
class DiscreteZCDP(ZCDP):
    r"""zCDP by discrete Gaussian noise on messages that are rounded to a grid.

    A message :math:`m` becomes :math:`g\,(\lfloor m/g\rceil+x)` with :math:`x` discrete Gaussian
    of ``steps`` :math:`s`. Rounding moves every coordinate by half a step :math:`g` at most, so
    that the sensitivity grows to :math:`\Delta+g\sqrt D`, and

    .. math:: g=\frac{\Delta}{s\sqrt{2\phi^{(n)}}-\sqrt D}

    spends :math:`\phi^{(n)}`. Noise is greater than that of :class:`~fljax.privacy.ZCDP` by the
    factor :math:`1/\big(1-\sqrt D/(s\sqrt{2\phi^{(n)}})\big)`: the finer the grid, the less.

    Args:
      total_rho: as of :class:`~fljax.privacy.ZCDP`, like the other arguments.
      decay: as there.
      gradient_bound: as there.
      schedule: ``"privacy"`` only.
      neighbors: as there.
      steps: :math:`s\ge1`, of the grid to a standard deviation.

    Guarantees:
      As of :class:`~fljax.privacy.ZCDP`, with what is said free of floating-point traces of what
      it was computed from; up to :math:`2^{-95}` for every number drawn, of the table of
      probabilities. That the message before rounding has the stated sensitivity is up to its own
      floating-point arithmetic, as elsewhere.

    Raises:
      ValueError: the ``"variance"`` schedule; a grid too coarse for the budget of some round.

    Reference:
      Canonne, Kamath & Steinke 2020, Theorem 14 (and Proposition 13 for many coordinates).

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2).clipped(1),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.DiscreteZCDP(total_rho=0.5),
      ... )
      >>> round(float(fl.run(simulation, rounds=10).privacy_rho[-1]), 4)
      0.5
    """

    steps: int = static(default=1024)

    gaussian_noise: ClassVar[bool] = False

    def validate(self) -> None:
        super().validate()
        _check.count("steps", self.steps)
        if self.schedule != "privacy":
            raise ValueError(
                f"schedule={self.schedule!r} has no account of what rounding to a grid adds; "
                "leave it out, or take ZCDP."
            )

    def check(self, dim: int, rounds: int) -> None:
        """Raise ``ValueError`` where rounding alone would spend the budget of some round.

        Args:
          dim: numbers in a message.
          rounds: of the run.
        """
        _check.known(functools.partial(self._check, dim, rounds), self.total_rho, self.decay)

    def _check(self, dim: int, rounds: int, total: Any, decay: Any) -> None:
        powers = float(decay) ** np.arange(rounds)
        least = float(total) * powers.min() / powers.sum()
        fewest = (dim / (2 * least)) ** 0.5
        if self.steps <= fewest:
            raise ValueError(
                f"steps must be > {fewest:.4g}, got {self.steps}: rounding {dim} numbers to so "
                f"coarse a grid would spend more than the {least:.3g} that the first of {rounds} "
                "rounds has. Take more steps, a larger total_rho or fewer rounds."
            )

    def release(
        self, plan: Array, sensitivity: Array, round: Array, rounds: int, dim: int
    ) -> Release:
        found = super().release(plan, sensitivity, round, rounds, dim)
        grid = sensitivity / (self.steps * jnp.sqrt(2 * found.spent["rho"]) - dim**0.5)
        return found._replace(scale=self.steps * grid, grid=grid)

    def draw(
        self,
        key: Array,
        shape: tuple[int, ...],
        dtype: Any,
        round: Array,
        clients: Int[Array, " senders"],
    ) -> Array:
        return discrete_gaussian(key, shape, self.steps)
