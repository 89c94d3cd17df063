"""Trackers: the content of event files, databases and plain files, read back after a study."""

import importlib.util
import json
import time
import warnings

import jax
import numpy as np
import pandas
import pytest
import xarray as xr

import fljax as fl
from fljax.study import executor, tracking

GRID = {"penalty": [0.5, 1.0]}
STUDY = {"grid": GRID, "seeds": 3, "rounds": 8, "progress": False}


def scenario(key, penalty):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=4, samples=5, dim=2),
        network=fl.graphs.ring(4),
        algorithm=fl.algorithms.NetworkedADMM(penalty),
        metrics=["normalized_error", "consensus_error"],
    )


def expected_curves(results):
    """``{(penalty, curve): values}`` of the normalized error, from the results."""
    summary = fl.statistics.summary(results, "normalized_error")
    curves = {}
    for penalty in GRID["penalty"]:
        for seed in results["seed"].values:
            values = results["normalized_error"].sel(penalty=penalty, seed=seed).values
            curves[penalty, f"seed {seed}"] = values
        for part in ("mean", "low", "high"):
            curves[penalty, part] = summary[part].sel(penalty=penalty).values
    return curves


def check_curves(read, results, rtol=1e-12):
    """Whether the numbers read back, ``{(penalty, curve): {round: value}}``, are the results."""
    expected = expected_curves(results)
    assert read.keys() == expected.keys()
    for name, values in expected.items():
        assert [*read[name]] == results["round"].values.tolist(), name
        np.testing.assert_allclose([*read[name].values()], values, rtol=rtol, err_msg=str(name))


# Plain files ------------------------------------------------------------------------------------


def curves_of_files(folder):
    frame = pandas.read_csv(folder / "curves.csv")
    return {
        name: dict(zip(rows["round"], rows["normalized_error"], strict=True))
        for name, rows in frame.groupby(["penalty", "curve"])
    }


def test_plain_files_have_the_curves_settings_table_and_pictures(tmp_path):
    folder = tmp_path / "new" / "files"
    results = fl.sweep(scenario, **STUDY, track=fl.track.csv(folder))
    check_curves(curves_of_files(folder), results)
    content = json.loads((folder / "settings.json").read_text())
    assert content["state"] == "finished"
    assert content["settings"]["grid"] == GRID
    assert content["settings"]["seeds"] == [0, 1, 2]
    assert content["settings"]["rounds"] == 8
    assert content["environment"]["jax"] == jax.__version__
    assert (folder / "table.csv").read_text() == fl.table(results).csv()
    for name in ("normalized_error", "consensus_error"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_study_replaces_the_files_of_the_first(tmp_path):
    fl.sweep(scenario, **STUDY | {"seeds": 4}, track=fl.track.csv(tmp_path))
    results = fl.sweep(scenario, **STUDY, track=fl.track.csv(tmp_path))
    check_curves(curves_of_files(tmp_path), results)


def test_the_number_of_curves_of_seeds_is_limited(tmp_path):
    fl.sweep(scenario, **STUDY, track=fl.track.csv(tmp_path, seed_curves=1))
    curves = {curve for _, curve in curves_of_files(tmp_path)}
    assert curves == {"seed 0", "mean", "low", "high"}


def test_a_study_without_a_grid_is_one_run(tmp_path):
    study = STUDY | {"grid": None}
    fl.sweep(lambda key: scenario(key, 1.0), **study, track=fl.track.csv(tmp_path))
    frame = pandas.read_csv(tmp_path / "curves.csv")
    assert {*frame.columns} == {"curve", "round", "normalized_error", "consensus_error"}


# While a study runs -----------------------------------------------------------------------------


class Recorded(fl.track.StudySession):
    """A session that lists its calls."""

    def __init__(self, tracker, results):
        super().__init__(tracker, results)
        self.log = tracker.log

    def write(self, point, curve):
        self.log.append((point.label, curve.name, curve.rounds))

    def close(self, summary):
        self.log.append(summary)


class Recording(fl.track.StudyTracker):
    """The tracker of such sessions."""

    name = "first"
    seed_curves = 2
    session = Recorded

    def __init__(self):
        self.log = []

    def check(self):
        self.check_settings()

    def start(self, results):
        return self.session(self, results)


def test_each_round_of_a_curve_is_written_once_as_soon_as_it_is_computed(monkeypatch):
    monkeypatch.setattr(executor, "FLUSH_SECONDS", 0.0)
    tracker = Recording()
    # The study waits for the tracker here; otherwise some updates would be left out.
    fl.sweep(scenario, **STUDY, segment=2, track=tracker, callback=lambda results: time.sleep(0.05))
    *written, summary = tracker.log
    rounds = {}
    for label, curve, new in written:
        rounds.setdefault((label, curve), []).append(new)
    curves = ("seed 0", "seed 1", "mean", "low", "high")
    assert rounds.keys() == {(f"penalty={p}", curve) for p in (0.5, 1.0) for curve in curves}
    for pieces in rounds.values():
        assert [number for piece in pieces for number in piece] == [*range(1, 9)]
        assert len(pieces) > 1
    assert summary.state == "finished"
    assert summary.final[1].keys() == {
        f"{metric}/{part}"
        for metric in ("normalized_error", "consensus_error")
        for part in ("mean", "low", "high")
    }


def test_a_mean_waits_for_all_seeds_until_the_study_ends():
    session = Recorded(Recording(), xr.Dataset(coords={"seed": [0, 1]}))
    error = np.ones((2, 3))
    error[1, 1:] = np.nan  # the second run is at its first round
    results = xr.Dataset(
        {
            "error": (("seed", "round"), error, {"decibel": 1}),
            "diverged": ("seed", [0, 0]),
            "done": ("seed", [True, False]),
        },
        coords={"seed": [0, 1], "round": [10, 20, 30]},
    )
    session.update(results)
    assert ("study", "seed 0", [10, 20, 30]) in session.log
    assert ("study", "seed 1", [10]) in session.log
    assert ("study", "mean", [10]) in session.log
    session.end(results, "interrupted", {})
    assert ("study", "mean", [20, 30]) in session.log
    assert session.log[-1].state == "interrupted"


def test_a_study_that_is_resumed_shows_the_rounds_of_its_store(tmp_path):
    fl.sweep(scenario, **STUDY | {"seeds": 2}, store=tmp_path / "store")
    tracker = fl.track.csv(tmp_path / "files")
    results = fl.sweep(scenario, **STUDY, store=tmp_path / "store", track=tracker)
    check_curves(curves_of_files(tmp_path / "files"), results)


def test_the_state_of_a_study_that_did_not_end_is_shown(tmp_path):
    def state_after(error):
        def callback(results):
            raise error

        with pytest.raises(type(error)):
            fl.sweep(scenario, **STUDY, callback=callback, track=fl.track.csv(tmp_path))
        return json.loads((tmp_path / "settings.json").read_text())["state"]

    assert state_after(KeyboardInterrupt()) == "interrupted"
    assert state_after(OSError("gone")) == "failed"


def test_runs_of_other_shards_have_no_curves(tmp_path):
    shard = STUDY | {"shard": "1/2", "store": tmp_path / "part"}
    results = fl.sweep(scenario, **shard, track=fl.track.csv(tmp_path / "files"))
    curves = curves_of_files(tmp_path / "files")
    assert {curve for _, curve in curves} == {"seed 0", "seed 2", "mean", "low", "high"}
    half = results.sel(seed=[0, 2])
    mean = fl.statistics.summary(half, "normalized_error")["mean"].sel(penalty=1.0)
    np.testing.assert_allclose([*curves[1.0, "mean"].values()], mean.values, rtol=1e-12)


# Failures ---------------------------------------------------------------------------------------


class Broken(Recording):
    """A tracker that fails in one of its methods."""

    def __init__(self, method):
        super().__init__()
        broken = {method: self.fail}
        self.session = type("Failing", (Recorded,), broken)
        if method in ("start", "pictures"):
            setattr(self, method, self.fail)

    def fail(self, *arguments):
        raise ConnectionError("no answer\nfrom there")


@pytest.mark.parametrize("method", ["start", "write", "close", "pictures"])
def test_a_tracker_that_fails_costs_one_warning(method, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "FLUSH_SECONDS", 0.0)
    others = fl.track.csv(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = fl.sweep(scenario, **STUDY, segment=2, track=[Broken(method), others])
    (warning,) = [w for w in caught if w.category is fl.track.TrackerWarning]
    assert "Broken" in str(warning.message)
    assert "ConnectionError: no answer from there" in str(warning.message)
    check_curves(curves_of_files(tmp_path), results)
    np.testing.assert_array_equal(
        results["normalized_error"], fl.sweep(scenario, **STUDY)["normalized_error"]
    )


def test_a_tracker_that_does_not_answer_is_left_behind(monkeypatch):
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 0.1)

    class Slow(Recorded):
        def write(self, point, curve):
            time.sleep(1)

    tracker = Recording()
    tracker.session = Slow
    with pytest.warns(fl.track.TrackerWarning, match="did not answer within 0 s"):
        fl.sweep(scenario, **STUDY, track=tracker)


def test_other_values_than_trackers_are_refused():
    for track in ("tensorboard", [fl.track.csv("x"), "wandb"], fl.track.csv):
        with pytest.raises(TypeError, match=r"track must be a tracker of fljax.track"):
            fl.sweep(scenario, **STUDY, track=track)
    with pytest.raises(AttributeError, match="Did you mean 'tensorboard'"):
        _ = fl.track.tensorbord


@pytest.mark.parametrize(
    ("tracker", "library"),
    [
        (fl.track.tensorboard(), "tensorboardX"),
        (fl.track.wandb("p", mode="offline"), "wandb"),
        (fl.track.mlflow(), "mlflow"),
    ],
    ids=["tensorboard", "wandb", "mlflow"],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(tracker, library, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == library else find_spec(name)
    )
    extra = {"tensorboardX": "tensorboard"}.get(library, library)
    with pytest.raises(ImportError, match=rf"needs {library}.*pip install 'fljax\[{extra}\]'"):
        fl.sweep(scenario, **STUDY, track=tracker)


def test_settings_of_trackers_are_checked(tmp_path):
    with pytest.raises(ValueError, match="into a folder, got the file"):
        fl.track.csv("curves.csv")
    with pytest.raises(ValueError, match="name must be a name without slashes"):
        fl.track.tensorboard(name="a/b")
    with pytest.raises(ValueError, match=r"unknown mode 'ofline'.*Did you mean 'offline'"):
        fl.track.wandb("p", mode="ofline")
    with pytest.raises(ValueError, match="project must be a name without any of"):
        fl.track.wandb("a/b")
    with pytest.raises(ValueError, match="uri must be of a server"):
        fl.track.mlflow(uri="studies.db")


# With the libraries -----------------------------------------------------------------------------


def test_tensorboard_reads_the_curves_settings_and_pictures(tmp_path):
    pytest.importorskip("tensorboardX")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    layout = pytest.importorskip("tensorboard.plugins.custom_scalar.layout_pb2")
    tracker = fl.track.tensorboard(tmp_path, name="first")
    results = fl.sweep(scenario, **STUDY, track=tracker)

    def events(folder):
        return reader.EventAccumulator(str(folder), {"scalars": 0, "tensors": 0}).Reload()

    read = {}
    for penalty in GRID["penalty"]:
        run = events(tmp_path / "first" / f"penalty={penalty}")
        for tag in run.Tags()["scalars"]:
            metric, _, curve = tag.partition("/")
            if metric == "normalized_error":
                values = {event.step: event.value for event in run.Scalars(tag)}
                read[penalty, curve.replace("_", " ")] = values
        content = run.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        parameters = plugin.HParamsPluginData.FromString(content).session_start_info.hparams
        assert parameters["penalty"].number_value == penalty
        (chart,) = run.Tensors("custom_scalars__config__")
        charts = layout.Layout.FromString(chart.tensor_proto.string_val[0])
        (category,) = [c for c in charts.category if c.title == "normalized_error"]
        (margin, seeds) = category.chart
        band = margin.margin.series[0]
        assert (band.value, band.lower) == ("normalized_error/mean", "normalized_error/low")
        assert [*seeds.multiline.tag] == [f"normalized_error/seed_{s}" for s in range(3)]
        assert {*seeds.multiline.tag} <= {*run.Tags()["scalars"]}
    check_curves(read, results, rtol=1e-6)  # in single precision
    study = events(tmp_path / "first")
    texts = {}
    for tag in study.Tags()["tensors"]:
        (event,) = study.Tensors(tag)
        texts[tag] = event.tensor_proto.string_val[0].decode()
    assert "| rounds | 8 |" in texts["settings/text_summary"]
    assert f"| jax | {jax.__version__} |" in texts["environment/text_summary"]
    assert texts["table/text_summary"] == str(fl.table(results))
    assert {*study.Tags()["images"]} == {"normalized_error", "consensus_error"}


def test_mlflow_has_a_run_for_each_point_within_that_of_the_study(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path}/studies.db"
    tracker = fl.track.mlflow("first", uri=uri, artifacts=tmp_path / "artifacts")
    results = fl.sweep(scenario, **STUDY, track=tracker)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("first").experiment_id
    runs = client.search_runs([experiment])
    (study,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    read = {}
    for run in runs:
        assert run.info.status == "FINISHED"
        if run is not study:
            assert run.data.tags["mlflow.parentRunId"] == study.info.run_id
            for name in run.data.metrics:
                metric, _, curve = name.partition("/")
                if metric == "normalized_error":
                    history = client.get_metric_history(run.info.run_id, name)
                    values = {point.step: point.value for point in history}
                    read[float(run.data.params["penalty"]), curve] = dict(sorted(values.items()))
    check_curves(read, results)
    assert study.data.params["rounds"] == "8"
    assert study.data.tags["jax"] == jax.__version__
    files = {file.path for file in client.list_artifacts(study.info.run_id)}
    assert files == {
        *("settings.json", "table.csv", "table.md"),
        *("normalized_error.png", "consensus_error.png"),
    }
    # A second study is a further run of the same experiment.
    fl.sweep(scenario, **STUDY, track=tracker)
    assert len(client.search_runs([experiment])) == 6


#: The format of an offline run's file: a header, then blocks of records with a head of seven bytes,
#: checksum, length and kind (1: a whole record, 2 to 4: its first, middle and last piece).
HEADER = 7
BLOCK = 32768
HEAD = 7


def records_of(file):
    """The records of an offline run."""
    from wandb.proto import wandb_internal_pb2

    content = file.read_bytes()
    at = HEADER
    data = b""
    while at + HEAD <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEAD:  # the rest of a block
            at += left
            continue
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        kind = content[at + 6]
        data += content[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(data)
            data = b""


def all_records_of(file):
    """The records of an offline run to its last, which the library's process may write late."""
    for _ in range(600):
        records = [*records_of(file)]
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{file} has no end")


def test_wandb_has_a_run_for_each_point_in_the_group_of_the_study(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = fl.track.wandb("first", folder=tmp_path / "w")
    results = fl.sweep(scenario, **STUDY, track=tracker)
    read = {}
    groups = set()
    kinds = []
    for file in (tmp_path / "w").rglob("*.wandb"):
        records = all_records_of(file)
        (run,) = [record.run for record in records if record.HasField("run")]
        configuration = {u.key: json.loads(u.value_json) for u in run.config.update}
        groups.add(run.run_group)
        kinds.append(run.job_type)
        rows = [record.history.item for record in records if record.HasField("history")]
        rows = [
            {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row}
            for row in rows
        ]
        if run.job_type == "grid point":
            for row in rows:
                for name, value in row.items():
                    metric, _, curve = name.partition("/")
                    if metric == "normalized_error":
                        curve = read.setdefault((configuration["penalty"], curve), {})
                        curve[row["round"]] = value
        else:
            assert configuration["settings"]["rounds"] == 8
            assert configuration["environment"]["jax"] == jax.__version__
            shown = {name.partition("/")[0] for row in rows for name in row}
            assert {"table", "normalized_error", "consensus_error"} <= shown
        (end,) = [record.exit for record in records if record.HasField("exit")]
        assert end.exit_code == 0
    check_curves(read, results)
    assert len(groups) == 1
    assert sorted(kinds) == ["grid point", "grid point", "study"]


def test_wandb_without_a_login_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def untouched(key):
        raise AssertionError("the scenario was built")

    with pytest.raises(ValueError, match=r"fljax\.track\.wandb has no login: run `wandb login`"):
        fl.sweep(untouched, rounds=2, track=fl.track.wandb("first"))
