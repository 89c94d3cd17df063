r"""The search for worst-case neighbors, which tests a stated sensitivity.

The noise of a budget is proportional to a sensitivity: the largest distance by which a neighboring
data set can move a message, *given all earlier messages*. It rests on a proof. This module searches
for data that move a message by more: random and extreme ones (rows of zeros, huge and overflowing
ones, opposite labels, rows along the model), and from the best of them on by an evolution strategy,
over the data of one client in both worlds, the data of all others, and the initial models. Many
candidates are tried in parallel, all in one compiled program, and messages are compared before
noise is added: a sensitivity that is too small by a hundredth is found immediately, where
:func:`~fljax.audit.two_worlds` would need thousands of runs. A search without result proves
nothing.
"""

import dataclasses
import functools
import math
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.linalg import norm, rounding_distance
from fljax._core.module import replace
from fljax._core.numerics import clip_to_finite
from fljax._core.prng import as_key
from fljax.algorithms.algorithm import start_models
from fljax.audit.audit_report import check_one_sum, distinct_texts
from fljax.audit.neighbors import check_removed_client, without_samples
from fljax.audit.tap import Releases, record_rounds
from fljax.privacy import Notion, correlation
from fljax.privacy.promises import ROUNDING
from fljax.problems import Problem
from fljax.simulation.scan import check_length, check_rounds, prepare
from fljax.simulation.scenario import Simulation

#: Candidates of a generation, and the number of the best ones that survive it.
OFFSPRING = 64
SURVIVORS = 8

#: Above this number of parameters the initial model is not part of the search.
MAX_SEARCHED_DIM = 512

#: Above this number of features of a client, all its differing samples are equal, so that a
#: candidate stays small.
MAX_SEARCHED_FEATURES = 1 << 12

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
        times = distinct_texts(self.gap, 1.0, digits=4)[0]
        finding = f"{tried} one moves {where} by {times} times its stated sensitivity."
        if self.nominal:
            return (
                f"nominal: {finding} Nothing makes every data set keep the assumed gradient bound, "
                "here it is met at the models of the run and not at others; problem.clipped or "
                "a feature_bound make it hold."
            )
        return f"BROKEN: {finding}"


# Candidates --------------------------------------------------------------------------------------


class _World(NamedTuple):
    """The fixed part of a search: whose data differ, and in which way."""

    client: int
    varies: Bool[Array, " samples"]  # which of its samples differ
    removed: bool  # world b lacks them
    labels: tuple[float, ...]  # () where targets are any numbers


class _Data(NamedTuple):
    """A candidate: the data of both worlds, and the initial models."""

    features: Array  # [2, K, N, P]
    targets: Array  # [2, K, N]
    initial: Array  # [K, D]


def _gene_shapes(problem: Problem, samples: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a candidate's genes, which are drawn from a standard normal distribution.

    Direction, length and kind of the differing samples' features, their targets (and whether the
    second world's are the opposite); the choice of the client's other samples (``rest``) and of the
    other clients' data; direction (``start``) and length (``far``) of a step of the initial models.
    """
    width = math.prod(problem.features.shape[2:])
    dim = problem.dim
    return {
        "direction": (2, samples, width),
        "length": (2,),
        "kind": (2, len(KINDS)),
        "target": (2, samples),
        "opposite": (1,),
        "rest": (4,),
        "others": (3,),
        "start": (dim if dim <= MAX_SEARCHED_DIM else 0,),
        "far": (2,),
    }


def _named_genes(flat: Float[Array, " genes"], problem: Problem, samples: int) -> dict[str, Array]:
    """Split a flat vector of genes by name."""
    shapes = _gene_shapes(problem, samples)
    genes = {}
    offset = 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        genes[name] = flat[offset : offset + size].reshape(shape)
        offset += size
    return genes


def _corner_genes(problem: Problem, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Genes of samples at one corner with opposite targets: a mask of the genes to set, and their
    values. This pair is the worst for many losses, so half of the first generation starts from it.
    """
    fixed = []
    values = []
    for name, shape in _gene_shapes(problem, samples).items():
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


def _candidate(genes: dict[str, Array], problem: Problem, world: _World) -> _Data:
    """Decode genes: from unbounded normal numbers to valid data of both worlds and models."""
    start = _initial_models(genes, problem)
    features = jnp.asarray(problem.features)
    shape = features.shape
    features = features.reshape(*shape[:2], -1)  # an image is one row
    targets = jnp.asarray(problem.targets).astype(problem.dtype)
    rows = _differing_rows(genes, problem, world, start[world.client])
    aims = _differing_targets(genes, problem, world)

    # All other clients: as they are, or with features and targets of another size.
    unchanged = genes["others"][2] < 0
    scaled = features * _power_of_ten(genes["others"][0], 4.0)
    scaled_targets = targets * _power_of_ten(genes["others"][1], 4.0)
    full = jnp.where(unchanged, features, scaled)
    full_targets = targets if world.labels else jnp.where(unchanged, targets, scaled_targets)

    # The client's samples that agree in both worlds: one of four choices, by the largest gene.
    local = features[world.client]
    local_targets = targets[world.client]
    choices = jnp.stack([local, local, full[world.client]])
    choices = jnp.concatenate([choices, jnp.broadcast_to(rows[0][:1], choices[:1].shape)])
    target_choices = jnp.stack([local_targets, local_targets, full_targets[world.client]])
    same_target = jnp.broadcast_to(aims[0, :1][None], target_choices[:1].shape)
    target_choices = jnp.concatenate([target_choices, same_target])
    choice = jnp.argmax(genes["rest"])
    real = jnp.asarray(problem.weights)[world.client] > 0
    rest = jnp.where(real[:, None], choices[choice], local)
    rest_targets = jnp.where(real, target_choices[choice], local_targets)

    of_worlds = [
        (jnp.where(world.varies[:, None], row, rest), jnp.where(world.varies, aim, rest_targets))
        for row, aim in zip(rows, aims, strict=True)
    ]
    world_features = jnp.stack([full.at[world.client].set(rows) for rows, _ in of_worlds])
    world_targets = jnp.stack([full_targets.at[world.client].set(aim) for _, aim in of_worlds])
    world_features = jnp.where(jnp.isfinite(world_features), world_features, 0)
    if problem.feature_bound is not None:
        world_features = _within_bound(world_features, problem.feature_bound)
    world_targets = world_targets.astype(problem.targets.dtype)
    return _Data(world_features.reshape(2, *shape), world_targets, start)


def _power_of_ten(gene: Array, most: float) -> Array:
    """``10 ** (2 gene)``, with the exponent clipped to ``[-most, most]``."""
    return jnp.asarray(10.0, gene.dtype) ** jnp.clip(2 * gene, -most, most)


def _initial_models(genes: dict[str, Array], problem: Problem) -> Float[Array, "clients dim"]:
    """The problem's initial models, or these plus a random direction of random length."""
    start = start_models(problem)
    step = genes["start"]
    if step.size:
        length = _power_of_ten(genes["far"][0], 3.0)
        step = step / jnp.maximum(jnp.linalg.norm(step), 1e-6) * length
        start = start + jnp.where(genes["far"][1] > 0, step, 0)[None]
    return start


def _differing_rows(
    genes: dict[str, Array], problem: Problem, world: _World, model: Array
) -> tuple[Array, Array]:
    """Features of the samples that differ, in either world: each of one of the :data:`KINDS`."""
    dtype = problem.dtype
    largest = float(jnp.finfo(dtype).max)
    drawn = genes["direction"]
    width = drawn.shape[2]
    along_model = model[:width]
    along_model = jnp.zeros(width, dtype).at[: along_model.size].set(along_model)
    along_model = along_model / jnp.maximum(jnp.linalg.norm(along_model), 1e-6)
    drawn = drawn / jnp.maximum(jnp.linalg.norm(drawn, axis=2, keepdims=True), 1e-6)

    def rows(index: int, first: Array) -> Array:
        direction = drawn[index]
        length = _power_of_ten(genes["length"][index], 6.0)
        corner = jnp.full_like(direction, width**-0.5)
        huge = 1e30 if largest > 1e60 else 1e18
        kinds = (
            length * direction,
            0 * direction,
            huge * direction,
            largest / 8 * direction,
            length * jnp.broadcast_to(along_model, direction.shape),
            length * corner,
            first,
            -first,
        )
        return jnp.stack(kinds)[jnp.argmax(genes["kind"][index])]

    first = rows(0, drawn[0])
    return first, jnp.zeros_like(first) if world.removed else rows(1, first)


def _differing_targets(
    genes: dict[str, Array], problem: Problem, world: _World
) -> Float[Array, "2 differing"]:
    """Targets of the samples that differ; the second world's may be the opposite of the first's."""
    if world.labels:
        labels = jnp.asarray(world.labels, problem.dtype)
        count = len(world.labels)
        chosen = jax.scipy.stats.norm.cdf(genes["target"]) * count
        chosen = jnp.clip(jnp.floor(chosen).astype(jnp.int32), 0, count - 1)
        aims = labels[chosen]
        opposite = labels[count - 1 - chosen[0]]
    else:
        size = jnp.clip(jnp.abs(genes["target"]), 0, 4)
        aims = jnp.sign(genes["target"]) * (jnp.asarray(10.0, problem.dtype) ** (2 * size) - 1)
        opposite = -aims[0]
    other = jnp.where(genes["opposite"][0] > 0, opposite, aims[1])
    return jnp.stack([aims[0], aims[0] if world.removed else other])


def _within_bound(features: Array, bound: Float[Array, ""] | float) -> Array:
    """Shorten rows to slightly below a bound on their norm.

    Rows may be so large that their squares overflow, so their norms are computed after a division
    by their largest entry.
    """
    longest = jnp.asarray(bound, features.dtype) * (1 - 1e-6)
    most = jnp.max(jnp.abs(features), axis=3, keepdims=True)
    unit = features / jnp.where(most > 0, most, 1)
    norms = jnp.linalg.norm(unit, axis=3, keepdims=True)
    norms = jnp.where(norms > 0, norms, 1)
    return jnp.where(most > longest / norms, unit * (longest / norms), features)


def _label_values(problem: Problem) -> tuple[float, ...]:
    """The valid labels of the loss, or none if targets are any numbers."""
    loss = problem.loss
    if not np.issubdtype(np.asarray(problem.targets).dtype, np.floating):
        # A loss that is a plain function does not declare its labels: take the data's.
        return tuple(np.unique(np.asarray(problem.targets)).astype(float).tolist())

    def accepts(value: float) -> bool:
        try:
            loss.check_targets(np.full((1, 1), value))
        except ValueError:
            return False
        return True

    if accepts(0.5):
        return ()
    return tuple(v for v in map(float, range(-1, max(loss.outputs, 2))) if accepts(v))


# The search --------------------------------------------------------------------------------------


class _Score(NamedTuple):
    """How good a candidate is."""

    worth: Array  # [S]  gap minus rounding; negative where gradients exceed their bound
    gap: Array  # [S]  distance of the messages in sensitivities
    rounding: Array  # [S]  possible effect of floating point on it
    round: Array  # [S]  0, 1, ...
    message: Array  # [S]  index within the round


class _Population(NamedTuple):
    """The best candidates so far."""

    genes: Array  # [S, genes]
    spread: Array  # [S]  standard deviation of their mutations
    score: _Score


def _message_distances(speaker: int, of_first: bool, releases: list[Releases]) -> dict[str, Array]:
    """Distances between a round's messages in both worlds, and their rounding errors, ``[L]``
    each, in sensitivities: that of world a with ``of_first``, or the smaller one of both.
    """
    # Links send finite numbers only.
    clean = [clip_to_finite(release.clean[:, speaker]) for release in releases]
    sensitivities = [release.sensitivity[:, speaker] for release in releases]
    stated = sensitivities[0] if of_first else jnp.minimum(*sensitivities)
    gap = norm(clean[1] / 2 - clean[0] / 2) * 2
    divisor = jnp.where(stated > 0, stated, 1)
    moved = jnp.maximum(*map(rounding_distance, clean))
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
) -> tuple[_Data, _Score]:
    """The best pair that was found, and its score: an evolution strategy in one compiled scan.

    Each generation mutates random survivors, with a spread that is inherited and mutated, too, or
    draws new candidates; the best of survivors and offspring survive.
    """
    client, speaker, removed, labels, samples = world
    problem = simulation.fixed_problem
    fixed_part = _World(client, varies, removed, labels)
    bound = jnp.asarray(getattr(simulation.privacy, "gradient_bound", jnp.inf), problem.dtype)

    def evaluated(flat: Array, key: Array) -> _Score:
        data = _candidate(_named_genes(flat, problem, samples), problem, fixed_part)
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
        # Weights are public. World a's include the sample that is removed in world b.
        compare = functools.partial(_message_distances, speaker, removed and not problem.linear)
        distances, _, norm = record_rounds(worlds, ready, key, rounds, compare)
        steps = distances["gap"].shape[1]
        gap, rounding = (distances[name].reshape(-1) for name in ("gap", "rounding"))
        # A distance within rounding errors proves nothing.
        surplus = jnp.where(gap > 0, gap - rounding, 0)
        index = jnp.argmax(surplus).astype(jnp.int32)
        norm = jnp.max(norm).astype(problem.dtype)
        within = norm <= bound * (1 + ROUNDING)
        worth = jnp.where(within, surplus[index], -jnp.minimum(norm / bound, 1e30))
        worth = jnp.where(jnp.isnan(worth), -jnp.inf, worth)
        return _Score(worth, gap[index], rounding[index], index // steps, index % steps)

    sizes = [math.prod(shape) for shape in _gene_shapes(problem, samples).values()]
    group = np.repeat(np.arange(len(sizes)), sizes)  # genes that change together
    fixed, corner = _corner_genes(problem, samples)
    half = np.arange(OFFSPRING)[:, None] % 2 == 0

    def generation(carry: _Population, inputs: tuple[Array, ...]) -> tuple[_Population, None]:
        number, keys, drawn, uniform = inputs
        parent = (uniform[:, 0] * SURVIVORS).astype(jnp.int32)
        wide = jnp.clip(carry.spread[parent] * jnp.exp(drawn[:, 0] / 2), 1e-4, 2.0)
        moved = carry.genes[parent] + wide[:, None] * drawn[:, 1 : len(group) + 1]
        fresh_genes = drawn[:, len(group) + 1 :]
        luck = uniform[:, 2:][:, group]
        genes = jnp.where(luck < 1 / 2, moved, carry.genes[parent])
        genes = jnp.where(luck > 15 / 16, fresh_genes, genes)
        newcomer = (uniform[:, 1] < 1 / 8) | (number == 0)
        genes = jnp.where(newcomer[:, None], fresh_genes, genes)
        cornered = half & fixed[None] & (number == 0)
        genes = jnp.where(cornered, jnp.asarray(corner, problem.dtype)[None], genes)
        score = jax.vmap(evaluated)(genes, keys)
        new = _Population(genes, jnp.where(newcomer, 0.5, wide), score)
        pool = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), carry, new)
        _, best = jax.lax.top_k(pool.score.worth, SURVIVORS)
        return jax.tree.map(lambda a: a[best], pool), None

    zeros = jnp.zeros(SURVIVORS, problem.dtype)
    index = jnp.zeros(SURVIVORS, jnp.int32)
    start = _Population(
        jnp.zeros((SURVIVORS, len(group)), problem.dtype),
        zeros,
        _Score(zeros - jnp.inf, zeros, zeros, index, index),
    )
    numbers = jnp.arange(len(keys), dtype=jnp.int32)
    population, _ = jax.lax.scan(generation, start, (numbers, keys, *drawn))
    best = jax.tree.map(lambda a: a[0], population)
    return _candidate(_named_genes(best.genes, problem, samples), problem, fixed_part), best.score


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
        strategy under which one message may hold several participations.

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
    check_one_sum(simulation)
    checks.kind("the simulation's problem", simulation.problem, Problem)
    check_rounds(rounds, 1)
    checks.count("evaluations", evaluations, hint="It is how many pairs of data sets are tried.")
    clients = simulation.problem.clients
    checks.count("client", client, at_least=0, at_most=clients - 1, hint="Whose data differ.")
    jax.eval_shape(lambda: check_length(simulation, rounds))
    central = privacy.scope == "server"
    problem = simulation.fixed_problem
    if (strategy := getattr(privacy, "strategy", None)) is not None:
        algorithm = simulation.algorithm
        sampling = algorithm.selection.law(clients) if central else algorithm.sampling(problem)
        assert sampling is not None  # or the simulation has no plan
        if correlation.overlaps(strategy, sampling):
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
        empty = without_samples(problem, everything, client=True)
        check_removed_client(client, privacy.neighbors, problem, empty)
    weights = np.asarray(problem.weights)[client]
    varies = weights > 0
    if not (central or privacy.neighbors == "client"):
        varies = np.arange(len(weights)) == np.argmax(weights)
    gone = without_samples(problem, everything & varies, client=central) if removed else problem
    of_worlds = np.stack([np.asarray(p.weights) for p in (problem, gone)])
    few = varies.sum() > 1 and problem.features[client].size <= MAX_SEARCHED_FEATURES
    samples = len(weights) if few else 1
    searched = replace(simulation, problem=problem, metrics=())
    generations = math.ceil(evaluations / OFFSPRING)
    world = (client, 0 if central else client, removed, _label_values(problem), samples)
    # Random numbers are drawn on the host: without them, the program compiles in half the time.
    seed = key if isinstance(key, int) else None
    key = as_key(key)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    sizes = [math.prod(shape) for shape in _gene_shapes(problem, samples).values()]
    shapes = (generations, OFFSPRING, 2 * sum(sizes) + 1), (generations, OFFSPRING, len(sizes) + 2)
    drawn = tuple(
        jnp.asarray(draw(size=shape), problem.dtype)
        for draw, shape in zip((rng.normal, rng.uniform), shapes, strict=True)
    )
    keys = jax.random.split(key, (generations, OFFSPRING))
    data, score = _search(
        searched,
        jnp.asarray(of_worlds),
        jnp.asarray(varies),
        keys,
        drawn,
        world=world,
        rounds=rounds,
    )
    features = np.asarray(data.features)
    targets = np.asarray(data.targets)
    initial = np.asarray(data.initial)
    first, second = (
        # `replace` does not validate: the weights of a network's world b need not sum to one.
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
    within_bound = bool(score.worth >= 0)
    nominal = False
    if privacy.scope == "message":
        promised = float(problem.promised_bound())
        bound = float(cast(Notion, privacy).gradient_bound)
        nominal = promised > bound * (1 + ROUNDING)
    return WorstNeighbors(
        simulation=dataclasses.replace(simulation, problem=first),
        neighbor=second,
        gap=float(score.gap) if within_bound else 0.0,
        rounding=float(score.rounding),
        client=client,
        round=int(score.round) + 1,
        message=int(score.message),
        rounds=rounds,
        evaluations=OFFSPRING * generations,
        seed=seed,
        within_bound=within_bound,
        nominal=nominal,
    )
