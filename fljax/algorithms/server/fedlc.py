r"""FedLC: logits calibrated by a client's class counts (Zhang et al. 2022)."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module
from fljax.algorithms.base import ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.server.base import OF_CLASSES, Averaging
from fljax.problems import Problem, Reading
from fljax.rounds import Round

__all__ = ["FedLC", "State"]

#: The margin of a class that a client has no samples of: the exponential of its negative is zero.
ABSENT = 1e12


class State(NamedTuple):
    """State of FedLC between rounds."""

    model: Array  # [D]  the server's w
    margins: Array  # [K, C]  of the clients' classes, constant


@algorithm("FedLC", "zhang2022", OF_CLASSES)
@module
class FedLC(ReleasesModel, Averaging):
    r"""Federated averaging with logits calibrated by the number of a client's samples of a class.

    Participant :math:`k` has :math:`n_{k,c}` samples of class :math:`c` and takes its local steps
    along the gradient of

    .. math::

        \ell_k(x,y;w)=-\log\frac{e^{z_y-\tau n_{k,y}^{-1/4}}}{\sum_ce^{z_c-\tau n_{k,c}^{-1/4}}},
        \qquad z=h(x;w)\text{ its logits}

    so that a class that is rare at a client is learned with a larger margin. A class of which it
    has no samples has an infinite one: it is left out of the client's softmax. :math:`\tau=0` is
    :class:`FedAvg`. The sum is over all classes, as in published implementations.

    The counts never leave the client; the messages are those of :class:`FedAvg`.

    Args:
      step_size: :math:`\mu`, as in :class:`FedAvg`.
      calibration: :math:`\tau\ge0`.

    Other arguments are those of :class:`~fljax.algorithms.server.base.Averaging`.

    Raises:
      ValueError: a negative calibration, a loss that is not :class:`~fljax.problems.Softmax`; as
        for :class:`~fljax.algorithms.server.base.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.softmax(
      ...         jax.random.key(0), clients=6, samples=20, dim=4, classes=3
      ...     ),
      ...     algorithm=fl.algorithms.FedLC(0.1, calibration=0.5, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Zhang et al. 2022, its calibrated loss and Algorithm 1.
    """

    calibration: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        _check.nonnegative("calibration", self.calibration)

    def init(self, problem: Problem, network: Any) -> State:
        counts = problem.class_counts().astype(problem.dtype)
        here = counts > 0
        margins = jnp.where(here, jnp.where(here, counts, 1) ** -0.25, ABSENT)
        return State(server_start(problem), margins)

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.here)

        def calibrated(own: Reading, model: Array, margins: Array) -> Array:
            return own.losses(own.predictions(model) - self.calibration * margins[None])

        margins = cohort.who.take(state.margins)
        learned = self.learn(now, cohort, server, direction=along_losses(calibrated), given=margins)
        model = self.collect(now, cohort, learned.model, server).move(server)
        return State(model, state.margins)
