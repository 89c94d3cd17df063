"""What results hold in memory: as little as can be, as much as announced, or nothing at all."""

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fljax as fl
from fljax._core import memory
from fljax._core.memory import human
from fljax.study import block_sizes, executor
from fljax.study.collection import Collection
from fljax.study.store import Block

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.core

POINTS = ["a", "b"]
SEEDS = [0, 1, 2]
RECORDS = 6


def stretches(counts, cuts):
    """Blocks of the seeds {0, 2} and {1}, in stretches, of counts ``[C, S, R]``."""
    pairs = np.stack([counts >> 31, counts & (2**31 - 1)], axis=-1).astype(np.uint32)
    for first, last in itertools.pairwise(cuts):
        for seeds in ([0, 2], [1]):
            of_block = pairs[:, seeds, first:last].swapaxes(0, 1)
            loss = np.full(of_block.shape[:3], 1.0)
            yield Block(POINTS, seeds, first, False, {"messages": of_block, "loss": loss}, {})


def naive(counts, completed):
    """NaN where nothing is yet."""
    sent = np.cumsum(counts, axis=-1)
    recorded = np.arange(RECORDS) < completed[..., None]
    return sent if recorded.all() else np.where(recorded, sent, np.nan)


def messages(collection):
    return collection.dataset({"point": POINTS}, 1, {}).messages.values


def collect(blocks):
    collection = Collection(POINTS, (2,), SEEDS, RECORDS)
    for block in blocks:
        collection.add(block)
        yield collection


EQUAL_COUNTS = np.broadcast_to(np.array([5, 0, 2**40, 7, 7, 1]), (2, 3, RECORDS))


def differing(*where):
    counts = EQUAL_COUNTS.copy()
    counts[where] += 1
    return counts


@pytest.mark.parametrize("cuts", [(0, 6), (0, 2, 3, 6)])
@pytest.mark.parametrize(
    "counts",
    [
        EQUAL_COUNTS,
        differing(1, 1, 5),
        differing(0, 2, 0),
        differing(1, 0, 2),
        differing(slice(None), 1),
    ],
    ids=["alike", "last", "first", "middle", "a seed"],
)
def test_counts_equal_those_of_every_run_at_any_time(counts, cuts):
    for collection in collect(stretches(counts, cuts)):
        np.testing.assert_array_equal(
            messages(collection), naive(counts, collection.finished_records)
        )
    assert collection.done.all()


def test_stopped_runs_send_nothing_more():
    blocks = [block._replace(stopped=True) for block in stretches(EQUAL_COUNTS[..., :2], (0, 2))]
    *_, collection = collect(blocks)
    sent = np.cumsum(EQUAL_COUNTS, axis=-1)
    sent[..., 2:] = sent[..., 1:2]
    np.testing.assert_array_equal(messages(collection), sent)


def test_a_count_of_some_points_is_missing_at_the_others():
    """Whole numbers and switches keep their missing values over several stretches."""
    counts = {"number": np.full((3, 1, RECORDS), 3), "met": np.full((3, 1, RECORDS), True)}
    more = {"loss": np.ones((3, 1, RECORDS))}
    first_block = Block(["a"], SEEDS, 0, False, counts | more, {})
    *_, collection = collect([first_block, Block(["b"], SEEDS, 0, False, more, {})])
    assert collection.done.all()
    result = collection.dataset({"point": POINTS}, 1, {})
    assert "done" not in result
    for name, value in {"number": 3, "met": 1}.items():
        assert (result[name].sel(point="a") == value).all()
        assert result[name].sel(point="b").isnull().all()


def test_equal_traffic_of_all_runs_is_stored_once():
    *_, collection = collect(stretches(EQUAL_COUNTS, (0, 6)))
    assert not any(messages(collection).strides[:-1])


def scenario(key, participation=None, **options):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=4, samples=5, dim=2),
        algorithm=fl.algorithms.FedAvg(0.05, epochs=1),
        participation=participation,
        metrics=["normalized_error"],
        **options,
    )


def random_participation_scenario(key):
    return scenario(key, fl.participation.Bernoulli(0.5))


def bytes_held(dataset):
    """Bytes of what runs have each for themselves."""
    values = [variable.values for variable in dataset.data_vars.values()]
    return sum(v.nbytes for v in values if v.ndim == 1 or any(v.strides[:-1]))


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("run", "name"), [(random_participation_scenario, "results_at_most"), (scenario, "results")]
)
def test_a_plan_announces_the_memory_of_results(run, name):
    options = {"rounds": 40, "seeds": 6, "keep_models": True}
    plan = fl.plan(run, **options)
    announced = getattr(plan.parts[0], name)
    assert bytes_held(fl.sweep(run, **options)) == announced
    assert human(announced) in str(plan)


def only(monkeypatch, free):
    """This many bytes are free on this machine, and small results are compared with them too."""
    monkeypatch.setattr(memory, "host_memory", lambda: free)
    monkeypatch.setattr(memory, "SMALL_BYTES", 0)


def planted(monkeypatch, folder, membership, files):
    """A machine whose control groups are as these files say."""
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "membership").write_text(membership)
    monkeypatch.setattr(memory, "CGROUP_MEMBERSHIP", folder / "membership")
    monkeypatch.setattr(memory, "CGROUP_ROOT", folder / "groups")
    memory._free_memory.cache_clear()


V1 = "4:cpu:/other\n9:memory:/job/step\n0::/\n"
V2 = "0::/job/step\n"


@pytest.mark.parametrize(
    ("membership", "files", "free"),
    [
        (V2, {"job/step/memory.max": "max", "job/memory.max": "5000\n"}, 5000 - 3000 + 200),
        (V2, {"job/step/memory.max": "4000\n", "job/memory.max": "5000\n"}, 4000 - 3000 + 200),
        (V2, {"job/memory.max": "1000\n"}, 0),  # lowered below the current use
        (V2, {"memory.max": "6000\n"}, 6000 - 3000 + 200),  # a container, with its own root
        (V1, {"memory/job/memory.limit_in_bytes": "5000\n"}, 5000 - 3000 + 200),
        (V1, {"memory/memory.limit_in_bytes": "6000\n"}, 6000 - 3000 + 200),  # a container
        (V1, {"memory/job/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        (V1, {"memory/job/step/memory.limit_in_bytes": "not a number"}, None),
        (V2, {}, None),
    ],
)
def test_a_limit_of_a_job_or_a_container_bounds_the_free_memory(
    monkeypatch, tmp_path, membership, files, free
):
    used = {}
    for file_name in files:
        group = file_name.rpartition("memory.")[0]
        used |= {f"{group}memory.{name}": "3000\n" for name in ("current", "usage_in_bytes")}
        used[f"{group}memory.stat"] = "anon 7\ninactive_file 200\ntotal_inactive_file 200\n"
    planted(monkeypatch, tmp_path, membership, used | files)
    monkeypatch.setattr(memory, "_machine_memory", lambda: 10**9)
    assert memory.host_memory() == (10**9 if free is None else free)
    memory._free_memory.cache_clear()


def test_without_control_groups_the_machine_s_memory_is_free(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CGROUP_MEMBERSHIP", tmp_path / "none")
    assert list(memory._group_memory()) == []


@pytest.mark.slow
def test_results_that_do_not_fit_are_refused_before_computation(monkeypatch):
    need = fl.plan(scenario, rounds=40, seeds=6).parts[0].results
    monkeypatch.setattr(block_sizes, "memory_at_hand", lambda: 2**30)
    only(monkeypatch, need)

    def never(*_):
        pytest.fail("a block was computed")

    monkeypatch.setattr("fljax.study.executor.StudyRun._run_segments", never)
    with pytest.raises(MemoryError, match=r"dataset of 6 runs takes .+ at hand; record less often"):
        fl.sweep(scenario, rounds=40, seeds=6)


@pytest.mark.slow
def test_traffic_that_turns_out_to_differ_and_does_not_fit_is_refused(monkeypatch):
    part = fl.plan(random_participation_scenario, rounds=40, seeds=6).parts[0]
    monkeypatch.setattr(block_sizes, "memory_at_hand", lambda: 2**30)
    only(monkeypatch, 2 * part.results)
    assert 2 * part.results < part.results_at_most
    with pytest.raises(MemoryError, match=r"traffic of 6 runs, which differs .* takes"):
        fl.sweep(random_participation_scenario, rounds=40, seeds=6)


PEAK = """
import json, resource, jax
import fljax as fl
from tests.study.test_collection import {name} as run

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

asked = dict(rounds=500, seeds=2400)
plan = fl.plan(run, **asked)
fl.sweep(run, rounds=500, seeds=200, block=plan.parts[0].seeds_per_block).messages.sum()
before = peak()
results = fl.sweep(run, **asked)
part = plan.parts[0]
print(json.dumps([peak() - before, part.results, part.results_at_most, part.memory * part.workers]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scenario", "random_participation_scenario"])
def test_a_study_takes_the_memory_that_was_announced(name):
    """Up to 30 MB, which Python and JAX need in part for a tenth as many runs as well."""
    command = [sys.executable, "-c", PEAK.format(name=name)]
    done = subprocess.run(command, check=True, stdout=-1, text=True, cwd=ROOT)
    grown, announced, at_most, flying = json.loads(done.stdout)
    assert at_most > 10 * announced
    assert (
        grown < (at_most if name == "random_participation_scenario" else announced) + flying + 30e6
    )


@pytest.mark.slow
def test_finished_blocks_do_not_pile_up_before_collection(monkeypatch):
    """However slow it is, each worker has one finished block and one that it computes."""
    waiting = []
    keep = executor.StudyRun._collect_and_report

    def slow(run, block):
        time.sleep(0.05)
        waiting.append(len(run.uncollected))
        keep(run, block)

    monkeypatch.setattr(executor.StudyRun, "_collect_and_report", slow)
    fl.sweep(scenario, rounds=4, seeds=40, block=1, workers=2)
    assert len(waiting) >= 8
    assert max(waiting) <= 2 + 2 + 1  # in the queue, at its door, being collected


def test_equal_counts_are_stored_once_in_a_block():
    equal = np.broadcast_to(np.arange(6, dtype=np.uint32).reshape(3, 2), (4, 5, 3, 2)).copy()
    once = executor._without_repeats(equal)
    np.testing.assert_array_equal(once, equal)
    assert not any(once.strides[:2])
    equal[2, 3, 1, 0] += 1
    assert executor._without_repeats(equal) is equal
