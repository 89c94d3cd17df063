"""Participation: availability of clients, arrival of data, selection of clients by the server.

A *pattern* determines which clients are active in each round (:mod:`~fljax.participation.patterns`,
which is the file to read first). The same patterns serve as the clients' availability
(``Simulation(participation=...)``) and as the arrival of their data (``fl.streams``); a client is
*available* where it is active in both, since a client without new data has nothing to contribute
(Gauthier 2024, section 4.4.1). A *selector* chooses the clients that take part
(:mod:`~fljax.participation.selectors`). All draws have random keys of their own
(:data:`fljax._core.prng.PURPOSES`), so that all algorithms have the same participants under the
same seed. The random subsets themselves are drawn by :mod:`fljax._core.random_subsets`.
"""

from fljax.participation.patterns import (
    Always,
    Bernoulli,
    Bounded,
    Markov,
    Pattern,
    Periodic,
    Trace,
    TwoStates,
    Until,
    groups,
)
from fljax.participation.selectors import (
    ActiveSampling,
    ByLoss,
    Cyclic,
    Drawn,
    Everyone,
    Fraction,
    Law,
    Participants,
    PerServer,
    PowerOfChoice,
    Selector,
    Subset,
    Unequal,
    everyone_or,
)

__all__ = [
    "ActiveSampling",
    "Always",
    "Bernoulli",
    "Bounded",
    "ByLoss",
    "Cyclic",
    "Drawn",
    "Everyone",
    "Fraction",
    "Law",
    "Markov",
    "Participants",
    "Pattern",
    "PerServer",
    "Periodic",
    "PowerOfChoice",
    "Selector",
    "Subset",
    "Trace",
    "TwoStates",
    "Unequal",
    "Until",
    "everyone_or",
    "groups",
]
