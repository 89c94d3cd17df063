"""What one exercise or one figure of one document needs: kept and tested, with a lower promise.

Names and arguments here may change between minor versions. Nothing else in the package imports from
this folder; what several figures or guides use is in the folder of its subject. Read
:mod:`~fljax.contrib.funnel` first.
"""

import sys

from fljax._core.nearest_names import suggest_names
from fljax.contrib.attack_reach import reach
from fljax.contrib.exchange import agreed_laplace, log_ratio, public_number, shared_number
from fljax.contrib.features import private_map, reconstruction_error
from fljax.contrib.funnel import (
    FunnelPoint,
    GaussianFunnel,
    Tradeoff,
    joint_table,
    mutual_information,
    privacy_funnel,
    quantized,
)
from fljax.contrib.graph_learning import edge_budget, project_regular, regular_similarity
from fljax.contrib.input_noise import noisy_inputs, randomized_labels, replaced_features, subsample
from fljax.contrib.network_privacy import SharingNoise, label_sensitivity, sharing_noise
from fljax.contrib.queries import QueriedLoss, matched_client, queried_loss
from fljax.contrib.regions import RegionErrors, gaussian_region, region_errors
from fljax.contrib.robustness import median_residual, robustness_ratio
from fljax.contrib.sensitivity import (
    EstimationError,
    LabelShiftBound,
    estimation_error,
    label_shift,
    label_shift_bound,
)
from fljax.contrib.trained import Attacker, TrainedAttack, most_accurate, trained_attack
from fljax.contrib.uncertainty import Interval, Prediction, predict

__all__ = [
    "Attacker",
    "EstimationError",
    "FunnelPoint",
    "GaussianFunnel",
    "Interval",
    "LabelShiftBound",
    "Prediction",
    "QueriedLoss",
    "RegionErrors",
    "SharingNoise",
    "Tradeoff",
    "TrainedAttack",
    "agreed_laplace",
    "edge_budget",
    "estimation_error",
    "gaussian_region",
    "joint_table",
    "label_sensitivity",
    "label_shift",
    "label_shift_bound",
    "log_ratio",
    "matched_client",
    "median_residual",
    "most_accurate",
    "mutual_information",
    "noisy_inputs",
    "predict",
    "privacy_funnel",
    "private_map",
    "project_regular",
    "public_number",
    "quantized",
    "queried_loss",
    "randomized_labels",
    "reach",
    "reconstruction_error",
    "region_errors",
    "regular_similarity",
    "replaced_features",
    "robustness_ratio",
    "shared_number",
    "sharing_noise",
    "subsample",
    "trained_attack",
]

suggest_names(sys.modules[__name__])
