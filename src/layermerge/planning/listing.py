"""Listing: a plan as JSON and as a table for the terminal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from layermerge.planning.plan import Plan
from layermerge.tracing.structure import Block


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as plain data; kernel and stride are [height, width], null for an identity."""
    return {
        "method": plan.method,
        "layers": [
            {
                "name": layer.name,
                "kernel": list(layer.spec.kernel),
                "stride": list(layer.spec.stride),
                "groups": layer.spec.groups,
                "irreducible": layer.irreducible,
            }
            for layer in plan.layers
        ],
        "candidates": [
            {
                "key": candidate.key,
                "start": candidate.start,
                "end": candidate.end,
                "layers": list(candidate.layers),
                "kept": list(candidate.kept),
                "kernel": list(candidate.spec.kernel) if candidate.spec else None,
                "stride": list(candidate.spec.stride) if candidate.spec else None,
                "groups": candidate.spec.groups if candidate.spec else None,
                "fixed": candidate.fixed,
            }
            for candidate in plan.candidates
        ],
        "rejections": [
            {"start": rejection.start, "end": rejection.end, "reason": rejection.reason}
            for rejection in plan.rejections
        ],
    }


def plan_table(plan: Plan, blocks: tuple[Block, ...], title: str) -> Group:
    """Layers in order: what each is, which block it stands in, whether it can go, how far it merges, and why not further."""
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False)
    for header, justify in (
        ("#", "right"),
        ("layer", "left"),
        ("conv", "left"),
        ("channels", "right"),
        ("map", "right"),
    ):
        table.add_column(header, justify=justify, no_wrap=header != "layer")  # type: ignore[arg-type]
    for header in ("block", "removable", "merges up to", "why not further"):
        table.add_column(header, overflow="fold")
    reach = {index: index + 1 for index in range(len(plan.layers))}
    removable = set()
    for candidate in plan.candidates:
        reach[candidate.start] = max(reach[candidate.start], candidate.end)
        if candidate.spec is None and candidate.end - candidate.start == 1:
            removable.add(candidate.start)
    reasons = {(rejection.start, rejection.end): rejection.reason for rejection in plan.rejections}
    fixed = {candidate.start for candidate in plan.candidates if candidate.fixed}
    for index, layer in enumerate(plan.layers):
        end = reach[index]
        innermost = [block for block in blocks if block.start <= index < block.end]
        shown = innermost[-1].name + (" (shortcut)" if innermost[-1].shortcut == index else "") if innermost else ""
        can_go = "yes" if index in removable else "no: changes shape" if layer.irreducible else "no"
        table.add_row(
            str(index),
            escape(layer.name),
            str(layer.spec),
            f"{layer.spec.in_channels}>{layer.spec.out_channels}",
            f"{layer.output_shape[1]}x{layer.output_shape[2]}",
            escape(shown),
            "fixed" if index in fixed else can_go,
            f"#{end - 1} {escape(plan.layers[end - 1].name)}" if end > index + 1 else "-",
            escape(reasons.get((index, end + 1), "")),
        )
    return Group(table, summary(plan, len(blocks)))


def summary(plan: Plan, blocks: int) -> Text:
    ranges = {(candidate.start, candidate.end) for candidate in plan.entries}
    emptied = sum(candidate.spec is None for candidate in plan.entries)
    kinds = Counter(_kind(rejection.reason) for rejection in plan.rejections)
    common = "; ".join(f"{count} x {kind}" for kind, count in kinds.most_common(3))
    fixed = len(plan.candidates) - len(plan.entries)
    return Text(
        f"{len(plan.layers)} layers, {blocks} residual blocks. {len(plan.entries)} candidates over {len(ranges)} ranges "
        f"({emptied} remove all they cover{f'; {fixed} fixed ones not counted' if fixed else ''}). "
        f"{len(plan.rejections)} ranges rejected{f': {common}' if common else ''}."
    )


def _kind(reason: str) -> str:
    """A reason without the names in it, so that like ones can be counted together."""
    return " ".join("..." if part.startswith("'") else part for part in reason.split())
