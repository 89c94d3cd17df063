r"""FedCross: several models that change clients and are mixed in pairs (Hu et al. 2024)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.module import module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Corrected
from fljax.graphs.federation import Network
from fljax.problems import Problem
from fljax.problems.streams import Stream

#: How the partner of a model may be chosen.
PARTNERS = ("in_order", "least_similar", "most_similar")


class FedCrossState(NamedTuple):
    """State of FedCross between rounds."""

    model: Array  # [D]  the mean of the models, which is deployed
    models: Array  # [M, D]  w_1, ..., w_M


@algorithm("FedCross", "hu2024", Needs(None, absent=True, trains=True))
@module
class FedCross(ReleasesModel, Corrected):
    r"""As many models as participants: each is trained by one of them, then mixed with another.

    In round :math:`n` the server draws :math:`M` clients and deals the models
    :math:`w_1,\dots,w_M` out to them in random order. Each trains the model that it received, to
    :math:`v_m`, and the server mixes it with a partner:

    .. math:: w_m\leftarrow\alpha v_m+(1-\alpha)v_{p(m)}

    The partner is the next one in a turn that changes from round to round,
    :math:`p(m)=(m+1+n\bmod(M-1))\bmod M` counted from zero (``"in_order"``), or the model of least
    or largest cosine similarity to :math:`v_m`. All models are the same at first. The mean
    :math:`\frac1M\sum_mw_m` is deployed, which mixing in order leaves at the mean of the
    :math:`v_m`; metrics evaluate it, and it is not sent to anyone.

    A model whose participant is absent, or whose message is lost, is mixed as it was. The paper's
    accelerations of the first rounds are left out. In PFLlib similarity is a sum over groups of
    layers, and its :math:`\alpha` is 0.99.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.
      clients_per_round: :math:`M\ge2`; all clients by default.
      retention: :math:`\alpha`, in (0, 1].
      partner: ``"in_order"``, ``"least_similar"`` or ``"most_similar"``.

    Raises:
      ValueError: a selector, or fewer than two participants: there are as many models; a retention
        outside (0, 1]; another partner; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedCross(0.05, 3, retention=0.9),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 0.1)
      True

    Reference:
      Hu et al. 2024, Algorithm 1.
    """

    retention: Float[Array, ""] | float = dataclasses.field(default=0.99, kw_only=True)
    partner: str = static(default="in_order", kw_only=True)

    def validate(self) -> None:
        super().validate()
        if self.selector is not None:
            raise ValueError(
                "FedCross has as many models as participants, and a selector may draw any number "
                "of them; give clients_per_round instead."
            )
        checks.interval("retention", self.retention, above=0, at_most=1)
        checks.choice("partner", self.partner, PARTNERS)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        if self._count(problem) < 2:
            raise ValueError(
                "FedCross mixes the models of different participants, and there is one; draw at "
                "least two clients in a round."
            )

    def _count(self, problem: Problem | Stream) -> int:
        """M."""
        return problem.clients if self.clients_per_round is None else self.clients_per_round

    def init(self, problem: Problem, network: Network) -> FedCrossState:
        start = server_start(problem)
        return FedCrossState(start, jnp.tile(start, (self._count(problem), 1)))

    def step(self, state: FedCrossState, now: Round) -> FedCrossState:
        cohort = self.invite(now, state.model)
        count = len(state.models)
        dealt = jax.random.permutation(now.key("algorithm"), count).astype(jnp.int32)
        received = now.link.publish(state.models[dealt], cohort.active)
        learned = self.learn(now, cohort, received).model
        sent = now.link.send(learned, clients=cohort.participants.numbers, sending=cohort.active)
        arrived = self.messages_arrived(now, cohort)
        trained = jnp.where(arrived[:, None], sent, state.models[dealt])
        trained = state.models.at[dealt].set(trained)

        partners = trained[self._partners(trained, now.number)]
        mixed = self.retention * trained + (1 - self.retention) * partners
        models = jnp.where(jnp.any(arrived), mixed, state.models)
        return FedCrossState(jnp.mean(models, axis=0), models)

    def _partners(self, models: Float[Array, "models dim"], number: Array) -> Int[Array, " models"]:
        """p(m) of each model."""
        count = len(models)
        if self.partner == "in_order":
            turn = 1 + number % (count - 1)
            return (jnp.arange(count, dtype=jnp.int32) + turn.astype(jnp.int32)) % count
        norms = jnp.sqrt(jnp.sum(models**2, axis=1, keepdims=True))
        unit = models / jnp.where(norms > 0, norms, 1)
        similarity = jnp.matmul(unit, unit.T, precision=HIGHEST)
        sign = 1 if self.partner == "most_similar" else -1
        itself: Bool[Array, "models models"] = jnp.eye(count, dtype=bool)
        return jnp.argmax(jnp.where(itself, -jnp.inf, sign * similarity), axis=1).astype(jnp.int32)
