"""Which random number generator, and which precision of matrix products, by measurement.

    python -m experiments.benchmarks.generators

For every generator: time of a draw inside a scan, of one run and of sixteen at a time, and whether
a run's numbers are the same bits alone and in batches of two sizes. A generator that fails this
cannot serve: results would depend on how seeds are batched. Normal numbers are made as runs make
them. Then two studies that draw much, from the seeds to the errors.
For every precision: time and error of the product of a client's Gram matrix with its model, the
one that dominates a round. The same command decides on an accelerator.
"""

import itertools
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.benchmarks.machine import best_of, header, matrix_rate
from experiments.benchmarks.montecarlo import federated_descent, private_admm
from fljax._core import prng

#: The generators of runs, and JAX's others for comparison. Without threefry4x32: XLA takes
#: minutes to compile its permutations for a CPU.
GENERATORS = prng.GENERATORS | {name: name for name in ("philox2x32", "rbg", "unsafe_rbg")}
PRECISIONS = ("default", "high", "highest")
CLIENTS = 50
DIM = 8
ROUNDS = 200
RUNS = 16
SEEDS = 200
STUDIES = (private_admm, federated_descent)

DRAWS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "normal": lambda key: prng.normal(key, (CLIENTS, DIM), jnp.float32),
    "uniform": lambda key: jax.random.uniform(key, (CLIENTS, DIM)),
    "permutation": lambda key: jax.random.permutation(key, CLIENTS * DIM).astype(jnp.float32),
}


def draws(draw: Callable[[jax.Array], jax.Array], key: jax.Array) -> jax.Array:
    """The sum over rounds of one run's draws."""

    def add(total, round):
        return total + draw(jax.random.fold_in(key, round)), None

    start = jnp.zeros_like(draw(key))
    return jax.lax.scan(add, start, jnp.arange(ROUNDS))[0]


def same_when_batched(name: str) -> bool:
    """Whether ``vmap`` over keys gives every key the bits that it gives alone."""
    keys = jax.random.split(jax.random.key(0, impl=GENERATORS[name]), RUNS)

    def bits(key):
        return jax.random.bits(jax.random.fold_in(key, 1), (CLIENTS, DIM))

    alone = jnp.stack([jax.jit(bits)(key) for key in keys])
    batched = [jax.jit(jax.vmap(bits))(keys[:size]) for size in (3, RUNS)]
    return all(bool(jnp.all(alone[: len(drawn)] == drawn)) for drawn in batched)


def generators() -> list[str]:
    lines = [
        f"\nnanoseconds per number, {CLIENTS} x {DIM} a round, one run / {RUNS} runs at a time",
        f"{'':14s}" + "".join(f"{name:>17s}" for name in DRAWS) + "  same bits under vmap",
    ]
    for name in GENERATORS:
        keys = jax.random.split(jax.random.key(0, impl=GENERATORS[name]), RUNS)
        cells = []
        for draw in DRAWS.values():
            single = jax.jit(lambda key, draw=draw: draws(draw, key))
            many = jax.jit(jax.vmap(lambda key, draw=draw: draws(draw, key)))
            jax.block_until_ready((single(keys[0]), many(keys)))
            numbers = ROUNDS * CLIENTS * DIM / 1e9
            alone = best_of(lambda single=single, keys=keys: single(keys[0]), 5) / numbers
            batched = best_of(lambda many=many, keys=keys: many(keys), 5) / numbers / RUNS
            cells.append(f"{alone:8.2f} /{batched:7.2f}")
        same = "yes" if same_when_batched(name) else "NO"
        lines.append(f"{name:14s}" + "".join(cells) + f"  {same}")
    return lines


def studies() -> list[str]:
    """Two studies of `montecarlo.py` by generator, in turns, best of six: processor time where the
    processor computes.
    """
    on_cpu = jax.default_backend() == "cpu"
    clock, word = (time.process_time, "processor ") if on_cpu else (time.perf_counter, "")
    names = [*prng.GENERATORS]
    lines = [f"\n{word}seconds of 200 rounds of {SEEDS} seeds, and seconds of compiling"]
    lines.append(f"{'':14s}" + "".join(f"{scenario.__name__:>27s}" for scenario in STUDIES))
    best = {}
    compiling = {}
    for scenario, repeat, name in itertools.product(STUDIES, range(7), names):
        began = clock()
        results = fl.sweep(scenario, rounds=200, seeds=SEEDS, record_every=200, generator=name)
        spent = clock() - began
        if repeat == 0:
            best[scenario, name] = np.inf
            compiling[scenario, name] = results.attrs["compile_seconds"]
        else:
            best[scenario, name] = min(best[scenario, name], spent)
    for name in names:
        cells = (f"{best[s, name]:15.3f} / {compiling[s, name]:9.1f}" for s in STUDIES)
        lines.append(f"{name:14s}" + "".join(cells))
    return lines


def precisions() -> list[str]:
    """Large products, and the batched product of small matrices with vectors that a round is."""
    rng = np.random.default_rng(0)
    clients = 1000
    dim = 32
    matrices = rng.normal(size=(clients, dim, dim))
    models = rng.normal(size=(clients, dim))
    exact = np.einsum("kpq,kq->kp", matrices, models)
    title = (
        "\nprecision of products: rate of a 2048 x 2048 product; time and relative error of "
        f"{clients} products of {dim} x {dim} matrices with vectors"
    )
    lines = [title, f"{'':20s}{'GFLOP/s':>9s}{'us':>9s}{'error':>10s}"]
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64):
            a = jnp.asarray(matrices, dtype)
            w = jnp.asarray(models, dtype)
            for precision in PRECISIONS:

                def product(a, w, precision=precision):
                    return jnp.einsum("kpq,kq->kp", a, w, precision=precision)

                function = jax.jit(product)
                error = np.linalg.norm(function(a, w) - exact) / np.linalg.norm(exact)
                seconds = best_of(lambda f=function, a=a, w=w: f(a, w), 20)
                rate = matrix_rate(2048, dtype, precision) / 1e9
                name = f"{jnp.dtype(dtype).name} {precision}"
                lines.append(f"{name:20s}{rate:9.0f}{seconds * 1e6:9.1f}{error:10.1e}")
    return lines


def main() -> None:
    print(header(), flush=True)
    warnings.simplefilter("ignore", fl.AssumptionWarning)
    print("\n".join(generators()), flush=True)
    print("\n".join(studies()), flush=True)
    print("\n".join(precisions()))


if __name__ == "__main__":
    main()
