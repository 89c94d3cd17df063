"""Problems whose clients are on disk, of which a round holds the participants' samples alone."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax import _check
from fljax._arguments import checked
from fljax._module import float_dtype, module, replace, static
from fljax._rows import Rows, rows_of
from fljax.populations import Cohort, Population
from fljax.problems.objectives import Loss, NoRegularizer, Regularizer
from fljax.problems.problem import Problem, check_test, from_clients

__all__ = ["OnDisk", "PopulationProblem", "evaluation_of", "from_population"]

#: The data of a problem.
DATA = ("features", "targets", "weights")


class OnDisk(Problem):
    """What problems of a population have in common, a base of these beside the kind of problem that
    its participants make (``made``).
    """

    population: Any  # Population
    evaluated: Any  # tuple of J numbers
    view: Any  # the problem of these clients, or None

    on_disk: ClassVar[bool] = True
    made: ClassVar[type[Problem]] = Problem

    def validate(self) -> None:
        _check.registered("loss", self.loss)
        _check.registered("regularizer", self.regularizer)
        for name, rows in self._of_nobody().items():
            object.__setattr__(self, name, rows)
        _check.strength(self.strength, self.clients)
        _check.start(self.initial, self.clients, self.dim)
        check_test(self.test, self.clients, self.dim)
        if self.clip is not None:
            _check.positive("clip", self.clip)

    def _of_nobody(self) -> dict[str, Rows]:
        """The data as long as nobody takes part."""
        return {n: Rows(n, None, rows, self.clients) for n, rows in self.shapes(0).items()}

    def shapes(self, count: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and types of :meth:`arrays` of so many clients."""
        (x, x_type), (y, y_type) = self.population.features, self.population.targets
        features = x, self._type("features", x_type)
        kinds = features, (y, self._type("targets", y_type)), ((), float_dtype())
        each = count, self.population.largest
        rows = [jax.ShapeDtypeStruct((*each, *shape), dtype) for shape, dtype in kinds]
        return dict(zip(DATA, rows, strict=True))

    def _type(self, name: str, dtype: np.dtype) -> Any:
        """The type of data in a round: whole numbers stay whole where the network or the loss takes
        them, as in memory.
        """
        floating = jnp.issubdtype(dtype, jnp.floating) or name not in self._whole()
        return float_dtype() if floating else jax.dtypes.canonicalize_dtype(dtype)

    @property
    def clients(self) -> int:
        return len(self.population)

    @property
    def samples(self) -> int:
        return self.population.largest

    @property
    def dtype(self) -> Any:
        return float_dtype()

    def arrays(self, cohort: Cohort) -> dict[str, np.ndarray]:
        """The data of some clients as a round gets them: features, targets and weights.

        Raises:
          ValueError: numbers that the precision of the run cannot hold, targets that are no labels
            of the loss.
        """
        real = np.arange(self.samples) < cohort.sizes[:, None]
        weights = np.where(real, 1 / cohort.sizes[:, None], 0).astype(float_dtype())
        data = {"features": cohort.features, "targets": cohort.targets}
        with np.errstate(over="ignore"):  # what becomes infinite is named
            arrays = {n: a.astype(self._type(n, a.dtype), copy=False) for n, a in data.items()}
        for name, array in arrays.items():
            if array.dtype.itemsize < data[name].dtype.itemsize:
                _check.finite(f"{name} of the population", array)
        if type(self.loss).check_targets is not Loss.check_targets:
            self.loss.check_targets(arrays["targets"][real])
        return arrays | {"weights": weights}

    def bare(self) -> Any:
        """The same problem without its data, as an argument of a compiled program."""
        return replace(self, **dict.fromkeys(DATA))

    def stored(self) -> Any:
        """The same problem where nobody takes part."""
        return replace(self, **self._of_nobody())

    @property
    def judged(self) -> Problem:
        return self if self.view is None else self.view

    def holding(self, numbers: Int[Array, " chosen"], data: Any) -> Any:
        """The same problem in a round whose participants' data are these."""
        rows = {name: Rows(name, numbers, data[name], self.clients) for name in DATA}
        return replace(self, **rows)

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
        known = {f.name: getattr(self, f.name) for f in dataclasses.fields(self.made)}  # pyright: ignore[reportArgumentType]
        known |= {name: rows_of(known[name], clients) for name in DATA}
        if jnp.ndim(self.strength):
            known["strength"] = rows_of(self.strength, clients)
        else:
            known["strength"] = self.strength * (clients.shape[0] / self.clients)
        if self.importance is not None:
            known["importance"] = rows_of(self.importance, clients)
        part: Any = object.__new__(self.made)  # of what was checked
        for name, value in (known | {"test": None, "initial": None}).items():
            object.__setattr__(part, name, value)
        part = self._known(part)
        if rows is None:
            return part
        return part.take(jnp.arange(len(clients), dtype=jnp.int32), rows)

    def _known(self, part: Problem) -> Problem:
        """Participants' problem with what a run from memory computes once."""
        return part

    @property
    def influence(self) -> Float[Array, " clients"]:
        share = (1 / self.population.sizes).astype(float_dtype())
        return jnp.asarray(share if self.importance is None else share * self.importance)

    def sample_counts(self) -> Int[Array, " clients"]:
        return jnp.asarray(self.population.sizes, jnp.int32)

    def class_counts(self) -> Any:
        numbers = self.targets.numbers
        counts = self.take(numbers).class_counts()
        return Rows("numbers of each class", numbers, counts, self.clients)


@module
class PopulationProblem(OnDisk, Problem):
    """A :class:`Problem` of linear predictions of which a round holds the participants' samples
    alone; made by :func:`from_population`.

    Args:
      population: the clients.
      evaluated: ``[J]``, the clients whose samples metrics read.
      view: the problem of these, in memory, with held-out data of each if there are some.
    """

    population: Population = static(kw_only=True)
    evaluated: tuple[int, ...] = static(default=(), kw_only=True)
    view: Problem | None = None

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

    def _known(self, part: Problem) -> Problem:
        return replace(part, statistics=part._statistics())


def evaluation_of(
    population: Population,
    regularizer: Regularizer,
    strength: Any,
    test: Any,
    evaluated: Sequence[int] | None,
    made: Callable[..., Problem],
) -> dict[str, Any]:
    """What metrics read of a population: its evaluated clients and their problem, or held-out data
    of all.

    Args:
      population: the clients.
      regularizer: as in :class:`Problem`.
      strength: as in :class:`Problem`.
      test: held-out data, one pair for all or one for each evaluated client.
      evaluated: the numbers of these.
      made: from pairs of features and targets, one for each client, a problem in memory.
    """
    if evaluated is not None:
        numbers = _numbers(evaluated, len(population))
        data = [population[k] for k in numbers]
        each: Any = np.asarray(strength)  # a client's share of the regularizer stays its own
        each = each[list(numbers)] if each.ndim else np.full(len(data), each / len(population))
        view = made(data, regularizer=regularizer, strength=each, test=test)
        return {"evaluated": numbers, "view": view}
    if test is None:
        return {}
    common = made([test] if isinstance(test, tuple) else test)
    if common.clients > 1:
        raise ValueError(
            f"test= holds data of {common.clients} clients; say which clients they are of, "
            "evaluated=[...], or give one pair for all."
        )
    return {"test": replace(common, initial=None)}


def _numbers(evaluated: Any, clients: int) -> tuple[int, ...]:
    numbers = np.asarray(evaluated)
    if numbers.ndim != 1 or not numbers.size or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(
            f"evaluated must be a list of clients' numbers, got {_check.shown(evaluated)}."
        )
    if numbers.min() < 0 or numbers.max() >= clients or len(np.unique(numbers)) < numbers.size:
        raise ValueError(
            f"evaluated must be different clients from 0 to {clients - 1}, got "
            f"{_check.shown(evaluated)}."
        )
    return tuple(numbers.tolist())


@checked
def from_population(
    population: Population,
    loss: Loss,
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 1.0,
    *,
    test: Sequence[tuple[Any, Any]] | tuple[Any, Any] | None = None,
    evaluated: Sequence[int] | None = None,
) -> Problem:
    """Linear predictions whose clients are on disk and are read a cohort at a time.

    As :meth:`Model.from_population`, where it is said what a run reads and keeps, and which
    algorithms and selectors it takes.

    Args:
      population: an :class:`fljax.data.Population` of samples with a row of features and one target
        each.
      loss: as in :class:`Problem`.
      regularizer: as in :class:`Problem`.
      strength: as in :class:`Problem`.
      test: held-out data: one ``(features, targets)`` for all, or one for each evaluated client.
      evaluated: numbers of the clients whose samples, and own models where an algorithm has them,
        metrics read: they are kept in memory, and the metrics are means over these.

    Raises:
      TypeError, ValueError: as :class:`Problem`; samples of other shapes, evaluated clients that
        are no different clients of the population, held-out data of clients that are not said.

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

    def made(pairs: Any, **settings: Any) -> Problem:
        if isinstance(settings.get("test"), tuple):
            settings["test"] = [settings["test"]]
        return from_clients(pairs, loss, **settings)

    evaluation = evaluation_of(population, regularizer, strength, test, evaluated, made)
    return PopulationProblem(
        None, None, loss, regularizer, strength, population=population, **evaluation
    )
