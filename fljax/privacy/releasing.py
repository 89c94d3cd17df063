"""The release of private results without everything that their budget does not cover."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fljax._core import checks
from fljax.privacy.coverage import KEPT_ATTRIBUTES, has, ledger_of, not_covered, private_runs
from fljax.privacy.promises import broken, state

if TYPE_CHECKING:
    import xarray


def released(dataset: "xarray.Dataset", public: Sequence[str] = ()) -> "xarray.Dataset":
    """Return results without everything that their budget does not cover.

    Args:
      dataset: private results.
      public: names of metrics that depend on released models and public data alone.

    Raises:
      ValueError: runs without a budget, or with a nominal one; noise that can be drawn again;
        a choice that was not counted; a public metric that is not there or of exact models.
    """
    # Refuse results whose guarantee does not hold, or not for an observer of the released numbers.
    if not ledger_of(dataset):
        raise ValueError("nothing covers these results: release=True is for runs with privacy=.")
    done = dataset.get("done", True)
    if bool((~private_runs(dataset) & done).any()):
        raise ValueError(
            "some runs have no budget, and nothing covers them; select the others with "
            "dataset.sel(...) before release=True."
        )
    if has(dataset, "nominal", lambda values: values == 1):
        reasons = " ".join(broken(dataset).values())
        raise ValueError(
            f"the privacy figures of some runs are nominal, and release=True keeps what is "
            f"guaranteed: {reasons} Mend this, or select the other runs."
        )
    if not dataset.attrs.get("noise_seed"):
        raise ValueError(
            "the noise of these results can be drawn again by anybody who guesses the key or root "
            'and the seeds, which are numbers of 32 bits; run with noise_seed="entropy", or an '
            "integer of your own, before release=True."
        )
    if "tuning" in dataset.attrs:
        raise ValueError(
            f"{dataset.attrs['tuning']}: the choice depends on private data at a cost that no "
            "budget here covers. Choose on public data, or by fljax.tune(private=...)."
        )
    uncovered = not_covered(dataset)
    for name in public:
        checks.choice("public metric", name, sorted(map(str, dataset.data_vars)))
        if uncovered.get(name, "a metric of released models") != "a metric of released models":
            raise ValueError(
                f"{name!r} is not covered ({uncovered[name]}), whatever data it is computed from; "
                "leave it out of public=, or simulate with model='released'."
            )
    # The seeds, and all attributes but the listed ones, could help to draw the noise again.
    lost = [name for name in uncovered if name in dataset.data_vars and name not in public]
    result = dataset.drop_vars([*lost, *({"comparison"} & set(map(str, dataset.coords)))])
    if "seed" in result.coords:
        result = result.drop_vars("seed")
        if "seed" in result.dims:
            result = result.assign_coords(seed=np.arange(result.sizes["seed"]))
    attributes = dataset.attrs
    result.attrs = {name: attributes[name] for name in KEPT_ATTRIBUTES if name in attributes}
    state(result)
    result.attrs["not_covered"] = "nothing"
    if public:
        result.attrs["public"] = ", ".join(public)
    return result
