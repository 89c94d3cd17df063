r"""ADIANA: DIANA with Nesterov's acceleration (Li et al. 2020)."""

from typing import NamedTuple

import jax
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


class ADIANAState(NamedTuple):
    """State of ADIANA between rounds."""

    model: Array  # [D]  y, the server's iterate
    fast: Array  # [D]  z, which takes long steps
    anchor: Array  # [D]  w, an earlier y, at whose gradients the shifts are learned
    control: Array  # [D]  h, the mean of all h_k
    controls: Array  # [K, D]  h_k


@algorithm("ADIANA", "li2020acceleration", Needs(None, compressed=False), {"Accelerated DIANA": ""})
@module
class ADIANA(CompressedGradients):
    r"""Accelerated gradient descent with compressed differences of gradients from learned shifts.

    .. math::

        x&=\theta_1z+\theta_2w+(1-\theta_1-\theta_2)y \\
        g&=h+\frac1K\sum_kQ\big(f_k'(x)-h_k\big),\qquad
        h_k\leftarrow h_k+\alpha Q\big(f_k'(w)-h_k\big) \\
        y^+&=x-\mu g,\qquad z\leftarrow\beta z+(1-\beta)x+\frac\gamma\mu(y^+-x) \\
        w&\leftarrow y\text{ with the probability }p,\qquad y\leftarrow y^+

    with :math:`\theta_2=\frac12`, :math:`\alpha=\frac1{1+\omega}`,
    :math:`\theta_1=\min\big(\frac14,\sqrt{\mu m/p}\big)`,
    :math:`\gamma=\frac\mu{2(\theta_1+\mu m)}` and :math:`\beta=1-\gamma m` as in the theorem, for
    strongly convex objectives of curvature :math:`m` at least. A client sends two compressed
    messages a round; it receives :math:`x`, and a new :math:`w`. All clients take part. It needs in
    the order of :math:`\sqrt\kappa` rounds for large :math:`\kappa=L/m`, where DIANA needs
    :math:`\kappa`; :func:`fljax.theory.compression.adiana` has the step and the probability.

    Args:
      step_size: :math:`\mu>0`.
      compression: :math:`Q`, unbiased (:meth:`fljax.link.Compressor.variance`).
      convexity: :math:`m>0`.
      probability: :math:`p`, in (0, 1].

    Raises:
      ValueError: a compressor that is not unbiased or does not fit the models, a convexity that is
        not positive, a probability outside (0, 1].

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=10),
      ...     algorithm=fl.algorithms.ADIANA(
      ...         0.05, compression=fl.link.RandomK(5), convexity=0.5, probability=0.3
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=400).normalized_error[-1] < 1e-6)
      True

    Reference:
      Li et al. 2020 (acceleration), Algorithm 1, without a regularizer's proximal step.
    """

    convexity: Float[Array, ""] | float = field(kw_only=True)
    probability: Float[Array, ""] | float = field(kw_only=True)

    def validate(self) -> None:
        checks.positive("convexity", self.convexity)
        hint = "Shifts are learned at a model that must follow."
        checks.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        unbiased_variance("ADIANA", self.compression, problem.dim)

    def gradients_per_step(self, problem: object) -> float:
        return 2.0

    def init(self, problem: Problem, network: Network) -> ADIANAState:
        start = server_start(problem)
        controls = jnp.zeros((problem.clients, problem.dim), start.dtype)
        return ADIANAState(start, start, start, jnp.zeros_like(start), controls)

    def step(self, state: ADIANAState, now: Round) -> ADIANAState:
        problem = now.problem
        step = self.step_size(now.number)
        theta = jnp.minimum(0.25, jnp.sqrt(step * self.convexity / self.probability))
        gamma = step / (2 * (theta + step * self.convexity))
        beta = 1 - gamma * self.convexity
        point = theta * state.fast + 0.5 * state.anchor + (0.5 - theta) * state.model

        point = now.link.publish(point)
        everyone = Participants(None, now.available)
        gradients, at_anchor = (
            problem.gradient(jnp.broadcast_to(model, state.controls.shape))
            for model in (point, state.anchor)
        )
        change, _ = upload(now, everyone, gradients - state.controls, self.compression)
        learned, _ = upload(now, everyone, at_anchor - state.controls, self.compression)
        memory_step = 1 / (1 + unbiased_variance("ADIANA", self.compression, problem.dim))

        model = point - step * (state.control + jnp.mean(change, axis=0))
        renewed = jax.random.uniform(now.key("algorithm"), (), problem.dtype) < self.probability
        anchor = now.link.publish(state.model, now.available & renewed)
        return ADIANAState(
            model,
            beta * state.fast + (1 - beta) * point + gamma / step * (model - point),
            jnp.where(renewed, anchor, state.anchor),
            state.control + memory_step * jnp.mean(learned, axis=0),
            state.controls + memory_step * learned,
        )
