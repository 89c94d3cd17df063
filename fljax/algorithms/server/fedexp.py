r"""FedExP: federated averaging with server extrapolation (Jhunjhunwala et al. 2023)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem


class FedExPState(NamedTuple):
    """State of FedExP between rounds."""

    model: Array  # [D]  the server's w, or the mean of the last two
    server: Array | tuple[()] = ()  # [D]  w, where the model is a mean


@algorithm(
    "FedExP",
    "jhunjhunwala2023",
    SUMMED,
)
@module
class FedExP(ReleasesModel, Averaging):
    r"""Federated averaging whose server extrapolates when its clients' updates differ.

    With :math:`\Delta_k=w-w_k` the change by a participant's local steps and
    :math:`\bar\Delta=\frac1{|S|}\sum_{k\in S}\Delta_k`,

    .. math::

        w\leftarrow w-\eta\bar\Delta,\qquad
        \eta=\max\Big(1,\frac{\sum_{k\in S}\|\Delta_k\|^2}
            {2|S|(\|\bar\Delta\|^2+\varepsilon)}\Big)

    If clients have a common minimizer and none of their changes increases the distance from it,
    neither does the server's step, however large. Otherwise the last models may oscillate, so that
    the paper evaluates the mean of the last two (``averaged``). A message has :math:`D+1` numbers,
    a change and its squared norm; clients' weights apply to both means.

    Args:
      step_size: :math:`\mu` of the local steps, as in :class:`~fljax.algorithms.FedAvg`. Clients
        have equal weights by default, as in the paper.
      damping: :math:`\varepsilon>0`, on the scale of :math:`\|\bar\Delta\|^2`; if it is large, the
        method is federated averaging.
      averaged: whether the model that is evaluated and released after each round is the mean of
        this round's and the last round's, as in the paper's experiments; the rounds themselves are
        the same.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: no damping; as for :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> few = {"clients": 8, "samples": 2, "dim": 16, "strength": 0.0}
      >>> problem = fl.problems.ridge(jax.random.key(0), **few)
      >>> def after(algorithm):
      ...     simulation = fl.Simulation(problem, algorithm, metrics=["objective"])
      ...     return fl.run(simulation, rounds=20).objective[-1]
      >>> extrapolated = fl.algorithms.FedExP(0.02, local_steps=10)
      >>> averaged = fl.algorithms.FedAvg(0.02, local_steps=10)
      >>> bool(after(extrapolated) < after(averaged))
      True

    Reference:
      Jhunjhunwala et al. 2023, Algorithm 1.
    """

    damping: Float[Array, ""] | float = dataclasses.field(default=1e-3, kw_only=True)
    averaged: bool = static(default=False, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.positive("damping", self.damping)

    def init(self, problem: Problem, network: Network) -> FedExPState:
        start = server_start(problem)
        return FedExPState(start, start if self.averaged else ())

    def step(self, state: FedExPState, now: Round) -> FedExPState:
        before = state.model if isinstance(state.server, tuple) else state.server
        cohort = self.invite(now, before)
        server = now.link.publish(before, cohort.active)
        change = self.learn(now, cohort, server).model - server[None]
        length = jnp.sum(change**2, axis=1, keepdims=True)
        reference = jnp.zeros(len(server) + 1, server.dtype)
        arrived = self.collect(now, cohort, jnp.concatenate([change, length], axis=1), reference)
        mean = arrived.total[:-1]
        squares = arrived.total[-1]
        extrapolation = jnp.maximum(1, squares / (2 * (jnp.sum(mean**2) + self.damping)))
        after = server + extrapolation * mean
        return FedExPState((before + after) / 2, after) if self.averaged else FedExPState(after)

    def message_size(self, dim: int) -> int:
        return dim + 1
