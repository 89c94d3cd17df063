r"""Bias-corrected diffusion: exact diffusion, NIDS and, with local steps, LED.

They are variants of one method. A peer sends its model after a gradient step, corrected by the
accumulated changes by combinations; its new model is a combination :math:`\tilde A` of these
messages:

.. math::

    \phi^{(n)}=w^{(n)}-\mu f'(w^{(n)})-y^{(n)},\qquad w^{(n+1)}=\tilde A\phi^{(n)},\qquad
    y^{(n+1)}=y^{(n)}+\phi^{(n)}-w^{(n+1)}.

Exact diffusion has :math:`\tilde A=(I+A)/2`; NIDS has a step size :math:`\mu_k` for each peer and
:math:`\tilde A=I-c\,\mathrm{diag}(\mu)(I-A)`, which with equal steps and its default
:math:`c=1/(2\max_k\mu_k)` is the same except for the first step, which it does not combine, and the
regularizer, for which it uses the proximal operator; LED takes several gradient steps before it
combines. Unlike in :class:`EXTRA` the largest stable step size does not depend on the network.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.peer_algorithm import Exact, largest_curvature, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import FeatureMoments, Stream

#: The smallest eigenvalue of (I + A) / 2 is above zero on every network.
FREE = "2 / L, whatever the network (Li et al. 2019)"


class ExactDiffusionState(NamedTuple):
    """State of exact diffusion between rounds."""

    model: Array  # [K, D]  w_k
    dual: Array  # [K, D]  y_k = psi_k - w_k: kept as a sum, constant when peers agree
    weights: Combination  # A


@algorithm(
    "Exact diffusion", "yuan2019", Needs(data="any", trains=True), {"ED": "", "D2": "with batches="}
)
@module
class ExactDiffusion(Exact):
    r"""Exact diffusion: adapt, correct, combine, which removes the bias of :class:`ATC`.

    .. math::

        \psi_k^{(n)} &= w_k^{(n-1)}-\mu f_k'(w_k^{(n-1)}) \\
        \phi_k^{(n)} &= \psi_k^{(n)}+w_k^{(n-1)}-\psi_k^{(n-1)} \\
        w_k^{(n)} &= \sum_{l\in\mathcal N_k}\bar a_{kl}\phi_l^{(n)},\qquad \bar A=(I+A)/2

    from :math:`\psi^{(0)}=w^{(0)}`, so that the first round is one of :class:`ATC`. The original
    also allows certain left-stochastic weights and then minimizes the sum weighted by their Perron
    vector; here the weights are symmetric, and the sum is unweighted.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: weights that are not symmetric or do not fit the graph.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.ExactDiffusion(0.2),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Yuan, Ying, Zhao & Sayed 2019, Algorithm 1.
    """

    def init(self, problem: Problem | Stream, network: Graph) -> ExactDiffusionState:
        start = start_models(problem)
        return ExactDiffusionState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: ExactDiffusionState, now: Round) -> ExactDiffusionState:
        gradient = self._step_gradient(now, state.model)
        adapted = state.model - self.step_size(now.number) * gradient
        corrected = adapted - state.dual
        inbox = now.link.exchange(corrected)[1]
        # What one peer moves another moves back, so compression leaves the sum of models as it is.
        moved = inbox.disagreement(over=state.weights) / 2
        return ExactDiffusionState(corrected - moved, state.dual + moved, state.weights)

    stability = FREE

    def step_bound(
        self, problem: Problem | Stream, network: Graph | None, moments: FeatureMoments | None
    ) -> Array | None:
        """Return the bound of NIDS."""
        largest = largest_curvature(problem, self.batches)
        return None if largest is None else 2 / jnp.max(largest)
