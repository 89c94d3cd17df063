"""Which data sets are neighbors: what follows for gradients, messages and the results' words."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._generator import as_key
from fljax.algorithms import ZCDPNFL, ConventionalFL, GraphFedAvg
from fljax.audit import guessing
from fljax.engine import prepare
from fljax.privacy import NEIGHBORS, ZCDP, ApproximateDP, Gap, PureDP
from fljax.problems import LeastSquares, Problem, SquaredL2, factorize, prox
from fljax.problems.solvers import strong_convexity
from tests.cases import PRIVATE, SIZES, gap_of, make_network, make_problem, simulate
from tests.marks import quiet
from tests.privacy.worlds import CLIENT, EXACT, clipped, worlds_of

ROUNDS = 4


# The gap of gradients ----------------------------------------------------------------------------


def test_gaps_are_those_of_the_weights():
    problem, sizes = make_problem(), np.array(SIZES)
    expected = {"replace": 2 / sizes, "add-or-remove": 1 / sizes, "client": np.full(5, 2.0)}
    for notion in (ZCDP(1.0), ApproximateDP(1.0, 1e-3), PureDP(1.0)):
        for neighbors, gradient in expected.items():
            of = dataclasses.replace(notion, gradient_bound=1.7, neighbors=neighbors)
            gap = Gap.of(of, problem)
            np.testing.assert_allclose(gap.gradient, 1.7 * gradient, rtol=1e-12)
            np.testing.assert_allclose(gap.anywhere, np.full(5, 3.4), rtol=1e-12)
    uneven = dataclasses.replace(problem, weights=np.tile([0.7, 0.2, 0.1, *[0] * 9], (5, 1)))
    np.testing.assert_allclose(gap_of(uneven).gradient, 1.4)
    np.testing.assert_allclose(gap_of(uneven, 1.0, "client").gradient, 2.0)


@pytest.mark.parametrize("neighbors", NEIGHBORS)
def test_clipped_gradients_differ_by_the_gap(neighbors):
    """At one model by all of it, and anywhere by no more than that of two clients."""
    a, b = clipped(neighbors)
    gap, rng = gap_of(a, 1.0, neighbors), np.random.default_rng(0)
    for size in (0.1, 10.0):
        here, there = (jnp.asarray(size * rng.normal(size=(5, 3))) for _ in range(2))
        apart = jnp.linalg.norm(a.loss_gradient(here) - b.loss_gradient(here), axis=1)
        assert float(apart[CLIENT] / gap.gradient[CLIENT]) == pytest.approx(1)
        assert not np.delete(apart, CLIENT).any()
        apart = jnp.linalg.norm(a.loss_gradient(here) - b.loss_gradient(there), axis=1)
        assert (apart <= gap.anywhere * (1 + 1e-12)).all()


# Messages ----------------------------------------------------------------------------------------


@jax.jit
def changes(worlds, key):
    """``[T, K]``: how far apart the clients' messages of two worlds are in one history."""
    ready = tuple(prepare(world, ROUNDS) for world in worlds)

    def keep(said, one, two):
        return {"apart": jnp.linalg.norm(two - one, axis=1)}

    return guessing._listen(worlds, ready, key, ROUNDS, keep)[0]["apart"]


def shares(worlds, neighbors, seed=0):
    """``[T]``: of the stated sensitivity, what the attacked client's messages differ by."""
    apart = np.asarray(changes(worlds, as_key(seed)))
    assert np.delete(apart, CLIENT, axis=1).max() < 1e-12
    simulation, gap = worlds[0], gap_of(worlds[0].problem, 1.0, neighbors)
    given = simulation.problem, simulation.network
    allowed = [
        simulation.algorithm.sensitivity(*given, jnp.asarray(n), gap)[CLIENT]
        for n in range(1, ROUNDS + 1)
    ]
    return apart[:, CLIENT] / np.asarray(allowed)


@pytest.mark.thin(2)
@pytest.mark.parametrize("neighbors", NEIGHBORS)
@pytest.mark.parametrize("label", PRIVATE)
def test_messages_of_neighbors_differ_by_the_sensitivity(label, neighbors):
    """Never by more, and by all of it where the bound is attained."""
    worlds = tuple(simulate(label, problem) for problem in worlds_of(label, neighbors))
    share = shares(worlds, neighbors)
    assert share.max() <= 1 + 1e-9
    assert share.max() > (0.84 if label in EXACT else 0.99)


@pytest.mark.thin(3)
@pytest.mark.parametrize("neighbors", NEIGHBORS)
@pytest.mark.parametrize(
    ("label", "algorithm"),
    [("FL", ConventionalFL(0.05, 3)), ("GFL, gradient", GraphFedAvg(0.1, 3))],
)
def test_several_steps_differ_by_the_sensitivity(label, algorithm, neighbors):
    """From the second step on gradients may be anything; those of opposite clients are."""
    worlds = tuple(
        dataclasses.replace(simulate(label, problem), algorithm=algorithm)
        for problem in clipped(neighbors)
    )
    share = shares(worlds, neighbors)
    assert share.max() <= 1 + 1e-9
    if neighbors == "client":
        assert share.max() > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("neighbors", NEIGHBORS)
@pytest.mark.parametrize("samples", [3, 9])  # fewer and more than parameters
def test_exact_minimizers_of_neighbors_differ_by_the_gap(samples, neighbors):
    """Of any features, which the Hessian has too, under the bound that gradients do keep at the
    first's minimizer.
    """
    rng, trials, dim = np.random.default_rng(5), 300, 5
    x = rng.normal(size=(trials, samples, dim)) * 10 ** rng.uniform(-2, 1, (trials, 1, 1))
    y = rng.normal(size=(trials, samples)) * 10 ** rng.uniform(-1, 1, (trials, 1))
    x[::2], y[::2] = x[::2, :1], y[::2, :1]  # clients of samples that are all alike
    other, others = x.copy(), y.copy()
    some = slice(None) if neighbors == "client" else slice(1)
    other[1::2, some] = rng.normal(size=x[1::2, some].shape)
    others[:, some] = -y[:, some]
    if neighbors == "add-or-remove":
        other[:, 0] = 0
    weight = jnp.asarray(10 ** rng.uniform(-2, 1, trials))
    center = jnp.asarray(rng.normal(size=(trials, dim)))
    objective = LeastSquares(), SquaredL2(), 0.3
    pair = [Problem(*data, *objective).prepare() for data in ((x, y), (other, others))]
    models = [prox(p, factorize(p, weight), center, center) for p in pair]
    apart = jnp.linalg.norm(models[0] - models[1], axis=1)
    bound = jnp.maximum(*(p.sample_gradient_norm(models[0]) for p in pair))
    one = gap_of(pair[0], 1.0, neighbors).gradient
    share = apart * (weight + strong_convexity(pair[0])) / (bound * one)
    assert 0.9 < share.max() <= 1 + 1e-9


# What results say --------------------------------------------------------------------------------


def private(privacy):
    problem, network = make_problem(clip=1.0), make_network()
    return fl.Simulation(problem, ZCDPNFL(1.0, 0.5), network, privacy)


@pytest.mark.slow
def test_runs_say_whose_neighbors_their_budget_covers():
    results = fl.run(private(ZCDP(1.0, neighbors="client")), 2)
    assert results.privacy_rho.attrs["neighbors"] == "client"
    assert results.client_rho.attrs["neighbors"] == "client"
    assert results.privacy_rho.attrs["units"] == "rho"
    assert "neighbors" not in results.gradient_bound.attrs
    plain = fl.run(dataclasses.replace(private(None), metrics=("objective",)), 2)
    assert not any("neighbors" in plain[name].attrs for name in plain)


@pytest.mark.slow
@quiet
def test_studies_say_it_of_all_their_budgets_on_disk_too(tmp_path):
    budgets = {
        "replace": ZCDP(1.0),
        "client": ZCDP(1.0, neighbors="client"),
        "pure": PureDP(1.0, neighbors="add-or-remove"),
        "none": None,
    }

    def scenario(key, budget):
        return private(budget)

    given = {"rounds": 2, "seeds": 1, "grid": {"budget": budgets}, "keep_models": True}
    study = fl.sweep(scenario, store=tmp_path / "study", **given)
    fl.save(study, tmp_path / "study.nc")
    for result in (study, fl.load(tmp_path / "study"), fl.load(tmp_path / "study.nc")):
        for kind in ("privacy", "client"):
            assert result[f"{kind}_rho"].attrs["neighbors"] == "client, replace"
            assert result[f"{kind}_epsilon"].attrs["neighbors"] == "add-or-remove"
    np.testing.assert_allclose(study.privacy_rho.isel(round=-1).values.ravel()[:2], 1.0)


@pytest.mark.slow
def test_whole_clients_take_as_much_more_noise_as_they_have_samples():
    """One budget buys noise of the relation's scale; what is spent is the same."""
    scale = {}
    for neighbors in NEIGHBORS:
        simulation = private(ZCDP(1.0, neighbors=neighbors))
        now = fl.view(simulation, rounds=3)
        state = simulation.algorithm.init(now.problem, now.network)
        after = simulation.algorithm.step(state, now)
        scale[neighbors] = np.asarray(after.heard - after.model)
        np.testing.assert_allclose(now.link.spent["rho"], 1 / 3, rtol=1e-12)
    np.testing.assert_allclose(scale["replace"], 2 * scale["add-or-remove"], rtol=1e-9)
    sizes = np.array(SIZES)[:, None]
    np.testing.assert_allclose(scale["client"], sizes * scale["replace"], rtol=1e-9)
