"""Gradient steps: measures that see broken data, and steps against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments import picture
from experiments.figure import Effort
from experiments.jung import figure_descent as figure
from experiments.jung.figure_descent import (
    ACCURACIES,
    APART,
    AT_RANDOM,
    BITS,
    EARLY,
    EVEN,
    FAST,
    GOOD,
    LARGE,
    LATE,
    NEAREST,
    OVER,
    RANDOM,
    SEEN,
    SLOW,
    SLOWEST,
    SMALL,
    STEPS,
    SWEPT,
)
from fljax._core.devices import configured

SEEDS = 4
CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}


def expected_studies():
    """What the claims say, but that (88) holds as printed."""
    steps = np.arange(1, STEPS.value + 1)
    over = np.asarray(OVER.value)
    height = np.stack([0.99 + 0 * steps, 0.5**steps, 2.0**steps])
    late = 0.5 + np.abs(np.asarray(SWEPT.value) - 0.75)
    quantized = np.array([1e-4, 1e-3, 1e-2]) * np.ones((2, len(BITS.value), 1))
    parts = {
        "height": (("rate", "step"), height),
        "late": (("swept",), late),
        "factor": (("swept",), late),
        "over": (("swept",), 0.9 + 0 * late),
        "best_rate": ((), np.array(0.75)),
        "reached": (("accuracy",), np.array([0.5, 0.6, 0.7])),
        "needed": (("accuracy",), np.array([2, 4, 6])),
        "shaken": (("kind", "step"), 0.01 + 0 * np.stack([steps, steps])),
        "repaired": (("step",), 0.03 + 0.0 * steps),
        "printed": (("step",), 0.02 + 0.0 * steps),
        "quantized": (("rounding", "mean_bits", "plan"), quantized),
    }
    spread = 1 + 1e-3 * np.arange(SEEDS)
    variables = {}
    for name, (axes, values) in parts.items():
        many = spread.reshape(-1, *np.ones(values.ndim, int)) * values
        variables[name] = (("seed", *axes), many, {"units": "1", "decibel": 0, "long_name": name})
    coords = {
        "seed": range(SEEDS),
        "rate": [SMALL, GOOD, LARGE],
        "swept": [*SWEPT.value],
        "accuracy": [*ACCURACIES.value],
        "kind": [RANDOM, SLOWEST],
        "mean_bits": [*BITS.value],
        "rounding": [NEAREST, AT_RANDOM],
        "plan": [LATE, EVEN, EARLY],
        "step": steps,
    }
    descents = xr.Dataset(variables, coords)
    label = {"units": "1", "decibel": 1, "long_name": "risk"}
    t = np.arange(1, SEEN.value + 1)
    exact = np.stack([1 / (t + 5), 1 / np.sqrt(t + 5)])
    runs = spread[:, None, None] * exact
    online = xr.Dataset(
        {
            APART: (("seed", "schedule", "round"), runs, label),
            "exact": (("schedule", "round"), exact),
            "diverged": (("seed", "schedule"), np.zeros((SEEDS, 2), int)),
        },
        {"seed": range(SEEDS), "schedule": [FAST, SLOW], "round": t},
    )
    factor = 1 - over / 2
    label = {"units": "1", "decibel": 0, "long_name": "factor"}
    averages = xr.Dataset(
        {
            "factor": (("seed", "rate"), spread[:, None] * factor, label),
            "said": (("seed", "rate"), np.tile(factor, (SEEDS, 1)), label),
            "left": ("seed", 1e-9 * spread),
        },
        {"seed": range(SEEDS), "rate": over},
    )
    return {"descents": descents, "averages": averages, "online": online}


def test_claims_hold_on_the_expected_data():
    studies = expected_studies()
    assert [name for name, claim in CLAIMS.items() if not claim.judge(studies).holds] == []


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("too-large-overshoots", "descents", "height", 0.5, {"rate": LARGE}),
        ("too-small-is-negligible", "descents", "height", 0.5, {"rate": SMALL}),
        ("contraction", "descents", "over", 1.1, {"seed": 2, "swept": SWEPT.value[3]}),
        ("best-rate", "descents", "late", 0.1, {"seed": 1, "swept": SWEPT.value[3]}),
        ("steps-needed", "descents", "reached", 1.1, {"seed": 1, "accuracy": 1e-4}),
        ("perturbed-as-printed", "descents", "shaken", 0.025, {"kind": RANDOM, "step": 1}),
        ("perturbed-repaired", "descents", "shaken", 0.04, {"kind": SLOWEST, "step": 1}),
        ("bits-late", "descents", "quantized", 0.5, {"plan": LATE, "rounding": NEAREST}),
        ("bits-not-early", "descents", "quantized", 1e-5, {"plan": EARLY, "mean_bits": 8}),
        ("online-bounds", "online", APART, 99.0, {"schedule": SLOW}),
        ("online-fast", "online", "exact", 0.5, {"schedule": FAST}),
        ("online-slow", "online", "exact", 9.0, {"schedule": SLOW, "round": slice(1000, None)}),
        ("limit-is-the-average", "averages", "left", 1e-3, {}),
        ("averaging-factor", "averages", "factor", 0.2, {"seed": 1, "rate": OVER.value[0]}),
    ],
)
def test_claims_detect_wrong_studies(claim, study, name, value, where):
    studies = expected_studies()
    studies[study][name].loc[where] = value
    assert not CLAIMS[claim].judge(studies).holds


def test_budgets_are_as_large_as_each_other():
    bits = np.asarray(figure.budgets(), float).reshape(len(BITS.value), 3, -1)
    np.testing.assert_allclose(bits.mean(axis=2), np.asarray(BITS.value)[:, None] * np.ones(3))
    assert (np.diff(bits[:, 0]) > 0).all()
    assert (np.diff(bits[:, 2]) < 0).all()
    assert bits.min() >= 1


def test_steps_equal_a_loop():
    q, best, _, ends = figure.quadratic(jax.random.key(0))
    q = np.asarray(q, float)
    best = np.asarray(best, float)
    rate = float(ends.best_step)
    shaken = np.random.default_rng(0).normal(size=(5, len(best)))
    off = figure.descended(q, best, rate, jnp.zeros(len(best)), jnp.asarray(shaken))
    w = np.zeros(len(best))
    target = -2 * q @ best
    for added, row in zip(shaken, np.asarray(off), strict=True):
        w = w - rate * (2 * q @ w + target) + added
        np.testing.assert_allclose(row, w - best, atol=1e-10)
    bits = np.array([3.0, 4.0])
    error = float(figure.quantized(q, best, ends, bits, jnp.full((2, len(best)), 0.5)))
    w = np.zeros(len(best))
    widest = np.abs(2 * q @ best).max()
    for bit in bits:
        level = 2 * widest / 2**bit
        w = w - rate * level * np.floor(2 * q @ (w - best) / level + 0.5)
    assert error == pytest.approx(np.sum((w - best) ** 2) / np.sum(best**2))


@pytest.mark.slow
def test_a_quick_run_can_be_drawn():
    allow = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with configured("jax_enable_x64", True), allow[0], allow[1]:
        studies = figure.study(Effort(seeds=3, tuning_seeds=1, quick=True, progress=False))
    with picture.print_style():
        assert picture.faults(figure.plot(studies)) == []
    assert CLAIMS["perturbed-repaired"].judge(studies).holds
    assert not CLAIMS["perturbed-as-printed"].judge(studies).holds
