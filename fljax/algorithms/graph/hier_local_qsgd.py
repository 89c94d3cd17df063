"""Hierarchical local SGD with quantization on every level (Liu et al. 2023)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import algorithm
from fljax.algorithms.graph.hierfavg import HIERARCHICAL, HierFAVG
from fljax.graphs.federation import Network
from fljax.link import Compressor
from fljax.problems import Problem
from fljax.problems.streams import Stream


@algorithm(
    "Hier-Local-QSGD",
    ("liu2023", "liu2020"),
    dataclasses.replace(HIERARCHICAL, privacy=("server",), compressed=False, masked=False),
)
@module
class HierLocalQSGD(HierFAVG):
    r"""HierFAVG whose clients and servers send compressed differences up the tree.

    With the compressors :math:`Q_1` of clients and :math:`Q_2` of edges, in the notation of
    :class:`HierFAVG`:

    .. math::

        w_l^{(n)} &= w_l^{(n-1)}+\sum_{k\in\mathcal C_l}\frac{q_k}{q_l}
            Q_1\big(w_k-w_l^{(n-1)}\big) \\
        w_m^{(n)} &= \sum_{l\in\mathcal C_m}\frac{q_l}{q_m}
            \big(v_l+Q_2(w_l^{(n)}-v_l)\big),\qquad \kappa_2\mid n

    and so on above, where :math:`v_l` is the last model that server :math:`l` got from above: the
    cloud's last one where all take part, as in the paper. Models are sent down as they are. The
    paper quantizes without bias, as :class:`~fljax.link.Quantize` does; nothing corrects the error
    of a compressor that is biased.

    Args:
      compressors_up: :math:`Q_1,Q_2,\dots`, one compressor for all levels, or one for each level of
        servers, the edges' first (``None``: no compression there).

    The other arguments are those of :class:`HierFAVG`.

    Guarantees:
      Those of :class:`HierFAVG` for noise of the edges, which clip what arrives and compress what
      they have perturbed. It has no form with noise of clients.

    Raises:
      ValueError: another number of compressors than levels, one that does not fit the models; as
        for :class:`HierFAVG`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=12, samples=20, dim=3),
      ...     algorithm=fl.algorithms.HierLocalQSGD(
      ...         0.05,
      ...         local_steps=5,
      ...         intervals=4,
      ...         compressors_up=(fl.link.Quantize(4), fl.link.Quantize(16)),
      ...     ),
      ...     network=fl.graphs.tree([3, 4]),
      ...     metrics=["normalized_error", "level_bits"],
      ... )
      >>> results = fl.run(simulation, rounds=40)
      >>> bool(results.normalized_error[-1] < 0.2)
      True
      >>> [int(up) for up in results.level_bits[-1].isel(direction=0)]
      [21120, 2400]

    Reference:
      Liu et al. 2023, Hier-Local-QSGD; Liu et al. 2020.
    """

    compressors_up: Any = field(kw_only=True)  # Compressor, or a tuple of them

    def validate(self) -> None:
        super().validate()
        given = self.compressors_up
        for compressor in given if isinstance(given, tuple) else (given,):
            if compressor is not None or not isinstance(given, tuple):
                checks.kind("compressors_up", compressor, Compressor)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        levels = getattr(network, "levels", 1)
        if isinstance(self.compressors_up, tuple) and len(self.compressors_up) != levels:
            raise ValueError(
                f"compressors_up must be one compressor or one for each of the {levels} levels of "
                f"servers, the edges' first, got {len(self.compressors_up)}."
            )
        super().check(problem, network)

    def compressors(self, levels: int) -> Sequence[Compressor | None]:
        """Return how messages to the servers of each level are compressed, from clients up."""
        given = self.compressors_up
        return given if isinstance(given, tuple) else (given,) * levels
