"""Results of detectors: a JSON file each, and the table that is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.agreement import Interval
from benchmarks.missing import Missing, read_missing, reasons, tells_of_missing

from layermerge.files import SCHEMA, STRICT, read_document, write_document
from layermerge.planning.candidate import Candidate
from layermerge.runs.records import Environment, Report

RESULTS = Path(__file__).resolve().parent / "results" / "detectors"
BUDGETS = ("80%", "70%", "60%")
UNTRAINED = "untrained"
NAMES = {"yolox": "YOLOX (ddddocr)", "ppocr": "PP-OCRv4 text detector"}
COLUMNS = (
    "mAP at IoU 0.5",
    "mAP at IoU 0.75",
    "confident boxes found",
    "IoU of the text map",
    "text boxes, mAP at IoU 0.5",
)
"""Figures of agreement, in the order of the table; each network has some of them."""
NOT_RUN = "Not run yet: `python benchmarks/detectors.py`."
BRIEFLY = {"yolox": ("mAP at IoU 0.5", "mAP at IoU 0.75"), "ppocr": ("IoU of the text map",)}
"""Those of a short table."""


@dataclass(frozen=True, kw_only=True)
class DetectorResult:
    """A compressed detector beside its original; agreement is that of the exported file with the original file."""

    __pydantic_config__ = STRICT

    network: str
    file: str
    report: Report
    """Of the run that compressed and trained it."""
    candidates: tuple[Candidate, ...]
    recovery: tuple[tuple[float, float], ...]
    """How the held-out score came back, by epoch; empty without training."""
    seeds: dict[str, int]
    """Pictures have theirs in the script."""
    steps: int
    minutes_trained: float
    file_ms: float
    """Of the file as it was given."""
    original_ms: float
    """Of the same network as layermerge writes it: what budgets are shares of."""
    measured_ms: float
    """Of the compressed file; all three in turn, in one run."""
    pictures: int
    original_boxes: int
    agreement: dict[str, Interval]
    environment: Environment
    """Where it was compared and timed."""
    schema_version: Literal[2] = SCHEMA

    @property
    def name(self) -> str:
        return name_of(self.network, self.report.budget, self.report.label)


def name_of(network: str, budget: str, label: str = UNTRAINED) -> str:
    return f"{network}-{budget.removesuffix('%')}-{label}"


def file_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def write_result(folder: Path, result: DetectorResult) -> Path:
    path = file_of(folder, result.name)
    write_document(path, result)
    return path


def read_results(folder: Path) -> list[DetectorResult]:
    """By network, then from the largest budget down, without training first."""
    paths = [path for path in sorted(folder.glob("*.json")) if not tells_of_missing(path)]
    found = [read_document(path, DetectorResult) for path in paths]
    order = list(NAMES)
    return sorted(
        found, key=lambda one: (order.index(one.network), -float(one.report.budget[:-1]), one.minutes_trained)
    )


def unreachable(folder: Path) -> Iterator[tuple[str, Missing]]:
    """Budgets that no choice meets, and why."""
    for network, shown in NAMES.items():
        for budget in BUDGETS:
            if (missing := read_missing(folder, name_of(network, budget))) is not None:
                yield f"{shown} at {budget}", missing


def table(results: Sequence[DetectorResult], missing: Iterable[tuple[str, Missing]] = ()) -> list[str]:
    """Lines of Markdown: one a result, then what they were measured on and which budgets cannot be met."""
    if not results:
        return [NOT_RUN]
    columns = (
        "network",
        "budget",
        "trained (min)",
        "file as given (ms)",
        "rewritten (ms)",
        "compressed (ms)",
        "measured",
        *COLUMNS,
    )
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for one in results:
        shown = [one.agreement.get(name) for name in COLUMNS]
        cells = (
            *(NAMES[one.network], one.report.budget, f"{one.minutes_trained:.0f}" if one.steps else "none"),
            *(f"{one.file_ms:.2f}", f"{one.original_ms:.2f}", f"{one.measured_ms:.2f}"),
            f"{one.measured_ms / one.original_ms:.1%}",
            *("-" if figure is None else _with_interval(figure) for figure in shown),
        )
        lines.append(f"| {' | '.join(cells)} |")
    boxes = {NAMES[one.network]: one.original_boxes / one.pictures for one in results}
    said = "; ".join(f"{name} finds {count:.1f} boxes a picture" for name, count in boxes.items())
    made = [one.environment for one in results]
    places = "; ".join(sorted({f"{at.processor}, commit {at.commit}, {at.finished[:10]}" for at in made}))
    return [
        *lines,
        "",
        f"{results[0].pictures} test pictures; {said}. {places}.",
        *reasons(missing, "Budgets that cannot be met"),
    ]


def briefly(results: Sequence[DetectorResult]) -> list[str]:
    """Lines of Markdown: one a network and budget, without training and after the longest."""
    if not results:
        return [NOT_RUN]
    lines = [
        "| network | latency of the original | agreement with it | without training | trained |",
        "|---|---|---|---|---|",
    ]
    for network, budget in dict.fromkeys((one.network, one.report.budget) for one in results):
        alike = [one for one in results if (one.network, one.report.budget) == (network, budget)]
        first, last = alike[0], alike[-1]
        what = BRIEFLY[network]
        cells = (
            *(NAMES[network], f"{first.measured_ms / first.original_ms:.0%}", " / ".join(what)),
            "" if first.steps else _figures(first, what),
            f"{_figures(last, what)} ({last.minutes_trained:.0f} min)" if last.steps else "not run yet",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _figures(one: DetectorResult, names: Sequence[str]) -> str:
    return " / ".join(f"{one.agreement[name].value:.3f}" for name in names)


def _with_interval(figure: Interval) -> str:
    return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"
