r"""CANITA: accelerated compressed gradient descent for convex objectives (Li 2021)."""

import math
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
from fljax.optimization.schedules import Constant, Schedule, as_schedule
from fljax.participation.selectors import Participants
from fljax.problems import Problem


class CANITAState(NamedTuple):
    """State of CANITA between rounds."""

    model: Array  # [D]  w, an earlier z
    fast: Array  # [D]  x, which takes long steps
    control: Array  # [D]  h, the mean of all h_k
    controls: Array  # [K, D]  h_k


@algorithm("CANITA", "li2021canita", Needs(None, compressed=False))
@module
class CANITA(CompressedGradients):
    r"""Accelerated gradient descent with compressed differences, without strong convexity.

    .. math::

        y&=\theta x+(1-\theta)w \\
        g&=h+\frac1K\sum_kQ\big(f_k'(y)-h_k\big),\qquad
        h_k\leftarrow h_k+\alpha Q\big(f_k'(w)-h_k\big) \\
        x&\leftarrow x-\frac\mu\theta g,\qquad z=\theta x+(1-\theta)w \\
        w&\leftarrow z\text{ with the probability }p

    with the new :math:`x` in :math:`z`. By default, as in the theorem for convex objectives,

    .. math::

        \alpha=\frac1{1+\omega},\qquad p=\frac1{1+b},\qquad
        b=\min\Big(\omega,\sqrt{\omega(1+\omega)^2/K}\Big),\qquad
        \theta=\frac{3(1+b)}{n-1+9(1+b+\omega)}

    in round :math:`n`; with another :math:`p` the :math:`b` in :math:`\theta` is :math:`1/p-1`.
    The excess of the objective at :math:`w` falls as :math:`1/n^2`, after a first part that
    falls as :math:`1/n^3`, with the step sizes of :func:`fljax.theory.compression.canita`:
    :class:`~fljax.algorithms.DIANA` has :math:`1/n`, and :class:`~fljax.algorithms.ADIANA` needs
    strong convexity. The step size :math:`\mu/\theta` of :math:`x` grows with the rounds, and so do
    oscillations around a minimizer that other methods approach linearly.

    In the first round clients send :math:`f_k'` as it is, with which the :math:`h_k` begin, as the
    theorem requires; in the others two compressed messages. They receive :math:`y`, and a new
    :math:`w`. All clients take part.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      compression: :math:`Q`, unbiased (:meth:`fljax.link.Compressor.variance`).
      probability: :math:`p`, in (0, 1]; by default that of the theorem.
      fast_share: :math:`\theta`, a schedule of the round or a number, in (0, 1]; by default that of
        the theorem.
      memory_step_size: :math:`\alpha`, in :math:`[0,1/(1+\omega)]`; by default the largest.

    Raises:
      ValueError: a compressor that is not unbiased or does not fit the models, a probability or a
        share outside (0, 1], a memory step outside its range.

    Example:
      >>> import jax, fljax as fl
      >>> rate = fl.theory.compression.canita(2.0, fl.link.Natural().variance(10), clients=6)
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.logistic(jax.random.key(0), clients=6, samples=20, dim=10),
      ...     algorithm=fl.algorithms.CANITA(rate.step_size, compression=fl.link.Natural()),
      ...     metrics=["train_error"],
      ... )
      >>> run = fl.run(simulation, rounds=100).train_error.mean("client")
      >>> bool(run[-1] < run[0])
      True

    Reference:
      Li & Richtarik 2021, Algorithm 1, and the parameters for convex objectives.
    """

    probability: Float[Array, ""] | float | None = field(default=None, kw_only=True)
    fast_share: Schedule | None = field(converter=as_schedule, default=None, kw_only=True)
    memory_step_size: Float[Array, ""] | float | None = field(default=None, kw_only=True)

    def validate(self) -> None:
        if self.probability is not None:
            hint = "The model of the metrics would stay where it is."
            checks.interval("probability", self.probability, above=0, at_most=1, hint=hint)
        if isinstance(self.fast_share, Constant):
            checks.interval("fast_share", self.fast_share.value, above=0, at_most=1)
        if self.memory_step_size is not None:
            checks.interval("memory_step_size", self.memory_step_size, at_least=0, at_most=1)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        variance = unbiased_variance("CANITA", self.compression, problem.dim)
        if self.memory_step_size is not None:
            hint = (
                f"That is 1 / (1 + omega) for {self.compression} and {problem.dim} numbers, beyond "
                "which the memory need not converge."
            )
            largest = 1 / (1 + variance)
            checks.interval("memory_step_size", self.memory_step_size, at_most=largest, hint=hint)

    def gradients_per_step(self, problem: object) -> float:
        return 2.0

    def init(self, problem: Problem, network: Network) -> CANITAState:
        start = server_start(problem)
        controls = jnp.zeros((problem.clients, problem.dim), start.dtype)
        return CANITAState(start, start, jnp.zeros_like(start), controls)

    def step(self, state: CANITAState, now: Round) -> CANITAState:
        problem = now.problem
        variance = unbiased_variance("CANITA", self.compression, problem.dim)
        probability = self._probability(variance, problem.clients)
        theta = self._fast_share(now.number, variance, probability)
        memory_step = 1 / (1 + variance) if self.memory_step_size is None else self.memory_step_size

        point = now.link.publish(theta * state.fast + (1 - theta) * state.model)
        at_point, at_model = (
            problem.gradient(jnp.broadcast_to(model, state.controls.shape))
            for model in (point, state.model)
        )
        # In the first round both points are the same model, and the h_k are the gradients there.
        first = now.number == 1
        exact, arrived = upload(now, Participants(None, now.available & first), at_point, None)
        controls = jnp.where(arrived[:, None], exact, state.controls)
        control = state.control + jnp.mean(controls - state.controls, axis=0)
        later = Participants(None, now.available & ~first)
        change, _ = upload(now, later, at_point - controls, self.compression)
        learned, _ = upload(now, later, at_model - controls, self.compression)

        direction = control + jnp.mean(change, axis=0)
        fast = state.fast - self.step_size(now.number) / theta * direction
        model = theta * fast + (1 - theta) * state.model
        renewed = jax.random.uniform(now.key("algorithm"), (), problem.dtype) < probability
        model = now.link.publish(model, now.available & renewed)
        return CANITAState(
            jnp.where(renewed, model, state.model),
            fast,
            control + memory_step * jnp.mean(learned, axis=0),
            controls + memory_step * learned,
        )

    def _probability(self, variance: float, clients: int) -> Array | float:
        if self.probability is not None:
            return self.probability
        return 1 / (1 + min(variance, math.sqrt(variance * (1 + variance) ** 2 / clients)))

    def _fast_share(self, round: Array, variance: float, probability: Array | float) -> Array:
        if self.fast_share is not None:
            return self.fast_share(round)
        number = round.astype(jnp.result_type(float))
        return 3 / probability / (number - 1 + 9 * (1 / probability + variance))
