"""Wrong files, keys and places that once ended in another library's words."""

import jax
import jaxtyping
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fljax as fl
from fljax._core.cohort_rows import Rows
from fljax.problems import Softmax

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
    def test_results_without_tuned_methods_are_named(self, folder, name):
        with pytest.raises(ValueError, match=f"{name} (is not what Tuned.save wrote|is no text)"):
            fl.Tuned.load(folder / name, METHODS)

    @pytest.mark.parametrize("name", ["folder", "missing", "text/below"])
    @pytest.mark.parametrize(
        "read",
        [lambda path: fl.Tuned.load(path, METHODS), fl.data.read_idx, fl.data.Population],
        ids=["Tuned", "read_idx", "Population"],
    )
    def test_missing_files_are_named(self, folder, read, name):
        with pytest.raises(FileNotFoundError, match=r"no (file|population)") as caught:
            read(folder / name)
        assert str(folder / name) in str(caught.value)
        assert "Errno" not in str(caught.value)

    def test_a_file_is_refused_as_a_folder(self, folder):
        with pytest.raises(NotADirectoryError, match="text is, or is below, a file"):
            fl.data.write_population(folder / "text" / "people", [(np.ones((2, 1)), np.ones(2))])
        ax = fl.plotting.draw_graph(fl.graphs.ring(4))
        for name in ("text", "missing"):
            with pytest.raises(FileNotFoundError, match=f"no folder .*{name}; create it first"):
                fl.plotting.save_figure(ax, folder / name / "x.png")

    def test_an_encoding_mark_is_refused_as_a_label(self, tmp_path):
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
        lambda key, _: fl.contrib.randomized_labels(key, np.array([0, 1]), np.array([0, 1]), 0.5),
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


@pytest.mark.parametrize(
    "use",
    [
        fl.federation.Federation,
        lambda key: fl.attacks.Trigger(key, 1.0),
        lambda key: fl.data.by_label(key, 2, 2, 0),
        lambda key: fl.contrib.subsample(0, np.ones((2, 1)), key, 1),
        lambda key: fl.graphs.from_edges(3, key),
        fl.graphs.GraphSchedule,
    ],
    ids=["servers", "features", "labels", "targets", "edges", "graphs"],
)
def test_a_list_of_a_key_is_refused(use):
    with pytest.raises(TypeError, match=r"must be .* got an array of shape \(\) of key"):
        use(jax.random.key(0))


def test_more_labels_than_an_integer_holds_are_refused(simulation):
    with pytest.raises(ValueError, match=r"samples must be finite and >= 0 and <= 2\.147"):
        fl.data.few_shot(jax.random.key(0), simulation.problem, 10**12)


def test_a_mixture_has_a_start():
    with pytest.raises(ValueError, match="restarts must be >= 1, got 0"):
        fl.clustering.gaussian_mixture(jax.random.key(0), np.eye(3), 2, restarts=0)


def test_runs_are_refused_inside_compiled_functions(simulation):
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


def test_parts_of_mixed_precision_are_refused(simulation):
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


def run_with(problem, metric):
    simulation = fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=[metric])
    return fl.run(simulation, rounds=1)


class TestLabels:
    @pytest.fixture(scope="class")
    @staticmethod
    def classified():
        """Samples of classes 1 and 2 of three; the second client has fewer held-out ones."""
        rows = np.random.default_rng(0).normal(size=(2, 6, 2))
        labels = np.array([[1, 2, 1, 2, 1, 2]] * 2)
        problem = fl.problems.from_clients(list(zip(rows, labels, strict=True)), Softmax(3))
        weights = np.array([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
        return problem.with_test(rows[:, :4], np.where(weights, labels[:, :4], 0), weights)

    @pytest.mark.parametrize("label", [7.0, -1.0, 0.5])
    @pytest.mark.parametrize(
        "metric",
        [
            lambda label: fl.metrics.backdoor_success(fl.attacks.Trigger([0], 1.0), label),
            lambda label: fl.fairness.group_rates("positive_rate", 0, positive=label),
            lambda label: fl.fairness.parity_difference("positive_rate", 0, positive=label),
        ],
        ids=["backdoor", "rates", "difference"],
    )
    def test_a_label_of_an_empty_class_is_never_predicted(self, classified, metric, label):
        with pytest.raises(ValueError, match=r"(target|positive)=.* is a label of no class"):
            run_with(classified, metric(label))

    def test_a_class_without_samples_can_be_a_target(self, classified):
        metric = fl.metrics.backdoor_success(fl.attacks.Trigger([0], 1.0), 0.0)
        run = run_with(classified, metric)
        assert np.isfinite(run.backdoor_success).all()

    @pytest.mark.parametrize("kind", ["precision", "recall", "f1_score"])
    def test_padding_does_not_count_as_class_zero(self, classified, kind):
        metric = getattr(fl.metrics, kind)(0.0)
        with pytest.raises(ValueError, match="label 0, and no held-out sample has it"):
            run_with(classified, metric)


@pytest.mark.parametrize("name", ["hits", "false_alarms"])
@pytest.mark.parametrize("times", [0.5, [0.9, 10.0]])
def test_shares_are_refused_as_counts(name, times):
    counts = {"hits": 900, "false_alarms": 30} | {name: times}
    with pytest.raises(ValueError, match=f"{name} must be whole numbers.*multiply a share by 1000"):
        fl.audit.counted_epsilon(**counts, of=1000, delta=0.01, confidence=0.95)
    assert fl.audit.counted_epsilon(900.0, 30, 1000, 0.01, 0.95) > 0


@pytest.mark.parametrize("attacker", [1, np.int64(1), np.asarray(1), jax.numpy.asarray(1)])
def test_one_attacker_is_an_integer_of_any_library(attacker, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    result = fl.audit.overheard_upload(3, 0, attacker, change=1.0, delta=1e-5)
    assert result.attackers == "client 1 and the server"


def test_invalid_pictures_are_named(simulation):
    results = fl.sweep(lambda key: simulation, rounds=2, seeds=2, progress=False)
    for wrong in (results, jax.random.key(0), results.objective, "figure", None, []):
        with pytest.raises(TypeError, match="a picture must be axes"):
            fl.plotting.save_figure(wrong, "figure.png")


def test_deviations_are_real_numbers_over_seed_and_round():
    values = ("seed", "round"), np.array([[0.2], [0.4]])
    parts = {"deviation": values, "error": values, "other_error": values, "optima": 0.5}
    data = xr.Dataset(parts, attrs={"nodes": 1})
    for wrong in (data.isel(seed=0), data.rename(round="step"), data.astype(complex)):
        with pytest.raises(ValueError, match="real numbers over seed and round"):
            fl.audit.within(wrong, 0.5, 0.5)


@pytest.mark.parametrize("call", [fl.sweep, fl.plan], ids=["sweep", "plan"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seeds", jax.random.key(0), r"seeds must be a number of runs .* of key<"),
        ("seeds", jax.random.split(jax.random.key(0), 2), r"seeds must be a number .* of key<"),
        ("seeds", pd.DataFrame({0: [1, 2], 1: [3, 4]}), "seeds must be a number of runs"),
        ("generator", pd.DataFrame({"a": [1.0]}), "generator must be one of fljax-threefry"),
        ("generator", np.array(["rbg", "threefry2x32"]), "generator must be one of fljax-threefry"),
    ],
    ids=["key", "keys", "frame as seeds", "frame", "names"],
)
def test_options_of_a_study_are_named(call, name, value, message, simulation):
    with pytest.raises(TypeError, match=message):
        call(lambda key: simulation, rounds=2, **{name: value})


@pytest.mark.usefixtures("annotations_unchecked")
def test_seeds_of_a_series_are_taken_by_position(simulation):
    seeds = pd.Series([5, 3], index=[1, 0])
    results = fl.sweep(lambda key: simulation, rounds=1, seeds=seeds, progress=False)
    assert results.seed.values.tolist() == [5, 3]


@pytest.mark.parametrize("name", ["labels", "parts"])
def test_random_keys_are_refused_as_a_partition(name):
    partition = {"labels": np.arange(4) % 2, "parts": [np.arange(4)]}
    keys = jax.random.split(jax.random.key(0), 3)
    for wrong in (keys, list(keys)):
        with pytest.raises((TypeError, ValueError), match=f"{name} must"):
            fl.plotting.draw_partition(**partition | {name: wrong})
    with pytest.raises((TypeError, ValueError), match="labels must"):
        fl.plotting.draw_partition(keys)


def test_joined_results_are_of_one_pair_of_data_sets():
    values = ("seed", "round"), np.array([[0.2, 0.1], [0.4, 1.6]])
    parts = {"deviation": values, "error": values, "other_error": values, "optima": 0.5}
    results = xr.Dataset(parts, coords={"round": [1, 2]}, attrs={"nodes": 1})
    twice = xr.concat([results, results], "seed", data_vars="all")
    xr.testing.assert_equal(fl.audit.within(twice, 0.5, 0.5), fl.audit.within(results, 0.5, 0.5))
    others = xr.concat([results, results.assign(optima=0.7)], "seed", data_vars="all")
    repeated = xr.concat([results, results], "round", data_vars="minimal")
    for wrong in (others, repeated):
        with pytest.raises(ValueError, match="one pair of data sets, each round once"):
            fl.audit.within(wrong, 0.5, 0.5)
