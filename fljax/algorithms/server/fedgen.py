r"""FedGen: a generator of representations that clients learn from (Zhu, Hong and Zhou 2021)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm, representation_width, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Averaging, Cohort
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem, Softmax


class FedGenState(NamedTuple):
    """State of the server between rounds."""

    model: Array  # [D]  w
    generator: Array  # [G]  the weights of G
    frequency: Array  # [C]  of the classes among the last participants' samples; zero at first


@algorithm(
    "FedGen",
    "zhu2021",
    Needs(None, absent=True, classes=True, representation=True, trains=True),
)
@module
class FedGen(Averaging):
    r"""Federated averaging of clients that also learn from a generator of representations.

    The server has a generator :math:`G(\varepsilon,y)\in\mathbb R^R` of a network's representation
    of a sample of class :math:`y`, for :math:`\varepsilon\sim\mathcal N(0,I)`, and the frequencies
    :math:`\hat p(y)` of the classes. A participant of the round receives both and
    :math:`w^{(n-1)}`, and takes steps, each with draws of its own, along the gradient of

    .. math::

        f_k(w)+\lambda\,\frac1M\sum_{i=1}^M\ell\big(h(G(\varepsilon_i,y_i);w),y_i\big),
            \qquad y_i\sim\hat p

    with the head :math:`h` of its model: the others' knowledge of classes that a client lacks is in
    the place of their samples. It sends :math:`w_k` and how many samples it has of each class. The
    server averages the models as :class:`~fljax.algorithms.FedAvg` does, takes the frequencies
    among all participants' samples, and trains the generator by :math:`\tau` gradient steps, each
    on :math:`M` draws, so that the participants' heads together recognize its class:

    .. math::

        \min_G\ \mathrm E\,\ell\Big(\sum_{k\in S}s_kh\big(G(\varepsilon,y);w_k\big),y\Big),\qquad
            y\sim\hat p

    with :math:`s_k` their shares in the average. :math:`G` has one hidden layer, of ReLUs, that
    reads :math:`\varepsilon` and the class as one of :math:`C` units, and no bounds on its outputs.
    It begins at weights drawn from a fixed key, the same in every run, and no client learns from it
    in the first round, nor with :math:`\lambda=0`, which is federated averaging. Metrics evaluate
    :math:`w^{(n)}`.

    A message up has :math:`D+C` numbers and one down :math:`D+C` and the generator's. The server
    uses each client's head for itself and knows its class counts, so secure summation is not
    possible.

    Sources differ. The losses are the paper's (4) and (5), the generator's that of the mean of the
    heads' logits. The authors' code has the mean of their losses there, weighted by the clients'
    samples of the class, a term for the diversity of outputs, Adam, normalization of the hidden
    layer by batch, and for clients another term, a weight :math:`\lambda` of 10 that decays, and
    draws of classes that are uniform. Running statistics are of the bodies, which read a client's
    own samples alone, and so never of what is generated; they are averaged as the models are, and
    in PFLlib, whose averages have parameters only, kept. Class counts are of all of a client's
    samples that it may draw in its steps.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.
      generator_step_size: of the generator, a schedule of the round or a number, > 0.
      generator_steps: :math:`\tau\ge1`.
      distillation: :math:`\lambda\ge0`.
      virtual_samples: :math:`M\ge1`.
      noise_dim: the length of :math:`\varepsilon`, >= 1.
      hidden: units of the generator's hidden layer, >= 1.

    Raises:
      ValueError: a negative distillation, a count below one, a loss that is not
        :class:`~fljax.problems.Softmax`, a network that does not define its representation
        (:func:`fljax.models.headed`); as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[8])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.FedGen(0.1, epochs=5, generator_step_size=0.1),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Zhu, Hong and Zhou 2021, Algorithm 1.
    """

    generator_step_size: Schedule = field(converter=as_schedule, kw_only=True)
    generator_steps: int = static(default=10, kw_only=True)
    distillation: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)
    virtual_samples: int = static(default=32, kw_only=True)
    noise_dim: int = static(default=8, kw_only=True)
    hidden: int = static(default=32, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.nonnegative("distillation", self.distillation)
        for name in ("generator_steps", "virtual_samples", "noise_dim", "hidden"):
            checks.count(name, getattr(self, name))

    def message_size_of(self, problem: Problem) -> int:
        return problem.dim + _sizes(problem)[0]

    def init(self, problem: Problem, network: Network) -> FedGenState:
        classes, width = _sizes(problem)
        keys = jax.random.split(jax.random.key(0, impl="threefry2x32"))
        sizes = (self.noise_dim + classes, self.hidden), (self.hidden, width)
        parts = []
        for key, (into, out) in zip(keys, sizes, strict=True):
            drawn = jax.random.normal(key, (into, out), problem.dtype) * (2 / into) ** 0.5
            parts += [drawn.reshape(-1), jnp.zeros(out, problem.dtype)]
        zero = jnp.zeros(classes, problem.dtype)
        return FedGenState(server_start(problem), jnp.concatenate(parts), zero)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: FedGenState, now: Round) -> FedGenState:
        cohort = self.invite(now)
        dim = now.problem.dim
        participants = cohort.participants
        classes = len(state.frequency)
        broadcast = jnp.concatenate([state.model, state.generator, state.frequency])
        broadcast = now.link.publish(broadcast, cohort.active)
        server, generator, frequency = jnp.split(broadcast, [dim, len(broadcast) - classes])

        local = self._train_clients(now, cohort, server, generator, frequency)
        counts = participants.of(now.problem).class_counts().astype(local.dtype)
        message = jnp.concatenate([local, counts], axis=1)
        message = now.link.send(message, clients=participants.numbers, sending=cohort.active)
        local = message[:, :dim]
        counts = message[:, dim:]
        arrived = self.messages_arrived(now, cohort)
        shares = self.shares(cohort, arrived, local.dtype)
        local = jnp.where(arrived[:, None], local, server[None])

        total = jnp.sum(jnp.where(arrived[:, None], jnp.maximum(counts, 0), 0), axis=0)
        any_samples = jnp.sum(total) > 0
        frequency = jnp.where(
            any_samples, total / jnp.where(any_samples, jnp.sum(total), 1), frequency
        )
        trained = self._train_generator(now, generator, frequency, local, shares)
        generator = jnp.where(jnp.any(arrived), trained, generator)
        return FedGenState(server + shares @ (local - server[None]), generator, frequency)

    def _train_clients(
        self, now: Round, cohort: Cohort, server: Array, generator: Array, frequency: Array
    ) -> Float[Array, "chosen dim"]:
        """The participants' models after their steps."""
        problem = now.problem
        amount = self.virtual_samples

        def draw(client: Array) -> tuple[Array, Array]:
            key = jax.random.fold_in(now.key("algorithm"), client + 1)  # 0 is the server's
            return self._draws(key, frequency, cohort.longest)

        draws = jax.vmap(draw)(cohort.participants.numbers)
        has_frequencies = jnp.any(frequency > 0)
        weight = jnp.where(has_frequencies, self.distillation, 0).astype(server.dtype)

        def loss(model: Array, labels: Array, noise: Array) -> Array:
            representations = self._representations(generator, labels, noise, frequency)
            return (
                jnp.sum(problem.loss.value(problem.head(model, representations), labels)) / amount
            )

        def direction(part: Problem, model: Array, context: PyTree) -> Array:
            _, (labels, noise) = context
            return part.gradient(model) + weight * jax.vmap(jax.grad(loss))(model, labels, noise)

        return self.learn(now, cohort, server, direction=direction, per_step=draws).model

    def _train_generator(
        self, now: Round, generator: Array, frequency: Array, models: Array, shares: Array
    ) -> Float[Array, " numbers"]:
        """The generator after its steps on the ensemble of heads."""
        problem = now.problem
        rate = self.generator_step_size(now.number)
        key = jax.random.fold_in(now.key("algorithm"), 0)
        labels, noise = self._draws(key, frequency, self.generator_steps)
        total = jnp.sum(shares)
        shares = shares / jnp.where(total > 0, total, 1)

        def loss(generator: Array, labels: Array, noise: Array) -> Array:
            representations = self._representations(generator, labels, noise, frequency)
            logits = jax.vmap(lambda model: problem.head(model, representations))(models)
            ensemble = jnp.einsum("k,kmc->mc", shares, logits, precision=HIGHEST)
            return jnp.sum(problem.loss.value(ensemble, labels)) / len(labels)

        def generator_step(generator: Array, draws: tuple[Array, Array]) -> tuple[Array, None]:
            return generator - rate * jax.grad(loss)(generator, *draws), None

        return jax.lax.scan(generator_step, generator, (labels, noise))[0]

    def _draws(
        self, key: Array, frequency: Float[Array, " classes"], steps: int
    ) -> tuple[Int[Array, "steps draws"], Float[Array, "steps draws noise"]]:
        """Return classes and noise for this number of steps."""
        shape = (steps, self.virtual_samples)
        (first, second) = jax.random.split(key)
        uniform = jax.random.uniform(first, shape, frequency.dtype)
        below = jnp.cumsum(frequency)[None, None, :-1] <= uniform[..., None]
        labels = jnp.sum(below, axis=2, dtype=jnp.int32)
        return labels, jax.random.normal(second, (*shape, self.noise_dim), frequency.dtype)

    def _representations(
        self, generator: Array, labels: Array, noise: Array, frequency: Array
    ) -> Float[Array, "draws width"]:
        """Representations of these classes."""
        into = self.noise_dim + len(frequency)
        hidden = self.hidden
        width = (len(generator) - (into + 1) * hidden) // (hidden + 1)
        ends = [into * hidden, (into + 1) * hidden, (into + 1 + width) * hidden]
        first, offset, second, last = jnp.split(generator, ends)
        unit = jax.nn.one_hot(labels, len(frequency), dtype=noise.dtype)
        inputs = jnp.concatenate([noise, unit], axis=1)
        inner = jnp.matmul(inputs, first.reshape(into, hidden), precision=HIGHEST) + offset[None]
        outer = second.reshape(hidden, width)
        return jnp.matmul(jax.nn.relu(inner), outer, precision=HIGHEST) + last[None]


def _sizes(problem: Problem) -> tuple[int, int]:
    """``C`` and ``R``, of a problem or of its shapes alone."""
    assert isinstance(problem.loss, Softmax)
    return problem.loss.classes, representation_width(problem)
