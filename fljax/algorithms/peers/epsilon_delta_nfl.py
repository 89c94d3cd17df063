r"""zCDP-NFL under conventional :math:`(\epsilon,\delta)`-DP rules (Gauthier 2024, section 3.4)."""

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.peers.zcdp_nfl import ZCDPNFL


@algorithm(
    "(eps,delta)DP-NFL",
    ("gauthier2023nfl", "gauthier2024"),
    Needs(privacy=("message",), budget=("epsilon", "delta")),
)
@module
class EpsilonDeltaNFL(ZCDPNFL):
    r"""The comparator "identical to zCDP-NFL except" for its privacy rules.

    Updates, sensitivity, initial values and communication are as in :class:`ZCDPNFL`; only
    :class:`~fljax.privacy.ApproximateDP` is accepted, whose ``rule`` and ``calibration`` are the
    choices that the source leaves open. Both algorithms draw Gaussian noise, so they differ only in
    the accounting and in the allocation of the budget over the rounds.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2).clipped(1.0)
      >>> simulation = fl.Simulation(
      ...     problem,
      ...     fl.algorithms.EpsilonDeltaNFL(penalty=1.0, step_size=0.5),
      ...     network=fl.graphs.ring(6),
      ...     privacy=fl.privacy.ApproximateDP(2.0, 1e-3, gradient_bound=1.0),
      ... )
      >>> fl.run(simulation, rounds=10).client_epsilon.values.round(3).tolist()
      [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]

    Reference:
      Gauthier et al. 2023 (zCDP-NFL), section 5; Gauthier 2024, section 3.4.
    """
