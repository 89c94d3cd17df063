"""Base classes of servers whose clients send compressed differences of gradients."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, ReleasesModel
from fljax.algorithms.local_steps import check_full, gradient_in_training, sampled_problem
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.link import Compressor
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Drawn, Participants, Selector, everyone_or
from fljax.problems import Problem
from fljax.problems.batches import Batches


def upload(
    now: Round,
    participants: Participants,
    message: Float[Array, "chosen dim"],
    compression: Compressor | None,
) -> tuple[Float[Array, "chosen dim"], Bool[Array, " chosen"]]:
    """Send the participants' messages; return them as the server receives them.

    Args:
      now: the round.
      participants: of the rows.
      message: of each.
      compression: of the messages; ``None`` sends all numbers.

    Returns:
      The messages, zero for clients that do not send and where a message is lost, which its sender
      is told; and whether each arrived.
    """
    sent = now.link.send(
        message,
        clients=participants.numbers,
        sending=participants.here,
        compression=compression,
    )
    arrived = now.link.arrived(participants)
    return jnp.where(arrived[:, None], sent, 0), arrived


def mean_of_arrived(
    sent: Float[Array, "chosen dim"], arrived: Bool[Array, " chosen"]
) -> Float[Array, " dim"]:
    """Return the mean of the messages that arrived, zero if there is none."""
    count = jnp.sum(arrived, dtype=sent.dtype)
    return jnp.sum(sent, axis=0) / jnp.maximum(count, 1)


@module
class Gradients(ReleasesModel, Algorithm):
    r"""Base class: clients send functions of gradients at the server's model, and no local steps.

    All clients have equal weights at the server; if the problem has weights, a client's gradient is
    multiplied by its weight.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
    """

    step_size: Schedule = field(converter=as_schedule)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None


@module
class CompressedGradients(Gradients):
    """The same with a compressor.

    Args and Raises: as for :class:`Gradients`, and

      compression: the compressor.
      ValueError: a compressor that does not fit the models.
    """

    compression: Compressor = field(kw_only=True)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        self.compression.check(problem.dim)


@module
class SomeClients(Gradients):
    """The same with participants that the server draws.

    Args and Raises: as for :class:`Gradients`, and

      clients_per_round: participants, drawn uniformly without replacement; all clients by default.
      ValueError: more participants than clients.
    """

    clients_per_round: int | None = static(default=None, kw_only=True)

    def validate(self) -> None:
        if self.clients_per_round is not None:
            checks.count("clients_per_round", self.clients_per_round)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        self.selection.check(problem.clients)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return everyone_or(Drawn, self.clients_per_round)


@module
class SomeSamples(Gradients):
    """The same with gradients that may be of batches.

    Args:
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default. The other arguments are those of :class:`Gradients`.

    Raises:
      ValueError: batches that cannot be drawn; as for :class:`Gradients`.
    """

    batches: Batches | None = field(default=None, kw_only=True)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        if self.batches is not None:
            self.batches.check(problem)
        if problem.mixes_samples:
            check_full(self.batches, problem)

    def gradient(
        self, now: Round, participants: Participants, model: Float[Array, " dim"]
    ) -> Float[Array, "chosen dim"]:
        """Return the participants' gradients at the server's model."""
        part = sampled_problem(self.batches, now, participants)
        models = jnp.broadcast_to(model, (len(participants.here), len(model)))
        return gradient_in_training(now, part, models, participants=participants)
