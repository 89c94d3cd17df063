"""NIDS: exact diffusion with uncoordinated step sizes and a prox (Li, Shi and Yan 2019)."""

from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import as_given, field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.local_steps import gradient_in_training
from fljax.algorithms.peers.exact_diffusion import FREE
from fljax.algorithms.peers.peer_algorithm import Exact, largest_curvature, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import FeatureMoments, Stream


class NIDSState(NamedTuple):
    """State of NIDS between rounds."""

    model: Array  # [K, D]  w_k
    point: Array  # [K, D]  z_k, whose proximal point is the model
    dual: Array  # [K, D]  d_k
    weights: Combination  # A


@algorithm("NIDS", "li2019nids", Needs(data="any", trains=True))
@module
class NIDS(Exact):
    r"""Decentralized proximal gradient method with a step size of each peer's own.

    .. math::

        z_k^{(n+1)} &= z_k^{(n)}-w_k^{(n)}+\sum_l\tilde a_{kl}\big(2w_l^{(n)}-w_l^{(n-1)}
            -\mu_l\ell_l'(w_l^{(n)})+\mu_l\ell_l'(w_l^{(n-1)})\big) \\
        w_k^{(n+1)} &= \arg\min_w\tfrac\lambda KR(w)+\tfrac1{2\mu_k}\|w-z_k^{(n+1)}\|^2

    with :math:`\tilde A=I-c\,\mathrm{diag}(\mu)(I-A)`, from
    :math:`z^{(1)}=w^{(0)}-\mu\ell'(w^{(0)})`, which involves no combination: the messages of round
    1 are not used. :math:`\ell'` are the gradients of the mean losses. It is computed with the dual
    variable of the paper's primal-dual form,
    :math:`z^{(n+1)}=w^{(n)}-\mu(\ell'(w^{(n)})+d^{(n+1)})`.

    A peer's step size is limited only by its own objective, :math:`\mu_k<2/L_k`, if :math:`c` is at
    most :math:`1/((1-\lambda_{\min}(A))\max_k\mu_k)`, which the default satisfies on every network.

    Args:
      step_size: :math:`\mu`, one number or one per peer, > 0.
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      consensus_step_size: :math:`c>0`; by default :math:`1/(2\max_k\mu_k)`.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: weights that are not symmetric or do not fit the graph; step sizes of another
        shape.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.elastic_net(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.NIDS([0.2, 0.3, 0.2, 0.3, 0.2, 0.3]),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Li, Shi & Yan 2019, Algorithm 1; section III for the step sizes.
    """

    step_size: Annotated[Array, "*clients"] = field(converter=as_given)
    consensus_step_size: Float[Array, ""] | float | None = field(default=None, kw_only=True)

    def validate(self) -> None:
        steps = checks.filled("step_size", self.step_size)
        checks.positive("step_size", steps)
        if np.ndim(steps) > 1:
            raise ValueError(
                f"step_size must be one number or one for each peer, got {checks.shown(steps)}."
            )
        if self.consensus_step_size is not None:
            checks.positive("consensus_step_size", self.consensus_step_size)
        super().validate()

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        checks.per_client("step_size", self.step_size, problem.clients)

    def init(self, problem: Problem | Stream, network: Graph) -> NIDSState:
        start = start_models(problem)
        return NIDSState(start, start, jnp.zeros_like(start), weights_on(self.mixing, network))

    def step(self, state: NIDSState, now: Round) -> NIDSState:
        part = self._step_problem(now)
        steps = jnp.asarray(self.step_size, state.model.dtype)
        step = (
            1 / (2 * jnp.max(steps))
            if self.consensus_step_size is None
            else self.consensus_step_size
        )
        steps = jnp.broadcast_to(steps, len(state.model))[:, None]
        gradient = gradient_in_training(now, part, state.model, Problem.loss_gradient)
        message = 2 * state.model - state.point - steps * (gradient + state.dual)
        disagreement = now.link.exchange(message)[1].disagreement(over=state.weights)
        dual = state.dual + jnp.where(now.number > 1, step, 0) * disagreement
        point = state.model - steps * (gradient + dual)
        model = part.regularizer.prox(point, steps * part.share[:, None])
        return NIDSState(model, point, dual, state.weights)

    stability = FREE

    def step_bound(
        self, problem: Problem | Stream, network: Graph | None, moments: FeatureMoments | None
    ) -> Array | None:
        r"""Return the largest :math:`\max_k\mu_k` with all :math:`\mu_k\le2/L_k`, if all are scaled
        by the same factor. (A ``consensus_step_size`` above the default is not taken into account.)
        """
        largest = largest_curvature(problem, self.batches, proximal=True)
        if largest is None:
            return None
        steps = jnp.asarray(self.step_size, largest.dtype)
        return 2 * jnp.max(steps) / jnp.max(steps * largest)
