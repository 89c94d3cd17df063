"""Studies that the workers of an executor compute: the bits of one process, after losses too."""

import dataclasses
import multiprocessing
import pickle
import sys
import textwrap
import threading
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)

import numpy as np
import pytest

import fljax as fl
from fljax.study import block_sizes, distribution, pieces, planning
from fljax.study import executor as running
from fljax.study.saving import checksum
from tests.support import small_study
from tests.support.small_study import ROUNDS, STUDIES, STUDY, methods, steps

quiet = pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def eager(monkeypatch):
    """Every segment is written immediately, and looked at."""
    monkeypatch.setattr(running, "FLUSH_SECONDS", 0)
    monkeypatch.setattr(distribution, "FLUSH_SECONDS", 0)


@pytest.fixture
def computed_segments(monkeypatch):
    """The segments that workers compute."""
    segments = []
    collect = pieces._PieceRun._collect_and_report

    def noted(run, block):
        segments.append(block)
        collect(run, block)

    monkeypatch.setattr(pieces._PieceRun, "_collect_and_report", noted)
    return segments


@pytest.fixture(scope="module")
def one_process():
    return fl.sweep(steps, **STUDY)


class InThisThread(Executor):
    """Computes each task when it is handed out, with hooks for what happens to it."""

    def __init__(self, before=lambda task, arguments: arguments, after=lambda task: None):
        self.tasks = 0
        self.before = before
        self.after = after

    def submit(self, fn, /, *args):
        self.tasks += 1
        future = Future()
        try:
            result = fn(*self.before(self.tasks, args))
            self.after(self.tasks)
            future.set_result(result)
        except BaseException as error:
            future.set_exception(error)
        return future


def same(first, second):
    """Bit for bit."""
    return checksum(first) == checksum(second)


def sessions(folder):
    return list(folder.glob("pieces-*"))


@quiet
@pytest.mark.thin(2, every=1)
@pytest.mark.parametrize("name", STUDIES)
def test_workers_return_the_bits_of_one_process(name, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(block_sizes, "POINTS_AT_ONCE", 2)
    scenario, study = STUDIES[name]
    results = fl.sweep(scenario, **study, store=tmp_path, executor=threads)
    alone = fl.sweep(scenario, **study)
    assert same(results, alone)
    assert same(fl.load(tmp_path), alone)
    assert results.attrs["block"] == alone.attrs["block"]
    assert not sessions(tmp_path)
    again = fl.sweep(scenario, **study, store=tmp_path)  # nothing is missing
    assert same(again, alone)
    assert again.attrs["run_seconds"] == 0


def test_spawned_processes_return_the_bits_of_one_process(tmp_path, one_process):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        results = fl.sweep(steps, **STUDY, store=tmp_path, executor=executor)
    assert same(results, one_process)


def test_a_study_that_grows_continues_from_its_states(threads, tmp_path, computed_segments):
    fl.sweep(steps, **STUDY, store=tmp_path, executor=threads)
    assert len(computed_segments) == 12
    longer = STUDY | {"rounds": 2 * ROUNDS, "seeds": 5}
    computed_segments.clear()
    results = fl.sweep(steps, **longer, store=tmp_path, executor=threads)
    assert same(results, fl.sweep(steps, **longer))
    assert same(fl.load(tmp_path), results)
    assert sorted(block.first for block in computed_segments) == [0, 4, 8] + 5 * [12] + 5 * [
        16
    ] + 5 * [20]
    # States that later ones replace are deleted.
    assert len(list(tmp_path.glob("state-*.npz"))) == 5


@pytest.mark.slow
def test_a_study_without_states_starts_longer_runs_again(threads, tmp_path):
    study = {"grid": STUDY["grid"], "seeds": 3, "keep_state": False}
    fl.sweep(steps, rounds=4, **study, store=tmp_path, executor=threads)
    results = fl.sweep(steps, rounds=8, **study, store=tmp_path, executor=threads)
    del study["keep_state"]
    assert same(results, fl.sweep(steps, rounds=8, **study))


class LostWorkerError(BaseException):
    """Stands for the end of a worker's process."""


def test_a_lost_piece_continues_from_its_checkpoint(
    tmp_path, eager, monkeypatch, computed_segments, one_process
):
    collect = pieces._PieceRun._collect_and_report

    def deadly(run, block):
        collect(run, block)
        if len(computed_segments) in (2, 7):  # two of three segments of a piece, one of another
            raise LostWorkerError

    monkeypatch.setattr(pieces._PieceRun, "_collect_and_report", deadly)
    executor = InThisThread()
    assert same(fl.sweep(steps, **STUDY, store=tmp_path, executor=executor), one_process)
    assert executor.tasks == 4 + 2
    # Some were written while the worker ended; none was computed again.
    computed = [(block.seeds[0], block.first) for block in computed_segments]
    assert len({*computed}) == len(computed) <= 12


def test_a_piece_that_is_lost_again_and_again_ends_the_study(tmp_path, one_process):
    def lost(task, arguments):
        if arguments[2] == 1:
            raise BrokenExecutor("a worker was killed")
        return arguments

    executor = InThisThread(lost)
    with pytest.raises(
        fl.WorkerError, match=r"lost 4 times .*BrokenExecutor: a worker was killed; \d of 8 runs"
    ):
        fl.sweep(steps, **STUDY, store=tmp_path, executor=executor)
    assert not sessions(tmp_path)
    assert same(fl.sweep(steps, **STUDY, store=tmp_path), one_process)


def test_a_broken_pool_is_named(tmp_path):
    class Broken(InThisThread):
        def submit(self, fn, /, *args):
            raise BrokenExecutor("a child process terminated abruptly")

    with pytest.raises(fl.WorkerError, match=r"takes no tasks .*abruptly\); 0 of 8 .*__main__"):
        fl.sweep(steps, **STUDY, store=tmp_path, executor=Broken())


def test_the_callback_sees_running_pieces_and_can_end_the_study(
    threads, tmp_path, eager, one_process
):
    shown = []

    class EnoughError(Exception):
        pass

    def callback(results):
        shown.append(int(results.done.sum()) if "done" in results else results.done)
        if shown[-1] >= 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        fl.sweep(steps, **STUDY, store=tmp_path, executor=threads, callback=callback)
    assert shown[0] == 0  # a segment of a piece that is not complete
    resumed = fl.sweep(steps, **STUDY, store=tmp_path)
    assert same(resumed, one_process)
    assert not sessions(tmp_path)


def test_ctrl_c_returns_finished_runs_and_leaves_the_store_resumable(
    tmp_path, eager, one_process, computed_segments
):
    interrupted = threading.Event()

    class OneAtATime(ThreadPoolExecutor):
        def submit(self, fn, /, *args):
            def wait(session, token, number, *more):
                assert not number or interrupted.wait(60)
                return fn(session, token, number, *more)

            return super().submit(wait, *args)

    def interrupt(results):
        if results.done.any():
            interrupted.set()
            raise KeyboardInterrupt

    with OneAtATime(1) as executor:
        with pytest.raises(fl.Interrupted, match="of 8 runs are done and kept in") as caught:
            fl.sweep(steps, **STUDY, store=tmp_path, executor=executor, callback=interrupt)
        done = caught.value.results.done
        assert 0 < done.sum() < done.size
        assert len(computed_segments) < 12
        assert same(fl.sweep(steps, **STUDY, store=tmp_path, executor=executor), one_process)
    assert len(computed_segments) <= 12


@pytest.mark.parametrize("by_executor", [True, False])
def test_what_workers_of_a_killed_process_left_is_adopted(
    by_executor, threads, tmp_path, eager, monkeypatch, computed_segments, one_process
):
    monkeypatch.setattr(distribution.DistributedRun, "_withdraw", lambda *_: None)

    class KilledError(BaseException):
        pass

    def kill(task):
        if task == 3:
            raise KilledError

    class Killed(InThisThread):
        def submit(self, fn, /, *args):
            future = super().submit(fn, *args)
            if isinstance(future.exception(), KilledError):
                raise KilledError
            return future

    with pytest.raises(KilledError):
        fl.sweep(steps, **STUDY, store=tmp_path, executor=Killed(after=kill))
    assert len(sessions(tmp_path)) == 1
    computed_segments.clear()
    more = {"executor": threads} if by_executor else {}
    resumed = fl.sweep(steps, **STUDY, store=tmp_path, **more)
    assert same(resumed, one_process)
    assert len(computed_segments) == 3 * by_executor
    assert not sessions(tmp_path)


def test_a_withdrawn_piece_stops_at_its_next_checkpoint(tmp_path, computed_segments, monkeypatch):
    collect = pieces._PieceRun._collect_and_report

    def withdraw(run, block):
        (run.session / "token").unlink()
        collect(run, block)

    monkeypatch.setattr(pieces._PieceRun, "_collect_and_report", withdraw)
    returned = []

    class Noted(InThisThread):
        def submit(self, fn, /, *args):
            future = super().submit(fn, *args)
            returned.append(future.result())
            raise KeyboardInterrupt

    with pytest.raises(fl.Interrupted):
        fl.sweep(steps, **STUDY, store=tmp_path, executor=Noted())
    assert len(computed_segments) == 1
    assert returned[0].error is None


def test_a_study_has_no_more_tasks_than_its_executor_takes(tmp_path, one_process):
    executor = InThisThread()
    executor.most_tasks = 3
    assert same(fl.sweep(steps, **STUDY, store=tmp_path, executor=executor), one_process)
    assert executor.tasks == 3


def test_workers_apply_the_options_of_the_thread_that_hands_out(tmp_path):
    import jax

    with jax.enable_x64(False):
        single = fl.sweep(steps, **STUDY)
        with ThreadPoolExecutor(1) as other:  # its thread has the process's options
            results = fl.sweep(steps, **STUDY, store=tmp_path, executor=other)
    assert results.consensus_error.dtype == np.float32
    assert same(results, single)


@pytest.mark.slow
def test_workers_on_another_kind_of_device_choose_their_own_blocks(threads, tmp_path, monkeypatch):
    describe = pieces.describe_study

    def of_a_gpu(*args):
        return pickle.dumps(pickle.loads(describe(*args)) | {"platform": "gpu"})

    monkeypatch.setattr(pieces, "describe_study", of_a_gpu)
    study = {"grid": STUDY["grid"], "rounds": 4, "seeds": 403, "workers": 2}
    chosen = []
    choose = planning.choose_sizes

    def noted(study, *args):
        chosen.append(len(study.request.seed_list))
        return choose(study, *args)

    monkeypatch.setattr(planning, "choose_sizes", noted)
    results = fl.sweep(steps, **study, store=tmp_path, executor=threads)
    assert chosen
    assert max(chosen) < 403  # of pieces
    alone = fl.sweep(steps, **study)
    np.testing.assert_allclose(results.consensus_error, alone.consensus_error, rtol=1e-12)


@pytest.mark.slow
def test_a_tracker_follows_the_workers(threads, tmp_path):
    track = fl.track.csv(tmp_path / "tracked")
    fl.sweep(steps, **STUDY, store=tmp_path / "store", executor=threads, track=track)
    assert "consensus_error" in (tmp_path / "tracked" / "curves.csv").read_text()


@pytest.mark.slow
def test_methods_are_tuned_and_compared_by_workers(threads, tmp_path):
    options = {"metric": "consensus_error", "rounds": 6, "points": 3, "extensions": 0}
    names = ["CTA", "ATC"]
    alone = fl.compare(methods, names, seeds=2, tuning_seeds=2, **options)
    shared = fl.compare(
        methods, names, seeds=2, tuning_seeds=2, **options, store=tmp_path, executor=threads
    )
    assert shared.tuned.chosen == alone.tuned.chosen
    assert same(shared.results, alone.results)


# Bad input ---------------------------------------------------------------------------------------


def test_forked_processes_are_refused(tmp_path):
    executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with pytest.raises(ValueError, match=r"by fork, .*get_context\('spawn'\)"):
        fl.sweep(steps, **STUDY, store=tmp_path, executor=executor)
    executor.shutdown()


class Client:
    """As Dask's."""

    def get_executor(self):
        raise AssertionError


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"executor": 3}, TypeError, "must be a concurrent.futures.Executor.*got 3"),
        ({"executor": Client()}, TypeError, r"Dask has one: client\.get_executor\(\)"),
        ({"store": None}, ValueError, "needs a store .* pass store="),
        ({"shard": "1/2"}, ValueError, "divides the study by itself; leave shard="),
        ({"shard_over": "clients"}, ValueError, "leave it out with executor="),
        ({"noise_seed": 2**80 + 1}, ValueError, "noise_seed is a secret"),
    ],
)
def test_what_does_not_go_with_an_executor_is_refused(arguments, error, message, tmp_path):
    request = STUDY | {"store": tmp_path / "store", "executor": InThisThread()} | arguments
    with pytest.raises(error, match=message):
        fl.sweep(steps, **request)
    assert not (tmp_path / "store").exists()


@dataclasses.dataclass(frozen=True)
class Local:
    """A value of a grid that holds a function without a name."""

    function: object


def test_what_cannot_be_pickled_is_named(tmp_path):
    executor = InThisThread()
    with pytest.raises(ValueError, match=r"^scenario cannot be sent to workers .*lambda.*a module"):
        fl.sweep(lambda key: steps(key, 0.02), rounds=2, store=tmp_path, executor=executor)
    loss = fl.static([lambda x: x])

    def chosen(key, loss):
        return steps(key, 0.02)

    with pytest.raises(ValueError, match=r"^scenario cannot be sent .*chosen"):
        fl.sweep(chosen, rounds=2, grid={"loss": loss}, store=tmp_path, executor=executor)
    grid = {"step": {"a": fl.static([lambda x: x])}}
    with pytest.raises(ValueError, match=r"^grid\['step'\] cannot be sent .*lambda"):
        distribution.pickled(distribution.Request(scenario=steps, rounds=2, grid=grid), executor)
    assert not executor.tasks
    with pytest.raises(ValueError, match=r"private.*leave it out"):
        fl.tune(
            methods,
            ["CTA"],
            metric="consensus_error",
            rounds=2,
            private=fl.PrivateTuning(1e-5, "public"),
            executor=executor,
        )


def test_a_store_that_workers_do_not_share_is_named(tmp_path):
    def elsewhere(task, arguments):
        return (str(tmp_path / "other" / "pieces-1"), *arguments[1:])

    with pytest.raises(fl.WorkerError, match=r"store is not shared: a worker on .* all machines"):
        fl.sweep(steps, **STUDY, store=tmp_path / "store", executor=InThisThread(elsewhere))

    def other_token(task, arguments):
        return (arguments[0], "another token", *arguments[2:])

    with pytest.raises(fl.WorkerError, match="store is not shared"):
        fl.sweep(steps, **STUDY, store=tmp_path / "store", executor=InThisThread(other_token))


@pytest.mark.parametrize("name", ["fljax", "jax", "jaxlib"])
def test_other_versions_of_workers_are_refused_by_name(name, tmp_path, monkeypatch):
    versions = pieces.versions

    def older(task, arguments):
        monkeypatch.setattr(pieces, "versions", lambda: versions() | {name: "0.0.1"})
        return arguments

    message = rf"other versions.*\n  {name}: '{versions()[name]}' in the study, '0.0.1' on the wor"
    with pytest.raises(fl.WorkerError, match=message):
        fl.sweep(steps, **STUDY, store=tmp_path, executor=InThisThread(older))


def test_a_worker_that_lacks_the_scenario_s_module_names_it(tmp_path, monkeypatch):
    source = """
        from tests.support.small_study import steps
        def scenario(key, step):
            return steps(key, step)
    """
    (tmp_path / "only_here.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    def forget(task, arguments):
        sys.modules.pop("only_here", None)
        sys.path[:] = [place for place in sys.path if place != str(tmp_path)]
        return arguments

    with pytest.raises(fl.WorkerError, match=r"cannot import .*No module named 'only_here'.*PYTH"):
        fl.sweep(
            only_here.scenario, **STUDY, store=tmp_path / "store", executor=InThisThread(forget)
        )


def test_a_worker_that_builds_another_study_is_refused(tmp_path, monkeypatch):
    def change(task, arguments):
        monkeypatch.setattr(small_study, "SCALE", [2.0])
        pieces._built.cache_clear()
        return arguments

    with pytest.raises(fl.WorkerError, match=r"builds another study[^|]*program"):
        fl.sweep(small_study.changeable, **STUDY, store=tmp_path, executor=InThisThread(change))


def test_an_error_of_the_study_is_not_tried_again(tmp_path, monkeypatch):
    def full(run, block):
        raise fl.StoreError("cannot write to the store: the disk is full")

    monkeypatch.setattr(pieces._PieceRun, "_collect_and_report", full)
    executor = InThisThread()
    with pytest.raises(fl.StoreError, match="disk is full") as caught:
        fl.sweep(steps, **STUDY, store=tmp_path, executor=executor)
    assert executor.tasks <= 4
    assert any("on a worker of the executor" in note for note in caught.value.__notes__)


def test_a_worker_without_the_library_is_named(tmp_path):
    def absent(task, arguments):
        raise ModuleNotFoundError("No module named 'fljax'", name="fljax")

    with pytest.raises(fl.WorkerError, match=r"cannot import fljax .*No module named 'fljax'"):
        fl.sweep(steps, **STUDY, store=tmp_path, executor=InThisThread(absent))
