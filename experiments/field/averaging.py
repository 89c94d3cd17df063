"""Cells of the tables of McMahan et al. 2017: how many rounds FedAvg needs to an accuracy on MNIST.

All 60,000 images at 100 clients, in random order or in two shards of one digit each. Runs end when
they reach the target accuracy, or are given up.

Rounds are censored on two sides. A run that was given up needs more rounds than it had; and where
the best step is the smallest or largest of those tried, the best of all steps may need fewer. An
:class:`~experiments.figure.Estimate` is then open on that side, and a claim that needs this side
is undecided.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

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
MOST = Setting(
    "step sizes of a cell, at most",
    5,
    "while the best one is the smallest or largest so far, its half or double is tried, too. Those "
    "that were run for the stored results are under Tuning, with the seeds on which they were "
    "compared; the source tries eleven to thirteen of each cell and does not name them. The best "
    "is the one whose slowest seed is fastest",
)
#: How verdicts differ from earlier ones on the same results.
CENSORED = (
    "Runs that were given up no longer count as if they were at the target by then: rounds are "
    "bounded from below. Where the best step is the smallest or largest that was tried they are "
    "bounded from above only."
)
#: What becomes of diverged runs, for a figure's page.
DIVERGED = "counted as not at the target from then on"

# --------------------------------------------------------------------------- cells


class Tried(NamedTuple):
    """A step size and the size of the initial weights, as part of He's."""

    step: Any
    scale: Any

    def __str__(self) -> str:
        small = "" if self.scale == 1 else f", start x {self.scale:g}"
        return f"step {self.step:g}{small}"

    @classmethod
    def of(cls, text: str) -> "Tried":
        """The inverse of ``str``."""
        numbers = re.fullmatch(r"step ([^,]+)(?:, start x (.+))?", text)
        if numbers is None:
            raise ValueError(f"{text!r} names no step.")
        step, scale = numbers.groups()
        return cls(float(step), START.value[0] if scale is None else float(scale))


class Rounds(NamedTuple):
    """The rounds that runs need to the target accuracy, with one step.

    Attributes:
      needed: infinite where the target was not reached.
      longest: rounds after which a run was given up.
      at_edge: whether a step beyond those tried may need fewer.
    """

    needed: Float[np.ndarray, " seeds"]
    longest: float = math.inf
    at_edge: bool = False

    @property
    def all_reached(self) -> bool:
        return bool(np.isfinite(self.needed).all())

    @property
    def at_least(self) -> Float[np.ndarray, " seeds"]:
        """A lower bound of each run's rounds."""
        return np.minimum(self.needed, self.longest)

    @property
    def median(self) -> float:
        """The Kaplan-Meier median, infinite if it is not reached. As all runs of a cell are given
        up after the same number of rounds, it is the median with infinite rounds for these.
        """
        return float(np.median(self.needed))


class Cell(NamedTuple):
    """One cell of a table.

    Attributes:
      chosen: clients a round.
      epochs: E.
      batch: B, or ``None`` for all of a client's images.
      shards: whether a client has two shards of one digit each.
      published: rounds, in the source.
      steps: that are tried first; none where the cell has the best step of another.
      every: how many rounds are between two records.
      like: the name of this other cell.
    """

    chosen: int
    epochs: int
    batch: int | None
    shards: bool
    published: int
    steps: tuple[float, ...]
    every: int
    like: str | None = None


#: Half of one of 10,000 test images, as a rate: rates are whole numbers of images, and rounded in
#: stored results.
HALF_AN_IMAGE = 0.5e-4

#: Records between two tests whether a run has reached its target.
LOOK = 10


def longest(multiple: float) -> Setting:
    """The multiple of the published rounds after which an unfinished run is stopped."""
    return Setting(
        "rounds after which a run is given up",
        multiple,
        "in multiples of the published ones; it is counted as not at the target",
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

    def rounds(self, cell: Cell) -> int:
        """The number of rounds after which an unfinished run is stopped."""
        look = LOOK * cell.every
        return -(-round(self.longest.value * cell.published) // look) * look

    def study(self, effort: Effort) -> Studies:
        size = self.tiny if effort.quick else self.full
        studies: dict[str, xr.Dataset] = {}
        for name in self.cells:
            for tried in self.first_tries(studies, name):
                self._try(studies, name, tried, size, effort)
            while not effort.quick and (tried := self._further(studies, name)) is not None:
                self._try(studies, name, tried, size, effort)
        return studies

    def first_tries(self, studies: Studies, name: str) -> list[Tried]:
        """The tries with which the search of a cell begins."""
        like = self.cells[name].like
        if like is not None:
            return [self.best(studies, like)]
        steps = [Tried(step, START.value[0]) for step in self.cells[name].steps]
        return [*steps, *([self.small[name]] if name in self.small else [])]

    def _further(self, studies: Studies, name: str) -> Tried | None:
        """The next try of a cell; ``None`` if its search is over."""
        at_end = (
            self.cells[name].like is not None or len(self._options(studies, name)) >= MOST.value
        )
        return None if at_end else self.beyond(studies, name)

    def _try(
        self, studies: dict[str, xr.Dataset], name: str, tried: Tried, size: Size, effort: Effort
    ) -> None:
        """Run a cell with a further step, and add it to the studies."""
        cell = self.cells[name]
        every = 1 if size.longest else cell.every
        run = effort.sweep(
            f"{self.name}, {name}, {tried}".replace(" = ", "").replace(", ", "-"),
            scenario(cell, size),
            rounds=size.longest or self.rounds(cell),
            record_every=every,
            segment=LOOK * every,
            # An accelerator runs all seeds together; a core only the unfinished ones.
            block=1 if jax.default_backend() == "cpu" else None,
            until={ERROR: 1 - size.target},
            seeds=min(effort.seeds, SEEDS.value),
            grid={"tried": {str(tried): Tried(*np.asarray(tried, float_dtype()))}},
        ).assign_attrs(target=1 - size.target)
        studies[name] = joined(studies[name], run, axis="tried") if name in studies else run

    # Reading -------------------------------------------------------------------------------------

    def tries(self, studies: Studies, name: str) -> list[Tried]:
        """What was tried in a cell."""
        return [Tried.of(text) for text in studies[name]["tried"].values]

    def _options(self, studies: Studies, name: str) -> list[Tried]:
        """The tries with He's initial weights."""
        return [tried for tried in self.tries(studies, name) if tried.scale == START.value[0]]

    def rounds_to(self, studies: Studies, name: str, tried: Tried) -> Rounds:
        """Rounds until the target accuracy; a run that diverged does not come to it later."""
        data = studies[name]
        errors = data[ERROR].sel(tried=str(tried)).transpose("seed", "round").values.astype(float)
        best = np.minimum.accumulate(np.where(np.isfinite(errors), errors, 1), axis=1)
        recorded = data["round"].values.astype(float)
        needed = [crossing(recorded, row, data.attrs["target"]) for row in best]
        return Rounds(np.asarray(needed), recorded[-1])

    def best(self, studies: Studies, name: str) -> Tried:
        """The try with He's initial weights and the fewest rounds in its slowest seed: a step that
        fails for some seeds is not the best. Among steps that all fail so, the median decides.
        """

        def slowness(tried: Tried) -> tuple[float, float, float]:
            rounds = self.rounds_to(studies, name, tried)
            return rounds.needed.max(), rounds.median, rounds.at_least.mean()

        return min(self._options(studies, name), key=slowness)

    def beyond(self, studies: Studies, name: str) -> Tried | None:
        """The step that would be tried next, if the best one is the smallest or largest so far."""
        steps = [tried.step for tried in self._options(studies, name)]
        best = self.best(studies, name)
        if best.step == max(steps):
            return best._replace(step=2 * best.step)
        return best._replace(step=best.step / 2) if best.step == min(steps) else None

    def at_edge(self, studies: Studies, name: str) -> bool:
        """Whether a step that was not tried may be better; a cell that has the step of another is
        judged with this one, and is at an edge where the other is.
        """
        like = self.cells[name].like
        if like is None:
            return self.beyond(studies, name) is not None
        return self.best(studies, name) != self.best(studies, like) or self.at_edge(studies, like)

    def needed(self, studies: Studies, name: str) -> Rounds:
        """Rounds of a cell, with its best step."""
        rounds = self.rounds_to(studies, name, self.best(studies, name))
        return rounds._replace(at_edge=self.at_edge(studies, name))

    def of_published(self, *names: str) -> Measure:
        """The rounds of cells, relative to the source's."""
        return lambda studies: {
            name: self._of_published(name, self.needed(studies, name)) for name in names
        }

    def saved(self, *pairs: tuple[str, str]) -> Measure:
        """The rounds of the first of each pair over those of the second's."""
        return lambda studies: {
            f"{more} over {fewer}": ratio(self.needed(studies, more), self.needed(studies, fewer))
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
            estimates[f"{small} over {standard}"] = ratio(
                self.rounds_to(studies, name, small), self.rounds_to(studies, name, standard)
            )
        return estimates

    def counts(self, *names: str) -> Callable[[Studies], str]:
        """A note: the rounds that each cell took with each step."""

        def note(studies: Studies) -> str:
            cells = "; ".join(
                f"{name}: "
                + ", ".join(
                    _in_words(self.rounds_to(studies, name, tried), tried)
                    for tried in self.tries(studies, name)
                )
                + f" (published {self.cells[name].published})"
                for name in names
            )
            edges = [name for name in names if self.at_edge(studies, name)]
            bounded = (
                " The best step is the smallest or largest that was tried, so that rounds are "
                f"bounded from above only, in: {'; '.join(edges)}. Further steps were not run."
            )
            return f"Here it takes {cells}.{bounded if edges else ''}"

        return note

    def table(self, studies: Studies) -> list[dict[str, Any]]:
        """The steps of each cell, for the record."""
        rows = []
        for name, cell in self.cells.items():
            data = studies[name]
            best = self.best(studies, name)
            slowest = self.needed(studies, name).needed.max()
            steps = ", ".join(f"{tried.step:g}" for tried in self._options(studies, name))
            seeds = ", ".join(map(str, data["seed"].values))
            how = (
                f"the best of {steps} on seeds {seeds}, on which it is judged"
                if cell.like is None
                else f"as the best of {cell.like}"
            )
            reached = f"{slowest:.0f} rounds at most" if np.isfinite(slowest) else "not reached"
            edge = "; at an edge" if self.at_edge(studies, name) else ""
            rows.append(
                {"method": name, "numbers": f"{best}, {how}{edge}; {reached}", "chosen": True}
            )
        return rows

    def _of_published(self, name: str, rounds: Rounds) -> Estimate:
        published = np.full(len(rounds.needed), float(self.cells[name].published))
        return ratio(rounds, Rounds(published), "times the published")


def _in_words(rounds: Rounds, tried: Tried) -> str:
    late = int(np.isinf(rounds.needed).sum())
    if late:
        return (
            f"more than {rounds.longest:.0f} for {late} of {len(rounds.needed)} seeds with {tried}"
        )
    return f"{rounds.needed.mean():.0f} with {tried}"


def ratio(over: Rounds, under: Rounds, unit: str = "times") -> Estimate:
    """Rounds over other rounds: of means, or of medians if some run was not at the target.

    The interval is that of :func:`experiments.measures.of_few`, for which unfinished runs count
    with their bounds, and is open where the other end of a bound is unknown.
    """
    bounds = of_few(lambda a, b: a / b, over.at_least, under.at_least, unit=unit)
    value = bounds.value
    if not (over.all_reached and under.all_reached):
        value = over.median / under.median if np.isfinite(under.median) else math.nan
    open_below = over.at_edge or not under.all_reached
    open_above = under.at_edge or not over.all_reached
    return Estimate(
        value,
        -math.inf if open_below else bounds.low,
        math.inf if open_above else bounds.high,
        unit,
    )


def crossing(rounds: np.ndarray, best: np.ndarray, target: float) -> float:
    """The round in which a falling curve is at a target, linear between records; infinite where it
    never is.
    """
    at_target = best <= target + HALF_AN_IMAGE
    if not at_target.any():
        return math.inf
    after = int(np.argmax(at_target))
    if not after:
        return float(rounds[0])
    share = min((best[after - 1] - target) / (best[after - 1] - best[after]), 1)
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
