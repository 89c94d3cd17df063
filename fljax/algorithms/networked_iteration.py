r"""Federated learning networks: what each node makes of its own model and its neighbors' mean.

Generalized total variation minimization (GTVMin) gives every node :math:`k` a model of its own and
pulls those of neighbors together,

.. math:: \min_{w_1,\dots,w_K}\ \sum_kf_k(w_k)+\alpha\sum_{\{k,l\}\in\mathcal E}a_{kl}\|w_k-w_l\|^2,

and its distributed algorithms are fixed-point iterations
:math:`w_k\leftarrow\mathcal F_k(w_1,\dots,w_K)` (Jung 2025, (125)-(127)) that need of the others no
more than the weighted mean of neighbors. They are one operator apart: a gradient step
(:class:`FedGD`), one along an estimate (:class:`NetworkedFedSGD`), the exact minimizer given the
neighbors (:class:`FedRelax`).

Nothing here knows of time. A node that is absent, hears old copies or loses a message
(``Simulation(participation=..., delays=..., losses=...)``) applies the same operator to what it
has, which is the asynchronous form (128)-(130): its own model is fresh, its neighbors' are the
newest that reached it.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._linalg import spd_inverse
from fljax._module import field, module, replace, static
from fljax._numerics import HIGHEST
from fljax.algorithms.base import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.local_steps import drawn
from fljax.batches import Batches, taken
from fljax.graphs import Graph, Mixing
from fljax.participation import Participants
from fljax.problems import GTVMin, Problem
from fljax.problems.solvers import factorize, is_quadratic, prox, smoothness, strong_convexity
from fljax.rounds import Round
from fljax.schedules import as_schedule
from fljax.streams import Stream

__all__ = ["FedGD", "FedRelax", "NetworkState", "NetworkedFedSGD", "NetworkedIteration"]


#: What neighbors said, weighed by edges.
NEIGHBORS = Mixing("neighbors")


class NetworkState(NamedTuple):
    """What nodes keep from round to round."""

    model: Array  # [K, D]  w_k
    heard: Array  # [K, D]  the weighted mean of what its neighbors said, as it reached k
    degree: Array  # [K]  the weights of the edges that it was heard over, summed
    kept: Any  # what the operator needs of the data again and again


class NetworkedIteration(Algorithm):
    r"""The unified form: every node applies an operator to its model and its neighbors' mean.

    .. math::

        w_k^{(n)}=\mathcal F_k\big(w_k^{(n-1)},h_k^{(n-1)}\big),\qquad
        h_k^{(n)}=\frac1{d_k}\sum_{l\in\mathcal N_k}a_{kl}w_l^{(n)},\quad d_k=\sum_la_{kl}

    A round updates, then shares; nodes start from what all know. Who is absent keeps its model, and
    what neighbors say meanwhile waits for it. A node without neighbors hears itself. For a
    method of your own give :meth:`operator`, and :meth:`prepared` for what it computes once; it
    then meets late, lost, compressed, falsified and robustly combined messages as those here do.

    Example:
      A gradient step from the neighbors' mean:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Averaging(fl.algorithms.NetworkedIteration):
      ...     step_size: float
      ...
      ...     def operator(self, state, now):
      ...         return state.heard - self.step_size * now.problem.gradient(state.heard)
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.complete(6),
      ...     algorithm=Averaging(0.05),
      ...     participation=fl.participation.Bernoulli(0.8),
      ...     delays=fl.link.Geometric(0.3, 2),
      ...     metrics=["consensus_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=50).consensus_error[-1] < 0.1)
      True

    Reference:
      Jung 2025, (125)-(129), lines 2006-2050.
    """

    needs = Needs(data="any", absent=True, late=True, averages=True, changing=True)
    waiting: ClassVar[tuple[str, ...]] = ("heard", "degree")
    hears_itself: ClassVar[bool] = False
    combinations: ClassVar[Any] = (NEIGHBORS,)

    @_check.required
    def operator(self, state: NetworkState, now: Round) -> Float[Array, "clients dim"]:
        """The new models of all nodes."""
        raise NotImplementedError

    def prepared(self, problem: Any, network: Graph) -> Any:
        """What the state keeps, unchanged, of the data and the first network."""
        return None

    def init(self, problem: Problem | Stream, network: Graph) -> NetworkState:
        start = start_models(problem)
        heard = network.mixing(NEIGHBORS)(start)
        return NetworkState(start, heard, network.degree, self.prepared(problem, network))

    def step(self, state: NetworkState, now: Round) -> NetworkState:
        model = self.operator(state, now)
        _, inbox = now.link.exchange(model)
        heard = inbox.mean(over=now.network.mixing(NEIGHBORS))
        return NetworkState(model, heard, now.network.degree, state.kept)


class _Coupled(NetworkedIteration):
    """What minimizes the generalized total variation of squared differences."""

    coupling: Any

    def validate(self) -> None:
        _check.nonnegative("coupling", _check.filled("coupling", self.coupling))
        if np.ndim(self.coupling) > 1:
            raise ValueError(
                "coupling must be one number, or one of each parameter, got "
                f"{_check.shown(self.coupling)}."
            )

    def check(self, problem: Any, network: Graph) -> None:
        if np.shape(self.coupling) not in ((), (problem.dim,)):
            raise ValueError(
                f"coupling must be one number, or one of each of the {problem.dim} parameters of a "
                f"model, got shape {np.shape(self.coupling)}."
            )

    def optimum(self, problem: Problem, network: Graph) -> Float[Array, "clients dim"]:
        """The solution of GTVMin, a model of each node."""
        problem = replace(problem, clip=None)
        return GTVMin(problem, network, jnp.asarray(self.coupling, problem.dtype)).solve()

    def _pull(self, degree: Float[Array, " clients"]) -> Float[Array, "clients parts"]:
        r""":math:`2\alpha d_k`, of each parameter where these are coupled unequally."""
        coupling = jnp.atleast_1d(jnp.asarray(self.coupling, degree.dtype))
        return 2 * degree[:, None] * coupling[None]


def _as_oracle(value: Any) -> Any:
    if not callable(value) or isinstance(value, type):
        raise TypeError(
            "oracle must be a function of a key, the problem and models, got "
            f"{_check.shown(value)}."
        )
    return _Oracle(value) if jax.tree_util.all_leaves([value]) else value


def _as_steps(value: Any) -> Any:
    """A schedule, or one number of each node."""
    if callable(value):
        return as_schedule(value)
    steps = _check.filled("step_size", value)
    if not np.ndim(steps):
        return as_schedule(value)
    _check.positive("step_size", steps)
    if np.ndim(steps) > 1:
        raise ValueError(
            "step_size must be one number, one of each node or a schedule, got "
            f"{_check.shown(steps)}."
        )
    return steps


@algorithm("FedGD", "jung2025", NetworkedIteration.needs)
@module
class FedGD(_Coupled):
    r"""Federated gradient descent: of every node on its loss and its neighbors' models.

    .. math::

        w_k\leftarrow w_k-\eta\Big[f_k'(w_k)
            +2\alpha\sum_{l\in\mathcal N_k}a_{kl}(w_k-w_l)\Big]

    Gradient descent on GTVMin. With Hessians of the :math:`f_k` up to :math:`L` it converges for
    :math:`\eta<2/(L+4\alpha d_{\max})`; the default is half of that. (For squared losses, where
    :math:`L=2\lambda_{\max}`, the source's :math:`1/(2U)` with :math:`U=\lambda_{\max}+2\alpha
    d_{\max}`, (106).) The source's asynchronous form (130) prints no :math:`\alpha`; here it is
    there.

    Args:
      coupling: :math:`\alpha\ge0`; or ``[D]``, of each parameter, zero for one that stays private.
      step_size: :math:`\eta`, a schedule of the round or a number, > 0, or ``[K]``, of each node;
        by default the above, for smooth objectives and fixed data.

    Raises:
      ValueError: a coupling or steps of another shape; no step size where there is no default.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.FedGD(coupling=0.5),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-6)
      True

    Reference:
      Jung 2025, Algorithms 4 and 5, (110), lines 1576-1660.
    """

    coupling: Any
    step_size: Any = field(converter=_as_steps, default=None)  # a schedule, or [K]

    def check(self, problem: Any, network: Graph) -> None:
        super().check(problem, network)
        if self.step_size is None and (isinstance(problem, Stream) or not _smooth(problem)):
            what = "data that arrive one by one" if problem.online else "an objective not smooth"
            raise ValueError(
                f"the step size follows from the curvature of the data by default, and of {what} "
                "there is none to follow; give step_size."
            )
        if not callable(self.step_size) and self.step_size is not None:
            _check.per_client("step_size", self.step_size, problem.clients)

    def prepared(self, problem: Any, network: Graph) -> Any:
        return jnp.max(smoothness(problem)) if self.step_size is None else None

    def gradient(
        self, models: Float[Array, "clients dim"], now: Round
    ) -> Float[Array, "clients dim"]:
        """Of the nodes' own objectives."""
        return now.problem.gradient(models)

    def operator(self, state: NetworkState, now: Round) -> Float[Array, "clients dim"]:
        slope = self.gradient(state.model, now)
        slope = slope + self._pull(state.degree) * (state.model - state.heard)
        return state.model - self._step(state, now) * slope

    def _step(self, state: NetworkState, now: Round) -> Float[Array, "#clients 1"]:
        if self.step_size is None:
            step = 1 / (state.kept + 2 * jnp.max(self._pull(state.degree)))
        else:
            size: Any = self.step_size
            step = size(now.number) if callable(size) else size
        return jnp.atleast_1d(jnp.asarray(step, state.model.dtype))[:, None]

    stability = "2 / (L + 4 coupling max degree) of gradient descent (Jung 2025, (106))"

    def step_bound(
        self, problem: Any, network: Graph | None, curvature: Array | None
    ) -> Array | None:
        r""":math:`1/U`, from (106): below it all eigenvalues of a step are within (-1, 1)."""
        known = network is not None and isinstance(problem, Problem)
        if self.step_size is None or not known or not _smooth(problem):
            return None
        return 2 / (jnp.max(smoothness(problem)) + 2 * jnp.max(self._pull(network.degree)))


def _smooth(problem: Problem) -> bool:
    smooth = problem.linear and problem.loss.curvature is not None
    return smooth and problem.regularizer.quadratic() is not None


@module
class _Oracle:
    """A plain function, compiled in."""

    function: Callable[..., Any] = static()

    def __call__(self, key: Array, problem: Problem, models: Array) -> Array:
        return self.function(key, problem, models)


@algorithm("FedSGD, networked", "jung2025", NetworkedIteration.needs)
@module
class NetworkedFedSGD(FedGD):
    r"""Federated stochastic gradient descent: :class:`FedGD` along estimates of the gradients.

    .. math::

        w_k\leftarrow w_k-\eta\Big[g_k(w_k)
            +2\alpha\sum_{l\in\mathcal N_k}a_{kl}(w_k-w_l)\Big]

    with :math:`g_k(w)` the mean gradient over a batch, newly drawn in every round, or what an
    oracle says. Where :math:`\mathbb E\,g_k(w)=f_k'(w)` it is without bias, as with the batches of
    :mod:`fljax.batches` that are drawn; a constant step leaves a variance.

    Args:
      coupling: :math:`\alpha`, as of :class:`FedGD`.
      step_size: :math:`\eta`, as of :class:`FedGD`; the default rests on all samples.
      batches: what a step is on, such as :class:`fljax.batches.Uniform` or
        :class:`~fljax.batches.Cyclic`.
      oracle: ``(key, problem, models) -> gradients``, ``[K, D]`` both; a function, or a module
        whose numbers can be swept.

    Raises:
      ValueError: as :class:`FedGD`; batches and an oracle, or neither.

    Reference:
      Jung 2025, Algorithms 6 and 7, (113), lines 1674-1738.
    """

    coupling: Any
    batches: Batches | None = field(default=None, kw_only=True)
    oracle: Any = field(converter=_as_oracle, default=None)

    def validate(self) -> None:
        super().validate()
        if (self.batches is None) == (self.oracle is None):
            raise ValueError(
                "gradients are estimated on batches or by an oracle; give one of batches= and "
                "oracle=. On all samples they are those of FedGD."
            )

    def check(self, problem: Any, network: Graph) -> None:
        super().check(problem, network)
        if self.batches is not None:
            self.batches.check(problem)

    def gradient(
        self, models: Float[Array, "clients dim"], now: Round
    ) -> Float[Array, "clients dim"]:
        """Estimates of those of the nodes' own objectives."""
        if self.oracle is not None:
            return self.oracle(now.key("algorithm"), now.problem, models)
        everyone = Participants(None, now.available)
        batch = drawn(self.batches, now, everyone, 1)
        assert batch is not None
        return taken(now.problem, everyone.numbers, batch, 0).gradient(models)


class Blocks(NamedTuple):
    """What a quadratic minimization shares with the next where parameters are coupled unequally."""

    inverse: Array  # [K, D, D]
    moment: Array  # [K, D]  2 sum_j weight_j x_j y_j


@algorithm(
    "FedRelax",
    "jung2025",
    Needs(absent=True, late=True, averages=True, changing=True, minimizer=True),
)
@module
class FedRelax(_Coupled):
    r"""Every node takes the best model for its loss and its neighbors' models: FedRelax.

    .. math::

        w_k\leftarrow\arg\min_w f_k(w)+\alpha\sum_{l\in\mathcal N_k}a_{kl}\|w-w_l\|^2

    The nonlinear Jacobi method for GTVMin; it has no step size. It is the prox of :math:`f_k` with
    the weight :math:`2\alpha d_k` at the neighbors' mean, one linear solve, factorized once, for
    squared losses with no or a squared regularizer, and inner iterations from the last model
    otherwise. A node without labels takes its neighbors' mean, one without neighbors minimizes
    its own loss. For strongly convex :math:`f_k` each round brings the largest distance from the
    solution down by :math:`1/(1+\sigma/(2\alpha d_k))` or better, whoever is absent or late (133).
    (The source's middle line of (123) is of :math:`\alpha/2`; this is its last.)

    Args:
      coupling: :math:`\alpha\ge0`; for squared losses also ``[D]``, of each parameter, zero for one
        that stays private. These systems are ``[K, D, D]``, however few the samples.
      inner_iterations: of the solver where there is no closed form.

    Raises:
      ValueError: a coupling of another shape, or of each parameter where there is no closed form;
        a node with neither neighbors nor samples enough for a model; a problem that clips
        gradients.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.FedRelax(coupling=0.5),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=30).normalized_error[-1] < 1e-6)
      True

    Reference:
      Jung 2025, Algorithm 11, (123), lines 1939-1978, and (132), (172).
    """

    coupling: Any
    inner_iterations: int = static(default=100)

    def validate(self) -> None:
        super().validate()
        _check.count("inner_iterations", self.inner_iterations)

    def check(self, problem: Any, network: Graph) -> None:
        super().check(problem, network)
        if np.ndim(self.coupling) and not is_quadratic(problem):
            raise ValueError(
                "parameters can be coupled unequally where a node's problem has a closed form, "
                f"which that of {type(problem.loss).__name__} with "
                f"{type(problem.regularizer).__name__} has not; give one number as coupling, or "
                "take FedGD."
            )
        known = problem.features, problem.weights, problem.share, network.degree, self.coupling
        if all(_check.is_concrete(value) for value in known):
            self._check_determined(problem, network)

    def _check_determined(self, problem: Problem, network: Graph) -> None:
        """Raise ``ValueError`` for a node whose minimizer is not unique."""
        with jax.ensure_compile_time_eval():  # the data may be known while others are traced
            shift = self._pull(network.degree) + strong_convexity(problem)[:, None]
            shift = np.broadcast_to(np.asarray(shift), (problem.clients, problem.dim))
            free = np.any(shift == 0, axis=1) & ~np.asarray(_lone(problem, shift))
            width = problem.dim // problem.loss.outputs
            for k in np.flatnonzero(free):
                real = np.asarray(problem.weights)[k] > 0
                rows = jnp.asarray(problem.features[k])
                rows = rows if problem.feature_map is None else problem.feature_map(rows)
                held = np.eye(width)[np.reshape(shift[k], (-1, width)).min(axis=0) > 0]
                rows = np.concatenate([np.asarray(rows)[real], held])
                if np.linalg.matrix_rank(rows) < width:
                    raise ValueError(
                        f"node {k} has {real.sum()} samples and {width} features, and of what "
                        "these leave open no neighbor says anything: its minimizer is not unique. "
                        "Couple it (coupling > 0, an edge), or give the problem a regularizer."
                    )

    def prepared(self, problem: Any, network: Graph) -> Any:
        return self._factor(problem, network.degree)

    def _factor(self, problem: Problem, degree: Float[Array, " clients"]) -> Any:
        pull = self._pull(degree)
        if pull.shape[1] == 1:
            return factorize(problem, pull[:, 0])
        shift = pull + strong_convexity(problem)[:, None]
        system = 2 * problem.second_moment() + jax.vmap(jnp.diag)(shift)
        return Blocks(spd_inverse(system), 2 * problem.correlation(problem.targets))

    def operator(self, state: NetworkState, now: Round) -> Float[Array, "clients dim"]:
        problem, pull = now.problem, self._pull(state.degree)
        factor = self._factor(problem, state.degree) if now.changing else state.kept
        if isinstance(factor, Blocks):
            right = factor.moment + pull * state.heard
            model = jnp.einsum("kpq,kq->kp", factor.inverse, right, precision=HIGHEST)
        else:
            model = prox(problem, factor, state.heard, state.model, self.inner_iterations)
        lone = _lone(problem, pull + strong_convexity(problem)[:, None])
        return jnp.where(lone[:, None], state.model, model)


def _lone(problem: Problem, shift: Any) -> Array:
    """Which nodes have neither labels nor anything else to have a model from."""
    return (jnp.sum(jnp.asarray(problem.weights), axis=1) == 0) & jnp.all(shift == 0, axis=1)
