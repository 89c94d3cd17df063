"""Lower bounds on the privacy loss from the results of guesses.

How often a test is right (:func:`counted_epsilon`, :func:`guessed_epsilon`), how far two
distributions of scores are apart (:func:`shaped_epsilon`), and how large the noise is
(:func:`measured_rho`).
"""

import math
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float
from scipy import stats

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.privacy import accounting

#: Beyond this many standard deviations between the worlds there is practically no privacy,.
MAX_MU = 50.0


def check_claim(delta: float, confidence: float) -> None:
    """Raise ``ValueError`` unless delta and confidence are valid for a bound."""
    checks.interval("delta", delta, at_least=0, below=1, hint="It is the claim's, or larger.")
    checks.interval("confidence", confidence, above=0, below=1, hint="0.95 is usual.")


def probability_at_least(right: ArrayLike, of: int, confidence: float) -> np.ndarray:
    """Clopper-Pearson lower bound on the probability."""
    right = np.asarray(right)
    bound = stats.beta.ppf(1 - confidence, np.maximum(right, 1), of - right + 1)
    return np.where(right == 0, 0.0, bound)


@checked
def counted_epsilon(
    hits: ArrayLike, false_alarms: ArrayLike, of: int, delta: float, confidence: float
) -> Any:
    r"""Return a lower bound on epsilon from the hits and false alarms of a test, for any noise.

    Under :math:`(\epsilon,\delta)`-DP a test that says "b" with probability :math:`p` in world b
    and :math:`q` in world a has :math:`p\le e^\epsilon q+\delta`, so
    :math:`\epsilon\ge\ln((p-\delta)/q)`; :math:`p` and :math:`q` are replaced by their
    Clopper-Pearson bounds, each at half of the significance level.

    Args:
      hits: ``[...]``, the number of times the test says "b" in world b.
      false_alarms: ``[...]``, the number of times it does in world a.
      of: number of runs of each world.
      delta: in (0, 1).
      confidence: in (0, 1).

    Example:
      >>> round(float(counted_epsilon(900, 30, 1000, 0.01, 0.95)), 2)
      3.02
    """
    check_claim(delta, confidence)
    checks.count("of", of)
    for name, times in (("hits", hits), ("false_alarms", false_alarms)):
        checks.interval(name, times, at_least=0, at_most=of)
        if np.asarray(checks.as_integers(times)).dtype.kind == "f":
            raise ValueError(
                f"{name} must be whole numbers of times, not shares of them, got "
                f"{checks.shown(times)}; multiply a share by {of}."
            )
    single_confidence = 1 - (1 - confidence) / 2
    hit_rate = probability_at_least(hits, of, single_confidence)
    alarm_rate = 1 - probability_at_least(of - np.asarray(false_alarms), of, single_confidence)
    return np.log(np.maximum(hit_rate - delta, 1e-300) / alarm_rate).clip(min=0.0)


@checked
def shaped_epsilon(
    scores: Float[np.ndarray, "2 seeds"], delta: float, confidence: float
) -> tuple[float, float]:
    r"""Return a lower bound on epsilon from two score distributions *if they are Gaussian*.

    Two normal distributions of equal variance, :math:`\mu` standard deviations apart, belong to
    a :math:`\mu`-GDP mechanism, for which :math:`\rho=\mu^2/2`. All runs are used and not
    only those beyond a threshold, so it is much sharper than :func:`counted_epsilon`; but it holds
    for this shape only, which the likelihood ratio of Gaussian noise has, and others do not.

    Args:
      scores: of world a and world b.
      delta: in (0, 1).
      confidence: in (0, 1).

    Returns:
      The bound, and the estimate of :math:`\mu`.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> scores = np.stack([rng.normal(size=4000), rng.normal(1.0, size=4000)])
      >>> epsilon, mu = shaped_epsilon(scores, delta=1e-5, confidence=0.95)
      >>> bool(3 < epsilon < 5), bool(abs(mu - 1) < 0.1)  # 4.38 of the exact distributions
      (True, True)

    Reference:
      Dong, Roth & Su 2022; Nasr et al. 2023.
    """
    check_claim(delta, confidence)
    scores = np.asarray(scores)
    if len(scores) != 2 or scores.shape[1] < 2:
        raise ValueError(f"scores must be [2, seeds], two or more each, got shape {scores.shape}.")
    checks.finite("scores", scores)
    seeds = scores.shape[1]
    spread = math.sqrt(float(np.mean(np.var(scores, axis=1, ddof=1))))
    gap = float(np.mean(scores[1]) - np.mean(scores[0]))
    mu = abs(gap) / spread if spread > 0 else (math.inf if gap else 0.0)
    if mu > MAX_MU:
        return math.inf, mu
    error = math.sqrt(2 / seeds + mu**2 / (4 * seeds))
    least = max(mu - float(stats.norm.ppf(confidence)) * error, 0.0)
    epsilon = accounting.zcdp_epsilon(least**2 / 2, delta, "gaussian") if least > 0 else 0.0
    return float(epsilon), mu


@checked
def guessed_epsilon(
    right: int, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    r"""Return a lower bound on epsilon from the guesses of independent canaries in one run.

    Under :math:`(\epsilon,\delta)`-DP the number of correct ones among :math:`r` guesses of
    :math:`m` fair coins is at least :math:`v` with a probability of at most

    .. math::

        \Pr[B\ge v]+2m\delta\max_{1\le i\le v}\frac1i\Pr[v>B\ge v-i],\qquad
        B\sim\mathrm{Bin}\Big(r,\frac{e^\epsilon}{1+e^\epsilon}\Big);

    the bound is the epsilon at which this equals one minus the confidence.

    Args:
      right: ``v``.
      guesses: ``r``; the attacker abstains on the other canaries.
      canaries: ``m``.
      delta: in (0, 1).
      confidence: in (0, 1).

    Example:
      >>> round(guessed_epsilon(90, 100, 1000, 1e-5, 0.95), 2)
      1.63

    Reference:
      Steinke, Nasr & Jagielski 2023, Theorem 5.2 and appendix D.
    """
    check_claim(delta, confidence)
    checks.count("canaries", canaries)
    checks.count("guesses", guesses, at_least=0, at_most=canaries)
    checks.count("right", right, at_least=0, at_most=guesses)

    def probability(epsilon: float) -> float:
        share = 1 / (1 + math.exp(-epsilon))
        back = np.arange(1, right + 1)
        between = np.cumsum(stats.binom.pmf(right - back, guesses, share)) / back
        worst = float(between.max()) if right else 0.0
        return float(stats.binom.sf(right - 1, guesses, share)) + 2 * canaries * delta * worst

    low = 0.0
    high = 40.0
    left = 1 - confidence
    if probability(low) > left:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) <= left else (low, middle)
    return low


@checked
def measured_rho(
    noise: Float[np.ndarray, "releases clients"],
    gap: Float[np.ndarray, "releases clients"],
    rho: Float[np.ndarray, "releases clients"],
    dim: int,
    confidence: float,
) -> float:
    r"""Return a lower bound on the zCDP parameter of a run from its noise *if it is Gaussian*.

    A release books :math:`\rho_{t,k}` for a client whose message neighboring data move by
    :math:`\gamma_{t,k}`, which Gaussian noise of variance :math:`\sigma^2` covers if
    :math:`\kappa_{t,k}=\gamma_{t,k}^2/(2\sigma^2\rho_{t,k})\le1`. Then
    :math:`q_{t,k}=2\rho_{t,k}\|z_{t,k}\|^2/\gamma_{t,k}^2`, with the noise :math:`z`, has the
    distribution of :math:`\chi^2_D/\kappa_{t,k}`, and quantiles of :math:`\chi^2` bound
    :math:`\kappa` from below: of a round, by the sum over its clients, and of a single message, by
    the smallest of all. The bound is the larger one of :math:`\sum_t\kappa_t\rho_{t,k}` and
    :math:`\kappa_{t,k}\rho_{t,k}`, for the client with the most.

    Args:
      noise: :math:`\|z_{t,k}\|^2`, ``[T, K]``.
      gap: :math:`\gamma_{t,k}^2`, ``[T, K]``; where it is zero nothing is measured.
      rho: :math:`\rho_{t,k}`, ``[T, K]``; where it is zero nothing is measured.
      dim: :math:`D`, numbers in a message.
      confidence: in (0, 1).

    Guarantees:
      If all noise is Gaussian, independent between releases, and of the variance that its release
      books or more, the bound exceeds every client's sum of ``rho`` with a probability of at most
      ``1 - confidence``.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> square = np.sum(rng.normal(size=(5, 300, 4)) ** 2, axis=2)  # of deviation one
      >>> booked, gap = np.full((5, 300), 0.5), np.ones((5, 300))  # a rho of 2.5 in all
      >>> [round(measured_rho(s * square, gap, booked, 4, 0.95), 1) for s in (1, 0.25)]
      [2.3, 9.1]
    """
    checks.interval("confidence", confidence, above=0, below=1, hint="0.95 is usual.")
    checks.count("dim", dim)
    noise, gap, rho = (
        np.asarray(checks.array(name, value, axes=2), np.float64)
        for name, value in (("noise", noise), ("gap", gap), ("rho", rho))
    )
    if not noise.shape == gap.shape == rho.shape:
        raise ValueError(
            f"noise, gap and rho must be of the same rounds and clients, got shapes {noise.shape}, "
            f"{gap.shape} and {rho.shape}."
        )
    for name, value in (("noise", noise), ("gap", gap), ("rho", rho)):
        checks.nonnegative(name, value)
    covers = (gap > 0) & (rho > 0)
    if not covers.any():
        return 0.0
    level = (1 - confidence) / 2  # half for rounds, half for single messages
    size = np.where(covers, 2 * rho * noise / np.where(covers, gap, 1), 0)
    clients = covers.sum(axis=1)
    booked = np.where(covers, rho, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rounds = stats.chi2.ppf(level / np.sum(clients > 0), dim * np.maximum(clients, 1))
        rounds = np.where(clients > 0, rounds / size.sum(axis=1), 0)
        per_message = stats.chi2.ppf(level / covers.sum(), dim) / size * booked
        per_client = np.sum(np.where(booked > 0, rounds[:, None] * booked, 0), axis=0)
    return max(float(per_client.max()), float(np.max(per_message, where=covers, initial=0)))


@checked
def gaussian_misses(mu: float, alarms: np.ndarray) -> np.ndarray:
    r"""Return the exact miss rate of the best test at a false alarm rate, under :math:`\mu`-GDP.

    Args:
      mu: :math:`\mu`.
      alarms: ``[...]``, the false alarm rates, in [0, 1].

    Example:
      >>> import numpy as np, fljax as fl
      >>> fl.audit.gaussian_misses(1.0, np.array([0.0, 0.5, 1.0])).round(3).tolist()
      [1.0, 0.159, 0.0]
    """
    return stats.norm.cdf(stats.norm.isf(alarms) - mu)
