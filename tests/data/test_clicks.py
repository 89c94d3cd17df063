"""Click logs: the form of the synthetic one, and the reader of Avazu's file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.data import avazu, click_log


@pytest.mark.slow
def test_a_row_has_one_category_of_each_field():
    features, labels = click_log(fl.random_key(1), 400, fields=5, categories=8)
    encoded = np.asarray(features).reshape(400, 5, 8)
    np.testing.assert_allclose((encoded > 0).sum(axis=2), 1)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-12)
    assert set(np.unique(labels)) == {-1.0, 1.0}


@pytest.mark.slow
def test_categories_follow_zipfs_distribution():
    features = click_log(fl.random_key(2), 20_000, fields=2, categories=4).features
    shares = (np.asarray(features).reshape(-1, 2, 4) > 0).mean(axis=0)
    weights = 1 / np.arange(1, 5)
    np.testing.assert_allclose(
        shares, np.stack([weights / weights.sum()] * 2), atol=5 * 0.5 / 20_000**0.5
    )


@pytest.mark.slow
@pytest.mark.parametrize("positives", [0.5, 0.17])
def test_the_share_of_clicks_is_as_requested_and_may_be_traced(positives):
    draw = jax.jit(lambda share: click_log(fl.random_key(0), 1000, 3, 8, positives=share).labels)
    assert float((draw(jnp.asarray(positives)) > 0).mean()) == pytest.approx(positives, abs=1e-3)


@pytest.mark.slow
def test_labels_follow_the_categories():
    features, labels = map(np.asarray, click_log(fl.random_key(3), 4000, 4, 8))
    learnt = np.linalg.lstsq(features[:3000], labels[:3000], rcond=None)[0]
    wrong = np.mean(np.sign(features[3000:] @ learnt) != labels[3000:])
    assert wrong < 0.35  # half, if labels were drawn alone
    little = np.asarray(click_log(fl.random_key(3), 4000, 4, 8, spread=0.01).labels)
    assert abs(np.corrcoef(little, features @ learnt)[0, 1]) < 0.1


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "avazu-site"
    lines = [f"{row % 2} {1 + row}:0.6 {500_000 + row}:0.8" for row in range(12)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_local_file_is_hashed(file):
    table = avazu(file, rows=8, test=4, dim=50)
    assert table.features.shape == (8, 50)
    assert table.test_features.shape == (4, 50)
    np.testing.assert_array_equal(table.labels, [-1, 1] * 4)
    np.testing.assert_array_equal(table.test_labels, [-1, 1] * 2)
    entries = np.sort(np.abs(table.features), axis=1)[:, -2:]  # each in a place of its own here
    np.testing.assert_allclose(entries, [[0.6, 0.8]] * 8, rtol=1e-6)
    assert (table.features < 0).any()  # with a sign
    np.testing.assert_array_equal(avazu(file, rows=8, test=4, dim=50).features, table.features)


def test_fewer_rows_than_asked_for(file):
    with pytest.raises(ValueError, match=r"rows must be at most the 12 of .*, got 13"):
        avazu(file, rows=8, test=5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 0}, "rows"),
        ({"fields": 0}, "fields"),
        ({"categories": 0}, "categories"),
        ({"positives": 1.0}, "positives"),
        ({"spread": 0.0}, "spread"),
    ],
)
def test_a_log_that_cannot_be_drawn_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        click_log(fl.random_key(0), **{"rows": 10} | wrong)
