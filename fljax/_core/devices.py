"""Arrays over several devices and processes."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, PyTree

#: Whether clients are distributed over all devices in the current trace.
_CLIENTS_SHARED: ContextVar[bool] = ContextVar("_CLIENTS_SHARED", default=False)


@functools.cache
def everywhere() -> NamedSharding:
    """The sharding with a copy on every device of every process."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("clients",), (AxisType.Auto,), devices=devices)
    return NamedSharding(mesh, PartitionSpec())


def rows() -> NamedSharding:
    """The sharding that distributes the first axis, clients, evenly over all devices."""
    return NamedSharding(everywhere().mesh, PartitionSpec("clients"))


def split(tree: PyTree, clients: int) -> Any:
    """Constrain arrays with one row per client to be distributed over all devices.

    XLA's partitioner derives the shardings of everything computed from them.
    """

    def constrain(leaf: ArrayLike) -> ArrayLike:
        has_client_axis = jnp.ndim(leaf) > 0 and jnp.shape(leaf)[0] == clients
        return jax.lax.with_sharding_constraint(leaf, rows()) if has_client_axis else leaf

    return jax.tree.map(constrain, tree)


@contextlib.contextmanager
def sharing(shared: bool) -> Iterator[None]:
    """Within, set whether traced code computes each client on the device that has its rows."""
    token = _CLIENTS_SHARED.set(shared)
    try:
        yield
    finally:
        _CLIENTS_SHARED.reset(token)


def shares(clients: int) -> int:
    """Number of devices over which this number of clients is distributed; 1 if it is not."""
    devices = jax.device_count() if _CLIENTS_SHARED.get() else 1
    return 1 if clients % devices else devices


def sharded_over_clients(
    function: Callable[..., Any],
    arguments: Sequence[Array],
    has_client_axis: Sequence[bool] | None = None,
) -> Any:
    """Return ``function(*arguments)``, where each device computes the rows of its clients.

    Without ``shard_map`` the partitioner would run the whole loop over clients on every device.

    Args:
      function: maps arrays with a row per client to arrays with a row per client.
      arguments: its arguments.
      has_client_axis: which arguments have a row per client, by default all; the others are
        replicated.
    """

    def local_function(*arguments: Array) -> Any:
        with sharing(False):
            return function(*arguments)

    split = PartitionSpec("clients")
    replicated = PartitionSpec()
    specs = tuple(
        split if is_split else replicated
        for is_split in has_client_axis or (True,) * len(arguments)
    )
    mesh = everywhere().mesh
    sharded = jax.shard_map(
        local_function, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False
    )
    return sharded(*arguments)


def put(tree: PyTree, target: jax.Device | NamedSharding) -> Any:
    """Arrays on a device, or copied to all devices of all processes."""
    if isinstance(target, jax.Device) or target.is_fully_addressable:
        return jax.device_put(tree, target)

    def share(leaf: ArrayLike) -> Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # a state that is distributed already
        if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            data = share(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return jax.make_array_from_process_local_data(target, np.asarray(leaf))

    return jax.tree.map(share, tree)


def gathered(count: int, rows_of: Callable[[slice], dict[str, np.ndarray]]) -> dict[str, Array]:
    """Distributed arrays over clients, where each process only makes the rows of its devices.

    Args:
      count: number of clients, a multiple of the number of devices.
      rows_of: returns, for a slice of the clients, arrays by name with one row per client.
    """
    indices = rows().addressable_devices_indices_map((count,))
    parts = {device: rows_of(index[0]) for device, index in indices.items()}  # pyright: ignore[reportOptionalSubscript]
    names = next(iter(parts.values()))

    def assembled(name: str) -> Array:
        pieces = [jax.device_put(part[name], device) for device, part in parts.items()]
        shape = count, *pieces[0].shape[1:]
        return jax.make_array_from_single_device_arrays(shape, rows(), pieces)

    return {name: assembled(name) for name in names}


@contextlib.contextmanager
def configured(option: str, value: object) -> Iterator[None]:
    """Within, set an option of JAX in all threads; JAX's own context managers set it in one."""
    previous = getattr(jax.config, option)
    jax.config.update(option, value)
    try:
        yield
    finally:
        jax.config.update(option, previous)


def without_shardy() -> contextlib.AbstractContextManager[None]:
    """Compile with XLA's older partitioner instead of Shardy.

    Shardy (jaxlib 0.10 to 0.12) cannot partition the wide multiplications of ``philox4x32``. The
    default generator has none.
    """
    return configured("jax_use_shardy_partitioner", False)


#: The platform that programs are traced for, if it is not the one of this process.
_TARGET_PLATFORM: ContextVar[str | None] = ContextVar("_TARGET_PLATFORM", default=None)


def on_cpu() -> bool:
    """Whether the target platform of the trace, by default that of this process, is a CPU."""
    return (_TARGET_PLATFORM.get() or jax.local_devices()[0].platform) == "cpu"


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows have no such function


@contextlib.contextmanager
def traced_for(platform: str) -> Iterator[None]:
    """Within, trace code for a platform that may differ from that of this process.

    A function that :func:`jax.jit` has traced before is not traced again.
    """
    token = _TARGET_PLATFORM.set(platform)
    try:
        yield
    finally:
        _TARGET_PLATFORM.reset(token)
