"""The command line end to end on one quick run, and claims that notice broken data."""

import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from filelock import FileLock

import experiments
import fljax as fl
from experiments import commands, conventions, measures, picture, records, report
from experiments.__main__ import main, parser
from experiments.commands import MODULES, QUICK
from experiments.conventions import WORDS
from experiments.errors import UsageError
from experiments.figure import REGISTRY, Claim, Effort, Estimate, Figure, Setting
from experiments.gauthier import chapter3 as ch3
from fljax._core import storage, version
from fljax._core.storage import sealed, unsealed
from fljax.study import executor, request

NAME = "gauthier-3.1"
STUDIES = ["a", "b", "enforced-a", "enforced-b", "tuning-enforced", "tuning"]
STORED = Path(__file__).parents[2] / "figures"
NAMES = [
    "audit",
    *("field-dpsgd", "field-fedavg", "field-fedavg-cnn", "field-fedbn", "field-fedbuff"),
    *("field-fedprox", "field-krum", "field-lora", "field-matrix", "field-partitions"),
    *("field-qffl", "field-scaffold", "field-tifl", "field-topology"),
    *("gauthier-3.1", "gauthier-3.2", "gauthier-3.3", "gauthier-3.stress", "gauthier-3.theory"),
    *("gauthier-4.2", "gauthier-4.3", "gauthier-4.4", "gauthier-4.5", "gauthier-4.6"),
    "gauthier-4.theory",
    *("gauthier-5.1", "gauthier-5.2", "gauthier-5.3", "gauthier-5.4"),
    *("gauthier-5.5", "gauthier-5.6", "gauthier-5.theory"),
    *("gauthier-6.1", "gauthier-6.2", "gauthier-6.3"),
    *("gauthier-7.clusters", "gauthier-7.poisoning", "gauthier-7.private", "gauthier-7.servers"),
    *("headline-communication", "headline-convex", "headline-dissimilarity", "headline-exact"),
    "headline-gossip",
    *("headline-hierarchy", "headline-late", "headline-mixtures", "headline-networks"),
    *("headline-newer", "headline-peers", "headline-personal", "headline-private"),
    *("headline-skew", "headline-walks"),
    *("jung-alpha", "jung-asynchronous", "jung-attacks", "jung-audit", "jung-clusters"),
    *("jung-connectivity", "jung-convergence", "jung-descent", "jung-drift", "jung-explain"),
    *(
        "jung-fairness",
        "jung-flavors",
        "jung-funnel",
        "jung-graph-learning",
        "jung-inversion",
        "jung-monitor",
    ),
    *("jung-resilience", "jung-robust", "jung-weather"),
    "models",
    *("rizk-2.1", "rizk-2.2", "rizk-2.3", "rizk-2.4", "rizk-2.5", "rizk-2.6", "rizk-2.7"),
    "rizk-2.theory",
    *("rizk-3.2", "rizk-3.3", "rizk-3.4", "rizk-3.5", "rizk-3.theory"),
    *("rizk-4.4", "rizk-4.5", "rizk-4.theory"),
    *("rizk-5.1", "rizk-5.2", "rizk-5.3", "rizk-5.4", "rizk-5.5"),
    "robustness",
]


@pytest.mark.core
def test_figures_load_without_the_libraries_of_extras():
    """The main command installs none of them; a figure that needs one imports it when it runs."""
    program = (
        "import sys\n"
        "for name in ('flax', 'equinox', 'haiku', 'sklearn', 'networkx', 'dp_accounting'):\n"
        "    sys.modules[name] = None\n"
        "import experiments.commands\n"
        "from experiments.figure import REGISTRY\n"
        "print(len(REGISTRY))\n"
    )
    folder = Path(__file__).parents[2]
    arguments = [sys.executable, "-c", program]
    settings = {"cwd": folder, "capture_output": True, "text": True, "timeout": 300}
    result = subprocess.run(arguments, check=False, **settings)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == len(NAMES)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One quick run, shared: the only thing here that computes."""
    folder = tmp_path_factory.mktemp("figures") / "made by run"
    store = folder.with_name("store")
    ask = ["run", NAME, "--quick", "--seeds", "3", "--store", str(store), "--out"]
    assert main([*ask, str(folder)]) == 0
    return folder


@pytest.fixture
def copy(quick, tmp_path):
    return shutil.copytree(quick, tmp_path / "copy")


def edit(folder, change):
    path = folder / f"{NAME}.json"
    record = unsealed(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(sealed(record), encoding="utf-8")


def complaint(capsys, *argv):
    """The one line of a refused request."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_list_names_all_figures(capsys):
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES


@pytest.mark.slow
def test_run_stores_everything(quick):
    assert sorted(p.name for p in quick.iterdir()) == [
        f"{NAME}{end}" for end in (".json", ".png", ".zip")
    ]
    assert list(records.read_studies(REGISTRY[NAME], quick)) == STUDIES
    assert all(0 < p.stat().st_size < 1e6 for p in quick.iterdir())
    record = records.read_record(REGISTRY[NAME], quick)
    assert record["effort"] == {"seeds": 3, "tuning_seeds": 3, "quick": True}
    assert {c["name"] for c in record["claims"]} == {c.name for c in REGISTRY[NAME].claims}
    assert sum(row["chosen"] for row in record["tuning"]) == 4
    assert str(quick) not in json.dumps(record)


@pytest.mark.slow
def test_a_figure_resumes_where_its_store_is(quick, tmp_path, monkeypatch):
    def computed(*_):
        raise AssertionError("a stored run is computed again")

    monkeypatch.setattr(executor.StudyRun, "_run_segments", computed)
    store = quick.with_name("store")
    again = tmp_path / "again"
    ask = ["run", NAME, "--quick", "--seeds", "3", "--store", str(store), "--out"]
    assert main([*ask, str(again)]) == 0
    once, twice = (records.read_studies(REGISTRY[NAME], folder) for folder in (quick, again))
    assert once.keys() == twice.keys()
    for name, study in once.items():
        xr.testing.assert_equal(study, twice[name])
    with pytest.raises(AssertionError, match="computed again"):
        main([*ask, str(again), "--seeds", "4"])


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A figure of one tiny study, run in a temporary folder with a temporary cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(storage, "cache", lambda: tmp_path / "cache")

    def scenario(key, step_size):
        problem = fl.problems.ridge(key, clients=3, samples=4, dim=2)
        algorithm = fl.algorithms.ConventionalFL(step_size)
        return fl.Simulation(problem, algorithm, metrics=["normalized_error"])

    def study(effort):
        ask = {"grid": {"step_size": [0.01, 0.1]}, "rounds": 2, "seeds": effort.seeds}
        return {"a": effort.sweep("a", scenario, **ask)}

    def plot(studies):
        drawing, axes = picture.panels(["one", "two"])
        for ax in axes:
            fl.plotting.learning_curves(studies["a"], "normalized_error", ax=ax)
        return picture.finish(drawing, "tiny")

    def slow(studies):
        result = studies["a"]["normalized_error"].isel(round=-1).mean("seed").values
        return {"0.01 above 0.1": Estimate.exact(float(result[0] / result[1]), "")}

    claims = [
        Claim("larger-is-faster", "larger steps are faster", "line 1", slow, (1, math.inf)),
        Claim(
            "same",
            "both are the same",
            "line 2",
            slow,
            (0, 1),
            condition="ours: two rounds",
            note=lambda studies: f"measured on {studies['a'].sizes['seed']} seeds",
        ),
    ]
    texts = ("small", "A tiny figure", "nowhere", "Nothing.")
    figure = Figure(*texts, study, plot, claims, [Setting("rounds", 2, "as few as can be")])
    yield figure
    del REGISTRY["small"]


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def stamped(record):
    """A record without what differs from run to run."""
    entries = {k: v for k, v in record.items() if k != "seconds"}
    return entries | {
        "provenance": {k: v for k, v in entries["provenance"].items() if k != "created"}
    }


@pytest.mark.slow
def test_draw_judges_and_draws_what_run_did(small, tmp_path, capsys):
    ask = ["run", "small", "--quick", "--seeds", "3", "--out", "made"]
    assert main(ask) == 0
    assert "why: measured on 3 seeds" in capsys.readouterr().out
    written = files(tmp_path / "made")
    assert {*written} == {"small.json", "small.png", "small.zip"}
    record = unsealed(written["small.json"].decode())
    assert record["provenance"].get("commit", "") == records.commit()
    assert [c["kind"] for c in record["claims"]] == ["source", "conditional"]
    assert [c["note"] for c in record["claims"]] == ["", "measured on 3 seeds"]
    assert main(["draw", "small", "--out", "made"]) == 0
    assert files(tmp_path / "made") == written  # to the last byte, pictures too
    assert main(["draw", "small", "--out", "made", "--pdf", "paper"]) == 0
    assert [*files(tmp_path / "paper")] == ["small.pdf"]
    assert files(tmp_path / "paper")["small.pdf"].startswith(b"%PDF")
    assert files(tmp_path / "made") == written
    assert main(["check", "small", "--out", "made"]) == 0
    assert main(["judge", "small", "--out", "made"]) == 0
    assert files(tmp_path / "made") == written
    other = dataclasses.replace(small.claims[0], text="said otherwise")
    object.__setattr__(small, "claims", [other, *small.claims[1:]])
    assert main(["check", "small", "--out", "made"]) == 1
    assert "judge it again" in capsys.readouterr().out
    assert main(["judge", "small", "--out", "made"]) == 0
    assert main(["check", "small", "--out", "made"]) == 0
    assert main(["check", "small", "--out", "made", "--recompute", "--seeds", "2"]) == 0
    assert "the stored numbers" in capsys.readouterr().out
    judged_again = files(tmp_path / "made")
    assert {name for name in written if written[name] != judged_again[name]} == {"small.json"}


@pytest.mark.slow
def test_a_killed_run_resumes_from_the_cache(small, tmp_path, monkeypatch, capsys):
    ask = ["run", "small", "--quick", "--seeds", "3", "--out", "made"]
    stored = records.store

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "store", killed)
    assert main(ask) == 130
    assert [
        p.name for (cached,) in [(tmp_path / "cache/figures").iterdir()] for p in cached.iterdir()
    ]
    monkeypatch.setattr(records, "store", stored)

    def computed(*_):
        raise AssertionError("a stored run is computed again")

    monkeypatch.setattr(executor.StudyRun, "_run_segments", computed)
    with pytest.raises(AssertionError, match="computed again"):
        main([*ask, "--seeds", "4"])  # another effort, another store
    capsys.readouterr()
    cached = commands.unfinished(Effort(3, 3, True), {})
    (cached / "other").mkdir()  # left by the concurrent run of another figure
    spent = cached / "small" / "seconds"
    assert float(spent.read_text()) > 0
    spent.write_text("1000\n")
    assert main(ask) == 0
    assert "went on from what" in capsys.readouterr().out
    assert 1000 < json.loads(Path("made/small.json").read_text())["seconds"] < 1500
    assert [p.name for p in cached.iterdir()] == ["other"]


@pytest.mark.slow
def test_after_an_upgrade_a_killed_run_restarts(small, tmp_path, monkeypatch, capsys):
    ask = ["run", "small", "--quick", "--seeds", "3", "--out", "made"]
    stored = records.store

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(records, "store", killed)
        assert main(ask) == 130
        assert main([*ask, "--seeds", "4"]) == 130  # another effort, whose runs stay
    before = commands.unfinished(Effort(3, 3, True), {})
    assert (before / "small").is_dir()
    monkeypatch.setattr(jax, "__version__", "99.0")
    assert commands.unfinished(Effort(3, 3, True), {}) != before
    capsys.readouterr()
    with FileLock(before / "small" / ".study.lock"):
        commands.discard_stale(commands.unfinished(Effort(3, 3, True), {}), "small")
        assert (before / "small").is_dir()  # a process of the other version is at work
    assert main(ask) == 0
    assert capsys.readouterr().out.count("small begins anew: what another version") == 1
    assert not before.exists()
    assert commands.unfinished(Effort(4, 4, True), {}).parent.is_dir()
    assert len(list((tmp_path / "cache/figures").iterdir())) == 1
    assert records.store is stored


@pytest.mark.slow
def test_another_study_in_a_store_is_one_line(small, tmp_path, monkeypatch, capsys):
    versions = request.versions()
    ask = ["run", "small", "--quick", "--seeds", "3", "--out", "made", "--store", "kept"]
    assert main(ask) == 0
    capsys.readouterr()
    monkeypatch.setattr(request, "versions", lambda: versions | {"jax": "99.0"})
    assert main(ask) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "holds another study: jax:" in err


def greeted(name):
    print(f"{name} in {os.getpid()}")


def refused(name):
    raise UsageError(f"no {name}")


def killed(name):
    os._exit(1)


@pytest.mark.slow
def test_figures_are_computed_side_by_side(capsys):
    figures = [REGISTRY[name] for name in ("gauthier-5.3", "gauthier-6.3")]
    commands._side_by_side(greeted, figures, 2)
    lines = dict(line.split(" in ") for line in capsys.readouterr().out.splitlines())
    assert lines.keys() == {"gauthier-5.3", "gauthier-6.3"}
    assert len({*lines.values(), str(os.getpid())}) == 3  # processes
    with pytest.raises(UsageError, match="no gauthier"):
        commands._side_by_side(refused, figures, 2)
    with pytest.raises(UsageError, match="--jobs 1"):
        commands._side_by_side(killed, figures, 2)


@pytest.mark.long
@pytest.mark.slow
def test_side_by_side_figures_are_the_same(tmp_path):
    figures = ["jung-connectivity", "jung-explain"]
    for jobs in ("1", "2"):
        ask = ["--quick", "--seeds", "2", "--out", str(tmp_path / jobs), "--jobs", jobs]
        assert main(["run", *figures, *ask]) == 0
    for name in figures:
        figure = REGISTRY[name]
        alone, parallel = (records.read_studies(figure, tmp_path / jobs) for jobs in ("1", "2"))
        assert alone.keys() == parallel.keys()
        for study in alone:
            xr.testing.assert_equal(alone[study], parallel[study])


@pytest.mark.slow
def test_the_budget_spent_is_the_budget_asked_for(quick):
    record = records.read_record(REGISTRY[NAME], quick)
    for row in record["privacy"]["b"]:
        if row["algorithm"] in (ch3.OURS, ch3.GRADIENT, ch3.VANISHING):
            assert row["epsilon_corollary"] == pytest.approx(row["budget"], rel=1e-4)
            assert row["epsilon_tight"] < row["epsilon_corollary"]
        if row["algorithm"] in (ch3.UNIFORM, ch3.DYNAMIC):
            assert row["epsilon_composed"] == pytest.approx(row["budget"], rel=1e-4)
        assert not row["bound_held"]  # nominal, and said to be


@pytest.mark.slow
def test_check_confirms_what_was_stored(quick, capsys):
    assert main(["check", NAME, "--out", str(quick)]) == 0
    assert "all stored verdicts confirmed" in capsys.readouterr().out


@pytest.mark.slow
def test_check_misses_figures_that_were_not_run(quick, capsys):
    assert main(["check", "--out", str(quick)]) == 1
    assert "python -m experiments run gauthier-3.2 makes them" in capsys.readouterr().out


@pytest.mark.slow
def test_check_finds_a_tampered_verdict(copy, capsys):
    edit(copy, lambda r: r["claims"][0].update(holds=not r["claims"][0]["holds"]))
    assert main(["check", NAME, "--out", str(copy)]) == 1
    assert "DISAGREES: beats-subgradient: stored verdict" in capsys.readouterr().out


@pytest.mark.slow
def test_check_finds_a_tampered_number_and_a_dropped_claim(copy, capsys):
    def change(record):
        next(iter(record["claims"][0]["cases"].values()))["value"] += 0.01
        del record["claims"][1]

    edit(copy, change)
    assert main(["check", NAME, "--out", str(copy)]) == 1
    out = capsys.readouterr().out
    assert "beats-subgradient: stored numbers differ" in out
    assert "beats-approximate-dp: not in the stored record" in out


@pytest.mark.slow
def test_check_finds_truncated_results(copy, capsys):
    path = copy / f"{NAME}.zip"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert main(["check", NAME, "--out", str(copy)]) == 1
    out = capsys.readouterr().out
    assert "BROKEN" in out
    assert "not a readable results file" in out


@pytest.mark.slow
@pytest.mark.parametrize("end", [".zip", ".png", ".json"])
def test_check_finds_missing_files(copy, capsys, end):
    (copy / f"{NAME}{end}").unlink()
    assert main(["check", NAME, "--out", str(copy)]) == 1
    assert f"{NAME}{end}" in capsys.readouterr().out


@pytest.mark.slow
def test_check_refuses_a_garbled_record(copy, capsys):
    (copy / f"{NAME}.json").write_text("{", encoding="utf-8")
    assert main(["check", NAME, "--out", str(copy)]) == 1
    assert "is no record of a figure (it is no JSON" in capsys.readouterr().out


@pytest.mark.slow
def test_check_finds_a_record_that_was_edited(copy, capsys):
    path = copy / f"{NAME}.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"seconds": ', '"seconds": 1'))
    assert main(["check", NAME, "--out", str(copy)]) == 1
    assert "it does not match its own digest" in capsys.readouterr().out


@pytest.mark.slow
def test_check_finds_a_cut_picture(copy, capsys):
    path = copy / f"{NAME}.png"
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["check", NAME, "--out", str(copy)]) == 1
    assert f"{NAME}.png was cut or altered" in capsys.readouterr().out


@pytest.mark.slow
def test_report_writes_the_gallery(copy):
    assert main(["report", "--out", str(copy)]) == 0
    index = (copy / "README.md").read_text(encoding="utf-8")
    assert f"[{NAME}]({NAME}.md)" in index
    assert (copy / "CHANGES.md").exists()
    text = (copy / f"{NAME}.md").read_text(encoding="utf-8")
    assert f"]({NAME}.png)" in text
    for claim in REGISTRY[NAME].claims:
        assert claim.text in text
    for setting in REGISTRY[NAME].settings:
        assert setting.why.replace("|", "\\|") in text
    assert "Nominal budgets" in text


#: What every option says of wrong values: by command, a call and a part of the answer.
WRONG = {
    "list": {"names": [("list gauthier-3.7", "figure 'gauthier-3.7'. Did you mean 'gauthier-3.")]},
    "run": {
        "names": [
            ("run", "name the figures to run, or all of them by --all"),
            ("run gauthier-3.9", "unknown figure 'gauthier-3.9'"),
            ("run all", "unknown figure 'all'"),
        ],
        "--all": [
            (f"run {NAME} --all", "name the figures to run, or all of them by --all alone"),
            ("run --all=yes", "ignored explicit argument 'yes'"),
        ],
        "--quick": [(f"run {NAME} --quick=yes", "ignored explicit argument 'yes'")],
        "--seeds": [
            (f"run {NAME} --seeds many", "--seeds: must be an integer from 1"),
            (f"run {NAME} --seeds 0", "--seeds: must be an integer from 1"),
            (f"run {NAME} --seeds -3", "--seeds: must be an integer from 1"),
            (f"run {NAME} --seeds 99999999999", "--seeds: must be an integer from 1"),
        ],
        "--out": [(f"run {NAME} --out file/folder", "cannot write to file/folder")],
        "--update": [
            (f"run {NAME} --update --out made", "--update writes to figures, and --out names a"),
            (f"run {NAME} --update --quick", "--update replaces full results, and --quick"),
        ],
        "--store": [(f"run {NAME} --store file", "cannot write to file")],
        "--jobs": [
            (f"run {NAME} --jobs 0", "--jobs: must be an integer from 1"),
            (f"run {NAME} --jobs two", "--jobs: must be an integer from 1"),
        ],
        "--executor": [
            (f"run {NAME} --executor desk", "unknown executor 'desk'; known: dask, mpi,"),
            (f"run {NAME} --set penalty=2 --executor dask", "leave --executor out"),
        ],
        "--set": [
            (f"run {NAME} --set penalty", "--set takes NAME=VALUE, such as penalty=2"),
            (f"run {NAME} --set penlty=2", "Did you mean 'penalty rho of zCDP-NFL'?"),
            (f"run {NAME} --set penalty=much", "is a finite number, such as 3, got 'much'"),
            (f"run {NAME} --set clusters=2", "unknown setting 'clusters'"),
            (f"run {NAME} --set penalty=2 --update", "--update is of published numbers in figures"),
            (f"run {NAME} --set penalty=2 --out figures", "figures has published numbers"),
            (f"run {NAME} gauthier-3.2 --set penalty=2", "--set replaces numbers of one figure"),
            ("run --all --set penalty=2", "--set replaces numbers of one figure"),
            ("run gauthier-3.9 --set penalty=2", "unknown figure 'gauthier-3.9'"),
        ],
    },
    "check": {
        "names": [("check gauthier-3.9", "unknown figure")],
        "--recompute": [
            ("check --recompute=yes", "ignored explicit argument 'yes'"),
            (f"check {NAME} --recompute --out .", "no results gauthier-3.1.json"),
        ],
        "--turn": [
            ("check --turn 2", "--turn is of --recompute; give both, or neither"),
            ("check --recompute --turn 0", "--turn: must be an integer from 1"),
            (f"check {NAME} --recompute --turn 1", "name the figures to compute, or one by --turn"),
        ],
        "--seeds": [
            ("check --seeds 2", "--seeds is of --recompute; give both, or neither"),
            ("check --recompute --seeds 0", "--seeds: must be an integer from 1"),
        ],
        "--out": [("check --out nowhere", "no folder nowhere"), ("check --out file", "no folder")],
    },
    "judge": {
        "names": [("judge gauthier-3.9", "unknown figure")],
        "--out": [
            ("judge --out nowhere", "no folder nowhere"),
            (f"judge {NAME} --out .", "no results gauthier-3.1.json"),
        ],
    },
    "draw": {
        "names": [("draw gauthier-3.9", "unknown figure")],
        "--out": [
            ("draw --out nowhere", "no folder nowhere"),
            (f"draw {NAME} --out .", "no results gauthier-3.1.json"),
        ],
        "--pdf": [(f"draw {NAME} --out . --pdf file", "cannot write to file")],
    },
    "report": {
        "--out": [
            ("report --out nowhere", "no folder nowhere"),
            ("report --out file", "no folder"),
            (
                "report --out .",
                "no results in .; python -m experiments run NAME --out . makes them",
            ),
        ]
    },
}


def parsers():
    (result,) = (action for action in parser()._actions if action.dest == "command")
    return result.choices


@pytest.mark.parametrize("command", WRONG)
def test_requests_that_cannot_be_served_take_one_line(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for cases in WRONG[command].values():
        for arguments, message in cases:
            assert message in complaint(capsys, *arguments.split())


def test_every_option_has_its_wrong_values_and_its_help(capsys):
    assert "required: command" in complaint(capsys)
    assert parsers().keys() == WRONG.keys()
    for command, described in parsers().items():
        named = {(a.option_strings or [a.dest])[-1]: a.help for a in described._actions[1:]}
        assert named.keys() == WRONG[command].keys() - {""}, command
        for name, help_text in named.items():
            assert "required" in help_text or "default" in help_text, name
            assert name in described.epilog or not name.startswith("-"), f"no example with {name}"
        for line in described.epilog.splitlines()[1:]:
            described.parse_args(line.split()[4:])  # examples are right
    help_text = " ".join(parsers()["run"].format_help().split())
    assert f"as the figures are published, with --quick {QUICK.seeds}" in help_text


def judged(name, kind="source", holds=True, decided=True, **more):
    """A claim of a record."""
    empty = dict.fromkeys(("condition", "construction", "convention", "note", "changed"), "")
    statement = {"name": name, "text": f"{name} is so", "source": "line 1", "accepted": "> 0"}
    case = {"value": 1.0, "low": 0.5, "high": 1.5, "unit": "dB", "holds": holds}
    result = {"kind": kind, "holds": holds, "decided": decided, "cases": {"x": case}}
    return empty | statement | result | more


def recorded(name, seconds, *claims):
    """A record of a figure with nothing but claims."""
    texts = {"name": name, "title": f"Figure {name}", "source": "a thesis", "caption": "Said."}
    empty = {"settings": [], "tuning": [], "table": [], "privacy": {}, "diverged": {}, "files": []}
    effort = {"seeds": 9, "tuning_seeds": 3, "quick": False}
    more = {
        "effort": effort,
        "seeds": [3],
        "seconds": seconds,
        "provenance": {},
        "claims": [*claims],
    }
    return texts | empty | more


def test_the_readme_counts_the_claims_of_the_stored_figures():
    if not STORED.is_dir():
        pytest.skip("the stored figures are not in this copy")
    readme = (STORED.parent / "README.md").read_text(encoding="utf-8")
    result = [records.read_record(REGISTRY[name], STORED) for name in NAMES]
    table = re.search(r"<!-- claims -->\n(.+?)\n<!-- end claims -->", readme, re.S)
    assert table
    assert table[1].splitlines() == report.summary(result)


@pytest.mark.slow
def test_stored_figures_are_checked_without_any_data_set(monkeypatch, tmp_path, capsys):
    """Results can be judged again from the repository alone, notes included."""
    if not STORED.is_dir():
        pytest.skip("the stored figures are not in this copy")
    monkeypatch.delenv("FLJAX_DATA", raising=False)
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path))
    assert main(["check", "--out", str(STORED)]) == 0, capsys.readouterr().out


KINDS = [
    judged("plain"),
    judged("lost", holds=False),
    judged("open", holds=False, decided=False),
    judged("under", "conditional", condition="so many"),
    judged("mine", "ours"),
    judged("built", "by construction", construction="it cannot fail"),
]


def test_four_kinds_of_claims_are_counted_separately():
    assert report.tally(KINDS, "source") == "1 of 3, 1 undecided"
    assert report.tally(KINDS, "conditional") == "1 of 1"
    assert report.tally(KINDS, "ours") == "1 of 1"
    assert report.tally(KINDS, "by construction") == "1 of 1"
    assert report.tally(KINDS[:3], "conditional") == ""
    kinds = [
        Claim("c", "", "", dict, (0, 1), **options).kind
        for options in (
            {},
            {"condition": "c"},
            {"condition": "c", "ours": True},
            {"condition": "c", "ours": True, "construction": "b"},
        )
    ]
    assert kinds == [*report.KINDS]


def test_the_gallery_counts_and_adds_up():
    figures = [recorded("x-1", 90, *KINDS), recorded("audit", 30, *KINDS[:1])]
    lines = report.index(figures).splitlines()
    for line in (
        "| [x-1](x-1.md) | Figure x-1 | 1 of 3, 1 undecided | 1 of 1 | 1 of 1 | 1 of 1 | 2 min |",
        "| [audit](audit.md) | Figure audit | 1 of 1 |  |  |  | 30 s |",
        *(line for line in report.conventions() if "significantly" in line),
        "| **the literature** |  | 1 of 3, 1 undecided | 1 of 1 | 1 of 1 | 1 of 1 | 2 min |",
        "| **all** |  | 2 of 4, 1 undecided | 1 of 1 | 1 of 1 | 1 of 1 | 2 min |",
    ):
        assert line in lines
    text = report.page(figures[0])
    assert "under is so *(under: so many)*" in text
    assert "mine is so *(our own)*" in text
    assert "*(by construction: it cannot fail)*" in text
    assert "draw x-1 --pdf FOLDER" in text


def test_the_gallery_states_changes_and_reasons():
    claims = [*KINDS, judged("said", changed="Put otherwise."), judged("new", changed="New.")]
    before = {"plain": "holds", "lost": "holds", "open": "undecided", "under": "does not hold"}
    before |= {"mine": "holds", "built": "holds", "said": "holds"}
    text = report.changes([recorded("x-1", 9, *claims)], {"x-1": before})
    table = text[text.index("| figure | claim | kind | then | now |") :].split("\n\n")[0]
    new_draws = "the same measure on new draws"
    assert table.splitlines()[2:] == [
        f"| x-1 | lost is so | source | holds | does not hold | {new_draws} |",
        f"| x-1 | under is so | conditional | does not hold | holds | {new_draws} |",
        "| x-1 | said is so | source | holds | holds | Put otherwise. |",
        "| x-1 | new is so | source | not judged | holds | New. |",
    ]
    same = {c["name"]: report.short_verdict(c) for c in KINDS}
    assert "is so" not in report.changes([recorded("x-1", 9, *KINDS)], {"x-1": same})


def test_no_claim_of_the_first_edition_was_deleted():
    for name, claims in records.first_edition().items():
        assert claims.keys() <= {claim.name for claim in REGISTRY[name].claims}, name
        assert {*claims.values()} <= {"holds", "does not hold", "undecided"}


def test_texts_of_a_claim_are_in_their_fields():
    """Words are words: a note that came a place too early made a claim one by construction."""
    for figure in REGISTRY.values():
        for claim in figure.claims:
            for word in ("text", "source", "convention", "condition", "construction", "changed"):
                assert isinstance(getattr(claim, word), str), f"{figure.name}, {claim.name}: {word}"
            assert callable(claim.note) or isinstance(claim.note, str)


@pytest.mark.slow
def test_check_goes_on_past_a_claim_that_breaks(small, tmp_path, capsys):
    """An error of a note or a measure is reported, and the next figure is judged."""
    assert main(["run", "small", "--quick", "--seeds", "3", "--out", "made"]) == 0

    def broken(studies):
        raise FileNotFoundError("no data set")

    claims = [dataclasses.replace(c, measure=broken) for c in REGISTRY["small"].claims]
    dataclasses.replace(REGISTRY["small"], name="smallest", claims=claims)
    try:
        for path in list((tmp_path / "made").iterdir()):
            text = path.read_bytes()
            if path.suffix == ".json":
                record = unsealed(text.decode()) | {"name": "smallest"}
                digests = record["digests"].items()
                record["digests"] = {
                    n.replace("small", "smallest"): digest for n, digest in digests
                }
                text = sealed(record).encode()
            path.with_name(path.name.replace("small", "smallest")).write_bytes(text)
        assert main(["check", "smallest", "small", "--out", "made"]) == 1
    finally:
        del REGISTRY["smallest"]
    printed = capsys.readouterr().out
    assert "BROKEN: FileNotFoundError: no data set" in printed
    assert printed.index("no data set") < printed.rindex("small\n  [")


#: A quoted word of a claim's convention, and its stated meaning.
QUOTED = re.compile(r"“([^”]+)”")


def test_a_word_means_the_same_in_all_figures():
    table = {word.words[0]: {m.convention: m.accept for m in word[1:]} for word in WORDS}
    adverbs = re.compile(r"significantly|notably|drastically|slightly|not much|hardly changes")
    first = {name: word.words[0] for word in WORDS for name in word.words}
    conventions: dict[str, set[str]] = {}
    for figure in REGISTRY.values():
        for claim in figure.claims:
            where = f"{figure.name}, {claim.name}"
            convention = claim.convention.split(";")[0]
            quoted = QUOTED.findall(convention)
            for word in quoted:
                assert first.get(word, word) == word, f"{where}: {word} is {first[word]}"
                if word in table:
                    assert table[word].get(convention) == claim.accept, f"{where}: {convention}"
                elif word != "about":
                    conventions.setdefault(word, set()).add(convention)
            for word in adverbs.findall(claim.text):
                assert first[word] in quoted, f"{where}: what “{word}” means"
    for word, meanings in conventions.items():
        assert len(meanings) == 1, f"“{word}” means {meanings}"


def test_words_mean_as_much_on_every_axis():
    for word in WORDS:
        for decibel, factor in zip(word.db.accept, word.factor.accept, strict=True):
            assert factor == (
                decibel if math.isinf(decibel) else pytest.approx(10 ** (decibel / 10))
            )
    assert conventions.SIGNIFICANTLY.factor.accept == pytest.approx((2, math.inf), rel=0.01)
    assert conventions.about(5).accept == (3.75, 6.25)
    assert conventions.about(-4).accept == (-5, -3)
    assert conventions.order(-1).accept == (-1.2, -0.8)
    accept, convention = conventions.CLOSE.db.when("at the end")
    assert accept == (-1, 1)
    assert convention.endswith("-1 to 1 dB; at the end")


def test_a_note_explains_a_verdict_against_a_claim_from_the_results():
    def measure(studies):
        return {"x": Estimate.exact(studies["x"])}

    claim = Claim("c", "", "", measure, (0.0, 5.0), note=lambda studies: f"x is {studies['x']}")
    assert claim.judge({"x": 7}).note == "x is 7"
    assert claim.judge({"x": 1}).note == ""


def test_a_folder_without_results_has_no_gallery(capsys, tmp_path):
    main(["report", "--out", str(tmp_path)])
    assert "no results in" in capsys.readouterr().err


def swapped(studies, first, second):
    """The studies with two algorithms' labels exchanged."""
    names = {first: second, second: first}
    return {
        key: study.assign_coords(
            algorithm=[names.get(a, a) for a in study["algorithm"].values.tolist()]
        )
        if "algorithm" in study.dims
        else study
        for key, study in studies.items()
    }


@pytest.mark.slow
def test_claims_fail_when_the_algorithms_are_swapped(quick):
    figure = REGISTRY[NAME]
    studies = records.read_studies(figure, quick)
    claims = {c.name: c for c in figure.claims}
    for name, other in (
        ("beats-subgradient", ch3.GRADIENT),
        ("beats-approximate-dp", ch3.UNIFORM),
        ("beats-approximate-dp-everywhere", ch3.UNIFORM),
        ("step-limits-subgradient", ch3.NOISELESS),
    ):
        assert claims[name].judge(studies).holds
        verdict = claims[name].judge(swapped(studies, ch3.OURS, other))
        assert not verdict.holds
        assert verdict.decided
    budgets = studies["b"]["budget"].values[::-1]
    backwards = studies["b"].assign_coords(budget=budgets)
    assert not claims["falls-with-budget"].judge(dict(studies, b=backwards)).holds
    later = studies["a"].copy(deep=True)
    later["normalized_error"].loc[{"algorithm": ch3.GRADIENT}] *= 4
    assert not claims["same-start"].judge(dict(studies, a=later)).holds


@pytest.mark.parametrize(
    ("low", "high", "holds", "decided"),
    [(1, 3, True, True), (-1, 1, False, False), (-3, -1, False, True), (4, 6, False, False)],
)
def test_a_claim_holds_only_with_its_whole_interval(low, high, holds, decided):
    claim = Claim("c", "", "", lambda _: {"x": Estimate((low + high) / 2, low, high)}, (0.0, 5.0))
    verdict = claim.judge({})
    assert (verdict.holds, verdict.decided) == (holds, decided)


@pytest.mark.parametrize(
    ("cases", "seeds"),
    [
        ({"x": Estimate(1, -1, 3)}, 40),  # 4 times as many: the interval then ends at 0
        ({"x": Estimate(1, -1, 3), "y": Estimate(2, -1, 5)}, 40),  # all must be inside
        ({"x": Estimate(-1, -3, 1), "y": Estimate(1, -1, 3)}, 40),  # one outside is enough
        ({"x": Estimate(-1, -4, 2), "y": Estimate(-2, -5, 1)}, 23),
        ({"x": Estimate(4, 1, 7)}, 90),  # of the upper border, 5
        ({"x": Estimate(6, 3, 9)}, 90),
        ({"x": Estimate(0, -1, 1)}, None),
        ({"x": Estimate(1, math.nan, math.nan)}, None),
        ({"x": Estimate(2, 1, 3)}, None),  # decided
        ({"x": Estimate(-2, -3, -1), "y": Estimate(1, -1, 3)}, None),
        ({}, None),
    ],
)
def test_an_undecided_claim_says_how_many_seeds_would_decide_it(cases, seeds):
    claim = Claim("c", "", "", lambda _: cases, (0.0, 5.0))
    studies = {"a": xr.Dataset(coords={"seed": range(10)})}
    assert claim.judge(studies).deciding_seeds == seeds
    assert claim.judge({}).deciding_seeds is None
    named = dataclasses.replace(claim, judged="a")
    more = studies | {"b": xr.Dataset(coords={"seed": range(30)})}
    assert named.judge(more).deciding_seeds == seeds


def test_intervals_of_as_many_seeds_decide():
    """Against new draws, of which the interval is computed as claims do."""
    draws = np.random.default_rng(1).normal(0.5, 1, size=4000)

    def measure(studies):
        values = draws[: studies["a"].sizes["seed"]]
        return {"x": measures.of_few(lambda mean: mean, values, unit="")}

    claim = Claim("c", "", "", measure, (0.0, math.inf))
    few = claim.judge({"a": xr.Dataset(coords={"seed": range(6)})})
    assert str(few) == "undecided"
    assert 6 < few.deciding_seeds < 500
    more = {"a": xr.Dataset(coords={"seed": range(3 * few.deciding_seeds)})}
    assert str(claim.judge(more)) == "holds"


def test_verdicts_are_three_words_with_a_color_each():
    many = [
        judged("open", holds=False, decided=False, deciding_seeds=n) for n in (7, 123, 5501, 10**8)
    ]
    texts = [report.verdict(claim) for claim in (*KINDS[:3], *many)]
    assert texts == [
        "holds",
        "does not hold",
        "undecided (more seeds of this size would not decide it)",
        "undecided (about 7 seeds would decide it)",
        "undecided (about 130 seeds would decide it)",
        "undecided (about 5,600 seeds would decide it)",
        "undecided (no affordable number of seeds would decide it)",
    ]
    assert report.in_color(KINDS[0]) == "🟢 **holds**"
    assert report.in_color(KINDS[1]) == "🔴 **does not hold**"
    assert report.in_color(many[0]) == "🟡 **undecided** (about 7 seeds would decide it)"


@pytest.mark.parametrize(
    ("seeds", "heading"),
    [
        ({"a": [0, 1]}, "## Tuning\n"),
        ({"a": [0, 1], "tuning": [2, 3]}, "## Tuning, on other seeds than those that are judged"),
        ({"a": [0, 1], "tuning": [1, 2]}, "## Tuning, on some of those that are judged"),
    ],
)
def test_the_page_says_on_which_seeds_parameters_were_chosen(seeds, heading):
    studies = {name: xr.Dataset(coords={"seed": values}) for name, values in seeds.items()}
    figure = recorded("x-1", 90, *KINDS)
    figure["tuning"] = [{"method": "FedAvg", "numbers": "step size 1", "chosen": True}]
    figure["tuning_is_separate"] = records.tuning_is_separate(studies)
    assert heading in report.page(figure)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(1.0, 0.5, 1.5, "times"), "1.00 times [0.50, 1.50]"),
        (Estimate(1.0, -math.inf, 1.5, "times"), "1.00 times, at most 1.50"),
        (Estimate(1.0, 0.5, math.inf, "times"), "1.00 times, at least 0.50"),
        (Estimate(math.inf, 0.5, math.inf, "times"), "not reached, at least 0.50"),
        (Estimate(1.0, -math.inf, math.inf, "times"), "1.00 times (no interval)"),
        (Estimate(math.inf, -math.inf, math.inf, "times"), "unknown (no interval)"),
        (Estimate(1.0, math.nan, math.nan, "times"), "1.00 times (no interval)"),
    ],
)
def test_open_intervals_are_bounds_in_print_and_on_the_page(estimate, text):
    assert str(estimate) == text
    case = records.plain(dataclasses.asdict(estimate) | {"holds": False})
    json.dumps(case, allow_nan=False)
    page = report.page(recorded("x-1", 90, judged("open", cases={"x": case})))
    assert f"x: {text} ✗" in page


def test_open_intervals_decide_on_their_closed_side_alone():
    verdicts = [
        str(Claim("c", "", "", lambda _, e=e: {"x": e}, (1.0, 2.0)).judge({}))
        for e in (
            Estimate(0.5, -math.inf, 0.9),
            Estimate(1.5, -math.inf, 1.9),
            Estimate(3.0, 2.5, math.inf),
            Estimate(math.inf, 1.5, math.inf),
        )
    ]
    assert verdicts == ["does not hold", "undecided", "does not hold", "undecided"]


@pytest.mark.parametrize("treatment", [None, "counted as not at the target"])
def test_the_page_says_how_diverged_runs_are_treated(treatment):
    figure = recorded("x-1", 90, *KINDS) | {"diverged": {"a": [1, 9], "b": [0, 9]}}
    figure |= {"diverged_runs": treatment} if treatment else {}
    said = treatment or "left out of all means"
    assert f"Diverged runs, {said}: 1 of 9 in (a)." in report.page(figure)


def test_provenance_names_the_commit_and_the_version(monkeypatch, tmp_path):
    if not (STORED.parent / ".git").exists():
        pytest.skip("this copy is in no repository")
    assert re.fullmatch("[0-9a-f]{12}( and changes)?", records.commit())
    (tmp_path / "experiments").mkdir()
    monkeypatch.setattr(records, "__file__", str(tmp_path / "experiments/records.py"))
    assert records.commit() == ""
    assert version._of_source() == fl.__version__
    monkeypatch.setattr(version, "PACKAGE", tmp_path / "fljax")
    assert version._of_source() == "0"


def test_figures_that_are_soon_computed_take_turns():
    if not STORED.is_dir():
        pytest.skip("the stored figures are not in this copy")
    in_turn = [commands.in_turn(number, 3, STORED).name for number in range(1, 80)]
    assert "gauthier-3.1" in in_turn
    assert not {"field-fedavg", "headline-personal"} & {*in_turn}
    assert in_turn[0] == in_turn[len({*in_turn})]


def test_one_seed_is_undecided():
    claim = Claim("c", "", "", lambda _: {"x": Estimate(9.0, math.nan, math.nan)}, (0.0, math.inf))
    verdict = claim.judge({})
    assert (verdict.holds, verdict.decided) == (False, False)


def test_quick_keeps_the_ends():
    assert Effort(quick=True).thin(range(9)) == [0, 4, 8]
    assert Effort().thin([1, 2, 3, 4]) == [1, 2, 3, 4]


def test_every_module_declares_a_figure_with_reasons():
    assert len(MODULES) == len(REGISTRY) == len(NAMES)
    for figure in REGISTRY.values():
        assert all(claim.text and claim.source for claim in figure.claims)
        assert all(len(setting.why) > 5 for setting in figure.settings)


def test_shared_modules_import_no_document():
    for path in Path(experiments.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [name for name in MODULES if name.rsplit(".", 1)[0] in text], path.name
