"""Citations: keys that resolve, the original work first, and its DOI or arXiv number."""

import inspect
import re
import unicodedata
from collections import Counter
from importlib import resources

import pytest

import fljax as fl
from fljax.simulation import citation

pytestmark = pytest.mark.core

ENTRIES = citation._entries()
ALGORITHMS = fl.algorithms.REGISTRY
PARTS = {
    name: value
    for module in (fl.algorithms, fl.aggregation, fl.attacks, fl.participation)
    for name, value in vars(module).items()
    if isinstance(value, type) and getattr(value, "reference", None) is not None
}

#: Works that treat many methods which are older than they are.
TREATMENTS = {"gauthier2024", "rizk2023", "jung2025"}
#: Algorithms that one of these proposed first, to our knowledge.
PROPOSED_THERE = {
    "Sampled diffusion": "rizk2023",  # section 5.2
    "PGFL, by gradient": "gauthier2024",  # chapter 7 asks for cluster discovery
    "NPFL, by gradient": "gauthier2024",
    "NPFL, by parameters": "gauthier2024",
    "Generalized gradient": "jung2025",  # (96)
}
#: Entries for which neither a DOI nor an arXiv number is known with certainty.
WITHOUT_NUMBER = {
    *("gauthier2024", "rizk2023", "gauthier2023rl", "blanchard2017", "rahimi2007"),
    "yang2024",
}


def field(key, name):
    found = re.search(rf"^  {name} = \{{(.*?)\}},?$", ENTRIES[key], re.MULTILINE | re.DOTALL)
    return found and " ".join(found[1].split())


def plain(text):
    """Letters without accents or TeX."""
    text = re.sub(r"\\[`'^\"~=.]\{?(\w)\}?|\\c ?\{?(\w)\}?|[{}]", r"\1\2", text)
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def cited_as(key):
    """The first author's family name and the year."""
    family = plain(field(key, "author").split(" and ")[0].split(",")[0])
    return family, field(key, "year")


def keys_of(part):
    return part.reference if isinstance(part.reference, tuple) else (part.reference,)


def sources(part):
    """The docstring's references without the related ones."""
    text = inspect.getdoc(part).partition("Reference:\n")[2]
    return plain(" ".join(text.split()).partition("See also")[0])


def test_all_algorithms_and_the_parts_with_a_reference_are_examined():
    assert {cls.__name__ for cls in ALGORITHMS.values()} <= PARTS.keys()
    assert {"WinsorizedMean", "NormClipping", "SignFlip", "PowerOfChoice"} <= PARTS.keys()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_cited_by_the_sources_of_its_docstring_in_their_order(name):
    part = PARTS[name]
    assert [e.partition(",")[0].partition("{")[2] for e in fl.citation(part).split("\n\n")] == [
        *keys_of(part)
    ]
    text = sources(part)
    assert len(re.findall(r"\b(?:19|20)\d\d\b", text)) == len(keys_of(part)), text
    order = ".*?".join(
        rf"\b{family}[ ,].*?\b{year}\b" for family, year in map(cited_as, keys_of(part))
    )
    assert re.match(order, text), text


def test_the_original_work_is_cited_first():
    first = {label: keys_of(cls)[0] for label, cls in ALGORITHMS.items()}
    assert {label: key for label, key in first.items() if key in TREATMENTS} == PROPOSED_THERE
    for name, key in {
        "DGD": "nedic2009",
        "CTA": "lopes2008",
        "ATC": "cattivelli2010",
        "NetworkedADMM": "schizas2008",
        "ConventionalFL": "mcmahan2017",
        "SGP": "nedic2016",
    }.items():
        assert keys_of(getattr(fl.algorithms, name))[0] == key
    assert "lian2017" in keys_of(fl.algorithms.Consensus)
    assert "shi2014" in keys_of(fl.algorithms.NetworkedADMM)


def test_a_treatment_is_not_older_than_the_original_work():
    for cls in ALGORITHMS.values():
        years = {key: int(field(key, "year")) for key in keys_of(cls)}
        followed = [year for key, year in years.items() if key in TREATMENTS]
        assert all(years[keys_of(cls)[0]] <= year for year in followed), cls.label


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_is_complete(key):
    assert all(field(key, name) for name in ("author", "title", "year"))
    assert re.fullmatch(r"(19|20)\d\d", field(key, "year"))
    assert ENTRIES[key].count("{") == ENTRIES[key].count("}")
    doi = field(key, "doi")
    preprint = field(key, "eprint")
    assert bool(doi or preprint) == (key not in WITHOUT_NUMBER)
    assert doi is None or re.fullmatch(r"10\.\d{4,5}/\S+", doi)
    if preprint is not None:
        number = re.fullmatch(r"(\d\d)(\d\d)\.\d{4,5}", preprint)
        assert field(key, "archiveprefix") == "arXiv"
        assert 1 <= int(number[2]) <= 12
        # A preprint may be a few years older than its publication, and is never younger.
        assert 0 <= int(field(key, "year")) - 2000 - int(number[1]) <= 4
    if ENTRIES[key].startswith("@misc"):
        assert field(key, "url") == f"https://arxiv.org/abs/{preprint}"


def test_entries_are_distinct():
    text = resources.files("fljax").joinpath("references.bib").read_text("utf-8")
    assert sorted(re.findall(r"@\w+\{(\w+),", text)) == sorted(ENTRIES)
    for name in ("doi", "eprint", "title"):
        values = Counter(value.lower() for key in ENTRIES if (value := field(key, name)))
        assert not [value for value, count in values.items() if count > 1]


def test_several_references_are_cited_in_order_and_once():
    class Mine(fl.algorithms.FedAvg):
        reference = ("nedic2009", "@misc{me, title = {Mine}}", "mcmahan2017", "nedic2009")

    text = fl.citation(Mine)
    heads = [entry.splitlines()[0] for entry in text.split("\n\n")]
    mine = "@misc{me, title = {Mine}}"
    assert heads == ["@article{nedic2009,", mine, "@inproceedings{mcmahan2017,"]


@pytest.mark.parametrize("reference", [(), (3,), ("nedic2009", None), ["nedic2009"]])
def test_a_reference_of_another_kind_is_refused(reference):
    class Mine(fl.algorithms.FedAvg):
        pass

    Mine.reference = reference
    with pytest.raises(TypeError, match=r"Mine states no reference.*or a tuple of these"):
        fl.citation(Mine)
