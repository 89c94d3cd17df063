"""An instance of every privacy mechanism of the library."""

from fljax import privacy

MECHANISMS = [
    privacy.ZCDP(1.0),
    privacy.DiscreteZCDP(1.0),
    privacy.ApproximateDP(1.0, 1e-5),
    privacy.PureDP(1.0),
    privacy.CentralGaussian(1.0),
    privacy.NoisyGradients(1.0),
]
