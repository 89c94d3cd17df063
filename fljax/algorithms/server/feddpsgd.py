r"""Federated averaging with DP-SGD at the clients: each step is on a newly drawn batch."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import field, module, replace, static
from fljax._core.prng import bernoulli, rate_drawn
from fljax._core.random_subsets import uniform_subsets
from fljax.algorithms.algorithm import Algorithm, Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Drawn, Law, Selector, everyone_or
from fljax.problems import Model, Problem
from fljax.problems.batches import check_size

#: The probability that a batch has more samples than there is room for, at most.
OVERFLOW = 1e-30


class FedDPSGDState(NamedTuple):
    """State of FedDPSGD between rounds."""

    model: Array  # [D]  the server's w


@algorithm(
    "DP-SGD",
    ("abadi2016", "mcmahan2017"),
    Needs(
        None,
        privacy=("gradient",),
        absent=True,
        late=True,
        averages=True,
        uploads=("models", "updates"),
        masked=True,
        trains=True,
    ),
)
@module
class FedDPSGD(ReleasesModel, Algorithm):
    r"""Federated averaging with (differentially private) stochastic gradient steps at the clients.

    A participant starts from the server's model and takes ``local_steps`` steps, each on a newly
    drawn batch: every sample with probability ``sampling_rate`` (Poisson sampling), or ``batch`` of
    them without replacement,

    .. math::

        w_k\leftarrow w_k-\mu\tilde g_k(w_k),\qquad w=\frac1{|S|}\sum_{k\in S}w_k,

    with :math:`\tilde g` of :class:`~fljax.privacy.NoisyGradients` under ``privacy=``, otherwise
    the plain gradient on the batch. The sum over a batch is divided by the expected batch size, so
    that it is an unbiased gradient of the client's mean loss.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      local_steps: gradient steps of a participant per round, >= 1.
      sampling_rate: the inclusion probability of each sample in a batch, in [2^-64, 1]; exact, also
        where it is small (rounded down to a multiple of :math:`2^{-64}`).
      batch: samples per batch, instead of ``sampling_rate``; a client with fewer samples uses all
        of them. Without either, every step is on all samples.
      clients_per_round: number of participants, drawn without replacement; all clients by default.
      turns: :math:`b`; with more than one, samples take turns: sample :math:`j` of a client takes
        part in its own steps :math:`i=0,1,\dots` with :math:`i=j` modulo :math:`b`, each
        with probability ``sampling_rate`` (cyclic Poisson sampling) or, without it, always. It
        counts :math:`b` times in them, so that :math:`b` steps together are as unbiased as one. For
        strategies of :class:`~fljax.privacy.NoisyGradients`.
      capacity: samples for which there is room in a batch of ``sampling_rate``; by default all of a
        client's, and each step then costs as much as one on all of them. It must be so large that a
        larger batch has a probability of at most 1e-30; :meth:`room` returns this size, 900
        for batches of a hundredth of 60,000 samples.

    Raises:
      ValueError: both ``sampling_rate`` and ``batch``; a batch larger than every client's data;
        more participants than clients; a capacity without ``sampling_rate``, or one that is too
        small; turns with a fixed ``batch``, or more turns than samples.

    Guarantees:
      Those of :class:`~fljax.privacy.NoisyGradients`, exactly, for any capacity: a batch that
      exceeds it is empty, and its step is noise alone. Whether it is does
      not depend on the data, since places without a sample are drawn like the others: given who
      else is drawn, a sample moves the step as it does without a capacity, or not at all.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=10, samples=200, dim=3),
      ...     algorithm=fl.algorithms.FedDPSGD(0.1, local_steps=5, sampling_rate=0.05),
      ...     privacy=fl.privacy.NoisyGradients(noise_multiplier=1.0, clip=2.0),
      ... )
      >>> results = fl.run(simulation, rounds=20, record_every=10)
      >>> fl.privacy.spent(results, delta=1e-5).epsilon.values.round(1).tolist()
      [2.7, 3.5]

    Reference:
      Abadi et al. 2016, Algorithm 1; as the local solver of McMahan et al. 2017.
    """

    step_size: Schedule = field(converter=as_schedule)
    local_steps: int = static(default=1)
    sampling_rate: Float[Array, ""] | float | None = None
    batch: int | None = static(default=None)
    clients_per_round: int | None = static(default=None)
    capacity: int | None = static(default=None)
    turns: int = static(default=1)

    def validate(self) -> None:
        checks.count("local_steps", self.local_steps)
        checks.count("turns", self.turns)
        if self.sampling_rate is not None:
            checks.interval(
                "sampling_rate",
                self.sampling_rate,
                at_least=2.0**-64,
                at_most=1,
                hint="A sample of a smaller rate would never be drawn.",
            )
            if self.batch is not None:
                raise ValueError(
                    f"sampling_rate={self.sampling_rate} and batch={self.batch} both set how "
                    "batches are drawn; leave out one."
                )
        for name in ("batch", "clients_per_round", "capacity"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name))
        if self.turns > 1 and self.batch is not None:
            raise ValueError(
                f"batch={self.batch} draws from all samples of a client in every step, and with "
                f"turns={self.turns} a step has those of one group; leave out one, or give a "
                "sampling_rate."
            )
        if self.capacity is not None and self.sampling_rate is None:
            raise ValueError(
                f"capacity={self.capacity} is of batches that are drawn with a sampling_rate, and "
                "there is none; leave it out."
            )

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return everyone_or(Drawn, self.clients_per_round)

    def sampling(self, problem: Problem) -> Law:
        """Return how a batch is sampled, at the client with the fewest samples."""
        if self.sampling_rate is not None:
            rate = rate_drawn(self.sampling_rate) / self.turns
            return Law(rate, self.turns, sampling="poisson")
        if self.batch is None:
            return Law(1 / self.turns, self.turns)
        rate = jnp.minimum(1, self.batch / jnp.min(problem.sample_counts()))
        return Law(rate, sampling="drawn")

    @staticmethod
    def room(samples: int, sampling_rate: float) -> int:
        """The least capacity for batches drawn from this number of samples.

        Args:
          samples: of the client that has the most.
          sampling_rate: as of the constructor.

        Raises:
          ValueError: no samples, a rate outside (0, 1].

        Example:
          >>> import fljax as fl
          >>> fl.algorithms.FedDPSGD.room(60_000, 0.01)
          900
        """
        from scipy import special  # imported only where it is used

        checks.count("samples", samples)
        checks.interval("sampling_rate", sampling_rate, above=0, at_most=1)
        exceeding = special.bdtrc(np.arange(samples + 1), samples, sampling_rate)
        return int(np.argmax(exceeding <= OVERFLOW))

    def check(self, problem: Problem, network: Network) -> None:
        super().check(problem, network)
        if problem.mixes_samples:
            raise ValueError(
                "FedDPSGD draws batches of random sizes, by whose samples a network cannot be "
                "normalized; normalize by groups or layers, or freeze the statistics, "
                "state='frozen'."
            )
        if (capacity := self.capacity) is None and self.turns == 1:
            return
        samples = jnp.shape(problem.weights)[1]
        if self.turns > samples:
            raise ValueError(
                f"turns must be at most the {samples} samples of the largest client, got "
                f"{self.turns}: the other groups would be empty."
            )
        if capacity is None:
            return
        samples = -(-samples // self.turns)

        def has_room(rate: Array | float) -> None:
            if capacity < (least := self.room(samples, float(rate))):
                raise ValueError(
                    f"capacity must be at least {least}: a batch of up to {samples} samples, each "
                    f"with probability {float(rate):g}, has more than {capacity} with a "
                    f"probability above {OVERFLOW:g}."
                )

        checks.check_when_concrete(has_room, self.sampling_rate)

    def init(self, problem: Problem, network: Network) -> FedDPSGDState:
        self.selection.check(problem.clients)
        if self.batch is not None:
            check_size(self.batch, problem)
        return FedDPSGDState(server_start(problem))

    def step(self, state: FedDPSGDState, now: Round) -> FedDPSGDState:
        link = now.link
        step_size = self.step_size(now.number)
        participants = now.choose(self.selection, state.model)
        data = participants.of(now.problem)
        server = link.publish(state.model, participants.here)

        def draw(key: Array, number: Array) -> tuple[Problem, Array]:
            if not data.trains_apart:
                return self._draw_batch(key, data, number)
            key, training_key = jax.random.split(key)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(training_key, participants.numbers)
            batch, share = self._draw_batch(key, data, number)
            network_batch = cast(Model, batch)
            training = now.networks.of(participants)
            assert training is not None
            return network_batch.in_training(training.state, keys), share

        model = link.descend(
            self.local_steps,
            participants,
            jnp.broadcast_to(server, (data.clients, data.dim)),
            draw=draw,
            move=lambda model, gradient: model - step_size * gradient,
        )
        now.networks.trained(participants, None, ())
        arrived = link.collect(
            model, participants.here, server, clients=participants.numbers, step_size=step_size
        )
        return FedDPSGDState(arrived.move(server))

    def _draw_batch(
        self, key: Array, data: Problem, number: Int[Array, " clients"] | int = 0
    ) -> tuple[Problem, Float[Array, " clients"]]:
        """Return a batch of every client for its step of this number, and the largest weight that a
        sample can have in it.
        """
        influence = data.influence
        if self.turns > 1:
            data = _of_group(data, number, self.turns)
            influence = self.turns * influence
        weights = jnp.asarray(data.weights)
        statistics = data.statistics
        if self.batch is None:
            if statistics is not None:  # sums over all samples do not hold for a batch
                statistics = statistics._replace(gram=None, moment=None, pooled=None)
            rate = 1.0 if self.sampling_rate is None else rate_drawn(self.sampling_rate)
            rate = jnp.asarray(rate, data.dtype)
            if self.sampling_rate is not None:
                chosen = bernoulli(key, weights.shape, self.sampling_rate)
                if self.capacity is not None and self.capacity < weights.shape[1]:
                    batch = _gather(data, weights / rate, chosen, self.capacity)
                    return batch, influence / rate
                weights = jnp.where(chosen, weights, 0) / rate
            return replace(data, weights=weights, statistics=statistics), influence / rate
        rate = jnp.minimum(1, self.batch / data.sample_counts().astype(data.dtype))
        rows = uniform_subsets(key, weights > 0, self.batch)
        everyone = jnp.arange(data.clients, dtype=jnp.int32)
        batch = data.take(everyone, rows)
        weights = jnp.take_along_axis(weights, rows, axis=1) / rate[:, None]
        return replace(batch, weights=weights), influence / rate


def _of_group(data: Problem, number: Int[Array, " clients"] | int, groups: int) -> Problem:
    """Return each client's samples of this group, with weights multiplied by the groups' number."""
    everyone = jnp.arange(data.clients, dtype=jnp.int32)[:, None]
    most = -(-jnp.shape(data.weights)[1] // groups)
    first = jnp.broadcast_to(jnp.asarray(number, jnp.int32) % groups, data.clients)
    rows = first[:, None] + groups * jnp.arange(most, dtype=jnp.int32)[None]
    weights = jnp.asarray(data.weights).at[everyone, rows].get(mode="fill", fill_value=0)
    return replace(data.take(everyone[:, 0], rows), weights=groups * weights)


def _gather(
    data: Problem, weights: Float[Array, "clients samples"], chosen: Array, capacity: int
) -> Problem:
    """The chosen samples alone; none of a client's if they exceed the capacity."""
    clients, samples = chosen.shape
    position = jnp.where(chosen, jnp.cumsum(chosen, axis=1, dtype=jnp.int32) - 1, capacity)
    everyone = jnp.arange(clients, dtype=jnp.int32)
    every = jnp.broadcast_to(jnp.arange(samples, dtype=jnp.int32), chosen.shape)
    none = jnp.full((clients, capacity), samples, jnp.int32)
    rows = none.at[everyone[:, None], position].set(every, mode="drop")
    weights = weights.at[everyone[:, None], rows].get(mode="fill", fill_value=0)
    fits = jnp.sum(chosen, axis=1, dtype=jnp.int32, keepdims=True) <= capacity
    return replace(data.take(everyone, rows), weights=jnp.where(fits, weights, 0))
