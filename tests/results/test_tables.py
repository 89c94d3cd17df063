"""Tables: the numbers of the summary, rounded by their intervals, in three formats."""

import io

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fljax as fl
from fljax.results import dataset
from fljax.results.tables import rounded

ERROR = {"long_name": "normalized error", "units": "1", "decibel": 1}
TIME = {"long_name": "time", "units": "s", "decibel": 0}


@pytest.fixture
def results():
    rng = np.random.default_rng(0)
    dims = ("algorithm", "budget", "seed", "round")
    shape = (2, 2, 5, 3)
    lost = np.zeros(shape[:-1], int)
    lost[1, 0, 2] = 7
    return xr.Dataset(
        {
            "error": (dims, rng.gamma(2.0, size=shape), ERROR),
            "time": (dims, 100 + rng.normal(size=shape), TIME),
            "bits": (dims, np.ones(shape), {"long_name": "bits sent", "units": "bit"}),
            "diverged": (dims[:-1], lost),
        },
        coords={
            "algorithm": ["zCDP & co_1", "PGFL"],
            "budget": [0.5, 1.0],
            "round": [10, 20, 30],
        },
    )


def test_the_numbers_equal_the_summary(results):
    frame = fl.table(results, "error", fl.metrics.Metric("time", lambda now: 0.0, "time")).frame
    assert len(frame) == 2 * 2 * 2
    for name, scale in (("error", fl.statistics.decibels), ("time", np.asarray)):
        summary = fl.statistics.summary(results.isel(round=-1), name)
        result = frame[frame["metric"] == name].set_index(["algorithm", "budget"])
        for (algorithm, budget), row in result.iterrows():
            cell = summary.sel(algorithm=algorithm, budget=budget)
            for part in ("mean", "low", "high"):
                assert row[part] == pytest.approx(float(scale(cell[part])), rel=1e-12)
            lost = (algorithm, budget) == ("PGFL", 0.5)
            assert (row["runs"], row["diverged"]) == (5 - lost, lost)


def test_by_default_all_metrics_at_the_last_round_in_decibels(results):
    expected = fl.table(results, "error", "time", round=30)
    assert repr(fl.table(results)) == repr(expected)
    assert "normalized error [dB] | time [s]" in repr(expected)
    assert repr(fl.table(results, round=10)) != repr(expected)
    per_client = results["error"].expand_dims(client=4, axis=-1)
    assert repr(fl.table(results.assign(each=per_client.assign_attrs(ERROR)))) == repr(expected)
    assert len(fl.table(results.assign(each=per_client), "each").frame) == 16
    linear = fl.table(results, decibel=False)
    assert "normalized error | time [s]" in repr(linear)
    np.testing.assert_allclose(
        fl.statistics.decibels(linear.numbers["low"].sel(metric="error")),
        expected.numbers["low"].sel(metric="error"),
    )


def test_means_over_rounds_are_left_to_the_user(results):
    mean = results.isel(round=slice(-2, None)).mean("round", keep_attrs=True)
    table = fl.table(mean, "error")
    assert "round" not in table.note
    np.testing.assert_allclose(
        table.numbers["mean"].sel(metric="error"),
        10 * np.log10(fl.statistics.summary(mean, "error")["mean"]),
    )
    assert int(table.numbers["diverged"].sum()) == 1


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ((12.3456, 12.30, 12.40), ("12.35", "12.30", "12.40")),  # half is 0.05: one digit
        ((12.3456, 12.33, 12.36), ("12.346", "12.330", "12.360")),  # 0.015: two
        ((-0.004, -0.5, 0.5), ("0.0", "-0.5", "0.5")),  # no minus before zero
        ((123456.0, 119000.0, 129000.0), ("123000", "119000", "129000")),
        ((1234567.0, 1204567.0, 1264567.0), ("1.235e6", "1.205e6", "1.265e6")),
        ((3.21e-5, 3.01e-5, 3.43e-5), ("3.21e-5", "3.01e-5", "3.43e-5")),
        ((1.0 / 3.0, np.nan, np.nan), ("0.3333", "", "")),
        ((2.0, 2.0, 2.0), ("2", "", "")),
        ((-np.inf, -np.inf, -np.inf), ("-inf", "", "")),
        ((np.nan, np.nan, np.nan), ("--", "", "")),
    ],
)
def test_digits_follow_from_the_interval(numbers, texts):
    assert rounded(*numbers)[:3] == texts


@pytest.mark.parametrize("half", [0.00354, 0.00355, 0.0094, 0.0096, 0.1, 9.99, 999.0, 1000.0])
def test_rounding_moves_nothing_by_more_than_a_seventh_of_half_the_interval(half):
    mean = 1234.56789
    result = rounded(mean, mean - half, mean + half)
    for text, number in zip(result, (mean, mean - half, mean + half), strict=False):
        assert abs(float(text) - number) <= half / 7


def test_markdown_has_a_row_a_grid_point_and_the_best_bold(results):
    lines = fl.table(results, "error", best="min").markdown().splitlines()
    assert lines[0] == "| algorithm | budget | normalized error [dB] | runs | diverged |"
    assert lines[1] == "| --- | --- | ---: | ---: | ---: |"
    assert [line.split(" | ")[0] for line in lines[2:6]] == ["| zCDP & co_1"] * 2 + ["| PGFL"] * 2
    assert sum("**" in line for line in lines) == 1
    means = fl.table(results, "error").numbers["mean"].values.ravel()
    assert "**" in lines[2 + means.argmin()]
    assert lines[4].endswith("| 4 | 1 |")
    assert lines[-1] == (
        "Mean [95 % interval] over seeds, round 30, without the runs that diverged."
    )


def test_each_metric_has_its_best(results):
    table = fl.table(results, best={"time": "max"})
    assert table.markdown().count("**") == 2
    column = table.numbers["mean"].sel(metric="time").values.ravel()
    row = table.markdown().splitlines()[2 + column.argmax()]
    assert row.split(" | ")[3].startswith("**")


def test_latex_is_a_booktabs_tabular_with_its_text_escaped(results):
    results["error"].attrs["long_name"] = r"error $\|w_k\|^2$ of 5 %"
    selected = results.sel(algorithm=["zCDP & co_1"], budget=1.0)
    result = fl.table(selected, "error", best="min").latex().splitlines()
    assert result[0] == "% Mean [95 % interval] over 5 seeds, budget 1, round 30."
    assert result[1:3] == [r"\begin{tabular}{lr}", r"\toprule"]
    assert result[3] == r"algorithm & error $\|w_k\|^2$ of 5 \% [dB] \\"
    mean, low, high = rounded(
        *(float(fl.table(selected, "error").numbers[p].item()) for p in ("mean", "low", "high"))
    )[:3]
    assert result[5] == rf"zCDP \& co\_1 & $\mathbf{{{mean}}}$ $[{low}, {high}]$ \\"
    assert result[6:] == [r"\bottomrule", r"\end{tabular}"]


def test_latex_has_powers_of_ten_and_infinities(results):
    results["error"] = 1e-9 * results["error"].assign_attrs(ERROR)
    assert fl.table(results, "error", decibel=False).latex().count(r"\cdot10^{-") == 4 * 3
    results["error"] = 0 * results["error"]
    assert fl.table(results, "error").latex().count(r"$-\infty$") == 4


def test_csv_round_trips_rounded_values(results, tmp_path):
    results["error"][0, 0] = np.nan
    path = fl.table(results).save(tmp_path / "table.csv")
    back = pd.read_csv(io.StringIO(path.read_text()))
    assert [*back.columns] == [
        *("algorithm", "budget", "metric", "mean", "low", "high", "runs", "diverged", "label")
    ]
    frame = fl.table(results).frame
    np.testing.assert_allclose(back["mean"], frame["mean"], atol=0.5)
    assert np.isnan(back["mean"][0])
    assert (back["runs"] == frame["runs"]).all()


def test_the_format_is_that_of_the_file_s_name(results, tmp_path):
    table = fl.table(results)
    for name, text in (
        ("a.md", table.markdown()),
        ("a.tex", table.latex()),
        ("a.csv", table.csv()),
    ):
        assert table.save(tmp_path / name).read_text() == text
    with pytest.raises(ValueError, match=r"unknown ending of a table's file '.xlsx'; known: .md"):
        table.save(tmp_path / "a.xlsx")


def test_impossible_tables_are_named(results):
    for metrics, message in (
        (("error", "error"), "each once"),
        (("errors",), "Did you mean 'error'"),
        ((None,), "metric must be"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            fl.table(results, *metrics)
    with pytest.raises(ValueError, match="each once, got \\[\\]"):
        fl.table(results[["bits", "diverged"]])
    with pytest.raises(ValueError, match="over the same axes"):
        fl.table(results.assign(time=results["time"].mean("budget", keep_attrs=True)))
    with pytest.raises(ValueError, match="round 15 was not recorded; the nearest is 10"):
        fl.table(results, round=15)
    with pytest.raises(ValueError, match="one run has no seed axis"):
        fl.table(results.isel(seed=0))
    with pytest.raises(ValueError, match="unknown best 'least'"):
        fl.table(results, best="least")
    with pytest.raises(ValueError, match="unknown metric in best 'bits'"):
        fl.table(results, best={"bits": "min"})


def test_nominal_privacy_is_reported(results):
    assert "nominal" not in fl.table(results).note
    nominal = results["diverged"] > 0
    assert fl.table(results.assign(nominal=nominal)).note.endswith("Some privacy nominal.")


def test_results_become_a_data_frame(results):
    frame = results.to_dataframe()
    assert [*frame.index.names] == ["algorithm", "budget", "seed", "round"]
    assert len(frame) == 2 * 2 * 5 * 3
    assert frame.loc[("PGFL", 0.5, 2, 20), "error"] == float(results["error"][1, 0, 2, 1])
    assert (frame.loc[("PGFL", 0.5, 2), "diverged"] == 7).all()


def test_a_custom_metric_has_its_own_unit(results):
    """A negative one would have no decibels."""
    gain = fl.metrics.Metric("gain", lambda now: -1.0, "gain")
    attributes = dataset.describe([gain, fl.metrics.normalized_error])
    assert attributes["gain"]["decibel"] == 0
    assert attributes["normalized_error"]["decibel"] == 1
    with_gain = results.assign(gain=(-results["error"]).assign_attrs(attributes["gain"]))
    line = fl.table(with_gain, "gain").markdown().splitlines()[2]
    assert " -1.04 [-1.13, -0.94] " in line
    assert "| gain |" in fl.table(with_gain, "gain").markdown().splitlines()[0]
    in_decibels = [name for name, metric in fl.metrics.METRICS.items() if metric.decibel]
    assert sorted(fl.metrics.METRICS.keys() - in_decibels) == [
        *("accuracy", "client_accuracy", "error_rate", "level_bits", "objective", "participation"),
        "timeline",
    ]
