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
from jaxtyping import Array, PyTree

from fljax._core import checks, compilation_cache
from fljax._core.module import Static, TypedKey, as_leaf, replace
from fljax._core.numerics import as_typed
from fljax._core.prng import GENERATOR, GENERATORS, random_key
from fljax.metrics.names import RESERVED
from fljax.problems.population_problem import OnDisk
from fljax.simulation.decisions import decided
from fljax.simulation.leaks import check_perturbed
from fljax.simulation.population_run import check_population
from fljax.simulation.sampling_checks import check_sampling
from fljax.simulation.scan import check_length
from fljax.simulation.scenario import Simulation
from fljax.study import block_sizes
from fljax.study.shared_draws import is_drawn

Scenario = Callable[..., Simulation]

#: The entry of stacked grid points with the data from which, besides the seed, a point's noise is
#: drawn. It is not an argument of the scenario.
NOISE = ""

#: Up to this number of grid points, each is built with its numbers before compiling. For a larger
#: grid, and for values drawn from the key, a program computes the checked values, for this number
#: of points at a time.
MAX_CHECKED_POINTS = 100

#: Number of keys for which values drawn from the key are checked.
CHECKED_SEEDS = 4


class Axis(NamedTuple):
    """One axis of the grid."""

    name: str
    labels: list[Any]  # coordinates in the results
    values: list[Any]  # as given by the user
    trees: list[Any]  # as pytrees whose leaves are the numbers
    extra_coords: dict[str, list[Any]]  # further coordinates of the results, by name
    choice: str = ""  # how the values were chosen, if by private results


class LabeledValues(dict):
    """Labeled values of an axis, with further coordinates for the results.

    Args:
      values: by label.
      descriptions: by label and name of a coordinate.
      choice: how the values were chosen, if by private results.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        descriptions: Mapping[str, Mapping[str, Any]],
        choice: str = "",
    ) -> None:
        super().__init__(values)
        self.descriptions = descriptions
        self.choice = choice

    def columns(self) -> dict[str, list[Any]]:
        """The coordinates by name; NaN or empty for labels without a value."""
        rows = [self.descriptions.get(label, {}) for label in self]
        columns = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            numeric = all(isinstance(row.get(name, 0.0), float) for row in rows)
            missing, kind = (math.nan, float) if numeric else ("", str)
            columns[name] = [kind(row.get(name, missing)) for row in rows]
        return columns


class Group(NamedTuple):
    """Grid points of one structure, computed by one program."""

    positions: list[tuple[int, ...]]  # [C]  its points in the grid
    points: dict[str, Any]  # values by axis name, stacked on a leading axis [C, ...]
    abstract: Simulation  # with shapes in place of arrays
    is_drawn: Simulation  # with booleans in place of arrays: whether they differ between seeds
    decisions: dict[str, str]  # in words, with the numbers of its first point

    @property
    def footprint(self) -> block_sizes.Footprint:
        """Bytes of a run."""
        return block_sizes.footprint(self.abstract, self.is_drawn)

    @property
    def first(self) -> dict[str, Any]:
        """The first point of the group."""
        return jax.tree.map(lambda leaf: leaf[0], self.points)

    def pick(self, chosen: np.ndarray) -> dict[str, Any]:
        """Some points of the group, stacked."""
        if np.array_equal(chosen, np.arange(len(self.positions))):
            return self.points  # without a copy, which may be large
        return jax.tree.map(lambda leaf: leaf[chosen], self.points)


def axes_of(grid: Mapping[str, Any] | None) -> list[Axis]:
    """Check the axes and return them.

    Raises:
      TypeError: an axis is neither a list nor a dict.
      ValueError: a reserved name, no values, or two values with the same label.
    """
    return [_axis(name, values) for name, values in (grid or {}).items()]


def _axis(name: str, values: object) -> Axis:
    """Check one axis of the grid, and derive labels and pytrees from its values."""
    if not isinstance(name, str):
        raise TypeError(f"names of grid axes must be strings, got {checks.shown(name)}.")
    if name in RESERVED:
        raise ValueError(
            f"grid axis {name!r} has a name that results use themselves; rename it (and the "
            f"scenario's argument). Reserved: {', '.join(RESERVED)}."
        )
    extra_coords = {}
    choice = ""
    if isinstance(values, LabeledValues):
        extra_coords = values.columns()
        choice = values.choice
    if isinstance(values, Mapping):
        labels = list(values)
        values = list(values.values())
    elif isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(
            f"grid axis {name!r} must be a list of values or a dict of labeled values, got "
            f"{values!r}; for one value write [{values!r}]."
        )
    else:
        # NumPy's numbers are labels, JAX's are arrays.
        if isinstance(values, jax.Array) and jnp.issubdtype(values.dtype, jnp.number):
            values = np.asarray(values) if values.ndim == 1 else values
        values = list(values)
        labels = [_unmarked(v) for v in values]
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
        [as_typed(label) for label in labels],
        [_unmarked(v) for v in values],
        trees,
        extra_coords,
        choice,
    )


def _label(value: object) -> str:
    named = getattr(type(value), "label", None) or getattr(value, "__name__", None)
    return named or " ".join(repr(value).split())


def _unmarked(value: object) -> Any:
    """A grid value without the mark of ``fljax.static``."""
    return value.value if isinstance(value, Static) else value


def arguments(point: Mapping[str, Any]) -> dict[str, Any]:
    """A grid point as the scenario's keyword arguments."""
    return {name: _unmarked(tree) for name, tree in point.items() if name != NOISE}


def _as_tree(value: object) -> Any:
    """A grid value as a pytree: numbers and trees of arrays are leaves, others are static."""
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
    if any(jnp.issubdtype(checks.dtype_of(leaf), jax.dtypes.prng_key) for leaf in leaves):
        raise TypeError(
            "random keys cannot be values of a grid: each seed of seeds= has a key of its own, "
            "which the scenario gets as its first argument."
        )
    if leaves and all(isinstance(leaf, np.ndarray | jax.Array | np.floating) for leaf in leaves):
        return structure.unflatten(
            [as_leaf(leaf) if isinstance(leaf, np.floating) else leaf for leaf in leaves]
        )
    return Static(value)


def signature(tree: PyTree) -> tuple:
    """The structure, shapes and types on which a compiled program depends."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def contents(axes: list[Axis]) -> tuple:
    """All values of the axes of a grid, for comparison."""

    def values_of(tree: PyTree) -> tuple:
        leaves = map(np.asarray, jax.tree.leaves(tree))
        return signature(tree), tuple(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)

    return tuple(
        (
            axis.name,
            TypedKey(tuple(axis.labels)),
            tuple(map(type, axis.values)),
            tuple(map(values_of, axis.trees)),
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


def numbers_digest(axes: list[Axis], position: tuple[int, ...]) -> str:
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
    checked_signatures: set[Any] | None = None,
) -> list[Group]:
    """All grid points grouped by structure, each checked with concrete values first.

    Args:
      scenario: as in :func:`~fljax.sweep`, like the others.
      axes: the axes of the grid.
      rounds: number of rounds of every run.
      generator: generator of all random numbers.
      checked_signatures: signatures of points whose drawn values were checked and do not depend on
        their numbers, so that they are not checked again. This grid adds its own.

    Raises:
      TypeError, ValueError: invalid parts of a simulation that the scenario builds, with the point
        named.
    """
    check_scenario(scenario, [axis.name for axis in axes])
    choices = list(itertools.product(*(_positions_by_structure(axis) for axis in axes)))
    members = [list(itertools.product(*choice)) for choice in choices]
    key = random_key(0, generator)
    firsts = [points[0] for points in members]
    simulations, has_pending = _check_points(scenario, axes, rounds, firsts, key)
    for position, (simulation, _, _) in zip(firsts, simulations, strict=True):
        with naming_point(axes, position):
            check_perturbed(simulation, rounds)
    groups = [
        Group(points, _stack(axes, points), *description)
        for points, description in zip(members, simulations, strict=True)
    ]
    if has_pending or _is_large(axes):
        checked_signatures = set() if checked_signatures is None else checked_signatures
        for group in groups:
            if (signature_ := signature(group.first)) in checked_signatures:
                continue
            # A number used as structure raises a better error when the program is traced.
            with contextlib.suppress(jax.errors.JAXTypeError):
                if not _check_values(scenario, axes, rounds, group, generator):
                    checked_signatures.add(signature_)
    return groups


def with_noise(group: Group, axes: list[Axis], study: str) -> Group:
    """The group with the data that each point's noise depends on besides the seed: ``[C, 2]``.

    Args:
      group: a group of the grid.
      axes: the axes of the grid.
      study: identifies the study, apart from the point. Different studies must have different
        noise: the same noise at two scales cancels.
    """
    texts = (f"{study} {label_of(axes, p)} {numbers_digest(axes, p)}" for p in group.positions)
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in texts]
    data = np.frombuffer(b"".join(digests), "<u4").reshape(-1, 2).astype(np.uint32)
    return group._replace(points=group.points | {NOISE: data})


def check_scenario(scenario: Scenario, names: list[str]) -> None:
    """Raise ``TypeError`` unless the scenario can be called with a key and the grid's axes."""
    if not callable(scenario) or isinstance(scenario, type):
        raise TypeError(
            "scenario must be a function (key, **point) -> fljax.Simulation, got "
            f"{checks.shown(scenario)}."
        )
    try:
        parameters = inspect.signature(scenario)
    except ValueError:  # builtins have no signature
        return
    try:
        parameters.bind(None, **dict.fromkeys(names))
    except TypeError as error:
        name = getattr(scenario, "__name__", type(scenario).__name__)
        raise TypeError(
            f"the scenario {name}{parameters} cannot be called with a key and the grid's axes "
            f"({', '.join(names) or 'none'}): {error}."
        ) from None


def _is_large(axes: list[Axis]) -> bool:
    return math.prod(len(axis.labels) for axis in axes) > MAX_CHECKED_POINTS


@contextlib.contextmanager
def naming_point(axes: list[Axis], position: tuple[int, ...]) -> Iterator[None]:
    """Name the grid point in errors raised within."""
    try:
        yield
    except Exception as error:
        if axes:
            error.add_note(f"This was grid point {names_of(axes, position)}.")
        raise


def _positions_by_structure(axis: Axis) -> list[list[int]]:
    """Positions on the axis whose values differ in numbers only."""
    positions: dict[Any, list[int]] = {}
    for position, tree in enumerate(axis.trees):
        positions.setdefault(signature(tree), []).append(position)
    return list(positions.values())


def _stack(axes: list[Axis], points: list[tuple[int, ...]]) -> dict[str, Any]:
    return {
        axis.name: jax.tree.map(
            lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]),
            *(axis.trees[position[i]] for position in points),
        )
        for i, axis in enumerate(axes)
    }


def _build(scenario: Scenario, rounds: int, key: Array, point: Mapping[str, Any]) -> Simulation:
    """One simulation, checked for a run of this length."""
    simulation = scenario(key, **point)
    if not isinstance(simulation, Simulation):
        raise TypeError(
            f"a scenario must return an fljax.Simulation, got {type(simulation).__name__}."
        )
    if isinstance(simulation.problem, OnDisk):
        check_population(simulation)
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
    """Build grid points with their numbers, so that errors name the point.

    These are all points, or those at ``firsts`` if the grid is large.

    Returns:
      For each of ``firsts`` the simulation as shapes, which of its leaves are drawn, and its
      decisions in words; and whether checks wait for drawn values.
    """
    every = itertools.product(*(range(len(axis.labels)) for axis in axes))
    has_pending = False
    abstract = {}
    drawn_leaves = {}
    texts = {}
    first_positions = set(firsts)
    for position in firsts if _is_large(axes) else every:
        point = {axis.name: axis.values[i] for axis, i in zip(axes, position, strict=True)}

        def build(
            key: jax.Array, point: dict[str, Any] = point, position: tuple[int, ...] = position
        ) -> Simulation:
            nonlocal has_pending
            with checks.collecting(key) as pending:
                simulation = _build(scenario, rounds, key, point)
            has_pending |= bool(pending)
            if position in first_positions:
                texts[position] = decided(simulation)
                drawn_leaves[position] = jax.tree.map(is_drawn, simulation)
            if isinstance(simulation.problem, OnDisk):  # JAX has no arrays of absent rows
                return replace(simulation, problem=simulation.problem.bare())
            return simulation

        with naming_point(axes, position):
            built = jax.eval_shape(build, key)
            if isinstance(built.problem, OnDisk):
                built = replace(built, problem=built.problem.stored())
            abstract[position] = built
    results = [(abstract[first], drawn_leaves[first], texts[first]) for first in firsts]
    return results, has_pending


def _check_values(
    scenario: Scenario, axes: list[Axis], rounds: int, group: Group, generator: str
) -> bool:
    """Run the checks of values that depend on keys and grid points, at all points of a group.

    A program computes the checked values, and nothing else of the scenario. Checks of values that
    depend on the key alone are the same at all points.

    Returns:
      Whether any checked value depends on the points' numbers.
    """
    common: list[checks.DeferredCheck] = []  # the same at all points
    varying: list[checks.DeferredCheck] = []

    def values(seed: jax.Array, points: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        common.clear()
        varying.clear()
        key = jax.random.wrap_key_data(seed, impl=GENERATORS[generator])

        def checks_at(point: dict[str, Any]) -> list[Any]:
            with checks.collecting(key, point) as pending:
                _build(scenario, rounds, key, arguments(point))
            point_traces = [leaf._trace for leaf in jax.tree.leaves(point)]
            for deferred in pending:
                depends_on_point = any(
                    getattr(v, "_trace", None) in point_traces for v in deferred.values
                )
                (varying if depends_on_point else common).append(deferred)
            return [deferred.values for deferred in varying]

        stacked = jax.vmap(checks_at)(points) if jax.tree.leaves(points) else checks_at(points)
        return [deferred.values for deferred in common], stacked

    count = len(group.positions)
    size = min(MAX_CHECKED_POINTS, count)
    seeds = [
        np.asarray(jax.random.key_data(random_key(s, generator))) for s in range(CHECKED_SEEDS)
    ]
    # `keep_unused` as required by `compile_or_load`.
    points = group.pick(np.arange(size))
    traced = jax.jit(values, keep_unused=True).trace(seeds[0], points)
    if not varying:
        # Without the points, so that the cached program fits other structures and point counts.
        without = jax.jit(lambda seed: values(seed, points)[0]).trace(seeds[0])
        compute = _compile(without.lower())
        for seed in seeds:
            common_values = jax.tree.map(np.asarray, compute(seed))
            with naming_point(axes, group.positions[0]):
                for deferred, numbers in zip(common, common_values, strict=True):
                    deferred.check(*numbers)
        return False
    compute = _compile(traced.lower())
    for seed in seeds:
        for start in range(0, count, MAX_CHECKED_POINTS):
            rows = np.arange(start, start + size)
            common_values, stacked = jax.tree.map(
                np.asarray, compute(seed, group.pick(np.minimum(rows, count - 1)))
            )
            with naming_point(axes, group.positions[start]):
                for deferred, numbers in zip(common, common_values, strict=True):
                    deferred.check(*numbers)
            for deferred, numbers in zip(varying, stacked, strict=True):
                _check_at_points(
                    deferred, numbers, axes, [group.positions[i] for i in rows[rows < count]]
                )
    return True


def _compile(lowered: jax.stages.Lowered) -> Any:
    return compilation_cache.compile_or_load(lowered, lowered.as_text(), jax.local_devices()[0])


def _check_at_points(
    deferred: checks.DeferredCheck, stacked: tuple[Any, ...], axes: list[Axis], positions: list[Any]
) -> None:
    """Run a check at several points, given its stacked values."""
    if deferred.elementwise:
        with contextlib.suppress(TypeError, ValueError):
            deferred.check(*stacked)
            return
    for i, position in enumerate(positions):
        with naming_point(axes, position):
            deferred.check(*(values[i] for values in stacked))
