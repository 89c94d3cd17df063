"""What the machine can do, and what this run is: printed above every benchmark."""

import platform
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.results import code_version
from fljax.sweep import _cores


def best_of(function: Callable[[], Any], repeats: int = 3) -> float:
    """The least wall time in seconds of a few calls."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return min(times)


def copy_bandwidth(megabytes: int = 256) -> float:
    """Bytes per second read and written by a large copy on the default device."""
    array = jnp.ones(megabytes * 2**20 // 4, jnp.float32)
    copy = jax.jit(lambda a: a + 1)
    copy(array).block_until_ready()
    return 2 * array.nbytes / best_of(lambda: copy(array), 5)


def matrix_rate(size: int = 2048) -> float:
    """Floating-point operations per second of a large float32 product at highest precision."""
    array = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: jnp.matmul(a, a, precision=jax.lax.Precision.HIGHEST))
    product(array).block_until_ready()
    return 2 * size**3 / best_of(lambda: product(array), 5)


def header() -> str:
    """Commit, versions and device, one line each."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    device = jax.devices()[0]
    return (
        f"commit {commit} (source {code_version()})\n"
        f"python {platform.python_version()}, jax {jax.__version__}, numpy {np.__version__}\n"
        f"device {device.device_kind} ({device.platform}), "
        f"{_cores()} cores\n"
        f"copy bandwidth {copy_bandwidth() / 1e9:.1f} GB/s, "
        f"float32 product {matrix_rate() / 1e9:.0f} GFLOP/s"
    )
