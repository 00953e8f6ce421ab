"""Claims of the paper beside what result files say: theirs, ours, and whether both point the same way.

In: the files of `evidence.py`. Out: a line a claim. Networks are compared at the same measured latency (`equal_latency`)
and after as much training. A claim holds where LayerMerge is ahead in every comparison by more than chance (paired
95 % interval), and fails where it is behind in one; anything else is within chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.diffusion_results import CHANNELS, FIGURES, METHODS, Figure, orderings, shown
from benchmarks.equal_latency import beside
from benchmarks.evidence import STUDY, Entry, latencies_of, results_of
from benchmarks.paired_kid import Lead

from layermerge.reporting.score_change import ScoreChange, score_change
from layermerge.runs.records import CONTROL
from layermerge.tasks.base import Score

UNITS: dict[Figure, str] = {"noise loss": "noise loss", "KID": "KID x 1000 of samples"}
LOSSLESS = 0.005
"""What may be lost where a speed-up is said to cost nothing: half a point."""


@dataclass(frozen=True)
class Outcome:
    """What was found, and what that says of the claim."""

    text: str
    verdict: str


NOT_RUN = Outcome("not run yet", "not known yet")


def verdict_of(changes: Sequence[ScoreChange]) -> str:
    """One comparison that LayerMerge loses is enough for no; all have to be won for yes."""
    if any(map(_behind, changes)):
        return "**no**"
    return "yes" if all(map(_ahead, changes)) else "within chance"


def comparisons() -> Iterator[tuple[str, Entry, ScoreChange]]:
    """Network, a rival's entry, and by how much LayerMerge is ahead at its latency: wherever a file of its own is as fast."""
    for network in STUDY:
        timed, found = latencies_of(network), dict(results_of(network))
        taken = timed.milliseconds["onnxruntime"] if timed else {}
        for entry in found:
            if entry.method in ("layermerge", CONTROL) or entry.name not in taken:
                continue
            if (mine := beside(entry, found, taken)) is not None:
                yield network, entry, mine.change


def of_diffusion(*rivals: str) -> Iterator[tuple[Figure, str, Lead]]:
    """Likewise on the U-Net: figure, rival, and the lead over it."""
    for figure in FIGURES:
        for rival, lead in orderings(figure, rivals):
            yield figure, rival, lead


def _change(lead: Lead) -> ScoreChange:
    gain, low, high = lead
    return ScoreChange(gain, "paired", low, high)


def standing() -> list[str]:
    """In how many comparisons LayerMerge is ahead, level and behind, and where it is behind."""
    told = [
        (f"{entry.method} on {network} at {entry.budget}, {_training(entry)}: {points(change)} points", change)
        for network, entry, change in comparisons()
    ]
    told += [
        (f"{rival} on the small U-Net: {shown(figure, lead)} in {UNITS[figure]}", _change(lead))
        for figure, rival, lead in of_diffusion(*METHODS[1:], CHANNELS)
    ]
    if not told:
        return [NOT_RUN.text]
    behind = [text for text, change in told if _behind(change)]
    ahead = sum(_ahead(change) for _, change in told)
    said = f"ahead in {ahead}, level in {len(told) - ahead - len(behind)}, behind in {len(behind) or 'none'}"
    return [
        f"**LayerMerge beside rivals at the same measured latency, by more than chance:** {said} of {len(told)} comparisons"
        + (". Behind:" if behind else "."),
        *(["", *(f"- {text}" for text in behind)] if behind else []),
    ]


def _training(entry: Entry) -> str:
    return {0: "without training", 1: "1 epoch"}.get(entry.epochs, f"{entry.epochs} epochs")


def _ahead(change: ScoreChange) -> bool:
    return change.low is not None and change.low > 0


def _behind(change: ScoreChange) -> bool:
    return change.high is not None and change.high < 0


def _against(*methods: str, epochs: Callable[[int], bool] = lambda count: count > 1) -> Callable[[], Outcome]:
    """LayerMerge beside rivals, wherever there is a file of theirs that was trained so long."""

    def compare() -> Outcome:
        found = [one for one in comparisons() if one[1].method in methods and epochs(one[1].epochs)]
        told = [
            f"{f'{entry.method}, ' if len(methods) > 1 else ''}{network} at {entry.budget} {points(change)}"
            for network, entry, change in found
        ]
        return Outcome("; ".join(told), verdict_of([change for _, _, change in found])) if told else NOT_RUN

    return compare


def _by_training(network: str, budget: str, first: Entry, second: Entry, what: str) -> Callable[[], Outcome]:
    """The same network after two kinds of training."""

    def compare() -> Outcome:
        scores: dict[Entry, Score] = {entry: made.report.score for entry, made in results_of(network)}
        if first not in scores or second not in scores:
            return NOT_RUN
        change = score_change(scores[first], scores[second])
        return Outcome(f"{network} at {budget}, {what}: {points(change)}", verdict_of([change]))

    return compare


def _lossless() -> Outcome:
    """The fastest file that is no more than half a point below its control, nor below it by more than chance."""
    best: tuple[float, str] | None = None
    for network in STUDY:
        timed, found = latencies_of(network), [(entry, made.report) for entry, made in results_of(network)]
        controls = {entry.label: report for entry, report in found if entry.method == CONTROL}
        for entry, report in found:
            if timed is None or entry.method != "layermerge" or entry.label not in controls:
                continue
            taken, change = timed.milliseconds["onnxruntime"], score_change(controls[entry.label].score, report.score)
            if entry.name in taken and change.high is not None and change.high >= 0 and change.gain >= -LOSSLESS:
                speed = taken["original"] / taken[entry.name]
                best = max(best or (0.0, ""), (speed, f"{network} {speed:.2f}x, {points(change)} of its control"))
    return Outcome(best[1], "yes" if best[0] > 1.0 else "**no**") if best else Outcome("none yet", "not known yet")


def _diffusion() -> Outcome:
    """Lower noise loss and lower KID than Depth and LayerOnly, of the same U-Net at the same latency of a step."""
    found = list(of_diffusion(*METHODS[1:]))
    told = [
        f"{figure}: " + "; ".join(f"{rival} {shown(figure, lead)}" for of, rival, lead in found if of == figure)
        for figure in dict.fromkeys(figure for figure, _, _ in found)
    ]
    return Outcome(". ".join(told), verdict_of([_change(lead) for _, _, lead in found])) if told else NOT_RUN


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
    (
        "better than Depth and LayerOnly on a diffusion U-Net",
        "DDPM, CIFAR-10: lower FID at each budget, also after channel pruning",
        _diffusion,
    ),
)


def claims() -> list[str]:
    """A line a claim."""
    lines = ["| claim | theirs (ImageNet) | ours | same direction |", "|---|---|---|---|"]
    for claim, theirs, find in CLAIMS:
        outcome = find()
        lines.append(f"| {claim} | {theirs} | {outcome.text} | {outcome.verdict} |")
    return lines


def points(change: ScoreChange) -> str:
    """A difference of accuracies, in points, with its interval."""
    if change.low is None or change.high is None:
        return f"{100 * change.gain:+.2f}"
    return f"{100 * change.gain:+.2f} ({100 * change.low:+.2f} to {100 * change.high:+.2f})"
