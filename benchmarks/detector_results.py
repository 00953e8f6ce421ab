"""Results of detectors: a JSON file each, and the table that is made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.agreement import Interval

RESULTS = Path(__file__).resolve().parent / "results" / "detectors"
NAMES = {"yolox": "YOLOX (ddddocr)", "ppocr": "PP-OCRv4 text detector"}
COLUMNS = (
    "mAP at IoU 0.5",
    "mAP at IoU 0.75",
    "confident boxes found",
    "IoU of the text map",
    "text boxes, mAP at IoU 0.5",
)
"""Figures of agreement, in the order of the table; each network has some of them."""


@dataclass(frozen=True, kw_only=True)
class DetectorResult:
    """A compressed detector beside its original; agreement is that of the exported file with the original file."""

    network: str
    file: str
    budget: str
    label: str
    seed: int
    """Of the training; pictures have seeds of their own, in the script."""
    steps: int
    minutes_trained: float
    runtime: str
    file_ms: float
    """Of the file as it was given."""
    original_ms: float
    """Of the same network as layermerge writes it: what budgets are shares of."""
    measured_ms: float
    """Of the compressed file; all three in turn, in one run."""
    convs_before: int
    convs_after: int
    pictures: int
    original_boxes: int
    agreement: Mapping[str, Interval]
    distance: float
    """What the task reports: squared error of the outputs in units of the original's variance."""
    command: str
    commit: str | None
    compressed_by: str | None
    """The commit that compressed and trained it."""
    processor: str
    versions: Mapping[str, str]
    date: str

    @property
    def place(self) -> str:
        return f"{self.network}-{self.budget.removesuffix('%')}-{self.label}.json"


def write_result(folder: Path, result: DetectorResult) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / result.place
    path.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    return path


def read_results(folder: Path) -> list[DetectorResult]:
    """By network, then from the largest budget down, without training first."""
    found = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        document["agreement"] = {name: Interval(**figure) for name, figure in document["agreement"].items()}
        found.append(DetectorResult(**document))
    order = list(NAMES)
    return sorted(found, key=lambda one: (order.index(one.network), -float(one.budget[:-1]), one.minutes_trained))


def table(results: Sequence[DetectorResult]) -> list[str]:
    """Lines of Markdown: one a result, then what they were measured on."""
    if not results:
        return ["(not run yet)"]
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
            *(NAMES[one.network], one.budget, f"{one.minutes_trained:.0f}" if one.steps else "none"),
            *(f"{one.file_ms:.2f}", f"{one.original_ms:.2f}", f"{one.measured_ms:.2f}"),
            f"{one.measured_ms / one.original_ms:.1%}",
            *("-" if figure is None else _with_interval(figure) for figure in shown),
        )
        lines.append(f"| {' | '.join(cells)} |")
    boxes = {NAMES[one.network]: one.original_boxes / one.pictures for one in results}
    said = "; ".join(f"{name} finds {count:.1f} boxes a picture" for name, count in boxes.items())
    places = "; ".join(sorted({f"{one.processor}, commit {one.commit}, {one.date[:10]}" for one in results}))
    return [*lines, "", f"{results[0].pictures} test pictures; {said}. {places}."]


def _with_interval(figure: Interval) -> str:
    return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"
