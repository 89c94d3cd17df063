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
from fljax._core.storage import array_digest, claim, sealed, unsealed
from fljax.study import block_sizes

ROOT = Path(__file__).parents[2]

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
    fl.plotting.save_figure(ax, path)
    plt.close(ax.figure)


def write_page(results, path):
    pytest.importorskip("plotly", reason="pip install 'fljax[report]'")
    fl.report(results, path)


WRITERS = {
    "results.nc": lambda results, tuned, path: fl.save(results, path),
    "table.md": lambda results, tuned, path: fl.table(results).save(path),
    "picture.png": lambda results, tuned, path: save_picture(results, path),
    "picture.pdf": lambda results, tuned, path: save_picture(results, path),
    "tuned.json": lambda results, tuned, path: tuned[0].save(path),
    "page.html": lambda results, tuned, path: write_page(results, path),
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


#: Places where a file is opened for writing: each writes a temporary file and renames it, or writes
#: to a new folder, or does not write results.
DIRECT_WRITERS = {
    ".ci/derive.py": "a source file, which version control keeps",
    "docs/_ext/algorithms.py": "pictures, which every build of the site makes again",
    "docs/_ext/atlas.py": "copies, which every build of the site makes again",
    "docs/_ext/gallery.py": "pictures, which every build of the site makes again",
    "docs/_ext/pages.py": "pages, which every build of the site makes again",
    "experiments/benchmarks/memory.py": "a switch of the kernel, below /proc",
    "experiments/benchmarks/peers/cifar_curves.py": "curves, in another library's environment",
    "experiments/benchmarks/peers/flower_peer.py": "data in a temporary folder",
    "fljax/_core/storage.py": "what all others write by",
    "fljax/_core/compilation_cache.py": "beside, in a folder that is held open",
    "fljax/simulation/population_run.py": "rows of clients, with checksums in a checkpoint",
    "fljax/data/downloads.py": "a download, beside",
    "fljax/models/model_files.py": "a new folder, renamed at the end",
    "fljax/problems/population_files.py": "a new folder, renamed at the end",
    "fljax/study/store.py": "copies for workers in a new folder, with checksums",
}


#: What writes to the file that is its first argument; of other names, to that in ``SECOND``.
FIRST = {"savefig", "imsave", "savez", "savez_compressed", "savetxt", "tofile", "open_memmap"}
FIRST |= {"to_csv", "to_json", "to_latex", "to_markdown", "to_html", "to_netcdf", "to_zarr"}
FIRST |= {"to_excel", "to_parquet", "to_pickle", "save"}
SECOND = {"copyfile", "copy", "copy2", "dump"}

#: Their ``save`` writes a temporary file and renames it.
SAVING_MODULES = {"", "fl", "plotting"}


def in_place(source):
    """The lines of a module that write a file directly under its final name."""
    tree = ast.parse(source)
    in_memory = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "attr", "") in ("BytesIO", "StringIO")
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        of = getattr(node.func, "value", None)
        of = getattr(of, "attr", getattr(of, "id", ""))
        position = 0 if name in FIRST else 1
        if (
            name in FIRST | (SECOND if of in ("shutil", "json", "pickle", "np") else set())
            and len(node.args) > position
            and getattr(node.args[position], "id", "") not in in_memory
            and not (name == "save" and of in SAVING_MODULES)
        ):
            yield node.lineno
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


def test_results_are_never_written_in_place():
    writes = {}
    for part in ("fljax", "experiments", "docs", ".ci"):
        for path in sorted((ROOT / part).rglob("*.py")):
            if lines := list(in_place(path.read_text(encoding="utf-8"))):
                writes[path.relative_to(ROOT).as_posix()] = lines
    assert writes.keys() == DIRECT_WRITERS.keys(), writes


@pytest.mark.parametrize(
    "source",
    [
        "open(path, 'w')",
        "with path.open('wb') as file: pass",
        "open(path, mode='a')",
        "path.write_text(text)",
        "figure.savefig(path)",
        "picture.save(path, optimize=True)",
        "np.save(path, array)",
        "np.savez(folder / 'a.npz', a=array)",
        "frame.to_csv(path, index=False)",
        "results.to_netcdf('a.nc')",
        "shutil.copyfile(one, other)",
    ],
)
def test_writes_in_place_are_detected(source):
    assert list(in_place(source)) == [1]


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "open(path, 'rb')",
        "content = io.BytesIO(); figure.savefig(content)",
        "frame.to_csv(index=False)",
        "fl.save(results, path)",
        "fl.plotting.save_figure(figure, path)",
        "copy.copy(value)",
        "replace_file(path, text)",
    ],
)
def test_reading_and_renaming_is_not_writing_in_place(source):
    assert not list(in_place(source))


# What is read again ------------------------------------------------------------------------------


CONTENTS = [{}, {"a": [1, 0.1, float("inf"), None, "ä"]}, {"b": {"digest": 1}, "a": {}}]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("style", [{}, {"indent": 1, "ensure_ascii": False}])
def test_sealed_text_is_unsealed_for_any_content(content, style):
    assert unsealed(sealed(content, **style)) == content
    assert list(unsealed(sealed(content, **style))) == list(content)


def edited():
    """Texts that differ from the written ones."""
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
def test_a_binary_file_is_recognized_by_its_content(text, tuned, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^it "):
        unsealed(text)
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tuned.json is not what Tuned.save wrote \(it .*restore"):
        fl.Tuned.load(path, tuned[1])
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))
    block_sizes.remember_block("program", 3)
    assert block_sizes.measured_block("program") == 3
    block_sizes.measurements().write_text(text)
    assert block_sizes.measured_block("program") is None
    block_sizes.remember_block("program", 4)
    assert block_sizes.measured_block("program") == 4


@pytest.mark.parametrize("block", [0, -3, 1.5, "8", None, [8]])
def test_a_measured_block_is_a_number_of_seeds(block, tmp_path, monkeypatch):
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path))
    path = block_sizes.measurements()
    path.write_text(sealed({block_sizes._measurement("program"): block}))
    assert block_sizes.measured_block("program") is None


def test_a_saved_tuning_is_loaded_and_other_files_are_refused(tuned, results, tmp_path):
    tuning, methods = tuned
    assert fl.Tuned.load(tuning.save(tmp_path / "tuned.json"), methods).chosen == tuning.chosen
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.json"):
        fl.Tuned.load(tmp_path / "none.json", methods)
    with pytest.raises(ValueError, match="is no text"):
        fl.Tuned.load(fl.save(results, tmp_path / "results.nc"), methods)
    (tmp_path / "other.json").write_text(sealed({"points": {}}))
    with pytest.raises(ValueError, match="is of no tuning"):
        fl.Tuned.load(tmp_path / "other.json", methods)


def test_array_digests_depend_on_every_part():
    arrays = [
        {"a": np.zeros(2)},
        {"b": np.zeros(2)},
        {"a": np.zeros((2, 1))},
        {"a": np.zeros(4, np.float32)},
        {"a": np.array([0.0, -0.0])},
        {"a": np.zeros(1), "b": np.zeros(1)},
    ]
    assert len({array_digest(array) for array in arrays}) == len(arrays)
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
    calls = {
        "merge": lambda: fl.merge("", tmp_path / "one"),
        "sweep": lambda: fl.sweep(lambda key: None, rounds=1, store=""),  # pyright: ignore
    }
    with pytest.raises(ValueError, match="must be the name of a folder, got ''"):
        calls[kind]()
    assert not list(tmp_path.iterdir())
