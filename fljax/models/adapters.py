"""Adapters for networks of other libraries, each imported only when used."""

import dataclasses
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fljax._core import checks
from fljax.models.architecture import Architecture

# Arguments are compared but not part of the hash, as lists have none.

#: Names of the argument by which networks of linen and haiku are told that they train, with its
#: value in training.
TRAINING_ARGUMENTS = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
    "inference": False,
}


def plain(
    init: Callable[..., Any],
    apply: Callable[..., Array],
    *,
    train: Callable[..., Any] | None = None,
    state: Callable[[], Any] | None = None,
) -> Architecture:
    """A network given by plain functions.

    Args:
      init: ``key -> parameters``, a pytree of arrays of floats. Each of them is a parameter, which
        is learned and sent: constants belong into ``apply``, and a tied array is one
        parameter that ``apply`` uses twice.
      apply: ``(parameters, features [N, ...]) -> predictions [N, ...]``, differentiable; with a
        state, ``(parameters, state, features)``.
      train: the same in training, where it differs: ``(parameters, features, key) ->
        predictions``; with a state, ``(parameters, state, features, key) -> (predictions, state)``.
      state: ``() -> state``, a pytree of arrays: the network's state before training.

    Raises:
      TypeError: not functions.
      ValueError: a state without ``train``, which moves it.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> def init(key):
      ...     return {"w": jax.random.normal(key, (3, 2)), "b": jnp.zeros(2)}
      >>> def apply(parameters, features):
      ...     return jnp.tanh(features @ parameters["w"] + parameters["b"][None])
      >>> fl.models.plain(init, apply).apply(init(jax.random.key(0)), jnp.ones((5, 3))).shape
      (5, 2)
    """
    if state is not None and train is None:
        raise ValueError("only training changes a state; give train=, or leave out state=.")
    functions = {"init": init, "apply": apply, "train": train, "state": state}
    for name, value in functions.items():
        if value is not None or name in ("init", "apply"):
            _function(name, value)
    return _Plain(init, apply, train, state)


def linen(module: object) -> Architecture:
    """A network of flax's linen.

    One with dropout or batch normalization takes an argument that says whether it trains, as
    flax's own examples do: ``train``, ``training`` or ``is_training``, or the reverse,
    ``deterministic`` or ``use_running_average``. Collections other than ``params``, such as
    ``batch_stats``, are its state (``Model(state=...)``).

    Args:
      module: a ``flax.linen.Module``.

    Raises:
      TypeError: not a module of linen.
      ValueError: collections other than ``params`` or random numbers, without such an argument.

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

    Dropout and batch normalization follow ``module.train()`` and ``module.eval()``. Variables other
    than ``nnx.Param``, such as ``nnx.BatchStat``, are the network's state (``Model(state=...)``);
    generators get new keys for every step.

    Raises:
      TypeError: nothing to call.

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

    Dropout and batch normalization are off or on as ``equinox.nn.inference_mode`` has it. A module
    with state (``equinox.nn.BatchNorm``) is called as ``module(sample, state)``, with ``key=``
    where it takes one, over samples of the axis ``"batch"``.

    Raises:
      TypeError: nothing to call.
      ValueError: one array in two places, which would be two parameters (``equinox.nn.Shared`` ties
        them).

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

    One with dropout or batch normalization has a second argument that says whether it trains,
    ``is_training`` for instance, as haiku's own examples do (names as in :func:`linen`).

    Args:
      function: function of the features ``[N, ...]`` that uses haiku's modules, not yet
        transformed.

    Raises:
      TypeError: nothing to call.
      ValueError: a function with state or random numbers, without such an argument.

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
      ValueError: samples that do not fit, a representation that is not a row for each sample, or
        a head that keeps a state in addition to its parameters, once the network meets a
        problem's samples.

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
    init_function: Callable[..., Any]
    apply_function: Callable[..., Array]
    train_function: Callable[..., Any] | None = None
    state_function: Callable[[], Any] | None = None

    def init(self, key: Array, features: Array) -> Any:
        parameters = self.init_function(key)
        if tied := _shared_arrays(parameters):
            warnings.warn(
                f"the parameters {' and '.join(tied)} are one array where init makes them, and are "
                "learned apart; to tie them, make one and let apply use it twice, or make an array "
                "for each.",
                stacklevel=2,
            )
        return parameters

    def init_state(self, key: Array, features: Array) -> Any:
        return () if self.state_function is None else self.state_function()

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self.evaluate(parameters, self.init_state(jax.random.key(0), features), features)

    def train(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        if self.train_function is None:
            return self.apply(parameters, features), state
        if self.state_function is None:
            return self.train_function(parameters, features, key), state
        return self.train_function(parameters, state, features, key)

    def evaluate(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        if self.state_function is None:
            return self.apply_function(parameters, features)
        return self.apply_function(parameters, state, features)


@dataclasses.dataclass(frozen=True)
class _Headed(Architecture):
    body: Architecture
    last: Architecture
    head_paths: ClassVar[str | None] = "^head(/|$)"

    def init(self, key: Array, features: Array) -> Any:
        k_body, k_head = jax.random.split(key)
        body = self.body.init(k_body, features)
        representation = self.body.evaluate(body, self.body.init_state(k_body, features), features)
        if jax.tree.leaves(self.last.init_state(k_head, representation)):
            raise ValueError(
                "the head of a network keeps something beside its parameters, such as running "
                "statistics, and it also reads representations that are of no batch; normalize in "
                "the body."
            )
        return {"body": body, "head": self.last.init(k_head, representation)}

    def init_state(self, key: Array, features: Array) -> Any:
        k_body, k_head = jax.random.split(key)
        state = self.body.init_state(k_body, features)
        representation = self.body.evaluate(self.body.init(k_body, features), state, features)
        return {"body": state, "head": self.last.init_state(k_head, representation)}

    def train(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        representation, state = self.represent_in_training(parameters, state, features, key)
        k_head = jax.random.split(key)[1]
        predictions, _ = self.last.train(parameters["head"], state["head"], representation, k_head)
        return predictions, state

    def evaluate(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        representation = self.represent_in_evaluation(parameters, state, features)
        return self.last.evaluate(parameters["head"], state["head"], representation)

    def represent(self, parameters: PyTree, features: Array) -> Array:
        return self.body.apply(parameters["body"], features)

    def represent_in_training(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        k_body = jax.random.split(key)[0]
        representation, body = self.body.train(parameters["body"], state["body"], features, k_body)
        return representation, {**state, "body": body}

    def represent_in_evaluation(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        return self.body.evaluate(parameters["body"], state["body"], features)

    def head(self, parameters: PyTree, representation: Array) -> Array:
        return self.last.apply(parameters["head"], representation)


def _modes(function: Callable[..., Any]) -> tuple[dict[str, bool], dict[str, bool]]:
    """The arguments of a call in training and in evaluation; empty for a network without any."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return {}, {}
    named = {n: value for n, value in TRAINING_ARGUMENTS.items() if n in parameters}
    return named, {n: not value for n, value in named.items()}


#: What an error message says of a network that cannot be told whether it trains.
NO_MODE = (
    "so that it computes otherwise in training, but takes no argument that says whether it trains;"
    f" give its call one of {', '.join(TRAINING_ARGUMENTS)}, and its layers what follows from it"
)


@dataclasses.dataclass(frozen=True)
class _Linen(Architecture):
    module: Any = dataclasses.field(hash=False)

    def init(self, key: Array, features: Array) -> Any:
        return self._variables(key, features)["params"]

    def init_state(self, key: Array, features: Array) -> Any:
        return {n: v for n, v in self._variables(key, features).items() if n != "params"}

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self.evaluate(parameters, {}, features)

    def train(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        variables = {"params": parameters, **state}
        settings = self._modes[0]
        if not settings:  # the same as in evaluation
            return self.evaluate(parameters, state, features), state
        # Streams of random numbers that the module asks for are derived from one key.
        streams = {"dropout": key, "default": jax.random.fold_in(key, 1)}
        return self.module.apply(
            variables, features, rngs=streams, mutable=sorted(state), **settings
        )

    def evaluate(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        from flax import errors

        variables = {"params": parameters, **state}
        try:
            return self.module.apply(variables, features, **self._modes[1])
        except errors.InvalidRngError as error:
            raise ValueError(f"the module draws random numbers, {NO_MODE}.") from error

    @property
    def _modes(self) -> tuple[dict[str, bool], dict[str, bool]]:
        return _modes(type(self.module).__call__)

    def _variables(self, key: Array, features: Array) -> Any:
        streams = {"params": key, "dropout": key}
        variables = self.module.init(streams, features, **self._modes[1])
        state = sorted(set(variables) - {"params"})
        if state and not self._modes[0]:
            raise ValueError(f"the module keeps {', '.join(state)} beside params, {NO_MODE}.")
        return variables


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

    def init_state(self, key: Array, features: Array) -> Any:
        from flax import nnx

        return nnx.to_pure_dict(self._split(key)[3])

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self.evaluate(parameters, {}, features)

    def train(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        from flax import nnx

        module = self._merged(parameters, state, key)
        module.train()
        predictions = module(features)
        rest = _split_variables(module)[3]
        return predictions, nnx.to_pure_dict(rest)

    def evaluate(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        module = self._merged(parameters, state, jax.random.key(0))
        module.eval()
        return module(features)

    def _merged(self, parameters: PyTree, state: PyTree, key: Array) -> Any:
        """The module with these parameters and state, whose generators begin with this key."""
        from flax import nnx

        graph, parameter_state, generators, rest = _abstract(self)

        def filled(template: Any, values: PyTree) -> Any:
            template = jax.tree.map(lambda leaf: leaf, template)  # a copy, which is filled in
            nnx.replace_by_pure_dict(template, values)
            return template

        leaves, structure = jax.tree.flatten(generators)
        seeded = [
            jax.random.fold_in(key, number)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros(leaf.shape, leaf.dtype)
            for number, leaf in enumerate(leaves)
        ]
        return nnx.merge(
            graph,
            filled(parameter_state, parameters),
            jax.tree.unflatten(structure, seeded),
            filled(rest, state) if state else rest,
        )

    def _split(self, key: Array) -> Any:
        from flax import nnx

        module = self.make(*self.arguments, rngs=nnx.Rngs(key), **dict(self.settings))
        return _split_variables(module)


@functools.lru_cache(maxsize=64)
def _abstract(network: _NNX) -> Any:
    from flax import nnx

    return _split_variables(nnx.eval_shape(lambda: nnx.merge(*network._split(jax.random.key(0)))))


def _split_variables(module: Any) -> Any:
    """The graph of a module, its parameters, its generators, and all other variables."""
    from flax import nnx

    return nnx.split(module, nnx.Param, nnx.RngState, ...)


@dataclasses.dataclass(frozen=True)
class _Equinox(_Made):
    def init(self, key: Array, features: Array) -> Any:
        import equinox as eqx

        return eqx.partition(self._made(key)[0], eqx.is_inexact_array)[0]

    def init_state(self, key: Array, features: Array) -> Any:
        return jax.tree.leaves(self._made(key)[1])

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self.evaluate(parameters, [], features)

    def train(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        return self._called(parameters, state, features, key)

    def evaluate(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        return self._called(parameters, state, features, None)[0]

    def _called(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array | None
    ) -> tuple[Array, PyTree]:
        """Predictions and the state after them; without a key in evaluation."""
        import equinox as eqx

        static, structure = _static_part(self)
        module = eqx.nn.inference_mode(eqx.combine(parameters, static), value=key is None)
        keys = None
        if key is not None and "key" in inspect.signature(type(module).__call__).parameters:
            keys = jax.random.split(key, len(features))
        if not structure.num_leaves:
            if keys is None:
                return jax.vmap(module)(features), state
            return jax.vmap(lambda x, k: module(x, key=k))(features, keys), state
        state = jax.tree.unflatten(structure, state)

        def call(x: Array, key: Array | None) -> tuple[Array, Any]:
            return module(x, state) if key is None else module(x, state, key=key)

        predictions, new = jax.vmap(call, axis_name="batch", out_axes=(0, None))(features, keys)
        return predictions, jax.tree.leaves(new)

    def _made(self, key: Array) -> tuple[Any, Any]:
        """The module and its state."""
        import equinox as eqx

        make = eqx.nn.make_with_state(self.make)
        module, state = make(*self.arguments, key=key, **dict(self.settings))
        if tied := _shared_arrays(eqx.filter(module, eqx.is_inexact_array)):
            raise ValueError(
                f"{' and '.join(tied)} are one array, and would be two parameters that are learned "
                "apart; tie them with equinox.nn.Shared, or make a copy (jax.numpy.array) for each."
            )
        return module, state


@functools.lru_cache(maxsize=64)
def _static_part(network: _Equinox) -> tuple[Any, Any]:
    """The part of a module that is not a parameter, and the structure of its state."""
    import equinox as eqx

    with jax.ensure_compile_time_eval():
        module, state = network._made(jax.random.key(0))
        return eqx.partition(module, eqx.is_inexact_array)[1], jax.tree.structure(state)


@dataclasses.dataclass(frozen=True)
class _Haiku(Architecture):
    function: Callable[..., Array]

    def init(self, key: Array, features: Array) -> Any:
        return self._initialized(key, features)[0]

    def init_state(self, key: Array, features: Array) -> Any:
        return self._initialized(key, features)[1]

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self.evaluate(parameters, {}, features)

    def train(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        settings = self._modes[0]
        if not settings:  # the same as in evaluation
            return self.evaluate(parameters, state, features), state
        return self._transformed().apply(parameters, state, key, features, **settings)

    def evaluate(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        transformed = self._transformed()
        try:
            return transformed.apply(parameters, state, None, features, **self._modes[1])[0]
        except ValueError as error:
            if "PRNG" in str(error) or "rng" in str(error):
                raise ValueError(f"the function draws random numbers, {NO_MODE}.") from error
            raise

    @property
    def _modes(self) -> tuple[dict[str, bool], dict[str, bool]]:
        return _modes(self.function)

    def _initialized(self, key: Array, features: Array) -> tuple[Any, Any]:
        parameters, state = self._transformed().init(key, features, **self._modes[0])
        if jax.tree.leaves(state) and not self._modes[0]:
            raise ValueError(f"the function keeps state in {', '.join(state)}, {NO_MODE}.")
        return parameters, state

    def _transformed(self) -> Any:
        import haiku as hk

        return hk.transform_with_state(self.function)
