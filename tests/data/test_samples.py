"""Samples of Hugging Face's library (where it is installed) and of scikit-learn's, as arrays."""

import types

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.utils import Bunch

import fljax as fl
from fljax.data import by_user, from_huggingface, from_sklearn

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (5, 4, 3, 3), np.uint8)
ROWS = {
    "image": PIXELS,
    "label": [1, 0, 1, 2, 0],
    "word": ["yes", "no", "yes", "no", "no"],
    "writer": ["eve", "ada", "eve", "bob", "ada"],
    "age": [30, 40, 30, 50, 40],
    "height": [0.1, 1 / 3, 0.5, 2.0, 0.7],
    "vector": [[0.1, 0.2]] * 5,
    "ragged": [[1], [1, 2], [1, 2, 3], [1], [1]],
    "gap": [0.5, None, 1.5, 2.5, 3.5],
    "unsure": ["yes", None, "no", "no", "no"],
}
NAMES = ["ant", "bee", "cat"]


class StandIn:
    """What of ``datasets.Dataset`` is used, as its documentation says it behaves."""

    def __init__(self, rows, dtype=None):
        self.rows = rows
        self.dtype = dtype
        self.column_names = list(rows)
        self.features = dict.fromkeys(rows) | {"label": types.SimpleNamespace(names=NAMES)}

    def __len__(self):
        return 5

    def with_format(self, kind, dtype=None):
        assert kind == "numpy"
        return StandIn(self.rows, dtype or np.float32)

    def select_columns(self, names):
        return StandIn({name: self.rows[name] for name in names}, self.dtype)

    def __getitem__(self, rows):
        assert rows == slice(None)
        return {name: self.array(column) for name, column in self.rows.items()}

    def array(self, column):
        if column is ROWS["ragged"]:
            result = np.empty(5, object)
            result[:] = [np.array(entry) for entry in column]
            return result
        if column is ROWS["gap"]:
            column = [np.nan if entry is None else entry for entry in column]
        array = np.array(column)
        kinds = {"f": self.dtype, "u": np.int64}
        return array.astype(kinds.get(array.dtype.kind, array.dtype))


def real():
    datasets = pytest.importorskip("datasets")
    rows = ROWS | {"image": [image.tolist() for image in PIXELS]}
    kinds = {
        "image": datasets.Array3D((4, 3, 3), "uint8"),
        "label": datasets.ClassLabel(names=NAMES),
        **dict.fromkeys(("word", "writer", "unsure"), datasets.Value("string")),
        "age": datasets.Value("int32"),
        **dict.fromkeys(("height", "gap"), datasets.Value("float64")),
        "vector": datasets.Sequence(datasets.Value("float64"), length=2),
        "ragged": datasets.Sequence(datasets.Value("int64")),
    }
    return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))


@pytest.fixture(params=["stand-in", "real"])
def dataset(request):
    return StandIn(ROWS) if request.param == "stand-in" else real()


def test_a_column_of_arrays_keeps_its_shape(dataset):
    result = from_huggingface(dataset, "image", "label", user="writer")
    np.testing.assert_array_equal(result.features, PIXELS)
    assert result.features.dtype == result.targets.dtype == np.int32
    assert result.targets.tolist() == ROWS["label"]
    assert result.classes == ("ant", "bee", "cat")
    parts = by_user(result.users)
    assert [rows.tolist() for rows in parts] == [[1, 4], [3], [0, 2]]


def test_columns_of_numbers_are_put_side_by_side(dataset):
    result = from_huggingface(dataset, ["height", "age"], "word")
    np.testing.assert_array_equal(result.features, np.stack([ROWS["height"], ROWS["age"]], 1))
    assert result.targets.tolist() == [1, 0, 1, 0, 0]
    assert result.classes == ("no", "yes")
    assert result.users is None
    result = from_huggingface(dataset, "vector", "height")
    np.testing.assert_array_equal(result.features, ROWS["vector"])  # no digit is lost
    np.testing.assert_array_equal(result.targets, ROWS["height"])
    assert result.classes == ()
    assert from_huggingface(dataset, "height", "age").features.shape == (5,)


@pytest.mark.parametrize(
    ("features", "target", "error", "message"),
    [
        ("images", "label", ValueError, "unknown column 'images'.*Did you mean 'image'"),
        ("image", "lable", ValueError, "unknown column 'lable'"),
        ([], "label", ValueError, "one or more columns, got none"),
        (["age", "image"], "label", ValueError, r"'image' holds arrays of shape \(4, 3, 3\)"),
        ("ragged", "label", ValueError, "'ragged' holds samples of several shapes; pad"),
        ("gap", "label", ValueError, "'gap' holds 1 NaN"),
        ("word", "label", TypeError, "'word' must hold numbers.*encode it first"),
        ("image", "unsure", ValueError, "'unsure' must be a class of each row, got None in row 1"),
    ],
)
def test_columns_that_do_not_fit_are_named(dataset, features, target, error, message):
    with pytest.raises(error, match=message):
        from_huggingface(dataset, features, target)


def test_invalid_data_sets_are_named():
    with pytest.raises(TypeError, match=r"must be a datasets\.Dataset"):
        from_huggingface({"x": [1]}, "x", "x")
    splits = types.SimpleNamespace(column_names={"train": ["x"], "test": ["x"]})
    with pytest.raises(TypeError, match=r"one split, got a dict of train, test; take dataset\['tr"):
        from_huggingface(splits, "x", "x")


def test_splits_and_streams_of_the_real_library_are_distinguished():
    datasets = pytest.importorskip("datasets")
    dataset = real()
    with pytest.raises(TypeError, match=r"take dataset\['train'\]"):
        from_huggingface(datasets.DatasetDict({"train": dataset}), "age", "label")
    with pytest.raises(TypeError, match="of a stream"):
        from_huggingface(dataset.to_iterable_dataset(), "age", "label")
    with pytest.raises(ValueError, match="got 0 samples"):
        from_huggingface(dataset.select([]), "age", "height")
    formatted = dataset.with_format("numpy").select([3, 0])  # as the user left it
    assert from_huggingface(formatted, "age", "label").features.tolist() == [50, 30]


def test_images_of_the_real_library_are_decoded():
    datasets = pytest.importorskip("datasets")
    pillow = pytest.importorskip("PIL.Image")
    pictures = {"x": [pillow.fromarray(image) for image in PIXELS], "y": [0.5] * 5}
    kinds = datasets.Features({"x": datasets.Image(), "y": datasets.Value("float32")})
    result = from_huggingface(datasets.Dataset.from_dict(pictures, features=kinds), "x", "y")
    np.testing.assert_array_equal(result.features, PIXELS)
    assert result.features.dtype == np.uint8


def test_bunches_and_pairs_of_sklearn():
    iris = load_iris()
    result = from_sklearn(iris)
    np.testing.assert_array_equal(result.features, iris.data)
    np.testing.assert_array_equal(result.targets, iris.target)
    assert result.classes == ("setosa", "versicolor", "virginica")
    framed = from_sklearn(load_iris(as_frame=True))
    np.testing.assert_array_equal(framed.features, iris.data)
    assert framed.classes == result.classes
    assert from_sklearn(load_diabetes()).classes == ()
    counted = Bunch(data=np.eye(2), target=[3, 0], target_names=["bicycles"])
    assert from_sklearn(counted).classes == ()  # which names the target, not its values
    x, y = load_digits(return_X_y=True)
    pair = from_sklearn((x.reshape(-1, 8, 8), y.astype(str)))
    assert pair.features.shape == (1797, 8, 8)
    np.testing.assert_array_equal(pair.targets, y)
    assert pair.classes == tuple("0123456789")


def test_a_bunch_is_a_problem_in_two_lines():
    result = from_sklearn(load_diabetes())
    parts = fl.data.power_law(len(result.features), 6, exponent=1.0, seed=0, least=20)
    clients = [(result.features[rows], result.targets[rows]) for rows in parts]
    problem = fl.problems.from_clients(clients, fl.problems.LeastSquares())
    assert problem.sample_counts().tolist() == [len(rows) for rows in parts]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (Bunch(data=np.eye(2)), TypeError, "must be a Bunch with data and target or a pair"),
        (np.eye(2), TypeError, "must be a Bunch"),
        ((np.eye(2), [0, 1, 2]), ValueError, "got 2 samples and 3 targets"),
        ((np.zeros((0, 2)), []), ValueError, "got 0 samples"),
        (([[1.0], [1.0, 2.0]], [0, 1]), ValueError, "samples of several shapes"),
        (([[1.0], [np.nan]], [0, 1]), ValueError, "'data' holds 1 NaN"),
        (([["a"], ["b"]], [0, 1]), TypeError, "'data' must hold numbers"),
        ((None, [0]), TypeError, "got None"),
    ],
    ids=range(8),
)
def test_missing_parts_of_sklearn_data_are_named(data, error, message):
    with pytest.raises(error, match=message):
        from_sklearn(data)


def test_sparse_features_are_named():
    import scipy.sparse

    with pytest.raises(TypeError, match=r"X\.toarray\(\), y"):
        from_sklearn((scipy.sparse.eye_array(3).tocsr(), [0, 1, 2]))
