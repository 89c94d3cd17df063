"""Data whose distribution differs between agents: "non-iid" data in Rizk 2023.

The source says of its regression data that covariances of the features and variances of the noise
are random and each agent's own (sections 2.6.1, 3.5.1 and 4.4.1), and of its classification
data that each agent's features have their own Gaussian noise (sections 2.6.2, 3.5.2 and 4.4.2). It
gives no distributions; these are our choice.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

import fljax as fl
from fljax._core.module import float_dtype
from fljax._core.numerics import HIGHEST
from fljax._core.prng import normal
from fljax.problems import LeastSquares, Problem, SquaredL2

Number = Array | float


def covariance_factors(
    key: Key[Array, ""],
    agents: int,
    dim: int,
    eigenvalues: tuple[Number, Number],
) -> Float[Array, "agents dim dim"]:
    r"""Factors :math:`F_k` of random covariances :math:`R_k=F_kF_k^\top`.

    Directions are uniform and eigenvalues log-uniform.

    Args:
      key: consumed.
      agents: number of covariances; 1 for a covariance that all agents have in common.
      dim: of the features.
      eigenvalues: the least and the greatest.
    """
    k_directions, k_eigenvalues = jax.random.split(key)
    dtype = float_dtype()
    directions, _ = jnp.linalg.qr(normal(k_directions, (agents, dim, dim), dtype))
    least, most = (jnp.log(jnp.asarray(value, dtype)) for value in eigenvalues)
    position = jax.random.uniform(k_eigenvalues, (agents, 1, dim), dtype)
    roots = jnp.exp((least + (most - least) * position) / 2)
    return directions * roots


def normal_quantiles(key: Key[Array, ""], agents: int) -> Float[Array, " agents"]:
    """Standard normal quantiles in random order: all data sets have the same agents, so that a mean
    over data sets is not dominated by the few with an extreme one.
    """
    places = (jnp.arange(agents, dtype=float_dtype()) + 0.5) / agents
    return jax.random.permutation(key, jax.scipy.special.ndtri(places))


def regression(
    key: Key[Array, ""],
    agents: int,
    samples: int | tuple[int, int],
    dim: int,
    rho: Number,
    *,
    eigenvalues: tuple[Number, Number],
    noise: Number,
    feature_spread: Number = 0.0,
    noise_spread: Number = 0.0,
    common: bool = False,
) -> Problem:
    r"""Least squares of one model and different distributions (2.70)-(2.72).

    :math:`d=u^\top w^\star+v` with :math:`u\sim\mathcal N(0,R_k)`,
    :math:`v\sim\mathcal N(0,\sigma_k^2)` and one standard normal :math:`w^\star`, and the loss
    :math:`(d-u^\top w)^2+\rho\|w\|^2`. Draws do not depend on the spreads: under one
    key, a larger spread moves the same agents further apart.

    Args:
      key: consumed.
      agents: ``K``, over all servers.
      samples: ``N`` of each, or the least and the most, a whole number between them each.
      dim: ``M``.
      rho: of every agent's regularizer.
      eigenvalues: as of :func:`covariance_factors`.
      noise: the median :math:`\sigma_k^2`.
      feature_spread: :math:`s_u` of each agent's factor :math:`e^{s_uz_k}` of its features, with
        :math:`z_k` the :func:`normal_quantiles`.
      noise_spread: :math:`s_v` of each agent's factor of its :math:`\sigma_k`.
      common: whether all have one covariance, but for the spread.
    """
    k_model, k_factor, k_spread, k_level, k_size, k_rows, k_noise = jax.random.split(key, 7)
    dtype = float_dtype()
    least, most = (samples, samples) if isinstance(samples, int) else samples
    sizes = jax.random.randint(k_size, (agents,), least, most + 1, jnp.int32)
    real = jnp.arange(most, dtype=jnp.int32)[None] < sizes[:, None]
    scale = jnp.exp(jnp.asarray(feature_spread, dtype) * normal_quantiles(k_spread, agents))
    factors = scale[:, None, None] * covariance_factors(
        k_factor, 1 if common else agents, dim, eigenvalues
    )
    white = fl.problems.least_squares(k_rows, agents, most, dim).features
    features = jnp.einsum("knq,kpq->knp", white, factors, precision=HIGHEST)
    features = jnp.where(real[..., None], features, 0)
    model = normal(k_model, (dim,), dtype)
    level = jnp.exp(jnp.asarray(noise_spread, dtype) * normal_quantiles(k_level, agents))
    deviation = (jnp.sqrt(jnp.asarray(noise, dtype)) * level)[:, None]
    # One row of parameters an agent, as in fljax.problems.linear.
    rows = jnp.broadcast_to(model[None], (agents, dim))
    clean = jnp.einsum("knp,kp->kn", features, rows, precision=HIGHEST)
    targets = jnp.where(real, clean + deviation * normal(k_noise, (agents, most), dtype), 0)
    return Problem(
        features=features,
        targets=targets,
        loss=LeastSquares(),
        regularizer=SquaredL2(),
        strength=jnp.asarray(rho, dtype) * agents,  # each agent's share of it is rho
        weights=jnp.where(real, 1 / sizes.astype(dtype)[:, None], 0),
    )


def with_feature_noise(
    key: Key[Array, ""], problem: Problem, deviation: Float[Array, " agents"]
) -> Problem:
    """The same problem with Gaussian noise of each agent's own deviation on its features; held-out
    data stay clean.
    """
    noise = normal(key, problem.features.shape, problem.dtype)
    noise = jnp.asarray(deviation, problem.dtype)[:, None, None] * noise
    real = jnp.asarray(problem.weights)[..., None] > 0
    return dataclasses.replace(problem, features=jnp.where(real, problem.features + noise, 0))
