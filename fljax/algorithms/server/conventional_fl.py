r"""Conventional federated learning with a server (Gauthier 2024, Algorithm 1; FedAvg)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import LocalDescent, descend_from, descent_gap
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.privacy import Gap
from fljax.problems import Problem
from fljax.problems.streams import Stream


class ConventionalFLState(NamedTuple):
    """State of FL between rounds."""

    model: Array  # [D]  the server's w


@algorithm(
    "FL",
    ("mcmahan2017", "gauthier2024"),
    Needs(
        None,
        data="any",
        privacy=("message",),
        absent=True,
        late=True,
        averages=True,
        uploads=("models", "updates"),
        masked=True,
    ),
)
@module
class ConventionalFL(ReleasesModel, Algorithm):
    r"""Local gradient steps from the server's model, then an average.

    .. math::

        w_k^{(n)} = w^{(n-1)}-\mu f_k'(w^{(n-1)}),\qquad
        w^{(n)} = \frac1K\sum_k \tilde w_k^{(n)}

    The mean is over the available clients and, with delays, over the models that arrive; if none
    arrives, :math:`w` is unchanged. With ``local_steps`` > 1 the first line is iterated (FedAvg
    with full batches). The thesis prints ``+ mu f(D_k)`` with :math:`f` "the objective" (section
    2.1.1); its text and theory mean the descent direction.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      local_steps: gradient steps per round, >= 1.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.ConventionalFL(0.2)
      >>> simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 1e-8)
      True

    Reference:
      McMahan et al. 2017, Algorithm 1; Gauthier 2024, Algorithm 1.
    """

    step_size: Schedule = field(converter=as_schedule)
    local_steps: int = static(default=1)

    def validate(self) -> None:
        checks.count("local_steps", self.local_steps)

    def init(self, problem: Problem | Stream, network: Network) -> ConventionalFLState:
        return ConventionalFLState(server_start(problem))

    def step(self, state: ConventionalFLState, now: Round) -> ConventionalFLState:
        problem = now.problem
        link = now.link
        step_size = self.step_size(now.number)
        server = link.publish(state.model)

        def learn(clients: Array | None) -> Array | tuple[Array, Array]:
            if clients is not None:
                return self._descend(problem.take(clients).mapped(), server, step_size).model
            model, norm, rounding = self._descend(problem, server, step_size)
            now.witness(jnp.where(now.available, norm, 0))
            return model, rounding

        def at_once() -> Array:
            now.witness_at(_copies(server, problem))
            return server - step_size * problem.mean_gradient(server)

        quick = at_once if self.local_steps == 1 else None
        return ConventionalFLState(link.average(learn, server, at_once=quick, step_size=step_size))

    def _descend(self, problem: Problem, server: Array, step_size: Array) -> LocalDescent:
        return descend_from(problem, _copies(server, problem), step_size, self.local_steps)

    def sensitivity(
        self, problem: Problem, network: Network, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        """See :func:`~fljax.algorithms.local_steps.descent_gap`."""
        return descent_gap(problem, self.step_size(round), self.local_steps, gap)


def _copies(server: Array, problem: Problem) -> Float[Array, "clients dim"]:
    return jnp.broadcast_to(server, (problem.clients, problem.dim))
