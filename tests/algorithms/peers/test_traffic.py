"""Messages of peers: skipped rounds, meetings, several numbers in one."""

import numpy as np
import pytest

from fljax.algorithms import GTSAGA, KGT, LTADMM, SGP, ChocoSGD, GossipSGD, ProxSkip, Scaffnew
from fljax.link import TopK
from tests import cases
from tests.cases import CLIENTS, DIM, EDGES, ROUNDS
from tests.support.peer_runs import ONE_WAY, peer_run


def sent(results, name="messages"):
    return np.diff(results[name].values, prepend=0)


@pytest.mark.slow
def test_a_skipped_round_sends_no_message():
    coins = np.array(cases.coins_of(0.4))
    assert 0 < coins.sum() < ROUNDS
    results = peer_run(ProxSkip(0.05, 0.4), ROUNDS)
    np.testing.assert_array_equal(sent(results), 2 * len(EDGES) * coins)
    results = peer_run(Scaffnew(0.05, 0.4), ROUNDS)
    np.testing.assert_array_equal(sent(results), 2 * CLIENTS * coins)
    np.testing.assert_array_equal(sent(results, "bits_up"), 32 * DIM * CLIENTS * coins)
    np.testing.assert_array_equal(sent(results, "bits_down"), 32 * DIM * CLIENTS * coins)


@pytest.mark.slow
def test_each_meeting_sends_one_message_each_way():
    results = peer_run(GossipSGD(0.05), ROUNDS)
    np.testing.assert_array_equal(sent(results), [2 * len(pairs) for pairs in cases.meetings_of()])


@pytest.mark.slow
def test_messages_in_one_direction_have_their_stated_length():
    results = peer_run(SGP(0.05, shares=ONE_WAY), 3)
    assert sent(results).tolist() == [6] * 3
    assert sent(results, "scalars").tolist() == [6 * (DIM + 1)] * 3
    results = peer_run(ChocoSGD(0.05, compression=TopK(1), consensus_step_size=0.4), 3)
    assert sent(results, "bits_up").tolist() == [2 * len(EDGES) * (32 + 2)] * 3
    for algorithm, numbers in ((GTSAGA(0.05), 2), (LTADMM(0.9, 0.05, pull=0.1), 1), (KGT(0.05), 2)):
        assert (
            sent(peer_run(algorithm, 2), "scalars").tolist() == [2 * len(EDGES) * numbers * DIM] * 2
        )
