"""Claims of the paper beside what result files say: theirs, ours, and whether both point the same way.

In: the files of `evidence.py`. Out: a line a claim. A claim holds here where no comparison contradicts it: where LayerMerge is
nowhere below a rival by more than chance (paired 95 % interval), at about the same measured latency and as much training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.evidence import STUDY, Entry, latencies_of, results_of

from layermerge.reporting.score_change import ScoreChange, score_change
from layermerge.runs.records import CONTROL, Report
from layermerge.tasks.base import Score

ABOUT_AS_FAST = 1.02
"""Files whose latencies differ by less are compared as equally fast."""
Found = Sequence[tuple[Entry, Report]]


def matched(rival: Entry, found: Found, taken: dict[str, float]) -> tuple[Entry, Report] | None:
    """LayerMerge's file with the same training that is no slower than the rival's, the slowest of these."""
    able = [
        (entry, report)
        for entry, report in found
        if entry.method == "layermerge"
        and entry.label == rival.label
        and entry.name in taken
        and taken[entry.name] <= taken[rival.name] * ABOUT_AS_FAST
    ]
    return max(able, key=lambda pair: taken[pair[0].name], default=None)


@dataclass(frozen=True)
class Outcome:
    """What was found, and whether it agrees; None where nothing was run that could tell."""

    text: str
    agrees: bool | None


def _against(*methods: str, epochs: Callable[[int], bool] = lambda count: count > 1) -> Callable[[], Outcome]:
    """LayerMerge beside rivals, wherever there is a file of theirs that was trained so long."""

    def compare() -> Outcome:
        told: list[str] = []
        agrees = True
        for network in STUDY:
            timed, found = latencies_of(network), [(entry, made.report) for entry, made in results_of(network)]
            taken = timed.milliseconds["onnxruntime"] if timed else {}
            for entry, report in found:
                if entry.method not in methods or entry.name not in taken or not epochs(entry.epochs):
                    continue
                beside = matched(entry, found, taken)
                if beside is None:
                    continue
                change = score_change(report.score, beside[1].score)
                rival = f"{entry.method}, " if len(methods) > 1 else ""
                told.append(f"{rival}{network} at {entry.budget} {points(change)}")
                agrees &= change.high is None or change.high >= 0
        return Outcome("; ".join(told) or "not run yet", agrees if told else None)

    return compare


def _by_training(network: str, budget: str, first: Entry, second: Entry, what: str) -> Callable[[], Outcome]:
    """The same network after two kinds of training."""

    def compare() -> Outcome:
        scores: dict[Entry, Score] = {entry: made.report.score for entry, made in results_of(network)}
        if first not in scores or second not in scores:
            return Outcome("not run yet", None)
        change = score_change(scores[first], scores[second])
        return Outcome(f"{network} at {budget}, {what}: {points(change)}", change.high is None or change.high >= 0)

    return compare


def _lossless() -> Outcome:
    """The fastest file that is not below its control by more than chance."""
    best: tuple[float, str] | None = None
    for network in STUDY:
        timed, found = latencies_of(network), [(entry, made.report) for entry, made in results_of(network)]
        controls = {entry.label: report for entry, report in found if entry.method == CONTROL}
        for entry, report in found:
            if timed is None or entry.method != "layermerge" or entry.label not in controls:
                continue
            taken, change = timed.milliseconds["onnxruntime"], score_change(controls[entry.label].score, report.score)
            if entry.name in taken and change.high is not None and change.high >= 0:
                speed = taken["original"] / taken[entry.name]
                best = max(best or (0.0, ""), (speed, f"{network} {speed:.2f}x, {points(change)} of its control"))
    return Outcome(best[1] if best else "none yet", None if best is None else best[0] > 1.0)


CLAIMS: tuple[tuple[str, str, Callable[[], Outcome]], ...] = (
    (
        "more accurate than Depth at the same latency",
        "ResNet-34: +0.77 points at 1.10x of its speed-up",
        _against("depth"),
    ),
    (
        "more accurate than LayerOnly at the same latency",
        "ResNet-34, MobileNetV2: at every budget",
        _against("layeronly"),
    ),
    ("joint choice beats one after the other", "MobileNetV2 1.0: at both budgets", _against("sequential")),
    ("more accurate than channel pruning at the same latency", "ResNet-34, MobileNetV2", _against("channels")),
    ("a speed-up without loss", "MobileNetV2 1.0: 1.63x", _lossless),
    (
        "distillation adds to it",
        "MobileNetV2 1.0: at every budget",
        _by_training(
            "resnet20",
            "75%",
            Entry("layermerge", "75%", 5, teacher=False),
            Entry("layermerge", "75%", 5),
            "with a teacher",
        ),
    ),
    (
        "still ahead with few epochs",
        "MobileNetV2 1.0: 20 epochs instead of 180",
        _against("layeronly", "channels", epochs=lambda count: count == 1),
    ),
)


def claims() -> list[str]:
    """A line a claim."""
    lines = ["| claim | theirs (ImageNet) | ours | same direction |", "|---|---|---|---|"]
    for claim, theirs, find in CLAIMS:
        outcome = find()
        verdict = {True: "yes", False: "**no**", None: "not known yet"}[outcome.agrees]
        lines.append(f"| {claim} | {theirs} | {outcome.text} | {verdict} |")
    return lines


def points(change: ScoreChange) -> str:
    """A difference of accuracies, in points, with its interval."""
    if change.low is None or change.high is None:
        return f"{100 * change.gain:+.2f}"
    return f"{100 * change.gain:+.2f} ({100 * change.low:+.2f} to {100 * change.high:+.2f})"
