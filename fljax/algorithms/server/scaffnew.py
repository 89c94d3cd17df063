"""Scaffnew: local gradient steps with random communication rounds (Mishchenko et al. 2022)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.descending import Skipping
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.problems import Problem


class ServerState(NamedTuple):
    """State of Scaffnew between rounds."""

    model: Array  # [D]  the server's last mean
    local: Array  # [K, D]  w_k
    control: Array  # [K, D]  h_k


@algorithm("Scaffnew", "mishchenko2022", Needs(None, masked=True), {"Federated ProxSkip": ""})
@module
class Scaffnew(Skipping):
    r"""ProxSkip with a server: gradient steps in every round, an average in random rounds.

    .. math::

        \hat w_k&=w_k^{(n-1)}-\mu\big(f_k'(w_k^{(n-1)})-h_k\big) \\
        w_k^{(n)}&=\begin{cases}
            \frac1K\sum_l\hat w_l,\quad h_k\leftarrow h_k+\frac p\mu(w_k^{(n)}-\hat w_k)
                & \text{with the probability }p \\
            \hat w_k & \text{else}\end{cases}

    with one random draw for all, and :math:`h_k=0` initially. For smooth, strongly convex
    objectives and :math:`\mu\le1/L` it converges linearly to the optimum, and with
    :math:`p=1/\sqrt\kappa` needs :math:`O(\sqrt\kappa)` averages where gradient descent needs
    :math:`O(\kappa)`. Nothing is sent in rounds without an average. Metrics evaluate the server's
    model.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      probability: :math:`p`, in (0, 1].
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a probability outside (0, 1], batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> run = fl.run(
      ...     fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2),
      ...         algorithm=fl.algorithms.Scaffnew(0.1, probability=0.3),
      ...         metrics=["normalized_error"],
      ...     ),
      ...     rounds=400)
      >>> bool(run.normalized_error[-1] < 1e-8)
      True

    Reference:
      Mishchenko et al. 2022, Algorithm 2.
    """

    def init(self, problem: Problem, network: Network) -> ServerState:
        server = server_start(problem)
        local = jnp.broadcast_to(server, (problem.clients, problem.dim))
        return ServerState(server, local, jnp.zeros_like(local))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: ServerState, now: Round) -> ServerState:
        link = now.link
        communicates = self._communicates(now)
        moved = self._corrected_step(state.local, state.control, now)
        everyone = jnp.broadcast_to(communicates, now.available.shape)
        sent = link.send(moved, state.model, sending=everyone)
        server = link.publish(link.mean(sent, state.model), receivers=everyone)
        control = self._updated_control(state.control, server[None] - moved, now)
        return ServerState(
            jnp.where(communicates, server, state.model),
            jnp.where(communicates, server[None], moved),
            jnp.where(communicates, control, state.control),
        )
