"""Private clients that come and go: their messages, costs and sensitivities."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key, key_of
from fljax.algorithms import PGFL, REGISTRY, ConventionalFL
from fljax.audit import tap
from fljax.participation.patterns import Bernoulli, Markov, Trace
from fljax.privacy import ZCDP, ApproximateDP, DiscreteZCDP, PureDP
from fljax.problems import Logistic
from fljax.simulation.scan import prepare
from tests.cases import (
    CLIENTS,
    CLUSTER,
    DIM,
    EDGES,
    LINE,
    MEMBERS,
    PRIVATE,
    SERVER,
    SIZES,
    gap_of,
    make_objective,
    make_problem,
    simulate,
)
from tests.privacy.test_neighbors import ROUNDS, changes, shares
from tests.privacy.worlds import CLIENT, EXACT, worlds_of
from tests.reference import nfl, pgfl
from tests.support.marks import quiet

LABELS = [label for label in PRIVATE if REGISTRY[label].needs.absent]
#: Another client each round, none in the third, and the attacked client in rounds 1 and 4.
TABLE = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1]], bool)
PATTERNS = {"trace": Trace(TABLE), "bernoulli": Bernoulli(0.6), "markov": Markov(0.4, 0.5)}
#: Who is there is drawn before any learner looks: each meets one pattern, and one meets them all.
MEETINGS = [
    *(("FL", pattern) for pattern in PATTERNS),
    *((label, [*PATTERNS][i % 3]) for i, label in enumerate(LABELS) if label != "FL"),
]


@fl.module
class Replayed(ZCDP):
    noise: jax.Array | None = None  # [T, K, D]

    def draw(self, key, shape, dtype, round, clients):
        return self.noise[round - 1, clients]


def present(pattern, seed, rounds=ROUNDS):
    """``[T, K]``: the active clients, drawn round by round outside of a run."""
    keys = [jax.random.fold_in(as_key(seed), n) for n in range(rounds + 1)]
    state = pattern.begin(key_of(keys[0], "availability"), CLIENTS)
    table = []
    for n in range(1, rounds + 1):
        state, on = pattern.draw(state, key_of(keys[n], "availability"), jnp.int32(n), CLIENTS)
        table.append(np.asarray(on))
    return np.array(table)


def test_algorithms_that_cope_with_absence_do_so_in_private():
    expected = ["zCDP-grad-NFL", "ATC", "FL", "PGFL", "GFL", "ClusterFL", "GFL, gradient"]
    expected += ["PGFL, by gradient", "HierFAVG"]
    assert sorted(LABELS) == sorted(expected)


@quiet
@pytest.mark.thin(2)
@pytest.mark.parametrize(("label", "pattern"), MEETINGS)
def test_clients_spend_in_the_rounds_in_which_they_send(label, pattern):
    pattern = PATTERNS[pattern]
    simulation = dataclasses.replace(
        simulate(label, make_problem("lad", 1.0) if label not in EXACT else None),
        participation=pattern,
    )
    if label == "PGFL":  # all active clients; another test covers the draw among them
        simulation = dataclasses.replace(simulation, algorithm=PGFL(0.9))
    run = fl.run(simulation, ROUNDS, key=3)
    active = present(pattern, 3)
    assert 0 < active.mean() < 1
    budget = 2.0
    decay = 0.9
    first = budget / sum(decay ** -(n - 1) for n in range(1, ROUNDS + 1))
    spent = np.zeros(CLIENTS)
    worst = []
    for n in range(1, ROUNDS + 1):
        for k in range(CLIENTS):
            if active[n - 1, k]:
                spent[k] += first * decay ** -(n - 1)
        worst.append(spent.max())
    np.testing.assert_allclose(run.client_rho, spent, rtol=1e-10)
    np.testing.assert_allclose(run.privacy_rho, worst, rtol=1e-10)


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize(
    "notion",
    [
        ZCDP(2.0, 0.9, schedule="variance"),
        DiscreteZCDP(2.0, 0.9),
        ApproximateDP(2.0, 1e-3),
        PureDP(2.0, 0.9),
    ],
)
def test_a_missed_round_costs_nothing_under_any_budget(notion):
    """What is spent is a part of what clients spend that never miss one: the same rounds'."""
    simulation = dataclasses.replace(simulate("FL", make_problem("lad", 1.0)), privacy=notion)
    full = fl.run(simulation, ROUNDS)
    parts = fl.run(dataclasses.replace(simulation, participation=Trace(TABLE)), ROUNDS)
    for name in notion.ledger:
        per_round = np.diff(full[f"privacy_{name}"].values, prepend=0)
        np.testing.assert_allclose(parts[f"client_{name}"], per_round @ TABLE, rtol=1e-9)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("label", "pattern"), MEETINGS)
def test_messages_of_neighbors_differ_by_the_sensitivity_for_any_participation(label, pattern):
    """In one history with rounds that the attacked client misses; in these its messages do not
    differ.
    """
    pattern = PATTERNS[pattern]
    seeds = {seed: present(pattern, seed)[:, CLIENT] for seed in range(9)}
    seed, active = next((s, on) for s, on in seeds.items() if 0 < on.sum() < ROUNDS)
    worlds = tuple(
        dataclasses.replace(simulate(label, problem), participation=pattern)
        for problem in worlds_of(label)
    )
    share = shares(worlds, "replace", seed)
    assert share.max() <= 1 + 1e-9
    if label != "PGFL":  # PGFL draws two of a server's clients
        assert share[active].min() > (0.84 if label in EXACT else 0.99)
    if label != "zCDP-grad-NFL":
        np.testing.assert_array_equal(share[~active], 0)


@pytest.mark.slow
def test_audits_read_the_messages_of_the_run():
    """Peers that rest: the last message of each is the model that the network may see."""
    simulation = dataclasses.replace(
        simulate("zCDP-grad-NFL", make_problem("lad", 1.0)),
        participation=Markov(0.4, 0.5),
        model="released",
    )

    def listen(key):
        ready = (prepare(simulation, ROUNDS),)
        return tap.record_statistics(
            (simulation,), ready, key, ROUNDS, lambda message, clean: {"said": message}
        )

    messages = np.asarray(jax.jit(listen)(as_key(2))[0]["said"])
    active = present(simulation.participation, 2)
    last = np.zeros((CLIENTS, DIM))
    for n in range(ROUNDS):
        last[active[n]] = messages[n][active[n]]
    assert not active.all()
    np.testing.assert_allclose(fl.run(simulation, ROUNDS, key=2).model, last, rtol=1e-12)


@pytest.mark.slow
def test_minimizers_that_wait_for_their_client_keep_the_sensitivity():
    """A warm start that an absent client keeps moves a later message no further than others do."""
    rng = np.random.default_rng(2)
    radius = 2.0
    features = rng.normal(size=(CLIENTS, 6, DIM))
    features *= radius / np.linalg.norm(features, axis=-1, keepdims=True)
    targets = np.sign(rng.normal(size=(CLIENTS, 6)))
    worlds = []
    for sign in (1.0, -1.0):
        turned = features.copy()
        turned[CLIENT] = sign * features[CLIENT, :1]
        problem = fl.problems.Problem(turned, targets, Logistic(), feature_bound=radius)
        simulation = dataclasses.replace(
            simulate("GFL"),
            problem=problem,
            algorithm=PGFL(0.2, inner_iterations=1),
            privacy=ZCDP(2.0, gradient_bound=radius, neighbors="client"),
            participation=Trace(TABLE),
        )
        worlds.append(simulation)
    distance = np.asarray(changes(tuple(worlds), as_key(0)))
    gap = gap_of(worlds[0].problem, radius, "client")
    arguments = worlds[0].problem, worlds[0].network
    allowed = worlds[0].algorithm.sensitivity(*arguments, jnp.asarray(1), gap)[CLIENT]
    assert (distance[:, CLIENT] <= float(allowed) * (1 + 1e-9)).all()
    assert (distance[TABLE[:, CLIENT], CLIENT] > 0.02).all()
    assert np.ptp(distance[TABLE[:, CLIENT], CLIENT]) > 1e-3  # the second starts from the first


# Models, with the noise of another implementation ------------------------------------------------

NOISE = np.random.default_rng(4).normal(size=(ROUNDS, CLIENTS, DIM))
BUDGET = Replayed(2.0, 0.9, noise=jnp.asarray(NOISE))


def deviations(sensitivity):
    """``[T, K]``."""
    rho = [0.9 ** -(n - 1) for n in range(1, ROUNDS + 1)]
    rho = 2.0 * np.array(rho) / np.sum(rho)
    return np.asarray(sensitivity)[None] / np.sqrt(2 * rho[:, None])


def ran(simulation):
    metric = fl.metrics.Metric("model0", lambda now: jnp.sum(now.model), "sum")
    return fl.run(dataclasses.replace(simulation, metrics=metric), ROUNDS)


@pytest.mark.thin(2)
@pytest.mark.parametrize("table", [TABLE, np.ones_like(TABLE)], ids=["some", "all"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_server_averages_the_messages_of_active_clients(steps, table):
    objective = make_objective("lad", 1.0)
    step = 0.05
    sensitivity = [step * (2 / size + 2 * (steps - 1)) for size in SIZES]
    scale = deviations(sensitivity)
    server = np.zeros(DIM)
    sums = []
    for n in range(ROUNDS):
        messages = []
        for k in range(CLIENTS):
            if table[n, k]:
                w = server.copy()
                for _ in range(steps):
                    w = w - step * objective.gradient(k, w)
                messages.append(w + scale[n, k] * NOISE[n, k])
        server = np.mean(messages, axis=0) if messages else server
        sums.append(CLIENTS * server.sum())
    simulation = dataclasses.replace(
        simulate("FL", make_problem("lad", 1.0)),
        algorithm=ConventionalFL(step, steps),
        privacy=BUDGET,
        participation=None if table.all() else Trace(table),
    )
    run = ran(simulation)
    np.testing.assert_allclose(run.model0, sums, rtol=1e-10)
    np.testing.assert_allclose(run.model[0], server, rtol=1e-10)


@pytest.mark.slow
def test_resting_peers_are_remembered():
    objective = make_objective("lad", 1.0)
    step = 0.05
    scale = deviations([step * 2 / size for size in SIZES])
    simulation = dataclasses.replace(
        simulate("zCDP-grad-NFL", make_problem("lad", 1.0)),
        privacy=BUDGET,
        participation=Trace(TABLE),
    )
    weights = nfl.metropolis(CLIENTS, EDGES)
    model, received, mixed = (np.zeros((CLIENTS, DIM)) for _ in range(3))
    for n in range(ROUNDS):
        active = TABLE[n]
        for k in np.flatnonzero(active):
            model[k] = mixed[k] - step * objective.gradient(k, received[k])
        received = np.where(active[:, None], model + scale[n][:, None] * NOISE[n], received)
        mixed = np.where(active[:, None], weights @ received, mixed)
    np.testing.assert_allclose(ran(simulation).model, model, rtol=1e-10)


@pytest.mark.slow
@quiet
def test_personalized_models_equal_the_loop_over_active_clients():
    """Each server draws one of its active clients: the noise belongs to the client, not to the row
    of its message.
    """
    simulation = dataclasses.replace(
        simulate("PGFL"),
        algorithm=PGFL(0.9, 0.3, clients_per_server=1),
        privacy=BUDGET,
        participation=Trace(TABLE),
    )
    drawn = []
    for n in range(1, ROUNDS + 1):
        key = key_of(jax.random.fold_in(as_key(5), n), "participation")
        participants = simulation.algorithm.selection.choose(
            key, jnp.asarray(TABLE[n - 1]), simulation.network, n
        )
        drawn.append(np.asarray(participants.put(jnp.zeros(CLIENTS, bool), participants.here)))
    drawn = np.array(drawn)
    assert (drawn <= TABLE).all()
    assert drawn.sum() < TABLE.sum()
    gap = gap_of(simulation.problem)
    sensitivity = simulation.algorithm.sensitivity(
        simulation.problem, simulation.network, jnp.asarray(1), gap
    )
    noise = deviations(sensitivity)[..., None] * NOISE
    loop = pgfl.pgfl(
        *(MEMBERS, SERVER, CLUSTER, LINE, ROUNDS, 0.9, lambda n: 0.3, 2, 2, drawn, noise)
    )
    run = fl.run(simulation, ROUNDS, key=5)
    np.testing.assert_allclose(run.model, loop.model[-1], rtol=1e-10, atol=1e-12)
    rho = (np.asarray(sensitivity) / deviations(sensitivity)) ** 2 / 2
    np.testing.assert_allclose(run.client_rho, (rho * drawn).sum(0), rtol=1e-10)


@pytest.mark.slow
def test_an_audit_of_intermittent_clients_finds_their_cost():
    """Near the ledger's part of the budget, which it does not exceed."""
    low, high = (
        dataclasses.replace(simulate("FL", problem), privacy=ZCDP(1.0), participation=Trace(TABLE))
        for problem in worlds_of("FL")
    )
    result = fl.audit.two_worlds(low, high.problem, ROUNDS, 20_000, delta=0.01)
    assert result.ledger == {"rho": pytest.approx(0.5), "gaussian_noise": 1}  # two rounds of four
    assert not result.broken
    assert result.mu == pytest.approx(1, abs=0.03)  # the root of twice that
