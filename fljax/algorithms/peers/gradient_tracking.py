r"""Gradient tracking: peers descend along estimates of the network's mean gradient.

In addition to its model a peer keeps a tracker, combines it as it does the model, and adds the
change of its own gradient. Then the trackers' mean is the gradients' mean, and if models agree each
tracker converges to that mean, so that the method converges to the minimizer with a constant step
size. The variants combine different quantities at different times:

=====================  =================================  =========================================
:class:`DIGing`        :math:`w^+=Aw-\mu y`               :math:`y^+=Ay+f'(w^+)-f'(w)`
:class:`ATCTracking`   :math:`w^+=A(w-\mu y)`             :math:`y^+=Ay+f'(w^+)-f'(w)`
:class:`AugDGM`        :math:`w^+=A(w-\mu y)`             :math:`y^+=A(y+f'(w^+)-f'(w))`
=====================  =================================  =========================================

from :math:`y^{(0)}=f'(w^{(0)})`. :class:`KGT` takes several steps between two exchanges;
:class:`ADMMTracking` computes the means by ADMM instead of combinations.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.peer_algorithm import Exact, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class TrackingState(NamedTuple):
    """State of gradient tracking between rounds."""

    model: Array  # [K, D]  w_k
    tracker: Array  # [K, D]  of the last round, combined; its gradient's change is still to come
    slope: Array  # [K, D]  f_k' of the last round
    weights: Combination  # A, of the first graph


class _Tracking(Exact):
    """Base class; a round begins with the gradient, which thus uses the samples of that round."""

    def init(self, problem: Problem | Stream, network: Graph) -> TrackingState:
        start = start_models(problem)
        zero = jnp.zeros_like(start)  # before it the first gradient is all change
        return TrackingState(start, zero, zero, weights_on(self.mixing, network))

    def _weights(self, state: TrackingState, now: Round) -> Combination:
        return weights_on(self.mixing, now.network) if now.changing else state.weights


def exchange_and_combine(now: Round, message: Array, weights: Combination) -> Array:
    """Return the peers' combinations of their messages; the sum over all peers is preserved,
    whichever messages are received, because each peer subtracts its own message.
    """
    return message - now.link.exchange(message)[1].disagreement(over=weights)


class _Joined(_Tracking):
    """Base class of methods that send the model and the tracker as one message."""

    def message_size(self, dim: int) -> int:
        return 2 * dim

    def _combine_jointly(
        self, state: TrackingState, now: Round, model: Array, tracker: Array
    ) -> tuple[Array, Array]:
        message = jnp.concatenate([model, tracker], axis=1)
        model, tracker = jnp.split(
            exchange_and_combine(now, message, self._weights(state, now)), 2, axis=1
        )
        return model, tracker


@algorithm(
    "DIGing",
    "nedic2017",
    Needs(data="any", trains=True, changing=True, directed=True),
    {"Distributed inexact gradient tracking": ""},
)
@module
class DIGing(_Joined):
    r"""Distributed inexact gradient tracking: each peer combines and steps along its tracker.

    .. math::

        w^{(n+1)}=Aw^{(n)}-\mu y^{(n)},\qquad
        y^{(n+1)}=Ay^{(n)}+f'(w^{(n+1)})-f'(w^{(n)}),\quad y^{(0)}=f'(w^{(0)})

    For smooth and strongly convex objectives it converges geometrically, for small enough steps,
    also on time-varying graphs, if their union over a bounded number of rounds is connected. A
    message is a model and a tracker, :math:`2D` numbers. The sums on which convergence relies are
    preserved by links that fail in both directions together and by compressed messages.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      mixing: the weights :math:`A`, as in :class:`Consensus`, doubly stochastic.
      batches: the batches of the gradients (:mod:`fljax.batches`), the same when a gradient is
        added and, in the next round, subtracted; all of a client's samples by default.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.DIGing(0.05),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Nedić, Olshevsky & Shi 2017, Algorithm 1.
    """

    def step(self, state: TrackingState, now: Round) -> TrackingState:
        gradient = self._step_gradient(now, state.model)
        tracker = state.tracker + gradient - state.slope
        model, mixed = self._combine_jointly(state, now, state.model, tracker)
        model = model - self.step_size(now.number) * tracker
        return TrackingState(model, mixed, gradient, state.weights)


@algorithm(
    "ATC tracking",
    ("dilorenzo2016", "sun2022"),
    Needs(data="any", trains=True, changing=True, directed=True),
    {"NEXT": "", "SONATA": "", "DSGT": "with batches="},
)
@module
class ATCTracking(_Joined):
    r"""Gradient tracking in adapt-then-combine form (NEXT; SONATA on undirected graphs).

    .. math::

        w^{(n+1)}=A\big(w^{(n)}-\mu y^{(n)}\big),\qquad
        y^{(n+1)}=Ay^{(n)}+f'(w^{(n+1)})-f'(w^{(n)}),\quad y^{(0)}=f'(w^{(0)})

    It is NEXT with the objective linearized at the last model and no constraint; its step sizes
    decay in the paper, but for strongly convex objectives a constant one suffices (Sun et al.
    2022). On batches it is distributed stochastic gradient tracking (Pu & Nedić 2021). A message is
    a model and a tracker, :math:`2D` numbers.

    Args and Raises: as for :class:`DIGing`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.ATCTracking(0.1)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Di Lorenzo & Scutari 2016, Algorithm 1 (NEXT); Sun, Daneshmand & Scutari 2022 (SONATA).
    """

    def step(self, state: TrackingState, now: Round) -> TrackingState:
        gradient = self._step_gradient(now, state.model)
        tracker = state.tracker + gradient - state.slope
        moved = state.model - self.step_size(now.number) * tracker
        model, mixed = self._combine_jointly(state, now, moved, tracker)
        return TrackingState(model, mixed, gradient, state.weights)


@algorithm("Aug-DGM", "xu2015", Needs(data="any", trains=True, directed=True), {"ATC-DIGing": ""})
@module
class AugDGM(_Tracking):
    r"""Augmented distributed gradient method: tracking with all updates combined (ATC-DIGing).

    .. math::

        w^{(n+1)}=A\big(w^{(n)}-\mu y^{(n)}\big),\qquad
        y^{(n+1)}=A\big(y^{(n)}+f'(w^{(n+1)})-f'(w^{(n)})\big),\quad y^{(0)}=f'(w^{(0)})

    A round has two messages, one after the other: the tracker, which determines the step, and the
    model. (In round 1 the tracker is by definition the own gradient, and the received trackers are
    not used.) The original allows a different step size at each peer; here all have the same.

    Args and Raises: as for :class:`DIGing`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.AugDGM(0.1)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Xu, Zhu, Soh & Xie 2015.
    """

    def step(self, state: TrackingState, now: Round) -> TrackingState:
        weights = self._weights(state, now)
        gradient = self._step_gradient(now, state.model)
        updated = state.tracker + gradient - state.slope
        tracker = jnp.where(now.number > 1, exchange_and_combine(now, updated, weights), updated)
        model = exchange_and_combine(
            now, state.model - self.step_size(now.number) * tracker, weights
        )
        return TrackingState(model, tracker, gradient, state.weights)
