r"""FLoRA: the exact average of adapters of low rank (Wang et al. 2024)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.fedavg import FedAvgState
from fljax.algorithms.server.server_algorithm import Averaging
from fljax.graphs.federation import Network
from fljax.models.low_rank import LowRank
from fljax.optimization.optimizers import check_optimizer
from fljax.problems import Model, Problem
from fljax.problems.streams import Stream


@algorithm(
    "FLoRA",
    "wang2024flora",
    Needs(None, absent=True, compressed=False, uploads=(), trains=True, adapters=True),
)
@module
class FLoRA(Averaging):
    r"""Clients train new adapters in every round, whose exact average is added to the weights.

    With :math:`W` the weights of the network (:func:`fljax.models.lora`), a participant of round
    :math:`n` draws a new :math:`A_k`, begins at :math:`B_k=0`, and takes local steps on both
    factors with :math:`W^{(n-1)}+sA_kB_k`. It sends the factors. The server stacks the factors of
    all participants; the product of the stacks is the sum of their products,

    .. math:: W^{(n)}=W^{(n-1)}+s\sum_{k\in S}\frac{q_k}{\sum_{l\in S}q_l}A_kB_k,

    and sends the stack to all clients, which add it to their weights. The average of the factors
    themselves (federated averaging of ``problem.training_only("^lora/")``) is another one, since
    the product of averages is not the average of products. The problem trains all parameters, as
    the weights move, too; clients change their adapters only.

    A message up has the numbers of one client's adapters, a message down the numbers of all
    participants' adapters. Stacks of rounds in which a client was unavailable are not counted for
    it.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments. An optimizer sees the factors only.

    Raises:
      ValueError: a network without adapters, or a problem that trains a part of it; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.lora(fl.models.mlp(3, hidden=[16]), rank=2)
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.FLoRA(0.3, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Wang et al. 2024, section 3.2, (5) to (7), for adapters of one rank.
    """

    def validate(self) -> None:
        super().validate()

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        assert isinstance(problem, Model)
        if problem.trained is not None:
            raise ValueError(
                "FLoRA adds adapters to the network's weights, which the problem keeps as they are;"
                " leave out training_only()."
            )
        check_optimizer(self.step_size, problem.layout.part(self._places(problem)))

    def message_size_of(self, problem: Model) -> int:
        return len(self._places(problem))

    def _places(self, problem: Model) -> np.ndarray:
        """The positions of the adapters' numbers in a model."""
        return np.flatnonzero(problem.layout.coordinates("^lora/"))

    def init(self, problem: Problem, network: Network) -> FedAvgState:
        return FedAvgState(server_start(problem))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: FedAvgState, now: Round) -> FedAvgState:
        problem = now.problem
        assert isinstance(problem, Model)
        layout = problem.layout
        adapters = problem.architecture
        assert isinstance(adapters, LowRank)
        places = self._places(problem)
        cohort = self.invite(now, state.model)
        server = state.model
        keys = jax.vmap(jax.random.fold_in, (None, 0))(
            now.key("algorithm"), cohort.participants.numbers
        )

        def begun(key: Array) -> Float[Array, " dim"]:
            return layout.row(adapters.begun(key, layout.parameters(server)))

        def with_factors(factors: Array, context: object) -> Float[Array, "chosen dim"]:
            return jnp.broadcast_to(server, (len(factors), len(server))).at[:, places].set(factors)

        def along_factors(part: Problem, factors: Array, context: object) -> Array:
            return part.gradient(with_factors(factors, context))[:, places]

        learned = self.learn(
            now,
            cohort,
            jax.vmap(begun)(keys)[:, places],
            direction=along_factors,
            layouts=[layout.part(places)],
            whole=with_factors,
        )

        def merged(factors: Array) -> Float[Array, " dim"]:
            row = server.at[places].set(factors)
            # The drawn factors are not part of the server's model: its own have the product zero.
            merged_parameters = adapters.merged(layout.parameters(row))
            return layout.row(merged_parameters).at[places].set(server[places])

        numbers = jnp.full(len(cohort.active), len(places), jnp.int32)
        merged_models = jax.vmap(merged)(learned.model)
        arrived = self.collect(now, cohort, merged_models, server, numbers=numbers)
        stacked = jnp.sum(cohort.active, dtype=jnp.int32) * len(places)
        now.link.publish(server, size=jnp.full(problem.clients, stacked))
        return FedAvgState(arrived.move(server))
