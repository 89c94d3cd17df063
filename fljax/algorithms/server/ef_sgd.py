r"""Error feedback: the error of a compressed update is added to the next one (Seide 2014)."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.compressing import mean_of_arrived, upload
from fljax.algorithms.server.server_algorithm import Corrected
from fljax.graphs.federation import Network
from fljax.link import Compressor
from fljax.link.compression import contraction_of
from fljax.problems import Problem
from fljax.problems.streams import Stream


class EFSGDState(NamedTuple):
    """State of EF-SGD between rounds."""

    model: Array  # [D]  the server's x
    errors: Array  # [K, D]  the clients' e_k


@algorithm(
    "EF-SGD",
    ("seide2014", "stich2018", "karimireddy2019"),
    Needs(None, absent=True, compressed=False, trains=True),
    {
        "EF-SignSGD": "with compression=fljax.link.Sign()",
        "Mem-SGD": "with compression=fljax.link.TopK(...)",
        "EF14": "",
        "Qsparse-local-SGD": "with local_steps=",
        "Fed-EF": "with local_steps= and clients_per_round=",
    },
)
@module
class EFSGD(ReleasesModel, Corrected):
    r"""SGD with error feedback: updates are compressed, and errors are added to the next ones.

    A participant's update is :math:`\Delta_k=y_k-x`, where :math:`y_k=x-\mu f_k'(x)` after one
    step; then

    .. math::

        p_k=\Delta_k+e_k,\qquad c_k=C(p_k),\qquad e_k\leftarrow p_k-c_k,\qquad
        x\leftarrow x+\frac1{|S|}\sum_{k\in S}c_k

    with :math:`e_k=0` initially. So nothing is left out for good, and any contractive compressor
    may be used, however biased. With unlike clients and a constant step size the model comes close
    to the optimum and not to it, since the errors are those of gradients that do not vanish;
    :class:`~fljax.algorithms.EF21` compresses differences of them, which do. Clients that do not
    take part keep :math:`e_k`; where a message is lost, its sender learns of it, and all of the
    update becomes the error.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0, or an optimizer.
      compression: :math:`C`, contractive (:meth:`fljax.link.Compressor.contraction`).

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Corrected`; one
    step on all samples by default.

    Raises:
      ValueError: a compressor that is not contractive or does not fit the models, and as for
        :class:`~fljax.algorithms.server.server_algorithm.Corrected`.

    Example:
      >>> import jax, fljax as fl
      >>> def error(algorithm, compression=None):
      ...     problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=10)
      ...     simulation = fl.Simulation(
      ...         problem, algorithm, compression=compression, metrics=["normalized_error"]
      ...     )
      ...     return float(fl.run(simulation, rounds=300).normalized_error[-1])
      >>> fed_back = error(fl.algorithms.EFSGD(0.05, compression=fl.link.Sign()))
      >>> plain = error(fl.algorithms.FedAvg(0.05), compression=fl.link.Sign())
      >>> fed_back < 0.1 * plain
      True

    Reference:
      Seide et al. 2014; Stich, Cordonnier & Jaggi 2018, Algorithm 1; Karimireddy et al. 2019,
      Algorithm 2.
    """

    compression: Compressor = dataclasses.field(kw_only=True)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        self.compression.check(problem.dim)
        contraction_of("EF-SGD", self.compression, problem.dim)

    def init(self, problem: Problem, network: Network) -> EFSGDState:
        start = server_start(problem)
        return EFSGDState(start, jnp.zeros((problem.clients, problem.dim), start.dtype))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: EFSGDState, now: Round) -> EFSGDState:
        cohort = self.invite(now, state.model)
        server = now.link.publish(state.model, cohort.active)
        update = self.learn(now, cohort, server).model - server[None]
        wanted = update + cohort.participants.take(state.errors)
        sent, arrived = upload(now, cohort.participants, wanted, self.compression)
        return EFSGDState(
            server + mean_of_arrived(sent, arrived),
            cohort.participants.put(state.errors, wanted - sent),
        )
