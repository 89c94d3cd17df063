"""A run over a population on disk is the run from memory but for rounding; resumed, bit for bit."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.devices import configured
from fljax.participation.patterns import Markov
from fljax.participation.selectors import Cyclic, Drawn, Fraction, PowerOfChoice, Unequal
from fljax.simulation import checkpoints, client_states, population_run

NETWORK = fl.models.mlp(2, hidden=[4])
LOSS = fl.problems.Softmax(2)
KEY = jax.random.key(3)
EVALUATED = (1, 4, 9)


def make_clients(count=12):
    rng = np.random.default_rng(0)
    for n in rng.integers(3, 12, count):
        x = rng.normal(size=(n, 3)).astype("f4")
        yield x, (x[:, 0] > 0).astype("i4")


CLIENTS = list(make_clients())


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    return fl.data.write_population(tmp_path_factory.mktemp("on") / "disk", CLIENTS)


def in_memory(evaluated=False, **settings):
    test = CLIENTS if evaluated else CLIENTS[:1]
    return fl.problems.Model.from_clients(NETWORK, KEY, CLIENTS, LOSS, test=test, **settings)


def on_disk(population, evaluated=False, **settings):
    test = [CLIENTS[k] for k in EVALUATED] if evaluated else CLIENTS[0]
    return fl.problems.Model.from_population(
        population,
        NETWORK,
        KEY,
        LOSS,
        test=test,
        evaluated=EVALUATED if evaluated else None,
        **settings,
    )


def run_both(
    population, algorithm, rounds=7, record_every=1, evaluated=False, metrics=None, **parts
):
    """The run from memory and the run from disk."""
    metrics = ["test_error", "accuracy"] if metrics is None else metrics
    problems = in_memory(evaluated), on_disk(population, evaluated)
    return [
        fl.run(
            fl.Simulation(problem, algorithm, metrics=metrics, **parts),
            rounds=rounds,
            record_every=record_every,
            key=5,
        )
        for problem in problems
    ]


#: Another program may round otherwise; every draw is the same.
ROUNDING = {"rtol": 1e-11, "atol": 1e-15}


def same(memory, disk):
    np.testing.assert_allclose(memory.model[0], disk.model, **ROUNDING)
    for name in set(disk) - {"model"}:
        if disk[name].dtype.kind in "iub":
            np.testing.assert_array_equal(memory[name], disk[name], err_msg=name)
        else:
            np.testing.assert_allclose(memory[name], disk[name], err_msg=name, **ROUNDING)
    assert not np.isnan(disk.test_error).any()


def identical(result, expected):
    for name in {*result, *expected}:
        np.testing.assert_array_equal(result[name], expected[name], err_msg=name)


@pytest.mark.parametrize(
    "algorithm",
    [
        fl.algorithms.FedAvg(0.3, clients_per_round=4, epochs=2, batch=4),
        fl.algorithms.FedAvg(0.3, clients_per_round=4, epochs=2, batch=4, weighting="samples"),
        fl.algorithms.FedAvg(0.3, clients_per_round=4, local_steps=tuple(range(1, 13)), batch=2),
        fl.algorithms.FedAvg(0.3, selector=Cyclic(5), local_steps=2),
        fl.algorithms.FedAvg(0.1, selector=Unequal(3, np.arange(1, 13) / 78), batch=4),
        fl.algorithms.SCAFFOLD(0.1, clients_per_round=4, epochs=2, batch=4),
        fl.algorithms.SCAFFOLD(0.1, clients_per_round=4, local_steps=3, variate="gradient"),
        fl.algorithms.FedDyn(0.1, attraction=0.1, clients_per_round=4, local_steps=3, batch=4),
        fl.algorithms.FedAdam(
            0.1, server_step_size=0.1, clients_per_round=4, local_steps=3, batch=4
        ),
    ],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.thin(5, every=1)
def test_a_population_run_equals_the_run_from_memory(population, algorithm):
    same(*run_both(population, algorithm))


@pytest.mark.slow
def test_noise_in_gradients_is_that_from_memory(population):
    privacy = fl.privacy.NoisyGradients(0.8, clip=0.5)
    algorithm = fl.algorithms.FedDPSGD(0.1, clients_per_round=4)
    same(*run_both(population, algorithm, privacy=privacy))


@pytest.mark.slow
def test_clients_keep_their_optimizer_states(population):
    optax = pytest.importorskip("optax")
    algorithm = fl.algorithms.FedAvg(
        optax.adam(0.05), clients_per_round=4, local_steps=3, batch=4, keeps_optimizer=True
    )
    same(*run_both(population, algorithm))


@pytest.mark.parametrize(
    "parts",
    [
        {"participation": Markov(0.4, 0.5)},
        {"delays": fl.link.Geometric(0.5, 3)},
        {"compression": fl.link.TopK(6)},  # not 5, which cuts a pair of opposite gradients
        {"losses": fl.link.Independent(0.3)},
        {"upload_noise": fl.link.UploadNoise(0.1)},
        {"aggregation": fl.aggregation.Median()},
        {"masks": fl.link.SecureAggregation(1.0)},
        {"privacy": fl.privacy.CentralGaussian(noise_multiplier=1.0, clip=0.5)},
        {
            "privacy": fl.privacy.CentralGaussian(
                1.0, clip=0.5, strategy=fl.privacy.matrices.square_root(3)
            )
        },
        {"attack": fl.attacks.SignFlip(fl.attacks.first(3, 12))},
    ],
    ids=lambda parts: next(iter(parts)),
)
@pytest.mark.thin(4, every=1)
def test_stages_and_privacy_equal_those_from_memory(population, parts):
    algorithm = fl.algorithms.FedAvg(0.3, clients_per_round=4, local_steps=2, batch=4)
    same(*run_both(population, algorithm, **parts))


@pytest.mark.slow
def test_states_travel_with_their_clients(population):
    """A client's control is the one of its last participation, regardless of rounds in between."""
    algorithm = fl.algorithms.SCAFFOLD(0.1, selector=Cyclic(4), local_steps=2)
    same(*run_both(population, algorithm, rounds=11, participation=Markov(0.4, 0.5)))


@pytest.mark.parametrize("evaluated", [False, True])
def test_records_follow_record_every(population, evaluated):
    algorithm = fl.algorithms.FedAvg(0.3, clients_per_round=4, local_steps=2)
    memory, disk = run_both(population, algorithm, rounds=6, record_every=3)
    same(memory, disk)
    assert disk["round"].values.tolist() == [3, 6]


@pytest.mark.slow
def test_own_models_are_judged_of_the_evaluated_clients(population):
    solver = fl.algorithms.FedAvg(0.2, clients_per_round=4, local_steps=3, batch=4)
    algorithm = fl.algorithms.Ditto(solver, 0.1, attraction=0.5)
    metrics = ["client_accuracy", "validation_error", "train_error"]
    memory, disk = run_both(population, algorithm, rounds=9, evaluated=True, metrics=metrics)
    assert "model" not in disk
    for name in ("client_accuracy", "validation_error"):
        np.testing.assert_allclose(memory[name][:, list(EVALUATED)], disk[name], **ROUNDING)
    assert float(disk.train_error.mean()) == pytest.approx(
        float(memory.train_error[:, list(EVALUATED)].mean())
    )


def test_participants_of_a_population_are_not_recorded(population):
    """They are the numbers of clients that are not in memory."""
    with pytest.raises(ValueError, match="'participation' needs clients in memory"):
        fl.Simulation(
            on_disk(population, evaluated=True),
            fl.algorithms.FedAvg(0.1, clients_per_round=2),
            metrics=["participation"],
        )


@pytest.mark.slow
def test_ledgers_cover_all_clients_and_metrics_the_evaluated_ones(population):
    """The numbers of clients say whose metrics these are."""
    memory, disk = run_both(
        population,
        fl.algorithms.FedAvg(0.3, clients_per_round=4, batch=4),
        privacy=fl.privacy.CentralGaussian(noise_multiplier=1.0, clip=0.5),
        evaluated=True,
        metrics=["client_accuracy"],
    )
    assert disk.client_releases.dims == ("population",)
    np.testing.assert_array_equal(disk.client_releases, memory.client_releases)
    assert disk.client.values.tolist() == list(EVALUATED)
    for client in EVALUATED:
        np.testing.assert_array_equal(
            disk.client_accuracy.sel(client=client), memory.client_accuracy[:, client]
        )


@pytest.mark.slow
def test_initial_models_of_evaluated_clients_are_used(population):
    start = np.random.default_rng(1).normal(size=in_memory().dim)
    solver = fl.algorithms.FedAvg(0.2, clients_per_round=1)
    algorithm = fl.algorithms.Ditto(solver, 0.1, attraction=0.5)
    memory, disk = (
        fl.run(
            fl.Simulation(problem.starting_at(start), algorithm, metrics=["validation_error"]),
            rounds=1,
        )
        for problem in (in_memory(evaluated=True), on_disk(population, evaluated=True))
    )
    np.testing.assert_allclose(
        memory.validation_error[:, list(EVALUATED)], disk.validation_error, **ROUNDING
    )


@pytest.mark.slow
def test_the_server_s_model_is_judged_of_the_evaluated_clients(population):
    algorithm = fl.algorithms.FedAvg(0.3, clients_per_round=4, local_steps=2)
    metrics = ["client_accuracy", "train_error"]
    memory, disk = run_both(population, algorithm, evaluated=True, metrics=metrics)
    for name in metrics:
        np.testing.assert_allclose(memory[name][:, list(EVALUATED)], disk[name], **ROUNDING)


@pytest.mark.parametrize("strength", [0.3, np.linspace(0.1, 0.2, 12)])
def test_each_client_keeps_its_share_of_the_regularizer(population, strength):
    penalty = fl.problems.SquaredL2()
    disk = on_disk(population, evaluated=True, regularizer=penalty, strength=strength)
    reference = in_memory(regularizer=penalty, strength=strength)
    np.testing.assert_allclose(
        disk.judged.share, np.broadcast_to(reference.share, 12)[list(EVALUATED)]
    )
    algorithm = fl.algorithms.FedAvg(0.3, clients_per_round=4, local_steps=2)
    runs = [
        fl.run(fl.Simulation(p, algorithm, metrics=["test_error"]), rounds=5)
        for p in (reference, on_disk(population, regularizer=penalty, strength=strength))
    ]
    same(*runs)


@pytest.mark.slow
def test_at_most_three_cohorts_are_in_memory(population, monkeypatch):
    """At most three of twenty cohorts are in memory at a time."""
    read = []
    at_work = []

    def stopping_round(self, clients):
        read.append(len(at_work))
        return uninterrupted(self, clients)

    def counted(*args, **settings):
        at_work.append(len(read))
        return step(*args, **settings)

    uninterrupted = fl.data.Population.read
    step = population_run._run_round
    monkeypatch.setattr(fl.data.Population, "read", stopping_round)
    monkeypatch.setattr(population_run, "_run_round", counted)
    simulation = fl.Simulation(
        on_disk(population), fl.algorithms.FedAvg(0.3, clients_per_round=4), metrics=["accuracy"]
    )
    fl.run(simulation, rounds=20)
    assert len(read) == 20
    assert max(read_so_far - n for n, read_so_far in enumerate(at_work)) <= 2


@pytest.mark.slow
def test_every_cohort_is_read_once(population, monkeypatch):
    read = type(population).read
    requests = []

    def noted(self, clients):
        requests.append(clients.tolist())
        return read(self, clients)

    monkeypatch.setattr(type(population), "read", noted)
    algorithm = fl.algorithms.SCAFFOLD(0.1, selector=Cyclic(4), batch=2)
    simulation = fl.Simulation(on_disk(population), algorithm, metrics=["test_error"])
    fl.run(simulation, rounds=3)
    assert requests == [[0, 4, 8], [1, 5, 9], [2, 6, 10]]


@pytest.mark.parametrize("loss", ["LeastSquares", "Logistic", "Softmax"])
@pytest.mark.parametrize(
    ("algorithm", "parts"),
    [
        (fl.algorithms.FedAvg(0.1, clients_per_round=4, epochs=2, batch=4), {}),
        (fl.algorithms.SCAFFOLD(0.1, clients_per_round=4, local_steps=3), {}),
        (fl.algorithms.QFedAvg(0.1, fairness=1.0, clients_per_round=4, local_steps=2), {}),
        (
            fl.algorithms.FedDPSGD(0.1, clients_per_round=4),
            {"privacy": fl.privacy.NoisyGradients(0.8, clip=0.5)},
        ),
        (
            fl.algorithms.FedProx(0.1, attraction=0.1, clients_per_round=4, local_steps=3),
            {"privacy": fl.privacy.CentralGaussian(noise_multiplier=1.0, clip=0.5)},
        ),
    ],
    ids=["steps", "controls", "fair", "sampled", "private"],
)
@pytest.mark.thin(6, every=1)
def test_linear_predictions_equal_those_from_memory(tmp_path, loss, algorithm, parts):
    labels = {"LeastSquares": lambda y: y + 0.5, "Logistic": lambda y: 2 * y - 1}
    data = [(x, labels.get(loss, lambda y: y)(y)) for x, y in CLIENTS]
    written = fl.data.write_population(tmp_path / "p", data)
    kind = fl.problems.Softmax(2) if loss == "Softmax" else getattr(fl.problems, loss)()
    ridge = fl.problems.SquaredL2(), 0.3
    memory = fl.problems.from_clients(data, kind, *ridge, test=data)
    disk = fl.problems.from_population(
        written, kind, *ridge, test=[data[k] for k in EVALUATED], evaluated=EVALUATED
    )
    if "privacy" not in parts:
        memory = memory.clipped(0.7)
        disk = disk.clipped(0.7)
    metrics = ["train_error", "test_error"]
    from_disk, from_memory = (
        fl.run(fl.Simulation(problem, algorithm, metrics=metrics, **parts), 6, key=5)
        for problem in (memory, disk)
    )
    np.testing.assert_allclose(from_disk.model[0], from_memory.model, **ROUNDING)
    for name in set(from_memory) - {"model", "test_error"}:
        value = (
            from_disk[name].sel(client=list(EVALUATED))
            if name == "train_error"
            else from_disk[name]
        )
        np.testing.assert_allclose(value, from_memory[name], err_msg=name, **ROUNDING)
    # Values that only a run from memory has.
    assert set(from_disk) - set(from_memory) <= {"step_bound", "first_step"}


@pytest.mark.slow
def test_new_numbers_reuse_the_program(population):
    def run_with(step, key):
        algorithm = fl.algorithms.FedAvg(step, clients_per_round=4, local_steps=2)
        simulation = fl.Simulation(on_disk(population), algorithm, metrics=["accuracy"])
        fl.run(simulation, rounds=3, key=key)

    run_with(0.1, 0)
    before = population_run._run_round._cache_size()
    run_with(0.2, 7)
    assert population_run._run_round._cache_size() == before


# Resuming, and kept files -------------------------------------------------------------------------


def kept_run(population, folder, algorithm=None, rounds=8, key=5, record_every=1, **parts):
    algorithm = algorithm or fl.algorithms.SCAFFOLD(0.1, clients_per_round=4, local_steps=2)
    simulation = fl.Simulation(on_disk(population), algorithm, metrics=["test_error"], **parts)
    return fl.run(simulation, rounds, key=key, record_every=record_every, store=folder)


@pytest.mark.parametrize("stop", [2, 5, 8])
@pytest.mark.parametrize("settled", [True, False])
def test_an_interrupted_run_goes_on(population, tmp_path, monkeypatch, stop, settled):
    """After a stop between rounds, or between a checkpoint and the clients' file."""
    uninterrupted = kept_run(population, tmp_path / "whole")
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0)
    part = population_run._run_round
    settle = client_states.ClientStates.settle

    def stopping_round(simulation, key, carry, number, *rest, **static):
        if number == stop:
            raise KeyboardInterrupt
        return part(simulation, key, carry, number, *rest, **static)

    monkeypatch.setattr(population_run, "_run_round", stopping_round)
    if not settled:
        monkeypatch.setattr(client_states.ClientStates, "settle", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        kept_run(population, tmp_path / "run", participation=None)
    monkeypatch.setattr(client_states.ClientStates, "settle", settle)
    called = []
    monkeypatch.setattr(
        population_run,
        "_run_round",
        lambda *a, **static: called.append(int(a[3])) or part(*a, **static),
    )
    again = kept_run(population, tmp_path / "run")
    if settled:
        assert called == list(range(stop, 9))
    identical(uninterrupted, again)


@pytest.mark.slow
def test_checkpoints_are_between_records_too(population, tmp_path, monkeypatch):
    uninterrupted = kept_run(population, tmp_path / "whole", record_every=4)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 0)
    part = population_run._run_round
    for stop in (3, 7):

        def stopping_round(*args, stop=stop, **static):
            if args[3] == stop:
                raise KeyboardInterrupt
            return part(*args, **static)

        monkeypatch.setattr(population_run, "_run_round", stopping_round)
        with pytest.raises(KeyboardInterrupt):
            kept_run(population, tmp_path / "run", record_every=4)
    monkeypatch.setattr(population_run, "_run_round", part)
    identical(uninterrupted, kept_run(population, tmp_path / "run", record_every=4))


def test_a_finished_run_is_not_computed_again(population, tmp_path, monkeypatch):
    first = kept_run(population, tmp_path / "run")
    monkeypatch.setattr(population_run, "_run_round", None)
    monkeypatch.setattr(type(population), "read", None)  # nor read
    identical(first, kept_run(population, tmp_path / "run"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": 6}, "the key"),
        ({"rounds": 9}, "rounds"),
        ({"algorithm": fl.algorithms.FedAvg(0.1, clients_per_round=4)}, "the simulation"),
        ({"participation": Markov(0.1, 0.5)}, "the simulation"),
    ],
)
def test_a_folder_is_of_one_run(population, tmp_path, change, message):
    kept_run(population, tmp_path / "run", rounds=2)
    with pytest.raises(ValueError, match=f"holds another run: it differs in .*{message}"):
        kept_run(population, tmp_path / "run", **{"rounds": 2, **change})


def linen_network():
    return fl.models.linen(flax.linen.Dense(2))


def straight_through(factor):
    """A network that rounds, with a custom gradient."""

    @jax.custom_jvp
    def rounded(x):
        return jnp.round(x)

    rounded.defjvp(lambda primals, tangents: (jnp.round(*primals), factor * tangents[0]))

    def init(key):
        return {"w": jax.random.normal(key, (3, 2))}

    return fl.models.plain(init, lambda p, x: x @ p["w"] + rounded(x @ p["w"]))


def run_of(population, folder, network):
    problem = fl.problems.Model.from_population(population, network, KEY, LOSS, test=CLIENTS[0])
    algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=4, local_steps=2)
    return fl.run(fl.Simulation(problem, algorithm), 2, store=folder)


def test_another_gradient_of_a_rounding_is_another_run(population, tmp_path):
    run_of(population, tmp_path / "run", straight_through(1.0))
    run_of(population, tmp_path / "run", straight_through(1.0))
    with pytest.raises(ValueError, match="holds another run: it differs in the simulation"):
        run_of(population, tmp_path / "run", straight_through(0.25))


def test_a_rebuilt_linen_network_gives_the_same_run(population, tmp_path):
    first = run_of(population, tmp_path / "run", linen_network())
    flax.linen.Dense(3)
    identical(first, run_of(population, tmp_path / "run", linen_network()))


def test_another_precision_of_products_is_another_run(population, tmp_path):
    kept_run(population, tmp_path / "run", rounds=2)
    with (
        jax.default_matmul_precision("bfloat16"),
        pytest.raises(ValueError, match="holds another run: it differs in options"),
    ):
        kept_run(population, tmp_path / "run", rounds=2)


def test_a_folder_in_use_is_refused(population, tmp_path):
    folder = checkpoints.RunFolder(tmp_path / "run", {})
    with pytest.raises(fl.StoreError, match="in use by another process"):
        kept_run(population, tmp_path / "run")
    folder.close()


def test_a_checkpoint_that_was_cut_is_refused(population, tmp_path):
    kept_run(population, tmp_path / "run", rounds=2)
    path = tmp_path / "run" / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(fl.StoreError, match="cannot be read"):
        kept_run(population, tmp_path / "run", rounds=2)


def interrupted(population, folder, monkeypatch, stop=6):
    """A run that ended before its end, with rows of clients in the file."""
    part = population_run._run_round

    def stopping_round(simulation, key, carry, number, *rest, **static):
        if number == stop:
            raise KeyboardInterrupt
        return part(simulation, key, carry, number, *rest, **static)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0)
        patch.setattr(population_run, "_run_round", stopping_round)
        with pytest.raises(KeyboardInterrupt):
            kept_run(population, folder)


DAMAGES = {
    "a flipped bit in each number": lambda b: bytes(x ^ (i % 4 == 0) for i, x in enumerate(b)),
    "zeros": lambda b: bytes(len(b)),
    "cut": lambda b: b[: len(b) // 2],
    "empty": lambda b: b"",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_altered_rows_of_clients_are_refused(population, tmp_path, monkeypatch, damage):
    interrupted(population, tmp_path / "run", monkeypatch)
    path = tmp_path / "run" / "clients.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(fl.StoreError, match=r"clients.bin was cut or altered"):
        kept_run(population, tmp_path / "run")


def test_rows_of_clients_from_another_checkpoint_are_refused(population, tmp_path, monkeypatch):
    """A folder that was copied while its run went on."""
    interrupted(population, tmp_path / "run", monkeypatch, stop=3)
    path = tmp_path / "run" / "clients.bin"
    before = path.read_bytes()
    interrupted(population, tmp_path / "run", monkeypatch)
    path.write_bytes(before)
    with pytest.raises(fl.StoreError, match=r"clients.bin was cut or altered"):
        kept_run(population, tmp_path / "run")


def test_a_checkpoint_with_other_numbers_is_refused(population, tmp_path, monkeypatch):
    interrupted(population, tmp_path / "run", monkeypatch)
    path = tmp_path / "run" / "checkpoint.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **(arrays | {"carry/0": arrays["carry/0"] + 1}))
    with pytest.raises(fl.StoreError, match="it does not match its own digest"):
        kept_run(population, tmp_path / "run")


@pytest.mark.parametrize("name", ["clients.bin", "checkpoint.npz", "notes.txt", "study.json"])
def test_a_folder_with_other_files_is_refused_for_a_run(population, tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(fl.StoreError, match="is no run of fljax and is not empty"):
        kept_run(population, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: b"mine"}


def test_a_run_needs_the_name_of_a_folder(population, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="store must be the name of a folder, got ''"):
        kept_run(population, "")
    assert not list(tmp_path.iterdir())


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
    population, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(population_run, "_run_round", None)
        with pytest.raises(TypeError):
            kept_run(population, tmp_path / "run")
    assert {"run.json", "clients.bin"} <= {path.name for path in (tmp_path / "run").iterdir()}
    identical(kept_run(population, tmp_path / "run"), kept_run(population, tmp_path / "whole"))


def test_readers_of_a_folder_get_the_results_of_a_finished_run(population, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    finished = tmp_path / "finished"
    begun = tmp_path / "begun"
    first = kept_run(population, finished)
    interrupted(population, begun, monkeypatch)
    monkeypatch.setattr(checkpoints.FileLock, "acquire", refuse)
    monkeypatch.setattr(checkpoints, "write_whole", refuse)
    monkeypatch.setattr("builtins.open", reading_only)
    identical(first, kept_run(population, finished))
    with pytest.raises(fl.StoreError, match=r"cannot write to .*begun: Permission denied"):
        kept_run(population, begun)


def reading_only(path, mode="r", *rest, opened=open, **settings):
    if set(mode) & set("wax+"):
        raise PermissionError(13, "Permission denied")
    return opened(path, mode, *rest, **settings)


def test_a_full_disk_is_reported_with_a_remedy(population, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_whole", full)
    with pytest.raises(fl.StoreError, match=r"No space left on device.*run the same study again"):
        kept_run(population, tmp_path / "run")


def test_a_population_may_move(population, tmp_path):
    first = kept_run(population, tmp_path / "run", rounds=2)
    moved = fl.data.write_population(tmp_path / "elsewhere", CLIENTS)
    identical(first, kept_run(moved, tmp_path / "run", rounds=2))


@pytest.mark.slow
def test_a_killed_run_resumes(population, tmp_path):
    """Killed again and again, wherever it is."""
    program = textwrap.dedent(
        """
        import sys, jax, fljax as fl
        from fljax.simulation import checkpoints
        checkpoints.CHECKPOINT_SECONDS = 0
        population = fl.data.Population(sys.argv[1])
        problem = fl.problems.Model.from_population(
            population, fl.models.mlp(2, hidden=[4]), jax.random.key(3), fl.problems.Softmax(2),
            test=population[0],
        )
        algorithm = fl.algorithms.SCAFFOLD(0.1, clients_per_round=4, local_steps=2)
        simulation = fl.Simulation(problem, algorithm, metrics=["test_error"])
        run = fl.run(simulation, rounds=400, key=5, store=sys.argv[2])
        print(repr(run.test_error.values.tolist()))
        """
    )

    def start(folder):
        return subprocess.Popen(
            [sys.executable, "-c", program, str(population.folder), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def newest():
        times = [0]
        for path in (tmp_path / "run").rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                times.append(path.stat().st_mtime_ns)
        return max(times)

    uninterrupted = start(tmp_path / "whole").communicate()[0]
    kills = 0
    for seconds in np.random.default_rng(0).uniform(0, 0.2, 6):
        process = start(tmp_path / "run")
        before = newest()
        while process.poll() is None and newest() == before:
            time.sleep(0.01)
        time.sleep(seconds)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
    text = start(tmp_path / "run").communicate()[0]
    assert kills
    assert text == uninterrupted
    assert len(text) > 1000


# What cannot be had -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (fl.algorithms.FedAvg(0.1), "Everyone may invite all 12 clients .* GB of samples"),
        (fl.algorithms.FedAvg(0.1, clients_per_round=12), "may invite all 12 clients"),
        (fl.algorithms.FedAvg(0.1, selector=Fraction(0.5)), "Fraction may invite all"),
        (
            fl.algorithms.FedAvg(0.1, selector=PowerOfChoice(2, candidates=4)),
            "PowerOfChoice does not choose by the round's key alone",
        ),
        (fl.algorithms.ConventionalFL(0.1), "does not learn with some of a server.s clients"),
    ],
)
def test_algorithms_that_need_all_clients_are_refused(population, algorithm, message):
    simulation = fl.Simulation(on_disk(population), algorithm, metrics=["accuracy"])
    with pytest.raises(ValueError, match=message):
        fl.run(simulation, rounds=2)


def test_an_algorithm_that_compares_all_clients_is_refused_with_its_size(population):
    @fl.module
    class Nosy(fl.algorithms.FedAvg):
        def step(self, state, now):
            state = super().step(state, now)
            return state._replace(model=state.model + now.problem.features[0, 0].sum())

    simulation = fl.Simulation(on_disk(population), Nosy(0.1, clients_per_round=3))
    with pytest.raises(TypeError, match=r"all clients' features are asked for.*GB"):
        fl.run(simulation, rounds=2)


@pytest.mark.parametrize(
    ("algorithm", "error", "message"),
    [
        (
            fl.algorithms.FedAMP(
                0.1, attraction=0.1, attention_step_size=0.1, scale=1.0, clients_per_round=3
            ),
            TypeError,
            "all clients' .* are asked for",
        ),
        (
            fl.algorithms.FedPer(0.1, personal=[0, 1], clients_per_round=3),
            TypeError,
            "all clients' states are asked for",
        ),
        (
            fl.algorithms.FedFomo(0.1, clients_per_round=3),
            ValueError,
            "on how many clients there are",
        ),
    ],
)
def test_an_algorithm_that_compares_all_clients_is_refused(population, algorithm, error, message):
    simulation = fl.Simulation(on_disk(population), algorithm)
    with pytest.raises(error, match=message):
        fl.run(simulation, rounds=2)


def test_clients_of_a_population_have_no_factors_of_their_own(population):
    problem = on_disk(population)
    with pytest.raises(ValueError, match=r'one importance each; take .* weighting="samples"'):
        problem.weighing(np.ones(problem.clients))


def test_states_that_depend_on_the_number_of_clients_are_refused(population):
    @fl.module
    class Shares(fl.algorithms.SCAFFOLD):
        def init(self, problem, network):
            state = super().init(problem, network)
            return state._replace(controls=state.controls + 1 / problem.clients)

    simulation = fl.Simulation(on_disk(population), Shares(0.1, clients_per_round=3))
    with pytest.raises(ValueError, match="depends from the start on how many clients"):
        fl.run(simulation, rounds=2)


def test_a_second_choice_is_refused(population):
    @fl.module
    class Twice(fl.algorithms.FedAvg):
        def step(self, state, now):
            now.choose(Drawn(2))
            return super().step(state, now)

    simulation = fl.Simulation(on_disk(population), Twice(0.1, clients_per_round=3))
    with pytest.raises(ValueError, match=r"chooses by Drawn\(count=2\) besides Drawn\(count=3\)"):
        fl.run(simulation, rounds=2)


@pytest.mark.parametrize("metric", ["train_error", "objective"])
def test_metrics_of_all_data_need_clients_that_are_evaluated(population, metric):
    with pytest.raises(ValueError, match="say of which clients"):
        fl.Simulation(
            on_disk(population), fl.algorithms.FedAvg(0.1, clients_per_round=3), metrics=[metric]
        )


@pytest.mark.parametrize("evaluated", [[], [0, 0], [12], [-1], [0.5]])
def test_clients_that_are_evaluated_are_different_ones(population, evaluated):
    with pytest.raises(ValueError, match="evaluated must be"):
        fl.problems.Model.from_population(population, NETWORK, KEY, LOSS, evaluated=evaluated)


def test_held_out_data_belong_to_the_given_clients(population):
    with pytest.raises(ValueError, match="say which clients they are of"):
        fl.problems.Model.from_population(population, NETWORK, KEY, LOSS, test=CLIENTS[:2])


def test_a_store_is_of_a_population(tmp_path):
    simulation = fl.Simulation(in_memory(), fl.algorithms.FedAvg(0.1, clients_per_round=3))
    with pytest.raises(ValueError, match="a run from memory is kept by"):
        fl.run(simulation, rounds=2, store=tmp_path / "run")


def test_the_clients_of_a_run_from_memory_are_shared_out_by_a_sweep(population):
    algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=3)
    with pytest.raises(ValueError, match=r"fljax.sweep\(scenario, seeds=1, shard_over"):
        fl.run(fl.Simulation(in_memory(), algorithm), rounds=2, shard_over="clients")
    simulation = fl.Simulation(on_disk(population), algorithm, metrics=["accuracy"])
    with pytest.raises(ValueError, match="unknown shard_over 'seeds'; known: clients"):
        fl.run(simulation, rounds=2, shard_over="seeds")


def test_a_changed_client_stops_the_run(tmp_path):
    population = fl.data.write_population(tmp_path / "p", CLIENTS)
    problem = on_disk(population)
    path = population.folder / "features.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    simulation = fl.Simulation(
        problem, fl.algorithms.FedAvg(0.1, selector=Cyclic(4)), metrics=["accuracy"]
    )
    with pytest.raises(ValueError, match=r"samples of client 11 .* were changed"):
        fl.run(simulation, rounds=8)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([(np.ones((3, 2, 2)), np.ones(3))], r"got features \[2, 2\] and targets \[\]"),
        ([(np.ones((3, 2)), np.ones((3, 1)))], r"got features \[2\] and targets \[1\]"),
    ],
)
def test_linear_predictions_are_of_rows(tmp_path, clients, message):
    population = fl.data.write_population(tmp_path / "p", clients)
    with pytest.raises(ValueError, match=message):
        fl.problems.from_population(population, fl.problems.LeastSquares())


def test_linear_predictions_that_need_all_data_are_refused(population):
    problem = fl.problems.from_population(population, fl.problems.Softmax(2))
    with pytest.raises(ValueError, match="feature_bound is for data in memory"):
        dataclasses.replace(problem, feature_bound=1.0)
    evaluated = fl.problems.from_population(population, fl.problems.Softmax(2), evaluated=[1])
    algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=4)
    for metric in ("normalized_error", "suboptimality"):
        with pytest.raises(ValueError, match="the optimum, which is that of all clients' data"):
            fl.Simulation(evaluated, algorithm, metrics=[metric])


@pytest.mark.parametrize("linear", [True, False])
def test_labels_are_checked_by_the_loss(tmp_path, linear):
    """A population's targets are seen when they are read."""
    wrong = [(x, 5 * y) for x, y in CLIENTS]
    population = fl.data.write_population(tmp_path / "p", wrong)
    problem = (
        fl.problems.from_population(population, LOSS)
        if linear
        else fl.problems.Model.from_population(population, NETWORK, KEY, LOSS)
    )
    algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=4)
    with pytest.raises(ValueError, match="labels among 0, 1 for the softmax loss, got 5"):
        fl.run(fl.Simulation(problem, algorithm), rounds=2)


def test_numbers_beyond_the_precision_are_refused(tmp_path):
    population = fl.data.write_population(
        tmp_path / "p", [(np.full((3, 2), 1e300), np.ones(3))] * 5
    )
    algorithm = fl.algorithms.FedAvg(0.1, clients_per_round=4)
    with configured("jax_enable_x64", False):
        problem = fl.problems.from_population(population, fl.problems.LeastSquares())
        with pytest.raises(ValueError, match="features of the population"):
            fl.run(fl.Simulation(problem, algorithm), rounds=2)


def test_rows_record_their_clients(population):
    states = client_states.ClientStates(5, [((2,), "float32"), ((), "int32")])
    parts = [np.arange(4, dtype="f4").reshape(2, 2), np.array([7, 8], "i4")]
    states.write(np.array([3, 1]), np.array([True, False]), parts)
    (rows, numbers), has_state = states.read(np.array([1, 3]))
    assert has_state.tolist() == [False, True]
    assert rows.tolist() == [[0, 0], [0, 1]]
    assert numbers.tolist() == [0, 7]
