"""Results: provenance, saving and loading without loss, damage detected."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax._core import storage
from fljax._core.devices import configured


@pytest.fixture(scope="module")
def study():
    def scenario(key, budget, name):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=5, samples=8, dim=2),
            network=fl.graphs.ring(5),
            algorithm=fl.algorithms.ZCDPNFL(1.0, 0.3),
            privacy=fl.privacy.ZCDP(budget),
            metrics=["normalized_error", "consensus_error"],
        )

    grid = {"budget": [1.0, 3.0], "name": ["Åse", "two"]}
    return fl.sweep(scenario, rounds=6, seeds=2, grid=grid, keep_models=True)


@pytest.mark.slow
def test_saved_is_loaded(study, tmp_path):
    study["model"][0, 0, 0, 0, 0] = np.nan
    path = fl.save(study, tmp_path / "study.nc")
    loaded = fl.load(path)
    xr.testing.assert_identical(loaded, study)
    for name in study.variables:
        assert loaded[name].dtype.kind == study[name].dtype.kind
        if study[name].dtype.kind not in "UOT":
            assert loaded[name].dtype == study[name].dtype
    assert [p.name for p in tmp_path.iterdir()] == ["study.nc"]


@pytest.mark.slow
def test_results_become_a_data_frame_of_every_run_and_round(study):
    frame = study.drop_dims("client").to_dataframe()
    assert [*frame.index.names] == ["budget", "name", "seed", "round"]
    assert len(frame) == 2 * 2 * 2 * 6


@pytest.mark.slow
def test_provenance_records_the_origin_of_numbers(study):
    for name in ("cite", "jax", "jaxlib", "device", "dtype", "prng", "matmul_precision", "code"):
        assert study.attrs[name], name
    assert study.attrs["dtype"] == "float64"
    assert study.attrs["root"] == 0
    assert len(study.attrs["scenario_hash"]) == 16


@pytest.mark.slow
def test_the_precision_is_that_of_the_numbers_and_not_of_the_setting(tmp_path):
    """Data created before double precision was turned on keep their precision."""

    def single_data():
        return fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2)

    with configured("jax_enable_x64", False):
        single = single_data()

    def scenario(key, precision):
        problem = single if precision == "single" else single_data()
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=["objective"])

    for names, name in (
        (["single"], "float32"),
        (["double"], "float64"),
        (["single", "double"], "float32; float64"),
    ):
        grid = {"precision": fl.static(names)}
        results = fl.sweep(scenario, rounds=2, grid=grid, store=tmp_path / name, progress=False)
        assert results.attrs["dtype"] == fl.load(tmp_path / name).attrs["dtype"] == name
        if len(names) == 1:
            assert results.objective.dtype == name


def test_the_scenario_hash_follows_the_program():
    def hashed(penalty):
        def scenario(key):
            return fl.Simulation(
                problem=fl.problems.ridge(key, clients=5, samples=8, dim=2),
                network=fl.graphs.ring(5),
                algorithm=fl.algorithms.ZCDPNFL(penalty, 0.3),
            )

        return fl.sweep(scenario, rounds=3).attrs["scenario_hash"]

    assert hashed(1.0) == hashed(1.0)
    assert hashed(1.0) != hashed(2.0)


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 100, 0.5, 0.99])
def test_a_file_cut_short_is_refused(study, tmp_path, length):
    path = fl.save(study, tmp_path / "study.nc")
    content = path.read_bytes()
    path.write_bytes(content[: int(length * len(content) if length < 1 else length)])
    with pytest.raises(ValueError, match=r"study.nc (is not a readable|does not match)"):
        fl.load(path)


@pytest.mark.slow
def test_an_altered_file_is_refused(study, tmp_path):
    path = fl.save(study, tmp_path / "study.nc")
    altered = xr.load_dataset(path, engine="h5netcdf")
    altered["normalized_error"][0, 0, 0, 0] *= 1.001
    altered.to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ValueError, match="does not match its own checksum"):
        fl.load(path)


def test_a_missing_file_and_folder_are_named(study, tmp_path):
    with pytest.raises(FileNotFoundError, match="no results file"):
        fl.load(tmp_path / "none.nc")
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere; create it first"):
        fl.save(study, tmp_path / "nowhere" / "study.nc")


def test_an_unwritable_folder_is_named(study, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PermissionError, match=r"cannot write .*study.nc \(Permission denied\)"):
        fl.save(study, tmp_path / "study.nc")


def test_a_failed_save_keeps_the_old_file_and_leaves_no_temporary_one(study, tmp_path, monkeypatch):
    path = fl.save(study, tmp_path / "study.nc")
    before = path.read_bytes()

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"cannot write .*\(No space left.*; make room") as caught:
        fl.save(study, path)
    assert caught.value.errno == 28
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["study.nc"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device")
def test_hdf5_never_writes_to_a_full_disk(study, tmp_path, monkeypatch):
    """Writing to a full disk would kill the interpreter after the error."""

    def full(file, mode):
        return open("/dev/full", mode)

    monkeypatch.setattr(storage, "open", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        fl.save(study, tmp_path / "study.nc")
    assert not list(tmp_path.iterdir())


NAMES = ["test/accuracy", "a/b/c", ".", "a\0b", "a b", "ä%", "1", "name_0"]


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_may_have_any_name(name, tmp_path):
    data = xr.Dataset({name: ("seed", [0.5, 0.25]), "name_0": ("seed", [1, 2])}, {"seed": [0, 1]})
    xr.testing.assert_identical(fl.load(fl.save(data, tmp_path / "study.nc")), data)


def test_an_axis_may_have_any_name(tmp_path):
    data = xr.Dataset({"error": (("a/b", "c/d"), [[0.5, 0.25]])}, {"a/b": ["one"]})
    xr.testing.assert_identical(fl.load(fl.save(data, tmp_path / "study.nc")), data)


def test_a_study_with_a_metric_of_a_path_is_kept_and_saved(tmp_path):
    def scenario(key):
        return fl.Simulation(
            problem=fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2),
            network=fl.graphs.ring(3),
            algorithm=fl.algorithms.ConventionalFL(0.1),
            metrics=[fl.metrics.Metric("test/error", lambda now: jnp.sum(now.model), "error")],
        )

    study = fl.sweep(scenario, rounds=2, seeds=2, store=tmp_path / "kept", progress=False)
    xr.testing.assert_equal(fl.load(tmp_path / "kept")["test/error"], study["test/error"])
    xr.testing.assert_equal(fl.load(fl.save(study, tmp_path / "study.nc")), study)


def part(name, seeds, kind):
    values = np.arange(seeds)[None] + 1
    return xr.Dataset(
        {
            "error": (("algorithm", "seed"), values / 2),
            "messages": (("algorithm", "seed"), values.astype(kind)),
            "told": ("algorithm", [name]),
        },
        {"algorithm": [name], "seed": range(seeds)},
    )


@pytest.mark.parametrize("kind", [bool, np.int8, np.int64, np.uint16, np.float16, np.float32])
@pytest.mark.parametrize("chunks", [{}, {"error": {"chunksizes": (1, 2)}}])
def test_loaded_files_may_be_joined_and_saved(kind, chunks, tmp_path):
    """With names of other lengths, and counts with holes where the other has more seeds."""
    parts = [part("a", 2, kind), part("much longer", 3, kind)]
    loaded = []
    for number, loaded_part in enumerate(parts):
        for name, encoding in chunks.items():
            loaded_part[name].encoding = encoding if number == 0 else {}
        loaded.append(fl.load(fl.save(loaded_part, tmp_path / f"{number}.nc")))
        assert not any(variable.encoding for variable in loaded[-1].variables.values())
    joined = xr.concat(loaded, "algorithm", join="outer")
    xr.testing.assert_identical(fl.load(fl.save(joined, tmp_path / "whole.nc")), joined)
    # As xarray reads them, with the encodings of their files.
    opened = [
        xr.open_dataset(tmp_path / f"{number}.nc", engine="h5netcdf").load() for number in (0, 1)
    ]
    joined = xr.concat(opened, "algorithm", join="outer", combine_attrs="drop")
    xr.testing.assert_equal(fl.load(fl.save(joined, tmp_path / "whole.nc")), joined)


UNKEPT = {
    "a duration": np.array([3], "m8[ns]"),
    "objects": np.array([1.5], object),
    "nothing": np.array([None], object),
    "other bytes": np.array([1], ">i4"),
    "a date by its unit": xr.Variable("seed", [1.0], {"units": "days since 2000-01-01"}),
    "a filling": xr.Variable("seed", [1], {"_FillValue": 1}),
    "a scale": xr.Variable("seed", [1], {"scale_factor": 2.0}),
}


@pytest.mark.parametrize("values", UNKEPT.values(), ids=UNKEPT)
def test_lossy_saving_is_refused(values, tmp_path):
    variable = values if isinstance(values, xr.Variable) else ("seed", values)
    with pytest.raises(ValueError, match=r"study.nc would not hold 'odd' as it is, .* give it as"):
        fl.save(xr.Dataset({"odd": variable}), tmp_path / "study.nc")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_only_files_are_replaced(study, tmp_path):
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    for name in ("device", "folder"):
        with pytest.raises(FileExistsError, match=f"{name} is no regular file and is not replaced"):
            fl.save(study, tmp_path / name)
    assert (tmp_path / "device").is_char_device()
    (tmp_path / "link").symlink_to("study.nc")
    fl.load(fl.save(study, tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "study.nc").is_file()
