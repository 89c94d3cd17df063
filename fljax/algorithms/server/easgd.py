r"""EASGD: workers tied to a center by elastic forces (Zhang, Choromanska and LeCun 2015)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Corrected
from fljax.graphs.federation import Network
from fljax.problems import Problem


class EASGDState(NamedTuple):
    """State of EASGD between rounds."""

    model: Array  # [D]  the center, x-tilde
    workers: Array  # [K, D]  x_k


@algorithm(
    "EASGD", "zhang2015", SUMMED, {"Elastic averaging": "", "Synchronous elastic averaging SGD": ""}
)
@module
class EASGD(ReleasesModel, Corrected):
    r"""Elastic averaging: the workers and a center attract each other with equal forces.

    In each round the participants receive the center :math:`\tilde x`, all at the same time, and

    .. math::

        x_k\leftarrow x_k-\alpha(x_k-\tilde x)-\mu f_k'(x_k),\qquad
        \tilde x\leftarrow\tilde x+\alpha\sum_{k\in S}(x_k-\tilde x)

    with :math:`x_k` and :math:`\tilde x` of before the round on all right-hand sides. With several
    local steps the others of the round are :math:`x_k\leftarrow x_k-\mu f_k'(x_k)`: the paper's
    communication period :math:`\tau`. Unlike in federated averaging a worker keeps its own model.
    Metrics evaluate the center. Workers that do not participate stay where they are.

    With one step a round and all workers this is gradient descent on

    .. math:: \sum_k\Big(f_k(x_k)+\frac\rho2\|x_k-\tilde x\|^2\Big),\qquad\rho=\frac\alpha\mu

    so that the center converges to the minimizer of the sum of the Moreau envelopes of the
    objectives. It minimizes :math:`\sum_kf_k` too if clients have equal data, or as :math:`\rho`
    grows.
    For convex objectives of curvature at most :math:`L` it does so whenever

    .. math:: \alpha<\frac{2(2-\mu L)}{2+K(2-\mu L)}

    (:func:`fljax.theory.step_bounds.easgd_step`), and not beyond if all curvatures are :math:`L`.
    For one worker it is the paper's condition of the round-robin scheme,
    :math:`\alpha<(4-2\mu L)/(4-\mu L)`, where the center meets one worker at a time. The usual
    choice is :math:`\alpha=0.9/K`.

    In the paper workers draw from the same data. FL-bench's ``Elastic`` is another method,
    elastic aggregation, which scales each parameter's update by its sensitivity.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      moving_rate: :math:`\alpha`, in (0, 1).

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Raises:
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.Corrected`; an optimizer
        as the step size; a moving rate outside (0, 1).

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.EASGD(0.1, moving_rate=0.15),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 0.1)
      True

    Reference:
      Zhang, Choromanska and LeCun 2015, the synchronous form; the bound above is ours.
    """

    moving_rate: Float[Array, ""] | float = dataclasses.field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("moving_rate", self.moving_rate, above=0, below=1)

    def init(self, problem: Problem, network: Network) -> EASGDState:
        return EASGDState(server_start(problem), start_models(problem))

    def step(self, state: EASGDState, now: Round) -> EASGDState:
        cohort = self.invite(now, state.model)
        center = now.link.publish(state.model, cohort.active)
        workers = cohort.participants.take(state.workers)
        attraction = self.moving_rate * (workers - center[None])
        first = jnp.arange(cohort.longest, dtype=jnp.int32) == 0

        def delayed(part: Problem, model: Array, context: PyTree) -> Array:
            # The gradient of the first step is at the model of before the pull.
            attraction, is_first = context
            return part.gradient(model + jnp.where(is_first[:, None], attraction, 0))

        workers = self.learn(
            now,
            cohort,
            workers - attraction,
            direction=delayed,
            context=attraction,
            per_step=jnp.broadcast_to(first, (len(workers), cohort.longest)),
        ).model
        arrived = self.collect(now, cohort, attraction, jnp.zeros_like(center))
        return EASGDState(
            state.model + arrived.weight * arrived.total,
            cohort.participants.put(state.workers, workers),
        )
