import math

import numpy as np
import pandas as pd
import pytest

import fljax as fl
from fljax.data import from_table

LEARN = {"node": "who", "features": ["a", "b"], "target": "y"}


def rows(**changes):
    """Seven rows of three nodes, the third named first."""
    table = {
        "who": ["C", "A", "C", "B", "A", "C", "A"],
        "a": np.arange(7.0),
        "b": np.arange(7) ** 2,
        "y": -np.arange(7.0),
        "x": [3.0, 1, 3, 2, 1, 3, 1],
        "z": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
        "late": np.array([False, False, True, False, False, False, True]),
    }
    return {**table, **changes}


def structured(table):
    kinds = [(name, np.asarray(column).dtype) for name, column in table.items()]
    array = np.zeros(7, kinds)
    for name, column in table.items():
        array[name] = column
    return array


@pytest.mark.parametrize("table_type", [dict, pd.DataFrame, structured])
def test_rows_go_to_their_nodes_in_the_order_of_the_table(table_type):
    nodes = from_table(table_type(rows()), **LEARN, coordinates=("x", "z"))
    assert nodes.names == ("C", "A", "B")
    np.testing.assert_array_equal(nodes.coordinates, [[3, 0.5], [1, 0.5], [2, 0.5]])
    assert nodes.labeled.all()
    assert nodes.dropped == 0
    problem = nodes.problem
    assert problem.features.shape == (3, 3, 2)
    for k, of in enumerate([[0, 2, 5], [1, 4, 6], [3]]):
        n = len(of)
        np.testing.assert_array_equal(problem.features[k, :n, 0], of)
        np.testing.assert_array_equal(problem.features[k, :n, 1], np.square(of))
        np.testing.assert_array_equal(problem.targets[k, :n], np.negative(of))
        np.testing.assert_allclose(problem.weights[k], [1 / n] * n + [0] * (3 - n))
    assert problem.importance is None
    assert problem.test is None


def test_a_frame_with_gaps_of_any_kind_is_a_table():
    frame = pd.DataFrame(rows()).iloc[::-1]  # an index that is not 0, 1, ...
    frame["a"] = pd.array([6, 5, None, 3, 2, 1, 0], dtype="Int64")
    frame["b"] = [36.0, None, 16, 9, 4, 1, 0]
    nodes = from_table(frame, **LEARN, missing="drop")
    assert nodes.names == ("A", "C", "B")
    assert nodes.dropped == 2
    assert nodes.problem.sample_counts().tolist() == [2, 2, 1]
    np.testing.assert_array_equal(nodes.problem.features[0, :, 0], [6, 1])
    with pytest.raises(ValueError, match=r"2 of 7 rows .*first of them row 1, of node 'C', in col"):
        from_table(frame, **LEARN)


def test_held_out_rows_are_those_that_are_marked():
    table = rows(late=np.array([False, False, True, False, False, False, True]), who=[*"CACACCA"])
    problem = from_table(table, **LEARN, test="late").problem
    assert problem.sample_counts().tolist() == [3, 2]
    np.testing.assert_array_equal(problem.test.targets, [[-2.0], [-6.0]])
    with pytest.raises(ValueError, match="node 'B' has no row to test on; give it one"):
        from_table(rows(), **LEARN, test="late")
    with pytest.raises(ValueError, match="node 'B' has no row to learn from; give it one"):
        from_table(rows(late=np.array([0, 0, 1, 1, 0, 0, 1], bool)), **LEARN, test="late")


def test_a_node_without_targets_has_no_weight_but_is_evaluated():
    table = rows(who=[*"CACBBCA"], y=[0.0, np.nan, 2, 3, 4, 5, 6])
    table["late"] = np.array([0, 0, 0, 0, 1, 1, 1], bool)
    nodes = from_table(table, **LEARN, test="late")
    assert nodes.names == ("C", "A", "B")
    assert nodes.labeled.tolist() == [True, False, True]
    np.testing.assert_array_equal(nodes.problem.importance, [1, 0, 1])
    np.testing.assert_allclose(nodes.problem.weights.sum(1), [1, 0, 1])
    np.testing.assert_array_equal(nodes.problem.features[1, 0], [1, 1])
    np.testing.assert_array_equal(nodes.problem.test.targets[:, 0], [5, 6, 4])
    unknown = table | {"y": [0.0, np.nan, 2, 3, 4, 5, np.nan]}  # its held-out row, too
    with pytest.raises(ValueError, match=r"1 of 7 rows .*row 6, of node 'A', in column 'y'"):
        from_table(unknown, **LEARN, test="late")
    table["y"][0] = np.nan  # a node that has others: its row is missing something
    with pytest.raises(ValueError, match=r"1 of 7 rows .*row 0, of node 'C', in column 'y'"):
        from_table(table, **LEARN, test="late")
    assert from_table(table, **LEARN, test="late", missing="drop").dropped == 1
    with pytest.raises(ValueError, match="no row to learn from has a finite 'y'"):
        from_table(table | {"y": np.full(7, np.nan)}, **LEARN)


@pytest.mark.parametrize(
    ("table", "changes", "error", "message"),
    [
        (3, {}, TypeError, "a DataFrame, a dict of arrays or a structured array, got 3"),
        (np.ones((3, 2)), {}, TypeError, "table must have named columns"),
        (rows(), {"target": "lat"}, ValueError, "unknown column 'lat'; .*mean 'late'"),
        (rows(), {"node": "whom"}, ValueError, "unknown column 'whom'"),
        (rows(), {"features": []}, ValueError, "features must name one or more columns"),
        (rows(a=np.arange(6)), {}, ValueError, "columns must have one length.*'a': 6"),
        (rows(a=np.ones((7, 2))), {}, ValueError, "column 'a' must be one entry of each row"),
        (rows(a=np.ma.ones(7)), {}, ValueError, "'a' must be one entry .* masked array"),
        (rows(a=["1"] * 7), {}, TypeError, "'a' must hold real numbers, got '1' .* in row 0"),
        (rows(a=[0, 1, "x", 3, 4, 5, 6]), {}, TypeError, "'a' must hold real numbers"),
        (
            pd.DataFrame(rows(a=pd.date_range("2026-01-01", periods=7))),
            {},
            TypeError,
            "'a' must hold real numbers, got .* of datetime64",
        ),
        (
            pd.DataFrame(rows(a=[0, 1, "x", 3, 4, 5, 6])),
            {},
            TypeError,
            "'a' must hold real numbers, got 'x' of type str in row 2",
        ),
        (rows(b=np.array([0, np.inf] + [0] * 5)), {}, ValueError, "1 of 7 rows .*row 1, of node"),
        (
            rows(b=np.array([0, 0, 0, np.nan, 0, 0, 0])),
            {"missing": "drop"},
            ValueError,
            "node 'B' has no row to learn from once 1 rows are dropped",
        ),
        (rows(), {"missing": "fill"}, ValueError, "unknown missing 'fill'; known: refuse, drop"),
        (
            pd.DataFrame(rows(who=["C", None, "C", "B", "A", "C", "A"])),
            {},
            ValueError,
            "row 1 has no node",
        ),
        (
            rows(who=[*"CACBBC", math.nan]),
            {},
            ValueError,
            "row 6 has no node, column 'who' holds nan",
        ),
        (
            rows(who=np.array([*"CACBBC", np.nan])),
            {},
            ValueError,
            "column 'who' holds .* 'nan' at 6",
        ),
        (rows(who=[1.0, 2, 1, 3, 3, 1, math.inf]), {}, ValueError, "row 6 has no node"),
        (rows(), {"features": ["a", "y"]}, ValueError, "'y' is the target and cannot be a feature"),
        (rows(), {"features": ["a", "b", "a"]}, ValueError, "each column once, got 'a' twice"),
        (rows(), {"features": ["a", "who"]}, ValueError, "'who' is the node and cannot be a feat"),
        (rows(), {"node": "y"}, ValueError, "'y' cannot be the node and the target"),
        (rows(late=np.arange(7)), {"test": "late"}, TypeError, "must hold True and False"),
        (rows(x=[3.0, 1, 4, 2, 1, 3, 1]), {}, ValueError, r"'C' is at \(3.0, .* row 2; a node has"),
        (rows(x=[3.0, 1, 3, 1, 1, 3, 1]), {}, ValueError, "'A' and 'B' are both at"),
        (rows(z=[np.nan, *[0.5] * 6]), {}, ValueError, "1 rows lack finite coord.* row 0, of nod"),
    ],
)
def test_errors_of_a_table_are_reported(table, changes, error, message):
    with pytest.raises(error, match=message):
        from_table(table, **LEARN | {"coordinates": ("x", "z")} | changes)


def test_a_table_makes_a_problem_that_is_learned():
    nodes = from_table(rows(), **LEARN, coordinates=("x", "z"))
    simulation = fl.Simulation(nodes.problem, fl.algorithms.FedAvg(1e-3), metrics=["objective"])
    run = fl.run(simulation, rounds=3)
    assert run.objective[-1] < run.objective[0]


def test_a_node_s_name_as_text_and_as_a_number_is_not_two_nodes():
    table = {"town": [1, "1", 2], "today": [0.1, 0.2, 0.3], "tomorrow": [1.0, 2.0, 3.0]}
    with pytest.raises(ValueError, match="column 'town' holds text, '1' in row 1, and 1 of type"):
        fl.data.from_table(table, "town", ["today"], "tomorrow")
