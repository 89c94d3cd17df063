"""The release of private results without everything that their budget does not cover."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fljax import _check
from fljax.privacy.coverage import KEPT_ATTRIBUTES, has, ledger_of, not_covered, private_runs
from fljax.privacy.promises import broken, state

if TYPE_CHECKING:
    import xarray

__all__ = ["released"]


def released(dataset: "xarray.Dataset", public: Sequence[str] = ()) -> "xarray.Dataset":
    """Return results without everything that their budget does not cover.

    Args:
      dataset: private results.
      public: names of metrics that depend on released models and public data alone.

    Raises:
      ValueError: runs without a budget, or with a nominal one; noise that can be drawn again;
        a choice that was not counted; a public metric that is not there or of exact models.
    """
    if not ledger_of(dataset):
        raise ValueError("nothing covers these results: release=True is for runs with privacy=.")
    there = dataset.get("done", True)
    if bool((~private_runs(dataset) & there).any()):
        raise ValueError(
            "some runs have no budget, and nothing covers them; select the others with "
            "dataset.sel(...) before release=True."
        )
    if has(dataset, "nominal", lambda values: values == 1):
        why = " ".join(broken(dataset).values())
        raise ValueError(
            f"the privacy figures of some runs are nominal, and release=True keeps what is "
            f"guaranteed: {why} Mend this, or select the other runs."
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
        _check.choice("public metric", name, sorted(map(str, dataset.data_vars)))
        if uncovered.get(name, "a metric of released models") != "a metric of released models":
            raise ValueError(
                f"{name!r} is not covered ({uncovered[name]}), whatever data it is computed from; "
                "leave it out of public=, or simulate with model='released'."
            )
    lost = [name for name in uncovered if name in dataset.data_vars and name not in public]
    kept = dataset.drop_vars([*lost, *({"comparison"} & set(map(str, dataset.coords)))])
    if "seed" in kept.coords:
        kept = kept.drop_vars("seed")
        if "seed" in kept.dims:
            kept = kept.assign_coords(seed=np.arange(kept.sizes["seed"]))
    attributes = dataset.attrs
    kept.attrs = {name: attributes[name] for name in KEPT_ATTRIBUTES if name in attributes}
    state(kept)
    kept.attrs["not_covered"] = "nothing"
    if public:
        kept.attrs["public"] = ", ".join(public)
    return kept
