r"""Photographs of ten classes (CIFAR-10) and of a hundred (CIFAR-100), 32 x 32 pixels in color.

They are read from the *binary* version of the archives. The Python version holds pickles, which may
run any program when they are read, and is not touched. An archive is a gzipped tar of files of
records: one byte of the label (CIFAR-100: one of the superclass, one of the class), then 1024 bytes
of red, of green and of blue, row by row; and of text files with the names of the classes.
"""

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.data.downloads import CHUNK, find
from fljax.data.images import Images

# SHA-256, as TensorFlow Datasets publishes them; the authors publish the MD5 sums
# c32a1d4ab5d03f1284b67883e8d87530 and 03b5dce01913d631647c71ecec9e9cb8 of the same archives.
CIFAR_FILES = {
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
}
CIFAR_MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR_SOURCE = (
    "A. Krizhevsky, Learning multiple layers of features from tiny images, technical report, "
    "University of Toronto, 2009. No license is stated."
)
CIFAR_HOW = (
    "It is the binary version of the archive that its authors publish (no license is stated): "
    "fljax.data.{function}(download=True) gets it."
)
PIXELS = (3, 32, 32)  # channel, row, column: the order in the files


class ArchiveLayout(NamedTuple):
    """Where an archive has what, by the names of its files without their folder."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    classes: str
    labels: int  # bytes of labels of a record
    label: int  # which of them is read


_CIFAR100_LAYOUT = ArchiveLayout(
    ("train.bin",), ("test.bin",), "fine_label_names.txt", labels=2, label=1
)
LAYOUTS = {
    "CIFAR-10": ArchiveLayout(
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        ("test_batch.bin",),
        "batches.meta.txt",
        labels=1,
        label=0,
    ),
    "CIFAR-100": _CIFAR100_LAYOUT,
    "CIFAR-100 superclasses": _CIFAR100_LAYOUT._replace(classes="coarse_label_names.txt", label=0),
}


@checked
def cifar10(download: bool = False) -> Images:
    """CIFAR-10: 50,000 training and 10,000 test images ``[32, 32, 3]`` of ten classes.

    Args:
      download: get a missing archive from its authors; 170 MB.

    Raises:
      FileNotFoundError: neither ``FLJAX_DATA`` nor the cache has it; the message explains how to
        get it.
      ValueError: the archive has another checksum.
      OSError: it could not be downloaded.
    """
    return _load_images("CIFAR-10", "cifar-10-binary.tar.gz", "cifar10", download)


@checked
def cifar100(coarse: bool = False, download: bool = False) -> Images:
    """CIFAR-100: 50,000 training and 10,000 test images ``[32, 32, 3]`` of 100 classes.

    Args:
      coarse: use the 20 superclasses of five classes each as labels, for the same images in the
        same order.
      download: get a missing archive from its authors; 169 MB.

    Raises:
      FileNotFoundError, ValueError, OSError: as :func:`cifar10`.
    """
    name = "CIFAR-100 superclasses" if coarse else "CIFAR-100"
    return _load_images(name, "cifar-100-binary.tar.gz", "cifar100", download)


def _load_images(name: str, file: str, function: str, download: bool) -> Images:
    urls = [mirror + file for mirror in CIFAR_MIRRORS]
    how = CIFAR_HOW.format(function=function)
    return read_cifar(find(f"cifar/{file}", CIFAR_FILES[file], how, urls, download), name)


@checked
def read_cifar(path: str | Path, name: str = "CIFAR-10") -> Images:
    """The images of an archive in the binary layout of CIFAR, with any number of records.

    Nothing is unpacked to disk.

    Args:
      path: path of the archive, a gzipped tar.
      name: the layout: ``"CIFAR-10"``, ``"CIFAR-100"`` or ``"CIFAR-100 superclasses"``.

    Raises:
      FileNotFoundError: no such file.
      ValueError: an unknown layout, not a gzipped tar, truncated, a file of the layout that is
        missing or does not hold a whole number of records, a label out of range.
    """
    checks.choice("name", name, LAYOUTS)
    layout = LAYOUTS[name]
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}.")
    files = _members(path, {*layout.train, *layout.test, layout.classes})
    for file in (*layout.train, *layout.test, layout.classes):
        if file not in files:
            raise ValueError(
                f"{path} has no file {file}, which the binary layout of {name} has; is it another "
                "version of the archive (Python, Matlab) or another data set?"
            )
    classes = tuple(files[layout.classes].decode("ascii", "replace").split())
    parts = []
    for names in (layout.train, layout.test):
        records = np.concatenate([_records(path, file, files, layout, classes) for file in names])
        pixels = records[:, layout.labels :].reshape(-1, *PIXELS).transpose(0, 2, 3, 1)
        parts += [np.ascontiguousarray(pixels), records[:, layout.label].copy()]
    return Images(name, *parts, classes=classes, source=CIFAR_SOURCE)


def _members(path: Path, wanted: set[str]) -> dict[str, bytes]:
    """What these files of an archive hold, read in one pass."""
    members = {}
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if name in wanted and (file := archive.extractfile(member)) is not None:
                        members[name] = file.read()
            while stream.read(CHUNK):  # to its end, where gzip's own checksum is
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no readable tar.gz file ({error}); get it again.") from error
    return members


def _records(
    path: Path,
    file: str,
    files: Mapping[str, bytes],
    layout: ArchiveLayout,
    classes: tuple[str, ...],
) -> np.ndarray:
    """``[n, bytes of a record]``."""
    content = files[file]
    size = layout.labels + int(np.prod(PIXELS))
    if not content or len(content) % size:
        raise ValueError(
            f"{file} in {path} must hold records of {size} bytes, one or more, got {len(content)} "
            "bytes."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, layout.label]
    if labels.max() >= len(classes):
        row = int(np.argmax(labels))
        raise ValueError(
            f"{file} in {path} has a label {labels[row]} in record {row}, and {layout.classes} "
            f"names {len(classes)} classes."
        )
    return records
