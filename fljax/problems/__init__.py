"""Objectives, stacked local data, synthetic problems and the optimum they are judged against."""

from fljax.problems.objectives import (
    L1,
    ElasticNet,
    Huber,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    Loss,
    NoRegulariser,
    Regulariser,
    Softmax,
    SquaredL2,
)
from fljax.problems.problem import Problem, from_clients
from fljax.problems.solvers import factorise, optimum, prox
from fljax.problems.synthetic import (
    ClusteredNetwork,
    clustered_network,
    clustered_ridge,
    elastic_net,
    huber,
    least_absolute_deviation,
    least_squares,
    linear,
    logistic,
    ridge,
    softmax,
)
from fljax.problems.tasks import Tasks, group_share, random_clusters

__all__ = [
    "L1",
    "ClusteredNetwork",
    "ElasticNet",
    "Huber",
    "LeastAbsoluteDeviation",
    "LeastSquares",
    "Logistic",
    "Loss",
    "NoRegulariser",
    "Problem",
    "Regulariser",
    "Softmax",
    "SquaredL2",
    "Tasks",
    "clustered_network",
    "clustered_ridge",
    "elastic_net",
    "factorise",
    "from_clients",
    "group_share",
    "huber",
    "least_absolute_deviation",
    "least_squares",
    "linear",
    "logistic",
    "optimum",
    "prox",
    "random_clusters",
    "ridge",
    "softmax",
]
