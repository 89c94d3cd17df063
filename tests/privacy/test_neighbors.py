"""Which data sets are neighbors: what follows for gradients, messages and the results' words."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import ZCDPNFL, ConventionalFL, GraphFedAvg
from fljax.audit import tap
from fljax.privacy import NEIGHBORS, ZCDP, ApproximateDP, Gap, PureDP
from fljax.problems import LeastSquares, Problem, SquaredL2, factorize, prox
from fljax.problems.solvers import strong_convexity
from fljax.simulation.scan import prepare
from tests.cases import PRIVATE, SIZES, gap_of, make_network, make_problem, simulate
from tests.privacy.worlds import CLIENT, EXACT, clipped, worlds_of
from tests.support.marks import quiet

ROUNDS = 4


# The gap of gradients ----------------------------------------------------------------------------


def test_gaps_are_those_of_the_weights():
    problem = make_problem()
    sizes = np.array(SIZES)
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
    """At one model by the whole gap, and at different models by at most that of two clients."""
    a, b = clipped(neighbors)
    gap = gap_of(a, 1.0, neighbors)
    rng = np.random.default_rng(0)
    for size in (0.1, 10.0):
        first, second = (jnp.asarray(size * rng.normal(size=(5, 3))) for _ in range(2))
        distance = jnp.linalg.norm(a.loss_gradient(first) - b.loss_gradient(first), axis=1)
        assert float(distance[CLIENT] / gap.gradient[CLIENT]) == pytest.approx(1)
        assert not np.delete(distance, CLIENT).any()
        distance = jnp.linalg.norm(a.loss_gradient(first) - b.loss_gradient(second), axis=1)
        assert (distance <= gap.anywhere * (1 + 1e-12)).all()


# Messages ----------------------------------------------------------------------------------------


@jax.jit
def changes(worlds, key):
    """``[T, K]``: how far apart the clients' messages of two worlds are in one history."""
    ready = tuple(prepare(world, ROUNDS) for world in worlds)

    def keep(message, first, second):
        return {"apart": jnp.linalg.norm(second - first, axis=1)}

    return tap.record_statistics(worlds, ready, key, ROUNDS, keep)[0]["apart"]


def shares(worlds, neighbors, seed=0):
    """``[T]``: the attacked client's change of messages, a share of the stated sensitivity."""
    distance = np.asarray(changes(worlds, as_key(seed)))
    assert np.delete(distance, CLIENT, axis=1).max() < 1e-12
    simulation = worlds[0]
    gap = gap_of(worlds[0].problem, 1.0, neighbors)
    arguments = simulation.problem, simulation.network
    allowed = [
        simulation.algorithm.sensitivity(*arguments, jnp.asarray(n), gap)[CLIENT]
        for n in range(1, ROUNDS + 1)
    ]
    return distance[:, CLIENT] / np.asarray(allowed)


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
    """After the first step gradients may be arbitrary; here two clients' gradients are opposite."""
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
    """For random features, which also enter the Hessian, with the largest gradient at the first
    minimizer as the bound.
    """
    rng = np.random.default_rng(5)
    trials = 300
    dim = 5
    x = rng.normal(size=(trials, samples, dim)) * 10 ** rng.uniform(-2, 1, (trials, 1, 1))
    y = rng.normal(size=(trials, samples)) * 10 ** rng.uniform(-1, 1, (trials, 1))
    x[::2] = x[::2, :1]
    y[::2] = y[::2, :1]  # all samples of a client are equal
    other = x.copy()
    other_targets = y.copy()
    changed = slice(None) if neighbors == "client" else slice(1)
    other[1::2, changed] = rng.normal(size=x[1::2, changed].shape)
    other_targets[:, changed] = -y[:, changed]
    if neighbors == "add-or-remove":
        other[:, 0] = 0
    weight = jnp.asarray(10 ** rng.uniform(-2, 1, trials))
    center = jnp.asarray(rng.normal(size=(trials, dim)))
    objective = LeastSquares(), SquaredL2(), 0.3
    pair = [Problem(*data, *objective).prepare() for data in ((x, y), (other, other_targets))]
    models = [prox(p, factorize(p, weight), center, center) for p in pair]
    distance = jnp.linalg.norm(models[0] - models[1], axis=1)
    bound = jnp.maximum(*(p.sample_gradient_norm(models[0]) for p in pair))
    gap = gap_of(pair[0], 1.0, neighbors).gradient
    share = distance * (weight + strong_convexity(pair[0])) / (bound * gap)
    assert 0.9 < share.max() <= 1 + 1e-9


# What results say --------------------------------------------------------------------------------


def private(privacy):
    problem = make_problem(clip=1.0)
    network = make_network()
    return fl.Simulation(problem, ZCDPNFL(1.0, 0.5), network, privacy)


@pytest.mark.slow
def test_runs_state_the_neighbors_of_their_budget():
    results = fl.run(private(ZCDP(1.0, neighbors="client")), 2)
    assert results.privacy_rho.attrs["neighbors"] == "client"
    assert results.client_rho.attrs["neighbors"] == "client"
    assert results.privacy_rho.attrs["units"] == "rho"
    assert "neighbors" not in results.gradient_bound.attrs
    plain = fl.run(dataclasses.replace(private(None), metrics=("objective",)), 2)
    assert not any("neighbors" in plain[name].attrs for name in plain)


@pytest.mark.slow
@quiet
def test_studies_on_disk_state_all_their_budgets_too(tmp_path):
    budgets = {
        "replace": ZCDP(1.0),
        "client": ZCDP(1.0, neighbors="client"),
        "pure": PureDP(1.0, neighbors="add-or-remove"),
        "none": None,
    }

    def scenario(key, budget):
        return private(budget)

    options = {"rounds": 2, "seeds": 1, "grid": {"budget": budgets}, "keep_models": True}
    study = fl.sweep(scenario, store=tmp_path / "study", **options)
    fl.save(study, tmp_path / "study.nc")
    for result in (study, fl.load(tmp_path / "study"), fl.load(tmp_path / "study.nc")):
        for kind in ("privacy", "client"):
            assert result[f"{kind}_rho"].attrs["neighbors"] == "client, replace"
            assert result[f"{kind}_epsilon"].attrs["neighbors"] == "add-or-remove"
    np.testing.assert_allclose(study.privacy_rho.isel(round=-1).values.ravel()[:2], 1.0)


@pytest.mark.slow
def test_whole_clients_take_as_much_more_noise_as_they_have_samples():
    """A budget buys noise at the relation's scale; the spent budget is the same."""
    scale = {}
    for neighbors in NEIGHBORS:
        simulation = private(ZCDP(1.0, neighbors=neighbors))
        now = fl.view(simulation, rounds=3)
        state = simulation.algorithm.init(now.problem, now.network)
        after = simulation.algorithm.step(state, now)
        scale[neighbors] = np.asarray(after.sent - after.model)
        np.testing.assert_allclose(now.link.spent["rho"], 1 / 3, rtol=1e-12)
    np.testing.assert_allclose(scale["replace"], 2 * scale["add-or-remove"], rtol=1e-9)
    sizes = np.array(SIZES)[:, None]
    np.testing.assert_allclose(scale["client"], sizes * scale["replace"], rtol=1e-9)
