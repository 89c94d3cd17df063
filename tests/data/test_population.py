"""Populations on disk: round trips, and refusal of half-written or changed files."""

import errno
import itertools
import json
import os
import pickle

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fljax as fl
from fljax.data import Population, clients_of_dataset, write_population
from fljax.problems import population_files


def clients(sizes=(3, 1, 4), dim=2):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, dim)).astype("f4"), rng.integers(0, 9, n)) for n in sizes]


@pytest.fixture
def written(tmp_path):
    return write_population(
        tmp_path / "people", [(*c, f"user {k}") for k, c in enumerate(clients())]
    )


def test_written_populations_are_read(written):
    assert len(written) == 3
    assert written.sizes.tolist() == [3, 1, 4]
    assert written.names == ["user 0", "user 1", "user 2"]
    for k, (x, y) in enumerate(clients()):
        got_x, got_y = written[k]
        np.testing.assert_array_equal(got_x, x)
        np.testing.assert_array_equal(got_y, y)
        assert (got_x.dtype, got_y.dtype) == (x.dtype, y.dtype)


def test_a_cohort_is_padded_with_its_last_samples(written):
    cohort = written.read([2, 1])
    assert cohort.sizes.tolist() == [4, 1]
    x, y = clients()[1]
    np.testing.assert_array_equal(cohort.features[1], np.repeat(x, 4, axis=0))
    np.testing.assert_array_equal(cohort.targets[1], np.repeat(y, 4))


def test_files_are_numpys(written):
    features = np.load(written.folder / "features.npy", mmap_mode="r")
    np.testing.assert_array_equal(features, np.concatenate([x for x, _ in clients()]))


def test_clients_come_one_at_a_time(tmp_path):
    alive = []

    class Counted(np.ndarray):
        def __del__(self):
            alive.remove(1)

    def client(k):
        alive.append(1)
        return np.zeros((2, 1), "f4").view(Counted), np.zeros(2, "i4")

    most = []

    def stream():
        for k in range(20):
            yield client(k)
            most.append(len(alive))

    write_population(tmp_path / "p", stream())
    assert max(most) <= 2


def test_a_reopened_population_is_the_same(written, tmp_path):
    again = pickle.loads(pickle.dumps(Population(written.folder)))
    assert again == written
    assert hash(again) == hash(written)
    other = write_population(tmp_path / "other", clients())
    assert other != written  # its clients have no names
    changed = clients()
    changed[1][0][0, 0] += 1
    assert write_population(tmp_path / "changed", changed) != other


def test_images_of_bytes_stay_bytes(tmp_path):
    images = [(np.full((2, 3, 3, 1), k, np.uint8), np.arange(2)) for k in range(2)]
    population = write_population(tmp_path / "images", images)
    assert population.features == ((3, 3, 1), np.dtype("u1"))
    assert population[1][0].dtype == np.uint8


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ([], ValueError, "at least one client"),
        ([clients()[0], (np.zeros((0, 2), "f4"), np.zeros(0))], ValueError, "client 1 has no samp"),
        ([clients()[0], (np.zeros((2, 3), "f4"), np.zeros(2, int))], ValueError, "client 1 must"),
        ([clients()[0], (np.zeros((2, 2), "f4"), np.zeros(3, int))], ValueError, "one target of"),
        ([clients()[0], (np.zeros((2, 2), "f4"), np.zeros(2))], ValueError, "of type int64"),
        ([(np.full((1, 2), np.nan, "f4"), np.zeros(1, int))], ValueError, "features of client 0"),
        ([(np.zeros((1, 2)),)], TypeError, "client 0 must be"),
        ([np.zeros((2, 2))], TypeError, "client 0 must be"),
        ([(np.array([["a"]]), np.zeros(1))], TypeError, "features of client 0"),
        ([(*clients()[0], "ada"), (*clients()[1], "ada")], ValueError, "two clients are called"),
        ([(*clients()[0], "ada"), clients()[1]], ValueError, "client 1 has no name"),
        (
            [
                (np.zeros((1, 1), "i2"), np.zeros(1, "u1")),
                (np.full((1, 1), 2**20), np.zeros(1, "u1")),
            ],
            ValueError,
            "int16, the first client's type, cannot hold",
        ),
        (
            [(np.zeros((1, 1), "f4"), np.zeros(1)), (np.full((1, 1), 1e300), np.zeros(1))],
            ValueError,
            "features of client 1",
        ),
    ],
)
def test_invalid_clients_are_refused_and_nothing_is_left(wrong, error, message, tmp_path):
    with np.errstate(over="ignore"), pytest.raises(error, match=message):
        write_population(tmp_path / "p", wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_is_wrong_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"client 1 \('eve'\) has no samples"):
        write_population(
            tmp_path / "p", [(*clients()[0], "ada"), (np.zeros((0, 2)), np.zeros(0), "eve")]
        )


def test_a_population_is_written_once(written):
    with pytest.raises(FileExistsError, match="written once"):
        write_population(written.folder, clients())


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(self, rows):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(population_files._Growing, "add", full)
    with pytest.raises(OSError, match=r"population in .*/p' could not be written: No space left"):
        write_population(tmp_path / "p", clients())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_folder_is_refused_as_a_population(tmp_path):
    def stream():
        yield clients()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_population(tmp_path / "p", stream())
    assert not (tmp_path / "p").exists()
    with pytest.raises(FileNotFoundError, match="no population in"):
        Population(tmp_path / "p")


@pytest.mark.parametrize("name", ["features.npy", "targets.npy"])
@pytest.mark.parametrize("cut", [1, 40, 10_000])
def test_a_truncated_file_is_known_for_it(written, name, cut):
    path = written.folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-cut] if cut < len(content) else b"")
    with pytest.raises(ValueError, match=f"{name} (is truncated|is not NumPy|must hold)"):
        Population(written.folder)


@pytest.mark.parametrize("client", range(3))
@pytest.mark.parametrize("name", ["features.npy", "targets.npy"])
def test_changed_samples_are_found_when_they_are_read(written, name, client):
    path = written.folder / name
    at = int(written.sizes[:client].sum())
    content = bytearray(path.read_bytes())
    itemsize = {"features.npy": 8, "targets.npy": 8}[name]
    content[len(content) - itemsize * (int(written.sizes.sum()) - at)] ^= 1
    path.write_bytes(content)
    opened = Population(written.folder)
    with pytest.raises(ValueError, match=rf"client {client} \('user {client}'\).*were changed"):
        opened.read([client])
    for other in {0, 1, 2} - {client}:
        opened.read([other])


@pytest.mark.parametrize("name", ["clients.npy", "names.json", "population.json"])
def test_changed_descriptions_are_found(written, name):
    path = written.folder / name
    if name == "clients.npy":
        table = np.load(path)
        table["samples"][:2] = table["samples"][1::-1]
        np.save(path, table)
    else:
        path.write_text(path.read_text().replace("user 1", "user 7").replace("<f4", "<i4"))
    with pytest.raises(ValueError, match=r"was changed since|must hold"):
        Population(written.folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[]", "format 1"), ('{"format": 9}', "format 1")],
)
def test_another_folder_is_refused_as_a_population(tmp_path, content, message):
    (tmp_path / "population.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Population(tmp_path)


@pytest.mark.parametrize("name", ["format", "features", "targets", "named", "digest"])
@pytest.mark.parametrize(
    "value",
    [None, "|O", {"shape": [2], "dtype": "|O"}, {"shape": "2", "dtype": "<f4"}, {"dtype": "<f4"}]
    + [{"shape": [size], "dtype": "<f4"} for size in (-2, 0, 2.0, "2")],
)
def test_a_planted_description_is_refused(written, name, value):
    """Whatever it says, its digest right: bytes never become objects."""
    path = written.folder / "population.json"
    about = json.loads(path.read_text()) | {name: value}
    if value is None:
        del about[name]
    elif name != "digest":
        entries = np.load(written.folder / "clients.npy")
        about["digest"] = population_files._digest(about, entries, written.names)
    path.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"format 1; write it again|was changed since"):
        Population(written.folder)


def test_invalid_names_are_refused(written):
    (written.folder / "names.json").write_text("{")
    with pytest.raises(ValueError, match=r"names\.json is not JSON"):
        Population(written.folder)


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("bfloat16", "f4"),
        ("float8_e4m3fn", "f4"),
        (np.longdouble, "f8"),
        (bool, "i4"),
        (">f4", "f4"),
    ],
)
def test_types_are_portable(tmp_path, written, stored):
    """What NumPy's files have no name for would come back as bytes."""
    rows = np.array([[0.5, 1.0], [0.0, 2.0]]).astype(jnp.dtype(written))
    population = write_population(tmp_path / "p", [(rows, np.arange(2))])
    assert population.features[1] == stored
    np.testing.assert_array_equal(population[0][0], rows.astype(stored))


@pytest.mark.parametrize("ask", [3, -1, 1.5, "a", True])
def test_unknown_clients_are_refused(written, ask):
    with pytest.raises(IndexError, match="numbered from 0 to 2"):
        written[ask]


def test_empty_cohorts_are_refused(written):
    with pytest.raises(IndexError, match="numbered from 0 to 2"):
        written.read([0, 3])
    with pytest.raises(TypeError, match="list of numbers"):
        written.read([0.5])


def test_rows_of_a_table_become_clients(tmp_path):
    table = {
        "writer": np.array(["b", "a", "b", "c", "a"]),
        "image": np.arange(10).reshape(5, 2).astype("f4"),
        "digit": np.arange(5),
    }
    population = write_population(
        tmp_path / "p",
        clients_of_dataset(table, client="writer", features="image", target="digit"),
    )
    assert population.names == ["b", "a", "c"]
    assert [population[k][1].tolist() for k in range(3)] == [[0, 2], [1, 4], [3]]
    with pytest.raises(ValueError, match="no column 'user'; there are 'writer', 'image', 'digit'"):
        clients_of_dataset(table, client="user", features="image", target="digit")
    with pytest.raises(TypeError, match="must have named columns"):
        clients_of_dataset([1, 2], client="user", features="image", target="digit")


OWNERS = ["b", "a", "b", "c", "a"]


def as_frame(table):
    return pd.DataFrame({name: list(column) for name, column in table.items()})


@pytest.mark.parametrize(
    "of",
    [
        dict,
        as_frame,
        lambda table: as_frame(table).set_index(pd.Index([3, 1, 0, 4, 2])),
        lambda table: as_frame(table).set_index(pd.Index([7, 7, 7, 7, 7])),
        lambda table: dict(as_frame(table).set_index(pd.Index([3, 1, 0, 4, 2]))),
        lambda table: as_frame(table).astype({"who": "category"}),
        lambda table: pytest.importorskip("polars").DataFrame(
            {name: list(column) for name, column in table.items()}
        ),
    ],
    ids=["dict", "frame", "shuffled", "repeated", "series", "categories", "polars"],
)
def test_rows_are_found_by_their_place_and_not_by_an_index(of):
    table = of({"who": OWNERS, "x": np.arange(10.0).reshape(5, 2).tolist(), "y": np.arange(5)})
    clients = clients_of_dataset(table, client="who", features="x", target="y")
    assert [(x.tolist(), y.tolist(), name) for x, y, name in clients] == [
        ([[0.0, 1.0], [4.0, 5.0]], [0, 2], "b"),
        ([[2.0, 3.0], [8.0, 9.0]], [1, 4], "a"),
        ([[6.0, 7.0]], [3], "c"),
    ]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("who", ["b", None, "b", "c", "a"], "'who' must be .* got None in row 1"),
        ("who", ["b", "a", np.nan, "c", "a"], "'who' must be .* got nan in row 2"),
        ("who", [0.0, 1.0, 0.0, np.nan, 1.0], "'who' must be .* got nan in row 3"),
        ("who", ["1", 1, "1", 1, 2], "text, '1' in row 0, and 1 of type int in row 1"),
        ("who", ["b", "a"], r"one length, of one row or more, got {'who': 2, 'x': 5, 'y': 5}"),
        ("x", [1.0, 2.0], r"one length, of one row or more, got {'who': 5, 'x': 2, 'y': 5}"),
        ("y", [0, 1, None, 2, 3], "'y' has nothing in row 2"),
        ("x", [0.0, 1.0, 2.0, 3.0, np.nan], "'x' has nothing in row 4"),
    ],
)
def test_a_row_without_an_owner_or_a_value_is_named(column, values, message):
    table = {"who": OWNERS, "x": np.arange(5.0), "y": np.arange(5), column: values}
    with pytest.raises(ValueError, match=message):
        clients_of_dataset(table, client="who", features="x", target="y")


@pytest.mark.parametrize("name", [None, float("nan"), pd.NaT, pd.NA])
def test_a_missing_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="client 0 must have a name"):
        write_population(tmp_path / "p", [(np.ones((2, 1)), np.ones(2), name)])


def test_rows_of_hugging_faces_datasets_become_clients(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(
        {"who": [2, 1, 2], "x": [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], "y": [0, 1, 1]}
    )
    population = write_population(
        tmp_path / "p", clients_of_dataset(table, client="who", features="x", target="y")
    )
    assert population.names == ["2", "1"]
    np.testing.assert_array_equal(population[0][0], [[1, 0], [3, 0]])


def test_users_of_leaf_become_a_population(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        users = {"users": ["ada", "bob"], "num_samples": [1, 2], "user_data": {}}
        for user, n in zip(users["users"], users["num_samples"], strict=True):
            users["user_data"][user] = {"x": [[0.5] * 784] * n, "y": [3] * n}
        (tmp_path / part / "all.json").write_text(json.dumps(users))
    read = fl.data.femnist(tmp_path)
    population = write_population(
        tmp_path / "p", ((*c, n) for c, n in zip(read.clients, read.names, strict=True))
    )
    assert (population.names, population.sizes.tolist()) == (["ada", "bob"], [1, 2])
    assert population.features[0] == (28, 28, 1)


BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([([[1.0]], [1.0]), (np.array([[1]]), np.array([BIG]))], "targets that float64"),
        ([([[1.0]], [1.0]), (np.array([[BIG]]), np.array([1]))], "features that float64"),
        ([([[1.0], [2.0]], [BIG, 0.5])], f"targets of client 0 hold {BIG} beside"),
    ],
)
def test_whole_numbers_do_not_become_others(tmp_path, clients, message):
    with pytest.raises(ValueError, match=message):
        write_population(tmp_path / "p", clients)
    assert write_population(tmp_path / "q", [([[1]], [BIG])])[0][1].tolist() == [BIG]


def test_a_partition_of_a_tables_rows_is_a_population(tmp_path):
    """Columns may be files larger than memory: the samples of one client are read at a time."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 255, (40, 3), np.uint8))
    labels = np.arange(40) % 4
    read = []

    class Column:
        """A memory map that counts what is read of it."""

        array = np.load(tmp_path / "x.npy", mmap_mode="r")

        def __len__(self):
            return len(self.array)

        def __getitem__(self, row):
            read.append(row)
            return self.array[row]

    partition = fl.partitions.AtLeast(fl.partitions.Dirichlet(0.3), 2).draw(1, labels, clients=5)
    table = {"x": Column(), "y": labels}
    clients = clients_of_dataset(table, partition, features="x", target="y")
    read.clear()
    first = next(clients)
    assert sorted(read) == sorted(partition.rows()[0].tolist())
    population = write_population(tmp_path / "p", itertools.chain([first], clients))
    assert population.names == [str(number) for number in range(5)]
    for number, rows in enumerate(partition.rows()):
        features, targets = population[number]
        np.testing.assert_array_equal(features, Column.array[rows])
        np.testing.assert_array_equal(targets, labels[rows])


def test_partitions_that_are_not_of_the_table_are_named():
    table = {"x": np.zeros((6, 2)), "y": np.zeros(6)}

    def clients(partition):
        return clients_of_dataset(table, partition, features="x", target="y")

    with pytest.raises(ValueError, match="of the 6 rows of the table, got one of 4"):
        clients(fl.partitions.IID().draw(0, 4, clients=2))
    with pytest.raises(ValueError, match="of the 6 rows of the table, got one of 9"):
        clients(fl.partitions.IID().draw(0, 9, clients=2))
    partition = fl.partitions.Partition(np.arange(6), np.array([0, 6, 6]))
    with pytest.raises(ValueError, match=r"client 1 of the partition has no rows.*AtLeast"):
        clients(partition)
