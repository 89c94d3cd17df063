"""Figures with other numbers than the published ones: ``run NAME --set NUMBER=VALUE``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import commands, replacing
from experiments.__main__ import main
from experiments.errors import UsageError
from experiments.figure import REGISTRY, Replaced, Setting
from experiments.gauthier import chapter3 as ch3
from fljax._core.storage import unsealed

NAME = "gauthier-3.1"
FIGURE = REGISTRY[NAME]
#: The published results.
STORED = Path(__file__).parents[2] / "figures"
#: Computed in seconds.
CHEAP = "gauthier-5.3"

#: Requests that cannot be met, and a part of the answer.
REFUSED = {
    "penlty=2": "Did you mean 'penalty rho of zCDP-NFL'?",
    "penaltyrho of zcdp-nf=2": "Did you mean 'penalty rho of zCDP-NFL'?",
    "nothing=2": f"python -m experiments list {NAME} shows all",
    "clusters Q=4": f"'clusters Q' is no setting of {NAME}, but of gauthier-5.1, ",
    "epsilons=1": "takes 5 numbers, such as 10,20,30,50,100, got '1'",
    "penalty=much": "'penalty rho of zCDP-NFL' is a finite number, such as 3, got 'much'",
    "penalty=nan": "is a finite number, such as 3, got 'nan'",
    "clients=5.5": "'clients K' is an integer, such as 50, got '5.5'",
    "weights=2": "'weights of zCDP-grad-NFL' is 'metropolis': only numbers can be replaced",
    "penalty=3": f"'penalty rho of zCDP-NFL' of {NAME} is 3 as published",
    "penalty": "--set takes NAME=VALUE, such as penalty=2, got 'penalty'",
    "=2": "--set takes NAME=VALUE, such as penalty=2, got '=2'",
    "penalty=": "--set takes NAME=VALUE, such as penalty=2, got 'penalty='",
    "of=2": f"'of' names several settings of {NAME}: ",
}


@pytest.mark.parametrize("request_text", REFUSED)
def test_a_number_that_cannot_be_replaced_is_refused_in_words(request_text):
    with pytest.raises(UsageError) as error:
        replacing.replacements(FIGURE, [request_text])
    assert REFUSED[request_text] in str(error.value)


def test_a_number_is_replaced_once():
    with pytest.raises(UsageError, match="--set replaces 'penalty rho of zCDP-NFL' twice"):
        replacing.replacements(FIGURE, ["penalty=2", "penalty rho=4"])


def test_names_that_a_figure_has_twice_are_refused():
    with pytest.raises(UsageError, match="which cannot be told apart"):
        replacing.replacements(REGISTRY["gauthier-7.poisoning"], ["iterations=5"])


def test_numbers_are_of_the_kind_of_the_published_ones():
    requests = ["penalty=2", "clients K=30", "epsilons of the trade-off=1, 2, 3,4,30"]
    values = {r.name: r.value for r in replacing.replacements(FIGURE, requests).values()}
    assert values == {
        "penalty rho of zCDP-NFL": 2.0,
        "clients K": 30,
        "epsilons of the trade-off": (1.0, 2.0, 3.0, 4.0, 30.0),
    }
    assert isinstance(values["clients K"], int)
    assert isinstance(values["penalty rho of zCDP-NFL"], float)


def test_every_number_of_every_figure_can_be_replaced():
    """By its full name, unless the figure has the name twice."""
    count = 0
    for figure in REGISTRY.values():
        names = [setting.name for setting in figure.settings]
        for setting in figure.settings:
            values = setting.value if isinstance(setting.value, tuple) else (setting.value,)
            numeric = all(type(value) in (int, float) for value in values)
            if not numeric or not values or names.count(setting.name) > 1 or "=" in setting.name:
                continue
            text = ",".join(repr(value + 1) for value in values)
            (replaced,) = replacing.replacements(figure, [f"{setting.name}={text}"]).values()
            assert replaced.published == setting.value
            count += 1
    assert count > 900


@pytest.mark.parametrize("figure", [FIGURE.name, "gauthier-7.clusters"])
def test_settings_are_found_again_when_figures_are_imported_with_other_numbers(figure):
    """Settings that a figure shows under another name, and numbers computed from them."""
    requests = {FIGURE.name: "penalty=2", "gauthier-7.clusters": "NPFL: clients K=24"}
    numbers = replacing.replacements(REGISTRY[figure], [requests[figure]])
    program = (
        "from experiments.figure import REGISTRY, Replaced, replace_numbers\n"
        f"replace_numbers({numbers!r})\n"
        "from experiments import commands, replacing\n"
        "from experiments.gauthier import chapter3, chapter6\n"
        f"print(replacing.described(replacing.applied(REGISTRY[{figure!r}])))\n"
        "print(chapter3.proposed().penalty, chapter6.CLIENTS.value)\n"
    )
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    expected = {
        FIGURE.name: "penalty rho of zCDP-NFL is 2 (published: 3)\n2.0 30\n",
        "gauthier-7.clusters": "NPFL: clients K is 24 (published: 30)\n3.0 24\n",
    }
    assert done.stdout == expected[figure]


def test_numbers_are_replaced_before_figures_are_imported():
    with pytest.raises(RuntimeError, match="was imported before the numbers were replaced"):
        commands.replace_numbers({})


@pytest.fixture
def replaced(monkeypatch):
    """The setting of the penalty is that of zCDP-NFL."""
    numbers = replacing.replacements(FIGURE, ["penalty=2"])
    for declaration, number in numbers.items():
        monkeypatch.setitem(replacing.REPLACED, declaration, number)


@pytest.mark.usefixtures("replaced")
def test_a_setting_that_is_declared_again_has_the_other_number():
    before = ch3.PENALTY
    again = Setting(before.name, 3.0, before.why, before.given)
    assert (again.value, again.given) == (2.0, False)
    assert again.replaced == Replaced(before.name, 3.0, 2.0)
    assert Setting(before.name, 3.0, "another reason").value == 3.0


@pytest.mark.usefixtures("replaced")
def test_a_number_that_follows_from_another_one_is_refused():
    with pytest.raises(UsageError, match="follows from another number; replace one of them"):
        replacing.applied(REGISTRY["gauthier-5.3"])


@pytest.mark.usefixtures("replaced")
def test_a_figure_that_fails_with_other_numbers_says_with_which():
    message = "gauthier-3.1 cannot be computed where penalty rho of zCDP-NFL is 2 .published: 3."
    with pytest.raises(UsageError, match=message), commands.explain_replaced(FIGURE):
        raise KeyError("no such budget")


@pytest.mark.usefixtures("replaced")
def test_a_figure_that_cannot_be_imported_says_with_which_numbers(monkeypatch, tmp_path):
    monkeypatch.delitem(REGISTRY, NAME)
    monkeypatch.setattr(commands, "IMPORT_ERRORS", [ValueError("penalty must be > 0")])
    message = "cannot be computed where penalty rho of zCDP-NFL is 2 .published: 3.: penalty must"
    with pytest.raises(UsageError, match=message):
        commands._run_one(NAME, commands.QUICK, tmp_path, tmp_path)


def test_folders_are_named_by_what_is_replaced():
    assert replacing.folder_name(NAME, ["penalty=2"]) == "gauthier-3.1-penalty=2"
    assert replacing.folder_name(NAME, ["a b/c=1,2"]) == "gauthier-3.1-a-b-c=1-2"
    longest = [replacing.folder_name(NAME, [f"{'x' * 200}={n}"]) for n in (1, 2)]
    assert len(set(longest)) == 2
    assert {len(name) for name in longest} == {replacing.MAX_NAME}


def test_list_shows_a_figures_settings(capsys):
    assert main(["list", NAME]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(FIGURE.settings)
    assert f"  {ch3.PENALTY.name} = 3: {ch3.PENALTY.why}" in lines


@pytest.mark.slow
def test_a_figure_with_another_number(tmp_path, monkeypatch, capfd):
    """Its results have another folder, name the replaced number, and replace no others."""
    monkeypatch.chdir(tmp_path)
    command = ["run", CHEAP, "--set", "penalty=2", "--quick", "--seeds", "2"]
    assert main(command) == 0
    output = capfd.readouterr().out
    assert "penalty rho is 2 (published: 3)" in output
    assert "claims\n" in output
    folder = tmp_path / "results" / "quick" / f"{CHEAP}-penalty=2"
    assert {path.parent for path in tmp_path.rglob("*.json")} == {folder}
    record = unsealed((folder / f"{CHEAP}.json").read_text(encoding="utf-8"))
    assert record["replaced"] == [{"name": "penalty rho", "published": 3.0, "value": 2.0}]
    values = {s["name"]: s["value"] for s in record["settings"]}
    assert values["penalty rho"] == 2.0
    assert len(record["claims"]) == len(REGISTRY[CHEAP].claims)

    assert main(["report", "--out", str(folder)]) == 0
    page = (folder / f"{CHEAP}.md").read_text(encoding="utf-8")
    assert "**Not as published:** penalty rho is 2 (published: 3)." in page
    assert f'python -m experiments run {CHEAP} --set "penalty rho=2"' in page
    capfd.readouterr()
    for judge in ("judge", "draw"):
        assert main([judge, CHEAP, "--out", str(folder)]) == 2
        assert "is of replaced numbers (penalty rho is 2" in capfd.readouterr().err
    published = ["run", CHEAP, "--quick", "--seeds", "2", "--out", str(folder)]
    assert main(published) == 2
    assert "name another folder by --out" in capfd.readouterr().err
    assert json.dumps(record) == json.dumps(
        unsealed((folder / f"{CHEAP}.json").read_text(encoding="utf-8"))
    )


@pytest.mark.usefixtures("replaced")
def test_published_results_are_not_overwritten():
    if not STORED.is_dir():
        pytest.skip("the stored figures are not in this copy")
    with pytest.raises(UsageError, match=r"has results of .* with the published numbers"):
        commands.check_folder(FIGURE, STORED)
