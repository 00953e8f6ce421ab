"""Summary: what a verb reached, in one table of one look, and where to look next. All verbs end with it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from layermerge.cli.layout import Column, bold, show_table, show_text, width_of

if TYPE_CHECKING:
    from layermerge.quantization.figures import QuantizedFigures
    from layermerge.runs.recipe import RunRecipe
    from layermerge.runs.records import Report, Result
    from layermerge.tasks.base import Score

Line = tuple[str, str, str, str]
"""What it is about, before, after, and what is said of it; what all lines leave empty is not shown."""
Next = tuple[str, str]
"""A command or a path, and what it is for."""


def show_summary(title: str, lines: Sequence[Line], headings: tuple[str, str] = ("before", "after")) -> None:
    """The table; a title stands above it."""
    before, after = (Column(heading, "figure") for heading in headings)
    show_text(title)
    if any(headings):
        print()
    show_table((Column(""), before, after, Column("", "text")), lines)


def show_next(*lines: Next) -> None:
    """Where to look and what to type; each command is a line of its own that can be copied."""
    width, longest = width_of(), max(len(first) for first, _ in lines)
    print(f"\n{bold('next')}")
    for first, purpose in lines:
        if longest + 3 + max(len(each) + 2 for _, each in lines) <= width:
            print(f"{first:{longest}}   # {purpose}")
        else:
            print(f"# {purpose}\n{first}")


def quoted(path: Path | str) -> str:
    return shlex.quote(str(path))


def on_run(verb: str, run_dir: Path, recipe: RunRecipe | None = None, *words: str) -> str:
    """A verb on a run; it is allowed to load a network from Python where this one was."""
    allowed = ["--allow-python"] if recipe is not None and str(recipe.model).startswith("python:") else []
    return shlex.join(["layermerge", verb, str(run_dir), *words, *allowed])


# -- results


def show_result(title: str, result: Result) -> None:
    """Latency, score and convolutions before and after, what is to be thought of it, and the INT8 file where there is one."""
    from layermerge.reporting.numbers import spaced
    from layermerge.reporting.verdict import verdict_of
    from layermerge.runs.directory import VariantDirectory

    report, int8 = result.report, VariantDirectory(result.directory).read_int8()
    print()
    show_summary(f"{title}: {report.method} at {spaced(report.budget)}", result_lines(report))
    if int8 is not None:
        print()
        show_int8("The merged network in float32 and in INT8", int8)
    verdict = verdict_of(report)
    print()
    show_text(f"{verdict.title}. {verdict.budget}")
    for advice in verdict.advice:
        show_text(f"- {advice}", behind="  ")


def result_lines(report: Report) -> list[Line]:
    from layermerge.reporting.numbers import plural, times

    threads, images = plural(report.threads, "thread"), plural(report.batch_size, "image")
    predicted = f", predicted {report.prediction} ms" if report.prediction else ""
    return [
        (
            "latency",
            f"{report.original_ms:.3f} ms",
            f"{report.measured_ms:.3f} ms",
            f"{times(report.speed_up)}{predicted}; {report.runtime}, {threads}, {images} at a time",
        ),
        (report.score.name, score_shown(report.original_score), score_shown(report.score), _sure(report.score)),
        ("convolutions", str(report.convs_before), str(report.convs_after), "merged equals unmerged, checked"),
    ]


def show_int8(title: str, int8: QuantizedFigures) -> None:
    """The merged network in both forms, beside each other."""
    from layermerge.reporting.numbers import plural, times
    from layermerge.runs.records import Int8Result

    speed = times(int8.float32_ms / int8.int8_ms) if int8.faster else "SLOWER than float32 on this machine"
    left = f"; {plural(len(int8.left_in_float32), 'layer')} left in float32" if int8.left_in_float32 else ""
    how = f"{speed}; {int8.runtime}, {int8.scheme} for {int8.instructions}{left}"
    lines = [("latency", f"{int8.float32_ms:.3f} ms", f"{int8.int8_ms:.3f} ms", how)]
    if isinstance(int8, Int8Result):
        lines += [(int8.score.name, score_shown(int8.float32_score), score_shown(int8.score), _sure(int8.score))]
    show_summary(title, lines, ("float32", "INT8"))


_RESULTS = (
    Column("method", "name"),
    Column("budget", "figure"),
    Column("latency", "figure"),
    Column("speed-up", "figure"),
    Column("score", "figure"),
    Column("95 % interval", "figure", missed=2),
    Column("convolutions", "figure", missed=3),
    Column("predicted", "figure", missed=1),
)


def show_results(reports: Sequence[Report]) -> None:
    """Several results of one network beside each other."""
    from layermerge.reporting.numbers import plural

    first = reports[0]
    before = f"{first.original_ms:.3f} ms, {first.score.name} {score_shown(first.original_score)}"
    threads, images = plural(first.threads, "thread"), plural(first.batch_size, "image")
    show_text(f"Original: {before}, {first.convs_before} convolutions; {first.runtime}, {threads}, {images} at a time")
    columns = [replace(each, title=first.score.name) if each.title == "score" else each for each in _RESULTS]
    show_table(columns, [_row(report) for report in reports])


def _row(report: Report) -> list[str]:
    from layermerge.reporting.numbers import spaced, times

    score = report.score
    known = score.low is not None and score.high is not None
    return [
        report.method,
        spaced(report.budget),
        f"{report.measured_ms:.3f} ms{'' if report.budget_kept else ' MISSED'}",
        times(report.speed_up),
        score_shown(score),
        f"{score_shown(score, score.low)} to {score_shown(score, score.high)}" if known else "",
        str(report.convs_after),
        f"{report.prediction} ms" if report.prediction else "",
    ]


def score_shown(score: Score, value: float | None = None) -> str:
    """A score, or another value of its kind: a share in percent."""
    from layermerge.reporting.numbers import figure, share

    own = score.value if value is None else value
    return share(own) if score.kind == "share" else figure(score, own)


def _sure(score: Score) -> str:
    from layermerge.reporting.numbers import plural

    interval = ""
    if score.low is not None and score.high is not None:
        interval = f"95 % interval {score_shown(score, score.low)} to {score_shown(score, score.high)}, "
    return f"{interval}{plural(score.count, 'test image')}"
