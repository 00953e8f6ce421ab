"""Figures of the paper, remade of result files: score against latency, recovery, and the networks that methods choose.

    python benchmarks/figures.py                  # all that result files allow, into benchmarks/pictures
    python benchmarks/kernel_growth.py            # the figure of how kernels grow is measured by a script of its own

The files are those of `evidence.py`, `diffusion.py` and `detectors.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import detector_results, diffusion_results  # noqa: E402
from benchmarks.diffusion_results import METHODS  # noqa: E402
from benchmarks.evidence import STUDY, Entry, Made, latencies_of, results_of  # noqa: E402

from layermerge.planning.candidate import Candidate  # noqa: E402
from layermerge.reporting.plots import (  # noqa: E402
    MethodPoint,
    RecoveryCurve,
    picture,
    plot_accuracy,
    plot_recovery,
    styles,
)
from layermerge.runs.records import CONTROL  # noqa: E402

PICTURES = ROOT / "benchmarks" / "pictures"
Found = Sequence[tuple[Entry, Made]]


def pareto(network: str, found: Found, label: str) -> Path | None:
    """Accuracy against latency measured side by side, of all files that were trained alike."""
    timed = latencies_of(network)
    taken = timed.milliseconds["onnxruntime"] if timed else {}
    shown = [(entry, made.report) for entry, made in found if entry.label == label and entry.name in taken]
    drawn = [
        MethodPoint(
            "original, fine-tuned" if entry.method == CONTROL else entry.method,
            entry.budget,
            taken[entry.name],
            taken["original"],
            100 * report.score.value,
            None if report.score.low is None else 100 * report.score.low,
            None if report.score.high is None else 100 * report.score.high,
            entry.method == CONTROL,
        )
        for entry, report in shown
    ]
    return plot_accuracy(drawn, PICTURES / f"pareto-{network}-{label}.svg") if drawn else None


def recovery(network: str, found: Found, label: str) -> Path | None:
    """How the held-out score comes back by epoch, from where calibration left it."""
    curves = [
        RecoveryCurve(entry.method, entry.budget, tuple((epoch, 100 * score) for epoch, score in made.recovery))
        for entry, made in found
        if entry.label == label and made.recovery
    ]
    return plot_recovery(curves, PICTURES / f"recovery-{network}-{label}.svg") if curves else None


def choices(network: str, found: Found, label: str) -> Path | None:
    """The networks that methods chose, layer by layer."""
    rows = [(f"{e.method} {e.budget}", made.candidates) for e, made in found if e.label == label and made.candidates]
    return _draw_choices(rows, PICTURES / f"choices-{network}-{label}.svg") if rows else None


def diffusion() -> Iterator[Path]:
    """The U-Net's figures: noise loss against the latency of a step, recovery, choices."""
    found = diffusion_results.read_results()
    if not found:
        return
    drawn = [
        replace(
            MethodPoint.of(one.report),
            latency_ms=one.milliseconds["onnxruntime"],
            original_ms=one.original_milliseconds["onnxruntime"],
        )
        for one in found
    ]
    yield plot_accuracy(drawn, PICTURES / "pareto-diffusion.svg", score="noise loss (lower is better)")
    curves = [RecoveryCurve(one.report.method, one.report.budget, one.recovery) for one in found if one.recovery]
    if curves:
        score = "held-out loss, negative, in units of the original's"
        yield plot_recovery(curves, PICTURES / "recovery-diffusion.svg", score=score)
    # After channel pruning the layers are those of another network.
    rows = [
        (f"{one.report.method} {one.report.budget}", one.candidates) for one in found if one.report.method in METHODS
    ]
    if rows:
        yield _draw_choices(rows, PICTURES / "choices-diffusion.svg")


def detectors() -> Iterator[Path]:
    """How detectors that imitate their original come back."""
    found = [one for one in detector_results.read_results(detector_results.RESULTS) if one.recovery]
    for network in dict.fromkeys(one.network for one in found):
        curves = [
            RecoveryCurve(one.report.method, one.report.budget, one.recovery) for one in found if one.network == network
        ]
        score = "held-out score: 0 is the original, -0.5 the mean answer"
        yield plot_recovery(curves, PICTURES / f"recovery-{network}.svg", score=score)


def _draw_choices(rows: Sequence[tuple[str, Sequence[Candidate]]], path: Path) -> Path:
    """Networks one above the other: what stays, what merges, what goes."""
    layers = max(candidate.end for _, candidates in rows for candidate in candidates)
    with picture(path, width=11.0, height=0.9 + 0.42 * len(rows)) as axes:
        for place, (_, candidates) in enumerate(rows):
            for candidate in candidates:
                _draw(axes, candidate, len(rows) - 1 - place)
        axes.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)])
        axes.set_xlim(0, layers)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlabel("layers of the original; filled: what is left of them, with the merged kernel; empty: removed")
        axes.grid(visible=False)
    return path


def _draw(axes: Any, candidate: Candidate, row: int) -> None:
    """A range as one box as wide as its layers; light where it is an untouched layer, empty where nothing is left."""
    merged, plain = (colour for (colour, _, _), _ in zip(styles(), range(2), strict=False))
    colour = "none" if candidate.spec is None else "#D9E3EC" if candidate.untouched else merged
    width = candidate.end - candidate.start
    edge = plain if candidate.spec is None else "white"
    axes.barh(row, width - 0.12, left=candidate.start + 0.06, height=0.7, color=colour, edgecolor=edge, linewidth=0.8)
    if candidate.spec is not None and not candidate.untouched:
        high, wide = candidate.spec.kernel
        text = f"{high}x{wide}" if width > 1 else str(high)
        axes.text(candidate.start + width / 2, row, text, ha="center", va="center", color="white", fontsize=6)


def made_figures() -> Iterator[Path]:
    for network in STUDY:
        found = list(results_of(network))
        for label in dict.fromkeys(entry.label for entry, _ in found):
            for draw in (pareto, recovery, choices):
                if (path := draw(network, found, label)) is not None:
                    yield path
    yield from diffusion()
    yield from detectors()


def main() -> None:
    paths = list(made_figures())
    for path in paths:
        print(f"wrote {path.relative_to(ROOT)}")
    if not paths:
        sys.exit("there are no result files yet; run python benchmarks/evidence.py first")


if __name__ == "__main__":
    main()
