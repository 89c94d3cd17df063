"""Networked personalized learning, with a fixed and with a learned parameter, against loops."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.module import module
from fljax._core.prng import key_of
from fljax.algorithms import (
    NPFL,
    NPFLRL,
    DeterministicPolicyGradient,
    NetworkedADMM,
    NPFLByGradient,
    NPFLByLoss,
    NPFLByParameters,
    RandomProbe,
)
from fljax.algorithms.peers.npfl import cluster_relations
from fljax.algorithms.peers.npfl_discovery import NEEDS, Choosing
from fljax.algorithms.peers.npfl_rl import Policy
from fljax.link import Quantize
from fljax.metrics.definitions import Metric
from fljax.problems import (
    LeastSquares,
    Logistic,
    SquaredL2,
    Tasks,
    from_clients,
    group_share,
)
from fljax.simulation.running import _run
from fljax.simulation.scan import trace
from tests.cases import EXACT, probes
from tests.reference import npfl as loops
from tests.reference.nfl import neighbors
from tests.reference.pgfl import Client, central

close = np.testing.assert_allclose
same = np.testing.assert_array_equal

CLUSTER = (0, 1, 2, 0, 1, 2, 0, 0, 1, 2)
#: Client 3 has neighbors of its own cluster only, client 5 none of its own, client 9 none of
#: cluster 0.
EDGES = (
    *((0, 3), (0, 6), (0, 7), (3, 6), (0, 1), (0, 4), (6, 1), (7, 8), (1, 4)),
    *((4, 8), (2, 9), (2, 7), (8, 9), (5, 8), (5, 7)),
)
CLIENTS = len(CLUSTER)
CLUSTERS = 3
DIM = 5
ROUNDS = 12
RHO = 1.5
RIDGE = 0.6
TAUS = (0.3, 0.0, 0.7, 0.5, 1.0, 0.0, 0.05, 0.9, 0.2, 0.4)
#: Fewer samples than parameters at every client, and more at some.
SIZES = {"few": (1, 3, 2, 4, 2, 3, 1, 4, 2, 3), "many": (4, 9, 2, 7, 3, 5, 6, 1, 8, 3)}
LOSSES = {"squared": LeastSquares(), "logistic": Logistic()}

DUAL = Metric("dual", lambda now: now.state.dual, "the duals")
LEARNT = Metric("learnt", lambda now: now.state.inter_cluster, "the parameters")


class World(NamedTuple):
    """Data of clients whose clusters have similar models."""

    sizes: str = "many"
    loss: str = "squared"
    seed: int = 0

    def draw(self, seed):
        rng = np.random.default_rng(self.seed)
        base = rng.normal(size=DIM) * 2
        truth = base + 0.4 * rng.normal(size=(CLUSTERS, DIM))
        rng = np.random.default_rng([self.seed, seed])
        data = []
        for q, size in zip(CLUSTER, SIZES[self.sizes], strict=True):
            X = rng.normal(size=(size, DIM))
            y = X @ truth[q] + 0.5 * rng.normal(size=size)
            data.append((X, np.where(y > 0, 1.0, -1.0) if self.loss == "logistic" else y))
        return data

    def data(self):
        return self.draw(1)

    def held_out(self):
        return self.draw(2)

    def clients(self):
        ridges = [RIDGE / CLUSTER.count(q) for q in CLUSTER]
        pairs = zip(self.data(), ridges, strict=True)
        return [Client(X, y, self.loss, ridge) for (X, y), ridge in pairs]

    def problem(self):
        loss = LOSSES[self.loss]
        share = group_share(RIDGE, CLUSTER, CLUSTERS)
        tasks = Tasks(CLUSTER, CLUSTERS, validation=from_clients(self.held_out(), loss))
        problem = from_clients(self.data(), loss, SquaredL2(), share)
        return dataclasses.replace(problem, tasks=tasks)


#: LLVM's passes are a good part of the time to compile and change nothing here.
QUICK = {"xla_backend_optimization_level": 0}
_trace = jax.jit(trace, static_argnums=(2, 3), compiler_options=QUICK)


def new_key(seed=1):
    return fl.random_key(seed)


def make_network(form="dense", edges=EDGES, clients=CLIENTS):
    return fl.graphs.from_edges(clients, edges, form=form)


def records(
    algorithm, problem=None, metrics=(EXACT,), form="dense", rounds=ROUNDS, key=None, **parts
):
    simulation = fl.Simulation(
        World().problem() if problem is None else problem,
        algorithm,
        make_network(form),
        metrics=metrics,
        **parts,
    )
    result = _trace(simulation, new_key() if key is None else key, rounds, 1)[0]
    return {metric.name: np.asarray(result[metric.name]) for metric in metrics}


def models(algorithm, problem=None, **kwargs):
    """``[T, K, D]``."""
    return records(algorithm, problem, **kwargs)["exact"]


# Against loops -----------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize(("sizes", "form"), [("few", "dense"), ("many", "padded")])
@pytest.mark.parametrize("tau", [0.0, 0.3, TAUS], ids=["0", "0.3", "own"])
def test_models_and_duals_equal_the_loops(tau, sizes, form):
    world = World(sizes)
    parameter = tau if np.ndim(tau) == 0 else jnp.asarray(tau)
    ours = records(NPFL(RHO, parameter), world.problem(), (EXACT, DUAL), form)
    theirs = loops.npfl(world.clients(), CLUSTER, EDGES, ROUNDS, RHO, tau)
    close(ours["exact"], theirs.model, rtol=0, atol=1e-10)
    close(ours["dual"], theirs.dual, rtol=0, atol=1e-10)
    assert np.ptp(theirs.model[-1], axis=0).min() > 0.05  # clients differ


def test_a_logistic_loss_is_minimized_too():
    world = World("few", "logistic")
    ours = models(NPFL(RHO, jnp.asarray(TAUS), inner_iterations=400), world.problem())
    theirs = loops.npfl(world.clients(), CLUSTER, EDGES, ROUNDS, RHO, TAUS).model
    close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.thin(2)
@pytest.mark.core
@pytest.mark.parametrize(
    ("policy", "epochs", "clip", "sizes", "form"),
    [
        (DeterministicPolicyGradient(0.05), 3, True, "many", "dense"),
        (DeterministicPolicyGradient(0.05), 1, False, "few", "padded"),
        (DeterministicPolicyGradient(0.3, 0.02), 1, True, "few", "dense"),
        (RandomProbe(0.8, 0.4), 1, True, "many", "padded"),
        (RandomProbe(0.8, 0.4), 3, False, "few", "dense"),
    ],
    ids=["dpg", "dpg-free", "dpg-capped", "probe", "probe-free"],
)
def test_learned_parameters_equal_the_loops(policy, epochs, clip, sizes, form):
    world = World(sizes)
    initial = np.linspace(0.02, 0.6, CLIENTS)
    algorithm = NPFLRL(RHO, policy, jnp.asarray(initial), epochs, clip)
    ours = records(algorithm, world.problem(), (EXACT, DUAL, LEARNT), form)
    gradient = isinstance(policy, DeterministicPolicyGradient)
    theirs = loops.npfl_rl(
        world.clients(),
        world.held_out(),
        CLUSTER,
        EDGES,
        ROUNDS,
        RHO,
        initial,
        "dpg" if gradient else "probe",
        float(policy.step_size),
        epochs,
        None if gradient else probes(algorithm, CLIENTS, ROUNDS),
        (0, 1) if clip else None,
        float(policy.cap) if gradient and np.isfinite(policy.cap) else None,
    )
    close(ours["learnt"], theirs.tau, rtol=0, atol=1e-10)
    close(ours["exact"], theirs.model, rtol=0, atol=1e-10)
    close(ours["dual"], theirs.dual, rtol=0, atol=1e-10)
    moved = np.abs(theirs.tau - initial).max(0)
    assert (moved > 0.01).sum() >= CLIENTS - 2
    assert moved[3] == 0  # no neighbor in another cluster: nothing to learn
    same(theirs.tau[0], initial)  # the first round has nothing to look back at
    if not clip:
        assert theirs.tau.min() < 0


# The derivative that the policy follows ----------------------------------------------------------


@module
class ByDifferentiation(Policy):
    """:class:`DeterministicPolicyGradient` by ``jax.grad`` of the cost."""

    rate: Any

    def step(self, key, tau, cost, gradient):
        return tau - self.rate * jax.grad(lambda a: jnp.sum(cost(a)))(tau)


@module
class ByDifferences(Policy):
    """The same by central differences."""

    rate: Any
    width: Any

    def step(self, key, tau, cost, gradient):
        return tau - self.rate * (cost(tau + self.width) - cost(tau - self.width)) / self.width / 2


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("policy", "tolerance"), [(ByDifferentiation(0.05), 1e-12), (ByDifferences(0.05, 1e-4), 1e-7)]
)
def test_the_gradient_is_the_derivative_of_the_cost(policy, tolerance, sizes):
    problem = World(sizes).problem()
    numerical = records(NPFLRL(RHO, policy, 0.2), problem, (LEARNT,))["learnt"]
    by_gradient = NPFLRL(RHO, DeterministicPolicyGradient(0.05), 0.2)
    by_gradient = records(by_gradient, problem, (LEARNT,))["learnt"]
    close(numerical, by_gradient, rtol=0, atol=tolerance)
    assert np.ptp(by_gradient, axis=0).max() > 0.05


@pytest.mark.slow
def test_the_policy_lowers_the_cost_on_validation_data():
    """From one context on, small steps of either policy never raise it."""

    @module
    class Watched(Policy):
        policy: Any

        def step(self, key, tau, cost, gradient):
            after = self.policy.step(key, tau, cost, gradient)
            return jnp.where(cost(after) <= cost(tau) + 1e-12, after, jnp.nan)

    for policy in (DeterministicPolicyGradient(1e-3), RandomProbe(0.01, 0.01)):
        algorithm = NPFLRL(RHO, Watched(policy), 0.4, clip=False)
        learnt = records(algorithm, metrics=(LEARNT,))["learnt"]
        assert np.isfinite(learnt).all()
        assert np.abs(learnt[-1] - 0.4).max() > 1e-4


# Limits ------------------------------------------------------------------------------------------


def test_the_printed_dual_diverges_and_the_corrected_one_does_not():
    clients = World().clients()
    arguments = (clients, CLUSTER, EDGES, 60, RHO, 0.1)
    assert np.abs(loops.npfl(*arguments, dual_sign="printed").model[-1]).max() > 1e6
    right = loops.npfl(*arguments).model
    assert np.abs(right[-1] - right[-2]).max() < 1e-2
    close(models(NPFL(RHO, 0.1), rounds=60), right, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize(("loss", "form"), [("squared", "padded"), ("logistic", "dense")])
def test_one_cluster_is_networked_admm(loss, form):
    """Whatever the parameter, fixed or learned."""
    world = World("few", loss)
    alone = dataclasses.replace(world.problem(), tasks=None)
    validation = world.problem().tasks.validation
    one_cluster = dataclasses.replace(alone, tasks=Tasks([0] * CLIENTS, 1, validation=validation))
    admm = models(NetworkedADMM(RHO), alone, form=form)
    for problem in (alone, one_cluster):
        close(models(NPFL(RHO, 0.7), problem, form=form), admm, rtol=1e-12, atol=1e-14)
    if loss == "squared":
        learning = NPFLRL(RHO, DeterministicPolicyGradient(0.1), 0.7)
        result = records(learning, one_cluster, (EXACT, LEARNT), form)
        close(result["exact"], admm, rtol=0, atol=1e-12)
        same(result["learnt"], np.full((ROUNDS, CLIENTS), 0.7))


@functools.cache
def with_another_cluster_1():
    """The problem with other data at the clients of cluster 1."""
    problem = World().problem()
    other = World(seed=5).problem()
    in_cluster = np.asarray(CLUSTER)[:, None] == 1
    return dataclasses.replace(
        problem,
        features=np.where(in_cluster[..., None], other.features, problem.features),
        targets=np.where(in_cluster, other.targets, problem.targets),
    )


def test_without_inter_cluster_learning_clusters_have_no_effect_on_each_other():
    second_cluster = np.asarray(CLUSTER) == 1
    for tau, independent in ((0.0, True), (0.3, False)):
        before, after = (models(NPFL(RHO, tau), p) for p in (None, with_another_cluster_1()))
        assert np.abs(before - after)[:, second_cluster].max() > 0.1
        assert (np.abs(before - after)[:, ~second_cluster].max() == 0) == independent


def test_without_inter_cluster_learning_joined_clients_meet_at_their_optimum():
    """Clusters split into the components that the network joins; each component meets at its own
    minimizer.
    """
    result = models(NPFL(RHO, 0.0), rounds=800)[-1]
    clients = World().clients()
    for part in ((0, 3, 6, 7), (1, 4, 8), (2, 9), (5,)):
        best = central([clients[k] for k in part])
        close(result[list(part)], np.tile(best, (len(part), 1)), rtol=0, atol=1e-8)


def test_at_rest_each_part_agrees_and_its_gradients_cancel():
    result = models(NPFL(RHO, 0.3), rounds=1500)[-1]
    clients = World().clients()
    near = neighbors(CLIENTS, EDGES)
    for part in ((0, 3, 6, 7), (1, 4, 8), (2, 9), (5,)):
        close(result[list(part)], np.tile(result[part[0]], (len(part), 1)), rtol=0, atol=1e-7)
        total = np.zeros(DIM)
        for k in part:
            context = loops.context(k, result, np.zeros((CLIENTS, DIM)), CLUSTER, near, RHO)
            total += clients[k].gradient(result[k])
            if context.others is not None:
                total += 2 * 0.3 * (result[k] - context.others)
        close(total, np.zeros(DIM), atol=1e-6)


@pytest.mark.thin(1)
@pytest.mark.parametrize("policy", [DeterministicPolicyGradient(1e-14), RandomProbe(1e-14, 0.1)])
def test_a_negligible_rate_leaves_the_parameter_unchanged(policy):
    problem = World("few").problem()
    taus = jnp.asarray(TAUS)
    learned = models(NPFLRL(RHO, policy, taus, policy_steps=2), problem)
    close(learned, models(NPFL(RHO, taus), problem), rtol=0, atol=1e-11)


def test_a_cap_is_the_largest_change_of_an_epoch():
    algorithm = NPFLRL(RHO, DeterministicPolicyGradient(1e6, 0.01), 0.5)
    learnt = records(algorithm, metrics=(LEARNT,))["learnt"]
    all_but_3 = [k for k in range(CLIENTS) if k != 3]
    close(np.abs(learnt[1] - learnt[0])[all_but_3], 0.01, rtol=1e-12)
    assert np.abs(np.diff(learnt, axis=0)).max() <= 0.01 + 1e-15


def test_clipping_keeps_the_parameters_in_their_interval():
    policy = DeterministicPolicyGradient(10.0)
    for clip in (True, False):
        learnt = records(NPFLRL(RHO, policy, 0.5, clip=clip), metrics=(LEARNT,))["learnt"]
        inside = (learnt >= 0) & (learnt <= 1)
        assert inside.all() == clip
        if clip:
            assert (learnt == 0).any()
            assert (learnt == 1).any()


def test_probes_differ_between_clients_epochs_and_runs():
    drawn = probes(NPFLRL(RHO, RandomProbe(0.5, 2.0), policy_steps=3), CLIENTS, ROUNDS)
    assert len(np.unique(drawn)) == drawn.size
    assert np.abs(drawn).max() <= 1
    assert abs(drawn.mean()) < 0.2
    algorithm = NPFLRL(RHO, RandomProbe(0.5, 0.4), 0.5)
    first, second = (
        records(algorithm, metrics=(LEARNT,), key=new_key(s))["learnt"] for s in (1, 2)
    )
    assert (first[1] != second[1]).sum() >= CLIENTS - 1


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "algorithm", [NPFL(RHO, 0.3), NPFLRL(RHO, RandomProbe(0.5, 0.4))], ids=["NPFL", "NPFL-RL"]
)
def test_duals_of_a_cluster_sum_to_zero_for_any_messages(algorithm):
    """Neighbors and the senders themselves work with the same rounded models."""
    result = records(algorithm, metrics=(EXACT, DUAL), compression=Quantize(3))
    assert np.abs(result["exact"] - models(algorithm)).max() > 1e-2
    assert np.abs(result["dual"]).max() > 0.1
    for q in range(CLUSTERS):
        members = np.asarray(CLUSTER) == q
        close(result["dual"][:, members].sum(1), np.zeros((ROUNDS, DIM)), atol=1e-12)


# Reweighted graphs -------------------------------------------------------------------------------


def hub_and_ring(nodes):
    """A ring with chords whose node 0 knows a third of all others: its table has an overflow."""
    ring = {(i, i + 1) for i in range(nodes - 1)} | {(0, nodes - 1)}
    chords = {(i, i + 7) for i in range(1, nodes - 7, 5)}
    return sorted(ring | chords | {(0, i) for i in range(2, nodes, 3)})


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_reweighted_rows_equal_the_matrix(form):
    nodes = 300
    graph = make_network(form, hub_and_ring(nodes), nodes)
    assert (graph.overflow is not None) == (form == "padded")
    weight = np.random.default_rng(0).normal(size=(nodes, nodes))
    table = jnp.asarray(weight)
    result = jax.jit(lambda g: g.reweighted(lambda receiver, sender: table[receiver, sender]))(
        graph
    )
    matrix = np.asarray(graph.dense()) * weight
    x = np.random.default_rng(1).normal(size=(nodes, 4))
    close(result.neighbor_sum(jnp.asarray(x)), matrix @ x, atol=1e-12)
    close(result.degree, matrix.sum(1), atol=1e-12)
    close(result.laplacian(jnp.asarray(x)), matrix.sum(1)[:, None] * x - matrix @ x, atol=1e-12)
    close(
        result.signless_laplacian(jnp.asarray(x)),
        matrix.sum(1)[:, None] * x + matrix @ x,
        atol=1e-12,
    )


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_relations_are_the_means_over_clusters(form):
    nodes = 300
    clusters = 5
    cluster = np.random.default_rng(2).integers(0, clusters, nodes)
    graph = make_network(form, hub_and_ring(nodes), nodes)
    problem = from_clients([(np.ones((1, 2)), np.ones(1))] * nodes, LeastSquares())
    problem = dataclasses.replace(problem, tasks=Tasks(cluster, clusters))
    near = neighbors(nodes, hub_and_ring(nodes))
    same_cluster = np.zeros((nodes, nodes))
    other_clusters = np.zeros((nodes, nodes))
    for k in range(nodes):
        present = {cluster[i] for i in near[k]} - {cluster[k]}
        for i in near[k]:
            same_cluster[k, i] = cluster[i] == cluster[k]
            if cluster[i] != cluster[k]:
                members = sum(cluster[j] == cluster[i] for j in near[k])
                other_clusters[k, i] = 1 / members / len(present)
    result = cluster_relations(problem, graph)
    eye = jnp.eye(nodes)
    close(result.same.neighbor_sum(eye), same_cluster, atol=1e-15)
    close(result.others.neighbor_sum(eye), other_clusters, atol=1e-15)
    close(result.same.degree, same_cluster.sum(1))
    close(result.others.degree, other_clusters.sum(1), atol=1e-12)
    assert set(np.unique(other_clusters.sum(1).round(12))) == {0.0, 1.0}


# The engine --------------------------------------------------------------------------------------

ALL = {
    "fixed": NPFL(RHO, 0.3),
    "gradient": NPFLRL(RHO, DeterministicPolicyGradient(0.05)),
    "probe": NPFLRL(RHO, RandomProbe(0.5, 0.4), policy_steps=3),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("name", "form"), [("fixed", "padded"), ("gradient", "dense"), ("probe", "padded")]
)
def test_a_round_sends_every_model_to_every_neighbor(name, form):
    """For any policy: it only uses values that are already known."""
    simulation = fl.Simulation(World().problem(), ALL[name], make_network(form))
    results = fl.run(simulation, 4)
    messages_per_round = 2 * len(EDGES)
    assert results.messages.values.tolist() == [messages_per_round * n for n in (1, 2, 3, 4)]
    assert results.scalars.values.tolist() == [messages_per_round * DIM * n for n in (1, 2, 3, 4)]


def scaled(node, factor):
    """Every real number in a configuration times ``factor``, in a copy."""
    if dataclasses.is_dataclass(node):
        fields = {f.name: scaled(getattr(node, f.name), factor) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **fields)
    real = not isinstance(node, int) and np.issubdtype(np.asarray(node).dtype, np.floating)
    return float(node) * factor if real else node


@pytest.mark.parametrize("name", ALL)
def test_new_numbers_do_not_compile_again(name):
    """New key, data, clusters, penalty, parameter, rate, width: one program."""
    programs = []
    for seed, factor in enumerate((1.0, 1.1, 0.9)):
        problem = World(seed=seed).problem()
        tasks = dataclasses.replace(problem.tasks, cluster=CLUSTER[seed:] + CLUSTER[:seed])
        problem = dataclasses.replace(problem, tasks=tasks)
        simulation = fl.Simulation(
            problem, scaled(ALL[name], factor), make_network(), metrics=["consensus_error"]
        )
        fl.run(simulation, 3, key=seed)
        programs.append(_run.jitted._cache_size())
    assert programs[0] == programs[1] == programs[2]


def rl(policy: Any = None, **changes):
    return NPFLRL(RHO, DeterministicPolicyGradient(0.1) if policy is None else policy, **changes)


def alter(**changes):
    return dataclasses.replace(World().problem(), **changes)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: NPFL(0.0), "penalty must be finite and > 0, got 0"),
        (ValueError, lambda: NPFL(1.0, 1.5), "inter_cluster must be .* <= 1, got 1.5"),
        (ValueError, lambda: NPFL(1.0, -0.1), "inter_cluster must be .* >= 0 .*got -0.1"),
        (ValueError, lambda: NPFL(1.0, jnp.array([0.1, 2.0])), "got 2"),
        (ValueError, lambda: NPFL(1.0, 0.1, 0), "inner_iterations must be >= 1, got 0"),
        (ValueError, lambda: records(NPFL(1.0, jnp.ones(4))), "each of the 10 clients, got .*4"),
        (ValueError, lambda: rl(initial=1.2), "initial must be .* <= 1, got 1.2"),
        (ValueError, lambda: rl(initial=-0.1), "initial must be .*got -0.1"),
        (ValueError, lambda: rl(policy_steps=0), "policy_steps must be >= 1, got 0"),
        (ValueError, lambda: records(rl(initial=jnp.full(3, 0.1))), "of the 10 clients, got .*3"),
        (TypeError, lambda: rl(policy=0.1), "policy must be an instance of .*Policy, got 0.1"),
        (ValueError, lambda: DeterministicPolicyGradient(0.0), "step_size must be .*> 0, got 0"),
        (ValueError, lambda: DeterministicPolicyGradient(0.1, 0.0), "cap must be > 0, got 0"),
        (ValueError, lambda: DeterministicPolicyGradient(0.1, -1.0), "cap must be > 0, got -1"),
        (ValueError, lambda: DeterministicPolicyGradient(0.1, np.nan), "cap must be > 0, got nan"),
        (ValueError, lambda: RandomProbe(-0.1, 0.1), "step_size must be .*> 0, got -0.1"),
        (ValueError, lambda: RandomProbe(0.1, 0.0), "width must be .*> 0, got 0"),
        (ValueError, lambda: records(rl(), alter(tasks=None)), "needs validation data of each"),
        (
            ValueError,
            lambda: records(rl(), alter(tasks=Tasks(CLUSTER, CLUSTERS))),
            "needs validation data of each",
        ),
        (
            ValueError,
            lambda: records(rl(), World("few", "logistic").problem()),
            "closed form that needs the squared loss .*got Logistic",
        ),
        (
            ValueError,
            lambda: records(NPFL(1.0, 0.1), World().problem().clipped(1.0)),
            "clipping cannot be applied inside an exact",
        ),
        (
            ValueError,
            lambda: records(rl(), World().problem().clipped(1.0)),
            "clipping cannot be applied inside an exact",
        ),
    ],
)
def test_bad_settings_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


# Clusters discovered -----------------------------------------------------------------------------

LAST_MESSAGE = Metric("sent", lambda now: now.state.sent, "the last message")
GIVEN: Any = {"clusters": CLUSTERS, "warmup": 4}


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("algorithm", "form"),
    [
        (NPFLByLoss(RHO, 0.3, **GIVEN), "dense"),
        (NPFLByGradient(RHO, 0.3, step_size=0.5, **GIVEN), "padded"),
    ],
    ids=["loss", "gradient"],
)
def test_chosen_clusters_equal_the_loops(algorithm, form):
    world = World()
    step = getattr(algorithm, "step_size", None)
    ours = records(algorithm, world.problem(), (EXACT, LAST_MESSAGE), form)
    arguments = ROUNDS, RHO, 0.3, CLUSTERS, 4, None if step is None else float(step)
    theirs, clusters = loops.npfl_choosing(world.clients(), world.held_out(), EDGES, *arguments)
    close(ours["exact"], theirs, rtol=0, atol=1e-10)
    same(ours["sent"][..., -1], clusters)
    same(clusters[3], np.arange(CLIENTS) % CLUSTERS)
    assert (clusters[-1] != clusters[3]).any()


@module
class Told(Choosing):
    """Clients that are told their clusters."""

    needs = NEEDS

    def misfit(self, problem, model, received):
        return 1 - jax.nn.one_hot(problem.tasks.cluster, self.clusters, dtype=model.dtype)


def test_npfl_with_true_clusters_is_npfl():
    problem = World().problem()
    in_turn = np.arange(CLIENTS) % CLUSTERS
    problem = dataclasses.replace(
        problem, tasks=dataclasses.replace(problem.tasks, cluster=in_turn.astype(np.int32))
    )
    with_true_clusters = models(Told(RHO, 0.3, clusters=CLUSTERS, warmup=1), problem)
    close(with_true_clusters, models(NPFL(RHO, 0.3), problem), rtol=0, atol=1e-12)


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("policy", "form"),
    [(DeterministicPolicyGradient(0.5), "dense"), (RandomProbe(0.8, 0.4), "padded")],
    ids=["dpg", "probe"],
)
def test_parameters_of_neighbors_equal_the_loops(policy, form):
    world = World("few")
    algorithm = NPFLByParameters(RHO, policy, 0.3, threshold=0.31)
    ours = records(algorithm, world.problem(), (EXACT, LAST_MESSAGE), form)
    arguments: Any = ROUNDS, RHO, 0.3, 0.31
    if isinstance(policy, RandomProbe):
        table = make_network(form).single_table().neighbor_table()
        arguments = (
            *arguments,
            "probe",
            float(policy.step_size),
            probes_of_neighbors(policy, *table),
        )
    else:
        arguments = *arguments, "dpg", float(policy.step_size)
    theirs, tau = loops.npfl_by_parameters(world.clients(), world.held_out(), EDGES, *arguments)
    close(ours["exact"], theirs, rtol=0, atol=1e-10)
    close(ours["sent"][..., DIM:], tau, rtol=0, atol=1e-10)
    links = tau[-1] > 0
    similar = np.minimum(tau[-1], tau[-1].T)[links] >= 0.31
    assert 0 < similar.sum() < similar.size  # some pairs became similar, some did not


def probes_of_neighbors(policy, neighbors, weights):
    """``[T, K, K]``: the directions as drawn in the run, by the neighbor that they are of."""
    table = np.zeros((ROUNDS, CLIENTS, CLIENTS))
    for n in range(ROUNDS):
        now = key_of(jax.random.fold_in(new_key(), n + 1), "policy")
        drawn = jax.random.uniform(jax.random.fold_in(now, 0), weights.shape, float, -1, 1)
        for k, s in np.argwhere(np.asarray(weights) > 0):
            table[n, k, neighbors[k, s]] = float(policy.width) / 2 * drawn[k, s]
    return table


@pytest.mark.slow
def test_with_an_unreachable_threshold_no_clients_are_similar():
    """Then the parameters of neighbors are the only coupling, and weigh as much as a common one."""
    still = DeterministicPolicyGradient(1e-300)
    ours = models(NPFLByParameters(RHO, still, 0.3, threshold=2.0))
    separate = dataclasses.replace(
        World().problem(),
        tasks=Tasks(
            np.arange(CLIENTS),
            CLIENTS,
            validation=from_clients(World().held_out(), LeastSquares()),
        ),
    )
    close(ours, models(NPFL(RHO, 0.3), separate), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: NPFLByLoss(RHO, clusters=0), "clusters must be >= 1, got 0"),
        (lambda: NPFLByLoss(RHO, clusters=2, warmup=0), "warmup must be >= 1, got 0"),
        (lambda: NPFLByLoss(RHO, 1.5, clusters=2), "inter_cluster must be"),
        (lambda: NPFLByGradient(RHO, clusters=2, step_size=0.0), "step_size must be"),
        (lambda: models(NPFLByLoss(RHO, clusters=11)), "clusters must be <= 10, got 11"),
        (
            lambda: models(NPFLByLoss(RHO, clusters=2), compression=Quantize(8)),
            "compresses its messages itself",
        ),
        (
            lambda: NPFLByParameters(RHO, RandomProbe(0.1, 0.1), threshold=0.0),
            "threshold must be",
        ),
        (
            lambda: NPFLByParameters(RHO, RandomProbe(0.1, 0.1), 1.5, threshold=0.1),
            "initial must be",
        ),
    ],
)
def test_bad_discovery_is_refused(make, error):
    with pytest.raises(ValueError, match=error):
        make()
