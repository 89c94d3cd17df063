r"""AD-PSGD: peers that do not wait for each other average in pairs (Lian et al. 2018)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.local_steps import gradient_in_training, sampled_problem
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.link.losses import of_edges
from fljax.participation.selectors import Everyone, Participants
from fljax.problems import Problem


class ADPSGDState(NamedTuple):
    """State of AD-PSGD between rounds."""

    model: Array  # [K, D]  w_k
    read: Array  # [K, D]  the model that client k read when it began its current gradient


def next_to_complete(now: Round) -> Int[Array, ""]:
    """Return which client completes its work in this round: the one that the clock says, or, where
    there is none, one that is drawn uniformly.
    """
    if now.clock is not None:
        return now.choose(Everyone()).numbers[0]
    of_client, _ = jax.random.split(now.key("algorithm"))
    return jax.random.randint(of_client, (), 0, now.problem.clients, jnp.int32)


def random_neighbor(now: Round, client: Int[Array, ""]) -> Int[Array, ""]:
    """Return a neighbor of a client, with a probability in proportion to the weight of their edge;
    the client itself where it has none.
    """
    _, of_neighbor = jax.random.split(now.key("algorithm"))
    neighbors, weights = (table[client] for table in now.network.neighbor_table())
    # The smallest of exponential numbers with these rates is of each with such a probability, and
    # the number of an edge does not depend on its place in the table.
    uniform = of_edges(of_neighbor, client, neighbors, False, weights.dtype)
    waiting = -jnp.log1p(-uniform) / jnp.where(weights > 0, weights, 1)
    waiting = jnp.where(weights > 0, waiting, jnp.inf)
    return jnp.where(jnp.any(weights > 0), neighbors[jnp.argmin(waiting)], client)


def average_pair(
    now: Round, model: Float[Array, "clients dim"], one: Int[Array, ""], other: Int[Array, ""]
) -> Float[Array, "clients dim"]:
    """Return the models after two neighbors have sent each other theirs, and both have taken the
    mean; a client that has no neighbor sends nothing.
    """
    messages = (one != other).astype(jnp.int32)
    receivers = jnp.zeros(len(model), jnp.int32).at[one].add(messages).at[other].add(messages)
    _, inbox = now.link.exchange(model, receivers=receivers)
    return model.at[jnp.stack([one, other])].set(inbox.mean_of_pair(one, other))


@algorithm(
    "AD-PSGD",
    "lian2018",
    Needs(trains=True, changing=True, asynchronous=True),
    {"Asynchronous decentralized parallel SGD": ""},
)
@module
class ADPSGD(Descending):
    r"""Asynchronous decentralized parallel SGD: one client's gradient, and one average of a pair.

    A round is the moment at which a client :math:`i` completes its gradient, at the model
    :math:`\hat w_i` that it read when it began. It exchanges models with a random neighbor
    :math:`j`, both take the mean, and :math:`i` takes its step:

    .. math::

        w_i\leftarrow\tfrac12(w_i+w_j)-\mu f_i'(\hat w_i),\qquad
        w_j\leftarrow\tfrac12(w_i+w_j),

    with the models on the right before the round. Then :math:`i` reads :math:`\hat w_i=w_i` and
    begins its next gradient. Meanwhile others average with it, so its gradient is of an older model
    than the one that it changes.

    On a clock (``Simulation(clock=fljax.clock.Asynchronous(...))``) each client works at its own
    speed. Without one, as in the paper's analysis, a uniformly drawn client completes in every
    round. Either way a round costs one client's gradient and two messages, and a round of other
    methods for peers corresponds to as many rounds as there are clients.

    The neighbor is drawn in proportion to the weights of the edges, uniformly where they are equal;
    on a graph whose nodes have the same number of neighbors the expected average is then doubly
    stochastic with equal weights. Any graph is allowed: the paper asks for a bipartite one only so
    that no two clients wait for each other. The average takes no time of the neighbor's.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a step size that is not positive, batches that cannot be drawn; a clock with
        rounds that clients have in common.

    Example:
      The last client is ten times slower than the others, which do not wait for it:

      >>> import jax, fljax as fl
      >>> devices = fl.clock.Devices(seconds_per_step=[0.1, 0.1, 0.1, 1.0])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2),
      ...     network=fl.graphs.ring(4),
      ...     algorithm=fl.algorithms.ADPSGD(0.1),
      ...     clock=fl.clock.Asynchronous(devices),
      ... )
      >>> run = fl.run(simulation, rounds=31)
      >>> run.seconds.values[[0, 2, 3, 30]].round(3).tolist()
      [0.1, 0.1, 0.2, 1.0]

    Reference:
      Lian et al. 2018, Algorithm 1.
    """

    def init(self, problem: Problem, network: Graph) -> ADPSGDState:
        start = start_models(problem)
        return ADPSGDState(start, start)

    def step(self, state: ADPSGDState, now: Round) -> ADPSGDState:
        client = next_to_complete(now)
        neighbor = random_neighbor(now, client)
        completes = Participants(client[None], jnp.ones(1, bool))
        part = sampled_problem(self.batches, now, completes)
        gradient = gradient_in_training(
            now, part, completes.take(state.read), participants=completes
        )
        averaged = average_pair(now, state.model, client, neighbor)
        model = averaged.at[client].add(-self.step_size(now.number) * gradient[0])
        return ADPSGDState(model, completes.put(state.read, completes.take(model)))
