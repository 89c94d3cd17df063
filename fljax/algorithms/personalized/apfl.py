r"""APFL: a mixture of a global and a personal model (Deng, Kamani and Mahdavi 2020)."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging, Cohort
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem
from fljax.problems.batches import taken
from fljax.problems.streams import Stream


class APFLState(NamedTuple):
    """State of APFL between rounds."""

    model: Array  # [K, D]  the mixtures
    personal: Array  # [K, D]  v_k
    server: Array  # [D]  w
    interpolation: Array  # [K]  alpha_k


@algorithm("APFL", "deng2020", AVERAGED, {"Adaptive personalized federated learning": ""})
@module
class APFL(Averaging):
    r"""Federated averaging plus a local model at each client that is mixed with the common one.

    A participant of round :math:`n` starts from :math:`w_k=w^{(n-1)}` and from its own last
    :math:`v_k`, and updates both on the same batch,

    .. math::

        \bar v_k=\alpha_kv_k+(1-\alpha_k)w_k,\qquad
        w_k \leftarrow w_k-\mu f_k'(w_k),\qquad
        v_k \leftarrow v_k-\mu\alpha_kf_k'(\bar v_k)

    The server averages the :math:`w_k`; :math:`v_k` is never sent. ``adaptation`` updates
    :math:`\alpha_k` once per round before the steps, on their first batch, by a gradient step on
    :math:`f_k(\bar v_k)`, and projects it onto [0, 1], so that the mixture is convex:

    .. math:: \alpha_k \leftarrow \alpha_k-\eta\langle v_k-w_k, f_k'(\bar v_k)\rangle

    Metrics evaluate the mixtures with the server's new model, for all clients. With
    :math:`\alpha_k=0` this is federated averaging, with :math:`\alpha_k=1` local training only. If
    :math:`v_k` and :math:`w_k` are equal, as initially, :math:`\alpha_k` does not change.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments; an optimizer updates :math:`(w_k,v_k)` jointly. Clients have equal weights by
        default, as in the paper.
      interpolation: :math:`\alpha_k\in[0,1]`, one number or one per client; its initial value, if
        it is adapted.
      interpolation_step_size: :math:`\eta`, a schedule of the round or a number, > 0; the
        paper's is :math:`\mu`. By default :math:`\alpha_k` is constant.

    Raises:
      ValueError: an interpolation outside [0, 1], or not one per client; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.APFL(0.1, interpolation=0.5, interpolation_step_size=0.1),
      ...     metrics=["objective"],
      ... )
      >>> run = fl.run(simulation, rounds=20)
      >>> bool(run.objective[-1] < run.objective[0])
      True

    Reference:
      Deng et al. 2020, Algorithm 1, with its adaptive choice of the mixing weight.
    """

    interpolation: Float[Array, "*clients"] | float = field(
        converter=partial(checks.filled, "interpolation"), default=0.5, kw_only=True
    )
    interpolation_step_size: Schedule | None = field(
        converter=as_schedule, default=None, kw_only=True
    )

    def validate(self) -> None:
        super().validate()
        checks.interval("interpolation", self.interpolation, at_least=0, at_most=1)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        checks.per_client("interpolation", self.interpolation, problem.clients)

    def gradients_per_step(self, problem: object) -> float:
        return 2.0

    def init(self, problem: Problem, network: Network) -> APFLState:
        start = start_models(problem)
        interpolation = jnp.broadcast_to(
            jnp.asarray(self.interpolation, problem.dtype), (problem.clients,)
        )
        return APFLState(start, start, server_start(problem), interpolation)

    def step(self, state: APFLState, now: Round) -> APFLState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        dim = now.problem.dim
        start = now.link.publish(state.server, cohort.active)
        personal, alpha = participants.take((state.personal, state.interpolation))
        if self.interpolation_step_size is not None:
            rate = self.interpolation_step_size(now.number)
            first = self._first(now, cohort)
            gradient = first.gradient(mixed(alpha, personal, start[None]))
            derivative = jnp.sum((personal - start[None]) * gradient, axis=1)
            alpha = jnp.clip(alpha - rate * derivative, 0, 1)

        def pair_gradient(part: Problem, pair: Array, alpha: Array) -> Array:
            local = pair[:, :dim]
            personal = pair[:, dim:]
            personal_gradient = alpha[:, None] * part.gradient(mixed(alpha, personal, local))
            return jnp.concatenate([part.gradient(local), personal_gradient], axis=1)

        pair = jnp.concatenate([jnp.broadcast_to(start, personal.shape), personal], axis=1)
        pair = self.learn(
            now,
            cohort,
            pair,
            direction=pair_gradient,
            context=alpha,
            layouts=[now.problem.layout] * 2,
        ).model
        server = self.collect(now, cohort, pair[:, :dim], start).move(start)
        personal = participants.put(state.personal, pair[:, dim:])
        interpolation = participants.put(state.interpolation, alpha)
        return APFLState(
            mixed(interpolation, personal, server[None]), personal, server, interpolation
        )

    def _first(self, now: Round, cohort: Cohort) -> Problem:
        """Return the problem of the participants' first steps."""
        problem = self.local_problem(now.problem)
        if cohort.batch is None:
            return cohort.participants.of(problem)
        return taken(problem, cohort.participants.numbers, cohort.batch, 0)


def mixed(
    alpha: Float[Array, " some"], personal: Float[Array, "some dim"], common: Array
) -> Float[Array, "some dim"]:
    r"""Return :math:`\alpha v+(1-\alpha)w` for each client."""
    return alpha[:, None] * personal + (1 - alpha[:, None]) * common
