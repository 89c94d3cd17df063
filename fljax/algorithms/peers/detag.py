r"""DeTAG: gradient tracking whose models and trackers are combined by accelerated gossip."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.gradient_tracking import exchange_and_combine
from fljax.algorithms.peers.peer_algorithm import Exact, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class DeTAGState(NamedTuple):
    """State of DeTAG between rounds."""

    model: Array  # [K, D]  x_k
    tracker: Array  # [K, D]  y_k
    slope: Array  # [K, D]  f_k' of the last phase
    acceleration: Array  # []  eta
    weights: Combination  # A


@algorithm("DeTAG", ("lu2021", "liu2011"), Needs(data="any", trains=True))
@module
class DeTAG(Exact):
    r"""Decentralized training by gradient tracking with accelerated gossip (DeTAG).

    With :math:`R` exchanges in a row, :math:`\mathcal A(z)=z_R`,

    .. math::

        z_{r+1}&=(1+\eta)Az_r-\eta z_{r-1},\qquad z_0=z_{-1}=z \\
        x^{(n+1)}&=\mathcal A(x^{(n)})-\mu\mathcal A(y^{(n)}) \\
        y^{(n+1)}&=\mathcal A(y^{(n)})+f'(x^{(n)})-f'(x^{(n-1)})

    from :math:`y^{(0)}=0` and a gradient of zero before the start. A round here is
    a phase of the paper: peers exchange and compute at the same time, so that a gradient enters the
    step of the next phase, and the first phase only computes. The paper's gradient is the mean of
    the minibatches of :math:`R` iterations, here of one batch, of as many samples in all.

    Accelerated gossip needs about the square root of the number of exchanges of plain gossip, so
    that with sufficiently many of them peers agree as well as is needed, and the numbers of
    exchanges and of samples are optimal up to logarithms for smooth nonconvex objectives, however
    different the data are. A message is a model and a tracker, :math:`2D` numbers.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      exchanges: :math:`R`, combinations in a row, >= 1.
      acceleration: :math:`\eta`, in [0, 1); by default
        :math:`\frac{1-\sqrt{1-\lambda^2}}{1+\sqrt{1-\lambda^2}}`, with the second largest modulus
        :math:`\lambda` of the eigenvalues of :math:`A`, which is the fastest.
      batches: the batches of the gradients (:mod:`fljax.batches`), the same when a gradient is
        added and, in the next round, subtracted; all of a client's samples by default.

    Raises:
      ValueError: weights that are not symmetric or do not fit the graph, exchanges below 1, an
        acceleration outside [0, 1), batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.DeTAG(0.1, exchanges=3),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Lu & De Sa 2021, Algorithm 3; Liu & Morse 2011 for accelerated gossip.
    """

    exchanges: int = static(default=2, kw_only=True)
    acceleration: Float[Array, ""] | float | None = field(default=None, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("exchanges", self.exchanges)
        if self.acceleration is not None:
            checks.interval("acceleration", self.acceleration, at_least=0, below=1)

    def init(self, problem: Problem | Stream, network: Graph) -> DeTAGState:
        start = start_models(problem)
        zero = jnp.zeros_like(start)
        weights = weights_on(self.mixing, network)
        acceleration = self.acceleration
        if acceleration is None:
            root = jnp.sqrt(jnp.maximum(1 - weights.rate() ** 2, 0))
            acceleration = (1 - root) / (1 + root)
        return DeTAGState(start, zero, zero, jnp.asarray(acceleration, start.dtype), weights)

    def step(self, state: DeTAGState, now: Round) -> DeTAGState:
        gradient = self._step_gradient(now, state.model)
        combined = jnp.concatenate([state.model, state.tracker], axis=1)
        before = combined
        for _ in range(self.exchanges):
            newer = exchange_and_combine(now, combined, state.weights)
            newer = newer + state.acceleration * (newer - before)
            before = combined
            combined = newer
        model, tracker = jnp.split(combined, 2, axis=1)
        return DeTAGState(
            model - self.step_size(now.number) * tracker,
            tracker + gradient - state.slope,
            gradient,
            state.acceleration,
            state.weights,
        )
