r"""FetchSGD: momentum and error feedback in a sketch of the gradients (Rothchild et al. 2020)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.local_steps import select_rows
from fljax.algorithms.round import Round
from fljax.algorithms.server.compressing import SomeClients, SomeSamples
from fljax.graphs.federation import Network
from fljax.link.count_sketch import CountSketch
from fljax.problems import Problem


class FetchSGDState(NamedTuple):
    """State of FetchSGD between rounds."""

    model: Array  # [D]  the server's x
    momentum: Array  # [rows * columns]  the table U
    errors: Array  # [rows * columns]  the table E


@algorithm(
    "FetchSGD",
    "rothchild2020",
    Needs(
        None,
        absent=True,
        late=True,
        averages=True,
        compressed=False,
        masked=True,
        trains=True,
    ),
)
@module
class FetchSGD(SomeClients, SomeSamples):
    r"""SGD whose clients send count sketches of their gradients and keep no state.

    With the sketch :math:`\mathcal S` and its estimates :math:`\hat v(\cdot)`
    (:class:`~fljax.link.CountSketch`),

    .. math::

        U&\leftarrow\rho U+\frac1{|S|}\sum_{k\in S}\mathcal S\big(f_k'(x)\big),\qquad
        E\leftarrow E+\mu U \\
        \Delta&=\mathrm{Top}_c\big(\hat v(E)\big),\qquad
        E\leftarrow E-\mathcal S(\Delta),\qquad x\leftarrow x-\Delta

    where :math:`\mathrm{Top}_c` keeps the :math:`c` entries of largest magnitude. A sketch is
    linear, so that momentum and errors, which other methods keep at clients, are tables at the
    server, and a client may take part in a single round. The hash functions are drawn once, from
    the run's key, and are the same for all clients and rounds. The server needs the sum of the
    messages alone: pairwise masks may hide them (:class:`fljax.link.SecureAggregation`).

    With ``zeroing`` the cells of both tables to which :math:`\mathcal S(\Delta)` adds are set to
    zero,

    .. math:: E_{jc}\leftarrow0,\quad U_{jc}\leftarrow0\quad\text{where }\mathcal S(\Delta)_{jc}\ne0

    as in the authors' program, which notes that models diverge with the subtraction. They do where
    the table is too small for the gradients, or :math:`c` or :math:`\mu` too large: each of some
    parameters that share cells in most rows is estimated as the sum of all, the cells lose this sum
    several times, and their error grows. With zeroing a model stops short of the optimum instead;
    with a large momentum and a small count it diverges as well.
    Zeroing also ends the momentum of entries that were just updated, so that with
    :math:`c=D` the method is SGD without momentum. Where the table is large enough, the subtraction
    is better, since nothing is lost.

    The server sends the whole model to the participants. The mean is over the messages that arrive
    in a round, late ones among them; where none arrives, the server's state stays.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      sketch: :math:`\mathcal S`, whose size is that of a client's message.
      count: :math:`c`, how many parameters change in a round, 1 to ``D``.
      momentum: :math:`\rho`, in [0, 1).
      zeroing: whether cells are set to zero, instead of the subtraction.
      clients_per_round: participants, drawn uniformly without replacement; all clients by default.
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: a count below one or above the model's, a momentum outside [0, 1), more
        participants than clients, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=200),
      ...     algorithm=fl.algorithms.FetchSGD(
      ...         0.01, sketch=fl.link.CountSketch(rows=5, columns=20), count=5, zeroing=True
      ...     ),
      ...     metrics=["objective"],
      ... )
      >>> results = fl.run(simulation, rounds=200)
      >>> bool(results.objective[-1] < 0.7 * results.objective[0])
      True
      >>> int(results.bits_up[0]) // 32 // 6  # numbers of a message, for 200 of the model
      100

    Reference:
      Rothchild et al. 2020, Algorithm 1; the authors' program for ``zeroing``.
    """

    sketch: CountSketch = field(kw_only=True)
    count: int = static(kw_only=True)
    momentum: Float[Array, ""] | float = field(default=0.0, kw_only=True)
    zeroing: bool = static(default=False, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("count", self.count)
        checks.interval("momentum", self.momentum, at_least=0, below=1)

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        if self.count > problem.dim:
            raise ValueError(
                f"count must be 1 to the {problem.dim} parameters of a model, got {self.count}."
            )

    def init(self, problem: Problem, network: Network) -> FetchSGDState:
        start = server_start(problem)
        empty = jnp.zeros(self.sketch.size, start.dtype)
        return FetchSGDState(start, empty, empty)

    def exchanged(self, problem: Any) -> tuple[int, int]:
        return self.sketch.size, problem.dim

    def step(self, state: FetchSGDState, now: Round) -> FetchSGDState:
        participants = now.choose(self.selection, state.model)
        server = now.link.publish(state.model, participants.here)
        hashes = self.sketch.draw(now.link.common_key("algorithm"), len(server))
        tables = self.sketch.sketch(hashes, self.gradient(now, participants, server))
        arrived = now.link.collect(
            tables,
            participants.here,
            jnp.zeros_like(state.errors),
            clients=participants.numbers,
        )

        momentum = self.momentum * state.momentum + arrived.total
        errors = state.errors + self.step_size(now.number) * momentum
        estimate = self.sketch.estimate(hashes, errors[None])[0]
        _, largest = jax.lax.top_k(jnp.abs(estimate), self.count)
        change = jnp.zeros_like(server).at[largest].set(estimate[largest])
        table = self.sketch.sketch(hashes, change[None])[0]
        if self.zeroing:
            momentum = jnp.where(table == 0, momentum, 0)
            errors = jnp.where(table == 0, errors, 0)
        else:
            errors = errors - table
        after = FetchSGDState(server - change, momentum, errors)
        return select_rows(arrived.any, after, state)
