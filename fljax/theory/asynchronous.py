r"""Second moments of random combination weights under partial participation (Rizk 2023, section
5.2).

A round with random availability of agents and links is affine in the models with random
coefficients, as a round with stochastic gradients is, and its weights are dependent: they all
involve the same draw of the available agents. Their joint second moments are known in closed form
if agents participate independently of each other (Bernoulli), links fail independently, or each
agent draws the neighbors that it receives from. With them
:func:`fljax.theory.multiagent.steady_state` is exact, whereas Zhao & Sayed (2015) give the leading
order in the step size, for a model in which absent agents are left out of a combination. Here, as
in a simulation, the neighbors of an absent agent keep its last message.

Shapes: ``K`` clients or peers, ``O`` output and ``I`` input rows of an exchange.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Present(NamedTuple):
    r"""Moments of the weights :math:`1[k\text{ here}]/n` in the mean over the ``n`` available
    clients.
    """

    mean: Array  # [K]
    square: Array  # [K, K]  of pairs at one server; zero for others


def present_moments(
    probability: Float[Array, " clients"], home: Int[np.ndarray, " clients"]
) -> Present:
    r"""Moments for clients that are available independently of each other.

    With :math:`g(t)=\prod_j(1-q_j+q_jt)` over the clients of a server and
    :math:`u_k=q_k/(1-q_k+q_kt)`,

    .. math::

        E\frac{1_k}n=\int_0^1gu_k\,dt,\qquad E\frac{1_k}{n^2}=\int_0^1\!\!\int_0^1gu_k(st)\,ds\,dt,
        \qquad E\frac{1_k1_l}{n^2}=\int_0^1\!\!\int_0^1st\,gu_ku_l(st)\,ds\,dt

    which are integrals of polynomials, for which Gauss quadrature is exact.

    Args:
      probability: :math:`q_k`, ``[K]``.
      home: ``[K]``, the server of each client.
    """
    dtype = probability.dtype
    servers = int(home.max()) + 1
    nodes, weights = np.polynomial.legendre.leggauss(int(np.bincount(home).max()) // 2 + 1)
    nodes = (nodes + 1) / 2
    weights = weights / 2
    same = jnp.asarray(home[:, None] == home[None])

    def parts(at: np.ndarray, weight: np.ndarray) -> tuple[Array, Array]:
        """``u`` and the weighted ``g`` of each client's server, ``[K, points]``."""
        factor = 1 - probability[:, None] + probability[:, None] * jnp.asarray(at, dtype)[None]
        product = jax.ops.segment_sum(jnp.log(factor), jnp.asarray(home), servers)[home]
        return probability[:, None] / factor, jnp.exp(product) * jnp.asarray(weight, dtype)[None]

    own_share, product = parts(nodes, weights)
    mean = jnp.sum(product * own_share, axis=1)
    at = np.outer(nodes, nodes).ravel()
    weight = np.outer(weights, weights).ravel()
    own_share, product = parts(at, weight)
    pairs = (own_share * product * jnp.asarray(at, dtype)[None]) @ own_share.T
    diagonal = jnp.sum(product * own_share, axis=1)
    identity = jnp.eye(len(home), dtype=bool)
    return Present(mean, jnp.where(identity, diagonal[:, None], jnp.where(same, pairs, 0)))


class Exchange(NamedTuple):
    """Linear map of the peers' rows ``(message, model, last message)`` in one exchange.

    If the exchange ends the round, the outputs are the next model and the last message; otherwise
    they are the input of the gradient step, the term added to its result, and the last message.
    """

    mean: Array  # [O, I]
    square: Array  # [O, I, O, I]  of the coefficients' products


def _linear(
    build: Callable[..., Array], mean: tuple[Array, ...], square: Float[Array, "all all"]
) -> Exchange:
    """The exchange for coefficients linear in variables of known moments, the first being one."""
    shapes = [value.shape for value in mean]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def of(flat: Array) -> Array:
        parts = jnp.split(flat, ends[:-1])
        return build(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))

    first = of(jnp.concatenate([value.reshape(-1) for value in mean]))
    basis = jax.vmap(of)(jnp.eye(ends[-1], dtype=square.dtype))
    flat = basis.reshape(ends[-1], -1)
    return Exchange(first, (flat.T @ (square @ flat)).reshape(*first.shape, *first.shape))


def _bordered(mean: Float[Array, " all"], square: Float[Array, "all all"]) -> Array:
    """Second moments of the variables with a leading constant one."""
    with_one = jnp.concatenate([jnp.ones(1, mean.dtype), mean])
    return jnp.block([[with_one[:1, None], with_one[None, 1:]], [with_one[1:, None], square]])


def absence_exchange(
    weights: Float[Array, "nodes nodes"],
    probability: Float[Array, " nodes"],
    working: Float[Array, ""],
    symmetric: bool,
    position: int,
) -> Exchange:
    r"""The exchange for peers that are available, and links that work, independently of each other.

    Coefficients are linear in :math:`1_kc_{kl}` and :math:`1_k1_lc_{kl}`, whose products have as
    expectation the probability that all peers and links in them, each counted once, are available.

    Args:
      weights: :math:`W`, ``[K, K]``.
      probability: availability of each peer, ``[K]``.
      working: the probability that a link works.
      symmetric: whether both directions of a link fail together.
      position: 0 if the exchange is before the gradient step, 1 if at the same time, 2 if
        after it.
    """
    nodes = len(weights)
    dtype = weights.dtype
    identity = jnp.eye(nodes, dtype=dtype)
    off_diagonal = weights * (1 - identity)

    # The exchange is linear in the indicators, so that it is built from their coefficients: a
    # constant one, 1_k c_kl and 1_k 1_l c_kl.
    def build(constant: Array, available: Array, both_available: Array) -> Array:
        receives = jnp.diag(jnp.diagonal(available))
        absent = constant * identity - receives
        zero = jnp.zeros_like(identity)
        current = (
            off_diagonal * both_available
            + receives
            - jnp.diag(jnp.sum(off_diagonal * available, axis=1))
        )
        stale = off_diagonal * (available - both_available)
        sent = [receives, zero, absent]
        if position == 2:
            return jnp.block([[current, absent, stale], sent])
        if position == 1:
            return jnp.block([[zero, receives, zero], [current, absent - receives, stale], sent])
        return jnp.block([[current, zero, stale], [zero, absent, zero], sent])

    # Pairs of coefficients: first 1_k c_km of all links, then 1_k 1_m c_km.
    receiver, sender = (index.ravel() for index in np.indices((nodes, nodes)))
    k = np.tile(receiver, 2)
    m = np.tile(sender, 2)
    other = np.concatenate([receiver, sender])
    link = jnp.where(k == m, 1, working)
    same_link = (k[:, None] == k) & (m[:, None] == m)
    if symmetric:
        same_link |= (k[:, None] == m) & (m[:, None] == k)

    def chance(*peers: np.ndarray) -> Array:
        """Probability that all of these are available, each counted once."""
        result = jnp.ones((), dtype)
        for index, number in enumerate(peers):
            before = functools.reduce(
                np.logical_or, (number == past for past in peers[:index]), False
            )
            result = result * jnp.where(before, 1, probability[number])
        return result

    mean = chance(k, other) * link
    square = chance(k[:, None], other[:, None], k[None], other[None])
    square = square * link[:, None] * jnp.where(same_link, 1, link[None])
    expected = mean.reshape(2, nodes, nodes)
    return _linear(build, (jnp.ones(()), *expected), _bordered(mean, square))


def drawn_exchange(
    weights: Float[Array, "nodes nodes"],
    probability: Float[Array, "nodes nodes"],
    count: Float[Array, ""],
) -> Exchange:
    r"""The exchange for peers that draw the neighbors they receive from, after the gradient step.

    The coefficient of :math:`l` at :math:`k` is :math:`a_{kl}N_{kl}/(Lp_{kl})` with a multinomial
    :math:`N_k`, and the remaining weight is the peer's own.

    Args:
      weights: :math:`W`, ``[K, K]``.
      probability: :math:`p_{kl}` of each of the draws, zero where the weights are zero.
      count: :math:`L`.
    """
    nodes = len(weights)
    dtype = weights.dtype
    identity = jnp.eye(nodes, dtype=dtype)
    drawn = probability > 0
    per_draw = jnp.where(drawn, weights * (1 - identity) / jnp.where(drawn, probability, 1), 0)

    def build(constant: Array, share: Array) -> Array:
        received = per_draw * share
        zero = jnp.zeros_like(identity)
        current = received + constant * identity - jnp.diag(jnp.sum(received, axis=1))
        return jnp.block([[current, zero, zero], [constant * identity, zero, zero]])

    mean = probability.reshape(-1)
    receiver = np.indices((nodes, nodes))[0].ravel()
    same_receiver = jnp.where(receiver[:, None] == receiver, 1 / count, 0)
    square = mean[:, None] * mean[None] * (1 - same_receiver) + same_receiver * jnp.diag(mean)
    return _linear(build, (jnp.ones(()), probability), _bordered(mean, square))
