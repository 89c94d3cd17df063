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
def test_a_run_records_its_decisions():
    results = fl.run(scenario(jax.random.key(0), 0.5, probability=0.25), rounds=3)
    trace = fl.decisions(results)
    assert set(trace["time"]) == {results.attrs["created"]}
    selected = chosen(trace)
    assert selected["algorithm"] == "FedRelax(coupling=0.5)"
    assert selected["losses"] == "Independent(probability=0.25)"
    assert selected["metrics"] == "('consensus_error',)"
    assert selected["problem"].startswith("Problem( features=")
    assert selected["network"].startswith("Graph(nodes=4")
    assert selected["rounds"] == "3"
    assert selected["code"] == results.attrs["code"]
    assert "privacy" not in selected
    assert "allow_disconnected" not in selected


@pytest.mark.slow
def test_a_trace_records_changes_and_their_rounds(tmp_path):
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
    loaded = fl.load(tmp_path / "run.nc")
    assert loaded.attrs["decisions"] == runs[0].attrs["decisions"]


@pytest.mark.slow
def test_a_sweep_records_its_grid_and_each_structure_once(tmp_path):
    grid = {"coupling": [0.5, 2.0], "kind": fl.static(["FedRelax", "FedGD"])}
    results = fl.sweep(scenario, grid=grid, seeds=3, rounds=2, store=tmp_path / "kept")
    selected = chosen(fl.decisions(results))
    assert selected["algorithm"] == "FedRelax(coupling=0.5) | FedGD(coupling=0.5)"
    assert selected["grid: coupling"] == "0.5, 2.0"
    assert selected["grid: kind"] == "FedRelax, FedGD"
    assert selected["seeds"] == "3"
    again = fl.sweep(scenario, grid=grid, seeds=3, rounds=2, store=tmp_path / "kept")
    assert again.attrs["decisions"] == results.attrs["decisions"]


def test_learners_are_shown_by_their_repr():
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
