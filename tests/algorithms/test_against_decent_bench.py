"""Algorithms against another library's own code, where it is installed: decent-bench.

Its agents are objects that send each other NumPy arrays, one after the other. The models after some
rounds are compared, from the same data, weights and numbers; they agree up to rounding errors.
Differences by definition are named where they occur. Not compared are their ATC, which combines a
peer's own model without its step, and their adaptive servers, whose second moments begin at zero
and not at the square of the adaptivity.
"""

import networkx
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import (
    DLM,
    EXTRA,
    GTVR,
    KGT,
    LED,
    NIDS,
    SCAFFOLD,
    ADMMTracking,
    ATCTracking,
    AugDGM,
    Consensus,
    DiNNO,
    ExactDiffusion,
    FedAvg,
    FedDyn,
    FedLT,
    FedNova,
    FedPD,
    FedProx,
    NetworkedADMM,
    WangElia,
)

arrays = pytest.importorskip("decent_array.interoperability")  # of decent-bench since 0.3
agents = pytest.importorskip("decent_bench.agents")
costs = pytest.importorskip("decent_bench.costs")
networks = pytest.importorskip("decent_bench.networks")
theirs = pytest.importorskip("decent_bench.algorithms")
p2p = theirs.p2p
federated = theirs.federated
arrays.set_backend("numpy")

K = 6
DIM = 3
ROUNDS = (1, 2, 12)
RING = [(k, (k + 1) % K) for k in range(K)]
EDGES = [*RING, (0, 3)]
RNG = np.random.default_rng(0)
DATA = [(RNG.normal(size=(8, DIM)), RNG.normal(size=8)) for _ in range(K)]
PROBLEM = fl.problems.from_clients(DATA, fl.problems.LeastSquares())

#: Peer methods: ours, and the class and arguments of theirs.
PEERS = {
    "DGD": (Consensus(0.05), lambda: p2p.DGD(step_size=0.05)),
    "ATC tracking": (ATCTracking(0.05), lambda: p2p.ATC_Tracking(step_size=0.05)),
    "Aug-DGM": (AugDGM(0.05), lambda: p2p.AugDGM(step_size=0.05)),
    "EXTRA": (EXTRA(0.05), lambda: p2p.EXTRA(step_size=0.05)),
    "SimpleGT": (EXTRA(0.05, blend=0.0), lambda: p2p.SimpleGT(step_size=0.05)),
    "Exact diffusion": (ExactDiffusion(0.05), lambda: p2p.ED(step_size=0.05)),
    "NIDS": (NIDS(0.05), lambda: p2p.NIDS(step_size=0.05)),
    "Wang-Elia": (WangElia(0.05), lambda: p2p.WangElia(step_size=0.05)),
    "ADMM": (NetworkedADMM(0.5), lambda: p2p.ADMM(penalty=1.0, relaxation=0.5)),
    # Theirs has one step size for all peers, ours 1 / (2 c |N_k| + rho).
    "DLM": (DLM(0.5, 0.1), lambda: p2p.DLM(step_size=1 / 12, penalty=0.5)),
    "LED": (
        LED(0.05, local_steps=3, dual_step_size=0.3),
        lambda: p2p.LED(num_local_steps=3, step_size=0.05, aux_step_size=0.3),
    ),
    "DiNNO": (
        DiNNO(0.4, 0.05, local_steps=3),
        lambda: p2p.DiNNO(num_local_steps=3, step_size=0.05, penalty=0.4),
    ),
    "K-GT": (
        KGT(0.05, local_steps=3, outer_step_size=0.7),
        lambda: p2p.KGT(num_local_steps=3, step_size=0.05, aux_step_size=0.7),
    ),
    "GT-VR": (
        GTVR(0.05, probability=1.0, batch=8),
        lambda: p2p.GT_VR(step_size=0.05, snapshot_prob=1.0),
    ),
    "ADMM tracking": (
        ADMMTracking(0.1, penalty=0.7, relaxation=0.4, blend=0.5),
        lambda: p2p.ATG(penalty=0.7, relaxation=0.4, gamma=0.5, delta=0.1),
    ),
}


#: Methods with one server and full participation.
LOCAL = {"step_size": 0.05, "num_local_steps": 3}
SERVERS = {
    "FedAvg": (FedAvg(0.05, local_steps=3), lambda: federated.FedAvg(**LOCAL)),
    "FedProx": (
        FedProx(0.05, attraction=0.5, local_steps=3),
        lambda: federated.FedProx(penalty=0.5, **LOCAL),
    ),
    "SCAFFOLD": (
        SCAFFOLD(0.05, local_steps=3, server_step_size=0.8),
        lambda: federated.Scaffold(server_step_size=0.8, **LOCAL),
    ),
    "FedNova": (
        FedNova(0.05, momentum=0.5, local_steps=3),
        lambda: federated.FedNova(use_momentum=True, momentum=0.5, **LOCAL),
    ),
    "FedDyn": (
        FedDyn(0.05, attraction=0.5, local_steps=3),
        lambda: federated.FedDyn(penalty=0.5, **LOCAL),
    ),
    "FedPD": (
        FedPD(0.05, penalty=0.5, local_steps=3),
        lambda: federated.FedPD(penalty=0.5, **LOCAL),
    ),
    "Fed-LT": (
        FedLT(0.05, penalty=0.5, local_steps=3),
        lambda: federated.FedLT(penalty=0.5, **LOCAL),
    ),
}


def clients():
    to_array = arrays.from_numpy
    for x, y in DATA:
        x = np.sqrt(2) * x
        y = np.sqrt(2) * y  # theirs is half of the mean square
        rows = [
            (to_array(row), to_array(target)) for row, target in zip(x, y[:, None], strict=True)
        ]
        yield agents.Agent(costs.LinearRegressionCost(rows))


def by_peers(make, edges, rounds, lazy):
    graph = networkx.empty_graph(K)  # so that nodes keep their order
    graph.add_edges_from(edges)
    network = networks.P2PNetwork(graph, [*clients()])
    if lazy:
        network.W = arrays.from_numpy((np.eye(K) + arrays.to_numpy(network.weights)) / 2)
    make().run(network, rounds)
    return np.array([arrays.to_numpy(agent.x) for agent in network.agents()])


@pytest.fixture
def copied_messages(monkeypatch):
    """Copy received messages: some algorithms of theirs accumulate in place in an array that is
    shared.
    """
    original = agents.Agent.messages

    def copies(agent, channel="default"):
        return {
            sender: arrays.copy(message) for sender, message in original(agent, channel).items()
        }

    monkeypatch.setattr(agents.Agent, "messages", copies)


@pytest.mark.usefixtures("copied_messages")
@pytest.mark.parametrize("name", PEERS)
def test_peers_equal_decent_bench(name):
    ours, make = PEERS[name]
    edges = RING if name == "DLM" else EDGES
    network = fl.graphs.from_edges(K, edges)
    for rounds in ROUNDS:
        model = fl.run(fl.Simulation(PROBLEM, ours, network), rounds).model.values
        # Their DLM begins with a round that only exchanges; their LED combines by A, not (I + A)/2.
        expected = by_peers(make, edges, rounds + (name == "DLM"), name == "LED")
        np.testing.assert_allclose(model, expected, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("copied_messages")
@pytest.mark.parametrize("name", SERVERS)
def test_servers_equal_flower(name):
    ours, make = SERVERS[name]
    for rounds in ROUNDS:
        model = fl.run(fl.Simulation(PROBLEM, ours), rounds).model.values[0]
        network = networks.FedNetwork([*clients()])
        make().run(network, rounds + (name == "Fed-LT"))  # whose mean is of the round before
        server = arrays.to_numpy(network.server().x)
        np.testing.assert_allclose(model, server, rtol=0, atol=1e-10)
