"""One word, one meaning: names in signatures, and replaced terms."""

import ast
import inspect
import re
import types
from pathlib import Path

import pytest

import fljax as fl

ROOT = Path(__file__).parents[1]

BRITISH = re.compile(
    r"(optim|regular|normal|minim|general|initial|factor|linear|central|personal|quant|winsor)"
    r"is(e|ed|er|ers|ation)(_|$|[A-Z])|neighbour|colour|centre|centred|behaviour|labelled"
)
#: Words of prose that have a standard term, and that term. What is "by chance" is fine.
TERMS = {
    re.compile(r"(?<!by )(?<!than )(?<!to )\bchances?\b", re.IGNORECASE): "probability",
    re.compile(r"\bmean squared? deviation", re.IGNORECASE): "mean-square deviation",
    re.compile(r"\bmean square error", re.IGNORECASE): "mean-square error",
}

#: Places in a source that a reader cannot find: lines of a transcription, and labels of a list of
#: papers or of misprints that is not here.
UNFINDABLE = re.compile(
    r"\blines? \d{3,}|\(lines? \d|\bERR-\d|\bP[1-9] ?[(,;:.]|\bP[1-9]\b[ ,]*\w+ "
)

#: Steps of a length, and counts of them.
LENGTH = re.compile(r"(^|_)step_size$")
COUNT = re.compile(r"(^|_)(steps|epochs)$")
#: Classes that may have an argument with a name of several meanings.
MEANINGS = {
    "coupling": "networks of models: FedGD, FedRelax, GTVMin and what is proved of them",
    "mixing": "peers' combination weights",
}


def signatures():
    """``name, parameters`` of all that is public, by its dotted name."""
    result = {}
    left = [("fljax", fl)]
    while left:
        path, package = left.pop()
        for name in getattr(package, "__all__", ()):
            value = getattr(package, name)
            if isinstance(value, types.ModuleType):
                if value.__name__.startswith("fljax."):
                    left.append((f"{path}.{name}", value))
            elif callable(value):
                try:
                    result[f"{path}.{name}"] = list(inspect.signature(value).parameters)
                except ValueError:  # of a class of NumPy's or of Python's
                    continue
    return result


SIGNATURES = signatures()
ALGORITHMS = [f"fljax.algorithms.{cls.__name__}" for cls in fl.algorithms.REGISTRY.values()]


def test_names_are_spelled_as_in_the_rest_of_the_ecosystem():
    wrong = [name for name in SIGNATURES if BRITISH.search(name)]
    wrong += [
        f"{n}({p}=)"
        for n, parameters in SIGNATURES.items()
        for p in parameters
        if BRITISH.search(p)
    ]
    assert not wrong


def prose(path):
    """Sentences of a file: all of a page, and docstrings and texts of a program."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [text]
    if not any(term.search(text) for term in TERMS):
        return []
    strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [value for value in strings if isinstance(value, str) and " " in value]


def written(folder):
    """The programs and pages of a folder that people wrote."""
    pages = ROOT.glob("*.md") if folder == "." else (ROOT / folder).rglob("*.[mp][dy]")
    generated = [
        ROOT / "docs" / name for name in ("_build", "algorithms", "atlas", "gallery", "reference")
    ]
    for path in pages:
        if path.name != "CHANGELOG.md" and not any(map(path.is_relative_to, generated)):
            yield path


@pytest.mark.parametrize("folder", ["fljax", "experiments", "docs", "."])
def test_prose_has_the_standard_terms(folder):
    wrong = []
    for path in written(folder):
        for text in prose(path):
            line = " ".join(text.split())
            wrong += [
                f"{path.relative_to(ROOT)}: {match[0]!r} is {word!r}"
                for term, word in TERMS.items()
                for match in term.finditer(line)
            ]
    assert not wrong


@pytest.mark.parametrize("folder", ["fljax", "experiments", "docs", "."])
def test_sources_are_cited_by_places_that_a_reader_can_find(folder):
    wrong = []
    for path in written(folder):
        text = " ".join(path.read_text(encoding="utf-8").split())
        wrong += [f"{path.relative_to(ROOT)}: {match[0]!r}" for match in UNFINDABLE.finditer(text)]
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "Gauthier 2024, line 1099",
        "as lines 994, 1008 and 1795 have it",
        "(line 80)",
        "wrong, ERR-19, here",
        "Gauthier 2024, P2 (5)",
        "the average of P4 (6)",
        "publication P4, section IV",
        "(P6 figure 4)",
    ],
)
def test_places_that_no_reader_can_find_are_detected(text):
    assert UNFINDABLE.search(text)


@pytest.mark.parametrize("text", ["Gauthier 2024, (3.4)", "in line 2 to 5", "in lines", "P = 8"])
def test_places_that_a_reader_can_find_are_not(text):
    assert not UNFINDABLE.search(text)


def test_nonstandard_terms_are_detected():
    def terms_in(text):
        return [word for term, word in TERMS.items() if term.search(text)]

    assert terms_in("the chances of a client") == terms_in("Chance of a loss") == ["probability"]
    assert terms_in("the mean square deviation") == ["mean-square deviation"]
    assert not terms_in("better than chance, and by chance, stable in the mean square")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_lengths_and_counts_of_steps_have_one_form(name):
    for parameter in SIGNATURES[name]:
        if "step" in parameter:
            assert LENGTH.search(parameter) or COUNT.search(parameter), parameter
        assert parameter not in ("scheduler", "rate", "local_rounds", "steps")


def test_weights_of_peers_and_couplings_of_models_have_a_word_each():
    def algorithms_with(word):
        return {name.split(".")[-1] for name in ALGORITHMS if word in SIGNATURES[name]}

    needs = {cls.__name__: cls.needs for cls in fl.algorithms.REGISTRY.values()}
    assert all(needs[name].network is fl.graphs.Graph for name in algorithms_with("mixing"))
    assert algorithms_with("coupling") == {
        "FedGD",
        "FedRelax",
        "ModelAgnosticFedRelax",
        "NetworkedFedSGD",
    }


def test_the_glossary_has_the_words_of_signatures():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    glossary = text[text.index("## Words") :].split("\n## ")[0] + text[text.index("## Words") :]
    for word in ("step_size", "local_steps", "epochs", "selector", "mixing", "coupling", "batches"):
        assert f"`{word}`" in glossary, word


def test_an_argument_that_never_was_is_python_s_own_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        fl.algorithms.FedAvg(0.1, foo=1)
