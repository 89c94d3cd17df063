"""Combination matrices: what each node makes of its own value and those of its neighbours."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._module import module, static
from fljax.graphs import tables
from fljax.graphs.tables import Overflow

RULES = ("metropolis", "max-degree", "averaging", "laplacian")


@module
class Mixing:
    """Averaging weights ``W = diag(self_weight) + off-diagonal`` on the edges of a graph.

    Attributes:
        nodes: number of nodes ``K``.
        self_weight: ``w_kk``, ``[K]``.
        off_diagonal: dense form, ``[K, K]`` with zero diagonal, or None.
        neighbors: padded form, ``[K, S]``, or None.
        weights: padded form, ``w_kl`` per slot ``[K, S]``, or None.
        stationary: ``pi`` with ``pi' W = pi'`` and sum one, ``[K]``: what repeated mixing
            converges to is ``sum_k pi_k x_k``. Uniform if ``W`` is symmetric.
        overflow: padded form, the neighbours that found no slot, or None.
    """

    nodes: int = static()
    self_weight: Float[Array, " nodes"]
    off_diagonal: Float[Array, "nodes nodes"] | None
    neighbors: Int[Array, "nodes slots"] | None
    weights: Float[Array, "nodes slots"] | None
    stationary: Float[Array, " nodes"]
    overflow: Overflow | None = None

    def __call__(self, x: Float[Array, "nodes ..."]) -> Float[Array, "nodes ..."]:
        """``W x`` for ``x`` of shape ``[K, ...]``."""
        far = self._entries.sum(x)
        return tables.scale_rows(self.self_weight, x) + far

    def matrix(self) -> Float[Array, "nodes nodes"]:
        """``W`` as a ``[K, K]`` matrix."""
        return self._entries.dense() + jnp.diag(self.self_weight)

    def rate(self) -> Float[Array, ""]:
        """Factor by which disagreement shrinks per mixing; below one iff consensus is reached.

        The second largest modulus among the eigenvalues of ``W``. For symmetric ``W`` it is the
        spectral norm of ``W - 11'/K``. The weights are reversible, ``pi_k w_kl = pi_l w_lk``, so
        the eigenvalues are those of the symmetric ``P^1/2 W P^-1/2``, ``P = diag(pi)``, from
        which the leading pair is taken out. ``O(K^3)``.
        """
        root = jnp.sqrt(self.stationary)
        similar = root[:, None] * self.matrix() / root[None, :]
        similar = (similar + similar.T) / 2 - root[:, None] * root[None, :]
        return jnp.max(jnp.abs(jnp.linalg.eigvalsh(similar)))

    @property
    def _entries(self) -> tables.Entries:
        return tables.Entries(
            self.nodes, self.off_diagonal, self.neighbors, self.weights, self.overflow
        )


def by_rule(entries: tables.Entries, degree: Array, rule: str, step: Any) -> Mixing:
    """The weights of :meth:`Graph.mixing` on an undirected graph, from checked arguments."""

    def scaled(part: tables.Part) -> Array:
        mine = degree[part.nodes][:, None]
        if rule == "metropolis":
            scale = 1.0 / (1.0 + jnp.maximum(mine, part.of_neighbors(degree)))
        elif rule == "averaging":
            scale = 1.0 / (1.0 + mine)
        elif rule == "max-degree" or step is None:
            scale = 1.0 / (1.0 + jnp.max(degree))[None, None]
        else:
            scale = jnp.asarray(step, degree.dtype)[None, None]
        return part.weights * scale

    parts = entries.parts
    weights = [scaled(part) for part in parts]
    stationary = 1.0 + degree if rule == "averaging" else jnp.ones_like(degree)
    off = entries.with_weights(weights)
    return Mixing(
        nodes=off.nodes,
        self_weight=1.0 - tables.add_rows(parts, [jnp.sum(each, axis=1) for each in weights]),
        off_diagonal=off.matrix,
        neighbors=off.neighbors,
        weights=off.weights,
        stationary=stationary / jnp.sum(stationary),
        overflow=off.overflow,
    )
