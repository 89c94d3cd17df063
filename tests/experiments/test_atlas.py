"""The atlas: its scenarios match their descriptions, every algorithm runs or is refused with a
reason, a killed run goes on, and the pages state the results.
"""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import fljax as fl
from experiments.atlas import (
    analysis,
    clock,
    commands,
    communication,
    decisions,
    hierarchy,
    labels,
    pictures,
    report,
    running,
    scenario,
    verdicts,
)
from experiments.atlas.__main__ import main
from experiments.atlas.links import UNEQUAL
from experiments.atlas.methods import Refused, method, methods
from experiments.atlas.scenario import SCENARIOS, Rule, Scenario, algorithm_of
from experiments.errors import UsageError
from fljax._core.storage import sealed
from fljax.algorithms import REGISTRY
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.results.dataset import versions_in_use
from fljax.study import batched_program
from fljax.tuning.search import unwarned

KEY = jax.random.key(0)
ON_A_CLOCK = Rule("all", fl.clock.Synchronous(fl.clock.Devices(seconds_per_step=1.0)), 2)
TINY = running.Effort(2, 1, points=3, extensions=0, refinements=0, methods=2)


def build_method(name, label, **numbers):
    """An algorithm as a scenario makes it, and the simulation."""
    build, space = method(SCENARIOS[name], label)
    algorithm = build(**{key: values[0] for key, values in space.items()} | numbers)
    with unwarned():
        return algorithm, SCENARIOS[name].build(KEY, algorithm)


# Scenarios ---------------------------------------------------------------------------------------


def labels_along(axis):
    return {scenario.axes[axis] for scenario in SCENARIOS.values() if axis in scenario.axes}


def test_the_axes_follow_the_literature():
    assert labels_along("dissimilarity") == {0.0, 0.3, 3.0}
    assert labels_along("condition") == {4.0, 400.0}
    assert labels_along("concentration") == {0.1, 1.0, 100.0}
    assert labels_along("epsilon") == {1.0, 4.0, 16.0}
    assert labels_along("rho") == {0.1, 1.0, 10.0}
    assert labels_along("attackers") == {0.2}
    assert labels_along("graph") == {"ring", "grid", "random", "expander", "directed exponential"}
    assert labels_along("data") == {"MNIST", "ijcnn1", "a stream"}
    assert labels_along("model") == {"softmax regression", "a network of two layers"}
    assert len(labels_along("compression")) == 5
    assert labels_along("link") == {"lossy", "late", "absent"}
    speeds = {"equal speeds", "heavy-tailed speeds", "time of day", "poor links"}
    assert labels_along("clock") == speeds
    assert labels_along("edges") == {"alike", "unlike"}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_scenario_describes_itself_and_its_source(scenario):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9.]+)+|absent|late", scenario.name)
    assert len(scenario.reason) > 40
    assert re.search(r"[A-Z]\w+[^()]* (19|20)\d\d", scenario.reason)  # a paper that has it
    assert scenario.reason.rstrip().endswith(".")
    assert scenario.title != scenario.when
    assert scenario.axes
    assert scenario.target > 0


@pytest.mark.thin(2)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_scenario_admits_or_refuses_every_algorithm(scenario):
    try:
        parts = scenario.parts(KEY)
    except FileNotFoundError:
        pytest.skip("needs a data set")
    kind = {"server": type(None), "servers": Federation, "peers": Graph}[scenario.talks]
    assert isinstance(parts.get("network"), kind)
    admitted, refused = methods(scenario)
    compared = {*map(algorithm_of, admitted)}
    assert compared | refused.keys() == REGISTRY.keys()
    assert not compared & refused.keys()
    if scenario.rules:
        assert admitted.keys() == scenario.rules.keys()
    assert len(admitted) >= 3
    assert all(why.endswith(".") and len(why) > 12 for why in refused.values())
    label, first = next(iter(admitted.items()))
    with unwarned():
        simulation = scenario.build(KEY, first.build(**{k: v[0] for k, v in first.space.items()}))
        fl.run(simulation, rounds=2)
    assert simulation.algorithm.label == algorithm_of(label)
    assert (simulation.clock is None) == (scenario.seconds is None)


@pytest.mark.parametrize(
    ("name", "label", "why"),
    [
        ("squares-well-alike", "EXTRA", "runs on a network of peers, not on one server"),
        ("peers-ring", "FedAvg", "runs on one server, not on a network of peers"),
        ("squares-well-alike", "Ditto", "ends with a model for each client or cluster"),
        ("squares-well-alike", "q-FedAvg", "minimizes a fairness objective"),
        ("squares-well-alike", "ISFedAvg", "draws a part of the clients, and here all take part"),
        ("tenth-alike", "Scaffnew", "does not let the server choose a tenth of the clients"),
        ("unequal-work", "FL", "has no number of local steps of each client"),
        ("late", "Scaffnew", "has no rule for late messages"),
        ("peers-directed", "EXTRA", "needs links in both directions"),
        ("peers-ring", "Choco-SGD", "compresses by a rule that must be given"),
        ("stream-server", "SCAFFOLD", "needs all data at once and cannot learn from a stream"),
        ("bits-sign", "SignSGD", "compresses its messages itself"),
        ("bits-top", "DIANA", r"needs an unbiased compressor, and TopK\(count=4\) has no variance"),
        ("bits-random", "EF21", r"needs a contractive compressor, and RandomK\(count=5\)"),
        ("peers-ring", "zCDP-NFL", "adds the noise of a privacy budget, and here is none"),
        ("mnist-softmax-1", "MOON", "compares the features of a hidden layer"),
        ("clock-heavy", "SCAFFOLD", "is not among the methods that are compared on a clock"),
        ("clock-heavy", "EXTRA", "runs on a network of peers, not on one server"),
        ("few-bits-convex", "SCAFFOLD", "is not among the methods that are compared here"),
        ("few-bits-peers", "EXTRA", "is not among the methods that are compared here"),
        ("edges-alike", "PGFL", "ends with a model for each client or cluster"),
    ],
)
def test_a_refusal_states_its_reason(name, label, why):
    with pytest.raises(Refused, match=f"^{why}"):
        method(SCENARIOS[name], label)


def test_methods_with_a_compressor_get_that_of_the_scenario():
    algorithm, simulation = build_method("bits-top", "EF21")
    assert algorithm.compression.count == 4
    assert simulation.compression is None
    assert build_method("bits-random", "DIANA")[0].compression.count == 5


def test_arguments_of_a_scenario_reach_the_algorithm():
    assert build_method("tenth-alike", "FedAvg")[0].clients_per_round == 5
    assert build_method("tenth-alike", "SignSGD")[0].selection.count == 5
    assert build_method("unequal-work", "SCAFFOLD")[0].local_steps == UNEQUAL
    assert np.mean(UNEQUAL) == pytest.approx(5, abs=0.25)
    assert build_method("clusters-server", "IFCA")[0].clusters == 4
    assert build_method("clusters-peers", "FedSGD, networked")[0].batches.size == 5
    ditto, _ = build_method("clusters-server", "Ditto", step_size=0.25)
    assert ditto.solver.local_steps == 5
    assert float(ditto.solver.size(jnp.array(1))) == 0.25


def test_algorithms_with_their_own_compression_get_the_compressor():
    algorithm, simulation = build_method("peers-bits-top", "Choco-SGD")
    assert algorithm.compression.count == 4
    assert simulation.compression is None
    assert build_method("peers-bits-top", "EXTRA")[1].compression.count == 4


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("attack")])
def test_aggregators_withstand_as_many_attackers_as_there_are(name, recwarn):
    attack = build_method(name, "ATC" if name.endswith("peers") else "FedAvg")[1].attack
    build, _ = method(SCENARIOS[name], "ATC" if name.endswith("peers") else "FedAvg")
    SCENARIOS[name].build(KEY, build(step_size=0.1))
    assert not [warning for warning in recwarn if warning.category is fl.AssumptionWarning]
    assert int(np.sum(attack.attackers)) == 10


def test_compressors_are_compared_at_equal_bits():
    for name, (_, compressor) in commands.links.COMPRESSORS.items():
        bits = 32 * 64 if compressor is None else compressor.bits(64)
        spent = SCENARIOS[f"bits-{name}"].rounds * bits
        assert 20_000 - 2 * bits < spent <= 20_000


def test_clients_differ_by_the_level_of_their_axis():
    spread = {}
    for likeness in ("alike", "mildly", "strongly"):
        problem = SCENARIOS[f"squares-well-{likeness}"].parts(KEY)["problem"]
        pairs = zip(np.asarray(problem.features), np.asarray(problem.targets), strict=True)
        models = np.stack([np.linalg.lstsq(x, y)[0] for x, y in pairs])
        spread[likeness] = float(np.std(models - models.mean(0)))
    assert spread["alike"] < 0.3 < spread["mildly"] < 0.6 < 2.5 < spread["strongly"] < 3.5


def test_labels_are_skewed_by_the_concentration():
    pool = labels.pool(
        np.ones((90, 3)), np.repeat([0, 1, 2], 30), np.ones((4, 3)), np.array([0, 1, 2, 2]), 90
    )
    most = {}
    for concentration in (0.1, 100.0):
        features, drawn = labels.drawn(KEY, pool.features, pool.start, pool.size, concentration)
        assert features.shape == (labels.CLIENTS, labels.SAMPLES, 3)
        shares = [np.bincount(np.asarray(row).astype(int), minlength=3) for row in drawn]
        most[concentration] = np.mean(np.max(shares, axis=1)) / labels.SAMPLES
    assert most[100.0] < 0.5 < 0.7 < most[0.1]


def test_drawn_samples_have_their_labels():
    features = np.repeat([[0.0], [1.0], [2.0]], [20, 3, 7], axis=0)
    order = np.random.default_rng(0).permutation(30)
    shuffled = features[order], features[order, 0].astype(int)
    pool = labels.pool(*shuffled, features[:1], np.array([0]), 30)
    got, label = labels.drawn(KEY, pool.features, pool.start, pool.size, 1.0)
    scale = np.sqrt(np.mean(features**2))
    assert np.allclose(np.asarray(got)[..., 0] * scale, label)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "peers-ring"}, "'peers-ring' is declared already"),
        ({"talks": "stars"}, "talks must be one of server, servers, peers, got 'stars'"),
        ({"chosen": {"clients_per_round": "why"}}, "chosen arguments are not given"),
        ({"record_every": 3}, "record_every=3 must divide rounds=200"),
        ({"seconds": 10.0}, "seconds= and bits= need rules=; give both"),
        ({"bits": 10.0}, "seconds= and bits= need rules=; give both"),
        ({"seconds": 10.0, "bits": 10.0}, "seconds= and bits= both say when runs end; give one"),
        ({"rules": {"ATC": ON_A_CLOCK}}, "seconds= and clocks of rules= go together; give both"),
        ({"costs": scenario.COSTS_ON_A_CLOCK}, "seconds= and costs= with seconds go together"),
    ],
)
def test_an_impossible_scenario_is_refused(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(SCENARIOS["peers-ring"], **{"name": "another-one"} | change)
    assert "another-one" not in SCENARIOS


# Running -----------------------------------------------------------------------------------------


@pytest.fixture
def small_scenario(monkeypatch):
    """A scenario of three clients that is gone after the test."""
    monkeypatch.setattr(scenario, "SCENARIOS", dict(SCENARIOS))

    def parts(key):
        return {"problem": fl.problems.ridge(key, clients=3, samples=8, dim=2)}

    texts = "Three clients, so that a test is quick.", "three clients"
    return Scenario(
        "three-clients", "Three clients", *texts, parts, "normalized_error", 1e-2, 8, {"clients": 3}
    )


def test_calibration_is_refused_without_a_separate_last_layer(small_scenario):
    def of(model):
        def parts(key):
            problem = fl.problems.softmax(key, clients=3, samples=8, dim=2, classes=3)
            network = fl.models.mlp(3, (4,))
            return {"problem": fl.problems.Model.of(problem, network, key) if model else problem}

        return dataclasses.replace(
            small_scenario, name=f"classes-{model}", parts=parts, metric="objective"
        )

    assert "calibration_steps" not in method(of(True), "CCVR").space
    with pytest.raises(Refused, match=r"^calibrates the last layer, and the model has no other"):
        method(of(False), "CCVR")


@pytest.fixture
def outcome():
    """What is stored of an algorithm, whose error is a given number times a seed's own."""

    def of(error, rounds, **more):
        errors = error * np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.02])
        chosen = {"chosen": {"step_size": 0.1}, "interior": {"step_size": True}}
        return {
            "final": running.plain(errors),
            "diverged": [0] * 6,
            "costs": {
                "rounds": chosen | {"until": [rounds] * 6},
                "bits": chosen | {"until": [100 * rounds if rounds > 0 else -1] * 6},
                "gradients": chosen | {"until": [None] * 6},
            },
            **chosen,
            "width": {"step_size": [0.01, 0.1]},
            "tried": 16,
            "seconds": 1.0,
        } | more

    return of


def stored(outcomes, name="peers-ring", refused=None):
    effort = dataclasses.asdict(dataclasses.replace(running.FULL, seeds=6))
    return {
        "scenario": name,
        "effort": effort,
        "versions": ["of then"],
        "refused": refused or {"FedAvg": "runs on one server."},
        "methods": outcomes,
    }


@pytest.mark.slow
def test_a_killed_run_resumes_and_a_finished_one_is_not_computed_again(
    small_scenario, outcome, tmp_path, monkeypatch
):
    evaluated_labels = []

    def evaluated(scenario, methods, *_):
        if len(evaluated_labels) == 1:
            evaluated_labels.append("killed")
            raise KeyboardInterrupt
        evaluated_labels.append(list(methods))
        return {label: outcome(1.0, 4) for label in methods}

    monkeypatch.setattr(running, "evaluated", evaluated)
    monkeypatch.setattr(running, "methods", lambda _: (dict.fromkeys(["CTA", "ATC", "LED"]), {}))
    monkeypatch.setattr(running, "TOGETHER", 2)
    effort = dataclasses.replace(TINY, methods=None)
    store = tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        running.compute(small_scenario, effort, tmp_path, store, say=lambda *_, **__: None)
    assert running.read(small_scenario.name, tmp_path) is None
    result = running.compute(small_scenario, effort, tmp_path, store, say=lambda *_, **__: None)
    assert list(result["methods"]) == ["CTA", "ATC", "LED"]
    assert evaluated_labels == [["CTA", "ATC"], "killed", ["LED"]]
    assert not (store / small_scenario.name).exists()
    assert running.read(small_scenario.name, tmp_path) == result
    assert running.compute(small_scenario, effort, tmp_path, store) is None
    assert len(evaluated_labels) == 3


def test_a_stored_scenario_is_completed_by_later_registered_methods(
    small_scenario, outcome, tmp_path, monkeypatch, capsys
):
    evaluated_labels = []

    def evaluated(scenario, methods, *_):
        evaluated_labels.append(list(methods))
        return {label: outcome(2.0, 4) for label in methods}

    admitted = dict.fromkeys(["ATC", "CTA", "LED"])
    monkeypatch.setattr(running, "evaluated", evaluated)
    monkeypatch.setattr(running, "methods", lambda _: (admitted, {"FedAvg": "other."}))
    monkeypatch.setitem(SCENARIOS, small_scenario.name, small_scenario)
    effort = dataclasses.replace(running.FULL, seeds=6)
    monkeypatch.setattr(commands, "FULL", effort)
    previous = stored({"ATC": outcome(1.0, 4), "gone": outcome(1.0, 4)}, small_scenario.name)
    path = tmp_path / f"{small_scenario.name}.json"
    path.write_text(sealed(previous))
    ask = ["run", small_scenario.name, "--out", str(tmp_path), "--store", str(tmp_path / "store")]
    assert main(ask) == 0
    assert "the stored result lacks CTA, LED" in capsys.readouterr().out
    result = running.read(small_scenario.name, tmp_path)
    assert evaluated_labels == [["CTA", "LED"]]
    assert list(result["methods"]) == ["ATC", "CTA", "LED"]
    assert result["methods"]["ATC"] == previous["methods"]["ATC"]
    assert result["refused"] == {"FedAvg": "other."}
    assert {"of then", versions_in_use()} == {*result["versions"]}
    path.write_text(sealed(result | {"refused": {"FedAvg": "of then."}}))
    assert main(ask) == 0
    assert "finished; delete" in capsys.readouterr().out
    assert len(evaluated_labels) == 1
    assert running.read(small_scenario.name, tmp_path) == result  # why others are refused is of now
    admitted["NIDS"] = None
    monkeypatch.setattr(commands, "FULL", dataclasses.replace(effort, seeds=7))
    assert main(ask) == 2
    assert "lacks NIDS, and was computed with another effort" in capsys.readouterr().err
    assert len(evaluated_labels) == 1

    def absent(_):
        raise FileNotFoundError("no such data")

    monkeypatch.setattr(running, "methods", absent)
    assert main(ask) == 0
    assert "stored, not looked at: no such data" in capsys.readouterr().out
    path.unlink()
    assert main(ask) == 0
    assert "not run: no such data" in capsys.readouterr().out


def test_a_part_is_of_one_effort_and_one_version(small_scenario, outcome, tmp_path, monkeypatch):
    """Parts of a store are recognized by their content if the user names the files."""
    evaluated_labels = []

    def evaluated(scenario, methods, *_):
        evaluated_labels.append(list(methods))
        return {label: outcome(2.0, 4) for label in methods}

    def computed(effort):
        running._computed(small_scenario, dict.fromkeys(["A+", "A-"]), effort, tmp_path, print, {})
        return [evaluated_labels.pop(0) for _ in list(evaluated_labels)]

    monkeypatch.setattr(running, "evaluated", evaluated)
    assert computed(running.QUICK) == [["A+", "A-"]]
    assert computed(running.QUICK) == [["A+"]]  # one name of a file is of the other
    assert computed(running.FULL) == [["A+", "A-"]]
    assert computed(running.FULL) == [["A+"]]
    monkeypatch.setattr(jax, "__version__", "99.0")
    assert computed(running.FULL) == [["A+", "A-"]]
    (path,) = tmp_path.glob("*.json")
    path.write_text(path.read_text().replace("2.0", "3.0"))
    assert computed(running.FULL) == [["A+", "A-"]]


def test_a_scenario_is_computed_by_one_process(small_scenario, tmp_path):
    lock = running.filelock.FileLock(tmp_path / f"{small_scenario.name}.lock")
    with lock, pytest.raises(running.ScenarioInUse):
        running.compute(small_scenario, TINY, tmp_path, tmp_path)


@pytest.mark.slow
def test_a_method_is_tuned_and_run_on_fresh_seeds(small_scenario):
    fedavg = method(small_scenario, "FedAvg")
    methods = {"FedAvg": fedavg, "FedAdam": method(small_scenario, "FedAdam")}
    got = running.evaluated(small_scenario, methods, TINY)["FedAvg"]
    options = {"metric": "normalized_error", "rounds": 8, "seeds": 1, "record_every": 2}
    options |= {"points": 3, "extensions": 0, "refinements": 0}
    again, rounds = (
        fl.tune(small_scenario.build, {"FedAvg": tuple(fedavg)}, **goal, **options)
        for goal in ({}, {"goal": "rounds", "target": small_scenario.target})
    )

    def until(methods):
        runs = fl.sweep(small_scenario.build, grid={"algorithm": methods}, rounds=8, seeds=2)
        errors = runs.normalized_error.values[0, :, 1::2]
        first = 2 * (np.argmax(errors <= small_scenario.target, axis=1) + 1)
        return np.where(errors.min(1) <= small_scenario.target, first, -1).tolist()

    study = fl.sweep(small_scenario.build, grid={"algorithm": again.methods}, rounds=8, seeds=2)
    assert got["chosen"]["step_size"] == pytest.approx(
        again.chosen["FedAvg"]["step_size"], rel=1e-4
    )
    assert np.allclose(got["final"], study.normalized_error.values[0, :, -1], rtol=1e-4)
    assert got["tried"] == 3
    assert got["costs"]["rounds"]["until"] == until(rounds.methods)
    assert got["costs"]["bits"]["chosen"] == got["costs"]["rounds"]["chosen"]
    chosen = rounds.chosen["FedAvg"]["step_size"]
    assert got["costs"]["rounds"]["chosen"]["step_size"] == pytest.approx(chosen, rel=1e-4)


@pytest.mark.slow
def test_an_algorithm_that_always_diverges_is_kept_with_the_reason(small_scenario):
    build, space = method(small_scenario, "FedAvg")
    fast = running.Method(build, {"step_size": (1e30, 1e35)})
    slow = running.Method(build, space)
    got = running.evaluated(small_scenario, {"fast": fast, "slow": slow}, TINY)
    assert "every candidate had runs that diverged" in got["fast"]["lost"]
    assert got["slow"]["tried"] == 3


@pytest.mark.slow
def test_tuning_and_evaluation_of_a_method_are_one_program(small_scenario, monkeypatch):
    compiled = []
    compile_ = batched_program._compile

    def counted(*arguments):
        compiled.append(arguments)
        return compile_(*arguments)

    monkeypatch.setattr(batched_program, "_compile", counted)
    effort = dataclasses.replace(TINY, seeds=3, refinements=1)
    methods = {label: method(small_scenario, label) for label in ("FedAvg", "FedAdam")}
    got = running.evaluated(small_scenario, methods, effort)
    assert len(compiled) == len(methods)
    assert [len(result["final"]) for result in got.values()] == [3, 3]
    # The best of nine has a number at an edge, and is not extended or refined.
    assert [result["tried"] for result in got.values()] == [6, 9]


def test_a_large_model_s_evaluation_is_a_separate_program_with_equal_results(
    small_scenario, monkeypatch
):
    methods = {label: method(small_scenario, label) for label in ("FedAvg", "FedAdam")}
    before = running.evaluated(small_scenario, methods, TINY)
    runs = []
    sweep = fl.sweep

    def counted(*arguments, **more):
        result = sweep(*arguments, **more)
        runs.append(result.sizes["algorithm"] * result.sizes["seed"])
        return result

    monkeypatch.setattr(fl, "sweep", counted)
    monkeypatch.setattr(running, "LARGE", 1)
    after = running.evaluated(small_scenario, methods, TINY)
    assert runs == 2 * [len(methods) * TINY.seeds]  # for the last value, and for costs
    for label in methods:
        np.testing.assert_allclose(after[label]["final"], before[label]["final"], rtol=1e-4)
        assert after[label]["chosen"] == before[label]["chosen"]


def test_numbers_survive_being_stored():
    assert running.plain([1.234567, np.inf, np.nan]) == [1.2346, -1, None]
    back = running.floats([1.2346, -1, None])
    assert back[:2].tolist() == [1.2346, np.inf]
    assert np.isnan(back[2])


# Pages -------------------------------------------------------------------------------------------


def test_ranks_costs_and_slack_follow_from_the_results(outcome):
    results = stored({"EXTRA": outcome(1e-3, 20), "CTA": outcome(1.0, 4), "ATC": outcome(1.0, 8)})
    rows = analysis.table(SCENARIOS["peers-ring"], results)
    assert [row.label for row in rows] == ["EXTRA", "CTA", "ATC"]
    assert [row.rank for row in rows] == [(1, 1, 1), (2, 2, 3), (2, 2, 3)]
    assert rows[0].value[0] == pytest.approx(10 * np.log10(1e-3 * 1.00333), abs=1e-2)
    assert [row.label for row in analysis.best(rows)] == ["EXTRA"]
    assert analysis.least(rows, "rounds") == (["CTA"], 4.0)
    assert analysis.least(rows, "gradients") == ([], np.inf)
    assert rows[0].slack == pytest.approx(1.0)


def test_errors_below_single_precision_are_equal(outcome):
    below = 1e-6 * SCENARIOS["peers-ring"].target
    results = stored({"EXTRA": outcome(below, 20), "NIDS": outcome(0.1 * below, 10)})
    rows = analysis.table(SCENARIOS["peers-ring"], results)
    assert [(row.label, row.rank) for row in rows] == [("NIDS", (1, 1, 2)), ("EXTRA", (1, 1, 2))]


def test_runs_that_never_arrive_and_methods_that_diverge_are_in_the_table(outcome):
    never = outcome(2.0, 4)
    never["costs"]["rounds"]["until"] = [4, 4, -1, -1, -1, -1]
    gone = outcome(1.0, 4, diverged=[1] * 6)
    results = stored(
        {
            "EXTRA": outcome(1.0, 4),
            "CTA": never,
            "ATC": {"lost": "every candidate", "seconds": 1.0},
            "NIDS": gone,
        }
    )
    rows = {row.label: row for row in analysis.table(SCENARIOS["peers-ring"], results)}
    assert rows["CTA"].cost["rounds"] == np.inf
    assert rows["ATC"].remark == "diverged with every candidate"
    assert rows["NIDS"].remark == "all runs diverged"
    cells = report.cells(SCENARIOS["peers-ring"], rows["ATC"])
    assert len(cells) == len(report.head(scenario.COSTS))


def test_a_run_that_exploded_has_diverged_and_its_algorithm_is_not_the_best(outcome):
    """One run of 10^27 makes an interval in which the best lies, too."""
    exploded = outcome(0.9, 4)
    exploded["final"][2] = 1e27
    results = stored({"EXTRA": outcome(1.0, 4), "Consensus": exploded})
    rows = {row.label: row for row in analysis.table(SCENARIOS["peers-ring"], results)}
    assert rows["Consensus"].diverged == 1
    assert rows["Consensus"].value[1] < rows["Consensus"].value[2] < 1  # of the others, dB
    assert [row.label for row in analysis.best([*rows.values()])] == ["EXTRA"]
    other = outcome(1.5, 4)
    other["final"][1] = 1e27
    rows = analysis.table(SCENARIOS["peers-ring"], stored({"CTA": other, "Consensus": exploded}))
    assert [row.label for row in analysis.best(rows)] == ["Consensus"]  # where all have such runs


def test_profiles_count_refusals_as_unsolved(outcome):
    results = {
        "peers-ring": stored({"EXTRA": outcome(1.0, 20), "CTA": outcome(1.0, 10)}),
        "peers-late": stored({"CTA": outcome(1.0, 10)}, "peers-late"),
    }
    ran = decisions.read_all(results, SCENARIOS)
    shares = fl.statistics.profile(analysis.costs(ran, "rounds"))
    assert analysis.within(shares, "CTA", 1) == 1.0
    assert analysis.within(shares, "EXTRA", 1) == 0.0
    assert analysis.within(shares, "EXTRA", 2) == analysis.within(shares, "EXTRA", 10) == 0.5
    scores = analysis.scores(shares)
    assert float(scores.sel(algorithm="CTA")) == pytest.approx(1.0)
    assert float(scores.sel(algorithm="EXTRA")) == pytest.approx(0.5 * np.log(5) / np.log(10))


def test_the_pages_match_the_results(outcome, tmp_path):
    refused = {"FedAvg": "runs on one server.", "FedSGD, networked": "runs on one server."}
    outcomes = {"EXTRA": outcome(1e-3, 20), "CTA": outcome(1.0, 4)}
    (tmp_path / "peers-ring.json").write_text(sealed(stored(outcomes, refused=refused)))
    assert main(["report", "--out", str(tmp_path)]) == 0
    front = (tmp_path / "README.md").read_text()
    assert (
        "| clients are strongly unlike (1) | **EXTRA**: among the best in 1 of 1, 30.0 dB" in front
    )
    assert (
        "| **CTA**: EXTRA needs 5 times as many | **CTA**: EXTRA needs 5 times as many |  |"
        in front
    )
    assert (
        "| [Peers on a ring](peers-ring.md) | EXTRA (-30.0 dB) |  | CTA (4) | CTA (400) |" in front
    )
    assert f"1 of {len(SCENARIOS)} scenarios were run" in front
    assert "- `peers-grid`: Peers on a grid" in front
    assert "- `peers-ring`" not in front
    assert "- 1 scenarios: 5 seeds of tuning, 8 candidates for each number" in front
    assert "6 fresh seeds." in front
    quick = {"effort": dataclasses.asdict(running.QUICK), "methods": {}}
    assert "at most 2 algorithms" in report.efforts([decisions.Page(None, quick, [])])[0]
    page = (tmp_path / "peers-ring.md").read_text()
    assert "| 1 (1 to 1) | EXTRA | -30.0 dB (" in page
    assert "- FedAvg, 'FedSGD, networked': runs on one server." in page
    assert not list(tmp_path.glob("*.png"))  # a profile of one scenario is its table


def test_check_finds_pages_that_are_not_of_the_results(outcome, tmp_path, capsys):
    result = stored({"EXTRA": outcome(1e-3, 20), "CTA": outcome(1.0, 4)}, refused={})
    (tmp_path / "peers-ring.json").write_text(sealed(result))
    assert main(["check", "--out", str(tmp_path)]) == 1
    assert "DISAGREES: peers-ring.md: missing" in capsys.readouterr().out
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert main(["check", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "1 scenarios, 2 pages" in printed
    assert "not run: peers-grid" in printed
    page = tmp_path / "peers-ring.md"
    page.write_text(page.read_text().replace("EXTRA", "EXTRAS"))
    assert main(["check", "--out", str(tmp_path)]) == 1
    assert "DISAGREES: peers-ring.md: says something else" in capsys.readouterr().out


def test_recomputing_finds_numbers_that_are_not_of_the_code(
    small_scenario, outcome, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(SCENARIOS, small_scenario.name, small_scenario)
    numbers = method(small_scenario, "FedAvg")
    stored_numbers = outcome(1.0, 4)
    runs = fl.sweep(
        small_scenario.build, grid={"algorithm": {"FedAvg": numbers.build(0.1)}}, seeds=6, rounds=8
    )
    final = runs.normalized_error.values[0, :, -1]
    stored_numbers["final"] = running.plain(final)
    always = {"lost": "every candidate", "seconds": 1.0}
    path = tmp_path / f"{small_scenario.name}.json"

    def recompute(final, *more):
        outcomes = {"FedAvg": stored_numbers | {"final": final}, "DANE": always}
        path.write_text(sealed(stored(outcomes, small_scenario.name)))
        return main(["check", *more, "--recompute", "--out", str(tmp_path)])

    assert recompute(stored_numbers["final"], "three-clients", "--seeds", "2") == 0
    answer = capsys.readouterr().out
    assert "three-clients: FedAvg: 2 seeds" in answer
    assert "stored and computed agree" in answer
    assert recompute([1 + value for value in stored_numbers["final"]], "--turn", "5") == 1
    assert "DIFFERS: three-clients, FedAvg: of means over seeds" in capsys.readouterr().out
    assert recompute(stored_numbers["final"], "peers-ring") == 2
    assert "no results of peers-ring" in capsys.readouterr().err
    monkeypatch.setattr(commands, "methods", lambda _: ({}, {}))
    assert recompute(stored_numbers["final"]) == 0
    assert "not admitted any more: FedAvg" in capsys.readouterr().out


@pytest.mark.slow
def test_the_stored_pages_are_of_the_stored_results(capsys):
    folder = Path(__file__).parents[2] / "figures" / "atlas"
    if not folder.is_dir():
        pytest.skip("the stored atlas is not in this copy")
    assert main(["check", "--out", str(folder)]) == 0, capsys.readouterr().out


def test_every_scenario_has_its_place_in_the_recommendations():
    """Each is of a kind, and something goes wrong in it or nothing does."""
    for trouble, applies in decisions.TROUBLES.items():
        assert any(map(applies, SCENARIOS.values())), trouble
    for candidate in SCENARIOS.values():
        assert decisions.kind_of(candidate) in decisions.WHO
        count = sum(applies(candidate) for applies in decisions.TROUBLES.values())
        badly = decisions.TROUBLES["bad conditioning"](candidate)
        assert count == 1 + badly, candidate.name


def test_equal_runs_are_one_entry_with_all_names(outcome):
    """The name with the fewest numbers stands for all; ranks count it once."""
    more = outcome(1.0, 8) | {"chosen": {"step_size": 0.1, "momentum": 0.0}}
    last_digit = outcome(1.0, 8)
    last_digit["final"][0] *= 1 + 1e-6
    results = stored(
        {"MIMELite": more, "FedAvg": outcome(1.0, 8), "FL": last_digit, "DANE": outcome(1.0, 4)}
    )
    rows = {row.label: row for row in analysis.table(SCENARIOS["squares-well-alike"], results)}
    assert rows.keys() == {"FedAvg", "DANE"}
    assert rows["FedAvg"].equals == ("MIMELite", "FL")
    assert rows["DANE"].rank == (1, 1, 2)
    cells = report.cells(SCENARIOS["squares-well-alike"], rows["FedAvg"])
    assert cells[1] == "FedAvg = MIMELite = FL"
    (page,) = decisions.read_all({"squares-well-alike": results}, SCENARIOS)
    assert report.newer(page).count("FL") == 0


def older(method):
    """What was stored before each question was tuned for itself."""
    until = {cost: numbers["until"] for cost, numbers in method.pop("costs").items()}
    return method | {"until": until}


def test_costs_of_an_older_result_are_left_out(outcome):
    results = {
        "squares-well-alike": stored(
            {"FedAvg": older(outcome(1.0, 4)), "DANE": older(outcome(2.0, 2))}
        ),
        "squares-badly-alike": stored({"FedAvg": outcome(2.0, 9), "DANE": outcome(1.0, 3)}),
        "mnist-softmax-1": stored({"FedAvg": older(outcome(0.1, 4))}),
    }
    pages = decisions.read_all(results, SCENARIOS)
    for row in pages[0].rows:
        assert np.isnan(row.cost["rounds"])
        assert report.cells(pages[0].scenario, row)[3:6] == ["", "", ""]
    assert report.UNTUNED in "\n".join(report.about(pages[0]))
    assert report.TEST_SET not in "\n".join(report.about(pages[0]))
    assert report.TEST_SET in "\n".join(report.about(pages[2]))
    assert report.UNTUNED not in "\n".join(report.about(pages[1]))
    text = "\n".join(report.method(pages))
    assert "2 of these scenarios have results from before" in text
    assert "in 1 of them they were chosen on the test set" in text
    advice = decisions.advice(pages[:2], "rounds")
    margin = "of 2 scenarios 1 were tuned for it, FedAvg needs 3 times as many"
    assert advice == ("DANE", margin)
    assert decisions.advice(pages[:1], "rounds") is None
    assert decisions.advice(pages[:2], "final") == (
        "FedAvg",
        "among the best in 1 of 2, level with the best other in dB, next: DANE (1)",
    )


def test_an_older_result_is_computed_again(small_scenario, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "methods", lambda _: ({"ATC": None}, {}))
    monkeypatch.setattr(running, "evaluated", lambda *_: {"ATC": outcome(2.0, 4)})
    previous = stored({"ATC": older(outcome(1.0, 4))}, small_scenario.name)
    path = tmp_path / f"{small_scenario.name}.json"
    path.write_text(sealed(previous))
    messages = []
    result = running.compute(
        small_scenario, TINY, tmp_path, tmp_path / "s", lambda t, **_: messages.append(t)
    )
    assert "was not tuned for each question" in messages[0]
    assert result["methods"] == {"ATC": outcome(2.0, 4)}
    assert running.read(small_scenario.name, tmp_path) == result


def test_advice_on_costs_asks_for_arrival_first(outcome):
    """Who reaches the most targets at the least multiple wins; the margin is the next one's."""
    never = outcome(1.0, -1)
    results = {
        "squares-well-alike": stored(
            {"FedAvg": outcome(1.0, 8), "DANE": outcome(1.1, 2), "MIME": outcome(1.2, 4)}
        ),
        "squares-badly-alike": stored(
            {"FedAvg": outcome(1.0, 8), "DANE": never, "MIME": outcome(1.2, 16)}
        ),
    }
    pages = decisions.read_all(results, SCENARIOS)
    # FedAvg: 4 and 1 times the least, MIME: 2 and 2 times; both 2 by the geometric mean.
    assert decisions.advice(pages, "rounds") == ("FedAvg", "MIME needs as many")
    assert decisions.advice(pages[:1], "rounds") == ("DANE", "MIME needs 2 times as many")
    results["squares-badly-alike"]["methods"]["MIME"] = never
    pages = decisions.read_all(results, SCENARIOS)
    assert decisions.advice(pages, "rounds") == ("FedAvg", "no other arrives as often")
    results["squares-well-alike"]["methods"]["FedAvg"] = never
    pages = decisions.read_all(results, SCENARIOS)
    chosen = decisions.advice(pages, "rounds")
    assert chosen.margin.startswith("arrives in 1 of 2, ")


def test_the_front_has_those_that_no_other_beats():
    points = {"a": (1.0, 0.5), "b": (2.0, 0.1), "c": (2.0, 0.5), "d": (4.0, 0.1), "e": (1.0, 0.6)}
    assert pictures.unbeaten(points) == ["a", "b"]


def test_places_are_means_over_scenarios(outcome, tmp_path):
    results = {
        name: stored(
            {"FedAvg": outcome(1.0, rounds), "DANE": outcome(2.0, 2), "MIME": outcome(3.0, -1)},
            name,
        )
        for name, rounds in (("squares-well-alike", 4), ("squares-badly-alike", 16))
    }
    pages = decisions.read_all(results, SCENARIOS)
    assert pictures.places(pages) == {
        "FedAvg": (pytest.approx(4.0), 0.0),
        "DANE": (pytest.approx(1.0), 0.5),
    }
    assert pictures.draw(pages, tmp_path) == {"server": "server.png"}
    assert (tmp_path / "server.png").stat().st_size > 10_000
    assert "![Profiles, and rounds against the last value](server.png)" in report.front(
        pages, results, {"server": "server.png"}
    )


def judged(outcomes, label, name="peers-ring", **more):
    """The sentences about an algorithm in one scenario."""
    results = {name: stored(outcomes, name, **more)}
    return verdicts.sentences(decisions.read_all(results, SCENARIOS), label)


def test_verdicts_follow_from_the_stored_numbers(outcome):
    take = (
        "Take it with peers, one model, for *clients are strongly unlike* (among the best in 1 of "
        "1, recommended for the last value and if trials for tuning are scarce)."
    )
    leave = (
        "Take another one with peers, one model, for *clients are strongly unlike* (30.0 dB behind "
        "the best, take {})."
    )
    nearest = (
        "It was not among the best in its one scenario; it came nearest in *Peers on a ring*, "
        "place 2 of 2."
    )
    never = "In no group of scenarios was it always beaten."
    outcomes = {"EXTRA": outcome(1e-3, -1), "CTA": outcome(1.0, -1)}
    assert judged(outcomes, "EXTRA") == [take, never]
    assert judged(outcomes, "CTA") == [nearest, leave.format("EXTRA")]
    # Two stored numbers exchanged: so are the sentences.
    swapped = {"EXTRA": outcome(1.0, -1), "CTA": outcome(1e-3, -1)}
    assert judged(swapped, "CTA") == [take, never]
    assert judged(swapped, "EXTRA") == [nearest, leave.format("CTA")]
    # The distance is that of the stored numbers.
    closer = {"EXTRA": outcome(1e-3, -1), "CTA": outcome(1e-2, -1)}
    assert "(10.0 dB behind the best" in judged(closer, "CTA")[1]


def test_a_verdict_names_what_is_scarce(outcome):
    outcomes = {"EXTRA": outcome(1e-3, 40), "CTA": outcome(1.0, 4)}
    assert judged(outcomes, "CTA")[0] == (
        "Take it with peers, one model, for *clients are strongly unlike* (recommended if rounds "
        "or bits are scarce)."
    )


def test_a_verdict_says_that_an_algorithm_diverged_or_did_not_run(outcome):
    gone = {"EXTRA": outcome(1e-3, 4), "CTA": outcome(1.0, 4, diverged=[1] * 6)}
    assert "(diverged in 1 of 1, take EXTRA)" in judged(gone, "CTA")[1]
    grown = {"EXTRA": outcome(1e-3, 4), "CTA": outcome(1e12, -1)}
    assert "(its error grew without bound, take EXTRA)" in judged(grown, "CTA")[1]
    refused = {"FedOpt": "is a frame.", "FedAvg": "runs on one server."}
    for label, why in (("FedOpt", ": it is a frame"), ("FedAvg", "")):
        text = judged({"EXTRA": outcome(1e-3, 4)}, label, refused=refused)
        assert text == [f"No scenario of the atlas runs it{why}."]


def test_a_private_variant_is_judged_under_a_budget_alone(outcome):
    outcomes = {"P-ADMM": outcome(1e-3, 4), "CTA": outcome(1.0, 4)}
    assert judged(outcomes, "P-ADMM") == ["No scenario of the atlas runs it."]
    private = judged(outcomes, "P-ADMM", name="private-peers-1")
    assert "for *a privacy budget* (among the best in 1 of 1" in private[0]


def test_the_picture_of_an_algorithm_shows_its_scenarios(outcome):
    names = ("peers-ring", "peers-mildly", "peers-lossy")
    outcomes = {"EXTRA": outcome(1e-3, 40), "CTA": outcome(1.0, 4)}
    results = {name: stored(outcomes, name) for name in names}
    pages = decisions.read_all(results, SCENARIOS)
    picture = Figure()
    text = pictures.draw_algorithm(picture, pages, "CTA")
    assert text.startswith("Left: last values of all algorithms in the scenario Mildly unlike")
    assert "places of CTA in the 3 scenarios" in text
    left, right = picture.axes
    assert left.get_legend().get_texts()[0].get_text() == "CTA"
    assert len(right.get_yticks()) == 3
    best, not_best = (line.get_xdata() for line in right.lines[:2])
    assert (len(best), [*not_best]) == (0, [1.0, 1.0, 1.0])


def test_numbers_are_chosen_on_a_validation_set():
    """Runs for tuning have other held-out samples than runs for evaluation."""
    pool = labels.pool(
        np.arange(9.0)[:, None],
        np.array([0, 1] * 4 + [1]),
        np.full((2, 1), 50.0),
        np.zeros(2, int),
        6,
    )
    scale = np.sqrt(np.mean(np.arange(6.0) ** 2))
    np.testing.assert_allclose(pool.validation_features[:, 0] * scale, [6, 7, 8], rtol=1e-6)
    assert sorted(np.round(pool.features[:, 0] * scale).tolist()) == [0, 1, 2, 3, 4, 5]
    for candidate in SCENARIOS.values():
        assert (candidate.tuning_parts is not None) == ("concentration" in candidate.axes)


def test_tuning_builds_the_parts_for_tuning(small_scenario, monkeypatch):
    tested = dataclasses.replace(
        small_scenario,
        name="validated",
        tuning_parts=lambda key: {"problem": fl.problems.ridge(key, clients=4, samples=8, dim=2)},
    )
    algorithm = fl.algorithms.FedAvg(0.1)
    assert tested.build(KEY, algorithm).problem.clients == 3
    assert tested.build_for_tuning(KEY, algorithm).problem.clients == 4
    assert small_scenario.build_for_tuning(KEY, algorithm).problem.clients == 3
    calls = []
    monkeypatch.setattr(fl, "tune", lambda build, *_, **options: calls.append((build, options)))
    running._tuned(tested, {"FedAvg": (None, {})}, TINY, "final")
    running._tuned(tested, {"FedAvg": (None, {})}, TINY, "rounds")
    assert all(build == tested.build_for_tuning for build, _ in calls)
    assert [options["target"] for _, options in calls] == [None, tested.target]


def test_a_round_costs_the_same_for_all_candidates_but_of_communication():
    """So that the fewest rounds are the fewest bits: those tuned for bits are the others."""
    equal_data = SCENARIOS["squares-well-alike"]
    admitted = {label: method(equal_data, label) for label in ("FedAvg", "Scaffnew")}
    assert running._questions(equal_data, admitted) == {
        "final": ["FedAvg", "Scaffnew"],
        "rounds": ["FedAvg", "Scaffnew"],
        "bits": ["Scaffnew"],
    }
    assert "bits" not in running._questions(equal_data, {"FedAvg": admitted["FedAvg"]})


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "name", ["squares-well-alike", "peers-ring", "clusters-server", "peers-bits-top"]
)
def test_bits_do_not_depend_on_numbers_that_are_not_tuned_for_bits(name):
    for label, (build, space) in methods(SCENARIOS[name])[0].items():
        if "probability" in space:
            continue
        grid = {
            end: build(**{number: values[at] for number, values in space.items()})
            for at, end in enumerate(("least", "greatest"))
        }
        with unwarned():
            bits = fl.sweep(SCENARIOS[name].build, grid={"algorithm": grid}, rounds=4).bits
        least, greatest = bits.values.reshape(2, -1)
        np.testing.assert_array_equal(least, greatest, err_msg=label)


@pytest.mark.slow
def test_a_quick_run_end_to_end(tmp_path, capsys, monkeypatch):
    out = ["--out", str(tmp_path), "--store", str(tmp_path / "store")]
    assert main(["run", "private-peers-1", "--quick", *out]) == 0
    assert main(["run", "private-peers-1", "--quick", *out]) == 0
    assert "finished; delete" in capsys.readouterr().out
    result = running.read("private-peers-1", tmp_path)
    assert len(result["methods"]) == running.QUICK.methods
    assert main(["report", "--out", str(tmp_path)]) == 0


# On a clock --------------------------------------------------------------------------------------


@pytest.fixture
def timed_scenario(small_scenario):
    """Three clients, and the last is slow, with rounds in common and with arrivals."""
    devices = fl.clock.Devices(seconds_per_step=[0.5, 0.5, 2.0])
    return dataclasses.replace(
        small_scenario,
        name="three-timed-clients",
        given={"local_steps": 2},
        seconds=8.0,
        costs=scenario.COSTS_ON_A_CLOCK,
        rules={
            "FedAvg (all)": Rule("all", fl.clock.Synchronous(devices), 3),
            "FedAvg (arrivals)": Rule("alone", fl.clock.Asynchronous(devices), 24, 2),
            "FedAsync": Rule("alone", fl.clock.Asynchronous(devices), 24, 2),
        },
    )


def test_a_clock_s_methods_are_an_algorithm_and_a_rule(timed_scenario):
    admitted, refused = methods(timed_scenario)
    assert list(admitted) == ["FedAsync", "FedAvg (all)", "FedAvg (arrivals)"]
    assert not {"FedAvg", "FedAsync"} & refused.keys()
    assert "compared on a clock" in refused["FedProx"]
    timed = admitted["FedAvg (arrivals)"].build(step_size=0.1)
    simulation = timed_scenario.build(KEY, timed)
    assert simulation.clock.asynchronous
    assert simulation.algorithm.local_steps == 2
    assert not timed_scenario.build(
        KEY, admitted["FedAvg (all)"].build(step_size=0.1)
    ).clock.asynchronous
    assert running.together(timed_scenario, [*admitted]) == [
        ["FedAsync", "FedAvg (arrivals)"],
        ["FedAvg (all)"],
    ]
    assert running._questions(timed_scenario, admitted) == {
        "final": [*admitted],
        "seconds": [*admitted],
    }


def test_last_values_are_those_when_the_seconds_have_passed(timed_scenario):
    """The slow client's rounds take 4 seconds, the others' one."""
    admitted, _ = methods(timed_scenario)
    chosen = {"chosen": {"step_size": 0.1, "server_step_size": 0.5}}
    result = {"methods": {"FedAsync": chosen}}
    few = {"FedAsync": admitted["FedAsync"]}
    (value,) = running.last_values(timed_scenario, few, result, 1)["FedAsync"]
    algorithm = few["FedAsync"].build(**chosen["chosen"])
    runs = fl.sweep(timed_scenario.build, grid={"algorithm": {"a": algorithm}}, rounds=24, seeds=1)
    seconds = runs.seconds.values[0, 0]
    # Two fast clients arrive in each second, and the slow one in each fourth.
    assert seconds[[0, 1, 7, 8, 17]].tolist() == [1, 1, 4, 4, 8]
    assert value == pytest.approx(runs.normalized_error.values[0, 0, 17], rel=1e-6)


@pytest.mark.slow
def test_on_a_clock_seconds_are_tuned_and_counted(timed_scenario):
    label = "FedAvg (arrivals)"
    numbers = method(timed_scenario, label)
    got = running.evaluated(timed_scenario, {label: numbers}, TINY)[label]
    assert [*got["costs"]] == ["seconds", "bits", "gradients"]
    options = {"metric": "normalized_error", "rounds": 24, "seeds": 1, "record_every": 2}
    options |= {"points": 3, "extensions": 0, "refinements": 0}
    tuned = fl.tune(
        timed_scenario.build,
        {"one": tuple(numbers)},
        goal="seconds",
        target=timed_scenario.target,
        **options,
    )
    chosen = tuned.chosen["one"]["step_size"]
    assert got["costs"]["seconds"]["chosen"]["step_size"] == pytest.approx(chosen, rel=1e-4)
    assert got["costs"]["bits"]["chosen"] == got["costs"]["seconds"]["chosen"]
    runs = fl.sweep(timed_scenario.build, grid={"algorithm": tuned.methods}, rounds=24, seeds=2)
    errors, seconds = (runs[name].values[0, :, 1::2] for name in ("normalized_error", "seconds"))
    arrived = errors <= timed_scenario.target
    first = np.take_along_axis(seconds, np.argmax(arrived, axis=1)[:, None], axis=1)[:, 0]
    expected = np.where(arrived.any(axis=1), first, -1)
    np.testing.assert_allclose(got["costs"]["seconds"]["until"], expected, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if SCENARIOS[name].seconds])
def test_methods_on_a_clock_have_the_same_devices_and_equally_many_at_work(name):
    rules = SCENARIOS[name].rules
    devices = {id(rule.clock.devices) for rule in rules.values()}
    assert len(devices) == 1
    for rule in rules.values():
        assert rule.rounds % rule.record_every == 0
        at_work = getattr(rule.clock, "concurrency", None) or getattr(rule.clock, "count", None)
        assert at_work in (None, clock.WORKING)
        invited = rule.given.get("selector")
        assert invited is None or invited.count in (clock.WORKING, clock.INVITED)


def test_slow_clients_are_scattered_quantiles():
    """So that speeds have nothing to do with the hours in which clients are available."""
    speeds = clock.quantiles(clock.SLOW)
    ratio = clock.quantiles(clock.HEAVY).max() / np.median(clock.quantiles(clock.HEAVY))
    assert 9 < ratio < 11
    assert len(np.unique(speeds)) == len(speeds) == 50
    assert abs(np.corrcoef(np.log(speeds), clock.EVENING[:, 0])[0, 1]) < 0.15


def on_a_clock(outcome):
    """Two methods on a clock, and their stored numbers."""

    def of(error, seconds):
        method = outcome(error, seconds)
        method["costs"]["seconds"] = method["costs"].pop("rounds")
        return method

    outcomes = {"FedAvg (tiers)": of(1e-3, 40), "FedBuff": of(1.0, 4), "FedAvg (all)": of(2.0, -1)}
    outcomes["FedAvg (tiers)"]["costs"]["bits"]["until"] = [800] * 6  # twice as many, not 10 times
    return stored(outcomes, "clock-heavy", refused={"EXTRA": "runs on a network of peers."})


def test_seconds_are_where_a_clock_is(outcome):
    results = {
        "clock-heavy": on_a_clock(outcome),
        "squares-well-alike": stored({"FedAvg": outcome(1.0, 8), "DANE": outcome(2.0, 2)}),
    }
    pages = decisions.read_all(results, SCENARIOS)
    front = report.front(pages, results, {})
    of_clock = front[front.index("### One server, on a clock") : front.index("## Scenarios")]
    of_rounds = front[front.index("### One server, one model") : front.index("### One server, on")]
    assert "| scarce: seconds | scarce: bits | scarce: gradients |" in of_clock
    assert "| a few clients are very slow (1) | **FedAvg (tiers)**: among the best" in of_clock
    assert "| **FedBuff**: FedAvg (tiers) needs 10 times as many |" in of_clock
    assert "scarce: rounds" not in of_clock
    assert "seconds" not in of_rounds
    assert "| fewest rounds | fewest bits | fewest gradients |" in front
    assert "| fewest seconds | fewest bits | fewest gradients |" in front
    untimed, timed = (report.scenario_page(page) for page in pages)
    assert "seconds" not in untimed
    assert "| last value | seconds | bits | gradients | tuned |" in timed
    assert "after 400 seconds. Seconds, bits and sample gradients" in timed
    assert "- FedAvg (tiers): a round has the available clients of one of 5 tiers" in timed
    row = next(line for line in timed.splitlines() if "| FedBuff |" in line)
    assert row.split(" | ")[3:6] == ["4", "400", ""]
    assert "FedAvg" not in report.newer(pages[1])
    assert "EXTRA" not in report.newer(pages[1])


def test_a_verdict_names_the_rule(outcome):
    """An algorithm is judged by its best rule."""
    pages = decisions.read_all({"clock-heavy": on_a_clock(outcome)}, SCENARIOS)
    take, never = verdicts.sentences(pages, "FedAvg")
    assert take == (
        "Take it with one server, on a clock, for *a few clients are very slow* (among the best in "
        "1 of 1, recommended for the last value and if trials for tuning are scarce, as FedAvg "
        "(tiers))."
    )
    assert never == "In no group of scenarios was it always beaten."
    assert "recommended if seconds or bits are scarce" in verdicts.sentences(pages, "FedBuff")[0]
    assert verdicts.standard(pages, "FedAvg").scenario.name == "clock-heavy"


def test_the_picture_of_a_clock_is_of_seconds(outcome, tmp_path):
    results = {
        name: {**on_a_clock(outcome), "scenario": name} for name in ("clock-heavy", "clock-links")
    }
    pages = decisions.read_all(results, SCENARIOS)
    assert pictures.places(pages)["FedAvg (tiers)"] == (pytest.approx(10.0), 0.0)
    assert pictures.draw(pages, tmp_path) == {"timed server": "timed-server.png"}
    scores = report.scores(pages, {"timed server": "timed-server.png"})["timed server"]
    assert scores[0][0] == "FedBuff"
    assert report.scores_head(scenario.COSTS_ON_A_CLOCK)[6] == "score, seconds"


# With few bits, and below a cloud -----------------------------------------------------------------


@pytest.fixture
def scenario_of_few_bits(small_scenario):
    """Three clients that send 2 numbers, or 1 of them, and may send 12 in all."""
    compressor = fl.link.TopK(1)
    of_one = 3 * compressor.bits(2)
    return dataclasses.replace(
        small_scenario,
        name="three-clients-of-few-bits",
        bits=6.0 * 64,
        costs=scenario.COSTS_OF_UPLOADS,
        rules={
            "FedAvg (whole)": communication.rule("whole", 384.0, 3 * 64, local_steps=1),
            "EF21": communication.rule("largest", 384.0, of_one, compression=compressor),
            "DIANA": communication.rule(
                "drawn", 384.0, 3 * 32, margin=2.0, compression=fl.link.RandomK(1)
            ),
        },
    )


def test_last_values_are_those_when_the_bits_are_sent(scenario_of_few_bits):
    admitted, refused = methods(scenario_of_few_bits)
    assert admitted.keys() == {"FedAvg (whole)", "EF21", "DIANA"}
    assert refused["SCAFFOLD"].startswith("is not among the methods that are compared here")
    assert [scenario_of_few_bits.length(label)[0] for label in sorted(admitted)] == [8, 4, 2]
    simulation = scenario_of_few_bits.build(KEY, admitted["EF21"].build(step_size=0.1))
    assert simulation.clock is None
    assert simulation.compression is None
    assert simulation.algorithm.compression.count == 1
    algorithm = admitted["DIANA"].build(step_size=0.1)
    runs = fl.sweep(
        scenario_of_few_bits.build, grid={"algorithm": {"DIANA": algorithm}}, rounds=8, seeds=2
    )
    assert runs.bits_up.values[0, 0].tolist() == [96.0 * n for n in range(1, 9)]
    few = {"DIANA": admitted["DIANA"]}
    result = {"methods": {"DIANA": {"chosen": {"step_size": 0.1}}}}
    values = running.last_values(scenario_of_few_bits, few, result, 2)["DIANA"]
    np.testing.assert_allclose(values, runs.normalized_error.values[0, :, 3], rtol=1e-6)
    # A run that sends fewer is read at its end.
    assert running.at_bits(runs.isel(round=slice(2)), 384.0).bits_up.values.tolist() == [[192] * 2]
    with pytest.raises(ValueError, match="more than 90 bits in 1 rounds, the first that are recor"):
        running.at_bits(runs, 90.0)


@pytest.mark.slow
def test_bits_of_clients_are_counted(scenario_of_few_bits):
    admitted, _ = methods(scenario_of_few_bits)
    few = {"FedAvg (whole)": admitted["FedAvg (whole)"]}
    easy = dataclasses.replace(scenario_of_few_bits, name="easy", target=1e6)
    assert running._questions(easy, few) == {"final": [*few], "rounds": [*few]}
    costs = running.evaluated(easy, few, TINY)["FedAvg (whole)"]["costs"]
    assert [*costs] == ["bits up", "bits", "rounds", "gradients"]
    assert costs["bits up"]["until"] == [192.0, 192.0]
    assert costs["bits"]["until"] == [384.0, 384.0]
    assert costs["rounds"]["until"] == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if SCENARIOS[name].bits])
def test_methods_have_as_many_rounds_as_they_have_bits_for(name):
    """Without methods that draw in which round a model is sent: the first rounds do not show it."""
    case = SCENARIOS[name]
    try:
        case.parts(KEY)
    except FileNotFoundError:
        pytest.skip("needs a data set")
    for label, (build, space) in methods(case)[0].items():
        if label in ("MARINA", "Scaffnew"):
            continue
        algorithm = build(**{key: values[0] for key, values in space.items()})
        with unwarned():
            sent = fl.run(case.build(KEY, algorithm), rounds=2).bits_up.values
        # The first round may have a message less, or whole gradients, which come on top.
        of_round = sent[1] - sent[0]
        rounds, record_every = case.length(label)
        surplus = min(sent[0], of_round) + (rounds - 1) * of_round - case.bits
        assert -of_round <= surplus < (record_every + 1) * of_round, label


def test_distant_bits_go_to_the_cloud_or_from_edge_to_edge():
    """Methods with and without edges are computed in one sweep."""
    case = SCENARIOS["edges-alike"]
    of_round = {
        # Fifty clients and the cloud send ten numbers each way.
        "FedAvg": 2 * 50 * 320,
        "SCAFFOLD": 4 * 50 * 320,
        # Five edges do so every two rounds, or every ten.
        "HierFAVG (every 2 rounds)": 2 * 5 * 320 / 2,
        "HierFAVG (every 10 rounds)": 2 * 5 * 320 / 10,
        # And they send to two neighbors in each.
        "HierFAVG (edges on a ring)": 2 * 5 * 320 / 10 + 10 * 320,
        "Hier-Local-QSGD": 5 * (320 + fl.link.Quantize(8).bits(10)) / 2,
        "GFL, gradient": 10 * 320,
    }
    assert of_round.keys() == case.rules.keys()
    grid = {label: method(case, label).build(step_size=0.01) for label in of_round}
    runs = fl.sweep(case.build, grid={"algorithm": grid}, rounds=10, seeds=1)
    for label, bits in of_round.items():
        distant = running.distant_bits(case, label, runs.sel(algorithm=[label]))
        assert float(distant[0, 0, -1]) == 10 * bits, label


def test_regions_are_near_their_edges():
    """Ten edges send to five regions every two rounds, and these to the cloud every ten."""
    case = SCENARIOS["edges-regions"]
    algorithm = method(case, "HierFAVG (regions more often)").build(step_size=0.01)
    runs = fl.sweep(case.build, grid={"algorithm": {"a": algorithm}}, rounds=10, seeds=1)
    distant = running.distant_bits(case, "HierFAVG (regions more often)", runs)
    assert float(distant[0, 0, -1]) == 2 * 5 * 320


def test_edges_and_regions_are_alike_or_unlike_as_their_scenarios_say():
    """By the distance of the mean true models of groups, which least squares estimate."""

    def spread(name, level):
        parts = SCENARIOS[name].parts(KEY)
        problem, network = parts["problem"], parts["network"]
        pairs = zip(np.asarray(problem.features), np.asarray(problem.targets), strict=True)
        models = np.stack([np.linalg.lstsq(x, y)[0] for x, y in pairs])
        groups = np.arange(50) if level == 0 else hierarchy.groups_of(network, level)
        means = np.stack([models[groups == group].mean(0) for group in np.unique(groups)])
        return float(np.std(means - means.mean(0)))

    assert spread("edges-alike", 1) < 0.3 < 2 < spread("edges-alike", 0)
    assert spread("edges-unlike", 1) > 2
    assert spread("edges-regions", 2) < 0.3 < 1.5 < spread("edges-regions", 1)


def few_bits(outcome, name, costs):
    """Two methods and their stored numbers: one needs ten times the bits of the other."""

    def of(error, bits):
        method = outcome(error, bits)
        method["costs"] |= dict.fromkeys(costs, method["costs"]["rounds"])
        return method

    best, other = [*SCENARIOS[name].rules][:2]
    return stored({best: of(1e-3, 4), other: of(1.0, 40)}, name, refused={"EXTRA": "is not here."})


def test_bits_are_scarce_where_few_may_be_sent(outcome):
    results = {
        "few-bits-convex": few_bits(outcome, "few-bits-convex", ("bits up", "bits")),
        "few-bits-peers": few_bits(outcome, "few-bits-peers", ("bits",)),
        "edges-alike": few_bits(outcome, "edges-alike", ("distant bits", "bits")),
        "squares-well-alike": stored({"FedAvg": outcome(1.0, 8), "DANE": outcome(2.0, 2)}),
    }
    pages = decisions.read_all(results, SCENARIOS)
    kinds = {page.scenario.name: decisions.kind_of(page.scenario) for page in pages}
    assert kinds == {
        "few-bits-convex": "compressing server",
        "few-bits-peers": "compressing peers",
        "edges-alike": "servers",
        "squares-well-alike": "server",
    }
    front = report.front(pages, results, {})
    of_uploads = front[front.index("### One server, few bits") : front.index("### Peers, few")]
    of_edges = front[front.index("### Edges below a cloud") : front.index("## Scenarios")]
    assert "| scarce: bits up | scarce: bits | scarce: rounds | scarce: gradients |" in of_uploads
    assert "FedAvg (one step)**: FedAvg (five steps) needs 10 times as many |" in of_uploads
    assert "| scarce: distant bits | scarce: bits | scarce: rounds |" in of_edges
    assert "| edges are alike, clients are not (1) | **FedAvg**" in of_edges
    assert "| fewest bits up | fewest bits | fewest rounds | fewest gradients |" in front
    texts = {page.scenario.name: report.scenario_page(page) for page in pages}
    assert "after 9.83e+05 bits of clients. Bits up, bits, rounds and" in texts["few-bits-convex"]
    assert "- EF21, EF-SGD: clients send the largest numbers" in texts["few-bits-convex"]
    assert "after 200 rounds. Distant bits, bits, rounds and" in texts["edges-alike"]
    assert "- 'GFL, gradient': clients send to their edge" in texts["edges-alike"]
    assert "after 200 rounds. Rounds, bits and sample" in texts["squares-well-alike"]


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "name the scenarios to run, or all of them by --all"),
        (["run", "--all", "peers-ring"], "or all of them by --all alone"),
        (["run", "peers-rin"], "'peers-ring'"),
        (["run", "peers-ring", "--update", "--quick"], "--update replaces full results"),
        (["run", "peers-ring", "--update", "--out", "x"], "--update writes to figures/atlas"),
        (["run", "peers-ring", "--out", "/dev/null/x"], "cannot write to /dev/null/x"),
        (["report", "--out", "/nowhere"], "no folder /nowhere"),
        (["check", "--out", "/nowhere"], "no folder /nowhere"),
        (["check", "peers-ring"], "name scenarios with --recompute"),
        (["check", "--seeds", "2"], "--seeds is of --recompute; give both, or neither"),
        (["check", "--recompute", "--turn", "3", "peers-ring"], "name the scenarios to compute"),
        (["check", "--recompute", "--out", "/nowhere"], "no folder /nowhere"),
        (["draw"], "invalid choice: 'draw'"),
        (["run", "--seeds", "3"], "unrecognized arguments: --seeds"),
    ],
)
def test_a_wrong_request_gets_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "unfinished", lambda _: tmp_path)
    assert main(arguments) == 2
    answer = capsys.readouterr().err
    assert message in answer
    assert answer.count("\n") == 1


def test_a_folder_without_results_or_with_a_damaged_one_is_named(tmp_path, capsys):
    assert main(["report", "--out", str(tmp_path)]) == 2
    assert "no results in" in capsys.readouterr().err
    path = tmp_path / "peers-ring.json"
    path.write_text("{")
    with pytest.raises(UsageError, match=r"cannot read .*peers-ring.json .*; delete it"):
        running.read("peers-ring", tmp_path)
    path.write_text(sealed(stored({}, name="peers-grid")))
    with pytest.raises(UsageError, match="is of the scenario 'peers-grid'"):
        running.read("peers-ring", tmp_path)


def test_a_scenario_without_its_data_is_skipped_with_a_message(tmp_path, capsys, monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError("MNIST is not there; set FLJAX_DATA.")

    monkeypatch.setattr(commands, "compute", absent)
    out = ["--out", str(tmp_path), "--store", str(tmp_path / "store")]
    assert main(["run", "mnist-softmax-1", *out]) == 0
    assert "not run: MNIST is not there" in capsys.readouterr().out


def test_list_names_every_scenario_with_its_reason(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(
        name in printed and scenario.reason in printed for name, scenario in SCENARIOS.items()
    )


@pytest.mark.slow
def test_stored_results_are_of_declared_scenarios():
    for path in (Path(__file__).parents[2] / "figures" / "atlas").glob("*.json"):
        result = running.read(path.stem, path.parent)
        assert path.stem in SCENARIOS
        assert {*map(algorithm_of, result["methods"]), *result["refused"]} <= REGISTRY.keys()
        analysis.table(SCENARIOS[path.stem], result)


def test_algorithms_that_came_later_are_named():
    """Registered, and neither in a result nor refused by it."""
    name, scenario = next(iter(SCENARIOS.items()))
    refused = {label: "for a reason" for label in REGISTRY if label not in ("EXTRA", "DANE")}
    page = decisions.Page(scenario, {"refused": refused, "methods": {}}, [])
    assert sorted(report.newer(page)) == ["DANE", "EXTRA"]
    assert "missing where they would be admitted or refused" in report.scenario_page(page), name
