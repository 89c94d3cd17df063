"""Gradient tracking by ADMM (Carnevale et al. 2025)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class ADMMState(NamedTuple):
    """State of ADMM tracking between rounds."""

    model: Array  # [K, D]  w_k
    own: Array  # [K, 2 D]  sum_l z_kl
    others: Array  # [K, 2 D]  sum_l z_lk


@algorithm("ADMM tracking", "carnevale2025", Needs(data="any", trains=True))
@module
class ADMMTracking(Descending):
    r"""The ADMM-tracking gradient: models and gradients are averaged by relaxed ADMM.

    .. math::

        \binom{y_k}{s_k} &= \frac1{1+\rho d_k}\bigg(\binom{w_k}{f_k'(w_k)}
            +\sum_{l\in\mathcal N_k}z_{kl}\bigg),\qquad
        w_k\leftarrow(1-\gamma)w_k+\gamma(y_k-\mu s_k) \\
        z_{kl} &\leftarrow (1-\alpha)z_{kl}+\alpha\Big(2\rho\binom{y_l}{s_l}-z_{lk}\Big)

    from :math:`z_{kl}=\rho\binom{w_l}0`, the paper's zero relative to the initial models. A peer
    needs only the sums of the edge variables, its own and its neighbors' ones for
    it, and these follow from the :math:`y` and :math:`s` that it sends and receives: a message is
    the two, :math:`2D` numbers, the same for all neighbors. (The paper sends a message
    :math:`2\rho y-z` over each edge, so that the two directions may fail independently; here a
    peer's own message replaces a lost one, which preserves the sums if both ends lose it.) In
    single precision the error stops at about -95 dB, however many rounds, because the sums contain
    models.

    Args:
      step_size: :math:`\mu` of the tracked gradient, a number or a schedule of the round, > 0.
      penalty: :math:`\rho>0`.
      relaxation: :math:`\alpha\in(0,1)`.
      blend: :math:`\gamma\in(0,1]`, the weight of the new value in the model's update.
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.ADMMTracking(0.1, penalty=1.0, blend=0.2)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=500).normalized_error[-1] < 1e-5)
      True

    Reference:
      Carnevale, Bastianello, Notarstefano & Carli 2025, Algorithm 1.
    """

    penalty: Float[Array, ""] | float = field(default=1.0, kw_only=True)
    relaxation: Float[Array, ""] | float = field(default=0.5, kw_only=True)
    blend: Float[Array, ""] | float = field(default=0.1, kw_only=True)

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.interval("relaxation", self.relaxation, above=0, below=1)
        checks.interval("blend", self.blend, above=0, at_most=1)

    def message_size(self, dim: int) -> int:
        return 2 * dim

    def init(self, problem: Problem | Stream, network: Graph) -> ADMMState:
        start = start_models(problem)
        neighbor_models = network.neighbor_sum(start)
        own_models = network.degree[:, None] * start
        outgoing, incoming = (
            jnp.concatenate([self.penalty * models, jnp.zeros_like(start)], axis=1)
            for models in (neighbor_models, own_models)
        )
        return ADMMState(start, outgoing, incoming)

    def step(self, state: ADMMState, now: Round) -> ADMMState:
        degree = now.network.degree[:, None]
        gradient = self._step_gradient(now, state.model)
        message = jnp.concatenate([state.model, gradient], axis=1) + state.own
        message = message / (1 + self.penalty * degree)
        mean, tracker = jnp.split(message, 2, axis=1)
        moved = mean - self.step_size(now.number) * tracker
        model = state.model + self.blend * (moved - state.model)
        sent, inbox = now.link.exchange(message)

        def relaxed(z: Array, other: Array, target: Array) -> Array:
            return z + self.relaxation * (2 * self.penalty * target - other - z)

        outgoing = relaxed(state.own, state.others, inbox.sum())
        incoming = relaxed(state.others, state.own, degree * sent)
        return ADMMState(model, outgoing, incoming)
