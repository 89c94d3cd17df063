"""Learning the graph during training: each node listens to neighbors with similar models."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import module, static
from fljax.graphs.neighbor_tables import TablePart
from fljax.graphs.undirected import Graph, of_entries
from fljax.graphs.varying import Varying

_RULES = ("any", "mutual")


@module
class Relearned(Varying):
    r"""A network whose edges are learned during training: each node keeps the nearest models.

    In every round each node sends its model to all candidate neighbors, and of the received models
    keeps those nearest to the one it sent, including ties. An edge is active if *any* of its ends
    keeps the other, or only if both do; a model that is not kept is replaced by the node's own, as
    where a message is lost. Algorithms therefore need no special code, and algorithms that minimize
    a variation (:class:`fljax.algorithms.FedGD`, :class:`~fljax.algorithms.FedRelax`) have the
    fixed points of the learned graph. A node must know the distance up to which each of its
    candidates keeps models, one number each; this is not counted as traffic.

    While all models are equal, as at the start, all candidates are kept.

    Args:
      candidates: the graph of possible edges, with their weights.
      neighbors: ``k``, the number that each node keeps, from 1 to ``K - 1``.
      keep: ``"any"`` or ``"mutual"``.

    Raises:
      ValueError: a number of neighbors outside ``[1, K - 1]``, an unknown rule.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> cluster = jnp.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
      >>> problem = fl.problems.Problem(
      ...     jnp.ones((6, 1, 1)), 5.0 * cluster[:, None], fl.problems.LeastSquares()
      ... )
      >>> network = fl.graphs.Relearned(fl.graphs.complete(6), neighbors=2)
      >>> simulation = fl.Simulation(problem, fl.algorithms.FedRelax(1.0), network)
      >>> learned = network.learned(fl.run(simulation, rounds=30).model.values)
      >>> learned.components().tolist()
      [0, 1, 0, 1, 0, 1]

    Reference:
      Jung 2025, section 7.3 (nearest neighbors; message passing over a communication
      graph that is another than the learned one).
    """

    candidates: Graph
    neighbors: int = static()
    keep: str = static(default="any")

    def validate(self) -> None:
        checks.count("neighbors", self.neighbors)
        if self.neighbors >= self.candidates.nodes:
            raise ValueError(
                f"neighbors must be below the number of nodes, {self.candidates.nodes}, got "
                f"{self.neighbors}."
            )
        checks.choice("keep", self.keep, _RULES)

    @property
    def first(self) -> Graph:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.candidates

    def at(self, key: Array, round: Array) -> Graph:
        return self.candidates

    def single_table(self) -> "Relearned":
        return Relearned(self.candidates.single_table(), self.neighbors, self.keep)

    @checked
    def learned(self, models: Float[Array, "nodes dim"]) -> Graph:
        """The subgraph of the candidates' edges that is active for these models if all are
        received.

        Args:
          models: ``[K, D]``; for a run, ``results.model.values``.
        """
        if len(models) != self.nodes:
            raise ValueError(f"models must be of the {self.nodes} nodes, got {len(models)}.")
        candidates = self.candidates.single_table()
        (part,) = candidates.entries.parts
        active = self.kept(part, part.distances(jnp.asarray(models)))
        entries = candidates.entries.with_weights([jnp.where(active, part.weights, 0)])
        return of_entries(entries, entries.row_sums())

    def kept(
        self, part: TablePart, distance: Float[Array, "nodes slots"]
    ) -> Bool[Array, "nodes slots"]:
        """The mask of active edges.

        Args:
          part: the only table of the candidates.
          distance: distance of each received model from the node's own, infinite where none is
            received.
        """
        distance = jnp.where(part.weights > 0, distance, jnp.inf)
        at = min(self.neighbors, distance.shape[1]) - 1
        reach = jnp.sort(distance, axis=1)[:, at]  # of the last that a node keeps itself
        theirs = part.of_neighbors(reach)
        own_reach = reach[:, None]
        most = jnp.maximum if self.keep == "any" else jnp.minimum
        return distance <= most(theirs, own_reach)
