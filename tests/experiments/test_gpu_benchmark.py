"""The benchmark of one GPU: rehearsals on a CPU, counts, and reports; nothing is timed."""

import dataclasses
import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from experiments.benchmarks.gpu import (
    __main__ as command,
)
from experiments.benchmarks.gpu import (
    bare,
    blazefl,
    cards,
    convolutions,
    counts,
    flute,
    forms,
    pfl_cifar10,
    rows,
    stackoverflow,
    table,
    traces,
)
from experiments.benchmarks.gpu.rows import Row
from experiments.errors import UsageError, exit_code
from fljax._core.devices import configured, traced_for
from tests.support.marks import quiet

pytestmark = [quiet, pytest.mark.filterwarnings("ignore::fljax.DivergenceWarning")]


@pytest.fixture(autouse=True)
def single_precision():
    with (
        configured("jax_enable_x64", False),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        yield


# Peaks ------------------------------------------------------------------------------------------


def test_the_share_of_the_roofline_is_that_of_the_slower_of_memory_and_arithmetic():
    kind = "NVIDIA H100 80GB HBM3"
    # A second of arithmetic, half a second of memory, in two seconds.
    assert cards.share(kind, 2.0, 67e12, 0.5 * 3.35e12, "float32") == 0.5
    assert cards.share(kind, 2.0, 0.0, 3.35e12, "float32") == 0.5
    assert cards.share(kind, 1.0, 989.5e12, 0.0, "bfloat16") == 1.0
    assert cards.share("NVIDIA H200", 1.0, 0.0, 4.8e12, "tf32") == 1.0
    assert cards.share("cpu", 1.0, 1.0, 1.0, "float32") is None


@pytest.mark.parametrize(
    ("kind", "bandwidth"),
    [
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12),
        ("NVIDIA A100-SXM4-40GB", 1.555e12),
    ],
)
def test_the_peaks_are_of_the_card(kind, bandwidth):
    assert cards.card(kind).bandwidth == bandwidth


# Counts -----------------------------------------------------------------------------------------


def compiled_text(function, *arguments, **settings):
    return jax.jit(function, **settings).lower(*arguments).compile().as_text()


def test_flops_are_those_of_xla():
    """The program has no loops: XLA counts no iterations."""
    x, w, k = jnp.ones((8, 12, 12, 3)), jnp.ones((10 * 10 * 5, 7)), jnp.ones((3, 3, 3, 5))

    def network(x, k, w):
        y = jax.lax.conv_general_dilated(
            x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return y.reshape(8, -1) @ w

    by_hand = 2 * 8 * 100 * 5 * 27 + 2 * 8 * 500 * 7
    assert counts.flops(network, x, k, w) == by_hand
    by_xla = jax.jit(network).lower(x, k, w).compile().cost_analysis()["flops"]
    assert by_xla == pytest.approx(by_hand, rel=0.01)


def test_flops_of_loops_count_their_iterations():
    w = jnp.ones((4, 4))

    def looped(w, many):
        w = jax.lax.scan(lambda a, _: (a @ w, None), w, None, length=6)[0]
        w = jax.lax.cond(many > 0, lambda a: a @ a, lambda a: a, w)
        return jax.lax.fori_loop(0, many, lambda _, a: a @ a, w)

    assert counts.flops(looped, w, jnp.int32(3), iterations=5) == 128 * (6 + 1 + 5)


def test_kernels_and_bytes_of_a_compiled_loop():
    def once(a):
        return jnp.sort(a)

    def looped(a):
        return jax.lax.fori_loop(0, 7, lambda _, a: jnp.sort(a), a)

    a = jnp.ones(1024)
    single = counts.count(compiled_text(once, a))
    many = counts.count(compiled_text(looped, a))
    assert single.bytes >= 2 * 4096
    assert many.bytes >= 7 * 2 * 4096
    assert 7 <= many.kernels <= 7 * 8 + single.kernels
    assert many.waits == many.callbacks == 0


def test_iterations_that_the_device_decides_on_are_waits():
    def looped(a, many):
        return jax.lax.fori_loop(0, many, lambda _, a: jnp.sort(a), a)

    text = compiled_text(looped, jnp.ones(8), jnp.int32(3))
    assert counts.count(text, iterations=9).waits == 10  # the last condition, too
    assert counts.count(text, 9).kernels == pytest.approx(
        9 * counts.count(text, 1).kernels, rel=0.5
    )


def test_a_gather_reads_its_rows_and_not_the_pool():
    pool = jnp.ones((100_000, 16))

    def rows_of(pool, at):
        return pool[at] * 2

    moved = counts.count(compiled_text(rows_of, pool, jnp.arange(10))).bytes
    assert 10 * 16 * 4 <= moved < 20_000


HLO = """HloModule m, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, must-alias) }, x={}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element((s32[], f32[4]) %p), index=0
  %x = f32[4]{0} get-tuple-element(%p), index=1
  %y = f32[4]{0} custom-call(f32[4]{0} %x), custom_call_target="xla_ffi_python_gpu_callback"
  ROOT %t = (s32[], f32[4]) tuple(%i, %y)
}

%cond (p: (s32[], f32[4])) -> pred[] {
  %p = (s32[], f32[4]) parameter(0)
  ROOT %c = pred[] constant(true)
}

ENTRY %main (a: (s32[], f32[4])) -> (s32[], f32[4]) {
  %a = (s32[], f32[4]) parameter(0)
  ROOT %w = (s32[], f32[4]) while(%a), condition=%cond, body=%body, TRIPS
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"5"}}')


def test_calls_of_the_host_and_donated_arrays():
    assert counts.count(HLO) == counts.Count(kernels=5, bytes=5 * 32, waits=0, callbacks=5)
    assert counts.donated(HLO) == 2
    without = HLO.replace(', backend_config={"known_trip_count":{"n":"5"}}', "")
    assert counts.count(without, 3) == counts.Count(kernels=3, bytes=96, waits=4, callbacks=3)


def in_segments(work, platform):
    """The text of a record's rounds, in the form of a platform, compiled for this CPU."""
    with traced_for(platform):
        return rows.Segments(work, work.data()).program.program.as_text()


@pytest.mark.slow
def test_a_round_on_an_accelerator_waits_for_the_draw_of_its_participants_alone():
    """Rounds between records and local steps have loops of a known length, and call no host."""
    text = in_segments(flute.mnist(True).small(spread=0.0), "cuda")
    assert counts.count(text, 0.0).waits == 2  # one loop, in each of two rounds
    assert counts.count(text, 1.0).callbacks == 0
    assert counts.donated(text) > 0


# Rows -------------------------------------------------------------------------------------------


def check_row(name, result):
    assert "failed" not in result, (name, result)
    assert result.get("callbacks", 0) == 0


QUICK = "flute-mnist"


@pytest.mark.parametrize(
    "name",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in table.ROWS],
)
def test_a_row_is_rehearsed(name):
    result = table.measured(name, 5.0, True, {})
    check_row(name, result)
    report = {"rows": [result], "asked": [name], "rehearsed": True}
    assert any(table.ROWS[name].title in line for line in table.table(report))
    if "rounds_done" in result:
        assert result["seconds"] > 0
        assert result["kernels_per_step"] > 0


@pytest.mark.parametrize(
    ("work", "parameters"),
    [
        (pfl_cifar10.work(False), 1_626_442),
        (flute.femnist(False), 1_206_590),
        (flute.mnist(False), 7_850),
        (flute.shakespeare(False), 820_522),
        (stackoverflow.work(False), 2_076_416),
        (blazefl.work(blazefl.RESNET, blazefl.SMALL, "tf32", "averaged", False), 11_173_962),
    ],
)
def test_the_networks_have_the_published_numbers_of_parameters(work, parameters):
    dtype = "int32" if work.tokens else "float32"
    assert fl.models.layout_of(work.network, work.sample, dtype).dim == parameters


def test_the_settings_are_those_of_the_publications():
    work = pfl_cifar10.work(False)
    numbers = work.clients, work.per_round, work.samples, work.batch, work.epochs, work.rounds
    assert numbers == (1_000, 50, 50, 10, 1, 1_500)
    assert (work.step_size, work.record_every, work.test) == (0.1, 10, 10_000)
    work = flute.femnist(False)
    assert (work.clients, work.per_round, work.batch, work.rounds) == (3_400, 10, 20, 1_500)
    work = stackoverflow.work(False)
    assert (work.clients, work.per_round) == (342_477, 400)
    assert sum(row.seconds for row in table.ROWS.values()) < 900  # a lease


@pytest.mark.slow
def test_the_noise_is_that_of_a_larger_cohort():
    mechanism = pfl_cifar10.noise()
    assert mechanism.clip == 0.4
    rate = fl.participation.Fraction(1_000 / 1_000_000)
    spent = fl.privacy.CentralGaussian.for_budget(2.0, 1e-6, 1_500, rate, 1_000_000)
    # The deviation of a cohort's mean is the same.
    ours = mechanism.noise_multiplier / 50
    assert ours == pytest.approx(spent.noise_multiplier / 1_000)


@pytest.mark.slow
def test_shares_of_labels_are_unequal_under_a_dirichlet_law():
    work = pfl_cifar10.work(False, concentration=0.1).small(clients=20, samples=50)
    data = pfl_cifar10.samples(0.1, work)
    assert data.features.shape == (20, 50, 32, 32, 3)
    largest = [np.bincount(labels, minlength=10).max() for labels in np.asarray(data.targets)]
    assert np.mean(largest) > 25


def test_the_bare_loop_trains_as_fljax_does_where_nothing_is_drawn():
    """All clients in one batch each: only starts, gradients and averages are compared."""
    sizes = {"clients": 3, "per_round": 3, "rounds": 2, "spread": 0.5, "step_size": 0.5}
    work = flute.mnist(True).small(**sizes)
    data = work.data()
    work = dataclasses.replace(work, batch=data.features.shape[1])
    assert len(set(data.sizes.tolist())) > 1
    segments = rows.Segments(work, data)
    carry, _ = segments.program(segments.key, segments.start(segments.key), np.int32(0))
    problem = work.problem(data)
    _, program = bare.averaging(work, data)
    start = problem.parameters(jnp.asarray(problem.initial)), ()
    model, _ = program(start, jax.random.key(0))
    ours = problem.parameters(carry.state.model)
    for a, b, before in zip(*map(jax.tree.leaves, (ours, model, start[0])), strict=True):
        assert float(jnp.max(jnp.abs(a - before))) > 1e-4
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_a_run_in_segments_is_that_of_a_study():
    work = flute.mnist(True)
    data = work.data()
    measured = rows.run(work, rows.Segments(work, data), 1e3)
    study = fl.sweep(
        work.scenario(data),
        seeds=[rows.SEED],
        rounds=4,
        record_every=2,
        keep_models=True,
        progress=False,
    )
    assert measured.rounds == 4
    assert measured.accuracy == float(study.accuracy.values.ravel()[-1])
    np.testing.assert_allclose(
        measured.model, study.model.values.reshape(6, -1)[0], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    "limit",
    [{"seconds": 1e-9}, pytest.param({"seconds": 1e3, "most_rounds": 2}, marks=pytest.mark.slow)],
)
def test_a_run_ends_when_its_time_is_up(limit):
    work = flute.mnist(True)
    assert (
        rows.run(work, rows.Segments(work, work.data()), **limit).rounds == work.record_every
    )  # one record


def image_and_kernel(padding):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, 9, 8, 3)).astype(np.float32)
    kernel = rng.standard_normal((3, 2, 3, 4)).astype(np.float32)
    return images, kernel


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 0), (2, 1))])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_a_convolution_is_a_product_of_shifted_images(padding, strides):
    arrays = image_and_kernel(padding)
    numbers = ("NHWC", "HWIO", "NHWC")
    ours, xla = (
        convolve(*arrays, strides, padding, dimension_numbers=numbers, precision="highest")
        for convolve in (convolutions.by_products, convolutions.BY_XLA)
    )
    np.testing.assert_allclose(ours, xla, rtol=0, atol=1e-5)


def test_other_convolutions_are_left_to_xla():
    images, kernel = np.ones((2, 6, 6, 4), np.float32), np.ones((3, 3, 2, 4), np.float32)
    numbers = ("NHWC", "HWIO", "NHWC")
    grouped = convolutions.by_products(
        images, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=2
    )
    assert grouped.shape == (2, 6, 6, 4)


@pytest.mark.slow
@pytest.mark.parametrize("form", convolutions.FORMS)
def test_every_form_trains_the_same(form):
    work = blazefl.work(blazefl.LENET, blazefl.LENET, "float32", None, True)
    work = work.small(
        clients=2, per_round=2, samples=4, batch=4, rounds=1, record_every=1, epochs=1
    )
    data = work.data()
    results = []
    for each in ("grouped", form):
        with convolutions.in_form(each):
            model, program = bare.averaging(work, data)
            results.append(program(model, jax.random.key(0)))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_a_form_holds_for_its_rows():
    fastest = {"pfl-cifar10": "products", "flute-femnist": "one by one"}
    assert forms.of_row("pfl-cifar10-dp", fastest) == "products"
    assert forms.of_row("flute-femnist", fastest) == "one by one"
    assert forms.of_row("flute-mnist", fastest) == forms.of_row("pgfl", {}) == "grouped"
    with pytest.raises(ValueError, match="form must be one of grouped"), convolutions.in_form("x"):
        pass


# Reports ----------------------------------------------------------------------------------------


def dummy(monkeypatch, **measures):
    rows_ = {
        name: Row(
            f"row {name}", 5.0, lambda *_, result=result: result() if callable(result) else result
        )
        for name, result in measures.items()
    }
    monkeypatch.setattr(table, "ROWS", rows_)
    monkeypatch.setattr(command, "header", lambda: "commit x\npython 3, jax 0, numpy 2\ndevice y")


RESULT = {"seconds": 2.0, "precision": "float32", "rounds": 10, "rounds_done": 10}


def test_a_killed_run_loses_the_row_at_work_alone(monkeypatch, tmp_path):
    path = tmp_path / "gpu.json"

    def killed():
        raise KeyboardInterrupt

    dummy(monkeypatch, a=RESULT, b=killed, c=RESULT)
    with pytest.raises(KeyboardInterrupt):
        command.run([], 60.0, True, path)
    assert [row["row"] for row in json.loads(path.read_text())["rows"]] == ["a"]
    calls = []
    dummy(monkeypatch, a=lambda: calls.append("a"), b=lambda: calls.append("b") or RESULT, c=RESULT)
    report = command.run([], 60.0, True, path)
    assert [row["row"] for row in report["rows"]] == ["a", "b", "c"]
    assert calls == ["b"]  # the first is not measured again
    assert json.loads(path.read_text()) == report


def test_a_row_that_fails_costs_itself_alone(monkeypatch, tmp_path):
    def failing():
        raise RuntimeError("out of memory\nand more")

    dummy(monkeypatch, a=failing, b=RESULT | {"scaled": True, "rounds": 40, "accuracy": 0.5})
    report = command.run([], 60.0, True, tmp_path / "gpu.json")
    text = command.shown(report)
    assert "- row a: RuntimeError: out of memory." in text
    assert "| row b | 2 s * |" in text
    assert "10 of 40 rounds, scaled" in text
    assert "A rehearsal" in text


def test_a_run_ends_with_its_time_and_says_what_is_missing(monkeypatch, tmp_path):
    dummy(monkeypatch, a=RESULT, b=RESULT)
    clock = iter([0.0, 0.0, 0.0, 1.0])  # begun, looked at, the row's begin and end
    monkeypatch.setattr(command.time, "perf_counter", lambda: next(clock, 99.0))
    report = command.run([], 10.0, True, tmp_path / "gpu.json")
    assert [row["row"] for row in report["rows"]] == ["a"]
    assert "Not done in time: b." in command.shown(report)


def test_other_measurements_are_not_overwritten(monkeypatch, tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"device_kind": "NVIDIA H200", "rehearsed": False, "rows": []}))
    with pytest.raises(UsageError, match="has measurements of 'NVIDIA H200'"):
        command.begun(path, [], rehearse=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing"], "there is no row 'nothing'; there are convolutions"),
        (["run", "--seconds", "0"], "seconds must be a positive number, got 0"),
        (["run", "--seconds", "-3"], "seconds must be a positive number, got -3"),
        (["run", "--seconds", "inf"], "seconds must be a positive number, got inf"),
        (["run", "--seconds", "soon"], "seconds must be a positive number, got soon"),
        (["run"], "--rehearse runs them in small on a CPU"),
        (["report", "no-such-file"], "no measurements in no-such-file; make them"),
        (["trace", "no-such-folder"], "no trace"),
        (["measure"], "invalid choice"),
    ],
)
def test_impossible_requests_are_reported(capsys, arguments, message):
    try:
        code = exit_code(lambda: command.main(arguments))
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_published_numbers_are_marked_with_hardware_and_source():
    cells = table.published(list(table.ROWS))
    assert all(all(cell for cell in line) for line in cells)
    assert len(cells) == len({tuple(line[1:]) for line in cells})
    assert any("1:21:44" in line for line in cells)


# Traces -----------------------------------------------------------------------------------------


def event(name, start, length, pid=1, tid=2):
    return {"ph": "X", "name": name, "ts": start, "dur": length, "pid": pid, "tid": tid}


def named(kind, name, pid, tid=None):
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


EVENTS = [
    named("process_name", "/device:GPU:0", 1),
    named("process_name", "/host:CPU", 9),
    named("thread_name", "Stream #14(Compute)", 1, 2),
    named("thread_name", "XLA Modules", 1, 3),
    event("gemm", 0, 30),
    event("gemm", 20, 30),  # overlaps the first for ten
    event("copy", 90, 10),
    event("whole module", 0, 500, tid=3),
    event("host work", 0, 500, pid=9),
]


def test_a_trace_is_summarized_by_kernel(tmp_path, capsys):
    result = traces.summary(EVENTS)
    assert result.span == pytest.approx(100e-6)
    assert result.busy == pytest.approx(0.6)
    assert result.launches == 3
    assert [kernel[:2] for kernel in result.kernels] == [("gemm", 2), ("copy", 1)]
    assert result.kernels[0].seconds == pytest.approx(60e-6)
    folder = tmp_path / "plugins" / "profile"
    folder.mkdir(parents=True)
    with gzip.open(folder / "host.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": EVENTS}, file)
    assert command.main(["trace", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0.0001 s, 60% of it busy, 3 kernels"
    assert lines[2].split() == ["gemm", "2", "0.060", "85.7%"]


def test_a_trace_without_kernels_is_refused():
    with pytest.raises(ValueError, match="no kernels"):
        traces.summary(EVENTS[:4])


def test_busy_shares_are_read_from_a_trace_of_this_machine():
    work = flute.mnist(True)
    share = rows.busy_share(rows.Segments(work, work.data()))
    assert 0 < share <= 1
