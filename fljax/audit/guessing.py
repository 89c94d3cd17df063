r"""Audits by guessing: what an attacker can infer from all messages, compared with the claim.

An audit treats a private simulation as a black box: it runs it, observes the link after noise was
added, and guesses which of two data sets was used. The frequency of correct guesses implies a
*lower* bound on the privacy loss, whatever the proofs. Where it exceeds the claim, the claim is
wrong; where it stays below, nothing is proved, but a bound close to the claim means that a better
attack could find little more.

* :func:`two_worlds`: two neighboring data sets, many runs of each.
* :func:`one_run`: one run with many such clients (canaries), each with one of two data sets by a
  coin.
* :func:`corners`: the data sets for both, with samples at the corners of their domain.

Under :class:`~fljax.privacy.NoisyGradients` the messages are the gradients of all steps. With a
trusted server (:class:`~fljax.privacy.CentralGaussian`) the attacker observes what it publishes,
and knows the participants: amplification by secret sampling is not audited.

The relation of neighbors is that of the budget's ``neighbors`` (:mod:`fljax.privacy.notions`).

The attacker knows the algorithm, both data sets and all public randomness (participants, batches,
lost links), and hears every message; it does not know the noise. The messages of a client depend on
those it received before, so the attacker also simulates both data sets beside the run, with the
messages that were really sent: their next messages before noise, :math:`a_t` and :math:`b_t`, are
those of *this* history, whatever state a client keeps between rounds. For independent Gaussian
noise the likelihood ratio of the whole run is then

.. math:: \sum_t\frac{\langle m_t-\tfrac12(a_t+b_t),\,b_t-a_t\rangle}{\sigma_t^2},

and no test is more powerful (Neyman and Pearson). Noise need not be independent, though: clients
may draw it jointly, and a mechanism may cancel some of it in later rounds, in which the attacked
client may be silent. The noise of other clients is known to the attacker except for what it shares
with that of the attacked one, since all clean messages but that one's are the same in both worlds;
so each message is weighted by the remainder of its noise *given all other noise*, of clients and of
rounds, which is :math:`\langle m-\tfrac12(a+b),\Sigma^{-1}(b-a)\rangle` with the covariance
:math:`\Sigma` of all messages. Where the noise of others determines one client's, no noise remains.
The noise level :math:`\sigma_t` is measured, never taken from the mechanism. Data that bypass the
link have no message to observe; but in the same history they would change the messages of *other*
clients, which is tested too.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int
from matplotlib.figure import Figure
from scipy import stats

from fljax import _check, plotting
from fljax._arguments import checked
from fljax._generator import as_key
from fljax._module import replace
from fljax.engine import (
    Carry,
    Prepared,
    begin,
    check_length,
    check_rounds,
    look,
    noise_plan,
    prepare,
    stepped,
    witnessed,
)
from fljax.link import Link
from fljax.privacy import CentralGaussian, NoisyGradients, accounting
from fljax.privacy.discrete import PrivateNoise
from fljax.privacy.ledger import claimed_epsilon
from fljax.privacy.notions import NEIGHBORS, Neighbors, Notion, is_gaussian
from fljax.privacy.promises import ROUNDING
from fljax.problems import NoRegularizer, Problem
from fljax.simulation import Simulation

__all__ = [
    "OneRun",
    "Report",
    "TwoWorlds",
    "claimed_epsilon",
    "corners",
    "counted_epsilon",
    "gaussian_misses",
    "guessed_epsilon",
    "measured_rho",
    "one_run",
    "shaped_epsilon",
    "two_worlds",
    "without",
]

#: Runs that are computed at once hold about this many numbers in an array of all models.
AT_ONCE = 1 << 20

#: Largest number of noise values that are kept in all runs.
KEPT = 1 << 24

#: Runs that decide which clients' noise is kept, where not all can be.
BESIDE = 100

#: Smallest number of values per row from which a covariance is estimated.
ENOUGH = 10

#: Up to so many coordinates of messages are used singly, however few messages there are.
COORDINATES = 8

#: Largest number of operations for the covariances of runs in which others are silent.
PATTERNS = 1 << 32

#: Correlations above so many standard deviations of a zero correlation count as shared noise.
SHARED = 6.0

#: Number of alternations between guesses of coins and of noise common to all.
TURNS = 8

#: Log-odds beyond which a guess counts as certain.
SURE = 20.0

#: Largest number of clients whose noise is compared in pairs.
NEAREST = 1 << 12

#: Floor of a variance, in squared standard deviations, for noise that may be known entirely.
TRIFLE = 1e-9

#: Fewer runs show little: half of them choose the attack, and the other half could not show an
#: epsilon of 3.3 even if every guess was right.
FEWEST_SEEDS = 200

#: With fewer canaries, even correct guesses of all show an epsilon of only 1.
FEWEST_CANARIES = 10

#: Beyond this many standard deviations between the worlds there is practically no privacy.
APART = 50.0

#: Shares of the significance level of :func:`one_run`: for guesses by scores as they are, for those
#: without noise that clients or rounds seem to share, and for the size of the noise.
SHARES = (0.65, 0.25, 0.1)

#: Names of the scores that look for noise that is missing, and for noise that is bounded.
NEARNESS, SUPPORT = "nearness", "outside of the noise"

#: Squares of this share of the mean square of noise count as no noise.
NO_NOISE = 1e-20

#: Changes of other clients' messages above this many standard deviations are no rounding: data of
#: the attacked client that only leave perturbed do not change them at all.
PAST_THE_LINK = 0.01


# From guesses to epsilon -------------------------------------------------------------------------


def _check_claim(delta: float, confidence: float) -> None:
    """Raise ``ValueError`` unless delta and confidence are valid for a bound."""
    _check.interval("delta", delta, at_least=0, below=1, hint="It is the claim's, or larger.")
    _check.interval("confidence", confidence, above=0, below=1, hint="0.95 is usual.")


def _at_least(right: Any, of: int, confidence: float) -> Any:
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
    _check_claim(delta, confidence)
    _check.count("of", of)
    _check.interval("hits", hits, at_least=0, at_most=of)
    _check.interval("false_alarms", false_alarms, at_least=0, at_most=of)
    each = 1 - (1 - confidence) / 2
    hit = _at_least(hits, of, each)
    alarm = 1 - _at_least(of - np.asarray(false_alarms), of, each)
    return np.log(np.maximum(hit - delta, 1e-300) / alarm).clip(min=0.0)


@checked
def shaped_epsilon(
    scores: Float[np.ndarray, "2 seeds"], delta: float, confidence: float
) -> tuple[float, float]:
    r"""Return a lower bound on epsilon from two score distributions *if they are Gaussian*.

    Two normal distributions of equal variance, :math:`\mu` standard deviations apart, are those of
    a :math:`\mu`-GDP mechanism, which is that of :math:`\rho=\mu^2/2`. All runs are used and not
    only those beyond a threshold, so it is much sharper than :func:`counted_epsilon`; but it holds
    for this shape only, which the likelihood ratio of Gaussian noise has, and others do not.

    Args:
      scores: of world a and world b.
      delta: in (0, 1).
      confidence: in (0, 1).

    Returns:
      The bound, and the estimate of :math:`\mu`.

    Reference:
      Dong, Roth & Su 2022; Nasr et al. 2023.
    """
    _check_claim(delta, confidence)
    scores = np.asarray(scores)
    if len(scores) != 2 or scores.shape[1] < 2:
        raise ValueError(f"scores must be [2, seeds], two or more each, got shape {scores.shape}.")
    _check.finite("scores", scores)
    seeds = scores.shape[1]
    spread = math.sqrt(float(np.mean(np.var(scores, axis=1, ddof=1))))
    gap = float(np.mean(scores[1]) - np.mean(scores[0]))
    mu = abs(gap) / spread if spread > 0 else (math.inf if gap else 0.0)
    if mu > APART:
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
    _check_claim(delta, confidence)
    _check.count("canaries", canaries)
    _check.count("guesses", guesses, at_least=0, at_most=canaries)
    _check.count("right", right, at_least=0, at_most=guesses)

    def probability(epsilon: float) -> float:
        share = 1 / (1 + math.exp(-epsilon))
        back = np.arange(1, right + 1)
        between = np.cumsum(stats.binom.pmf(right - back, guesses, share)) / back
        worst = float(between.max()) if right else 0.0
        return float(stats.binom.sf(right - 1, guesses, share)) + 2 * canaries * delta * worst

    low, high, left = 0.0, 40.0, 1 - confidence
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
      rho: :math:`\rho_{t,k}`, ``[T, K]``; likewise.
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
    _check.interval("confidence", confidence, above=0, below=1, hint="0.95 is usual.")
    _check.count("dim", dim)
    noise, gap, rho = (
        np.asarray(_check.array(name, value, axes=2), np.float64)
        for name, value in (("noise", noise), ("gap", gap), ("rho", rho))
    )
    if not noise.shape == gap.shape == rho.shape:
        raise ValueError(
            f"noise, gap and rho must be of the same rounds and clients, got shapes {noise.shape}, "
            f"{gap.shape} and {rho.shape}."
        )
    for name, value in (("noise", noise), ("gap", gap), ("rho", rho)):
        _check.nonnegative(name, value)
    covers = (gap > 0) & (rho > 0)
    if not covers.any():
        return 0.0
    each = (1 - confidence) / 2  # half for rounds, half for single messages
    size = np.where(covers, 2 * rho * noise / np.where(covers, gap, 1), 0)
    clients, booked = covers.sum(axis=1), np.where(covers, rho, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rounds = stats.chi2.ppf(each / np.sum(clients > 0), dim * np.maximum(clients, 1))
        rounds = np.where(clients > 0, rounds / size.sum(axis=1), 0)
        single = stats.chi2.ppf(each / covers.sum(), dim) / size * booked
        together = np.sum(np.where(booked > 0, rounds[:, None] * booked, 0), axis=0)
    return max(float(together.max()), float(np.max(single, where=covers, initial=0)))


# Reports -----------------------------------------------------------------------------------------


def told_apart(one: float, two: float, digits: int = 3) -> tuple[str, str]:
    """Return two numbers as texts with as many digits as it takes to tell them apart."""
    for shown in range(digits, 18):
        texts = f"{one:.{shown}g}", f"{two:.{shown}g}"
        if texts[0] != texts[1] or one == two:
            return texts
    return repr(one), repr(two)


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of an audit.

    Attributes:
      ledger: the privacy loss that the run states for the attacked client; the largest of several.
        With ``rho`` it has ``gaussian_noise``, whether all noise is continuous Gaussian noise.
      delta: at which epsilon is compared.
      confidence: of the bound.
      bound: the lower bound on epsilon.
      most: the bound if the attacker was never wrong.
      gradient_norm: the largest norm of a per-sample gradient in the run.
      gradient_bound: the bound on it that the claim assumes.
    """

    ledger: dict[str, float]
    delta: float
    confidence: float
    bound: float
    most: float
    gradient_norm: float
    gradient_bound: float

    @property
    def claimed(self) -> float:
        """The tight epsilon of the claim, see :func:`claimed_epsilon`."""
        return claimed_epsilon(self.ledger, self.delta)

    @property
    def broken(self) -> bool:
        """Whether the bound exceeds the claim."""
        return self.bound > self.claimed

    @property
    def ratio(self) -> float:
        """The ratio of the bound to the claim."""
        return self.bound / self.claimed

    @property
    def verdict(self) -> str:
        """In plain words."""
        bound, claimed = told_apart(self.bound, self.claimed)
        verdict = (
            f"{'BROKEN' if self.broken else 'not broken'}: epsilon is at least {bound} "
            f"({self.confidence:.0%} confidence), {claimed} is claimed, at delta={self.delta:g}."
        )
        if self.most < self.claimed:
            verdict += (
                f" So few trials could show {self.most:.3g} at most: take more, or a larger delta."
            )
        if self.gradient_norm > self.gradient_bound * (1 + ROUNDING):
            verdict += (
                f" Gradients of norm {self.gradient_norm:.3g} were met and at most "
                f"{self.gradient_bound:.3g} is assumed: on these data the claim is nominal."
            )
        return verdict


@dataclasses.dataclass(frozen=True)
class TwoWorlds(Report):
    r"""The result of :func:`two_worlds`.

    Attributes:
      shaped: the lower bound on epsilon *if* the scores are Gaussian, which is assumed, not shown.
      mu: the estimate of :math:`\mu` under the same assumption.
      scores: ``[2, seeds]`` of world a and b, for the half of the runs that the attack was not
        chosen on; large values indicate b.
      threshold: of the score, chosen on the other half.
      rule: the score that was chosen there.
      past_link: the change of the messages of *other* clients due to the attacked sample, in
        standard deviations of their noise, given the messages they received: zero up to rounding,
        unless data bypass the link.
    """

    shaped: float
    mu: float
    scores: np.ndarray = dataclasses.field(repr=False)
    threshold: float
    rule: str
    past_link: float

    @property
    def broken(self) -> bool:
        """Whether the bound exceeds the claim, or data bypass the link."""
        return super().broken or self.past_link > PAST_THE_LINK

    @property
    def verdict(self) -> str:
        """In plain words."""
        if self.past_link <= PAST_THE_LINK:
            return super().verdict
        return (
            f"{super().verdict} The sample moves what other clients say by {self.past_link:.3g} "
            "deviations beyond what they heard: data go past the link, unperturbed."
        )

    def errors(self) -> tuple[np.ndarray, np.ndarray]:
        """The trade-off curve: the rates at which each threshold takes a for b, and b for a."""
        at = np.concatenate([[-np.inf], np.unique(self.scores), [np.inf]])
        below = [np.searchsorted(np.sort(s), at, side="left") / len(s) for s in self.scores]
        return 1 - below[0], below[1]

    def draw(self) -> Figure:
        """Plot the scores in both worlds, and the trade-off curve with that of the claim.

        Returns:
          The figure, to show or to save.
        """
        with plotting.style():
            figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6))
            low, high = np.quantile(self.scores, [0.0005, 0.9995])
            for name, scores, look in zip("ab", self.scores, plotting.LOOKS, strict=False):
                left.hist(
                    scores,
                    np.linspace(low, high, 61),
                    density=True,
                    histtype="stepfilled",
                    alpha=0.35,
                    color=look["color"],
                    label=f"world {name}",
                )
            left.axvline(self.threshold, color="#000000", ls="--", lw=1.0, label="threshold")
            left.set_xlabel(f"score, {self.rule} (large speaks for b)")
            left.set_ylabel("density")
            left.legend(loc="best")
            alarms, misses = self.errors()
            share = np.linspace(1e-6, 1 - 1e-6, 400)
            blue, red, green = plotting.LOOKS[:3]
            right.plot(share, 1 - share, color="#999999", lw=0.8, label="blind guessing")
            right.plot(alarms, misses, color=blue["color"], lw=4.0, alpha=0.5, label="attack")
            right.plot(share, self._claimed_misses(share), **_line(red), label="claim: not below")
            fit = gaussian_misses(self.mu, share)
            right.plot(share, fit, **_line(green), label="Gaussian fit")
            right.set_xlabel("false alarms: a taken for b")
            right.set_ylabel("misses: b taken for a")
            right.set_xlim(-0.01, 1.01)
            right.set_ylim(-0.01, 1.01)
            right.legend(loc="upper right")
            figure.suptitle(
                f"epsilon {self.bound:.3g} found, {self.claimed:.3g} claimed at {self.delta:g}, "
                f"{self.scores.shape[1]} runs of each world",
                fontsize=9.5,
            )
        return figure

    def _claimed_misses(self, alarms: np.ndarray) -> np.ndarray:
        """The least rate of misses that the claim allows at given rates of false alarms."""
        if "rho" not in self.ledger:
            epsilons, deltas = [self.ledger["epsilon"]], [self.ledger.get("delta", 0.0)]
        elif self.ledger.get("gaussian_noise", 0.0) > 0:
            return gaussian_misses(math.sqrt(2 * self.ledger["rho"]), alarms)
        else:  # of all zCDP, at every epsilon and its delta
            epsilons = np.linspace(0, accounting.zcdp_epsilon(self.ledger["rho"], 1e-7), 200)
            deltas = accounting.zcdp_delta(self.ledger["rho"], epsilons, "canonne-kamath-steinke")
        growth, first = (np.asarray(of)[:, None] for of in (np.exp(epsilons), deltas))
        both = np.maximum(1 - first - growth * alarms, (1 - first - alarms) / growth)
        return np.maximum(both.max(axis=0), 0)


@dataclasses.dataclass(frozen=True)
class OneRun(Report):
    """The result of :func:`one_run`.

    Attributes:
      canaries: number of coins.
      guesses: number of guesses at the bound.
      right: number of correct ones among these.
      shaped: the lower bound on epsilon from the size of the noise (:func:`measured_rho`) *if* it
        is Gaussian and independent; NaN where the claim is not of such noise. It shares the
        significance level with ``bound``.
    """

    canaries: int
    guesses: int
    right: int
    shaped: float

    @property
    def broken(self) -> bool:
        """Whether the bound exceeds the claim, or the noise is too small for it."""
        return super().broken or self.shaped > self.claimed

    @property
    def verdict(self) -> str:
        """In plain words."""
        if not self.shaped > self.claimed:
            return super().verdict
        shaped, claimed = told_apart(self.shaped, self.claimed)
        return (
            f"{super().verdict} The noise is smaller than what is booked: if it is Gaussian, as is "
            f"declared, epsilon is at least {shaped}, and {claimed} is claimed."
        )


def _line(look: dict[str, Any]) -> dict[str, Any]:
    return {"color": look["color"], "linestyle": look["linestyle"]}


@checked
def gaussian_misses(mu: float, alarms: np.ndarray) -> np.ndarray:
    r"""Return the exact miss rate of the best test at a false alarm rate, under :math:`\mu`-GDP.

    Args:
      mu: :math:`\mu`.
      alarms: ``[...]``, the false alarm rates, in [0, 1].
    """
    return stats.norm.cdf(stats.norm.isf(alarms) - mu)


# Data --------------------------------------------------------------------------------------------


@checked
def corners(
    problem: Problem,
    client: int | Sequence[int] = 0,
    sample: int = 0,
    *,
    radius: float = 1.0,
    targets: tuple[float, float] = (-1.0, 1.0),
    neighbors: Neighbors = "replace",
) -> tuple[Problem, Problem]:
    r"""Return two neighboring data sets, with samples at two corners of the domain.

    Under ``"replace"`` both have the features :math:`\frac r{\sqrt P}(1,\dots,1)` in place of one
    sample, and the two extreme targets: for a loss of the residual or the margin this reverses the
    gradient. Under ``"client"`` all samples of the client are like this; under
    ``"add-or-remove"`` the second data set lacks the sample (:func:`without`). If the extremes
    are large enough to be clipped, a client's mean gradient changes by the most that the bound
    allows; and as the change is equal in all coordinates, its l1 norm is the largest too.

    Args:
      problem: the problem whose other samples both keep.
      client: the client whose data differ; several clients for :func:`one_run`.
      sample: the sample that differs; ignored where all of them do.
      radius: ``r``, of the features' domain, > 0.
      targets: the two extreme targets; of a classifier two of its labels.
      neighbors: the relation of neighbors of the budget.

    Returns:
      The problem with the first target, and with the second target or without the sample. If the
      problem has a feature map, they are without it, as no features may be mapped to zero.

    Raises:
      TypeError: no :class:`~fljax.problems.Problem`.
      ValueError: a client or sample that does not exist, or is padding; an unknown relation.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=5, dim=4)
      >>> a, b = corners(problem, client=1, radius=2.0, targets=(-9.0, 9.0))
      >>> [float(x) for x in b.features[1, 0]], float(a.targets[1, 0]), float(b.targets[1, 0])
      ([1.0, 1.0, 1.0, 1.0], -9.0, 9.0)
      >>> a, b = corners(problem, client=1, neighbors="add-or-remove")
      >>> float(a.features[1, 0, 0]), float(b.features[1, 0, 0])
      (0.5, 0.0)
    """
    _check.choice("neighbors", neighbors, NEIGHBORS)
    _check.kind("problem", problem, Problem)
    _check.positive("radius", radius)
    for target in targets:
        _check.interval("targets", target)
    chosen = np.atleast_1d(_check.filled("client", client))
    if chosen.min() < 0 or chosen.max() >= problem.clients or not 0 <= sample < problem.samples:
        raise ValueError(
            f"client must be in 0..{problem.clients - 1} and sample in 0..{problem.samples - 1}, "
            f"got {client} and {sample}."
        )
    at = np.zeros(np.shape(problem.targets), bool)
    at[chosen, slice(None) if neighbors == "client" else sample] = True
    at &= np.asarray(problem.weights) > 0
    if not at[chosen].any(axis=1).all():
        raise ValueError(
            f"sample {sample} of client {client} is padding and has no weight; choose a real one."
        )
    if neighbors == "add-or-remove":
        problem = problem.mapped()
    features, aims = np.asarray(problem.features), np.asarray(problem.targets)
    if not np.issubdtype(features.dtype, np.floating):
        raise TypeError(
            f"corners need features that are floats, got {features.dtype}; make the pair with "
            "dataclasses.replace(problem, features=..., targets=...), or fljax.audit.without."
        )
    level = np.asarray(radius / math.prod(features.shape[2:]) ** 0.5, features.dtype)
    corner = np.where(_along(at, features), level, features)
    low, high = (
        dataclasses.replace(
            problem,
            features=corner,
            targets=np.where(_along(at, aims), np.asarray(target, aims.dtype), aims),
        )
        for target in targets
    )
    return low, _lacking(low, at, client=False) if neighbors == "add-or-remove" else high


@checked
def without(problem: Problem, client: int = 0, sample: int | None = None) -> Problem:
    """Return the data set that lacks a sample, or all samples of a client.

    It is the neighbor of ``problem`` under ``"add-or-remove"`` (:mod:`fljax.privacy.notions`): the
    place of the sample stays in the mean, and the other samples keep their weights. Where
    predictions are linear its features are zero, after the feature map, so that it has no gradient
    at any model. A network has one even there, of its biases. Its sample keeps a place in the draw
    of batches and loses its weight: to the smallest positive number, which no sum notices.

    Args:
      problem: the data of all clients.
      client: the client that lacks something.
      sample: the sample that it lacks; by default all of its samples, as the neighbor of a trusted
        server's ``"add-or-remove"`` lacks a client's.

    Raises:
      TypeError: no :class:`~fljax.problems.Problem`.
      ValueError: a client or a sample that does not exist, or is padding.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=3, samples=4, dim=2, classes=2)
      >>> network = fl.problems.Model.of(data, fl.models.mlp(2, hidden=[3]), jax.random.key(1))
      >>> [round(float(weight), 6) for weight in without(network, 1, sample=2).weights[1]]
      [0.25, 0.25, 0.0, 0.25]
    """
    _check.kind("problem", problem, Problem)
    _check.count("client", client, at_least=0, at_most=problem.clients - 1)
    real = np.asarray(problem.weights) > 0
    at = np.zeros(real.shape, bool)
    at[client] = real[client]
    if sample is not None:
        _check.count("sample", sample, at_least=0, at_most=real.shape[1] - 1)
        at &= np.arange(real.shape[1]) == sample
    if not at.any():
        which = "no sample" if sample is None else f"padding in place of sample {sample}"
        raise ValueError(f"client {client} has {which}; choose one that has a weight.")
    return _lacking(problem.mapped(), at, client=sample is None)


def _lacking(problem: Any, at: Bool[np.ndarray, "clients samples"], client: bool) -> Any:
    """A mapped problem without these samples; ``client`` if they are all of a client's."""
    features = np.asarray(problem.features)
    gone = replace(
        problem,
        features=np.where(_along(at, features), np.zeros((), features.dtype), features),
        statistics=None,
    )
    if problem.linear:
        return gone
    weights = np.asarray(problem.weights)
    left = np.asarray(0 if client else np.finfo(weights.dtype).tiny, weights.dtype)
    # Checked again, the weights would have to sum to one.
    return replace(gone, weights=np.where(at, left, weights))


def _along(at: Bool[np.ndarray, "clients samples"], values: np.ndarray) -> np.ndarray:
    """A mask of samples with the axes of their values."""
    return at.reshape(*at.shape, *(1,) * (values.ndim - 2))


def _there(problem: Any) -> Bool[np.ndarray, "clients samples"]:
    """Which samples are not removed."""
    if not problem.linear:
        return np.asarray(problem.weights) > np.finfo(np.asarray(problem.weights).dtype).tiny
    return np.any(np.asarray(problem.design) != 0, axis=-1)


def _neighboring(
    one: Any, two: Any, neighbors: Neighbors, each: bool = False
) -> Int[np.ndarray, " differing"]:
    """Return the client whose data differ between two neighbors, or ``each`` of several.

    Raises:
      ValueError: the data sets are no neighbors.
    """
    differs = _differing(one, two)
    samples, clients = int(differs.sum()), np.flatnonzero(differs.any(axis=1))
    where = "each client that is a canary" if each else "one client"
    must = f"neighbors must differ in {'' if neighbors == 'client' else 'one sample of '}{where}"
    if not (each or len(clients) == 1) or (neighbors != "client" and samples > len(clients)):
        raise ValueError(
            f"{must}, as the budget has neighbors={neighbors!r}, got {samples} samples of "
            f"{len(clients)} clients; fljax.audit.corners makes a pair."
        )
    if neighbors == "add-or-remove":
        there = [_there(p)[differs] for p in (one, two)]
        if np.any(there[0] & there[1]):
            how = (
                "making its features zero, after the feature map"
                if one.linear
                else "taking its weight, as a network has a gradient where all features are zero"
            )
            raise ValueError(
                f"{must} that only one of them contains, as the budget has "
                f"neighbors={neighbors!r}, but both have it; a sample is removed by {how}: "
                "fljax.audit.without(problem, client, sample). fljax.audit.corners makes a pair."
            )
    return clients


def _silent(client: int, privacy: CentralGaussian, *worlds: Problem) -> None:
    """Raise ``ValueError`` unless a trusted server's neighbors under add-or-remove are a client
    with something to say and one without.
    """
    if privacy.neighbors != "add-or-remove":
        return
    contributes = [bool(np.any(_there(world)[client])) for world in worlds]
    penalized = not isinstance(worlds[0].regularizer, NoRegularizer)
    if all(contributes) or penalized:
        raise ValueError(
            "under a trusted server's add-or-remove the client must contribute nothing in one of "
            "the two data sets: remove all of its samples there, fljax.audit.without(problem, "
            "client), in a problem without a regularizer; or audit neighbors='replace'."
        )


def _differing(one: Any, two: Any) -> Bool[np.ndarray, "clients samples"]:
    """Which samples of two data sets differ; ``ValueError`` if anything else does."""
    for problem in (one, two):
        _check.kind("the audited data", problem, Problem)
    shapes = [(np.shape(p.features), np.shape(p.targets)) for p in (one, two)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "neighbors must have the same shape (a sample is replaced, or removed by making its "
            f"features zero), got features and targets of {shapes[0]} and {shapes[1]}."
        )
    weights = [np.asarray(p.weights) for p in (one, two)]
    # A network's sample is removed by its weight, with which all else of two neighbors agrees.
    removed = np.zeros(weights[0].shape, bool)
    if not one.linear and weights[0].shape == weights[1].shape:
        removed = (weights[0] != weights[1]) & ~(_there(one) & _there(two))
    rest = [
        replace(p, features=None, targets=None, weights=np.where(removed, 0, w), statistics=None)
        for p, w in zip((one, two), weights, strict=True)
    ]
    same = jax.tree.structure(rest[0]) == jax.tree.structure(rest[1]) and all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(rest[0]), jax.tree.leaves(rest[1]), strict=True)
    )
    if not same:
        raise ValueError(
            "neighbors must agree in all but their samples (loss, regularizer, weights, clip, "
            "tasks); make the second with dataclasses.replace(problem, features=..., targets=...)."
        )
    changed = [
        np.asarray(getattr(one, name)) != np.asarray(getattr(two, name))
        for name in ("features", "targets")
    ]
    differs = [change.reshape(*removed.shape, -1).any(axis=-1) for change in changed]
    real = (weights[0] > 0) | (weights[1] > 0)
    return (differs[0] | differs[1] | removed) & real


# Listening ---------------------------------------------------------------------------------------


class _Spoken(NamedTuple):
    """The ``L`` successive releases of a round; zero for clients that send nothing."""

    clean: Array  # [L, K, D], or of a trusted server [L, 1, D]
    said: Array  # likewise
    sensitivity: Array  # [L, K], likewise
    rows: Array  # [L, M, D]  what was said, in the order in which it was


class _Tap(Link):
    """A link that keeps what would have left without noise, and what did: clients' messages, a
    trusted server's sums, or the gradient of each step that a client takes.

    With ``words`` it lets these out instead, as they were overheard elsewhere: so a simulation goes
    through a history that is not its own.
    """

    def __init__(self, *args: Any, words: "list[_Spoken] | None" = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._words = words
        self._step: Array | None = None  # of several in the round, within a client
        self.spoken: list[_Spoken] = []

    @property
    def heard(self) -> "_Spoken":
        """All that left in the round, in order; by client."""
        spoken = [each._replace(rows=each.said) for each in self.spoken]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *spoken)

    def _leave(
        self,
        clean: Array,
        noise: PrivateNoise,
        sensitivity: Array,
        spent: dict[str, Array],
        clients: Array,
        sending: Array | None,
        rounding: Array,
        release_rho: Array | None = None,
    ) -> Float[Array, "rows numbers"]:
        given = (clean, noise, sensitivity, spent, clients, sending, rounding, release_rho)
        said = super()._leave(*given)
        if self._words is not None:
            words = self._words[len(self.spoken)].rows
            said = words[0] if self._step is None else words[self._step]
        rows = 1 if self._scope == "server" else self._clients
        place = clients if sending is None else jnp.where(sending, clients, rows)  # dropped
        silence = jnp.zeros((rows, clean.shape[1]), clean.dtype)
        moved = (
            jnp.zeros(rows, clean.dtype).at[place].set(sensitivity.astype(clean.dtype), mode="drop")
        )
        kept = (silence.at[place].set(part, mode="drop") for part in (clean, said))
        self.spoken.append(_Spoken(*(a[None] for a in (*kept, moved, said))))
        return said

    def _within(self, step: Array) -> Link:
        inner = super()._within(step)
        assert isinstance(inner, _Tap)
        inner._step, inner.spoken = step, list(self.spoken)
        return inner

    def _told(self) -> Any:
        return super()._told(), jax.tree.map(lambda a: a[0], self.spoken[-1])

    def _hear(self, told: Any) -> None:
        told, spoken = told
        super()._hear(told)
        self.spoken.append(spoken)


#: What is kept of all that leaves, [T, ...]; of each round the ledger, [K], and the largest
#: gradient.
Heard = tuple[dict[str, Array], dict[str, Array], Array]


def _listen(
    simulations: tuple[Simulation, ...],
    ready: tuple[Prepared, ...],
    key: Array,
    rounds: int,
    keep: Callable[..., dict[str, Array]],
) -> Heard:
    """One run of the first simulation, and beside it the others in the same history.

    ``keep`` is given what was said and each simulation's messages without noise, ``[K, D]`` each,
    once for all that leaves: once a round, or as often as clients step in it.
    """

    def each(spoken: list[_Spoken]) -> dict[str, Array]:
        return jax.vmap(keep)(spoken[0].said, *(of.clean for of in spoken))

    kept, spent, norm = _overhear(simulations, ready, key, rounds, each)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), kept), spent, norm


def _overhear(
    simulations: tuple[Simulation, ...],
    ready: tuple[Prepared, ...],
    key: Array,
    rounds: int,
    keep: Callable[[list[_Spoken]], Any],
) -> tuple[Any, dict[str, Array], Array]:
    """As :func:`_listen`; ``keep`` is given what each simulation spoke in a round."""

    def one_round(carries: tuple[Carry, ...], round: Array) -> tuple[tuple[Carry, ...], Heard]:
        after, taps, norms = [], [], [jnp.zeros(())]
        for simulation, prepared, carry in zip(simulations, ready, carries, strict=True):
            linked = functools.partial(_Tap, words=taps[0].spoken if taps else None)
            now, _, availability = look(simulation, prepared, key, carry, round, rounds, linked)
            state, tap = stepped(simulation, carry.state, now), now.link
            assert isinstance(tap, _Tap)
            if not tap.spoken:
                raise ValueError(
                    f"{type(simulation.algorithm).__name__} sent no message in a round; there is "
                    "nothing to audit."
                )
            if isinstance(simulation.privacy, Notion):
                norms.append(witnessed(simulation.algorithm, now))
            taps.append(tap)
            after.append(carry._replace(state=state, availability=availability, memory=tap.memory))
        norm = jnp.max(jnp.stack([norm.astype(jnp.result_type(float)) for norm in norms]))
        return tuple(after), (keep([tap.heard for tap in taps]), taps[0].spent, norm)

    start = tuple(begin(s, r, key) for s, r in zip(simulations, ready, strict=True))
    return jax.lax.scan(one_round, start, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1]


def _towards(said: Array, one: Array, two: Array) -> dict[str, Array]:
    """How much each client's message speaks for the second of two, ``[K]`` each."""
    change, off = two - one, said - (one + two) / 2
    return {
        "gap": jnp.sum(change**2, axis=1),
        "product": jnp.sum(off * change, axis=1),
        "absolute": jnp.sum(jnp.abs(said - one) - jnp.abs(said - two), axis=1),
    }


def _of_worlds(
    speaker: Int[Array, ""] | int, said: Array, own: Array, other: Array
) -> dict[str, Array]:
    noise = said - own
    return _towards(said, own, other) | {
        "other_square": jnp.mean((said - other) ** 2, axis=1),
        "own_largest": jnp.max(jnp.abs(noise), axis=1),
        "other_largest": jnp.max(jnp.abs(said - other), axis=1),
        "square": jnp.mean(noise**2, axis=1),
        "size": jnp.mean(jnp.abs(noise), axis=1),
        "noise": noise,
        "change": other[speaker] - own[speaker],
    }


def _of_canaries(said: Array, own: Array, low: Array, high: Array) -> dict[str, Array]:
    return {
        "off": said - (low + high) / 2,
        "change": high - low,
        "noise": jnp.sum((said - own) ** 2, axis=1),
    }


@functools.partial(jax.jit, static_argnames=("rounds", "batch", "most"))
def _both_worlds(
    worlds: tuple[Simulation, Simulation],
    keys: Array,
    order: Int[Array, " rows"],
    client: Int[Array, ""],
    rounds: int,
    batch: int,
    most: int,
) -> list[Heard]:
    """``[S, T]`` each of the attacked client, in world a and in world b; and ``past_link``,
    ``[S]``, how far the other data set moves what others say in the same history.

    Of the noise of the attacked client and of others, in this order, as many rows are kept as make
    ``most`` numbers in all runs: ``noise``, ``[S, M, T, R]``, along ``M`` directions, and along the
    same the ``change`` between the worlds, ``[S, M, T]``, and by which ``weight`` it adds up to it.
    They are all coordinates, or, where these are many, the directions of the changes. Where rows
    are left out, their sum is the last.
    """
    ready = (prepare(worlds[0], rounds), prepare(worlds[1], rounds))
    speaker = order[0]

    def world(real: int, keys: Array) -> Heard:
        pair = (real, 1 - real)
        simulations = tuple(worlds[i] for i in pair)
        prepared = tuple(ready[i] for i in pair)

        def one(key: Array) -> Heard:
            keep = functools.partial(_of_worlds, speaker)
            kept, spent, norm = _listen(simulations, prepared, key, rounds, keep)
            noise, change = kept.pop("noise"), kept.pop("change")  # [T, K, D] and [T, D]
            mine = jax.tree.map(lambda a: a[:, speaker], kept)
            power = jnp.sum(kept["square"], axis=0) + jnp.finfo(kept["square"].dtype).tiny
            moved = jnp.sqrt(jnp.sum(kept["gap"], axis=0) / power)
            mine["past_link"] = jnp.max(moved.at[speaker].set(0))
            length, dim = change.shape
            along = dim if dim <= max(length, COORDINATES) else length
            room = most // (2 * len(keys) * length * along)
            if room:
                room = min(room, max(1, len(keys) // 2 * along // (ENOUGH * length)))
            rows = noise[:, order]
            if 0 < room < len(order):
                rest = jnp.sum(rows[:, max(room - 1, 1) :], axis=1, keepdims=True)
                rows = jnp.concatenate([rows[:, : max(room - 1, 1)], rest], axis=1)[:, :room]
            if room and along == dim:
                mine |= {"noise": jnp.moveaxis(rows, 2, 0), "change": change.T, "weight": change.T}
            elif room:
                norms = jnp.linalg.norm(change, axis=1)
                unit = change / jnp.where(norms > 0, norms, 1)[:, None]
                mine["noise"] = jnp.einsum("md,trd->mtr", unit, rows, precision="highest")
                mine["change"] = jnp.matmul(unit, change.T, precision="highest")
                mine["weight"] = jnp.diag(norms)
            return mine, {n: jnp.sum(s[:, client]) for n, s in spent.items()}, jnp.max(norm)

        return jax.lax.map(one, keys, batch_size=batch)

    return [world(real, keys[real]) for real in (0, 1)]


@functools.partial(jax.jit, static_argnames="rounds")
def _beside(
    simulation: Simulation, keys: Array, client: Int[Array, ""], rounds: int
) -> Float[Array, " clients"]:
    """How strongly each client's noise goes with the attacked client's, over some runs."""
    ready = prepare(simulation, rounds)

    def keep(said: Array, own: Array) -> dict[str, Array]:
        noise = said - own
        own = noise[client]
        return {"with": jnp.sum(noise * own[None], axis=1), "square": jnp.sum(noise**2, axis=1)}

    def one(key: Array) -> dict[str, Array]:
        return _listen((simulation,), (ready,), key, rounds, keep)[0]

    sums = jax.tree.map(lambda a: jnp.sum(a, axis=0), jax.lax.map(one, keys))  # [T, K]
    power = sums["square"] * sums["square"][:, client][:, None]
    strength = sums["with"] ** 2 / jnp.where(power > 0, power, 1)
    return jnp.sum(strength, axis=0)


@functools.partial(jax.jit, static_argnames="rounds")
def _once(simulations: tuple[Simulation, ...], key: Array, rounds: int) -> Heard:
    """``[T, K]`` each."""
    ready = tuple(prepare(s, rounds) for s in simulations)
    return _listen(simulations, ready, key, rounds, _of_canaries)


# The audits --------------------------------------------------------------------------------------


def _checked(
    simulation: Simulation, rounds: int, delta: float, confidence: float
) -> tuple[Simulation, Notion | CentralGaussian | NoisyGradients]:
    """The simulation without what an audit does not need, and its budget."""
    if simulation.privacy is None:
        raise ValueError(
            "there is no claim to audit: the simulation runs without privacy; give it privacy=, "
            "such as fljax.privacy.ZCDP(total_rho=1.0)."
        )
    check_rounds(rounds, 1)
    _check.interval("delta", delta, above=0, below=1, hint="It is the claim's, or a larger one.")
    _check.interval("confidence", confidence, above=0, below=1, hint="0.95 is usual.")
    jax.eval_shape(lambda: check_length(simulation, rounds))
    return dataclasses.replace(simulation, metrics=()), simulation.privacy


def _of_its_noise(spent: dict[str, float], privacy: Any) -> dict[str, float]:
    """A ledger that says by what conversion its zCDP parameter becomes epsilon."""
    if "rho" not in spent:
        return spent
    return spent | {"gaussian_noise": float(is_gaussian(type(privacy)))}


@checked
def two_worlds(
    simulation: Simulation,
    neighbor: Problem,
    rounds: int,
    seeds: int = 2000,
    *,
    delta: float,
    confidence: float = 0.95,
    key: Array | int = 0,
) -> TwoWorlds:
    r"""Audit a private simulation by distinguishing two neighboring data sets.

    In world a the clients have the simulation's problem, in world b the neighbor. Each world is
    run ``seeds`` times with independent noise, all runs of both in one compiled program. On half of
    the runs the attacker measures the noise and chooses a score and a threshold. The scores are the
    likelihood ratio of Gaussian noise, that of Laplace noise,
    :math:`\sum_t(\|m_t-a_t\|_1-\|m_t-b_t\|_1)/s_t`, the linear discriminant over all rounds; how
    near a message is to either world's, for noise that is sometimes missing; whether it is farther
    from one than any noise ever was, for noise that is bounded; and two for noise that is shared:
    the likelihood ratio given all other messages, of all clients and rounds, for noise with the
    same law in all coordinates, and given all other numbers. The latter
    two are used where there are enough runs to measure a covariance; among many clients those are
    observed whose noise is most correlated with the attacked one's. On the other half the test's
    correct decisions are counted (:func:`counted_epsilon`), and the Gaussian model is fitted
    (:func:`shaped_epsilon`).

    Args:
      simulation: the audited simulation, with world a's data; its privacy is the claim.
      neighbor: world b's data. The data of one client differ as the budget's ``neighbors`` allows:
        one sample replaced; one sample removed in either world (:func:`without`); or any number of
        samples replaced. All else is equal; :func:`corners` returns such a pair.
      rounds: of every run, >= 1.
      seeds: runs of each world, >= 200. A bound of :math:`\epsilon` requires some ten times
        :math:`e^\epsilon` runs; the report states the largest bound that could be shown.
      delta: at which epsilon is bounded, in (0, 1). A claim of zCDP holds at every delta; a larger
        delta requires fewer seeds.
      confidence: of the bounds, one-sided.
      key: of all runs; an integer seeds the default generator.

    Returns:
      Claim, bounds and verdict; ``.draw()`` plots them.

    Raises:
      TypeError: no simulation, or no problem.
      ValueError: no privacy; a delta or confidence of 0 or 1; too few seeds; data sets that are no
        neighbors.

    Guarantees:
      If the mechanism is :math:`(\epsilon,\delta)`-DP, ``bound`` exceeds :math:`\epsilon` with a
      probability of at most ``1 - confidence``, whatever its noise; ``shaped`` only if the scores
      are normal.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2).clipped(1.0)
      >>> a, b = fl.audit.corners(problem, radius=5.0, targets=(-100.0, 100.0))
      >>> simulation = fl.Simulation(
      ...     problem=a,
      ...     network=fl.graphs.ring(4),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5, gradient_bound=1.0),
      ... )
      >>> report = fl.audit.two_worlds(simulation, b, rounds=5, seeds=4000, delta=0.05)
      >>> report.broken, 0.5 < report.ratio < 1, round(report.claimed, 2)
      (False, True, 1.57)

    Reference:
      Nasr et al. 2023 (black-box bounds, Gaussian shape).
    """
    simulation, privacy = _checked(simulation, rounds, delta, confidence)
    _check.count(
        "seeds",
        seeds,
        at_least=FEWEST_SEEDS,
        hint="Half of them choose the attack, the other half count how often it is right.",
    )
    if isinstance(privacy, CentralGaussian):
        (client,) = _neighboring(simulation.problem, neighbor, "client")
        _silent(client, privacy, simulation.problem, neighbor)
    else:
        (client,) = _neighboring(simulation.problem, neighbor, privacy.neighbors)
    other = dataclasses.replace(simulation, problem=neighbor)
    size = simulation.problem.clients * simulation.problem.dim
    batches = -(-seeds // max(1, AT_ONCE // size))
    batch = -(-seeds // batches)
    keys = jax.random.split(as_key(key), (2, batches * batch))
    at = jnp.asarray(client, jnp.int32)
    listen = functools.partial(_both_worlds, rounds=rounds, batch=batch, most=KEPT)
    order = np.arange(1 if isinstance(privacy, CentralGaussian) else simulation.problem.clients)
    if len(order) > 1:
        order = np.concatenate([[client], np.delete(order, client)])
    shapes = jax.eval_shape(listen, (simulation, other), keys, jnp.asarray(order, jnp.int32), at)
    if shapes[0][0].get("noise", shapes[0][0]["past_link"]).shape[-1] < len(order) > 1:
        # Not all can be listened to: those whose noise looks most like the attacked client's are.
        strength = np.array(_beside(simulation, keys[0, :BESIDE], at, rounds))
        strength[client] = np.inf
        order = np.argsort(-strength, kind="stable")
    heard = listen((simulation, other), keys, jnp.asarray(order, jnp.int32), at)
    kept = [
        {name: np.asarray(value, np.float64)[:seeds] for name, value in world[0].items()}
        for world in heard
    ]
    past_link = max(float(np.max(world.pop("past_link"))) for world in kept)
    half = seeds // 2
    rules = _scores(kept, half)
    rule, threshold, upwards = _attack(rules, half, delta, confidence)
    # Deviations are measured much more surely than tails: by them another score may be the best.
    # Those of events, which are certain or say nothing, have none that a normal distribution has.
    normal = [name for name in rules if name not in (NEARNESS, SUPPORT)]
    fitted = max(normal, key=lambda name: shaped_epsilon(rules[name][:, :half], delta, 0.5)[1])
    spent = {n: max(float(np.max(world[1][n])) for world in heard) for n in heard[0][1]}
    judged = rules[rule][:, half:]
    hits, alarms = _bets(judged, threshold, upwards)
    of = judged.shape[1]
    shaped, mu = shaped_epsilon(rules[fitted][:, half:], delta, confidence)
    return TwoWorlds(
        ledger=_of_its_noise(spent, privacy),
        delta=delta,
        confidence=confidence,
        bound=float(counted_epsilon(hits, alarms, of, delta, confidence)),
        most=float(counted_epsilon(of, 0, of, delta, confidence)),
        gradient_norm=max(float(np.max(world[2])) for world in heard),
        gradient_bound=float(getattr(privacy, "gradient_bound", math.inf)),
        shaped=shaped,
        mu=mu,
        scores=judged,
        threshold=threshold,
        rule=rule,
        past_link=past_link,
    )


def _attack(
    rules: dict[str, np.ndarray], half: int, delta: float, confidence: float
) -> tuple[str, float, bool]:
    """A bet as chosen on the first half of the runs: the score, its threshold, and whether the bet
    is on b above it or on a below.
    """
    best = (-1.0, "", 0.0, True)
    for rule, scores in rules.items():
        learnt = scores[:, :half]
        at = np.unique(np.quantile(learnt, np.linspace(0, 1, 2001)))
        below = [np.searchsorted(np.sort(s), at, side="left") for s in learnt]
        for upwards in (True, False):
            hits, alarms = (half - below[1], half - below[0]) if upwards else below
            epsilon = counted_epsilon(hits, alarms, half, delta, confidence)
            place = int(np.argmax(epsilon))
            if epsilon[place] > best[0]:
                best = float(epsilon[place]), rule, float(at[place]), upwards
    return best[1:]


def _bets(scores: np.ndarray, threshold: float, upwards: bool) -> tuple[int, int]:
    """The numbers of won and of lost bets."""
    in_a, in_b = (int(np.sum((s >= threshold) == upwards)) for s in scores)
    return (in_b, in_a) if upwards else (in_a, in_b)


def _scores(kept: list[dict[str, np.ndarray]], half: int) -> dict[str, np.ndarray]:
    """``[2, S]`` by each rule, with what is learnt from the first half of the runs."""
    sign = np.array([1.0, -1.0])[:, None, None]  # towards b, from towards the other world
    both = {name: np.stack([world[name] for world in kept]) for name in kept[0]}  # [2, S, T]
    product, absolute = sign * both["product"], sign * both["absolute"]
    length = np.sqrt(both["gap"])
    learn = np.s_[:, :half]
    square = _floor(both["square"][learn].mean(axis=(0, 1)), both["gap"][learn].mean(axis=(0, 1)))
    size = _floor(both["size"][learn].mean(axis=(0, 1)), length[learn].mean(axis=(0, 1)))
    along = product / np.where(length > 0, length, 1)  # [2, S, T], of the change's direction
    means = along[learn].mean(axis=1)
    within = (along[learn] - means[:, None]).reshape(-1, along.shape[2])
    spread = within.T @ within / len(within)
    scale = np.sqrt(_floor(np.diag(spread), length[learn].mean(axis=(0, 1)) ** 2))
    # In units of each round's deviation, with a little added: two rounds may share their noise.
    spread = spread / np.outer(scale, scale) + TRIFLE * np.eye(len(scale))
    weights = np.linalg.solve(spread, (means[1] - means[0]) / scale) / scale
    by_rule = {
        "Gaussian likelihood ratio": np.sum(product / square, axis=2),
        "Laplace likelihood ratio": np.sum(absolute / size, axis=2),
        "linear discriminant": along @ weights,
        NEARNESS: sign[..., 0] * _nearness(both, square),
        SUPPORT: sign[..., 0] * _outside(both, half),
    }
    if "noise" not in both:
        return by_rule
    noise, change = both["noise"], both["change"]  # [2, S, M, T, R] and [2, S, M, T]
    runs = noise.shape[:2]
    alike = noise.reshape(*noise.shape[:3], -1), change, both["weight"]
    given = {"Gaussian likelihood ratio, given all other messages": alike}
    if noise.shape[2] > 1:
        moved = change.reshape(*runs, 1, -1)
        each = noise.reshape(*runs, 1, -1), moved, moved
        given["Gaussian likelihood ratio, given all other numbers"] = each
    for rule, parts in given.items():
        scores = _given_the_rest(*parts, half)
        if scores is not None:
            by_rule[rule] = sign[..., 0] * scores
    return by_rule


def _nearness(both: dict[str, np.ndarray], square: np.ndarray) -> np.ndarray:
    """``[2, S]``, how much nearer than the run's own message the other world's is, in the round in
    which this is clearest: noise that is sometimes missing leaves a message as it was.

    Args:
      both: of the runs.
      square: ``[T]``, the mean square of the noise.
    """
    floor = NO_NOISE * square
    nearer = np.log(both["square"] + floor) - np.log(both["other_square"] + floor)
    clearest = np.argmax(np.abs(nearer), axis=2)[..., None]
    return np.take_along_axis(nearer, clearest, axis=2)[..., 0]


def _outside(both: dict[str, np.ndarray], half: int) -> np.ndarray:
    """``[2, S]``, by how much the run's own noise exceeds all that was ever drawn, less that of the
    other world's: bounded noise cannot have turned its message into this one.

    The largest noise is that of the first half of the runs; of these that of one quarter for the
    other, so that the score can be compared with others.
    """
    quarter, runs = half // 2, both["square"].shape[1]
    scores = np.zeros((2, runs))
    for learn, judge in (
        (np.s_[:quarter], np.s_[quarter:half]),
        (np.s_[quarter:half], np.s_[:quarter]),
        (np.s_[:half], np.s_[half:runs]),
    ):
        most = both["own_largest"][:, learn].max(axis=(0, 1))
        most = np.where(most > 0, most, 1)
        own, other = (
            np.maximum(both[f"{which}_largest"][:, judge] / most - 1, 0)
            for which in ("own", "other")
        )
        scores[:, judge] = np.sum(own - other, axis=2)
    return scores


def _given_the_rest(
    noise: np.ndarray, change: np.ndarray, weight: np.ndarray, half: int
) -> np.ndarray | None:
    r"""``[2, S]``, how much :math:`y`, all that is heard, speaks for the other world by

    .. math:: \langle\Sigma^{-1}(y-\tfrac12(a+b)),\,b-a\rangle

    with :math:`\Sigma` the covariance of the noise of all messages, all rounds and clients: each
    message counts by what is left of its noise once the others' is known. It is measured on the
    first half of the runs; of these on one quarter for the other, so that they can be compared with
    other rules. ``None`` where too few runs would measure too many numbers.

    Args:
      noise: ``[2, S, B, P]``, ``B`` draws of ``P`` numbers.
      change: ``[2, S, B, Q]``, towards the other world, of every ``P / Q``-th of these numbers.
      weight: ``[2, S, B, Q]``, likewise: by which a score is added up.
      half: of the runs.
    """
    size, step = noise.shape[3], noise.shape[3] // change.shape[3]
    quarter, runs = half // 2, noise.shape[1]
    if 2 * quarter * noise.shape[2] < ENOUGH * size:
        return None
    off = noise.copy()
    off[..., ::step] -= change / 2
    there = (noise != 0).any(axis=2)  # [2, S, P]
    there[..., ::step] |= (change != 0).any(axis=2)
    scores = np.empty(noise.shape[:2])
    for learn, judge in (
        (np.s_[:quarter], np.s_[quarter:half]),
        (np.s_[quarter:half], np.s_[:quarter]),
        (np.s_[:half], np.s_[half:runs]),
    ):
        drawn = np.moveaxis(noise[:, learn], 2, 0).reshape(-1, size)
        here = there[:, learn].reshape(-1, size).astype(float)
        together = noise.shape[2] * np.maximum(here.T @ here, 1)  # of two that are there at once
        signal = np.zeros(size)
        signal[::step] = np.mean(change[:, learn] ** 2, axis=(0, 1, 2))
        scale = np.sqrt(_floor(np.sum(drawn**2, axis=0) / np.diag(together), signal))
        drawn = drawn / scale
        spread = drawn.T @ drawn / together
        units, shares = off[:, judge] / scale, weight[:, judge] / scale[::step]
        scores[:, judge] = _weighed(spread, units, shares, there[:, judge], step)
    return scores


def _weighed(
    spread: np.ndarray, units: np.ndarray, shares: np.ndarray, there: np.ndarray, step: int
) -> np.ndarray:
    """``[2, S]``: of all numbers and their covariance the sum that shares of some call for, given
    those that are there, which may be others in every run.
    """
    size = len(spread)
    rows = there.reshape(-1, size)
    # Eight to a byte, in the same order: sorted bit by bit they take far longer than all the rest.
    packed = np.packbits(rows, axis=1)
    whole = packed.view(f"V{packed.shape[1]}")[:, 0]
    _, first, which = np.unique(whole, return_index=True, return_inverse=True)
    patterns = rows[first]
    if len(patterns) * size**3 > PATTERNS:  # too many: what is silent counts as a noise of zero
        patterns, which = np.ones((1, size), bool), np.zeros(there.shape[:2], int)
    which = which.reshape(there.shape[:2])
    scores = np.empty(there.shape[:2])
    for number, pattern in enumerate(patterns):
        here = np.where(np.outer(pattern, pattern), spread, 0)
        here[np.diag_indices(size)] = 1
        power, along = np.linalg.eigh(here)
        # What has no noise of its own, the others' given, has a trifle.
        by = (along / np.maximum(power, TRIFLE)) @ along[::step].T * pattern[:, None]
        runs = which == number
        scores[runs] = np.sum((units[runs] @ by) * shares[runs], axis=(1, 2))
    return scores


def _canary_scores(off: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """``[K]`` each, how much a run's messages speak for each client's second version: with the
    noise as it is, and without what clients or rounds seem to share of it.

    Noise that rounds or clients share is looked for in what was heard, without a look at the coins,
    and what is known of it taken off: by the covariance of rounds; by the mean of all others' noise
    where they have some in common; and by the one other whose noise is nearest, or its opposite,
    where that is nearer than chance would have it. Messages that are alike for other reasons look
    the same, so that this score is beside the other one and does not replace it.

    Args:
      off: ``[T, K, D]``, what was said, from the middle of both versions; noise and half a change.
      change: ``[T, K, D]``, from the first to the second.
    """
    rounds, clients, dim = off.shape
    # Noise differs by round and by client, and is measured from few numbers each: its square is
    # taken for a product of both.
    square = np.mean(off**2, axis=2)
    square = square.mean(0, keepdims=True) * square.mean(1, keepdims=True)
    square = square / max(np.mean(off**2), 1e-300)
    gap = np.sum(change**2, axis=2)
    scale = np.sqrt(_floor(square, gap.mean(1, keepdims=True)))[..., None]
    off, change = off / scale, change / scale
    plain = np.sum(off * change, axis=(0, 2))
    pieces, numbers, power = [], rounds * dim, np.mean(off**2)
    there = np.any(off != 0, axis=2, keepdims=True)
    speakers = np.sum(there, axis=1, keepdims=True)
    common = np.sum(off, axis=1, keepdims=True) / np.sqrt(np.maximum(speakers, 1))
    if np.sum(common**2) > stats.chi2.isf(1e-3, numbers) * power:
        guess = np.sum(off * change, axis=(0, 2))
        for _ in range(TURNS):
            noise = there * (off - np.tanh(guess / 2)[:, None] * change / 2)
            mean = (np.sum(noise, axis=1, keepdims=True) - noise) / np.maximum(speakers - 1, 1)
            left = max(float(np.mean(there * (noise - mean) ** 2)), TRIFLE)
            guess = np.sum(there * (off - mean) * change, axis=(0, 2)) / left
        pieces.append(guess)
    elif rounds > 1:
        apart = _by_rounds(off, change)
        if apart is not None:
            off, change = apart
            pieces.append(np.sum(off * change, axis=(0, 2)))
    if clients <= NEAREST:
        nearest = _nearest(off, change)
        typical = float(np.median(nearest.min(axis=0)))
        if typical < 2 * stats.chi2.ppf(0.1 / (8 * clients), numbers) * power:
            pieces.append((nearest[0] - nearest[1]) / max(2 * typical / numbers, TRIFLE))
    # Of those that there is reason for, the surest of itself.
    sure = [np.mean(np.minimum(np.abs(guess), SURE)) for guess in pieces]
    return plain, pieces[int(np.argmax(sure))] if pieces else None


def _by_rounds(off: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The same without what the noise of all rounds has in common; ``None`` if it has nothing."""
    rounds, clients, dim = off.shape
    # Both versions are half a change away from the middle, whichever it is.
    spread = np.einsum("tkd,skd->ts", off, off) - np.einsum("tkd,skd->ts", change, change) / 4
    power = np.diag(spread)
    if power.min() <= 0:
        return None
    correlation = spread / np.sqrt(np.outer(power, power)) - np.eye(rounds)
    if np.abs(correlation).max() < SHARED / (clients * dim) ** 0.5:
        return None
    power, along = np.linalg.eigh(spread / (clients * dim))
    root = along / np.sqrt(np.maximum(power, TRIFLE)) @ along.T
    return tuple(np.einsum("ts,skd->tkd", root, part) for part in (off, change))


def _nearest(off: np.ndarray, change: np.ndarray) -> np.ndarray:
    """``[2, K]``: if a client's coin fell on its first version, and on its second, how far its
    noise, squared, is from that of any other, or its opposite, whatever the other's coin.
    """
    rows = [
        np.moveaxis(off + half * change, 1, 0).reshape(off.shape[1], -1) for half in (0.5, -0.5)
    ]
    lengths = [np.sum(r**2, axis=1) for r in rows]
    nearest = np.full((2, off.shape[1]), np.inf)
    for coin in range(2):
        for other in range(2):
            product = np.abs(rows[coin] @ rows[other].T)
            distances = lengths[coin][:, None] + lengths[other] - 2 * product
            np.fill_diagonal(distances, np.inf)
            distances[:, lengths[other] == 0] = np.inf  # who says nothing
            nearest[coin] = np.minimum(nearest[coin], distances.min(axis=1))
    return np.maximum(nearest, 0)


def _floor(noise: np.ndarray, signal: np.ndarray) -> np.ndarray:
    """Noise that may be missing altogether: then a trifle of the signal."""
    return np.maximum(noise, 1e-12 * signal + 1e-300)


@checked
def one_run(
    simulation: Simulation,
    canaries: Problem,
    rounds: int,
    *,
    delta: float,
    confidence: float = 0.95,
    key: Array | int = 0,
) -> OneRun:
    r"""Audit a private simulation by a single run with many canaries.

    Each client whose data differ between the two problems, as the budget's ``neighbors`` allows, is
    a canary: a fair coin decides which version it has. The attacker observes the run, scores each
    client's messages by the Gaussian likelihood ratio (after removing noise that rounds, all
    clients, or two of them have in common, where the run shows that they do), guesses the coins
    with the largest absolute scores and abstains on the others. Several numbers of guesses are
    tried, from all canaries down to a few by halving, and share the significance level.

    It takes one run where :func:`two_worlds` takes thousands, and finds less: the bound on epsilon
    is that of the guesses (:func:`guessed_epsilon`), which for Gaussian noise is well below the
    claim for any number of canaries. Where the budget declares Gaussian noise, its size is compared
    with what every release books too (:func:`measured_rho`), which finds half of the noise missing
    where guesses do not. All share the significance level.

    Args:
      simulation: the audited simulation; its privacy is the claim.
      canaries: the same data with the canaries' other version, for ten clients or more;
        :func:`corners` with many clients returns both.
      rounds: of the run, >= 1.
      delta: at which epsilon is bounded, in (0, 1); the bound is weakest where delta is not far
        below one over the number of canaries.
      confidence: of the bound, one-sided.
      key: of coins and run; an integer seeds the default generator.

    Returns:
      Claim, bound and verdict.

    Raises:
      TypeError: no simulation, or no problem.
      ValueError: no privacy; a delta or confidence of 0 or 1; data of a client that are no
        neighbors, or too few clients whose data differ.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=400, samples=5, dim=2)
      >>> low, high = fl.audit.corners(
      ...     problem.clipped(1.0), range(400), radius=5.0, targets=(-100.0, 100.0)
      ... )
      >>> simulation = fl.Simulation(
      ...     problem=low,
      ...     algorithm=fl.algorithms.ConventionalFL(step_size=0.1),
      ...     privacy=fl.privacy.ZCDP(total_rho=2.0, gradient_bound=1.0),
      ... )
      >>> report = fl.audit.one_run(simulation, high, rounds=5, delta=1e-5)
      >>> report.broken, report.bound > 1, report.canaries
      (False, True, 400)

    Reference:
      Steinke, Nasr & Jagielski 2023, Algorithm 1 and Theorem 5.2.
    """
    simulation, privacy = _checked(simulation, rounds, delta, confidence)
    if isinstance(privacy, CentralGaussian):
        raise ValueError(
            "a trusted server publishes one sum for all clients, in which single canaries cannot "
            "be told apart; use fljax.audit.two_worlds."
        )
    placed = _neighboring(simulation.problem, canaries, privacy.neighbors, each=True)
    if len(placed) < FEWEST_CANARIES:
        raise ValueError(
            f"one run needs canaries at {FEWEST_CANARIES} clients or more, got {len(placed)}; use "
            "more clients, or fljax.audit.two_worlds, which needs one."
        )
    coin_key, run_key = jax.random.split(as_key(key))
    coins = np.asarray(jax.random.bernoulli(coin_key, 0.5, (simulation.problem.clients,)))
    low, high = (
        dataclasses.replace(simulation, problem=problem)
        for problem in (simulation.problem, canaries)
    )
    both = {
        name: [np.asarray(getattr(p, name)) for p in (canaries, simulation.problem)]
        for name in ("features", "targets", "weights")
    }
    heads = np.broadcast_to(coins[:, None], both["weights"][0].shape)
    mixed = {name: np.where(_along(heads, a), a, b) for name, (a, b) in both.items()}
    # Checked again, the weights of removed samples would have to sum to one.
    real = dataclasses.replace(
        simulation, problem=replace(simulation.problem, statistics=None, **mixed)
    )
    kept, spent, norm = _once((real, low, high), run_key, rounds)
    values = {name: np.asarray(value, np.float64) for name, value in kept.items()}
    total = len(placed)
    tried = [total >> halved for halved in range(total.bit_length()) if total >> halved >= 8]
    booked = {name: np.asarray(cost, np.float64) for name, cost in spent.items()}
    total_cost = {n: float(np.max(np.sum(cost, axis=0)[placed])) for n, cost in booked.items()}
    ledger = _of_its_noise(total_cost, privacy)
    level = (1 - confidence) / len(tried)
    counts = []  # of guesses, correct ones, and the level at which they are judged
    scored = _canary_scores(values["off"], values["change"])
    for scores, share in zip(scored, SHARES[:2], strict=True):
        if scores is None:
            continue
        of_canaries = scores[placed]
        order = np.argsort(-np.abs(of_canaries), kind="stable")
        correct = np.cumsum((of_canaries > 0)[order] == coins[placed][order])
        counts += [(guesses, int(correct[guesses - 1]), share * level) for guesses in tried]
    bounds = [
        guessed_epsilon(right, guesses, total, delta, 1 - each) for guesses, right, each in counts
    ]
    best = int(np.argmax(bounds))
    shaped = math.nan
    if ledger.get("gaussian_noise", 0.0) > 0:
        change, noise = values["change"][:, placed], values["noise"][:, placed]
        gap, dim, rho = np.sum(change**2, axis=2), change.shape[2], booked["rho"][:, placed]
        if isinstance(privacy, NoisyGradients) and noise_plan(simulation, rounds) is not None:
            # What is booked is of all rows that a participation moves, in whichever round it is.
            dim *= len(noise)
            noise, gap, rho = (each.sum(axis=0, keepdims=True) for each in (noise, gap, rho))
        else:  # each of several releases of a round books the same
            steps = len(noise) // rounds
            rho = np.repeat(rho / steps, steps, axis=0)
        least = measured_rho(noise, gap, rho, dim, 1 - SHARES[2] * (1 - confidence))
        shaped = math.inf if math.isinf(least) else 0.0
        if 0 < least < math.inf:
            shaped = float(accounting.zcdp_epsilon(least, delta, "gaussian"))
    return OneRun(
        ledger=ledger,
        delta=delta,
        confidence=confidence,
        bound=bounds[best],
        most=max(
            guessed_epsilon(guesses, guesses, total, delta, 1 - each) for guesses, _, each in counts
        ),
        gradient_norm=float(np.max(norm)),
        gradient_bound=float(getattr(privacy, "gradient_bound", math.inf)),
        canaries=total,
        guesses=counts[best][0],
        right=counts[best][1],
        shaped=shaped,
    )
