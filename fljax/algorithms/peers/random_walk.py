"""Random walk SGD: a model goes from client to client and learns at each (Ayache et al. 2021)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.local_steps import gradient_in_training, sampled_problem
from fljax.algorithms.peers.ad_psgd import next_to_complete, random_neighbor
from fljax.algorithms.round import Round
from fljax.clock.arrivals import ArrivalClock
from fljax.graphs import Graph
from fljax.participation.selectors import Participants
from fljax.problems import Problem
from fljax.problems.streams import Stream


class RandomWalkState(NamedTuple):
    """State of random walk SGD between rounds."""

    model: Array  # [K, D]  the model that each client has seen last
    walking: Array  # [W, D]  the models that walk, as they were received
    place: Array  # [W]  at which client each is


def next_client(now: Round, client: Int[Array, ""]) -> Int[Array, ""]:
    """Return to which neighbor a walk goes on, or the client itself: by the Metropolis-Hastings
    rule, under which all clients are visited equally often in the long run.
    """
    of_acceptance, _ = jax.random.split(now.key("algorithm"))
    proposed = random_neighbor(now, client)
    degree = now.network.degree
    uniform = jax.random.uniform(of_acceptance, (), degree.dtype)
    return jnp.where(uniform * degree[proposed] < degree[client], proposed, client)


@algorithm("Random walk", "ayache2021", Needs(trains=True, asynchronous=True))
@module
class RandomWalk(Descending):
    r"""Random walk SGD: a model goes from client to client and takes a step at each.

    A round is a visit. Client :math:`i` receives the model :math:`w`, takes a step on its own data,
    and sends it to its neighbor :math:`j` with probability :math:`P_{ij}`, or keeps it for another
    visit:

    .. math::

        w\leftarrow w-\mu f_i'(w),\qquad
        P_{ij}=\frac{a_{ij}}{d_i}\min\Big(1,\frac{d_i}{d_j}\Big)\ (j\ne i),\qquad
        P_{ii}=1-\sum_{j\ne i}P_{ij},

    where :math:`a_{ij}` is the weight of the edge and :math:`d_i` the sum of those of :math:`i`,
    its number of neighbors if all weights are one. This is the walk of Metropolis and Hastings
    whose stationary distribution is uniform, so that the walk minimizes the mean of all clients'
    objectives although no client knows more than its neighbors.

    With several ``walks`` as many models learn independently of each other, and nothing is
    averaged. Without a clock they take turns and begin at clients whose numbers are equally far
    apart. Metrics evaluate, for each client, the model that it has seen last. A round costs one
    client's gradient and at most one message.

    On a clock (``Simulation(clock=fljax.clock.Asynchronous(devices, concurrency=walks))``) a
    message from :math:`i` to :math:`j` takes the latency of :math:`i` and its bits at the slower of
    :math:`i`'s upload and :math:`j`'s download, and a visit what :math:`j` computes. A client works
    on one model at a time, in the order in which they were sent to it. The walks begin at randomly
    drawn clients, or one at each. Clients are busy while they compute. Energy counts a message
    received and one sent for each visit, also where the model stays.

    If links fail (``losses=``) and a message is lost, the walk goes on with the model that its
    receiver has seen last.

    The source has one walk; its other method, which visits clients by their importance, and the
    private one are not here. Johansson, Rabi and Johansson proposed such a method with subgradients
    in 2009.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      walks: how many models walk, >= 1, at most the number of clients.
      batches: the batch of each step (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: a step size that is not positive, no walk, more walks than clients, batches that
        cannot be drawn; a clock with rounds that clients have in common, or with another number of
        clients at work.

    Example:
      One model on a ring, on which a step takes a second and a message half a second:

      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2),
      ...     network=fl.graphs.ring(4),
      ...     algorithm=fl.algorithms.RandomWalk(0.1),
      ...     clock=fl.clock.Asynchronous(
      ...         fl.clock.Devices(seconds_per_step=1.0, latency_seconds=0.5), concurrency=1
      ...     ),
      ... )
      >>> fl.run(simulation, rounds=4).seconds.values.tolist()
      [1.0, 2.5, 4.0, 5.5]

    Reference:
      Ayache & El Rouayheb 2021, the walk with uniform visits.
    """

    walks: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        checks.count("walks", self.walks)

    def check(self, problem: Problem | Stream, network: Graph | None) -> None:
        super().check(problem, network)
        if self.walks > problem.clients:
            raise ValueError(
                f"walks must be at most the {problem.clients} clients of the problem, got "
                f"{self.walks}."
            )

    def init(self, problem: Problem, network: Graph) -> RandomWalkState:
        start = start_models(problem)
        place = jnp.arange(self.walks, dtype=jnp.int32) * problem.clients // self.walks
        return RandomWalkState(start, start[place], place)

    def step(self, state: RandomWalkState, now: Round) -> RandomWalkState:
        clock = now.clock
        if clock is None:
            walk = (now.number - 1) % self.walks
            client = state.place[walk]
        else:
            assert isinstance(clock, ArrivalClock)
            client = next_to_complete(now)
            walk = clock.slots[0]
        visited = Participants(client[None], jnp.ones(1, bool))
        part = sampled_problem(self.batches, now, visited)
        start = state.walking[walk]
        gradient = gradient_in_training(now, part, start[None], participants=visited)
        stepped = start - self.step_size(now.number) * gradient[0]
        model = state.model.at[client].set(stepped)
        following = next_client(now, client)
        moves = (following != client).astype(jnp.int32)
        receivers = jnp.zeros(len(model), jnp.int32).at[client].set(moves)
        _, inbox = now.link.exchange(model, receivers=receivers)
        received = jnp.where(moves, inbox.from_neighbor(following, client), stepped)
        if clock is not None:
            clock.go_on_at(following)
        walking = state.walking.at[walk].set(received)
        return RandomWalkState(model, walking, state.place.at[walk].set(following))
