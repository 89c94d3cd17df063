"""A sweep over a population on disk: the runs of ``fl.run``, with every cohort read once."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import random_key
from fljax.participation.selectors import Cyclic, Fraction
from fljax.simulation import population_run
from fljax.simulation.running import evaluations
from fljax.study import population_study
from tests.simulation.test_population_run import CLIENTS, EVALUATED, LOSS, NETWORK, in_memory

STEPS = [0.1, 0.3, 0.5]


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    return fl.data.write_population(tmp_path_factory.mktemp("on") / "disk", CLIENTS)


def problem_of(population, key, **settings):
    """A problem whose first model depends on the key of a scenario."""
    settings = {"test": CLIENTS[0]} | settings
    return fl.problems.Model.from_population(population, NETWORK, key, LOSS, **settings)


def learner(step_size, clients_per_round=4):
    return fl.algorithms.SCAFFOLD(step_size, clients_per_round=clients_per_round, local_steps=2)


@pytest.fixture
def scenario(population):
    def build(key, step_size):
        return fl.Simulation(
            problem_of(population, key), learner(step_size), metrics=["test_error"]
        )

    return build


@pytest.fixture
def reads(monkeypatch):
    """The numbers of the clients of every cohort that is read."""
    requests = []
    read = fl.data.Population.read

    def noted(self, clients):
        requests.append(np.asarray(clients).tolist())
        return read(self, clients)

    monkeypatch.setattr(fl.data.Population, "read", noted)
    return requests


def keys_of(seed, root=0):
    """The keys of a run's scenario and of its rounds."""
    return jax.random.split(jax.random.fold_in(random_key(root), seed))


def identical(results, expected):
    assert set(results) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(results[name], expected[name], err_msg=name)


def test_a_sweep_equals_single_runs_bit_for_bit(population, reads):
    """Also where points have participants of their own, and metrics are of evaluated clients."""

    def scenario(key, step_size, clients_per_round):
        test = [CLIENTS[k] for k in EVALUATED]
        problem = problem_of(population, key, test=test, evaluated=EVALUATED)
        algorithm = learner(step_size, clients_per_round)
        return fl.Simulation(problem, algorithm, metrics=["test_error", "client_accuracy"])

    grid = {"step_size": [0.1, 0.4], "clients_per_round": fl.static([3, 4])}
    results = fl.sweep(
        scenario, rounds=4, seeds=[0, 7], grid=grid, record_every=2, keep_models=True
    )
    # Two seeds, four rounds, and two numbers of participants.
    assert len(reads) == 16
    assert results.client.values.tolist() == list(EVALUATED)
    assert results.model.dims == ("step_size", "clients_per_round", "seed", "parameter")
    for seed, step_size, count in [(0, 0.1, 3), (7, 0.4, 3), (7, 0.1, 4)]:
        k_scenario, k_run = keys_of(seed)
        simulation = scenario(k_scenario, step_size, count)
        single = fl.run(simulation, 4, key=k_run, record_every=2)
        point = {"step_size": step_size, "clients_per_round": count, "seed": seed}
        identical(results.sel(point), single)


@pytest.mark.slow
def test_every_cohort_is_read_once_for_all_points(scenario, reads):
    fl.sweep(scenario, rounds=3, seeds=2, grid={"step_size": STEPS})
    assert len(reads) == 6
    assert len({tuple(clients) for clients in reads}) == 6


@pytest.mark.slow
def test_networks_of_several_structures_share_cohorts(population, reads):
    def scenario(key, algorithm):
        return fl.Simulation(problem_of(population, key), algorithm, metrics=["test_error"])

    methods = {
        "SCAFFOLD": learner(0.1),
        "FedAvg": fl.algorithms.FedAvg(0.1, clients_per_round=4, batch=2),
        "cyclic": fl.algorithms.FedAvg(0.1, selector=Cyclic(4)),
    }
    fl.sweep(scenario, rounds=2, grid={"algorithm": methods})
    assert len(reads) == 4


@pytest.mark.slow
def test_points_with_independent_noise_have_participants_of_their_own(scenario, reads):
    results = fl.sweep(
        scenario, rounds=3, grid={"step_size": STEPS}, independent_noise=True, keep_models=True
    )
    assert len(reads) == 9
    again = fl.sweep(
        scenario, rounds=3, grid={"step_size": STEPS[:1]}, independent_noise=True, keep_models=True
    )
    np.testing.assert_array_equal(results.model[0], again.model[0])


@pytest.mark.slow
def test_ledgers_of_a_sweep_are_those_of_single_runs(population):
    def scenario(key, noise):
        privacy = fl.privacy.CentralGaussian(noise, clip=0.5)
        algorithm = fl.algorithms.FedAvg(0.3, selector=Fraction(0.05), local_steps=2)
        return fl.Simulation(
            problem_of(population, key), algorithm, metrics=["test_error"], privacy=privacy
        )

    results = fl.sweep(scenario, rounds=3, grid={"noise": [0.5, 1.0]}, keep_models=True)
    k_scenario, k_run = keys_of(0)
    single = fl.run(scenario(k_scenario, 1.0), 3, key=k_run)
    identical(results.sel(noise=1.0, seed=0), single)
    spent = fl.privacy.spent(results, 1e-5).epsilon.sel(noise=1.0, seed=0)
    np.testing.assert_array_equal(spent, fl.privacy.spent(single, 1e-5).epsilon)


# Stores -------------------------------------------------------------------------------------------


def stopped_at(monkeypatch, number, calls):
    """Raise at the ``calls``-th start of this round."""
    start = population_run.CohortRun.start_round
    rounds = []

    def stopping(run, participants, data):
        rounds.append(run.number + 1)
        if rounds.count(number) == calls:
            raise KeyboardInterrupt
        return start(run, participants, data)

    monkeypatch.setattr(population_run.CohortRun, "start_round", stopping)
    return rounds


def store_each_record(monkeypatch):
    monkeypatch.setattr(population_study, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(population_study, "LEAST_INTERVAL", 0)
    monkeypatch.setattr("fljax.study.executor.FLUSH_SECONDS", 0)


@pytest.mark.parametrize("calls", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupted_sweep_goes_on(scenario, tmp_path, monkeypatch, reads, calls):
    """After a stop between rounds, and in the middle of the points of one; seed 1 is at work."""
    settings = {"rounds": 6, "seeds": 2, "grid": {"step_size": STEPS}, "record_every": 2}
    uninterrupted = fl.sweep(scenario, **settings)
    with monkeypatch.context() as patch:
        store_each_record(patch)
        stopped_at(patch, 5, 3 + calls)
        with pytest.raises(fl.Interrupted) as stopped:
            fl.sweep(scenario, **settings, store=tmp_path / "study")
    assert stopped.value.results.done.sum() == 3
    assert not np.isnan(stopped.value.results.test_error.sel(seed=1)[:, :2]).any()
    reads.clear()
    rounds = stopped_at(monkeypatch, 0, 1)
    identical(fl.sweep(scenario, **settings, store=tmp_path / "study"), uninterrupted)
    assert rounds == [5, 5, 5, 6, 6, 6]
    assert len(reads) == 2
    reads.clear()
    identical(fl.sweep(scenario, **settings, store=tmp_path / "study"), uninterrupted)
    assert not reads
    identical(fl.load(tmp_path / "study"), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("keep_state", [True, False])
def test_a_finished_sweep_grows(scenario, tmp_path, monkeypatch, keep_state):
    """More rounds continue from the states, if there are some; seeds and points are added."""
    small = {"rounds": 4, "seeds": 1, "grid": {"step_size": STEPS[:2]}, "keep_models": True}
    large = {"rounds": 6, "seeds": 2, "grid": {"step_size": STEPS}, "keep_models": True}
    store = {"store": tmp_path / "study", "keep_state": keep_state}
    fl.sweep(scenario, **small, **store)
    rounds = stopped_at(monkeypatch, 0, 1)
    grown = fl.sweep(scenario, **large, **store)
    assert len(rounds) == 6 * 6 - keep_state * 2 * 4
    identical(grown, fl.sweep(scenario, **large))


@pytest.mark.slow
def test_shards_of_a_sweep_are_merged(scenario, tmp_path):
    settings = {"rounds": 3, "seeds": 2, "grid": {"step_size": STEPS}}
    for part in (1, 2):
        fl.sweep(scenario, **settings, store=tmp_path / f"part {part}", shard=f"{part}/2")
    fl.merge(tmp_path / "all", tmp_path / "part 1", tmp_path / "part 2")
    identical(fl.load(tmp_path / "all"), fl.sweep(scenario, **settings))


def test_evaluated_clients_are_in_the_store(population, tmp_path):
    def scenario(key):
        test = [CLIENTS[k] for k in (2, 5)]
        problem = problem_of(population, key, evaluated=[2, 5], test=test)
        return fl.Simulation(problem, learner(0.1), metrics=["client_accuracy"])

    results = fl.sweep(scenario, rounds=2, store=tmp_path / "study")
    assert fl.load(tmp_path / "study").client.values.tolist() == [2, 5]
    identical(fl.load(tmp_path / "study"), results)


@pytest.mark.slow
def test_another_population_is_another_study(population, tmp_path):
    def study_of(population):
        def scenario(key):
            return fl.Simulation(problem_of(population, key), learner(0.1), metrics=["test_error"])

        return fl.sweep(scenario, rounds=2, store=tmp_path / "study")

    first = study_of(population)
    identical(study_of(fl.data.write_population(tmp_path / "moved", CLIENTS)), first)
    changed = [(x + 1, y) for x, y in CLIENTS]
    with pytest.raises(fl.OtherStudyError, match="program"):
        study_of(fl.data.write_population(tmp_path / "changed", changed))


@pytest.mark.slow
def test_a_killed_sweep_resumes(population, tmp_path):
    """Killed again and again, wherever it is."""
    program = textwrap.dedent(
        """
        import sys, jax, fljax as fl
        from fljax.study import executor, population_study
        population_study.CHECKPOINT_SECONDS = population_study.LEAST_INTERVAL = 0
        executor.FLUSH_SECONDS = 0
        population = fl.data.Population(sys.argv[1])
        def scenario(key, step_size):
            problem = fl.problems.Model.from_population(
                population, fl.models.mlp(2, hidden=[4]), key, fl.problems.Softmax(2),
                test=population[0],
            )
            algorithm = fl.algorithms.SCAFFOLD(step_size, clients_per_round=4, local_steps=2)
            return fl.Simulation(problem, algorithm, metrics=["test_error"])
        results = fl.sweep(
            scenario, rounds=60, seeds=2, grid={"step_size": [0.1, 0.3]}, record_every=4,
            store=sys.argv[2], progress=False,
        )
        print(repr(results.test_error.values.tolist()))
        """
    )

    def start(folder):
        command = [sys.executable, "-c", program, str(population.folder), str(folder)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    uninterrupted = start(tmp_path / "whole").communicate()[0]
    kills = 0
    folder = tmp_path / "study"
    for seconds in np.random.default_rng(0).uniform(0, 0.3, 4):
        before = len(list(folder.glob("runs-*"))) if folder.exists() else 0
        process = start(folder)
        while process.poll() is None and len(list(folder.glob("runs-*"))) == before:
            time.sleep(0.01)
        time.sleep(seconds)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
    text = start(folder).communicate()[0]
    assert kills
    assert text == uninterrupted
    assert len(text) > 500


def test_runs_end_at_their_tolerances(scenario, reads):
    """Each run ends separately, and nothing is read once all have ended."""
    settings = {"rounds": 20, "grid": {"step_size": [0.02, 0.9, 0.8]}}
    to_the_end = fl.sweep(scenario, **settings)
    level = float(to_the_end.test_error.sel(step_size=0.9)[0, 5])
    expected = []
    for curve in to_the_end.test_error.values[:, 0]:
        below = np.flatnonzero(curve[1::2] <= level)  # checked every second record
        expected.append(2 * below[0] + 2 if len(below) else 0)
    assert 0 < min(expected[1:]) < max(expected[1:]) <= 8
    assert expected[0] == 0
    ended = fl.sweep(scenario, **settings, until={"test_error": level})
    assert ended.stopped.values.tolist() == [[n] for n in expected]
    for point, last in enumerate(expected):
        until = slice(last or None)
        np.testing.assert_array_equal(
            ended.test_error[point, 0, until], to_the_end.test_error[point, 0, until]
        )
    reads.clear()
    fast = {"rounds": 20, "grid": {"step_size": [0.9, 0.8]}, "until": {"test_error": level}}
    fl.sweep(scenario, **fast)
    # One cohort more may be read while the runs end.
    assert max(expected) <= len(reads) <= max(expected) + 2


# Fractions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        {"privacy": fl.privacy.CentralGaussian(1.0, clip=0.5)},
        {},
        {"participation": fl.participation.Markov(0.4, 0.5)},
    ],
    ids=["private", "plain", "available"],
)
@pytest.mark.thin(1, every=1)
def test_independent_participants_are_those_from_memory(tmp_path, parts):
    """The same clients with the same losses, and the amplified ledger of each."""
    clients = [CLIENTS[k % 12] for k in range(60)]
    population = fl.data.write_population(tmp_path / "p", clients)
    memory = fl.problems.Model.from_clients(
        NETWORK, jax.random.key(3), clients, LOSS, test=CLIENTS[:1]
    )
    disk = problem_of(population, jax.random.key(3))
    algorithm = fl.algorithms.FedAvg(0.3, selector=Fraction(0.1), local_steps=2)
    from_memory, from_disk = (
        fl.run(fl.Simulation(problem, algorithm, metrics=["test_error"], **parts), 12, key=5)
        for problem in (memory, disk)
    )
    np.testing.assert_allclose(from_memory.model[0], from_disk.model, rtol=1e-11, atol=1e-15)
    for name in set(from_disk) - {"model"}:
        np.testing.assert_allclose(
            from_memory[name], from_disk[name], rtol=1e-11, atol=1e-15, err_msg=name
        )
    if "privacy" in parts:
        amplified, plain = (fl.privacy.spent(r, 1e-5) for r in (from_disk, from_memory))
        np.testing.assert_array_equal(amplified.epsilon, plain.epsilon)
        np.testing.assert_array_equal(amplified.client_epsilon, plain.client_epsilon)
        assert float(from_disk.sampling_rate) == pytest.approx(0.1)


def test_more_independent_participants_than_rows_stop_the_run(population, monkeypatch):
    """It never happens with the probability that the rows are made for."""
    monkeypatch.setattr(population_run, "RARE", 0.5)
    simulation = fl.Simulation(
        problem_of(population, jax.random.key(0)),
        fl.algorithms.FedAvg(0.3, selector=Fraction(0.2)),
        metrics=["test_error"],
    )
    with pytest.raises(ValueError, match=r"Fraction\(.*\) invited \d+ clients to round \d+, and"):
        fl.run(simulation, rounds=40)


# Clients of very different sizes ------------------------------------------------------------------


def uneven_clients(largest=200):
    """Eleven small clients and a large one."""
    rng = np.random.default_rng(1)
    for size in [3, 4, 5, 6, 3, 4, 5, 6, 3, largest, 4, 5]:
        x = rng.normal(size=(size, 3)).astype("f4")
        yield x, (x[:, 0] > 0).astype("i4")


UNEVEN = list(uneven_clients())


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    return fl.data.write_population(tmp_path_factory.mktemp("uneven") / "disk", UNEVEN)


def test_a_large_client_does_not_enlarge_the_arrays_of_others(uneven):
    """A round has room for the samples of the largest participants, not for as many each."""
    problem = problem_of(uneven, jax.random.key(3))
    assert uneven.most_samples(4) == 200 + 6 + 6 + 5
    features = problem.read(np.array([9, 0, 1, 2]))["features"]
    assert features.pool.shape == (217, 3)
    assert problem.shapes(4)["features"].pool.shape == (217, 3)
    # A client that is listed again has its samples once, and none where it is repeated.
    again = problem.read(np.array([9, 0, 0, 2]))
    assert (again["weights"] > 0).sum(1).tolist() == [200, 3, 0, 5]
    np.testing.assert_array_equal(again["features"].pool[200:203], UNEVEN[0][0])
    even = dataclasses.replace(problem, padded=True)
    assert even.read(np.array([9, 0, 1, 2]))["features"].shape == (4, 200, 3)


@pytest.mark.parametrize(
    "algorithm",
    [
        fl.algorithms.SCAFFOLD(0.1, clients_per_round=4, local_steps=3),
        fl.algorithms.FedAvg(0.3, clients_per_round=4, epochs=1, batch=4),
        fl.algorithms.FedAvg(0.3, selector=Cyclic(5), local_steps=2, batch=4),
        fl.algorithms.FedAvg(0.3, selector=Fraction(0.05), local_steps=2),
        fl.algorithms.QFedAvg(0.1, fairness=1.0, clients_per_round=4, local_steps=2),
    ],
    ids=["controls", "epochs", "cyclic", "fraction", "losses"],
)
@pytest.mark.parametrize("linear", [True, False], ids=["linear", "network"])
@pytest.mark.thin(1, every=1)
def test_clients_of_different_sizes_learn_as_from_memory(uneven, algorithm, linear):
    test = UNEVEN[0]
    if linear:
        memory = fl.problems.from_clients(UNEVEN, LOSS, test=[test]).clipped(0.7)
        disk = fl.problems.from_population(uneven, LOSS, test=test).clipped(0.7)
    else:
        key = jax.random.key(3)
        memory = fl.problems.Model.from_clients(NETWORK, key, UNEVEN, LOSS, test=[test])
        disk = problem_of(uneven, key, test=test)
    from_memory, from_disk = (
        fl.run(fl.Simulation(problem, algorithm, metrics=["test_error"]), 6, key=5)
        for problem in (memory, disk)
    )
    np.testing.assert_allclose(from_memory.model[0], from_disk.model, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(from_memory.test_error, from_disk.test_error, rtol=1e-10)


# Devices ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_devices_share_the_cohorts_of_a_sweep(population):
    """Each of four reads and computes a quarter of every cohort, once for all points."""
    program = textwrap.dedent(
        """
        import sys, jax
        jax.config.update("jax_enable_x64", True)
        import numpy as np, fljax as fl
        read = []
        def noted(self, clients, function=fl.data.Population.read):
            read.append(len(clients))
            return function(self, clients)
        fl.data.Population.read = noted
        population = fl.data.Population(sys.argv[1])
        def scenario(key, step_size):
            problem = fl.problems.Model.from_population(
                population, fl.models.mlp(2, hidden=[4]), key, fl.problems.Softmax(2),
                test=population[0],
            )
            algorithm = fl.algorithms.SCAFFOLD(step_size, clients_per_round=4, local_steps=2)
            return fl.Simulation(problem, algorithm, metrics=["test_error"])
        study = {"rounds": 3, "grid": {"step_size": [0.1, 0.3]}, "keep_models": True}
        shared, alone = (fl.sweep(scenario, **study, shard_over=o) for o in ("clients", "seeds"))
        assert jax.device_count() == 4
        assert read == 3 * 4 * [1] + 3 * [4], read
        for part in alone:
            np.testing.assert_allclose(shared[part], alone[part], rtol=1e-10, atol=1e-13)
        """
    )
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    subprocess.run(
        [sys.executable, "-c", program, str(population.folder)],
        env=os.environ | {"XLA_FLAGS": flags},
        check=True,
    )


# Tuning and comparing -----------------------------------------------------------------------------


@pytest.mark.slow
def test_methods_are_compared_over_a_population(population, reads):
    def scenario(key, algorithm):
        return fl.Simulation(problem_of(population, key), algorithm, metrics=["test_error"])

    def averaging(step_size):
        return fl.algorithms.FedAvg(step_size, clients_per_round=4, local_steps=2)

    methods = {
        "FedAvg": (averaging, {"step_size": (0.01, 1.0)}),
        "SCAFFOLD": (learner, {"step_size": (0.01, 1.0)}),
    }
    comparison = fl.compare(
        scenario,
        methods,
        metric="test_error",
        rounds=6,
        seeds=2,
        tuning_seeds=2,
        points=3,
        extensions=0,
        refinements=0,
    )
    # All candidates of both methods share the cohorts of the two seeds of the tuning.
    assert len(reads) == 2 * 6 + 2 * 6
    step = float(comparison.results.step_size.sel(algorithm="SCAFFOLD"))
    k_scenario, k_run = keys_of(1)
    single = fl.run(scenario(k_scenario, learner(step)), 6, key=k_run)
    chosen = comparison.results.sel(algorithm="SCAFFOLD", seed=1)
    np.testing.assert_array_equal(chosen.test_error, single.test_error)
    assert comparison.results.gradients.sel(algorithm="FedAvg").values.tolist() == [
        2 * 4 * 11 * n for n in range(1, 7)
    ]


@pytest.mark.slow
def test_halvings_continue_runs_over_a_population(population, reads):
    def scenario(key, algorithm):
        return fl.Simulation(problem_of(population, key), algorithm, metrics=["test_error"])

    methods = {"SCAFFOLD": (learner, {"step_size": (0.001, 1.0)})}
    tuned = fl.tune(
        scenario,
        methods,
        metric="test_error",
        rounds=8,
        seeds=1,
        points=8,
        extensions=0,
        refinements=0,
        halvings=1,
    )
    assert len(reads) == 8
    assert set(tuned.methods) == {"SCAFFOLD"}


@pytest.mark.parametrize(
    ("algorithm", "gradients"),
    [
        (learner(0.1), 4 * 2 * 11),
        (fl.algorithms.SCAFFOLD(0.1, 4, local_steps=3, variate="gradient"), 4 * (3 + 1) * 11),
        (fl.algorithms.FedAvg(0.1, 4, local_steps=2, batch=3), 4 * 2 * 3),
    ],
)
@pytest.mark.thin(1, every=1)
def test_gradients_of_a_round_are_counted_as_in_memory(population, algorithm, gradients):
    memory, disk = (
        evaluations(lambda key, p=p: fl.Simulation(p, algorithm, metrics=["test_error"]), 3)
        for p in (in_memory(), problem_of(population, jax.random.key(3)))
    )
    assert memory == disk
    assert memory[1].gradients == gradients


# What cannot be had -------------------------------------------------------------------------------


def test_settings_of_blocks_are_refused(scenario):
    for setting in ({"block": 2}, {"workers": 3}):
        with pytest.raises(ValueError, match="divides runs whose data are in memory"):
            fl.sweep(scenario, rounds=2, grid={"step_size": STEPS}, **setting)
    with pytest.raises(ValueError, match=r"fljax.sweep needs no plan"):
        fl.plan(scenario, rounds=2, grid={"step_size": STEPS})


def test_points_in_memory_are_a_study_of_their_own(population):
    def scenario(key, where):
        problem = in_memory() if where == "memory" else problem_of(population, key)
        return fl.Simulation(problem, learner(0.1), metrics=["test_error"])

    with pytest.raises(ValueError, match="others have their clients in memory"):
        fl.sweep(scenario, rounds=2, grid={"where": ["memory", "disk"]})


def test_all_points_evaluate_the_same_clients(population):
    def scenario(key, evaluated):
        problem = problem_of(population, key, evaluated=evaluated, test=None)
        return fl.Simulation(problem, learner(0.1), metrics=["train_error"])

    with pytest.raises(ValueError, match="evaluate different clients"):
        fl.sweep(scenario, rounds=2, grid={"evaluated": {"a": (0, 1), "b": (2, 3)}})


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (fl.algorithms.FedAvg(0.1), "Everyone may invite all 12 clients"),
        (fl.algorithms.ConventionalFL(0.1), "does not learn with some of a server's clients"),
        (fl.algorithms.FedFomo(0.1, clients_per_round=3), "on how many clients there are"),
        (fl.algorithms.FedPer(0.1, personal=[0, 1], clients_per_round=3), "states are asked for"),
    ],
)
@pytest.mark.thin(2, every=1)
def test_algorithms_that_need_all_clients_are_refused_with_their_point(
    population, algorithm, message, reads
):
    def scenario(key, algorithm):
        return fl.Simulation(problem_of(population, key), algorithm, metrics=["test_error"])

    grid = {"algorithm": {"fine": learner(0.1), "greedy": algorithm}}
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        fl.sweep(scenario, rounds=2, grid=grid)
    assert not reads
    notes = getattr(caught.value, "__notes__", [])
    assert "greedy" in "".join(notes)


def test_states_of_clients_that_do_not_fit_are_refused(scenario, monkeypatch):
    monkeypatch.setattr("fljax.study.population_study.host_memory", lambda: 10**4)
    monkeypatch.setattr("fljax._core.memory.SMALL_BYTES", 200)
    monkeypatch.setattr("fljax._core.memory.host_memory", lambda: 100)
    with pytest.raises(MemoryError, match=r"keeps of the clients of a population"):
        fl.sweep(scenario, rounds=2, grid={"step_size": STEPS})


@pytest.mark.slow
def test_points_that_do_not_fit_together_come_one_after_the_other(scenario, monkeypatch, reads):
    together = fl.sweep(scenario, rounds=2, grid={"step_size": STEPS})
    reads.clear()
    monkeypatch.setattr("fljax.study.population_study.memory_at_hand", lambda: 1)
    identical(fl.sweep(scenario, rounds=2, grid={"step_size": STEPS}), together)
    assert len(reads) == 3 * 2
