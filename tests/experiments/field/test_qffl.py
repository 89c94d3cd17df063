"""q-FFL's table: statistics of clients' accuracies, and claims that notice other results."""

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import figure_qffl as qffl
from experiments.figure import Effort

CLAIMS = {claim.name: claim for claim in qffl.FIGURE.claims}


def clients(level, spread, low, seed=0):
    """Accuracies ``[seed, round, client]`` of this mean and spread, a tenth of them this low."""
    rng = np.random.default_rng(seed)
    shape = 3, 10, 1
    rest = (10 * level - low) / 9 + spread * np.linspace(-1, 1, 90)
    accuracy = np.concatenate([np.full(10, low), rest]) + 0.001 * rng.normal(size=shape)
    return accuracy / 100


def expected_studies():
    """A study in which every claim holds."""
    rows = [(80.6, 27, 20), (80.5, 24, 22), (80.0, 16, 30), (78, 12, 31), (77, 8, 32), (80, 25, 30)]
    values = np.array([clients(*row) for row in rows])
    dims = ("algorithm", "seed", "round", "client")
    sizes = np.full((len(rows), 3, 100), 60)
    study = xr.Dataset(
        {qffl.ACCURACY: (dims, values), qffl.SIZE: (("algorithm", "seed", "client"), sizes)},
        {"algorithm": [*qffl.LABELS]},
    )
    return {"clients": study.assign_coords(seed=range(3), round=400 * np.arange(1, 11))}


@pytest.mark.parametrize("name", [name for name in CLAIMS if "-at-q-" not in name])
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(expected_studies()).holds


@pytest.mark.parametrize(
    ("name", "method", "other"),
    [
        ("variance-falls", "q = 1", "q = 0"),
        ("worst-clients-gain", "q = 1", "q = 0"),
        ("more-q-is-more-uniform", "q = 5", "q = 2"),
        ("fairer-than-uniform", "q = 1", "uniform"),
    ],
)
def test_claims_fail_where_two_methods_are_exchanged(name, method, other):
    studies = expected_studies()
    data = studies["clients"][qffl.ACCURACY]
    first, second = (data.sel(algorithm=n).values.copy() for n in (method, other))
    data.loc[{"algorithm": method}] = second
    data.loc[{"algorithm": other}] = first
    verdict = CLAIMS[name].judge(studies)
    assert not verdict.holds
    short = name == "fairer-than-uniform"
    assert verdict.decided != short
    assert ("not run" in verdict.note) == short


def test_a_mean_that_falls_is_not_similar():
    studies = expected_studies()
    studies["clients"][qffl.ACCURACY].loc[{"algorithm": "q = 1"}] *= 0.95
    assert not CLAIMS["mean-is-similar"].judge(studies).holds


@pytest.mark.parametrize("power", [0.0, 1.0])
@pytest.mark.parametrize(("kind", "column"), [("mean", 0), ("worst", 1), ("variance", 2)])
def test_numbers_equal_the_table(power, kind, column):
    claim = CLAIMS[f"{kind}-at-q-{power:g}"]
    low, high = claim.accept
    np.testing.assert_allclose((low + high) / 2, qffl.REPORTED.value[power][column])
    studies = expected_studies()
    data = studies["clients"][qffl.ACCURACY]
    name = qffl.named(power)
    published = qffl.REPORTED.value[power]
    # Two groups of clients with these means, or this variance.
    share = np.full(100, published[0] / 100)
    if kind == "worst":
        share[:10] = published[1] / 100
    if kind == "variance":
        share = 0.5 + np.sqrt(published[2]) / 100 * np.tile([-1, 1], 50)
    data.loc[{"algorithm": name}] = share
    assert claim.judge(studies).holds
    data.loc[{"algorithm": name}] = 0.5 + 0.3 * (share - 0.5)
    assert not claim.judge(studies).holds


def test_the_accuracy_over_samples_weighs_clients_by_their_samples():
    studies = expected_studies()
    data = studies["clients"]
    data[qffl.SIZE].loc[{"algorithm": "q = 1", "client": 3}] = 600
    late = data[qffl.ACCURACY].sel(algorithm="q = 1").values[:, -qffl.END.value :]
    sizes = np.full(100, 60.0)
    sizes[3] = 600
    expected = 100 * (late @ sizes / sizes.sum()).mean(axis=1)
    np.testing.assert_allclose(qffl.over_samples(studies, "q = 1"), expected, rtol=1e-12)
    assert (abs(expected - qffl.read(studies, "q = 1", qffl.mean)) > 1).all()


def test_readings_are_of_each_record():
    records = np.arange(40.0).reshape(2, 20)
    np.testing.assert_allclose(qffl.mean(records), [9.5, 29.5])
    np.testing.assert_allclose(qffl.tenth(records[:, ::-1]), [0.5, 20.5])
    np.testing.assert_allclose(qffl.best_tenth(records), [18.5, 38.5])
    np.testing.assert_allclose(qffl.variance(records), records.var(axis=1))


@pytest.mark.slow
def test_a_quick_run_is_judged_and_drawn():
    studies = qffl.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    assert studies["clients"].sizes["algorithm"] == 6
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    with picture.print_style():
        drawn = qffl.plot(studies)
    assert picture.faults(drawn) == []
    assert len(drawn.axes) == 3
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(qffl.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    with picture.print_style():
        assert picture.faults(qffl.plot(studies)) == []
