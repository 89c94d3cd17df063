"""Arrays over several devices and processes."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

__all__ = [
    "at_home",
    "configured",
    "everywhere",
    "gathered",
    "put",
    "rows",
    "shares",
    "sharing",
    "split",
    "without_shardy",
]

#: Whether the clients of what is traced here are shared out over all devices.
_SHARED: ContextVar[bool] = ContextVar("_SHARED", default=False)


@functools.cache
def everywhere() -> NamedSharding:
    """A copy on every device of every process."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("clients",), (AxisType.Auto,), devices=devices)
    return NamedSharding(mesh, PartitionSpec())


def rows() -> NamedSharding:
    """Clients in turn on the devices of all processes, as many on each."""
    return NamedSharding(everywhere().mesh, PartitionSpec("clients"))


def split(tree: Any, clients: int) -> Any:
    """Arrays with one row per client, distributed over all devices; the partitioner does
    the rest.
    """

    def place(leaf: Any) -> Any:
        mine = jnp.ndim(leaf) > 0 and jnp.shape(leaf)[0] == clients
        return jax.lax.with_sharding_constraint(leaf, rows()) if mine else leaf

    return jax.tree.map(place, tree)


@contextlib.contextmanager
def sharing(shared: bool) -> Iterator[None]:
    """Whether what is traced within computes each client on the device that has its rows."""
    before = _SHARED.set(shared)
    try:
        yield
    finally:
        _SHARED.reset(before)


def shares(clients: int) -> int:
    """Number of devices over which so many clients are shared out here; 1: they are not."""
    devices = jax.device_count() if _SHARED.get() else 1
    return 1 if clients % devices else devices


def at_home(
    function: Callable[..., Any], given: Sequence[Array], own: Sequence[bool] | None = None
) -> Any:
    """Return ``function(*given)``, computed by each device for its own clients.

    Left to itself the partitioner computes a loop over clients on every device, all of it.

    Args:
      function: of arrays with a row per client to arrays that have one too.
      given: its arguments.
      own: which of these have a row per client, all by default; the others are the same everywhere.
    """

    def alone(*given: Array) -> Any:
        with sharing(False):
            return function(*given)

    clients, same = PartitionSpec("clients"), PartitionSpec()
    specs = tuple(clients if mine else same for mine in own or (True,) * len(given))
    mesh = everywhere().mesh
    shared = jax.shard_map(alone, mesh=mesh, in_specs=specs, out_specs=clients, check_vma=False)
    return shared(*given)


def put(tree: Any, where: jax.Device | NamedSharding) -> Any:
    """Arrays on a device, or copied to all devices of all processes."""
    if isinstance(where, jax.Device) or where.is_fully_addressable:
        return jax.device_put(tree, where)

    def share(leaf: Any) -> Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # a state that is there already
        if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            data = share(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return jax.make_array_from_process_local_data(where, np.asarray(leaf))

    return jax.tree.map(share, tree)


def gathered(count: int, part: Callable[[slice], dict[str, np.ndarray]]) -> dict[str, Array]:
    """Arrays over so many clients, each device's from what is made of its clients alone.

    Args:
      count: of the clients, a multiple of the number of devices.
      part: arrays by name of the clients in a slice, one row each.
    """
    where = rows().addressable_devices_indices_map((count,))
    parts = {device: part(index[0]) for device, index in where.items()}  # pyright: ignore[reportOptionalSubscript]
    names = next(iter(parts.values()))

    def joined(name: str) -> Array:
        pieces = [jax.device_put(own[name], device) for device, own in parts.items()]
        shape = count, *pieces[0].shape[1:]
        return jax.make_array_from_single_device_arrays(shape, rows(), pieces)

    return {name: joined(name) for name in names}


@contextlib.contextmanager
def configured(option: str, value: Any) -> Iterator[None]:
    """One of JAX's options set temporarily in all threads, unlike by JAX's own context managers."""
    before = getattr(jax.config, option)
    jax.config.update(option, value)
    try:
        yield
    finally:
        jax.config.update(option, before)


def without_shardy() -> contextlib.AbstractContextManager[None]:
    """Compile with XLA's older partitioner: Shardy (jaxlib 0.10 to 0.12) cannot take the wide
    multiplications of ``philox4x32``, which the house's generator does without.
    """
    return configured("jax_use_shardy_partitioner", False)
