"""What tests of figures share."""

from pathlib import Path

import pytest

from experiments import records
from experiments.figure import Figure, Studies

STORED = Path(__file__).parents[2] / "figures"


@pytest.fixture(scope="session")
def stored():
    """Reads the results of a figure in the repository; skips where a copy has none."""

    def read(figure: Figure) -> Studies:
        if not (STORED / f"{figure.name}.json").is_file():
            pytest.skip("the stored figures are not in this copy")
        return records.read_studies(figure, STORED)

    return read
