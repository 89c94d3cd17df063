"""FedProx's figure: whose work is unfinished, and claims that notice other results."""

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

import fljax as fl
from experiments import picture
from experiments.field import figure_fedprox as fedprox
from experiments.figure import Effort
from fljax.metrics.definitions import Snapshot

CLAIMS = {claim.name: claim for claim in fedprox.FIGURE.claims}
ROUNDS = np.arange(2, 101, 2)


def curves(loss, unrest=0.01):
    """Losses of three seeds around a level, ``[seed, round]``."""
    jitter = 0.001 * np.random.default_rng(0).normal(size=(3, 1))
    return loss + jitter + unrest * (-1) ** np.arange(len(ROUNDS))


def study_of(levels, axis, labels, methods, unrest):
    """``levels`` are ``[label, method]``."""
    values = np.array([[curves(v, u) for v, u in zip(row, unrest, strict=True)] for row in levels])
    dims = (axis, "algorithm", "seed", "round")
    names = (fedprox.LOSS, fedprox.DISSIMILARITY, fedprox.ACCURACY)
    scores = (values, 100 * values, 1 - values / 10)
    data = {n: (dims, v, {"decibel": 0}) for n, v in zip(names, scores, strict=True)}
    coords = {axis: labels, "algorithm": methods, "seed": range(3), "round": ROUNDS}
    return xr.Dataset(data, coords)


def expected_studies():
    """Studies in which every claim holds."""
    algorithms = [fedprox.FEDAVG, fedprox.PROX]
    data = study_of(
        [[0.3, 0.4], [0.6, 0.5], [0.9, 0.7], [1.2, 0.8]],
        *("data", [*fedprox.DATA], algorithms, (0.03, 0.01)),
    )
    late = study_of(
        [[1.2, 1.2, 0.8], [1.6, 1.3, 0.9], [3.0, 1.4, 1.0]],
        *("late", [*fedprox.LATE.value], [*fedprox.METHODS], (0.03, 0.03, 0.01)),
    )
    short = study_of([[0.5, 0.6]], "data", ["-"], algorithms, (0.03, 0.01)).isel(data=0, drop=True)
    return {"data": data, "late": late, "short": short}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(expected_studies()).holds


@pytest.mark.parametrize(
    ("name", "study", "metric", "where", "factor"),
    [
        ("stragglers-hurt-fedavg", "late", "loss", (9, "FedAvg"), 0.5),
        ("partial-work-is-better-than-none", "late", "loss", (5, "FedAvg"), 0.7),
        ("proximal-term-helps", "late", "loss", (9, "FedProx, μ = 1"), 2),
        ("proximal-term-steadies", "late", "loss", (0, "FedProx, μ = 1"), 4),
        ("far-more-accurate-with-many-late", "late", "weighted_accuracy", (9, "FedAvg"), 1.3),
        ("unlike-clients-hurt-fedavg", "data", "loss", ("IID", "FedAvg"), 3),
        ("proximal-term-helps-unlike-clients", "data", "loss", ("(0, 0)", "FedProx, μ = 1"), 2),
        ("proximal-term-slows-alike-clients", "data", "loss", ("IID", "FedProx, μ = 1"), 0.5),
        ("dissimilarity-tells-data-apart", "data", "dissimilarity", ("(1, 1)", "FedAvg"), 0.5),
        (
            "proximal-term-lowers-dissimilarity",
            *("data", "dissimilarity", ("(1, 1)", "FedProx, μ = 1"), 2),
        ),
        ("proximal-term-is-for-large-clients", "short", "loss", (None, "FedProx, μ = 1"), 0.5),
    ],
)
def test_claims_fail_on_other_data(name, study, metric, where, factor):
    studies = expected_studies()
    first, method = where
    selection = {"algorithm": method} | ({} if first is None else {study: first})
    studies[study][metric].loc[selection] *= factor
    verdict = CLAIMS[name].judge(studies)
    assert not verdict.holds
    assert verdict.decided


@pytest.mark.slow
def test_late_clients_do_the_first_epochs_only(key):
    real = np.arange(7)[None] < np.array([7, 3, 7, 7])[:, None]
    batches = fedprox.Unfinished(2, late=2, epochs=5)
    epochs_done = set()
    for seed in jax.random.split(key, 40):
        rows = np.asarray(batches.draw(seed, real, np.arange(4), 5 * 4).rows).reshape(4, 5, 8)
        assert np.all(np.sort(rows[0], axis=1) == [0, 1, 2, 3, 4, 5, 6, 7])  # 7 is none
        few = np.where(rows[1] < 3, rows[1], 7)  # padding does not count as a sample either
        # Its epochs have two batches each, one after the other; empty ones are at the end.
        few = few.reshape(10, 4)
        assert np.all(np.sort(few[:5], axis=1) == [0, 1, 2, 7])
        assert np.all(few[5:] == 7)
        for of_late in rows[2:]:
            passes = int(np.sum(of_late[:, 0] < 7))
            assert np.all(of_late[passes:] == 7)
            assert np.all(np.sort(of_late[:passes], axis=1) == np.arange(8))
            epochs_done.add(passes)
    assert epochs_done == {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_metrics_are_of_all_samples(key):
    problem = fl.problems.heterogeneous_softmax(
        *(key, 4, (3, 9), 1.0, 1.0), dim=3, classes=3, test_samples=5
    ).weighing("samples")
    model = np.asarray(jax.random.normal(key, (12,)))
    now = Snapshot(problem, None, np.tile(model, (4, 1)), None, shared=model)
    sizes = (np.asarray(problem.weights) > 0).sum(axis=1)
    losses = []
    gradients = []
    right = []
    matrix = model.reshape(3, 4)
    for k, size in enumerate(sizes):
        x, y = (np.asarray(a[k, :size]) for a in (problem.features, problem.targets))
        y = y.astype(int)
        share = np.exp(x @ matrix.T) / np.exp(x @ matrix.T).sum(axis=1, keepdims=True)
        losses += [*-np.log(share[np.arange(size), y])]
        gradients.append(((share - np.eye(3)[y]).T @ x).ravel() / size)
        x, y = (np.asarray(a[k]) for a in (problem.test.features, problem.test.targets))
        right.append(np.mean(np.argmax(x @ matrix.T, axis=1) == y))
    mean_gradient = np.average(gradients, axis=0, weights=sizes)
    np.testing.assert_allclose(fedprox.loss(now), np.mean(losses), rtol=1e-10)
    np.testing.assert_allclose(
        fedprox.dissimilarity(now),
        np.mean(np.sum((gradients - mean_gradient) ** 2, axis=1)),
        rtol=1e-10,
    )
    np.testing.assert_allclose(
        fedprox.weighted_accuracy(now), np.average(right, weights=sizes), rtol=1e-10
    )


@pytest.mark.slow
@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = fedprox.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    assert studies["late"].sizes["late"] == 3
    assert studies["data"].sizes["data"] == 4
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    with picture.print_style():
        drawn = fedprox.plot(studies)
    assert picture.faults(drawn) == []
    assert len(drawn.axes) == 12
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(fedprox.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    with picture.print_style():
        assert picture.faults(fedprox.plot(studies)) == []
