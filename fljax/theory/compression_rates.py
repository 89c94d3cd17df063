r"""Compression at a server: step sizes and rates that follow from a compressor's class.

:math:`L` is the smoothness of the mean objective, :math:`\hat L` the root of the mean square of the
clients' (equal to :math:`L` by default, and never smaller), :math:`m` the constant of the
Polyak-Lojasiewicz condition :math:`\|f'(x)\|^2\ge2m(f(x)-f^*)`, which strongly convex objectives
satisfy. A compressor's variance :math:`\omega` and contraction :math:`\alpha` are
:meth:`fljax.link.Compressor.variance` and :meth:`~fljax.link.Compressor.contraction`. Without a
convexity a step size is that of the theorem for smooth nonconvex objectives, where the mean square
of the gradient falls as :math:`2(f(x^{(0)})-f^*)/(\mu n)`, up to the first errors of estimates, and
the factor is one.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.optimization.schedules import Warmup
from fljax.theory.step_bounds import Number, check_curvatures

__all__ = [
    "Accelerated",
    "CompressedRate",
    "ConvexRate",
    "adiana",
    "canita",
    "dasha",
    "diana",
    "ef21",
    "marina",
]


class Accelerated(NamedTuple):
    """The step size of ADIANA, and the probability that its anchor is renewed."""

    step_size: Array  # []
    probability: Array  # []


class ConvexRate(NamedTuple):
    """The parameters of CANITA, and what bounds its error."""

    step_size: Warmup
    probability: Array  # []  with which the model is renewed
    offset: Array  # []  c, the first rounds' delay of the decay

    def bound(self, rounds: Int[Array, "*rounds"] | int) -> Float[Array, "*rounds"]:
        r"""Return the factor :math:`C_n` of
        :math:`E\,f(w^{(n)})-f^*\le C_n\|x^{(0)}-x^*\|^2` after :math:`n` rounds.
        """
        checks.positive("rounds", rounds)
        number = jnp.asarray(rounds, self.probability.dtype)
        share = 3 / (self.probability * (number - 1 + self.offset))
        return 3 * self.probability * share**2 / (2 * self.step_size(number))


class CompressedRate(NamedTuple):
    """A step size, and the factor by which an error falls in a round, in the mean.

    The error is the excess of the objective (DIANA: the squared distance from the minimizer), plus
    ``weight`` times the mean square of the errors of clients' estimates, plus ``server_weight``
    times the squared error of the server's.
    """

    step_size: Array  # []
    factor: Array  # []
    weight: Array  # []
    server_weight: Array  # []
    probability: Array  # []  of a round with full gradients


def _rate(
    step_size: object,
    factor: object = 1.0,
    weight: object = 0.0,
    server_weight: object = 0.0,
    probability: object = 0.0,
) -> CompressedRate:
    numbers = step_size, factor, weight, server_weight, probability
    return CompressedRate(*(jnp.asarray(number) for number in numbers))


def _curvatures(
    smoothness: Number, client_smoothness: Number | None, convexity: Number | None
) -> Number:
    """Check them, and return the clients' smoothness."""
    if convexity is None:
        checks.positive("smoothness", smoothness)
    else:
        check_curvatures(smoothness, convexity)
    if client_smoothness is None:
        return smoothness
    checks.positive("client_smoothness", client_smoothness)
    checks.check_when_concrete(_check_order, smoothness, client_smoothness)
    return client_smoothness


def _check_order(smoothness: Number, client_smoothness: Number) -> None:
    if client_smoothness < smoothness:
        raise ValueError(
            f"client_smoothness must be at least smoothness, {float(smoothness):g}, got "
            f"{float(client_smoothness):g}; the mean is at most as curved as its clients are."
        )


@checked
def ef21(
    smoothness: Number,
    contraction: Number,
    convexity: Number | None = None,
    client_smoothness: Number | None = None,
) -> CompressedRate:
    r"""EF21: with :math:`\theta=1-\sqrt{1-\alpha}` and :math:`\beta=(1-\alpha)/\theta`,

    .. math::

        \mu=\Big(L+\hat L\sqrt{\beta/\theta}\Big)^{-1},\qquad\text{or}\qquad
        \mu=\min\bigg(\Big(L+\hat L\sqrt{2\beta/\theta}\Big)^{-1},\frac\theta{2m}\bigg)

    with the factor :math:`1-\mu m` of
    :math:`f(x)-f^*+\frac\mu\theta\frac1K\sum_k\|g_k-f_k'(x)\|^2`.

    Args:
      smoothness: :math:`L`.
      contraction: :math:`\alpha\in(0,1]`.
      convexity: :math:`m`; without it the first step size.
      client_smoothness: :math:`\hat L\ge L`, by default :math:`L`.

    Raises:
      ValueError: curvatures that are not positive or not in order, a contraction outside (0, 1].

    Example:
      >>> import fljax as fl
      >>> rate = ef21(2.0, fl.link.TopK(5).contraction(dim=20), convexity=0.5)
      >>> round(float(rate.step_size), 4), round(float(rate.factor), 4)
      (0.0493, 0.9753)

    Reference:
      Richtarik, Sokolov & Fatkhullin 2021, Theorems 1 and 2.
    """
    client_smoothness = _curvatures(smoothness, client_smoothness, convexity)
    checks.interval("contraction", contraction, above=0, at_most=1)
    theta = 1 - jnp.sqrt(1 - jnp.asarray(contraction))
    ratio = (1 - contraction) / theta**2
    if convexity is None:
        return _rate(1 / (smoothness + client_smoothness * jnp.sqrt(ratio)))
    step = 1 / (smoothness + client_smoothness * jnp.sqrt(2 * ratio))
    step = jnp.minimum(step, theta / (2 * convexity))
    return _rate(step, 1 - step * convexity, step / theta)


@checked
def diana(
    smoothness: Number, variance: Number, clients: int, convexity: Number | None = None
) -> CompressedRate:
    r"""DIANA with its largest memory step, :math:`\frac1{1+\omega}`, and without momentum,

    .. math:: \mu=\frac1{L(1+6\omega/K)}

    and the factor :math:`\max\big(1-\mu m,1-\frac1{2(1+\omega)}\big)` of
    :math:`\|x-x^*\|^2+\frac{4\mu^2\omega(1+\omega)}K\frac1K\sum_k\|h_k-f_k'(x^*)\|^2`, for strongly
    convex objectives of clients that are convex.

    Args:
      smoothness: :math:`L`, of every client.
      variance: :math:`\omega\ge0`.
      clients: :math:`K\ge1`.
      convexity: :math:`m`, of the mean objective; without it the factor is one.

    Raises:
      ValueError: curvatures that are not positive or not in order, a negative variance.

    Example:
      >>> import fljax as fl
      >>> rate = diana(2.0, fl.link.RandomK(5).variance(dim=20), clients=10, convexity=0.5)
      >>> round(float(rate.step_size), 4), round(float(rate.factor), 4)
      (0.1786, 0.9107)

    Reference:
      Horvath et al. 2023, for any unbiased compressor; Mishchenko et al. 2019, for quantization.
    """
    _curvatures(smoothness, None, convexity)
    checks.nonnegative("variance", variance)
    checks.count("clients", clients)
    step = 1 / (smoothness * (1 + 6 * variance / clients))
    weight = 4 * step**2 * variance * (1 + variance) / clients
    if convexity is None:
        return _rate(step, 1.0, weight)
    factor = jnp.maximum(1 - jnp.asarray(step * convexity), 1 - 1 / (2 * (1 + variance)))
    return _rate(step, factor, weight)


@checked
def adiana(smoothness: Number, convexity: Number, variance: Number, clients: int) -> Accelerated:
    r"""ADIANA: with

    .. math::

        p=\min\Big(1,\frac{\max(1,\sqrt{K/(32\omega)}-1)}{2(1+\omega)}\Big),\qquad
        \mu=\min\Big(\frac1{2L},\frac K{64\omega(2p(1+\omega)+1)^2L}\Big)

    it needs of the order of
    :math:`\omega+\sqrt{L/m}+\sqrt{(\omega/K+\sqrt{\omega/K})\,\omega L/m}` rounds, times the
    logarithm of the accuracy.

    Args:
      smoothness: :math:`L`, of every client.
      convexity: :math:`m`.
      variance: :math:`\omega\ge0`.
      clients: :math:`K\ge1`.

    Raises:
      ValueError: curvatures that are not positive or not in order, a negative variance.

    Example:
      >>> import fljax as fl
      >>> rate = adiana(100.0, 1.0, fl.link.Natural().variance(dim=20), clients=100)
      >>> float(rate.step_size), round(float(rate.probability), 4)
      (0.005, 1.0)

    Reference:
      Li et al. 2020 (acceleration), the theorem of ADIANA.
    """
    check_curvatures(smoothness, convexity)
    checks.nonnegative("variance", variance)
    checks.count("clients", clients)
    share = jnp.sqrt(clients / (32 * jnp.asarray(variance)))  # infinite without compression
    probability = jnp.minimum(1.0, jnp.maximum(1.0, share - 1) / (2 * (1 + variance)))
    spread = 64 * variance * (2 * probability * (1 + variance) + 1) ** 2 / clients
    return Accelerated(1 / (smoothness * jnp.maximum(2.0, spread)), probability)


@checked
def canita(smoothness: Number, variance: Number, clients: int) -> ConvexRate:
    r"""CANITA: with :math:`b=\min\big(\omega,\sqrt{\omega(1+\omega)^2/K}\big)`,
    :math:`p=\frac1{1+b}`, :math:`c=9(1+b+\omega)`,

    .. math::

        \beta=\frac{48\omega(1+\omega)(1+b+2(1+\omega))}{K(1+b)^2},\qquad
        \beta_0=\frac{9(1+b+\omega)^2}{2(1+b)}

    the step size grows by the factor :math:`1+\frac1{n-1+c}` from each round to the next, which is
    along a line,

    .. math::

        \mu^{(n)}=\min\bigg(\frac{n+c}{1+c}\,\mu^{(1)},\;\frac1{L(\beta+3/2)}\bigg),\qquad
        \mu^{(1)}=\frac1{L(\max(\beta,\beta_0)+3/2)}

    and for convex objectives of all clients, with :math:`x^{(0)}` the initial model,

    .. math::

        E\,f(w^{(n)})-f^*\le\frac{27(1+b)}{2(n-1+c)^2\mu^{(n)}}\|x^{(0)}-x^*\|^2

    which is of the order of :math:`(1+b+\omega)^3/n^3+(1+b)(1+\beta)/n^2`. For
    :math:`K\ge\omega^3` the second part is that of accelerated gradient descent, up to a constant.

    Args:
      smoothness: :math:`L`, of every client.
      variance: :math:`\omega\ge0`.
      clients: :math:`K\ge1`.

    Raises:
      ValueError: a smoothness that is not positive, a negative variance.

    Example:
      >>> import fljax as fl
      >>> rate = canita(2.0, fl.link.RandomK(10).variance(dim=20), clients=100)
      >>> round(float(rate.step_size.final), 4), round(float(rate.probability), 4)
      (0.1007, 0.8333)
      >>> round(float(rate.bound(1000) / rate.bound(2000)), 1)
      3.9

    Reference:
      Li & Richtarik 2021, for the parameters; the bound, with its constants, and the maximum with
      :math:`\beta` in the first step are derived here from the method's recursions.
    """
    checks.positive("smoothness", smoothness)
    checks.nonnegative("variance", variance)
    checks.count("clients", clients)
    variance = jnp.asarray(variance)
    extra = jnp.minimum(variance, (1 + variance) * jnp.sqrt(variance / clients))
    offset = 9 * (1 + extra + variance)
    spread = 48 * variance * (1 + variance) * (1 + extra + 2 * (1 + variance))
    spread = spread / (clients * (1 + extra) ** 2)
    first_spread = jnp.maximum(spread, offset**2 / (18 * (1 + extra)))
    initial = 1 / (smoothness * (first_spread + 1.5))
    final = 1 / (smoothness * (spread + 1.5))
    # A positive number also where both steps are equal.
    rounds = jnp.maximum((final / initial - 1) * (1 + offset), 1)
    return ConvexRate(Warmup(initial, final, rounds), 1 / (1 + extra), offset)


@checked
def marina(
    smoothness: Number,
    variance: Number,
    clients: int,
    probability: Number | None = None,
    convexity: Number | None = None,
    participants: int | None = None,
) -> CompressedRate:
    r"""MARINA: with :math:`s=\frac{(1-p)\omega}{pK}`,

    .. math::

        \mu=\frac1{L(1+\sqrt s)},\qquad\text{or}\qquad
        \mu=\min\Big(\frac1{L(1+\sqrt{2s})},\frac p{2m}\Big)

    with the factor :math:`1-\mu m` of :math:`f(x)-f^*+\frac\mu p\|g-f'(x)\|^2`. For some
    participants a round (PP-MARINA) :math:`s=\frac{(1-p)(1+\omega)}{p|S|}`.

    Args:
      smoothness: :math:`L`, the root of the mean square of the clients'.
      variance: :math:`\omega\ge0`.
      clients: :math:`K\ge1`.
      probability: :math:`p\in(0,1]` of a round with full gradients; by default
        :math:`1/(1+\omega)`, with which both kinds of rounds have as many numbers for
        :class:`~fljax.link.RandomK`.
      convexity: :math:`m`; without it the first step size.
      participants: :math:`|S|`; all clients by default.

    Raises:
      ValueError: curvatures that are not positive or not in order, a negative variance, a
        probability outside (0, 1], more participants than clients.

    Example:
      >>> import fljax as fl
      >>> rate = marina(2.0, fl.link.RandomK(5).variance(dim=20), clients=10)
      >>> round(float(rate.probability), 4), round(float(rate.step_size), 4)
      (0.25, 0.2566)

    Reference:
      Gorbunov et al. 2021, Theorems 2.1, 2.2 and 4.1.
    """
    _curvatures(smoothness, None, convexity)
    checks.nonnegative("variance", variance)
    checks.count("clients", clients)
    probability = 1 / (1 + variance) if probability is None else probability
    checks.interval("probability", probability, above=0, at_most=1)
    spread = variance / clients
    if participants is not None:
        checks.count("participants", participants)
        if participants > clients:
            raise ValueError(
                f"participants must be at most the {clients} clients, got {participants}."
            )
        spread = (1 + variance) / participants
    spread = jnp.asarray((1 - probability) / probability * spread)
    if convexity is None:
        step = 1 / (smoothness * (1 + jnp.sqrt(spread)))
        return _rate(step, probability=probability)
    step = 1 / (smoothness * (1 + jnp.sqrt(2 * spread)))
    step = jnp.minimum(step, probability / (2 * convexity))
    return _rate(
        step, 1 - step * convexity, server_weight=step / probability, probability=probability
    )


@checked
def dasha(
    smoothness: Number,
    variance: Number,
    clients: int,
    convexity: Number | None = None,
    client_smoothness: Number | None = None,
) -> CompressedRate:
    r"""DASHA with its momentum :math:`a=\frac1{1+2\omega}`,

    .. math::

        \mu=\Big(L+\hat L\sqrt{16\omega(1+2\omega)/K}\Big)^{-1},\qquad\text{or}\qquad
        \mu=\min\bigg(\Big(L+\hat L\sqrt{12\omega(1+2\omega)/K}\Big)^{-1},\frac a{2m}\bigg)

    with the factor :math:`1-\mu m` of

    .. math::

        f(x)-f^*+\frac\mu a\|g-f'(x)\|^2+\frac{4\mu\omega}K\frac1K\sum_k\|g_k-f_k'(x)\|^2.

    Args:
      smoothness: :math:`L`.
      variance: :math:`\omega\ge0`.
      clients: :math:`K\ge1`.
      convexity: :math:`m`; without it the first step size.
      client_smoothness: :math:`\hat L\ge L`, by default :math:`L`.

    Raises:
      ValueError: curvatures that are not positive or not in order, a negative variance.

    Example:
      >>> import fljax as fl
      >>> rate = dasha(2.0, fl.link.RandomK(5).variance(dim=20), clients=10, convexity=0.5)
      >>> round(float(rate.step_size), 4), round(float(rate.factor), 4)
      (0.0831, 0.9585)

    Reference:
      Tyurin & Richtarik 2023, Theorem 6.1 for nonconvex objectives, section I for the condition;
      there the constant is larger than 12, which is derived here from the paper's recursions.
    """
    client_smoothness = _curvatures(smoothness, client_smoothness, convexity)
    checks.nonnegative("variance", variance)
    checks.count("clients", clients)
    spread = jnp.asarray(variance * (1 + 2 * variance) / clients)
    if convexity is None:
        return _rate(1 / (smoothness + client_smoothness * jnp.sqrt(16 * spread)))
    step = 1 / (smoothness + client_smoothness * jnp.sqrt(12 * spread))
    step = jnp.minimum(step, 1 / (2 * convexity * (1 + 2 * variance)))
    return _rate(
        step, 1 - step * convexity, 4 * step * variance / clients, step * (1 + 2 * variance)
    )
