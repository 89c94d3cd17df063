"""The command line end to end on one quick run, and claims that notice broken data."""

import json
import math
import shutil
from pathlib import Path

import pytest
import xarray as xr

import experiments
import fljax as fl
from experiments import records
from experiments.__main__ import main, parser
from experiments.commands import FULL, MODULES, QUICK
from experiments.figure import REGISTRY, Claim, Effort, Estimate
from experiments.gauthier import chapter3 as ch3
from fljax.study import running

NAME = "gauthier-3.1"
STORED = Path(__file__).parents[2] / "figures"
NAMES = [
    "audit",
    *("gauthier-3.1", "gauthier-3.2", "gauthier-3.3", "gauthier-3.stress"),
    *("gauthier-4.2", "gauthier-4.3", "gauthier-4.4", "gauthier-4.5", "gauthier-4.6"),
    *("gauthier-5.1", "gauthier-5.2", "gauthier-5.3", "gauthier-5.4"),
    *("gauthier-5.5", "gauthier-5.6", "gauthier-5.theory"),
    *("gauthier-6.1", "gauthier-6.2", "gauthier-6.3"),
    "robustness",
]


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
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")


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
        *(f"{NAME}{end}" for end in ("-a.nc", "-b.nc", "-tuning.nc", ".json", ".png"))
    ]
    assert all(0 < p.stat().st_size < 1e6 for p in quick.iterdir())
    record = records.read_record(REGISTRY[NAME], quick)
    assert record["effort"] == {"seeds": 3, "tuning_seeds": 3, "quick": True}
    assert {c["name"] for c in record["claims"]} == {c.name for c in REGISTRY[NAME].claims}
    assert sum(row["chosen"] for row in record["tuning"]) == 2
    assert str(quick) not in json.dumps(record)


@pytest.mark.slow
def test_a_figure_goes_on_where_its_store_is(quick, tmp_path, monkeypatch):
    def computed(*_):
        raise AssertionError("a stored run is computed again")

    monkeypatch.setattr(running._Run, "_stretches", computed)
    store, again = quick.with_name("store"), tmp_path / "again"
    ask = ["run", NAME, "--quick", "--seeds", "3", "--store", str(store), "--out"]
    assert main([*ask, str(again)]) == 0
    for path in quick.glob("*.nc"):
        xr.testing.assert_equal(fl.load(path), fl.load(again / path.name))
    with pytest.raises(AssertionError, match="computed again"):
        main([*ask, str(again), "--seeds", "4"])


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
    path = copy / f"{NAME}-a.nc"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert main(["check", NAME, "--out", str(copy)]) == 1
    out = capsys.readouterr().out
    assert "BROKEN" in out
    assert "not a readable results file" in out


@pytest.mark.slow
@pytest.mark.parametrize("end", ["-b.nc", ".png", ".json"])
def test_check_finds_missing_files(copy, capsys, end):
    (copy / f"{NAME}{end}").unlink()
    assert main(["check", NAME, "--out", str(copy)]) == 1
    assert f"{NAME}{end}" in capsys.readouterr().out


@pytest.mark.slow
def test_check_refuses_a_garbled_record(copy, capsys):
    (copy / f"{NAME}.json").write_text("{", encoding="utf-8")
    assert main(["check", NAME, "--out", str(copy)]) == 1
    assert "not valid JSON" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not STORED.is_dir(), reason="the stored figures are not in this copy")
def test_the_figures_of_the_repository_are_confirmed(capsys):
    assert main(["check", "--out", str(STORED)]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_report_writes_the_gallery(copy):
    assert main(["report", "--out", str(copy)]) == 0
    text = (copy / "README.md").read_text(encoding="utf-8")
    assert f"]({NAME}.png)" in text
    for claim in REGISTRY[NAME].claims:
        assert claim.text in text
    for setting in REGISTRY[NAME].settings:
        assert setting.why.replace("|", "\\|") in text
    assert "Nominal budgets" in text


#: What every option says of wrong values: by command, a call and a part of the answer.
WRONG = {
    "list": {"": [("list gauthier-3.1", "unrecognized arguments: gauthier-3.1")]},
    "run": {
        "names": [
            ("run", "required: NAME"),
            ("run gauthier-3.9", "unknown figure 'gauthier-3.9'"),
            (f"run all {NAME}", "unknown figure 'all'"),
        ],
        "--quick": [(f"run {NAME} --quick=yes", "ignored explicit argument 'yes'")],
        "--seeds": [
            (f"run {NAME} --seeds many", "--seeds: must be an integer from 1"),
            (f"run {NAME} --seeds 0", "--seeds: must be an integer from 1"),
            (f"run {NAME} --seeds -3", "--seeds: must be an integer from 1"),
            (f"run {NAME} --seeds 99999999999", "--seeds: must be an integer from 1"),
        ],
        "--out": [(f"run {NAME} --out file/folder", "cannot write to file/folder")],
        "--store": [(f"run {NAME} --store file", "cannot write to file")],
    },
    "check": {
        "names": [("check gauthier-3.9", "unknown figure")],
        "--out": [("check --out nowhere", "no folder nowhere"), ("check --out file", "no folder")],
    },
    "report": {
        "--out": [("report --out nowhere", "no folder nowhere"), ("report --out file", "no folder")]
    },
}


def commands():
    (found,) = (action for action in parser()._actions if action.dest == "command")
    return found.choices


@pytest.mark.parametrize("command", WRONG)
def test_requests_that_cannot_be_served_take_one_line(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for cases in WRONG[command].values():
        for words, message in cases:
            assert message in complaint(capsys, *words.split())


def test_every_option_has_its_wrong_values_and_its_help(capsys):
    assert "required: command" in complaint(capsys)
    assert commands().keys() == WRONG.keys()
    for command, described in commands().items():
        named = {(a.option_strings or [a.dest])[-1]: a.help for a in described._actions[1:]}
        assert named.keys() == WRONG[command].keys() - {""}, command
        for name, told in named.items():
            assert "required" in told or "default" in told, name
            assert name in described.epilog or not name.startswith("-"), f"no example with {name}"
        for line in described.epilog.splitlines()[1:]:
            described.parse_args(line.split()[4:])  # examples are right
    assert f"default {FULL.seeds}, with --quick {QUICK.seeds}" in commands()["run"].format_help()


def test_a_folder_without_results_has_no_gallery(capsys, tmp_path):
    main(["report", "--out", str(tmp_path)])
    assert "no results in" in capsys.readouterr().err


def swapped(studies, one, other):
    """The studies with two algorithms' labels exchanged."""
    names = {one: other, other: one}
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
    record = records.read_record(figure, quick)
    studies = records.read_studies(figure, quick, record["files"])
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


def test_one_seed_decides_nothing():
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
        assert all(claim.note or not claim.condition for claim in figure.claims)


def test_what_documents_share_knows_none_of_them():
    for path in Path(experiments.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [name for name in MODULES if name.rsplit(".", 1)[0] in text], path.name
