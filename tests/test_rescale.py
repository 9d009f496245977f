"""The rescale polynomial: one arithmetic for numbers and tokens, held to the range it was fitted on."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcache.errors import UserError
from fastcache.rescale import Rescale

NUMBERS = st.floats(-4, 4)


@given(st.lists(NUMBERS, min_size=1, max_size=5), st.lists(st.floats(0, 3), min_size=1, max_size=6))
def test_without_clamps_it_is_numpy_polyval(coefficients, distances):
    rescale = Rescale(coefficients, domain=(0.5, 1.0), clamp=False)
    expected = np.polyval(coefficients, distances)
    np.testing.assert_allclose([rescale(d) for d in distances], expected, rtol=1e-9, atol=1e-9)
    tokens = rescale.per_token(torch.tensor(distances))
    assert tokens.dtype == torch.float32
    np.testing.assert_allclose(tokens.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert rescale.clamps == 0


@given(st.lists(NUMBERS, min_size=1, max_size=5), st.floats(0, 10))
def test_clamped_output_is_the_value_inside_the_domain_and_never_negative(coefficients, distance):
    rescale = Rescale(coefficients, domain=(0.5, 1.0))
    inside = min(max(distance, 0.5), 1.0)
    assert rescale(distance) == pytest.approx(max(float(np.polyval(coefficients, inside)), 0.0), abs=1e-9)


def test_clamps_count_distances_and_tokens():
    rescale = Rescale([1.0, -0.6], domain=(0.5, 1.0))
    assert rescale(0.8) == pytest.approx(0.2)
    assert rescale.clamps == 0
    assert rescale(0.55) == 0.0  # negative inside the domain
    assert rescale(2.0) == pytest.approx(0.4)  # beyond it
    assert rescale.clamps == 2
    rescale.per_token(torch.tensor([0.1, 0.7, 3.0, 0.9]))
    assert rescale.clamps == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_distance_is_never_hidden_by_a_clamp(bad):
    rescale = Rescale([1.0, 0.0], domain=(0.0, 1.0))
    assert math.isnan(rescale(bad))
    values = rescale.per_token(torch.tensor([0.5, bad]))
    assert values[0] == 0.5 and math.isnan(values[1])
    assert rescale.clamps == 0


def test_a_numpy_array_of_coefficients_is_fine_and_kept_in_the_config():
    fit = np.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1)
    rescale = Rescale(fit, domain=np.array([0.0, 2.0]))
    assert rescale(1.5) == pytest.approx(4.0)
    config = rescale.config()
    assert config["coefficients"] == pytest.approx([2.0, 1.0])
    assert config["domain"] == [0.0, 2.0] and config["clamp"] is True


@pytest.mark.parametrize(
    "arguments",
    [
        {"coefficients": []},
        {"coefficients": [1.0, math.nan]},
        {"coefficients": ["a"]},
        {"coefficients": 3.0},
        {"coefficients": [1.0], "domain": (1.0, 0.5)},
        {"coefficients": [1.0], "domain": (0.0, math.inf)},
        {"coefficients": [1.0], "domain": (0.0, 0.5, 1.0)},
    ],
    ids=str,
)
def test_bad_fits_are_user_errors(arguments):
    with pytest.raises(UserError, match="rescale"):
        Rescale(**arguments)
