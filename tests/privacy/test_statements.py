"""Statements of private results: seeds, values that no budget covers, releases."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import ConventionalFL, FedAvg
from fljax.privacy import (
    ZCDP,
    ApproximateDP,
    CentralGaussian,
    PureDP,
    accounting,
    assumptions,
    not_covered,
    spent,
)
from tests.support.marks import quiet

SECRET = 2**100 + 12345
DELTA = 1e-5


def problem(clip=1.0):
    unsplit = fl.problems.logistic(jax.random.key(0), clients=4, samples=12, dim=2).clipped(clip)
    return unsplit.split(jax.random.key(1), test=0.25)


def simulation(privacy=None, algorithm=None, **options):
    budget = ZCDP(0.5) if privacy is None else privacy
    options = {"metrics": ["objective", "accuracy"], "model": "released"} | options
    return fl.Simulation(problem(), algorithm or ConventionalFL(0.1), privacy=budget, **options)


def scenario(key):
    return simulation()


STUDY: dict[str, Any] = {"rounds": 2, "seeds": 2, "progress": False}


def changed(**options: Any) -> dict[str, Any]:
    """Arguments of a small study."""
    return STUDY | options


# Seeds ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_state_the_source_of_their_noise():
    run = fl.run(simulation(), rounds=2)
    study = fl.sweep(scenario, **STUDY)
    for results in (run, study):
        stated = assumptions(results)
        assert "must be secret" in stated["seed"]
        assert "the budget means nothing" in spent(results, DELTA).attrs["privacy"]
        assert "must be secret" in results.attrs["privacy"]
    assert "all runs with this key, which is 0 by default" in assumptions(run)["runs"]
    assert "publish one run of each seed" in assumptions(study)["runs"]
    independent = fl.sweep(scenario, **STUDY, independent_noise=True)
    assert assumptions(independent)["runs"].startswith("no other grid point")
    assert "must be secret" in assumptions(independent)["seed"]
    drawn = fl.run(simulation(), rounds=2, noise_seed="entropy")
    assert "which nothing records" in assumptions(drawn)["seed"]
    assert (
        "not recorded and must be secret"
        in (assumptions(fl.sweep(scenario, **STUDY, noise_seed=SECRET))["seed"])
    )


@pytest.mark.slow
def test_a_noise_seed_determines_the_noise_and_is_not_recorded():
    """With it the noise is drawn again; without it neither root, seed nor key are enough."""

    def scenario_(key, budget=0.5):
        return simulation(ZCDP(budget))

    options: dict[str, Any] = {"rounds": 1, "seeds": 2, "keep_models": True, "progress": False}
    secrets = {"none": None, "one": SECRET, "other": SECRET + 1, "entropy": "entropy"}
    studies = {
        n: fl.sweep(scenario_, **options, noise_seed=secret) for n, secret in secrets.items()
    }
    again = fl.sweep(scenario_, **options, noise_seed=SECRET)
    np.testing.assert_array_equal(again.model, studies["one"].model)
    once_more = fl.sweep(scenario_, **options, noise_seed="entropy").model.values
    models = [study.model.values for study in studies.values()] + [once_more]
    for i, first in enumerate(models):
        for second in models[:i]:
            assert np.abs(first - second).max() > 1e-3
    grid = fl.sweep(scenario_, **options, grid={"budget": [0.5, 0.5000001]}, noise_seed=SECRET)
    assert np.abs(grid.model[0] - grid.model[1]).max() > 1e-3  # of each point its own
    runs = [fl.run(scenario_(None), rounds=1, noise_seed=secret) for secret in secrets.values()]
    for i, first in enumerate(runs):
        for second in runs[:i]:
            assert np.abs(first.model - second.model).max() > 1e-3
    for results in (studies["one"], runs[1]):
        assert f"{SECRET}" not in str(results.attrs)
        assert f"{SECRET:x}" not in str(results.attrs)
        assert results.attrs["noise_seed"] == "given"


@pytest.mark.slow
def test_a_store_recognizes_a_noise_seed_that_it_does_not_hold(tmp_path):
    options: dict[str, Any] = STUDY | {"store": tmp_path}
    first = fl.sweep(scenario, **options, noise_seed=SECRET)
    resumed = fl.sweep(scenario, **changed(seeds=3, store=tmp_path), noise_seed=SECRET)
    np.testing.assert_array_equal(resumed.objective[:2], first.objective)
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert str(SECRET).encode() not in content
        assert f"{SECRET:x}".encode() not in content
    for other in (SECRET + 1, None):
        with pytest.raises(ValueError, match="holds another study"):
            fl.sweep(scenario, **options, noise_seed=other)
    with pytest.raises(ValueError, match="forgotten after the run"):
        fl.sweep(scenario, **options, noise_seed="entropy")


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (7, ValueError, r"at least 2\*\*63"),
        (-(2**70), ValueError, r"at least 2\*\*63"),
        ("secret", ValueError, 'integer or "entropy"'),
        (1.5, TypeError, "noise_seed"),
    ],
)
def test_a_noise_seed_that_can_be_guessed_is_refused(bad, error, message):
    with pytest.raises(error, match=message):
        fl.sweep(scenario, **STUDY, noise_seed=bad)
    with pytest.raises(error, match=message):
        fl.run(simulation(), rounds=1, noise_seed=bad)


# Many seeds -------------------------------------------------------------------------------------


def test_all_seeds_together_cost_their_composition():
    study = fl.sweep(scenario, rounds=2, seeds=20, progress=False)
    cost = spent(study, DELTA)
    everything = spent(study, DELTA, seeds="all")
    assert float(cost.epsilon.isel(seed=0, round=-1)) == pytest.approx(4.38, abs=0.01)
    assert float(everything.epsilon.isel(round=-1)) == pytest.approx(28.4, abs=0.05)
    assert "seed" not in everything.epsilon.dims
    assert cost.epsilon.attrs["long_name"].endswith("one seed")
    assert everything.epsilon.attrs["long_name"].endswith("all 20 seeds")
    assert 'seeds="all"' in cost.attrs["seeds"]
    assert "all 20 seeds" in everything.attrs["seeds"]
    few = spent(study.isel(seed=slice(0, 1)), DELTA, seeds="all")
    np.testing.assert_allclose(few.epsilon, cost.epsilon.isel(seed=0))


def ledger(seeds=5, **columns):
    """Results with a ledger, of equal runs."""
    import xarray as xr

    values = {
        name: (("seed",) if name in ("gaussian_noise",) else ("seed", "round"), value)
        for name, value in columns.items()
    }
    shaped = {
        name: (dims, np.full((seeds,) if len(dims) == 1 else (seeds, 1), value))
        for name, (dims, value) in values.items()
    }
    return xr.Dataset(shaped, {"seed": range(seeds), "round": [1]})


def test_all_seeds_of_every_kind_of_ledger():
    def of(seeds, **columns):
        return float(spent(ledger(seeds, **columns), DELTA, seeds="all").epsilon.item())

    zcdp = float(accounting.zcdp_epsilon(2.5, DELTA, "canonne-kamath-steinke"))
    assert of(5, privacy_rho=0.5) == pytest.approx(zcdp)
    gaussian = float(accounting.zcdp_epsilon(2.5, DELTA, "gaussian"))
    assert of(5, privacy_rho=0.5, gaussian_noise=1.0) == pytest.approx(gaussian)
    # Few large pure guarantees add up; many small ones compose better than that, soundly.
    assert of(2, privacy_epsilon=3.0) <= 6
    exact = [randomized_delta(100, 0.1, epsilon) for epsilon in (of(100, privacy_epsilon=0.1), 3.0)]
    assert exact[0] <= DELTA < exact[1]
    assert of(100, privacy_epsilon=0.1) < 6
    pair: dict[str, Any] = {"privacy_epsilon": 0.1, "privacy_delta": 1e-8}
    assert of(100, **pair) < 10
    assert of(100, **pair) > of(100, privacy_epsilon=0.1) - 1e-9
    assert of(100, **(pair | {"privacy_delta": 1e-6})) == math.inf
    with pytest.raises(ValueError, match="seed axis"):
        spent(fl.run(simulation(), rounds=1), DELTA, seeds="all")
    with pytest.raises(ValueError, match="seeds"):
        spent(ledger(privacy_rho=0.5), DELTA, seeds="some")


def randomized_delta(count, epsilon, total):
    """Exact delta of ``count`` randomized responses at a total epsilon (Kairouz et al. 2015)."""
    from scipy import stats

    truths = np.arange(count + 1)
    p = stats.binom.pmf(truths, count, 1 / (1 + math.exp(-epsilon)))
    return float(np.sum(p * np.maximum(0, -np.expm1(total - (2 * truths - count) * epsilon))))


@pytest.mark.slow
@quiet
def test_sampled_releases_of_all_seeds_add_up():
    pytest.importorskip("dp_accounting")

    def sampled(key):
        selector = fl.participation.Fraction(0.25)
        algorithm = FedAvg(0.1, weighting="equal", selector=selector)
        return simulation(CentralGaussian(2.0, clip=1.0), algorithm, model="exact")

    study = fl.sweep(sampled, rounds=6, seeds=3, progress=False)
    together = float(spent(study, DELTA, seeds="all").epsilon.isel(round=-1))
    assert together == pytest.approx(
        accounting.sampled_gaussian_epsilon(
            noise_multiplier=2.0, releases=18, rate=0.25, sampling="poisson", delta=DELTA
        ),
        rel=1e-6,
    )
    # The ledger of a sample that must stay secret is of the releases alone.
    assert {"privacy_rho", "messages", "bits"} <= set(not_covered(study))


@pytest.mark.parametrize("kind", ["table", "curves"])
def test_tables_and_plots_state_that_the_privacy_is_of_one_seed(kind):
    def printed(results):
        if kind == "table":
            return fl.table(results, "objective").note
        ax = fl.plotting.learning_curves(results, "objective")
        text = " ".join(text.get_text() for text in ax.texts)
        plt.close("all")
        return text

    assert "of one seed, not of all 2" in printed(fl.sweep(scenario, **STUDY))
    assert "of one seed" not in printed(fl.sweep(scenario, **changed(seeds=1)))
    without_privacy = fl.sweep(lambda key: fl.Simulation(problem(), ConventionalFL(0.1)), **STUDY)
    without_privacy = without_privacy.assign(objective=without_privacy.bits)
    assert "of one seed" not in printed(without_privacy)


# What no budget covers --------------------------------------------------------------------------


@pytest.mark.slow
@quiet
@pytest.mark.parametrize("budget", [ZCDP(0.5), PureDP(5.0), ApproximateDP(0.5, 1e-5)])
@pytest.mark.parametrize("model", ["released", "exact"])
def test_every_data_dependent_value_is_listed(budget, model):
    """Two data sets, one noise: each value that differs between the results is listed as not
    covered or is a released model; a release has only covered values.
    """
    rng = np.random.default_rng(0)

    def results(scale):
        x = np.asarray(rng.normal(size=(4, 9, 2))) * scale
        data = fl.problems.Problem(x, np.sign(x[..., 0] + 0.1), fl.problems.Logistic()).clipped(1.0)
        data = data.split(jax.random.key(0), test=0.25)
        simulated = fl.Simulation(
            data,
            fl.algorithms.ZCDPNFL(1.0, 0.5),
            fl.graphs.ring(4),
            privacy=budget,
            model=model,
            metrics=["objective"],
        )
        return fl.run(simulated, rounds=3, noise_seed=SECRET)

    first = results(1.0)
    other = results(3.0)
    differing = {
        str(name)
        for name in first.data_vars
        if not np.array_equal(first[name].values, other[name].values, equal_nan=True)
    }
    differing |= {k for k in first.attrs if first.attrs[k] != other.attrs.get(k) and k != "created"}
    covered = {"model"} if model == "released" else set()
    assert differing - covered - {"privacy", "not_covered"} <= set(not_covered(first))
    assert {"objective", "rounding", "model"} <= differing
    if model == "exact":
        assert "model" in not_covered(first)
    assert first.attrs["not_covered"].count(": ") == len(not_covered(first))


def test_a_release_has_covered_values_only(tmp_path):
    path = tmp_path / "released.nc"
    study = fl.sweep(
        scenario, **changed(seeds=[11, 7]), keep_models=True, noise_seed=SECRET, root=99
    )
    uncovered = set(not_covered(study))
    assert {"objective", "accuracy", "gradient_norm", "root", "seed"} <= uncovered
    fl.save(study, path, release=True)
    released = fl.load(path)
    assert not uncovered & {*released.data_vars, *released.attrs}
    assert released.seed.values.tolist() == [0, 1]
    assert released.attrs["not_covered"] == "nothing"
    np.testing.assert_array_equal(released.model, study.model)
    # The budget says the same of it, and no text tells of the data.
    for seeds in ("one", "all"):
        np.testing.assert_allclose(
            spent(released, DELTA, seeds).epsilon, spent(study, DELTA, seeds).epsilon
        )
    assert "precision" not in assumptions(released)
    assert "features" not in assumptions(released)
    fl.save(study, path, release=True, public=["accuracy"])
    assert set(fl.load(path).data_vars) - set(released.data_vars) == {"accuracy"}
    text = path.read_bytes()
    fl.save(study, path)
    assert set(fl.load(path).data_vars) == set(study.data_vars)
    assert text != path.read_bytes()


@pytest.mark.slow
@quiet
def test_values_without_a_guarantee_are_not_released(tmp_path):
    def save(results, **options):
        return fl.save(results, tmp_path / "file.nc", release=True, **options)

    secret: dict[str, Any] = {"rounds": 2, "noise_seed": SECRET}
    with pytest.raises(ValueError, match="can be drawn again"):
        save(fl.run(simulation(), rounds=2))
    with pytest.raises(ValueError, match="nothing covers"):
        save(fl.run(fl.Simulation(problem(), ConventionalFL(0.1)), **secret))
    loose = fl.problems.logistic(jax.random.key(0), clients=4, samples=9, dim=2)
    nominal = fl.Simulation(loose, ConventionalFL(0.1), privacy=ZCDP(0.5, gradient_bound=1e-3))
    with pytest.raises(ValueError, match="nominal"):
        save(fl.run(nominal, **secret))
    peers: dict[str, Any] = {
        "network": fl.graphs.ring(4),
        "algorithm": fl.algorithms.ZCDPNFL(1.0, 0.5),
    }
    exact = fl.run(simulation(**peers, model="exact"), **secret)
    with pytest.raises(ValueError, match="'objective' is not covered"):
        save(exact, public=["objective"])
    with pytest.raises(ValueError, match="'rounding' is not covered"):
        save(exact, public=["rounding"])
    with pytest.raises(ValueError, match="public metric"):
        save(exact, public=["objectiv"])
    with pytest.raises(ValueError, match="release=True"):
        fl.save(exact, tmp_path / "file.nc", public=["objective"])

    def mixed_scenario(key, budget):
        return simulation(budget, model="exact") if budget else simulation_without()

    def simulation_without():
        return fl.Simulation(problem(), ConventionalFL(0.1), metrics=["objective", "accuracy"])

    mixed = fl.sweep(mixed_scenario, **STUDY, grid={"budget": {"none": None, "some": ZCDP(0.5)}})
    mixed.attrs["noise_seed"] = "given"
    with pytest.raises(ValueError, match="some runs have no budget"):
        save(mixed)
    save(mixed.sel(budget=["some"]))

    def stepped(key, step):
        return simulation(algorithm=ConventionalFL(step))

    study = fl.sweep(stepped, **STUDY, grid={"step": [0.1, 0.2]}, noise_seed=SECRET)
    with pytest.raises(ValueError, match="tuning not counted"):
        save(fl.statistics.best(study, "objective", "step"))
    assert "tuning" not in study.attrs
    assert not list(tmp_path.glob("*.nc")) or "objective" not in fl.load(tmp_path / "file.nc")


@pytest.mark.slow
def test_a_choice_by_private_results_is_stated():
    def stepped(key, step, private=True):
        private_simulation = simulation(algorithm=ConventionalFL(step))
        if private:
            return private_simulation
        return fl.Simulation(
            private_simulation.problem, private_simulation.algorithm, metrics=["objective"]
        )

    study = fl.sweep(stepped, **STUDY, grid={"step": [0.1, 0.2]})
    best = fl.best(study, "objective", "step")
    assert best.attrs["tuning"].startswith("tuning not counted: step chosen by objective")
    assert assumptions(best)["tuning"] == best.attrs["tuning"]
    assert "tuning not counted" in best.attrs["privacy"]
    assert "tuning not counted" in spent(best, DELTA).attrs["tuning"]
    assert "Tuning not counted" in fl.table(best, "objective").note
    plain = fl.sweep(lambda key, step: stepped(key, step, False), **STUDY, grid={"step": [1.0]})
    assert "tuning" not in fl.best(plain, "objective", "step").attrs


# Callbacks --------------------------------------------------------------------------------------


@quiet
def test_a_callback_that_may_stop_private_runs_makes_them_nominal(tmp_path, monkeypatch):
    """Like ``until=`` it reads metrics that no budget covers."""

    def stop(results):
        raise KeyboardInterrupt

    store = tmp_path / "study"
    monkeypatch.setattr("fljax.study.executor.FLUSH_SECONDS", 0.0)
    with pytest.raises(fl.Interrupted) as caught:
        fl.sweep(scenario, **STUDY, block=1, callback=stop, store=store)
    watched = fl.sweep(scenario, **STUDY, callback=lambda results: None)
    resumed = fl.sweep(scenario, **STUDY, block=1, store=store)
    for results in (caught.value.results, watched, resumed, fl.load(store)):
        assert assumptions(results)["stopping"].startswith("NOMINAL: a callback saw")
        assert float(results.nominal.max()) == 1
        assert "privacy nominal (stopping)" in fl.table(results, "objective").note.lower()
    free = fl.sweep(scenario, **STUDY)
    assert not free.nominal.any()
    assert watched.nominal.dtype == free.nominal.dtype
    assert "stopping" not in assumptions(free)
    plain = fl.sweep(
        lambda key: fl.Simulation(problem(), ConventionalFL(0.1)), **STUDY, callback=lambda _: None
    )
    assert "callback" not in plain.attrs
    with pytest.warns(fl.AssumptionWarning, match="a callback saw"):
        fl.sweep(scenario, **STUDY, callback=lambda results: None)


def test_only_private_points_of_a_watched_study_are_nominal():
    def mixed_scenario(key, budget):
        model = "released" if budget else "exact"
        return fl.Simulation(problem(), ConventionalFL(0.1), privacy=budget, model=model)

    grid = {"budget": {"none": None, "some": ZCDP(0.5)}}
    with pytest.warns(fl.AssumptionWarning):
        study = fl.sweep(mixed_scenario, **STUDY, grid=grid, callback=lambda results: None)
    assert study.nominal.sel(budget="some").values.tolist() == [1, 1]
    assert study.nominal.sel(budget="none").values.tolist() == [0, 0]
    assert jnp.isfinite(study.nominal.values).all()
