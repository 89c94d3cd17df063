"""What a run computes before its first round, and what it carries from round to round."""

from typing import Any, NamedTuple

from jaxtyping import Array, PyTree

from fljax.algorithms.network_states import States
from fljax.clock.device_model import Work
from fljax.link import Memory, Traffic
from fljax.problems.gradient_norms import GradientNormBound
from fljax.problems.streams import FeatureMoments


class Carry(NamedTuple):
    """State carried from round to round in addition to the algorithm's own."""

    state: PyTree
    spent: dict[str, Array]  # [2, K] each: the privacy ledger so far, and its rounding error
    gradient_norm: Array  # []  largest per-sample gradient so far
    seen: GradientNormBound | None  # gradient norms at the models where they were evaluated last
    rounding: Array  # []  how far rounding may move releases, relative to their sensitivity, so far
    release_rho: Array  # []  largest zCDP parameter of a single release so far
    clipped: Array  # []  largest share of masked numbers beyond the masks' range, so far
    diverged: Array  # []  first round with a non-finite model, 0 if none
    traffic: Traffic  # since the last record
    stream: PyTree  # state of the data stream, if data arrive one by one
    availability: PyTree  # state of the participation pattern
    memory: Memory  # state of the link
    quantities: dict[str, Array]  # [K] each: of the last round, those that a metric needs
    networks: States  # of the clients' networks, such as running means
    clock: Any = ()  # ClockState, if there is a clock


class Prepared(NamedTuple):
    """Quantities that are computed once, before the first round."""

    problem: Any  # Problem or Stream
    network: Any  # as rounds see it: None where clients send to a server only
    optimum: Array | None
    plan: PyTree
    receivers: Array | None  # None where the network changes
    moments: FeatureMoments | None  # of a stream's features, see `Stream.moments`
    work: Work | None = (
        None  # of clients, if there is a clock and the data are the same in all rounds
    )
