"""Numbers computed again against those that are stored."""

import numpy as np
import pytest
import xarray as xr

from experiments.recomputing import compared

SEEDS = 40


def study(seeds=range(SEEDS), shift=0.0, stream=0, chosen=0.1):
    """Errors of two methods along rounds; a stream has its own draws for each seed."""
    values = np.stack(
        [np.random.default_rng([stream, seed]).normal([1.0, 3.0], 0.5, (5, 2)) for seed in seeds]
    )
    return xr.Dataset(
        {
            "error": (("seed", "round", "algorithm"), values + shift),
            "step": ("algorithm", [chosen, 0.3]),
            "label": ("algorithm", ["one", "other"]),
        },
        {"seed": [*seeds], "round": [1, 2, 3, 4, 5], "algorithm": ["a", "b"]},
    )


def test_the_same_numbers_agree():
    comparison = compared({"x": study()}, {"x": study(range(3))})
    assert comparison == ([], [])
    rounded = study()
    rounded["error"] = rounded["error"].round(2)
    assert compared({"x": rounded}, {"x": study(range(3))}) == ([], [])


def test_other_draws_of_the_same_law_are_said_and_agree():
    differs, draws = compared({"x": study()}, {"x": study(range(4), stream=1, chosen=0.2)})
    assert not differs
    assert len(draws) == 2
    assert draws[0].startswith("x, error: ")
    assert draws[1] == "x, step: 50 % differ, such as 0.2, stored as 0.1"


def test_other_means_differ():
    differs, draws = compared({"x": study()}, {"x": study(range(4), stream=1, shift=1.5)})
    (line,) = differs
    assert line.startswith("x, error: of means over seeds 100 % differ, such as ")
    assert not draws


def test_numbers_without_seeds_must_be_the_same():
    exact = xr.Dataset({"bound": ("k", [1.0, 2.0])}, {"k": [1, 2]})
    assert compared({"x": exact}, {"x": exact * 1.01}) == ([], [])
    (line,), _ = compared({"x": exact}, {"x": exact * 1.05})
    assert line == "x, bound: 100 % differ, such as 2.1, stored as 2"


def test_scores_of_tuning_may_be_of_other_draws():
    scores = xr.Dataset({"score": ("k", [1.0, 2.0])}, {"k": [1, 2]})
    differs, draws = compared({"tuning": scores}, {"tuning": scores * 1.2})
    assert not differs
    assert draws == ["tuning, score: 100 % differ, such as 2.4, stored as 2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.drop_vars("error"), "x, error: not computed any more"),
        (lambda s: s.isel(round=slice(3)), "x, error: sizes {'seed': 3, 'round': 3, "),
        (lambda s: s.assign_coords(round=[1, 2, 3, 4, 6]), "other labels of the axis round"),
        (lambda s: s.assign_coords(algorithm=["a", "c"]), "other labels of the axis algorithm"),
        (lambda s: s.assign_coords(seed=[90, 91, 92]), "no seed is among the stored ones"),
        (lambda s: s.mean("round"), "x, error: axes ('seed', 'algorithm') instead of"),
    ],
)
def test_other_structures_are_said(change, message):
    differs, _ = compared({"x": study()}, {"x": change(study(range(3)))})
    assert message in differs[0]


def test_studies_that_come_or_go_are_said():
    differs, _ = compared({"x": study()}, {"y": study()})
    assert differs == ["x: not computed any more", "y: not stored"]


def test_runs_that_diverged_in_both_agree():
    stored = study()
    stored["error"][0, 2:] = np.nan
    stored["error"][1, 3:] = np.inf
    assert compared({"x": stored}, {"x": stored.isel(seed=slice(3))}) == ([], [])
