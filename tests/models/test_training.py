"""Networks with batch normalization, dropout and augmentation against loops of bare flax, step by
step, in float64.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import fljax as fl
from fljax._core.numerics import default_promotion
from fljax._core.prng import key_of, round_key
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
            use_running_average=not train, momentum=MOMENTUM, param_dtype=float, dtype=float
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
        return linen.Dense(3, param_dtype=float)(
            linen.Dropout(0.4, deterministic=not train)(x)
        )


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
    own = [server] * CLIENTS
    models = []
    errors = []
    for number in range(ROUNDS):
        rows = []
        new_stats = []
        for k in range(CLIENTS):
            start = {"averaged": common, "kept": stats[k]}.get(policy, zero)
            begin = jnp.where(personal, own[k], server) if method == "FedBN" else server

            def direction(gradient, row, k=k):
                if method == "SCAFFOLD":
                    return gradient - controls[k] + control
                if method == "FedProx":
                    return gradient + 0.5 * (row - server)
                return gradient

            row, new = loop.steps(begin, start, k, direction, number)
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
            own = rows
        server = mean
        stats = new_stats
        common = mean_of(new_stats)
        evaluated = [
            loop.errors(
                jnp.where(personal, own[k], server) if method == "FedBN" else server,
                stats[k] if policy == "kept" else common,
            )
            for k in range(CLIENTS)
        ]
        models.append(server)
        errors.append(np.mean(evaluated))
    return np.asarray(models), np.asarray(errors)


def algorithm_of(method):
    settings = {"local_steps": STEPS, "batches": fl.batches.CyclicBatches(BATCH)}
    more = {
        "FedProx": {"attraction": 0.5},
        "FedAdam": {"server_step_size": 0.02, "momentum": 0.9, "decay": 0.99, "adaptivity": 1e-3},
    }.get(method, {})
    return getattr(fl.algorithms, method)(STEP, **settings, **more)


@pytest.mark.parametrize("policy", STATES)
@pytest.mark.parametrize("method", ["FedAvg", "SCAFFOLD", "FedProx", "FedAdam", "FedBN"])
def test_batch_normalization_is_that_of_a_loop_of_flax(method, policy):
    simulation = fl.Simulation(
        problem_of(state=policy), algorithm_of(method), metrics=["test_error"]
    )
    run = fl.run(simulation, rounds=ROUNDS, key=3)
    with default_promotion():
        models, errors = reference(method, policy)
    np.testing.assert_allclose(run.test_error, errors, rtol=1e-6)  # flax keeps statistics in float32
    if method != "FedBN":
        np.testing.assert_allclose(run.model.isel(client=0), models[-1], rtol=1e-9, atol=1e-12)
    assert len(set(np.round(errors, 9))) == ROUNDS
