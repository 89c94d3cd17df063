"""Participants chosen by speed and by what models are worth: against a loop, and bad input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key, key_of, round_key
from fljax._core.random_subsets import shuffled
from fljax.algorithms import FedAvg
from fljax.clock import AdaptiveTiers, Devices, Guided, Intervals, LogNormal
from tests.cases import simulate
from tests.reference import choices
from tests.support.rounds import trajectory

CLIENTS = 9
DIM = 2
CLASSES = 3
ROUNDS = 40
STEP = 0.3
SECONDS = np.sqrt([19, 2, 17, 3, 13, 5, 11, 7, 1.5])
KEY = as_key(1)

close = np.testing.assert_allclose


def participants_of(result):
    return [np.flatnonzero(row).tolist() for row in result.participation.values]


# Tiers by accuracy -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labeled():
    """Clients with different labels, so that tiers have different accuracies."""
    rng = np.random.default_rng(5)
    clients = []
    for k in range(CLIENTS):
        labels = rng.choice(CLASSES, 12, p=np.roll([0.8, 0.1, 0.1], k % CLASSES))
        centers = np.array([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]])
        clients.append((centers[labels] + rng.normal(size=(12, DIM)), labels))
    return fl.problems.from_clients(clients, fl.problems.Softmax(CLASSES)).split(
        jax.random.key(2), test=0.5
    )


def softmax_step(problem, k, w):
    """One step of client ``k`` on its own mean loss, without JAX."""
    x = np.asarray(problem.features[k])
    scores = x @ w.reshape(CLASSES, -1).T
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    chances[np.arange(len(x)), np.asarray(problem.targets[k], int)] -= 1
    return w - STEP * (chances.T @ x / len(x)).reshape(-1)


def shares_of_right(problem, w, tiers):
    test = problem.test
    right = np.zeros((len(tiers), 2))
    for t, members in enumerate(tiers):
        for k in members:
            real = np.asarray(test.weights[k]) > 0
            scores = np.asarray(test.features[k]) @ w.reshape(CLASSES, -1).T
            is_right = scores.argmax(axis=1) == np.asarray(test.targets[k])
            right[t] += is_right[real].sum(), real.sum()
    return np.round(right[:, 0] / right[:, 1], 6)


@pytest.mark.core
@pytest.mark.parametrize(
    ("credits", "interval"), [(None, 2), ((40, 12, 6), 3), (14, 1)], ids=["free", "each", "equal"]
)
def test_tiers_are_those_of_a_loop(labeled, credits, interval):
    """Iterates, the tier of each round and the seconds."""
    clock = AdaptiveTiers(
        Devices(seconds_per_step=SECONDS), tiers=3, count=2, interval=interval, credits=credits
    )
    algorithm = FedAvg(STEP, local_steps=1)
    simulation = fl.Simulation(labeled, algorithm, clock=clock, metrics=["participation"])
    result = fl.run(simulation, ROUNDS, key=1)
    tiers = np.argsort(SECONDS).reshape(3, 3)
    given = {None: (10**6,) * 3, 14: (14,) * 3}.get(credits, credits)
    loop = choices.AdaptiveTiers(3, interval, given)
    w = np.zeros(DIM * CLASSES)
    models, now, lengths = [], [], []
    for n in range(1, ROUNDS + 1):
        of_tier, of_clients = jax.random.split(key_of(round_key(KEY, n), "participation"))

        def draw(p, key=of_tier):
            return int(jax.random.choice(key, len(p), p=jnp.asarray(p)))

        t = loop(n, lambda w=w: shares_of_right(labeled, w, tiers), draw)
        among = np.isin(np.arange(CLIENTS), tiers[t])
        chosen = np.asarray(shuffled(of_clients, jnp.asarray(among)[None], 2)[0])
        w = np.mean([softmax_step(labeled, k, w) for k in chosen], axis=0)
        models.append(w)
        now.append(sorted(chosen.tolist()))
        lengths.append(max(SECONDS[chosen]))
    assert participants_of(result) == now
    close(trajectory(simulation, ROUNDS)[:, 0], models, rtol=0, atol=1e-10)
    close(result.seconds, np.cumsum(lengths))
    assert loop.changes > 1


def test_a_slow_tier_is_drawn_as_often_as_it_has_credits(labeled):
    clock = AdaptiveTiers(Devices(seconds_per_step=SECONDS), tiers=3, count=3, credits=(28, 10, 2))
    simulation = fl.Simulation(labeled, FedAvg(STEP), clock=clock, metrics=["participation"])
    result = fl.run(simulation, ROUNDS)
    took_part = result.participation.sum("round").values
    by_speed = took_part[np.argsort(SECONDS)].reshape(3, 3)
    assert by_speed.tolist() == [[28] * 3, [10] * 3, [2] * 3]


# Guided ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(4)
    sizes = [3, 8, 5, 4, 8, 6, 7, 2, 5]
    clients = [
        (rng.normal(size=(n, DIM)), rng.normal(loc=k / 2, size=n)) for k, n in enumerate(sizes)
    ]
    return fl.problems.from_clients(clients, fl.problems.LeastSquares())


def real(problem, k):
    rows = np.asarray(problem.weights[k]) > 0
    return np.asarray(problem.features[k])[rows], np.asarray(problem.targets[k])[rows]


SMALL = {"exploration": 0.6, "decay": 0.8, "least_exploration": 0.1, "cutoff": 0.7}


@pytest.mark.core
@pytest.mark.parametrize(("failure", "away"), [(None, False), (0.3, True)])
def test_guided_rounds_are_those_of_a_loop(problem, failure, away):
    """Participants, iterates and seconds, with numbers that vary, fail and clients that leave."""
    shifts = Intervals([[0.0]] * 6 + [[30.0]] * 3, [[40.0]] * 6 + [[60.0]] * 3, period=60.0)
    devices = Devices(
        seconds_per_step=SECONDS,
        upload_bits_per_second=50.0,
        variation=LogNormal(1.0, spread=0.3),
        failure=failure,
        availability=shifts if away else None,
    )
    clock = Guided(devices, count=4, preferred_seconds=5.0, penalty=1.5, **SMALL)
    algorithm = FedAvg(0.05, local_steps=1, weighting="equal")
    simulation = fl.Simulation(problem, algorithm, clock=clock, metrics=["timeline"])
    result = fl.run(simulation, ROUNDS, key=1)
    loop = choices.Guided(CLIENTS, 4, 5.0, 1.5, *SMALL.values())
    expected = SECONDS + 32 * (DIM + 1) / 50.0  # a model and the utility
    w = np.zeros(DIM)
    models = []
    timeline = result.timeline.values
    for n in range(1, ROUNDS + 1):
        keys = jax.random.split(key_of(round_key(KEY, n), "participation"))
        gumbel = [np.asarray(jax.random.gumbel(key, (CLIENTS,), float)) for key in keys]
        began = 0.0 if n == 1 else float(result.seconds[n - 2])
        there = [bool(on) for on in shifts.at(jnp.asarray(began), jnp.arange(CLIENTS)).on]
        chosen = loop(n, there if away else [True] * CLIENTS, expected, gumbel)
        assert np.flatnonzero(~np.isnan(timeline[n - 1, :, 0])).tolist() == chosen
        arrived = [k for k in chosen if timeline[n - 1, k, 4] == 1]
        local = []
        for k in arrived:
            x, y = real(problem, k)
            error = x @ w - y
            loop.told(n, k, error**2, timeline[n - 1, k, 1:4].sum())
            local.append(w - 0.05 * 2 * x.T @ error / len(y))
        w = np.mean(local, axis=0) if local else w
        models.append(w)
    close(trajectory(simulation, ROUNDS)[:, 0], models, rtol=0, atol=1e-10)
    assert failure is None or (timeline[..., 4] == 0).any()
    assert len(loop.last) == CLIENTS


def test_the_utility_is_a_number_of_each_participant(problem):
    clock = Guided(Devices(seconds_per_step=SECONDS), count=4, preferred_seconds=5.0)
    result = fl.run(fl.Simulation(problem, FedAvg(0.05), clock=clock, metrics=[]), ROUNDS)
    assert int(result.bits_up[-1]) == 32 * (DIM + 1) * 4 * ROUNDS


def test_a_penalty_of_slow_clients_makes_rounds_shorter(problem):
    """Numbers of a sweep, in one program."""

    def scenario(key, penalty):
        clock = Guided(
            Devices(seconds_per_step=SECONDS), count=3, preferred_seconds=2.0, penalty=penalty
        )
        return fl.Simulation(problem, FedAvg(0.05), clock=clock, metrics=[])

    grid = {"penalty": [0.0, 4.0]}
    result = fl.sweep(scenario, grid=grid, seeds=4, rounds=60, progress=False)
    seconds = result.seconds.isel(round=-1).mean("seed").values
    assert seconds[1] < 0.8 * seconds[0]


# Privacy and bad input ---------------------------------------------------------------------------


LAW = Devices(seconds_per_step=1.0)
CLOCKS = [
    AdaptiveTiers(LAW, tiers=2, count=2),
    Guided(LAW, count=2, preferred_seconds=1.0),
]


@pytest.mark.parametrize("label", ["FedAvg", "FL", "DP-SGD"])
@pytest.mark.parametrize("clock", CLOCKS, ids=lambda clock: type(clock).__name__)
def test_no_budget_is_claimed_where_the_choice_depends_on_data(label, clock):
    """At the server, on messages, in gradients: refused before anything runs, and not nominal."""
    simulation = simulate(label)
    if label == "FedAvg":
        private = fl.privacy.CentralGaussian(1.0, clip=1.0)
        simulation = dataclasses.replace(simulation, privacy=private)
    assert simulation.privacy is not None
    name = type(clock).__name__
    with pytest.raises(ValueError, match=f"chosen by {name}, which depends on their samples"):
        dataclasses.replace(simulation, clock=clock)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: AdaptiveTiers(d, tiers=3, count=2, credits=(1, 2)), "one for each of the 3"),
        (lambda d: AdaptiveTiers(d, tiers=3, count=2, credits=-1), "credits must be"),
        (lambda d: AdaptiveTiers(d, tiers=3, count=2, interval=0), "interval must be"),
        (lambda d: AdaptiveTiers(d, tiers=3, count=2, credits=5), "sufficient for 15 rounds"),
        (
            lambda d: AdaptiveTiers(
                d, tiers=3, count=2, credits=(10, 10, 99), probabilities=(0.5, 0.5, 0.0)
            ),
            "sufficient for 20 rounds",
        ),
        (lambda d: Guided(d, count=10, preferred_seconds=1.0), "count must be at most the 9"),
        (lambda d: Guided(d, count=2, preferred_seconds=0.0), "preferred_seconds must be"),
        (lambda d: Guided(d, count=2, preferred_seconds=1.0, cutoff=1.5), "cutoff must be"),
        (lambda d: Guided(d, count=2, preferred_seconds=1.0, penalty=-1.0), "penalty must be"),
    ],
)
def test_bad_arguments_are_refused(labeled, make, message):
    def run():
        clock = make(Devices(seconds_per_step=SECONDS))
        fl.run(fl.Simulation(labeled, FedAvg(STEP), clock=clock), ROUNDS)

    with pytest.raises(ValueError, match=message):
        run()


def test_tiers_without_accuracy_are_refused(labeled, problem):
    clock = AdaptiveTiers(Devices(seconds_per_step=SECONDS), tiers=3, count=2)
    bare = dataclasses.replace(labeled, test=None)
    common = bare.with_test(labeled.test.features[0], labeled.test.targets[0])
    for wrong in (bare, common):
        with pytest.raises(ValueError, match="no held-out data of each client"):
            fl.Simulation(wrong, FedAvg(STEP), clock=clock)
    with pytest.raises(ValueError, match="no labels, and AdaptiveTiers compares"):
        fl.Simulation(problem.split(jax.random.key(0)), FedAvg(STEP), clock=clock)


def test_a_choice_of_losses_needs_the_model(labeled):
    @fl.module
    class Blind(FedAvg):
        def step(self, state, now):
            now.choose(self.selection)
            return state

    clock = Guided(Devices(seconds_per_step=SECONDS), count=2, preferred_seconds=1.0)
    with pytest.raises(TypeError, match="pass the model that participants start from"):
        fl.run(fl.Simulation(labeled, Blind(STEP), clock=clock, metrics=[]), 2)
