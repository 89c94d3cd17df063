"""Sums over the network that stay: of trackers, corrections and controls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import (
    EXTRA,
    GTSAGA,
    KGT,
    LED,
    NIDS,
    PGEXTRA,
    ATCTracking,
    AugDGM,
    DIGing,
    ExactDiffusion,
    NetworkedADMM,
    ProxSkip,
)
from fljax.link import Quantize
from tests.cases import make_network, make_problem
from tests.support.peer_runs import EXACT_METHODS, models, peer_run

close = np.testing.assert_allclose


def invariant_sum(state):
    """The largest absolute sum over peers of a quantity whose sum is invariantly zero."""
    if hasattr(state, "tracker"):
        tracked = state.tracker - state.slope
    else:
        (tracked,) = (
            getattr(state, n) for n in ("dual", "correction", "integral") if hasattr(state, n)
        )
    return jnp.max(jnp.abs(jnp.sum(tracked, axis=0)))


SUMS = fl.metrics.Metric("sums", lambda now: invariant_sum(now.state), "sums")


@pytest.mark.thin(1)
@pytest.mark.parametrize("label", sorted(set(EXACT_METHODS) - {"Exact diffusion", "ADMM tracking"}))
def test_sums_are_kept_by_links_that_fail_and_by_rounded_messages(label):
    parts = {"losses": fl.link.Independent(0.3), "compression": fl.link.Quantize(4)}
    simulation = fl.Simulation(
        make_problem(), EXACT_METHODS[label], make_network(), metrics=[SUMS], **parts
    )
    results = fl.run(simulation, 40, as_key(1))
    close(results["sums"], 0, atol=1e-10)
    assert np.abs(results.model - models(EXACT_METHODS[label], 40)[-1]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["compression", "losses"])
def test_sums_are_invariant_under_message_failures(stage):
    """Trackers sum to the sum of estimates; controls and corrections sum to zero."""
    parts = {"compression": Quantize(3), "losses": fl.link.Independent(0.4, symmetric=False)}
    part = {stage: parts[stage]}
    tracked = [fl.metrics.trajectory(name) for name in ("tracker", "estimate")]
    results = peer_run(GTSAGA(0.01), 8, metrics=tracked, **part)
    total = results.tracker_trajectory.sum("client") - results.estimate_trajectory.sum("client")
    if stage == "compression":
        close(total, 0, atol=1e-12)
    results = peer_run(ProxSkip(0.02, 0.7), 8, metrics=[fl.metrics.trajectory("control")], **part)
    values = results.control_trajectory
    assert float(abs(values).max()) > 1e-3
    if stage == "compression":
        close(values.sum("client"), 0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        EXTRA(0.1),
        PGEXTRA(0.1),
        NIDS(0.1),
        ExactDiffusion(0.1),
        LED(0.05, local_steps=2),
        DIGing(0.03),
        ATCTracking(0.03),
        AugDGM(0.03),
        KGT(0.03, local_steps=2),
        fl.algorithms.ProxSkip(0.1, 0.5),
        fl.algorithms.GTSVRG(0.03, period=1),
        NetworkedADMM(0.5),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_sums_over_the_network_hold_in_single_precision(algorithm):
    """Over links that fail, where sums of rounded models wander off: -67 dB after 10,000 rounds."""
    with jax.enable_x64(False):
        simulation = fl.Simulation(
            fl.problems.ridge(jax.random.key(0), clients=16, samples=20, dim=4),
            algorithm,
            fl.graphs.ring(16),
            losses=fl.link.Independent(0.1),
            metrics=["normalized_error"],
        )
        results = fl.run(simulation, rounds=10_000, record_every=500, key=1).normalized_error.values
    assert results.dtype == np.float32
    assert results[[3, -1]].max() < 1e-10, 10 * np.log10(results)
