r"""FedALA: adaptive local aggregation with the server's model (Zhang et al. 2023)."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import algorithm, server_start, start_models
from fljax.algorithms.personalized.fedper import as_coordinates
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem


class FedALAState(NamedTuple):
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
    messages are as in :class:`~fljax.algorithms.FedAvg`: :math:`W_k` is never sent.

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
        checks.count("blend_steps", self.blend_steps)

    def check(self, problem: Any, network: Network) -> None:
        super().check(problem, network)
        self._blended_indices(problem)

    def _blended_indices(self, problem: Problem) -> Int[np.ndarray, " blended"]:
        if self.blended is None:
            return np.arange(problem.dim, dtype=np.int32)
        return np.flatnonzero(problem.coordinates(self.blended)).astype(np.int32)

    def gradients_per_step(self, problem: Any) -> Float[Array, " clients"]:
        return self.gradients_with(self.blend_steps, problem)

    def init(self, problem: Problem, network: Network) -> FedALAState:
        blend = jnp.ones((problem.clients, len(self._blended_indices(problem))), problem.dtype)
        return FedALAState(start_models(problem), blend, server_start(problem))

    def step(self, state: FedALAState, now: Round) -> FedALAState:
        cohort = self.invite(now, state.model)
        indices = self._blended_indices(now.problem)
        participants = cohort.participants
        rate = self.blend_step_size(now.number)
        part = participants.of(self.local_problem(now.problem))
        (local_models, blend) = participants.take((state.model, state.blend))
        server = now.link.publish(state.server, cohort.active)
        difference = server[None] - local_models

        def blended(blend: Array) -> Float[Array, "chosen dim"]:
            return local_models + difference.at[:, indices].multiply(blend)

        def blend_step(_: Array, blend: Array) -> Float[Array, "chosen blended"]:
            gradient = difference * part.gradient(blended(blend))
            return jnp.clip(blend - rate * gradient[:, indices], 0, 1)

        blend = jax.lax.fori_loop(0, self.blend_steps, blend_step, blend)
        trained = self.learn(now, cohort, blended(blend)).model
        server = self.collect(now, cohort, trained, server).move(server)
        return FedALAState(
            participants.put(state.model, trained), participants.put(state.blend, blend), server
        )
