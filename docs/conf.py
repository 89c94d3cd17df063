"""How the site is built: ``sphinx-build -W --keep-going docs docs/_build``, without a network."""

import importlib
import os
import sys
from pathlib import Path

import jax
from sphinx.application import Sphinx

import fljax

# The pages' small programs run once: optimizing them takes longer than it saves.
jax.config.update("jax_disable_most_optimizations", True)

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
    "agents",
    "algorithms",
    "architecture",
    "atlas",
    "gallery",
    "logos",
    "navigation",
    "outputs",
    "parameters",
    "plots",
    "references",
    "tables",
    "modules",
]
#: Parts of MathJax that no page loads: other inputs and outputs, parts that tex-chtml.js contains,
#: and how formulas are spoken in other languages than English. They were a fifth of the site.
UNUSED_MATHJAX = [
    *("input/asciimath*", "input/mml*", "input/tex-*", "input/tex.js", "output/svg*"),
    *("mml-*", "tex-chtml-full*", "tex-mml-*", "tex-svg*", "node-main.js", "core.js", "latest.js"),
    *("startup.js", "loader.js", "adaptors", "output/chtml.js", "output/chtml/fonts/tex.js"),
    *("input/tex/extensions/all-packages.js", "sre/mathmaps/[!be]*", "sre/mathmaps/es*"),
]
exclude_patterns = [
    *(".jupyter_cache", ".doctrees", "_build", "_ext", "_outputs", "_templates", "jupyter_execute"),
    *("accuracy.png", "curves.png", "link.svg"),  # pages have them among their pictures
    *(f"mathjax/{name}" for name in UNUSED_MATHJAX),
]
nitpicky = True

# Docstrings are Google's style with two sections of our own.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Guarantees", "notes_style"), ("Reference", "notes_style")]
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_attr_annotations = False  # shapes and types are in the docstrings' words
napoleon_preprocess_types = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False  # a method is described where its words are
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True}

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
# No program runs while the site is built: "cache" finds all outputs that docs/_ext/outputs.py
# stored. FLJAX_DOCS=still leaves them out; the tests run the programs in small.
nb_execution_mode = "off" if os.environ.get("FLJAX_DOCS") == "still" else "cache"
nb_render_markdown_format = "myst"  # tables of outputs are tables

html_theme = "furo"
html_title = "fljax"
html_theme_options = {
    "light_logo": "logo-light.svg",
    "dark_logo": "logo-dark.svg",
    "sidebar_hide_name": True,  # the logo is the name
}
html_favicon = "_static/icon.svg"
# The package is used for its files alone: as an extension it would forbid to read in parallel.
offline = Path(str(importlib.import_module("sphinx-mathjax-offline").__file__)).parent
templates_path = ["_templates"]
html_static_path = ["_static", str(offline / "static")]
mathjax_path = "mathjax/tex-chtml.js"
html_css_files = ["fljax.css"]
html_js_files = [("tables.js", {"defer": "defer"})]
# Pages of source are reached from the reference, and have no tree of all other pages.
html_sidebars = {"_modules/**": ["sidebar/brand.html", "sidebar/search.html"]}
html_show_sphinx = False
html_copy_source = html_show_sourcelink = False


def setup(app: Sphinx) -> None:
    # What Sphinx remembers of a build is a third of its size and no part of the site.
    app.doctreedir = app.srcdir / ".doctrees"
    app.doctreedir.mkdir(exist_ok=True)
