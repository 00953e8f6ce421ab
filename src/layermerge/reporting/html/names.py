"""Names: ids of the parts of a page, one set per run, and the look of each method."""

from __future__ import annotations

from dataclasses import dataclass

from layermerge.reporting.fact_records import RunFacts
from layermerge.reporting.html.chart import look_at
from layermerge.runs.records import CONTROL


@dataclass(frozen=True)
class Ids:
    """The first run's parts have plain ids; those of others carry their number."""

    run: int

    def __call__(self, name: str) -> str:
        return name if self.run == 0 else f"{name}-{self.run}"


def methods_of(facts: RunFacts) -> list[str]:
    """All methods of a run, in an order that gives each its look."""
    named = [method.method for method in facts.methods]
    named += [result.report.method for result in facts.results]
    named += [curve.variant.method for curve in facts.curves]
    return [name for name in dict.fromkeys(named) if name != CONTROL]


def look_of(facts: RunFacts, method: str) -> str:
    """The control has one of its own."""
    names = methods_of(facts)
    return look_at(names.index(method)) if method in names else "control"
