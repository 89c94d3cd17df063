"""The figure on audits: its rows, its claims on broken data, and the guide's table."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot as plt

import fljax as fl
from experiments import records
from experiments.own import figure_audit as own
from experiments.picture import faults, print_style
from fljax._core.prng import as_key
from fljax.audit import tap
from fljax.privacy import CentralGaussian
from fljax.simulation.scan import prepare
from tests.cases import PRIVATE, gap_of
from tests.support.guides import programs, text

STORED = Path(__file__).parents[3] / "figures"
GUIDE = "docs/guides/privacy"


def judged(studies):
    return {claim.name: claim.judge(studies) for claim in own.FIGURE.claims}


def test_every_private_algorithm_has_a_row():
    sound = {type(c.algorithm).label for c in own.cases().values() if c.kind == own.SOUND}
    # Clients of HierFAVG send through the same exit as FedAvg's; the figure has no row of it yet.
    assert sound == {*PRIVATE, "FedAvg"} - {"HierFAVG"}


@pytest.mark.slow
@pytest.mark.thin(3, every=24)
@pytest.mark.parametrize("name", own.cases())
def test_messages_move_by_all_that_the_sensitivity_allows(name):
    """Then a ratio below one is due to the attack or the claim, not to the data."""
    case = own.cases()[name]
    simulation, other = own.simulations(case)
    pair = (simulation, dataclasses.replace(simulation, problem=other))
    ready = tuple(prepare(world, own.ROUNDS.value) for world in pair)

    def keep(worlds, first, second):
        return {"change": jnp.linalg.norm(first - second, axis=1)}

    recorded, *_ = tap.record_statistics(pair, ready, as_key(0), own.ROUNDS.value, keep)
    factor = 2 if name == "factor 2 left out" else 1
    for number, change in enumerate(np.asarray(recorded["change"]), 1):
        problem = ready[0].problem
        network = simulation.network
        if isinstance(case.privacy, CentralGaussian):
            allowed = 2 * float(case.privacy.clip) / own.CLIENTS.value
        else:
            at = (network, jnp.asarray(number, jnp.int32), gap_of(problem))
            allowed = factor * float(simulation.algorithm.sensitivity(problem, *at)[0])
        assert 0.98 * allowed < change[0] <= allowed * (1 + 1e-9)


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("name", ["P-ADMM", "factor 2 left out"])
def test_a_row_reports_the_audit(name):
    result = own.row(name, 4000)
    row = result.isel(case=0)
    assert (float(row["bound"]) > float(row["claimed"])) == (row["kind"] == own.FAULTY)
    assert row["gradient_met"] <= row["gradient_assumed"]
    misses = row["misses"].values
    assert np.all(np.diff(misses) <= 0)
    assert 0 <= misses[-1] < misses[0] <= 1
    with print_style():
        figure = own.plot({"all": with_curves(result)})
    assert all(ax.get_xlabel() and ax.get_ylabel() for ax in figure.axes)
    assert faults(figure) == []
    plt.close(figure)


def with_curves(result):
    """The row under the names whose curves the picture shows."""
    names = ["FL", "zCDP-NFL", "P-ADMM", "half the noise"]
    return result.isel(case=[0] * len(names)).assign_coords(case=names)


def test_claims_detect_wrong_data(stored):
    studies = stored(own.FIGURE)
    data = studies["all"]
    assert judged(studies)["no-bound-above-its-claim"].holds
    leaky = data.assign(bound=data["bound"].where(data["case"] != "PGFL", 1.01 * data["claimed"]))
    assert judged({"all": leaky})["no-bound-above-its-claim"].failed == ["PGFL"]
    weak = data.assign(bound=0.4 * data["bound"], shaped=0.4 * data["shaped"])
    for name, verdict in judged({"all": weak}).items():
        assert verdict.holds == (name in ("no-bound-above-its-claim", "one-run-finds-less")), name


def test_the_note_states_the_smallest_value(stored):
    studies = stored(own.FIGURE)
    data = studies["all"]
    put = data.assign(bound=data["bound"].where(data["case"] != "PGFL", 0.5 * data["claimed"]))
    note = judged({"all": put})["gaussian-claims-are-tight"].note
    fitted = min(e.value for e in own.ratios(studies, "shaped", own.SOUND, True).values())
    assert "is 0.500; the fit" in note
    assert f"finds {fitted:.3f} or more" in note


def test_runs_are_spent_where_tenths_count():
    runs_of = {name: case.runs for name, case in own.cases().items()}
    fewer = {"FL, Laplace", "FL, one run", "half the noise", "factor 2 left out"}
    assert {n for n, runs in runs_of.items() if runs == own.FEWER_RUNS.value} == fewer
    assert {r for n, r in runs_of.items() if n not in fewer} == {own.RUNS.value}


def test_the_guide_s_table_is_that_of_the_stored_figure(stored):
    stored(own.FIGURE)
    table = re.search(r"<!-- audit -->\n(.+?)\n<!-- end audit -->", text(GUIDE), re.S)
    assert table
    assert table[1] == own.markdown(records.read_record(own.FIGURE, STORED))


@pytest.mark.slow
def test_the_guide_s_audit_runs():
    source = programs(GUIDE)[1].code
    code = source.replace("seeds=50_000", "seeds=200")
    assert code != source
    names = {"fl": fl, "jax": jax}
    exec(compile(code, "guide", "exec"), names)
    assert not names["found"].broken
    plt.close("all")
