r"""CCVR: classifier calibration with virtual representations (Luo et al. 2021)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.linalg import symmetric_eigen
from fljax._core.module import field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.local_steps import select_rows
from fljax.algorithms.round import Round
from fljax.algorithms.server import fedavg
from fljax.algorithms.server.fedavg import FedAvg
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Selector
from fljax.problems import Problem, Softmax


class CCVRState(NamedTuple):
    """State of CCVR between rounds."""

    model: Array  # [D]  the calibrated model
    shared: fedavg.FedAvgState  # of the solver, whose model is w


@algorithm(
    "CCVR",
    "luo2021",
    Needs(None, absent=True, masked=True, classes=True, representation=True, trains=True),
    {"Classifier calibration": ""},
)
@module
class CCVR(Algorithm):
    r"""Federated averaging whose head is calibrated at the server on virtual representations.

    After the solver's round the server publishes :math:`w^{(n)}` once more, and the participants
    reply with the number, the mean and the covariance of its representations
    :math:`r(x)\in\mathbb R^R` of their samples of each class. Together these are the class's,

    .. math::

        \mu_c=\sum_k\frac{n_{k,c}}{N_c}\mu_{k,c},\qquad
        \Sigma_c=\sum_k\frac{n_{k,c}-1}{N_c-1}\Sigma_{k,c}
            +\sum_k\frac{n_{k,c}}{N_c-1}\mu_{k,c}\mu_{k,c}^\top-\frac{N_c}{N_c-1}\mu_c\mu_c^\top,
        \qquad N_c=\sum_kn_{k,c}

    and the server trains the head of :math:`w^{(n)}` by :math:`\tau` gradient steps on the mean
    loss of :math:`M` draws from :math:`\mathcal N(\mu_c,\Sigma_c)` for each class with two samples
    or more. Calibration restarts from the model of each round and does not affect training;
    metrics evaluate its result, the model that would be deployed if training stopped here. A round
    without participants leaves it as it is. Without steps it would be the solver.

    A participant sends the sums of its representations, of their products and of ones, from which
    the same follows: :math:`C(1+R+R(R+1)/2)` numbers in addition to the solver's message, and one
    model more comes down. The paper calibrates once, after the last round, with all clients, at
    the cost of the last round here. Networks that are normalized by batches represent samples by
    the running statistics of the round's model, which come down with it.

    Args:
      solver: the solver of the server's model, a :class:`~fljax.algorithms.FedAvg`.
      step_size: :math:`\eta` of the calibration, a schedule of the round or a number, > 0.
      calibration_steps: :math:`\tau\ge1`.
      virtual_samples: :math:`M\ge1`, of each class.

    Raises:
      TypeError: a solver of another type.
      ValueError: no steps or draws, a loss that is not :class:`~fljax.problems.Softmax`, a network
        that does not define its representation (:func:`fljax.models.headed`).

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[8])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.CCVR(fl.algorithms.FedAvg(0.1, epochs=5), 0.1),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Luo et al. 2021, Algorithm 1.
    """

    solver: FedAvg
    step_size: Schedule = field(converter=as_schedule)
    calibration_steps: int = static(default=100)
    virtual_samples: int = static(default=100)

    def validate(self) -> None:
        checks.count("calibration_steps", self.calibration_steps)
        checks.count("virtual_samples", self.virtual_samples)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.solver.selection

    def check(self, problem: Problem, network: Network) -> None:
        self.solver.check(problem, network)

    def work(self, problem: Any) -> tuple[Array, Array]:
        return self.solver.work(problem)

    def init(self, problem: Problem, network: Network) -> CCVRState:
        return CCVRState(server_start(problem), self.solver.init(problem, network))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: CCVRState, now: Round) -> CCVRState:
        shared = self.solver.step(state.shared, now)
        participants = now.choose(self.selection)
        server = now.link.publish(shared.model, participants.here)
        part = now.networks.published(participants, participants.of(now.problem))
        sums = _sums(part, jnp.tile(server, (len(participants.here), 1)))
        classes = sums.shape[1]
        sums = sums.reshape(len(sums), -1)
        arrived = now.link.collect(
            sums, participants.here, jnp.zeros_like(sums[0]), clients=participants.numbers
        )
        assert arrived.weight is not None  # no trusted server runs this
        mean, root, has_gaussian = _gaussians((arrived.weight * arrived.total).reshape(classes, -1))

        shape = classes, self.virtual_samples, mean.shape[1]
        draws = jax.random.normal(now.key("algorithm"), shape, server.dtype)
        virtual = mean[:, None] + jnp.einsum("cmr,crs->cms", draws, root, precision=HIGHEST)
        labels = jnp.repeat(jnp.arange(classes, dtype=jnp.int32), self.virtual_samples)
        share = jnp.repeat(has_gaussian, self.virtual_samples).astype(server.dtype)
        share = share / jnp.maximum(jnp.sum(share), 1)

        def loss(model: Array) -> Array:
            logits = now.problem.head(model, virtual.reshape(-1, shape[2]))
            return jnp.sum(share * now.problem.loss.value(logits, labels))

        def calibration_step(_: Array, model: Array) -> Array:
            return model - self.step_size(now.number) * jax.grad(loss)(model)

        model = jax.lax.fori_loop(0, self.calibration_steps, calibration_step, server)
        return CCVRState(select_rows(arrived.any, model, state.model), shared)


def _sums(
    problem: Problem, models: Float[Array, "clients dim"]
) -> Float[Array, "clients classes numbers"]:
    """Return, for each class at each client, the sums of ones, of representations, and of the
    products of two of their numbers, each pair once.
    """
    assert isinstance(problem.loss, Softmax)
    features = problem.representations(models)
    first, second = np.triu_indices(features.shape[2])
    features = jnp.concatenate(
        [jnp.ones_like(features[..., :1]), features, features[..., first] * features[..., second]],
        axis=2,
    )
    labels = problem.targets.astype(jnp.int32)
    of_class = jax.nn.one_hot(labels, problem.loss.classes, dtype=features.dtype)
    of_class = jnp.where(problem.weights[..., None] > 0, of_class, 0)
    return jnp.einsum("knc,knr->kcr", of_class, features, precision=HIGHEST)


def _gaussians(sums: Float[Array, "classes numbers"]) -> tuple[Array, Array, Array]:
    """The mean ``[C, R]`` and the root of the covariance ``[C, R, R]`` of each class, and which
    classes have them.
    """
    width = int((2 * sums.shape[1] + 0.25) ** 0.5 - 1.5)  # of 1 + R + R (R + 1) / 2 numbers
    first, second = np.triu_indices(width)
    count = sums[:, :1]
    products = sums[:, 1 + width :]
    has_two_samples = count[:, 0] > 1.5
    count = jnp.where(has_two_samples[:, None], count, 2)
    mean = sums[:, 1 : 1 + width] / count
    upper = (products - count * mean[:, first] * mean[:, second]) / (count - 1)
    covariance = jnp.zeros((len(sums), width, width), sums.dtype)
    covariance = covariance.at[:, first, second].set(upper).at[:, second, first].set(upper)
    values, vectors = symmetric_eigen(covariance)
    # Directions whose variance may be rounding of the difference alone are dropped.
    size = jnp.sum(jnp.abs(products[:, first == second]), axis=1, keepdims=True) / count
    values = jnp.where(values > 10 * width * jnp.finfo(sums.dtype).eps * size, values, 0)
    root = jnp.einsum("cri,ci,csi->crs", vectors, jnp.sqrt(values), vectors, precision=HIGHEST)
    return mean, root, has_two_samples
