"""Populations read in place: the samples and the runs of the same population in files."""

import pickle

import jax
import numpy as np
import pytest

import fljax as fl
from fljax._core.devices import configured
from fljax.problems import population_sources

SAMPLES = 60
CLIENTS = 7


class Items:
    """A random-access source, which counts the rows that are read."""

    def __init__(self, rows):
        self.rows = rows
        self.read = []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        self.read.append(row)
        return self.rows[row]


class Batches(Items):
    """The same with rows read together, as grain's sources have it."""

    def __getitem__(self, row):
        raise AssertionError("rows are read together")

    def __getitems__(self, rows):
        self.read.append(rows)
        return [self.rows[row] for row in rows]


def columns(dtype="f4"):
    rng = np.random.default_rng(0)
    who = [f"client {k}" for k in rng.permutation(np.arange(SAMPLES) % CLIENTS)]
    x = rng.normal(size=(SAMPLES, 3)).astype(dtype)
    return {"who": who, "x": x, "y": (x[:, 0] > 0).astype("i4")}


def rows_of(table):
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def in_place(source, client="who", features="x", target="y", **settings):
    return fl.data.SourcePopulation(source, client, features, target, **settings)


@pytest.fixture
def written(tmp_path):
    clients = fl.data.clients_of_dataset(columns(), "who", "x", "y")
    return fl.data.write_population(tmp_path / "written", clients)


def saved(tmp_path, table=None, features=None):
    """A data set of Hugging Face's on disk, memory-mapped."""
    datasets = pytest.importorskip("datasets")
    types = {
        "who": datasets.Value("string"),
        "x": datasets.List(datasets.Value("float32")),
        "y": datasets.Value("int32"),
    }
    table = columns() if table is None else table
    types = datasets.Features(types | (features or {}))
    datasets.Dataset.from_dict(table, features=types).save_to_disk(tmp_path / "saved")
    return datasets.load_from_disk(tmp_path / "saved")


def mapped(tmp_path, table=None):
    """A table of pyarrow in a memory-mapped file."""
    arrow = pytest.importorskip("pyarrow")
    table = columns() if table is None else table
    lists = arrow.FixedSizeListArray.from_arrays(
        arrow.array(table["x"].reshape(-1)), table["x"].shape[1]
    )
    written = arrow.table({"who": table["who"], "x": lists, "y": table["y"]})
    path = str(tmp_path / "table.arrow")
    with arrow.OSFile(path, "wb") as file, arrow.ipc.new_file(file, written.schema) as writer:
        writer.write_table(written)
    return arrow.ipc.open_file(arrow.memory_map(path)).read_all()


SOURCES = {
    "list": lambda tmp_path: rows_of(columns()),
    "items": lambda tmp_path: Items(rows_of(columns())),
    "batches": lambda tmp_path: Batches(rows_of(columns())),
    "datasets": saved,
    "sorted datasets": lambda tmp_path: saved(tmp_path).sort("who"),
    "arrow": mapped,
    "sorted arrow": lambda tmp_path: mapped(tmp_path).sort_by("who"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_clients_are_those_of_files(source, written, tmp_path):
    client = columns()["who"] if source == "batches" else "who"
    population = in_place(SOURCES[source](tmp_path), client)
    assert sorted(population.names) == sorted(written.names)
    assert population.features == ((3,), np.dtype("float32"))
    numbers = [population.names.index(name) for name in written.names]
    order = np.argsort(numbers)
    for number, (x, y) in zip(numbers, map(written.__getitem__, range(CLIENTS)), strict=True):
        np.testing.assert_array_equal(population[number][0], x)
        np.testing.assert_array_equal(population[number][1], y)
    for one, other in zip(population.read(numbers), written.read(range(CLIENTS)), strict=True):
        np.testing.assert_array_equal(one, other)
    of_all = population.read_pooled(range(CLIENTS)), written.read_pooled(order)
    np.testing.assert_array_equal(of_all[0].features, of_all[1].features)


@pytest.mark.parametrize("source", ["items", "datasets", "arrow"])
def test_a_run_equals_that_over_files(source, written, tmp_path):
    def run(population):
        problem = fl.problems.Model.from_population(
            population,
            fl.models.mlp(2, hidden=[4]),
            jax.random.key(0),
            fl.problems.Softmax(2),
            evaluated=[0, 3],
        )
        algorithm = fl.algorithms.SCAFFOLD(0.1, clients_per_round=3, local_steps=2, batch=2)
        simulation = fl.Simulation(problem, algorithm, metrics=["train_error"])
        return fl.run(simulation, rounds=4, key=1)

    in_files, read_in_place = run(written), run(in_place(SOURCES[source](tmp_path)))
    np.testing.assert_array_equal(in_files.model, read_in_place.model)
    np.testing.assert_array_equal(in_files.train_error, read_in_place.train_error)


def test_rows_of_participants_alone_are_read():
    source = Items(rows_of(columns()))
    population = in_place(source, columns()["who"])
    source.read.clear()
    population.read([4, 2])
    owners = [population.names.index(columns()["who"][row]) for row in source.read]
    assert owners == sorted(owners, reverse=True)
    assert set(owners) == {4, 2}
    assert len(source.read) == population.sizes[[4, 2]].sum()


@pytest.mark.parametrize("kind", ["datasets", "arrow"])
def test_rows_that_stand_together_are_views_of_the_file(kind, tmp_path, monkeypatch):
    """No array of a client's samples is made before the cohort's."""
    arrow = pytest.importorskip("pyarrow")
    table = columns() | {"x": np.ones((SAMPLES, 10_000), "f4")}
    order = np.argsort(table["who"], kind="stable")
    ordered = {name: np.asarray(column)[order] for name, column in table.items()}
    ordered["who"] = ordered["who"].tolist()
    source = {"datasets": saved, "arrow": mapped}[kind](tmp_path, ordered)
    population = in_place(source)
    allocated = []
    numbers_of = population_sources._numbers_of

    def noted(column):
        array = numbers_of(column)
        allocated.append(arrow.total_allocated_bytes() - before)
        return array

    monkeypatch.setattr(population_sources, "_numbers_of", noted)
    before = arrow.total_allocated_bytes()
    population.read([1, 5])
    assert len(allocated) == 4
    assert max(allocated) < 1_000  # a client's samples have 40 kB each


def test_columns_of_images_are_decoded(tmp_path):
    """Columns that are not numbers are decoded by the data set; arrays of two axes are numbers."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("PIL")
    pixels = np.random.default_rng(0).integers(0, 255, (SAMPLES, 4, 5), dtype="u1")
    table = columns() | {"image": list(pixels), "array": pixels}
    types = {"image": datasets.Image(), "array": datasets.Array2D((4, 5), "uint8")}
    source = saved(tmp_path, table, types)
    for name in ("image", "array"):
        population = in_place(source, features=name)
        assert population.features == ((4, 5), np.dtype("u1"))
        rows = [row for row, who in enumerate(table["who"]) if who == population.names[2]]
        np.testing.assert_array_equal(population[2][0], pixels[rows])


def test_rows_that_are_tuples_and_partitions_are_taken():
    table = columns()
    tuples = list(zip(table["x"], table["y"], strict=True))
    partition = fl.partitions.Dirichlet(1.0).draw(0, table["y"], clients=3)
    population = in_place(tuples, partition, 0, 1)
    assert population.names == ["0", "1", "2"]
    for client, rows in enumerate(partition.rows()):
        np.testing.assert_array_equal(population[client][0], table["x"][rows])


def test_a_population_goes_to_another_process():
    population = in_place(rows_of(columns()))
    copy = pickle.loads(pickle.dumps(population))
    assert copy == population
    assert hash(copy) == hash(population)
    assert copy.digest == population.digest


def test_contents_are_recognized():
    """By the samples, or by the version that they are given."""
    same = in_place(rows_of(columns()))
    changed = columns()
    changed["x"][7] += 1
    assert in_place(rows_of(columns())) == same
    assert in_place(rows_of(changed)) != same
    assert in_place(rows_of(changed), version="a") == in_place(rows_of(columns()), version="a")
    assert in_place(rows_of(columns()), version="b") != in_place(rows_of(columns()), version="a")
    other_owners = columns()
    owners = other_owners["who"]
    other = next(row for row in range(SAMPLES - 1, 0, -1) if owners[row] != owners[-1])
    owners[other], owners[-1] = owners[-1], owners[other]  # the same names and sizes
    swapped = in_place(rows_of(other_owners), version="a")
    original = in_place(rows_of(columns()), version="a")
    assert swapped.names == original.names
    assert swapped.digest != original.digest


def test_a_data_set_has_its_fingerprint(tmp_path, monkeypatch):
    """Its samples are not read for it."""
    source = saved(tmp_path)
    population = in_place(source)
    monkeypatch.setattr(population, "_samples", None)
    assert len(population.digest) == 64
    assert population != in_place(source.select(range(SAMPLES - 1)))


def test_a_store_goes_on_over_the_same_source(tmp_path):
    def study(source, rounds):
        population = in_place(source)

        def scenario(key, step_size):
            problem = fl.problems.from_population(
                population, fl.problems.Softmax(2), test=population[0]
            )
            algorithm = fl.algorithms.FedAvg(step_size, clients_per_round=3)
            return fl.Simulation(problem, algorithm, metrics=["accuracy"])

        return fl.sweep(
            scenario, grid={"step_size": [0.1]}, seeds=1, rounds=rounds, store=tmp_path / "study"
        )

    first = study(rows_of(columns()), 2)
    again = study(rows_of(columns()), 2)
    np.testing.assert_array_equal(first.accuracy, again.accuracy)
    changed = columns()
    changed["x"][7] += 1
    with pytest.raises(fl.OtherStudyError):
        study(rows_of(changed), 2)


@pytest.mark.parametrize(
    ("source", "settings", "error", "message"),
    [
        ({"x": [1.0]}, {}, TypeError, r"source must have len\(source\) and source\[row\]"),
        (iter([]), {}, TypeError, r"source must have len\(source\)"),
        ([], {}, ValueError, "the source has no rows"),
        ([{"who": "a", "x": [1.0]}], {}, ValueError, r"client 0 \('a'\) cannot be read: no 'y'"),
        ([{"x": [1.0], "y": 0}], {}, ValueError, "no 'who' in a row"),
        (
            [{"who": None, "x": [1.0], "y": 0}] * 2,
            {},
            ValueError,
            "client has nothing in row 0|row 0",
        ),
        (
            [{"who": "a", "x": [1.0], "y": 0}] * 3,
            {"client": ["a", "b"]},
            ValueError,
            "client of each of the 3 rows, got 2",
        ),
        (
            [{"who": "a", "x": [1.0], "y": 0}, {"who": "a", "x": [1.0, 2.0], "y": 0}],
            {},
            ValueError,
            r"client 0 \('a'\) cannot be read: all input arrays must have the same shape",
        ),
        (
            [{"who": "a", "x": [float("nan")], "y": 0}],
            {},
            ValueError,
            r"features of client 0 \('a'\) holds 1 NaN",
        ),
    ],
)
def test_sources_that_cannot_be_read_are_named(source, settings, error, message):
    with pytest.raises(error, match=message):
        in_place(source, **settings)


def test_a_later_client_that_is_wrong_is_named_when_it_is_read():
    rows = rows_of(columns())
    rows[0] = {**rows[0], "x": rows[0]["x"][:2]}
    rows += [{"who": "late", "x": np.ones(4, "f4"), "y": 1}]
    wrong = rows[0]["who"]
    population = in_place(sorted(rows, key=lambda row: row["who"] == wrong))
    with pytest.raises(ValueError, match=rf"\('{wrong}'\) cannot be read"):
        population[population.names.index(wrong)]
    with pytest.raises(ValueError, match=r"must have features \[samples, 3\] as the first client"):
        population[population.names.index("late")]


def test_missing_columns_and_entries_of_tables_are_named(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"who": ["a", "b"], "x": [[1.0], [2.0]], "y": [1, None]})
    with pytest.raises(ValueError, match="no column 'z'; there are 'who', 'x', 'y'"):
        in_place(table, features="z")
    with pytest.raises(ValueError, match="no column 'owner'"):
        in_place(table, client="owner")
    population = in_place(table)
    with pytest.raises(ValueError, match=r"client 1 \('b'\) cannot be read: a row has nothing"):
        population[1]
    lists = arrow.table({"who": ["a", "a"], "x": [[1.0], [2.0, 3.0]], "y": [1, 0]})
    with pytest.raises(ValueError, match="lists of a column have different lengths"):
        in_place(lists)
    with pytest.raises(TypeError, match="features of client 0"):
        in_place(table, features="who")


def test_frames_are_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="clients_of_dataset and write_population"):
        in_place(pandas.DataFrame({"who": ["a"], "x": [1.0], "y": [0]}))


def test_single_precision_takes_whole_numbers_and_floats():
    with configured("jax_enable_x64", False):
        population = in_place(rows_of(columns("f8")))
        problem = fl.problems.from_population(population, fl.problems.Softmax(2))
        assert problem.read(np.array([0, 1]))["features"].dtype == np.float32
