"""No random number that hides something is drawn twice, or is a key of anything else."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import define_prng_impl

import fljax as fl
from fljax._core import prng as house
from fljax._core.prng import PURPOSES, key_of, round_key
from fljax.privacy import ZCDP, ApproximateDP, CentralGaussian, DiscreteZCDP, NoisyGradients

ROUNDS = 3
GENERATORS = ["fljax-threefry", "threefry2x32", "philox4x32"]


class Recorder:
    """What generators are asked for: ``calls[use]`` counts the (key, index) of every use."""

    def __init__(self):
        self.calls = collections.defaultdict(collections.Counter)
        self.specs = {}

    def note(self, use, *values):
        def record(*arrays):
            arrays = [np.asarray(a, np.uint64).ravel() for a in np.broadcast_arrays(*arrays)]
            self.calls[use].update(zip(*(a.tolist() for a in arrays), strict=True))

        jax.debug.callback(record, *values)

    def threefry(self, key, high, low):
        self.note("house", key[0], key[1], high, low)
        return self.inner(key, high, low)

    def spec_of(self, name):
        """A generator that draws as JAX's of this name and records each of its uses."""
        if name == house.GENERATOR:
            return house.GENERATORS[name]
        if name not in self.specs:
            impl = jax.random.key(0, impl=name).dtype._impl

            def split(key, shape):
                self.note("derived", *key, jnp.arange(np.prod(shape), dtype=jnp.uint32))
                return impl.split(key, shape)

            def fold_in(key, number):
                self.note("derived", *key, number)
                return impl.fold_in(key, number)

            def random_bits(key, width, shape):
                self.note("drawn", *key, jnp.zeros((), jnp.uint32))
                return impl.random_bits(key, width, shape)

            self.specs[name] = define_prng_impl(
                key_shape=impl.key_shape,
                seed=impl.seed,
                split=split,
                random_bits=random_bits,
                fold_in=fold_in,
                name=f"recorded {name} {id(self)}",
                tag=f"r{len(name)}",
            )
        return self.specs[name]


@pytest.fixture
def recorder(monkeypatch):
    jax.clear_caches()  # earlier traces would not be recorded
    recorder = Recorder()
    recorder.inner = house.threefry
    monkeypatch.setattr(house, "threefry", recorder.threefry)
    yield recorder
    jax.clear_caches()


def private_runs():
    problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=5, dim=3).clipped(1.0)
    servers = fl.federation.balanced(3, fl.graphs.path(2))
    drawn = fl.algorithms.GraphFedAvg(0.5, local_steps=2, clients_per_server=2)
    peers = fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5)
    ring = fl.graphs.ring(6)
    loose = fl.problems.ridge(jax.random.key(0), clients=6, samples=5, dim=3)
    steps = fl.algorithms.FedDPSGD(0.1, local_steps=2, sampling_rate=0.5)
    return {
        "servers": (problem, drawn, servers, ZCDP(1.0)),
        "peers": (problem, peers, ring, ZCDP(1.0)),
        "peers, (epsilon, delta)": (problem, peers, ring, ApproximateDP(1.0, 1e-3)),
        "peers, discrete": (problem, peers, ring, DiscreteZCDP(1.0)),
        "server": (
            loose,
            fl.algorithms.FedAvg(0.1, selector=fl.participation.Fraction(0.5)),
            None,
            CentralGaussian(1.0, clip=fl.privacy.AdaptiveClip(share_noise=1.0)),
        ),
        "gradients": (loose, steps, None, NoisyGradients(1.0)),
    }


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("kind", private_runs())
def test_uses_of_a_private_run_have_different_keys(recorder, kind, generator):
    problem, algorithm, network, privacy = private_runs()[kind]
    simulation = fl.Simulation(problem, algorithm, network, privacy)
    recorder.calls.clear()
    key = jax.random.key(5, impl=recorder.spec_of(generator))
    fl.run(simulation, key=key, rounds=ROUNDS)
    jax.effects_barrier()
    # The library's generator is one to one under each key: an input that occurs twice is a number,
    # or a key, that is used twice. Keys may be derived again where a round asks for one again.
    house_inputs = recorder.calls["house"]
    drawn = {c: n for c, n in house_inputs.items() if c[2] >> 30 == 0}
    assert drawn
    assert max(drawn.values()) == 1
    keys_of_house = {c[:2] for c in house_inputs}
    if generator == house.GENERATOR:
        return
    # JAX's generators derive keys by the function by which they draw: nothing that is drawn from
    # is derived from, no key is drawn from twice, and none is one of the library's.
    sources = {c[:-1] for c in recorder.calls["derived"]}
    bits = collections.Counter(c[:-1] for c in recorder.calls["drawn"].elements())
    assert sources
    assert not sources & bits.keys()
    assert max(bits.values(), default=1) == 1
    assert not {c[:2] for c in sources | bits.keys()} & keys_of_house


@pytest.mark.parametrize("generator", GENERATORS)
def test_keys_of_rounds_and_purposes_differ_from_split_keys(generator):
    key = jax.random.key(3, impl=house.GENERATORS[generator])
    ours = [round_key(key, n) for n in range(5)]
    ours += [key_of(ours[1], purpose) for purpose in PURPOSES]
    other_keys = [
        other
        for parent in (key, ours[1])
        for other in (*jax.random.split(parent, 20), *jax.vmap(_fold(parent))(jnp.arange(20)))
    ]
    data = [tuple(jax.random.key_data(k).tolist()) for k in ours]
    assert len(set(data)) == len(data)
    if generator != house.GENERATOR:  # its `fold_in` keys differ from its `split` keys
        assert not set(data) & {tuple(jax.random.key_data(k).tolist()) for k in other_keys}


def _fold(key):
    return lambda number: jax.random.fold_in(key, number)


@pytest.mark.parametrize("generator", GENERATORS)
def test_private_numbers_use_keys_that_no_generator_derives(generator):
    key = jax.random.key(3, impl=house.GENERATORS[generator])
    derived = [jax.random.fold_in(key, i) for i in range(20)]
    if generator != house.GENERATOR:  # its `split` keys differ from the keys of other uses
        derived += list(jax.random.split(key, 20))
    private_words = np.stack([np.asarray(word) for word in house.words(key, (64,), 4)])
    for other in derived:
        theirs = np.asarray(jax.random.bits(other, (64,), np.uint32))
        assert not np.any(np.all(private_words == theirs, axis=1))


@pytest.mark.parametrize("generator", GENERATORS)
def test_different_keys_have_different_keys_of_the_library_s_generator(generator):
    keys = jax.random.split(jax.random.key(3, impl=house.GENERATORS[generator]), 50)
    ours = {tuple(jax.random.key_data(house.library_key(key)).tolist()) for key in keys}
    assert len(ours) == 50
    assert all(house.name_of(house.library_key(key)) == house.GENERATOR for key in keys)


def test_a_class_that_draws_without_the_link_gets_a_separate_key():
    """Also if it splits that key, or folds numbers into it, where JAX's generators coincide."""
    used = []

    @fl.module
    class Own(ZCDP):
        def draw(self, key, shape, dtype, round, clients):
            jax.debug.callback(
                lambda *d: used.append(tuple(map(int, d))), *jax.random.key_data(key)
            )
            return jnp.zeros(shape, dtype)

    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2).clipped(1.0)
    simulation = fl.Simulation(
        problem, fl.algorithms.ZCDPNFL(1.0, 0.5), fl.graphs.ring(4), Own(1.0)
    )
    key = jax.random.key(0, impl="threefry2x32")
    fl.run(simulation, key=key, rounds=2)
    jax.effects_barrier()
    rounds = [round_key(key, n) for n in range(4)]
    other_keys = [*rounds, *(jax.random.fold_in(r, p) for r in rounds for p in range(20))]
    other_keys += [key_of(r, p) for r in rounds for p in PURPOSES if p != "privacy"]
    other_data = {tuple(jax.random.key_data(k).tolist()) for k in other_keys}
    assert len(set(used)) == 2
    assert not other_data & set(used)


def test_two_descents_of_a_round_have_separate_noise():
    from tests.privacy.own import Twice

    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2)
    simulation = fl.Simulation(problem, Twice(), privacy=NoisyGradients(1000.0))
    results = fl.run(simulation, rounds=1)
    exact = -0.1 * np.asarray(problem.clipped(1.0).mean_gradient(jnp.zeros(2)))
    # The two calls release one gradient each, with noise of deviation 100: their difference keeps
    # the noise of both.
    assert np.linalg.norm(np.asarray(results.model[0]) - exact) > 0.1
    assert float(results.privacy_rho[-1]) == pytest.approx(2 * 0.5e-6)
