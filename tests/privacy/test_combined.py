"""Promises where several parts of a simulation meet: servers' steps, masks, relations, results."""

import dataclasses

import jax
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax import audit
from fljax.algorithms import ATC, FedAdagrad, FedAdam, FedAvg, FedAvgM, FedDPSGD, FedYogi
from fljax.link import SecureAggregation
from fljax.privacy import (
    ZCDP,
    AdaptiveClip,
    CentralGaussian,
    DiscreteZCDP,
    NoisyGradients,
    PureDP,
)
from fljax.problems import LeastSquares, Problem
from fljax.simulation.leaks import unperturbed
from tests.support.marks import quiet

SERVERS = {
    "FedAvg": FedAvg(0.5, weighting="equal", epochs=2),
    "FedAvgM": FedAvgM(0.5, weighting="equal", epochs=2),
    "FedAdagrad": FedAdagrad(0.5, weighting="equal", server_step_size=0.1),
    "FedAdam": FedAdam(0.5, weighting="equal", server_step_size=0.1),
    "FedYogi": FedYogi(0.5, weighting="equal", server_step_size=0.1),
}

MASKS = SecureAggregation(100.0)
ADAPTIVE = AdaptiveClip(0.3, share_noise=0.5)


def small_problem(neighbors="replace", clip=False):
    """Four clients with five samples each, of three features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 5, 3))
    y = rng.normal(size=(4, 5))
    problem = Problem(x, y, LeastSquares())
    return problem.clipped(1.0) if clip else problem


# A trusted server's steps -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "clip", [0.3, AdaptiveClip(0.3, share_noise=0.5)], ids=["fixed", "adaptive"]
)
@pytest.mark.parametrize("neighbors", ["replace", "add-or-remove"])
@pytest.mark.parametrize("name", SERVERS)
def test_each_client_s_effect_on_a_server_s_sum_is_bounded(name, neighbors, clip):
    """For any use of the sum by the server; the search reaches the stated bound."""
    privacy = CentralGaussian(2.0, clip=clip, neighbors=neighbors)
    simulation = fl.Simulation(small_problem(), SERVERS[name], privacy=privacy)
    result = audit.worst_neighbors(simulation, rounds=3, evaluations=512)
    assert result.holds
    # With a clip that adapts it would take a pair that is only just within, and just not.
    assert (0.99 if clip == 0.3 else 0.86) < result.gap < 1 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("neighbors", ["replace", "add-or-remove"])
@pytest.mark.parametrize("name", ["FedAvgM", "FedAdagrad"])
def test_a_server_s_steps_survive_an_attack_that_finds_most_of_the_claim(name, neighbors):
    privacy = CentralGaussian(2.0, clip=0.3, neighbors=neighbors)
    simulation = fl.Simulation(small_problem(), SERVERS[name], privacy=privacy)
    result = audit.worst_neighbors(simulation, rounds=2, evaluations=512)
    report = audit.two_worlds(*result.pair, 2, 4000, delta=0.05)
    assert not report.broken
    assert report.ledger["rho"] == pytest.approx((2 if neighbors == "replace" else 0.5) * 2 / 4)
    assert report.bound > 0.5 * report.claimed
    # One of the two rounds is all that a client can be missing in.
    assert report.mu <= np.sqrt(2 * report.ledger["rho"]) * 1.1


# Masks together with a budget ---------------------------------------------------------------------


def masked(masks, privacy, algorithm=None):
    algorithm = FedAvg(0.2, weighting="equal") if algorithm is None else algorithm
    problem = small_problem(clip=isinstance(privacy, ZCDP | PureDP))
    return fl.Simulation(problem, algorithm, privacy=privacy, masks=masks, model="released")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("privacy", "algorithm"),
    [
        (ZCDP(1.0), fl.algorithms.ConventionalFL(0.2)),
        (DiscreteZCDP(1.0), fl.algorithms.ConventionalFL(0.2)),
        (PureDP(5.0), fl.algorithms.ConventionalFL(0.2)),
        (NoisyGradients(1.0), FedDPSGD(0.2, local_steps=2)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_masks_change_neither_noise_nor_ledger(privacy, algorithm):
    unmasked, hidden = (
        fl.run(masked(masks, privacy, algorithm), rounds=3) for masks in (None, MASKS)
    )
    np.testing.assert_allclose(hidden.model, unmasked.model, rtol=1e-9, atol=1e-9)
    assert np.ptp(hidden.model.values) > 0
    for name in unmasked.data_vars:
        if str(name).startswith(("privacy_", "client_")) or name in ("nominal", "gaussian_noise"):
            xr.testing.assert_equal(hidden[name], unmasked[name])
    # Noise that is swallowed behind it is swallowed in what already left.
    np.testing.assert_allclose(hidden.rounding, unmasked.rounding, rtol=1e-6)


def test_masks_do_not_go_with_a_server_that_looks_at_single_updates():
    with pytest.raises(ValueError, match="no account under CentralGaussian for masked messages"):
        fl.run(masked(MASKS, CentralGaussian(1.0)), rounds=1)


# Several relations of neighbors ----------------------------------------------------------------


def related(key, relation, kind="gaussian"):
    kinds = {"gaussian": ZCDP, "discrete": DiscreteZCDP}
    return fl.Simulation(
        small_problem(clip=True),
        ATC(0.1),
        network=fl.graphs.ring(4),
        privacy=kinds[kind](0.5, neighbors=relation),
    )


@pytest.mark.slow
@quiet
@pytest.mark.parametrize("kind", ["gaussian", "discrete"])
def test_results_of_several_relations_state_them_and_are_not_exported(kind):
    """Each point's epsilon equals that of a run alone; nothing is exported under one relation's
    name.
    """
    pytest.importorskip("dp_accounting")
    relations = ["replace", "add-or-remove", "client"]

    def scenario(key, relation):
        return related(key, relation, kind)

    study = fl.sweep(scenario, grid={"relation": fl.static(relations)}, rounds=3, progress=False)
    neighbors = study.privacy_rho.attrs["neighbors"]
    assert all(relation in neighbors for relation in relations)
    assert neighbors in study.attrs["privacy"]
    for relation in relations:
        alone = fl.sweep(scenario, grid={"relation": fl.static([relation])}, rounds=3)
        assert fl.privacy.spent(alone, 1e-3).epsilon.isel(round=-1).item() == pytest.approx(
            fl.privacy.spent(study, 1e-3).epsilon.sel(relation=relation).isel(round=-1).item()
        )
        assert fl.privacy.events(alone.sel(relation=relation)) is not None
        with pytest.raises(ValueError, match="neighbors are of different kinds"):
            fl.privacy.events(study.sel(relation=relation))


@pytest.mark.slow
@quiet
def test_amplification_applies_to_its_own_relation_alone():
    """Point by point of one study, and no event of both."""
    pytest.importorskip("dp_accounting")

    def scenario(key, relation):
        averaging = FedAvg(0.1, weighting="equal", selector=fl.participation.Fraction(0.5))
        privacy = CentralGaussian(2.0, neighbors=relation)
        return fl.Simulation(small_problem(), averaging, privacy=privacy)

    relations = fl.static(["replace", "add-or-remove"])
    study = fl.sweep(scenario, grid={"relation": relations}, rounds=4, progress=False)
    epsilon = fl.privacy.spent(study, 1e-3).epsilon.isel(round=-1, seed=0)
    rate = study.sampling_rate.isel(seed=0)
    assert rate.sel(relation="replace").item() == 1.0
    assert rate.sel(relation="add-or-remove").item() == 0.5
    rho = study.privacy_rho.sel(relation="replace").isel(round=-1, seed=0).item()
    assert rho in (0.5, 1.0, 1.5, 2.0)  # of the client that took part most often
    assert epsilon.sel(relation="replace").item() == pytest.approx(
        audit.claimed_epsilon({"rho": rho, "gaussian_noise": 1}, 1e-3)
    )
    assert epsilon.sel(relation="add-or-remove") < epsilon.sel(relation="replace") / 2
    with pytest.raises(ValueError, match="neighbors are of different kinds"):
        fl.privacy.events(study.sel(relation="add-or-remove"))


# Held-out data ----------------------------------------------------------------------------------


@quiet
@pytest.mark.slow
def test_held_out_data_of_private_clients_do_not_change_messages():
    """Metrics read held-out data without a promise; released models do not depend on them."""
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(8, 3)), rng.normal(size=8)) for _ in range(4)]
    problem = fl.problems.from_clients(pairs, LeastSquares()).clipped(1.0).split(jax.random.key(0))

    def run(test_data):
        simulation = fl.Simulation(
            dataclasses.replace(problem, test=test_data),
            fl.algorithms.ConventionalFL(0.1),
            privacy=ZCDP(1.0),
            metrics=["test_error"],
            model="released",
        )
        assert unperturbed(simulation) == []
        return fl.run(simulation, rounds=3)

    test = problem.test
    result = run(test)
    other = run(dataclasses.replace(test, targets=test.targets + 100))
    np.testing.assert_array_equal(result.model, other.model)
    np.testing.assert_array_equal(result.privacy_rho, other.privacy_rho)
    assert (result.test_error != other.test_error).all()
