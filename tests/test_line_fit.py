# SPDX-License-Identifier: MIT
"""The line, on costs whose fit is worked out by hand."""

import pytest

from labkit.measuring.line_fit import bootstrap_line_fit, fit_line


def test_a_line_is_found_exactly():
    fit = fit_line([512, 256, 1024], [100 + 0.5 * n for n in (512, 256, 1024)])
    assert (fit.fixed_ns, fit.each_ns, fit.r_squared) == pytest.approx((100, 0.5, 1))


def test_the_fit_is_least_squares():
    # Means 2 and 3: deviations -1 0 1 and -2 1 1 give the slope 3/2, and 0 at size 0;
    # what is left is -1/2 1 -1/2, squares 3/2 of 6.
    fit = fit_line([1, 2, 3], [1, 4, 4])
    assert (fit.fixed_ns, fit.each_ns, fit.r_squared) == pytest.approx((0, 1.5, 0.75))


def test_the_interval_is_that_of_the_repetitions_slopes():
    # Each repetition is a line of its own, so that the medians' line has one of their slopes, or
    # with an even number the mean of two: the interval lies within them.
    slopes = [0.40, 0.41, 0.42, 0.43, 0.44, 0.45]
    sizes = [256, 512, 1024, 2048]
    found = bootstrap_line_fit(sizes, [[50 + s * n for n in sizes] for s in slopes], "process")
    assert found.fit.each_ns == pytest.approx(0.425)
    low, high = found.each_ns
    assert 0.40 <= low < 0.42
    assert 0.43 < high <= 0.45
    assert found.coverage == 0.95
    assert "6 processes" in found.method


def test_few_repetitions_give_a_range_and_say_so():
    found = bootstrap_line_fit([1, 2, 3], [[1, 2, 3], [2, 4, 6]], "round")
    assert found.each_ns == pytest.approx((1, 2))
    assert found.coverage is None
    assert "too few for an interval" in found.method


@pytest.mark.parametrize(
    ("sizes", "costs", "message"),
    [
        ([1, 2], [1, 2], "2 sizes: at least 3 are needed"),
        ([1, 2, 2], [1, 2, 3], "given once"),
        ([1, 2, 3], [1, 2, float("nan")], "not finite"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sizes, costs, message):
    with pytest.raises(ValueError, match=message):
        fit_line(sizes, costs)
