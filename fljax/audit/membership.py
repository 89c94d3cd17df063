r"""Membership inference: which samples were in the training data of a model.

In a game with known truth, models are trained on random halves of a pool, and an attacker who sees
a model guesses which samples were in its half. By the loss, members are the samples with a small
loss (Yeom et al. 2018). By a likelihood ratio, the prediction for a sample is compared with those
of other models trained with the sample, and of models trained without it (LiRA, Carlini et al.
2022): the shadow models; here every model is the target with all others as shadow models.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from scipy import stats

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import replace
from fljax.problems import Problem, optimum
from fljax.results.statistics import LEVEL

LOSS = "loss"
RATIO = "likelihood ratio"

#: Number of models that are trained in one batch, a bound on memory.
MODELS_PER_BATCH = 100

#: With fewer models some sample may lack models with it, or models without it.
FEWEST = 16


class MeanInterval(NamedTuple):
    """A mean over models with its 95 % confidence interval, given the pool."""

    value: float
    low: float
    high: float


class Membership(NamedTuple):
    """Scores of an attacker for ``S`` models and ``N`` samples each."""

    scores: np.ndarray  # [S, N]  the larger, the more likely a member
    members: np.ndarray  # [S, N]  whether the sample was in the training data

    def auc(self) -> MeanInterval:
        """Return the probability that a member scores higher than a non-member; 1/2 is guessing."""
        ranks = stats.rankdata(self.scores, axis=1)
        inside = self.members.sum(axis=1)
        outside = self.members.shape[1] - inside
        wins = np.where(self.members, ranks, 0).sum(axis=1) - inside * (inside + 1) / 2
        return _interval(wins / (inside * outside))

    def true_positives(self, false_positives: float = 0.01) -> MeanInterval:
        """Return the true positive rate at a given false positive rate.

        The threshold is chosen on every other model and applied to the rest.

        Args:
          false_positives: the false positive rate, in (0, 1).

        Raises:
          ValueError: a rate outside (0, 1), or so small that no sample of the models is left.
        """
        checks.interval("false_positives", false_positives, above=0, below=1)
        chosen = self.scores[::2][~self.members[::2]]
        if false_positives * chosen.size < 1:
            raise ValueError(
                f"a rate of {false_positives:g} is less than one of the {chosen.size} samples that "
                "thresholds are chosen on; take more models or samples, or a larger rate."
            )
        threshold = np.quantile(chosen, 1 - false_positives)
        members = self.members[1::2]
        caught = members & (self.scores[1::2] > threshold)
        return _interval(caught.sum(axis=1) / members.sum(axis=1))


def _interval(values: np.ndarray) -> MeanInterval:
    """Mean of values per model, in [0, 1], and its interval by Student's t distribution."""
    mean = float(values.mean())
    margin = float(
        stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    )
    return MeanInterval(mean, max(mean - margin, 0.0), min(mean + margin, 1.0))


@checked
def membership(
    key: Key[Array, ""],
    pool: Problem,
    train: Callable[[Problem], Array] = optimum,
    *,
    attack: str = RATIO,
    models: int = 1000,
) -> Membership:
    """Attack the membership of samples, with models that are trained on random halves of a pool.

    Args:
      key: for the draw of the halves; consumed.
      pool: the problem of one client, with all samples that may be members.
      train: from a problem to its model ``[D]``; it is mapped over models, so it must consist of
        JAX functions: :func:`fljax.problems.optimum`, or your own steps. A sample that is left out
        has weight zero.
      attack: ``"loss"`` or ``"likelihood ratio"``.
      models: number of models; each is attacked by means of the others.

    Raises:
      ValueError: a pool of several clients or of fewer than four samples, another attack, too few
        models; models that are not finite, or of another length.

    Example:
      Five parameters fitted to six samples memorize them, to sixty less so:

      >>> import fljax as fl
      >>> def told(samples):
      ...     pool = fl.problems.least_squares(
      ...         jax.random.key(0), clients=1, samples=2 * samples, dim=5, noise_variance=1.0
      ...     )
      ...     return membership(jax.random.key(1), pool, models=200).auc()
      >>> told(6).value > told(60).value > 0.5
      True

    Reference:
      Yeom et al. 2018, Adversary 2; Carlini et al. 2022, Algorithm 1.
    """
    checks.choice("attack", attack, (LOSS, RATIO))
    checks.count("models", models, at_least=FEWEST)
    if pool.clients != 1 or pool.samples < 4:
        raise ValueError(
            "pool must be the data of one client, four samples at least, got "
            f"{pool.clients} clients with {pool.samples}; problem.pooled() has all at one."
        )
    members, learned, values = _halves(key, pool, train, attack, models)
    if not np.isfinite(learned).all():
        raise ValueError(
            "train returned models that are not finite; without a regularizer, few samples may "
            "have no minimizer."
        )
    scores = -values if attack == LOSS else _log_ratios(values, members)
    return Membership(scores, members)


def _halves(
    key: Array, pool: Problem, train: Callable[[Problem], Array], attack: str, models: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Members of each half, ``[S, N]``, the models trained on them, ``[S, D]``, and the statistic
    of each sample at each model, ``[S, N]``.
    """
    pool = replace(pool, statistics=None, importance=None)
    real = jnp.asarray(pool.weights)[0] > 0

    @jax.jit
    def train_all(key: Array) -> tuple[Array, Array, Array]:
        def train_one(key: Array) -> tuple[Array, Array, Array]:
            # Exactly half of the pool, so that no half is empty.
            order = jax.random.permutation(key, pool.samples)
            inside = (order < pool.samples // 2) & real
            weights = inside.astype(pool.dtype)
            half = replace(pool, weights=(weights / jnp.sum(weights))[None])
            model = train(half)
            if jnp.shape(model) != (pool.dim,):
                raise ValueError(
                    f"train must return a model of {pool.dim} numbers, got shape "
                    f"{jnp.shape(model)}."
                )
            return inside, model, _statistic(pool, model, attack)

        return jax.lax.map(train_one, jax.random.split(key, models), batch_size=MODELS_PER_BATCH)

    inside, learned, values = map(np.asarray, train_all(key))
    is_real = np.asarray(real)
    return inside[:, is_real], learned, values[:, is_real].astype(np.float64)


def _statistic(pool: Problem, model: Float[Array, " dim"], attack: str) -> Float[Array, " samples"]:
    """The loss of each sample; or a statistic whose distribution over models is about normal."""
    prediction = pool.predictions(model[None])[0]
    target = jnp.asarray(pool.targets)[0]
    if attack == RATIO and prediction.ndim == 1:
        return prediction  # equals the residual or the logit, up to the label
    loss = pool.loss.value(prediction, target)
    if attack == LOSS:
        return loss
    # The logit of the label's probability.
    return -jnp.log(jnp.expm1(jnp.maximum(loss, jnp.finfo(loss.dtype).tiny)))


def _log_ratios(
    values: Float[np.ndarray, "models samples"], members: Bool[np.ndarray, "models samples"]
) -> Float[np.ndarray, "models samples"]:
    """Log-likelihood ratios of a sample's value at each model, with normal distributions fitted to
    its values at the other models.
    """
    middle = values.mean(axis=0)
    # Floor of the variance at the size of rounding errors: a sample that moves no model would have
    # none.
    least_variance = (1e-5 * (1 + np.abs(middle))) ** 2
    centered = values - middle

    def log_density(included: np.ndarray) -> np.ndarray:
        """The log-density at each model, fitted to all other included models."""
        sums = [
            np.where(included, power, 0)
            for power in (np.ones_like(centered), centered, centered**2)
        ]
        count, first, second = (total.sum(axis=0) - total for total in sums)
        count = np.maximum(count, 1)
        mean = first / count
        variance = np.maximum(second / count - mean**2, least_variance)
        return -0.5 * (np.log(variance) + (centered - mean) ** 2 / variance)

    return log_density(members) - log_density(~members)
