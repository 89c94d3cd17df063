r"""Step sizes for which methods are proven, or known exactly, to converge, and their rates.

:math:`L` is the largest and :math:`m` the smallest curvature of the objectives, for least squares
the extreme eigenvalues of the clients' Hessians. Bounds of theorems are sufficient, and often far
from the steps that are best in a run; those of :func:`gradient_tracking_step` are exact where all
clients' objectives have the same curvature.
"""

import functools
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.graphs import Combination

__all__ = [
    "FedAvgBound",
    "Gossip",
    "Rate",
    "choco_consensus",
    "easgd_step",
    "fedavg_bound",
    "gradient_tracking_step",
    "proxskip",
    "saga",
    "scaffold_step",
]

Number = Float[Array, ""] | float

#: Forms of gradient tracking, by the classes in :mod:`fljax.algorithms`.
Tracking = Literal["DIGing", "ATCTracking", "AugDGM"]
FORMS = ("DIGing", "ATCTracking", "AugDGM")


class Rate(NamedTuple):
    """A step size and the factor by which a squared distance falls in a round, in the mean."""

    step_size: Array  # []
    factor: Array  # []
    probability: Array  # []  of an exchange in a round


class Gossip(NamedTuple):
    """A consensus step and the factor by which a squared disagreement falls in a round."""

    step_size: Array  # []
    factor: Array  # []


class FedAvgBound(NamedTuple):
    """A bound of the excess of the objective after some steps, and the step size it is for."""

    excess: Array  # []
    first_step: Array  # []  of the decreasing step sizes
    offset: Array  # []  step t is 2 / (m (offset + t))


def check_curvatures(smoothness: object, convexity: object) -> None:
    """Raise ``ValueError`` unless both are positive, and in order."""
    checks.positive("smoothness", smoothness)
    checks.positive("convexity", convexity)
    checks.check_when_concrete(_check_order, smoothness, convexity)


def _check_order(smoothness: Number, convexity: Number) -> None:
    if convexity > smoothness:
        raise ValueError(
            "convexity must be at most smoothness, the smallest curvature at most the largest, got "
            f"{float(convexity):g} and {float(smoothness):g}."
        )


@checked
def gradient_tracking_step(
    smoothness: Number, weights: Combination, form: Tracking = "DIGing"
) -> Float[Array, ""]:
    r"""The step size below which gradient tracking is stable, with equal curvatures of all clients.

    On an eigenvector of the symmetric weights with eigenvalue :math:`\lambda` a round is a matrix
    of two rows, for the model and the tracker. With curvature :math:`h` its eigenvalues are inside
    the unit circle, except the one of consensus, exactly if

    * DIGing: :math:`\mu h<(1+\lambda)^2/2`;
    * ATC tracking: :math:`\mu h<2`, and :math:`\mu h<(1-\lambda^2)/|\lambda|` for
      :math:`\lambda<0`;
    * Aug-DGM: :math:`\mu h<2`, and :math:`\mu h<(1+\lambda)^2/(2\lambda^2)` for
      :math:`\lambda<0`,

    which the smallest eigenvalue decides. (Nedic, Olshevsky and Shi 2017 prove linear convergence
    of DIGing for smaller steps, with unequal curvatures and changing graphs.)

    Args:
      smoothness: :math:`L>0`.
      weights: of the peers, symmetric.
      form: the class of :mod:`fljax.algorithms`.

    Raises:
      ValueError: a smoothness that is not positive, another form.

    Example:
      >>> import fljax as fl
      >>> weights = fl.graphs.complete(4).mixing()
      >>> float(gradient_tracking_step(2.0, weights).round(3))
      0.25
      >>> float(gradient_tracking_step(2.0, weights, "AugDGM").round(3))
      1.0

    Reference:
      Xu et al. 2015 and Nedic, Olshevsky and Shi 2017 for the methods; the limits are derived here.
    """
    checks.positive("smoothness", smoothness)
    checks.choice("form", form, FORMS)
    least = jnp.linalg.eigvalsh(weights.matrix())[0]
    below_zero = least < -8 * len(weights.matrix()) * jnp.finfo(least.dtype).eps
    value = jnp.where(below_zero, least, -1)  # no division by zero where it is not used
    if form == "DIGing":
        limit = (1 + least) ** 2 / 2
    elif form == "ATCTracking":
        limit = jnp.where(below_zero, jnp.minimum(2, (1 - value**2) / -value), 2)
    else:
        limit = jnp.where(below_zero, jnp.minimum(2, (1 + value) ** 2 / (2 * value**2)), 2)
    return limit / smoothness


@checked
def choco_consensus(weights: Combination, contraction: Number) -> Gossip:
    r"""The consensus step size of Choco-Gossip, and its rate.

    .. math::

        \gamma=\frac{\delta^2\omega}{16\delta+\delta^2+4\beta^2+2\delta\beta^2-8\delta\omega},\qquad
        E\,\|W^{(n)}-\bar W\|^2\le\Big(1-\frac{\delta^2\omega}{82}\Big)^n\ldots

    with the spectral gap :math:`\delta=1-|\lambda_2|` of the weights,
    :math:`\beta=\|I-A\|` and a compressor with
    :math:`E\|Q(x)-x\|^2\le(1-\omega)\|x\|^2`. Tuned steps are much larger.

    Args:
      weights: symmetric, of a connected graph.
      contraction: :math:`\omega\in(0,1]`, such as the share of numbers that is sent.

    Raises:
      ValueError: a contraction outside its range.

    Example:
      >>> import fljax as fl
      >>> gossip = choco_consensus(fl.graphs.complete(4).mixing(), 1.0)
      >>> round(float(gossip.step_size), 4), round(float(gossip.factor), 4)
      (0.0667, 0.9878)

    Reference:
      Koloskova, Stich and Jaggi 2019, Theorem 2.
    """
    checks.interval("contraction", contraction, above=0, at_most=1)
    values = jnp.linalg.eigvalsh(weights.matrix())
    gap = 1 - jnp.maximum(jnp.abs(values[0]), jnp.abs(values[-2]))
    square = (1 - values[0]) ** 2
    below = 16 * gap + gap**2 + 4 * square + 2 * gap * square - 8 * gap * contraction
    return Gossip(gap**2 * contraction / below, 1 - gap**2 * contraction / 82)


@checked
def proxskip(smoothness: Number, convexity: Number, probability: Number | None = None) -> Rate:
    r"""ProxSkip and Scaffnew: :math:`\mu=1/L`, and the factor :math:`1-\min(m/L,p^2)` of
    :math:`E\Psi`, the squared distance from the minimizer plus that of the control variates.

    Args:
      smoothness: :math:`L`.
      convexity: :math:`m`.
      probability: :math:`p` of an exchange in a round; by default :math:`\sqrt{m/L}`, the smallest
        that does not slow convergence.

    Raises:
      ValueError: curvatures that are not positive or not in order, a probability outside (0, 1].

    Example:
      >>> rate = proxskip(100.0, 1.0)
      >>> [round(float(value), 4) for value in rate]
      [0.01, 0.99, 0.1]

    Reference:
      Mishchenko et al. 2022, Theorem 3.6.
    """
    check_curvatures(smoothness, convexity)
    ratio = jnp.asarray(convexity / smoothness)
    if probability is None:
        probability = jnp.sqrt(ratio)
    checks.interval("probability", probability, above=0, at_most=1)
    chance = jnp.asarray(probability)
    return Rate(jnp.asarray(1 / smoothness), 1 - jnp.minimum(ratio, chance**2), chance)


@checked
def saga(smoothness: Number, convexity: Number, samples: int) -> Rate:
    r"""SAGA: :math:`\mu=1/(3L)`, and the factor :math:`1-\min(\frac1{4n},\frac m{3L})` of the
    expected squared distance and the table's error together; of gradients of single samples, each
    of smoothness :math:`L`.

    Args:
      smoothness: :math:`L` of a single sample's loss.
      convexity: :math:`m` of the mean.
      samples: :math:`n\ge1`.

    Raises:
      ValueError: curvatures that are not positive or not in order, no samples.

    Example:
      >>> [round(float(value), 4) for value in saga(10.0, 1.0, 5)]
      [0.0333, 0.9667, 1.0]

    Reference:
      Defazio, Bach and Lacoste-Julien 2014, Theorem 1 and Corollary 1.
    """
    check_curvatures(smoothness, convexity)
    checks.count("samples", samples)
    ratio = jnp.asarray(convexity / smoothness)
    factor = 1 - jnp.minimum(1 / (4 * samples), ratio / 3)
    return Rate(jnp.asarray(1 / (3 * smoothness)), factor, jnp.ones_like(factor))


@checked
def scaffold_step(
    smoothness: Number,
    convexity: Number,
    local_steps: int,
    clients: int,
    participants: int | None = None,
    server_step_size: Number = 1.0,
) -> Float[Array, ""]:
    r"""The local step size for which SCAFFOLD is proven to converge,

    .. math:: \mu\le\frac1{E\eta}\min\Big(\frac1{81L},\frac S{15mK}\Big),

    for :math:`S` of :math:`K` clients a round, :math:`E` local steps and the server's step
    :math:`\eta\ge1`. Steps that are best in runs are up to a hundred times larger.

    Args:
      smoothness: :math:`L`.
      convexity: :math:`m`.
      local_steps: :math:`E\ge1`.
      clients: :math:`K\ge1`.
      participants: :math:`S`; all clients by default.
      server_step_size: :math:`\eta`.

    Raises:
      ValueError: curvatures that are not positive or not in order, more participants than clients,
        a server's step below one.

    Example:
      >>> round(float(scaffold_step(2.0, 0.1, local_steps=5, clients=10)), 6)
      0.001235

    Reference:
      Karimireddy et al. 2020, Theorem III (strongly convex).
    """
    check_curvatures(smoothness, convexity)
    checks.count("local_steps", local_steps)
    checks.count("clients", clients)
    checks.interval("server_step_size", server_step_size, at_least=1)
    participants = clients if participants is None else participants
    checks.count("participants", participants)
    if participants > clients:
        raise ValueError(f"participants must be at most the {clients} clients, got {participants}.")
    effective = jnp.minimum(1 / (81 * smoothness), participants / (15 * convexity * clients))
    return effective / (local_steps * server_step_size)


@checked
def easgd_step(smoothness: Number, moving_rate: Number, clients: int) -> Float[Array, ""]:
    r"""EASGD of one local step and all clients: the step size below which it converges,

    .. math:: \mu<\frac1L\Big(2-\frac{2\alpha}{2-K\alpha}\Big)

    A round is gradient descent of unit step on
    :math:`\sum_k(\mu f_k(x_k)+\frac\alpha2\|x_k-\tilde x\|^2)`, whose curvature is at most the
    larger eigenvalue of :math:`\begin{pmatrix}\mu L+\alpha&-\alpha\sqrt K\\
    -\alpha\sqrt K&K\alpha\end{pmatrix}`; the bound is where this is two. It is exact where all
    clients' objectives have the same curvature. For one client it is the condition of Zhang,
    Choromanska and LeCun 2015 for workers that meet the center in turns.

    Args:
      smoothness: :math:`L`.
      moving_rate: :math:`\alpha`, in (0, 1).
      clients: :math:`K\ge1`.

    Raises:
      ValueError: no curvature, no clients, a moving rate outside (0, 1) or so large that no step
        size is stable, :math:`\alpha\ge2/(K+1)`.

    Example:
      >>> round(float(easgd_step(2.0, 0.1, 9)), 4)
      0.9091

    Reference:
      Zhang, Choromanska and LeCun 2015 for one client; ours for several at once.
    """
    checks.positive("smoothness", smoothness)
    checks.interval("moving_rate", moving_rate, above=0, below=1)
    checks.count("clients", clients)
    checks.check_when_concrete(functools.partial(_check_elastic, clients), moving_rate)
    rate = jnp.asarray(moving_rate)
    return (2 - 2 * rate / (2 - clients * rate)) / smoothness


def _check_elastic(clients: int, moving_rate: float) -> None:
    if float(moving_rate) >= 2 / (clients + 1):
        raise ValueError(
            f"no step size is stable with moving_rate={float(moving_rate):g} and {clients} "
            "clients, whose pulls on the center add up; it must be below "
            f"2 / (clients + 1) = {2 / (clients + 1):g}."
        )


@checked
def fedavg_bound(
    smoothness: Number,
    convexity: Number,
    local_steps: int,
    steps: int,
    heterogeneity: Number,
    gradient_bound: Number,
    noise: Number,
    distance: Number,
) -> FedAvgBound:
    r"""The excess of FedAvg's objective after :math:`T` local steps in all, with unlike clients,
    all taking part.

    .. math::

        F(w^{(T)})-F^*\le\frac\kappa{\gamma+T-1}
        \Big(\frac{2B}m+\frac{m\gamma}2\|w^{(1)}-w^*\|^2\Big),\qquad
        B=\sigma^2+6L\Gamma+8(E-1)^2G^2

    with step sizes :math:`2/(m(\gamma+t))`, :math:`\kappa=L/m`, :math:`\gamma=\max(8\kappa,E)`.
    With more local steps the same :math:`T` take fewer rounds, :math:`T/E`, and the bound grows.

    Args:
      smoothness: :math:`L`.
      convexity: :math:`m`.
      local_steps: :math:`E\ge1`.
      steps: :math:`T\ge1`.
      heterogeneity: :math:`\Gamma=F^*-\sum_kp_kF_k^*\ge0`, how much lower clients' own minima are.
      gradient_bound: :math:`G\ge0`, of the norm of a stochastic gradient.
      noise: :math:`\sum_kp_k^2\sigma_k^2\ge0`, the variance of clients' stochastic gradients.
      distance: :math:`\|w^{(1)}-w^*\|\ge0`.

    Raises:
      ValueError: curvatures that are not positive or not in order, a negative number.

    Example:
      >>> numbers = {"heterogeneity": 0.1, "gradient_bound": 1.0, "noise": 0.5, "distance": 2.0}
      >>> few, many = (fedavg_bound(4.0, 1.0, e, 1000, **numbers).excess for e in (1, 10))
      >>> bool(few < many)
      True

    Reference:
      Li et al. 2020 (On the convergence of FedAvg on non-IID data), Theorem 1.
    """
    check_curvatures(smoothness, convexity)
    checks.count("local_steps", local_steps)
    checks.count("steps", steps)
    for name, value in (
        ("heterogeneity", heterogeneity),
        ("gradient_bound", gradient_bound),
        ("noise", noise),
        ("distance", distance),
    ):
        checks.nonnegative(name, value)
    condition = smoothness / convexity
    offset = jnp.maximum(8 * condition, local_steps)
    drift = 8 * (local_steps - 1) ** 2 * gradient_bound**2
    spread = noise + 6 * smoothness * heterogeneity + drift
    start = convexity * offset / 2 * distance**2
    excess = condition / (offset + steps - 1) * (2 * spread / convexity + start)
    return FedAvgBound(excess, 2 / (convexity * (offset + 1)), offset)
