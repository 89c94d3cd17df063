r"""MARINA: compressed differences of successive gradients, and rare full ones (Gorbunov 2021)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.compressing import (
    CompressedGradients,
    SomeClients,
    mean_of_arrived,
    upload,
)
from fljax.graphs.federation import Network
from fljax.link.compression import unbiased_variance
from fljax.participation.selectors import Participants
from fljax.problems import Problem


class MARINAState(NamedTuple):
    """State of MARINA between rounds."""

    model: Array  # [D]  the server's x
    direction: Array  # [D]  the server's g
    gradients: Array  # [K, D]  f_k' at the model of the last round


@algorithm(
    "MARINA",
    "gorbunov2021",
    Needs(None, compressed=False),
    {"PP-MARINA": "with clients_per_round="},
)
@module
class MARINA(SomeClients, CompressedGradients):
    r"""Gradient descent along an estimate that compressed differences update.

    In each round all clients receive :math:`x`, and with one random draw for all,

    .. math::

        g\leftarrow\begin{cases}
            \frac1K\sum_kf_k'(x) & \text{with the probability }p \\
            g+\frac1{|S|}\sum_{k\in S}Q\big(f_k'(x)-f_k'(x^-)\big) & \text{else}\end{cases}
        \qquad x\leftarrow x-\mu g

    where :math:`x^-` is the model of the round before. The first round has full gradients. In
    rounds of the first kind all clients send all numbers, which the traffic counts; in the others
    :math:`S` sends compressed ones, all clients or some of them (PP-MARINA). The estimate is
    biased, and its error vanishes with the gradient: the method converges linearly under the
    Polyak-Lojasiewicz condition, and with fewer bits than gradient descent for the compressors of a
    large :math:`\omega` (:func:`fljax.theory.compression.marina`). With :math:`p=1` it is gradient
    descent.

    The paper draws the participants of PP-MARINA with replacement, here they are drawn without.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      compression: :math:`Q`, unbiased (:meth:`fljax.link.Compressor.variance`).
      probability: :math:`p`, in (0, 1]; :func:`fljax.theory.compression.marina` has a usual one.
      clients_per_round: :math:`|S|`, drawn uniformly without replacement in rounds with compressed
        messages; all clients by default.

    Raises:
      ValueError: a compressor that is not unbiased or does not fit the models, a probability
        outside (0, 1], more participants than clients.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=10),
      ...     algorithm=fl.algorithms.MARINA(
      ...         0.05, compression=fl.link.RandomK(2), probability=0.2
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> results = fl.run(simulation, rounds=400)
      >>> bool(results.normalized_error[-1] < 1e-6)
      True
      >>> int(results.bits_up[0])  # of the first round: 6 messages of 10 numbers
      1920

    Reference:
      Gorbunov et al. 2021, Algorithm 1, and Algorithm 4 for some clients per round.
    """

    probability: Float[Array, ""] | float = field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        hint = "Without full gradients errors of the estimate would remain."
        checks.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        unbiased_variance("MARINA", self.compression, problem.dim)

    def init(self, problem: Problem, network: Network) -> MARINAState:
        start = server_start(problem)
        gradients = jnp.zeros((problem.clients, problem.dim), start.dtype)
        return MARINAState(start, jnp.zeros_like(start), gradients)

    def step(self, state: MARINAState, now: Round) -> MARINAState:
        problem = now.problem
        draw = jax.random.uniform(now.key("algorithm"), (), problem.dtype)
        full = (draw < self.probability) | (now.number == 1)
        chosen = now.choose(self.selection, state.model)
        sending = chosen.put(jnp.zeros_like(now.available), chosen.here)

        # Every client follows the model, and a message may be about any of its last two values.
        server = now.link.publish(state.model)
        gradients = problem.gradient(jnp.broadcast_to(server, state.gradients.shape))
        exact = upload(now, Participants(None, now.available & full), gradients, None)
        change = gradients - state.gradients
        compressed = upload(now, Participants(None, sending & ~full), change, self.compression)

        start = jnp.where(full & jnp.any(exact[1]), 0, state.direction)
        direction = start + mean_of_arrived(*exact) + mean_of_arrived(*compressed)
        model = server - self.step_size(now.number) * direction
        return MARINAState(model, direction, gradients)
