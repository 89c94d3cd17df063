r"""DASHA: compressed updates of gradient estimates with momentum (Tyurin & Richtarik 2023)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.compressing import CompressedGradients, upload
from fljax.graphs.federation import Network
from fljax.link.compression import unbiased_variance
from fljax.participation.selectors import Participants
from fljax.problems import Problem


class DASHAState(NamedTuple):
    """State of DASHA between rounds."""

    model: Array  # [D]  the server's x
    direction: Array  # [D]  the server's g, the mean of all g_k
    estimates: Array  # [K, D]  g_k, which client k and the server share
    gradients: Array  # [K, D]  h_k, f_k' at the model of the last round


@algorithm("DASHA", "tyurin2023", Needs(None, compressed=False))
@module
class DASHA(CompressedGradients):
    r"""Gradient descent along estimates that compressed messages update, never a full gradient.

    .. math::

        m_k&=Q\big(f_k'(x)-h_k-a(g_k-h_k)\big),\qquad g_k\leftarrow g_k+m_k,\qquad
        h_k\leftarrow f_k'(x) \\
        g&\leftarrow g+\frac1K\sum_km_k,\qquad x\leftarrow x-\mu g

    where :math:`h_k` is the gradient at the model of the round before. It has the rate of MARINA
    (:func:`fljax.theory.compression.dasha`), and all rounds have compressed messages. Estimates are
    zero before the first round, after which :math:`g_k=Q(f_k'(x))` and :math:`h_k=f_k'(x)`, a start
    that the paper's theorem covers. All clients take part. Without compression and with
    :math:`a=1` it is gradient descent.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      compression: :math:`Q`, unbiased (:meth:`fljax.link.Compressor.variance`).
      estimate_momentum: :math:`a`, in (0, 1]; by default :math:`1/(1+2\omega)`, the theorem's.

    Raises:
      ValueError: a compressor that is not unbiased or does not fit the models, a momentum outside
        (0, 1].

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=10),
      ...     algorithm=fl.algorithms.DASHA(0.05, compression=fl.link.RandomK(4)),
      ...     metrics=["normalized_error"],
      ... )
      >>> results = fl.run(simulation, rounds=500)
      >>> bool(results.normalized_error[-1] < 1e-6)
      True
      >>> int(results.bits_up[0])  # 6 messages of 4 numbers, whose places both ends draw
      768

    Reference:
      Tyurin & Richtarik 2023, Algorithm 1, with full gradients.
    """

    estimate_momentum: Float[Array, ""] | float | None = field(default=None, kw_only=True)

    def validate(self) -> None:
        if self.estimate_momentum is not None:
            checks.interval("estimate_momentum", self.estimate_momentum, above=0, at_most=1)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        unbiased_variance("DASHA", self.compression, problem.dim)

    def init(self, problem: Problem, network: Network) -> DASHAState:
        start = server_start(problem)
        none = jnp.zeros((problem.clients, problem.dim), start.dtype)
        return DASHAState(start, jnp.zeros_like(start), none, none)

    def step(self, state: DASHAState, now: Round) -> DASHAState:
        problem = now.problem
        momentum = self.estimate_momentum
        if momentum is None:
            momentum = 1 / (1 + 2 * unbiased_variance("DASHA", self.compression, problem.dim))
        server = now.link.publish(state.model)
        gradients = problem.gradient(jnp.broadcast_to(server, state.gradients.shape))
        message = gradients - state.gradients - momentum * (state.estimates - state.gradients)
        sent, _ = upload(now, Participants(None, now.available), message, self.compression)
        direction = state.direction + jnp.mean(sent, axis=0)
        return DASHAState(
            server - self.step_size(now.number) * direction,
            direction,
            state.estimates + sent,
            gradients,
        )
