"""Results of the diffusion benchmark: a JSON file a network, and the tables that are made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.missing import Missing, read_missing, reasons

from layermerge.files import SCHEMA, STRICT, read_document, write_document
from layermerge.planning.candidate import Candidate
from layermerge.runs.records import CONTROL, Environment, Report

RESULTS = Path(__file__).resolve().parent / "results" / "diffusion"
METHODS = ("layermerge", "depth", "layeronly")
BUDGETS = ("85%", "75%")
FURTHER = "60%"
"""Where methods take a network whose channels were pruned to the last budget."""
STUDY = [
    (CONTROL, "100%"),
    *((method, budget) for budget in BUDGETS for method in METHODS),
    ("channels", BUDGETS[-1]),
    ("channels", FURTHER),
    *((f"channels+{method}", FURTHER) for method in METHODS),
]
ORDER = (CONTROL, *METHODS, "channels", *(f"channels+{method}" for method in METHODS))
NOT_RUN = "Not run yet: `python benchmarks/diffusion.py`."
Lead = tuple[float, float, float]
"""By how much a loss is lower than another's, image by image on the same noise, and the 95 % interval of that."""


@dataclass(frozen=True)
class Looks:
    """How far samples are from real images, to the features of an image classifier."""

    __pydantic_config__ = STRICT

    samples: int
    steps: int
    """Of DDIM for each sample."""
    kid: float
    kid_spread: float
    """Over subsets."""
    fid: float | None
    """None from fewer samples than features have dimensions."""


@dataclass(frozen=True)
class DiffusionResult:
    """NAME.json: a network's figures; all files were timed in one run, and sampled from the same start noise."""

    __pydantic_config__ = STRICT

    report: Report
    recovery: tuple[tuple[float, float], ...]
    candidates: tuple[Candidate, ...]
    milliseconds: dict[str, float]
    """Of a step of the report's batch, by runtime."""
    original_milliseconds: dict[str, float]
    looks: Looks | None
    """None where it was not sampled."""
    lead: dict[str, Lead]
    """Over the others, by their names: how much lower the noise loss on all test images is."""
    environment: Environment
    schema_version: Literal[2] = SCHEMA

    @property
    def name(self) -> str:
        return name_of(self.report.method, self.report.budget)


def name_of(method: str, budget: str) -> str:
    return f"{method}-{budget.replace('%', 'pct')}"


def write_result(result: DiffusionResult, folder: Path = RESULTS) -> None:
    write_document(folder / f"{result.name}.json", result)


def read_results(folder: Path = RESULTS) -> list[DiffusionResult]:
    """By method, then from the largest budget down."""
    paths = [folder / f"{name_of(method, budget)}.json" for method, budget in STUDY]
    found = [read_document(path, DiffusionResult) for path in paths if path.is_file()]
    return sorted(found, key=lambda one: (ORDER.index(one.report.method), -one.report.budget_ms))


def missing_of(folder: Path = RESULTS) -> Iterator[tuple[str, Missing]]:
    """What a method could not give, in the study's order."""
    for method, budget in STUDY:
        if (missing := read_missing(folder, name_of(method, budget))) is not None:
            yield f"{method} at {budget}", missing


def table(results: Sequence[DiffusionResult] | None = None) -> list[str]:
    """Lines of Markdown: one a network, then what they were measured on and what could not be had."""
    found = read_results() if results is None else results
    if not found:
        return [NOT_RUN]
    lines = [
        "| method | budget | onnxruntime | OpenVINO | noise loss | below the control's (paired 95 %) | KID x 1000 | FID | "
        "convs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    control = name_of(CONTROL, "100%")
    for one in found:
        report = one.report
        name = "original, fine-tuned" if report.method == CONTROL else report.method
        lead = "" if report.method == CONTROL or control not in one.lead else shown(one.lead[control])
        lines.append(
            f"| {name} | {report.budget} | {_time(one, 'onnxruntime')} | {_time(one, 'openvino')} | {report.score.value:.5f} | "
            f"{lead} | {_distances(one.looks)} | {report.convs_after} |"
        )
    first = found[0]
    made = first.environment
    return [
        *lines,
        "",
        f"A step is of {first.report.batch_size} images, one thread. Noise loss on {first.report.score.count:,} test images; "
        f"the untouched network's is {first.report.original_score.value:.5f}. {_sampled(found)}"
        f"{made.processor}, commit {made.commit}, {made.finished[:10]}.",
        *reasons(missing_of()),
    ]


def orderings(results: Sequence[DiffusionResult] | None = None) -> list[tuple[str, Lead]]:
    """LayerMerge's lead over Depth and LayerOnly wherever both took the same network to the same budget."""
    found = {one.name: one for one in (read_results() if results is None else results)}
    leads: list[tuple[str, Lead]] = []
    for one in found.values():
        before, _, last = one.report.method.rpartition("+")
        if last != "layermerge":
            continue
        for rival in METHODS[1:]:
            other = name_of(f"{before}+{rival}" if before else rival, one.report.budget)
            if other in one.lead:
                leads.append((f"{rival}{' after channels' if before else ''} at {one.report.budget}", one.lead[other]))
    return leads


def shown(lead: Lead) -> str:
    return f"{lead[0]:+.5f} ({lead[1]:+.5f} to {lead[2]:+.5f})"


def _distances(looks: Looks | None) -> str:
    """Cells of KID and FID."""
    if looks is None:
        return "- | -"
    distance = "-" if looks.fid is None else f"{looks.fid:.1f}"
    return f"{1000 * looks.kid:.1f} ± {1000 * looks.kid_spread:.1f} | {distance}"


def _sampled(found: Sequence[DiffusionResult]) -> str:
    how = next((one.looks for one in found if one.looks is not None), None)
    return f"{how.samples:,} samples of {how.steps} steps each, KID as mean and spread over subsets. " if how else ""


def _time(one: DiffusionResult, runtime: str) -> str:
    own: Mapping[str, float] = one.milliseconds
    return f"{own[runtime]:.2f} ms ({one.original_milliseconds[runtime] / own[runtime]:.2f}x)"
