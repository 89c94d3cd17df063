"""The binary layout of CIFAR, in archives made here byte by byte from its description."""

import gzip
import hashlib
import io
import tarfile

import numpy as np
import pytest

from fljax.data import by_label, cifar, cifar10, cifar100, read_cifar

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COARSE = tuple(f"coarse_{i}" for i in range(20))
FINE = tuple(f"fine_{i}" for i in range(100))


def record(labels, image):
    """The bytes of one ``[32, 32, 3]`` image: labels, then red, green and blue, row by row."""
    planes = [bytes(int(image[i, j, c]) for i in range(32) for j in range(32)) for c in range(3)]
    return bytes(labels) + b"".join(planes)


def pack(path, files, folder="cifar"):
    """A gzipped tar of files; its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def random_images(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def ten():
    """Files of CIFAR-10 in small: two images a batch and three to test; images, labels."""
    images = random_images(13, 0)
    labels = np.arange(13) * 3 % 10
    rows = [record([label], image) for label, image in zip(labels, images, strict=True)]
    files = {"readme.html": b"<a>", "batches.meta.txt": ("\n".join(TEN) + "\n\n").encode()}
    for i in range(5):
        files[f"data_batch_{i + 1}.bin"] = b"".join(rows[2 * i : 2 * i + 2])
    files["test_batch.bin"] = b"".join(rows[10:])
    return files, images, labels


def hundred():
    """Files of CIFAR-100 in small: four images and two to test; images, both kinds of labels."""
    images = random_images(6, 1)
    fine = np.array([0, 99, 17, 42, 5, 6])
    coarse = fine % 20
    rows = [record(pair, image) for *pair, image in zip(coarse, fine, images, strict=True)]
    files = {
        "coarse_label_names.txt": "\n".join(COARSE).encode(),
        "fine_label_names.txt": "\n".join(FINE).encode(),
        "train.bin": b"".join(rows[:4]),
        "test.bin": b"".join(rows[4:]),
    }
    return files, images, fine, coarse


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of the user's, an empty cache."""
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path / "user"))
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "user" / "cifar"


def assert_holds(loaded, images, labels, train):
    for part, rows in (("train", slice(train)), ("test", slice(train, None))):
        pixels = getattr(loaded, f"{part}_images")
        assert pixels.dtype == np.uint8
        assert pixels.flags.c_contiguous
        np.testing.assert_array_equal(pixels, images[rows])
        np.testing.assert_array_equal(getattr(loaded, f"{part}_labels"), labels[rows])
    assert "Krizhevsky" in loaded.source


def test_ten_classes_are_read_batch_after_batch(folder, monkeypatch):
    files, images, labels = ten()
    path = folder / "cifar-10-binary.tar.gz"
    # the order of the files in the archive is not that of the batches
    sums = {path.name: pack(path, dict(reversed(files.items())), "cifar-10-batches-bin")}
    monkeypatch.setattr(cifar, "CIFAR_FILES", sums)
    result = cifar10()
    assert_holds(result, images, labels, train=10)
    assert result.name == "CIFAR-10"
    assert result.classes == TEN
    parts = by_label(result.train_labels, clients=5, shards=1, seed=0)
    assert {result.train_images[rows].shape for rows in parts} == {(2, 32, 32, 3)}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is corrupted"):
        cifar10(download=True)


def test_a_hundred_classes_have_superclasses(folder, tmp_path, monkeypatch):
    files, images, fine, coarse = hundred()
    path = tmp_path / "mirror" / "cifar-100-binary.tar.gz"
    monkeypatch.setattr(cifar, "CIFAR_FILES", {path.name: pack(path, files, "cifar-100-binary")})
    monkeypatch.setattr(cifar, "CIFAR_MIRRORS", (path.parent.as_uri() + "/",))
    with pytest.raises(FileNotFoundError, match=r"cifar100\(download=True\)"):
        cifar100()
    result = cifar100(download=True)
    assert_holds(result, images, fine, train=4)
    assert (result.name, result.classes) == ("CIFAR-100", FINE)
    result = cifar100(coarse=True)  # from the cache
    assert_holds(result, images, coarse, train=4)
    assert (result.name, result.classes) == ("CIFAR-100 superclasses", COARSE)


def without(name):
    return {key: value for key, value in ten()[0].items() if key != name}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (without("data_batch_3.bin"), r"has no file data_batch_3\.bin, which the binary layout of"),
        (without("batches.meta.txt"), r"has no file batches\.meta\.txt"),
        ({"data_batch_1": b"a pickle"}, "another version of the archive"),
        (ten()[0] | {"test_batch.bin": b""}, r"test_batch\.bin .* records of 3073 bytes.*got 0"),
        (ten()[0] | {"data_batch_2.bin": bytes(3072)}, r"data_batch_2\.bin .* got 3072 bytes"),
        (ten()[0] | {"data_batch_2.bin": bytes(3073) + b"\x0a" + bytes(3072)}, "label 10 in rec"),
    ],
    ids=range(6),
)
def test_another_layout_is_refused(tmp_path, files, message):
    pack(tmp_path / "a.tar.gz", files)
    with pytest.raises(ValueError, match=message) as caught:
        read_cifar(tmp_path / "a.tar.gz")
    assert "a.tar.gz" in str(caught.value)


def test_invalid_archives_are_refused(tmp_path):
    path = tmp_path / "a.tar.gz"
    pack(path, ten()[0])
    archive = path.read_bytes()
    broken = archive[:5000] + bytes(64) + archive[5064:]
    for content in (b"not gzip", gzip.compress(b"not a tar" * 100), archive[:-3000], broken):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.tar\.gz is no readable tar\.gz file"):
            read_cifar(path)
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.tar\.gz"):
        read_cifar(tmp_path / "none.tar.gz")
    with pytest.raises(ValueError, match=r"unknown name 'CIFAR-1000'.*Did you mean 'CIFAR-100'"):
        read_cifar(path, "CIFAR-1000")


def test_the_real_archives_equal_the_published_files():
    try:
        result = cifar10()
        many = cifar100()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for images, per_class in ((result, 5000), (many, 500)):
        assert images.train_images.shape == (50_000, 32, 32, 3)
        assert images.test_images.shape == (10_000, 32, 32, 3)
        assert set(np.bincount(images.train_labels)) == {per_class}
    assert result.classes == TEN
    assert many.classes[:2] == ("apple", "aquarium_fish")
