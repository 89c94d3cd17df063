"""Privacy budgets and mechanisms, and the accounting of their privacy loss.

:mod:`~fljax.privacy.mechanism` says what a mechanism declares, and is the file to read first;
:mod:`~fljax.privacy.notions` are budgets for the messages of clients;
:mod:`~fljax.privacy.gradients` and :mod:`~fljax.privacy.central` are noise on gradients and at a
trusted server; :mod:`~fljax.privacy.premises` lists what each theorem assumes and where that is
tested. Where noise is added to a message is :mod:`fljax.link.outgoing`, and attacks on the promises
are :mod:`fljax.audit`.
"""

from fljax.privacy import accounting, matrices, notions
from fljax.privacy.central import AdaptiveClip, CentralGaussian
from fljax.privacy.coverage import not_covered
from fljax.privacy.gradients import NoisyGradients
from fljax.privacy.ledger import events, spent
from fljax.privacy.mechanism import GradientMechanism, Mechanism, ServerMechanism
from fljax.privacy.notions import *  # noqa: F403  (the list is there)
from fljax.privacy.output import gaussian_release, laplace_release
from fljax.privacy.promises import assumptions

__all__ = [
    "AdaptiveClip",
    "CentralGaussian",
    "GradientMechanism",
    "Mechanism",
    "NoisyGradients",
    "ServerMechanism",
    "accounting",
    "assumptions",
    "events",
    "gaussian_release",
    "laplace_release",
    "matrices",
    "not_covered",
    "spent",
]
__all__ += notions.__all__
