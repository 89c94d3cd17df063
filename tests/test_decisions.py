"""What was decided: as attributes of results, and as a table of what changed."""

import jax
import pytest

import fljax as fl


def scenario(key, coupling, kind="FedRelax", probability=None):
    algorithm = getattr(fl.algorithms, kind)(coupling)
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=4, samples=9, dim=2),
        network=fl.graphs.ring(4),
        algorithm=algorithm,
        losses=None if probability is None else fl.link.Independent(probability),
        metrics=["consensus_error"],
    )


def chosen(trace):
    return dict(zip(trace["choice"], trace["value"], strict=True))


@pytest.mark.slow
def test_a_run_says_what_it_was():
    results = fl.run(scenario(jax.random.key(0), 0.5, probability=0.25), rounds=3)
    trace = fl.decisions(results)
    assert set(trace["time"]) == {results.attrs["created"]}
    said = chosen(trace)
    assert said["algorithm"] == "FedRelax(coupling=0.5)"
    assert said["losses"] == "Independent(probability=0.25)"
    assert said["metrics"] == "('consensus_error',)"
    assert said["problem"].startswith("Problem( features=")
    assert said["network"].startswith("Graph(nodes=4")
    assert said["rounds"] == "3"
    assert said["code"] == results.attrs["code"]
    assert "privacy" not in said
    assert "allow_disconnected" not in said


@pytest.mark.slow
def test_a_trace_has_what_changed_and_when(tmp_path):
    runs = [
        fl.run(scenario(jax.random.key(0), coupling, probability=probability), rounds=rounds)
        for coupling, probability, rounds in ((0.5, 0.25, 3), (0.5, None, 3), (2.0, None, 5))
    ]
    for day, run in enumerate(runs, start=1):
        run.attrs["created"] = f"2026-01-0{day}T00:00:00+00:00"
    trace = fl.decisions(*runs[::-1])  # in the order of time, however given
    assert trace["time"].is_monotonic_increasing
    later = trace[trace["time"] > runs[0].attrs["created"]]
    assert later[["choice", "value"]].values.tolist() == [
        ["losses", ""],
        ["algorithm", "FedRelax(coupling=2.0)"],
        ["rounds", "5"],
    ]
    assert "FedRelax" in trace.to_string()
    fl.save(runs[0], tmp_path / "run.nc")
    kept = fl.load(tmp_path / "run.nc")
    assert kept.attrs["decisions"] == runs[0].attrs["decisions"]


@pytest.mark.slow
def test_a_sweep_says_its_grid_and_each_structure_once(tmp_path):
    grid = {"coupling": [0.5, 2.0], "kind": fl.static(["FedRelax", "FedGD"])}
    results = fl.sweep(scenario, grid=grid, seeds=3, rounds=2, store=tmp_path / "kept")
    said = chosen(fl.decisions(results))
    assert said["algorithm"] == "FedRelax(coupling=0.5) | FedGD(coupling=0.5)"
    assert said["grid: coupling"] == "0.5, 2.0"
    assert said["grid: kind"] == "FedRelax, FedGD"
    assert said["seeds"] == "3"
    again = fl.sweep(scenario, grid=grid, seeds=3, rounds=2, store=tmp_path / "kept")
    assert again.attrs["decisions"] == results.attrs["decisions"]


def test_learners_are_shown_as_they_show_themselves():
    linear = pytest.importorskip("sklearn.linear_model")
    algorithm = fl.algorithms.ModelAgnosticFedRelax(
        0.5, test_set=[[1.0, 0.0]], learners=linear.Ridge(alpha=0.25)
    )
    assert "Ridge(alpha=0.25)" in repr(algorithm)  # whose repr is wrapped, but no dataclass's


def test_bad_input():
    with pytest.raises(ValueError, match="got none"):
        fl.decisions()
    results = fl.run(scenario(jax.random.key(0), 0.5), rounds=2)
    with pytest.raises(ValueError, match="keep attributes"):
        fl.decisions(results.drop_attrs())
    with pytest.raises(ValueError, match="what was decided is in the attributes"):
        fl.decisions(3)
