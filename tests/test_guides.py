"""The guides' programs: recipes are short and correct, and every page runs."""

import dataclasses
import warnings
from importlib.util import find_spec

import jax
import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas
import pytest

import fljax as fl
from tests.support.guides import PAGES, program, programs

#: Pages whose programs go on from one study, which comes first.
OWN, RESULTS, STUDIES = (f"docs/guides/{name}" for name in ("own", "results", "studies"))
RECIPES = {p.heading: p.code for page in (OWN, RESULTS) for p in programs(page)[2:]}

#: Small enough for a test.
SHORT = {
    "seeds=5, rounds=30, record_every=3": "seeds=2, rounds=4, record_every=2",
    "seeds=20": "seeds=3",
    "seeds=40": "seeds=4",
    '"seeds": 20': '"seeds": 3',
    "rounds=30": "rounds=4",
    "rounds=50": "rounds=4",
    "rounds=20": "rounds=4",
    '"rounds": 30': '"rounds": 4',
    "[0.01, 0.03, 0.1]": "[0.01, 0.03]",
}


def execute(code, names):
    for long, short in SHORT.items():
        code = code.replace(long, short)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec(compile(code, "guide", "exec"), names)


@pytest.fixture(scope="module")
def study():
    names = {}
    for start in programs(OWN)[:2]:
        execute(start.code, names)
    return names


@pytest.fixture
def cook(study, tmp_path, monkeypatch):
    """Run a recipe after the study; the names that it leaves."""
    monkeypatch.chdir(tmp_path)
    yield lambda title: (names := dict(study), execute(RECIPES[title], names))[0]
    plt.close("all")


def test_recipes_are_short_and_begin_with_the_same_study():
    start, other = ([p.code for p in programs(page)[:2]] for page in (OWN, RESULTS))
    assert start == other
    assert len(RECIPES) == 12
    for page in PAGES:
        for heading, code in programs(page):
            assert max(map(len, code.splitlines())) <= 100, f"{page}, {heading}"
    for heading, code in RECIPES.items():
        assert len(code.splitlines()) <= 16, heading


@pytest.mark.slow
def test_data_of_your_own(cook):
    names = cook("Data of your own")
    assert [int((row > 0).sum()) for row in names["problem"].weights] == [12, 30, 7, 21]
    errors = names["mine"].normalized_error
    assert dict(errors.sizes) == {"step_size": 2, "seed": 3, "round": 4}
    assert float(errors.std("seed").min()) > 0  # seeds differ, as its comment says
    assert plt.gca().get_legend().get_title().get_text() == "step_size"


@pytest.mark.slow
def test_a_loss_of_your_own(cook):
    names = cook("A loss of your own")
    values = fl.run(names["own_loss"], rounds=4).objective
    assert float(values[-1]) < float(values[0])


@pytest.mark.slow
def test_an_algorithm_of_your_own(cook):
    names = cook("An algorithm of your own")
    now = fl.view(names["scenario"](jax.random.key(0), names["Diffusion"](0.05)))
    state = names["Diffusion"](0.05).init(now.problem, now.network)
    moved = names["Diffusion"](0.05).step(state, now).model
    gradient = now.network.mixing()(now.problem.gradient(state.model))
    np.testing.assert_allclose(moved, -0.05 * gradient, rtol=1e-12)


@pytest.mark.slow
def test_a_custom_algorithm_works_with_links_attackers_and_aggregators(cook):
    names = cook("An algorithm of your own")

    def hard(key):
        return dataclasses.replace(
            names["scenario"](key, names["Diffusion"](0.05)),
            losses=fl.link.Independent(0.1),
            attack=fl.attacks.SignFlip(np.arange(20) < 2),
            aggregation=fl.aggregation.Median(),
        )

    errors = fl.sweep(hard, seeds=2, rounds=4).normalized_error.mean("seed")
    assert float(errors[-1]) < float(errors[0]) < 20


@pytest.mark.slow
def test_a_metric_of_your_own(cook):
    result = cook("A metric of your own")["found"]
    assert result.worst.attrs["long_name"] == "error of the worst client"
    assert {*fl.statistics.metric_names(result)} >= {"worst", "consensus_error"}
    assert fl.statistics.is_decibel(result, "worst")
    assert float(result.worst.min()) > 0


@pytest.mark.slow
def test_trajectories(cook):
    paths = cook("Trajectories")["paths"].model_trajectory
    assert paths.dims == ("algorithm", "seed", "round", "client", "parameter")
    moved = abs(paths.isel(round=-1) - paths.isel(round=0)).max(["client", "parameter"])
    assert float(moved.min()) > 0


@pytest.mark.slow
def test_a_table_of_a_paper(cook, capsys, tmp_path):
    table = cook("A table for a paper")["table"]
    assert "@article{shi2014" in capsys.readouterr().out
    assert (tmp_path / "table.tex").read_text() == table.latex()
    head = "| algorithm | normalized error [dB] | consensus error [dB] |"
    assert table.markdown().startswith(head)


@pytest.mark.slow
def test_a_page_to_look_at(cook, capsys, tmp_path):
    pytest.importorskip("plotly")
    names = cook("A page to look at")
    assert capsys.readouterr().out.startswith("study.html: ")
    shown = (tmp_path / names["page"]).read_text()
    assert "<h1>ADMM and gradients</h1>" in shown
    assert "gauthier2024" in shown


@pytest.mark.slow
def test_the_best_step_size(cook):
    names = cook("The best step size")
    tried = names["tried"]
    best = names["best"]
    assert best.normalized_error.dims == ("algorithm", "seed", "round")
    mean = tried.normalized_error.isel(round=-1).mean("seed")
    for method in names["kinds"]:
        assert float(best.step_size.sel(algorithm=method)) == float(
            mean.sel(algorithm=method).idxmin("step_size")
        )
    head = fl.table(best, "normalized_error").markdown().splitlines()[0]
    assert head.startswith("| algorithm | step_size | normalized error [dB] |")
    assert len(plt.gca().lines) == 2


@pytest.mark.slow
def test_a_search_by_optuna(cook, monkeypatch):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    compilations = []
    sweep = fl.sweep

    def counted(*args, **options):
        results = sweep(*args, **options)
        compilations.append(results.attrs["compilations"])
        return results

    monkeypatch.setattr(fl, "sweep", counted)
    names = cook("A search by Optuna")
    assert compilations == [1, 0, 0, 0]
    search = names["search"]
    tried = names["tried"]
    assert len(search.trials) == 32
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in search.trials)
    last = tried.normalized_error.isel(round=-1).mean("seed")
    for label, score in last.to_series().items():
        assert search.trials[int(label)].value == pytest.approx(score, rel=1e-6)
    assert search.best_value == min(trial.value for trial in search.trials)


@pytest.mark.slow
def test_methods_compared(cook, capsys):
    result = cook("Methods compared")["found"]
    assert [*result["algorithm"].values] == ["ADMM"]
    columns = capsys.readouterr().out.splitlines()[0].split()
    assert columns == ["difference", "low", "high", "p", "runs", "diverged"]
    assert result.attrs["unit"] == "dB"


@pytest.mark.slow
def test_a_picture_of_a_network(cook, tmp_path):
    names = cook("A picture of a network")
    assert names["away"].shape == (20,)
    assert np.isfinite(names["away"]).all()
    assert (tmp_path / "network.pdf").read_bytes().startswith(b"%PDF")
    assert names["ax"].figure.axes[1].get_ylabel() == "distance of a client [dB]"


@pytest.mark.slow
def test_a_heat_map(cook):
    names = cook("A heat map")
    ax = names["ax"]
    result = names["found"]
    means = fl.statistics.decibels(result["normalized_error"].isel(round=-1).mean("seed"))
    colors = ax.collections[0].get_array()
    np.testing.assert_allclose(colors, means.transpose("neighbors", "penalty"), rtol=1e-6)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["3", "6", "12"]


@pytest.fixture
def long_study(tmp_path, monkeypatch):
    """Run a part of the guide to long studies after its scenario; the names that it leaves."""
    monkeypatch.chdir(tmp_path)
    names = {"grid": {"coupling": [0.01, 0.1]}}
    execute("\n".join(p.code for p in programs(STUDIES)[:2]), names)
    return lambda heading: execute(program(STUDIES, heading), names) or names


@pytest.mark.slow
def test_a_long_study_on_two_machines(long_study, tmp_path):
    names = long_study("A long study on two machines")
    parts = [fl.load(tmp_path / f"part-{i}") for i in (1, 2)]
    assert all(0 < int(part.done.sum()) < part.done.size for part in parts)
    undivided = fl.sweep(names["scenario"], **names["study"])
    np.testing.assert_array_equal(names["results"].normalized_error, undivided.normalized_error)


@pytest.mark.slow
def test_a_study_that_was_interrupted(long_study):
    names = long_study("A study that was interrupted")
    assert names["results"].sizes["seed"] == 4
    three = fl.sweep(names["scenario"], grid=names["grid"], rounds=4, seeds=3)
    np.testing.assert_array_equal(names["results"].normalized_error[:, :3], three.normalized_error)


@pytest.mark.slow
def test_curves_are_written_to_files(long_study, tmp_path):
    names = long_study("Curves in TensorBoard, Weights & Biases, MLflow or files")
    curves = pandas.read_csv(tmp_path / "tracked" / "curves.csv")
    assert {*curves["coupling"]} == {*names["grid"]["coupling"]}
    np.testing.assert_allclose(
        curves[curves["curve"] == "mean"].groupby("round")["normalized_error"].mean(),
        names["results"]["normalized_error"].mean(["seed", *names["grid"]]),
    )


@pytest.mark.slow
def test_models_leave_a_study_and_start_another(long_study, tmp_path):
    pytest.importorskip("safetensors")
    names = long_study("Models leave a study, and start another")
    assert (tmp_path / "best.safetensors").is_file()
    assert names["start"].shape == (30, 3)
    best = names["results"]["model"].stack(run=["coupling", "seed"])
    assert (best == names["start"][..., None]).all(["client", "parameter"]).sum() == 1
    assert names["more"].sizes == {"coupling": 2, "seed": 3, "round": 4}


def test_ef21_of_public_parts_is_short_and_is_the_librarys():
    """In double precision; half of the clients are absent, and messages are lost."""
    page = programs("docs/guides/own-server")
    imports = page[0].code
    own, comparison = [p.code for p in page if p.heading == "A method that compresses its messages"]
    assert len(own.splitlines()) < 40
    names: dict = {}
    for code in (imports, own, comparison):
        execute(code, names)
    assert names["apart"] < 1e-12
    assert bool((names["ef21"].bits_up > 0).all())
    assert float(abs(names["models"]).max()) > 0.1
    with pytest.raises(ValueError, match=r"RandomK\(count=1\) is not contractive"):
        fl.Simulation(
            fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=4),
            names["EF21"](0.1, compression=fl.link.RandomK(1)),
        )


@pytest.mark.slow
@pytest.mark.long  # .ci/run has it with the newest versions
@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)])
def test_a_page_runs_from_its_first_line_to_its_last(page, tmp_path, monkeypatch):
    """Every program in its order, with the names that those before it left and no others."""
    monkeypatch.chdir(tmp_path)
    short = {"seeds": 2, "rounds": 4, "record_every": 2}

    def shortened(function, *names):
        def call(*args, **options):
            options |= {name: short[name] for name in names if name in options}
            return function(*args, **options)

        return call

    for name in ("sweep", "plan"):
        short_version = shortened(getattr(fl, name), "seeds", "rounds", "record_every")
        monkeypatch.setattr(fl, name, short_version)
    monkeypatch.setattr(fl, "run", shortened(fl.run, "rounds", "record_every"))
    audited = fl.audit.two_worlds
    monkeypatch.setattr(
        fl.audit, "two_worlds", lambda *args, **options: audited(*args, **options | {"seeds": 400})
    )
    names: dict = {}
    for heading, code in programs(page):
        if "import hydra" in code and find_spec("hydra") is None:
            continue  # an extra of developers; tests of study files run it where it is installed
        try:
            exec(compile(code, page, "exec"), names)
        except Exception as error:
            error.add_note(f"This was the program under {heading!r}.")
            raise
    plt.close("all")
