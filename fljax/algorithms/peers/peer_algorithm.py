"""Base classes of peers that take gradient steps and combine models, and their weights."""

from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import field, module, replace, static
from fljax.algorithms.algorithm import Algorithm
from fljax.algorithms.descending import Descending
from fljax.algorithms.local_steps import Direction, draw_batches, learn
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph, Mixing
from fljax.link import Compressor
from fljax.optimization.optimizers import Optimizer
from fljax.participation.selectors import Participants
from fljax.problems import NoRegularizer, Problem
from fljax.problems.batches import Batches, CyclicBatches, Shuffled, Uniform
from fljax.problems.solvers import smoothness, strong_convexity
from fljax.problems.streams import Stream

#: Weights by which peers combine messages: a rule on the graph, or a matrix.
Weights = Mixing | Combination

#: Rules with symmetric weights, whose columns sum to one as their rows do.
SYMMETRIC = ("metropolis", "max-degree", "laplacian")


def as_weights(name: str, rule: object) -> Weights:
    """Return weights as given: a rule, as an object or by its name, or a matrix.

    Raises:
      TypeError: anything else.
      ValueError: an unknown rule.
    """
    if isinstance(rule, str):
        return Mixing(rule)
    if not isinstance(rule, Mixing | Combination):
        raise TypeError(
            f"{name} must be a rule's name, an fljax.graphs.Mixing or a Combination, got "
            f"{checks.shown(rule)}; fljax.graphs.from_stochastic makes one of a matrix."
        )
    return rule


def check_sums(rule: Weights, algorithm: type[Algorithm]) -> None:
    """Raise ``ValueError`` for weights that do not preserve sums over the network.

    Args:
      rule: the weights.
      algorithm: the algorithm; if it does not support directed networks the weights must be
        symmetric, otherwise it is sufficient that columns sum to one.
    """
    if isinstance(rule, Mixing):
        preserves_sums = rule.rule in SYMMETRIC
        description = f"the rule {rule.rule!r}"
    elif not checks.is_concrete(rule.self_weight) or np.ndim(rule.self_weight) != 1:
        return
    else:
        preserves_sums = rule.doubly_stochastic if algorithm.needs.directed else rule.symmetric
        description = "a matrix that is not"
    if not preserves_sums:
        kind = "doubly stochastic" if algorithm.needs.directed else "symmetric"
        raise ValueError(
            f"{algorithm.label} needs {kind} weights, got {description}; with others it converges "
            f"to a different point. Rules that give such weights: {', '.join(SYMMETRIC)}."
        )


def check_weights(rule: Weights, network: Graph) -> None:
    """Raise ``ValueError`` if the weights do not fit the graph."""
    if isinstance(rule, Mixing):
        network.check_mixing(rule)
    elif rule.nodes != network.nodes:
        raise ValueError(
            f"the weights are for {rule.nodes} nodes, but the network has {network.nodes}."
        )


def weights_on(rule: Weights, network: Graph) -> Combination:
    """Return the weights of a rule on a graph, or the matrix itself."""
    return network.mixing(rule) if isinstance(rule, Mixing) else rule


def largest_curvature(
    problem: Problem | Stream, batches: Batches | None = None, *, proximal: bool = False
) -> Array | None:
    r"""Return the largest curvature of each client's objective, ``[K]``; ``None`` if unknown.

    With batches of :math:`b` of :math:`n` samples it is the expected smoothness of their gradients,
    :math:`\frac{n(b-1)}{b(n-1)}L+\frac{n-b}{b(n-1)}L_{\max}` (Gower et al. 2019, Proposition 3.8),
    between the objective's and the largest one of a sample. The latter is taken for batches of
    another distribution.

    Args:
      problem: the simulation's problem.
      batches: the distribution of the batches; all samples by default.
      proximal: whether the regularizer is excluded.
    """
    if not isinstance(problem, Problem) or not problem.linear or problem.loss.curvature is None:
        return None
    if proximal:
        problem = replace(problem, regularizer=NoRegularizer())
    if problem.regularizer.quadratic() is None:
        return None
    largest = smoothness(problem)
    if batches is None:
        return largest
    growth = problem.gradient_growth()
    if growth is None:
        return None
    regularizer = strong_convexity(problem)
    counts = problem.sample_counts().astype(problem.dtype)
    # A client's weights add up to its importance; a batch has this importance, too.
    of_sample = growth * jnp.max(problem.weights, axis=1) * counts
    known = type(batches) in (Shuffled, CyclicBatches, Uniform)
    size = jnp.asarray(batches.size if known else 1, problem.dtype)  # pyright: ignore[reportAttributeAccessIssue]
    size = jnp.clip(size, 1, jnp.maximum(counts, 1))
    others = jnp.maximum(counts - 1, 1)
    share = counts * (size - 1) / (size * others)
    expected = share * (largest - regularizer) + (1 - share) * of_sample
    return expected + regularizer


@module
class Combining(Descending):
    """Base class of peers that combine messages with given weights.

    Args:
      mixing: a rule's name, a :class:`~fljax.graphs.Mixing` or a
        :class:`~fljax.graphs.Combination`.
    """

    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return (self.mixing,)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        check_weights(self.mixing, network)


@module
class Exact(Combining):
    r"""Base class of peers that reach the minimizer of :math:`\sum_kf_k` with constant step sizes.

    They accumulate sums over neighbors' messages, whose total over the network is zero because one
    end of a link adds the term that the other subtracts. This holds if both ends receive each
    other's messages in the same rounds, as over links that fail in both directions together. An
    unavailable or delayed peer, a link that fails in one direction, or a median instead of the mean
    changes the point of convergence.

    Raises:
      ValueError: other weights.
    """

    def validate(self) -> None:
        check_sums(self.mixing, type(self))


@module
class Compressing(Exact):
    r"""Base class of peers that send compressed differences from copies of their vectors.

    Every neighbor updates its copy by the same message, so that copies are equal everywhere, and
    need not be stored one by one: a peer stores its vector's copy and a weighted sum of the copies
    of its neighbors' vectors. A lost message leaves a permanent error in the sums.

    Args:
      compression: :math:`Q`, an :class:`fljax.link.Compressor`.
      consensus_step_size: :math:`\gamma`, in (0, 1].

    Raises:
      TypeError: a compression of another type.
      ValueError: a step size outside its range, a compression that does not fit the models.
    """

    compression: Compressor = field(kw_only=True)
    consensus_step_size: Float[Array, ""] | float = field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("consensus_step_size", self.consensus_step_size, above=0, at_most=1)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        self.compression.check(problem.dim)


@module
class LocalSteps(Exact):
    """Base class of peers that take several steps on their own data before an exchange.

    Args:
      local_steps: local steps per round, >= 1.
    """

    local_steps: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("local_steps", self.local_steps)

    def _train_locally(
        self, now: Round, start: Float[Array, "clients dim"], drift: Float[Array, "clients dim"]
    ) -> Float[Array, "clients dim"]:
        """Return the models after the local steps, each along the gradient plus a correction."""
        return train_locally(
            now,
            self.batches,
            start,
            self.step_size(now.number),
            self.local_steps,
            lambda part, model, drift: part.gradient(model) + drift,
            drift,
        )


def train_locally(
    now: Round,
    batches: Batches | None,
    start: Float[Array, "clients dim"],
    step: Array | Optimizer,
    steps: int,
    direction: Direction,
    context: PyTree,
) -> Float[Array, "clients dim"]:
    """Return the models of all peers after their local steps, see :func:`local_steps.learn`."""
    everyone = Participants(None, now.available)
    batch = draw_batches(batches, now, everyone, steps)
    learned = learn(
        now.problem,
        everyone,
        start,
        step,
        steps,
        batch,
        direction=direction,
        context=context,
        training=now.networks.of(everyone),
    )
    now.networks.trained(everyone, None, learned.state)
    return learned.model
