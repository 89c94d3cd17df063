"""Mechanisms by what they declare: a class of one's own, without the library's as a base."""

import dataclasses
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import Needs
from fljax.privacy.mechanism import Mechanism, missing_members
from fljax.privacy.notions import Release
from fljax.simulation.compatibility import PROTOCOLS
from tests.cases.mechanisms import MECHANISMS

PROBLEM = fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=3)


@fl.module
class EqualRounds:
    """Gaussian noise of equal variance in all rounds, without a base class."""

    total_rho: float
    gradient_bound: float = 1.0

    scope = "message"
    ledger = ("rho",)
    neighbors = "replace"
    gaussian_noise = True

    def plan(self, sensitivity, rounds):
        return self.total_rho / rounds

    def release(self, plan, sensitivity, round, rounds, dim):
        return Release(sensitivity / jnp.sqrt(2 * plan), {"rho": jnp.full(len(sensitivity), plan)})

    def draw(self, key, shape, dtype, round, clients):
        return fl.privacy.ZCDP.draw(self, key, shape, dtype, round, clients)


def delegating(inner, protocol):
    """A class with every member of a protocol, which is not a subclass of the library's class."""

    def member(name):
        return property(lambda self: getattr(self.inner, name))

    members = {name: member(name) for name in missing_members(object(), protocol)}
    members |= {"scope": inner.scope, "ledger": inner.ledger, "gaussian_noise": True}
    members["__annotations__"] = {"inner": type(inner)}
    return fl.module(type("Own", (), members))(inner)


def test_a_mechanism_on_messages_needs_no_base_class():
    def simulate(privacy):
        algorithm = fl.algorithms.ConventionalFL(0.1)
        simulation = fl.Simulation(PROBLEM.clipped(1.0), algorithm, privacy=privacy)
        return fl.run(simulation, rounds=4)

    duck_typed, library = simulate(EqualRounds(2.0)), simulate(fl.privacy.ZCDP(2.0))
    np.testing.assert_allclose(duck_typed.model, library.model, rtol=1e-6)
    np.testing.assert_allclose(duck_typed.privacy_rho, library.privacy_rho, rtol=1e-6)


@pytest.mark.parametrize(
    ("inner", "algorithm", "protocol"),
    [
        (
            fl.privacy.CentralGaussian(1.0),
            fl.algorithms.FedAvg(0.1, selector=fl.participation.Fraction(0.5)),
            fl.privacy.ServerMechanism,
        ),
        (
            fl.privacy.NoisyGradients(1.0),
            fl.algorithms.FedDPSGD(0.1, sampling_rate=0.5),
            fl.privacy.GradientMechanism,
        ),
    ],
    ids=["at a server", "on gradients"],
)
def test_a_mechanism_of_another_scope_needs_no_base_class(inner, algorithm, protocol):
    def simulate(privacy):
        return fl.run(fl.Simulation(PROBLEM, algorithm, privacy=privacy), rounds=4)

    duck_typed, library = simulate(delegating(inner, protocol)), simulate(inner)
    np.testing.assert_array_equal(duck_typed.model, library.model)
    assert duck_typed.drop_attrs().equals(library.drop_attrs())
    epsilon = [fl.privacy.spent(results, 1e-5).epsilon.values for results in (duck_typed, library)]
    np.testing.assert_array_equal(*epsilon)


def test_what_a_mechanism_refuses_is_named():
    @fl.module
    class Strict(EqualRounds):
        refuses = MappingProxyType({"losses": "links that fail"})

    parts = {"problem": PROBLEM.clipped(1.0), "algorithm": fl.algorithms.ConventionalFL(0.1)}
    fl.Simulation(**parts, privacy=Strict(1.0))
    match = "no account under Strict for links that fail; leave out privacy= or losses="
    with pytest.raises(ValueError, match=match):
        fl.Simulation(**parts, privacy=Strict(1.0), losses=fl.link.Independent(0.1))


@pytest.mark.parametrize("part", ["delays", "aggregation", "attack", "masks"])
def test_a_trusted_server_refuses_what_its_account_does_not_cover(part):
    parts = {
        "delays": fl.link.Geometric(0.5, 2),
        "aggregation": fl.aggregation.Median(),
        "attack": fl.attacks.SignFlip(fl.attacks.first(1, 6)),
        "masks": fl.link.SecureAggregation(10.0),
    }
    with pytest.raises(ValueError, match=f"leave out privacy= or {part}="):
        fl.Simulation(
            PROBLEM,
            fl.algorithms.FedAvg(0.1, weighting="equal"),
            privacy=fl.privacy.CentralGaussian(1.0),
            honest_only=True,
            **{part: parts[part]},
        )


@pytest.mark.parametrize("scope", PROTOCOLS)
def test_a_mechanism_that_lacks_a_method_is_refused(scope):
    @fl.module
    class Partial:
        ledger = ("rho",)
        neighbors = "replace"

    Partial.scope = scope
    with pytest.raises(TypeError, match=f"has the scope '{scope}', but not what .* plan, "):
        fl.Simulation(PROBLEM, fl.algorithms.FedAvg(0.1), privacy=Partial())


@pytest.mark.parametrize("privacy", [3, "ZCDP", PROBLEM, fl.privacy.ZCDP])
def test_what_is_no_mechanism_is_refused(privacy):
    with pytest.raises(TypeError, match="privacy must be"):
        fl.Simulation(PROBLEM, fl.algorithms.FedAvg(0.1), privacy=privacy)


def test_an_algorithm_names_places_of_noise():
    with pytest.raises(TypeError, match=r"as privacy=\(\"message\",\); got"):
        Needs(privacy=(fl.privacy.ZCDP,))
    with pytest.raises(ValueError, match="Did you mean 'message'"):
        Needs(privacy=("messages",))


def test_a_budget_must_account_for_what_an_algorithm_needs():
    def simulate(privacy):
        algorithm = fl.algorithms.EpsilonDeltaNFL(1.0, 0.1)
        return fl.Simulation(PROBLEM.clipped(1.0), algorithm, fl.graphs.ring(6), privacy)

    simulate(fl.privacy.ApproximateDP(0.5, 1e-3))
    with pytest.raises(ValueError, match="accepts ApproximateDP and other budgets of epsilon and"):
        simulate(fl.privacy.ZCDP(1.0))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda it: type(it).__name__)
def test_all_mechanisms_of_the_library_have_what_their_scope_needs(mechanism):
    assert missing_members(mechanism, PROTOCOLS[mechanism.scope]) == []
    assert missing_members(mechanism, Mechanism) == []
    names = {field.name for field in dataclasses.fields(fl.Simulation)}
    assert set(getattr(mechanism, "refuses", {})) <= names
