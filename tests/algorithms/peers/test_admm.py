"""Networked ADMM: streams, absences and late messages are refused."""

import pytest

from fljax.algorithms import NetworkedADMM
from fljax.link import Fixed
from fljax.participation.patterns import Bernoulli
from tests.support.online_world import FIXED, RING, short_run


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: short_run(NetworkedADMM(1.0), network=RING),
            (
                r"ADMM needs all data at once and cannot learn from a stream\. "
                r"These can: .*Choco-SGD, "
            ),
        ),
        (
            lambda: short_run(
                NetworkedADMM(1.0), FIXED, network=RING, participation=Bernoulli(0.5)
            ),
            (
                r"ADMM has no rule for absent clients; leave out participation=\. "
                r"These can: Consensus, "
            ),
        ),
        (
            lambda: short_run(NetworkedADMM(1.0), FIXED, network=RING, delays=Fixed(1)),
            r"ADMM has no rule for late messages; leave out delays=\. These can: Consensus, ",
        ),
    ],
)
def test_streams_absences_and_late_messages_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
