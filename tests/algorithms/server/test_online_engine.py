"""The promises of the engine to online algorithms: batches of runs, segments, programs, memory."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import PAOFed
from fljax.link import Circular, Geometric, StochasticSign
from fljax.participation.patterns import Always, Markov
from fljax.participation.selectors import Fraction, Subset
from fljax.problems import LeastSquares, from_clients
from fljax.problems.streams import Replay
from fljax.simulation.scan import advance, begin, prepare, trace
from tests.cases import CASES, STREAMED
from tests.support.online_world import MU, QUICK, new_key, some_data, stream_of

close = np.testing.assert_allclose

T = 12
ONLINE = [*STREAMED, "SignSGD"]
#: What the instances leave out: draws of the algorithm's own.
DRAWS = {
    "Online-Fed": {"selector": Fraction(0.6)},
    "PSO-Fed": {"selector": Subset(3)},
    "SignSGD": {"signs": StochasticSign(1.0)},
}


def drawing(label):
    return dataclasses.replace(CASES[label].algorithm, **DRAWS.get(label, {}))


def scenario(key, algorithm, probability=0.7, delta=0.4):
    """Data, absences and delays all of the key."""
    data = some_data(5)
    shift = jax.random.normal(key, (5, 1), float)
    stream = stream_of(data, Always())
    problem = dataclasses.replace(stream.data, targets=jnp.asarray(stream.data.targets) + shift)
    test = from_clients([data[0]], LeastSquares(), strength=0.0)
    return fl.Simulation(
        Replay(problem, test=test),
        algorithm,
        metrics="test_error",
        participation=Markov(0.3, probability),
        delays=Geometric(delta, 3),
    )


@functools.partial(jax.jit, compiler_options=QUICK)
def first_carry(simulation, key):
    return begin(simulation, prepare(simulation, T), key)


@functools.partial(jax.jit, static_argnums=4, compiler_options=QUICK)
def stretch(simulation, key, carry, done, records):
    return advance(simulation, prepare(simulation, T), key, carry, done, records, 1, T)


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("label", ONLINE)
def test_batches_and_segments_equal_full_runs(label):
    """Under vmap several runs from end to end; alone each in two stretches, line and all."""
    simulation = scenario(jax.random.key(0), drawing(label))
    keys = jax.random.split(new_key(11), 3)

    def run(key):
        carry = first_carry.__wrapped__(simulation, key)
        return stretch.__wrapped__(simulation, key, carry, jnp.asarray(0), T)

    carries, records = jax.jit(jax.vmap(run), compiler_options=QUICK)(keys)
    for i, key in enumerate(keys):
        carry = first_carry(simulation, key)
        parts = []
        for done in (0, T // 2):
            carry, part = stretch(simulation, key, carry, jnp.asarray(done), T // 2)
            parts.append(part)
        parts = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        pairs = jax.tree.leaves((carry, parts)), jax.tree.leaves((carries, records))
        for alone, together in zip(*pairs, strict=True):
            close(alone, together[i], rtol=1e-9, atol=1e-12)
    assert np.abs(np.diff(carries.state.model, axis=0)).max() > 1e-3
    assert np.abs(carries.memory.line.total).max() > 1e-3
    x, y = some_data(5)[0]
    mse = ((y - np.asarray(carries.state.model) @ x.T) ** 2).mean(axis=1)
    close(records["test_error"][:, -1], mse, rtol=1e-12)
    programs = stretch._cache_size()
    other = scenario(jax.random.key(1), halve(drawing(label)), 0.2, 0.7)
    stretch(other, new_key(12), first_carry(other, new_key(12)), jnp.asarray(0), T // 2)
    assert stretch._cache_size() == programs


def halve(node):
    """Every real number of an algorithm divided by two, in a copy."""
    if dataclasses.is_dataclass(node):
        fields = {f.name: halve(getattr(node, f.name)) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **fields)
    real = not isinstance(node, int) and np.issubdtype(np.asarray(node).dtype, np.floating)
    return float(node) / 2 if real else node


@pytest.mark.slow
def test_the_six_variants_are_one_program():
    variants = {name: PAOFed.variant(name, 0.3) for name in PAOFed.VARIANTS}
    study = fl.sweep(scenario, rounds=T, seeds=2, grid={"algorithm": variants})
    assert study.attrs["compilations"] == 1
    last = study.test_error.isel(round=-1, seed=0).values
    assert len(np.unique(last)) == 6
    root = fl.random_key(0, study.attrs["prng"])
    k_scenario, k_run = jax.random.split(jax.random.fold_in(root, 1))
    for name in ("U1", "C2"):
        alone = fl.run(scenario(k_scenario, variants[name]), T, k_run)
        for metric in ("test_error", "messages", "bits_up", "bits_down"):
            close(study[metric].sel(seed=1, algorithm=name), alone[metric], rtol=1e-9)


@pytest.mark.slow
def test_numbers_of_a_sweep_compile_once():
    def numbers(key, discount, step_size, probability, delta):
        return scenario(key, PAOFed(step_size, Circular(2), discount=discount), probability, delta)

    grid = {
        "discount": [0.2, 1.0],
        "step_size": [0.1, 0.4],
        "probability": [0.3, 0.9],
        "delta": [0.2, 0.6],
    }
    study = fl.sweep(numbers, rounds=T, seeds=2, grid=grid)
    assert study.attrs["compilations"] == 1
    for axis in grid:
        low, high = (study.test_error.isel({axis: i}, drop=True) for i in (0, 1))
        assert bool((low != high).any()), axis
    moved = {name: [0.9 * value for value in values] for name, values in grid.items()}
    assert fl.sweep(numbers, rounds=T, seeds=2, grid=moved).attrs["compilations"] == 0


def test_memory_in_flight_does_not_grow_with_clients():
    lines = []
    for clients in (5, 50):
        stream = stream_of(some_data(clients), Always())
        simulation = fl.Simulation(stream, PAOFed(MU), delays=Geometric(0.5, 10))
        carry = jax.eval_shape(lambda s: begin(s, prepare(s, 3), new_key(0)), simulation)
        lines.append([leaf.shape for leaf in carry.memory.line])
    assert lines[0] == lines[1] == [(11, 9), (11, 9), (11, 1)]


@pytest.mark.slow
def test_memory_does_not_grow_with_rounds():
    simulation = scenario(jax.random.key(0), drawing("PAO-Fed"))
    sizes = []
    for rounds in (20, 2000):
        lowered = jax.jit(trace, static_argnums=(2, 3)).lower(
            simulation, new_key(0), rounds, rounds
        )
        memory = lowered.compile(compiler_options=QUICK).memory_analysis()
        sizes.append(memory.temp_size_in_bytes + memory.output_size_in_bytes)
    assert sizes[0] == sizes[1] > 0
