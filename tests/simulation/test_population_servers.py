"""Several servers over a population on disk: each reads a cohort of its own clients, and the run is
the one from memory but for rounding.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import random_key
from fljax.participation.patterns import Markov
from fljax.participation.selectors import Cyclic, Drawn, Fraction, PerServer, PowerOfChoice
from fljax.simulation import population_run

NETWORK = fl.models.mlp(2, hidden=[4])
LOSS = fl.problems.Softmax(2)
KEY = jax.random.key(3)
CLIENTS = 15
EVALUATED = (1, 5, 9, 14)
HOME = (0, 1, 2, 2, 0, 1, 2, 2, 0, 1, 2, 2, 0, 1, 2)  # servers of 4, 4 and 7 clients
SERVERS = fl.federation.Federation(HOME, fl.graphs.path(3))
TREE = fl.graphs.Tree(HOME, None, ((0, 0, 1), (0, 0)))
CLUSTERS = fl.problems.Tasks(np.arange(CLIENTS) % 2, clusters=2)

#: Another program may round otherwise; every draw is the same.
ROUNDING = {"rtol": 1e-10, "atol": 1e-13}


def make_clients():
    rng = np.random.default_rng(0)
    for n in rng.integers(3, 12, CLIENTS):
        x = rng.normal(size=(n, 3)).astype("f4")
        yield x, (x[:, 0] > 0).astype("i4")


DATA = list(make_clients())
REAL_DATA = [(x, x @ np.array([1.0, -2.0, 0.5], "f4") + 0.1 * y) for x, y in DATA]


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    return fl.data.write_population(tmp_path_factory.mktemp("of") / "labels", DATA)


@pytest.fixture(scope="module")
def real_population(tmp_path_factory):
    return fl.data.write_population(tmp_path_factory.mktemp("of") / "numbers", REAL_DATA)


def on_disk(population, evaluated=EVALUATED):
    test = DATA[0] if evaluated is None else [DATA[k] for k in evaluated]
    return fl.problems.Model.from_population(
        population, NETWORK, KEY, LOSS, test=test, evaluated=evaluated
    )


def networks(population):
    """The problem of networks in memory and on disk."""
    memory = fl.problems.Model.from_clients(NETWORK, KEY, DATA, LOSS, test=DATA)
    return memory, on_disk(population)


def linear(population):
    """The problem of linear predictions of two clusters in memory and on disk."""
    parts = fl.problems.LeastSquares(), fl.problems.SquaredL2(), 0.1
    evaluated = [REAL_DATA[k] for k in EVALUATED]
    return (
        fl.problems.from_clients(REAL_DATA, *parts, tasks=CLUSTERS, test=REAL_DATA),
        fl.problems.from_population(
            population, *parts, tasks=CLUSTERS, test=evaluated, evaluated=EVALUATED
        ),
    )


def run_both(problems, algorithm, network, rounds=6, **parts):
    """The run from memory and the run from disk."""
    parts.setdefault("metrics", ["train_error", "validation_error"])
    return [
        fl.run(fl.Simulation(problem, algorithm, network, **parts), rounds=rounds, key=5)
        for problem in problems
    ]


def same(memory, disk):
    """Metrics of the evaluated clients, models of the servers, and a run's counts."""
    assert set(disk) <= set(memory)
    assert {"train_error", "validation_error", "bits_up"} <= set(disk)
    for name in set(disk) - {"model"}:
        expected = memory[name]
        if "client" in disk[name].dims:
            expected = expected[:, list(EVALUATED)]
        np.testing.assert_allclose(expected, disk[name], err_msg=name, **ROUNDING)
    if "model" in disk:
        assert disk.model.dims == ("server", "parameter")
        np.testing.assert_allclose(memory.model, disk.model.values[list(HOME)], **ROUNDING)
    assert len(np.unique(disk.train_error)) > 1


@pytest.mark.parametrize(
    ("algorithm", "network"),
    [
        (fl.algorithms.GraphFedAvg(0.3, local_steps=3, clients_per_server=2), SERVERS),
        (
            fl.algorithms.HierFAVG(
                0.3, local_steps=3, batch=2, selector=PerServer(2), intervals=2, fractions=0.5
            ),
            TREE,
        ),
        (
            fl.algorithms.HierFAVG(
                0.3, epochs=2, batch=4, selector=Drawn(5), weighting="samples", intervals=2
            ),
            TREE,
        ),
        (
            fl.algorithms.HierLocalQSGD(
                0.3,
                local_steps=2,
                selector=Cyclic(3),
                compressors_up=fl.link.Quantize(4),
            ),
            TREE,
        ),
    ],
    ids=["graph", "tree", "drawn", "quantized"],
)
@pytest.mark.thin(2, every=1)
def test_several_servers_equal_those_from_memory(population, algorithm, network):
    memory, disk = run_both(networks(population), algorithm, network)
    same(memory, disk)
    assert disk.model.shape[0] == 3


@pytest.mark.parametrize(
    "algorithm",
    [
        fl.algorithms.PGFL(3.0, 0.2, clients_per_server=2),
        fl.algorithms.PGFL(3.0, 0.2, clients_per_server=2, empty_cell="skip"),
        fl.algorithms.GFL(3.0, clients_per_server=3),
        fl.algorithms.ClusterFL(3.0, clients_per_server=2),
    ],
    ids=["PGFL", "skipped cells", "GFL", "ClusterFL"],
)
@pytest.mark.parametrize("model", ["exact", "released"])
@pytest.mark.thin(2, every=1)
def test_personalized_servers_equal_those_from_memory(real_population, algorithm, model):
    """Clients' models and duals travel with them."""
    memory, disk = run_both(linear(real_population), algorithm, SERVERS, rounds=9, model=model)
    same(memory, disk)


@pytest.mark.parametrize(
    "parts",
    [
        {"participation": Markov(0.4, 0.5)},
        {"delays": fl.link.Geometric(0.5, 3)},
        {"losses": fl.link.Independent(0.3), "aggregation": fl.aggregation.Median()},
        {"compression": fl.link.TopK(6), "attack": fl.attacks.SignFlip(fl.attacks.first(3, 15))},
        {"masks": fl.link.SecureAggregation(1.0)},
    ],
    ids=lambda parts: next(iter(parts)),
)
@pytest.mark.thin(1, every=1)
def test_stages_equal_those_from_memory(population, parts):
    algorithm = fl.algorithms.HierFAVG(0.3, local_steps=2, batch=4, selector=PerServer(2))
    same(*run_both(networks(population), algorithm, TREE, **parts))


@pytest.mark.parametrize("neighbors", ["replace", "client"])
def test_noise_of_clients_is_that_from_memory(population, neighbors):
    problems = [problem.clipped(1.0) for problem in networks(population)]
    budget = fl.privacy.ZCDP(total_rho=10.0, gradient_bound=1.0, neighbors=neighbors)
    algorithm = fl.algorithms.GraphFedAvg(0.3, clients_per_server=2)
    memory, disk = run_both(problems, algorithm, SERVERS, privacy=budget)
    np.testing.assert_allclose(memory.client_rho, disk.client_rho, **ROUNDING)
    assert 0 < float(disk.client_rho.max()) <= 10
    same(memory, disk.drop_vars("client_rho"))


@pytest.mark.slow
def test_noise_of_edges_is_that_from_memory(tmp_path):
    """Each edge perturbs the sum of its clients, which it samples independently."""
    data = DATA * 20
    servers = fl.graphs.Tree(HOME * 20, None, ((0, 0, 0),))
    written = fl.data.write_population(tmp_path / "p", data)
    problems = (
        fl.problems.from_clients(data, LOSS, test=data),
        fl.problems.from_population(
            written, LOSS, test=[data[k] for k in EVALUATED], evaluated=EVALUATED
        ),
    )
    memory, disk = run_both(
        problems,
        fl.algorithms.HierFAVG(0.3, selector=Fraction(0.05)),
        servers,
        privacy=fl.privacy.CentralGaussian(1.0, clip=0.5),
    )
    np.testing.assert_array_equal(memory.client_releases, disk.client_releases)
    np.testing.assert_allclose(memory.train_error[:, list(EVALUATED)], disk.train_error, **ROUNDING)
    np.testing.assert_allclose(memory.model, disk.model.values[list(HOME * 20)], **ROUNDING)


def test_every_server_reads_clients_of_its_own_once(population, monkeypatch):
    read = type(population).read
    requests = []

    def noted(self, clients):
        requests.append(clients.tolist())
        return read(self, clients)

    monkeypatch.setattr(type(population), "read", noted)
    algorithm = fl.algorithms.GraphFedAvg(0.3, clients_per_server=2)
    fl.run(fl.Simulation(on_disk(population, None), algorithm, SERVERS), rounds=4)
    assert [[HOME[k] for k in cohort] for cohort in requests] == [[0, 0, 1, 1, 2, 2]] * 4
    assert len({k for cohort in requests for k in cohort}) > 6


def test_factors_of_clients_are_not_kept(real_population):
    """They follow from the samples, and are many numbers; models and duals are kept."""
    _, disk = linear(real_population)
    simulation = fl.Simulation(disk, fl.algorithms.PGFL(3.0, clients_per_server=2), SERVERS)
    run = population_run.CohortRun(simulation, KEY, 2, 1)
    assert run.layout.rows == (((3,), "float64"), ((3,), "float64"))
    assert run.layout.kinds.count("constant") >= 2


def test_an_interrupted_run_goes_on(real_population, tmp_path, monkeypatch):
    """Bit for bit, with the clients' states of its file."""

    def kept(folder):
        algorithm = fl.algorithms.PGFL(3.0, 0.2, clients_per_server=2)
        simulation = fl.Simulation(
            linear(real_population)[1], algorithm, SERVERS, metrics=["train_error"]
        )
        return fl.run(simulation, rounds=6, key=5, store=folder)

    uninterrupted = kept(tmp_path / "whole")
    step = population_run._run_round

    def stopping_round(template, key, carry, number, *rest, **static):
        if number == 4:
            raise KeyboardInterrupt
        return step(template, key, carry, number, *rest, **static)

    with monkeypatch.context() as patch:
        patch.setattr("fljax.simulation.checkpoints.CHECKPOINT_SECONDS", 0)
        patch.setattr(population_run, "_run_round", stopping_round)
        with pytest.raises(KeyboardInterrupt):
            kept(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.npz").exists()
    goes_on = kept(tmp_path / "run")
    np.testing.assert_array_equal(goes_on.train_error, uninterrupted.train_error)


def test_a_study_has_the_models_of_its_servers(population, tmp_path):
    """Each run equals that of fl.run; a store records that models are of servers."""

    def scenario(key, step_size):
        algorithm = fl.algorithms.HierFAVG(step_size, selector=PerServer(2), local_steps=2)
        return fl.Simulation(on_disk(population), algorithm, TREE, metrics=["train_error"])

    study = fl.sweep(
        scenario,
        grid={"step_size": [0.1, 0.3]},
        seeds=2,
        rounds=3,
        keep_models=True,
        store=tmp_path / "study",
    )
    assert study.model.dims == ("step_size", "seed", "server", "parameter")
    k_scenario, k_run = jax.random.split(jax.random.fold_in(random_key(0), 1))
    single = fl.run(scenario(k_scenario, 0.3), rounds=3, key=k_run)
    of_study = study.sel(step_size=0.3, seed=1)
    np.testing.assert_array_equal(of_study.model, single.model)
    np.testing.assert_array_equal(of_study.train_error, single.train_error)
    loaded = fl.load(tmp_path / "study")
    assert loaded.model.dims == study.model.dims
    np.testing.assert_array_equal(loaded.model, study.model)


def test_points_with_other_servers_have_participants_of_their_own(population):
    """Each point of a grid of networks equals its run by fl.run."""
    other = fl.federation.Federation(sorted(HOME), fl.graphs.path(3))

    def scenario(key, network):
        algorithm = fl.algorithms.GraphFedAvg(0.3, clients_per_server=2)
        return fl.Simulation(on_disk(population), algorithm, network, metrics=["train_error"])

    grid = {"network": fl.static([SERVERS, other])}
    study = fl.sweep(scenario, grid=grid, seeds=1, rounds=3)
    k_scenario, k_run = jax.random.split(jax.random.fold_in(random_key(0), 0))
    for point, network in enumerate((SERVERS, other)):
        single = fl.run(scenario(k_scenario, network), rounds=3, key=k_run)
        np.testing.assert_array_equal(
            study.train_error.isel(network=point, seed=0), single.train_error
        )


def test_new_numbers_reuse_the_program(population):
    def run_with(step_size, key):
        algorithm = fl.algorithms.GraphFedAvg(step_size, clients_per_server=2)
        fl.run(fl.Simulation(on_disk(population), algorithm, SERVERS), rounds=3, key=key)

    run_with(0.1, 0)
    before = population_run.count_programs()
    run_with(0.2, 7)
    assert population_run.count_programs() == before


# Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "network", "error", "message"),
    [
        (
            fl.algorithms.GraphFedAvg(0.1),
            SERVERS,
            ValueError,
            r"give GFL, gradient clients_per_server=, fewer than the 7 clients of server 2",
        ),
        (
            fl.algorithms.GraphFedAvg(0.1, clients_per_server=5),
            SERVERS,
            ValueError,
            "clients_per_server must be at most the 4 clients of server 0, got 5",
        ),
        (
            fl.algorithms.HierFAVG(0.1),
            TREE,
            ValueError,
            r"give HierFAVG a selector of fewer .* such as fljax.participation.PerServer",
        ),
        (
            fl.algorithms.PGFLSingleStep(1.0),
            SERVERS,
            ValueError,
            "PGFL, single step does not learn with some of a server's clients",
        ),
        (
            fl.algorithms.PGFLByLoss(1.0, clusters=2, clients_per_server=2),
            SERVERS,
            TypeError,
            "all clients' data or states are asked for by PGFL, by loss",
        ),
        (
            fl.algorithms.PGFLByGradient(1.0, clusters=2, step_size=0.5, clients_per_server=2),
            SERVERS,
            TypeError,
            "all clients' data or states are asked for by PGFL, by gradient",
        ),
    ],
)
def test_what_reads_all_clients_is_refused(real_population, algorithm, network, error, message):
    _, disk = linear(real_population)
    with pytest.raises(error, match=message):
        fl.run(fl.Simulation(disk, algorithm, network), rounds=2)


def test_a_choice_by_losses_is_refused(population):
    algorithm = fl.algorithms.HierFAVG(0.1, selector=PowerOfChoice(2, candidates=4))
    with pytest.raises(ValueError, match="compares losses of one server's model"):
        fl.Simulation(on_disk(population), algorithm, TREE)


def test_models_of_servers_are_judged_of_clients_that_are_given(population):
    algorithm = fl.algorithms.GraphFedAvg(0.1, clients_per_server=2)
    simulation = fl.Simulation(
        on_disk(population, evaluated=None), algorithm, SERVERS, metrics=["accuracy"]
    )
    with pytest.raises(TypeError, match=r"all 15 clients .*evaluated=.*one of each server"):
        fl.run(simulation, rounds=2)


def test_a_server_without_clients_is_refused():
    with pytest.raises(ValueError, match="server 1 has no clients"):
        fl.federation.Federation([0, 2, 0, 2], fl.graphs.path(3))


@pytest.mark.parametrize("where", ["init", "step"])
def test_copies_of_servers_models_for_all_clients_are_refused(population, where):
    @fl.module
    class Copying(fl.algorithms.GraphFedAvg):
        def init(self, problem, network):
            return self.copied(super().init(problem, network), network, "init")

        def step(self, state, now):
            return self.copied(super().step(state, now), now.network, "step")

        def copied(self, state, network, when):
            if when != where:
                return state
            return state._replace(model=state.server[jnp.asarray(network.server, jnp.int32)])

    simulation = fl.Simulation(on_disk(population), Copying(0.1, clients_per_server=2), SERVERS)
    with pytest.raises(TypeError, match=r"now.network.of_clients\(models\)"):
        fl.run(simulation, rounds=2)


def test_constants_of_clients_are_not_changed(real_population):
    @fl.module
    class Changing(fl.algorithms.GFL):
        def step(self, state, now):
            state = super().step(state, now)
            factor = state.factor
            return state._replace(factor=factor._replace(weight=factor.weight.astype("f4")))

    algorithm = Changing(1.0, clients_per_server=2)
    with pytest.raises(
        TypeError, match=r"Changing.step changes what follows from clients' samples"
    ):
        fl.run(fl.Simulation(linear(real_population)[1], algorithm, SERVERS), rounds=2)


def test_grids_of_other_numbers_of_servers_keep_no_models(population):
    one = fl.graphs.tree([CLIENTS])

    def scenario(key, network):
        algorithm = fl.algorithms.HierFAVG(0.1, selector=PerServer(2))
        return fl.Simulation(on_disk(population), algorithm, network, metrics=["train_error"])

    with pytest.raises(ValueError, match=r"models of several shapes, .* \(servers, parameters\)"):
        fl.sweep(
            scenario,
            grid={"network": fl.static([one, TREE])},
            seeds=1,
            rounds=2,
            keep_models=True,
        )


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (fl.problems.Tasks([0, 1], clusters=2), "tasks are for 2 clients, but the data have 15"),
        (
            fl.problems.Tasks(
                CLUSTERS.cluster,
                clusters=2,
                validation=fl.problems.from_clients(REAL_DATA, fl.problems.LeastSquares()),
            ),
            "tasks have held-out data of every client",
        ),
    ],
)
def test_tasks_of_a_population_are_of_its_clients(real_population, tasks, message):
    with pytest.raises(ValueError, match=message):
        fl.problems.from_population(real_population, fl.problems.LeastSquares(), tasks=tasks)
