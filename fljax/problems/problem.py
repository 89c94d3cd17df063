r"""The stacked local problem of all clients: ragged data, a loss and a regularizer.

Client :math:`k` minimizes (Gauthier 2024, (3.5))

.. math:: f_k(w)=\frac1{D_k}\sum_{j=1}^{D_k}\ell(x_{k,j},y_{k,j};w)+\frac\lambda K R(w),

and the network the sum over clients. Shapes: ``K`` clients, ``N`` samples (padded to the largest
client), ``P`` features, ``D`` parameters (``D = P`` times the loss's outputs).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fljax import _check
from fljax._arguments import checked
from fljax._evaluations import evaluated
from fljax._linalg import directed, norm, norm_of_sum
from fljax._memory import on_cpu
from fljax._module import as_leaf, float_dtype, module, replace
from fljax._numerics import HIGHEST, along
from fljax._outer import clipped_sum, parted, pieces_of
from fljax.models.architecture import Layout
from fljax.participation import shuffled
from fljax.problems.objectives import (
    Huber,
    LeastSquares,
    Logistic,
    Loss,
    NoRegularizer,
    Regularizer,
    Softmax,
)
from fljax.problems.tasks import Tasks

__all__ = [
    "FEW_FEATURES",
    "Problem",
    "Reading",
    "Statistics",
    "as_floats",
    "check_test",
    "from_clients",
    "sizes_to_weights",
    "stacked",
    "value_of",
]

#: Up to this many features, predictions are written out as a sum over features, which XLA fuses
#: with the loss; a batch of matrix-vector products this small measured three times slower on CPU.
FEW_FEATURES = 16

#: Working set of the clients that descend side by side on a CPU: beyond it, one group after
#: the other was a seventh faster.
CACHE_BYTES = 2**19


#: Largest number of samples in one sum of clipped gradients, see :meth:`Problem.gradient_rounding`.
BLOCK = 64


class Reading(NamedTuple):
    """Some samples of one client, and what any model says of them.

    Losses of one's own read them (:meth:`Problem.gradient_of`). A model is a row ``[D]``, of this
    client or of another.

    Attributes:
      problem: the problem of the samples.
      features: ``[N, ...]``, mapped.
      targets: ``[N, ...]``.
    """

    problem: Any
    features: Array
    targets: Array

    def predictions(self, row: Float[Array, " dim"]) -> Array:
        """``[N, ...]``; logits, ``[N, classes]``, of a classifier."""
        return self.problem._outputs(row, self.features)

    def representation(self, row: Float[Array, " dim"]) -> Float[Array, "samples width"]:
        """``[N, R]``, what the model's head reads; the features of a linear prediction."""
        return self.problem._representation(row, self.features)

    def head(self, row: Float[Array, " dim"], representation: Array) -> Array:
        """Predictions from representations of these or any other samples."""
        return self.problem.head(row, representation)

    def losses(self, predictions: Array) -> Float[Array, " samples"]:
        """The problem's loss of each sample, of these predictions."""
        return self.problem._values(value_of, predictions, self.targets)


class Statistics(NamedTuple):
    """Statistics of the data that a run needs repeatedly, computed once."""

    gram: Any  # [K, P, P]  2 sum_j weight_j x_j x_j', quadratic loss with N > P only
    moment: Any  # [K, P]   2 sum_j weight_j x_j y_j, likewise
    norms: Array  # [K, N]  Euclidean norm of each sample's features
    columns: Array | None  # [K, P, N]  the features, sample by sample contiguous, if few
    pooled: Any  # Problem: all data at one client, with statistics of its own


def _check_totals(totals: Any, importance: Any = None) -> None:
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


def _check_functions(loss: Loss, regularizer: Any, shape: tuple[int, ...], dim: int) -> None:
    """Raise ``ValueError`` for a user's loss or regularizer with values of other shapes than those
    of what they are of, which would be broadcast.
    """
    outputs = (loss.outputs,) if loss.outputs > 1 else ()
    prediction, target, rows = (
        jax.ShapeDtypeStruct(one, float_dtype())
        for one in ((*shape, *outputs), shape, (shape[0], dim))
    )
    for part, name, given, wanted in (
        (loss, "value", (prediction, target), target.shape),
        (loss, "derivative", (prediction, target), prediction.shape),
        (regularizer, "value", (rows,), rows.shape[:1]),
        (regularizer, "gradient", (rows,), rows.shape),
    ):
        function = getattr(type(part), name, None)
        if function is None or getattr(function, "__module__", "").startswith("fljax."):
            continue
        try:
            found = jax.eval_shape(getattr(part, name), *given)
        except Exception:  # of a method that nobody may call, whatever it raises
            continue
        if jnp.shape(found) != wanted:
            shapes = " and ".join(str(one.shape) for one in given)
            found = f"shape {found.shape}" if hasattr(found, "shape") else _check.shown(found)
            raise ValueError(
                f"{type(part).__name__}.{name} must return an array of shape {wanted} for arrays "
                f"of shape {shapes}, got {found}."
            )


def value_of(loss: Loss, prediction: Array, target: Array) -> Array:
    """The score that is the loss."""
    return loss.value(prediction, target)


def as_floats(value: Any) -> Any:
    """An array as one of floats."""
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
        client's own factor of :math:`R` in the place of :math:`\lambda/K`.
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
    """

    features: Any  # Float[Array, "clients samples features"], NumPy or JAX
    targets: Any  # Float[Array, "clients samples"]
    loss: Loss
    regularizer: Regularizer = NoRegularizer()
    strength: Float[Array, "*clients"] | float = 1.0
    weights: Any = None  # Float[Array, "clients samples"] once constructed
    clip: Float[Array, ""] | float | None = None
    statistics: Statistics | None = None
    feature_map: Any = None
    tasks: Tasks | None = None
    feature_bound: Float[Array, ""] | float | None = None
    initial: Float[Array, "*clients dim"] | None = None
    test: Any = None  # Problem of K rows, or of one
    importance: Any = None  # Float[Array, "clients"]

    def validate(self) -> None:
        _check.registered("loss", self.loss)
        _check.registered("regularizer", self.regularizer)
        for name in ("features", "targets", "weights", "strength"):
            value = getattr(self, name)
            if name != "weights" or value is not None:
                value = _check.array(name, value)
                if name == "targets":
                    value = self._targets(value)
                given, value = value, value if name in self._whole() else as_floats(value)
                if name == "strength":
                    _check.representable(name, given, value)
            object.__setattr__(self, name, value)
        shape = jnp.shape(self.features)
        self._check_shapes(shape)
        if self.weights is not None:
            if jnp.shape(self.weights) != shape[:2]:
                raise ValueError(
                    f"weights must have shape {shape[:2]} to match features {shape}, got "
                    f"{jnp.shape(self.weights)}."
                )
            _check.nonnegative("weights", self.weights)
        if self.importance is not None:
            object.__setattr__(self, "importance", _importance(self.importance, shape[0]))
        if self.weights is not None:
            self._check_weights()
        _check.finite("features", self.features)
        _check.finite("targets", self.targets)
        _check.strength(self.strength, shape[0])
        _check.feature_map(self.feature_map)
        _check.start(self.initial, self.clients, self.dim)
        if self.tasks is not None:
            self._check_tasks(self.tasks)
        check_test(self.test, self.clients, self.dim)
        if self.test is not None and self.tasks is not None and self.tasks.test is not None:
            raise ValueError(
                "held-out data are given twice, as test= and as test= of the tasks; leave one out."
            )
        if self.clip is not None:
            _check.positive("clip", self.clip)
        if self.feature_bound is not None:
            _check.positive("feature_bound", self.feature_bound)
            self._check_features(self.feature_bound)
        if self.weights is None:
            share = np.full(shape[:2], 1 / shape[1], self.dtype)
            if self.importance is not None:
                share = share * self.importance[:, None]
            object.__setattr__(self, "weights", share)
        if self.linear:
            _check_functions(self.loss, self.regularizer, shape[:2], self.dim)
        if type(self.loss).check_targets is not Loss.check_targets:
            _check.known(self._check_targets, self.targets, self.weights)

    def _targets(self, targets: Any) -> Any:
        """One target per sample, where each client's targets are a column; labels for boolean
        targets.
        """
        if np.ndim(targets) == 3 and np.shape(targets)[2] == 1 and np.ndim(self.features) == 3:
            targets = targets[:, :, 0]
        return self.loss.labels(targets) if targets.dtype == np.bool_ else targets

    def _whole(self) -> tuple[str, ...]:
        """Which of the data may be whole numbers."""
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
            _check.known(_check_totals, totals)
        else:
            _check.known(_check_totals, totals, self.importance)

    def _check_targets(self, targets: Any, weights: Any) -> None:
        self.loss.check_targets(np.asarray(targets)[np.asarray(weights) > 0])

    def _check_features(self, bound: Any) -> None:
        if not (_check.is_concrete(self.features) and _check.is_concrete(bound)):
            return
        if self.feature_map is None:
            largest = float(np.max(np.linalg.norm(np.asarray(self.features, np.float64), axis=-1)))
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

    def coordinates(self, chosen: Any) -> np.ndarray:
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
        given = np.asarray(chosen)
        if given.dtype == bool:
            if given.shape != (self.dim,):
                raise ValueError(
                    f"a mask must have one entry for each of the {self.dim} parameters, got shape "
                    f"{given.shape}."
                )
            return given
        if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
            raise TypeError(
                f"parameters are chosen by a mask or by a list of their indices, got "
                f"{_check.shown(chosen)}."
            )
        if given.size and (given.min() < 0 or given.max() >= self.dim):
            raise ValueError(
                f"indices of parameters must be from 0 to {self.dim - 1}, got {given.min()} to "
                f"{given.max()}."
            )
        mask = np.zeros(self.dim, bool)
        mask[given.astype(int)] = True
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

    def sample_counts(self) -> Int[Array, " clients"]:
        """Number of samples of each client."""
        return jnp.sum(jnp.asarray(self.weights) > 0, axis=1, dtype=jnp.int32)

    @property
    def dtype(self) -> Any:
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

    def observe(self, state: Any, key: Array, round: Array) -> tuple[Any, "Problem"]:
        """The next state, and the problem itself."""
        return state, self

    def curvature(self) -> None:
        """``None``: no step bound of this library depends on the curvature of a fixed problem."""
        return

    @checked
    def clipped(self, bound: Float[Array, ""] | float) -> "Problem":
        """The same problem with per-sample gradients clipped to Euclidean norm ``bound``."""
        _check.positive("clip", bound)
        return replace(self, clip=as_leaf(bound))  # the data were checked once

    def starting_at(self, models: Float[Array, "*clients dim"]) -> "Problem":
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
        models = _check.array("models", models)
        _check.start(models, self.clients, self.dim)
        return replace(self, initial=models)

    @checked
    def weighing(self, importance: Float[Array, " clients"] | Any) -> "Problem":
        r"""The same problem with each client's mean loss multiplied by its own factor.

        A client of importance zero counts as unlabeled: its loss is zero for any model, so its
        model is determined by its neighbors alone (semi-supervised learning, Jung 2025, lines
        2331-2340). Its share of the regularizer is unchanged. Every algorithm minimizes this
        objective, and errors are relative to its optimum.

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

    def unweighted(self) -> "Problem":
        r"""Each client's own mean loss, with a share of the regularizer such that the objective is
        the mean of these by the clients' weights. Who weighs nothing in that mean leaves its share
        to all others.
        """
        if self.importance is None:
            return self
        weights, kept = jnp.asarray(self.importance), self.statistics
        factor = jnp.where(weights > 0, 1 / jnp.where(weights > 0, weights, 1), 0)
        if kept is not None and kept.gram is not None:
            gram, moment = kept.gram * factor[:, None, None], kept.moment * factor[:, None]
            kept = kept._replace(gram=gram, moment=moment)
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
            statistics=kept,
        )

    def with_test(self, features: Any, targets: Any, weights: Any = None) -> "Problem":
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
        features, targets = _check.array("features", features), _check.array("targets", targets)
        one = np.ndim(features) == np.ndim(self.features) - 1
        if one:
            features, targets = features[None], targets[None]
            weights = None if weights is None else _check.array("weights", weights)[None]
        return dataclasses.replace(self, test=self._of_data(features, targets, weights))

    def _of_data(self, features: Any, targets: Any, weights: Any) -> "Problem":
        """Other data, for models like these."""
        return Problem(features, targets, self.loss, weights=weights, feature_map=self.feature_map)

    @checked
    def split(self, key: Key[Array, ""], test: float = 0.2) -> "Problem":
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
        _check.interval("test", test, above=0, below=1, hint="It is the share that is held out.")
        if not (_check.is_concrete(test) and _check.is_concrete(self.weights)):
            raise TypeError(
                "how many samples of each client are held out is structure and cannot be traced; "
                "wrap an axis of a sweep's grid in fljax.static([...]), and draw sizes before it."
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
        here = replace(self, statistics=None)
        held_out = here._rows(order[:, : out.max()], out)
        rest = (out[:, None] + np.arange((sizes - out).max())) % self.samples
        rest = jnp.take_along_axis(order, jnp.asarray(rest, jnp.int32), axis=1)
        held_out = replace(
            held_out, regularizer=NoRegularizer(), clip=None, tasks=None, initial=None
        )
        return replace(here._rows(rest, sizes - out), test=held_out)

    def _rows(self, rows: Int[Array, "clients some"], sizes: np.ndarray) -> "Problem":
        """So many of these samples of each client, weighing in proportion what they weighed."""
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
            features, targets = _where(real, features), _where(real, targets)
        return replace(self, features=features, targets=targets, weights=weights)

    def prepare(self) -> "Problem":
        """The same problem with :class:`Statistics` filled.

        The Gram matrix replaces the samples in every gradient of a quadratic loss when that is
        the smaller of the two; clipping needs each sample, so it keeps them.
        """
        self = jax.tree.map(jnp.asarray, self.mapped())  # noqa: PLW0642 (NumPy data in traces)
        own, pooled = self._statistics(), replace(self.pooled(), clip=self.clip)
        known = pooled._statistics()._replace(norms=own.norms.reshape(1, -1))
        if own.gram is not None:  # means of the clients', without another pass over the samples
            gram, moment = (jnp.mean(a, axis=0, keepdims=True) for a in (own.gram, own.moment))
            known = known._replace(gram=gram, moment=moment)
        return replace(self, statistics=own._replace(pooled=replace(pooled, statistics=known)))

    @property
    def design(self) -> Float[Array, "clients samples width"]:
        """The inputs in which the predictions are linear, the features or their map. Where a clip
        or a bound holds for any data, rows that are not finite count as zero.
        """
        if self.feature_map is None:
            return self.features
        values = self._features_of(self.features)
        return _finite(values) if self._promises else values

    def _features_of(self, inputs: Float[Array, "*points width"]) -> Float[Array, "*points dim"]:
        """The inputs themselves, or what the feature map makes of them."""
        if self.feature_map is None:
            return inputs
        shape = (*inputs.shape[:-1], self.feature_map.dim)
        return _check.returned("feature_map", self.feature_map(inputs), shape)

    @property
    def _promises(self) -> bool:
        """Whether a bound of gradients must hold for any data."""
        return self.clip is not None or self.feature_bound is not None

    def usable(self) -> "Problem":
        """The same problem, mapped, with feature rows that are not finite replaced by zero: such a
        sample has zero gradient at any model.

        A map may make finite features infinite or NaN (such as the direction of a sample at zero),
        and a single such row would do the same to the client's gradient. Every privacy budget
        relies on this replacement, and a clip or feature bound implies it; results count such
        samples (``unusable_samples``).
        """
        ready = self.mapped()
        return replace(ready, features=_finite(ready.features))

    def unusable_samples(self) -> Int[Array, ""]:
        """Number of samples whose features, once mapped, are not finite."""
        values = self._features_of(jnp.asarray(self.features))
        bad = ~jnp.all(jnp.isfinite(values), axis=2) & (jnp.asarray(self.weights) > 0)
        return jnp.sum(bad, dtype=jnp.int32)

    def mapped(self) -> "Problem":
        """The same problem with the feature map's values as its features, computed once."""
        features = self.design
        if self._promises:
            features = _finite(features)
        if self.feature_bound is not None:
            norms = norm(features)[..., None]
            bound = jnp.asarray(self.feature_bound, features.dtype)
            features = jnp.where(norms > bound, features * (bound / norms), features)
        test = None if self.test is None else self.test.mapped()
        return replace(self, features=features, feature_map=None, test=test)

    @property
    def is_summarized(self) -> bool:
        """Whether the Gram matrix, which is smaller, replaces the samples in gradients."""
        quadratic = isinstance(self.loss, LeastSquares) and self.clip is None
        return quadratic and self.samples > self.dim

    def _statistics(self) -> Statistics:
        few = self.features.shape[2] <= FEW_FEATURES and self.loss.outputs == 1
        columns = jnp.swapaxes(self.features, 1, 2) if few else None
        gram = moment = None
        if self.is_summarized:
            gram, moment = 2 * self.second_moment(), 2 * self.correlation(self.targets)
        return Statistics(gram, moment, self._feature_norms(), columns, None)

    def pooled(self) -> "Problem":
        r"""All data at one client, whose objective is :math:`\frac1K\sum_k f_k`."""
        clients, samples = self.weights.shape
        features, targets = (
            a.reshape(1, clients * samples, *a.shape[2:]) for a in (self.features, self.targets)
        )
        return replace(
            self,
            features=features,
            targets=targets,
            weights=self.weights.reshape(1, clients * samples) / clients,
            strength=jnp.mean(self.share),
            clip=None,
            statistics=None,
            tasks=None,
            initial=None,
            test=None,
            importance=None if self.importance is None else jnp.mean(self.importance)[None],
        )

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
          ValueError: known indices of clients that there are not.
        """
        _check.indices("clients", clients, self.clients)
        self = self.apart()  # noqa: PLW0642 (as in `prepare`)
        kept, strength = self.statistics, jnp.asarray(self.strength)
        importance = None if self.importance is None else self.importance[clients]
        if rows is None:
            data = (self.features, self.targets, self.weights, kept)
            features, targets, weights, kept = jax.tree.map(lambda a: a[clients], data)
        else:
            at = (clients[:, None], rows)
            features, targets = self.features[at], self.targets[at]
            weights = self.weights.at[at].get(mode="fill", fill_value=0)
            total = jnp.sum(weights, axis=1, keepdims=True)
            weights = weights / jnp.where(total > 0, total, 1)
            if importance is not None:
                weights = weights * importance[:, None]
            if kept is not None:
                kept = Statistics(None, None, kept.norms[at], None, None)
        return replace(
            self,
            features=features,
            targets=targets,
            weights=weights,
            strength=strength[clients]
            if strength.ndim
            else strength * (clients.shape[0] / self.clients),
            statistics=kept,
            importance=importance,
        )

    def apart(self) -> "Problem":
        """The problem without what all clients have in common: held-out data, pooled statistics,
        tasks and initial models.
        """
        kept = None if self.statistics is None else self.statistics._replace(pooled=None)
        alone = replace(self, test=None, statistics=kept, tasks=None, initial=None)
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
        return along(self.weights, values) * values

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
        return jnp.sum(self.weights * score(self.loss, self.predictions(w), self.targets), axis=1)

    def cross_scores(
        self, models: Float[Array, "models dim"], score: Callable[[Loss, Array, Array], Array]
    ) -> Float[Array, "clients models"]:
        """The scores of every model on every client's samples, as one product: a row for each model
        would require a copy of the data.
        """
        outputs, count = self.loss.outputs, len(models)
        models = models.reshape(count, outputs, -1)
        predictions = jnp.einsum("qtp,kop->qkto", self.design, models, precision=HIGHEST)
        if outputs == 1:
            predictions = predictions[..., 0]
        scores = score(self.loss, predictions, self.targets[:, None])
        return jnp.sum(self.weights[:, None] * scores, axis=2)

    def objective(self, w: Float[Array, "clients dim"]) -> Float[Array, " clients"]:
        r"""Each client's :math:`f_k(w_k)`."""
        return self.mean_loss(w) + self.share * self.regularizer.value(w)

    def mean_loss(self, w: Float[Array, "clients dim"]) -> Float[Array, " clients"]:
        r"""Each client's :math:`\frac1{D_k}\sum_j\ell`, without the regularizer."""
        return self.scores(w, value_of)

    def sample_gradient_norm(self, w: Float[Array, "clients dim"]) -> Float[Array, " clients"]:
        """The largest per-sample loss-gradient norm of each client, after clipping."""
        derivative = self.loss.derivative(self.predictions(w), self.targets)
        if self.clip is not None:
            derivative = self._clipped(derivative)
        norms = self._sample_norms(derivative)
        return jnp.max(jnp.where(self.weights > 0, norms, 0), axis=1)

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
        of the client's gradient if it had no other sample; zero on padding.
        """
        derivative = self.loss.derivative(self.predictions(w), self.targets)
        if self.clip is not None:
            derivative = self._clipped(derivative)
        length, pull = directed(self.share[:, None] * self.regularizer.gradient(w))
        along = derivative * self.predictions(pull)
        if self.loss.outputs > 1:
            along = jnp.sum(along, axis=2)
        norms = norm_of_sum(self._sample_norms(derivative), length[:, None], along)
        return jnp.where(self.weights > 0, norms, 0)

    def loss_gradient(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""A subgradient of each client's mean loss :math:`\frac1{D_k}\sum_j\ell`, clipped."""
        return evaluated(self._slope(w), self.weights.shape[1])

    def loss_gradient_in_parts(
        self,
        w: Float[Array, "clients dim"],
        sizes: tuple[int, ...],
        clips: Float[Array, " parts"],
    ) -> Float[Array, "clients dim"]:
        """As :meth:`loss_gradient`, each part of a sample's gradient clipped by itself.

        Args:
          w: ``[K, D]``.
          sizes: numbers of parameters of the parts, one after the other.
          clips: the largest norm of each part; the problem itself has a clip, too.
        """
        return evaluated(self._slope_in_parts(w, sizes, clips), self.weights.shape[1])

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

    def _slope_in_parts(
        self, w: Float[Array, "clients dim"], sizes: tuple[int, ...], clips: Array
    ) -> Float[Array, "clients dim"]:
        derivative, design = self.loss.derivative(self.predictions(w), self.targets), self.design
        sums, start = [], 0
        for i, size in enumerate(sizes):
            own, values = replace(self, clip=clips[i]), derivative
            if self.loss.outputs == 1:
                columns = design[..., start : start + size]
                own = replace(own, features=columns, feature_map=None, statistics=None)
            else:
                first, count = start // design.shape[2], size // design.shape[2]
                values = derivative[..., first : first + count]
            sums.append(own._combination_in_blocks(own.weighted(own._clipped(values))))
            start += size
        return jnp.concatenate(sums, axis=1)

    def _slope(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        known = self.statistics is not None and self.statistics.gram is not None
        if known and self.clip is None:  # a clip that came later needs each sample
            product = jnp.einsum("kpq,kq->kp", self.statistics.gram, w, precision=HIGHEST)
            return product - self.statistics.moment
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
            half, odd = blocks // 2, sums[:, blocks - blocks % 2 :]
            sums = sums[:, :half] + sums[:, half : 2 * half]
            sums = jnp.concatenate([sums, odd], axis=1)
        return sums[:, 0]

    @property
    def _block(self) -> int:
        """Samples whose gradients are one sum; all of them where nothing bounds these."""
        samples = self.samples
        divisors = [size for size in range(8, BLOCK + 1) if samples % size == 0]
        whole = samples <= BLOCK or not divisors or not self._promises
        return samples if whole else divisors[-1]

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
        unit, samples, block = float(jnp.finfo(self.dtype).eps) / 2, self.samples, self._block
        sums = block**2 + (4 * samples if block < samples else 0)
        return (2 * (self.design.shape[2] / 2 + 8) + sums) * unit

    def gradient(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""A subgradient of each client's :math:`f_k`; the regularizer is public and never
        clipped.
        """
        return self.loss_gradient(w) + self.regularizer_gradient(w)

    def regularizer_gradient(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""A subgradient of each client's :math:`\frac\lambda KR`."""
        return self.share[:, None] * self.regularizer.gradient(w)

    # What some algorithms read of a model beside its gradient ----------------------------------

    def gradient_of(
        self,
        losses: Callable[[Reading, Array, Any], Array],
        w: Float[Array, "clients dim"],
        given: Any = (),
    ) -> Float[Array, "clients dim"]:
        r"""The gradient of each client's objective with another loss of its samples than
        :math:`\ell`; per-sample gradients are clipped as those of :math:`\ell` are.

        Args:
          losses: ``(reading, row, given) -> [N]``, the losses of some samples of one client, of its
            model and of what it is given; differentiable in the model ``row``.
          w: the models.
          given: arrays ``[K, ...]`` of each client that ``losses`` takes.

        Example:
          >>> import jax, jax.numpy as jnp, fljax as fl
          >>> def calmed(reading, row, temperature):
          ...     return reading.losses(reading.predictions(row) / temperature)
          >>> key, w = jax.random.key(0), jnp.ones((4, 6))
          >>> problem = fl.problems.softmax(key, clients=4, samples=9, dim=2, classes=3)
          >>> slope = problem.gradient_of(calmed, w, jnp.array([1.0, 2.0, 4.0, 8.0]))
          >>> jnp.isclose(slope, problem.gradient(w), atol=1e-6).all(axis=1).tolist()
          [True, False, False, False]
        """

        def one(row: Array, given: Any, features: Array, targets: Array) -> Array:
            return losses(Reading(self, features, targets), row, given)

        slope = evaluated(self._slope_of(one, w, given), self.weights.shape[1])
        return slope + self.share[:, None] * self.regularizer.gradient(w)

    def representations(
        self, w: Float[Array, "clients dim"]
    ) -> Float[Array, "clients samples width"]:
        """``[K, N, R]``, what each client's model makes of its samples before the head; the
        features of linear predictions.
        """
        return self.design

    @property
    def represents(self) -> bool:
        """Whether a model's representation of samples is known."""
        return True

    def head_coordinates(self) -> Bool[np.ndarray, " dim"]:
        """The mask of the parameters of the head, ``[D]`` booleans; all, of linear predictions."""
        return np.ones(self.dim, bool)

    def class_counts(self) -> Int[Array, "clients classes"]:
        """Number of samples of each class at each client, ``[K, C]``.

        Raises:
          ValueError: a loss that is not :class:`~fljax.problems.Softmax`.
        """
        if not isinstance(self.loss, Softmax):
            raise ValueError(
                f"classes are those of the loss Softmax(classes), got {type(self.loss).__name__}."
            )
        own = jax.nn.one_hot(jnp.asarray(self.targets, jnp.int32), self.loss.classes, dtype=bool)
        real = jnp.asarray(self.weights) > 0
        return jnp.sum(own & real[..., None], axis=1, dtype=jnp.int32)

    def _outputs(self, row: Float[Array, " dim"], features: Array) -> Array:
        """Predictions of one model for some samples, mapped already."""
        return self.head(row, features)

    def _representation(self, row: Float[Array, " dim"], features: Array) -> Array:
        return features

    def head(
        self, row: Float[Array, " dim"], representation: Float[Array, "samples width"]
    ) -> Array:
        """Predictions of one model from representations of any samples."""
        if self.loss.outputs == 1:
            return jnp.einsum("np,p->n", representation, row, precision=HIGHEST)
        matrix = row.reshape(self.loss.outputs, -1)
        return jnp.einsum("np,op->no", representation, matrix, precision=HIGHEST)

    def _values(self, score: Callable, predictions: Array, targets: Array) -> Array:
        return score(self.loss, predictions, targets)

    def _slope_of(self, losses: Callable[..., Array], w: Any, given: Any) -> Array:
        """``[K, D]``, of ``losses(row, given, features, targets) -> [N]``."""
        slope = self._client_slope(losses)
        return jax.vmap(slope)((w, given), self.design, self.targets, self.weights)

    def _client_slope(
        self,
        losses: Callable[..., Array],
        parts: tuple[tuple[int, ...], Array] | None = None,
    ) -> Callable[..., Array]:
        """The gradient of one client's weighted sum of losses, ``((row, given), features, targets,
        weights) -> [D]``, of clipped per-sample gradients under a clip; or of ones whose parts, of
        these sizes, are clipped to these norms.
        """

        def total(row: Array, given: Any, x: Array, y: Array, weights: Array) -> Array:
            return jnp.sum(weights * losses(row, given, x, y))

        def whole(both: Any, x: Array, y: Array, weights: Array) -> Array:
            return jax.grad(total)(*both, x, y, weights)

        def clipped(both: Any, x: Array, y: Array, weights: Array) -> Array:
            pieces = jax.vmap(pieces_of(self._sample_slope(losses)), (None, 0, 0))(both, x, y)
            if parts is None:
                return clipped_sum(pieces, jnp.asarray(self.clip, weights.dtype), weights)
            sizes, clips = parts
            each = [
                clipped_sum(own, clips[i].astype(weights.dtype), weights)
                for i, own in enumerate(parted(pieces, sizes))
            ]
            return jnp.concatenate(each)

        return whole if self.clip is None else clipped

    def _sample_slope(self, losses: Callable[..., Array]) -> Callable[..., Array]:
        """The gradient of one sample's loss, ``((row, given), features, target) -> [D]``."""

        def slope(both: Any, features: Array, target: Array) -> Array:
            row, given = both
            return jax.grad(lambda row: losses(row, given, features[None], target[None])[0])(row)

        return slope

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
        # No infinities: what XLA makes of constant ones is not to be relied on.
        allowed = jnp.minimum(self.clip / jnp.where(norms > 0, norms, 1), huge)
        allowed = jnp.where(norms > 0, allowed, jnp.where(norms == 0, huge, 0))
        if self.loss.outputs == 1:
            return jnp.clip(derivative, -allowed, allowed)
        derivative = jnp.clip(derivative, -huge, huge)
        size = norm(derivative)
        keep = jnp.where(size > allowed, allowed / jnp.where(size > 0, size, 1), 1)
        return derivative * keep[..., None]

    def _feature_norms(self) -> Float[Array, "clients samples"]:
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
    whole = jnp.all(jnp.isfinite(features), axis=-1, keepdims=True)
    return jnp.where(whole, features, 0)


def _where(real: np.ndarray, data: Array) -> Array:
    """The data of real samples, zero elsewhere."""
    return jnp.where(along(real, data), data, jnp.zeros_like(data))


def _importance(factor: Any, clients: int) -> Any:
    factor = _check.array("importance", factor)
    if factor.shape != (clients,):
        raise ValueError(
            f"importance must be one number of each of the {clients} clients, got shape "
            f"{factor.shape}."
        )
    _check.nonnegative("importance", factor)

    def known(factor: Any) -> None:
        if not np.any(np.asarray(factor) > 0):
            raise ValueError(
                "importance is zero for every client, and nothing is learned; give one > 0."
            )

    _check.known(known, factor)
    with np.errstate(over="ignore"):
        kept = factor.astype(float_dtype())
    _check.representable("importance", factor, kept)
    return kept


def check_test(test: Any, clients: int, dim: int) -> None:
    """Raise unless the held-out data, if any, are common or one set per client, for models of this
    size.
    """
    if test is None:
        return
    if not isinstance(test, Problem):
        raise TypeError(
            f"test must be an fljax.problems.Problem, got {_check.shown(test)}; "
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
    data: Sequence[tuple[Any, Any]],
    loss: Loss,
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 1.0,
    *,
    feature_map: Any = None,
    tasks: Tasks | None = None,
    test: Sequence[tuple[Any, Any]] | None = None,
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
      test: held-out data, likewise one ``(features, targets)`` per client, or a single one for all.

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
    there = weights.any(axis=1)
    return None if there.all() else there.astype(float_dtype())


def stacked(
    name: str, data: Sequence[tuple[Any, Any]], linear: bool = True
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
            np.asarray(_check.array(f"{part} of client {k}{where}", values))
            for part, values in zip(("features", "targets"), pair, strict=True)
        )
        if linear and y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]  # a column of a table
        # Truth and falsehood become labels where the loss is known.
        truth = y.dtype == np.bool_
        arrays.append((as_floats(x), y if truth else as_floats(y)) if linear else (x, y))
    empty = [len(x) == len(y) == 0 and name == "data" for x, y in arrays]
    first = next((pair for pair, none in zip(arrays, empty, strict=True) if not none), None)
    if first is None:
        raise ValueError(
            f"all {len(arrays)} clients{where} have no samples; give one of them some."
        )
    # A client without samples holds one of no weight: zeros, or another's, which networks take.
    one = [part[:1] * 0 if linear else part[:1] for part in first]
    arrays = [
        (one[0], one[1].astype(first[1].dtype)) if none else pair
        for pair, none in zip(arrays, empty, strict=True)
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
        np.full(len(x), 0 if none else 1 / len(x), float_dtype())
        for (x, _), none in zip(arrays, empty, strict=True)
    ]

    def pad(rows: np.ndarray, mode: Any = "constant") -> np.ndarray:
        return np.pad(rows, [(0, longest - len(rows))] + [(0, 0)] * (rows.ndim - 1), mode)

    mode = "constant" if linear else "edge"
    features, targets = (
        np.stack([pad(a, mode) for a in part]) for part in zip(*arrays, strict=True)
    )
    return features, targets, np.stack([pad(w) for w in weights])


def sizes_to_weights(
    samples: int | Sequence[int], clients: int, dtype: Any
) -> tuple[int, np.ndarray]:
    """The padded number of samples and the ``[K, N]`` weights of clients with these sizes."""
    if _check.is_whole(samples):
        _check.count("samples", samples)
        samples = int(samples)
        return samples, np.full((clients, samples), 1 / samples, dtype)
    sizes = np.asarray(samples)
    if sizes.shape != (clients,) or not np.issubdtype(sizes.dtype, np.integer):
        raise ValueError(
            f"samples must be one integer or {clients} integers (one a client), got "
            f"{_check.shown(samples)}."
        )
    if sizes.min() < 1:
        raise ValueError(
            f"client {int(np.argmin(sizes))} has no samples; every client needs at least one."
        )
    longest = int(sizes.max())
    return longest, (np.arange(longest) < sizes[:, None]).astype(dtype) / sizes[:, None].astype(
        dtype
    )
