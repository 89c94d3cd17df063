"""One place where what depends on private data leaves: perturbed, counted, booked; and no other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import fljax as fl
from fljax._core import taint
from fljax.algorithms import REGISTRY, Algorithm, ConventionalFL, FedAvg, Needs, start_models
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.participation.selectors import Everyone, Participants
from fljax.privacy import (
    ZCDP,
    AdaptiveClip,
    ApproximateDP,
    CentralGaussian,
    DiscreteZCDP,
    NoisyGradients,
    PureDP,
)
from fljax.privacy.matrices import square_root
from fljax.simulation.leaks import unperturbed
from tests.cases import CASES, READING, make_network, make_problem, make_read, make_servers
from tests.support.marks import quiet

BUDGETS = {
    ZCDP: ZCDP(1.0),
    ApproximateDP: ApproximateDP(1.0, 1e-3),
    PureDP: PureDP(1.0),
    CentralGaussian: CentralGaussian(1.0),
    NoisyGradients: NoisyGradients(1.0),
}


# What a program's values depend on --------------------------------------------------------------


def test_marks_are_followed_through_every_kind_of_program():
    def program(x, y):
        x = taint.private(x)
        total = jnp.sum(x)

        def iteration(carry, _):
            first, second = carry
            return (second, second + total), taint.open_to_all(first, "carried")

        jax.lax.scan(iteration, (y, y), length=2)  # it takes a turn to get there
        result = jax.lax.while_loop(lambda v: v < total, lambda v: v + 1, y)
        taint.open_to_all(result, "how often a loop turns")
        taint.open_to_all(jax.lax.cond(total > 0, lambda: y, lambda: y + 1), "which branch")
        taint.open_to_all(jax.jit(lambda v: v + total)(y), "called")
        taint.open_to_all(jax.vmap(lambda v: jnp.where(v > 0, y, 0))(x), "selected")
        taint.open_to_all(jax.grad(lambda v: v * total)(y), "derivative")
        taint.open_to_all(jax.checkpoint(lambda v: v * total)(y), "again")
        taint.open_to_all({"in": [y, x]}, "inside")
        taint.open_to_all(jax.grad(lambda v: v * y)(y), "public")
        taint.open_to_all(x.shape[0] * y, "a size")
        released = taint.released(x + y)
        taint.open_to_all(released * y, "released")
        return jax.lax.map(lambda v: taint.open_to_all(v + y, "released, mapped"), released)

    result = taint.exits(program, jnp.ones(3), jnp.ones(()))
    names = ["how often a loop turns", "which branch", "called", "selected", "derivative", "again"]
    assert result == ["carried", *names, "inside"]


# All private algorithms -------------------------------------------------------------------------


def private_cases():
    for label, case in CASES.items():
        needs = REGISTRY[label].needs
        for kind, budget in BUDGETS.items():
            if budget.scope in needs.privacy and {*needs.budget} <= {*budget.ledger}:
                yield pytest.param(case.algorithm, budget, id=f"{label}-{kind.__name__}")


@pytest.mark.thin(12, every=1)
@pytest.mark.core
@pytest.mark.parametrize(("algorithm", "budget"), list(private_cases()))
def test_algorithms_release_perturbed_values_only(algorithm, budget):
    needs = type(algorithm).needs
    network = {Graph: make_network(), Federation: make_servers(), None: None}[needs.network]
    bounded = needs.minimizer or isinstance(budget, NoisyGradients)
    problem = make_problem(clip=None if bounded else 1.0)
    if algorithm.label in READING:
        problem = make_read(label=algorithm.label).clipped(1.0)
    assert unperturbed(fl.Simulation(problem, algorithm, network, budget)) == []
    if needs.absent:
        options = {"participation": fl.participation.Bernoulli(0.5)}
        assert unperturbed(fl.Simulation(problem, algorithm, network, budget, **options)) == []


@pytest.mark.parametrize(
    "budget",
    [
        DiscreteZCDP(1.0),
        CentralGaussian(1.0, AdaptiveClip(share_noise=0.5)),
        CentralGaussian(1.0, strategy=square_root(2)),
    ],
)
def test_other_mechanisms_release_perturbed_values_only(budget):
    central = isinstance(budget, CentralGaussian)
    selector = fl.participation.Cyclic(2) if central and budget.strategy else None
    algorithm = ConventionalFL(0.1)
    if central:
        algorithm = FedAvg(0.1, weighting="equal", selector=selector)
    assert unperturbed(fl.Simulation(make_problem(clip=1.0), algorithm, privacy=budget)) == []


@pytest.mark.slow
def test_streams_and_networks_release_perturbed_values_only():
    key = jax.random.key(0)
    feature_map = fl.data.random_fourier(key, inputs=4, features=3)
    stream = fl.streams.autoregressive(key, clients=4, feature_map=feature_map)
    learner = FedAvg(0.1, weighting="equal")
    assert unperturbed(fl.Simulation(stream, learner, privacy=CentralGaussian(1.0))) == []
    data = [(np.ones((n, 4)), np.zeros(n)) for n in (3, 5)]
    network = fl.problems.Model.from_clients(
        fl.models.mlp(2, (3,)), key, data, fl.problems.Softmax(2)
    )
    for algorithm, budget in ((learner, CentralGaussian(1.0)), (CASES["DP-SGD"].algorithm, None)):
        budget = budget or NoisyGradients(1.0)
        assert unperturbed(fl.Simulation(network, algorithm, privacy=budget)) == []


# One's own --------------------------------------------------------------------------------------


class State(NamedTuple):
    model: jax.Array  # [D]
    kept: jax.Array  # [K, D]


@fl.module
class Own(Algorithm):
    """Federated gradient descent, with something wrong in it."""

    needs = Needs(None, privacy=("message", "server", "gradient"), averages=True, absent=True)

    @property
    def selection(self):
        return Everyone()

    def sampling(self, problem):
        return fl.participation.Law(1.0)

    def init(self, problem, network):
        return State(start_models(problem)[0], start_models(problem))

    def sensitivity(self, problem, network, round, gap):
        return 0.1 * gap.gradient

    def step(self, state, now):
        models = jnp.broadcast_to(state.model, state.kept.shape)
        gradient = now.problem.gradient(models)
        now.witness(now.problem.sample_gradient_norm(models))
        return self.said(state, now, models - 0.1 * gradient, gradient)

    def said(self, state, now, local, gradient):
        sent = now.link.send(local)
        return State(now.link.publish(jnp.mean(sent, axis=0)), sent)

    def released(self, state, problem, network):
        return state.model


@fl.module
class Publishes(Own):
    def said(self, state, now, local, gradient):
        super().said(state, now, local, gradient)
        return State(now.link.publish(state.model - 0.1 * jnp.mean(gradient, axis=0)), local)


@fl.module
class PublishesLater(Own):
    """What it keeps to itself in one round it lets out in the next."""

    def said(self, state, now, local, gradient):
        sent = now.link.send(local)
        now.link.publish(state.kept[0])
        return State(jnp.mean(sent, axis=0), local)


@fl.module
class KeepsQuiet(Own):
    """The set of senders depends on private data."""

    def said(self, state, now, local, gradient):
        sent = now.link.send(local, sending=jnp.sum(gradient**2, axis=1) > 1)
        return State(jnp.mean(sent, axis=0), sent)


@fl.module
class ChoosesReceivers(Own):
    def said(self, state, now, local, gradient):
        sent = now.link.send(local, receivers=(gradient[:, 0] > 0).astype(jnp.int32))
        return State(jnp.mean(sent, axis=0), sent)


@fl.module
class ScalesNoise(Own):
    def sensitivity(self, problem, network, round, gap):
        return 0.1 * gap.gradient * jnp.max(jnp.abs(problem.features))


@fl.module
class ShowsItsModel(Own):
    def released(self, state, problem, network):
        return state.kept

    def said(self, state, now, local, gradient):
        return State(jnp.mean(now.link.send(local), axis=0), local)


@fl.module
class HeldOut(Own):
    def said(self, state, now, local, gradient):
        sent = now.link.send(local)
        now.link.publish(state.model + jnp.mean(now.problem.test.targets))
        return State(jnp.mean(sent, axis=0), sent)


@fl.module
class Beside(Own):
    """Exact gradients in addition to noisy ones."""

    def sampling(self, problem):
        return fl.participation.Law(1.0)

    def said(self, state, now, local, gradient):
        participants = now.choose(Everyone())
        share = now.problem.influence
        now.link.descend(
            1, participants, local * 0, lambda key, number: (now.problem, share), lambda w, g: w - g
        )
        arrived = now.link.collect(local, participants.here, state.model)
        return State(arrived.move(state.model), local)


@fl.module
class ByLoss(Own):
    """A trusted server whose participants are those with a large loss."""

    def said(self, state, now, local, gradient):
        loss = now.problem.mean_loss(jnp.broadcast_to(state.model, local.shape))
        arrived = now.link.collect(local, loss > jnp.mean(loss), state.model)
        return State(arrived.move(state.model), local)


LEAKS = [
    (Publishes, ZCDP(1.0), "what a server publishes, released models"),
    (PublishesLater, ZCDP(1.0), "what a server publishes"),
    (KeepsQuiet, ZCDP(1.0), "who sends a message"),
    (ChoosesReceivers, ZCDP(1.0), "who sends a message"),
    (ScalesNoise, ZCDP(1.0), "the size of the noise"),
    (ShowsItsModel, ZCDP(1.0), "released models"),
    (HeldOut, ZCDP(1.0), "what a server publishes"),
    (Beside, NoisyGradients(1.0), "a message to a server"),
    (ByLoss, CentralGaussian(1.0), "who sends to a server"),
]


def simulated(algorithm, budget, seed=0):
    clip = None if isinstance(budget, NoisyGradients) else 1.0
    problem = fl.problems.ridge(jax.random.key(seed), clients=4, samples=6, dim=2)
    problem = problem.with_test(np.eye(2), np.ones(2))
    problem = problem if clip is None else problem.clipped(clip)
    return fl.Simulation(problem, algorithm(), privacy=budget)


@pytest.mark.parametrize(("algorithm", "budget", "release"), LEAKS)
def test_unperturbed_releases_are_refused(algorithm, budget, release):
    simulation = simulated(algorithm, budget)
    with pytest.raises(ValueError, match=f"{algorithm.__name__} releases .*: {release}"):
        fl.run(simulation, rounds=2)
    with pytest.raises(ValueError, match=release):
        fl.sweep(lambda key: simulation, rounds=2, seeds=1)


def test_a_study_of_one_grid_point_is_checked_too():
    def scenario(key, leaks):
        return simulated(Publishes if leaks else Own, ZCDP(1.0))

    with pytest.raises(ValueError, match="Publishes releases values") as caught:
        fl.sweep(scenario, grid={"leaks": fl.static([False, True])}, rounds=2, seeds=1)
    assert "'leaks': True" in caught.value.__notes__[-1]


@pytest.mark.slow
def test_an_honest_algorithm_runs():
    assert float(fl.run(simulated(Own, ZCDP(1.0)), rounds=3).privacy_rho[-1]) == pytest.approx(1.0)


@quiet
def test_without_a_budget_nothing_is_refused():
    simulation = simulated(Publishes, ZCDP(1.0))
    fl.run(fl.Simulation(simulation.problem, simulation.algorithm), rounds=2)


# Functions of the host ---------------------------------------------------------------------------


def ignore(*arguments):
    """A host function, which could write its arguments to a file."""


@fl.module
class Calls(Own):
    """Passes values to the host: private ones, or values that were released with noise."""

    call = staticmethod(ignore)

    private: bool = fl.static(default=True)

    def said(self, state, now, local, gradient):
        sent = now.link.send(local)
        model = now.link.publish(jnp.mean(sent, axis=0))
        result = self.call(gradient if self.private else sent)
        return State(model, local if result is None else local + 0 * result)


def printed(values):
    jax.debug.print("{}", values)


def called(values):
    jax.debug.callback(ignore, values)


def called_of_each(values):
    jax.vmap(called)(values)


def called_in_turn(values):
    jax.lax.map(called, values)


def passed_through(values):
    same = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return jax.pure_callback(lambda array: array, same, values, vmap_method="sequential")


def passed_through_with_effects(values):
    same = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return io_callback(lambda array: array, same, values)


def called_or_not(values):
    jax.lax.cond(values[0, 0] > 0, lambda: called(jnp.zeros(())), lambda: None)


def called_so_often(values):
    def body(left):
        called(jnp.zeros(()))
        return left - 1

    jax.lax.while_loop(lambda left: left > 0, body, values[0, 0])


HOST_STATE = jax.new_ref(jnp.zeros(())) if hasattr(jax, "new_ref") else None


def written(values):
    HOST_STATE[...] = values[0, 0]


HOST = [
    (printed, "jax.debug.print"),
    (called, "jax.debug.callback"),
    (called_of_each, "jax.debug.callback"),
    (called_in_turn, "jax.debug.callback"),
    (passed_through, "jax.pure_callback"),
    (passed_through_with_effects, "io_callback"),
    (called_or_not, "jax.debug.callback"),
    (called_so_often, "jax.debug.callback"),
]
if HOST_STATE is not None:
    HOST.append((written, "a mutable array"))


def calling(call, private):
    kind = fl.module(type("Calling", (Calls,), {"call": staticmethod(call)}))
    simulation = simulated(Own, ZCDP(1.0))
    return fl.Simulation(simulation.problem, kind(private=private), privacy=ZCDP(1.0))


@pytest.mark.parametrize(
    ("call", "release"), HOST, ids=lambda value: getattr(value, "__name__", "")
)
def test_private_values_that_the_host_is_given_are_named(call, release):
    (name,) = unperturbed(calling(call, private=True))
    assert name.endswith(release)
    with pytest.raises(ValueError, match=f"releases values .*{release}"):
        fl.run(calling(call, private=True), rounds=2)


@pytest.mark.parametrize("call", [call for call, _ in HOST if call is not written])
def test_perturbed_values_may_be_passed_to_the_host(call):
    assert unperturbed(calling(call, private=False)) == []


def test_a_mutable_array_passes_on_what_was_written():
    def read(values):
        array = jax.new_ref(jnp.zeros(()))
        array[...] = values[0]
        taint.open_to_all(array[...], "what was read")
        return array[...]

    if HOST_STATE is not None:
        assert taint.exits(lambda v: read(taint.private(v)), jnp.ones(2)) == ["what was read"]
        assert taint.exits(read, jnp.ones(2)) == []


# The ledger counts used noise ---------------------------------------------------------------------


@fl.module
class Descends(Own):
    """``times`` descents a round with ``steps`` steps each."""

    times: int = fl.static(default=1)
    steps: int = fl.static(default=1)

    def sampling(self, problem):
        return fl.participation.Law(1.0)

    def said(self, state, now, local, gradient):
        participants = now.choose(Everyone())
        model = jnp.broadcast_to(state.model, local.shape)
        for _ in range(self.times):
            model = now.link.descend(
                self.steps,
                participants,
                model,
                lambda key, number: (now.problem, now.problem.influence),
                lambda w, g: w - 0.1 * g,
            )
        arrived = now.link.collect(model, participants.here, state.model)
        return State(arrived.move(state.model), model)


@pytest.mark.parametrize(("times", "steps"), [(1, 1), (3, 1), (1, 4), (2, 3)])
@pytest.mark.thin(1, every=1)
def test_every_noisy_gradient_is_booked(times, steps):
    simulation = simulated(Own, NoisyGradients(2.0))
    algorithm = Descends(times=times, steps=steps)
    simulation = fl.Simulation(simulation.problem, algorithm, privacy=NoisyGradients(2.0))
    run = fl.run(simulation, rounds=5)
    assert float(run.privacy_releases[-1]) == 5 * times * steps
    np.testing.assert_allclose(run.client_rho, 5 * times * steps / 8, rtol=1e-12)


@pytest.mark.slow
def test_a_weight_above_its_share_is_cut_to_it():
    """A batch that weighs a sample more than it says moves the gradient no further than it says."""
    problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=4, dim=2)
    mechanism = NoisyGradients(1.0, clip=0.5)
    share = jnp.full(2, 0.01)
    result = mechanism.gradient(problem.prepare(), jnp.full((2, 2), 100.0), share)
    regularizer_gradient = problem.share[:, None] * problem.regularizer.gradient(
        jnp.full((2, 2), 100.0)
    )
    assert problem.prepare().statistics.gram is not None  # which knows neither clip nor weights
    assert np.linalg.norm(result - regularizer_gradient, axis=1).max() <= 4 * 0.01 * 0.5 * (
        1 + 1e-9
    )


@fl.module
class Repeats(Own):
    """One client in all rows."""

    def said(self, state, now, local, gradient):
        rows = jnp.zeros(len(local), jnp.int32) + now.number - 1
        moved = state.model[None] + jnp.ones_like(local)
        arrived = now.link.collect(moved, jnp.ones(len(local), bool), state.model, clients=rows)
        return State(arrived.move(state.model), local)


@pytest.mark.slow
def test_a_trusted_server_takes_one_row_of_a_client():
    budget = CentralGaussian(1e-9, clip=1.0)
    simulation = simulated(Repeats, budget)
    moved = fl.run(simulation, rounds=1).model[0].values
    # One clip of four clients', for any assignment of rows.
    assert np.linalg.norm(moved) == pytest.approx(1 / 4, abs=1e-6)


@fl.module
class SendsRows(Own):
    def said(self, state, now, local, gradient):
        rows = jnp.asarray([0, 0, 1, 1], jnp.int32) + 0 * now.number
        sent = now.link.send(local[rows], clients=rows, sending=jnp.asarray([1, 1, 1, 0]) > 0)
        return State(jnp.mean(sent, axis=0), local)


@pytest.mark.slow
def test_a_second_row_of_a_client_is_accounted():
    run = fl.run(simulated(SendsRows, ZCDP(1.0)), rounds=2)
    np.testing.assert_allclose(run.client_rho, [2.0, 1.0, 0.0, 0.0], rtol=1e-12)


@pytest.mark.slow
def test_rows_known_to_repeat_a_client_are_refused():
    link = fl.view(simulated(Own, CentralGaussian(1.0))).link
    everyone = np.ones(4, bool)
    start = jnp.zeros(2)
    twice = np.array([0, 1, 1, 3], np.int32)
    with pytest.raises(ValueError, match="client 1 sends 2 rows of one message"):
        link.collect(jnp.zeros((4, 2)), everyone, start, clients=twice)
    with pytest.raises(ValueError, match="client 1 sends 2 rows of one message"):
        fl.view(simulated(Own, ZCDP(1.0))).link.send(jnp.zeros((4, 2)), clients=twice)
    absent = np.array([True, True, False, True])
    fl.view(simulated(Own, ZCDP(1.0))).link.send(jnp.zeros((4, 2)), clients=twice, sending=absent)


@pytest.mark.slow
def test_participants_twice_pay_twice():
    """Participants drawn with replacement may have two noisy gradients."""
    simulation = simulated(Own, NoisyGradients(1.0))
    now = fl.view(simulation)
    participants = Participants(jnp.asarray([1, 1, 2], jnp.int32), jnp.ones(3, bool))
    data = participants.of(now.problem)
    start = jnp.zeros((3, 2))
    now.link.descend(
        2, participants, start, lambda key, number: (data, data.influence), lambda w, g: w - g
    )
    np.testing.assert_allclose(now.link.spent["releases"], [0, 4, 2, 0])
