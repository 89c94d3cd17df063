"""What clients do in a round, as a clock needs to know it before the round."""

from typing import Any

import jax

from fljax.clock.device_model import Work
from fljax.link.compression import WORD
from fljax.simulation.compatibility import Parts


def work_of(simulation: Parts, problem: Any) -> Work:
    """The work of all clients, from the round's data."""
    algorithm = simulation.algorithm
    # Without the barrier XLA shares these counts with the step and orders its sums otherwise.
    separate = jax.tree.map(jax.lax.optimization_barrier, problem)
    steps, samples = algorithm.work(separate)
    # Where these differ from round to round only clocks are allowed that count afterwards.
    sent, received = algorithm.exchanged(problem) or (0, 0)
    compression = simulation.compression
    bits_up = WORD * sent if compression is None else compression.bits(sent)
    bits_down = WORD * received
    if getattr(problem, "state_policy", None) == "averaged":  # running statistics, both ways
        numbers = sum(leaf.size for leaf in jax.tree.leaves(problem.initial_state()))
        bits_up += WORD * numbers
        bits_down += WORD * numbers * algorithm.common_models
    gradients = algorithm.gradients_per_step(separate)
    return Work(steps, samples, float(bits_up), float(bits_down), gradients)
