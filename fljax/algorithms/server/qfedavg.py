r"""q-FedAvg: fair federated averaging (Li, Sanjabi, Beirami and Smith 2020)."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module
from fljax.algorithms.base import ReleasesModel, algorithm, server_start
from fljax.algorithms.server.base import SUMMED, Averaging, check_no_optimizer
from fljax.problems import Problem
from fljax.rounds import Round

__all__ = ["QFedAvg", "State"]


class State(NamedTuple):
    """State of q-FedAvg between rounds."""

    model: Array  # [D]  the server's w


@algorithm("q-FedAvg", "li2020fair", SUMMED)
@module
class QFedAvg(ReleasesModel, Averaging):
    r"""Fair averaging, with larger weights of larger losses:
    :math:`\min_w\sum_kp_k\frac{f_k(w)^{q+1}}{q+1}`.

    A participant's local steps lead from :math:`w` to :math:`w_k`; with :math:`\delta_k=L(w-w_k)`
    instead of its gradient it sends

    .. math::

        \Delta_k=f_k(w)^q\delta_k,\qquad
        h_k=qf_k(w)^{q-1}\|\delta_k\|^2+Lf_k(w)^q

    and the server, since :math:`h_k` bounds the curvature of the client's term, sets

    .. math::

        w\leftarrow w-\frac{\sum_{k\in S}p_k\Delta_k}{\sum_{k\in S}p_kh_k}

    :math:`q=0` is federated averaging. With one step on all samples and :math:`L=1/\mu` it is the
    paper's q-FedSGD, a descent method for the fair objective. A message has :math:`D+1` numbers.
    The paper draws clients with probabilities :math:`p_k` instead of weighting them. Losses must
    not be negative.

    Args:
      step_size: :math:`\mu` of the local steps, a schedule of the round or a number, > 0.
      fairness: :math:`q\ge0`.
      curvature: :math:`L>0`, an upper bound on the curvature of :math:`f_k`; :math:`1/\mu` by
        default, as in the paper.

    Other arguments are those of :class:`~fljax.algorithms.server.base.Averaging`.

    Raises:
      ValueError: an optimizer as the step size, and as for
        :class:`~fljax.algorithms.server.base.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2)
      >>> def worst(fairness):
      ...     algorithm = fl.algorithms.QFedAvg(0.1, fairness=fairness)
      ...     model = fl.run(fl.Simulation(problem, algorithm), rounds=300).model.values
      ...     return problem.objective(model).max()
      >>> bool(worst(5.0) < worst(0.0))
      True

    Reference:
      Li et al. 2020 (fair), Algorithms 1 and 2.
    """

    fairness: Float[Array, ""] | float = dataclasses.field(kw_only=True)
    curvature: Float[Array, ""] | float | None = dataclasses.field(default=None, kw_only=True)

    def validate(self) -> None:
        super().validate()
        check_no_optimizer(self)
        _check.nonnegative("fairness", self.fairness)
        if self.curvature is not None:
            _check.positive("curvature", self.curvature)

    def init(self, problem: Problem, network: Any) -> State:
        return State(server_start(problem))

    def step(self, state: State, now: Round) -> State:
        cohort, power = self.invite(now, state.model), self.fairness
        server = now.link.publish(state.model, cohort.here)
        start = jnp.broadcast_to(server, (len(cohort.here), len(server)))
        loss = cohort.who.of(self.own(now.problem)).objective(start)[:, None]
        curvature = self.curvature
        if curvature is None:
            curvature = 1 / self.size(now.number)

        slope = curvature * (start - self.learn(now, cohort, start).model)
        # Where a client has no loss left its gradient is zero, too, and it has no say for q > 0.
        loss = jnp.maximum(loss, jnp.finfo(loss.dtype).tiny)
        bound = power * loss ** (power - 1) * jnp.sum(slope**2, axis=1, keepdims=True)
        message = [loss**power * slope, bound + curvature * loss**power]

        around = jnp.zeros(len(server) + 1, server.dtype)
        arrived = self.collect(now, cohort, jnp.concatenate(message, axis=1), around)
        total, bound = arrived.total[:-1], arrived.total[-1]
        return State(server - total / jnp.where(bound > 0, bound, 1))

    def message_size(self, dim: int) -> int:
        return dim + 1
