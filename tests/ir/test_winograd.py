"""Winograd's filtering: the places of a window by its products, to the last places of float64; what has no three taps."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.errors import VerifyError
from ourcc.ir.winograd import POINTS, Filtering


@pytest.mark.parametrize("places", POINTS)
def test_products_at_the_points_give_the_places_of_a_window(places: int) -> None:
    draw = np.random.default_rng(places)
    filtering = Filtering(places, (1, 2))
    filters, image = draw.standard_normal((5, 3, 3)), draw.standard_normal((filtering.points, filtering.points))
    a, b = np.array(filtering.of_products), np.array(filtering.of_image)
    given = np.einsum("mu,nv,fuv,uv->fmn", a, a, filtering.of(filters), b @ image @ b.T)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3))
    np.testing.assert_allclose(given, np.einsum("mnij,fij->fmn", windows, filters), atol=1e-12)


def test_filters_are_rounded_once() -> None:
    filters = np.random.default_rng(0).standard_normal((4, 3, 3)).astype(np.float32)
    made = Filtering(2, (1, 2)).of(filters)
    assert made.dtype == np.float32 and made.shape == (4, 4, 4)
    np.testing.assert_array_equal(made, Filtering(2, (1, 2)).of(filters.astype(np.float64)).astype(np.float32))


@pytest.mark.filterwarnings("error")
def test_what_is_too_large_is_infinite() -> None:
    made = Filtering(2, (0,)).of(np.array([3e38, 3e38, 3e38], np.float32))
    assert np.isinf(made).tolist() == [False, True, False, False]


@pytest.mark.parametrize("places", POINTS)
def test_places_see_their_windows_alone(places: int) -> None:
    """A large number that a window does not see leaves nothing with its place."""
    filtering = Filtering(places, (0,))
    taps = np.random.default_rng(0).standard_normal(3).astype(np.float32)
    for place in range(filtering.points):
        image = np.zeros(filtering.points)
        image[place] = 1.0
        answer = np.array(filtering.of_products) * (filtering.of(taps) * (np.array(filtering.of_image) @ image))
        reached = np.abs(answer).max(axis=1) > 0
        assert reached.tolist() == [n <= place < n + 3 for n in range(places)]


def test_weights_of_images_and_products_are_exact_in_float32() -> None:
    for places in POINTS:
        for matrix in (Filtering(places, (0,)).of_image, Filtering(places, (0,)).of_products):
            assert all(float(np.float32(value)) == value for row in matrix for value in row)


def test_sizes_and_dimensions_that_are_none() -> None:
    assert Filtering(2, (2, 3)).shape((8, 5, 3, 3)) == (8, 5, 4, 4)
    with pytest.raises(VerifyError, match=r"expected 3 in each"):
        Filtering(2, (2,)).shape((8, 5, 4))
    with pytest.raises(VerifyError, match=r"expected 3 in each"):
        Filtering(2, (2,)).of(np.zeros((3, 3)))
    with pytest.raises(VerifyError, match=r"filtering of 3 places, expected one of 2"):
        Filtering(3, (2,))
    for along in ((), (1, 1), (-1,)):
        with pytest.raises(VerifyError, match="each once"):
            Filtering(2, along)
