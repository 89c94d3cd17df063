"""The benchmarks run and count correctly; nothing here is timed."""

import copy
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

import fljax as fl
from experiments.benchmarks import (
    aggregation,
    arrivals,
    clipping,
    compression,
    executors,
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
    tables,
    tuning,
)
from experiments.errors import UsageError
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
    assert methods == ["AD-PSGD", "ADMM"]
    tuned = tuning.tuned(methods, candidates=3, seeds=1, rounds=4)
    assert tuned.compilations == 2
    assert all(response.sizes["candidate"] == 3 for response in tuned.response.values())


def _measured(platform, errors, seconds):
    result = {"compiled": 1.0, "seconds": seconds, "block": "8", "errors": errors}
    return {platform: {"admm": result}}


def test_a_study_on_two_platforms_is_compared_run_by_run():
    measured = _measured("cpu", [1.0, 2.0], 4.0) | _measured("cuda", [1.0, 2.5], 0.5)
    _, first, second = platforms.table(platforms.compared(["admm"], measured))
    assert "8.0x" in second
    assert "2.5e-01" in second
    assert "x" not in first.split("8 ", 1)[1]
    assert platforms.compared(["admm"], measured)[1]["off_by"] == 0.25


def test_failures_and_timeouts_are_reported():
    failed = {"cuda": {"admm": {"failed": "RuntimeError: no memory"}}}
    _, first, second = platforms.table(platforms.compared(["admm"], {"cpu": {}} | failed))
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


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda path: path.stem)
def test_the_tables_of_a_page_are_those_of_the_stored_results(page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- benchmark: simulators -->" in text
    assert tables.filled(text, page.name) == text


def test_no_time_is_typed_on_the_page_of_speed():
    page = (tables.ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert re.search(r"\d s\b", page)
    assert not re.search(r"\d m?s\b|\d x\b|\dx\b", tables.BLOCK.sub("", page))


@pytest.fixture
def stored(monkeypatch):
    """Change a number of the stored results, as if a benchmark had been run again."""

    def change(name, *keys, value):
        report = copy.deepcopy(tables.read(name))
        *path, last = keys
        part = report
        for key in path:
            part = part[key]
        part[last] = value
        read = tables.read
        monkeypatch.setattr(tables, "read", lambda other: report if other == name else read(other))

    return change


def test_a_table_follows_its_stored_result(stored):
    before = tables.against_numpy()
    keys = ("studies", 0, "rows", 0, "seconds")
    stored("stored/montecarlo.json", *keys, value=1234.0)
    after = tables.against_numpy()
    assert "| 1234 s |" in after[4]
    assert before[4] != after[4]
    assert before[5:] == after[5:]


def test_the_best_variant_of_numpy_is_the_fastest(stored):
    keys = ("studies", 1, "rows", -2, "seconds")
    stored("stored/montecarlo.json", *keys, value=0.01)
    assert "0.01 s (0.0654x)" in tables.against_numpy()[5]


def test_the_range_of_the_accelerator_is_counted(stored):
    assert "from 1/2 to 1/108" in tables.platforms_range()[0]
    stored("stored/platforms.json", "rows", 1, "seconds", value=0.057 / 300)
    assert "from 1/7 to 1/300" in tables.platforms_range()[0]


def test_an_error_that_is_not_the_reference_s_is_marked(stored):
    rows = tables.read("peers/networks.json")["results"]
    number = next(
        n for n, row in enumerate(rows) if (row["peer"], row["workload"]) == ("pfl", "mlp")
    )
    assert not any("pfl" in line and "*" in line for line in tables.networks())
    stored("peers/networks.json", "results", number, "error", value=0.5)
    assert any("pfl" in line and "0.5000 *" in line for line in tables.networks())


def test_a_missing_stored_result_is_reported_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "HERE", tmp_path)
    command = r"python -m experiments\.benchmarks\.platforms --out stored/platforms\.json"
    with pytest.raises(UsageError, match=f"no stored result .*; measure it: {command}"):
        tables.platforms()


def test_a_table_that_does_not_exist_is_reported_with_those_that_do():
    text = "<!-- benchmark: numbers -->\n\n<!-- end benchmark -->\n"
    with pytest.raises(UsageError, match=r"page\.md asks for the table 'numbers'; there are numpy"):
        tables.filled(text, "page.md")


def test_the_tables_are_written_into_their_pages(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- benchmark: platforms, range -->\nold\n<!-- end benchmark -->\nx\n"
    )
    monkeypatch.setattr(tables, "PAGES", (page,))
    assert tables.main() == 0
    before, _, sentence, end, after = page.read_text().splitlines()
    assert (before, end, after) == ("before", "<!-- end benchmark -->", "x")
    assert sentence == tables.platforms_range()[0]


@quiet
@pytest.mark.slow
def test_a_benchmark_s_numbers_are_stored_and_tabulated(monkeypatch, tmp_path, capsys):
    def small(seeds, few):
        rival = montecarlo.Rival("form", lambda seeds: [1.0] * seeds, "float64", few)
        error = montecarlo.final("normalized_error")
        return montecarlo.Study("Small", montecarlo.private_admm, 4, error, [rival], (1, 1))

    path = tmp_path / "small.json"
    monkeypatch.setattr(montecarlo, "STUDIES", {"small": small})
    monkeypatch.setattr(montecarlo, "header", lambda: "commit abc")
    monkeypatch.setattr("sys.argv", ["montecarlo", "--seeds", "2", "--out", str(path)])
    montecarlo.main()
    report = json.loads(path.read_text())
    assert report["machine"] == "commit abc"
    (study,) = report["studies"]
    assert (study["title"], study["seeds"], study["rounds"]) == ("Small", 2, 4)
    assert [row["side"].split(",")[0] for row in study["rows"]] == ["fljax", "fljax", "NumPy"]
    assert "best NumPy / fljax" in capsys.readouterr().out


@pytest.mark.slow
def test_compressed_rounds_are_measured_beside_averaging(capsys, monkeypatch):
    monkeypatch.setattr(compression, "TREE", (6, 2))
    compression.main(["--clients=4", "--dim=5", "--seeds=1", "--rounds=2", "--turns=1"])
    rows = [line.split("|")[1:5] for line in capsys.readouterr().out.splitlines()[-9:]]
    assert [name.strip() for _, name, _, _ in rows] == [
        *("FedAvg", "EF-SGD", "EF21"),
        *("FedAvg", "DIANA", "MARINA", "DASHA"),
        *("FedAvg", "HierFAVG"),
    ]
    assert all(float(took) > 0 for _, _, took, _ in rows)
    assert [float(factor) for _, name, _, factor in rows if name.strip() == "FedAvg"] == [1] * 3


@pytest.mark.slow
def test_executors_are_measured_with_one_worker_and_two(capsys, monkeypatch):
    used = []

    def threads(description):
        used.append(description["workers"])
        return ThreadPoolExecutor(description["workers"])

    for name in ("OMP_NUM_THREADS", "XLA_FLAGS"):
        monkeypatch.setenv(name, "")  # which the benchmark sets: put back after the test
    monkeypatch.setattr(fl.executors, "executor_of", threads)
    monkeypatch.setattr(executors, "FEW", 2)
    executors.main(["--blocks=3", "--rounds=2"])
    assert used == [1, 2]
    rows = [line.split("|")[2:6] for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [[cell.strip() for cell in row[:2]] for row in rows] == [
        *(["1", "3 x 1"], ["1", "2 x 2"], ["2", "3 x 1"], ["2", "2 x 2"])
    ]
    assert all(float(cell) > 0 for row in rows for cell in row[2:])


def test_arrivals_are_measured_beside_rounds_without_a_clock(capsys):
    sizes = ["--clients=4", "--dim=3", "--seeds=2", "--events=6", "--turns=1"]
    arrivals.main(sizes)
    row = capsys.readouterr().out.strip().splitlines()[-1]
    assert row.startswith("| 4 clients, 3 numbers, 2 seeds, 6 rounds | ")
    numbers = [float(cell) for cell in row.split("|")[2:5]]
    assert all(number > 0 for number in numbers)
    assert numbers[1] / numbers[0] == pytest.approx(numbers[2], rel=0.1)
    timed, plain = (arrivals.scenario(4, 3, on)(jax.random.key(1)) for on in (True, False))
    assert timed.clock is not None
    assert plain.clock is None
