r"""Compression of messages: fewer bits for each number, or fewer numbers.

A compressor acts on each row of ``[senders, D]`` separately, and returns the number of bits that
such a row takes. The server receives the row that is reconstructed from them. Where both ends know
a reference (the server's model), the difference from it is compressed.

Theory knows two classes, which a compressor declares. It is *unbiased* with the variance
:math:`\omega` if :math:`E\,C(v)=v` and :math:`E\|C(v)-v\|^2\le\omega\|v\|^2`
(:meth:`Compressor.variance`): :class:`RandomK`, :class:`Quantize`, :class:`Natural`,
:class:`~fljax.link.CountSketch`. Averaging many such messages gives nearly the average of the
vectors. It is *contractive* with :math:`\alpha` if
:math:`E\|C(v)-v\|^2\le(1-\alpha)\|v\|^2` (:meth:`Compressor.contraction`): :class:`TopK`,
:class:`Sign`, and unbiased ones with :math:`\omega<1` or divided by :math:`1+\omega`
(:class:`Contractive`). :class:`StochasticSign` is of neither class: it is unbiased up to a scale,
for bounded numbers only.
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
    """A compression of messages; subclass it to define your own.

    Example:
      Numbers rounded to integers, which take 8 bits each:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Rounded(fl.link.Compressor):
      ...     def bits(self, dim):
      ...         return 8 * dim
      ...     def compress(self, keys, message):
      ...         return jnp.round(message)
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> simulation = fl.Simulation(problem, fl.algorithms.FedAvg(0.1), compression=Rounded())
      >>> int(fl.run(simulation, rounds=10).bits_up[-1])  # 10 rounds, 6 clients, 2 numbers
      960
    """

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

    def variance(self, dim: int) -> float | None:
        r"""Return :math:`\omega\ge0` such that :math:`E\,C(v)=v` and
        :math:`E\|C(v)-v\|^2\le\omega\|v\|^2` for messages of ``dim`` numbers; ``None`` for a
        compressor that is not unbiased, or not known to be.
        """
        return None

    def contraction(self, dim: int) -> float | None:
        r"""Return :math:`\alpha\in(0,1]` such that
        :math:`E\|C(v)-v\|^2\le(1-\alpha)\|v\|^2` for messages of ``dim`` numbers; ``None`` for a
        compressor without one. That of an unbiased one is :math:`1-\omega` for :math:`\omega<1`.
        """
        variance = self.variance(dim)
        return None if variance is None or variance >= 1 else 1 - variance


@module
class Sign(Compressor):
    r"""The signs times the mean magnitude, :math:`\frac{\|v\|_1}{D}\,\mathrm{sign}(v)`.

    Zero has the sign zero: a third symbol that is not counted in the bits, as exact zeros do not
    occur in general. With ``scaled=False`` the result is the signs alone. With the magnitude it is
    contractive, :math:`\alpha=1/D`, which vectors with a single large number approach.

    Args:
      scaled: whether the magnitude is sent too, as one word.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 1)
      >>> fl.link.Sign().compress(keys, jnp.array([[1.0, -3.0]])).tolist()  # mean magnitude 2
      [[2.0, -2.0]]
      >>> fl.link.Sign(scaled=False).compress(keys, jnp.array([[1.0, -3.0]])).tolist()
      [[1.0, -1.0]]

    Reference:
      Bernstein et al. 2018.
    """

    scaled: bool = static(default=True)

    def bits(self, dim: int) -> int:
        return dim + WORD * self.scaled

    def compress(self, keys: Array, message: Messages) -> Messages:
        sign = jnp.sign(message)
        return sign * jnp.mean(jnp.abs(message), axis=1, keepdims=True) if self.scaled else sign

    def contraction(self, dim: int) -> float | None:
        return 1 / dim if self.scaled else None


@module
class StochasticSign(Compressor):
    r""":math:`+1` with probability :math:`\frac12+\frac{v}{2B}`, else :math:`-1`.

    Entries beyond the bound are clipped to it, so :math:`B\cdot` the result is unbiased for
    :math:`|v|\le B`.

    Args:
      bound: :math:`B>0`.

    Raises:
      ValueError: a bound that is not positive.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 1)
      >>> fl.link.StochasticSign(2.0).compress(keys, jnp.array([[2.0, -2.0, 5.0]])).tolist()
      [[1.0, -1.0, 1.0]]

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

    It is contractive, :math:`\alpha=\mathrm{count}/D`.

    Args:
      count: 1 to ``D``.

    Raises:
      ValueError: a count below one, or above the message's.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 1)
      >>> fl.link.TopK(2).compress(keys, jnp.array([[0.5, -3.0, 1.0, 2.0]])).tolist()
      [[0.0, -3.0, 0.0, 2.0]]
      >>> fl.link.TopK(2).bits(dim=4)  # 2 numbers of 32 bits and their indices
      68
    """

    def bits(self, dim: int) -> int:
        return self.count * (WORD + math.ceil(math.log2(dim)))

    def compress(self, keys: Array, message: Messages) -> Messages:
        return self._keep(jnp.abs(message), message)

    def contraction(self, dim: int) -> float:
        return self.count / dim


@module
class RandomK(_Sparse):
    r"""Uniformly drawn ``count`` entries without replacement, scaled by :math:`D/\mathrm{count}`.

    Both ends draw them from a common seed, so no index is sent. It is unbiased,
    :math:`\omega=D/\mathrm{count}-1`.

    Args:
      count: 1 to ``D``.

    Raises:
      ValueError: a count below one, or above the message's.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 1)
      >>> sent = fl.link.RandomK(2).compress(keys, jnp.ones((1, 4)))
      >>> sorted(sent[0].tolist())  # two of four numbers, times 4 / 2
      [0.0, 0.0, 2.0, 2.0]
      >>> fl.link.RandomK(2).variance(dim=4)
      1.0
    """

    def bits(self, dim: int) -> int:
        return self.count * WORD

    def compress(self, keys: Array, message: Messages) -> Messages:
        return message.shape[1] / self.count * self._keep(_uniform(keys, message), message)

    def variance(self, dim: int) -> float:
        return dim / self.count - 1


@module
class Quantize(Compressor):
    r"""Unbiased stochastic quantization to ``bits_each`` bits per number, one of them the sign.

    With :math:`s=2^{b-1}-1` levels, :math:`|v_i|/\|v\|_\infty\cdot s` is rounded up or down at
    random with an unbiased mean; the norm takes one more word. Its variance is
    :math:`\omega=\frac12\big(\sqrt{1+(D-1)/s^2}-1\big)`, which is attained where all numbers but
    the largest are :math:`\|v\|_\infty/(s+\sqrt{s^2+D-1})`.

    Args:
      bits_each: :math:`b` from 2 to 32; beyond 24, or 53 in double precision, the levels are finer
        than the floating-point precision.

    Raises:
      ValueError: fewer than 2 bits (:class:`StochasticSign` needs 1), or more than a word has.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 1)
      >>> compressor = fl.link.Quantize(3)  # three levels and a sign
      >>> compressor.compress(keys, jnp.array([[3.0, -2.0, 1.0, 0.0]])).tolist()  # on the levels
      [[3.0, -2.0, 1.0, 0.0]]
      >>> compressor.bits(dim=4)  # 4 numbers of 3 bits and a norm of 32
      44

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

    def variance(self, dim: int) -> float:
        levels = 2 ** (self.bits_each - 1) - 1
        return (math.sqrt(1 + (dim - 1) / levels**2) - 1) / 2


@module
class Natural(Compressor):
    r"""Natural compression: each number is rounded at random to a neighboring power of two.

    .. math::

        C(v)=\mathrm{sign}(v)\begin{cases}
            2^{e} & \text{with the probability }2-|v|2^{-e} \\
            2^{e+1} & \text{else}\end{cases}\qquad e=\lfloor\log_2|v|\rfloor

    It is unbiased with the variance :math:`\omega=1/8` for any number of parameters. The sign and
    the exponent take 9 bits, as in single precision.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> key = jax.random.split(jax.random.key(0), 1)
      >>> fl.link.Natural().compress(key, jnp.array([[2.0, 0.0, -0.25]])).tolist()
      [[2.0, 0.0, -0.25]]

    Reference:
      Horvath et al. 2022, Definition 1 and Theorem 2.
    """

    def bits(self, dim: int) -> int:
        return 9 * dim

    def compress(self, keys: Array, message: Messages) -> Messages:
        fraction, exponent = jnp.frexp(jnp.abs(message))  # |v| = fraction 2^exponent, in [1/2, 1)
        up = _uniform(keys, message) < 2 * fraction - 1
        power = jnp.ldexp(jnp.ones_like(message), jnp.where(up, exponent, exponent - 1))
        return jnp.sign(message) * power

    def variance(self, dim: int) -> float:
        return 1 / 8


@module
class Contractive(Compressor):
    r"""An unbiased compressor divided by :math:`1+\omega`, which makes it contractive with
    :math:`\alpha=1/(1+\omega)`.

    So error feedback (:class:`~fljax.algorithms.EF21`), which needs a contraction, may use it. For
    :class:`RandomK` the result is the drawn numbers as they are.

    Args:
      compressor: unbiased.

    Raises:
      ValueError: where it meets messages for which the compressor is not unbiased.

    Example:
      >>> import fljax as fl
      >>> fl.link.RandomK(2).contraction(dim=10), fl.link.Contractive(
      ...     fl.link.RandomK(2)).contraction(dim=10)
      (None, 0.2)

    Reference:
      Richtarik, Sokolov & Fatkhullin 2021, section 2.1.
    """

    compressor: Compressor

    def check(self, dim: int) -> None:
        self.compressor.check(dim)
        unbiased_variance("Contractive", self.compressor, dim)

    def bits(self, dim: int) -> int:
        return self.compressor.bits(dim)

    def compress(self, keys: Array, message: Messages) -> Messages:
        variance = unbiased_variance("Contractive", self.compressor, message.shape[1])
        return self.compressor.compress(keys, message) / (1 + variance)

    def contraction(self, dim: int) -> float:
        return 1 / (1 + unbiased_variance("Contractive", self.compressor, dim))


def unbiased_variance(label: str, compressor: Compressor, dim: int) -> float:
    """Return the variance of a compressor that must be unbiased.

    Args:
      label: the name of the method that needs it, for the error.
      compressor: of messages.
      dim: numbers of a message.

    Raises:
      ValueError: a compressor that is not unbiased.
    """
    variance = compressor.variance(dim)
    if variance is not None:
        return variance
    raise ValueError(
        f"{label} needs an unbiased compressor, and {compressor} has no variance(dim); take "
        "fljax.link.RandomK, Quantize or Natural, or error feedback (EF21, EF-SGD), which needs a "
        "contraction only."
    )


def contraction_of(label: str, compressor: Compressor, dim: int) -> float:
    """Return the contraction of a compressor that must have one.

    Args:
      label: the name of the method that needs it, for the error.
      compressor: of messages.
      dim: numbers of a message.

    Raises:
      ValueError: a compressor that is not contractive.
    """
    contraction = compressor.contraction(dim)
    if contraction is not None:
        return contraction
    if compressor.variance(dim) is None:
        remedy = "take fljax.link.TopK or Sign()"
    else:
        remedy = f"divide it by 1 + omega, fljax.link.Contractive({compressor})"
    raise ValueError(
        f"{label} needs a contractive compressor, and {compressor} has no contraction(dim) for "
        f"messages of {dim} numbers; {remedy}."
    )


def _uniform(keys: Array, message: Array) -> Array:
    draw = jax.vmap(lambda key: jax.random.uniform(key, message.shape[1:], message.dtype))
    return draw(keys)
