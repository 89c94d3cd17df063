"""The store: nothing finished is lost or computed again, nothing wrong is ever taken for right."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax._core.storage import host
from fljax.study import block_sizes
from fljax.study import executor as sweeping
from fljax.study.saving import checksum
from fljax.study.store import Block, Store, _merged_attributes

pytestmark = pytest.mark.core

K = 6
D = 3
T = 12


def build(key, algorithm, privacy=None, clients=K):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=clients, samples=10, dim=D),
        network=fl.graphs.ring(clients),
        algorithm=algorithm,
        privacy=privacy,
        metrics=["consensus_error"],
    )


def steps(key, step):
    return build(key, fl.algorithms.ZCDPGradNFL(step))


def budgets(key, budget):
    return build(key, fl.algorithms.ZCDPGradNFL(0.05), fl.privacy.ZCDP(budget, decay=0.9))


#: Four blocks of one seed and two points, in three stretches each: twelve stretches.
GRID = {"step": [0.02, 0.05]}
CUT = {"grid": GRID, "block": 1, "workers": 1, "segment": 4}
STUDY = CUT | {"rounds": T, "seeds": 4}


#: One network of more clients, shared out over devices.
WIDE = {"rounds": T, "seeds": 2}


def wide(key):
    k_data, k_graph = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.ridge(k_data, clients=16, samples=6, dim=D),
        network=fl.graphs.random_connected(k_graph, nodes=16, mean_degree=4),
        algorithm=fl.algorithms.ZCDPNFL(1.0, 0.3),
        privacy=fl.privacy.ZCDP(1.0, decay=0.9),
        metrics=["normalized_error"],
    )


@pytest.fixture(scope="module")
def full_study():
    return fl.sweep(steps, **STUDY)


@pytest.fixture(scope="module")
def longer():
    return fl.sweep(steps, **STUDY | {"rounds": 2 * T})


@pytest.fixture
def written_blocks(monkeypatch):
    """The stretches that are computed."""
    blocks = []
    keep = sweeping.StudyRun._collect_and_report

    def noted(run, block):
        blocks.append(block)
        keep(run, block)

    monkeypatch.setattr(sweeping.StudyRun, "_collect_and_report", noted)
    return blocks


@pytest.fixture
def eager(monkeypatch):
    """Every stretch is written immediately, to files of its own."""
    monkeypatch.setattr(sweeping, "FLUSH_SECONDS", 0)


@pytest.fixture
def in_step(monkeypatch, eager):
    """No block is begun before the last one is written."""
    stretches = sweeping.StudyRun._run_segments

    def waiting(run, *args):
        while run.events.qsize() and not run.cancelled.is_set():
            time.sleep(0.001)
        return stretches(run, *args)

    monkeypatch.setattr(sweeping.StudyRun, "_run_segments", waiting)


def same(first, second):
    """Bit for bit."""
    return checksum(first) == checksum(second)


def computed(blocks):
    """The seeds in them."""
    return {seed for block in blocks for seed in block.seeds}


def close(first, second):
    assert set(first.variables) == set(second.variables)
    for name in first.variables:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-12, err_msg=name)


def alter(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


# Killed ------------------------------------------------------------------------------------------

CHILD = """
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
from tests.study.test_store import *
sweeping.FLUSH_SECONDS = 0
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
"""


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Child processes reuse the programs that the first of them compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


def child(code, *arguments, **environment):
    """Another process of these tests."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + code, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process, code=0, seconds=120):
    """What a child printed, once it ended as it should."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == code, err
    return out


def die_at(module, name, call, before=lambda *_: True, after=False):
    """SIGKILL this process in the ``call``-th call of a function."""
    function = getattr(module, name)
    left = [call]

    def deadly(*args, **kwargs):
        left[0] -= 1
        if left[0]:
            return function(*args, **kwargs)
        if after:
            function(*args, **kwargs)
        else:
            before(*args)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, deadly)


def halve(file):
    os.ftruncate(file, os.fstat(file).st_size // 2)


#: Where a study is killed, and the stretches that its store then holds. Each stretch is a file
#: of states, then a file of records, then the state before it is removed; the manifest is first.
DEATHS = {
    "in the middle of writing the fifth stretch": ("die_at(os, 'fsync', 11, halve)", 4),
    "between the state and the records of it": ("die_at(os, 'replace', 10, after=True)", 4),
    "before an older state is removed": ("die_at(Path, 'unlink', 3)", 5),
    "in the middle of a block": ("die_at(sweeping.Store, 'add', 3)", 2),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder for every death, left by a process that died of it."""
    folders = {death: tmp_path_factory.mktemp("store") for death in DEATHS}
    for names in (list(DEATHS)[:2], list(DEATHS)[2:]):
        children = [
            child(f"{DEATHS[death][0]}\nfl.sweep(steps, **STUDY, store={str(folders[death])!r})")
            for death in names
        ]
        for process in children:
            finished(process, -signal.SIGKILL)
    return folders


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_study_resumes_where_it_was(death, killed, full_study, written_blocks):
    folder = killed[death]
    before = {path.name for path in folder.glob("runs-*.npz")}
    assert len(before) == DEATHS[death][1]
    resumed = fl.sweep(steps, **STUDY, store=folder)
    assert same(resumed, full_study)
    assert (
        len(written_blocks) <= 12 - len(before) + 1
    )  # one block may start again, for want of its state
    assert before < {path.name for path in folder.glob("runs-*.npz")}
    assert not list(folder.glob(".*.tmp"))
    written_blocks.clear()
    again = fl.sweep(steps, **STUDY, store=folder)
    assert same(again, full_study)
    assert not written_blocks
    assert again.attrs["compilations"] == 0


@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
def test_a_store_states_the_assumptions_of_its_privacy(tmp_path):
    """For later readers of the store, in the words of the study."""
    grid = {"budget": [1.0]}
    snapshots = []
    options = {"rounds": T, "seeds": 1, "grid": grid, "progress": False}
    study = fl.sweep(budgets, **options, store=tmp_path, callback=snapshots.append)
    assert "neighbors: replace" in study.attrs["privacy"]
    assert snapshots[-1].attrs["privacy"] == study.attrs["privacy"]
    assert fl.load(tmp_path).attrs["privacy"] == study.attrs["privacy"]


def averaged(key, budget):
    """Noise that is correlated over rounds, and an adaptive clip."""
    k_data, _ = jax.random.split(key)
    cyclic = fl.participation.Cyclic(3)
    algorithm = fl.algorithms.FedAvg(0.05, weighting="equal", selector=cyclic)
    clip = fl.privacy.AdaptiveClip(0.05, share_noise=0.9)
    privacy = fl.privacy.CentralGaussian(
        budget, clip=clip, strategy=fl.privacy.matrices.square_root(3)
    )
    problem = fl.problems.least_squares(k_data, clients=K, samples=10, dim=D)
    return fl.Simulation(problem, algorithm, privacy=privacy, metrics=["objective"])


PRIVATE = CUT | {"grid": {"budget": [1.0, 2.0]}, "rounds": T, "seeds": 2, "keep_models": True}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
@pytest.mark.parametrize("scenario", [budgets, averaged])
@pytest.mark.parametrize("independent", [False, True])
def test_a_killed_private_study_resumes_with_the_same_noise(scenario, independent, tmp_path):
    """Values released before the kill are not released again under other noise: the models and
    every client's ledger equal those of an uninterrupted run.
    """
    call = f"**PRIVATE, independent_noise={independent}, store={str(tmp_path)!r}"
    process = child(f"die_at(sweeping.Store, 'add', 5)\nfl.sweep({scenario.__name__}, {call})")
    finished(process, -signal.SIGKILL)
    assert len(list(tmp_path.glob("runs-*.npz"))) == 4  # of six stretches, one run's second
    resumed = fl.sweep(scenario, **PRIVATE, independent_noise=independent, store=tmp_path)
    assert same(resumed, fl.sweep(scenario, **PRIVATE, independent_noise=independent))
    assert float(resumed.client_rho.min()) > 0


@pytest.mark.slow
def test_an_interrupted_study_reports_its_progress_and_resumes(
    tmp_path, full_study, written_blocks
):
    store = tmp_path / "store"
    partial = tmp_path / "partial.nc"
    process = child(f"""
stretches, blocks = sweeping.StudyRun._run_segments, []
def waiting(run, *args):
    blocks.append(args)
    if len(blocks) > 2:
        run.cancelled.wait(60)
    return stretches(run, *args)
sweeping.StudyRun._run_segments = waiting
try:
    fl.sweep(steps, **STUDY, store={str(store)!r}, callback=lambda _: print("done", flush=True))
except fl.Interrupted as interrupted:
    fl.save(interrupted.results, {str(partial)!r})
    print(interrupted)
    raise
""")
    for _ in range(4):  # stretches: the first block and the start of the second
        assert process.stdout.readline() == "done\n"
    with pytest.raises(fl.StoreError, match="another process is at work") as caught:
        fl.sweep(steps, **STUDY, store=store)
    assert "Nothing was changed" in str(caught.value)
    process.send_signal(signal.SIGINT)
    message = finished(process, 1).splitlines()[-1]
    results = fl.load(partial)
    done = results.done
    assert 0 < done.sum() < done.size
    assert f"interrupted: {int(done.sum())} of {done.size} runs are done" in message
    assert f"kept in {store}" in message
    for seed in done.seed[done.all("step")]:
        close(results.drop_vars("done").sel(seed=seed), full_study.sel(seed=seed))
    assert same(fl.sweep(steps, **STUDY, store=store), full_study)
    assert not computed(written_blocks) & {*done.seed[done.all("step")].values}


@pytest.mark.slow
def test_a_full_disk_is_reported_and_does_no_harm(tmp_path, full_study, written_blocks):
    few = STUDY | {"seeds": 2}
    first = fl.sweep(steps, **few, store=tmp_path)
    stored = {path: path.read_bytes() for path in tmp_path.glob("runs-*.npz")}
    out = finished(
        child(f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
try:
    fl.sweep(steps, **STUDY, store={str(tmp_path)!r})
except fl.StoreError as error:
    print(error)
""")
    )
    assert f"cannot write to the store {tmp_path}: File too large." in out
    assert "What it holds is whole; make room" in out
    assert {path: path.read_bytes() for path in tmp_path.glob("runs-*.npz")} == stored
    written_blocks.clear()
    assert same(fl.sweep(steps, **few, store=tmp_path), first)
    assert not written_blocks
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), full_study)
    assert len(written_blocks) == 6


# Interrupted by the callback ---------------------------------------------------------------------


def after(stretches, error, times=1):
    """A callback that fails this many times once the given number of stretches exists."""
    left = [stretches]

    def callback(_):
        left[0] -= 1
        if -times < left[0] <= 0:
            raise error

    return callback


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 100])
def test_ctrl_c_in_a_callback_returns_finished_runs(tmp_path, full_study, in_step, times):
    with pytest.raises(KeyboardInterrupt) as caught:
        fl.sweep(steps, **STUDY, store=tmp_path, callback=after(4, KeyboardInterrupt, times))
    assert isinstance(caught.value, fl.Interrupted)
    results = caught.value.results
    assert 2 <= results.done.sum() < 8
    assert f"{int(results.done.sum())} of 8 runs are done and kept in" in str(caught.value)
    for seed in results.seed[results.done.all("step")]:
        close(results.drop_vars("done").sel(seed=seed), full_study.sel(seed=seed))
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), full_study)


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_write_loses_nothing(
    tmp_path, full_study, written_blocks, in_step, monkeypatch
):
    left = [7]
    fsync = os.fsync  # of the records that end the first block

    def interrupted(file):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        fsync(file)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(fl.Interrupted, match=r"of 8 runs are done and kept in") as caught:
        fl.sweep(steps, **STUDY, store=tmp_path)
    done = caught.value.results.done
    assert 2 <= done.sum() < 8
    written_blocks.clear()
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), full_study)
    assert not computed(written_blocks) & {*done.seed[done.all("step")].values}


@pytest.mark.slow
def test_ctrl_c_without_a_store(in_step):
    with pytest.raises(fl.Interrupted, match=r"of 8 runs are done\.$") as caught:
        fl.sweep(steps, **STUDY, callback=after(4, KeyboardInterrupt))
    assert 2 <= caught.value.results.done.sum() < 8


@pytest.mark.parametrize("times", [1, 100])
def test_an_error_in_a_callback_propagates_and_does_no_harm(
    tmp_path, full_study, written_blocks, in_step, times
):
    failing = after(4, RuntimeError("of the callback"), times)
    with pytest.raises(RuntimeError, match="of the callback"):
        fl.sweep(steps, **STUDY, store=tmp_path, callback=failing)
    result = len(in_order(tmp_path))
    assert 4 <= result < 12
    written_blocks.clear()
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), full_study)
    assert len(written_blocks) <= 12 - result


# Damaged -----------------------------------------------------------------------------------------


def in_order(folder):
    """Files of records in the order in which they were written."""
    return sorted(folder.glob("runs-*.npz"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.thin(2)
@pytest.mark.parametrize("harm", [cut, alter, Path.unlink])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_damaged_records_are_set_aside_and_computed_again(
    tmp_path, full_study, written_blocks, eager, harm, number
):
    fl.sweep(steps, **STUDY, store=tmp_path)
    path = in_order(tmp_path)[number]
    harm(path)
    written_blocks.clear()
    if harm is Path.unlink:
        resumed = fl.sweep(steps, **STUDY, store=tmp_path)
    else:
        with pytest.warns(fl.DamageWarning, match=f"{path.name} in .* was cut or altered"):
            resumed = fl.sweep(steps, **STUDY, store=tmp_path)
        assert path.with_suffix(".damaged").exists()
    assert same(resumed, full_study)
    assert computed(written_blocks) == {0}


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("harm", [cut, alter])
def test_a_damaged_state_is_set_aside_and_the_run_starts_again(
    tmp_path, full_study, longer, written_blocks, harm, caplog
):
    fl.sweep(steps, **STUDY, store=tmp_path)
    (path,) = tmp_path.glob("state-*.npz")
    harm(path)
    written_blocks.clear()
    with pytest.warns(fl.DamageWarning, match=path.name):
        extended = fl.sweep(steps, **STUDY | {"rounds": 2 * T}, store=tmp_path)
    assert path.with_suffix(".damaged").exists()
    assert "start again from round 1" in caplog.text
    assert same(extended, longer)
    assert len(written_blocks) == 24
    assert min(block.first for block in written_blocks) == 0


@pytest.mark.thin(3)
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"format": 3}', b"\xff\xfe"])
def test_a_damaged_manifest_is_named(tmp_path, content):
    (tmp_path / "study.json").write_bytes(content)
    with pytest.raises(fl.StoreError, match=r"study.json (cannot be read|was edited)") as caught:
        fl.sweep(steps, **STUDY, store=tmp_path)
    assert "estore it" in str(caught.value)
    assert (tmp_path / "study.json").read_bytes() == content


def test_a_manifest_of_another_format_is_named(tmp_path):
    (tmp_path / "study.json").write_text('{"format": 99}')
    with pytest.raises(fl.StoreError, match="has format 99, this version reads 3; open it with"):
        fl.sweep(steps, **STUDY, store=tmp_path)


EDITS = [
    ("seeds", [0, 1]),
    ("rounds", 6),
    ("axes", {"step": [0.02, 0.06]}),
    ("metrics", {"consensus_error": {"long_name": "error", "units": "m", "decibel": 0}}),
    ("attributes", {"device": "TPU"}),
    ("points", {}),
    ("digest", "0" * 24),
    ("more", 1),
]


@pytest.mark.parametrize(("name", "value"), EDITS, ids=[name for name, _ in EDITS])
def test_an_edited_manifest_is_refused_by_every_reader(tmp_path, stored, name, value):
    copied = tmp_path / "kept"
    shutil.copytree(stored, copied)
    manifest = json.loads((copied / "study.json").read_text())
    (copied / "study.json").write_text(json.dumps(manifest | {name: value}))
    before = (copied / "study.json").read_bytes()
    for reading in (
        lambda: fl.load(copied),
        lambda: fl.sweep(steps, **STUDY, store=copied),
        lambda: fl.merge(tmp_path / "whole", copied),
        lambda: fl.merge(copied, stored),
    ):
        with pytest.raises(fl.StoreError, match=r"kept/study.json was edited: .* Restore it or"):
            reading()
    assert (copied / "study.json").read_bytes() == before
    (copied / "study.json").write_text(json.dumps(manifest))  # other spaces do not count as an edit
    assert same(fl.load(copied), fl.load(stored))


def test_a_store_of_another_user_is_read(tmp_path, full_study, monkeypatch):
    fl.sweep(steps, **STUDY, store=tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    leftover = tmp_path / f".runs-0.npz.{host()}.{dead.pid}.0.tmp"
    leftover.write_bytes(b"half")
    (path,) = tmp_path.glob("runs-*.npz")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        patch.setattr(Path, "mkdir", refuse)
        patch.setattr(os, "replace", refuse)
        close(fl.load(tmp_path), full_study)
        alter(path)
        with pytest.warns(fl.DamageWarning, match="What it held is left out"):
            assert not fl.load(tmp_path).get("done", xr.DataArray(False)).any()
    assert leftover.exists()


def test_a_finished_study_of_another_user_is_returned(
    tmp_path, full_study, written_blocks, monkeypatch
):
    fl.sweep(steps, **STUDY, store=tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fljax.study.store.FileLock.acquire", refuse)
    monkeypatch.setattr("fljax.study.store.write_whole", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), full_study)
    with pytest.raises(fl.StoreError, match=r"cannot write to the store .*: Permission denied"):
        fl.sweep(steps, **STUDY | {"seeds": 5}, store=tmp_path)
    with pytest.raises(fl.OtherStudyError):
        fl.sweep(bolder, **STUDY, store=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert written_blocks


def test_a_smaller_study_keeps_the_size_of_the_store(tmp_path, full_study):
    fl.sweep(steps, **STUDY, store=tmp_path)
    few = {"rounds": 4, "seeds": [1], "grid": {"step": [0.05]}}
    fl.sweep(steps, **STUDY | few, store=tmp_path)
    close(fl.load(tmp_path), full_study)


# Another study -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    fl.sweep(steps, **STUDY, store=folder)
    return folder


def bolder(key, step):
    return build(key, fl.algorithms.ZCDPGradNFL(1.0000001 * step))


def larger(key, step):
    return build(key, fl.algorithms.ZCDPGradNFL(step), clients=K + 1)


SMALL = ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "int4", "uint4", "bool"]


@pytest.mark.parametrize("kind", SMALL)
def test_a_metric_of_a_small_type_is_stored_and_resumed(tmp_path, kind):
    def scenario(key, step):
        def measured(now):
            return (jnp.sum(now.model) > 0).astype(kind)

        return fl.Simulation(
            problem=fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2),
            network=fl.graphs.ring(3),
            algorithm=fl.algorithms.ConventionalFL(step),
            metrics=[fl.metrics.Metric("measured", measured, "a number", decibel=False)],
        )

    study = {"rounds": 2, "grid": {"step": [0.1]}, "progress": False, "store": tmp_path / "kept"}
    first = fl.sweep(scenario, seeds=1, **study)
    more = fl.sweep(scenario, seeds=2, **study)
    assert first.measured.dtype == more.measured.dtype == fl.load(tmp_path / "kept").measured.dtype
    np.testing.assert_array_equal(first.measured, more.measured.isel(seed=[0]))
    xr.testing.assert_equal(fl.load(fl.save(more, tmp_path / "more.nc")), more)


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e5m2", "int4"])
def test_a_state_of_a_small_type_is_read_as_it_was(tmp_path, kind):
    state = [np.arange(6).reshape(1, 1, 6).astype(jnp.dtype(kind)), np.ones((1, 1, 2))]
    opened = Store(tmp_path)
    opened._write_manifest({"identity": {}, "axes": {}, "points": {}})
    block = Block(["p"], [0], 0, False, {"x": np.zeros((1, 1, 3))}, {}, state)
    opened.add(block)
    opened.flush()
    opened.close()
    again = Store(tmp_path)
    assert again.blocks()
    read = again.state(["p"], [0], 3)
    again.close()
    assert read is not None
    for saved, loaded in zip(state, read, strict=True):
        assert saved.dtype == loaded.dtype
        np.testing.assert_array_equal(saved, loaded)


def named(key, step):
    return steps(key, step)


def never(*_, **__):
    raise AssertionError("must not be reached")


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("scenario", "change", "message"),
    [
        (bolder, {}, r"at grid point \{\"step\": 0.02\}:\s+program: '\w+' in the store, '\w+' now"),
        (larger, {}, "program: "),
        (steps, {"record_every": 2}, "record_every: 1 in the store, 2 now"),
        (steps, {"root": 7}, "root: 0 in the store, 7 now"),
        (steps, {"keep_models": True}, "keep_models: False in the store, True now"),
        (steps, {"until": {"consensus_error": 0.1}}, r"until: \{\} in the store, \{'consensus_"),
    ],
)
def test_another_study_is_refused_with_the_difference_named(
    stored, monkeypatch, scenario, change, message
):
    monkeypatch.setattr(sweeping.StudyRun, "execute", never)
    before = (stored / "study.json").read_bytes()
    with pytest.raises(ValueError, match=message) as caught:
        fl.sweep(scenario, **STUDY | change, store=stored)
    assert "holds another study" in str(caught.value)
    assert "choose another store" in str(caught.value)
    assert (stored / "study.json").read_bytes() == before


@pytest.mark.slow
def test_a_file_of_another_study_is_refused(tmp_path, stored):
    fl.sweep(bolder, **STUDY | {"seeds": 1}, store=tmp_path / "other")
    fl.merge(tmp_path / "mine", stored)
    foreign = next((tmp_path / "other").glob("runs-*.npz"))
    shutil.copy(foreign, tmp_path / "mine")
    message = (
        rf"{foreign.name} in .*mine is of another study:\n at .*\n  program: '\w+' in the store, "
    )
    for reading in (
        lambda: fl.load(tmp_path / "mine"),
        lambda: fl.sweep(steps, **STUDY, store=tmp_path / "mine"),
        lambda: fl.merge(tmp_path / "whole", tmp_path / "mine"),
    ):
        with pytest.raises(fl.StoreError, match=message) as caught:
            reading()
        assert "Take it out of the folder" in str(caught.value)
    (tmp_path / "mine" / foreign.name).unlink()
    assert same(fl.load(tmp_path / "mine"), fl.load(stored))


def other_axes(key, step, again):
    return steps(key, step + 0 * again)


def test_studies_with_other_axes_differ(stored):
    with pytest.raises(ValueError, match=r"axes: \['step'\] in the store, \['again', 'step'\] now"):
        fl.sweep(other_axes, **STUDY | {"grid": GRID | {"again": [0.0]}}, store=stored)


def test_other_values_under_the_same_label_are_refused(tmp_path):
    few = {"rounds": T, "block": 1, "workers": 1, "segment": 4}
    fl.sweep(steps, **few, grid={"step": {"small": 0.02, "large": 0.05}}, store=tmp_path)
    with pytest.raises(ValueError, match=r"at grid point \{\"step\": \"large\"\}:\s+numbers: "):
        fl.sweep(steps, **few, grid={"step": {"small": 0.02, "large": 0.06}}, store=tmp_path)


def test_the_order_of_the_grid_and_the_name_of_the_scenario_do_not_matter(
    stored, full_study, written_blocks
):
    study = fl.sweep(named, **STUDY | {"grid": {"step": [0.05, 0.02]}}, store=stored)
    assert not written_blocks
    close(study.sel(step=full_study.step), full_study)


@pytest.mark.parametrize("field", ["jax", "jaxlib", "fljax", "dtype", "prng"])
def test_software_versions_are_part_of_the_study(stored, field):
    path = stored / "study.json"
    store = Store(stored)
    before = path.read_text()
    manifest = store.manifest()
    now = manifest["identity"][field]
    manifest["identity"][field] = "0.0"
    store._write_manifest(manifest)
    store.close()
    try:
        with pytest.raises(
            ValueError, match=re.escape(f"{field}: '0.0' in the store, '{now}' now")
        ):
            fl.sweep(steps, **STUDY, store=stored)
    finally:
        path.write_text(before)


def test_studies_with_other_floats_differ(stored):
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="dtype: 'float64' in the store, 'float32' now"),
    ):
        fl.sweep(steps, **STUDY, store=stored)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
def test_a_private_study_has_the_rounds_its_budget_is_spread_over(tmp_path):
    few = {"seeds": 2, "grid": {"budget": [1.0]}, "store": tmp_path}
    study = fl.sweep(budgets, rounds=T, **few)
    for rounds in (T - 4, T + 4):
        with pytest.raises(ValueError, match=rf"horizon: {T} in the store, {rounds} now"):
            fl.sweep(budgets, rounds=rounds, **few)
    assert same(fl.sweep(budgets, rounds=T, **few), study)


# Extended ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_new_seeds_and_points_are_computed(tmp_path, full_study, written_blocks):
    fl.sweep(steps, **STUDY | {"seeds": 2}, store=tmp_path)
    assert len(written_blocks) == 2 * 3
    written_blocks.clear()
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), full_study)
    assert len(written_blocks) == 2 * 3
    assert computed(written_blocks) == {2, 3}
    written_blocks.clear()
    subset = fl.sweep(steps, **STUDY | {"seeds": [3, 1]}, store=tmp_path)
    assert not written_blocks
    close(subset, full_study.sel(seed=[3, 1]))
    wide = STUDY | {"grid": {"step": [0.02, 0.03, 0.05]}}
    extended = fl.sweep(steps, **wide, store=tmp_path)
    assert {label for block in written_blocks for label in block.points} == {'{"step": 0.03}'}
    close(extended.sel(step=full_study.step), full_study)
    close(extended.sel(step=[0.03]), fl.sweep(steps, **STUDY | {"grid": {"step": [0.03]}}))


def private_graphs(key, budget):
    k_data, k_graph = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.elastic_net(k_data, clients=K, samples=10, dim=8).clipped(1.0),
        network=fl.graphs.random_connected(k_graph, nodes=K, mean_degree=3),
        algorithm=fl.algorithms.ZCDPNFL(3.0, 0.5),
        privacy=fl.privacy.ZCDP(budget, decay=0.9),
        metrics=["normalized_error"],
    )


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize(
    ("scenario", "grid"), [(steps, GRID), (private_graphs, {"budget": [0.1, 1.0, 10.0]})]
)
def test_with_a_given_block_memory_grows_as_for_one_block(tmp_path, scenario, grid):
    study = {"rounds": T, "grid": grid, "block": 4, "workers": 1}
    first = fl.sweep(scenario, **study, seeds=6, store=tmp_path)
    grown = fl.sweep(scenario, **study, seeds=12, store=tmp_path)
    assert first.attrs["block"] == grown.attrs["block"] == "[4]"
    assert same(grown, fl.sweep(scenario, **study, seeds=12))


@pytest.mark.slow
def test_a_stopped_study_resumes_in_the_same_blocks(tmp_path, written_blocks, in_step, monkeypatch):
    monkeypatch.setattr(block_sizes, "points_per_block", lambda _, points: min(3, points))
    study = {"rounds": T, "grid": {"step": [0.01 * i for i in range(1, 8)]}, "workers": 1}
    with pytest.raises(fl.Interrupted):
        fl.sweep(steps, **study, store=tmp_path, callback=after(1, KeyboardInterrupt))
    fl.sweep(steps, **study, store=tmp_path)
    assert [len(block.points) for block in written_blocks] == [3, 3, 1]


def any_size(key, clients, step):
    return build(key, fl.algorithms.ZCDPGradNFL(step), clients=clients)


@pytest.mark.slow
def test_points_of_another_structure_are_added(tmp_path, written_blocks):
    study = {"rounds": T, "seeds": 2}
    small = {"clients": fl.static([4]), "step": [0.02, 0.05]}
    two_structures = {"clients": fl.static([4, 6]), "step": [0.02, 0.05]}
    fl.sweep(any_size, **study, grid=small, store=tmp_path)
    written_blocks.clear()
    extended = fl.sweep(any_size, **study, grid=two_structures, store=tmp_path)
    assert all('"clients": 6' in label for block in written_blocks for label in block.points)
    close(extended, fl.sweep(any_size, **study, grid=two_structures))


@pytest.mark.slow
def test_more_rounds_resume_from_the_state(tmp_path, full_study, longer, written_blocks):
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), full_study)
    written_blocks.clear()
    extended = fl.sweep(steps, **STUDY | {"rounds": 2 * T}, store=tmp_path)
    assert min(block.first for block in written_blocks) == T
    assert len(written_blocks) == 12
    assert same(extended, longer)
    written_blocks.clear()
    close(fl.sweep(steps, **STUDY, store=tmp_path), full_study)  # fewer rounds are a part of it
    assert not written_blocks
    assert same(fl.sweep(steps, **STUDY | {"rounds": 2 * T}, store=tmp_path), longer)
    assert not written_blocks


@pytest.mark.slow
def test_more_rounds_seeds_and_points_together(tmp_path, longer, written_blocks):
    few = STUDY | {"seeds": 2, "grid": {"step": [0.05]}}
    fl.sweep(steps, **few, store=tmp_path)
    written_blocks.clear()
    extended = fl.sweep(steps, **STUDY | {"rounds": 2 * T}, store=tmp_path)
    old = [b for b in written_blocks if set(b.seeds) <= {0, 1} and b.points == ['{"step": 0.05}']]
    assert min(block.first for block in old) == T
    close(extended, longer)


def stretch(key, step):
    return build(key, fl.algorithms.ZCDPGradNFL(step))


@pytest.mark.slow
def test_fewer_rounds_report_only_those_rounds(tmp_path):
    """The models and the divergence of round 4 differ from those of round 12."""
    study = {"grid": {"step": [0.02, 1e60]}, "seeds": 2, "keep_models": True, "block": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.DivergenceWarning)
        all_rounds = fl.sweep(stretch, **study, rounds=T, store=tmp_path)
        assert (all_rounds.diverged.sel(step=1e60) > 4).all()
        part = fl.sweep(stretch, **study, rounds=4, store=tmp_path)
        close(part, fl.sweep(stretch, **study, rounds=4))


@pytest.mark.slow
def test_without_states_more_rounds_restart(
    tmp_path, full_study, longer, written_blocks, caplog, eager
):
    fl.sweep(steps, **STUDY, store=tmp_path, keep_state=False)
    assert not list(tmp_path.glob("state-*.npz"))
    written_blocks.clear()
    extended = fl.sweep(steps, **STUDY | {"rounds": 2 * T}, store=tmp_path, keep_state=False)
    assert min(block.first for block in written_blocks) == 0
    assert "have no state in the store at round 12 and start again from round 1" in caplog.text
    assert same(extended, longer)
    assert not list(tmp_path.glob("state-*.npz"))


@pytest.mark.slow
def test_states_that_are_superseded_are_removed(tmp_path, eager):
    counts = []

    def count(_):
        counts.append(len(list(tmp_path.glob("state-*.npz"))))

    fl.sweep(steps, **STUDY, store=tmp_path, callback=count)
    assert max(counts) == 4  # one a block of one seed, whichever its stretch
    assert len(list(tmp_path.glob("state-*.npz"))) == 4
    fl.sweep(steps, **STUDY | {"rounds": 2 * T}, store=tmp_path)
    assert len(list(tmp_path.glob("state-*.npz"))) == 4


@pytest.mark.slow
def test_states_left_by_a_killed_process_are_removed(killed, eager):
    folder = killed["before an older state is removed"]
    fl.sweep(steps, **STUDY | {"rounds": 2 * T}, store=folder)
    assert len(list(folder.glob("state-*.npz"))) == 4


@pytest.mark.slow
def test_a_saved_state_is_not_overwritten_by_later_stretches(tmp_path, monkeypatch):
    """The state goes on as the donated input of the next stretch while it waits to be written."""
    blocks = []
    monkeypatch.setattr(Store, "add", lambda _, block: blocks.append(block))
    fl.sweep(steps, **STUDY, store=tmp_path / "whole")
    early = {tuple(b.seeds): b.state for b in blocks if b.first == 0}
    blocks.clear()
    fl.sweep(steps, **STUDY | {"rounds": 4}, store=tmp_path / "part")
    for block in blocks:
        for final, copied in zip(block.state, early[tuple(block.seeds)], strict=True):
            np.testing.assert_array_equal(final, copied)


# Shards ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shards_are_merged_without_a_computation(tmp_path, full_study, written_blocks):
    parts = []
    for part in ("1/3", "2/3", (3, 3)):
        parts.append(tmp_path / str(len(parts)))
        shard = fl.sweep(steps, **STUDY, store=parts[-1], shard=part)
        assert shard.done.any("step").sum() in (1, 2)
        assert shard.done.all("step").sum() in (1, 2)
    assert len(written_blocks) == 12
    written_blocks.clear()
    assert fl.merge(tmp_path / "whole", *parts) == tmp_path / "whole"
    runs = {path.name for path in (tmp_path / "whole").glob("runs-*.npz")}
    merged = fl.sweep(steps, **STUDY, store=tmp_path / "whole")
    assert same(merged, full_study)
    assert merged.attrs["compilations"] == 0
    assert not written_blocks
    assert {path.name for path in (tmp_path / "whole").glob("runs-*.npz")} == runs
    fl.merge(tmp_path / "whole", *parts)  # a second time, nothing is new
    assert {path.name for path in (tmp_path / "whole").glob("runs-*.npz")} == runs


def linked_scenario(key, budget, links):
    """A metric that is a whole number; the graph is disconnected without links."""
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=4, samples=10, dim=D),
        network=fl.graphs.erdos_renyi(key, nodes=4, probability=links),
        algorithm=fl.algorithms.ZCDPNFL(1.0, 0.3),
        privacy=fl.privacy.ZCDP(budget),
        metrics=[
            "consensus_error",
            fl.metrics.Metric("number", lambda now: jax.numpy.sum(now.model > 0), "a number"),
        ],
    )


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The first of two shards: at either point one seed of two."""
    options = {"rounds": 6, "seeds": 2, "grid": {"budget": [1.0], "links": [0.001, 0.999]}}
    folder = tmp_path_factory.mktemp("half")
    with pytest.warns(fl.AssumptionWarning) as caught:
        results = fl.sweep(linked_scenario, **options, keep_models=True, store=folder, shard="1/2")
    return results, folder, [str(warning.message) for warning in caught]


@pytest.mark.slow
def test_a_run_that_is_not_computed_is_missing_not_zero(half):
    result, _, _ = half
    computed = result.sel(seed=0)
    missing = result.sel(seed=1)
    assert result.done.values.tolist() == [[[True, False]] * 2]
    for name in result.data_vars.keys() - {"done"}:
        assert computed[name].notnull().all(), name
        assert missing[name].isnull().all(), name
    assert {"bits", "messages", "diverged", "connected", "nominal", "number"} <= set(result)
    assert (computed.connected.sel(links=0.001) == 0).all()


@pytest.mark.slow
def test_reports_of_a_shard_count_its_runs(half):
    result, _, texts = half
    assert any("the privacy figures of 2 of 2 private runs are nominal" in text for text in texts)
    assert any("1 of 2 runs had a disconnected graph" in text for text in texts)
    summary = fl.statistics.summary(result, "bits")
    assert summary.attrs["seeds"] == 1
    assert (summary.runs == 1).all()
    assert (summary["mean"] == result.bits.sel(seed=0)).all()
    assert "over 1 seeds" in fl.table(result).note
    assert fl.statistics.nominal(result).startswith("privacy nominal")
    sent = fl.statistics.decibels(result.bits).sel(links=0.999)
    assert np.isfinite(sent.sel(seed=0)).all()
    assert sent.sel(seed=1).isnull().all()
    spent = fl.privacy.spent(result, 1e-5).epsilon
    assert spent.sel(seed=0).notnull().all()
    assert spent.sel(seed=1).isnull().all()


def test_a_shard_without_runs_is_returned(tmp_path):
    results = fl.sweep(steps, **STUDY | {"seeds": 1}, store=tmp_path / "one", shard="5/9")
    assert not results.done.any()
    xr.testing.assert_identical(fl.load(tmp_path / "one"), results)


# Returned and loaded results ----------------------------------------------------------------------


def methods(key, algorithm, penalty):
    problem = fl.problems.ridge(key, clients=K, samples=10, dim=D)
    network = fl.graphs.ring(K)
    metrics = ["consensus_error", fl.metrics.trajectory()]
    if not isinstance(algorithm, str):
        return fl.Simulation(problem, algorithm, network, metrics=metrics)
    algorithm_of_penalty = fl.algorithms.NetworkedADMM(penalty)
    return fl.Simulation(problem, algorithm_of_penalty, network, metrics=metrics[1:])


READ = {
    "steps": (steps, STUDY | {"until": {"consensus_error": 1e3}}),
    "private": (budgets, PRIVATE | {"independent_noise": True}),
    "sampled": (averaged, PRIVATE),
    "algorithms": (
        methods,
        {
            "grid": {
                "algorithm": {"ADMM": "ADMM", "gradient": fl.algorithms.ZCDPGradNFL(0.05)},
                "penalty": [1, 0.5],
            },
            "rounds": 4,
            "record_every": 2,
            "seeds": [7, 3],
        },
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
@pytest.mark.parametrize("name", READ)
def test_a_store_loads_as_the_returned_results(tmp_path, name):
    """Attributes too: of the whole, of each shard, and of the shards merged."""
    scenario, options = READ[name]
    returned = fl.sweep(scenario, **options, store=tmp_path / "whole")
    for text in ("cite", "code", "scenario", "scenario_hash", "x64", "device", "created", "numpy"):
        assert text in returned.attrs
    assert ("privacy" in returned.attrs) == (name in ("private", "sampled"))
    xr.testing.assert_identical(fl.load(tmp_path / "whole"), returned)
    xr.testing.assert_identical(fl.load(fl.save(returned, tmp_path / "file.nc")), returned)
    parts = [tmp_path / "0", tmp_path / "1"]
    for number, folder in enumerate(parts):
        part = fl.sweep(scenario, **options, store=folder, shard=(number + 1, 2))
        xr.testing.assert_identical(fl.load(folder), part)
    merged = fl.load(fl.merge(tmp_path / "both", *parts))
    for label, values in returned.variables.items():
        if values.dtype.kind == "U":
            xr.testing.assert_identical(merged[label].drop_attrs(), returned[label].drop_attrs())
        else:
            np.testing.assert_allclose(merged[label], values, rtol=1e-12)
    passing = {"created", "run_seconds", "compile_seconds", "compilations", "block"}
    assert merged.attrs.keys() == returned.attrs.keys()
    for key in returned.attrs.keys() - passing:
        assert merged.attrs[key] == returned.attrs[key], key
    xr.testing.assert_identical(fl.load(fl.merge(tmp_path / "both", *parts)), merged)
    again = fl.sweep(scenario, **options, store=tmp_path / "both")
    xr.testing.assert_identical(fl.load(tmp_path / "both"), again)


@pytest.mark.slow
def test_an_interrupted_store_loads_as_the_returned_results(tmp_path, in_step):
    with pytest.raises(fl.Interrupted) as caught:
        fl.sweep(steps, **STUDY, store=tmp_path, callback=after(4, KeyboardInterrupt))
    partial = caught.value.results
    assert 0 < partial.done.sum() < partial.done.size
    xr.testing.assert_identical(fl.load(tmp_path), partial)


@pytest.mark.slow
def test_a_partial_run_has_its_results_so_far(tmp_path, full_study, eager):
    fl.sweep(steps, **STUDY, store=tmp_path)
    in_order(tmp_path)[-1].unlink()  # the last of three stretches of a block
    results = fl.load(tmp_path)
    (seed,) = results.seed.values[~results.done.all("step").values]
    for name in ("messages", "bits", "consensus_error"):
        run = results[name].sel(seed=seed)
        full = full_study[name].sel(seed=seed)
        assert run.isel(round=slice(8, None)).isnull().all()
        assert (run.isel(round=slice(8)) == full.isel(round=slice(8))).all()
    assert (results.diverged == 0).all()


def test_joined_parts_record_both_machines():
    first, second = (
        {"device": device, "code": "a", "run_seconds": seconds, **more}
        for device, seconds, more in (("cpu", 2.0, {}), ("H100", 1.0, {"x64": 1}))
    )
    joined = _merged_attributes(first, second)
    assert joined == {"device": "cpu; H100", "code": "a", "run_seconds": 2.0, "x64": 1}
    assert _merged_attributes(joined, second) == joined


@pytest.mark.slow
def test_shards_work_side_by_side_on_one_folder(tmp_path, full_study, written_blocks, eager):
    def shard(part):
        return fl.sweep(steps, **STUDY, store=tmp_path, shard=(part, 3))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(shard, (1, 2, 3)))
    assert len(written_blocks) == 12
    written_blocks.clear()
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), full_study)
    assert not written_blocks


@pytest.mark.slow
@pytest.mark.parametrize("grid", [GRID, {"step": [0.02]}])
def test_more_shards_than_seeds_are_possible(tmp_path, written_blocks, grid):
    study = STUDY | {"seeds": 2, "grid": grid}
    for part in (1, 2, 3):
        fl.sweep(steps, **study, store=tmp_path, shard=(part, 3))
    assert len(written_blocks) == 2 * len(grid["step"]) * 3  # stretches of one run each
    written_blocks.clear()
    close(fl.sweep(steps, **study, store=tmp_path), fl.sweep(steps, **study))


@pytest.mark.parametrize("shard", ["0/3", "4/3", "x", "1", "1/2/3", (1,), 3, "1/0", "-1/3"])
def test_bad_shards_are_refused(tmp_path, shard):
    with pytest.raises(ValueError, match=r"shard must be 'i/n' with 1 <= i <= n, got"):
        fl.sweep(steps, **STUDY, store=tmp_path / "store", shard=shard)
    assert not (tmp_path / "store").exists()


def test_a_shard_needs_a_store():
    with pytest.raises(ValueError, match="a shard needs a store to leave its runs in"):
        fl.sweep(steps, **STUDY, shard="1/3")


def test_one_shard_is_not_run_twice_at_a_time(tmp_path):
    open_store = Store(tmp_path, "part-2-of-3")
    with pytest.raises(fl.StoreError, match=r"another process is at work on .*part-2-of-3"):
        fl.sweep(steps, **STUDY, store=tmp_path, shard="2/3")
    open_store.close()


def test_only_stores_of_one_study_are_merged(tmp_path, stored):
    (tmp_path / "empty").mkdir()
    with pytest.raises(fl.StoreError, match=r"empty is no store of fljax: it has no study.json"):
        fl.merge(tmp_path / "whole", tmp_path / "empty")
    with pytest.raises(ValueError, match="merge needs at least one store"):
        fl.merge(tmp_path / "whole")
    fl.sweep(steps, **STUDY | {"root": 1, "seeds": 1}, store=tmp_path / "other")
    places = rf"root: 0 in {stored}, 1 in {tmp_path / 'other'}"
    with pytest.raises(ValueError, match=rf"other does not fit {stored}:\n  {places}"):
        fl.merge(tmp_path / "whole", stored, tmp_path / "other")
    fl.sweep(steps, **STUDY | {"rounds": 4, "seeds": 1}, store=tmp_path / "short")
    with pytest.raises(ValueError, match=r"rounds: 12 in .*, 4 in .*short\nOnly stores of one"):
        fl.merge(tmp_path / "whole", stored, tmp_path / "short")
    for twice in (
        (stored, stored),
        (tmp_path / "whole", stored, Path(f"{stored}/../{stored.name}")),
    ):
        with pytest.raises(ValueError, match=f"{stored} is given twice; name each once"):
            fl.merge(*twice)
    assert not (tmp_path / "whole").exists()


@pytest.mark.slow
def test_parts_of_the_seeds_and_the_grid_are_merged(tmp_path, full_study):
    for part, cut in enumerate(
        (
            {"seeds": [2, 3]},
            {"seeds": [0, 1], "grid": {"step": [0.05]}},
            {"seeds": [0, 1], "grid": {"step": [0.02]}},
        )
    ):
        fl.sweep(steps, **STUDY | cut, store=tmp_path / str(part))
    merged = fl.load(fl.merge(tmp_path / "whole", *(tmp_path / str(part) for part in range(3))))
    close(merged, full_study)


def test_a_damaged_file_is_not_merged(tmp_path, stored, full_study, written_blocks):
    fl.merge(tmp_path / "part", stored)
    path = in_order(tmp_path / "part")[0]
    alter(path)
    with pytest.warns(fl.DamageWarning, match=path.name):
        fl.merge(tmp_path / "whole", tmp_path / "part")
    assert not (tmp_path / "whole" / path.name).exists()
    assert same(fl.sweep(steps, **STUDY, store=tmp_path / "whole"), full_study)
    assert written_blocks


# Folders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["/proc/fljax", "/sys/fljax"])
def test_a_folder_that_cannot_be_made_is_named(folder):
    if not Path(folder).parent.exists():
        pytest.skip("a Linux file system")
    with pytest.raises(fl.StoreError, match=f"cannot write to the store {folder}: "):
        fl.sweep(steps, **STUDY, store=folder)


def test_a_file_is_refused_as_a_store(tmp_path):
    (tmp_path / "file").write_text("of somebody")
    for folder in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(fl.StoreError, match=f"cannot write to the store {folder}"):
            fl.sweep(steps, **STUDY, store=folder)
    assert (tmp_path / "file").read_text() == "of somebody"


def test_a_folder_with_other_files_is_refused_as_a_store(tmp_path):
    (tmp_path / "thesis.tex").write_text("of somebody")
    with pytest.raises(fl.StoreError, match="is no store of fljax and is not empty; give an empty"):
        fl.sweep(steps, **STUDY, store=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_two_studies_do_not_share_a_store_at_a_time(tmp_path, stored, full_study):
    open_store = Store(stored)

    def state():  # of the study: filelock before 3.17 touches the lock itself
        return {p.name: p.stat().st_mtime_ns for p in stored.iterdir() if p.suffix != ".lock"}

    before = state()
    with pytest.raises(fl.StoreError, match=r"another process is at work on .* wait for it"):
        fl.sweep(steps, **STUDY, store=stored)
    assert state() == before
    open_store.close()
    assert same(fl.sweep(steps, **STUDY, store=stored), full_study)
