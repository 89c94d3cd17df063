"""Print a constraints file that pins every dependency to the lower bound `pyproject.toml` names."""

import itertools
import re
import tomllib
from pathlib import Path

text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text()
project = tomllib.loads(text)["project"]
extras = project["optional-dependencies"].values()
for requirement in itertools.chain(project["dependencies"], *extras):
    found = re.fullmatch(r"([\w-]+)>=([\d.]+)(;.+)?", requirement)
    if found:
        name, bound, marker = found.groups(default="")
        print(f"{name}=={bound}{marker}")
    elif not requirement.startswith("fljax["):
        raise SystemExit(f"{requirement!r} names no lower bound; write it as 'name>=1.2'.")
