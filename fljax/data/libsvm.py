r"""Tables in the LIBSVM format: ijcnn1, and others published in it.

A line is a sample, ``label index:value index:value ...`` with indices from 1; features that are not
listed are zero. The files of the LIBSVM page have this format, plain or compressed.
"""

import bz2
import gzip
import itertools
import math
import zlib
from collections.abc import Iterator
from io import TextIOBase
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax.data.downloads import locate

IJCNN1_FILES = {  # SHA-256
    "ijcnn1/ijcnn1.trn.bz2": "b38a4198ce142d43e96fb86d17b87211feec1f909ac344fa057455c69de29de3",
    "ijcnn1/ijcnn1.tst.bz2": "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24",
}
IJCNN1_FEATURES = 22
IJCNN1_HOW = (
    "It is a file of the data set ijcnn1 on the LIBSVM page (D. Prokhorov, IJCNN 2001 neural "
    "network competition; no license is stated there), which is not downloaded."
)
#: First bytes of a file by compression format.
OPENERS = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open}


class SampleTable(NamedTuple):
    """Samples and their labels, and held-out ones."""

    features: np.ndarray  # [n, P]
    labels: np.ndarray  # [n]
    test_features: np.ndarray  # [m, P]
    test_labels: np.ndarray  # [m]


@checked
def libsvm(
    path: str | Path, features: int | None = None, rows: int | None = None
) -> tuple["scipy.sparse.csr_array", np.ndarray]:
    r"""The samples of a file in the LIBSVM format.

    Args:
      path: path of the file; plain, or compressed by gzip or bzip2.
      features: ``P``; by default the largest index that occurs.
      rows: number of rows, from the start of the file; all by default.

    Returns:
      ``[n, P]``, sparse (``.toarray()`` makes it dense), and the labels, ``[n]``.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line that is not a sample (its number is given); a label or value that is not
        finite; an index below 1 or beyond ``features``, or not above the one before it; fewer
        samples than requested; a file that is not text, or whose compressed data are damaged or end
        early.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder) / "two"
      ...     _ = path.write_text("+1 1:0.5 3:2\n-1 2:1\n")
      ...     samples, labels = libsvm(path)
      >>> samples.toarray().tolist(), labels.tolist()
      ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [1.0, -1.0])
    """
    for name, count in (("features", features), ("rows", rows)):
        if count is not None:
            checks.count(name, count)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}.")
    labels = []
    starts = [0]
    indices = []
    values = []
    try:
        with _open_text(path) as file:
            for number, (label, entries) in enumerate(_samples(path, file), start=1):
                labels.append(label)
                indices += [index for index, _ in entries]
                values += [value for _, value in entries]
                starts.append(len(indices))
                if number == rows:
                    break
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is no text, such as 'label index:value ...' on each line; if it is compressed "
            "by something else than gzip or bzip2, unpack it first."
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
        # bz2 raises OSError without a number for damaged data; errors of the disk have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(
            f"{path} is compressed and cannot be read to its end, after {len(labels)} samples "
            f"({error}); get it again."
        ) from error
    if not labels:
        raise ValueError(f"{path} holds no samples.")
    if rows is not None and len(labels) < rows:
        raise ValueError(f"rows must be at most the {len(labels)} of {path}, got {rows}.")
    index = np.asarray(indices, np.int64) - 1
    most = int(index.max(initial=0)) + 1
    if features is not None and most > features:
        raise ValueError(f"{path} has a feature {most}, beyond the {features} asked for.")
    shape = (len(labels), most if features is None else features)
    table = scipy.sparse.csr_array((np.asarray(values), index, np.asarray(starts)), shape)
    return table, np.asarray(labels)


def _open_text(path: Path) -> TextIOBase:
    with path.open("rb") as file:
        start = file.read(2)
    # Some editors begin a file with a mark of its encoding.
    return OPENERS.get(start, open)(path, "rt", encoding="utf-8-sig")


def _samples(path: Path, file: TextIOBase) -> Iterator[tuple[float, list[tuple[int, float]]]]:
    """The label and the pairs of index and value of each line."""
    for number, line in enumerate(file, start=1):
        if not (tokens := line.partition("#")[0].split()):
            continue
        try:
            pairs = [token.split(":") for token in tokens[1:]]
            sample = float(tokens[0]), [(int(i), float(v)) for i, v in pairs]
        except ValueError:
            raise ValueError(
                f"line {number} of {path} is no sample 'label index:value ...': "
                f"{line.strip()[:60]!r}."
            ) from None
        indices = [index for index, _ in sample[1]]
        if any(index < 1 for index in indices):
            raise ValueError(f"line {number} of {path} has an index below 1.")
        if any(index >= 2**31 for index in indices):
            raise ValueError(f"line {number} of {path} has an index beyond 2^31 - 1.")
        for before, index in itertools.pairwise(indices):
            if index <= before:
                raise ValueError(
                    f"line {number} of {path} has index {index} after {before}; indices must rise "
                    "within a line, each there once."
                )
        if not all(map(math.isfinite, (sample[0], *(value for _, value in sample[1])))):
            raise ValueError(
                f"line {number} of {path} holds a label or value that is not finite: "
                f"{line.strip()[:60]!r}; leave the line out, or fill in what is missing."
            )
        yield sample


@checked
def ijcnn1(rows: int = 35_000) -> SampleTable:
    """ijcnn1: 22 features of an engine's ignitions, normal (-1) or not (+1), nine in ten normal.

    Args:
      rows: number of rows of the training file, from its start, of 49,990: Rizk 2023 trains on
        35,000, the rest being for validation.

    Returns:
      The training samples, and all 91,701 of the test file.

    Raises:
      ValueError: more rows than available, a file with another checksum.
      FileNotFoundError: ``FLJAX_DATA`` does not hold the files; the message explains how to get
        them.
    """
    checks.count("rows", rows)
    parts = []
    for name, wanted in zip(IJCNN1_FILES, (rows, None), strict=True):
        path = locate(name, IJCNN1_FILES[name], IJCNN1_HOW)
        samples, labels = libsvm(path, IJCNN1_FEATURES, wanted)
        parts += [samples.toarray().astype(float_dtype()), labels.astype(float_dtype())]
    return SampleTable(*parts)
