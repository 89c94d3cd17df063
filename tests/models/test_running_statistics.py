"""Batch normalization under algorithms with several models, or with more than models, against loops
of bare flax in float64.
"""

import dataclasses
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
from fljax.simulation.scan import trace
from tests import cases
from tests.models.test_training import (
    BATCH,
    CLIENTS,
    MOMENTUM,
    ROUNDS,
    SAMPLES,
    STEP,
    STEPS,
    TEST,
    Dropped,
    Loop,
    Normalized,
    X,
    Y,
    mean_of,
    noisy,
    problem_of,
    uneven_problem,
)
from tests.reference.readings import on_simplex

#: Two of the policies are quick.
POLICIES = [
    policy if policy in ("averaged", "kept") else pytest.param(policy, marks=pytest.mark.slow)
    for policy in STATES
]

close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


def no_statistics():
    """Flax's statistics before training."""
    return Normalized().init(jax.random.key(9), X[0, :1], train=False)["batch_stats"]


def loop_of(policy):
    return Loop(Normalized(), problem_of(state=policy).layout, policy)


def full_step(loop, row, stats, client, extra=None):
    """The gradient on all samples of a client, and the statistics afterwards."""

    def loss(row, stats):
        data = loop.loss(
            row, stats, jnp.asarray(X[client]), jnp.asarray(Y[client]), not loop.frozen
        )
        return data[0] + (0.0 if extra is None else extra(row)), data[1]

    gradient, new = jax.grad(loss, has_aux=True)(row, stats)
    return gradient, stats if loop.frozen else new


def numbers_of(stats):
    return np.concatenate([np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(stats)])


# --------------------------------------------------------------------------------------------- IFCA

STARTS = jnp.stack([problem_of().initialized(jax.random.key(seed)).initial for seed in (28, 32, 5)])


def ifca_loop(policy, average, steps):
    """The clients' models, their choices, the statistics with which they are evaluated, and the
    mean loss on held-out data of each round.
    """
    loop = loop_of(policy)
    zero = no_statistics()
    models = list(STARTS)
    of_models = [zero] * len(models)
    of_clients = [zero] * CLIENTS

    def stats_of(k, q):
        return of_clients[k] if policy == "kept" else of_models[q]

    def best(k):
        data = jnp.asarray(X[k]), jnp.asarray(Y[k])
        losses = [loop.loss(m, stats_of(k, q), *data, train=False)[0] for q, m in enumerate(models)]
        return int(np.argmin(losses))

    choices = [best(k) for k in range(CLIENTS)]
    history = []
    errors = []
    for _ in range(ROUNDS):
        messages = [[] for _ in models]
        statistics = [[] for _ in models]
        for k, q in enumerate(choices):
            row = models[q]
            stats = zero if policy == "reset" else stats_of(k, q)
            for _ in range(steps):
                gradient, stats = full_step(loop, row, stats, k)
                row = row - STEP * gradient
            messages[q].append(row if average == "models" else gradient)
            statistics[q].append(stats)
            of_clients[k] = stats
        for q, sent in enumerate(messages):
            if sent and average == "models":
                models[q] = mean_of(sent)
            elif sent:
                models[q] = models[q] - STEP * sum(sent) / CLIENTS
            if sent:
                of_models[q] = mean_of(statistics[q])
        choices = [best(k) for k in range(CLIENTS)]
        history.append(choices)
        chosen = [(models[q], stats_of(k, q)) for k, q in enumerate(choices)]
        errors.append(np.mean([loop.errors(*pair) for pair in chosen]))
    statistics = [numbers_of(stats) for _, stats in chosen]
    return np.asarray([row for row, _ in chosen]), history, np.asarray(statistics), errors


@pytest.mark.parametrize(("average", "steps"), [("models", 3), ("gradients", 1)])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_cluster_of_ifca_has_statistics_of_its_own(policy, average, steps):
    algorithm = fl.algorithms.IFCA(STEP, 3, steps, average, start=STARTS)
    simulation = fl.Simulation(problem_of(state=policy), algorithm, metrics=["test_error"])
    run = fl.run(simulation, rounds=ROUNDS)
    with default_promotion():
        models, history, statistics, errors = ifca_loop(policy, average, steps)
    close(run.model, models)
    np.testing.assert_allclose(run.test_error, errors, rtol=1e-6)
    assert len(set(history[0])) > 1
    if policy != "frozen":
        np.testing.assert_allclose(run.client_network_state, statistics, rtol=1e-5, atol=1e-6)
        assert np.ptp(statistics, axis=0).min() > 1e-3


# -------------------------------------------------------------------- networks with representations

CLASSES = 3
WIDTH = 5
VALVE = ("bias", "kernel", "offset", "scale")
SETTINGS = {"local_steps": STEPS, "batches": fl.batches.CyclicBatches(BATCH)}


def body_start(key):
    weights = jax.random.normal(key, (4, WIDTH)) / 2
    return {"offset": jnp.zeros(WIDTH), "scale": jnp.ones(WIDTH), "weights": weights}


def normalized(parameters, stats, x):
    z = (x @ parameters["weights"] - stats["mean"]) / jnp.sqrt(stats["variance"] + 1e-5)
    return jax.nn.relu(z * parameters["scale"] + parameters["offset"])


def trained_body(parameters, stats, x, key=None):
    z = x @ parameters["weights"]
    batch = {"mean": jnp.mean(z, axis=0), "variance": jnp.var(z, axis=0)}
    moved = jax.tree.map(lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new, stats, batch)
    return normalized(parameters, batch, x), moved


def first_stats():
    return {"mean": jnp.zeros(WIDTH), "variance": jnp.ones(WIDTH)}


def last_layer(key):
    return jax.random.normal(key, (WIDTH, CLASSES)) / 2


def in_two_parts(**settings):
    """Batch normalization with statistics in double precision, and a linear last layer."""
    body = fl.models.plain(body_start, normalized, train=trained_body, state=first_stats)
    network = fl.models.headed(body, fl.models.plain(last_layer, lambda head, r: r @ head))
    return fl.problems.Model.from_clients(
        network,
        jax.random.key(0),
        list(zip(X, Y, strict=True)),
        fl.problems.Softmax(CLASSES),
        test=[TEST],
        **settings,
    )


def entropy(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)[:, 0]


class TwoParts:
    """Clients' steps of training with a body and a head, one client after the other."""

    def __init__(self, policy):
        self.policy = policy
        self.layout = in_two_parts(state=policy).layout

    def represent(self, row, stats, x, train=True):
        body = self.layout.parameters(row)["body"]
        if train and self.policy != "frozen":
            return trained_body(body, stats, x)
        return normalized(body, stats, x), stats

    def head(self, row, r):
        return r @ self.layout.parameters(row)["head"]

    def plain_loss(self, row, stats, x, y):
        r, stats = self.represent(row, stats, x)
        return jnp.mean(entropy(self.head(row, r), y)), stats

    def steps(self, row, stats, client, rounds_before, loss=None, mask=1.0):
        """The row and the statistics after steps along ``loss(row, stats, x, y)``."""
        loss = self.plain_loss if loss is None else loss
        for step in range(STEPS):
            first = (rounds_before * STEPS + step) * BATCH % SAMPLES
            x, y = (jnp.asarray(a[client, first : first + BATCH]) for a in (X, Y))
            gradient, stats = jax.grad(loss, has_aux=True)(row, stats, x, y)
            row = jax.tree.map(lambda a, g: a - STEP * mask * g, row, gradient)
        return row, stats

    def start(self, of_clients, common):
        """The statistics with which a client's steps begin."""
        return {"averaged": common, "kept": of_clients}.get(self.policy, first_stats())

    def evaluated(self, of_clients, common):
        return of_clients if self.policy == "kept" else common

    def errors(self, rows, of_clients, common):
        losses = []
        for row, stats in zip(rows, of_clients, strict=True):
            x, y = map(jnp.asarray, TEST)
            r, _ = self.represent(row, self.evaluated(stats, common), x, train=False)
            losses.append(jnp.mean(entropy(self.head(row, r), y)))
        return float(np.mean(losses))

    def class_sums(self, row, stats, k):
        """Sums of representations by class, and counts."""
        r, _ = self.represent(row, stats, jnp.asarray(X[k]), train=False)
        unit = np.eye(CLASSES)[Y[k]]
        return unit.T @ np.asarray(r), unit.sum(axis=0), np.asarray(r)


def agree(algorithm, policy, models, statistics, errors, key=3):
    """The run of an algorithm is that of the loop: at its end, and its errors of all rounds."""
    problem = in_two_parts(state=policy)
    simulation = fl.Simulation(problem, algorithm, metrics=["test_error"])
    run = fl.run(simulation, rounds=ROUNDS, key=key)
    close(run.model, models)
    close(run.test_error, errors)
    assert len(set(np.round(errors, 9))) == ROUNDS
    if policy == "frozen":
        assert "network_state" not in run
        return run
    (of_clients, common) = statistics
    name = "client_network_state" if policy == "kept" else "network_state"
    expected = [numbers_of(s) for s in of_clients] if policy == "kept" else numbers_of(common)
    close(run[name], expected)
    return run


def shares_means(policy, attraction):
    """FedProto."""
    loop = TwoParts(policy)
    rows = [in_two_parts().initial] * CLIENTS
    of_clients = [first_stats()] * CLIENTS
    means = np.zeros((CLASSES, WIDTH))
    has_mean = np.zeros(CLASSES)
    errors = []
    for number in range(ROUNDS):

        def loss(row, stats, x, y, means=means, has_mean=has_mean):
            r, stats = loop.represent(row, stats, x)
            distance = jnp.mean((r - means[y]) ** 2, axis=1)
            losses = (
                entropy(loop.head(row, r), y) + attraction * jnp.asarray(has_mean)[y] * distance
            )
            return jnp.mean(losses), stats

        sums = np.zeros((CLASSES, WIDTH))
        counts = np.zeros(CLASSES)
        for k in range(CLIENTS):
            rows[k], of_clients[k] = loop.steps(rows[k], of_clients[k], k, number, loss)
            of_client = loop.class_sums(rows[k], of_clients[k], k)
            sums = sums + of_client[0]
            counts = counts + of_client[1]
        means = sums / counts[:, None]
        has_mean = np.ones(CLASSES)
        errors.append(loop.errors(rows, of_clients, first_stats()))
    return rows, (of_clients, None), errors


@pytest.mark.parametrize("policy", ["kept", "frozen"])
def test_prototypes_are_of_evaluation_with_a_clients_own_statistics(policy):
    algorithm = fl.algorithms.FedProto(STEP, attraction=2.0, **SETTINGS)
    with default_promotion():
        expected = shares_means(policy, 2.0)
    agree(algorithm, policy, *expected)


def combines_heads(policy, attraction, epochs):
    """FedPAC."""
    loop = TwoParts(policy)
    problem = in_two_parts()
    of_head = problem.head_coordinates()
    server = problem.initial
    heads = [server] * CLIENTS
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    means = np.zeros((CLASSES, WIDTH))
    has_mean = np.zeros(CLASSES)
    errors = []
    for number in range(ROUNDS):

        def loss(row, stats, x, y, means=means, has_mean=has_mean):
            r, stats = loop.represent(row, stats, x)
            distance = jnp.mean((r - means[y]) ** 2, axis=1)
            losses = (
                entropy(loop.head(row, r), y) + attraction * jnp.asarray(has_mean)[y] * distance
            )
            return jnp.mean(losses), stats

        moments = []
        variances = []
        rows = []
        sums = np.zeros((CLASSES, WIDTH))
        counts = np.zeros(CLASSES)
        for k in range(CLIENTS):
            row = jnp.where(of_head, heads[k], server)
            total, _, r = loop.class_sums(row, loop.evaluated(of_clients[k], common), k)
            moments.append(total.ravel() / SAMPLES)
            variances.append((np.sum(r**2) / SAMPLES - moments[k] @ moments[k]) / SAMPLES)
            stats = loop.start(of_clients[k], common)
            before = (epochs + 1) * number
            for epoch in range(epochs):
                row, stats = loop.steps(row, stats, k, before + epoch, mask=of_head)
            row, of_clients[k] = loop.steps(row, stats, k, before + epochs, loss, mask=~of_head)
            rows.append(row)
            of_client = loop.class_sums(row, of_clients[k], k)
            sums = sums + of_client[0]
            counts = counts + of_client[1]
        server = mean_of(rows)
        common = mean_of(of_clients)
        products = np.array([[a @ b for a in moments] for b in moments])
        matrix = products + np.diag(variances)
        for k in range(CLIENTS):
            shares = on_simplex(matrix, products[k])
            heads[k] = sum(share * row for share, row in zip(shares, rows, strict=True))
        means = sums / counts[:, None]
        has_mean = np.ones(CLASSES)
        models = [jnp.where(of_head, head, server) for head in heads]
        errors.append(loop.errors(models, of_clients, common))
    return models, (of_clients, common), errors


@pytest.mark.parametrize("policy", POLICIES)
def test_fedpac_has_statistics_of_the_common_body(policy):
    algorithm = fl.algorithms.FedPAC(STEP, attraction=0.3, head_epochs=2, **SETTINGS)
    with default_promotion():
        expected = combines_heads(policy, 0.3, 2)
    run = agree(algorithm, policy, *expected)
    numbers = len(run.model[0]) + CLASSES * (2 * WIDTH + 1) + 1
    numbers += 2 * WIDTH * (policy in ("averaged", "reset"))
    assert int(run.bits_up[-1]) == ROUNDS * CLIENTS * numbers * 32


def trains_heads_first(policy, epochs):
    """FedRep."""
    loop = TwoParts(policy)
    problem = in_two_parts()
    of_head = problem.head_coordinates()
    server = problem.initial
    rows = [server] * CLIENTS
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    errors = []
    for number in range(ROUNDS):
        for k in range(CLIENTS):
            row = jnp.where(of_head, rows[k], server)
            stats = loop.start(of_clients[k], common)
            before = (epochs + 1) * number
            for epoch in range(epochs):
                row, stats = loop.steps(row, stats, k, before + epoch, mask=of_head)
            rows[k], of_clients[k] = loop.steps(row, stats, k, before + epochs, mask=~of_head)
        server = mean_of(rows)
        common = mean_of(of_clients)
        models = [jnp.where(of_head, row, server) for row in rows]
        errors.append(loop.errors(models, of_clients, common))
    return models, (of_clients, common), errors


@pytest.mark.parametrize("policy", POLICIES)
def test_statistics_go_on_over_the_passes_of_fedrep(policy):
    head = np.flatnonzero(in_two_parts().head_coordinates())
    algorithm = fl.algorithms.FedRep(STEP, personal=head, head_epochs=2, **SETTINGS)
    with default_promotion():
        expected = trains_heads_first(policy, 2)
    agree(algorithm, policy, *expected)


def aligns_bodies(policy, epochs):
    """FedAS, with an alignment step of a fifth of the step size."""
    loop = TwoParts(policy)
    problem = in_two_parts()
    of_head = problem.head_coordinates()
    server = problem.initial
    rows = [server] * CLIENTS
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    errors = []

    def information(row, stats, x, y):
        def loss(row, x, y):
            r, _ = loop.represent(row, stats, x[None], train=False)
            return entropy(loop.head(row, r), y[None])[0]

        gradients = [jax.grad(loss)(row, *sample) for sample in zip(x, y, strict=True)]
        return np.mean([gradient @ gradient for gradient in gradients])

    for number in range(ROUNDS):
        changes = []
        traces = []
        for k in range(CLIENTS):
            sums, counts, _ = loop.class_sums(rows[k], loop.evaluated(of_clients[k], common), k)
            prototypes = sums / np.maximum(counts, 1)[:, None]

            def alignment(row, stats, x, y, prototypes=prototypes):
                r, stats = loop.represent(row, stats, x)
                of_class = jnp.sum(jax.nn.one_hot(y, CLASSES), axis=0)
                return jnp.sum(jnp.mean((r - prototypes[y]) ** 2, axis=1) / of_class[y]), stats

            row = jnp.where(of_head, rows[k], server)
            stats = loop.start(of_clients[k], common)
            before = (epochs + 1) * number
            for epoch in range(epochs):
                row, stats = loop.steps(row, stats, k, before + epoch, alignment, mask=0.2)
            rows[k], of_clients[k] = loop.steps(row, stats, k, before + epochs)
            changes.append(rows[k] - server)
            traces.append(information(rows[k], of_clients[k], jnp.asarray(X[k]), jnp.asarray(Y[k])))
        server = server + sum(t * c for t, c in zip(traces, changes, strict=True)) / sum(traces)
        common = mean_of(of_clients)
        errors.append(loop.errors(rows, of_clients, common))
    return rows, (of_clients, common), errors


@pytest.mark.parametrize("policy", POLICIES)
def test_statistics_go_on_from_fedas_alignment_to_its_steps(policy):
    algorithm = fl.algorithms.FedAS(
        STEP, alignment_step_size=STEP / 5, alignment_epochs=2, **SETTINGS
    )
    with default_promotion():
        expected = aligns_bodies(policy, 2)
    agree(algorithm, policy, *expected)


def learns_relations(policy, rate, attraction, annealing):
    """APPLE."""
    loop = TwoParts(policy)
    start = in_two_parts().initial
    cores = [start] * CLIENTS
    even = jnp.full(CLIENTS, 1 / CLIENTS)
    relations = [even] * CLIENTS
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    errors = []
    for number in range(ROUNDS):
        progress = min(number + 1, annealing) / annealing
        strength = attraction * (1 + np.cos(np.pi * progress)) / 2
        received = jnp.stack(cores)
        rows = []
        for k in range(CLIENTS):
            models = received
            p = relations[k]
            stats = loop.start(of_clients[k], common)
            for step in range(STEPS):
                first = (number * STEPS + step) * BATCH % SAMPLES
                x, y = (jnp.asarray(a[k, first : first + BATCH]) for a in (X, Y))
                gradient, stats = jax.grad(loop.plain_loss, has_aux=True)(p @ models, stats, x, y)
                by_relation = models @ gradient + strength * (p - even)
                models = models.at[k].add(-STEP * p[k] * gradient)
                p = p - rate * by_relation
            of_clients[k] = stats
            relations[k] = p
            cores[k] = models[k]
            rows.append(p @ models)
        common = mean_of(of_clients)
        errors.append(loop.errors(rows, of_clients, common))
    return rows, (of_clients, common), errors


@pytest.mark.parametrize("policy", POLICIES)
def test_apple_has_statistics_of_the_personal_models(policy):
    settings = {"attraction": 0.5, "annealing": 4}
    algorithm = fl.algorithms.APPLE(STEP, relationship_step_size=0.05, **settings, **SETTINGS)
    with default_promotion():
        expected = learns_relations(policy, 0.05, 0.5, 4)
    agree(algorithm, policy, *expected)


def contrasts(policy, contrast, temperature):
    """MOON."""
    loop = TwoParts(policy)
    server = in_two_parts().initial
    lasts = [server] * CLIENTS
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    errors = []

    def cosine(a, b):
        return jnp.sum(a * b, 1) / jnp.sqrt(jnp.sum(a**2, 1) * jnp.sum(b**2, 1))

    for number in range(ROUNDS):
        rows = []
        for k in range(CLIENTS):

            def loss(row, stats, x, y, server=server, last=lasts[k]):
                # The other models are normalized by the batch, too.
                compared = [loop.represent(other, stats, x)[0] for other in (server, last)]
                r, stats = loop.represent(row, stats, x)
                nearer = cosine(r, compared[1]) - cosine(r, compared[0])
                penalty = contrast * jnp.log1p(jnp.exp(nearer / temperature))
                return jnp.mean(entropy(loop.head(row, r), y) + penalty), stats

            start = loop.start(of_clients[k], common)
            row, of_clients[k] = loop.steps(server, start, k, number, loss)
            rows.append(row)
        lasts = rows
        server = mean_of(rows)
        common = mean_of(of_clients)
        errors.append(loop.errors([server] * CLIENTS, of_clients, common))
    return [server] * CLIENTS, (of_clients, common), errors


@pytest.mark.parametrize("policy", ["averaged", "kept"])
def test_moon_has_statistics_of_the_model_that_is_trained(policy):
    algorithm = fl.algorithms.MOON(STEP, contrast=1.0, temperature=0.5, **SETTINGS)
    with default_promotion():
        expected = contrasts(policy, 1.0, 0.5)
    agree(algorithm, policy, *expected)


GENERATOR = {"generator_steps": 3, "virtual_samples": 4, "noise_dim": 2, "hidden": 6}


def learns_from_a_generator(policy, algorithm, rate, distillation, key):
    """FedGen."""
    loop = TwoParts(policy)
    problem = in_two_parts()
    server = problem.initial
    into = algorithm.noise_dim + CLASSES
    shapes = [(into, algorithm.hidden), algorithm.hidden, (algorithm.hidden, WIDTH), WIDTH]
    ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
    numbers = jnp.split(algorithm.init(problem, None).generator, ends)
    generator = [a.reshape(shape) for a, shape in zip(numbers, shapes, strict=True)]
    frequency = np.zeros(CLASSES)
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    errors = []

    def drawn(key, steps):
        first, second = jax.random.split(key)
        shape = (steps, algorithm.virtual_samples)
        uniform = np.asarray(jax.random.uniform(first, shape, float))
        labels = np.sum(np.cumsum(frequency)[:-1] <= uniform[..., None], axis=2)
        return labels, jax.random.normal(second, (*shape, algorithm.noise_dim), float)

    def generated(layers, labels, noise):
        first, offset, second, last = layers
        inputs = jnp.concatenate([noise, jnp.eye(CLASSES)[labels]], axis=1)
        return jax.nn.relu(inputs @ first + offset) @ second + last

    for number in range(ROUNDS):
        of_round = key_of(round_key(key, number + 1), "algorithm")
        rows = []
        for k in range(CLIENTS):
            labels, noise = drawn(jax.random.fold_in(of_round, k + 1), STEPS)
            row = server
            stats = loop.start(of_clients[k], common)
            for step in range(STEPS):
                amount = distillation if number else 0.0

                def loss(
                    row,
                    stats,
                    x,
                    y,
                    draws=(labels[step], noise[step]),
                    layers=generator,
                    amount=amount,
                ):
                    value, stats = loop.plain_loss(row, stats, x, y)
                    taught = entropy(loop.head(row, generated(layers, *draws)), draws[0])
                    return value + amount * jnp.mean(taught), stats

                first = (number * STEPS + step) * BATCH % SAMPLES
                x, y = (jnp.asarray(a[k, first : first + BATCH]) for a in (X, Y))
                gradient, stats = jax.grad(loss, has_aux=True)(row, stats, x, y)
                row = row - STEP * gradient
            of_clients[k] = stats
            rows.append(row)
        frequency = np.bincount(Y.ravel(), minlength=CLASSES) / Y.size
        labels, noise = drawn(jax.random.fold_in(of_round, 0), algorithm.generator_steps)
        for step in range(algorithm.generator_steps):

            def ensemble_loss(layers, labels=labels[step], noise=noise[step], rows=rows):
                r = generated(layers, labels, noise)
                return jnp.mean(entropy(mean_of([loop.head(row, r) for row in rows]), labels))

            gradient = jax.grad(ensemble_loss)(generator)
            generator = [a - rate * g for a, g in zip(generator, gradient, strict=True)]
        server = mean_of(rows)
        common = mean_of(of_clients)
        errors.append(loop.errors([server] * CLIENTS, of_clients, common))
    return [server] * CLIENTS, (of_clients, common), errors


@pytest.mark.parametrize("policy", POLICIES)
def test_generated_representations_of_fedgen_move_no_statistics(policy):
    algorithm = fl.algorithms.FedGen(
        STEP, generator_step_size=0.2, distillation=0.7, **GENERATOR, **SETTINGS
    )
    key = fl.random_key(5)
    with default_promotion():
        expected = learns_from_a_generator(policy, algorithm, 0.2, 0.7, key)
    agree(algorithm, policy, *expected, key=key)


def has_two_heads(policy):
    """FedROD."""
    loop = TwoParts(policy)
    problem = in_two_parts()
    server = problem.initial
    of_head = problem.head_coordinates()
    heads = [jnp.zeros(len(server))] * CLIENTS
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    errors = []
    for number in range(ROUNDS):
        rows = []
        for k in range(CLIENTS):
            prior = jnp.log(jnp.bincount(jnp.asarray(Y[k]), length=CLASSES))

            def loss(pair, stats, x, y, prior=prior):
                r, moved = loop.represent(pair[0], stats, x)
                fixed = jax.lax.stop_gradient(pair[0])
                personal = loop.head(fixed + pair[1], jax.lax.stop_gradient(r))
                losses = entropy(loop.head(pair[0], r) + prior, y) + entropy(personal, y)
                return jnp.mean(losses), moved

            mask = jnp.stack([jnp.ones(len(server)), of_head])
            start = loop.start(of_clients[k], common)
            pair = jnp.stack([server, heads[k]])
            pair, of_clients[k] = loop.steps(pair, start, k, number, loss, mask)
            rows.append(pair[0])
            heads[k] = pair[1]
        server = mean_of(rows)
        common = mean_of(of_clients)
        models = [server + head for head in heads]
        errors.append(loop.errors(models, of_clients, common))
    return models, (of_clients, common), errors


@pytest.mark.parametrize("policy", ["averaged", "kept"])
def test_fedrod_has_statistics_of_the_common_body(policy):
    with default_promotion():
        expected = has_two_heads(policy)
    agree(fl.algorithms.FedROD(STEP, **SETTINGS), policy, *expected)


def calibrates(policy, algorithm, key):
    """CCVR."""
    loop = TwoParts(policy)
    problem = in_two_parts()
    server = problem.initial
    of_head = problem.head_coordinates()
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    errors = []
    for number in range(ROUNDS):
        rows = []
        for k in range(CLIENTS):
            row, of_clients[k] = loop.steps(server, loop.start(of_clients[k], common), k, number)
            rows.append(row)
        server = mean_of(rows)
        common = mean_of(of_clients)
        # Representations are of the server's model, with the statistics of the round's end.
        represented = np.concatenate(
            [
                loop.represent(
                    server, loop.evaluated(of_clients[k], common), jnp.asarray(X[k]), train=False
                )[0]
                for k in range(CLIENTS)
            ]
        )
        of_round = key_of(round_key(key, number + 1), "algorithm")
        shape = (CLASSES, algorithm.virtual_samples, WIDTH)
        normal = np.asarray(jax.random.normal(of_round, shape, float))
        virtual = []
        for c in range(CLASSES):
            rows_of_class = represented[Y.ravel() == c]
            values, vectors = np.linalg.eigh(np.cov(rows_of_class.T))
            root = vectors * np.sqrt(np.where(values > 1e-12, values, 0)) @ vectors.T
            virtual.append(rows_of_class.mean(axis=0) + normal[c] @ root)
        drawn = np.concatenate(virtual)
        labels = jnp.repeat(jnp.arange(CLASSES), algorithm.virtual_samples)

        def loss(row, drawn=drawn, labels=labels):
            return jnp.mean(entropy(loop.head(row, drawn), labels))

        model = server
        for _ in range(algorithm.calibration_steps):
            model = model - 0.2 * of_head * jax.grad(loss)(model)
        errors.append(loop.errors([model] * CLIENTS, of_clients, common))
    return [model] * CLIENTS, (of_clients, common), errors


@pytest.mark.parametrize("policy", POLICIES)
def test_ccvr_represents_samples_by_the_statistics_of_the_rounds_model(policy):
    solver = fl.algorithms.FedAvg(STEP, **SETTINGS)
    algorithm = fl.algorithms.CCVR(solver, 0.2, calibration_steps=4, virtual_samples=6)
    key = fl.random_key(5)
    with default_promotion():
        expected = calibrates(policy, algorithm, key)
    agree(algorithm, policy, *expected, key=key)


def test_the_statistics_of_ccvr_come_down_twice():
    """With the model of each round, and with the one that samples are represented by."""
    solver = fl.algorithms.FedAvg(STEP, **SETTINGS)
    numbers = {}
    for policy in ("averaged", "kept"):
        problem = in_two_parts(state=policy)
        for name, algorithm in {"FedAvg": solver, "CCVR": fl.algorithms.CCVR(solver, 0.2)}.items():
            run = fl.run(fl.Simulation(problem, algorithm), rounds=1)
            numbers[name, policy] = int(run.bits_down[-1]) // 32 // CLIENTS
    model = problem.dim
    statistics = 2 * WIDTH
    assert numbers["FedAvg", "averaged"] == model + statistics
    assert numbers["CCVR", "averaged"] == 2 * (model + statistics)
    assert numbers["CCVR", "kept"] == 2 * model


@pytest.mark.parametrize("policy", POLICIES)
def test_pfedme_has_statistics_of_the_personal_models(policy):
    """If local models follow the personal ones, it is federated averaging."""
    algorithm = fl.algorithms.PFedMeByGradient(
        0.5, attraction=2.0, personal_step_size=STEP, personal_steps=1, **SETTINGS
    )
    personal, common = (
        fl.run(fl.Simulation(problem_of(state=policy), method), rounds=ROUNDS)
        for method in (algorithm, fl.algorithms.FedAvg(STEP, **SETTINGS))
    )
    close(np.mean(personal["model"], axis=0), common["model"][0])
    assert np.ptp(personal["model"].values, axis=0).max() > 1e-3
    names = [name for name in common.data_vars if name.endswith("network_state")]
    assert len(names) == (policy != "frozen")
    for name in names:
        np.testing.assert_allclose(personal[name], common[name], rtol=1e-5, atol=1e-6)


def guides_features(policy, guidance, decay):
    """GPFL. Modules are a dictionary, as the model is a row."""
    loop = TwoParts(policy)
    problem = in_two_parts()
    of_head = problem.head_coordinates()
    server = problem.initial
    algorithm = fl.algorithms.GPFL(STEP, guidance=guidance, weight_decay=decay, **SETTINGS)
    names = ("embeddings", *(f"{part} {name}" for part in ("factor", "offset") for name in VALVE))
    shapes = [(CLASSES, WIDTH), *2 * [(WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH,)]]
    ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
    numbers = jnp.split(algorithm.init(problem, None).modules, ends)
    parts = zip(names, numbers, shapes, strict=True)
    modules = {name: part.reshape(shape) for name, part, shape in parts}
    shares = np.array([np.bincount(y, minlength=CLASSES) for y in Y]) / SAMPLES
    rows = [server] * CLIENTS
    of_clients = [first_stats()] * CLIENTS
    common = first_stats()
    errors = []

    def layer(modules, part, condition):
        bias, kernel, offset, scale = (modules[f"{part} {name}"] for name in VALVE)
        units = jax.nn.relu(condition @ kernel + bias)
        return scale * (units - units.mean()) / jnp.sqrt(units.var() + 1e-5) + offset

    def valve(modules, r, condition):
        factor, offset = (layer(modules, part, condition) for part in ("factor", "offset"))
        return jax.nn.relu((factor + 1) * r + offset)

    def lengths(vectors):
        squares = jnp.sum(vectors**2, axis=-1)
        return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)

    def loss(variables, stats, x, y, received, condition):
        row, modules = variables
        r, stats = loop.represent(row, stats, x)
        features = valve(modules, r, received.mean(axis=0))
        products = lengths(features)[:, None] * lengths(modules["embeddings"])[None]
        cosines = features @ modules["embeddings"].T / jnp.where(products > 0, products, 1)
        parts = (
            entropy(loop.head(row, valve(modules, r, condition)), y),
            entropy(cosines, y),
            guidance * lengths(features - received[y]),
        )
        penalty = decay / 2 * sum(jnp.sum(module**2) for module in modules.values())
        return jnp.mean(sum(parts)) + penalty, stats

    for number in range(ROUNDS):
        received = modules["embeddings"]
        sent = []
        for k in range(CLIENTS):
            variables = jnp.where(of_head, rows[k], server), modules
            stats = loop.start(of_clients[k], common)
            of_received = functools.partial(loss, received=received, condition=shares[k] @ received)
            variables, of_clients[k] = loop.steps(variables, stats, k, number, of_received)
            rows[k] = variables[0]
            sent.append(variables)
        server, modules = (mean_of(part) for part in zip(*sent, strict=True))
        common = mean_of(of_clients)
        models = [jnp.where(of_head, row, server) for row in rows]
        x, y = map(jnp.asarray, TEST)
        losses = []
        for k in range(CLIENTS):
            r, _ = loop.represent(models[k], common, x, train=False)
            features = valve(modules, r, shares[k] @ modules["embeddings"])
            losses.append(jnp.mean(entropy(loop.head(models[k], features), y)))
        errors.append(float(np.mean(losses)))
    return algorithm, models, (of_clients, common), errors


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "kept"])
def test_gpfl_has_statistics_of_the_common_body(policy):
    with default_promotion():
        algorithm, *expected = guides_features(policy, 0.1, 0.05)
    agree(algorithm, policy, *expected)


@pytest.mark.slow
@pytest.mark.parametrize("label", cases.LABELS)
def test_no_states_are_taken_out_of_a_loop(label):
    """An algorithm that trains networks in a loop must carry their states through the loop. JAX
    says so only when the program is called, by a count of its inputs.
    """
    algorithm = cases.CASES[label].algorithm
    networks = {None: None, fl.graphs.Graph: fl.graphs.complete(CLIENTS)}
    network = networks.get(
        algorithm.needs.network, fl.federation.balanced(CLIENTS // 2, fl.graphs.complete(2))
    )
    for policy in ("averaged", "kept"):
        try:
            simulation = fl.Simulation(in_two_parts(state=policy), algorithm, network)
            run = functools.partial(trace, simulation, rounds=1, record_every=1)
            program = jax.make_jaxpr(run)(fl.random_key(0))
        except ValueError:  # it does not train such networks
            continue
        assert not any(isinstance(constant, jax.core.Tracer) for constant in program.consts)


# --------------------------------------------------------------- representations, refusals, traffic


def dropped_body(parameters, stats, x, key):
    r, moved = trained_body(parameters, stats, x)
    return r * jax.random.bernoulli(key, 0.5, r.shape), moved


def test_representations_in_training_are_those_of_the_predictions():
    """The same augmented samples, the same mask, the same statistics."""
    body = fl.models.plain(body_start, normalized, train=dropped_body, state=first_stats)
    network = fl.models.headed(body, fl.models.plain(last_layer, lambda head, r: r @ head))
    problem = fl.problems.Model.from_clients(
        network,
        jax.random.key(0),
        list(zip(X, Y, strict=True)),
        fl.problems.Softmax(CLASSES),
        augment=noisy,
    ).prepare()
    stats = jax.tree.map(lambda a: jnp.tile(a, (CLIENTS, 1)), problem.initial_state())
    trained = problem.in_training(stats, jax.random.split(fl.random_key(1), CLIENTS))
    models = jnp.tile(problem.initial, (CLIENTS, 1))
    read = trained.representations(models)
    np.testing.assert_allclose(jax.vmap(problem.head)(models, read), trained.predictions(models))
    assert np.abs(read - problem.representations(models)).max() > 1e-2


@dataclasses.dataclass(frozen=True)
class WithoutModes(fl.models.Architecture):
    """A network with a state, whose representation does not say how it follows from it."""

    head_paths = "^last$"

    def init(self, key, features):
        return {"first": jnp.ones((4, 2)), "last": jnp.ones((2, CLASSES))}

    def init_state(self, key, features):
        return {"mean": jnp.zeros(2)}

    def train(self, parameters, state, features, key):
        return self.apply(parameters, features), {"mean": 0.5 * state["mean"]}

    def represent(self, parameters, features):
        return features @ parameters["first"]

    def head(self, parameters, representation):
        return representation @ parameters["last"]


def model_of(network, **settings):
    data = list(zip(X, Y, strict=True))
    loss = fl.problems.Softmax(CLASSES)
    return fl.problems.Model.from_clients(network, jax.random.key(0), data, loss, **settings)


def normalizing_head():
    return fl.models.headed(fl.models.linen(linen.Dense(4)), fl.models.linen(Normalized()))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: fl.Simulation(in_two_parts(), fl.algorithms.FedProto(STEP, batch=BATCH)),
            "FedProto leaves models at the clients, and running statistics with them",
        ),
        (
            lambda: fl.Simulation(
                in_two_parts(state="reset"), fl.algorithms.FedDistill(STEP, batch=BATCH)
            ),
            "FedDistill leaves models at the clients",
        ),
        (lambda: model_of(normalizing_head()), "normalize in the body"),
        (
            lambda: fl.Simulation(
                model_of(WithoutModes(), state="kept"), fl.algorithms.FedProto(STEP, batch=BATCH)
            ),
            "give the network's class represent_in_training",
        ),
        (
            lambda: fl.Simulation(
                in_two_parts(state="kept"),
                fl.algorithms.KNNPer(fl.algorithms.FedAvg(STEP, batch=BATCH)),
            ),
            "give held-out data of each client",
        ),
        (
            lambda: fl.Simulation(
                in_two_parts(state="kept"), fl.algorithms.GPFL(STEP, batch=BATCH)
            ),
            "GPFL represents held-out data of all clients once",
        ),
        (
            lambda: fl.Simulation(uneven_problem(), fl.algorithms.IFCA(STEP, 3, start=STARTS)),
            "batches of one size",
        ),
        (
            lambda: fl.Simulation(in_two_parts(), fl.algorithms.FedKD(STEP, batch=BATCH)),
            "no steps of training",
        ),
    ],
)
def test_combinations_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


REDUCED = [
    *("GTSAGA", "GTSVRG", "GTSARAH", "DESTRESS", "GTVR", "ATCGTSAGA", "LTADMMVR"),
    *("NetworkSVRG", "NetworkSARAH"),
]


@pytest.mark.parametrize("method", REDUCED)
def test_variance_reduction_says_why_it_needs_samples_apart(method):
    algorithm = getattr(fl.algorithms, method)
    names = {f.name for f in dataclasses.fields(algorithm) if f.default is dataclasses.MISSING}
    values = {"penalty": 0.1, "step_size": STEP, "period": 2, "probability": 0.5}
    algorithm = algorithm(**{name: values.get(name, 1) for name in names})
    ring = fl.graphs.ring(CLIENTS)
    with pytest.raises(ValueError, match="a sample's gradient depends on its batch"):
        fl.Simulation(problem_of(state="kept"), algorithm, network=ring)
    with pytest.raises(ValueError, match="a sample's gradient depends on random draws"):
        fl.Simulation(problem_of(Dropped()), algorithm, network=ring)
    fl.Simulation(problem_of(state="frozen"), algorithm, network=ring)


def test_ifca_counts_the_statistics_of_all_models_and_draws_masks():
    algorithm = fl.algorithms.IFCA(STEP, 3, start=STARTS)
    bits = {}
    models = {}
    for policy, rate in (("averaged", 0.0), ("averaged", 0.5), ("reset", 0.0), ("kept", 0.0)):
        problem = problem_of(Normalized(rate), state=policy)
        run = fl.run(fl.Simulation(problem, algorithm), rounds=2)
        bits[policy] = [int(run[name][-1]) // (2 * CLIENTS * 32) for name in BITS]
        models[policy, rate] = run.model
    dim = problem_of().dim
    assert bits["kept"] == [dim, 3 * dim]
    assert bits["averaged"] == [dim + 10, 3 * (dim + 10)]
    assert bits["reset"] == [dim + 10, 3 * dim]
    assert np.abs(models["averaged", 0.0] - models["averaged", 0.5]).max() > 1e-3


BITS = ("bits_up", "bits_down")
