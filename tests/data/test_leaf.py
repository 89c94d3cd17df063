"""LEAF's JSON: users of several files as clients, encodings by hand, errors by name."""

import importlib
import json

import numpy as np
import pytest

from fljax.data import LETTERS, clients_of_leaf, femnist, leaf, shakespeare, write_population

#: The module, whose name is that of a function of the room.
leaf_files = importlib.import_module("fljax.data.leaf")


def file(**users):
    """A file's content, from ``(x, y)`` of each user."""
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


def write(folder, train, test):
    """Folders ``train`` and ``test`` of these contents, by the names of their files."""
    for part, files in (("train", train), ("test", test)):
        (folder / part).mkdir(exist_ok=True)
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / part / name).write_text(text)
    return folder


def images(*levels):
    """An image of each level, whose first pixels of the second row are marked."""
    return [[level] * 28 + [0.0, 0.25] + [level] * 754 for level in levels]


def text(start):
    """80 characters and the next one, from LEAF's in their order."""
    run = (LETTERS * 3)[start : start + 81]
    return run[:80], run[80]


def test_writers_are_clients_in_the_order_of_the_files(tmp_path):
    train = {
        "all_1.json": file(cy=(images(0.5, 1.0, 1.0), [3, 10, 61])),
        "all_0.json": file(ben=(images(1.0), [36]), ada=(images(0.25, 0.75), [0, 35])),
        "remarks.txt": "not data",
    }
    test = {"all.json": file(ada=(images(1.0), [7]), ben=(images(1.0), [8]), cy=(images(0.0), [9]))}
    data = femnist(write(tmp_path, train, test))
    assert data.names == ("ben", "ada", "cy")
    assert [x.shape for x, _ in data.clients] == [(1, 28, 28, 1), (2, 28, 28, 1), (3, 28, 28, 1)]
    assert [y.tolist() for _, y in data.clients] == [[36], [0, 35], [3, 10, 61]]
    assert [y.tolist() for _, y in data.test] == [[8], [7], [9]]
    image = data.clients[1][0][1, :, :, 0]
    assert image[1, :3].tolist() == [0, 0.25, 0.75]  # rows, not columns
    assert (image[0] == 0.75).all()
    assert data.clients[0][0].dtype == np.float64
    assert data.clients[0][1].dtype == np.int32
    assert [data.classes[c] for c in (0, 10, 35, 36, 61)] == ["0", "A", "Z", "a", "z"]
    assert len(data.classes) == 62
    assert "LEAF" in data.source


def test_roles_are_clients_and_characters_numbers(tmp_path):
    assert len(LETTERS) == len(set(LETTERS)) == 80
    windows = {start: text(start) for start in (0, 5, 79)}
    train = file(
        HAMLET=([windows[0][0], windows[5][0]], [windows[0][1], windows[5][1]]),
        YORICK=([windows[79][0]], [windows[79][1]]),
    )
    data = shakespeare(write(tmp_path, {"a.json": train}, {"a.json": train}))
    assert data.names == ("HAMLET", "YORICK")
    x, y = data.clients[0]
    np.testing.assert_array_equal(x, (np.arange(80)[None] + [[0], [5]]) % 80)
    assert y.tolist() == [0, 5]
    assert x.dtype == y.dtype == np.int32
    np.testing.assert_array_equal(data.clients[1][0], [(np.arange(80) + 79) % 80])
    assert data.classes[1] == " "
    assert "".join(data.classes[c] for c in x[0]) == LETTERS


def test_plain_numbers_are_kept_and_duplicate_users_are_tested_together(tmp_path):
    train = {"a.json": file(one=([[1, 2], [3, 4]], [0.5, 1.5]), two=([[5, 6]], [2.5]))}
    test = {"a.json": file(new=([[7, 8]], [3.5]), other=([[9, 0]], [4.5]))}
    data = leaf(write(tmp_path, train, test))
    assert data.clients[0][0].tolist() == [[1, 2], [3, 4]]
    assert data.clients[0][0].dtype == np.int32
    assert data.clients[0][1].dtype == np.float64
    assert data.classes == ()
    (x, y), *rest = data.test
    assert not rest
    assert x.tolist() == [[7, 8], [9, 0]]
    assert y.tolist() == [3.5, 4.5]


def test_users_that_a_file_does_not_list_are_left_out(tmp_path):
    """LEAF's split leaves users with too few samples in ``user_data``."""
    content = file(a=([[1.0]], [0]))
    content["user_data"]["few"] = {"x": [], "y": []}
    assert leaf(write(tmp_path, {"a.json": content}, {"a.json": content})).names == ("a",)


GOOD = file(ada=(images(0.5), [1]))


def changed(**change):
    return GOOD | change


@pytest.mark.parametrize("kind", ["femnist", "shakespeare", "numbers"])
def test_clients_of_a_folder_come_a_file_at_a_time(tmp_path, monkeypatch, kind):
    """The population on disk equals the clients read from the whole folder."""
    users = {
        "femnist": [(images(0.5, 1.0), [3, 61]), (images(0.25), [9]), (images(0.0), [0])],
        "shakespeare": [tuple(map(list, zip(text(k), text(k + 1), strict=True))) for k in range(3)],
        "numbers": [([[1, 2]], [3]), ([[4, 5]], [6]), ([[7, 8]], [9])],
    }[kind]
    files = {f"{k}.json": file(**{f"user {k}": pair}) for k, pair in enumerate(users)}
    write(tmp_path, files, files)
    read = []
    read_file = leaf_files._of_file
    monkeypatch.setattr(leaf_files, "_of_file", lambda path: read.append(path) or read_file(path))
    coming = clients_of_leaf(tmp_path / "train", kind)
    assert next(coming)[2] == "user 0"
    assert len(read) == 1
    population = write_population(tmp_path / "p", clients_of_leaf(tmp_path / "train", kind))
    loaded = {"femnist": femnist, "shakespeare": shakespeare, "numbers": leaf}[kind](tmp_path)
    assert population.names == list(loaded.names)
    for k, (x, y) in enumerate(loaded.clients):
        np.testing.assert_array_equal(population[k][0], x)
        np.testing.assert_array_equal(population[k][1], y)


def test_a_bad_client_leaves_no_population(tmp_path):
    content = file(ada=([[1.0]], [1]))
    write(tmp_path, {"a.json": content, "b.json": content}, {})
    with pytest.raises(ValueError, match=r"user 'ada' is in .*a\.json and in .*b\.json"):
        write_population(tmp_path / "p", clients_of_leaf(tmp_path / "train"))
    assert not (tmp_path / "p").exists()
    with pytest.raises(FileNotFoundError, match=r"no file .*json"):
        next(clients_of_leaf(tmp_path / "none"))
    with pytest.raises(ValueError, match="unknown data 'mnist'"):
        clients_of_leaf(tmp_path / "train", "mnist")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"a.json": json.dumps(GOOD)[:-30]}, r"train/a\.json is no JSON, or was cut short"),
        ({"a.json": [1, 2]}, r"a\.json is not of LEAF's format.*: users is missing"),
        (
            {"a.json": {"users": ["ada"], "user_data": {}}},
            "num_samples is missing or something else",
        ),
        ({"a.json": changed(num_samples=[1, 2])}, "1 users and 2 num_samples"),
        ({"a.json": changed(num_samples=[2])}, "'ada' of .* has 1 x and 1 y, and 2 samples by"),
        ({"a.json": changed(user_data={})}, "lists user 'ada', who has no x and y"),
        ({"a.json": changed(user_data={"ada": {"x": []}})}, "who has no x and y"),
        ({"a.json": changed(user_data={"ada": [1]})}, "who has no x and y"),
        ({"a.json": changed(user_data=[1])}, "user_data is missing or something else"),
        ({"a.json": file(ada=([2**31], [1]))}, "x must be finite and >= -2.14"),
        ({"a.json": file(ada=([], []))}, "user 'ada' of .* has no samples; .* -k 2"),
        ({"a.json": GOOD, "b.json": GOOD}, r"'ada' is in .*a\.json and in .*b\.json"),
        (
            {"a.json": changed(users=["ada"] * 2, num_samples=[1, 1])},
            r"'ada' is twice in .*a\.json",
        ),
        (
            {"a.json": file(ada=(images(0.5), [1]), eve=(images(0.5), [1]))},
            "'eve' of .* is only in",
        ),
        (
            {"a.json": file(ada=([[0.5] * 783], [1]))},
            r"'ada' of .* 784 numbers.*got shape \(783,\)",
        ),
        ({"a.json": file(ada=(images(255.0), [1]))}, "from 0 to 1, got shape .* to 255"),
        ({"a.json": file(ada=([[0.5] * 784, [0.5]], [1, 1]))}, "x must be of one shape"),
        ({"a.json": file(ada=(["text"], [1]))}, "x must be numbers, got 'text'"),
        ({"a.json": file(ada=(images(0.5), [62]))}, "y must be a class .* below 62"),
        ({"a.json": file(ada=(images(0.5), [1.5]))}, "y must be a class"),
    ],
    ids=range(20),
)
def test_errors_are_named(tmp_path, train, message):
    with pytest.raises(ValueError, match=message):
        femnist(write(tmp_path, train, {"a.json": GOOD}))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("a" * 79, "b", "x must be texts of 80 characters, got 'aaa"),
        ("a" * 80, "bc", "y must be texts of 1 characters, got 'bc'"),
        ("a" * 80, 3, "y must be texts of 1 characters, got 3"),
        ("a" * 79 + "é", "b", "'é' is not among LEAF's 80 characters"),
        ("a" * 80, "~", "'~' is not among"),
        ("a" * 80, "$", "user 'role' of .*'\\$' is not among"),
    ],
)
def test_another_vocabulary_is_refused(tmp_path, x, y, message):
    content = {"a.json": file(role=([x], [y]))}
    with pytest.raises(ValueError, match=message):
        shakespeare(write(tmp_path, content, content))


def test_users_of_other_shapes_are_refused(tmp_path):
    content = file(a=([[1.0]], [0]), b=([[1.0, 2.0]], [0]))
    other = file(a=([[1.0]], [[0]]))
    with pytest.raises(ValueError, match=r"x of user 'b' is of shape \(2,\) and that of user 'a'"):
        leaf(write(tmp_path, {"a.json": content}, {"a.json": content}))
    with pytest.raises(ValueError, match=r"y of user 'a of test' is of shape \(1,\)"):
        leaf(write(tmp_path, {"a.json": file(a=([[1.0]], [0]))}, {"a.json": other}))


def test_a_folder_that_is_not_leaf_s_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*train/\*\.json; LEAF's preprocess"):
        femnist(tmp_path)
    write(tmp_path, {"a.json": GOOD}, {})
    with pytest.raises(FileNotFoundError, match=r"no file .*test/\*\.json"):
        femnist(tmp_path)
