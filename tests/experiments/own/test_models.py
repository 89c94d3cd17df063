"""The figure of networks: its data by hand, numbers read from runs, claims that notice others."""

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt
from scipy import stats

import fljax as fl
from experiments import picture
from experiments.figure import Effort
from experiments.own import figure_models as models
from experiments.own.figure_models import ACCURACY, ALIKE, ALL, ALPHA, METHODS, UNLIKE

CLAIMS = {claim.name: claim for claim in models.FIGURE.claims}
ROUNDS = np.arange(2, 41, 2)


def curves(ends, speeds, seeds=3):
    """Accuracies that settle, ``[algorithm, concentration, seed, round]``."""
    ends, speeds = (np.asarray(a, float)[..., None, None] for a in (ends, speeds))
    jitter = 0.001 * np.random.default_rng(0).normal(size=(1, 1, seeds, 1))
    return (ends + jitter) * (1 - np.exp(-speeds * ROUNDS))


def study_of(names, values):
    coords = {"algorithm": list(names), ALPHA: [*ALL], "seed": range(values.shape[2])}
    return xr.Dataset(
        {ACCURACY: (("algorithm", ALPHA, "seed", "round"), values, {"decibel": 0})},
        coords | {"round": ROUNDS},
    )


def expected_studies():
    """Studies in which every claim holds."""
    names = [*METHODS]
    ends = {n: [0.85, 0.92, 0.95] for n in names}
    speed = {n: [0.1, 0.2, 0.2] for n in names}
    ends["FedAvgM"] = [0.88, 0.93, 0.95]
    ends["SCAFFOLD"] = [0.95, 0.95, 0.951]
    speed["SCAFFOLD"] = [0.3, 0.3, 0.2]
    ends["FedDyn"] = [0.97, 0.97, 0.97]
    speed["FedDyn"] = [0.5, 0.6, 0.6]
    study = study_of(names, curves([*ends.values()], [*speed.values()]))
    vectors = np.asarray([2.0 if n == "SCAFFOLD" else 1.0 for n in names])
    bits = vectors[:, None, None, None] * 1000 * ROUNDS
    study["bits"] = study[ACCURACY].dims, np.broadcast_to(bits, study[ACCURACY].shape).copy()
    two = [[0.8, 0.9, 0.95], [0.84, 0.91, 0.951]]
    steps = study_of(["FedAvg", "FedNova"], curves(two, np.full((2, 3), 0.2)))
    present = study_of([models.SCAFFOLDS, models.OPTION_I], curves(two, np.full((2, 3), 0.2)))
    tuning = xr.concat([tuning_study(np.full((2, 3, 1), 0.5), n) for n in names], "candidate")
    return {"a": study, "steps": steps, "present": present, "tuning": tuning}


def tuning_study(values, name="FedProx"):
    """``values`` are ``[candidate, concentration, seed]``."""
    values = np.asarray(values, float)
    count = len(values)
    parameter = ("candidate", np.linspace(0.1, 1, count))
    step = ("candidate", np.linspace(0.03, 0.3, count))
    coords = {"tuned": ("candidate", [name] * count), "step": step, "own": parameter, ALPHA: [*ALL]}
    return xr.Dataset({ACCURACY: (("candidate", ALPHA, "seed"), values)}, coords)


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(expected_studies()).holds


@pytest.mark.parametrize(
    ("name", "study", "algorithm", "factor", "where"),
    [
        ("unlike-clients-cost-accuracy", "a", "FedAvg", 1.3, UNLIKE),
        ("scaffold-saves-rounds-where-clients-differ", "a", "SCAFFOLD", 0.5, UNLIKE),
        ("scaffold-is-fedavg-where-clients-are-alike", "a", "SCAFFOLD", 0.5, ALIKE),
        ("scaffold-saves-bits-where-clients-differ", "a", "SCAFFOLD", 0.8, UNLIKE),
        ("feddyn-saves-rounds", "a", "FedDyn", 0.5, ALIKE),
        ("feddyn-saves-bits", "a", "FedDyn", 0.5, ALIKE),
        ("fedprox-is-no-worse", "a", "FedProx", 0.9, UNLIKE),
        ("momentum-helps-where-clients-differ", "a", "FedAvgM", 0.9, UNLIKE),
        ("adam-is-no-worse", "a", "FedAdam", 0.9, ALIKE),
        ("fednova-corrects-unequal-steps", "steps", "FedNova", 0.9, UNLIKE),
        ("fednova-is-fedavg-where-clients-are-alike", "steps", "FedNova", 0.9, ALIKE),
    ],
)
def test_claims_fail_on_other_data(name, study, algorithm, factor, where):
    studies = expected_studies()
    studies[study][ACCURACY].loc[{"algorithm": algorithm, ALPHA: where}] *= factor
    assert not CLAIMS[name].judge(studies).holds


def test_notes_state_the_measurements():
    studies = expected_studies()
    pairs = {"FedAvg": [[0.2], [0.9]], "SCAFFOLD": [[0.8], [0.125]]}
    rows = [tuning_study(np.broadcast_to(v, (3, 2, 1)).swapaxes(0, 1), n) for n, v in pairs.items()]
    studies["tuning"] = xr.concat(rows, "candidate")
    studies["a"][ACCURACY].loc[{"algorithm": "SCAFFOLD", ALPHA: UNLIKE}] *= 0.5
    note = CLAIMS["scaffold-saves-rounds-where-clients-differ"].judge(studies).note
    assert "FedAvg 20.0" in note
    assert "SCAFFOLD 42.0" in note
    assert "FedAvg is best with a step of 0.3, SCAFFOLD with 0.03" in note
    assert "with FedAvg's step came to 12.5 %, with 0.03 to 80.0 %" in note
    assert "FedAvg came to 20.0 %" in note
    assert "it ends at 80.0 %" in note
    assert "at 83.9 %" in note


def test_bits_are_counted():
    studies = expected_studies()
    studies["a"]["bits"].loc[{"algorithm": "SCAFFOLD"}] *= 2
    assert not CLAIMS["scaffold-sends-twice-the-bits"].judge(studies).holds
    assert not CLAIMS["scaffold-saves-bits-where-clients-differ"].judge(studies).holds


def test_needed_rounds_count_to_the_halfway_point_of_fedavg():
    values = np.zeros((2, 3, 2, 20))
    values[0, ..., 7:12] = 0.8  # of its own, five records
    values[0, ..., 12:] = 0.9
    values[1, 0, 0, 6:] = 0.85  # after 14 rounds
    values[1, 0, 1] = 0.7  # never
    studies = {"a": study_of(["FedAvg", "SCAFFOLD"], values)}
    assert models.needed(studies, "SCAFFOLD", UNLIKE).tolist() == [14, 42]
    assert models.needed(studies, "FedAvg", UNLIKE).tolist() == [16, 16]


def test_intervals_are_those_of_paired_differences():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 5))
    result = models.estimate(lambda a, b: a - b, first, second, unit="")
    low, high = stats.ttest_rel(first, second).confidence_interval(0.95)
    np.testing.assert_allclose([result.low, result.high], [low, high])
    alone = models.estimate(lambda a: a, first[:1], unit="")
    assert np.isnan(alone.low)


def test_each_concentration_has_its_best_candidate():
    values = [[[0.5, 0.7], [0.9, 0.9], [0.1, 0.2]], [[0.8, 0.3], [0.1, 0.2], [0.6, 0.6]]]
    points = models.chosen(tuning_study(values), "FedProx")
    assert [p.concentration for p in points] == [*ALL]
    np.testing.assert_allclose([p.step for p in points], [0.03, 0.03, 0.3])
    np.testing.assert_allclose([p.own for p in points], [0.1, 0.1, 1.0])


def test_the_record_has_every_candidate():
    tuning = xr.concat(
        [
            tuning_study(np.full((len(models.tried(m, Effort())), 3, 2), 0.5), n)
            for n, m in METHODS.items()
        ],
        "candidate",
    )
    rows = models.tuning_table({"tuning": tuning})
    assert len(rows) == 3 * (3 * 5 + 3 * 20)
    assert sum(row["chosen"] for row in rows) == 3 * len(METHODS)


def test_a_run_with_overflow_makes_guesses():
    data = {
        ACCURACY: ("seed", [0.9, np.nan]),
        "diverged": ("seed", [0, 3]),
        "bits": ("seed", [1, 1]),
    }
    result = models.judged(xr.Dataset(data))
    np.testing.assert_array_equal(result[ACCURACY], [0.9, 0.1])


def test_pixels_are_means_of_four():
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 4)).astype(np.uint8)
    result = models.halved(images)
    for image, row, column in np.ndindex(3, 3, 2):
        square = images[image, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        np.testing.assert_allclose(result[image, row, column], square.mean() / 255, rtol=1e-6)


def test_unequal_steps_are_ten_in_the_mean():
    steps = models.FULL.unequal
    assert (min(steps), max(steps), len(steps)) == (2, 18, models.CLIENTS.value)
    assert np.mean(steps) == 10


@pytest.mark.slow
def test_clients_have_images_of_the_digits_that_they_drew():
    size = models.TINY._replace(clients=40)
    deal = jax.jit(lambda key, alpha: models.dealt(key, alpha, size))
    sample = fl.data.mnist_sample()
    digit_of = {
        image.tobytes(): digit
        for image, digit in zip(
            models.halved(sample.train_images), sample.train_labels, strict=True
        )
    }
    shares = {}
    for alpha in (UNLIKE, ALIKE):
        problem = deal(fl.random_key(1), alpha)
        images = np.asarray(problem.features, np.float32).reshape(-1, 14, 14)
        digits = [digit_of[image.tobytes()] for image in images]
        np.testing.assert_array_equal(digits, np.asarray(problem.targets).ravel())
        counts = [np.bincount(t, minlength=10) for t in np.asarray(problem.targets, int)]
        shares[alpha] = np.sort(np.asarray(counts), axis=1)[:, -1] / size.samples
    # The largest share: about 0.65 for Dir(0.1), near a tenth for Dir(100), estimated from forty
    # draws.
    assert 0.5 < shares[UNLIKE].mean() < 0.8
    assert 0.1 < shares[ALIKE].mean() < 0.3


@pytest.mark.slow
def test_a_quick_run_is_judged_and_drawn():
    studies = models.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    assert {k: v.sizes["algorithm"] for k, v in studies.items() if k != "tuning"} == {
        "a": 6,
        "steps": 2,
        "present": 2,
    }
    assert studies["tuning"].sizes == {"candidate": 6, ALPHA: 3, "seed": 1}
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    assert CLAIMS["scaffold-sends-twice-the-bits"].judge(studies).holds
    with picture.print_style():
        drawn = models.plot(studies)
    assert picture.faults(drawn) == []
    assert len(drawn.axes) == 9
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(models.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    with picture.print_style():
        assert picture.faults(models.plot(studies)) == []
