r"""FedEM: each client's distribution as its own mixture of common ones (Marfoq et al. 2021)."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import as_given, field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import algorithm
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.personalized.ifca import checked_start, first_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Logistic, Loss, Problem, Reading, Softmax


class FedEMState(NamedTuple):
    """State of FedEM between rounds."""

    model: Array  # [K, D]  the mean of the components' parameters by the client's weights
    models: Array  # [M, D]  the server's theta_m
    weights: Array  # [K, M]  pi_k


@algorithm("FedEM", "marfoq2021", AVERAGED, {"Federated expectation-maximization": ""})
@module
class FedEM(Averaging):
    r"""Expectation-maximization for mixtures of :math:`M` distributions that all clients share.

    A sample of client :math:`k` is of component :math:`m` with probability :math:`\pi_{k,m}`, and
    its target then has the density :math:`e^{-\ell(x,y;\theta_m)}`, up to a constant. A participant
    of the round receives all :math:`\theta_m` and infers which component each of its samples is of,

    .. math::

        q_{j,m}=\frac{\pi_{k,m}e^{-\ell(x_{k,j},y_{k,j};\theta_m)}}
                     {\sum_l\pi_{k,l}e^{-\ell(x_{k,j},y_{k,j};\theta_l)}},\qquad
        \pi_{k,m}\leftarrow\frac1{D_k}\sum_jq_{j,m}

    (the E-step, and the first half of the M-step), then takes local steps from :math:`\theta_m` on
    all of :math:`\frac1{D_k}\sum_jq_{j,m}\ell(x_{k,j},y_{k,j};\theta)`, with fixed :math:`q`. The
    server averages the results of each :math:`m` as in :class:`~fljax.algorithms.FedAvg`: a message
    has :math:`MD` numbers, in both directions. The weights :math:`\pi_k` stay with the client,
    uniform at first; clients that do not participate keep them. For one component it is federated
    averaging.

    A client predicts by the mixture of its components' predictions: of their probabilities for
    :class:`~fljax.problems.Softmax` and :class:`~fljax.problems.Logistic`, otherwise of the
    predictions themselves. Held-out metrics and ``train_error`` are of these. All others are of
    the mean :math:`\sum_m\pi_{k,m}\theta_m`, which for linear models predicts the mixture of the
    components' linear predictions (as FL-bench does), and of networks is no model of use.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments. The paper weighs clients by ``"samples"``.
      components: :math:`M\ge1`.
      start: ``[M, D]``, the initial components, which must differ, as in
        :class:`~fljax.algorithms.IFCA`; by default they are drawn from a fixed key, and for
        networks they must be given.

    Raises:
      ValueError: no component; a start of another shape or with equal models; as for FedAvg.

    Example:
      >>> import jax, numpy as np, fljax as fl
      >>> rng = np.random.default_rng(0)
      >>> X = rng.normal(size=(4, 90, 2))
      >>> is_first = rng.uniform(size=(4, 90)) < np.array([0.1, 0.3, 0.7, 0.9])[:, None]
      >>> y = 3 * np.where(is_first, X[..., 0], X[..., 1])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.from_clients(list(zip(X, y)), fl.problems.LeastSquares()),
      ...     algorithm=fl.algorithms.FedEM(0.1, components=2, epochs=5),
      ...     metrics=[fl.metrics.trajectory("weights", ("client", "component"))],
      ... )
      >>> weights = fl.run(simulation, rounds=50).weights_trajectory[-1]
      >>> bool(abs(weights[3, 0] - weights[0, 0]) > 0.5)
      True

    Reference:
      Marfoq, Neglia, Bellet, Kameni and Vidal 2021, Algorithm 1 (FedEM).
    """

    components: int = static(kw_only=True)
    start: Annotated[Array, "components dim"] | None = field(
        converter=as_given, default=None, kw_only=True
    )

    def validate(self) -> None:
        super().validate()
        checks.count("components", self.components)
        if self.start is not None:
            start = checked_start(self.start, self.components, "component")
            object.__setattr__(self, "start", start)

    @property
    def has_start(self) -> bool:
        return self.start is not None

    def message_size(self, dim: int) -> int:
        return self.components * dim

    def exchanged(self, problem: Problem) -> tuple[int, int] | None:
        return self.message_size(problem.dim), self.message_size(problem.dim)

    def gradients_per_step(self, problem: object) -> float:
        return float(self.components)

    def init(self, problem: Problem, network: Network) -> FedEMState:
        models = first_models("FedEM", problem, self.start, self.components, "component")
        shape = problem.clients, self.components
        return _state_of(models, jnp.full(shape, 1 / self.components, models.dtype))

    def step(self, state: FedEMState, now: Round) -> FedEMState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        server = now.link.publish(state.models.reshape(-1), cohort.active)
        models = server.reshape(state.models.shape)
        log_weights = jnp.log(participants.take(state.weights))

        part = participants.of(now.problem)
        inferred = _mean_responsibilities(part, models, log_weights)
        weights = participants.put(state.weights, inferred)

        def losses_of(samples: Reading, models: Array) -> Array:
            return jax.vmap(lambda model: samples.losses(samples.predictions(model)))(models)

        def expected(samples: Reading, row: Array, log_weights: Array) -> Array:
            # The responsibilities of a batch's samples, by the components received in the round.
            prior = log_weights[:, None] - losses_of(samples, models)
            shares = jax.nn.softmax(prior, axis=0)
            return jnp.sum(shares * losses_of(samples, row.reshape(models.shape)), axis=0)

        learned = self.learn(
            now,
            cohort,
            server,
            direction=along_losses(expected, self.components),
            context=log_weights,
            layouts=[now.problem.layout] * self.components,
        ).model
        server = self.collect(now, cohort, learned, server).move(server)
        return _state_of(server.reshape(models.shape), weights)

    def predictor(self, state: FedEMState, problem: Problem) -> Callable[[Problem], Array]:
        def predict(data: Problem) -> Float[Array, "clients samples *outputs"]:
            def by_one(model: Array) -> Array:
                return data.predictions(jnp.broadcast_to(model, (data.clients, data.dim)))

            separate = jax.vmap(by_one)(state.models)
            everyone = len(separate), problem.clients, *separate.shape[2:]
            return mixture(data.loss, jnp.broadcast_to(separate, everyone), state.weights)

        return predict


def _state_of(
    models: Float[Array, "components dim"], weights: Float[Array, "clients components"]
) -> FedEMState:
    return FedEMState(jnp.matmul(weights, models, precision=HIGHEST), models, weights)


def _mean_responsibilities(
    problem: Problem,
    models: Float[Array, "components dim"],
    log_weights: Float[Array, "clients components"],
) -> Float[Array, "clients components"]:
    """Return the mean over each client's samples of the components' probabilities."""

    def losses(model: Array) -> Array:
        rows = jnp.broadcast_to(model, (problem.clients, problem.dim))
        values = problem.loss.value(problem.predictions(rows), problem.targets)
        return jnp.mean(values, axis=tuple(range(2, values.ndim)))

    evidence = jnp.moveaxis(jax.vmap(losses)(models), 0, 1)  # [K, M, N]
    shares = jax.nn.softmax(log_weights[..., None] - evidence, axis=1)
    real = (problem.weights > 0).astype(shares.dtype)
    count = jnp.sum(real, axis=1, keepdims=True)
    mean = jnp.sum(shares * real[:, None], axis=2) / jnp.maximum(count, 1)
    return jnp.where(count > 0, mean, jnp.exp(log_weights))


def mixture(
    loss: Loss,
    predictions: Float[Array, "components clients samples *outputs"],
    weights: Float[Array, "clients components"],
) -> Float[Array, "clients samples *outputs"]:
    """Return the prediction whose probabilities are the weighted mean of the components'; of
    losses without probabilities the weighted mean of the predictions.
    """
    log_weights = jnp.log(weights.T)
    log_weights = log_weights.reshape(log_weights.shape + (1,) * (predictions.ndim - 2))
    if isinstance(loss, Softmax):
        return jax.nn.logsumexp(log_weights + jax.nn.log_softmax(predictions, axis=-1), axis=0)
    if isinstance(loss, Logistic):
        positive, negative = (
            jax.nn.logsumexp(log_weights + jax.nn.log_sigmoid(sign * predictions), axis=0)
            for sign in (1, -1)
        )
        return positive - negative
    return jnp.sum(jnp.exp(log_weights) * predictions, axis=0)
