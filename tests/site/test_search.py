"""The search of the site: words of the field lead to the page that a reader needs."""

import json
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

NODE = shutil.which("node")

#: Words that users of the field search for, and the page that answers them.
WORDS = {
    "byzantine": "guides/links",
    "robust aggregation": "guides/links",
    "median": "guides/links",
    "sign flip": "guides/links",
    "poisoning": "guides/links",
    "Krum": "reference/fljax.aggregation",
    "backdoor": "guides/trust",
    "fairness": "guides/trust",
    "membership inference": "guides/trust",
    "differential privacy": "guides/privacy",
    "DP-SGD": "guides/privacy",
    "DP-FTRL": "guides/privacy",
    "zCDP": "guides/privacy",
    "local differential privacy": "guides/privacy",
    "epsilon": "guides/epsilon",
    "secure aggregation": "guides/cancelling",
    "non-iid": "guides/partitions",
    "Dirichlet": "guides/partitions",
    "label skew": "guides/partitions",
    "heterogeneity": "guides/partitions",
    "straggler": "guides/unreliable",
    "packet loss": "guides/unreliable",
    "partial participation": "guides/unreliable",
    "client sampling": "guides/unreliable",
    "compression": "guides/compression",
    "quantization": "guides/compression",
    "sparsification": "guides/compression",
    "communication cost": "guides/compression",
    "asynchronous": "guides/streams",
    "online learning": "guides/streams",
    "concept drift": "guides/streams",
    "personalization": "guides/personalization",
    "clustered federated learning": "guides/personalization",
    "peer-to-peer": "guides/topology",
    "decentralized": "guides/topology",
    "gossip": "guides/topology",
    "topology": "guides/topology",
    "mixing matrix": "guides/topology",
    "PyTorch": "guides/networks",
    "dropout": "guides/networks",
    "LoRA": "guides/networks",
    "fine-tuning": "guides/networks",
    "batch normalization": "guides/networks",
    "Adam": "guides/networks",
    "transformer": "guides/sequences",
    "cross-device": "guides/populations",
    "custom loss": "guides/own",
    "custom dataset": "guides/own",
    "hyperparameter tuning": "guides/fairly",
    "confidence interval": "guides/results",
    "checkpoint": "guides/studies",
    "TensorBoard": "guides/studies",
    "GPU": "guides/accelerators",
    "SLURM": "guides/accelerators",
    "Flower": "guides/coming-from",
    "fluke": "guides/coming-from",
    "install": "start",
    "citation": "citing",
    "benchmark": "speed",
    "convergence rate": "theory",
    "FedAvg": "algorithms/FedAvg",
    "FedSGD": "algorithms/FedAvg",
    "DP-FedAvg": "algorithms/FedAvg",
    "D-PSGD": "algorithms/Consensus",
    "SCAFFOLD": "algorithms/SCAFFOLD",
    "FedProx": "algorithms/FedProx",
    "EXTRA": "algorithms/EXTRA",
    "MNIST": "reference/fljax.data",
    "FEMNIST": "reference/fljax.data",
}


@pytest.fixture(scope="module")
def search(site):
    """Answer queries by the search of the built site itself, as its pages load it.

    The site must be built without an older one: where one is changed, Sphinx indexes the entries of
    changed pages only.
    """
    if NODE is None:
        warnings.warn("THE SEARCH WAS NOT TRIED: there is no node here.", stacklevel=1)
        pytest.skip("NOT RUN: node, which runs the search's program, is not on the path")

    def answers(*queries: str) -> list[list[str]]:
        program = Path(__file__).with_name("search.js")
        run = subprocess.run(
            [NODE, str(program), str(site)],
            input="\n".join(queries),
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return [json.loads(line) for line in run.stdout.splitlines()]

    return answers


def leads(result: str, page: str) -> bool:
    """Whether a result is on a page, or on one below it in the reference."""
    return f"{result.partition('#')[0]}.".startswith(f"{page}.")


def test_words_of_the_field_lead_to_their_page(search):
    missed = {
        word: results[:3]
        for (word, page), results in zip(WORDS.items(), search(*WORDS), strict=True)
        if not any(leads(result, page) for result in results[:3])
    }
    assert missed == {}


def test_answers_lead_to_places_that_exist(site, search):
    for results in search(*WORDS):
        for result in results[:3]:
            page, _, anchor = result.partition("#")
            text = (site / f"{page}.html").read_text(encoding="utf-8")
            assert not anchor or f'id="{anchor}"' in text, result


def test_a_word_that_no_page_has_leads_nowhere(search):
    assert search("xylophone") == [[]]
