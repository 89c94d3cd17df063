"""Networks that change in every round: a schedule of graphs, or a random process."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax._core import checks
from fljax._core.module import module, static
from fljax.graphs.undirected import Graph


class Varying:
    """A graph for every round; subclass it to define your own process.

    Attributes:
      first: a graph with the same nodes and shapes, used before the first round.
    """

    first: Graph

    @property
    def nodes(self) -> int:
        """The number of nodes ``K``."""
        return self.first.nodes

    def check(self, rounds: int) -> None:
        """Raise ``ValueError`` unless there are graphs for a run of this length."""

    @checks.required
    def at(self, key: Array, round: Array) -> Graph:
        """The graph of a round; ``key`` is that of this round and consumed."""
        raise NotImplementedError

    def single_table(self) -> "Varying":
        """The same network, with graphs without overflow."""
        return self

    def require_connected(self) -> "Varying":
        """The network itself: graphs of single rounds may be disconnected."""
        return self


@module
class GraphSchedule(Varying):
    """Graphs used one after the other, cyclically.

    Args:
      graphs: graphs of the same nodes, in dense form.

    Raises:
      ValueError: no graph, or graphs of different sizes.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.GraphSchedule([fl.graphs.ring(4), fl.graphs.star(4)]).nodes
      4
    """

    graphs: Any  # a sequence of graphs, stacked once constructed

    def validate(self) -> None:
        is_numbers = isinstance(self.graphs, jax.Array | np.ndarray | range)
        if not isinstance(self.graphs, Iterable) or is_numbers:
            raise TypeError(
                "graphs must be a list of graphs, one for each round, got "
                f"{checks.shown(self.graphs)}; for a graph that does not change, give the graph "
                "itself."
            )
        graphs = list(self.graphs)
        for graph in graphs:
            checks.kind("graphs", graph, Graph)
        sizes = sorted({graph.nodes for graph in graphs})
        if len(sizes) != 1:
            raise ValueError(
                f"graphs must be at least one, all of the same nodes, got {len(graphs)} of sizes "
                f"{sizes}."
            )
        graphs = [graph.as_form("dense") for graph in graphs]
        object.__setattr__(self, "graphs", jax.tree.map(lambda *a: jnp.stack(a), *graphs))

    @property
    def first(self) -> Graph:  # pyright: ignore[reportIncompatibleVariableOverride]
        return jax.tree.map(lambda a: a[0], self.graphs)

    def at(self, key: Array, round: Array) -> Graph:
        index = (round - 1) % np.shape(self.graphs.degree)[0]
        return jax.tree.map(lambda a: jnp.asarray(a)[index], self.graphs)


@module
class DrawnGraphs(Varying):
    """A new random graph in every round, drawn inside the run.

    Args:
      draw: ``key -> Graph``, traceable, with the same shapes for every key; for instance ``lambda
        key: fl.graphs.erdos_renyi(key, nodes=20, probability=0.2)``.

    Raises:
      TypeError: the result of ``draw`` is not a graph.

    Example:
      >>> import fljax as fl
      >>> network = fl.graphs.DrawnGraphs(lambda key: fl.graphs.k_regular(key, nodes=6, degree=3))
      >>> network.nodes
      6
    """

    draw: Callable[[Array], Graph] = static()

    def validate(self) -> None:
        try:
            drawn = jax.eval_shape(self.draw, jax.random.key(0))
        except Exception as error:
            raise TypeError(
                "draw must be a function key -> Graph that can be traced, such as lambda key: "
                f"fl.graphs.k_regular(key, nodes=6, degree=3), but its call ended in an error: "
                f"{str(error).partition(chr(10))[0]}"
            ) from error
        checks.kind("what draw returns", drawn, Graph)

    @property
    def first(self) -> Graph:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.draw(jax.random.key(0))

    def at(self, key: Array, round: Array) -> Graph:
        return self.draw(key)
