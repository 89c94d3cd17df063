"""Devices with published speeds, and how long a gradient takes on a device of a known speed."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.problems import Problem


class Profile(NamedTuple):
    """A device whose speed and power were published."""

    flops_per_second: float
    watts: float | None
    source: str


#: Operations of a training step of LEAF's convolutional network for FEMNIST on ten images: three
#: times those of its products forward (two convolutions of 5 x 5, 32 and 64 channels, pooled after
#: each, and layers of 2048 and 62 units).
_FEMNIST_STEP = 10 * 3 * 34_423_808

#: Phones measured by FLASH: the mean seconds of that step, as its program has them.
_FLASH = "Yang et al. 2021 (FLASH): {:g} s for a step of LEAF's FEMNIST network on ten images"

#: Devices by name, each with the source of its numbers; ``watts`` is ``None`` where that has none.
#: Speeds are of dense linear algebra, of which small models reach a part in training
#: (``utilization`` of :func:`seconds_per_sample`); those of the three classes of phones were
#: reached in training.
PROFILES = {
    **{
        f"phone-{name}": Profile(_FEMNIST_STEP / seconds, None, _FLASH.format(seconds))
        for name, seconds in (("slow", 1.642), ("medium", 0.588), ("fast", 0.179))
    },
    "laptop-apple-m1": Profile(
        2.6e12, None, "Hugging Face, huggingface.js, hardware.ts: approximate peak of its GPU"
    ),
    "raspberry-pi-4": Profile(8e9, 15.0, "Feiereisen 2022: Linpack in double precision, 64 bit"),
    "nvidia-a100": Profile(19.5e12, 400.0, "NVIDIA 2021, data sheet: peak in single precision"),
}


@checked
def seconds_per_sample(problem: Problem, device: float | str, *, utilization: float = 1.0) -> float:
    """Return how long the gradient of one sample takes on a device, for
    :class:`~fljax.clock.Devices`.

    The operations are counted in the compiled program of all clients' gradients.

    Args:
      problem: whose gradient it is.
      device: operations per second, or the name of one of :data:`PROFILES`.
      utilization: which share of the device's speed is reached, in (0, 1].

    Raises:
      ValueError: an unknown device, a speed that is not positive, a share outside (0, 1].

    Example:
      A linear model of 100 parameters: two products of 100 numbers each, 400 operations.

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=10, samples=50, dim=100)
      >>> 350e-9 < seconds_per_sample(problem, 1e9) < 600e-9
      True
    """
    if isinstance(device, str):
        checks.choice("device", device, PROFILES)
        device = PROFILES[device].flops_per_second
    checks.positive("device", device, "It is in operations per second.")
    checks.interval("utilization", utilization, above=0, at_most=1)
    models = jax.ShapeDtypeStruct((problem.clients, problem.dim), problem.dtype)
    counted = jax.jit(lambda p, w: p.gradient(w)).lower(problem, models).compile()
    costs: Any = counted.cost_analysis()
    samples = int(np.sum(np.asarray(problem.weights) > 0))
    return float(costs["flops"]) / samples / float(device) / utilization
