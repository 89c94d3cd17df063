"""McMahan et al. 2017: how many rounds FedAvg needs to 97 % on MNIST, 2NN (Table 1)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import LITTLE, SIGNIFICANTLY, about
from experiments.field.averaging import (
    CENSORED,
    CLIENTS,
    COUNT,
    DIVERGED,
    ERROR,
    MOST,
    SEEDS,
    SOURCE,
    START,
    Cell,
    Size,
    Table,
    Tried,
    longest,
)
from experiments.figure import INFINITE, Claim, Figure, Setting, Studies
from experiments.measures import of_few
from fljax import plotting

# --------------------------------------------------------------------------- settings

NETWORK = Setting("2NN, hidden widths", (200, 200), "section 3", given=True)
TARGET = Setting("accuracy that is asked", 0.97, "of all test images, table 1", given=True)
SHARE = Setting(
    "share C of the clients", (0.0, 0.1, 0.2, 0.5, 1.0), "table 1; 0 is one", given=True
)
PASSES = Setting("local passes E", 1, "table 1", given=True)
LIKE = Setting("step size with more clients than a tenth", "that of a tenth", "to save runs")
RANDOM = "random"
SHARDS = "shards"
SMALL = "B = 10"
WHOLE = "B = ∞"
CHOSEN = [max(1, round(share * CLIENTS.value)) for share in SHARE.value]
#: For each line of the table, the published rounds by the share of clients, and the first steps of
#: one client and of a tenth; cells of more clients have the best step of a tenth.
LINES = {
    (RANDOM, SMALL): ((316, 87, 77, 75, 70), [(0.1, 0.2), (0.05, 0.1, 0.2, 0.4)]),
    (SHARDS, SMALL): ((3275, 664, 619, 443, 380), [(0.025, 0.05), (0.1, 0.2, 0.4)]),
    (RANDOM, WHOLE): ((1455, 1474, 1658), [(0.2, 0.4), (0.2, 0.4, 0.8)]),
    (SHARDS, WHOLE): ((4278, 1796, 1528), [(0.05, 0.1), (0.2, 0.4, 0.8)]),
}


def named(line: tuple[str, str], share: float) -> str:
    return f"{line[0]}, {line[1]}, C = {share:g}"


def of_line(line: tuple[str, str]) -> list[str]:
    """Its cells, by share."""
    return [named(line, share) for share in SHARE.value[: len(LINES[line][0])]]


CELLS = {
    named(line, share): Cell(
        chosen,
        PASSES.value,
        10 if line[1] == SMALL else None,
        line[0] == SHARDS,
        published,
        steps[index] if index < len(steps) else (),
        every=max(1, published // 100),
        like=None if index < len(steps) else named(line, SHARE.value[1]),
    )
    for line, (row, steps) in LINES.items()
    for index, (share, chosen, published) in enumerate(zip(SHARE.value, CHOSEN, row, strict=False))
}
FIRST = named((RANDOM, SMALL), 0.1)
SMALL_START = Tried(0.1, START.value[1])
TABLE = Table(
    "fedavg",
    CELLS,
    Size(fl.data.mnist, CLIENTS.value, fl.models.mlp(10, NETWORK.value), TARGET.value),
    Size(fl.data.mnist_sample, 10, fl.models.mlp(10, [8]), 0.2, 64),
    longest(1.3),
    {FIRST: SMALL_START},
)


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = ("random order, B = 10, C = 0.1", "rounds to 97 %, B = 10", "rounds to 97 %, B = ∞")
    drawing, axes = picture.panels(titles, height=2.4)
    data = studies[FIRST]
    for index, tried in enumerate(TABLE.tries(studies, FIRST)):
        runs = data.sel(tried=str(tried))
        runs = runs.sel(round=slice(None, int(runs["stopped"].min())))
        curve = 100 * (1 - runs[ERROR].mean("seed"))
        axes[0].plot(runs["round"], curve, label=str(tried), **picture.look(index))
    axes[0].axhline(100 * (1 - data.attrs["target"]), **picture.THIN)
    published = CELLS[FIRST].published
    axes[0].axvline(published, label=f"published: {published} rounds", **picture.THIN)
    axes[0].set(xlabel="round", ylabel="test accuracy [%]", xlim=(0, 1.2 * published))
    if data.attrs["target"] < 0.1:
        axes[0].set_ylim(90, 98)
    for ax, batch in zip(axes[1:], (SMALL, WHOLE), strict=True):
        for index, order in enumerate((RANDOM, SHARDS)):
            _line(ax, (order, batch), index, studies)
        ax.set(yscale="log", xlabel="share C of the clients in a round", ylabel="rounds")
    return picture.finish(drawing)


def _line(ax: Axes, line: tuple[str, str], index: int, studies: Studies) -> None:
    """The rounds of a line of the table by share, and the published ones."""
    names = of_line(line)
    color = plotting.LOOKS[index]["color"]
    estimates = [of_few(float, TABLE.needed(studies, name).at_least, unit="") for name in names]
    bars = [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]]
    at = SHARE.value[: len(names)]
    look = {k: plotting.LOOKS[index][k] for k in ("color", "marker", "linestyle")}
    ax.errorbar(at, [e.value for e in estimates], bars, label=line[0], capsize=2, **look)
    published = [CELLS[name].published for name in names]
    ax.plot(at, published, "x", color=color, label=f"{line[0]}, published")


# --------------------------------------------------------------------------- the claims


def why(studies: Studies) -> str:
    """Why the rounds of the first cell differ from the published."""
    return (
        f"{TABLE.counts(FIRST)(studies)} A shorter step and smaller initial weights each cost "
        "what the source's numbers are above ours; it names neither."
    )


def by_share(line: tuple[str, str]) -> list[tuple[str, str]]:
    """One client against each larger share."""
    alone, *more = of_line(line)
    return [(alone, name) for name in more]


RANDOM_SMALL, SHARDS_SMALL, RANDOM_WHOLE, SHARDS_WHOLE = LINES

FIGURE = Figure(
    name="field-fedavg",
    title="FedAvg: rounds to 97 % on MNIST",
    source=f"{SOURCE}, table 1, 2NN",
    caption="(a) Test accuracy in one cell by step size, and with initial weights of a tenth of "
    "the size. A run ends soon after it is at 97 %. (b, c) Rounds until then, of the best step "
    "that was tried, by the share of clients in a round, where images are in random order and "
    "where each client has two shards of one digit, with 95 % intervals of "
    f"{SEEDS.value} seeds; crosses are published.",
    study=TABLE.study,
    plot=plot,
    claims=[
        *(
            Claim(
                f"rounds-{place}",
                f"{line[0]}, {line[1]}: it takes "
                + ", ".join(f"{CELLS[name].published}" for name in of_line(line))
                + f" rounds with C = {', '.join(f'{s:g}' for s in SHARE.value[: len(rounds)])}",
                f"{SOURCE}, table 1",
                TABLE.of_published(*of_line(line)),
                *about(1).when("of the published rounds"),
                note=TABLE.counts(*of_line(line)),
                changed=CENSORED,
            )
            for place, (line, (rounds, _)) in enumerate(LINES.items())
        ),
        Claim(
            "several-clients-help",
            "with small batches, a tenth of the clients or more in a round in the place of one "
            "saves significantly many rounds",
            f"{SOURCE}, section 3 on table 1",
            TABLE.saved(*by_share(RANDOM_SMALL), *by_share(SHARDS_SMALL)),
            *SIGNIFICANTLY.factor.when("one client over more, B = 10"),
            note=TABLE.counts(*of_line(RANDOM_SMALL), *of_line(SHARDS_SMALL)),
        ),
        Claim(
            "whole-batches-gain-little",
            "with all of a client's images in a batch, more clients have little advantage",
            f"{SOURCE}, section 3 on table 1",
            TABLE.saved(*by_share(RANDOM_WHOLE)),
            *LITTLE.factor.when("one client over more, B = ∞, random order"),
            note=TABLE.counts(*of_line(RANDOM_WHOLE)),
        ),
        Claim(
            "smaller-batches-help",
            "more local steps by smaller batches save significantly many rounds",
            f"{SOURCE}, section 3 on table 1",
            TABLE.saved(
                *zip(of_line(RANDOM_WHOLE), of_line(RANDOM_SMALL), strict=False),
                *zip(of_line(SHARDS_WHOLE)[1:], of_line(SHARDS_SMALL)[1:], strict=False),
            ),
            *SIGNIFICANTLY.factor.when("B = ∞ over B = 10; in shards from C = 0.1 on"),
            note=TABLE.counts(*CELLS),
        ),
        Claim(
            "shards-cost-rounds",
            "with small batches, clients of two digits need significantly more rounds than those "
            "of all",
            f"{SOURCE}, table 1",
            TABLE.saved(*zip(of_line(SHARDS_SMALL), of_line(RANDOM_SMALL), strict=True)),
            *SIGNIFICANTLY.factor.when("shards over random order, B = 10"),
            note=TABLE.counts(*of_line(RANDOM_SMALL), *of_line(SHARDS_SMALL)),
        ),
        Claim(
            "a-short-step-explains-it",
            f"with a step of {CELLS[FIRST].steps[0]:g} the first cell takes as many rounds as in "
            "the source",
            "this library",
            TABLE.of_tried(FIRST, Tried(CELLS[FIRST].steps[0], START.value[0])),
            *about(1).when("of the published rounds"),
            ours=True,
            note=why,
        ),
        Claim(
            "a-small-start-explains-it",
            "with initial weights of a tenth of He's size the first cell takes as many rounds as "
            "in the source",
            "this library",
            TABLE.of_tried(FIRST, SMALL_START),
            *about(1).when("of the published rounds"),
            ours=True,
            note=why,
        ),
        Claim(
            "the-start-matters",
            "small initial weights cost rounds",
            "this library",
            TABLE.with_small_start,
            (1, INFINITE),
            ours=True,
            note=why,
        ),
    ],
    settings=(
        *(CLIENTS, NETWORK, TARGET, SHARE, PASSES, COUNT, MOST, LIKE, START, TABLE.longest, SEEDS),
    ),
    tuning=TABLE.table,
    diverged=DIVERGED,
)
