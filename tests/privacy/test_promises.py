"""What a printed epsilon rests on: for every data set, every early stop, every grid point."""

import functools
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import fljax as fl
from fljax._core.devices import configured
from fljax._core.prng import as_key
from fljax.algorithms import GFL, PADMM, PGFL, ZCDPNFL, ClusterFL, ConventionalFL, ZCDPGradNFL
from fljax.privacy import ZCDP, ApproximateDP
from fljax.problems import (
    ElasticNet,
    Huber,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    NoRegularizer,
    Problem,
    Softmax,
    SquaredL2,
    factorize,
    optimum,
    prox,
)
from fljax.problems.solvers import strong_convexity
from fljax.simulation.scan import _add_to_ledger
from tests.cases import CLIENTS, gap_of, make_data, make_network, make_problem
from tests.support.marks import quiet

RADIUS = 3.0

LOSSES = {"logistic": Logistic(), "huber": Huber(0.7)}
REGULARIZERS = {"none": NoRegularizer(), "l2": SquaredL2(), "elastic": ElasticNet(0.3, 0.4)}


def in_ball(rng, *shape):
    """Features of norm at most ``RADIUS``, some on the sphere, some at zero."""
    x = rng.normal(size=shape)
    size = rng.choice([0.0, 0.05, 1.0, 1.0], size=(*shape[:-1], 1))
    return RADIUS * size * x / np.linalg.norm(x, axis=-1, keepdims=True)


def targets_of(loss, rng, shape):
    return np.sign(rng.normal(size=shape)) if loss == "logistic" else 5 * rng.normal(size=shape)


def build(loss, regularizer, x, y, bound=RADIUS):
    return Problem(x, y, LOSSES[loss], REGULARIZERS[regularizer], 0.2, feature_bound=bound)


@functools.partial(jax.jit, static_argnames=("loss", "regularizer", "iterations", "bound"))
def models_of(x, y, weight, centers, loss, regularizer, iterations, bound):
    """``[rounds, K, D]``: each round starts at the minimizers of the one before."""
    problem = build(loss, regularizer, x, y, bound).prepare()
    factor = factorize(problem, weight)

    def minimize(model, center):
        model = prox(problem, factor, center, model, iterations)
        return model, model

    return jax.lax.scan(minimize, jnp.zeros(centers.shape[1:]), centers)[1]


def largest_gap(
    loss, regularizer, samples, iterations, seed, bound=RADIUS, dim=6, neighbors="replace"
):
    """How far two neighboring worlds come apart over five rounds with the same centers, warm
    starts included, against what exact minimizers may.
    """
    rng = np.random.default_rng(seed)
    trials = 200
    x = in_ball(rng, trials, samples, dim)
    weight = 10 ** rng.uniform(-2, 0.5, trials)
    y = targets_of(loss, rng, (trials, samples))
    other = x.copy()
    other_targets = y.copy()
    changed = slice(None) if neighbors == "client" else slice(1)
    other[:, changed] = in_ball(rng, *x[:, changed].shape) * (neighbors != "add-or-remove")
    other_targets[:, changed] = targets_of(loss, rng, y[:, changed].shape)
    if neighbors != "add-or-remove":
        other[::3, changed], other_targets[::3, changed] = -x[::3, changed], y[::3, changed]
    if neighbors == "client":  # all samples of a client are equal, and opposite in the neighbor
        x[::3] = x[::3, :1]
        y[::3] = y[::3, :1]
        other[::3] = -x[::3]
        other_targets[::3] = y[::3]
    centers = rng.normal(size=(5, trials, dim)) * 10 ** rng.uniform(-1, 1, size=(5, 1, 1))
    options = (weight, centers, loss, regularizer, iterations, bound)
    gap = np.linalg.norm(
        models_of(x, y, *options) - models_of(other, other_targets, *options), axis=2
    )
    problem = build(loss, regularizer, x, y)
    moves = gap_of(problem, float(LOSSES[loss].slope_bound()) * RADIUS, neighbors).gradient
    return float((gap * np.asarray((weight + strong_convexity(problem)) / moves)).max())


@pytest.mark.core
@pytest.mark.thin(5)
@pytest.mark.parametrize("iterations", [1, 100])
@pytest.mark.parametrize("samples", [4, 9])  # fewer and more than parameters
@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_early_stops_keep_the_distance_of_exact_minimizers(loss, regularizer, samples, iterations):
    for seed in range(5):
        assert largest_gap(loss, regularizer, samples, iterations, seed) <= 1 + 1e-9


@pytest.mark.thin(2)
@pytest.mark.parametrize("iterations", [1, 20])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("neighbors", ["add-or-remove", "client"])
def test_early_stops_keep_the_bound_for_any_relation(neighbors, loss, iterations):
    """All of it is attained in time, or half where one margin's slope is the other's rest."""
    options = {"neighbors": neighbors}
    for samples, regularizer in ((4, "l2"), (9, "elastic")):
        gaps = [largest_gap(loss, regularizer, samples, iterations, s, **options) for s in range(2)]
        assert max(gaps) <= 1 + 1e-9
        half = (neighbors, loss) == ("client", "logistic")
        assert iterations == 1 or max(gaps) > (0.49 if half else 0.99)


@pytest.mark.parametrize(("samples", "regularizer"), [(4, "l2"), (9, "l2"), (9, "elastic")])
def test_steps_that_the_data_decide_do_not(samples, regularizer):
    """A negative control of the test above."""
    gaps = [largest_gap("logistic", regularizer, samples, 1, seed, None) for seed in range(3)]
    assert max(gaps) > 1.05


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("samples", [3, 8])
def test_public_steps_equal_the_loop_and_end_at_the_minimizer(samples, regularizer):
    rng = np.random.default_rng(1)
    x = in_ball(rng, 2, samples, 5)
    y = targets_of("huber", rng, (2, samples))
    weight = np.array([0.3, 2.0])
    center = rng.normal(size=(2, 5))
    start = rng.normal(size=(2, 5))
    problem = build("huber", regularizer, x, y).prepare()
    l1, l2 = {"none": (0, 0), "l2": (0, 1), "elastic": (0.3, 0.4)}[regularizer]
    theirs = start.copy()
    for _ in range(7):
        for k in range(2):
            step = 1 / (1.0 * RADIUS**2 + weight[k])
            residual = x[k] @ theirs[k] - y[k]
            loss_gradient = x[k].T @ np.clip(residual, -0.7, 0.7) / samples
            point = theirs[k] - step * (loss_gradient + weight[k] * (theirs[k] - center[k]))
            shrunk = np.sign(point) * np.maximum(np.abs(point) - step * 0.1 * l1, 0)
            theirs[k] = shrunk / (1 + 2 * step * 0.1 * l2)
    factor = factorize(problem, jnp.asarray(weight))
    ours = prox(problem, factor, jnp.asarray(center), jnp.asarray(start), 7)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    ended = prox(problem, factor, jnp.asarray(center), jnp.asarray(start), 3000)
    free = build("huber", regularizer, x, y, None).prepare()
    exact = prox(
        free, factorize(free, jnp.asarray(weight)), jnp.asarray(center), jnp.asarray(start), 3000
    )
    np.testing.assert_allclose(ended, exact, atol=1e-8)


@pytest.mark.slow
def test_an_optimum_is_not_counted_as_a_message():
    rng = np.random.default_rng(2)
    x = in_ball(rng, 3, 9, 4)
    y = targets_of("logistic", rng, (3, 9))
    bounded, free = (build("logistic", "l2", x, y, bound) for bound in (RADIUS, None))
    np.testing.assert_allclose(optimum(bounded), optimum(free), rtol=0, atol=1e-13)


FEDERATION = fl.federation.Federation([0, 0, 1, 1, 1], make_network("dense", 2, [(0, 1)]))


@pytest.mark.parametrize(
    ("algorithm", "network"),
    [
        (PGFL(0.9), FEDERATION),
        (GFL(0.9), FEDERATION),
        (ClusterFL(0.9), FEDERATION),
        (PADMM(0.9), make_network()),
    ],
)
def test_iterated_minimizers_without_public_steps_are_refused(algorithm, network):
    problem = make_problem("logistic")
    with pytest.raises(ValueError, match=r"declare the largest norm.*feature_bound"):
        fl.Simulation(problem, algorithm, network, ZCDP(1.0))
    fl.Simulation(problem, algorithm, network)  # without a promise there is nothing to keep
    x = np.asarray(problem.features)
    weights = problem.weights
    bound = np.linalg.norm(x, axis=-1).max()
    arguments = (x, problem.targets, Logistic(), SquaredL2(), 0.8, weights)
    fl.Simulation(Problem(*arguments, feature_bound=bound), algorithm, network, ZCDP(1.0))


def test_a_loss_that_is_not_smooth_has_no_certificate():
    with pytest.raises(ValueError, match="for losses that are not smooth no guarantee"):
        fl.Simulation(make_problem("lad"), PGFL(0.9), FEDERATION, ZCDP(1.0))


# Clipping ---------------------------------------------------------------------------------------

HUGE = [
    ([1e25, 0.0], 0.0),
    ([1e25, -1e25], 2.0),
    ([1.0, 2.0], 2.5e38),
    ([3e38, 3e38], -3e38),
    ([0.0, 0.0], 2.5e38),
    ([1e-30, 0.0], 3e38),
]


@pytest.mark.core
@pytest.mark.thin(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("x", "y"), HUGE)
def test_clipped_gradients_are_finite_and_bounded_for_any_data(x, y, dtype):
    features = np.array([[[1.0, 0.5], x]] * 2, dtype)
    with jax.enable_x64(dtype == np.float64):
        for loss in (LeastSquares(), LeastAbsoluteDeviation(), Softmax(2)):
            targets = np.array([[1.0, y if loss.outputs == 1 else 1.0]] * 2, dtype)
            problem = Problem(features, targets, loss, clip=1.0)
            prepared = problem.prepare()
            slopes = (
                problem.loss_gradient,
                prepared.loss_gradient,
                jax.jit(problem.loss_gradient),  # data that XLA knows
                jax.jit(lambda w, p=problem: p.prepare().loss_gradient(w)),
            )
            for model in (0.0, 1.0, -1e10, 1e30):
                w = jnp.full((2, problem.dim), model, dtype)
                for gradient_of in slopes:
                    gradient = np.asarray(gradient_of(w), np.float64)
                    assert np.isfinite(gradient).all()
                    assert np.linalg.norm(gradient, axis=1).max() <= 1 + 1e-5
                for ready in (problem, prepared):
                    norms = np.asarray(ready.sample_gradient_norm(w))
                    assert np.isfinite(norms).all()
                    assert norms.max() <= 1 + 1e-5


@pytest.mark.slow
def test_nonfinite_values_are_never_sent():
    """An unclipped client of huge data says noise; the divergence is recorded all the same."""
    data = [(x * 1e200 if k == 0 else x, y) for k, (x, y) in enumerate(make_data())]
    problem = make_problem(data=data)
    simulation = fl.Simulation(problem, ZCDPGradNFL(0.1), make_network(), ZCDP(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        now = fl.view(simulation)
        state = simulation.algorithm.init(now.problem, now.network)
        state = state._replace(model=state.model.at[0].set(jnp.nan))
        sent = np.asarray(now.link.send(state.model))
        assert np.isfinite(sent).all()
        assert (sent[0] != 0).all()


# What is promised -------------------------------------------------------------------------------


def studied(problem, algorithm=None, **options):
    algorithm = ZCDPNFL(1.0, 0.5) if algorithm is None else algorithm
    return fl.Simulation(problem, algorithm, make_network(), ZCDP(1.0, **options))


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("make", "bound", "nominal"),
    [
        (make_problem, 20.0, True),  # calm data within the bound say nothing of others
        (lambda: make_problem(clip=1.0), 1.0, False),
        (lambda: make_problem("lad"), 20.0, True),
        (lambda: bounded(4.0), 4.0, False),
        (lambda: bounded(4.0), 3.9, True),
        (lambda: bounded(4.0).clipped(2.0), 2.0, False),
    ],
)
def test_an_unenforced_promise_is_called_nominal(make, bound, nominal):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = fl.run(studied(make(), gradient_bound=bound), 3)
    assert bool(results.nominal) is nominal
    texts = [str(w.message) for w in caught if w.category is fl.AssumptionWarning]
    assert bool(texts) is nominal
    if nominal:
        assert "nominal, not a guarantee" in texts[0]
        assert "feature_bound" in texts[0]


def test_a_bound_below_the_clip_is_refused():
    with pytest.raises(ValueError, match="clips gradients to 2, above the bound 1"):
        studied(make_problem(clip=2.0), gradient_bound=1.0)

    def scenario(key, bound):
        return studied(make_problem(clip=1.0), gradient_bound=bound)

    with pytest.raises(ValueError, match=r"clips gradients to 1, above the bound 0\.5") as caught:
        fl.sweep(scenario, rounds=2, seeds=1, grid={"bound": [1.0, 0.5]})
    assert "grid point" in caught.value.__notes__[-1]


def bounded(radius):
    data = [(x / np.linalg.norm(x, axis=1, keepdims=True), y) for x, y in make_data("lad")]
    problem = make_problem("lad", data=tuple(data))
    arguments = (radius * problem.features, problem.targets, problem.loss, problem.regularizer, 0.8)
    return Problem(*arguments, problem.weights, feature_bound=radius)


def test_the_promised_bound_is_independent_of_data():
    assert np.isinf(make_problem().promised_bound())
    assert float(make_problem(clip=0.7).promised_bound()) == 0.7
    assert float(bounded(4.0).promised_bound()) == 4.0
    assert float(bounded(4.0).clipped(0.5).promised_bound()) == 0.5
    rows = np.ones((2, 3, 1))
    logistic = Problem(rows, np.ones((2, 3)), Softmax(2), feature_bound=2.0)
    assert float(logistic.promised_bound()) == pytest.approx(2 * 2**0.5)


def test_features_beyond_their_bound_are_refused_or_scaled_down():
    x = np.full((2, 3, 4), 1.0)
    y = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"feature_bound .* got 1.5 and a sample of norm 2"):
        Problem(x, y, Logistic(), feature_bound=1.5)
    with pytest.raises(ValueError, match="feature_bound must be finite and > 0"):
        Problem(x, y, Logistic(), feature_bound=0.0)

    def drawn(features):
        return Problem(features, y, Logistic(), feature_bound=1.5).prepare().features

    norms = np.linalg.norm(jax.jit(drawn)(x), axis=-1)
    np.testing.assert_allclose(norms, 1.5, rtol=1e-12)
    np.testing.assert_array_equal(jax.jit(drawn)(0.5 * x), 0.5 * x)


@pytest.mark.slow
@quiet
def test_plots_state_nominal_promises():
    def scenario(key, clips):
        simulation = studied(make_problem(clip=1.0 if clips else None), gradient_bound=1.0)
        problem = simulation.problem
        return fl.Simulation(
            problem, simulation.algorithm, simulation.network, simulation.privacy, ["objective"]
        )

    for clips, text in (
        ([True], ""),
        ([True, False], "some privacy nominal"),
        ([False], "privacy nominal"),
    ):
        study = fl.sweep(scenario, rounds=3, seeds=2, grid={"clips": fl.static(clips)})
        ax = fl.plotting.learning_curves(study, "objective")
        text_shown = " ".join(t.get_text() for t in ax.texts)
        assert (text in text_shown) if text else ("nominal" not in text_shown)
        plt.close(ax.figure)


# Every grid point -------------------------------------------------------------------------------


def test_privacy_is_checked_at_every_point_of_a_large_grid():
    def scenario(key, epsilon, decay, penalty):
        return fl.Simulation(
            make_problem(clip=1.0),
            ZCDPNFL(penalty, 0.5),
            make_network(),
            ApproximateDP(epsilon, 1e-5, decay, rule="geometric"),
        )

    grid = {
        "epsilon": [48.0, 0.1, 0.2, 0.3],
        "decay": [0.99, 0.9, 0.8, 0.01],  # 48 meets 0.01 off the diagonal
        "penalty": [1.0 + i for i in range(8)],
    }
    with pytest.raises(ValueError, match="epsilon must be") as caught:
        fl.sweep(scenario, rounds=20, seeds=1, grid=grid)
    assert "'epsilon': 48.0" in caught.value.__notes__[-1]
    negative = {"epsilon": [0.1, 0.2], "decay": [0.9] * 1, "penalty": [1.0 + i for i in range(60)]}

    def shifted(key, epsilon, decay, penalty):
        return scenario(key, jnp.where(penalty > 59.5, -1.0, epsilon), decay, penalty)

    with pytest.raises(ValueError, match="epsilon must be finite and > 0"):
        fl.sweep(shifted, rounds=20, seeds=1, grid=negative)


# What is outside of the ledger ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thin(3, every=16)
@pytest.mark.parametrize(
    ("algorithm", "network", "field"),
    [
        (ZCDPNFL(1.0, 0.5), make_network(), lambda s: s.sent),
        (ZCDPGradNFL(0.1), make_network(), lambda s: s.sent),
        (PADMM(1.0), make_network(), lambda s: s.sent),
        (ConventionalFL(0.1), None, lambda s: jnp.broadcast_to(s.model, (CLIENTS, 3))),
        (GFL(1.0), FEDERATION, lambda s: s.server[jnp.asarray([0, 0, 1, 1, 1]), 0]),
        (fl.algorithms.GraphFedAvg(0.1), FEDERATION, lambda s: s.model),
    ],
)
@quiet
def test_metrics_of_released_models_read_public_fields(algorithm, network, field):
    states = []

    def keep(now):
        jax.debug.callback(lambda *leaves: states.append(leaves), *jax.tree.leaves(now.state))
        return jnp.sum(now.model)

    metric = fl.metrics.Metric("sum", keep, "sum of the models")
    arguments = (make_problem(), algorithm, network, ZCDP(1.0), [metric])
    released = fl.run(fl.Simulation(*arguments, model="released"), 3)
    jax.effects_barrier()
    structure = jax.tree.structure(
        jax.eval_shape(lambda: algorithm.init(make_problem().prepare(), network))
    )
    expected = [jnp.sum(field(jax.tree.unflatten(structure, leaves))) for leaves in states]
    np.testing.assert_allclose(np.sort(released["sum"]), np.sort(expected), rtol=1e-12)
    assert not bool(released.exact_model)
    exact = fl.run(fl.Simulation(*arguments), 3)
    server = isinstance(algorithm, ConventionalFL | fl.algorithms.GraphFedAvg)
    assert bool(exact.exact_model) is not server
    if not server:
        assert (exact["sum"].values != released["sum"].values).all()
        assert (exact.model.values != released.model.values).any()


def test_released_models_of_an_algorithm_without_any_are_refused():
    with pytest.raises(ValueError, match="does not say which of its models the network may see"):
        fl.Simulation(make_problem(), fl.algorithms.LocalOnly(0.1), model="released")
    with pytest.raises(ValueError, match="model"):
        fl.Simulation(make_problem(), ConventionalFL(0.1), model="noisy")


def test_a_private_run_does_not_end_by_its_metrics():
    def scenario(key):
        arguments = (make_problem(clip=1.0), ZCDPNFL(1.0, 0.5), make_network(), ZCDP(1.0))
        return fl.Simulation(*arguments, ["objective"])

    with pytest.raises(ValueError, match="until= ends runs by their metrics"):
        fl.sweep(scenario, rounds=4, seeds=1, until={"objective": 0.1})


# Noise of one's own -----------------------------------------------------------------------------


@pytest.mark.slow
def test_one_seed_at_two_budgets_shares_its_noise_by_default():
    def scenario(key, budget):
        arguments = (make_problem(clip=1.0), ZCDPNFL(1.0, 0.5), make_network(), ZCDP(budget))
        return fl.Simulation(*arguments, model="released")

    def studied(budgets, **options):
        grid = {"budget": budgets}
        study = fl.sweep(scenario, rounds=1, seeds=3, grid=grid, keep_models=True, **options)
        return study.model

    noiseless = studied([1e12]).isel(budget=0)  # all but without noise
    common = studied([0.5, 2.0])
    independent = studied([0.5, 2.0], independent_noise=True)
    shared, separate = (
        (m - noiseless).values * np.sqrt([0.5, 2.0])[:, None, None, None]
        for m in (common, independent)
    )
    np.testing.assert_allclose(shared[0], shared[1], rtol=1e-4)
    correlation = np.corrcoef(separate[0].ravel(), separate[1].ravel())[0, 1]
    assert abs(correlation) < 0.5
    assert np.std(separate) == pytest.approx(np.std(shared), rel=0.5)
    # It depends on the point itself: not on the order of the grid or what else is in it.
    again = studied([3.0, 2.0], independent_noise=True, block=1)
    np.testing.assert_array_equal(again.sel(budget=2.0), independent.sel(budget=2.0))


def first_noise(
    budgets=(0.01,), rounds=5, clip=1.0, target=1e3, step=0.1, participation="all", **options
):
    """``[budget, seed, D]``: what hides the first message of two clients, in its deviations."""

    def scenario(key, budget):
        problem = Problem(np.ones((2, 1, 4)), np.full((2, 1), target), LeastSquares())
        deviation = 2 * step * clip / jnp.sqrt(2 * budget / rounds)

        def noise(now):
            return (now.shared - step * clip / 2) / deviation  # a gradient as long as the clip

        return fl.Simulation(
            problem.clipped(clip),
            ConventionalFL(step),
            privacy=ZCDP(budget, gradient_bound=clip),
            participation=None if participation == "all" else fl.participation.Bernoulli(1.0),
            metrics=[fl.metrics.Metric("noise", noise, "", dims=("parameter",), decibel=False)],
        )

    options = {"grid": {"budget": list(budgets)}, "seeds": 2, "progress": False} | options
    study = fl.sweep(scenario, rounds=rounds, independent_noise=True, **options)
    return study.noise.isel(round=0).values


@pytest.mark.slow
def test_different_studies_have_different_noise_and_equal_ones_the_same():
    """Noise that two studies shared at two sizes would cancel; here the studies differ in any one
    setting.
    """
    studies = {
        "": first_noise(),
        "rounds": first_noise(rounds=10),
        "budget": first_noise([0.02]),
        "clip": first_noise(clip=2.0),
        "data": first_noise(target=2e3),
        "algorithm": first_noise(step=0.05),
        "participation": first_noise(participation="each"),
        "root": first_noise(root=1),
        "generator": first_noise(generator="philox4x32"),
    }
    with configured("jax_enable_x64", False):
        studies["single precision"] = first_noise()
    for name, noise in studies.items():
        assert 0.3 < np.std(noise) < 3, name  # it is noise, and no remainder of a message
    drawn = np.array([noise[0] for noise in studies.values()]).reshape(-1, 4)  # of each seed
    difference = np.abs(drawn[:, None] - drawn).max(axis=2)
    assert difference[~np.eye(len(drawn), dtype=bool)].min() > 0.01
    same = studies[""]
    np.testing.assert_allclose(first_noise([0.01, 0.5])[:1], same, rtol=1e-12)
    np.testing.assert_allclose(first_noise([0.5, 0.01], block=1)[1:], same, rtol=1e-12)
    np.testing.assert_allclose(first_noise(seeds=[1], workers=1)[:, 0], same[:, 1], rtol=1e-12)


# The ledger -------------------------------------------------------------------------------------


@pytest.mark.core
def test_the_ledger_sums_exactly_in_single_precision():
    term = jnp.float32(1e-4) * 3

    def add(spent, _):
        return _add_to_ledger(spent, term[None]), None

    rounds = 300_000
    spent = jax.jit(lambda: jax.lax.scan(add, jnp.zeros((2, 1), jnp.float32), length=rounds)[0])()
    plain = jax.jit(lambda: jax.lax.fori_loop(0, rounds, lambda _, s: s + term, jnp.float32(0)))()
    exact = float(term) * rounds
    assert abs(float(spent.sum()) / exact - 1) < 2e-7
    assert abs(float(plain) / exact - 1) > 1e-4  # otherwise the test has no power


@pytest.mark.slow
@quiet
def test_every_client_has_a_separate_ledger():
    """Each server draws one of its clients a round; only the drawn client spends."""

    def scenario(key):
        arguments = (make_problem(), PGFL(0.9, clients_per_server=1), FEDERATION, ZCDP(2.0, 0.9))
        return fl.Simulation(*arguments)

    study = fl.sweep(scenario, rounds=6, seeds=3, keep_models=True)
    assert study.client_rho.dims == ("seed", "client")
    np.testing.assert_allclose(
        study.client_rho.max("client"), study.privacy_rho.isel(round=-1), rtol=1e-12
    )
    servers = study.client_rho.values.reshape(3, CLIENTS)
    np.testing.assert_allclose(servers[:, :2].sum(1), 2.0, rtol=1e-12)
    np.testing.assert_allclose(servers[:, 2:].sum(1), 2.0, rtol=1e-12)
    assert np.ptp(servers) > 0
    alone = fl.run(scenario(None), 6)
    assert alone.client_rho.dims == ("client",)
    assert "client_rho" not in fl.sweep(scenario, rounds=6, seeds=1)


@pytest.mark.slow
def test_points_without_privacy_are_neither_nominal_nor_private():
    def scenario(key, algorithm):
        private = isinstance(algorithm, ZCDPNFL)
        arguments = (
            make_problem(clip=1.0) if private else make_problem(),
            algorithm,
            make_network(),
        )
        return fl.Simulation(*arguments, ZCDP(1.0) if private else None)

    grid = {"algorithm": [ZCDPNFL(1.0, 0.5), fl.algorithms.NetworkedADMM(1.0)]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", fl.AssumptionWarning)
        study = fl.sweep(scenario, rounds=3, seeds=2, grid=grid)
    assert not study.nominal.any()
    np.testing.assert_array_equal(study.exact_model, [[True, True], [False, False]])


# Signal and noise, and what others count with ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("privacy", "variance"), [(ZCDP(2.0, 0.9), 1.0), (fl.privacy.PureDP(3.0), 2.0)]
)
@quiet
def test_the_signal_to_noise_is_that_of_the_messages(privacy, variance):
    algorithm = ZCDPNFL(0.9, 0.5)
    network = make_network()
    key = as_key(3)
    problem = make_problem(clip=1.0)
    arguments = (problem, algorithm, network, privacy, ["signal_to_noise"])
    run = fl.run(fl.Simulation(*arguments), 4, key)
    states = []

    def keep(now):
        jax.debug.callback(lambda *model: states.append(model), now.model)
        return jnp.sum(now.model)

    metric = fl.metrics.Metric("sum", keep, "sum")
    fl.run(fl.Simulation(*arguments[:4], [metric]), 4, key)
    jax.effects_barrier()
    gap = gap_of(problem)
    plan = privacy.plan(lambda n: algorithm.sensitivity(problem, network, n, gap), 4)
    models = sorted((np.asarray(m) for (m,) in states), key=lambda m: np.abs(m).sum())
    expected = []
    for n in range(1, 5):
        sensitivity = algorithm.sensitivity(problem, network, jnp.asarray(n), gap)
        scale = np.asarray(privacy.release(plan, sensitivity, jnp.asarray(n), 4, 3).scale)
        ratios = [np.sort(np.mean(m**2, axis=1) / scale**2 / variance)[2] for m in models]
        expected.append(ratios)
    result = run.signal_to_noise.values
    assert all(np.isclose(f, e, rtol=1e-9).any() for f, e in zip(result, expected, strict=True))


def test_a_signal_without_noise_is_refused():
    with pytest.raises(ValueError, match=r"signal_to_noise.*needs private messages"):
        fl.Simulation(make_problem(), ConventionalFL(0.1), metrics=["signal_to_noise"])


@pytest.mark.slow
def test_only_senders_have_a_signal():
    arguments = (make_problem(), PGFL(0.9, clients_per_server=1), FEDERATION, ZCDP(2.0))
    simulation = fl.Simulation(*arguments)
    now = fl.view(simulation)
    simulation.algorithm.step(simulation.algorithm.init(now.problem, FEDERATION), now)
    assert np.isfinite(now.link.signal_to_noise).sum() == 2


@pytest.mark.parametrize(
    ("neighbors", "theirs"),
    [
        ("replace", "REPLACE_ONE"),
        ("add-or-remove", "REPLACE_SPECIAL"),
        ("client", "REPLACE_ONE"),
    ],
)
def test_the_spent_budget_is_one_event(neighbors, theirs):
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    event = fl.privacy.accounting.gaussian_event(0.3, neighbors)
    assert isinstance(event, dp_accounting.GaussianDpEvent)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation[theirs])
    result = accountant.compose(event).get_epsilon(1e-5)
    tight = fl.privacy.accounting.zcdp_epsilon(0.3, 1e-5, "gaussian")
    assert tight <= result <= 1.01 * tight
    with pytest.raises(ValueError, match="rho must be"):
        fl.privacy.accounting.gaussian_event(0.0, neighbors)
    with pytest.raises(ValueError, match="unknown neighbors 'swap'; known: replace"):
        fl.privacy.accounting.gaussian_event(0.3, "swap")
