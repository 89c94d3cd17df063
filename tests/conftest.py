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
importlib.import_module("tests.support.annotations")  # the hook knows it by name

# Arguments, results and shapes are checked against the annotations in every call of a function.
# Constructors are left out: they raise errors of their own.
jaxtyping.install_import_hook("fljax", "tests.support.annotations.checked")

# Children read the environment; here JAX is imported already.
lean = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") != "0"
jax.config.update("jax_disable_most_optimizations", lean)
if lean and jax.__version_info__ < (0, 11) and "xla_cpu_use" not in os.environ.get("XLA_FLAGS", ""):
    # Half of XLA's time is in these emitters; later versions compile as fast with their own.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = flags.strip()
# One folder per worker: JAX would read a file that another worker is still writing, and warn of a
# truncated stream.
programs = f"{ROOT}/.pytest_cache/d/programs"
worker = os.environ.get("PYTEST_XDIST_WORKER")
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
    """Skip files without core tests if only these are selected: collecting all takes a minute."""
    expression = f"{config.option.markexpr} and "
    if expression.startswith("core and ") and collection_path.suffix == ".py":
        return "mark.core" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_addoption(parser):
    parser.addoption(
        "--turn",
        default="0/1",
        metavar="I/N",
        help="of the cases of slow tests those of turn I of N: each is in one",
    )
    parser.addoption(
        "--quick-turn",
        default="0/1",
        metavar="I/N",
        help="the same of quick tests that are not core",
    )


@contextlib.contextmanager
def unchecked_annotations():
    """The library's functions check their arguments themselves here, without the import hook."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def annotations_unchecked():
    with unchecked_annotations():
        yield


@contextlib.contextmanager
def raises(*args, raises=pytest.raises, **kwargs):
    """:func:`pytest.raises`, within which the function called is to find the bad value itself."""
    with unchecked_annotations(), raises(*args, **kwargs) as result:
        yield result


pytest.raises = raises


def in_turn(item, which):
    """Whether a test belongs to share I of N; see ``--turn``. The cases of one parametrized
    test (there may be a hundred) are spread over the shares.
    """
    index, count = map(int, which.split("/"))
    return int(hashlib.sha256(item.nodeid.encode()).hexdigest(), 16) % count == index % count


def turn_of(item, options):
    """The share of tests of its kind that is asked for; all core tests are quick and always run."""
    if item.get_closest_marker("slow"):
        return options.turn
    return "0/1" if item.get_closest_marker("core") else options.quick_turn


def pytest_collection_modifyitems(config, items):
    """Mark cases of tests as slow or long. A test with ``thin(n)`` keeps ``n`` evenly spread quick
    cases; the rest are slow, and all but every twentieth (``every=``) of the rest are long. Long
    cases are also slow.
    """
    cases = {}
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        if thin := item.get_closest_marker("thin"):
            name = item.parent.nodeid, item.originalname
            cases.setdefault(name, (thin.args[0], thin.kwargs.get("every", 20), []))[2].append(item)
    for count, every, result in cases.values():
        quick = {round(i * (len(result) - 1) / max(count - 1, 1)) for i in range(count)}
        slow = [item for position, item in enumerate(result) if position not in quick]
        for position, item in enumerate(slow):
            item.add_marker(pytest.mark.slow)
            if position % every:
                item.add_marker(pytest.mark.long)
    waiting = [item for item in items if not in_turn(item, turn_of(item, config.option))]
    if waiting:
        config.hook.pytest_deselected(items=waiting)
        items[:] = [item for item in items if item not in set(waiting)]


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Compiled programs go after a file that leaves many.

    Each maps some tens of memory regions, and Linux lets a process have 65530 of them: without
    this, a worker reached 47,000 regions and 5.7 GB over the whole suite, and one crashed.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 15_000:
        jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)
