"""DiNNO: decentralized ADMM with steps of an optimizer (Yu, Vincent and Schwager 2022)."""

from typing import NamedTuple, cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.local_steps import check_full
from fljax.algorithms.peers.peer_algorithm import train_locally
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.optimization.optimizers import Optimizer, as_step, check_optimizer
from fljax.optimization.schedules import Schedule
from fljax.problems import Problem
from fljax.problems.batches import Batches
from fljax.problems.streams import Stream


class DiNNOState(NamedTuple):
    """State of DiNNO between rounds."""

    model: Array  # [K, D]  w_k
    dual: Array  # [K, D]  p_k


@algorithm("DiNNO", "yu2022", Needs(data="any", trains=True))
@module
class DiNNO(Algorithm):
    r"""Distributed neural network optimization: ADMM with approximate minimization by an optimizer.

    A round begins with the exchange of models,

    .. math::

        p_k \leftarrow p_k+\rho\sum_{l\in\mathcal N_k}(w_k-w_l)

    and then from :math:`v=w_k` takes steps of an optimizer along the gradient of

    .. math::

        f_k(v)+v^\top p_k+\rho\sum_{l\in\mathcal N_k}\Big\|v-\frac{w_k+w_l}2\Big\|^2

    to the next :math:`w_k`. With one gradient step it is DLM with the same step size at all peers;
    in the limit of many steps it is :class:`NetworkedADMM`.

    Args:
      penalty: :math:`\rho>0`.
      step_size: of a local step, a number or a schedule of the round, > 0; or an optimizer
        (:func:`fljax.optimizers.from_optax`, or optax's own), which is reinitialized in every
        round.
      local_steps: local steps per round, >= 1.
      batches: the batch of each step (:mod:`fljax.batches`); all of a client's samples by default.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.DiNNO(penalty=0.5, step_size=0.1, local_steps=5),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Yu, Vincent & Schwager 2022, Algorithm 1.
    """

    penalty: Float[Array, ""] | float
    step_size: Schedule | Optimizer = field(converter=as_step)
    local_steps: int = static(default=1, kw_only=True)
    batches: Batches | None = field(default=None, kw_only=True)

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.count("local_steps", self.local_steps)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        if self.batches is not None:
            self.batches.check(problem)
        if problem.mixes_samples:
            check_full(self.batches, cast(Problem, problem))
        check_optimizer(self.step_size, problem.layout)

    def init(self, problem: Problem | Stream, network: Graph) -> DiNNOState:
        start = start_models(problem)
        return DiNNOState(start, jnp.zeros_like(start))

    def step(self, state: DiNNOState, now: Round) -> DiNNOState:
        degree = now.network.degree[:, None]
        sent, inbox = now.link.exchange(state.model)
        received = inbox.sum()
        dual = state.dual + self.penalty * (degree * sent - received)
        linear = dual - self.penalty * (degree * sent + received)

        def direction(part: Problem, model: Array, context: tuple[Array, Array]) -> Array:
            linear, stiffness = context
            return part.gradient(model) + stiffness * model + linear

        size = self.step_size
        step = size if isinstance(size, Optimizer) else size(now.number)
        context = linear, 2 * self.penalty * degree
        model = train_locally(
            now, self.batches, state.model, step, self.local_steps, direction, context
        )
        return DiNNOState(model, dual)
