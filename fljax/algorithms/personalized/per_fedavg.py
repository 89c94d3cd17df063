r"""Per-FedAvg: personalization by meta-learning (Fallah, Mokhtari and Ozdaglar 2020)."""

import dataclasses
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import algorithm, server_start, start_models
from fljax.algorithms.local_steps import descend
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem

#: How the gradient through a personal step treats the Hessian.
VARIANTS = ("hessian_free", "first_order", "exact")
#: Batches of a step: for the personal step, the gradient after it, and the Hessian.
DRAWS = 3


class PerFedAvgState(NamedTuple):
    """State of Per-FedAvg between rounds."""

    model: Array  # [K, D]  the server's model after each client's personal steps
    server: Array  # [D]  w


@algorithm(
    "Per-FedAvg",
    "fallah2020",
    AVERAGED,
    {
        "Personalized FedAvg": "",
        "Per-FedAvg (FO)": "with variant='first_order'",
        "Per-FedAvg (HF)": "with variant='hessian_free'",
    },
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
        checks.choice("variant", self.variant, VARIANTS)
        checks.positive("offset", self.offset)
        checks.count("personal_steps", self.personal_steps)

    def gradients_per_step(self, problem: object) -> float:
        return {"first_order": 2.0, "exact": 3.0, "hessian_free": 4.0}[self.variant]

    def init(self, problem: Problem, network: Network) -> PerFedAvgState:
        return PerFedAvgState(start_models(problem), server_start(problem))

    def step(self, state: PerFedAvgState, now: Round) -> PerFedAvgState:
        cohort = self.invite(now, state.model, draws=DRAWS)
        start = now.link.publish(state.server, cohort.active)
        alpha = self.personal_step_size(now.number)

        def meta_gradient(
            parts: Problem | tuple[Problem, ...], model: Array, context: PyTree
        ) -> Array:
            """Return the gradient of the loss after a personal step."""
            inner, outer, curved = parts if isinstance(parts, tuple) else (parts,) * DRAWS
            gradient = outer.gradient(model - alpha * inner.gradient(model))
            if self.variant == "first_order":
                return gradient
            return gradient - alpha * self._curvature(curved, model, gradient)

        batch = None
        if cohort.batch is not None:
            batch = tuple(jax.tree.map(itemgetter(i), cohort.batch) for i in range(DRAWS))
        learned = self.learn(now, cohort, start, batch=batch, direction=meta_gradient)
        server = self.collect(now, cohort, learned.model, start).move(start)
        everyone = jnp.broadcast_to(server, state.model.shape)
        model = descend(
            self.local_problem(now.problem).gradient, everyone, alpha, self.personal_steps
        )
        return PerFedAvgState(model, server)

    def _curvature(self, part: Problem, model: Array, direction: Array) -> Array:
        """Return the Hessian-vector products of the clients."""
        if self.variant == "exact":
            return jax.jvp(part.gradient, (model,), (direction,))[1]
        forward = model + self.offset * direction
        backward = model - self.offset * direction
        return (part.gradient(forward) - part.gradient(backward)) / (2 * self.offset)
