"""Steps that the ledger does not count return zeros for any data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.module import replace
from fljax.participation.selectors import Everyone, Participants
from fljax.privacy import ZCDP, CentralGaussian, NoisyGradients
from tests.privacy.own import own_algorithm

PROBLEM = fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2)
NO_CLIENTS = jnp.zeros(4, bool)
UNKNOWN = 4 + jnp.arange(4, dtype=jnp.int32)


def noisy_step(now, start):
    return start - 0.1 * now.problem.gradient(start)


def traced(now, numbers):
    """Numbers that are unknown before the program runs, as drawn ones are."""
    return numbers + 0 * now.number


def silent(now, start):
    return jnp.mean(now.link.send(noisy_step(now, start), sending=NO_CLIENTS), axis=0)


def beyond(now, start):
    sent = now.link.send(noisy_step(now, start), clients=traced(now, UNKNOWN))
    return jnp.mean(sent, axis=0)


def before(now, start):
    sent = now.link.send(noisy_step(now, start), clients=traced(now, UNKNOWN - 12))
    return jnp.mean(sent, axis=0)


def without_receivers(now, start):
    sent = now.link.send(noisy_step(now, start), receivers=jnp.zeros(4, jnp.int32))
    return jnp.mean(sent, axis=0)


def steps_of(now, start, participants):
    problem = now.problem
    model = now.link.descend(
        2,
        participants,
        start,
        lambda key, number: (problem, problem.influence),
        lambda model, g: model - 0.1 * g,
    )
    now.link.collect(model, participants.here & False, start[0])
    return jnp.mean(model, axis=0)


def steps_of_nobody(now, start):
    return steps_of(now, start, Participants(None, NO_CLIENTS))


def steps_of_unknown(now, start):
    return steps_of(now, start, Participants(traced(now, UNKNOWN), jnp.ones(4, bool)))


def sum_of_unknown(now, start):
    everyone = jnp.ones(4, bool)
    arrived = now.link.collect(
        noisy_step(now, start), everyone, start[0], clients=traced(now, UNKNOWN)
    )
    return arrived.move(start[0])


CASES = [
    (ZCDP, silent),
    (ZCDP, beyond),
    (ZCDP, before),
    (ZCDP, without_receivers),
    (NoisyGradients, steps_of_nobody),
    (NoisyGradients, steps_of_unknown),
    (CentralGaussian, sum_of_unknown),
]


@pytest.mark.parametrize(("kind", "how"), CASES, ids=[how.__name__ for _, how in CASES])
def test_unbooked_steps_do_not_depend_on_data(kind, how):
    """With the same noise: two data sets give the same model, and the ledger is as it says."""
    models = []
    for shift in (0.0, 100.0):
        problem = PROBLEM if kind is not ZCDP else PROBLEM.clipped(1.0)
        problem = replace(problem, targets=problem.targets + shift)
        simulation = fl.Simulation(problem, own_algorithm(kind, how), privacy=kind(1.0))
        results = fl.run(simulation, rounds=3)
        assert float(results.privacy_rho[-1]) == 0
        models.append(np.asarray(results.model))
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize("numbers", [[0, 1, 2, 4], [-1, 0, 1, 2]])
@pytest.mark.parametrize(("kind", "collects"), [(ZCDP, False), (CentralGaussian, True)])
def test_clients_that_are_known_not_to_exist_are_refused(kind, collects, numbers):
    numbers = np.asarray(numbers, np.int32)

    def how(now, start):
        if collects:
            everyone = np.ones(4, bool)
            return now.link.collect(start, everyone, start[0], clients=numbers).move(start[0])
        return jnp.mean(now.link.send(noisy_step(now, start), clients=numbers), axis=0)

    problem = PROBLEM.clipped(1.0) if kind is ZCDP else PROBLEM
    with pytest.raises(ValueError, match=r"clients are numbered from 0 to 3; give numbers"):
        fl.run(fl.Simulation(problem, own_algorithm(kind, how), privacy=kind(1.0)), rounds=1)


@pytest.mark.parametrize("transformation", ["vmap", "scan", "cond", "grad"])
def test_a_private_message_inside_of_a_transformation_is_refused(transformation):
    """Inside vmap several messages would share one noise and be booked once."""

    def how(now, start):
        message = noisy_step(now, start)
        send = now.link.send
        if transformation == "vmap":
            sent = jax.vmap(send)(jnp.stack([message, start]))[0]
        elif transformation == "scan":
            sent = jax.lax.scan(lambda c, m: (c, send(m)), 0, jnp.stack([message, start]))[1][0]
        elif transformation == "cond":
            sent = jax.lax.cond(now.number > 0, send, lambda m: m, message)
        else:
            sent = jax.grad(lambda m: jnp.sum(send(m)))(message)
        return jnp.mean(sent, axis=0)

    simulation = fl.Simulation(PROBLEM.clipped(1.0), own_algorithm(ZCDP, how), privacy=ZCDP(1.0))
    with pytest.raises(ValueError, match=r"inside of jax\.vmap, scan, cond or another"):
        fl.run(simulation, rounds=1)


def test_steps_within_a_client_are_not_such_a_transformation():
    algorithm = fl.algorithms.FedDPSGD(0.1, local_steps=3, sampling_rate=0.5)
    simulation = fl.Simulation(PROBLEM, algorithm, privacy=NoisyGradients(1.0))
    assert float(fl.run(simulation, rounds=2).privacy_rho[-1]) == pytest.approx(6 * 0.5)


def test_absent_participants_take_no_private_steps():
    def how(now, start):
        active = now.choose(Everyone()).here & (jnp.arange(4) != 2)
        model = steps_rows(now, start, Participants(None, active))
        return model[2]

    def steps_rows(now, start, participants):
        problem = now.problem
        model = now.link.descend(
            2,
            participants,
            start,
            lambda key, number: (problem, problem.influence),
            lambda model, g: model - g,
        )
        now.link.collect(model, participants.here, start[0])
        return model

    simulation = fl.Simulation(
        PROBLEM, own_algorithm(NoisyGradients, how), privacy=NoisyGradients(1.0)
    )
    results = fl.run(simulation, rounds=2)
    np.testing.assert_array_equal(results.model, np.zeros((4, 2)))  # never moved
    assert np.asarray(results.client_rho).tolist() == [2.0, 2.0, 0.0, 2.0]
