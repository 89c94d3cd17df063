r"""Privacy of noisy multi-agent learning by bounded trajectories (Rizk 2023, 2.5, 3.4 and 4.2).

With another data set at one agent the algorithm's iterates are other models :math:`w_i'`. If
:math:`\Delta(i)=\|w_i-w_i'\|` is bounded, Laplace noise of variance :math:`\sigma_g^2` on the
messages gives an :math:`\epsilon(i)` that grows linearly. Gradients need not be bounded: the bound
on :math:`\Delta` follows from convergence, by the triangle inequality and Markov's inequality,
*with high probability*.

**What these numbers are not.** They are the formulas of the source, for comparison with
simulations, and not a guarantee in the sense of :mod:`fljax.privacy`. The following is not proved,
or not as printed:

* :math:`\epsilon(i)` holds on an event of trajectories, whose probability depends on terms
  :math:`O(\mu)` and :math:`O(\mu^{-1})` with constants that are not given; it is stated for one
  round, but :math:`\epsilon(i)` requires the bound in all rounds up to :math:`i`.
* It concerns one pair of data sets. Privacy requires all pairs, over which :math:`\|w^o-w'^o\|` is
  unbounded unless the data are bounded.
* The messages of round :math:`j` are compared on two trajectories that received different messages;
  the ratio of densities, (2.68) and (4.32), conditions on the same messages. :math:`\Delta` refers
  to models, but in (2.68) it is used for differences of updates :math:`\psi`, which it does not
  bound.
* Under noise that cancels, messages are not independent, contrary to the assumption of (4.32). For
  local graph-homomorphic noise (Theorem 4.3) no epsilon is finite against the receiver, and for
  graph-homomorphic noise it grows with every round in which the same message is observed again:
  :func:`fljax.audit.overheard` computes both exactly.
* The exponent for independent Laplace coordinates is the l1 norm of the difference, up to
  :math:`\sqrt M` times the l2 norm that is printed, which would be correct for a density
  :math:`\propto e^{-\sqrt2\|g\|_2/\sigma_g}`.

:func:`fljax.audit.twins` measures :math:`\Delta(i)` and the differences of messages.
"""

import math
from typing import Literal, TypeAlias

import numpy as np
from jax.typing import ArrayLike

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.privacy.accounting import Result
from fljax.privacy.accounting.inputs import Numbers, arrays, same_length

__all__ = [
    "Norm",
    "Rule",
    "bound_probability",
    "epsilon",
    "neighbor_deviation_bound",
    "noise_variance",
]

Norm: TypeAlias = Literal["l1", "l2"]
Rule: TypeAlias = Literal["printed", "union", "all rounds"]

NORMS = ("l1", "l2")
RULES = ("printed", "union", "all rounds")
PER = ("coordinate", "vector")


@checked
def neighbor_deviation_bound(
    error: ArrayLike, other_error: ArrayLike, optima: ArrayLike, nodes: int = 1
) -> Result:
    r"""The bound :math:`B+B'+\sqrt P\|w^o-w'^o\|` on :math:`\Delta(i)`.

    Args:
      error: :math:`B`, a chosen bound on the distance of the network's models from their optimum.
      other_error: :math:`B'`, the same with the other data.
      optima: :math:`\|w^o-w'^o\|`, the distance between the two optima.
      nodes: :math:`P`, the number of nodes whose models are stacked; one for a single server. (The
        root in (2.64) is a remnant of the networked case.)

    Reference:
      Rizk 2023, (2.63), (3.56), (4.28).

    Example:
      >>> float(neighbor_deviation_bound(1.0, 1.5, optima=0.25, nodes=4))
      3.0
    """
    for name, value in (("error", error), ("other_error", other_error), ("optima", optima)):
        checks.nonnegative(name, value)
    checks.count("nodes", nodes)
    _, error, other_error, optima = arrays(error, other_error, optima)
    return error + other_error + math.sqrt(nodes) * optima


def _factor(copies: float, norm: str, dim: int, per: str) -> float:
    """Factor of the deviation besides ``1 / sigma``."""
    checks.interval("copies", copies, at_least=1, hint="It counts noisy copies of one message.")
    checks.choice("norm", norm, NORMS)
    checks.count("dim", dim)
    checks.choice("per", per, PER)
    times = math.sqrt(dim) if norm == "l1" else 1.0
    times *= math.sqrt(dim) if per == "vector" and norm == "l1" else 1.0
    return math.sqrt(2) * copies * times


@checked
def epsilon(
    deviation: Numbers,
    variance: ArrayLike,
    *,
    copies: float = 1,
    norm: Norm = "l2",
    dim: int = 1,
    per: str = "coordinate",
) -> Result:
    r""":math:`\epsilon(i)=\frac{\sqrt2\,c}{\sigma_g}\sum_j\Delta(j)`, for every :math:`i`.

    ================================  ==========================================  ==================
    of the source                     ``deviation``                               ``copies``
    ================================  ==========================================  ==================
    (2.69), updates to one server     ``np.full(i, bound)``                       1
    (3.58), servers (Theorem 3.2)     ``np.full(i + 1, bound)``                   1
    (4.34), peers                     ``np.full(i, bound)``, or                   :math:`P`; tighter
                                      :math:`\Delta(0),\dots,\Delta(i-1)`         :math:`|N_p|-1`
    ================================  ==========================================  ==================

    with the bound of :func:`neighbor_deviation_bound`. The deviation of the messages themselves
    (:func:`fljax.audit.twins` has it in both norms) can be used instead of that of the models.

    Args:
      deviation: ``[..., rounds]``, the deviation of the messages of each round, in l2 norm.
      variance: :math:`\sigma_g^2` of the Laplace noise, > 0.
      copies: number of copies of a message with independent noise; the :math:`P` of the source
        bounds the number of neighbors.
      norm: ``"l2"`` as printed, or ``"l1"``, in the worst case of :math:`M` coordinates.
      dim: :math:`M`.
      per: whether the variance is that of each ``"coordinate"`` or of the ``"vector"``, as for
        :class:`fljax.link.Noise`.

    Returns:
      ``[..., rounds]``, the epsilon of all messages so far; see the module on its limitations.

    Example:
      >>> epsilon(np.full(3, 0.5), variance=2.0).round(2).tolist()
      [0.5, 1.0, 1.5]
    """
    checks.filled("deviation", deviation)
    if np.ndim(deviation) < 1:
        raise ValueError("deviation must be [..., rounds], one number of each round, got a number.")
    checks.nonnegative("deviation", deviation)
    checks.positive("variance", variance, "Without noise no epsilon is finite.")
    times = _factor(copies, norm, dim, per)
    xp, deviation, variance = arrays(deviation, variance)
    return times * xp.cumsum(deviation, axis=-1) / xp.sqrt(variance)[..., None]


@checked
def noise_variance(
    deviation: Numbers,
    epsilon: ArrayLike,
    *,
    copies: float = 1,
    norm: Norm = "l2",
    dim: int = 1,
    per: str = "coordinate",
) -> Result:
    r"""The variance for which :func:`epsilon` has a given value after all rounds: its inverse,
    (3.58).

    Args:
      deviation: ``[..., rounds]``, as for :func:`epsilon`.
      epsilon: > 0, after all rounds.
      copies: as for :func:`epsilon`.
      norm: as for :func:`epsilon`.
      dim: as for :func:`epsilon`.
      per: as for :func:`epsilon`.

    Example:
      >>> float(noise_variance(np.full(3, 0.5), epsilon=1.5).round(6))
      2.0
    """
    checks.filled("deviation", deviation)
    if np.ndim(deviation) < 1:
        raise ValueError("deviation must be [..., rounds], one number of each round, got a number.")
    checks.nonnegative("deviation", deviation)
    checks.positive("epsilon", epsilon, "No finite noise attains it.")
    times = _factor(copies, norm, dim, per)
    xp, deviation, epsilon = arrays(deviation, epsilon)
    return (times * xp.sum(deviation, axis=-1) / epsilon) ** 2


@checked
def bound_probability(
    mean_square: Numbers,
    other_mean_square: Numbers,
    error: ArrayLike,
    other_error: ArrayLike,
    rule: Rule = "union",
) -> Result:
    r"""Lower bound on the probability of :math:`\Delta(i)` within :func:`neighbor_deviation_bound`.

    By Markov's inequality :math:`\|\tilde w_i\|\ge B` has a probability of at most
    :math:`a_i=E\|\tilde w_i\|^2/B^2`, and the other one of :math:`a_i'`.

    Args:
      mean_square: ``[..., rounds]``, :math:`E\|\tilde w_i\|^2`. The source has
        :math:`\lambda^iE\|\tilde w_0\|^2+O(\mu)` instead, for servers and peers plus
        :math:`O(\mu^{-1})`; pass measured values, or a bound with its constants.
      other_mean_square: ``[..., rounds]``, the same with the other data.
      error: :math:`B`.
      other_error: :math:`B'`.
      rule: ``"printed"`` for :math:`(1-a_i)(1-a_i')`, which assumes independent trajectories;
        ``"union"`` for :math:`1-a_i-a_i'`, which does not; ``"all rounds"`` for :math:`1-\sum_{j\le
        i}(a_j+a_j')`, for all rounds so far jointly, as :math:`\epsilon(i)` requires.

    Returns:
      ``[..., rounds]``, at least zero.

    Reference:
      Rizk 2023, (2.64), (3.57), (4.29), (4.73).

    Example:
      >>> given = [0.1, 0.1], [0.1, 0.1], 1.0, 1.0
      >>> [bound_probability(*given, rule).round(2).tolist() for rule in RULES]
      [[0.81, 0.81], [0.8, 0.8], [0.8, 0.6]]
    """
    for name, value in (("mean_square", mean_square), ("other_mean_square", other_mean_square)):
        checks.filled(name, value)
        checks.nonnegative(name, value)
        if np.ndim(value) < 1:
            raise ValueError(f"{name} must be [..., rounds], one number of each round.")
    checks.positive("error", error)
    checks.positive("other_error", other_error)
    checks.choice("rule", rule, RULES)
    same_length(mean_square=mean_square, other_mean_square=other_mean_square)
    xp, first, second, bound, other = arrays(mean_square, other_mean_square, error, other_error)
    first = first / bound[..., None] ** 2
    second = second / other[..., None] ** 2
    if rule == "printed":
        return xp.maximum(1 - first, 0) * xp.maximum(1 - second, 0)
    missed = first + second
    return xp.maximum(1 - (missed if rule == "union" else xp.cumsum(missed, axis=-1)), 0)
