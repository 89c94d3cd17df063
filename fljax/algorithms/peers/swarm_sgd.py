r"""SwarmSGD: peers take several steps, then average in pairs (Nadiradze et al. 2021)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.local_steps import draw_batches, learn
from fljax.algorithms.peers.ad_psgd import average_pair, next_to_complete, random_neighbor
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.participation.selectors import Participants
from fljax.problems import Problem


class SwarmSGDState(NamedTuple):
    """State of SwarmSGD between rounds."""

    model: Array  # [K, D]  w_k
    read: Array  # [K, D]  the model from which client k began its current steps


@algorithm("SwarmSGD", "nadiradze2021", Needs(trains=True, changing=True, asynchronous=True))
@module
class SwarmSGD(Descending):
    r"""SwarmSGD: two neighbors average after several local steps.

    A round is an interaction of two neighbors :math:`i` and :math:`j`. In the form with blocking
    averages, which is this one, both take :math:`H` local steps and then the mean:

    .. math::

        \psi_k=w_k-\mu\sum_{e=1}^Hf_k'(w_{k,e-1}),\ w_{k,0}=w_k\quad(k=i,j),\qquad
        w_i,w_j\leftarrow\tfrac12(\psi_i+\psi_j)

    Without a clock :math:`i` is drawn uniformly and :math:`j` in proportion to the weights of its
    edges; if all clients have the same number of neighbors, as in the paper, each edge is equally
    likely.

    On a clock (``Simulation(clock=fljax.clock.Asynchronous(...))``) each client works at its own
    speed, and :math:`i` is the one that completes its steps. The algorithm in the paper counts
    interactions and leaves open when :math:`j` takes its steps. Here no client waits: :math:`j` is
    in the middle of its own, so it averages the model without them, and adds them when they are
    complete. The model from which :math:`i` began, :math:`\hat w_i`, may then be older than
    :math:`w_i`:

    .. math::

        w_i,w_j\leftarrow\tfrac12\Big(w_i-\mu\sum_{e=1}^Hf_i'(\hat w_{i,e-1})+w_j\Big)

    With one step it differs from :class:`ADPSGD` in that the step is taken before the average.
    Messages may be quantized (``compression=``). In the paper the number of steps may also be
    random; that is not here, since a clock must know a client's work before it begins.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      local_steps: :math:`H\ge1`.
      batches: the batch of each step (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: a step size that is not positive, fewer than one step, batches that cannot be
        drawn; a clock with rounds that clients have in common.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.SwarmSGD(0.05, local_steps=3),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 0.05)
      True

    Reference:
      Nadiradze et al. 2021, Algorithm 1.
    """

    local_steps: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        checks.count("local_steps", self.local_steps)

    def init(self, problem: Problem, network: Graph) -> SwarmSGDState:
        start = start_models(problem)
        return SwarmSGDState(start, start)

    def step(self, state: SwarmSGDState, now: Round) -> SwarmSGDState:
        client = next_to_complete(now)
        neighbor = random_neighbor(now, client)
        pair = Participants(
            jnp.stack([client, neighbor]), jnp.stack([jnp.array(True), neighbor != client])
        )
        # On a clock the neighbor has not completed its steps.
        complete = pair if now.clock is None else Participants(pair.clients[:1], pair.here[:1])
        start = complete.take(state.read)
        learned = learn(
            now.problem,
            complete,
            start,
            self.step_size(now.number),
            self.local_steps,
            draw_batches(self.batches, now, complete, self.local_steps),
            training=now.networks.of(complete),
        )
        now.networks.trained(complete, None, learned.state)
        moved = complete.put(state.model, complete.take(state.model) + learned.model - start)
        model = average_pair(now, moved, client, neighbor)
        return SwarmSGDState(model, complete.put(state.read, complete.take(model)))
