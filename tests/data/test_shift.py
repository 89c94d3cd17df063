"""Turned images and noise: by hand, by moments, and errors by name."""

import numpy as np
import pytest

from fljax.data import mnist_sample, noisy, rotated


def test_right_angles_move_pixels_counterclockwise():
    image = np.arange(6, dtype=np.uint8).reshape(1, 3, 2, 1)
    square = np.array([[[0, 1, 2], [3, 4, 5], [6, 7, 8]]], np.uint8)
    clients = [(square, np.array([7]))] * 4
    result = rotated(clients, 90.0 * np.array([0, 1, 2, -1]))
    for (x, y), by_hand in zip(
        result,
        (
            [[0, 1, 2], [3, 4, 5], [6, 7, 8]],
            [[2, 5, 8], [1, 4, 7], [0, 3, 6]],
            [[8, 7, 6], [5, 4, 3], [2, 1, 0]],
            [[6, 3, 0], [7, 4, 1], [8, 5, 2]],
        ),
        strict=True,
    ):
        assert x.dtype == np.uint8
        assert x[0].tolist() == by_hand
        assert y.tolist() == [7]
    half = rotated([(image, [0])], 180)[0][0]
    np.testing.assert_array_equal(half[0, :, :, 0], [[5, 4], [3, 2], [1, 0]])


def interpolated(image, degrees):
    """One image turned, pixel by pixel: where it comes from, and its four neighbors there."""
    height, width = image.shape
    cos = np.cos(np.deg2rad(degrees))
    sin = np.sin(np.deg2rad(degrees))
    turned = np.zeros(image.shape)
    for i in range(height):
        for j in range(width):
            up = (height - 1) / 2 - i
            right = j - (width - 1) / 2
            at = (
                (height - 1) / 2 - (-sin * right + cos * up),
                (width - 1) / 2 + cos * right + sin * up,
            )
            low = np.floor(at).astype(int)
            if not (0 <= at[0] <= height - 1 and 0 <= at[1] <= width - 1):
                continue
            for a in (0, 1):
                for b in (0, 1):
                    row = min(low[0] + a, height - 1)
                    column = min(low[1] + b, width - 1)
                    share = (1 - abs(at[0] - low[0] - a)) * (1 - abs(at[1] - low[1] - b))
                    turned[i, j] += share * image[row, column]
    return turned


@pytest.mark.parametrize("degrees", [30.0, -45.0, 200.0])
def test_other_angles_interpolate_between_pixels(degrees):
    images = np.random.default_rng(0).uniform(size=(2, 7, 5))
    colors = np.stack([images, 2 * images], axis=-1)
    ((result, _), (same, _)) = rotated([(images, [0, 1]), (colors, [0, 1])], degrees)
    for image, turned in zip(images, result, strict=True):
        np.testing.assert_allclose(turned, interpolated(image, degrees), atol=1e-12)
    np.testing.assert_allclose(same, np.stack([result, 2 * result], axis=-1), atol=1e-12)


def test_rotated_digits_return_nearly_unchanged():
    images = mnist_sample().train_images[::60].astype(float)
    labels = np.arange(len(images))
    ((back, _),) = rotated(rotated([(images, labels)], 20.0), -20.0)
    middle = (slice(None), slice(6, 22), slice(6, 22))
    assert np.corrcoef(back[middle].ravel(), images[middle].ravel())[0, 1] > 0.97


def test_noise_has_each_client_s_level_and_leaves_the_rest():
    levels = np.sqrt(4.0 * np.arange(5) / 4)
    clean = [(np.full((4000, 2, 1), k, np.uint8), np.arange(4000)) for k in range(5)]
    result = noisy(clean, levels, seed=3)
    for k, ((x, y), level) in enumerate(zip(result, levels, strict=True)):
        assert x.shape == (4000, 2, 1)
        assert x.dtype == np.float64
        np.testing.assert_array_equal(y, np.arange(4000))
        assert x.mean() == pytest.approx(k, abs=4 * level / np.sqrt(8000))
        assert x.std() == pytest.approx(level, rel=0.05)
    np.testing.assert_array_equal(result[0][0], 0.0)
    draws = np.stack(
        [
            (x - k).ravel() / level
            for k, ((x, _), level) in enumerate(zip(result, levels, strict=True))
            if k
        ]
    )
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 0.06


def test_a_client_s_noise_does_not_depend_on_the_others():
    clients = [(np.zeros((3, 2), np.float32), np.zeros(3))] * 4
    result = noisy(clients, 1.0, 0)
    fewer = noisy(clients[:2], 1.0, 0)
    other = noisy(clients, 1.0, 1)
    np.testing.assert_array_equal(result[1][0], fewer[1][0])
    assert result[1][0].dtype == np.float32
    assert not np.array_equal(result[0][0], result[1][0])
    assert not np.array_equal(result[0][0], other[0][0])


IMAGES = [(np.zeros((2, 3, 4)), np.zeros(2))]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rotated([], 0.0), "at least one client, got none"),
        (lambda: rotated([(np.zeros((2, 9)), [0, 1])], 0.0), "client 0 must have images"),
        (
            lambda: rotated(IMAGES, [0.0, 90.0]),
            "degrees must be one number or one for each of the 1",
        ),
        (lambda: rotated(IMAGES, np.nan), "degrees must be finite"),
        (lambda: rotated(IMAGES, 270), "3 x 4 pixels, which a turn by 270 degrees makes 4 x 3"),
        (lambda: rotated([(np.zeros((2, 3, 3)), [0])], 0.0), r"shapes \(2, 3, 3\) and \(1,\)"),
        (lambda: noisy([], 1.0, 0), "at least one client"),
        (lambda: noisy(IMAGES, -1.0, 0), "deviation must be finite and >= 0"),
        (lambda: noisy(IMAGES, [1.0, 2.0], 0), "deviation must be one number or one for each"),
        (lambda: noisy(IMAGES, 1.0, -1), "seed must be >= 0"),
    ],
)
def test_impossible_shifts_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
