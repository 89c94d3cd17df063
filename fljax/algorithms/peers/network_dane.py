r"""Gradient tracking around a local problem: Network-DANE, Network-SVRG and Network-SARAH.

In every round a peer combines models and trackers once, and then works on its own data along the
network's gradient as it knows it,

.. math::

    v_k&=\sum_la_{kl}w_l^{(n-1)} \\
    y_k^{(n)}&=\sum_la_{kl}y_l^{(n-1)}+f_k'(v_k)-f_k'(v_k^{(n-1)}),\qquad
        y_k^{(0)}=f_k'(w_k^{(0)}).

They differ in how :math:`w_k^{(n)}` follows from :math:`v_k` and :math:`y_k`: exactly in
:class:`NetworkDANE`, by stochastic steps in :class:`NetworkSVRG` and :class:`NetworkSARAH`. With
one server instead of the combinations the first is :class:`DANE`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.local_steps import draw_batches
from fljax.algorithms.peers.peer_algorithm import (
    Weights,
    as_weights,
    check_sums,
    check_weights,
    weights_on,
)
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Participants
from fljax.problems import Problem
from fljax.problems.batches import Uniform, taken
from fljax.problems.solvers import ProxFactor, factorize, prox


class NetworkDANEState(NamedTuple):
    """State of gradient tracking around a local problem between rounds."""

    model: Array  # [K, D]  w_k
    tracker: Array  # [K, D]  y_k, the network's gradient as client k knows it
    slope: Array  # [K, D]  f_k'(v_k) of the last round
    weights: Combination  # A
    factor: ProxFactor | None  # of the local problem, where it is solved exactly


@module
class _SubproblemTracking(Algorithm):
    """Base class: the combinations; subclasses define the work on a client's own data."""

    mixing: Weights = field(
        converter=partial(as_weights, "mixing"), default="metropolis", kw_only=True
    )

    def validate(self) -> None:
        check_sums(self.mixing, type(self))

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return (self.mixing,)

    def check(self, problem: Problem, network: Graph) -> None:
        check_weights(self.mixing, network)

    def message_size(self, dim: int) -> int:
        """Return the size of a model and a tracker."""
        return 2 * dim

    def init(self, problem: Problem, network: Graph) -> NetworkDANEState:
        start = start_models(problem)
        gradient = problem.gradient(start)
        weights = weights_on(self.mixing, network)
        return NetworkDANEState(start, gradient, gradient, weights, self._factor(problem))

    def step(self, state: NetworkDANEState, now: Round) -> NetworkDANEState:
        message = jnp.concatenate([state.model, state.tracker], axis=1)
        inbox = now.link.exchange(message)[1]
        # The sum of all trackers is that of all gradients, even if messages are lost.
        combined, tracker = jnp.split(message - inbox.disagreement(state.weights), 2, axis=1)
        gradient = now.problem.gradient(combined)
        tracker = tracker + gradient - state.slope
        model = self._solve_locally(now, state, combined, tracker, gradient)
        return NetworkDANEState(model, tracker, gradient, state.weights, state.factor)

    def _factor(self, problem: Problem) -> ProxFactor | None:
        return None

    def _solve_locally(
        self, now: Round, state: NetworkDANEState, combined: Array, tracker: Array, gradient: Array
    ) -> Float[Array, "clients dim"]:
        raise NotImplementedError


@algorithm("Network-DANE", "li2020network", Needs(directed=True, minimizer=True))
@module
class NetworkDANE(_SubproblemTracking):
    r"""Gradient tracking with an approximate Newton step of each peer (Network-DANE).

    .. math::

        w_k^{(n)}=\arg\min_w f_k(w)-\langle f_k'(v_k)-y_k^{(n)},w\rangle+\frac\mu2\|w-v_k\|^2

    with :math:`v_k` and :math:`y_k` as in :mod:`fljax.algorithms.peers.network_dane`. For a
    quadratic objective it is the step :math:`-(H_k+\mu I)^{-1}y_k` from :math:`v_k`. It converges
    linearly to the minimizer, the faster the more similar the clients' Hessians are; with different
    ones :math:`\mu` must be large. (The paper allows :math:`\mu=0` for similar clients, and several
    combinations in a round.)

    Args:
      attraction: :math:`\mu>0`.
      mixing: the weights :math:`a_{kl}`, as in :class:`Consensus`, doubly stochastic.
      inner_iterations: iterations of the clients' solver if no closed form exists.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph; an attraction that
        is not positive; a problem that clips gradients.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=40, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.NetworkDANE(attraction=2.0),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=80).normalized_error[-1] < 1e-8)
      True

    Reference:
      Li, Cen, Chen & Chi 2020, Algorithm 2.
    """

    attraction: Float[Array, ""] | float
    inner_iterations: int = static(default=100, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("attraction", self.attraction)
        checks.count("inner_iterations", self.inner_iterations)

    def _factor(self, problem: Problem) -> ProxFactor:
        return factorize(problem, jnp.full(problem.clients, self.attraction, problem.dtype))

    def _solve_locally(
        self, now: Round, state: NetworkDANEState, combined: Array, tracker: Array, gradient: Array
    ) -> Float[Array, "clients dim"]:
        assert state.factor is not None
        center = combined - (tracker - gradient) / self.attraction
        return prox(now.problem, state.factor, center, combined, self.inner_iterations)


@module
class _StochasticSteps(_SubproblemTracking):
    """Base class of stochastic steps instead of an exact solution."""

    step_size: Schedule = field(converter=as_schedule)
    local_steps: int = static(kw_only=True)
    batch: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("local_steps", self.local_steps)
        checks.count("batch", self.batch)

    def check(self, problem: Problem, network: Graph) -> None:
        super().check(problem, network)
        Uniform(self.batch).check(problem)

    def _whole_gradient(self, problem: Problem) -> Float[Array, " clients"]:
        """The round's gradient of all samples, as a multiple of the gradients of its steps."""
        samples = jnp.sum(jnp.asarray(problem.weights) > 0, axis=1).astype(problem.dtype)
        return samples / (self.local_steps * self.batch)

    def _batch_problems(self, now: Round) -> Callable[[Any], Problem]:
        """Return the problem on each step's batch."""
        everyone = Participants(None, now.available)
        batch = draw_batches(Uniform(self.batch), now, everyone, self.local_steps)
        assert batch is not None
        return lambda step: taken(now.problem, everyone.numbers, batch, step)


@algorithm("Network-SVRG", "li2020network", Needs(directed=True, compares_samples=True))
@module
class NetworkSVRG(_StochasticSteps):
    r"""Network-DANE with stochastic variance-reduced steps (Network-SVRG).

    .. math::

        u\leftarrow u-\mu\big(f_{k,s}'(u)-f_{k,s}'(v_k)+y_k^{(n)}\big)

    from :math:`u=v_k`, ``local_steps`` times with a new batch :math:`s` each; then
    :math:`w_k^{(n)}=u`. The terms are as in :mod:`fljax.algorithms.peers.network_dane`: a round
    has one full gradient of each client and one exchange, :class:`GTSVRG` an exchange for every
    step. For smooth and strongly convex objectives of sufficiently similar clients it converges
    linearly to the minimizer. (The paper also lets a random one of the local models be the last.)

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      mixing: the weights :math:`a_{kl}`, as in :class:`Consensus`, doubly stochastic.
      local_steps: steps of a round, >= 1.
      batch: samples :math:`s` of a step, drawn without replacement, whose gradients are averaged.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph; a batch larger
        than every client's data.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=40, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.NetworkSVRG(0.02, local_steps=10),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 1e-8)
      True

    Reference:
      Li, Cen, Chen & Chi 2020, Algorithm 3.
    """

    def gradients_per_step(self, problem: Problem) -> Float[Array, " clients"]:
        return 2 + self._whole_gradient(problem)

    def _solve_locally(
        self, now: Round, state: NetworkDANEState, combined: Array, tracker: Array, gradient: Array
    ) -> Float[Array, "clients dim"]:
        step_size = self.step_size(now.number)
        parts = self._batch_problems(now)

        def local_step(step: Array, model: Array) -> Array:
            part = parts(step)
            return model - step_size * (part.gradient(model) - part.gradient(combined) + tracker)

        return jax.lax.fori_loop(0, self.local_steps, local_step, combined)


@algorithm("Network-SARAH", "li2020network", Needs(directed=True, compares_samples=True))
@module
class NetworkSARAH(_StochasticSteps):
    r"""Network-DANE with recursive stochastic steps (Network-SARAH).

    As :class:`NetworkSVRG`, with directions that go on from each other,

    .. math:: u_{e+1}=u_e-\mu d_e,\qquad d_{e+1}=f_{k,s}'(u_{e+1})-f_{k,s}'(u_e)+d_e

    from :math:`u_0=v_k` and :math:`d_0=y_k^{(n)}`.

    Args:
      step_size: as in :class:`NetworkSVRG`.
      mixing: as in :class:`NetworkSVRG`.
      local_steps: as in :class:`NetworkSVRG`. The last step needs no batch after it.
      batch: as in :class:`NetworkSVRG`.

    Raises:
      ValueError: as for :class:`NetworkSVRG`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=40, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.NetworkSARAH(0.02, local_steps=10),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 1e-8)
      True

    Reference:
      Li, Cen, Chen & Chi 2020, Algorithm 3.
    """

    def gradients_per_step(self, problem: Problem) -> Float[Array, " clients"]:
        return 2 * (1 - 1 / self.local_steps) + self._whole_gradient(problem)

    def _solve_locally(
        self, now: Round, state: NetworkDANEState, combined: Array, tracker: Array, gradient: Array
    ) -> Float[Array, "clients dim"]:
        step_size = self.step_size(now.number)
        parts = self._batch_problems(now)

        def local_step(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            last, direction = carry
            model = last - step_size * direction
            part = parts(step)
            return model, part.gradient(model) - part.gradient(last) + direction

        last, direction = jax.lax.fori_loop(
            0, self.local_steps - 1, local_step, (combined, tracker)
        )
        return last - step_size * direction
