r"""AFL: agnostic federated learning (Mohri, Sivek and Suresh 2019)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core.linalg import onto_simplex
from fljax._core.module import field, module
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import LocalLearning
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem


class AFLState(NamedTuple):
    """State of AFL between rounds."""

    model: Array  # [D]  w
    mixture: Array  # [K]  lambda, how much each client counts
    average: Array  # [D]  the mean of the models so far


@algorithm(
    "AFL", "mohri2019", Needs(None, absent=True, trains=True), {"Agnostic federated learning": ""}
)
@module
class AFL(ReleasesModel, LocalLearning):
    r"""Agnostic federated learning: minimization of the worst mixture of clients' losses,
    :math:`\min_w\max_{\lambda\in\Delta}\sum_k\lambda_kf_k(w)`.

    A participant's local steps lead from :math:`w` to :math:`w_k`, and it sends :math:`w_k-w` and
    its loss :math:`f_k(w)`. The server takes a descent step on the model with the mixture's
    weights, and an ascent step on the mixture,

    .. math::

        w\leftarrow w+\frac{\sum_{k\in S}\lambda_k(w_k-w)}{\sum_{k\in S}\lambda_k},\qquad
        \lambda\leftarrow\Pi_\Delta\Big(\lambda+\gamma\frac K{|S|}\sum_{k\in S}f_k(w)e_k\Big)

    with :math:`\Pi_\Delta` the projection onto the probability simplex; if clients are drawn with
    unequal probabilities :math:`p_k`, each is weighted by :math:`1/(Kp_k)`. With one step of all
    clients, on all samples or on a batch, it is the paper's Stochastic-AFL with a sample of every
    domain; several steps and partial participation are as in federated averaging. Clients are
    weighted by :math:`\lambda` instead of the problem's weights. The server uses each message
    individually, so secure summation is not possible; a message has :math:`D+1` numbers.

    With constant step sizes :math:`\gamma` and :math:`\mu` of the order of :math:`1/\sqrt T` the
    paper bounds, for convex losses, the suboptimality of the *mean* of the models of :math:`T`
    rounds in the minimax problem; this mean is ``average`` in the state, which
    ``fl.metrics.trajectory("average", ["parameter"])`` shows.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.
      mixture_step_size: :math:`\gamma`, a schedule of the round or a number, > 0.

    Raises:
      ValueError: as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2)
      >>> def worst(algorithm):
      ...     model = fl.run(fl.Simulation(problem, algorithm), rounds=300).model.values
      ...     return problem.objective(model).max()
      >>> fair = fl.algorithms.AFL(0.05, mixture_step_size=0.05)
      >>> bool(worst(fair) < worst(fl.algorithms.FedAvg(0.05)))
      True

    Reference:
      Mohri et al. 2019, (4) and Figure 2.
    """

    mixture_step_size: Schedule = field(converter=as_schedule, kw_only=True)

    def local_problem(self, problem: Problem) -> Problem:
        return problem.unweighted()

    def init(self, problem: Problem, network: Network) -> AFLState:
        start = server_start(problem)
        clients = problem.clients
        return AFLState(start, jnp.full(clients, 1 / clients, start.dtype), start)

    def step(self, state: AFLState, now: Round) -> AFLState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        server = now.link.publish(state.model, cohort.active)
        start = jnp.broadcast_to(server, (len(cohort.active), len(server)))
        loss = participants.of(self.local_problem(now.problem)).objective(start)
        change = self.learn(now, cohort, start).model - start

        message = jnp.concatenate([change, loss[:, None]], axis=1)
        sent = now.link.send(message, clients=participants.numbers, sending=cohort.active)
        # A client drawn with a small probability represents many; a lost message represents none.
        represented = (
            jnp.ones_like(loss)
            if participants.weights is None
            else participants.weights.astype(loss.dtype)
        )
        none = jnp.zeros((len(state.mixture), sent.shape[1] + 1), sent.dtype)
        messages = participants.put(none, jnp.concatenate([sent, represented[:, None]], axis=1))
        messages = now.link.stored(messages, none)
        change = messages[:, :-2]
        loss = messages[:, -2]
        represented = messages[:, -1]

        share = state.mixture * represented
        total = jnp.sum(share)
        count = jnp.sum(represented > 0, dtype=loss.dtype)
        moved = jnp.matmul(share, change, precision=HIGHEST)
        model = server + moved / jnp.where(total > 0, total, 1)
        ascent = len(represented) * represented * loss / jnp.where(count > 0, count, 1)
        mixture = onto_simplex(state.mixture + self.mixture_step_size(now.number) * ascent)
        average = state.average + (model - state.average) / now.number.astype(server.dtype)
        return AFLState(model, mixture, average)

    def message_size(self, dim: int) -> int:
        return dim + 1
