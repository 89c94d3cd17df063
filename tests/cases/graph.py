"""Servers on a graph: an instance of each algorithm, and its loop."""

from functools import partial

from fljax.algorithms import (
    GFL,
    PGFL,
    ClusterFL,
    GraphFedAvg,
    HierFAVG,
    HierLocalQSGD,
    PAOFedGraph,
    PGFLByGradient,
    PGFLByLoss,
    PGFLSingleStep,
)
from fljax.link import Circular, TopK
from fljax.privacy import ZCDP
from tests.cases import costs
from tests.cases.server import weights_of
from tests.cases.world import (
    CLIENTS,
    CLUSTER,
    DECAYING,
    DIM,
    LINE,
    MEMBERS,
    ROUNDS,
    SAMPLE_STREAM,
    SERVER,
    Case,
    participation_of,
)
from tests.reference import (
    nfl,
    online,
    pgfl,
)


def inter_cluster(algorithm):
    return lambda n: (
        float(algorithm.inter_cluster.initial) * float(algorithm.inter_cluster.factor) ** n
    )


def pgfl_models(algorithm):
    cluster = CLUSTER if algorithm.personalized else [0] * CLIENTS
    edges = LINE if algorithm.cooperative else []
    arguments = ROUNDS, float(algorithm.penalty), inter_cluster(algorithm), 2, max(cluster) + 1
    return pgfl.pgfl(
        MEMBERS, SERVER, cluster, edges, *arguments, scheduled=participation_of(algorithm)
    ).model


def pgfl_discovery_models(algorithm):
    step = getattr(algorithm, "step_size", None)
    arguments = (
        MEMBERS,
        SERVER,
        algorithm.clusters,
        algorithm.warmup,
        None if step is None else float(step),
    )
    numbers = ROUNDS, float(algorithm.penalty), inter_cluster(algorithm), 2, algorithm.clusters
    assign = pgfl.discovery(*arguments)
    return pgfl.pgfl(
        MEMBERS, SERVER, None, LINE, *numbers, participation_of(algorithm), assign=assign
    ).model


def pgfl_single_step_models(algorithm):
    arguments = ROUNDS, float(algorithm.penalty), inter_cluster(algorithm), 2, 2
    return pgfl.pgfl_single_step(MEMBERS, SERVER, CLUSTER, LINE, *arguments, algorithm.signs).model


def gfl_gradient_models(algorithm):
    arguments = (
        nfl.metropolis(2, LINE),
        ROUNDS,
        float(algorithm.step_size.value),
        algorithm.local_steps,
    )
    return pgfl.gfl_gradient(MEMBERS, SERVER, *arguments).server[:, SERVER]


def hierarchical_models(algorithm):
    """On edges that gossip below no cloud; on trees in test_hierarchies."""
    step = float(algorithm.step_size.value) * algorithm.local_steps
    arguments = nfl.metropolis(2, LINE), ROUNDS, step, algorithm.local_steps
    return pgfl.gfl_gradient(MEMBERS, SERVER, *arguments).server[:, SERVER]


def pao_fed_graph_run(
    algorithm, environment=SAMPLE_STREAM, home=SERVER, edges=LINE, lags=(0,), aggregate=None
):
    """The complete record of the loop under the algorithm's settings."""
    return online.pao_fed_graph(
        environment,
        home,
        nfl.metropolis(max(home) + 1, edges),
        float(algorithm.step_size.value),
        algorithm.sharing.size,
        bool(algorithm.sharing.coordinated),
        algorithm.between.size,
        bool(algorithm.send_next),
        weights_of(algorithm.discount, lags),
        lags[-1],
        aggregate,
    )


def pao_fed_graph_models(algorithm):
    return pao_fed_graph_run(algorithm).server[:, SERVER]


CASES = {
    "PGFL": Case(PGFL(0.9, DECAYING, 2), ZCDP(2.0, 0.9), pgfl_models, partial(costs.drawn, 2)),
    "GFL": Case(GFL(0.9), ZCDP(2.0, 0.9), pgfl_models, costs.federated),
    "ClusterFL": Case(ClusterFL(0.9, 0.3), ZCDP(2.0, 0.9), pgfl_models, costs.federated),
    "PGFL, by loss": Case(
        PGFLByLoss(0.9, DECAYING, clusters=2, warmup=4), None, pgfl_discovery_models, costs.chosen
    ),
    "PGFL, by gradient": Case(
        PGFLByGradient(0.9, DECAYING, clusters=2, warmup=4, step_size=0.5),
        ZCDP(2.0, 0.9),
        pgfl_discovery_models,
        costs.sorted_out,
    ),
    "PGFL, single step": Case(
        PGFLSingleStep(0.9, DECAYING), None, pgfl_single_step_models, costs.federated
    ),
    "PAO-Fed, graph": Case(
        PAOFedGraph(0.3, Circular(2), Circular(1), discount=0.5),
        None,
        pao_fed_graph_models,
        partial(costs.portions, 2),
    ),
    "GFL, gradient": Case(GraphFedAvg(0.05), ZCDP(2.0, 0.9), gfl_gradient_models, costs.averaged),
    "HierFAVG": Case(
        HierFAVG(0.05, local_steps=1),
        ZCDP(2.0, 0.9),
        hierarchical_models,
        costs.averaged,
        rests="never",  # edges that differ pull each other; on a tree it is FedAvg, which rests
    ),
    "Hier-Local-QSGD": Case(
        HierLocalQSGD(0.05, local_steps=1, compressors_up=TopK(DIM)),
        None,
        hierarchical_models,
        costs.averaged,
        rests="never",
    ),
}
