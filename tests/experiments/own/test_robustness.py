"""The figure on attackers: its runs against loops in NumPy, and claims that notice broken data."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

import fljax as fl
from experiments.figure import INFINITE, Effort
from experiments.own import figure_robustness as rob
from experiments.picture import faults, print_style
from fljax.link.aggregation import Krum

SEEDS = 2
ROUNDS = 20
SHARES = (0.0, 0.2)
PLACES = rob.topologies()


def built(seed, attack, share, setting="a", aggregator=None):
    """What a sweep builds at one point."""
    key = jax.random.split(jax.random.fold_in(fl.random_key(0), seed))[0]
    return rob.build(key, attack, share, aggregator, PLACES[setting].algorithm)


@functools.partial(jax.jit, static_argnames="setting")
def parts(seed, attack, share, setting):
    simulation = built(seed, attack, share, setting)
    return simulation.problem, simulation.attack.attackers


def point(seed, attack=rob.FLIPPED, share=0.2, setting="a"):
    """Features, targets, the reference model of each client, and the mask of attackers."""
    problem, liars = parts(seed, rob.ATTACKS.index(attack), share, setting)
    result = problem.features, problem.targets, problem.tasks.truth, liars
    return [np.asarray(part) for part in result]


@pytest.fixture(scope="module")
def quick():
    """FedAvg with two aggregators: two programs, the only ones compiled here."""
    effort = Effort(seeds=SEEDS, progress=False)
    return rob.row("a", effort, (rob.MEAN, rob.MEDIAN), SHARES, ROUNDS)[rob.METRIC]


def alone(X, y):
    """Least squares on some clients' data, each client of the same weight."""
    return np.linalg.lstsq(X.reshape(-1, X.shape[-1]), y.ravel(), rcond=None)[0]


def by_loops(seed, attack, share, combine):
    """FedAvg's error in NumPy, with a flipped sign or wrong labels."""
    X, y, _, liars = point(seed, rob.FLIPPED, share)
    assert liars.sum() == round(share * len(liars))
    best = alone(X[~liars], y[~liars])
    if attack == rob.POISONED:
        y = np.where(liars[:, None], -y, y)
    server = np.zeros(X.shape[-1])
    for _ in range(ROUNDS):
        models = []
        for k in range(len(X)):
            w = server.copy()
            for _ in range(rob.LOCAL.value):
                w -= rob.STEP.value / rob.LOCAL.value * 2 / len(X[k]) * X[k].T @ (X[k] @ w - y[k])
            lies = liars[k] and attack == rob.FLIPPED
            models.append(server - rob.FLIP.value * (w - server) if lies else w)
        server = combine(np.stack(models), axis=0)
    return np.sum((server - best) ** 2) / np.sum(best**2)


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("attack", [rob.FLIPPED, rob.POISONED])
def test_runs_equal_loops(quick, attack):
    ways = {rob.MEAN: np.mean, rob.MEDIAN: np.median}
    for seed, share, name in itertools.product(range(SEEDS), SHARES, ways):
        result = quick.sel(seed=seed, share=share, aggregator=name, attack=attack)
        np.testing.assert_allclose(result, by_loops(seed, attack, share, ways[name]), rtol=1e-9)


@pytest.mark.slow
def test_without_attackers_there_is_no_attack(quick):
    honest = quick.sel(share=0.0)
    assert (honest.max("attack") == honest.min("attack")).all()


@pytest.mark.slow
def test_attackers_spoil_the_mean_more_than_the_median(quick):
    attacked = quick.sel(share=0.2, attack=[rob.FLIPPED, rob.NOISY]).mean("seed")
    assert (attacked.sel(aggregator=rob.MEAN) > 10 * attacked.sel(aggregator=rob.MEDIAN)).all()


@pytest.mark.slow
def test_larger_shares_keep_the_attackers():
    masks = [point(3, share=share)[3] for share in rob.SHARES.value]
    assert [int(m.sum()) for m in masks] == [0, 3, 6, 9, 12, 18]
    assert all((more | less == more).all() for less, more in itertools.pairwise(masks))


def test_a_number_chooses_the_attack():
    attackers = fl.attacks.first(2, 5)
    messages = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    arguments = jax.random.key(1), messages, jnp.asarray(attackers), jnp.ones(5, bool), messages[:1]
    makes = enumerate(rob.ON_MESSAGES.values())
    pairs = jax.jit(
        lambda: [
            (rob.on_messages(attackers, n).corrupt(*arguments), m(attackers).corrupt(*arguments))
            for n, m in makes
        ]
    )
    for sent, meant in pairs():
        np.testing.assert_array_equal(sent, meant)


@pytest.mark.slow
@pytest.mark.parametrize("attack", rob.ATTACKS)
def test_an_attack_is_on_messages_or_on_labels(attack):
    _, targets, _, lying = point(0, attack)
    wrong = np.any(targets != point(0, attack, share=0.0)[1], axis=1)
    by_label = attack == rob.POISONED
    assert (wrong.sum(), lying.sum()) == ((6, 0) if by_label else (0, 6))


@pytest.mark.slow
def test_honest_clients_are_judged_by_their_local_models():
    X, y, common, liars = point(0)
    best = alone(X[~liars], y[~liars])
    assert np.isnan(common[liars]).all()
    for result in common[~liars]:
        np.testing.assert_allclose(result, best, rtol=1e-9)
    personal = np.asarray(jax.jit(rob.personal_models)(parts(0, 0, 0.2, "d")[0], common))
    attraction = rob.ATTRACTION.value
    fit = np.einsum("knp,kn->kp", X, np.einsum("knp,kp->kn", X, personal) - y) / X.shape[1]
    np.testing.assert_allclose((2 * fit + attraction * (personal - best))[~liars], 0, atol=1e-9)


@pytest.mark.slow
def test_ditto_s_common_model_is_that_of_fedavg(quick):
    effort = Effort(seeds=SEEDS, progress=False)
    errors = rob.row("d", effort, (rob.MEDIAN,), SHARES, ROUNDS)
    alone = quick.sel(aggregator=[rob.MEDIAN])
    np.testing.assert_allclose(errors[rob.METRIC], alone, rtol=1e-9)
    assert (
        (errors[rob.PERSONAL.name] < errors[rob.METRIC]).sel(share=0.2, attack=rob.POISONED).all()
    )


def test_only_as_many_seeds_run_as_the_verdict_needs():
    class Asked(Effort):
        def sweep(self, name, scenario, **options):
            raise LookupError(options["seeds"], len(options["grid"]["point"]))

    for seeds, wanted in ((8, 8), (100, rob.SEEDS.value)):
        with pytest.raises(LookupError) as requested:
            rob.row("a", Asked(seeds=seeds))
        # Five attacks at five shares, and one run without attackers.
        assert requested.value.args == (wanted, 26)


def test_peers_receive_as_many_messages_as_their_aggregators_need():
    parts = jax.eval_shape(lambda: built(0, 0, 0.2, "c").network.entries.parts)
    assert sum(part.weights.shape[1] for part in parts) + 1 == PLACES["c"].messages


def test_more_attackers_than_a_cell_cuts_off():
    """The probability by simulation."""
    rng = np.random.default_rng(0)
    ranks = rng.permuted(np.tile(np.arange(rob.CLIENTS.value), (20_000, 1)), axis=1)
    cells = (ranks[:, :6] // 10)[:, :, None] == np.arange(rob.SERVERS.value)
    overrun = np.any(cells.sum(axis=1) > 3, axis=1).mean()
    assert abs(overrun - rob.overrun()) < 0.01


def test_too_few_messages_are_refused():
    assert "GFL, gradient at 0.4 (Krum)" in rob.REFUSED.value
    assert "FedAvg at 0.4" not in rob.REFUSED.value
    with pytest.raises(ValueError, match="Krum needs at least 11 messages"):
        jax.eval_shape(lambda: built(0, 0, 0.2, "b", Krum(4)))
    with pytest.raises(ValueError, match="Krum needs at least 11 messages"):
        rob.aggregators(10, 0.4)


def test_lost_runs_count_with_the_largest_error():
    data = xr.Dataset({rob.METRIC: ("seed", np.float32([1e-3, 1.0, 1e30, np.inf]))})
    result = rob.capped(data)[rob.METRIC].values
    np.testing.assert_allclose(result, [1e-3, 1.0, 1e4, 1e4], rtol=1e-6)


def test_an_overflowed_run_counts_as_lost():
    errors = {n: ("seed", [0.1, 0.2, np.nan]) for n in (rob.METRIC, rob.PERSONAL.name)}
    result = rob.lost(xr.Dataset(errors | {"diverged": ("seed", [0, 0, 7])}))
    assert set(result) == {rob.METRIC, rob.PERSONAL.name}
    for name in result:
        np.testing.assert_array_equal(result[name], [0.1, 0.2, np.inf])


def test_notes_state_the_measurements():
    """With equal errors for all seeds, in dB."""
    coords = {
        "aggregator": [*rob.AGGREGATORS],
        "attack": [*rob.ATTACKS],
        "share": [*rob.SHARES.value],
        "seed": np.arange(3),
    }
    shape = tuple(len(c) for c in coords.values())
    studies = {
        name: xr.Dataset({rob.METRIC: (tuple(coords), np.full(shape, 1e-3))}, coords)
        for name in "abcd"
    }

    def put(row, aggregator, attack, share, decibels):
        at = {"aggregator": aggregator, "attack": attack, "share": share}
        studies[row][rob.METRIC].loc[at] = 10 ** (decibels / 10)

    put("a", rob.GEOMETRIC, rob.NOISY, 0.3, -27.5)
    put("a", rob.MEDIAN, rob.NOISY, 0.3, -29.0)
    assert "geometric median 2.5 dB and the median 1.0 dB" in rob.pulled(studies)
    put("b", rob.MEDIAN, rob.FLIPPED, 0.4, -20.0)
    put("c", rob.GEOMETRIC, rob.FLIPPED, 0.4, -29.4)
    assert "Cells are 10.0 and 0.0 dB above, peers 0.0 and 0.6 dB." in rob.evened(studies)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    """Claims about an order are reversed when all errors are turned upside down."""
    studies = stored(rob.FIGURE)
    mirrored = {k: s.assign({rob.METRIC: 1 / s[rob.METRIC]}) for k, s in studies.items()}
    for claim in rob.FIGURE.claims:
        verdict = claim.judge(studies)
        assert verdict.cases
        if verdict.holds and claim.accept[1] == INFINITE and claim.accept[0] >= 0:
            assert not claim.judge(mirrored).holds
    for study in studies.values():  # without attackers all columns begin at one point
        first = study[rob.METRIC].sel(share=0.0)
        np.testing.assert_allclose(first.max("attack"), first.min("attack"), rtol=1e-5)


@pytest.mark.slow
def test_curves_are_not_covered(stored):
    with print_style():
        drawn = rob.plot(stored(rob.FIGURE))
    assert faults(drawn) == []
    assert len(drawn.axes) == len(PLACES) * len(rob.ATTACKS)
    plt.close(drawn)
