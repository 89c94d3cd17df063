"""The request for a study: stated once, checked before anything is compiled.

A :class:`Request` holds the arguments; a :class:`Study` is the request with its grid built and
grouped by structure, and the program of each group.
"""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import jax
import numpy as np
import xarray as xr

from fljax import _check
from fljax._arguments import check, rule
from fljax._generator import GENERATOR, check_generator, random_key
from fljax._memory import check_fits
from fljax._module import float_dtype
from fljax._version import __version__
from fljax.engine import check_rounds
from fljax.privacy.secrets import fingerprint_of, secret_of
from fljax.records import describe
from fljax.simulation import Simulation
from fljax.study import engine, machine
from fljax.study.engine import Program
from fljax.study.grid import Axis, Group, Scenario, axes_of, label_of, numbers_of

__all__ = ["Request", "Study", "parse_shard"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of :func:`fljax.sweep`; all checks that do not need the scenario are made.

    Attributes:
      fresh: whether the scenario is traced anew, even if it was seen before, as required with a
        store.
      seed_list: the seeds, one by one.
      secret: what the noise seed stands for, empty without one; never recorded.

    Raises:
      TypeError, ValueError: by the checks of single values.
    """

    scenario: Scenario
    rounds: int
    seeds: int | Sequence[int] = 1
    grid: Mapping[str, Any] | None = None
    record_every: int = 1
    root: int = 0
    generator: str = GENERATOR
    block: int | None = None
    workers: int | None = None
    keep_models: bool = False
    independent_noise: bool = False
    noise_seed: int | str | None = field(default=None, repr=False)
    shard_over: str = "seeds"
    segment: int | None = None  # rounds between checkpoints, if asked for
    until: Mapping[str, float] | None = None
    fresh: bool = False
    seed_list: list[int] = field(init=False)
    secret: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Those of NumPy overflow, and those of JAX cannot be told to another process.
        for name in ("rounds", "record_every", "root", "block", "workers", "segment"):
            if _check.is_whole(value := getattr(self, name)):
                object.__setattr__(self, name, int(value))
        try:
            hash(self.scenario)
        except TypeError:
            kind = type(self.scenario).__name__
            raise TypeError(
                f"scenario must be hashable, since what it builds is remembered by it, and a "
                f"{kind} is not; give a function, or make its class a dataclass(frozen=True)."
            ) from None
        check_rounds(self.rounds, self.record_every)
        for name in ("grid", "until"):
            check(name, getattr(self, name), rule(Mapping | None))
        _check.seed("root", self.root)
        object.__setattr__(self, "seed_list", _seeds(self.seeds))
        for name, most in {"block": 2**31, "workers": 10_000, "segment": 2**31}.items():
            value = getattr(self, name)
            if value is not None:
                _check.count(name, value, at_most=most)
        if self.segment is not None and self.segment % self.record_every:
            raise ValueError(
                f"segment must be a multiple of record_every={self.record_every}, got "
                f"{self.segment}."
            )
        for name in ("keep_models", "independent_noise"):
            _check.switch(name, getattr(self, name))
        object.__setattr__(self, "secret", secret_of(self.noise_seed, stored=self.fresh))
        _check.choice("shard_over", self.shard_over, ("seeds", "clients"))
        check_generator(self.generator)

    @property
    def records(self) -> int:
        """Of every run."""
        return self.rounds // self.record_every


@dataclass(frozen=True)
class Study:
    """A request whose scenario was built and checked at its grid points."""

    asked: Request
    axes: list[Axis]
    groups: list[Group]
    program: Program
    identities: list[str]  # of the groups' programs
    block: int | None  # seeds per block, if that is settled
    workers: int
    until: dict[str, float]

    @classmethod
    def of(cls, asked: Request) -> "Study":
        """Build the grid points of a request.

        Raises:
          TypeError, ValueError: by the checks of what the scenario builds, with the point named; a
            request that does not fit the scenario.
        """
        axes = axes_of(asked.grid)
        program = engine.program(
            engine.Same(asked.scenario),
            asked.rounds,
            asked.record_every,
            asked.keep_models,
            asked.shard_over,
            asked.generator,
            engine.Options.now(),
        )
        groups = program.groups(axes, asked.fresh)
        block, workers = asked.block, asked.workers
        if asked.shard_over == "clients":
            block, workers = block or 1, 1  # every run takes all devices
            _check_shares(groups)
        if asked.keep_models:
            _check_shapes(groups)
        _check_names(axes, groups)
        until = _tolerances(asked.until or {}, groups)
        with engine.hint_at_static(axes):
            identities = [program.identity(group, asked.fresh) for group in groups]
            if asked.fresh:
                _check_known(program, identities)
            _check_axes(program, groups)
        if asked.independent_noise or asked.secret:
            groups = [program.with_noise(group, axes, asked.secret) for group in groups]
        program.share(groups)
        workers = machine.default_workers() if workers is None else workers
        return cls(asked, axes, groups, program, identities, block, workers, until)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the grid."""
        return tuple(len(axis.labels) for axis in self.axes)

    @property
    def labels(self) -> list[str]:
        """Of all grid points, in the order of the grid."""
        return [label_of(self.axes, p) for p in itertools.product(*map(range, self.shape))]

    def names(self, group: int) -> list[str]:
        """Labels of a group's points."""
        return [label_of(self.axes, position) for position in self.groups[group].positions]

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Attributes of a dataset that describe the metrics and the privacy budgets."""
        shown = [group.shown for group in self.groups]
        return describe((m for s in shown for m in s.metrics), (s.privacy for s in shown))

    @property
    def built(self) -> list[tuple[Simulation, xr.DataArray]]:
        """The simulations, as shapes, and at which grid points each is."""
        built = []
        for group in self.groups:
            where = np.zeros(self.shape, bool)
            where[tuple(zip(*group.positions, strict=True))] = True
            built.append((group.shown, xr.DataArray(where, dims=[a.name for a in self.axes])))
        return built

    @functools.cached_property
    def root_key(self) -> np.ndarray:
        """Data of the key that is folded with a run's seed: it depends on nothing else."""
        return _root_key(self.asked.root, self.asked.generator, float_dtype())

    def description(self) -> dict[str, Any]:
        """The description of the study for a store."""
        asked, points = self.asked, {}
        for group, identity in zip(self.groups, self.identities, strict=True):
            horizon = None if group.shown.privacy is None else asked.rounds
            for position in group.positions:
                points[label_of(self.axes, position)] = {
                    "program": identity,
                    "numbers": numbers_of(self.axes, position),
                    "horizon": horizon,
                }
        return {
            "identity": {
                "fljax": __version__,
                "jax": jax.__version__,
                "jaxlib": metadata.version("jaxlib"),
                "dtype": str(float_dtype()),
                "prng": asked.generator,
                "root": asked.root,
                "record_every": asked.record_every,
                "keep_models": asked.keep_models,
                "independent_noise": asked.independent_noise,
                "until": self.until,
            }
            | ({"noise_seed": fingerprint_of(asked.secret)} if asked.secret else {}),
            "points": points,
            "axes": {axis.name: axis.labels for axis in self.axes},
            "seeds": asked.seed_list,
            "rounds": asked.rounds,
            "metrics": self.metrics,
        }


@functools.lru_cache(maxsize=64)
def _root_key(root: int, generator: str, precision: np.dtype) -> np.ndarray:
    """Data of the key of an integer, which JAX makes of more bits in double precision."""
    del precision
    data = np.array(jax.random.key_data(random_key(root, generator)))
    data.flags.writeable = False  # it is the next study's too
    return data


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if _check.is_whole(seeds) or not isinstance(seeds, Iterable):
        _check.count("seeds", seeds, hint="It is the number of Monte-Carlo runs per grid point.")
        check_fits(f"a study of {seeds} seeds", seeds, each=100, mend="take fewer seeds")
        return list(range(int(seeds)))
    if isinstance(seeds, bytes | Mapping):
        raise TypeError(f"seeds must be a list of integers, got {_check.shown(seeds)}.")
    numbers = np.asarray(seeds if hasattr(seeds, "dtype") else list(seeds))
    if numbers.size and (numbers.ndim != 1 or numbers.dtype.kind not in "iu"):
        raise TypeError(
            f"seeds must be a number of runs or a list of integers, got {_check.shown(seeds)}; "
            "range(100, 200) are the hundred after the first hundred."
        )
    numbers = numbers.tolist()
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**32 or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"seeds must be distinct integers >= 0, at least one, all below 2**32, got {numbers}."
        )
    return numbers


def _check_shares(groups: list[Group]) -> None:
    for group in groups:
        clients, devices = group.shown.problem.clients, jax.device_count()
        if clients % devices:
            raise ValueError(
                f"{clients} clients cannot be shared out evenly over {devices} devices; take "
                "a multiple, or shard_over='seeds'."
            )


def _check_shapes(groups: list[Group]) -> None:
    shapes = {(group.shown.problem.clients, group.shown.problem.dim) for group in groups}
    if len(shapes) > 1:
        raise ValueError(
            f"models of several shapes, {sorted(shapes)} (clients, parameters), cannot be kept in "
            "one array; run those grid points as studies of their own, or leave keep_models out."
        )


def _check_known(program: Program, identities: list[str]) -> None:
    for identity in identities:
        if unknown := program.unknown[identity]:
            raise ValueError(
                "a store cannot tell this study from another: on the host it calls "
                f"{unknown}. Make it of functions, numbers, arrays and objects that can be "
                "pickled, or leave store= out."
            )


def _check_names(axes: list[Axis], groups: list[Group]) -> None:
    metrics = [m for group in groups for m in group.shown.metrics]
    measured = {name for m in metrics for name in (m.name, *m.dims)}  # pyright: ignore
    for axis in axes:
        if axis.name in measured:
            raise ValueError(
                f"grid axis {axis.name!r} has the name of a recorded metric, or of an axis of one; "
                "rename it (and the scenario's argument)."
            )


def _check_axes(program: Program, groups: list[Group]) -> None:
    """Raise ``ValueError`` where an axis of a metric is longer at one point than at another."""
    if len(groups) == 1 or not any(m.dims for g in groups for m in g.shown.metrics):  # pyright: ignore
        return
    lengths: dict[str, int] = {}
    for group in groups:
        recorded = program.shapes(group).records
        for metric in group.shown.metrics:
            for dim, size in zip(metric.dims, recorded[metric.name].shape[1:], strict=True):  # pyright: ignore
                if lengths.setdefault(dim, size) != size:
                    raise ValueError(
                        f"the axis {dim!r} of the metric {metric.name!r} has {size} rows at one "  # pyright: ignore
                        f"grid point and {lengths[dim]} at another, which one array cannot keep; "
                        "run those points as studies of their own."
                    )


def _tolerances(until: Mapping[str, float], groups: list[Group]) -> dict[str, float]:
    if until and any(group.shown.privacy is not None for group in groups):
        raise ValueError(
            "until= ends runs by their metrics, which look at private data and at no cost to the "
            "budget: under privacy= the number of rounds must not depend on them. Leave it out."
        )
    numbers = ({m.name for m in group.shown.metrics if not m.dims} for group in groups)  # pyright: ignore
    known = set.intersection(*numbers)
    for name, level in until.items():
        _check.choice("metric in until", name, sorted(known))
        _check.nonnegative(f"until[{name!r}]", level)
    return {name: float(level) for name, level in until.items()}


def parse_shard(shard: str | tuple[int, int]) -> tuple[int, int]:
    """``"2/5"`` or ``(2, 5)``, the second of five parts, as (1, 5), counted from zero.

    Raises:
      ValueError: anything else.
    """
    try:
        part, parts = shard.split("/") if isinstance(shard, str) else shard
        part, parts = int(part), int(parts)
    except (TypeError, ValueError, np.ma.MaskError):
        part, parts = 0, 0
    if not 1 <= part <= parts:
        raise ValueError(f"shard must be 'i/n' with 1 <= i <= n, got {_check.shown(shard)}.")
    return part - 1, parts
