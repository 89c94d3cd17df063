"""Servers on a graph: an instance of each algorithm, and its loop."""

from functools import partial

from experiments.benchmarks import costs
from fljax.algorithms import (
    GFL,
    PGFL,
    ClusterFL,
    GraphFedAvg,
    PAOFedGraph,
    PGFLByGradient,
    PGFLByLoss,
    PGFLSingleStep,
)
from fljax.link import Circular
from fljax.privacy import ZCDP
from tests.cases.server import weights_of
from tests.cases.world import (
    CLIENTS,
    CLUSTER,
    DECAYING,
    LINE,
    MEMBERS,
    ONE_BY_ONE,
    ROUNDS,
    SERVER,
    Case,
    drawn,
)
from tests.reference import (
    nfl,
    online,
    pgfl,
)


def inter_cluster(it):
    return lambda n: float(it.inter_cluster.initial) * float(it.inter_cluster.factor) ** n


def federated(it):
    cluster = CLUSTER if it.personalized else [0] * CLIENTS
    edges = LINE if it.cooperative else []
    given = ROUNDS, float(it.penalty), inter_cluster(it), 2, max(cluster) + 1
    return pgfl.pgfl(MEMBERS, SERVER, cluster, edges, *given, scheduled=drawn(it)).model


def discovered(it):
    step = getattr(it, "step_size", None)
    given = MEMBERS, SERVER, it.clusters, it.warmup, None if step is None else float(step)
    numbers = ROUNDS, float(it.penalty), inter_cluster(it), 2, it.clusters
    assign = pgfl.discovery(*given)
    return pgfl.pgfl(MEMBERS, SERVER, None, LINE, *numbers, drawn(it), assign=assign).model


def single_step(it):
    given = ROUNDS, float(it.penalty), inter_cluster(it), 2, 2
    return pgfl.pgfl_single_step(MEMBERS, SERVER, CLUSTER, LINE, *given, it.signs).model


def graph_averaged(it):
    given = nfl.metropolis(2, LINE), ROUNDS, float(it.step_size.value), it.local_steps
    return pgfl.gfl_gradient(MEMBERS, SERVER, *given).server[:, SERVER]


def portions_mixed(it, environment=ONE_BY_ONE, home=SERVER, edges=LINE, lags=(0,), aggregate=None):
    """The loops' whole record under its own settings."""
    return online.pao_fed_graph(
        environment,
        home,
        nfl.metropolis(max(home) + 1, edges),
        float(it.step_size.value),
        it.sharing.size,
        bool(it.sharing.coordinated),
        it.between.size,
        bool(it.send_next),
        weights_of(it.discount, lags),
        lags[-1],
        aggregate,
    )


def mixed_of_each(it):
    return portions_mixed(it).server[:, SERVER]


CASES = {
    "PGFL": Case(PGFL(0.9, DECAYING, 2), ZCDP(2.0, 0.9), federated, partial(costs.drawn, 2)),
    "GFL": Case(GFL(0.9), ZCDP(2.0, 0.9), federated, costs.federated),
    "ClusterFL": Case(ClusterFL(0.9, 0.3), ZCDP(2.0, 0.9), federated, costs.federated),
    "PGFL, by loss": Case(
        PGFLByLoss(0.9, DECAYING, clusters=2, warmup=4), None, discovered, costs.chosen
    ),
    "PGFL, by gradient": Case(
        PGFLByGradient(0.9, DECAYING, clusters=2, warmup=4, step_size=0.5),
        ZCDP(2.0, 0.9),
        discovered,
        costs.sorted_out,
    ),
    "PGFL, single step": Case(PGFLSingleStep(0.9, DECAYING), None, single_step, costs.federated),
    "PAO-Fed, graph": Case(
        PAOFedGraph(0.3, Circular(2), Circular(1), discount=0.5),
        None,
        mixed_of_each,
        partial(costs.portions, 2),
    ),
    "GFL, gradient": Case(GraphFedAvg(0.05), ZCDP(2.0, 0.9), graph_averaged, costs.averaged),
}
