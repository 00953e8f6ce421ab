"""Budgets as text."""

from __future__ import annotations

import doctest
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermerge.errors import BudgetError, InfeasibleBudget
from layermerge.solving import budget
from layermerge.solving.budget import budget_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [("60%", 12.0), ("1.6x", 12.5), ("12ms", 12.0), (" 12.50 ms ", 12.5), ("0.5x", 40.0), (".5%", 0.1), ("150%", 30.0)],
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


@pytest.mark.parametrize("given", [60, None, 0.6])
def test_a_budget_is_text(given: Any) -> None:
    with pytest.raises(BudgetError, match=f"cannot read the budget '{given}'; write a share"):
        budget_ms(given, 20.0)


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
