"""Servers against another library's own code, where it is installed: Flower.

Its strategies are NumPy on the messages of a round, and run here as they are, by their own
``start``, with nodes that answer immediately: the models after some rounds are compared, from the
same data and numbers, and agree up to rounding errors. Differences by definition are removed, by an
argument of theirs if possible:

- Second moments of their adaptive servers begin at zero, in the paper at the square of the
  adaptivity at least; here they are given that.
- Their FedAdam corrects the bias of its moments, which the paper's does not, and does it as if one
  round had been before: with exponents of n + 1 in round n. Ours gets their step sizes as a
  schedule.
- Their q-FedAvg adds 1e-10 to a loss.
- Their multi-Krum averages by numbers of samples, which a sender may invent. Ours counts messages
  equally, as the paper does; so do the nodes here.
- Their Bulyan selects all messages by one set of scores. In the paper they are selected one after
  the other, by scores among the remaining ones; so does the rule that the test passes.
- Their trimmed mean rounds a share of messages down as it comes: 0.29 of 100 is 28.
- Their clip that adapts counts the updates that it clips, where the paper counts the others: the
  more are clipped, the smaller it gets.
- Their noise on a mean is that of equal weights, for any weights. Ours refuses unequal ones.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax._core.numerics import default_promotion
from fljax.algorithms import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedOpt,
    FedProx,
    FedYogi,
    QFedAvg,
)
from fljax.link.aggregation import Bulyan, Krum, Median, TrimmedMean
from fljax.privacy import AdaptiveClip, CentralGaussian

app = pytest.importorskip("flwr.app")
theirs = pytest.importorskip("flwr.serverapp.strategy")  # on messages, since 1.21
krum = pytest.importorskip("flwr.serverapp.strategy.multikrum")
trimmed = pytest.importorskip("flwr.serverapp.strategy.fedtrimmedavg")
private = pytest.importorskip("flwr.supercore.differential_privacy")
identity = pytest.importorskip("flwr.supercore.task_identity")

K = 11
DIM = 6
ROUNDS = 8
STEP = 0.05
STEPS = 3
TAU = 0.02
RNG = np.random.default_rng(0)
SAMPLES = RNG.integers(8, 20, size=K)
DATA = [(RNG.normal(size=(n, DIM)), RNG.normal(size=n)) for n in SAMPLES]
for _x, _y in DATA[:2]:
    _y *= 20  # whom robust servers leave out, and private ones clip
PROBLEM = fl.problems.from_clients(DATA, fl.problems.LeastSquares())


class Nodes:
    """Answer a strategy's messages immediately, by gradient steps in NumPy."""

    def get_node_ids(self):
        return range(1, K + 1)

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        x, y = DATA[message.metadata.dst_node_id - 1]
        attraction = message.content["config"].get("proximal-mu", 0.0)
        start = model = row(message.content["arrays"])
        for _ in range(STEPS):
            gradient = 2 / len(y) * x.T @ (x @ model - y)
            model = model - STEP * (gradient + attraction * (model - start))
        metrics = {
            "num-examples": len(y),
            "alike": 1,
            "train_loss": np.mean((y - x @ start) ** 2).item() - 1e-10,
        }
        content = {"arrays": record(model), "metrics": app.MetricRecord(metrics)}
        return app.Message(app.RecordDict(content), reply_to=message)


def record(model):
    """A model in two arrays, as of a layer's weights and bias."""
    return app.ArrayRecord([model[:4].reshape(2, 2), model[4:]])


def row(arrays):
    return np.concatenate([array.ravel() for array in arrays.to_numpy_ndarrays()])


def served(strategy, rounds):
    return row(strategy.start(Nodes(), record(np.zeros(DIM)), num_rounds=rounds).arrays)


def make(name, equal_weights=True, **options):
    weighted = {"weighted_by_key": "alike"} if equal_weights else {}
    return getattr(theirs, name)(fraction_evaluate=0.0, **weighted, **options)


def adaptive(name, **options):
    strategy = make(name, eta=0.1, tau=TAU, **options)
    strategy.v_t = {key: np.full_like(array, TAU**2) for key, array in zeros().items()}
    return strategy


def zeros():
    return {key: array.numpy() for key, array in record(np.zeros(DIM)).items()}


def one_by_one(contents, attackers, wanted):
    """Krum among the remaining messages, with two neighbors at least."""
    left = list(contents)
    chosen = []
    while len(chosen) < wanted:
        (best,) = krum.select_multikrum(left, min(attackers, len(left) - 4), 1)
        chosen.append(best)
        left = [content for content in left if content is not best]
    return chosen


class Unclipped(theirs.DifferentialPrivacyServerSideAdaptiveClipping):
    """Counts the updates that were not clipped."""

    def _geometric_update(self, clipped_fraction):
        super()._geometric_update(1 - clipped_fraction)


LOCAL: dict[str, Any] = {"step_size": STEP, "local_steps": STEPS, "weighting": "equal"}
ADAPTIVE: dict[str, Any] = {"adaptivity": TAU, **LOCAL}


def corrected(n):
    n = n.astype(float)
    return 0.1 * (1 - 0.95 ** (n + 1)) ** 0.5 / (1 - 0.8 ** (n + 1))


#: Ours, with other parts of its simulation, and theirs.
SERVERS = {
    "FedAvg": (
        FedAvg(STEP, local_steps=STEPS, weighting="samples"),
        {},
        lambda: make("FedAvg", equal_weights=False),
    ),
    "FedProx": (
        FedProx(**LOCAL, attraction=0.5),
        {},
        lambda: make("FedProx", proximal_mu=0.5),
    ),
    "FedAvgM": (
        FedAvgM(**LOCAL, momentum=0.7),
        {},
        lambda: make("FedAvgM", server_momentum=0.7),
    ),
    "FedAvgM, own step size": (
        FedOpt(**LOCAL, server=optax.sgd(0.6, momentum=0.7)),
        {},
        lambda: make("FedAvgM", server_momentum=0.7, server_learning_rate=0.6),
    ),
    "FedAdagrad": (
        FedAdagrad(**ADAPTIVE, server_step_size=0.1),
        {},
        lambda: adaptive("FedAdagrad"),
    ),
    "FedAdam": (
        FedAdam(**ADAPTIVE, server_step_size=corrected, momentum=0.8, decay=0.95),
        {},
        lambda: adaptive("FedAdam", beta_1=0.8, beta_2=0.95),
    ),
    "FedYogi": (
        FedYogi(**ADAPTIVE, server_step_size=0.1, momentum=0.8, decay=0.95),
        {},
        lambda: adaptive("FedYogi", beta_1=0.8, beta_2=0.95),
    ),
    "q-FedAvg": (
        QFedAvg(**LOCAL, fairness=1.5),
        {},
        lambda: make("QFedAvg", client_learning_rate=STEP, q=1.5),
    ),
    "median": (FedAvg(**LOCAL), {"aggregation": Median()}, lambda: make("FedMedian")),
    "trimmed mean": (
        FedAvg(**LOCAL),
        {"aggregation": TrimmedMean(0.2)},
        lambda: make("FedTrimmedAvg", beta=0.2),
    ),
    "Krum": (
        FedAvg(**LOCAL),
        {"aggregation": Krum(attackers=2)},
        lambda: make("Krum", num_malicious_nodes=2),
    ),
    "multi-Krum": (
        FedAvg(**LOCAL),
        {"aggregation": Krum(attackers=2, select=5)},
        lambda: make("MultiKrum", num_malicious_nodes=2, num_nodes_to_select=5),
    ),
    "Bulyan": (
        FedAvg(**LOCAL),
        {"aggregation": Bulyan(attackers=2)},
        lambda: make("Bulyan", num_malicious_nodes=2, selection_rule=one_by_one),
    ),
    "clipped": (
        FedAvg(**LOCAL),
        {"privacy": CentralGaussian(1e-15, clip=0.3)},
        lambda: theirs.DifferentialPrivacyServerSideFixedClipping(make("FedAvg"), 0.0, 0.3, K),
    ),
    "adaptively clipped": (
        FedAvg(**LOCAL),
        {"privacy": CentralGaussian(1e-15, AdaptiveClip(0.1, 0.6, 0.3, share_noise=1e-15))},
        lambda: Unclipped(make("FedAvg"), 0.0, K, 0.1, 0.6, 0.3),
    ),
}


@pytest.fixture
def running(monkeypatch):
    """Their messages name the run and the node that they come from."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(identity.TaskIdentity, name, 1)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("name", SERVERS)
def test_servers_equal_flower(name):
    ours, parts, strategy = SERVERS[name]
    model = fl.run(fl.Simulation(PROBLEM, ours, **parts), ROUNDS).model.values[0]
    np.testing.assert_allclose(model, served(strategy(), ROUNDS), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("attackers", "select"), [(2, 1), (3, 4)])
def test_krum_selects_flowers_choice(attackers, select):
    """Among messages that are drawn, where the number of neighbors decides."""
    drawn = np.random.default_rng(1).normal(size=(60, K, DIM))
    weights = jnp.ones((60, K))
    reference = jnp.zeros((60, DIM))
    ours = Krum(attackers, select).combine(jnp.asarray(drawn), weights, reference)
    for mean, messages in zip(ours, drawn, strict=True):
        contents = [app.RecordDict({"arrays": record(message)}) for message in messages]
        best = krum.select_multikrum(contents, attackers, select)
        expected = np.mean([row(content["arrays"]) for content in best], axis=0)
        np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-14)


def test_noise_equals_flowers():
    """Noise on a mean over this many clients, with a fixed and with an adaptive clip."""
    everyone = fl.participation.Everyone()
    clip = 0.3
    multiplier = 1.2
    plan = CentralGaussian(multiplier, clip).plan(everyone, K, rounds=1)
    ours = plan.update_noise * clip / plan.expected
    np.testing.assert_allclose(ours, private.compute_stdv(multiplier, clip, K), rtol=1e-14)

    adaptive = CentralGaussian(multiplier, AdaptiveClip(share_noise=0.2)).plan(
        everyone, K, rounds=1
    )
    of_count, of_updates = private.compute_adaptive_noise_params(multiplier, K, 0.2 * K)
    np.testing.assert_allclose(adaptive.share_noise, of_count, rtol=1e-14)
    np.testing.assert_allclose(adaptive.update_noise, of_updates, rtol=1e-14)


@pytest.mark.parametrize(("share", "cut"), [(0.2, 0.2), (0.29, 0.28)])
def test_a_trimmed_share_equals_flowers_up_to_rounding(share, cut):
    """Ours takes 29 of 100 for a share of 0.29, theirs 28."""
    messages = np.random.default_rng(0).normal(size=(100, DIM))
    weights = np.ones((1, 100))
    reference = np.zeros((1, DIM))
    ours = TrimmedMean(cut).combine(*map(jnp.asarray, (messages[None], weights, reference)))[0]
    np.testing.assert_allclose(ours, trimmed.trim_mean(messages, share), rtol=0, atol=1e-14)


# Networks with batch normalization, whose statistics are averaged with the parameters -------------


class FlaxNodes(Nodes):
    """Clients with networks of flax: all that a message brings is trained on, and sent back."""

    def __init__(self, network, data, template):
        self.network = network
        self.data = data
        self.structure = jax.tree.structure(template)

    def get_node_ids(self):
        return range(1, len(self.data) + 1)

    def answer(self, message):
        x, y = self.data[message.metadata.dst_node_id - 1]
        leaves = message.content["arrays"].to_numpy_ndarrays()
        variables = jax.tree.unflatten(self.structure, map(jnp.asarray, leaves))
        for _ in range(STEPS):
            variables = self.trained(variables, x, y)
        content = {
            "arrays": app.ArrayRecord([np.asarray(leaf) for leaf in jax.tree.leaves(variables)]),
            "metrics": app.MetricRecord({"num-examples": len(y), "train_loss": 0.0}),
        }
        return app.Message(app.RecordDict(content), reply_to=message)

    def trained(self, variables, x, y):
        def loss(parameters):
            logits, state = self.network.apply(
                {**variables, "params": parameters}, x, train=True, mutable=["batch_stats"]
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return jnp.mean(losses), state

        with default_promotion():
            gradient, state = jax.grad(loss, has_aux=True)(variables["params"])
        moved = jax.tree.map(lambda w, g: w - STEP * g, variables["params"], gradient)
        return {"params": moved, **state}


@pytest.mark.usefixtures("running")
def test_running_statistics_are_averaged_as_flower_does():
    """Flower's strategy averages all that a client sends: parameters and running means."""
    linen = pytest.importorskip("flax.linen")

    class Normalized(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            x = linen.Dense(5, param_dtype=float)(x)
            x = linen.BatchNorm(
                use_running_average=not train,
                momentum=0.7,
                dtype=float,
                param_dtype=float,
                force_float32_reductions=False,
            )(x)
            return linen.Dense(3, param_dtype=float)(linen.relu(x))

    network = Normalized()
    rng = np.random.default_rng(1)
    data = [(rng.normal(size=(12, DIM)), rng.integers(0, 3, 12)) for _ in range(4)]
    problem = fl.problems.Model.from_clients(
        fl.models.linen(network), jax.random.key(0), data, fl.problems.Softmax(3)
    )
    start = {
        "params": problem.parameters(problem.initial),
        "batch_stats": jax.tree.map(lambda leaf: leaf[0], problem.initial_state())["batch_stats"],
    }
    arrays = app.ArrayRecord([np.asarray(leaf) for leaf in jax.tree.leaves(start)])
    strategy = theirs.FedAvg(fraction_evaluate=0.0)
    nodes = FlaxNodes(network, data, start)
    results = strategy.start(nodes, arrays, num_rounds=ROUNDS).arrays.to_numpy_ndarrays()
    expected = jax.tree.unflatten(jax.tree.structure(start), results)

    algorithm = FedAvg(STEP, local_steps=STEPS, weighting="samples")
    run = fl.run(fl.Simulation(problem, algorithm), ROUNDS)
    parameters = problem.layout.row(expected["params"])
    np.testing.assert_allclose(run.model.values[0], parameters, rtol=0, atol=1e-12)
    state = problem.network_state(run.network_state.values)["batch_stats"]
    for ours, other in zip(
        jax.tree.leaves(state), jax.tree.leaves(expected["batch_stats"]), strict=True
    ):
        np.testing.assert_allclose(ours, other, rtol=0, atol=1e-12)
        assert np.abs(np.asarray(other)).max() > 0.1
