"""How the site is built: ``sphinx-build -W --keep-going docs docs/_build``, without a network."""

import importlib
import os
import sys
from pathlib import Path

from jupyter_cache import get_cache
from sphinx.application import Sphinx

import fljax

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "fljax"
author = "the authors of fljax"
copyright = f"2026, {author}"  # noqa: A001
version = release = fljax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "algorithms",
    "architecture",
    "atlas",
    "gallery",
    "navigation",
    "plots",
    "references",
    "modules",
]
exclude_patterns = [".jupyter_cache", "_build", "_ext", "jupyter_execute"]
nitpicky = True

# Docstrings are Google's style with two sections of our own.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Guarantees", "notes_style"), ("Reference", "notes_style")]
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes and types are in the docstrings' words
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True}

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
# FLJAX_DOCS=still leaves the guides' programs out; the tests run them in small.
nb_execution_mode = "off" if os.environ.get("FLJAX_DOCS") == "still" else "cache"
nb_execution_show_tb = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True  # files that the programs write are not part of the site
nb_output_stderr = "remove"  # bars of progress
nb_render_markdown_format = "myst"  # tables of outputs are tables

html_theme = "furo"
html_title = "fljax"
html_favicon = "_static/icon.svg"
# The package is used for its files alone: as an extension it would forbid to read in parallel.
offline = Path(str(importlib.import_module("sphinx-mathjax-offline").__file__)).parent
html_static_path = ["_static", str(offline / "static")]
mathjax_path = "mathjax/tex-chtml.js"
html_css_files = ["fljax.css"]
html_js_files = [("tables.js", {"defer": "defer"})]
html_show_sphinx = False
html_copy_source = html_show_sourcelink = False


def create_cache(app: Sphinx) -> None:
    """Create the cache before workers start: they would race to create its database."""
    if app.config.nb_execution_mode == "cache":
        get_cache(Path(app.outdir).parent / ".jupyter_cache").list_cache_records()


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", create_cache)
