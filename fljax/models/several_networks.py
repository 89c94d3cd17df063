"""Networks of several sizes or kinds: every client has one.

A model holds the parameters of all of them in one row, and a client's network reads its part
(:meth:`SeveralNetworks.parts`). The network of each client is chosen by
:meth:`problem.assigning <fljax.problems.Model.assigning>`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Int, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.numerics import default_promotion
from fljax.models.architecture import Architecture, layout_of

#: Random networks by which connections between layers are found.
PROBES = 12

#: Samples of each of them.
SAMPLES = 4

#: A part of a network's parameters: the positions along each axis of each parameter.
Positions = tuple[tuple[np.ndarray, ...], ...]


@dataclasses.dataclass(frozen=True)
class SeveralNetworks(Architecture):
    """Base class of networks that are one of several."""

    networks: tuple[Architecture, ...]

    def apply(self, parameters: PyTree, features: Array) -> Array:
        """Predictions of the first network."""
        part = self.parts(features.shape[1:], features.dtype)[0]
        return self.networks[0].apply(part(parameters), features)

    @checks.required
    def parts(
        self, sample: tuple[int, ...], dtype: DTypeLike
    ) -> tuple[Callable[[PyTree], PyTree], ...]:
        """Return for each network the function from all parameters to its own.

        Args:
          sample: the shape of a sample.
          dtype: its type.
        """
        raise NotImplementedError

    def places(
        self, sample: tuple[int, ...], dtype: DTypeLike
    ) -> tuple[Int[np.ndarray, " numbers"], ...]:
        """Return for each network where its numbers, in their order, are in a model's row."""
        return _places(self, sample, dtype)


@functools.lru_cache(maxsize=64)
def _places(
    networks: SeveralNetworks, sample: tuple[int, ...], dtype: DTypeLike
) -> tuple[np.ndarray, ...]:
    layout = layout_of(networks, sample, dtype)
    places = []
    with jax.ensure_compile_time_eval():
        numbers = layout.parameters(jnp.arange(layout.dim, dtype=jnp.int32))
        for part in networks.parts(sample, dtype):
            leaves = jax.tree.leaves(part(numbers))
            places.append(np.concatenate([np.asarray(leaf).ravel() for leaf in leaves]))
    return tuple(places)


@checked
def several(networks: Sequence[Architecture]) -> SeveralNetworks:
    """Different networks, such as a convolutional and a dense one: every client has one.

    The parameters of network 0 are named ``0/...``, of network 1 ``1/...`` and so on; a model's row
    holds all of them. Clients with different networks can take part in
    :class:`~fljax.algorithms.FedMD`, :class:`~fljax.algorithms.FedDF` and algorithms that exchange
    no parameters, such as :class:`~fljax.algorithms.FedDistill`.

    Args:
      networks: two or more, with predictions of the same shape.

    Raises:
      TypeError: other objects than networks of :mod:`fljax.models`.
      ValueError: fewer than two networks.

    Example:
      >>> import jax, fljax as fl
      >>> networks = fl.models.several([fl.models.mlp(3, hidden=[16]), fl.models.mlp(3, hidden=[])])
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> problem = fl.problems.Model.of(data, networks, jax.random.key(1))
      >>> problem.assigning([0, 0, 1, 1]).held().sum(axis=1).tolist()
      [163, 163, 21, 21]
    """
    return _Different(_checked_networks(networks))


@checked
def nested(networks: Sequence[Architecture]) -> SeveralNetworks:
    """A network and narrower ones whose parameters are parts of its own, as in HeteroFL.

    The parameters are the first network's. Along each axis a narrower network has the leading
    entries. In a dense layer after flattened channels it has the rows of its own channels, which
    need not be the leading ones.

    Args:
      networks: the widest first. All have the same layers, of different widths or ranks.

    Raises:
      TypeError: other objects than networks of :mod:`fljax.models`.
      ValueError: fewer than two networks; once they meet samples, widths that do not nest.

    Example:
      >>> import jax, fljax as fl
      >>> networks = fl.models.nested([fl.models.mlp(3, hidden=[width]) for width in (16, 8, 4)])
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> problem = fl.problems.Model.of(data, networks, jax.random.key(1))
      >>> problem.assigning([0, 1, 2, 2]).held().sum(axis=1).tolist()
      [163, 83, 43, 43]

    Reference:
      Diao et al. 2021, section 3; Horvath et al. 2021, section 3.1, ordered dropout.
    """
    return _Nested(_checked_networks(networks))


def _checked_networks(networks: Sequence[Architecture]) -> tuple[Architecture, ...]:
    networks = tuple(networks)
    for network in networks:
        if not isinstance(network, Architecture) or isinstance(network, SeveralNetworks):
            raise TypeError(
                "networks must be single ones of fljax.models, such as fljax.models.mlp(10), got "
                f"{checks.shown(network)}."
            )
    if len(networks) < 2:
        raise ValueError(
            f"networks must be two or more, got {len(networks)}; a single one needs no list."
        )
    return networks


@dataclasses.dataclass(frozen=True)
class _Different(SeveralNetworks):
    def init(self, key: Array, features: Array) -> Any:
        return {
            str(number): network.init(jax.random.fold_in(key, number), features)
            for number, network in enumerate(self.networks)
        }

    def parts(
        self, sample: tuple[int, ...], dtype: DTypeLike
    ) -> tuple[Callable[[PyTree], PyTree], ...]:
        return tuple(
            functools.partial(_entry, str(number)) for number, _ in enumerate(self.networks)
        )


def _entry(name: str, parameters: PyTree) -> PyTree:
    return parameters[name]


@dataclasses.dataclass(frozen=True)
class _Nested(SeveralNetworks):
    def init(self, key: Array, features: Array) -> Any:
        return self.networks[0].init(key, features)

    def parts(
        self, sample: tuple[int, ...], dtype: DTypeLike
    ) -> tuple[Callable[[PyTree], PyTree], ...]:
        return tuple(
            functools.partial(_narrowed, _positions(self.networks, number, sample, dtype))
            for number, _ in enumerate(self.networks)
        )


def _narrowed(positions: Positions, parameters: PyTree) -> PyTree:
    """The entries of parameters at these positions along each axis."""
    leaves, structure = jax.tree.flatten(parameters)
    narrowed = []
    for leaf, of_axes in zip(leaves, positions, strict=True):
        for axis, chosen in enumerate(of_axes):
            if np.array_equal(chosen, np.arange(len(chosen))):  # a slice costs less than a gather
                leaf = jax.lax.slice_in_dim(leaf, 0, len(chosen), axis=axis)
            else:
                leaf = jnp.take(leaf, chosen, axis=axis)
        narrowed.append(leaf)
    return jax.tree.unflatten(structure, narrowed)


@functools.lru_cache(maxsize=64)
def _positions(
    networks: tuple[Architecture, ...], number: int, sample: tuple[int, ...], dtype: DTypeLike
) -> Positions:
    """The positions of a network's parameters among the first network's parameters.

    A narrower network is the first one with the parameters outside of it at zero. Weights between
    two units then have a gradient only if both units are connected with samples and predictions,
    which shows which rows of a dense layer belong to a channel that was flattened before it.

    Raises:
      ValueError: networks that do not nest.
    """
    wide = layout_of(networks[0], sample, dtype)
    narrow = layout_of(networks[number], sample, dtype)
    if wide.structure != narrow.structure:
        raise ValueError(
            f"networks that nest have the same layers, got the parameters {', '.join(wide.paths)} "
            f"and, of network {number}, {', '.join(narrow.paths)}; fljax.models.several takes "
            "different ones."
        )
    for path, shape, narrower in zip(wide.paths, wide.shapes, narrow.shapes, strict=True):
        if len(shape) != len(narrower) or any(np.less(shape, narrower)):
            raise ValueError(
                f"networks that nest become narrower, the widest first, and {path} has shape "
                f"{shape} and, of network {number}, {narrower}."
            )
    positions = tuple(tuple(np.arange(size) for size in shape) for shape in narrow.shapes)
    if wide.shapes == narrow.shapes:
        return positions
    with jax.ensure_compile_time_eval(), default_promotion():
        moves = _probe(networks[0], sample, dtype)
        for _ in wide.paths:  # each pass settles at least one more layer
            live = _live(moves, wide.shapes, positions)
            settled = tuple(
                tuple(
                    narrowed if len(narrowed) == len(before) else before
                    for narrowed, before in zip(*pair, strict=True)
                )
                for pair in zip(live, positions, strict=True)
            )
            is_same = jax.tree.all(jax.tree.map(np.array_equal, settled, positions))
            positions = settled
            if is_same:
                break
        live = _live(moves, wide.shapes, positions)
    for path, shape, narrowed, chosen in zip(wide.paths, wide.shapes, live, positions, strict=True):
        for size, connected, narrower in zip(shape, narrowed, chosen, strict=True):
            # Normalization over channels connects all of them.
            if len(narrower) < size and len(connected) not in (size, len(narrower)):
                raise ValueError(
                    f"networks that nest have narrower layers throughout, and {path} of network "
                    f"{number} has {len(narrower)} of {size} entries, where {len(connected)} are "
                    "connected with the other layers; give all layers the narrower width."
                )
    return positions


@functools.lru_cache(maxsize=4)
def _probe(
    network: Architecture, sample: tuple[int, ...], dtype: DTypeLike
) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """Where parameters have a gradient, as a function of masks of parameters: that of a random
    combination of predictions, for several random parameters and samples.

    Units whose activation is zero for some of them are active for others; in half of them all
    numbers are positive, so that rectifiers pass everything.
    """
    rng = np.random.default_rng(0)
    is_float = jnp.issubdtype(dtype, jnp.floating)
    shape = (PROBES, SAMPLES, *sample)
    numbers = rng.normal(size=shape) if is_float else rng.integers(0, 2, shape)
    samples = numbers.astype(dtype)
    stand_in = jnp.zeros((1, *sample), dtype)
    state = network.init_state(jax.random.key(0), stand_in)
    leaves, structure = jax.tree.flatten(network.init(jax.random.key(0), stand_in))

    def combination(leaves: list[Array], samples: Array) -> Array:
        predicted = network.evaluate(jax.tree.unflatten(structure, leaves), state, samples)
        factors = np.random.default_rng(1).normal(size=predicted.shape)
        return jnp.sum(predicted * factors.astype(predicted.dtype))

    gradient = jax.jit(jax.grad(combination))
    parameters = []
    for probe in range(PROBES):
        # Parameters that begin at zero, such as biases, would leave units unconnected.
        drawn = [leaf + 0.1 * rng.normal(size=leaf.shape).astype(leaf.dtype) for leaf in leaves]
        if probe % 2:
            drawn = [jnp.abs(leaf) for leaf in drawn]
            samples[probe] = np.abs(samples[probe])
        parameters.append(drawn)

    def moves(masks: list[np.ndarray]) -> list[np.ndarray]:
        dependent = [np.zeros(leaf.shape, bool) for leaf in leaves]
        for drawn, of_probe in zip(parameters, samples, strict=True):
            masked = [leaf * mask for leaf, mask in zip(drawn, masks, strict=True)]
            for total, leaf in zip(dependent, gradient(masked, of_probe), strict=True):
                total |= np.asarray(leaf) != 0
        return dependent

    return moves


def _live(
    moves: Callable[[list[np.ndarray]], list[np.ndarray]],
    shapes: tuple[tuple[int, ...], ...],
    positions: Positions,
) -> Positions:
    """The positions along each axis at which parameters have a gradient if all outside of the
    chosen ones are zero.
    """
    masks = []
    for shape, of_axes in zip(shapes, positions, strict=True):
        mask = np.zeros(shape, np.float32)
        mask[np.ix_(*of_axes)] = 1
        masks.append(mask)
    live = []
    for leaf in moves(masks):
        axes = range(leaf.ndim)
        live.append(
            tuple(
                np.flatnonzero(leaf.any(axis=tuple(other for other in axes if other != axis)))
                for axis in axes
            )
        )
    return tuple(live)
