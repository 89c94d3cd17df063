r"""EXTRA: decentralized gradient descent with a correction from past models; PG-EXTRA."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.linalg import spd_norm
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.local_steps import gradient_in_training
from fljax.algorithms.peers.peer_algorithm import Exact, largest_curvature, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import FeatureMoments, Stream


class EXTRAState(NamedTuple):
    """State of EXTRA between rounds."""

    model: Array  # [K, D]  w_k
    dual: Array  # [K, D]  the sum of (\tilde A - A) w of all rounds before
    weights: Combination  # A


@algorithm("EXTRA", "shi2015", Needs(data="any", trains=True), {"SimpleGT": "with blend=0"})
@module
class EXTRA(Exact):
    r"""The exact first-order algorithm: :class:`Consensus` with a memory of past disagreements.

    .. math::

        w^{(1)} &= Aw^{(0)}-\mu f'(w^{(0)}) \\
        w^{(n+2)} &= (I+A)w^{(n+1)}-\tilde Aw^{(n)}-\mu\big(f'(w^{(n+1)})-f'(w^{(n)})\big)

    with the second weights :math:`\tilde A=(1-\theta)I+\theta A`. Summed over the rounds it is
    consensus plus the accumulated differences from :math:`\tilde A`, which is how it is computed,
    with one exchange per round and only the models in a message:

    .. math::

        w^{(n+1)}=Aw^{(n)}-\mu f'(w^{(n)})-d^{(n)},\qquad
        d^{(n+1)}=d^{(n)}+(\tilde A-A)w^{(n)},\quad d^{(0)}=0

    At a fixed point all :math:`w_k` agree, and :math:`\sum_kd_k=0` implies :math:`\sum_kf_k'=0`: it
    is the minimizer, with a constant step size, while :class:`Consensus` (decentralized gradient
    descent) has an error proportional to its step size. The theory requires symmetric weights and
    :math:`\theta\in[1/2,1)`; :math:`\theta=0` is the simplest gradient tracking, stable for
    strongly convex objectives only. The sum of the :math:`d_k` stays zero with links that fail in
    both directions together and with compressed messages.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      blend: :math:`\theta\in[0,1)`, the share of :math:`A` in :math:`\tilde A`.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: weights that are not symmetric or do not fit the graph.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.EXTRA(0.2),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Shi, Ling, Wu & Yin 2015, Algorithm 1; section 3 for the step size.
    """

    blend: Float[Array, ""] | float = field(default=0.5, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("blend", self.blend, at_least=0, below=1)

    def init(self, problem: Problem | Stream, network: Graph) -> EXTRAState:
        start = start_models(problem)
        return EXTRAState(start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: EXTRAState, now: Round) -> EXTRAState:
        step = self.step_size(now.number)
        part = self._step_problem(now)
        gradient = gradient_in_training(now, part, state.model, self._smooth_gradient)
        disagreement = now.link.exchange(state.model)[1].disagreement(over=state.weights)
        model = state.model - disagreement - step * gradient - state.dual
        dual = state.dual + (1 - self.blend) * disagreement
        return EXTRAState(self._prox(part, model, step), dual, state.weights)

    def _smooth_gradient(self, part: Problem, model: Array) -> Array:
        return part.gradient(model)

    def _prox(self, part: Problem, model: Array, step: Array) -> Array:
        return model

    stability = "2 (1 - blend + blend * least eigenvalue of the weights) / L (Shi et al. 2015)"

    def step_bound(
        self, problem: Problem | Stream, network: Graph | None, moments: FeatureMoments | None
    ) -> Array | None:
        r"""Return :math:`2\lambda_{\min}(\tilde A)/L`, if :math:`\theta\ge1/2` and :math:`L` is
        known, the expected smoothness with batches.

        The bound is sufficient; slightly larger step sizes may be stable too. The theory requires
        :math:`\lambda_{\min}(\tilde A)>0`. Otherwise the bound is
        :math:`(3-\theta+(1+\theta)\lambda_{\min}(A))/(2L)`, the exact limit if all clients'
        objectives have the same curvature.
        """
        largest = self._curvature(problem)
        if largest is None or network is None:
            return None
        weights = weights_on(self.mixing, network)
        if weights.form != "dense":  # too many nodes to ask for their spectrum in every run
            return None
        matrix = weights.matrix()
        complement = jnp.eye(len(matrix), dtype=matrix.dtype) - matrix  # a run must not call LAPACK
        least = 1 - spd_norm(complement[None], squarings=20)[0]  # eigenvalue of the weights
        least_of_blend = 1 - self.blend + self.blend * least
        of_equal = (3 - self.blend + (1 + self.blend) * least) / 2
        bound = jnp.where(least_of_blend > 0, 2 * least_of_blend, of_equal) / jnp.max(largest)
        return jnp.where(self.blend >= 0.5, bound, jnp.inf)

    def _curvature(self, problem: Problem | Stream) -> Array | None:
        return largest_curvature(problem, self.batches)


@algorithm("PG-EXTRA", "shi2015pg", Needs(data="any", trains=True))
@module
class PGEXTRA(EXTRA):
    r"""EXTRA with the proximal operator of the regularizer, which may thus be nonsmooth.

    .. math::

        z^{(n+1)} &= Aw^{(n)}-\mu\,\ell'(w^{(n)})-d^{(n)} \\
        w_k^{(n+1)} &= \arg\min_w\tfrac\lambda KR(w)+\tfrac1{2\mu}\|w-z_k^{(n+1)}\|^2

    with :math:`\ell'` the gradients of the mean losses and :math:`d` as in :class:`EXTRA`. Without
    a regularizer it is EXTRA.

    Args and Raises: as for :class:`EXTRA`.

    Example:
      An elastic net with an accuracy of six digits:

      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.elastic_net(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.PGEXTRA(0.2),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Shi, Ling, Wu & Yin 2015 (proximal), Algorithm 1.
    """

    blend: Float[Array, ""] | float = field(default=0.5, kw_only=True)

    def _smooth_gradient(self, part: Problem, model: Array) -> Array:
        return part.loss_gradient(model)

    def _prox(self, part: Problem, model: Array, step: Array) -> Array:
        return part.regularizer.prox(model, (step * part.share)[:, None])

    def _curvature(self, problem: Problem | Stream) -> Array | None:
        return largest_curvature(problem, self.batches, proximal=True)
