"""Budgets as users write them: "60%" and "1.8x" relative to the original network's latency, "12ms" absolute.

A budget is met when latency <= budget. Amounts are exact decimals until the last step, so "100%" and "1x" are the original's
latency to the last bit.
"""

from __future__ import annotations

import re
from fractions import Fraction

from layermerge.errors import BudgetError

_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|x|ms)\s*", re.ASCII)
_LONGEST = 2000
"""Characters: more digits than any float has, and few enough to compute with."""
_WRITE = 'write a share of the original latency ("60%"), a speed-up ("1.8x") or milliseconds ("12ms")'


def budget_ms(text: str, original_ms: float) -> float:
    """The milliseconds that a budget allows.

    >>> budget_ms("60%", 20.0), budget_ms("1.6x", 20.0), budget_ms("12ms", 20.0)
    (12.0, 12.5, 12.0)
    """
    found = _AMOUNT.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST else None
    shown = str(text)[:40]
    if not found:
        raise BudgetError(f"cannot read the budget '{shown}'; {_WRITE}")
    amount, unit = Fraction(found[1]), found[2]
    if amount == 0:
        raise BudgetError(f"the budget '{shown}' must be above zero; {_WRITE}")
    original = Fraction(original_ms)
    allowed = {"%": original * amount / 100, "x": original / amount, "ms": amount}[unit]
    try:
        return float(allowed)
    except OverflowError:
        raise BudgetError(f"the budget '{shown}' is too large; {_WRITE}") from None
