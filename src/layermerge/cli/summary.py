"""Summary: what a run reached, at a glance: the table that compress and demo print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from layermerge.cli.app import console

if TYPE_CHECKING:
    from layermerge.runs.records import Int8Result, Report, Result
    from layermerge.tasks.base import Score


def show_result(title: str, result: Result, page: Path) -> None:
    """Latency, score and convs before and after, and where things are."""
    from layermerge.runs.directory import VariantDirectory

    report, int8 = result.report, VariantDirectory(result.directory).read_int8()
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("", overflow="fold")
    for row in _rows(report):
        table.add_row(*row)
    out = console()
    out.print(f"\n{title}: {report.method} at {report.budget}\n", markup=False, highlight=False)
    out.print(table)
    if int8 is not None:
        show_int8(int8)
    if not report.budget_kept:
        print(
            f"\nthe exported file takes {report.measured_ms:.3f} ms, more than the budget of {report.budget_ms:.3f}: "
            "if the machine was busy, the same command measures it again; else ask for a smaller budget"
        )
    show_lines(
        [
            ("", ""),
            (str(page), "the report: open it in a browser"),
            (str(result.directory), "the network to serve, its weights, how it recovered"),
        ]
    )


def show_int8(int8: Int8Result) -> None:
    """The merged network in float32 and in INT8, beside each other."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("float32", justify="right")
    table.add_column("INT8", justify="right")
    table.add_column("", overflow="fold")
    score, before = int8.score, int8.float32_score
    times = int8.float32_ms / int8.int8_ms
    speed = f"{times:.2f} times as fast" if int8.faster else "SLOWER than float32 on this machine"
    left = f"; {_counted(len(int8.left_in_float32), 'layer')} left in float32" if int8.left_in_float32 else ""
    table.add_row(
        "latency (ms)",
        f"{int8.float32_ms:.3f}",
        f"{int8.int8_ms:.3f}",
        f"{speed} ({int8.runtime}; {int8.scheme} for {int8.instructions}{left})",
    )
    table.add_row(
        score.title,
        _shown(score, before.value),
        _shown(score, score.value),
        f"{score.count:,} test images, merged network",
    )
    out = console()
    out.print("")
    out.print(table)


def show_lines(lines: list[tuple[str, str]]) -> None:
    """Two columns; the first is for paths and commands."""
    width = max(len(first) for first, _ in lines) + 3
    for first, second in lines:
        print(f"{first:{width}}{second}".rstrip())


def quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _rows(report: Report) -> list[tuple[str, str, str, str]]:
    score, before = report.score, report.original_score
    threads, images = _counted(report.threads, "thread"), _counted(report.batch_size, "image")
    where = f"{report.runtime}, {threads}, {images} at a time"
    predicted = f"; predicted {report.prediction}, measured {report.measured_ms:.3f}" if report.prediction else ""
    interval = ""
    if score.low is not None and score.high is not None:
        interval = f"95 % interval {_shown(score, score.low)} to {_shown(score, score.high)}, "
    return [
        (
            "latency (ms)",
            f"{report.original_ms:.3f}",
            f"{report.measured_ms:.3f}",
            f"{report.speed_up:.2f} times as fast (budget {report.budget_ms:.3f}{predicted}; {where})",
        ),
        (
            score.title,
            _shown(score, before.value),
            _shown(score, score.value),
            f"{interval}{score.count:,} test images",
        ),
        ("convolutions", str(report.convs_before), str(report.convs_after), "merged equals unmerged, checked"),
    ]


def _shown(score: Score, value: float) -> str:
    return f"{score.scale * value:.{1 if score.kind == 'share' else 5}f}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
