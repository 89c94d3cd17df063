r"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020)."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Corrected, check_no_optimizer
from fljax.graphs.federation import Network
from fljax.problems import Problem

#: The options for a client's control variate.
VARIATES = ("steps", "gradient")


class SCAFFOLDState(NamedTuple):
    """State of SCAFFOLD between rounds."""

    model: Array  # [D]  the server's x
    control: Array  # [D]  the server's c, the mean of all clients'
    controls: Array  # [K, D]  the clients' c_k


@algorithm("SCAFFOLD", "karimireddy2020", SUMMED, {"Stochastic controlled averaging": ""})
@module
class SCAFFOLD(ReleasesModel, Corrected):
    r"""Local steps with control variates that correct client drift.

    A participant of the round starts from :math:`y_k=x`, takes :math:`E_k` steps

    .. math:: y_k\leftarrow y_k-\mu\big(f_k'(y_k)-c_k+c\big)

    and updates its control variate to its gradient at the starting point (option I of the paper) or
    to the mean gradient along its steps (option II),

    .. math::

        c_k^+=f_k'(x)\qquad\text{or}\qquad c_k^+=c_k-c+\frac1{E_k\mu}(x-y_k)

    The server, which receives both changes in one message, sets

    .. math::

        x\leftarrow x+\frac{\eta}{|S|}\sum_{k\in S}(y_k-x),\qquad
        c\leftarrow c+\frac1K\sum_{k\in S}(c_k^+-c_k)

    With full batches it converges to the minimizer of :math:`\sum_kf_k` at constant step sizes,
    for any heterogeneity of the clients and any numbers of steps. All control variates are
    initially zero. Messages have :math:`2D` numbers in both directions. Clients that do not
    participate keep :math:`c_k`; a lost message leaves a permanent error between :math:`c` and the
    clients' mean.

    A control variate of option II is the mean of gradients along a trajectory that depends on the
    variate, so its errors feed back. If all clients take full batches and have the same curvature
    :math:`h`, each participation multiplies the errors by
    :math:`1-\frac1{E_k}\sum_{e<E_k}(1-\mu h)^e`: between zero and one for :math:`0<\mu h<2`, but
    below minus one if the curvature is negative and :math:`\mu E_k|h|` is above about 1.5 (for ten
    steps or more). Neural networks have such directions, and SCAFFOLD diverges with step sizes for
    which FedAvg is stable, even with full participation and identical clients; smaller or fewer
    steps avoid this. Option I has no such feedback; it also diverged in experiments where clients
    had two or three digit classes each, and not where they were identically distributed.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      server_step_size: :math:`\eta>0`.
      variate: ``"steps"``, option II, or ``"gradient"``, option I, which costs one more pass over
        all of a participant's samples.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Raises:
      ValueError: an optimizer as the step size, and as for
        :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Example:
      >>> import jax, fljax as fl
      >>> def error(algorithm):
      ...     problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      ...     simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
      ...     return fl.run(simulation, rounds=300).normalized_error[-1]
      >>> scaffold = fl.algorithms.SCAFFOLD(0.05, local_steps=10)
      >>> averaging = fl.algorithms.FedAvg(0.05, local_steps=10)
      >>> bool(error(scaffold) < 1e-3 * error(averaging))
      True

    Reference:
      Karimireddy et al. 2020, Algorithm 1.
    """

    server_step_size: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)
    variate: str = static(default="steps", kw_only=True)

    def validate(self) -> None:
        super().validate()
        check_no_optimizer(self)
        checks.positive("server_step_size", self.server_step_size)
        checks.choice("variate", self.variate, VARIATES)

    def init(self, problem: Problem, network: Network) -> SCAFFOLDState:
        start = server_start(problem)
        controls = jnp.zeros((problem.clients, problem.dim), problem.dtype)
        return SCAFFOLDState(start, jnp.zeros_like(start), controls)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.message_size_of(problem), self.message_size_of(problem)

    def step(self, state: SCAFFOLDState, now: Round) -> SCAFFOLDState:
        cohort = self.invite(now, state.model)
        problem = now.problem
        broadcast = jnp.concatenate([state.model, state.control])
        server, control = jnp.split(now.link.publish(broadcast, cohort.active), 2)
        old = cohort.participants.take(state.controls)

        def corrected(part: Problem, model: Array, correction: Array) -> Array:
            return part.gradient(model) + correction

        learned = self.learn(now, cohort, server, direction=corrected, context=control[None] - old)
        change = learned.model - server[None]
        if self.variate == "gradient":
            start = jnp.broadcast_to(server, learned.model.shape)
            new = cohort.participants.of(problem).gradient(start)
        else:
            distance = self.size(now.number) * learned.steps[:, None].astype(problem.dtype)
            gradient = old - control[None] - change / jnp.where(distance > 0, distance, 1)
            new = jnp.where(distance > 0, gradient, old)

        message = jnp.concatenate([change, new - old], axis=1)
        arrived = self.collect(now, cohort, message, jnp.zeros_like(broadcast))
        mean_change, mean_renewal = jnp.split(arrived.total, 2)
        return SCAFFOLDState(
            server + self.server_step_size * mean_change,
            control + arrived.weight / problem.clients * mean_renewal,
            cohort.participants.put(state.controls, new),
        )

    def message_size(self, dim: int) -> int:
        return 2 * dim
