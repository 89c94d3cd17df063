"""The control perspective: gradient descent with integral feedback (Wang and Elia 2010)."""

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


class ControlState(NamedTuple):
    """State of Wang-Elia between rounds."""

    model: Array  # [K, D]  w_k
    integral: Array  # [K, D]  z_k
    weights: Combination  # A


@algorithm("Wang-Elia", "wang2010", Needs(data="any", trains=True))
@module
class WangElia(Exact):
    r"""Distributed optimization as proportional-integral control of the peers' disagreement.

    .. math::

        w^{(n+1)}=w^{(n)}-B(w^{(n)}+z^{(n)})-\mu f'(w^{(n)}),\qquad
        z^{(n+1)}=z^{(n)}+Bw^{(n)},\quad z^{(0)}=0

    with :math:`B=(I-A)/2`. Its correction :math:`Bz` corresponds to ``EXTRAState.dual`` in
    :class:`EXTRA`, with :math:`B^2` where that has :math:`\tilde A-A`; it is also exchanged over
    the network, so a message is a model and an integral, :math:`2D` numbers, and unlike for the
    related methods a failing link, even in both directions together, prevents convergence to the
    minimizer.

    Args and Raises: as for :class:`EXTRA`, without ``blend``.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.WangElia(0.2)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Wang & Elia 2010.
    """

    def message_size(self, dim: int) -> int:
        return 2 * dim

    def init(self, problem: Problem | Stream, network: Graph) -> ControlState:
        start = start_models(problem)
        return ControlState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: ControlState, now: Round) -> ControlState:
        gradient = self._step_gradient(now, state.model)
        message = jnp.concatenate([state.model, state.integral], axis=1)
        sent, inbox = now.link.exchange(message)
        models, integrals = jnp.split((sent - inbox.mean(over=state.weights)) / 2, 2, axis=1)
        model = state.model - models - integrals - self.step_size(now.number) * gradient
        return ControlState(model, state.integral + models, state.weights)
