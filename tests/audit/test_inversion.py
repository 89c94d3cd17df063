"""What gradients and models tell of the data: inversion, and who was a member."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.module import replace
from fljax.audit import Membership, invert, membership, peak_ratio, quadratic
from fljax.problems import Model, Problem

DIM = 3


# Linear models ------------------------------------------------------------------------------------


def descended(problem, steps, step_size=0.1):
    """The models that a client comes by from zero, and the gradients between them."""
    models = [jnp.zeros(problem.dim)]
    for _ in range(steps):
        models.append(models[-1] - step_size * problem.gradient(models[-1][None])[0])
    models = np.stack(models)
    return models[:-1], (models[:-1] - models[1:]) / step_size


@pytest.mark.parametrize("seed", range(3))
def test_gradient_descent_reports_the_local_loss(seed):
    """Exercise 10.1: D + 1 gradients from zero on give Q and q, and with them the minimizer."""
    problem = fl.problems.least_squares(jax.random.key(seed), clients=1, samples=20, dim=DIM)
    result = quadratic(*descended(problem, DIM + 1))
    x = np.asarray(problem.features[0])
    y = np.asarray(problem.targets[0])
    np.testing.assert_allclose(result.second_moment, x.T @ x / 20, atol=1e-8)
    np.testing.assert_allclose(result.linear, -2 * x.T @ y / 20, atol=1e-8)
    np.testing.assert_allclose(result.minimizer, fl.problems.optimum(problem), atol=1e-7)


def test_too_few_gradients_are_refused():
    problem = fl.problems.least_squares(jax.random.key(0), clients=1, samples=20, dim=DIM)
    models, gradients = descended(problem, DIM)
    with pytest.raises(
        ValueError, match=r"at 4 models .* got 3 models whose rank with a constant is 3"
    ):
        quadratic(models, gradients)
    with pytest.raises(ValueError, match="with a constant is 1"):
        quadratic(np.ones((9, DIM)), np.ones((9, DIM)))
    with pytest.raises(ValueError, match="one of each"):
        quadratic(models, gradients[:2])


# Networks -----------------------------------------------------------------------------------------


def network(samples, dim=6, classes=3):
    data = fl.problems.softmax(jax.random.key(0), 1, samples=samples, dim=dim, classes=classes)
    return Model.of(data, fl.models.mlp(classes, hidden=[64]), jax.random.key(1))


def gradient_of(problem):
    return problem.loss_gradient(problem.initial[None])[0]


@pytest.mark.slow
def test_a_sample_is_recovered_with_its_label():
    """With squared distances the length of the sample converges last: a confident label compensates
    for it.
    """
    problem = network(1)
    truth = np.asarray(problem.features[0, 0])

    def inverted(matching):
        arguments = problem, problem.initial, gradient_of(problem), jax.random.key(2)
        return invert(*arguments, matching=matching, step_size=0.3, steps=800, restarts=2)

    dlg = inverted("squared")
    cosine = inverted("cosine")
    for result in (dlg, cosine):
        assert int(result.labels[0]) == int(problem.targets[0, 0])
        x = np.asarray(result.features[0])
        assert x @ truth > 0.999 * np.linalg.norm(x) * np.linalg.norm(truth)
    np.testing.assert_allclose(cosine.features[0], truth, atol=1e-2)
    assert peak_ratio(cosine.features, truth[None]) > 40
    assert 0 <= float(dlg.mismatch) < 0.05
    assert abs(float(cosine.mismatch)) < 1e-6


@pytest.mark.slow
def test_the_cosine_is_invariant_to_clipping_and_sensitive_to_noise():
    problem = network(1)
    gradient = gradient_of(problem)
    clipped = 0.01 * gradient / jnp.linalg.norm(gradient)
    noise = jax.random.normal(jax.random.key(3), gradient.shape)
    noisy = gradient + jnp.linalg.norm(gradient) * noise / jnp.linalg.norm(noise)

    def error(gradient):
        result = invert(
            problem, problem.initial, gradient, jax.random.key(2), matching="cosine", steps=600
        )
        return float(jnp.abs(result.features - problem.features[0]).max())

    assert error(clipped) < 1e-2
    assert error(noisy) > 0.1


@pytest.mark.slow
def test_with_several_samples_known_labels_are_kept_and_images_smoothed():
    images = np.linspace(0, 1, 2 * 16).reshape(1, 2, 4, 4)
    labels = np.array([[1.0, 0.0]])
    base = Model(
        images, labels, fl.problems.Softmax(3), architecture=fl.models.mlp(3, hidden=[32])
    ).initialized(jax.random.key(0))
    arguments = base, base.initial, gradient_of(base), jax.random.key(1)

    def inverted(smoothness):
        return invert(
            *arguments,
            samples=2,
            labels=np.array([1, 0]),
            matching="cosine",
            smoothness=smoothness,
            steps=200,
            restarts=1,
        )

    rough = inverted(0.0)
    smooth = inverted(1.0)
    assert rough.features.shape == (2, 4, 4)
    assert rough.labels.tolist() == [1, 0]

    def variation(x):
        return np.abs(np.diff(np.asarray(x), axis=1)).mean()

    assert variation(smooth.features) < 0.5 * variation(rough.features)


@pytest.mark.slow
def test_impossible_inversions_are_refused():
    problem = network(1)
    arguments = problem, problem.initial, gradient_of(problem), jax.random.key(0)
    for numbers, text in (
        ({"matching": "angle"}, "matching"),
        ({"samples": 0}, "samples must be >= 1"),
        ({"restarts": 0}, "restarts must be >= 1"),
        ({"steps": 0}, "steps must be >= 1"),
        ({"step_size": 0.0}, "step_size must be"),
        ({"labels": np.array([3])}, "one of 0 to 2 for each of the 1 samples"),
        ({"labels": np.array([0, 1])}, "one of 0 to 2 for each of the 1 samples"),
        ({"smoothness": 0.1}, "smoothness= needs images"),
        ({"smoothness": 0.1, "matching": "cosine"}, r"samples of shape \(6,\)"),
    ):
        with pytest.raises(ValueError, match=text):
            invert(*arguments, **numbers)
    data = fl.problems.least_squares(jax.random.key(0), clients=1, samples=1, dim=4)
    other = Model.of(data, fl.models.mlp(1, hidden=[4]), jax.random.key(1))
    with pytest.raises(ValueError, match=r"with Softmax, .* got LeastSquares"):
        invert(other, other.initial, gradient_of(other), jax.random.key(0))


def test_the_peak_ratio_is_of_the_nearest():
    truth = np.stack([np.zeros(5), np.ones(5)])
    assert peak_ratio(truth[:1] + 0.01, truth) == pytest.approx(40)
    assert peak_ratio(2 * truth[::-1] + 0.1, truth, peak=2.0) == pytest.approx(10 * np.log10(400))
    assert peak_ratio(truth, truth) == np.inf


# Members ----------------------------------------------------------------------------------------


def pool(samples, dim=10, noise=1.0, key=0):
    return fl.problems.least_squares(
        jax.random.key(key), clients=1, samples=samples, dim=dim, noise_variance=noise
    )


def classes(samples, dim=8):
    return fl.problems.softmax(
        jax.random.key(0), clients=1, samples=samples, dim=dim, classes=3, strength=0.05
    )


@pytest.mark.parametrize("attack", ["loss", "likelihood ratio"])
@pytest.mark.parametrize("make", [pool, classes])
def test_an_overfitted_model_gives_its_members_away(make, attack):
    result = membership(jax.random.key(1), make(40), attack=attack, models=200)
    auc = result.auc()
    assert auc.low > 0.6
    assert auc.low < auc.value < auc.high
    assert result.true_positives(0.05).low > 0.05


def test_a_likelihood_ratio_attack_is_stronger_than_the_loss():
    results = {
        attack: membership(jax.random.key(1), pool(40), attack=attack, models=400)
        for attack in ("loss", "likelihood ratio")
    }
    assert results["likelihood ratio"].auc().low > results["loss"].auc().high
    at = {name: result.true_positives(0.01) for name, result in results.items()}
    assert at["likelihood ratio"].low > at["loss"].high


@pytest.mark.parametrize("attack", ["loss", "likelihood ratio"])
def test_without_dependence_on_samples_membership_is_guessing(attack):
    data = pool(40)

    def constant(problem: Problem):
        return jnp.ones(problem.dim)

    def of_others(problem: Problem):
        """Scores of data outside of the pool: half of them count as drawn."""
        key = jax.random.fold_in(jax.random.key(7), jnp.argmax(problem.weights[0]))
        return jax.random.normal(key, (problem.dim,))

    blind = membership(jax.random.key(1), data, constant, attack=attack, models=200)
    if attack == "likelihood ratio":
        assert blind.auc() == (0.5, 0.5, 0.5)
    assert abs(blind.auc().value - 0.5) < 0.02
    result = membership(jax.random.key(1), replace(data, targets=-data.targets), models=16)
    assert isinstance(result, Membership)
    random = membership(jax.random.key(3), pool(400), of_others, attack=attack, models=300)
    assert abs(random.auc().value - 0.5) < 0.03


def test_scores_are_ratios_of_the_other_models_densities():
    """Against loops: each model is judged by all others, those with a sample and those without."""
    result = membership(jax.random.key(1), pool(12, dim=2), models=30)
    x, y = (np.asarray(a)[0] for a in (pool(12, dim=2).features, pool(12, dim=2).targets))
    models = []
    for inside in result.members:
        models.append(np.linalg.lstsq(x[inside], y[inside], rcond=None)[0])
    values = np.stack(models) @ x.T
    assert (result.members.sum(1) == 6).all()

    def density(value, sample):
        return -0.5 * np.log(np.var(sample)) - (value - np.mean(sample)) ** 2 / 2 / np.var(sample)

    for s in range(5):
        for n in range(12):
            rest = np.arange(30) != s
            with_it = values[rest & result.members[:, n], n]
            without = values[rest & ~result.members[:, n], n]
            expected = density(values[s, n], with_it) - density(values[s, n], without)
            np.testing.assert_allclose(result.scores[s, n], expected, atol=1e-6)


def test_rates_equal_counting():
    rng = np.random.default_rng(0)
    members = rng.random((40, 50)) < 0.5
    scores = rng.normal(size=(40, 50)) + members
    result = Membership(scores, members)
    auc = np.mean(
        [(a[m][:, None] > a[~m][None]).mean() for a, m in zip(scores, members, strict=True)]
    )
    assert result.auc().value == pytest.approx(auc)
    threshold = np.quantile(scores[::2][~members[::2]], 0.9)
    caught = [(a[m] > threshold).mean() for a, m in zip(scores[1::2], members[1::2], strict=True)]
    assert result.true_positives(0.1).value == pytest.approx(np.mean(caught))
    with pytest.raises(ValueError, match="less than one of the"):
        result.true_positives(1e-4)
    with pytest.raises(ValueError, match="false_positives must be"):
        result.true_positives(1.0)


def test_padding_is_not_a_member():
    data = pool(12, dim=2)
    weights = np.where(np.arange(12) < 9, 1 / 9, 0)[None]
    result = membership(
        jax.random.key(1),
        Problem(data.features, data.targets, data.loss, weights=weights),
        models=64,
    )
    assert result.members.shape == result.scores.shape == (64, 9)


def test_impossible_audits_are_refused():
    key = jax.random.key(0)
    data = pool(12, dim=2)
    with pytest.raises(ValueError, match="unknown attack"):
        membership(key, data, attack="guess")
    with pytest.raises(ValueError, match="models must be >= 16"):
        membership(key, data, models=3)
    two = fl.problems.least_squares(key, clients=2, samples=9, dim=2)
    with pytest.raises(ValueError, match="2 clients with 9"):
        membership(key, two)
    with pytest.raises(ValueError, match="model of 2 numbers, got shape"):
        membership(key, data, lambda problem: jnp.zeros(3), models=16)
    with pytest.raises(ValueError, match="not finite"):
        membership(key, data, lambda problem: jnp.full(2, jnp.nan), models=16)


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (np.zeros((2, 1)), "samples of one shape"),
        (np.zeros(4), "samples of one shape"),
        (np.full((2, 4), np.nan), "estimate holds 8 NaN"),
    ],
)
def test_reconstructions_are_compared_with_samples_of_their_shape(estimate, message):
    with pytest.raises(ValueError, match=message):
        fl.audit.peak_ratio(estimate, np.zeros((3, 4)))
