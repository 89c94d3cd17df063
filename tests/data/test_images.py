import gzip
import hashlib
import struct

import numpy as np
import pytest

from fljax.data import (
    DISSIMILAR_ORGANS,
    SIMILAR_ORGANS,
    SINGLE_DIGITS,
    TRIPLETS,
    images,
    mnist,
    mnist_sample,
    organamnist,
    read_idx,
)

DIGITS = tuple("0123456789")


def idx(array):
    """The bytes of an idx file, by the format's description."""
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.tobytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of the user's, an empty cache."""
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path / "user"))
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "user"


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def small_mnist(folder, monkeypatch):
    """Small files in MNIST's place; their arrays by name."""
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.integers(
            0, 10, ((7 if "train" in name else 4), 28, 28)[: 3 if "3" in name else 1]
        )
        for name in images.MNIST_FILES
    }
    arrays = {name: array.astype(np.uint8) for name, array in arrays.items()}
    sums = {
        name: put(folder / f"{name}.gz", gzip.compress(idx(array)))
        for name, array in arrays.items()
    }
    monkeypatch.setattr(images, "MNIST_FILES", sums)
    return arrays


def assert_holds(loaded, arrays):
    fields = ("train_images", "train_labels", "test_images", "test_labels")
    for field, array in zip(fields, arrays.values(), strict=True):
        np.testing.assert_array_equal(getattr(loaded, field), array)
    assert loaded.name == "MNIST"
    assert loaded.classes == DIGITS
    assert "CC BY-SA 3.0" in loaded.source
    assert loaded.validation_images is None


# The format ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (0, 3, 4)])
def test_idx_files_are_read(tmp_path, shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    put(tmp_path / "a.gz", gzip.compress(idx(array)))
    result = read_idx(tmp_path / "a.gz")
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, array)


def packed(content):
    return gzip.compress(content, mtime=0)  # the same bytes in every process


GOOD = packed(idx(np.arange(200, dtype=np.uint8).reshape(2, 100)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "no readable gzip file"),
        (GOOD[:-12], "no readable gzip file"),
        (GOOD[:60] + b"\0\0\0\0" + GOOD[64:], "no readable gzip file"),
        (packed(b""), "no idx file"),
        (packed(b"PNG image, not idx"), "no idx file of unsigned bytes: it starts with '50"),
        (packed(b"\0\0\x0d\x01" + bytes(8)), "starts with '00 00 0d 01'"),
        (packed(b"\0\0\x08\0" + bytes(8)), "no idx file"),
        (packed(b"\0\0\x08\x03" + bytes(8)), "no idx file"),
        (packed(idx(np.zeros((2, 5), np.uint8))[:-1]), r"shape \(2, 5\) and holds 9"),
        (packed(idx(np.zeros((2, 5), np.uint8)) + b"\0"), r"shape \(2, 5\) and holds 11"),
    ],
    ids=range(10),
)
def test_other_files_are_refused_as_archives(tmp_path, content, message):
    put(tmp_path / "a.gz", content)
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(tmp_path / "a.gz")
    assert "a.gz" in str(caught.value)


# Where files come from ----------------------------------------------------------------------------


def test_mnist_is_read_from_the_users_folder(folder, monkeypatch):
    arrays = small_mnist(folder / "mnist", monkeypatch)
    assert_holds(mnist(), arrays)
    assert_holds(mnist(download=True), arrays)  # which needs none


def test_mnist_is_downloaded_if_asked(folder, tmp_path, monkeypatch):
    arrays = small_mnist(tmp_path / "mirror", monkeypatch)
    mirrors = [(tmp_path / name).as_uri() + "/" for name in ("absent", "mirror")]
    monkeypatch.setattr(images, "MNIST_MIRRORS", mirrors)
    with pytest.raises(FileNotFoundError, match=r"mnist\(download=True\)"):
        mnist()
    assert_holds(mnist(download=True), arrays)
    assert_holds(mnist(), arrays)  # from the cache


def test_a_corrupted_file_is_refused(folder, monkeypatch):
    small_mnist(folder / "mnist", monkeypatch)
    file = folder / "mnist" / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"t10k-images.*corrupted"):
        mnist(download=True)


def test_organamnist_is_read_and_downloaded(folder, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 5), ("val", 3), ("test", 4)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 11, (count, 1)).astype(np.uint8)
    np.savez(tmp_path / "published.npz", **arrays)
    content = (tmp_path / "published.npz").read_bytes()
    monkeypatch.setattr(images, "ORGANAMNIST_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(images, "ORGANAMNIST_URL", (tmp_path / "published.npz").as_uri())
    with pytest.raises(FileNotFoundError, match=r"organamnist\(download=True\)"):
        organamnist()
    result = organamnist(download=True)
    for field in ("train", "validation", "test"):
        part = field.replace("validation", "val")
        np.testing.assert_array_equal(getattr(result, f"{field}_images"), arrays[f"{part}_images"])
        np.testing.assert_array_equal(
            getattr(result, f"{field}_labels"), arrays[f"{part}_labels"].ravel()
        )
    assert result.name == "OrganAMNIST"
    assert "CC BY 4.0" in result.source
    put(folder / "organamnist" / "organamnist.npz", b"not an archive")
    with pytest.raises(ValueError, match="corrupted"):
        organamnist()


# The sample ---------------------------------------------------------------------------------------


def test_the_sample_needs_no_file_and_describes_itself(folder):
    sample = mnist_sample()
    assert sample.name == "MNIST sample (600 training and 200 test images)"
    assert sample.source.startswith("The first 60 training and 20 test images of each digit of")
    assert "CC BY-SA 3.0" in sample.source
    for count, part in ((60, "train"), (20, "test")):
        pixels = getattr(sample, f"{part}_images")
        labels = getattr(sample, f"{part}_labels")
        assert pixels.shape == (10 * count, 28, 28)
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(labels, np.repeat(np.arange(10), count))
        assert len(np.unique(pixels, axis=0)) == 10 * count
    assert sample.classes == DIGITS


def test_the_sample_is_small_and_has_its_licence():
    assert images.SAMPLE.stat().st_size < 150_000
    assert "Attribution-ShareAlike 3.0" in images.SAMPLE.with_suffix(".txt").read_text()


# The tasks ----------------------------------------------------------------------------------------


def test_the_tasks_equal_the_source():
    """Gauthier 2024, sections 5.4.2 and 5.4.3."""
    assert SINGLE_DIGITS == (((1,), (8,)), ((1,), (9,)), ((7,), (8,)))
    assert [first for first, _ in TRIPLETS] == [(1, 2, 3)] * 3
    assert [second for _, second in TRIPLETS] == [(6, 7, 8), (7, 8, 9), (6, 8, 9)]
    # Numbers by the labels that the data set publishes.
    assert SIMILAR_ORGANS == (((8,), (7,)), ((6,), (7,)), ((5,), (7,)))
    assert DISSIMILAR_ORGANS == (((10,), (7,)), ((4,), (0,)), ((5,), (8,)))


# The real files -----------------------------------------------------------------------------------


def real(load):
    try:
        return load()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_mnist_equals_the_published_files():
    data = real(mnist)
    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.shape == (10_000, 28, 28)
    assert data.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(data.test_labels).tolist() == [
        *(980, 1135, 1032, 1010, 982),
        *(892, 958, 1028, 974, 1009),
    ]


def test_the_sample_is_the_first_of_each_digit():
    data = real(mnist)
    sample = mnist_sample()
    for part, count in (("train", 60), ("test", 20)):
        pixels = getattr(data, f"{part}_images")
        labels = getattr(data, f"{part}_labels")
        first = np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(10)])
        np.testing.assert_array_equal(getattr(sample, f"{part}_images"), pixels[first])
        np.testing.assert_array_equal(getattr(sample, f"{part}_labels"), labels[first])


@pytest.mark.slow
def test_organamnist_equals_the_published_files():
    data = real(organamnist)
    assert data.train_images.shape == (34_561, 28, 28)
    assert data.validation_images.shape == (6_491, 28, 28)
    assert data.test_images.shape == (17_778, 28, 28)
    for labels in (data.train_labels, data.validation_labels, data.test_labels):
        assert np.unique(labels).tolist() == list(range(11))
    assert len(data.classes) == 11
