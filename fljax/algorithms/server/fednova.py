r"""FedNova: normalized averaging of clients' updates (Wang et al. 2020)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Averaging, check_no_optimizer
from fljax.graphs.federation import Network
from fljax.optimization.optimizers import from_optax
from fljax.problems import Problem


class FedNovaState(NamedTuple):
    """State of FedNova between rounds."""

    model: Array  # [D]  the server's x


@algorithm("FedNova", "wang2020", SUMMED, {"Normalized averaging": ""})
@module
class FedNova(ReleasesModel, Averaging):
    r"""Normalized averaging: clients that take more local steps do not have a larger weight.

    Local steps, plain, with momentum, or with a proximal term to their starting point,

    .. math::

        u_k\leftarrow\rho u_k+f_k'(y_k)+\nu(y_k-x),\qquad y_k\leftarrow y_k-\mu u_k

    take :math:`y_k` from :math:`x` to :math:`x-\mu G_ka_k`, the columns of :math:`G_k` being the
    gradients along the steps and :math:`a_k` their coefficients: for plain steps all one; with
    momentum :math:`(1-\rho^{E_k-j+1})/(1-\rho)` for the :math:`j`-th, with attraction
    :math:`(1-\mu\nu)^{E_k-j}`. Participants send :math:`d_k=(x-y_k)/\|a_k\|_1` and
    :math:`\|a_k\|_1`, and

    .. math::

        x\leftarrow x-\Big(\sum_{k\in S}p_k\|a_k\|_1\Big)\sum_{k\in S}p_kd_k,\qquad
        p_k=\frac{q_k}{\sum_{l\in S}q_l}

    so that the objective minimized is :math:`\sum_kp_kf_k` for any numbers of steps,
    up to the client drift of several steps, which vanishes with :math:`\mu`. The first sum is the
    paper's effective number of steps, which it leaves open: with this choice, the method is
    federated averaging with the same local solver if all :math:`\|a_k\|_1` are equal. Each
    participant begins with :math:`u_k=0`. A message has :math:`D+1` numbers.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      momentum: :math:`\rho` of the local steps, in [0, 1).
      attraction: :math:`\nu\ge0`, the weight of the proximal term toward the server's model; the
        paper has either momentum or attraction.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: an optimizer as the step size, and as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedNova(0.01, local_steps=(1, 2, 5, 9)),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 0.01)
      True

    Reference:
      Wang et al. 2020, section 4, (7)-(9), with the vectors a_k of section 4.1.
    """

    momentum: Float[Array, ""] | float = dataclasses.field(default=0.0, kw_only=True)
    attraction: Float[Array, ""] | float = dataclasses.field(default=0.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        check_no_optimizer(self)
        checks.interval("momentum", self.momentum, at_least=0, below=1)
        checks.nonnegative("attraction", self.attraction)

    def init(self, problem: Problem, network: Network) -> FedNovaState:
        return FedNovaState(server_start(problem))

    def step(self, state: FedNovaState, now: Round) -> FedNovaState:
        cohort = self.invite(now, state.model)
        dtype = now.problem.dtype
        server = now.link.publish(state.model, cohort.active)
        size = self.size(now.number)

        def attracted(part: Problem, model: Array, context: PyTree) -> Array:
            return part.gradient(model) + self.attraction * (model - server[None])

        import optax

        heavy = from_optax(optax.sgd, learning_rate=size, momentum=self.momentum)
        learned = self.learn(now, cohort, server, step=heavy, direction=attracted)
        length = self.lengths(size, cohort.longest, dtype)[learned.steps][:, None]
        update = (server[None] - learned.model) / jnp.where(length > 0, length, 1)
        message = jnp.concatenate([update, length], axis=1)

        reference = jnp.zeros(len(server) + 1, dtype)
        arrived = self.collect(now, cohort, message, reference)
        share = arrived.share[-1]  # not one where probabilities are unequal
        length = arrived.total[-1] / jnp.where(share > 0, share, 1)
        return FedNovaState(server - length * arrived.total[:-1])

    def lengths(self, step_size: Array, longest: int, dtype: DTypeLike) -> Float[Array, " counts"]:
        r""":math:`\|a\|_1` for zero steps, one step, two and so on: the total length of the local
        steps, in units of :math:`-\mu`, if all gradients are one.
        """

        def unit_step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
            distance, speed = carry
            speed = self.momentum * speed + 1 - step_size * self.attraction * distance
            return (distance + speed, speed), distance + speed

        zero = jnp.zeros((), dtype)
        _, distances = jax.lax.scan(unit_step, (zero, zero), None, length=longest)
        return jnp.concatenate([zero[None], distances])

    def message_size(self, dim: int) -> int:
        return dim + 1
