r"""q-FedAvg: fair federated averaging (Li, Sanjabi, Beirami and Smith 2020)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Averaging, check_no_optimizer
from fljax.graphs.federation import Network
from fljax.problems import Problem


class QFedAvgState(NamedTuple):
    """State of q-FedAvg between rounds."""

    model: Array  # [D]  the server's w


@algorithm(
    "q-FedAvg",
    "li2020fair",
    SUMMED,
    {"q-FFL": "", "q-FedSGD": "with one local step on all samples"},
)
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

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: an optimizer as the step size, and as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

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
        checks.nonnegative("fairness", self.fairness)
        if self.curvature is not None:
            checks.positive("curvature", self.curvature)

    def init(self, problem: Problem, network: Network) -> QFedAvgState:
        return QFedAvgState(server_start(problem))

    def step(self, state: QFedAvgState, now: Round) -> QFedAvgState:
        cohort = self.invite(now, state.model)
        power = self.fairness
        server = now.link.publish(state.model, cohort.active)
        start = jnp.broadcast_to(server, (len(cohort.active), len(server)))
        loss = cohort.participants.of(self.local_problem(now.problem)).objective(start)[:, None]
        curvature = self.curvature
        if curvature is None:
            curvature = 1 / self.size(now.number)

        gradient = curvature * (start - self.learn(now, cohort, start).model)
        # A client of zero loss has a zero gradient, too, and no influence for q > 0.
        loss = jnp.maximum(loss, jnp.finfo(loss.dtype).tiny)
        bound = power * loss ** (power - 1) * jnp.sum(gradient**2, axis=1, keepdims=True)
        message = [loss**power * gradient, bound + curvature * loss**power]

        reference = jnp.zeros(len(server) + 1, server.dtype)
        arrived = self.collect(now, cohort, jnp.concatenate(message, axis=1), reference)
        total = arrived.total[:-1]
        bound = arrived.total[-1]
        return QFedAvgState(server - total / jnp.where(bound > 0, bound, 1))

    def message_size(self, dim: int) -> int:
        return dim + 1
