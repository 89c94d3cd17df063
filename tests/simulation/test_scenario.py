"""One run: its records, and no new compilation for new numbers."""

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.problems import optimum
from fljax.simulation import running

pytestmark = pytest.mark.core

K = 6
D = 2


def make(penalty=1.0, seed=0, **kwargs):
    k_graph, k_data = jax.random.split(jax.random.key(seed))
    return fl.Simulation(
        **{
            "problem": fl.problems.ridge(k_data, clients=K, samples=10, dim=D),
            "network": fl.graphs.random_connected(k_graph, nodes=K, mean_degree=3),
            "algorithm": fl.algorithms.ZCDPNFL(penalty, 0.3),
            "metrics": [
                name
                for name, m in fl.metrics.METRICS.items()
                if set(m.needs) <= {"optimum", "data"} and name != "level_bits"  # of a tree
            ],
        }
        | kwargs
    )


@pytest.mark.slow
def test_metrics_equal_their_definitions():
    simulation = make()
    run = fl.run(simulation, rounds=7)
    model = run.model.values
    best = np.asarray(optimum(simulation.problem))
    distance = ((model - best) ** 2).sum(1)
    last = run.isel(round=-1)
    np.testing.assert_allclose(last.normalized_error, distance.sum() / (best**2).sum())
    np.testing.assert_allclose(last.mean_square_deviation, distance.mean())
    spread = ((model - model.mean(0)) ** 2).sum(1).mean()
    np.testing.assert_allclose(last.consensus_error, spread)
    x = np.asarray(simulation.problem.features)
    y = np.asarray(simulation.problem.targets)

    def total(w):
        return ((x @ w - y) ** 2).mean(1).sum() + (w**2).sum()

    np.testing.assert_allclose(last.objective, total(model.mean(0)))
    np.testing.assert_allclose(last.suboptimality, total(model.mean(0)) - total(best), rtol=1e-9)
    assert (run.suboptimality >= 0).all()
    mean = model.mean(0)
    gradient = 2 * np.einsum("ksd,ks->d", x, x @ mean - y) / x.shape[1] + 2 * mean
    np.testing.assert_allclose(last.squared_gradient_norm, (gradient**2).sum())


@pytest.mark.slow
def test_new_numbers_keys_and_data_reuse_the_program():
    fl.run(make(1.0, privacy=fl.privacy.ZCDP(1.0)), rounds=4)
    before = running._run.jitted._cache_size()
    for penalty, seed, budget in ((2.0, 1, 3.0), (5, 2, 7)):
        simulation = make(penalty, seed, privacy=fl.privacy.ZCDP(budget))
        fl.run(simulation, rounds=4, key=seed)
    assert running._run.jitted._cache_size() == before


@pytest.mark.slow
def test_the_noise_key_matters_and_repeats():
    simulation = make(privacy=fl.privacy.ZCDP(1.0))
    first, same, other = (fl.run(simulation, rounds=4, key=k) for k in (1, 1, 2))
    np.testing.assert_array_equal(first.model, same.model)
    assert not np.allclose(first.model, other.model)


def test_traffic_is_counted():
    simulation = make()
    run = fl.run(simulation, rounds=3)
    edges = int(simulation.network.edge_count())
    np.testing.assert_array_equal(run.messages, 2 * edges * np.arange(1, 4))
    np.testing.assert_array_equal(run.scalars, 2 * edges * D * np.arange(1, 4))
    server = fl.run(make(algorithm=fl.algorithms.ConventionalFL(0.1), network=None), rounds=3)
    np.testing.assert_array_equal(server.messages, 2 * K * np.arange(1, 4))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"network": None}, ValueError, "zCDP-NFL runs on a graph of the clients; pass network="),
        ({"network": lambda: fl.graphs.ring(K + 1)}, ValueError, "7 nodes but the problem 6"),
        ({"metrics": ["normalized_eror"]}, ValueError, "Did you mean 'normalized_error'"),
        ({"metrics": ["objective", "objective"]}, ValueError, "recorded once"),
        ({"metrics": [3]}, TypeError, "a metric must be a name"),
    ],
)
def test_mismatched_arguments_are_refused(change, error, message):
    change = {k: v() if callable(v) else v for k, v in change.items()}
    with pytest.raises(error, match=message):
        make(**change)


def test_an_algorithm_without_a_private_form_is_refused():
    with pytest.raises(ValueError, match=r"ADMM does not run under ZCDP; it has no private form"):
        make(algorithm=fl.algorithms.NetworkedADMM(1.0), privacy=fl.privacy.ZCDP(1.0))
    with pytest.raises(ValueError, match="it accepts ApproximateDP"):
        make(algorithm=fl.algorithms.EpsilonDeltaNFL(1.0, 0.3), privacy=fl.privacy.ZCDP(1.0))


def test_run_takes_a_simulation():
    with pytest.raises(TypeError, match=r"simulation must be an instance.*got 3"):
        fl.run(3, rounds=2)  # pyright: ignore[reportArgumentType]


def test_a_run_alone_warns_of_divergence():
    simulation = make(algorithm=fl.algorithms.ZCDPGradNFL(100.0), metrics=[])
    with pytest.warns(fl.DivergenceWarning, match="1 of 1 runs diverged"):
        run = fl.run(simulation, rounds=400)
    assert 1 < int(run.diverged) < 400


def test_citations_cover_algorithm_and_privacy():
    text = fl.citation(make(privacy=fl.privacy.ZCDP(1.0)))
    assert "@phdthesis{gauthier2024" in text
    assert "@inproceedings{bun2016" in text
    with pytest.raises(ValueError, match="Did you mean 'nedic2009'"):
        fl.citation("nedich2009")
    with pytest.raises(TypeError, match="nothing to cite for 3"):
        fl.citation(3)


def test_citations_cover_the_parts_once_each():
    attack = fl.attacks.SignFlip(fl.attacks.first(1, K))
    simulation = make(
        algorithm=fl.algorithms.FedAvg(0.1),
        network=None,
        attack=attack,
        aggregation=fl.aggregation.WeightedMean(),
    )
    text = fl.citation(simulation)
    assert text.count("@inproceedings{mcmahan2017") == 1  # of the algorithm, and of the mean
    assert attack.reference in text


def test_algorithms_of_your_own_are_cited_by_their_own_entry():
    @fl.module
    class Mine(fl.algorithms.FedAvg):
        reference = "@misc{me, title = {Mine}}\n"

    @fl.module
    class Unpublished(fl.algorithms.FedAvg):
        reference = None

    assert fl.citation(make(algorithm=Mine(0.1), network=None)) == Mine.reference.strip()
    for subject in (Unpublished, make(algorithm=Unpublished(0.1), network=None)):
        with pytest.raises(TypeError, match="Unpublished states no reference; give its class"):
            fl.citation(subject)


def test_a_part_that_is_not_a_pytree_is_refused():
    class Mine(fl.algorithms.FedAvg):
        pass

    class Loss(fl.problems.LeastSquares):
        pass

    with pytest.raises(TypeError, match=r"algorithm is of class Mine, .* Decorate .* fl\.module"):
        make(algorithm=Mine(0.1), network=None)
    with pytest.raises(TypeError, match="loss is of class Loss, which is no pytree"):
        fl.problems.Problem(np.ones((2, 3, 1)), np.ones((2, 3)), Loss())


def test_a_simulation_is_shown_as_it_was_called_without_its_data():
    problem = fl.problems.ridge(jax.random.key(0), clients=50, samples=40, dim=8)
    simulation = fl.Simulation(
        problem=problem,
        network=fl.graphs.ring(50),
        algorithm=fl.algorithms.ZCDPNFL(3.0, fl.schedules.PowerDecay(0.5)),
        privacy=fl.privacy.ZCDP(total_rho=1.0, decay=0.96),
        metrics=["normalized_error"],
    )
    text = repr(simulation)
    assert text.startswith(
        "Simulation(\n    problem=Problem(\n        features=float64[50,40,8],\n"
    )
    assert "\n    algorithm=ZCDPNFL(penalty=3.0, step_size=PowerDecay(initial=0.5)),\n" in text
    assert "\n    privacy=ZCDP(total_rho=1.0, decay=0.96),\n" in text
    assert max(map(len, text.splitlines())) <= 88
    assert len(text) < 1000
    assert "None" not in text
    shapes = repr(jax.eval_shape(lambda: simulation))
    assert "step_size=PowerDecay(initial=float64[], power=float64[])" in shapes


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (fl.schedules.PowerDecay(0.1), "PowerDecay(initial=0.1)"),
        (fl.schedules.PowerDecay(0.1, 0.7), "PowerDecay(initial=0.1, power=0.7)"),
        (fl.attacks.SignFlip(np.arange(4) < 1), "SignFlip(attackers=bool[4])"),
        (fl.link.Quantize(4), "Quantize(bits_each=4)"),
        (fl.aggregation.Median(), "Median()"),
        (fl.graphs.ring(3), "Graph(nodes=3, adjacency=float64[3,3], degree=float64[3])"),
    ],
)
def test_a_part_is_shown_in_one_line(part, text):
    assert repr(part) == text


def test_a_part_made_before_a_trace_is_shown_within_it():
    part = fl.schedules.PowerDecay(0.1, jax.numpy.asarray(0.5))
    texts = []
    jax.eval_shape(lambda: texts.append(repr(part)))
    assert texts == [repr(part)] == ["PowerDecay(initial=0.1)"]


def test_long_sequences_and_functions_are_shown_in_short():
    @fl.module
    class Own:
        sizes: tuple = fl.static()
        apply: object = fl.static()

    custom = Own(tuple(range(500)), jax.nn.relu)
    assert repr(custom) == "Own(sizes=(0, 1, 2, 3, 4, 5, 6, 7, ... 500 in all), apply=relu)"
    jax.jit(lambda part: [repr(part), None][1])(fl.schedules.PowerDecay(0.1))


def test_a_class_may_define_its_own_repr():
    @fl.module
    class Own:
        size: float = 1.0

        def __repr__(self):
            return "mine"

    assert repr(Own()) == "mine"

    @fl.module
    class Outer:
        inner: Own
        metric: object = fl.static()

    worst = fl.metrics.Metric("worst", jax.numpy.max, "worst client")
    expected = "Outer(inner=mine, metric=Metric(name='worst', measure=max, label='worst client'))"
    assert repr(Outer(Own(), worst)) == expected


@pytest.mark.parametrize(
    "measure",
    [
        lambda now: 1.0 if now.model.sum() > 0 else 0.0,
        lambda now: float(now.model.sum()),
        lambda now: np.median(now.model),
    ],
    ids=["if", "float", "numpy"],
)
def test_a_metric_that_needs_values_while_it_is_compiled_is_named(measure):
    problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=5, dim=2)
    metric = fl.metrics.Metric("mine", measure, "mine")
    with pytest.raises(TypeError, match="metric 'mine' needs the values of arrays"):
        fl.run(fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=[metric]), 2)
