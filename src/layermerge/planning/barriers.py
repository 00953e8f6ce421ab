"""Barriers: how far ranges reach from a layer, and what stops the first one that would reach further."""

from __future__ import annotations

from layermerge.planning.plan import Plan, Rejection


def reach(plan: Plan, index: int) -> tuple[int, int]:
    """The first layer of the longest range that ends with this one, and the end of the longest that begins with it."""
    start = min((entry.start for entry in plan.candidates if entry.end == index + 1), default=index)
    end = max((entry.end for entry in plan.candidates if entry.start == index), default=index + 1)
    return start, end


def barrier_behind(plan: Plan, index: int) -> Rejection | None:
    """What stops a range that begins with this layer; a rule before what only lies between."""
    end = reach(plan, index)[1]
    longer = [each for each in plan.rejections if each.start == index and each.end > end]
    return _first(sorted(longer, key=lambda each: each.end))


def barrier_ahead(plan: Plan, index: int) -> Rejection | None:
    """What stops a range that ends with this layer."""
    start = reach(plan, index)[0]
    longer = [each for each in plan.rejections if each.end == index + 1 and each.start < start]
    return _first(sorted(longer, key=lambda each: -each.start))


def _first(longer: list[Rejection]) -> Rejection | None:
    """The nearest that a rule forbids; where none comes into play, what lies between."""
    rules = [rejection for rejection in longer if not rejection.topological]
    return next(iter(rules or longer), None)
