r"""The search for worst-case neighbors, which tests a stated sensitivity.

The noise of a budget is proportional to a sensitivity: the largest distance by which a neighboring
data set can move a message, *given all earlier messages*. It rests on a proof. This module searches
for data that move a message by more: random and extreme ones (rows of zeros, huge and overflowing
ones, opposite labels, rows along the model), and from the best of them on by an evolution
strategy, over the data of one client in both worlds, those of all others, and the initial models.
Many candidates are tried at once, all in one compiled program, and messages are compared before
noise is added: a sensitivity that is too small by a hundredth is found at once, for which
:func:`~fljax.audit.two_worlds` would need thousands of runs. A search without result proves
nothing.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax import _check
from fljax._arguments import checked
from fljax._generator import as_key
from fljax._linalg import norm, rounded_off
from fljax._module import replace
from fljax._numerics import made_finite
from fljax.algorithms.base import start_models
from fljax.audit.guessing import _lacking, _overhear, _silent, _Spoken, told_apart
from fljax.engine import check_length, check_rounds, prepare
from fljax.privacy import CentralGaussian, Notion, correlation
from fljax.privacy.promises import ROUNDING
from fljax.problems import Problem
from fljax.simulation import Simulation

__all__ = ["WorstNeighbors", "worst_neighbors"]

#: Candidates that are tried at once; those survive that move a message furthest.
TRIED, KEPT = 64, 8

#: Above so many parameters the initial model is not searched for, except for its norm.
MANY = 512

#: Above so many features of a client all its samples are alike, where all of them differ.
MOST = 1 << 12

#: Ways in which the features of a world's samples are generated.
KINDS = ("any", "zero", "huge", "overflowing", "along the model", "corner", "others'", "opposite")


@dataclasses.dataclass(frozen=True)
class WorstNeighbors:
    """The result of :func:`worst_neighbors`.

    Attributes:
      simulation: with world a's data.
      neighbor: world b's data.
      gap: distance of the client's messages in the same history, in stated sensitivities.
      rounding: the possible effect of floating point on it, in the same unit.
      client: the client whose data differ.
      round: the round of the message with the largest distance.
      message: its index in the round, where a client takes several steps in it.
      rounds: of the runs.
      evaluations: number of pairs that were tried.
      seed: of the search; ``None`` for a key.
      within_bound: whether any pair had gradients within the bound that the budget assumes.
      nominal: whether nothing bounds gradients for any data, so that no guarantee is claimed.
    """

    simulation: Simulation = dataclasses.field(repr=False)
    neighbor: Problem = dataclasses.field(repr=False)
    gap: float
    rounding: float
    client: int
    round: int
    message: int
    rounds: int
    evaluations: int
    seed: int | None
    within_bound: bool
    nominal: bool

    @property
    def pair(self) -> tuple[Simulation, Problem]:
        """Both data sets, for ``fljax.audit.two_worlds(*found.pair, ...)``."""
        return self.simulation, self.neighbor

    @property
    def holds(self) -> bool:
        """Whether no pair was found with a distance above the stated sensitivity."""
        return self.gap <= 1 + ROUNDING + self.rounding

    @property
    def verdict(self) -> str:
        """The result in words."""
        if not self.within_bound:
            return (
                "not tried: all data met gradients above the bound that the budget assumes; clip "
                "them (problem.clipped), or give features and targets within it."
            )
        where = f"what client {self.client} says in round {self.round}"
        if self.message:
            where += f" (message {self.message + 1})"
        tried = f"of {self.evaluations} pairs of neighbors"
        if self.holds:
            return (
                f"held: {tried} none moves a message by more than its stated sensitivity; "
                f"{self.gap:.4g} of it was reached, by {where}."
            )
        times = told_apart(self.gap, 1.0, digits=4)[0]
        finding = f"{tried} one moves {where} by {times} times its stated sensitivity."
        if self.nominal:
            return (
                f"nominal: {finding} Nothing makes every data set keep the assumed gradient bound, "
                "here it is met at the models that were said and not at others; problem.clipped or "
                "a feature_bound make it hold."
            )
        return f"BROKEN: {finding}"


# Candidates --------------------------------------------------------------------------------------


class _World(NamedTuple):
    """What is searched over, and what is not."""

    client: int
    varies: Bool[Array, " samples"]  # which of its samples differ
    removed: bool  # world b lacks them
    labels: tuple[float, ...]  # () where targets are any numbers


class _Data(NamedTuple):
    """A candidate: of both worlds."""

    features: Array  # [2, K, N, P]
    targets: Array  # [2, K, N]
    initial: Array  # [K, D]


def _shapes(problem: Problem, samples: int) -> dict[str, tuple[int, ...]]:
    """A candidate's genes; all of them are normal at first."""
    width, dim = math.prod(problem.features.shape[2:]), problem.dim
    return {
        "direction": (2, samples, width),
        "length": (2,),
        "kind": (2, len(KINDS)),
        "target": (2, samples),
        "opposite": (1,),
        "rest": (4,),
        "others": (3,),
        "start": (dim if dim <= MANY else 0,),
        "far": (2,),
    }


def _genes(flat: Float[Array, " genes"], problem: Problem, samples: int) -> dict[str, Array]:
    """By name."""
    shapes, genes, place = _shapes(problem, samples), {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        genes[name] = flat[place : place + size].reshape(shape)
        place += size
    return genes


def _cornered(problem: Problem, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The genes of samples at one corner with opposite targets: which, and their values."""
    fixed, values = [], []
    for name, shape in _shapes(problem, samples).items():
        value = np.zeros(shape)
        if name == "kind":
            value[0, KINDS.index("corner")] = value[1, KINDS.index("others'")] = 9.0
        elif name == "target":
            value += 2.5
        elif name == "opposite":
            value += 1
        fixed.append(np.full(value.size, name in ("kind", "target", "opposite")))
        values.append(value.ravel())
    return np.concatenate(fixed), np.concatenate(values)


def _decoded(genes: dict[str, Array], problem: Problem, world: _World) -> _Data:
    dtype, largest = problem.dtype, float(jnp.finfo(problem.dtype).max)
    shape = problem.features.shape
    features = jnp.asarray(problem.features).reshape(*shape[:2], -1)  # images are rows here
    targets = jnp.asarray(problem.targets).astype(dtype)
    width, ten = features.shape[2], jnp.asarray(10.0, dtype)

    def power(gene: Array, most: float) -> Array:
        return ten ** jnp.clip(2 * gene, -most, most)

    start = start_models(problem)
    away = genes["start"]
    if away.size:
        away = away / jnp.maximum(jnp.linalg.norm(away), 1e-6) * power(genes["far"][0], 3.0)
        start = start + jnp.where(genes["far"][1] > 0, away, 0)[None]

    # The samples that differ.
    along = start[world.client, :width]
    along = jnp.zeros(width, dtype).at[: along.size].set(along)
    along = along / jnp.maximum(jnp.linalg.norm(along), 1e-6)
    drawn = genes["direction"]
    drawn = drawn / jnp.maximum(jnp.linalg.norm(drawn, axis=2, keepdims=True), 1e-6)

    def rows(place: int, before: Array) -> Array:
        any_, length = drawn[place], power(genes["length"][place], 6.0)
        corner = jnp.full_like(any_, width**-0.5)
        huge = 1e30 if largest > 1e60 else 1e18
        decoded = (
            length * any_,
            0 * any_,
            huge * any_,
            largest / 8 * any_,
            length * jnp.broadcast_to(along, any_.shape),
            length * corner,
            before,
            -before,
        )
        return jnp.stack(decoded)[jnp.argmax(genes["kind"][place])]

    one = rows(0, drawn[0])
    two = jnp.zeros_like(one) if world.removed else rows(1, one)
    if world.labels:
        labels, count = jnp.asarray(world.labels, dtype), len(world.labels)
        chosen = jax.scipy.stats.norm.cdf(genes["target"]) * count
        chosen = jnp.clip(jnp.floor(chosen).astype(jnp.int32), 0, count - 1)
        aims = labels[chosen]
        opposite = labels[count - 1 - chosen[0]]
    else:
        size = jnp.clip(jnp.abs(genes["target"]), 0, 4)
        aims = jnp.sign(genes["target"]) * (ten ** (2 * size) - 1)
        opposite = -aims[0]
    other = jnp.where(genes["opposite"][0] > 0, opposite, aims[1])
    aims = jnp.stack([aims[0], aims[0] if world.removed else other])

    # The client's samples that do not, and all others'.
    scale, aim = power(genes["others"][0], 4.0), power(genes["others"][1], 4.0)
    kept = genes["others"][2] < 0
    full = jnp.where(kept, features, features * scale)
    full_targets = targets if world.labels else jnp.where(kept, targets, targets * aim)
    mine = jnp.stack([features[world.client], features[world.client], full[world.client]])
    mine = jnp.concatenate([mine, jnp.broadcast_to(one[:1], mine[:1].shape)])
    mine_aims = jnp.stack([targets[world.client]] * 2 + [full_targets[world.client]])
    mine_aims = jnp.concatenate(
        [mine_aims, jnp.broadcast_to(aims[0, :1][None], mine_aims[:1].shape)]
    )
    rest = jnp.argmax(genes["rest"])
    real = jnp.asarray(problem.weights)[world.client] > 0
    own = jnp.where(real[:, None], mine[rest], features[world.client])
    own_aims = jnp.where(real, mine_aims[rest], targets[world.client])

    differ = world.varies
    of_worlds = [
        (jnp.where(differ[:, None], new, own), jnp.where(differ, aim, own_aims))
        for new, aim in ((one, aims[0]), (two, aims[1]))
    ]
    both = jnp.stack([full.at[world.client].set(rows) for rows, _ in of_worlds])
    both_targets = jnp.stack([full_targets.at[world.client].set(aim) for _, aim in of_worlds])
    both = jnp.where(jnp.isfinite(both), both, 0)
    if problem.feature_bound is not None:
        longest = jnp.asarray(problem.feature_bound, dtype) * (1 - 1e-6)
        most = jnp.max(jnp.abs(both), axis=3, keepdims=True)
        unit = both / jnp.where(most > 0, most, 1)
        norms = jnp.linalg.norm(unit, axis=3, keepdims=True)
        norms = jnp.where(norms > 0, norms, 1)
        both = jnp.where(most > longest / norms, unit * (longest / norms), both)
    both_targets = both_targets.astype(problem.targets.dtype)
    return _Data(both.reshape(2, *shape), both_targets, start)


def _labels(problem: Problem) -> tuple[float, ...]:
    """Those that the loss knows, or none if targets are any numbers."""
    loss = problem.loss
    if not np.issubdtype(np.asarray(problem.targets).dtype, np.floating):
        # A loss that is a plain function does not tell which labels there are.
        return tuple(np.unique(np.asarray(problem.targets)).astype(float).tolist())

    def takes(value: float) -> bool:
        try:
            loss.check_targets(np.full((1, 1), value))
        except ValueError:
            return False
        return True

    if takes(0.5):
        return ()
    return tuple(v for v in map(float, range(-1, max(loss.outputs, 2))) if takes(v))


# The search --------------------------------------------------------------------------------------


class _Judged(NamedTuple):
    """How good a candidate is."""

    worth: Array  # [S]  how far apart; below zero where gradients are beyond their bound
    gap: Array  # [S]  in sensitivities
    rounding: Array  # [S]  likewise
    round: Array  # [S]  0, 1, ...
    message: Array  # [S]  of those in the round


class _Living(NamedTuple):
    """The best so far."""

    genes: Array  # [S, genes]
    spread: Array  # [S]  of their mutations
    known: _Judged


def _apart(speaker: int, of_first: bool, spoken: list[_Spoken]) -> dict[str, Array]:
    """``[L]`` each, of a round's messages; ``of_first`` if world a states the sensitivity."""
    clean = [made_finite(each.clean[:, speaker]) for each in spoken]  # as they leave
    sensitivities = [each.sensitivity[:, speaker] for each in spoken]
    stated = sensitivities[0] if of_first else jnp.minimum(*sensitivities)
    gap, divisor = norm(clean[1] / 2 - clean[0] / 2) * 2, jnp.where(stated > 0, stated, 1)
    moved = jnp.maximum(*map(rounded_off, clean))
    return {
        "gap": jnp.where((stated > 0) | (gap == 0), gap / divisor, jnp.inf),
        "rounding": moved / divisor,
    }


@functools.partial(jax.jit, static_argnames=("world", "rounds"))
def _search(
    simulation: Simulation,
    weights: Float[Array, "2 clients samples"],
    varies: Bool[Array, " samples"],
    keys: Array,
    drawn: tuple[Array, Array],
    world: tuple[int, int, bool, tuple[float, ...], int],
    rounds: int,
) -> tuple[_Data, _Judged]:
    """The best pair that was found, and how good it is."""
    client, speaker, removed, labels, samples = world
    problem, given = simulation.problem, _World(client, varies, removed, labels)
    bound = jnp.asarray(getattr(simulation.privacy, "gradient_bound", jnp.inf), problem.dtype)

    def judged(flat: Array, key: Array) -> _Judged:
        data = _decoded(_genes(flat, problem, samples), problem, given)
        worlds = tuple(
            replace(
                simulation,
                problem=replace(
                    problem,
                    features=data.features[i],
                    targets=data.targets[i],
                    initial=data.initial,
                    weights=weights[i],
                    statistics=None,
                ),
            )
            for i in range(2)
        )
        ready = tuple(prepare(world, rounds) for world in worlds)
        # Weights are public: a sensitivity that depends on them is that of the world with them.
        keep = functools.partial(_apart, speaker, removed and not problem.linear)
        kept, _, norm = _overhear(worlds, ready, key, rounds, keep)
        steps = kept["gap"].shape[1]
        gap, rounding = (kept[name].reshape(-1) for name in ("gap", "rounding"))
        # What floating point may have moved is no evidence.
        surplus = jnp.where(gap > 0, gap - rounding, 0)
        at = jnp.argmax(surplus).astype(jnp.int32)
        norm = jnp.max(norm).astype(problem.dtype)
        within = norm <= bound * (1 + ROUNDING)
        worth = jnp.where(within, surplus[at], -jnp.minimum(norm / bound, 1e30))
        worth = jnp.where(jnp.isnan(worth), -jnp.inf, worth)
        return _Judged(worth, gap[at], rounding[at], at // steps, at % steps)

    sizes = [math.prod(shape) for shape in _shapes(problem, samples).values()]
    group = np.repeat(np.arange(len(sizes)), sizes)  # genes that change together
    fixed, corner = _cornered(problem, samples)
    half = np.arange(TRIED)[:, None] % 2 == 0

    def turn(carry: _Living, given: tuple[Array, ...]) -> tuple[_Living, None]:
        number, keys, drawn, uniform = given
        parent = (uniform[:, 0] * KEPT).astype(jnp.int32)
        wide = jnp.clip(carry.spread[parent] * jnp.exp(drawn[:, 0] / 2), 1e-4, 2.0)
        moved = carry.genes[parent] + wide[:, None] * drawn[:, 1 : len(group) + 1]
        fresh = drawn[:, len(group) + 1 :]
        luck = uniform[:, 2:][:, group]
        genes = jnp.where(luck < 1 / 2, moved, carry.genes[parent])
        genes = jnp.where(luck > 15 / 16, fresh, genes)
        newcomer = (uniform[:, 1] < 1 / 8) | (number == 0)
        genes = jnp.where(newcomer[:, None], fresh, genes)
        cornered = half & fixed[None] & (number == 0)
        genes = jnp.where(cornered, jnp.asarray(corner, problem.dtype)[None], genes)
        known = jax.vmap(judged)(genes, keys)
        new = _Living(genes, jnp.where(newcomer, 0.5, wide), known)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), carry, new)
        _, best = jax.lax.top_k(both.known.worth, KEPT)
        return jax.tree.map(lambda a: a[best], both), None

    none = jnp.zeros(KEPT, problem.dtype)
    place = jnp.zeros(KEPT, jnp.int32)
    start = _Living(
        jnp.zeros((KEPT, len(group)), problem.dtype),
        none,
        _Judged(none - jnp.inf, none, none, place, place),
    )
    numbers = jnp.arange(len(keys), dtype=jnp.int32)
    living, _ = jax.lax.scan(turn, start, (numbers, keys, *drawn))
    best = jax.tree.map(lambda a: a[0], living)
    return _decoded(_genes(best.genes, problem, samples), problem, given), best.known


@checked
def worst_neighbors(
    simulation: Simulation,
    rounds: int = 2,
    client: int = 0,
    *,
    evaluations: int = 2000,
    key: Array | int = 0,
) -> WorstNeighbors:
    r"""Search for neighboring data that move a private message by more than its sensitivity.

    The best of random and extreme candidates are mutated repeatedly: the client's data in two
    worlds, as the budget's ``neighbors`` allows, all other data, and the initial models. Both
    worlds are run in the same history, that of the first, and their messages before noise
    :math:`a_t` and :math:`b_t` are compared with the sensitivity that the algorithm, or the budget,
    states:

    .. math:: \max_t\|b_t-a_t\|_2/\Delta_t.

    Under a budget for messages these are a client's own, before they are rounded to a grid; for
    a trusted server (:class:`~fljax.privacy.CentralGaussian`) they are its sum; under
    :class:`~fljax.privacy.NoisyGradients` the gradient of each step. Where nothing bounds gradients
    for any data (the problem is neither clipped nor bounded in its features) only data with
    gradients within the budget's bound are considered, and the result is ``nominal``, like the
    claim.

    Args:
      simulation: the tested simulation; the search starts from its data.
      rounds: of every run, >= 1.
      client: the client whose data differ, in one or all of its samples; if in one, in that of the
        largest weight.
      evaluations: approximate number of pairs that are tried, >= 1.
      key: of the search; an integer seeds the default generator.

    Returns:
      The worst pair and its gap; ``two_worlds(*found.pair, rounds, delta=...)`` audits it.

    Raises:
      TypeError: no simulation, or a stream of data.
      ValueError: no privacy; a client that does not exist; no evaluations; under a trusted server's
        ``"add-or-remove"`` a regularizer, which also moves the model of a client without data; a
        strategy of which one message may hold several participations.

    Guarantees:
      None where nothing is found. A gap above one is not due to chance: the stated sensitivity is
      too small for the pair in the result.

    Example:
      >>> import dataclasses, jax, fljax as fl
      >>> class Halved(fl.algorithms.ConventionalFL):
      ...     def sensitivity(self, problem, network, round, gap):
      ...         return super().sensitivity(problem, network, round, gap) / 2
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2).clipped(1),
      ...     algorithm=fl.algorithms.ConventionalFL(0.1),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5, gradient_bound=1.0),
      ... )
      >>> pair = fl.audit.worst_neighbors(simulation)
      >>> pair.holds, round(pair.gap, 3)
      (True, 1.0)
      >>> faulty = dataclasses.replace(simulation, algorithm=fl.module(Halved)(0.1))
      >>> pair = fl.audit.worst_neighbors(faulty)
      >>> pair.holds, round(pair.gap, 3)
      (False, 2.0)
    """
    privacy = simulation.privacy
    if privacy is None:
        raise ValueError(
            "there is no sensitivity to test: the simulation runs without privacy; give it "
            "privacy=, such as fljax.privacy.ZCDP(total_rho=1.0)."
        )
    _check.kind("the simulation's problem", simulation.problem, Problem)
    check_rounds(rounds, 1)
    _check.count("evaluations", evaluations, hint="It is how many pairs of data sets are tried.")
    clients = simulation.problem.clients
    _check.count("client", client, at_least=0, at_most=clients - 1, hint="Whose data differ.")
    jax.eval_shape(lambda: check_length(simulation, rounds))
    central = isinstance(privacy, CentralGaussian)
    problem = simulation.problem
    if (strategy := getattr(privacy, "strategy", None)) is not None:
        algorithm = simulation.algorithm
        law = algorithm.selection.law(clients) if central else algorithm.sampling(problem)
        assert law is not None  # or the simulation has no plan
        if correlation.overlaps(strategy, law):
            raise ValueError(
                f"under {type(strategy).__name__} one message may hold several participations, and "
                "what is bounded is how far all messages of a run are moved together; test it by "
                "fljax.audit.two_worlds."
            )
    removed = privacy.neighbors == "add-or-remove"
    if removed or problem.feature_bound is not None:
        problem = problem.mapped()
    problem = jax.tree.map(np.asarray, problem)
    if not np.issubdtype(problem.features.dtype, np.floating) or problem.targets.ndim > 2:
        raise TypeError(
            "the search tries features that are floats and one target of each sample, got features "
            f"of {problem.features.dtype} and targets of shape {problem.targets.shape}; test the "
            "network on data of this kind."
        )
    everything = np.asarray(problem.weights) > 0
    everything &= (np.arange(clients) == client)[:, None]
    if central and removed:
        _silent(client, privacy, problem, _lacking(problem, everything, client=True))
    weights = np.asarray(problem.weights)[client]
    varies = weights > 0
    if not (central or privacy.neighbors == "client"):
        varies = np.arange(len(weights)) == np.argmax(weights)
    gone = _lacking(problem, everything & varies, client=central) if removed else problem
    of_worlds = np.stack([np.asarray(p.weights) for p in (problem, gone)])
    # Of very many numbers all samples have the same.
    few = varies.sum() > 1 and problem.features[client].size <= MOST
    samples = len(weights) if few else 1
    searched = replace(simulation, problem=problem, metrics=())
    turns = math.ceil(evaluations / TRIED)
    world = (client, 0 if central else client, removed, _labels(problem), samples)
    # What is tried is drawn here: it compiles in half the time.
    seed, key = key if isinstance(key, int) else None, as_key(key)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    sizes = [math.prod(shape) for shape in _shapes(problem, samples).values()]
    shapes = (turns, TRIED, 2 * sum(sizes) + 1), (turns, TRIED, len(sizes) + 2)
    drawn = tuple(
        jnp.asarray(draw(size=shape), problem.dtype)
        for draw, shape in zip((rng.normal, rng.uniform), shapes, strict=True)
    )
    keys = jax.random.split(key, (turns, TRIED))
    data, known = _search(
        searched,
        jnp.asarray(of_worlds),
        jnp.asarray(varies),
        keys,
        drawn,
        world=world,
        rounds=rounds,
    )
    features, targets = np.asarray(data.features), np.asarray(data.targets)
    initial = np.asarray(data.initial)
    one, two = (
        # Checked again, the weights of a network's world b would have to sum to one.
        replace(
            problem,
            features=features[i],
            targets=targets[i],
            initial=initial,
            weights=of_worlds[i],
            statistics=None,
        )
        for i in range(2)
    )
    within_bound, nominal = bool(known.worth >= 0), False
    if isinstance(privacy, Notion):
        promised = float(problem.promised_bound())
        nominal = promised > float(privacy.gradient_bound) * (1 + ROUNDING)
    return WorstNeighbors(
        simulation=dataclasses.replace(simulation, problem=one),
        neighbor=two,
        gap=float(known.gap) if within_bound else 0.0,
        rounding=float(known.rounding),
        client=client,
        round=int(known.round) + 1,
        message=int(known.message),
        rounds=rounds,
        evaluations=TRIED * turns,
        seed=seed,
        within_bound=within_bound,
        nominal=nominal,
    )
