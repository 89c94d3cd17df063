"""PAO-Fed and PSO-Fed: shared portions, weights of late messages, bad arguments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax._core.prng import key_of
from fljax.algorithms import OnlineFed, PAOFed, PSOFed
from fljax.link import Circular, DelayTrace, Fixed, Geometric, Random
from tests.cases import online_loop
from tests.reference import online
from tests.support.online_world import (
    EVERY,
    FIXED,
    MU,
    PAO,
    agree,
    compare,
    few,
    models,
    new_key,
    short_run,
    world,
)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("coordinated", [False, True])
@pytest.mark.parametrize("send_next", [False, True])
def test_both_ends_know_the_shared_portions(monkeypatch, coordinated, send_next):
    """Random portions: a round receives the entries that the round before announced."""
    case = few()
    key = new_key(5)
    sharing = Random(4, coordinated)

    draw = functools.partial(
        sharing.mask, key_of(jax.random.fold_in(key, 0), "sharing"), clients=jnp.arange(5), dim=9
    )
    masks = np.asarray(jax.vmap(lambda n: draw(round=n))(jnp.arange(50)))
    monkeypatch.setattr(online, "portion", lambda n, k, *_: masks[n, k])
    algorithm = PAOFed(MU, sharing, send_next, discount=0.5)
    expected = online_loop(algorithm, case.environment, case.delays.lags)
    compare(case.simulate(algorithm), expected, key)


@pytest.mark.thin(1)
@pytest.mark.parametrize("aggregation", ["per delay", "pooled"])
@pytest.mark.slow
def test_whole_models_shared_partially_are_online_fed(aggregation):
    """``m = D``: what clients learn on their own is overwritten before it is sent."""
    partial = PAOFed(MU, Circular(9), aggregation=aggregation)
    full = OnlineFed(MU, aggregation=aggregation)
    agree(models(world().simulate(partial)), models(world().simulate(full)))


def test_without_weight_late_messages_do_not_count():
    case = world()
    algorithm = PAO["no discounted"]
    table = np.asarray(case.delays.table)
    lost = case.simulate(algorithm, delays=DelayTrace(np.where(table > 0, -1, table), 10))
    agree(models(case.simulate(algorithm)), models(lost))


@pytest.mark.slow
def test_no_delay_is_a_delay_of_zero():
    case = world()
    algorithm = EVERY["U2"]
    none = models(case.simulate(algorithm, delays=None))
    at_once = DelayTrace(np.zeros((48, 40), int), 10)
    for delays in (Fixed(0), at_once):
        agree(models(case.simulate(algorithm, delays=delays)), none)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (
            ValueError,
            lambda: short_run(PAOFed(MU, Circular(5))),
            "1 to 4 of the model's 4 parameters.*size=5",
        ),
        (
            ValueError,
            lambda: short_run(PSOFed(MU, Random(5))),
            "1 to 4 of the model's 4 parameters.*size=5",
        ),
        (ValueError, lambda: PAOFed.variant("C3", MU), "unknown variant 'C3'; known: C0, U0"),
        (ValueError, lambda: PAOFed(MU, discount=1.2), "discount must be finite and >= 0 and <= 1"),
        (ValueError, lambda: PAOFed(MU, discount=-0.1), "discount must be .* >= 0 .*got -0.1"),
        (ValueError, lambda: PAOFed(MU, discount=[1, 0.5, 2]), "discount must be .* <= 1, got 2"),
        (
            ValueError,
            lambda: short_run(PAOFed(MU, discount=[1.0, 0.5]), delays=Geometric(0.5, 3)),
            "discount.*4.*2",
        ),
        (
            ValueError,
            lambda: short_run(PAOFed(MU, discount=[0.5]), delays=Geometric(0.5, 3)),
            "discount.*4.*1",
        ),
        (ValueError, lambda: short_run(PAOFed(MU, discount=[1.0, 0.5])), "discount.*1.*2"),
        (ValueError, lambda: PAOFed(0.0), "step size must be finite and > 0, got 0"),
        (ValueError, lambda: PAOFed(MU, received="portions"), "Did you mean 'portion'"),
        (ValueError, lambda: PAOFed(MU, aggregation="per_delay"), "Did you mean 'per delay'"),
        (
            ValueError,
            lambda: short_run(problem=FIXED),
            "PAO-Fed learns from a stream, got a fixed problem.*Replay",
        ),
        (TypeError, lambda: PAOFed(MU, 4), "sharing must be .*Sharing, got 4"),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
