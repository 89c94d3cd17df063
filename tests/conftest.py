"""Every test runs in float64 under strict dtype and rank promotion.

Compiling takes most of a test's time, so XLA leaves out its costly passes, in child processes too;
``JAX_DISABLE_MOST_OPTIMIZATIONS=0`` in the environment brings them back.
"""

import gc
import os
from pathlib import Path

import jax
import pytest

MAPS = Path("/proc/self/maps")

lean = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # children read it
jax.config.update("jax_disable_most_optimizations", lean != "0")

# Tracing makes many small objects that live on, over which the collector would go again and again.
gc.set_threshold(100_000, 20, 50)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(items):
    """Of the cases of a test marked ``thin(n)`` all but ``n``, spread evenly, are slow ones."""
    cases = {}
    for item in items:
        if thin := item.get_closest_marker("thin"):
            cases.setdefault((item.parent.nodeid, item.originalname), (thin.args[0], []))[1].append(
                item
            )
    for count, found in cases.values():
        kept = {round(i * (len(found) - 1) / max(count - 1, 1)) for i in range(count)}
        for place, item in enumerate(found):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Compiled programs go after a file that leaves many.

    Each maps some tens of memory regions, and Linux lets a process have 65530 of them: a worker
    that kept those of the whole suite came to 47,000 and 5.7 GB, and one crashed.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 15_000:
        jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)
