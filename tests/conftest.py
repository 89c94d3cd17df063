"""Every test runs in float64, under strict dtype and rank promotion, with annotations checked.

What is tested is the installed package where there is one: the source tree, which has the tests
and the experiments, comes last on the path, unless ``PYTHONPATH`` names it.

Compiling takes most of a test's time. XLA leaves out its costly passes, and programs are kept for
the other workers and the next run in the folder of pytest's cache (``--cache-clear`` empties it);
all of it in child processes too. ``JAX_DISABLE_MOST_OPTIMIZATIONS=0`` in the environment brings the
passes back.
"""

import contextlib
import gc
import hashlib
import importlib
import os
import sys
from pathlib import Path

import jax
import jaxtyping
import pytest

MAPS = Path("/proc/self/maps")
ROOT = str(Path(__file__).parents[1])

if ROOT not in map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
    sys.path[:] = [*(place for place in sys.path if place not in ("", ROOT)), ROOT]
importlib.import_module("tests.annotations")  # the hook knows it by name

# Every call of a function checks its arguments and results against the annotations, shapes too.
# Constructors say themselves what is wrong with a value, in words.
jaxtyping.install_import_hook("fljax", "tests.annotations.checked")

# Children read the environment; here JAX is imported already.
lean = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") != "0"
jax.config.update("jax_disable_most_optimizations", lean)
if lean and jax.__version_info__ < (0, 11) and "xla_cpu_use" not in os.environ.get("XLA_FLAGS", ""):
    # Half of XLA's time is in these emitters; later versions compile as fast with their own.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = flags.strip()
# Of each worker its own: JAX reads what another is still writing, and warns of a truncated stream.
programs, worker = f"{ROOT}/.pytest_cache/d/programs", os.environ.get("PYTEST_XDIST_WORKER")
if worker and os.environ.get("JAX_COMPILATION_CACHE_DIR") == programs:  # set by who started it
    del os.environ["JAX_COMPILATION_CACHE_DIR"]
for option, value in {
    "jax_compilation_cache_dir": f"{programs}-{worker}" if worker else programs,
    "jax_persistent_cache_min_compile_time_secs": "0",
    "jax_persistent_cache_min_entry_size_bytes": "-1",
}.items():
    kept = os.environ.setdefault(option.upper(), value)
    jax.config.update(option, kept if option.endswith("dir") else int(kept))

# Tracing makes many small objects that live on, over which the collector would go again and again.
gc.set_threshold(100_000, 20, 50)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error::fljax.DivergenceWarning")


def pytest_ignore_collect(collection_path, config):
    """Where core tests alone are asked for, files without one: collecting all takes a minute."""
    asked = f"{config.option.markexpr} and "
    if asked.startswith("core and ") and collection_path.suffix == ".py":
        return "mark.core" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_addoption(parser):
    parser.addoption(
        "--turn",
        default="0/1",
        metavar="I/N",
        help="of the cases of slow tests those of turn I of N: each is in one",
    )


@contextlib.contextmanager
def raises(*args, raises=pytest.raises, **kwargs):
    """:func:`pytest.raises`, within which the function called is to find the bad value itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with raises(*args, **kwargs) as result:
            yield result
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


pytest.raises = raises


def in_turn(item, which):
    """Whether a test that is not quick is one of those of this turn; see ``--turn``. The cases of
    one test are in many: it may have a hundred.
    """
    turn, turns = map(int, which.split("/"))
    return int(hashlib.sha256(item.nodeid.encode()).hexdigest(), 16) % turns == turn % turns


def pytest_collection_modifyitems(config, items):
    """Of the cases of a test marked ``thin(n)`` all but ``n``, spread evenly, are slow ones; of
    these all but every twentieth (``every=``) are long ones. What is long is slow, too.
    """
    cases = {}
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        if thin := item.get_closest_marker("thin"):
            name = item.parent.nodeid, item.originalname
            cases.setdefault(name, (thin.args[0], thin.kwargs.get("every", 20), []))[2].append(item)
    for count, every, result in cases.values():
        kept = {round(i * (len(result) - 1) / max(count - 1, 1)) for i in range(count)}
        others = [item for place, item in enumerate(result) if place not in kept]
        for place, item in enumerate(others):
            item.add_marker(pytest.mark.slow)
            if place % every:
                item.add_marker(pytest.mark.long)
    waiting = [
        item
        for item in items
        if item.get_closest_marker("slow") and not in_turn(item, config.option.turn)
    ]
    if waiting:
        config.hook.pytest_deselected(items=waiting)
        items[:] = [item for item in items if item not in set(waiting)]


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
