"""Local training without any communication, the baseline of collaborative methods."""

from typing import NamedTuple, cast

from jaxtyping import Array

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.local_steps import check_full, learn
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Participants
from fljax.problems import Problem
from fljax.problems.streams import Stream


class LocalOnlyState(NamedTuple):
    """State of local training between rounds."""

    model: Array  # [K, D]  w_k


@algorithm(
    "Local only",
    "li2021",
    Needs(None, absent=True, late=True, averages=True, uploads=(), trains=True, networks="any"),
    {"Local training": "", "Standalone": ""},
)
@module
class LocalOnly(Algorithm):
    r"""Gradient descent of each client on its own data; nothing is ever sent.

    .. math:: w_k \leftarrow w_k-\mu f_k'(w_k)

    It takes steps instead of computing the exact minimizer: a round then costs as much as a
    participant's computation in the other methods, the steps converge to the minimizer, and with
    fewer samples than parameters, where it is not unique, to the one nearest to zero. Unavailable
    clients keep their models.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      local_steps: gradient steps per round, on all of a client's samples, >= 1.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> run = fl.run(fl.Simulation(problem, fl.algorithms.LocalOnly(0.1)), rounds=10)
      >>> run["model"].shape, int(run.bits_up[-1])  # a model of each client, and no message
      ((6, 2), 0)

    Reference:
      Li et al. 2021; the personal models of Ditto at :math:`\lambda=0`.
    """

    step_size: Schedule = field(converter=as_schedule)
    local_steps: int = static(default=1)

    def validate(self) -> None:
        checks.count("local_steps", self.local_steps)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        if problem.mixes_samples:
            check_full(None, cast(Problem, problem))

    def message_size(self, dim: int) -> int:
        return 0

    def init(self, problem: Problem, network: Network) -> LocalOnlyState:
        return LocalOnlyState(start_models(problem))

    def step(self, state: LocalOnlyState, now: Round) -> LocalOnlyState:
        everyone = Participants(None, now.available)
        learned = learn(
            now.problem,
            everyone,
            state.model,
            self.step_size(now.number),
            self.local_steps,
            training=now.networks.of(everyone),
        )
        now.networks.trained(everyone, None, learned.state)
        return LocalOnlyState(everyone.put(state.model, learned.model))
