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
from jaxtyping import Array

from fljax import _hosted as hosted
from fljax import _programs as programs
from fljax._devices import everywhere, put, sharing, split, without_shardy
from fljax._generator import GENERATOR, GENERATORS, random_key
from fljax._memory import traced_for
from fljax._module import Alike, Itself
from fljax.engine import (
    Prepared,
    advance,
    begin,
    check_metrics,
    final_ledger,
    final_model,
    outcome,
    prepare,
)
from fljax.simulation import Simulation
from fljax.study.drawing import Drawing, drawing_of, needed
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

__all__ = [
    "Compiled",
    "Options",
    "Output",
    "Program",
    "Same",
    "hint_at_static",
    "program",
]

#: Closed-over arrays of at least this size are passed to the program: XLA would spend seconds on
#: folding them into it, and keep a copy in each of its forms.
HOISTED_BYTES = 2**16


#: Number of grids of a scenario that are remembered as checked.
REMEMBERED_GRIDS = 16

#: Grids with larger values are checked anew: copying and comparing them takes longer, and memory.
REMEMBERED_BYTES = 2**24


@dataclass(frozen=True)
class Options:
    """JAX's options as set in a thread: a program is traced under them, and differs under other
    options.

    A context manager such as `jax.default_matmul_precision` sets an option for its own thread,
    while blocks are compiled in other threads.
    """

    values: tuple[tuple[str, Any], ...]

    @classmethod
    def now(cls) -> "Options":
        """The options of this thread."""
        config: Any = jax.config
        return cls(tuple(sorted((name, Alike(value)) for name, value in config.values.items())))

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Set the options in this thread temporarily."""
        config: Any = jax.config
        present = config.values
        with contextlib.ExitStack() as stack:
            for name, wanted in self.values:
                if name not in present or present[name] is wanted.value or "guard" in name:
                    continue  # guards tell nothing of a program, and are this thread's own
                manager = getattr(jax, name.removeprefix("jax_"), None)
                if manager is not None and Alike(present[name]) != wanted:
                    stack.enter_context(manager(wanted.value))  # others are of all threads
            yield


class Output(NamedTuple):
    """The outputs of a program, ``[S, C, ...]`` each: seeds of the block, grid points."""

    records: dict[str, Any]  # [S, C, R, ...]
    outcome: dict[str, Any]  # [S, C]  see `fljax.engine.outcome`, and the model if it is kept
    carry: Any  # the whole state, to go on from


class Draws(NamedTuple):
    """The compiled form of a drawing, for so many seeds and one device."""

    drawing: Drawing
    call: Callable[[np.ndarray, np.ndarray], list[Array]]  # (seeds, root) -> [S, ...] each
    alone: bool  # must not run beside another
    memory: int  # bytes it takes while it runs
    shapes: list[Any]  # what it returns, as shapes


class Compiled(NamedTuple):
    """One compiled form of a program."""

    call: Any  # (seeds, root, points, carry, done) -> Output, on the device
    alone: bool  # must not run beside another
    memory: int  # bytes it takes while it runs
    shape: Output  # what it returns, as shapes


@dataclass
class Program:
    """The program of a study of one structure, and its compiled forms by block, points and
    records.
    """

    scenario: Scenario
    rounds: int
    record_every: int
    keep_models: bool
    shard_over: str = "seeds"
    generator: str = GENERATOR
    options: Options = field(default_factory=Options.now)
    forms: dict[Any, Compiled] = field(default_factory=dict)
    locks: dict[Any, threading.Lock] = field(default_factory=dict)
    identities: dict[Any, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    grids: dict[Any, list[Group]] = field(default_factory=dict)
    settled: set[Any] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    drawings: dict[str, Drawing | None] = field(default_factory=dict)
    draws: dict[tuple[str, int, int], Draws | None] = field(default_factory=dict)
    drawers: dict[tuple[str, int, str], Any] = field(default_factory=dict)

    def built(self, key: Array, point: dict[str, Any]) -> tuple[Simulation, Prepared]:
        """What a run computes before its first round."""
        simulation = self.scenario(jax.random.split(key)[0], **arguments(point))
        if self.shard_over == "clients":
            simulation = split(simulation, simulation.problem.clients)
        return simulation, prepare(simulation, self.rounds)

    def one(
        self,
        key: Array,
        point: dict[str, Any],
        carry: Any,
        done: Array | int,
        records: int,
        drawing: Drawing | None = None,
        drawn: Sequence[Array] = (),
    ) -> Output:
        """A segment of one run, from the start if there is no ``carry``; ``drawn`` are the values
        of its ``drawing``.
        """
        built = self.built(key, point)
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
        known = outcome(simulation, prepared, carry)
        if self.keep_models:
            known["model"] = final_model(simulation, prepared, carry)
            known |= final_ledger(carry)
        return Output(recorded, known, carry)

    def groups(self, axes: list[Axis], fresh: bool) -> list[Group]:
        """The points of a grid by structure, each checked, see :func:`~fljax.study.grid.groups_of`.

        Unless ``fresh``, a grid with the same values that was seen before is not checked again,
        except where its values are so large that remembering them costs more.
        """

        def made() -> list[Group]:
            settled = None if fresh else self.settled
            return groups_of(self.scenario, axes, self.rounds, self.generator, settled)

        leaves = jax.tree.leaves([axis.trees for axis in axes])
        if sum(leaf.nbytes for leaf in leaves) > REMEMBERED_BYTES:
            return made()
        form = contents(axes)
        if fresh or form not in self.grids:
            groups = made()
            while len(self.grids) >= REMEMBERED_GRIDS:
                self.grids.pop(next(iter(self.grids)), None)
            self.grids[form] = groups
        return self.grids[form]

    def identity(self, group: Group, fresh: bool) -> str:
        """A digest of what one run computes, whatever the grid's numbers, blocks and seeds.

        Unless ``fresh``, a scenario that was seen before is assumed to be unchanged, as `jax.jit`
        assumes for a function; a store needs certainty.

        A private run's noise depends on its number of rounds, which is then part of its identity.
        """
        point = group.first
        form = signature(point)
        if not fresh and form in self.identities:
            return self.identities[form]
        identity, unknown = _identity(self._record(group), random_key(0, self.generator), point)
        self.identities[form] = identity
        self.unknown[identity] = unknown
        return identity

    def with_noise(self, group: Group, axes: list[Axis], secret: str = "") -> Group:
        """The group whose points draw their own noise, different from that in any other study of
        them, and from any other secret.

        A non-private run that is continued for more rounds keeps its identity.
        """
        identity = self.identities[signature(group.first)]
        rounds = "any" if group.shown.privacy is None else self.rounds
        study = f"{identity} of {rounds} rounds" + (f" and the secret {secret}" if secret else "")
        noisy = with_noise(group, axes, study)
        self.identities[signature(noisy.first)] = f"{identity}, with noise of its own"
        return noisy

    def share(self, groups: list[Group]) -> None:
        """Let the groups of a study that have a problem in common draw it in one program.

        They go on doing so in other studies of this program, whichever of them these have.
        """
        if self.shard_over == "clients":
            return
        forms = [signature(group.shown.problem) for group in groups]
        for group, form in zip(groups, forms, strict=True):
            if forms.count(form) > 1:
                self.shared.add(self.identities[signature(group.first)])

    def shapes(self, group: Group) -> Output:
        """The outputs of one run after a record, as shapes."""
        return jax.eval_shape(self._record(group), random_key(0, self.generator), group.first)

    def _record(self, group: Group) -> Callable[[Array, dict[str, Any]], Output]:
        """One run up to its first record."""
        private = group.shown.privacy is not None
        rounds = self.rounds if private else self.record_every
        short = Program(self.scenario, rounds, self.record_every, self.keep_models)

        def run(key: Array, point: dict[str, Any]) -> Output:
            return short.one(key, point, None, 0, 1)

        return run

    def compile(
        self,
        seeds: np.ndarray,
        root: np.ndarray,
        points: dict[str, Any],
        carry: Any,
        size: tuple[int, int],
        records: int,
        device: jax.Device | None = None,
    ) -> tuple[Compiled, float]:
        """The compiled form for arguments of these shapes, and the seconds that compiling it took
        just now.

        Args:
          seeds: ``[S]``, unsigned.
          root: data of the key from which the runs' keys are derived.
          points: stacked grid points ``[C, ...]``; without leaves if they contain no numbers.
          carry: a state ``[S, C, ...]`` to go on from, or ``None``.
          size: ``C``, and the number of blocks of seeds that are computed one after the other.
          records: number of records to make.
          device: the device to compile for; by default the first.
        """
        device = device or jax.local_devices()[0]
        identity = self.identities[signature(jax.tree.map(lambda leaf: leaf[0], points))]
        shapes = signature((seeds, points, carry))
        form = (identity, shapes, size, records, device.id)
        with self.locks.setdefault(form, threading.Lock()):
            began = time.perf_counter()
            if form in self.forms:
                return self.forms[form], 0.0
            given = (seeds, root, points, carry, np.int32(0))
            together = self.shard_over == "clients"
            wide = together and self.generator == "philox4x32"
            with without_shardy() if wide else contextlib.nullcontext():
                where = everywhere() if together else device
                with self.options.here():
                    draws = self._draws(identity, seeds, root, points, device)
                    drawing = None if draws is None else draws.drawing
                    call = self._call(*size, records, drawing)
                    self.forms[form] = _compile(call, given, where, self.options, draws)
            return self.forms[form], time.perf_counter() - began

    def _keys(self, seeds: Array, root: Array) -> Array:
        """The runs' keys ``[S]``."""
        key = jax.random.wrap_key_data(root, impl=GENERATORS[self.generator])
        return jax.vmap(lambda seed: jax.random.fold_in(key, seed))(seeds)

    def _draws(
        self,
        identity: str,
        seeds: np.ndarray,
        root: np.ndarray,
        points: dict[str, Any],
        device: jax.Device,
    ) -> Draws | None:
        """The compiled form of what a group that shares its problem draws, which the first of
        these groups compiles.
        """
        if identity not in self.shared:
            return None
        form = (identity, len(seeds), device.id)
        with self.locks.setdefault(form, threading.Lock()):
            if form not in self.draws:
                self.draws[form] = self._compiled_draws(identity, seeds, root, points, device)
            return self.draws[form]

    def _compiled_draws(
        self,
        identity: str,
        seeds: np.ndarray,
        root: np.ndarray,
        points: dict[str, Any],
        device: jax.Device,
    ) -> Draws | None:
        """As :meth:`_draws`, anew; the executable is that of all groups whose text is the same."""
        if identity not in self.drawings:
            point = jax.tree.map(lambda leaf: leaf[0], points)
            key = random_key(0, self.generator)
            self.drawings[identity] = drawing_of(self.built, key, point)
        if (drawing := self.drawings[identity]) is None:
            return None

        def draw(seeds: Array, root: Array) -> list[Array]:
            return jax.vmap(drawing.draw)(self._keys(seeds, root))

        lifted, large, shapes = _lift(draw, (seeds, root))
        large = put(large, device)
        lowered = jax.jit(lifted, keep_unused=True).lower(*put((seeds, root), device), *large)
        text = lowered.as_text()
        # Of what is called on the host a text says no more than that it is called.
        form = (text, device.id, identity if "callback" in text else "")
        with self.locks.setdefault(form, threading.Lock()):
            if form not in self.drawers:
                self.drawers[form] = programs.compile_or_load(lowered, text, device)
            executable = self.drawers[form]

        def call(seeds: np.ndarray, root: np.ndarray) -> list[Array]:
            return executable(*put((seeds, root), device), *large)

        return Draws(drawing, call, _is_alone(text), _memory(executable), shapes)

    def _call(
        self, count: int, turns: int, records: int, drawing: Drawing | None
    ) -> Callable[..., Output]:
        """Seeds times points of :meth:`one`, in so many turns."""

        def block(
            keys: Array, points: dict[str, Any], carry: Any, done: Array, drawn: list[Array]
        ) -> Output:
            def one(key: Array, drawn: list[Array], point: dict[str, Any], carry: Any) -> Output:
                return self.one(key, point, carry, done, records, drawing, drawn)

            if len(keys) == count == 1:
                # Axes of one turn products of networks into others, half as fast on a CPU.
                point = jax.tree.map(lambda leaf: leaf[0], points)
                before = jax.tree.map(lambda leaf: leaf[0, 0], carry)
                output = one(keys[0], [value[0] for value in drawn], point, before)
                return jax.tree.map(lambda leaf: leaf[None, None], output)
            over_points = jax.vmap(one, (None, None, 0, 0), axis_size=count)
            return jax.vmap(over_points, (0, 0, None, 0))(keys, drawn, points, carry)

        def call(
            seeds: Array,
            root: Array,
            points: dict[str, Any],
            carry: Any,
            done: Array,
            drawn: list[Array],
        ) -> Output:
            keys = self._keys(seeds, root)
            if turns == 1:
                output = block(keys, points, carry, done, drawn)
            else:
                # A state may have no numbers, and -1 cannot be told from the size of nothing.
                each, own = len(seeds) // turns, (keys, carry, drawn)
                cut = jax.tree.map(lambda x: x.reshape(turns, each, *x.shape[1:]), own)
                output = jax.lax.map(
                    lambda part: block(part[0], points, part[1], done, part[2]), cut
                )
                output = jax.tree.map(lambda x: x.reshape(len(seeds), *x.shape[2:]), output)
            if self.shard_over == "clients":
                known = output._replace(carry=None)
                known = jax.lax.with_sharding_constraint(known, everywhere())
                output = known._replace(carry=output.carry)
            return output

        return call


class Same:
    """A scenario as a dictionary key: equal to itself alone, whatever it compares equal to.

    Two objects of one dataclass may be equal and differ in a field that is excluded from
    comparison. A method is a new object each time it is looked up; it counts as the same if its
    function and object are.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        own = isinstance(scenario, types.MethodType)
        parts = (scenario.__func__, scenario.__self__) if own else (scenario,)
        self.parts = tuple(map(Itself, parts))

    def __hash__(self) -> int:
        return hash(self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.parts == other.parts


@functools.lru_cache(maxsize=64)
def program(
    same: Same,
    rounds: int,
    record_every: int,
    keep_models: bool,
    shard_over: str,
    generator: str,
    options: Options,
) -> Program:
    """The program of a scenario; a second study of it reuses the compiled forms of the first,
    unless JAX's options have changed since.
    """
    scenario = same.scenario
    return Program(scenario, rounds, record_every, keep_models, shard_over, generator, options)


def _compile(
    function: Callable[..., Output],
    given: tuple,
    device: jax.Device | NamedSharding,
    options: Options,
    draws: Draws | None,
) -> Compiled:
    drawn = [] if draws is None else draws.shapes
    lifted, large, shape = _lift(function, (*given, drawn), without_dead=draws is not None)
    large = put(large, device)
    # The state that a run goes on from is not needed again. The text says which argument is which
    # only if those that are not used are kept: so it tells the programs of two axes apart.
    donated = jax.jit(lifted, donate_argnums=3, keep_unused=True)
    lowered = donated.lower(*put(given, device), drawn, *large)
    text = lowered.as_text()
    alone = _is_alone(text) or (draws is not None and draws.alone)
    if isinstance(device, jax.Device):
        executable = programs.compile_or_load(lowered, text, device)
    else:
        executable = lowered.compile()

    def call(seeds: np.ndarray, root: np.ndarray, *given: Any) -> Output:
        with options.here():
            drawn = [] if draws is None else draws.call(seeds, root)
            return executable(*put((seeds, root, *given), device), drawn, *large)

    memory = max(_memory(executable), 0 if draws is None else draws.memory)
    return Compiled(call, alone, memory, shape)


def _is_alone(text: str) -> bool:
    """Whether a program must not run beside another.

    Concurrent programs with LAPACK calls can block each other for ever: see fljax._linalg. What
    calls the host gains nothing by company, and waits for it.
    """
    return "lapack" in text or "callback" in text


def _memory(executable: Any) -> int:
    """Bytes that a program takes while it runs, as far as they are known."""
    known = executable.memory_analysis()
    if known is None:
        return 0
    return known.temp_size_in_bytes + known.output_size_in_bytes + known.argument_size_in_bytes


def _lift(
    function: Callable, given: tuple, without_dead: bool = False
) -> tuple[Callable, tuple[Array, ...], Any]:
    """The function with its large closed-over arrays as further arguments, these arrays, and its
    outputs as shapes; if so asked, without what it computes for nothing.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*given)
    if without_dead:
        closed = needed(closed, [True] * len(closed.jaxpr.outvars))
    lift = [np.size(c) * c.dtype.itemsize >= HOISTED_BYTES for c in closed.consts]
    large = tuple(c for c, out in zip(closed.consts, lift, strict=True) if out)
    if not (large or without_dead):
        return function, large, shape  # already traced: nothing is to be traced again

    def lifted(*given: Any) -> Any:
        passed = iter(given[len(given) - len(large) :])
        consts = [next(passed) if out else c for c, out in zip(closed.consts, lift, strict=True)]
        leaves = jax.tree.leaves(given[: len(given) - len(large)])
        made = core.jaxpr_as_fun(core.ClosedJaxpr(closed.jaxpr, consts))(*leaves)
        return jax.tree.unflatten(jax.tree.structure(shape), made)

    return lifted, large, shape


def _identity(function: Callable, *given: Any) -> tuple[str, str]:
    """A digest of what a function computes, the same in every process and on every device; and
    which host functions it calls cannot be identified, and why, empty if all can.

    It is taken of the StableHLO text, which holds every bit of the constants that are not passed.
    (A printed jaxpr differs between processes: it names what happens to be shared, and addresses.)
    """
    with traced_for("cpu"):  # other devices have other forms of some loops
        lifted, large, _ = _lift(function, given)
        traced = jax.jit(lifted, keep_unused=True).trace(*given, *large)
        lowered = traced.lower(lowering_platforms=("cpu",))
    text = lowered.as_text()
    digest = hashlib.sha256(text.encode())
    for array in large:
        digest.update(_content(array))
    calls, unknown = hosted.called(traced.jaxpr, text)
    for call in calls:
        digest.update(call.encode())
    return digest.hexdigest()[:16], unknown


def _content(array: Any) -> bytes:
    """Every bit: a printed array shows eight digits of a few entries."""
    if jnp.issubdtype(jnp.result_type(array), jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.ascontiguousarray(array).tobytes()


@contextlib.contextmanager
def hint_at_static(axes: list[Axis]) -> Iterator[None]:
    """Explain JAX's error about a traced number used as structure by naming the possible
    grid axes.
    """
    try:
        yield
    except jax.errors.JAXTypeError as error:
        numbers = [axis.name for axis in axes if jax.tree.leaves(axis.trees)]
        error.add_note(
            f"The grid axes {numbers} are traced numbers; one of them was used as structure "
            "(a size, a branch). Wrap that axis in fljax.static([...])."
        )
        raise
