"""Interface of networks: parameters from a key, predictions from parameters, one row of numbers.

Throughout the library a client's model is a row ``[D]`` of a stack; a :class:`Layout` maps its
numbers to the parameters.
"""

import dataclasses
import functools
import math
import re
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree, Shaped

from fljax._core import checks
from fljax._core.module import float_dtype
from fljax._core.numerics import default_promotion


class Architecture:
    """A network: subclass it, or use one of the adapters of :mod:`fljax.models`.

    It is structure of a simulation, so it is hashable and compared by value: making the same
    network again causes no new compilation.

    A subclass has :meth:`init` and :meth:`apply`; or, instead of :meth:`apply`, the two parts
    of a network that declares its representation of a sample, :meth:`represent` and :meth:`head`,
    and the parameters of the second. Some algorithms learn by representations.

    A network whose training and evaluation differ, as with dropout or batch normalization, also has
    :meth:`train` and :meth:`evaluate`; and :meth:`init_state` if it has a state in addition to its
    parameters, such as running means. If it declares its representation, it also has
    :meth:`represent_in_training` and :meth:`represent_in_evaluation`, and a head without a state.

    Attributes:
      head_paths: a regular expression that matches the paths of the parameters that only
        :meth:`head` reads; ``None`` for a network that does not say its representation.

    Example:
      >>> import dataclasses, jax, jax.numpy as jnp, fljax as fl
      >>> @dataclasses.dataclass(frozen=True)
      ... class Net(fl.models.Architecture):
      ...     width: int
      ...     head_paths = "^last$"
      ...
      ...     def init(self, key, features):
      ...         first = jax.random.normal(key, (features.shape[-1], self.width))
      ...         return {"first": first, "last": jnp.zeros((self.width, 3))}
      ...
      ...     def represent(self, parameters, features):
      ...         return jnp.tanh(features @ parameters["first"])
      ...
      ...     def head(self, parameters, representation):
      ...         return representation @ parameters["last"]
      >>> network, x = Net(8), jnp.ones((5, 4))
      >>> network.apply(network.init(jax.random.key(0), x[:1]), x).shape
      (5, 3)
    """

    head_paths: ClassVar[str | None] = None
    #: Whether it is known that predictions of samples do not depend on each other.
    apart: ClassVar[bool] = False

    @checks.required
    def init(self, key: Array, features: Array) -> Any:
        """Randomly drawn parameters: a pytree of arrays of floats.

        Args:
          key: consumed.
          features: ``[1, ...]``, zeros of a sample's shape.
        """
        raise NotImplementedError

    def apply(self, parameters: PyTree, features: Array) -> Array:
        """Predictions ``[N, ...]`` for the features ``[N, ...]`` of some samples."""
        if self.head_paths is None:
            raise NotImplementedError(
                checks.missing_method_message(
                    type(self), "apply", "predictions; or represent, head and head_paths"
                )
            )
        return self.head(parameters, self.represent(parameters, features))

    def init_state(self, key: Array, features: Array) -> Any:
        """The network's state before training, such as running means: a pytree of arrays, empty by
        default.

        Args:
          key: the same as of :meth:`init`.
          features: ``[1, ...]``, zeros of a sample's shape.
        """
        return ()

    def train(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        """Predictions for a batch in training, and the state after it.

        Args:
          parameters: of one client.
          state: of the client's network.
          features: ``[N, ...]``, the batch.
          key: consumed; it follows from the seed, the round, the client and the step.
        """
        return self.apply(parameters, features), state

    def evaluate(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        """Predictions ``[N, ...]`` for samples apart from training."""
        return self.apply(parameters, features)

    def represent(self, parameters: PyTree, features: Array) -> Float[Array, "samples width"]:
        """What the head reads of the features ``[N, ...]`` of some samples, ``[N, R]``."""
        raise NotImplementedError(
            checks.missing_method_message(
                type(self), "represent", "its representation of some samples"
            )
        )

    def represent_in_training(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Float[Array, "samples width"], PyTree]:
        """Representations of a batch in training, and the state after it, as in :meth:`train`."""
        return self.represent(parameters, features), state

    def represent_in_evaluation(
        self, parameters: PyTree, state: PyTree, features: Array
    ) -> Float[Array, "samples width"]:
        """Representations of samples apart from training, as in :meth:`evaluate`."""
        return self.represent(parameters, features)

    def head(self, parameters: PyTree, representation: Float[Array, "samples width"]) -> Array:
        """Predictions ``[N, ...]`` from representations ``[N, R]``."""
        raise NotImplementedError(
            checks.missing_method_message(type(self), "head", "predictions from representations")
        )


@dataclasses.dataclass(frozen=True)
class Layout:
    """Positions of the parameters in a row of ``D`` numbers.

    Attributes:
      structure: structure of the pytree.
      shapes: shapes of its leaves.
      paths: paths of its leaves, such as ``"params/Dense_0/kernel"``.
    """

    structure: PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    paths: tuple[str, ...]

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries in each leaf."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        """``D``."""
        return sum(self.sizes)

    def row(self, parameters: PyTree) -> Float[Array, " dim"]:
        """The numbers of all parameters, concatenated."""
        leaves = [jnp.asarray(leaf, float_dtype()) for leaf in jax.tree.leaves(parameters)]
        return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])

    def parameters(self, row: Shaped[Array, " dim"]) -> Any:
        """The pytree of a row, the inverse of :meth:`row`; its entries may also be positions."""
        if jnp.shape(row) != (self.dim,):
            raise ValueError(
                f"a model of this network is one row of {self.dim} numbers, got shape "
                f"{jnp.shape(row)}."
            )
        ends = np.cumsum(self.sizes)[:-1].tolist()
        parts = jnp.split(row, ends)
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    @classmethod
    def of_row(cls, dim: int) -> "Layout":
        """The layout of a model without a network, whose only parameter is the row itself."""
        return cls(jax.tree.structure(0), ((dim,),), ("",))

    def part(self, places: Int[np.ndarray, " some"]) -> "Layout":
        """The layout of some of the numbers, at these rising positions.

        The tree keeps its structure, so that paths stay the same: a parameter without chosen
        numbers is ``None``, and any other one a row of its chosen numbers.
        """
        ends = np.cumsum(self.sizes)
        assert np.all(np.diff(places) > 0)
        counts = np.diff(np.searchsorted(places, ends), prepend=0).tolist()
        shapes = [
            None if count == 0 else shape if count == size else (count,)
            for shape, size, count in zip(self.shapes, self.sizes, counts, strict=True)
        ]
        chosen = [None if shape is None else 0 for shape in shapes]
        return Layout(
            jax.tree.structure(jax.tree.unflatten(self.structure, chosen)),
            tuple(shape for shape in shapes if shape is not None),
            tuple(p for p, shape in zip(self.paths, shapes, strict=True) if shape is not None),
        )

    def coordinates(self, pattern: str) -> np.ndarray:
        """``[D]``, the mask of parameters whose path matches a regular expression.

        Raises:
          ValueError: not a regular expression, or one that matches no path (the paths are listed).
        """
        try:
            matches = [re.search(pattern, path) is not None for path in self.paths]
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}.") from error
        if not any(matches):
            raise ValueError(
                f"no parameter's path matches {pattern!r}; there are: {', '.join(self.paths)}."
            )
        return np.repeat(matches, self.sizes)


class Behavior(NamedTuple):
    """The properties of a network's training."""

    state: PyTree  # shapes and types of its state
    is_random: bool  # whether training draws random numbers


@functools.lru_cache(maxsize=64)
def layout_of(architecture: Architecture, sample: tuple[int, ...], dtype: DTypeLike) -> Layout:
    """The layout of a network's parameters, for samples of this shape and type.

    Raises:
      TypeError: parameters that are not arrays of floats; their paths and types are named.
      ValueError: no parameters; a network that cannot be made for such samples.
    """
    stand_in = jax.ShapeDtypeStruct((1, *sample), dtype)
    with default_promotion():
        try:
            shapes = jax.eval_shape(architecture.init, jax.random.key(0), stand_in)
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise ValueError(
                f"the network cannot be made for samples of shape {sample} and type "
                f"{jnp.dtype(dtype)}: {str(error).partition(chr(10))[0]}"
            ) from error
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    named = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves
    ]
    if not named:
        raise ValueError("the network has no parameters; there is nothing to learn.")
    wrong = [
        f"{path or 'the only one'} is {leaf.dtype}{list(leaf.shape)}"
        for path, leaf in named
        if not jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    if wrong:
        raise TypeError(
            "parameters must be arrays of floats, along whose gradient they move, and "
            f"{', '.join(wrong)}; keep what is no parameter out of them, such as in the function."
        )
    return Layout(
        structure, tuple(leaf.shape for _, leaf in named), tuple(path for path, _ in named)
    )


@functools.lru_cache(maxsize=64)
def behavior_of(architecture: Architecture, sample: tuple[int, ...], dtype: DTypeLike) -> Behavior:
    """A network's state and whether it draws random numbers, for samples of this shape and type.

    Raises:
      ValueError: a network that cannot be trained with such samples; one that returns another
        kind of state than it takes.
    """
    one = jax.ShapeDtypeStruct((1, *sample), dtype)
    two = jax.ShapeDtypeStruct((2, *sample), dtype)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def train(key: Array, parameters: PyTree, state: PyTree, features: Array) -> Any:
        return architecture.train(parameters, state, features, key)

    with default_promotion():
        parameters = jax.eval_shape(architecture.init, key, one)
        state = jax.eval_shape(architecture.init_state, key, one)
        try:
            program, shapes = jax.make_jaxpr(train, return_shape=True)(key, parameters, state, two)
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise ValueError(
                f"the network cannot be trained with samples of shape {sample} and type "
                f"{jnp.dtype(dtype)}: {str(error).partition(chr(10))[0]}"
            ) from error

    def described(tree: PyTree) -> Any:
        """Shapes and kinds: a state keeps its precision, whatever the batch is computed in."""
        return jax.tree.map(lambda leaf: (leaf.shape, jnp.dtype(leaf.dtype).kind), tree)

    if described(shapes[1]) != described(state):
        raise ValueError(
            "the network's state after a batch must have the shapes and kinds of the one before, "
            f"got {described(shapes[1])} after {described(state)}."
        )
    return Behavior(state, _uses_first_input(program.jaxpr))


def _uses_first_input(program: Any) -> bool:
    """Whether results of a program depend on its first argument."""
    needed = {id(variable) for variable in program.outvars}
    for equation in reversed(program.eqns):
        if any(id(variable) in needed for variable in equation.outvars):
            needed.update(id(variable) for variable in equation.invars)
    return id(program.invars[0]) in needed
