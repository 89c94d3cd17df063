r"""Gradient tracking: peers that descend along what they make of everybody's mean gradient.

Beside its model a peer keeps a tracker, combines it as it does the model, and adds how its own
gradient has changed. The trackers' mean is the gradients' mean then, and where models agree each
tracker comes to that mean, so a constant step ends at the minimizer. The variants differ in what is
combined when:

=====================  =================================  =========================================
:class:`DIGing`        :math:`w^+=Aw-\mu y`               :math:`y^+=Ay+f'(w^+)-f'(w)`
:class:`ATCTracking`   :math:`w^+=A(w-\mu y)`             :math:`y^+=Ay+f'(w^+)-f'(w)`
:class:`AugDGM`        :math:`w^+=A(w-\mu y)`             :math:`y^+=A(y+f'(w^+)-f'(w))`
=====================  =================================  =========================================

from :math:`y^{(0)}=f'(w^{(0)})`. :class:`KGT` takes several steps between two exchanges;
:class:`ADMMTracking` finds the means by ADMM in the place of combinations.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._module import module
from fljax.algorithms.base import Needs, algorithm, start_models
from fljax.algorithms.peers.base import Exact, weights_on
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.streams import Stream

__all__ = ["ATCTracking", "AugDGM", "DIGing", "TrackingState"]


class TrackingState(NamedTuple):
    """What gradient tracking keeps from round to round."""

    model: Array  # [K, D]  w_k
    tracker: Array  # [K, D]  of the last round, combined; its gradient's change is still to come
    slope: Array  # [K, D]  f_k' of the last round
    weights: Combination  # A, of the first graph


class _Tracking(Exact):
    """A round begins with the gradient, so that it is of the samples that there are in it."""

    def init(self, problem: Problem | Stream, network: Graph) -> TrackingState:
        start = start_models(problem)
        none = jnp.zeros_like(start)  # before it the first gradient is all change
        return TrackingState(start, none, none, weights_on(self.mixing, network))

    def _over(self, state: TrackingState, now: Round) -> Combination:
        return weights_on(self.mixing, now.network) if now.changing else state.weights


def _combined(now: Round, message: Array, over: Combination) -> Array:
    """What peers make of their messages; that of the sum of all of them stays, whatever is heard
    of a message, since each takes off what it said.
    """
    return message - now.link.exchange(message)[1].disagreement(over=over)


class _Joined(_Tracking):
    """A model and a tracker are one message, as they are said at once."""

    def message_size(self, dim: int) -> int:
        return 2 * dim

    def _both(
        self, state: TrackingState, now: Round, model: Array, tracker: Array
    ) -> tuple[Array, Array]:
        message = jnp.concatenate([model, tracker], axis=1)
        model, tracker = jnp.split(_combined(now, message, self._over(state, now)), 2, axis=1)
        return model, tracker


@algorithm("DIGing", "nedic2017", Needs(data="any", changing=True, directed=True))
@module
class DIGing(_Joined):
    r"""Distributed inexact gradients, tracked: each peer combines, and steps along its tracker.

    .. math::

        w^{(n+1)}=Aw^{(n)}-\mu y^{(n)},\qquad
        y^{(n+1)}=Ay^{(n)}+f'(w^{(n+1)})-f'(w^{(n)}),\quad y^{(0)}=f'(w^{(0)})

    For smooth and strongly convex objectives it converges geometrically, for small enough steps, on
    graphs that change from round to round too, if they are connected together every so often. A
    message is a model and a tracker, :math:`2D` numbers. The sums that it rests on hold over links
    that fail in both directions at once and with compressed messages.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      mixing: the weights :math:`A`, as of :class:`Consensus`, doubly stochastic.
      batches: what a gradient is on (:mod:`fljax.batches`), both as it comes and, in the next
        round, as it goes; all of a client's samples by default.

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
        slope = self._part(now).gradient(state.model)
        tracker = state.tracker + slope - state.slope
        model, mixed = self._both(state, now, state.model, tracker)
        model = model - self.step_size(now.number) * tracker
        return TrackingState(model, mixed, slope, state.weights)


@algorithm("ATC tracking", "dilorenzo2016", Needs(data="any", changing=True, directed=True))
@module
class ATCTracking(_Joined):
    r"""Gradient tracking that steps before it combines (NEXT; SONATA on undirected graphs).

    .. math::

        w^{(n+1)}=A\big(w^{(n)}-\mu y^{(n)}\big),\qquad
        y^{(n+1)}=Ay^{(n)}+f'(w^{(n+1)})-f'(w^{(n)}),\quad y^{(0)}=f'(w^{(0)})

    NEXT with the objective linearized at the last model and no constraint, whose steps vanish in
    the paper; for strongly convex objectives a constant one does (Sun et al. 2022). On batches it
    is distributed stochastic gradient tracking (Pu & Nedić 2021). A message is a model and a
    tracker, :math:`2D` numbers.

    Args and Raises: as of :class:`DIGing`.

    Reference:
      Di Lorenzo & Scutari 2016, Algorithm 1 (NEXT); Sun, Daneshmand & Scutari 2022.
    """

    def step(self, state: TrackingState, now: Round) -> TrackingState:
        slope = self._part(now).gradient(state.model)
        tracker = state.tracker + slope - state.slope
        ahead = state.model - self.step_size(now.number) * tracker
        model, mixed = self._both(state, now, ahead, tracker)
        return TrackingState(model, mixed, slope, state.weights)


@algorithm("Aug-DGM", "xu2015", Needs(data="any", directed=True))
@module
class AugDGM(_Tracking):
    r"""Augmented distributed gradient: tracking that combines all that it does (ATC-DIGing).

    .. math::

        w^{(n+1)}=A\big(w^{(n)}-\mu y^{(n)}\big),\qquad
        y^{(n+1)}=A\big(y^{(n)}+f'(w^{(n+1)})-f'(w^{(n)})\big),\quad y^{(0)}=f'(w^{(0)})

    A round is two messages, one after the other: the tracker, of which the step is made, and the
    model. (In round 1 the tracker is known to be the own gradient, and what is heard of it is not
    used.) The original's steps may be of each peer; here all have the same.

    Args and Raises: as of :class:`DIGing`.

    Reference:
      Xu, Zhu, Soh & Xie 2015.
    """

    def step(self, state: TrackingState, now: Round) -> TrackingState:
        over = self._over(state, now)
        slope = self._part(now).gradient(state.model)
        own = state.tracker + slope - state.slope
        tracker = jnp.where(now.number > 1, _combined(now, own, over), own)
        model = _combined(now, state.model - self.step_size(now.number) * tracker, over)
        return TrackingState(model, tracker, slope, state.weights)
