"""The benchmark of fljax's peers: its data, its NumPy yardstick, fljax's side and its table."""

import json
import os
import sys

import jax
import numpy as np
import pytest

from experiments.benchmarks import population
from experiments.benchmarks.peers import (
    bare_side,
    fljax_on_disk,
    fljax_side,
    numpy_side,
    on_disk,
    run,
    turns,
)
from experiments.benchmarks.peers.measure import Stopwatch, main
from experiments.benchmarks.peers.workloads import (
    ATC,
    CNN,
    DGD,
    LEAST_SQUARES,
    MLP,
    WORKLOADS,
    Classification,
    Network,
    cross_entropy,
)
from fljax._core.devices import configured
from fljax.data import write_population

SMALL = Classification(clients=6, per_round=3, samples=12, features=5, classes=3, batch=4, rounds=3)


@pytest.mark.parametrize("workload", [LEAST_SQUARES, DGD])
def test_regression_data_is_of_the_seed_alone(workload):
    first = workload.data(3)
    again = workload.data(3)
    other = workload.data(4)
    for a, b, c in zip(first, again, other, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)
    assert first[0].shape == (workload.clients, workload.samples, workload.dim)


def test_softmax_data_is_like_pixels():
    pixels, labels = SMALL.data.__wrapped__(SMALL)
    again = SMALL.data.__wrapped__(SMALL)
    np.testing.assert_array_equal(pixels, again[0])
    np.testing.assert_array_equal(labels, again[1])
    assert pixels.shape == (6, 12, 5)
    assert pixels.min() == 0
    assert pixels.max() < 1
    assert 0.1 < (pixels > 0).mean() < 0.3
    assert set(labels.ravel()) <= {0, 1, 2}


@pytest.mark.parametrize("seed", range(5))
def test_graph_is_connected_with_doubly_stochastic_weights(seed):
    edges = DGD.edges(seed)
    weights = DGD.weights(seed)
    assert len({tuple(sorted(e)) for e in edges.tolist()}) == 40
    assert (edges[:, 0] != edges[:, 1]).all()
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert (np.linalg.matrix_power(weights, DGD.clients) > 0).all()
    degree = np.bincount(edges.ravel(), minlength=20)
    k, other = edges[7]
    assert weights[k, other] == 1 / (1 + max(degree[k], degree[other]))


def test_error_is_zero_at_the_optimum_and_counts_every_client():
    best = LEAST_SQUARES.optimum(0)
    assert LEAST_SQUARES.error(best, 0) == 0
    assert LEAST_SQUARES.error(0 * best, 0) == pytest.approx(100)
    features, targets = (a.astype(np.float64) for a in LEAST_SQUARES.data(0))
    gradient = np.einsum("kn,knd->d", features @ best - targets, features)
    np.testing.assert_allclose(gradient, 0, atol=1e-9)


def test_cross_entropy_of_equal_logits():
    assert cross_entropy(np.full((4, 10), 1e3), np.arange(4)) == pytest.approx(np.log(10))


@pytest.mark.parametrize("form", numpy_side.FORMS)
def test_numpy_reaches_the_least_squares_optimum(form):
    model = numpy_side.FORMS[form]["least_squares"](LEAST_SQUARES, 0, Stopwatch())
    assert LEAST_SQUARES.error(model, 0) < 1e-8


@pytest.mark.parametrize("form", numpy_side.FORMS)
@pytest.mark.parametrize("workload", [DGD, ATC], ids=["dgd", "atc"])
def test_numpy_is_the_written_recursion_of_peers(workload, form):
    x, y = (a.astype(np.float64) for a in workload.data(1))
    weights = workload.weights(1)
    models = np.zeros((20, 32))
    for _ in range(workload.rounds):
        moved = models.copy()
        for k in range(20):
            for n in range(50):
                moved[k] -= 0.1 * 2 / 50 * (x[k, n] @ models[k] - y[k, n]) * x[k, n]
        new = moved - models if workload is DGD else np.zeros_like(models)
        for k in range(20):
            for other in range(20):
                new[k] += weights[k, other] * (models if workload is DGD else moved)[other]
        models = new
    result = numpy_side.FORMS[form][workload.name](workload, 1, Stopwatch())
    np.testing.assert_allclose(result, models, rtol=0, atol=1e-5)


def test_softmax_gradient_is_that_of_the_cross_entropy():
    rng = np.random.default_rng(0)
    model = rng.standard_normal((5, 3))
    features = rng.standard_normal((8, 5))
    labels = rng.integers(3, size=8)
    gradient = numpy_side.softmax_gradient(model, features, labels)
    for i, j in np.ndindex(5, 3):
        step = np.zeros((5, 3))
        step[i, j] = 1e-6
        rise = cross_entropy(features @ (model + step), labels)
        rise -= cross_entropy(features @ (model - step), labels)
        assert gradient[i, j] == pytest.approx(rise / 2e-6, abs=1e-8)


@pytest.mark.slow
def test_federated_averaging_is_one_where_nothing_is_drawn():
    everything = Classification(
        clients=4, per_round=4, samples=6, features=5, classes=3, batch=6, rounds=5, step=0.5
    )
    pixels, labels = everything.data()
    model = np.zeros((5, 3))
    for _ in range(5):
        mean = [numpy_side.softmax_gradient(model, pixels[k], labels[k]) for k in range(4)]
        model = model - 0.5 * np.mean(mean, 0)
    sides = [form["softmax"] for form in numpy_side.FORMS.values()]
    for side in [*sides, fljax_side.softmax]:
        np.testing.assert_allclose(side(everything, 0, Stopwatch()), model, atol=1e-6)


def test_a_local_epoch_meets_every_sample_once(monkeypatch):
    samples = []

    def record(model, features, labels):
        samples.extend(features[:, 0])
        assert len(labels) == 4
        return np.zeros_like(model)

    monkeypatch.setattr(numpy_side, "softmax_gradient", record)
    features = np.arange(12.0)[:, None] * np.ones(5)
    numpy_side.local_epoch(
        SMALL, np.zeros((5, 3)), features, np.zeros(12, int), np.random.default_rng(0)
    )
    assert sorted(samples) == list(range(12))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["least_squares", "dgd", "atc"])
@pytest.mark.thin(1)
def test_fljax_ends_where_numpy_does(name):
    workload = WORKLOADS[name]
    watch = Stopwatch()
    model = getattr(fljax_side, name)(workload, 0, watch)
    reference = numpy_side.FORMS["loop"][name](workload, 0, Stopwatch())
    np.testing.assert_allclose(model, np.broadcast_to(reference, model.shape), atol=2e-5)
    assert workload.agrees(workload.error(model, 0), workload.error(reference, 0))
    assert watch.seconds > 0


class Noise(Network):
    """Three clients of different sizes, in images of noise."""

    def data(self):
        rng = np.random.default_rng(0)
        return [(rng.random((n, 784), np.float32), rng.integers(10, size=n)) for n in (3, 8, 5)]


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("channels", [(2, 3), ()])
def test_networks_are_equal_without_random_draws(channels):
    """Every client in one batch: only starts, layers, gradients and averages are compared."""
    workload = Noise("noise", 3, 3, rounds=2, step=0.1, channels=channels, hidden=4, batch=8)
    with (
        configured("jax_enable_x64", False),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        ours = fljax_side.network(workload, 1, Stopwatch())
        pytorch = bare_side.averaged(workload, 1, Stopwatch())
        loss = bare_side.loss(workload, ours, *workload.data()[1], np.ones(8, bool))
    for a, b, start in zip(ours, pytorch, workload.start(1), strict=True):
        assert a.shape == start.shape
        assert abs(a - start).max() > 1e-4
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    pixels, labels = workload.data()[1]
    assert cross_entropy(workload.logits(ours, pixels), labels) == pytest.approx(float(loss))


@pytest.mark.skipif("FLJAX_DATA" not in os.environ, reason="needs MNIST")
@pytest.mark.slow
def test_networks_learn_digits():
    assert [len(labels) for _, labels in CNN.data()] == [600] * 100
    sizes = np.array([len(labels) for _, labels in MLP.data()])
    assert 200 < sizes.mean() < 250
    assert sizes.max() > 4 * sizes.min()
    pixels, labels = MLP.test()
    assert set(labels) == set(range(60))
    upright, quarter = ([pixels[labels == kind][0].reshape(28, 28)] for kind in (1, 11))
    # A one is high as it is, and wide after a quarter of a turn.
    assert np.ptp(np.nonzero(upright[0])[0]) > np.ptp(np.nonzero(upright[0])[1])
    assert np.ptp(np.nonzero(quarter[0])[0]) < np.ptp(np.nonzero(quarter[0])[1])
    assert CNN.error(CNN.start(0)) > 0.8


def test_a_side_prints_one_line(capsys):
    def exact(workload, seed, watch):
        with watch.startup(), watch.run():
            pass
        return workload.optimum(seed)

    main("numpy", {"least_squares": exact}, {"dgd": "cannot"}, "exact", ["least_squares"])
    line = json.loads(capsys.readouterr().out)
    assert line["peer"] == "exact"
    assert line["error"] == 0
    assert line["study_measured"] == 1
    assert line["study_seconds"] == pytest.approx(100 * line["seconds"])
    main("numpy", {"least_squares": exact}, {"dgd": "cannot"}, "exact", ["dgd"])
    line = json.loads(capsys.readouterr().out)
    assert line["note"] == "cannot"
    assert "seconds" not in line


def sample(peer, seconds, error, measured=2, **more):
    times = {"seconds": seconds, "startup_seconds": 0.0, "study_seconds": 100 * seconds}
    times |= {"study_startup_seconds": 0.0, "study_measured": measured}
    return {"peer": peer, "workload": "dgd", "note": "", "error": error} | times | more


def test_table_of_a_sample():
    text = run.table(
        [
            sample("fljax", 0.5, 0.1, measured=100),
            sample("numpy-loop", 1.0, 0.1001, version="2.4"),
            sample("wrong", 2.0, 0.2),
            {"peer": "pfl", "workload": "dgd", "note": "a server only"},
        ]
    )
    report = {"machine": "a machine", "load": (1.0, 2.0, 3.0), "seeds": 2}
    report["results"] = [sample("fljax", 0.5, 0.1, measured=100)]
    start = "# Beside other simulators: dgd\n\n```text\na machine\nload when begun: 1.0, 2.0, 3.0"
    assert run.document(report).startswith(start)
    lines = text[text.index("## dgd") :].splitlines()
    assert lines[4] == "| fljax | 0.5 s | 0 s | 50 s | 0 s | 1x | 1x | 1.000e-01 | yes |"
    assert lines[5].startswith("| numpy-loop 2.4 | 1 s | 0 s | 100 s * | 0 s | 2x | 2x |")
    assert lines[6].endswith("| NO |")
    assert "- pfl: a server only." in lines


def test_a_side_that_fails_or_hangs_costs_its_row_only(monkeypatch):
    monkeypatch.setitem(run.SIDES, "missing", run.Side("no_such_module"))
    line = run.measured("missing", "dgd", run.sys.executable, 1, 1, limit=60)
    assert line["note"].startswith("failed: ")
    line = run.measured("numpy-loop", "softmax", run.sys.executable, 100, 1, limit=0.1)
    assert line["note"] == "stopped after 0 s"


def test_a_python_that_is_missing_is_named(tmp_path):
    side = run.SIDES["decent-bench"]
    with pytest.raises(RuntimeError, match=r"needs Python 3\.13"):
        run.interpreter(side, tmp_path, {"3.13": ""})


def test_every_peer_has_its_module_and_requirements():
    for side in [*run.SIDES.values(), *turns.SIDES.values()]:
        assert (run.HERE / f"{side.module}.py").is_file()
        if side.requirements:
            pins = (run.HERE / "requirements" / f"{side.requirements}.txt").read_text()
            assert all("==" in line for line in pins.splitlines() if not line.startswith("#"))


@pytest.mark.slow
def test_softmax_seeds_share_the_data():
    assert SMALL.error(np.zeros((5, 3)), 0) == SMALL.error(np.zeros((5, 3)), 7)


def written(folder, clients):
    """A population, and the images on which models are judged."""
    images = [(x.reshape(-1, 28, 28, 1), y.astype("i4")) for x, y in clients]
    features, targets = images[0]
    np.savez(folder / on_disk.HELD_OUT, features=features, targets=targets)
    return write_population(folder / "writers", images).folder


def pixels(sizes):
    rng = np.random.default_rng(1)
    return [(rng.random((n, 784), np.float32), rng.integers(62, size=n)) for n in sizes]


def test_every_side_reads_the_written_population(tmp_path):
    clients = pixels((3, 1, 4))
    workload = on_disk.OnDisk(folder=str(written(tmp_path, clients)), clients=3)
    assert workload.sizes.tolist() == [3, 1, 4]
    for (x, y), client in zip(workload.data(), clients, strict=True):
        assert y.dtype == np.int64  # as PyTorch wants labels
        np.testing.assert_array_equal(x, client[0])
        np.testing.assert_array_equal(y, client[1])
    np.testing.assert_array_equal(workload.test()[0], clients[0][0])
    assert workload.error(workload.start(0)) <= 1


@pytest.mark.slow
def test_a_population_is_learned_as_from_memory(tmp_path):
    """All clients are equal and have one batch: the choice of participants does not matter."""
    folder = written(tmp_path, pixels((5,)) * 4)
    settings = {"batch": 5, "rounds": 2, "step": 0.3}
    small = {"channels": (2, 3), "hidden": 4, "clients": 4, "per_round": 2}
    workload = on_disk.OnDisk(folder=str(folder), **settings, **small)
    watch = on_disk.Watch()
    with (
        configured("jax_enable_x64", False),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        ours = fljax_on_disk.prepared(workload)(workload, 1, watch)
        pytorch = bare_side.averaged(workload, 1, Stopwatch())
    assert watch.seconds > 0
    for a, b, start in zip(ours, pytorch, workload.start(1), strict=True):
        assert abs(a - start).max() > 1e-4
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_sides_take_turns_and_one_that_fails_costs_its_row_only(tmp_path, monkeypatch):
    folder = written(tmp_path, pixels((5, 30, 12)) * 4)
    peers = {
        "alike": run.Side("fljax_on_disk"),
        "broken": run.Side("no_such_module"),
        "absent": run.Side("pfl_on_disk", "pfl", python="2.7"),
    }
    for name, side in peers.items():
        monkeypatch.setitem(turns.SIDES, name, side)
    rows = turns.measured(folder, list(peers), repeats=2, rounds=1, environments=tmp_path)
    ours, same, broken, absent = rows
    assert [len(row["runs"]) for row in rows] == [2, 2, 0, 0]
    for first, second in zip(ours["runs"], same["runs"], strict=True):
        assert first["accuracy"] == second["accuracy"]  # the same seed
        assert second["seconds ratio"] == second["seconds"] / first["seconds"]
        assert second["processor ratio"] == second["processor"] / first["processor"] > 0
    assert "no_such_module" in broken["note"]
    assert absent["note"] == "needs Python 2.7, not found on PATH"
    text = turns.table(rows)
    assert "| alike 0.1.0" in text
    assert f"- broken: {broken['note']}." in text.splitlines()


def test_a_side_that_hangs_is_ended(tmp_path):
    with pytest.raises(RuntimeError, match="stopped after 0 s"):
        turns.Worker("fljax", sys.executable, tmp_path, rounds=1, limit=0.2)


@pytest.mark.slow
def test_a_side_without_a_population_is_reported(tmp_path):
    with pytest.raises(RuntimeError, match="failed: FileNotFoundError: no population in"):
        turns.Worker("fljax", sys.executable, tmp_path, rounds=1, limit=60)


def test_table_of_turns():
    def measurement(seconds, **more):
        measured = {"processor": 2 * seconds, "accuracy": 0.9, "resident": 5e8}
        return {"seconds": seconds} | measured | more

    def peer_result(seconds):
        ratios = {"seconds ratio": 10 * seconds, "processor ratio": 9.0}
        return measurement(seconds, peer="pfl", version="2") | ratios

    text = turns.table(
        [
            {"peer": "fljax", "runs": [measurement(0.1, peer="fljax", version="1")] * 3},
            {"peer": "pfl", "runs": [peer_result(s) for s in (0.2, 0.4, 0.3)]},
            {"peer": "fedjax", "runs": [], "note": "did not install: why"},
        ]
    )
    lines = text.splitlines()
    ours, other = (line.strip("| ").split(" | ") for line in lines[2:4])
    assert ours[:4] == ["fljax 1", "100 (100 to 100)", "1", "200 (200 to 200)"]
    assert ours[4:] == ["1", "0.9 (0.9 to 0.9)", "0.50 GB"]
    assert other[:3] == ["pfl 2", "300 (200 to 400)", "3 (2 to 4)"]
    assert other[4] == "9 (9 to 9)"
    assert lines[-1] == "- fedjax: did not install: why."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["peers", "--only", "tff"], "invalid choice: 'tff'"),
        (["peers", "--turns", "0"], "--turns: at least one, got 0"),
        (["peer"], "invalid choice: 'peer'"),
    ],
)
def test_impossible_comparisons_are_reported(monkeypatch, capsys, tmp_path, arguments, message):
    command = ["population", *arguments, "--folder", str(tmp_path / "none")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        population.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
