"""Peers and clients that come and go: all outcomes of small rounds, and runs."""

import functools
import itertools

import numpy as np
import pytest

import fljax as fl
from fljax._core.module import replace
from fljax.algorithms import (
    ATC,
    CTA,
    Consensus,
    Diffusion,
    FedAvg,
    GraphFedAvg,
    SampledDiffusion,
)
from fljax.link import Independent, PerEdge
from fljax.participation.patterns import Bernoulli, Markov
from fljax.participation.selectors import Fraction
from fljax.problems import LeastSquares, SquaredL2, from_clients
from fljax.problems.batches import Uniform
from fljax.theory import multiagent as theory

RIDGE = 0.1
STEP = 0.2
close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-14)


@functools.cache
def make_data(sizes, dim, seed=3):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=dim)
    data = []
    for size in sizes:
        X = 0.5 * np.exp(0.5 * rng.normal()) * rng.normal(size=(size, dim))
        truth_of_client = truth + 0.3 * rng.normal(size=dim)
        data.append((X, X @ truth_of_client + 0.3 * np.exp(rng.normal()) * rng.normal(size=size)))
    return tuple(data)


def make_problem(data, start=None):
    problem = from_clients(data, LeastSquares(), SquaredL2(), np.full(len(data), RIDGE))
    return problem if start is None else problem.starting_at(start)


def gradient(X, y, w):
    return np.mean(2 * X * (X @ w - y)[:, None], axis=0) + 2 * RIDGE * w


# All outcomes of a round -----------------------------------------------------------------------

LINE = fl.graphs.path(3)
LEFT_STOCHASTIC = np.array([[0.6, 0.3, 0.0], [0.4, 0.5, 0.2], [0.0, 0.2, 0.8]])
COMBINATION = fl.graphs.from_stochastic(LEFT_STOCHASTIC, convention="left")
SCALAR = make_data((2, 1, 1), 1)
BEGIN = np.array([0.5, -1.0, 0.2])
ACTIVE_PROBABILITIES = np.array([0.3, 0.8, 1.0])


def steps(models):
    """``(probability, models after a step on a sample each)``."""
    rows = list(itertools.product(*(range(len(y)) for _, y in SCALAR)))
    for drawn in rows:
        models_after = [
            w - STEP * gradient(X[[n]], y[[n]], np.array([w]))[0]
            for w, (X, y), n in zip(models, SCALAR, drawn, strict=True)
        ]
        yield 1 / len(rows), np.array(models_after)


def circumstances(loss, symmetric):
    """``(probability, active clients, working links)``."""
    links = [(0, 1), (1, 2)] if symmetric else [(0, 1), (1, 2), (1, 0), (2, 1)]
    for active in itertools.product((False, True), repeat=3):
        chance = np.prod(np.where(active, ACTIVE_PROBABILITIES, 1 - ACTIVE_PROBABILITIES))
        for broken in itertools.product((False, True), repeat=len(links)):
            works = np.ones((3, 3), bool)
            for (k, m), off in zip(links, broken, strict=True):
                works[k, m] = not off
                works[m, k] = not off if symmetric else works[m, k]
            yield chance * np.prod(np.where(broken, loss, 1 - loss)), np.array(active), works


def mix_received(active, works, sent):
    """Each client's mixture of received messages; its own replaces missing ones."""
    W = LEFT_STOCHASTIC.T * works
    return W @ sent + (1 - W.sum(axis=1)) * sent


def peers(stage, models, sent, loss, symmetric):
    for p, active, works in circumstances(loss, symmetric):
        if stage == "after":
            for q, moved in steps(models):
                new = np.where(active, moved, sent)
                yield p * q, np.where(active, mix_received(active, works, new), models), new
            continue
        new = np.where(active, models, sent)
        mixed = mix_received(active, works, new)
        at = mixed if stage == "before" else models
        for q, moved in steps(at):
            yield p * q, np.where(active, mixed + moved - at, models), new


STRATEGIES = {"before": CTA, "beside": Consensus, "after": ATC}


@pytest.mark.parametrize(
    ("stage", "loss", "symmetric"),
    [
        ("after", 0.3, True),
        pytest.param("after", 0.3, False, marks=pytest.mark.slow),
        pytest.param("before", 0.3, True, marks=pytest.mark.slow),
        pytest.param("beside", 0.3, True, marks=pytest.mark.slow),
    ],
)
def test_a_round_of_intermittent_peers_matches_all_outcomes(stage, loss, symmetric):
    problem = make_problem(SCALAR, BEGIN[:, None])
    simulation = fl.Simulation(
        problem,
        STRATEGIES[stage](STEP, COMBINATION, batches=Uniform(1)),
        LINE,
        participation=Bernoulli(ACTIVE_PROBABILITIES),
        losses=Independent(loss, symmetric),
    )
    result = theory.learning_curve(simulation, 2)
    weights = np.asarray(COMBINATION.stationary)
    optimum = np.asarray(fl.problems.optimum(problem))[0]
    states = [(1.0, BEGIN, BEGIN)]
    for n in range(2):
        states = [
            (p * q, *after)
            for p, models, sent in states
            for q, *after in peers(stage, models, sent, loss, symmetric)
        ]
        chance = np.array([p for p, *_ in states])
        models = np.array([w for _, w, _ in states])
        close(chance.sum(), 1)
        center = models @ weights
        close(result.centroid[n], chance @ (center - optimum) ** 2)
        close(result.individual[n], chance @ ((models - optimum) ** 2).mean(axis=1))
        close(result.disagreement[n], chance @ ((models - center[:, None]) ** 2).mean(axis=1))


CHANCE = np.array([[0.0, 1.0, 0.0], [0.3, 0.0, 0.7], [0.0, 1.0, 0.0]])


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sampled_peers_match_all_outcomes(count):
    problem = make_problem(SCALAR, BEGIN[:, None])
    draws = SampledDiffusion(STEP, count, probability=CHANCE, batches=Uniform(1))
    result = theory.learning_curve(fl.Simulation(problem, draws, LINE), 1)
    W = np.asarray(LINE.mixing().matrix())
    optimum = np.asarray(fl.problems.optimum(problem))[0]
    total = np.zeros(2)
    for p, moved in steps(BEGIN):
        for chosen in itertools.product(itertools.product(range(3), repeat=count), repeat=3):
            chance = p
            w = moved.copy()
            for k, those in enumerate(chosen):
                for m in those:
                    chance = chance * CHANCE[k, m]
                    if CHANCE[k, m]:
                        w[k] += W[k, m] / (count * CHANCE[k, m]) * (moved[m] - moved[k])
            errors = w - optimum
            total += chance * np.array([errors.mean() ** 2, (errors**2).mean()])
    close([result.centroid[0], result.individual[0]], total)


@pytest.mark.slow
def test_importance_is_better_than_uniform_draws_and_their_neighborhood():
    """The best probabilities for the sum over a round: any other probabilities leave more noise."""
    problem = make_problem(EIGHT_CLIENTS)
    base = fl.Simulation(problem, SampledDiffusion(0.1, batches=Uniform(1)), GRAPH)
    best = np.asarray(theory.neighbor_importance(base))

    def level(probability):
        algorithm = replace(base.algorithm, probability=probability)
        return float(theory.steady_state(replace(base, algorithm=algorithm)).individual)

    far = np.asarray(best) * np.exp(np.random.default_rng(0).normal(size=best.shape))
    assert level(best) < level(None)
    assert level(best) < level(far / far.sum(axis=1, keepdims=True))


# Clients of servers ----------------------------------------------------------------------------

PLANE = make_data((2, 2, 1, 2), 2)
STEPS = (2, 1, 2, 1)
CLIENT_PROBABILITIES = np.array([0.3, 0.8, 1.0, 0.5])


def learnt(k, w):
    """``(probability, model)`` of a client after its steps on a sample each."""
    X, y = PLANE[k]
    for drawn in itertools.product(range(len(y)), repeat=STEPS[k]):
        v = w
        for n in drawn:
            v = v - STEP / STEPS[k] * gradient(X[[n]], y[[n]], v)
        yield len(y) ** -STEPS[k], v


def server_round(clients, w):
    """All ``(probability, model)`` of a server after a round with those of its clients that are
    active.
    """
    for active in itertools.product((False, True), repeat=len(clients)):
        chance = np.prod(
            [
                CLIENT_PROBABILITIES[k] if on else 1 - CLIENT_PROBABILITIES[k]
                for k, on in zip(clients, active, strict=True)
            ]
        )
        participants = [k for k, on in zip(clients, active, strict=True) if on]
        for outcome in itertools.product(*(list(learnt(k, w)) for k in participants)):
            models = [v for _, v in outcome]
            mean = np.mean(models, axis=0) if models else w
            yield chance * np.prod([p for p, _ in outcome]), mean


@pytest.mark.slow
def test_federated_averaging_with_participation_matches_all_outcomes():
    start = np.array([0.5, -1.0])
    problem = make_problem(PLANE, start)
    algorithm = FedAvg(STEP, batches=Uniform(1), local_steps=STEPS, normalized=True)
    simulation = fl.Simulation(problem, algorithm, participation=Bernoulli(CLIENT_PROBABILITIES))
    optimum = np.asarray(fl.problems.optimum(problem))
    expected = sum(p * ((w - optimum) ** 2).sum() for p, w in server_round(range(4), start))
    close(theory.learning_curve(simulation, 1).centroid[0], expected)


@pytest.mark.slow
def test_a_bernoulli_selector_equals_participation():
    problem = make_problem(PLANE)
    algorithm = FedAvg(STEP, batches=Uniform(1), local_steps=STEPS)
    drawn = FedAvg(STEP, batches=Uniform(1), local_steps=STEPS, selector=Fraction(0.5))
    combined = fl.Simulation(problem, drawn, participation=Bernoulli(CLIENT_PROBABILITIES))
    once = fl.Simulation(problem, algorithm, participation=Bernoulli(CLIENT_PROBABILITIES / 2))
    for got, expected in zip(theory.steady_state(combined), theory.steady_state(once), strict=True):
        close(got, expected)


@pytest.mark.slow
def test_servers_with_absent_clients_match_all_outcomes():
    start = np.array([0.5, -1.0])
    problem = make_problem(PLANE, start)
    network = fl.federation.Federation([0, 0, 1, 1], fl.graphs.path(2))
    algorithm = GraphFedAvg(STEP, STEPS, batches=Uniform(1))
    simulation = fl.Simulation(
        problem, algorithm, network, participation=Bernoulli(CLIENT_PROBABILITIES)
    )
    result = theory.learning_curve(simulation, 1)
    W = np.asarray(network.graph.mixing().matrix())
    optimum = np.asarray(fl.problems.optimum(problem))
    total = np.zeros(2)
    for p, first in server_round((0, 1), start):
        for q, second in server_round((2, 3), start):
            errors = W @ np.array([first, second]) - optimum
            center = errors.mean(axis=0)
            total += p * q * np.array([(center**2).sum(), (errors**2).sum(axis=1).mean()])
    close([result.centroid[0], result.individual[0]], total)


@pytest.mark.slow
def test_full_participation_equals_the_theory_without_participation():
    """Also with noise on uploads, and of many clients, whose rule has many points."""
    problem = make_problem(make_data((3,) * 40, 2))
    algorithm = FedAvg(STEP, batches=Uniform(1), local_steps=2)
    noisy = fl.link.UploadNoise(0.01, on="updates")
    plain = fl.Simulation(problem, algorithm, upload_noise=noisy)
    everyone = fl.Simulation(problem, algorithm, upload_noise=noisy, participation=Bernoulli(1.0))
    for got, expected in zip(
        theory.steady_state(everyone), theory.steady_state(plain), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-14)


# Where it ends ---------------------------------------------------------------------------------

EIGHT_CLIENTS = make_data((6, 7, 5, 8, 6, 7, 6, 5), 2, seed=1)
GRAPH = fl.graphs.from_edges(
    8, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 0), (1, 5)]
)
RARE = np.array([0.9, 0.4, 0.5, 0.3, 1.0, 0.8, 0.6, 0.7])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [ATC, CTA, Consensus, FedAvg])
def test_runs_come_to_the_steady_state(strategy):
    peers = strategy is not FedAvg
    simulation = fl.Simulation(
        make_problem(EIGHT_CLIENTS),
        strategy(0.2, batches=Uniform(2))
        if peers
        else FedAvg(0.2, batches=Uniform(2), local_steps=3),
        GRAPH if peers else None,
        metrics=[fl.metrics.trajectory("model")],
        participation=Bernoulli(RARE),
        losses=Independent(0.2) if peers else None,
    )
    state = theory.steady_state(simulation)
    curve = theory.learning_curve(simulation, 800)
    np.testing.assert_allclose(curve.individual[-1], state.individual, rtol=1e-8)
    runs = fl.sweep(lambda key: simulation, seeds=60, rounds=500)
    models = np.asarray(runs["model_trajectory"])[:, 150:, : len(state.law)]
    errors = models - np.asarray(theory.minimizer(simulation.problem))
    centroid = np.einsum("strd,r->std", errors, np.asarray(state.law))
    result = [
        (centroid**2).sum(-1).mean(1),
        (errors**2).sum(-1).mean((1, 2)),
        ((errors - centroid[:, :, None]) ** 2).sum(-1).mean((1, 2)),
    ]
    for runs, expected in zip(
        result, (state.centroid, state.individual, state.disagreement), strict=True
    ):
        error = runs.std(ddof=1) / np.sqrt(len(runs))
        assert abs(runs.mean() - float(expected)) < 4 * error + 1e-15


@pytest.mark.slow
def test_rare_participation_moves_the_stable_step():
    """With random participation mean-square stability needs shorter steps; runs agree."""
    problem = make_problem(EIGHT_CLIENTS)
    base = fl.Simulation(problem, ATC(0.1, batches=Uniform(1)), GRAPH)
    rare = fl.Simulation(
        problem, ATC(0.1, batches=Uniform(1)), GRAPH, participation=Bernoulli(RARE)
    )
    limits = [theory.stable_step(s, "mean square", 2) for s in (base, rare)]
    assert limits[1] != pytest.approx(limits[0], rel=0.02)
    for scale, finite in ((0.9, True), (1.1, False)):
        step = fl.Simulation(
            problem,
            ATC(scale * limits[1], batches=Uniform(1)),
            GRAPH,
            participation=Bernoulli(RARE),
        )
        assert np.isfinite(theory.steady_state(step).individual) == finite


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "network", "stages", "message"),
    [
        (ATC(0.1), GRAPH, {"participation": Markov(0.1, 0.5)}, "depends on earlier rounds"),
        (ATC(0.1), GRAPH, {"losses": fl.link.GilbertElliott(0.1, 0.5)}, "not known with losses="),
        (ATC(0.1), GRAPH, {"participation": Bernoulli(0.0)}, "the probability of taking part"),
        (
            ATC(0.1),
            GRAPH,
            {"losses": Independent(0.5), "noise": PerEdge(0.1)},
            "known only if all peers participate",
        ),
        (
            Diffusion(0.1, "metropolis", after="metropolis"),
            GRAPH,
            {"losses": Independent(0.1)},
            "one exchange per round",
        ),
        (SampledDiffusion(0.1), GRAPH, {"losses": Independent(0.1)}, "not known with losses="),
        (SampledDiffusion(0.1, rule="importance"), GRAPH, {}, "change during a run"),
        (FedAvg(0.1), None, {"losses": Independent(0.1)}, "are known for peers only"),
        (
            FedAvg(0.1, 3),
            None,
            {"participation": Bernoulli(0.5)},
            "participants drawn",
        ),
        (
            FedAvg(0.1, weighting="samples"),
            None,
            {"participation": Bernoulli(0.5)},
            "a weighted mean of clients is biased",
        ),
    ],
)
def test_unknown_arguments_are_refused(algorithm, network, stages, message):
    with pytest.raises(ValueError, match=message):
        theory.steady_state(
            fl.Simulation(make_problem(EIGHT_CLIENTS), algorithm, network, **stages)
        )
