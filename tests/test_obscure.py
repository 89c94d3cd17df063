"""Wrong files, keys and places that once ended in another library's words."""

import jax
import numpy as np
import pytest

import fljax as fl
from fljax._rows import Rows

METHODS = {"FedAvg": (fl.algorithms.FedAvg, {"step_size": (0.1, 1.0)})}


@pytest.fixture(scope="module")
def simulation():
    problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2)
    return fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics="objective")


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "folder").mkdir()
        contents = {"text": b"hello", "list": b"[]", "dict": b"{}", "bytes": b"\xff\xfe\x00a"}
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    @pytest.mark.parametrize("name", ["text", "list", "dict", "bytes"])
    def test_what_is_not_of_tuned_methods_is_named(self, folder, name):
        with pytest.raises(ValueError, match=f"{name} (is not what Tuned.save wrote|is no text)"):
            fl.Tuned.load(folder / name, METHODS)

    @pytest.mark.parametrize("name", ["folder", "missing", "text/below"])
    @pytest.mark.parametrize(
        "read",
        [lambda path: fl.Tuned.load(path, METHODS), fl.data.read_idx, fl.data.Population],
        ids=["Tuned", "read_idx", "Population"],
    )
    def test_what_is_not_there_is_named(self, folder, read, name):
        with pytest.raises(FileNotFoundError, match=r"no (file|population)") as caught:
            read(folder / name)
        assert str(folder / name) in str(caught.value)
        assert "Errno" not in str(caught.value)

    def test_a_file_is_no_folder(self, folder):
        with pytest.raises(NotADirectoryError, match="text is, or is below, a file"):
            fl.data.write_population(folder / "text" / "people", [(np.ones((2, 1)), np.ones(2))])
        ax = fl.plotting.draw_graph(fl.graphs.ring(4))
        for place in ("text", "missing"):
            with pytest.raises(FileNotFoundError, match=f"no folder .*{place}; create it first"):
                fl.plotting.save(ax, folder / place / "x.png")

    def test_a_mark_of_the_encoding_is_no_label(self, tmp_path):
        path = tmp_path / "marked"
        path.write_bytes(b"\xef\xbb\xbf+1 1:0.5\n-1 2:1 # caf\xc3\xa9\n")
        samples, labels = fl.data.libsvm(path)
        assert samples.toarray().tolist() == [[0.5, 0.0], [0.0, 1.0]]
        assert labels.tolist() == [1, -1]


@pytest.mark.parametrize(
    "key",
    [
        jax.random.split(jax.random.key(0), 3),
        jax.random.split(jax.random.key(0), 1),
        np.zeros(3, np.uint32),
        [1, 2],
        1.5,
        None,
    ],
    ids=["keys", "one of them", "words", "list", "number", "none"],
)
@pytest.mark.parametrize(
    "use",
    [
        lambda key, _: fl.privacy.gaussian_release(key, np.ones((2, 2)), 1.0, 1.0, 1e-5),
        lambda key, _: fl.data.randomized_labels(key, np.array([0, 1]), np.array([0, 1]), 0.5),
        lambda key, simulation: fl.run(simulation, 2, key=key),
        lambda key, simulation: simulation.problem.split(key, 0.5),
    ],
    ids=["release", "labels", "run", "split"],
)
def test_a_key_is_one_random_key(use, key, simulation):
    with pytest.raises(
        (TypeError, ValueError), match=r"key must be (a random key|an array or an integer)"
    ):
        use(key, simulation)


def test_runs_are_no_part_of_a_compiled_function(simulation):
    with pytest.raises(TypeError, match=r"fljax\.run compiles programs of its own"):
        jax.jit(lambda x: fl.run(simulation, 2).objective.values)(1.0)
    with pytest.raises(TypeError, match=r"fljax\.sweep compiles programs of its own"):
        jax.jit(lambda x: fl.sweep(lambda key: simulation, rounds=2).objective.values)(1.0)


def test_rows_of_a_cohort_are_not_all_clients():
    rows = Rows("features", np.array([1]), np.ones((1, 4, 2)), clients=9)
    for name in ("reshape", "sum", "T", "mean"):
        with pytest.raises(TypeError, match="all clients' features are asked for"):
            getattr(rows, name)
    assert not hasattr(rows, "to_numpy")


def test_single_and_double_precision_do_not_meet(simulation):
    single = jax.tree.map(lambda a: np.asarray(a, np.float32), fl.graphs.ring(3))
    with pytest.raises(TypeError, match="problem is of float64 and the network of float32"):
        fl.Simulation(simulation.problem, fl.algorithms.ATC(0.1), single)


def test_a_name_of_two_lines_is_one_cell_of_a_table(simulation):
    results = fl.sweep(
        lambda key, algorithm: fl.Simulation(simulation.problem, algorithm, metrics="objective"),
        grid={
            "algorithm": {"one\nmethod": fl.algorithms.FedAvg(0.1), "b": fl.algorithms.FedAvg(1.0)}
        },
        rounds=2,
        seeds=2,
    )
    rows = fl.table(results).markdown().splitlines()
    assert any(row.startswith("| one method |") for row in rows)
