"""The benchmarks run and count correctly; nothing here is timed."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest

import fljax as fl
from experiments.benchmarks import (
    aggregation,
    clipping,
    generators,
    lowering,
    machine,
    memory,
    montecarlo,
    multiagent,
    networks,
    partitions,
    personalized,
    platforms,
    population,
    roofline,
    scaling,
    tuning,
)
from experiments.gauthier import chapter5 as ch5
from fljax._core.devices import configured
from tests.cases import CASES, costs
from tests.support.marks import quiet

FEW_SAMPLES = costs.Size(clients=300, samples=6, dim=16, mean_degree=4, seeds=1)
MANY_SAMPLES = costs.Size(clients=40, samples=24, dim=16, mean_degree=4, seeds=1)


@pytest.fixture(autouse=True)
def single_precision():
    with configured("jax_enable_x64", False):
        yield


@pytest.mark.thin(1)
@pytest.mark.parametrize(("label", "most"), [("zCDP-NFL", 4), ("PAO-Fed", 6)])
@pytest.mark.parametrize("size", [FEW_SAMPLES, MANY_SAMPLES])
def test_counted_flops_and_bytes_are_near_those_of_the_compiler(size, label, most):
    by_hand = CASES[label].cost(size, False)
    moved, flops = roofline.counted_by_xla(size, CASES[label])
    # the cost of a normal number is part of the generator's measured rate
    drawing = 170 * by_hand.draws
    assert 0.5 < flops / (by_hand.flops + drawing) < 3
    assert 0.5 < moved / (roofline.WORD * by_hand.words) < most


def test_the_least_time_is_that_of_the_slower_of_memory_and_arithmetic():
    limits = roofline.Limits(bandwidth=100.0, flops=10.0, draws=5.0)
    assert limits.seconds(costs.Cost(words=50, flops=5)) == 2.0
    assert limits.seconds(costs.Cost(words=1, flops=5, draws=10)) == 2.5


def test_a_cost_by_hand():
    # Two clients of one sample and one parameter in a full graph: 2 x 2 matrix, 2 models.
    size = costs.Size(2, 1, 1, 1, 1)
    assert costs.mixing(size) == (4 + 2 * 2, 2 * 2 * 2, 0)
    assert costs.gradient(size, False) == (2 * (1 + 3), 4 * 2, 0)
    assert costs.update(size, 5, 16, True) == (5 * 2 + 2, 16 * 2, 2)


@pytest.mark.slow
def test_pictures_are_drawn(tmp_path):
    row = roofline.Row("one, private", 1e-3, costs.Cost(1e5, 1e6, 1e3), 0.5, 1.5, 1.0)
    limits = roofline.Limits(1e10, 1e11, 1e8)
    roofline.draw({"a study": ([row], limits)}, tmp_path / "roofline.png")
    result = dict.fromkeys(("compile", "setup", "round", "run", "peak", "error", "rounds"), 1.0)
    studies = {
        axis: (points, [result for _ in points])
        for axis, points in scaling.axes(quick=True, largest=1000).items()
    }
    scaling.draw(studies, tmp_path / "scaling.png")
    assert (tmp_path / "roofline.png").stat().st_size > 1000
    assert (tmp_path / "scaling.png").stat().st_size > 1000


@pytest.mark.long
@pytest.mark.slow
def test_a_point_of_the_scaling_study_is_measured():
    result = scaling.measure(scaling.POINT | {"clients": 20, "dim": 2, "seeds": 2})
    assert all(np.isfinite(value) for value in result.values())
    assert result["rounds"] == 1001
    assert result["peak"] > 2**20
    assert result["error"] < 0.01
    assert (
        scaling.time_exponent([{"k": 1}, {"k": 10}], [{"round": 2.0}, {"round": 20.0}], "k") == 1.0
    )


@quiet
@pytest.mark.filterwarnings("ignore::fljax.DivergenceWarning")
@pytest.mark.slow
def test_a_scaling_study_converges_with_more_parameters_than_samples(monkeypatch):
    """Rows of 128 and 512 parameters once ended with an infinite error."""
    point = scaling.POINT | {"clients": 20, "dim": 128}
    assert scaling.measure(point)["error"] < 0.1
    monkeypatch.setattr(fl.algorithms.DLM, "step_bound", lambda *arguments: np.float32(100.0))
    with pytest.raises(RuntimeError, match=r"'dim': 128.* diverge: their error is (inf|nan)"):
        scaling.measure(point)


@pytest.mark.slow
def test_both_sides_of_a_comparison_simulate_the_same():
    """Means over independent seeds agree in every round; a false alarm is rarer than 1e-4."""
    rounds = 12
    seeds = 60
    for name in (ch5.CLUSTER_FL, ch5.PGFL_MIXED):
        algorithm, kind = personalized.methods()[name]
        ours = personalized.study({name: algorithm}, seeds, rounds).network_deviation
        ours = ours.squeeze(drop=True).transpose("seed", "round").values
        theirs = personalized.rival(personalized.setting(rounds), seeds, **kind)
        gap = ours.mean(0) - theirs.mean(0)
        error = np.sqrt((ours.var(0) + theirs.var(0)) / seeds)
        assert (abs(gap) < 5 * error).all(), name
        assert ours.mean(0)[-1] < ours.mean(0)[0]


@pytest.mark.slow
def test_both_implementations_of_an_aggregation_agree():
    lines = aggregation.compare((2, 9, 40))
    assert [line[:18].strip() for line in lines] == [*aggregation.RULES]
    assert all(float(line.split()[-1]) < 1e-5 for line in lines)


@pytest.mark.slow
def test_sums_of_clipped_gradients_agree_in_all_forms():
    line = clipping.compare("784-128-60", samples=5)
    assert float(line.split()[-1]) < 1e-5


@pytest.mark.long
@pytest.mark.slow
def test_three_forms_of_learning_among_agents_simulate_the_same():
    """The library, NumPy's best form and its plain form."""
    rounds = 20
    seeds = 30
    for name in ("ISFedAvg, full", "ISFedAvg, sampled", "ATC, noise edge"):
        method = multiagent.methods()[name]
        results = [
            multiagent.study(method, seeds, rounds),
            multiagent.best(method, seeds, rounds),
            method.plain(5, rounds, 0, multiagent.RECORD_EVERY),
        ]
        for ours in results[1:]:
            gap = ours.mean(0) - results[0].mean(0)
            error = np.sqrt(sum(form.var(0, ddof=1) / len(form) for form in (results[0], ours)))
            assert (abs(gap) < 6 * error + 0.01 * results[0].mean(0)).all(), name


@pytest.mark.slow
def test_the_roofline_gives_importance_sampling_batches_of_its_clients():
    size = costs.Size(40, 4, 2, 3, 1)
    case = CASES["ISFedAvg"]
    simulation = roofline.simulation(roofline.as_key(0), size, case)
    assert (simulation.algorithm.clients_per_round, simulation.algorithm.batch) == (40, 4)


@pytest.mark.slow
@pytest.mark.thin(1, every=24)
@pytest.mark.parametrize("name", [name for name in lowering.PROGRAMS if name != lowering.HOSTED])
def test_programs_lower_for_accelerators_that_are_not_here(name):
    for platform in lowering.PLATFORMS:
        result = lowering.lowered(name, platform)
        assert result.reason == "", result
        assert result.kilobytes > 100


def test_host_calls_are_refused_for_lowering():
    """A host call is bound to an existing device and cannot be lowered for another one."""
    assert "platform" in lowering.lowered(lowering.HOSTED, "cuda").reason


@pytest.mark.slow
def test_lowering_uses_the_form_of_the_accelerator():
    """Without groups of senders, one after the other, that suit a CPU's cache."""
    loops = [
        lowering.program("SignSGD", platform).count("stablehlo.while")
        for platform in ("cpu", "cuda", "tpu")
    ]
    assert loops[0] > loops[1] == loops[2]


@pytest.mark.slow
def test_all_sides_minimize_the_same_total_variation():
    graph = fl.graphs.random_connected(jax.random.key(1), nodes=20, mean_degree=4)
    with configured("jax_enable_x64", True):
        for penalty in (fl.problems.SquaredNorm(), fl.problems.Norm()):
            coupled = fl.problems.GTVMin(networks.instance(graph, 3, 6), graph, 0.7, penalty)
            sides = [networks.by_fljax(coupled), *networks.by_cvxpy(coupled)]
            if penalty.quadratic(3) is not None:
                sides += networks.by_scipy(coupled, direct=True)
            for side in sides[1:]:
                np.testing.assert_allclose(side.models, sides[0].models, atol=1e-3)
            assert len(networks.compared(coupled, sides)) == len(sides)


@pytest.mark.long
@pytest.mark.slow
def test_memory_of_a_network_grows_with_its_edges():
    needed = []
    for nodes in (300, 900):
        graph = fl.graphs.random_connected(jax.random.key(1), nodes, mean_degree=4, form="padded")
        coupled = fl.problems.GTVMin(networks.instance(graph, 3, 6), graph, 1.0)
        needed.append(sum(networks.memory(coupled)) / int(graph.edge_count()))
    assert 0.8 < needed[1] / needed[0] < 1.25


@pytest.mark.parametrize(("name", "same"), [("fljax-threefry", True), ("rbg", False)])
@pytest.mark.slow
def test_generators_that_change_under_vmap_are_found_out(name, same):
    assert generators.same_when_batched(name) == same


def test_machine_numbers_are_positive():
    assert machine.update_bandwidth(2**16) > 0
    assert machine.copy_bandwidth(2, 2**16) > 0
    assert machine.matrix_rate(16) > 0


@pytest.mark.slow
def test_methods_to_tune_are_found_and_tuned():
    methods = list(itertools.islice(tuning.suitable(), 2))
    assert methods == ["ADMM", "ADMM tracking"]
    tuned = tuning.tuned(methods, candidates=3, seeds=1, rounds=4)
    assert tuned.compilations == 2
    assert all(response.sizes["candidate"] == 3 for response in tuned.response.values())


def _measured(platform, errors, seconds):
    result = {"compiled": 1.0, "seconds": seconds, "block": "8", "errors": errors}
    return {platform: {"admm": result}}


def test_a_study_on_two_platforms_is_compared_run_by_run():
    measured = _measured("cpu", [1.0, 2.0], 4.0) | _measured("cuda", [1.0, 2.5], 0.5)
    _, first, second = platforms.table(["admm"], measured)
    assert "8.0x" in second
    assert "2.5e-01" in second
    assert "x" not in first.split("8 ", 1)[1]


def test_failures_and_timeouts_are_reported():
    failed = {"cuda": {"admm": {"failed": "RuntimeError: no memory"}}}
    _, first, second = platforms.table(["admm"], {"cpu": {}} | failed)
    assert "not done in time" in first
    assert second.endswith("RuntimeError: no memory")


@pytest.mark.slow
def test_a_study_is_measured_where_it_is():
    study = platforms.studies()["admm"]._replace(rounds=10, seeds=2)
    result = platforms.measure(study)
    assert len(result["errors"]) == 2
    assert np.isfinite(result["errors"]).all()
    alone = montecarlo.private_admm
    again = fl.sweep(alone, rounds=10, seeds=2, record_every=10, progress=False)
    last = again.normalized_error.isel(round=-1).values
    np.testing.assert_allclose(result["errors"], last, rtol=1e-6)


@pytest.mark.slow
def test_a_missing_platform_is_not_measured():
    with pytest.raises(SystemExit, match="nothing was measured on 'abacus'"):
        platforms.on("abacus", ["admm"], 1.0)


def test_a_study_that_is_not_known_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["platforms", "adm"])
    with pytest.raises(SystemExit):
        platforms.main()
    assert "unknown study adm; known: admm" in capsys.readouterr().err


def test_sentences_have_something_to_learn():
    users = list(population.sentences(1100))  # more than one batch of draws
    assert len(users) == 1100
    assert {len(tokens) for tokens, _ in users} <= set(range(16, 129))
    tokens, following = (np.concatenate(part) for part in zip(*users, strict=True))
    assert tokens.dtype == np.int16
    assert tokens.shape[1] == 20
    np.testing.assert_array_equal(tokens[:, 1:], following[:, :-1])
    assert tokens.min() == 0
    assert tokens.max() < population.VOCABULARY
    for word in range(3):  # any follows half of the time, among them the one that likes to
        after = np.bincount(following[tokens == word])
        assert 0.5 < after.max() / after.sum() < 0.65
    layout = fl.models.layout_of(population.next_word(), (20,), "int16")
    assert layout.dim == 988_688


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
@pytest.mark.parametrize("name", ["large grid", "trajectories"])
def test_a_plan_announces_the_peak(name):
    """Within a half, since the plan cannot know how much memory the allocator retains."""
    result = memory.child(name)
    assert 2 / 3 < result["announced"] / result["measured"] < 3 / 2


@pytest.mark.slow
def test_studies_on_a_pool_and_with_own_arrays_are_of_the_same_clients():
    for own in partitions.STUDIES:
        if not own.endswith("own arrays"):
            continue
        pooled, copied = (
            partitions.scenario(name, 1000)(jax.random.key(0), 1.0).problem
            for name in (own.replace("own arrays", "pool"), own)
        )
        np.testing.assert_array_equal(pooled.sample_counts(), copied.sample_counts())
        first = np.asarray(pooled.features)[:, 0]
        np.testing.assert_allclose(first, np.asarray(copied.features)[:, 0], rtol=1e-6)
        np.testing.assert_array_equal(pooled.targets[:, 0], copied.targets[:, 0])
