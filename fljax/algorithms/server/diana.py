r"""DIANA: unbiased compression of differences from learned gradients (Mishchenko et al. 2019)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.compressing import (
    CompressedGradients,
    SomeClients,
    SomeSamples,
    mean_of_arrived,
    upload,
)
from fljax.graphs.federation import Network
from fljax.link.compression import unbiased_variance
from fljax.problems import Problem


class DIANAState(NamedTuple):
    """State of DIANA between rounds."""

    model: Array  # [D]  the server's x
    momentum: Array  # [D]  the server's v
    control: Array  # [D]  the server's h, the mean of all h_k
    controls: Array  # [K, D]  h_k, which client k and the server learn


@algorithm(
    "DIANA",
    ("mishchenko2019", "horvath2023"),
    Needs(None, absent=True, compressed=False, trains=True),
)
@module
class DIANA(SomeClients, SomeSamples, CompressedGradients):
    r"""Gradient descent with compressed differences of gradients from learned shifts.

    .. math::

        c_k&=Q\big(f_k'(x)-h_k\big),\qquad h_k\leftarrow h_k+\alpha c_k \\
        \hat g&=h+\frac1{|S|}\sum_{k\in S}c_k,\qquad h\leftarrow h+\frac\alpha K\sum_{k\in S}c_k \\
        v&\leftarrow\beta v+\hat g,\qquad x\leftarrow x-\mu v

    where :math:`\hat g` has the old :math:`h`, and :math:`h_k=0` initially. The compressor must be
    unbiased, with the variance :math:`\omega`; then :math:`\hat g` is unbiased, and since
    :math:`h_k` approaches the gradient at the optimum, its variance vanishes: with full batches the
    method converges linearly to the minimizer of strongly convex objectives
    (:func:`fljax.theory.compression.diana`), where compressed gradients alone stop short.
    :math:`\alpha=0` is that method, for comparison.

    In the paper all clients take part. Here the direction has the mean over the participants, which
    remains unbiased if they are drawn uniformly, and clients that do not take part, or whose
    messages are lost, keep :math:`h_k`. Where no message arrives, the server's state stays.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      compression: :math:`Q`, unbiased (:meth:`fljax.link.Compressor.variance`).
      memory_step_size: :math:`\alpha`, in :math:`[0,1/(1+\omega)]`; by default the largest.
      momentum: :math:`\beta`, in [0, 1).
      clients_per_round: participants, drawn uniformly without replacement; all clients by default.
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a compressor that is not unbiased or does not fit the models, a memory step or a
        momentum outside its range, more participants than clients, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> def error(**memory):
      ...     algorithm = fl.algorithms.DIANA(0.05, compression=fl.link.RandomK(5), **memory)
      ...     problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=10)
      ...     simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
      ...     return float(fl.run(simulation, rounds=400).normalized_error[-1])
      >>> error() < 1e-6 < error(memory_step_size=0.0)
      True

    Reference:
      Mishchenko et al. 2019, Algorithm 1; Horvath et al. 2023 for any unbiased compressor.
    """

    memory_step_size: Float[Array, ""] | float | None = field(default=None, kw_only=True)
    momentum: Float[Array, ""] | float = field(default=0.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("momentum", self.momentum, at_least=0, below=1)
        if self.memory_step_size is not None:
            checks.interval("memory_step_size", self.memory_step_size, at_least=0, at_most=1)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        variance = unbiased_variance("DIANA", self.compression, problem.dim)
        if self.memory_step_size is not None:
            hint = (
                f"That is 1 / (1 + omega) for {self.compression} and {problem.dim} numbers, beyond "
                "which the memory need not converge."
            )
            largest = 1 / (1 + variance)
            checks.interval("memory_step_size", self.memory_step_size, at_most=largest, hint=hint)

    def init(self, problem: Problem, network: Network) -> DIANAState:
        start = server_start(problem)
        zero = jnp.zeros_like(start)
        return DIANAState(start, zero, zero, jnp.zeros((problem.clients, problem.dim), zero.dtype))

    def step(self, state: DIANAState, now: Round) -> DIANAState:
        participants = now.choose(self.selection, state.model)
        server = now.link.publish(state.model, participants.here)
        controls = participants.take(state.controls)
        change = self.gradient(now, participants, server) - controls
        sent, arrived = upload(now, participants, change, self.compression)
        learned = self._memory_step(now.problem.dim) * sent
        momentum = self.momentum * state.momentum + state.control + mean_of_arrived(sent, arrived)
        any_arrived = jnp.any(arrived)
        return DIANAState(
            jnp.where(any_arrived, server - self.step_size(now.number) * momentum, server),
            jnp.where(any_arrived, momentum, state.momentum),
            state.control + jnp.sum(learned, axis=0) / now.problem.clients,
            participants.put(state.controls, controls + learned),
        )

    def _memory_step(self, dim: int) -> Array | float:
        if self.memory_step_size is not None:
            return self.memory_step_size
        return 1 / (1 + unbiased_variance("DIANA", self.compression, dim))
