"""The verb demo: the whole pipeline on a network and images that come with the package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layermerge.cli.app import JsonOption, app, console, print_json
from layermerge.cli.runs import RECIPE, note_recipe, open_run, read_flags

if TYPE_CHECKING:
    from layermerge.runs.results import Report
    from layermerge.runs.steps import Result

_RUNTIME = "onnxruntime"


@app.command()
def demo(
    budget: Annotated[str, typer.Option(help="60%, 1.8x or 12ms.")] = "60%",
    method: Annotated[str, typer.Option(help="layermerge, depth, layeronly, sequential, channels, ...")] = "layermerge",
    runtime: Annotated[str, typer.Option(help="torch, onnxruntime, openvino, ...")] = _RUNTIME,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="Where results go; runs/demo, or runs/demo-RUNTIME.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compress a small network that comes with the package: plan, tables, choice, fine-tuning, merge, export, report.

    Example: layermerge demo --budget 50%
    """
    from layermerge.models import demo as shipped
    from layermerge.reporting.page import REPORT, write_report
    from layermerge.runs.methods import run_method

    chosen = read_flags(shipped.RECIPE, {"budgets": [budget], "method": method, "runtime": runtime})
    # A run directory holds the tables of one runtime.
    place = run_dir or Path("runs") / ("demo" if runtime == _RUNTIME else f"demo-{runtime}")
    result = run_method(open_run(chosen, place), method, budget)
    note_recipe(chosen, place)
    page = write_report([place], place / REPORT)
    if as_json:
        print_json({**result.report.model_dump(mode="json"), "directory": str(result.directory), "page": str(page)})
    else:
        _show(result, page, place)


def _show(result: Result, page: Path, run_dir: Path) -> None:
    """What a person wants to know, at a glance."""
    from rich.table import Table

    report = result.report
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("", overflow="fold")
    for row in _rows(report):
        table.add_row(*row)
    out = console()
    out.print(f"\nA small network that tells clothes apart (Fashion-MNIST): {report.method} at {report.budget}\n")
    out.print(table)
    same = f"--run-dir {shlex.quote(str(run_dir))}"
    lines = [
        ("", ""),
        (str(page), "the report: open it in a browser"),
        (str(result.directory), "the network to serve, its weights, how it recovered"),
        ("", ""),
        (f"layermerge demo --budget 50%{_runtime_flag(report)} {same}", "another budget uses the same tables"),
        (f"layermerge compare {shlex.quote(str(run_dir / RECIPE))} {same} --budget 75%", "beside depth and layeronly"),
    ]
    width = max(len(first) for first, _ in lines) + 3
    for first, second in lines:
        print(f"{first:{width}}{second}".rstrip())


def _runtime_flag(report: Report) -> str:
    return "" if report.runtime == _RUNTIME else f" --runtime {report.runtime}"


def _rows(report: Report) -> list[tuple[str, str, str, str]]:
    score, before = report.score, report.original_score
    threads, images = _counted(report.threads, "thread"), _counted(report.batch_size, "image")
    where = f"{report.runtime}, {threads}, {images} at a time"
    predicted = "" if report.predicted_ms is None else f", predicted {report.predicted_ms:.3f}"
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


def _shown(score: Any, value: float) -> str:
    return f"{score.scale * value:.{1 if score.kind == 'share' else 5}f}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
