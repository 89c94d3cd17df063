r"""Problems whose predictions are any differentiable function of the model, such as neural
networks.

A client's model is one row ``[D]`` as everywhere; its meaning is defined by its architecture
(:mod:`fljax.models`). Per-sample gradients and activations are in memory for one chunk of samples
and one group of clients at a time, for any total number of them. For a population on disk
(:mod:`fljax.problems.population_files`), the participants' samples alone are in memory, with the
same methods of access (``who.take``, ``who.of``, ``problem.take``).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.clipped_sums import clipped_sum, finite, inner, norm_of, numbers_of, pieces_of
from fljax._core.convolutions import contains_replaced, with_fast_gradients
from fljax._core.devices import on_cpu, sharded_over_clients, shares
from fljax._core.linalg import directed, norm, norm_of_sum
from fljax._core.memory import memory_at_hand
from fljax._core.module import as_given, field, float_dtype, module, replace, static
from fljax._core.numerics import default_promotion
from fljax.models import Architecture, Layout, layout_of
from fljax.models.architecture import Behavior, behavior_of
from fljax.models.several_networks import SeveralNetworks
from fljax.partitions.shifts import Shift
from fljax.problems.objectives import Loss, NoRegularizer, Regularizer
from fljax.problems.pool import (
    PoolData,
    PooledRows,
    checked_pool,
    clients_of_pool,
    over_tiles,
    partition_of_pool,
    shifted,
)
from fljax.problems.population_files import Population
from fljax.problems.population_problem import OnDisk, evaluation_of
from fljax.problems.problem import (
    CACHE_BYTES,
    ClientData,
    HeldOutData,
    Problem,
    as_floats,
    present,
    stacked,
    value_of,
)

#: Limit in bytes of a client's activations in memory at a time on a CPU.
CHUNK_BYTES = 2**26

#: The same for images: convolutions are faster if the activations stay in the cache.
IMAGE_CHUNK_BYTES = 2**24

#: The same on an accelerator, which is inefficient for small products. Each chunk's gradient is
#: added to a sum: with smaller chunks, this would move more bytes of parameters than activations.
DEVICE_CHUNK_BYTES = 2**28

#: The same for gradients of single samples on a CPU, which are read several times.
SINGLE_BYTES = 2**22

#: Fraction of the available memory that clients computed side by side on an accelerator may take.
GROUP_SHARE = 0.25

#: The end of error messages about a network without a declared head.
NO_REPRESENTATION = (
    "the network does not say its own; make it of two parts with fljax.models.headed(body, head), "
    "or take fljax.models.mlp or cnn"
)

#: A loss of optax whose targets are classes' numbers.
OF_LABELS = "softmax_cross_entropy_with_integer_labels"

#: Policies of a network's state, such as running means.
STATES = ("averaged", "kept", "reset", "frozen")

#: Types in which networks may compute, besides the type of their parameters.
COMPUTE = ("bfloat16", "float16", "float32")


class NetworkContext(NamedTuple):
    """The inputs of a network besides parameters and samples."""

    state: PyTree  # [K, ...] each, or [1, ...] of all clients together
    key: Array | None = None  # [K]  of a step of training; None in evaluation
    network: Array | None = None  # [K]  the number of each client's network, if there are several

    def rows(self, clients: int) -> "NetworkContext":
        """The same with an entry for each client."""
        state = jax.tree.map(lambda a: jnp.broadcast_to(a, (clients, *a.shape[1:])), self.state)
        return self._replace(state=state)

    def take(self, clients: Array) -> "NetworkContext":
        """That of some of the clients."""
        state = jax.tree.map(lambda a: a if len(a) == 1 else a[clients], self.state)
        return NetworkContext(
            state,
            None if self.key is None else self.key[clients],
            None if self.network is None else self.network[clients],
        )


class _CollectedState:
    """The context of one client in the gradient of a step, which collects the state after it, so
    that the network is not computed twice.
    """

    def __init__(self, context: NetworkContext, row: Array) -> None:
        self.state = context.state
        self.key = context.key
        self.network = context.network
        self.row = row
        self.moved: PyTree = None


@module
class FunctionLoss(Loss):
    """A loss given by a plain function, such as one of optax.

    Args:
      function: ``(predictions [N, ...], targets [N, ...]) -> losses``, ``[N]`` or ``[N, ...]``,
        whose mean over all axes but the first is the loss of a sample.
      right: a function of the same arguments: whether a prediction has the target's label, for the
        metric ``accuracy``.

    Raises:
      TypeError: not functions.

    Example:
      >>> import jax.numpy as jnp, optax, fljax as fl
      >>> loss = fl.problems.FunctionLoss(
      ...     optax.softmax_cross_entropy_with_integer_labels,
      ...     right=lambda prediction, target: jnp.argmax(prediction, -1) == target,
      ... )
      >>> loss.correct(jnp.array([[0.0, 1.0]]), jnp.array([1])).tolist()
      [True]
    """

    function: Callable[..., Array] = static()
    right: Callable[..., Array] | None = static(default=None)

    def value(self, prediction: Array, target: Array) -> Array:
        return self.function(prediction, target)

    def derivative(self, prediction: Array, target: Array) -> Array:
        return jax.grad(lambda z: jnp.sum(self.value(z, target)))(prediction)

    def correct(self, prediction: Array, target: Array) -> Array:
        if self.right is None:
            raise ValueError(
                "the loss does not say which predictions are right; give FunctionLoss(right=...)."
            )
        is_right = self.right(prediction, target)
        if checks.dtype_of(is_right) != np.bool_:
            raise TypeError(
                "the function right must return booleans, whether each prediction is right, such "
                f"as jnp.argmax(prediction, -1) == target, got {checks.shown(is_right)}."
            )
        return is_right

    @property
    def functions(self) -> dict[str, Callable[..., Array]]:
        """The plain functions, by their names in error messages."""
        functions = {"loss": self.function, "function right": self.right}
        return {name: function for name, function in functions.items() if function is not None}


def _as_loss(loss: Any) -> Loss:
    return loss if isinstance(loss, Loss) else FunctionLoss(loss)


@module
class Model(Problem):
    r"""All clients' data as one stack, and a network that each of them trains.

    As :class:`Problem`, with :math:`\ell(h(x_{k,j};w),y_{k,j})` of any predictions :math:`h` that
    are differentiable in :math:`w`. Every algorithm that works with gradients can train it; those
    that need closed forms, or data that arrive one by one, raise an error. :meth:`from_clients`
    makes one from clients of different sizes, :meth:`of` from a linear problem's data.

    Args:
      features: ``[K, N, ...]``, samples of any shape; integers keep their type.
      targets: ``[K, N]`` or ``[K, N, ...]``; integers keep their type where the loss is a function.
      loss: a :class:`Loss`, :class:`FunctionLoss`, or a plain function as in the latter. The loss
        of a sample is the mean over all axes but the first of ``[N, ...]``.
      architecture: a network of :mod:`fljax.models`.
      compute: ``"bfloat16"``, for instance: parameters and features are cast to it before the
        network is evaluated. Models, gradients and messages keep their own type.
      state: the policy of the network's state, such as the running statistics of batch
        normalization: ``"averaged"`` at the server like parameters (the default); ``"kept"`` by
        each client and never sent; ``"reset"`` at the start of each round, and averaged for
        evaluation; ``"frozen"``, with the network in evaluation mode throughout. Gradients, norms,
        clipping, noise and an algorithm's corrections include parameters only.
      augment: random changes of samples in training, ``(key, sample) -> sample``, such as
        :class:`fljax.augmentations.Flip`. Keys follow from the seed, the round, the client, the
        step and the sample's place in the batch.
      context: filled within a run.
      trained: filled by :meth:`training_only`.
      rest: filled by :meth:`training_only`.
      assignment: filled by :meth:`assigning`.
      evaluated_network: filled by :meth:`assigning`.
      full: filled within a run: whether it is known that no sample of any client is padding.
      clip: bound on every per-sample gradient, as in :class:`Problem`. Where layers multiply, a
        step costs about twice one without: their gradients are not formed sample by sample.
      initial: initial parameters, as drawn by :meth:`initialized`; a network does not start at
        zero.

    The other arguments are as in :class:`Problem`; ``feature_map`` and ``feature_bound`` are for
    linear predictions.

    Raises:
      TypeError: parameters or predictions that are not floats.
      ValueError: as :class:`Problem`; samples that do not fit the network, predictions or losses
        that are not one per sample, a network that is not differentiable.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> problem = fl.problems.Model.of(data, fl.models.mlp(3, hidden=[16]), jax.random.key(1))
      >>> simulation = fl.Simulation(
      ...     problem=problem, algorithm=fl.algorithms.FedAvg(0.1, epochs=5, batch=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True
    """

    loss: Loss = field(converter=_as_loss)
    architecture: Architecture = static(kw_only=True)
    compute: str | None = static(default=None, kw_only=True)
    state: str | None = static(default=None, kw_only=True)
    augment: Callable[..., Any] | None = static(default=None, kw_only=True)
    context: PyTree = field(converter=as_given, default=None, kw_only=True)
    trained: str | None = static(default=None, kw_only=True)
    rest: Float[Array, " rest"] | None = field(default=None, kw_only=True)
    assignment: Int[Array, " clients"] | None = field(default=None, kw_only=True)
    evaluated_network: int | None = static(default=None, kw_only=True)
    full: bool = static(default=False, kw_only=True)

    linear: ClassVar[bool] = False

    def validate(self) -> None:
        for name in ("feature_map", "feature_bound"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is for linear predictions; make it a part of the network instead."
                )
        if self.compute is not None:
            checks.choice("compute", self.compute, COMPUTE)
        self._check_parts()
        super().validate()
        self._check_network()
        self._check_labels()
        self._check_training()
        self._check_assignment()

    def _check_parts(self) -> None:
        """Raise unless ``rest`` has one number for each parameter that no client trains."""
        if self.trained is None and self.rest is None:
            return
        if not isinstance(self.trained, str) or self.rest is None:
            raise ValueError(
                "trained and rest belong together; leave both out, and say which parameters are "
                "trained by problem.training_only(pattern)."
            )
        expected = (self._layouts[1].dim,)
        if np.shape(self.rest) != expected:
            raise ValueError(
                f"rest must be the {expected[0]} numbers that nobody trains, got shape "
                f"{np.shape(self.rest)}; let problem.training_only(pattern) fill it."
            )

    def _check_training(self) -> None:
        """Raise unless the network can be trained as the problem says."""
        if not isinstance(self.context, NetworkContext | None):
            raise TypeError(
                f"context is filled within a run; leave it out, got {checks.shown(self.context)}."
            )
        if self.state is not None:
            checks.choice("state", self.state, STATES)
            if not self.has_state:
                raise ValueError(
                    f"state={self.state!r} is the policy of a network's state, and this network "
                    "has none; leave it out."
                )
        if self.clip is not None:
            self._check_samples_apart()
        if self.augment is None:
            return
        if not callable(self.augment):
            raise TypeError(
                "augment must be a function (key, sample) -> sample, got "
                f"{checks.shown(self.augment)}."
            )
        sample = ShapeDtypeStruct(self.features.shape[2:], self.features.dtype)
        try:
            with default_promotion():
                changed = jax.eval_shape(self.augment, jax.eval_shape(jax.random.key, 0), sample)
        except Exception as error:  # a user's function may raise anything
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(
                f"augment has no value for a key and a sample of shape {sample.shape}: {why}"
            ) from error
        if getattr(changed, "shape", None) != sample.shape:
            raise ValueError(
                f"augment must keep the shape of a sample, {sample.shape}, got "
                f"{checks.shown(changed)}."
            )

    def clipped(self, bound: Float[Array, ""] | float) -> "Model":
        """As in :class:`Problem`.

        Raises:
          ValueError: a network that is normalized by the samples of a batch.
        """
        self._check_samples_apart()
        return cast(Model, super().clipped(bound))

    def _check_samples_apart(self) -> None:
        if self.mixes_samples:
            raise ValueError(
                "the gradient of a single sample, which is clipped, does not exist where a network "
                "is normalized by the samples of a batch; normalize by groups or layers, or freeze "
                "the statistics, state='frozen'."
            )

    @property
    def networks(self) -> tuple[Architecture, ...]:
        """The different networks of clients; a single one for all by default."""
        if isinstance(self.architecture, SeveralNetworks):
            return self.architecture.networks
        return (self.architecture,)

    @property
    def is_nested(self) -> bool:
        """Whether clients' networks share parameters."""
        return bool(np.any(self.network_masks.sum(axis=0) > 1))

    @property
    def network_masks(self) -> Bool[np.ndarray, "networks dim"]:
        """As in :class:`Problem`."""
        if not isinstance(self.architecture, SeveralNetworks):
            return np.ones((1, self.dim), bool)
        masks = np.zeros((len(self.networks), self._whole_layout.dim), bool)
        for mask, places in zip(masks, self.architecture.places(*self._sample), strict=True):
            mask[places] = True
        return self._of_trained(masks)

    def _of_trained(self, mask: np.ndarray) -> np.ndarray:
        """The entries ``[..., D]`` of all parameters that are of trained ones."""
        if self.trained is None:
            return mask
        return mask[..., np.flatnonzero(self._whole_layout.coordinates(self.trained))]

    @property
    def network_numbers(self) -> Int[Array, " clients"]:
        """As in :class:`Problem`."""
        return super().network_numbers if self.assignment is None else jnp.asarray(self.assignment)

    def held(self) -> Bool[Array, "clients dim"]:
        """The parameters of each client's network, as a mask of its model's numbers."""
        return jnp.asarray(self.network_masks)[self.network_numbers]

    @checked
    def assigning(
        self, networks: Int[Array, "*clients"] | Sequence[int] | int, evaluated: int | None = None
    ) -> "Model":
        """The same problem where each client has one of several networks, by number.

        Args:
          networks: ``[K]``, of each client, or one number for all.
          evaluated: the network with which metrics evaluate models, for networks that nest; each
            client's own by default.

        Raises:
          TypeError, ValueError: a single network, another shape, a number of no network; an
            evaluated network of models that have no parameters in common.

        Example:
          >>> import jax, fljax as fl
          >>> networks = fl.models.nested([fl.models.mlp(3, hidden=[h]) for h in (16, 4)])
          >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=9, dim=6, classes=3)
          >>> problem = fl.problems.Model.of(data, networks, jax.random.key(1))
          >>> problem.assigning([0, 1, 1, 1], evaluated=0).assignment.tolist()
          [0, 1, 1, 1]
        """
        numbers = checks.array("networks", networks)
        if not jnp.issubdtype(numbers.dtype, jnp.integer) or np.shape(numbers) not in (
            (),
            (self.clients,),
        ):
            raise ValueError(
                f"networks must be the number of each of the {self.clients} clients' networks, or "
                f"one for all, got {checks.shown(networks)}."
            )
        assignment = jnp.broadcast_to(jnp.asarray(numbers, jnp.int32), (self.clients,))
        test = None if self.test is None else replace(self.test, assignment=assignment)
        assigned = replace(self, assignment=assignment, evaluated_network=evaluated, test=test)
        assigned._check_assignment()
        return assigned

    def _check_assignment(self) -> None:
        """Raise unless clients' networks are some of the problem's."""
        numbers = self.assignment
        last = len(self.networks) - 1
        if numbers is None:
            if self.evaluated_network is not None:
                raise ValueError(
                    "evaluated_network is filled by problem.assigning(networks, evaluated); leave "
                    "it out."
                )
            return
        if last == 0:
            raise ValueError(
                "all clients have the same network; make several of them by fljax.models.nested "
                "or several, or leave out assigning()."
            )

        def check_range(numbers: object) -> None:
            values = np.asarray(numbers)
            if values.min() < 0 or values.max() > last:
                raise ValueError(
                    f"networks have the numbers 0 to {last}, got {values.min()} to {values.max()}."
                )

        checks.check_when_concrete(check_range, numbers)
        if self.evaluated_network is not None:
            checks.count("evaluated", self.evaluated_network, at_least=0)
            checks.interval("evaluated", self.evaluated_network, at_least=0, at_most=last)
            if not self.is_nested:
                raise ValueError(
                    "networks that have no parameters in common are evaluated each for its own "
                    "clients; leave out evaluated."
                )

    @property
    def judged(self) -> Problem:
        """As in :class:`Problem`."""
        if self.evaluated_network is None:
            return super().judged
        test = self.test
        if test is not None:
            test = replace(test, assignment=None, evaluated_network=self.evaluated_network)
        return replace(self, assignment=None, test=test)

    @property
    def predicts_alike(self) -> bool:
        """As in :class:`Problem`."""
        return self.state_policy != "kept" and self.assignment is None

    @property
    def _sample(self) -> tuple[tuple[int, ...], Any]:
        """The shape and type of a sample."""
        return tuple(self.features.shape[2:]), jax.dtypes.canonicalize_dtype(self.features.dtype)

    @property
    def _behavior(self) -> Behavior:
        behaviors = [
            Behavior((), False)
            if type(network).train is Architecture.train
            else behavior_of(network, *self._sample)
            for network in self.networks
        ]
        if len(behaviors) == 1:
            return behaviors[0]
        if any(jax.tree.leaves(behavior.state) for behavior in behaviors):
            raise ValueError(
                "networks of several sizes have no state, such as running means: they would differ "
                "in size and meaning between them; normalize by groups or layers."
            )
        return Behavior((), any(behavior.is_random for behavior in behaviors))

    @property
    def has_state(self) -> bool:
        """Whether the network has a state in addition to its parameters."""
        return bool(jax.tree.leaves(self._behavior.state))

    @property
    def state_policy(self) -> str | None:
        """As in :class:`Problem`; one of :data:`STATES`."""
        return (self.state or STATES[0]) if self.has_state else None

    @property
    def mixes_samples(self) -> bool:
        """Whether predictions in training depend on the other samples of a batch."""
        return self.state_policy not in (None, "frozen")

    @property
    def trains_apart(self) -> bool:
        """Whether a step of training is of other predictions than evaluation."""
        return self.augment is not None or self.mixes_samples or self.is_random

    @property
    def is_random(self) -> bool:
        """As in :class:`Problem`."""
        return self._behavior.is_random and self.state_policy != "frozen"

    def _stand_in(self) -> Array:
        """Zeros of the shape and type of one sample."""
        dtype = jax.dtypes.canonicalize_dtype(self.features.dtype)
        return jnp.zeros((1, *self.features.shape[2:]), dtype)

    def initial_state(self) -> PyTree:
        """The network's state before training, ``[1, ...]`` each."""
        stand_in = self._stand_in()
        with default_promotion():
            state = self.architecture.init_state(jax.random.key(0), stand_in)
        return jax.tree.map(lambda a: jnp.asarray(a)[None], state)

    def network_state(self, numbers: Float[Array, "*batch statistics"]) -> PyTree:
        """The network's state as its library represents it, from the numbers in a run's results
        (``results.network_state``, or ``results.client_network_state``).

        Args:
          numbers: ``[..., S]``, of one client or of a batch.

        Raises:
          ValueError: another number of entries, or a network without a state.
        """
        shapes, structure = jax.tree.flatten(self._behavior.state)
        sizes = [int(np.prod(leaf.shape)) for leaf in shapes]
        numbers = jnp.asarray(checks.array("numbers", numbers))
        if numbers.shape[-1:] != (sum(sizes),) or not sizes:
            raise ValueError(
                f"the network's state has {sum(sizes)} numbers, got shape {numbers.shape}."
            )
        parts = jnp.split(numbers, np.cumsum(sizes)[:-1].tolist(), axis=-1)
        leaves = [
            part.reshape(*numbers.shape[:-1], *leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, shapes, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves)

    def with_state(self, state: PyTree) -> "Model":
        """The same problem, evaluated with these states of the clients' networks.

        Args:
          state: ``[K, ...]`` each, or ``[1, ...]`` of all clients together.
        """
        context = NetworkContext(state)
        test = None if self.test is None else replace(self.test, context=context)
        return replace(self, context=context, test=test)

    def in_training(self, state: PyTree, keys: Array) -> "Model":
        """The same problem in a step of training.

        Args:
          state: ``[K, ...]`` each.
          keys: ``[K]``, of the step.
        """
        return replace(self, context=NetworkContext(state, keys))

    def next_state(self, w: Float[Array, "clients dim"]) -> PyTree:
        """The networks' states after a step of training from these models, ``[K, ...]`` each."""
        remembered = getattr(self, "_state_of_gradient", None)
        if remembered is not None and remembered[0] is w and remembered[2] == checks.trace_state():
            return remembered[1]

        def state_after(
            model_and_context: tuple[Array, NetworkContext], x: Array, y: Array, weights: Array
        ) -> Any:
            row, context = model_and_context
            return self._trained(row, x, context)[1]

        return self._map_clients(state_after, (w, self._contexts))

    @property
    def _contexts(self) -> NetworkContext | None:
        """The context with an entry for each client."""
        context = self._context
        if context is None:
            return None
        if context.network is not None and len(context.network) != self.clients:
            raise ValueError(
                f"data of {self.clients} clients are read with the networks of "
                f"{len(context.network)}; evaluate each client's model by itself."
            )
        return context.rows(self.clients)

    @property
    def _context(self) -> NetworkContext | None:
        """The context with the clients' networks."""
        context = self.context
        if self.assignment is None or (context is not None and context.network is not None):
            return context
        return (context or NetworkContext(()))._replace(network=self.assignment)

    def take(
        self, clients: Int[Array, " chosen"], rows: Int[Array, "chosen batch"] | None = None
    ) -> Problem:
        """As in :class:`Problem`."""
        part = super().take(clients, rows)
        if self.context is not None:
            part = replace(part, context=self.context.take(clients))
        if self.assignment is not None:
            part = replace(part, assignment=jnp.asarray(self.assignment)[clients])
        return part

    def entries(self, clients: Int[Array, " chosen"], rows: Int[Array, "chosen batch"]) -> Problem:
        """As in :class:`Problem`."""
        part = super().entries(clients, rows)
        if self.context is not None:
            part = replace(part, context=None)
        if self.assignment is not None:
            part = replace(part, assignment=jnp.asarray(self.assignment)[clients])
        return part

    def _context_and_extra(self, inputs: PyTree) -> tuple[PyTree, PyTree]:
        extra, context = inputs
        return context, extra

    def _of_samples(
        self, arguments: tuple[Array, PyTree], count: int
    ) -> tuple[tuple[Array, PyTree], Any]:
        row, (extra, context) = arguments
        if context is None or context.key is None:
            return arguments, None
        samples = jnp.arange(count, dtype=jnp.int32)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(context.key, samples)
        of_key = NetworkContext(None, cast(Any, 0))
        in_sample = context._replace(key=keys)
        return (row, (extra, in_sample)), (None, (None, of_key))

    def _targets(self, targets: Array) -> Array | np.ndarray:
        # A column may be the network's output.
        return self.loss.labels(targets) if targets.dtype == np.bool_ else targets

    def _integer_data(self) -> tuple[str, ...]:
        return ("features", "targets") if isinstance(self.loss, FunctionLoss) else ("features",)

    def _check_shapes(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2 or 0 in shape:
            raise ValueError(
                f"features must be [clients, samples, ...] with no empty axis, got shape {shape}. "
                "Clients of different sizes: use fljax.problems.Model.from_clients."
            )
        if jnp.shape(self.targets)[:2] != shape[:2]:
            raise ValueError(
                f"targets must have one entry a sample, [{shape[0]}, {shape[1]}, ...] to match "
                f"features {shape}, got {jnp.shape(self.targets)}."
            )
        for name in ("features", "targets"):
            value = getattr(self, name)
            if jnp.issubdtype(value.dtype, jnp.floating):
                object.__setattr__(self, name, as_floats(value))

    def _check_network(self) -> None:
        """Raise unless predictions, loss and gradient have valid shapes and types."""
        row = ShapeDtypeStruct((self.dim,), self.dtype)
        features, targets = (
            ShapeDtypeStruct((2, *a.shape[2:]), jax.dtypes.canonicalize_dtype(a.dtype))
            for a in (self.features, self.targets)
        )

        def traced(what: str, function: Callable[..., Any], *arguments: object) -> Any:
            try:
                return jax.eval_shape(function, *arguments)
            except Exception as error:  # a user's function may raise anything
                shapes = f"features {features.shape} and targets {targets.shape} of two samples"
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise ValueError(f"{what} {shapes}: {why}") from error

        self._check_alike(features)
        predictions = traced("the network has no predictions for", self._outputs, row, features)
        if not hasattr(predictions, "shape") or predictions.shape[:1] != (2,):
            raise ValueError(
                "the network must return one prediction of each sample, [N, ...], got "
                f"{checks.shown(predictions)} for features of shape {features.shape}."
            )
        if not jnp.issubdtype(predictions.dtype, jnp.floating):
            raise TypeError(
                f"predictions must be floats, along which a loss is differentiable, got "
                f"{predictions.dtype}{list(predictions.shape)}; leave out argmax or rounding."
            )
        if not isinstance(self.loss, FunctionLoss):
            outputs = () if self.loss.outputs == 1 else (self.loss.outputs,)
            if predictions.shape != (*targets.shape, *outputs):
                raise ValueError(
                    f"{type(self.loss).__name__} of targets {targets.shape} needs predictions "
                    f"{(*targets.shape, *outputs)}, and the network returns {predictions.shape}, "
                    "for two samples."
                )
        if self.represents:
            self._check_representation(traced, row, features, predictions)
        nothing = ((), None)
        value = traced("the loss has no value for", self._losses, row, nothing, features, targets)
        if value.shape != (2,):
            raise ValueError(
                "the loss must return one number of each sample, [N] or [N, ...], got "
                f"{value.shape} for predictions {predictions.shape} and targets {targets.shape}."
            )
        self._check_samples(traced, row, features, targets)
        weights = ShapeDtypeStruct((2,), self.dtype)
        gradient = self._client_gradient(self._losses)
        arguments = ((row, nothing), features, targets, weights)
        traced("the network is not differentiable for", gradient, *arguments)

    def _check_alike(self, features: ShapeDtypeStruct) -> None:
        """Raise unless all networks have predictions of the same shape, and nest if they are to."""
        if not isinstance(self.architecture, SeveralNetworks):
            return
        self.architecture.parts(*self._sample)
        shapes = []
        for network in self.networks:
            layout = layout_of(network, *self._sample)
            row = ShapeDtypeStruct((layout.dim,), self.dtype)

            with default_promotion():
                predicted = jax.eval_shape(
                    lambda row, x, network=network, layout=layout: _evaluated(
                        network, layout.parameters(row), x
                    ),
                    row,
                    features,
                )
            shapes.append(predicted.shape)
        if len(set(shapes)) > 1:
            raise ValueError(
                "all networks must have predictions of the same shape, got "
                f"{', '.join(map(str, shapes))} for two samples."
            )

    def _check_labels(self) -> None:
        """Raise ``ValueError`` for labels without a class, which optax would take for another one,
        as -1 for the last, or make NaN of.
        """
        loss = self.loss.function if isinstance(self.loss, FunctionLoss) else None
        if getattr(loss, "__name__", "") != OF_LABELS or self.targets is None:
            return
        features = ShapeDtypeStruct((2, *self.features.shape[2:]), self.features.dtype)
        row = ShapeDtypeStruct((self.dim,), self.dtype)
        classes = jax.eval_shape(self._outputs, row, features).shape[-1]

        def check_range(targets: object, weights: object) -> None:
            labels = np.asarray(targets)[np.asarray(weights) > 0]
            if labels.size and (labels.min() < 0 or labels.max() >= classes):
                raise ValueError(
                    f"labels must be from 0 to {classes - 1}, one for each of the network's "
                    f"{classes} outputs, got {labels.min()} to {labels.max()}; of samples without "
                    "a label, leave them out."
                )

        checks.check_when_concrete(check_range, self.targets, self.weights)

    def _check_samples(
        self,
        traced: Callable[..., Any],
        row: ShapeDtypeStruct,
        features: ShapeDtypeStruct,
        targets: ShapeDtypeStruct,
    ) -> None:
        """Raise ``ValueError`` for functions whose results for a sample depend on other samples: on
        their number, by shapes for two and for three samples, or on their values.
        """

        def shapes_of(
            function: Callable[..., Any], *arguments: ShapeDtypeStruct
        ) -> list[tuple[int, ...]]:
            """The function's shapes for two and for three samples."""
            results = []
            for count in (2, 3):
                stand_ins = [ShapeDtypeStruct((count, *a.shape[1:]), a.dtype) for a in arguments]
                results.append(
                    traced("a function of the problem has no value for", function, *stand_ins)
                )
            return [tuple(result.shape) for result in results]

        def outputs(features: Array) -> Array:
            return self._outputs(jnp.zeros(row.shape, row.dtype), features)

        data = [self, self.test] if isinstance(self.test, Model) else [self]
        shapes = shapes_of(outputs, features)
        padded = any(map(_is_padded, data))
        if shapes[0][1:] != shapes[1][1:] or shapes[1][0] != 3:
            raise ValueError(
                "the network must return one prediction of each sample, [N, ...], whatever their "
                f"number, got {shapes[0]} for two samples and {shapes[1]} for three."
            )
        if isinstance(self.loss, FunctionLoss):
            predictions = jax.eval_shape(outputs, features)
            for name, function in self.loss.functions.items():
                with default_promotion():
                    result_shapes = shapes_of(function, predictions, targets)
                if (
                    result_shapes[0][:1] != (2,)
                    or result_shapes[1][:1] != (3,)
                    or result_shapes[0][1:] != result_shapes[1][1:]
                ):
                    raise ValueError(
                        f"the {name} must return one number of each sample, [N] or [N, ...], "
                        f"whatever their number, got {result_shapes[0]} for two samples and "
                        f"{result_shapes[1]} for three: predictions {predictions.shape} and "
                        f"targets {targets.shape} of two are broadcast against each other. Give "
                        "both the same shape, such as prediction[:, 0] or target[:, None]."
                    )
            shape = predictions.shape
            sizes = (predictions.size, targets.size)
            broadcast = shape != targets.shape and sizes[0] == sizes[1]
            if (padded or broadcast) and _mixes_losses(self.loss.function, predictions, targets):
                raise ValueError(
                    "the loss of a sample must depend on its own prediction and target alone, and "
                    f"it depends on other samples, or padding: predictions {shape} and targets "
                    f"{targets.shape} of two are broadcast against each other, or it takes means "
                    "over samples. Give both the same shape, and return the losses, [N]."
                )
        if (
            padded
            and not all(network.apart for network in self.networks)
            and any(_mixes(network, features) for network in self.networks)
        ):
            raise ValueError(
                "the network's prediction of a sample depends on other samples, and clients of "
                "fewer samples than the largest are filled up with padding, on which it would "
                "depend. Standardize the features before, normalize by groups or layers instead "
                "of over samples, or give all clients the same number of samples."
            )

    def _check_representation(
        self,
        traced: Callable[..., Any],
        row: ShapeDtypeStruct,
        features: ShapeDtypeStruct,
        predictions: ShapeDtypeStruct,
    ) -> None:
        """Raise unless representations are rows of floats that the head maps to predictions."""
        read = traced("the network has no representation for", self._representation, row, features)
        if getattr(read, "ndim", 0) != 2 or not jnp.issubdtype(read.dtype, jnp.floating):
            raise ValueError(
                "a network's representation must be one row of floats for each sample, [N, R], got "
                f"{checks.shown(read)} for features of shape {features.shape}; flatten it."
            )
        predicted = traced("the network's head has no predictions for", self.head, row, read)
        if predicted.shape != predictions.shape:
            raise ValueError(
                "a network's head must make its predictions of its representation, "
                f"{predictions.shape} of {read.shape}, got {predicted.shape}."
            )
        self.head_coordinates()

    @classmethod
    @checked
    def from_clients(
        cls,
        architecture: Architecture,
        key: Key[Array, ""],
        data: ClientData,
        loss: object,
        regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
        strength: Float[Array, "*clients"] | float = 1.0,
        *,
        test: HeldOutData | None = None,
        compute: str | None = None,
        state: str | None = None,
        augment: Callable[..., Any] | None = None,
        own: bool = False,
    ) -> "Model":
        """A network's problem from clients of different sizes.

        Args:
          architecture: as in :class:`Model`.
          key: key of the initial parameters, consumed.
          data: one ``(features [D_k, ...], targets [D_k, ...])`` per client; a client without
            samples has importance zero.
          loss: as in :class:`Model`.
          regularizer: as in :class:`Model`.
          strength: as in :class:`Model`.
          test: held-out data, one ``(features, targets)`` per client, or a list with a
            single one for all.
          compute: as in :class:`Model`.
          state: as in :class:`Model`.
          augment: as in :class:`Model`.
          own: whether each client has its own initial parameters.

        Raises:
          TypeError, ValueError: no clients, none with samples, samples of different shapes (they
            are named); as :class:`Model`.

        Example:
          >>> import jax, numpy as np, fljax as fl
          >>> data = [(np.ones((n, 8, 8, 1)), np.zeros(n)) for n in (4, 9)]
          >>> network = fl.models.cnn(10, channels=[4], hidden=[8])
          >>> problem = fl.problems.Model.from_clients(
          ...     network, jax.random.key(0), data, fl.problems.Softmax(10)
          ... )
          >>> problem.features.shape, problem.initial.shape
          ((2, 9, 8, 8, 1), (650,))
        """

        def build(name: str, pairs: Any, **settings: Any) -> Model:
            features, targets, weights = stacked(name, pairs, linear=False)
            return cls(
                features,
                targets,
                loss,
                weights=weights,
                architecture=architecture,
                compute=compute,
                state=state,
                augment=augment,
                importance=present(weights),
                **settings,
            )

        held_out = None if test is None else build("test", test)
        model = build("data", data, regularizer=regularizer, strength=strength, test=held_out)
        return model.initialized(key, own=own)

    @classmethod
    @checked
    def from_pool(
        cls,
        architecture: Architecture,
        key: Key[Array, ""],
        features: Any,
        targets: Any,
        loss: object,
        partition: Any,
        clients: int | None = None,
        regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
        strength: Float[Array, "*clients"] | float = 1.0,
        *,
        partition_key: Key[Array, ""] | int | None = None,
        labels: Any = None,
        classes: int | None = None,
        held_out: float = 0.0,
        shifts: Shift | Sequence[Shift] = (),
        compute: str | None = None,
        state: str | None = None,
        augment: Callable[..., Any] | None = None,
        own: bool = False,
    ) -> "Model":
        """A network's problem whose clients have rows of one data set, which is stored once.

        As :func:`fljax.problems.from_pool`, for samples of any shape.

        Args:
          architecture: as in :class:`Model`.
          key: key of the partition and of the initial parameters, consumed.
          features: ``[R, ...]``, the samples of all clients.
          targets: ``[R, ...]``.
          loss: as in :class:`Model`.
          partition: a rule, a partition, or a function from a key to one.
          clients: ``K``, for a rule.
          regularizer: as in :class:`Model`.
          strength: as in :class:`Model`.
          partition_key: key of the partition; one that does not depend on the seed fixes it.
          labels: ``[R]``, for rules that look at labels; the targets by default.
          classes: number of labels, for labels that are traced.
          held_out: the share of each client's samples that are its test set.
          shifts: as in :func:`fljax.problems.from_pool`.
          compute: as in :class:`Model`.
          state: as in :class:`Model`.
          augment: as in :class:`Model`.
          own: whether each client has its own initial parameters.

        Raises:
          TypeError, ValueError: as :class:`Model` and :func:`fljax.problems.from_pool`.

        Example:
          >>> import jax, numpy as np, fljax as fl
          >>> images, digits = np.ones((60, 8, 8, 1)), np.arange(60) % 10
          >>> problem = fl.problems.Model.from_pool(
          ...     fl.models.cnn(10, channels=[4], hidden=[8]), jax.random.key(0), images, digits,
          ...     fl.problems.Softmax(10), fl.partitions.Shards(2), clients=6,
          ... )
          >>> problem.sample_counts().tolist(), problem.features.pool.shape
          ([10, 10, 10, 10, 10, 10], (60, 8, 8, 1))
        """
        drawn_key, start_key = jax.random.split(key)
        partition_key = drawn_key if partition_key is None else partition_key
        features, targets = checked_pool(features, targets)
        labels = targets if labels is None else labels
        of_clients = partition_of_pool(partition, partition_key, labels, clients, classes)
        if jnp.issubdtype(features.dtype, jnp.floating):
            features = as_floats(features)
        features, targets = shifted(
            shifts, partition_key, features, targets, of_clients[0], classes, loss
        )

        def build(data: PoolData, **settings: Any) -> Model:
            return cls(
                *data[:2],
                loss,
                weights=data.weights,
                importance=data.importance,
                architecture=architecture,
                compute=compute,
                state=state,
                augment=augment,
                **settings,
            )

        train, test = clients_of_pool(features, targets, *of_clients, held_out)
        model = build(
            train,
            regularizer=regularizer,
            strength=strength,
            test=None if test is None else build(test),
        )
        return model.initialized(start_key, own=own)

    @classmethod
    @checked
    def from_population(
        cls,
        population: Population,
        architecture: Architecture,
        key: Key[Array, ""],
        loss: object,
        regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
        strength: Float[Array, "*clients"] | float = 1.0,
        *,
        test: HeldOutData | None = None,
        evaluated: Sequence[int] | None = None,
        compute: str | None = None,
        state: str | None = None,
        augment: Callable[..., Any] | None = None,
    ) -> "Model":
        """A network's problem whose clients are on disk and are read a cohort at a time.

        :func:`fljax.run` reads the participants of the next round while the device computes this
        one, so that memory holds a few cohorts for any number of clients; states that an
        algorithm keeps of each client stay in the host's memory, or in a file. :func:`fljax.sweep`
        reads a cohort once for all grid points that share it. All draws equal the draws of a run
        from memory with the same key, and its numbers agree but for rounding. It takes algorithms
        whose clients learn and send only when they participate, and selectors that choose
        participants without looking at models (``clients_per_round=``,
        :class:`~fljax.participation.Drawn`, :class:`~fljax.participation.Cyclic`,
        :class:`~fljax.participation.Unequal`, or :class:`~fljax.participation.Fraction`, under
        which batches are drawn otherwise than in memory), or, of several servers,
        :class:`~fljax.participation.PerServer`. Where padding
        clients to the largest one would at least double the samples of a round, they are a pool, as
        in :meth:`from_pool`.

        Args:
          population: an :class:`fljax.data.Population`.
          architecture: as in :class:`Model`.
          key: key of the initial parameters, consumed.
          loss: as in :class:`Model`.
          regularizer: as in :class:`Model`.
          strength: as in :class:`Model`.
          test: held-out data: one ``(features, targets)`` for all, or one for each evaluated
            client.
          evaluated: numbers of the clients whose samples, and own models where an algorithm has
            them, metrics read: they are kept in memory, and the metrics are means over these.
          compute: as in :class:`Model`.
          state: as in :class:`Model`.
          augment: as in :class:`Model`.

        Raises:
          TypeError, ValueError: as :class:`Model`; evaluated clients that are not different clients
            of the population, held-out data of clients that are not given.

        Example:
          >>> import pathlib, tempfile, jax, numpy as np, fljax as fl
          >>> rng = np.random.default_rng(0)
          >>> clients = [
          ...     (x, (x[:, 0] > 0).astype("i4")) for x in rng.normal(size=(50, 20, 4)).astype("f4")
          ... ]
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     problem = fl.problems.Model.from_population(
          ...         fl.data.write_population(pathlib.Path(folder) / "fifty", clients[1:]),
          ...         fl.models.mlp(2, hidden=[8]), jax.random.key(0), fl.problems.Softmax(2),
          ...         test=clients[0],
          ...     )
          ...     algorithm = fl.algorithms.FedAvg(0.5, clients_per_round=5, epochs=5, batch=10)
          ...     simulation = fl.Simulation(problem, algorithm, metrics=["accuracy"])
          ...     accuracy = fl.run(simulation, rounds=20).accuracy
          >>> bool(accuracy[-1] > 0.8)
          True
        """

        def build(pairs: Any, **settings: Any) -> Model:
            settings |= {"compute": compute, "state": state, "augment": augment}
            return cls.from_clients(architecture, key, pairs, loss, **settings)

        evaluation = evaluation_of(population, regularizer, strength, test, evaluated, build)
        problem = PopulationModel(
            None,
            None,
            loss,
            regularizer,
            strength,
            architecture=architecture,
            compute=compute,
            state=state,
            augment=augment,
            population=population,
            **evaluation,
        )
        return problem.initialized(key)

    @classmethod
    @checked
    def of(
        cls,
        problem: Problem,
        architecture: Architecture,
        key: Key[Array, ""],
        *,
        compute: str | None = None,
        state: str | None = None,
        augment: Callable[..., Any] | None = None,
        own: bool = False,
    ) -> "Model":
        """A problem for a network from the data, loss, regularizer and held-out data of a linear
        problem.

        Args:
          problem: a problem of :mod:`fljax.problems` or :mod:`fljax.data`.
          architecture: as in :class:`Model`, for samples ``[P]``.
          key: key of the initial parameters, consumed.
          compute: as in :class:`Model`.
          state: as in :class:`Model`.
          augment: as in :class:`Model`.
          own: whether each client has its own initial parameters.

        Raises:
          TypeError, ValueError: as :class:`Model`.
        """

        def build(source: Problem, **settings: Any) -> Model:
            return cls(
                source.design,
                source.targets,
                source.loss,
                weights=source.weights,
                architecture=architecture,
                compute=compute,
                state=state,
                augment=augment,
                importance=source.importance,
                **settings,
            )

        held_out = None if problem.test is None else build(problem.test)
        model = build(
            problem,
            regularizer=problem.regularizer,
            strength=problem.strength,
            clip=problem.clip,
            test=held_out,
        )
        return model.initialized(key, own=own)

    @checked
    def initialized(self, key: Key[Array, ""], *, own: bool = False) -> "Model":
        """The same problem with initial parameters drawn by the network's own rule.

        Args:
          key: consumed.
          own: whether each client has its own initial parameters; otherwise all share the same.
        """

        def row(key: Array) -> Array:
            stand_in = self._stand_in()
            with default_promotion():
                return self._whole_layout.row(self.architecture.init(key, stand_in))

        rows = jax.vmap(row)(jax.random.split(key, self.clients)) if own else row(key)
        checks.finite("the start that the network draws", rows)
        if self.trained is not None:
            whole = replace(self, trained=None, rest=None, initial=rows)
            return whole.training_only(self.trained)
        return replace(self, initial=rows)

    def parameters(self, models: Float[Array, "*batch dim"]) -> PyTree:
        """The network's pytree of a model, or of a batch of models."""
        models = checks.array("models", models)
        if np.ndim(models) < 1 or np.shape(models)[-1] != self.dim:
            raise ValueError(
                f"models must be rows of the network's {self.dim} parameters, [..., {self.dim}], "
                f"got shape {np.shape(models)}."
            )
        unstack = self._tree
        for _ in range(jnp.ndim(models) - 1):
            unstack = jax.vmap(unstack)
        return unstack(jnp.asarray(models))

    @property
    def layout(self) -> Layout:
        """The positions of the network's trained parameters in a model's row of numbers."""
        return self._whole_layout if self.trained is None else self._layouts[0]

    @property
    def _whole_layout(self) -> Layout:
        """The positions of all parameters."""
        return layout_of(self.architecture, *self._sample)

    @property
    def _layouts(self) -> tuple[Layout, Layout]:
        """The positions of the parameters that are trained, and of the others."""
        assert self.trained is not None
        layout = self._whole_layout
        is_trained = layout.coordinates(self.trained)
        return layout.part(np.flatnonzero(is_trained)), layout.part(np.flatnonzero(~is_trained))

    def _tree(self, row: Float[Array, " dim"], rest: Array | None = None) -> Any:
        """The network's parameters of a model: trained ones from its row, and the fixed ones."""
        if self.trained is None:
            return self.layout.parameters(row)
        trained_layout, fixed_layout = self._layouts
        rest = self.rest if rest is None else rest
        return jax.tree.map(
            lambda trained, fixed: fixed if trained is None else trained,
            trained_layout.parameters(row),
            fixed_layout.parameters(jnp.asarray(rest)),
            is_leaf=lambda leaf: leaf is None,
        )

    @checked
    def training_only(self, pattern: str) -> "Model":
        """The same problem where clients train and send some parameters alone; the others keep
        their initial values, which are stored once for all clients.

        Models have the numbers of these parameters only, and so have messages, noise, clipped
        gradients and what algorithms keep. The others begin where the problem's initial model has
        them: as the network draws them, or as given by ``problem.starting_at(row)``, for instance
        ``problem.layout.row(parameters)`` of a trained network.

        Args:
          pattern: a regular expression of the paths of the parameters that are trained, such as
            ``"^lora/"``, ``"bias$"`` or ``"head|norm"``.

        Raises:
          ValueError: a pattern that matches no parameter or all of them, a problem without an
            initial model or with one of each client, a second pattern.

        Example:
          >>> import jax, fljax as fl
          >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
          >>> problem = fl.problems.Model.of(data, fl.models.mlp(3, hidden=[16]), jax.random.key(1))
          >>> problem.training_only("^layer_1/").layout.paths
          ('layer_1/bias', 'layer_1/kernel')
        """
        if self.trained is not None:
            raise ValueError(
                f"the problem trains {self.trained!r} alone already; give one pattern for all."
            )
        if self.initial is None or np.ndim(self.initial) != 1:
            raise ValueError(
                "parameters that nobody trains have the values of the problem's initial model, "
                "which must be one for all clients; draw it by problem.initialized(key)."
            )
        chosen = self.layout.coordinates(pattern)
        if chosen.all():
            raise ValueError(f"all parameters' paths match {pattern!r}; leave it out.")
        start = jnp.asarray(self.initial)
        changes: dict[str, Any] = {"trained": pattern, "rest": start[np.flatnonzero(~chosen)]}
        parts = {
            name: replace(part, **changes, initial=None)
            for name in ("test", "view")
            if (part := getattr(self, name, None)) is not None
        }
        return replace(self, **changes, **parts, initial=start[np.flatnonzero(chosen)])

    @property
    def dim(self) -> int:
        """The number of parameters ``D``."""
        return self.layout.dim

    def coordinates(self, chosen: object) -> np.ndarray:
        """As in :class:`Problem`, or the parameters whose path matches a regular expression."""
        if isinstance(chosen, str):
            return self.layout.coordinates(chosen)
        return super().coordinates(chosen)

    @property
    def dtype(self) -> np.dtype:
        return float_dtype()

    def gradient_rounding(self) -> float:
        """Zero: how far rounding within a network moves the clipped gradient of a sample is not
        bounded by a theorem. Searches for the worst data found 3e-7 of the clip.
        """
        return 0.0

    @property
    def design(self) -> Any:
        """A network has no design matrix; reading it raises ``TypeError``."""
        raise TypeError(
            "the predictions of a network are not linear in its parameters, which this needs; take "
            "an algorithm that works with gradients, or a Problem of linear predictions."
        )

    def _of_data(self, features: object, targets: object, weights: object) -> "Model":
        model = Model(
            features,
            targets,
            self.loss,
            weights=weights,
            architecture=self.architecture,
            compute=self.compute,
            state=self.state,
            augment=self.augment,
            trained=self.trained,
            rest=self.rest,
        )
        return replace(model, assignment=self.assignment)

    def mapped(self) -> "Model":
        """The problem itself."""
        return self

    def usable(self) -> "Model":
        """The problem itself: NaN in a sample's gradient is replaced by zero when clipping."""
        return self

    def prepare(self) -> "Model":
        """The same problem with JAX arrays, and its numbers of samples where they are concrete."""
        full = checks.is_concrete(self.weights) and bool(np.all(np.asarray(self.weights) > 0))
        return replace(jax.tree.map(jnp.asarray, self), full=full)

    # One client ----------------------------------------------------------------------------------

    def _outputs(self, row: Float[Array, " dim"], features: Array, context: PyTree = None) -> Array:
        """Predictions of one model for some samples."""
        return self._read("evaluate", "train", row, features, context)

    def _read(
        self, evaluates: str, trains: str, row: Array, features: Array, context: PyTree
    ) -> Array:
        """The values of one of two methods of the network: in evaluation, or in training."""
        if context is not None and context.key is not None:
            return self._trained(row, features, context, trains, evaluates)[0]
        if self.has_state:
            state = _first(self.initial_state()) if context is None else context.state

        def evaluate(network: Architecture, parameters: PyTree, inputs: Array) -> Array:
            network_state = state if self.has_state else self._no_state_of(network)
            return getattr(network, evaluates)(parameters, network_state, inputs)

        return self._computed(evaluate, row, features, context)

    def _no_state_of(self, network: Architecture) -> PyTree:
        """The state of a network that has none, in the form of its library."""
        if type(network).train is Architecture.train:
            return ()
        return behavior_of(network, *self._sample).state

    def _trained(
        self,
        row: Float[Array, " dim"],
        features: Array,
        context: NetworkContext | _CollectedState,
        trains: str = "train",
        evaluates: str = "evaluate",
    ) -> tuple[Array, PyTree]:
        """Predictions of one model for a batch in training, or other values by these methods of the
        network, and its state afterwards.
        """
        assert context.key is not None
        key, augment_key = jax.random.split(context.key)
        if self.augment is not None:
            with default_promotion():
                keys = jax.random.split(augment_key, len(features))
                features = jax.vmap(self.augment)(keys, features).astype(features.dtype)

        def train(network: Architecture, parameters: PyTree, inputs: Array) -> tuple[Array, PyTree]:
            if self.state == "frozen":
                values = getattr(network, evaluates)(parameters, context.state, inputs)
                return values, context.state
            method = getattr(network, trains)
            if len(self.networks) > 1:
                none = self._no_state_of(network)
                return method(parameters, none, inputs, key)[0], context.state
            return method(parameters, context.state, inputs, key)

        predictions, state = self._computed(train, row, features, context)
        state = jax.tree.map(lambda a, b: a.astype(b.dtype), state, context.state)
        if isinstance(context, _CollectedState) and context.row is row:
            context.moved = state
        return predictions, state

    def _representation(
        self, row: Float[Array, " dim"], features: Array, context: PyTree = None
    ) -> Array:
        methods = ("represent_in_evaluation", "represent_in_training")
        return self._read(*methods, row, features, context)

    def head(
        self,
        row: Float[Array, " dim"],
        representation: Float[Array, "samples width"],
        context: PyTree = None,
    ) -> Array:
        """Predictions of one model from representations of any samples."""

        def read(network: Architecture, parameters: PyTree, inputs: Array) -> Array:
            return network.head(parameters, inputs)

        return self._computed(read, row, representation, context)

    def _computed(
        self,
        function: Callable[[Architecture, PyTree, Array], Any],
        row: Array,
        inputs: Array,
        context: PyTree = None,
    ) -> Any:
        """Apply a function of the network, the client's of several, in its compute type; convert
        its result back.
        """
        compute = self.dtype if self.compute is None else jnp.dtype(self.compute)
        if jnp.issubdtype(inputs.dtype, jnp.floating):
            inputs = inputs.astype(compute)
        precision = "highest" if self.compute is None else "default"
        with default_promotion(), jax.default_matmul_precision(precision):
            rest = None if self.rest is None else jnp.asarray(self.rest).astype(compute)
            parameters = self._tree(row.astype(compute), rest)
            if isinstance(self.architecture, SeveralNetworks):
                number = None if context is None else context.network
                branches = [
                    functools.partial(self._of_network, function, network, part)
                    for network, part in zip(
                        self.networks, self.architecture.parts(*self._sample), strict=True
                    )
                ]
                if number is None:
                    return branches[self.evaluated_network or 0](parameters, inputs)
                return jax.lax.switch(number, branches, parameters, inputs)
            result = self._on_device(function, self.architecture, parameters, inputs)
        return result if self.compute is None else self._in_own_type(result)

    def _of_network(
        self,
        function: Callable[[Architecture, PyTree, Array], Any],
        network: Architecture,
        part: Callable[[PyTree], PyTree],
        parameters: PyTree,
        inputs: Array,
    ) -> Any:
        """The function of one of several networks, in the type that all of them have."""
        return self._in_own_type(self._on_device(function, network, part(parameters), inputs))

    def _on_device(
        self,
        function: Callable[[Architecture, PyTree, Array], Any],
        network: Architecture,
        parameters: PyTree,
        inputs: Array,
    ) -> Any:
        """The function of a network, with convolutions that suit the device."""
        of_network = functools.partial(function, network)
        if on_cpu() and _convolves(network, *self._sample):
            return with_fast_gradients(of_network, parameters, inputs)
        return of_network(parameters, inputs)

    def _in_own_type(self, result: PyTree) -> Any:
        return jax.tree.map(
            lambda a: a.astype(self.dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, result
        )

    def _values(self, score: Callable, predictions: Array, targets: Array) -> Array:
        """``[N]``, the mean over all axes but the first."""
        with default_promotion():
            values = score(self.loss, predictions, targets)
        return jnp.mean(values, axis=tuple(range(1, jnp.ndim(values))), dtype=self.dtype)

    def _losses(
        self, row: Array, extra_and_context: PyTree, features: Array, targets: Array
    ) -> Array:
        """``[N]``, of one model for some samples.

        Args:
          row: the model.
          extra_and_context: further inputs of the algorithm's own loss, and the network's context.
          features: of the samples.
          targets: of the samples.
        """
        context = extra_and_context[1]
        return self._values(value_of, self._outputs(row, features, context), targets)

    def _chunk(self, numbers_per_sample: int, single: bool = False) -> int:
        """Number of samples per chunk; ``single``: for gradients of single samples, read several
        times, so that on a CPU they should stay in the cache.
        """
        capacity = DEVICE_CHUNK_BYTES
        if on_cpu():
            capacity = SINGLE_BYTES if single else self._chunk_bytes
        fitting = max(1, capacity // (numbers_per_sample * self.dtype.itemsize))
        # Chunks overlap, so that the last one is full: of smaller ones less may be computed twice.
        fewest = -(-self.samples // fitting)
        sizes = [-(-self.samples // count) for count in range(fewest, 2 * fewest)]
        return min(sizes, key=lambda size: (-(-self.samples // size) * size, -size))

    @property
    def _chunk_bytes(self) -> int:
        """The limit of a client's activations on a CPU."""
        if any(_has_loops(network, *self._sample) for network in self.networks):
            return DEVICE_CHUNK_BYTES  # one element of the sequences is in the cache at a time
        shape, dtype = self._sample
        is_image = len(shape) > 1 and jnp.issubdtype(dtype, jnp.floating)
        return IMAGE_CHUNK_BYTES if is_image else CHUNK_BYTES

    def _summed(self, size: int, function: Callable[..., Array]) -> Callable[..., Array]:
        """The sum over chunks of samples of ``function(row, features, targets, weights)``."""
        samples = self.samples

        def total(row: object, *data: Array) -> Array:
            if size >= samples:
                return function(row, *data)

            def add_chunk(chunk: Array, before: Array) -> Array:
                first = chunk * size
                start = jnp.minimum(first, samples - size)
                parts = [jax.lax.dynamic_slice_in_dim(a, start, size) for a in data]
                new = start + jnp.arange(size, dtype=jnp.int32) >= first
                parts[-1] = jnp.where(new, parts[-1], 0)
                return before + function(row, *parts)

            nothing = jax.eval_shape(function, row, *(a[:size] for a in data))
            return jax.lax.fori_loop(
                0, -(-samples // size), add_chunk, jnp.zeros(nothing.shape, nothing.dtype)
            )

        return total

    # All clients ---------------------------------------------------------------------------------

    @property
    def _activations(self) -> int:
        """How many numbers of one sample are stored for a gradient."""
        return max(_activations(network, *self._sample) for network in self.networks)

    def together(self, samples: int) -> int:
        """Number of clients whose gradient steps are best computed side by side for this number of
        samples: on a CPU as many as fit in the cache, otherwise as many as fit in a part of the
        memory.
        """
        numbers = min(samples, self._chunk(self._activations)) * self._activations + 3 * self.dim
        capacity = CACHE_BYTES if on_cpu() else int(GROUP_SHARE * memory_at_hand())
        return max(1, capacity // (numbers * self.dtype.itemsize))

    def _map_clients(self, function: Callable[..., Any], models: object) -> Any:
        """``function(row, features, targets, weights)`` of every client, in groups that fit."""
        features = self.features
        of_samples = function
        if isinstance(features, PooledRows):  # a group reads its samples when it is computed
            pool = jnp.asarray(features.pool)
            features = features.rows

            def of_rows(row: Any, rows: Array, targets: Array, weights: Array) -> Array:
                return function(row, pool[rows], targets, weights)

            of_samples = of_rows
        data = (models, *map(jnp.asarray, (features, self.targets, self.weights)))
        if self.clients == 1:
            return jax.tree.map(lambda a: a[None], of_samples(*_first(data)))
        size = self.together(self.samples)
        if size >= self.clients:
            return jax.vmap(of_samples)(*data)
        leaves, tree = jax.tree.flatten(data)

        def in_groups(*leaves: Array) -> Array:
            clients = jax.tree.unflatten(tree, leaves)
            batch = None if size == 1 else size
            return jax.lax.map(lambda client: of_samples(*client), clients, batch_size=batch)

        return (
            sharded_over_clients(in_groups, leaves)
            if shares(self.clients) > 1
            else in_groups(*leaves)
        )

    def predictions(self, w: Float[Array, "clients dim"]) -> Array:
        """``[K, N, ...]``."""

        def predict(
            model_and_context: tuple[Array, Any], x: Array, y: Array, weights: Array
        ) -> Array:
            row, context = model_and_context
            return self._outputs(row, x, context)

        return self._map_clients(predict, (w, self._contexts))

    def scores(
        self, w: Float[Array, "clients dim"], score: Callable[[Loss, Array, Array], Array]
    ) -> Float[Array, " clients"]:
        """As in :class:`Problem`."""
        if self.is_pooled:

            def scores_of_part(part: Model, w: Any, context: Any) -> Array:
                return replace(part, context=context).scores(w, score)

            return over_tiles(self, scores_of_part, w, self._contexts)
        return self._map_clients(self._scored(score), (w, self._contexts))

    def cross_scores(
        self, models: Float[Array, "models dim"], score: Callable[[Loss, Array, Array], Array]
    ) -> Float[Array, "clients models"]:
        """As in :class:`Problem`, one model after the other; each with the state of its client."""

        def score_model(model_and_number: tuple[Array, Array]) -> Array:
            row, number = model_and_number
            models = jnp.broadcast_to(row, (self.clients, self.dim))
            return self.seen_by(number).scores(models, score)

        numbers = jnp.arange(len(models), dtype=jnp.int32)
        return jax.lax.map(score_model, (models, numbers)).T

    def seen_by(self, client: Int[Array, ""]) -> "Model":
        """As in :class:`Problem`."""
        context = self._context
        if context is None:
            return self

        def of_client(a: Array) -> Array:
            return a if len(a) == 1 else a[client][None]

        context = jax.tree.map(of_client, context)
        if context.network is not None:
            network = jnp.broadcast_to(context.network, (self.clients,))
            context = context._replace(network=network)
        return replace(self, context=context)

    def _scored(self, score: Callable) -> Callable[..., Array]:
        def weighted_sum(
            model_and_context: tuple[Array, Any], features: Array, targets: Array, weights: Array
        ) -> Array:
            row, context = model_and_context
            predictions = self._outputs(row, features, context)
            return jnp.sum(weights * self._values(score, predictions, targets))

        return self._summed(self._chunk(self._activations), weighted_sum)

    def _loss_gradient(self, w: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""The gradient of each client's mean loss, with clipped per-sample gradients under
        a clip.
        """
        return self._gradient_of_losses(self._losses, w, ())

    def _gradient_in_parts(
        self, w: Float[Array, "clients dim"], sizes: tuple[int, ...], clips: Array
    ) -> Float[Array, "clients dim"]:
        return self._gradient_of_losses(self._losses, w, (), (sizes, clips))

    def _check_cuts(self, sizes: tuple[int, ...]) -> None:
        """Any part of a network's gradient can be clipped."""

    def _gradient_of_losses(
        self,
        losses: Callable[..., Array],
        w: Array,
        extra: PyTree,
        parts: tuple[tuple[int, ...], Array] | None = None,
    ) -> Array:
        """The gradient of the mean of losses, in chunks of samples and groups of clients."""
        in_training = self.context is not None and self.context.key is not None
        if self.is_pooled:
            if in_training and self.mixes_samples:
                raise ValueError(
                    "batch normalization needs batches, and a step here is of all samples of "
                    "clients on a pool; give batch=."
                )

            def gradient_of_part(part: Model, w: Any, extra: PyTree, context: Any) -> Array:
                part = replace(part, context=context)
                return part._gradient_of_losses(losses, w, extra, parts)

            return over_tiles(self, gradient_of_part, w, extra, self._contexts)
        arguments = (w, (extra, self._contexts))
        size = self._chunk(self._activations)
        if self.clip is not None:
            first_sample = _first((arguments, self.features[:, 0], self.targets[:, 0]))
            numbers_per_sample = self._activations + numbers_of(
                self._sample_gradient(losses), *first_sample
            )
            size = self._chunk(numbers_per_sample, single=True)
        if in_training and self.mixes_samples and self.clip is None:
            gradient, state = self._map_clients(self._gradient_and_state(losses), arguments)
            # The steps ask for the state after the gradient, at the same models in the same trace.
            if state is not None:
                object.__setattr__(self, "_state_of_gradient", (w, state, checks.trace_state()))
            return gradient
        if in_training:  # a batch is one piece: it has one key, and may be normalized as a whole
            size = self.samples
        gradient_sums = self._summed(size, self._client_gradient(losses, parts))
        return self._map_clients(gradient_sums, arguments)

    def _gradient_and_state(self, losses: Callable[..., Array]) -> Callable[..., Any]:
        """The gradient of a client's loss in training, and the network's state after it."""

        def of_client(
            arguments: PyTree, x: Array, y: Array, weights: Array
        ) -> tuple[Array, PyTree]:
            row, (extra, context) = arguments

            def loss_sum(row: Array) -> tuple[Array, PyTree]:
                collected = _CollectedState(context, row)
                total = jnp.sum(weights * losses(row, (extra, collected), x, y))
                return total, collected.moved

            return jax.grad(loss_sum, has_aux=True)(row)

        return of_client

    def representations(
        self, w: Float[Array, "clients dim"]
    ) -> Float[Array, "clients samples width"]:
        """``[K, N, R]``, the input of the head at each client's samples."""

        def represent(
            model_and_context: tuple[Array, Any], x: Array, y: Array, weights: Array
        ) -> Array:
            row, context = model_and_context
            return self._representation(row, x, context)

        return self._map_clients(represent, (w, self._contexts))

    @property
    def represents(self) -> bool:
        """Whether the network declares a representation of samples."""
        if any(network.head_paths is None for network in self.networks):
            return False
        return len(self.networks) == 1 or len(set(map(self._represented, self.networks))) == 1

    def _represented(self, network: Architecture) -> tuple[int, ...]:
        """The shape of a network's representation of two samples."""
        sample, dtype = self._sample
        layout = layout_of(network, sample, dtype)

        def represent(row: Array, features: Array) -> Array:
            return network.represent(layout.parameters(row), features)

        with default_promotion():
            return jax.eval_shape(
                represent,
                ShapeDtypeStruct((layout.dim,), self.dtype),
                ShapeDtypeStruct((2, *sample), dtype),
            ).shape

    def head_coordinates(self) -> Bool[np.ndarray, " dim"]:
        """The mask of the parameters of the head, ``[D]`` booleans."""
        if not self.represents:
            raise ValueError(f"a head reads a representation, and {NO_REPRESENTATION}.")
        if not isinstance(self.architecture, SeveralNetworks):
            return self.coordinates(self.architecture.head_paths)
        mask = np.zeros(self._whole_layout.dim, bool)
        for network, places in zip(
            self.networks, self.architecture.places(*self._sample), strict=True
        ):
            assert network.head_paths is not None
            in_head = layout_of(network, *self._sample).coordinates(network.head_paths)
            mask[places[in_head]] = True
        return self._of_trained(mask)

    def mean_gradient(self, w: Float[Array, " dim"]) -> Float[Array, " dim"]:
        r""":math:`\frac1K\sum_kf_k'(w)` at one common model."""
        return jnp.mean(self.gradient(jnp.broadcast_to(w, (self.clients, self.dim))), axis=0)

    def sample_gradient_norm(self, w: Float[Array, "clients dim"]) -> Float[Array, " clients"]:
        """The largest per-sample loss-gradient norm of each client, after clipping."""
        if self.is_pooled:

            def norm_of_part(part: Model, w: Any, context: Any) -> Array:
                return replace(part, context=context).sample_gradient_norm(w)

            return over_tiles(self, norm_of_part, w, self._contexts, largest=True)
        gradient = self._sample_gradient(self._losses)
        models = (w, ((), self._contexts))

        def size(model: PyTree, *sample: Array) -> Array:
            pieces = pieces_of(gradient)(model, *sample)
            if self.clip is None:
                return norm_of(pieces)
            return jnp.minimum(norm_of(finite(pieces)), self.clip)

        first = _first((models, self.features[:, 0], self.targets[:, 0]))
        norms = self._map_samples(size, models, self._activations + numbers_of(gradient, *first))
        return jnp.max(jnp.where(self.weights > 0, norms, 0), axis=1)

    def sample_objective_norms(
        self, w: Float[Array, "clients dim"]
    ) -> Float[Array, "clients samples"]:
        """As in :class:`Problem`."""
        gradient = self._sample_gradient(self._losses)

        models = (w, ((), self._contexts))

        def size(client: tuple[PyTree, Array, Array], *sample: Array) -> Array:
            model, length, direction = client
            pieces = pieces_of(gradient)(model, *sample)
            if self.clip is None:
                return norm_of_sum(norm_of(pieces), length, inner(pieces, direction))
            clip = jnp.asarray(self.clip, direction.dtype)
            unit = jnp.ones(1, direction.dtype)
            clipped = clipped_sum(jax.tree.map(lambda a: a[None], pieces), clip, unit)
            return norm(clipped + length * direction)

        factor = None if self.importance is None else jnp.asarray(self.importance)
        share = self.share  # |a x + b| = a |x + b / a|; clients with a = 0 have no samples
        if factor is not None:
            factor = jnp.where(factor > 0, factor, 1)
            share = share / factor
        length, direction = directed(share[:, None] * self.regularizer.gradient(w))
        first = _first((models, self.features[:, 0], self.targets[:, 0]))
        stored = numbers_of(gradient, *first) + (self.dim if self.clip is not None else 0)
        norms = self._map_samples(size, (models, length, direction), self._activations + stored)
        norms = norms if factor is None else factor[:, None] * norms
        return jnp.where(self.weights > 0, norms, 0)

    def _map_samples(
        self, function: Callable[..., Array], models: object, numbers_per_sample: int
    ) -> Float[Array, "clients samples"]:
        """``function(model, features, target)`` of each sample, in chunks;
        ``numbers_per_sample`` are in memory for one sample.
        """
        size = self._chunk(numbers_per_sample, single=True)

        def map_samples(model: object, x: Array, y: Array, weights: Array) -> Array:
            return jax.lax.map(lambda sample: function(model, *sample), (x, y), batch_size=size)

        return self._map_clients(map_samples, models)

    def gradient_bound(self) -> Float[Array, ""]:
        """``clip``, or infinite."""
        return self.promised_bound()


@module
class PopulationModel(OnDisk, Model):
    """A :class:`Model` that holds the samples of a round's participants alone; made by
    :meth:`Model.from_population`.

    Args:
      population: the clients.
      evaluated: ``[J]``, the clients whose samples metrics read.
      view: the problem of these, in memory, with held-out data of each if there are some.
      padded: whether a round's samples are padded to the largest client at any cost in memory.
    """

    population: Population = static(kw_only=True)
    evaluated: tuple[int, ...] = static(default=(), kw_only=True)
    view: Model | None = None
    padded: bool = static(default=False, kw_only=True)

    made: ClassVar[type[Problem]] = Model

    def validate(self) -> None:
        super().validate()
        self._check_network()

    def assigning(
        self, networks: Int[Array, "*clients"] | Sequence[int] | int, evaluated: int | None = None
    ) -> "Model":
        """As in :class:`Model`."""
        assigned = super().assigning(networks, evaluated)
        if self.view is None:
            return assigned
        of_view = assigned.network_numbers[jnp.asarray(self.evaluated)]
        return replace(assigned, view=self.view.assigning(of_view, evaluated))


def _first(tree: PyTree) -> Any:
    """The first entry of each array of a tree."""
    return jax.tree.map(lambda a: a[0], tree)


def _evaluated(architecture: Architecture, parameters: PyTree, features: Array) -> Array:
    """Predictions with the network's state before training."""
    if type(architecture).train is Architecture.train:
        return architecture.apply(parameters, features)
    state = architecture.init_state(jax.random.key(0), jnp.zeros_like(features[:1]))
    return architecture.evaluate(parameters, state, features)


def _is_padded(problem: Model) -> bool:
    """Whether some of the samples in memory are padding, as far as that is known."""
    weights = problem.weights
    return weights is not None and checks.is_concrete(weights) and bool(np.any(weights == 0))


def _example_batches(template: ShapeDtypeStruct) -> tuple[Array, Array]:
    """Three samples of this shape and type, and the same with another third one."""
    rng = np.random.default_rng(0)
    shape = (4, *template.shape[1:])
    floats = jnp.issubdtype(template.dtype, jnp.floating)
    numbers = rng.normal(size=shape) if floats else rng.integers(0, 2, shape)
    if not floats:
        numbers[3] = 1 - numbers[2]
    samples = jnp.asarray(numbers.astype(template.dtype))
    return samples[:3], samples[jnp.array([0, 1, 3])]


def _depends(function: Callable[..., Array], *pairs: tuple[Array, Array]) -> bool:
    """Whether a function's results for the first two samples depend on the third."""
    first, second = (np.asarray(function(*arguments))[:2] for arguments in zip(*pairs, strict=True))
    is_finite = np.isfinite(first) & np.isfinite(second)
    return bool(
        np.any(np.abs(first - second)[is_finite] > 1e-3 * (1e-3 + np.abs(first)[is_finite]))
    )


@functools.lru_cache(maxsize=64)
def _mixes_losses(
    function: Callable[..., Array], predictions: ShapeDtypeStruct, targets: ShapeDtypeStruct
) -> bool:
    """Whether a sample's loss depends on other samples, where that can be seen."""
    with jax.ensure_compile_time_eval(), default_promotion():
        try:
            return _depends(
                jax.jit(function), _example_batches(predictions), _example_batches(targets)
            )
        except Exception:  # of numbers that no problem has a user's function may raise anything
            return False


@functools.lru_cache(maxsize=64)
def _mixes(architecture: Architecture, features: ShapeDtypeStruct) -> bool:
    """Whether a network's prediction of a sample visibly depends on other samples."""
    layout = layout_of(architecture, features.shape[1:], features.dtype)
    rng = np.random.default_rng(1)
    row = jnp.asarray(rng.normal(scale=0.3, size=layout.dim), float_dtype())

    def outputs(features: Array) -> Array:
        return _evaluated(architecture, layout.parameters(row), features)

    with jax.ensure_compile_time_eval(), default_promotion():
        try:
            return _depends(jax.jit(outputs), _example_batches(features))
        except Exception:
            return False


@functools.lru_cache(maxsize=64)
def _program(architecture: Architecture, sample: tuple[int, ...], dtype: DTypeLike) -> Any:
    """The program of a network's predictions for two samples."""
    layout = layout_of(architecture, sample, dtype)

    def outputs(row: Array, features: Array) -> Array:
        return _evaluated(architecture, layout.parameters(row), features)

    row = ShapeDtypeStruct((layout.dim,), float_dtype())
    with default_promotion():
        return jax.make_jaxpr(outputs)(row, ShapeDtypeStruct((2, *sample), dtype)).jaxpr


def _convolves(architecture: Architecture, sample: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Whether a network has convolutions whose gradients need care on a CPU."""
    return contains_replaced(_program(architecture, sample, dtype))


def _has_loops(architecture: Architecture, sample: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Whether a network has a loop, as recurrent ones have over the places of a sequence."""
    equations = _program(architecture, sample, dtype).eqns
    return any(equation.primitive.name in ("scan", "while") for equation in equations)


@functools.lru_cache(maxsize=64)
def _activations(architecture: Architecture, sample: tuple[int, ...], dtype: DTypeLike) -> int:
    """How many numbers of a sample's forward pass are stored for its gradient.

    Measured as the difference between the residuals of three and of two samples, without the
    residuals that do not depend on their number, such as the parameters.
    """
    layout = layout_of(architecture, sample, dtype)
    row = ShapeDtypeStruct((layout.dim,), float_dtype())

    def stored_bytes(samples: int) -> int:
        features = ShapeDtypeStruct((samples, *sample), dtype)

        def back(row: Array, features: Array) -> Any:
            with default_promotion():
                return jax.vjp(
                    lambda r: _evaluated(architecture, layout.parameters(r), features), row
                )[1]

        leaves = jax.tree.leaves(jax.eval_shape(back, row, features))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    return max(1, (stored_bytes(3) - stored_bytes(2)) // float_dtype().itemsize)
