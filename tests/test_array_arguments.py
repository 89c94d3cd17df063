"""Every array argument of every public function: as columns of other libraries, and as invalid
arrays.

The calls are those of `tests/test_bad_input.py`, so a new public function is tried here as well.
Invalid arrays are refused in one clear line, or listed here with a reason.
"""

import typing

import jax
import jaxtyping
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from tests.test_bad_input import PUBLIC, UNTRIED, VALID, K, judge, parameters


def is_array(value):
    """Whether the value is an array or a list of numbers or names."""
    if isinstance(value, jax.Array):
        return value.ndim > 0 and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    if type(value) in (list, tuple):
        try:
            value = np.asarray(value)
        except ValueError:  # ragged
            return False
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "biufU"


ARRAYS = {
    label: names
    for label in PUBLIC
    if label not in UNTRIED
    and (names := [name for name, value in VALID[label].items() if is_array(value)])
}


pytestmark = pytest.mark.usefixtures("annotations_unchecked")


@pytest.fixture(autouse=True)
def _pictures_closed():
    yield
    plt.close("all")


def bad_values(value):
    """Arrays of the same kind that hardly any function has an answer for."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        for name, number in (("nan", np.nan), ("infinity", np.inf)):
            changed = array.copy()
            changed.flat[-1] = number
            yield name, changed
    yield "empty", np.zeros((0, *array.shape[1:]), array.dtype)
    if array.ndim > 1:
        yield "narrow", np.zeros((*array.shape[:-1], 0), array.dtype)
    if array.ndim == 2 and array.shape[0] != array.shape[1]:
        yield "transposed", array.T
    if array.ndim == 1 and len(array) > 1:
        yield "column", array[:, None]


ACCEPTED = {
    # no parameters are personal; an axis of a grid without points is refused by the sweep
    **{
        (f"algorithms.{name}", "personal"): "empty"
        for name in ("FedBABU", "FedBN", "FedPer", "FedRep", "LGFedAvg")
    },
    ("static", "values"): "empty",
    # a client that stays available from some moment on
    ("clock.Intervals", "end"): "infinity",
    # rounds without data; a model that has diverged; rounds and nodes that no other argument tells
    ("monitoring.calibrated_threshold", "errors"): "nan",
    ("monitoring.page_hinkley", "errors"): "nan infinity transposed",
    ("monitoring.report", "errors"): "nan infinity",
    ("streams.from_observations", "targets"): "nan",
    # a loss that is infinite with some probability
    ("privacy.accounting.monte_carlo_delta", "losses"): "infinity",
    ("privacy.accounting.monte_carlo_epsilon", "losses"): "infinity",
    # rows and columns of any number; a run compares them with its own when it begins
    ("algorithms.ModelAgnosticFedRelax", "test_set"): "transposed",
    ("algorithms.FedMD", "public"): "transposed",
    ("contrib.replaced_features", "features"): "transposed",
    ("link.DelayTrace", "table"): "transposed",
    ("participation.Trace", "table"): "transposed",
    ("privacy.gaussian_release", "models"): "transposed",
    ("privacy.laplace_release", "models"): "transposed",
    ("privacy.matrices.Banded", "columns"): "transposed",
    **{
        (f"theory.operators.{name}", "center"): "transposed"
        for name in ("contractive", "firmly_non_expansive", "lipschitz")
    },
    ("theory.operators.fixed_point", "start"): "transposed",
    # points, labels and rounds of any shape
    ("contrib.randomized_labels", "labels"): "column",
    ("contrib.subsample", "targets"): "column",
    ("descent.minimize", "start"): "column",
    ("privacy.accounting.pure_composition", "epsilon"): "column",
    **{("contrib.joint_table", name): "column" for name in ("private", "features", "useful")},
    ("contrib.private_map", "attributes"): "column",
    ("contrib.quantized", "values"): "column",
    ("contrib.reconstruction_error", "attributes"): "column",
    ("theory.multiagent_privacy.epsilon", "deviation"): "column",
    ("theory.multiagent_privacy.noise_variance", "deviation"): "column",
}


#: Sizes of the axes of annotations in the valid calls; other axes have size 3.
SIZES = {"clients": K, "nodes": K, "dim": 2}


def ones_like(annotation):
    """Ones of the kind and the shape that an annotation asks for; ``None`` if it is of no array."""
    for kind in typing.get_args(annotation) or (annotation,):
        if isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractArray):
            shape = [SIZES.get(axis.lstrip("*#"), 3) for axis in kind.dim_str.split()]
            numbers = {jaxtyping.Int: int, jaxtyping.Bool: bool}.get(kind.dtype, float)
            return np.ones(shape, numbers) if shape else None
    return None


#: What the valid calls leave out, by callable and name.
OPTIONAL = {
    label: found
    for label in PUBLIC
    if label not in UNTRIED
    and (
        found := {
            name: array
            for name, parameter in parameters(PUBLIC[label]).items()
            if name not in VALID[label] and (array := ones_like(parameter.annotation)) is not None
        }
    )
}


def bad_optional_values(array):
    """As :func:`bad_values`, and arrays that are one too long, and indices out of range."""
    yield from bad_values(array)
    for axis in range(array.ndim):
        yield "long", np.concatenate([array, array.take([0], axis)], axis)
    if array.dtype.kind == "i":
        yield "negative", -array
        yield "beyond", 1000 * array


ACCEPTED_OPTIONAL = {
    # one for each client, and as many are compared with the problem when a run begins
    ("algorithms.APFL", "interpolation"): "long",
    ("algorithms.KNNPer", "interpolation"): "long",
    **{
        (f"algorithms.{name}", "inter_cluster"): "long"
        for name in ("NPFL", "NPFLByGradient", "NPFLByLoss")
    },
    ("algorithms.NPFLRL", "initial"): "long",
    # one entry a lag; a run has as many lags as its delays are long
    **{(f"algorithms.{name}", "discount"): "long" for name in ("PAOFed", "PAOFedGraph", "PSOFed")},
    # one for each level of servers, which the network of a run has as many of
    **{(f"algorithms.{name}", "fractions"): "long" for name in ("HierFAVG", "HierLocalQSGD")},
    # of each of any number of levels, that clients are drawn from
    ("problems.clustered_ridge", "noise_variance"): "long",
    # three parameters, which those models have
    ("graphs.agreed", "shared"): "long",
}


@pytest.mark.parametrize("label", OPTIONAL)
@pytest.mark.thin(10)
def test_optional_arrays_without_an_answer_are_refused_or_listed(label):
    wrong = []
    for name, array in OPTIONAL[label].items():
        listed = ACCEPTED_OPTIONAL.get((label, name), "").split()
        for kind, value in bad_optional_values(array):
            verdict = judge(label, name, VALID[label] | {name: value})
            if verdict != ("accepted" if kind in listed else "clear"):
                wrong.append(f"{name} = {kind}: {verdict}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("label", ARRAYS)
@pytest.mark.thin(40)
def test_arrays_without_an_answer_are_refused_or_listed(label):
    wrong = []
    for name in ARRAYS[label]:
        listed = ACCEPTED.get((label, name), "").split()
        for kind, value in bad_values(VALID[label][name]):
            verdict = judge(label, name, VALID[label] | {name: value})
            if verdict != ("accepted" if kind in listed else "clear"):
                wrong.append(f"{name} = {kind}: {verdict}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("label", ARRAYS)
@pytest.mark.thin(25)
def test_whole_numbers_and_booleans_are_numbers_or_refused(label):
    """Errors name the caller's argument, not an internal type."""
    wrong = []
    for name in ARRAYS[label]:
        array = np.asarray(VALID[label][name])
        if array.dtype.kind != "f":
            continue
        for kind, value in (("whole", np.rint(array).astype(int)), ("booleans", array > 0)):
            verdict = judge(label, name, VALID[label] | {name: value})
            if verdict not in ("accepted", "clear"):
                wrong.append(f"{name} = {kind}: {verdict}")
    assert not wrong, "\n".join(wrong)


def columns(value):
    """The same numbers as lists and in other libraries' types, with unordered indices."""
    array = np.asarray(value)
    yield "list", array.tolist()
    backwards = range(len(array))[::-1]
    if array.ndim == 1:
        yield "series", pd.Series(array, index=backwards)
        if array.dtype.kind in "iuU":
            yield "categories", pd.Series(array, index=backwards, dtype="category")
    elif array.ndim == 2:
        yield "frame", pd.DataFrame(array, index=backwards)
    try:
        import polars as pl
    except ImportError:
        return
    if array.ndim == 1:
        yield "polars", pl.Series(array.tolist())
    elif array.ndim == 2:
        yield "polars", pl.DataFrame({str(i): c.tolist() for i, c in enumerate(array.T)})


def numbers(result):
    """All that a result holds, as arrays."""
    if isinstance(result, list | tuple | dict):
        inside = result.values() if isinstance(result, dict) else result
        return [number for entry in inside for number in numbers(entry)]
    leaves = jax.tree.leaves(result)
    return [np.asarray(a, float) for a in leaves if isinstance(a, jax.Array | np.ndarray | float)]


#: A list of lists of rows, which are not one table.
ROWS = {("plotting.draw_partition", "parts")}


#: What they compile takes seconds for each column.
COSTLY = {"clustering.gaussian_mixture", "problems.heterogeneous_softmax"}


@pytest.mark.parametrize(
    "label",
    [pytest.param(name, marks=pytest.mark.slow) if name in COSTLY else name for name in ARRAYS],
)
@pytest.mark.thin(25)
def test_columns_of_any_library_and_index_are_taken_by_position(label):
    arguments = VALID[label]
    wanted = numbers(PUBLIC[label](**arguments))
    for name in ARRAYS[label]:
        if (label, name) in ROWS:
            continue
        for form, value in columns(arguments[name]):
            got = numbers(PUBLIC[label](**arguments | {name: value}))
            assert len(got) == len(wanted), (name, form)
            for received, expected in zip(got, wanted, strict=True):
                np.testing.assert_allclose(
                    received, expected, rtol=1e-6, err_msg=f"{name} as {form}"
                )
