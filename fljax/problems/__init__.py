"""Objectives, stacked local data, synthetic problems and the optimum that serves as reference.

:mod:`~fljax.problems.problem` holds the data of all clients with a loss and a regularizer, and is
the file to read first; :mod:`~fljax.problems.model` is the same of networks,
:mod:`~fljax.problems.streams` of data that arrive in the run, and :mod:`~fljax.problems.gtv` of
models that a graph couples. Real data sets are in :mod:`fljax.data`.
"""

from fljax.problems.discrepancy import (
    label_histograms,
    label_overlap,
    local_gradients,
    mean_codes,
    prediction_discrepancy,
    reconstruction,
)
from fljax.problems.explanation import explained, explanation_error
from fljax.problems.gtv import Certificate, GTVMin, Solution
from fljax.problems.model import FunctionLoss, Model
from fljax.problems.objectives import (
    L1,
    ElasticNet,
    Huber,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    Loss,
    NoRegularizer,
    Regularizer,
    Softmax,
    SquaredL2,
)
from fljax.problems.pooled_problem import from_pool
from fljax.problems.population_problem import from_population
from fljax.problems.problem import Problem, Reading, from_clients
from fljax.problems.sequences import TokenCrossEntropy
from fljax.problems.solvers import factorize, optimum, prox
from fljax.problems.synthetic import (
    ClusteredNetwork,
    clustered_network,
    clustered_ridge,
    elastic_net,
    heterogeneous_softmax,
    huber,
    least_absolute_deviation,
    least_squares,
    linear,
    logistic,
    ridge,
    softmax,
)
from fljax.problems.tasks import Tasks, group_share, random_clusters
from fljax.problems.validation import (
    Diagnosis,
    Validated,
    diagnose,
    jittered,
    train,
    validate,
    with_ridge_samples,
)
from fljax.problems.variation import (
    Absolute,
    Blocks,
    Mixture,
    Norm,
    NormPenalty,
    Penalty,
    PNorm,
    SquaredNorm,
)
from fljax.problems.vertical import vertical, vertical_consensus

__all__ = [
    "L1",
    "Absolute",
    "Blocks",
    "Certificate",
    "ClusteredNetwork",
    "Diagnosis",
    "ElasticNet",
    "FunctionLoss",
    "GTVMin",
    "Huber",
    "LeastAbsoluteDeviation",
    "LeastSquares",
    "Logistic",
    "Loss",
    "Mixture",
    "Model",
    "NoRegularizer",
    "Norm",
    "NormPenalty",
    "PNorm",
    "Penalty",
    "Problem",
    "Reading",
    "Regularizer",
    "Softmax",
    "Solution",
    "SquaredL2",
    "SquaredNorm",
    "Tasks",
    "TokenCrossEntropy",
    "Validated",
    "clustered_network",
    "clustered_ridge",
    "diagnose",
    "elastic_net",
    "explained",
    "explanation_error",
    "factorize",
    "from_clients",
    "from_pool",
    "from_population",
    "group_share",
    "heterogeneous_softmax",
    "huber",
    "jittered",
    "label_histograms",
    "label_overlap",
    "least_absolute_deviation",
    "least_squares",
    "linear",
    "local_gradients",
    "logistic",
    "mean_codes",
    "optimum",
    "prediction_discrepancy",
    "prox",
    "random_clusters",
    "reconstruction",
    "ridge",
    "softmax",
    "train",
    "validate",
    "vertical",
    "vertical_consensus",
    "with_ridge_samples",
]
