"""Changes of the samples of a pool that depend on their client: feature shift and label noise.

A partition assigns samples to clients; a shift changes how a client sees them. Shifts are pure
functions of a key, applied to the pool once it is partitioned, with their numbers traced. Each
scenario then has a changed pool of its own, as large as the pool.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fljax._core import checks
from fljax._core.module import float_array, float_dtype, module, static


class OwnedSamples(NamedTuple):
    """The samples of a pool with their clients, as a shift gets and returns them.

    Attributes:
      features: ``[R, ...]``.
      targets: ``[R, ...]``.
      owners: ``[R]``, the client of each; ``clients`` for none.
      clients: ``K``, static.
      classes: ``C``, static; ``None`` unless targets are labels.

    Example:
      >>> import numpy as np, fljax as fl
      >>> samples = fl.partitions.OwnedSamples(
      ...     np.ones((3, 2)), np.array([0, 1, 1]), np.array([0, 0, 1]), clients=2, classes=2
      ... )
      >>> samples.of_owners(np.array([10, 20])).tolist()  # numbers of clients, for their samples
      [10, 10, 20]
    """

    features: Array
    targets: Array
    owners: Int[Array, " rows"]
    clients: int
    classes: int | None

    def of_owners(self, values: Any, absent: Any = 0) -> Array:
        """The value of each sample's client, ``[R, ...]``, of one value per client."""
        values = jnp.asarray(values)
        padding = jnp.full((1, *values.shape[1:]), absent, values.dtype)
        return jnp.concatenate([values, padding])[self.owners]

    def over_features(self, values: Array) -> Array:
        """One value per sample as an array that broadcasts against the features."""
        return values.reshape(values.shape + (1,) * (self.features.ndim - 1))


@module
class Shift:
    """A change of samples that depends on their client; subclass it to define your own.

    A subclass has a method :meth:`apply`, and :meth:`check` where it can refuse samples.

    Example:
      The features of client ``k`` times ``k + 1``:

      >>> import jax.numpy as jnp, numpy as np, fljax as fl
      >>> @fl.module
      ... class Scaled(fl.partitions.Shift):
      ...     def apply(self, key, samples):
      ...         factor = samples.of_owners(jnp.arange(1.0, 1.0 + samples.clients))
      ...         return samples._replace(features=samples.features * factor[:, None])
      >>> samples = fl.partitions.OwnedSamples(
      ...     np.ones((3, 1)), np.zeros(3), np.array([0, 1, 1]), clients=2, classes=None
      ... )
      >>> Scaled().apply(fl.random_key(0), samples).features.tolist()
      [[1.0], [2.0], [2.0]]
    """

    def check(self, samples: OwnedSamples) -> None:
        """Raise ``ValueError`` for samples that cannot be changed so."""

    @checks.required
    def apply(self, key: Array, samples: OwnedSamples) -> OwnedSamples:
        """Return the changed samples, of the same shapes.

        Args:
          key: consumed.
          samples: of all clients, those for testing included.
        """
        raise NotImplementedError


def _groups(clients: int, count: int | None) -> tuple[Int[Array, " clients"], int]:
    """The group of each client, ``k`` modulo the number of groups, and that number."""
    count = clients if count is None else count
    return jnp.arange(clients, dtype=jnp.int32) % count, count


@module
class Rotation(Shift):
    """Each client's images turned counterclockwise by quarter turns.

    Args:
      quarters: number of quarter turns of each client, ``[K]`` or one number; by default 0, 1, 2, 3
        in turns.

    Raises:
      ValueError: another number of clients, features other than images
        (``[R, height, width]`` or ``[R, height, width, channels]``), images that are not square.

    Reference:
      Ghosh et al. 2020, whose four clusters of clients differ so.

    Example:
      >>> import numpy as np, fljax as fl
      >>> samples = fl.partitions.OwnedSamples(
      ...     np.array([[[1, 2], [3, 4]]] * 2), np.zeros(2), np.array([0, 1]), 2, None
      ... )
      >>> fl.partitions.Rotation().apply(fl.random_key(0), samples).features.tolist()
      [[[1, 2], [3, 4]], [[2, 4], [1, 3]]]
    """

    quarters: Any = None

    def validate(self) -> None:
        if self.quarters is None:
            return
        quarters = checks.filled("quarters", checks.as_integers(self.quarters))
        if np.ndim(quarters) > 1:
            raise ValueError(
                "quarters must be one number or one for each client, got shape "
                f"{np.shape(quarters)}; give a list of whole numbers."
            )
        if not jnp.issubdtype(quarters.dtype, np.integer):
            raise ValueError(
                f"quarters must be whole numbers of quarter turns, got {checks.shown(quarters)}."
            )
        object.__setattr__(self, "quarters", quarters)

    def check(self, samples: OwnedSamples) -> None:
        if self.quarters is not None:
            checks.per_client("quarters", self.quarters, samples.clients)
        shape = np.shape(samples.features)
        if len(shape) not in (3, 4) or shape[1] != shape[2]:
            raise ValueError(
                "features must be square images, [R, size, size] or [R, size, size, channels], to "
                f"be turned, got shape {shape}; reshape or crop them."
            )

    def apply(self, key: Array, samples: OwnedSamples) -> OwnedSamples:
        quarters = _groups(samples.clients, 4)[0] if self.quarters is None else self.quarters
        of_client = jnp.broadcast_to(jnp.asarray(quarters, jnp.int32), (samples.clients,))
        turns = samples.over_features(samples.of_owners(of_client) % 4)
        images = jnp.asarray(samples.features)
        turned = images
        for quarter in (1, 2, 3):
            turned = jnp.where(turns == quarter, jnp.rot90(images, quarter, axes=(1, 2)), turned)
        return samples._replace(features=turned)


@module
class FeatureNoise(Shift):
    r"""Normal noise on each client's features, drawn once for each sample.

    Args:
      deviation: standard deviation >= 0 in the features' unit, ``[K]`` or one number. Variances
        :math:`\sigma k/K` of clients :math:`k=1,\dots,K`,
        ``jnp.sqrt(sigma * jnp.arange(1, K + 1) / K)``, are the source's.

    Raises:
      ValueError: another number of clients, negative deviations, features that are integers.

    Example:
      >>> import numpy as np, fljax as fl
      >>> owners = np.repeat([0, 1], 500)
      >>> samples = fl.partitions.OwnedSamples(np.zeros((1000, 4)), owners, owners, 2, classes=2)
      >>> noisy = fl.partitions.FeatureNoise([0.0, 1.0]).apply(fl.random_key(0), samples).features
      >>> float(noisy[owners == 0].std()), bool(abs(noisy[owners == 1].std() - 1) < 0.1)
      (0.0, True)

    Reference:
      Li et al. 2022, "noise-based feature imbalance".
    """

    deviation: Any

    def validate(self) -> None:
        object.__setattr__(self, "deviation", float_array("deviation", self.deviation))
        checks.nonnegative("deviation", self.deviation)

    def check(self, samples: OwnedSamples) -> None:
        checks.per_client("deviation", self.deviation, samples.clients)
        _check_floats(samples)

    def apply(self, key: Array, samples: OwnedSamples) -> OwnedSamples:
        features = jnp.asarray(samples.features)
        deviation = jnp.broadcast_to(jnp.asarray(self.deviation), (samples.clients,))
        scale = samples.over_features(samples.of_owners(deviation).astype(features.dtype))
        noise = jax.random.normal(key, features.shape, features.dtype)
        return samples._replace(features=features + scale * noise)


def _check_floats(samples: OwnedSamples) -> None:
    if not jnp.issubdtype(samples.features.dtype, np.floating):
        raise ValueError(
            f"features must be floats to be changed, got {samples.features.dtype}; "
            "divide an image by 255, for instance."
        )


@module
class Style(Shift):
    r"""Each client's features scaled and moved, as by another camera: :math:`e^{s_k}x+b_k`.

    Args:
      contrast: standard deviation >= 0 of the normal :math:`s_k`.
      brightness: standard deviation >= 0 of the normal :math:`b_k`, in the features' unit.

    Raises:
      ValueError: negative deviations, features that are integers.

    Example:
      >>> import numpy as np, fljax as fl
      >>> owners = np.array([0, 0, 1])
      >>> samples = fl.partitions.OwnedSamples(np.ones((3, 2)), owners, owners, 2, 2)
      >>> styled = fl.partitions.Style(contrast=0.5).apply(fl.random_key(0), samples).features
      >>> (styled[:, 0] == styled[0, 0]).tolist()  # the third sample is another client's
      [True, True, False]
    """

    contrast: Any = 0.0
    brightness: Any = 0.0

    def validate(self) -> None:
        for name in ("contrast", "brightness"):
            value = float_array(name, getattr(self, name))
            checks.nonnegative(name, value)
            if np.ndim(value):
                raise ValueError(f"{name} must be one number, got shape {np.shape(value)}.")
            object.__setattr__(self, name, value)

    def check(self, samples: OwnedSamples) -> None:
        _check_floats(samples)

    def apply(self, key: Array, samples: OwnedSamples) -> OwnedSamples:
        features = jnp.asarray(samples.features)
        draws = jax.random.normal(key, (2, samples.clients), features.dtype)
        contrast = jnp.asarray(self.contrast, features.dtype)
        brightness = jnp.asarray(self.brightness, features.dtype)
        scale = samples.of_owners(jnp.exp(contrast * draws[0]), absent=1)
        offset = samples.of_owners(brightness * draws[1])
        return samples._replace(
            features=samples.over_features(scale) * features + samples.over_features(offset)
        )


@module
class PermutedFeatures(Shift):
    """The entries of features in another random order for each group of clients.

    Args:
      groups: number of groups, client ``k`` in group ``k`` modulo it; by default each client has an
        order of its own.

    Raises:
      ValueError: less than one group.

    Example:
      >>> import numpy as np, fljax as fl
      >>> features, owners = np.tile(np.arange(8.0), (2, 1)), np.array([0, 1])
      >>> samples = fl.partitions.OwnedSamples(features, owners, owners, 2, 2)
      >>> first, second = fl.partitions.PermutedFeatures().apply(fl.random_key(0), samples).features
      >>> sorted(first.tolist()) == sorted(second.tolist()), first.tolist() == second.tolist()
      (True, False)

    Reference:
      Goodfellow et al. 2013, of tasks one after the other ("permuted MNIST").
    """

    groups: int | None = static(default=None)

    def validate(self) -> None:
        if self.groups is not None:
            checks.count("groups", self.groups)

    def apply(self, key: Array, samples: OwnedSamples) -> OwnedSamples:
        features = jnp.asarray(samples.features)
        group, count = _groups(samples.clients, self.groups)
        rows = features.reshape(len(features), -1)
        keys = jax.random.split(key, count)
        orders = jax.vmap(lambda key: jax.random.permutation(key, rows.shape[1]))(keys)
        of_client = orders[group].astype(jnp.int32)
        changed = jnp.take_along_axis(rows, samples.of_owners(of_client), axis=1)
        belongs = (samples.owners < samples.clients)[:, None]
        return samples._replace(features=jnp.where(belongs, changed, rows).reshape(features.shape))


class _OfLabels(Shift):
    """A change of labels."""

    def check(self, samples: OwnedSamples) -> None:
        if samples.classes is None or np.ndim(samples.targets) != 1:
            raise ValueError(
                f"{type(self).__name__} changes labels, one for each sample from 0 to classes - 1; "
                "take a loss of classes (Softmax), or give their number, classes=."
            )
        checks.interval("targets", samples.targets, at_least=0, at_most=samples.classes - 1)
        if samples.classes < 2:
            raise ValueError(f"labels of {samples.classes} class cannot be changed.")


@module
class LabelNoise(_OfLabels):
    """Labels that are wrong with a probability, then any other class, each equally likely.

    Args:
      rate: the probability, ``[K]`` or one number.

    Raises:
      ValueError: another number of clients, a rate outside of 0 to 1, targets other than labels.

    Example:
      >>> import numpy as np, fljax as fl
      >>> owners, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
      >>> samples = fl.partitions.OwnedSamples(np.zeros((4, 1)), labels, owners, 2, 2)
      >>> rule = fl.partitions.LabelNoise([0.0, 1.0])  # with two classes, the other one
      >>> rule.apply(fl.random_key(0), samples).targets.tolist()
      [0, 1, 1, 0]

    Reference:
      Xu et al. 2022 (FedCorr), whose new label may be the old one: their rate times
      ``(classes - 1) / classes`` is this one.
    """

    rate: Any

    def validate(self) -> None:
        object.__setattr__(self, "rate", float_array("rate", self.rate))
        checks.interval("rate", self.rate, at_least=0, at_most=1)

    def check(self, samples: OwnedSamples) -> None:
        _OfLabels.check(self, samples)
        checks.per_client("rate", self.rate, samples.clients)

    def apply(self, key: Array, samples: OwnedSamples) -> OwnedSamples:
        assert samples.classes is not None  # checked
        flip_key, class_key = jax.random.split(key)
        targets = jnp.asarray(samples.targets)
        rate = jnp.broadcast_to(jnp.asarray(self.rate, float_dtype()), (samples.clients,))
        flipped = _happens(flip_key, samples.of_owners(rate))
        step = jax.random.randint(class_key, targets.shape, 1, samples.classes, jnp.int32)
        other = (targets.astype(jnp.int32) + step) % samples.classes
        return samples._replace(targets=jnp.where(flipped, other.astype(targets.dtype), targets))


def _happens(key: Array, probability: Array) -> Bool[Array, " rows"]:
    return jax.random.uniform(key, probability.shape, probability.dtype) < probability


@module
class PermutedLabels(_OfLabels):
    """Classes renamed by another random permutation for each group of clients: the same images
    mean other labels, and one model cannot fit all.

    Args:
      groups: number of groups, client ``k`` in group ``k`` modulo it; by default each client has a
        permutation of its own.

    Raises:
      ValueError: less than one group, targets other than labels.

    Example:
      >>> import numpy as np, fljax as fl
      >>> targets, owners = np.tile(np.arange(10), 2), np.repeat([0, 1], 10)
      >>> samples = fl.partitions.OwnedSamples(np.zeros((20, 1)), targets, owners, 2, 10)
      >>> renamed = fl.partitions.PermutedLabels().apply(fl.random_key(0), samples).targets
      >>> sorted(renamed[:10].tolist()) == list(range(10))  # each class once, at each client
      True

    Reference:
      Sattler et al. 2020 (clustered federated learning).
    """

    groups: int | None = static(default=None)

    def validate(self) -> None:
        if self.groups is not None:
            checks.count("groups", self.groups)

    def apply(self, key: Array, samples: OwnedSamples) -> OwnedSamples:
        assert samples.classes is not None  # checked
        group, count = _groups(samples.clients, self.groups)
        keys = jax.random.split(key, count)
        classes = samples.classes
        names = jax.vmap(lambda key: jax.random.permutation(key, classes))(keys)
        unchanged = jnp.arange(samples.classes, dtype=names.dtype)[None]
        table = jnp.concatenate([names[group], unchanged])
        targets = jnp.asarray(samples.targets)
        renamed = table[samples.owners, targets.astype(jnp.int32)]
        return samples._replace(targets=renamed.astype(targets.dtype))
