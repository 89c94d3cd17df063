r"""An audit of any mechanism by a trained attacker (Jung 2025, section 9.2).

Each release is computed from one of two neighboring data sets, chosen by a fair coin; a classifier
is trained on half of the releases to distinguish the data sets, and tested on the other half. Under
:math:`(\epsilon,\delta)`-DP the probability of a correct guess is at most

.. math:: \frac{e^\epsilon+\delta}{1+e^\epsilon},

which follows from (180) and its mirror image; a classifier that exceeds it significantly refutes
the claim. One that does not proves nothing: another classifier might.

Where noise is Gaussian and added on the link of a simulation, :func:`fljax.audit.two_worlds` uses
the best test and finds far more.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree
from scipy import optimize, special

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.prng import as_key
from fljax.audit.guessing_bounds import check_claim, probability_at_least

#: With fewer trials even an attacker that is always right yields only a weak bound.
FEWEST_TRIALS = 40

#: Number of releases that are computed in one batch, a bound on memory.
RELEASES_PER_BATCH = 256


class Attacker(Protocol):
    """A classifier, such as one of scikit-learn."""

    def fit(self, X: np.ndarray, y: np.ndarray, /) -> object:
        """Train on ``[L, ...]`` releases, with labels 0 or 1 of their data sets."""

    def predict(self, X: np.ndarray, /) -> object:
        """Return the predicted labels of other releases."""


@checked
def most_accurate(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    r"""Return the largest probability of a correct guess under :math:`(\epsilon,\delta)`-DP.

    The guess is which of two neighboring data sets a fair coin chose.

    Args:
      epsilon: >= 0.
      delta: in [0, 1).

    Example:
      >>> round(float(most_accurate(math.log(3), delta=0.0)), 4)
      0.75
    """
    checks.nonnegative("epsilon", epsilon)
    checks.interval("delta", delta, at_least=0, below=1)
    epsilon, delta = (np.asarray(value, np.float64) for value in (epsilon, delta))
    return special.expit(epsilon) + delta * special.expit(-epsilon)


@dataclasses.dataclass(frozen=True)
class TrainedAttack:
    """The result of :func:`trained_attack`.

    Attributes:
      right: number of correct guesses in the test.
      tests: number of releases in the test.
      epsilon: of the tested claim.
      delta: of the tested claim.
      confidence: of the bounds.
    """

    right: int
    tests: int
    epsilon: float
    delta: float
    confidence: float

    @property
    def accuracy(self) -> float:
        """The accuracy in the test."""
        return self.right / self.tests

    @property
    def threshold(self) -> float:
        """The largest accuracy under the claim, :func:`most_accurate`."""
        return float(most_accurate(self.epsilon, self.delta))

    @property
    def least_accuracy(self) -> float:
        """Clopper and Pearson's lower bound on the attacker's probability of a correct guess."""
        return float(probability_at_least(self.right, self.tests, self.confidence))

    @property
    def bound(self) -> float:
        """Lower bound on epsilon at the claim's delta, with the given confidence."""
        least = self.least_accuracy
        above = least - self.delta
        return max(math.log(above / (1 - least)), 0.0) if above > 0 else 0.0

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted; a true claim is with probability 1 - confidence at most."""
        return self.least_accuracy > self.threshold

    @property
    def verdict(self) -> str:
        """The result in words."""
        text = (
            f"{'BROKEN' if self.broken else 'not broken'}: right in {self.accuracy:.1%} of "
            f"{self.tests} tests, at least {self.least_accuracy:.1%} with {self.confidence:.0%} "
            f"confidence; epsilon={self.epsilon:.3g} at delta={self.delta:g} allows "
            f"{self.threshold:.1%}."
        )
        if not self.broken:
            text += " Another attacker may find more."
        if probability_at_least(self.tests, self.tests, self.confidence) <= self.threshold:
            text += " So few tests could not have refuted it: take more."
        return text


@checked
def trained_attack(
    release: Callable[[Array, PyTree], Array],
    one: PyTree,
    other: object,
    epsilon: ArrayLike,
    delta: ArrayLike,
    trials: int = 4000,
    attacker: Any = None,
    key: Array | int = 0,
    confidence: float = 0.95,
    compiled: bool = True,
) -> TrainedAttack:
    """Audit a claim by a classifier that is trained to distinguish the releases of two data sets.

    Args:
      release: ``release(key, data)``, the complete output of a mechanism as an array: a noisy
        model, the messages of a run, a table. It is audited as a black box.
      one: the data argument of ``release``: an array, a :class:`~fljax.problems.Problem`, any
        pytree.
      other: a neighbor, of the same structure and shapes: it differs in the part that the claim
        protects, such as one sample, and should be the worst case that one can think of.
      epsilon: of the claim, >= 0; or the epsilons of several simultaneous claims, such as the
        points of a curve. The tightest is tested. For Gaussian noise it is the one at epsilon
        zero, ``accounting.zcdp_delta(rho, 0.0, "gaussian")``: at a small delta accuracies near the
        threshold are out of reach even with half the noise.
      delta: of the claim, in [0, 1), or of each claim.
      trials: number of releases: half train the attacker and half test it.
      attacker: any object with ``fit(X, y)`` and ``predict(X)``, such as a classifier of
        scikit-learn; by default a logistic regression. It sees ``[trials, numbers]``, each number
        in units of its standard deviation.
      key: of the coins and the releases; a number is its seed.
      confidence: in (0, 1), of the verdict.
      compiled: whether ``release`` is traceable, and all releases are one program. Otherwise it is
        called once for each, uncompiled.

    Returns:
      The result, whose ``verdict`` states it in words.

    Raises:
      ValueError: data sets of different structure, releases that are not finite, too few trials, an
        attacker without the two methods, or one that predicts other labels than 0 and 1.

    Example:
      >>> import fljax as fl
      >>> def release(key, mean):  # with half of the noise that it should have
      ...     return fl.privacy.laplace_release(key, mean, 1.0, epsilon=2.0)
      >>> attack = trained_attack(release, np.zeros(1), np.ones(1), epsilon=1.0, delta=0.0)
      >>> attack.broken, round(attack.threshold, 3)
      (True, 0.731)

    Reference:
      Jung 2025, section 9.2, "How to be sure?".
    """
    check_claim(0.0, confidence)
    tightest = np.argmin(most_accurate(epsilon, delta))
    epsilon, delta = (
        float(np.ravel(value)[tightest]) for value in np.broadcast_arrays(epsilon, delta)
    )
    checks.count("trials", trials, at_least=FEWEST_TRIALS)
    attacker = _Logistic() if attacker is None else attacker
    if not all(callable(getattr(attacker, name, None)) for name in ("fit", "predict")):
        raise ValueError(
            f"attacker must have fit(X, y) and predict(X), got {checks.shown(attacker)}."
        )
    for name, data in (("one", one), ("other", other)):
        for leaf in jax.tree.leaves(data):
            checks.array(name, leaf)
    shapes = [
        (jax.tree.structure(data), [np.shape(leaf) for leaf in jax.tree.leaves(data)])
        for data in (one, other)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "one and other must be of the same structure and shapes, since they are neighbors that "
            f"differ in values, got leaves of shapes {shapes[0][1]} and {shapes[1][1]}."
        )
    coins, draws = jax.random.split(as_key(key))
    labels = np.asarray(jax.random.bernoulli(coins, 0.5, (trials,))).astype(int)
    releases = _released(release, (one, other), labels, jax.random.split(draws, trials), compiled)
    checks.finite("release", releases)
    half = trials // 2
    spread = np.std(releases[:half], axis=0)
    releases = (releases - np.mean(releases[:half], axis=0)) / np.where(spread > 0, spread, 1)
    attacker.fit(releases[:half], labels[:half])
    guesses = np.asarray(attacker.predict(releases[half:]))
    if guesses.shape != labels[half:].shape or not np.all(np.isin(guesses, (0, 1))):
        raise ValueError(
            f"predict must return 0 or 1 for each of {trials - half} releases, got "
            f"{checks.shown(guesses)}."
        )
    right = int(np.sum(guesses == labels[half:]))
    return TrainedAttack(right, trials - half, epsilon, delta, confidence)


def _released(
    release: Callable, worlds: tuple[Any, Any], labels: np.ndarray, keys: Array, compiled: bool
) -> np.ndarray:
    """``[L, numbers]`` in double precision."""
    if compiled:
        releases = _compiled(release)(worlds, jnp.asarray(labels), keys)
    else:
        releases = [
            np.asarray(release(key, worlds[label])) for key, label in zip(keys, labels, strict=True)
        ]
    return np.asarray(releases, np.float64).reshape(len(labels), -1)


@functools.lru_cache(maxsize=8)
def _compiled(release: Callable) -> Callable:
    """All releases as one program; cached, so that several audits of one function compile once."""

    def release_all(worlds: tuple[Any, Any], labels: Array, keys: Array) -> Array:
        def of(trial: tuple[Array, Array]) -> Array:
            label, key = trial
            data = jax.tree.map(lambda a, b: jnp.where(label == 1, b, a), *worlds)
            return jnp.ravel(release(key, data))

        return jax.lax.map(of, (labels, keys), batch_size=min(RELEASES_PER_BATCH, len(labels)))

    return jax.jit(release_all)


class _Logistic:
    """A logistic regression on the numbers themselves, with little regularization."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        x = self._rows(x)
        sign = 2 * y - 1

        def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
            margin = sign * (x @ w)
            value = np.mean(np.logaddexp(0, -margin)) + w @ w / (2 * len(x))
            gradient = -(sign * special.expit(-margin)) @ x / len(x) + w / len(x)
            return float(value), gradient

        self.w = optimize.minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return (self._rows(x) @ self.w > 0).astype(int)

    @staticmethod
    def _rows(x: np.ndarray) -> np.ndarray:
        return np.column_stack([x, np.ones(len(x))])
