r"""MIME: local steps that mimic a centralized optimizer (Karimireddy et al. 2021)."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import along_gradient, select_rows
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import SUMMED, Averaging, Cohort
from fljax.graphs.federation import Network
from fljax.models import Layout
from fljax.optimization.optimizers import Optimizer
from fljax.problems import Problem

if TYPE_CHECKING:
    import optax


class MIMEState(NamedTuple):
    """State of MIME between rounds."""

    model: Array  # [D]  the server's x
    memory: PyTree  # of the server's optimizer, its statistics s


@module
class _Momentum(Optimizer):
    r"""Steps along the negative of :math:`m\leftarrow(1-\beta)g+\beta m`."""

    rate: Array | float
    decay: Float[Array, ""] | float

    def transformation(self) -> "optax.GradientTransformationExtraArgs":
        import optax

        new = optax.scale(1 - self.decay)
        decay = jnp.asarray(self.decay)
        return optax.chain(new, optax.trace(decay), optax.scale(-self.rate))  # pyright: ignore[reportArgumentType]


class _Frozen(Optimizer):
    """The server's optimizer within one round, whose local steps leave its statistics unchanged."""

    def __init__(self, rule: Optimizer, memory: PyTree) -> None:
        self.rule = rule
        self.memory = memory

    def transformation(self) -> "optax.GradientTransformationExtraArgs":
        return self.rule.transformation()

    def init(self, model: Float[Array, "*batch dim"], layouts: Sequence[Layout] = ()) -> PyTree:
        return ()

    def move(
        self,
        model: Float[Array, "*batch dim"],
        gradient: Float[Array, "*batch dim"],
        memory: PyTree,
        layouts: Sequence[Layout] = (),
    ) -> tuple[Float[Array, "*batch dim"], PyTree]:
        memories = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(model), *a.shape)), self.memory)
        return self.rule.move(model, gradient, memories, layouts)[0], ()


@module
class _Mimicking(ReleasesModel, Averaging):
    """Base class of MIME and MIMELite."""

    momentum: Float[Array, ""] | float | None = dataclasses.field(default=None, kw_only=True)

    def validate(self) -> None:
        super().validate()
        if self.momentum is None:
            return
        if isinstance(self.step_size, Optimizer):
            raise ValueError(
                "momentum is for a step size; an optimizer has its own. Leave out one of them."
            )
        checks.interval("momentum", self.momentum, at_least=0, below=1)

    def rule(self, number: Array) -> Optimizer:
        """Return the optimizer of this round."""
        if isinstance(self.step_size, Optimizer):
            return self.step_size
        return _Momentum(self.size(number), 0.0 if self.momentum is None else self.momentum)

    def init(self, problem: Problem, network: Network) -> MIMEState:
        start = server_start(problem)
        rule = self.rule(jnp.ones((), jnp.int32))
        return MIMEState(start, rule.init(start, [problem.layout]))

    def invited(self, state: MIMEState, now: Round) -> tuple[Cohort, Array, Optimizer, Array]:
        """Return the participants, the server's model and frozen optimizer, and the gradients at
        it.
        """
        cohort = self.invite(now, state.model)
        link = now.link
        floats = [a for a in jax.tree.leaves(state.memory) if jnp.issubdtype(a.dtype, jnp.floating)]
        size = len(state.model) + sum(a.size for a in floats)
        server = link.publish(state.model, cohort.active, size)
        start = jnp.broadcast_to(server, (len(cohort.active), len(server)))
        gradient = cohort.participants.of(self.local_problem(now.problem)).gradient(start)
        return cohort, server, _Frozen(self.rule(now.number), state.memory), gradient

    def moved(self, state: MIMEState, now: Round, model: Array, gradient: Array) -> MIMEState:
        """Return the new state, with the statistics updated by the mean gradient."""
        rule = self.rule(now.number)
        layouts = [now.problem.layout]
        _, memory = rule.move(state.model, gradient, state.memory, layouts)
        return MIMEState(model, memory)


@algorithm("MIME", "karimireddy2021mime", Needs(None, absent=True, averages=True, masked=True))
@module
class MIME(_Mimicking):
    r"""Local steps with corrected gradients and the server's optimizer statistics.

    The server sends its :math:`x` and its optimizer's statistics :math:`s`, receives
    :math:`f_k'(x)` from the round's participants and sends their mean :math:`c`. From :math:`y_k=x`
    a participant iterates, with a batch :math:`b` per step,

    .. math:: y_k\leftarrow y_k-\mu\,U\big(f_{k,b}'(y_k)-f_{k,b}'(x)+c,\;s\big)

    where :math:`U` is the optimizer's update; :math:`s` is not changed. The server averages the
    :math:`y_k`, and updates its statistics with the mean gradient, :math:`s\leftarrow V(c,s)`. With
    a step size the optimizer is gradient descent with momentum,

    .. math:: U(g,m)=V(g,m)=(1-\beta)g+\beta m

    An optimizer of optax takes its usual step, and the state after a local step is discarded: for
    one that divides by moments, such as :func:`optax.adam`, these moments include the local
    gradient, while the paper's :math:`U` divides by the moments of :math:`s` alone. A round has two
    uplink messages of :math:`D` numbers, and :math:`x`, :math:`s` and :math:`c` on the downlink.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0; or an optimizer
        (:func:`fljax.optimizers.from_optax`, or optax's own), whose state is :math:`s`.
      momentum: :math:`\beta`, in [0, 1), zero by default; for a step size only.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: momentum in addition to an optimizer, and as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=20, dim=2),
      ...     algorithm=fl.algorithms.MIME(0.05, momentum=0.9, local_steps=5),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 1e-6)
      True

    Reference:
      Karimireddy et al. 2021 (MIME), Algorithm 1.
    """

    def gradients_per_step(self, problem: Any) -> Float[Array, " clients"]:
        # The gradient at the server's model is of all samples.
        return self.gradients_with(1, problem, per_step=2)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: MIMEState, now: Round) -> MIMEState:
        cohort, server, rule, gradient = self.invited(state, now)
        arrived = self.collect(now, cohort, gradient, jnp.zeros_like(server))
        mean = now.link.publish(arrived.total, cohort.active)

        def corrected(part: Problem, model: Array, context: PyTree) -> Array:
            start = jnp.broadcast_to(server, model.shape)
            return part.gradient(model) - part.gradient(start) + mean[None]

        learned = self.learn(now, cohort, server, step=rule, direction=corrected)
        # Steps are along the mean gradient, which has the weights of unequal probabilities: in the
        # mean of the models they would be counted twice, were they not normalized over the
        # participants.
        model = self.collect(now, cohort, learned.model, server, weights=cohort.weights)
        model = model.move(server)
        return select_rows(arrived.any, self.moved(state, now, model, mean), state)


@algorithm(
    "MIMELite",
    "karimireddy2021mime",
    SUMMED,
)
@module
class MIMELite(_Mimicking):
    r""":class:`MIME` without gradient correction: one uplink message of :math:`2D` numbers.

    .. math:: y_k\leftarrow y_k-\mu\,U\big(f_{k,b}'(y_k),\;s\big)

    Participants send :math:`y_k` and :math:`f_k'(x)`. Without momentum it is federated averaging.

    Args:
      step_size: :math:`\mu`, or an optimizer, as in :class:`MIME`.
      momentum: :math:`\beta`, as in :class:`MIME`.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: as for :class:`MIME`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.MIMELite(0.02, local_steps=5, momentum=0.9)
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=10)
      >>> int(run.bits_up[-1])  # 10 rounds, 6 clients, a model and a gradient of 2 numbers each
      7680

    Reference:
      Karimireddy et al. 2021 (MIME), Algorithm 1.
    """

    def gradients_per_step(self, problem: Any) -> Float[Array, " clients"]:
        # The gradient at the server's model is of all samples.
        return self.gradients_with(1, problem)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.message_size_of(problem), self.message_size_of(problem)

    def step(self, state: MIMEState, now: Round) -> MIMEState:
        cohort, server, rule, gradient = self.invited(state, now)
        learned = self.learn(now, cohort, server, step=rule, direction=along_gradient)
        message = jnp.concatenate([learned.model, gradient], axis=1)
        reference = jnp.concatenate([server, jnp.zeros_like(server)])
        arrived = self.collect(now, cohort, message, reference)
        model, mean = jnp.split(arrived.move(reference), 2)
        return select_rows(arrived.any, self.moved(state, now, model, mean), state)

    def message_size(self, dim: int) -> int:
        return 2 * dim
