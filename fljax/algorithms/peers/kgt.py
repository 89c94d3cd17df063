"""K-GT: gradient tracking with local steps (Liu, Lin, Koloskova and Stich 2024)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.gradient_tracking import exchange_and_combine
from fljax.algorithms.peers.peer_algorithm import LocalSteps, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class KGTState(NamedTuple):
    """State of K-GT between rounds."""

    model: Array  # [K, D]  w_k
    correction: Array  # [K, D]  c_k
    weights: Combination  # A


@algorithm("K-GT", "liu2024", Needs(data="any", directed=True, trains=True))
@module
class KGT(LocalSteps):
    r"""Gradient tracking with local steps, which tracks the sum of a round's gradients.

    .. math::

        v_{k,0} &= w_k^{(n)},\qquad
        v_{k,e+1} = v_{k,e}-\mu\big(f_k'(v_{k,e})+c_k^{(n)}\big),\quad e=0..E-1 \\
        z_k &= \frac{w_k^{(n)}-v_{k,E}}{E\mu},\qquad
        c_k^{(n+1)} = c_k^{(n)}-z_k+\sum_{l\in\mathcal N_k}a_{kl}z_l \\
        w_k^{(n+1)} &= \sum_{l\in\mathcal N_k}a_{kl}\big(w_l^{(n)}-\eta E\mu z_l\big)

    from :math:`c=0`, which the paper uses in practice. A message is a model and a :math:`z`,
    :math:`2D` numbers.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      local_steps: :math:`E\ge1`.
      mixing: the weights :math:`A`, as in :class:`Consensus`, doubly stochastic.
      outer_step_size: :math:`\eta>0`, the step size at an exchange.
      batches: the batch of each step (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.KGT(0.03, local_steps=5)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Liu, Lin, Koloskova & Stich 2024, Algorithm 1.
    """

    outer_step_size: Float[Array, ""] | float = field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("outer_step_size", self.outer_step_size)

    def message_size(self, dim: int) -> int:
        return 2 * dim

    def init(self, problem: Problem | Stream, network: Graph) -> KGTState:
        start = start_models(problem)
        return KGTState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: KGTState, now: Round) -> KGTState:
        movement = state.model - self._train_locally(now, state.model, state.correction)
        mean = movement / (self.local_steps * self.step_size(now.number))
        message = jnp.concatenate([state.model - self.outer_step_size * movement, mean], axis=1)
        model, mixed = jnp.split(exchange_and_combine(now, message, state.weights), 2, axis=1)
        return KGTState(model, state.correction + mixed - mean, state.weights)
