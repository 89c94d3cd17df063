r"""CCVR: classifier calibration with virtual representations (Luo et al. 2021)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._linalg import symmetric_eigen
from fljax._module import field, module, static
from fljax._numerics import HIGHEST
from fljax.algorithms.base import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.local_steps import kept
from fljax.algorithms.server import fedavg
from fljax.algorithms.server.fedavg import FedAvg
from fljax.participation import Selector
from fljax.problems import Problem, Softmax
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule

__all__ = ["CCVR", "State"]


class State(NamedTuple):
    """State of CCVR between rounds."""

    model: Array  # [D]  the calibrated model
    shared: fedavg.State  # of the solver, whose model is w


@algorithm(
    "CCVR",
    "luo2021",
    Needs(None, absent=True, masked=True, classes=True, representation=True),
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
    or more. Calibration starts anew from the model of each round and does not affect training;
    metrics evaluate its result, the model that would be deployed if training stopped here, which a
    round of nobody leaves as it is. Without
    steps it would be the solver.

    A participant sends the sums of its representations, of their products and of ones, from which
    the same follows: :math:`C(1+R+R(R+1)/2)` numbers beside the solver's message, and one model
    more comes down. The paper calibrates once, after the last round, with all clients; what that
    costs is the last round's.

    Args:
      solver: the solver of the server's model, a :class:`~fljax.algorithms.FedAvg`.
      step_size: :math:`\eta` of the calibration, a schedule of the round or a number, > 0.
      calibration_steps: :math:`\tau\ge1`.
      virtual_samples: :math:`M\ge1`, of each class.

    Raises:
      TypeError: a solver of another type.
      ValueError: no steps or draws, a loss that is not :class:`~fljax.problems.Softmax`, a network
        that does not say its representation (:func:`fljax.models.headed`).

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
        _check.count("calibration_steps", self.calibration_steps)
        _check.count("virtual_samples", self.virtual_samples)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.solver.selection

    def check(self, problem: Problem, network: Any) -> None:
        self.solver.check(problem, network)

    def init(self, problem: Problem, network: Any) -> State:
        return State(server_start(problem), self.solver.init(problem, network))

    def step(self, state: State, now: Round) -> State:
        shared, who = self.solver.step(state.shared, now), now.choose(self.selection)
        server = now.link.publish(shared.model, who.here)
        said = _sums(who.of(now.problem), jnp.tile(server, (len(who.here), 1)))
        classes = said.shape[1]
        said = said.reshape(len(said), -1)
        arrived = now.link.collect(said, who.here, jnp.zeros_like(said[0]), clients=who.numbers)
        assert arrived.weight is not None  # no trusted server runs this
        mean, root, known = _gaussians((arrived.weight * arrived.total).reshape(classes, -1))

        shape = classes, self.virtual_samples, mean.shape[1]
        draws = jax.random.normal(now.key("algorithm"), shape, server.dtype)
        virtual = mean[:, None] + jnp.einsum("cmr,crs->cms", draws, root, precision=HIGHEST)
        labels = jnp.repeat(jnp.arange(classes, dtype=jnp.int32), self.virtual_samples)
        share = jnp.repeat(known, self.virtual_samples).astype(server.dtype)
        share = share / jnp.maximum(jnp.sum(share), 1)

        def loss(model: Array) -> Array:
            logits = now.problem.head(model, virtual.reshape(-1, shape[2]))
            return jnp.sum(share * now.problem.loss.value(logits, labels))

        def one(_: Array, model: Array) -> Array:
            return model - self.step_size(now.number) * jax.grad(loss)(model)

        model = jax.lax.fori_loop(0, self.calibration_steps, one, server)
        return State(kept(arrived.any, model, state.model), shared)


def _sums(
    problem: Problem, models: Float[Array, "clients dim"]
) -> Float[Array, "clients classes numbers"]:
    """Of each class at each client: the sums of ones, of representations, and of the products of
    two of their numbers, each pair once.
    """
    assert isinstance(problem.loss, Softmax)
    read = problem.representations(models)
    first, second = np.triu_indices(read.shape[2])
    read = jnp.concatenate(
        [jnp.ones_like(read[..., :1]), read, read[..., first] * read[..., second]], axis=2
    )
    labels = problem.targets.astype(jnp.int32)
    of_class = jax.nn.one_hot(labels, problem.loss.classes, dtype=read.dtype)
    of_class = jnp.where(problem.weights[..., None] > 0, of_class, 0)
    return jnp.einsum("knc,knr->kcr", of_class, read, precision=HIGHEST)


def _gaussians(sums: Float[Array, "classes numbers"]) -> tuple[Array, Array, Array]:
    """The mean ``[C, R]`` and the root of the covariance ``[C, R, R]`` of each class, and of which
    classes they are known.
    """
    width = int((2 * sums.shape[1] + 0.25) ** 0.5 - 1.5)  # of 1 + R + R (R + 1) / 2 numbers
    first, second = np.triu_indices(width)
    count, products = sums[:, :1], sums[:, 1 + width :]
    known = count[:, 0] > 1.5
    count = jnp.where(known[:, None], count, 2)
    mean = sums[:, 1 : 1 + width] / count
    upper = (products - count * mean[:, first] * mean[:, second]) / (count - 1)
    covariance = jnp.zeros((len(sums), width, width), sums.dtype)
    covariance = covariance.at[:, first, second].set(upper).at[:, second, first].set(upper)
    values, vectors = symmetric_eigen(covariance)
    # What rounding alone may have made of the difference is no direction.
    size = jnp.sum(jnp.abs(products[:, first == second]), axis=1, keepdims=True) / count
    values = jnp.where(values > 10 * width * jnp.finfo(sums.dtype).eps * size, values, 0)
    root = jnp.einsum("cri,ci,csi->crs", vectors, jnp.sqrt(values), vectors, precision=HIGHEST)
    return mean, root, known
