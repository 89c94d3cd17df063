"""Arrays of other shapes than documented from a user's own parts are refused, not broadcast."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import fljax as fl


def run(problem=None, **parts):
    if problem is None:
        problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
    return fl.run(fl.Simulation(problem, fl.algorithms.FedAvg(0.1), **parts), rounds=2)


@fl.module
class OwnAggregator(fl.aggregation.Aggregator):
    result: str = fl.static(default="row")

    def combine(self, messages, weights, reference):
        return {
            "row": jnp.mean(messages, axis=1),
            "number": jnp.mean(messages, axis=(1, 2)),
            "messages": messages,
            "tuple": (reference,),
        }[self.result]


@pytest.mark.parametrize("result", ["number", "messages", "tuple"])
def test_an_aggregator_returns_one_row_for_each_receiver(result):
    with pytest.raises(ValueError, match=r"OwnAggregator.combine must return an array of shape"):
        run(aggregation=OwnAggregator(result))
    run(aggregation=OwnAggregator("row"))


def test_an_aggregator_of_peers_returns_one_row_as_well():
    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
    algorithm = fl.algorithms.DGD(0.1)
    network = fl.graphs.ring(4)
    for result in ("row", "number"):
        simulation = fl.Simulation(problem, algorithm, network, aggregation=OwnAggregator(result))
        if result == "row":
            fl.run(simulation, rounds=2)
            continue
        with pytest.raises(ValueError, match=r"combine must return an array of shape \(1, 2\)"):
            fl.run(simulation, rounds=2)


@fl.module
class OwnAttack(fl.attacks.Attack):
    result: str = fl.static(default="rows")

    def forge(self, key, messages, attacking, sending, reference):
        return {
            "rows": -messages,
            "row": jnp.zeros((1, messages.shape[1])),
            "number": jnp.zeros(()),
            "column": jnp.zeros((messages.shape[0], 1)),
        }[self.result]


@pytest.mark.parametrize("result", ["number", "column"])
def test_an_attacker_s_message_has_the_honest_length(result):
    first = fl.attacks.first(1, 4)
    with pytest.raises(ValueError, match=r"OwnAttack.forge must return an array of shape"):
        run(attack=OwnAttack(first, result))
    for allowed in ("rows", "row"):
        run(attack=OwnAttack(first, allowed))


@fl.module
class OwnMap:
    width: int = fl.static()
    dim: int = fl.static(default=3)

    def __call__(self, features):
        return jnp.ones((*features.shape[:-1], self.width)) * features[..., :1]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_feature_map_returns_its_declared_number_of_features(width):
    ridge = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)

    def mapped(width):
        return fl.problems.Problem(
            ridge.features, ridge.targets, fl.problems.LeastSquares(), feature_map=OwnMap(width)
        )

    with pytest.raises(ValueError, match=r"feature_map must return an array of shape \(4, 5, 3\)"):
        run(mapped(width))
    run(mapped(3))


@pytest.mark.parametrize("shape", [(), (7,), (4, 1)], ids=["number", "long", "column"])
def test_a_stream_s_target_is_one_number_of_each_row(shape):
    def target(inputs):
        return jnp.ones(shape)

    stream = fl.streams.Autoregressive(*jnp.full((4, 4), 0.5), target=target)
    with pytest.raises(ValueError, match=r"target must return an array of shape \(4,\), got"):
        fl.run(fl.Simulation(stream, fl.algorithms.OnlineFed(0.1)), rounds=2)


LOSSES = {
    "mean": lambda prediction, target: jnp.mean((prediction - target) ** 2),
    "number": lambda prediction, target: 0.5,
    "column": lambda prediction, target: (prediction - target)[..., None] ** 2,
    "text": lambda prediction, target: "text",
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_plain_loss_of_linear_predictions_is_one_number_of_each_sample(name):
    """The mean over all samples has a gradient that is too small by their number."""
    ridge = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
    with pytest.raises((TypeError, ValueError), match=r"the loss (must return|has no value for)"):
        fl.problems.Problem(ridge.features, ridge.targets, fl.problems.FunctionLoss(LOSSES[name]))


@pytest.mark.parametrize("name", ["prediction", "mean", "number"])
def test_whether_a_prediction_is_right_is_a_boolean_of_each_sample(name):
    right = {
        "prediction": lambda prediction, target: prediction,
        "mean": lambda prediction, target: jnp.mean(prediction == target),
        "number": lambda prediction, target: 1.0,
    }[name]
    ridge = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
    loss = fl.problems.FunctionLoss(lambda prediction, target: (prediction - target) ** 2, right)

    def tested():
        held_out = fl.problems.Problem(ridge.features, ridge.targets, loss)
        run(dataclasses.replace(held_out, test=held_out), metrics="accuracy")

    with pytest.raises((TypeError, ValueError), match="the function right must return"):
        tested()


FLIPS = {
    "sum": jnp.sum,
    "number": lambda labels: 1.0,
    "text": lambda labels: "text",
    "nothing": lambda labels: None,
    "column": lambda labels: labels[:, :1],
}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_flipped_labels_are_as_many_as_before(flip):
    ridge = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
    with pytest.raises(ValueError, match=r"flip must return an array of shape \(4, 5\), got"):
        fl.attacks.poison_labels(ridge, fl.attacks.first(1, 4), flip)
