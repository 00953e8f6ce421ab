"""Reasons: why ranges and entries are not on the menu, like ones counted together.

In: a plan and its tables. Out: groups, the largest first within each kind, with a few examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from layermerge.planning.plan import Plan
from layermerge.reporting.fact_records import ReasonFacts, ReasonKind
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table
from layermerge.tables.workload_clock import WHOLE

_EXAMPLES = 3
_NAMES = re.compile(r"'[^']*'")
_NUMBERS = re.compile(r"\d+(\.\d+)? ms")


def group_reasons(plan: Plan, latency: LatencyTable | None, importance: Table | None) -> tuple[ReasonFacts, ...]:
    """All reasons that the files of a run give."""
    names = [layer.name for layer in plan.layers]
    ranges = {entry.key: _range(names, entry.start, entry.end) for entry in plan.candidates}
    found: list[tuple[ReasonKind, str, str]] = [
        ("rule", entry.reason, _range(names, entry.start, entry.end)) for entry in plan.rejections
    ]
    for row in importance.rows.values() if importance else ():
        if row.status != "ok":
            kind: ReasonKind = "failed" if row.status == "failed" else "slow"
            found.append((kind, row.reason or "", f"{ranges.get(row.key, row.key)}: {row.reason}"))
    for row in latency.table.rows.values() if latency else ():
        if row.status != "ok" and row.key != WHOLE:
            slow: ReasonKind = "failed" if row.status == "failed" else "slow"
            found.append((slow, f"latency: {row.reason}", f"{row.key}: {row.reason}"))
    return grouped(found)


def grouped(found: Iterable[tuple[ReasonKind, str, str]]) -> tuple[ReasonFacts, ...]:
    """Reasons that differ in nothing but names and times are one."""
    groups: dict[tuple[ReasonKind, str], list[str]] = {}
    for kind, reason, example in found:
        alike = _NUMBERS.sub("… ms", _NAMES.sub("…", reason))
        groups.setdefault((kind, alike), []).append(example)
    ordered = sorted(groups.items(), key=lambda group: (("rule", "slow", "failed").index(group[0][0]), -len(group[1])))
    return tuple(
        ReasonFacts(kind, alike, len(examples), tuple(examples[:_EXAMPLES])) for (kind, alike), examples in ordered
    )


def _range(names: list[str], start: int, end: int) -> str:
    return names[start] if end - start == 1 else f"{names[start]} to {names[end - 1]}"
