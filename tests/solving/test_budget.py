"""Budgets as text and as numbers."""

from __future__ import annotations

import doctest
import math
import pickle
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermerge.errors import BudgetError, InfeasibleBudget
from layermerge.solving import budget
from layermerge.solving.budget import budget_ms, budget_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60%", 12.0),
        ("0.6", 12.0),
        ("1.6x", 12.5),
        ("12ms", 12.0),
        (" 12.50 ms ", 12.5),
        ("0.5x", 40.0),
        (".5%", 0.1),
        ("150%", 30.0),
    ],
)
def test_budgets_are_read(text: str, expected: float) -> None:
    assert budget_ms(text, 20.0) == expected


@given(st.floats(1e-6, 1e6))
def test_the_whole_is_the_whole(original: float) -> None:
    assert budget_ms("100%", original) == budget_ms("1x", original) == budget_ms("100.00%", original) == original


@pytest.mark.parametrize(
    "text", ["60", "abc%", "-3ms", "", "nan%", "infx", "%", "1.8", "1,8x", "1e3ms", "12 s", "6 0%", "٦٠%"]
)
def test_unreadable_budgets_say_what_to_write(text: str) -> None:
    with pytest.raises(BudgetError, match=re.escape(f"cannot read the budget '{text}'; write a share")) as caught:
        budget_ms(text, 20.0)
    assert all(example in str(caught.value) for example in ('"60%"', '"1.8x"', '"12ms"'))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["9" * 5000 + "%", "0." + "0" * 5000 + "1x", "6" * 100_000])
def test_absurdly_long_budgets_are_one_short_line(text: str) -> None:
    with pytest.raises(BudgetError, match="cannot read the budget") as caught:
        budget_ms(text, 20.0)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("given", [0.6, "0.6", " .60 ", np.float64(0.6), Fraction(3, 5)])
def test_a_plain_number_up_to_1_is_a_share(given: Any) -> None:
    assert budget_text(given) == "60%"
    assert budget_ms(given, 20.0) == budget_ms("60%", 20.0) == 12.0


@given(st.floats(0, 1, exclude_min=True), st.floats(1e-6, 1e6))
def test_a_share_is_exact_to_its_last_digit(share: float, original: float) -> None:
    """By Python's own fractions, of the shortest text that stands for the float."""
    exact = Fraction(repr(share)) * Fraction(original)
    assert budget_ms(share, original) == budget_ms(budget_text(share), original) == float(exact)


@pytest.mark.parametrize("given", [1, 1.0, "1", "1.000"])
def test_the_largest_share_is_the_whole(given: Any) -> None:
    assert budget_text(given) == "100%"
    assert budget_ms(given, 0.1) == 0.1


@pytest.mark.parametrize("text", ["60%", "1.8x", "12ms", "100.00%"])
def test_a_budget_with_its_unit_stays_as_it_is_written(text: str) -> None:
    assert budget_text(text) == budget_text(f" {text}\n") == text


@pytest.mark.parametrize(
    "given", [60, None, 1.8, 1.0000001, -0.6, 0, math.nan, math.inf, True, ["60%"], b"60%", "6\n0"]
)
def test_what_is_neither_text_nor_a_share_is_no_budget(given: Any) -> None:
    for read in (budget_text, lambda budget: budget_ms(budget, 20.0)):
        with pytest.raises(BudgetError, match="; write a share of the original latency") as caught:
            read(given)
        assert str(caught.value).startswith(f"cannot read the budget '{' '.join(str(given).split())}'")


@pytest.mark.parametrize("text", ["0%", "0x", "0.00ms"])
def test_a_budget_is_above_zero(text: str) -> None:
    with pytest.raises(BudgetError, match=f"the budget '{text}' must be above zero; write a share"):
        budget_ms(text, 20.0)


def test_a_budget_fits_a_float() -> None:
    with pytest.raises(BudgetError, match="is too large; write a share"):
        budget_ms("9" * 400 + "ms", 20.0)


@given(st.floats(1e-3, 1e4), st.floats(1e-3, 1e4))
def test_what_an_infeasible_budget_names_can_be_asked_for(smallest: float, original: float) -> None:
    error = InfeasibleBudget(smallest, smallest / 2, original)
    found = re.search(r"reachable latency is ([\d.]+) ms, ([\d.]+)% of the original", str(error))
    assert found
    assert budget_ms(f"{found[1]}ms", original) >= smallest
    assert budget_ms(f"{found[2]}%", original) >= smallest


def test_an_infeasible_budget_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(InfeasibleBudget(4.0, 3.0, 10.0)))
    assert (error.smallest_ms, error.budget_ms, error.original_ms) == (4.0, 3.0, 10.0)
    assert str(error) == (
        "no choice of candidates runs in 3.0000 ms; the smallest reachable latency is 4.0000 ms, "
        "40.00% of the original; ask for at least that"
    )


def test_the_example_runs() -> None:
    failed, attempted = doctest.testmod(budget)
    assert attempted > 0
    assert failed == 0
