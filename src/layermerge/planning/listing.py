"""Listing: a plan as JSON and as a table for the terminal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import TypeAdapter
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from layermerge.conv import ConvSpec
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.tracing.structure import Block

_AS_JSON = TypeAdapter(Candidate)


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as plain data; kernel and stride are [height, width], null for an identity."""
    layers = [{"name": layer.name, **_geometry(layer.spec), "irreducible": layer.irreducible} for layer in plan.layers]
    candidates = [
        {
            "key": candidate.key,
            **_AS_JSON.dump_python(candidate, mode="json", exclude={"spec"}),
            **_geometry(candidate.spec),
        }
        for candidate in plan.candidates
    ]
    rejections = [{"start": one.start, "end": one.end, "reason": one.reason} for one in plan.rejections]
    # Fixed candidates are listed, but no table counts them.
    counts = {"candidates": len(plan.entries), "fixed": len(plan.candidates) - len(plan.entries)}
    facts = {"layers": layers, "candidates": candidates, "rejections": rejections}
    return {"method": plan.method, "counts": counts, **facts}


def _geometry(spec: ConvSpec | None) -> dict[str, Any]:
    shape = (None, None, None) if spec is None else (list(spec.kernel), list(spec.stride), spec.groups)
    return dict(zip(("kernel", "stride", "groups"), shape, strict=True))


def plan_table(plan: Plan, blocks: tuple[Block, ...], title: str) -> Group:
    """Layers in order: what each is, its block, whether it can go, how far it merges, and why not further."""
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for header in ("#", "layer", "conv", "channels", "map", "block", "removable", "merges up to", "why not further"):
        right = header in ("#", "channels", "map")
        table.add_column(header, justify="right" if right else "left", overflow="fold", no_wrap=header != "layer")
    removable = {index for index in range(len(plan.layers)) if plan.single(index, kept=False)}
    fixed = {candidate.start for candidate in plan.candidates if candidate.fixed}
    notes: dict[str, tuple[str, str]] = {}
    for index, layer in enumerate(plan.layers):
        end = max((c.end for c in plan.candidates if c.start == index), default=index + 1)
        reason = _why_not_further(plan, index, end)
        letter, _ = notes.setdefault(_kind(reason), (_letter(len(notes)), reason)) if reason else ("", "")
        can_go = "yes" if index in removable else "no (shape)" if layer.irreducible else "no"
        table.add_row(
            str(index),
            escape(layer.name),
            str(layer.spec),
            f"{layer.spec.in_channels}>{layer.spec.out_channels}",
            f"{layer.output_shape[1]}x{layer.output_shape[2]}",
            escape(_block_mark(blocks, index)),
            "fixed" if index in fixed else can_go,
            f"#{end - 1}" if end > index + 1 else "-",
            letter,
        )
    legend = [Text(f"{letter}  {reason}") for letter, reason in notes.values()]
    return Group(
        table, Text(), Text("why not further, by example:", style="bold"), *legend, Text(), summary(plan, len(blocks))
    )


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else f"a{number - 25}"


def _block_mark(blocks: tuple[Block, ...], index: int) -> str:
    """The innermost block around a layer, drawn as a bracket along the rows; `~` marks a shortcut conv."""
    around = [block for block in blocks if block.start <= index < block.end]
    if not around:
        return ""
    block = around[-1]
    shortcut = " ~" if block.shortcut == index else ""
    if len(block) == 1:
        return f"[ {block.name}"
    if index == block.start:
        return f"\u250c {block.name}{shortcut}"
    return ("\u2514" if index == block.end - 1 else "\u2502") + shortcut


def _why_not_further(plan: Plan, start: int, reached: int) -> str:
    """The first rule that stops a longer range; where none comes into play, what lies between."""
    longer = [rejection for rejection in plan.rejections if rejection.start == start and rejection.end > reached]
    rules = [rejection for rejection in longer if not rejection.topological]
    return (rules or longer)[0].reason if longer else ""


def summary(plan: Plan, blocks: int) -> Text:
    ranges = {(candidate.start, candidate.end) for candidate in plan.entries}
    emptied = sum(candidate.spec is None and not candidate.replaced for candidate in plan.entries)
    free = sum(candidate.free and not candidate.replaced for candidate in plan.entries)
    replacing = Counter(candidate.replaced for candidate in plan.entries if candidate.replaced)
    replaced = "".join(f", {count} replace the {what}" for what, count in sorted(replacing.items()))
    kinds = Counter(_kind(rejection.reason) for rejection in plan.rejections)
    common = "; ".join(f"{count} x {kind}" for kind, count in kinds.most_common(3))
    fixed = len(plan.candidates) - len(plan.entries)
    beside = f"; {fixed} more are fixed: always taken, outside the tables" if fixed else ""
    rejected = f"{len(plan.rejections)} ranges rejected{f': {common}' if common else ''}"
    return Text(
        f"{len(plan.layers)} layers, {blocks} residual blocks. {len(plan.entries)} candidates over {len(ranges)} ranges "
        f"({emptied} remove all they cover, {free} merge and lose nothing{replaced}{beside}). {rejected}."
    )


def _kind(reason: str) -> str:
    """A reason without the names in it, so that like ones can be counted together."""
    return " ".join("..." if part.startswith("'") else part for part in reason.split())
