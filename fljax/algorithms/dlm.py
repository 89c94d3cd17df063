r"""ADMM among peers with gradient steps in the place of minimizers: DLM, and DiNNO with several."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module, static
from fljax.algorithms.base import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.peers import largest_curvature, learnt
from fljax.algorithms.zcdp_nfl import ZCDPNFL
from fljax.batches import Batches
from fljax.graphs import Graph
from fljax.optimizers import Optimizer, as_step
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import Schedule
from fljax.streams import Stream

__all__ = ["DLM", "DiNNO", "State"]


@algorithm("DLM", "ling2015", Needs())
@module
class DLM(ZCDPNFL):
    r"""Decentralized linearized ADMM: one gradient step in the place of ADMM's minimizer.

    .. math::

        w_k^{(n)} &= w_k^{(n-1)}-\frac{f_k'(w_k^{(n-1)})+\gamma_k
            +c\sum_{l\in\mathcal N_k}(w_k^{(n-1)}-w_l^{(n-1)})}{2c|\mathcal N_k|+\rho} \\
        \gamma_k &\leftarrow \gamma_k+c\sum_{l\in\mathcal N_k}(w_k^{(n)}-w_l^{(n)})

    which is zCDP-NFL without privacy and with a constant step, the same lines: ``penalty`` is the
    :math:`c` of the paper, ``step_size`` its :math:`1/\rho`. With :math:`L_+`, the degrees and the
    adjacency matrix added up, the two lines are a forward-backward step in the metric
    :math:`\rho I+cL_+`, so they converge wherever that exceeds half of the gradients' Lipschitz
    constant :math:`L`: on every network for ``step_size`` below :math:`2/L`.

    Args:
      penalty: :math:`c>0`.
      step_size: :math:`1/\rho`, a number or a schedule of the round, > 0.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.DLM(penalty=1.0, step_size=0.3),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Ling, Shi, Wu & Ribeiro 2015, Algorithm 1.
    """

    penalty: Float[Array, ""] | float
    step_size: Schedule | Optimizer = field(converter=as_step)
    stability = "2 / L, whatever the network"

    def step_bound(
        self, problem: Problem | Stream, network: Graph | None, curvature: Array | None
    ) -> Array | None:
        """Enough, and more than needed where the network pulls hard."""
        largest = largest_curvature(problem)
        return None if largest is None else 2 / jnp.max(largest)


class State(NamedTuple):
    """What DiNNO keeps from round to round."""

    model: Array  # [K, D]  w_k
    dual: Array  # [K, D]  p_k


@algorithm("DiNNO", "yu2022", Needs(data="any"))
@module
class DiNNO(Algorithm):
    r"""Distributed optimization of neural networks: ADMM whose minimizer is some steps of any kind.

    A round begins with the exchange of models,

    .. math::

        p_k \leftarrow p_k+\rho\sum_{l\in\mathcal N_k}(w_k-w_l)

    and then from :math:`v=w_k` takes steps of an optimizer along the gradient of

    .. math::

        f_k(v)+v^\top p_k+\rho\sum_{l\in\mathcal N_k}\Big\|v-\frac{w_k+w_l}2\Big\|^2

    to the next :math:`w_k`. With one gradient step it is DLM with the same step at all peers; with
    ever more of them :class:`NetworkedADMM`.

    Args:
      penalty: :math:`\rho>0`.
      step_size: of a local step, a number or a schedule of the round, > 0; or an optimizer
        (:func:`fljax.optimizers.from_optax`, or optax's own), which begins anew in every round.
      local_steps: in a round, >= 1.
      batches: what each step is on (:mod:`fljax.batches`); all of a client's samples by default.

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
        _check.positive("penalty", self.penalty)
        _check.count("local_steps", self.local_steps)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        if self.batches is not None:
            self.batches.check(problem)

    def init(self, problem: Problem | Stream, network: Graph) -> State:
        start = start_models(problem)
        return State(start, jnp.zeros_like(start))

    def step(self, state: State, now: Round) -> State:
        degree = now.network.degree[:, None]
        said, inbox = now.link.exchange(state.model)
        received = inbox.sum()
        dual = state.dual + self.penalty * (degree * said - received)
        pull = dual - self.penalty * (degree * said + received)

        def direction(part: Problem, model: Array, given: tuple[Array, Array]) -> Array:
            pull, stiffness = given
            return part.gradient(model) + stiffness * model + pull

        size: Any = self.step_size
        step = size if isinstance(size, Optimizer) else size(now.number)
        given = pull, 2 * self.penalty * degree
        model = learnt(now, self.batches, state.model, step, self.local_steps, direction, given)
        return State(model, dual)
