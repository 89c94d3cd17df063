"""Saving and loading results without loss, with detection of damaged files."""

import hashlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

import h5netcdf
import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.storage import replace_file
from fljax.privacy.releasing import released
from fljax.study.collection import read

#: Encodings that affect only the layout of a variable in a file, not its values.
LAYOUT_ENCODINGS = {"chunksizes", "complevel", "compression", "fletcher32", "shuffle", "zlib"}

#: Attributes by which readers of netCDF files decode values.
DECODED_ATTRIBUTES = {
    *("_FillValue", "_Unsigned", "add_offset", "calendar", "dtype", "missing_value"),
    "scale_factor",
}

#: The attribute with the original names of variables whose names a file cannot have.
NAMES_ATTRIBUTE = "fljax_names"


@checked
def save(
    dataset: xr.Dataset,
    path: str | os.PathLike,
    release: bool = False,
    public: Sequence[str] = (),
) -> Path:
    """Write results to one netCDF-4 file, atomically.

    A file of private results holds more than their budget covers: metrics and exact models, and the
    root and seeds from which the noise can be drawn again (the attribute ``not_covered`` lists
    all of it). ``release=True`` writes the rest: the ledger, released models and public settings.

    Args:
      dataset: the results.
      path: of the file.
      release: whether to leave out everything in private results that their budget does not cover
        (:func:`fljax.privacy.not_covered`). Seeds are numbered from 0 on.
      public: with ``release``, names of metrics to keep. You declare that they are computed from
        released models and data without protection alone.

    Raises:
      OSError: the folder is missing or not writable, the disk is full, or the path is not that of a
        file (see the message); an existing file is left unchanged.
      TypeError, ValueError: values that the file would not hold as they are, with the variable
        named; nothing is written.
      ValueError: a release of runs that are nominal or have no budget, whose noise can be drawn
        again by guessing seeds (run with ``noise_seed=``), or whose settings were chosen by private
        results at a cost that was not counted; public metrics without a release, or of exact
        models.

    Guarantees:
      What a release contains is covered by the budget in its ledger: of one run if it holds one
      seed, otherwise ``fl.privacy.spent(results, delta, seeds="all")``. Values of the grid and
      the scenario's own settings count as public.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2).clipped(1),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5),
      ...     model="released",
      ... )
      >>> results = fl.run(simulation, rounds=3, noise_seed="entropy")
      >>> path = save(results, getfixture("tmp_path") / "released.nc", release=True)
      >>> released = load(path)
      >>> released.attrs["not_covered"], "model" in released, "gradient_norm" in released
      ('nothing', True, False)
    """
    path = Path(path)
    checks.switch("release", release)
    if release:
        dataset = released(dataset, tuple(public))
    elif public:
        raise ValueError("public= names metrics that a release keeps; pass release=True with it.")
    content = io.BytesIO()  # in memory: HDF5 does not recover from a failed write
    with h5netcdf.File(content, "w") as file:
        _writable(dataset).dump_to_store(H5NetCDFStore(file))
    _check_round_trip(dataset, content, path)
    return replace_file(path, content.getvalue())


@checked
def load(path: str | os.PathLike) -> xr.Dataset:
    """Read a file written by :func:`save`, or the store of a study, and check that it is intact.

    A store may be read while its study is running, by any user with read access to its files.

    Raises:
      FileNotFoundError: no such file.
      StoreError: a folder that is not a store, or holds files of another study.
      ValueError: the file is truncated, altered, or not a results file.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(0.1),
      ...     metrics=["normalized_error"],
      ... )
      >>> file = getfixture("tmp_path") / "results.nc"
      >>> path = fl.save(fl.run(simulation, rounds=5), file)
      >>> fl.load(path)["normalized_error"].shape
      (5,)
    """
    path = Path(path)
    if path.is_dir():
        return read(path)
    if not path.is_file():
        raise FileNotFoundError(f"no results file {path}.")
    try:
        with _opened(path) as opened:
            dataset = opened.load().drop_encoding()  # a file written from it may be different
        dataset = dataset.rename(json.loads(dataset.attrs.pop(NAMES_ATTRIBUTE, "{}")))
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable results file (cut short, or not written by fljax.save): "
            f"{error}. Run the study again, or restore the file."
        ) from error
    if "checksum" not in dataset.attrs or dataset.attrs.pop("checksum") != checksum(dataset):
        raise ValueError(
            f"{path} does not match its own checksum: it was altered after it was saved. Run the "
            "study again, or restore the file."
        )
    return dataset


def _writable(dataset: xr.Dataset) -> xr.Dataset:
    """A dataset as it is written: with a checksum and valid names.

    Encodings of the file from which values were read are dropped, except for the layout.
    """
    signed = dataset.assign_attrs(checksum=checksum(dataset))
    names = [str(name) for name in {**dataset.sizes, **dataset.variables}]
    impossible = [name for name in names if name == "." or {"/", "\0"} & {*name}]
    new_names = {name: f"name_{i}" for i, name in enumerate(impossible)}
    while {*new_names.values()} & {*names}:
        new_names = {name: f"{new}_" for name, new in new_names.items()}
    if new_names:
        original_names = {new: name for name, new in new_names.items()}
        signed = signed.rename(new_names).assign_attrs(
            {NAMES_ATTRIBUTE: json.dumps(original_names)}
        )
    signed = signed.copy()
    for variable in signed.variables.values():
        encoding = {
            key: value for key, value in variable.encoding.items() if key in LAYOUT_ENCODINGS
        }
        if encoding.get("chunksizes", variable.shape) != variable.shape:
            del encoding["chunksizes"]  # of an array with another shape
        variable.encoding = encoding
    return signed


def _opened(file: Path | io.BytesIO) -> xr.Dataset:
    return xr.open_dataset(file, engine="h5netcdf", decode_timedelta=False)


def _check_round_trip(dataset: xr.Dataset, content: io.BytesIO, path: Path) -> None:
    """Raise ``ValueError`` unless the written content reads back as the dataset.

    Numbers are stored as they are, so it suffices to compare their types; the values of texts,
    dates and decoded variables are compared as well.
    """
    with _opened(content) as opened:
        read_back = opened.rename(json.loads(opened.attrs.get(NAMES_ATTRIBUTE, "{}")))
        for name, variable in dataset.variables.items():
            stored = read_back.variables.get(name)
            is_equal = stored is not None and (stored.dims, stored.shape) == (
                variable.dims,
                variable.shape,
            )
            is_date = "since" in str(variable.attrs.get("units"))
            is_number = not is_date and not DECODED_ATTRIBUTES & {*variable.attrs}
            if is_equal and variable.dtype.kind in "biuf" and is_number:
                is_equal = stored.dtype == variable.dtype
            elif is_equal:
                is_equal = checksum(xr.Dataset({"values": stored})) == checksum(
                    xr.Dataset({"values": variable})
                )
            if not is_equal:
                raise ValueError(
                    f"{path} would not hold {name!r} as it is, {variable.dtype} over "
                    f"{variable.dims} with the attributes {variable.attrs}: give it as numbers or "
                    "texts, without attributes that a netCDF file gives a meaning. Nothing was "
                    "written."
                )


def checksum(dataset: xr.Dataset) -> str:
    """Return a digest of every name, dimension, dtype and value of variables and coordinates."""
    digest = hashlib.sha256()
    for name in sorted(map(str, dataset.variables)):
        variable = dataset[name].variable
        values = np.asarray(variable.values)
        if values.dtype.kind in "OUT":
            content = json.dumps([str(v) for v in values.ravel()]).encode()
            kind = "text"
        else:
            content = np.ascontiguousarray(values).tobytes()
            kind = values.dtype.str
        head = json.dumps([name, [str(d) for d in variable.dims], list(values.shape), kind])
        digest.update(head.encode() + content)
    return digest.hexdigest()
