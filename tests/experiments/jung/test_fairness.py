"""Fairness: stored results, measures that detect broken data, scenarios by hand."""

import jax
import numpy as np
import pytest

import fljax as fl
from experiments import picture
from experiments.figure import Effort
from experiments.jung import figure_fairness as figure
from experiments.jung.figure_fairness import AGNOSTIC, AS_IS, DRAWN, FLIPPED, PARITY, SOFT, WORST

CLAIMS = {claim.name: claim for claim in figure.FIGURE.claims}
#: On held-out data it is level with q-FedAvg.
FAILS = {"worst-is-best-served-by-afl"}


def test_claims_hold_on_the_stored_results(stored):
    studies = stored(figure.FIGURE)
    assert {name for name, claim in CLAIMS.items() if not claim.judge(studies).holds} == FAILS


@pytest.mark.parametrize(
    ("claim", "study", "name", "value", "where"),
    [
        ("bias-is-learned", "feature", "flip_effect", 0.0, {"data": AS_IS, "bias": 1.0}),
        ("flipped-copies-cure", "feature", "flip_effect", 0.1, {"data": FLIPPED, "bias": 2.0}),
        ("drawn-copies-lessen", "feature", "flip_effect", 9.0, {"data": DRAWN, "bias": 1.0}),
        ("drawn-copies-leave-half", "feature", "flip_effect", 0.0, {"data": DRAWN, "bias": 1.0}),
        ("groups-are-treated-alike", "feature", PARITY, 0.2, {"data": FLIPPED, "bias": 0.5}),
        ("accuracy-gains", "feature", "accuracy", 0.5, {"data": FLIPPED, "bias": 1.0}),
        ("proxies-stay", "feature", PARITY, 0.1, {"data": FLIPPED, "bias": 1.0}),
        ("worst-tenth-gains", "clients", WORST, 0.4, {"algorithm": AGNOSTIC}),
        ("spread-shrinks", "clients", figure.SPREAD, 0.4, {"algorithm": SOFT}),
        ("mean-pays", "clients", "accuracy", 0.99, {"algorithm": SOFT}),
    ],
)
def test_claims_detect_wrong_data(stored, claim, study, name, value, where):
    studies = dict(stored(figure.FIGURE))
    data = studies[study].copy(deep=True)
    data[name] = data[name].copy(data=np.array(data[name].values))
    data[name].loc[where] = value
    assert not CLAIMS[claim].judge(studies | {study: data}).holds


def test_past_decisions_are_biased_and_judging_ones_are_not():
    for fair, expected in ((False, 0.4), (True, 0.0)):
        x, y = figure.decided(jax.random.key(0), 1.0, 0.0, fair)
        x = np.asarray(x).reshape(-1, 4)
        y = np.asarray(y).reshape(-1)
        assert set(x[:, figure.SENSITIVE].tolist()) == {-1.0, 1.0}
        gap = (y[x[:, 3] > 0] > 0).mean() - (y[x[:, 3] < 0] > 0).mean()
        assert abs(gap - expected) < 0.1


@pytest.mark.slow
def test_a_minority_has_another_truth():
    problem = figure.unlike(jax.random.key(0))
    data = problem.features, problem.targets, problem.loss
    models = fl.problems.train(fl.problems.Problem(*data, fl.problems.SquaredL2(), 0.1))
    models = np.asarray(models) / np.linalg.norm(models, axis=1, keepdims=True)
    similarity = models @ models[-1]
    few = figure.FEW.value
    assert similarity[few:].min() > 0.8
    assert np.abs(similarity[:few]).max() < 0.5


@pytest.mark.slow
@pytest.mark.long
def test_a_quick_run_can_be_drawn():
    allow = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with allow[0], allow[1]:
        studies = figure.study(Effort(seeds=3, tuning_seeds=1, quick=True, progress=False))
    with picture.print_style():
        assert picture.faults(figure.plot(studies)) == []
    assert CLAIMS["bias-is-learned"].judge(studies).holds
    assert CLAIMS["flipped-copies-cure"].judge(studies).holds
