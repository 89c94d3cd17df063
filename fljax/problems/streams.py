r"""Streaming data: each client receives at most one new sample per round.

A stream takes the place of the problem in a :class:`~fljax.Simulation`. In every round
it gives the algorithm a :class:`~fljax.problems.Problem` with one sample per client, of weight zero
where a client has none, so any algorithm based on a problem's gradients can learn from a stream.
Samples are drawn inside the run and never stored. Rounds are the common time index of all clients.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.linalg import spd_norm
from fljax._core.memory import check_fits
from fljax._core.module import as_given, field, float_array, float_dtype, module, replace, static
from fljax._core.numerics import HIGHEST
from fljax._core.prng import key_of, normal
from fljax.models.architecture import Layout
from fljax.participation.patterns import Always, Pattern
from fljax.problems import LeastSquares, Loss, Problem
from fljax.problems.problem import FeatureMap, check_test

__all__ = [
    "Autoregressive",
    "Drifting",
    "Linear",
    "Replay",
    "Stream",
    "StreamState",
    "autoregressive",
    "classical_target",
    "from_observations",
    "printed_target",
    "samples",
]


class StreamState(NamedTuple):
    """State of a stream between rounds."""

    arrivals: PyTree  # of the pattern of arrivals
    source: PyTree  # of the source of samples


class FeatureMoments(NamedTuple):
    r"""Moments of features :math:`z` with second-moment matrix :math:`R=E[zz^\top]`."""

    largest: Array  # the largest eigenvalue of R, overestimated by a few percent at most
    trace: Array  # of R
    square: Array  # the trace of R^2
    fourth: Array  # E |z|^4
    always: bool = False  # whether every client has a sample and is available in every round

    def step_bound(self, averaged: int = 1) -> Array:
        r"""Return the largest step size :math:`\mu` of least mean squares, the smaller of two.

        One is :math:`1/\lambda_{\max}(R)`, Theorem 4.2 of Gauthier 2024. Its proof has no fourth
        moments, by which Gaussian features, for example, are unstable below it. The other is the
        step at which the mean square of an error of equal variance in all directions neither grows
        nor decreases, if :math:`n` clients' independent steps are averaged,

        .. math::

            \frac{2\,\mathrm{tr}R}
                {\mathrm{tr}R^2+\frac1n\big(E\|z\|^4-\mathrm{tr}R^2\big)},

        which is the exact limit for Gaussian features with a second moment of :math:`\sigma^2I`.

        Args:
          averaged: :math:`n\ge1`.
        """
        growth = self.square + (self.fourth - self.square) / averaged
        is_zero = self.trace == 0  # without features every step is as good
        in_mean_square = 2 * self.trace / jnp.where(is_zero, 1, growth)
        return jnp.where(is_zero, jnp.inf, jnp.minimum(1 / self.largest, in_mean_square))


class Stream:
    """Base class of all streams; subclass it to define your own source.

    Attributes:
      arrivals: which clients get a new sample in a round.
      test: held-out data for ``test_error``: a problem of one client, common to all, or with one
        client each; or ``None``.
      truth: ``[D]``, the true parameter of linear data, relative to which errors are measured, or
        ``None``.
      initial: initial models, ``[D]`` or ``[K, D]``; zero if a stream has no such field.
    """

    arrivals: Pattern
    test: Problem | None
    truth: Array | None
    initial: Array | None = None
    online: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    on_disk: ClassVar[bool] = False
    is_pooled: ClassVar[bool] = False
    trains_apart: ClassVar[bool] = False
    mixes_samples: ClassVar[bool] = False
    state_policy: ClassVar[str | None] = None
    importance: ClassVar[None] = None  # clients count alike

    @property
    @checks.required
    def clients(self) -> int:
        raise NotImplementedError

    @property
    @checks.required
    def dim(self) -> int:
        """Number of parameters of a model."""
        raise NotImplementedError

    @property
    def layout(self) -> Layout:
        """The positions of the parameters in a model's row of numbers, which is the only one."""
        return Layout.of_row(self.dim)

    @property
    def samples(self) -> int:
        """Maximum number of new samples of a client in a round."""
        return 1

    @property
    def dtype(self) -> np.dtype:
        return float_dtype()

    def starting_at(self, models: Float[Array, "*clients dim"]) -> "Stream":
        """The same stream with these initial models instead of zero, as in
        :meth:`Problem.starting_at <fljax.problems.Problem.starting_at>`.

        Raises:
          TypeError, ValueError: no numbers, another shape, NaN or infinite; a stream without a
            field ``initial``.
        """
        if "initial" not in getattr(self, "__dataclass_fields__", ()):
            raise TypeError(
                f"{type(self).__name__} has no place for a start; give it a field "
                "`initial: Any = None`."
            )
        return dataclasses.replace(self, initial=checks.array("models", models))  # pyright: ignore[reportArgumentType]

    def start(self, key: Array) -> PyTree:
        """The source's state before the first round."""
        return ()

    @checks.required
    def draw(
        self, state: PyTree, key: Array, arrived: Bool[Array, " clients"]
    ) -> tuple[PyTree, Problem]:
        """The source's next state and the samples of a round, with weight zero where none
        arrived.
        """
        raise NotImplementedError

    def check(self, rounds: int) -> None:
        """Raise ``ValueError`` unless the arrivals fit a run of this length, and the initial models
        the model's size.
        """
        self.arrivals.check(self.clients, rounds)
        checks.start(self.initial, self.clients, self.dim)

    def usable(self) -> "Stream":
        """The stream itself: privacy budgets for streams clip whole updates, for any
        samples.
        """
        return self

    def prepare(self) -> "Stream":
        """The same stream with the features of the test data computed."""
        if self.test is None:
            return self
        return replace(self, test=self.test.mapped())

    def at(self, round: Array) -> "Stream":
        """The same stream with the held-out data on which models are evaluated in a round."""
        return self

    def moments(self) -> "FeatureMoments | None":
        """The moments of the held-out features, all clients' together, by which step sizes are
        limited; ``None`` without held-out data, and for another loss than the squared error.
        """
        if self.test is None or type(self.test.loss) is not LeastSquares:
            return None
        z = self.test.design
        z = z.reshape(-1, z.shape[2])
        weights = jnp.asarray(self.test.weights).reshape(-1) / self.test.clients
        squares = jnp.sum(z**2, axis=1)
        rows = jnp.sqrt(weights)[:, None] * z
        left, right = (rows.T, rows) if z.shape[1] <= z.shape[0] else (rows, rows.T)
        # [D, D] or [N, N], whichever is smaller: both have the same positive eigenvalues.
        matrix = jnp.matmul(left, right, precision=HIGHEST)
        return FeatureMoments(
            spd_norm(matrix[None])[0],
            jnp.sum(weights * squares),
            jnp.sum(matrix**2),
            jnp.sum(weights * squares**2),
        )

    def begin(self, key: Array) -> StreamState:
        """The state before the first round."""
        arrivals = self.arrivals.begin(key_of(key, "arrivals"), self.clients)
        return StreamState(arrivals, self.start(key_of(key, "stream")))

    def observe(self, state: StreamState, key: Array, round: Array) -> tuple[StreamState, Problem]:
        """The next state and the clients' data in this round."""
        arrivals, arrived = self.arrivals.draw(
            state.arrivals, key_of(key, "arrivals"), round, self.clients
        )
        source, problem = self.draw(state.source, key_of(key, "stream"), arrived)
        return StreamState(arrivals, source), problem


def samples(
    features: Float[Array, "clients inputs"],
    targets: Float[Array, " clients"],
    arrived: Bool[Array, " clients"],
    feature_map: object = None,
) -> Problem:
    """A least-squares problem of one sample per client, with weight zero where none arrived.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> inputs, targets = jnp.ones((2, 3)), jnp.array([1.0, 5.0])
      >>> arrived = jnp.array([True, False])
      >>> jax.jit(fl.streams.samples)(inputs, targets, arrived).weights.tolist()
      [[1.0], [0.0]]
    """
    return Problem(
        features[:, None],
        targets[:, None],
        LeastSquares(),
        strength=0.0,
        weights=arrived.astype(features.dtype)[:, None],
        feature_map=feature_map,
    )


def check_truth(truth: object, dim: int) -> None:
    """Raise unless it is ``None`` or one finite number of each parameter."""
    if truth is None:
        return
    checks.finite("truth", values := checks.filled("truth", truth, axes=1))
    if values.shape != (dim,):
        raise ValueError(
            f"truth must have the {dim} parameters of a model, got shape {values.shape}."
        )


def _held_out(features: Array, targets: Array, feature_map: object) -> Problem:
    return Problem(
        features[None], targets[None], LeastSquares(), strength=0.0, feature_map=feature_map
    )


# Replayed data -----------------------------------------------------------------------------------


@module
class Replay(Stream):
    r"""A finite data set revealed sample by sample, in order at each client.

    Args:
      data: all clients' samples, of any sizes; its feature map, if any, is applied to each sample
        used.
      arrivals: which clients get their next sample; all by default. A client that has used all of
        its samples gets no more; if all clients get one in each round, no run may be longer than
        the largest number of samples of a client.
      test: held-out data: one set common to all clients, or one per client; by default that of
        ``data``.
      truth: as in :class:`Stream`.
      rows: ``[K, T]``, the index of the sample that each client gets in each round, -1 for none,
        instead of the samples in order; no run may be longer. :func:`from_observations` makes it
        from data with time stamps. A client without an arrival misses the sample of that round.

    Raises:
      ValueError: test data with another number of clients or parameters; rows out of range.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.least_squares(jax.random.key(0), clients=2, samples=3, dim=4)
      >>> stream = fl.streams.Replay(data, rows=[[2, -1, 0, 0], [1, 1, 1, -1]])
      >>> run = fl.run(fl.Simulation(stream, fl.algorithms.OnlineFed(0.1)), rounds=4)
      >>> run.messages.values.tolist()  # so far, up and down
      [4, 6, 10, 12]
    """

    data: Problem
    arrivals: Pattern = Always()
    test: Problem | None = None
    truth: Annotated[Array, " dim"] | None = field(converter=as_given, default=None)
    initial: Float[Array, "*clients dim"] | None = None
    rows: Annotated[Array, "clients rounds"] | None = field(converter=as_given, default=None)

    def validate(self) -> None:
        if not self.data.linear:
            raise ValueError(
                "streams are for linear predictions; replay the data of a Problem, and train a "
                "network on all of its data at once."
            )
        checks.start(self.initial, self.clients, self.dim)
        check_truth(self.truth, self.dim)
        if self.rows is not None:
            object.__setattr__(self, "rows", _rows(self.rows, self.data))
        if self.test is None:
            object.__setattr__(self, "test", self.data.test)
        check_test(self.test, self.data.clients, self.data.dim)

    def check(self, rounds: int) -> None:
        super().check(rounds)
        if self.rows is not None:
            if rounds > self.rows.shape[1]:
                raise ValueError(
                    f"the run has {rounds} rounds, but the table of rows has only "
                    f"{self.rows.shape[1]}: no client would observe anything after that. Make the "
                    "run shorter."
                )
        elif isinstance(self.arrivals, Always) and rounds > self.data.samples:
            raise ValueError(
                f"the run has {rounds} rounds, but no client has more than {self.data.samples} "
                "samples to replay, one in each round: no client would observe anything after "
                "that. Make the run shorter, or samples rarer with arrivals=."
            )

    @property
    def clients(self) -> int:
        return self.data.clients

    @property
    def dim(self) -> int:
        return self.data.dim

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    def start(self, key: Array) -> Int[Array, "..."]:
        """The counter of past rounds, or of samples used by each client."""
        return jnp.zeros(() if self.rows is not None else self.clients, jnp.int32)

    def draw(
        self, state: PyTree, key: Array, arrived: Bool[Array, " clients"]
    ) -> tuple[PyTree, Problem]:
        row = state
        after = state + arrived.astype(jnp.int32)
        if self.rows is not None:
            row = jnp.asarray(self.rows)[:, state]
            after = state + 1
            arrived = arrived & (row >= 0)
        row = jnp.where(arrived, row, self.data.samples)  # past the last: no weight
        problem = self.data.take(jnp.arange(self.clients, dtype=jnp.int32), row[:, None])
        return after, problem


def _rows(argument: object, data: Problem) -> Array:
    """The table as an array of integers; raise unless clients have these samples."""
    rows = checks.array("rows", argument)
    if rows.ndim != 2 or rows.shape[0] != data.clients or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(
            f"rows must be whole numbers of shape [{data.clients} clients, rounds], got "
            f"{checks.shown(rows)}."
        )
    if checks.is_concrete(rows) and checks.is_concrete(data.weights):
        table = np.asarray(rows)
        real = np.asarray(data.weights) > 0
        valid = (table >= -1) & (table < data.samples)
        valid &= np.take_along_axis(real, np.clip(table, 0, data.samples - 1), 1) | (table < 0)
        if not valid.all():
            k, n = np.argwhere(~valid)[0]
            raise ValueError(
                f"client {k} has {real[k].sum()} samples, none of which is the {table[k, n]} of "
                f"round {n + 1}; count them from 0, and give -1 where there is none."
            )
    return rows.astype(np.int32)


@checked
def from_observations(
    features: object,
    targets: object,
    loss: Loss = LeastSquares(),  # noqa: B008 (immutable)
    *,
    arrived: object = None,
    feature_map: object = None,
    test: Problem | None = None,
    truth: object = None,
) -> Replay:
    """A stream of each client's observations in each round.

    Args:
      features: ``[K, T, P]``.
      targets: ``[K, T]``; NaN where a client observed nothing.
      loss: loss of a sample.
      arrived: ``[K, T]`` booleans: which clients observed something in which round, if not marked
        by NaN.
      feature_map: map of the features, as in :class:`~fljax.problems.Problem`.
      test: as in :class:`Stream`.
      truth: as in :class:`Stream`.

    Raises:
      ValueError: inconsistent shapes, observed values that are not finite, a client without
        observations.

    Example:
      >>> import numpy as np, fljax as fl
      >>> features = np.ones((2, 3, 1))  # of two clients in three rounds
      >>> targets = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, 7.0]])
      >>> stream = fl.streams.from_observations(features, targets)
      >>> run = fl.run(fl.Simulation(stream, fl.algorithms.OnlineFed(0.5)), rounds=3)
      >>> run.messages.values.tolist()  # so far, up and down, of clients with data
      [2, 4, 8]
    """
    y = checks.array("targets", targets, axes=2)
    x = checks.array("features", features, axes=3)
    if arrived is None:
        real = ~jnp.isnan(y) if isinstance(y, jax.Array) else ~np.isnan(y)
    else:
        real = checks.array("arrived", checks.as_booleans(arrived), axes=2)
    shape = np.shape(y)
    if real.dtype != np.bool_ or real.shape != shape or x.shape[:2] != shape:
        raise ValueError(
            "features, targets and arrived must be [K, T, P], [K, T] and booleans [K, T], got "
            f"{x.shape}, {shape} and {real.shape} of {real.dtype}."
        )
    where = np.where if isinstance(real, np.ndarray) else jnp.where
    counts = real.sum(axis=1, keepdims=True)
    data = Problem(
        where(real[..., None], x, 0),
        where(real, y, 0),
        loss,
        strength=0.0,
        weights=where(real, 1 / counts.clip(1).astype(float_dtype()), 0),
        feature_map=feature_map,
    )
    rows = where(real, np.arange(shape[1], dtype=np.int32), -1)
    return Replay(data, test=test, truth=truth, rows=rows)


# Autoregressive inputs ---------------------------------------------------------------------------


def printed_target(x: Float[Array, "... inputs"]) -> Float[Array, "..."]:
    r""":math:`\sqrt{x_1^2+\sin^2(\pi x_4)}+(0.8-0.5e^{-x_2^2}x_3)`, (4.35) as printed.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> x = jnp.array([2.0, 0.0, 3.0, 0.0])
      >>> round(float(fl.streams.printed_target(x)), 4)  # 2 + (0.8 - 0.5 * 3)
      1.3
    """
    return _first_term(x) + (0.8 - 0.5 * jnp.exp(-(x[..., 1] ** 2)) * x[..., 2])


def classical_target(x: Float[Array, "... inputs"]) -> Float[Array, "..."]:
    r""":math:`\sqrt{x_1^2+\sin^2(\pi x_4)}+(0.8-0.5e^{-x_2^2})x_3`.

    The bracket seems to be misprinted in (4.35): this is the form in which the benchmark is used
    elsewhere.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> x = jnp.array([2.0, 0.0, 1.0, 0.0])
      >>> round(float(fl.streams.classical_target(x)), 4)  # 2 + (0.8 - 0.5) 1
      2.3
    """
    return _first_term(x) + (0.8 - 0.5 * jnp.exp(-(x[..., 1] ** 2))) * x[..., 2]


def _first_term(x: Array) -> Array:
    return jnp.sqrt(x[..., 0] ** 2 + jnp.sin(np.pi * x[..., 3]) ** 2)


@module
class Autoregressive(Stream):
    r"""Nonlinear responses to autoregressive inputs that differ between clients, (4.35).

    .. math::

        x_k(n)=\theta_kx_k(n-1)+\sqrt{1-\theta_k^2}\,u_k(n),\quad
        y_k(n)=f(x_k(n-l_1),\dots,x_k(n-l_L))+\eta_k(n)

    with :math:`u_k\sim N(\mu_k,\sigma_k^2)` and :math:`\eta_k\sim N(0,\nu_k)`. The processes start
    in their stationary distribution, with mean :math:`\mu_k\sqrt{1-\theta_k^2}/(1-\theta_k)` and
    variance :math:`\sigma_k^2`, and advance in every round, whether a sample arrives or not.
    :func:`autoregressive` draws the parameters as the source does.

    Args:
      memory: :math:`\theta_k\in[0,1)`, ``[K]``.
      mean: :math:`\mu_k`, ``[K]``.
      variance: :math:`\sigma_k^2`, ``[K]``.
      noise: :math:`\nu_k`, ``[K]``.
      feature_map: map of the inputs, shared by all; or ``None``.
      arrivals: which clients get a sample; all by default.
      test: held-out data.
      lags: :math:`l_1,\dots,l_L`; (0, 1, 4, 3) as printed, which skips 2 and may mean
        (0, 1, 2, 3).
      target: :math:`f`, of ``[..., L]``.

    Raises:
      ValueError: parameters of other shapes than ``[K]`` or outside their ranges, negative lags.

    Example:
      Two clients, of a short and of a long memory, with four past inputs in a sample:

      >>> import jax.numpy as jnp, fljax as fl
      >>> zero, memory = jnp.zeros(2), jnp.array([0.2, 0.9])
      >>> stream = fl.streams.Autoregressive(memory, mean=zero, variance=jnp.ones(2), noise=zero)
      >>> stream.clients, stream.dim
      (2, 4)

    Reference:
      Gauthier 2024, (4.35).
    """

    memory: Annotated[Array, " clients"] = field(converter=as_given)
    mean: Annotated[Array, " clients"] = field(converter=as_given)
    variance: Annotated[Array, " clients"] = field(converter=as_given)
    noise: Annotated[Array, " clients"] = field(converter=as_given)
    feature_map: Annotated[FeatureMap, "checked"] | None = field(converter=as_given, default=None)
    arrivals: Pattern = Always()
    test: Problem | None = None
    truth: Annotated[Array, " dim"] | None = field(converter=as_given, default=None)
    lags: tuple[int, ...] = static(default=(0, 1, 4, 3))
    target: Callable[[Array], Array] = static(default=printed_target)
    initial: Float[Array, "*clients dim"] | None = None

    def validate(self) -> None:
        for name in ("memory", "mean", "variance", "noise"):
            value = float_array(name, getattr(self, name))
            object.__setattr__(self, name, value)
            if np.ndim(value) != 1 or np.shape(value) != np.shape(self.memory):
                raise ValueError(
                    f"{name} must have one entry a client, like memory, got shape "
                    f"{np.shape(value)} beside {np.shape(self.memory)}."
                )
        checks.feature_map(self.feature_map)
        check_truth(self.truth, self.dim)
        checks.finite("mean", self.mean)
        checks.interval("memory", self.memory, at_least=0, below=1)
        checks.nonnegative("variance", self.variance)
        checks.nonnegative("noise", self.noise)
        object.__setattr__(self, "lags", tuple(int(lag) for lag in self.lags))
        if not self.lags or min(self.lags) < 0:
            raise ValueError(f"lags must be rounds >= 0, at least one, got {self.lags}.")
        checks.start(self.initial, self.clients, self.dim)
        check_test(self.test, self.clients, self.dim)

    @property
    def clients(self) -> int:
        return self.memory.shape[0]

    @property
    def dim(self) -> int:
        return len(self.lags) if self.feature_map is None else self.feature_map.dim

    def start(self, key: Array) -> Float[Array, "clients recent"]:
        """The last inputs of each client, newest first, in their stationary distribution."""
        return self._history(key, jnp.arange(self.clients, dtype=jnp.int32))

    def _history(self, key: Array, clients: Int[Array, " some"]) -> Float[Array, "some recent"]:
        theta, mean, deviation = (
            jnp.asarray(a)[clients] for a in (self.memory, self.mean, jnp.sqrt(self.variance))
        )
        draws = normal(key, (max(self.lags) + 1, clients.shape[0]), self.dtype)
        gain = jnp.sqrt(1 - theta**2)

        def move(x: Array, draw: Array) -> tuple[Array, Array]:
            x = theta * x + gain * (mean + deviation * draw)
            return x, x

        oldest = mean * gain / (1 - theta) + deviation * draws[0]
        _, later = jax.lax.scan(move, oldest, draws[1:])
        return jnp.concatenate([oldest[None], later])[::-1].T

    def draw(
        self, state: PyTree, key: Array, arrived: Bool[Array, " clients"]
    ) -> tuple[PyTree, Problem]:
        draws = normal(key, (2, self.clients), self.dtype)
        innovation = self.mean + jnp.sqrt(self.variance) * draws[0]
        newest = self.memory * state[:, 0] + jnp.sqrt(1 - self.memory**2) * innovation
        state = jnp.concatenate([newest[:, None], state[:, :-1]], axis=1)
        x = state[:, np.asarray(self.lags)]
        y = self._targets(x) + jnp.sqrt(self.noise) * draws[1]
        return state, samples(x, y, arrived, self.feature_map)

    def _targets(self, x: Float[Array, "some lags"]) -> Float[Array, " some"]:
        """One number of each row: any other shape would be broadcast against the noise."""
        return checks.returned("target", self.target(x), x.shape[:-1])

    def held_out(self, key: Array, count: int, noisy: bool = True) -> Problem:
        """``count`` samples of the clients' mixture: each of a uniformly drawn client, from its own
        trajectory.
        """
        k_client, k_inputs, k_noise = jax.random.split(key, 3)
        client = jax.random.randint(k_client, (count,), 0, self.clients, jnp.int32)
        x = self._history(k_inputs, client)[:, np.asarray(self.lags)]
        y = self._targets(x)
        if noisy:
            noise = jnp.sqrt(jnp.asarray(self.noise))[client]
            y = y + noise * normal(k_noise, (count,), self.dtype)
        return _held_out(x, y, self.feature_map)


@checked
def autoregressive(
    key: Key[Array, ""],
    clients: int,
    feature_map: object = None,
    arrivals: Pattern = Always(),  # noqa: B008 (immutable)
    *,
    test_samples: int = 1000,
    noisy_test: bool = True,
    lags: tuple[int, ...] = (0, 1, 4, 3),
    target: Callable[[Array], Array] = printed_target,
) -> Autoregressive:
    r"""The synthetic stream of Gauthier 2024, section 4.4.1, with parameters drawn once per client.

    :math:`\theta_k\sim U(0.2,0.9)`, :math:`\mu_k\sim U(-0.2,0.2)`,
    :math:`\sigma_k^2\sim U(0.2,1.2)`, :math:`\nu_k\sim U(0.005,0.03)`. The test set is not
    specified there: it is drawn from the clients' mixture.

    Args:
      key: consumed.
      clients: ``K``.
      feature_map: as in :class:`Autoregressive`.
      arrivals: as in :class:`Autoregressive`.
      test_samples: size of the test set, >= 1.
      noisy_test: whether its responses include the clients' noise.
      lags: as in :class:`Autoregressive`.
      target: as in :class:`Autoregressive`.

    Raises:
      ValueError: sizes below one.

    Example:
      >>> import jax, fljax as fl
      >>> key, k_map = jax.random.split(jax.random.key(0))
      >>> features = fl.data.random_fourier(k_map, inputs=4, features=20)
      >>> stream = fl.streams.autoregressive(key, clients=5, feature_map=features)
      >>> simulation = fl.Simulation(stream, fl.algorithms.OnlineFed(0.3), metrics=["test_error"])
      >>> error = fl.run(simulation, rounds=100).test_error
      >>> bool(error[-1] < error[0])
      True
    """
    checks.count("clients", clients)
    checks.count("test_samples", test_samples)
    width = len(lags) if feature_map is None else getattr(feature_map, "dim", 0)
    check_fits(
        f"a stream of {clients} clients and {test_samples} test samples x {width} features",
        clients + test_samples,
        width,
        entry_bytes=float_dtype().itemsize,
        mend="take fewer of them",
    )
    keys = jax.random.split(key, 5)
    ranges = ((0.2, 0.9), (-0.2, 0.2), (0.2, 1.2), (0.005, 0.03))
    theta, mean, variance, noise = (
        jax.random.uniform(k, (clients,), float_dtype(), low, high)
        for k, (low, high) in zip(keys[:4], ranges, strict=True)
    )
    with checks.trusted():
        stream = Autoregressive(
            theta, mean, variance, noise, feature_map, arrivals, lags=lags, target=target
        )
        return replace(stream, test=stream.held_out(keys[4], test_samples, noisy_test))


@module
class Linear(Stream):
    r"""Independent Gaussian inputs and linear responses: the data of the analysis (4.18).

    :math:`z_k\sim N(0,R_k)`, :math:`y_k=z_k^\top w^\star+\eta_k`, :math:`\eta_k\sim N(0,\nu_k)`.

    Args:
      roots: ``[K, D, D]``, matrices :math:`L_k` with :math:`R_k=L_kL_k^\top`.
      truth: :math:`w^\star`, ``[D]``.
      noise: :math:`\nu_k`, ``[K]``.
      arrivals: which clients get a sample; all by default.

    Raises:
      ValueError: inconsistent shapes.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> roots = jnp.tile(jnp.eye(2), (3, 1, 1))  # three clients of white inputs
      >>> stream = fl.streams.Linear(roots, truth=jnp.array([1.0, -1.0]), noise=jnp.full(3, 0.01))
      >>> simulation = fl.Simulation(stream, fl.algorithms.OnlineFed(0.1))
      >>> model = fl.run(simulation, rounds=200)["model"].values
      >>> bool(abs(model - [1.0, -1.0]).max() < 0.1)
      True
    """

    roots: Annotated[Array, "clients dim dim"] = field(converter=as_given)
    truth: Annotated[Array, " dim"] = field(converter=as_given)
    noise: Annotated[Array, " clients"] = field(converter=as_given)
    arrivals: Pattern = Always()
    test: Problem | None = None
    initial: Float[Array, "*clients dim"] | None = None

    def validate(self) -> None:
        for name in ("roots", "truth", "noise"):
            value = float_array(name, getattr(self, name))
            object.__setattr__(self, name, value)
            checks.finite(name, value)
        checks.nonnegative("noise", self.noise)
        shape = np.shape(self.roots)
        if (
            len(shape) != 3
            or shape[1:] != 2 * np.shape(self.truth)
            or np.shape(self.noise) != (shape[0],)
        ):
            raise ValueError(
                "roots, truth and noise must be [K, D, D], [D] and [K], got "
                f"{shape}, {np.shape(self.truth)} and {np.shape(self.noise)}."
            )
        checks.start(self.initial, self.clients, self.dim)
        check_test(self.test, self.clients, self.dim)

    @property
    def clients(self) -> int:
        return self.roots.shape[0]

    @property
    def dim(self) -> int:
        return self.roots.shape[2]

    def draw(
        self, state: PyTree, key: Array, arrived: Bool[Array, " clients"]
    ) -> tuple[PyTree, Problem]:
        k_inputs, k_noise = jax.random.split(key)
        white = normal(k_inputs, (self.clients, self.dim), self.dtype)
        z = jnp.einsum("kde,ke->kd", self.roots, white, precision=HIGHEST)
        noise = normal(k_noise, (self.clients,), self.dtype)
        y = jnp.sum(z * jnp.asarray(self.truth)[None], axis=1) + jnp.sqrt(self.noise) * noise
        return state, samples(z, y, arrived)


# Data that drift ---------------------------------------------------------------------------------


@module
class Drifting(Stream):
    r"""A stream whose distribution changes during the run, at some clients from a given round on.

    With :math:`s_k(n)=0` before the round :math:`n_k` of client :math:`k`, rising from there to 1
    within :math:`d` rounds, all of its samples are changed by

    .. math:: x\leftarrow x+s_k(n)\delta_k,\qquad y\leftarrow y+s_k(n)x^\top\Delta_k

    A drift of the features alone (as when a sensor is moved) leaves the labels as measured; a drift
    of the labels changes their dependence on the features, evaluated at the new features if both
    drift. Held-out data drift in the same way, so ``validation_error`` and ``test_error`` refer to
    the current round.

    Args:
      stream: the stream without the drift.
      onset: :math:`n_k\ge1`, the first round with a drift, and 0 for a client without drift; one
        number, or one per client.
      features: :math:`\delta_k`, ``[P]`` or ``[K, P]``, in the stream's inputs (before a feature
        map); none by default.
      labels: :math:`\Delta_k`, ``[P]`` or ``[K, P]``; none by default.
      duration: :math:`d`, the number of rounds until the drift is complete; the default 1 is an
        abrupt drift.

    Raises:
      ValueError: neither features nor labels, shapes that do not fit the inputs, an onset that is
        not a round, a duration below one, labels that are classes; before a run, an onset after its
        last round.

    Reference:
      Jung 2025, section 8.1: continuous monitoring.

    Example:
      >>> import jax, numpy as np, fljax as fl
      >>> data = fl.problems.least_squares(jax.random.key(0), clients=2, samples=60, dim=3)
      >>> stream = fl.streams.Drifting(
      ...     fl.streams.Replay(data, test=data), onset=[0, 31], labels=np.ones(3)
      ... )
      >>> simulation = fl.Simulation(
      ...     stream, fl.algorithms.OnlineFed(0.1), metrics=["validation_error"]
      ... )
      >>> error = fl.run(simulation, rounds=60).validation_error
      >>> bool(error[30, 1] > 5 * error[29, 1]), bool(error[30, 1] > 5 * error[30, 0])
      (True, True)
    """

    stream: Stream
    onset: Annotated[Array, "*clients"] = field(converter=as_given)
    features: Annotated[Array, "*clients inputs"] | None = field(converter=as_given, default=None)
    labels: Annotated[Array, "*clients inputs"] | None = field(converter=as_given, default=None)
    duration: Float[Array, ""] | float = 1.0

    def validate(self) -> None:
        checks.kind("stream", self.stream, Stream)
        if self.features is None and self.labels is None:
            raise ValueError("nothing drifts; give features=, labels=, or both.")
        onset = checks.array("onset", self.onset)
        checks.per_client("onset", onset, self.clients)
        checks.interval("onset", onset, at_least=0, hint="It is a round, 0 where none drifts.")
        checks.check_when_concrete(_check_whole_rounds, onset)
        object.__setattr__(self, "onset", onset)
        checks.interval("duration", self.duration, at_least=1, hint="It is a number of rounds.")
        first = jax.eval_shape(self._first)
        loss = first.loss
        shape = first.features.shape
        for name in ("features", "labels"):
            change = getattr(self, name)
            if change is None:
                continue
            change = checks.array(name, change)
            if np.shape(change) not in (shape[2:], (shape[0], *shape[2:])):
                raise ValueError(
                    f"{name} must be a change of the {shape[2:]} inputs, or of each of the "
                    f"{shape[0]} clients', got shape {np.shape(change)}."
                )
            checks.finite(name, change)
            object.__setattr__(self, name, change)
        if self.labels is not None and type(loss).check_targets is not Loss.check_targets:
            raise ValueError(
                f"labels drift by real amounts, but the labels of {type(loss).__name__} are "
                "classes; let features drift."
            )

    def _first(self) -> Problem:
        """The samples of one round, for their shapes."""
        key = jax.random.key(0, impl="threefry2x32")
        return self.stream.observe(self.stream.begin(key), key, jnp.int32(1))[1]

    def check(self, rounds: int) -> None:
        self.stream.check(rounds)

        def before_the_end(onset: Array) -> None:
            if np.max(onset) > rounds:
                client = int(np.argmax(np.broadcast_to(onset, self.clients)))
                raise ValueError(
                    f"client {client} drifts from round {np.max(onset):g} on, but the run has only "
                    f"{rounds}; make it longer, or the onset earlier."
                )

        checks.check_when_concrete(before_the_end, self.onset)

    @property
    def clients(self) -> int:
        return self.stream.clients

    @property
    def dim(self) -> int:
        return self.stream.dim

    @property
    def samples(self) -> int:
        return self.stream.samples

    @property
    def dtype(self) -> np.dtype:
        return self.stream.dtype

    @property
    def arrivals(self) -> Pattern:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.stream.arrivals

    @property
    def test(self) -> Problem | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.stream.test

    @property
    def truth(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """``None``: it drifts."""

    @property
    def initial(self) -> Array | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.stream.initial

    def starting_at(self, models: Float[Array, "*clients dim"]) -> "Drifting":
        return replace(self, stream=self.stream.starting_at(models))

    def prepare(self) -> "Drifting":
        """The stream itself: features are mapped after they have drifted."""
        return self

    def start(self, key: Array) -> PyTree:
        return self.stream.start(key)

    def draw(
        self, state: PyTree, key: Array, arrived: Bool[Array, " clients"]
    ) -> tuple[PyTree, Problem]:
        return self.stream.draw(state, key, arrived)

    def observe(self, state: StreamState, key: Array, round: Array) -> tuple[StreamState, Problem]:
        state, problem = self.stream.observe(state, key, round)
        return state, self._with_drift(problem, round)

    def at(self, round: Array) -> "Drifting":
        test = self.test
        if test is None:
            return self
        rows = jnp.zeros(self.clients, jnp.int32)
        test = self._with_drift(test if test.clients > 1 else test.take(rows), round)
        return replace(self, stream=replace(self.stream, test=test))

    def progress(self, round: Array) -> Float[Array, " clients"]:
        """:math:`s_k(n)`, the fraction of its drift that each client has completed, in [0, 1]."""
        onset = jnp.broadcast_to(jnp.asarray(self.onset, self.dtype), (self.clients,))
        share = (jnp.asarray(round, self.dtype) - onset + 1) / self.duration
        return jnp.where(onset > 0, jnp.clip(share, 0, 1), 0)

    def _with_drift(self, problem: Problem, round: Array) -> Problem:
        features = problem.features
        targets = problem.targets
        if self.features is not None:
            features = features + self._change(self.features, round)[:, None]
        if self.labels is not None:
            change = self._change(self.labels, round)
            targets = targets + jnp.einsum("knp,kp->kn", features, change, precision=HIGHEST)
        return replace(problem, features=features, targets=targets, statistics=None)

    def _change(self, change: Array, round: Array) -> Float[Array, "clients inputs"]:
        """The change of the data in a round."""
        change = jnp.asarray(change, self.dtype)
        per_client = jnp.broadcast_to(change, (self.clients, change.shape[-1]))
        return self.progress(round)[:, None] * per_client


def _check_whole_rounds(onset: object) -> None:
    wrong = np.asarray(onset) % 1 != 0
    if wrong.any():
        raise ValueError(f"onset must be whole rounds, got {np.asarray(onset)[wrong].flat[0]:g}.")
