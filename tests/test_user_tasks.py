"""Twelve tasks of a new user, each in under thirty lines and with public names alone."""

import inspect
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

import fljax as fl

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of the user's own."""
    monkeypatch.chdir(tmp_path)


def digits():
    """A few hundred images of 14 x 14 pixels, ``[n, 196]``, and their labels."""
    images, labels = fl.data.mnist_sample()[1:3]
    return images[:400, ::2, ::2].reshape(400, -1) / np.float32(255), labels[:400]


class State(NamedTuple):
    """What a server with momentum remembers between rounds."""

    model: jax.Array  # [D]
    momentum: jax.Array  # [D]


@fl.module
class NesterovServer(fl.algorithms.Averaging):
    """Federated averaging with Nesterov's momentum at the server."""

    decay: float = fl.field(default=0.9, kw_only=True)
    needs = fl.algorithms.Needs(None, absent=True, late=True, averages=True, trains=True)

    def init(self, problem, network):
        start = fl.algorithms.server_start(problem)
        return State(start, jnp.zeros_like(start))

    def step(self, state, now):
        change, arrived = self.change(state.model, now)
        momentum = self.decay * state.momentum + change
        moved = State(state.model + change + self.decay * momentum, momentum)
        return jax.tree.map(lambda new, old: jnp.where(arrived, new, old), moved, state)


def test_a_csv_file_three_methods_and_a_table_for_a_paper():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    columns = {"hospital": rng.integers(0, 6, 120), "age": rng.normal(size=120)}
    columns |= {"dose": rng.normal(size=120)}
    ill = np.where(columns["age"] + columns["dose"] > 0, "yes", "no")
    pd.DataFrame(columns | {"ill": ill}).to_csv("patients.csv", index=False)

    table = pd.read_csv("patients.csv")
    table["label"] = (table.ill == "yes").astype(int)
    nodes = fl.data.from_table(
        table, "hospital", ["age", "dose"], "label", loss=fl.problems.Softmax(2)
    )

    def scenario(key, algorithm):
        return fl.Simulation(nodes.problem.split(key, test=0.25), algorithm, metrics=["accuracy"])

    searched = {"step_size": (0.03, 0.3)}
    methods = {
        "FedAvg": (fl.algorithms.FedAvg, searched),
        "FedProx": (partial(fl.algorithms.FedProx, attraction=0.1), searched),
        "SCAFFOLD": (fl.algorithms.SCAFFOLD, searched),
    }
    few = {"tuning_seeds": 1, "points": 3}
    compared = fl.compare(scenario, methods, metric="accuracy", rounds=4, seeds=3, **few)
    fl.table(compared.results, "accuracy", best="max").save("table.tex")
    text = Path("table.tex").read_text()
    assert r"\toprule" in text
    assert all(name in text for name in methods)
    assert float(compared.results["accuracy"].isel(round=-1).mean()) > 0.6


def test_images_a_network_of_flax_and_a_dirichlet_partition():
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Conv(4, (3, 3), strides=2)(x))
            return linen.Dense(10)(x.reshape(len(x), -1))

    x, labels = digits()
    images = x.reshape(-1, 14, 14, 1)

    def scenario(key, concentration):
        k_start, k_data = jax.random.split(key)
        problem = fl.problems.Model.from_pool(
            fl.models.linen(Network()),
            k_start,
            images,
            labels,
            fl.problems.Softmax(10),
            fl.partitions.EqualDirichlet(concentration),
            clients=8,
            partition_key=k_data,
            held_out=0.2,
        )
        algorithm = fl.algorithms.FedAvg(0.2, batch=10, clients_per_round=4)
        return fl.Simulation(problem, algorithm, metrics=["accuracy"])

    study = fl.sweep(scenario, grid={"concentration": [0.1, 100.0]}, seeds=2, rounds=6)
    distances = study.label_distance.mean("seed")
    assert float(distances[0]) > float(distances[1])
    assert float(study.accuracy[1, :, -1].mean()) > 0.3


def test_extra_against_diging_over_lossy_links():
    def scenario(key, algorithm, loss):
        k_graph, k_data = jax.random.split(key)
        return fl.Simulation(
            problem=fl.problems.ridge(k_data, clients=10, samples=8, dim=3),
            network=fl.graphs.random_connected(k_graph, nodes=10, mean_degree=4),
            algorithm=algorithm,
            losses=fl.link.Independent(loss),
            metrics=["normalized_error", "consensus_error"],
        )

    methods = {"EXTRA": fl.algorithms.EXTRA(0.02), "DIGing": fl.algorithms.DIGing(0.02)}
    grid = {"algorithm": methods, "loss": [0.0, 0.6]}
    study = fl.sweep(scenario, grid=grid, seeds=4, rounds=30)
    compared = fl.statistics.paired_differences(
        study.sel(loss=0.6), "normalized_error", baseline="EXTRA"
    )
    last = study.consensus_error.isel(round=-1).mean("seed")
    assert (last.sel(loss=0.0) < last.sel(loss=0.6)).all()
    assert [*compared["algorithm"].values] == ["DIGing"]
    assert bool(compared.difference.notnull().all())


def test_privacy_of_clients_with_epsilon_three():
    x, labels = digits()

    def scenario(key, epsilon):
        problem = fl.problems.from_pool(
            x, labels, fl.problems.Softmax(10), fl.partitions.IID(), clients=40, key=key
        )
        return fl.Simulation(
            problem=problem.with_test(x, labels),
            algorithm=fl.algorithms.FedAvg(0.5, epochs=2, weighting="equal"),
            privacy=fl.privacy.CentralGaussian.for_budget(epsilon, 1e-3, rounds=10),
            metrics=["accuracy"],
        )

    study = fl.sweep(scenario, grid={"epsilon": [3.0, 30.0]}, seeds=3, rounds=10)
    spent = fl.privacy.spent(study, delta=1e-3).epsilon.isel(round=-1, seed=0)
    np.testing.assert_allclose(spent, [3.0, 30.0], rtol=0.01)
    last = study.accuracy.isel(round=-1).mean("seed")
    assert float(last[0]) < float(last[1])


def test_sign_flips_against_four_aggregation_rules():
    def scenario(key, aggregation):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=12, samples=20, dim=4),
            algorithm=fl.algorithms.FedAvg(0.1),
            attack=fl.attacks.SignFlip(fl.attacks.first(3, 12), scale=3.0),
            aggregation=aggregation,
            metrics=["normalized_error"],
        )

    rules = {
        "mean": fl.aggregation.Mean(),
        "median": fl.aggregation.Median(),
        "trimmed mean": fl.aggregation.TrimmedMean(count=3),
        "Krum": fl.aggregation.Krum(3),
    }
    study = fl.sweep(scenario, grid={"aggregation": rules}, seeds=4, rounds=60)
    last = study.normalized_error.isel(round=-1).mean("seed")
    assert all(float(last.sel(aggregation=rule)) < float(last[0]) / 3 for rule in [*rules][1:])


def test_a_server_of_ones_own_with_nesterovs_momentum():
    """The class of the guide; it is federated averaging with optax's optimizer at the server."""
    nesterov = optax.sgd(1.0, momentum=0.9, nesterov=True)

    def scenario(key, algorithm):
        problem = fl.problems.ridge(key, clients=10, samples=20, dim=4)
        often = fl.participation.Bernoulli(0.2)  # some rounds have no participant
        metrics = ["normalized_error", fl.metrics.trajectory()]
        return fl.Simulation(problem, algorithm, participation=often, metrics=metrics)

    few = {"epochs": 3, "clients_per_round": 4}
    methods = {
        "own": NesterovServer(0.01, **few),
        "optax": fl.algorithms.FedOpt(0.01, server=nesterov, **few),
    }
    study = fl.sweep(scenario, grid={"algorithm": methods}, seeds=4, rounds=60)
    ours, theirs = (study.model_trajectory.sel(algorithm=name) for name in methods)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert float(abs(ours.isel(round=-1) - ours.isel(round=0)).max()) > 0.1
    assert float(study.normalized_error[0, :, -1].mean()) < 0.1


def test_stragglers():
    x, labels = digits()

    def scenario(key, algorithm, late):
        pool = x, labels, fl.problems.Softmax(10), fl.partitions.Shards(2)
        return fl.Simulation(
            problem=fl.problems.from_pool(*pool, clients=20, key=key, held_out=0.2),
            algorithm=algorithm,
            delays=fl.link.Geometric(late, longest=10, beyond="clip"),
            metrics=["accuracy"],
        )

    local = {"epochs": 2, "batch": 8, "clients_per_round": 5}
    methods = {
        "FedAvg": fl.algorithms.FedAvg(0.1, **local),
        "FedBuff": fl.algorithms.FedBuff(0.1, buffer_size=5, **local),
    }
    grid = {"algorithm": methods, "late": [0.0, 0.8]}
    study = fl.sweep(scenario, grid=grid, seeds=2, rounds=15)
    print(fl.table(study, "accuracy", best="max"))
    assert dict(study.accuracy.sizes) == {"algorithm": 2, "late": 2, "seed": 2, "round": 15}
    last = study.accuracy.isel(round=-1).mean("seed")
    assert float(last.sel(algorithm="FedAvg", late=0.8)) < float(last.sel(algorithm="FedAvg")[0])


def test_a_graph_of_networkx():
    networkx = pytest.importorskip("networkx")
    karate = networkx.karate_club_graph()
    graph = fl.graphs.from_networkx(karate)

    def scenario(key, step_size):
        problem = fl.problems.ridge(key, clients=graph.nodes, samples=5, dim=3)
        algorithm = fl.algorithms.ATC(step_size)
        return fl.Simulation(problem, algorithm, graph, metrics=["consensus_error"])

    study = fl.sweep(scenario, grid={"step_size": [0.02, 0.1]}, seeds=2, rounds=40)
    ax = fl.plotting.draw_graph(graph, values=[degree for _, degree in karate.degree])
    fl.plotting.save_figure(ax, "club.pdf")
    assert graph.nodes == 34
    assert Path("club.pdf").read_bytes().startswith(b"%PDF")
    last = study.consensus_error.isel(round=-1).mean("seed")
    assert float(last[0]) < float(last[1])  # it grows with the step size


def test_ctrl_c_and_more_seeds(monkeypatch):
    # This study is over before results are first written, after two seconds.
    monkeypatch.setattr("fljax.study.executor.FLUSH_SECONDS", 0.0)

    def scenario(key, step_size):
        # Large enough for the callback to come before the last piece on a busy machine, too.
        problem = fl.problems.ridge(key, clients=60, samples=200, dim=30)
        return fl.Simulation(problem, fl.algorithms.FedAvg(step_size), metrics="normalized_error")

    def press_ctrl_c(results):
        if "done" in results:  # not all runs are
            signal.raise_signal(signal.SIGINT)

    study = {"grid": {"step_size": [0.01, 0.02]}, "rounds": 20, "store": "study", "block": 2}
    with pytest.raises(fl.Interrupted, match="of 8 runs are done and kept in study") as stop:
        fl.sweep(scenario, seeds=4, segment=5, callback=press_ctrl_c, **study)
    assert int(stop.value.results.done.sum()) < 8
    grown = fl.sweep(scenario, seeds=6, **study)  # the same line goes on, with more seeds
    once = fl.sweep(scenario, seeds=6, **study | {"store": None})
    np.testing.assert_array_equal(grown.normalized_error, once.normalized_error)


def test_a_heat_map():
    def scenario(key, penalty, degree):
        k_graph, k_data = jax.random.split(key)
        return fl.Simulation(
            problem=fl.problems.ridge(k_data, clients=12, samples=10, dim=3),
            network=fl.graphs.random_connected(k_graph, nodes=12, mean_degree=degree),
            algorithm=fl.algorithms.NetworkedADMM(penalty),
            metrics=["normalized_error"],
        )

    grid = {"penalty": [0.1, 0.3, 1.0, 3.0], "degree": fl.static([3, 6])}
    study = fl.sweep(scenario, grid=grid, seeds=3, rounds=20)
    ax = fl.plotting.heat_map(study, "normalized_error", x="penalty", y="degree")
    fl.plotting.save_figure(ax, "map.pdf")
    means = fl.statistics.decibels(study.normalized_error.isel(round=-1).mean("seed"))
    np.testing.assert_allclose(
        ax.collections[0].get_array(), means.transpose("degree", "penalty"), rtol=1e-6
    )


def trained(samples, classes):
    """The accuracy on all samples after some rounds of federated averaging."""
    x = samples.features.reshape(len(samples.features), -1)

    def scenario(key):
        pool = x, samples.targets, fl.problems.Softmax(classes), fl.partitions.Dirichlet(1.0)
        problem = fl.problems.from_pool(*pool, clients=5, key=key).with_test(x, samples.targets)
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.5, epochs=5), metrics=["accuracy"])

    return float(fl.sweep(scenario, seeds=2, rounds=10).accuracy.isel(round=-1).mean())


def test_a_data_set_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    x, labels = digits()
    names = [str(digit) for digit in range(10)]
    kinds = {"image": datasets.Sequence(datasets.Value("float32"))}
    kinds |= {"label": datasets.ClassLabel(names=names)}
    columns = {"image": x.tolist(), "label": labels.tolist()}
    split = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    samples = fl.data.from_huggingface(split, "image", "label")
    assert samples.classes == tuple(names)
    assert trained(samples, 10) > 0.6


def test_a_data_set_of_torch():
    torch = pytest.importorskip("torch")
    x, labels = digits()
    data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(labels))
    pairs = [(np.asarray(image), int(label)) for image, label in data]
    samples = fl.data.from_sklearn(tuple(map(np.array, zip(*pairs, strict=True))))
    assert trained(samples, 10) > 0.6


@pytest.mark.slow
def test_a_published_figure_with_another_penalty():
    command = ["-m", "experiments", "run", "gauthier-3.1", "--quick", "--seeds", "2"]
    numbers = ["--set", "penalty=2", "--set", "iterations T=40"]
    output = subprocess.run(
        [sys.executable, *command, *numbers],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "penalty rho of zCDP-NFL is 2 (published: 3)" in output
    (picture,) = Path("results/quick").glob("gauthier-3.1-penalty=2*/gauthier-3.1.png")
    assert picture.stat().st_size > 0


def test_every_task_takes_less_than_thirty_lines():
    tasks = {
        name: inspect.getsource(task)
        for name, task in globals().items()
        if name.startswith("test_") and "thirty" not in name
    }
    assert len(tasks) == 13  # data of Hugging Face and of torch are one task
    for name, source in tasks.items():
        assert len([line for line in source.splitlines() if line.strip()]) < 30, name
        assert not re.search(r"fl\.\w*\.?_|import fljax\._", source), name
