r"""PowerSGD: gradients of low rank by one step of a power iteration (Vogels et al. 2019)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm, parameter_shapes, server_start
from fljax.algorithms.local_steps import select_rows
from fljax.algorithms.round import Round
from fljax.algorithms.server.compressing import SomeSamples, mean_of_arrived, upload
from fljax.graphs.federation import Network
from fljax.participation.selectors import Participants
from fljax.problems import Problem


class PowerSGDState(NamedTuple):
    """State of PowerSGD between rounds."""

    model: Array  # [D]  x
    momentum: Array  # [D]  m
    factors: Array  # [F]  the right factors Q of all matrices, of the last round
    errors: Array  # [K, D]  the clients' e_k


@algorithm("PowerSGD", "vogels2019", Needs(None, compressed=False, trains=True))
@module
class PowerSGD(SomeSamples):
    r"""SGD with momentum and error feedback, whose messages are factors of low rank.

    For each matrix of parameters, :math:`M_k` is the gradient of a client plus its error
    :math:`e_k`, and with the factor :math:`Q` of the round before,

    .. math::

        P&=\mathrm{orthonormal}\Big(\frac1K\sum_kM_kQ\Big),\qquad
        Q\leftarrow\frac1K\sum_kM_k^\top P,\qquad \Delta=PQ^\top \\
        e_k&\leftarrow M_k-\Delta,\qquad m\leftarrow\lambda m+\Delta,\qquad
        x\leftarrow x-\mu(\Delta+m)

    :math:`\Delta` is near the best approximation of the mean of rank :math:`R`, the more so the
    slower gradients change. The first :math:`Q` is drawn from a normal distribution, from the
    run's key. Both factors are sums, so that the server's messages are as short as the clients',
    two each in a round. Parameters that are vectors, such as biases, are sent as they are and have
    no error; a kernel is a matrix of its last axis and all others. The weights of
    :class:`~fljax.problems.Softmax` are one matrix, and a model of one vector is not compressed.

    All clients take part, and compute the model from the factors. A client whose messages are lost
    learns of it, and all of its :math:`M_k` becomes the error.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      rank: :math:`R\ge1`; of smaller matrices their smaller side.
      momentum: :math:`\lambda`, in [0, 1).
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: no rank, a momentum outside [0, 1), batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.PowerSGD(0.2, rank=1),
      ...     metrics=["train_error"],
      ... )
      >>> run = fl.run(simulation, rounds=30)
      >>> error = run.train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True
      >>> int(run.bits_up[0]) // 32 // 4  # 6 + 16 and 16 + 3 of matrices; biases: 16 + 3
      60

    Reference:
      Vogels, Karimireddy & Jaggi 2019, Algorithms 1 and 2.
    """

    rank: int = static(default=2, kw_only=True)
    momentum: Float[Array, ""] | float = field(default=0.0, kw_only=True)

    def validate(self) -> None:
        checks.count("rank", self.rank)
        checks.interval("momentum", self.momentum, at_least=0, below=1)

    def init(self, problem: Problem, network: Network) -> PowerSGDState:
        start = server_start(problem)
        factors = sum(math.prod(shape) for shape in self._factor_shapes(problem))
        errors = jnp.zeros((problem.clients, problem.dim), start.dtype)
        return PowerSGDState(start, jnp.zeros_like(start), jnp.zeros(factors, start.dtype), errors)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: PowerSGDState, now: Round) -> PowerSGDState:
        problem = now.problem
        everyone = Participants(None, now.available)
        wanted = self.gradient(now, everyone, state.model) + state.errors
        parts = _split(wanted, [_matrix(shape) for shape in parameter_shapes(problem)])
        matrices = [part for part in parts if part.ndim == 3]

        drawn = jax.random.normal(now.key("algorithm"), state.factors.shape, problem.dtype)
        factors = jnp.where(now.number == 1, drawn, state.factors)
        right = _split(factors[None], self._factor_shapes(problem))

        # The left factors, and vectors as they are; then the right factors for the left ones' mean.
        left = map(_product, matrices, right)
        first = [part if part.ndim == 2 else next(left) for part in parts]
        means, arrived = _mean_at_clients(now, everyone, first)
        bases = [jnp.linalg.qr(mean)[0] if mean.ndim == 3 else mean for mean in means]
        orthonormal = [basis for basis in bases if basis.ndim == 3]
        second = map(_product, map(_transposed, matrices), orthonormal)
        right, _ = _mean_at_clients(now, everyone, list(second))

        approximations = map(_product, orthonormal, map(_transposed, right))
        update = [basis if basis.ndim == 2 else next(approximations) for basis in bases]
        left_out = [
            part - mean if part.ndim == 3 else jnp.zeros_like(part)
            for part, mean in zip(parts, update, strict=True)
        ]
        errors = jnp.where(arrived[:, None], _joined(left_out), wanted)
        change = _joined(update)[0]
        momentum = self.momentum * state.momentum + change
        model = state.model - self.step_size(now.number) * (change + momentum)
        after = PowerSGDState(model, momentum, _joined(right)[0] if right else factors, errors)
        unchanged = PowerSGDState(state.model, state.momentum, factors, errors)
        return select_rows(jnp.any(arrived), after, unchanged)

    def _factor_shapes(self, problem: Problem) -> list[tuple[int, ...]]:
        """The shapes of the right factors of all matrices."""
        shapes = [_matrix(shape) for shape in parameter_shapes(problem)]
        return [(shape[1], min(self.rank, *shape)) for shape in shapes if len(shape) == 2]


def _matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of parameters as a matrix of the last axis and all others, or as a vector."""
    if len(shape) < 2:
        return (math.prod(shape),)
    return (math.prod(shape[:-1]), shape[-1])


def _split(rows: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The parts of these shapes of each row."""
    if not shapes:
        return []
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1].tolist()
    parts = jnp.split(rows, ends, axis=1)
    return [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


def _joined(parts: Sequence[Array]) -> Float[Array, "rows numbers"]:
    """The rows of these parts, the inverse of :func:`_split`."""
    return jnp.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _transposed(matrices: Float[Array, "some p q"]) -> Float[Array, "some q p"]:
    return jnp.swapaxes(matrices, 1, 2)


def _product(left: Float[Array, "some p q"], right: Float[Array, "1 q r"]) -> Array:
    """The product of each matrix with a common one."""
    return jnp.einsum("kpq,qr->kpr", left, right[0], precision=HIGHEST)


def _mean_at_clients(
    now: Round, participants: Participants, parts: Sequence[Array]
) -> tuple[list[Array], Bool[Array, " chosen"]]:
    """The means of the participants' parts, ``[1, ...]``, as the server publishes them, and whether
    each participant's message arrived.
    """
    if not parts:
        return [], now.link.arrived(participants)
    sent, arrived = upload(now, participants, _joined(parts), None)
    mean = now.link.publish(mean_of_arrived(sent, arrived), participants.here)
    return _split(mean[None], [part.shape[1:] for part in parts]), arrived
