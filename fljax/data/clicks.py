r"""Click logs: the user's copy of the Avazu file, and a synthetic log for users without it.

Rizk 2023 learns from 5,101 rows of Avazu's log, in the LIBSVM form with a million features. It may
not be redistributed; users with a copy read it with :func:`avazu`. Others draw :func:`click_log`,
which has its form (one category per field, few of them frequent) and none of its content.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.memory import check_fits
from fljax._core.module import float_dtype
from fljax._core.prng import normal
from fljax.data.libsvm import SampleTable, libsvm

#: Sizes of the LIBSVM form of Avazu's log.
AVAZU_FEATURES = 1_000_000


class Clicks(NamedTuple):
    """Samples of a click log and their labels."""

    features: Array  # [n, P], one entry a field, rows of length one
    labels: Array  # [n], 1 for a click and -1 for none


@checked
def click_log(
    key: Key[Array, ""],
    rows: int,
    fields: int = 15,
    categories: int = 64,
    positives: Float[Array, ""] | float = 0.5,
    spread: Float[Array, ""] | float = 3.0,
) -> Clicks:
    r"""A synthetic click log, each row with one category of every field.

    Categories follow Zipf's law: the :math:`c`-th of a field has a probability proportional to
    :math:`1/c`; each has a normal effect on the log-odds of a click. Labels are logistic in the sum
    of a row's effects: the rows with the largest log-odds plus noise are clicks.

    Args:
      key: consumed.
      rows: ``n``.
      fields: number of fields of a row; Avazu's have 15 in their LIBSVM form.
      categories: number of categories of a field; ``P = fields * categories``.
      positives: the share of clicks, in (0, 1). Avazu's is about 0.17, for which a constant answer
        is hard to beat.
      spread: the standard deviation of a row's log-odds, > 0.

    Raises:
      ValueError: a count below one, a share or a spread out of range.
      MemoryError: a table that does not fit.

    Example:
      >>> import fljax as fl
      >>> features, labels = fl.data.click_log(fl.random_key(0), 100, fields=3, categories=4)
      >>> features.shape, float((labels > 0).mean())
      ((100, 12), 0.5)
    """
    for name, count in (("rows", rows), ("fields", fields), ("categories", categories)):
        checks.count(name, count)
    checks.interval("positives", positives, above=0, below=1)
    checks.positive("spread", spread)
    dtype = float_dtype()
    what = f"a table of {rows} rows x {fields} fields x {categories} categories"
    check_fits(
        what, rows, fields, categories, entry_bytes=dtype.itemsize, mend="take fewer categories"
    )
    of_categories, of_effects, of_labels = jax.random.split(key, 3)
    probabilities = 1 / np.arange(1, categories + 1)
    ends = jnp.asarray(np.cumsum(probabilities / probabilities.sum())[:-1], dtype)
    drawn = jax.random.uniform(of_categories, (rows, fields), dtype)
    category = jnp.searchsorted(ends, drawn, side="right")
    effects = normal(of_effects, (fields, categories), dtype)
    odds = jnp.sum(effects[jnp.arange(fields, dtype=jnp.int32), category], axis=1)
    odds = spread / np.sqrt(fields) * odds + jax.random.logistic(of_labels, (rows,), dtype)
    labels = jnp.where(odds > jnp.quantile(odds, 1 - jnp.asarray(positives, dtype)), 1, -1)
    features = jax.nn.one_hot(category, categories, dtype=dtype).reshape(rows, -1)
    return Clicks(features / np.sqrt(fields).astype(dtype), labels.astype(dtype))


@checked
def avazu(path: str | Path, rows: int = 5101, test: int = 256, dim: int = 1000) -> SampleTable:
    """Rows of Avazu's log from the user's LIBSVM file, with hashed features.

    A million features would take 41 GB for 5,101 rows. Each is added, with a sign, to one of
    ``dim`` numbers, where both are random but fixed (Weinberger et al. 2009).

    Args:
      path: path of ``avazu-app``, ``avazu-site`` or a part of either, plain or compressed.
      rows: number of training rows, from the start of the file.
      test: number of held-out rows after these.
      dim: number of hashed features.

    Returns:
      The table; labels are 1 for a click and -1 for none.

    Raises:
      FileNotFoundError: no such file.
      ValueError: fewer rows than requested, a file that is not in the format.
    """
    for name, count in (("rows", rows), ("test", test), ("dim", dim)):
        checks.count(name, count)
    samples, labels = libsvm(path, AVAZU_FEATURES, rows + test)
    draws = np.random.default_rng(0)
    columns = draws.integers(dim, size=AVAZU_FEATURES)
    signs = draws.choice([-1.0, 1.0], size=AVAZU_FEATURES)
    which = np.arange(AVAZU_FEATURES)
    hashing = scipy.sparse.csr_array((signs, (which, columns)), (AVAZU_FEATURES, dim))
    features = scipy.sparse.csr_array(samples @ hashing).toarray().astype(float_dtype())
    clicked = np.where(labels > 0, 1, -1).astype(float_dtype())
    return SampleTable(features[:rows], clicked[:rows], features[rows:], clicked[rows:])
