r"""Per-FedAvg: personalization by meta-learning (Fallah, Mokhtari and Ozdaglar 2020)."""

import dataclasses
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module, static
from fljax.algorithms.base import algorithm, server_start, start_models
from fljax.algorithms.local_steps import descend
from fljax.algorithms.server.base import AVERAGED, Averaging
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule

__all__ = ["PerFedAvg", "State"]

#: How the gradient through a personal step treats the Hessian.
VARIANTS = ("hessian_free", "first_order", "exact")
#: Batches of a step: for the personal step, the gradient after it, and the Hessian.
DRAWS = 3


class State(NamedTuple):
    """State of Per-FedAvg between rounds."""

    model: Array  # [K, D]  what clients make of the server's model
    server: Array  # [D]  w


@algorithm(
    "Per-FedAvg",
    "fallah2020",
    AVERAGED,
)
@module
class PerFedAvg(Averaging):
    r"""Federated averaging of the loss *after* a personal step, by model-agnostic meta-learning.

    The objective is :math:`\frac1K\sum_kf_k(w-\alpha f_k'(w))`. A participant starts from
    :math:`w_k=w^{(n-1)}` and repeats, on three batches :math:`\mathcal D,\mathcal D',\mathcal D''`
    that are drawn independently,

    .. math::

        \tilde w=w_k-\alpha f_k'(w_k;\mathcal D),\qquad v=f_k'(\tilde w;\mathcal D'),\qquad
        w_k \leftarrow w_k-\beta\big(v-\alpha\,d\big)

    with, by ``variant``,

    .. math::

        d=\frac{f_k'(w_k+\delta v;\mathcal D'')-f_k'(w_k-\delta v;\mathcal D'')}{2\delta},
        \qquad d=0,\qquad d=f_k''(w_k;\mathcal D'')\,v

    ``"hessian_free"`` (HF), ``"first_order"`` (FO), and ``"exact"``, which the others approximate;
    it uses forward differentiation at the cost of two gradients, like HF. The server averages the
    :math:`w_k`. FO has other fixed points, those with :math:`\sum_kf_k'(w-\alpha f_k'(w))=0`.

    Metrics evaluate the personalized model of each client, participating or not: :math:`\tau`
    personal steps from the server's model on all of its samples, as in
    :class:`~fljax.algorithms.FineTunedFedAvg`.

    Args:
      step_size: :math:`\beta`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments; clients have equal weights by default, as in the paper. With ``epochs`` a step is
        on one batch from each of three permutations of the samples.
      personal_step_size: :math:`\alpha`, a schedule of the round or a number, > 0.
      variant: as above.
      offset: :math:`\delta>0` of HF, with the unit of a model over a gradient. The error is
        :math:`O(\delta^2)` if third derivatives are bounded, and rounding errors grow as
        :math:`1/\delta`.
      personal_steps: :math:`\tau\ge1` of the evaluated models.

    Raises:
      ValueError: another variant; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.PerFedAvg(0.1, personal_step_size=0.05, batch=5),
      ...     metrics=["objective"],
      ... )
      >>> run = fl.run(simulation, rounds=20)
      >>> bool(run.objective[-1] < run.objective[0])
      True

    Reference:
      Fallah et al. 2020, Algorithm 1, and the two approximations of its experiments.
    """

    personal_step_size: Schedule = field(converter=as_schedule, kw_only=True)
    variant: str = static(default="hessian_free", kw_only=True)
    offset: Float[Array, ""] | float = dataclasses.field(default=1e-3, kw_only=True)
    personal_steps: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        _check.choice("variant", self.variant, VARIANTS)
        _check.positive("offset", self.offset)
        _check.count("personal_steps", self.personal_steps)

    def init(self, problem: Problem, network: Any) -> State:
        return State(start_models(problem), server_start(problem))

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now, state.model, draws=DRAWS)
        start, alpha = (
            now.link.publish(state.server, cohort.here),
            self.personal_step_size(now.number),
        )

        def through(parts: Any, model: Array, given: Any) -> Array:
            """Return the gradient of the loss after a personal step."""
            inner, outer, curved = parts if isinstance(parts, tuple) else (parts,) * DRAWS
            slope = outer.gradient(model - alpha * inner.gradient(model))
            if self.variant == "first_order":
                return slope
            return slope - alpha * self._curvature(curved, model, slope)

        batch = None
        if cohort.batch is not None:
            batch = tuple(jax.tree.map(itemgetter(i), cohort.batch) for i in range(DRAWS))
        learned = self.learn(now, cohort, start, batch=batch, direction=through)
        server = self.collect(now, cohort, learned.model, start).move(start)
        everyone = jnp.broadcast_to(server, state.model.shape)
        model = descend(self.own(now.problem).gradient, everyone, alpha, self.personal_steps)
        return State(model, server)

    def _curvature(self, part: Problem, model: Array, along: Array) -> Array:
        """Return the Hessian-vector products of the clients."""
        if self.variant == "exact":
            return jax.jvp(part.gradient, (model,), (along,))[1]
        ahead, behind = model + self.offset * along, model - self.offset * along
        return (part.gradient(ahead) - part.gradient(behind)) / (2 * self.offset)
