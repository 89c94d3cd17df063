"""Studies from the command line: planned, run, sharded, merged, shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fljax as fl
from fljax.__main__ import UsageError, axes, main, parser, scenario_of
from fljax.study.saving import checksum
from fljax.study.store import Store

SCENARIO = """
import jax, fljax as fl

def study(key, penalty=1.0, clients=6):
    k_data, k_graph = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.ridge(k_data, clients=clients, samples=8, dim=2),
        network=fl.graphs.random_connected(k_graph, nodes=clients, mean_degree=3),
        algorithm=fl.algorithms.ZCDPNFL(penalty, 0.3),
        metrics=["normalized_error"],
    )

number = 3

def none(key):
    return None

def mistaken(key, size):
    return helper(size)


def helper(size):
    return undefined * size
"""
#: The line in which the mistaken scenario begins.
MISTAKEN = SCENARIO[: SCENARIO.index("def mistaken")].count("\n") + 1
EMPTY = {"rounds": 1, "metrics": {}, "attributes": {}}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """The common arguments, in a folder with the scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SCENARIO)
    (tmp_path / "unclosed.py").write_text("def study(key")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(3)")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folder.py" / "file").touch()
    return ["mine.py:study", "--rounds", "6", "--seeds", "4", "--grid", "penalty=0.5,1"]


@pytest.mark.slow
def test_shards_are_run_merged_and_shown(ask, capsys):
    assert main(["run", *ask, "--store", "one", "--shard", "1/2"]) == 0
    assert "4 of 8 runs of 6 rounds are done (penalty 2, seed 4)" in capsys.readouterr().out
    assert main(["run", *ask, "--store", "two", "--shard", "2/2"]) == 0
    assert main(["merge", "whole", "one", "two"]) == 0
    assert main(["show", "whole"]) == 0
    assert capsys.readouterr().out.count("8 of 8 runs of 6 rounds are done") == 2
    assert main(["run", *ask, "--store", "whole", "--out", "merged.nc"]) == 0
    assert main(["run", *ask, "--out", "alone.nc"]) == 0
    merged = fl.load("merged.nc")
    alone = fl.load("alone.nc")
    assert checksum(merged) == checksum(alone)
    assert merged.attrs["compilations"] == 0
    assert checksum(fl.load("whole")) == checksum(alone)


NUMBERS = {
    ".2": 0.2,
    "2.": 2.0,
    "+0.1": 0.1,
    "-.5": -0.5,
    "1e3": 1000.0,
    "1.0": 1.0,
    "+3": 3,
    "-3": -3,
    "007": 7,
    "10": 10,
    "true": True,
    "false": False,
    "relu": "relu",
}


@pytest.mark.parametrize("word", NUMBERS)
def test_numbers_of_a_grid_are_read_as_python_reads_them(word):
    (read,) = axes([f"a={word}"], "--grid")["a"]
    assert read == NUMBERS[word]
    assert type(read) is type(NUMBERS[word])


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "Infinity", "NaN", "null", "1e999", ""])
def test_nonfinite_values_are_refused_in_a_grid(word):
    with pytest.raises(UsageError, match="must be a finite number"):
        axes([f"a=1,{word}"], "--grid")


@pytest.mark.parametrize("path", ["./mine.py", "../{}/mine.py", ".//mine.py"])
def test_the_file_of_a_scenario_is_named_in_any_way(ask, tmp_path, path):
    assert callable(scenario_of(f"{path.format(tmp_path.name)}:study"))
    assert callable(scenario_of(f"{tmp_path / 'mine.py'}:study"))


@pytest.mark.slow
def test_a_study_is_planned(ask, capsys):
    assert main(["plan", *ask, "--static", "clients=4,6", "--segment", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("16 runs of 6 rounds on ")
    assert "2 programs" in out
    assert "2 stretches each" in out
    assert '- 2 points like {"clients": 4, "penalty": 0.5}' in out


@pytest.mark.slow
def test_words_and_numbers_and_tolerances(ask, capsys):
    assert main(["run", *ask, "--until", "normalized_error=1e9", "--out", "short.nc"]) == 0
    assert (fl.load("short.nc")["stopped"] == 1).all()


#: What every option says of wrong values, by command: arguments and a part of the answer.
WRONG = {
    "run": {
        "scenario": [
            ("mine.py", "a scenario is FILE.py:NAME or module:NAME, got 'mine.py'"),
            ("mine.py:", "a scenario is FILE.py:NAME"),
            ("..:study", "a scenario is FILE.py:NAME"),
            ("nowhere.py:study", "no file nowhere.py"),
            ("folder.py:study", "no file folder.py"),
            ("no.where:study", "no module no.where and no file no.where.py"),
            ("mine.py:nothing", "mine.py has no function nothing"),
            ("mine.py:number", "number of mine.py is no function but of type int"),
            ("mine.py:none", "must return an fljax.Simulation, got NoneType"),
            (
                "mine.py:none --grid x=1",
                "none(key) cannot be called with a key and the grid's axes",
            ),
            ("unclosed.py:study", "unclosed.py cannot be imported: SyntaxError"),
            ("leaves.py:study", "leaves.py cannot be imported: SystemExit: 3"),
        ],
        "overrides": [
            ("seeds=3", "unrecognized arguments: seeds=3; KEY=VALUE is for study files"),
        ],
        "--rounds": [
            ("", "required: --rounds"),
            ("--rounds x", "--rounds: must be an integer, got 'x'"),
            ("--rounds 0", "--rounds: must be an integer from 1 to 2147483647, got 0"),
            ("--rounds 2147483648", "--rounds: must be an integer from 1"),
        ],
        "--seeds": [
            ("--seeds 1e3", "must be an integer, got '1e3'"),
            ("--seeds -1", "must be an integer from 1"),
            ("--seeds 99999999999999999999", "must be an integer from 1"),
        ],
        "--grid": [
            ("--grid penalty", "--grid must be NAME=VALUE"),
            ("--grid penalty=", "--grid must be NAME=VALUE"),
            ("--grid =1", "--grid must be NAME=VALUE"),
            ("--grid penalty=1,,2", "must be a finite number, true, false or a word, got ''"),
            ("--grid penalty=[1,2]", "have no brackets"),
            ("--grid penalty=1e999", "must be a finite number"),
            ("--grid penalty=null", "must be a finite number"),
            ("--grid penalty=99999999999", "must have 32 bits, got 99999999999"),
            ("--grid penalty=word", "penalty must be a number, got 'word'"),
            ("--grid penalty=true", "penalty must be a number, got"),
            ("--grid penalty=0.5,-1", "got -1. This was grid point {'penalty': -1}."),
            ("--grid penalty=1,1", "has the same label twice"),
            ("--grid seed=1", "a name that results use themselves"),
            ("--grid nothing=1", "cannot be called with a key and the grid's axes (nothing)"),
            (
                "--grid penalty=1 --grid penalty=2",
                "--grid penalty is given twice; write all its values as penalty=VALUE,VALUE...",
            ),
        ],
        "--static": [
            ("--static clients", "--static must be NAME=VALUE"),
            ("--static clients=0", "clients must be >= 1, got 0. This was grid point"),
            ("--grid clients=4 --static clients=4", "must be in --grid or in --static, not both"),
        ],
        "--generator": [("--generator rbg", "invalid choice: 'rbg'")],
        "--record-every": [
            ("--record-every 0", "must be an integer from 1"),
            ("--record-every 4", "rounds must be a multiple of record_every, got 6 and 4"),
        ],
        "--block": [("--block 0", "must be an integer from 1")],
        "--workers": [("--workers x", "must be an integer, got 'x'")],
        "--segment": [
            ("--segment 0", "must be an integer from 1"),
            ("--segment 3 --record-every 2", "segment must be a multiple of record_every=2"),
        ],
        "--shard-over": [("--shard-over rows", "invalid choice: 'rows'")],
        "--x64": [("--x64=yes", "ignored explicit argument 'yes'")],
        "--root": [
            ("--root 4294967296", "must be an integer from -2147483648"),
            ("--root x", "must be an integer"),
        ],
        "--until": [
            ("--until normalized_error", "--until must be NAME=VALUE"),
            ("--until normalized_error=x", "--until must be METRIC=LEVEL with one number"),
            ("--until normalized_error=1,2", "--until must be METRIC=LEVEL with one number"),
            ("--until normalized_error=-1", "until['normalized_error'] must be finite and >= 0"),
            ("--until normal=1", "unknown metric in until 'normal'; known: normalized_error"),
        ],
        "--store": [
            ("--store mine.py", "cannot write to the store mine.py"),
            ("--store folder.py", "folder.py is no store of fljax and is not empty"),
        ],
        "--shard": [
            ("--shard 1/2", "--shard needs a --store"),
            ("--store kept --shard 3/2", "must be I/N with 1 <= I <= N, got '3/2'"),
            ("--store kept --shard x", "must be I/N with 1 <= I <= N"),
        ],
        "--executor": [
            ("--executor processes", "--executor needs a --store in which its workers"),
            ("--store kept --executor desk", "unknown executor 'desk'; known: dask, mpi,"),
        ],
        "--out": [
            ("--out folder.py", "--out folder.py is a folder"),
            ("--out a/b.nc", "no folder a; create it first"),
            ("--out mine.py/b.nc", "no folder mine.py; create it first"),
            ("--out /proc/b.nc", "/proc"),
        ],
        "--distributed": [
            ("--distributed here", "must be HOST:PORT,I/N with a port below 65536"),
            ("--distributed here:99999,1/2", "must be HOST:PORT,I/N with a port below 65536"),
            ("--distributed here:9999,3/2", "must be I/N with 1 <= I <= N"),
        ],
    },
    "init": {
        "file": [
            ("mine.py", "a study file ends in .yaml or .yml, got mine.py"),
            ("nowhere/study.yaml", "no folder nowhere; create it first"),
        ]
    },
    "show": {
        "store": [
            ("nowhere", "nowhere is no store of fljax: it is no folder"),
            ("mine.py", "mine.py is no store of fljax: it is no folder"),
            ("folder.py", "folder.py is no store of fljax: it has no study.json"),
        ]
    },
    "merge": {
        "into": [("", "required: INTO, FOLDER")],
        "stores": [
            ("whole", "required: FOLDER"),
            ("whole two two", "two is given twice"),
            ("whole nowhere", "nowhere is no store of fljax"),
        ],
    },
}
#: Both commands build the study in the same way.
RUN_ONLY = {"--root", "--until", "--store", "--shard", "--executor", "--out", "--distributed"}
SAME = WRONG["run"].keys() - RUN_ONLY
WRONG["plan"] = {name: wrong for name, wrong in WRONG["run"].items() if name in SAME}
WRONG["plan"]["--measure"] = [("--measure=yes", "ignored explicit argument 'yes'")]


def commands():
    """The parser of every command."""
    (result,) = (action for action in parser()._actions if action.dest == "command")
    return result.choices


def options(command):
    """The names of a command's options."""
    for action in commands()[command]._actions:
        if action.dest != "help":
            yield (action.option_strings or [action.dest])[-1], action


def complete(command, name, arguments):
    """The arguments of a call that is wrong in one of them only."""
    if command not in ("run", "plan"):
        return [command, *arguments]
    scenario = [] if name == "scenario" else ["mine.py:study"]
    return [command, *scenario, *arguments, *([] if name == "--rounds" else ["--rounds", "6"])]


def test_every_option_has_its_wrong_values_and_its_help():
    for command, described in commands().items():
        assert dict(options(command)).keys() == WRONG[command].keys(), command
        for name, action in options(command):
            assert "required" in action.help or "default" in action.help, name
            assert name in described.epilog or not name.startswith("-"), f"no example with {name}"
        for line in described.epilog.splitlines()[1:]:
            described.parse_args(line.split()[4:])  # examples are right


def test_commands_and_versions_are_reported(capsys):
    assert main([]) == main(["nothing"]) == 2
    err = capsys.readouterr().err
    assert "required: command" in err
    assert "invalid choice: 'nothing'" in err
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"fljax {fl.__version__}\n"


@pytest.mark.parametrize(("command", "name"), [(c, n) for c in WRONG for n in WRONG[c]])
def test_requests_that_cannot_be_served_take_one_line(ask, capsys, command, name):
    for arguments, message in WRONG[command][name]:
        assert main(complete(command, name, arguments.split())) == 2, arguments
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n") == 1 or ".py cannot be imported" in err


def test_an_error_in_a_scenario_shows_the_user_s_lines(ask, capsys):
    assert main(["plan", "mine.py:mistaken", "--rounds", "1", "--grid", "size=3"]) == 2
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith("error: the scenario failed: NameError: name 'undefined' is not")
    assert first.endswith("This was grid point {'size': 3}.")
    assert [line.strip() for line in lines if "^" not in line] == [
        f'File "{Path("mine.py").resolve()}", line {MISTAKEN + 1}, in mistaken',
        "return helper(size)",
        f'File "{Path("mine.py").resolve()}", line {MISTAKEN + 5}, in helper',
        "return undefined * size",
    ]


def test_internal_errors_are_not_blamed_on_the_user(ask, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr(fl, "plan", broken)
    monkeypatch.setattr("fljax.__main__.user_lines", lambda error: "")  # this file is a user's
    with pytest.raises(RuntimeError, match="broken"):
        main(["plan", "mine.py:study", "--rounds", "1"])


def test_a_store_without_runs_is_shown(ask, capsys):
    store = Store("empty")
    store.agree({"identity": {"record_every": 1}, "points": {}, "axes": {}, "seeds": [0]} | EMPTY)
    store.close()
    assert main(["show", "empty"]) == 0
    assert "no run is done" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["fljax", "experiments"])
def test_help_imports_nothing_for_it(package):
    """What is loaded beyond the package itself is of the standard library."""
    code = f"""
import importlib, sys
importlib.import_module({package!r})
before = set(sys.modules) | set(sys.stdlib_module_names)
main = importlib.import_module("{package}.__main__").main
for command in ([], ["run"]):
    try:
        main([*command, "--help"])
    except SystemExit:
        pass
print("new:", *(name for name in sys.modules if not {{name, name.partition(".")[0]}} & before))
print("own:", *(name for name in sys.modules if name not in before and {package!r} in name))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(fl.__file__).parents[1])}
    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    new, imported = process.stdout.splitlines()[-2:]
    assert new == "new:"
    light = ("__main__", "errors", "_core.user_code")
    assert set(imported.split()[1:]) <= {f"{package}.{module}" for module in light}


def unread(*command):
    """A command whose output pipe is closed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as output:
        return subprocess.run(
            [sys.executable, "-m", *command], check=False, stdout=output, stderr=subprocess.PIPE
        )


@pytest.mark.parametrize(
    "module", ["experiments", pytest.param("experiments.atlas", marks=pytest.mark.slow)]
)
def test_a_list_may_be_read_in_part(module):
    done = unread(module, "list")
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_store_may_be_shown_in_part(ask):
    assert main(["run", *ask, "--store", "made"]) == 0
    done = unread("fljax", "show", "made")
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_announces_the_stored_results(ask, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt("interrupted: 3 of 8 runs are done.")

    monkeypatch.setattr(fl, "sweep", stop)
    assert main(["run", *ask]) == 130
    assert "3 of 8 runs are done" in capsys.readouterr().err
