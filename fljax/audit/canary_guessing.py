"""Audits of a single run with many canaries: clients with one of two data sets by a coin.

Its attacker computes the same likelihood ratios as :mod:`fljax.audit.world_guessing`.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

from fljax._core.annotations import checked
from fljax._core.module import replace
from fljax._core.prng import as_key
from fljax.audit.audit_report import (
    MIN_VARIANCE,
    Report,
    distinct_texts,
    noise_floor,
    validated,
    with_noise_kind,
)
from fljax.audit.guessing_bounds import guessed_epsilon, measured_rho
from fljax.audit.neighbors import differing_clients, expanded_mask
from fljax.audit.tap import Recorded, record_statistics
from fljax.privacy import accounting
from fljax.problems import Problem
from fljax.simulation.scan import noise_plan, prepare
from fljax.simulation.scenario import Simulation

#: Correlations above this many standard deviations of a zero correlation count as shared noise.
CORRELATION_SIGMAS = 6.0

#: Alternations between estimating the coins and the noise common to all clients.
ALTERNATIONS = 8

#: Log-odds beyond which a guess counts as certain, so that a few extreme ones do not decide which
#: score is the most confident.
CERTAIN_LOG_ODDS = 20.0

#: Largest number of clients whose noise is compared in pairs, a square matrix of distances.
MAX_PAIRED_CLIENTS = 1 << 12

#: With fewer canaries, even correct guesses of all show an epsilon of only 1.
FEWEST_CANARIES = 10

#: How :func:`one_run` shares the significance level: guesses by plain scores, guesses by scores
#: without the noise that clients or rounds seem to share, and the size of the noise.
LEVEL_SHARES = (0.65, 0.25, 0.1)


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
        """The result as a sentence."""
        if not self.shaped > self.claimed:
            return super().verdict
        shaped, claimed = distinct_texts(self.shaped, self.claimed)
        return (
            f"{super().verdict} The noise is smaller than what is booked: if it is Gaussian, as is "
            f"declared, epsilon is at least {shaped}, and {claimed} is claimed."
        )


def _canary_statistics(sent: Array, clean: Array, low: Array, high: Array) -> dict[str, Array]:
    """Statistics of a release: the distance from the middle of both data sets and the change
    between these, ``[K, D]`` each, and the squared norm of the noise, ``[K]``.
    """
    return {
        "off": sent - (low + high) / 2,
        "change": high - low,
        "noise": jnp.sum((sent - clean) ** 2, axis=1),
    }


@functools.partial(jax.jit, static_argnames="rounds")
def _observe(simulations: tuple[Simulation, ...], key: Array, rounds: int) -> Recorded:
    """One run of the first simulation; statistics ``[T, K]`` each."""
    ready = tuple(prepare(s, rounds) for s in simulations)
    return record_statistics(simulations, ready, key, rounds, _canary_statistics)


def _canary_scores(off: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Two scores of each client's second version, ``[K]`` each: the plain likelihood ratio, and
    that after removing noise which clients or rounds seem to share (None where none do).

    Shared noise is estimated from the messages without using the coins, and subtracted in one of
    three ways: by the covariance of rounds; by the mean noise of all other clients, where that is
    larger than independent noise allows; and by the other client whose noise is nearest, or nearest
    to its negative, where it is nearer than chance allows. Messages that are similar for other
    reasons look the same, so this score is tried in addition to the plain one and does not replace
    it.

    Args:
      off: ``[T, K, D]``, messages minus the middle of both versions: noise and half a change.
      change: ``[T, K, D]``, from the first to the second.
    """
    rounds, clients, dim = off.shape
    # The variance differs by round and by client and each is measured from few numbers: model it
    # as a product of a factor per round and a factor per client.
    square = np.mean(off**2, axis=2)
    square = square.mean(0, keepdims=True) * square.mean(1, keepdims=True)
    square = square / max(np.mean(off**2), 1e-300)
    gap = np.sum(change**2, axis=2)
    scale = np.sqrt(noise_floor(square, gap.mean(1, keepdims=True)))[..., None]
    off = off / scale
    change = change / scale
    plain = np.sum(off * change, axis=(0, 2))
    guesses = []
    numbers = rounds * dim
    power = np.mean(off**2)
    present = np.any(off != 0, axis=2, keepdims=True)
    speakers = np.sum(present, axis=1, keepdims=True)
    common = np.sum(off, axis=1, keepdims=True) / np.sqrt(np.maximum(speakers, 1))
    if np.sum(common**2) > stats.chi2.isf(1e-3, numbers) * power:
        guess = np.sum(off * change, axis=(0, 2))
        for _ in range(ALTERNATIONS):
            noise = present * (off - np.tanh(guess / 2)[:, None] * change / 2)
            mean = (np.sum(noise, axis=1, keepdims=True) - noise) / np.maximum(speakers - 1, 1)
            left = max(float(np.mean(present * (noise - mean) ** 2)), MIN_VARIANCE)
            guess = np.sum(present * (off - mean) * change, axis=(0, 2)) / left
        guesses.append(guess)
    elif rounds > 1:
        decorrelated = _decorrelated_rounds(off, change)
        if decorrelated is not None:
            off, change = decorrelated
            guesses.append(np.sum(off * change, axis=(0, 2)))
    if clients <= MAX_PAIRED_CLIENTS:
        nearest = _nearest_noise(off, change)
        typical = float(np.median(nearest.min(axis=0)))
        if typical < 2 * stats.chi2.ppf(0.1 / (8 * clients), numbers) * power:
            guesses.append((nearest[0] - nearest[1]) / max(2 * typical / numbers, MIN_VARIANCE))
    # Use the most confident of the applicable scores.
    sure = [np.mean(np.minimum(np.abs(guess), CERTAIN_LOG_ODDS)) for guess in guesses]
    return plain, guesses[int(np.argmax(sure))] if guesses else None


def _decorrelated_rounds(
    off: np.ndarray, change: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Decorrelate the rounds of ``off`` and ``change``; ``None`` if no rounds share noise."""
    rounds, clients, dim = off.shape
    # Both versions are half a change from the middle, so the squared change can be subtracted
    # without knowing the coin.
    spread = np.einsum("tkd,skd->ts", off, off) - np.einsum("tkd,skd->ts", change, change) / 4
    power = np.diag(spread)
    if power.min() <= 0:
        return None
    correlation = spread / np.sqrt(np.outer(power, power)) - np.eye(rounds)
    if np.abs(correlation).max() < CORRELATION_SIGMAS / (clients * dim) ** 0.5:
        return None
    power, vectors = np.linalg.eigh(spread / (clients * dim))
    root = vectors / np.sqrt(np.maximum(power, MIN_VARIANCE)) @ vectors.T
    return tuple(np.einsum("ts,skd->tkd", root, part) for part in (off, change))


def _nearest_noise(off: np.ndarray, change: np.ndarray) -> np.ndarray:
    """``[2, K]``: the squared distance from a client's noise to the nearest noise of another client
    (or its negative, and for either coin of that client), if the first client's coin fell on its
    first version, and if it fell on its second.
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
            distances[:, lengths[other] == 0] = np.inf  # silent clients
            nearest[coin] = np.minimum(nearest[coin], distances.min(axis=1))
    return np.maximum(nearest, 0)


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
      ValueError: no privacy; a delta or confidence of 0 or 1; data of a client that are not
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
    simulation, privacy = validated(simulation, rounds, delta, confidence)
    if privacy.scope == "server":
        raise ValueError(
            "a trusted server publishes one sum for all clients, in which single canaries cannot "
            "be told apart; use fljax.audit.two_worlds."
        )
    placed = differing_clients(simulation.problem, canaries, privacy.neighbors, several=True)
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
    mixed = _mixed_problem(simulation.fixed_problem, canaries, coins)
    real = dataclasses.replace(simulation, problem=mixed)
    recorded, spent, norm = _observe((real, low, high), run_key, rounds)
    values = {name: np.asarray(value, np.float64) for name, value in recorded.items()}
    total = len(placed)
    booked = {name: np.asarray(cost, np.float64) for name, cost in spent.items()}
    total_cost = {n: float(np.max(np.sum(cost, axis=0)[placed])) for n, cost in booked.items()}
    ledger = with_noise_kind(total_cost, privacy)
    scores = [
        None if score is None else score[placed]
        for score in _canary_scores(values["off"], values["change"])
    ]
    counts = _guess_counts(scores, coins[placed], 1 - confidence)
    bounds = [
        guessed_epsilon(right, guesses, total, delta, 1 - alpha) for guesses, right, alpha in counts
    ]
    best = int(np.argmax(bounds))
    shaped = math.nan
    if ledger.get("gaussian_noise", 0.0) > 0:
        sizes = {name: values[name][:, placed] for name in ("noise", "change")}
        rho = booked["rho"][:, placed]
        one_plan = privacy.scope == "gradient" and noise_plan(simulation, rounds) is not None
        shaped = _noise_epsilon(sizes, rho, rounds, one_plan, delta, confidence)
    return OneRun(
        ledger=ledger,
        delta=delta,
        confidence=confidence,
        bound=bounds[best],
        most=max(
            guessed_epsilon(guesses, guesses, total, delta, 1 - alpha)
            for guesses, _, alpha in counts
        ),
        gradient_norm=float(np.max(norm)),
        gradient_bound=float(getattr(privacy, "gradient_bound", math.inf)),
        canaries=total,
        guesses=counts[best][0],
        right=counts[best][1],
        shaped=shaped,
    )


def _mixed_problem(problem: Problem, canaries: Problem, coins: np.ndarray) -> Problem:
    """The data of the run: each client's version by its coin, ``canaries`` for heads."""
    versions = {
        name: [np.asarray(getattr(p, name)) for p in (canaries, problem)]
        for name in ("features", "targets", "weights")
    }
    heads = np.broadcast_to(coins[:, None], versions["weights"][0].shape)
    mixed = {name: np.where(expanded_mask(heads, a), a, b) for name, (a, b) in versions.items()}
    # `replace` does not validate: weights of removed samples need not sum to one.
    return replace(problem, statistics=None, **mixed)


def _guess_counts(
    scored: list[np.ndarray | None], coins: np.ndarray, level: float
) -> list[tuple[int, int, float]]:
    """Guess the coins with the largest absolute scores, from all canaries down to a few by halving:
    the number of guesses, of correct ones, and the significance level of each attempt.
    """
    total = len(coins)
    tried = [total >> halved for halved in range(total.bit_length()) if total >> halved >= 8]
    counts = []
    for scores, share in zip(scored, LEVEL_SHARES[:2], strict=True):
        if scores is None:
            continue
        order = np.argsort(-np.abs(scores), kind="stable")
        correct = np.cumsum((scores > 0)[order] == coins[order])
        alpha = share * (level / len(tried))
        counts += [(guesses, int(correct[guesses - 1]), alpha) for guesses in tried]
    return counts


def _noise_epsilon(
    sizes: dict[str, np.ndarray],
    rho: np.ndarray,
    rounds: int,
    one_plan: bool,
    delta: float,
    confidence: float,
) -> float:
    """The lower bound on epsilon from the size of Gaussian noise (:func:`measured_rho`).

    Args:
      sizes: of each release, the squared norm of the ``noise``, ``[T, K]``, and the ``change``
        between both versions, ``[T, K, D]``.
      rho: ``[rounds, K]``, the costs booked.
      rounds: of the run.
      one_plan: whether one cost covers all rows that a participation changes, in any of the rounds;
        otherwise each of several releases of a round books the same.
      delta: of epsilon.
      confidence: of the report.
    """
    noise, change = sizes["noise"], sizes["change"]
    gap = np.sum(change**2, axis=2)
    dim = change.shape[2]
    if one_plan:
        dim *= len(noise)
        noise, gap, rho = (part.sum(axis=0, keepdims=True) for part in (noise, gap, rho))
    else:
        steps = len(noise) // rounds
        rho = np.repeat(rho / steps, steps, axis=0)
    least_rho = measured_rho(noise, gap, rho, dim, 1 - LEVEL_SHARES[2] * (1 - confidence))
    if 0 < least_rho < math.inf:
        return float(accounting.zcdp_epsilon(least_rho, delta, "gaussian"))
    return math.inf if math.isinf(least_rho) else 0.0
