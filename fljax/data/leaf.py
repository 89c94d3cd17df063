r"""Data with natural clients, in LEAF's JSON format: FEMNIST, Shakespeare, and others.

LEAF (Caldas et al., "LEAF: a benchmark for federated settings", 2018) publishes programs that make
a folder of its data, with ``train`` and ``test`` inside, each of one or more files ::

    {"users": ["ada", "ben"], "num_samples": [2, 1],
     "user_data": {"ada": {"x": [..., ...], "y": [..., ...]}, "ben": {"x": [...], "y": [...]}}}

Clients are the users, the writer of a letter or the role in a play: the partition is not random.
They are in the order of the training files, sorted by name, so that a client has the same number on
every machine.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype

#: The characters of Shakespeare in LEAF, in the order of their numbers.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80  # characters that predict the next one
DIGITS_AND_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

LEAF_SOURCE = (
    "S. Caldas, S. M. K. Duddu, P. Wu, T. Li, J. Konečný, H. B. McMahan, V. Smith and A. "
    "Talwalkar, LEAF: a benchmark for federated settings, arXiv:1812.01097, 2018."
)

Pair = tuple[np.ndarray, np.ndarray]
#: From a user's ``x`` and ``y`` to arrays; its errors describe invalid entries.
Reader = Callable[[list, list], Pair]


class Users(NamedTuple):
    """The samples of ``K`` users, and those held out."""

    clients: list[Pair]  # K of (features [D_k, ...], targets [D_k])
    test: list[Pair]  # K of the same; if the test has other users, one for all of them
    names: tuple[str, ...]  # [K]
    classes: tuple[str, ...]  # what targets are numbers of
    source: str  # whom to cite


@checked
def femnist(folder: str | Path) -> Users:
    """FEMNIST: digits and letters of 62 classes, with one client per writer.

    Args:
      folder: of LEAF's, with ``train`` and ``test``;
        ``preprocess.sh -s niid --sf 1.0 -k 0 -t sample`` in ``data/femnist`` of LEAF's repository
        makes that of all, 3,500 or so. Where users are split instead of samples (``-t user``), the
        test data are from people outside of the clients.

    Returns:
      Features ``[D_k, 28, 28, 1]`` from 0, ink, to 1, paper, as LEAF scales them; targets are
      numbers of classes.

    Raises:
      FileNotFoundError: no such folder, none of ``train`` or ``test`` in it, no file in one.
      ValueError: not JSON or truncated, missing keys, users without samples, listed twice, or in
        only some of ``train`` and ``test``; numbers of samples other than stated; images that are
        not 784 numbers from 0 to 1, targets that are not a class.

    Example:
      >>> import json, pathlib, tempfile
      >>> one = {"users": ["ada"], "num_samples": [1]}
      >>> one["user_data"] = {"ada": {"x": [[1.0] * 784], "y": [61]}}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for part in ("train", "test"):
      ...         (pathlib.Path(folder) / part).mkdir()
      ...         _ = (pathlib.Path(folder) / part / "all.json").write_text(json.dumps(one))
      ...     data = femnist(folder)
      >>> data.names, data.clients[0][0].shape, data.classes[data.clients[0][1][0]]
      (('ada',), (1, 28, 28, 1), 'z')
    """
    return _read(folder, _handwriting, DIGITS_AND_LETTERS)


@checked
def shakespeare(folder: str | Path) -> Users:
    """Shakespeare: the character after 80 given ones, with one client per role of a play.

    Args:
      folder: of LEAF's, with ``train`` and ``test``; ``preprocess.sh -s niid --sf 1.0 -k 0 -t
        sample --tf 0.8`` in ``data/shakespeare`` of LEAF's repository makes that of all, 2,288.

    Returns:
      Features ``[D_k, 80]`` and targets ``[D_k]``, numbers of :data:`LETTERS`.

    Raises:
      FileNotFoundError, ValueError: as :func:`femnist`; samples that are not 80 characters and one,
        or a character outside LEAF's vocabulary (which LEAF's own models treat as its last one).
    """
    return _read(folder, _text, LETTERS)


@checked
def leaf(folder: str | Path) -> Users:
    """Data in LEAF's format whose features and targets are numbers: LEAF's synthetic data or your
    own.

    Args:
      folder: a folder with ``train`` and ``test``.

    Returns:
      Features ``[D_k, ...]`` and targets ``[D_k, ...]`` as in the files, where integers stay
      integers; no names of classes.

    Raises:
      FileNotFoundError, ValueError: as :func:`femnist`; samples of different shapes.

    Example:
      >>> import json, pathlib, tempfile, fljax as fl
      >>> samples = {"x": [[1.0], [2.0]], "y": [0, 1]}
      >>> text = json.dumps({"users": ["a"], "num_samples": [2], "user_data": {"a": samples}})
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for part in ("train", "test"):
      ...         (pathlib.Path(folder) / part).mkdir()
      ...         _ = (pathlib.Path(folder) / part / "all.json").write_text(text)
      ...     users = fl.data.leaf(folder)
      >>> users.names, users.clients[0][1].tolist()
      (('a',), [0, 1])
    """
    return _read(folder, _as_numbers, "")


@checked
def clients_of_leaf(
    folder: str | Path, data: str = "numbers"
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """The clients of a folder in LEAF's format, one file in memory at a time.

    Args:
      folder: of the files themselves, such as ``train`` in LEAF's folder.
      data: ``"femnist"``, ``"shakespeare"`` or ``"numbers"``, read as by :func:`femnist`,
        :func:`shakespeare` or :func:`leaf`.

    Returns:
      For :func:`write_population`: features, targets and name of each user, in the files' order.

    Raises:
      FileNotFoundError, ValueError: as :func:`femnist`, when a faulty file is reached.

    Example:
      >>> import json, pathlib, tempfile
      >>> from fljax.data import clients_of_leaf, write_population
      >>> one = {"users": ["ada"], "num_samples": [2]}
      >>> one["user_data"] = {"ada": {"x": [[0.5], [1.0]], "y": [0, 1]}}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = (pathlib.Path(folder) / "all.json").write_text(json.dumps(one))
      ...     population = write_population(
      ...         pathlib.Path(folder) / "population", clients_of_leaf(folder)
      ...     )
      >>> population.names, population.sizes.tolist()
      (['ada'], [2])
    """
    checks.choice("data", data, READERS)
    return _users_of_files(Path(folder), READERS[data])


def _read(folder: str | Path, reader: Reader, classes: str) -> Users:
    """Read the users of both folders, and match training and test data."""
    clients, test = (_users(Path(folder) / part, reader) for part in ("train", "test"))
    names = tuple(clients)
    _one_shape({**clients, **{f"{name} of test": pair for name, pair in test.items()}})
    if clients.keys() == test.keys():
        held_out = [test[name] for name in names]
    elif common := clients.keys() & test.keys():
        alone = next(name for name in (*clients, *test) if name not in common)
        raise ValueError(
            f"user {alone!r} of {folder} is only in one of train and test, and {len(common)} users "
            "are in both; split every user's samples (LEAF's -t sample), or the users (-t user)."
        )
    else:
        features, targets = zip(*test.values(), strict=True)
        held_out = [(np.concatenate(features), np.concatenate(targets))]
    return Users([*clients.values()], held_out, names, tuple(classes), LEAF_SOURCE)


def _users(folder: Path, reader: Reader) -> dict[str, Pair]:
    """The samples of the users of all files of a folder."""
    return {
        name: (features, targets) for features, targets, name in _users_of_files(folder, reader)
    }


def _users_of_files(folder: Path, reader: Reader) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """The samples and the name of each user, file by file."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise FileNotFoundError(
            f"no file {folder}/*.json; LEAF's preprocess.sh with -t sample makes folders train and "
            "test of them."
        )
    places: dict[str, Path] = {}
    for path in paths:
        for name, samples in _of_file(path).items():
            if name in places:
                raise ValueError(f"user {name!r} is in {places[name]} and in {path}.")
            places[name] = path
            try:
                features, targets = reader(samples["x"], samples["y"])
            except ValueError as error:
                raise ValueError(f"user {name!r} of {path}: {error}") from None
            yield features, targets, name


def _of_file(path: Path) -> dict[str, dict[str, list]]:
    """``x`` and ``y`` of the users that a file lists, as many as it says."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON, or was cut short: {error}.") from None
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    content = content if isinstance(content, dict) else {}
    for key, kind in kinds.items():
        if not isinstance(content.get(key), kind):
            raise ValueError(
                f"{path} is not of LEAF's format, an object with lists users and num_samples and "
                f"an object user_data: {key} is missing or something else."
            )
    users = {}
    counts = content["num_samples"]
    data = content["user_data"]
    if len(content["users"]) != len(counts):
        raise ValueError(f"{path} has {len(content['users'])} users and {len(counts)} num_samples.")
    for name, count in zip(content["users"], counts, strict=True):
        samples = data.get(name) if isinstance(data.get(name), dict) else {}
        if not all(isinstance(samples.get(key), list) for key in ("x", "y")):
            raise ValueError(f"{path} lists user {name!r}, who has no x and y in its user_data.")
        sizes = len(samples["x"]), len(samples["y"])
        if sizes != (count, count):
            raise ValueError(
                f"user {name!r} of {path} has {sizes[0]} x and {sizes[1]} y, and {count} samples "
                "by its num_samples; was the file changed or cut?"
            )
        if not count:
            raise ValueError(
                f"user {name!r} of {path} has no samples; LEAF's preprocess.sh with -k 2 or more "
                "leaves out users of few."
            )
        if name in users:
            raise ValueError(f"user {name!r} is twice in {path}.")
        users[name] = samples
    return users


def _one_shape(users: Mapping[str, Pair]) -> None:
    first = next(iter(users))
    for name, pair in users.items():
        for what, rows, expected in zip(("x", "y"), pair, users[first], strict=True):
            if rows.shape[1:] != expected.shape[1:]:
                raise ValueError(
                    f"{what} of user {name!r} is of shape {rows.shape[1:]} and that of user "
                    f"{first!r} of {expected.shape[1:]}; all samples must be of one shape."
                )


def _numbers(what: str, values: list) -> np.ndarray:
    """``[n, ...]``, of real numbers; whole ones stay whole."""
    try:
        array = np.array(values)
    except ValueError:
        raise ValueError(f"{what} must be of one shape, got samples of several.") from None
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{what} must be numbers, got {checks.shown(values[0])}.")
    checks.finite(what, array)
    if array.dtype.kind == "f":
        return array.astype(float_dtype())
    checks.interval(what, array, at_least=-(2**31), at_most=2**31 - 1)
    return array.astype(np.int32)


def _as_numbers(x: list, y: list) -> Pair:
    return _numbers("x", x), _numbers("y", y)


def _handwriting(x: list, y: list) -> Pair:
    """Images of 28 x 28 pixels and labels of digits and letters."""
    pixels, labels = _as_numbers(x, y)
    if pixels.shape[1:] != (784,) or pixels.min() < 0 or pixels.max() > 1:
        raise ValueError(
            f"x must be images of 784 numbers from 0 to 1, got shape {pixels.shape[1:]} from "
            f"{pixels.min():g} to {pixels.max():g}; pixels up to 255 are to be divided by it."
        )
    classes = len(DIGITS_AND_LETTERS)
    if (
        labels.dtype != np.int32
        or labels.ndim != 1
        or not 0 <= labels.min() <= labels.max() < classes
    ):
        raise ValueError(
            f"y must be a class of each image, a whole number below {classes}, got "
            f"{checks.shown(y)}."
        )
    return pixels.astype(float_dtype()).reshape(-1, 28, 28, 1), labels


def _text(x: list, y: list) -> Pair:
    for what, texts, length in (("x", x, WINDOW), ("y", y, 1)):
        for text in texts:
            if not isinstance(text, str) or len(text) != length:
                raise ValueError(
                    f"{what} must be texts of {length} characters, got {checks.shown(text)}."
                )
    return _letters(x).reshape(-1, WINDOW), _letters(y)


def _letters(texts: list[str]) -> np.ndarray:
    """The numbers of all characters, one text after the other."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
    numbers = np.full(max(map(ord, LETTERS)) + 2, -1, np.int32)
    numbers[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    letters = numbers[np.minimum(codes, len(numbers) - 1)]
    if letters.min() < 0:
        letter = chr(codes[np.argmin(letters)])
        raise ValueError(
            f"{letter!r} is not among LEAF's {len(LETTERS)} characters (fljax.data.LETTERS); make "
            "the files from LEAF's edition of the text, or replace it."
        )
    return letters


#: By content of the files.
READERS: dict[str, Reader] = {
    "numbers": _as_numbers,
    "femnist": _handwriting,
    "shakespeare": _text,
}
