"""The arguments of a study, checked before anything is compiled.

A :class:`Request` has the arguments of :func:`fljax.sweep`. A :class:`Study` is built from it: the
grid's points, grouped by structure, and the program that computes them.
"""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from fljax._core import checks
from fljax._core.annotations import check, rule_of
from fljax._core.memory import check_fits
from fljax._core.module import float_dtype
from fljax._core.prng import GENERATOR, check_generator, random_key
from fljax._core.version import __version__
from fljax.metrics.definitions import check_scalar
from fljax.privacy.secrets import fingerprint_of, secret_of
from fljax.results.dataset import describe
from fljax.simulation.sampling_checks import network_of_selector
from fljax.simulation.scan import check_rounds
from fljax.simulation.scenario import Simulation
from fljax.study import batched_program, block_sizes
from fljax.study.batched_program import Program
from fljax.study.block_sizes import BlockSizes
from fljax.study.grid import Axis, Group, Scenario, axes_of, label_of, naming_point, numbers_digest


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of :func:`fljax.sweep`, after all checks that do not need the scenario.

    Attributes:
      retrace: whether to trace the scenario again even if it is cached, as a store requires.
      seed_list: the seeds, one by one.
      secret: the secret of the noise seed, empty without one; never recorded.

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
    segment: int | None = None  # rounds between checkpoints, if requested
    until: Mapping[str, float] | None = None
    retrace: bool = False
    seed_list: list[int] = field(init=False)
    secret: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Integers of NumPy overflow, and integers of JAX cannot be sent to another process.
        for name in ("rounds", "record_every", "root", "block", "workers", "segment"):
            if checks.is_whole(value := getattr(self, name)):
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
            check(name, getattr(self, name), rule_of(Mapping | None))
        checks.seed("root", self.root)
        object.__setattr__(self, "seed_list", _seed_list(self.seeds))
        for name, most in {"block": 2**31, "workers": 10_000, "segment": 2**31}.items():
            value = getattr(self, name)
            if value is not None:
                checks.count(name, value, at_most=most)
        if self.segment is not None and self.segment % self.record_every:
            raise ValueError(
                f"segment must be a multiple of record_every={self.record_every}, got "
                f"{self.segment}."
            )
        for name in ("keep_models", "independent_noise"):
            checks.switch(name, getattr(self, name))
        object.__setattr__(self, "secret", secret_of(self.noise_seed, stored=self.retrace))
        checks.choice("shard_over", self.shard_over, ("seeds", "clients"))
        check_generator(self.generator)

    @property
    def records(self) -> int:
        """Number of records of every run."""
        return self.rounds // self.record_every


@dataclass(frozen=True)
class Study:
    """A request whose scenario was built and checked at its grid points."""

    request: Request
    axes: list[Axis]
    groups: list[Group]
    program: Program
    identities: list[str]  # of the groups' programs
    block: int | None  # seeds per block, if requested
    workers: int
    until: dict[str, float]
    #: Block sizes of groups for which another process has chosen them; see `fljax.study.pieces`.
    sizes: dict[int, BlockSizes] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> "Study":
        """Build the grid points of a request.

        Raises:
          TypeError, ValueError: invalid parts that the scenario builds, with the point named; a
            request that does not fit the scenario.
        """
        axes = axes_of(request.grid)
        program = batched_program.program(
            batched_program.ScenarioKey(request.scenario),
            request.rounds,
            request.record_every,
            request.keep_models,
            request.shard_over,
            request.generator,
            batched_program.Options.of_this_thread(),
        )
        groups = program.groups(axes, request.retrace)
        block = request.block
        workers = request.workers
        on_disk = any(group.abstract.problem.on_disk for group in groups)
        if on_disk:
            _check_populations(request, groups)
        if request.shard_over == "clients":
            block = block or 1
            workers = 1  # every run uses all devices
            if not on_disk:
                _check_divisible(groups)
        if request.keep_models:
            _check_shapes(groups)
        _check_names(axes, groups)
        until = _checked_tolerances(request.until or {}, groups)
        with batched_program.hint_at_static(axes):
            identities = []
            for group in groups:
                with naming_point(axes, group.positions[0]):
                    identities.append(program.identity(group, request.retrace))
            if request.retrace:
                _check_identified(program, identities)
            _check_axes(program, groups)
        if request.independent_noise or request.secret:
            groups = [program.with_noise(group, axes, request.secret) for group in groups]
        program.share(groups)
        workers = block_sizes.default_workers() if workers is None else workers
        return cls(request, axes, groups, program, identities, block, workers, until)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the grid."""
        return tuple(len(axis.labels) for axis in self.axes)

    @property
    def labels(self) -> list[str]:
        """Labels of all grid points, in the order of the grid."""
        return [label_of(self.axes, p) for p in itertools.product(*map(range, self.shape))]

    def names(self, group: int) -> list[str]:
        """Labels of a group's points."""
        return [label_of(self.axes, position) for position in self.groups[group].positions]

    @property
    def on_disk(self) -> bool:
        """Whether its runs are over a population on disk."""
        return self.groups[0].abstract.problem.on_disk

    @property
    def evaluated(self) -> list[int]:
        """The clients of a population that metrics evaluate."""
        return list(getattr(self.groups[0].abstract.problem, "evaluated", ()))

    @property
    def of_servers(self) -> bool:
        """Whether its models are of several servers of a population."""
        return self.on_disk and network_of_selector(self.groups[0].abstract) is not None

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Attributes of a dataset that describe the metrics and the privacy budgets."""
        simulations = [group.abstract for group in self.groups]
        return describe(
            (m for s in simulations for m in s.metrics), (s.privacy for s in simulations)
        )

    @property
    def built(self) -> list[tuple[Simulation, xr.DataArray]]:
        """The simulations as shapes, and a mask of the grid points of each."""
        built = []
        for group in self.groups:
            mask = np.zeros(self.shape, bool)
            mask[tuple(zip(*group.positions, strict=True))] = True
            built.append((group.abstract, xr.DataArray(mask, dims=[a.name for a in self.axes])))
        return built

    @functools.cached_property
    def root_key(self) -> np.ndarray:
        """Data of the root key; a run's key folds its seed into it."""
        return _root_key(self.request.root, self.request.generator, float_dtype())

    def description(self) -> dict[str, Any]:
        """The description of the study for a store."""
        request = self.request
        points = {}
        for group, identity in zip(self.groups, self.identities, strict=True):
            horizon = None if group.abstract.privacy is None else request.rounds
            for position in group.positions:
                points[label_of(self.axes, position)] = {
                    "program": identity,
                    "numbers": numbers_digest(self.axes, position),
                    "horizon": horizon,
                }
        return {
            "identity": {
                **versions(),
                "dtype": str(float_dtype()),
                "prng": request.generator,
                "root": request.root,
                "record_every": request.record_every,
                "keep_models": request.keep_models,
                "independent_noise": request.independent_noise,
                "until": self.until,
            }
            | ({"noise_seed": fingerprint_of(request.secret)} if request.secret else {}),
            "points": points,
            "axes": {axis.name: axis.labels for axis in self.axes},
            "seeds": request.seed_list,
            "rounds": request.rounds,
            "metrics": self.metrics,
        } | {
            name: value
            for name in ("evaluated", "of_servers")
            if (value := getattr(self, name))  # only where there is something to say
        }


@functools.cache
def versions() -> dict[str, str]:
    """The versions on which results depend."""
    return {
        "fljax": __version__,
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),  # looked up in files, which takes a millisecond
    }


@functools.lru_cache(maxsize=64)
def _root_key(root: int, generator: str, precision: np.dtype) -> np.ndarray:
    """Data of the root key; cached by precision, since JAX uses more bits of the seed in double."""
    del precision
    data = np.array(jax.random.key_data(random_key(root, generator)))
    data.flags.writeable = False  # cached, shared by later studies
    return data


def _seed_list(seeds: int | Sequence[int]) -> list[int]:
    """The seeds, one by one, from their number or a list."""
    seeds = checks.plain(seeds)
    if checks.is_whole(seeds) or not isinstance(seeds, Iterable):
        checks.count("seeds", seeds, hint="It is the number of Monte-Carlo runs per grid point.")
        check_fits(f"a study of {seeds} seeds", seeds, entry_bytes=100, mend="take fewer seeds")
        return list(range(int(seeds)))
    if isinstance(seeds, bytes | Mapping):
        raise TypeError(f"seeds must be a list of integers, got {checks.shown(seeds)}.")
    if isinstance(seeds, range):
        check_fits(f"a study of {len(seeds)} seeds", len(seeds), entry_bytes=100, mend="take fewer")
    given = seeds if hasattr(seeds, "dtype") else list(seeds)
    is_integer = jnp.issubdtype(checks.dtype_of(given), np.integer)
    is_empty = isinstance(given, list) and not given
    if not is_empty and not (is_integer and np.ndim(given) == 1):
        raise TypeError(
            f"seeds must be a number of runs or a list of integers, got {checks.shown(seeds)}; "
            "range(100, 200) are the hundred after the first hundred."
        )
    numbers = np.asarray(given).tolist()
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**32 or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"seeds must be distinct integers >= 0, at least one, all below 2**32, got {numbers}."
        )
    return numbers


def _check_populations(request: Request, groups: list[Group]) -> None:
    """Raise ``ValueError`` where runs over populations on disk do not fit one study."""
    problems = [group.abstract.problem for group in groups]
    if not all(problem.on_disk for problem in problems):
        raise ValueError(
            "some grid points have a population on disk and others have their clients in memory; "
            "make a study of each."
        )
    for name in ("block", "workers"):
        if getattr(request, name) not in (None, 1):
            raise ValueError(
                f"{name}= divides runs whose data are in memory; of a population, all grid points "
                f"of a seed advance together, one seed after the other. Leave {name}= out."
            )
    if len({problem.evaluated for problem in problems}) > 1:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            "grid points evaluate different clients of the population, which one array of metrics "
            "cannot tell apart; give all of them the same evaluated=."
        )


def _check_divisible(groups: list[Group]) -> None:
    for group in groups:
        clients = group.abstract.problem.clients
        devices = jax.device_count()
        if clients % devices:
            raise ValueError(
                f"{clients} clients cannot be shared out evenly over {devices} devices; take "
                "a multiple, or shard_over='seeds'."
            )


def _check_shapes(groups: list[Group]) -> None:
    shapes = {(_owners(group.abstract), group.abstract.problem.dim) for group in groups}
    if len(shapes) > 1:
        owners = "servers" if groups[0].abstract.problem.on_disk else "clients"
        raise ValueError(
            f"models of several shapes, {sorted(shapes)} ({owners}, parameters), cannot be kept in "
            "one array; run those grid points as studies of their own, or leave keep_models out."
        )


def _owners(simulation: Simulation) -> int:
    """How many models a run has: one of each client, or, over a population, of each server."""
    if not simulation.problem.on_disk:
        return simulation.problem.clients
    network = network_of_selector(simulation)
    return 1 if network is None else network.servers


def _check_identified(program: Program, identities: list[str]) -> None:
    for identity in identities:
        if unknown := program.unidentified[identity]:
            raise ValueError(
                "a store cannot tell this study from another: on the host it calls "
                f"{unknown}. Make it of functions, numbers, arrays and objects that can be "
                "pickled, or leave store= out."
            )


def _check_names(axes: list[Axis], groups: list[Group]) -> None:
    metrics = [m for group in groups for m in group.abstract.metrics]
    measured = {name for m in metrics for name in (m.name, *m.dims)}  # pyright: ignore
    for axis in axes:
        if axis.name in measured:
            raise ValueError(
                f"grid axis {axis.name!r} has the name of a recorded metric, or of an axis of one; "
                "rename it (and the scenario's argument)."
            )


def _check_axes(program: Program, groups: list[Group]) -> None:
    """Raise ``ValueError`` if an axis of a metric has different lengths at different points."""
    if len(groups) == 1 or not any(m.dims for g in groups for m in g.abstract.metrics):  # pyright: ignore
        return
    lengths: dict[str, int] = {}
    for group in groups:
        recorded = program.shapes(group).records
        for metric in group.abstract.metrics:
            for dim, size in zip(metric.dims, recorded[metric.name].shape[1:], strict=True):  # pyright: ignore
                if lengths.setdefault(dim, size) != size:
                    raise ValueError(
                        f"the axis {dim!r} of the metric {metric.name!r} has {size} rows at one "  # pyright: ignore
                        f"grid point and {lengths[dim]} at another, which one array cannot keep; "
                        "run those points as studies of their own."
                    )


def _checked_tolerances(until: Mapping[str, float], groups: list[Group]) -> dict[str, float]:
    """The levels of ``until``, after checks of the metrics, the clock and privacy."""
    if until and any(group.abstract.privacy is not None for group in groups):
        raise ValueError(
            "until= ends runs by their metrics, which look at private data and at no cost to the "
            "budget: under privacy= the number of rounds must not depend on them. Leave it out."
        )
    for name, level in until.items():
        for group in groups:
            metrics = {metric.name: metric for metric in group.abstract.metrics}  # pyright: ignore
            if name != "seconds":
                check_scalar("metric in until", name, metrics)
            elif group.abstract.clock is None:
                raise ValueError(
                    "until={'seconds': ...} counts the time of a clock, and a simulation has none; "
                    "give it one, clock=fljax.clock.Synchronous(...), or leave it out."
                )
        check(f"until[{name!r}]", level, rule_of(float))
        checks.nonnegative(f"until[{name!r}]", level)
    return {name: float(level) for name, level in until.items()}


def parse_shard(shard: str | tuple[int, int]) -> tuple[int, int]:
    """Convert ``"2/5"`` or ``(2, 5)``, the second of five parts, to (1, 5), counted from zero.

    Raises:
      ValueError: anything else.
    """
    try:
        part, parts = shard.split("/") if isinstance(shard, str) else shard
        part = int(part)
        parts = int(parts)
    except (TypeError, ValueError, KeyError, RuntimeError, np.ma.MaskError):
        part = 0
        parts = 0
    if not 1 <= part <= parts:
        raise ValueError(f"shard must be 'i/n' with 1 <= i <= n, got {checks.shown(shard)}.")
    return part - 1, parts
