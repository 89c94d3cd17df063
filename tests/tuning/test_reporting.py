"""The page of a report: parsed, its numbers against NumPy, its menus as Plotly reads them."""

import base64
import io
import json
import re
import sys
from html.parser import HTMLParser

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

import fljax as fl
from fljax.plotting import interactive

go = pytest.importorskip("plotly.graph_objects", reason="pip install 'fljax[report]'")

ROUNDS = np.arange(2, 14, 2)
SEEDS = 4
BAD_NAME = '</script><script>alert(1)</script> & "<b>" \' '


class Page(HTMLParser):
    """The elements of a page, with their attributes and texts."""

    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text):
        super().__init__()
        self.elements = []  # [tag, attributes, text]
        self.open = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])
        if tag not in self.VOID:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def all(self, tag):
        return [(attrs, text) for name, attrs, text in self.elements if name == tag]

    def table(self, number=0):
        """The rows of a sortable table: for each cell the key by which it is sorted, and text."""
        rows = []
        start = [
            i for i, (tag, attrs, _) in enumerate(self.elements) if attrs.get("class") == "sortable"
        ]
        for tag, attrs, text in self.elements[start[number] + 1 :]:
            if tag == "table":
                break
            if tag == "tr":
                rows.append([])
            if tag in ("td", "th") and rows:
                rows[-1].append((attrs.get("data-value"), text))
        return rows

    @property
    def figure(self):
        (text,) = [text for attrs, text in self.all("script") if attrs.get("id") == "figure"]
        return json.loads(text)

    @property
    def text(self):
        return " ".join(text for tag, _, text in self.elements if tag == "body").split('{"data"')[0]


def page(results, tmp_path, **more):
    path = fl.report(results, tmp_path / "study.html", **more)
    assert path == tmp_path / "study.html"
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture
def results():
    """[method, budget, seed, round], with a run that diverged and private figures."""
    rng = np.random.default_rng(0)
    axes = ("algorithm", "budget", "seed", "round")
    shape = (2, 3, SEEDS, len(ROUNDS))
    spent = np.array([0.1, 1.0, 10.0])[:, None, None] * ROUNDS / ROUNDS[-1]
    lost = np.zeros(shape[:3], int)
    lost[1, 2, 0] = 4
    bits = np.array([320, 640])[:, None, None] * ROUNDS * np.ones((SEEDS, 1), int)
    return xr.Dataset(
        {
            "normalized_error": (
                axes,
                rng.gamma(2.0, size=shape),
                {"long_name": "normalized error", "units": "1", "decibel": 1},
            ),
            "gap": (axes, rng.normal(size=shape), {"long_name": "gap", "units": "K", "decibel": 0}),
            "client_error": ((*axes, "client"), np.ones((*shape, 5)), {"decibel": 1}),
            "bits": (("algorithm", "seed", "round"), bits, {"long_name": "sent", "units": "bit"}),
            "messages": (axes, np.zeros(shape, int)),
            "gradients": (("algorithm", "round"), np.stack([7 * ROUNDS, 0 * ROUNDS])),
            "privacy_rho": (
                axes,
                np.broadcast_to(spent, shape),
                {"long_name": "spent", "units": "rho"},
            ),
            "nominal": (axes[:3], np.broadcast_to([[[False]], [[True]]], shape[:3])),
            "diverged": (axes[:3], lost),
        },
        coords={
            "algorithm": ["plain", BAD_NAME],
            "budget": np.float32([0.1, 1.0, 10.0]),
            "round": ROUNDS,
        },
        attrs={"scenario": "a <study>", "jax": "0.10", "decisions": '{"algorithm": ["X<(1)"]}'},
    )


def expected(results, name):
    """Mean and Student's interval over the seeds that did not diverge, ``[curve, T]`` each."""
    curves = []
    for values, lost in zip(
        results[name].values.reshape(-1, SEEDS, len(ROUNDS)),
        results["diverged"].values.reshape(-1, SEEDS),
        strict=True,
    ):
        values = values[lost == 0]
        mean = values.mean(0)
        half = stats.t.ppf(0.975, len(values) - 1) * values.std(0, ddof=1) / np.sqrt(len(values))
        if name == "gap":
            curves.append((mean - half, mean + half, mean))
        else:  # in logarithms, since it is not negative
            curves.append((mean * np.exp(-half / mean), mean * np.exp(half / mean), mean))
    return np.array(curves)


def numbers(lists):
    return np.array(lists, float)


def test_nothing_is_loaded_from_elsewhere(results, tmp_path):
    parsed = page(results, tmp_path)
    for tag, attrs, _ in parsed.elements:
        assert "src" not in attrs
        assert tag not in ("link", "img", "iframe", "base", "object", "embed")
        assert not any(name.startswith("on") for name in attrs)
        assert attrs.get("href", "data:").startswith("data:")
    (policy,) = [a["content"] for a, _ in parsed.all("meta") if "http-equiv" in a]
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:|\*", policy)
    (style,) = parsed.all("style")
    assert not re.search(r"url\(|@import", style[1])
    assert [attrs.get("type") for attrs, _ in parsed.all("script")] == [
        "application/json",
        None,
        None,
    ]
    assert (tmp_path / "study.html").stat().st_size < 5e6


def test_text_of_results_is_no_program(results, tmp_path):
    parsed = page(results, tmp_path, title=BAD_NAME)
    assert len(parsed.all("script")) == 3
    assert not parsed.all("b")
    assert parsed.all("title")[0][1] == parsed.all("h1")[0][1] == BAD_NAME
    assert {row[0][1] for row in parsed.table()[1:]} == {"plain", BAD_NAME}
    assert "X<(1)" in parsed.text
    (figure,) = [text for attrs, text in parsed.all("script") if "id" in attrs]
    assert "<" not in figure  # which could end the element
    names = [trace["name"] for trace in parsed.figure["data"] if "name" in trace]
    # Plotly reads some tags in text, and shows entities as the letters they stand for.
    assert len(names) == 6
    assert all("<" not in name for name in names)
    assert names[3].startswith("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; ")


def test_curves_are_means_with_their_intervals(results, tmp_path):
    figure = page(results, tmp_path).figure
    metric_menu = figure["layout"]["updatemenus"][0]["buttons"]
    labels = ["normalized error [dB]", "normalized error", "gap [K]"]
    assert [button["label"] for button in metric_menu] == labels
    error = expected(results, "normalized_error")
    for button, curves in zip(
        metric_menu, (10 * np.log10(error), error, expected(results, "gap")), strict=True
    ):
        arrays = button["args"][0]
        np.testing.assert_allclose(
            numbers(arrays["y"]).reshape(-1, 3, len(ROUNDS)), curves, rtol=1e-6
        )
        assert arrays["customdata"][0::3] == arrays["customdata"][1::3] == [None] * 6
        ends = numbers(arrays["customdata"][2::3])  # [curve, T, 2], which the mean's line shows
        np.testing.assert_allclose(ends.transpose(0, 2, 1), curves[:, :2], rtol=1e-6)
    first = metric_menu[0]["args"][0]
    assert [trace["y"] for trace in figure["data"]] == first["y"]
    assert [trace["x"] for trace in figure["data"]] == [ROUNDS.tolist()] * 18
    assert figure["layout"]["xaxis"]["title"]["text"] == "round"
    assert figure["layout"]["yaxis"]["title"]["text"] == labels[0]


def test_horizontal_axes_are_what_was_counted(results, tmp_path):
    menu = page(results, tmp_path).figure["layout"]["updatemenus"][1]["buttons"]
    assert [button["label"] for button in menu] == ["round", "sent [bit]", "gradients"]
    rounds, bits, gradients = (numbers(button["args"][0]["x"]) for button in menu)
    np.testing.assert_array_equal(rounds, ROUNDS[None])  # one row, for all lines
    np.testing.assert_array_equal(bits, np.repeat([320 * ROUNDS, 640 * ROUNDS], 9, axis=0))
    np.testing.assert_array_equal(gradients, np.repeat([7 * ROUNDS, 0 * ROUNDS], 9, axis=0))


def timed(results):
    """The results on a clock, with seconds and energy of each run."""
    seconds = 1 + np.random.default_rng(5).uniform(size=results.gap.shape).cumsum(-1)
    seconds[1, 2, 0] = 1000.0  # of the run that diverged
    return results.assign(
        seconds=(results.gap.dims, seconds, {"long_name": "time", "units": "s"}),
        joules=2 * results.gradients + 1,
    )


def test_curves_over_time_are_means_at_the_same_time(results, tmp_path):
    data = timed(results)
    figure = page(data, tmp_path).figure
    traces = figure["data"]
    metric_menu, menu = (m["buttons"] for m in figure["layout"]["updatemenus"][:2])
    labels = ["round", "sent [bit]", "gradients", "joules", "time [s]"]
    assert [button["label"] for button in menu] == labels
    assert len(traces) == 36
    assert [trace.get("visible", True) for trace in traces] == [True] * 18 + [False] * 18
    for button in menu:
        by_time = button["label"] == "time [s]"
        assert button["args"][0]["visible"] == [not by_time] * 18 + [by_time] * 18
    assert menu[-1]["args"][1]["xaxis.type"] == "linear"
    arrays = metric_menu[2]["args"][0]  # of the gap, over rounds and then over time
    np.testing.assert_allclose(
        numbers(arrays["y"][:18]).reshape(-1, 3, len(ROUNDS)), expected(results, "gap"), rtol=1e-6
    )
    x_values = menu[-1]["args"][0]["x"]
    assert x_values[18:] == [trace["x"] for trace in traces[18:]]
    shape = (6, SEEDS, len(ROUNDS))
    gap, seconds = (data[name].values.reshape(shape) for name in ("gap", "seconds"))
    lost = data.diverged.values.reshape(6, SEEDS) > 0
    for curve in range(6):
        line = 18 + 3 * curve
        at = np.array(x_values[line + 2])
        seeds = np.flatnonzero(~lost[curve])
        ends = seconds[curve, seeds, 0].max(), seconds[curve, seeds, -1].min()
        np.testing.assert_allclose((at[0], at[-1]), ends, rtol=1e-6)
        for i in range(1, len(at) - 1):
            last = [gap[curve, s][seconds[curve, s] <= at[i]][-1] for s in seeds]
            assert arrays["y"][line + 2][i] == pytest.approx(np.mean(last), rel=1e-6)
        ends = np.array(arrays["customdata"][line + 2])
        np.testing.assert_array_equal(ends.T, [arrays["y"][line], arrays["y"][line + 1]])


def test_one_time_for_all_seeds_is_an_axis_as_others(results, tmp_path):
    data = timed(results)
    data["seconds"] = data["seconds"].isel(seed=1, drop=True)
    figure = page(data, tmp_path).figure
    (button,) = [
        b for b in figure["layout"]["updatemenus"][1]["buttons"] if b["label"] == "time [s]"
    ]
    rows = data["seconds"].values.reshape(6, -1)
    np.testing.assert_allclose(numbers(button["args"][0]["x"]), np.repeat(rows, 3, 0), rtol=1e-6)
    assert "visible" not in button["args"][0]
    assert len(figure["data"]) == 18


def test_menus_of_time_are_what_plotly_accepts(results, tmp_path):
    figure = page(timed(results), tmp_path).figure
    shown = go.Figure(figure["data"], figure["layout"])
    _, horizontal, *_ = (menu["buttons"] for menu in figure["layout"]["updatemenus"])
    for button in (horizontal[-1], horizontal[0], horizontal[-1]):
        shown.plotly_update(*button["args"])
        assert shown.layout.xaxis.title.text == button["label"]
        visible = [trace for trace in shown.data if trace.visible]
        assert len(visible) == 18
        assert all(len(trace.x) == len(trace.y) > 0 for trace in visible)


def test_menus_are_what_plotly_accepts(results, tmp_path):
    """Each entry is applied by Plotly's Python classes, which check every name and value."""
    parsed = page(results, tmp_path)
    layout = parsed.figure["layout"]
    shown = go.Figure(parsed.figure["data"], layout)
    metrics, horizontal, x_scales, y_scales = (menu["buttons"] for menu in layout["updatemenus"])
    for button in horizontal:
        shown.plotly_update(*button["args"])
        assert shown.layout.xaxis.title.text == button["label"]
        assert shown.layout.xaxis.type == ("linear" if button["label"] == "round" else "log")
        assert (
            x_scales[shown.layout.updatemenus[2].active]["label"] == f"{shown.layout.xaxis.type} x"
        )
        assert all(len(trace.x) == len(ROUNDS) for trace in shown.data)
    for button, scale in zip(metrics, ("linear", "log", "linear"), strict=True):
        shown.plotly_update(*button["args"])
        assert shown.layout.yaxis.title.text == button["label"]
        assert shown.layout.yaxis.type == scale
        assert y_scales[shown.layout.updatemenus[3].active]["label"] == f"{scale} y"
        assert [list(trace.y) for trace in shown.data] == button["args"][0]["y"]
    for axis, buttons in (("xaxis", x_scales), ("yaxis", y_scales)):
        for button, scale in zip(buttons, ("linear", "log"), strict=True):
            shown.plotly_update(*button["args"])
            assert shown.layout[axis].type == scale


def test_the_lines_of_a_curve_are_hidden_together_and_named_by_the_grid(results, tmp_path):
    traces = page(results, tmp_path).figure["data"]
    groups = [trace["legendgroup"] for trace in traces]
    assert groups == [str(i) for i in range(6) for _ in range(3)]
    assert [trace.get("showlegend", True) for trace in traces] == [False, False, True] * 6
    assert traces[2]["name"] == "plain, budget = 0.1"
    assert traces[17]["name"].endswith(", budget = 10 (1/4 diverged)")
    one_axis = page(results.isel(algorithm=0), tmp_path).figure
    assert [t["name"] for t in one_axis["data"] if "name" in t] == ["0.1", "1", "10"]
    assert one_axis["layout"]["legend"]["title"]["text"] == "budget"


def test_the_table_is_the_last_round(results, tmp_path):
    parsed = page(results, tmp_path)
    head, *rows = parsed.table()
    assert [text for _, text in head] == [
        *("algorithm", "budget", "normalized error [dB]", "gap [K]"),
        *("diverged of 4", "spent [rho]"),
    ]
    error = 10 * np.log10(expected(results, "normalized_error"))[:, 2, -1]
    gap = expected(results, "gap")[:, 2, -1]
    np.testing.assert_allclose([float(row[2][0]) for row in rows], error, rtol=1e-6)
    np.testing.assert_allclose([float(row[3][0]) for row in rows], gap, rtol=1e-6)
    assert all(re.fullmatch(r"\S+ \[\S+, \S+\]", row[2][1]) for row in rows)
    assert [row[1][1] for row in rows] == ["0.1", "1", "10"] * 2
    assert [row[4][0] for row in rows] == ["0"] * 5 + ["1"]
    spent = ["0.1", "1", "10", "0.1 (nominal)", "1 (nominal)", "10 (nominal)"]
    assert [row[5][1] for row in rows] == spent
    assert "some privacy nominal" in parsed.text.lower()


def test_the_table_is_downloaded_without_rounding(results, tmp_path):
    ((attrs, _),) = page(results, tmp_path).all("a")
    assert attrs["download"] == "results.csv"
    kind, _, content = attrs["href"].partition(",")
    assert kind == "data:text/csv;charset=utf-8;base64"
    frame = pd.read_csv(io.BytesIO(base64.b64decode(content)))
    assert len(frame) == 6 * 2
    error = frame[frame["metric"] == "normalized_error"]
    ends = 10 * np.log10(expected(results, "normalized_error"))[..., -1]
    np.testing.assert_allclose(error[["low", "high", "mean"]].to_numpy(), ends, rtol=1e-12)
    assert error["budget"].tolist() == [0.1, 1.0, 10.0] * 2
    np.testing.assert_allclose(error["privacy_rho"], [0.1, 1, 10] * 2)
    assert set(error["algorithm"]) == {"plain", BAD_NAME}


def test_what_is_not_finite_is_left_out(results, tmp_path):
    results["normalized_error"][0, 0, :, 2] = 0.0  # minus infinity in dB
    results["diverged"][0, 1] = 1
    parsed = page(results, tmp_path, metrics=["normalized_error"])
    first = parsed.figure["data"][2]
    assert [value is None for value in first["y"]] == [False, False, True, False, False, False]
    assert parsed.figure["data"][5]["y"] == [None] * len(ROUNDS)
    assert parsed.table()[2][2] == ("nan", "--")
    assert "DivergenceWarning: 5 of 24 runs diverged" in parsed.text


def test_one_seed_has_no_band(results, tmp_path):
    parsed = page(results.isel(seed=0, algorithm=0), tmp_path, metrics=["gap"])
    traces = parsed.figure["data"]
    assert traces[0]["y"] == traces[1]["y"] == [None] * len(ROUNDS)
    np.testing.assert_allclose(traces[2]["y"], results["gap"][0, 0, 0], rtol=1e-6)
    assert "customdata" not in traces[2]["hovertemplate"]
    assert "[" not in parsed.table()[1][1][1]


# A computed study ---------------------------------------------------------------------------------


def scenario(key, algorithm):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=4, samples=5, dim=2),
        network=fl.graphs.ring(4),
        algorithm=algorithm,
        privacy=fl.privacy.ZCDP(1.0),
        metrics=["normalized_error", "consensus_error"],
    )


METHODS = {
    "ADMM": fl.algorithms.ZCDPNFL(1.0, 0.3),
    "gradient": fl.algorithms.ZCDPGradNFL(0.05),
}


@pytest.fixture(scope="module")
def study():
    with pytest.warns(fl.AssumptionWarning, match="nominal"):
        return fl.sweep(scenario, grid={"algorithm": METHODS}, rounds=3, seeds=2, progress=False)


def test_settings_warnings_and_references_are_those_of_the_study(study, tmp_path):
    parsed = page(study, tmp_path)
    text = parsed.text
    assert parsed.all("h1")[0][1] == "scenario"
    for part in ("ZCDPNFL(penalty=1.0", "ZCDP(total_rho=1.0)", "LeastSquares()"):
        assert part in text
    for name in ("jax", "fljax", "device", "created", "root", "rounds", "scenario_hash"):
        assert str(study.attrs[name]) in text
    warnings = [text for attrs, text in parsed.all("p") if attrs.get("class") == "warning"]
    assert len(warnings) == 1
    assert re.match(r"AssumptionWarning: the privacy figures of 4 of 4 .*nominal", warnings[0])
    assert "normalized_error" in text.split("Not covered by the privacy budget")[1]
    assert "NOMINAL: nothing makes every data set" in text
    ((_, bibtex),) = parsed.all("pre")
    assert bibtex == fl.citation(study)


def test_results_are_cited_as_their_simulations(study):
    entries = [
        fl.citation(scenario(jax.random.key(0), method)).split("\n\n")
        for method in METHODS.values()
    ]
    cited = fl.citation(study).split("\n\n")
    assert len(cited) == len(set(cited))
    assert set(cited) == {entry for several in entries for entry in several}

    @fl.module
    class Mine(fl.algorithms.FedAvg):
        reference = "@misc{me, title = {Mine}}"

    attack = fl.attacks.SignFlip(fl.attacks.first(1, 4))
    simulation = fl.Simulation(
        fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2),
        Mine(0.1),
        attack=attack,
    )
    cited = fl.citation(fl.run(simulation, rounds=1))
    assert cited.startswith("% Mine: its class states its reference")
    assert cited.endswith(fl.citation(attack))


def test_one_run_and_loaded_results_are_shown_as_well(study, tmp_path):
    run = fl.run(scenario(jax.random.key(1), METHODS["ADMM"]), rounds=3)
    parsed = page(run, tmp_path, title="one run")
    np.testing.assert_allclose(
        parsed.figure["data"][2]["y"], 10 * np.log10(run["consensus_error"]), rtol=1e-6
    )
    assert "1 seed, 3 recorded rounds" in parsed.text
    loaded = fl.load(fl.save(study, tmp_path / "results.nc"))
    first = page(study, tmp_path).figure
    assert page(loaded, tmp_path).figure == first


@pytest.mark.slow
def test_a_comparison_shows_its_target_its_methods_and_their_tuning(tmp_path):
    def plain(key, algorithm):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=4, samples=5, dim=2),
            network=fl.graphs.ring(4),
            algorithm=algorithm,
            metrics=["consensus_error", "normalized_error"],
        )

    compared = fl.compare(
        plain,
        ["CTA", "EXTRA"],
        metric="normalized_error",
        rounds=10,
        seeds=3,
        tuning_seeds=2,
        target=0.1,
        points=3,
        extensions=0,
        refinements=0,
    )
    parsed = page(compared, tmp_path)
    decibels, plain_error, other, *_ = parsed.figure["layout"]["updatemenus"][0]["buttons"]
    assert decibels["label"] == "normalized error [dB]"
    levels = [
        [line["y0"] for line in b["args"][1]["shapes"]] for b in (decibels, plain_error, other)
    ]
    assert levels == [[-10.0], [0.1], []]
    assert parsed.figure["layout"]["shapes"] == decibels["args"][1]["shapes"]
    go.Figure(parsed.figure["data"], parsed.figure["layout"]).plotly_update(*decibels["args"])
    frame = compared.table()
    head, *rows = parsed.table(1)
    assert [text for _, text in head] == ["algorithm", *frame.columns]
    assert [row[0][1] for row in rows] == frame.index.tolist()
    difference = [row[head.index((None, "difference"))][0] for row in rows]
    assert float(difference[1]) == frame["difference"].iloc[1]
    tuned = parsed.table(2)
    assert [row[1][1] for row in tuned[1:]] == [
        name for _, name in compared.tuned.table().index.tolist()
    ]
    assert page(compared, tmp_path, metrics=["consensus_error"]).figure["layout"]["shapes"] == []


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (lambda r: xr.Dataset(), {}, "a report is of one or more metrics over rounds"),
        (lambda r: r.drop_vars(["normalized_error", "gap"]), {}, r"have none; record some"),
        (lambda r: r.isel(round=-1), {}, "a report is of one or more metrics over rounds"),
        (lambda r: r.isel(round=[]), {}, "a report is of one or more metrics over rounds"),
        (lambda r: r, {"metrics": ["gape"]}, r"metric 'gape'.*Did you mean 'gap'"),
        (lambda r: r, {"metrics": ["gap", "gap"]}, "each once"),
        (lambda r: r, {"metrics": ["gap", "client_error"]}, "must be over the same axes"),
        (lambda r: r, {"level": 1.5}, "level"),
        (lambda r: r.isel(budget=[]), {}, "axis 'budget' is empty"),
        (
            lambda r: r.isel(budget=np.arange(60) % 3).assign_coords(budget=np.arange(60)),
            {},
            r"up to 100 curves, got 120 \(2 algorithm x 60 budget\); .*results.sel\(budget=",
        ),
    ],
)
def test_results_that_are_no_page_are_refused(results, tmp_path, change, more, message):
    with pytest.raises(ValueError, match=message):
        fl.report(change(results), tmp_path / "study.html", **more)
    assert not list(tmp_path.iterdir())


def test_too_many_numbers_are_refused_with_a_remedy_that_helps(results, tmp_path, monkeypatch):
    monkeypatch.setattr(interactive, "MOST_NUMBERS", 700)
    with pytest.raises(
        ValueError, match=r"up to 700 numbers, got 1152 of 6 curves with 6"
    ) as error:
        fl.report(results, tmp_path / "study.html")
    start, _, every = eval(re.search(r"slice(\(.*?\))", str(error.value))[1])
    fewer = results.isel(round=slice(start, None, every))
    assert fewer["round"].values[-1] == ROUNDS[-1]
    assert len(page(fewer, tmp_path).figure["data"][0]["y"]) == 3


def test_places_that_are_no_page_are_refused(results, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*none; create it first"):
        fl.report(results, tmp_path / "none" / "study.html")
    with pytest.raises(ValueError, match=r"ending of a report's file '.pdf'.*\.html"):
        fl.report(results, tmp_path / "study.pdf")


def test_a_missing_library_names_the_extra(results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r"needs plotly.*pip install 'fljax\[report\]'"):
        fl.report(results, tmp_path / "study.html")
