r"""Images of handwritten digits (MNIST) and of organs (OrganAMNIST), and binary tasks on them.

Both are used for personalized learning, one binary task a cluster (Gauthier 2024, sections 5.4.2
and 5.4.3): the tuples of tasks below, in which the classes of a task's side A come first, in the
source's order, so that a class that two tasks share on the same side has the same label in both;
:func:`fljax.data.binary_tasks` deals the images out to clients.

Files come from the folder that ``FLJAX_DATA`` names, from the cache, or from their publisher if
asked to; 800 images of MNIST come with the package, for a run with no network.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax.data.downloads import find

MNIST_FILES = {  # SHA-256
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
# The authors' own address no longer serves the files; these mirrors hold the same bytes.
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_SOURCE = (
    "Y. LeCun, C. Cortes and C. J. C. Burges, the MNIST database of handwritten digits (Y. LeCun, "
    "L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document recognition, "
    "Proceedings of the IEEE 86, 1998). CC BY-SA 3.0."
)
MNIST_HOW = (
    "It is one of the four original files of MNIST (CC BY-SA 3.0): "
    "fljax.data.mnist(download=True) gets them; fljax.data.mnist_sample() needs none."
)
SAMPLE = Path(__file__).with_name("mnist_sample.npz")

ORGANAMNIST_FILE = "organamnist/organamnist.npz"
ORGANAMNIST_SHA256 = "7c8c8b0753e2c0d7f70928817eac02be7cbb09f6beff4346e9d0ea79ecb598bd"
ORGANAMNIST_URL = "https://zenodo.org/records/10519652/files/organamnist.npz?download=1"
ORGANAMNIST_SOURCE = (
    "J. Yang, R. Shi, D. Wei, Z. Liu, L. Zhao, B. Ke, H. Pfister and B. Ni, MedMNIST v2: a "
    "large-scale lightweight benchmark for 2D and 3D biomedical image classification, Scientific "
    "Data 10, 41, 2023; from the Liver Tumor Segmentation Benchmark. CC BY 4.0."
)
ORGANAMNIST_HOW = (
    "It is the official file of MedMNIST v2, 28 x 28 pixels (CC BY 4.0): "
    "fljax.data.organamnist(download=True) gets it."
)
ORGANS = (
    *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
    *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
)

#: A binary task: the classes of side A (label -1) and of side B (label +1).
Task = tuple[tuple[int, ...], tuple[int, ...]]


def _organs(*pairs: tuple[str, str]) -> tuple[Task, ...]:
    return tuple(((ORGANS.index(a),), (ORGANS.index(b),)) for a, b in pairs)


#: Three clusters with little similarity (Gauthier 2024, figure 5.5(a)).
SINGLE_DIGITS: tuple[Task, ...] = (((1,), (8,)), ((1,), (9,)), ((7,), (8,)))
#: Three clusters with much similarity (figures 5.5(b) and (c)).
TRIPLETS: tuple[Task, ...] = (
    ((1, 2, 3), (6, 7, 8)),
    ((1, 2, 3), (7, 8, 9)),
    ((1, 2, 3), (6, 8, 9)),
)
#: Three clusters with one organ in common (figure 5.6(a)).
SIMILAR_ORGANS = _organs(
    ("lung-right", "lung-left"), ("liver", "lung-left"), ("kidney-right", "lung-left")
)
#: Three clusters with none (figure 5.6(b)).
DISSIMILAR_ORGANS = _organs(
    ("spleen", "lung-left"), ("kidney-left", "bladder"), ("kidney-right", "lung-right")
)


class Images(NamedTuple):
    """Images and their classes, as published: nothing scaled, nothing shuffled."""

    name: str  # for titles: says when it is a sample
    train_images: np.ndarray  # [n, height, width], of colors [n, height, width, 3]  0..255
    train_labels: np.ndarray  # [n]  indices of `classes`
    test_images: np.ndarray  # [t, ...]
    test_labels: np.ndarray  # [t]
    classes: tuple[str, ...]
    source: str  # whom to cite, and the license
    validation_images: np.ndarray | None = None  # [v, ...], if there are any
    validation_labels: np.ndarray | None = None  # [v]


def mnist(download: bool = False) -> Images:
    """All of MNIST: 60,000 training and 10,000 test images of 28 x 28 pixels, ten digits.

    Args:
      download: get missing files from a mirror; 12 MB.

    Raises:
      FileNotFoundError: a file is missing and may not be downloaded; the message explains how to
        get it.
      ValueError: a file has another checksum.
      OSError: no mirror delivered a file.
    """
    arrays = _idx_arrays("mnist", MNIST_FILES, MNIST_HOW, MNIST_MIRRORS, download)
    return Images("MNIST", *arrays, classes=tuple("0123456789"), source=MNIST_SOURCE)


def _idx_arrays(
    folder: str, files: Mapping[str, str], how: str, mirrors: Sequence[str], download: bool
) -> Iterator[np.ndarray]:
    """The arrays of some idx files, given by their names and checksums."""
    for name, checksum in files.items():
        file = f"{name}.gz"
        urls = [mirror + file for mirror in mirrors]
        yield read_idx(find(f"{folder}/{file}", checksum, how, urls, download))


def mnist_sample() -> Images:
    """A sample of MNIST that needs no file: 60 training and 20 test images of each digit.

    They are the first images of each digit in the order of the published files, digit after digit,
    without selection. Results on this sample are not results on MNIST, as its ``name`` indicates.

    Example:
      >>> import fljax as fl
      >>> images = fl.data.mnist_sample()
      >>> images.train_images.shape, images.test_labels.shape
      ((600, 28, 28), (200,))
    """
    with np.load(SAMPLE) as file:
        arrays = [file[name] for name in file.files]
    return Images(
        f"MNIST sample ({len(arrays[1])} training and {len(arrays[3])} test images)",
        *arrays,
        classes=tuple("0123456789"),
        source=f"The first 60 training and 20 test images of each digit of {MNIST_SOURCE}",
    )


def organamnist(download: bool = False) -> Images:
    """OrganAMNIST: 34,561 training, 6,491 validation and 17,778 test images of eleven organs.

    Axial slices of computed tomography, 28 x 28 pixels; each patient is in one part only.

    Args:
      download: get a missing file from its publisher; 38 MB.

    Raises:
      FileNotFoundError, ValueError, OSError: as :func:`mnist`.
    """
    path = find(ORGANAMNIST_FILE, ORGANAMNIST_SHA256, ORGANAMNIST_HOW, [ORGANAMNIST_URL], download)
    with np.load(path) as file:
        parts = {
            part: (file[f"{part}_images"], file[f"{part}_labels"][:, 0])
            for part in ("train", "test", "val")
        }
    return Images(
        "OrganAMNIST", *parts["train"], *parts["test"], ORGANS, ORGANAMNIST_SOURCE, *parts["val"]
    )


def read_idx(path: str | Path) -> np.ndarray:
    """The array of a gzipped idx file of unsigned bytes, the format of MNIST and its relatives.

    Two zero bytes, the type (8: unsigned bytes), the number of axes, their lengths as big-endian
    32-bit numbers, the entries with the last axis fastest.

    Raises:
      FileNotFoundError: no such file.
      ValueError: not gzip, truncated, not idx, another type, another number of entries than stated.

    Example:
      >>> import gzip, pathlib, tempfile, fljax as fl
      >>> header = bytes([0, 0, 8, 1]) + (3).to_bytes(4, "big")  # unsigned bytes, one axis of 3
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder) / "labels.gz"
      ...     _ = path.write_bytes(gzip.compress(header + bytes([7, 2, 1])))
      ...     labels = fl.data.read_idx(path)
      >>> labels.tolist()
      [7, 2, 1]
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {path}.")
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no readable gzip file ({error}); get it again.") from error
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or not axes or len(content) < 4 + 4 * axes:
        raise ValueError(
            f"{path} is no idx file of unsigned bytes: it starts with {content[:4].hex(' ')!r}, "
            "which should be 00 00 08 and the number of axes."
        )
    shape = tuple(np.frombuffer(content, ">u4", axes, offset=4).tolist())
    entries = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if len(entries) != np.prod(shape, dtype=object):
        raise ValueError(
            f"{path} says that it holds an array of shape {shape} and holds {len(entries)} entries."
        )
    return entries.reshape(shape)
