r"""FedPD: a federated primal-dual method (Zhang et al. 2021)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Corrected
from fljax.graphs.federation import Network
from fljax.problems import Problem


class FedPDState(NamedTuple):
    """State of FedPD between rounds."""

    model: Array  # [D]  the server's x_0
    local: Array  # [K, D]  the clients' x_k
    dual: Array  # [K, D]  lambda_k
    center: Array  # [K, D]  x_{0,k}, each client's estimate of x_0
    sent: Array  # [K, D]  the last message of each


@algorithm("FedPD", "zhang2021", SUMMED)
@module
class FedPD(ReleasesModel, Corrected):
    r"""Primal-dual method with local augmented Lagrangians and random communication rounds.

    In each round a client continues from its own model with local steps on its augmented
    Lagrangian,

    .. math::

        x_k\approx\arg\min_v f_k(v)+\lambda_k^\top(v-x_{0,k})+\frac1{2\eta}\|v-x_{0,k}\|^2,\qquad
        \lambda_k\leftarrow\lambda_k+\frac1\eta(x_k-x_{0,k}),\qquad
        x_{0,k}^+=x_k+\eta\lambda_k

    (Oracle I). With probability :math:`1-p`, with one random draw for all, clients send
    :math:`x_{0,k}^+` and the server returns :math:`x_0=\frac1K\sum_kx_{0,k}^+`, which becomes
    :math:`x_{0,k}`; otherwise each continues with its own :math:`x_{0,k}=x_{0,k}^+`. For
    :math:`p=0` a fixed point is a stationary point of :math:`\sum_kf_k`, for any number of local
    steps with full batches; if communication rounds are skipped, heterogeneous clients drift apart
    in them, and the method converges to a neighborhood of one.

    In the paper all clients participate. Here the server uses the last messages of clients that do
    not participate, which is equivalent with full participation, and these clients keep their
    state; a message is the change of a client's :math:`x_{0,k}^+` since its last message.

    Args:
      step_size: of the local steps, a schedule of the round or a number, > 0, or an optimizer,
        which is reinitialized in every round.
      penalty: :math:`\eta>0`.
      skipping: :math:`p`, in [0, 1), the probability that a round is without messages.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Raises:
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedPD(0.05, penalty=0.5, local_steps=10),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 1e-6)
      True

    Reference:
      Zhang et al. 2021, Algorithms 1 and 2.
    """

    penalty: Float[Array, ""] | float = dataclasses.field(kw_only=True)
    skipping: Float[Array, ""] | float = dataclasses.field(default=0.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("penalty", self.penalty)
        checks.interval("skipping", self.skipping, at_least=0, below=1)

    def init(self, problem: Problem, network: Network) -> FedPDState:
        start = start_models(problem)
        center = jnp.broadcast_to(server_start(problem), start.shape)
        return FedPDState(center[0], start, jnp.zeros_like(start), center, center)

    def step(self, state: FedPDState, now: Round) -> FedPDState:
        cohort = self.invite(now, state.model)
        penalty = self.penalty
        participants = cohort.participants
        dtype = now.problem.dtype
        start, dual, center, last_sent = (participants.take(part) for part in state[1:])

        def lagrangian(part: Problem, model: Array, context: tuple[Array, Array]) -> Array:
            dual, center = context
            return part.gradient(model) + dual + (model - center) / penalty

        local = self.learn(now, cohort, start, direction=lagrangian, context=(dual, center)).model
        dual = dual + (local - center) / penalty
        proposal = local + penalty * dual

        probability = jax.random.uniform(now.key("algorithm"), dtype=dtype)
        communicating = cohort.active & (probability >= self.skipping)
        senders = cohort._replace(participants=participants._replace(here=communicating))
        arrived = self.collect(now, senders, proposal - last_sent, jnp.zeros_like(state.model))
        model = state.model + arrived.weight / now.problem.clients * arrived.total
        server = now.link.publish(model, communicating)
        return FedPDState(
            model,
            participants.put(state.local, local),
            participants.put(state.dual, dual),
            participants.put(
                state.center, jnp.where(communicating[:, None], server[None], proposal)
            ),
            participants.put(state.sent, jnp.where(communicating[:, None], proposal, last_sent)),
        )
