"""What a user's files are replaced by, and how a file that is read again is known."""

import ast
import json
import os
import stat
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

import fljax as fl
from fljax._folders import array_digest, claim, sealed, unsealed
from fljax.study import machine

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def results():
    def scenario(key):
        return fl.Simulation(
            problem=fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2),
            network=fl.graphs.ring(3),
            algorithm=fl.algorithms.ConventionalFL(0.1),
            metrics=["normalized_error"],
        )

    return fl.sweep(scenario, rounds=3, seeds=2, progress=False)


@pytest.fixture(scope="module")
def tuned():
    def scenario(key, algorithm):
        return fl.Simulation(
            problem=fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2),
            network=fl.graphs.ring(3),
            algorithm=algorithm,
            metrics=["normalized_error"],
        )

    methods = {"one": (fl.algorithms.ConventionalFL, {"step_size": (1e-2, 1e-1)})}
    settings = {"rounds": 2, "seeds": 2, "points": 3, "extensions": 0, "refinements": 0}
    return fl.tune(scenario, methods, metric="normalized_error", **settings), methods


def save_picture(results, path):
    ax = fl.plotting.learning_curves(results)
    fl.plotting.save(ax, path)
    plt.close(ax.figure)


WRITERS = {
    "results.nc": lambda results, tuned, path: fl.save(results, path),
    "table.md": lambda results, tuned, path: fl.table(results).save(path),
    "picture.png": lambda results, tuned, path: save_picture(results, path),
    "picture.pdf": lambda results, tuned, path: save_picture(results, path),
    "tuned.json": lambda results, tuned, path: tuned[0].save(path),
}


@pytest.fixture(params=WRITERS)
def write(request, results, tuned):
    """A function that writes a file of the user's, and the name of the file."""
    return lambda path: WRITERS[request.param](results, tuned, path), request.param


def test_on_a_full_disk_the_old_file_stays(write, tmp_path, monkeypatch):
    writes, name = write
    (tmp_path / name).write_bytes(b"of before")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*\(No space left.*; make room"):
        writes(tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"of before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_links_and_permissions_stay_and_devices_are_not_replaced(write, tmp_path):
    writes, name = write
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / name
    target.write_bytes(b"of before")
    target.chmod(0o600)
    (tmp_path / name).symlink_to(target)
    writes(tmp_path / name)
    assert (tmp_path / name).is_symlink()
    assert target.read_bytes() != b"of before"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    device = tmp_path / f"device{target.suffix}"
    device.symlink_to("/dev/null")
    with pytest.raises(FileExistsError, match="is no regular file and is not replaced"):
        writes(device)
    assert device.is_char_device()
    with pytest.raises(FileNotFoundError, match=r"no folder .*none; create it first"):
        writes(tmp_path / "none" / name)


#: Where a file is opened for writing, or written: each writes beside and renames, or a new folder,
#: or a file that nobody reads again.
OWN = {
    "fljax/_folders.py": "what all others write by",
    "fljax/_programs.py": "beside, in a folder that is held open",
    "fljax/cohorts.py": "rows of clients, with checksums in a checkpoint",
    "fljax/data/files.py": "a download, beside",
    "fljax/populations.py": "a new folder, renamed at the end",
}


def in_place(path):
    """The lines of a module that write a file under its own name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        texts = {
            a.value
            for a in [*node.args, *(k.value for k in node.keywords)]
            if isinstance(a, ast.Constant) and isinstance(a.value, str)
        }
        opened = name == "open" and any(
            set(text) <= set("rwxab+t") and set(text) & set("wxa+") for text in texts
        )
        if opened or name in ("write_text", "write_bytes"):
            yield node.lineno


@pytest.mark.parametrize("part", ["fljax", "experiments"])
def test_nothing_else_is_written_in_place(part):
    found = {}
    for path in sorted((ROOT / part).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if "benchmarks" not in name and name not in OWN and (lines := list(in_place(path))):
            found[name] = lines
    assert not found


# What is read again ------------------------------------------------------------------------------


CONTENTS = [{}, {"a": [1, 0.1, float("inf"), None, "ä"]}, {"b": {"digest": 1}, "a": {}}]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("style", [{}, {"indent": 1, "ensure_ascii": False}])
def test_sealed_is_unsealed_whatever_it_looks_like(content, style):
    assert unsealed(sealed(content, **style)) == content
    assert list(unsealed(sealed(content, **style))) == list(content)


def edited():
    """Texts that are not what was written."""
    text = sealed({"value": 1.5, "name": "one"})
    yield "cut", text[:-5]
    yield "other number", text.replace("1.5", "2.5")
    yield "other name", text.replace('"one"', '"two"')
    yield "without digest", json.dumps({"value": 1.5})
    yield "list", "[]"
    yield "number", "3"
    yield "empty", ""
    yield "deep", "[" * 100_000
    yield "other type", text.replace("1.5", '"1.5"')


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in edited()])
def test_a_file_of_numbers_is_known_for_what_it_is(text, tuned, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^it "):
        unsealed(text)
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tuned.json is not what Tuned.save wrote \(it .*restore"):
        fl.Tuned.load(path, tuned[1])
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))
    machine.remember_block("program", 3)
    assert machine.measured_block("program") == 3
    machine.measurements().write_text(text)
    assert machine.measured_block("program") is None
    machine.remember_block("program", 4)
    assert machine.measured_block("program") == 4


@pytest.mark.parametrize("block", [0, -3, 1.5, "8", None, [8]])
def test_a_measured_block_is_a_number_of_seeds(block, tmp_path, monkeypatch):
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path))
    path = machine.measurements()
    path.write_text(sealed({machine._measurement("program"): block}))
    assert machine.measured_block("program") is None


def test_a_tuning_that_was_saved_is_loaded_and_another_file_is_none(tuned, results, tmp_path):
    one, methods = tuned
    assert fl.Tuned.load(one.save(tmp_path / "tuned.json"), methods).chosen == one.chosen
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.json"):
        fl.Tuned.load(tmp_path / "none.json", methods)
    with pytest.raises(ValueError, match="is no text"):
        fl.Tuned.load(fl.save(results, tmp_path / "results.nc"), methods)
    (tmp_path / "other.json").write_text(sealed({"points": {}}))
    with pytest.raises(ValueError, match="is of no tuning"):
        fl.Tuned.load(tmp_path / "other.json", methods)


def test_arrays_are_told_apart_by_every_part_of_them():
    arrays = [
        {"a": np.zeros(2)},
        {"b": np.zeros(2)},
        {"a": np.zeros((2, 1))},
        {"a": np.zeros(4, np.float32)},
        {"a": np.array([0.0, -0.0])},
        {"a": np.zeros(1), "b": np.zeros(1)},
    ]
    assert len({array_digest(one) for one in arrays}) == len(arrays)
    assert array_digest({"a": np.zeros(1), "b": np.ones(1)}) == array_digest(
        {"b": np.ones(1), "a": np.zeros(1)}
    )


# The door of all stores --------------------------------------------------------------------------


def test_a_folder_that_is_new_empty_or_of_its_kind_is_opened(tmp_path):
    assert claim(tmp_path / "new" / "one", "mark", "store").is_dir()
    (tmp_path / "new" / "one" / ".hidden").touch()
    claim(tmp_path / "new" / "one", "mark", "store")
    (tmp_path / "new" / "one" / "mark").touch()
    (tmp_path / "new" / "one" / "other").touch()
    claim(tmp_path / "new" / "one", "mark", "store")
    with pytest.raises(fl.StoreError, match="is no run of fljax and is not empty"):
        claim(tmp_path / "new" / "one", "run.json", "run")


@pytest.mark.parametrize("kind", ["sweep", "merge"])
def test_a_store_needs_a_name(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {
        "merge": lambda: fl.merge("", tmp_path / "one"),
        "sweep": lambda: fl.sweep(lambda key: None, rounds=1, store=""),  # pyright: ignore
    }
    with pytest.raises(ValueError, match="must be the name of a folder, got ''"):
        asked[kind]()
    assert not list(tmp_path.iterdir())
