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
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module
from fljax.algorithms.base import Needs, algorithm, start_models
from fljax.algorithms.peers import Descending, Exact, LocalSteps, weights_on
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.streams import Stream

__all__ = ["KGT", "ADMMTracking", "ATCTracking", "AugDGM", "DIGing"]


class TrackingState(NamedTuple):
    """What gradient tracking keeps from round to round."""

    model: Array  # [K, D]  w_k
    tracker: Array  # [K, D]  of the last round, combined; its gradient's change is still to come
    slope: Array  # [K, D]  f_k' of the last round
    weights: Combination  # A, of the first graph


class _Tracking(Exact):
    """A round begins with the gradient, so that it is of the samples that there are in it."""

    symmetric = False

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
    return message - now.link.exchange(message)[1].apart(over=over)


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


@algorithm("DIGing", "nedic2017", Needs(data="any", changing=True))
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


@algorithm("ATC tracking", "dilorenzo2016", Needs(data="any", changing=True))
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


@algorithm("Aug-DGM", "xu2015", Needs(data="any"))
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


class KGTState(NamedTuple):
    """What K-GT keeps from round to round."""

    model: Array  # [K, D]  w_k
    correction: Array  # [K, D]  c_k
    weights: Combination  # A


@algorithm("K-GT", "liu2024", Needs(data="any"))
@module
class KGT(LocalSteps):
    r"""Gradient tracking with local steps: what is tracked is the sum of a round's gradients.

    .. math::

        v_{k,0} &= w_k^{(n)},\qquad
        v_{k,e+1} = v_{k,e}-\mu\big(f_k'(v_{k,e})+c_k^{(n)}\big),\quad e=0..E-1 \\
        z_k &= \frac{w_k^{(n)}-v_{k,E}}{E\mu},\qquad
        c_k^{(n+1)} = c_k^{(n)}-z_k+\sum_{l\in\mathcal N_k}a_{kl}z_l \\
        w_k^{(n+1)} &= \sum_{l\in\mathcal N_k}a_{kl}\big(w_l^{(n)}-\eta E\mu z_l\big)

    from :math:`c=0`, which the paper takes in practice. A message is a model and a :math:`z`,
    :math:`2D` numbers.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      local_steps: :math:`E\ge1`.
      mixing: the weights :math:`A`, as of :class:`Consensus`, doubly stochastic.
      outer_step_size: :math:`\eta>0`, of an exchange.
      batches: what each step is on (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph.

    Reference:
      Liu, Lin, Koloskova & Stich 2024, Algorithm 1.
    """

    symmetric = False

    outer_step_size: Float[Array, ""] | float = field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        _check.positive("outer_step_size", self.outer_step_size)

    def message_size(self, dim: int) -> int:
        return 2 * dim

    def init(self, problem: Problem | Stream, network: Graph) -> KGTState:
        start = start_models(problem)
        return KGTState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: KGTState, now: Round) -> KGTState:
        walked = state.model - self._learnt(now, state.model, state.correction)
        mean = walked / (self.local_steps * self.step_size(now.number))
        message = jnp.concatenate([state.model - self.outer_step_size * walked, mean], axis=1)
        model, mixed = jnp.split(_combined(now, message, state.weights), 2, axis=1)
        return KGTState(model, state.correction + mixed - mean, state.weights)


class ADMMState(NamedTuple):
    """What ADMM tracking keeps from round to round."""

    model: Array  # [K, D]  w_k
    own: Array  # [K, 2 D]  sum_l z_kl
    others: Array  # [K, 2 D]  sum_l z_lk


@algorithm("ADMM tracking", "carnevale2025", Needs(data="any"))
@module
class ADMMTracking(Descending):
    r"""The ADMM-tracking gradient: models and gradients are averaged by relaxed ADMM.

    .. math::

        \binom{y_k}{s_k} &= \frac1{1+\rho d_k}\bigg(\binom{w_k}{f_k'(w_k)}
            +\sum_{l\in\mathcal N_k}z_{kl}\bigg),\qquad
        w_k\leftarrow(1-\gamma)w_k+\gamma(y_k-\mu s_k) \\
        z_{kl} &\leftarrow (1-\alpha)z_{kl}+\alpha\Big(2\rho\binom{y_l}{s_l}-z_{lk}\Big)

    from :math:`z_{kl}=\rho\binom{w_l}0`, the paper's zero seen from where models start. Of the
    variables of edges a peer needs the sums alone, of those it has and of those that others have of
    it, and these follow from the :math:`y` and :math:`s` that it says and hears: a message is the
    two, :math:`2D` numbers, the same to all. (The paper's messages are of each edge,
    :math:`2\rho y-z`, so that the two directions may fail apart; here a peer's own stands in for
    what is lost, which leaves the sums in order if both ends lose it.)
    In single precision it ends at about -95 dB, however many rounds: its sums hold models.

    Args:
      step_size: :math:`\mu`, along the tracked gradient, a number or a schedule of the round, > 0.
      penalty: :math:`\rho>0`.
      relaxation: :math:`\alpha\in(0,1)`.
      blend: :math:`\gamma\in(0,1]`, how far a model goes to where it is drawn in a round.
      batches: what a gradient is on (:mod:`fljax.batches`); all of a client's samples by default.

    Reference:
      Carnevale, Bastianello, Notarstefano & Carli 2025, Algorithm 1.
    """

    penalty: Float[Array, ""] | float = field(default=1.0, kw_only=True)
    relaxation: Float[Array, ""] | float = field(default=0.5, kw_only=True)
    blend: Float[Array, ""] | float = field(default=0.1, kw_only=True)

    def validate(self) -> None:
        _check.positive("penalty", self.penalty)
        _check.interval("relaxation", self.relaxation, above=0, below=1)
        _check.interval("blend", self.blend, above=0, at_most=1)

    def message_size(self, dim: int) -> int:
        return 2 * dim

    def init(self, problem: Problem | Stream, network: Graph) -> ADMMState:
        start = start_models(problem)
        heard, said = network.neighbor_sum(start), network.degree[:, None] * start
        own, others = (
            jnp.concatenate([self.penalty * of, jnp.zeros_like(start)], axis=1)
            for of in (heard, said)
        )
        return ADMMState(start, own, others)

    def step(self, state: ADMMState, now: Round) -> ADMMState:
        degree = now.network.degree[:, None]
        slope = self._part(now).gradient(state.model)
        both = jnp.concatenate([state.model, slope], axis=1) + state.own
        both = both / (1 + self.penalty * degree)
        mean, tracker = jnp.split(both, 2, axis=1)
        ahead = mean - self.step_size(now.number) * tracker
        model = state.model + self.blend * (ahead - state.model)
        said, inbox = now.link.exchange(both)

        def relaxed(z: Array, other: Array, target: Array) -> Array:
            return z + self.relaxation * (2 * self.penalty * target - other - z)

        own = relaxed(state.own, state.others, inbox.sum())
        others = relaxed(state.others, state.own, degree * said)
        return ADMMState(model, own, others)
