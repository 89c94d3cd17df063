r"""FedLC: logits calibrated by a client's class counts (Zhang et al. 2022)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import OF_CLASSES, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem, Reading

#: The margin of a class that a client has no samples of: the exponential of its negative is zero.
ABSENT = 1e12


class FedLCState(NamedTuple):
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

    so that a class that is rare at a client is learned with a larger margin. A class without
    samples has an infinite one: it is left out of the client's softmax. :math:`\tau=0` is
    :class:`FedAvg`. The sum is over all classes, as in published implementations.

    The counts never leave the client; the messages are as in :class:`FedAvg`.

    Args:
      step_size: :math:`\mu`, as in :class:`FedAvg`.
      calibration: :math:`\tau\ge0`.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: a negative calibration, a loss that is not :class:`~fljax.problems.Softmax`; as
        for :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

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
        checks.nonnegative("calibration", self.calibration)

    def init(self, problem: Problem, network: Network) -> FedLCState:
        counts = problem.class_counts().astype(problem.dtype)
        present = counts > 0
        margins = jnp.where(present, jnp.where(present, counts, 1) ** -0.25, ABSENT)
        return FedLCState(server_start(problem), margins)

    def step(self, state: FedLCState, now: Round) -> FedLCState:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.active)

        def calibrated(samples: Reading, model: Array, margins: Array) -> Array:
            return samples.losses(samples.predictions(model) - self.calibration * margins[None])

        margins = cohort.participants.take(state.margins)
        learned = self.learn(
            now, cohort, server, direction=along_losses(calibrated), context=margins
        )
        model = self.collect(now, cohort, learned.model, server).move(server)
        return FedLCState(model, state.margins)
