r"""kNN-Per: a common network, and the labels of a client's own nearest samples (Marfoq et al.
2022).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Algorithm, algorithm
from fljax.algorithms.network_states import check_represented_once
from fljax.algorithms.round import Round
from fljax.algorithms.server import fedavg
from fljax.algorithms.server.fedavg import FedAvg
from fljax.algorithms.server.server_algorithm import OF_CLASSES
from fljax.graphs.federation import Network
from fljax.participation.selectors import Selector
from fljax.problems import Problem, Softmax


class KNNPerState(NamedTuple):
    """State of kNN-Per between rounds."""

    model: Array  # [D]  the solver's, the server's w
    shared: fedavg.FedAvgState  # of the solver


@algorithm(
    "kNN-Per", "marfoq2022", dataclasses.replace(OF_CLASSES, privacy=(), representation=True)
)
@module
class KNNPer(Algorithm):
    r"""Federated averaging whose predictions each client mixes with those of its nearest samples.

    The solver's rounds are unchanged. On its own, client :math:`k` represents its samples by the
    server's network, :math:`r(x)\in\mathbb R^R`, and predicts the classes of another sample
    :math:`x` by

    .. math::

        p_k(c)=\lambda_k\frac{\sum_{j\in N}e^{-\|r(x)-r(x_{k,j})\|^2/(Rs)}[y_{k,j}=c]}
                             {\sum_{j\in N}e^{-\|r(x)-r(x_{k,j})\|^2/(Rs)}}
               +(1-\lambda_k)\,p(c;x,w)

    where :math:`N` are the ``neighbors`` of its samples that are nearest to :math:`x`, or all if it
    has fewer, and :math:`p` the network's softmax. Nothing more is communicated.

    Metrics of held-out data, such as ``accuracy`` and ``test_error``, are of these predictions of
    all clients, and so is ``train_error``, which says little: of a training sample the nearest
    is itself. All others are of the server's model.

    The kernel is that of the authors' code. In it a client may keep a part of its samples only,
    and :math:`\lambda_k` is chosen on validation data; here give it for each client, or search it.
    FL-bench's mixes the kernel's shares with logits.

    Args:
      solver: the solver of the server's model, a :class:`~fljax.algorithms.FedAvg`.
      neighbors: how many nearest samples count, >= 1.
      interpolation: :math:`\lambda_k\in[0,1]`, one number or one per client.
      scale: :math:`s>0` of the kernel.

    Raises:
      TypeError: a solver of another type.
      ValueError: no neighbors, an interpolation outside [0, 1] or not one per client, a scale that
        is not positive, a loss that is not :class:`~fljax.problems.Softmax`, a network that does
        not define its representation (:func:`fljax.models.headed`).

    Example:
      >>> import jax, fljax as fl
      >>> keys = jax.random.split(jax.random.key(0), 3)
      >>> data = fl.problems.softmax(keys[0], clients=4, samples=60, dim=6, classes=3)
      >>> problem = fl.problems.Model.of(data, fl.models.mlp(3, hidden=[16]), keys[1])
      >>> simulation = fl.Simulation(
      ...     problem=problem.split(keys[2], test=0.5),
      ...     algorithm=fl.algorithms.KNNPer(fl.algorithms.FedAvg(0.1, epochs=5)),
      ...     metrics=["accuracy"],
      ... )
      >>> bool(fl.run(simulation, rounds=20).accuracy[-1] > 0.6)
      True

    Reference:
      Marfoq, Neglia, Kameni and Vidal 2022.
    """

    solver: FedAvg
    neighbors: int = static(default=5)
    interpolation: Float[Array, "*clients"] | float = field(
        converter=partial(checks.filled, "interpolation"), default=0.5
    )
    scale: Float[Array, ""] | float = 1.0

    def validate(self) -> None:
        checks.count("neighbors", self.neighbors)
        checks.interval("interpolation", self.interpolation, at_least=0, at_most=1)
        checks.positive("scale", self.scale)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.solver.selection

    def check(self, problem: Problem, network: Network) -> None:
        self.solver.check(problem, network)
        checks.per_client("interpolation", self.interpolation, problem.clients)
        check_represented_once("kNN-Per", problem)

    def work(self, problem: Any) -> tuple[Array, Array]:
        return self.solver.work(problem)

    def init(self, problem: Problem, network: Network) -> KNNPerState:
        shared = self.solver.init(problem, network)
        return KNNPerState(shared.model, shared)

    def step(self, state: KNNPerState, now: Round) -> KNNPerState:
        shared = self.solver.step(state.shared, now)
        return KNNPerState(shared.model, shared)

    def predictor(self, state: KNNPerState, problem: Problem) -> Callable[[Problem], Array]:
        assert isinstance(problem.loss, Softmax)
        models = jnp.broadcast_to(state.model, (problem.clients, len(state.model)))
        stored = problem.representations(models)
        labels = jax.nn.one_hot(
            problem.targets.astype(jnp.int32), problem.loss.classes, dtype=stored.dtype
        )
        has_sample = problem.weights > 0
        share = jnp.asarray(self.interpolation, stored.dtype)
        share = jnp.broadcast_to(share, (problem.clients,))
        # A client without samples of its own has the network's predictions.
        share = jnp.where(jnp.any(has_sample, axis=1), share, 0)[:, None, None]

        def predict(data: Problem) -> Float[Array, "clients samples classes"]:
            """Logarithms of the mixed probabilities, which the loss takes as logits."""
            queries = data.representations(models[: data.clients])
            queries = jnp.broadcast_to(queries, (len(models), *queries.shape[1:]))
            common = jax.nn.softmax(data.predictions(models[: data.clients]), axis=-1)
            nearest = jax.vmap(self._nearest_labels)(queries, stored, labels, has_sample)
            mixed = share * nearest + (1 - share) * common
            return jnp.log(jnp.maximum(mixed, jnp.finfo(mixed.dtype).tiny))

        return predict

    def _nearest_labels(
        self,
        queries: Float[Array, "queries width"],
        stored: Float[Array, "samples width"],
        labels: Float[Array, "samples classes"],
        has_sample: Array,
    ) -> Float[Array, "queries classes"]:
        """The classes' shares among one client's nearest samples, weighted by the kernel."""
        middle = jnp.mean(stored, axis=0, keepdims=True)  # near it no digits of a distance are lost
        queries = queries - middle
        stored = stored - middle
        products = jnp.matmul(queries, stored.T, precision=HIGHEST)
        distance = jnp.sum(queries**2, axis=1)[:, None] + jnp.sum(stored**2, axis=1)[None]
        distance = jnp.where(has_sample[None], jnp.maximum(distance - 2 * products, 0), jnp.inf)
        count = min(self.neighbors, len(stored))
        closeness, which = jax.lax.top_k(-distance, count)
        width = jnp.asarray(stored.shape[1] * self.scale, closeness.dtype)
        # The softmax is the normalized kernel, also where all of its values would underflow.
        weights = jnp.where(closeness > -jnp.inf, jax.nn.softmax(closeness / width, axis=1), 0)
        return jnp.einsum("tn,tnc->tc", weights, labels[which], precision=HIGHEST)
