r"""EF21: error feedback by compressed differences of gradients (Richtarik et al. 2021)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.compressing import (
    CompressedGradients,
    SomeClients,
    SomeSamples,
    upload,
)
from fljax.graphs.federation import Network
from fljax.link import Compressor
from fljax.link.compression import contraction_of
from fljax.participation.selectors import Participants
from fljax.problems import Problem


class EF21State(NamedTuple):
    """State of EF21 between rounds."""

    model: Array  # [D]  the server's x
    direction: Array  # [D]  the server's g, the mean of all g_k
    gradients: Array  # [K, D]  g_k, the estimate of f_k'(x) that client k and the server share


class EF21BCState(NamedTuple):
    """State of EF21-BC between rounds."""

    model: Array  # [D]  x, which all clients compute
    direction: Array  # [D]  g, which all clients know
    mean: Array  # [D]  the server's mean of all g_k
    gradients: Array  # [K, D]  g_k


@algorithm(
    "EF21",
    ("richtarik2021", "fatkhullin2021"),
    Needs(None, absent=True, compressed=False, trains=True),
    {"EF21-PP": "with clients_per_round= or absent clients", "EF21-SGD": "with batches="},
)
@module
class EF21(SomeClients, SomeSamples, CompressedGradients):
    r"""Gradient descent along shared estimates of the gradients, whose errors are compressed.

    .. math::

        c_k&=C\big(f_k'(x)-g_k\big),\qquad g_k\leftarrow g_k+c_k \\
        g&\leftarrow g+\frac1K\sum_kc_k,\qquad x\leftarrow x-\mu g

    With :math:`g_k=0` before the first round, after which :math:`g_k=C(f_k'(x))`, as in the paper.
    The compressor must be contractive, such as :class:`~fljax.link.TopK`; the estimates' errors
    then vanish, and the method converges as fast as gradient descent up to a factor of
    :math:`1/\alpha`, without bounded gradients or similar clients
    (:func:`fljax.theory.compression.ef21`). Without compression it is gradient descent.

    Clients that do not take part keep their :math:`g_k`, which remain in the server's mean
    (EF21-PP). So does a client whose message is lost, since it learns of the loss. With batches
    the errors stay at the level of the gradients' noise (EF21-SGD).

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      compression: :math:`C`, contractive (:meth:`fljax.link.Compressor.contraction`).
      clients_per_round: participants, drawn uniformly without replacement; all clients by default.
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a compressor that is not contractive or does not fit the models, more
        participants than clients, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=10),
      ...     algorithm=fl.algorithms.EF21(0.05, compression=fl.link.TopK(2)),
      ...     metrics=["normalized_error"],
      ... )
      >>> results = fl.run(simulation, rounds=400)
      >>> bool(results.normalized_error[-1] < 1e-8)
      True
      >>> int(results.bits_up[0])  # 6 messages of 2 numbers and their places
      432

    Reference:
      Richtarik, Sokolov & Fatkhullin 2021, Algorithm 2; Fatkhullin et al. 2021, Algorithm 4, for
      absent clients.
    """

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        contraction_of("EF21", self.compression, problem.dim)

    def init(self, problem: Problem, network: Network) -> EF21State:
        start = server_start(problem)
        gradients = jnp.zeros((problem.clients, problem.dim), start.dtype)
        return EF21State(start, jnp.zeros_like(start), gradients)

    def step(self, state: EF21State, now: Round) -> EF21State:
        participants = now.choose(self.selection, state.model)
        server = now.link.publish(state.model, participants.here)
        estimates = participants.take(state.gradients)
        change = self.gradient(now, participants, server) - estimates
        sent, _ = upload(now, participants, change, self.compression)
        direction = state.direction + jnp.sum(sent, axis=0) / now.problem.clients
        return EF21State(
            server - self.step_size(now.number) * direction,
            direction,
            participants.put(state.gradients, estimates + sent),
        )


@algorithm("EF21-BC", "fatkhullin2021", Needs(None, compressed=False, trains=True))
@module
class EF21BC(SomeSamples, CompressedGradients):
    r"""EF21 in both directions: the server, too, sends a compressed difference.

    .. math::

        c_k&=C\big(f_k'(x)-g_k\big),\qquad g_k\leftarrow g_k+c_k \\
        b&=C_S\Big(\frac1K\sum_kg_k-g\Big),\qquad g\leftarrow g+b,\qquad x\leftarrow x-\mu g

    All clients take part in every round, so that each follows :math:`g` and :math:`x` by the
    messages :math:`b`. Both estimates are zero before the first round.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      compression: :math:`C`, of the clients, contractive.
      downlink: :math:`C_S`, of the server, contractive.
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a compressor that is not contractive or does not fit the models, batches that
        cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=10),
      ...     algorithm=fl.algorithms.EF21BC(
      ...         0.03, compression=fl.link.TopK(2), downlink=fl.link.TopK(3)
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> results = fl.run(simulation, rounds=1000)
      >>> bool(results.normalized_error[-1] < 1e-8)
      True
      >>> int(results.bits_down[0])  # 3 numbers and their places, to 6 clients
      648

    Reference:
      Fatkhullin et al. 2021, Algorithm 5.
    """

    downlink: Compressor = field(kw_only=True)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        self.downlink.check(problem.dim)
        contraction_of("EF21-BC", self.compression, problem.dim)
        contraction_of("EF21-BC", self.downlink, problem.dim)

    def init(self, problem: Problem, network: Network) -> EF21BCState:
        start = server_start(problem)
        zero = jnp.zeros_like(start)
        return EF21BCState(start, zero, zero, jnp.zeros((problem.clients, problem.dim), zero.dtype))

    def step(self, state: EF21BCState, now: Round) -> EF21BCState:
        everyone = Participants(None, now.available)
        change = self.gradient(now, everyone, state.model) - state.gradients
        sent, _ = upload(now, everyone, change, self.compression)
        mean = state.mean + jnp.mean(sent, axis=0)
        published = now.link.publish(mean - state.direction, compression=self.downlink)
        direction = state.direction + published
        return EF21BCState(
            state.model - self.step_size(now.number) * direction,
            direction,
            mean,
            state.gradients + sent,
        )
