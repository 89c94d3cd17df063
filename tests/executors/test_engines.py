"""Real engines compute a study: the bits of one process, after a killed worker, too.

An engine that is not installed is skipped, with the words in which to install it:
``pip install 'fljax[executors]'``, and ``openmpi-bin`` of Debian for MPI.
"""

import importlib.util
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

import fljax as fl
from fljax.study.saving import checksum
from tests.support.guides import ROOT
from tests.support.small_study import LONG, STUDY, steps

pytestmark = pytest.mark.slow


def require(library, extra="executors"):
    """Skip the test loudly if an engine is not installed."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is NOT INSTALLED, so its engine is untested: fljax[{extra}]")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Workers find the scenarios of the tests."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@pytest.fixture(scope="module")
def one_process():
    return fl.sweep(steps, **STUDY)


@pytest.fixture(scope="module")
def long_study():
    return fl.sweep(steps, **LONG)


@pytest.fixture
def dask():
    require("distributed", "dask")
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def ray():
    require("ray", "ray")
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield fl.executors.ray({"num_cpus": 1})
    ray.shutdown()


@pytest.fixture
def submitit(tmp_path):
    require("submitit", "submitit")
    with fl.executors.submitit(tmp_path / "jobs", cluster="local", jobs=2) as executor:
        yield executor


def same(first, second):
    return checksum(first) == checksum(second)


def killing(find, folder):
    """A thread that kills the first process that is found once a piece has a checkpoint."""
    killed = []

    def kill():
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if len(list(folder.glob("pieces-*/*/state-*.npz"))) and (process := find()):
                os.kill(process, signal.SIGKILL)
                killed.append(process)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread, killed


def run_and_kill(executor, find, folder, expected):
    """The study is complete and has its bits though a worker was killed in the middle."""
    thread, killed = killing(find, folder)
    results = fl.sweep(steps, **LONG, store=folder, executor=executor)
    thread.join()
    assert len(killed) == 1
    assert same(results, expected)
    assert same(fl.load(folder), expected)


# Dask --------------------------------------------------------------------------------------------


def test_dask_computes_a_study(dask, tmp_path, one_process):
    results = fl.sweep(steps, **STUDY, store=tmp_path, executor=dask.get_executor())
    assert same(results, one_process)


def test_dask_computes_a_study_whose_worker_is_killed(dask, tmp_path, long_study):
    def busy():
        processes = dask.run(os.getpid, nanny=False)
        tasks = dask.processing()
        return next((processes[address] for address in processes if tasks.get(address)), None)

    run_and_kill(dask.get_executor(), busy, tmp_path, long_study)


def test_dask_tunes_and_compares(dask, tmp_path):
    from tests.support.small_study import methods

    options = {"metric": "consensus_error", "rounds": 6, "points": 3, "extensions": 0}
    options |= {"seeds": 2, "tuning_seeds": 2}
    executor = dask.get_executor()
    shared = fl.compare(methods, ["CTA", "ATC"], **options, store=tmp_path, executor=executor)
    assert same(shared.results, fl.compare(methods, ["CTA", "ATC"], **options).results)


#: A script in which the scenario itself is defined.
SCRIPT = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
import fljax as fl
from fljax.study.saving import checksum
from tests.support.small_study import STUDY, build

def scenario(key, step):
    return build(key, fl.algorithms.ZCDPGradNFL(step))

def main(executor):
    results = fl.sweep(scenario, **STUDY, store="store", executor=executor)
    assert checksum(results) == checksum(fl.sweep(scenario, **STUDY))
    print("the same")
"""

STARTS = {
    "dask": """
    from distributed import Client, LocalCluster
    with LocalCluster(n_workers=1, dashboard_address=None) as cluster, Client(cluster) as client:
        main(client.get_executor())
    """,
    "spawn": """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        main(executor)
    """,
    "mpi": """
    from mpi4py.futures import MPIPoolExecutor
    with MPIPoolExecutor() as executor:
        main(executor)
    """,
}


def script(folder, engine, *start):
    """What a script prints that computes a study of its own scenario."""
    path = folder / "script.py"
    body = textwrap.indent(textwrap.dedent(STARTS[engine]), "    ")
    path.write_text(f'{SCRIPT}\nif __name__ == "__main__":\n{body}')
    command = [*(start or [sys.executable]), str(path)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dask_computes_the_scenario_of_the_script_itself(tmp_path):
    require("distributed", "dask")
    assert "the same" in script(tmp_path, "dask")


# Processes ---------------------------------------------------------------------------------------


def test_spawned_processes_compute_the_scenario_of_the_script_itself(tmp_path):
    assert "the same" in script(tmp_path, "spawn")


def test_a_pool_that_broke_is_named_and_a_new_one_continues(tmp_path, long_study):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        thread, killed = killing(lambda: next(iter(executor._processes), None), tmp_path)
        with pytest.raises(fl.WorkerError, match=r"takes no tasks .*BrokenProcessPool.* of 8 runs"):
            fl.sweep(steps, **LONG, store=tmp_path, executor=executor)
        thread.join()
    assert len(killed) == 1
    assert list(tmp_path.glob("runs-*.npz"))
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        results = fl.sweep(steps, **LONG, store=tmp_path, executor=executor)
    assert same(results, long_study)


#: A study by processes that Ctrl-C reaches in the middle.
INTERRUPTED = """
import multiprocessing, signal, sys
from concurrent.futures import ProcessPoolExecutor
import jax
jax.config.update("jax_enable_x64", True)
import fljax as fl
from tests.support.small_study import LONG, steps

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        try:
            fl.sweep(steps, **LONG, store=sys.argv[1], executor=executor)
        except fl.Interrupted as interrupted:
            print(interrupted)
"""


def test_ctrl_c_leaves_a_store_that_continues(tmp_path, long_study):
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    store = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "interrupted.py"), str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(store.glob("pieces-*/*/state-*.npz")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "of 8 runs are done and kept in" in out
    assert "waiting for" in err
    assert list(store.glob("state-*.npz"))  # of runs in the middle
    assert not list(store.glob("pieces-*"))
    assert same(fl.sweep(steps, **LONG, store=store), long_study)


def test_loky_computes_a_study(tmp_path, one_process):
    require("loky")
    from loky import get_reusable_executor

    executor = get_reusable_executor(2)
    assert same(fl.sweep(steps, **STUDY, store=tmp_path, executor=executor), one_process)
    executor.shutdown()


# Ray ---------------------------------------------------------------------------------------------


def test_ray_computes_a_study_whose_worker_is_killed(ray, tmp_path, one_process, long_study):
    import psutil

    def busy():
        children = psutil.Process().children(recursive=True)
        return next((p.pid for p in children if "ray::compute" in " ".join(p.cmdline())), None)

    results = fl.sweep(steps, **STUDY, store=tmp_path / "short", executor=ray)
    assert same(results, one_process)
    run_and_kill(ray, busy, tmp_path / "long", long_study)
    with pytest.raises(ValueError, match=r"Ray refuses these options: .*cpus"):
        fl.executors.ray({"cpus": 1})


# submitit ----------------------------------------------------------------------------------------


def test_submitit_computes_a_study_whose_job_is_killed(submitit, tmp_path, one_process, long_study):
    import psutil

    def busy():
        children = psutil.Process().children(recursive=True)
        tasks = [p for p in children if "submitit.core._submit" in " ".join(p.cmdline())]
        return tasks[0].pid if tasks else None

    results = fl.sweep(steps, **STUDY, store=tmp_path / "short", executor=submitit)
    assert same(results, one_process)
    assert len(list((tmp_path / "jobs").glob("*_submitted.pkl"))) == 2
    run_and_kill(submitit, busy, tmp_path / "long", long_study)
    with pytest.raises(ValueError, match=r"submitit refuses these parameters: .*minutes"):
        fl.executors.submitit(tmp_path / "jobs", cluster="local", parameters={"minutes": 3})


# MPI ---------------------------------------------------------------------------------------------


def test_mpi_computes_a_study(tmp_path):
    require("mpi4py", "mpi")
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("mpiexec is NOT INSTALLED, so MPI is untested: apt-get install openmpi-bin")
    options = ["--allow-run-as-root", "--oversubscribe", "-n", "3"]
    start = [mpiexec, *options, sys.executable, "-m", "mpi4py.futures"]
    assert "the same" in script(tmp_path, "mpi", *start)
