"""Promises cover any data, feature map and arrival pattern, at the precision in use."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import REGISTRY, ConventionalFL, FedAvg
from fljax.audit import tap
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.privacy import ZCDP, CentralGaussian, DiscreteZCDP, NoisyGradients, PureDP
from fljax.privacy.promises import SWALLOWED, assumptions
from fljax.problems import Huber, LeastSquares, Problem, Softmax, SquaredL2
from fljax.simulation.scan import prepare
from tests.cases import CASES, PRIVATE, gap_of, make_data, make_network, make_servers
from tests.support.marks import quiet

ROUNDS = 3
DIM = 3


def changes(worlds, rounds=ROUNDS):
    """``[T, K]``: how far apart the clients' messages of two worlds are in one history."""

    @jax.jit
    def listened(worlds, key):
        ready = tuple(prepare(world, rounds) for world in worlds)

        def keep(message, first, second):
            return {"apart": jnp.linalg.norm(second - first, axis=1)}

        return tap.record_statistics(worlds, ready, key, rounds, keep)[0]["apart"]

    return np.asarray(listened(worlds, as_key(0)))


# Features that a map makes infinite, or no numbers ------------------------------------------------


@fl.module
class Direction:
    """``x / |x|``, undefined at zero."""

    dim: int = fl.static(default=DIM)
    inputs: int = fl.static(default=DIM)

    def __call__(self, x):
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


@fl.module
class Reciprocal:
    """``1 / x``, infinite in one coordinate."""

    dim: int = fl.static(default=DIM)
    inputs: int = fl.static(default=DIM)

    def __call__(self, x):
        return 1 / x


@fl.module
class Logarithm:
    """Logarithm of one minus a square: NaN for some inputs, minus infinity for others."""

    dim: int = fl.static(default=DIM)
    inputs: int = fl.static(default=DIM)

    def __call__(self, x):
        return jnp.log(1 - x**2)


WORST = {
    "no number": (Direction(), [0.0, 0.0, 0.0]),
    "infinite": (Reciprocal(), [1.0, 0.0, 2.0]),
    "some of both": (Logarithm(), [1.0, 2.0, 0.5]),
}


def worlds_of(label, feature_map, sample, neighbors="replace"):
    """Two data sets that differ in such a sample at client 0."""
    needs = REGISTRY[label].needs
    data = [(np.clip(np.abs(X), 0.1, 0.9), np.sign(y)) for X, y in make_data()]
    loss = Huber(1.0) if needs.minimizer else LeastSquares()
    problem = fl.problems.from_clients(data, loss, SquaredL2(), 0.8, feature_map=feature_map)
    problem = problem.starting_at(np.full(DIM, 5.0))
    if needs.minimizer:
        problem = dataclasses.replace(problem, feature_bound=1.0)
    else:
        problem = problem.clipped(1.0)
    features = np.array(problem.features)
    features[0, 0] = sample
    network = {Graph: make_network(), Federation: make_servers(), None: None}[needs.network]
    budget = dataclasses.replace(CASES[label].privacy, gradient_bound=1.0, neighbors=neighbors)
    return tuple(
        fl.Simulation(p, CASES[label].algorithm, network, budget)
        for p in (problem, dataclasses.replace(problem, features=features))
    )


@pytest.mark.core
@pytest.mark.thin(6)
@pytest.mark.parametrize("label", PRIVATE)
@pytest.mark.parametrize("kind", WORST)
def test_a_sample_with_nonfinite_features_keeps_the_sensitivity(kind, label):
    worlds = worlds_of(label, *WORST[kind])
    distance = changes(worlds)
    gap = gap_of(worlds[0].problem)
    arguments = worlds[0].problem, worlds[0].network
    for n in range(ROUNDS):
        allowed = worlds[0].algorithm.sensitivity(*arguments, jnp.asarray(n + 1), gap)
        assert 0 < distance[n, 0] <= float(allowed[0]) * (1 + 1e-9)
        assert (distance[n, 1:] < 1e-9).all()


@pytest.mark.parametrize("budget", [NoisyGradients(1.0), CentralGaussian(1.0)])
@pytest.mark.parametrize("kind", WORST)
def test_budgets_that_clip_keep_the_sensitivity_for_any_features(kind, budget):
    feature_map, sample = WORST[kind]
    features = np.abs(np.random.default_rng(0).normal(size=(4, 5, DIM))).clip(0.1, 0.9)
    features[0, 0] = sample
    problem = Problem(features, np.ones((4, 5)), LeastSquares(), feature_map=feature_map)
    algorithm = CASES["DP-SGD"].algorithm
    if isinstance(budget, CentralGaussian):
        algorithm = FedAvg(0.1, weighting="equal")
    with pytest.warns(fl.AssumptionWarning, match="up to 1 samples have features that are not"):
        run = fl.run(fl.Simulation(problem, algorithm, privacy=budget), rounds=3)
    assert np.isfinite(run.model).all()
    assert int(run.unusable_samples) == 1
    assert not bool(run.nominal)
    assert run.attrs["privacy"].count("1 samples not finite, which count as zero") == 1


@pytest.mark.slow
def test_such_a_sample_counts_as_one_of_zero():
    """Prepared or not, with a clip or with a bound; without a promise it is unchanged."""
    features = np.random.default_rng(1).normal(size=(2, 4, DIM))
    features[0, 0] = 0
    plain = Problem(features, np.ones((2, 4)), Huber(1.0), feature_map=Direction())
    w = jnp.ones((2, DIM))
    zero = np.where(np.isnan(plain.design), 0, plain.design)
    same = Problem(zero, np.ones((2, 4)), Huber(1.0)).clipped(0.5)
    expected = same.loss_gradient(w)
    for problem in (plain.clipped(0.5), plain.clipped(0.5).prepare(), plain.clipped(0.5).mapped()):
        np.testing.assert_allclose(problem.loss_gradient(w), expected, rtol=1e-12)
    bounded = dataclasses.replace(plain, feature_bound=1.0)
    assert np.isfinite(bounded.loss_gradient(w)).all()
    assert np.isfinite(bounded.prepare().loss_gradient(w)).all()
    assert np.isnan(plain.prepare().loss_gradient(w)[0]).all()
    assert np.isfinite(plain.usable().prepare().loss_gradient(w)).all()
    assert int(plain.unusable_samples()) == 1


def test_features_that_are_drawn_count_too():
    """Data drawn inside a run cannot be refused and may overflow."""

    @jax.jit
    def prepared(key):
        x = jax.random.normal(key, (4, 5, DIM)).at[0, 0].set(1e308)
        problem = Problem(x * 1e3, jnp.ones((4, 5)), LeastSquares()).clipped(1.0)
        simulation = fl.Simulation(problem, ConventionalFL(0.1), privacy=ZCDP(1.0))
        return prepare(simulation, 2).problem, problem.unusable_samples()

    problem, bad = prepared(jax.random.key(0))
    assert int(bad) == 1
    assert not problem.features[0, 0].any()
    assert np.abs(problem.features[1:]).min() > 0


@pytest.mark.slow
def test_a_neural_network_clips_any_samples():
    """Images whose normalization divides by zero."""

    def apply(w, x):
        unit = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        return unit @ w

    x = np.random.default_rng(0).normal(size=(3, 4, DIM))
    x[0, 0] = 0
    network = fl.models.plain(lambda key: jnp.ones((DIM, 2)), apply)
    problem = fl.problems.Model(x, np.zeros((3, 4)), Softmax(2), architecture=network)
    problem = problem.initialized(jax.random.key(0))
    for algorithm, budget in (
        (CASES["DP-SGD"].algorithm, NoisyGradients(1.0)),
        (FedAvg(0.1, weighting="equal"), CentralGaussian(1.0)),
    ):
        run = fl.run(fl.Simulation(problem, algorithm, privacy=budget), rounds=2)
        assert np.isfinite(run.model).all()


# Messages that are not finite -------------------------------------------------------------------


@fl.module
class Overflows(ConventionalFL):
    """A client's message stops being a number, or overflows, in the second round."""

    worst: str = fl.static(default="nan")

    def _descend(self, problem, server, step_size):
        descent = super()._descend(problem, server, step_size)
        return descent._replace(model=descent.model.at[0, 0].set(float(self.worst)))


@pytest.mark.parametrize("worst", ["nan", "inf", "-inf"])
@pytest.mark.filterwarnings("ignore::fljax.DivergenceWarning")
@quiet
def test_a_message_that_is_not_finite_makes_the_run_nominal(worst):
    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=6, dim=2).clipped(1.0)
    options = {"privacy": ZCDP(1.0), "model": "released"}
    run = fl.run(fl.Simulation(problem, Overflows(0.1, worst=worst), **options), rounds=2)
    assert bool(run.nominal)
    assert np.isinf(run.rounding)
    assert "NOMINAL: a message was not finite" in run.attrs["privacy"]
    assert np.isfinite(run.model).all() == (worst == "nan")


@pytest.mark.slow
def test_overflowing_messages_keep_their_distance():
    """The distance of two numbers near the largest does not grow."""
    now = fl.view(studied(ZCDP(1.0)))
    largest = np.finfo(np.float64).max
    sent = now.link.send(jnp.full((4, 64), jnp.inf).at[1].set(largest))
    np.testing.assert_array_equal(sent[0], sent[1])


# Precision --------------------------------------------------------------------------------------


def studied(budget, start=0.0, dim=64, algorithm=None):
    """One message of sensitivity 0.001: a step of 0.05 on a hundred samples clipped to one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 100, dim))
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    problem = Problem(x, 1e6 * np.sign(rng.normal(size=(4, 100))), LeastSquares())
    problem = problem if isinstance(budget, NoisyGradients) else problem.clipped(1.0)
    algorithm = ConventionalFL(0.05) if algorithm is None else algorithm
    return fl.Simulation(problem.starting_at(np.full(dim, start)), algorithm, privacy=budget)


@pytest.mark.parametrize("budget", [ZCDP(0.5), DiscreteZCDP(0.5), PureDP(1.0)])
def test_rounding_that_carries_a_difference_through_the_noise_is_reported(budget):
    """From a hundredth of the sensitivity on, by the last places of the message's numbers."""
    with jax.enable_x64(False):
        for start in (0.5, 3.0, 100.0, 1.6e4):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run = fl.run(studied(budget, start), rounds=1)
            # By eps of 64 numbers at the end of the step and again on the way to the grid.
            moved = 2 * np.finfo(np.float32).eps * 8 * start / 0.001
            assert float(run.rounding) == pytest.approx(moved, rel=1e-3, abs=2e-4)
            swallowed = moved > SWALLOWED
            assert bool(run.nominal) is bool(swallowed)
            texts = [str(w.message) for w in caught if w.category is fl.AssumptionWarning]
            assert [("rounding to float32" in text) for text in texts] == [True] * bool(swallowed)
            assert ("NOMINAL: rounding" in run.attrs["privacy"]) is bool(swallowed)
    run = fl.run(studied(budget, 1.6e4), rounds=1)  # in double precision
    assert not bool(run.nominal)
    assert float(run.rounding) < 1e-7


@quiet
def test_rounding_does_not_depend_on_units():
    """Squares of small numbers vanish in single precision, squares of large ones overflow."""

    def rounding(unit):
        learner = ConventionalFL(0.05 * unit)
        return float(fl.run(studied(ZCDP(0.5), 3.0 * unit, algorithm=learner), rounds=1).rounding)

    with jax.enable_x64(False):
        for unit in (1e-20, 1e20):
            assert rounding(unit) == pytest.approx(rounding(1.0), rel=1e-3)


@quiet
@pytest.mark.parametrize("step", [1e-34, 2e-38])
@pytest.mark.parametrize("budget", [ZCDP(0.5), DiscreteZCDP(0.5), PureDP(1.0)])
def test_a_nan_sensitivity_still_has_noise(budget, step):
    """In single precision the product of step, weight and bound may underflow although the sum of
    all gradients does not.
    """
    with jax.enable_x64(False):
        simulation = studied(budget, 1e-36, algorithm=ConventionalFL(step))
        clients = np.float64(fl.run(simulation, rounds=1).model.values)
    assert np.std(clients) > 1e3 * step  # a sample contributes a 50,000th of that


def test_the_noise_of_gradients_does_not_vanish_with_their_share():
    with jax.enable_x64(False):
        mechanism = NoisyGradients(1.0, clip=1e-30)
        share = jnp.array([1e-12, 0.0], jnp.float32)
        scale = mechanism.scale(share)
        sensitivity = mechanism.sensitivity(share)
    assert scale[0] > 1e-30
    assert sensitivity[0] > 1e-30
    assert scale[1] == 0
    assert sensitivity[1] == 0


def test_rounding_is_the_gap_that_it_makes():
    """The messages of neighbors differ by at most their sensitivity plus the rounding error."""
    with jax.enable_x64(False):
        simulation = studied(ZCDP(0.5), 1.6e4)
        low, high = fl.audit.corners(simulation.problem, targets=(-1e6, 1e6))
        worlds = tuple(dataclasses.replace(simulation, problem=p) for p in (low, high))
        share = changes(worlds, 1)[0, 0] / 0.001
        with pytest.warns(fl.AssumptionWarning, match="rounding"):
            most = float(fl.run(worlds[0], rounds=1).rounding)
    assert 1.05 < share <= 1 + most  # not covered by a guarantee without it


@quiet
@pytest.mark.slow
def test_the_precision_of_every_round_and_mechanism_is_looked_at():
    """The last message may be the largest; servers' sums and clients' gradients count too."""

    with jax.enable_x64(False):
        central = studied(
            CentralGaussian(1.0, clip=1e-3), 5.0, algorithm=FedAvg(0.05, weighting="equal")
        )
        run = fl.run(central, rounds=3)
        # The sum of four clips, and not the model that it is added to once perturbed.
        assert 0 < float(run.rounding) < 1e-5
        noisy = studied(NoisyGradients(1.0), 5.0, algorithm=CASES["DP-SGD"].algorithm)
        assert 0 < float(fl.run(noisy, rounds=3).rounding) < 1e-3
        growing = studied(ZCDP(1e-12), 0.0)  # noise alone carries the models away
        results = [float(fl.run(growing, rounds=rounds).rounding) for rounds in (1, 3)]
        assert results[1] > results[0]
        assert bool(fl.run(growing, rounds=3).nominal)


# One record of it -------------------------------------------------------------------------------


@pytest.mark.slow
@quiet
def test_assumptions_are_kept_in_derived_results(tmp_path):
    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=6, dim=2)

    def scenario(key, clip):
        clipped = problem.clipped(clip)
        return fl.Simulation(clipped, ConventionalFL(0.1), privacy=ZCDP(1.0), metrics=["objective"])

    def loose(key, bound):
        budget = ZCDP(1.0, gradient_bound=bound)
        return fl.Simulation(problem, ConventionalFL(0.1), privacy=budget, metrics=["objective"])

    study = fl.sweep(scenario, grid={"clip": [0.5, 1.0]}, seeds=2, rounds=2)
    names = ["bound", "precision", "features", "neighbors", "arrivals", "noise", "generator"]
    assert list(assumptions(study)) == [*names, "seed", "runs"]
    assert "NOMINAL" not in study.attrs["privacy"]
    assert study.attrs["privacy"].startswith("bound: holds for every data set; precision: ")
    assert study.privacy_rho.attrs["arrivals"] == "public"
    assert fl.privacy.spent(study, 1e-5).attrs["privacy"] == study.attrs["privacy"]
    nominal = fl.sweep(loose, grid={"bound": [0.5, 1.0]}, seeds=2, rounds=2)
    assert assumptions(nominal)["bound"].startswith("NOMINAL: nothing makes every data set keep")
    assert "Privacy nominal (bound)." in fl.table(nominal).note
    text = [t.get_text() for t in fl.plotting.learning_curves(nominal, "objective").texts]
    assert any("privacy nominal (bound)" in t for t in text)
    fl.save(nominal, tmp_path / "nominal.nc")
    assert assumptions(fl.load(tmp_path / "nominal.nc"))["bound"] == assumptions(nominal)["bound"]
    plain = fl.Simulation(problem, ConventionalFL(0.1))
    results = fl.run(plain, rounds=2)
    assert assumptions(results) == {}
    assert "privacy" not in results.attrs


@pytest.mark.slow
@quiet
def test_a_study_with_points_of_every_kind_reports_each():
    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=6, dim=2)

    def scenario(key, budget):
        algorithm = FedAvg(0.1, weighting="equal")
        if isinstance(budget, ZCDP) or budget is None:
            algorithm = ConventionalFL(0.1)
        return fl.Simulation(problem.clipped(1.0), algorithm, privacy=budget)

    budgets = {"none": None, "messages": ZCDP(1.0), "server": CentralGaussian(1.0)}
    study = fl.sweep(scenario, grid={"budget": budgets}, seeds=2, rounds=2)
    assert not study.nominal.any()
    assert assumptions(study)["neighbors"] == "add-or-remove, replace"
    assert assumptions(study.sel(budget=["none"])) == {}


# Who has data, and when -------------------------------------------------------------------------


def arriving(table, budget, algorithm=None):
    key = jax.random.key(0)
    feature_map = fl.data.random_fourier(key, inputs=4, features=2)
    arrivals = fl.participation.Trace(np.asarray(table, bool))
    stream = fl.streams.autoregressive(key, clients=4, feature_map=feature_map, arrivals=arrivals)
    algorithm = algorithm or FedAvg(100.0, weighting="equal")
    return fl.Simulation(stream, algorithm, privacy=budget)


@pytest.mark.thin(1, every=1)
@pytest.mark.parametrize("neighbors", ["replace", "add-or-remove"])
def test_secret_arrivals_cost_every_round(neighbors):
    """A client with one arrival, and its neighbor with data in all rounds: the divergence of what
    the server publishes is within the ledger if arrivals are secret, and not if they are public.
    """
    few = np.zeros((10, 4), bool)
    few[0] = True
    many = few.copy()
    many[:, 0] = True
    options = {"noise_multiplier": 1.0, "clip": 1e-3, "neighbors": neighbors}
    for arrivals, covered in (("public", False), ("secret", True)):
        budget = CentralGaussian(**options, arrivals=arrivals)
        worlds = tuple(arriving(table, budget) for table in (few, many))
        distance = changes(worlds, 10)[:, 0] / 1e-3  # in clips; the noise is one
        run = fl.run(worlds[0], rounds=10)
        divergence = np.sum(distance**2) / 2
        assert bool(divergence <= float(run.client_rho[0]) * (1 + 1e-6)) is covered
        assert run.privacy_rho.attrs["arrivals"] == arrivals
        assert f"arrivals: {arrivals}" in run.attrs["privacy"]
        cost = 2.0 if neighbors == "replace" else 0.5
        rounds = 10 if covered else 1
        np.testing.assert_allclose(run.client_rho, cost * rounds, rtol=1e-6)


@pytest.mark.slow
def test_secret_arrivals_that_affect_the_draw_are_refused():
    everyone = np.ones((3, 4), bool)
    budget = CentralGaussian(1.0, neighbors="replace", arrivals="secret")
    drawn = FedAvg(1.0, clients_per_round=2, weighting="equal")
    with pytest.raises(ValueError, match="one client's arrivals decide who else takes part"):
        fl.run(arriving(everyone, budget, drawn), rounds=3)
    share = FedAvg(1.0, weighting="equal", selector=fl.participation.Fraction(0.5))
    results = fl.run(arriving(everyone, budget, share), rounds=3)
    np.testing.assert_allclose(results.client_rho, 6.0)
    with pytest.raises(ValueError, match="unknown arrivals 'open'"):
        CentralGaussian(1.0, arrivals="open")
