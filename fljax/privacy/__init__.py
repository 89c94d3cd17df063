"""Privacy budgets and mechanisms, and the accounting of their privacy loss."""

from fljax import _renamed
from fljax.privacy import accounting, matrices
from fljax.privacy.central import AdaptiveClip, CentralGaussian
from fljax.privacy.coverage import not_covered
from fljax.privacy.features import private_map, reconstruction_error
from fljax.privacy.funnel import (
    FunnelPoint,
    GaussianFunnel,
    Tradeoff,
    joint_table,
    mutual_information,
    privacy_funnel,
    quantized,
)
from fljax.privacy.gradients import NoisyGradients
from fljax.privacy.ledger import events, spent
from fljax.privacy.notions import (
    NEIGHBORS,
    ZCDP,
    ApproximateDP,
    DiscreteZCDP,
    Gap,
    Neighbors,
    Notion,
    PureDP,
)
from fljax.privacy.output import gaussian_release, laplace_release
from fljax.privacy.promises import assumptions

__all__ = [
    "NEIGHBORS",
    "ZCDP",
    "AdaptiveClip",
    "ApproximateDP",
    "CentralGaussian",
    "DiscreteZCDP",
    "FunnelPoint",
    "Gap",
    "GaussianFunnel",
    "Neighbors",
    "NoisyGradients",
    "Notion",
    "PureDP",
    "Tradeoff",
    "accounting",
    "assumptions",
    "events",
    "gaussian_release",
    "joint_table",
    "laplace_release",
    "matrices",
    "mutual_information",
    "not_covered",
    "privacy_funnel",
    "private_map",
    "quantized",
    "reconstruction_error",
    "spent",
]

__getattr__ = _renamed.lookup("fljax.privacy")
