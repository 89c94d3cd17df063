r"""Steady state and learning curves of federated averaging and diffusion, computed without a run
(Rizk 2023).

For a squared loss with a squared regularizer a round is an affine map of the models with random
coefficients, which depend on the clients and samples drawn and on the added noise. The mean and the
covariance of the models follow a linear recursion over rounds:

* :func:`steady_state` and :func:`learning_curve` are its fixed point and its trajectory for a
  simulation, *exactly*: for any step size, several local steps, heterogeneous clients, any
  combination weights and noise between peers. The source has bounds instead (Theorems 2.1, 2.2,
  3.1-3.3, 4.1, 4.2), loose by orders of magnitude;
* the other functions are its leading order in the step size :math:`\mu`, in closed form, which
  explains the result: with the Hessian :math:`H` of the objective, a noise :math:`s` of covariance
  :math:`R_s` in the gradient leaves :math:`\tfrac\mu2\mathrm{tr}(H^{-1}R_s)`, one of variance
  :math:`\sigma^2` in the model :math:`\sigma^2T(\mu)\approx\sigma^2\mathrm{tr}(H^{-1})/(2\mu)`.

Functions of a problem or a simulation are traceable: they can be used in a scenario and mapped over
seeds by :func:`jax.vmap`; :func:`stable_step` and :func:`crossover` search on the host. Distances
are squared and Euclidean. Shapes: ``K`` clients, ``N`` samples, ``P`` nodes (peers or servers, one
for federated averaging), ``D`` parameters, ``T`` rounds.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import module, replace, static
from fljax.algorithms import (
    ATC,
    CTA,
    Consensus,
    Diffusion,
    FedAvg,
    GraphFedAvg,
    ISFedAvg,
    SampledDiffusion,
)
from fljax.algorithms.algorithm import Algorithm, server_start, start_models
from fljax.graphs import Combination, Graph
from fljax.graphs.federation import Federation, Network
from fljax.link import GraphHomomorphic, Noise, PerEdge, PerMessage, UploadNoise
from fljax.link.losses import Independent
from fljax.link.uploads import UPLOADS
from fljax.optimization.schedules import Constant
from fljax.participation.patterns import Always, Bernoulli
from fljax.participation.selectors import Drawn, Everyone, Fraction, PerServer
from fljax.problems import Problem, optimum
from fljax.problems.batches import Uniform, Weighted, check_per_client, per_client
from fljax.problems.solvers import is_quadratic, strong_convexity
from fljax.simulation.scenario import Simulation
from fljax.theory.asynchronous import (
    Exchange,
    Present,
    absence_exchange,
    drawn_exchange,
    present_moments,
)
from fljax.theory.unique_solutions import is_singular, solved

__all__ = [
    "BestStep",
    "Curves",
    "DrawMoments",
    "SteadyState",
    "best_step",
    "centroid_floor",
    "crossover",
    "disagreement_floor",
    "drift",
    "gradient_noise",
    "hessian",
    "importance",
    "learning_curve",
    "local_minimizers",
    "minimizer",
    "neighbor_importance",
    "noise_covariance",
    "noise_gain",
    "sampling",
    "stable_step",
    "stationary",
    "steady_state",
    "upload_floor",
]

#: What the clients' noise is added to: the models that they send, or the mean gradients of their
#: updates.
Perturbed = Literal["models", "updates"]

#: Modes of convergence.
Sense = Literal["mean", "mean square"]
#: Senses of stability.
SENSES = ("mean", "mean square")

PEERS = (Consensus, CTA, ATC, Diffusion, SampledDiffusion)

#: Parameters of the iteration for a steady state.
MOST_SWEEPS = 2000

#: Number of iterations for a spectral radius.
POWERS = 500

_dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
_sum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


# --------------------------------------------------------------------------- the objective


def affine_gradient(problem: Problem) -> tuple[Array, Array]:
    r"""``[K, D, D]`` and ``[K, D]``: :math:`f_k'(w)=H_kw-b_k`."""
    if not is_quadratic(problem) or problem.clip is not None:
        raise ValueError(
            "gradients are affine for a squared loss with a squared regularizer, or none, and no "
            "clip only."
        )
    convexity = jnp.broadcast_to(strong_convexity(problem), problem.clients).astype(problem.dtype)
    moment = 2 * problem.second_moment()
    moment = moment + convexity[:, None, None] * jnp.eye(problem.dim, dtype=moment.dtype)[None]
    return moment, 2 * problem.correlation(problem.targets)


def _shares(problem: Problem, weights: Array | None) -> Array:
    if weights is None:
        return jnp.full(problem.clients, 1 / problem.clients, problem.dtype)
    if np.shape(weights) != (problem.clients,):
        raise ValueError(
            f"weights must be one for each of the {problem.clients} clients, got shape "
            f"{np.shape(weights)}."
        )
    checks.nonnegative("weights", weights)
    return jnp.asarray(weights, problem.dtype)


@checked
def hessian(
    problem: Problem, weights: Float[Array, " clients"] | None = None
) -> Float[Array, "dim dim"]:
    r"""The Hessian of :math:`\sum_kq_kf_k`, :math:`2(\sum_kq_k\hat R_k+\rho I)` in the notation of
    the source.

    Args:
      problem: a problem with a squared loss, and a squared regularizer or none.
      weights: :math:`q`, ``[K]``; :math:`1/K` each by default.

    Raises:
      ValueError: an unsupported problem, weights of the wrong shape or negative.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> hessian(problem).shape
      (2, 2)
    """
    return _weighted_mean(problem, _shares(problem, weights))[0]


@jax.jit
def _weighted_mean(problem: Problem, shares: Array) -> tuple[Array, Array]:
    hessians, moments = affine_gradient(problem)
    return _sum("k,kij->ij", shares, hessians), _sum("k,ki->i", shares, moments)


@checked
def minimizer(
    problem: Problem, weights: Float[Array, " clients"] | None = None
) -> Float[Array, " dim"]:
    r"""The minimizer :math:`\arg\min_w\sum_kq_kf_k(w)`; for equal weights (2.74), (3.61), (4.63).

    With left-stochastic combination weights of Perron vector :math:`q` diffusion converges to this
    point, and not to the minimizer of the uniform mean posed in (4.1): (4.91) takes the gradient of
    the latter to be zero, which holds only for a uniform :math:`q`.

    Args: as for :func:`hessian`.

    Raises:
      ValueError: as for :func:`hessian`; data that do not determine the minimizer. In traced code
        it is NaN then.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> targets = jnp.array([[1.0], [3.0], [8.0]])
      >>> problem = fl.problems.Problem(jnp.ones((3, 1, 1)), targets, fl.problems.LeastSquares())
      >>> fl.theory.multiagent.minimizer(problem).round(4).tolist()
      [4.0]
      >>> fl.theory.multiagent.minimizer(problem, jnp.array([0.5, 0.5, 0.0])).round(4).tolist()
      [2.0]
    """
    minimum = solved(*_weighted_mean(problem, _shares(problem, weights)))
    if checks.is_concrete(minimum) and np.any(np.isnan(minimum)):
        raise ValueError(
            "the data do not determine the minimizer, as features are zero, or determined by "
            "others, or clients have no weight. Give the problem a squared regularizer, or leave "
            "out these features."
        )
    return minimum


@checked
@jax.jit
def local_minimizers(problem: Problem) -> Float[Array, "clients dim"]:
    """The minimizer of each client's own loss, :math:`w_k^o` of (2.15).

    A client whose samples do not determine it has NaN, such as one with fewer samples than
    parameters, without a regularizer.

    Raises: as for :func:`hessian`.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> targets = jnp.array([[1.0], [3.0], [8.0]])
      >>> problem = fl.problems.Problem(jnp.ones((3, 1, 1)), targets, fl.problems.LeastSquares())
      >>> fl.theory.multiagent.local_minimizers(problem).round(4).tolist()
      [[1.0], [3.0], [8.0]]
    """
    return solved(*affine_gradient(problem))


@checked
@jax.jit
def drift(problem: Problem) -> Float[Array, ""]:
    r"""The drift :math:`\xi=\max_k\|w_k^o-w^o\|`, the smallest constant of Assumption 2.2 (also
    3.3, 4.2). NaN if some client's samples do not determine its minimizer.

    Raises: as for :func:`hessian`.

    Example:
      The minimizers of the clients are 1, 3 and 8, that of all is 4:

      >>> import jax.numpy as jnp, fljax as fl
      >>> targets = jnp.array([[1.0], [3.0], [8.0]])
      >>> problem = fl.problems.Problem(jnp.ones((3, 1, 1)), targets, fl.problems.LeastSquares())
      >>> round(float(fl.theory.multiagent.drift(problem)), 4)
      4.0
    """
    difference = local_minimizers(problem) - minimizer(problem)[None]
    return jnp.max(jnp.linalg.norm(difference, axis=1))


# --------------------------------------------------------------------------- random draws


class DrawMoments(NamedTuple):
    r"""First and second moments of the draws of clients and samples in a round.

    The mean of :math:`x_k/(Kp_k)` over the :math:`L` clients that a node draws is an estimate of
    the mean over all its clients, with covariance :math:`\sum_kv_k\delta_k\delta_k^\top`,
    :math:`\delta_k` being :math:`x_k/(Kp_k)` minus its mean with the weights :math:`v`; the mean
    over a batch is analogous:

    * :math:`v_k=p_k/L` for independent draws;
    * :math:`v_k=\frac{K-L}{K(K-1)L}` for uniform draws without replacement, so that
      :math:`1/\tau_B=\sum_nv_n` in (1.13);
    * :math:`v_k=c_k/L^2`, :math:`c_k-c_k^2/\sum_lc_l=Lp_k(1-Lp_k)`, for unequal probabilities
      without replacement. It is exact for a single draw, for equal probabilities and for clients
      that are always drawn; otherwise an approximation, for maximum-entropy draws with these
      probabilities (Deville and Tille 2005). For the systematic draws of Hartley and Rao (1962) it
      was accurate to 2 percent if probabilities were proportional to the summands, even with only
      eight units.
    """

    clients: Array  # [K]  p_k, among the clients of its node
    clients_spread: Array  # [K]  v_k
    within: Array  # [K]  the factor of the covariance of a client's message: p_k / L
    samples: Array  # [K, N]  p_n
    samples_spread: Array  # [K, N]  v_n
    steps: Array  # [K]  E_k
    lengths: Array  # [K]  of a step, over mu: 1 / E_k, over K p_k where clients are weighed so
    pull: Array  # []  1 where the regularizer is weighed with the samples, 0 where it is exact


def _even_spread(chance: Array, count: Array, units: Array) -> Array:
    """Weights :math:`v` of draws without replacement with equal probabilities."""
    return chance * (units - count) / (jnp.maximum(units - 1, 1) * count)


def uneven_spread(chance: Array, count: Array) -> Array:
    """Return the weights :math:`v` of draws without replacement with unequal probabilities, by a
    fixed-point iteration; units that are drawn with certainty contribute no variance.
    """
    drawn = count * chance
    drawn = drawn - jnp.floor(drawn)
    variance = drawn * (1 - drawn)

    def nearer(_: Array, nearest: Array) -> Array:
        total = jnp.sum(nearest, axis=-1, keepdims=True)
        return variance + nearest**2 / jnp.where(total > 0, total, 1)

    # The start is where it ends for a single draw, and for equal probabilities.
    start = variance / jnp.where(chance < 1, 1 - chance, 1)
    return jax.lax.fori_loop(0, 100, nearer, start) / count**2


@checked
def importance(
    problem: Problem,
    clients: Float[Array, " clients"],
    samples: Float[Array, "clients samples"],
    clients_per_round: int,
    batch: PyTree = 1,
    local_steps: object = 1,
    independent: bool = False,
) -> DrawMoments:
    r"""The draws of :class:`~fljax.algorithms.ISFedAvg` for given probabilities, (2.10)-(2.11).

    Args:
      problem: the problem whose clients and samples are drawn.
      clients: :math:`p_k`, ``[K]``, with sum one.
      samples: :math:`p_n^{(k)}`, ``[K, N]``, with sum one for each client, zero on padding.
      clients_per_round: :math:`L`.
      batch: :math:`B_k`, one number or one per client.
      local_steps: :math:`E_k`, one number or one per client.
      independent: whether draws are mutually independent, as in Lemma 2.1's "with replacement"; by
        default systematic, as in the algorithm.

    Raises:
      ValueError: probabilities of the wrong shape or sum.

    Example:
      Two of four clients with equal probabilities, :math:`(K-L)/(K(K-1)L)` each:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
      >>> clients, samples = jnp.full(4, 0.25), jnp.full((4, 5), 0.2)
      >>> draws = fl.theory.multiagent.importance(problem, clients, samples, clients_per_round=2)
      >>> [round(weight, 4) for weight in draws.clients_spread.tolist()]
      [0.0833, 0.0833, 0.0833, 0.0833]
    """
    checks.count("clients_per_round", clients_per_round, at_most=problem.clients)
    for name, value, shape in (
        ("clients", clients, (problem.clients,)),
        ("samples", samples, (problem.clients, problem.samples)),
    ):
        if np.shape(value) != shape:
            raise ValueError(
                f"{name} must be probabilities of shape {shape}, got {np.shape(value)}."
            )
        checks.interval(name, value, at_least=0, at_most=1 + 1e-6)
        checks.check_when_concrete(
            functools.partial(_of_sum_one, name), jnp.sum(jnp.asarray(value), axis=-1)
        )
    for name, value in (("batch", batch), ("local_steps", local_steps)):
        check_per_client(name, per_client(name, value), problem.clients)
    counts = (jnp.asarray(n) for n in (clients_per_round, batch, local_steps))
    return _importance(problem, clients, samples, *counts, independent=independent)


@functools.partial(jax.jit, static_argnames="independent")
def _importance(
    problem: Problem,
    clients: Array,
    samples: Array,
    count: Array,
    batch: Array,
    steps: Array,
    independent: bool,
) -> DrawMoments:
    dtype = problem.dtype
    clients, samples, count = (jnp.asarray(a).astype(dtype) for a in (clients, samples, count))
    steps, sizes = (jnp.broadcast_to(n.astype(dtype), problem.clients) for n in (steps, batch))
    spread = [
        chance / number if independent else uneven_spread(chance, number)
        for chance, number in ((clients, count), (samples, sizes[:, None]))
    ]
    return DrawMoments(
        clients,
        spread[0],
        clients / count,
        samples,
        spread[1],
        steps.astype(jnp.int32),
        1 / (problem.clients * jnp.where(clients > 0, clients, 1) * steps),
        jnp.ones((), dtype),
    )


def _of_sum_one(name: str, totals: ArrayLike) -> None:
    worst = np.ravel(np.asarray(totals))[np.argmax(np.abs(np.ravel(np.asarray(totals)) - 1))]
    if abs(worst - 1) > 1e-4:
        raise ValueError(
            f"{name} must be probabilities of sum one, got {worst:g}; divide by their sum."
        )


@checked
def sampling(
    problem: Problem, algorithm: Algorithm, network: Graph | Federation | None = None
) -> DrawMoments:
    """The draws of an algorithm in a round.

    For :class:`~fljax.algorithms.ISFedAvg` the probabilities are as at the minimizer, for
    every rule: probabilities that are estimated during the run end near these.

    Args:
      problem: the problem of the simulation.
      algorithm: :class:`~fljax.algorithms.FedAvg` with clients of equal weights,
        :class:`~fljax.algorithms.ISFedAvg`, :class:`~fljax.algorithms.GraphFedAvg` or a strategy of
        :mod:`fljax.algorithms.peers.diffusion`; with all samples, or with batches that are redrawn
        in every step.
      network: the network of the simulation; a :class:`~fljax.federation.Federation` for
        GraphFedAvg.

    Raises:
      TypeError: an unsupported algorithm.
      ValueError: unsupported draws: epochs, clients weighted by their samples with partial
        participation, other selectors.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
      >>> algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=2)
      >>> draws = fl.theory.multiagent.sampling(problem, algorithm)
      >>> [round(weight, 4) for weight in draws.clients_spread.tolist()]  # (4 - 2) / (4 * 3 * 2)
      [0.0833, 0.0833, 0.0833, 0.0833]
    """
    _layout(problem, algorithm, network)  # or refused
    if (
        isinstance(algorithm, FedAvg)
        and (weights := algorithm.weights(problem)) is not None
        and not isinstance(algorithm.selection, Everyone)
    ):
        checks.check_when_concrete(_check_equal_weights, weights)
    return _sampling(problem, algorithm, network)


@jax.jit
def _sampling(problem: Problem, algorithm: Any, network: Network) -> DrawMoments:
    home = _layout(problem, algorithm, network).home
    if isinstance(algorithm, ISFedAvg):
        best = replace(algorithm, rule="optimal")
        clients, samples = best.probabilities(problem, best.init(problem, None))
        count = algorithm.clients_per_round
        batch = algorithm.batch
        return importance(problem, clients, samples, count, batch, algorithm.local_steps)
    dtype = problem.dtype
    steps = 1
    if not isinstance(algorithm, PEERS):
        steps = algorithm.local_steps or algorithm.epochs
    steps = jnp.broadcast_to(jnp.asarray(steps, jnp.int32), problem.clients)
    lengths = 1 / steps.astype(dtype)
    if isinstance(algorithm, FedAvg) and not algorithm.normalized:
        lengths = jnp.ones(problem.clients, dtype)
    drawn = _client_sampling(problem, algorithm, home)
    return DrawMoments(
        *drawn, *_batch_sampling(problem, algorithm), steps, lengths, jnp.zeros((), dtype)
    )


def _client_sampling(
    problem: Problem, algorithm: Any, home: np.ndarray
) -> tuple[Array, Array, Array]:
    """Probabilities of the clients, their spread, and the weight of their messages."""
    size = jnp.asarray(np.bincount(home)[home], problem.dtype)
    chance = 1 / size
    if isinstance(algorithm, PEERS):
        return chance, 0 * chance, chance
    selector = algorithm.selection
    weights = algorithm.weights(problem) if isinstance(algorithm, FedAvg) else None
    if weights is not None and isinstance(selector, Everyone):
        chance = weights / jnp.sum(weights)
        return chance, 0 * chance, chance**2
    if isinstance(selector, Everyone):
        return chance, 0 * chance, chance / size
    if not isinstance(selector, Drawn | PerServer):
        raise ValueError(
            f"the distribution of participants under {type(selector).__name__} is not known here; "
            "give clients_per_round, or let all clients take part."
        )
    count = jnp.asarray(selector.count, problem.dtype)
    return chance, _even_spread(chance, count, size), chance / count


def _check_equal_weights(weights: object) -> None:
    if np.ptp(np.asarray(weights)):
        raise ValueError(
            "a weighted mean of clients is biased under partial participation; leave out "
            "weighting= and the problem's weights."
        )


def _batch_sampling(problem: Problem, algorithm: Any) -> tuple[Array, Array]:
    """Probabilities of the samples and their spread."""
    real = (jnp.asarray(problem.weights) > 0).astype(problem.dtype)
    counts = jnp.sum(real, axis=1, keepdims=True)
    uniform = real / counts
    scheme = algorithm.batches
    if getattr(algorithm, "batch", None) is not None:
        raise ValueError(
            "batches of an epoch depend on each other; draw them anew with batches="
            "fljax.batches.Uniform(size) and local_steps=."
        )
    if scheme is None:
        return uniform, 0 * uniform
    if not isinstance(scheme, Uniform | Weighted):
        raise ValueError(
            f"the distribution of batches under {type(scheme).__name__} is not known here; take "
            "fljax.batches.Uniform or Weighted."
        )
    size = jnp.broadcast_to(jnp.asarray(scheme.size, problem.dtype), problem.clients)[:, None]
    if isinstance(scheme, Weighted):
        chance = scheme.probability.astype(problem.dtype)
        return chance, uneven_spread(chance, size)
    if scheme.replacement:
        return uniform, uniform / size
    return uniform, _even_spread(uniform, jnp.minimum(size, counts), counts)


class _Layout(NamedTuple):
    """Assignment of clients to nodes, and the combination weights of the nodes."""

    home: np.ndarray  # [K]  the node of each client
    nodes: int  # P
    #: combinations before, during and after the gradient step
    weights: tuple[Combination | None, Combination | None, Combination | None]

    @property
    def centroid_weights(self) -> np.ndarray | Array:
        """``[P]``: weights of the mean of the nodes' models that no combination changes."""
        uniform = np.full(self.nodes, 1 / self.nodes)
        used = [combination for combination in self.weights if combination is not None]
        return _stationary_weights(used[0]) if len(used) == 1 else uniform


def _layout(problem: Problem, algorithm: object, network: Network) -> _Layout:
    if isinstance(algorithm, FedAvg) and problem.importance is not None:
        raise ValueError(
            "weights of clients in federated averaging are supported here only as "
            "weighting='samples' of the algorithm, not as the problem's."
        )
    if isinstance(algorithm, FedAvg | ISFedAvg):
        return _Layout(np.zeros(problem.clients, int), 1, (None, None, None))
    if isinstance(algorithm, GraphFedAvg):
        if not isinstance(network, Federation):
            raise TypeError(
                f"{type(algorithm).label} needs the network, an fljax.federation.Federation, got "
                f"{checks.shown(network)}."
            )
        combination = None if network.graph is None else network.graph.mixing("metropolis")
        return _Layout(np.asarray(network.server), network.servers, (None, None, combination))
    if not isinstance(algorithm, PEERS):
        raise TypeError(
            "the draws of FedAvg, ISFedAvg, GraphFedAvg, Consensus, CTA, ATC, Diffusion and "
            f"SampledDiffusion are known here, got {checks.shown(algorithm)}."
        )
    if not isinstance(network, Graph):
        raise TypeError(
            f"{type(algorithm).label} needs the network, an fljax.graphs.Graph, got "
            f"{checks.shown(network)}."
        )
    before, during, after = (
        rule if rule is None or isinstance(rule, Combination) else network.mixing(rule)
        for rule in algorithm.combinations
    )
    return _Layout(np.arange(problem.clients), problem.clients, (before, during, after))


# --------------------------------------------------------------------------- leading order


def sample_gradients(problem: Problem, at: Array) -> tuple[Array, Array]:
    """Gradients at one model: of each sample without the regularizer, ``[K, N, D]``, and of the
    regularizer, ``[K, D]``; zero on padding.
    """
    models = jnp.broadcast_to(at, (problem.clients, problem.dim))
    derivative = problem.loss.derivative(problem.predictions(models), problem.targets)
    real = jnp.asarray(problem.weights) > 0
    gradients = jnp.where(real, derivative, 0)[..., None] * problem.design
    return gradients, problem.share[:, None] * problem.regularizer.gradient(models)


def _deviations(problem: Problem, draws: DrawMoments, loss: Array, regularizer: Array) -> Array:
    r"""``[K, N, ...]`` from the samples' ``loss`` and the regularizer's ``[K, ...]``: the summand
    of each sample in a batch's mean, :math:`\omega_nx_n/p_n`, minus its mean.
    """
    axes = (1,) * (loss.ndim - 2)
    chance, spread, share = (
        jnp.asarray(a).reshape(*a.shape, *axes)
        for a in (draws.samples, draws.samples_spread, problem.weights)
    )
    weight = share / jnp.where(chance > 0, chance, 1)
    # A client's importance is a factor of its loss alone.
    total_share = jnp.sum(share, axis=1, keepdims=True)
    regularizer_weight = draws.pull * weight / jnp.where(total_share > 0, total_share, 1)
    summands = weight * loss + regularizer_weight * regularizer[:, None]
    total = jnp.sum(spread, axis=1, keepdims=True)
    mean = jnp.sum(spread * summands, axis=1, keepdims=True) / jnp.where(total > 0, total, 1)
    return summands - mean


def _server_deviations(draws: DrawMoments, values: Array, home: Array, nodes: int) -> Array:
    """``[K, ...]``: values of the clients minus their weighted mean at the node of each."""
    weight = draws.clients_spread.reshape(-1, *(1,) * (values.ndim - 1))
    total = jax.ops.segment_sum(weight, home, nodes)
    mean = jax.ops.segment_sum(weight * values, home, nodes) / jnp.where(total > 0, total, 1)
    return values - mean[home]


@checked
def gradient_noise(
    problem: Problem,
    draws: DrawMoments | Algorithm,
    network: Graph | Federation | None = None,
    at: Float[Array, " dim"] | None = None,
) -> Float[Array, "dim dim"]:
    r"""The covariance :math:`R_s` of the stochastic gradient (2.17), for any number of local steps.

    .. math::

        R_s=\frac1{LK^2}\sum_k\frac1{p_kE_k}C_k+\sum_kv_k\delta_k\delta_k^\top,\qquad
        \delta_k=\frac{f_k'}{Kp_k}-\overline{\frac{f'}{Kp}}

    with :math:`C_k` the covariance of a batch's gradient and :math:`v_k` as in
    :class:`DrawMoments`: at the minimizer and for uniform draws without replacement the second term
    is :math:`\frac{K-L}{K-1}\frac1{LK}\sum_kf_k'f_k'^\top`. Exact for uniform and for independent
    draws, approximate for systematic ones (:class:`DrawMoments`). (2.23) is a bound on its trace,
    without the centering and with factors of 3 and 6. In a network it is the covariance for the
    centroid, :math:`\sum_pq_p^2R_{s,p}`.

    Args:
      problem: a problem with any loss of one output.
      draws: an algorithm as for :func:`sampling`, or a :class:`DrawMoments` of one server.
      network: as for :func:`sampling`.
      at: the model, ``[D]``; the minimizer of the problem by default.

    Raises: as for :func:`sampling`.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> def noise(clients):
      ...     return jnp.trace(gradient_noise(problem, fl.algorithms.FedAvg(0.1, clients)))
      >>> round(float(noise(2) / noise(4)), 3)  # (4 / 2) (6 - 2) / (6 - 4)
      4.0
    """
    if isinstance(draws, DrawMoments):
        layout = _Layout(np.zeros(problem.clients, int), 1, (None, None, None))
    else:
        layout = _layout(problem, draws, network)
        draws = sampling(problem, draws, network)
    if at is None:
        at = minimizer(problem) if is_quadratic(problem) else optimum(problem)
    checks.finite("at", at)
    if np.shape(at) != (problem.dim,):
        raise ValueError(f"at must be a model of shape {(problem.dim,)}, got {np.shape(at)}.")
    home = layout.home
    weights = layout.centroid_weights
    return _gradient_noise(
        problem, draws, at, jnp.asarray(home), jnp.asarray(weights, problem.dtype)
    )


@jax.jit
def _gradient_noise(
    problem: Problem, draws: DrawMoments, at: Array, home: Array, weights: Array
) -> Array:
    loss, regularizer = sample_gradients(problem, at)
    deviations_of_samples = _deviations(problem, draws, loss, regularizer)
    batch = _sum(
        "kn,kni,knj->kij", draws.samples_spread, deviations_of_samples, deviations_of_samples
    )
    steps = draws.steps.astype(problem.dtype)
    scale = draws.lengths * steps  # 1 / (K p_k), or one
    mean = jnp.sum(jnp.asarray(problem.weights)[..., None] * loss, axis=1) + regularizer
    mean = scale[:, None] * mean
    deviations = _server_deviations(draws, mean, home, len(weights))
    weights = weights[home] ** 2
    inner = _sum("k,kij->ij", weights * draws.within * scale**2 / steps, batch)
    return inner + _sum("k,ki,kj->ij", weights * draws.clients_spread, deviations, deviations)


@checked
def noise_gain(
    hessian: Float[Array, "dim dim"],
    step_size: Float[Array, ""] | float,
    leading: bool = False,
) -> Float[Array, ""]:
    r"""Steady-state deviation due to unit-variance noise on every parameter in every round.

    .. math:: T(\mu)=\mathrm{tr}\big[(I-(I-\mu H)^2)^{-1}\big]\approx\frac{\mathrm{tr}H^{-1}}{2\mu}

    Args:
      hessian: ``[D, D]``, symmetric and positive definite.
      step_size: :math:`\mu`; from :math:`2/\lambda_{\max}(H)` on no steady state exists, and the
        result is infinite.
      leading: whether to return the approximation on the right-hand side.

    Raises:
      ValueError: a Hessian that is not symmetric and positive definite, a step size of zero.

    Example:
      >>> import jax.numpy as jnp
      >>> float(noise_gain(jnp.eye(2), 0.5)), float(noise_gain(jnp.eye(2), 0.5, leading=True))
      (2.6666666..., 2.0)
    """
    checks.positive("step_size", step_size)
    hessian = _definite("hessian", hessian, strictly=True)
    return _noise_gain(hessian, jnp.asarray(step_size), leading=leading)


@functools.partial(jax.jit, static_argnames="leading")
def _noise_gain(hessian: Array, step_size: Array, leading: bool) -> Array:
    step_size = step_size.astype(hessian.dtype)
    values = jnp.linalg.eigvalsh(hessian)
    if leading:
        return _infinite_if_unstable(jnp.sum(1 / (2 * step_size * values)), 0, values)
    return _infinite_if_unstable(
        jnp.sum(1 / (step_size * values * (2 - step_size * values))), step_size, values
    )


@checked
def stationary(
    hessian: Float[Array, "dim dim"],
    step_size: Float[Array, ""] | float,
    noise: Float[Array, "dim dim"],
    leading: bool = False,
) -> Float[Array, "dim dim"]:
    r"""Steady-state covariance of gradient descent with noisy gradients.

    .. math:: \Sigma=(I-\mu H)\Sigma(I-\mu H)+\mu^2R_s

    whose trace is the mean-square deviation, :math:`\tfrac\mu2\mathrm{tr}(H^{-1}R_s)` to leading
    order. It neglects the dependence of the noise on the model (:math:`\beta_s^2` in the source)
    and the effect of several local steps; :func:`steady_state` includes both.

    Args:
      hessian: ``[D, D]``, symmetric and positive definite.
      step_size: :math:`\mu`, as for :func:`noise_gain`.
      noise: :math:`R_s`, from :func:`gradient_noise`; :math:`\sigma^2I/\mu^2` for noise on models.
      leading: whether to solve :math:`H\Sigma+\Sigma H=\mu R_s` instead.

    Example:
      >>> import jax.numpy as jnp
      >>> stationary(jnp.eye(1), 0.5, 3 * jnp.eye(1)).tolist()  # 0.25 3 / (1 - 0.5^2)
      [[1.0]]
    """
    checks.positive("step_size", step_size)
    return _stationary(
        _definite("hessian", hessian, strictly=True),
        jnp.asarray(step_size),
        _definite("noise", noise, strictly=False),
        leading=leading,
    )


@functools.partial(jax.jit, static_argnames="leading")
def _stationary(hessian: Array, step_size: Array, noise: Array, leading: bool) -> Array:
    step_size = step_size.astype(hessian.dtype)
    (values, vectors) = jnp.linalg.eigh(hessian)
    inside = _dot(_dot(vectors.T, noise), vectors)
    pairs = values[:, None] + values[None]
    if not leading:
        pairs = pairs - step_size * values[:, None] * values[None]
    covariance = _dot(_dot(vectors, step_size * inside / pairs), vectors.T)
    return _infinite_if_unstable(covariance, 0 if leading else step_size, values)


def _infinite_if_unstable(decay: Array, step_size: Array | float, values: Array) -> Array:
    """The values, infinite if gradient descent itself diverges, or does not contract in a direction
    that the data leave open.
    """
    singular = is_singular(jnp.min(values), jnp.max(values), len(values))
    return jnp.where((jnp.max(values) * step_size < 2) & ~singular, decay, jnp.inf)


def _definite(name: str, matrix: object, *, strictly: bool) -> Array:
    """The matrix as an array; raise unless it is symmetric and positive (semi)definite."""
    matrix = jnp.asarray(checks.array(name, matrix, axes=2))
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be square, got shape {matrix.shape}.")
    checks.finite(name, matrix)
    if checks.is_concrete(matrix):
        values = np.asarray(matrix, np.float64)
        size = np.max(np.abs(values), initial=0.0)
        tolerance = 1e-4 * size
        if np.max(np.abs(values - values.T), initial=0.0) > tolerance:
            raise ValueError(f"{name} must be symmetric, got {checks.shown(matrix)}.")
        least = np.linalg.eigvalsh(values / max(size, np.finfo(np.float64).tiny))[0] * size
        rounding = 8 * len(values) * jnp.finfo(matrix.dtype).eps * size
        if least < -tolerance or (strictly and least <= rounding):
            kind = "definite" if strictly else "semidefinite"
            raise ValueError(f"{name} must be positive {kind}, got an eigenvalue of {least:.3g}.")
    # Decompositions exist for single and double precision only.
    return matrix.astype(np.float32) if matrix.dtype.itemsize < 4 else matrix


@checked
def upload_floor(
    hessian: Float[Array, "dim dim"],
    step_size: Float[Array, ""] | float,
    variance: Float[Array, ""] | float,
    clients_per_round: int,
    on: Perturbed = "models",
    leading: bool = False,
) -> Float[Array, ""]:
    r"""Mean-square deviation added by noise on the clients' uploads (section 2.5).

    :math:`\tfrac{\sigma_g^2}LT(\mu)` for noise on models (2.56), and :math:`\mu^2` times that for
    noise on updates (2.59), which is scaled by :math:`\mu`: the former is of order :math:`1/\mu`,
    the latter of order :math:`\mu`, and their ratio is :math:`1/\mu^2` at every step size. Exact
    for one local step per client and without gradient noise, which adds a few percent; the source
    has the orders (Theorem 2.2).

    Args:
      hessian: ``[D, D]``.
      step_size: :math:`\mu`.
      variance: :math:`\sigma_g^2`, per parameter.
      clients_per_round: :math:`L`.
      on: the perturbed quantity.
      leading: whether to use the leading order of :math:`T`.

    Example:
      >>> import jax.numpy as jnp
      >>> models, updates = (
      ...     upload_floor(jnp.eye(2), 0.2, 0.02, 20, on) for on in ("models", "updates")
      ... )
      >>> round(float(models / updates), 6)
      25.0
    """
    checks.nonnegative("variance", variance)
    checks.count("clients_per_round", clients_per_round)
    checks.choice("on", on, UPLOADS)
    floor = variance / clients_per_round * noise_gain(hessian, step_size, leading)
    return floor if on == "models" else step_size**2 * floor


class BestStep(NamedTuple):
    """The step size with the least deviation, and this deviation."""

    step_size: Array  # []
    deviation: Array  # []


@checked
def best_step(
    hessian: Float[Array, "dim dim"],
    noise: Float[Array, "dim dim"],
    variance: Float[Array, ""] | float,
) -> BestStep:
    r"""The step size that minimizes :math:`a\mu+b/\mu`, gradient noise plus noise on models.

    .. math::

        \mu^*=\sqrt{b/a}=\sqrt{\frac{\sigma^2\,\mathrm{tr}H^{-1}}{\mathrm{tr}(H^{-1}R_s)}},\qquad
        \mathrm{MSD}^*=2\sqrt{ab}

    To leading order in :math:`\mu`, thus for small step sizes; the U-shape of Figures 2.7 and 3.4.
    Infinite without gradient noise, where the deviation falls with every larger step size.

    Args:
      hessian: ``[D, D]``.
      noise: :math:`R_s`, from :func:`gradient_noise`.
      variance: :math:`\sigma^2` of the noise on a parameter of the (centroid's) model in a round:
        :math:`\sigma_g^2/L` for noisy models of :math:`L` clients, :math:`\sigma_g^2\sum_{p\ne
        m}a_{mp}^2/P^2` for noise on every edge.

    Example:
      >>> import jax.numpy as jnp
      >>> best = best_step(jnp.eye(2), 4 * jnp.eye(2), 0.01)
      >>> round(float(best.step_size), 6), round(float(best.deviation), 6)
      (0.05, 0.4)
    """
    checks.nonnegative("variance", variance)
    inverse = jnp.linalg.inv(_definite("hessian", hessian, strictly=True))
    # A semidefinite matrix may have eigenvalues below zero, by rounding.
    noise_term = jnp.maximum(jnp.sum(inverse * _definite("noise", noise, strictly=False)) / 2, 0)
    bias_term = variance * jnp.trace(inverse) / 2
    has_noise = noise_term > 0
    step = jnp.where(has_noise, jnp.sqrt(bias_term / jnp.where(has_noise, noise_term, 1)), jnp.inf)
    return BestStep(step, 2 * jnp.sqrt(noise_term * bias_term))


# --------------------------------------------------------------------------- noise in networks


@checked
def noise_covariance(
    combination: Combination, noise: Noise, dim: int = 1
) -> Float[Array, "nodes nodes"]:
    r"""Covariance over nodes of the noise after a combination :math:`W=A^\top`, for one parameter.

    One draw per edge gives :math:`\sigma^2\mathrm{diag}(\sum_{l\ne k}w_{kl}^2)`, plus
    :math:`w_{kk}^2` if nodes also draw for their own model; one draw per message gives
    :math:`\sigma^2W_0W_0^\top`, :math:`W_0` being :math:`W` without its diagonal, homomorphic noise
    gives :math:`\sigma^2(W-I)(W-I)^\top` and local noise zero.

    Args:
      combination: the combination weights.
      noise: the noise with its variance; its distribution does not matter.
      dim: number of parameters of a model, among which noise ``per="vector"`` is split.

    Raises:
      TypeError: noise of an unsupported class.

    Example:
      >>> import fljax as fl
      >>> over = fl.graphs.ring(6).mixing()
      >>> left = noise_covariance(over, fl.link.GraphHomomorphic(0.1))
      >>> bool(abs(left.sum()) < 1e-6)  # nothing in the mean of all
      True
    """
    checks.count("dim", dim)
    weights = combination.matrix()
    variance = jnp.asarray(noise.variance, weights.dtype)
    variance = variance / dim if noise.per == "vector" else variance
    off_diagonal = weights - jnp.diag(combination.self_weight)
    if noise.cancels == "receiver":
        return jnp.zeros_like(weights)
    if isinstance(noise, PerEdge):
        drawn = weights if noise.own else off_diagonal
        return variance * jnp.diag(jnp.sum(drawn**2, axis=1))
    if isinstance(noise, GraphHomomorphic):
        off_diagonal = weights - jnp.eye(combination.nodes, dtype=weights.dtype)
    elif not isinstance(noise, PerMessage):
        raise TypeError(f"the covariance of {checks.shown(noise)} is not known here.")
    return variance * _dot(off_diagonal, off_diagonal.T)


@checked
def centroid_floor(
    problem: Problem,
    combination: Combination,
    noise: Noise,
    step_size: Float[Array, ""] | float,
    leading: bool = False,
) -> Float[Array, ""]:
    r"""Mean-square deviation of the centroid due to noise between peers, for small step sizes.

    * Independent draws: :math:`\sigma^2\sum_{p\ne m}q_p^2a_{mp}^2\,T(\mu)`, of order
      :math:`1/\mu` (Theorems 3.1 and 4.1 have the order).
    * Graph-homomorphic noise: zero except for the effect of differing Hessians of the nodes,

      .. math:: \mu^2\sigma^2\,\mathrm{tr}\Big[(I-(I-\mu H)^2)^{-1}\sum_pq_p^2(H_p-H)^2\Big],

      since over time the draw of node :math:`p` moves all others by :math:`q_p` times the draw and
      itself by :math:`q_p-1` times, :math:`\sum_jW^j(W-I)=1q^\top-I`, and gradients respond. It is
      :math:`O(\mu)\sigma^2`: the :math:`O(1)\sigma^2` of Corollary 3.1 and Theorem 4.2 comes from
      Jensen's inequality, and the statement in the text that smaller steps mitigate it (sections
      3.3.3 and 3.5.1) is right.
    * Local noise: zero. (Section 4.3.4 has :math:`O(\mu)\sigma_g^2`; read :math:`\sigma_s^2`.)

    The centroid is :math:`\sum_pq_pw_p` with the Perron vector :math:`q`, and :math:`H` is the
    Hessian of :math:`\sum_pq_pf_p`. Exact only to leading order; :func:`steady_state` is exact.

    Args:
      problem: the problem of the peers; for servers use :func:`steady_state`.
      combination: :math:`W=A^\top`.
      noise: as for :func:`noise_covariance`.
      step_size: :math:`\mu`.
      leading: whether to use the leading order of the gains, too.

    Raises:
      TypeError: as for :func:`noise_covariance`.
      ValueError: as for :func:`hessian`; weights for another number of nodes, or with an unknown
        Perron vector.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> weights = fl.graphs.ring(6).mixing()
      >>> def floor(noise):
      ...     return float(fl.theory.multiagent.centroid_floor(problem, weights, noise, 0.01))
      >>> floor(fl.link.GraphHomomorphic(1.0)) < 0.1 * floor(fl.link.PerEdge(1.0))
      True
    """
    checks.positive("step_size", step_size)
    _stationary_weights(combination)  # or refused
    if combination.nodes != problem.clients:
        raise ValueError(
            f"the weights are for {combination.nodes} nodes, but the problem has {problem.clients} "
            "clients."
        )
    return _centroid_floor(problem, combination, noise, jnp.asarray(step_size), leading=leading)


@functools.partial(jax.jit, static_argnames="leading")
def _centroid_floor(
    problem: Problem, combination: Combination, noise: Noise, step_size: Array, leading: bool
) -> Array:
    stationary = _stationary_weights(combination)
    hessians = affine_gradient(problem)[0]
    mean = _sum("k,kij->ij", stationary, hessians)
    covariance = noise_covariance(combination, noise, problem.dim)
    left = _dot(stationary, _dot(covariance, stationary))
    if not isinstance(noise, GraphHomomorphic):
        return left * _noise_gain(mean, step_size, leading=leading)
    variance = noise.variance / problem.dim if noise.per == "vector" else noise.variance
    deviations = stationary[:, None, None] * (hessians - mean[None])
    gradient_noise = variance * _sum("pij,pjl->il", deviations, deviations)
    return jnp.trace(_stationary(mean, step_size, gradient_noise, leading=leading))


def _stationary_weights(combination: Combination) -> Array:
    if combination.stationary is None:
        raise ValueError("the Perron vector of thinned weights is not known.")
    return combination.stationary


@checked
def disagreement_floor(combination: Combination, noise: Noise, dim: int) -> Float[Array, ""]:
    r"""The mean of :math:`\|w_p-w_c\|^2` over nodes due to noise between them, for :math:`\mu\to0`.

    .. math::

        \frac DP\,\mathrm{tr}\sum_{j\ge0}\breve W^jN\breve W^{j\top},\qquad
        \breve W=W-1q^\top,

    :math:`N` being that of :func:`noise_covariance`, projected as well. For homomorphic noise and
    symmetric weights it is :math:`\frac{D\sigma^2}P\sum_{k\ge2}\frac{1-\lambda_k}{1+\lambda_k}`,
    which is large if an eigenvalue is near -1. The source has :math:`O(1)\sigma^2` for either
    (Lemma 3.3, Lemma 4.1). For larger step sizes use :func:`steady_state`.

    Args:
      combination: :math:`W=A^\top`.
      noise: as for :func:`noise_covariance`.
      dim: ``D``, number of parameters of a model.

    Raises:
      TypeError, ValueError: as for :func:`centroid_floor`.

    Example:
      All eigenvalues but one of a complete graph's weights are zero: :math:`D\sigma^2(K-1)/K`.

      >>> import fljax as fl
      >>> weights, noise = fl.graphs.complete(4).mixing(), fl.link.GraphHomomorphic(1.0)
      >>> round(float(fl.theory.multiagent.disagreement_floor(weights, noise, dim=2)), 4)
      1.5
    """
    checks.count("dim", dim)
    return _disagreement_floor(combination, noise, dim=dim)


@functools.partial(jax.jit, static_argnames="dim")
def _disagreement_floor(combination: Combination, noise: Noise, dim: int) -> Array:
    stationary = _stationary_weights(combination)
    weights = combination.matrix()
    nodes = combination.nodes
    from_mean = jnp.eye(nodes, dtype=weights.dtype) - jnp.broadcast_to(
        stationary[None], weights.shape
    )
    noisy = noise_covariance(combination, noise, dim)
    noisy = _dot(_dot(from_mean, noisy), from_mean.T)
    deviation = weights - jnp.broadcast_to(stationary[None], weights.shape)
    return dim / nodes * jnp.trace(_lyapunov(deviation, noisy))


def _lyapunov(matrix: Array, right: Array) -> Array:
    r""":math:`\sum_jM^jRM^{j\top}`, by doubling, infinite where powers of :math:`M` do not
    vanish: after 60 times they do if its spectral radius is below one by more than rounding.
    """

    def double(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        power, total = carry
        return _dot(power, power), total + _dot(_dot(power, total), power.T)

    power, total = jax.lax.fori_loop(0, 60, double, (matrix, right))
    return jnp.where(_vanishes(power), total, jnp.inf)


def _vanishes(power: Array) -> Array:
    return jnp.all(jnp.abs(power) < 0.5)  # false of what is not a number


# --------------------------------------------------------------------------- exact moments


class _RoundMaps(NamedTuple):
    """Affine map of a node's error ``(w - reference, 1)`` in a round: its mean and covariance."""

    mean: Array  # [P, D+1, D+1]  E M
    #: [P, (D+1)^2, (D+1)^2]  E M (x) M - E M (x) E M, M (x) M acting on second moments
    spread: Array


def _local_steps(
    problem: Problem, draws: DrawMoments, reference: Array, step: Array
) -> tuple[Array, Array]:
    """``E M`` and ``E M (x) M`` for each client's local steps in a round, ``[K, ...]``."""
    dim = problem.dim
    dtype = problem.dtype
    size = dim + 1
    gradients, regularizer = sample_gradients(problem, reference)
    real = (jnp.asarray(problem.weights) > 0).astype(dtype)[..., None]
    rows = real * problem.design
    curvatures = 2 * rows[..., :, None] * rows[..., None, :]
    loss = jnp.concatenate([curvatures, gradients[..., None]], axis=3)  # [K, N, D, D+1]
    ridge = jnp.broadcast_to(strong_convexity(problem), problem.clients).astype(dtype)
    ridge = ridge[:, None, None] * jnp.eye(dim, dtype=dtype)[None]
    regularizer = jnp.concatenate([ridge, regularizer[..., None]], axis=2)
    share = jnp.asarray(problem.weights)[..., None, None]
    gradient = _with_zero_row(jnp.sum(share * loss, axis=1) + regularizer)
    deviations = _deviations(problem, draws, loss, regularizer)
    deviations = jnp.pad(deviations, ((0, 0), (0, 0), (0, 1), (0, 0)))

    length = (step * draws.lengths)[:, None, None]
    step_mean = jnp.eye(size, dtype=dtype)[None] - length * gradient
    noise = _sum("kn,knil,knjm->kijlm", draws.samples_spread, deviations, deviations)
    noise = length**2 * noise.reshape(-1, size**2, size**2)
    step_second = _pairs(step_mean) + noise

    def apply_step(number: Array, powers: tuple[Array, Array]) -> tuple[Array, Array]:
        active = (number < draws.steps)[:, None, None]
        mean, second = powers
        return (
            jnp.where(active, _dot(step_mean, mean), mean),
            jnp.where(active, _dot(step_second, second), second),
        )

    start = tuple(
        jnp.broadcast_to(jnp.eye(n, dtype=dtype)[None], (problem.clients, n, n))
        for n in (size, size**2)
    )
    return jax.lax.fori_loop(0, jnp.max(draws.steps), apply_step, start)


def _round_maps(
    problem: Problem, draws: DrawMoments, layout: _Layout, reference: Array, step: Array
) -> _RoundMaps:
    """Affine maps of all local steps of a round, averaged over draws of clients and samples."""
    mean, second = _local_steps(problem, draws, reference, step)
    home = jnp.asarray(layout.home)
    of_node = jax.ops.segment_sum(draws.clients[:, None, None] * mean, home, layout.nodes)
    deviations = _server_deviations(draws, mean, home, layout.nodes)
    across = (draws.clients_spread)[:, None, None] * _pairs(deviations)
    within = draws.within[:, None, None] * (second - _pairs(mean))
    return _RoundMaps(of_node, jax.ops.segment_sum(across + within, home, layout.nodes))


def _round_maps_with_absence(
    problem: Problem,
    draws: DrawMoments,
    home: np.ndarray,
    present: Present,
    reference: Array,
    step: Array,
) -> _RoundMaps:
    """The same for clients with random availability: a server's map is the identity plus its
    available clients' mean deviation from it, and the identity if none is available.
    """
    mean, second = _local_steps(problem, draws, reference, step)
    identity = jnp.eye(mean.shape[-1], dtype=mean.dtype)
    nodes = int(home.max()) + 1
    updates = mean - identity[None]
    joint = present.square - jnp.outer(present.mean, present.mean)
    joint = jnp.where(home[:, None] == home[None], joint, 0)
    across = _pairs(updates, _sum("kl,lij->kij", joint, updates))
    within = jnp.diagonal(present.square)[:, None, None] * (second - _pairs(mean))
    of_node = jax.ops.segment_sum(present.mean[:, None, None] * updates, home, nodes)
    return _RoundMaps(identity[None] + of_node, jax.ops.segment_sum(across + within, home, nodes))


def _with_upload_noise(
    round_maps: _RoundMaps, noise: UploadNoise, draws: DrawMoments, layout: _Layout, step: Array
) -> _RoundMaps:
    """Add the noise on the clients' messages, which does not depend on the model."""
    size = round_maps.mean.shape[1]
    variance = noise.variance / (size - 1) if noise.per == "vector" else noise.variance
    variance = step**2 * variance if noise.on == "updates" else variance
    node_variance = variance * jax.ops.segment_sum(
        draws.within, jnp.asarray(layout.home), layout.nodes
    )
    diagonal = jnp.arange(size - 1) * (size + 1)  # of a parameter's second moment among all
    return round_maps._replace(
        spread=round_maps.spread.at[:, diagonal, -1].add(node_variance[:, None])
    )


def _with_zero_row(matrices: Array) -> Array:
    """``[..., D, D+1]`` with a row of zeros."""
    return jnp.pad(matrices, [(0, 0)] * (matrices.ndim - 2) + [(0, 1), (0, 0)])


def _pairs(matrices: Array, right: Array | None = None) -> Array:
    """``M (x) M``, or ``M (x) L``, of ``[B, n, n]``."""
    rows, size = matrices.shape[:2]
    right = matrices if right is None else right
    return _sum("bil,bjm->bijlm", matrices, right).reshape(rows, size**2, size**2)


class _Recursion(NamedTuple):
    """Map of the mean and the covariance of all nodes' errors in a round."""

    round_maps: _RoundMaps
    before: Array  # [P, P]  W of A_1
    during: Array  # [P, P]  W of A_0
    after: Array  # [P, P]  W of A_2
    noises: tuple[Array, Array, Array]  # [P, P] each: covariances of the noise added there

    @property
    def linear(self) -> Array:
        """``[PD, PD]``: from the points of the nodes' gradients to the input of the last
        combination.
        """
        nodes, size = self.round_maps.mean.shape[:2]
        dim = size - 1
        update = self.round_maps.mean[:, :dim, :dim] - jnp.eye(dim, dtype=self.before.dtype)[None]
        blocks = jnp.zeros((nodes, dim, nodes, dim), update.dtype)
        every = jnp.arange(nodes)
        blocks = blocks.at[every, :, every, :].set(update)
        return blocks.reshape(nodes * dim, nodes * dim) + self.wide(self.during)

    def wide(self, weights: Array) -> Array:
        """The same weights for every parameter."""
        return jnp.kron(weights, jnp.eye(self.round_maps.mean.shape[1] - 1, dtype=weights.dtype))

    @property
    def matrix(self) -> Array:
        """``[PD, PD]`` of the mean error."""
        return _dot(_dot(self.wide(self.after), self.linear), self.wide(self.before))

    @property
    def offset(self) -> Array:
        """``[PD]`` of the mean error."""
        return _dot(self.wide(self.after), self.round_maps.mean[:, :-1, -1].reshape(-1))

    @property
    def added(self) -> Array:
        """``[PD, PD]``: the covariance of a round's noise between nodes."""
        first, second, third = (self.wide(noise) for noise in self.noises)
        after = self.wide(self.after)
        linear = self.linear
        inner = _dot(_dot(linear, first), linear.T) + second
        return _dot(_dot(after, inner), after.T) + third

    def drawn(self, mean: Array, covariance: Array) -> Array:
        """``[PD, PD]``: the covariance added by the draws, for nodes with these moments."""
        nodes, size = self.round_maps.mean.shape[:2]
        dim = size - 1
        before = self.wide(self.before)
        at = _dot(before, mean).reshape(nodes, dim)
        spread = _dot(_dot(before, covariance), before.T) + self.wide(self.noises[0])
        every = jnp.arange(nodes)
        second = spread.reshape(nodes, dim, nodes, dim)[every, :, every, :]
        at = jnp.concatenate([at, jnp.ones((nodes, 1), at.dtype)], axis=1)
        second = jnp.pad(second, ((0, 0), (0, 1), (0, 1))) + at[:, :, None] * at[:, None, :]
        noise = _sum("pij,pj->pi", self.round_maps.spread, second.reshape(nodes, -1))
        noise = noise.reshape(nodes, size, size)[:, :dim, :dim]
        blocks = jnp.zeros((nodes, dim, nodes, dim), noise.dtype)
        blocks = blocks.at[every, :, every, :].set(noise).reshape(spread.shape)
        after = self.wide(self.after)
        return _dot(_dot(after, blocks), after.T)


class _Asynchronous(NamedTuple):
    """The same for peers' models and last messages, with random availability of peers and links."""

    round_maps: _RoundMaps
    exchange: Exchange

    @property
    def _exchanges_last(self) -> bool:
        """Whether the exchange is after the gradient step."""
        return self.exchange.mean.shape[0] == 2 * len(self.round_maps.mean)

    @property
    def matrix(self) -> Array:
        """``[2 PD, 2 PD]`` of the mean error."""
        nodes, size = self.round_maps.mean.shape[:2]
        return jax.jacfwd(self._mean)(jnp.zeros(2 * nodes * (size - 1), self.round_maps.mean.dtype))

    @property
    def offset(self) -> Array:
        """``[2 PD]`` of the mean error."""
        return self._mean(jnp.zeros(len(self.matrix), self.round_maps.mean.dtype))

    @property
    def added(self) -> Array:
        """Zero, without noise between peers."""
        return jnp.zeros_like(self.matrix)

    def _moments(self, mean: Array, covariance: Array) -> Array:
        """Second moments of errors and ones, ``[2, P, D+1, 2, P, D+1]``."""
        nodes, size = self.round_maps.mean.shape[:2]
        shape = (2, nodes, size - 1)
        at = jnp.concatenate([mean.reshape(shape), jnp.ones((*shape[:2], 1), mean.dtype)], axis=2)
        end = (0, 1)
        moments = covariance.reshape(*shape, *shape)
        moments = jnp.pad(moments, ((0, 0), (0, 0), end, (0, 0), (0, 0), end))
        return moments + jnp.outer(at, at).reshape(moments.shape)

    def distances(self, mean: Array, covariance: Array) -> Array:
        """``[P, P]``: mean squared distances of messages after a gradient step."""
        messages = self._after_step(self._moments(mean, covariance))[0, :, :-1, 0, :, :-1]
        products = _sum("piqi->pq", messages)
        squares = jnp.diagonal(products)
        return squares[:, None] + squares[None] - 2 * products

    def drawn(self, mean: Array, covariance: Array) -> Array:
        """``[2 PD, 2 PD]``: the covariance added by all draws of a round."""
        second = self._second(self._moments(mean, covariance))[:, :, :-1, :, :, :-1]
        after = self._mean(mean)
        second = second.reshape(covariance.shape) - jnp.outer(after, after)
        return second - _dot(_dot(self.matrix, covariance), self.matrix.T)

    def _mean(self, mean: Array) -> Array:
        nodes, size = self.round_maps.mean.shape[:2]
        model, sent = mean.reshape(2, nodes, size - 1)
        rows = jnp.stack([model, model, sent])
        rows = jnp.concatenate([rows, jnp.ones((3, nodes, 1), rows.dtype)], axis=2)

        def stepped(rows: Array) -> Array:
            return rows.at[0].set(_sum("pij,pj->pi", self.round_maps.mean, rows[0]))

        rows = stepped(rows) if self._exchanges_last else rows
        rows = _dot(self.exchange.mean, rows.reshape(3 * nodes, size)).reshape(-1, nodes, size)
        if not self._exchanges_last:
            moved, stored, sent = stepped(rows)
            rows = jnp.stack([moved + stored, sent])
        return rows[..., :-1].reshape(-1)

    def _second(self, rows: Array) -> Array:
        """Second moments after a round, given those before it, ``[2, P, D+1, 2, P, D+1]``."""
        nodes, size = self.round_maps.mean.shape[:2]
        twice = jnp.array([0, 0, 1])
        rows = rows[twice][:, :, :, twice]
        rows = self._after_step(rows) if self._exchanges_last else rows
        flat = rows.reshape(3 * nodes, size, 3 * nodes, size)
        flat = _sum("aibj,imjn->ambn", self.exchange.square, flat)
        rows = flat.reshape(-1, nodes, size, flat.shape[0] // nodes, nodes, size)
        if self._exchanges_last:
            return rows
        sums = jnp.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], rows.dtype)
        return _sum("xa,apibqj,yb->xpiyqj", sums, self._after_step(rows), sums)

    def _after_step(self, rows: Array) -> Array:
        """Moments after a gradient step of the first rows of each peer."""
        mean = self.round_maps.mean
        every = jnp.arange(len(self.round_maps.mean))
        own_moments = rows[0, every, :, 0, every].reshape(len(mean), -1)
        noise = _sum("pij,pj->pi", self.round_maps.spread, own_moments).reshape(mean.shape)
        rows = rows.at[0].set(_sum("pij,pjbql->pibql", mean, rows[0]))
        rows = rows.at[:, :, :, 0].set(_sum("qlm,apiqm->apiql", mean, rows[:, :, :, 0]))
        return rows.at[0, every, :, 0, every].add(noise)


class SteadyState(NamedTuple):
    """Steady-state moments of the models, as errors ``w_p - reference``."""

    mean: Array  # [P, D]  of the errors: the bias
    covariance: Array  # [P, D, P, D]  of the errors
    law: Array  # [P]  the weights q of the centroid

    @property
    def centroid(self) -> Float[Array, ""]:
        r""":math:`E\|w_c-w^o\|^2` with :math:`w_c=\sum_pq_pw_p`: (2.73), (3.64), (4.64)."""
        bias = _sum("p,pi->i", self.law, self.mean)
        spread = _sum("p,piqi,q->", self.law, self.covariance, self.law)
        return jnp.sum(bias**2) + spread

    @property
    def individual(self) -> Float[Array, ""]:
        r""":math:`\tfrac1P\sum_pE\|w_p-w^o\|^2`: (3.65), (4.65)."""
        total = jnp.sum(self.mean**2) + _sum("pipi->", self.covariance)
        return total / len(self.mean)

    @property
    def disagreement(self) -> Float[Array, ""]:
        r""":math:`\tfrac1P\sum_pE\|w_p-w_c\|^2`, (3.31)."""
        nodes = len(self.mean)
        from_centroid = jnp.eye(nodes, dtype=self.law.dtype) - jnp.broadcast_to(
            self.law[None], (nodes,) * 2
        )
        bias = _dot(from_centroid, self.mean)
        return (
            jnp.sum(bias**2) + _sum("pq,qiri,pr->", from_centroid, self.covariance, from_centroid)
        ) / nodes


class Curves(NamedTuple):
    """Deviations as in :class:`SteadyState`, after every round."""

    centroid: Array  # [T]
    individual: Array  # [T]
    disagreement: Array  # [T]


def _recursion(
    simulation: Simulation, reference: Array | None
) -> tuple[_Recursion | _Asynchronous, Array, Array]:
    """The recursion of a simulation, the weights of the centroid and the reference of errors."""
    problem, algorithm, network = (
        getattr(simulation, name) for name in ("problem", "algorithm", "network")
    )
    if not isinstance(problem, Problem):
        raise ValueError("the data of a stream change from round to round; take a fixed problem.")
    for name in ("privacy", "delays", "compression", "attack", "aggregation"):
        if getattr(simulation, name) is not None:
            raise ValueError(f"the moments are not known with {name}=; leave it out.")
    absence, algorithm = _absence_of(simulation)
    if isinstance(algorithm, SampledDiffusion):
        if simulation.noise is not None:
            raise ValueError(
                "the moments of SampledDiffusion are not known with noise= between peers; leave it "
                "out."
            )
        if algorithm.rule != "uniform":
            raise ValueError(
                "probabilities by importance change during a run; give their final values, "
                "probability=neighbor_importance(simulation), or take the rule 'uniform'."
            )
    draws = sampling(problem, algorithm, network)
    if not isinstance(algorithm.step_size, Constant):
        raise ValueError(
            "the step size must be a number: with a schedule the map of a round changes."
        )
    reference = minimizer(problem) if reference is None else jnp.asarray(reference, problem.dtype)
    if reference.shape != (problem.dim,):
        raise ValueError(
            f"reference must be a model of shape {(problem.dim,)}, got {reference.shape}."
        )
    checks.finite("reference", reference)
    noises = simulation.noise, simulation.upload_noise
    recursion, weights = _build_recursion(
        problem, algorithm, network, *noises, draws, reference, absence
    )
    return recursion, weights, reference


@module
class _Absence:
    """Probabilities that clients are available and that links between peers work."""

    probability: Any  # [K]
    working: Any = 1.0
    symmetric: bool = static(default=True)


def _absence_of(simulation: Simulation) -> tuple[_Absence | None, Algorithm]:
    """Absence in a simulation, and its algorithm without a selector that draws clients
    independently.
    """
    # First refuse everything whose moments are unknown, then combine the two kinds of absence: a
    # client that is available and drawn independently is present with the product probability.
    algorithm, pattern, losses = (
        getattr(simulation, name) for name in ("algorithm", "participation", "losses")
    )
    if not isinstance(pattern, Always | Bernoulli | None):
        raise ValueError(
            f"the moments are not known with participation={type(pattern).__name__}, which depends "
            "on earlier rounds; take fljax.participation.Bernoulli."
        )
    if not isinstance(losses, Independent | None):
        raise ValueError(
            f"the moments are not known with losses={type(losses).__name__}; take "
            "fljax.link.Independent."
        )
    selector = getattr(algorithm, "selector", None)
    chosen = isinstance(selector, Fraction)
    if losses is None and not chosen and not isinstance(pattern, Bernoulli):
        return None, algorithm
    peers = isinstance(algorithm, PEERS)
    if isinstance(algorithm, SampledDiffusion):
        raise ValueError(
            "the moments of SampledDiffusion are not known with losses=, participation= or a "
            "selector; leave them out."
        )
    if peers and sum(combination is not None for combination in algorithm.combinations) > 1:
        raise ValueError(
            "the moments with absent peers or lost links are known for one exchange per round only."
        )
    if peers and simulation.noise is not None:
        raise ValueError(
            "the moments of noise between peers are known only if all peers participate and no "
            "link fails."
        )
    if not peers and losses is not None:
        raise ValueError(
            "the moments with losses= are known for peers only; for clients of a server take "
            "participation=."
        )
    algorithm = replace(algorithm, selector=None) if chosen else algorithm
    if not peers and not isinstance(getattr(algorithm, "selection", None), Everyone):
        raise ValueError(
            "the distribution of participants drawn from the available clients is not known here; "
            "let all available clients take part, or draw them by fljax.participation.Fraction."
        )
    problem = simulation.fixed_problem
    if isinstance(algorithm, FedAvg) and (weights := algorithm.weights(problem)) is not None:
        checks.check_when_concrete(_check_equal_weights, weights)
    probability = jnp.ones(problem.clients, problem.dtype)
    for share in (getattr(pattern, "probability", 1.0), selector.fraction if chosen else 1.0):
        probability = probability * jnp.asarray(share, problem.dtype)
    checks.interval("the probability of taking part", probability, above=0, at_most=1)
    if losses is None:
        return _Absence(probability), algorithm
    return _Absence(probability, 1 - losses.probability, losses.symmetric), algorithm


@jax.jit
def _build_recursion(
    problem: Problem,
    algorithm: Any,
    network: Any,
    noise: Noise | None,
    upload_noise: UploadNoise | None,
    draws: DrawMoments,
    reference: Array,
    absence: _Absence | None,
) -> tuple[_Recursion | _Asynchronous, Array]:
    """Return the recursion of the moments, and the weights of the centroid.

    With neighbors that are drawn, absent peers or lost links, the last messages of the neighbors
    are a part of the state: :class:`_Asynchronous`.
    """
    affine_gradient(problem)  # raises where the moments are not exact
    layout = _layout(problem, algorithm, network)
    step = jnp.asarray(algorithm.step_size.value, problem.dtype)
    centroid_weights = jnp.asarray(layout.centroid_weights, problem.dtype)
    if isinstance(algorithm, SampledDiffusion):
        round_maps = _round_maps(problem, draws, layout, reference, step)
        weights, chance = (m.astype(problem.dtype) for m in _neighbor_draws(algorithm, network))
        count = jnp.asarray(algorithm.neighbors_per_round, problem.dtype)
        return _Asynchronous(round_maps, drawn_exchange(weights, chance, count)), centroid_weights
    if absence is not None and isinstance(algorithm, PEERS):
        round_maps = _round_maps(problem, draws, layout, reference, step)
        (position,) = (n for n, over in enumerate(layout.weights) if over is not None)
        weights = layout.weights[position].matrix().astype(problem.dtype)
        working = jnp.asarray(absence.working, problem.dtype)
        exchange_arguments = weights, absence.probability, working, absence.symmetric, position
        return _Asynchronous(round_maps, absence_exchange(*exchange_arguments)), centroid_weights
    if absence is None:
        round_maps = _round_maps(problem, draws, layout, reference, step)
    else:
        present = present_moments(absence.probability, layout.home)
        draws = draws._replace(within=jnp.diagonal(present.square))
        round_maps = _round_maps_with_absence(problem, draws, layout.home, present, reference, step)
    if upload_noise is not None:
        round_maps = _with_upload_noise(round_maps, upload_noise, draws, layout, step)
    identity = jnp.eye(layout.nodes, dtype=problem.dtype)

    def matrix(combination: Combination | None) -> Array:
        return identity if combination is None else combination.matrix().astype(problem.dtype)

    def left(combination: Combination | None) -> Array:
        if combination is None or noise is None:
            return jnp.zeros_like(identity)
        return noise_covariance(combination, noise, problem.dim).astype(problem.dtype)

    before, during, after = layout.weights
    recursion = _Recursion(
        round_maps,
        matrix(before),
        matrix(during),
        matrix(after),
        (left(before), left(during), left(after)),
    )
    return recursion, centroid_weights


@checked
def steady_state(
    simulation: Simulation, reference: Float[Array, " dim"] | None = None
) -> SteadyState:
    r"""Exact mean and covariance of the models in the steady state.

    With :math:`M_p` the affine map of a node's round (draws of clients, then of samples in each of
    their steps), errors :math:`\tilde w=w-w^o` of all nodes and
    :math:`\mathcal R=\mathcal W_2(\mathcal W_0-I+\mathrm{diag}EM_p)\mathcal W_1`,

    .. math::

        E\tilde w&=\mathcal RE\tilde w+\mathcal W_2\,\mathrm{col}(Em_p) \\
        \mathrm{Cov}\,\tilde w&=\mathcal R\,\mathrm{Cov}\,\tilde w\,\mathcal R^\top+N+
        \mathcal W_2\,\mathrm{diag}\big(\mathrm{Cov}(M_p\tilde\phi_p|\tilde\phi_p)\big)
        \mathcal W_2^\top,

    the last term being the covariance over the draws of the nodes, which grows with their own
    second moments: the :math:`\beta_s^2` of the source, without a bound. Approximate only for
    :class:`~fljax.algorithms.ISFedAvg`, whose systematic draws are modeled approximately
    (:class:`DrawMoments`) and whose probabilities change with the models unless its rule is
    ``"optimal"``.

    Args:
      simulation: a simulation of an algorithm supported by :func:`sampling`, with a constant step
        size, with or without noise between peers or on uploads, and with no other stages. Its
        problem has a squared loss and a squared regularizer, or none.
      reference: the reference of the errors, ``[D]``; the minimizer of the problem by default.

    Returns:
      The steady state; covariances are infinite if the recursion has no steady state in the mean
      square, or is so close to instability that the iteration does not converge. If it has none in
      the mean either, both are infinite.

    Raises:
      TypeError, ValueError: an unsupported simulation.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     fl.algorithms.ATC(0.02, batches=fl.batches.Uniform(1)),
      ...     fl.graphs.ring(6),
      ...     noise=fl.link.GraphHomomorphic(0.01),
      ... )
      >>> state = steady_state(simulation)
      >>> bool(state.centroid < state.individual)
      True
    """
    recursion, weights, _ = _recursion(simulation, reference)
    mean, covariance = _fixed_point(recursion)
    return _model_moments(mean, covariance, weights, simulation.problem.dim)


def _model_moments(mean: Array, covariance: Array, weights: Array, dim: int) -> SteadyState:
    """The moments of the models, which are the first ones."""
    nodes = len(weights)
    size = len(weights) * dim
    covariance = covariance[:size, :size].reshape(nodes, dim, nodes, dim)
    return SteadyState(mean[:size].reshape(nodes, dim), covariance, weights)


@jax.jit
def _fixed_point(recursion: _Recursion | _Asynchronous) -> tuple[Array, Array]:
    """The fixed point, by sweeps that solve for all terms except the covariance of the draws."""
    matrix = recursion.matrix
    power = jax.lax.fori_loop(0, 60, lambda _, power: _dot(power, power), matrix)
    mean = solved(jnp.eye(len(matrix), dtype=matrix.dtype) - matrix, recursion.offset)
    mean = jnp.where(_vanishes(power), mean, jnp.inf)
    added = recursion.added

    def sweep(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        iteration, covariance, _ = carry
        new = _lyapunov(matrix, added + recursion.drawn(mean, covariance))
        size = jnp.trace(new)
        change = jnp.abs(size - jnp.trace(covariance)) / jnp.where(size == 0, 1, size)
        return iteration + 1, new, change

    def continues(carry: tuple[Array, Array, Array]) -> Array:
        iteration, covariance, change = carry
        small = 8 * jnp.finfo(matrix.dtype).eps
        return (iteration < MOST_SWEEPS) & (change > small) & jnp.all(jnp.isfinite(covariance))

    start = (jnp.int32(0), jnp.zeros_like(matrix), jnp.asarray(jnp.inf, matrix.dtype))
    iteration, covariance, _ = jax.lax.while_loop(continues, sweep, start)
    converged = (iteration < MOST_SWEEPS) & jnp.all(jnp.isfinite(covariance))
    return mean, jnp.where(converged, covariance, jnp.inf)


def _neighbor_draws(algorithm: SampledDiffusion, network: Graph) -> tuple[Array, Array]:
    """The weights and the probabilities of a draw, ``[P, P]`` each."""
    weights = network.mixing(algorithm.mixing).matrix()
    if algorithm.probability is not None:
        return weights, jnp.asarray(algorithm.probability)
    hears = (weights * (1 - jnp.eye(len(weights), dtype=weights.dtype)) > 0).astype(weights.dtype)
    total = jnp.sum(hears, axis=1, keepdims=True)
    return weights, hears / jnp.where(total > 0, total, 1)


@checked
def neighbor_importance(simulation: Simulation, turns: int = 4) -> Float[Array, "nodes nodes"]:
    r"""Optimal probabilities with which peers draw the neighbors that they receive from.

    .. math:: p_{kl}\propto a_{lk}\sqrt{E\|\psi_l-\psi_k\|^2},

    which minimizes the contribution of the draws to :math:`E\|w_k\|^2` in a round
    (:class:`~fljax.algorithms.SampledDiffusion`), with the moments of the steady state. As these
    depend on the probabilities, a few iterations are made from uniform ones. It is optimal for a
    single round and each peer separately, not for the effect of a round on later ones.

    Args:
      simulation: a simulation of sampled diffusion, as for :func:`steady_state`; its probabilities
        do not matter.
      turns: number of iterations, each from probabilities to moments and back.

    Returns:
      ``[P, P]``, with rows of sum one.

    Raises:
      TypeError, ValueError: as for :func:`steady_state`; an unsupported algorithm.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     fl.algorithms.SampledDiffusion(0.02),
      ...     fl.graphs.complete(6),
      ... )
      >>> probability = neighbor_importance(simulation)
      >>> bool((abs(probability.sum(1) - 1) < 1e-5).all())
      True
    """
    checks.count("turns", turns)
    if not isinstance(simulation.algorithm, SampledDiffusion):
        raise TypeError(
            f"neighbors are drawn by SampledDiffusion, got {checks.shown(simulation.algorithm)}."
        )
    network = simulation.network
    assert isinstance(network, Graph)  # as the algorithm needs it
    algorithm = replace(simulation.algorithm, rule="uniform", probability=None)
    for _ in range(turns):
        recursion, *_ = _recursion(replace(simulation, algorithm=algorithm), None)
        weights, chance = _neighbor_draws(algorithm, network)
        assert isinstance(recursion, _Asynchronous)
        distances = jnp.maximum(recursion.distances(*_fixed_point(recursion)), 0)
        share = jnp.where(chance > 0, weights * jnp.sqrt(distances), 0)
        total = jnp.sum(share, axis=1, keepdims=True)
        best = jnp.where(total > 0, share / jnp.where(total > 0, total, 1), chance)
        algorithm = replace(algorithm, probability=best)
    assert algorithm.probability is not None  # there is one turn at least
    return jnp.asarray(algorithm.probability)


@checked
def learning_curve(
    simulation: Simulation, rounds: int, reference: Float[Array, " dim"] | None = None
) -> Curves:
    """Exact mean-square deviations after each round, from the start of the simulation.

    Args:
      simulation: as for :func:`steady_state`.
      rounds: ``T``.
      reference: as for :func:`steady_state`.

    Raises: as for :func:`steady_state`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     algorithm=fl.algorithms.ATC(0.1),
      ...     network=fl.graphs.ring(6),
      ...     noise=fl.link.PerEdge(0.01),
      ... )
      >>> curve = fl.theory.multiagent.learning_curve(simulation, rounds=50).centroid
      >>> curve.shape, bool(curve[-1] < 0.01 * curve[0])
      ((50,), True)
    """
    checks.count("rounds", rounds)
    recursion, weights, reference = _recursion(simulation, reference)
    problem = simulation.problem
    nodes = len(weights)
    start = start_models(problem)
    if not isinstance(simulation.algorithm, PEERS):
        start = jnp.broadcast_to(server_start(problem)[None], (nodes, problem.dim))
    return _iterate_moments(recursion, weights, start - reference[None], rounds=rounds)


@functools.partial(jax.jit, static_argnames="rounds")
def _iterate_moments(
    recursion: _Recursion | _Asynchronous, weights: Array, start: Array, rounds: int
) -> Curves:
    matrix = recursion.matrix
    offset = recursion.offset
    added = recursion.added

    def one_round(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Curves]:
        mean, covariance = carry
        spread = _dot(_dot(matrix, covariance), matrix.T)
        covariance = spread + added + recursion.drawn(mean, covariance)
        mean = _dot(matrix, mean) + offset
        now = _model_moments(mean, covariance, weights, start.shape[1])
        curves = Curves(now.centroid, now.individual, now.disagreement)
        # Where the moments overflow, their differences are NaN: report infinity.
        return (mean, covariance), Curves(*(jnp.where(v < jnp.inf, v, jnp.inf) for v in curves))

    # Before the first round the last message of a peer is its initial model.
    mean = jnp.tile(start.reshape(-1), len(matrix) // start.size)
    return jax.lax.scan(one_round, (mean, jnp.zeros_like(matrix)), length=rounds)[1]


# --------------------------------------------------------------------------- stability


@checked
def stable_step(simulation: Simulation, sense: Sense = "mean", digits: int = 4) -> float:
    r"""The largest step size for which the simulated algorithm is stable.

    In the mean (the only criterion for full gradients and full participation) it is the step size
    at which the spectral radius of :math:`\mathcal R` reaches one, see :func:`steady_state`; in the
    mean square it is the one at which that of the recursion of covariances does, which small
    batches make smaller. Additive noise changes neither: neither :math:`\sigma_g^2` nor that of the
    targets makes a squared loss diverge, as sections 2.6.3, 2.6.4 and 3.5.1 have it.

    For one Hessian :math:`H` and symmetric weights CTA and ATC are stable up to
    :math:`2/\lambda_{\max}(H)`, like a single client, consensus up to
    :math:`(1+\lambda_{\min}(A))/\lambda_{\max}(H)` only.

    Args:
      simulation: as for :func:`steady_state`; its step size does not matter.
      sense: ``"mean"`` or ``"mean square"``.
      digits: number of correct digits of the result.

    Raises:
      TypeError, ValueError: as for :func:`steady_state`; a traced simulation.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> consensus = fl.Simulation(problem, fl.algorithms.Consensus(0.1), fl.graphs.ring(6))
      >>> bool(stable_step(consensus) < 2 / jnp.linalg.eigvalsh(hessian(problem))[-1])
      True
    """
    checks.choice("sense", sense, SENSES)
    checks.count("digits", digits)
    if not all(checks.is_concrete(leaf) for leaf in jax.tree.leaves(simulation)):
        raise TypeError("stable_step searches with numbers and cannot be traced; call it outside.")

    @jax.jit
    def of(step: Array) -> _Recursion | _Asynchronous:
        algorithm = replace(simulation.algorithm, step_size=Constant(step))
        return _recursion(replace(simulation, algorithm=algorithm), None)[0]

    def stable(step: float) -> bool:
        recursion = of(jnp.asarray(step, simulation.problem.dtype))
        if sense == "mean":
            matrix = np.asarray(recursion.matrix, np.float64)
            return bool(np.abs(np.linalg.eigvals(matrix)).max() < 1)
        return bool(_growth(recursion) < 1)

    # Where the data leave a direction open no step makes models contract, and this raises.
    minimizer(simulation.fixed_problem)
    low = 0.0
    high = float(2 / jnp.max(jnp.linalg.eigvalsh(hessian(simulation.fixed_problem))))
    while stable(high):
        low = high
        high = 2 * high
    while high - low > 10.0**-digits * high:
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


@jax.jit
def _growth(recursion: _Recursion | _Asynchronous) -> Array:
    """The spectral radius of the recursion of covariances, by power iteration, which stays
    positive.
    """
    matrix = recursion.matrix
    zero = jnp.zeros_like(matrix)
    mean = jnp.zeros(len(matrix), matrix.dtype)
    constant = recursion.drawn(mean, zero)

    def multiply(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        covariance, _ = carry
        new = _dot(_dot(matrix, covariance), matrix.T)
        new = new + recursion.drawn(mean, covariance) - constant
        size = jnp.trace(new)
        return new / jnp.where(size > 0, size, 1), size

    start = jnp.eye(len(matrix), dtype=matrix.dtype) / len(matrix)
    return jax.lax.fori_loop(0, POWERS, multiply, (start, jnp.ones((), matrix.dtype)))[1]


@checked
def crossover(
    simulation: Simulation,
    one: Noise,
    other: Noise,
    between: tuple[float, float],
    digits: int = 3,
) -> float:
    """The step size at which the individual deviations under two kinds of noise are equal.

    Homomorphic noise causes less deviation in individual models than independent noise on every
    edge at small step sizes, where the latter moves the centroid, and more at large ones, since it
    is subtracted at its sender: sections 3.5.1 and 4.4.1 state only the former.

    Args:
      simulation: as for :func:`steady_state`; its step size and noise do not matter.
      one: the first noise.
      other: the second noise.
      between: two step sizes at which different noises are better.
      digits: number of correct digits of the result.

    Raises:
      TypeError, ValueError: as for :func:`steady_state`; step sizes at which the same noise is
        better.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     algorithm=fl.algorithms.ATC(0.1),
      ...     network=fl.graphs.ring(6),
      ... )
      >>> homomorphic, independent = fl.link.GraphHomomorphic(1.0), fl.link.PerEdge(1.0)
      >>> step = fl.theory.multiagent.crossover(
      ...     simulation, homomorphic, independent, between=(0.001, 0.4)
      ... )
      >>> 0.01 < step < 0.03
      True
    """
    checks.count("digits", digits)
    checks.positive("between", between)
    minimizer(simulation.fixed_problem)  # raises where the data do not determine it

    @jax.jit
    def gap(step: Array) -> Array:
        algorithm = replace(simulation.algorithm, step_size=Constant(step))
        crossings = [
            steady_state(replace(simulation, algorithm=algorithm, noise=noise)).individual
            for noise in (one, other)
        ]
        return crossings[0] - crossings[1]

    def sign(step: float) -> bool:
        return bool(gap(jnp.asarray(step, simulation.problem.dtype)) > 0)

    low, high = between
    below = sign(low)
    if sign(high) == below:
        raise ValueError(
            f"the same noise has the smaller error at both step sizes, {low:g} and {high:g}; take "
            "others."
        )
    while high / low > 1 + 10.0**-digits:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if sign(middle) == below else (low, middle)
    return low
