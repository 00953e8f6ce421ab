"""Budgets as users write them: "60%" and "1.8x" relative to the original network's latency, "12ms" absolute.

A plain number above 0 and up to 1, as text or not, is a share: 0.6 is "60%". No other number is a budget, since it would be
unclear whether 60 means per cent or milliseconds. A budget is met when latency <= budget. Amounts are exact decimals until
the last step, so "100%" and "1x" are the original's latency to the last bit.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from fractions import Fraction
from numbers import Real
from typing import Annotated

from layermerge.arguments import READ_INSIDE, Must
from layermerge.errors import BudgetError

Budget = Annotated[str | float, READ_INSIDE]
"""A share of the original latency ("60%" or 0.6), a speed-up ("1.8x") or milliseconds ("12ms")."""

Milliseconds = Annotated[float, Must(lambda value: value >= 0, "a number of milliseconds; for 60% or 1.8x ask at()")]

_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|x|ms|)\s*", re.ASCII)
_LONGEST = 2000
"""Characters: more digits than any float has, and few enough to compute with."""
_EXACT = Context(prec=_LONGEST + 2)
_WRITE = 'write a share of the original latency ("60%" or 0.6), a speed-up ("1.8x") or milliseconds ("12ms")'


def budget_text(budget: Budget) -> str:
    """A budget as text with its unit, once it can be read: the same text for the same amount, however it was given.

    >>> budget_text(0.6), budget_text("0.125"), budget_text(" 1.8 x")
    ('60%', '12.5%', '1.8x')
    """
    amount, unit = _read(budget)
    return f"{amount:f}{unit}"


def budget_ms(budget: Budget, original_ms: float) -> float:
    """The milliseconds that a budget allows.

    >>> budget_ms("60%", 20.0), budget_ms(0.6, 20.0), budget_ms("1.6x", 20.0), budget_ms("12ms", 20.0)
    (12.0, 12.0, 12.5, 12.0)
    """
    decimal, unit = _read(budget)
    amount, original = Fraction(decimal), Fraction(original_ms)
    allowed = {"%": original * amount / 100, "x": original / amount, "ms": amount}[unit]
    try:
        return float(allowed)
    except OverflowError:
        raise BudgetError(f"the budget '{_shown(budget)}' is too large; {_WRITE}") from None


def _read(budget: object) -> tuple[Decimal, str]:
    """The amount, to the last digit, and its unit; of a plain number, what it is in per cent."""
    a_share = isinstance(budget, Real) and not isinstance(budget, bool) and bool(0 < budget <= 1)  # type: ignore[operator]
    text = f"{Decimal(str(float(budget))):f}" if a_share else budget  # type: ignore[arg-type]
    found = _AMOUNT.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST else None
    amount = Decimal(found[1]) if found else Decimal(0)
    if not found or (not found[2] and amount > 1):
        raise BudgetError(f"cannot read the budget '{_shown(budget)}'; {_WRITE}")
    if amount == 0:
        raise BudgetError(f"the budget '{_shown(budget)}' must be above zero; {_WRITE}")
    if found[2]:
        return amount, found[2]
    return _EXACT.normalize(_EXACT.multiply(amount, Decimal(100))), "%"


def _shown(budget: object) -> str:
    return " ".join(str(budget)[:40].split())
