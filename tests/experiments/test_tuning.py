"""Tuning on studies whose best candidate is known."""

import numpy as np
import pytest
import xarray as xr

from experiments.figure import Effort
from experiments.measures import first_rounds
from experiments.tuning import FIRST_SEED, Protocol, Tuning

ROUNDS = np.arange(1, 41)
PROTOCOL = Protocol("error", first_rounds(20), method="x", quick=2)
EFFORT = Effort(tuning_seeds=3)


def run(methods, seeds):
    """Curves that fall as fast as a method's number says; from 0.9 on it diverges."""
    assert list(seeds) == [FIRST_SEED, FIRST_SEED + 1, FIRST_SEED + 2]
    rates = np.array(list(methods.values()))
    data = np.exp(-rates[:, None, None] * ROUNDS) * np.ones((1, len(seeds), 1))
    lost = np.broadcast_to((rates >= 0.9)[:, None], data.shape[:2]).astype(int)
    return xr.Dataset(
        {
            "error": (("algorithm", "seed", "round"), data, {"decibel": 1}),
            "diverged": (("algorithm", "seed"), lost),
        },
        coords={"algorithm": list(methods), "round": ROUNDS},
    )


@pytest.fixture
def tuning_study():
    tried = (0.1, 0.22, 0.5, 0.95)
    tunings = [
        Tuning("x", lambda v: v, tried),
        Tuning("y", lambda v: v, tried, "penalty", "final"),
    ]
    return PROTOCOL.tune(run, {"ours": 0.2}, tunings, EFFORT)


def test_candidates_are_chosen_by_their_rule(tuning_study):
    assert PROTOCOL.chosen(tuning_study, "x") == PROTOCOL.chosen(tuning_study) == 0.22
    assert PROTOCOL.chosen(tuning_study, "y") == 0.5  # 0.95 ends lower, and diverged
    assert tuning_study.attrs["tuning_seeds"] == 3
    with pytest.raises(ValueError, match="'z' was not tuned"):
        PROTOCOL.chosen(tuning_study, "z")


def test_the_record_has_every_candidate(tuning_study):
    rows = PROTOCOL.table({"tuning-a": tuning_study, "a": tuning_study})
    assert [row["method"] for row in rows] == ["x (a)"] * 4 + ["y (a)"] * 4
    assert [row["value"] for row in rows if row["chosen"]] == [0.22, 0.5]
    assert [row["parameter"] for row in rows[3:5]] == ["step size", "penalty"]
    assert rows[1]["score"] == pytest.approx(10 * np.log10(np.e) * 0.02 * 10.5)
    assert rows[6]["score"] == rows[6]["final_error"] == pytest.approx(np.exp(-20))
    assert np.isinf([rows[3]["score"], rows[7]["score"]]).all()
    assert {row["method"] for row in PROTOCOL.table({"tuning": tuning_study})} == {"x", "y"}


def test_unnamed_results_belong_to_the_only_comparator(tuning_study):
    unnamed = tuning_study.isel(candidate=slice(4)).drop_vars(["tuned", "parameter", "rule"])
    assert PROTOCOL.table({"tuning": unnamed}) == PROTOCOL.table({"tuning": tuning_study})[:4]


def test_quick_tries_fewer():
    effort = Effort(tuning_seeds=3, quick=True)
    result = PROTOCOL.tune(run, {"ours": 0.2}, [Tuning("x", lambda v: v, (0.1, 0.2, 0.3))], effort)
    assert result["value"].values.tolist() == [0.1, 0.3]
