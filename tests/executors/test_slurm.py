"""SLURM itself, two nodes of this machine: the scripts of the guide, and submitit.

Debian has it: ``apt-get install slurmctld slurmd slurm-client munge``. The daemons have their own
folder, ports of the loopback device and a key of their own, and are stopped in the end.
"""

import importlib.util
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fljax as fl
from fljax.study.saving import checksum
from tests.support.guides import ROOT, text
from tests.support.small_study import STUDY, steps

pytestmark = pytest.mark.slow

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")

CONFIGURATION = """
ClusterName=fljax
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=32000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=32000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def stop(pid_file):
    """End a daemon of this test, and wait for it."""
    if not pid_file.is_file():
        return
    process = int(pid_file.read_text())
    os.kill(process, signal.SIGTERM)
    for _ in range(100):
        if not Path(f"/proc/{process}").exists():
            return
        time.sleep(0.1)
    os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment of programs that use a SLURM of two nodes."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(
            "SLURM is NOT INSTALLED, so its scripts are untested: as root, apt-get install "
            f"slurmctld slurmd slurm-client munge (missing: {', '.join(missing) or 'root'})"
        )
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("munge", "state", "spool-node1", "spool-node2"):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o755)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    host = platform.node().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(host=host, folder=folder, ports=free_ports(3)), encoding="utf-8"
    )
    environment = os.environ | {
        "SLURM_CONF": str(configuration),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    places = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
    places |= {"log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge/{name}" for option, name in places.items()]
    commands = [
        ["munged", "--force", *options],
        ["slurmctld", "-c"],
        ["slurmd", "-c", "-N", "node1"],
        ["slurmd", "-c", "-N", "node2"],
    ]
    try:
        for command in commands:
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        deadline = time.monotonic() + 60
        while "idle" not in (state := answer(["sinfo", "-h", "-o", "%t %D"], environment)):
            assert time.monotonic() < deadline, state
            time.sleep(0.5)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("SLURM_CONF", "PATH", "PYTHONPATH"):
                patch.setenv(name, environment[name])
            yield environment
    finally:
        for name in ("slurmd-node1.pid", "slurmd-node2.pid", "slurmctld.pid", "munge/pid"):
            stop(folder / name)


def answer(command, environment, folder=None):
    """What a command prints."""
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def submitted(number, folder, environment):
    """Submit the guide's ``number``-th batch script, in small, and wait for its end."""
    guide = text("docs/guides/accelerators")
    scripts = re.findall(r"^```bash\n(#!/bin/bash\n#SBATCH.+?)^```", guide, re.S | re.M)
    (study,) = re.findall(r'write_text\("""(.+?)"""\)', guide, re.S)
    (folder / "study.py").write_text(study)
    small = scripts[number].replace("--seeds 1000", "--seeds 8").replace("/20", "/2")
    (folder / "job.sh").write_text(small.replace("--array=1-20", "--array=1-2"))
    answer(["sbatch", "job.sh"], environment, folder)
    deadline = time.monotonic() + 300
    while answer(["squeue", "-h"], environment):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return "".join(path.read_text() for path in sorted(folder.glob("slurm-*.out")))


def test_the_guide_s_scripts_run_a_study(slurm, tmp_path):
    log = submitted(0, tmp_path, slurm)
    assert log.count("runs of 20 rounds are done") == 2, log
    fl.merge(tmp_path / "merged", tmp_path / "part-1", tmp_path / "part-2")
    merged = fl.load(tmp_path / "merged")
    assert "done" not in merged  # nothing is missing
    # The names of these nodes are not names of machines, as they are on a cluster.
    address = f"127.0.0.1:{free_ports(1)[0]}"
    log = submitted(1, tmp_path, slurm | {"JAX_COORDINATOR_ADDRESS": address})
    assert (tmp_path / "whole").is_dir(), log
    np.testing.assert_allclose(
        fl.load(tmp_path / "whole").network_deviation, merged.network_deviation, rtol=1e-4
    )


def test_jobs_of_submitit_compute_a_study(slurm, tmp_path):
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("submitit is NOT INSTALLED, so it is untested: pip install 'fljax[submitit]'")
    parameters = {"timeout_min": 5, "cpus_per_task": 2}
    with fl.executors.submitit(
        tmp_path / "jobs", jobs=2, cluster="slurm", parameters=parameters
    ) as executor:
        results = fl.sweep(steps, **STUDY, store=tmp_path / "store", executor=executor)
    assert checksum(results) == checksum(fl.sweep(steps, **STUDY))
    assert len(list((tmp_path / "jobs").glob("*_log.out"))) == 2
