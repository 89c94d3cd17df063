r"""Noise on the gradients of clients: what makes stochastic gradient descent DP-SGD."""

from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax import _check
from fljax._generator import private_normal
from fljax._module import module, replace, static
from fljax._numerics import represented
from fljax.problems import Problem

__all__ = ["NoisyGradients"]

#: Sensitivity of a sum of gradients, in multiples of the clip, by relation of neighbors.
_MOVED = {"add-or-remove": 1.0, "replace": 2.0}


@module
class NoisyGradients:
    r"""Sample-level differential privacy by noise on the sums of clipped per-sample gradients.

    In each of its steps a client descends along

    .. math::

        \tilde g=\frac1b\Big(\sum_{j\in B}\ell'_j(w)\min\big(1,c/\|\ell'_j(w)\|\big)
            +zc\,\mathcal N(0,I)\Big)+\frac\lambda KR'(w),

    with a fixed :math:`b`, the size of the random batch :math:`B` on average. All messages of the
    client are computed from these noisy gradients. Clients keep their batches secret, so that
    privacy is amplified by sampling, for which :func:`fljax.privacy.spent` accounts.

    Args:
      noise_multiplier: :math:`z>0`: standard deviation of the noise on a sum, in multiples of the
        clip.
      clip: :math:`c>0`, of per-sample loss gradients.
      neighbors: ``"add-or-remove"``: a sample of one client is present or its place is empty;
        ``"replace"``: it is replaced by another one. The divisor is public and the same for both
        neighbors.

    Guarantees:
      The ledger's zCDP of every client for any one of its samples, whatever the data, against those
      who see all messages and even the batches: each step is a Gaussian release of multiplier
      :math:`z`, :math:`\rho=1/(2z^2)` (``"add-or-remove"``) or :math:`2/z^2` (``"replace"``). The
      amplified epsilon, where each step draws a new batch, with the same probability for each
      sample (``"add-or-remove"``) or of a fixed number of samples (``"replace"``), against those
      who do not see the batches.

    Raises:
      ValueError: numbers out of their ranges.

    Reference:
      Abadi et al. 2016, Algorithm 1.
    """

    noise_multiplier: Float[Array, ""] | float
    clip: Float[Array, ""] | float = 1.0
    neighbors: Literal["add-or-remove", "replace"] = static(default="add-or-remove")

    scope: ClassVar[str] = "gradient"
    reference: ClassVar[str] = "abadi2016"
    ledger: ClassVar[tuple[str, ...]] = ("rho", "releases")
    gaussian_noise: ClassVar[bool] = True

    def validate(self) -> None:
        _check.positive(
            "noise_multiplier", self.noise_multiplier, "Without noise there is no privacy."
        )
        _check.positive("clip", self.clip, "It is the largest norm of a sample's gradient.")
        _check.choice("neighbors", self.neighbors, _MOVED)

    def gradient(
        self, batch: Problem, model: Float[Array, "clients dim"], share: Float[Array, " clients"]
    ) -> Float[Array, "clients dim"]:
        """Return the gradient of every client, with clipped per-sample gradients.

        Args:
          batch: the weights of its samples are their shares of the mean.
          model: ``[K, D]``.
          share: ``[K]``, the largest weight that a sample can have, and has.
        """
        return self.clipped(batch, share).gradient(model)

    def clipped(self, batch: Problem, share: Float[Array, " clients"]) -> Problem:
        """Return the batch with clipped per-sample gradients, no sample of more than its share."""
        weights = jnp.minimum(batch.weights, share[:, None])
        return replace(batch, weights=weights, clip=jnp.asarray(self.clip, weights.dtype))

    @property
    def moved(self) -> float:
        """Sensitivity of a sum of clipped gradients, in clips."""
        return _MOVED[self.neighbors]

    def draw(self, key: Array, shape: tuple[int, ...], dtype: Any) -> Float[Array, "clients dim"]:
        """Draw noise of deviation one; the key is consumed."""
        return private_normal(key, shape, dtype)

    def scale(self, share: Float[Array, " clients"]) -> Float[Array, " clients"]:
        """Standard deviation of the noise on each client's gradient."""
        return self.noise_multiplier * self._most(share)

    def sensitivity(self, share: Float[Array, " clients"]) -> Float[Array, " clients"]:
        """Sensitivity of each client's gradient to neighboring data, in Euclidean norm."""
        return self.moved * self._most(share)

    def _most(self, share: Float[Array, " clients"]) -> Float[Array, " clients"]:
        """What a sample can be of each client's gradient."""
        return represented(self.clip * share, share > 0)

    def spent(self, times: Int[Array, " clients"], dtype: Any) -> dict[str, Array]:
        """Return what ``times`` releases of each client add to the ledger."""
        releases = times.astype(dtype)
        rho = (self.moved / jnp.asarray(self.noise_multiplier, dtype)) ** 2 / 2
        return {"rho": rho * releases, "releases": releases}
