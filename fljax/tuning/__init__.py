"""Choosing hyperparameters, and comparing methods that were tuned by the same rule.

:mod:`~fljax.tuning.search` is ``fl.tune`` and the file to read first;
:mod:`~fljax.tuning.comparison` (``fl.compare``) tunes several methods and evaluates them on other
seeds; :mod:`~fljax.tuning.private_selection` counts what choosing costs of a privacy budget;
:mod:`~fljax.tuning.reporting` shows results and comparisons in a browser. The runs themselves are
made by :mod:`fljax.study`.
"""

from fljax.tuning.comparison import (
    Comparison,
    compare,
)
from fljax.tuning.private_selection import (
    PrivateTuning,
)
from fljax.tuning.reporting import report
from fljax.tuning.search import (
    Tuned,
    tune,
)

__all__ = [
    "Comparison",
    "PrivateTuning",
    "Tuned",
    "compare",
    "report",
    "tune",
]
