"""Results: provenance, saving and loading without loss, damage detected."""

import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax import _folders


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
def test_provenance_says_how_the_numbers_came_about(study):
    for name in ("cite", "jax", "jaxlib", "device", "dtype", "prng", "matmul_precision", "code"):
        assert study.attrs[name], name
    assert study.attrs["dtype"] == "float64"
    assert study.attrs["root"] == 0
    assert len(study.attrs["scenario_hash"]) == 16


@pytest.mark.slow
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
@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.99])
def test_a_file_cut_short_is_refused(study, tmp_path, kept):
    path = fl.save(study, tmp_path / "study.nc")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content) if kept < 1 else kept)])
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


def test_a_failed_save_leaves_the_old_file_and_no_litter(study, tmp_path, monkeypatch):
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
def test_hdf5_never_meets_a_full_disk(study, tmp_path, monkeypatch):
    """It kills the interpreter after the error."""

    def full(file, mode):
        return open("/dev/full", mode)

    monkeypatch.setattr(_folders, "open", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        fl.save(study, tmp_path / "study.nc")
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
