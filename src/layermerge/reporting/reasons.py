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
_SLOW = (
    "Measure on the runtime, threads and batch size that will be served: what pays differs. rules.rule_out_slow: false "
    "keeps it on the menu."
)
_PLAIN = (
    ("follows a strided one",
     "A convolution with stride skips pixels, which a larger kernel after it would need.",
     "In the network, put the stride into the last convolution. Ranges that drop the larger kernel are offered."),
    ("dilated conv merges only",
     "Kernels with gaps (dilation) merge only with kernels of a single pixel.",
     "In the network, take a convolution without dilation."),
    ("dilated body does not line up",
     "A kernel with gaps (dilation) does not line up with the shortcut next to it.",
     "In the network, take a convolution without dilation, or a shortcut without a kernel."),
    ("above max_kernel",
     "The resulting kernel is larger than the rules allow.",
     "Allow larger kernels: rules.max_kernel in the recipe, --max-kernel of plan. They are mostly too slow to pay."),
    ("zero padding inside",
     "The zeros around the image that the layers add would have no convolution left to add them.",
     "Nothing has to change: candidates that keep one of its convolutions are offered."),
    ("stride differently",
     "The two branches of the residual block step over the image differently.",
     "In the network, give both branches the same stride."),
    ("would move behind the range",
     "A norm inside would have to move to the end, where the number of channels is different.",
     "In the network, take BatchNorm instead: it folds into its convolution."),
    ("not on one chain",
     "Something lies between them that does not merge, such as a concatenation, pooling or attention.",
     "In the network, leave nothing but norms and activations between them, and no other reader of the map."),
    ("shortcut conv",
     "A shortcut is treated by itself, or together with its whole residual block.",
     "Nothing has to change: see the candidates of the whole block."),
    ("only a part of block",
     "A residual block that is entered must be taken whole, as its shortcut adds what came before it.",
     "Nothing has to change: ranges inside the block, and of whole blocks, are offered where they merge."),
    ("cannot be fused",
     "Something in the block is not linear, so it cannot become one kernel with its shortcut.",
     "In the network, take BatchNorm instead of other norms; let gates be replaced by their mean (--replace gates of plan)."),
    ("the paper's boundary",
     "The paper ends every range behind a convolution with stride.",
     "Take our rules: leave out --rules paper."),
    ("outside the table",
     "The rules of this run keep it out of the tables: it is always taken as it is.",
     "Leave it out of rules.exclude (--exclude), or take our rules instead of the paper's."),
    ("offers no such range",
     "The method leaves it out: depth keeps every convolution, layeronly merges none.",
     "Take the method layermerge, which offers both."),
    ("pinned",
     "The rules of this run keep it as it is.",
     "Leave it out of rules.pin (--pin)."),
    ("does not merge",
     "The layer itself is of a kind that does not merge.",
     "In the network, pad with zeros, and take a module of its own for every call."),
    ("as they are its layers take",
     "Merged, it would be slower than its layers are as they are.",
     _SLOW),
    ("unmerged it takes",
     "Merged, it would be slower than the same layers left apart.",
     _SLOW),
    ("the layers that it stands for",
     "Merged, it would be slower than the layers that it stands for, as one pass showed.",
     _SLOW),
    ("with its own activation it takes",
     "The cheaper activation is not faster here.",
     _SLOW),
    ("one conv, which is left to itself",
     "The block holds a single convolution, which is on the menu by itself.",
     "Nothing has to change: see that convolution."),
)  # fmt: skip
"""From a part of a reason to the same for people who did not write the rules, and to what they can change."""
_NAMES = re.compile(r"'[^']*'")
_NUMBERS = re.compile(r"\d+(\.\d+)? ms")


def group_reasons(plan: Plan, latency: LatencyTable | None, importance: Table | None) -> tuple[ReasonFacts, ...]:
    """All reasons that the files of a run give."""
    names = [layer.name for layer in plan.layers]
    ranges = {entry.key: _range(names, entry.start, entry.end) for entry in plan.candidates}
    found: list[tuple[ReasonKind, str, str]] = [
        ("rule", entry.reason, _range(names, entry.start, entry.end))
        for entry in plan.rejections
        if not entry.topological  # of which a file has only the first on the way from each layer
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
        ReasonFacts(kind, alike, len(examples), tuple(examples[:_EXAMPLES]), plain_words(alike))
        for (kind, alike), examples in ordered
    )


def _range(names: list[str], start: int, end: int) -> str:
    return names[start] if end - start == 1 else f"{names[start]} to {names[end - 1]}"


def plain_words(reason: str) -> str:
    """The same for people who did not write the rules; nothing where there is no more to say."""
    return next((words for part, words, _ in _PLAIN if part in reason), "")


def what_to_change(reason: str) -> str:
    """What would take the reason away; nothing where that is not known."""
    return next((change for part, _, change in _PLAIN if part in reason), "")
