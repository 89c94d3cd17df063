r"""Compression of messages: fewer bits for each number, or fewer numbers.

A compressor acts on each row of ``[senders, D]`` separately, and returns the number of bits that
such a row takes. The server receives the row that is reconstructed from them. Where both ends know
a reference (the server's model), the difference from it is compressed.

:class:`Sign` and :class:`TopK` are biased: averaging many compressed messages does not give the
average of the messages. :class:`RandomK`, :class:`Quantize` and :class:`StochasticSign` are
unbiased (the last up to its scale).
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static

#: Bits of a transmitted real number, at any precision of the simulation (Gauthier 2024, 4.4.1).
WORD = 32

Messages = Float[Array, "senders dim"]


class Compressor:
    """A compression of messages; subclass it to define your own."""

    def check(self, dim: int) -> None:
        """Raise ``ValueError`` unless messages of ``dim`` numbers can be compressed."""

    @checks.required
    def bits(self, dim: int) -> int:
        """Return the number of bits of a compressed message of ``dim`` numbers."""
        raise NotImplementedError

    @checks.required
    def compress(self, keys: Array, message: Messages) -> Messages:
        """Return the reconstructed messages; ``keys`` holds one key per sender."""
        raise NotImplementedError


@module
class Sign(Compressor):
    r"""The signs times the mean magnitude, :math:`\frac{\|v\|_1}{D}\,\mathrm{sign}(v)`.

    Zero has the sign zero: a third symbol that is not counted in the bits, as exact zeros do not
    occur in general. With ``scaled=False`` the result is the signs alone.

    Args:
      scaled: whether the magnitude is sent too, as one word.

    Reference:
      Bernstein et al. 2018.
    """

    scaled: bool = static(default=True)

    def bits(self, dim: int) -> int:
        return dim + WORD * self.scaled

    def compress(self, keys: Array, message: Messages) -> Messages:
        sign = jnp.sign(message)
        return sign * jnp.mean(jnp.abs(message), axis=1, keepdims=True) if self.scaled else sign


@module
class StochasticSign(Compressor):
    r""":math:`+1` with probability :math:`\frac12+\frac{v}{2B}`, else :math:`-1`.

    Entries beyond the bound are clipped to it, so :math:`B\cdot` the result is unbiased for
    :math:`|v|\le B`.

    Args:
      bound: :math:`B>0`.

    Raises:
      ValueError: a bound that is not positive.

    Reference:
      Jin et al. 2020.
    """

    bound: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("bound", self.bound)

    def bits(self, dim: int) -> int:
        return dim

    def compress(self, keys: Array, message: Messages) -> Messages:
        uniform = _uniform(keys, message)
        up = uniform < 0.5 + message / (2 * self.bound)
        return jnp.where(up, 1.0, -1.0).astype(message.dtype)


@module
class _Sparse(Compressor):
    """Some entries of a message; the others are replaced by zero."""

    count: int = static()

    def validate(self) -> None:
        checks.count("count", self.count)

    def check(self, dim: int) -> None:
        if self.count > dim:
            raise ValueError(
                f"count must be 1 to the {dim} numbers of a message, got {self.count}."
            )

    def _keep(self, score: Array, message: Array) -> Array:
        """The entries of the highest scores."""
        _, indices = jax.lax.top_k(score, self.count)
        rows = jnp.arange(message.shape[0])[:, None]
        return jnp.zeros_like(message).at[rows, indices].set(message[rows, indices])


@module
class TopK(_Sparse):
    r"""The ``count`` entries of largest magnitude, with their indices.

    Args:
      count: 1 to ``D``.

    Raises:
      ValueError: a count below one, or above the message's.
    """

    def bits(self, dim: int) -> int:
        return self.count * (WORD + math.ceil(math.log2(dim)))

    def compress(self, keys: Array, message: Messages) -> Messages:
        return self._keep(jnp.abs(message), message)


@module
class RandomK(_Sparse):
    r"""Uniformly drawn ``count`` entries without replacement, scaled by :math:`D/\mathrm{count}`.

    Both ends draw them from a common seed, so no index is sent.

    Args:
      count: 1 to ``D``.

    Raises:
      ValueError: a count below one, or above the message's.
    """

    def bits(self, dim: int) -> int:
        return self.count * WORD

    def compress(self, keys: Array, message: Messages) -> Messages:
        return message.shape[1] / self.count * self._keep(_uniform(keys, message), message)


@module
class Quantize(Compressor):
    r"""Unbiased stochastic quantization to ``bits_each`` bits per number, one of them the sign.

    With :math:`s=2^{b-1}-1` levels, :math:`|v_i|/\|v\|_\infty\cdot s` is rounded up or down at
    random with an unbiased mean; the norm takes one more word.

    Args:
      bits_each: :math:`b` from 2 to 32; beyond 24, or 53 in double precision, the levels are finer
        than the floating-point precision.

    Raises:
      ValueError: fewer than 2 bits (:class:`StochasticSign` needs 1), or more than a word has.

    Reference:
      Alistarh et al. 2017, with the maximum norm, which wastes no level.
    """

    bits_each: int = static()

    def validate(self) -> None:
        checks.count("bits_each", self.bits_each, at_least=2, hint="One of them is the sign.")
        if self.bits_each > WORD:
            raise ValueError(
                f"bits_each must be <= {WORD}, the bits of an uncompressed number, got "
                f"{self.bits_each}; leave out the compression, or take fewer bits."
            )

    def bits(self, dim: int) -> int:
        return dim * self.bits_each + WORD

    def compress(self, keys: Array, message: Messages) -> Messages:
        levels = 2 ** (self.bits_each - 1) - 1
        norm = jnp.max(jnp.abs(message), axis=1, keepdims=True)
        unit = norm / levels
        exact = jnp.abs(message) / jnp.where(unit > 0, unit, 1)
        level = jnp.floor(exact + _uniform(keys, message))
        return jnp.sign(message) * unit * jnp.minimum(level, levels)


def _uniform(keys: Array, message: Array) -> Array:
    draw = jax.vmap(lambda key: jax.random.uniform(key, message.shape[1:], message.dtype))
    return draw(keys)
