"""Noise from a secret that results do not hold.

Whoever knows the scenario and a run's key can draw its noise again and subtract it. The key of a
study follows from ``root`` and the seeds, numbers of 32 bits that are recorded with the results;
that of :func:`fljax.run` is 0 by default. A *noise seed* is folded into the key of everything that
is drawn during a run (noise, participants, delays, losses), and is never recorded: results state
only that there was one.
"""

import hashlib
import os

import jax
import numpy as np
from jaxtyping import Array

from fljax._core import checks

#: Asks for a noise seed from the system's entropy that is forgotten after the run.
ENTROPY = "entropy"

#: Smaller noise seeds could be found by trying all of them.
LEAST_SEED = 2**63

NoiseSeed = int | str | None


def secret_of(noise_seed: NoiseSeed, stored: bool = False) -> str:
    """The secret that is folded into keys, empty without a noise seed.

    Args:
      noise_seed: an integer >= 2**63, ``"entropy"``, or ``None``.
      stored: whether the run is kept in a store, from which it can be resumed.

    Raises:
      TypeError, ValueError: another value; entropy where the noise must be drawn again, by another
        process or after an interruption.
    """
    if noise_seed is None:
        return ""
    remedy = "take secrets.randbits(128), and keep it to yourself"
    if isinstance(noise_seed, str):
        if noise_seed != ENTROPY:
            raise ValueError(
                f'noise_seed must be an integer or "entropy", got {noise_seed!r}; {remedy}.'
            )
        if stored:
            raise ValueError(
                'noise_seed="entropy" is forgotten after the run, and a store resumes runs, whose '
                f"noise must then be the same; for an integer {remedy}."
            )
        if jax.process_count() > 1:
            raise ValueError(
                'noise_seed="entropy" is drawn by each process for itself, and processes that '
                f"share runs need the same noise; for an integer {remedy}."
            )
        return os.urandom(32).hex()
    if not checks.is_whole(noise_seed):
        raise TypeError(
            f'noise_seed must be an integer or "entropy", got {checks.shown(noise_seed)}; {remedy}.'
        )
    if int(noise_seed) < LEAST_SEED:
        raise ValueError(
            f"noise_seed must be at least 2**63, so that nobody finds it by trying, got a smaller "
            f"integer; {remedy}."
        )
    return f"{int(noise_seed):x}"


def origin_of(noise_seed: NoiseSeed) -> str:
    """What results record of a noise seed: ``"entropy"``, ``"given"`` or nothing."""
    if noise_seed is None:
        return ""
    return ENTROPY if noise_seed == ENTROPY else "given"


def fingerprint_of(secret: str) -> str:
    """A digest by which a store recognizes a secret that it does not hold."""
    return hashlib.sha256(f"fljax noise seed fingerprint {secret}".encode()).hexdigest()[:16]


def with_secret(key: Array, secret: str) -> Array:
    """A key that depends on the secret as well."""
    digest = hashlib.sha256(f"fljax noise seed {secret}".encode()).digest()
    for word in np.frombuffer(digest, "<u4").astype(np.uint32):
        key = jax.random.fold_in(key, word)
    return key
