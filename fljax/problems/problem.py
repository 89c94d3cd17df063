r"""The stacked local problem of all clients: ragged data, a loss and a regularizer.

Client :math:`k` minimizes (Gauthier 2024, (3.5))

.. math:: f_k(w)=\frac1{D_k}\sum_{j=1}^{D_k}\ell(x_{k,j},y_{k,j};w)+\frac\lambda K R(w),

and the network the sum over clients. Shapes: ``K`` clients, ``N`` samples (padded to the largest
client), ``P`` features, ``D`` parameters (``D = P`` times the loss's outputs).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.clipped_sums import clipped_sum, pieces_of, split_by_sizes
from fljax._core.devices import on_cpu
from fljax._core.gradient_counts import evaluated
from fljax._core.linalg import directed, norm, norm_of_sum
from fljax._core.module import as_given, as_leaf, field, float_dtype, module, replace
from fljax._core.numerics import HIGHEST, with_trailing_axes
from fljax._core.random_subsets import shuffled
from fljax.models.architecture import Layout
from fljax.problems.objectives import (
    Huber,
    LeastSquares,
    Logistic,
    Loss,
    NoRegularizer,
    Regularizer,
    Softmax,
)
from fljax.problems.pool import PooledRows, dense, over_tiles
from fljax.problems.tasks import Tasks

#: Up to this many features, predictions are written out as a sum over features, which XLA fuses
#: with the loss; a batch of matrix-vector products this small measured three times slower on CPU.
FEW_FEATURES = 16

#: Working set of the clients that descend side by side on a CPU: beyond it, one group after
#: the other was a seventh faster.
CACHE_BYTES = 2**19


#: Largest number of samples in one sum of clipped gradients, see :meth:`Problem.gradient_rounding`.
BLOCK = 64

#: The ``(features, targets)`` of each client, of any kind that makes arrays.
ClientData: TypeAlias = Sequence[tuple[object, object]]

#: Held-out data: those of each client, or one ``(features, targets)`` for all.
HeldOutData: TypeAlias = ClientData | tuple[object, object]


class FeatureMap(Protocol):
    """A function of features, ``[..., P]`` to ``[..., dim]``."""

    @property
    def dim(self) -> int: ...
    def __call__(self, features: Array, /) -> Array: ...


class Reading(NamedTuple):
    """Some samples of one client, and what any model says of them.

    Losses of one's own read them (:meth:`Problem.gradient_of`). A model is a row ``[D]``, of this
    client or of another.

    Attributes:
      problem: the problem of the samples.
      features: ``[N, ...]``, mapped.
      targets: ``[N, ...]``.
      context: the network's state and random key.
    """

    problem: "Problem"
    features: Array
    targets: Array
    context: PyTree = None

    def predictions(self, row: Float[Array, " dim"]) -> Array:
        """``[N, ...]``; logits, ``[N, classes]``, of a classifier."""
        return self.problem._outputs(row, self.features, self.context)

    def representation(self, row: Float[Array, " dim"]) -> Float[Array, "samples width"]:
        """``[N, R]``, the input of the model's head; the features of a linear prediction."""
        return self.problem._representation(row, self.features, self.context)

    def head(self, row: Float[Array, " dim"], representation: Array) -> Array:
        """Predictions from representations of these or any other samples."""
        return self.problem.head(row, representation, self.context)

    def of_network(self, number: Array) -> "Reading":
        """The same samples, read by another of the problem's networks."""
        return self._replace(context=self.context._replace(network=number))

    def losses(self, predictions: Array) -> Float[Array, " samples"]:
        """The problem's loss of each sample, of these predictions."""
        return self.problem._values(value_of, predictions, self.targets)


class Statistics(NamedTuple):
    """Statistics of the data that a run needs repeatedly, computed once."""

    gram: Array | None  # [K, P, P]  2 sum_j weight_j x_j x_j', quadratic loss with N > P only
    moment: Any  # [K, P]   2 sum_j weight_j x_j y_j, for the same
    norms: Array  # [K, N]  Euclidean norm of each sample's features
    columns: Array | None  # [K, P, N]  the features, sample by sample contiguous, if few
    pooled: "Problem | None"  # all data at one client, with statistics of its own


def _check_totals(totals: Array | np.ndarray, importance: Array | None = None) -> None:
    """Raise ``ValueError`` unless the weights of each client sum to one, or to its importance."""
    totals = np.asarray(totals)
    if importance is not None:
        if not np.allclose(totals, importance, atol=1e-4):
            raise ValueError(
                "weights must sum to each client's importance where there is one; make the problem "
                "without it, and let problem.weighing(importance) scale its weights."
            )
        return
    if np.any(totals == 0):
        raise ValueError(
            f"client {int(np.argmin(totals))} has no samples; give every client at "
            "least one sample or leave the client out. (One without labels has samples, and "
            "importance zero: problem.weighing.)"
        )
    if not np.allclose(totals, 1, atol=1e-4):
        raise ValueError(
            "weights must sum to one over each client's samples (1/D_k on each), got "
            f"sums from {totals.min():g} to {totals.max():g}."
        )


def _check_functions(
    loss: Loss, regularizer: Regularizer, shape: tuple[int, ...], dim: int
) -> None:
    """Raise ``ValueError`` for a user's loss or regularizer with values of other shapes than
    their arguments, which would be broadcast.
    """
    outputs = (loss.outputs,) if loss.outputs > 1 else ()
    prediction, target, rows = (
        jax.ShapeDtypeStruct(dims, float_dtype())
        for dims in ((*shape, *outputs), shape, (shape[0], dim))
    )
    # Those of a loss of plain functions are the user's own, whoever calls them.
    for name, function in getattr(loss, "functions", {}).items():
        try:
            found = jax.eval_shape(function, prediction, target)
        except Exception as error:
            first = str(error).partition("\n")[0]
            raise TypeError(
                f"the {name} has no value for arrays of shape {target.shape}, predictions and "
                f"targets: {first}"
            ) from error
        checks.returned(f"the {name}", found, target.shape)
    for part, name, arguments, wanted in (
        (loss, "value", (prediction, target), target.shape),
        (loss, "derivative", (prediction, target), prediction.shape),
        (regularizer, "value", (rows,), rows.shape[:1]),
        (regularizer, "gradient", (rows,), rows.shape),
    ):
        function = getattr(type(part), name, None)
        if function is None or (getattr(function, "__module__", None) or "").startswith("fljax."):
            continue
        try:
            result = jax.eval_shape(getattr(part, name), *arguments)
        except Exception:  # a method that is never called may raise anything
            continue
        if jnp.shape(result) != wanted:
            shapes = " and ".join(str(dims.shape) for dims in arguments)
            result = f"shape {result.shape}" if hasattr(result, "shape") else checks.shown(result)
            raise ValueError(
                f"{type(part).__name__}.{name} must return an array of shape {wanted} for arrays "
                f"of shape {shapes}, got {result}."
            )


def value_of(loss: Loss, prediction: Array, target: Array) -> Array:
    """The loss as a score."""
    return loss.value(prediction, target)


def as_floats(value: object) -> Any:
    """Convert an array to floats."""
    if isinstance(value, np.ndarray) or (
        isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jnp.floating)
    ):
        return value.astype(float_dtype())
    return value


@module
class Problem:
    r"""All clients' data as one stack, with the objective they share.

    Args:
      features: ``[K, N, P]``; rows past a client's own samples are padding.
      targets: ``[K, N]``.
      loss: a :class:`~fljax.problems.objectives.Loss`.
      regularizer: :math:`R`; none by default.
      strength: :math:`\lambda\ge0`, shared as :math:`\lambda/K` per client; or ``[K]``, each
        client's own factor of :math:`R` instead of :math:`\lambda/K`.
      weights: ``[K, N]`` non-negative sample weights that sum to one in each row (``1/D_k`` on
        real samples, 0 on padding); by default every sample is real.
      clip: if given, every *per-sample* loss gradient is scaled down to at most this Euclidean
        norm before it is averaged. This makes a bounded-gradient assumption true.
      feature_bound: a public bound :math:`R` of the norm of every sample's features (the values of
        the ``feature_map`` if there is one), for all data sets that a privacy guarantee is to
        cover. With a loss of bounded slope it bounds every per-sample gradient, and the step sizes
        of iterative minimizers depend on it alone (:mod:`fljax.problems.solvers`). Data known at
        construction must satisfy it; data drawn inside a run are scaled down to it where they
        exceed it.
      statistics: filled by :meth:`prepare`.
      feature_map: applied to the features, ``[..., P]`` to ``[..., F]``, for instance
        :class:`fljax.data.RandomFourier`; a model then has ``F`` parameters in place of ``P``.
      tasks: the clusters of clients with a task in common, for personalized learning; by default
        all clients have the same.
      initial: initial models, ``[D]`` for all clients or ``[K, D]``; see :meth:`starting_at`.
      test: held-out data on which models are evaluated (the metrics ``test_error`` and
        ``accuracy``): a problem of ``K`` clients, each with its own data, or of one client, with
        common data. Its loss may differ. Made by :meth:`with_test` and :meth:`split`.
      importance: ``[K]``, >= 0, the factor of each client's mean loss, to which the client's sample
        weights then sum; see :meth:`weighing`. One by default.

    Raises:
      ValueError: mismatched shapes, NaN or infinite data, labels that are invalid for the loss, a
        client without samples, a negative strength or importance, importances that are all zero, a
        clip or feature bound that is not positive, features beyond their bound, held-out data with
        another number of clients or parameters, or given twice (here and in ``tasks``).

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> features = jnp.array([[[1.0], [2.0]], [[1.0], [0.0]]])  # of two clients
      >>> targets = jnp.array([[1.0, 2.0], [3.0, 0.0]])
      >>> weights = jnp.array([[0.5, 0.5], [1.0, 0.0]])  # the second has one sample only
      >>> loss = fl.problems.LeastSquares()
      >>> problem = fl.problems.Problem(features, targets, loss, weights=weights)
      >>> problem.gradient(jnp.zeros((2, 1))).tolist()
      [[-5.0], [-6.0]]
    """

    # `validate` converts them, with an error text for each kind of data.
    features: Annotated[Array, "clients samples features"] = field(converter=as_given)
    targets: Annotated[Array, "clients samples"] = field(converter=as_given)
    loss: Loss
    regularizer: Regularizer = NoRegularizer()
    strength: Float[Array, "*clients"] | float = 1.0
    weights: Annotated[Array, "clients samples"] = field(converter=as_given, default=None)
    clip: Float[Array, ""] | float | None = None
    statistics: Statistics | None = None
    feature_map: Annotated[FeatureMap, "checked"] | None = field(converter=as_given, default=None)
    tasks: Tasks | None = None
    feature_bound: Float[Array, ""] | float | None = None
    initial: Float[Array, "*clients dim"] | None = None
    test: Annotated["Problem", "K rows, or one"] | None = field(converter=as_given, default=None)
    importance: Annotated[Array, " clients"] | None = field(converter=as_given, default=None)

    def validate(self) -> None:
        """Validate all fields, and convert data to arrays of the right types."""
        checks.registered("loss", self.loss)
        checks.registered("regularizer", self.regularizer)
        for name in ("features", "targets", "weights", "strength"):
            value = getattr(self, name)
            if isinstance(value, PooledRows):  # checked when it was made
                continue
            if name != "weights" or value is not None:
                value = checks.array(name, value)
                if name == "targets":
                    value = self._targets(value)
                before = value
                value = value if name in self._integer_data() else as_floats(value)
                if name == "strength":
                    checks.representable(name, before, value)
            object.__setattr__(self, name, value)
        shape = self.features.shape
        self._check_shapes(shape)
        if self.weights is not None:
            if jnp.shape(self.weights) != shape[:2]:
                raise ValueError(
                    f"weights must have shape {shape[:2]} to match features {shape}, got "
                    f"{jnp.shape(self.weights)}."
                )
            checks.nonnegative("weights", self.weights)
        if self.importance is not None:
            object.__setattr__(self, "importance", _importance(self.importance, shape[0]))
        if self.weights is not None:
            self._check_weights()
        checks.finite("features", self.features)
        checks.finite("targets", self.targets)
        checks.strength(self.strength, shape[0])
        checks.feature_map(self.feature_map)
        checks.start(self.initial, self.clients, self.dim)
        if self.tasks is not None:
            self._check_tasks(self.tasks)
        check_test(self.test, self.clients, self.dim)
        if self.test is not None and self.tasks is not None and self.tasks.test is not None:
            raise ValueError(
                "held-out data are given twice, as test= and as test= of the tasks; leave one out."
            )
        if self.clip is not None:
            checks.positive("clip", self.clip)
        if self.feature_bound is not None:
            checks.positive("feature_bound", self.feature_bound)
            self._check_features(self.feature_bound)
        if self.weights is None:
            share = np.full(shape[:2], 1 / shape[1], self.dtype)
            if self.importance is not None:
                share = share * self.importance[:, None]
            object.__setattr__(self, "weights", share)
        if self.linear:
            _check_functions(self.loss, self.regularizer, shape[:2], self.dim)
        if type(self.loss).check_targets is not Loss.check_targets:
            checks.check_when_concrete(self._check_targets, self.targets, self.weights)

    def _targets(self, targets: Array) -> Array | np.ndarray:
        """One target per sample, where each client's targets are a column; labels for boolean
        targets.
        """
        if np.ndim(targets) == 3 and np.shape(targets)[2] == 1 and self.features.ndim == 3:
            targets = targets[:, :, 0]
        return self.loss.labels(targets) if targets.dtype == np.bool_ else targets

    def _integer_data(self) -> tuple[str, ...]:
        """The names of data that may be whole numbers."""
        return ()

    def _check_shapes(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3 or 0 in shape:
            raise ValueError(
                f"features must be [clients, samples, features] with no empty axis, got shape "
                f"{shape}. Clients of different sizes: use fljax.problems.from_clients."
            )
        if jnp.shape(self.targets) != shape[:2]:
            raise ValueError(
                f"targets must have one entry a sample, shape {shape[:2]} to match features "
                f"{shape}, got {jnp.shape(self.targets)}."
            )

    def _check_weights(self) -> None:
        totals = self.weights.sum(1)
        if self.importance is None:
            checks.check_when_concrete(_check_totals, totals)
        else:
            checks.check_when_concrete(_check_totals, totals, self.importance)

    def _check_targets(self, targets: object, weights: object) -> None:
        self.loss.check_targets(np.asarray(targets)[np.asarray(weights) > 0])

    def _check_features(self, bound: Array | float) -> None:
        samples = self.pooled_features.pool if self.is_pooled else self.features
        if not (checks.is_concrete(samples) and checks.is_concrete(bound)):
            return
        if self.feature_map is None:
            largest = float(np.max(np.linalg.norm(np.asarray(samples, np.float64), axis=-1)))
            if largest > float(bound) * (1 + 1e-6):
                raise ValueError(
                    f"feature_bound must bound every sample's norm, got {float(bound):g} and a "
                    f"sample of norm {largest:g}. Scale the features by a public factor, or "
                    "declare a larger bound."
                )

    def _check_tasks(self, tasks: Tasks) -> None:
        if len(tasks.cluster) != self.clients:
            raise ValueError(
                f"tasks are for {len(tasks.cluster)} clients, but the data have {self.clients}."
            )
        if tasks.truth is not None and tasks.truth.shape[1] != self.dim:
            raise ValueError(
                f"truth must have the {self.dim} parameters of a model, got {tasks.truth.shape[1]}."
            )

    @property
    def judged(self) -> "Problem":
        """The problem of the clients whose models and data metrics read, here all."""
        return self

    @property
    def network_masks(self) -> Bool[np.ndarray, "networks dim"]:
        """Which numbers of a model each of the clients' networks has; a single one by default."""
        return np.ones((1, self.dim), bool)

    @property
    def network_numbers(self) -> Int[Array, " clients"]:
        """The number of each client's network."""
        return jnp.zeros(self.clients, jnp.int32)

    @property
    def state_policy(self) -> str | None:
        """The policy of the network's state; ``None`` without a state."""
        return None

    @property
    def trains_apart(self) -> bool:
        """Whether a step of training is of other predictions than evaluation."""
        return False

    @property
    def predicts_alike(self) -> bool:
        """Whether a model has the same predictions at every client."""
        return True

    @property
    def mixes_samples(self) -> bool:
        """Whether predictions in training depend on the other samples of a batch."""
        return False

    @property
    def is_random(self) -> bool:
        """Whether predictions draw random numbers in training."""
        return False

    @property
    def is_pooled(self) -> bool:
        """Whether samples are rows of a pool that all clients share."""
        return isinstance(self.features, PooledRows)

    @property
    def is_uneven(self) -> bool:
        """Whether clients on a pool may have very different numbers of samples."""
        return self.is_pooled and self.pooled_features.tile < self.samples

    @property
    def pooled_features(self) -> PooledRows:
        """The features of a problem on a pool."""
        return cast(PooledRows, self.features)

    @property
    def clients(self) -> int:
        return self.features.shape[0]

    @property
    def samples(self) -> int:
        return self.features.shape[1]

    @property
    def dim(self) -> int:
        """The number of parameters ``D`` of one client's model."""
        width = self.features.shape[2] if self.feature_map is None else self.feature_map.dim
        return width * self.loss.outputs

    @property
    def layout(self) -> Layout:
        """The positions of the parameters in a model's row of numbers; of a model without a
        network the row is the only parameter.
        """
        return Layout.of_row(self.dim)

    @property
    def pieces(self) -> tuple[int, ...]:
        """The numbers of parameters in each of the pieces that a model's row is joined of."""
        return self.layout.sizes

    def together(self, samples: int) -> int:
        """Number of clients whose gradient steps are best computed side by side for this number of
        samples: on a CPU as many as fit in the cache, otherwise all.
        """
        if not on_cpu():
            return self.clients
        numbers = samples * self.features.shape[2] + 3 * self.dim  # samples, model and gradient
        return max(1, CACHE_BYTES // (numbers * self.dtype.itemsize))

    def coordinates(self, chosen: object) -> np.ndarray:
        """The mask of the chosen parameters of a model, ``[D]`` booleans.

        Args:
          chosen: a mask, ``[D]`` booleans, or indices.

        Raises:
          TypeError: neither.
          ValueError: a mask of another size, an index out of range.

        Example:
          >>> import jax, fljax as fl
          >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=3)
          >>> problem.coordinates([0, 2]).tolist()
          [True, False, True]
        """
        if isinstance(chosen, str):
            raise TypeError(
                f"parameters of a linear prediction have no names, got {chosen!r}; give their "
                "indices, or a mask."
            )
        entries = np.asarray(chosen)
        if entries.dtype == bool:
            if entries.shape != (self.dim,):
                raise ValueError(
                    f"a mask must have one entry for each of the {self.dim} parameters, got shape "
                    f"{entries.shape}."
                )
            return entries
        if entries.ndim != 1 or (entries.size and not np.issubdtype(entries.dtype, np.integer)):
            raise TypeError(
                f"parameters are chosen by a mask or by a list of their indices, got "
                f"{checks.shown(chosen)}."
            )
        if entries.size and (entries.min() < 0 or entries.max() >= self.dim):
            raise ValueError(
                f"indices of parameters must be from 0 to {self.dim - 1}, got {entries.min()} to "
                f"{entries.max()}."
            )
        mask = np.zeros(self.dim, bool)
        mask[entries.astype(int)] = True
        return mask

    @property
    def share(self) -> Float[Array, "#clients"]:
        r"""Each client's factor of the regularizer, :math:`\lambda/K` or its own."""
        strength = jnp.asarray(self.strength)
        return strength if strength.ndim else strength[None] / self.clients

    @property
    def influence(self) -> Float[Array, " clients"]:
        r"""The largest sample weight in each client's mean loss, :math:`1/D_k` for equal weights.
        Replacing one sample changes the mean gradient by at most :math:`2c_1` times this weight.
        """
        return jnp.max(jnp.asarray(self.weights), axis=1)

    @property
    def total_weights(self) -> Float[Array, " clients"]:
        """The sum of the weights of each client's samples, which is its importance or one."""
        return jnp.sum(jnp.asarray(self.weights), axis=1)

    def sample_counts(self) -> Int[Array, " clients"]:
        """Number of samples of each client."""
        return jnp.sum(jnp.asarray(self.weights) > 0, axis=1, dtype=jnp.int32)

    @property
    def dtype(self) -> np.dtype:
        return self.features.dtype

    # A fixed problem is what clients have in every round, as a stream is what arrives in one.

    online: ClassVar[bool] = False

    #: Whether predictions are linear in the model, on which closed forms and step bounds rest.
    linear: ClassVar[bool] = True

    #: Whether a round holds its participants' data alone.
    on_disk: ClassVar[bool] = False

    def check(self, rounds: int) -> None:
        """A fixed data set fits a run of any length."""

    def begin(self, key: Array) -> tuple[()]:
        """Nothing changes from round to round."""
        return ()

    def observe(self, state: PyTree, key: Array, round: Array) -> tuple[PyTree, "Problem"]:
        """The next state, and the problem itself."""
        return state, self

    def moments(self) -> None:
        """``None``: no step bound of this library depends on the moments of a fixed problem."""
        return

    @checked
    def clipped(self, bound: Float[Array, ""] | float) -> Self:
        """The same problem with per-sample gradients clipped to Euclidean norm ``bound``."""
        checks.positive("clip", bound)
        return replace(self, clip=as_leaf(bound))  # the data were checked once

    def starting_at(self, models: Float[Array, "*clients dim"]) -> Self:
        """The same problem with these initial models instead of zero.

        Every algorithm supports it: the clients' copies of each other's models start there too,
        dual variables at zero, a server at the mean of its clients (of each cluster). The initial
        models are known to all before the first round and cost no message; a privacy budget covers
        only initial models that do not depend on the data.

        Args:
          models: ``[D]`` for all clients, or ``[K, D]``, one per client.

        Raises:
          TypeError, ValueError: no numbers, another shape, NaN or infinite.

        Example:
          >>> import jax, jax.numpy as jnp, fljax as fl
          >>> def scenario(key, scale):
          ...     k_data, k_start = jax.random.split(key)
          ...     problem = fl.problems.ridge(k_data, clients=4, samples=9, dim=2)
          ...     return fl.Simulation(
          ...         problem=problem.starting_at(scale * jax.random.normal(k_start, (2,))),
          ...         algorithm=fl.algorithms.FedAvg(0.01),
          ...         metrics=["normalized_error"],
          ...     )
          >>> results = fl.sweep(scenario, grid={"scale": [0.0, 10.0]}, seeds=2, rounds=3)
          >>> bool((results.normalized_error[1] > results.normalized_error[0]).all())
          True
        """
        models = checks.array("models", models)
        checks.start(models, self.clients, self.dim)
        return replace(self, initial=models)

    @checked
    def weighing(self, importance: Float[Array, " clients"] | object) -> Self:
        r"""The same problem with each client's mean loss multiplied by its own factor.

        A client of importance zero counts as unlabeled: its loss is zero for any model, so its
        model is determined by its neighbors alone (semi-supervised learning, Jung 2025, section
        6.3). Its share of the regularizer is unchanged. Every algorithm minimizes this objective,
        and errors are relative to its optimum.

        Args:
          importance: ``[K]``, >= 0, not all zero; or ``"samples"`` for :math:`KD_k/\sum_lD_l`, with
            which all *samples* have equal weight, as in McMahan et al. 2017.

        Raises:
          TypeError, ValueError: no numbers, another shape or word, negative ones, or all zero.

        Example:
          >>> import jax, fljax as fl
          >>> problem = fl.problems.least_squares(jax.random.key(0), clients=3, samples=9, dim=2)
          >>> problem.weighing([1.0, 0.0, 2.0]).weights.sum(axis=1).round(3).tolist()
          [1.0, 0.0, 2.0]
        """
        if isinstance(importance, str):
            if importance != "samples":
                raise ValueError(
                    f'importance must be "samples" or a number of each client, got {importance!r}.'
                )
            counts = self.sample_counts().astype(self.dtype)
            importance = counts / (counts.sum() / self.clients)
        factor = _importance(importance, self.clients)
        before = 1 if self.importance is None else self.importance
        weights = self.weights * factor[:, None]
        return replace(self, weights=weights, importance=factor * before, statistics=None)

    def unweighted(self) -> Self:
        r"""Each client's own mean loss, with a share of the regularizer such that the objective is
        the mean of these by the clients' weights. The share of a client of weight zero is
        distributed to all others.
        """
        if self.importance is None:
            return self
        weights = jnp.asarray(self.importance)
        statistics = self.statistics
        factor = jnp.where(weights > 0, 1 / jnp.where(weights > 0, weights, 1), 0)
        if statistics is not None and statistics.gram is not None:
            gram = statistics.gram * factor[:, None, None]
            moment = statistics.moment * factor[:, None]
            statistics = statistics._replace(gram=gram, moment=moment)
        if jnp.ndim(self.strength) > 0:
            left = jnp.sum(jnp.where(weights > 0, 0, self.strength)) / jnp.sum(weights)
            strength = self.strength * factor + left
        else:
            strength = self.strength / jnp.mean(weights)
        return replace(
            self,
            weights=self.weights * factor[:, None],
            strength=strength,
            importance=None,
            statistics=statistics,
        )

    def with_test(self, features: Any, targets: Any, weights: object = None) -> Self:
        """The same problem with held-out data, using its loss and feature map.

        Args:
          features: ``[T, P]``, common to all clients, or ``[K, T, P]``, one set per client.
          targets: ``[T]`` or ``[K, T]``.
          weights: sample weights, zero on padding, as in :class:`Problem`; by default every sample
            is real. :func:`from_clients` pads data of different sizes.

        Raises:
          ValueError: as :class:`Problem`.

        Example:
          >>> import jax, numpy as np, fljax as fl
          >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2)
          >>> problem = problem.with_test(np.eye(2), np.zeros(2))
          >>> simulation = fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics="test_error")
          >>> run = fl.run(simulation, rounds=5)
          >>> np.allclose(run.test_error[-1], np.mean(run.model[0] ** 2))
          True
        """
        features = checks.array("features", features)
        targets = checks.array("targets", targets)
        common = np.ndim(features) == self.features.ndim - 1
        if common:
            features = features[None]
            targets = targets[None]
            weights = None if weights is None else checks.array("weights", weights)[None]
        return dataclasses.replace(self, test=self._of_data(features, targets, weights))

    def _of_data(self, features: object, targets: object, weights: object) -> "Problem":
        """Other data, for models like these."""
        return Problem(features, targets, self.loss, weights=weights, feature_map=self.feature_map)

    @checked
    def split(self, key: Key[Array, ""], test: float = 0.2) -> Self:
        """The same problem with a random part of every client's samples held out.

        Of ``n`` samples, ``test * n``, rounded to the nearest integer, are held out; at least one
        is held out and at least one is kept. The weights of the kept samples remain proportional.

        Args:
          key: consumed.
          test: the share of each client's samples, in (0, 1).

        Raises:
          TypeError: a traced share or traced client sizes, since the shapes depend on them.
          ValueError: a share outside (0, 1), a client with a single sample, a problem that already
            has held-out data.

        Example:
          >>> import jax, fljax as fl
          >>> problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=[5, 12], dim=3)
          >>> kept = problem.split(jax.random.key(1), test=0.25)
          >>> kept.sample_counts().tolist(), kept.test.sample_counts().tolist()
          ([4, 9], [1, 3])
        """
        checks.interval("test", test, above=0, below=1, hint="It is the share that is held out.")
        if not (checks.is_concrete(test) and checks.is_concrete(self.weights)):
            raise TypeError(
                "how many samples of each client are held out is structure and cannot be traced; "
                "wrap an axis of a sweep's grid in fljax.static([...]), draw sizes before it; "
                "where sizes are drawn in the run, give from_pool held_out= instead."
            )
        if self.test is not None or (self.tasks is not None and self.tasks.test is not None):
            raise ValueError("the problem has held-out data already; split one that has none.")
        real = np.asarray(self.weights) > 0
        sizes = real.sum(axis=1)
        if np.any(sizes == 0):
            raise ValueError(
                f"client {int(np.argmin(sizes))} has no labels; split the problem first, and weigh "
                "its clients (problem.weighing) afterwards."
            )
        if np.any(sizes < 2):
            raise ValueError(
                f"client {int(np.argmin(sizes))} has one sample, and splitting needs two: one to "
                "learn from and one held out."
            )
        out = np.clip(np.rint(np.asarray(test) * sizes).astype(int), 1, sizes - 1)
        order = shuffled(key, jnp.asarray(real))
        plain = replace(self, statistics=None)
        held_out = plain._rows(order[:, : out.max()], out)
        rest = (out[:, None] + np.arange((sizes - out).max())) % self.samples
        rest = jnp.take_along_axis(order, jnp.asarray(rest, jnp.int32), axis=1)
        held_out = replace(
            held_out, regularizer=NoRegularizer(), clip=None, tasks=None, initial=None
        )
        return replace(plain._rows(rest, sizes - out), test=held_out)

    def _rows(self, rows: Int[Array, "clients some"], sizes: np.ndarray) -> Self:
        """The first ``sizes`` of these samples of each client, with weights in proportion."""
        real = np.arange(rows.shape[1]) < sizes[:, None]
        at = (jnp.arange(self.clients, dtype=jnp.int32)[:, None], rows)
        features, targets, weights = (
            jnp.asarray(a)[at] for a in (self.features, self.targets, self.weights)
        )
        weights = jnp.where(real, weights, 0)
        weights = weights / jnp.sum(weights, axis=1, keepdims=True)
        if self.importance is not None:
            weights = weights * self.importance[:, None]
        if self.linear:  # of others padding stays what some network takes
            features = _where(real, features)
            targets = _where(real, targets)
        return replace(self, features=features, targets=targets, weights=weights)

    def prepare(self) -> Self:
        """The same problem with :class:`Statistics` filled.

        The Gram matrix replaces the samples in every gradient of a quadratic loss when that is
        the smaller of the two; clipping needs each sample, so it keeps them.
        """
        self = jax.tree.map(jnp.asarray, self.mapped())  # noqa: PLW0642 (NumPy data in traces)
        statistics = self._statistics()
        pooled = replace(self.pooled(), clip=self.clip)
        pooled_statistics = pooled._statistics()._replace(norms=statistics.norms.reshape(1, -1))
        if (
            statistics.gram is not None
        ):  # means of the clients', without another pass over the samples
            gram, moment = (
                jnp.mean(a, axis=0, keepdims=True) for a in (statistics.gram, statistics.moment)
            )
            pooled_statistics = pooled_statistics._replace(gram=gram, moment=moment)
        return replace(
            self,
            statistics=statistics._replace(pooled=replace(pooled, statistics=pooled_statistics)),
        )

    @property
    def design(self) -> Float[Array, "clients samples width"]:
        """The inputs in which the predictions are linear, the features or their map. Where a clip
        or a bound holds for any data, rows that are not finite count as zero.
        """
        if self.feature_map is None:
            return dense(self.features)
        values = self._features_of(dense(self.features))
        return _finite(values) if self._promises else values

    def _features_of(self, inputs: Float[Array, "*points width"]) -> Float[Array, "*points dim"]:
        """The inputs, mapped by the feature map if there is one."""
        if self.feature_map is None:
            return inputs
        shape = (*inputs.shape[:-1], self.feature_map.dim)
        return checks.returned("feature_map", self.feature_map(inputs), shape)

    @property
    def _promises(self) -> bool:
        """Whether a bound of gradients must hold for any data."""
        return self.clip is not None or self.feature_bound is not None

    def usable(self) -> Self:
        """The same problem, mapped, with feature rows that are not finite replaced by zero: such a
        sample has zero gradient at any model.

        A map may make finite features infinite or NaN (such as the direction of a sample at zero),
        and a single such row would do the same to the client's gradient. Every privacy budget
        relies on this replacement, and a clip or feature bound implies it; results count such
        samples (``unusable_samples``).
        """
        ready = self.mapped()
        return replace(ready, features=_each(_finite, ready.features))

    def unusable_samples(self) -> Int[Array, ""]:
        """Number of samples whose features, once mapped, are not finite."""

        def is_bad(features: Array) -> Array:
            return ~jnp.all(jnp.isfinite(self._features_of(jnp.asarray(features))), axis=-1)

        bad = dense(_each(is_bad, self.features)) & (jnp.asarray(self.weights) > 0)
        return jnp.sum(bad, dtype=jnp.int32)

    def mapped(self) -> Self:
        """The same problem with the feature map's values as its features, computed once."""
        features = _each(self._mapped_features, self.features)
        test = None if self.test is None else self.test.mapped()
        return replace(self, features=features, feature_map=None, test=test)

    def _mapped_features(
        self, features: Float[Array, "*points width"]
    ) -> Float[Array, "*points dim"]:
        """Values of the feature map, finite and within the bound of features if these are asked."""
        features = self._features_of(features)
        if self._promises:
            features = _finite(features)
        if self.feature_bound is not None:
            norms = norm(features)[..., None]
            bound = jnp.asarray(self.feature_bound, features.dtype)
            features = jnp.where(norms > bound, features * (bound / norms), features)
        return features

    @property
    def is_summarized(self) -> bool:
        """Whether the Gram matrix, which is smaller, replaces the samples in gradients."""
        quadratic = isinstance(self.loss, LeastSquares) and self.clip is None
        return quadratic and self.samples > self.dim

    def _statistics(self) -> Statistics:
        few = self.features.shape[2] <= FEW_FEATURES and self.loss.outputs == 1
        columns = jnp.swapaxes(self.features, 1, 2) if few and not self.is_pooled else None
        gram = moment = None
        if self.is_summarized:

            def moments(part: Problem) -> tuple[Array, Array]:
                return 2 * part.second_moment(), 2 * part.correlation(part.targets)

            gram, moment = self._summed_over_samples(moments)
        return Statistics(gram, moment, self._feature_norms(), columns, None)

    def _summed_over_samples(self, function: Callable[..., Any], *rows: Any) -> Any:
        """``function(problem, *rows)``, a sum over each client's samples; tile by tile on a pool,
        so that no copy of all clients' samples is made.
        """
        return over_tiles(self, function, *rows) if self.is_pooled else function(self, *rows)

    def pooled(self) -> "Problem":
        r"""All data at one client, whose objective is :math:`\frac1K\sum_k f_k`."""
        clients, samples = self.weights.shape
        if self.is_pooled:
            features, targets, weights = self._data_of_pool()
        else:
            features, targets, weights = (
                a.reshape(1, clients * samples, *a.shape[2:])
                for a in (self.features, self.targets, self.weights)
            )
        return replace(
            self,
            features=features,
            targets=targets,
            weights=weights / clients,
            strength=jnp.mean(self.share),
            clip=None,
            statistics=None,
            tasks=None,
            initial=None,
            test=None,
            importance=None if self.importance is None else jnp.mean(self.importance)[None],
        )

    def _data_of_pool(self) -> tuple[Array, Array, Array]:
        """The pool as the samples of one client, ``[1, R, ...]``, their targets and weights."""
        pool = jnp.asarray(self.pooled_features.pool)
        size = len(pool)
        # Padding has the index of some row, whose own entry must stay.
        at = jnp.where(self.weights > 0, self.pooled_features.rows, size)
        targets = jnp.asarray(self.targets)
        targets = (
            jnp.zeros((size, *targets.shape[2:]), targets.dtype).at[at].set(targets, mode="drop")
        )
        weights = jnp.zeros(size, self.weights.dtype).at[at].add(self.weights, mode="drop")
        return pool[None], targets[None], weights[None]

    def take(
        self, clients: Int[Array, " chosen"], rows: Int[Array, "chosen batch"] | None = None
    ) -> "Problem":
        r"""The problem of some of the clients, with all of their samples or with a batch.

        The regularizer's share stays :math:`\lambda/K`. A batch's weights are scaled up to a sum of
        one (or to the client's importance), so a gradient is the mean over the batch.

        Args:
          clients: ``[M]``, their indices.
          rows: ``[M, B]``, indices of their samples; all by default. Padding stays padding, and an
            index past the last sample is padding too. A batch of padding alone has weight zero.

        Raises:
          ValueError: known indices of clients that do not exist.
        """
        checks.indices("clients", clients, self.clients)
        self = self.apart()  # noqa: PLW0642 (as in `prepare`)
        statistics = self.statistics
        strength = jnp.asarray(self.strength)
        importance = None if self.importance is None else self.importance[clients]
        strength = (
            strength[clients] if strength.ndim else strength * (clients.shape[0] / self.clients)
        )
        if rows is not None:
            part = self.entries(clients, rows)
            total = jnp.sum(part.weights, axis=1, keepdims=True)
            weights = part.weights / jnp.where(total > 0, total, 1)
            if importance is not None:
                weights = weights * importance[:, None]
            return replace(part, weights=weights, strength=strength, importance=importance)
        features: Any = self.features
        features = features.of_clients(clients) if self.is_pooled else features[clients]
        data = (self.targets, self.weights, statistics)
        targets, weights, statistics = jax.tree.map(lambda a: a[clients], data)
        return replace(
            self,
            features=features,
            targets=targets,
            weights=weights,
            strength=strength,
            statistics=statistics,
            importance=importance,
        )

    def entries(
        self, clients: Int[Array, " chosen"], rows: Int[Array, "chosen batch"]
    ) -> "Problem":
        """Some samples of some clients with their weights, zero past the last sample. Only sums
        over samples have a meaning: the regularizer's share and the importance are the clients'.
        """
        at = (clients[:, None], rows)
        statistics = self.statistics
        if statistics is not None:
            statistics = Statistics(None, None, statistics.norms[at], None, None)
        return replace(
            self,
            features=self.features[at],
            targets=self.targets[at],
            weights=self.weights.at[at].get(mode="fill", fill_value=0),
            statistics=statistics,
        )

    def apart(self) -> "Problem":
        """The problem without the parts common to all clients: held-out data, pooled statistics,
        tasks and initial models.
        """
        statistics = None if self.statistics is None else self.statistics._replace(pooled=None)
        alone = replace(self, test=None, statistics=statistics, tasks=None, initial=None)
        return jax.tree.map(jnp.asarray, alone)

    def second_moment(self) -> Float[Array, "clients features features"]:
        r""":math:`\sum_j\omega_{k,j}x_{k,j}x_{k,j}^\top` of each client."""
        weighted = self.weights[..., None] * self.design
        return jnp.einsum("knp,knq->kpq", weighted, self.design, precision=HIGHEST)

    def correlation(
        self, values: Float[Array, "clients samples"]
    ) -> Float[Array, "clients features"]:
        r""":math:`\sum_j\omega_{k,j}v_{k,j}x_{k,j}` of each client."""
        return self.combination(self.weights * values)

    def combination(
        self, values: Float[Array, "clients samples *outputs"]
    ) -> Float[Array, "clients dim"]:
        r""":math:`\sum_jv_{k,j}x_{k,j}` of each client, for each output."""
        # With the features first XLA would copy them, transposed, in every round.
        if values.ndim == 2:
            return jnp.einsum("kn,knp->kp", values, self.design, precision=HIGHEST)
        combined = jnp.einsum("kno,knp->kop", values, self.design, precision=HIGHEST)
        return combined.reshape(self.clients, -1)

    def weighted(
        self, values: Float[Array, "clients samples *outputs"]
    ) -> Float[Array, "clients samples *outputs"]:
        """Values of samples, or of each output of them, times the samples' weights."""
        return with_trailing_axes(self.weights, values) * values

    def predictions(self, w: Float[Array, "clients dim"]) -> Array:
        """``[K, N]`` linear predictions (``[K, N, outputs]`` for several outputs)."""
        if self.statistics is not None and self.statistics.columns is not None:
            columns = self.statistics.columns
            return sum(columns[:, p] * w[:, p, None] for p in range(columns.shape[1]))  # pyright: ignore[reportReturnType]
        if self.loss.outputs == 1:
            return jnp.einsum("knp,kp->kn", self.design, w, precision=HIGHEST)
        w = w.reshape(self.clients, self.loss.outputs, -1)
        return jnp.einsum("knp,kop->kno", self.design, w, precision=HIGHEST)

    def scores(
        self, w: Float[Array, "clients dim"], score: Callable[[Loss, Array, Array], Array]
    ) -> Float[Array, " clients"]:
        """Each client's weighted sum over its samples of ``score(loss, prediction, target)``."""

        def scored(part: Problem, w: Array) -> Array:
            scores = score(part.loss, part.predictions(w), part.targets)
            return jnp.sum(part.weights * scores, axis=1)

        return self._summed_over_samples(scored, w)

    def seen_by(self, client: Int[Array, ""]) -> Self:
        """The same data, read by the network and with the state of one client."""
        return self

    def cross_scores(
        self, models: Float[Array, "models dim"], score: Callable[[Loss, Array, Array], Array]
    ) -> Float[Array, "clients models"]:
        """The scores of every model on every client's samples, as one product: a row for each model
        would require a copy of the data.
        """
        outputs = self.loss.outputs
        models = models.reshape(len(models), outputs, -1)

        def scored(part: Problem) -> Array:
            predictions = jnp.einsum("qtp,kop->qkto", part.design, models, precision=HIGHEST)
            if outputs == 1:
                predictions = predictions[..., 0]
            scores = score(part.loss, predictions, part.targets[:, None])
            return jnp.sum(part.weights[:, None] * scores, axis=2)

        return self._summed_over_samples(scored)

    def objective(self, w: Float[Array, "clients dim"]) -> Float[Array, " clients"]:
        r"""Each client's :math:`f_k(w_k)`."""
        return self.mean_loss(w) + self.share * self.regularizer.value(w)

    def mean_loss(self, w: Float[Array, "clients dim"]) -> Float[Array, " clients"]:
        r"""Each client's :math:`\frac1{D_k}\sum_j\ell`, without the regularizer."""
        return self.scores(w, value_of)

    def sample_gradient_norm(self, w: Float[Array, "clients dim"]) -> Float[Array, " clients"]:
        """The largest per-sample loss-gradient norm of each client, after clipping."""

        def largest(part: Problem, w: Array) -> Array:
            derivative = part.loss.derivative(part.predictions(w), part.targets)
            if part.clip is not None:
                derivative = part._clipped(derivative)
            norms = part._sample_norms(derivative)
            return jnp.max(jnp.where(part.weights > 0, norms, 0), axis=1)

        return over_tiles(self, largest, w, largest=True) if self.is_pooled else largest(self, w)

    def gradient_growth(self) -> Float[Array, " clients"] | None:
        """By how much a client's largest per-sample loss-gradient norm grows at most with the
        distance of its model: the loss's largest curvature times the square of the longest feature
        vector. ``None`` where no such number is known: of a loss that is not smooth or not of this
        library, whose curvature is its word alone.
        """
        if type(self.loss) not in (LeastSquares, Huber, Logistic, Softmax):
            return None
        longest = jnp.max(jnp.where(self.weights > 0, self._norms(), 0), axis=1)
        return self.loss.curvature * longest**2

    def sample_objective_norms(
        self, w: Float[Array, "clients dim"]
    ) -> Float[Array, "clients samples"]:
        r"""For each sample, :math:`\|\ell'(x_{k,j},y_{k,j};w_k)+\tfrac\lambda KR'(w_k)\|`, the norm
        of the client's gradient if it had no other sample; zero on padding. The loss of a client
        with an importance is multiplied by it.
        """
        derivative = self.loss.derivative(self.predictions(w), self.targets)
        if self.clip is not None:
            derivative = self._clipped(derivative)
        if self.importance is not None:
            axes = (1,) * (derivative.ndim - 1)
            derivative = jnp.asarray(self.importance).reshape(-1, *axes) * derivative
        length, direction = directed(self.share[:, None] * self.regularizer.gradient(w))
        products = derivative * self.predictions(direction)
        if self.loss.outputs > 1:
            products = jnp.sum(products, axis=2)
        norms = norm_of_sum(self._sample_norms(derivative), length[:, None], products)
        return jnp.where(self.weights > 0, norms, 0)

    def loss_gradient(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""A subgradient of each client's mean loss :math:`\frac1{D_k}\sum_j\ell`, clipped."""
        return evaluated(self._loss_gradient(w), self.weights.shape[1])

    def loss_gradient_in_parts(
        self,
        w: Float[Array, "clients dim"],
        sizes: tuple[int, ...],
        clips: Float[Array, " parts"],
    ) -> Float[Array, "clients dim"]:
        """As :meth:`loss_gradient`, each part of a sample's gradient clipped separately.

        Args:
          w: ``[K, D]``.
          sizes: numbers of parameters of the parts, one after the other.
          clips: the largest norm of each part; the problem itself has a clip, too.
        """
        return evaluated(self._gradient_in_parts(w, sizes, clips), self.weights.shape[1])

    def check_parts(self, sizes: tuple[int, ...]) -> None:
        """Raise ``ValueError`` unless parts of a gradient are all of it, and can be clipped."""
        if sum(sizes) != self.dim:
            raise ValueError(
                f"parts must be all {self.dim} parameters of a model, got parts of {sizes}, which "
                f"are {sum(sizes)}; for one of each array of parameters pass problem.pieces."
            )
        self._check_cuts(sizes)

    def _check_cuts(self, sizes: tuple[int, ...]) -> None:
        width = self.dim // self.loss.outputs
        if self.loss.outputs > 1 and any(size % width for size in sizes):
            raise ValueError(
                f"parts of a model of {self.loss.outputs} outputs must be of whole outputs, which "
                f"have {width} parameters each, got parts of {sizes}."
            )

    def _gradient_in_parts(
        self, w: Float[Array, "clients dim"], sizes: tuple[int, ...], clips: Array
    ) -> Float[Array, "clients dim"]:
        """The gradient of the mean loss, with separately clipped parts of per-sample ones."""
        if self.is_pooled:
            return over_tiles(self, lambda part, w: part._gradient_in_parts(w, sizes, clips), w)
        derivative = self.loss.derivative(self.predictions(w), self.targets)
        design = self.design
        sums = []
        start = 0
        for i, size in enumerate(sizes):
            part = replace(self, clip=clips[i])
            values = derivative
            if self.loss.outputs == 1:
                columns = design[..., start : start + size]
                part = replace(part, features=columns, feature_map=None, statistics=None)
            else:
                first = start // design.shape[2]
                count = size // design.shape[2]
                values = derivative[..., first : first + count]
            sums.append(part._combination_in_blocks(part.weighted(part._clipped(values))))
            start += size
        return jnp.concatenate(sums, axis=1)

    def _loss_gradient(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        summarized = self.statistics is not None and self.statistics.gram is not None
        if summarized and self.clip is None:  # a clip set after `prepare` needs each sample
            product = jnp.einsum("kpq,kq->kp", self.statistics.gram, w, precision=HIGHEST)
            return product - self.statistics.moment
        if self.is_pooled:
            return over_tiles(self, lambda part, w: part._loss_gradient(w), w)
        derivative = self.loss.derivative(self.predictions(w), self.targets)
        if self.clip is not None:
            derivative = self._clipped(derivative)
        return self._combination_in_blocks(self.weighted(derivative))

    def _combination_in_blocks(
        self, values: Float[Array, "clients samples *outputs"]
    ) -> Float[Array, "clients dim"]:
        """As :meth:`combination`, of blocks of samples whose sums are added in pairs, so that the
        roundings of a sum of clipped gradients are bounded (:meth:`gradient_rounding`).
        """
        block = self._block
        if block == self.samples:
            return self.combination(values)
        blocks = self.samples // block
        design = self.design.reshape(self.clients, blocks, block, -1)
        values = values.reshape(self.clients, blocks, block, -1)
        sums = jnp.einsum("kgbo,kgbp->kgop", values, design, precision=HIGHEST)
        sums = sums.reshape(self.clients, blocks, -1)
        while (blocks := sums.shape[1]) > 1:
            half = blocks // 2
            odd = sums[:, blocks - blocks % 2 :]
            sums = sums[:, :half] + sums[:, half : 2 * half]
            sums = jnp.concatenate([sums, odd], axis=1)
        return sums[:, 0]

    @property
    def _block(self) -> int:
        """Samples whose gradients are one sum; all of them where nothing bounds these."""
        samples = self.samples
        divisors = [size for size in range(8, BLOCK + 1) if samples % size == 0]
        single = samples <= BLOCK or not divisors or not self._promises
        return samples if single else divisors[-1]

    def gradient_rounding(self) -> float:
        r"""How far apart rounding may move two computed gradients of a client at one model for data
        that differ in one sample, besides their exact distance: in units of the bound of
        per-sample gradients times the largest weight of a sample.

        With :math:`u` the unit roundoff, :math:`P` the numbers of a feature vector: a clipped
        gradient exceeds its bound by at most the factor :math:`1+(P/2+8)u`, in which the norm has
        most roundings. A sample is part of one sum of :math:`B` samples, whose partial sums of
        :math:`j` gradients are rounded by at most :math:`ju` in either world, :math:`B^2u` in all;
        then of at most :math:`2D_k/B` sums of sums that are :math:`B,2B,\dots` gradients long,
        :math:`4D_ku`. All other sums are the same to the last bit (and where all samples differ,
        :meth:`fljax.privacy.Gap.of` takes all roundings). :math:`B` divides the number of samples
        and is 64 at most, where such a divisor is 8 at least; else all samples are one sum.
        """
        unit = float(jnp.finfo(self.dtype).eps) / 2
        samples = self.samples
        block = self._block
        sums = block**2 + (4 * samples if block < samples else 0)
        if isinstance(self.features, PooledRows):
            # A tile is one sum, or blocks of it, and tiles are added one after the other: partial
            # sums of j tiles of B samples are rounded by at most j B u in either world.
            size = self.features.tile
            tiles = -(-samples // size)
            sums = size**2 + 4 * size + tiles * (tiles + 1) * size * (tiles > 1)
        return (2 * (self.design.shape[2] / 2 + 8) + sums) * unit

    def gradient(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""A subgradient of each client's :math:`f_k`; the regularizer is public and never
        clipped.
        """
        return self.loss_gradient(w) + self.regularizer_gradient(w)

    def regularizer_gradient(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""A subgradient of each client's :math:`\frac\lambda KR`."""
        return self.share[:, None] * self.regularizer.gradient(w)

    # Further quantities of a model that some algorithms need ---------------------------------

    def gradient_of(
        self,
        losses: Callable[[Reading, Array, PyTree], Array],
        w: Float[Array, "clients dim"],
        given: object = (),
        models: int = 1,
    ) -> Float[Array, "clients dim"]:
        r"""The gradient of each client's objective with another loss of its samples than
        :math:`\ell`; per-sample gradients are clipped in the same way.

        Args:
          losses: ``(reading, row, given) -> [N]``, the losses of some samples of one client, of its
            model and of further arguments; differentiable in the model ``row``.
          w: the models.
          given: arrays ``[K, ...]`` of each client that ``losses`` takes.
          models: how many models a row of ``w`` has, each of which counts as a gradient of each
            sample (:func:`fljax.tune` with the goal ``"gradients"``).

        Example:
          >>> import jax, jax.numpy as jnp, fljax as fl
          >>> def calmed(reading, row, temperature):
          ...     return reading.losses(reading.predictions(row) / temperature)
          >>> key, w = jax.random.key(0), jnp.ones((4, 6))
          >>> problem = fl.problems.softmax(key, clients=4, samples=9, dim=2, classes=3)
          >>> gradient = problem.gradient_of(calmed, w, jnp.array([1.0, 2.0, 4.0, 8.0]))
          >>> jnp.isclose(gradient, problem.gradient(w), atol=1e-6).all(axis=1).tolist()
          [True, False, False, False]
        """

        def sample_losses(row: Array, extra: PyTree, features: Array, targets: Array) -> Array:
            context, extra = self._context_and_extra(extra)
            return losses(Reading(self, features, targets, context), row, extra)

        gradient = evaluated(
            self._gradient_of_losses(sample_losses, w, given), self.weights.shape[1] * models
        )
        return gradient + self.share[:, None] * self.regularizer.gradient(w)

    def representations(
        self, w: Float[Array, "clients dim"]
    ) -> Float[Array, "clients samples width"]:
        """``[K, N, R]``, the input of the head at each client's samples; the features of linear
        predictions.
        """
        return self.design

    @property
    def represents(self) -> bool:
        """Whether a model's representation of samples is known."""
        return True

    def head_coordinates(self) -> Bool[np.ndarray, " dim"]:
        """The mask of the parameters of the head, ``[D]`` booleans; all, of linear predictions."""
        return np.ones(self.dim, bool)

    def body_and_head(self) -> tuple[Int[np.ndarray, " body"], Int[np.ndarray, " head"]]:
        """The indices of the parameters of the body and of the head, as :meth:`head_coordinates`
        has them.

        Example:
          >>> import jax, fljax as fl
          >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=9, dim=2, classes=3)
          >>> network = fl.models.mlp(3, hidden=[1])
          >>> body, head = fl.problems.Model.of(data, network, jax.random.key(1)).body_and_head()
          >>> body.tolist(), head.tolist()
          ([0, 1, 2], [3, 4, 5, 6, 7, 8])
        """
        mask = self.head_coordinates()
        return np.flatnonzero(~mask).astype(np.int32), np.flatnonzero(mask).astype(np.int32)

    def class_counts(self) -> Int[Array, "clients classes"]:
        """Number of samples of each class at each client, ``[K, C]``.

        Raises:
          ValueError: a loss that is not :class:`~fljax.problems.Softmax`.
        """
        if not isinstance(self.loss, Softmax):
            raise ValueError(
                f"classes are those of the loss Softmax(classes), got {type(self.loss).__name__}."
            )
        one_hot = jax.nn.one_hot(
            jnp.asarray(self.targets, jnp.int32), self.loss.classes, dtype=bool
        )
        real = jnp.asarray(self.weights) > 0
        return jnp.sum(one_hot & real[..., None], axis=1, dtype=jnp.int32)

    def _context_and_extra(self, inputs: PyTree) -> tuple[PyTree, PyTree]:
        """The network's context, ``None`` for linear predictions, and the algorithm's arguments."""
        return None, inputs

    def _outputs(self, row: Float[Array, " dim"], features: Array, context: PyTree = None) -> Array:
        """Predictions of one model for some samples, mapped already."""
        return self.head(row, features)

    def _representation(
        self, row: Float[Array, " dim"], features: Array, context: PyTree = None
    ) -> Array:
        return features

    def head(
        self,
        row: Float[Array, " dim"],
        representation: Float[Array, "samples width"],
        context: PyTree = None,
    ) -> Array:
        """Predictions of one model from representations of any samples."""
        if self.loss.outputs == 1:
            return jnp.einsum("np,p->n", representation, row, precision=HIGHEST)
        matrix = row.reshape(self.loss.outputs, -1)
        return jnp.einsum("np,op->no", representation, matrix, precision=HIGHEST)

    def _values(self, score: Callable, predictions: Array, targets: Array) -> Array:
        return score(self.loss, predictions, targets)

    def _gradient_of_losses(self, losses: Callable[..., Array], w: Array, extra: PyTree) -> Array:
        """``[K, D]``, of ``losses(row, given, features, targets) -> [N]``."""
        if self.is_pooled:

            def gradient_of_part(part: Problem, w: Any, extra: PyTree) -> Array:
                return part._gradient_of_losses(losses, w, extra)

            return over_tiles(self, gradient_of_part, w, extra)
        gradient = self._client_gradient(losses)
        return jax.vmap(gradient)((w, extra), self.design, self.targets, self.weights)

    def _client_gradient(
        self,
        losses: Callable[..., Array],
        parts: tuple[tuple[int, ...], Array] | None = None,
    ) -> Callable[..., Array]:
        """The gradient of one client's weighted sum of losses, ``((row, given), features, targets,
        weights) -> [D]``, of clipped per-sample gradients under a clip; or of ones whose parts, of
        these sizes, are clipped to these norms.
        """

        def loss_sum(row: Array, extra: PyTree, x: Array, y: Array, weights: Array) -> Array:
            return jnp.sum(weights * losses(row, extra, x, y))

        def unclipped(arguments: tuple[Array, PyTree], x: Array, y: Array, weights: Array) -> Array:
            return jax.grad(loss_sum)(*arguments, x, y, weights)

        def clipped(arguments: tuple[Array, PyTree], x: Array, y: Array, weights: Array) -> Array:
            arguments, axes = self._of_samples(arguments, len(x))
            pieces = jax.vmap(pieces_of(self._sample_gradient(losses)), (axes, 0, 0))(
                arguments, x, y
            )
            if parts is None:
                return clipped_sum(pieces, jnp.asarray(self.clip, weights.dtype), weights)
            sizes, clips = parts
            sums = [
                clipped_sum(part, clips[i].astype(weights.dtype), weights)
                for i, part in enumerate(split_by_sizes(pieces, sizes))
            ]
            return jnp.concatenate(sums)

        return unclipped if self.clip is None else clipped

    def _of_samples(
        self, arguments: tuple[Array, PyTree], count: int
    ) -> tuple[tuple[Array, PyTree], Any]:
        """A client's arguments for each of so many samples, and their axes as ``vmap`` takes them:
        the same for all of them.
        """
        return arguments, None

    def _sample_gradient(self, losses: Callable[..., Array]) -> Callable[..., Array]:
        """The gradient of one sample's loss, ``((row, given), features, target) -> [D]``."""

        def gradient(arguments: tuple[Array, PyTree], features: Array, target: Array) -> Array:
            row, extra = arguments
            return jax.grad(lambda row: losses(row, extra, features[None], target[None])[0])(row)

        return gradient

    def mean_gradient(self, w: Float[Array, " dim"]) -> Float[Array, " dim"]:
        r""":math:`\frac1K\sum_k f_k'(w)` at one common model: the gradient of the pooled data."""
        ready = self.prepare() if self.statistics is None else self
        return ready.statistics.pooled.gradient(w[None])[0]

    def _clipped(self, derivative: Array) -> Array:
        """Derivatives whose outer products with the features have norm ``clip`` at most.

        This holds for any data: a prediction or derivative that overflows is clipped as well, and
        one that is NaN, as a difference of infinities, is replaced by zero.
        """
        huge = jnp.finfo(derivative.dtype).max
        derivative = jnp.where(jnp.isnan(derivative), 0, derivative)
        norms = self._norms()
        # No infinities: XLA may fold constant ones to other values.
        allowed = jnp.minimum(self.clip / jnp.where(norms > 0, norms, 1), huge)
        allowed = jnp.where(norms > 0, allowed, jnp.where(norms == 0, huge, 0))
        if self.loss.outputs == 1:
            return jnp.clip(derivative, -allowed, allowed)
        derivative = jnp.clip(derivative, -huge, huge)
        size = norm(derivative)
        keep = jnp.where(size > allowed, allowed / jnp.where(size > 0, size, 1), 1)
        return derivative * keep[..., None]

    def _feature_norms(self) -> Float[Array, "clients samples"]:
        if self.feature_map is None:
            return dense(_each(norm, self.features))
        return norm(self.design)

    def _norms(self) -> Float[Array, "clients samples"]:
        return self._feature_norms() if self.statistics is None else self.statistics.norms

    def _sample_norms(self, derivative: Array) -> Float[Array, "clients samples"]:
        size = jnp.abs(derivative) if self.loss.outputs == 1 else norm(derivative)
        return jnp.where(size > 0, self._norms() * size, 0)  # a norm may overflow, clipped to none

    def gradient_bound(self) -> Float[Array, ""]:
        r"""The :math:`c_1` that truly bounds every per-sample gradient of *this* data.

        The loss's largest slope times the longest feature vector (or ``clip``, if smaller);
        infinite for the squared loss without clipping. It depends on the private data and holds for
        this data set alone: a guarantee must use :meth:`promised_bound`.
        """
        norms = jnp.where(jnp.asarray(self.weights) > 0, self._feature_norms(), 0)
        bound = self.loss.slope_bound() * jnp.max(norms)
        return bound if self.clip is None else jnp.minimum(bound, self.clip)

    def promised_bound(self) -> Float[Array, ""]:
        r"""The :math:`c_1` that bounds per-sample gradients for *every* data set that a guarantee
        covers.

        ``clip``, or the loss's largest slope times ``feature_bound``, whichever is smaller;
        infinite if neither is given. It does not depend on the data.
        """
        bounds = [jnp.asarray(jnp.inf, float_dtype())]
        if self.clip is not None:
            bounds.append(jnp.asarray(self.clip, float_dtype()))
        if self.feature_bound is not None:
            bound = jnp.asarray(self.feature_bound, float_dtype())
            bounds.append(jnp.asarray(self.loss.slope_bound(), float_dtype()) * bound)
        return jnp.min(jnp.stack(bounds))


def _finite(features: Array) -> Array:
    """Features with zero in rows that are not finite."""
    finite = jnp.all(jnp.isfinite(features), axis=-1, keepdims=True)
    return jnp.where(finite, features, 0)


def _each(function: Callable[[Array], Array], features: Any) -> Any:
    """A function of each sample's features, of a pool's only once."""
    if isinstance(features, PooledRows):
        return features.changed(function)
    return function(features)


def _where(real: np.ndarray, data: Array) -> Array:
    """The data of real samples, zero elsewhere."""
    return jnp.where(with_trailing_axes(real, data), data, jnp.zeros_like(data))


def _importance(argument: object, clients: int) -> Array:
    """Validate the importance of clients and return it as floats."""
    factor = checks.array("importance", argument)
    if factor.shape != (clients,):
        raise ValueError(
            f"importance must be one number of each of the {clients} clients, got shape "
            f"{factor.shape}."
        )
    checks.nonnegative("importance", factor)

    def check_any(factor: object) -> None:
        if not np.any(np.asarray(factor) > 0):
            raise ValueError(
                "importance is zero for every client, and nothing is learned; give one > 0."
            )

    checks.check_when_concrete(check_any, factor)
    with np.errstate(over="ignore"):
        stored = factor.astype(float_dtype())
    checks.representable("importance", factor, stored)
    return stored


def check_test(test: object, clients: int, dim: int) -> None:
    """Raise unless the held-out data, if any, are common or one set per client, for models of this
    size.
    """
    if test is None:
        return
    if not isinstance(test, Problem):
        raise TypeError(
            f"test must be an fljax.problems.Problem, got {checks.shown(test)}; "
            "problem.with_test(features, targets) makes one."
        )
    if test.clients not in (1, clients) or test.dim != dim:
        raise ValueError(
            f"test must be the data of 1 client, for all, or of each of the {clients}, with the "
            f"{dim} parameters of a model, got {test.clients} clients and {test.dim} parameters; "
            "problem.with_test(features, targets) keeps the loss and the feature map."
        )


@checked
def from_clients(
    data: ClientData,
    loss: Loss,
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 1.0,
    *,
    feature_map: object = None,
    tasks: Tasks | None = None,
    test: ClientData | None = None,
) -> Problem:
    """Stack clients of different sizes.

    Args:
      data: one ``(features [D_k, P], targets [D_k])`` per client. A client without samples has
        importance zero (:meth:`Problem.weighing`): it participates, but its loss is zero.
      loss: as in :class:`Problem`.
      regularizer: as in :class:`Problem`.
      strength: as in :class:`Problem`.
      feature_map: as in :class:`Problem`.
      tasks: the clusters of the clients, as in :class:`Problem`.
      test: held-out data, one ``(features, targets)`` per client, or a single one for all.

    Raises:
      ValueError: no clients, none with samples, clients with different numbers of features; tasks
        or held-out data that do not fit (see :class:`Problem`).

    Example:
      >>> import numpy as np, fljax as fl
      >>> sizes, held_out = (4, 9, 6), (2, 1, 3)
      >>> data, test = (
      ...     [(np.ones((n, 2)), np.zeros(n)) for n in part] for part in (sizes, held_out)
      ... )
      >>> problem = from_clients(data, fl.problems.LeastSquares(), test=test)
      >>> problem.features.shape, problem.test.features.shape
      ((3, 9, 2), (3, 3, 2))
    """
    features, targets, weights = stacked("data", data)
    held_out = None
    if test is not None:
        x, y, shares = stacked("test", test)
        held_out = Problem(x, y, loss, weights=shares, feature_map=feature_map)
    return Problem(
        features=features,
        targets=targets,
        loss=loss,
        regularizer=regularizer,
        strength=strength,
        weights=weights,
        feature_map=feature_map,
        tasks=tasks,
        test=held_out,
        importance=present(weights),
    )


def present(weights: np.ndarray) -> np.ndarray | None:
    """The importance of clients, zero for those without samples; ``None`` where all have some."""
    has_samples = weights.any(axis=1)
    return None if has_samples.all() else has_samples.astype(float_dtype())


def stacked(
    name: str, data: ClientData, linear: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and weights of clients of different sizes, padded to the largest.

    Args:
      name: name of the data, for messages.
      data: one ``(features, targets)`` per client.
      linear: whether samples are rows of floats with one target; else they are of any shape and
        keep their type, and padding repeats the client's last sample, which is valid input for any
        network.
    """
    if not len(data):
        raise ValueError(f"{name} must hold at least one client, got none.")
    where = "" if name == "data" else f" of {name}"
    arrays = []
    for k, pair in enumerate(data):
        x, y = (
            np.asarray(checks.array(f"{part} of client {k}{where}", values))
            for part, values in zip(("features", "targets"), pair, strict=True)
        )
        if linear and y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]  # a column of a table
        # Truth and falsehood become labels where the loss is known.
        truth = y.dtype == np.bool_
        arrays.append((as_floats(x), y if truth else as_floats(y)) if linear else (x, y))
    empty = [len(x) == len(y) == 0 and name == "data" for x, y in arrays]
    first = next((pair for pair, is_empty in zip(arrays, empty, strict=True) if not is_empty), None)
    if first is None:
        raise ValueError(
            f"all {len(arrays)} clients{where} have no samples; give one of them some."
        )
    # Clients without samples get one dummy sample of weight zero: zeros, or for networks a copy of
    # another client's, as zeros may not be valid input.
    dummy = [part[:1] * 0 if linear else part[:1] for part in first]
    arrays = [
        (dummy[0], dummy[1].astype(first[1].dtype)) if is_empty else pair
        for pair, is_empty in zip(arrays, empty, strict=True)
    ]
    shapes = [a.shape[1:] for a in first]
    if linear:
        shapes = [shapes[0][-1:] if first[0].ndim == 2 else (0,), ()]
    for k, (x, y) in enumerate(arrays):
        if x.ndim < 1 or [x.shape[1:], y.shape[1:]] != shapes or x.shape[:1] != y.shape[:1]:
            wanted = [", ".join(("samples", *map(str, shape))) for shape in shapes]
            raise ValueError(
                f"client {k}{where} must have features [{wanted[0]}] and targets [{wanted[1]}], "
                f"got {x.shape} and {y.shape}."
            )
        if len(x) == 0:
            raise ValueError(
                f"client {k}{where} has no samples; give every client at least one sample or leave "
                "the client out."
            )
    longest = max(len(x) for x, _ in arrays)
    weights = [
        np.full(len(x), 0 if is_empty else 1 / len(x), float_dtype())
        for (x, _), is_empty in zip(arrays, empty, strict=True)
    ]

    def pad(rows: np.ndarray, mode: Literal["constant", "edge"] = "constant") -> np.ndarray:
        return np.pad(rows, [(0, longest - len(rows))] + [(0, 0)] * (rows.ndim - 1), mode)

    mode = "constant" if linear else "edge"
    features, targets = (
        np.stack([pad(a, mode) for a in part]) for part in zip(*arrays, strict=True)
    )
    return features, targets, np.stack([pad(w) for w in weights])


def sizes_to_weights(
    samples: int | Sequence[int], clients: int, dtype: DTypeLike
) -> tuple[int, np.ndarray]:
    """The padded number of samples and the ``[K, N]`` weights of clients with these sizes."""
    if checks.is_whole(samples):
        checks.count("samples", samples)
        samples = int(samples)
        return samples, np.full((clients, samples), 1 / samples, dtype)
    sizes = np.asarray(samples)
    if sizes.shape != (clients,) or not np.issubdtype(sizes.dtype, np.integer):
        raise ValueError(
            f"samples must be one integer or {clients} integers (one a client), got "
            f"{checks.shown(samples)}."
        )
    if sizes.min() < 1:
        raise ValueError(
            f"client {int(np.argmin(sizes))} has no samples; every client needs at least one."
        )
    longest = int(sizes.max())
    return longest, (np.arange(longest) < sizes[:, None]).astype(dtype) / sizes[:, None].astype(
        dtype
    )
