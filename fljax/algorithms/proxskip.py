r"""Local gradient steps that skip most of their communication: Scaffnew with a server, ProxSkip
among peers.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module
from fljax.algorithms.base import Needs, algorithm, server_start, start_models
from fljax.algorithms.peers import (
    Descending,
    Weights,
    as_weights,
    check_sums,
    check_weights,
    weights_on,
)
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.streams import Stream

__all__ = ["PeerState", "ProxSkip", "Scaffnew", "ServerState"]


@module
class _Skipping(Descending):
    """A gradient step, corrected by what the last averages changed."""

    probability: Float[Array, ""] | float

    def validate(self) -> None:
        hint = "At 0 nobody would ever say anything."
        _check.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def _speaks(self, now: Round) -> Array:
        """Whether there is communication in this round: one draw for all."""
        dtype = now.problem.dtype
        return jax.random.uniform(now.key("algorithm"), (), dtype) < self.probability

    def _moved(self, model: Array, control: Array, now: Round) -> Float[Array, "clients dim"]:
        part = self._part(now)
        return model - self.step_size(now.number) * (part.gradient(model) - control)

    def _corrected(self, control: Array, change: Array, now: Round) -> Float[Array, "clients dim"]:
        return control + self.probability / self.step_size(now.number) * change


class ServerState(NamedTuple):
    """What Scaffnew keeps from round to round."""

    model: Array  # [D]  what the server last made of all
    local: Array  # [K, D]  w_k
    control: Array  # [K, D]  h_k


@algorithm("Scaffnew", "mishchenko2022", Needs(None, masked=True))
@module
class Scaffnew(_Skipping):
    r"""ProxSkip with a server: gradient steps all the time, an average now and then (Scaffnew).

    .. math::

        \hat w_k&=w_k^{(n-1)}-\mu\big(f_k'(w_k^{(n-1)})-h_k\big) \\
        w_k^{(n)}&=\begin{cases}
            \frac1K\sum_l\hat w_l,\quad h_k\leftarrow h_k+\frac p\mu(w_k^{(n)}-\hat w_k)
                & \text{with the chance }p \\
            \hat w_k & \text{else}\end{cases}

    with one draw for all, and :math:`h_k=0` at the start. For smooth, strongly convex objectives
    and :math:`\mu\le1/L` it comes to the optimum linearly, and with :math:`p=1/\sqrt\kappa` after
    :math:`O(\sqrt\kappa)` averages where gradient descent needs :math:`O(\kappa)`. Rounds without
    one send nothing. The model that is judged is the server's.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      probability: :math:`p`, in (0, 1].
      batches: what a step is on (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: a probability outside (0, 1], batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> run = fl.run(
      ...     fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2),
      ...         algorithm=fl.algorithms.Scaffnew(0.1, probability=0.3),
      ...         metrics=["normalized_error"],
      ...     ),
      ...     rounds=400)
      >>> bool(run.normalized_error[-1] < 1e-8)
      True

    Reference:
      Mishchenko et al. 2022, Algorithm 2.
    """

    def init(self, problem: Problem, network: Any) -> ServerState:
        server = server_start(problem)
        local = jnp.broadcast_to(server, (problem.clients, problem.dim))
        return ServerState(server, local, jnp.zeros_like(local))

    def step(self, state: ServerState, now: Round) -> ServerState:
        link, speaks = now.link, self._speaks(now)
        moved = self._moved(state.local, state.control, now)
        everyone = jnp.broadcast_to(speaks, now.available.shape)
        said = link.send(moved, state.model, sending=everyone)
        server = link.publish(link.mean(said, state.model), receivers=everyone)
        control = self._corrected(state.control, server[None] - moved, now)
        return ServerState(
            jnp.where(speaks, server, state.model),
            jnp.where(speaks, server[None], moved),
            jnp.where(speaks, control, state.control),
        )


class PeerState(NamedTuple):
    """What ProxSkip keeps from round to round."""

    model: Array  # [K, D]  w_k
    control: Array  # [K, D]  h_k
    mixing: Combination  # the symmetric weights


@algorithm("ProxSkip", "mishchenko2022", Needs())
@module
class ProxSkip(_Skipping):
    r"""Gradient steps all the time, an exchange with neighbors now and then (ProxSkip).

    .. math::

        \hat w_k&=w_k^{(n-1)}-\mu\big(f_k'(w_k^{(n-1)})-h_k\big) \\
        w_k^{(n)}&=\begin{cases}
            \frac12\hat w_k+\frac12\sum_la_{kl}\hat w_l,\quad
                h_k\leftarrow h_k+\frac p\mu(w_k^{(n)}-\hat w_k) & \text{with the chance }p \\
            \hat w_k & \text{else}\end{cases}

    with one draw for all, and :math:`h_k=0` at the start. The weights :math:`\frac12(I+A)` are
    positive semidefinite for every symmetric, doubly stochastic :math:`A`, as the theory asks; with
    them it is the paper's form among peers, of :math:`\tau=p/(2\mu)`, and for :math:`p=1` exact
    diffusion. For smooth, strongly convex objectives it comes to the optimum linearly; rounds
    without an exchange send nothing.

    Args:
      step_size: as of :class:`Scaffnew`.
      probability: as of :class:`Scaffnew`.
      mixing: the weights :math:`a_{kl}`, as of :class:`Consensus`, symmetric.
      batches: as of :class:`Scaffnew`.

    Raises:
      ValueError: as :class:`Scaffnew`; weights that are not symmetric or do not fit the graph.

    Reference:
      Mishchenko et al. 2022, section 5; Guo et al. 2023, Algorithm 1.
    """

    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")

    def validate(self) -> None:
        super().validate()
        check_sums(self.mixing, type(self).label)

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return (self.mixing,)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        check_weights(self.mixing, network)

    def init(self, problem: Problem, network: Graph) -> PeerState:
        start = start_models(problem)
        return PeerState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: PeerState, now: Round) -> PeerState:
        speaks = self._speaks(now)
        moved = self._moved(state.model, state.control, now)
        receivers = jnp.where(speaks, now.network.neighbor_counts(), 0)
        inbox = now.link.exchange(moved, receivers=receivers)[1]
        # Controls sum to zero whatever became of the message.
        change = -inbox.apart(state.mixing) / 2
        model = moved + change
        control = self._corrected(state.control, change, now)
        return PeerState(
            jnp.where(speaks, model, moved),
            jnp.where(speaks, control, state.control),
            state.mixing,
        )
