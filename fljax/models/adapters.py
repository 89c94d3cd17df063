"""Adapters for networks of other libraries, each imported only when used."""

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import jax
from jaxtyping import Array, PyTree

from fljax._core import checks
from fljax.models.architecture import Architecture

# Arguments are compared but not part of the hash, as lists have none.

#: Common end of the error messages about state besides parameters.
STATE = (
    "A client's model is its parameters alone, and running statistics or a generator's state would "
    "be lost or shared between clients without a word: normalize by groups or layers, and leave "
    "out dropout."
)


def plain(init: Callable[..., Any], apply: Callable[[Any, Array], Array]) -> Architecture:
    """A network given by two plain functions.

    Args:
      init: ``key -> parameters``, a pytree of arrays of floats. Each of them is a parameter, which
        is learned and sent: constants belong into ``apply``, and a tied array is one
        parameter that ``apply`` uses twice.
      apply: ``(parameters, features [N, ...]) -> predictions [N, ...]``, differentiable.

    Raises:
      TypeError: not functions.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> def init(key):
      ...     return {"w": jax.random.normal(key, (3, 2)), "b": jnp.zeros(2)}
      >>> def apply(parameters, features):
      ...     return jnp.tanh(features @ parameters["w"] + parameters["b"][None])
      >>> fl.models.plain(init, apply).apply(init(jax.random.key(0)), jnp.ones((5, 3))).shape
      (5, 2)
    """
    return _Plain(_function("init", init), _function("apply", apply))


def linen(module: object) -> Architecture:
    """A network of flax's linen.

    Args:
      module: a ``flax.linen.Module``.

    Raises:
      TypeError: not a module of linen.
      ValueError: collections other than ``params``, such as running statistics.

    Example:
      >>> import flax.linen as nn, fljax as fl
      >>> network = fl.models.linen(nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(3)]))
      >>> fl.models.layout_of(network, (4,), "float32").dim
      131
    """
    from flax import linen as nn

    if not isinstance(module, nn.Module):
        raise TypeError(f"linen takes a flax.linen.Module, got {checks.shown(module)}.")
    return _Linen(module)


def nnx(make: Callable[..., Any], *arguments: object, **settings: Any) -> Architecture:
    """A network of flax's nnx.

    Args:
      make: a callable that makes the module, such as its class; called with ``rngs=``.
      arguments: further positional arguments of ``make``.
      settings: further keyword arguments of ``make``.

    Raises:
      TypeError: nothing to call.
      ValueError: variables other than ``nnx.Param``, such as running statistics or the state of
        dropout.

    Example:
      >>> from flax import nnx
      >>> import fljax as fl
      >>> network = fl.models.nnx(nnx.Linear, 4, 3)
      >>> fl.models.layout_of(network, (4,), "float32").paths
      ('bias', 'kernel')
    """
    _check_not_instance("nnx", make, "flax.nnx", "Module")
    return _NNX(_function("make", make), arguments, tuple(sorted(settings.items())))


def equinox(make: Callable[..., Any], *arguments: object, **settings: Any) -> Architecture:
    """A network of equinox, which is defined for a single sample, as usual there.

    Args:
      make: a callable that makes the module, such as ``equinox.nn.MLP``; called with ``key=``. Each
        of its arrays of floats is a parameter, as ``equinox.is_inexact_array`` has it, which is
        learned and sent: constants are made where they are used, or are not arrays.
      arguments: further positional arguments of ``make``.
      settings: further keyword arguments of ``make``.

    Raises:
      TypeError: nothing to call.
      ValueError: a module with state, such as running statistics; one array in two places, which
        would be two parameters (``equinox.nn.Shared`` ties them).

    Example:
      >>> import equinox as eqx, fljax as fl
      >>> network = fl.models.equinox(eqx.nn.MLP, in_size=4, out_size=3, width_size=16, depth=1)
      >>> fl.models.layout_of(network, (4,), "float32").dim
      131
    """
    _check_not_instance("equinox", make, "equinox", "Module")
    return _Equinox(_function("make", make), arguments, tuple(sorted(settings.items())))


def haiku(function: Callable[[Array], Array]) -> Architecture:
    """A network of haiku.

    Args:
      function: function of the features ``[N, ...]`` that uses haiku's modules, not yet
        transformed.

    Raises:
      TypeError: nothing to call.
      ValueError: a function with state, such as running statistics.

    Example:
      >>> import haiku as hk, fljax as fl
      >>> network = fl.models.haiku(lambda x: hk.nets.MLP([16, 3])(x))
      >>> fl.models.layout_of(network, (4,), "float32").dim
      131
    """
    _check_not_instance("haiku", function, "flax.linen", "Module")
    return _Haiku(_function("function", function))


def headed(body: Architecture, head: Architecture) -> Architecture:
    """A network in two parts, of any library each, which says its representation of a sample.

    Algorithms that learn by representations, such as :class:`~fljax.algorithms.MOON`, need one that
    does. :func:`~fljax.models.mlp` and :func:`~fljax.models.cnn` do so already: theirs is what
    their last layer reads.

    Args:
      body: from the features ``[N, ...]`` to the representation, ``[N, R]``.
      head: from the representation to the predictions.

    Raises:
      TypeError: not networks of :mod:`fljax.models`.
      ValueError: samples that do not fit, or a representation that is not a row for each sample,
        once the network meets a problem's samples.

    Example:
      >>> import flax.linen as nn, fljax as fl
      >>> body = fl.models.linen(nn.Sequential([nn.Dense(16), nn.relu]))
      >>> network = fl.models.headed(body, fl.models.linen(nn.Dense(3)))
      >>> fl.models.layout_of(network, (4,), "float32").paths[0]
      'body/layers_0/bias'
    """
    for name, part in (("body", body), ("head", head)):
        if not isinstance(part, Architecture):
            raise TypeError(
                f"{name} must be a network of fljax.models, such as fljax.models.linen(module), "
                f"got {checks.shown(part)}."
            )
    return _Headed(body, head)


def _check_not_instance(door: str, value: object, library: str, base: str) -> None:
    """Raise ``TypeError`` for a network that is made already, where its constructor is wanted."""
    if library not in sys.modules or not isinstance(value, getattr(sys.modules[library], base)):
        return
    name = type(value).__name__
    if library == "flax.linen":
        raise TypeError(f"haiku takes a function, got a module of linen; take linen({name}(...)).")
    raise TypeError(
        f"{door} takes what makes the module, and its arguments, got one that is made, whose "
        f"parameters would be the same for every seed: give {door}({name}, ...) with the arguments "
        f"of {name} but its key, or a function that makes it."
    )


def _shared_arrays(parameters: PyTree) -> tuple[str, ...]:
    """The paths of the first two parameters that are one and the same array; empty if none are."""
    paths_by_id: dict[int, str] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if (first := paths_by_id.setdefault(id(leaf), name)) != name:
            return first, name
    return ()


def _function(name: str, value: object) -> Any:
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {checks.shown(value)}.")
    return value


@dataclasses.dataclass(frozen=True)
class _Plain(Architecture):
    start: Callable[..., Any]
    function: Callable[[Any, Array], Array]

    def init(self, key: Array, features: Array) -> Any:
        parameters = self.start(key)
        if tied := _shared_arrays(parameters):
            warnings.warn(
                f"the parameters {' and '.join(tied)} are one array where init makes them, and are "
                "learned apart; to tie them, make one and let apply use it twice, or make an array "
                "for each.",
                stacklevel=2,
            )
        return parameters

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self.function(parameters, features)


@dataclasses.dataclass(frozen=True)
class _Headed(Architecture):
    body: Architecture
    last: Architecture
    head_paths: ClassVar[str | None] = "^head(/|$)"

    def init(self, key: Array, features: Array) -> Any:
        k_body, k_head = jax.random.split(key)
        body = self.body.init(k_body, features)
        return {"body": body, "head": self.last.init(k_head, self.body.apply(body, features))}

    def represent(self, parameters: PyTree, features: Array) -> Array:
        return self.body.apply(parameters["body"], features)

    def head(self, parameters: PyTree, representation: Array) -> Array:
        return self.last.apply(parameters["head"], representation)


@dataclasses.dataclass(frozen=True)
class _Linen(Architecture):
    module: Any = dataclasses.field(hash=False)

    def init(self, key: Array, features: Array) -> Any:
        variables = self.module.init(key, features)
        collections = sorted(set(variables) - {"params"})
        if collections:
            raise ValueError(f"the module keeps {', '.join(collections)} beside params. {STATE}")
        return variables["params"]

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self.module.apply({"params": parameters}, features)


@dataclasses.dataclass(frozen=True)
class _Made(Architecture):
    """A class of modules with the arguments that they are made of, among them lists."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...] = dataclasses.field(hash=False)
    settings: tuple[tuple[str, Any], ...] = dataclasses.field(hash=False)


@dataclasses.dataclass(frozen=True)
class _NNX(_Made):
    def init(self, key: Array, features: Array) -> Any:
        from flax import nnx

        return nnx.to_pure_dict(self._split(key)[1])

    def apply(self, parameters: PyTree, features: Array) -> Array:
        from flax import nnx

        graph, state = _abstract(self)
        state = jax.tree.map(lambda leaf: leaf, state)  # a copy, which is filled in
        nnx.replace_by_pure_dict(state, parameters)
        return nnx.merge(graph, state)(features)

    def _split(self, key: Array) -> tuple[Any, Any]:
        from flax import nnx

        module = self.make(*self.arguments, rngs=nnx.Rngs(key), **dict(self.settings))
        graph, parameters, state = nnx.split(module, nnx.Param, ...)
        if jax.tree.leaves(state):
            names = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(state)]
            raise ValueError(f"the module keeps {', '.join(names)} beside nnx.Param. {STATE}")
        return graph, parameters


@functools.lru_cache(maxsize=64)
def _abstract(network: _NNX) -> tuple[Any, Any]:
    from flax import nnx

    return nnx.split(nnx.eval_shape(lambda: nnx.merge(*network._split(jax.random.key(0)))))


@dataclasses.dataclass(frozen=True)
class _Equinox(_Made):
    def init(self, key: Array, features: Array) -> Any:
        import equinox as eqx

        return eqx.partition(self._made(key), eqx.is_inexact_array)[0]

    def apply(self, parameters: PyTree, features: Array) -> Array:
        import equinox as eqx

        return jax.vmap(eqx.combine(parameters, _static_part(self)))(features)

    def _made(self, key: Array) -> Any:
        import equinox as eqx

        module = self.make(*self.arguments, key=key, **dict(self.settings))

        def is_state(leaf: object) -> bool:
            return isinstance(leaf, eqx.nn.StateIndex)

        if any(map(is_state, jax.tree.leaves(module, is_leaf=is_state))):
            raise ValueError(f"the module keeps state in an equinox.nn.StateIndex. {STATE}")
        if tied := _shared_arrays(eqx.filter(module, eqx.is_inexact_array)):
            raise ValueError(
                f"{' and '.join(tied)} are one array, and would be two parameters that are learned "
                "apart; tie them with equinox.nn.Shared, or make a copy (jax.numpy.array) for each."
            )
        return module


@functools.lru_cache(maxsize=64)
def _static_part(network: _Equinox) -> Any:
    """The part of a module that is not a parameter."""
    import equinox as eqx

    with jax.ensure_compile_time_eval():
        return eqx.partition(network._made(jax.random.key(0)), eqx.is_inexact_array)[1]


@dataclasses.dataclass(frozen=True)
class _Haiku(Architecture):
    function: Callable[[Array], Array]

    def init(self, key: Array, features: Array) -> Any:
        parameters, state = self._transformed().init(key, features)
        if jax.tree.leaves(state):
            raise ValueError(f"the function keeps state in {', '.join(state)}. {STATE}")
        return parameters

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self._transformed().apply(parameters, {}, None, features)[0]

    def _transformed(self) -> Any:
        import haiku as hk

        return hk.transform_with_state(self.function)
