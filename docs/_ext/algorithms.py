"""A page an algorithm, and one table of all of them, sorted and filtered in the browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uses
from modules import documented
from pages import heading, put, table
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import fljax as fl
from fljax.algorithms import REGISTRY, Algorithm
from fljax.algorithms.algorithm import SYNONYMS
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.simulation.compatibility import source

#: The communication of an algorithm by its folder, in the order of the table.
RUNS_ON = {None: "one server", Federation: "servers on a graph", Graph: "peers"}
WINGS = ("server", "personalized", "graph", "peers")

#: Besides the personalized wing, families that end with models of each client or cluster.
PERSONAL = (
    *("PGFL", "ClusterFL", "NPFL", "FedGD", "FedSGD, networked", "FedRelax"),
    "Model-agnostic FedRelax",
)


class Trait(NamedTuple):
    """A column of the table."""

    name: str
    why: str


TRAITS = (
    Trait("streams", "learns from data that arrive during the run"),
    Trait("private", "runs under a privacy budget"),
    Trait("absent", "clients may be absent in some rounds"),
    Trait("late", "messages may arrive late, in a later round"),
    Trait("robust", "a robust aggregator may replace the mean"),
    Trait("compressed", "messages may be compressed by any compressor"),
    Trait("changing", "the graph may change from round to round"),
    Trait("directed", "the graph may be directed"),
    Trait("personalized", "each client or cluster gets a model of its own"),
    Trait("networks", "trains neural networks, as any differentiable model"),
)


HEAD = """\
:hide-toc:

Algorithms
==========

{count} algorithms, each tested against a plain NumPy loop written from its paper. Click on a column
heading to sort. To filter, type a word or tick the properties that an algorithm must have:

{words}

"""


def wing(cls: type[Algorithm]) -> str:
    result = cls.__module__.split(".")[-2]
    if result not in WINGS:
        raise ExtensionError(f"{cls.label} is in no wing of {', '.join(WINGS)}: {cls.__module__}.")
    return result


def traits(cls: type[Algorithm]) -> dict[str, bool]:
    needs = cls.needs
    return {
        "streams": needs.data != "fixed",
        "private": bool(needs.privacy),
        "absent": needs.absent,
        "late": needs.late,
        "robust": needs.averages,
        "compressed": needs.compressed,
        "changing": needs.changing,
        "directed": needs.directed,
        "personalized": wing(cls) == "personalized" or cls.label.startswith(PERSONAL),
        "networks": not (needs.minimizer or needs.quadratic),
    }


def asks(cls: type[Algorithm]) -> Iterator[str]:
    """An algorithm's requirements, in sentences."""
    needs = cls.needs
    yield f"It runs on {RUNS_ON[needs.network]}."
    if needs.data == "stream":
        yield "It learns from a stream only."
    if needs.smooth:
        yield "It needs a smooth objective."
    if needs.quadratic:
        yield "It needs a quadratic objective."
    elif needs.minimizer:
        yield "It minimizes clients' objectives exactly."
    if needs.validation:
        yield "It needs validation data of each client."
    if needs.classes:
        yield "It needs classes: the loss is Softmax."
    if needs.representation:
        yield "It needs a network that says its representation, as fljax.models.headed does."


def ordered() -> list[type[Algorithm]]:
    return sorted(REGISTRY.values(), key=lambda cls: (WINGS.index(wing(cls)), cls.__module__))


def page(cls: type[Algorithm], figures: list[str]) -> str:
    has = traits(cls)
    copes = [trait for trait in TRAITS if has[trait.name]]
    lines = [
        heading(cls.label),
        ".. py:currentmodule:: fljax.algorithms\n",
        " ".join(asks(cls)) + "\n",
        *(f"- **{trait.name}**: {trait.why}" for trait in copes),
        "",
        documented(f"fljax.algorithms.{cls.__name__}", cls),
        heading("Figures", "-"),
    ]
    links = ", ".join(f":doc:`{name} </gallery/{name}>`" for name in figures)
    lines += [
        links or "No figure uses it yet.",
        "",
        heading("Cite", "-"),
        ".. code-block:: bibtex\n",
    ]
    lines += [f"   {line}" for line in fl.citation(cls).splitlines()]
    return "\n".join(lines) + "\n"


def synonyms() -> str:
    """Other names in the literature of some algorithms, or of their special cases."""
    names = (
        f"{name} is :class:`~fljax.algorithms.{REGISTRY[label].__name__}`"
        + (f" {how}" if how else "")
        for name, (label, how) in SYNONYMS.items()
    )
    return (
        "All algorithms can be run with lost links and with attackers. "
        f"Other names of some of them: {'; '.join(names)}."
    )


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "algorithms"
    folder.mkdir(exist_ok=True)
    used = uses.figures_of_algorithms()
    rows = []
    for cls in ordered():
        name = cls.__name__
        figures = used.get(name, [])
        put(folder / f"{name}.rst", page(cls, figures))
        signs = ["yes" if on else "" for on in traits(cls).values()]
        where = RUNS_ON[cls.needs.network]
        rows.append([f":doc:`{cls.label} <{name}>`", source(cls), where, *signs, str(len(figures))])
    head = ["algorithm", "reference", "runs on", *(t.name for t in TRAITS), "figures"]
    entries = "\n".join(f"   {cls.__name__}" for cls in ordered())
    definitions = "; ".join(f"**{trait.name}**: {trait.why}" for trait in TRAITS) + "."
    put(
        folder / "index.rst",
        HEAD.format(count=len(rows), words=definitions)
        + f"{table(head, rows, 'browse')}\n\n{synonyms()}\n\n"
        + f".. toctree::\n   :hidden:\n   :maxdepth: 1\n\n{entries}\n",
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
