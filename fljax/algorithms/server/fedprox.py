r"""FedProx: proximal local minimization at clients, averaging at the server.

The minimization is exact (Jung 2025), or by local steps (Li et al. 2020).
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Algorithm, Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import attracted_to
from fljax.algorithms.round import Round
from fljax.algorithms.server.fedavg import FedAvgState
from fljax.algorithms.server.server_algorithm import PRIVATELY_AT_ARRIVAL, Averaging
from fljax.graphs.federation import Network
from fljax.participation.selectors import Drawn, Selector, everyone_or
from fljax.problems import Problem, factorize, prox
from fljax.problems.solvers import ProxFactor
from fljax.problems.streams import Stream


class ExactFedProxState(NamedTuple):
    """State of FedProx between rounds."""

    model: Array  # [D]  the server's w
    factor: ProxFactor  # of the clients' problems, constant


@algorithm(
    "FedProx, exact",
    ("li2020prox", "jung2025"),
    Needs(
        None,
        absent=True,
        late=True,
        averages=True,
        minimizer=True,
        masked=True,
    ),
)
@module
class ExactFedProx(ReleasesModel, Algorithm):
    r"""FedProx with exact proximal minimization at each participant.

    .. math::

        w_k=\arg\min_v f_k(v)+\frac1\eta\|v-w^{(n-1)}\|^2,\qquad
        w^{(n)}=\frac1{|S|}\sum_{k\in S}w_k

    The exact minimization replaces :class:`FedAvg`'s local steps, whose number would have to suit
    all clients. A small :math:`\eta` keeps clients close to the server. :class:`FedProx` takes
    local steps.

    Note the scale: the source weights the squared distance by :math:`1/\eta` here, (119), and by
    :math:`1/(2\eta)` in its proximal step (93). So this is the proximal operator with weight
    :math:`2/\eta`, and the original FedProx (Li et al. 2020), whose term is
    :math:`\tfrac\mu2\|v-w\|^2`, with :math:`\mu=2/\eta`, an exact solution and equal weights
    for any sample sizes.

    With full participation it converges to the center's model of GTVMin on a star whose center has
    no data, with edges of weight one and the coupling :math:`1/\eta`: to the minimizer of
    :math:`\sum_kf_k` as :math:`\eta\to0`, but not for any fixed :math:`\eta` if clients are
    heterogeneous.

    Args:
      step_size: :math:`\eta>0`.
      clients_per_round: :math:`|S|`, drawn uniformly without replacement; all clients by default.
      inner_iterations: iterations of the clients' solver if no closed form exists.

    Raises:
      ValueError: more participants than clients, a problem that clips gradients.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.ExactFedProx(step_size=0.1, clients_per_round=3),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 0.01)
      True

    Reference:
      Li et al. 2020, Algorithm 2, with exact minimization; Jung 2025, Algorithm 10, (119)-(120).
    """

    step_size: Float[Array, ""] | float
    clients_per_round: int | None = static(default=None)
    inner_iterations: int = static(default=100)

    def validate(self) -> None:
        checks.positive("step_size", self.step_size)
        if self.clients_per_round is not None:
            checks.count("clients_per_round", self.clients_per_round)
        checks.count("inner_iterations", self.inner_iterations)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return everyone_or(Drawn, self.clients_per_round)

    def init(self, problem: Problem, network: Network) -> ExactFedProxState:
        self.selection.check(problem.clients)
        weight = jnp.full(problem.clients, 2 / jnp.asarray(self.step_size), problem.dtype)
        return ExactFedProxState(server_start(problem), factorize(problem, weight))

    def step(self, state: ExactFedProxState, now: Round) -> ExactFedProxState:
        participants = now.choose(self.selection, state.model)
        link = now.link
        server = link.publish(state.model, participants.here)
        start = jnp.broadcast_to(server, (len(participants.here), len(server)))
        factor = participants.take(state.factor)
        problem = participants.of(now.problem)
        model = prox(problem, factor, start, start, self.inner_iterations)
        arrived = link.collect(model, participants.here, server, clients=participants.numbers)
        return ExactFedProxState(arrived.move(server), state.factor)


@algorithm(
    "FedProx",
    "li2020prox",
    PRIVATELY_AT_ARRIVAL,
)
@module
class FedProx(ReleasesModel, Averaging):
    r"""Local steps with a proximal term to the server's model, then a weighted average.

    A participant of the round starts from :math:`w_k=w^{(n-1)}` and repeats

    .. math:: w_k\leftarrow w_k-\eta\big(f_k'(w_k)+\mu(w_k-w^{(n-1)})\big)

    which is a :math:`\gamma`-inexact solution of :math:`\min_vf_k(v)+\tfrac\mu2\|v-w^{(n-1)}\|^2`,
    more accurate with more steps; each client may have its own number (``local_steps``).
    :math:`\mu=0` is :class:`FedAvg`; in the limit of many steps it is :class:`ExactFedProx` with
    ``step_size`` :math:`2/\mu`. The paper draws clients with probabilities proportional to their
    numbers of samples and averages with equal weights; here the average has the problem's weights.

    Args:
      step_size: :math:`\eta`, as in :class:`FedAvg`.
      attraction: :math:`\mu\ge0`.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      The proximal term keeps the clients' models near the server's, so that their mean is a smaller
      step:

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> def distance(attraction):
      ...     algorithm = fl.algorithms.FedProx(0.05, local_steps=20, attraction=attraction)
      ...     return abs(fl.run(fl.Simulation(problem, algorithm), rounds=1)["model"]).max()
      >>> bool(distance(attraction=5.0) < distance(attraction=0.0))
      True

    Reference:
      Li et al. 2020, Algorithm 2.
    """

    attraction: Float[Array, ""] | float = dataclasses.field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.nonnegative("attraction", self.attraction)

    def init(self, problem: Problem | Stream, network: Network) -> FedAvgState:
        return FedAvgState(server_start(problem))

    def step(self, state: FedAvgState, now: Round) -> FedAvgState:
        cohort = self.invite(now, state.model)
        server = now.link.publish(state.model, cohort.active)

        start = self.starts(now, server)
        direction, context = attracted_to(start, self.attraction)
        learned = self.learn(now, cohort, start, direction=direction, context=context)
        models = self.as_updates(learned.model, start, server)
        return FedAvgState(self.collect(now, cohort, models, server).move(server))
