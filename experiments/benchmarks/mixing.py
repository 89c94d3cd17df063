"""Time of one neighborhood sum, dense against neighbor table against segment sum.

Prints microseconds per application, float32, inside a scan of 200 so that dispatch is not
measured, on one graph and mapped over eight. The table has the width that a traced random graph
gets by default, which is what studies over seeds use. ``fljax.graphs.DENSE_BELOW`` comes from here.

    python experiments/benchmarks/mixing.py [K ...]
"""

import functools
import platform
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import fljax.graphs as graphs

NODES = (50, 100, 200, 400, 800, 1600, 3200)
ROUNDS = 200
MEMORY = 1 << 30  # bytes of dense matrices above which a case is left out


def by_table_or_matrix(graph, x):
    return graph.neighbor_sum(x)


def by_segments(arcs, x):
    near, far = arcs
    return jax.ops.segment_sum(x[far], near, x.shape[0], indices_are_sorted=True)


def microseconds(mix, network, x, batched: bool) -> float:
    def scan(network, x):
        def step(x, _):
            return mix(network, x) * jnp.float32(0.1), None

        return jax.lax.scan(step, x, None, length=ROUNDS)[0]

    run = jax.jit(jax.vmap(scan) if batched else scan)
    jax.block_until_ready(run(network, x))
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(run(network, x))
        best = min(best, time.perf_counter() - start)
        if best > 1.0:
            break
    return best / ROUNDS * 1e6


def networks(nodes: int, mean_degree: int, batch: int):
    """The same graphs as matrices, tables and arc lists, with a leading axis if batched."""
    keys = jax.random.split(jax.random.key(nodes), batch)
    draw = functools.partial(graphs.random_connected, nodes=nodes, mean_degree=mean_degree)
    padded = jax.vmap(functools.partial(draw, form="padded"))(keys)
    single = [jax.tree.map(lambda leaf, i=i: leaf[i], padded) for i in range(batch)]
    edges = [graph.edges for graph in single]
    arcs = [np.concatenate([e, e[:, ::-1]]) for e in edges]
    arcs = np.stack([a[np.argsort(a[:, 0], kind="stable")] for a in arcs])
    lists = (jnp.asarray(arcs[..., 0]), jnp.asarray(arcs[..., 1]))
    fits = batch * nodes * nodes * 4 < MEMORY
    dense = jax.vmap(lambda graph: graph.as_form("dense"))(padded) if fits else None
    if batch == 1:
        dense, padded, lists = jax.tree.map(lambda leaf: leaf[0], (dense, padded, lists))
    return dense, padded, lists


def slots(graph) -> float:
    """Slots of a table per node, including its overflow table."""
    main = graph.weights
    more = graph.overflow
    return main.shape[-1] + (0 if more is None else np.prod(more.weights.shape[-2:]) / graph.nodes)


def main() -> None:
    sizes = [int(argument) for argument in sys.argv[1:]] or NODES
    device = jax.devices()[0]
    print(f"jax {jax.__version__}, {device.device_kind}, {platform.machine()}, microseconds")
    print(f"{'K':>5} {'D':>3} {'degree':>6} {'graphs':>6} {'slots':>5} "
          f"{'dense':>9} {'padded':>9} {'segment':>9}  best")  # fmt: skip
    for nodes in sizes:
        for mean_degree in (3, 10):
            for batch in (1, 8):
                dense, padded, lists = networks(nodes, mean_degree, batch)
                for dim in (8, 32):
                    shape = (nodes, dim) if batch == 1 else (batch, nodes, dim)
                    x = jax.random.normal(jax.random.key(1), shape, jnp.float32)
                    times = {
                        "dense": np.inf
                        if dense is None
                        else microseconds(by_table_or_matrix, dense, x, batch > 1),
                        "padded": microseconds(by_table_or_matrix, padded, x, batch > 1),
                        "segment": microseconds(by_segments, lists, x, batch > 1),
                    }
                    cells = " ".join(f"{value:9.1f}" for value in times.values())
                    print(f"{nodes:5d} {dim:3d} {mean_degree:6d} {batch:6d} "
                          f"{slots(padded):5.1f} {cells}  "
                          f"{min(times, key=lambda name: times[name])}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
