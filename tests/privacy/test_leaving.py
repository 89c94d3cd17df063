"""One place where what depends on private data leaves: perturbed, counted, booked; and no other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import fljax as fl
from fljax import _taint
from fljax.algorithms import REGISTRY, Algorithm, ConventionalFL, FedAvg, Needs, start_models
from fljax.federation import Federation
from fljax.graphs import Graph
from fljax.participation import Everyone, Participants
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
from fljax.running import unperturbed
from tests.cases import CASES, READING, make_network, make_problem, make_read, make_servers
from tests.marks import quiet

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
        x = _taint.private(x)
        total = jnp.sum(x)

        def turn(carry, _):
            one, other = carry
            return (other, other + total), _taint.open_to_all(one, "carried")

        jax.lax.scan(turn, (y, y), length=2)  # it takes a turn to get there
        result = jax.lax.while_loop(lambda v: v < total, lambda v: v + 1, y)
        _taint.open_to_all(result, "how often a loop turns")
        _taint.open_to_all(jax.lax.cond(total > 0, lambda: y, lambda: y + 1), "which branch")
        _taint.open_to_all(jax.jit(lambda v: v + total)(y), "called")
        _taint.open_to_all(jax.vmap(lambda v: jnp.where(v > 0, y, 0))(x), "selected")
        _taint.open_to_all(jax.grad(lambda v: v * total)(y), "derivative")
        _taint.open_to_all(jax.checkpoint(lambda v: v * total)(y), "again")
        _taint.open_to_all({"in": [y, x]}, "inside")
        _taint.open_to_all(jax.grad(lambda v: v * y)(y), "public")
        _taint.open_to_all(x.shape[0] * y, "a size")
        said = _taint.released(x + y)
        _taint.open_to_all(said * y, "released")
        return jax.lax.map(lambda v: _taint.open_to_all(v + y, "released, mapped"), said)

    result = _taint.exits(program, jnp.ones(3), jnp.ones(()))
    told = ["how often a loop turns", "which branch", "called", "selected", "derivative", "again"]
    assert result == ["carried", *told, "inside"]


# All private algorithms -------------------------------------------------------------------------


def private_cases():
    for label, case in CASES.items():
        for notion in REGISTRY[label].needs.privacy:
            yield pytest.param(case.algorithm, BUDGETS[notion], id=f"{label}-{notion.__name__}")


@pytest.mark.thin(12, every=1)
@pytest.mark.core
@pytest.mark.parametrize(("algorithm", "budget"), list(private_cases()))
def test_nothing_leaves_an_algorithm_but_perturbed(algorithm, budget):
    needs = type(algorithm).needs
    network = {Graph: make_network(), Federation: make_servers(), None: None}[needs.network]
    bounded = needs.minimizer or isinstance(budget, NoisyGradients)
    problem = make_problem(clip=None if bounded else 1.0)
    if algorithm.label in READING:
        problem = make_read().clipped(1.0)
    assert unperturbed(fl.Simulation(problem, algorithm, network, budget)) == []
    if needs.absent:
        given = {"participation": fl.participation.Bernoulli(0.5)}
        assert unperturbed(fl.Simulation(problem, algorithm, network, budget, **given)) == []


@pytest.mark.parametrize(
    "budget",
    [
        DiscreteZCDP(1.0),
        CentralGaussian(1.0, AdaptiveClip(share_noise=0.5)),
        CentralGaussian(1.0, strategy=square_root(2)),
    ],
)
def test_nor_under_other_mechanisms(budget):
    central = isinstance(budget, CentralGaussian)
    selector = fl.participation.Cyclic(2) if central and budget.strategy else None
    algorithm = ConventionalFL(0.1)
    if central:
        algorithm = FedAvg(0.1, weighting="equal", selector=selector)
    assert unperturbed(fl.Simulation(make_problem(clip=1.0), algorithm, privacy=budget)) == []


@pytest.mark.slow
def test_nor_of_a_stream_or_a_network_of_neurons():
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

    needs = Needs(None, privacy=(ZCDP, CentralGaussian, NoisyGradients), averages=True, absent=True)

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
        slope = now.problem.gradient(models)
        now.witness(now.problem.sample_gradient_norm(models))
        return self.said(state, now, models - 0.1 * slope, slope)

    def said(self, state, now, own, slope):
        said = now.link.send(own)
        return State(now.link.publish(jnp.mean(said, axis=0)), said)

    def released(self, state, problem, network):
        return state.model


@fl.module
class Publishes(Own):
    def said(self, state, now, own, slope):
        super().said(state, now, own, slope)
        return State(now.link.publish(state.model - 0.1 * jnp.mean(slope, axis=0)), own)


@fl.module
class PublishesLater(Own):
    """What it keeps to itself in one round it lets out in the next."""

    def said(self, state, now, own, slope):
        said = now.link.send(own)
        now.link.publish(state.kept[0])
        return State(jnp.mean(said, axis=0), own)


@fl.module
class KeepsQuiet(Own):
    """Who sends tells what it has to say."""

    def said(self, state, now, own, slope):
        said = now.link.send(own, sending=jnp.sum(slope**2, axis=1) > 1)
        return State(jnp.mean(said, axis=0), said)


@fl.module
class ChoosesReceivers(Own):
    def said(self, state, now, own, slope):
        said = now.link.send(own, receivers=(slope[:, 0] > 0).astype(jnp.int32))
        return State(jnp.mean(said, axis=0), said)


@fl.module
class ScalesNoise(Own):
    def sensitivity(self, problem, network, round, gap):
        return 0.1 * gap.gradient * jnp.max(jnp.abs(problem.features))


@fl.module
class ShowsItsModel(Own):
    def released(self, state, problem, network):
        return state.kept

    def said(self, state, now, own, slope):
        return State(jnp.mean(now.link.send(own), axis=0), own)


@fl.module
class HeldOut(Own):
    def said(self, state, now, own, slope):
        said = now.link.send(own)
        now.link.publish(state.model + jnp.mean(now.problem.test.targets))
        return State(jnp.mean(said, axis=0), said)


@fl.module
class Beside(Own):
    """Exact gradients beside noisy ones."""

    def sampling(self, problem):
        return fl.participation.Law(1.0)

    def said(self, state, now, own, slope):
        who = now.choose(Everyone())
        share = now.problem.influence
        now.link.descend(
            1, who, own * 0, lambda key, number: (now.problem, share), lambda w, g: w - g
        )
        arrived = now.link.collect(own, who.here, state.model)
        return State(arrived.move(state.model), own)


@fl.module
class ByLoss(Own):
    """A trusted server whose participants are those with a large loss."""

    def said(self, state, now, own, slope):
        loss = now.problem.mean_loss(jnp.broadcast_to(state.model, own.shape))
        arrived = now.link.collect(own, loss > jnp.mean(loss), state.model)
        return State(arrived.move(state.model), own)


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


@pytest.mark.parametrize(("algorithm", "budget", "what"), LEAKS)
def test_what_would_leave_in_the_clear_is_refused(algorithm, budget, what):
    simulation = simulated(algorithm, budget)
    with pytest.raises(ValueError, match=f"{algorithm.__name__} releases .*: {what}"):
        fl.run(simulation, rounds=2)
    with pytest.raises(ValueError, match=what):
        fl.sweep(lambda key: simulation, rounds=2, seeds=1)


def test_of_one_grid_point_too():
    def scenario(key, leaks):
        return simulated(Publishes if leaks else Own, ZCDP(1.0))

    with pytest.raises(ValueError, match="Publishes releases values") as caught:
        fl.sweep(scenario, grid={"leaks": fl.static([False, True])}, rounds=2, seeds=1)
    assert "'leaks': True" in caught.value.__notes__[-1]


@pytest.mark.slow
def test_an_honest_algorithm_runs():
    assert float(fl.run(simulated(Own, ZCDP(1.0)), rounds=3).privacy_rho[-1]) == pytest.approx(1.0)


@quiet
def test_without_a_budget_there_is_nothing_to_refuse():
    simulation = simulated(Publishes, ZCDP(1.0))
    fl.run(fl.Simulation(simulation.problem, simulation.algorithm), rounds=2)


# Functions of the host ---------------------------------------------------------------------------


def ignore(*given):
    """A function of the host, which could write to a file what it is given."""


@fl.module
class Calls(Own):
    """Passes values to the host, private ones or those that left with noise."""

    call = staticmethod(ignore)

    private: bool = fl.static(default=True)

    def said(self, state, now, own, slope):
        said = now.link.send(own)
        model = now.link.publish(jnp.mean(said, axis=0))
        result = self.call(slope if self.private else said)
        return State(model, own if result is None else own + 0 * result)


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
    return jax.pure_callback(lambda given: given, same, values, vmap_method="sequential")


def passed_through_with_effects(values):
    same = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return io_callback(lambda given: given, same, values)


def called_or_not(values):
    jax.lax.cond(values[0, 0] > 0, lambda: called(jnp.zeros(())), lambda: None)


def called_so_often(values):
    def body(left):
        called(jnp.zeros(()))
        return left - 1

    jax.lax.while_loop(lambda left: left > 0, body, values[0, 0])


KEPT = jax.new_ref(jnp.zeros(())) if hasattr(jax, "new_ref") else None


def written(values):
    KEPT[...] = values[0, 0]


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
if KEPT is not None:
    HOST.append((written, "a mutable array"))


def calling(call, private):
    kind = fl.module(type("Calling", (Calls,), {"call": staticmethod(call)}))
    simulation = simulated(Own, ZCDP(1.0))
    return fl.Simulation(simulation.problem, kind(private=private), privacy=ZCDP(1.0))


@pytest.mark.parametrize(("call", "what"), HOST, ids=lambda value: getattr(value, "__name__", ""))
def test_private_values_that_the_host_is_given_are_named(call, what):
    (name,) = unperturbed(calling(call, private=True))
    assert name.endswith(what)
    with pytest.raises(ValueError, match=f"releases values .*{what}"):
        fl.run(calling(call, private=True), rounds=2)


@pytest.mark.parametrize("call", [call for call, _ in HOST if call is not written])
def test_perturbed_values_may_be_given_to_the_host(call):
    assert unperturbed(calling(call, private=False)) == []


def test_a_mutable_array_passes_on_what_was_written():
    def read(values):
        array = jax.new_ref(jnp.zeros(()))
        array[...] = values[0]
        _taint.open_to_all(array[...], "what was read")
        return array[...]

    if KEPT is not None:
        assert _taint.exits(lambda v: read(_taint.private(v)), jnp.ones(2)) == ["what was read"]
        assert _taint.exits(read, jnp.ones(2)) == []


# The ledger counts what is used -----------------------------------------------------------------


@fl.module
class Descends(Own):
    """So many times a round, so many steps each."""

    times: int = fl.static(default=1)
    steps: int = fl.static(default=1)

    def sampling(self, problem):
        return fl.participation.Law(1.0)

    def said(self, state, now, own, slope):
        who, model = now.choose(Everyone()), jnp.broadcast_to(state.model, own.shape)
        for _ in range(self.times):
            model = now.link.descend(
                self.steps,
                who,
                model,
                lambda key, number: (now.problem, now.problem.influence),
                lambda w, g: w - 0.1 * g,
            )
        arrived = now.link.collect(model, who.here, state.model)
        return State(arrived.move(state.model), model)


@pytest.mark.parametrize(("times", "steps"), [(1, 1), (3, 1), (1, 4), (2, 3)])
@pytest.mark.thin(1, every=1)
def test_every_noisy_gradient_is_booked(times, steps):
    simulation = simulated(Own, NoisyGradients(2.0))
    own = Descends(times=times, steps=steps)
    simulation = fl.Simulation(simulation.problem, own, privacy=NoisyGradients(2.0))
    run = fl.run(simulation, rounds=5)
    assert float(run.privacy_releases[-1]) == 5 * times * steps
    np.testing.assert_allclose(run.client_rho, 5 * times * steps / 8, rtol=1e-12)


@pytest.mark.slow
def test_a_weight_above_its_share_is_cut_to_it():
    """A batch that weighs a sample more than it says moves the gradient no further than it says."""
    problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=4, dim=2)
    mechanism, share = NoisyGradients(1.0, clip=0.5), jnp.full(2, 0.01)
    result = mechanism.gradient(problem.prepare(), jnp.full((2, 2), 100.0), share)
    pull = problem.share[:, None] * problem.regularizer.gradient(jnp.full((2, 2), 100.0))
    assert problem.prepare().statistics.gram is not None  # which knows neither clip nor weights
    assert np.linalg.norm(result - pull, axis=1).max() <= 4 * 0.01 * 0.5 * (1 + 1e-9)


@fl.module
class Repeats(Own):
    """One client in all rows."""

    def said(self, state, now, own, slope):
        rows = jnp.zeros(len(own), jnp.int32) + now.number - 1
        moved = state.model[None] + jnp.ones_like(own)
        arrived = now.link.collect(moved, jnp.ones(len(own), bool), state.model, clients=rows)
        return State(arrived.move(state.model), own)


@pytest.mark.slow
def test_a_trusted_server_takes_one_row_of_a_client():
    budget = CentralGaussian(1e-9, clip=1.0)
    simulation = simulated(Repeats, budget)
    moved = fl.run(simulation, rounds=1).model[0].values
    # One clip of four clients', whatever the rows say.
    assert np.linalg.norm(moved) == pytest.approx(1 / 4, abs=1e-6)


@fl.module
class SendsRows(Own):
    def said(self, state, now, own, slope):
        rows = jnp.asarray([0, 0, 1, 1], jnp.int32) + 0 * now.number
        said = now.link.send(own[rows], clients=rows, sending=jnp.asarray([1, 1, 1, 0]) > 0)
        return State(jnp.mean(said, axis=0), own)


@pytest.mark.slow
def test_a_second_row_of_a_client_is_booked():
    run = fl.run(simulated(SendsRows, ZCDP(1.0)), rounds=2)
    np.testing.assert_allclose(run.client_rho, [2.0, 1.0, 0.0, 0.0], rtol=1e-12)


@pytest.mark.slow
def test_rows_known_to_repeat_a_client_are_refused():
    link = fl.view(simulated(Own, CentralGaussian(1.0))).link
    everyone, start = np.ones(4, bool), jnp.zeros(2)
    twice = np.array([0, 1, 1, 3], np.int32)
    with pytest.raises(ValueError, match="client 1 sends 2 rows of one message"):
        link.collect(jnp.zeros((4, 2)), everyone, start, clients=twice)
    with pytest.raises(ValueError, match="client 1 sends 2 rows of one message"):
        fl.view(simulated(Own, ZCDP(1.0))).link.send(jnp.zeros((4, 2)), clients=twice)
    absent = np.array([True, True, False, True])
    fl.view(simulated(Own, ZCDP(1.0))).link.send(jnp.zeros((4, 2)), clients=twice, sending=absent)


@pytest.mark.slow
def test_participants_twice_pay_twice():
    """Who draws participants with replacement has two noisy gradients of some of them."""
    simulation = simulated(Own, NoisyGradients(1.0))
    now = fl.view(simulation)
    who = Participants(jnp.asarray([1, 1, 2], jnp.int32), jnp.ones(3, bool))
    data, start = who.of(now.problem), jnp.zeros((3, 2))
    now.link.descend(2, who, start, lambda key, number: (data, data.influence), lambda w, g: w - g)
    np.testing.assert_allclose(now.link.spent["releases"], [0, 4, 2, 0])
