"""The logo of each theme, from the one picture that has the colors of both.

The picture follows the reader's system, and the site has a switch besides; so each theme gets a
picture with its colors only.
"""

import re
from pathlib import Path

from pages import put
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

#: The colors for dark backgrounds, which replace those before them.
DARK = re.compile(
    r"\n *@media \(prefers-color-scheme: dark\) \{(?P<rules>(?:[^{}]*\{[^{}]*\})+)\s*\}"
)


def variants(picture: str) -> dict[str, str]:
    """A logo by the theme that it is for.

    Raises:
      ExtensionError: the picture has no colors for the dark theme.
    """
    dark = DARK.search(picture)
    if dark is None:
        raise ExtensionError(
            "the logo has no colors for the dark theme; give them in _static/logo.svg, inside "
            "@media (prefers-color-scheme: dark)."
        )
    return {
        "light": picture.replace(dark[0], ""),
        "dark": picture.replace(dark[0], dark["rules"]),
    }


def write(app: Sphinx) -> None:
    static = Path(app.srcdir) / "_static"
    picture = static / "logo.svg"
    if not picture.exists():
        raise ExtensionError(f"the themes' logo is missing: {picture.name} in {static.name}.")
    for theme, text in variants(picture.read_text(encoding="utf-8")).items():
        put(static / f"logo-{theme}.svg", text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
