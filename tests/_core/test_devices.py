"""Several devices and several processes compute the same numbers."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fljax as fl
from fljax.simulation import checkpoints
from fljax.study.saving import checksum
from tests.simulation.test_population_run import CLIENTS
from tests.study.test_store import STUDY, WIDE, child, compiled_once, steps, wide  # noqa: F401
from tests.support.guides import ROOT, text

pytestmark = [pytest.mark.core, pytest.mark.slow]

START = """
import sys
folder, address, number, deadly = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if address:
    jax.distributed.initialize(address, 2, number, heartbeat_timeout_seconds=10)
"""


def ended(processes, seconds=120):
    """Exit codes and what went wrong."""
    try:
        errors = [process.communicate(timeout=seconds)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], errors


def pair(code, folder, deadly=0):
    """Two processes that are joined."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [child(START + code, folder, address, number, deadly) for number in (0, 1)]


@pytest.fixture(scope="module")
def full_study():
    return fl.sweep(steps, **STUDY)


def same(path, study):
    """Bit for bit."""
    return checksum(fl.load(path)) == checksum(study)


# Devices -----------------------------------------------------------------------------------------

EIGHT_DEVICES = """
from fljax.study import batched_program
assert jax.local_device_count() == 8

shared = fl.sweep(wide, **WIDE, shard_over="clients", store=folder + "/store")
fl.save(shared, folder + "/shared.nc")
with pytest.raises(ValueError, match="6 clients cannot be shared out evenly over 8 devices"):
    fl.sweep(steps, **STUDY, shard_over="clients")

used = set()
compiled = batched_program._compile
def noted(function, given, device, *more):
    used.add(device.id)
    return compiled(function, given, device, *more)
batched_program._compile = noted

many = {**STUDY, "workers": 8, "segment": None, "seeds": 16}
study = fl.sweep(steps, **many)
assert study.attrs["device_count"] == 8
assert used == set(range(8)), used
fl.save(study, folder + "/many.nc")
used.clear()
few = fl.sweep(steps, **many | {"seeds": 3})
assert not used  # compiled for these devices before
fl.save(few, folder + "/few.nc")
"""


@pytest.mark.slow
def test_eight_devices_share_a_study(tmp_path):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    codes, errors = ended([child(START + EIGHT_DEVICES, tmp_path, "", 0, 0, XLA_FLAGS=flags)])
    assert codes == [0], errors
    # A block is one program on any device: results are equal bit by bit.
    single_device = fl.sweep(steps, **STUDY | {"segment": None, "seeds": 16})
    assert same(tmp_path / "many.nc", single_device)
    assert same(tmp_path / "few.nc", single_device.sel(seed=range(3)))
    # Sums over clients are taken in another order.
    shared = fl.load(tmp_path / "shared.nc")
    alone = fl.sweep(wide, **WIDE)
    for name in alone:
        np.testing.assert_allclose(shared[name], alone[name], rtol=1e-12, err_msg=name)
    assert same(tmp_path / "shared.nc", fl.load(tmp_path / "store"))


def test_the_clients_of_a_network_lie_on_different_devices(tmp_path):
    """Each holds its share of the rows, through the whole run and not only at its start."""
    code = """
from fljax._core.devices import everywhere
from fljax.study.batched_program import Program
from fljax.study.grid import axes_of, groups_of

program = Program(wide, T, 1, False, "clients")
(group,) = groups_of(wide, axes_of({}), T)
program.identity(group, retrace=True)
root = np.asarray(jax.random.key_data(fl.random_key(0)))
compiled, _ = program.compile(np.zeros(1, np.uint32), root, {}, None, (1, 1), T)
output = compiled.call(np.zeros(1, np.uint32), root, {}, None, np.int32(0))
model = output.carry.state.model
assert len(model.sharding.device_set) == 8
assert {shard.data.shape for shard in model.addressable_shards} == {(1, 1, 2, D)}, model.sharding
"""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    codes, errors = ended([child(START + code, tmp_path, "", 0, 0, XLA_FLAGS=flags)])
    assert codes == [0], errors


# Processes ---------------------------------------------------------------------------------------

JOINED = """
computed = []
keep = sweeping.StudyRun._collect_and_report
def noted(run, block):
    computed.append(block)
    keep(run, block)
sweeping.StudyRun._collect_and_report = noted
if number and deadly:
    die_at(sweeping.Store, "add", deadly)

def study(name, **options):
    computed.clear()
    found = fl.sweep(steps, **STUDY, **options)
    fl.save(found, f"{folder}/{name}-{number}.nc")
    return len(computed)
"""


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path, full_study):
    codes, errors = ended(
        pair(
            JOINED
            + """
assert jax.process_count() == 2
assert study("alone") == 6
assert study("stored", store=folder + "/store") == 6
assert study("again", store=folder + "/store") == 0
together = fl.sweep(wide, **WIDE, segment=4, shard_over="clients")
fl.save(together, f"{folder}/together-{number}.nc")
with pytest.raises(ValueError, match="a store cannot keep runs that several processes share"):
    fl.sweep(wide, **WIDE, shard_over="clients", store=folder + "/other")
few = fl.sweep(steps, **STUDY | {"seeds": 1, "grid": {"step": [0.02]}})
assert few.sizes["seed"] == 1 and "done" not in few
""",
            tmp_path,
        )
    )
    assert codes == [0, 0], errors
    for name in ("alone", "stored", "again"):
        for number in (0, 1):
            assert same(tmp_path / f"{name}-{number}.nc", full_study), name
    alone = fl.sweep(wide, **WIDE)
    for number in (0, 1):
        together = fl.load(tmp_path / f"together-{number}.nc")
        for name in alone:
            np.testing.assert_allclose(together[name], alone[name], rtol=1e-12, err_msg=name)
    assert same(tmp_path / "stored-0.nc", fl.sweep(steps, **STUDY, store=tmp_path / "store"))


@pytest.mark.slow
def test_processes_that_were_killed_go_on_together(tmp_path, full_study):
    store = tmp_path / "store"
    run = JOINED + "print(study('whole', store=folder + '/store'))"
    # The second one dies in the middle of a block; the first then waits in vain, and is ended too.
    first, second = pair(run, tmp_path, deadly=5)
    codes, errors = ended([second])
    assert codes == [-signal.SIGKILL], errors
    codes, _ = ended([first])
    assert codes != [0]
    assert 4 <= len(list(store.glob("runs-*.npz"))) <= 10
    assert not list(tmp_path.glob("*.nc"))
    result = len(list(store.glob("runs-*.npz")))
    codes, errors = ended(pair(run, tmp_path))
    assert codes == [0, 0], errors
    assert result < len(list(store.glob("runs-*.npz"))) <= 12 + 1  # a block may start again
    for number in (0, 1):
        assert same(tmp_path / f"whole-{number}.nc", full_study)
    assert not list(store.glob(".*.tmp"))


# Populations -------------------------------------------------------------------------------------

COHORTS = """
import json, pathlib, re
from fljax.simulation import checkpoints, client_states, population_run
from fljax.data import Population
from fljax.participation import Markov
from tests.simulation.test_population_run import CLIENTS, KEY, LOSS, NETWORK

read, compiled = [], []
def noted(self, clients, function=Population.read):
    read.append(len(clients))
    return function(self, clients)
Population.read = noted

def looked(*given, function=population_run._run_round, **static):
    if not compiled:
        compiled.append(function.lower(*given, **static).compile())
    return function(*given, **static)
population_run._run_round = looked

def flops():
    return compiled[-1].cost_analysis()["flops"]

def turns():
    return re.findall(r'known_trip_count":{"n":"([0-9]+)"', compiled[-1].as_text())

population = Population(pathlib.Path(folder) / "population")
test, evaluated = [CLIENTS[k] for k in (1, 4, 9, 11)], (1, 4, 9, 11)
problem = fl.problems.Model.from_population(
    population, NETWORK, KEY, LOSS, test=test, evaluated=evaluated
)
runs = {
    "averaging": (fl.algorithms.FedAvg(0.3, clients_per_round=4, batch=4), {}),
    "controls": (fl.algorithms.SCAFFOLD(0.1, clients_per_round=4, local_steps=3, batch=4), {}),
    "own": (
        fl.algorithms.FedDyn(0.1, attraction=0.1, clients_per_round=4, local_steps=3, batch=4),
        {"participation": Markov(0.4, 0.5), "losses": fl.link.Independent(0.3)},
    ),
    "private": (
        fl.algorithms.FedAvg(0.3, clients_per_round=4, batch=4),
        {"privacy": fl.privacy.CentralGaussian(noise_multiplier=1.0, clip=0.5)},
    ),
    "median": (
        fl.algorithms.FedAvg(0.3, clients_per_round=4, batch=4),
        {"aggregation": fl.aggregation.Median()},
    ),
}
def simulation(name):
    algorithm, parts = runs[name]
    return fl.Simulation(problem, algorithm, metrics=["client_accuracy", "test_error"], **parts)

def share(name, **options):
    found = fl.run(simulation(name), 6, key=5, record_every=2, shard_over="clients", **options)
    fl.save(found, f"{folder}/{name}-{number}.nc")
"""


@pytest.fixture(scope="module")
def cohorts_alone(tmp_path_factory):
    """A population, and its runs on one device."""
    folder = tmp_path_factory.mktemp("cohorts")
    fl.data.write_population(folder / "population", CLIENTS)
    code = """
for name in runs:
    fl.save(fl.run(simulation(name), 6, key=5, record_every=2), f"{folder}/{name}-alone.nc")
    (pathlib.Path(folder) / f"{name}-alone").write_text(json.dumps([flops(), turns()]))
    compiled.clear()
"""
    codes, errors = ended([child(START + COHORTS + code, folder, "", 0, 0)])
    assert codes == [0], errors
    return folder


RUNS = ("averaging", "controls", "own", "private", "median")


def assert_close_to_one_device(folder, number=0):
    for name in RUNS:
        alone, shared = (fl.load(folder / f"{name}-{which}.nc") for which in ("alone", number))
        for part in {*alone, *shared}:
            np.testing.assert_allclose(
                shared[part], alone[part], rtol=1e-10, atol=1e-13, err_msg=f"{name}: {part}"
            )


def test_four_devices_share_the_participants_of_a_population(cohorts_alone):
    """Each device reads and computes a quarter; the numbers equal those of one device."""
    code = """
assert jax.local_device_count() == 4
for name in runs:
    read.clear()
    share(name)
    assert read == 6 * 4 * [1], read  # rounds times devices, of one participant each
    alone, _ = json.loads((pathlib.Path(folder) / f"{name}-alone").read_text())
    each = flops() / alone
    compiled.clear()
    # A quarter, and what all of them compute: the server's noise, say.
    assert each < (0.9 if name == "private" else 0.6), (name, each)
kept = fl.run(simulation("controls"), 6, key=5, shard_over="clients", store=folder + "/kept")
again = fl.run(simulation("controls"), 6, key=5, shard_over="clients", store=folder + "/kept")
np.testing.assert_array_equal(kept.model, again.model)
with pytest.raises(ValueError, match="it differs in devices"):
    fl.run(simulation("controls"), 6, key=5, store=folder + "/kept")
few = fl.Simulation(problem, fl.algorithms.FedAvg(0.1, clients_per_round=3), metrics=["accuracy"])
with pytest.raises(ValueError, match="3 participants .* cannot be shared out evenly over 4"):
    fl.run(few, 2, shard_over="clients")
"""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    process = child(START + COHORTS + code, cohorts_alone, "", 0, 0, XLA_FLAGS=flags)
    codes, errors = ended([process])
    assert codes == [0], errors
    assert_close_to_one_device(cohorts_alone)


#: Networks so large that a CPU takes one client after the other.
LARGE = """
from fljax.problems import model
model.CACHE_BYTES = 0
"""


def test_devices_take_their_own_participants_in_order(cohorts_alone):
    """Two devices, of four participants: each loops over two, where the partitioner alone has both
    loop over four.
    """
    code = """
assert jax.local_device_count() == 2
for name in runs:
    share(name)
    _, alone = json.loads((pathlib.Path(folder) / f"{name}-alone").read_text())  # without a loop
    each = turns()
    compiled.clear()
    assert "2" in each and each.count("4") == alone.count("4"), (name, each)
"""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    code = START + LARGE + COHORTS + code
    process = child(code, cohorts_alone, "", 0, 0, XLA_FLAGS=flags)
    codes, errors = ended([process])
    assert codes == [0], errors
    assert_close_to_one_device(cohorts_alone)


def test_devices_take_their_own_clients_in_memory(tmp_path):
    """Some or all clients, by local steps on batches or gradients of all samples, with parameters
    common to all clients and per client: the numbers equal those of one device.
    """
    code = """
from fljax._core.devices import sharded_over_clients, shares, sharing
from fljax.problems import LeastSquares, Model, Problem, Softmax, SquaredL2
from tests.simulation.test_population_run import CLIENTS, KEY, NETWORK

def networks(algorithm, **settings):
    problem = Model.from_clients(
        NETWORK, KEY, CLIENTS, Softmax(2), SquaredL2(), test=CLIENTS, **settings
    )
    return fl.Simulation(problem, algorithm, metrics=["objective", "client_accuracy"])

def lines(algorithm):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 5, 3)), rng.normal(size=(12, 5))
    problem = Problem(x, y, LeastSquares(), SquaredL2(), 0.3)
    return fl.Simulation(problem, algorithm, metrics=["objective"])

steps = dict(local_steps=3, batch=4)
# What is computed at home is not shared out once more.
with sharing(True):
    seen = [shares(2)]
    sharded_over_clients(lambda rows: (seen.append(shares(2)), rows)[1], [np.zeros(4)])
assert seen == [2, 1]
runs = {
    "some": (networks, fl.algorithms.FedAvg(0.3, clients_per_round=4, batch=4), {"strength": 0.2}),
    "all": (networks, fl.algorithms.FedAvg(0.1, **steps), {"strength": np.arange(12) / 40}),
    "own": (networks, fl.algorithms.FedDyn(0.1, attraction=0.1, **steps), {"strength": 0.2}),
    "whole": (networks, fl.algorithms.FedAvg(0.3, clients_per_round=4, local_steps=2), {}),
    "lines": (lines, fl.algorithms.FedAvg(0.1, clients_per_round=4, **steps), {}),
}
for name, (make, algorithm, settings) in runs.items():
    def scenario(key):
        return make(algorithm, **settings)
    study = dict(seeds=2, rounds=5, record_every=5, keep_models=True, progress=False)
    alone, shared = (fl.sweep(scenario, **study, shard_over=over) for over in ("seeds", "clients"))
    for part in alone:
        np.testing.assert_allclose(
            shared[part], alone[part], rtol=1e-10, atol=1e-13, err_msg=f"{name}: {part}"
        )
"""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    problems = "from fljax.problems import problem\nproblem.CACHE_BYTES = 0\n"
    process = child(START + LARGE + problems + code, tmp_path, "", 0, 0, XLA_FLAGS=flags)
    codes, errors = ended([process])
    assert codes == [0], errors


def test_two_processes_share_the_participants_of_a_population(cohorts_alone):
    code = """
assert jax.process_count() == 2
for name in runs:
    read.clear()
    share(name)
    assert read == 6 * [2], read
"""
    codes, errors = ended(pair(COHORTS + code, cohorts_alone))
    assert codes == [0, 0], errors
    for number in (0, 1):
        assert_close_to_one_device(cohorts_alone, number)


#: The run with the most to keep, each round of it, by processes that share it.
RESUME = """
from tests.study.test_store import die_at

checkpoints.CHECKPOINT_SECONDS = 0
if deadly and number == 0:
    at = {8: (checkpoints.RunFolder, "save", 4), 9: (client_states.ClientStates, "settle", 4)}
    die_at(*at[deadly])
def keep(name, store):
    read.clear()
    options = dict(key=5, record_every=2, shard_over="clients", store=f"{folder}/{store}")
    fl.save(fl.run(simulation(name), 6, **options), f"{folder}/{store}-{number}.nc")
"""


@pytest.mark.parametrize("deadly", [8, 9], ids=["before a checkpoint", "after it, before the rows"])
def test_two_processes_that_were_killed_go_on_together(cohorts_alone, deadly):
    """Bit for bit: the first one writes what both keep, and both read it."""
    code = COHORTS + RESUME
    folder_name = f"whole-{deadly}"
    store = f"kept-{deadly}"
    codes, errors = ended(pair(f"{code}keep('own', {folder_name!r})", cohorts_alone))
    assert codes == [0, 0], errors
    first, second = pair(f"{code}keep('own', {store!r})", cohorts_alone, deadly)
    codes, errors = ended([first])
    assert codes == [-signal.SIGKILL], errors
    codes, _ = ended([second])
    assert codes != [0]
    done = {8: 3, 9: 4}[deadly]
    more = f"""keep('own', {store!r})
assert len(read) == {6 - done}, read  # what was done is not computed again
"""
    codes, errors = ended(pair(code + more, cohorts_alone))
    assert codes == [0, 0], errors
    for number in (0, 1):
        once = checksum(fl.load(cohorts_alone / f"{folder_name}-{number}.nc"))
        assert checksum(fl.load(cohorts_alone / f"{store}-{number}.nc")) == once
    # One that does not see the folder stops both.
    code += f"""
if number:
    checkpoints.RunFolder._load = lambda self: None
with pytest.raises(fl.StoreError, match="find different checkpoints in .*file system"):
    keep("own", {store!r})
"""
    codes, errors = ended(pair(code, cohorts_alone))
    assert codes == [0, 0], errors


def test_a_folder_that_one_process_cannot_hold_stops_both(cohorts_alone):
    code = """
said = "in use by another process" if number == 0 else "cannot be used by another process"
with pytest.raises(fl.StoreError, match=said):
    keep("own", "held")
"""
    locked = checkpoints.RunFolder(cohorts_alone / "held", {})
    codes, errors = ended(pair(COHORTS + RESUME + code, cohorts_alone))
    locked.close()
    assert codes == [0, 0], errors


# SLURM -------------------------------------------------------------------------------------------

#: What ``srun`` does, as far as the guide's script asks it: two tasks, with their variables.
SRUN = """#!/bin/bash
[[ "$1" = --cpus-per-task=4 ]] || exit 2
for task in 0 1; do
    SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_PROCID=$task SLURM_LOCALID=0 "${@:2}" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do
    wait "$task" || exit
done
"""


@pytest.fixture
def batch(tmp_path):
    """Run the guide's ``number``-th batch script, in small, with SLURM's variables set by hand."""
    guide = text("docs/guides/accelerators")
    scripts = re.findall(r"^```bash\n(#!/bin/bash\n#SBATCH.+?)^```", guide, re.S | re.M)
    assert len(scripts) == 2
    (study,) = re.findall(r'write_text\("""(.+?)"""\)', guide, re.S)
    (tmp_path / "study.py").write_text(study)
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)

    def run(number, **variables):
        small = scripts[number].replace("--seeds 1000", "--seeds 8").replace("/20", "/2")
        environment = {
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "SLURM_CPUS_PER_TASK": "4",
        }
        done = subprocess.run(
            ["bash", "-eu", "-c", small],
            cwd=tmp_path,
            env=os.environ | environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.slow
def test_the_guide_s_batch_scripts_run_a_study(batch, tmp_path):
    for task in ("1", "2"):
        batch(0, SLURM_ARRAY_TASK_ID=task)
    fl.merge(tmp_path / "merged", tmp_path / "part-1", tmp_path / "part-2")
    merged = fl.load(tmp_path / "merged")
    assert "done" not in merged  # nothing is missing

    # JAX takes the coordinator's port from the job's number: one of the last 4096.
    with socket.socket() as free:
        for job in range(os.getpid(), os.getpid() + 100):
            if free.connect_ex(("localhost", job % 2**12 + 2**16 - 2**12)):
                break
    batch(1, SLURM_JOB_ID=str(job))
    np.testing.assert_allclose(
        fl.load(tmp_path / "whole").network_deviation, merged.network_deviation, rtol=1e-4
    )
