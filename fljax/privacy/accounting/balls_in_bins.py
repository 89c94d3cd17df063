r"""Balls-in-bins sampling under any nonnegative strategy: accounting by simulation.

Every record draws one of ``bins`` numbers once, independently and uniformly, and takes part in all
rounds :math:`t` that leave this remainder, :math:`t\equiv j\pmod b`: once an epoch. The draw stays
secret. If the entries of :math:`C` are nonnegative, a record added to the data changes the releases
no more than from :math:`Q` to :math:`P`, and a record removed no more than from :math:`P` to
:math:`Q`, of

.. math::

    P=\frac1b\sum_{j<b}\mathcal N(m_j,\sigma^2I),\qquad Q=\mathcal N(0,\sigma^2I),\qquad
    m_j=C1_{\{j,j+b,\dots\}}

(Choquette-Choo et al. 2024, whose theorem this rests on). Delta of this pair is the mean of a
bounded variable that depends on :math:`y` through the :math:`b` numbers
:math:`\langle m_j,y\rangle` alone, which are drawn directly: a draw costs :math:`b^2` operations,
however many rounds.

Small deltas need many draws, unless the rare event is made less rare. For :math:`P\|Q`, means are
drawn at :math:`am_j` with :math:`a\ge1`, :math:`P_a`; by the inequality of means
:math:`P_a/Q\ge e^{-(a^2-a)G/2}(P/Q)^a` for :math:`G=\max_j\|m_j\|^2/\sigma^2`, so that the weighted
term is bounded,

.. math::

    \frac{(P-e^\epsilon Q)_+}{P_a}\le\frac{(a-1)^{a-1}}{a^a}\,e^{(a^2-a)G/2-(a-1)\epsilon}.

For :math:`Q\|P`, draws are shifted by :math:`-s\bar m`, minus the mean of the :math:`m_j`; with the
mean :math:`\bar G` of :math:`\|m_j\|^2/\sigma^2` and :math:`K=\|\bar m\|^2/\sigma^2`, again by the
inequality of means,

.. math::

    \frac{(Q-e^\epsilon P)_+}{Q_s}\le\frac{s^s}{(1+s)^{1+s}}\,e^{s\bar G/2-s\epsilon+s^2K/2}.

A first part of the draws chooses :math:`a`, :math:`s` and the stake of the confidence bound
(:func:`fljax.privacy.accounting.monte_carlo.betting_excess`, after Waudby-Smith & Ramdas 2024); the
bound is computed from the others.
"""

import functools
import math
from typing import Literal, NamedTuple

import numpy as np
import scipy

from fljax._core import checks
from fljax.privacy.accounting.conversions import zcdp_delta, zcdp_epsilon, zcdp_rho
from fljax.privacy.accounting.inputs import checked, probability
from fljax.privacy.accounting.monte_carlo import betting_excess, smallest
from fljax.privacy.matrices import Strategy

#: Noise and squared means beyond which results no longer change in double precision.
_MOST_NOISE = 1e140
_NO_NOISE = 1e100

#: Draws are made in blocks of about this many numbers.
_BLOCK = 2**22

#: Share of the draws by which the proposal and the stake are chosen.
_PILOT = 0.1

#: Candidates for the exaggeration of means, and for the shift.
_TILTS = {
    "add": (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0),
    "remove": (0.0, 0.5, 1.0, 2.0, 3.0, 5.0),
}

Direction = Literal["add", "remove"]


class _Pair(NamedTuple):
    """The dominating pair, in units of the noise."""

    gram: np.ndarray  # [bins, bins]  inner products of the means
    root: np.ndarray  # [bins, bins]  of the Gram matrix: root @ root.T = gram

    @property
    def rho(self) -> float:
        """Without amplification: each component is a Gaussian release of this zCDP at most."""
        return float(np.max(np.diag(self.gram))) / 2


class _Draws(NamedTuple):
    """Draws of one direction: privacy losses, and logarithms of their weights."""

    losses: np.ndarray  # [samples]  positive in favor of the first distribution
    log_weights: np.ndarray  # [samples]


def _pair(strategy: Strategy, noise_multiplier: float, rounds: int, bins: int) -> _Pair | None:
    """The pair; ``None`` where there is so little noise that a record is not hidden at all."""
    checks.kind("strategy", strategy, Strategy)
    checks.positive("noise_multiplier", noise_multiplier)
    checks.count("bins", bins, at_most=2**14)
    table = strategy.responses(rounds, bins)
    if not strategy.is_nonnegative(rounds):
        raise ValueError(
            "balls in bins are accounted for under strategies with nonnegative entries, and this "
            f"{type(strategy).__name__} has a negative one; take another strategy."
        )
    # Rounded up: longer means are as less noise. The square of more noise could not be held.
    noise = min(float(noise_multiplier), _MOST_NOISE)
    gram = (table / noise) @ (table / noise).T * (1 + 1e-12)
    if np.max(gram) > _NO_NOISE:
        return None
    values, vectors = np.linalg.eigh(gram)
    return _Pair(gram, vectors * np.sqrt(np.maximum(values, 0.0)))


def _log_mean_exp(values: np.ndarray) -> np.ndarray:
    peak = np.max(values, axis=1, keepdims=True)
    return np.log(np.mean(np.exp(values - peak), axis=1)) + peak[:, 0]


def _draw(
    pair: _Pair, direction: Direction, tilt: float, samples: int, rng: np.random.Generator
) -> _Draws:
    """Draw from the proposal, and return losses and log-weights of the direction."""
    bins = len(pair.gram)
    squares = np.diag(pair.gram)
    mean = pair.gram.mean(axis=1)
    losses = np.empty(samples)
    log_weights = np.empty(samples)
    size = max(1, _BLOCK // bins)
    for start in range(0, samples, size):
        part = slice(start, min(start + size, samples))
        count = part.stop - start
        products = rng.standard_normal((count, bins)) @ pair.root.T  # <m_j, y>
        if direction == "add":
            products += tilt * pair.gram[rng.integers(bins, size=count)]
            losses[part] = _log_mean_exp(products - squares / 2)
            proposal = _log_mean_exp(tilt * products - tilt**2 * squares / 2)
            log_weights[part] = losses[part] - proposal
        else:
            products -= tilt * mean
            losses[part] = -_log_mean_exp(products - squares / 2)
            log_weights[part] = tilt * products.mean(axis=1) + tilt**2 * mean.mean() / 2
    return _Draws(losses, log_weights)


def _log_bound(pair: _Pair, direction: Direction, tilt: float, epsilon: float) -> float:
    """Logarithm of an upper bound on every weighted term, from the module's inequalities."""
    squares = np.diag(pair.gram)
    if direction == "add":
        shape = scipy.special.xlogy(tilt - 1, tilt - 1) - tilt * math.log(tilt)
        exponent = (tilt**2 - tilt) * np.max(squares) / 2 - (tilt - 1) * epsilon
    else:
        shape = scipy.special.xlogy(tilt, tilt) - (1 + tilt) * math.log1p(tilt)
        exponent = tilt * (np.mean(squares) / 2 - epsilon) + tilt**2 * np.mean(pair.gram) / 2
    return float(shape + exponent)


def _bound(pair: _Pair, direction: Direction, tilt: float, epsilon: float) -> float:
    """That bound, no smaller than what can be divided by."""
    return math.exp(min(max(_log_bound(pair, direction, tilt, epsilon), -700.0), 700.0))


def _terms(draws: _Draws, epsilon: float) -> np.ndarray:
    """The positive weighted terms; all others are zero."""
    positive = draws.losses > epsilon
    return np.exp(draws.log_weights[positive]) * -np.expm1(epsilon - draws.losses[positive])


class _Test(NamedTuple):
    """A proposal and a stake, chosen by draws of their own."""

    tilt: float
    stake: float


def _spread(draws: _Draws, epsilon: float) -> tuple[float, float]:
    """Mean and mean square of the terms."""
    terms = _terms(draws, epsilon)
    count = len(draws.losses)
    return float(np.sum(terms) / count), float(np.sum(terms**2) / count)


def _choose(
    pair: _Pair,
    direction: Direction,
    samples: int,
    failure: float,
    rng: np.random.Generator,
    epsilon: float | None,
    delta: float | None,
) -> _Test:
    """Choose for the least deviation of the bound at an epsilon, or where the mean is delta.

    One of both is given; where both are, the deviation is compared with delta.
    """
    cost = math.log(1 / failure)
    pilot = max(100, int(_PILOT * samples))
    best = _Test(_TILTS[direction][0], 0.5)
    least = math.inf
    for tilt in _TILTS[direction]:
        draws = _draw(pair, direction, tilt, pilot, rng)
        point = epsilon
        if point is None:
            assert delta is not None
            most = max(float(np.max(draws.losses)), 0.0)
            point = smallest(lambda e, d=draws: _spread(d, e)[0] <= delta, 0.0, most)
        mean, square = _spread(draws, point)
        aim = mean if delta is None else delta
        bound = _bound(pair, direction, tilt, point)
        deviation = math.sqrt(2 * square * cost / samples) + bound * cost / samples
        # A pilot without hits knows nothing of the mean: only the bound counts.
        score = deviation / aim if aim > 0 else deviation
        if score < least:
            wanted = math.sqrt(2 * cost / (samples * square)) if square > 0 else math.inf
            best = _Test(tilt, min(wanted, 0.8 / bound))
            least = score
    return best


def _passes(
    pair: _Pair,
    direction: Direction,
    test: _Test,
    draws: _Draws,
    epsilon: float,
    mean: float,
    failure: float,
) -> bool:
    """Whether the draws show, with this confidence, that delta at epsilon is below ``mean``."""
    bound = _bound(pair, direction, test.tilt, epsilon)
    if test.stake * (bound - mean) >= 1:  # a factor could be negative
        return False
    terms = _terms(draws, epsilon)
    excess = betting_excess(terms, len(draws.losses) - len(terms), mean, test.stake)
    return excess >= math.log(1 / failure)


def _check_samples(samples: int) -> None:
    checks.count("samples", samples, at_least=1000)


@checked
def balls_in_bins_delta(
    strategy: Strategy,
    noise_multiplier: float,
    epsilon: float,
    rounds: int,
    bins: int,
    samples: int = 1_000_000,
    failure: float = 1e-9,
    seed: int = 0,
) -> float:
    r"""Return delta at ``epsilon`` under balls-in-bins sampling, with its confidence.

    Args:
      strategy: as in :func:`balls_in_bins_epsilon`, like the other arguments.
      noise_multiplier: as in :func:`balls_in_bins_epsilon`.
      epsilon: >= 0.
      rounds: as in :func:`balls_in_bins_epsilon`.
      bins: as in :func:`balls_in_bins_epsilon`.
      samples: as in :func:`balls_in_bins_epsilon`.
      failure: :math:`\beta`, the probability that the bound fails, which is added to it.
      seed: as in :func:`balls_in_bins_epsilon`.

    Returns:
      The larger upper bound of both directions plus ``failure``, or delta without amplification if
      that is smaller.

    Raises:
      ValueError: numbers out of their ranges, a strategy with negative entries.

    Guarantees:
      As for :func:`balls_in_bins_epsilon`.

    Example:
      >>> from fljax.privacy.matrices import square_root
      >>> round(balls_in_bins_delta(square_root(8), 1.0, 2.0, rounds=16, bins=8, samples=50_000), 3)
      0.035
    """
    pair = _pair(strategy, noise_multiplier, rounds, bins)
    checks.nonnegative("epsilon", epsilon)
    _check_samples(samples)
    probability("failure", failure)
    checks.seed("seed", seed)
    if pair is None:
        return 1.0
    rng = np.random.default_rng(seed % 2**32)
    largest = 0.0
    for direction in ("add", "remove"):
        test = _choose(pair, direction, samples, failure, rng, epsilon=epsilon, delta=None)
        draws = _draw(pair, direction, test.tilt, samples, rng)
        passes = functools.partial(_passes, pair, direction, test, draws, epsilon, failure=failure)
        if not passes(mean=1.0):
            largest = 1.0
            break
        low = math.log(1e-3 / samples) - 50
        log_mean = smallest(lambda m, passes=passes: passes(mean=math.exp(m)), low, 0.0)
        largest = max(largest, math.exp(log_mean))
    return min(largest + failure, float(zcdp_delta(pair.rho, epsilon, "gaussian")))


@checked
def balls_in_bins_epsilon(
    strategy: Strategy,
    noise_multiplier: float,
    delta: float,
    rounds: int,
    bins: int,
    samples: int = 1_000_000,
    failure: float | None = None,
    seed: int = 0,
) -> float:
    r"""Return epsilon at ``delta`` under balls-in-bins sampling, with its confidence.

    Args:
      strategy: :math:`C`, of :mod:`fljax.privacy.matrices`, with nonnegative entries and any number
        of bands.
      noise_multiplier: :math:`\sigma`, standard deviation of the independent noise that is added to
        :math:`Cx`, relative to the change of a row of :math:`x` by an added record.
      delta: in (0, 1).
      rounds: number of rounds, >= 1.
      bins: number of bins :math:`b`, the rounds of an epoch. One bin means no sampling.
      samples: number of draws. About :math:`100/\delta` are enough wherever amplification is
        strong, fewer where it is weak; with too few the result is larger, up to epsilon without
        amplification.
      failure: :math:`\beta<\delta`, the probability that the bound fails, which is a part of delta;
        a hundredth of it by default.
      seed: of the draws, an integer. The probability is over the seed: it must be chosen before the
        results of others are seen.

    Returns:
      The smallest epsilon whose upper bound on delta in both directions, plus ``failure``, is at
      most ``delta``; or epsilon without amplification if that is smaller.

    Raises:
      ValueError: numbers out of their ranges, a strategy with negative entries.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP for a record added or removed, if the bins stay secret: of the
      mechanism that draws these samples first; or of the mechanism itself, with probability
      :math:`1-\beta` over the seed.

    Reference:
      Chua et al. 2024 (independent noise); Choquette-Choo et al. 2024 (matrix mechanisms);
      Waudby-Smith & Ramdas 2024 (bounds by betting).

    Example:
      >>> from fljax.privacy.accounting import zcdp_epsilon
      >>> from fljax.privacy.matrices import square_root
      >>> epsilon = balls_in_bins_epsilon(
      ...     square_root(8), 1.0, 1e-3, rounds=16, bins=8, samples=50_000
      ... )
      >>> rho = square_root(8).sensitivity(rounds=16, separation=8) ** 2 / 2
      >>> round(epsilon, 1), zcdp_epsilon(rho, 1e-3, "gaussian").round(1)
      (3.5, np.float64(4.8))
    """
    pair = _pair(strategy, noise_multiplier, rounds, bins)
    probability("delta", delta)
    _check_samples(samples)
    failure = delta / 100 if failure is None else failure
    checks.interval("failure", failure, above=0, below=delta, hint="It is a part of delta.")
    checks.seed("seed", seed)
    if pair is None:
        return math.inf
    rng = np.random.default_rng(seed % 2**32)
    return _epsilon(pair, delta, samples, failure, rng)


def _epsilon(
    pair: _Pair, delta: float, samples: int, failure: float, rng: np.random.Generator
) -> float:
    most = float(zcdp_epsilon(pair.rho, delta, "gaussian"))
    mean = delta - failure
    largest = 0.0
    for direction in ("add", "remove"):
        test = _choose(pair, direction, samples, failure, rng, epsilon=None, delta=mean)
        draws = _draw(pair, direction, test.tilt, samples, rng)

        passes = functools.partial(
            _passes, pair, direction, test, draws, mean=mean, failure=failure
        )
        if not passes(most):
            return most
        largest = max(largest, smallest(passes, 0.0, most))
    return largest


@checked
def balls_in_bins_multiplier(
    strategy: Strategy,
    epsilon: float,
    delta: float,
    rounds: int,
    bins: int,
    samples: int = 1_000_000,
    failure: float | None = None,
    seed: int = 0,
) -> float:
    r"""Return the noise multiplier for a budget under balls-in-bins sampling.

    The multiplier is found with a part of the draws and verified with new ones; if they do not
    confirm it, it is raised by half a percent and verified again, each time with half the
    probability of failure.

    Args:
      strategy: as in :func:`balls_in_bins_epsilon`, like the other arguments.
      epsilon: total, > 0.
      delta: total, in (0, 1).
      rounds: as in :func:`balls_in_bins_epsilon`.
      bins: as in :func:`balls_in_bins_epsilon`.
      samples: as in :func:`balls_in_bins_epsilon`.
      failure: as in :func:`balls_in_bins_epsilon`.
      seed: as in :func:`balls_in_bins_epsilon`.

    Returns:
      :math:`\sigma`, never above that without amplification.

    Raises:
      ValueError: numbers out of their ranges, a strategy with negative entries.

    Guarantees:
      As for :func:`balls_in_bins_epsilon`.

    Example:
      >>> from fljax.privacy.matrices import square_root
      >>> multiplier = balls_in_bins_multiplier(
      ...     square_root(8), 3.0, 1e-3, rounds=16, bins=8, samples=50_000
      ... )
      >>> round(multiplier, 1)
      1.1
    """
    checks.positive("epsilon", epsilon, "A zero budget would need infinite noise.")
    probability("delta", delta)
    unit = _pair(strategy, 1.0, rounds, bins)
    if unit is None:
        raise ValueError("strategy has entries beyond 1e40; divide them by the largest.")
    _check_samples(samples)
    failure = delta / 100 if failure is None else failure
    checks.interval("failure", failure, above=0, below=delta, hint="It is a part of delta.")
    checks.seed("seed", seed)
    rng = np.random.default_rng(seed % 2**32)

    def scaled(multiplier: float) -> _Pair:
        return _Pair(unit.gram / multiplier**2, unit.root / multiplier)

    most = math.sqrt(unit.rho / float(zcdp_rho(epsilon, delta, "gaussian"))) * (1 + 1e-9)
    pilot = max(1000, samples // 10)
    low = math.log(most) - 7
    high = math.log(most)
    while high - low > 2e-3:
        middle = (low + high) / 2
        # The same draws for all, whose confidence is that of the whole number of samples.
        draws = np.random.default_rng(seed % 2**32)
        epsilon_of_middle = _epsilon(scaled(math.exp(middle)), delta, pilot, failure, draws)
        low, high = (low, middle) if epsilon_of_middle <= epsilon else (middle, high)
    multiplier = math.exp(high)
    mean = delta - failure
    while multiplier < most:
        failure /= 2
        pair = scaled(multiplier)
        verified = True
        for direction in ("add", "remove"):
            test = _choose(pair, direction, samples, failure, rng, epsilon=epsilon, delta=mean)
            draws = _draw(pair, direction, test.tilt, samples, rng)
            verified &= _passes(pair, direction, test, draws, epsilon, mean, failure)
        if verified:
            return multiplier
        multiplier *= 1.005
    return most
