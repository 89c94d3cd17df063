"""The site, built once, with the stored outputs of its guides' programs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of a site built without a warning; ``FLJAX_SITE`` names one that is there."""
    pytest.importorskip("furo", reason='the site needs pip install ".[docs]"')
    if prebuilt := os.environ.get("FLJAX_SITE"):
        return Path(prebuilt)
    folder = tmp_path_factory.mktemp("site")
    source = folder / "docs"
    generated = shutil.ignore_patterns(
        *("_build", ".doctrees", ".jupyter_cache", "__pycache__"),
        *("algorithms", "atlas", "gallery", "reference"),
    )
    shutil.copytree(ROOT / "docs", source, ignore=generated)
    for name in ("figures", "experiments", "fljax"):
        (folder / name).symlink_to(ROOT / name)
    # These are copies, since links in a page's text are followed from where its file really is.
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2"]
    built = subprocess.run(
        [*command, str(source), str(folder / "html")],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return folder / "html"
