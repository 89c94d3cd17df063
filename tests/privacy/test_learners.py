"""Private learners: a trusted server's noise (DP-FedAvg, DP-FTRL) and DP-SGD at clients."""

import dataclasses
import fractions
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import fljax as fl
from fljax._core.prng import as_key, private_normal
from fljax._core.random_subsets import shuffled
from fljax.algorithms import ConventionalFL, FedAvg, FedDPSGD
from fljax.algorithms.server import feddpsgd
from fljax.participation.selectors import Cyclic, Drawn, Everyone, Fraction, Subset, Unequal
from fljax.privacy import AdaptiveClip, CentralGaussian, NoisyGradients, accounting, events, spent
from fljax.privacy.ledger import claimed_epsilon
from fljax.privacy.matrices import column_normalized, identity, square_root
from fljax.simulation.scan import trace
from tests.cases import CLIENTS, DIM, EXACT, SIZES, make_data, make_objective, make_problem
from tests.reference import private
from tests.support.guides import programs

close = np.testing.assert_allclose
ROUNDS = 12
KEY = 4


def simulate(algorithm, privacy, problem=None, **parts):
    problem = make_problem() if problem is None else problem
    return fl.Simulation(problem, algorithm, privacy=privacy, **parts)


def trajectory(simulation, rounds=ROUNDS):
    """``[T, D]``, and the results."""
    simulation = fl._core.module.replace(simulation, metrics=(EXACT,))
    result = jax.jit(trace, static_argnums=(2, 3))(simulation, as_key(KEY), rounds, 1)[0]
    return np.asarray(result["exact"])[:, 0], result


def key_of(n, purpose):
    return fl._core.prng.key_of(jax.random.fold_in(as_key(KEY), n), purpose)


def participants(selector, rounds=ROUNDS):
    everyone = jnp.ones(CLIENTS, bool)
    result = []
    for n in range(1, rounds + 1):
        chosen = selector.choose(key_of(n, "participation"), everyone, None, n)
        result.append(sorted(np.asarray(chosen.numbers)[np.asarray(chosen.here)].tolist()))
    return result


def server_draws(numbers=DIM, rounds=ROUNDS):
    """The library's own normals of every round, ``[T, numbers]``."""
    keys = [key_of(n, "server") for n in range(1, rounds + 1)]
    return np.array([private_normal(key, (numbers,), float) for key in keys])


# Loops -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("selector", "expected", "bands"),
    [
        (Everyone(), CLIENTS, 1),
        (Fraction(0.4), 0.4 * CLIENTS, 1),
        (Drawn(2), 2, 1),
        (Cyclic(2), CLIENTS / 2, 2),
        (Cyclic(4), CLIENTS / 4, 3),
    ],
)
def test_private_averaging_equals_the_loop(selector, expected, bands):
    """DP-FedAvg, and DP-FTRL as one linear system over all rounds."""
    algorithm = FedAvg(0.05, epochs=3, weighting="equal", selector=selector)
    mechanism = CentralGaussian(0.7, clip=0.2, strategy=square_root(bands))
    ours, _ = trajectory(simulate(algorithm, mechanism))
    present = participants(selector)
    theirs = private.dp_fedavg(
        make_objective(),
        0.05,
        3,
        present,
        expected,
        0.7,
        0.2,
        server_draws(),
        private.prefix_root(ROUNDS, bands),
    )
    close(ours, theirs, rtol=0, atol=1e-11)
    assert len({tuple(p) for p in present}) > 1 or isinstance(selector, Everyone)


@pytest.mark.slow
def test_an_adaptive_clip_is_the_loop_and_finds_its_quantile():
    numbers = {"initial": 0.05, "quantile": 0.6, "learning_rate": 0.3, "share_noise": 0.2}
    algorithm = FedAvg(0.05, weighting="equal", selector=Fraction(0.6))
    mechanism = CentralGaussian(0.7, clip=AdaptiveClip(**numbers))
    ours, result = trajectory(simulate(algorithm, mechanism))
    draws = server_draws(DIM + 1)  # the last of the share of clients within the clip
    updates = draws[:, :-1]
    shares = draws[:, -1]
    theirs, clip = private.dp_fedavg_adaptive(
        make_objective(),
        0.05,
        participants(Fraction(0.6)),
        0.6 * CLIENTS,
        0.7,
        updates,
        shares,
        *numbers.values(),
    )
    close(ours, theirs, rtol=0, atol=1e-11)
    close(result["update_clip"], clip, rtol=1e-11)


def of_batches(algorithm, n, n_steps):
    """The library's own batches and normals of a round, by client and step."""
    real = np.arange(max(SIZES)) < np.array(SIZES)[:, None]
    of_call = jax.random.fold_in(key_of(n, "gradients"), 1)
    keys = [jax.random.split(jax.random.fold_in(of_call, i)) for i in range(n_steps)]
    batches = [[] for _ in SIZES]
    draws = [[] for _ in SIZES]
    for k_batch, k_noise in keys:
        if algorithm.batch is not None:
            rows = np.asarray(shuffled(k_batch, jnp.asarray(real)))[:, : algorithm.batch]
        elif algorithm.sampling_rate is not None:
            chosen = np.asarray(jax.random.uniform(k_batch, real.shape)) < float(
                algorithm.sampling_rate
            )
            rows = [np.flatnonzero(row) for row in chosen & real]
        else:
            rows = [np.arange(size) for size in SIZES]
        normal = np.asarray(private_normal(k_noise, (CLIENTS, DIM), float))
        for k in range(CLIENTS):
            batches[k].append([j for j in rows[k] if j < SIZES[k]])
            draws[k].append(normal[k])
    return batches, draws


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("private_run", [False, True])
@pytest.mark.parametrize("batching", [{}, {"sampling_rate": 0.3}, {"batch": 3}])
@pytest.mark.parametrize("name", ["ridge", "logistic"])
def test_private_descent_equals_the_loop(name, batching, private_run):
    algorithm = FedDPSGD(0.05, local_steps=2, **batching)
    mechanism = NoisyGradients(0.8, clip=0.5) if private_run else None
    ours, _ = trajectory(simulate(algorithm, mechanism, make_problem(name)))
    result = [of_batches(algorithm, n, 2) for n in range(1, ROUNDS + 1)]
    rate = batching.get("sampling_rate", 1.0)
    sizes = [batching.get("batch", rate * size) for size in SIZES]
    theirs = private.dp_sgd(
        make_objective(name, 0.5 if private_run else None),
        0.05,
        [range(CLIENTS)] * ROUNDS,
        [batches for batches, _ in result],
        sizes,
        0.8,
        [draws for _, draws in result],
    )
    close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("mechanism", [None, NoisyGradients(0.8, clip=0.5)])
def test_gathered_and_masked_batches_agree(mechanism):
    problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=200, dim=3)
    full = FedDPSGD(0.05, local_steps=3, sampling_rate=0.05)
    capacity = FedDPSGD.room(200, 0.05)
    assert capacity < 100
    gathered = dataclasses.replace(full, capacity=capacity)
    (masked, _), (compact, _) = (
        trajectory(fl.Simulation(problem, algorithm, privacy=mechanism), 5)
        for algorithm in (full, gathered)
    )
    close(masked, compact, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_a_batch_beyond_its_capacity_is_empty(monkeypatch):
    """If full batches dropped a random sample, one sample could displace another."""
    monkeypatch.setattr(feddpsgd, "OVERFLOW", 0.6)
    problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=40, dim=2).prepare()
    full = FedDPSGD(0.05, sampling_rate=0.5)
    limited = dataclasses.replace(full, capacity=20)
    fl.Simulation(problem, limited)  # has room, as it is said here
    overflows = set()
    for key in jax.random.split(jax.random.key(1), 20):
        (all_of_them, _), (batch, influence) = (
            a._draw_batch(key, problem) for a in (full, limited)
        )
        for k, weights in enumerate(all_of_them.weights):
            count = int((weights > 0).sum())
            overflows.add(count > 20)
            assert int((batch.weights[k] > 0).sum()) == (count if count <= 20 else 0)
        close(influence, problem.influence / 0.5)
    assert overflows == {True, False}


def test_the_capacity_covers_all_but_the_rarest_batches():
    samples = 60
    rate = fractions.Fraction(1, 20)
    capacity = FedDPSGD.room(samples, 0.05)

    def larger(size):
        sizes = range(size + 1, samples + 1)
        return sum(math.comb(samples, n) * rate**n * (1 - rate) ** (samples - n) for n in sizes)

    assert larger(capacity) <= fractions.Fraction(1, 10**30) < larger(capacity - 1)
    assert FedDPSGD.room(10, 1.0) == 10


@pytest.mark.slow
def test_private_averaging_without_clip_and_noise_is_averaging():
    algorithm = FedAvg(0.05, epochs=2, weighting="equal")
    plain, _ = trajectory(simulate(algorithm, None))
    almost, _ = trajectory(simulate(algorithm, CentralGaussian(1e-12, clip=100.0)))
    close(almost, plain, rtol=0, atol=1e-8)


def test_correlated_noise_leaves_less_in_the_sum_of_all_rounds():
    """What DP-FTRL is for, and the matrix by which it does: its square is that of prefix sums."""
    unscaled = private.prefix_root(40, 40)
    root = unscaled / unscaled[0, 0]
    close(root @ root, np.tril(np.ones((40, 40))), atol=1e-12)
    column = np.asarray(square_root(8).coefficients)
    close(np.linalg.norm(column), 1)
    prefix = np.tril(np.ones((40, 40)))
    left = [
        np.linalg.norm(prefix @ np.linalg.inv(private.prefix_root(40, bands)), axis=1)[-1]
        for bands in (1, 2, 4, 8)
    ]
    assert np.all(np.diff(left) < 0)
    close(left[0], math.sqrt(40))


# Whatever clients have -------------------------------------------------------------------------


@pytest.mark.thin(3)
@pytest.mark.parametrize("size", [1e4, 1e150, 1e200, np.inf, np.nan])
def test_no_client_moves_the_server_by_more_than_its_clip(size):
    """In float64, where squares overflow beyond 1e154."""
    data = list(make_data())
    data[2] = (data[2][0] * 0, data[2][1])
    silent = make_problem(data=data)
    features = np.array(silent.features)
    features[2, 0] = np.nan_to_num(size, nan=1.0, posinf=1.0)
    loud = fl._core.module.replace(silent, features=features)
    targets = np.array(silent.targets)
    targets[2, 0] = size
    loud = fl._core.module.replace(loud, targets=targets)
    algorithm = FedAvg(0.05, weighting="equal", selector=Everyone())
    mechanism = CentralGaussian(1.0, clip=0.3)
    first = [trajectory(simulate(algorithm, mechanism, p), 1)[0][0] for p in (silent, loud)]
    assert np.all(np.isfinite(first))
    moved = np.linalg.norm(first[1] - first[0])
    assert moved <= 0.3 / CLIENTS * (1 + 1e-12)
    if np.isfinite(size) and size < 1e100:
        close(moved, 0.3 / CLIENTS)


# Accounts --------------------------------------------------------------------------------------


def poisson_delta(epsilon, z, rate):
    """Delta of one Poisson-sampled Gaussian release in both directions, by quadrature of ``max(p -
    e q)`` up to the crossing of the densities' ratio.
    """

    def mixed(x):
        return (1 - rate) * stats.norm.pdf(x, 0, z) + rate * stats.norm.pdf(x, 1, z)

    def plain(x):
        return stats.norm.pdf(x, 0, z)

    def crossing(ratio):
        return 0.5 + z**2 * math.log((ratio - 1 + rate) / rate) if ratio > 1 - rate else -math.inf

    growth = math.exp(epsilon)
    high = crossing(growth)
    low = crossing(1 / growth)
    removed, _ = integrate.quad(
        lambda x: mixed(x) - growth * plain(x), high, high + 20 * z, epsabs=1e-14
    )
    if low == -math.inf:
        return removed
    two, _ = integrate.quad(lambda x: plain(x) - growth * mixed(x), low - 20 * z, low, epsabs=1e-14)
    return max(removed, two)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("z", "rate"), [(1.0, 0.1), (0.6, 0.02), (2.0, 0.5)])
def test_one_sampled_release_by_quadrature(z, rate):
    pytest.importorskip("dp_accounting")
    epsilon = accounting.sampled_gaussian_epsilon(z, 1e-4, 1, rate)
    close(poisson_delta(epsilon, z, rate), 1e-4, rtol=2e-3)
    assert poisson_delta(epsilon, z, rate) <= 1e-4 * (1 + 1e-6)  # from above


@pytest.mark.slow
def test_sampling_amplifies_more_at_lower_rates_and_not_at_rate_one():
    pytest.importorskip("dp_accounting")
    unsampled = accounting.sampled_gaussian_epsilon(2.0, 1e-5, 30)
    close(unsampled, accounting.zcdp_epsilon(30 / 8, 1e-5, "gaussian"))
    almost = accounting.sampled_gaussian_epsilon(2.0, 1e-5, 30, 0.999999)
    close(almost, unsampled, rtol=1e-3)
    result = [accounting.sampled_gaussian_epsilon(2.0, 1e-5, 30, q) for q in (0.5, 0.1, 0.01)]
    assert unsampled > result[0] > result[1] > result[2]
    replaced = accounting.zcdp_epsilon(4 * 30 / 8, 1e-5, "gaussian")
    drawn = accounting.sampled_gaussian_epsilon(2.0, 1e-5, 30, 0.1, "drawn", 100)
    assert result[1] < drawn < replaced
    whole = accounting.sampled_gaussian_epsilon(2.0, 1e-5, 30, 1.0, "drawn", 100)
    close(whole, replaced, rtol=1e-12)  # no more than without sampling


@pytest.mark.thin(2)
@pytest.mark.parametrize(("z", "rate"), [(2.0, 0.5), (4.0, 0.9), (2.0, 0.1), (8.0, 0.5)])
def test_the_accounting_covers_one_replaced_drawn_record(z, rate):
    """It moves in either direction while all others are silent: a pair of mixtures whose delta is
    at most the accounted one.
    """
    pytest.importorskip("dp_accounting")
    epsilon = accounting.sampled_gaussian_epsilon(z, 1e-3, 1, rate, "drawn", 100)

    def density(x, side):
        return (1 - rate) * stats.norm.pdf(x, 0, z) + rate * stats.norm.pdf(x, side, z)

    x = np.linspace(-15 * z, 15 * z, 400_001)
    more = np.maximum(density(x, 1) - math.exp(epsilon) * density(x, -1), 0)
    assert integrate.trapezoid(more, x) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "records"), [("poisson", None), ("drawn", 50)])
def test_a_noise_multiplier_keeps_its_budget_and_wastes_little(sampling, records):
    pytest.importorskip("dp_accounting")
    arguments = (100, 0.1, sampling, records)
    z = accounting.sampled_gaussian_multiplier(1.5, 1e-5, *arguments)
    assert accounting.sampled_gaussian_epsilon(z, 1e-5, *arguments) <= 1.5
    assert accounting.sampled_gaussian_epsilon(0.995 * z, 1e-5, *arguments) > 1.5


def budgeted(epsilon, selector, rounds=ROUNDS, **fields):
    sampling = {} if selector is None else {"selector": selector, "clients": CLIENTS}
    mechanism = CentralGaussian.for_budget(epsilon, 1e-5, rounds, **sampling, **fields)
    algorithm = FedAvg(
        0.05, weighting="equal", **{k: v for k, v in sampling.items() if k != "clients"}
    )
    return simulate(algorithm, mechanism)


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("selector", "fields"),
    [
        (None, {}),
        (None, {"neighbors": "replace", "arrivals": "secret"}),
        (Cyclic(3), {"strategy": square_root(3)}),
        (None, {"clip": AdaptiveClip(share_noise=9.0)}),
        (Fraction(0.2), {}),
        (Fraction(0.9), {}),
        (Drawn(2), {"neighbors": "replace"}),
    ],
)
def test_a_budget_for_a_run_is_spent_and_not_exceeded(selector, fields):
    """As an axis of a study (one program) and in one run: by the printed epsilon."""
    if selector is not None:
        pytest.importorskip("dp_accounting")
    axis = [0.5, 2.0, 8.0] if selector is None or fields.get("strategy") else [2.0]
    study = fl.sweep(
        lambda key, epsilon: budgeted(epsilon, selector, **fields),
        grid={"epsilon": axis},
        rounds=ROUNDS,
        record_every=ROUNDS,
    )
    assert study.attrs["compilations"] == 1
    printed = spent(study, delta=1e-5).epsilon.isel(round=-1, seed=0).values
    assert (printed <= axis).all()
    assert (printed > 0.999 * np.array(axis)).all()
    single = fl.run(budgeted(axis[-1], selector, **fields), ROUNDS, record_every=ROUNDS)
    close(single.noise_multiplier, study.noise_multiplier.isel(epsilon=-1).max(), rtol=1e-6)


def test_a_budget_without_an_amplification_theorem_covers_a_client_that_is_always_drawn():
    for fields, selector in (
        ({"neighbors": "replace"}, Fraction(0.5)),
        ({}, Drawn(2)),
        ({"arrivals": "secret"}, Cyclic(3)),
    ):
        mechanism = budgeted(2.0, selector, **fields).privacy
        moved = {"add-or-remove": 1, "replace": 2}[mechanism.neighbors]
        rho = ROUNDS * (moved / float(mechanism.noise_multiplier)) ** 2 / 2
        close(accounting.zcdp_epsilon(rho, 1e-5, "gaussian"), 2.0, rtol=1e-3)


@pytest.mark.parametrize("points", [2, 150])
def test_each_point_of_a_study_has_a_valid_budget(points):
    """The points of a large grid are checked together, within a program."""
    axis = np.linspace(1.0, 2.0, points)
    axis[-1] = -1.0
    with pytest.raises(ValueError, match="epsilon must be finite and > 0, got -1"):
        fl.sweep(lambda key, e: budgeted(e, None), grid={"e": axis}, rounds=ROUNDS)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epsilon": 0.0}, "epsilon must be finite and > 0, got 0"),
        ({"delta": 1.0}, "delta must be finite and > 0 and < 1, got 1"),
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"selector": Fraction(0.5)}, "give clients=, that of the problem"),
        ({"selector": Drawn(6), "clients": 5}, "must be at most the 5 clients"),
        ({"selector": Subset(2), "clients": 5}, "how Subset chooses is not accounted for"),
        ({"selector": 0.5, "clients": 5}, "selector must be an instance of .*Selector, got 0.5"),
        ({"strategy": column_normalized(identity(), 4)}, "is made for 4 rounds, and the run has 5"),
        ({"clip": -1.0}, "clip must be finite and > 0"),
        (
            {"selector": Drawn(2), "clients": 5, "neighbors": "replace", "arrivals": "secret"},
            "choose by fljax.participation.Fraction",
        ),
    ],
)
def test_invalid_budgets_of_a_run_are_refused(options, match):
    options = {"epsilon": 1.0, "delta": 1e-5, "rounds": 5} | options
    with pytest.raises((TypeError, ValueError), match=match):
        CentralGaussian.for_budget(**options)


@pytest.mark.thin(1)
@pytest.mark.parametrize(("neighbors", "factor"), [("add-or-remove", 1), ("replace", 2)])
@pytest.mark.parametrize("selector", [Fraction(0.3), Cyclic(3)])
def test_clients_pay_for_participations_that_are_public(selector, neighbors, factor):
    algorithm = FedAvg(0.05, weighting="equal", selector=selector)
    _, result = trajectory(simulate(algorithm, CentralGaussian(1.5, neighbors=neighbors)))
    times = np.bincount(np.concatenate(participants(selector)).astype(int), minlength=CLIENTS)
    close(result["client_rho"], times * factor**2 / (2 * 1.5**2))
    close(result["client_releases"], ROUNDS)


@pytest.mark.slow
def test_the_printed_number_is_the_accountant_s():
    dp = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")

    def scenario(key, multiplier):
        return simulate(
            FedAvg(0.05, weighting="equal", selector=Fraction(0.2)), CentralGaussian(multiplier)
        )

    results = fl.sweep(
        scenario, grid={"multiplier": [0.8, 1.6]}, seeds=2, rounds=10, record_every=5
    )
    result = spent(results, delta=1e-5)
    assert result.epsilon.dims == ("multiplier", "seed", "round")
    for z in (0.8, 1.6):
        for n in (5, 10):
            event = dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(z))
            accountant = pld.PLDAccountant().compose(event, n)
            theirs = accountant.get_epsilon(1e-5)
            close(result.epsilon.sel(multiplier=z, round=n), theirs, rtol=1e-5)
    event = events(results.sel(multiplier=1.6))
    close(pld.PLDAccountant().compose(event).get_epsilon(1e-5), theirs, rtol=1e-5)
    assert not results.nominal.any()
    assert not results.exact_model.any()
    with pytest.raises(ValueError, match="points over multiplier; choose one"):
        events(results)


@pytest.mark.slow
def test_fixed_numbers_are_amplified_for_a_replaced_client_only():
    pytest.importorskip("dp_accounting")
    algorithm = FedAvg(0.05, 2, weighting="equal")
    epsilons = {}
    for neighbors in ("replace", "add-or-remove"):
        run = fl.run(simulate(algorithm, CentralGaussian(4.0, neighbors=neighbors)), 10)
        epsilons[neighbors] = float(spent(run, 1e-5).epsilon[-1])
        rho = float(run.privacy_rho[-1])
    close(epsilons["add-or-remove"], accounting.zcdp_epsilon(rho, 1e-5, "gaussian"), rtol=1e-6)
    drawn = accounting.sampled_gaussian_epsilon(4.0, 1e-5, 10, 2 / CLIENTS, "drawn", CLIENTS)
    unamplified = accounting.zcdp_epsilon(4 * rho, 1e-5, "gaussian")
    close(epsilons["replace"], min(drawn, unamplified), rtol=1e-6)


@pytest.mark.slow
def test_steps_of_private_descent_are_counted_where_clients_take_part():
    pytest.importorskip("dp_accounting")
    algorithm = FedDPSGD(0.05, local_steps=3, sampling_rate=0.2, clients_per_round=2)
    run = fl.run(simulate(algorithm, NoisyGradients(1.2)), ROUNDS)
    releases = run.client_releases.values
    assert releases.sum() == 2 * 3 * ROUNDS
    close(run.client_rho, releases / (2 * 1.2**2))
    result = spent(run, 1e-5)
    for k in range(CLIENTS):
        count = int(releases[k])
        arguments = (1.2, 1e-5, count, 0.2)
        close(result.client_epsilon[k], accounting.sampled_gaussian_epsilon(*arguments), rtol=1e-4)
    assert float(result.epsilon[-1]) == float(result.client_epsilon.max())


@pytest.mark.slow
def test_ledgers_of_messages_are_converted_too():
    def scenario(key, budget):
        return fl.Simulation(make_problem(clip=1.0), ConventionalFL(0.05), privacy=budget)

    budgets = {
        "zCDP": fl.privacy.ZCDP(0.5),
        "pure": fl.privacy.PureDP(1.0),
        "none": None,
    }
    results = fl.sweep(scenario, grid={"budget": budgets}, seeds=2, rounds=4)
    result = spent(results, 1e-4).epsilon.isel(seed=0, round=-1)
    close(result.sel(budget="zCDP"), accounting.zcdp_epsilon(0.5, 1e-4, "gaussian"), rtol=1e-5)
    close(result.sel(budget="pure"), claimed_epsilon({"epsilon": 1.0}, 1e-4), rtol=1e-5)
    assert np.isnan(result.sel(budget="none"))
    plain = fl.sweep(scenario, grid={"budget": {"none": None}}, seeds=2, rounds=4)
    with pytest.raises(ValueError, match="no privacy ledger; run with privacy="):
        spent(plain, 1e-4)
    with pytest.raises(ValueError, match="delta must be"):
        spent(results, 0.0)
    with pytest.raises(ValueError, match="has no Gaussian releases"):
        events(results.sel(budget="pure"))


# Attacks ---------------------------------------------------------------------------------------


AUDIT = {"rounds": 4, "seeds": 8000, "delta": 0.05}


@functools.partial(jax.jit, static_argnames=("rounds", "seeds"))
def published(simulation, seed, rounds, seeds):
    """``[S, T, D]``: the server's models."""
    simulation = fl._core.module.replace(simulation, metrics=(EXACT,))
    keys = jax.random.split(seed, seeds)
    return jax.lax.map(lambda key: trace(simulation, key, rounds, 1)[0]["exact"][:, 0], keys,
                       batch_size=500)  # fmt: skip


def worlds(loud):
    """Client 0 has nothing to say, or pulls as far as it can; the others have nothing."""
    data = [(np.zeros((3, 2)), np.zeros(3)) for _ in range(8)]
    if loud:
        data[0] = (np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), np.array([1e6, 0.0, 0.0]))
    return fl.problems.from_clients(tuple(data), fl.problems.LeastSquares())


def attacked(algorithm, privacy, clip, rate, seed=0):
    """The best test there is of each round's release in units of its noise, on many runs."""
    scores = []
    z = float(privacy.noise_multiplier)
    for world in (False, True):
        simulation = simulate(algorithm, privacy, worlds(world))
        models = published(simulation, as_key(seed + world), AUDIT["rounds"], AUDIT["seeds"])
        moves = np.diff(np.concatenate([0 * models[:, :1], models], axis=1), axis=1)[..., 0]
        ratio = np.log1p(rate * np.expm1(moves / clip / z**2 - 0.5 / z**2))
        scores.append(ratio.sum(axis=1))
    half = AUDIT["seeds"] // 2
    tries = np.quantile(np.concatenate(scores), np.linspace(0.01, 0.995, 100))
    bounds = []
    for part in (slice(None, half), slice(half, None)):
        hits, alarms = ([(s[part] > t).sum() for t in tries] for s in (scores[1], scores[0]))
        bounds.append(
            fl.audit.counted_epsilon(np.array(hits), np.array(alarms), half, AUDIT["delta"], 0.95)
        )
    return float(bounds[1][int(np.argmax(bounds[0]))])


def claimed(simulation):
    return float(spent(fl.run(simulation, AUDIT["rounds"]), AUDIT["delta"]).epsilon[-1])


#: algorithm, mechanism, how far one clip moves the server, the probability that a release meets it
LEARNERS = {
    "DP-FedAvg": (
        FedAvg(0.1, weighting="equal"),
        CentralGaussian(2.0, clip=0.5),
        0.5 / 8,
        1.0,
    ),
    "DP-FedAvg, sampled": (
        FedAvg(0.1, weighting="equal", selector=Fraction(0.5)),
        CentralGaussian(1.2, clip=0.5),
        0.5 / 4,
        0.5,
    ),
    "DP-SGD": (FedDPSGD(0.1), NoisyGradients(2.0, clip=0.5), 0.1 * 0.5 / 3 / 8, 1.0),
    "DP-SGD, sampled": (
        FedDPSGD(0.1, sampling_rate=0.5),
        NoisyGradients(1.2, clip=0.5),
        0.1 * 0.5 / 1.5 / 8,
        0.5,
    ),
}


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("name", LEARNERS)
def test_private_learners_survive_an_attack_that_finds_most_of_the_claim(name, monkeypatch):
    algorithm, privacy, clip, rate = LEARNERS[name]
    pytest.importorskip("dp_accounting")
    if name.startswith("DP-SGD"):  # others' noise is not the attacker's to hear
        monkeypatch.setattr(fl.privacy.NoisyGradients, "draw", only_of_client(0))
    claim = claimed(simulate(algorithm, privacy, worlds(True)))
    result = attacked(algorithm, privacy, clip, rate)
    assert 0.7 * claim < result < claim, (result, claim)


@pytest.mark.slow
def test_correlated_noise_survives_a_decorrelating_attacker():
    """An attacker who knows the matrix whitens all published values; the claim is tight against
    that.
    """
    bands = 3
    rounds = 6
    z = 2.0
    seeds = AUDIT["seeds"]
    algorithm = FedAvg(0.1, weighting="equal", selector=Cyclic(bands))
    mechanism = CentralGaussian(z, clip=0.5, strategy=square_root(bands))
    root = private.prefix_root(rounds, bands)
    took_part = (np.arange(rounds) % bands == 0).astype(float)
    shift = root @ took_part / z
    scores = []
    for world in (False, True):
        simulation = simulate(algorithm, mechanism, worlds(world))
        models = published(simulation, as_key(int(world)), rounds, seeds)
        moves = np.diff(np.concatenate([0 * models[:, :1], models], axis=1), axis=1)[..., 0]
        white = moves * (8 / bands) / 0.5 / z @ root.T
        scores.append(white @ shift)
    rho = float(fl.run(simulation, rounds).privacy_rho[-1])
    close(rho, 2 / (2 * z**2))
    bound, distance = fl.audit.shaped_epsilon(np.array(scores), 0.05, 0.95)
    close(distance, math.sqrt(2 * rho), rtol=0.06)
    claim = claimed_epsilon({"rho": rho, "gaussian_noise": 1}, 0.05)
    assert 0.85 * claim < bound < claim


def only_of_client(client, factor=1.0, original=NoisyGradients.draw):
    def draw(self, key, shape, dtype):
        of_client = (jnp.arange(shape[0]) == client)[:, None]
        return jnp.where(of_client, factor * original(self, key, shape, dtype), 0)

    return draw


@pytest.mark.slow
def test_half_of_a_client_s_noise_is_caught(monkeypatch):
    algorithm, privacy, clip, rate = LEARNERS["DP-SGD"]
    claim = claimed(simulate(algorithm, privacy, worlds(True)))
    monkeypatch.setattr(NoisyGradients, "draw", only_of_client(0, 0.5))
    jax.clear_caches()
    assert attacked(algorithm, privacy, clip, rate) > claim


@pytest.mark.slow
def test_half_of_a_server_s_noise_is_caught(monkeypatch):
    algorithm, privacy, clip, rate = LEARNERS["DP-FedAvg"]
    honest = CentralGaussian.plan

    def halved(self, selector, clients, rounds):
        plan = honest(self, selector, clients, rounds)
        return plan._replace(update_noise=plan.update_noise / 2)

    claim = claimed(simulate(algorithm, privacy, worlds(True)))
    monkeypatch.setattr(CentralGaussian, "plan", halved)
    jax.clear_caches()
    assert attacked(algorithm, privacy, clip, rate) > claim


# Bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: CentralGaussian(0.0), "noise_multiplier must be"),
        (lambda: CentralGaussian(math.nan), "noise_multiplier must be"),
        (lambda: CentralGaussian(1.0, clip=-1.0), "clip must be"),
        (lambda: CentralGaussian(1.0, strategy=3), "strategy must be an instance of .*Strategy"),
        (lambda: CentralGaussian(1.0, neighbors="sample"), "unknown neighbors"),
        (lambda: AdaptiveClip(quantile=1.0), "quantile must be"),
        (lambda: AdaptiveClip(initial=0.0), "initial must be"),
        (lambda: AdaptiveClip(learning_rate=math.inf), "learning_rate must be"),
        (lambda: AdaptiveClip(share_noise=0.0), "share_noise must be"),
        (lambda: NoisyGradients(-1.0), "noise_multiplier must be"),
        (lambda: NoisyGradients(1.0, clip=0.0), "clip must be"),
        (lambda: NoisyGradients(1.0, neighbors="client"), "unknown neighbors"),
        (lambda: FedDPSGD(0.1, sampling_rate=0.0), "rate must be"),
        (lambda: FedDPSGD(0.1, sampling_rate=0.5, batch=3), "both set how batches are drawn"),
        (lambda: FedDPSGD(0.1, local_steps=0), "steps must be"),
        (lambda: FedDPSGD(0.1, batch=3, capacity=9), "is of batches that are drawn with a"),
        (lambda: FedDPSGD(0.1, sampling_rate=0.5, capacity=0), "capacity must be"),
        (lambda: FedDPSGD.room(0, 0.5), "samples must be"),
        (lambda: FedDPSGD.room(9, 1.5), "sampling_rate must be"),
        (lambda: FedAvg(0.1, 2, selector=Everyone()), "both choose the participants"),
        (lambda: FedAvg(0.1, selector=0.5), "selector must be"),
        (lambda: Cyclic(0), "cohorts must be"),
        (
            lambda: simulate(FedAvg(0.1, weighting="samples"), CentralGaussian(1.0)),
            "gives clients weights.*leave out weighting=",
        ),
        (
            lambda: simulate(ConventionalFL(0.1), CentralGaussian(1.0)),
            "FL does not run under CentralGaussian.*These can: FedAvg",
        ),
        (
            lambda: simulate(FedAvg(0.1, weighting="equal"), NoisyGradients(1.0)),
            "FedAvg does not run under NoisyGradients.*These can: DP-SGD",
        ),
        (
            lambda: simulate(
                FedAvg(0.1, weighting="equal"), CentralGaussian(1.0), delays=fl.link.Fixed(1)
            ),
            "late messages",
        ),
        (
            lambda: simulate(
                FedAvg(0.1, weighting="equal"),
                CentralGaussian(1.0),
                aggregation=fl.aggregation.Median(),
            ),
            "an aggregator",
        ),
        (
            lambda: simulate(
                FedAvg(0.1, weighting="equal"),
                CentralGaussian(1.0),
                attack=fl.attacks.SignFlip([True] + [False] * 4),
                honest_only=True,
            ),
            "attackers see honest clients' messages",
        ),
        (
            lambda: simulate(FedDPSGD(0.1), NoisyGradients(1.0), make_problem(clip=1.0)),
            "leave the problem unclipped",
        ),
        (
            lambda: accounting.sampled_gaussian_epsilon(1.0, 0.0, 5),
            "delta must be",
        ),
        (lambda: accounting.sampled_gaussian_epsilon(1.0, 1e-5, 0), "releases must be"),
        (lambda: accounting.sampled_gaussian_epsilon(1.0, 1e-5, 5, 1.5), "rate must be"),
        (
            lambda: accounting.sampled_gaussian_event(1.0, 5, 0.5, "drawn"),
            "pass records=",
        ),
        (
            lambda: accounting.sampled_gaussian_event(1.0, 5, 0.33, "drawn", 10),
            "no whole number of 10 records",
        ),
        (
            lambda: accounting.sampled_gaussian_event(1.0, 5, 0.5, "cyclic"),
            "unknown sampling",
        ),
        (lambda: accounting.sampled_gaussian_multiplier(0.0, 1e-5, 5), "epsilon must be"),
    ],
)
def test_bad_input_is_named(build, match):
    pytest.importorskip("dp_accounting")
    with pytest.raises((TypeError, ValueError), match=match):
        build()


@pytest.mark.parametrize(
    ("algorithm", "privacy", "match"),
    [
        (
            FedAvg(0.1, weighting="equal", selector=Subset(2)),
            CentralGaussian(1.0),
            "Subset chooses is not accounted for",
        ),
        (
            FedAvg(0.1, weighting="equal", selector=Unequal(2, np.full(CLIENTS, 1 / CLIENTS))),
            CentralGaussian(1.0),
            "Unequal chooses is not accounted for",
        ),
        (
            FedAvg(0.1, weighting="equal", selector=Cyclic(2)),
            CentralGaussian(1.0, strategy=column_normalized(identity(), 2)),
            "is made for 2 rounds",
        ),
        (
            FedAvg(0.1, weighting="equal"),
            CentralGaussian(3.0, clip=AdaptiveClip()),
            "leaves no part of the noise multiplier 3",
        ),
        (
            FedAvg(0.1, weighting="equal", selector=Cyclic(6)),
            CentralGaussian(1.0),
            "cohorts must be at most the 5 clients",
        ),
        (
            FedDPSGD(0.1, batch=13),
            NoisyGradients(1.0),
            "at most the 12 samples of the largest client",
        ),
        (
            FedDPSGD(0.1, sampling_rate=0.5, capacity=11),
            NoisyGradients(1.0),
            "capacity must be at least 12: a batch of up to 12 samples",
        ),
    ],
)
def test_mismatched_parts_are_refused_before_the_run(algorithm, privacy, match):
    def scenario(key, multiplier):
        return simulate(algorithm, fl._core.module.replace(privacy, noise_multiplier=multiplier))

    with pytest.raises(ValueError, match=match):
        fl.run(simulate(algorithm, privacy), 3)
    with pytest.raises(ValueError, match=match):
        fl.sweep(scenario, grid={"multiplier": [float(privacy.noise_multiplier)]}, rounds=3)


@pytest.mark.parametrize(
    ("privacy", "match"),
    [
        (CentralGaussian(1.0), "how it draws who takes part: a property 'selection'"),
        (NoisyGradients(1.0), "how it draws samples: a method 'sampling'"),
    ],
)
def test_custom_algorithms_declare_their_sampling(privacy, match):
    @fl.module
    class Mine(fl.algorithms.Algorithm):
        needs = fl.algorithms.Needs(None, privacy=(privacy.scope,))

        def init(self, problem, network):
            raise AssertionError("must not be reached")

        step = init

    with pytest.raises(ValueError, match=match):
        simulate(Mine(), privacy)


def test_a_step_that_sends_instead_of_collecting_is_refused():
    class Sending(FedAvg):
        def step(self, state, now):
            received = now.link.send(jnp.zeros((now.problem.clients, now.problem.dim)))
            return type(state)(jnp.mean(received, axis=0))

    Sending = fl.module(Sending)
    with pytest.raises(ValueError, match="a trusted server perturbs the sum"):
        fl.run(simulate(Sending(0.1, weighting="equal"), CentralGaussian(1.0)), 2)


@pytest.mark.slow
def test_every_point_of_a_large_grid_is_checked():
    """Beyond a hundred points their privacy is built together."""
    sizes = np.linspace(0.5, 2.0, 11)

    def scenario(key, multiplier, share):
        clip = AdaptiveClip(share_noise=share)
        algorithm = FedAvg(0.1, weighting="equal", selector=Fraction(0.8))
        return simulate(algorithm, CentralGaussian(multiplier, clip=clip))

    shares = np.linspace(0.3, 0.5, 10).tolist()
    grid = {"multiplier": sizes.tolist(), "share": shares}
    plan = fl.plan(scenario, grid=grid, rounds=3)
    assert plan is not None
    grid["share"][3] = 0.2
    with pytest.raises(ValueError, match="leaves no part of the noise multiplier") as result:
        fl.plan(scenario, grid=grid, rounds=3)
    assert "'share': 0.2" in str(result.value.__notes__)

    def batches(key, multiplier, rate):
        return simulate(FedDPSGD(0.1, sampling_rate=rate), NoisyGradients(multiplier))

    grid = {"multiplier": [*sizes.tolist()[:-1], -1.0], "rate": np.linspace(0.1, 1, 10).tolist()}
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        fl.plan(batches, grid=grid, rounds=3)


# The audit -------------------------------------------------------------------------------------


def silence_and_noise(neighbors):
    quiet = worlds(False)
    loud = worlds(True)
    if neighbors == "replace":
        quiet = fl._core.module.replace(loud, targets=-np.asarray(loud.targets))
    return quiet, loud


@pytest.mark.thin(0, every=2)
# The relation scales the claim, bands say when noise comes back: neither asks for the other.
@pytest.mark.parametrize(("neighbors", "bands"), [("add-or-remove", 3), ("replace", 1)])
def test_the_audit_finds_a_server_s_claim_and_half_its_noise(neighbors, bands, monkeypatch):
    z = 2.0 if neighbors == "replace" else 1.0
    selector = Cyclic(bands) if bands > 1 else None
    algorithm = FedAvg(0.1, weighting="equal", selector=selector)
    mechanism = CentralGaussian(z, clip=0.5, strategy=square_root(bands), neighbors=neighbors)
    quiet, loud = silence_and_noise(neighbors)
    simulation = simulate(algorithm, mechanism, loud)
    rounds = 2 * bands  # client 0 takes part twice, and both contributions are complete
    result = fl.audit.two_worlds(simulation, quiet, rounds, seeds=6000, delta=0.05)
    close(result.ledger["rho"], 2 * (2 / z if neighbors == "replace" else 1 / z) ** 2 / 2)
    assert not result.broken, result.verdict
    # In rounds in which the client is silent correlated noise comes back, and is listened to.
    assert result.ratio > 0.65, result.verdict
    honest = CentralGaussian.release

    def halved(self, plan, *arguments):
        return honest(self, plan._replace(update_noise=plan.update_noise / 2), *arguments)

    monkeypatch.setattr(CentralGaussian, "release", halved)
    jax.clear_caches()
    assert fl.audit.two_worlds(simulation, quiet, rounds, seeds=6000, delta=0.05).broken


def test_audits_of_clients_that_send_in_both_worlds_are_refused():
    loud = worlds(True)
    simulation = simulate(FedAvg(0.1, weighting="equal"), CentralGaussian(1.0), loud)
    with pytest.raises(ValueError, match="remove all of its samples there"):
        fl.audit.two_worlds(
            simulation, fl._core.module.replace(loud, targets=-loud.targets), 3, 500, delta=0.1
        )


def test_one_run_of_a_trusted_server_is_refused():
    loud = worlds(True)
    other = fl._core.module.replace(loud, targets=-loud.targets)
    mechanism = CentralGaussian(1.0, neighbors="replace")
    simulation = simulate(FedAvg(0.1, weighting="equal"), mechanism, loud)
    with pytest.raises(ValueError, match=r"use fljax\.audit\.two_worlds"):
        fl.audit.one_run(simulation, other, 3, delta=0.1)


@pytest.mark.slow
def test_the_guide_s_private_learner_runs():
    pytest.importorskip("dp_accounting")
    names = {"fl": fl, "jax": jax}
    exec(compile(programs("docs/guides/privacy")[-1].code, "guide", "exec"), names)
    epsilon = spent(names["results"], 1e-5).epsilon.values
    assert np.all(np.diff(epsilon) > 0)
    assert epsilon[-1] < 5
    assert names["results"].normalized_error[-1] < 0.5
