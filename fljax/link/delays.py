r"""How long a client's message takes to the server, and the line of what is still on its way.

A *delay law* gives each message one of a few lags, or loses it. What a server adds up needs no
message of its own in memory: those of one round with one lag arrive together, so each arrival slot
of the :class:`Line` holds their sums, and a later message that overrides an earlier one on some
parameters simply takes its place there. The line is ``[slots, D]`` whatever the number of clients.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax import _check
from fljax._module import module, static

__all__ = [
    "BEYOND",
    "DelayLaw",
    "DelayTrace",
    "Fixed",
    "Geometric",
    "Line",
    "Uniform",
    "empty_line",
]

#: What becomes of a message that would take longer than the longest lag.
BEYOND = ("discard", "clip")


class DelayLaw:
    """The lag of every message; subclass it for one of your own.

    Attributes:
      lags: the rounds that a message can take, ascending and equally spaced, such as a range; 0
        arrives in the round it is sent in.
    """

    lags: Sequence[int]

    def check(self, clients: int, rounds: int) -> None:
        """Raise ``ValueError`` unless the law fits a run of this size."""

    @_check.required
    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        """For each client's message the index of its lag in ``lags``; ``len(lags)`` is lost."""
        raise NotImplementedError

    def placed(self, classes: Float[Array, "lags ..."]) -> Float[Array, "slots ..."]:
        """What is known of each lag at the slot of the round it arrives in, zero at the others."""
        lags = np.asarray(self.lags)
        step = int(lags[1] - lags[0]) if len(lags) > 1 else 1
        rest = [(0, 0, 0)] * (classes.ndim - 1)
        return jax.lax.pad(
            classes, jnp.zeros((), classes.dtype), [(int(lags[0]), 0, step - 1), *rest]
        )


@module
class Fixed(DelayLaw):
    """Every message takes ``lag`` rounds.

    Args:
      lag: >= 0.

    Raises:
      ValueError: a negative lag.
    """

    lag: int = static(default=0)

    def validate(self) -> None:
        _check.count("lag", self.lag, at_least=0, hint="A message cannot arrive before it is sent.")

    @property
    def lags(self) -> Sequence[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.lag,)

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        return jnp.zeros(clients, jnp.int32)


@module
class Geometric(DelayLaw):
    r"""Delayed by :math:`s\,i` rounds or more with probability :math:`\delta^i` (line 842).

    The source says "or more" at lines 842 and 1097 and "more than" at lines 1148 and 2801; only the
    first gives a probability of no delay, and agrees with line 1172. Beyond the longest lag a
    message is discarded (:math:`\alpha_l=0`, line 922) or its delay is clipped to it ("maximum
    possible delay", line 1168): the source leaves it open, and figure 4.6(b) depends on it.

    Args:
      delta: :math:`\delta\in[0,1)`.
      longest: :math:`l_{\max}\ge0`, a multiple of ``step``.
      step: :math:`s\ge1`, the lags are its multiples; 10 in figure 4.6(c).
      beyond: ``"discard"`` or ``"clip"``.

    Raises:
      ValueError: a delta outside [0, 1), a longest lag below 0 or no multiple of the step.
    """

    delta: Float[Array, ""] | float
    longest: int = static()
    step: int = static(default=1)
    beyond: str = static(default="discard")

    def validate(self) -> None:
        _check.interval("delta", self.delta, at_least=0, below=1)
        _check.count("longest", self.longest, at_least=0)
        _check.count("step", self.step)
        _check.choice("beyond", self.beyond, BEYOND)
        if self.longest % self.step:
            raise ValueError(f"longest must be a multiple of step={self.step}, got {self.longest}.")

    @property
    def lags(self) -> Sequence[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return range(0, self.longest + 1, self.step)

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        dtype = jnp.result_type(self.delta)
        # 1 - u is never zero; at delta = 0 the quotient is zero for every u > 0.
        uniform = 1 - jax.random.uniform(key, (clients,), dtype)
        steps = jnp.floor(jnp.log(uniform) / jnp.log(jnp.asarray(self.delta)))
        last = len(self.lags) - (self.beyond == "clip")
        return jnp.minimum(steps, jnp.asarray(last, dtype)).astype(jnp.int32)


@module
class Uniform(DelayLaw):
    r"""Every message takes 0, 1, ... or ``longest`` rounds, all alike likely; none is lost.

    What partially asynchronous methods are told of delays is their bound alone. The worst that it
    allows at any time is :class:`Fixed`.

    Args:
      longest: :math:`B\ge0`.

    Raises:
      ValueError: a longest lag below 0.

    Reference:
      Jung 2025, lines 2068-2077.
    """

    longest: int = static()

    def validate(self) -> None:
        _check.count("longest", self.longest, at_least=0)

    @property
    def lags(self) -> Sequence[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return range(self.longest + 1)

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        return jax.random.randint(key, (clients,), 0, self.longest + 1, jnp.int32)


@module
class DelayTrace(DelayLaw):
    r"""What was observed of a real network, or injected by a test.

    Args:
      table: ``[T, K]`` integers: how many rounds a message of round 1, 2, ... takes; negative, or
        longer than ``longest``: it is lost.
      longest: :math:`l_{\max}\ge0`.

    Raises:
      ValueError: not a table of integers; fewer rounds than the run or another number of clients.
    """

    table: Any  # Int[Array, "rounds clients"], NumPy or JAX
    longest: int = static()

    def validate(self) -> None:
        _check.count("longest", self.longest, at_least=0)
        object.__setattr__(self, "table", _check.trace("table", self.table, "integers", np.integer))

    @property
    def lags(self) -> Sequence[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return range(self.longest + 1)

    def check(self, clients: int, rounds: int) -> None:
        _check.trace_fits("the trace of delays", self.table, clients, rounds)
        if _check.is_concrete(self.table):
            lag = np.asarray(self.table[:rounds])
            arrives = (lag >= 0) & (lag <= self.longest)
            if not np.any(arrives & (np.arange(rounds)[:, None] + lag < rounds)):
                raise ValueError(
                    f"by the trace of delays no message of the {rounds} rounds arrives before they "
                    "are over; make the run longer or the delays shorter."
                )

    def draw(self, key: Array, round: Array, clients: int) -> Int[Array, " clients"]:
        lag = jnp.asarray(self.table)[round - 1].astype(jnp.int32)
        lost = (lag < 0) | (lag > self.longest)
        return jnp.where(lost, self.longest + 1, lag)


class Line(NamedTuple):
    """What is on its way, the next round's first."""

    total: Array  # [slots, D]  weighted sums of the messages
    share: Array  # [slots, D]  the weights that went into them
    weight: Array  # [slots]    the weights of the messages themselves


def empty_line(law: DelayLaw, dim: int, dtype: Any) -> Line:
    """Nothing on its way.

    Raises:
      ValueError: lags that are not equally spaced.
    """
    if len(set(np.diff(law.lags))) > 1:
        raise ValueError(f"the lags of a delay law must be equally spaced, got {law.lags}.")
    slots = law.lags[-1] + 1
    zero = jnp.zeros((slots, dim), dtype)
    return Line(zero, zero, jnp.zeros(slots, dtype))
