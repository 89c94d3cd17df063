r"""Federated averaging with an optimizer at the server (Reddi et al. 2021, Hsu et al. 2019)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import select_rows
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import PRIVATELY_AT_ARRIVAL, Averaging
from fljax.graphs.federation import Network
from fljax.optimization.optimizers import Optimizer, as_optimizer, check_optimizer
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem
from fljax.problems.streams import Stream


class FedOptState(NamedTuple):
    """State of FedOpt between rounds."""

    model: Array  # [D]  the server's x
    memory: PyTree  # of the server's optimizer


@algorithm(
    "FedOpt",
    "reddi2021",
    PRIVATELY_AT_ARRIVAL,
    {"Reptile": "with server=optax.sgd(...), a number or a schedule, and weighting='equal'"},
)
@module
class FedOpt(ReleasesModel, Averaging):
    r"""Federated averaging whose server passes the mean update, as a gradient, to an optimizer.

    .. math::

        \Delta^{(n)}=\sum_{k\in S}\frac{q_k}{\sum_{l\in S}q_l}(w_k-x^{(n-1)}),\qquad
        x^{(n)}=\mathrm{ServerOpt}\big(x^{(n-1)},-\Delta^{(n)}\big)

    with :math:`w_k` as in :class:`FedAvg`, to which it is equal if the optimizer is plain gradient
    descent with step size one. With :func:`optax.adam` it is not the paper's :class:`FedAdam`:
    optax corrects the bias of the first steps, as Adam's own paper does. With
    ``optax.sgd(epsilon)`` and equal weights it is Reptile (Nichol, Achiam & Schulman 2018, batch
    version), whose step :math:`\epsilon` towards the mean of the adapted models may be one of
    optax's schedules; its clients are tasks, one a round in the serial version. In a round in which
    nothing arrives the server's state is unchanged.

    Args:
      step_size: of the clients, as in :class:`FedAvg`.
      server: an optimizer (:func:`fljax.optimizers.from_optax`, or optax's own).

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      TypeError: something other than an optimizer.
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      >>> import jax, optax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.FedOpt(0.01, server=optax.sgd(1.0, momentum=0.9)),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 0.01)
      True

    Reference:
      Reddi et al. 2021, Algorithm 1.
    """

    server: Optimizer = field(converter=as_optimizer, kw_only=True)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        check_optimizer(self.server, problem.layout)

    def init(self, problem: Problem | Stream, network: Network) -> FedOptState:
        start = server_start(problem)
        return FedOptState(start, self.server.init(start, [problem.layout]))

    def step(self, state: FedOptState, now: Round) -> FedOptState:
        change, any_arrived = self.change(state.model, now)
        layouts = [now.problem.layout]
        moved = self.server.move(state.model, -change, state.memory, layouts)
        return select_rows(any_arrived, FedOptState(*moved), state)


class FedAvgMState(NamedTuple):
    """State of FedAvgM between rounds."""

    model: Array  # [D]  the server's x
    momentum: Array  # [D]  v


@algorithm("FedAvgM", "hsu2019", PRIVATELY_AT_ARRIVAL, {"Server momentum": ""})
@module
class FedAvgM(ReleasesModel, Averaging):
    r"""Federated averaging with momentum at the server.

    .. math::

        v^{(n)}=\beta v^{(n-1)}+\Delta^{(n)},\qquad x^{(n)}=x^{(n-1)}+v^{(n)}

    with :math:`\Delta` as in :class:`FedOpt`.

    Args:
      step_size: of the clients, as in :class:`FedAvg`.
      momentum: :math:`\beta`, in [0, 1).

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: a momentum outside [0, 1), and as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.FedAvgM(0.02, momentum=0.9)
      >>> simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 0.01)
      True

    Reference:
      Hsu, Qi and Brown 2019, section 4.3.
    """

    momentum: Float[Array, ""] | float = dataclasses.field(default=0.9, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("momentum", self.momentum, at_least=0, below=1)

    def init(self, problem: Problem | Stream, network: Network) -> FedAvgMState:
        start = server_start(problem)
        return FedAvgMState(start, jnp.zeros_like(start))

    def step(self, state: FedAvgMState, now: Round) -> FedAvgMState:
        change, any_arrived = self.change(state.model, now)
        momentum = self.momentum * state.momentum + change
        return select_rows(any_arrived, FedAvgMState(state.model + momentum, momentum), state)


class AdaptiveState(NamedTuple):
    """State of an adaptive server between rounds."""

    model: Array  # [D]  x
    first: Array  # [D]  m
    second: Array  # [D]  v


@module
class _Adaptive(ReleasesModel, Averaging):
    """Base class of servers with adaptive step sizes; subclasses define the rule for :math:`v`."""

    server_step_size: Schedule = field(converter=as_schedule, kw_only=True)
    momentum: Float[Array, ""] | float = dataclasses.field(default=0.9, kw_only=True)
    adaptivity: Float[Array, ""] | float = dataclasses.field(default=1e-3, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("momentum", self.momentum, at_least=0, below=1)
        checks.positive("adaptivity", self.adaptivity)

    def second(self, second: Float[Array, " dim"], square: Float[Array, " dim"]) -> Array:
        r"""Return the new :math:`v`, given the last :math:`v` and :math:`\Delta^2`."""
        raise NotImplementedError

    def init(self, problem: Problem | Stream, network: Network) -> AdaptiveState:
        start = server_start(problem)
        return AdaptiveState(start, jnp.zeros_like(start), jnp.full_like(start, self.adaptivity**2))

    def step(self, state: AdaptiveState, now: Round) -> AdaptiveState:
        change, any_arrived = self.change(state.model, now)
        first = self.momentum * state.first + (1 - self.momentum) * change
        second = self.second(state.second, change**2)
        step = self.server_step_size(now.number) / (jnp.sqrt(second) + self.adaptivity)
        return select_rows(
            any_arrived, AdaptiveState(state.model + step * first, first, second), state
        )


@algorithm("FedAdagrad", "reddi2021", PRIVATELY_AT_ARRIVAL)
@module
class FedAdagrad(_Adaptive):
    r"""Federated averaging with Adagrad at the server.

    .. math::

        m^{(n)}=\beta_1m^{(n-1)}+(1-\beta_1)\Delta^{(n)},\qquad
        v^{(n)}=v^{(n-1)}+(\Delta^{(n)})^2,\qquad
        x^{(n)}=x^{(n-1)}+\eta\frac{m^{(n)}}{\sqrt{v^{(n)}}+\tau}

    with :math:`\Delta` as in :class:`FedOpt`, :math:`m^{(0)}=0` and :math:`v^{(0)}=\tau^2`, the
    smallest value that the paper allows. :math:`\tau` is outside of the square root, and there is
    no bias correction: :func:`optax.adagrad` adds its ``eps`` inside the root, to a sum with a
    different initial value.

    Args:
      step_size: of the clients, as in :class:`FedAvg`.
      server_step_size: :math:`\eta`, a schedule of the round or a number, > 0.
      momentum: :math:`\beta_1`, in [0, 1); the paper's experiments have none.
      adaptivity: :math:`\tau>0`; the larger, the closer the server's steps are to plain gradient
        steps.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: parameters outside of their ranges, and as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.FedAdagrad(0.05, server_step_size=0.2)
      >>> simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 0.05)
      True

    Reference:
      Reddi et al. 2021, Algorithm 2.
    """

    momentum: Float[Array, ""] | float = dataclasses.field(default=0.0, kw_only=True)

    def second(self, second: Float[Array, " dim"], square: Float[Array, " dim"]) -> Array:
        return second + square


@module
class _Decaying(_Adaptive):
    """Base class of adaptive servers with an exponential decay rate."""

    decay: Float[Array, ""] | float = dataclasses.field(default=0.99, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("decay", self.decay, at_least=0, below=1)


@algorithm("FedYogi", "reddi2021", PRIVATELY_AT_ARRIVAL)
@module
class FedYogi(_Decaying):
    r"""Federated averaging with Yogi at the server: Adam whose step sizes recover slowly.

    .. math::

        v^{(n)}=v^{(n-1)}-(1-\beta_2)(\Delta^{(n)})^2
            \,\mathrm{sign}\big(v^{(n-1)}-(\Delta^{(n)})^2\big)

    and everything else as in :class:`FedAdagrad`. :func:`optax.yogi` corrects the bias and has a
    different initial value.

    Args:
      step_size: of the clients, as in :class:`FedAvg`.
      server_step_size: :math:`\eta`, a schedule of the round or a number, > 0.
      momentum: :math:`\beta_1`, in [0, 1).
      adaptivity: :math:`\tau>0`.
      decay: :math:`\beta_2`, in [0, 1).

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: as for :class:`FedAdagrad`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.FedYogi(0.05, server_step_size=0.1, adaptivity=1e-2)
      >>> simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 0.05)
      True

    Reference:
      Reddi et al. 2021, Algorithm 2.
    """

    def second(self, second: Float[Array, " dim"], square: Float[Array, " dim"]) -> Array:
        return second - (1 - self.decay) * square * jnp.sign(second - square)


@algorithm("FedAdam", "reddi2021", PRIVATELY_AT_ARRIVAL)
@module
class FedAdam(_Decaying):
    r"""Federated averaging with Adam at the server.

    .. math:: v^{(n)}=\beta_2v^{(n-1)}+(1-\beta_2)(\Delta^{(n)})^2

    and everything else as in :class:`FedAdagrad`. :func:`optax.adam` corrects the bias of both
    moments and initializes them to zero; it can be used in :class:`FedOpt`.

    Args:
      step_size: of the clients, as in :class:`FedAvg`.
      server_step_size: :math:`\eta`, a schedule of the round or a number, > 0.
      momentum: :math:`\beta_1`, in [0, 1).
      adaptivity: :math:`\tau>0`.
      decay: :math:`\beta_2`, in [0, 1).

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: as for :class:`FedAdagrad`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.FedAdam(0.05, server_step_size=0.1, adaptivity=1e-2)
      >>> simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"])
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 0.05)
      True

    Reference:
      Reddi et al. 2021, Algorithm 2.
    """

    def second(self, second: Float[Array, " dim"], square: Float[Array, " dim"]) -> Array:
        return self.decay * second + (1 - self.decay) * square
