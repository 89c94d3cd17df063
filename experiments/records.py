"""The stored records of figures, and how claims are judged again.

Everything printed or stored about a figure is computed from its stored results alone, so `check`
can recompute it.
"""

import contextlib
import io
import json
import lzma
import math
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from PIL import Image

import fljax as fl
from experiments.figure import Claim, Effort, Figure, Studies, Verdict, word_of
from experiments.measures import bound_held
from experiments.picture import print_style
from experiments.replacing import applied, described, of_record, options
from fljax import plotting
from fljax._core.storage import digest, replace_file, sealed, unsealed
from fljax.metrics.names import TRAFFIC
from fljax.privacy import accounting

# --------------------------------------------------------------------------- privacy


#: The columns of :func:`privacy_table` besides the axes of the study.
PRIVACY = (
    *("rho", "delta", "epsilon_composed", "epsilon_corollary", "epsilon_tight"),
    *("largest_gradient", "gradient_bound", "bound_held"),
)


def privacy_table(study: xr.Dataset, delta: float) -> list[dict[str, Any]]:
    """The privacy that each case spent, by the Corollary and tightly, and whether its bound held.

    The zCDP parameter is computed from the noise, also for runs that were calibrated by (epsilon,
    delta) rules: it is their actual privacy.
    """
    if "privacy_rho" not in study:
        return []
    free = [str(d) for d in study["gradient_norm"].dims if d != "seed"]
    rows = []
    for values in product(*(study[d].values for d in free)):
        named = dict(zip(free, values, strict=True))
        case = study.sel(named)
        last = case.isel(round=-1) if "round" in case.dims else case
        rho = float(last["privacy_rho"].max())
        row = {d: v.item() if isinstance(v, np.generic) else v for d, v in named.items()}
        composed = float(last["privacy_epsilon"].max()) if "privacy_epsilon" in last else math.nan
        norm = float(case["gradient_norm"].max())
        bound = float(case["gradient_bound"].max())
        row |= {
            "rho": rho,
            "delta": delta,
            "epsilon_composed": None if math.isnan(composed) else composed,
            "epsilon_corollary": float(accounting.zcdp_epsilon(rho, delta, "proposition")),
            "epsilon_tight": float(accounting.zcdp_epsilon(rho, delta, "gaussian")),
            "largest_gradient": norm,
            "gradient_bound": bound,
            "bound_held": bound_held(norm, bound),
        }
        rows.append(row)
    return rows


# --------------------------------------------------------------------------- on disk

#: The verdicts of the gallery's first edition, by figure and claim.
FIRST_EDITION = Path(__file__).parent / "first_edition.json"


def first_edition() -> dict[str, dict[str, str]]:
    return json.loads(FIRST_EDITION.read_text(encoding="utf-8"))


class Broken(Exception):
    """Stored results are missing, unreadable or disagree; the message names them and the reason."""


@contextlib.contextmanager
def explain_unstored(figure: Figure) -> Iterator[None]:
    """Explain a failed read of a count of communication that the figure does not store."""
    try:
        yield
    except (KeyError, ValueError) as error:
        for name in TRAFFIC:
            if name not in figure.keep and f"'{name}'" in str(error):
                raise Broken(
                    f"{figure.name} reads {name!r}, which is not stored for it; name it in the "
                    f"figure's keep=, then python -m experiments run {figure.name}."
                ) from error
        raise


def path_of(folder: Path, figure: Figure) -> Path:
    """The file with all studies of a figure."""
    return folder / f"{figure.name}.zip"


def record(
    figure: Figure,
    studies: Studies,
    effort: Effort,
    seconds: float,
    claims: Sequence[Claim] | None = None,
) -> dict[str, Any]:
    """The record of a figure as plain numbers, with all its claims or the given ones."""
    claims = figure.claims if claims is None else claims
    delta = next((s.value for s in figure.settings if s.name == "delta"), None)
    return {
        "name": figure.name,
        "title": figure.title,
        "source": figure.source,
        "caption": figure.caption,
        "effort": {"seeds": effort.seeds, "tuning_seeds": effort.tuning_seeds}
        | {"quick": effort.quick},
        "seeds": sorted({s.sizes["seed"] for s in studies.values() if "seed" in s.dims}),
        "settings": [
            {"name": s.name, "value": s.value, "why": s.why, "given": s.given}
            for s in figure.settings
        ],
        "tuning": figure.tuning(studies),
        "tuning_is_separate": tuning_is_separate(studies),
        "table": figure.table(studies),
        "privacy": {
            name: rows
            for name, study in studies.items()
            if delta is not None and (rows := privacy_table(study, delta))
        },
        "diverged": {
            name: [int((study["diverged"] > 0).sum()), int(study["diverged"].size)]
            for name, study in studies.items()
            if "diverged" in study
        },
        "diverged_runs": figure.diverged,
        "claims": [claim_record(c, c.judge(studies)) for c in claims],
        "files": [path_of(Path(), figure).name],
        "seconds": round(seconds, 1),
        "provenance": _provenance(studies),
    } | ({"replaced": [r._asdict() for r in replaced]} if (replaced := applied(figure)) else {})


def tuning_is_separate(studies: Studies) -> bool | None:
    """Whether the stored studies in which parameters were chosen have other seeds than those that
    are judged; ``None`` if no such study is stored.
    """
    seeds = {"tuning": set(), "judged": set()}
    for name, study in studies.items():
        if "seed" in study.coords:
            part = "tuning" if "tuning" in name else "judged"
            seeds[part] |= {*np.ravel(study["seed"].values).tolist()}
    return seeds["tuning"].isdisjoint(seeds["judged"]) if seeds["tuning"] else None


def claim_record(claim: Claim, verdict: Verdict) -> dict[str, Any]:
    return {
        "name": claim.name,
        "text": claim.text,
        "source": claim.source,
        "accepted": claim.wanted,
        "convention": claim.convention,
        "condition": claim.condition,
        "construction": claim.construction,
        "kind": claim.kind,
        "holds": verdict.holds,
        "decided": verdict.decided,
        "deciding_seeds": verdict.deciding_seeds,
        "cases": {
            name: asdict(e) | {"holds": verdict.good[name]} for name, e in verdict.cases.items()
        },
        "note": verdict.note,
        "changed": claim.changed,
    }


_PROVENANCE = (
    *("fljax", "commit", "code", "jax", "jaxlib", "numpy", "python", "platform", "machine"),
    "device",
    *("dtype", "prng", "root", "created"),
)


def _provenance(studies: Studies) -> dict[str, Any]:
    studies = {name: studies[name] for name in sorted(studies)}
    attrs = next(s.attrs for s in studies.values() if "code" in s.attrs)
    result = {k: attrs[k] for k in _PROVENANCE if k in attrs}
    commits = {name: s.attrs.get("commit", "not recorded") for name, s in studies.items()}
    if len({*commits.values()}) > 1:  # a part was computed again
        result["commit"] = "; ".join(f"{name}: {source}" for name, source in commits.items())
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in result.items()} | {
        "scenarios": {
            name: [study.attrs["scenario"], study.attrs["scenario_hash"]]
            for name, study in studies.items()
            if "scenario_hash" in study.attrs
        }
    }


def plain(value: Any) -> Any:
    """``value`` for strict JSON, in which NaN and infinity are null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def store(
    figure: Figure, studies: Studies, folder: Path, effort: Effort, seconds: float
) -> dict[str, Any]:
    """Write the studies, and :func:`describe` them; returns the record."""
    source = commit()
    named = {name: study.assign_attrs(commit=source) for name, study in studies.items()}
    save_studies(named if source else studies, path_of(folder, figure))
    return describe(figure, read_studies(figure, folder), folder, effort, seconds)


def commit() -> str:
    """The commit that the figures' programs are of, with a mark if they differ from it; empty
    outside of a repository.
    """

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(Path(__file__).parent), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".", "../fljax")
        return git("rev-parse", "--short=12", "HEAD") + (" and changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def describe(
    figure: Figure, studies: Studies, folder: Path, effort: Effort, seconds: float
) -> dict[str, Any]:
    """Write the pictures and the record; returns the record.

    Raises:
      Broken: the figure reads a count that it does not store.
    """
    reduce_palette(save_picture(figure, studies, picture_of(folder, figure)))
    with explain_unstored(figure):
        written = plain(record(figure, studies, effort, seconds))
    written["digests"] = {
        path.name: digest(path.read_bytes())
        for path in (picture_of(folder, figure), path_of(folder, figure))
    }
    write_record(figure, written, folder)
    return written


def save_picture(figure: Figure, studies: Studies, path: Path) -> Path:
    """Draw a figure as it is printed, in the format of the suffix; returns the path.

    Raises:
      Broken: the figure reads a count that it does not store.
    """
    with explain_unstored(figure), print_style():
        picture = figure.plot(studies)
        plotting.save_figure(picture, path)
        plt.close(picture)
    return path


def write_record(figure: Figure, written: dict[str, Any], folder: Path) -> None:
    text = sealed(written, indent=1, ensure_ascii=False, allow_nan=False)
    replace_file(folder / f"{figure.name}.json", text + "\n")


def judge(figure: Figure, folder: Path) -> dict[str, Any]:
    """Judge all claims again on the stored results; everything else in the record stays.

    Raises:
      Broken: files are missing, unreadable or altered, or lack a variable of a claim.
    """
    written = read_record(figure, folder)
    studies = read_studies(figure, folder)
    check_digests(figure, written, folder)
    with explain_unstored(figure):
        judged = [claim_record(claim, claim.judge(studies)) for claim in figure.claims]
    written["claims"] = plain(judged)
    written["tuning_is_separate"] = tuning_is_separate(studies)
    write_record(figure, written, folder)
    return written


def check_digests(figure: Figure, stored: dict[str, Any], folder: Path) -> None:
    """Raise ``Broken`` unless pictures and results are those that the record is of."""
    if not (path := picture_of(folder, figure)).is_file():
        raise Broken(f"the picture {path} is missing.")
    for name, expected in stored["digests"].items():
        if digest((folder / name).read_bytes()) != expected:
            raise Broken(
                f"{folder / name} was cut or altered: it is not what the record is of; python -m "
                f"experiments draw {figure.name} makes pictures and record again."
            )


def picture_of(folder: Path, figure: Figure) -> Path:
    """The file with the picture for the gallery."""
    return folder / f"{figure.name}.png"


def reduce_palette(path: Path) -> None:
    """Rewrite a PNG file with a palette of 256 colors: visually the same, a third of the size."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
        )
    content = io.BytesIO()
    few.save(content, "PNG", optimize=True)
    replace_file(path, content.getvalue())


def read_record(figure: Figure, folder: Path, any_numbers: bool = False) -> dict[str, Any]:
    """The stored record.

    Args:
      figure: the figure.
      folder: of its results.
      any_numbers: whether this process may have other numbers.

    Raises:
      Broken: missing, altered, not the record of this figure, or of other numbers.
    """
    path = folder / f"{figure.name}.json"
    try:
        result = unsealed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Broken(
            f"no results {path}; python -m experiments run {figure.name} makes them."
        ) from None
    except ValueError as error:
        raise Broken(
            f"{path} is no record of a figure ({error}); python -m experiments run {figure.name} "
            "makes it again."
        ) from None
    missing = {"name", "claims", "files", "effort", "provenance", "digests"} - set(result)
    if missing or result["name"] != figure.name:
        raise Broken(f"{path} is not a record of {figure.name} (lacks {sorted(missing)}).")
    if not any_numbers and (numbers := other_numbers(figure, result)):
        raise Broken(
            f"{path} is of {numbers}: python -m experiments run {figure.name}"
            f"{options(of_record(result))} is what judges and draws it."
        )
    return result


def other_numbers(figure: Figure, stored: Mapping[str, Any]) -> str:
    """The numbers behind stored results, if this process has other numbers; else empty."""
    numbers = described(of_record(stored))
    if numbers == described(applied(figure)):
        return ""
    return f"replaced numbers ({numbers})" if numbers else "the published numbers"


def save_studies(studies: Studies, path: Path) -> None:
    """Write studies to one zip file, a netCDF file each: a third of the size under netCDF's own
    compression of variables. The same studies give the same file.
    """
    content = io.BytesIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as file,
    ):
        for name, study in sorted({f"{name}.nc": study for name, study in studies.items()}.items()):
            saved = fl.save(_shuffled(study), Path(folder) / name)
            file.writestr(zipfile.ZipInfo(name), saved.read_bytes(), zipfile.ZIP_LZMA)
    replace_file(path, content.getvalue())


def _shuffled(study: xr.Dataset) -> xr.Dataset:
    """A study stored with bytes of equal significance next to each other, which compress better."""
    study = study.copy()
    for variable in study.data_vars.values():
        if variable.dtype.kind in "fi" and variable.size > 1:
            variable.encoding = {"shuffle": True, "chunksizes": variable.shape}
    return study


def read_studies(figure: Figure, folder: Path) -> dict[str, xr.Dataset]:
    """The stored studies.

    Raises:
      Broken: they are missing, cut short or altered.
    """
    path = path_of(folder, figure)
    try:
        with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(path) as file:
            return {
                Path(name).stem: fl.load(file.extract(name, scratch)) for name in file.namelist()
            }
    except FileNotFoundError:
        raise Broken(f"no results file {path}.") from None
    except (zipfile.BadZipFile, lzma.LZMAError, EOFError, ValueError) as error:
        raise Broken(f"{path} is not a readable results file ({error}).") from None


#: The parts of a stored claim that come from its figure's module.
DECLARED = (
    *("text", "source", "accepted", "convention", "condition", "construction", "kind"),
    "changed",
)


def check(figure: Figure, folder: Path) -> tuple[list[Verdict], list[str]]:
    """Judge every claim again on the stored results.

    Returns:
      The verdicts, and the disagreements with the stored record.

    Raises:
      Broken: files are missing or unreadable, or lack a variable of a claim.
    """
    stored = read_record(figure, folder)
    studies = read_studies(figure, folder)
    check_digests(figure, stored, folder)
    by_name = {claim["name"]: claim for claim in stored["claims"]}
    verdicts = []
    wrong = []
    for claim in figure.claims:
        try:
            with explain_unstored(figure):
                verdict = claim.judge(studies)
        except (KeyError, ValueError) as error:
            wrong.append(f"{claim.name}: cannot be judged on the stored results ({error!r})")
            continue
        verdicts.append(verdict)
        before = by_name.pop(claim.name, None)
        now = plain(claim_record(claim, verdict))
        if before is None:
            wrong.append(f"{claim.name}: not in the stored record")
        elif (word := word_of(before["holds"], before["decided"])) != str(verdict):
            wrong.append(f"{claim.name}: stored verdict {word!r}, recomputed {str(verdict)!r}")
        elif not _same_numbers(before["cases"], now["cases"]):
            wrong.append(f"{claim.name}: stored numbers differ from the recomputed ones")
        elif other := [word for word in DECLARED if before.get(word) != now[word]]:
            wrong.append(f"{claim.name}: stored with another {' and '.join(other)}; judge it again")
    wrong += [f"{name}: stored, but no claim of the figure" for name in by_name]
    return verdicts, wrong


def _same_numbers(before: dict, now: dict) -> bool:
    if before.keys() != now.keys():
        return False
    pairs = [(before[c].get(k), now[c][k]) for c in now for k in ("value", "low", "high")]
    # Results are stored in single precision, and sums over seeds may be taken in another order.
    return all(
        a is b is None or (None not in (a, b) and math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5))
        for a, b in pairs
    )
