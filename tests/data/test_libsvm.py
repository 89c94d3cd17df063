"""Files in the LIBSVM format, and the one of Rizk 2023."""

import bz2
import gzip
import hashlib
import importlib

import numpy as np
import pytest

from fljax.data import ijcnn1, libsvm

module = importlib.import_module("fljax.data.libsvm")  # whose name the function takes
TEXT = "+1 2:0.5 4:-2e-1  # a remark\n\n-1 1:3\n1.5\n"
DENSE = [[0, 0.5, 0, -0.2], [3, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("pack", [lambda b: b, gzip.compress, bz2.compress])
def test_samples_are_read_plain_or_compressed(tmp_path, pack):
    path = tmp_path / "file"
    path.write_bytes(pack(TEXT.encode()))
    table, labels = libsvm(path)
    np.testing.assert_array_equal(table.toarray(), DENSE)
    assert labels.tolist() == [1, -1, 1.5]
    table, labels = libsvm(str(path), features=6, rows=2)
    assert table.shape == (2, 6)
    np.testing.assert_array_equal(table.toarray()[:, :4], DENSE[:2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("+1 2:0.5\n-1 two:1\n", "line 2 of .* is no sample 'label index:value ...': '-1 two:1'"),
        ("yes 1:1\n", "line 1 of"),
        ("1 3\n", "line 1 of"),
        ("1 0:3\n", "line 1 of .* has an index below 1"),
        ("1 2:3 2:4\n", "line 1 of .* has index 2 after 2; indices must rise"),
        ("-1 1:1\n1 3:3 2:4\n", "line 2 of .* has index 2 after 3"),
        ("nan 1:1\n", "line 1 of .* a label or value that is not finite"),
        ("1 1:inf\n", "line 1 of .* a label or value that is not finite"),
        ("1 3000000000:1\n", "line 1 of .* has an index beyond"),
        ("1 5:3\n", "has a feature 5, beyond the 4 asked for"),
        ("# nothing\n", "holds no samples"),
    ],
)
def test_invalid_samples_are_named(tmp_path, text, message):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        libsvm(path, 4)


def test_more_rows_than_there_are_are_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text(TEXT)
    with pytest.raises(ValueError, match=r"rows must be at most the 3 of .*, got 4"):
        libsvm(path, rows=4)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:30] + b"?" * 40])
def test_damaged_files_are_named(tmp_path, pack, damage):
    path = tmp_path / "file"
    rng = np.random.default_rng(0)
    lines = "".join(f"1 1:{value}\n" for value in rng.normal(size=2000))
    path.write_bytes(damage(pack(lines.encode())))
    with pytest.raises(ValueError, match="compressed and cannot be read to its end, after"):
        libsvm(path)


def test_binary_files_are_named(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\xfd7zXZ\x00\x00\x04\xe6")
    with pytest.raises(ValueError, match=r"is no text.*unpack it first"):
        libsvm(path)


def test_a_file_that_is_not_there_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no file"):
        libsvm(tmp_path / "none")
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path))
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"ijcnn1\.trn\.bz2 was not found"):
        ijcnn1()


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Made-up files in their place."""
    rng = np.random.default_rng(0)
    files = {}
    (tmp_path / "ijcnn1").mkdir()
    for name, count in zip(module.IJCNN1_FILES, (30, 20), strict=True):
        rows = [
            f"{rng.choice([-1.0, 1.0])} "
            + " ".join(f"{i}:{rng.normal():.6f}" for i in range(1, 23))
            for _ in range(count)
        ]
        content = bz2.compress("\n".join(rows).encode())
        (tmp_path / name).write_bytes(content)
        files[name] = hashlib.sha256(content).hexdigest()
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path))
    monkeypatch.setattr(module, "IJCNN1_FILES", files)


def test_ijcnn1_is_a_stretch_of_its_training_file_and_all_of_the_other(small):
    table = ijcnn1(12)
    assert table.features.shape == (12, 22)
    assert table.test_features.shape == (20, 22)
    assert set(np.unique(table.labels)) == {-1, 1}
    np.testing.assert_array_equal(table.features, ijcnn1(30).features[:12])
    with pytest.raises(ValueError, match=r"at most the 30 of .*, got 31"):
        ijcnn1(31)


@pytest.mark.slow
def test_ijcnn1_matches_its_description():
    try:
        table = ijcnn1()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert table.features.shape == (35_000, 22)
    assert table.test_features.shape == (91_701, 22)
    for labels in (table.labels, table.test_labels):
        assert abs(np.mean(labels == -1) - 0.905) < 0.005
    first = np.zeros(22)
    first[[5, *range(10, 22)]] = [
        *(1, -0.731854, 0.173431, 0.0, 0.00027, 0.011684, -0.011052),
        *(0.024452, 0.008337, 0.001324, 0.025544, -0.040728, -0.00081),
    ]
    np.testing.assert_allclose(table.features[0], first, rtol=1e-6)
