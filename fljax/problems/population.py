"""A network's problem whose clients are a population on disk (:mod:`fljax.data.population`).

A round holds its participants' samples alone: :class:`~fljax.participation.Rows`, whose doors are
those by which algorithms read clients' data in memory (``who.take``, ``who.of``, ``problem.take``).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fljax import _check
from fljax._arguments import checked
from fljax._module import float_dtype, module, replace, static
from fljax._rows import Rows, rows_of
from fljax.data.population import Cohort, Population
from fljax.models import Architecture
from fljax.problems.model import FunctionLoss, Model
from fljax.problems.objectives import Loss, NoRegularizer, Regularizer
from fljax.problems.problem import check_test

__all__ = ["PopulationModel", "from_population"]

#: The data of a problem, in a population on disk.
DATA = ("features", "targets", "weights")


@module
class PopulationModel(Model):
    """A :class:`Model` of which a round holds the participants' samples alone; made by
    :meth:`Model.from_population`.

    Args:
      population: the clients.
      evaluated: ``[J]``, the clients whose samples metrics read.
      view: the problem of these, in memory, with held-out data of each if there are some.
    """

    population: Population = static(kw_only=True)
    evaluated: tuple[int, ...] = static(default=(), kw_only=True)
    view: Model | None = None

    def validate(self) -> None:
        if not isinstance(self.loss, Loss):
            object.__setattr__(self, "loss", FunctionLoss(self.loss))
        _check.registered("loss", self.loss)
        _check.registered("regularizer", self.regularizer)
        for name, rows in self._on_disk().items():
            object.__setattr__(self, name, rows)
        _check.strength(self.strength, self.clients)
        _check.start(self.initial, self.clients, self.dim)
        check_test(self.test, self.clients, self.dim)
        if self.clip is not None:
            _check.positive("clip", self.clip)
        self._check_network()

    def _on_disk(self) -> dict[str, Rows]:
        """The data as long as nobody takes part."""
        (x, x_type), (y, y_type) = self.population.features, self.population.targets
        features = x, self._type("features", x_type)
        kinds = features, (y, self._type("targets", y_type)), ((), float_dtype())
        rows = [
            jax.ShapeDtypeStruct((0, self.population.largest, *shape), dtype)
            for shape, dtype in kinds
        ]
        return {n: Rows(n, None, r, self.clients) for n, r in zip(DATA, rows, strict=True)}

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

    def arrays(self, cohort: Cohort) -> dict[str, np.ndarray]:
        """The data of some clients as a round gets them: features, targets and weights."""
        real = np.arange(self.samples) < cohort.sizes[:, None]
        weights = np.where(real, 1 / cohort.sizes[:, None], 0).astype(float_dtype())
        data = {"features": cohort.features, "targets": cohort.targets}
        made = {n: a.astype(self._type(n, a.dtype), copy=False) for n, a in data.items()}
        return made | {"weights": weights}

    def bare(self) -> "PopulationModel":
        """The same problem without its data, as an argument of a compiled program."""
        return replace(self, **dict.fromkeys(DATA))

    def stored(self) -> "PopulationModel":
        """The same problem where nobody takes part."""
        return replace(self, **self._on_disk())

    @property
    def judged(self) -> Model:
        return self if self.view is None else self.view

    def holding(self, numbers: Int[Array, " chosen"], data: Any) -> "PopulationModel":
        """The same problem in a round whose participants' data are these."""
        rows = {name: Rows(name, numbers, data[name], self.clients) for name in DATA}
        return replace(self, **rows)

    def prepare(self) -> "PopulationModel":
        """The problem itself."""
        return self

    def take(
        self, clients: Int[Array, " chosen"], rows: Int[Array, "chosen batch"] | None = None
    ) -> Model:
        """As in :class:`Problem`, of participants of the round."""
        known = {f.name: getattr(self, f.name) for f in dataclasses.fields(Model)}
        known |= {name: rows_of(known[name], clients) for name in DATA}
        if jnp.ndim(self.strength):
            known["strength"] = rows_of(self.strength, clients)
        else:
            known["strength"] = self.strength * (clients.shape[0] / self.clients)
        if self.importance is not None:
            known["importance"] = rows_of(self.importance, clients)
        part: Any = object.__new__(Model)  # of what was checked
        for name, value in (known | {"test": None, "initial": None}).items():
            object.__setattr__(part, name, value)
        if rows is None:
            return part
        return part.take(jnp.arange(len(clients), dtype=jnp.int32), rows)

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


@checked
def from_population(
    population: Population,
    architecture: Architecture,
    key: Key[Array, ""],
    loss: Any,
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 1.0,
    *,
    test: Sequence[tuple[Any, Any]] | tuple[Any, Any] | None = None,
    evaluated: Sequence[int] | None = None,
    compute: str | None = None,
) -> PopulationModel:
    """As :meth:`Model.from_population`."""
    settings: dict[str, Any] = {"architecture": architecture, "compute": compute}
    numbers: tuple[int, ...] = ()
    view = common = None
    if evaluated is not None:
        numbers = _numbers(evaluated, len(population))
        data = [population[k] for k in numbers]
        view = Model.from_clients(
            architecture, key, data, loss, regularizer, test=test, compute=compute
        )
    elif test is not None:
        pairs: Any = [test] if isinstance(test, tuple) else test
        common = Model.from_clients(architecture, key, pairs, loss, compute=compute)
        if common.clients > 1:
            raise ValueError(
                f"test= holds data of {common.clients} clients; say which clients they are of, "
                "evaluated=[...], or give one pair for all."
            )
        common = replace(common, initial=None)
    problem: Any = PopulationModel(
        None,
        None,
        loss,
        regularizer,
        strength,
        test=common,
        population=population,
        evaluated=numbers,
        view=view,
        **settings,
    )
    return problem.initialized(key)


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
