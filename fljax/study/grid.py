"""The grid of a study: its axes, and which of its points can share a compiled program."""

import contextlib
import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import _check
from fljax import _programs as programs
from fljax._generator import GENERATOR, GENERATORS, random_key
from fljax._module import Alike, Static, as_leaf
from fljax._sampling_laws import check_sampling
from fljax.decisions import decided
from fljax.engine import check_length
from fljax.problems.population import OnDisk
from fljax.records import RESERVED
from fljax.running import check_perturbed
from fljax.simulation import Simulation
from fljax.study import machine
from fljax.study.drawing import is_drawn

__all__ = [
    "NOISE",
    "Axis",
    "Group",
    "Scenario",
    "arguments",
    "axes_of",
    "contents",
    "groups_of",
    "label",
    "label_of",
    "names_of",
    "numbers_of",
    "signature",
    "with_noise",
]

Scenario = Callable[..., Simulation]

#: In a stack of grid points, what the noise of a point's runs depends on besides the seed; no
#: argument of the scenario.
NOISE = ""

#: Up to this many grid points are each built once with their own numbers before compiling. For a
#: larger grid, and for values drawn from the key, the checks are computed by a program, this many
#: points at a time.
CHECKED_POINTS = 100

#: Number of keys for which values drawn from the key are checked.
CHECKED_SEEDS = 4


class Axis(NamedTuple):
    """One axis of the grid."""

    name: str
    labels: list[Any]  # coordinates in the results
    values: list[Any]  # as the user gave them
    trees: list[Any]  # as pytrees: numbers are leaves, structure is not
    beside: dict[str, list[Any]]  # further coordinates, by name
    choice: str = ""  # how the values were chosen, if by private results


class Labeled(dict):
    """Labeled values of an axis and, by label, what the results shall tell of each by name; and how
    they were chosen, if by private results.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        told: Mapping[str, Mapping[str, Any]],
        choice: str = "",
    ) -> None:
        super().__init__(values)
        self.told, self.choice = told, choice

    def columns(self) -> dict[str, list[Any]]:
        """What is told of all labels, by name; NaN or empty where nothing is told of one."""
        rows = [self.told.get(label, {}) for label in self]
        columns = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            numeric = all(isinstance(row.get(name, 0.0), float) for row in rows)
            missing, kind = (math.nan, float) if numeric else ("", str)
            columns[name] = [kind(row.get(name, missing)) for row in rows]
        return columns


class Group(NamedTuple):
    """Grid points of one structure, computed by one program."""

    positions: list[tuple[int, ...]]  # [C]  of its points in the grid
    points: dict[str, Any]  # axis name to values stacked on a leading axis [C, ...]
    shown: Simulation  # shapes and structure, no numbers
    drawn: Simulation  # of each array of `shown`, whether a seed draws its own
    decided: dict[str, str]  # in words, with the numbers of the first of its points

    @property
    def footprint(self) -> machine.Footprint:
        """Bytes of a run."""
        return machine.footprint(self.shown, self.drawn)

    @property
    def first(self) -> dict[str, Any]:
        """The first point of the group."""
        return jax.tree.map(lambda leaf: leaf[0], self.points)

    def pick(self, chosen: np.ndarray) -> dict[str, Any]:
        """Some points of the group, stacked."""
        if np.array_equal(chosen, np.arange(len(self.positions))):
            return self.points  # which may be large
        return jax.tree.map(lambda leaf: leaf[chosen], self.points)


def axes_of(grid: Mapping[str, Any] | None) -> list[Axis]:
    """Check the axes and return them.

    Raises:
      TypeError: an axis is neither a list nor a dict.
      ValueError: a reserved name, no values, or two values with the same label.
    """
    return [_axis(name, values) for name, values in (grid or {}).items()]


def _axis(name: str, values: Any) -> Axis:
    if name in RESERVED:
        raise ValueError(
            f"grid axis {name!r} has a name that results use themselves; rename it (and the "
            f"scenario's argument). Reserved: {', '.join(RESERVED)}."
        )
    beside, choice = {}, ""
    if isinstance(values, Labeled):
        beside, choice = values.columns(), values.choice
    if isinstance(values, Mapping):
        labels, values = list(values), list(values.values())
    elif isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(
            f"grid axis {name!r} must be a list of values or a dict of labeled values, got "
            f"{values!r}; for one value write [{values!r}]."
        )
    else:
        values = list(values)
        labels = [_plain(v) for v in values]
        if not all(isinstance(v, str | int | float | bool | np.generic) for v in labels):
            labels = [v if isinstance(v, str) else _label(v) for v in labels]
    if not values:
        raise ValueError(f"grid axis {name!r} has no values; leave it out or give at least one.")
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"grid axis {name!r} has the same label twice: {labels}; give a dict of labels and "
            "values."
        )
    numbers = int | float | np.integer | np.floating
    if all(isinstance(v, numbers) and not isinstance(v, bool) for v in values) and not all(
        isinstance(v, int | np.integer) for v in values
    ):
        values = [float(v) for v in values]  # [0.5, 1] is one kind of number
    trees = [_as_tree(value) for value in values]
    return Axis(
        name,
        [label.item() if isinstance(label, np.generic) else label for label in labels],
        [_plain(v) for v in values],
        trees,
        beside,
        choice,
    )


def _label(value: Any) -> str:
    named = getattr(type(value), "label", None) or getattr(value, "__name__", None)
    return named or " ".join(repr(value).split())


def _plain(value: Any) -> Any:
    """A grid value without its mark, as given by the user."""
    return value.value if isinstance(value, Static) else value


def arguments(point: Mapping[str, Any]) -> dict[str, Any]:
    """A grid point as the scenario's keyword arguments."""
    return {name: _plain(tree) for name, tree in point.items() if name != NOISE}


def _as_tree(value: Any) -> Any:
    if isinstance(value, Static):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if not -(2**31) <= value < 2**31:
            raise ValueError(
                f"an integer of a grid must have 32 bits, got {value}; write it as a float, or "
                "mark it as structure, fljax.static([...])."
            )
        return np.asarray(value, np.int32)
    if isinstance(value, float | np.floating):
        return as_leaf(value)
    leaves, structure = jax.tree.flatten(value)
    if leaves and all(isinstance(leaf, np.ndarray | jax.Array | np.floating) for leaf in leaves):
        return structure.unflatten(
            [as_leaf(leaf) if isinstance(leaf, np.floating) else leaf for leaf in leaves]
        )
    return Static(value)


def signature(tree: Any) -> tuple:
    """The structure, shapes and types, but not numbers, on which a compiled program depends."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def contents(axes: list[Axis]) -> tuple:
    """All values of the axes of a grid, for comparison."""

    def held(tree: Any) -> tuple:
        leaves = map(np.asarray, jax.tree.leaves(tree))
        return signature(tree), tuple(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)

    return tuple(
        (
            axis.name,
            Alike(tuple(axis.labels)),
            tuple(map(type, axis.values)),
            tuple(map(held, axis.trees)),
        )
        for axis in axes
    )


def names_of(axes: list[Axis], position: tuple[int, ...]) -> dict[str, Any]:
    """A grid point by its labels."""
    return {axis.name: axis.labels[i] for axis, i in zip(axes, position, strict=True)}


def label_of(axes: list[Axis], position: tuple[int, ...]) -> str:
    """A grid point by its labels, as one stable line of text."""
    return label(names_of(axes, position))


def label(names: Mapping[str, Any]) -> str:
    """The line of text for labels by axis."""
    return json.dumps(names, sort_keys=True)


def numbers_of(axes: list[Axis], position: tuple[int, ...]) -> str:
    """A digest of the numbers behind a grid point's labels."""
    digest = hashlib.sha256()
    for axis, i in sorted(zip(axes, position, strict=True)):
        for leaf in jax.tree.leaves(axis.trees[i]):
            value = np.asarray(leaf)
            digest.update(f"{axis.name}{value.dtype.str}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def groups_of(
    scenario: Scenario,
    axes: list[Axis],
    rounds: int,
    generator: str = GENERATOR,
    settled: set[Any] | None = None,
) -> list[Group]:
    """All grid points grouped by structure, each checked with concrete values first.

    Args:
      scenario: as in :func:`~fljax.sweep`, like the others.
      axes: the axes of the grid.
      rounds: number of rounds of every run.
      generator: generator of all random numbers.
      settled: signatures of points that need no check of what is drawn, since it was made and does
        not depend on their numbers; those of this grid are added.

    Raises:
      TypeError, ValueError: invalid parts of a simulation that the scenario builds, with the point
        named.
    """
    check_scenario(scenario, [axis.name for axis in axes])
    choices = list(itertools.product(*(_alike(axis) for axis in axes)))
    members = [list(itertools.product(*choice)) for choice in choices]
    key = random_key(0, generator)
    firsts = [points[0] for points in members]
    known, waits = _check_points(scenario, axes, rounds, firsts, key)
    for position, (simulation, _, _) in zip(firsts, known, strict=True):
        with _named(axes, position):
            check_perturbed(simulation, rounds)
    groups = [
        Group(points, _stack(axes, points), *of_point)
        for points, of_point in zip(members, known, strict=True)
    ]
    if waits or _is_large(axes):
        settled = set() if settled is None else settled
        for group in groups:
            if (form := signature(group.first)) in settled:
                continue
            # A number used as structure is said where the program is traced, with what to do.
            with contextlib.suppress(jax.errors.JAXTypeError):
                if not _check_values(scenario, axes, rounds, group, generator):
                    settled.add(form)
    return groups


def with_noise(group: Group, axes: list[Axis], study: str) -> Group:
    """The group with the data that each point's noise depends on besides the seed: ``[C, 2]``.

    Args:
      group: a group of the grid.
      axes: the axes of the grid.
      study: identifies the study, apart from the point. Different studies must have different
        noise: the same noise at two scales cancels.
    """
    texts = (f"{study} {label_of(axes, p)} {numbers_of(axes, p)}" for p in group.positions)
    words = [hashlib.sha256(text.encode()).digest()[:8] for text in texts]
    own = np.frombuffer(b"".join(words), "<u4").reshape(-1, 2).astype(np.uint32)
    return group._replace(points=group.points | {NOISE: own})


def check_scenario(scenario: Scenario, names: list[str]) -> None:
    """Raise ``TypeError`` unless the scenario can be called with a key and the grid's axes."""
    if not callable(scenario) or isinstance(scenario, type):
        raise TypeError(
            "scenario must be a function (key, **point) -> fljax.Simulation, got "
            f"{_check.shown(scenario)}."
        )
    try:
        taken = inspect.signature(scenario)
    except ValueError:  # of a builtin
        return
    try:
        taken.bind(None, **dict.fromkeys(names))
    except TypeError as error:
        name = getattr(scenario, "__name__", type(scenario).__name__)
        raise TypeError(
            f"the scenario {name}{taken} cannot be called with a key and the grid's axes "
            f"({', '.join(names) or 'none'}): {error}."
        ) from None


def _is_large(axes: list[Axis]) -> bool:
    return math.prod(len(axis.labels) for axis in axes) > CHECKED_POINTS


@contextlib.contextmanager
def _named(axes: list[Axis], position: tuple[int, ...]) -> Iterator[None]:
    """Name the grid point in errors raised within."""
    try:
        yield
    except Exception as error:
        if axes:
            error.add_note(f"This was grid point {names_of(axes, position)}.")
        raise


def _alike(axis: Axis) -> list[list[int]]:
    """Positions on the axis whose values differ in numbers only."""
    places: dict[Any, list[int]] = {}
    for position, tree in enumerate(axis.trees):
        places.setdefault(signature(tree), []).append(position)
    return list(places.values())


def _stack(axes: list[Axis], points: list[tuple[int, ...]]) -> dict[str, Any]:
    return {
        axis.name: jax.tree.map(
            lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]),
            *(axis.trees[position[i]] for position in points),
        )
        for i, axis in enumerate(axes)
    }


def _build(scenario: Scenario, rounds: int, key: Any, point: Mapping[str, Any]) -> Simulation:
    """One simulation, checked for a run of this length."""
    simulation = scenario(key, **point)
    if not isinstance(simulation, Simulation):
        raise TypeError(
            f"a scenario must return an fljax.Simulation, got {type(simulation).__name__}."
        )
    if isinstance(simulation.problem, OnDisk):
        raise ValueError(
            "a sweep computes runs side by side with their data in memory, and runs over a "
            "population on disk are made one by one: fljax.run(simulation, rounds, key=seed)."
        )
    check_length(simulation, rounds)
    check_sampling(simulation, rounds)
    return simulation


def _check_points(
    scenario: Scenario,
    axes: list[Axis],
    rounds: int,
    firsts: list[tuple[int, ...]],
    key: jax.Array,
) -> tuple[list[tuple[Simulation, Simulation, dict[str, str]]], bool]:
    """Build all grid points, of a large grid those at ``firsts``, with their own numbers, so that
    bad ones meet their checks by name.

    Returns:
      The simulations at ``firsts``, each as shapes, by what a seed draws of it, and in words;
      whether any check waits for what is drawn.
    """
    every = itertools.product(*(range(len(axis.labels)) for axis in axes))
    waits, shown, drawn, texts = False, {}, {}, {}
    wanted = set(firsts)
    for position in firsts if _is_large(axes) else every:
        point = {axis.name: axis.values[i] for axis, i in zip(axes, position, strict=True)}

        def build(
            key: jax.Array, point: dict[str, Any] = point, position: tuple[int, ...] = position
        ) -> Simulation:
            nonlocal waits
            with _check.collecting(key) as checks:
                simulation = _build(scenario, rounds, key, point)
            waits |= bool(checks)
            if position in wanted:
                texts[position] = decided(simulation)
                drawn[position] = jax.tree.map(is_drawn, simulation)
            return simulation

        with _named(axes, position):
            shown[position] = jax.eval_shape(build, key)
    known = [(shown[first], drawn[first], texts[first]) for first in firsts]
    return known, waits


def _check_values(
    scenario: Scenario, axes: list[Axis], rounds: int, group: Group, generator: str
) -> bool:
    """Make the checks of what depends on grid points and keys, at all points of a group.

    One program computes what is checked, and nothing else of the scenario.

    Returns:
      Whether anything that is checked depends on the points' numbers.
    """
    one: list[_check.Later] = []  # the same at all points
    each: list[_check.Later] = []

    def values(seed: jax.Array, points: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        one.clear()
        each.clear()
        key = jax.random.wrap_key_data(seed, impl=GENERATORS[generator])

        def at(point: dict[str, Any]) -> list[Any]:
            with _check.collecting(key, point) as checks:
                _build(scenario, rounds, key, arguments(point))
            varies = [leaf._trace for leaf in jax.tree.leaves(point)]
            for later in checks:
                moves = any(getattr(v, "_trace", None) in varies for v in later.values)
                (each if moves else one).append(later)
            return [later.values for later in each]

        stacked = jax.vmap(at)(points) if jax.tree.leaves(points) else at(points)
        return [later.values for later in one], stacked

    count = len(group.positions)
    size = min(CHECKED_POINTS, count)
    seeds = [
        np.asarray(jax.random.key_data(random_key(s, generator))) for s in range(CHECKED_SEEDS)
    ]
    # Unused arguments, too, tell a program on disk from others.
    points = group.pick(np.arange(size))
    traced = jax.jit(values, keep_unused=True).trace(seeds[0], points)
    if not each:
        # Without the points, so that other structures and numbers of points find it on disk.
        without = jax.jit(lambda seed: values(seed, points)[0]).trace(seeds[0])
        compute = _compiled(without.lower())
        for seed in seeds:
            alike = jax.tree.map(np.asarray, compute(seed))
            with _named(axes, group.positions[0]):
                for later, checks in zip(one, alike, strict=True):
                    later.check(*checks)
        return False
    compute = _compiled(traced.lower())
    for seed in seeds:
        for start in range(0, count, CHECKED_POINTS):
            rows = np.arange(start, start + size)
            alike, stacked = jax.tree.map(
                np.asarray, compute(seed, group.pick(np.minimum(rows, count - 1)))
            )
            with _named(axes, group.positions[start]):
                for later, checks in zip(one, alike, strict=True):
                    later.check(*checks)
            for later, checks in zip(each, stacked, strict=True):
                _check_each(later, checks, axes, [group.positions[i] for i in rows[rows < count]])
    return True


def _compiled(lowered: jax.stages.Lowered) -> Any:
    return programs.compile_or_load(lowered, lowered.as_text(), jax.local_devices()[0])


def _check_each(
    later: "_check.Later", stacked: tuple[Any, ...], axes: list[Axis], positions: list[Any]
) -> None:
    """Make a check at several points; ``stacked`` are its values."""
    if later.elementwise:
        with contextlib.suppress(TypeError, ValueError):
            later.check(*stacked)
            return
    for i, position in enumerate(positions):
        with _named(axes, position):
            later.check(*(checks[i] for checks in stacked))
