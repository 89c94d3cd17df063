"""Cells of the tables of McMahan et al. 2017: how many rounds FedAvg needs to an accuracy on MNIST.

All 60,000 images at 100 clients, in random order or in two shards of one digit each. Runs end when
they reach the target accuracy.
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

import fljax as fl
from experiments.figure import Effort, Estimate, Measure, Setting, Studies
from experiments.measures import joined, of_few
from fljax._core.module import float_dtype
from fljax.algorithms import FedAvg
from fljax.data import partition
from fljax.data.images import Images
from fljax.problems import Model, Softmax

SOURCE = "McMahan et al. 2017"
ERROR = "error_rate"

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 100, "section 3, of 600 images each", given=True)
COUNT = Setting(
    "rounds until then",
    "best so far, interpolated",
    "the curve of the best accuracy so far, linear between records (section 3)",
    given=True,
)
START = Setting(
    "initial weights",
    (1.0, 0.1),
    "not given: He's law (variance 2/n of n inputs), and weights of a tenth of its size beside it",
)
SEEDS = Setting(
    "seeds at most",
    3,
    "start, participants and batches anew for each; the partition is one, as in the source. "
    "Intervals are Student's t of the jackknife over paired seeds",
)

# --------------------------------------------------------------------------- cells


class Tried(NamedTuple):
    """A step size and the size of the initial weights, as part of He's."""

    step: Any
    scale: Any

    def __str__(self) -> str:
        small = "" if self.scale == 1 else f", start x {self.scale:g}"
        return f"step {self.step:g}{small}"


class Cell(NamedTuple):
    """One cell of a table.

    Attributes:
      chosen: clients a round.
      epochs: E.
      batch: B, or ``None`` for all of a client's images.
      shards: whether a client has two shards of one digit each.
      published: rounds, in the source.
      steps: that are tried.
      every: how many rounds are between two records.
    """

    chosen: int
    epochs: int
    batch: int | None
    shards: bool
    published: int
    steps: tuple[float, ...]
    every: int


#: Records between two tests whether a run has reached its target.
LOOK = 10


def longest(multiple: float) -> Setting:
    """The multiple of the published rounds after which an unfinished run is stopped."""
    return Setting(
        "rounds after which a run is given up",
        multiple,
        "in multiples of the published ones; it is counted as if it were there by then",
    )


class Size(NamedTuple):
    """The learning problem and its clients."""

    images: Callable[[], Images]
    clients: int
    network: Any
    target: float  # accuracy
    longest: int | None = None  # rounds, of all cells


class Table(NamedTuple):
    """A table of the source: its cells by name, with their readings and measures.

    Attributes:
      name: of its stores.
      cells: by name.
      longest: the setting of :func:`longest`.
      small: a further try with small initial weights instead of He's, by cell.
    """

    name: str
    cells: Mapping[str, Cell]
    full: Size
    tiny: Size  # for tests
    longest: Setting
    small: Mapping[str, Tried] = MappingProxyType({})

    def tries(self, name: str) -> list[Tried]:
        """The tries of a cell."""
        steps = [Tried(step, START.value[0]) for step in self.cells[name].steps]
        return [*steps, *([self.small[name]] if name in self.small else [])]

    def rounds(self, cell: Cell) -> int:
        """The number of rounds after which an unfinished run is stopped."""
        look = LOOK * cell.every
        return -(-round(self.longest.value * cell.published) // look) * look

    def study(self, effort: Effort) -> Studies:
        size = self.tiny if effort.quick else self.full
        return {name: self._cell(name, size, effort) for name in self.cells}

    def _cell(self, name: str, size: Size, effort: Effort) -> Any:
        cell = self.cells[name]
        dtype = float_dtype()
        every = 1 if size.longest else cell.every
        runs = [
            effort.sweep(
                f"{self.name}, {name}, {tried}".replace(" = ", "").replace(", ", "-"),
                scenario(cell, size),
                rounds=size.longest or self.rounds(cell),
                record_every=every,
                segment=LOOK * every,
                # An accelerator runs all seeds together; a core only the unfinished ones.
                block=1 if jax.default_backend() == "cpu" else None,
                until={ERROR: 1 - size.target},
                seeds=min(effort.seeds, SEEDS.value),
                grid={"tried": {str(tried): Tried(*np.asarray(tried, dtype))}},
            )
            for tried in self.tries(name)
        ]
        return joined(*runs, axis="tried").assign_attrs(target=1 - size.target)

    # Reading -------------------------------------------------------------------------------------

    def rounds_to(self, studies: Studies, name: str, tried: Tried) -> np.ndarray:
        """``[S]``: rounds until the target accuracy; all rounds if it is not reached."""
        data = studies[name]
        errors = data[ERROR].sel(tried=str(tried)).transpose("seed", "round").values.astype(float)
        best = np.minimum.accumulate(np.where(np.isfinite(errors), errors, 1), axis=1)
        return np.asarray(
            [
                crossing(data["round"].values.astype(float), row, data.attrs["target"])
                for row in best
            ]
        )

    def best(self, studies: Studies, name: str) -> Tried:
        """The try with He's initial weights and the fewest rounds in its slowest seed: a step that
        fails for some seeds is not the best.
        """
        options = [tried for tried in self.tries(name) if tried.scale == START.value[0]]
        return min(options, key=lambda tried: self.rounds_to(studies, name, tried).max())

    def needed(self, studies: Studies, name: str) -> np.ndarray:
        """``[S]``: rounds of a cell, with its best step."""
        return self.rounds_to(studies, name, self.best(studies, name))

    def of_published(self, *names: str) -> Measure:
        """The rounds of cells, relative to the source's."""
        return lambda studies: {
            name: self._of_published(name, self.needed(studies, name)) for name in names
        }

    def saved(self, *pairs: tuple[str, str]) -> Measure:
        """The rounds of the first of each pair over those of the second's."""
        return lambda studies: {
            f"{more} over {fewer}": self._ratio(
                self.needed(studies, more), self.needed(studies, fewer)
            )
            for more, fewer in pairs
        }

    def of_tried(self, name: str, tried: Tried) -> Measure:
        """The rounds of a cell with a step and a start, relative to the source's."""
        return lambda studies: {
            str(tried): self._of_published(name, self.rounds_to(studies, name, tried))
        }

    def with_small_start(self, studies: Studies) -> dict[str, Estimate]:
        """Rounds with small initial weights over those with He's, at the same step."""
        estimates = {}
        for name, small in self.small.items():
            standard = Tried(small.step, START.value[0])
            rounds = [self.rounds_to(studies, name, tried) for tried in (small, standard)]
            estimates[f"{small} over {standard}"] = self._ratio(*rounds)
        return estimates

    def counts(self, *names: str) -> Callable[[Studies], str]:
        """A note: the rounds that each cell took with each step."""

        def note(studies: Studies) -> str:
            return (
                "Here it takes "
                + "; ".join(
                    f"{name}: "
                    + ", ".join(
                        f"{self.rounds_to(studies, name, tried).mean():.0f} with {tried}"
                        for tried in self.tries(name)
                    )
                    + f" (published {self.cells[name].published})"
                    for name in names
                )
                + f". A run is given up after {self.longest.value:g} times the published."
            )

        return note

    def table(self, studies: Studies) -> list[dict[str, Any]]:
        """The step that each cell has, for the record."""
        return [
            {
                "method": name,
                "numbers": f"{best}, {self.needed(studies, name).max():.0f} rounds at most",
                "chosen": True,
            }
            for name in self.cells
            for best in [self.best(studies, name)]
        ]

    def _of_published(self, name: str, rounds: np.ndarray) -> Estimate:
        published = self.cells[name].published
        return of_few(lambda mean: mean / published, rounds, unit="times the published")

    @staticmethod
    def _ratio(over: np.ndarray, under: np.ndarray) -> Estimate:
        return of_few(lambda a, b: a / b, over, under, unit="times")


def crossing(rounds: np.ndarray, best: np.ndarray, target: float) -> float:
    """The round in which a falling curve is at a target, linear between records; the last record
    where it never is.
    """
    at_target = best <= target
    if not at_target.any():
        return float(rounds[-1])
    after = int(np.argmax(at_target))
    if not after:
        return float(rounds[0])
    share = (best[after - 1] - target) / (best[after - 1] - best[after])
    return float(rounds[after - 1] + share * (rounds[after] - rounds[after - 1]))


# --------------------------------------------------------------------------- runs


@functools.cache
def dealt(size: Size, shards: bool) -> Model:
    """All images, at clients."""
    dataset = size.images()
    if shards:
        rows = partition.by_label(dataset.train_labels, size.clients, 2, 0)
    else:
        rows = partition.iid(len(dataset.train_labels), size.clients, 0)
    rows = np.stack([r[: min(map(len, rows))] for r in rows])

    def problem(images: np.ndarray, labels: np.ndarray, **rest: Any) -> Model:
        scaled = (images / np.float32(255)).astype(np.float32)
        return Model(
            *(scaled, labels.astype(np.float32), Softmax(10)), architecture=size.network, **rest
        )

    test = problem(dataset.test_images[None], dataset.test_labels[None])
    return problem(dataset.train_images[rows], dataset.train_labels[rows], test=test)


@functools.cache
def scenario(cell: Cell, size: Size) -> Callable[..., fl.Simulation]:
    def build(key: Array, tried: Tried) -> fl.Simulation:
        problem = dealt(size, cell.shards).initialized(key)
        algorithm = FedAvg(
            tried.step,
            clients_per_round=min(cell.chosen, size.clients),
            epochs=cell.epochs,
            batch=cell.batch,
        )
        started = problem.starting_at(tried.scale * problem.initial)
        return fl.Simulation(started, algorithm, metrics=[ERROR])

    return build
