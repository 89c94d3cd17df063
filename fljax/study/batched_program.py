"""Compiled programs of a study: seeds and grid points as array axes of one program."""

import contextlib
import functools
import hashlib
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import NamedSharding
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from fljax._core import compilation_cache, fingerprint
from fljax._core.devices import everywhere, put, sharing, split, traced_for, without_shardy
from fljax._core.module import IdentityKey, TypedKey
from fljax._core.prng import GENERATOR, GENERATORS, random_key
from fljax.problems.population_problem import OnDisk
from fljax.simulation.population_run import first_round, named_demand
from fljax.simulation.run_state import Prepared
from fljax.simulation.scan import (
    advance,
    begin,
    check_metrics,
    final_ledger,
    final_model,
    outcome,
    prepare,
)
from fljax.simulation.scenario import Simulation
from fljax.study.grid import (
    NOISE,
    Axis,
    Group,
    Scenario,
    arguments,
    contents,
    groups_of,
    signature,
    with_noise,
)
from fljax.study.shared_draws import Drawing, drawing_of, needed

#: Closed-over arrays of at least this size become arguments of the program: XLA would spend seconds
#: on constant folding, and each compiled form would have a copy.
LIFTED_BYTES = 2**16


#: Number of checked grids that are cached per scenario.
MAX_CACHED_GRIDS = 16

#: Larger grids are not cached but checked again, since copying and comparing them takes longer.
MAX_CACHED_GRID_BYTES = 2**24


@dataclass(frozen=True)
class Options:
    """JAX's options in the thread that calls ``sweep``, to be applied in the threads that compile.

    A context manager such as `jax.default_matmul_precision` sets an option for its thread only. A
    program depends on the options under which it is traced.
    """

    values: tuple[tuple[str, Any], ...]

    @classmethod
    def of_this_thread(cls) -> "Options":
        """The options of this thread."""
        options = jax.config.values.items()
        return cls(tuple(sorted((name, TypedKey(value)) for name, value in options)))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Set the options in this thread temporarily."""
        values = jax.config.values
        with contextlib.ExitStack() as stack:
            for name, option in self.values:
                if name not in values or values[name] is option.value or "guard" in name:
                    continue  # guards do not affect programs, and are specific to a thread
                manager = getattr(jax, name.removeprefix("jax_"), None)
                if manager is not None and TypedKey(values[name]) != option:
                    stack.enter_context(manager(option.value))  # other options are global
            yield


class Output(NamedTuple):
    """The outputs of a program, ``[S, C, ...]`` each: seeds of the block, grid points."""

    records: dict[str, Any]  # [S, C, R, ...]
    outcome: dict[str, Any]  # [S, C]  see `fljax.simulation.scan.outcome`; and the final model
    carry: PyTree  # the complete state, to continue the runs


class CompiledDrawing(NamedTuple):
    """The compiled form of a drawing, for a number of seeds and one device."""

    drawing: Drawing
    call: Callable[[np.ndarray, np.ndarray], list[Array]]  # (seeds, root) -> [S, ...] each
    must_run_alone: bool  # not concurrently with another program
    memory: int  # bytes in use while it runs
    shapes: list[Any]  # of its results


class Compiled(NamedTuple):
    """One compiled form of a program."""

    call: Callable[..., Output]  # (seeds, root, points, carry, done), on the device
    must_run_alone: bool  # not concurrently with another program
    memory: int  # bytes in use while it runs
    shape: Output  # its results as shapes


@dataclass
class Program:
    """The programs of a scenario, one for each structure of grid points, and their compiled forms.

    Attributes:
      compiled: compiled forms by identity, shapes, block sizes, records and device.
      locks: one for each compiled form, so that no thread compiles it a second time.
      identities: digests of the computation of a run, by signature of a grid point.
      unidentified: for each identity the host functions that cannot be identified, or empty.
      grids: groups of checked grids, by their contents.
      checked_signatures: signatures of grid points whose checks do not depend on their numbers.
      shared: identities of groups that share the program that draws their problem.
      drawings: by identity; ``None`` if nothing can be shared.
      compiled_drawings: by identity, number of seeds and device.
      draw_executables: by StableHLO text and device, so that equal drawings share one executable.
    """

    scenario: Scenario
    rounds: int
    record_every: int
    keep_models: bool
    shard_over: str = "seeds"
    generator: str = GENERATOR
    options: Options = field(default_factory=Options.of_this_thread)
    compiled: dict[Any, Compiled] = field(default_factory=dict)
    locks: dict[Any, threading.Lock] = field(default_factory=dict)
    identities: dict[Any, str] = field(default_factory=dict)
    unidentified: dict[str, str] = field(default_factory=dict)
    grids: dict[Any, list[Group]] = field(default_factory=dict)
    checked_signatures: set[Any] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    drawings: dict[str, Drawing | None] = field(default_factory=dict)
    compiled_drawings: dict[tuple[str, int, int], CompiledDrawing | None] = field(
        default_factory=dict
    )
    draw_executables: dict[tuple[str, int, str], Any] = field(default_factory=dict)

    def prepared_simulation(self, key: Array, point: dict[str, Any]) -> tuple[Simulation, Prepared]:
        """The simulation of a run and the computation before its first round."""
        simulation = self.scenario(jax.random.split(key)[0], **arguments(point))
        if self.shard_over == "clients":
            simulation = split(simulation, simulation.problem.clients)
        return simulation, prepare(simulation, self.rounds)

    def run_segment(
        self,
        key: Array,
        point: dict[str, Any],
        carry: PyTree,
        done: Array | int,
        records: int,
        drawing: Drawing | None = None,
        drawn: Sequence[Array] = (),
    ) -> Output:
        """A segment of one run, from its start if ``carry`` is ``None``.

        ``drawn`` are the values of its ``drawing``, see :class:`~fljax.study.shared_draws.Drawing`.
        """
        built = self.prepared_simulation(key, point)
        simulation, prepared = built if drawing is None else drawing.put(built, drawn)
        clients = simulation.problem.clients
        k_run = jax.random.split(key)[1]
        if NOISE in point:
            for word in point[NOISE]:
                k_run = jax.random.fold_in(k_run, word)
        if carry is None:
            carry = begin(simulation, prepared, k_run)
        if self.shard_over == "clients":
            carry = split(carry, clients)
        with sharing(self.shard_over == "clients"):
            carry, recorded = advance(
                simulation, prepared, k_run, carry, done, records, self.record_every, self.rounds
            )
        check_metrics(simulation, recorded, records)
        results = outcome(simulation, prepared, carry)
        if self.keep_models:
            results["model"] = final_model(simulation, prepared, carry)
            results |= final_ledger(carry)
        return Output(recorded, results, carry)

    def groups(self, axes: list[Axis], retrace: bool) -> list[Group]:
        """The points of a grid by structure, each checked, see :func:`~fljax.study.grid.groups_of`.

        Unless ``retrace``, a grid with the same values is not checked again, except for values so
        large that caching them takes longer.
        """

        def compute() -> list[Group]:
            settled = None if retrace else self.checked_signatures
            return groups_of(self.scenario, axes, self.rounds, self.generator, settled)

        leaves = jax.tree.leaves([axis.trees for axis in axes])
        if sum(leaf.nbytes for leaf in leaves) > MAX_CACHED_GRID_BYTES:
            return compute()
        key = contents(axes)
        if retrace or key not in self.grids:
            groups = compute()
            while len(self.grids) >= MAX_CACHED_GRIDS:
                self.grids.pop(next(iter(self.grids)), None)
            self.grids[key] = groups
        return self.grids[key]

    def identity(self, group: Group, retrace: bool) -> str:
        """A digest of the computation of one run, independent of grid numbers, blocks and seeds.

        Unless ``retrace``, a known scenario is assumed to be unchanged, as `jax.jit` assumes for a
        function. A store requires a new trace.

        A private run's noise depends on its number of rounds, which is then part of its identity.
        """
        point = group.first
        key = signature(point)
        if not retrace and key in self.identities:
            return self.identities[key]
        identity, unknown = _identity(
            self._first_record(group), random_key(0, self.generator), point
        )
        problem = group.abstract.problem
        if isinstance(problem, OnDisk):  # its samples are no part of the program
            text = f"{identity} of the population {problem.population.digest}"
            identity = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.identities[key] = identity
        self.unidentified[identity] = unknown
        return identity

    def with_noise(self, group: Group, axes: list[Axis], secret: str = "") -> Group:
        """The group with noise that is independent at each point, in each study, for each secret.

        A non-private run that is continued for more rounds keeps its identity.
        """
        identity = self.identities[signature(group.first)]
        rounds = "any" if group.abstract.privacy is None else self.rounds
        study = f"{identity} of {rounds} rounds" + (f" and the secret {secret}" if secret else "")
        group_with_noise = with_noise(group, axes, study)
        self.identities[signature(group_with_noise.first)] = f"{identity}, with noise of its own"
        return group_with_noise

    def share(self, groups: list[Group]) -> None:
        """Let groups of a study with the same problem draw it in one program.

        This also applies to later studies of this program, even of a single one of these groups.
        """
        if self.shard_over == "clients" or groups[0].abstract.problem.on_disk:
            return
        problems = [signature(group.abstract.problem) for group in groups]
        for group, problem in zip(groups, problems, strict=True):
            if problems.count(problem) > 1:
                self.shared.add(self.identities[signature(group.first)])

    def shapes(self, group: Group) -> Output:
        """The shapes of one run's outputs after its first record."""
        return jax.eval_shape(self._first_record(group), random_key(0, self.generator), group.first)

    def _first_record(self, group: Group) -> Callable[[Array, dict[str, Any]], Output]:
        """One run up to its first record."""
        private = group.abstract.privacy is not None
        rounds = self.rounds if private else self.record_every
        short_program = Program(self.scenario, rounds, self.record_every, self.keep_models)
        if group.abstract.problem.on_disk:
            return short_program._first_round_on_disk

        def run(key: Array, point: dict[str, Any]) -> Output:
            return short_program.run_segment(key, point, None, 0, 1)

        return run

    def _first_round_on_disk(self, key: Array, point: dict[str, Any]) -> Output:
        """One run over a population up to its first record, with zeros for samples."""
        k_scenario, k_run = jax.random.split(key)
        simulation = self.scenario(k_scenario, **arguments(point))
        with named_demand(simulation.algorithm):
            record, results, ledger, model, carry = first_round(simulation, k_run, self.rounds)
        if self.keep_models:
            results |= ledger if model is None else {**ledger, "model": model}
        return Output({name: value[None] for name, value in record.items()}, results, carry)

    def compile(
        self,
        seeds: np.ndarray,
        root: np.ndarray,
        points: dict[str, Any],
        carry: PyTree,
        size: tuple[int, int],
        records: int,
        device: jax.Device | None = None,
    ) -> tuple[Compiled, float]:
        """The compiled form for arguments of these shapes, and the seconds spent compiling it.

        Args:
          seeds: ``[S]``, unsigned.
          root: data of the key from which the runs' keys are derived.
          points: stacked grid points ``[C, ...]``; without leaves if they contain no numbers.
          carry: a state ``[S, C, ...]`` to continue, or ``None``.
          size: ``C``, and the number of blocks of seeds that are computed one after the other.
          records: number of records to make.
          device: the device to compile for; by default the first.
        """
        device = device or jax.local_devices()[0]
        identity = self.identities[signature(jax.tree.map(lambda leaf: leaf[0], points))]
        shapes = signature((seeds, points, carry))
        key = (identity, shapes, size, records, device.id)
        with self.locks.setdefault(key, threading.Lock()):
            start = time.perf_counter()
            if key in self.compiled:
                return self.compiled[key], 0.0
            arguments = (seeds, root, points, carry, np.int32(0))
            over_clients = self.shard_over == "clients"
            needs_wide_multiplication = over_clients and self.generator == "philox4x32"
            with without_shardy() if needs_wide_multiplication else contextlib.nullcontext():
                placement = everywhere() if over_clients else device
                with self.options.applied():
                    draws = self._compiled_drawing(identity, seeds, root, points, device)
                    drawing = None if draws is None else draws.drawing
                    call = self._batched_call(*size, records, drawing)
                    self.compiled[key] = _compile(call, arguments, placement, self.options, draws)
            return self.compiled[key], time.perf_counter() - start

    def _run_keys(self, seeds: Array, root: Array) -> Array:
        """The runs' keys ``[S]``."""
        key = jax.random.wrap_key_data(root, impl=GENERATORS[self.generator])
        return jax.vmap(lambda seed: jax.random.fold_in(key, seed))(seeds)

    def _compiled_drawing(
        self,
        identity: str,
        seeds: np.ndarray,
        root: np.ndarray,
        points: dict[str, Any],
        device: jax.Device,
    ) -> CompiledDrawing | None:
        """The compiled drawing of a group that shares its problem, else ``None``.

        The first of the sharing groups compiles it.
        """
        if identity not in self.shared:
            return None
        key = (identity, len(seeds), device.id)
        with self.locks.setdefault(key, threading.Lock()):
            if key not in self.compiled_drawings:
                self.compiled_drawings[key] = self._compile_drawing(
                    identity, seeds, root, points, device
                )
            return self.compiled_drawings[key]

    def _compile_drawing(
        self,
        identity: str,
        seeds: np.ndarray,
        root: np.ndarray,
        points: dict[str, Any],
        device: jax.Device,
    ) -> CompiledDrawing | None:
        """Compile a group's drawing; groups with the same StableHLO text share the executable."""
        if identity not in self.drawings:
            point = jax.tree.map(lambda leaf: leaf[0], points)
            key = random_key(0, self.generator)
            self.drawings[identity] = drawing_of(self.prepared_simulation, key, point)
        if (drawing := self.drawings[identity]) is None:
            return None

        def draw(seeds: Array, root: Array) -> list[Array]:
            return jax.vmap(drawing.draw)(self._run_keys(seeds, root))

        lifted, large, shapes = _lift_large_constants(draw, (seeds, root))
        large = put(large, device)
        lowered = jax.jit(lifted, keep_unused=True).lower(*put((seeds, root), device), *large)
        text = lowered.as_text()
        # The text does not identify functions that are called on the host.
        draw_key = (text, device.id, identity if "callback" in text else "")
        with self.locks.setdefault(draw_key, threading.Lock()):
            if draw_key not in self.draw_executables:
                self.draw_executables[draw_key] = compilation_cache.compile_or_load(
                    lowered, text, device
                )
            executable = self.draw_executables[draw_key]

        def call(seeds: np.ndarray, root: np.ndarray) -> list[Array]:
            return executable(*put((seeds, root), device), *large)

        return CompiledDrawing(drawing, call, _must_run_alone(text), _memory(executable), shapes)

    def _batched_call(
        self, count: int, blocks_per_call: int, records: int, drawing: Drawing | None
    ) -> Callable[..., Output]:
        """:meth:`run_segment` for all seeds and points, a number of blocks one after the other."""

        def block(
            keys: Array, points: dict[str, Any], carry: PyTree, done: Array, drawn: list[Array]
        ) -> Output:
            def run(key: Array, drawn: list[Array], point: dict[str, Any], carry: PyTree) -> Output:
                return self.run_segment(key, point, carry, done, records, drawing, drawn)

            if len(keys) == count == 1:
                # Without axes of size one: under vmap XLA would use other matrix products for
                # networks, which are half as fast on a CPU.
                point = jax.tree.map(lambda leaf: leaf[0], points)
                first_carry = jax.tree.map(lambda leaf: leaf[0, 0], carry)
                output = run(keys[0], [value[0] for value in drawn], point, first_carry)
                return jax.tree.map(lambda leaf: leaf[None, None], output)
            over_points = jax.vmap(run, (None, None, 0, 0), axis_size=count)
            return jax.vmap(over_points, (0, 0, None, 0))(keys, drawn, points, carry)

        def call(
            seeds: Array,
            root: Array,
            points: dict[str, Any],
            carry: PyTree,
            done: Array,
            drawn: list[Array],
        ) -> Output:
            keys = self._run_keys(seeds, root)
            if blocks_per_call == 1:
                output = block(keys, points, carry, done, drawn)
            else:
                # Compute the block size instead of writing -1, which fails for arrays of size zero.
                block_size = len(seeds) // blocks_per_call
                per_seed = (keys, carry, drawn)
                blocks = jax.tree.map(
                    lambda x: x.reshape(blocks_per_call, block_size, *x.shape[1:]), per_seed
                )
                output = jax.lax.map(
                    lambda part: block(part[0], points, part[1], done, part[2]), blocks
                )
                output = jax.tree.map(lambda x: x.reshape(len(seeds), *x.shape[2:]), output)
            if self.shard_over == "clients":
                replicated = output._replace(carry=None)
                replicated = jax.lax.with_sharding_constraint(replicated, everywhere())
                output = replicated._replace(carry=output.carry)
            return output

        return call


class ScenarioKey:
    """A scenario as a dictionary key, compared by identity.

    Two objects of a dataclass may be equal and differ in a field that is excluded from comparison.
    A bound method is a new object at each access, so it is compared by its function and object.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        is_method = isinstance(scenario, types.MethodType)
        parts = (scenario.__func__, scenario.__self__) if is_method else (scenario,)
        self.parts = tuple(map(IdentityKey, parts))

    def __hash__(self) -> int:
        return hash(self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScenarioKey) and self.parts == other.parts


@functools.lru_cache(maxsize=64)
def program(
    key: ScenarioKey,
    rounds: int,
    record_every: int,
    keep_models: bool,
    shard_over: str,
    generator: str,
    options: Options,
) -> Program:
    """The program of a scenario, cached so that later studies reuse its compiled forms.

    JAX's options are part of the key.
    """
    scenario = key.scenario
    return Program(scenario, rounds, record_every, keep_models, shard_over, generator, options)


def _compile(
    function: Callable[..., Output],
    arguments: tuple,
    device: jax.Device | NamedSharding,
    options: Options,
    drawing: CompiledDrawing | None,
) -> Compiled:
    """Compile a batched call for a device; its large constants are copied there once."""
    drawn = [] if drawing is None else drawing.shapes
    lifted, large, shape = _lift_large_constants(
        function, (*arguments, drawn), without_dead=drawing is not None
    )
    large = put(large, device)
    # Donate the carry (argument 3), which is not used again. Unused arguments stay, so that the
    # text distinguishes the programs of two grid axes.
    jitted = jax.jit(lifted, donate_argnums=3, keep_unused=True)
    lowered = jitted.lower(*put(arguments, device), drawn, *large)
    text = lowered.as_text()
    must_run_alone = _must_run_alone(text) or (drawing is not None and drawing.must_run_alone)
    if isinstance(device, jax.Device):
        executable = compilation_cache.compile_or_load(lowered, text, device)
    else:
        executable = lowered.compile()

    def call(seeds: np.ndarray, root: np.ndarray, *arguments: object) -> Output:
        with options.applied():
            drawn = [] if drawing is None else drawing.call(seeds, root)
            return executable(*put((seeds, root, *arguments), device), drawn, *large)

    memory = max(_memory(executable), 0 if drawing is None else drawing.memory)
    return Compiled(call, must_run_alone, memory, shape)


def _must_run_alone(text: str) -> bool:
    """Whether a program must not run concurrently with another.

    Concurrent programs with LAPACK calls can deadlock, see :mod:`fljax._core.linalg`. Programs that
    call the host are not faster concurrently, since callbacks hold Python's lock.
    """
    return "lapack" in text or "callback" in text


def _memory(executable: jax.stages.Compiled) -> int:
    """Bytes that a program uses while it runs; 0 if unknown."""
    analysis = executable.memory_analysis()
    if analysis is None:
        return 0
    return (
        analysis.temp_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.argument_size_in_bytes
    )


def _lift_large_constants(
    function: Callable, arguments: tuple, without_dead: bool = False
) -> tuple[Callable, tuple[Array, ...], Any]:
    """Turn large closed-over arrays of a function into arguments.

    Returns the function with these further arguments, the arrays, and the shapes of its outputs.
    With ``without_dead`` computations that no output needs are removed.
    """
    closed_jaxpr, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if without_dead:
        closed_jaxpr = needed(closed_jaxpr, [True] * len(closed_jaxpr.jaxpr.outvars))
    is_large = [np.size(c) * c.dtype.itemsize >= LIFTED_BYTES for c in closed_jaxpr.consts]
    large_constants = tuple(
        c for c, is_lifted in zip(closed_jaxpr.consts, is_large, strict=True) if is_lifted
    )
    if not (large_constants or without_dead):
        return function, large_constants, shape  # JAX has cached the trace of this function

    def lifted(*arguments: object) -> Any:
        lifted_values = iter(arguments[len(arguments) - len(large_constants) :])
        consts = [
            next(lifted_values) if is_lifted else c
            for c, is_lifted in zip(closed_jaxpr.consts, is_large, strict=True)
        ]
        leaves = jax.tree.leaves(arguments[: len(arguments) - len(large_constants)])
        results = core.jaxpr_as_fun(core.ClosedJaxpr(closed_jaxpr.jaxpr, consts))(*leaves)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return lifted, large_constants, shape


def _identity(function: Callable, *arguments: object) -> tuple[str, str]:
    """A digest of a function's computation, and which called host function has none, and why.

    The digest is the same in every process and on every device. It is that of the StableHLO text,
    with every bit of the constants, and of the lifted constants and host functions. (A printed
    jaxpr differs between processes, since it contains addresses and depends on caches.)
    """
    with traced_for("cpu"):  # some loops are traced differently for other devices
        lifted, large_constants, _ = _lift_large_constants(function, arguments)
        traced = jax.jit(lifted, keep_unused=True).trace(*arguments, *large_constants)
        lowered = traced.lower(lowering_platforms=("cpu",))
    text = lowered.as_text()
    digest = hashlib.sha256(text.encode())
    for array in large_constants:
        digest.update(_bits(array))
    calls, unknown = fingerprint.called(traced.jaxpr, text)
    for call in calls:
        digest.update(call.encode())
    return digest.hexdigest()[:16], unknown


def _bits(array: ArrayLike) -> bytes:
    """All bits of an array; its ``repr`` has eight digits of a few entries."""
    if jnp.issubdtype(jnp.result_type(array), jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.ascontiguousarray(array).tobytes()


@contextlib.contextmanager
def hint_at_static(axes: list[Axis]) -> Iterator[None]:
    """Within, add the names of the traced grid axes to JAX's errors about traced numbers."""
    try:
        yield
    except jax.errors.JAXTypeError as error:
        numbers = [axis.name for axis in axes if jax.tree.leaves(axis.trees)]
        error.add_note(
            f"The grid axes {numbers} are traced numbers; one of them was used as structure "
            "(a size, a branch). Wrap that axis in fljax.static([...])."
        )
        raise
