"""Compiled programs on disk: found by the next process, and never in the way."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import fljax as fl
from fljax._core import compilation_cache as programs
from fljax._core import storage
from fljax._core.devices import configured
from fljax._core.storage import host
from fljax.simulation import running

ROOT = Path(__file__).parents[2]
STATIC = ("generator", "rounds", "record_every")

pytestmark = pytest.mark.core


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A temporary program cache, which the suite's own cache would disable."""
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path))
    with configured("jax_compilation_cache_dir", None):
        reset_cache()  # JAX goes on with the one it began with
        yield tmp_path / "programs"
    reset_cache()


def double(x):
    return 2 * x


def run_program(function=double, *, size=3):
    """A program's result, and whether it was compiled for it."""
    lowered = jax.jit(function, keep_unused=True).lower(np.zeros(size))
    real = jax.stages.Lowered.compile
    with mock.patch.object(jax.stages.Lowered, "compile", autospec=True, side_effect=real) as spy:
        program = programs.compile_or_load(lowered, lowered.as_text(), jax.local_devices()[0])
    return program(np.arange(1.0, size + 1)).tolist(), spy.called


def files(folder):
    return sorted(folder.glob("*.program"))


def test_a_program_is_compiled_once(folder):
    assert run_program() == ([2, 4, 6], True)
    assert run_program() == ([2, 4, 6], False)
    assert folder.stat().st_mode & 0o077 == 0  # loaded files are executed


def test_compiler_options_compile_separately(folder, monkeypatch):
    run_program()
    assert run_program(lambda x: 3 * x)[1]
    assert run_program(size=4)[1]
    with configured("jax_debug_nans", True):
        assert run_program()[1]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_min_max=true")
    assert run_program()[1]
    monkeypatch.setattr(programs, "_processor", lambda: "another")
    assert run_program()[1]
    assert len(files(folder)) == 6


# Single runs --------------------------------------------------------------------------------------


def scaled(tree, *, times, by=1.0):
    return {"out": times * by * tree["in"][0]}


def fresh_program():
    """As in a process that has not run it yet."""
    return programs.PersistentJit(scaled, ("times", "by"))


@pytest.fixture
def compiled(monkeypatch):
    """The programs that are compiled, one by one."""
    real = jax.stages.Lowered.compile
    calls = []
    monkeypatch.setattr(
        jax.stages.Lowered,
        "compile",
        lambda *arguments: calls.append(arguments) or real(*arguments),
    )
    return calls


def program_arguments(*numbers, dtype=float):
    return {"in": (jnp.asarray(numbers, dtype), np.float64(3.0))}


def test_a_function_is_compiled_once_for_all_processes(folder, compiled):
    first = fresh_program()
    assert first(program_arguments(1, 2), times=3)["out"].tolist() == [3, 6]
    assert first(program_arguments(4, 5), times=3)["out"].tolist() == [12, 15]
    assert fresh_program()(program_arguments(1, 2), times=3)["out"].tolist() == [3, 6]
    assert len(compiled) == len(files(folder)) == 1
    assert first.jitted._cache_size() == 0
    for other in (
        lambda: first(program_arguments(1, 2, 3), times=3),
        lambda: first(program_arguments(1, 2, dtype=np.float32), times=3),
        lambda: first(program_arguments(1, 2), times=4),
        lambda: first(program_arguments(1, 2), times=3, by=2.0),
    ):
        before = len(compiled)
        other()
        other()
        assert len(compiled) == before + 1
    with configured("jax_default_matmul_precision", "float32"):
        first(program_arguments(1, 2), times=3)
    assert len(compiled) == 6


def test_only_the_last_programs_are_remembered(folder, compiled, monkeypatch):
    monkeypatch.setattr(programs, "MAX_PROGRAMS_PER_FUNCTION", 2)
    program = fresh_program()
    for times in (1, 2, 1, 3, 1):  # the second is forgotten
        program(program_arguments(1), times=times)
    assert {dict(form[2])["times"] for form in program._programs} == {1, 3}
    program(program_arguments(1), times=2)
    assert len(compiled) == 3  # it is found on disk


def test_arguments_that_jax_handles_are_passed_on(folder, compiled):
    program = fresh_program()
    mapped = jax.vmap(lambda x: program({"in": (x,)}, times=2)["out"])(jnp.arange(3.0))
    assert mapped.tolist() == [0, 2, 4]
    of_key = programs.PersistentJit(jax.random.key_data, ())
    assert of_key(jax.random.key(5)).tolist() == [0, 5]
    for option, value in (("jax_disable_jit", True), ("jax_enable_compilation_cache", False)):
        with configured(option, value):
            assert program(program_arguments(1, 2), times=3)["out"].tolist() == [3, 6]
    with jax.default_device(jax.local_devices()[0]):
        program(program_arguments(1, 2), times=3)
    assert compiled == []
    assert not folder.exists()


def test_a_run_is_found_on_disk_and_is_the_same(folder, compiled, monkeypatch):
    def result(penalty, key=0):
        problem = fl.problems.ridge(fl.random_key(1), clients=4, samples=6, dim=2)
        algorithm = fl.algorithms.NetworkedADMM(penalty)
        simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(4), metrics=["objective"])
        return fl.run(simulation, 3, key).objective.values.tolist()

    monkeypatch.setattr(
        running, "_run", programs.PersistentJit(running._run.jitted.__wrapped__, STATIC)
    )
    first = result(1.0)
    assert len(compiled) == 1
    assert result(2.0) != first
    monkeypatch.setattr(
        running, "_run", programs.PersistentJit(running._run.jitted.__wrapped__, STATIC)
    )
    assert result(1.0) == first
    assert len(compiled) == 1
    result(1.0, jax.random.key(0))
    assert len(compiled) == 2  # for another generator
    with configured("jax_enable_compilation_cache", False):
        assert result(1.0) == first


# Studies ------------------------------------------------------------------------------------------


def scenario(metric):
    """A scenario with two numbers that uses one of them."""

    def build(key, first, second):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=4, samples=6, dim=2),
            network=fl.graphs.ring(4),
            algorithm=fl.algorithms.ZCDPNFL(1.0, 0.3),
            metrics=[fl.metrics.Metric("number", metric(first, second), "a number", decibel=False)],
        )

    return build


@pytest.mark.slow
@pytest.mark.thin(1)
def test_programs_of_different_arguments_are_distinguished(folder):
    grid = {"first": [1.0, 2.0], "second": [10.0, 20.0]}
    results = [
        fl.sweep(scenario(metric), grid=grid, seeds=2, rounds=2).number.isel(seed=0, round=0)
        for metric in (lambda a, b: lambda _: a, lambda a, b: lambda _: b)
    ]
    assert results[0].values.tolist() == [[1, 1], [2, 2]]
    assert results[1].values.tolist() == [[10, 20], [10, 20]]


@pytest.mark.slow
def test_checks_compile_once_per_number_of_points(folder):
    def build(key, algorithm):  # shares of servers are validated in every study
        network = fl.federation.balanced(2, fl.graphs.ring(3))
        cluster = fl.problems.random_clusters(key, network.nodes, 2)
        share = fl.problems.group_share(0.01, network.server, network.servers)
        return fl.Simulation(
            problem=fl.problems.clustered_ridge(key, cluster, 2, (2, 5), 3, 0.1, share),
            network=network,
            algorithm=algorithm,
            metrics=["network_deviation"],
        )

    ours = fl.algorithms.PGFL
    for methods in ([ours(1.0, 0.1)], [ours(1.0, 0.1), ours(1.0, 0.2)]):
        grid = {"algorithm": {str(i): method for i, method in enumerate(methods)}}
        results = fl.sweep(build, grid=grid, seeds=2, rounds=2)
        assert results.sizes["algorithm"] == len(methods)


@pytest.mark.parametrize(
    "harm", [lambda b: b[:-5], lambda b: b[:50] + b"?" + b[51:], lambda _: b""]
)
def test_a_damaged_program_is_compiled_again(folder, harm):
    run_program()
    (path,) = files(folder)
    path.write_bytes(harm(path.read_bytes()))
    assert run_program() == ([2, 4, 6], True)
    assert run_program() == ([2, 4, 6], False)


def test_a_program_that_cannot_be_loaded_is_compiled_again(folder, monkeypatch):
    run_program()
    monkeypatch.setattr(programs.serialize_executable, "deserialize_and_load", lambda *_: 1 / 0)
    assert run_program() == ([2, 4, 6], True)


def test_an_unwritable_cache_folder_is_tolerated(folder, monkeypatch):
    monkeypatch.setenv("FLJAX_CACHE", "/proc/no")
    assert run_program() == ([2, 4, 6], True)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("FLJAX_CACHE", str(folder.parent))
    monkeypatch.setattr(os, "fsync", full)
    assert run_program() == ([2, 4, 6], True)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("option", "value"),
    [("jax_enable_compilation_cache", False), ("jax_compilation_cache_dir", "/tmp/of the user")],
)
def test_programs_are_not_cached_without_jaxs_cache_or_in_a_custom_one(folder, option, value):
    with configured(option, value):
        assert run_program() == ([2, 4, 6], True)
    assert not folder.exists()


def test_callbacks_are_addresses_and_are_not_kept(folder):
    def calling(x):
        return jax.pure_callback(lambda x: 2 * np.asarray(x), jax.typeof(x), jnp.asarray(x))

    assert run_program(calling) == ([2, 4, 6], True)
    assert not folder.exists()


def test_the_programs_that_were_not_used_for_longest_make_room(folder, monkeypatch):
    run_program()
    (first,) = files(folder)
    run_program(size=4)
    (second,) = set(files(folder)) - {first}
    os.utime(second, (1, 1))
    os.utime(first, (0, 0))
    run_program()  # used again
    monkeypatch.setattr(programs, "MAX_CACHE_BYTES", 2.5 * first.stat().st_size)
    run_program(size=5)
    assert first in files(folder)
    assert second not in files(folder)
    assert len(files(folder)) == 2


def test_eviction_touches_no_other_files(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    foreign = [folder / "my_thesis.tex", folder / "folder", folder / f"{'0' * 64}.program"]
    foreign[0].write_text("x" * 10_000)
    foreign[1].mkdir()
    foreign[2].mkdir()
    for path in foreign:
        os.utime(path, (1, 1))
    run_program()
    (program,) = set(files(folder)) - {*foreign}
    monkeypatch.setattr(programs, "MAX_CACHE_BYTES", 1.5 * program.stat().st_size)
    run_program(size=4)
    assert all(path.exists() for path in foreign)
    assert not program.exists()
    assert len(files(folder)) == 2


def test_a_folder_at_a_programs_path_is_tolerated(folder):
    run_program()
    (path,) = files(folder)
    path.unlink()
    path.mkdir()
    assert run_program() == ([2, 4, 6], True)
    assert path.is_dir()


def test_a_program_copied_to_another_name_is_not_run(folder):
    run_program()
    (path,) = files(folder)
    run_program(lambda x: 3 * x)
    (other,) = set(files(folder)) - {path}
    path.write_bytes(other.read_bytes())
    assert run_program() == ([2, 4, 6], True)


@pytest.fixture
def unpickled(monkeypatch):
    """How often something is loaded, and so executed."""
    loaded = mock.Mock(wraps=programs.serialize_executable.deserialize_and_load)
    monkeypatch.setattr(programs.serialize_executable, "deserialize_and_load", loaded)
    return loaded


def theirs(path):
    os.chown(path, 12345, 12345)


def open_to_all(path):
    path.chmod(0o777)


def open_to_the_group(path):
    path.chmod(0o770)


def elsewhere(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def needs_root(change):
    if change is theirs and os.geteuid():
        pytest.skip("only root gives files away")


@pytest.mark.parametrize("change", [theirs, open_to_all, open_to_the_group, elsewhere])
def test_a_world_writable_folder_is_not_used(folder, unpickled, change):
    needs_root(change)
    run_program()
    change(folder)
    with pytest.warns(UserWarning, match=r"compiled programs .* (user|others|link)"):
        assert run_program() == ([2, 4, 6], True)
    with pytest.warns(UserWarning, match="compiled programs"):
        run_program(size=4)
    assert not unpickled.called
    assert len(files(folder)) == 1


@pytest.mark.parametrize("change", [theirs, open_to_all, open_to_the_group, elsewhere])
def test_a_world_writable_file_is_not_run(folder, unpickled, change):
    needs_root(change)
    run_program()
    (path,) = files(folder)
    assert path.stat().st_mode & 0o077 == 0
    change(path)
    assert run_program() == ([2, 4, 6], True)
    assert not unpickled.called
    assert run_program() == ([2, 4, 6], False)
    assert not path.is_symlink()


def test_a_pipe_in_a_programs_place_does_not_block(folder):
    run_program()
    (path,) = files(folder)
    path.unlink()
    os.mkfifo(path)
    assert run_program() == ([2, 4, 6], True)


@pytest.mark.parametrize("change", [theirs, open_to_all])
def test_a_shared_cache_folder_is_not_used_for_programs(folder, monkeypatch, tmp_path, change):
    needs_root(change)
    shared = tmp_path / "shared"
    home = tmp_path / "home"
    shared.mkdir()
    home.mkdir()
    change(shared)
    monkeypatch.setenv("FLJAX_CACHE", str(shared))
    monkeypatch.setenv("HOME", str(home))
    assert run_program() == ([2, 4, 6], True)
    assert run_program() == ([2, 4, 6], False)
    assert not list(shared.iterdir())
    assert len(files(home / ".cache" / "fljax" / "programs")) == 1


@pytest.mark.parametrize("taken", [False, True])
def test_a_user_without_a_home_gets_a_private_folder(folder, monkeypatch, tmp_path, taken):
    monkeypatch.delenv("FLJAX_CACHE")
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("no home")))
    monkeypatch.setattr(storage.tempfile, "tempdir", str(tmp_path))
    storage._temporary_cache.cache_clear()
    expected = tmp_path / f"fljax-{os.geteuid()}"
    if taken:
        expected.mkdir()
        expected.chmod(0o777)
    assert run_program() == ([2, 4, 6], True)
    assert run_program() == ([2, 4, 6], False)
    assert (storage.cache() == expected) is not taken
    assert storage.cache().stat().st_mode & 0o077 == 0
    assert len(files(storage.cache() / "programs")) == 1
    storage._temporary_cache.cache_clear()


def test_files_of_killed_processes_are_removed(folder):
    folder.mkdir(mode=0o700)
    dead = subprocess.Popen(["true"])
    dead.wait()
    name = "0" * 64
    gone = [
        folder / f".{name}.program.{host()}.{dead.pid}.1.tmp",
        folder / f".{name}.program.elsewhere.1.1.tmp",
    ]
    left_alone = [
        folder / f".{name}.program.{host()}.{os.getpid()}.1.tmp",
        folder / f".{name}.program.elsewhere.2.1.tmp",
        folder / ".notes.tmp",
    ]
    for path in gone + left_alone:
        path.write_bytes(b"half")
    os.utime(gone[1], (1, 1))
    run_program()
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in left_alone)


STUDY = """
import json, sys, warnings
import jax
import fljax as fl

warnings.simplefilter("error")
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, fun_name="", **_: compiled.append(fun_name)
    if name == "/jax/core/compile/backend_compile_duration" else None
)

def scenario(key, penalty):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=6, samples=10, dim=2),
        network=fl.graphs.ring(6),
        algorithm=fl.algorithms.ZCDPNFL(penalty, 0.3),
        metrics=["normalized_error"],
    )

study = fl.sweep(scenario, rounds=4, seeds=2, grid={"penalty": [0.5, 1.0]}, store=sys.argv[1])
told = study.normalized_error.values.tolist(), study.attrs["scenario_hash"]
print(json.dumps([len(compiled), *told]))
"""


@pytest.mark.slow
def test_a_second_process_compiles_no_study(tmp_path):
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
    environment = {k: v for k, v in os.environ.items() if k not in names}
    environment |= {"FLJAX_CACHE": str(tmp_path / "cache")}

    def start(store, **more):
        command = [sys.executable, "-c", STUDY, str(tmp_path / store)]
        done = subprocess.run(
            command, check=True, stdout=-1, text=True, cwd=ROOT, env=environment | more
        )
        return json.loads(done.stdout)

    first, *counts = start("first")
    assert len(files(tmp_path / "cache" / "programs")) == 1
    second, *again = start("second")
    assert second == first - 1  # only helpers, smaller than a file
    assert again == counts
    uncached, *off = start("third", JAX_ENABLE_COMPILATION_CACHE="0")
    assert uncached == first
    assert off == counts
