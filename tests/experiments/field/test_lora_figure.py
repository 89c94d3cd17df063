"""The figure of adapters: its images, a quick study, and its claims on made-up results."""

import numpy as np
import pytest
import xarray as xr

from experiments.field import figure_lora as figure
from experiments.figure import Effort

CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}
TUNING = 3


def made_up(accuracies, bits=(5e9, 1e9, 4e8, 1e9), best=(0, 1, 2, 4)):
    """Results whose mean accuracy, bits and best step size by method are given; on the tuning seeds
    another step size than the best one is as good on the others.
    """
    rng = np.random.default_rng(0)
    steps = list(figure.STEPS.value)
    shape = (4, len(steps), TUNING + 6, 2)
    dims = ("algorithm", "step_size", "seed", "round")
    accuracy = np.reshape(accuracies, (4, 1, 1, 1)) + 0.002 * rng.normal(size=shape)
    for method, step in enumerate(best):
        accuracy[method, :step, :TUNING] -= 0.2
        accuracy[method, step + 1 :, :TUNING] -= 0.2
        accuracy[method, (step + 1) % 5, TUNING:] += 0.1  # not looked at
        accuracy[method, step, :TUNING] += 0.05  # not shown
    of_round = np.array([0.5, 1.0])
    sent = np.reshape(bits, (4, 1, 1, 1)) * np.ones(shape) * of_round
    study = xr.Dataset(
        {figure.ACCURACY: (dims, accuracy), "bits_up": (dims, sent)},
        {"algorithm": list(figure.METHODS), "step_size": steps, "round": [1, 2]},
        {"tuning": TUNING},
    )
    return {"digits": study}


def test_images_are_turned_and_differ_from_the_known_ones():
    known, new, test = figure.data(True)
    assert known[0].shape[1] == new[0].shape[1] == test[0].shape[1] == 784
    assert all(0 <= x.min() <= x.max() <= 1 for x, _ in (known, new, test))
    upright = np.arange(784 * 2, dtype=np.uint8).reshape(2, 784)
    back = np.rot90(figure.turned(upright), -1, axes=(1, 2)).reshape(2, 784)
    np.testing.assert_array_equal(back, upright)
    assert not np.array_equal(figure.turned(upright).reshape(2, 784), upright)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fljax.results.warnings.DivergenceWarning")
def test_a_quick_study_has_every_number_that_the_page_shows():
    studies = figure.study(Effort(seeds=2, quick=True, progress=False))
    accuracy = figure.final(studies)
    assert dict(accuracy.sizes) == {"algorithm": 4, "seed": 2}
    rows = figure.table(studies)
    assert [row["method"] for row in rows] == list(figure.METHODS)
    assert set(rows[0]) == {"method", "step size", "accuracy [%]", "sent by clients [Mbit]"}
    bits = figure.of_chosen(studies, "bits_up").isel(round=-1, seed=0)
    full, fedit, ffa, flora = (float(bits.sel(algorithm=name)) for name in figure.METHODS)
    assert full > fedit == flora > ffa


def test_step_sizes_are_chosen_by_the_tuning_seeds_alone():
    studies = made_up((0.9, 0.5, 0.6, 0.7))
    steps = [figure.STEPS.value[i] for i in (0, 1, 2, 4)]
    assert figure.chosen_steps(studies) == dict(zip(figure.METHODS, steps, strict=True))
    values = figure.final(studies).mean("seed").values
    np.testing.assert_allclose(values, [90, 50, 60, 70], atol=0.5)


@pytest.mark.parametrize(
    ("accuracies", "holding"),
    [
        (
            (0.9, 0.5, 0.6, 0.7),
            {
                "ffa-is-more-accurate-than-fedit",
                "flora-is-more-accurate-than-fedit",
                "adapters-are-below-all-parameters",
                "ffa-sends-half",
            },
        ),
        ((0.5, 0.6, 0.5, 0.7), {"flora-is-more-accurate-than-fedit", "ffa-sends-half"}),
        ((0.5, 0.6, 0.6, 0.5), {"ffa-sends-half"}),
    ],
)
def test_claims_follow_the_accuracies(accuracies, holding):
    studies = made_up(accuracies)
    assert {name for name, claim in CLAIMS.items() if claim.judge(studies).holds} == holding


def test_claims_follow_the_bits():
    studies = made_up((0.9, 0.5, 0.6, 0.7), bits=(5e9, 1e9, 9e8, 1e9))
    assert not CLAIMS["ffa-sends-half"].judge(studies).holds
