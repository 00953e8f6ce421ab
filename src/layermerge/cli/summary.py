"""Summary: what a run reached, at a glance: the table that compress and demo print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from layermerge.cli.app import console

if TYPE_CHECKING:
    from layermerge.runs.records import Report, Result
    from layermerge.tasks.base import Score


def show_result(title: str, result: Result, page: Path) -> None:
    """Latency, score and convs before and after, and where things are."""
    report = result.report
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
