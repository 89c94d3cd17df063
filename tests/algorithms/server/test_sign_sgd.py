"""SignSGD: random signs, bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax._core.prng import key_of
from fljax.algorithms import SignSGD
from fljax.link import Sign, StochasticSign
from tests.reference import online
from tests.support.online_world import MU, compare, new_key, short_run, world


@pytest.mark.slow
def test_stochastic_signs():
    case = world()
    key = new_key(6)
    algorithm = SignSGD(0.05, True, StochasticSign(0.8))
    rounds, clients, dim = case.environment.features.shape

    @jax.vmap
    def uniforms(n):
        now = key_of(jax.random.fold_in(key, n), "compression")
        keys = jax.vmap(lambda k: jax.random.fold_in(now, k))(jnp.arange(clients))
        return jax.vmap(lambda key: jax.random.uniform(key, (dim,), float))(keys)

    drawn = np.asarray(uniforms(jnp.arange(1, rounds + 1)))
    expected = online.sign_sgd(
        case.environment, 0.05, uniforms=drawn, bound=0.8, longest=case.longest
    )
    compare(case.simulate(algorithm), expected, key)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: SignSGD(np.inf), "step size must be finite and > 0, got inf"),
        (TypeError, lambda: SignSGD(MU, signs="sign"), "signs must be .*Compressor"),
        (
            ValueError,
            lambda: short_run(SignSGD(MU), compression=Sign()),
            "SignSGD compresses its messages itself; leave out compression=",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
