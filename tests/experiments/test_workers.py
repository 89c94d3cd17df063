"""Figures and scenarios of the atlas that workers of an executor compute."""

from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import pytest
import xarray as xr

from experiments import commands as figure_commands
from experiments import records, workers
from experiments.__main__ import main
from experiments.atlas import commands as atlas_commands
from experiments.atlas.__main__ import main as atlas
from experiments.errors import UsageError
from experiments.figure import REGISTRY


@pytest.fixture
def thread(monkeypatch):
    """The engine that a command line names is a thread of this process; its names are kept."""
    named = []

    def made(name):
        named.append(name)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(workers, "executor_of", made)
    return named


class Losing(Executor):
    """Loses the workers of the first tasks, or cancels these."""

    def __init__(self, losses, error=None):
        self.losses = losses
        self.error = error
        self.submitted = []

    def submit(self, fn, /, *args, **kwargs):
        self.submitted.append(args[-1])
        future = Future()
        if len(self.submitted) > self.losses:
            future.set_result(fn(*args, **kwargs))
        elif self.error is None:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.error)
        return future


def greeted(name):
    print(f"{name} is computed")


def refused(name):
    print("half of it")
    raise UsageError(f"no {name}")


def test_the_output_of_a_task_is_printed_whole(capsys):
    with ThreadPoolExecutor(1) as executor:
        workers.hand_out(executor, greeted, ["a", "b"])
        assert sorted(capsys.readouterr().out.splitlines()) == ["a is computed", "b is computed"]
        with pytest.raises(UsageError, match="no a"):
            workers.hand_out(executor, refused, ["a"])
    assert capsys.readouterr().out == "half of it\n"


@pytest.mark.parametrize("error", [None, BrokenExecutor("gone"), KeyError("x")])
def test_a_task_whose_worker_is_lost_is_handed_out_again(capsys, error):
    executor = Losing(workers.ATTEMPTS - 1, error)
    workers.hand_out(executor, greeted, ["a"])
    assert executor.submitted == ["a"] * workers.ATTEMPTS
    assert capsys.readouterr().out == "a is computed\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "CancelledError"), (MemoryError(), "MemoryError"), (KeyError("x"), "KeyError: 'x'")],
)
def test_a_task_that_is_always_lost_is_given_up(error, reason):
    executor = Losing(99, error)
    expected = rf"a was lost 4 times by the executor's workers \({reason}\), perhaps for memory; "
    with pytest.raises(UsageError, match=expected + "the same command goes on from what is"):
        workers.hand_out(executor, greeted, ["a"])
    assert len(executor.submitted) == workers.ATTEMPTS


def test_an_executor_that_takes_no_tasks_is_named():
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(UsageError, match=r"takes no tasks any more \(RuntimeError: cannot sched"):
        workers.hand_out(executor, greeted, ["a"])


def test_tasks_that_have_not_begun_are_cancelled_after_an_error():
    executor = Losing(0)
    waiting = []

    def submit(fn, /, *args):
        if args[-1] == "a":
            return Losing.submit(executor, fn, *args)
        waiting.append(Future())
        return waiting[-1]

    executor.submit = submit
    with pytest.raises(UsageError, match="no a"):
        workers.hand_out(executor, refused, ["a", "b", "c"])
    assert [future.cancelled() for future in waiting] == [True, True]


@pytest.mark.parametrize("command", [main, atlas])
@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("desk", "unknown executor 'desk'; known: dask, mpi, processes, ray, submitit."),
        ('{"name": "processes", "worker": 2}', "no argument 'worker'. Did you mean 'workers'?"),
        ("{name: processes}", "executor is the name of an engine, or JSON such as"),
    ],
)
def test_a_wrong_executor_gets_one_line(command, engine, message, capsys):
    name = "gauthier-3.1" if command is main else "peers-ring"
    assert command(["run", name, "--quick", "--executor", engine]) == 2
    answer = capsys.readouterr().err
    assert message in answer
    assert answer.count("\n") == 1


def test_workers_get_folders_that_they_find(tmp_path, monkeypatch, thread, capsys):
    monkeypatch.chdir(tmp_path)
    given = []
    for commands in (figure_commands, atlas_commands):
        monkeypatch.setattr(commands, "_run_one", lambda name, **more: given.append((name, more)))
    assert main(["run", "jung-funnel", "--out", "mine", "--store", "kept", "--executor", "e"]) == 0
    assert atlas(["run", "peers-ring", "--out", "mine", "--store", "kept", "--executor", "e"]) == 0
    assert thread == ["e", "e"]
    assert [name for name, _ in given] == ["jung-funnel", "peers-ring"]
    for _, more in given:
        assert (more["folder"], more["work"]) == (tmp_path / "mine", tmp_path / "kept")


@pytest.mark.slow
def test_a_figure_of_a_worker_is_that_of_this_process(tmp_path, thread):
    run = ["run", "jung-connectivity", "--quick", "--seeds", "2", "--out"]
    assert main([*run, str(tmp_path / "here")]) == 0
    assert main([*run, str(tmp_path / "there"), "--executor", "thread"]) == 0
    here, there = (
        records.read_studies(REGISTRY["jung-connectivity"], tmp_path / name)
        for name in ("here", "there")
    )
    assert here.keys() == there.keys()
    for name in here:
        xr.testing.assert_equal(here[name], there[name])


@pytest.mark.parametrize(("options", "seeds"), [([], 300), (["--seeds", "7"], 7), (["--quick"], 8)])
def test_a_figure_is_published_with_its_own_number_of_seeds(options, seeds, tmp_path, monkeypatch):
    class Begun(Exception):
        """The figure would be computed now."""

    def begin(figure, effort):
        raise Begun(figure.name, effort.seeds)

    monkeypatch.setattr(figure_commands, "_studies_of", begin)
    folders = ["--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    with pytest.raises(Begun) as begun:
        main(["run", "gauthier-5.2", *options, *folders])
    assert begun.value.args == ("gauthier-5.2", seeds)
