r"""Clients that do not follow the protocol: what they say in the place of their messages.

An attack says who lies and what. It acts on the rows of ``[senders, D]`` that attackers send, and
leaves every other row as it is, bit by bit. ``around`` is what both ends know, the model that a
message is a change of; an attack on the change is relative to it.

:class:`SignFlip`, :class:`LargeNoise` and :class:`Constant` need no more than the attacker's own
message. :class:`ALittleIsEnough` and :class:`InnerProductManipulation` are *omniscient*: the
attackers collude and know the message of every honest sender of the round. :func:`poison_labels`
is an attack on the data, by clients that follow the protocol from then on.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from fljax import _check
from fljax._arguments import checked
from fljax._generator import normal
from fljax._module import float_dtype, module
from fljax.participation import subset
from fljax.problems.objectives import Softmax
from fljax.problems.problem import Problem

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "Constant",
    "InnerProductManipulation",
    "LargeNoise",
    "SignFlip",
    "first",
    "poison_labels",
    "random_attackers",
]


@checked
def first(count: int, clients: int) -> np.ndarray:
    """The mask of attackers that holds the first ``count`` of all clients.

    Args:
      count: 0 to ``clients - 1``.
      clients: ``K``.

    Raises:
      ValueError: a count out of range.

    Example:
      >>> first(2, 5).tolist()
      [True, True, False, False, False]
    """
    _check_count(count, clients)
    return np.arange(clients) < count


@checked
def random_attackers(key: Key[Array, ""], clients: int, count: int) -> Bool[Array, " clients"]:
    """The mask of ``count`` attackers drawn uniformly among all clients.

    Args:
      key: is consumed.
      clients: ``K``.
      count: 0 to ``clients - 1``.

    Raises:
      ValueError: a count out of range.

    Example:
      >>> int(random_attackers(jax.random.key(0), 10, 3).sum())
      3
    """
    _check_count(count, clients)
    return jnp.zeros(clients, bool).at[subset(key, clients, count)].set(True)


def _check_count(count: int, clients: int) -> None:
    _check.count("clients", clients)
    _check.count("count", count, at_least=0)
    if count >= clients:
        raise ValueError(f"count must leave one of the {clients} clients honest, got {count}.")


def _mask(attackers: Any) -> Any:
    """The mask as an array of booleans, checked as far as it is concrete."""
    attackers = _check.flags(attackers)
    if _check.dtype_of(attackers) != np.bool_:
        raise TypeError(
            f"attackers must be booleans, one of each client, got {_check.shown(attackers)}; "
            "fljax.attacks.first(count, clients) and random_attackers(key, clients, count) make "
            "such a mask."
        )
    mask = attackers if isinstance(attackers, jax.Array) else np.asarray(attackers)
    if mask.ndim != 1:
        raise ValueError(f"attackers must be a mask of shape [clients], got shape {mask.shape}.")
    _check.known(_check_honest, mask)
    return mask


def _check_honest(mask: Any) -> None:
    if np.all(np.asarray(mask)):
        raise ValueError(f"all {mask.size} clients are attackers; leave at least one honest.")


def _check_mask(mask: Any, clients: int) -> None:
    if mask.shape != (clients,):
        raise ValueError(
            f"attackers must be one boolean of each of the {clients} clients, got {mask.shape[0]}."
        )


@module
class Attack:
    """Who lies, and what they say; subclass it for one of your own, with :meth:`lie`.

    Args:
      attackers: ``[K]`` booleans, or zeros and ones; :func:`first` and :func:`random_attackers`
        make them.

    Raises:
      TypeError: not booleans.
      ValueError: not a vector; nobody honest.

    Attributes:
      reference: key of ``references.bib``.
    """

    attackers: Any  # Bool[Array, "clients"], NumPy or JAX
    reference: ClassVar[str | None] = None

    def validate(self) -> None:
        object.__setattr__(self, "attackers", _mask(self.attackers))

    def check(self, clients: int) -> None:
        """Raise ``ValueError`` unless the mask is of a network of this size."""
        _check_mask(self.attackers, clients)

    def check_length(self, *lengths: int) -> None:
        """Raise ``ValueError`` unless what it says can be of one of these lengths; any, here."""

    def lie(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        around: Float[Array, "#senders dim"],
    ) -> Float[Array, "#senders dim"]:
        """What an attacker says in the place of each row; arguments as in :meth:`say`."""
        raise NotImplementedError(_check.lacks(type(self), "lie", "what an attacker says"))

    def say(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        around: Float[Array, "#senders dim"],
    ) -> Float[Array, "senders dim"]:
        """The messages with the attackers' rows replaced, the others bit by bit as they were.

        Args:
          key: of this round, folded with each row's number; or one for each sender, where rows
            are not always the same clients.
          messages: ``[M, D]``, what each sender would say if it were honest.
          attacking: ``[M]``, whose row is an attacker's.
          sending: ``[M]``, whose row is sent at all; what is known of the honest is known of these.
          around: ``[M, D]``, or ``[1, D]`` for all: what both ends know.
        """
        lies = self.lie(key, messages, attacking, sending, around)
        return jnp.where(attacking[:, None], lies, messages)


def _honest_mean(
    values: Float[Array, "senders dim"], honest: Bool[Array, " senders"]
) -> Float[Array, "1 dim"]:
    """Zeros if there are none."""
    count = jnp.maximum(jnp.sum(honest, dtype=jnp.int32), 1).astype(values.dtype)
    return jnp.sum(jnp.where(honest[:, None], values, 0), axis=0, keepdims=True) / count


@module
class SignFlip(Attack):
    r"""The change in the opposite direction, :math:`v-s(x-v)` with ``v`` = ``around``.

    Args:
      attackers: as in :class:`Attack`.
      scale: :math:`s>0`.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: likewise; a scale that is not positive.

    Example:
      >>> rows, all_of = jnp.array([[1.0], [2.0]]), jnp.array([True, True])
      >>> attack = SignFlip(first(1, 2), scale=3.0)
      >>> attack.say(jax.random.key(0), rows, attack.attackers, all_of, jnp.ones((1, 1))).tolist()
      [[1.0], [2.0]]
      >>> attack.say(jax.random.key(0), rows, attack.attackers, all_of, jnp.zeros((1, 1))).tolist()
      [[-3.0], [2.0]]

    Reference:
      Li et al. 2019, experiments.
    """

    scale: Float[Array, ""] | float = 1.0
    reference: ClassVar[str | None] = "li2019"

    def validate(self) -> None:
        super().validate()
        _check.positive("scale", self.scale)

    def lie(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        around: Float[Array, "#senders dim"],
    ) -> Float[Array, "senders dim"]:
        return around - jnp.asarray(self.scale, messages.dtype) * (messages - around)


@module
class LargeNoise(Attack):
    r"""Gaussian noise on top of the message, :math:`x+s\,\mathcal N(0,I)`.

    Args:
      attackers: as in :class:`Attack`.
      scale: :math:`s>0`, the standard deviation of each coordinate.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: likewise; a scale that is not positive.

    Example:
      >>> attack, rows = LargeNoise(first(1, 2), scale=1e3), jnp.zeros((2, 1))
      >>> said = attack.say(jax.random.key(0), rows, attack.attackers, rows[:, 0] == 0, rows)
      >>> abs(said[0, 0]).item() > 1, said[1, 0].item()
      (True, 0.0)

    Reference:
      Blanchard et al. 2017, experiments, where the noise stands alone.
    """

    scale: Float[Array, ""] | float
    reference: ClassVar[str | None] = "blanchard2017"

    def validate(self) -> None:
        super().validate()
        _check.positive("scale", self.scale)

    def lie(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        around: Float[Array, "#senders dim"],
    ) -> Float[Array, "senders dim"]:
        rows = jnp.arange(messages.shape[0], dtype=jnp.uint32)
        keys = key if key.ndim else jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)
        noise = jax.vmap(lambda k: normal(k, messages.shape[1:], messages.dtype))(keys)
        return messages + jnp.asarray(self.scale, messages.dtype) * noise


@module
class Constant(Attack):
    r"""The same vector, always.

    Args:
      attackers: as in :class:`Attack`.
      value: every coordinate's, or ``[D]``.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: likewise; a value that is not finite, no vector, or of another length than the
        messages.

    Example:
      >>> attack, rows = Constant(first(1, 2), 7.0), jnp.zeros((2, 1))
      >>> attack.say(jax.random.key(0), rows, attack.attackers, rows[:, 0] == 0, rows).tolist()
      [[7.0], [0.0]]

    Reference:
      Li et al. 2019, experiments.
    """

    value: Any  # Float[Array, "dim"] or one number
    reference: ClassVar[str | None] = "li2019"

    def validate(self) -> None:
        super().validate()
        value = _check.filled("value", self.value)
        if isinstance(value, np.ndarray):
            object.__setattr__(self, "value", value.astype(float_dtype()))
        _check.interval("value", self.value)
        if np.ndim(self.value) > 1:
            raise ValueError(
                f"value must be one number or a vector [dim], got shape {np.shape(self.value)}."
            )

    def check_length(self, *lengths: int) -> None:
        """Raise ``ValueError`` unless the vector, if it is one, is of one of these lengths."""
        if np.ndim(self.value) and np.shape(self.value)[0] not in lengths:
            known = " or ".join(map(str, dict.fromkeys(lengths)))
            raise ValueError(
                f"the attack's value has {np.shape(self.value)[0]} numbers and a message {known}; "
                "give one number, or one of each coordinate."
            )

    def lie(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        around: Float[Array, "#senders dim"],
    ) -> Float[Array, "senders dim"]:
        self.check_length(messages.shape[1])
        return jnp.broadcast_to(jnp.asarray(self.value, messages.dtype), messages.shape)


@module
class ALittleIsEnough(Attack):
    r"""As far from the honest mean as still looks honest, :math:`\mu-z\sigma` (omniscient).

    Mean and standard deviation are those of the honest messages of the round, coordinate by
    coordinate. Of ``n`` senders, ``m`` of them attackers, the lie is to have a majority with those
    honest ones that are farther out still:

    .. math:: z=\Phi^{-1}\Big(\frac{n-m-s}{n-m}\Big),\qquad
              s=\Big\lfloor\frac n2+1\Big\rfloor-m,

    and at least 0: few attackers can hide at the mean only. Attackers that are a majority need
    nobody's support; ``z`` is then that of one supporter.

    Args:
      attackers: as in :class:`Attack`.
      deviations: ``z`` > 0; by default from those who send in the round, as above.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: likewise; deviations that are not positive.

    Example:
      >>> attack = ALittleIsEnough(first(1, 3), deviations=2.0)
      >>> rows, all_of = jnp.array([[9.0], [1.0], [3.0]]), jnp.ones(3, bool)
      >>> attack.say(jax.random.key(0), rows, attack.attackers, all_of, jnp.zeros((1, 1))).tolist()
      [[0.0], [1.0], [3.0]]

    Reference:
      Baruch et al. 2019.
    """

    deviations: Float[Array, ""] | float | None = None
    reference: ClassVar[str | None] = "baruch2019"

    def validate(self) -> None:
        super().validate()
        if self.deviations is not None:
            _check.positive("deviations", self.deviations)

    def lie(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        around: Float[Array, "#senders dim"],
    ) -> Float[Array, "#senders dim"]:
        honest = sending & ~attacking
        mean = _honest_mean(messages, honest)
        spread = jnp.sqrt(_honest_mean((messages - mean) ** 2, honest))
        if self.deviations is None:
            deviations = _hidden(
                jnp.sum(sending, dtype=jnp.int32), jnp.sum(honest, dtype=jnp.int32), messages.dtype
            )
        else:
            deviations = jnp.asarray(self.deviations, messages.dtype)
        return jnp.where(jnp.any(honest), mean - deviations * spread, around)


def _hidden(senders: Array, honest: Array, dtype: Any) -> Float[Array, ""]:
    """How many deviations a lie may be off with a majority at its side."""
    support = jnp.maximum(senders // 2 + 1 - (senders - honest), 1)
    share = (honest - support).astype(dtype) / jnp.maximum(honest, 1).astype(dtype)
    return jax.scipy.special.ndtri(jnp.maximum(share, 0.5))


@module
class InnerProductManipulation(Attack):
    r"""Against the honest change, :math:`v-s\,\frac1{|H|}\sum_{h\in H}(x_h-v_h)` (omniscient).

    With a small scale it stays among the honest messages and yet turns their mean; with a large
    one it turns the plain mean even for few attackers.

    Args:
      attackers: as in :class:`Attack`.
      scale: :math:`s>0`.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: likewise; a scale that is not positive.

    Example:
      >>> attack = InnerProductManipulation(first(1, 3), scale=0.5)
      >>> rows, all_of = jnp.array([[9.0], [1.0], [3.0]]), jnp.ones(3, bool)
      >>> attack.say(jax.random.key(0), rows, attack.attackers, all_of, jnp.ones((1, 1))).tolist()
      [[0.5], [1.0], [3.0]]

    Reference:
      Xie et al. 2020.
    """

    scale: Float[Array, ""] | float
    reference: ClassVar[str | None] = "xie2020"

    def validate(self) -> None:
        super().validate()
        _check.positive("scale", self.scale)

    def lie(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        around: Float[Array, "#senders dim"],
    ) -> Float[Array, "#senders dim"]:
        change = _honest_mean(messages - around, sending & ~attacking)
        return around - jnp.asarray(self.scale, messages.dtype) * change


@checked
def poison_labels(
    problem: Problem, attackers: Any, flip: Callable[[Array], Array] | None = None
) -> Problem:
    r"""The problem with the attackers' targets flipped: clients that learn from wrong labels.

    Labels :math:`\pm1` and real targets are negated, those of :class:`~fljax.problems.Softmax`
    become :math:`C-1-y`, which leaves the middle one of an odd number of classes as it is.
    Features, held-out data and tasks stay clean. A metric that compares with the optimum of the
    problem compares with that of the poisoned one.

    Args:
      problem: the clean one.
      attackers: ``[K]`` booleans, as in :class:`Attack`.
      flip: other targets in the place of these, ``[K, N]`` to ``[K, N]``, for instance
        ``lambda y: jnp.where(y == 7, 1, y)``.

    Raises:
      TypeError: a mask that is not of booleans.
      ValueError: a mask of another length, nobody honest, targets that the loss does not know.

    Example:
      >>> import fljax as fl
      >>> loss = fl.problems.Logistic()
      >>> clean = fl.problems.Problem(np.ones((2, 2, 1)), np.array([[1, -1], [1, -1]]), loss)
      >>> np.asarray(poison_labels(clean, first(1, 2)).targets).tolist()
      [[-1.0, 1.0], [1.0, -1.0]]

    Reference:
      Tolpegin et al. 2020; Jung 2025, chapter 10.
    """
    mask = _mask(attackers)
    _check_mask(mask, problem.clients)
    if flip is None:
        loss = problem.loss
        flip = (lambda y: loss.classes - 1 - y) if isinstance(loss, Softmax) else jnp.negative
    lies, targets = flip(problem.targets), problem.targets
    if _check.is_concrete(targets) and _check.is_concrete(mask) and _check.is_concrete(lies):
        targets = np.where(np.asarray(mask)[:, None], np.asarray(lies), np.asarray(targets))
    else:
        targets = jnp.where(jnp.asarray(mask)[:, None], lies, targets)
    poisoned = dataclasses.replace(problem, targets=targets)
    # What was computed of the clean targets is computed anew.
    return poisoned if problem.statistics is None else poisoned.prepare()
