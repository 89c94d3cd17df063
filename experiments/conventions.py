"""The meaning of the sources' words in numbers: one table for all documents.

A claim is measured where its source draws it: in dB, as a factor on a linear axis, or in percentage
points of an error or accuracy. A factor is the same range as its decibels.
"""

import math
from typing import NamedTuple

from experiments.figure import INFINITE


class Meaning(NamedTuple):
    """A word on one axis: two of a claim's fields, in their order.

    Attributes:
      accept: the range in which the whole interval must lie.
      convention: how the word became that range.
    """

    accept: tuple[float, float]
    convention: str

    def when(self, where: str) -> "Meaning":
        """The same meaning, restricted to the given circumstances."""
        return Meaning(self.accept, f"{self.convention}; {where}")


class Word(NamedTuple):
    """Words that mean the same, on each axis.

    Attributes:
      words: of the sources; conventions call them by the first.
      db: of a ratio of squared errors, dB.
      factor: of the same ratio, as it is.
      points: of a difference of rates, percentage points.
    """

    words: tuple[str, ...]
    db: Meaning
    factor: Meaning
    points: Meaning


def _word(*words: str, db: tuple[float, float], points: tuple[float, float]) -> Word:
    low, high = (10 ** (end / 10) if math.isfinite(end) else end for end in db)

    def meaning(accept: tuple[float, float], unit: str) -> Meaning:
        return Meaning(accept, f"“{words[0]}”: {_range(*accept)}{unit}")

    return Word(
        words,
        meaning(db, " dB"),
        meaning((low, high), " times"),
        meaning(points, " percentage points"),
    )


def _range(low: float, high: float) -> str:
    if math.isinf(high):
        return f"more than {low:.3g}"
    return f"{low:.3g} to {high:.3g}" if math.isfinite(low) else f"less than {high:.3g}"


#: Any difference, however small.
BETTER = _word("outperforms", "better", "more", db=(0, INFINITE), points=(0, INFINITE))

#: At least a factor of two.
SIGNIFICANTLY = _word(
    *("significantly", "notably", "drastically", "markedly", "far"),
    db=(3, INFINITE),
    points=(5, INFINITE),
)

#: There, and not significant.
SLIGHTLY = _word("slightly", db=(0, 3), points=(0, 5))

#: Within a fourth of it.
CLOSE = _word("close", "similar", "comparable", "tracks", db=(-1, 1), points=(-1, 1))

#: At most a fourth more; a better result than claimed is accepted.
LITTLE = _word(
    *("little advantage", "very little", "not much", "does not hinder"),
    db=(-INFINITE, 1),
    points=(-INFINITE, 1),
)

#: Within an eighth of it.
SAME = _word(
    *("the same", "near-identical", "just as well", "hardly changes"),
    db=(-0.5, 0.5),
    points=(-0.5, 0.5),
)

#: Without a breakdown: no step of a disturbance makes the error significantly larger.
GRACEFULLY = Meaning((-INFINITE, 3), "“gracefully”: less than 3 dB, which is significant")

#: Every word, for the gallery.
WORDS = (BETTER, SIGNIFICANTLY, SLIGHTLY, CLOSE, LITTLE, SAME)

#: A range of a share of runs, per cent.
MOST = Meaning((50, 100), "“most”: more than half of the runs")


def about(number: float) -> Meaning:
    """A number that a source gives roughly: within a fourth of it."""
    low, high = sorted((0.75 * number, 1.25 * number))
    return Meaning((low, high), f"“about” {number:g}: within a fourth of it")


def about_points(rate: float) -> Meaning:
    """A rate in per cent that a source gives: within 5 percentage points, which are significant."""
    low, high = max(rate - 5, 0), min(rate + 5, 100)
    return Meaning((low, high), f"“about” {rate:g} %: within 5 percentage points of it")


def order(exponent: float) -> Meaning:
    """A rate O(x^exponent) that is said to be attained: the slope of the logarithms, within 0.2."""
    return Meaning(
        (exponent - 0.2, exponent + 0.2), f"slope of the logarithms: within 0.2 of {exponent:g}"
    )


def at_most_order(exponent: float) -> Meaning:
    """A bound O(x^exponent) for small x, which anything that falls faster satisfies."""
    return Meaning(
        (exponent - 0.2, INFINITE), f"slope of the logarithms: {exponent:g} or more, up to 0.2"
    )


def orders(count: int) -> Meaning:
    """So many orders of magnitude more: the logarithm rounds to this number or a larger one."""
    least = 10 ** (count - 0.5)
    return Meaning(
        (least, INFINITE),
        f"“{count} orders of magnitude”: the decimal logarithm rounds to {count} or more",
    )
