r"""Consensus subspace: the common part of connected nodes' models, and their differences.

Stacked models lie in :math:`\mathbb R^{KD}`; equal models of all nodes are the consensus subspace,
the null space of :math:`L\otimes I` of a connected graph.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax.graphs.undirected import Graph


@checked
def agreed(
    models: Float[Array, "nodes dim"],
    among: Int[Array, " nodes"] | None = None,
    shared: Bool[Array, " dim"] | None = None,
) -> Float[Array, "nodes dim"]:
    r"""The nearest models that are all equal: the projection on the consensus subspace.

    .. math:: P_{\mathcal S}w=1\otimes\frac1K\sum_kw_k,\qquad
        P_{\mathcal S^\perp}w=w-P_{\mathcal S}w

    Args:
        models: ``[K, D]``.
        among: ``[K]`` integers below ``K``: models are made equal only among nodes with the same
            number, such as ``graph.components()`` or a cluster; all nodes by default.
        shared: ``[D]``, the parameters to be made equal; the others are unchanged (partial sharing,
            section 6.5). All by default.

    Raises:
        ValueError: labels for another number of nodes or out of range, a mask for another number of
            parameters.

    Example:
        >>> import jax.numpy as jnp, fljax as fl
        >>> models = jnp.array([[1.0, 5.0], [3.0, 7.0]])
        >>> fl.graphs.agreed(models).tolist()
        [[2.0, 6.0], [2.0, 6.0]]
        >>> fl.graphs.agreed(models, shared=jnp.array([True, False])).tolist()
        [[2.0, 5.0], [2.0, 7.0]]

    Reference: Jung 2025, (46) and (47).
    """
    checks.finite("models", models)
    models = jnp.asarray(models)
    nodes, dim = models.shape
    if shared is not None and np.shape(shared) != (dim,):
        raise ValueError(
            f"shared must be one truth value for each of the {dim} parameters, got shape "
            f"{np.shape(shared)}."
        )
    if among is None:
        means = jnp.broadcast_to(jnp.mean(models, axis=0), models.shape)
    else:
        if np.shape(among) != (nodes,):
            raise ValueError(
                f"among must be one number of each of the {nodes} nodes, got shape "
                f"{np.shape(among)}."
            )
        checks.interval("among", among, at_least=0, below=nodes)
        among = jnp.asarray(among)
        units = jnp.ones((nodes, 1), models.dtype)
        total, count = (jax.ops.segment_sum(a, among, nodes)[among] for a in (models, units))
        means = total / count
    return means if shared is None else jnp.where(jnp.asarray(shared)[None], means, models)


@checked
def null_space(graph: Graph) -> Float[np.ndarray, "nodes components"]:
    r"""An orthonormal basis of the Laplacian's null space.

    :math:`1_{\mathcal C}/\sqrt{|\mathcal C|}` of each connected component, in the order of their
    first nodes.

    There are as many columns as components; the graph must be known.

    Raises:
        TypeError: a traced graph, whose number of components cannot determine a shape.

    Example:
        >>> from fljax import graphs
        >>> pair = graphs.from_edges(3, [(0, 1)], allow_disconnected=True)
        >>> (2 * graphs.null_space(pair) ** 2).round(3).tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]]

    Reference: Jung 2025, exercises 3.2 and 3.4.
    """
    if not checks.is_concrete(graph.degree):
        raise TypeError(
            "null_space has as many columns as the graph has components, and cannot be traced; "
            "call it outside jit and vmap, or use graph.components()."
        )
    with jax.ensure_compile_time_eval():
        _, names = np.unique(np.asarray(graph.components()), return_inverse=True)
    basis = np.zeros((graph.nodes, names.max() + 1), float_dtype())
    basis[np.arange(graph.nodes), names] = 1 / np.sqrt(np.bincount(names))[names]
    return basis
