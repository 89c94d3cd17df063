r"""Feature shift between clients with the same meaning of labels: rotated images, added noise.

Both functions take clients ``[(features [D_k, ...], targets), ...]``, from any partition, and
return such clients with the same targets; a test set is changed in the same way.
"""

import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax.problems.problem import ClientData

Clients = list[tuple[np.ndarray, np.ndarray]]


@checked
def rotated(clients: ClientData, degrees: object) -> Clients:
    """Rotate each client's images counterclockwise by the client's own angle.

    Clusters of clients with the same angle follow Ghosh et al., "An efficient framework for
    clustered federated learning", NeurIPS 2020 (0, 90, 180 and 270 degrees):
    ``degrees=90.0 * cluster``. Multiples of 90 degrees permute pixels; other angles use linear
    interpolation, in the type of the images, with zeros beyond the border.

    Args:
      clients: images ``[D_k, height, width]``, or ``[D_k, height, width, channels]``.
      degrees: one angle, or one per client.

    Raises:
      ValueError: no clients, features that are not images, another number of angles; images that
        are not square, at an odd multiple of 90 degrees.

    Example:
      >>> import fljax as fl, numpy as np
      >>> image = np.array([[[1, 2], [3, 4]]])
      >>> [x.tolist() for x, _ in rotated([(image, np.ones(1))] * 2, [0, 90])]
      [[[[1, 2], [3, 4]]], [[[2, 4], [1, 3]]]]
    """
    pairs = _pairs(clients)
    angles = _of_each("degrees", degrees, len(clients))
    turned = []
    for k, ((x, y), angle) in enumerate(zip(pairs, angles, strict=True)):
        if x.ndim not in (3, 4):
            raise ValueError(
                f"client {k} must have images [n, height, width] or [n, height, width, channels] "
                f"to be turned, got {checks.shown(x)}."
            )
        turned.append((_rotated(x, angle, k), y))
    return turned


def _rotated(images: np.ndarray, degrees: float, client: int) -> np.ndarray:
    quarters, rest = divmod(degrees, 90)
    if rest:
        import scipy.ndimage

        return scipy.ndimage.rotate(images, degrees, axes=(1, 2), reshape=False, order=1)
    if quarters % 2 and images.shape[1] != images.shape[2]:
        raise ValueError(
            f"client {client} has images of {images.shape[1]} x {images.shape[2]} pixels, which a "
            f"turn by {degrees:g} degrees makes {images.shape[2]} x {images.shape[1]}; crop them "
            "to squares first."
        )
    return np.ascontiguousarray(np.rot90(images, int(quarters), axes=(1, 2)))


@checked
def noisy(clients: ClientData, deviation: object, seed: int) -> Clients:
    r"""Add normal noise to each client's features, with the client's own standard deviation.

    Levels that increase with the client's index, variances :math:`\sigma k/K` for clients
    :math:`k=1,\dots,K`, are the feature skew of Li et al., "Federated learning on non-IID data
    silos: an experimental study", ICDE 2022:
    ``deviation=np.sqrt(sigma * np.arange(1, K + 1) / K)``.

    Args:
      clients: features of any shape; integers become floats, and nothing is clipped.
      deviation: the noise's standard deviation, >= 0, in the features' unit: one number, or one per
        client. A client with zero keeps its features.
      seed: seed of the draw; a client's noise depends on its number and not on the other clients.

    Raises:
      ValueError: no clients, another number of deviations, negative ones.

    Example:
      >>> import fljax as fl, numpy as np
      >>> clean = [(np.zeros((500, 2)), np.zeros(500))] * 3
      >>> [round(float(x.std()), 1) for x, _ in noisy(clean, [0.0, 1.0, 2.0], seed=0)]
      [0.0, 1.0, 2.0]
    """
    checks.count("seed", seed, at_least=0)
    checks.nonnegative("deviation", deviation)
    pairs = _pairs(clients)
    levels = _of_each("deviation", deviation, len(clients))
    changed = []
    for k, ((x, y), level) in enumerate(zip(pairs, levels, strict=True)):
        x = x if x.dtype.kind == "f" else x.astype(float_dtype())
        noise = np.random.default_rng([seed, k]).normal(size=x.shape)
        changed.append((x + (level * noise).astype(x.dtype), y))
    return changed


def _pairs(clients: ClientData) -> Clients:
    """Arrays, one target of each sample."""
    if not len(clients):
        raise ValueError("clients must hold at least one client, got none.")
    pairs = []
    for k, (x, y) in enumerate(clients):
        x = checks.array(f"features of client {k}", x)
        y = checks.array(f"targets of client {k}", y)
        if not np.ndim(x) or np.shape(x)[:1] != np.shape(y)[:1]:
            raise ValueError(
                f"client {k} must have features [n, ...] and a target of each, got shapes "
                f"{np.shape(x)} and {np.shape(y)}."
            )
        pairs.append((np.asarray(x), np.asarray(y)))
    return pairs


def _of_each(name: str, value: object, clients: int) -> list[float]:
    checks.interval(name, value)
    checks.per_client(name, value, clients)
    return np.broadcast_to(np.asarray(value, np.float64), (clients,)).tolist()
