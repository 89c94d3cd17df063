"""Studies as files: the same numbers as a program's, and mistakes by file and line."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.__main__ import main
from fljax.executors import by_name

yaml = pytest.importorskip("yaml")
pytest.importorskip("omegaconf")

ROOT = Path(__file__).parents[2]

SCENARIO = """
import fljax as fl


def scenario(key, penalty, clients=6):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients, samples=5, dim=2),
        network=fl.graphs.ring(clients),
        algorithm=fl.algorithms.NetworkedADMM(penalty),
        metrics=["normalized_error"],
    )
"""

FILE = """\
scenario: mine.py:scenario
grid:
  penalty: [0.5, 1.0]
static: {clients: [6, 8]}
rounds: 6
seeds: 3
x64: true
"""

PARTS = """\
scenario:
  problem: {name: ridge, clients: 6, samples: 5, dim: 2}
  network: {name: ring, nodes: 6}
  algorithm:
    name: NetworkedADMM
  metrics: [normalized_error]
grid:
  penalty: [0.5, 1.0]
rounds: 6
seeds: 3
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a study file into the current folder, which has the scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SCENARIO)

    def write(text, name="study.yaml"):
        Path(name).write_text(textwrap.dedent(text))
        return name

    return write


def refusal(name, *overrides):
    """The error of a study file on the command line."""
    with pytest.raises((TypeError, ValueError)) as caught:
        fl.study_files.read(name, overrides).sweep()
    return " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


# The study --------------------------------------------------------------------------------------


def test_a_file_is_the_same_study_as_a_program(write):
    results = fl.study_files.read(write(FILE)).sweep()
    spec = importlib.util.spec_from_file_location("mine", "mine.py")
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    grid = {"penalty": [0.5, 1.0], "clients": fl.static([6, 8])}
    program = fl.sweep(mine.scenario, grid=grid, rounds=6, seeds=3)
    assert dict(results.sizes) == {"penalty": 2, "clients": 2, "seed": 3, "round": 6}
    np.testing.assert_array_equal(results["normalized_error"], program["normalized_error"])


def test_parts_are_the_same_study_as_a_function_with_their_keys(write):
    """Each part gets a key from that of the run and the path of the part in the file."""
    results = fl.study_files.read(write(PARTS)).sweep()
    number = 2832965062  # zlib.crc32(b"scenario.problem")

    def scenario(key, penalty):
        return fl.Simulation(
            problem=fl.problems.ridge(jax.random.fold_in(key, number), 6, 5, 2),
            network=fl.graphs.ring(6),
            algorithm=fl.algorithms.NetworkedADMM(penalty),
            metrics=["normalized_error"],
        )

    program = fl.sweep(scenario, grid={"penalty": [0.5, 1.0]}, rounds=6, seeds=3)
    np.testing.assert_array_equal(results["normalized_error"], program["normalized_error"])


def test_an_axis_gives_marked_values_and_parts(write):
    text = """
    scenario:
      problem: {name: ridge, clients: $size, samples: 5, dim: 2}
      network: {name: random_connected, nodes: $size, mean_degree: 3}
      metrics: [normalized_error]
    grid:
      algorithm:
        ADMM: {name: NetworkedADMM, penalty: 1.0}
        falling: {name: ATC, step_size: {name: PowerDecay, initial: 0.1, power: 0.5}}
        fixed: {name: ATC, step_size: 0.1}
    static: {size: [6, 8]}
    rounds: 3
    """
    study = fl.study_files.read(write(text))
    algorithms = study.arguments["grid"]["algorithm"]
    assert repr(algorithms["ADMM"]) == repr(fl.algorithms.NetworkedADMM(1.0))
    assert repr(algorithms["falling"].step_size) == repr(fl.schedules.PowerDecay(0.1, 0.5))
    results = study.sweep()
    assert results["algorithm"].values.tolist() == ["ADMM", "falling", "fixed"]
    last = results["normalized_error"].values[..., -1]
    assert np.unique(last).size == last.size  # all points differ


def test_settings_refer_to_each_other_and_are_overridden(write):
    text = PARTS.replace("nodes: 6", 'nodes: "${scenario.problem.clients}"')
    overrides = ["scenario.problem.clients=8", "grid.penalty=[1.0,2.0,3.0]", "seeds=[7,9]"]
    results = fl.study_files.read(write(text), overrides).sweep()
    assert results["penalty"].values.tolist() == [1.0, 2.0, 3.0]
    assert results["seed"].values.tolist() == [7, 9]
    assert results["bits_up"].values.max() == 6 * 8 * 2 * 64  # rounds, clients, dim


def test_a_stored_study_continues_after_it_was_read_again(write):
    name = write(PARTS + "store: kept\n")
    fl.study_files.read(name).sweep()
    results = fl.study_files.read(name, ["seeds=4"]).sweep()
    assert results.attrs["scenario"] == "study"
    assert len([*Path("kept").glob("*.npz")]) > 0
    again = fl.study_files.read(name, ["seeds=4"]).sweep()
    assert again.attrs["run_seconds"] == 0


def test_results_and_trackers_are_written(write):
    text = PARTS + "out: results.nc\ntrack: [{name: csv, folder: tracked, seed_curves: 1}]\n"
    results = fl.study_files.read(write(text)).sweep()
    assert fl.load("results.nc").identical(results) or fl.load("results.nc").equals(results)
    assert Path("tracked/curves.csv").is_file()


@pytest.fixture
def in_threads(monkeypatch):
    """The engine "processes" has threads of this process; its executors are kept."""
    made = []

    def threads(workers=None):
        made.append(ThreadPoolExecutor(workers))
        return made[-1]

    monkeypatch.setitem(by_name.ENGINES, "processes", threads)
    return made


@pytest.mark.parametrize("text", [FILE, PARTS], ids=["file", "parts"])
def test_an_executor_computes_the_study_of_a_file(write, in_threads, text):
    executor = "store: kept\nexecutor: {name: processes, workers: 2}\n"
    shared = fl.study_files.read(write(text + executor)).sweep()
    (made,) = in_threads
    assert made._max_workers == 2
    with pytest.raises(RuntimeError, match="after shutdown"):
        made.submit(print)
    assert shared.equals(fl.study_files.read(write(text)).sweep())


def test_a_plan_starts_no_executor(write, in_threads):
    fl.study_files.read(write(FILE + "store: kept\nexecutor: processes\n")).plan()
    assert not in_threads


def test_the_library_of_an_engine_is_missing(write, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "ray" or None)
    study = fl.study_files.read(write(PARTS + "store: kept\nexecutor: ray\n"))
    with pytest.raises(ValueError, match=r"yaml, line 12: fljax.executors.ray needs ray, which"):
        study.sweep()


@pytest.mark.slow
def test_spawned_processes_compute_the_scenario_of_a_file_elsewhere(write, capsys):
    """Workers do not find the file by the name of a module."""
    write(FILE)
    Path("elsewhere").mkdir()
    Path("mine.py").rename("elsewhere/mine.py")
    settings = ["--rounds", "6", "--seeds", "3", "--grid", "penalty=0.5,1"]
    run = ["run", "elsewhere/mine.py:scenario", *settings]
    engine = json.dumps({"name": "processes", "workers": 1})
    assert main([*run, "--store", "kept", "--executor", engine, "--out", "shared.nc"]) == 0
    assert main([*run, "--out", "alone.nc"]) == 0
    assert fl.load("shared.nc").equals(fl.load("alone.nc"))


def test_a_mapping_is_read_as_a_file_is():
    study = fl.study_files.read(yaml.safe_load(PARTS), ["rounds=2"])
    assert study.sweep().sizes["round"] == 2


# On the command line ----------------------------------------------------------------------------


def test_the_command_line_runs_and_plans_a_file(write, capsys):
    name = write(FILE)
    assert main(["plan", name, "seeds=2"]) == 0
    assert "8 runs of 6 rounds" in capsys.readouterr().out
    assert main(["run", name, "grid.penalty=[1.0]", "out=results.nc"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("written to results.nc\n6 of 6 runs of 6 rounds are done")
    assert fl.load("results.nc").sizes["penalty"] == 1


def test_the_example_runs_and_is_not_replaced(write, capsys):
    write("")
    assert main(["init", "first.yaml"]) == 0
    assert "next: python -m fljax run first.yaml" in capsys.readouterr().out
    text = Path("first.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=first.schema.json\n")
    assert main(["run", "first.yaml", "rounds=2", "seeds=2"]) == 0
    assert "6 of 6 runs of 2 rounds are done" in capsys.readouterr().out
    assert main(["init", "first.yaml"]) == 2
    assert "first.yaml exists and is not replaced" in capsys.readouterr().err


def test_settings_in_comments_of_the_example_are_right(write):
    """The example with every setting that it has as a comment."""
    lines = fl.study_files.example().splitlines()
    settings = ("privacy", "participation", "compression", "static", "mean_degree")
    settings += ("record_every", "x64", "store", "executor", "out", "track")
    active = []
    for line in lines:
        bare = line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line
        is_setting = bare.strip().partition(":")[0] in settings
        active.append(bare if is_setting else line)
    content = yaml.safe_load("\n".join(active))
    assert {"privacy", "participation", "compression"} <= content["scenario"].keys()
    assert {"static", "record_every", "x64", "store", "executor", "out", "track"} <= content.keys()
    study = fl.study_files.read(write("\n".join(active)))
    assert study.arguments["track"] == [fl.track.csv("tracked")]


def test_the_console_script_is_the_modules_command():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"fljax": "fljax.__main__:main"}


# Mistakes ---------------------------------------------------------------------------------------

MISTAKES = {
    "unknown key": (
        FILE + "sedes: 3\n",
        "study.yaml, line 8: unknown key 'sedes'. Did you mean 'seeds'?",
    ),
    "tab": (
        FILE.replace("  penalty", "\tpenalty"),
        "study.yaml, line 3: a tab; YAML is indented with spaces",
    ),
    "twice": (FILE + "rounds: 3\n", "study.yaml, line 8: found duplicate key rounds."),
    "bracket": (FILE + "until: [\n", "study.yaml, line 9: "),
    "missing": (FILE.replace("rounds: 6\n", ""), "study.yaml: rounds is missing."),
    "nothing": ("", "study.yaml: scenario is missing."),
    "list": ("- 1\n", "study.yaml: a study file has settings by name"),
    "no file": (
        FILE.replace("mine.py", "yours.py"),
        "study.yaml, line 1: no file yours.py.",
    ),
    "no function": (
        FILE.replace(":scenario", ":scenery"),
        "study.yaml, line 1: mine.py has no function scenery.",
    ),
    "value": (FILE.replace("rounds: 6", "rounds: 0"), "got 0. It is the number of iterations"),
    "place of a value": (FILE.replace("rounds: 6", "rounds: 0"), "(study.yaml, line 5)"),
    "kind": (FILE.replace("rounds: 6", "rounds: many"), "study.yaml, line 5: rounds must be an"),
    "grid": (FILE.replace("[0.5, 1.0]", "0.5"), "study.yaml, line 3: the axis 'penalty' must be a"),
    "both": (FILE.replace("{clients", "{penalty: [1], clients"), "line 4: penalty is in the grid"),
    "part": (
        PARTS.replace("name: ring", "name: rings"),
        "study.yaml, line 3: no 'rings' in the library for this setting. Did you mean 'ring'?",
    ),
    "argument": (
        PARTS.replace("nodes: 6", "node: 6"),
        "study.yaml, line 3: unknown key 'node' in scenario.network. Did you mean 'nodes'?",
    ),
    "field": (
        PARTS.replace("  network", "  netwrok"),
        "study.yaml, line 3: unknown key 'netwrok' in scenario. Did you mean 'network'?",
    ),
    "axis": (
        PARTS.replace("penalty:", "penalties:"),
        "study.yaml, line 8: no part of the scenario takes 'penalties'. Did you mean 'penalty'?",
    ),
    "reference": (
        PARTS.replace("nodes: 6", "nodes: $size"),
        "study.yaml, line 3: scenario.network.nodes refers to the axis 'size', which the grid does",
    ),
    "no value": (
        PARTS.replace("nodes: 6", ""),
        "study.yaml, line 3: scenario.network.nodes is missing; give it a value, or an axis",
    ),
    "bad value of a part": (
        PARTS.replace("samples: 5", "samples: 0"),
        "samples must be >= 1, got 0. (study.yaml, line 2)",
    ),
    "random values of a grid": (
        PARTS.replace("  penalty: [0.5, 1.0]", "  problem: [{name: ridge, clients: 6, samples: 5, "
                      "dim: 2}]\n  penalty: [1]"),
        "grid.problem.0 draws random numbers, so it cannot be a value of the grid",
    ),
    "tracker": (
        FILE + "track: {name: csvs, folder: x}\n",
        "study.yaml, line 8: unknown tracker 'csvs'; known: csv, mlflow, tensorboard, wandb. Did",
    ),
    "argument of a tracker": (
        FILE + "track: {name: csv, fold: x}\n",
        "study.yaml, line 8: unknown key 'fold' in track. Did you mean 'folder'?",
    ),
    "executor": (
        FILE + "store: kept\nexecutor: desk\n",
        "study.yaml, line 9: unknown executor 'desk'; known: dask, mpi, processes, ray, submitit.",
    ),
    "argument of an executor": (
        FILE + "store: kept\nexecutor: {name: processes, worker: 2}\n",
        "study.yaml, line 9: unknown key 'worker' in executor. Did you mean 'workers'?",
    ),
    "value of an executor": (
        FILE + "store: kept\nexecutor: {name: processes, workers: 0}\n",
        "study.yaml, line 9: workers must be >= 1, got 0.",
    ),
    "executor without a store": (
        FILE + "executor: processes\n",
        "study.yaml, line 8: an executor needs a store, a folder that all of its workers see.",
    ),
    "interpolation": (
        FILE.replace("seeds: 3", "seeds: ${seed}"),
        "study.yaml, line 6: Interpolation key 'seed' not found",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_reported_with_their_place(write, kind, capsys):
    text, message = MISTAKES[kind]
    name = write(text)
    assert message in refusal(name)
    assert main(["run", name]) == 2  # in one line, too
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_overrides_are_named_by_their_text(write):
    name = write(PARTS)
    assert refusal(name, "sedes=3").startswith("command line, sedes=3: unknown key 'sedes'.")
    assert "(command line, scenario.problem.samples=0)" in refusal(
        name, "scenario.problem.samples=0"
    )
    assert refusal(name, "rounds").startswith("an override is KEY=VALUE, such as rounds=100")


def test_an_argument_of_two_parts_is_ambiguous(write):
    parts = "  participation: {name: Bernoulli, probability: 0.5}\n"
    parts += "  losses: {name: Independent, probability: 0.1}\n  metrics"
    text = PARTS.replace("  metrics", parts) + "static: {probability: [0.5]}\n"
    assert refusal(write(text)) == (
        "study.yaml, line 13: the axis 'probability' could be any of "
        "scenario.participation.probability, scenario.losses.probability; write probability: "
        "$probability where it belongs."
    )


def test_omegaconf_that_is_not_installed_is_named_with_its_extra(write, monkeypatch, capsys):
    name = write(FILE)
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(ImportError, match=r"pip install 'fljax\[files\]'"):
        fl.study_files.read(name)
    assert main(["run", name]) == 2
    assert "pip install 'fljax[files]'" in capsys.readouterr().err


def test_a_missing_study_file_is_named(write):
    write(FILE)
    with pytest.raises(FileNotFoundError, match=r"no study file other.yaml; `python -m fljax"):
        fl.study_files.read("other.yaml")


# The schema -------------------------------------------------------------------------------------


def test_the_schema_accepts_right_files_and_refuses_wrong_ones():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json.dumps(fl.study_files.schema()))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for text in (FILE, PARTS, fl.study_files.example()):
        assert not [*validator.iter_errors(yaml.safe_load(text))]

    def is_refused(change):
        content = yaml.safe_load(PARTS)
        change(content)
        return not validator.is_valid(content)

    assert is_refused(lambda c: c.update(sedes=3))
    assert is_refused(lambda c: c.update(rounds="many"))
    assert is_refused(lambda c: c.pop("scenario"))
    assert is_refused(lambda c: c["scenario"].update(netwrok=3))
    assert is_refused(lambda c: c["scenario"]["network"].update(name="rings"))
    assert is_refused(lambda c: c["scenario"]["network"].update(node=6))
    assert is_refused(lambda c: c["scenario"]["network"].update(nodes=[6]))
    assert is_refused(lambda c: c.update(track={"name": "csv", "fold": "x"}))
    assert not is_refused(lambda c: c.update(track={"name": "csv", "folder": "x"}))
    assert is_refused(lambda c: c.update(executor="desk"))
    assert is_refused(lambda c: c.update(executor={"name": "processes", "worker": 2}))
    assert not is_refused(lambda c: c.update(executor="dask"))
    assert not is_refused(lambda c: c.update(executor={"name": "processes", "workers": 2}))
    assert not is_refused(lambda c: c["scenario"]["network"].update(nodes="$size"))


def test_the_schema_has_every_algorithm_and_every_argument_of_a_study():
    schema = fl.study_files.schema()
    names = schema["$defs"]["algorithm_part"]["properties"]["name"]["anyOf"][0]["enum"]
    assert {cls.__name__ for cls in fl.algorithms.REGISTRY.values()} <= {*names}
    described = {name for name, value in schema["properties"].items() if "description" in value}
    assert described == schema["properties"].keys()
    assert {"rounds", "seeds", "store", "track", "until", "static", "out"} <= described


# Hydra ------------------------------------------------------------------------------------------


def test_the_recipe_for_hydra_runs(write):
    """The program of the guide, in a process, since Hydra takes the command line."""
    pytest.importorskip("hydra")
    page = (ROOT / "docs" / "guides" / "study-files.md").read_text()
    (program,) = [
        block.partition("```")[0]
        for block in page.split("```python\n")[1:]
        if "import hydra" in block
    ]
    write(PARTS)
    Path("with_hydra.py").write_text(program)
    command = [sys.executable, "with_hydra.py", "--multirun", "rounds=2,3", "seeds=2"]
    environment = os.environ | {"PYTHONPATH": str(Path(fl.__file__).parents[1])}
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    sizes = [fl.load(path).sizes["round"] for path in sorted(Path().rglob("results.nc"))]
    assert sizes == [2, 3], done.stdout
