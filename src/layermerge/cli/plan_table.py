"""Plan table: the layers of a plan in order: what each is, its block, whether it can go, how far it merges, why not further."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layermerge.cli.layout import Column, bold, show_table, show_text
from layermerge.planning.barriers import barrier_behind, reach
from layermerge.planning.listing import like, summary

if TYPE_CHECKING:
    from layermerge.planning.plan import Plan
    from layermerge.tracing.structure import Block

_COLUMNS = (
    Column("#", "figure"),
    Column("layer", "name", least=16),
    Column("conv"),
    Column("channels", "figure", missed=3),
    Column("map", "figure", missed=1),
    Column("block", "word", missed=2),
    Column("removable"),
    Column("merges up to"),
    Column("why not further"),
)


def show_plan(plan: Plan, blocks: tuple[Block, ...], title: str) -> None:
    """The table, the reasons that its letters stand for, and what there is in all."""
    notes: dict[str, tuple[str, str]] = {}
    rows = [_row(plan, blocks, index, notes) for index in range(len(plan.layers))]
    show_text(title)
    show_table(_COLUMNS, rows)
    if notes:
        print(f"\n{bold('why not further, by example:')}")
        for letter, reason in notes.values():
            show_text(f"{letter}  {reason}", behind="   ")
    print()
    show_text(summary(plan, len(blocks)))


def _row(plan: Plan, blocks: tuple[Block, ...], index: int, notes: dict[str, tuple[str, str]]) -> list[str]:
    layer, end = plan.layers[index], reach(plan, index)[1]
    barrier, kept = barrier_behind(plan, index), plan.single(index, kept=True)
    letter = ""
    if barrier:
        letter, _ = notes.setdefault(like(barrier.reason), (_letter(len(notes)), barrier.reason))
    can_go = "yes" if plan.single(index, kept=False) else "no (shape)" if layer.irreducible else "no"
    return [
        str(index),
        layer.name,
        str(layer.spec),
        f"{layer.spec.in_channels}>{layer.spec.out_channels}",
        f"{layer.output_shape[1]}x{layer.output_shape[2]}",
        _block_mark(blocks, index),
        "fixed" if kept and kept.fixed else can_go,
        f"#{end - 1}" if end > index + 1 else "-",
        letter,
    ]


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
