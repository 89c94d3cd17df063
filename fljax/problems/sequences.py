"""Sequences of tokens: a loss that ignores padding, and the check of tokens."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.problems.objectives import Loss

#: How a sequence's loss follows from those of its tokens.
REDUCTIONS = ("tokens", "length", "sum")


@module
class TokenCrossEntropy(Loss):
    r"""The cross entropy of the next token at every place of a sequence, padding left out.

    Targets are tokens ``[N, L]``, predictions their scores ``[N, L, vocabulary]``
    (:func:`fljax.models.lstm`, :func:`fljax.models.transformer`).

    Args:
      vocabulary: number of tokens, special ones included.
      pad: the token that fills sequences up to their common length; it costs nothing.
      reduction: a sequence's loss is the mean over its tokens (``"tokens"``), their sum divided by
        the common length ``L`` (``"length"``, as for Shakespeare in FedJAX and TFF), or their sum
        (``"sum"``).

    Raises:
      ValueError: fewer than two tokens, a padding token outside the vocabulary, another reduction;
        data with tokens outside the vocabulary, or with sequences of padding only.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> loss = fl.problems.TokenCrossEntropy(4)
      >>> scores = jnp.zeros((1, 3, 4))  # of four tokens each, all alike
      >>> loss.value(scores, jnp.array([[2, 3, 0]])).mean(1).round(4).tolist()  # log 4
      [1.3863]
    """

    vocabulary: int = static()
    pad: int = static(default=0, kw_only=True)
    reduction: str = static(default="tokens", kw_only=True)
    curvature: ClassVar[float | None] = None

    def validate(self) -> None:
        checks.count("vocabulary", self.vocabulary, at_least=2)
        checks.interval("pad", self.pad, at_least=0, at_most=self.vocabulary - 1)
        checks.choice("reduction", self.reduction, REDUCTIONS)

    @property
    def outputs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.vocabulary

    def check_targets(self, targets: np.ndarray) -> None:
        is_token = np.isin(targets, np.arange(self.vocabulary))
        if not is_token.all():
            raise ValueError(
                f"targets must be tokens from 0 to {self.vocabulary - 1}, got "
                f"{targets[~is_token].flat[0]:g}; give vocabulary= the largest token and one."
            )
        if targets.ndim > 1 and np.all(targets == self.pad, axis=-1).any():
            raise ValueError(
                f"a sequence is of padding alone, token {self.pad}, and has nothing to predict; "
                "leave it out."
            )

    def value(
        self, prediction: Float[Array, "*samples length vocabulary"], target: Array
    ) -> Float[Array, "*samples length"]:
        """The loss at each place, whose mean over places is that of the sequence."""
        losses, is_token = token_losses(prediction, target, self.pad)
        length = target.shape[-1]
        if self.reduction == "length":
            return losses
        if self.reduction == "sum":
            return length * losses
        count = jnp.sum(is_token, axis=-1, keepdims=True)
        return losses * (length / jnp.maximum(count, 1).astype(losses.dtype))

    def derivative(self, prediction: Array, target: Array) -> Array:
        return jax.grad(lambda scores: jnp.sum(self.value(scores, target)))(prediction)

    def correct(self, prediction: Array, target: Array) -> Array:
        raise ValueError(
            "of sequences take the metrics fljax.metrics.token_accuracy() and perplexity(), which "
            "leave padding out."
        )


def token_losses(prediction: Array, target: Array, pad: int) -> tuple[Array, Array]:
    """The cross entropy at each place, zero where there is padding, and where there is none."""
    token = target.astype(jnp.int32)
    scores = jax.nn.log_softmax(prediction)
    chosen = jnp.take_along_axis(scores, token[..., None], axis=-1)[..., 0]
    is_token = token != pad
    return jnp.where(is_token, -chosen, 0), is_token
