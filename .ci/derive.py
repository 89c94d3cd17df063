"""Write what follows from the registered algorithms and mechanisms: exports, a guide's table."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOM = ROOT / "fljax" / "algorithms"
EXPORTS = ROOM / "__init__.py"
GUIDE = ROOT / "docs" / "guides" / "privacy.md"
WINGS = ("server", "personalized", "graph", "peers")


def registered() -> dict[str, list[str]]:
    """The algorithms of each module, by its dotted name."""
    found = {}
    for path in sorted(path for wing in WINGS for path in (ROOM / wing).glob("*.py")):
        names = [
            node.name
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef)
            and any(getattr(call, "func", call).id == "algorithm" for call in node.decorator_list)
        ]
        if names:
            found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = names
    return found


def exports(text: str) -> str:
    """The package's front with all of them in it; what else stands there stays."""
    for module, names in registered().items():
        line = re.search(rf"^from {re.escape(module)} import (\([^)]*\)|.*)\n", text, re.M)
        known = re.findall(r"\w+", line.group(1)) if line else []
        new = f"from {module} import {', '.join(sorted({*known, *names}))}\n"
        if line:
            text = text.replace(line.group(), new)
        else:
            text = text.replace("\n__all__ = [\n", f"{new}\n__all__ = [\n", 1)
        listed = text.index("__all__ = [\n") + len("__all__ = [\n")
        lacking = [name for name in names if f'"{name}",' not in text[listed:]]
        text = text[:listed] + "".join(f'    "{name}",\n' for name in lacking) + text[listed:]
    return text


def promises(text: str) -> str:
    """The guide on privacy with the promises and premises of all mechanisms."""
    sys.path.insert(0, str(ROOT))
    from fljax.privacy import premises

    before, _, rest = text.partition("<!-- premises -->\n")
    _, end, after = rest.partition("<!-- end premises -->")
    return f"{before}<!-- premises -->\n{premises.table()}\n{end}{after}"


def main() -> None:
    """In the form that ruff gives them."""
    GUIDE.write_text(promises(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
    EXPORTS.write_text(exports(EXPORTS.read_text(encoding="utf-8")), encoding="utf-8")
    for command in (["check", "--fix", "--quiet"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(EXPORTS)], check=True)


if __name__ == "__main__":
    main()
