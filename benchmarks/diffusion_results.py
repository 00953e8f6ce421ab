"""Results of the diffusion benchmark: a JSON file a network, and the tables that are made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.missing import Missing, read_missing, reasons
from benchmarks.paired_kid import Lead

from layermerge.files import SCHEMA, STRICT, read_document, write_document
from layermerge.planning.candidate import Candidate
from layermerge.runs.records import CONTROL, Environment, Report

RESULTS = Path(__file__).resolve().parent / "results" / "diffusion"
METHODS = ("layermerge", "depth", "layeronly")
CHANNELS = "channels"
ON_THE_ORIGINAL = ("layermerge", CONTROL)
BESIDE_CHANNELS = (*ON_THE_ORIGINAL, f"{CHANNELS}+layermerge")
"""LayerMerge's networks that stand beside rivals which began with the original."""
BUDGETS = ("85%", "75%")
FURTHER = "60%"
"""Where methods take a network whose channels were pruned to the last budget."""
STUDY = [
    (CONTROL, "100%"),
    *((method, budget) for budget in BUDGETS for method in METHODS),
    (CHANNELS, BUDGETS[-1]),
    (CHANNELS, FURTHER),
    *((f"{CHANNELS}+{method}", FURTHER) for method in METHODS),
]
ORDER = (CONTROL, *METHODS, CHANNELS, *(f"{CHANNELS}+{method}" for method in METHODS))
NOT_RUN = "Not run yet: `python benchmarks/diffusion.py`."
Figure = Literal["noise loss", "KID"]
FIGURES: tuple[Figure, ...] = get_args(Figure)
"""What networks are compared by; of both, less is better."""


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
    seeds: dict[str, int]
    candidates: tuple[Candidate, ...]
    milliseconds: dict[str, float]
    """Of a step of the report's batch, by runtime."""
    original_milliseconds: dict[str, float]
    looks: Looks | None
    """None where it was not sampled."""
    leads: dict[Figure, dict[str, Lead]]
    """How much lower a figure is than the others', by their names: on the same noise, added to images or sampled from."""
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
        "| method | budget | onnxruntime | OpenVINO | noise loss | below the control's (paired 95 %) | FID | KID x 1000 | "
        "below the control's (paired 95 %) | convs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    control = name_of(CONTROL, "100%")
    for one in found:
        report = one.report
        name = "original, fine-tuned" if report.method == CONTROL else report.method
        fid, kid = _distances(one.looks)
        loss_lead, kid_lead = (_beside(one, control, figure) for figure in FIGURES)
        lines.append(
            f"| {name} | {report.budget} | {_time(one, 'onnxruntime')} | {_time(one, 'openvino')} | {report.score.value:.5f} | "
            f"{loss_lead} | {fid} | {kid} | {kid_lead} | {report.convs_after} |"
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


def orderings(
    figure: Figure, rivals: Sequence[str], results: Sequence[DiffusionResult] | None = None
) -> list[tuple[str, Lead]]:
    """LayerMerge's lead over rivals at their latency, wherever both took the same network further."""
    found = read_results() if results is None else results
    told: list[tuple[str, Lead]] = []
    for rival in found:
        before, _, last = rival.report.method.rpartition("+")
        if last not in rivals:
            continue
        mine = BESIDE_CHANNELS if last == CHANNELS else (f"{before}+layermerge",) if before else ON_THE_ORIGINAL
        curve = [one for one in found if one.report.method in mine and rival.name in one.leads.get(figure, {})]
        if curve:
            said = f"{last}{' after channels' if before else ''} at {rival.report.budget}"
            told.append((said, lead_at(rival, curve, figure)))
    return told


def lead_at(rival: DiffusionResult, curve: Sequence[DiffusionResult], figure: Figure) -> Lead:
    """That of the chord between the next slower and the next faster network; of the last one, beyond either end."""
    timed = [(one.milliseconds["onnxruntime"], one.leads[figure][rival.name]) for one in curve]
    own = rival.milliseconds["onnxruntime"]
    ms = min(max(own, min(timed)[0]), max(timed)[0])
    slower, faster = min(pair for pair in timed if pair[0] >= ms), max(pair for pair in timed if pair[0] <= ms)
    share = 0.0 if slower[0] == faster[0] else (slower[0] - ms) / (slower[0] - faster[0])
    # Bounds are mixed as means are: as if both differences always erred alike, which is wider than need be.
    gain, low, high = (
        (1 - share) * of_slower + share * of_faster for of_slower, of_faster in zip(slower[1], faster[1], strict=True)
    )
    return gain, low, high


def shown(figure: Figure, lead: Lead) -> str:
    """KID in thousandths, as it is usually given."""
    if figure == "KID":
        lead = (1000 * lead[0], 1000 * lead[1], 1000 * lead[2])
    places = 1 if figure == "KID" else 5
    return f"{lead[0]:+.{places}f} ({lead[1]:+.{places}f} to {lead[2]:+.{places}f})"


def _beside(one: DiffusionResult, control: str, figure: Figure) -> str:
    """A cell: how much lower than the control's; empty where they were not compared, as for the control itself."""
    lead = one.leads.get(figure, {}).get(control)
    return "" if lead is None else shown(figure, lead)


def _distances(looks: Looks | None) -> tuple[str, str]:
    """Cells of FID and KID."""
    if looks is None:
        return "-", "-"
    distance = "-" if looks.fid is None else f"{looks.fid:.1f}"
    return distance, f"{1000 * looks.kid:.1f} ± {1000 * looks.kid_spread:.1f}"


def _sampled(found: Sequence[DiffusionResult]) -> str:
    how = next((one.looks for one in found if one.looks is not None), None)
    return f"{how.samples:,} samples of {how.steps} steps each, KID as mean and spread over subsets. " if how else ""


def _time(one: DiffusionResult, runtime: str) -> str:
    own: Mapping[str, float] = one.milliseconds
    return f"{own[runtime]:.2f} ms ({one.original_milliseconds[runtime] / own[runtime]:.2f}x)"
