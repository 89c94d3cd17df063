"""Networks with batch normalization, dropout and augmentation against loops of bare flax, step by
step, in float64.
"""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import fljax as fl
from fljax._core.numerics import default_promotion
from fljax._core.prng import key_of, round_key
from fljax.algorithms.network_states import NetworkStates, states_at_start
from fljax.participation.selectors import Participants
from fljax.problems.model import STATES

CLIENTS = 4
SAMPLES = 12
BATCH = 4
STEPS = 4
ROUNDS = 3
STEP = 0.1
MOMENTUM = 0.7


class Normalized(linen.Module):
    """A dense layer, batch normalization, and another one."""

    rate: float = 0.0

    @linen.compact
    def __call__(self, x, train):
        x = linen.Dense(5, param_dtype=float)(x)
        x = linen.BatchNorm(
            use_running_average=not train,
            momentum=MOMENTUM,
            dtype=float,
            param_dtype=float,
            force_float32_reductions=False,
        )(x)
        x = linen.relu(x)
        if self.rate:
            x = linen.Dropout(self.rate, deterministic=not train)(x)
        return linen.Dense(3, param_dtype=float)(x)


class Dropped(linen.Module):
    """Dropout alone."""

    @linen.compact
    def __call__(self, x, train):
        x = linen.relu(linen.Dense(6, param_dtype=float)(x))
        return linen.Dense(3, param_dtype=float)(linen.Dropout(0.4, deterministic=not train)(x))


def client_data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (CLIENTS, SAMPLES))
    features = rng.normal(size=(CLIENTS, SAMPLES, 4)) + labels[..., None] * [1.0, -1.0, 0.5, 0.0]
    return features * np.arange(1, CLIENTS + 1)[:, None, None] + 0.5, labels


X, Y = client_data()
TEST = (X[0, :6] + 0.3, Y[0, :6])


def problem_of(module=None, **settings):
    module = Normalized() if module is None else module
    return fl.problems.Model.from_clients(
        fl.models.linen(module),
        jax.random.key(0),
        list(zip(X, Y, strict=True)),
        fl.problems.Softmax(3),
        test=[TEST],
        **settings,
    )


# ------------------------------------------------------------------- loops with bare flax and NumPy


class Loop:
    """Clients' steps of training, one after the other."""

    def __init__(self, module, layout, policy):
        self.module = module
        self.layout = layout
        self.frozen = policy == "frozen"

    def loss(self, row, stats, x, y, train):
        variables = {"params": self.layout.parameters(row), "batch_stats": stats}
        if train:
            logits, new = self.module.apply(variables, x, train=True, mutable=["batch_stats"])
            stats = new["batch_stats"]
        else:
            logits = self.module.apply(variables, x, train=False)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
        return -jnp.mean(chosen), stats

    def steps(self, row, stats, client, direction, rounds_before):
        """The model and the statistics after the steps of a round on batches in their order."""
        for step in range(STEPS):
            first = (rounds_before * STEPS + step) * BATCH % SAMPLES
            x = jnp.asarray(X[client, first : first + BATCH])
            y = jnp.asarray(Y[client, first : first + BATCH])
            function = functools.partial(self.loss, x=x, y=y, train=not self.frozen)
            gradient, stats = jax.grad(function, has_aux=True)(row, stats)
            row = row - STEP * direction(gradient, row)
        return row, stats

    def errors(self, row, stats):
        """The mean loss on the held-out data."""
        x, y = map(jnp.asarray, TEST)
        return float(self.loss(row, stats, x, y, train=False)[0])


def mean_of(trees):
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees)


def directed(method, server, correction, gradient, row):
    """The direction of a step."""
    attraction = 0.5 * (row - server) if method == "FedProx" else 0.0
    return gradient + correction + attraction


def reference(method, policy):
    """The server's models and the mean losses on held-out data, round by round."""
    problem = problem_of(state=policy)
    loop = Loop(Normalized(), problem.layout, policy)
    variables = Normalized().init(jax.random.key(9), X[0, :1], train=False)
    zero = variables["batch_stats"]
    server = problem.initial
    stats = [zero] * CLIENTS
    common = zero
    control = jnp.zeros_like(server)
    controls = [control] * CLIENTS
    first = jnp.zeros_like(server)
    second = jnp.full_like(server, 1e-3**2)
    personal = np.asarray(problem.coordinates("BatchNorm"))
    rows_kept = [server] * CLIENTS
    own_stats = [zero] * CLIENTS
    models = []
    errors = []
    for number in range(ROUNDS):
        rows = []
        new_stats = []
        for k in range(CLIENTS):
            start = {"averaged": common, "kept": stats[k]}.get(policy, zero)
            begin = jnp.where(personal, rows_kept[k], server) if method == "FedBN" else server

            correction = control - controls[k] if method == "SCAFFOLD" else 0.0
            row, new = loop.steps(
                begin, start, k, functools.partial(directed, method, server, correction), number
            )
            rows.append(row)
            new_stats.append(zero if policy == "frozen" else new)
        mean = mean_of(rows)
        if method == "SCAFFOLD":
            renewed = [
                c - control + (server - row) / (STEPS * STEP)
                for c, row in zip(controls, rows, strict=True)
            ]
            control = control + mean_of([a - b for a, b in zip(renewed, controls, strict=True)])
            controls = renewed
        if method == "FedAdam":
            change = mean - server
            first = 0.9 * first + 0.1 * change
            second = 0.99 * second + 0.01 * change**2
            mean = server + 0.02 * first / (jnp.sqrt(second) + 1e-3)
        if method == "FedBN":
            rows_kept = rows
        if method == "Ditto":  # steps on all samples, from the personal model
            for k in range(CLIENTS):
                for _ in range(2):
                    function = functools.partial(
                        loop.loss, x=jnp.asarray(X[k]), y=jnp.asarray(Y[k]), train=not loop.frozen
                    )
                    gradient, own_stats[k] = jax.grad(function, has_aux=True)(
                        rows_kept[k], own_stats[k]
                    )
                    rows_kept[k] = rows_kept[k] - STEP * (gradient + 0.3 * (rows_kept[k] - server))
        server = mean
        stats = new_stats
        common = mean_of(new_stats)
        evaluated = []
        for k in range(CLIENTS):
            statistics = stats[k] if policy == "kept" else common
            personal_model = jnp.where(personal, rows_kept[k], server)
            row, statistics = {
                "FedBN": (personal_model, statistics),
                "Ditto": (rows_kept[k], own_stats[k]),
            }.get(method, (server, statistics))
            evaluated.append(loop.errors(row, statistics))
        models.append(server)
        errors.append(np.mean(evaluated))
    return np.asarray(models), np.asarray(errors)


def algorithm_of(method):
    settings = {"local_steps": STEPS, "batches": fl.batches.CyclicBatches(BATCH)}
    more = {
        "FedProx": {"attraction": 0.5},
        "FedAdam": {"server_step_size": 0.02, "momentum": 0.9, "decay": 0.99, "adaptivity": 1e-3},
    }.get(method, {})
    if method == "Ditto":
        solver = fl.algorithms.FedAvg(STEP, **settings)
        return fl.algorithms.Ditto(solver, STEP, 0.3, personal_steps=2)
    return getattr(fl.algorithms, method)(STEP, **settings, **more)


def cases():
    """All policies with FedAvg, and a policy with each of the other methods, are quick."""
    for index, method in enumerate(["FedAvg", "SCAFFOLD", "FedProx", "FedAdam", "FedBN", "Ditto"]):
        for policy in STATES:
            quick = method == "FedAvg" or policy == STATES[index % 2]
            yield pytest.param(method, policy, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("method", "policy"), list(cases()))
def test_batch_normalization_is_that_of_a_loop_of_flax(method, policy):
    simulation = fl.Simulation(
        problem_of(state=policy), algorithm_of(method), metrics=["test_error"]
    )
    run = fl.run(simulation, rounds=ROUNDS, key=3)
    with default_promotion():
        models, errors = reference(method, policy)
    # Flax keeps statistics in single precision.
    np.testing.assert_allclose(run.test_error, errors, rtol=1e-6)
    if method not in ("FedBN", "Ditto"):
        np.testing.assert_allclose(run.model.isel(client=0), models[-1], rtol=1e-9, atol=1e-12)
    assert len(set(np.round(errors, 9))) == ROUNDS


def test_statistics_are_counted_where_they_are_sent():
    """Ten numbers, from and to each participant."""
    bits = {}
    for policy in STATES:
        algorithm = fl.algorithms.FedAvg(STEP, batch=BATCH, clients_per_round=2)
        run = fl.run(fl.Simulation(problem_of(state=policy), algorithm), rounds=2)
        bits[policy] = [int(run[name][-1]) for name in ("bits_up", "bits_down")]
    state_bits = 2 * 2 * 10 * 32  # rounds, participants, numbers, bits
    up, down = bits["frozen"]
    assert bits["kept"] == [up, down]
    assert bits["averaged"] == [up + state_bits, down + state_bits]
    assert bits["reset"] == [up + state_bits, down]


# --------------------------------------------------------------------------- dropout, augmentation


def noisy(key, sample):
    """Normal noise, as augmentation."""
    return sample + 0.1 * jax.random.normal(key, sample.shape, sample.dtype)


def reference_with_keys(problem, run_key, augment, clip):
    """FedAvg's model, with the key that each client's step has."""
    layout = problem.layout
    module = Dropped()
    server = problem.initial

    def loss(row, x, y, key):
        key, augment_key = jax.random.split(key)
        if augment:
            keys = jax.random.split(augment_key, len(x))
            x = jnp.stack([noisy(*pair) for pair in zip(keys, x, strict=True)])
        variables = {"params": layout.parameters(row)}
        logits = module.apply(variables, x, train=True, rngs={"dropout": key})
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))

    def clipped(row, x, y, key):
        """Each sample has a key of its own."""
        total = 0.0
        for n in range(BATCH):
            of_sample = jax.random.fold_in(key, n)
            gradient = jax.grad(loss)(row, x[n : n + 1], y[n : n + 1], of_sample)
            total += gradient * jnp.minimum(1, clip / jnp.linalg.norm(gradient)) / BATCH
        return total

    for number in range(ROUNDS):
        training = jax.random.fold_in(key_of(round_key(run_key, number + 1), "training"), 0)
        rows = []
        for k in range(CLIENTS):
            row = server
            for step in range(STEPS):
                first = (number * STEPS + step) * BATCH % SAMPLES
                x = jnp.asarray(X[k, first : first + BATCH])
                y = jnp.asarray(Y[k, first : first + BATCH])
                key = jax.random.fold_in(jax.random.fold_in(training, k), step)
                gradient = (jax.grad(loss) if clip is None else clipped)(row, x, y, key)
                row = row - STEP * gradient
            rows.append(row)
        server = mean_of(rows)
    return np.asarray(server)


@pytest.mark.parametrize("clip", [None, 0.4])
@pytest.mark.parametrize("augment", [None, noisy])
def test_dropout_and_augmentation_are_those_of_a_loop_of_flax(augment, clip):
    problem = problem_of(Dropped(), augment=augment)
    problem = problem if clip is None else problem.clipped(clip)
    key = fl.random_key(5)
    run = fl.run(fl.Simulation(problem, algorithm_of("FedAvg")), rounds=ROUNDS, key=key)
    with default_promotion():
        expected = reference_with_keys(problem, key, augment, clip)
    np.testing.assert_allclose(run.model.isel(client=0), expected, rtol=1e-9, atol=1e-12)


def scenario(key):
    problem = problem_of(Normalized(0.3), augment=noisy, state="kept")
    algorithm = fl.algorithms.FedAvg(STEP, epochs=2, batch=BATCH, clients_per_round=3)
    return fl.Simulation(problem, algorithm, metrics=["test_error"])


def test_policies_are_an_axis_of_a_grid():
    def build(key, state):
        return simulation_of(problem_of(state=state), metrics=["test_error"])

    study = fl.sweep(build, grid={"state": [*STATES]}, rounds=2, seeds=2)
    assert study.network_state.dims == ("state", "seed", "statistic")
    has_statistics = ~np.isnan(study.network_state).any(["seed", "statistic"])
    assert study.state[has_statistics].values.tolist() == ["averaged", "reset"]
    has_statistics = ~np.isnan(study.client_network_state).any(["seed", "client", "statistic"])
    assert study.state[has_statistics].values.tolist() == ["kept"]


def test_seeds_differ_and_blocks_do_not_matter():
    study = fl.sweep(scenario, rounds=3, seeds=4)
    assert len(set(study.test_error.isel(round=-1).values.round(9).tolist())) == 4
    alone = fl.sweep(scenario, rounds=3, seeds=4, block=1)
    np.testing.assert_allclose(study.test_error, alone.test_error, rtol=1e-6)


def test_a_longer_run_continues_a_shorter_one(tmp_path):
    short = fl.sweep(scenario, rounds=2, seeds=2, store=tmp_path / "study")
    long = fl.sweep(scenario, rounds=4, seeds=2, store=tmp_path / "study")
    uninterrupted = fl.sweep(scenario, rounds=4, seeds=2)
    np.testing.assert_array_equal(long.test_error[:, :2], short.test_error)
    np.testing.assert_allclose(long.test_error, uninterrupted.test_error, rtol=1e-6)


@pytest.mark.parametrize("policy", ["averaged", "reset", "frozen", None])
def test_a_population_on_disk_trains_as_one_in_memory(policy, tmp_path):
    pairs = list(zip(X, Y, strict=True))
    architecture = fl.models.linen(Dropped() if policy is None else Normalized(0.3))
    arguments = (architecture, jax.random.key(0))
    settings = {"state": policy, "augment": noisy}
    on_disk = fl.problems.Model.from_population(
        fl.data.write_population(tmp_path / "four", pairs),
        *arguments,
        fl.problems.Softmax(3),
        test=TEST,
        **settings,
    )
    in_memory = fl.problems.Model.from_clients(
        *arguments, pairs, fl.problems.Softmax(3), test=[TEST], **settings
    )
    algorithm = fl.algorithms.FedAvg(STEP, epochs=2, batch=BATCH, clients_per_round=3)
    disk, memory = (
        fl.run(fl.Simulation(problem, algorithm, metrics=["test_error"]), rounds=3, key=4)
        for problem in (on_disk, in_memory)
    )
    np.testing.assert_allclose(disk.test_error, memory.test_error, rtol=1e-6)
    assert int(disk.bits_up[-1]) == int(memory.bits_up[-1])


# ------------------------------------------------------------------------------------------ bounds


class Silent(linen.Module):
    """Batch normalization that cannot be told whether it trains."""

    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(linen.BatchNorm(use_running_average=False)(x))


def simulation_of(problem=None, algorithm=None, **parts):
    problem = problem_of() if problem is None else problem
    algorithm = fl.algorithms.FedAvg(STEP, batch=BATCH) if algorithm is None else algorithm
    return fl.Simulation(problem, algorithm, **parts)


def uneven_problem(**settings):
    data = [(X[0], Y[0]), (X[1, :7], Y[1, :7])]
    return fl.problems.Model.from_clients(
        fl.models.linen(Normalized()), jax.random.key(0), data, fl.problems.Softmax(3), **settings
    )


RING = fl.graphs.ring(CLIENTS)
PAIR = fl.graphs.path(2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: problem_of(Silent()), "takes no argument that says whether it trains"),
        (lambda: problem_of(state="shared"), "unknown state 'shared'"),
        (lambda: problem_of(Dropped(), state="kept"), "this network has"),
        (
            lambda: simulation_of(problem_of(), fl.algorithms.FedBN(STEP, batch=BATCH)),
            "state='kept'",
        ),
        (lambda: problem_of().clipped(1.0), "gradient of a single sample, which is clipped"),
        (lambda: problem_of(augment=3), "augment must be a function"),
        (lambda: problem_of(augment=lambda key: key), "augment has no value"),
        (lambda: problem_of(augment=lambda key, x: x[:2]), "keep the shape of a sample"),
        (lambda: simulation_of(uneven_problem()), "batches of one size"),
        (
            lambda: simulation_of(uneven_problem(state="kept"), fl.algorithms.LocalOnly(STEP)),
            "batches of one size",
        ),
        (
            lambda: simulation_of(
                uneven_problem(state="kept"), fl.algorithms.KGT(STEP), network=PAIR
            ),
            "batches of one size",
        ),
        (
            lambda: simulation_of(
                uneven_problem(state="kept"), fl.algorithms.DiNNO(0.1, STEP), network=PAIR
            ),
            "batches of one size",
        ),
        (lambda: simulation_of(algorithm=fl.algorithms.FedAvg(STEP, batch=5)), "batches of one"),
        (lambda: simulation_of(algorithm=fl.algorithms.FedAvg(STEP, batch=1)), "from one sample"),
        (lambda: fl.algorithms.FedAvg(STEP, drop_last=True), "give batch="),
        (lambda: simulation_of(algorithm=fl.algorithms.MIME(STEP)), "no steps of training"),
        (
            lambda: simulation_of(problem_of(Dropped()), fl.algorithms.DLM(STEP, 1), network=RING),
            "no steps of training",
        ),
        (
            lambda: simulation_of(
                uneven_problem(state="kept"), fl.algorithms.EXTRA(STEP), network=PAIR
            ),
            "batches of one size",
        ),
        (
            lambda: simulation_of(
                problem_of(Dropped()).clipped(1.0),
                fl.algorithms.ATC(STEP),
                network=RING,
                privacy=fl.privacy.ZCDP(total_rho=1.0),
            ),
            "what a sample changes in a message",
        ),
        (lambda: simulation_of(losses=fl.link.Independent(0.1)), "which losses= does not reach"),
        (
            lambda: simulation_of(masks=fl.link.SecureAggregation(1.0)),
            "which masks= does not reach",
        ),
        (
            lambda: simulation_of(privacy=fl.privacy.CentralGaussian(1.0, clip=1.0)),
            "running statistics of clients' data",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()


def test_uneven_clients_leave_their_last_batch_out():
    algorithm = fl.algorithms.FedAvg(STEP, batch=BATCH, drop_last=True)
    run = fl.run(simulation_of(uneven_problem(), algorithm, metrics=["objective"]), rounds=2)
    assert np.isfinite(run.objective).all()


def test_a_trusted_server_may_perturb_models_whose_statistics_stay():
    privacy = fl.privacy.CentralGaussian(1.0, clip=1.0)
    run = fl.run(simulation_of(problem_of(state="kept"), privacy=privacy), rounds=2)
    assert np.isfinite(run.model).all()


@pytest.mark.parametrize(("rate", "capacity"), [(0.5, None), (0.001, 10)])
def test_private_steps_have_dropout_and_augmentation(rate, capacity):
    problem = problem_of(Dropped(), augment=noisy)
    algorithm = fl.algorithms.FedDPSGD(
        STEP, local_steps=2, sampling_rate=rate, capacity=capacity, clients_per_round=3
    )
    privacy = fl.privacy.NoisyGradients(1.0, clip=0.5)
    simulation = fl.Simulation(problem, algorithm, privacy=privacy)
    run = fl.run(simulation, rounds=2, key=1)
    assert np.isfinite(run.model).all()
    without = fl.Simulation(problem_of(Dropped()), algorithm, privacy=privacy)
    if capacity is None:  # the others draw no sample
        assert np.abs(fl.run(without, rounds=2, key=1).model - run.model).max() > 1e-6
    with pytest.raises(ValueError, match="batches of random sizes"):
        fl.Simulation(problem_of(), algorithm)


def peer_gradients(loop, state, models, rounds_before):
    """Each peer's gradient on its batch of a round, and the statistics afterwards."""
    first = rounds_before * BATCH % SAMPLES
    pairs = []
    for client in range(CLIENTS):
        x, y = (jnp.asarray(a[client, first : first + BATCH]) for a in (X, Y))
        function = functools.partial(loop.loss, x=x, y=y, train=True)
        pairs.append(jax.grad(function, has_aux=True)(models[client], state[client]))
    gradients, after = zip(*pairs, strict=True)
    return jnp.stack(gradients), after


def peers_reference(method):
    """The peers' models and mean losses on held-out data after some rounds, on a ring of four."""
    problem = problem_of(state="kept")
    loop = Loop(Normalized(), problem.layout, "kept")
    weights = (jnp.eye(CLIENTS) + jnp.roll(jnp.eye(CLIENTS), 1, 0)) / 3
    weights = weights + jnp.roll(jnp.eye(CLIENTS), -1, 0) / 3
    half = (jnp.eye(CLIENTS) + weights) / 2
    zero = Normalized().init(jax.random.key(9), X[0, :1], train=False)["batch_stats"]
    stats = [zero] * CLIENTS
    models = jnp.tile(problem.initial, (CLIENTS, 1))
    before = last = tracker = None
    for number in range(ROUNDS):
        point = weights @ models if method == "CTA" else models
        gradient, stats = peer_gradients(loop, stats, point, number)
        if method in ("CTA", "Consensus"):
            moved = weights @ models - STEP * gradient
        elif method == "EXTRA":
            moved = weights @ models - STEP * gradient
            if before is not None:
                moved = models + moved - half @ before + STEP * last
        elif method == "DIGing":
            tracker = gradient if tracker is None else weights @ tracker + gradient - last
            moved = weights @ models - STEP * tracker
        else:  # exact diffusion
            adapted = models - STEP * gradient
            moved = half @ (adapted if before is None else adapted + models - last)
        before, models = models, moved
        last = adapted if method == "ExactDiffusion" else gradient
    errors = [loop.errors(row, state) for row, state in zip(models, stats, strict=True)]
    return np.asarray(models), np.mean(errors)


@pytest.mark.parametrize("method", ["Consensus", "CTA", "EXTRA", "DIGing", "ExactDiffusion"])
def test_peers_with_batch_normalization_are_a_loop_of_flax(method):
    algorithm = getattr(fl.algorithms, method)(STEP, batches=fl.batches.CyclicBatches(BATCH))
    simulation = fl.Simulation(
        problem_of(state="kept"), algorithm, network=RING, metrics=["test_error"]
    )
    run = fl.run(simulation, rounds=ROUNDS)
    with default_promotion():
        models, error = peers_reference(method)
    np.testing.assert_allclose(run.model, models, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(run.test_error[-1], error, rtol=1e-6)


ONE_GRADIENT = {
    "ADMMTracking": {"penalty": 1.0},
    "ADPSGD": {},
    "ATC": {},
    "ATCTracking": {},
    "AugDGM": {},
    **{
        name: {"compression": fl.link.TopK(20), "consensus_step_size": 0.3}
        for name in ("BEER", "CEDAS", "ChocoSGD", "LEAD", "MoTEF")
    },
    "DeTAG": {},
    "EpidemicLearning": {},
    "Diffusion": {"after": "metropolis"},
    "GossipSGD": {},
    "NIDS": {},
    "PGEXTRA": {},
    "ProxSkip": {"probability": 0.5},
    "QGDSGDm": {},
    "RandomWalk": {},
    "SGP": {},
    "SampledDiffusion": {},
    "WangElia": {},
}


@pytest.mark.parametrize("method", ONE_GRADIENT)
def test_peers_take_their_one_gradient_in_training(method):
    """Dropout changes the models, and statistics move."""
    algorithm = getattr(fl.algorithms, method)(step_size=STEP, **ONE_GRADIENT[method])
    models = []
    for rate in (0.0, 0.3):
        problem = problem_of(Normalized(rate), state="kept")
        run = fl.run(fl.Simulation(problem, algorithm, network=RING), rounds=2)
        models.append(run.model)
        assert np.std(run.client_network_state, axis=0).min() > 1e-6
    assert np.abs(models[0] - models[1]).max() > 1e-6


@pytest.mark.parametrize("method", ["LED", "DiNNO", "KGT", "SwarmSGD"])
def test_peers_train_with_dropout_and_keep_statistics(method):
    penalty = {"penalty": 0.1} if method == "DiNNO" else {}
    algorithm = getattr(fl.algorithms, method)(step_size=STEP, local_steps=2, **penalty)
    problem = problem_of(Normalized(0.3), state="kept")
    run = fl.run(fl.Simulation(problem, algorithm, network=RING, metrics=["test_error"]), rounds=3)
    assert np.isfinite(run.test_error).all()
    with pytest.raises(ValueError, match="no server of all clients that would average"):
        fl.Simulation(problem_of(), algorithm, network=RING)


@pytest.mark.parametrize(("policy", "dims"), [("averaged", 1), ("kept", 2), ("frozen", None)])
def test_results_hold_the_statistics_for_use_elsewhere(policy, dims):
    problem = problem_of(state=policy)
    run = fl.run(simulation_of(problem, metrics=["test_error"]), rounds=3)
    if dims is None:
        assert "network_state" not in run
        return
    name = "network_state" if dims == 1 else "client_network_state"
    assert run[name].ndim == dims
    numbers = jnp.asarray(run[name].values)
    numbers = jnp.broadcast_to(numbers, (CLIENTS, 10))
    parameters = problem.parameters(jnp.asarray(run.model.values))
    variables = {"params": parameters, **problem.network_state(numbers)}

    def error(variables):
        x, y = map(jnp.asarray, TEST)
        logits = Normalized().apply(variables, x, train=False)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))

    with default_promotion():
        errors = jax.vmap(error)(variables)
    np.testing.assert_allclose(jnp.mean(errors), run.test_error[-1], rtol=1e-6)
    with pytest.raises(ValueError, match="state has 10 numbers"):
        problem.network_state(numbers[:, :3])


# ------------------------------------------------------------------------ networks of each library


def linen_network():
    return fl.models.linen(Normalized(0.5))


def nnx_network():
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(4, 5, rngs=rngs)
            self.norm = nnx.BatchNorm(5, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.last = nnx.Linear(5, 3, rngs=rngs)

        def __call__(self, x):
            return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))

    return fl.models.nnx(Net)


def equinox_network(mode):
    import equinox as eqx

    class Net(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        dropout: eqx.nn.Dropout
        last: eqx.nn.Linear

        def __init__(self, key):
            k_first, k_last = jax.random.split(key)
            self.first = eqx.nn.Linear(4, 5, key=k_first)
            self.norm = eqx.nn.BatchNorm(5, "batch", mode=mode)
            self.dropout = eqx.nn.Dropout(0.5)
            self.last = eqx.nn.Linear(5, 3, key=k_last)

        def __call__(self, x, state, *, key=None):
            x, state = self.norm(self.first(x), state)
            return self.last(self.dropout(jax.nn.relu(x), key=key)), state

    return fl.models.equinox(Net)


def haiku_network():
    import haiku as hk

    def function(x, is_training):
        x = hk.BatchNorm(True, True, MOMENTUM)(hk.Linear(5)(x), is_training)
        x = jax.nn.relu(x)
        if is_training:
            x = hk.dropout(hk.next_rng_key(), 0.5, x)
        return hk.Linear(3)(x)

    return fl.models.haiku(function)


def plain_network():
    def init(key):
        return {"first": jax.random.normal(key, (4, 5)), "last": jnp.ones((5, 3))}

    def hidden(parameters, mean, x):
        return jax.nn.relu(x @ parameters["first"] - mean[None])

    def apply(parameters, state, features):
        return hidden(parameters, state["mean"], features) @ parameters["last"]

    def train(parameters, state, features, key):
        mean = jnp.mean(features @ parameters["first"], axis=0)
        not_dropped = jax.random.bernoulli(key, 0.5, (len(features), 5))
        x = jnp.where(not_dropped, 2 * hidden(parameters, mean, features), 0)
        return x @ parameters["last"], {"mean": 0.7 * state["mean"] + 0.3 * mean}

    return fl.models.plain(init, apply, train=train, state=lambda: {"mean": jnp.zeros(5)})


@pytest.mark.parametrize(
    "make",
    [
        linen_network,
        nnx_network,
        functools.partial(equinox_network, "batch"),
        functools.partial(equinox_network, "ema"),
        haiku_network,
        plain_network,
    ],
)
@pytest.mark.parametrize("policy", ["averaged", pytest.param("kept", marks=pytest.mark.slow)])
def test_every_library_trains_by_the_key_and_evaluates_by_the_state(make, policy):
    network = make()
    x = jnp.asarray(X[0])
    with default_promotion():
        parameters = network.init(fl.random_key(0), x[:1])
        state = network.init_state(fl.random_key(0), x[:1])
        trained, moved = network.train(parameters, state, x, fl.random_key(1))
        again, _ = network.train(parameters, state, x, fl.random_key(1))
        other, _ = network.train(parameters, state, x, fl.random_key(2))
        by_start, by_moved = (network.evaluate(parameters, s, x) for s in (state, moved))
    np.testing.assert_array_equal(trained, again)
    assert np.abs(trained - other).max() > 1e-3  # another mask
    assert np.abs(by_start - by_moved).max() > 1e-3  # other statistics
    problem = fl.problems.Model.from_clients(
        network,
        jax.random.key(0),
        list(zip(X, Y, strict=True)),
        fl.problems.Softmax(3),
        state=policy,
    )
    algorithm = fl.algorithms.FedAvg(STEP, epochs=2, batch=BATCH, clients_per_round=3)
    run = fl.run(fl.Simulation(problem, algorithm, metrics=["train_error"]), rounds=3)
    assert np.isfinite(run.train_error).all()
    name = "network_state" if policy == "averaged" else "client_network_state"
    assert problem.network_state(run[name].values) is not None


ON_TWO_DEVICES = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
import fljax as fl
from tests.models.test_training import of_all_clients
assert jax.local_device_count() == 2
study = fl.sweep(of_all_clients, rounds=2, seeds=2, grid=GRID, shard_over="clients")
fl.save(study, sys.argv[1])
"""


def of_all_clients(key, state):
    problem = problem_of(Normalized(0.3), augment=noisy, state=state)
    algorithm = fl.algorithms.FedAvg(STEP, epochs=1, batch=BATCH)
    return fl.Simulation(problem, algorithm, metrics=["test_error"])


#: Networks so large that a CPU takes one client after the other.
LARGE = """
from fljax.problems import model
model.CACHE_BYTES = 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", LARGE])
def test_two_devices_draw_the_same_masks(first, tmp_path):
    grid = {"state": ["averaged", "kept"]}
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    code = first + ON_TWO_DEVICES.replace("GRID", repr(grid))
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", code, str(tmp_path / "two.nc")]
    subprocess.run(arguments, check=True, env=environment, timeout=300)
    shared = fl.load(tmp_path / "two.nc")
    alone = fl.sweep(of_all_clients, rounds=2, seeds=2, grid=grid)
    np.testing.assert_allclose(shared.test_error, alone.test_error, rtol=1e-6)


def test_statistics_are_averaged_with_the_weights_of_the_models():
    data = [(X[0], Y[0]), (X[1, :8], Y[1, :8])]
    settings = {"local_steps": 2, "batches": fl.batches.CyclicBatches(BATCH)}

    def state_of(clients, **more):
        problem = fl.problems.Model.from_clients(
            fl.models.linen(Normalized()), jax.random.key(0), clients, fl.problems.Softmax(3)
        )
        algorithm = fl.algorithms.FedAvg(STEP, **settings, **more)
        return fl.run(fl.Simulation(problem, algorithm), rounds=1).network_state.values

    first, second = (state_of([pair]) for pair in data)
    np.testing.assert_allclose(state_of(data), (first + second) / 2, rtol=1e-6)
    by_samples = state_of(data, weighting="samples")
    np.testing.assert_allclose(by_samples, 0.6 * first + 0.4 * second, rtol=1e-6)


def test_statistics_are_those_at_the_clients_model_wherever_its_gradient_is():
    """The first step of FedSAM has its gradient elsewhere, and begins where FedAvg's does."""
    settings = {"local_steps": 1, "batches": fl.batches.CyclicBatches(BATCH)}
    states = [
        fl.run(fl.Simulation(problem_of(), algorithm), rounds=1).network_state.values
        for algorithm in (
            fl.algorithms.FedAvg(STEP, **settings),
            fl.algorithms.FedSAM(STEP, radius=0.5, **settings),
        )
    ]
    np.testing.assert_allclose(*states, rtol=1e-6)


def test_two_trainings_of_a_round_have_different_keys_and_one_state():
    problem = problem_of(Normalized(0.3), state="kept").prepare()
    everyone = Participants(None, jnp.ones(CLIENTS, bool))
    before = states_at_start(problem, has_personal=False).common
    states = NetworkStates(problem, "kept", fl.random_key(1), before)
    first = states.of(everyone)
    moved = jax.tree.map(lambda a: a + 1, first.state)
    states.trained(everyone, None, moved)
    second = states.of(everyone)
    keys = np.stack([jax.random.key_data(t.keys) for t in (first, second)])
    assert len(np.unique(keys.reshape(2 * CLIENTS, -1), axis=0)) == 2 * CLIENTS
    for a, b in zip(jax.tree.leaves(second.state), jax.tree.leaves(moved), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_frozen_network_is_in_evaluation_mode_where_samples_are_augmented():
    problem = problem_of(Normalized(0.3), state="frozen", augment=lambda key, x: x).prepare()
    state = jax.tree.map(
        lambda a: jnp.broadcast_to(a, (CLIENTS, *a.shape[1:])), problem.initial_state()
    )
    models = jnp.broadcast_to(problem.initial, (CLIENTS, problem.dim))
    keys = jax.random.split(fl.random_key(0), CLIENTS)
    in_training = problem.in_training(state, keys).gradient(models)
    np.testing.assert_allclose(in_training, problem.gradient(models), rtol=1e-12, atol=1e-15)


REMATERIALIZED = {
    "residual": (
        lambda remat: fl.models.resnet(3, blocks=(1, 1), width=4, groups=2, remat=remat),
        (8, 8, 3),
    ),
    "residual, by batches": (
        lambda remat: fl.models.resnet(3, "batch", blocks=(1, 1), width=4, remat=remat),
        (8, 8, 3),
    ),
    "transformer": (
        lambda remat: fl.models.transformer(
            9, width=8, layers=2, heads=2, longest=6, dropout=0.2, remat=remat
        ),
        (6,),
    ),
}


@pytest.mark.parametrize("name", REMATERIALIZED)
def test_activations_that_are_computed_again_change_memory_alone(name):
    make, sample = REMATERIALIZED[name]
    rng = np.random.default_rng(0)
    if name == "transformer":
        data = [(rng.integers(1, 9, (8, 6)), rng.integers(1, 9, (8, 6)))]
        loss = fl.problems.TokenCrossEntropy(9)
    else:
        data = [(rng.normal(size=(8, *sample)), rng.integers(0, 3, 8))]
        loss = fl.problems.Softmax(3)
    problems = [
        fl.problems.Model.from_clients(make(remat), jax.random.key(0), data, loss)
        for remat in (False, True)
    ]
    stored, again = problems
    assert stored.layout.paths == again.layout.paths
    assert again._activations < 0.5 * stored._activations
    algorithm = fl.algorithms.FedAvg(0.1, local_steps=3)
    models = [
        fl.run(fl.Simulation(problem, algorithm), rounds=2).model.values for problem in problems
    ]
    np.testing.assert_allclose(*models, rtol=0, atol=1e-5)


def test_clients_alone_keep_statistics_of_their_own():
    """Each as the only client of a server: its parameters and its running statistics."""
    alone = fl.algorithms.LocalOnly(STEP, local_steps=3)
    run = fl.run(fl.Simulation(problem_of(state="kept"), alone), rounds=2)
    for k, pair in enumerate(zip(X, Y, strict=True)):
        single = fl.problems.Model.from_clients(
            fl.models.linen(Normalized()), jax.random.key(0), [pair], fl.problems.Softmax(3)
        )
        algorithm = fl.algorithms.FedAvg(STEP, local_steps=3)
        expected = fl.run(fl.Simulation(single, algorithm), rounds=2)
        np.testing.assert_allclose(run.model[k], expected.model[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            run.client_network_state[k], expected.network_state, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("module", [Normalized(0.3), Dropped()], ids=["kept", "dropout"])
def test_one_server_of_a_graph_trains_networks_as_federated_averaging(module):
    settings = {"state": "kept"} if isinstance(module, Normalized) else {}
    problem = problem_of(module, **settings)
    servers = fl.federation.Federation(np.zeros(CLIENTS, int), None)
    # The step size of a round is divided by the number of steps there.
    on_graph = fl.algorithms.GraphFedAvg(3 * STEP, local_steps=3)
    on_server = fl.algorithms.FedAvg(STEP, local_steps=3)
    first = fl.run(fl.Simulation(problem, on_graph, servers), rounds=2)
    second = fl.run(fl.Simulation(problem, on_server), rounds=2)
    np.testing.assert_allclose(first.model, second.model, rtol=0, atol=1e-12)
    if settings:
        np.testing.assert_allclose(
            first.client_network_state, second.client_network_state, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    ("algorithm", "network"),
    [
        (fl.algorithms.LocalOnly(0.1), None),
        (
            fl.algorithms.GraphFedAvg(0.1),
            fl.federation.Federation(np.zeros(CLIENTS, int), None),
        ),
    ],
    ids=["alone", "servers"],
)
def test_statistics_are_not_averaged_without_a_server_of_all_clients(algorithm, network):
    with pytest.raises(ValueError, match="has no server of all clients that would average"):
        fl.Simulation(problem_of(), algorithm, network)
