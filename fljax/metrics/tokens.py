"""Metrics of sequences of tokens, which leave padding and special tokens out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.metrics.definitions import Metric, Snapshot, mean_of_all_samples
from fljax.problems.sequences import token_losses

__all__ = ["perplexity", "token_accuracy"]


class _TokenAccuracy(NamedTuple):
    """The share of right tokens among those that count."""

    left_out: tuple[int, ...]
    never: tuple[int, ...]

    def __call__(self, now: Snapshot) -> Array:
        def right(_: Any, prediction: Array, target: Array) -> Array:
            scores = prediction.at[..., jnp.array(self.never, jnp.int32)].set(-jnp.inf)
            token = jnp.argmax(scores, axis=-1).astype(target.dtype)
            return (self._counts(target) & (token == target)).astype(now.model.dtype)

        def counted(_: Any, prediction: Array, target: Array) -> Array:
            return self._counts(target).astype(now.model.dtype)

        number = mean_of_all_samples(now, counted)
        return mean_of_all_samples(now, right) / jnp.where(number > 0, number, 1)

    def _counts(self, target: Array) -> Array:
        counts = jnp.ones(target.shape, bool)
        for token in self.left_out:
            counts &= target != jnp.asarray(token, target.dtype)
        return counts


class _Perplexity(NamedTuple):
    """The exponential of the mean cross entropy of tokens."""

    pad: int

    def __call__(self, now: Snapshot) -> Array:
        def loss(_: Any, prediction: Array, target: Array) -> Array:
            return token_losses(prediction, target, self.pad)[0]

        def counted(_: Any, prediction: Array, target: Array) -> Array:
            return (target != jnp.asarray(self.pad, target.dtype)).astype(now.model.dtype)

        number = mean_of_all_samples(now, counted)
        return jnp.exp(mean_of_all_samples(now, loss) / jnp.where(number > 0, number, 1))


def _tokens(name: str, tokens: Sequence[int]) -> tuple[int, ...]:
    for token in tokens:
        checks.count(f"each of {name}", token, at_least=0)
    return tuple(map(int, tokens))


@checked
def token_accuracy(
    left_out: Sequence[int] = (0,), never: Sequence[int] = (), name: str = "token_accuracy"
) -> Metric:
    """The share of held-out tokens that are predicted, over the sequences of all clients together.

    FedJAX's accuracy without the end of sentences has ``left_out=[pad, end]``; its accuracy in the
    vocabulary also has ``never=[pad, begin, end, unknown]``.

    Args:
      left_out: tokens that do not count where they are the target, such as padding.
      never: tokens that are never predicted: the best of the others is.
      name: of the variable in the results.

    Raises:
      ValueError: numbers that are not tokens.

    Reference:
      Reddi et al. 2021, appendix C.

    Example:
      >>> import fljax as fl
      >>> fl.metrics.token_accuracy([0, 2], name="accuracy_no_end").name
      'accuracy_no_end'
    """
    measure = _TokenAccuracy(_tokens("left_out", left_out), _tokens("never", never))
    return Metric(
        name,
        measure,
        "accuracy over tokens",
        needs={"test"},
        bounds=(0.0, 1.0),
        larger_is_better=True,
    )


@checked
def perplexity(pad: int = 0) -> Metric:
    """The exponential of the mean cross entropy of held-out tokens, over all sequences together.

    Args:
      pad: the token of padding, which does not count.

    Raises:
      ValueError: numbers that are not tokens.

    Example:
      >>> import fljax as fl
      >>> fl.metrics.perplexity().label
      'perplexity'
    """
    checks.count("pad", pad, at_least=0)
    bounds = (1.0, float("inf"))
    return Metric("perplexity", _Perplexity(int(pad)), "perplexity", needs={"test"}, bounds=bounds)
