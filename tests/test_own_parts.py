"""Arrays of other shapes than documented from a user's own parts are refused, not broadcast."""

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

    def combine(self, messages, weights, around):
        return {
            "row": jnp.mean(messages, axis=1),
            "number": jnp.mean(messages, axis=(1, 2)),
            "messages": messages,
            "tuple": (around,),
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

    def lie(self, key, messages, attacking, sending, around):
        return {
            "rows": -messages,
            "row": jnp.zeros((1, messages.shape[1])),
            "number": jnp.zeros(()),
            "column": jnp.zeros((messages.shape[0], 1)),
        }[self.result]


@pytest.mark.parametrize("result", ["number", "column"])
def test_an_attacker_s_message_is_as_long_as_the_others(result):
    first = fl.attacks.first(1, 4)
    with pytest.raises(ValueError, match=r"OwnAttack.lie must return an array of shape"):
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
def test_a_feature_map_returns_as_many_features_as_it_says(width):
    ridge = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)

    def mapped(width):
        return fl.problems.Problem(
            ridge.features, ridge.targets, fl.problems.LeastSquares(), feature_map=OwnMap(width)
        )

    with pytest.raises(ValueError, match=r"feature_map must return an array of shape \(4, 5, 3\)"):
        run(mapped(width))
    run(mapped(3))
