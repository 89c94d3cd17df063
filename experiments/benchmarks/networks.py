"""GTV minimization on large networks, compared with SciPy's sparse solvers and CVXPY.

Times are reported with accuracy: the distance of the models from the best solution of any solver,
relative to their norm, and the objective's excess over the lowest. Flops and traffic of an
iteration are counted by hand and compared with the machine's limits; memory is the compiler's
estimate. Double precision; the first call of each program compiles and is not timed.

    python -m experiments.benchmarks.networks [--quick] [--nodes K] [--out FILE]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.sparse import linalg

import fljax as fl
from experiments.benchmarks.machine import best_of, header, update_bandwidth
from fljax._core.devices import configured
from fljax._core.storage import replace_file
from fljax.problems import GTVMin, LeastSquares, Norm, Problem, SquaredNorm

SAMPLES = 20
DIM = 10
CLUSTERS = 5
WORD = 8  # bytes of a number
TOLERANCE = 1e-12  # relative residual asked of the iterative solvers
TITLES = f"{'':44s}{'seconds':>10s}{'iterations':>12s}{'distance':>11s}{'above':>11s}"


class Solution(NamedTuple):
    """One side's result."""

    label: str
    seconds: float
    iterations: int | None
    models: np.ndarray  # [K, D]


def instance(network: fl.graphs.Graph, dim: int = DIM, samples: int = SAMPLES) -> Problem:
    """Linear models of a few kinds, in turn along the nodes, with noise as large as the signal."""
    rng = np.random.default_rng(0)
    nodes = network.nodes
    kinds = rng.normal(size=(CLUSTERS, dim))
    truth = kinds[np.arange(nodes) * CLUSTERS // nodes]
    features = rng.normal(size=(nodes, samples, dim))
    targets = np.einsum("knd,kd->kn", features, truth)
    targets += rng.normal(size=targets.shape) * dim**0.5
    return Problem(features, targets, LeastSquares())


def networks(nodes: int) -> dict[str, fl.graphs.Graph]:
    """A network with fast mixing, and one with a large diameter."""
    side = round(nodes**0.5)
    return {
        "random": fl.graphs.random_connected(jax.random.key(0), nodes=nodes, mean_degree=6),
        "grid": fl.graphs.grid(side, side),
    }


# The same objective by each side ------------------------------------------------------------------


def by_fljax(coupled: GTVMin) -> Solution:
    def solve() -> Any:
        return coupled.solution(TOLERANCE)

    result = solve()
    return Solution("fljax", best_of(solve), int(result.iterations), np.asarray(result.models))


def system(coupled: GTVMin) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """SciPy's matrix of ``K D`` unknowns, the right side, and the blocks of its nodes."""
    problem = coupled.problem
    graph = coupled.network
    nodes = problem.clients
    dim = problem.dim
    x, y, weights = (np.asarray(a) for a in (problem.features, problem.targets, problem.weights))
    blocks = 2 * np.einsum("kn,knp,knq->kpq", weights, x, x, optimize=True)
    right = 2 * np.einsum("kn,kn,knp->kp", weights, y, x, optimize=True).reshape(-1)
    near, far = graph.edges.T
    strength = 2 * float(coupled.coupling) * graph.edge_weights()
    adjacency = sparse.csr_array((strength, (near, far)), (nodes, nodes))
    adjacency = adjacency + adjacency.T
    degree = adjacency.sum(axis=1)
    blocks = blocks + degree[:, None, None] * np.eye(dim)
    index = np.arange(nodes)
    diagonal = sparse.bsr_array((blocks, index, np.append(index, nodes)), (nodes * dim,) * 2)
    return (diagonal - sparse.kron(adjacency, sparse.eye_array(dim))).tocsr(), right, blocks


def timed(label: str, solve: Callable[[], tuple[np.ndarray, int | None]], shape: Any) -> Solution:
    began = time.perf_counter()
    models, iterations = solve()
    return Solution(label, time.perf_counter() - began, iterations, models.reshape(shape))


def by_scipy(coupled: GTVMin, direct: bool) -> list[Solution]:
    """Conjugate gradients, plain and by blocks, and a factorization; assembling is not timed."""
    matrix, right, blocks = system(coupled)
    shape = blocks.shape[:2]
    inverse = np.linalg.inv(blocks)
    by_blocks = linalg.LinearOperator(
        matrix.shape,
        matvec=lambda r: np.einsum("kpq,kq->kp", inverse, r.reshape(shape)).reshape(-1),  # pyright: ignore[reportCallIssue]
    )

    def cg(precondition: Any) -> tuple[np.ndarray, int]:
        count = 0

        def tick(_: Any) -> None:
            nonlocal count
            count += 1

        models, _ = linalg.cg(matrix, right, rtol=TOLERANCE, M=precondition, callback=tick)
        return models, count

    result = [
        timed("scipy cg", lambda: cg(None), shape),
        timed("scipy cg, preconditioned by blocks", lambda: cg(by_blocks), shape),
    ]
    if direct:
        columns = matrix.tocsc()
        order = "MMD_AT_PLUS_A"
        solve = lambda: (np.asarray(linalg.spsolve(columns, right, permc_spec=order)), None)  # noqa: E731
        result.append(timed("scipy spsolve", solve, shape))
    return result


def by_cvxpy(coupled: GTVMin) -> list[Solution]:
    """An interior-point and a first-order method on CVXPY's form of the objective."""
    problem = coupled.problem
    graph = coupled.network
    x = np.asarray(problem.features)
    y = np.asarray(problem.targets)
    nodes, samples, dim = x.shape
    w = cp.Variable((nodes, dim))
    rows = sparse.block_diag(list(x), format="csr") / samples**0.5
    total = cp.sum_squares(rows @ cp.vec(w, order="C") - y.reshape(-1) / samples**0.5)
    near, far = graph.edges.T
    index = np.arange(len(near))
    unit = np.ones(len(near))
    ends = [sparse.csr_array((unit, (index, end)), (len(near), nodes)) for end in (near, far)]
    away = ends[0] - ends[1]
    weight = float(coupled.coupling) * graph.edge_weights()
    if isinstance(coupled.penalty, Norm):
        total += weight @ cp.norm(away @ w, 2, axis=1)
    else:
        total += cp.sum_squares(sparse.diags_array(np.sqrt(weight)) @ away @ w)
    result = []
    for name, options in ((cp.CLARABEL, {}), (cp.SCS, {"eps": 1e-9, "max_iters": 100_000})):
        task = cp.Problem(cp.Minimize(total))
        began = time.perf_counter()
        task.solve(solver=name, **options)
        seconds = time.perf_counter() - began
        result.append(
            Solution(f"cvxpy, {name}", seconds, task.solver_stats.num_iters, np.asarray(w.value))
        )
    return result


def compared(coupled: GTVMin, sides: list[Solution]) -> list[str]:
    """A line each, measured from the lowest objective of all."""
    heights = [float(coupled.objective(jnp.asarray(side.models))) for side in sides]
    best = sides[int(np.argmin(heights))].models
    lines = []
    for side, height in zip(sides, heights, strict=True):
        distance = np.linalg.norm(side.models - best) / np.linalg.norm(best)
        above = (height - min(heights)) / min(heights)
        count = "" if side.iterations is None else f"{side.iterations}"
        lines.append(
            f"{side.label:44s}{side.seconds:10.3f}{count:>12s}{distance:11.1e}{above:11.1e}"
        )
    return lines


# Counts ----------------------------------------------------------------------------------------


def slots(graph: fl.graphs.Graph) -> float:
    """The number of slots of the neighbor table that a sum visits."""
    return sum(float(np.prod(part.weights.shape)) for part in graph.entries.parts)


def flops(coupled: GTVMin) -> float:
    """Flops of an iteration of conjugate gradients: two products with a node's block, one sum over
    its neighbors, the shared model, six passes over vectors.
    """
    nodes = coupled.problem.clients
    dim = coupled.problem.dim
    return 4 * nodes * dim**2 + 2 * slots(coupled.network) * dim + 16 * nodes * dim


def moved(coupled: GTVMin) -> float:
    """Bytes of the same: both blocks, the table and its gathers once, twelve vectors."""
    nodes = coupled.problem.clients
    dim = coupled.problem.dim
    table = slots(coupled.network)
    return WORD * (2 * nodes * dim**2 + table * (1 + dim) + 12 * nodes * dim) + 4 * table


def memory(coupled: GTVMin) -> tuple[int, int]:
    """Bytes of the solver's arguments, and of its further memory."""

    def solve(problem: Problem, network: fl.graphs.Graph, coupling: jax.Array) -> Any:
        return GTVMin(problem, network, coupling, coupled.penalty).solution()

    arguments = (coupled.problem, coupled.network, jnp.asarray(coupled.coupling))
    result = jax.jit(solve).lower(*arguments).compile().memory_analysis()
    return result.argument_size_in_bytes, result.temp_size_in_bytes + result.output_size_in_bytes


def batched(coupled: GTVMin, couplings: np.ndarray) -> tuple[float, float]:
    """Seconds for all couplings in one vectorized program, and one after the other."""

    def solve(problem: Problem, network: fl.graphs.Graph, coupling: jax.Array) -> jax.Array:
        return GTVMin(problem, network, coupling, coupled.penalty).solution(TOLERANCE).models

    single = jax.jit(solve)
    many = jax.jit(jax.vmap(solve, (None, None, 0)))
    arguments = (coupled.problem, coupled.network)
    values = jnp.asarray(couplings)
    jax.block_until_ready((many(*arguments, values), single(*arguments, values[0])))
    together = best_of(lambda: many(*arguments, values))
    return together, best_of(lambda: [single(*arguments, value) for value in values])


# The report ------------------------------------------------------------------------------------


def report(nodes: int, small: int, quick: bool) -> list[str]:
    lines: list[str] = []

    def say(*more: str) -> None:
        lines.extend(more)
        print("\n".join(more), flush=True)

    bandwidth = update_bandwidth(2**24)
    for name, graph in networks(nodes).items():
        edges = int(graph.edge_count())
        coupled = GTVMin(instance(graph), graph, 1.0)
        # On a random network a factorization fills up: tens of gigabytes at ten thousand nodes.
        direct = name == "grid" or graph.nodes <= 500
        say(
            f"\nSquared penalty, {name} of {graph.nodes:,} nodes and {edges:,} edges, D={DIM}",
            TITLES,
        )
        sides = [by_fljax(coupled), *by_scipy(coupled, direct)]
        say(*compared(coupled, sides))
        cost = sides[0].seconds / sides[0].iterations  # pyright: ignore[reportOperatorIssue]
        rates = moved(coupled) / cost / 1e9, flops(coupled) / cost / 1e9
        say(
            f"an iteration: {flops(coupled) / 1e6:.1f} Mflop and {moved(coupled) / 1e6:.1f} MB by "
            f"hand, {cost * 1e3:.2f} ms all in -> {rates[1]:.1f} GFLOP/s, {rates[0]:.1f} GB/s "
            f"of {bandwidth / 1e9:.0f} GB/s at 16 MiB"
        )
        together, serial = batched(coupled, np.geomspace(0.01, 100, 8))
        say(f"eight couplings as one program {together:.3f} s, one by one {serial:.3f} s")
        lasso = GTVMin(coupled.problem, graph, 0.5, Norm())
        solve = lambda lasso=lasso: lasso.solution(1e-10, 20_000)  # noqa: E731
        result = solve()
        say(
            f"network lasso: {best_of(solve, 2):.2f} s, {int(result.iterations)} iterations, "
            f"gap and movement {float(result.residual):.1e}"
        )
    penalties = {"Squared penalty": (SquaredNorm(), 1.0), "Network lasso": (Norm(), 0.5)}
    for label, (penalty, coupling) in penalties.items():
        graph = fl.graphs.random_connected(jax.random.key(1), nodes=small, mean_degree=6)
        problem = instance(graph)
        coupled = GTVMin(problem, graph, coupling, penalty)
        say(f"\n{label}, random of {small} nodes, D={DIM}", TITLES)
        say(*compared(coupled, [by_fljax(coupled), *by_cvxpy(coupled)]))
    say("\nMemory, squared penalty, random network: MB of data and table, of the solver besides")
    for count in (nodes, 10 * nodes):
        graph = networks(count)["random"]
        coupled = GTVMin(instance(graph), graph, 1.0)
        argument_bytes, needed = memory(coupled)
        edges = int(graph.edge_count())
        text = (
            f"{count:9,d} nodes, {edges:9,d} edges: {argument_bytes / 1e6:9.1f} {needed / 1e6:9.1f}"
        )
        if not quick:
            side = by_fljax(coupled)
            text += f"   {needed / edges:.0f} bytes an edge; {side.seconds:.2f} s"
        say(text)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--nodes", type=int, default=10_000, help="of the large networks")
    parser.add_argument("--out", help="also write the table to this file")
    arguments = parser.parse_args()
    nodes, small = (400, 50) if arguments.quick else (arguments.nodes, 300)
    head = header()
    print(head, flush=True)
    with configured("jax_enable_x64", True):
        lines = report(nodes, small, arguments.quick)
    if arguments.out:
        replace_file(Path(arguments.out), "\n".join([head, *lines]) + "\n")


if __name__ == "__main__":
    main()
