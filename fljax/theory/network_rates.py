r"""Rates of convergence of models that are coupled over a graph (Jung 2025).

For a squared loss GTVMin is :math:`w^\top Qw+q^\top w` (103) with
:math:`Q=\mathrm{blkdiag}(Q^{(k)})+\alpha L\otimes I`, and its gradient steps :math:`w-\eta(2Qw+q)`
(104), as in FedGD, contract at a rate given by the extreme eigenvalues of :math:`Q`.
These are

* computed exactly by :func:`extremes` (on the host, matrix-free if it is large) and by
  :func:`excited` in the subspace that a start reaches: they give the stable step sizes, the best
  one, and the contraction factor of any; :func:`fedrelax_rate` is the analogous rate of FedRelax;
* bounded by Propositions 5.1 and 5.2 (:func:`largest_bound`, :func:`smallest_bound`), which are
  traceable; the second is loose by orders of magnitude: they give a safe step size but do not
  predict the rate.

The other functions are consequences of contraction: the number of steps, the effect of
perturbations, and the cost of asynchrony. Lines refer to the book's text; ``ERR`` numbers refer
to repairs of printed formulas.

Shapes: ``K`` clients (nodes), ``D`` parameters, ``T`` steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax.graphs import Graph
from fljax.optimization.descent import Extremes
from fljax.problems import Problem
from fljax.problems.solvers import strong_convexity
from fljax.theory import gtvmin_theory
from fljax.theory.multiagent import affine_gradient

__all__ = [
    "AsynchronousRates",
    "LargestBound",
    "asynchronous_bound",
    "consensus_extremes",
    "excited",
    "extremes",
    "fedrelax_factors",
    "fedrelax_rate",
    "largest_bound",
    "perturbed_bound",
    "prox_factor",
    "smallest_bound",
]

#: Up to this many variables, clients times parameters, spectra are computed from a dense matrix.
DENSE_UP_TO = 1000

#: For more variables, the relative accuracy of an eigenvalue, and the limit of Lanczos iterations.
TOLERANCE = 1e-10
RESTARTS = 10_000

#: Lanczos vectors that are kept between restarts: enough for clustered extreme eigenvalues.
BASIS = 60


# --------------------------------------------------------------------------- gradient steps


@checked
def extremes(problem: Problem, network: Graph, coupling: Float[Array, "*dim"] | float) -> Extremes:
    r"""The extreme eigenvalues of :math:`Q=\mathrm{blkdiag}(Q^{(k)})+\alpha L\otimes I`, (103).

    FedGD with a step size :math:`\eta` converges if :math:`\eta` is below their
    :attr:`~fljax.descent.Extremes.step_limit`, from any start at least by their
    :meth:`~fljax.descent.Extremes.factor` per round. Computed on the host, for more than a thousand
    variables by Lanczos's method, which only multiplies by :math:`Q`. The smaller one is zero if
    the solution is not unique, that is, if the clients of some component of the graph do not
    together determine a model.

    Args:
      problem: a problem with a squared loss, and a squared regularizer or none.
      network: the graph of its clients; it may be disconnected.
      coupling: :math:`\alpha\ge0`, one number or one per parameter, ``[D]``.

    Raises:
      TypeError: traced arguments.
      ValueError: an unsupported problem, a network that does not match the clients, a negative
        coupling; a problem too ill-conditioned for the smaller eigenvalue to be computed.

    Example:
      >>> import numpy as np, fljax as fl
      >>> data = np.sqrt([[[1.0]], [[1000.0]]])  # Exercise 5.1
      >>> problem = fl.problems.Problem(data, -5 * data[..., 0], fl.problems.LeastSquares())
      >>> for coupling in (0.0, 100.0, 700.0):
      ...     found = extremes(problem, fl.graphs.path(2), coupling)
      ...     print(round(float(found.factor(0.5e-3)), 4))
      0.999
      0.9089
      1.0604
    """
    matrix = _system(problem, network, coupling)
    if matrix.size <= DENSE_UP_TO:
        values = np.linalg.eigvalsh(matrix.dense())
        return _extremes(values[0], values[-1])
    largest = _lanczos(matrix.product, matrix.size, "LA")
    # The smallest by its distance from the largest: a zero has no relative accuracy.
    missing = _lanczos(lambda x: largest * x - matrix.product(x), matrix.size, "LA")
    return _extremes(largest - missing, largest)


@checked
def excited(
    problem: Problem,
    network: Graph,
    coupling: Float[Array, "*dim"] | float,
    start: Float[Array, "clients dim"],
) -> Extremes:
    r"""The extreme eigenvalues of :math:`Q` among those excited by the error of a given start.

    The rates (80) to (84) for all starts may be far from the observed one: in Exercise 5.2 the
    start has the mean of the solution, and its error has no component of the smallest eigenvalue,
    so that more coupling does not slow it down. The factors here are attained by gradient steps
    from this start in exact arithmetic; rounding eventually excites the other directions, which
    dominate if they are slower.

    Args:
      problem: as for :func:`extremes`, with a unique solution and at most a thousand variables
        (clients times parameters: all eigenvectors are computed).
      network: the graph of its clients.
      coupling: as for :func:`extremes`.
      start: the models of the first round, ``[K, D]``.

    Raises:
      TypeError, ValueError: as for :func:`extremes`; too many variables, a solution that is not
        unique, a start at the solution.

    Example:
      A start with the mean of the solution does not excite the eigenvalue 1:

      >>> import jax.numpy as jnp, fljax as fl
      >>> targets = jnp.array([[-1.0], [1.0]])
      >>> problem = fl.problems.Problem(jnp.ones((2, 1, 1)), targets, fl.problems.LeastSquares())
      >>> rates, graph = fl.theory.network_rates, fl.graphs.path(2)
      >>> [round(float(end), 3) for end in rates.extremes(problem, graph, 10.0)]
      [1.0, 21.0]
      >>> [round(float(end), 3) for end in rates.excited(problem, graph, 10.0, jnp.zeros((2, 1)))]
      [21.0, 21.0]
    """
    matrix = _system(problem, network, coupling)
    if matrix.size > DENSE_UP_TO:
        raise ValueError(
            f"the directions of a start are found for {DENSE_UP_TO} numbers (clients times "
            f"parameters) at most, got {matrix.size}; extremes() holds for all starts."
        )
    if np.shape(start) != (problem.clients, problem.dim):
        raise ValueError(
            f"start must be models of shape {(problem.clients, problem.dim)}, got shape "
            f"{np.shape(start)}."
        )
    values, vectors = np.linalg.eigh(matrix.dense())
    if _extremes(values[0], values[-1]).smallest == 0:
        raise ValueError(
            "the solution is not unique, and so is no start's error; give a graph whose components "
            "each determine a model, or a squared regularizer."
        )
    models = np.asarray(start, np.float64).ravel()
    right = np.asarray(affine_gradient(problem)[1], np.float64).ravel() / 2
    # The size that rounding leaves of a direction that is not there.
    scale = np.linalg.norm(models) + np.linalg.norm(right) / values[0]
    components = np.abs(vectors.T @ models - (vectors.T @ right) / values)
    excited_modes = components > 1e-12 * scale
    if not np.any(excited_modes):
        raise ValueError("the start is the solution: no direction is left to contract.")
    return _extremes(values[excited_modes][0], values[excited_modes][-1])


@checked
def consensus_extremes(network: Graph) -> Extremes:
    r"""The extreme eigenvalues of :math:`L/2` on differences, for averaging :math:`u-\eta Lu`
    (Exercise 4.4).

    Averaging preserves the mean, and for :math:`0<\eta<2/\lambda_n` contracts everything else by
    ``factor(step)``; the best factor is :math:`\frac{\lambda_n-\lambda_2}{\lambda_n+\lambda_2}` at
    :math:`2/(\lambda_2+\lambda_n)`. Traceable.

    Args:
      network: a graph of two nodes or more; if it is disconnected, the smaller eigenvalue is zero.

    Raises:
      ValueError: a network of one node.

    Example:
      >>> import fljax as fl
      >>> extremes = consensus_extremes(fl.graphs.star(3))  # of eigenvalues 0, 1, 3
      >>> float(extremes.best_step), float(extremes.best_factor)
      (0.5, 0.5)
    """
    if network.nodes < 2:
        raise ValueError("the connectivity of a network needs at least two nodes, got one.")
    return _consensus_extremes(network)


@jax.jit
def _consensus_extremes(network: Graph) -> Extremes:
    values = jnp.linalg.eigvalsh(network.laplacian_matrix())
    return Extremes(jnp.where(network.connected(), values[1], 0) / 2, values[-1] / 2)


class LargestBound(NamedTuple):
    """The bounds of Proposition 5.1."""

    spectral: Array  # []  by the Laplacian's largest eigenvalue
    degree: Array  # []  by the largest degree, U


@checked
def largest_bound(
    problem: Problem, network: Graph, coupling: Float[Array, "*dim"] | float
) -> LargestBound:
    r"""Upper bound on the eigenvalues of :math:`Q`, Proposition 5.1, (106).

    .. math:: \lambda_j(Q)\le\lambda_{\max}+\alpha\lambda_n(L)\le\lambda_{\max}+2\alpha\max_kd_k=:U

    so that FedGD converges with step sizes below :math:`1/U`, and :math:`1/(2U)` is a safe choice.
    The line of its proof that replaces the sum of the two terms by the *larger* one, (135), is
    wrong. Traceable.

    Args:
      problem: a problem with a squared loss, and a squared regularizer or none.
      network: the graph of its clients.
      coupling: :math:`\alpha\ge0`, one number or one per parameter, ``[D]``, whose largest
        is used.

    Raises:
      ValueError: an unsupported problem, a network that does not match the clients, a negative
        coupling.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> rates, graph = fl.theory.network_rates, fl.graphs.star(6)
      >>> bound = rates.largest_bound(problem, graph, 1.0)
      >>> found = rates.extremes(problem, graph, 1.0)
      >>> bool(found.largest <= bound.spectral <= bound.degree)
      True
    """
    gtvmin_theory.check_network(problem, network)
    return _largest_bound(problem, network, gtvmin_theory.coupling_of(problem, coupling))


@jax.jit
def _largest_bound(problem: Problem, network: Graph, coupling: Array) -> LargestBound:
    curvatures = gtvmin_theory.curvature(problem)
    most = jnp.max(coupling)
    spectral = jnp.linalg.eigvalsh(network.laplacian_matrix())[-1]
    bound = gtvmin_theory.laplacian_bound(network)
    return LargestBound(curvatures.largest + most * spectral, curvatures.largest + most * bound)


@checked
def smallest_bound(
    problem: Problem, network: Graph, coupling: Float[Array, "*dim"] | float
) -> Float[Array, ""]:
    r"""Lower bound on the eigenvalues of :math:`Q`, Proposition 5.2, (107).

    .. math:: \lambda_1(Q)\ge\frac1{1+\rho^2}\min\{\lambda_2(L)\alpha\rho^2,\bar\lambda_{\min}/2\},
        \qquad\rho=\bar\lambda_{\min}/(4\lambda_{\max})

    with (105), :func:`fljax.theory.networks.curvature`. On random instances its median is half a
    percent of the eigenvalue: it proves convergence but does not predict the rate. Zero, which is
    vacuous, if the graph is disconnected or the clients together do not determine a model.
    Traceable.

    Args: as for :func:`largest_bound`; of several couplings the smallest is used.

    Raises:
      ValueError: as for that function.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> rates, graph = fl.theory.network_rates, fl.graphs.star(6)
      >>> bound = rates.smallest_bound(problem, graph, 1.0)
      >>> bool(0 < bound <= rates.extremes(problem, graph, 1.0).smallest)
      True
    """
    gtvmin_theory.check_network(problem, network)
    return _smallest_bound(problem, network, gtvmin_theory.coupling_of(problem, coupling))


@jax.jit
def _smallest_bound(problem: Problem, network: Graph, coupling: Array) -> Array:
    curvatures = gtvmin_theory.curvature(problem)
    ratio = curvatures.pooled / (4 * curvatures.largest)
    bound = gtvmin_theory.connectivity(network) * jnp.min(coupling) * ratio**2
    return jnp.minimum(bound, curvatures.pooled / 2) / (1 + ratio**2)


# --------------------------------------------------------------------------- FedRelax


@checked
def prox_factor(
    convexity: Float[Array, "*clients"] | float, weight: Float[Array, "*clients"] | float
) -> Float[Array, "*clients"]:
    r"""Contraction factor of a proximal operator, :math:`\frac1{1+\sigma/\rho}`, (174).

    :math:`\|\mathrm{prox}_{L,\rho}(u)-\mathrm{prox}_{L,\rho}(v)\|` is at most that times
    :math:`\|u-v\|`, (173), for a :math:`\sigma`-strongly convex :math:`L`; this is attained. In
    FedRelax :math:`\rho=2\alpha d_k`, (172). Zero for :math:`\rho=0` (received messages have no
    effect), and one for :math:`\sigma=0`.

    Args:
      convexity: :math:`\sigma\ge0`.
      weight: :math:`\rho\ge0`.

    Raises:
      ValueError: a negative number.

    Example:
      >>> float(prox_factor(2.0, 6.0))
      0.75
    """
    checks.nonnegative("convexity", convexity)
    checks.nonnegative("weight", weight)
    convexity, weight = jnp.broadcast_arrays(jnp.asarray(convexity), jnp.asarray(weight))
    total = convexity + weight
    return jnp.where(convexity > 0, weight / jnp.where(total > 0, total, 1), 1)


@checked
def fedrelax_factors(
    problem: Problem, network: Graph, coupling: Float[Array, ""] | float
) -> Float[Array, " clients"]:
    r"""Contraction factors of FedRelax, :math:`\kappa_k=1/(1+\sigma_k/(2\alpha d_k))` per client,
    (131)-(133).

    A round of FedRelax reduces the *largest* distance of a client from its solution at least by the
    largest of these factors (the source keeps the index): a pseudo-contraction in the norm
    :math:`\max_k\|w_k\|`, which the analysis of asynchronous rounds requires. Here
    :math:`\sigma_k=2\lambda_1(Q^{(k)})`. A single client without labels, or with fewer samples than
    parameters, makes the largest factor one, which is vacuous; :func:`fedrelax_rate` is the rate
    itself. Traceable.

    Args:
      problem: a problem with a squared loss, and a squared regularizer or none.
      network: the graph of its clients.
      coupling: :math:`\alpha\ge0`.

    Raises:
      ValueError: an unsupported problem, a network that does not match the clients, a negative
        coupling.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> targets = jnp.array([[-1.0], [1.0]])
      >>> problem = fl.problems.Problem(jnp.ones((2, 1, 1)), targets, fl.problems.LeastSquares())
      >>> fl.theory.network_rates.fedrelax_factors(problem, fl.graphs.path(2), 1.0).tolist()
      [0.5, 0.5]
    """
    gtvmin_theory.check_network(problem, network)
    checks.nonnegative("coupling", coupling)
    convexity = 2 * gtvmin_theory.curvature(problem).least
    weight = 2 * jnp.asarray(coupling, problem.dtype) * jnp.asarray(network.degree)
    return prox_factor(convexity, weight)


@checked
def fedrelax_rate(
    problem: Problem, network: Graph, coupling: Float[Array, "*dim"] | float
) -> float:
    r"""The spectral radius of FedRelax: the asymptotic factor of its errors per round.

    Its rounds are the block Jacobi iteration :math:`w\leftarrow D^{-1}(\alpha(A\otimes I)w-q/2)`
    with :math:`D=\mathrm{blkdiag}(Q^{(k)}+\alpha d_kI)`, whose matrix is similar to a symmetric
    one. Below one whenever the solution is unique; :func:`fedrelax_factors` bounds it. Computed on
    the host.

    Args: as for :func:`extremes`.

    Raises:
      TypeError: traced arguments.
      ValueError: as for :func:`extremes`; a client whose update is not unique, since it has too few
        samples and no neighbor to be coupled to.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> targets = jnp.array([[-1.0], [1.0]])
      >>> problem = fl.problems.Problem(jnp.ones((2, 1, 1)), targets, fl.problems.LeastSquares())
      >>> round(fl.theory.network_rates.fedrelax_rate(problem, fl.graphs.path(2), 3.0), 4)
      0.75
    """
    matrix = _system(problem, network, coupling)
    degree = np.asarray(network.degree, np.float64)
    strength = matrix.coupling
    blocks = matrix.blocks() + (degree[:, None] * strength)[:, :, None] * np.eye(problem.dim)
    values, vectors = np.linalg.eigh(blocks)
    singular = values[:, 0] <= 1e-13 * values[:, -1]
    if np.any(singular):
        raise ValueError(
            f"FedRelax's update of client {int(np.argmax(singular))} is not unique: it has fewer "
            "samples than parameters and no coupled neighbor; add an edge, or a regularizer."
        )
    root = np.einsum("kij,kj,klj->kil", vectors, 1 / np.sqrt(values), vectors)

    def product(flat: np.ndarray) -> np.ndarray:
        models = np.matmul(root, flat.reshape(-1, problem.dim, 1))[..., 0]
        models = strength * (matrix.adjacency @ models)
        return np.matmul(root, models[..., None]).ravel()

    if matrix.size <= DENSE_UP_TO:
        matrix_of_rounds = np.stack([product(row) for row in np.eye(matrix.size)])
        return float(
            np.max(np.abs(np.linalg.eigvalsh((matrix_of_rounds + matrix_of_rounds.T) / 2)))
        )
    return float(abs(_lanczos(product, matrix.size, "LM")))


# --------------------------------------------------------------------------- consequences


@checked
def perturbed_bound(
    factor: Float[Array, ""] | float,
    distance: Float[Array, ""] | float,
    perturbations: Float[Array, " steps"],
    printed: bool = False,
) -> Float[Array, " steps"]:
    r"""Bound on the error of perturbed gradient steps (87): (88), repaired.

    .. math:: w^{(t+1)}=w^{(t)}-\eta\nabla f(w^{(t)})+\varepsilon^{(t)}:\quad
        \|w^{(t)}-\hat w\|\le\kappa^t\|w^{(0)}-\hat w\|
        +\sum_{t'=1}^t\kappa^{t'-1}\|\varepsilon^{(t-t')}\|

    which is attained. An error in the *gradient* is multiplied by the step size; early errors are
    forgotten, so that a budget of accuracy is best spent late (Exercise 4.6). It holds for any map
    that contracts by :math:`\kappa`. Traceable.

    Args:
      factor: :math:`\kappa\ge0`.
      distance: :math:`\|w^{(0)}-\hat w\|`.
      perturbations: :math:`\|\varepsilon^{(0)}\|,\dots,\|\varepsilon^{(T-1)}\|`, ``[T]``.
      printed: whether to use :math:`\kappa^{t'}` as printed, which is false: for :math:`t=1` from
        the solution it gives :math:`\kappa\|\varepsilon^{(0)}\|` instead of
        :math:`\|\varepsilon^{(0)}\|`.

    Returns:
      ``[T]``, after 1, ..., T steps.

    Raises:
      ValueError: a negative number.

    Example:
      >>> import numpy as np
      >>> perturbed_bound(0.5, 4.0, np.array([1.0, 0.0, 0.0])).tolist()
      [3.0, 1.5, 0.75]
    """
    for name, value in (
        ("factor", factor),
        ("distance", distance),
        ("perturbations", perturbations),
    ):
        checks.nonnegative(name, value)
    checks.switch("printed", printed)
    sizes = jnp.asarray(perturbations, float_dtype())
    factor = jnp.asarray(factor, sizes.dtype)
    # The printed sum obeys the same recursion, each perturbation one factor smaller.
    added = factor * sizes if printed else sizes
    return _perturbed(factor, jnp.asarray(distance, sizes.dtype), added)


@jax.jit
def _perturbed(factor: Array, distance: Array, sizes: Array) -> Array:
    def step(bound: Array, size: Array) -> tuple[Array, Array]:
        bound = factor * bound + size
        return bound, bound

    return jax.lax.scan(step, distance, sizes)[1]


class AsynchronousRates(NamedTuple):
    r"""Bounds on the largest error of a client after each event, relative to that of the start."""

    bound: Array  # [T]
    floored: Array  # [T]  kappa^floor(t / (2 B + 1)), a little looser
    printed: Array  # [T]  kappa^(t / (2 B + 1)), (134): false between the floored one's steps


@checked
def asynchronous_bound(
    factor: Float[Array, ""] | float, events: int, delay: int, activity: int | None = None
) -> AsynchronousRates:
    r"""Bound for partially asynchronous rounds of a pseudo-contraction: (134), repaired.

    If a round contracts by :math:`\kappa` in the norm :math:`\max_k\|w_k\|` (for FedRelax
    :func:`fedrelax_factors`), messages are at most :math:`B` events old, and each client updates at
    least once in any :math:`C` consecutive events, then

    .. math:: \max_k\|w_k^{(t)}-\hat w_k\|\le\kappa^{\lfloor(t+B)/(B+C)\rfloor}
        \max_k\|w_k^{(0)}-\hat w_k\|.

    All clients have updated once by event :math:`C`; after :math:`B` more events no older messages
    are received, and after :math:`C` more all clients have updated from newer ones. The source has
    one :math:`B` for both, and :math:`\kappa^{t/(2B+1)}`, which fails for :math:`B\ge2`: at
    :math:`t=1` possibly no client has updated. With the exponent rounded down it holds. The windows
    of the source start at :math:`t=1`, those here at zero (otherwise subtract one event).

    Args:
      factor: :math:`\kappa`, in [0, 1].
      events: :math:`T`.
      delay: :math:`B\ge0`.
      activity: :math:`C\ge1`, by default equal to the delay, and one for no delay.

    Returns:
      Values for the events 0, ..., T, ``[T + 1]`` each; the last two use one :math:`B` for both.

    Raises:
      ValueError: numbers out of range.

    Example:
      >>> asynchronous_bound(0.5, events=6, delay=2).bound.tolist()
      [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25]
    """
    checks.interval("factor", factor, at_least=0, at_most=1)
    checks.count("events", events)
    checks.count("delay", delay, at_least=0)
    if activity is not None:
        checks.count("activity", activity)
    window = max(delay, 1) if activity is None else activity
    longest = max(delay, window) if delay or window > 1 else 0
    time = np.arange(events + 1)
    factor = jnp.asarray(factor, float_dtype())
    exponents = (
        (time + delay) // (delay + window),
        time // (2 * longest + 1),
        time / (2 * longest + 1),
    )
    return AsynchronousRates(*(factor ** jnp.asarray(e, factor.dtype) for e in exponents))


# --------------------------------------------------------------------------- the system


class _System(NamedTuple):
    r"""The matrix :math:`Q` as a product, on the host in double precision."""

    rows: np.ndarray  # [K, N, D]  of a client's samples, with the roots of their weights
    ridge: np.ndarray  # [K]  of a squared regularizer
    adjacency: Any  # [K, K]  sparse
    degree: np.ndarray  # [K]
    coupling: np.ndarray  # [D]

    @property
    def size(self) -> int:
        return self.rows.shape[0] * self.rows.shape[2]

    def blocks(self) -> np.ndarray:
        """``[K, D, D]``."""
        dim = self.rows.shape[2]
        moment = np.einsum("knd,kne->kde", self.rows, self.rows)
        return moment + self.ridge[:, None, None] * np.eye(dim)

    def product(self, flat: np.ndarray) -> np.ndarray:
        models = flat.reshape(len(self.rows), -1)
        predictions = np.matmul(self.rows, models[..., None])
        loss_part = np.matmul(np.swapaxes(self.rows, 1, 2), predictions)[..., 0]
        disagreement = self.degree[:, None] * models - self.adjacency @ models
        return (loss_part + self.ridge[:, None] * models + self.coupling * disagreement).ravel()

    def dense(self) -> np.ndarray:
        blocks = scipy.linalg.block_diag(*self.blocks())
        laplacian = np.diag(self.degree) - self.adjacency.toarray()
        return blocks + np.kron(laplacian, np.diag(self.coupling))


def _system(problem: Problem, network: Graph, coupling: Array | float) -> _System:
    gtvmin_theory.check_network(problem, network)
    strength = gtvmin_theory.coupling_of(problem, coupling)
    if not all(map(checks.is_concrete, jax.tree.leaves((problem, network, strength)))):
        raise TypeError(
            "spectra are computed on the host and cannot be traced; call it outside jit, vmap and "
            "sweeps, or bound them (largest_bound, smallest_bound)."
        )
    affine_gradient(problem)  # or refused
    weights = np.asarray(problem.weights, np.float64)
    rows = np.sqrt(weights)[..., None] * np.asarray(problem.design, np.float64)
    ridge = np.broadcast_to(np.asarray(strong_convexity(problem), np.float64) / 2, problem.clients)
    low, high = network.edges.T
    ends = (np.concatenate([low, high]), np.concatenate([high, low]))
    edge_weights = np.tile(np.asarray(network.edge_weights(), np.float64), 2)
    adjacency = scipy.sparse.csr_array((edge_weights, ends), shape=(network.nodes, network.nodes))
    degree = np.asarray(network.degree, np.float64)
    return _System(rows, ridge, adjacency, degree, np.asarray(strength, np.float64))


def _lanczos(product: Callable[[np.ndarray], np.ndarray], size: int, which: str) -> float:
    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=size)  # ARPACK's own differs from call to call
    if not np.any(product(start)):
        return 0.0
    try:
        eigenvalues = scipy.sparse.linalg.eigsh(
            operator,
            k=1,
            which=which,
            v0=start,
            ncv=min(BASIS, size - 1),
            maxiter=RESTARTS,
            tol=TOLERANCE,
            return_eigenvectors=False,
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        raise ValueError(
            "the smallest eigenvalue is too small beside the largest one to be found; bound it "
            "with smallest_bound, or add a squared regularizer."
        ) from None
    return float(eigenvalues[0])


def _extremes(smallest: float, largest: float) -> Extremes:
    """The extremes as arrays; negative values and values of the size of rounding become zero."""
    least = smallest if smallest > 1e-12 * largest else 0.0
    dtype = float_dtype()
    return Extremes(jnp.asarray(least, dtype), jnp.asarray(largest, dtype))
