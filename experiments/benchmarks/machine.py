"""The machine's limits and the run's versions, printed above every benchmark."""

import functools
import platform
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.results.dataset import code_version
from fljax.study.block_sizes import cores

MAIN_MEMORY = 2**28  # bytes of an array that no core's own cache holds


def best_of(function: Callable[[], Any], repeats: int = 3) -> float:
    """The least wall time in seconds of a few calls."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return min(times)


def update_bandwidth(size: int = MAIN_MEMORY) -> float:
    """Bytes per second read and written when an array of ``size`` bytes is updated in place.

    The buffer is donated and the loop is on the device: a result in fresh memory is bound by the
    system's handing out of pages (measured five times slower on Linux), and a run makes its
    buffers once, not every round.
    """
    passes = max(4, MAIN_MEMORY // size)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(array):
        return jax.lax.fori_loop(0, passes, lambda _, a: a + 1, array)

    array = update(jnp.zeros(size // 4, jnp.float32))

    def once():
        nonlocal array
        array = update(array)
        return array

    return 2 * size * passes / best_of(once, 5)


def copy_bandwidth(threads: int = 1, size: int = MAIN_MEMORY) -> float:
    """Bytes per second read and written by the host's own copy, on one core or several."""
    source = np.ones(size // 4, np.float32)
    target = np.zeros(size // 4, np.float32)
    passes = max(1, MAIN_MEMORY // size)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))

    def copy(part: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(passes):
            np.copyto(part[1], part[0])

    with ThreadPoolExecutor(threads) as pool:
        return 2 * size * passes / best_of(lambda: list(pool.map(copy, parts)), 5)


def matrix_rate(size: int = 2048, dtype: Any = jnp.float32, precision: str = "highest") -> float:
    """Floating-point operations per second of a large matrix product."""
    array = jnp.ones((size, size), dtype)
    product = jax.jit(lambda a: jnp.matmul(a, a, precision=precision))
    product(array).block_until_ready()
    return 2 * size**3 / best_of(lambda: product(array), 5)


def commit() -> str:
    """The revision of the code, and whether it has been changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = "+" if git("status", "--porcelain", "--", "fljax") else ""
        return git("rev-parse", "--short", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def device() -> str:
    """The device that runs, in words."""
    result = jax.devices()[0]
    if result.platform == "cpu":
        return f"{platform.machine()} CPU, {cores()} cores"
    return f"{result.device_kind} ({result.platform})"


def header() -> str:
    """Commit, versions, device and its limits, a line each."""
    limits = (
        f"update of 256 MiB in place {update_bandwidth() / 1e9:.1f} GB/s, "
        f"float32 product {matrix_rate() / 1e9:.0f} GFLOP/s"
    )
    lines = [
        f"commit {commit()} (source {code_version()})",
        f"python {platform.python_version()}, jax {jax.__version__}, numpy {np.__version__}",
        f"device {device()}",
        limits,
    ]
    if jax.default_backend() == "cpu":
        solo = copy_bandwidth(1)
        all_ = copy_bandwidth(cores())
        lines.append(
            f"copy of 256 MiB {solo / 1e9:.1f} GB/s on one core, {all_ / 1e9:.1f} GB/s on {cores()}"
        )
    return "\n".join(lines)
