"""LED: exact diffusion with local steps (Alghunaim 2024)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.peer_algorithm import LocalSteps, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class LEDState(NamedTuple):
    """State of LED between rounds."""

    model: Array  # [K, D]  w_k
    dual: Array  # [K, D]  y_k
    weights: Combination  # A


@algorithm("LED", "alghunaim2024", Needs(data="any", trains=True), {"Local exact diffusion": ""})
@module
class LED(LocalSteps):
    r"""Local exact diffusion: several corrected gradient steps before each combination.

    .. math::

        \phi_{k,0} &= w_k^{(n)},\qquad
        \phi_{k,e+1} = \phi_{k,e}-\mu f_k'(\phi_{k,e})-\beta y_k^{(n)},\quad e=0..E-1 \\
        w_k^{(n+1)} &= \sum_{l\in\mathcal N_k}\bar a_{kl}\phi_{l,E},\qquad
        y_k^{(n+1)} = y_k^{(n)}+\phi_{k,E}-w_k^{(n+1)}

    with :math:`\bar A=(I+A)/2`, positive semidefinite as the theory requires. Local steps from the
    minimizer stay there, since each peer's :math:`\mu f_k'+\beta y_k` is zero, without client
    drift. One local step with :math:`\beta=1` is exact diffusion.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      local_steps: :math:`E\ge1`.
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      dual_step_size: :math:`\beta>0`; by default :math:`1/E`.
      batches: the batch of each step (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: weights that are not symmetric or do not fit the graph.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.LED(0.05, local_steps=4),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Alghunaim 2024, Algorithm 1.
    """

    dual_step_size: Float[Array, ""] | float | None = field(default=None, kw_only=True)

    def validate(self) -> None:
        super().validate()
        if self.dual_step_size is not None:
            checks.positive("dual_step_size", self.dual_step_size)

    def init(self, problem: Problem | Stream, network: Graph) -> LEDState:
        start = start_models(problem)
        return LEDState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: LEDState, now: Round) -> LEDState:
        dual_step = 1 / self.local_steps if self.dual_step_size is None else self.dual_step_size
        drift = dual_step / self.step_size(now.number) * state.dual
        local = self._train_locally(now, state.model, drift)
        moved = now.link.exchange(local)[1].disagreement(over=state.weights) / 2
        return LEDState(local - moved, state.dual + moved, state.weights)
