r"""Attacks: false messages of clients that do not follow the protocol, and poisoned data.

An attack defines the attackers and their messages. It replaces the rows of ``[senders, D]`` that
attackers send, and leaves every other row bitwise unchanged. ``reference`` is known to both ends:
the model from which a message is a change; an attack on the change is relative to it.

:class:`SignFlip`, :class:`LargeNoise` and :class:`ConstantMessage` use the attacker's own message
only. :class:`ALittleIsEnough` and :class:`InnerProductManipulation` are *omniscient*: the attackers
collude and know the message of every honest sender of the round; in
:class:`DenialOfService` they also know the honest clients' data. The attackers are clients, or
links between peers: then all clients are honest, and some links deliver false messages.

:func:`poison_labels`, :func:`poison_features` and :func:`backdoor` are attacks on the data, by
clients that then follow the protocol; :func:`copy_attack` is one on the loss and the edges of a
device.

The defense against false messages is :mod:`fljax.aggregation`; against eavesdroppers it is noise on
messages (Jung 2025, (190)): ``Simulation(noise=fl.link.PerMessage(...))`` with a given variance,
under which a node keeps its own model without noise, or with the variance that a budget over all
rounds requires, ``Simulation(privacy=fl.privacy.ZCDP(...))``.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.linalg import norm
from fljax._core.module import as_given, field, float_array, float_dtype, module, static
from fljax._core.prng import normal
from fljax._core.random_subsets import shuffled, subset
from fljax.graphs import Graph, from_adjacency
from fljax.link.backdoor import Trigger
from fljax.problems.objectives import Softmax
from fljax.problems.problem import Problem

Keys = Key[Array, "*senders"]
Messages = Float[Array, "senders dim"]
Mask = Bool[Array, " senders"]
#: What messages are compared with: one vector of each sender, or one for all.
Reference = Float[Array, "#senders dim"]

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "ConstantMessage",
    "DenialOfService",
    "InnerProductManipulation",
    "LargeNoise",
    "SignFlip",
    "Trigger",
    "backdoor",
    "copy_attack",
    "first",
    "poison_features",
    "poison_labels",
    "random_attackers",
]


@checked
def first(count: int, clients: int) -> np.ndarray:
    """Return the mask of attackers that marks the first ``count`` of all clients.

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
    mask = np.zeros(clients, bool)
    mask[:count] = True
    return mask


@checked
def random_attackers(key: Key[Array, ""], clients: int, count: int) -> Bool[Array, " clients"]:
    """Return the mask of ``count`` attackers drawn uniformly from all clients.

    Args:
      key: consumed.
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
    checks.count("clients", clients)
    checks.count("count", count, at_least=0)
    if count >= clients:
        raise ValueError(f"count must leave one of the {clients} clients honest, got {count}.")


def _mask(attackers: object, *, links: bool = False) -> Any:
    """The mask as an array of booleans, checked as far as it is concrete; of links, if it may."""
    attackers = checks.as_booleans(attackers)
    if checks.dtype_of(attackers) != np.bool_:
        raise TypeError(
            f"attackers must be booleans, one for each client, got {checks.shown(attackers)}; "
            "fljax.attacks.first(count, clients) and random_attackers(key, clients, count) make "
            "such a mask."
        )
    mask = attackers if isinstance(attackers, jax.Array) else np.asarray(attackers)
    if links and mask.ndim == 2 and mask.shape[0] == mask.shape[1]:
        return mask
    if mask.ndim != 1:
        of_links = ", or one of links, [clients, clients]" * links
        raise ValueError(
            f"attackers must be a mask of shape [clients]{of_links}, got shape {mask.shape}."
        )
    checks.check_when_concrete(_check_honest, mask)
    return mask


def _check_honest(mask: Array) -> None:
    if np.all(np.asarray(mask)):
        raise ValueError(f"all {mask.size} clients are attackers; leave at least one honest.")


def _check_mask(mask: Array, clients: int) -> None:
    if mask.shape[0] != clients:
        raise ValueError(
            f"attackers must be one boolean of each of the {clients} clients, got {mask.shape[0]}."
        )


@module
class Attack:
    """An attack on messages; subclass it and define :meth:`forge` for your own.

    Args:
      attackers: ``[K]`` booleans, or zeros and ones; :func:`first` and :func:`random_attackers`
        return such masks. Or ``[K, K]``, of links between peers, from the sender (column) to the
        receiver (row): these deliver the false message that would replace the sender's message, and
        all clients are honest (model poisoning; Jung 2025, section 10.1).

    Raises:
      TypeError: not booleans.
      ValueError: neither a vector nor a square matrix; no honest client.

    Attributes:
      reference: a key of ``references.bib``, or several; see :func:`fljax.citation`.

    Example:
      Attackers that send zeros:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Silent(fl.attacks.Attack):
      ...     def forge(self, key, messages, attacking, sending, reference):
      ...         return jnp.zeros_like(messages)
      >>> attack, messages = Silent([True, False]), jnp.array([[1.0], [2.0]])
      >>> sending, reference = jnp.ones(2, bool), jnp.zeros((1, 1))
      >>> attack.corrupt(jax.random.key(0), messages, attack.attackers, sending, reference).tolist()
      [[0.0], [2.0]]
    """

    attackers: Annotated[Array, "clients, or clients clients"] = field(converter=as_given)
    reference: ClassVar[str | tuple[str, ...] | None] = None

    def validate(self) -> None:
        object.__setattr__(self, "attackers", _mask(self.attackers, links=True))

    @property
    def links(self) -> Array | None:
        """``[K, K]``, the links that deliver false messages; ``None`` where clients attack."""
        return self.attackers if np.ndim(self.attackers) == 2 else None

    @property
    def byzantine(self) -> Array | np.ndarray:
        """``[K]``, the clients that do not follow the protocol: none where links are attacked."""
        return np.zeros(len(self.attackers), bool) if self.links is not None else self.attackers

    def check(self, clients: int) -> None:
        """Raise ``ValueError`` unless the mask fits a network of this size."""
        _check_mask(self.attackers, clients)

    def check_length(self, *lengths: int) -> None:
        """Raise ``ValueError`` unless its messages can have one of these lengths; any, here."""

    def forge(
        self, key: Keys, messages: Messages, attacking: Mask, sending: Mask, reference: Reference
    ) -> Reference:
        """Return the false message that replaces each row; arguments as in :meth:`corrupt`."""
        raise NotImplementedError(
            checks.missing_method_message(type(self), "forge", "what an attacker sends")
        )

    def corrupt(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        reference: Float[Array, "#senders dim"],
    ) -> Float[Array, "senders dim"]:
        """Return the messages with the attackers' rows replaced, the others bitwise unchanged.

        Args:
          key: of this round, folded with each row's number; or one for each sender, where rows
            are not always the same clients.
          messages: ``[M, D]``, the message that each sender would send if it were honest.
          attacking: ``[M]``, which rows belong to attackers.
          sending: ``[M]``, which rows are sent at all; attackers know only these honest messages.
          reference: ``[M, D]``, or ``[1, D]`` for all: the vector that both ends know.
        """
        forged = self.forge(key, messages, attacking, sending, reference)
        shapes = messages.shape, (1, *messages.shape[1:])
        forged = checks.returned(f"{type(self).__name__}.forge", forged, *shapes)
        return jnp.where(attacking[:, None], forged, messages)


def _honest_mean(
    values: Float[Array, "senders dim"], honest: Bool[Array, " senders"]
) -> Float[Array, "1 dim"]:
    """The mean of the honest messages; zeros if there are none."""
    count = jnp.maximum(jnp.sum(honest, dtype=jnp.int32), 1).astype(values.dtype)
    return jnp.sum(jnp.where(honest[:, None], values, 0), axis=0, keepdims=True) / count


@module
class SignFlip(Attack):
    r"""The change in the opposite direction, :math:`v-s(x-v)` with ``v`` = ``reference``.

    Args:
      attackers: as in :class:`Attack`.
      scale: :math:`s>0`.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: as there; a scale that is not positive.

    Example:
      >>> rows, all_of = jnp.array([[1.0], [2.0]]), jnp.array([True, True])
      >>> key = jax.random.key(0)
      >>> attack = SignFlip(first(1, 2), scale=3.0)
      >>> attack.corrupt(key, rows, attack.attackers, all_of, jnp.ones((1, 1))).tolist()
      [[1.0], [2.0]]
      >>> attack.corrupt(key, rows, attack.attackers, all_of, jnp.zeros((1, 1))).tolist()
      [[-3.0], [2.0]]

    Reference:
      Li et al. 2019, experiments.
    """

    scale: Float[Array, ""] | float = 1.0
    reference = "li2019"

    def validate(self) -> None:
        super().validate()
        checks.positive("scale", self.scale)

    def forge(
        self, key: Keys, messages: Messages, attacking: Mask, sending: Mask, reference: Reference
    ) -> Messages:
        return reference - jnp.asarray(self.scale, messages.dtype) * (messages - reference)


@module
class LargeNoise(Attack):
    r"""The message plus Gaussian noise, :math:`x+s\,\mathcal N(0,I)`.

    Args:
      attackers: as in :class:`Attack`.
      scale: :math:`s>0`, the standard deviation of each coordinate.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: as there; a scale that is not positive.

    Example:
      >>> attack, rows = LargeNoise(first(1, 2), scale=1e3), jnp.zeros((2, 1))
      >>> sent = attack.corrupt(jax.random.key(0), rows, attack.attackers, rows[:, 0] == 0, rows)
      >>> abs(sent[0, 0]).item() > 1, sent[1, 0].item()
      (True, 0.0)

    Reference:
      Blanchard et al. 2017, experiments, where the noise replaces the message.
    """

    scale: Float[Array, ""] | float
    reference = "blanchard2017"

    def validate(self) -> None:
        super().validate()
        checks.positive("scale", self.scale)

    def forge(
        self, key: Keys, messages: Messages, attacking: Mask, sending: Mask, reference: Reference
    ) -> Messages:
        rows = jnp.arange(messages.shape[0], dtype=jnp.uint32)
        keys = key if key.ndim else jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)
        noise = jax.vmap(lambda k: normal(k, messages.shape[1:], messages.dtype))(keys)
        return messages + jnp.asarray(self.scale, messages.dtype) * noise


@module
class ConstantMessage(Attack):
    r"""The same constant vector in every message.

    Args:
      attackers: as in :class:`Attack`.
      value: one number for all coordinates, or ``[D]``.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: as there; a value that is not finite, no vector, or of another length than the
        messages.

    Example:
      >>> attack, rows = ConstantMessage(first(1, 2), 7.0), jnp.zeros((2, 1))
      >>> attack.corrupt(jax.random.key(0), rows, attack.attackers, rows[:, 0] == 0, rows).tolist()
      [[7.0], [0.0]]

    Reference:
      Li et al. 2019, experiments.
    """

    value: Annotated[Array, "*dim"] = field(converter=as_given)
    reference = "li2019"

    def validate(self) -> None:
        super().validate()
        checks.filled("value", self.value)
        object.__setattr__(self, "value", float_array("value", self.value))
        checks.interval("value", self.value)
        if np.ndim(self.value) > 1:
            raise ValueError(
                f"value must be one number or a vector [dim], got shape {np.shape(self.value)}."
            )

    def check_length(self, *lengths: int) -> None:
        """Raise ``ValueError`` unless the vector, if given, has one of these lengths."""
        if np.ndim(self.value) and np.shape(self.value)[0] not in lengths:
            allowed = " or ".join(map(str, dict.fromkeys(lengths)))
            raise ValueError(
                f"the attack's value has {np.shape(self.value)[0]} numbers and a message "
                f"{allowed}; give one number, or one for each coordinate."
            )

    def forge(
        self, key: Keys, messages: Messages, attacking: Mask, sending: Mask, reference: Reference
    ) -> Messages:
        self.check_length(messages.shape[1])
        return jnp.broadcast_to(jnp.asarray(self.value, messages.dtype), messages.shape)


@module
class ALittleIsEnough(Attack):
    r"""The largest deviation from the honest mean that is inconspicuous, :math:`\mu-z\sigma`
    (omniscient).

    Mean and standard deviation are of each coordinate of the round's honest messages.
    Among ``n`` senders, ``m`` of them attackers, the false messages are to form a majority together
    with the honest messages that are even farther from the mean:

    .. math:: z=\Phi^{-1}\Big(\frac{n-m-s}{n-m}\Big),\qquad
              s=\Big\lfloor\frac n2+1\Big\rfloor-m,

    and at least 0: few attackers can hide only at the mean. Attackers that are a majority need no
    honest supporters; ``z`` is then that of one supporter.

    Args:
      attackers: as in :class:`Attack`.
      deviations: ``z`` > 0; by default computed from the senders of the round, as above.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: as there; deviations that are not positive.

    Example:
      >>> attack = ALittleIsEnough(first(1, 3), deviations=2.0)
      >>> rows, all_of = jnp.array([[9.0], [1.0], [3.0]]), jnp.ones(3, bool)
      >>> key = jax.random.key(0)
      >>> attack.corrupt(key, rows, attack.attackers, all_of, jnp.zeros((1, 1))).tolist()
      [[0.0], [1.0], [3.0]]

    Reference:
      Baruch et al. 2019.
    """

    deviations: Float[Array, ""] | float | None = None
    reference = "baruch2019"

    def validate(self) -> None:
        super().validate()
        if self.deviations is not None:
            checks.positive("deviations", self.deviations)

    def forge(
        self, key: Keys, messages: Messages, attacking: Mask, sending: Mask, reference: Reference
    ) -> Reference:
        honest = sending & ~attacking
        mean = _honest_mean(messages, honest)
        spread = jnp.sqrt(_honest_mean((messages - mean) ** 2, honest))
        if self.deviations is None:
            deviations = _inconspicuous_deviations(
                jnp.sum(sending, dtype=jnp.int32), jnp.sum(honest, dtype=jnp.int32), messages.dtype
            )
        else:
            deviations = jnp.asarray(self.deviations, messages.dtype)
        return jnp.where(jnp.any(honest), mean - deviations * spread, reference)


def _inconspicuous_deviations(senders: Array, honest: Array, dtype: DTypeLike) -> Float[Array, ""]:
    """The number of standard deviations at which false messages still have a majority."""
    support = jnp.maximum(senders // 2 + 1 - (senders - honest), 1)
    share = (honest - support).astype(dtype) / jnp.maximum(honest, 1).astype(dtype)
    return jax.scipy.special.ndtri(jnp.maximum(share, 0.5))


@module
class InnerProductManipulation(Attack):
    r"""The reversed honest change, :math:`v-s\,\frac1{|H|}\sum_{h\in H}(x_h-v_h)` (omniscient).

    With a small scale it stays among the honest messages and yet reverses their mean change; with a
    large one it reverses the plain mean even with few attackers.

    Args:
      attackers: as in :class:`Attack`.
      scale: :math:`s>0`.

    Raises:
      TypeError: as in :class:`Attack`.
      ValueError: as there; a scale that is not positive.

    Example:
      >>> attack = InnerProductManipulation(first(1, 3), scale=0.5)
      >>> rows, all_of = jnp.array([[9.0], [1.0], [3.0]]), jnp.ones(3, bool)
      >>> key = jax.random.key(0)
      >>> attack.corrupt(key, rows, attack.attackers, all_of, jnp.ones((1, 1))).tolist()
      [[0.5], [1.0], [3.0]]

    Reference:
      Xie et al. 2020.
    """

    scale: Float[Array, ""] | float
    reference = "xie2020"

    def validate(self) -> None:
        super().validate()
        checks.positive("scale", self.scale)

    def forge(
        self, key: Keys, messages: Messages, attacking: Mask, sending: Mask, reference: Reference
    ) -> Reference:
        change = _honest_mean(messages - reference, sending & ~attacking)
        return reference - jnp.asarray(self.scale, messages.dtype) * change


@module
class DenialOfService(Attack):
    r"""The point of largest loss of the honest clients in a ball around their mean message.

    All attackers send :math:`\bar x+d`, with the mean :math:`\bar x` of the honest messages of the
    round and

    .. math:: d\approx\arg\max_{\|d\|\le r}\sum_{h\in H}f_h(\bar x+d),

    by the iteration :math:`d\leftarrow r\,\nabla/\|\nabla\|` with the gradient at
    :math:`\bar x+d`, from a random direction: for a convex loss no step decreases the loss. For
    messages that are models (omniscient: attackers know the honest clients' data).

    Args:
      attackers: as in :class:`Attack`.
      problem: of the clients whose loss is maximized.
      radius: :math:`r>0`, in the units of the models.
      iterations: >= 1.

    Raises:
      TypeError: as in :class:`Attack`; not a problem.
      ValueError: as there; a radius that is not positive, no iterations, a problem with another
        number of clients or parameters.

    Example:
      >>> import fljax as fl
      >>> steep = np.array([[[1.0, 0.0], [0.0, 3.0]]] * 2)  # the loss grows along the second
      >>> problem = fl.problems.Problem(steep, np.zeros((2, 2)), fl.problems.LeastSquares())
      >>> attack, rows = DenialOfService(first(1, 2), problem, radius=5.0), jnp.zeros((2, 2))
      >>> sent = attack.corrupt(jax.random.key(0), rows, attack.attackers, rows[:, 0] == 0, rows)
      >>> [round(abs(v), 1) for v in sent[0].tolist()]
      [0.0, 5.0]

    Reference:
      Jung 2025, section 10.2.
    """

    problem: Problem
    radius: Float[Array, ""] | float
    iterations: int = static(default=5)
    reference = "jung2025"

    def validate(self) -> None:
        super().validate()
        checks.kind("problem", self.problem, Problem)
        checks.positive("radius", self.radius)
        checks.count("iterations", self.iterations)
        self.check(self.problem.clients)

    def check_length(self, *lengths: int) -> None:
        """Raise ``ValueError`` unless messages are models of the problem."""
        if set(lengths) != {self.problem.dim}:
            raise ValueError(
                f"the attack's problem has models of {self.problem.dim} numbers and messages have "
                f"{' or '.join(map(str, dict.fromkeys(lengths)))}; it is for messages that are "
                "models."
            )

    def forge(
        self, key: Keys, messages: Messages, attacking: Mask, sending: Mask, reference: Reference
    ) -> Reference:
        honest = sending & ~attacking
        center = jnp.where(jnp.any(honest), _honest_mean(messages, honest), reference[:1])
        radius = jnp.asarray(self.radius, messages.dtype)
        honest_clients = ~jnp.asarray(self.byzantine)

        def on_sphere(direction: Array) -> Array:
            return center + radius * direction / jnp.maximum(norm(direction), _TINY)[:, None]

        def step(_, point: Array) -> Array:
            models = jnp.broadcast_to(point, (self.problem.clients, point.shape[1]))
            gradients = jnp.where(honest_clients[:, None], self.problem.gradient(models), 0)
            return on_sphere(jnp.sum(gradients, axis=0, keepdims=True))

        start = normal(key[0] if key.ndim else key, center.shape, messages.dtype)
        return jax.lax.fori_loop(0, self.iterations, step, on_sphere(start))


#: A norm below that of any gradient of a loss; it avoids a division by zero.
_TINY = 1e-30


@checked
def poison_labels(
    problem: Problem, attackers: object, flip: Callable[[Array], Array] | None = None
) -> Problem:
    r"""Return the problem with the attackers' targets flipped: they learn from wrong labels.

    Labels :math:`\pm1` and real targets are negated, labels of :class:`~fljax.problems.Softmax`
    become :math:`C-1-y`, which leaves the middle one of an odd number of classes unchanged.
    Features, held-out data and tasks stay clean. Metrics relative to the optimum of the problem use
    the optimum of the poisoned one.

    Args:
      problem: the clean problem.
      attackers: ``[K]`` booleans, as in :class:`Attack`.
      flip: function from targets ``[K, N]`` to the poisoned ones ``[K, N]``, for instance
        ``lambda y: jnp.where(y == 7, 1, y)``.

    Raises:
      TypeError: a mask that is not boolean; a function that returns no numbers.
      ValueError: a mask of another length, no honest client, targets that are invalid for the loss
        or of another shape.

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
    targets = problem.targets
    flipped = checks.returned("flip", flip(targets), targets.shape)
    if checks.is_concrete(targets) and checks.is_concrete(mask) and checks.is_concrete(flipped):
        targets = np.where(np.asarray(mask)[:, None], np.asarray(flipped), np.asarray(targets))
    else:
        targets = jnp.where(jnp.asarray(mask)[:, None], flipped, targets)
    return _poisoned(problem, targets=targets)


def _poisoned(problem: Problem, **data: Any) -> Problem:
    """The problem with other data; quantities computed from the clean data are recomputed."""
    poisoned = dataclasses.replace(problem, **data)
    return poisoned if problem.statistics is None else poisoned.prepare()


@checked
def poison_features(problem: Problem, attackers: object, shift: object) -> Problem:
    r"""Return the problem with the attackers' features shifted, :math:`x+\Delta x`, labels kept.

    A clean-label attack: an inspection of labels does not reveal it. Held-out data and tasks stay
    clean, and the optimum is that of the poisoned problem, as in :func:`poison_labels`. It plants a
    backdoor if it moves samples of the attacker's class alone, to where a :class:`Trigger` is set.

    Args:
      problem: the clean problem.
      attackers: ``[K]`` booleans, as in :class:`Attack`.
      shift: :math:`\Delta x`, a number or an array that broadcasts to the features ``[K, N, P]``:
        ``[P]`` for the same shift of all samples.

    Raises:
      TypeError: a mask that is not boolean; a shift that is not a number.
      ValueError: a mask of another length, no honest client; a shift of another shape or not
        finite; features beyond the problem's bound.

    Example:
      >>> import fljax as fl
      >>> loss = fl.problems.LeastSquares()
      >>> clean = fl.problems.Problem(np.ones((2, 1, 2)), np.ones((2, 1)), loss)
      >>> np.asarray(poison_features(clean, first(1, 2), [0.0, 5.0]).features).tolist()
      [[[1.0, 6.0]], [[1.0, 1.0]]]

    Reference:
      Shafahi et al. 2018; Jung 2025, section 10.1.
    """
    mask = _mask(attackers)
    _check_mask(mask, problem.clients)
    features = problem.features
    change = checks.filled("shift", shift)
    checks.interval("shift", change)
    size = np.ndim(features)
    fits = np.ndim(change) <= size and all(
        attacked in (1, its)
        for attacked, its in zip(np.shape(change)[::-1], np.shape(features)[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"shift must be a number or broadcast to the features {features.shape}, got shape "
            f"{np.shape(change)}."
        )
    change = jnp.where(jnp.asarray(mask).reshape(-1, *[1] * (size - 1)), change, 0)
    return _poisoned(problem, features=jnp.asarray(features) + change.astype(features.dtype))


@checked
def backdoor(
    problem: Problem,
    attackers: object,
    trigger: Trigger,
    target: Float[Array, ""] | float,
    *,
    key: Key[Array, ""] | None = None,
    share: float | None = None,
) -> Problem:
    """Return the problem where the attackers' samples with a trigger have a target label.

    :func:`fljax.metrics.backdoor_success` measures how often a model then predicts the target for
    samples with the trigger; ``accuracy`` measures whether the attack is visible otherwise.

    Args:
      problem: the clean problem.
      attackers: ``[K]`` booleans, as in :class:`Attack`.
      trigger: the trigger that samples have, or that is stamped on them.
      target: the label of samples with the trigger.
      key: for the draw of the samples that are stamped; consumed.
      share: share of each attacker's samples that are stamped with the trigger, in (0, 1], at least
        one sample; by default none is stamped, and samples must have the trigger naturally.

    Raises:
      TypeError: a mask that is not boolean; no trigger.
      ValueError: a mask of another length, no honest client; a feature that samples do not have; a
        trigger that no sample of an attacker has, where none is stamped; a share without a key or
        vice versa, or outside (0, 1]; a target that is invalid for the loss.

    Example:
      >>> import fljax as fl
      >>> x, loss = np.array([[[0.0, 1.0], [1.0, 0.0]]] * 2), fl.problems.LeastSquares()
      >>> clean = fl.problems.Problem(x, np.zeros((2, 2)), loss)
      >>> backdoor(clean, first(1, 2), Trigger([1], 1.0), target=7.0).targets.tolist()
      [[7.0, 0.0], [0.0, 0.0]]

    Reference:
      Bagdasaryan et al. 2020; Jung 2025, section 10.2.
    """
    mask = _mask(attackers)
    _check_mask(mask, problem.clients)
    trigger.check(problem.features.shape[2:])
    checks.interval("target", target)
    if (key is None) != (share is None):
        raise ValueError(
            "key= and share= choose the samples that get the trigger: give both, or neither if "
            "samples have it already."
        )
    features = jnp.asarray(problem.features)
    real = jnp.asarray(problem.weights) > 0
    attacking = jnp.asarray(mask)[:, None]
    if key is None:
        chosen = trigger.worn(features) & real & attacking
        checks.check_when_concrete(_check_has_trigger, chosen, mask)
    else:
        checks.interval("share", share, above=0, at_most=1)
        order = shuffled(key, real)
        rank = jnp.argsort(order, axis=1).astype(jnp.int32)
        count = jnp.sum(real, axis=1, dtype=jnp.int32)
        wanted = jnp.maximum(jnp.rint(share * count.astype(float_dtype())), 1).astype(jnp.int32)
        chosen = (rank < wanted[:, None]) & attacking
        axes = (..., *[None] * (features.ndim - 2))
        features = jnp.where(chosen[axes], trigger.stamp(features), features)
    targets = jnp.asarray(problem.targets)
    targets = jnp.where(chosen, jnp.asarray(target).astype(targets.dtype), targets)
    return _poisoned(problem, features=features, targets=targets)


def _check_has_trigger(chosen: object, mask: object) -> None:
    if np.any(np.asarray(mask)) and not np.any(np.asarray(chosen)):
        raise ValueError(
            "no sample of an attacker has the trigger; take one that samples have, or stamp it on "
            "some of them with key= and share=."
        )


@checked
def copy_attack(
    problem: Problem, network: Graph, copier: int, victim: int
) -> tuple[Problem, Graph]:
    r"""Return the problem and network in which one device copies the model of another.

    The loss of the device is zero, and its edges are removed except for one of weight one to the
    victim. With :class:`~fljax.algorithms.FedRelax` its model in every round is then the victim's
    model of the previous round.

    Args:
      problem: the clean problem.
      network: the clean network.
      copier: the number of the device under attack.
      victim: the number of the device whose model is copied.

    Returns:
      The problem, and the network, which may be disconnected without the removed edges.

    Raises:
      ValueError: no such device; the same one twice; a network with another number of nodes.

    Example:
      >>> import fljax as fl
      >>> clean = fl.problems.least_squares(jax.random.key(0), clients=4, samples=9, dim=2)
      >>> problem, network = copy_attack(clean, fl.graphs.ring(4), copier=0, victim=2)
      >>> problem.weights.sum(axis=1).tolist(), network.edge_list()
      ([0.0, 1.0, 1.0, 1.0], [(0, 2), (1, 2), (2, 3)])

    Reference:
      Jung 2025, section 10.2, with (123).
    """
    if network.nodes != problem.clients:
        raise ValueError(
            f"the network has {network.nodes} nodes and the problem {problem.clients} clients; "
            "they must be equal."
        )
    for name, device in (("copier", copier), ("victim", victim)):
        if not 0 <= device < problem.clients:
            raise ValueError(
                f"{name} must be a number from 0 to {problem.clients - 1}, got {device}."
            )
    if copier == victim:
        raise ValueError(f"copier and copied must be different devices, got {copier} twice.")
    is_copier = np.arange(problem.clients) == copier
    edge = np.zeros((problem.clients, problem.clients))
    edge[copier, victim] = edge[victim, copier] = 1
    left = jnp.where(is_copier[:, None] | is_copier[None, :], 0, network.dense())
    matrix = left + jnp.asarray(edge, left.dtype)
    cut = from_adjacency(matrix, form="dense", allow_disconnected=True)
    return problem.weighing(1.0 - is_copier), cut
