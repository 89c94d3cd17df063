r"""FedADMM: federated ADMM with some of the clients in each round (Gong, Li and Freris 2022)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Corrected
from fljax.graphs.federation import Network
from fljax.problems import Problem

#: Where a client's local steps may begin.
BEGINNINGS = ("own", "server")


class FedADMMState(NamedTuple):
    """State of FedADMM between rounds."""

    model: Array  # [D]  the server's theta
    local: Array  # [K, D]  the clients' w_k
    dual: Array  # [K, D]  their multipliers y_k


@algorithm("FedADMM", "gong2022", SUMMED)
@module
class FedADMM(ReleasesModel, Corrected):
    r"""Local augmented Lagrangians, whose minimizers and multipliers the server sums.

    A participant of the round minimizes approximately, by local steps,

    .. math::

        w_k\approx\arg\min_v f_k(v)+y_k^\top(v-\theta)+\frac\rho2\|v-\theta\|^2,\qquad
        y_k\leftarrow y_k+\rho(w_k-\theta)

    and sends the change of :math:`w_k+y_k/\rho` since its last participation. The server takes the
    step

    .. math:: \theta\leftarrow\theta+\frac\eta{|S|}\sum_{k\in S}\Delta\Big(w_k+\frac{y_k}\rho\Big)

    By default :math:`\eta=|S|/K`, with which :math:`\theta` is always the mean of all
    :math:`w_k+y_k/\rho`: ADMM with inexact minimization, which with all clients in each round is
    :class:`~fljax.algorithms.FedPD` without skipped rounds, whose :math:`\eta` is :math:`1/\rho`
    (where an absent client returns to the model that it received last). A fixed point is then a
    stationary point of :math:`\sum_kf_k`, for any number of local steps with full batches. The
    defaults of the authors' code are :math:`\eta=1` with a tenth of the clients in each round, and
    0.5 after sixty rounds. Any constant :math:`\eta` and :math:`|S|` keep
    :math:`\sum_k(w_k+y_k/\rho)-|S|\theta/\eta` as it was at the start, and at a fixed point all
    :math:`w_k=\theta` and :math:`f_k'(\theta)=-y_k`, so that it is a stationary point of

    .. math:: \sum_kf_k(\theta)+\frac\rho2\Big(\frac{|S|}\eta-K\Big)\|\theta-\theta^{(0)}\|^2

    which is pulled toward the start or, for :math:`\eta>|S|/K`, pushed away from it.

    Local steps continue from a client's own :math:`w_k`, or begin at :math:`\theta`, as in the
    authors' code and in FL-bench; with all clients and :math:`\eta=1` the latter is
    :class:`~fljax.algorithms.FedDyn` with :math:`\alpha=\rho`. In both codes the change of
    :math:`w_k` is taken from :math:`\theta` and not from the client's last :math:`w_k`, so that a
    message is :math:`2(w_k-\theta)`. Clients that do not participate keep :math:`w_k` and
    :math:`y_k`; a lost message leaves a permanent error.

    Args:
      step_size: of the local steps, a schedule of the round or a number, > 0, or an optimizer,
        which is reinitialized in every round.
      penalty: :math:`\rho>0`, the inverse of that of :class:`~fljax.algorithms.FedPD`.
      server_step_size: :math:`\eta>0`; by default the share of all clients whose messages arrive.
      beginning: where local steps begin, ``"own"`` or ``"server"``.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Raises:
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.Corrected`; another
        beginning.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedADMM(0.05, 3, penalty=1.0, local_steps=10),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-6)
      True

    Reference:
      Gong, Li and Freris 2022; the statement on fixed points is ours.
    """

    penalty: Float[Array, ""] | float = dataclasses.field(kw_only=True)
    server_step_size: Float[Array, ""] | float | None = dataclasses.field(
        default=None, kw_only=True
    )
    beginning: str = static(default="own", kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("penalty", self.penalty)
        if self.server_step_size is not None:
            checks.positive("server_step_size", self.server_step_size)
        checks.choice("beginning", self.beginning, BEGINNINGS)

    def init(self, problem: Problem, network: Network) -> FedADMMState:
        start = start_models(problem)
        return FedADMMState(server_start(problem), start, jnp.zeros_like(start))

    def step(self, state: FedADMMState, now: Round) -> FedADMMState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        server = now.link.publish(state.model, cohort.active)
        last, dual = participants.take((state.local, state.dual))

        def lagrangian(part: Problem, model: Array, dual: Array) -> Array:
            return part.gradient(model) + dual + self.penalty * (model - server[None])

        start = last if self.beginning == "own" else server
        local = self.learn(now, cohort, start, direction=lagrangian, context=dual).model
        increment = local - server[None]  # of the dual, divided by the penalty
        arrived = self.collect(now, cohort, local - last + increment, jnp.zeros_like(server))
        step = self.server_step_size
        step = arrived.weight / now.problem.clients if step is None else step
        return FedADMMState(
            state.model + step * arrived.total,
            participants.put(state.local, local),
            participants.put(state.dual, dual + self.penalty * increment),
        )
