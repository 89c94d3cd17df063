"""Repeated combination until all nodes agree."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.graphs.combination import Combination


@checked
def consensus(
    combination: Combination,
    models: Float[Array, "nodes dim"],
    tolerance: float = 1e-6,
    rounds: int = 100_000,
) -> Float[Array, "nodes dim"]:
    r"""The limit of repeated combination at all nodes, without noise: :math:`\sum_k\pi_kw_k`.

    After training under noise that cancels in the network's weighted mean
    (:class:`~fljax.link.GraphHomomorphic`), every node obtains the noise-free mean; noise that does
    not cancel remains.

    Args:
      combination: the weights; :math:`\pi` is their ``stationary``.
      models: ``[K, D]``, one per node.
      tolerance: nodes agree if no entry differs by more than this fraction of the largest entry; in
        single precision at least ``1e-6``.
      rounds: maximum number of rounds.

    Returns:
      ``[K, D]``.

    Raises:
      ValueError: models of another number of nodes; no agreement within ``rounds``, unless traced.

    Reference:
      Rizk 2023, section 3.5.1.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> ended = fl.graphs.consensus(fl.graphs.ring(4).mixing(), jnp.eye(4)[:, :1])
      >>> [round(float(entry), 4) for entry in ended[:, 0]]
      [0.25, 0.25, 0.25, 0.25]
    """
    checks.finite("models", models)
    checks.positive("tolerance", tolerance)
    checks.count("rounds", rounds)
    if models.shape[0] != combination.nodes:
        raise ValueError(
            f"models must be of the {combination.nodes} nodes of the weights, got shape "
            f"{models.shape}."
        )
    enough = tolerance * jnp.max(jnp.abs(models))

    def disagreement(models: Array) -> Array:
        return jnp.max(jnp.max(models, axis=0) - jnp.min(models, axis=0))

    def more(carry: tuple[Array, Array]) -> Array:
        models, done = carry
        return (disagreement(models) > enough) & (done < rounds)

    def combined(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        models, done = carry
        return combination(models), done + 1

    models, _ = jax.lax.while_loop(more, combined, (models, jnp.zeros((), jnp.int32)))

    def check(most: Array, enough: Array) -> None:
        if not most <= enough:
            raise ValueError(
                f"after {rounds} rounds nodes differ by {float(most):.3g}, above "
                f"{float(enough):.3g}; take more rounds, a larger tolerance, or weights with a "
                "rate() further below one."
            )

    checks.check_when_concrete(check, disagreement(models), enough)
    return models
