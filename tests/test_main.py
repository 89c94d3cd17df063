"""Studies from the command line: planned, run, sharded, merged, shown."""

import pytest

import fljax as fl
from fljax.__main__ import main
from fljax.study.results import checksum

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
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """The common arguments, in a folder with the scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SCENARIO)
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
    merged, alone = fl.load("merged.nc"), fl.load("alone.nc")
    assert checksum(merged) == checksum(alone)
    assert merged.attrs["compilations"] == 0
    assert checksum(fl.load("whole")) == checksum(alone)


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


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "required: command"),
        (["run", "mine.py:study"], "required: --rounds"),
        (["run", "nowhere.py:study", "--rounds", "1"], "no file nowhere.py"),
        (["run", "mine.py:nothing", "--rounds", "1"], "mine.py has no function nothing"),
        (["run", "mine", "--rounds", "1"], "a scenario is FILE.py:NAME or module:NAME"),
        (["run", "mine.py:study", "--rounds", "1", "--grid", "x"], "--grid must be NAME=VALUE"),
        (["run", "mine.py:study", "--rounds", "1", "--shard", "1/2"], "--shard needs a --store"),
        (["run", "mine.py:study", "--rounds", "1", "--out", "a/b.nc"], "no folder a"),
        (
            ["run", "mine.py:study", "--rounds", "1", "--distributed", "here"],
            "--distributed must be HOST:PORT,I/N",
        ),
        (
            ["run", "mine.py:study", "--rounds", "1", "--grid", "penalty=1", "--grid", "penalty=2"],
            "--grid penalty is given twice; write all its values as penalty=VALUE,VALUE...",
        ),
        (
            [
                "plan",
                "mine.py:study",
                "--rounds",
                "1",
                "--grid",
                "penalty=1",
                "--static",
                "penalty=2",
            ],
            "penalty must be in --grid or in --static, not both",
        ),
        (["merge", "whole", "two", "two"], "two is given twice"),
        (["show", "nowhere"], "nowhere is no store of fljax"),
        (["merge", "whole", "nowhere"], "nowhere is no store of fljax"),
    ],
)
def test_requests_that_cannot_be_served_take_one_line(ask, capsys, argv, message):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_ctrl_c_says_what_is_kept(ask, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt("interrupted: 3 of 8 runs are done.")

    monkeypatch.setattr(fl, "sweep", stop)
    assert main(["run", *ask]) == 130
    assert "3 of 8 runs are done" in capsys.readouterr().err
