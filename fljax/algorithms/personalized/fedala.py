r"""FedALA: adaptive local aggregation with the server's model (Zhang et al. 2023)."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax import _check
from fljax._module import field, module, static
from fljax.algorithms.base import algorithm, server_start, start_models
from fljax.algorithms.personalized.fedper import as_coordinates
from fljax.algorithms.server.base import AVERAGED, Averaging
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule

__all__ = ["FedALA", "State"]


class State(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  theta_k
    blend: Array  # [K, blended]  W_k
    server: Array  # [D]  w


@algorithm(
    "FedALA",
    "zhang2023",
    AVERAGED,
)
@module
class FedALA(Averaging):
    r"""Federated averaging from a learned interpolation of a client's and the server's model.

    A participant of round :math:`n` has the model :math:`\theta_k` at the end of its last
    participation, and weights :math:`W_k\in[0,1]^D` of the server's model, which it first trains on
    its data,

    .. math::

        W_k \leftarrow \Pi_{[0,1]}\big(W_k-\eta\,(w^{(n-1)}-\theta_k)\odot
            f_k'\big(\theta_k+(w^{(n-1)}-\theta_k)\odot W_k\big)\big)

    ``blend_steps`` times. Then it descends as in federated averaging, from
    :math:`\theta_k\leftarrow\theta_k+(w^{(n-1)}-\theta_k)\odot W_k`, and the server averages the
    results. Metrics evaluate the :math:`\theta_k`; clients that do not participate keep theirs. The
    messages are those of :class:`~fljax.algorithms.FedAvg`: :math:`W_k` is never sent.

    The weights are initially one, which is federated averaging, and remain one for all parameters
    except the ``blended``; the paper blends a network's last layers. It trains them on a random
    subset of a client's samples, and the first time until convergence; here they are trained on all
    samples, with the same number of steps in every round.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.
      blend_step_size: :math:`\eta`, a schedule of the round or a number, > 0; the paper's is 1.
      blend_steps: gradient steps on the weights per round, >= 1.
      blended: which parameters have trained weights, as
        :meth:`problem.coordinates <fljax.problems.Problem.coordinates>` accepts it: a mask,
        indices, or a regular expression for a network's parameter paths. All by default.

    Raises:
      TypeError, ValueError: parameters that the problem does not have; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedALA(0.1, blend_step_size=1.0),
      ...     metrics=["objective"],
      ... )
      >>> run = fl.run(simulation, rounds=20)
      >>> bool(run.objective[-1] < run.objective[0])
      True

    Reference:
      Zhang et al. 2023, Algorithm 1.
    """

    blend_step_size: Schedule = field(converter=as_schedule, default=1.0, kw_only=True)
    blend_steps: int = static(default=1, kw_only=True)
    blended: str | tuple | None = field(
        converter=partial(as_coordinates, "blended"), static=True, default=None, kw_only=True
    )

    def validate(self) -> None:
        super().validate()
        _check.count("blend_steps", self.blend_steps)

    def check(self, problem: Any, network: Any) -> None:
        super().check(problem, network)
        self._places(problem)

    def _places(self, problem: Problem) -> Int[np.ndarray, " blended"]:
        if self.blended is None:
            return np.arange(problem.dim, dtype=np.int32)
        return np.flatnonzero(problem.coordinates(self.blended)).astype(np.int32)

    def init(self, problem: Problem, network: Any) -> State:
        blend = jnp.ones((problem.clients, len(self._places(problem))), problem.dtype)
        return State(start_models(problem), blend, server_start(problem))

    def step(self, state: State, now: Round) -> State:
        cohort, places = self.invite(now, state.model), self._places(now.problem)
        who, rate = cohort.who, self.blend_step_size(now.number)
        part, (own, blend) = who.of(self.own(now.problem)), who.take((state.model, state.blend))
        server = now.link.publish(state.server, cohort.here)
        away = server[None] - own

        def between(blend: Array) -> Float[Array, "chosen dim"]:
            return own + away.at[:, places].multiply(blend)

        def moved(_: Array, blend: Array) -> Float[Array, "chosen blended"]:
            slope = away * part.gradient(between(blend))
            return jnp.clip(blend - rate * slope[:, places], 0, 1)

        blend = jax.lax.fori_loop(0, self.blend_steps, moved, blend)
        local = self.learn(now, cohort, between(blend)).model
        server = self.collect(now, cohort, local, server).move(server)
        return State(who.put(state.model, local), who.put(state.blend, blend), server)
