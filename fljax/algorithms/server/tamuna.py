r"""TAMUNA: local training, compression by common masks, and partial participation (Condat 2023)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Corrected, check_no_optimizer
from fljax.graphs.federation import Network
from fljax.problems import Problem
from fljax.problems.streams import Stream


class TAMUNAState(NamedTuple):
    """State of TAMUNA between rounds."""

    model: Array  # [D]  the server's mean model
    controls: Array  # [K, D]  h_k, whose sum is zero


@algorithm(
    "TAMUNA",
    "condat2023",
    Needs(None, absent=True, compressed=False),
    {"CompressedScaffnew": "without clients_per_round="},
)
@module
class TAMUNA(ReleasesModel, Corrected):
    r"""Local steps with control variates; each parameter is sent by a few of the participants.

    A participant starts from the server's :math:`x` and takes :math:`E` steps

    .. math:: x_k\leftarrow x_k-\mu\big(f_k'(x_k)-h_k\big),

    and sends the parameters in its mask :math:`C_k`. Each parameter is in the masks of :math:`s` of
    the :math:`c` participants, and a mask has about :math:`sD/c` parameters: the rows of a fixed
    cyclic pattern, in a random order that both ends draw. Then

    .. math::

        x\leftarrow\frac1s\sum_kC_k(x_k),\qquad h_k\leftarrow h_k+\frac\eta\mu C_k(x-x_k)

    with :math:`h_k=0` initially. For smooth, strongly convex objectives it converges linearly to
    the minimizer, and needs fewer rounds for its local steps and fewer numbers for its masks. The
    paper's theorem is for numbers of local steps that are drawn with a geometric distribution of
    mean :math:`1/p`, and :math:`\eta=p\chi` with :math:`\chi\le\frac{K(s-1)}{s(K-1)}`; here
    :math:`E` is fixed, as its algorithm permits.

    Clients that do not take part keep :math:`h_k`. Where a message does not arrive, a parameter is
    the mean of those values that do, or stays, and the sum of all :math:`h_k` remains zero.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      sparsity: :math:`s`, from 2 to the number of participants, for which nothing is compressed.
      control_step_size: :math:`\eta>0`; by default :math:`\frac1E\frac{K(s-1)}{s(K-1)}`.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Corrected`;
    ``clients_per_round`` is :math:`c`.

    Raises:
      ValueError: an optimizer as the step size, a sparsity outside its range, and as for
        :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=8),
      ...     algorithm=fl.algorithms.TAMUNA(
      ...         0.05, sparsity=2, clients_per_round=4, local_steps=4
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> results = fl.run(simulation, rounds=600)
      >>> bool(results.normalized_error[-1] < 1e-8)
      True
      >>> int(results.bits_up[0])  # 4 messages of half of the 8 numbers
      512

    Reference:
      Condat et al. 2023 (TAMUNA), Algorithm 1.
    """

    sparsity: int = static(kw_only=True)
    control_step_size: Float[Array, ""] | float | None = dataclasses.field(
        default=None, kw_only=True
    )

    def validate(self) -> None:
        super().validate()
        check_no_optimizer(self)
        hint = "One value has no mean to be near."
        checks.count("sparsity", self.sparsity, at_least=2, hint=hint)
        if self.control_step_size is not None:
            checks.positive("control_step_size", self.control_step_size)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        most = self.selection.most(problem.clients)
        if self.sparsity > most:
            raise ValueError(
                f"sparsity must be 2 to the {most} participants of a round, each of which sends a "
                f"parameter once, got {self.sparsity}."
            )

    def init(self, problem: Problem, network: Network) -> TAMUNAState:
        start = server_start(problem)
        return TAMUNAState(start, jnp.zeros((problem.clients, problem.dim), start.dtype))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: TAMUNAState, now: Round) -> TAMUNAState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        server = now.link.publish(state.model, cohort.active)
        controls = participants.take(state.controls)

        def corrected(part: Problem, model: Array, control: Array) -> Array:
            return part.gradient(model) - control

        local = self.learn(now, cohort, server, direction=corrected, context=controls).model
        masks = self._masks(now.key("algorithm"), len(cohort.active), len(server))
        sent = now.link.send(
            jnp.where(masks, local, 0),
            clients=participants.numbers,
            sending=cohort.active,
            numbers=jnp.sum(masks, axis=1, dtype=jnp.int32),
        )
        present = masks & now.link.arrived(participants)[:, None]
        count = jnp.sum(present, axis=0, dtype=sent.dtype)
        mean = jnp.sum(jnp.where(present, sent, 0), axis=0) / jnp.maximum(count, 1)
        model = jnp.where(count > 0, mean, server)
        ratio = self._control_step(now.problem.clients, cohort.longest) / self.size(now.number)
        moved = controls + ratio * jnp.where(present, model[None] - sent, 0)
        return TAMUNAState(model, participants.put(state.controls, moved))

    def _masks(self, key: Array, rows: int, dim: int) -> Bool[Array, "chosen dim"]:
        """Which parameters each participant sends: a cyclic pattern in a random order of rows."""
        order = jax.random.permutation(key, rows).astype(jnp.int32)
        first = jnp.arange(dim, dtype=jnp.int32) % rows * self.sparsity
        return (order[:, None] - first[None]) % rows < self.sparsity

    def _control_step(self, clients: int, local_steps: int) -> Array | float:
        if self.control_step_size is not None:
            return self.control_step_size
        largest = clients * (self.sparsity - 1) / (self.sparsity * (clients - 1))
        return largest / local_steps
