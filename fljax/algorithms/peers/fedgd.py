"""Gradient descent on models coupled over a network: FedGD, and networked FedSGD (Jung 2025)."""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import as_given, field, module, static
from fljax.algorithms.algorithm import algorithm
from fljax.algorithms.local_steps import draw_batches
from fljax.algorithms.peers.networked_iteration import Coupled, NetworkedIteration, NetworkState
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Participants
from fljax.problems import Problem
from fljax.problems.batches import Batches, taken
from fljax.problems.solvers import smoothness
from fljax.problems.streams import FeatureMoments, Stream


def _as_oracle(value: object) -> Any:
    if not callable(value) or isinstance(value, type):
        raise TypeError(
            "oracle must be a function of a key, the problem and models, got "
            f"{checks.shown(value)}."
        )
    return _Oracle(value) if jax.tree_util.all_leaves([value]) else value


def _as_steps(value: object) -> Schedule | Array:
    """Return a schedule, or one number for each node."""
    if callable(value):
        return as_schedule(value)
    steps = checks.filled("step_size", value)
    if not np.ndim(steps):
        return as_schedule(value)
    checks.positive("step_size", steps)
    if np.ndim(steps) > 1:
        raise ValueError(
            "step_size must be one number, one for each node or a schedule, got "
            f"{checks.shown(steps)}."
        )
    return steps


@algorithm("FedGD", ("chen2014", "jung2025"), NetworkedIteration.needs)
@module
class FedGD(Coupled):
    r"""Federated gradient descent of every node on its loss and the coupling to its neighbors.

    .. math::

        w_k\leftarrow w_k-\eta\Big[f_k'(w_k)
            +2\alpha\sum_{l\in\mathcal N_k}a_{kl}(w_k-w_l)\Big]

    It is gradient descent on GTVMin. With Hessians of the :math:`f_k` bounded by :math:`L` it
    converges for :math:`\eta<2/(L+4\alpha d_{\max})`; the default is half of that. (For squared
    losses, where :math:`L=2\lambda_{\max}`, the source's :math:`1/(2U)` with
    :math:`U=\lambda_{\max}+2\alpha d_{\max}`, (106).) The source's asynchronous form (130) omits
    :math:`\alpha`; here it is included.

    Args:
      coupling: :math:`\alpha\ge0`; or ``[D]``, one per parameter, zero for a parameter that stays
        private.
      step_size: :math:`\eta`, a schedule of the round or a number, > 0, or ``[K]``, one per node;
        by default the above, for smooth objectives and fixed data.

    Raises:
      ValueError: a coupling or step sizes of another shape; no step size without a default.

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
      Chen, Richard & Sayed 2014, for least mean squares, where clusters are single nodes; Jung
      2025, Algorithms 4 and 5, (110).
    """

    coupling: Annotated[Array, "*parameters"] = field(converter=as_given)
    step_size: Annotated[Schedule | Array, "[K]"] | None = field(converter=_as_steps, default=None)

    def check(self, problem: Any, network: Graph) -> None:
        super().check(problem, network)
        if self.step_size is None and (isinstance(problem, Stream) or not _smooth(problem)):
            reason = "data that arrive one by one" if problem.online else "a nonsmooth objective"
            raise ValueError(
                "by default the step size follows from the curvature of the data, which is not "
                f"known for {reason}; give step_size."
            )
        if not callable(self.step_size) and self.step_size is not None:
            checks.per_client("step_size", self.step_size, problem.clients)

    def prepared(self, problem: Any, network: Graph) -> Any:
        return jnp.max(smoothness(problem)) if self.step_size is None else None

    def gradient(
        self, models: Float[Array, "clients dim"], now: Round
    ) -> Float[Array, "clients dim"]:
        """Return the gradients of the nodes' own objectives."""
        return now.problem.gradient(models)

    def operator(self, state: NetworkState, now: Round) -> Float[Array, "clients dim"]:
        gradient = self.gradient(state.model, now)
        gradient = gradient + self._coupling_weights(state.degree) * (state.model - state.received)
        return state.model - self._step(state, now) * gradient

    def _step(self, state: NetworkState, now: Round) -> Float[Array, "#clients 1"]:
        if self.step_size is None:
            step = 1 / (state.kept + 2 * jnp.max(self._coupling_weights(state.degree)))
        else:
            size = self.step_size
            step = size(now.number) if callable(size) else size
        return jnp.atleast_1d(jnp.asarray(step, state.model.dtype))[:, None]

    stability = "2 / (L + 4 coupling max degree) of gradient descent (Jung 2025, (106))"

    def step_bound(
        self, problem: Any, network: Graph | None, moments: FeatureMoments | None
    ) -> Array | None:
        r"""Return :math:`1/U` (106), below which all eigenvalues of a step are within (-1, 1)."""
        is_determined = network is not None and isinstance(problem, Problem)
        if self.step_size is None or not is_determined or not _smooth(problem):
            return None
        return 2 / (
            jnp.max(smoothness(problem)) + 2 * jnp.max(self._coupling_weights(network.degree))
        )


def _smooth(problem: Problem) -> bool:
    smooth = problem.linear and problem.loss.curvature is not None
    return smooth and problem.regularizer.quadratic() is not None


@module
class _Oracle:
    """A plain function, compiled into the program."""

    function: Callable[..., Any] = static()

    def __call__(self, key: Array, problem: Problem, models: Array) -> Array:
        return self.function(key, problem, models)


@algorithm("FedSGD, networked", ("chen2014", "jung2025"), NetworkedIteration.needs)
@module
class NetworkedFedSGD(FedGD):
    r"""Networked stochastic gradient descent: :class:`FedGD` with estimates of the gradients.

    .. math::

        w_k\leftarrow w_k-\eta\Big[g_k(w_k)
            +2\alpha\sum_{l\in\mathcal N_k}a_{kl}(w_k-w_l)\Big]

    with :math:`g_k(w)` the mean gradient over a batch, newly drawn in every round, or the output of
    an oracle. If :math:`\mathbb E\,g_k(w)=f_k'(w)` it is unbiased, as with the random batches of
    :mod:`fljax.batches`; with a constant step size a variance remains.

    Args:
      coupling: :math:`\alpha`, as in :class:`FedGD`.
      step_size: :math:`\eta`, as in :class:`FedGD`; the default is computed from all samples.
      batches: the batches of the steps, such as :class:`fljax.batches.Uniform` or
        :class:`~fljax.batches.CyclicBatches`.
      oracle: ``(key, problem, models) -> gradients``, with models and gradients ``[K, D]``; a
        function, or a module whose fields can be swept.

    Raises:
      ValueError: as for :class:`FedGD`; both batches and an oracle, or neither.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.NetworkedFedSGD(0.5, 0.05, batches=fl.batches.Uniform(4))
      >>> simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(6), metrics=["objective"])
      >>> run = fl.run(simulation, rounds=50)
      >>> bool(run.objective[-1] < run.objective[0])
      True

    Reference:
      Chen, Richard & Sayed 2014, for least mean squares, where clusters are single nodes; Jung
      2025, Algorithms 6 and 7, (113).
    """

    coupling: Annotated[Array, "*parameters"] = field(converter=as_given)
    batches: Batches | None = field(default=None, kw_only=True)
    oracle: Any = field(converter=_as_oracle, default=None)

    def validate(self) -> None:
        super().validate()
        if (self.batches is None) == (self.oracle is None):
            raise ValueError(
                "give either batches= or oracle=, by which gradients are estimated; for gradients "
                "on all samples take FedGD."
            )

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        if self.batches is not None:
            self.batches.check(problem)

    def gradient(
        self, models: Float[Array, "clients dim"], now: Round
    ) -> Float[Array, "clients dim"]:
        """Return estimates of the gradients of the nodes' own objectives."""
        if self.oracle is not None:
            return self.oracle(now.key("algorithm"), now.problem, models)
        everyone = Participants(None, now.available)
        batch = draw_batches(self.batches, now, everyone, 1)
        assert batch is not None
        return taken(now.problem, everyone.numbers, batch, 0).gradient(models)
