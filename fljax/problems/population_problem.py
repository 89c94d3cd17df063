"""Problems whose clients are on disk: a round holds the participants' samples alone."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.cohort_rows import Rows, rows_of
from fljax._core.module import float_dtype, module, replace, static
from fljax.problems.objectives import Loss, NoRegularizer, Regularizer
from fljax.problems.pool import PooledRows, tile_size
from fljax.problems.population_files import PooledSamples, Population
from fljax.problems.problem import HeldOutData, Problem, check_test, from_clients
from fljax.problems.tasks import Tasks

#: A round's samples are a pool where padding would take this multiple of their number.
PADDING = 2

#: The data of a problem.
DATA = ("features", "targets", "weights")


class OnDisk(Problem):
    """A base of problems of a population, next to their class in memory (``made``)."""

    population: Population
    evaluated: tuple[int, ...]
    view: Any  # the problem of these clients, or None
    padded: bool

    on_disk: ClassVar[bool] = True
    made: ClassVar[type[Problem]] = Problem

    def validate(self) -> None:
        checks.registered("loss", self.loss)
        checks.registered("regularizer", self.regularizer)
        for name, rows in self._empty_data().items():
            object.__setattr__(self, name, rows)
        checks.strength(self.strength, self.clients)
        checks.start(self.initial, self.clients, self.dim)
        check_test(self.test, self.clients, self.dim)
        if self.tasks is not None:
            self._check_tasks(self.tasks)
            if self.tasks.validation is not None:
                raise ValueError(
                    "tasks have held-out data of every client, and those of a population are on "
                    "disk; leave out validation=, and give test= of the evaluated ones."
                )
        if self.clip is not None:
            checks.positive("clip", self.clip)

    def _empty_data(self) -> dict[str, Rows]:
        """The data of a round without participants."""
        return {n: Rows(n, None, rows, self.clients) for n, rows in self.shapes(0).items()}

    def shapes(self, count: int) -> dict[str, Any]:
        """The shapes and types of :meth:`read` for a number of clients."""
        (x, x_type), (y, y_type) = self.population.features, self.population.targets
        features = x, self._type("features", x_type)
        kinds = features, (y, self._type("targets", y_type)), ((), float_dtype())
        leading = count, self.population.largest
        rows: list[Any] = [
            jax.ShapeDtypeStruct((*leading, *shape), dtype) for shape, dtype in kinds
        ]
        if self._is_pooled(count):
            size = self.population.most_samples(count)
            pool = jax.ShapeDtypeStruct((size, *x), features[1])
            numbers = jax.ShapeDtypeStruct(leading, np.dtype(np.int32))
            rows[0] = PooledRows(pool, numbers, tile_size(count, self.samples, size))
        return dict(zip(DATA, rows, strict=True))

    def _is_pooled(self, count: int) -> bool:
        """Whether the samples of a number of clients are a pool in a round: where padding each
        client to the largest one would take several times as many.
        """
        if not count or self.padded or self.mixes_samples:  # normalized over padded samples
            return False
        return count * self.samples >= PADDING * self.population.most_samples(count)

    def _type(self, name: str, dtype: np.dtype) -> np.dtype:
        """The type of data in a round: whole numbers stay whole where the network or the loss takes
        them, as in memory.
        """
        floating = jnp.issubdtype(dtype, jnp.floating) or name not in self._integer_data()
        return float_dtype() if floating else jax.dtypes.canonicalize_dtype(dtype)

    @property
    def clients(self) -> int:
        return len(self.population)

    @property
    def samples(self) -> int:
        return self.population.largest

    @property
    def dtype(self) -> np.dtype:
        return float_dtype()

    def read(self, clients: np.ndarray) -> dict[str, Any]:
        """The data of some clients as a round gets them: features, targets and weights.

        Raises:
          ValueError: numbers that the precision of the run cannot hold, targets that are not labels
            of the loss.
        """
        is_pooled = self._is_pooled(len(clients))
        reader = self.population.read_pooled if is_pooled else self.population.read
        cohort = reader(clients)
        sizes = cohort.sizes[:, None]
        position = np.arange(self.samples)
        real = position < sizes
        weights = np.where(real, 1 / np.maximum(sizes, 1), 0).astype(float_dtype())
        rows = None
        targets = cohort.targets
        if isinstance(cohort, PooledSamples):
            # As in memory, what comes after a client's samples repeats the last one.
            last = np.maximum(sizes - 1, 0)
            rows = np.minimum(cohort.starts[:, None] + np.minimum(position, last), len(targets) - 1)
            targets = targets[rows]
        data = {"features": cohort.features, "targets": targets}
        with np.errstate(over="ignore"):  # infinite numbers are named below
            arrays = {n: a.astype(self._type(n, a.dtype), copy=False) for n, a in data.items()}
        for name, array in arrays.items():
            if array.dtype.itemsize < data[name].dtype.itemsize:
                checks.finite(f"{name} of the population", array)
        if type(self.loss).check_targets is not Loss.check_targets:
            self.loss.check_targets(arrays["targets"][real])
        features: Any = arrays["features"]
        if rows is not None:
            tile = tile_size(len(rows), self.samples, len(features))
            features = PooledRows(features, rows.astype(np.int32), tile)
        return arrays | {"features": features, "weights": weights}

    def bare(self) -> Any:
        """The same problem without its data, as an argument of a compiled program."""
        return replace(self, **dict.fromkeys(DATA))

    def stored(self) -> Any:
        """The same problem without participants."""
        return replace(self, **self._empty_data())

    @property
    def judged(self) -> Problem:
        return super().judged if self.view is None else self.view

    def holding(self, numbers: Int[Array, " chosen"], data: Mapping[str, Any]) -> Any:
        """The same problem in a round whose participants' data are these."""
        rows = {name: Rows(name, numbers, data[name], self.clients) for name in DATA}
        return replace(self, **rows)

    def weighing(self, importance: object) -> NoReturn:
        """Raise ``ValueError``: an objective of clients with factors of their own is of clients in
        memory, whose metrics and optimum have the same factors.
        """
        raise ValueError(
            "the clients of a population have one importance each; take an algorithm's "
            'weighting="samples" for averages by their samples, or clients in memory '
            "(fljax.problems.from_clients) for factors of their own."
        )

    def prepare(self) -> Any:
        """The problem itself."""
        return self

    def mapped(self) -> Any:
        """The problem itself."""
        return self

    def usable(self) -> Any:
        """The problem itself: a population's numbers are finite."""
        return self

    def unusable_samples(self) -> Int[Array, ""]:
        return jnp.zeros((), jnp.int32)

    def take(
        self, clients: Int[Array, " chosen"], rows: Int[Array, "chosen batch"] | None = None
    ) -> Problem:
        """As in :class:`Problem`, of participants of the round."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self.made)}  # pyright: ignore[reportArgumentType]
        fields |= {name: rows_of(fields[name], clients) for name in DATA}
        if jnp.ndim(self.strength):
            fields["strength"] = rows_of(self.strength, clients)
        else:
            fields["strength"] = self.strength * (clients.shape[0] / self.clients)
        if self.tasks is not None:
            fields["tasks"] = self.tasks.of_clients(clients)
        for name in ("importance", "assignment"):
            if getattr(self, name, None) is not None:
                fields[name] = rows_of(fields[name], clients)
        part = object.__new__(self.made)  # without validation, which checked all of it
        for name, value in (fields | {"test": None, "initial": None}).items():
            object.__setattr__(part, name, value)
        part = self._with_statistics(part)
        if rows is None:
            return part
        return part.take(jnp.arange(len(clients), dtype=jnp.int32), rows)

    def _with_statistics(self, part: Problem) -> Problem:
        """Participants' problem with the statistics that a run from memory computes once."""
        return part

    @property
    def influence(self) -> Float[Array, " clients"]:
        share = (1 / self.population.sizes).astype(float_dtype())
        return jnp.asarray(share if self.importance is None else share * self.importance)

    @property
    def total_weights(self) -> Float[Array, " clients"]:
        return jnp.asarray(self.population.sizes, float_dtype()) * self.influence

    def sample_counts(self) -> Int[Array, " clients"]:
        return jnp.asarray(self.population.sizes, jnp.int32)

    def class_counts(self) -> Any:
        numbers = cast(Rows, self.targets).numbers
        counts = self.take(numbers).class_counts()
        return Rows("numbers of each class", numbers, counts, self.clients)


@module
class PopulationProblem(OnDisk, Problem):
    """A :class:`Problem` of linear predictions that holds the samples of a round's participants
    alone; made by :func:`from_population`.

    Args:
      population: the clients.
      evaluated: ``[J]``, the clients whose samples metrics read.
      view: the problem of these, in memory, with held-out data of each if there are some.
      padded: whether a round's samples are padded to the largest client at any cost in memory.
    """

    population: Population = static(kw_only=True)
    evaluated: tuple[int, ...] = static(default=(), kw_only=True)
    view: Problem | None = None
    padded: bool = static(default=False, kw_only=True)

    def validate(self) -> None:
        (x, _), (y, _) = self.population.features, self.population.targets
        if len(x) != 1 or y:
            raise ValueError(
                "linear predictions are of samples with one row of features and one target each, "
                f"got features {list(x)} and targets {list(y)}; write them so, or take a network "
                "(fljax.problems.Model.from_population)."
            )
        for name in ("feature_map", "feature_bound"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is for data in memory; of a population, write the mapped or scaled "
                    "samples, and bound gradients by problem.clipped(bound)."
                )
        super().validate()

    def _with_statistics(self, part: Problem) -> Problem:
        return replace(part, statistics=part._statistics())


def evaluation_of(
    population: Population,
    regularizer: Regularizer,
    strength: Array | float,
    test: object,
    evaluated: Sequence[int] | None,
    build: Callable[..., Problem],
) -> dict[str, Any]:
    """The data of a population that metrics read: its evaluated clients and their problem, or
    held-out data of all.

    Args:
      population: the clients.
      regularizer: as in :class:`Problem`.
      strength: as in :class:`Problem`.
      test: held-out data, one pair for all or one for each evaluated client.
      evaluated: the numbers of these.
      build: from pairs of features and targets, one for each client, a problem in memory.
    """
    if evaluated is not None:
        numbers = _numbers(evaluated, len(population))
        data = [population[k] for k in numbers]
        shares = np.asarray(strength)  # a client's share of the regularizer stays its own
        shares = (
            shares[list(numbers)] if shares.ndim else np.full(len(data), shares / len(population))
        )
        view = build(data, regularizer=regularizer, strength=shares, test=test)
        return {"evaluated": numbers, "view": view}
    if test is None:
        return {}
    common = build([test] if isinstance(test, tuple) else test)
    if common.clients > 1:
        raise ValueError(
            f"test= holds data of {common.clients} clients; say which clients they are of, "
            "evaluated=[...], or give one pair for all."
        )
    return {"test": replace(common, initial=None)}


def _numbers(evaluated: Sequence[int], clients: int) -> tuple[int, ...]:
    numbers = np.asarray(evaluated)
    if numbers.ndim != 1 or not numbers.size or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(
            f"evaluated must be a list of clients' numbers, got {checks.shown(evaluated)}."
        )
    if numbers.min() < 0 or numbers.max() >= clients or len(np.unique(numbers)) < numbers.size:
        raise ValueError(
            f"evaluated must be different clients from 0 to {clients - 1}, got "
            f"{checks.shown(evaluated)}."
        )
    return tuple(numbers.tolist())


@checked
def from_population(
    population: Population,
    loss: Loss,
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 1.0,
    *,
    test: HeldOutData | None = None,
    evaluated: Sequence[int] | None = None,
    tasks: Tasks | None = None,
) -> Problem:
    """Linear predictions whose clients are on disk and are read a cohort at a time.

    As :meth:`Model.from_population`, which states the data that a run reads and keeps, and the
    algorithms and selectors that it supports.

    Args:
      population: an :class:`fljax.data.Population` of samples with a row of features and one target
        each.
      loss: as in :class:`Problem`.
      regularizer: as in :class:`Problem`.
      strength: as in :class:`Problem`.
      test: held-out data: one ``(features, targets)`` for all, or one for each evaluated client.
      evaluated: numbers of the clients whose samples, and own models where an algorithm has them,
        metrics read: they are kept in memory, and the metrics are means over these.
      tasks: the clusters of all clients, as in :class:`Problem`, without held-out data of each.

    Raises:
      TypeError, ValueError: as :class:`Problem`; samples of other shapes, evaluated clients that
        are not different clients of the population, held-out data of clients that are not given,
        tasks of another number of clients.

    Example:
      >>> import pathlib, tempfile, numpy as np, fljax as fl
      >>> rng = np.random.default_rng(0)
      >>> clients = [(x, x @ [1.0, -2.0]) for x in rng.normal(size=(50, 20, 2)).astype("f4")]
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     problem = fl.problems.from_population(
      ...         fl.data.write_population(pathlib.Path(folder) / "fifty", clients[1:]),
      ...         fl.problems.LeastSquares(),
      ...         test=clients[0],
      ...     )
      ...     algorithm = fl.algorithms.SCAFFOLD(0.1, clients_per_round=5, local_steps=5)
      ...     model = fl.run(fl.Simulation(problem, algorithm), rounds=60).model
      >>> model.values.round(2).tolist()
      [1.0, -2.0]
    """

    def build(pairs: Any, **settings: Any) -> Problem:
        if isinstance(settings.get("test"), tuple):
            settings["test"] = [settings["test"]]
        return from_clients(pairs, loss, **settings)

    evaluation = evaluation_of(population, regularizer, strength, test, evaluated, build)
    if tasks is not None and evaluation.get("view") is not None:
        of_evaluated = tasks.of_clients(jnp.asarray(evaluation["evaluated"], jnp.int32))
        evaluation["view"] = replace(evaluation["view"], tasks=of_evaluated)
    return PopulationProblem(
        None, None, loss, regularizer, strength, population=population, tasks=tasks, **evaluation
    )
