"""A page an algorithm, and one table of all of them, sorted and filtered in the browser."""

import io
import math
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import atlas
import combinations
import parameters
import settings
import uses
from matplotlib.figure import Figure
from modules import documented
from pages import heading, hover, index_entries, literal, put, table, with_palette
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import fljax as fl
from experiments.atlas import pictures, verdicts
from experiments.picture import print_style
from fljax.algorithms import REGISTRY, Algorithm
from fljax.algorithms.algorithm import meanings
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
    """A column of the table.

    Attributes:
      name: its heading.
      why: the property in words.
      words: other words of the field for it, by which the table's filter finds it.
    """

    name: str
    why: str
    words: str


TRAITS = (
    Trait("stochastic", "takes steps on random batches of samples", "mini-batch SGD"),
    Trait("streams", "learns from data that arrive during the run", "online streaming"),
    Trait("private", "runs under a privacy budget", "differential privacy DP"),
    Trait("absent", "clients may be absent in some rounds", "partial participation dropout"),
    Trait("late", "messages may arrive late, in a later round", "asynchronous stale delays"),
    Trait("Byzantine", "a robust aggregator may replace the mean", "robust attackers resilient"),
    Trait("compressed", "messages may be compressed by any compressor", "quantized sparsified"),
    Trait("changing", "the graph may change from round to round", "time-varying dynamic"),
    Trait("directed", "the graph may be directed", "digraph asymmetric"),
    Trait("personalized", "each client or cluster gets a model of its own", "clustered multi-task"),
    Trait("networks", "trains neural networks, as any differentiable model", "deep nonconvex"),
)

#: Arguments by which an algorithm takes random batches; a solver is FedAvg with its own.
BATCHES = {"batch", "batches", "solver"}

HEAD = """\
:hide-toc:

Algorithms
==========

{count} algorithms, each tested against a plain NumPy loop written from its paper. Click on a column
heading to sort, point at it for what it means. To filter, tick the properties that an algorithm
must have, or type words: its name here, in papers or in other libraries, its reference or a
property, such as ``Byzantine directed``.

"""

SETTING = """\
Of all {clients} clients, for {samples} samples at each and {dim} numbers in a model, in the example
above{network}. A bit of a number counts as it is sent, in single precision.
"""


def wing(cls: type[Algorithm]) -> str:
    result = cls.__module__.split(".")[-2]
    if result not in WINGS:
        raise ExtensionError(f"{cls.label} is in no wing of {', '.join(WINGS)}: {cls.__module__}.")
    return result


def traits(cls: type[Algorithm]) -> dict[str, bool]:
    needs = cls.needs
    return {
        "stochastic": needs.data == "stream" or bool(BATCHES & {*parameters.names(cls)}),
        "streams": needs.data != "fixed",
        "private": bool(needs.privacy),
        "absent": needs.absent,
        "late": needs.late,
        "Byzantine": needs.averages,
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
    if needs.complete:
        yield "Any two clients must be able to communicate."
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


def names(cls: type[Algorithm]) -> list[str]:
    """The class, where it is not named as the label, and other names in papers and libraries."""
    synonyms = [name for name, meaning in meanings().items() if meaning.label == cls.label]
    return [name for name in synonyms if name != cls.label]


def aliases(cls: type[Algorithm]) -> str:
    """The other names in a sentence, with the arguments that they stand for."""
    stated = meanings()
    texts = [
        f"**{name}** ({how})" if (how := stated[name].how) else f"**{name}**"
        for name in names(cls)
        if name != cls.__name__
    ]
    return f"Other names in papers and libraries: {'; '.join(texts)}.\n" if texts else ""


def arguments(cls: type[Algorithm]) -> str:
    """All arguments, with defaults and ranges."""
    values = settings.simulation_of(cls).algorithm
    described = parameters.stated(cls)
    rows = []
    for name in parameters.names(cls):
        allowed = parameters.allowed(name, partial(replaced, values))
        default = parameters.default(cls, name)
        rows.append(
            [
                literal(name),
                described.get(name, ""),
                literal(default) or "required",
                allowed,
                parameters.searched(cls, name),
            ]
        )
    head = ["argument", "meaning", "default", "values", "range of fl.tune"]
    return table(head, rows, "parameters")


def replaced(algorithm: Algorithm, **values: object) -> Algorithm:
    """The same algorithm with another value of an argument, checked as by its constructor."""
    arguments_now = {name: getattr(algorithm, name) for name in parameters.names(type(algorithm))}
    return type(algorithm)(**arguments_now | values)


#: The numbers, fewer than these, that a message may have besides whole models.
FURTHER = 10


def multiple(total: float, unit: int, symbol: str) -> str:
    """A count per client in multiples of the size of a model or of a data set, if it is one."""
    times = round(total / unit)
    rest = total - times * unit
    if times == 0 or not float(rest).is_integer() or abs(rest) >= FURTHER:
        return f"{total:,.4g}"
    sign = "+" if rest > 0 else "-"
    parts = [symbol if times == 1 else f"{times} {symbol}", f"{sign} {abs(rest):g}" * bool(rest)]
    return " ".join(filter(None, parts))


def costs(cls: type[Algorithm]) -> str:
    """What a round costs in the standard setting, of all clients and of each."""
    simulation = settings.simulation_of(cls)
    problem = simulation.problem
    counted = settings.count(simulation)
    cost = counted.cost
    clients = problem.clients
    sizes = {"numbers": (problem.dim, "D"), "gradients": (problem.samples, "N")}
    labels = {
        "messages": "messages",
        "numbers": "numbers in them",
        "bits_up": "bits that clients send",
        "bits_down": "bits that servers send",
        "gradients": "gradients of samples",
        "minimizations": "exact minimizations",
    }
    rows = []
    for name, value in cost._asdict().items():
        if not value:
            continue
        if math.isnan(value):
            rows.append([labels[name], "differs from round to round", ""])
            continue
        per_client = value / clients
        text = multiple(per_client, *sizes[name]) if name in sizes else f"{per_client:,.4g}"
        rows.append([labels[name], f"{value:,.6g}", text])
    network = {None: "", Federation: ", two servers", Graph: ", on a ring"}[cls.needs.network]
    if cls.needs.complete:
        network = ", on a complete graph"
    text = SETTING.format(
        clients=f"K = {clients}",
        samples=f"N = {problem.samples}",
        dim=f"D = {problem.dim}",
        network=network,
    )
    if counted.is_random:
        text += "Messages are sent at random; their numbers are means over draws.\n"
    elif not counted.is_constant:
        text += "Messages have other lengths in later rounds; these are of the first.\n"
    if not any(cost[:2]):
        text += "Nothing is sent.\n"
    if not rows:
        return f"{text}Neither gradients nor exact minimizations are counted.\n"
    return f"{text}\n{table(['a round costs', 'in all', 'per client'], rows, 'costs')}\n"


def combined(cls: type[Algorithm]) -> str:
    """What it can be combined with, and why not with other parts."""
    rows = []
    for part in combinations.parts(cls.needs):
        reason = combinations.refusal(cls, part)
        verdict = combinations.short(reason) if reason else "yes"
        rows.append([part.name, literal(part.argument), verdict])
    return table(["with", "argument", "possible"], rows, "combinations")


def judged(cls: type[Algorithm], folder: Path, picture: Figure) -> str:
    """When to take it, and its picture, from the atlas's results."""
    ran = atlas.read_pages(atlas.FIGURES)
    text = "\n\n".join(verdicts.sentences(ran, cls.label)) + "\n"
    if verdicts.standard(ran, cls.label) is None:
        return text
    name = f"{cls.__name__}.png"
    with print_style():
        description = pictures.draw_algorithm(picture, ran, cls.label)
        drawn = io.BytesIO()
        picture.savefig(drawn, dpi=100)
    (folder / name).write_bytes(with_palette(drawn.getvalue()))
    source = "From the :doc:`atlas </atlas/index>`, in which all algorithms are tuned by one rule."
    return f"{text}\n{source}\n\n.. image:: {name}\n   :alt: {description}\n"


def page(cls: type[Algorithm], figures: list[str], folder: Path, picture: Figure) -> str:
    has = traits(cls)
    copes = [trait for trait in TRAITS if has[trait.name]]
    program = textwrap.indent(settings.program(cls), "   ")
    links = ", ".join(f":doc:`{name} </gallery/{name}>`" for name in figures)
    bibtex = textwrap.indent(fl.citation(cls), "   ", lambda line: True)
    parts = {
        "When to use it": judged(cls, folder, picture),
        "Definition": documented(f"fljax.algorithms.{cls.__name__}", cls),
        "Parameters": f"{arguments(cls)}\n",
        "Example": f".. code-block:: python\n\n{program}",
        "Cost per round": costs(cls),
        "Combined with": f"{combined(cls)}\n",
        "Figures": links or "No figure uses it yet.",
        "Cite": f".. code-block:: bibtex\n\n{bibtex}\n",
    }
    lines = [
        heading(cls.label),
        index_entries([cls.label, *names(cls)]),
        ".. py:currentmodule:: fljax.algorithms\n",
        aliases(cls),
        " ".join(asks(cls)) + "\n",
        *(f"- **{trait.name}**: {trait.why}" for trait in copes),
        "",
        *(f"{heading(title, '-')}\n{text}\n" for title, text in parts.items()),
    ]
    return "\n".join(lines) + "\n"


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "algorithms"
    folder.mkdir(exist_ok=True)
    used = uses.figures_of_algorithms()
    with print_style():
        picture = Figure(figsize=(8.5, 3.4))
    rows = []
    for cls in ordered():
        name = cls.__name__
        figures = used.get(name, [])
        put(folder / f"{name}.rst", page(cls, figures, folder, picture))
        signs = ["yes" if on else "" for on in traits(cls).values()]
        where = RUNS_ON[cls.needs.network]
        also_called = ", ".join(names(cls))
        link = f":doc:`{cls.label} <{name}>`"
        rows.append([link, also_called, source(cls), where, *signs, str(len(figures))])
    columns = (hover(trait.name, f"{trait.why}; {trait.words}") for trait in TRAITS)
    head = ["algorithm", "other names", "reference", "runs on", *columns, "figures"]
    entries = "\n".join(f"   {cls.__name__}" for cls in ordered())
    put(
        folder / "index.rst",
        HEAD.format(count=len(rows))
        + f"{table(head, rows, 'browse')}\n\n"
        + "All algorithms can be run with lost links and with attackers.\n\n"
        + f".. toctree::\n   :hidden:\n   :maxdepth: 1\n\n{entries}\n",
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
