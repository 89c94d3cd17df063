r"""Audits by guessing: inference from all messages, compared with the claim.

An audit treats a private simulation as a black box: it runs it, observes the link after noise was
added, and guesses which of two data sets was used. The frequency of correct guesses implies a
*lower* bound on the privacy loss, independent of any proof. Where it exceeds the claim, the claim
is wrong; where it stays below, nothing is proved, but a bound close to the claim means that a
better attack could find little more.

* :func:`two_worlds`: two neighboring data sets, many runs of each.
* :func:`one_run`: one run with many such clients (canaries), each with one of two data sets by a
  coin.
* :func:`corners`: the data sets for both, with samples at the corners of their domain.

Under :class:`~fljax.privacy.NoisyGradients` the messages are the gradients of all steps. With a
trusted server (:class:`~fljax.privacy.CentralGaussian`) the attacker observes its publications,
and knows the participants: amplification by secret sampling is not audited.

The relation of neighbors is that of the budget's ``neighbors`` (:mod:`fljax.privacy.notions`).

The attacker knows the algorithm, both data sets and all public randomness (participants, batches,
lost links), and observes every message; it does not know the noise. The messages of a client depend
on those it received before, so the attacker also simulates both data sets along with the run, with
the messages that were really sent: their next messages before noise, :math:`a_t` and :math:`b_t`,
belong to *this* history, including the state that a client keeps between rounds. For independent
Gaussian noise the likelihood ratio of the whole run is then

.. math:: \sum_t\frac{\langle m_t-\tfrac12(a_t+b_t),\,b_t-a_t\rangle}{\sigma_t^2},

and no test is more powerful (Neyman and Pearson). Noise need not be independent, though: clients
may draw it jointly, and a mechanism may cancel some of it in later rounds, in which the attacked
client may be silent. The noise of other clients is known to the attacker except for the part that
it shares with the attacked one's, since all clean messages but that one's are the same in both
worlds; so each message is weighted by the remainder of its noise *given all other noise*, of
clients and of rounds, which is :math:`\langle m-\tfrac12(a+b),\Sigma^{-1}(b-a)\rangle` with the
covariance :math:`\Sigma` of all messages. Where the noise of others determines one client's, no
noise remains. The noise level :math:`\sigma_t` is measured, never taken from the mechanism. Data
that bypass the link have no message to observe; but in the same history they would change the
messages of *other* clients, which is tested too.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float, Int
from matplotlib.figure import Figure

from fljax import plotting
from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.prng import as_key
from fljax.audit.audit_report import MIN_VARIANCE, Report, noise_floor, validated, with_noise_kind
from fljax.audit.guessing_bounds import counted_epsilon, gaussian_misses, shaped_epsilon
from fljax.audit.neighbors import check_removed_client, differing_clients
from fljax.audit.tap import BATCH_NUMBERS, Recorded, record_statistics
from fljax.privacy import accounting
from fljax.problems import Problem
from fljax.simulation.scan import prepare
from fljax.simulation.scenario import Simulation

#: Largest number of noise values that are stored of all runs together (128 MiB in float64).
MAX_STORED_NOISE = 1 << 24

#: Runs that decide which clients' noise is stored, where it cannot be that of all clients.
PILOT_RUNS = 100

#: A covariance is estimated from at least this many values per row: with fewer, its inverse is
#: mostly sampling error.
MIN_VALUES_PER_ROW = 10

#: Messages of at most this many coordinates are used coordinate by coordinate; longer ones along
#: the directions of their changes, unless there are more messages than coordinates.
FEW_COORDINATES = 8

#: Largest number of operations for one covariance per pattern of silent clients.
MAX_PATTERN_OPERATIONS = 1 << 32

#: Fewer runs show little: half of them choose the attack, and the other half could not show an
#: epsilon of 3.3 even if every guess was right.
FEWEST_SEEDS = 200

#: Names of the scores that look for noise that is missing, and for noise that is bounded.
NEARNESS = "nearness"


OUTSIDE_SUPPORT = "outside of the noise"

#: Squares of this share of the mean square of noise count as no noise.
NO_NOISE = 1e-20

#: Changes of other clients' messages above this many standard deviations are not rounding errors:
#: data of the attacked client that only leave perturbed do not change them at all.
BYPASS_TOLERANCE = 0.01


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
        return super().broken or self.past_link > BYPASS_TOLERANCE

    @property
    def verdict(self) -> str:
        """The result as a sentence."""
        if self.past_link <= BYPASS_TOLERANCE:
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
            for name, scores, make_round in zip("ab", self.scores, plotting.LOOKS, strict=False):
                left.hist(
                    scores,
                    np.linspace(low, high, 61),
                    density=True,
                    histtype="stepfilled",
                    alpha=0.35,
                    color=make_round["color"],
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
            epsilons = [self.ledger["epsilon"]]
            deltas = [self.ledger.get("delta", 0.0)]
        elif self.ledger.get("gaussian_noise", 0.0) > 0:
            return gaussian_misses(math.sqrt(2 * self.ledger["rho"]), alarms)
        else:  # any zCDP mechanism: the claim at each of many epsilons and its delta
            epsilons = np.linspace(0, accounting.zcdp_epsilon(self.ledger["rho"], 1e-7), 200)
            deltas = accounting.zcdp_delta(self.ledger["rho"], epsilons, "canonne-kamath-steinke")
        growth, first = (np.asarray(values)[:, None] for values in (np.exp(epsilons), deltas))
        misses = np.maximum(1 - first - growth * alarms, (1 - first - alarms) / growth)
        return np.maximum(misses.max(axis=0), 0)


def _line(make_round: dict[str, Any]) -> dict[str, Any]:
    return {"color": make_round["color"], "linestyle": make_round["linestyle"]}


def _log_likelihood_terms(sent: Array, first: Array, second: Array) -> dict[str, Array]:
    """The terms of the log-likelihood ratio of the second clean message to the first, ``[K]``
    each: for Gaussian noise the product, for Laplace noise the absolute values.
    """
    change = second - first
    centered = sent - (first + second) / 2
    return {
        "gap": jnp.sum(change**2, axis=1),
        "product": jnp.sum(centered * change, axis=1),
        "absolute": jnp.sum(jnp.abs(sent - first) - jnp.abs(sent - second), axis=1),
    }


def _world_statistics(
    speaker: Int[Array, ""] | int, sent: Array, clean: Array, other_clean: Array
) -> dict[str, Array]:
    """Statistics of a release in the run's own world (``clean``) and the other one, ``[K]`` each;
    ``noise`` is ``[K, D]``, and ``change``, ``[D]``, that of the attacked client.
    """
    noise = sent - clean
    return _log_likelihood_terms(sent, clean, other_clean) | {
        "other_square": jnp.mean((sent - other_clean) ** 2, axis=1),
        "own_largest": jnp.max(jnp.abs(noise), axis=1),
        "other_largest": jnp.max(jnp.abs(sent - other_clean), axis=1),
        "square": jnp.mean(noise**2, axis=1),
        "size": jnp.mean(jnp.abs(noise), axis=1),
        "noise": noise,
        "change": other_clean[speaker] - clean[speaker],
    }


@functools.partial(jax.jit, static_argnames=("rounds", "batch", "max_numbers"))
def _both_worlds(
    worlds: tuple[Simulation, Simulation],
    keys: Array,
    order: Int[Array, " rows"],
    client: Int[Array, ""],
    rounds: int,
    batch: int,
    max_numbers: int,
) -> list[Recorded]:
    """Run world a and world b many times each; return the statistics of each release.

    Those of the attacked client are ``[S, T]`` each. ``past_link``, ``[S]``, is how far the other
    data set changes the messages of *other* clients in the same history.

    ``noise``, ``[S, M, T, R]``, holds the noise of the first ``R`` clients of ``order``, the
    attacked one first, along ``M`` directions; ``change``, ``[S, M, T]``, the change between the
    worlds along the same, and ``weight`` its factors in the score's sum. The directions are all
    coordinates or, if there are many, the directions of the changes themselves. ``R`` is such that
    about ``max_numbers`` numbers are stored; the last row is the sum of all clients left out, as
    noise that cancels among all clients shows in their sum only.
    """
    ready = (prepare(worlds[0], rounds), prepare(worlds[1], rounds))
    speaker = order[0]

    def run_world(real: int, keys: Array) -> Recorded:
        order_of_worlds = (real, 1 - real)
        simulations = tuple(worlds[i] for i in order_of_worlds)
        prepared = tuple(ready[i] for i in order_of_worlds)

        def run(key: Array) -> Recorded:
            keep = functools.partial(_world_statistics, speaker)
            values, spent, norm = record_statistics(simulations, prepared, key, rounds, keep)
            noise = values.pop("noise")
            change = values.pop("change")  # [T, K, D] and [T, D]
            recorded = jax.tree.map(lambda a: a[:, speaker], values)
            power = jnp.sum(values["square"], axis=0) + jnp.finfo(values["square"].dtype).tiny
            moved = jnp.sqrt(jnp.sum(values["gap"], axis=0) / power)
            recorded["past_link"] = jnp.max(moved.at[speaker].set(0))
            length, dim = change.shape
            axes = dim if dim <= max(length, FEW_COORDINATES) else length
            capacity = max_numbers // (2 * len(keys) * length * axes)
            if capacity:
                capacity = min(
                    capacity, max(1, len(keys) // 2 * axes // (MIN_VALUES_PER_ROW * length))
                )
            rows = noise[:, order]
            if 0 < capacity < len(order):
                rest = jnp.sum(rows[:, max(capacity - 1, 1) :], axis=1, keepdims=True)
                rows = jnp.concatenate([rows[:, : max(capacity - 1, 1)], rest], axis=1)
                rows = rows[:, :capacity]
            if capacity and axes == dim:
                recorded["noise"] = jnp.moveaxis(rows, 2, 0)
                recorded |= {"change": change.T, "weight": change.T}
            elif capacity:
                norms = jnp.linalg.norm(change, axis=1)
                unit = change / jnp.where(norms > 0, norms, 1)[:, None]
                recorded["noise"] = jnp.einsum("md,trd->mtr", unit, rows, precision="highest")
                recorded["change"] = jnp.matmul(unit, change.T, precision="highest")
                recorded["weight"] = jnp.diag(norms)
            return recorded, {n: jnp.sum(s[:, client]) for n, s in spent.items()}, jnp.max(norm)

        return jax.lax.map(run, keys, batch_size=batch)

    return [run_world(real, keys[real]) for real in (0, 1)]


@functools.partial(jax.jit, static_argnames="rounds")
def _noise_correlations(
    simulation: Simulation, keys: Array, client: Int[Array, ""], rounds: int
) -> Float[Array, " clients"]:
    """The squared correlation of each client's noise with the attacked client's, summed over
    rounds and estimated from some runs.
    """
    ready = prepare(simulation, rounds)

    def moments(sent: Array, clean: Array) -> dict[str, Array]:
        noise = sent - clean
        attacked = noise[client]
        products = jnp.sum(noise * attacked[None], axis=1)
        return {"with": products, "square": jnp.sum(noise**2, axis=1)}

    def run(key: Array) -> dict[str, Array]:
        return record_statistics((simulation,), (ready,), key, rounds, moments)[0]

    sums = jax.tree.map(lambda a: jnp.sum(a, axis=0), jax.lax.map(run, keys))  # [T, K]
    power = sums["square"] * sums["square"][:, client][:, None]
    strength = sums["with"] ** 2 / jnp.where(power > 0, power, 1)
    return jnp.sum(strength, axis=0)


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
    same distribution in all coordinates, and given all other numbers. The latter two are used
    where there are enough runs to measure a covariance; among many clients, those are observed
    whose noise is most correlated with the attacked one's. On the other half the test's
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
      ValueError: no privacy; a delta or confidence of 0 or 1; too few seeds; data sets that are not
        neighbors.

    Guarantees:
      If the mechanism is :math:`(\epsilon,\delta)`-DP, ``bound`` exceeds :math:`\epsilon` with a
      probability of at most ``1 - confidence``, for any noise; ``shaped`` only if the scores
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
    simulation, privacy = validated(simulation, rounds, delta, confidence)
    checks.count(
        "seeds",
        seeds,
        at_least=FEWEST_SEEDS,
        hint="Half of them choose the attack, the other half count how often it is right.",
    )
    if privacy.scope == "server":
        (client,) = differing_clients(simulation.problem, neighbor, "client")
        check_removed_client(client, privacy.neighbors, simulation.fixed_problem, neighbor)
    else:
        (client,) = differing_clients(simulation.problem, neighbor, privacy.neighbors)
    other = dataclasses.replace(simulation, problem=neighbor)
    size = simulation.problem.clients * simulation.problem.dim
    batches = -(-seeds // max(1, BATCH_NUMBERS // size))
    batch = -(-seeds // batches)
    keys = jax.random.split(as_key(key), (2, batches * batch))
    attacked = jnp.asarray(client, jnp.int32)
    run_both = functools.partial(
        _both_worlds, rounds=rounds, batch=batch, max_numbers=MAX_STORED_NOISE
    )
    order = np.arange(1 if privacy.scope == "server" else simulation.problem.clients)
    if len(order) > 1:
        order = np.concatenate([[client], np.delete(order, client)])
    shapes = jax.eval_shape(
        run_both, (simulation, other), keys, jnp.asarray(order, jnp.int32), attacked
    )
    if shapes[0][0].get("noise", shapes[0][0]["past_link"]).shape[-1] < len(order) > 1:
        # Too many clients to store the noise of all: store the most correlated ones'.
        strength = np.array(_noise_correlations(simulation, keys[0, :PILOT_RUNS], attacked, rounds))
        strength[client] = np.inf
        order = np.argsort(-strength, kind="stable")
    results = run_both((simulation, other), keys, jnp.asarray(order, jnp.int32), attacked)
    observed = [
        {name: np.asarray(value, np.float64)[:seeds] for name, value in world[0].items()}
        for world in results
    ]
    past_link = max(float(np.max(world.pop("past_link"))) for world in observed)
    half = seeds // 2
    rules = _all_scores(observed, half)
    rule, threshold, upwards = _choose_test(rules, half, delta, confidence)
    # The Gaussian fit needs means and variances only, which are estimated much better than tails,
    # so another score may be the best for it. The two scores of rare events are not normal.
    normal = [name for name in rules if name not in (NEARNESS, OUTSIDE_SUPPORT)]
    fitted = max(normal, key=lambda name: shaped_epsilon(rules[name][:, :half], delta, 0.5)[1])
    spent = {n: max(float(np.max(world[1][n])) for world in results) for n in results[0][1]}
    held_out = rules[rule][:, half:]
    hits, alarms = _decisions(held_out, threshold, upwards)
    runs = held_out.shape[1]
    shaped, mu = shaped_epsilon(rules[fitted][:, half:], delta, confidence)
    return TwoWorlds(
        ledger=with_noise_kind(spent, privacy),
        delta=delta,
        confidence=confidence,
        bound=float(counted_epsilon(hits, alarms, runs, delta, confidence)),
        most=float(counted_epsilon(runs, 0, runs, delta, confidence)),
        gradient_norm=max(float(np.max(world[2])) for world in results),
        gradient_bound=float(getattr(privacy, "gradient_bound", math.inf)),
        shaped=shaped,
        mu=mu,
        scores=held_out,
        threshold=threshold,
        rule=rule,
        past_link=past_link,
    )


def _choose_test(
    rules: dict[str, np.ndarray], half: int, delta: float, confidence: float
) -> tuple[str, float, bool]:
    """Choose a test on the first half of the runs: the score, its threshold, and whether the test
    decides for b above it (True) or for a below it.
    """
    best = (-1.0, "", 0.0, True)
    for rule, scores in rules.items():
        learnt = scores[:, :half]
        thresholds = np.unique(np.quantile(learnt, np.linspace(0, 1, 2001)))
        below = [np.searchsorted(np.sort(s), thresholds, side="left") for s in learnt]
        for upwards in (True, False):
            hits, alarms = (half - below[1], half - below[0]) if upwards else below
            epsilon = counted_epsilon(hits, alarms, half, delta, confidence)
            index = int(np.argmax(epsilon))
            if epsilon[index] > best[0]:
                best = float(epsilon[index]), rule, float(thresholds[index]), upwards
    return best[1:]


def _decisions(scores: np.ndarray, threshold: float, upwards: bool) -> tuple[int, int]:
    """The numbers of right and of wrong decisions of a test that may abstain."""
    chosen_in_a, chosen_in_b = (int(np.sum((s >= threshold) == upwards)) for s in scores)
    return (chosen_in_b, chosen_in_a) if upwards else (chosen_in_a, chosen_in_b)


def _all_scores(observed: list[dict[str, np.ndarray]], half: int) -> dict[str, np.ndarray]:
    """All scores by name, ``[2, S]`` each: large for world b. Their parameters are estimated from
    the first half of the runs.
    """
    # In world b the "other" world is a, so scores for the other world change their sign.
    sign = np.array([1.0, -1.0])[:, None, None]
    stacked = {name: np.stack([world[name] for world in observed]) for name in observed[0]}
    product = sign * stacked["product"]
    absolute = sign * stacked["absolute"]
    length = np.sqrt(stacked["gap"])
    learn = np.s_[:, :half]

    def mean(values: np.ndarray) -> np.ndarray:
        return values[learn].mean(axis=(0, 1))

    square = noise_floor(mean(stacked["square"]), mean(stacked["gap"]))
    size = noise_floor(mean(stacked["size"]), mean(length))
    projected = product / np.where(length > 0, length, 1)  # [2, S, T] along the change
    means = projected[learn].mean(axis=1)
    within = (projected[learn] - means[:, None]).reshape(-1, projected.shape[2])
    spread = within.T @ within / len(within)
    scale = np.sqrt(noise_floor(np.diag(spread), mean(length) ** 2))
    # In units of each round's deviation, regularized: rounds with the same noise make it singular.
    spread = spread / np.outer(scale, scale) + MIN_VARIANCE * np.eye(len(scale))
    weights = np.linalg.solve(spread, (means[1] - means[0]) / scale) / scale
    by_rule = {
        "Gaussian likelihood ratio": np.sum(product / square, axis=2),
        "Laplace likelihood ratio": np.sum(absolute / size, axis=2),
        "linear discriminant": projected @ weights,
        NEARNESS: sign[..., 0] * _nearness_score(stacked, square),
        OUTSIDE_SUPPORT: sign[..., 0] * _support_score(stacked, half),
    }
    if "noise" not in stacked:
        return by_rule
    noise = stacked["noise"]
    change = stacked["change"]  # [2, S, M, T, R] and [2, S, M, T]
    runs = noise.shape[:2]
    by_direction = noise.reshape(*noise.shape[:3], -1), change, stacked["weight"]
    conditional = {"Gaussian likelihood ratio, given all other messages": by_direction}
    if noise.shape[2] > 1:
        moved = change.reshape(*runs, 1, -1)
        by_number = noise.reshape(*runs, 1, -1), moved, moved
        conditional["Gaussian likelihood ratio, given all other numbers"] = by_number
    for rule, parts in conditional.items():
        scores = _conditional_score(*parts, half)
        if scores is not None:
            by_rule[rule] = sign[..., 0] * scores
    return by_rule


def _folds(half: int, runs: int) -> tuple[tuple[slice, slice], ...]:
    """Pairs of runs to estimate from, and runs to score: the second half by the first, and each
    quarter of the first half by the other quarter.
    """
    quarter = half // 2
    return (
        (slice(None, quarter), slice(quarter, half)),
        (slice(quarter, half), slice(None, quarter)),
        (slice(None, half), slice(half, runs)),
    )


def _nearness_score(stacked: dict[str, np.ndarray], square: np.ndarray) -> np.ndarray:
    """``[2, S]``, how much nearer the other world's message is than the run's own, in the round
    where this is clearest: where noise is missing, a message equals the clean one of its world.

    Args:
      stacked: of the runs.
      square: ``[T]``, the mean square of the noise.
    """
    floor = NO_NOISE * square
    nearer = np.log(stacked["square"] + floor) - np.log(stacked["other_square"] + floor)
    clearest = np.argmax(np.abs(nearer), axis=2)[..., None]
    return np.take_along_axis(nearer, clearest, axis=2)[..., 0]


def _support_score(stacked: dict[str, np.ndarray], half: int) -> np.ndarray:
    """``[2, S]``, by how much the noise in the run's own world exceeds the largest noise observed,
    minus the same in the other world: bounded noise cannot exceed it in the true world.

    The largest noise is taken from the first half of the runs; to score this half itself, each of
    its quarters uses the largest noise of the other quarter, so that scores stay comparable.
    """
    runs = stacked["square"].shape[1]
    scores = np.zeros((2, runs))
    for learn, judge in _folds(half, runs):
        most = stacked["own_largest"][:, learn].max(axis=(0, 1))
        most = np.where(most > 0, most, 1)
        own_excess, other_excess = (
            np.maximum(stacked[f"{which}_largest"][:, judge] / most - 1, 0)
            for which in ("own", "other")
        )
        scores[:, judge] = np.sum(own_excess - other_excess, axis=2)
    return scores


def _conditional_score(
    noise: np.ndarray, change: np.ndarray, weight: np.ndarray, half: int
) -> np.ndarray | None:
    r"""``[2, S]``, the log-likelihood ratio of the other world given all messages :math:`y`,

    .. math:: \langle\Sigma^{-1}(y-\tfrac12(a+b)),\,b-a\rangle

    with :math:`\Sigma` the covariance of the noise of all messages, all rounds and clients: each
    message is weighted by the remainder of its noise once all other noise is known.
    :math:`\Sigma` is estimated on the first half of the runs; to score this half itself, on one of
    its quarters for the other. ``None`` where the runs are too few for so large a covariance.

    Args:
      noise: ``[2, S, B, P]``, ``B`` draws of ``P`` numbers.
      change: ``[2, S, B, Q]``, towards the other world, of every ``P / Q``-th of these numbers.
      weight: ``[2, S, B, Q]``, the factors of these numbers in the score's sum.
      half: number of runs in the first half.
    """
    size = noise.shape[3]
    step = noise.shape[3] // change.shape[3]
    if 2 * (half // 2) * noise.shape[2] < MIN_VALUES_PER_ROW * size:
        return None
    centered = noise.copy()
    centered[..., ::step] -= change / 2
    present = (noise != 0).any(axis=2)  # [2, S, P]
    present[..., ::step] |= (change != 0).any(axis=2)
    scores = np.empty(noise.shape[:2])
    for learn, judge in _folds(half, noise.shape[1]):
        drawn = np.moveaxis(noise[:, learn], 2, 0).reshape(-1, size)
        learnt = present[:, learn].reshape(-1, size).astype(float)
        joint_counts = noise.shape[2] * np.maximum(learnt.T @ learnt, 1)  # both are present
        signal = np.zeros(size)
        signal[::step] = np.mean(change[:, learn] ** 2, axis=(0, 1, 2))
        scale = np.sqrt(noise_floor(np.sum(drawn**2, axis=0) / np.diag(joint_counts), signal))
        drawn = drawn / scale
        spread = drawn.T @ drawn / joint_counts
        units = centered[:, judge] / scale
        shares = weight[:, judge] / scale[::step]
        scores[:, judge] = _whitened_sum(spread, units, shares, present[:, judge], step)
    return scores


def _whitened_sum(
    spread: np.ndarray, units: np.ndarray, shares: np.ndarray, present: np.ndarray, step: int
) -> np.ndarray:
    """``[2, S]``, the sum of all numbers, whitened by their covariance and weighted by ``shares``.

    Clients may be silent in some rounds, in every run others: each pattern of ``present`` numbers
    has its own covariance, the matching part of ``spread``.
    """
    size = len(spread)
    rows = present.reshape(-1, size)
    # Packed to bytes: `np.unique` over rows of single bits takes far longer than all the rest.
    packed = np.packbits(rows, axis=1)
    packed_rows = packed.view(f"V{packed.shape[1]}")[:, 0]
    _, first, which = np.unique(packed_rows, return_index=True, return_inverse=True)
    patterns = rows[first]
    if len(patterns) * size**3 > MAX_PATTERN_OPERATIONS:
        # Too many: count silence as a noise of zero.
        patterns = np.ones((1, size), bool)
        which = np.zeros(present.shape[:2], int)
    which = which.reshape(present.shape[:2])
    scores = np.empty(present.shape[:2])
    for number, pattern in enumerate(patterns):
        covariance = np.where(np.outer(pattern, pattern), spread, 0)
        covariance[np.diag_indices(size)] = 1
        power, vectors = np.linalg.eigh(covariance)
        # Noise that the others determine entirely gets a tiny variance instead of zero.
        by = (vectors / np.maximum(power, MIN_VARIANCE)) @ vectors[::step].T * pattern[:, None]
        runs = which == number
        scores[runs] = np.sum((units[runs] @ by) * shares[runs], axis=(1, 2))
    return scores
