"""Studies: a scenario over seeds and a grid, compiled once per structure, run in blocks.

A scenario is a pure function ``(key, **point) -> Simulation``. All seeds of a block and all grid
points of the same structure are array axes of one compiled program; what does not depend on the
grid point (data, graph, optimum, noise draws) is computed once per seed and shared by all points,
so points are compared under common random numbers.

On a CPU one huge batch of seeds falls out of the cache, and XLA leaves cores idle on work this
small. So seeds go through in blocks that fit the second-level cache, one block per core at a
time, from a few threads. An accelerator gets the largest blocks that its memory takes.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from fljax import _check, results
from fljax._module import as_leaf, float_dtype
from fljax.simulation import PRNG, Simulation, check_rounds, noise_plan, trace

Scenario = Callable[..., Simulation]

#: Working set of one block of seeds on a CPU: half the second-level cache of the core it was
#: measured on. Larger blocks ran slower, small ones too (`experiments/benchmarks/blocks.py`).
CACHE_BYTES = 2**20

#: Share of an accelerator's memory that one block may take.
MEMORY_SHARE = 0.5

#: At most this many grid points are each built once with concrete values before compiling;
#: of a larger grid, every value of every axis is.
CHECKED_POINTS = 100


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Static:
    """A grid value that is structure: compiled in, one program for each."""

    value: Any

    def tree_flatten(self):
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value, _):
        return cls(value)


def static(values: Iterable[Any]) -> list[Static]:
    """Mark a grid axis as structure, e.g. ``{"clients": fl.static([10, 100])}``."""
    return [Static(value) for value in values]


class Axis(NamedTuple):
    """One axis of the grid."""

    name: str
    labels: list[Any]  # coordinates in the results
    values: list[Any]  # as the user gave them
    trees: list[Any]  # as pytrees: numbers are leaves, structure is not


#: Axes of every result, and keywords of xarray's ``sel``, which a dimension of that name hides.
RESERVED_NAMES = ("seed", "round", "client", "parameter", "method", "tolerance", "drop")


def _axis(name: str, values: Any) -> Axis:
    if name in RESERVED_NAMES:
        raise ValueError(
            f"grid axis {name!r} has a name that results use themselves; rename it (and the "
            f"scenario's argument). Reserved: {', '.join(RESERVED_NAMES)}."
        )
    if isinstance(values, Mapping):
        labels, values = list(values), list(values.values())
    elif isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(
            f"grid axis {name!r} must be a list of values or a dict of labelled values, got "
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
        raise ValueError(f"grid axis {name!r} has the same label twice: {labels}.")
    trees = [_as_tree(value) for value in values]
    return Axis(
        name,
        [label.item() if isinstance(label, np.generic) else label for label in labels],
        [_plain(v) for v in values],
        trees,
    )


def _label(value: Any) -> str:
    return getattr(type(value), "label", None) or getattr(value, "__name__", None) or repr(value)


def _plain(value: Any) -> Any:
    """A grid value as the user means it, out of its mark."""
    return value.value if isinstance(value, Static) else value


def _arguments(point: dict[str, Any]) -> dict[str, Any]:
    """A grid point as the scenario's keyword arguments."""
    return {name: _plain(tree) for name, tree in point.items()}


def _as_tree(value: Any) -> Any:
    if isinstance(value, Static):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return np.asarray(value, np.int32)
    if isinstance(value, float | np.floating):
        return as_leaf(value)
    leaves = jax.tree.leaves(value)
    if leaves and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves):
        return value
    return Static(value)


def _signature(tree: Any) -> tuple:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _groups(axis: Axis) -> list[list[int]]:
    """Positions of the axis whose values differ in numbers only."""
    found: dict[Any, list[int]] = {}
    for position, tree in enumerate(axis.trees):
        found.setdefault(_signature(tree), []).append(position)
    return list(found.values())


@dataclass
class Program:
    """A jitted study of one structure and its compiled forms, by block and grid size."""

    function: Any
    compiled: dict[Any, Any] = field(default_factory=dict)


@functools.lru_cache(maxsize=64)
def _program(
    scenario: Scenario, rounds: int, record_every: int, keep_models: bool, dtype: Any
) -> Program:
    def one(key: Array, point: dict[str, Any]) -> dict[str, Array]:
        k_scenario, k_run = jax.random.split(key)
        simulation = scenario(k_scenario, **_arguments(point))
        records, model = trace(simulation, k_run, rounds, record_every)
        return records | ({"model": model} if keep_models else {})

    def block(keys: Array, points: dict[str, Any]) -> dict[str, Array]:
        if not jax.tree.leaves(points):
            return jax.tree.map(lambda x: x[:, None], jax.vmap(one, (0, None))(keys, points))
        return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(keys, points)

    return Program(jax.jit(block))


def sweep(
    scenario: Scenario,
    *,
    rounds: int,
    seeds: int | Sequence[int] = 1,
    grid: Mapping[str, Any] | None = None,
    record_every: int = 1,
    root: int = 0,
    block: int | None = None,
    workers: int | None = None,
    keep_models: bool = False,
    progress: bool | None = None,
) -> xr.Dataset:
    """Run a scenario for every seed and grid point.

    Numbers of the grid are traced: a grid of twenty of them costs one compilation. Grid values
    of another structure (another algorithm, a size, a string) are compiled one by one; mark sizes
    with :func:`static`. A value may be any pytree, such as an algorithm object; values that
    differ in numbers only share a program.

    Args:
      scenario: ``(key, **point) -> Simulation``, pure.
      rounds: iterations of every run.
      seeds: how many Monte-Carlo seeds, or which (``range(100, 200)`` continues a study).
      grid: axis name to a list of values, or to a dict of labels and values; all combinations run.
      record_every: measure after every so many rounds; must divide ``rounds``.
      root: the seed of seeds. Run ``s`` depends on ``root`` and ``s`` alone.
      block: seeds per block; by default what fits the cache (CPU) or memory (accelerator). It
        changes numbers by no more than float re-association.
      workers: blocks in flight; by default the cores at hand on a CPU, else 1.
      keep_models: also return every run's final models, ``[..., seed, client, parameter]``.
      progress: show a bar; by default only on a terminal.

    Returns:
      A dataset over the grid's axes, ``seed`` and ``round``, with the provenance as attributes.

    Raises:
      TypeError, ValueError: by the checks of what the scenario builds, with the grid point named;
        all of them before anything is compiled.

    Example:
      >>> import jax, fljax as fl
      >>> def scenario(key, penalty):
      ...     k_graph, k_data = jax.random.split(key)
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(k_data, clients=6, samples=10, dim=2),
      ...         network=fl.graphs.random_connected(k_graph, nodes=6, mean_degree=3),
      ...         algorithm=fl.algorithms.NetworkedADMM(penalty),
      ...         metrics=["normalized_error"])
      >>> study = fl.sweep(scenario, rounds=20, seeds=3, grid={"penalty": [0.5, 1.0]})
      >>> dict(study.sizes)
      {'penalty': 2, 'seed': 3, 'round': 20}
    """
    check_rounds(rounds, record_every)
    seed_list = _seeds(seeds)
    if block is not None:
        _check.count("block", block)
    if workers is not None:
        _check.count("workers", workers)
    axes = [_axis(name, values) for name, values in (grid or {}).items()]
    _check_points(scenario, axes, rounds)

    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(root, impl=PRNG), s))(
        jnp.asarray(seed_list, jnp.uint32)
    )
    program = _program(scenario, rounds, record_every, keep_models, float_dtype())
    shape = tuple(len(axis.labels) for axis in axes)
    collected: dict[str, np.ndarray] = {}
    metrics: dict[str, Any] = {}
    digest = hashlib.sha256()
    timing = {"compile_seconds": 0.0, "run_seconds": 0.0, "compilations": 0}
    total = len(seed_list) * int(np.prod(shape, dtype=int))
    blocks_used = []

    with tqdm(total=total, unit="run", disable=None if progress is None else not progress) as bar:
        for choice in itertools.product(*(_groups(axis) for axis in axes)):
            points, positions = _stack(axes, choice)
            count = len(positions)
            first = jax.tree.map(lambda x: x[0], points)
            with _hint_at_static(axes):
                shown = _describe(scenario, first)
            metrics |= {m.name: m for m in shown.metrics}  # pyright: ignore[reportAttributeAccessIssue]
            size, parallel = _schedule(shown, count, len(seed_list), block, workers)
            blocks_used.append(size)
            batches = _batches(len(seed_list), size)
            bar.set_description("compiling")
            began = time.perf_counter()
            compiled, text, alone, fresh = _compile(program, keys[batches[0]], points, axes)
            timing["compile_seconds"] += time.perf_counter() - began
            timing["compilations"] += fresh
            digest.update(text.encode())
            bar.set_description("running")
            began = time.perf_counter()
            at_once = 1 if alone else parallel
            for batch, outputs in _execute(compiled, keys, batches, points, at_once):
                for name, values in outputs.items():
                    _store(collected, name, values, shape, positions, batch, len(seed_list))
                bar.update(len(np.unique(batch)) * count)
            timing["run_seconds"] += time.perf_counter() - began

    dims = (*(axis.name for axis in axes), "seed")
    coords = {axis.name: axis.labels for axis in axes} | {"seed": seed_list}
    model = collected.pop("model", None)
    dataset = results.assemble(collected, dims, coords, rounds, record_every, metrics.values())
    if model is not None:
        dataset["model"] = ((*dims, "client", "parameter"), model)
    dataset.attrs |= results.provenance(
        dtype=str(float_dtype()),
        prng=PRNG,
        root=root,
        rounds=rounds,
        record_every=record_every,
        scenario=getattr(scenario, "__qualname__", repr(scenario)),
        scenario_hash=digest.hexdigest()[:16],
        block=str(sorted(set(blocks_used))),
        **timing,
    )
    results.warn(dataset)
    return dataset


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int | np.integer) or not isinstance(seeds, Iterable):
        _check.count("seeds", seeds, hint="It is the number of Monte-Carlo runs per grid point.")
        return list(range(int(seeds)))
    found = [int(s) for s in seeds]
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ValueError(f"seeds must be distinct integers >= 0, at least one, got {found}.")
    return found


def _check_points(scenario: Scenario, axes: list[Axis], rounds: int) -> None:
    """Build grid points with concrete values, so that bad ones meet their checks by name."""
    if int(np.prod([len(axis.labels) for axis in axes], dtype=float)) <= CHECKED_POINTS:
        points = list(itertools.product(*(range(len(axis.labels)) for axis in axes)))
    else:
        longest = max(len(axis.labels) for axis in axes)
        points = [tuple(i % len(axis.labels) for axis in axes) for i in range(longest)]

    def build(key: Array, point: dict[str, Any]) -> Simulation:
        simulation = scenario(key, **point)
        if not isinstance(simulation, Simulation):
            raise TypeError(
                f"a scenario must return an fljax.Simulation, got {type(simulation).__name__}."
            )
        noise_plan(simulation, rounds)
        return simulation

    for position in points:
        point = {axis.name: axis.values[i] for axis, i in zip(axes, position, strict=True)}
        try:
            jax.eval_shape(functools.partial(build, point=point), jax.random.key(0, impl=PRNG))
        except Exception as error:
            if point:
                named = {a.name: a.labels[i] for a, i in zip(axes, position, strict=True)}
                error.add_note(f"This was grid point {named}.")
            raise


def _stack(axes: list[Axis], choice: tuple) -> tuple[dict[str, Any], np.ndarray]:
    """All points of one structure: values stacked on a leading axis, and positions in the grid."""
    combinations = list(itertools.product(*choice))
    positions = np.asarray(combinations, int).reshape(len(combinations), len(axes))
    points = {
        axis.name: jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x]), *picked)
        for i, axis in enumerate(axes)
        if (picked := [axis.trees[p] for p in positions[:, i]])
    }
    return points, positions


def _describe(scenario: Scenario, point: dict[str, Any]) -> Simulation:
    """The simulation's structure and shapes, without computing it."""

    def build(key: Array, point: dict[str, Any]) -> Simulation:
        return scenario(key, **_arguments(point))

    return jax.eval_shape(build, jax.random.key(0, impl=PRNG), point)


def _schedule(
    shown: Simulation, points: int, seeds: int, block: int | None, workers: int | None
) -> tuple[int, int]:
    """Seeds per block and blocks in flight."""
    device = jax.local_devices()[0]
    on_cpu = device.platform == "cpu"
    if workers is None:
        workers = _cores() if on_cpu else 1
    if block is None:
        models = shown.problem.clients * shown.problem.dim * shown.problem.dtype.itemsize
        shared = sum(
            int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shown)
        )
        footprint = shared + 6 * points * models  # state, gradient, message, noise and temporaries
        available = CACHE_BYTES
        if not on_cpu:
            available = MEMORY_SHARE * (device.memory_stats() or {}).get("bytes_limit", 2**34)
        block = max(1, int(available // footprint))
    block = min(block, seeds)
    rounds_of_blocks = -(-seeds // (block * workers))  # even out what the workers get
    return max(1, -(-seeds // (rounds_of_blocks * workers))), workers


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows do not tell


def _batches(seeds: int, size: int) -> list[np.ndarray]:
    """Seed positions per block, all of one size: the last block repeats the final seed."""
    return [
        np.minimum(np.arange(start, start + size), seeds - 1) for start in range(0, seeds, size)
    ]


@contextlib.contextmanager
def _hint_at_static(axes: list[Axis]) -> Iterator[None]:
    """A traced number used as structure is JAX's error; say which axes it can have come from."""
    try:
        yield
    except jax.errors.JAXTypeError as error:
        numbers = [axis.name for axis in axes if jax.tree.leaves(axis.trees)]
        error.add_note(
            f"The grid axes {numbers} are traced numbers; one of them was used as structure "
            "(a size, a branch). Wrap that axis in fljax.static([...])."
        )
        raise


def _compile(
    program: Program, keys: Array, points: dict[str, Any], axes: list[Axis]
) -> tuple[Any, str, bool, int]:
    signature = (_signature(points), keys.shape)
    if signature in program.compiled:
        return *program.compiled[signature], 0
    with _hint_at_static(axes):
        traced = program.function.trace(keys, points)
    consts = b"".join(np.asarray(c).tobytes() for c in traced.jaxpr.consts)
    text = hashlib.sha256(str(traced.jaxpr).encode() + consts).hexdigest()
    lowered = traced.lower()
    # Concurrent programs with LAPACK calls can block each other for ever: see fljax._linalg.
    alone = "lapack" in lowered.as_text()
    program.compiled[signature] = (lowered.compile(), text, alone)
    return *program.compiled[signature], 1


def _execute(compiled, keys: Array, batches: list[np.ndarray], points, workers: int):
    """Run all blocks, ``workers`` at a time; yields them as they finish."""

    def one(batch: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return batch, jax.tree.map(np.asarray, compiled(keys[batch], points))

    # Small factorisations reach LAPACK, whose own threads would only fight over the cores.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        futures: list[Future] = [pool.submit(one, batch) for batch in batches]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _store(
    collected: dict[str, np.ndarray],
    name: str,
    values: np.ndarray,
    shape: tuple[int, ...],
    positions: np.ndarray,
    batch: np.ndarray,
    seeds: int,
) -> None:
    """Put ``[block, points, ...]`` values at their place in ``[*grid, seeds, ...]``."""
    if name not in collected:
        missing = np.nan if values.dtype.kind == "f" else 1 if values.dtype.kind == "b" else 0
        collected[name] = np.full((*shape, seeds, *values.shape[2:]), missing, values.dtype)
    for column, position in enumerate(positions):
        collected[name][(*position, batch)] = values[:, column]
