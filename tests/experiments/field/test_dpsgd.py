"""DP-SGD on MNIST: its claims notice other accuracies; its layers' clips, noise and moments."""

import jax
import numpy as np
import pytest
import xarray as xr
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from matplotlib import pyplot as plt

from experiments import picture
from experiments.field import figure_dpsgd as dpsgd
from experiments.field.figure_dpsgd import (
    BUDGETS,
    CLIP,
    DELTA,
    EPOCH,
    EPOCHS,
    ERROR,
    NOISE,
    PUBLISHED,
    PUBLISHED_PLAIN,
    RATE,
    SEEDS,
    TINY,
    TRAIN_ERROR,
    private,
)
from experiments.figure import Effort
from experiments.pixels import principal_directions
from fljax.privacy import accounting

CLAIMS = {claim.name: claim for claim in dpsgd.FIGURE.claims}


def errors(percent, gap):
    """Three seeds that end at a test accuracy, ``gap`` points below that of training."""
    rounds = np.array([100, 200])
    ends = percent + np.array([-0.02, 0.0, 0.02])[:, None] + np.array([-1.0, 0.0])
    coords = {"seed": range(3), "round": rounds}
    values = {ERROR: 1 - ends / 100, TRAIN_ERROR: 1 - (ends + gap) / 100}
    return xr.Dataset({name: (("seed", "round"), value) for name, value in values.items()}, coords)


def expected_studies(plain=(PUBLISHED_PLAIN, 1.5), gap=0.2, spent=0.8, **ends):
    """Studies that end a little above the published accuracies, except for the given ends."""
    studies = {f"plain{ending}": errors(*plain) for ending in dpsgd.STEPPED}
    for epsilon, percent in PUBLISHED.items():
        end = ends.get(f"e{epsilon:g}".replace(".", "_"), percent + 0.5)
        numbers = {"spent": spent * epsilon, "moments": epsilon}
        studies[private(epsilon)] = errors(end, gap).assign(numbers)
    return studies


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_on_the_expected_data(name):
    assert CLAIMS[name].judge(expected_studies()).holds


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *((f"without-privacy{ending}", {"plain": (96.0, 1.0)}) for ending in dpsgd.STEPPED),
        *((f"without-privacy{ending}", {"plain": (99.5, 1.0)}) for ending in dpsgd.STEPPED),
        ("accuracy-0.5", {"e0_5": 88.5}),
        ("accuracy-0.5", {"e0_5": 91.5}),  # a range, and no threshold
        ("accuracy-2", {"e2": 93.5}),
        ("accuracy-8", {"e8": 95.5}),
        ("more-budget-more-accuracy", {"e2": 97.9}),
        *((f"no-gap{ending}", {"gap": 2.0}) for ending in dpsgd.STEPPED),
        ("less-spent", {"spent": 1.1}),
    ],
)
def test_claims_fail_on_other_data(name, other):
    verdict = CLAIMS[name].judge(expected_studies(**other))
    assert not verdict.holds
    assert verdict.decided
    if name != "less-spent":
        assert "after 2 epochs, 3 seeds" in verdict.note


def test_seeds_are_paired_where_budgets_have_different_numbers():
    studies = expected_studies()
    few = studies | {private(8.0): studies[private(8.0)].isel(seed=slice(2))}
    gained = dpsgd.gained(few)["epsilon 8 above 2"]
    assert gained == dpsgd.difference(
        *(
            dpsgd.accuracy(studies[private(b)].isel(seed=slice(2)), ERROR)
            for b in (BUDGETS.value[2], BUDGETS.value[1])
        )
    )


@pytest.mark.parametrize(("noise", "epochs"), [(8.0, 34), (4.0, 124), (2.0, 366), (1.0, 1)])
def test_the_moments_of_both_layers_add_up(noise, epochs):
    """Against the Rényi divergences of ``dp_accounting``: the moment of order L is L times that of
    order L + 1.
    """
    orders = [order + 1 for order in dpsgd.ORDERS]
    accountant = RdpAccountant(orders)
    release = PoissonSampledDpEvent(RATE.value, GaussianDpEvent(noise))
    accountant.compose(release, 2 * EPOCH * epochs)
    divergences = accountant._rdp
    expected = min(
        divergence + np.log(1 / DELTA.value) / (order - 1)
        for order, divergence in zip(orders, divergences, strict=True)
    )
    assert dpsgd.moments_epsilon(noise, epochs) == pytest.approx(expected, rel=1e-9)


def test_the_epochs_are_those_of_the_budgets():
    """To the whole epoch, up to a hundredth; the best order is inside of those computed."""
    for epsilon, noise, epochs in zip(BUDGETS.value, NOISE.value, EPOCHS.value, strict=True):
        assert dpsgd.moments_epsilon(noise, epochs) == pytest.approx(epsilon, rel=0.01)
        assert dpsgd.moments_epsilon(noise, epochs + 2) > epsilon


def test_the_ledger_spends_that_of_both_layers_in_one_release():
    size = TINY._replace(epochs=(1, 1, 1))
    simulation = dpsgd.scenario(size, NOISE.value[0], 1.0)(jax.random.key(0))
    joint = NOISE.value[0] / np.sqrt(2)
    assert float(simulation.privacy.multiplier) == pytest.approx(joint, rel=1e-6)
    nominal = accounting.sampled_gaussian_epsilon(
        joint, DELTA.value, EPOCHS.value[0] * EPOCH, RATE.value
    )
    assert nominal < dpsgd.moments_epsilon(NOISE.value[0], EPOCHS.value[0])


def test_each_layer_is_clipped_and_has_noise_by_itself():
    """Against per-sample gradients of the network's two layers, in NumPy."""
    simulation = dpsgd.scenario(TINY, NOISE.value[0], 1.0)(jax.random.key(1))
    problem = simulation.problem
    model = 3 * np.asarray(problem.initial, float)  # some gradients beyond the clip, some below
    bias, weights, last_bias, last_weights = np.split(model, np.cumsum(problem.pieces)[:-1])
    weights = weights.reshape(-1, len(bias))
    last_weights = last_weights.reshape(len(bias), -1)
    features, targets, shares = (
        np.asarray(a, float)[0] for a in (problem.features, problem.targets, problem.weights)
    )
    total = np.zeros_like(model)
    clipped = np.zeros(2, int)
    for x, target, share in zip(features, targets, shares, strict=True):
        inner = x @ weights + bias
        hidden = np.maximum(inner, 0)
        scores = hidden @ last_weights + last_bias
        error = np.exp(scores - scores.max())
        error /= error.sum()
        error[int(target)] -= 1
        back = (last_weights @ error) * (inner > 0)
        layers = [
            np.concatenate([back, np.outer(x, back).ravel()]),
            np.concatenate([error, np.outer(hidden, error).ravel()]),
        ]
        norms = [np.linalg.norm(layer) for layer in layers]
        clipped += np.greater(norms, CLIP.value)
        total += share * np.concatenate(
            [
                layer * min(1, CLIP.value / max(norm, 1e-30))
                for layer, norm in zip(layers, norms, strict=True)
            ]
        )
    assert np.all((clipped > 0) & (clipped < len(features)))
    share = problem.influence
    row = np.asarray(model, problem.dtype)[None]
    gradient = simulation.privacy.gradient(problem, row, share)
    scale = np.abs(total).max()
    np.testing.assert_allclose(np.asarray(gradient)[0], total, rtol=1e-4, atol=1e-5 * scale)
    units = simulation.privacy.units(share, problem.dim)
    expected = NOISE.value[0] * CLIP.value * np.asarray(share)[0]
    np.testing.assert_allclose(units[0], np.full(problem.dim, expected), rtol=1e-5)


def test_principal_directions_are_those_of_normalized_images():
    images = np.random.default_rng(0).integers(1, 255, (30, 4, 3))
    rows = images.reshape(30, 12) / np.linalg.norm(images.reshape(30, 12), axis=1)[:, None]
    directions = principal_directions(images, 5)
    _, singular, expected = np.linalg.svd(rows, full_matrices=False)
    signs = np.sign((directions * expected[:5].T).sum(0))
    np.testing.assert_allclose(directions * signs, expected[:5].T, atol=1e-10)
    assert np.all(np.diff(singular[:6]) < 0)


@pytest.mark.long
def test_a_quick_run_is_judged_and_drawn():
    studies = dpsgd.study(Effort(seeds=2, tuning_seeds=1, quick=True, progress=False))
    for claim in CLAIMS.values():
        assert claim.judge(studies).cases
    for epsilon, epochs in zip(BUDGETS.value, TINY.epochs, strict=True):
        assert studies[private(epsilon)]["round"][-1] == epochs * EPOCH
    with picture.print_style():
        drawn = dpsgd.plot(studies)
    assert picture.faults(drawn) == []
    plt.close(drawn)


@pytest.mark.slow
def test_every_claim_can_be_judged_on_the_stored_results(stored):
    studies = stored(dpsgd.FIGURE)
    assert all(claim.judge(studies).cases for claim in CLAIMS.values())
    for epsilon, seeds in zip(BUDGETS.value, SEEDS.value, strict=True):
        assert studies[private(epsilon)].sizes["seed"] == seeds
    with picture.print_style():
        assert picture.faults(dpsgd.plot(studies)) == []
